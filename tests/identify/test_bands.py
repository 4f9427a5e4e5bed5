"""The band around a forecast comes from errors over the same time ahead."""

import numpy as np
import pytest

from lagrax import Identifier
from lagrax.identify._errors import Errors, find_band


def make_errors(rng, origins, steps, held_out=1.0, scale=1.0):
    """Errors of standing still on random walks that do not overlap, the first half of them not held
    out."""
    walks = np.cumsum(rng.standard_normal((origins, steps, 1)), axis=1) * scale
    later = np.broadcast_to(np.arange(origins)[:, None] >= origins // 2, (origins, steps))
    walks = np.where(later[..., None], held_out * walks, walks)
    starts = np.stack([np.zeros(origins, int), steps * np.arange(origins)], axis=1)
    elapsed = np.broadcast_to(0.5 * np.arange(1.0, steps + 1), (origins, steps))
    return Errors(starts, later, elapsed, walks, np.zeros_like(walks))


def test_the_band_of_a_random_walk_grows_with_the_root_of_time():
    rng = np.random.default_rng(0)
    band = find_band(make_errors(rng, 400, 64, scale=3.0), np.array([5.0]))
    for steps in (1, 4, 16, 50, 256):
        expected = 1.645 * 3.0 * np.sqrt(steps)
        assert band(np.array([0.5 * steps]))[0, 0] == pytest.approx(expected, rel=0.25)


def test_ninety_percent_of_new_errors_lie_in_the_band():
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(40):
        band = find_band(make_errors(rng, 60, 16), np.ones(1))
        new = np.cumsum(rng.standard_normal((100, 16)), axis=1)
        inside.append(np.abs(new) <= band(0.5 * np.arange(1.0, 17.0))[:, 0])
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


def test_bands_count_overlapping_predictions_once():
    """In 320 samples of a random walk there are few predictions over 64 steps that do not overlap.
    A plain quantile of all 256 errors holds 85 % of new ones."""
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(120):
        walk = np.cumsum(rng.standard_normal(320))
        places = np.arange(256)[:, None] + np.arange(1, 65)
        starts = np.stack([np.zeros(256, int), np.arange(256)], axis=1)
        elapsed = np.broadcast_to(np.arange(1.0, 65.0), places.shape)
        later = np.ones(places.shape, bool)
        still = np.broadcast_to(walk[:256, None, None], (*places.shape, 1))
        band = find_band(Errors(starts, later, elapsed, walk[places][..., None], still), np.ones(1))
        new = np.sum(rng.standard_normal((200, 64)), axis=1)
        inside.append(np.abs(new) <= band(np.array([64.0]))[0, 0])
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


def test_bands_of_logarithms_are_relative():
    """Errors of a tenth of the level at every level."""
    rng = np.random.default_rng(6)
    level = 10.0 ** rng.uniform(0, 4, (400, 1, 1))
    errors = make_errors(rng, 400, 1)
    off = np.exp(0.1 * rng.standard_normal((400, 1, 1)))
    errors = errors._replace(predicted=level, measured=level * off)
    band = find_band(errors, np.ones(1), [True])
    low, high = band.around(np.array([[1.0], [1000.0]]), np.array([0.5, 0.5]))
    np.testing.assert_allclose(np.log(high / [[1.0], [1000.0]]), 0.1645, rtol=0.15)
    np.testing.assert_allclose(low * high, [[1.0], [1e6]])


def test_errors_on_learned_samples_are_enlarged():
    """Twice as large on held-out samples, so all of them count twice."""
    band = find_band(make_errors(np.random.default_rng(2), 400, 8, held_out=2.0), np.ones(1))
    assert band(np.array([0.5]))[0, 0] == pytest.approx(2 * 1.645, rel=0.15)


def test_what_diverges_makes_a_wide_and_finite_band():
    errors = make_errors(np.random.default_rng(3), 40, 8)
    predicted = errors.predicted.copy()
    predicted[:, 4:] = np.nan
    widths = find_band(errors._replace(predicted=predicted), np.ones(1))(np.array([1.0, 4.0]))
    assert widths[0, 0] < 5
    assert widths[1, 0] == pytest.approx(100)


@pytest.mark.slow
def test_forecasts_of_a_random_walk_widen():
    """Nothing but standing still is to be learned of it."""
    x = np.cumsum(np.random.default_rng(4).standard_normal(300))
    ts = np.arange(300.0)
    model = Identifier((), "library", degree=1).fit(ts[:200], x[:200])
    forecast = model.forecast(ts[200:264])
    width = (forecast.high - forecast.low) / 2
    assert np.all(np.diff(width) >= 0)
    assert width[0] == pytest.approx(1.645, rel=0.25)
    assert width[15] == pytest.approx(4 * 1.645, rel=0.4)
