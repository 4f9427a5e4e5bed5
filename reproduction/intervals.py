"""Intervals of 95 % for medians, ratios and shares over seeds.

Those of medians are bootstrap intervals (B. Efron, Annals of Statistics 7, 1979). Seeds are drawn
anew with replacement, 2,000 times, with a fixed random seed. An interval holds the middle 95 % of
the resulting medians. Few seeds support no such interval, and medians of them have their range.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .result import Interval

RESAMPLES = 2_000
_MIDDLE = (0.025, 0.975)
# Fewer seeds have a range instead of an interval.
LEAST_SEEDS = 10


def describe_median(seeds: int) -> str:
    """Which number and which interval of so many seeds a table shows."""
    bounds = "the lowest and highest" if seeds < LEAST_SEEDS else "its 95 % bootstrap interval"
    return f"Median of {seeds} seeds, with {bounds}"


def median_interval(values: Float[np.ndarray, " seeds"]) -> Interval:
    """The 95 % interval of the median, or the range of few seeds."""
    if len(values) < LEAST_SEEDS:
        known = np.where(np.isnan(values), np.inf, values)
        return float(known.min()), float(known.max())
    return _interval(_medians(np.random.default_rng(0), values))


def ratio_interval(
    numerators: Sequence[Float[np.ndarray, " _"]], denominator: Float[np.ndarray, " _"]
) -> Interval:
    """Of the least of the numerators' medians over the denominator's median."""
    rng = np.random.default_rng(0)
    least = np.min([_medians(rng, values) for values in numerators], axis=0)
    with np.errstate(invalid="ignore"):
        return _interval(least / _medians(rng, denominator))


def lead_interval(
    others: Sequence[Float[np.ndarray, " _"]], own: Float[np.ndarray, " _"]
) -> Interval:
    """Of the least of the others' medians less the own median."""
    rng = np.random.default_rng(0)
    least = np.min([_medians(rng, values) for values in others], axis=0)
    with np.errstate(invalid="ignore"):
        return _interval(least - _medians(rng, own))


def _medians(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    # A lost seed counts as the worst there is.
    return np.median(np.where(np.isnan(values), np.inf, values)[drawn], axis=1)


def _interval(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, _MIDDLE, method="nearest")
    return float(low), float(high)


def share_interval(count: int, total: int) -> Interval:
    """Of the share of which `count` of `total` is a sample (E. B. Wilson, Journal of the American
    Statistical Association 22, 1927)."""
    z, share = 1.96, count / total
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return max(float(middle - half), 0.0), min(float(middle + half), 1.0)
