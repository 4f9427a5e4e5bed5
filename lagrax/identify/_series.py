"""Reads, checks and interpolates measured time series."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._solve.arguments import real_array
from ._frames import Columns, Table, dates_message, is_frame, read_values, split_frame
from ._lookback import Times

States = Float[np.ndarray, "times states"]


class Trajectory(NamedTuple):
    """One measured series, in float64.

    - `ts`: increasing times.
    - `ys`: the states, NaN for a missing value.
    - `us`: the inputs, each held until the next time.
    - `filled`: the states, with straight lines across missing values.
    - `columns`: their names, if they have any.
    """

    ts: Times
    ys: States
    us: Float[np.ndarray, "times inputs"]
    filled: States
    columns: Columns = Columns()

    @classmethod
    def of_arrays(cls, ts: Times, ys: States, us: np.ndarray, columns: Columns) -> "Trajectory":
        return cls(ts, ys, us, fill_gaps(ts, ys), columns)

    @property
    def first_known(self) -> int:
        """The first sample by which every state has been measured."""
        return int(np.argmax(~np.isnan(self.ys), axis=0).max())

    @property
    def last_known(self) -> int:
        """The last sample after which some state is not measured any more."""
        return len(self.ts) - 1 - int(np.argmax(~np.isnan(self.ys[::-1]), axis=0).max())

    def until(self, last: int) -> "Trajectory":
        """The samples up to `last`, inclusive."""
        part = slice(last + 1)
        return self._replace(
            ts=self.ts[part], ys=self.ys[part], us=self.us[part], filled=self.filled[part]
        )


def is_list_of_series(values: Any) -> bool:
    """Whether these are several trajectories rather than the rows of one."""
    return isinstance(values, (list, tuple)) and len(values) > 0 and np.ndim(values[0]) > 0


def read_series(
    ts: Any,
    ys: Any = None,
    inputs: Any = None,
    *,
    time: str | None = None,
    columns: Columns | None = None,
) -> list[Trajectory]:
    """One trajectory or a list of them, from arrays or data frames.

    - `ts`, `ys`, `inputs`: arrays, or data frames and series; a single `ts` serves all
      trajectories. Or `ts` is a data frame (or a list of them) that holds everything, and `ys` and
      `inputs` are the names of its columns.
    - `time`: the name of the frame's column of times.
    - `columns`: names for the roles that `ys`, `inputs` and `time` leave open.
    """
    columns = columns or Columns()
    several = is_list_of_series(take_states(ts, ys))
    if _holds_frames(ts):
        named = Columns(
            time or columns.time,
            _names(ys, "ys") or columns.states,
            _names(inputs, "inputs") or columns.inputs,
        )
        tables = [split_frame(frame, named) for frame in (ts if several else [ts])]
    elif time is not None:
        raise TypeError(
            f"Got time={time!r} and {type(ts).__name__} as ts; expected a data frame that has this "
            "column, or arrays and no `time`."
        )
    else:
        tables = _split_arrays(ts, ys, inputs, several)
    trajectories = [
        _read_trajectory(table, f" of trajectory {i}" if several else "")
        for i, table in enumerate(tables)
    ]
    widths = {(t.ys.shape[1], t.us.shape[1]) for t in trajectories}
    if len(widths) > 1:
        raise ValueError(
            f"The trajectories have different numbers of (states, inputs): {sorted(widths)}; "
            "expected the same in all."
        )
    if len({t.columns for t in trajectories}) > 1:
        raise ValueError(
            "The trajectories have columns of different names, "
            f"{[[*t.columns.states, *t.columns.inputs] for t in trajectories]}; expected the same "
            "in all, in the same order."
        )
    return trajectories


def take_states(ts: Any, ys: Any) -> Any:
    """The argument that holds the states: `ys`, or `ts` if that is a data frame or a list of
    them."""
    return ts if _holds_frames(ts) else ys


def _holds_frames(ts: Any) -> bool:
    return is_frame(ts) or (isinstance(ts, (list, tuple)) and len(ts) > 0 and is_frame(ts[0]))


def _names(values: Any, argument: str) -> tuple[str, ...]:
    """Names of columns, given as one name or a list of names."""
    if values is None:
        return ()
    names = (values,) if isinstance(values, str) else values
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"Got {type(values).__name__} as {argument} of a data frame; expected the names of its "
            "columns."
        )
    return tuple(names)


def _split_arrays(ts: Any, ys: Any, inputs: Any, several: bool) -> list[Table]:
    if ys is None:
        raise TypeError("Got times and no ys; expected the states at these times.")
    all_ys = list(ys) if several else [ys]
    all_ts = list(ts) if several and is_list_of_series(ts) else [ts] * len(all_ys)
    all_us = [None] * len(all_ys) if inputs is None else list(inputs) if several else [inputs]
    for name, values in (("ts", all_ts), ("inputs", all_us)):
        if len(values) != len(all_ys):
            raise ValueError(
                f"Got {len(all_ys)} trajectories in ys and {len(values)} in {name}; expected as "
                "many."
            )
    return [Table(*part, Columns()) for part in zip(all_ts, all_ys, all_us, strict=True)]


def _read_trajectory(table: Table, where: str) -> Trajectory:
    ts, _ = read_values(table.ts, "ts")
    ys, states = read_values(table.ys, "ys")
    us, inputs = read_values(table.us, "inputs")
    columns = table.columns if table.columns.states else Columns(None, states, inputs)
    ts, ys = check_numbers(ts, f"ts{where}"), _check_columns(ys, f"ys{where}")
    us = np.zeros((len(ys), 0)) if us is None else _check_columns(us, f"inputs{where}")
    _check_lengths(ts, ys, us, where)
    _check_increasing(ts, where)
    if np.any(np.isinf(ys)) or not np.all(np.isfinite(us)):
        raise ValueError(
            f"ys{where} holds an infinite value, or inputs one that is not finite. A missing state "
            "is NaN; inputs must all be known."
        )
    missing = np.isnan(ys).all(axis=0)
    if missing.any():
        label = columns.label("ys", int(np.argmax(missing)), where)
        raise ValueError(f"{label} has no values at all.")
    for name, values in (("ys", ys), ("inputs", us)):
        _check_squares(values, name, columns, where)
    return Trajectory.of_arrays(ts, ys, us, columns)


def _check_lengths(ts: np.ndarray, ys: np.ndarray, us: np.ndarray, where: str) -> None:
    if ts.ndim != 1 or len(ts) != len(ys) or len(us) != len(ys):
        raise ValueError(
            f"Got ts of shape {ts.shape}, ys of shape {ys.shape} and inputs of shape {us.shape}"
            f"{where}; expected one time, one state and one input a row: (n,), (n, states), (n, "
            "inputs)."
        )
    if len(ts) < 3:
        raise ValueError(f"Got {len(ts)} samples{where}; expected 3 at least.")


def _check_increasing(ts: np.ndarray, where: str) -> None:
    if not np.all(np.isfinite(ts)):
        reason = "some are not finite"
    elif not np.all(np.diff(ts) > 0):
        bad = int(np.argmin(np.diff(ts) > 0))
        reason = f"{ts[bad]:g} comes before {ts[bad + 1]:g}"
    else:
        return
    raise ValueError(f"The times ts{where} do not increase: {reason}. Sort them, drop repeats.")


def _check_squares(values: np.ndarray, name: str, columns: Columns, where: str) -> None:
    """The loss squares errors, so squares must be representable."""
    for i, size in enumerate(np.nanmax(np.abs(values), axis=0)):
        if size > 0 and abs(power := np.log10(size)) > 150:
            raise ValueError(
                f"{columns.label(name, i, where)} goes up to {size:g}, which cannot be squared. "
                f"Multiply it by 1e{-round(power):d}."
            )


def check_numbers(values: Any, name: str) -> np.ndarray:
    """The values in float64; raises for dates, text, complex numbers and rows of unequal length."""
    if getattr(values, "dtype", None) is not None and np.asarray(values).dtype.kind in "mM":
        raise TypeError(dates_message(name))
    if (numbers := real_array(values)) is None:
        raise TypeError(
            f"{name} is {type(values).__name__} and not numbers of one shape; expected an array of "
            "real numbers, or a list of arrays for several trajectories."
        )
    return numbers


def _check_columns(values: Any, name: str) -> np.ndarray:
    values = check_numbers(values, name)
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(f"{name} has shape {values.shape}; expected (n,) or (n, columns).")
    return values[:, None] if values.ndim == 1 else values


def fill_gaps(ts: Times, ys: States) -> States:
    """Replaces NaN by straight lines between neighbours."""
    closed = ys.copy()
    for column in closed.T:
        gap = np.isnan(column)
        column[gap] = np.interp(ts[gap], ts[~gap], column[~gap])
    return closed


def median_gap(trajectories: Sequence[Trajectory]) -> float:
    """The median time between samples."""
    return float(np.median(np.concatenate([np.diff(t.ts) for t in trajectories])))


# A gap longer than this many times those around it hides how the states move within it.
LONG = 9.0
# Gaps on either side that it is compared with.
AROUND = 4


def find_long_gaps(trajectory: Trajectory) -> Bool[np.ndarray, " gaps"]:
    """Whether some state was not measured for much longer than around, from each sample to the
    next."""
    long = np.zeros(len(trajectory.ts) - 1, bool)
    for known in {column.tobytes(): column for column in (~np.isnan(trajectory.ys)).T}.values():
        places = np.flatnonzero(known)
        apart = np.diff(trajectory.ts[places])
        if len(apart) > 1 and apart.max() > LONG * apart.min():
            for i in np.flatnonzero(apart > LONG * _find_usual(apart)):
                long[places[i] : places[i + 1]] = True
    return long


def _find_usual(apart: Float[np.ndarray, " gaps"]) -> Float[np.ndarray, " gaps"]:
    """The upper quartile of the gaps around each gap, without it."""
    padded = np.pad(apart, AROUND, constant_values=np.nan)
    near = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1)
    return np.nanquantile(np.delete(near, AROUND, axis=1), 0.75, axis=1)


def compute_scale(values: Float[np.ndarray, "samples columns"]) -> Float[np.ndarray, " columns"]:
    """The standard deviation of each column, 1 for a constant one."""
    deviation = values.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0)


# Samples that each interpolating polynomial goes through. More extrapolate noise further at knots;
# fewer lose curvature.
POINTS = 3


def interpolate(
    trajectory: Trajectory, times: Times, kinks: Float[np.ndarray, " kinks"]
) -> Float[np.ndarray, "times states"]:
    """Interpolates the states at `times` by parabolas through three samples on the same side of
    every kink. Values beyond the ends are constant.

    Samples without any measured state are left out, because the straight lines that fill them cross
    kinks.
    """
    known = ~np.isnan(trajectory.ys).all(axis=1)
    ts, ys = trajectory.ts[known], trajectory.filled[known]
    times = np.clip(times, ts[0], ts[-1])
    gap = np.clip(np.searchsorted(ts, times, side="right") - 1, 0, len(ts) - 2)
    # A learned period has float32 precision, so a sample this close to a kink counts as on it.
    width = max(1e-9 * (ts[-1] - ts[0]), 1e-4 * float(np.diff(ts).min(initial=np.inf)))
    width = width if np.isfinite(width) else 0.0
    edges = np.concatenate([[-np.inf], kinks, [np.inf]])
    side = np.searchsorted(edges, times, side="right")
    low = np.searchsorted(ts, edges[side - 1] - width)
    high = np.searchsorted(ts, edges[np.minimum(side, len(edges) - 1)] + width, side="right") - 1
    points = min(POINTS, len(ts))
    # With too few samples between two kinks, the nearest samples have to do.
    few = high - low < points - 1
    low, high = np.where(few, 0, low), np.where(few, len(ts) - 1, high)
    nearer = times - ts[gap] < ts[gap + 1] - times
    start = np.clip(gap - nearer, low, high - points + 1)
    return _evaluate_lagrange(ts, ys, start[:, None] + np.arange(points), times)


def _evaluate_lagrange(ts, ys, places, times):
    nodes = ts[places]
    weights = np.ones_like(nodes)
    for i in range(nodes.shape[1]):
        for j in range(nodes.shape[1]):
            if i != j:
                weights[:, i] *= (times - nodes[:, j]) / (nodes[:, i] - nodes[:, j])
    return np.einsum("tk,tkd->td", weights, ys[places])
