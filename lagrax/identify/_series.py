"""Measured time series: looked at once, then cut into windows and interpolated."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._solve.arguments import real_array

Times = Float[np.ndarray, " times"]
States = Float[np.ndarray, "times states"]


class Trajectory(NamedTuple):
    """One measured series, in float64. `ys` has NaN where a value is missing, `filled` a straight
    line between its neighbours instead; `us` are the inputs, held from each time to the next."""

    ts: Times
    ys: States
    us: Float[np.ndarray, "times inputs"]
    filled: States


def is_several(values: Any) -> bool:
    """Whether these are trajectories in a list, and not the rows of one."""
    return isinstance(values, (list, tuple)) and len(values) > 0 and np.ndim(values[0]) > 0


def as_trajectories(ts: Any, ys: Any, inputs: Any = None) -> list[Trajectory]:
    """One trajectory or a list of them, as users give them; a single `ts` serves all."""
    several = is_several(ys)
    all_ys = list(ys) if several else [ys]
    all_ts = list(ts) if several and is_several(ts) else [ts] * len(all_ys)
    all_us = [None] * len(all_ys) if inputs is None else list(inputs) if several else [inputs]
    for name, values in (("ts", all_ts), ("inputs", all_us)):
        if len(values) != len(all_ys):
            raise ValueError(
                f"Got {len(all_ys)} trajectories in ys and {len(values)} in {name}; expected as "
                "many."
            )
    rows = zip(range(len(all_ys)), all_ts, all_ys, all_us, strict=True)
    trajectories = [_trajectory(*row, several=several) for row in rows]
    widths = {(t.ys.shape[1], t.us.shape[1]) for t in trajectories}
    if len(widths) > 1:
        raise ValueError(
            f"The trajectories have different numbers of (states, inputs): {sorted(widths)}; "
            "expected the same in all."
        )
    return trajectories


def _trajectory(number: int, ts: Any, ys: Any, us: Any, *, several: bool) -> Trajectory:
    where = f" of trajectory {number}" if several else ""
    ts, ys = _numbers(ts, f"ts{where}"), _columns(ys, f"ys{where}")
    us = np.zeros((len(ys), 0)) if us is None else _columns(us, f"inputs{where}")
    if ts.ndim != 1 or len(ts) != len(ys) or len(us) != len(ys):
        raise ValueError(
            f"Got ts of shape {ts.shape}, ys of shape {ys.shape} and inputs of shape {us.shape}"
            f"{where}; expected one time, one state and one input a row: (n,), (n, states), (n, "
            "inputs)."
        )
    if len(ts) < 3:
        raise ValueError(f"Got {len(ts)} samples{where}; expected 3 at least.")
    if not np.all(np.isfinite(ts)) or not np.all(np.diff(ts) > 0):
        bad = int(np.argmin(np.diff(ts) > 0)) if np.all(np.isfinite(ts)) else -1
        what = f"{ts[bad]:g} comes before {ts[bad + 1]:g}" if bad >= 0 else "some are not finite"
        raise ValueError(f"The times ts{where} do not increase: {what}. Sort them, drop repeats.")
    if np.any(np.isinf(ys)) or not np.all(np.isfinite(us)):
        raise ValueError(
            f"ys{where} holds an infinite value, or inputs one that is not finite. A missing state "
            "is NaN; inputs must all be known."
        )
    missing = np.isnan(ys).all(axis=0)
    if missing.any():
        raise ValueError(f"Column {int(np.argmax(missing))} of ys{where} has no values at all.")
    _check_squares(ys, f"ys{where}")
    _check_squares(us, f"inputs{where}")
    return Trajectory(ts, ys, us, filled(ts, ys))


def _check_squares(values: np.ndarray, name: str) -> None:
    """Errors are squared, and have to stay numbers."""
    for i, size in enumerate(np.nanmax(np.abs(values), axis=0)):
        if size > 0 and abs(power := np.log10(size)) > 150:
            raise ValueError(
                f"Column {i} of {name} goes up to {size:g}, which cannot be squared. Multiply it "
                f"by 1e{-round(power):d}."
            )


def _numbers(values: Any, name: str) -> np.ndarray:
    if getattr(values, "dtype", None) is not None and np.asarray(values).dtype.kind in "mM":
        raise TypeError(
            f"{name} holds dates; expected numbers. Give the time since the first, in the unit "
            "that delays have: (dates - dates[0]) / np.timedelta64(1, 'D') for days."
        )
    if (numbers := real_array(values)) is None:
        raise TypeError(
            f"{name} is {type(values).__name__} and not numbers of one shape; expected an array of "
            "real ones, or a list of arrays for several trajectories."
        )
    return numbers


def _columns(values: Any, name: str) -> np.ndarray:
    values = _numbers(values, name)
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(f"{name} has shape {values.shape}; expected (n,) or (n, columns).")
    return values[:, None] if values.ndim == 1 else values


def filled(ts: Times, ys: States) -> States:
    """With straight lines in place of NaN."""
    closed = ys.copy()
    for column in closed.T:
        gap = np.isnan(column)
        column[gap] = np.interp(ts[gap], ts[~gap], column[~gap])
    return closed


# Samples that one piece of an interpolation goes through: with more, noise is taken further where
# it extrapolates to a knot; with fewer, curvature is lost.
POINTS = 3


def gap_of(trajectories: Sequence[Trajectory]) -> float:
    """The median time between samples."""
    return float(np.median(np.concatenate([np.diff(t.ts) for t in trajectories])))


class Window(NamedTuple):
    """Samples `first` to `last` (inclusive) of a trajectory."""

    trajectory: int
    first: int
    last: int


def cut(
    trajectories: Sequence[Trajectory], length: int, reach: float, stride: int | None = None
) -> list[Window]:
    """Windows of `length` gaps, `stride` apart (end to end if None). A window that looks further
    back than its trajectory, by `reach`, is left out where that leaves enough of them."""
    windows = []
    for number, trajectory in enumerate(trajectories):
        gaps = len(trajectory.ts) - 1
        size = min(length, gaps)
        starts = range(0, gaps - size + 1, stride or size)
        windows += [Window(number, s, s + size) for s in starts]
    known = [
        w
        for w in windows
        if trajectories[w.trajectory].ts[w.first] - reach >= trajectories[w.trajectory].ts[0]
    ]
    return known if 2 * len(known) >= len(windows) else windows


def interpolated(
    trajectory: Trajectory, times: Times, kinks: Float[np.ndarray, " kinks"]
) -> Float[np.ndarray, "times states"]:
    """The states at `times`: parabolas through three samples on the same side of every kink; beyond
    the ends constant. Times at which nothing was measured are no samples: what fills them knows no
    kinks."""
    known = ~np.isnan(trajectory.ys).all(axis=1)
    ts, ys = trajectory.ts[known], trajectory.filled[known]
    times = np.clip(times, ts[0], ts[-1])
    gap = np.clip(np.searchsorted(ts, times, side="right") - 1, 0, len(ts) - 2)
    # A sample this close to a kink is at it: a learned period has the digits of float32 only.
    width = max(1e-9 * (ts[-1] - ts[0]), 1e-4 * float(np.diff(ts).min(initial=np.inf)))
    width = width if np.isfinite(width) else 0.0
    edges = np.concatenate([[-np.inf], kinks, [np.inf]])
    side = np.searchsorted(edges, times, side="right")
    low = np.searchsorted(ts, edges[side - 1] - width)
    high = np.searchsorted(ts, edges[np.minimum(side, len(edges) - 1)] + width, side="right") - 1
    points = min(POINTS, len(ts))
    # Too few samples between two kinks: the nearest ones have to do.
    few = high - low < points - 1
    low, high = np.where(few, 0, low), np.where(few, len(ts) - 1, high)
    nearer = times - ts[gap] < ts[gap + 1] - times
    start = np.clip(gap - nearer, low, high - points + 1)
    return _lagrange(ts, ys, start[:, None] + np.arange(points), times)


def _lagrange(ts, ys, places, times):
    nodes = ts[places]
    weights = np.ones_like(nodes)
    for i in range(nodes.shape[1]):
        for j in range(nodes.shape[1]):
            if i != j:
                weights[:, i] *= (times - nodes[:, j]) / (nodes[:, i] - nodes[:, j])
    return np.einsum("tk,tkd->td", weights, ys[places])
