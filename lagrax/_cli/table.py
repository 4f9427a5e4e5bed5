"""Reads CSV, Excel and Parquet files as arrays, and writes arrays as a CSV file."""

import csv
import dataclasses
import datetime
import difflib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ..training._files import write_atomically
from .table_cells import (
    LEAST_ROWS,
    USE_POINTS,
    TableError as TableError,
    is_formatted,
    is_missing,
    list_names,
    parse_numbers,
    strip_percent,
)
from .table_sheet import Sheet, drop_index, find_time, join_hours, name_times
from .table_times import Times, bracketed_unit, count_rows, read_times
from .units import SECONDS, Calendar, Duration, format_dates


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Measured values over time; NaN if one is missing.

    - `ts`: the times as numbers. Dates are counted in `unit` from the first of them by `calendar`.
    - `unit`: None for times that are numbers without a unit.
    - `left_out`: the columns that were not asked for and hold no numbers.
    - `offsets`: the times from which dates have another time zone, and that zone.
    - `group`: what tells this series from the others of its file.
    - `seasons`: the length of each season among the inputs, and its number of cosines and sines, a
      half for a sine alone.
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
    offsets: tuple[tuple[float, datetime.tzinfo], ...] = ()
    group: str = ""
    seasons: tuple[tuple[float, float], ...] = ()

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
        named = self.unit is None or bracketed_unit(self.time_name) is not None
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
    def season_inputs(self) -> int:
        """The number of inputs, the last ones, that are cosines and sines of seasons."""
        return sum(int(2 * pairs) for _, pairs in self.seasons)

    @property
    def is_regular(self) -> bool:
        """Whether few samples are further apart than usual."""
        return len(self.gaps) <= 0.05 * (len(self.ts) - 1)

    @property
    def sampling(self) -> str:
        """The distance of the samples, in a sentence."""
        apart, gaps = np.diff(self.ts), self.gaps
        number = f"{len(self.ts):,} samples"
        if not self.is_regular:
            low, high = f"{apart.min():.3g}", self.with_unit(float(f"{apart.max():.3g}"))
            return f"{number} at irregular times, {low} to {high} apart."
        sentence = f"{number}, {self.in_words(self.gap, 6)} apart"
        if not gaps:
            return f"{sentence}, without gaps."
        longest = max(gaps, key=lambda i: apart[i])
        length = self.with_unit(float(f"{apart[longest]:.4g}"))
        after = self.format_time(self.ts[longest])
        count = "one gap" if len(gaps) == 1 else f"{len(gaps)} gaps"
        which = "" if len(gaps) == 1 else ", the longest"
        return f"{sentence}, with {count}{which} of {length} after {after}."

    def in_words(self, time: float, digits: int = 4) -> str:
        """A length of time in words, in another unit if it is a fraction of this one, or hundreds
        of it."""
        unit = self.unit
        if unit in SECONDS and (time < 1 or time >= 200):
            seconds = time * SECONDS[unit]
            smaller = [u for u in SECONDS if SECONDS[u] < 1.000001 * seconds and u != "weeks"]
            unit = smaller[-1] if smaller else "seconds"
            time = seconds / SECONDS[unit]
        return dataclasses.replace(self, unit=unit).with_unit(float(f"{time:.{digits}g}"))

    def format_times(self, ts: Float64[np.ndarray, " m"]) -> np.ndarray:
        """Times as the file has them, as numbers or ISO dates."""
        return ts if self.calendar is None else np.array(format_dates(self._dates(ts)))

    def format_time(self, t: float) -> str:
        """A time in a sentence."""
        if self.calendar is None:
            return f"{t:.9g}"
        return format_dates(self._dates(np.array([t])), sep=" ")[0]

    def _dates(self, ts: Float64[np.ndarray, " m"]) -> list[datetime.datetime]:
        """Dates in the time zone that the file has then."""
        assert self.calendar is not None
        dates = self.calendar.dates(ts)
        for since, zone in self.offsets:
            dates = [
                d.astimezone(zone) if t >= since - 1e-9 else d
                for t, d in zip(ts, dates, strict=True)
            ]
        return dates

    def with_unit(self, time: float) -> str:
        """A length of time in words."""
        unit = "" if self.unit is None else f" {self.unit}"
        return f"{time:g}{unit.removesuffix('s') if time == 1 else unit}"


class Roles(NamedTuple):
    """What the columns of a table are, as the user says.

    - `time`: the column of times, the first one by default: increasing numbers, or dates, ISO's,
      31.01.2024 or 01/31/2024.
    - `columns`: the columns to learn. By default all others that hold numbers.
    - `inputs`: columns that drive the system, known at all times.
    - `unit`: the unit in which dates are counted, chosen by their span and distance by default; or
      the unit of times that are numbers, by default the one in brackets behind the column's name.
    - `by`: a column that tells several series apart.
    - `exclude`: columns to leave aside.
    - `dt`: the time between two rows, if no column holds times.
    - `date_format`: the form of dates, as `strptime` has it.
    """

    time: str | None = None
    columns: Sequence[str] | None = None
    inputs: Sequence[str] = ()
    unit: str | None = None
    by: str | None = None
    exclude: Sequence[str] = ()
    dt: Duration | None = None
    date_format: str | None = None


def read_table(
    path: Path,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    unit: str | None = None,
    **others: Any,
) -> Measurements:
    """Reads the one series of measurements in a file; see `Roles` for the arguments."""
    (table,) = read_tables(path, Roles(time, columns, inputs, unit, **others))
    return table


def read_tables(path: Path, roles: Roles, *, to_learn: bool = True) -> list[Measurements]:
    """Reads the measurements in a file, one series for each value of the column `by`.

    Unless there is an equation `to_learn`, columns may be constant, and a few rows are enough.

    Raises a `TableError` if a cell is invalid. Empty cells, NA, NaN and null are missing values. A
    CSV file has a header; commas, semicolons or tabs between its cells; and decimals with points,
    or all of them with commas if no cells are separated by these. Lines before the header that
    begin with # are comments. Rows are counted as an editor does; the header is usually row 1.
    """
    sheet, roles = _prepare_sheet(Sheet.read(path), roles)
    time, names = _assign_columns(sheet, roles)
    if len(sheet.rows) < (LEAST_ROWS if to_learn else 3):
        raise TableError(
            f"{path} has too few rows of values: {len(sheet.rows)}; expected at least "
            f"{LEAST_ROWS if to_learn else 3}: measure for longer, or more often."
        )
    groups = _split_groups(sheet, roles.by)
    left_out = []
    if roles.columns is None:
        left_out = [name for name in names if _is_text(sheet.column(name))]
        names = [name for name in names if name not in left_out]
        if roles.by is not None:
            left_out += [name for name in names if _is_constant(sheet, name, groups)]
            names = [name for name in names if name not in left_out]
    if not names:
        raise TableError(
            f"{path} has no column of numbers besides {list_names([time, *roles.inputs])}; "
            f"expected one at least: its columns are {list_names(sheet.names)}."
        )
    times = {group: _read_times(sheet.take(rows), time, roles) for group, rows in groups.items()}
    read, read_input = _read_values, _read_input
    if not to_learn:
        read, read_input = _parse_values, _read_known
    ys = np.stack([read(sheet, name) for name in names], axis=1)
    inputs = [read_input(sheet, name) for name in roles.inputs]
    us = np.reshape(inputs, (len(inputs), len(ys))).T
    return [
        Measurements(
            time_name="time" if roles.dt else time,
            ts=times[group].ts,
            names=tuple(names),
            ys=ys[rows],
            input_names=tuple(roles.inputs),
            inputs=us[rows],
            unit=times[group].unit,
            calendar=times[group].calendar,
            left_out=tuple(left_out),
            offsets=times[group].offsets,
            group=group,
        )
        for group, rows in groups.items()
    ]


def _read_times(sheet: Sheet, time: str, roles: Roles) -> Times:
    if roles.dt is not None:
        return count_rows(sheet, roles.dt, roles.unit)
    return read_times(sheet, time, roles.unit, roles.date_format)


def read_inputs(
    path: Path, names: Sequence[str], like: Measurements, roles: Roles
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, "n k"]]:
    """Reads the times after the end of the series `like` in a file, counted as there, and the
    inputs from each of them to the next."""
    sheet, roles = _prepare_sheet(Sheet.read(path), roles._replace(inputs=names, by=None))
    if not sheet.rows:
        raise TableError(f"{path} has no rows; expected one for each time to come: add some.")
    time, _ = _assign_columns(sheet, roles._replace(columns=None, exclude=()))
    times = _read_times(sheet, time, roles)
    if (times.calendar is None) != (like.calendar is None):
        kind = "numbers" if times.calendar is None else "dates"
        raise TableError(
            f"{path}, column {time!r}: the times are {kind}, unlike those of the series; expected "
            "the same kind in both: write them alike."
        )
    ts = times.ts
    if times.calendar is not None and like.calendar is not None:
        ts = like.calendar.count(times.calendar.dates(times.ts))
    elif roles.dt is not None:
        ts = like.ts[-1] + ts[1:2] + ts if len(ts) > 1 else like.ts[-1:] + like.gap
    if ts[0] <= like.ts[-1]:
        raise TableError(
            f"{path}: its first time, {like.format_time(float(ts[0]))}, is not after the end of "
            f"the series, {like.format_time(float(like.ts[-1]))}; expected later times: remove the "
            "rows before."
        )
    us = np.stack([_read_known(sheet, name) for name in names], axis=1)
    return ts, us


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


def _prepare_sheet(sheet: Sheet, roles: Roles) -> tuple[Sheet, Roles]:
    """Drops what numbers the rows, and joins dates and hours that stand in two columns."""
    named = [*(roles.columns or ()), *roles.inputs, *([roles.by] if roles.by else [])]
    for name in roles.exclude:
        if name not in sheet.names:
            raise _unknown_column(sheet, name)
    sheet = drop_index(sheet.without(*roles.exclude), [*named, *filter(None, [roles.time])])
    if roles.dt is not None:
        return sheet, roles
    sheet = name_times(sheet)
    other = [roles.by] if roles.by else []
    time = find_time(sheet, other) if roles.time is None else roles.time
    if time in sheet.names and roles.date_format is None and roles.by is None:
        sheet, time = join_hours(sheet, time, named)
    return sheet, roles._replace(time=time)


def _split_groups(sheet: Sheet, by: str | None) -> dict[str, list[int]]:
    """The rows of each series, in the order of the file."""
    if by is None:
        return {"": list(range(len(sheet.rows)))}
    groups: dict[str, list[int]] = {}
    for index, cell in enumerate(sheet.column(by)):
        groups.setdefault(cell, []).append(index)
    short = [name for name, rows in groups.items() if len(rows) < 3]
    if short:
        raise TableError(
            f"{sheet.path}, column {by!r}: {short[0]!r} has {len(groups[short[0]])} rows; expected "
            "3 at least of each series: leave these rows out."
        )
    return groups


def _is_constant(sheet: Sheet, name: str, groups: dict[str, list[int]]) -> bool:
    """Whether a column does not change within any series."""
    cells = sheet.column(name)
    return all(len({cells[i] for i in rows}) == 1 for rows in groups.values())


def _assign_columns(sheet: Sheet, roles: Roles) -> tuple[str, list[str]]:
    """The names of the columns of times and of values."""
    time = roles.time or ""
    if not time and roles.dt is None:
        raise TableError(
            f"{sheet.path}: its first column has no name; expected that of the times: name it in "
            "the header, or say which column holds the times."
        )
    columns = roles.columns
    named = [*([time] if time else []), *(columns or []), *roles.inputs]
    named += [roles.by] if roles.by else []
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


def _unknown_column(sheet: Sheet, name: str) -> TableError:
    there = {other.casefold(): other for other in sheet.names}
    near = difflib.get_close_matches(name.casefold(), there, n=1)
    meant = f"did you mean {there[near[0]]!r}? " if near else ""
    return TableError(
        f"{sheet.path} has no column {name!r}: {meant}its columns are {list_names(sheet.names)}."
    )


def _is_text(cells: Sequence[str]) -> bool:
    """Whether a column holds words or dates, and no number."""
    if not np.all(np.isnan(parse_numbers(strip_percent(cells)))):
        return False
    present = [cell for cell in cells if not is_missing(cell)]
    return bool(present) and not any(map(is_formatted, present))


def _read_values(sheet: Sheet, name: str, is_input: bool = False) -> Float64[np.ndarray, " n"]:
    """A column of numbers that are not all the same; NaN if a value is missing."""
    values = _parse_values(sheet, name)
    known = values[~np.isnan(values)]
    if known.size and np.any(known != known[0]):
        return values
    what = f"is {known[0]:g} wherever it is known" if known.size else "is missing in all rows"
    remedy = f"drop --input {name}" if is_input else f"leave it out by --exclude {name}"
    raise TableError(
        f"{sheet.path}, column {name!r}: the value {what}; expected one that changes: {remedy}."
    )


def _parse_values(sheet: Sheet, name: str) -> Float64[np.ndarray, " n"]:
    cells = strip_percent(sheet.column(name))
    values = parse_numbers(cells)
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        if not is_missing(cells[index]):
            raise _invalid_value(sheet, index, name, cells[index])
    return values


def _invalid_value(sheet: Sheet, index: int, name: str, cell: str) -> TableError:
    if np.isinf(parse_numbers([cell])[0]):
        return sheet.error(
            index, name, f"{cell!r} is infinite; expected a finite number: leave the cell empty."
        )
    other = "correct it, empty it, or choose columns without this one"
    advice = USE_POINTS if is_formatted(cell) else other
    return sheet.error(index, name, f"{cell!r:.60} is no number; expected one: {advice}.")


def _read_input(sheet: Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of an input, which the equation needs at all times."""
    return _check_known(sheet, name, _read_values(sheet, name, is_input=True))


def _read_known(sheet: Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of numbers at all times, which may all be the same."""
    return _check_known(sheet, name, _parse_values(sheet, name))


def _check_known(sheet: Sheet, name: str, values: np.ndarray) -> Float64[np.ndarray, " n"]:
    if np.any(np.isnan(values)):
        raise sheet.error(
            int(np.argmax(np.isnan(values))),
            name,
            "the value is missing; expected a number, because an input is needed at all times: "
            "fill it in, for example with the one before.",
        )
    return values
