"""Periods are learned from the series."""

import numpy as np
import pytest
from helpers.measurements import population_series, solve_series

import lagrax
from lagrax import Hold, Identifier, Lag, Learn, holds


# The oven of test_examples.py is learned from noisy measurements, too.
@pytest.mark.slow
@pytest.mark.parametrize("start", [0.7, 1.4])
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.02, 0.05)])
def test_a_period_is_learned(start, noise, within):
    model = Identifier([Hold(Learn(start))], "library").fit(*population_series(noise, span=12))
    assert model.periods_ == pytest.approx([1.0], rel=within)
    assert model.delays_[0].tau == model.periods_[0]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.7, 1.4])
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.02, 0.05)])
def test_a_network_learns_a_period(start, noise, within):
    model = Identifier([Hold(Learn(start))], iterations=1000, progress=False)
    model.fit(*population_series(noise))
    assert model.periods_ == pytest.approx([1.0], rel=within)


@pytest.mark.slow
def test_a_lag_is_learned():
    ts = np.arange(0, 15, 0.1)
    growth = lambda t, x, args, *, history: 1.8 * x * (1 - history[0])
    ys = solve_series(growth, ts, 0.4, [Lag(1.0)])
    model = Identifier([Lag(Learn(0.9, 0.8, 1.3))], "library").fit(ts, ys)
    assert model.periods_ == pytest.approx([1.0], rel=0.01)


@pytest.mark.slow
def test_holds_share_their_period():
    model = Identifier(holds(Learn(0.95, 0.9, 1.1), 2), "library").fit(*population_series(span=10))
    assert model.periods_ == pytest.approx([1.0], rel=0.01)
    assert [d.tau for d in model.delays_] == model.periods_ * 2


def test_only_the_period_of_a_known_field_is_learned():
    ts, ys = population_series(span=12.0)
    known = lambda t, y, args, *, history: 2.6 * y * (1 - history[0])
    period = Learn(0.9, 0.8, 1.2)
    model = Identifier([Hold(period)], known, iterations=50, progress=False).fit(ts, ys)
    assert model.periods_ == pytest.approx([1.0], rel=1e-3)
    assert model.score(ts, ys) > 0.999


def test_the_held_out_end_is_hidden_from_the_search_for_a_period():
    ts, ys = population_series(span=12.0)
    known = lambda t, y, args, *, history: 2.6 * y * (1 - history[0])
    ruined = np.where(ts > 0.8 * ts[-1], ys.mean(), ys)
    models = [
        Identifier([Hold(Learn(0.9, 0.8, 1.2))], known, iterations=50, progress=False).fit(ts, y)
        for y in (ys, ruined)
    ]
    np.testing.assert_array_equal(*(model.scans_[0].errors for model in models))


@pytest.fixture(scope="module")
def scanned():
    """Two models with a learned period, and measurements beyond the end of their series."""
    ts, ys = population_series(span=11.5)
    delays = [Hold(Learn(0.9, 0.8, 1.2))]
    model = Identifier(delays, "library", progress=False, ensemble=2).fit(ts[:110], ys[:110])
    return model, ts[110:], ys[110:]


def test_negligible_terms_of_a_scanned_period_are_dropped(scanned):
    """The scanned period is not exact while terms are selected, which adds terms."""
    model = scanned[0]
    assert model.equations() == ["x′ = 2.6 x − 2.6 x x(⌊t⌋)"]
    assert model.periods_ == pytest.approx([1.0], rel=1e-3)
    assert model.delays_[0].tau == model.periods_[0]


def test_a_learned_period_forecasts_over_the_next_knot(scanned):
    model, later, truth = scanned
    for ahead in (2, 3, 5):
        np.testing.assert_allclose(model.forecast(later[:ahead]).mean, truth[:ahead], rtol=2e-3)
    around_a_knot = model.simulate(np.linspace(2.85, 3.15, 4), 0.4)
    np.testing.assert_allclose(around_a_knot[0], 0.4, rtol=1e-6)
    assert np.isfinite(around_a_knot).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0.0,), "start=0"), ((1.0, 2.0), "low=2"), ((1.0, 1.0, 1.0), "low < high")],
)
def test_learn_is_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Learn(*arguments)


def test_too_few_samples_between_knots_are_refused():
    with pytest.raises(ValueError, match="3 samples between knots"):
        Identifier(holds(1.0, 2), "library").fit(np.arange(30.0), np.sin(np.arange(30.0)))


def test_solve_refuses_a_period_to_learn():
    field = lambda t, y, args, *, history: -history[0]
    with pytest.raises(TypeError, match="Identifier"):
        lagrax.solve(field, 0.0, 1.0, 0.5, delays=[Hold(Learn(0.7))])
