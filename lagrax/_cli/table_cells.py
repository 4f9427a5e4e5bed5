"""The cells of a table, which hold numbers, dates or nothing."""

import datetime
import math
import re
from collections.abc import Sequence

LEAST_ROWS = 10
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none"}


class TableError(ValueError):
    """A table cannot be used. The message gives the reason and a remedy."""


def list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


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


def parse_date(cell: str) -> datetime.datetime | None:
    """An ISO date, with a time or without, or one like 31.01.2024. A month is its first day.

    Numbers are no dates.
    """
    if parse_number(cell) is not None:
        return None
    if found := re.fullmatch(r"(\d\d?)\.(\d\d?)\.(\d{4})( .+)?", cell):
        day, month, year, hour = found.groups(default="")
        return _parse_iso(f"{year}-{month:0>2}-{day:0>2}{hour}")
    return _parse_iso(f"{cell}-01" if re.fullmatch(r"\d{4}-\d\d", cell) else cell)


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
