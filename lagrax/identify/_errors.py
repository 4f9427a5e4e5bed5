"""Errors of predictions from many measured starts, and the band that they make around a forecast.

The band is that of split conformal prediction. The errors that a model made over the same time
ahead, most of them on samples that it was not fitted to, are those to expect of its forecast.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ._fitted import FittedModel
from ._series import Trajectory
from ._simulation import stack_windows
from ._windows import Window

# Starts that errors are measured from, and the samples that all of them predict.
MOST_ORIGINS = 200
LEAST_ORIGINS = 20
MOST_PREDICTED = 20_000
# The share of later measurements that a band should hold.
COVERED = 0.9
# The share of the steps by which predictions start apart to count as different ones. On random
# walks bands then hold 90 % for any number of them, with a whole one up to 97 %.
OVERLAP = 0.25
# Errors that one step of the band is measured by, at least.
LEAST_ERRORS = 10
# Errors are cut off at this many standard deviations of the state.
LARGEST = 100.0


class Errors(NamedTuple):
    """Predictions of measured samples, a row for each origin and a column for each step ahead.

    - `origins`: the trajectory and the sample that each row starts from.
    - `held_out`: whether a sample was not learned from. Samples beyond the end are none.
    - `elapsed`: the time since the origin.
    - `measured`, `predicted`: the states; NaN if they were not measured or do not exist.
    """

    origins: Int[np.ndarray, "origins 2"]
    held_out: Bool[np.ndarray, "origins steps"]
    elapsed: Float[np.ndarray, "origins steps"]
    measured: Float[np.ndarray, "origins steps states"]
    predicted: Float[np.ndarray, "origins steps states"]

    def until(self, steps: int) -> "Errors":
        """Those of the first steps."""
        return Errors(self.origins, *(part[:, :steps] for part in self[1:]))


def measure_errors(model: FittedModel, held_out_from: Sequence[int], horizon: int) -> Errors:
    """Predicts up to `horizon` samples from many samples of the fitted series.

    Half of the origins lie where their first step was not learned from.
    """
    series, shifted = model.dataset.series, model.dataset.shifted
    longest = max(len(t.ts) for t in series) - 1
    horizon = min(horizon, longest)
    most = int(np.clip(MOST_PREDICTED // horizon, LEAST_ORIGINS, MOST_ORIGINS))
    origins = _choose_origins(model, held_out_from, most)
    windows = [Window(i, s, min(s + horizon, len(series[i].ts) - 1)) for i, s in origins.tolist()]
    arrays = stack_windows(shifted, windows, model.delays)
    steps = arrays.ts.shape[1] - 1
    number = origins[:, 1:] + np.arange(1, steps + 1)
    ends = np.array([len(series[i].ts) for i, _ in origins])[:, None]
    first = np.array([held_out_from[i] for i, _ in origins])[:, None]
    exists = (number < ends)[..., None]
    known = (arrays.weights[:, 1:] > 0) & exists
    return Errors(
        origins,
        (number >= first) & exists[..., 0],
        arrays.ts[:, 1:] - arrays.ts[:, :1],
        np.where(known, arrays.ys[:, 1:], np.nan),
        np.where(exists, model.solve_windows(arrays)[:, 1:], np.nan),
    )


def _choose_origins(
    model: FittedModel, held_out_from: Sequence[int], most: int
) -> Int[np.ndarray, "origins 2"]:
    """Samples with all states measured and a known past, half of them before held-out ones."""
    usable = [
        (i, s)
        for i, t in enumerate(model.dataset.series)
        for s in _find_measured(t, model.find_first_start(t))
    ]
    later = np.array([s + 1 >= held_out_from[i] for i, s in usable])
    places = [np.flatnonzero(later), np.flatnonzero(~later)]
    kept = [_thin(p, most - min(len(other), most // 2)) for p, other in zip(places, places[::-1])]  # noqa: B905
    return np.array([usable[i] for i in np.sort(np.concatenate(kept))], int).reshape(-1, 2)


def _find_measured(trajectory: Trajectory, first: int) -> list[int]:
    """The samples from `first` on with all states measured; that sample alone if there is none."""
    measured = np.flatnonzero(~np.isnan(trajectory.ys).any(axis=1))
    good = measured[(measured >= first) & (measured < len(trajectory.ts) - 1)]
    return good.tolist() or [min(first, len(trajectory.ts) - 2)]


def _thin(places: Int[np.ndarray, " places"], most: int) -> Int[np.ndarray, " kept"]:
    if len(places) <= most:
        return places
    return places[np.linspace(0, len(places) - 1, most).round().astype(int)]


# --- the band -------------------------------------------------------------------------------------


class Band(NamedTuple):
    """Half the width of a band for some times ahead, which increase, and for each state.

    Widths of a `logarithmic` state are those of its logarithm.
    """

    elapsed: Float[np.ndarray, " times"]
    widths: Float[np.ndarray, "times states"]
    logarithmic: Bool[np.ndarray, " states"]

    def __call__(self, elapsed: Float[np.ndarray, " later"]) -> Float[np.ndarray, "later states"]:
        """Interpolates. Beyond the longest time, the width grows as that of a random walk."""
        inside = [np.interp(elapsed, self.elapsed, width) for width in self.widths.T]
        beyond = np.sqrt(np.maximum(elapsed / self.elapsed[-1], 1.0))
        return np.stack(inside, axis=1) * beyond[:, None]

    def around(
        self,
        mean: Float[np.ndarray, "*rows later states"],
        elapsed: Float[np.ndarray, " later"],
        least: Float[np.ndarray, "later states"] | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of the band around a forecast, at least so far from it."""
        width = self(elapsed)
        factor = np.exp(np.minimum(width, LARGEST))
        low = np.where(self.logarithmic, mean / factor, mean - width)
        high = np.where(self.logarithmic, mean * factor, mean + width)
        return np.minimum(low, mean - least), np.maximum(high, mean + least)


def find_band(
    errors: Errors,
    scale: Float[np.ndarray, " states"],
    logarithmic: Sequence[bool] | None = None,
) -> Band:
    """The band that holds 90 % of the errors after each time, and does not narrow with it.

    Errors on samples that were learned from are too small. They are enlarged by what held-out ones
    are larger over the same times. Errors of a `logarithmic` state are relative.
    """
    log = np.zeros(len(scale), bool) if logarithmic is None else np.array(logarithmic)
    scale = np.where(log, 1.0, scale)
    size = np.abs(_take_logarithms(errors.predicted, log) - _take_logarithms(errors.measured, log))
    size = size / scale
    size = np.where(np.isnan(errors.measured), np.nan, np.nan_to_num(size, nan=LARGEST))
    size = np.minimum(size, LARGEST)
    size = np.where(errors.held_out[..., None], size, size * _find_optimism(errors, size))
    known = ~np.isnan(size).all(axis=2)
    origin, step = np.nonzero(known)
    elapsed, size = errors.elapsed[known], size[known]
    order = np.argsort(elapsed, kind="stable")
    elapsed, size, origin, step = elapsed[order], size[order], origin[order], step[order]
    edges = _divide(elapsed)
    times, widths = [], []
    for first, last in itertools.pairwise(edges):
        times.append(elapsed[first:last].mean())
        from_ = errors.origins[origin[first:last]]
        stretches = _count_stretches(from_, int(np.median(step[first:last])) + 1)
        widths.append([_find_quantile(column, stretches) for column in size[first:last].T])
    rising = np.maximum.accumulate(np.nan_to_num(np.array(widths)), axis=0)
    return Band(np.array(times), rising * scale, log)


def _take_logarithms(values: np.ndarray, log: Bool[np.ndarray, " states"]) -> np.ndarray:
    """The logarithms of the states that are marked."""
    positive = np.maximum(np.where(log, values, 1.0), np.finfo(float).tiny)
    return np.where(log, np.log(positive), values)


def _count_stretches(origins: Int[np.ndarray, "errors 2"], steps: int) -> int:
    """The number of predictions over so many steps that count as different ones. Those from
    neighbouring origins have most of their disturbances in common, and count as one."""
    number, apart = 0, max(1, round(OVERLAP * steps))
    for trajectory in np.unique(origins[:, 0]):
        samples = np.unique(origins[origins[:, 0] == trajectory, 1])
        number += min(1 + int(samples[-1] - samples[0]) // apart, len(samples))
    return number


def _find_optimism(
    errors: Errors, size: Float[np.ndarray, "origins steps states"]
) -> Float[np.ndarray, " states"]:
    """How much larger held-out errors are than the others, over times that both have; at least
    1, and at most 5."""
    held_out = errors.held_out & ~np.isnan(size).all(axis=2)
    learned = ~errors.held_out & ~np.isnan(size).all(axis=2)
    if not held_out.any() or not learned.any():
        return np.ones(size.shape[2])
    both = errors.elapsed <= min(errors.elapsed[held_out].max(), errors.elapsed[learned].max())
    mean = lambda rows: np.sqrt(np.nanmean(size[rows] ** 2, axis=0))
    ratio = mean(held_out & both) / np.maximum(mean(learned & both), 1e-9)
    return np.clip(np.nan_to_num(ratio, nan=1.0), 1.0, 5.0)


def _divide(elapsed: Float[np.ndarray, " errors"]) -> list[int]:
    """The edges of runs of increasing times, each about a third longer than the last one, and with
    enough errors in each."""
    edges = [0]
    while edges[-1] < len(elapsed):
        until = 1.3 * elapsed[edges[-1]]
        edge = max(int(np.searchsorted(elapsed, until, side="right")), edges[-1] + LEAST_ERRORS)
        edges.append(edge if len(elapsed) - edge >= LEAST_ERRORS else len(elapsed))
    return edges


def _find_quantile(errors: Float[np.ndarray, " errors"], stretches: int) -> float:
    """The quantile of split conformal prediction, which is above that of the sample, and more so
    with few `stretches`."""
    known = np.sort(errors[~np.isnan(errors)])
    if not known.size:
        return np.nan
    number = min(stretches, known.size)
    share = min((number + 1) * COVERED / number, 1.0)
    return float(known[int(np.ceil(known.size * share - 1e-9)) - 1])
