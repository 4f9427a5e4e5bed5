"""The sliders, plots and sentences of `lagrax explore`, without a browser."""

import base64
import contextlib
import io
import itertools
import math
import re
import statistics
import time

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from lagrax import analysis, systems
from lagrax._cli.analyse_equation import held_systems, parameters_of
from lagrax._cli.explore import parse_address, to_address
from lagrax._cli.explore_sliders import ExploreError, equations, make_state
from lagrax._cli.explore_view import make_diagram, make_marker, make_view

POPULATION = {"a": 2.2, "tau": 0.9, "start": 0.4}


def line(drawing, number=0):
    trace = drawing["data"][number]
    return np.array(trace["x"], float), np.array(trace["y"], float)


# --- sliders --------------------------------------------------------------------------------------


def test_every_system_has_its_sliders():
    assert list(equations()) == list(systems.SYSTEMS)
    for name, equation in equations().items():
        lag = {"lag"} if name == "population" else set()
        assert {s.name for s in equation.sliders} == parameters_of(name).keys() | lag | {"start"}
        for slider in equation.sliders:
            assert slider.least <= slider.low < slider.high <= slider.most
        assert make_state(name, {}).values == {s.name: s.value for s in equation.sliders}


def test_values_are_taken_as_they_are_and_ranges_grow():
    state = make_state("population", {"a": 9, "start": 0.3333, "lag": 5}, "tau")
    assert state.values == {"a": 9.0, "tau": 1.0, "start": 0.3333, "lag": 5.0}
    assert state.ranges["a"] == (0.2, 9.0)
    assert state.ranges["start"] == (0.05, 2.0)
    assert state.axis == "tau"
    assert make_state("population", {}, ["lag"]).axis == "a"
    # A range stays as wide as it was once the value is back inside.
    assert make_state("population", {"a": 1.0}, ranges={"a": (0.2, 9)}).axis_range == (0.2, 9.0)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("nobody", {}, "No equation 'nobody': expected one of population, linear"),
        (["population"], {}, "No equation"),
        (None, {}, "No equation None"),
        ("population", {"b": 1.0}, "population has no slider 'b': it has a, tau, lag, start"),
        ("population", {"a": math.nan}, "a = nan: expected a finite number"),
        ("population", {"a": math.inf}, "a = inf: expected a finite number"),
        ("population", {"a": 10**400}, "a = 1000.*: expected a finite number"),
        ("population", {"a": "2"}, "a = '2': expected a finite number"),
        ("population", {"a": True}, "a = True: expected a finite number"),
        ("population", {"a": [2.0]}, "a = .*: expected a finite number"),
        ("population", {"a": 1e9}, r"a = 1e\+09: expected a number from -5 to 10"),
        ("population", {"tau": 0.1}, r"tau = 0.1: expected a number from 0.2 to 10"),
        ("population", {"lag": 1.7}, "lag = 1.7: expected a whole number from 0 to 8"),
        ("hutchinson", {"a": 4.0}, r"a = 4: expected a number from 0.2 to 3"),
    ],
)
def test_anything_else_is_refused(name, values, message):
    with pytest.raises(ExploreError, match=message):
        make_state(name, values)


def test_ranges_beyond_the_limits_are_refused():
    with pytest.raises(ExploreError, match="a = 1e"):
        make_state("population", {}, ranges={"a": (0.0, 1e9)})


def test_addresses_hold_the_state():
    state = make_state("held-oscillator", {"k": 0.5, "zeta": 3.0}, "zeta")
    asked = parse_address(to_address(state))
    values = {k: asked[k] for k in state.values}
    assert make_state(asked.pop("system"), values, asked["over"]) == state
    assert parse_address(None) == parse_address("?" + "a=1&" * 1000) == {}


# --- plots and sentences --------------------------------------------------------------------------


def test_population_is_shown_exactly(x64):
    seen = make_view(make_state("population", POPULATION))
    system = systems.Population(2.2, 0.9)
    ts, xs = line(seen.trajectory)
    assert (ts[0], ts[-1]) == (0.0, 40.0)
    np.testing.assert_allclose(xs, system.solution(ts, 0.4), rtol=1e-3)  # ts has five digits
    instants, knots = line(seen.trajectory, 1)
    np.testing.assert_allclose(instants, 0.9 * np.arange(45), rtol=1e-4)
    orbit = np.asarray(analysis.knot_map(system, 0.4).orbit(iterates=61))[:, 0]
    np.testing.assert_allclose(knots, orbit[:45], rtol=1e-4)
    assert seen.plane_title == "Cobweb of the knot map"
    x, y = line(seen.plane, 1)
    np.testing.assert_allclose([x[1::2], y[1::2]], [orbit[:-1], orbit[1:]], rtol=1e-4)


@pytest.mark.parametrize(
    ("a", "words"),
    [
        (1.5, r"From 0\.4 it settles at a fixed point, 1; stable.*\(largest multiplier −0\.5\)"),
        (2.2, r"cycle that repeats after 2 knots, 0\.4971 → 1\.503; stable"),
        (3.0, r"it is chaotic.*Largest Lyapunov exponent 0\.3"),
    ],
)
def test_sentences_are_those_of_the_analysis(x64, a, words):
    seen = make_view(make_state("population", {"a": a, "start": 0.4}))
    assert re.search(words, seen.sentence), seen.sentence
    if a < 3:
        orbits = analysis.periodic_orbits(systems.Population(a), 1 if a < 2 else 2)
        (stable,) = [orbit for orbit in orbits if orbit.stability == "stable"]
        said = float(re.search(r"multiplier (.*)\)", seen.sentence)[1].replace("−", "-"))
        assert said == pytest.approx(stable.multipliers[0].real, abs=1e-4)
        points = np.sort(np.asarray(stable.points)[:, 0])
        np.testing.assert_allclose(np.sort(seen.here), points, rtol=1e-8)
    else:
        (exponent,) = analysis.lyapunov(systems.Population(a), 0.4)
        said = float(re.search(r"exponent ([\d.]*\d)", seen.sentence)[1])
        assert said == pytest.approx(float(exponent), abs=0.1)


def test_a_lag_shows_successive_knots(x64):
    seen = make_view(make_state("population", {"a": 0.8, "lag": 1, "start": 0.4}))
    orbit = np.asarray(systems.Population(0.8, lag=1).solution(np.arange(61.0), 0.4))
    np.testing.assert_allclose(line(seen.plane, 2), [orbit[:-1], orbit[1:]], rtol=1e-4)
    assert "depends on 2 earlier ones" in seen.sentence
    assert "turning about it (largest multiplier of modulus 0.89443)" in seen.sentence


def test_underflow_is_reported():
    seen = make_view(make_state("population", {"a": 4.0, "tau": 1.5, "lag": 1, "start": 2.0}))
    assert "it falls below the smallest floating-point number" in seen.sentence


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        # The fixed point 1 has the multiplier -1, and knots approach it as 1/sqrt(n).
        (
            {"a": 2.0},
            "From 0.5 it does not repeat within 64 knots and is not chaotic. It settles sl",
        ),
        ({"a": 2.0, "start": 0.0}, "From 0 it does not move. This fixed point is unstable"),
    ],
)
def test_a_slow_approach_is_no_cycle_and_rest_is_no_underflow(values, sentence):
    assert make_view(make_state("population", values)).sentence.startswith(sentence)


def pixels(drawing):
    """The states at each value of the parameter that the diagram's picture shows."""
    (image,) = drawing["layout"]["images"]
    content = base64.b64decode(image["source"].removeprefix("data:image/png;base64,"))
    alpha = matplotlib.image.imread(io.BytesIO(content))[..., 3]
    rows = image["y"] - (np.arange(len(alpha)) + 0.5) * image["sizey"] / len(alpha)
    return [rows[column > 0] for column in alpha.T], image["sizey"] / len(alpha)


def test_diagram_is_that_of_the_analysis(x64):
    here = make_state("population", {"a": 2.2})
    drawing = make_diagram(here, make_view(here).here)
    states, cell = pixels(drawing)
    values = np.linspace(0.2, 4.0, len(states))
    expected = analysis.bifurcation(systems.Population, values, 0.5, keep=100, skip=400)
    for shown, found in zip(states, np.asarray(expected.states)[:, :, 0], strict=True):
        away = np.abs(shown[:, None] - found[None])
        assert away.min(axis=1).max() <= 0.51 * cell
        assert away.min(axis=0).max() <= 0.51 * cell
    x, y = line(drawing, 1)
    np.testing.assert_allclose(x, 2.2)
    np.testing.assert_allclose(np.sort(y), [0.4971, 1.503], rtol=1e-3)


def test_marker_is_all_that_follows_the_axis():
    first, second = (make_state("population", {"a": a}) for a in (2.2, 2.3))
    assert first.diagram_key == second.diagram_key
    assert first.diagram_key != make_state("population", {"a": 2.2, "tau": 0.9}).diagram_key
    assert first.diagram_key != make_state("population", {"a": 2.2}, "tau").diagram_key
    moved = make_diagram(first, np.array([0.5]))
    for trace, changed in zip(moved["data"], make_marker(second, np.array([0.6])), strict=True):
        trace |= changed
    assert moved == make_diagram(second, np.array([0.6]))


def test_linear_systems_show_their_multipliers(x64):
    here = make_state("linear", {"tau": 2.0, "start": -0.5})
    seen = make_view(here)
    system = systems.Linear(tau=2.0)
    ts, xs = line(seen.trajectory)
    np.testing.assert_allclose(xs, system.solution(ts, np.array([-0.5, 1.0]))[:, 0], atol=1e-3)
    moduli = np.sort(np.abs(np.linalg.eigvals(system.knot_matrix)))[::-1]
    np.testing.assert_allclose(seen.here, moduli, rtol=1e-9)
    assert f"Largest multiplier of modulus {moduli[0]:.4g}" in seen.sentence
    assert "two components" in seen.sentence
    x, y = line(make_diagram(here, seen.here), -2)
    for tau, largest in zip(x[::50], y[::50], strict=True):
        expected = np.abs(np.linalg.eigvals(systems.Linear(tau=tau).knot_matrix)).max()
        assert largest == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digital-control", "held-oscillator"])
def test_other_linear_systems(x64, name):
    seen = make_view(make_state(name, {"tau": 0.5}))
    system = systems.SYSTEMS[name](tau=0.5)
    ts, xs = line(seen.trajectory)
    np.testing.assert_allclose(xs, system.solution(ts)[:, 0], atol=2e-3)
    assert name in held_systems()


def test_a_population_with_a_lag_stays_bounded():
    """Its peak is 148 times its mean, which fixed steps of the state itself do not follow."""
    seen = make_view(make_state("hutchinson", {"a": 3.0, "tau": 2.0}))
    assert "It swings slowly" in seen.sentence
    _, xs = line(seen.trajectory)
    assert xs.max() == pytest.approx(148.4, rel=1e-2)


def test_overflow_ends_a_curve():
    seen = make_view(make_state("population", {"a": -5.0, "start": 2.0}))
    assert "runs away to infinity" in seen.sentence
    assert None in seen.trajectory["data"][0]["y"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settles"), [("hutchinson", {"a": 1.0}), ("mackey-glass", {"n": 2})]
)
def test_lags_show_a_phase_plane(x64, name, settles):
    import diffrax

    import lagrax

    here = make_state(name, {})
    seen = make_view(here)
    ts, xs = line(seen.trajectory)
    system = systems.SYSTEMS[name]()
    sol = lagrax.solve(
        system,
        0.0,
        here.equation.t1,
        system.y0.astype(float),
        delays=system.delays,
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-10),
        max_steps=20_000,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
    )
    np.testing.assert_allclose(xs, sol.ys, atol=5e-3)
    assert seen.plane_title == "Phase plane"
    assert "It swings between" in seen.sentence
    assert "no knot map and no cobweb" in seen.sentence
    dots = make_diagram(here, seen.here)["data"][2]
    low, high = here.axis_range
    np.testing.assert_allclose(sorted(set(dots["x"])), np.linspace(low, high, 400)[::5], rtol=1e-3)
    # Those of the present value are the extrema of the trajectory after its start.
    near = np.abs(np.array(dots["x"]) - here.values[here.axis]) < 0.01 * (high - low)
    late = np.array(xs)[len(xs) // 2 :]
    assert np.max(np.array(dots["y"])[near]) == pytest.approx(late.max(), rel=0.1)
    assert "It settles at" in make_view(make_state(name, settles)).sentence


# --- how fast -------------------------------------------------------------------------------------


@contextlib.contextmanager
def compilations():
    found = []
    listen = lambda event, seconds, **_: found.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_move_compiles_nothing_and_is_quick(unchecked):
    def move(**values):
        here = make_state("population", values)
        began = time.perf_counter()
        seen = make_view(here)
        after = time.perf_counter()
        make_diagram(here, seen.here)
        return after - began, time.perf_counter() - began

    moves = [
        {"a": a, "tau": tau, "start": start}
        for a, tau, start in itertools.product((1.5, 2.2, 2.6, 3.0, 3.9), (0.5, 1.2), (0.1, 1.5))
    ]
    with compilations() as warming:
        for values in ({"a": 0.7}, {"a": 2.2}, {"a": 3.0}):
            move(**values)
        jnp.cosh(jnp.ones(13))
    assert warming  # so they are counted at all
    with compilations() as found:
        seconds = [move(**values) for values in moves]
    assert found == []
    middle = [1e3 * statistics.median(times) for times in zip(*seconds, strict=True)]
    print("one move: {:.0f} ms, with the diagram {:.0f} ms".format(*middle))
    assert min(seconds)[0] < 0.1
