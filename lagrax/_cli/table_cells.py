"""The cells of a table, which hold numbers, dates or nothing."""

import datetime
import math
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from ..training._machine import load

LEAST_ROWS = 10
USE_POINTS = "write decimals with a point, and nothing between thousands"
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none"}


class TableError(ValueError):
    """A table cannot be used. The message gives the reason and a remedy."""


def list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def parse_numbers(cells: Sequence[str]) -> Float64[np.ndarray, " n"]:
    """Numbers, with NaN for all other cells."""
    polars = load("polars")
    return polars.Series(cells, dtype=polars.String).cast(polars.Float64, strict=False).to_numpy()


def strip_percent(cells: Sequence[str]) -> Sequence[str]:
    """The cells without percent signs, if all that hold something have one."""
    present = [cell for cell in cells if not is_missing(cell)]
    if not present or not all(cell.endswith("%") for cell in present):
        return cells
    return [cell.removesuffix("%").strip() for cell in cells]


def is_missing(cell: str) -> bool:
    return cell.lower() in _MISSING


def parse_number(cell: str) -> float | None:
    try:
        # Python reads 1_000 as a number, and nobody else does.
        number = math.nan if "_" in cell else float(cell)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell is like 1,5 or 1.234,5 or 1,5E-3."""
    return re.fullmatch(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?", cell) is not None


def is_formatted(cell: str) -> bool:
    """Whether a cell is a number with a decimal comma or separators between thousands."""
    thousands = r"[+-]?\d{1,3}([,.'’ \u00a0\u202f]\d{3})+([.,]\d+)?"
    return has_decimal_comma(cell) or re.fullmatch(thousands, cell) is not None


def parse_date(cell: str, order: str = "") -> datetime.datetime | None:
    """An ISO date, with a time or without, or one like 31.01.2024. A month is its first day.

    `order` says whether the first number of 01/02/2024 is the day ("dm") or the month ("md").
    Numbers are no dates.
    """
    if parse_number(cell) is not None:
        return None
    if found := re.fullmatch(_POINTED, cell):
        day, month, year, hour = found.groups(default="")
        return _parse_iso(f"{year}-{month:0>2}-{day:0>2}{_write_hour(hour)}")
    if order and (found := re.fullmatch(_SLASHED, cell)):
        first, second, year, hour = found.groups(default="")
        day, month = (first, second) if order == "dm" else (second, first)
        return _parse_iso(f"{year}-{month:0>2}-{day:0>2}{_write_hour(hour)}")
    return _parse_iso(f"{cell}-01" if re.fullmatch(r"\d{4}-\d\d", cell) else cell)


_POINTED = r"(\d\d?)\.(\d\d?)\.(\d{4})( .+)?"
_SLASHED = r"(\d\d?)/(\d\d?)/(\d{4})( .+)?"


def _write_hour(text: str) -> str:
    """An hour as ISO has it, such as 08:05 for 8:05 AM."""
    hour = parse_hour(text.strip()) if text else None
    return f" {hour}" if hour else text


def parse_hour(cell: str) -> str | None:
    """An hour as ISO has it, from 8, 8:05, 08:05:30, 18.00.00 or 8:05 PM."""
    found = re.fullmatch(r"(\d\d?)(?:[:.](\d\d)(?:[:.](\d\d(?:\.\d+)?))?)?\s*([AaPp][Mm])?", cell)
    if not found:
        return None
    hour, half = int(found[1]), (found[4] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    text = f"{hour:02}:{found[2] or '00'}:{found[3] or '00'}"
    return text if hour < 24 and _parse_iso(f"2000-01-01T{text}") else None


def has_slashes(cell: str) -> bool:
    """Whether a cell is a date like 01/31/2024."""
    return re.fullmatch(_SLASHED, cell) is not None


def find_order(cells: Sequence[str]) -> str:
    """Which number of dates like 01/31/2024 is the day, "dm" or "md"; "" if they do not tell.

    A number above 12 is a day. Otherwise dates increase in the right order alone.
    """
    pairs = [found for cell in cells if (found := re.fullmatch(_SLASHED, cell))]
    if any(int(pair[1]) > 12 for pair in pairs):
        return "dm"
    if any(int(pair[2]) > 12 for pair in pairs):
        return "md"
    good = []
    for order in ("dm", "md"):
        dates = [parse_date(pair[0], order) for pair in pairs]
        if None not in dates and sorted(dates) == dates:  # pyright: ignore
            good.append(order)
    return good[0] if len(good) == 1 else ""


def parse_compact_dates(cells: Sequence[str]) -> list[datetime.datetime] | None:
    """Dates such as 20240131, or None unless all cells are. As numbers these skip at each month."""
    dates = []
    for cell in cells:
        date = _parse_iso(cell) if re.fullmatch(r"(19|20)\d{6}", cell) else None
        if date is None:
            return None
        dates.append(date)
    return dates


def looks_measured(cell: str) -> bool:
    return parse_number(cell) is not None or parse_date(cell) is not None


def _parse_iso(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
