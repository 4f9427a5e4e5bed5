"""Simple forecasts to compare with, seasons, and the words about them."""

import dataclasses

import numpy as np
import pytest

from lagrax._cli.fit_baselines import STILL, FilledSeries, predict_baselines
from lagrax._cli.fit_figures import find_extremes
from lagrax._cli.fit_model import suggest_inputs
from lagrax._cli.fit_options import FitError
from lagrax._cli.fit_scores import Score, find_doubt, score_predictions
from lagrax._cli.fit_seasons import Season, add_seasons, continue_inputs, find_season
from lagrax._cli.table import Measurements
from lagrax._cli.units import Duration
from lagrax.identify._errors import Errors


def make_errors(ys, origins, steps, held_out_from, predicted=0.0):
    """Predictions of the samples after each origin that are off by `predicted`."""
    places = np.array(origins)[:, None] + np.arange(1, steps + 1)
    exists = places < len(ys)
    measured = np.where(exists[..., None], ys[np.minimum(places, len(ys) - 1)], np.nan)
    return Errors(
        np.array([[0, s] for s in origins]),
        (places >= held_out_from) & exists,
        np.broadcast_to(np.arange(1.0, steps + 1), places.shape),
        measured,
        measured + predicted,
    )


def make_table(ys, unit="months", gap=1.0):
    ts = gap * np.arange(len(ys))
    return Measurements("t", ts, ("x",), ys[:, None], (), np.zeros((len(ys), 0)), unit)


def test_an_autoregression_continues_its_own_series():
    """x(k + 1) = 0.3 + 1.5 x(k) − 0.9 x(k − 1) + 0.7 u(k), disturbed while it is learned."""
    rng = np.random.default_rng(0)
    x, u = np.zeros(400), rng.standard_normal(400)
    for k in range(1, 399):
        noise = 0.01 * rng.standard_normal() * (k < 300)
        x[k + 1] = 0.3 + 1.5 * x[k] - 0.9 * x[k - 1] + 0.7 * u[k] + noise
    errors = make_errors(x[:, None], [300, 320, 350], 40, 300)
    series = [FilledSeries(x[:, None], u[:, None], 300)]
    predicted = predict_baselines(series, errors, None, True)
    assert list(predicted) == [STILL, "AR(2)"]
    np.testing.assert_allclose(predicted["AR(2)"][0], errors.measured[..., 0], atol=0.05)
    np.testing.assert_allclose(predicted[STILL][0][:, 0], x[[300, 320, 350]])
    assert list(predict_baselines(series, errors, None, False)) == [STILL]


def test_the_last_season_is_repeated():
    x = np.arange(30.0)
    errors = make_errors(x[:, None], [20], 9, 20)
    season = Season(4, "4 months", "4mo")
    series = [FilledSeries(x[:, None], np.zeros((30, 0)), 20)]
    predicted = predict_baselines(series, errors, season, False)
    np.testing.assert_array_equal(
        predicted["last season (4 months)"][0][0], [17, 18, 19, 20, 17, 18, 19, 20, 17]
    )


def test_scores_count_held_out_samples_of_all_starts():
    ys = np.sin(np.arange(40.0))[:, None]
    errors = make_errors(ys, [20, 29, 33], 5, 30, predicted=0.1)
    still = np.full((3, 5), 0.0)
    (score,) = score_predictions(["x"], errors, {STILL: [still]}, ys.var(axis=0))
    held_out = ys[30:39][np.r_[0:5, 4:9]]  # after samples 29 and 33
    deviation = np.unique(held_out).std()
    assert score.nrmse == pytest.approx(0.1 / deviation)
    assert score.r2 == pytest.approx(1 - score.nrmse**2)
    assert (score.starts, score.spread) == (2, pytest.approx(0, abs=1e-9))
    assert score.standing_still == pytest.approx(np.sqrt(np.mean(held_out**2)) / deviation)
    assert score.movement == pytest.approx(deviation / ys.std())


def test_scores_are_compared_in_the_first_line():
    score = Score("x", 0.75, 0.5, 1.0, 1.0, baselines={"last season (1 year)": 0.5, "AR(3)": 0.3})
    assert score.comparison == (
        "x: held-out error 0.5, worse than AR(3) (0.3), as good as last season (1 year) (0.5), "
        "better than standing still (1)."
    )
    assert "1.7 times the error of AR(3)" in score.verdict
    assert find_doubt([score]).startswith("x: worse than AR(3) (0.5 against 0.3). Do not trust")
    assert find_doubt([score._replace(baselines={"AR(3)": 0.49})]) is None
    seasonal = score._replace(baselines={"last season (1 year)": 0.4})
    assert "--season 1y, " in find_doubt([seasonal], "1y")


@pytest.mark.parametrize("r2", [-1.09, -0.09])
def test_a_bad_score_is_never_passed_over(r2):
    """Better than standing still, and worse than the mean."""
    score = Score("x", r2, np.sqrt(1 - r2), 2.0, 1.0)
    assert "Off by more than the held-out end varies: x." in find_doubt([score])


def test_seasons_are_found():
    rng = np.random.default_rng(1)
    k = np.arange(120)
    year = np.sin(2 * np.pi * k / 12) + 0.02 * k + 0.2 * rng.standard_normal(120)
    assert find_season(make_table(year), 96) == Season(12, "1 year", "1y")
    cycle = np.sin(2 * np.pi * k / 9.6) + 0.1 * rng.standard_normal(120)
    assert find_season(make_table(cycle, "years"), 96).samples in (9, 10)
    assert find_season(make_table(cycle, None), 96).option in ("9", "10")
    walk = np.cumsum(rng.standard_normal(120))
    assert find_season(make_table(walk), 96) is None
    days = np.sin(2 * np.pi * np.arange(240) / 24)
    assert find_season(make_table(days, "hours"), 200) == Season(24, "1 day", "1d")


def test_a_season_is_an_input_that_goes_on():
    table = add_seasons(make_table(np.arange(30.0)), [Duration(1, "years")])
    assert table.input_names == ("cos1", "sin1", "cos2", "sin2", "cos3", "sin3")
    np.testing.assert_allclose(
        table.inputs[3, :2], [np.cos(3.5 * np.pi / 6), np.sin(3.5 * np.pi / 6)]
    )
    later = np.arange(30.0, 36.0)
    longer = add_seasons(make_table(np.arange(36.0)), [Duration(1, "years")])
    np.testing.assert_allclose(continue_inputs(table, later, None), longer.inputs[29:], atol=1e-12)
    with_flow = dataclasses.replace(
        make_table(np.arange(30.0)), input_names=("flow",), inputs=np.arange(30.0)[:, None]
    )
    table = add_seasons(with_flow, [Duration(12)])
    given = continue_inputs(table, later, 2 * np.ones((6, 1)))
    np.testing.assert_array_equal(given[:, 0], [29, *[2] * 6])
    assert given.shape == (7, 7)
    with pytest.raises(FitError, match="is not between three samples"):
        add_seasons(table, [Duration(2)])


def test_the_half_of_a_season_alternates():
    """Quarters have a cosine and a sine of the year, and a sine that changes sign each time."""
    quarters = make_table(np.arange(30.0), "months", 3.0)
    table = add_seasons(quarters, [Duration(1, "years")])
    assert table.input_names == ("cos1", "sin1", "sin2")
    np.testing.assert_allclose(table.inputs[:4, 2], [1, -1, 1, -1], atol=1e-9)
    assert table.season_inputs == 3
    later = 90 + 3 * np.arange(6.0)
    longer = add_seasons(make_table(np.arange(36.0), "months", 3.0), [Duration(1, "years")])
    np.testing.assert_allclose(continue_inputs(table, later, None), longer.inputs[29:], atol=1e-9)


def test_columns_that_change_in_steps_are_suggested_as_inputs():
    k = np.arange(60)
    table = make_table(np.sin(0.3 * k))
    assert suggest_inputs(table) is None
    both = dataclasses.replace(
        table, names=("x", "valve"), ys=np.stack([np.sin(0.3 * k), k // 10 % 2], axis=1)
    )
    assert suggest_inputs(both).endswith("may drive the others: add --input valve if they do.")
    named = dataclasses.replace(both, input_names=("u",), inputs=np.zeros((60, 1)))
    assert suggest_inputs(named) is None


def test_lengths_of_time_are_in_readable_units():
    table = make_table(np.arange(20.0), "minutes")
    assert table.in_words(1190.0) == "19.83 hours"
    assert table.in_words(0.5) == "30 seconds"
    assert table.in_words(45.0) == "45 minutes"


def test_long_curves_are_drawn_by_their_extremes():
    rng = np.random.default_rng(0)
    ys = rng.standard_normal(200_000)
    ys[123_456], ys[5000:5100] = 50.0, np.nan
    kept = find_extremes(ys)
    assert len(kept) <= 3002
    assert {0, 199_999, 123_456} <= set(kept.tolist())
    parts = np.array_split(np.arange(len(ys)), 1500)
    assert all(np.nanmin(ys[p]) in ys[kept] for p in parts[100:120])
    np.testing.assert_array_equal(find_extremes(ys[:50]), np.arange(50))
