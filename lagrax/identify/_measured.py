"""The series that a model is fitted to: on a clock that single precision can follow, with their
scales."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._solve.delays import Delay, Hold, Learn
from ._checks import check_precision, check_sizes
from ._series import Trajectory, gap_of


class Measured(NamedTuple):
    """`series` as they were given, and `shifted` with times counted from `origin`. Of each state
    the mean and the standard deviation, and the root mean square of its slopes."""

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
        return gap_of(self.shifted)


def measured(
    series: list[Trajectory], delays: Sequence[Delay], field: str | Callable, degree: int
) -> Measured:
    origin = _origin(series, delays, field)
    check_precision(series, origin)
    check_sizes(series, degree if field == "library" else 1)
    states = np.concatenate([t.filled for t in series])
    slopes = [np.diff(t.filled, axis=0) / np.diff(t.ts)[:, None] for t in series]
    scale = spread(states)
    return Measured(
        series,
        [t._replace(ts=t.ts - origin) for t in series],
        origin,
        states.mean(axis=0),
        scale,
        np.sqrt(np.mean(np.concatenate(slopes) ** 2, axis=0)) + 1e-12 * scale,
    )


def _origin(series: list[Trajectory], delays: Sequence[Delay], field: str | Callable) -> float:
    """One that leaves knots where they are. A field of one's own may look at the clock."""
    taus = [d.tau for d in delays if isinstance(d, Hold)]
    first = float(min(t.ts[0] for t in series))
    if callable(field) or any(tau is None or isinstance(tau, Learn) for tau in taus):
        return 0.0
    numbers = {float(tau) for tau in taus}  # pyright: ignore[reportArgumentType]
    if len(numbers) > 1:
        return 0.0
    return float(np.floor(first / min(numbers) + 1e-9) * min(numbers)) if numbers else first


def spread(values: Float[np.ndarray, "samples columns"]) -> Float[np.ndarray, " columns"]:
    found = values.std(axis=0)
    return np.where(found > 0, found, 1.0)
