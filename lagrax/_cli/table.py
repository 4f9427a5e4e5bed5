"""Tables of measurements: a CSV, Excel or Parquet file as arrays, and arrays as a CSV file."""

import csv
import dataclasses
import datetime
import difflib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..training._files import write_atomically
from ..training._machine import load
from .table_cells import (
    LEAST_ROWS,
    TableError as TableError,
    is_formatted,
    is_missing,
    list_names,
    parse_compact_dates,
    parse_date,
)
from .table_file import read_rows
from .units import SECONDS, Calendar, find_unit, format_dates

_USE_POINTS = "write decimals with a point, and nothing between thousands"


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Measured values over time; NaN if one is missing.

    - `ts`: the times as numbers. Dates are counted in `unit` from the first of them by `calendar`.
    - `unit`: None for times that are numbers without a unit.
    - `left_out`: the columns that were not asked for and hold no numbers.
    """

    time_name: str
    ts: Float64[np.ndarray, " n"]
    names: tuple[str, ...]
    ys: Float64[np.ndarray, "n d"]
    input_names: tuple[str, ...]
    inputs: Float64[np.ndarray, "n k"]
    unit: str | None = None
    calendar: Calendar | None = None
    left_out: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """The median time between two samples."""
        return float(np.median(np.diff(self.ts)))

    @property
    def span(self) -> float:
        return float(self.ts[-1] - self.ts[0])

    @property
    def time_label(self) -> str:
        """The title of a time axis, with the unit and the start."""
        if self.calendar is not None:
            return str(self.calendar)
        named = self.unit is None or _bracketed_unit(self.time_name) is not None
        return self.time_name if named else f"{self.time_name} [{self.unit}]"

    @property
    def missing(self) -> dict[str, int]:
        """The number of missing values of each column that has some."""
        counts = np.isnan(self.ys).sum(axis=0).tolist()
        return {name: count for name, count in zip(self.names, counts, strict=True) if count}

    @property
    def gaps(self) -> list[int]:
        """The samples that are followed by a gap."""
        return np.flatnonzero(np.diff(self.ts) > 1.5 * self.gap).tolist()

    @property
    def sampling(self) -> str:
        """The distance of the samples, in a sentence."""
        apart, gaps = np.diff(self.ts), self.gaps
        number = f"{len(self.ts):,} samples"
        if len(gaps) > 0.05 * len(apart):
            low, high = f"{apart.min():.3g}", self.with_unit(float(f"{apart.max():.3g}"))
            return f"{number} at irregular times, {low} to {high} apart."
        sentence = f"{number}, {self._gap_in_words()} apart"
        if not gaps:
            return f"{sentence}, without gaps."
        longest = max(gaps, key=lambda i: apart[i])
        length = self.with_unit(float(f"{apart[longest]:.4g}"))
        after = self.format_time(self.ts[longest])
        count = "one gap" if len(gaps) == 1 else f"{len(gaps)} gaps"
        which = "" if len(gaps) == 1 else ", the longest"
        return f"{sentence}, with {count}{which} of {length} after {after}."

    def _gap_in_words(self) -> str:
        """The usual distance of the samples: in a smaller unit if it is a fraction of the unit."""
        gap, unit = self.gap, self.unit
        if unit in SECONDS and gap < 1:
            seconds = gap * SECONDS[unit]
            smaller = [u for u in SECONDS if SECONDS[u] < 1.000001 * seconds]
            unit = smaller[-1] if smaller else "seconds"
            gap = seconds / SECONDS[unit]
        return dataclasses.replace(self, unit=unit).with_unit(float(f"{gap:.6g}"))

    def format_times(self, ts: Float64[np.ndarray, " m"]) -> np.ndarray:
        """Times as the file has them: numbers or ISO dates."""
        return ts if self.calendar is None else np.array(format_dates(self.calendar.dates(ts)))

    def format_time(self, t: float) -> str:
        """A time in a sentence."""
        return (
            f"{t:.9g}"
            if self.calendar is None
            else format_dates(self.calendar.dates(np.array([t])), sep=" ")[0]
        )

    def with_unit(self, time: float) -> str:
        """A length of time in words."""
        unit = "" if self.unit is None else f" {self.unit}"
        return f"{time:g}{unit.removesuffix('s') if time == 1 else unit}"


def read_table(
    path: Path,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    unit: str | None = None,
) -> Measurements:
    """Reads the measurements in a file and checks them; raises a `TableError` if one is invalid.

    - `time`: the column of times, the first one by default: increasing numbers, or dates, ISO's or
      31.01.2024.
    - `columns`: the columns to learn. By default all others that hold numbers.
    - `inputs`: columns that drive the system, known at all times.
    - `unit`: the unit in which dates are counted, chosen by their span and distance by default; or
      the unit of times that are numbers, by default the one in brackets behind the column's name.

    Empty cells, NA, NaN and null are missing values. A CSV file has a header; commas, semicolons or
    tabs between its cells; and decimals with points, or all of them with commas if no cells are
    separated by these. Lines before the header that begin with # are comments. Rows are counted as
    an editor does; the header is usually row 1.
    """
    sheet = _Sheet.read(path)
    time, names = _assign_columns(sheet, time, columns, inputs)
    if len(sheet.rows) < LEAST_ROWS:
        raise TableError(
            f"{path} has too few rows of values: {len(sheet.rows)}; expected at least "
            f"{LEAST_ROWS}: measure for longer, or more often."
        )
    left_out = []
    if columns is None:
        left_out = [name for name in names if _is_text(sheet.column(name))]
        names = [name for name in names if name not in left_out]
    if not names:
        raise TableError(
            f"{path} has no column of numbers besides {list_names([time, *inputs])}; expected one "
            f"at least: its columns are {list_names(sheet.names)}."
        )
    ts, unit, calendar = _read_times(sheet, time, unit)
    return Measurements(
        time_name=time,
        ts=ts,
        names=tuple(names),
        ys=np.stack([_read_values(sheet, name) for name in names], axis=1),
        input_names=tuple(inputs),
        inputs=np.reshape([_read_input(sheet, n) for n in inputs], (len(inputs), len(ts))).T,
        unit=unit,
        calendar=calendar,
        left_out=tuple(left_out),
    )


def write_table(path: Path, names: Sequence[str], columns: Sequence[Any]) -> None:
    """Writes columns of numbers or texts to a CSV file, atomically.

    Numbers have as many digits as it takes to read the same ones back; NaN is an empty cell.
    """
    values = [np.asarray(column) for column in columns]
    shapes = [column.shape for column in values]
    if len(names) != len(values) or len(set(shapes)) > 1 or any(len(s) != 1 for s in shapes):
        raise ValueError(
            f"A table needs columns of one length, and a name for each; got {len(names)} names "
            f"and columns of shapes {shapes}."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    # `str` of a NumPy number has the fewest digits for its own precision, float32 included.
    writer.writerows(["" if x != x else str(x) for x in row] for row in zip(*values, strict=True))
    write_atomically(path, text.getvalue())


# --- columns --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Sheet:
    """The cells below the header, as texts. `rows` has the number of each row in the file."""

    path: Path
    names: list[str]
    rows: list[int]
    cells: list[list[str]]

    @classmethod
    def read(cls, path: Path) -> "_Sheet":
        (_, names), *body = read_rows(path)
        return cls(path, names, [row for row, _ in body], [cells for _, cells in body])

    def column(self, name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in self.cells]

    def error(self, index: int, name: str, sentence: str) -> TableError:
        """An error in the column `name` of the row with this index."""
        return TableError(f"{self.path}, row {self.rows[index]}, column {name!r}: {sentence}")


def _assign_columns(
    sheet: _Sheet, time: str | None, columns: Sequence[str] | None, inputs: Sequence[str]
) -> tuple[str, list[str]]:
    """The names of the columns of times and of values."""
    if time is None:
        time = sheet.names[0]
    if not time:
        raise TableError(
            f"{sheet.path}: its first column has no name; expected that of the times: name it in "
            "the header, or say which column holds the times."
        )
    named = [time, *(columns or []), *inputs]
    for number, name in enumerate(named):
        if not name or name not in sheet.names:
            raise _unknown_column(sheet, name)
        if name in named[:number]:
            raise TableError(
                f"{sheet.path}: the column {name!r} is asked for twice; expected each to be the "
                f"time ({time!r}), a value or an input: name it once."
            )
    if columns is None:
        # A column without a name is an index that a data frame wrote, or a delimiter too many.
        columns = [name for name in sheet.names if name and name not in named]
    return time, list(columns)


def _unknown_column(sheet: _Sheet, name: str) -> TableError:
    there = {other.casefold(): other for other in sheet.names}
    near = difflib.get_close_matches(name.casefold(), there, n=1)
    meant = f"did you mean {there[near[0]]!r}? " if near else ""
    return TableError(
        f"{sheet.path} has no column {name!r}: {meant}its columns are {list_names(sheet.names)}."
    )


def _parse_numbers(cells: Sequence[str]) -> Float64[np.ndarray, " n"]:
    """Numbers, with NaN for all other cells."""
    polars = load("polars")
    return polars.Series(cells, dtype=polars.String).cast(polars.Float64, strict=False).to_numpy()


def _is_text(cells: Sequence[str]) -> bool:
    """Whether a column holds words or dates, and no number."""
    if not np.all(np.isnan(_parse_numbers(cells))):
        return False
    present = [cell for cell in cells if not is_missing(cell)]
    return bool(present) and not any(map(is_formatted, present))


def _read_values(sheet: _Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of numbers that are not all the same; NaN if a value is missing."""
    cells = sheet.column(name)
    values = _parse_numbers(cells)
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        if not is_missing(cells[index]):
            raise _invalid_value(sheet, index, name, cells[index])
    known = values[~np.isnan(values)]
    if known.size and np.any(known != known[0]):
        return values
    what = f"is {known[0]:g} wherever it is known" if known.size else "is missing in all rows"
    raise TableError(
        f"{sheet.path}, column {name!r}: the value {what}; expected one that changes: choose the "
        "columns to use, without this one."
    )


def _invalid_value(sheet: _Sheet, index: int, name: str, cell: str) -> TableError:
    if np.isinf(_parse_numbers([cell])[0]):
        return sheet.error(
            index, name, f"{cell!r} is infinite; expected a finite number: leave the cell empty."
        )
    other = "correct it, empty it, or choose columns without this one"
    advice = _USE_POINTS if is_formatted(cell) else other
    return sheet.error(index, name, f"{cell!r:.60} is no number; expected one: {advice}.")


def _read_input(sheet: _Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of an input, which the equation needs at all times."""
    values = _read_values(sheet, name)
    if np.any(np.isnan(values)):
        raise sheet.error(
            int(np.argmax(np.isnan(values))),
            name,
            "the value is missing; expected a number, because an input is needed at all times: "
            "fill it in, for example with the one before.",
        )
    return values


# --- times ----------------------------------------------------------------------------------------


def _read_times(
    sheet: _Sheet, name: str, unit: str | None
) -> tuple[Float64[np.ndarray, " n"], str | None, Calendar | None]:
    """The times as numbers, their unit, and how dates are counted."""
    cells = sheet.column(name)
    dates = parse_compact_dates(cells)
    if dates is None and parse_date(cells[0]) is not None:
        dates = _read_dates(sheet, name, cells)
    if dates is None:
        calendar, ts = None, _read_instants(sheet, name, cells)
        unit = unit or _bracketed_unit(name)
    else:
        calendar = Calendar.from_dates(dates, "days")
        ts = calendar.count(dates)
    _check_increasing(sheet, name, cells, ts)
    if dates is not None:
        calendar = Calendar.from_dates(dates, unit)
        unit, ts = calendar.unit, calendar.count(dates)
    return ts, unit, calendar


def _bracketed_unit(name: str) -> str | None:
    """The unit of a column such as `t [s]` or `time (min)`."""
    found = re.search(r"[\[(]([^\])]*)[\])]\s*$", name)
    return find_unit(found[1]) if found else None


def _check_increasing(
    sheet: _Sheet, name: str, cells: Sequence[str], ts: Float64[np.ndarray, " n"]
) -> None:
    late = np.flatnonzero(np.diff(ts) <= 0)
    if not late.size:
        return
    index = int(late[0]) + 1
    before = f"{cells[index - 1]!r} in row {sheet.rows[index - 1]}"
    if ts[index] == ts[index - 1]:
        what, advice = f"repeats {before}", "keep one of the rows, or their mean"
    else:
        what = f"comes after {before}"
        advice = (
            "sort the rows by this column, or, where another series begins here, give each its "
            "own table"
        )
    raise sheet.error(
        index, name, f"the time {cells[index]!r} {what}; expected increasing times: {advice}."
    )


def _read_instants(sheet: _Sheet, name: str, cells: Sequence[str]) -> Float64[np.ndarray, " n"]:
    ts = _parse_numbers(cells)
    for index in np.flatnonzero(~np.isfinite(ts)).tolist():
        cell = cells[index]
        got = "the time is missing" if is_missing(cell) else f"{cell!r:.60} is no time"
        other = "correct it, remove the row, or name another column as the time"
        advice = _USE_POINTS if is_formatted(cell) else other
        or_date = "" if index else " or an ISO date (2024-01-31)"
        raise sheet.error(index, name, f"{got}; expected a finite number{or_date}: {advice}.")
    return ts


def _read_dates(sheet: _Sheet, name: str, cells: Sequence[str]) -> list[datetime.datetime]:
    dates: list[datetime.datetime] = []
    for index, cell in enumerate(cells):
        date = parse_date(cell)
        if date is None:
            got = "the date is missing" if is_missing(cell) else f"{cell!r:.60} is no date"
            raise sheet.error(
                index,
                name,
                f"{got}; expected an ISO date (2024-01-31, 2024-01-31T12:30) as in the first row: "
                "correct it, or remove the row.",
            )
        if dates and (date.tzinfo is None) != (dates[0].tzinfo is None):
            has, had = ("no", "one") if date.tzinfo is None else ("a", "none")
            raise sheet.error(
                index,
                name,
                f"{cell!r} has {has} time zone; expected {had}, as in the first row: give all of "
                "them one, or none.",
            )
        dates.append(date)
    return dates
