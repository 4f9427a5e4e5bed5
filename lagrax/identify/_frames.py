"""Data frames and series of any library that narwhals reads: pandas, polars, pyarrow and others.

narwhals is imported only after a value has turned out to be a frame or a series.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..training._machine import load


class Columns(NamedTuple):
    """The names of a table's columns by their role; empty for arrays, which have none."""

    time: str | None = None
    states: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def label(self, table: str, i: int, where: str = "") -> str:
        """How messages name column `i` of `ys` or `inputs`."""
        names = self.states if table == "ys" else self.inputs
        return f"The column {names[i]!r}{where}" if names else f"Column {i} of {table}{where}"


class Table(NamedTuple):
    """One trajectory before its values are checked."""

    ts: Any
    ys: Any
    us: Any
    columns: Columns


def is_frame(values: Any) -> bool:
    # On the type, because a lazy frame computes its columns.
    return hasattr(type(values), "columns")


def is_series(values: Any) -> bool:
    return hasattr(values, "to_numpy") and not is_frame(values)


def split_groups(frame: Any, by: str) -> list[Any]:
    """A frame for each value of the column `by`, in the order of the rows, without this column."""
    if not is_frame(frame):
        raise TypeError(
            f"Got by={by!r} and {type(frame).__name__} as ts; expected a data frame that has this "
            "column, or lists of arrays and no `by`."
        )
    wrapped = _wrap_frame(frame)
    if by not in wrapped.columns:
        raise ValueError(
            f"The data frame has no column {by!r}: its columns are {_list_columns(wrapped)}."
        )
    nw = load("narwhals.stable.v2")
    column = wrapped.get_column(by)
    if column.null_count():
        raise ValueError(
            f"The column {by!r} has missing values; expected the name of a series in each row."
        )
    names = dict.fromkeys(column.to_list())
    parts = [wrapped.filter(nw.col(by) == name).drop(by) for name in names]
    return [part.to_native() for part in parts]


def split_frame(frame: Any, columns: Columns) -> Table:
    """The columns of a frame by their roles. Without names of states, all other columns are
    states."""
    wrapped = _wrap_frame(frame)
    if columns.time is None:
        raise ValueError(
            "A data frame needs `time`, the name of its column of times: its columns are "
            f"{_list_columns(wrapped)}."
        )
    others = (columns.time, *columns.inputs)
    states = columns.states or tuple(name for name in wrapped.columns if name not in others)
    if not states:
        raise ValueError(f"The data frame has no column of states besides {', '.join(others)}.")
    roles = [*others, *states]
    repeated = [name for name in roles if roles.count(name) > 1]
    if repeated:
        raise ValueError(
            f"The column {repeated[0]!r} has two roles; expected one of time, state or input."
        )
    us = _take_columns(wrapped, columns.inputs) if columns.inputs else None
    (ts,) = _take_columns(wrapped, (columns.time,)).T
    return Table(ts, _take_columns(wrapped, states), us, columns._replace(states=states))


def read_values(
    values: Any, name: str, columns: tuple[str, ...] = ()
) -> tuple[Any, tuple[str, ...]]:
    """The array of a frame or series, and the names of its columns if these are strings. Other
    values are returned unchanged.

    `columns` are those to take from a frame, by default all.
    """
    if is_frame(values):
        wrapped = _wrap_frame(values)
        taken = columns or tuple(wrapped.columns)
        names = taken if all(isinstance(name, str) for name in taken) else ()
        return _take_columns(wrapped, taken), names
    if is_series(values):
        nw = load("narwhals.stable.v2")
        wrapped = nw.from_native(values, series_only=True, pass_through=True)
        if isinstance(wrapped, nw.Series):
            named = isinstance(wrapped.name, str) and wrapped.name != ""
            label = f"The column {wrapped.name!r}" if named else name
            return _read_numbers(wrapped, label), (wrapped.name,) if named else ()
    return values, ()


def replace_states(
    frame: Any, kept: Sequence[str], names: Sequence[str], values: np.ndarray
) -> Any:
    """The columns `kept` of a frame, with `values` in those called `names`."""
    nw = load("narwhals.stable.v2")
    wrapped = _wrap_frame(frame).select(*kept)
    columns = [
        nw.new_series(name, column, backend=wrapped.implementation)
        for name, column in zip(names, values.T, strict=True)
    ]
    return wrapped.with_columns(*columns).to_native()


def dates_message(label: str) -> str:
    return (
        f"{label} holds dates; expected numbers. Give the time since the first, in the unit "
        "that delays have: (dates - dates[0]) / np.timedelta64(1, 'D') for days."
    )


def _wrap_frame(frame: Any) -> Any:
    nw = load("narwhals.stable.v2")
    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError:
        raise TypeError(
            f"Got a {type(frame).__name__}; expected arrays, or a data frame in memory (of pandas, "
            "polars or pyarrow, for example). Collect a lazy one first."
        ) from None


def _take_columns(frame: Any, names: Sequence[Any]) -> np.ndarray:
    for name in names:
        if name not in frame.columns:
            index = getattr(frame.to_native(), "index", None)
            in_index = name in getattr(index, "names", ())
            hint = " It is the index: call reset_index() first." if in_index else ""
            raise ValueError(
                f"The data frame has no column {name!r}: its columns are {_list_columns(frame)}."
                f"{hint}"
            )
    columns = [_read_numbers(frame.get_column(name), f"The column {name!r}") for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def _list_columns(frame: Any) -> str:
    return ", ".join(map(str, frame.columns))


def _read_numbers(series: Any, label: str) -> np.ndarray:
    """A narwhals series in float64, with NaN for missing values."""
    nw, dtype = load("narwhals.stable.v2"), series.dtype
    if dtype.is_temporal():
        raise TypeError(dates_message(label))
    if not (dtype.is_numeric() or dtype == nw.Boolean):
        raise TypeError(f"{label} holds {dtype}; expected numbers. Name the columns to use.")
    return series.cast(nw.Float64).to_numpy()
