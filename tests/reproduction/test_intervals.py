"""Intervals of medians, ratios and shares over seeds, against SciPy."""

import numpy as np
import pytest
from scipy import stats

from reproduction.intervals import (
    describe_median,
    lead_interval,
    median_interval,
    ratio_interval,
    share_interval,
)


@pytest.fixture
def samples():
    rng = np.random.default_rng(1)
    return rng.lognormal(0.0, 1.0, 40), rng.lognormal(1.0, 1.0, 40)


def test_intervals_of_medians_agree_with_scipy(samples):
    own, _ = samples
    expected = stats.bootstrap(
        (own,), np.median, n_resamples=5000, method="percentile", random_state=0
    ).confidence_interval
    np.testing.assert_allclose(median_interval(own), expected, rtol=0.1)


def test_intervals_of_ratios_agree_with_scipy(samples):
    own, other = samples
    ratio = lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis)
    expected = stats.bootstrap(
        (other, own), ratio, n_resamples=5000, method="percentile", random_state=0
    ).confidence_interval
    np.testing.assert_allclose(ratio_interval([other], own), expected, rtol=0.1)
    # The least of several counts, whichever it is.
    np.testing.assert_allclose(ratio_interval([100 * other, other], own), expected, rtol=0.1)


def test_equal_seeds_leave_no_doubt():
    ones = np.ones(5)
    assert median_interval(ones) == (1, 1)
    assert lead_interval([3 * ones, 5 * ones], ones) == (2, 2)


def test_few_seeds_have_their_range():
    assert median_interval(np.array([3.0, 1.0, 2.0])) == (1, 3)
    assert describe_median(3) == "Median of 3 seeds, with the lowest and highest"
    assert describe_median(10) == "Median of 10 seeds, with its 95 % bootstrap interval"


def test_a_lost_seed_counts_as_the_worst():
    losses = np.array([1.0, 2.0, np.nan])
    assert median_interval(losses) == (1, np.inf)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (1, 40), (20, 40), (40, 40)])
def test_intervals_of_shares_agree_with_scipy(count, total):
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    np.testing.assert_allclose(share_interval(count, total), expected, atol=1e-4)
