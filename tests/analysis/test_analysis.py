"""The knot map and what follows from it, against NumPy, SciPy, python-control and closed forms."""

import time

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import lagrax
from lagrax import plotting
from lagrax.analysis import (
    KnotMap,
    Orbit,
    StabilityChart,
    _planes,
    basins,
    bifurcation,
    cobweb,
    critical,
    knot_map,
    lyapunov,
    periodic_orbits,
    stability_region,
)
from lagrax.systems import DigitalControl, HeldOscillator, Hutchinson, Linear, Population


def ricker(a, x):
    return x * np.exp(a * (1 - x))


def population(t, x, a, *, history):
    (held,) = history
    return a * x * (1 - held)


def henon():
    return KnotMap(lambda x, older: 1 - 1.4 * x**2 + 0.3 * older, y0=0.1, lags=2)


# --- the map --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"rtol": 1e-11}, {"steps": 64}, {"solver": diffrax.Dopri8(), "steps": 16}]
)
def test_solved_map_is_the_exact_one(x64, options):
    x = np.array([[0.3], [1.0], [1.7]])
    slope = (1 - 3.2 * x) * np.exp(3.2 * (1 - x))
    maps = {
        1e-13: knot_map(Population(3.2)),
        1e-7: knot_map(population, 0.5, 3.2, delays=lagrax.holds(1.0, 1), **options),
    }
    for accuracy, f in maps.items():
        both = lambda x: jax.jvp(f, (x,), (jnp.ones(1),))  # noqa: B023
        value, derivative = jax.vmap(both)(jnp.asarray(x))
        np.testing.assert_allclose(value, ricker(3.2, x), rtol=accuracy)
        np.testing.assert_allclose(derivative, slope, rtol=accuracy)


def test_derivative_near_rest_is_not_left_to_the_tolerance(x64):
    """At x = 0 any step is good enough for the state, but not for its derivative."""
    solved = knot_map(Population(2.2), rtol=1e-6)
    np.testing.assert_allclose(solved.jacobian(jnp.zeros(1)), [[np.exp(2.2)]], rtol=1e-6)


def test_orbit_of_any_state_with_lags_is_the_solution(x64):
    """A dictionary, three lags of which one is not looked at, and a start of integers."""

    def field(t, y, rate, *, history):
        newest, oldest = history
        return {
            "a": -rate * y["a"] + 0.5 * jnp.sin(oldest["b"][0]),
            "b": y["b"] * 0.1 - newest["a"] * jnp.array([1.0, 2.0]),
        }

    delays = [lagrax.Hold(0.7), lagrax.Hold(0.7, lag=2)]
    y0 = {"a": 1, "b": jnp.array([1, 0])}
    f = knot_map(field, y0, 0.3, delays=delays, steps=2)
    assert (f.lags, f.size) == (3, 9)
    orbit = f.orbit(iterates=6)
    start = {"a": 1.0, "b": jnp.array([1.0, 0.0])}
    solution = lagrax.solve(field, 0.0, 3.5, start, 0.3, delays=delays, steps=2)
    for k in range(6):
        newest, before, _ = f.knots(orbit[k])
        np.testing.assert_allclose(newest["a"], solution.knots.ys["a"][k], rtol=1e-12)
        np.testing.assert_allclose(newest["b"], solution.knots.ys["b"][k], rtol=1e-9)
        np.testing.assert_allclose(before["a"], solution.knots.ys["a"][max(k - 1, 0)], rtol=1e-9)
    np.testing.assert_array_equal(f.point(*f.knots(orbit[5])), orbit[5])
    np.testing.assert_array_equal(f.orbit(orbit[2], 4), orbit[2:])
    np.testing.assert_array_equal(f.orbit(iterates=4, skip=2), orbit[2:])


def test_learned_field_with_its_own_hold():
    field = lagrax.nn.MLP(1, (10, 10), history=2, key=jax.random.key(0))
    delays, y0 = lagrax.holds(0.5, 2), jnp.array([0.3])
    f = knot_map(field, y0, delays=delays, steps=1)
    solution = lagrax.solve(field, 0.0, 1.5, y0, delays=delays, steps=1)
    np.testing.assert_allclose(f.orbit(iterates=4)[:, :1], solution.knots.ys, rtol=1e-5)


def test_traced_period(x64):
    def next_knot(tau, **options):
        delays = lagrax.holds(tau, 2)
        field = lambda t, x, args, *, history: -0.3 * x - 0.5 * history[1]
        f = knot_map(field, 1.0, delays=delays, **options)
        return f(jnp.array([1.0, 2.0]))[0]

    exact = lambda tau: np.exp(-0.3 * tau) * (1 + 1 / 0.3) - 1 / 0.3
    taus = jnp.array([0.5, 1.0, 2.0])
    for options in ({"steps": 16}, {"rtol": 1e-10}):
        values = jax.vmap(lambda tau: next_knot(tau, **options))(taus)  # noqa: B023
        np.testing.assert_allclose(values, exact(np.asarray(taus)), rtol=1e-8)


@pytest.mark.parametrize("path", ["exact", "solved"])
def test_held_plant_is_the_zero_order_hold_of_python_control(x64, path):
    import control

    A = np.array([[0.0, 1.0, 0.0], [-2.0, -0.3, 1.0], [0.0, 0.0, -5.0]])
    B, K = np.array([[0.0], [0.0], [5.0]]), np.array([[0.7, 0.2, 0.05]])
    plant = DigitalControl(A, B, K, tau=0.4)
    discrete = control.c2d(control.ss(A, B, np.eye(3), np.zeros((3, 1))), 0.4, "zoh")
    expected = discrete.A - discrete.B @ K
    f = knot_map(plant) if path == "exact" else knot_map(plant, steps=64)
    np.testing.assert_allclose(f.jacobian(jnp.ones(3)), expected, atol=1e-10)
    (rest,) = periodic_orbits(f, starts=jnp.ones((1, 3)))
    np.testing.assert_allclose(rest.points, 0, atol=1e-12)
    poles = sorted(np.linalg.eigvals(expected), key=lambda z: (abs(z), z.imag))
    found = sorted(rest.multipliers, key=lambda z: (abs(z), z.imag))
    np.testing.assert_allclose(found, poles, atol=1e-10)


# --- periodic orbits ------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "stability"), [(1.8, "stable"), (2.0, "neutral"), (2.2, "unstable")])
def test_fixed_points_of_the_population(x64, a, stability):
    nothing, one = periodic_orbits(Population(a))
    np.testing.assert_allclose(nothing.points, [[0]], atol=1e-12)
    np.testing.assert_allclose(one.points, [[1]], rtol=1e-14)
    np.testing.assert_allclose(nothing.multipliers, [np.exp(a)], rtol=1e-12)
    np.testing.assert_allclose(one.multipliers, [1 - a], rtol=1e-12)
    assert nothing.stability == "unstable"
    assert one.stability == stability
    assert one.verdict.startswith(stability + ": ")


def test_orbits_have_exactly_their_period(x64):
    """At a = 3.2 there is one orbit of period 2 (x and 2 - x), two of period 3 since the window,
    and one of period 4, that of the doublings; the next comes later."""
    f = knot_map(Population(3.2))
    counts = {period: periodic_orbits(f, period) for period in (2, 3, 4)}
    assert [len(orbits) for orbits in counts.values()] == [1, 2, 1]
    x = brentq(lambda x: ricker(3.2, x) - (2 - x), 0.01, 0.5)
    np.testing.assert_allclose(counts[2][0].points.ravel(), [x, 2 - x], rtol=1e-12)
    slope = (1 - 3.2 * x) * (1 - 3.2 * (2 - x))
    np.testing.assert_allclose(counts[2][0].multipliers, [slope], rtol=1e-10)
    for period, orbits in counts.items():
        for orbit in orbits:
            points = np.asarray(orbit.points).ravel()
            assert orbit.period == period == len(np.unique(points.round(6)))
            np.testing.assert_allclose(ricker(3.2, points), np.roll(points, -1), rtol=1e-9)


def test_no_spurious_orbit_at_the_doubling(x64):
    """At a = 2 the fixed point is a threefold solution of f(f(x)) = x, found but roughly."""
    assert periodic_orbits(Population(2.0), 2) == []


def test_orbits_in_single_precision():
    _, one = periodic_orbits(Population(2.2))
    np.testing.assert_allclose(one.points, [[1]], rtol=1e-6)
    assert len(periodic_orbits(Population(2.2), 2)) == 1


def test_orbits_of_a_planar_map(x64):
    """Hénon's fixed points solve 1.4 x² + 0.7 x - 1 = 0; starts may be states."""
    roots = np.sort(np.roots([1.4, 0.7, -1.0]))
    for starts in (jnp.linspace(-2, 2, 9), jnp.linspace(-2, 2, 9)[:, None] * jnp.ones(2)):
        orbits = periodic_orbits(henon(), starts=starts)
        np.testing.assert_allclose([o.points[0] for o in orbits], np.c_[roots, roots], rtol=1e-12)
        for orbit, x in zip(orbits, roots, strict=True):
            expected = np.linalg.eigvals([[-2.8 * x, 0.3], [1, 0]])
            np.testing.assert_allclose(np.sort(orbit.multipliers.real), np.sort(expected))
            assert orbit.stability == "saddle"
            assert "1 of 2 directions" in orbit.verdict
    assert len(periodic_orbits(henon(), 2)) == 1


@pytest.mark.parametrize(
    ("multipliers", "words"),
    [
        (
            [0.5, 0.1],
            "stable: nearby orbits approach it, staying on their side (largest",
        ),
        ([-0.5, 0.1], "stable: nearby orbits approach it, changing sides each time"),
        ([0.0, 0.0], "stable: nearby orbits approach it (largest multiplier 0)"),
        (
            [0.3 + 0.4j, 0.3 - 0.4j],
            "stable: nearby orbits approach it, turning about it (largest mult",
        ),
        (
            [2.0, -1.5],
            "unstable: nearby orbits leave it, staying on their side (largest",
        ),
        ([-2.0, 0.5], "saddle: nearby orbits leave it in 1 of 2 directions, changing sides"),
        ([1.0, 0.5], "neutral: about to lose stability by a fold or a branching"),
        ([-1.0, 0.5], "neutral: about to lose stability by a doubling of the period"),
        ([0.6 + 0.8j, 0.6 - 0.8j], "neutral: about to lose stability by the birth of an invariant"),
    ],
)
def test_verdicts(multipliers, words):
    orbit = Orbit(jnp.zeros((1, 2)), np.array(multipliers, complex))
    assert orbit.verdict.startswith(words)


# --- critical parameters --------------------------------------------------------------------------


def test_stability_is_lost_at_two(x64):
    assert critical(Population, 1.9).parameter == pytest.approx(2, abs=1e-12)


def test_doublings_accumulate(x64):
    """Period 4 begins where the orbit x, 2 - x has the multiplier -1, which two lines of SciPy
    find; the next ones come closer by Feigenbaum's number."""

    def multiplier_of_two(a):
        x = brentq(lambda x: ricker(a, x) - (2 - x), 0.01, 0.9)
        return (1 - a * x) * (1 - a * (2 - x))

    found = [2.0, critical(Population, 2.5, period=2).parameter]
    assert found[1] == pytest.approx(2.526, abs=5e-4)
    assert found[1] == pytest.approx(brentq(lambda a: multiplier_of_two(a) + 1, 2.4, 2.6))
    for period in (4, 8):
        guess = found[-1] + 0.2 * (found[-1] - found[-2])
        found.append(critical(Population, guess, period=period).parameter)
    gaps = np.diff(found)
    assert 4.4 < gaps[1] / gaps[2] < 4.9
    assert found[-1] + gaps[-1] / 3.6692 == pytest.approx(2.692, abs=5e-4)


def test_period_three(x64):
    """a* = 3.11670..., where the orbit of the maximum 1/a* comes back after three."""
    star = critical(Population, 3.12, period=3, multiplier=0)

    def comes_back(a):
        return ricker(a, ricker(a, ricker(a, 1 / a))) - 1 / a

    expected = brentq(comes_back, 3.11, 3.12, xtol=1e-13)
    assert star.parameter == pytest.approx(expected, abs=1e-10)
    assert f"{star.parameter:.5f}" == "3.11670"
    assert np.min(np.abs(star.orbit.points - 1 / star.parameter)) < 1e-9
    assert star.orbit.stability == "stable"
    # The window opens with a fold: below it there is no orbit of period three at all.
    fold = critical(Population, 3.11, period=3, multiplier=1).parameter
    below, above = (periodic_orbits(Population(fold + d), 3) for d in (-1e-3, 1e-3))
    assert (len(below), len(above)) == (0, 2)
    assert sorted(orbit.stability for orbit in above) == ["stable", "unstable"]


def test_critical_of_a_planar_map(x64):
    """A held oscillator leaves through -1 where its knot matrix has that eigenvalue."""
    make = lambda tau: HeldOscillator(k=3.0, tau=tau)
    found = critical(make, 2.2, start=jnp.zeros(2))
    matrix = np.asarray(make(found.parameter).knot_matrix)
    assert np.min(np.abs(np.linalg.eigvals(matrix) + 1)) < 1e-10


def test_critical_that_is_not_there(x64):
    with pytest.raises(ValueError, match=r"period 2 with the multiplier 1 from 1.5 on and found"):
        critical(Population, 1.5, period=2, multiplier=1)


# --- Lyapunov exponents ---------------------------------------------------------------------------


@pytest.mark.parametrize("a", [1.5, 2.3, 2.6, 2.8, 3.0, 3.2, 3.4])
def test_exponent_is_the_average_of_the_slope(x64, a):
    x, logs = 0.3, np.empty(60_000)
    for i in range(-1000, len(logs)):
        if i >= 0:
            logs[i] = np.log(abs((1 - a * x) * np.exp(a * (1 - x))))
        x = ricker(a, x)
    (exponent,) = lyapunov(Population(a), iterates=60_000)
    assert exponent == pytest.approx(logs.mean(), abs=0.01 if logs.mean() > 0 else 1e-3)


def test_spectra(x64):
    """Hénon's map contracts areas by 0.3 everywhere; a linear map's exponents are known."""
    exponents = lyapunov(henon(), iterates=20_000)
    np.testing.assert_allclose(exponents.sum(), np.log(0.3), rtol=1e-10)
    np.testing.assert_allclose(exponents, [0.4192, -1.6232], atol=0.01)
    linear = Linear(A=[[-0.1, 0.0], [0.0, -0.7]], Bs=[[[0.3, 0.0], [0.1, 0.2]]])
    expected = np.sort(np.log(np.abs(np.linalg.eigvals(linear.knot_matrix))))[::-1]
    np.testing.assert_allclose(lyapunov(linear, iterates=200), expected, atol=1e-3)


# --- bifurcation diagrams -------------------------------------------------------------------------


def largest_in_logarithms(a, lag, iterates, skip=1_000):
    """Of the population's logarithm, whose map has nothing small in it, however deep it falls."""
    u, v, total = [np.log(0.5)] * (lag + 1), np.eye(lag + 1)[0], 0.0
    for k in range(skip + iterates):
        crowd = np.exp(u[lag])
        u, v = [u[0] + a * (1 - crowd), *u[:-1]], np.append(v[0] - a * crowd * v[lag], v[:-1])
        size = np.linalg.norm(v)
        v, total = v / size, total + (np.log(size) if k >= skip else 0.0)
    return total / iterates


@pytest.mark.parametrize(("a", "lag"), [(3.2, 1), (1.7, 2), (2.0, 2)])
def test_exponents_of_orbits_with_deep_troughs(x64, a, lag):
    """At a = 3.2 with a lag the population falls to 1e-98, and rises again."""
    system = Population(a, lag=lag)
    orbit = np.asarray(knot_map(system).orbit(None, 5_000))[:, 0]
    assert 0 < orbit.min() < 1e-10
    exponents = lyapunov(system, iterates=20_000)
    assert np.all(np.isfinite(exponents))
    expected = largest_in_logarithms(a, lag, 20_000)
    assert expected > 0.015
    np.testing.assert_allclose(exponents[0], expected, atol=0.012)
    # The determinant of the map from (x, older, ..., oldest) is a x' up to its sign.
    following = np.asarray(knot_map(system).orbit(None, 20_001, 1_000))[1:, 0]
    np.testing.assert_allclose(exponents.sum(), np.mean(np.log(a * following)), rtol=1e-6)


def test_exponents_of_a_map_that_forgets():
    """It has no memory of its second argument, and forgets the first as well."""
    constant = KnotMap(lambda x, older: 0.5 + 0.0 * x + 0.0 * older, y0=0.1, lags=2)
    assert np.all(np.isneginf(lyapunov(constant, iterates=50)))
    forgets = KnotMap(lambda x, older: 0.5 * x + 0.0 * older, y0=0.1, lags=2)
    first, second = lyapunov(forgets, iterates=50)
    np.testing.assert_allclose(first, np.log(0.5), rtol=1e-5)
    assert np.isneginf(second)


def test_diagram_is_what_numpy_iterates(x64):
    values = np.array([1.7, 2.3, 2.6, 3.117])
    diagram = bifurcation(Population, values, 0.3, keep=128)
    assert diagram.states.shape == (4, 128, 1)
    assert diagram.periods.tolist() == [1, 2, 4, 3]
    x = np.full(4, 0.3)
    for _ in range(1000):
        x = ricker(values, x)
    for i in range(128):
        np.testing.assert_allclose(diagram.states[:, i, 0], x, rtol=1e-8)
        x = ricker(values, x)
    for a, exponent in zip(values, diagram.exponents, strict=True):
        np.testing.assert_allclose(exponent, lyapunov(Population(a), 0.3)[0], rtol=0.02)


def test_diagram_is_quick():
    """2,000 values and 500 kept iterates in a few seconds on two cores; twice that is allowed."""
    begin = time.perf_counter()
    diagram = bifurcation(Population, jnp.linspace(1.5, 3.5, 2000))
    jax.block_until_ready(diagram.states)
    assert time.perf_counter() - begin < 10
    assert diagram.states.shape == (2000, 500, 1)
    values, exponents = np.asarray(diagram.values), np.asarray(diagram.exponents)
    assert np.all(diagram.periods[(values > 1.52) & (values < 1.98)] == 1)
    assert np.all(diagram.periods[(values > 2.02) & (values < 2.51)] == 2)
    assert exponents[values < 2.69].max() < 0.02
    assert np.mean(exponents[values > 3.25] > 0) > 0.95


def test_diagram_of_a_field(x64):
    values = [1.8, 2.3]
    make = lambda a: knot_map(population, 0.5, a, delays=lagrax.holds(1.0, 1), steps=16)
    by_steps, exact = bifurcation(make, values), bifurcation(Population, values)
    np.testing.assert_allclose(by_steps.states, exact.states, rtol=1e-4)
    np.testing.assert_allclose(by_steps.exponents, exact.exponents, rtol=1e-3)


def test_escaping_and_superstable_orbits():
    diagram = bifurcation(lambda a: KnotMap(lambda x: a * x**2, 1.0), [0.5, 2.0], keep=50)
    np.testing.assert_array_equal(diagram.states[0], 0)
    assert diagram.exponents[0] == -jnp.inf
    assert np.isnan(diagram.exponents[1])
    assert diagram.periods.tolist() == [1, 0]
    assert diagram.figure().panels[1].marks[1].y is not None


# --- basins ---------------------------------------------------------------------------------------


def two_wells():
    """x goes to 1 or -1, or escapes from beyond √5, where it would alternate."""
    return KnotMap(lambda z: jnp.stack([(3 * z[0] - z[0] ** 3) / 2, z[1] / 2]), jnp.zeros(2))


def test_basins_are_where_numpy_goes(x64):
    found = basins(two_wells(), (-2.5, 2.5), (-1, 1), resolution=60)
    x = found.x.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(200):
            x = (3 * x - x**3) / 2
    assert len(found.attractors) == 2
    expected = [found.attractors[0][0, 0], found.attractors[1][0, 0]]
    assert sorted(np.round(expected, 12)) == [-1, 1]
    for label, end in zip(found.labels.T, x, strict=True):
        assert np.all(label == (expected.index(min(expected, key=lambda e: abs(e - end))))) or (
            not np.isfinite(end) and np.all(label == -1)
        )
    assert sum(found.shares) == pytest.approx(np.mean(np.isfinite(x)))


def test_chaotic_attractor_is_one(x64):
    found = basins(henon(), (-2, 2), (-4, 4), resolution=100)
    assert len(found.attractors) == 1
    assert found.labels[50, 50] == 0
    assert found.labels[0, 0] == -1


def test_attractor_between_cells_is_one():
    """Orbits end up at the origin from both sides, in all four cells around it."""
    shrinking = KnotMap(lambda z: -0.5 * z, jnp.zeros(2))
    assert basins(shrinking, (-1, 1), (-1, 1), resolution=21, iterates=100).shares == (1.0,)


def test_nothing_but_escape():
    found = basins(KnotMap(lambda z: 2 * z + 1, jnp.zeros(2)), (0, 1), (0, 1), resolution=5)
    assert np.all(found.labels == -1)
    assert found.attractors == ()
    assert "100% escape" in found.figure().caption


# --- stability regions ----------------------------------------------------------------------------


def test_region_of_an_integrator(x64):
    """x' = -k x held for tau is stable exactly where 0 < k tau < 2."""
    make = lambda k, tau: DigitalControl([[0.0]], [[1.0]], k.reshape(1, 1), tau)
    k, tau = np.linspace(-0.5, 4, 20), np.linspace(0.1, 3, 15)
    region = stability_region(make, k, tau)
    np.testing.assert_array_equal(region.stable, (k > 0) & (np.outer(tau, k) < 2))
    np.testing.assert_allclose(region.radius, np.abs(1 - np.outer(tau, k)), atol=1e-12)
    off = np.minimum(np.abs(region.boundary.prod(axis=1) - 2), np.abs(region.boundary[:, 0]))
    assert len(region.boundary) > 20
    assert off.max() < 1e-12


def test_region_of_a_controller_by_jury(x64):
    """Mass, position and velocity fed back: z² + a z + b with all roots inside where |b| < 1 and
    |a| < 1 + b."""
    make = lambda gain, tau: DigitalControl(K=gain * jnp.array([[0.5, 1.0]]), tau=tau)
    gain, tau = np.linspace(0.1, 4, 30), np.linspace(0.05, 2.5, 30)
    region = stability_region(make, gain, tau)

    def jury(gain, tau):
        p, v = 0.5 * gain, gain
        a, b = p * tau**2 / 2 + v * tau - 2, 1 + p * tau**2 / 2 - v * tau
        return np.minimum(1 - np.abs(b), 1 + b - np.abs(a))

    np.testing.assert_array_equal(region.stable, jury(*np.meshgrid(gain, tau)) > 0)
    np.testing.assert_allclose(jury(*region.boundary.T), 0, atol=1e-12)


def test_region_by_jacobian_is_the_exact_one(x64):
    k, tau = np.linspace(0.05, 1, 4), np.linspace(0.1, 2, 5)
    exact = stability_region(lambda k, tau: HeldOscillator(k=k, tau=tau), k, tau)
    solved = stability_region(
        lambda k, tau: knot_map(HeldOscillator(k=k, tau=tau), steps=16).jacobian(jnp.zeros(2)),
        k,
        tau,
    )
    np.testing.assert_allclose(solved.radius, exact.radius, rtol=1e-8)
    np.testing.assert_allclose(solved.boundary, exact.boundary, rtol=1e-5)


def test_region_without_boundary():
    make = lambda x, y: jnp.array([[0.5]]) * x / x
    region = stability_region(make, [1.0, 2.0], [1.0, 2.0])
    assert region.boundary.shape == (0, 2)
    assert region.stable.all()
    broken = stability_region(lambda x, y: jnp.array([[jnp.nan]]) * x, [1.0, 2.0], [1.0, 2.0])
    assert not broken.stable.any()


# --- pictures -------------------------------------------------------------------------------------


def test_every_result_can_be_drawn(tmp_path):
    region = stability_region(
        lambda k, tau: DigitalControl([[0.0]], [[1.0]], k.reshape(1, 1), tau),
        np.linspace(0.1, 4, 20),
        np.linspace(0.1, 3, 15),
    )
    pictures = [
        bifurcation(Population, jnp.linspace(1.5, 3.5, 50), keep=50).figure(parameter="a"),
        cobweb(Population(3.2)),
        basins(two_wells(), (-2, 2), (-1, 1), resolution=20).figure(),
        region.figure(xlabel="gain", ylabel="τ"),
    ]
    for picture in pictures:
        plotting.draw(picture, tmp_path / f"{picture.name}.png")
        assert plotting.from_json(plotting.to_json(picture)).name == picture.name
    assert len(list(tmp_path.iterdir())) == 4


def test_diagram_draws_what_can_be_seen():
    """Hundreds of equal states are one point, and extremes stay."""
    diagram = bifurcation(Population, jnp.linspace(1.5, 1.9, 20))
    points = diagram.figure().panels[0].marks[0]
    assert len(points.x) == 20
    np.testing.assert_allclose(points.y, 1, rtol=1e-5)


def test_cobweb_steps_between_graph_and_diagonal(x64):
    path = cobweb(Population(3.2), 0.3, 5).panels[0].marks[1]
    x, y = np.asarray(path.x), np.asarray(path.y)
    np.testing.assert_allclose(y[1::2], ricker(3.2, x[1::2]), rtol=1e-12)
    np.testing.assert_array_equal(y[::2], x[::2])


def test_strokes_cover_a_region():
    there = np.array([[True, True, False, True], [False] * 4])
    stroke = _planes.draw_area(np.arange(4.0), np.arange(2.0), there, "sky", None)
    np.testing.assert_array_equal(stroke.x, [-0.25, 1.25, np.nan, 2.75, 3.25, np.nan])


def test_a_chart_is_filled_up_to_its_boundary():
    """A disc has the area of the polygon through its boundary, not of steps."""
    x = np.linspace(-1.5, 1.5, 15)
    pairs = np.stack(np.meshgrid(x, x), axis=-1)
    good, bad = _planes.find_edges(pairs, np.hypot(*np.moveaxis(pairs, -1, 0)) < 1)
    for _ in range(40):
        middle = (good + bad) / 2
        inside = (np.hypot(*middle.T) < 1)[:, None]
        good, bad = np.where(inside, middle, good), np.where(inside, bad, middle)
    growth = np.hypot(*np.moveaxis(pairs, -1, 0)) - 1
    chart = StabilityChart(x, x, growth, (growth > 0).astype(int), good)
    strokes = chart.figure().panels[0].marks[1]
    starts, ends, heights = (
        np.asarray(values)[k::3] for values, k in ((strokes.x, 0), (strokes.x, 1), (strokes.y, 0))
    )
    spacing = np.min(np.diff(np.unique(heights)))
    assert np.sum(ends - starts) * spacing == pytest.approx(np.pi, rel=0.01)
    for edge in (starts, ends):
        np.testing.assert_allclose(np.hypot(edge, heights), 1, atol=0.02)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knot_map(Hutchinson()), r"delays Lag\(1.0\); expected holds of one period"),
        (
            lambda: knot_map(population, 0.5, delays=[lagrax.Hold(1.0), lagrax.Hold(0.3)]),
            r"Hold\(1.0\), Hold\(0.3\); expected holds of one period",
        ),
        (lambda: knot_map(population, 0.5, delays=()), "delays none; expected holds"),
        (
            lambda: knot_map(population, 0.5, delays=[lagrax.Hold(times=[0.0, 1.0])]),
            r"Hold\(times=...\); expected holds of one period",
        ),
        (lambda: knot_map(population, 0.5), r"a field without delays. Write knot_map\("),
        (lambda: knot_map(population, delays=lagrax.holds(1.0, 1)), "a field without y0"),
        (
            lambda: knot_map(Population(), steps=4, rtol=1e-3),
            "steps=4 and rtol=0.001; expected one",
        ),
        (lambda: KnotMap(lambda x: x, 0.5, lags=0), "lags=0; expected a whole number"),
        (lambda: KnotMap(lambda x: x, 0.5j), "expected at least one, and real ones"),
        (lambda: KnotMap(lambda x: x, {}), "expected at least one, and real ones"),
        (lambda: KnotMap(lambda x: x[0], jnp.ones(2)), r"shape \[\] for y0 of shape \[2\]"),
        (lambda: KnotMap(lambda x: {"x": x}, 0.5), "Return the next state in the structure of y0"),
        (lambda: henon().point(1.0, 2.0, 3.0), "point got 3 states; expected 2"),
        (lambda: henon().orbit(jnp.ones(3)), r"a state of shape \[3\]; expected .* \[\]"),
        (lambda: periodic_orbits(henon(), 0), "period=0; expected 1 for fixed points"),
        (lambda: critical(Population, 2.0, period=0), "critical got period=0; expected 1"),
        (lambda: lyapunov(henon(), iterates=0), "iterates=0 and skip=1000; expected whole numbers"),
        (
            lambda: periodic_orbits(henon(), starts=jnp.ones((2, 3))),
            r"starts of shape \(2, 3\); expected one row for each start, of 2 numbers",
        ),
        (lambda: bifurcation(Population, jnp.ones((2, 2))), r"values of shape \(2, 2\)"),
        (lambda: bifurcation(Population, [2.0], keep=0), "keep=0"),
        (lambda: cobweb(henon()), "a map of 2 numbers; expected one of a single number"),
        (lambda: basins(Population(), (0, 1), (0, 1)), "a map of 1 numbers; expected a planar one"),
        (lambda: basins(henon(), (1, 0), (0, 1)), r"x=\(1, 0\), .* expected two ranges"),
        (lambda: stability_region(Linear, [2.0, 1.0], [1.0, 2.0]), "values that increase"),
        (
            lambda: stability_region(lambda a, tau: Population(a, tau), [1.0, 2.0], [1.0, 2.0]),
            "a Population from make.* expected a linear system",
        ),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
