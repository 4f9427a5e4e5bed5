"""The times of a table, as numbers."""

import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from .table_cells import (
    USE_POINTS,
    find_order,
    has_slashes,
    is_formatted,
    is_missing,
    parse_compact_dates,
    parse_date,
    parse_numbers,
)
from .table_sheet import Sheet
from .units import Calendar, Duration, find_unit


class Times(NamedTuple):
    """The times of a table as numbers.

    - `calendar`: how dates are counted; None for numbers.
    - `offsets`: the time and the time zone of each row after which the zone changes, as at the
      start of summer time.
    """

    ts: Float64[np.ndarray, " n"]
    unit: str | None
    calendar: Calendar | None
    offsets: tuple[tuple[float, datetime.tzinfo], ...] = ()


def count_rows(sheet: Sheet, dt: Duration, unit: str | None) -> Times:
    """The times of a table that has none, `dt` apart from 0 on."""
    unit = unit or dt.unit
    return Times(np.round(np.arange(len(sheet.rows)) * dt.count(unit), 12), unit, None)


def read_times(sheet: Sheet, name: str, unit: str | None, form: str | None = None) -> Times:
    """The times in the column `name`. `form` is that of its dates, as `strptime` has it."""
    cells = sheet.column(name)
    dates = None if form else parse_compact_dates(cells)
    if form:
        dates = _read_formatted(sheet, name, cells, form)
    elif dates is None and (has_slashes(cells[0]) or parse_date(cells[0]) is not None):
        dates = _read_dates(sheet, name, cells)
    if dates is None:
        ts = _read_instants(sheet, name, cells)
        _check_increasing(sheet, name, cells, ts)
        return Times(ts, unit or bracketed_unit(name), None)
    _check_increasing(sheet, name, cells, Calendar.from_dates(dates, "days").count(dates))
    calendar = Calendar.from_dates(dates, unit)
    ts = calendar.count(dates)
    return Times(ts, calendar.unit, calendar, _find_offsets(ts, dates))


def _find_offsets(
    ts: Float64[np.ndarray, " n"], dates: Sequence[datetime.datetime]
) -> tuple[tuple[float, datetime.tzinfo], ...]:
    changes = [
        (float(t), date.tzinfo)
        for t, date, before in zip(ts[1:], dates[1:], dates, strict=False)
        if date.tzinfo is not None and date.utcoffset() != before.utcoffset()
    ]
    return tuple(changes)


def _read_formatted(
    sheet: Sheet, name: str, cells: Sequence[str], form: str
) -> list[datetime.datetime]:
    dates = []
    for index, cell in enumerate(cells):
        try:
            dates.append(datetime.datetime.strptime(cell, form))
        except ValueError:
            raise sheet.error(
                index,
                name,
                f"{cell!r:.60} is not of the form {form!r}; expected dates such as "
                f"{datetime.datetime(2024, 1, 31, 18, 5).strftime(form)!r}: correct it, or give "
                "another --date-format.",
            ) from None
    return dates


def bracketed_unit(name: str) -> str | None:
    """The unit of a column such as `t [s]` or `time (min)`."""
    found = re.search(r"[\[(]([^\])]*)[\])]\s*$", name)
    return find_unit(found[1]) if found else None


def _check_increasing(
    sheet: Sheet, name: str, cells: Sequence[str], ts: Float64[np.ndarray, " n"]
) -> None:
    late = np.flatnonzero(np.diff(ts) <= 0)
    if not late.size:
        return
    index = int(late[0]) + 1
    before = f"{cells[index - 1]!r} in row {sheet.rows[index - 1]}"
    if ts[index] == ts[index - 1]:
        what, advice = (
            f"repeats {before}",
            ("keep one of the rows, or name the column that tells series apart (--by)"),
        )
    else:
        what = f"comes after {before}"
        advice = (
            "sort the rows by this column, or, where another series begins here, name the column "
            "that tells them apart (--by)"
        )
    raise sheet.error(
        index, name, f"the time {cells[index]!r} {what}; expected increasing times: {advice}."
    )


def _read_instants(sheet: Sheet, name: str, cells: Sequence[str]) -> Float64[np.ndarray, " n"]:
    ts = parse_numbers(cells)
    for index in np.flatnonzero(~np.isfinite(ts)).tolist():
        cell = cells[index]
        got = "the time is missing" if is_missing(cell) else f"{cell!r:.60} is no time"
        other = "correct it, remove the row, or name another column as the time"
        advice = USE_POINTS if is_formatted(cell) else other
        or_date = "" if index else " or an ISO date (2024-01-31)"
        raise sheet.error(index, name, f"{got}; expected a finite number{or_date}: {advice}.")
    return ts


def _read_dates(sheet: Sheet, name: str, cells: Sequence[str]) -> list[datetime.datetime]:
    dates: list[datetime.datetime] = []
    order = find_order(cells)
    if not order and has_slashes(cells[0]):
        raise sheet.error(
            0,
            name,
            f"{cells[0]!r:.60} may have the day or the month first; expected dates that tell: give "
            "--date-format %m/%d/%Y or --date-format %d/%m/%Y.",
        )
    for index, cell in enumerate(cells):
        date = parse_date(cell, order)
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
