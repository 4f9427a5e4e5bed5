"""The series that a model is fitted to, on a clock that single precision resolves."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._solve.delays import Delay, Hold, Learn
from ._checks import check_precision, check_sizes
from ._lookback import read_period
from ._series import Trajectory, compute_scale, median_gap


class Dataset(NamedTuple):
    """Trajectories with their scales.

    - `series`: the trajectories as given.
    - `shifted`: the same, with times counted from `origin`.
    - `centre`, `scale`: mean and standard deviation of each state.
    - `slope`: root mean square of the slopes of each state.
    """

    series: list[Trajectory]
    shifted: list[Trajectory]
    origin: float
    centre: Float[np.ndarray, " states"]
    scale: Float[np.ndarray, " states"]
    slope: Float[np.ndarray, " states"]

    @property
    def states(self) -> int:
        return self.series[0].ys.shape[1]

    @property
    def inputs(self) -> int:
        return self.series[0].us.shape[1]

    @property
    def gap(self) -> float:
        return median_gap(self.shifted)


def prepare_dataset(
    series: list[Trajectory], delays: Sequence[Delay], field: str | Callable, degree: int
) -> Dataset:
    """Shifts the clock, checks the precision, and measures the scales."""
    origin = _choose_origin(series, delays, field)
    check_precision(series, origin)
    check_sizes(series, degree if field == "library" else 1)
    states = np.concatenate([t.filled for t in series])
    slopes = [np.diff(t.filled, axis=0) / np.diff(t.ts)[:, None] for t in series]
    scale = compute_scale(states)
    return Dataset(
        series,
        [t._replace(ts=t.ts - origin) for t in series],
        origin,
        states.mean(axis=0),
        scale,
        np.sqrt(np.mean(np.concatenate(slopes) ** 2, axis=0)) + 1e-12 * scale,
    )


def _choose_origin(
    series: list[Trajectory], delays: Sequence[Delay], field: str | Callable
) -> float:
    """A new zero of time that keeps knots at multiples of the period. It stays 0 for a user's own
    field, which may depend on time, and for holds of several or unknown periods."""
    holds = [d for d in delays if isinstance(d, Hold)]
    first = float(min(t.ts[0] for t in series))
    if callable(field) or any(d.tau is None or isinstance(d.tau, Learn) for d in holds):
        return 0.0
    periods = {read_period(d) for d in holds}
    if len(periods) > 1:
        return 0.0
    if not periods:
        return first
    (tau,) = periods
    return float(np.floor(first / tau + 1e-9) * tau)
