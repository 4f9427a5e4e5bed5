"""Rows of a CSV, Excel or Parquet file, as texts.

CSV is read by Python's `csv`, because polars reads a short row as having missing values, does not
know the number of a row in the file, splits a quoted field that stands behind a blank, and takes a
file whose lines end with a carriage return for one row. For a million rows of three columns polars
takes 0.1 s and `csv` 1 s, which is little beside a fit.
"""

import collections
import contextlib
import csv
import io
import itertools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..training._files import LONGEST, read_whole
from ..training._machine import load
from .table_cells import (
    LEAST_ROWS,
    TableError,
    has_decimal_comma,
    is_missing,
    list_names,
    looks_measured,
    parse_number,
)

# The number of a row in the file, and its cells.
Row = tuple[int, list[str]]
_DELIMITERS = ",;\t"
# Each takes some 50 bytes.
_MOST_CELLS = LONGEST // 8


def read_rows(path: Path) -> list[Row]:
    """The rows that are not empty, the header first. All have the same number of cells."""
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
    readers = {".parquet": _read_parquet, ".xlsx": _read_excel, ".xls": _read_excel}
    rows = readers.get(path.suffix.lower(), _read_csv)(path, content)
    if not rows or not rows[0][1]:
        raise TableError(
            f"{path} is empty; expected a header and {LEAST_ROWS} rows at least: export it anew."
        )
    # Spreadsheets write names over several lines.
    first, names = rows[0]
    names = [re.sub(r"[\t-\r]+", " ", name) for name in names]
    rows, names = _take_units(rows, names)
    _check_names(path, first, names)
    for row, cells in rows[1:]:
        if len(cells) != len(names):
            count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise TableError(
                f"{path}, row {row}: {count}; expected {len(names)}, one for each column of the "
                f"header ({list_names(names)}): fill the row up, or remove it."
            )
    return [(first, names), *rows[1:]]


def _take_units(rows: list[Row], names: list[str]) -> tuple[list[Row], list[str]]:
    """Adds a row of units below the header to the names.

    Such a row holds no number, and the one below it does wherever there is a unit.
    """
    if len(rows) < 3 or not len(rows[1][1]) == len(rows[2][1]) == len(names):
        return rows, names
    units, values = rows[1][1], rows[2][1]
    if any(looks_measured(unit) for unit in units) or sum(map(bool, units)) < 2:
        return rows, names
    if not all(looks_measured(v) for u, v in zip(units, values, strict=True) if not is_missing(u)):
        return rows, names
    bare = [unit.strip("[]() ") for unit in units]
    named = [f"{n} [{unit}]" if unit else n for n, unit in zip(names, bare, strict=True)]
    return [rows[0], *rows[2:]], named


def _check_names(path: Path, row: int, names: Sequence[str]) -> None:
    for name in names:
        if re.search(r"[\x00-\x1f\x7f-\x9f]", name):
            raise TableError(
                f"{path} has the column {name!r:.60} in its header; expected no control characters "
                "in names, which a terminal would follow: rename it."
            )
    if any(map(looks_measured, names)) and all(looks_measured(x) or is_missing(x) for x in names):
        raise TableError(
            f"{path} has no header: its row {row} is {list_names(names)}; expected the names of "
            "the columns there: add a first row such as t,x,y."
        )
    repeated = [name for name, number in collections.Counter(names).items() if name and number > 1]
    if repeated:
        raise TableError(
            f"{path} has two columns {repeated[0]!r:.60} in its header; expected a name of its own "
            "for each: rename one of them."
        )


# --- CSV ------------------------------------------------------------------------------------------


def _read_csv(path: Path, content: bytes) -> list[Row]:
    text = _decode(path, content)
    # Some spreadsheets write the delimiter in front.
    text = re.sub(r"\A\s*\"?sep=.\"?[ \t]*\r?\n", "\n", text)
    text = _blank_comments(text)
    # Blanks behind a quotation mark would be an error to the reader.
    text = re.sub(r"\" +(?=[,;\t\r\n]|\Z)", '"', text)
    rows: list[Row] = []
    try:
        delimiter = max(_DELIMITERS, key=lambda delimiter: _rate_delimiter(text, delimiter))
        for row in _split_rows(text, delimiter, strict=True):
            rows.append(row)
    except csv.Error as error:
        last = rows[-1][0] if rows else 0
        raise TableError(
            f"{path}, after row {last}: {error}; expected cells of numbers: look for a quotation "
            "mark that is never closed."
        ) from None
    if rows and len(rows[0][1]) == 1:
        raise TableError(
            f"{path} has one column, {rows[0][1][0]!r:.60}; expected one of times and one of "
            "values at least, with commas, semicolons or tabs between."
        )
    return rows if delimiter == "," else _replace_decimal_commas(rows)


def _decode(path: Path, content: bytes) -> str:
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
        if not utf16:  # As spreadsheets of Windows write it, for example with a degree sign.
            with contextlib.suppress(UnicodeDecodeError):
                return content.decode("cp1252")
        raise TableError(
            f"{path}{where}: the text is {'UTF-16' if utf16 else 'in another encoding'}; expected "
            "UTF-8: save the file as “CSV UTF-8”."
        ) from None


def _blank_comments(text: str) -> str:
    """Replaces the comments before the header by empty lines, so that row numbers stay.

    The last comment is the header if numbers follow it, as numpy.savetxt writes it.
    """
    rest = re.sub(r"\A(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*", "", text)
    comments = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)", text[: len(text) - len(rest)])
    if comments and looks_measured(re.split("[,;\t\r\n]", rest, maxsplit=1)[0].strip()):
        rest = comments.pop().lstrip(" \t#") + rest
    return "\n" * len(comments) + rest


def _replace_decimal_commas(rows: list[Row]) -> list[Row]:
    """Writes decimals with a point if the file has decimal commas and no decimal points.

    A file with both is ambiguous: 1.234 beside 1,5 may be a thousand or one and a bit.
    """
    cells = [cell for _, row in rows for cell in row]
    if any("." in cell and parse_number(cell) is not None for cell in cells):
        return rows
    point = lambda cell: cell.replace(".", "").replace(",", ".")
    return [
        (number, [point(cell) if has_decimal_comma(cell) else cell for cell in row])
        for number, row in rows
    ]


def _split_rows(text: str, delimiter: str, strict: bool) -> Iterator[Row]:
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=strict, skipinitialspace=True)
    for texts in reader:
        cells = [text.strip() for text in texts]
        if any(cells):
            yield reader.line_num, cells


def _rate_delimiter(text: str, delimiter: str) -> tuple[bool, int]:
    """Rates a delimiter by the first two rows. Equal numbers of cells are best, then large ones."""
    widths = [len(cells) for _, cells in itertools.islice(_split_rows(text, delimiter, False), 2)]
    return len(set(widths)) == 1 and widths[0] > 1, max(widths, default=0)


# --- Excel and Parquet ----------------------------------------------------------------------------


def _read_excel(path: Path, content: bytes) -> list[Row]:
    """The rows of the first sheet."""
    fastexcel = load("fastexcel")
    try:
        _check_archive(path, content)
        sheet = fastexcel.read_excel(content)
        load_as = lambda kind: sheet.load_sheet(0, header_row=None, skip_rows=0, dtypes=kind)
        # As texts, numbers lose digits.
        texts, numbers = (load_as(kind).to_polars().rows() for kind in ("string", "float"))
    except (fastexcel.FastExcelError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "Excel", error) from None
    rows = []
    for row, (written, measured) in enumerate(zip(texts, numbers, strict=True), 1):
        cells = [_join_cell(*cell) for cell in zip(written, measured, strict=True)]
        if any(cells):
            rows.append((row, cells))
    return rows


def _join_cell(text: str | None, number: float | None) -> str:
    return (text or "").strip() if number is None else repr(number).removesuffix(".0")


def _check_archive(path: Path, content: bytes) -> None:
    """Refuses a workbook that would take far more memory than its file."""
    if not content.startswith(b"PK"):  # The older format is not compressed.
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        sizes = sum(info.file_size for info in archive.infolist())
        if sizes > LONGEST or archive.testzip() is not None:
            raise TableError(
                f"{path} holds {sizes:,} bytes; expected at most {LONGEST:,}: export the data as "
                "CSV."
            )
        for name in archive.namelist():
            # Readers make room for all cells up to the last one.
            found = re.findall(rb"\br=[\"']([A-Z]*)([0-9]+)[\"']", archive.read(name))
            height = max((int(row) for _, row in found), default=0)
            width = max((_column_number(column) for column, _ in found), default=0)
            if height * width > _MOST_CELLS:
                raise TableError(
                    f"{path} has a sheet of {height:,} rows and {width:,} columns; expected at "
                    f"most {_MOST_CELLS:,} cells: delete what is far from the data."
                )


def _column_number(letters: bytes) -> int:
    """27 for AA."""
    number = 0
    for letter in letters:
        number = 26 * number + letter - ord("A") + 1
    return number


def _read_parquet(path: Path, content: bytes) -> list[Row]:
    polars = load("polars")
    try:
        lazy = polars.scan_parquet(io.BytesIO(content))
        names = lazy.collect_schema().names()
        height = lazy.select(polars.len()).collect().item()
        if height * len(names) > _MOST_CELLS:
            raise TableError(
                f"{path} has {height:,} rows and {len(names):,} columns; expected at most "
                f"{_MOST_CELLS:,} cells: leave some out."
            )
        columns = [_write_column(column) for column in lazy.collect()]
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
        raise _unreadable(path, "Parquet", error) from None
    return [(1, names), *((row, list(cells)) for row, cells in enumerate(zip(*columns), 2))]  # noqa: B905


def _write_column(column: Any) -> list[str]:
    """The cells of a column as texts, with all digits and ISO dates."""
    polars = load("polars")
    kind = column.dtype
    if kind == polars.Boolean:
        column = column.cast(polars.Int8)
    if isinstance(kind, polars.Datetime):
        column = column.dt.to_string("iso:strict")
    elif kind.is_nested() or kind in (polars.Binary, polars.Object):
        return ["(no number)"] * len(column)
    return column.cast(polars.String).fill_null("").str.strip_chars().to_list()


def _unreadable(path: Path, kind: str, error: Exception) -> TableError:
    reason = str(error).partition("\n")[0]
    return TableError(
        f"{path} cannot be read as {kind} ({reason:.200}): check the file, or export it as CSV."
    )
