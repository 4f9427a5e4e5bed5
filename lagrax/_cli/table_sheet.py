"""The cells of a table below its header, and the column that holds its times."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from .table_cells import (
    TableError,
    is_missing,
    parse_date,
    parse_hour,
    parse_number,
)
from .table_file import read_rows

# Names that data frames and R give to the number of a row.
_INDEX_NAMES = ("", "rownames", "row.names", "row_names", "index", "unnamed: 0", "x")
_TIME_NAMES = re.compile(
    r"(time|date|datetime|date_time|timestamp|year|month|day|hour|hours|t|when)"
    r"(\s*[\[(].*[\])])?",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The cells below the header, as texts. `rows` has the number of each row in the file."""

    path: Path
    names: list[str]
    rows: list[int]
    cells: list[list[str]]

    @classmethod
    def read(cls, path: Path) -> "Sheet":
        (_, names), *body = read_rows(path)
        return cls(path, names, [row for row, _ in body], [cells for _, cells in body])

    def column(self, name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in self.cells]

    def error(self, index: int, name: str, sentence: str) -> TableError:
        """An error in the column `name` of the row with this index."""
        return TableError(f"{self.path}, row {self.rows[index]}, column {name!r}: {sentence}")

    def without(self, *names: str) -> "Sheet":
        """The sheet without these columns."""
        kept = [i for i, name in enumerate(self.names) if name not in names]
        cells = [[row[i] for i in kept] for row in self.cells]
        return dataclasses.replace(self, names=[self.names[i] for i in kept], cells=cells)

    def replace(self, name: str, new: str, cells: Sequence[str]) -> "Sheet":
        """The sheet with another column in the place of `name`."""
        place = self.names.index(name)
        names = [*self.names[:place], new, *self.names[place + 1 :]]
        rows = [
            [*row[:place], cell, *row[place + 1 :]]
            for row, cell in zip(self.cells, cells, strict=True)
        ]
        return dataclasses.replace(self, names=names, cells=rows)

    def take(self, indices: Sequence[int]) -> "Sheet":
        """The sheet with these rows only."""
        return dataclasses.replace(
            self, rows=[self.rows[i] for i in indices], cells=[self.cells[i] for i in indices]
        )


def drop_index(sheet: Sheet, wanted: Sequence[str]) -> Sheet:
    """The sheet without a first column that numbers the rows, if another one holds times.

    R and pandas write such a column. It stays if it is `wanted`.
    """
    name = sheet.names[0]
    if name in wanted or not _is_index(name, sheet.column(name)):
        return sheet
    timed = any(_TIME_NAMES.fullmatch(other) for other in sheet.names[1:])
    return sheet.without(name) if timed or set(wanted) & set(sheet.names[1:]) else sheet


def _is_index(name: str, cells: Sequence[str]) -> bool:
    if name.casefold() not in _INDEX_NAMES or not cells:
        return False
    numbers = [parse_number(cell) for cell in cells]
    first = numbers[0]
    return first in (0, 1) and numbers == [first + i for i in range(len(numbers))]


def name_times(sheet: Sheet) -> Sheet:
    """Gives a first column without a name one, if it holds dates, as pandas writes them."""
    cells = sheet.column(sheet.names[0]) if not sheet.names[0] else []
    dates = bool(cells) and parse_date(cells[0]) is not None
    if not dates or "time" in sheet.names:
        return sheet
    return dataclasses.replace(sheet, names=["time", *sheet.names[1:]])


def find_time(sheet: Sheet, others: Sequence[str]) -> str:
    """The column of times is the first that is not one of `others`.

    If that could not hold times, it is the first one that is named as times are.
    """
    names = [name for name in sheet.names if name not in others] or sheet.names
    cells = sheet.column(names[0])
    if _is_date(cells) or _increases(cells):
        return names[0]
    return next((name for name in names if _TIME_NAMES.fullmatch(name)), names[0])


def _increases(cells: Sequence[str]) -> bool:
    numbers = [parse_number(cell) for cell in cells]
    return all(a is not None and b is not None and a < b for a, b in itertools.pairwise(numbers))


def _is_date(cells: Sequence[str]) -> bool:
    return bool(cells) and parse_date(cells[0]) is not None


def join_hours(sheet: Sheet, time: str, kept: Sequence[str]) -> tuple[Sheet, str]:
    """Joins a column of dates, several rows to a day, with a column of hours.

    Returns the sheet and the name of its column of times.
    """
    dates = sheet.column(time)
    if not _is_date(dates) or len(set(dates)) == len(dates):
        return sheet, time
    for name in sheet.names:
        if name == time or name in kept or not re.search("time|hour|clock", name, re.IGNORECASE):
            continue
        hours = [parse_hour(cell) for cell in sheet.column(name)]
        if all(hour is not None for hour in hours):
            joined = [
                f"{date} {hour}" if not is_missing(date) else date
                for date, hour in zip(dates, hours, strict=True)
            ]
            both = f"{time} {name}"
            return sheet.replace(time, both, joined).without(name), both
    return sheet, time
