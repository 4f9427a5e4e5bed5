"""Tables of measurements: a CSV file as arrays, and arrays as a CSV file."""

import collections
import csv
import dataclasses
import datetime
import difflib
import functools
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..training._files import read_whole, write_atomically

LEAST_ROWS = 10
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none"}
_DELIMITERS = ",;\t"
DECIMALS = "write decimals with a point, and nothing between thousands"


class TableError(ValueError):
    """A table cannot be used, for the reason that the message gives."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Measured values over time; NaN where one is missing.

    `ts` are numbers as in the file, or, where the file has dates, days since the first of them,
    which is `start`. `left_out` are the columns that were not asked for and hold no numbers.
    """

    time_name: str
    ts: Float64[np.ndarray, " n"]
    names: tuple[str, ...]
    ys: Float64[np.ndarray, "n d"]
    input_names: tuple[str, ...]
    inputs: Float64[np.ndarray, "n k"]
    start: datetime.datetime | None = None
    left_out: tuple[str, ...] = ()

    @property
    def unit(self) -> str | None:
        """That of `ts`: days where the file has dates, and None where nobody has said."""
        return None if self.start is None else "days"


def read_table(
    path: Path,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    inputs: Sequence[str] = (),
) -> Table:
    """The measurements in a CSV file, all of them checked, or a `TableError`.

    `time` is the column of times, the first one unless given: increasing numbers, or dates, ISO's
    or 31.01.2024.
    Leave `columns` out to take every other column of numbers; name them to leave some out. Columns
    of text are left out by themselves. `inputs` are what drives the system, known at all times.

    Cells that are empty or say NA, NaN or null are missing values. The file has a header; commas,
    semicolons or tabs between the cells; and points in its decimals, or commas in all of them where
    none stands between the cells. Lines that begin with # before the header are comments. Rows are
    counted as an editor does, so that the header is row 1.
    """
    sheet = _sheet(path)
    time, names = _roles(sheet, time, columns, inputs)
    if len(sheet.cells) < LEAST_ROWS:
        raise TableError(
            f"{path} has too few rows of values: {len(sheet.cells)}; expected at least "
            f"{LEAST_ROWS}: measure for longer, or more often."
        )
    left_out = []
    if columns is None:
        left_out = [name for name in names if _is_text(sheet.column(name))]
        names = [name for name in names if name not in left_out]
    if not names:
        raise TableError(
            f"{path} has no column of numbers besides {_listed([time, *inputs])}; expected one at "
            f"least: its columns are {_listed(sheet.names)}."
        )
    ts, start = _times(sheet, time)
    return Table(
        time_name=time,
        ts=ts,
        names=tuple(names),
        ys=np.stack([_values(sheet, name) for name in names], axis=1),
        input_names=tuple(inputs),
        inputs=np.reshape([_input(sheet, name) for name in inputs], (len(inputs), len(ts))).T,
        start=start,
        left_out=tuple(left_out),
    )


def write_table(path: Path, names: Sequence[str], columns: Sequence[Any]) -> None:
    """Columns of numbers or texts as a CSV file, whole or not at all.

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


# --- the file -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Sheet:
    """The cells of a file as texts, below its header; `rows` says in which row of the file."""

    path: Path
    names: list[str]
    rows: list[int]
    cells: list[list[str]]

    def column(self, name: str) -> list[str]:
        place = self.places[name]
        return [row[place] for row in self.cells]

    @functools.cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def wrong(self, index: int, name: str, sentence: str) -> TableError:
        """What is wrong with the cell of the column `name` in the row of this index."""
        return TableError(f"{self.path}, row {self.rows[index]}, column {name!r}: {sentence}")


def _sheet(path: Path) -> _Sheet:
    (first, names), *body = _records(path, _text(path))
    # Spreadsheets write names over several lines.
    names = [re.sub(r"[\t-\r]+", " ", name) for name in names]
    for name in names:
        if re.search(r"[\x00-\x1f\x7f-\x9f]", name):
            raise TableError(
                f"{path} has the column {name!r:.60} in its header; expected no control characters "
                "in names, which a terminal would follow: rename it."
            )
    if any(_looks_measured(cell) for cell in names) and all(
        _looks_measured(cell) or _is_missing(cell) for cell in names
    ):
        raise TableError(
            f"{path} has no header: its row {first} is {_listed(names)}; expected the names of the "
            "columns there: add a first row such as t,x,y."
        )
    for row, cells in body:
        if len(cells) != len(names):
            raise TableError(
                f"{path}, row {row}: {_cells(len(cells))}; expected {len(names)}, one for each "
                f"column of the header ({_listed(names)}): fill the row up, or remove it."
            )
    doubled = [name for name, number in collections.Counter(names).items() if name and number > 1]
    if doubled:
        raise TableError(
            f"{path} has two columns {doubled[0]!r:.60} in its header; expected a name of its own "
            "for each: rename one of them."
        )
    return _Sheet(path, names, [row for row, _ in body], [cells for _, cells in body])


def _text(path: Path) -> str:
    if path.is_dir():
        raise TableError(f"{path} is a folder; expected a CSV file: name the file inside it.")
    try:
        content = read_whole(path)
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist; expected a CSV file: check its name and folder."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(
            f"{path} cannot be read ({reason}); expected a CSV file: check what it is."
        ) from None
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in content and not utf16:
        raise TableError(
            f"{path} is a binary file; expected a text with columns: export the data as CSV."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        where = "" if utf16 else f", row {row}"
        raise TableError(
            f"{path}{where}: the text is {'UTF-16' if utf16 else 'in another encoding'}; expected "
            "UTF-8: save the file as “CSV UTF-8”."
        ) from None


def _records(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """The rows that hold something, the header first, with their numbers."""
    records = []
    # What spreadsheets write in front to say which delimiter they took.
    text = re.sub(r"\A\s*\"?sep=.\"?[ \t]*\r?\n", "\n", text)
    text = _without_comments(text)
    # Blanks behind a quotation mark would be an error to the reader.
    text = re.sub(r"\" +(?=[,;\t\r\n]|\Z)", '"', text)
    try:
        delimiter = max(_DELIMITERS, key=lambda delimiter: _fitness(text, delimiter))
        for record in _rows(text, delimiter, strict=True):
            records.append(record)
    except csv.Error as error:
        last = records[-1][0] if records else 0
        raise TableError(
            f"{path}, after row {last}: {error}; expected cells of numbers: look for a quotation "
            "mark that is never closed."
        ) from None
    if not records:
        raise TableError(
            f"{path} is empty; expected a header and {LEAST_ROWS} rows at least: export it anew."
        )
    if len(records[0][1]) == 1:
        raise TableError(
            f"{path} has one column, {records[0][1][0]!r:.60}; expected one of times and one of "
            "values at least, with commas, semicolons or tabs between."
        )
    return records if delimiter == "," else _with_points(records)


def _without_comments(text: str) -> str:
    """Empty lines in place of those that begin with #, up to the header: which may be the last of
    them, where numbers follow."""
    rest = re.sub(r"\A(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*", "", text)
    comments = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", text[: len(text) - len(rest)])
    if comments and _looks_measured(re.split("[,;\t\r\n]", rest, maxsplit=1)[0].strip()):
        rest = comments.pop().lstrip(" \t#") + rest
    return "\n" * len(comments) + rest


def _with_points(records: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """With points in decimals, where the file has commas there and no points: 1.234,5 has both, and
    what 1.234 means beside it nobody knows."""
    cells = [cell for _, row in records for cell in row]
    if any("." in cell and _number(cell) is not None for cell in cells):
        return records
    point = lambda cell: cell.replace(".", "").replace(",", ".")
    return [
        (number, [point(cell) if _has_decimal_comma(cell) else cell for cell in row])
        for number, row in records
    ]


def _rows(text: str, delimiter: str, strict: bool) -> Iterator[tuple[int, list[str]]]:
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=strict, skipinitialspace=True)
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, [cell.strip() for cell in cells]


def _fitness(text: str, delimiter: str) -> tuple[bool, int]:
    """How well the delimiter splits the first two rows: into equally many cells, and many."""
    widths = [len(cells) for _, cells in itertools.islice(_rows(text, delimiter, False), 2)]
    return len(set(widths)) == 1 and widths[0] > 1, max(widths, default=0)


# --- columns --------------------------------------------------------------------------------------


def _roles(
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
    asked = [time, *(columns or []), *inputs]
    for number, name in enumerate(asked):
        if not name or name not in sheet.names:
            raise _absent(sheet, name)
        if name in asked[:number]:
            raise TableError(
                f"{sheet.path}: the column {name!r} is asked for twice; expected each to be the "
                f"time ({time!r}), a value or an input: name it once."
            )
    if columns is None:
        # A column without a name is an index that a data frame wrote, or a delimiter too many.
        columns = [name for name in sheet.names if name and name not in asked]
    return time, list(columns)


def _absent(sheet: _Sheet, name: str) -> TableError:
    there = {other.casefold(): other for other in sheet.names}
    near = difflib.get_close_matches(name.casefold(), there, n=1)
    meant = f"did you mean {there[near[0]]!r}? " if near else ""
    return TableError(
        f"{sheet.path} has no column {name!r}: {meant}its columns are {_listed(sheet.names)}."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _cells(number: int) -> str:
    return "1 cell" if number == 1 else f"{number} cells"


def _is_text(cells: Sequence[str]) -> bool:
    """Whether a column holds words or dates, and not one number."""
    present = [cell for cell in cells if not _is_missing(cell)]
    return bool(present) and all(
        _number(cell) is None and not _is_foreign(cell) for cell in present
    )


def _values(sheet: _Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of numbers, which says something: NaN where a value is missing."""
    cells = sheet.column(name)
    values = np.array([_value(sheet, index, name, cell) for index, cell in enumerate(cells)])
    known = values[~np.isnan(values)]
    if known.size and np.any(known != known[0]):
        return values
    what = f"is {known[0]:g} wherever it is known" if known.size else "is missing in all rows"
    raise TableError(
        f"{sheet.path}, column {name!r}: the value {what}; expected one that changes: choose the "
        "columns to use, without this one."
    )


def _value(sheet: _Sheet, index: int, name: str, cell: str) -> float:
    if _is_missing(cell):
        return math.nan
    number = _number(cell)
    if number is None:
        advice = "correct it, empty it, or choose columns without this one"
        if _is_foreign(cell):
            advice = DECIMALS
        raise sheet.wrong(index, name, f"{cell!r:.60} is no number; expected one: {advice}.")
    if math.isinf(number):
        raise sheet.wrong(
            index, name, f"{cell!r} is infinite; expected a finite number: leave the cell empty."
        )
    return number


def _input(sheet: _Sheet, name: str) -> Float64[np.ndarray, " n"]:
    """A column of an input, which the equation needs at all times."""
    values = _values(sheet, name)
    if np.any(np.isnan(values)):
        index = int(np.argmax(np.isnan(values)))
        raise sheet.wrong(
            index,
            name,
            "the value is missing; expected a number, because an input is needed at all times: "
            "fill it in, for example with the one before.",
        )
    return values


# --- times ----------------------------------------------------------------------------------------


def _times(sheet: _Sheet, name: str) -> tuple[Float64[np.ndarray, " n"], datetime.datetime | None]:
    """Numbers, or days since the first date and that date."""
    cells = sheet.column(name)
    start = None
    if _date(cells[0]) is None and not _are_compact_dates(cells):
        ts = np.array([_instant(sheet, index, name, cell) for index, cell in enumerate(cells)])
    else:
        dates = _dates(sheet, name, cells)
        start = dates[0]
        day = datetime.timedelta(days=1)
        ts = np.array([(date - start) / day for date in dates])
    late = np.flatnonzero(np.diff(ts) <= 0)
    if late.size:
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
        raise sheet.wrong(
            index, name, f"the time {cells[index]!r} {what}; expected increasing times: {advice}."
        )
    return ts, start


def _instant(sheet: _Sheet, index: int, name: str, cell: str) -> float:
    number = _number(cell)
    if number is None or not math.isfinite(number):
        got = "the time is missing" if _is_missing(cell) else f"{cell!r:.60} is no time"
        advice = "correct it, remove the row, or name another column as the time"
        if _is_foreign(cell):
            advice = DECIMALS
        or_a_date = "" if index else " or an ISO date (2024-01-31)"
        raise sheet.wrong(index, name, f"{got}; expected a finite number{or_a_date}: {advice}.")
    return number


def _dates(sheet: _Sheet, name: str, cells: Sequence[str]) -> list[datetime.datetime]:
    dates: list[datetime.datetime] = []
    read = _iso if _are_compact_dates(cells) else _date
    for index, cell in enumerate(cells):
        date = read(cell)
        if date is None:
            got = "the date is missing" if _is_missing(cell) else f"{cell!r:.60} is no date"
            raise sheet.wrong(
                index,
                name,
                f"{got}; expected an ISO date (2024-01-31, 2024-01-31T12:30) as in the first row: "
                "correct it, or remove the row.",
            )
        if dates and (date.tzinfo is None) != (dates[0].tzinfo is None):
            has, had = ("no", "one") if date.tzinfo is None else ("a", "none")
            raise sheet.wrong(
                index,
                name,
                f"{cell!r} has {has} time zone; expected {had}, as in the first row: give all of "
                "them one, or none.",
            )
        dates.append(date)
    return dates


# --- cells ----------------------------------------------------------------------------------------


def _is_missing(cell: str) -> bool:
    return cell.casefold() in _MISSING


def _number(cell: str) -> float | None:
    try:
        # Python reads 1_000 as a number, and nobody else does.
        number = math.nan if "_" in cell else float(cell)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _has_decimal_comma(cell: str) -> bool:
    """As in 1,5 and 1.234,5 and 1,5E-3."""
    return re.fullmatch(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?", cell) is not None


def _is_foreign(cell: str) -> bool:
    """A number as people write it: with a decimal comma, or something between thousands."""
    thousands = r"[+-]?\d{1,3}([,.'’ \u00a0\u202f]\d{3})+([.,]\d+)?"
    return _has_decimal_comma(cell) or re.fullmatch(thousands, cell) is not None


def _date(cell: str) -> datetime.datetime | None:
    """An ISO date, with a time or without; a month is its first day. Numbers are no dates. With
    points between, the day comes first."""
    if _number(cell) is not None:
        return None
    if found := re.fullmatch(r"(\d\d?)\.(\d\d?)\.(\d{4})( .+)?", cell):
        day, month, year, hour = found.groups(default="")
        return _iso(f"{year}-{month:0>2}-{day:0>2}{hour}")
    return _iso(f"{cell}-01" if re.fullmatch(r"\d{4}-\d\d", cell) else cell)


def _iso(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def _are_compact_dates(cells: Sequence[str]) -> bool:
    """Whether all of them are like 20240131: as numbers they would skip from month to month."""
    return all(re.fullmatch(r"(19|20)\d{6}", c) and _iso(c) is not None for c in cells)


def _looks_measured(cell: str) -> bool:
    return _number(cell) is not None or _date(cell) is not None
