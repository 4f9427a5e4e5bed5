"""Linear equations of held samples: autoregressions, random walks and seasons."""

import jax.numpy as jnp
import numpy as np
import pytest

from lagrax import Identifier
from lagrax.identify import IdentifyError
from lagrax.identify._linear import Kind, StateSeries, fit_recursion


def make_autoregression(samples=400, noise=0.1, seed=0):
    """x(k + 1) = 0.3 + 1.5 x(k) − 0.9 x(k − 1) + 0.7 u(k) + noise."""
    rng = np.random.default_rng(seed)
    x, u = np.ones(samples), rng.standard_normal(samples)
    for k in range(1, samples - 1):
        x[k + 1] = 0.3 + 1.5 * x[k] - 0.9 * x[k - 1] + 0.7 * u[k] + noise * rng.standard_normal()
    return 0.5 * np.arange(samples), x, u


def make_sales(years=16, noise=0.02, seed=1):
    """Quarters whose season and noise grow with their level."""
    rng = np.random.default_rng(seed)
    season = np.tile([0.0, 0.7, 0.1, -0.8], years)
    trend = np.cumsum(0.03 + noise * rng.standard_normal(4 * years))
    return 0.25 * np.arange(4 * years), 100 * np.exp(season + trend)


def test_an_autoregression_is_found():
    ts, x, u = make_autoregression()
    model = Identifier(field="linear", window=10).fit(ts, x, u)
    assert len(model.delays_) == 2
    columns = np.column_stack([np.ones(398), x[1:-1], x[:-2], u[1:-1]])
    expected = np.linalg.lstsq(columns, x[2:])[0]
    c, lags, b = (np.asarray(part)[..., 0] for part in model.equation_.coefficients)
    # Orders are compared on the samples that the longest one predicts.
    np.testing.assert_allclose([c, *lags, *b], expected, atol=0.01)
    np.testing.assert_allclose([c, *lags, *b], [0.3, 1.5, -0.9, 0.7], atol=0.05)
    (equation,) = model.equations()
    assert equation.startswith("x(k+1) = 0.")
    assert equation.endswith(" u")
    assert " x(k) − 0.8" in equation or " x(k) − 0.9" in equation


def test_solving_the_equation_gives_the_recursion():
    """Between samples slopes are constant, and growth rates are for logarithms."""
    ts, x, _ = make_autoregression()
    for y in (x, np.exp(0.3 * x)):
        model = Identifier(field="linear", window=10).fit(ts, y)
        recursion = model.forecast(ts[-1] + 0.5 * np.arange(1, 4)).mean
        fine = ts[-1] + 0.25 * np.arange(7)
        solved = model.simulate(fine, lambda t, y=y: jnp.interp(t, ts, y))
        np.testing.assert_allclose(solved[2::2], recursion, rtol=1e-4)
        ends = solved[[0, 2]]
        middle = np.sqrt(np.prod(ends)) if any(model.equation_.logarithmic) else np.mean(ends)
        assert solved[1] == pytest.approx(middle, rel=1e-4)
        assert solved[0] == pytest.approx(y[-1])


def test_a_random_walk_stands_still_or_drifts():
    rng = np.random.default_rng(2)
    steps = rng.standard_normal(300)
    ts = np.arange(300.0)
    for drift, expected in ((0.0, 0.0), (1.0, 1.0)):
        x = np.cumsum(drift + steps)
        forecast = Identifier(field="linear", window=20).fit(ts, x).forecast(300.0 + np.arange(20))
        slope = (forecast.mean[-1] - x[-1]) / 20
        assert slope == pytest.approx(expected, abs=0.2)
        width = forecast.high - forecast.low
        assert width[15] == pytest.approx(4 * width[0], rel=0.4)


def test_a_season_that_grows_with_its_level_is_one_of_logarithms():
    ts, x = make_sales()
    model = Identifier(field="linear", season=1.0, window=8).fit(ts[:48], x[:48])
    (equation,) = model.equations()
    assert equation.startswith("log x(k+1) = ")
    assert np.sum(model.equation_.coefficients[1]) == pytest.approx(1, abs=0.02)
    forecast = model.forecast(ts[48:56])
    np.testing.assert_allclose(forecast.mean, x[48:56], rtol=0.15)
    assert np.all((forecast.low <= x[48:56]) & (x[48:56] <= forecast.high))
    ratio = forecast.high / forecast.mean
    np.testing.assert_allclose(forecast.mean / forecast.low, ratio, rtol=1e-6)


def test_the_season_of_inputs_drives_changes():
    """A random walk with a season in its changes. An input that does not repeat with it belongs to
    the level, and is left out of them."""
    rng = np.random.default_rng(3)
    k = np.arange(240)
    wave, other = np.cos(2 * np.pi * k / 12), np.sin(k)
    x = np.cumsum(np.append(0.0, wave[:-1]) + 0.3 * rng.standard_normal(240))
    us = np.stack([wave, other], axis=1)
    found = fit_recursion([StateSeries(x, np.ones(240, bool), us)], Kind(1, False), 12)
    assert found is not None
    assert np.sum(found.lags) == pytest.approx(1)
    assert found.inputs[0] == pytest.approx(1, abs=0.1)
    assert found.inputs[1] == 0
    over_season = fit_recursion([StateSeries(x, np.ones(240, bool), us)], Kind(12, False), 12)
    assert over_season is not None
    assert np.sum(over_season.lags) == pytest.approx(1)
    assert np.all(over_season.inputs == 0)


def test_scores_are_of_a_fit_that_has_not_seen_the_held_out_end():
    ts, x, u = make_autoregression(noise=0.3)
    model = Identifier(field="linear", window=1).fit(ts, x, u)
    first = model.held_out_from_[0]
    shaken = x.copy()
    shaken[first:] += np.random.default_rng(4).standard_normal(len(x) - first)
    other = Identifier(field="linear", window=1).fit(ts, shaken, u)
    assert other.error_[0] > 2 * model.error_[0]
    # The last fit has seen it.
    before, after = (m.equation_.coefficients[1][0, 0] for m in (model, other))
    assert after < before - 0.05


def test_a_saved_linear_equation_is_the_same(tmp_path):
    ts, x = make_sales()
    model = Identifier(field="linear", season=1.0, window=8).fit(ts, x)
    model.save(tmp_path / "model")
    loaded = Identifier.load(tmp_path / "model")
    later = ts[-1] + 0.25 * np.arange(1, 9)
    for a, b in zip(model.forecast(later), loaded.forecast(later), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.equations() == model.equations()


def test_several_series_share_an_equation():
    ts, x, _ = make_autoregression()
    _, other, _ = make_autoregression(seed=5)
    model = Identifier(field="linear", window=10).fit(ts, [x, other])
    np.testing.assert_allclose(model.equation_.coefficients[1][:2, 0], [1.5, -0.9], atol=0.1)


def test_unsuitable_series_are_refused():
    ts, x, _ = make_autoregression()
    with pytest.raises(IdentifyError, match="expected equal gaps"):
        Identifier(field="linear").fit(ts**1.1, x)
    with pytest.raises(IdentifyError, match="from 9 samples; expected 16"):
        Identifier(field="linear", window=2).fit(ts[:12], x[:12])
