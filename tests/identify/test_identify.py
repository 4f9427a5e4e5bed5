"""Identification: known equations are recovered from their own series, and kept in folders."""

import json
import pickle
import re
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Hold, Identifier, IdentifyError, Lag, Learn, holds
from lagrax._cli.long_run import learned_map
from lagrax._cli.table import LEAST_ROWS
from lagrax._solve.delays import describe
from lagrax.identify._checks import check_sizes
from lagrax.identify._ensemble import NEGLIGIBLE, SMALL
from lagrax.identify._fields import Equation, Polynomial
from lagrax.identify._series import read_series
from lagrax.identify._simulation import SolveSetup, solve_from, solve_window, stack_windows
from lagrax.identify._windows import LEAST_AT_REST, Window

QUICK = {"iterations": 100, "progress": False, "width": 8}


def series(field, ts, y0, delays, noise=0.0, seed=0):
    """Solved tightly, sampled at `ts`, with noise in units of the standard deviation."""
    solution = lagrax.solve(
        field,
        float(ts[0]),
        float(ts[-1]),
        y0,
        delays=delays,
        solver=diffrax.Dopri8(),
        steps=8,
        saveat=diffrax.SaveAt(ts=ts),
    )
    ys = np.asarray(solution.ys, float)
    rng = np.random.default_rng(seed)
    return ys + noise * ys.std(axis=0) * rng.standard_normal(ys.shape)


def population(t, x, args, *, history):
    return 2.6 * x * (1 - history[0])


def of_population(noise=0.0, span=20.0, seed=0, ts=None, x0=0.4):
    """By the closed form, not by lagrax."""
    ts = np.arange(0, span + 1e-9, 0.1) if ts is None else ts
    number = np.floor(ts + 1e-9).astype(int)
    knots = [x0]
    for _ in range(number.max()):
        knots.append(knots[-1] * np.exp(2.6 * (1 - knots[-1])))
    held = np.array(knots)[number]
    ys = held * np.exp(2.6 * (1 - held) * (ts - number))
    rng = np.random.default_rng(seed)
    return ts, ys + noise * ys.std() * rng.standard_normal(len(ts))


def terms(model, state=0):
    """The learned coefficients by the powers of their terms."""
    field = model.equation_
    return {
        powers: float(field.coefficients[j, state])
        for j, powers in enumerate(field.powers)
        if field.used[j][state]
    }


# --- the library ----------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_library_finds_the_population_equation(degree):
    model = Identifier([Hold(1.0)], "library", degree=degree).fit(*of_population())
    found = terms(model)
    assert found.keys() == {(1, 0), (1, 1)}
    assert found[1, 0] == pytest.approx(2.6, rel=1e-4)
    assert found[1, 1] == pytest.approx(-2.6, rel=1e-4)
    assert model.equations() == ["x′ = 2.6 x − 2.6 x x(⌊t⌋)"]


@pytest.mark.slow
def test_the_library_stands_noise():
    model = Identifier([Hold(1.0)], "library").fit(*of_population(noise=0.02))
    found = terms(model)
    assert found[1, 0] == pytest.approx(2.6, rel=0.02)
    assert found[1, 1] == pytest.approx(-2.6, rel=0.02)


@pytest.mark.slow
def test_the_library_finds_a_transient_before_a_long_rest():
    ts = np.arange(4000) / 10
    ys = np.array(lagrax.systems.Population(a=1.9).solution(ts, 0.4))
    ys *= 1 + 0.01 * np.random.default_rng(0).standard_normal(len(ts))
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert terms(model) == pytest.approx({(1, 0): 1.9, (1, 1): -1.9}, rel=0.02)


@pytest.mark.slow
def test_the_library_finds_a_transient_within_one_interval():
    """x' = 3.6 - 0.2 x(⌊t/5⌋·5): at the first knot it has come to rest, and stays there."""
    ts = np.arange(300.0)
    ys = np.where(ts < 5, 8 + 2 * ts, 18.0)
    ys += 0.02 * np.random.default_rng(0).standard_normal(len(ts))
    model = Identifier([Hold(5.0)], "library").fit(ts, ys)
    assert np.max(np.abs(model.simulate(ts, 8.0) - ys)) < 0.5


@pytest.mark.slow
def test_the_library_finds_both_equations_of_a_planar_system():
    def van_der_pol(t, y, args):
        return jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])

    ts = np.arange(0, 15, 0.1)
    ys = np.asarray(
        lagrax.solve(van_der_pol, 0.0, 14.9, jnp.array([1.0, 0.0]), saveat=diffrax.SaveAt(ts=ts)).ys
    )
    model = Identifier((), "library", degree=3).fit(ts, ys)
    assert terms(model, 0) == pytest.approx({(0, 1): 1.0}, rel=1e-2)
    expected = {(1, 0): -1.0, (0, 1): 1.0, (2, 1): -1.0}
    assert terms(model, 1) == pytest.approx(expected, rel=1e-2)
    assert model.equations(["u", "v"])[0] == "u′ = 1 v"


@pytest.mark.slow
def test_the_library_finds_a_lag():
    ts = np.arange(0, 20, 0.1)
    ys = series(lambda t, x, args, *, history: 1.8 * x * (1 - history[0]), ts, 0.4, [Lag(1.0)])
    model = Identifier([Lag(1.0)], "library").fit(ts, ys)
    assert terms(model) == pytest.approx({(1, 0): 1.8, (1, 1): -1.8}, rel=1e-2)
    assert "x(t−1)" in model.equations()[0]


@pytest.mark.slow
def test_inputs_are_held_between_samples():
    """x' = -0.8 x + u with u a staircase, by its closed form."""
    rng = np.random.default_rng(0)
    ts = np.cumsum(rng.uniform(0.1, 0.3, 150))
    us = rng.standard_normal(150)
    ys = [0.3]
    for i in range(149):
        rest = us[i] / 0.8
        ys.append((ys[-1] - rest) * np.exp(-0.8 * (ts[i + 1] - ts[i])) + rest)
    model = Identifier((), "library", degree=1).fit(ts, ys, us)
    assert terms(model) == pytest.approx({(1, 0): -0.8, (0, 1): 1.0}, rel=1e-3)
    np.testing.assert_allclose(model.simulate(ts, ys[0], us), ys, atol=1e-4)
    later = ts[-1] + np.array([0.5, 1.0])
    rest = 2.0 / 0.8
    expected = (ys[-1] - rest) * np.exp(-0.8 * np.array([0.5, 1.0])) + rest
    np.testing.assert_allclose(model.forecast(later, [2.0, 2.0, 2.0]).mean, expected, atol=1e-3)


@pytest.mark.slow
def test_irregular_times_and_missing_values():
    rng = np.random.default_rng(1)
    ts, ys = of_population(ts=np.sort(np.append(rng.uniform(0, 20, 399), 0.0)))
    ys[rng.integers(1, 400, 30)] = np.nan
    found = terms(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.02)


@pytest.mark.parametrize("first", [5, 10])
def test_values_that_are_missing_at_knots(first):
    """What was held there comes from samples on one side of the kink."""
    ts = np.arange(121) / 10
    ys = np.array(lagrax.systems.Population(a=2.2).solution(ts, 0.4))
    ys[first::11] = np.nan
    assert np.isnan(ys[::10]).any()
    found = terms(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.2, (1, 1): -2.2}, rel=0.02)


@pytest.mark.parametrize("gone", [slice(100, 126), slice(0, 30), slice(101, 115), slice(220, None)])
def test_a_column_that_is_empty_for_long(gone, tmp_path):
    """Windows start where something was measured, however long it was not."""
    ts, ys = of_population(span=24.0)
    ys[gone] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert terms(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.003)
    known = ~np.isnan(ys)
    assert np.isfinite(model.predict(ts, ys)[known]).all()
    model.save(tmp_path / "model")
    again = Identifier.load(tmp_path / "model")
    later = ts[-1] + np.array([0.1, 0.2])
    np.testing.assert_array_equal(again.forecast(later).mean, model.forecast(later).mean)


def test_many_values_missing_here_and_there():
    ts, ys = of_population(span=24.0)
    ys[np.random.default_rng(0).random(len(ys)) < 0.3] = np.nan
    found = terms(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.02)


@pytest.mark.parametrize("missing", [0, 12])
def test_forecasts_start_where_all_is_known(missing):
    ts, ys = of_population(span=24.6)
    later, truth = ts[-6:], ys[-6:].copy()
    ts, ys = ts[:-6], ys[:-6]
    if missing:
        ys[-missing:] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    found = model.forecast(later)
    np.testing.assert_allclose(found.mean, truth, rtol=1e-3)
    assert np.all(found.high > found.low)


def test_forecasts_over_missing_values_know_the_inputs():
    """x' = u - x, driven until the end of the series and on."""
    ts = np.arange(0, 30.05, 0.1)
    us = np.sin(np.floor(ts))
    xs = [0.0]
    for u in us[:-1]:
        xs.append(u + (xs[-1] - u) * np.exp(-0.1))
    ys = np.array(xs)
    ys[250:280] = np.nan
    model = Identifier((), "library").fit(ts[:280], ys[:280], us[:280])
    found = model.forecast(ts[280:], us[279:])
    np.testing.assert_allclose(found.mean, ys[280:], atol=1e-3)
    with pytest.raises(ValueError, match="one row for the end of the series and one for each time"):
        model.forecast(ts[280:], us[280:])


def test_a_learned_period_forecasts_over_the_next_knot():
    ts, ys = of_population(span=11.5)
    model = Identifier([Hold(Learn(0.9))], "library", progress=False).fit(ts[:110], ys[:110])
    for ahead in (2, 3, 5):
        found = model.forecast(ts[110 : 110 + ahead]).mean
        np.testing.assert_allclose(found, ys[110 : 110 + ahead], rtol=2e-3)
    np.testing.assert_allclose(model.simulate(np.linspace(2.85, 3.15, 4), 0.4)[0], 0.4, rtol=1e-6)
    assert np.isfinite(model.simulate(np.linspace(2.85, 3.15, 4), 0.4)).all()


def test_what_ends_early_is_not_held_out():
    """The end of a column of which nothing was measured says nothing about errors."""
    ts = np.arange(0, 40, 0.25)
    ys = np.stack([50 + 30 * np.cos(ts), -30 * np.sin(ts)], axis=1)
    ys[120:, 0] = np.nan
    model = Identifier((), "library").fit(ts, ys)
    assert np.all(model.error_ > 0)
    assert np.all(model.error_ < 1)


def test_a_column_of_which_nothing_is_held_out():
    """No sample has both states, and the second ends long before its last value."""
    ts = np.arange(160) / 4
    ys = np.stack([np.cos(ts), np.sin(ts)], axis=1)
    ys[1::2, 0] = ys[::2, 1] = ys[60:-1, 1] = np.nan
    with pytest.raises(IdentifyError, match="Column 1 of ys was not measured in the part"):
        Identifier((), "library").fit(ts, ys)


def test_the_long_run_starts_where_all_is_known():
    ts, ys = of_population(span=24.0)
    ys[-12:] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    np.testing.assert_allclose(learned_map(model).point(), ys[-13], rtol=1e-6)


def test_the_page_names_the_limits():
    page = (Path(__file__).parents[2] / "docs/identify.md").read_text(encoding="utf-8")
    assert (NEGLIGIBLE, SMALL, LEAST_ROWS) == (1e-5, (0.1, 0.01), 10)
    assert "less than a hundred-thousandth" in page
    assert "Ten rows are the least" in page


def test_states_with_too_many_digits_are_refused(x64):
    ts = np.arange(0, 40, 0.25)
    ys = 101325 + 5 * np.exp(-0.2 * ts)
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"varies by 1.11 only.*JAX_ENABLE"):
        Identifier((), "library").fit(ts, ys)
    Identifier((), "library").fit(ts, ys)


def test_terms_that_look_alike_have_coefficients_nevertheless(x64):
    """Powers of such numbers are so nearly proportional that a step's equations are singular."""
    ts, ys = of_population(span=30.0)
    model = Identifier([Hold(1.0)], "library").fit(ts, np.round(101325 + 5 * ys, 2))
    assert np.all(np.isfinite(model.equation_.coefficients))


def test_a_known_field_has_only_its_period_learned():
    ts, ys = of_population()
    known = lambda t, y, args, *, history: 2.6 * y * (1 - history[0])
    model = Identifier([Hold(Learn(0.9))], known, **QUICK).fit(ts, ys)
    assert model.periods_ == pytest.approx([1.0], rel=1e-3)
    assert model.score(ts, ys) > 0.999


def test_rests_are_dropped():
    """A scanned period is not exact while terms are chosen; what that calls for goes to zero."""
    ts, ys = of_population(span=12.0)
    model = Identifier([Hold(Learn(0.7))], "library", progress=False, ensemble=2).fit(ts, ys)
    assert model.equations() == ["x′ = 2.6 x − 2.6 x x(⌊t⌋)"]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_small_terms_have_to_earn_their_place(noise):
    """Two species that come to rest, of which the held-out end says little. Regression calls for
    further terms, up to a sixteenth as large as the largest one."""
    ts, state, rows = np.arange(0, 20.01, 0.1), np.array([0.5, 0.4]), []
    for i in range(len(ts)):
        rows.append(state)
        held = state[0] if i % 10 == 0 else held
        slope = lambda y: y * np.array([1.2 - 0.9 * held - 0.5 * y[1], 0.7 * y[0] - 0.6])  # noqa: B023
        for _ in range(20):
            k1 = slope(state)
            k2 = slope(state + 0.0025 * k1)
            k3 = slope(state + 0.0025 * k2)
            k4 = slope(state + 0.005 * k3)
            state = state + 0.005 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    ys = np.round(rows, 6) + noise * np.random.default_rng(0).normal(size=(len(ts), 2))
    model = Identifier([Hold(1.0)], "library", progress=False).fit(ts, ys)
    hare, lynx = model.equations(["hare", "lynx"])
    assert re.sub(r"[\d.]+ ", "", hare) == "hare′ = hare − hare lynx − hare hare(⌊t⌋)"
    assert re.sub(r"[\d.]+ ", "", lynx) == "lynx′ = −lynx + hare lynx"
    found = [float(x) for x in re.findall(r"[\d.]+(?= )", hare + lynx)]
    np.testing.assert_allclose(found, [1.2, 0.5, 0.9, 0.6, 0.7], rtol=5 * noise + 1e-4)


def test_a_driven_oscillator_has_no_rests():
    ts = np.arange(0, 40, 0.1)
    us = np.sin(np.floor(ts / 1.3))
    step = lambda x, u: x + 0.1 / 40 * np.array([x[1], u - x[0] - 0.4 * x[1]])
    xs = [np.array([1.0, 0.0])]
    for u in us[:-1]:
        x = xs[-1]
        for _ in range(40):
            half = x + 0.5 * (step(x, u) - x)
            x = x + step(half, u) - half
        xs.append(x)
    model = Identifier((), "library").fit(ts, np.array(xs), us)
    assert model.equations(["p", "v"], ["u"]) == ["p′ = 1 v", "v′ = −1 p − 0.4 v + 1 u"]


def test_a_state_that_does_not_vary():
    ts, ys = of_population()
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    for metric in ("r2", "nrmse"):
        assert np.isnan(model.score(ts, np.ones_like(ts), metric=metric))
    with pytest.raises(ValueError, match="State 2 of 2 does not change"):
        Identifier([Hold(1.0)], "library").fit(ts, np.stack([ys, np.ones_like(ys)], axis=1))


@pytest.mark.slow
def test_held_at_given_instants():
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.uniform(0.6, 1.4, 18))
    ts = np.arange(0, 16, 0.1)
    delays = [Hold(times=times[times < 16])]
    model = Identifier(delays, "library").fit(ts, series(population, ts, 0.4, delays))
    found = terms(model)
    assert found[1, 0] == pytest.approx(2.6, rel=0.02)
    assert found[1, 1] == pytest.approx(-2.6, rel=0.02)


@pytest.mark.slow
def test_trajectories_of_different_lengths():
    runs = [of_population(span=span, x0=x0) for span, x0 in ((3, 0.3), (4, 0.7), (6, 1.2))]
    ts, ys = [list(part) for part in zip(*runs, strict=True)]
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert terms(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)
    assert [p.shape for p in model.predict(ts, ys)] == [(31,), (41,), (61,)]
    assert model.score(ts, ys) > 0.9999


@pytest.mark.slow
def test_one_row_of_times_serves_all_trajectories():
    ts, first = of_population(span=4, x0=0.3)
    _, second = of_population(span=4, x0=0.9)
    model = Identifier([Hold(1.0)], "library").fit(ts, [first, second])
    assert terms(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)


# --- learned periods ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "noise", "within"),
    [
        (0.7, 0.02, 0.05),
        pytest.param(1.4, 0.0, 0.01, marks=pytest.mark.slow),
        pytest.param(0.7, 0.0, 0.01, marks=pytest.mark.slow),
        pytest.param(1.4, 0.02, 0.05, marks=pytest.mark.slow),
    ],
)
def test_a_period_is_learned(start, noise, within):
    model = Identifier([Hold(Learn(start))], "library").fit(*of_population(noise, span=12))
    assert model.periods_ == pytest.approx([1.0], rel=within)
    assert model.delays_[0].tau == model.periods_[0]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.7, 1.4])
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.02, 0.05)])
def test_a_network_learns_a_period(start, noise, within):
    model = Identifier([Hold(Learn(start))], iterations=1000, progress=False)
    model.fit(*of_population(noise))
    assert model.periods_ == pytest.approx([1.0], rel=within)


@pytest.mark.slow
def test_a_lag_is_learned():
    ts = np.arange(0, 15, 0.1)
    ys = series(lambda t, x, args, *, history: 1.8 * x * (1 - history[0]), ts, 0.4, [Lag(1.0)])
    model = Identifier([Lag(Learn(0.9, 0.8, 1.3))], "library").fit(ts, ys)
    assert model.periods_ == pytest.approx([1.0], rel=0.01)


@pytest.mark.slow
def test_holds_share_their_period():
    model = Identifier(holds(Learn(0.95, 0.9, 1.1), 2), "library").fit(*of_population(span=10))
    assert model.periods_ == pytest.approx([1.0], rel=0.01)
    assert [d.tau for d in model.delays_] == model.periods_ * 2


@pytest.mark.parametrize("kind", [Hold, pytest.param(Lag, marks=pytest.mark.slow)])
def test_the_gradient_of_a_period(kind, x64):
    """Against finite differences, from a period at which no sample meets a knot."""
    learn = Learn(0.93)
    ts, ys = of_population(span=6)
    (trajectory,) = read_series(ts, ys)
    rows = stack_windows([trajectory], [Window(0, 20, 35), Window(0, 35, 50)], [kind(0.93)])
    field = Polynomial(jnp.array([[2.2], [-2.3]]), ((True,), (True,)), ((1, 0), (1, 1)))
    setting = SolveSetup([kind(learn)], (0.93,), 4, 3, diffrax.Bosh3(), False)

    @jax.jit
    def loss(shift):
        equation = Equation(field, shift[None])
        states = jax.vmap(lambda row: solve_window(equation, setting, row))(rows)
        return jnp.mean((states - rows.ys) ** 2)

    for shift in (-0.31, 0.117):
        gradient = jax.grad(loss)(jnp.asarray(shift))
        difference = (loss(jnp.asarray(shift + 1e-6)) - loss(jnp.asarray(shift - 1e-6))) / 2e-6
        assert float(gradient) == pytest.approx(float(difference), rel=1e-4)
        assert abs(float(gradient)) > 1e-3


# --- networks and fields of one's own -------------------------------------------------------------


class Growth(eqx.Module):
    a: jax.Array

    def __call__(self, t, y, args, *, history):
        return self.a * y * (1 - history[0])


@pytest.fixture(scope="module")
def network():
    """Trained once, for all that only looks at it."""
    return Identifier([Hold(1.0)], ensemble=2, **QUICK).fit(*of_population(noise=0.01))


def test_a_network_learns(network):
    ts, ys = of_population()
    assert network.score(ts, ys) > 0.8
    assert network.score(ts, ys, metric="nrmse") == pytest.approx(
        np.sqrt(1 - network.score(ts, ys)), rel=1e-6
    )
    assert network.losses_["held_out"].values.shape == (2, 2)
    assert network.equations() == ["x′ = f(x, x(⌊t⌋))"]


@pytest.mark.slow
def test_a_field_of_ones_own_is_trained_and_kept(tmp_path):
    model = Identifier([Hold(1.0)], Growth(jnp.array(1.5)), **QUICK).fit(*of_population())
    assert float(model.equation_.a) == pytest.approx(2.6, rel=1e-4)
    model.save(tmp_path)
    with pytest.raises(IdentifyError, match="give it again"):
        Identifier.load(tmp_path)
    loaded = Identifier.load(tmp_path, field=Growth(jnp.array(0.0)))
    assert float(loaded.equation_.a) == float(model.equation_.a)


def test_the_same_seed_gives_the_same_model(network):
    again = Identifier([Hold(1.0)], ensemble=2, **QUICK).fit(*of_population(noise=0.01))
    other = Identifier([Hold(1.0)], ensemble=2, seed=5, **QUICK).fit(*of_population(noise=0.01))
    later = np.array([20.5, 21.0])
    np.testing.assert_array_equal(network.forecast(later).mean, again.forecast(later).mean)
    assert not np.allclose(network.forecast(later).mean, other.forecast(later).mean)


@pytest.mark.slow
def test_training_stops_early():
    model = Identifier([Hold(1.0)], patience=50, learning_rate=0.2, **QUICK | {"iterations": 2000})
    model.fit(*of_population(noise=0.3))
    values = model.losses_["held_out"].values[:, 0]
    assert len(model.losses_["loss"].values) < 2000
    blocks = 5  # of 12 iterations, to be patient for 50
    assert np.argmin(values) == len(values) - 1 - blocks


@pytest.mark.slow
def test_the_band_holds_what_it_says():
    """Most of the noise around the right equation lies within two standard deviations."""
    ts, noisy = of_population(noise=0.05)
    model = Identifier([Hold(1.0)], "library", ensemble=4).fit(ts[:161], noisy[:161])
    forecast = model.forecast(ts[161:])
    inside = (forecast.low < noisy[161:]) & (noisy[161:] < forecast.high)
    assert inside.mean() > 0.75
    assert np.all(forecast.high - forecast.low < 2.0)


def test_simulate_follows_the_closed_form():
    model = Identifier([Hold(1.0)], "library").fit(*of_population())
    ts, expected = of_population(span=8, x0=0.7)
    np.testing.assert_allclose(model.simulate(ts, 0.7), expected, rtol=2e-3)


def test_other_starts_use_the_same_program(network, monkeypatch):
    traced = []
    count = lambda *a: traced.append(a) or solve_from(*a)
    monkeypatch.setattr("lagrax.identify._simulation.solve_from", count)
    ts = np.linspace(0, 3.3, 12)
    first, second = network.simulate(ts, 0.4), network.simulate(ts, 0.7)
    assert len(traced) == 1
    np.testing.assert_allclose(first[0], 0.4, rtol=1e-6)
    np.testing.assert_allclose(second[0], 0.7, rtol=1e-6)
    np.testing.assert_allclose(network.simulate(ts[:7], 0.7), second[:7], rtol=1e-5)


def test_a_past_that_closes_over_what_changes(network):
    level = 0.4
    past = lambda t: level
    first = network.simulate([0.0, 0.5], past)
    level = 0.7
    np.testing.assert_allclose(network.simulate([0.0, 0.5], past)[0], 0.7, rtol=1e-6)
    np.testing.assert_allclose(first, network.simulate([0.0, 0.5], 0.4), rtol=1e-6)


def test_answers_are_shaped_as_what_was_given(network, tmp_path):
    ts, ys = of_population(span=3.0)
    later = [20.5, 21.0]
    assert network.simulate(ts, 0.4).shape == network.simulate(ts, lambda t: 0.4).shape == (31,)
    assert network.simulate(ts, [0.4]).shape == (31, 1)
    assert network.simulate(ts, lambda t: jnp.array([0.4])).shape == (31, 1)
    assert network.predict(ts, ys).shape == (31,)
    assert network.predict(ts, ys[:, None]).shape == (31, 1)
    assert [p.shape for p in network.predict([ts, ts], [ys, ys[:, None]])] == [(31,), (31, 1)]
    assert network.score(ts, ys) == network.score(ts, ys[:, None])
    assert {part.shape for part in network.forecast(later)} == {(2,)}
    network.save(tmp_path)
    assert Identifier.load(tmp_path).forecast(later).mean.shape == (2,)
    ts, ys = of_population()
    column = Identifier([Hold(1.0)], "library").fit(ts, ys[:, None])
    assert column.forecast([20.5]).low.shape == (1, 1)


def with_coefficients(learned, coefficients):
    members = eqx.tree_at(lambda m: m.field.coefficients, learned.members, coefficients)
    return learned._replace(members=members)


def test_predictions_start_anew_every_horizon():
    ts, ys = of_population()
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    # Nothing moves.
    model._model = with_coefficients(model._model, jnp.zeros((1, 2, 1)))
    predicted = model.predict(ts, ys, horizon=7)
    first = 10  # the past is known from there on
    starts = first + (np.arange(len(ts)) - first - 1) // 7 * 7
    expected = np.where(np.arange(len(ts)) > first, ys[np.maximum(starts, 0)], ys)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)


@pytest.mark.slow
def test_large_times_keep_their_digits():
    ts, ys = of_population()
    other = Identifier([Hold(1.0)], "library").fit(ts, ys).forecast(ts[-1] + np.array([0.1, 0.9]))
    model = Identifier([Hold(1.0)], "library").fit(ts + 100_000, ys)
    assert terms(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)
    first = model.forecast(ts[-1] + 100_000 + np.array([0.1, 0.9])).mean
    np.testing.assert_allclose(first, other.mean, rtol=1e-3)


@pytest.mark.slow
def test_predictions_know_nothing_of_what_comes_later():
    """With knots between samples, where the past has to be extrapolated."""
    ts, ys = of_population()
    model = Identifier([Hold(1.003)], "library").fit(ts, ys)
    before = model.predict(ts, ys, horizon=10)
    first = model._model.find_first_start(model.series_[0])
    start = first + 10 * ((140 - first) // 10)
    changed = ys.copy()
    changed[start + 1 :] += 1.0
    after = model.predict(ts, changed, horizon=10)
    np.testing.assert_array_equal(before[: start + 11], after[: start + 11])
    assert not np.allclose(before[start + 11 :], after[start + 11 :])


def test_a_prediction_that_runs_away_is_no_good_one():
    ts, ys = of_population(span=8)
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    wild = 1e4 * jnp.abs(model._model.members.field.coefficients)
    model._model = with_coefficients(model._model, wild)
    assert model.score(ts, ys) == -np.inf
    assert model.score(ts, ys, metric="nrmse") == np.inf


def test_the_last_dose_is_held_to_the_end(x64):
    """After the last instant the state there stays held, also in windows long after it."""
    times = np.array([0.0, 1.0, 2.0, 3.0])
    ts = np.arange(0, 12, 0.1)
    decay = lambda t, x, args, *, history: 0.5 * history[0] - 0.3 * x
    ys = series(decay, ts, 1.0, [Hold(times=times)])
    (trajectory,) = read_series(ts, ys)
    rows = stack_windows([trajectory], [Window(0, 80, 100)], [Hold(times=times)])
    field = Polynomial(jnp.array([[-0.3], [0.5]]), ((True,), (True,)), ((1, 0), (0, 1)))
    setting = SolveSetup([Hold(times=times)], (), None, 4, diffrax.Tsit5(), False)
    row = jax.tree.map(lambda x: jnp.asarray(x[0]), rows)
    found = solve_window(Equation(field, jnp.zeros(0)), setting, row)
    np.testing.assert_allclose(found[:, 0], ys[80:101], rtol=1e-5)


def test_states_that_are_measured_in_turn():
    """Two states, never both at the same time."""
    ts = np.arange(0, 12, 0.05)
    turn = lambda t, y, args: jnp.stack([y[1], -y[0]])
    ys = np.asarray(
        lagrax.solve(turn, 0.0, 12.0, jnp.array([1.0, 0.0]), saveat=diffrax.SaveAt(ts=ts)).ys
    ).copy()
    ys[::2, 0], ys[1::2, 1] = np.nan, np.nan
    model = Identifier((), "library", degree=1).fit(ts, ys)
    assert terms(model, 0) == pytest.approx({(0, 1): 1.0}, rel=2e-2)
    assert terms(model, 1) == pytest.approx({(1, 0): -1.0}, rel=2e-2)


def test_changed_arguments_count_from_the_next_fit_on(network):
    later = np.array([20.5])
    before = network.forecast(later)
    ensemble = network.ensemble
    network.set_params(ensemble=5, delays=[Hold(0.5)])
    after = network.forecast(later)
    network.set_params(ensemble=ensemble, delays=[Hold(1.0)])
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.low, after.low)


# --- conventions ----------------------------------------------------------------------------------


def test_arguments_stay_as_they_are():
    delays = (Hold(1.0),)
    model = Identifier(delays, "library", seed=3)
    assert model.get_params()["delays"] is delays
    copy = Identifier(**model.get_params())
    assert copy.get_params() == model.get_params()
    assert copy.set_params(seed=4) is copy
    assert (copy.seed, model.seed) == (4, 3)
    assert repr(model) == "Identifier([Hold(1.0)], field='library', seed=3)"
    with pytest.raises(ValueError, match="no argument 'sead'"):
        model.set_params(sead=1)


# --- folders --------------------------------------------------------------------------------------


def test_a_network_is_kept(network, tmp_path):
    network.save(tmp_path / "model")
    loaded = Identifier.load(tmp_path / "model")
    later = np.array([20.5, 21.0])
    for kept, again in zip(network.forecast(later), loaded.forecast(later), strict=True):
        np.testing.assert_array_equal(kept, again)
    assert describe(loaded.delays) == describe(network.delays)
    assert type(loaded.solver) is type(network.solver)
    assert loaded.get_params() | {"delays": 0, "solver": 0} == network.get_params() | {
        "delays": 0,
        "solver": 0,
    }
    np.testing.assert_array_equal(loaded.losses_["loss"].values, network.losses_["loss"].values)
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


@pytest.mark.slow
def test_a_library_with_a_learned_period_is_kept(tmp_path):
    model = Identifier(holds(Learn(0.95, 0.9, 1.1), 2), "library", ensemble=2)
    model.fit(*of_population(span=10)).save(tmp_path)
    loaded = Identifier.load(tmp_path)
    assert loaded.equations() == model.equations()
    assert loaded.periods_ == model.periods_
    assert loaded.delays[0].tau is loaded.delays[1].tau


def damage(tmp_path, network, change):
    network.save(tmp_path)
    change(tmp_path)
    return tmp_path


def rewrite(**changes):
    def change(folder):
        about = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(about | changes))

    return change


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


class Hostile:
    """Unpickled, it would raise something else than what is expected."""

    def __reduce__(self):
        return (pytest.fail, ("a file was executed",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "model.json").unlink(), "holds no model.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no model.safetensors"),
        (lambda folder: (folder / "model.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "model.json").write_text("[]"), "not of a format"),
        (cut_short, "is damaged"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps(Hostile())),
            "is damaged",
        ),
        (rewrite(format=2), "not of a format"),
        (rewrite(arguments={}), "does not hold what"),
        (rewrite(periods=[1.0]), "does not hold what"),
        (rewrite(terms={"powers": [[1, 0]], "used": [[True]]}), "does not hold what"),
    ],
)
def test_what_is_no_model_is_refused(network, tmp_path, change, message):
    with pytest.raises(IdentifyError, match=message):
        Identifier.load(damage(tmp_path, network, change))


# --- bad input ------------------------------------------------------------------------------------

TS, YS = np.arange(30.0), np.sin(np.arange(30.0))


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        ({"field": "mpl"}, (TS, YS), "field='mpl'"),
        ({"field": 3}, (TS, YS), "cannot be called"),
        ({"delays": Hold(1.0)}, (TS, YS), "expected a list"),
        ({"delays": [1.0]}, (TS, YS), "expected a list"),
        ({"ensemble": 0}, (TS, YS), "ensemble=0"),
        ({"window": 0}, (TS, YS), "window=0"),
        ({"validation": 1.0}, (TS, YS), "validation=1.0"),
        ({"seed": -1}, (TS, YS), "seed=-1"),
        ({}, (TS, YS[:-1]), r"\(30,\).*\(29, 1\)"),
        ({}, (TS[::-1], YS), "do not increase"),
        ({}, (np.append(TS[:-1], TS[-2]), YS), "28 comes before 28"),
        ({}, (np.append(TS[:-1], np.nan), YS), "not finite"),
        ({}, (TS, np.append(YS[:-1], np.inf)), "infinite"),
        ({}, (TS, np.full(30, np.nan)), "no values at all"),
        ({}, (TS[:2], YS[:2]), "2 samples"),
        ({}, (TS, ["a"] * 30), "not numbers"),
        ({}, (TS.astype("datetime64[D]"), YS), "holds dates"),
        ({"window": 29}, (TS, YS), "too short for windows of 29"),
        ({}, (TS, np.zeros((30, 2, 2))), r"shape \(30, 2, 2\)"),
        ({}, ([TS, TS], [YS, YS, YS]), "3 trajectories in ys and 2 in ts"),
        ({}, (TS, [YS, np.stack([YS, YS], 1)]), "different numbers"),
        ({}, (TS, YS, YS[:-1]), "inputs of shape"),
        ({}, (TS, YS, np.append(YS[:-1], np.nan)), "not finite"),
        ({"delays": [Hold(1.0), Hold(0.3)]}, (TS + 1e9, YS), "too many digits"),
        ({}, (TS, 1e9 + YS), "Column 0 of ys goes up to 1e.09 .*digits for float32. Subtract"),
        ({"field": "library"}, (TS, 1e20 * YS), "degree 2 .* too large for float32. Mult.* 1e-20,"),
        ({"field": "library"}, (TS, 1e-20 * YS), "degree 2 .* too small .* Multiply it by 1e20,"),
        ({"field": "library", "degree": 4}, (TS, 1e10 * YS), "degree 4 .* too large"),
        ({"field": "library"}, (TS, YS, 1e20 * YS), "Column 0 of inputs goes up to 9.999"),
        ({}, (TS, 1e38 * YS), "degree 1 .* too large for float32"),
        ({}, (TS, 1e300 * YS), "9.9+e.299, which cannot be squared. Multiply it by 1e-300"),
        ({}, (TS, YS, 1e-300 * YS), "Column 0 of inputs goes up to 9.9+e-301, which cannot"),
    ],
)
def test_bad_input_is_named(arguments, data, message, unchecked):
    with pytest.raises((ValueError, TypeError), match=message):
        Identifier(**arguments).fit(*data)


def test_units_that_float32_cannot_mix_are_named():
    """Neither column is too large or small; how fast one goes for a square of the other is."""
    ts = np.linspace(0, 12, 121)
    small = np.sin(ts)
    large = 5 - np.cumsum(small**2) * 0.1
    with pytest.raises(ValueError, match=r"coefficients from .* to .*too wide for float32\. Mult"):
        Identifier(field="library").fit(ts, np.stack([1e-17 * small, 1e17 * large], 1))


def test_bad_questions_are_named(network):
    ts, ys = of_population()
    with pytest.raises(IdentifyError, match="not been fitted"):
        Identifier().forecast([1.0])
    with pytest.raises(ValueError, match="after the end of the series, 20"):
        network.forecast([19.0])
    with pytest.raises(ValueError, match="horizon=0"):
        network.predict(ts, ys, horizon=0)
    with pytest.raises(ValueError, match="metric='r3'"):
        network.score(ts, ys, metric="r3")
    with pytest.raises(ValueError, match="2 states"):
        network.predict(ts, np.stack([ys, ys], 1))
    with pytest.raises(ValueError, match="1 finite numbers"):
        network.simulate(ts, [0.1, 0.2])
    with pytest.raises(ValueError, match="increasing times"):
        network.simulate([1.0, 0.5], 0.4)
    with pytest.raises(ValueError, match="inputs of shape"):
        network.simulate(ts, 0.4, inputs=ts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0.0,), "start=0"), ((1.0, 2.0), "low=2"), ((1.0, 1.0, 1.0), "low < high")],
)
def test_learn_is_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Learn(*arguments)


def test_knots_need_samples_between_them():
    with pytest.raises(ValueError, match="3 samples between knots"):
        Identifier(holds(1.0, 2), "library").fit(TS, YS)


def test_solve_refuses_a_period_to_learn():
    with pytest.raises(TypeError, match="Identifier"):
        lagrax.solve(population, 0.0, 1.0, 0.5, delays=[Hold(Learn(0.7))])


def test_the_numbers_on_the_page():
    text = Path(__file__).parents[2].joinpath("docs/identify.md").read_text(encoding="utf-8")
    page = " ".join(text.split())
    assert f"as many of them are kept as there are others, {LEAST_AT_REST} at least" in page
    assert "with squares, up to about 1e18 and down to 1e-18" in page
    series = lambda size: read_series(np.arange(4.0), size * np.array([1.0, 0.5, 0.7, 0.6]))
    for power in (18, -18):
        check_sizes(series(10.0**power), 2)
    for power in (19, -19):
        with pytest.raises(ValueError, match=f"Multiply it by 1e{-power}"):
            check_sizes(series(10.0**power), 2)
