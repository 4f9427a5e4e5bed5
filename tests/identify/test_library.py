"""Known equations are found from their own series by a library of monomials."""

import re

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measurements import population_series, read_coefficients, solve_series

import lagrax
from lagrax import Hold, Identifier, IdentifyError, Lag
from lagrax.identify._checks import check_sizes
from lagrax.identify._series import read_series


def growth(t, x, args, *, history):
    return 2.6 * x * (1 - history[0])


def slower_growth(t, x, args, *, history):
    return 1.8 * x * (1 - history[0])


@pytest.mark.parametrize("degree", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_library_finds_the_population_equation(degree):
    model = Identifier([Hold(1.0)], "library", degree=degree).fit(*population_series())
    found = read_coefficients(model)
    assert found.keys() == {(1, 0), (1, 1)}
    assert found[1, 0] == pytest.approx(2.6, rel=1e-4)
    assert found[1, 1] == pytest.approx(-2.6, rel=1e-4)
    assert model.equations() == ["x′ = 2.6 x − 2.6 x x(⌊t⌋)"]


@pytest.mark.slow
def test_the_library_tolerates_noise():
    model = Identifier([Hold(1.0)], "library").fit(*population_series(noise=0.02))
    found = read_coefficients(model)
    assert found[1, 0] == pytest.approx(2.6, rel=0.02)
    assert found[1, 1] == pytest.approx(-2.6, rel=0.02)


@pytest.mark.slow
def test_the_library_finds_a_transient_before_a_long_rest():
    ts = np.arange(4000) / 10
    ys = np.array(lagrax.systems.Population(a=1.9).solution(ts, 0.4))
    ys *= 1 + 0.01 * np.random.default_rng(0).standard_normal(len(ts))
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert read_coefficients(model) == pytest.approx({(1, 0): 1.9, (1, 1): -1.9}, rel=0.02)


@pytest.mark.slow
def test_the_library_finds_a_transient_within_one_interval():
    """x' = 3.6 - 0.2 x(⌊t/5⌋·5) is at rest from the first knot on."""
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
    assert read_coefficients(model, 0) == pytest.approx({(0, 1): 1.0}, rel=1e-2)
    expected = {(1, 0): -1.0, (0, 1): 1.0, (2, 1): -1.0}
    assert read_coefficients(model, 1) == pytest.approx(expected, rel=1e-2)
    assert model.equations(["u", "v"])[0] == "u′ = 1 v"


@pytest.mark.slow
def test_the_library_finds_a_lag():
    ts = np.arange(0, 20, 0.1)
    ys = solve_series(slower_growth, ts, 0.4, [Lag(1.0)])
    model = Identifier([Lag(1.0)], "library").fit(ts, ys)
    assert read_coefficients(model) == pytest.approx({(1, 0): 1.8, (1, 1): -1.8}, rel=1e-2)
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
    assert read_coefficients(model) == pytest.approx({(1, 0): -0.8, (0, 1): 1.0}, rel=1e-3)
    np.testing.assert_allclose(model.simulate(ts, ys[0], us), ys, atol=1e-4)
    later = ts[-1] + np.array([0.5, 1.0])
    rest = 2.0 / 0.8
    expected = (ys[-1] - rest) * np.exp(-0.8 * np.array([0.5, 1.0])) + rest
    np.testing.assert_allclose(model.forecast(later, [2.0, 2.0, 2.0]).mean, expected, atol=1e-3)


@pytest.mark.slow
def test_the_library_finds_a_hold_at_given_instants():
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.uniform(0.6, 1.4, 18))
    ts = np.arange(0, 16, 0.1)
    delays = [Hold(times=times[times < 16])]
    model = Identifier(delays, "library").fit(ts, solve_series(growth, ts, 0.4, delays))
    found = read_coefficients(model)
    assert found[1, 0] == pytest.approx(2.6, rel=0.02)
    assert found[1, 1] == pytest.approx(-2.6, rel=0.02)


# --- missing values -------------------------------------------------------------------------------


@pytest.mark.slow
def test_irregular_times_and_missing_values_are_allowed():
    rng = np.random.default_rng(1)
    ts, ys = population_series(ts=np.sort(np.append(rng.uniform(0, 20, 399), 0.0)))
    ys[rng.integers(1, 400, 30)] = np.nan
    found = read_coefficients(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.02)


@pytest.mark.parametrize("first", [pytest.param(5, marks=pytest.mark.slow), 10])
def test_values_missing_at_knots_are_interpolated_from_one_side(first):
    ts = np.arange(121) / 10
    ys = np.array(lagrax.systems.Population(a=2.2).solution(ts, 0.4))
    ys[first::11] = np.nan
    assert np.isnan(ys[::10]).any()
    found = read_coefficients(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.2, (1, 1): -2.2}, rel=0.02)


@pytest.mark.parametrize(
    "gone",
    [
        slice(100, 126),
        pytest.param(slice(0, 30), marks=pytest.mark.slow),
        pytest.param(slice(101, 115), marks=pytest.mark.slow),
        pytest.param(slice(220, None), marks=pytest.mark.slow),
    ],
)
def test_a_long_gap_does_not_bias_the_equation(gone, tmp_path):
    """Windows start from measured samples."""
    ts, ys = population_series(span=24.0)
    ys[gone] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert read_coefficients(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.003)
    known = ~np.isnan(ys)
    assert np.isfinite(model.predict(ts, ys)[known]).all()
    model.save(tmp_path / "model")
    again = Identifier.load(tmp_path / "model")
    later = ts[-1] + np.array([0.1, 0.2])
    np.testing.assert_array_equal(again.forecast(later).mean, model.forecast(later).mean)


def test_a_third_of_the_values_may_be_missing():
    ts, ys = population_series(span=24.0)
    ys[np.random.default_rng(0).random(len(ys)) < 0.3] = np.nan
    found = read_coefficients(Identifier([Hold(1.0)], "library").fit(ts, ys))
    assert found == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=0.02)


def test_states_may_be_measured_in_turn():
    """Two states, never both at the same time."""
    ts = np.arange(0, 12, 0.05)
    turn = lambda t, y, args: jnp.stack([y[1], -y[0]])
    ys = np.asarray(
        lagrax.solve(turn, 0.0, 12.0, jnp.array([1.0, 0.0]), saveat=diffrax.SaveAt(ts=ts)).ys
    ).copy()
    ys[::2, 0], ys[1::2, 1] = np.nan, np.nan
    model = Identifier((), "library", degree=1).fit(ts, ys)
    assert read_coefficients(model, 0) == pytest.approx({(0, 1): 1.0}, rel=2e-2)
    assert read_coefficients(model, 1) == pytest.approx({(1, 0): -1.0}, rel=2e-2)


def test_the_unmeasured_end_of_a_column_is_not_held_out():
    """Held-out errors need measurements."""
    ts = np.arange(0, 40, 0.25)
    ys = np.stack([50 + 30 * np.cos(ts), -30 * np.sin(ts)], axis=1)
    ys[120:, 0] = np.nan
    model = Identifier((), "library").fit(ts, ys)
    assert np.all(model.error_ > 0)
    assert np.all(model.error_ < 1)


def test_a_column_without_held_out_values_is_refused():
    """No sample has both states, and the second ends long before its last value."""
    ts = np.arange(160) / 4
    ys = np.stack([np.cos(ts), np.sin(ts)], axis=1)
    ys[1::2, 0] = ys[::2, 1] = ys[60:-1, 1] = np.nan
    with pytest.raises(IdentifyError, match="Column 1 of ys was not measured in the part"):
        Identifier((), "library").fit(ts, ys)


# --- terms ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_small_terms_are_dropped_unless_they_improve_the_fit(noise):
    """Two species come to rest, so the held-out end has little information. Regression alone adds
    terms up to a sixteenth as large as the largest one."""
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


def test_negligible_terms_of_a_driven_oscillator_are_dropped():
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


def test_nearly_proportional_terms_have_finite_coefficients(x64):
    """The powers of large numbers that vary little make the equations of a step singular."""
    ts, ys = population_series(span=30.0)
    model = Identifier([Hold(1.0)], "library").fit(ts, np.round(101325 + 5 * ys, 2))
    assert np.all(np.isfinite(model.equation_.coefficients))


# --- precision ------------------------------------------------------------------------------------


def test_states_with_too_many_digits_for_float32_are_refused(x64):
    ts = np.arange(0, 40, 0.25)
    ys = 101325 + 5 * np.exp(-0.2 * ts)
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"varies by 1.11 only.*JAX_ENABLE"):
        Identifier((), "library").fit(ts, ys)
    Identifier((), "library").fit(ts, ys)


def test_units_that_float32_cannot_mix_are_named():
    """Each column alone has a suitable size, but the coefficient of a square does not."""
    ts = np.linspace(0, 12, 121)
    small = np.sin(ts)
    large = 5 - np.cumsum(small**2) * 0.1
    with pytest.raises(ValueError, match=r"coefficients from .* to .*too wide for float32\. Mult"):
        Identifier(field="library").fit(ts, np.stack([1e-17 * small, 1e17 * large], 1))


@pytest.mark.parametrize("power", [18, -18])
def test_squares_fit_into_float32_up_to_1e18(power):
    series = lambda power: read_series(np.arange(4.0), 10.0**power * np.array([1.0, 0.5, 0.7, 0.6]))
    check_sizes(series(power), 2)
    beyond = power + np.sign(power)
    with pytest.raises(ValueError, match=f"Multiply it by 1e{-beyond}"):
        check_sizes(series(beyond), 2)


@pytest.mark.slow
def test_a_late_clock_does_not_cost_precision():
    ts, ys = population_series()
    other = Identifier([Hold(1.0)], "library").fit(ts, ys).forecast(ts[-1] + np.array([0.1, 0.9]))
    model = Identifier([Hold(1.0)], "library").fit(ts + 100_000, ys)
    assert read_coefficients(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)
    first = model.forecast(ts[-1] + 100_000 + np.array([0.1, 0.9])).mean
    np.testing.assert_allclose(first, other.mean, rtol=1e-3)


@pytest.mark.slow
def test_noisy_states_are_pulled_back_to_their_level():
    """Regression alone drops the pull, so that predictions keep the noise that they start from."""
    rng = np.random.default_rng(0)
    x = np.zeros(300)
    for k in range(299):
        x[k + 1] = 5 + 0.5 * (x[k] - 5) + rng.standard_normal()
    model = Identifier((), "library", degree=1).fit(np.arange(300.0), x)
    found = read_coefficients(model)
    assert found[(1,)] == pytest.approx(np.log(0.5), rel=0.4)
    assert -found[(0,)] / found[(1,)] == pytest.approx(5, rel=0.05)
