"""Units of time, for dates and for durations such as 5min."""

import dataclasses
import datetime
import math
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

# A month has no fixed number of seconds, so there are two kinds of units.
SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800}
MONTHS = {"months": 1, "years": 12}
_SPELLINGS = {
    "seconds": ("s", "sec", "second"),
    "minutes": ("min", "mins", "minute"),
    "hours": ("h", "hr", "hour"),
    "days": ("d", "day"),
    "weeks": ("w", "week"),
    "months": ("mo", "month"),
    "years": ("y", "yr", "year"),
}
SHORT = {unit: spellings[0] for unit, spellings in _SPELLINGS.items()}
_UNITS = {name: unit for unit, names in _SPELLINGS.items() for name in (unit, *names)}
# An axis with larger numbers is hard to read.
_MOST_UNITS = 10_000
_MICROSECOND = np.timedelta64(1, "us")
_DAY = np.timedelta64(1, "D")


class UnitError(ValueError):
    """A unit or a duration cannot be used. The message gives the reason and a remedy."""


def parse_unit(text: str) -> str:
    """The unit with this name or abbreviation."""
    if (unit := find_unit(text)) is not None:
        return unit
    names = ", ".join(SHORT.values())
    meant = " m could be minutes or months: write min or mo." if text == "m" else ""
    raise UnitError(f"{text!r:.60} is no unit of time; expected one of {names}.{meant}")


def find_unit(text: str) -> str | None:
    return _UNITS.get(text.strip().lower())


@dataclasses.dataclass(frozen=True)
class Duration:
    """A length of time. Without a unit, it is in that of the times, or a number of samples."""

    value: float | int
    unit: str | None = None

    def __str__(self) -> str:
        return f"{self.value:g}{SHORT[self.unit] if self.unit else ''}"

    def count(self, unit: str | None) -> float:
        """The number of units that it lasts; `unit` is that of the times, None if unknown."""
        if self.unit is None or self.unit == unit:
            return float(self.value)
        if unit is None:
            raise UnitError(
                "the times have no unit. Add --unit, such as --unit s, or give a plain number."
            )
        for lengths in (SECONDS, MONTHS):
            if self.unit in lengths and unit in lengths:
                return self.value * lengths[self.unit] / lengths[unit]
        raise UnitError(
            f"{self.unit} have no fixed number of {unit}. Give a duration in {unit}, or add --unit "
            f"{SHORT[self.unit]}."
        )


def parse_duration(text: str) -> Duration:
    found = re.fullmatch(r"\s*(\+?[\d.]+(?:e[+-]?\d+)?)\s*([^\W\d_]*)\s*", text, re.IGNORECASE)
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise UnitError(
            f"{text!r:.60} is no duration; expected a positive number, with a unit or without, "
            "such as 60s, 5min or 2h."
        )
    return Duration(value, parse_unit(found[2]) if found[2] else None)


def parse_period(text: str) -> Duration:
    """A duration longer than 0."""
    duration = parse_duration(text)
    if duration.value == 0:
        raise UnitError(f"{text!r:.60} is no period; expected a positive number.")
    return duration


# --- dates ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Calendar:
    """Counts dates in `unit` from `start`.

    Months and years differ in length. The same day of the next month is one month later. `shift`
    moves `start` to the first day of a month, which every month has.
    """

    start: datetime.datetime
    unit: str
    shift: np.timedelta64

    @classmethod
    def from_dates(cls, dates: Sequence[datetime.datetime], unit: str | None = None) -> "Calendar":
        """Starts at the first of `dates`. The default unit suits their span and sampling."""
        shift = _shift_to_first(_plain(dates, dates[0].tzinfo))
        if unit is None:
            unit = _choose_unit(cls(dates[0], "months", shift), dates)
        return cls(dates[0], unit, shift)

    def __str__(self) -> str:
        return f"{self.unit} since {self.start_text}"

    @property
    def start_text(self) -> str:
        """The start, without the time of day if that is midnight."""
        return format_dates([self.start], sep=" ")[0]

    def count(self, dates: Sequence[datetime.datetime]) -> Float64[np.ndarray, " n"]:
        instants = _plain([self.start, *dates], self.start.tzinfo)
        if self.unit in SECONDS:
            microseconds = (instants[1:] - instants[0]) / _MICROSECOND
            return microseconds / (1_000_000 * SECONDS[self.unit])
        months = _calendar_months(instants + self.shift)
        return (months[1:] - months[0]) / MONTHS[self.unit]

    def dates(self, ts: Float64[np.ndarray, " n"]) -> list[datetime.datetime]:
        """The dates at these times. It is the inverse of `count`."""
        start = _plain([self.start], self.start.tzinfo)[0]
        if self.unit in SECONDS:
            seconds = SECONDS[self.unit] * ts
            whole = start.astype("M8[s]").astype(float) + seconds
            self._check_range(whole / 86400 / 365.2425 + 1970, ts)
            # Floats are off by nanoseconds, over decades by more.
            digits = 6 if np.max(np.abs(seconds), initial=0) < 1e9 else 3
            instants = start + _microseconds(np.round(seconds, digits))
        else:
            months = ts * MONTHS[self.unit] + _calendar_months(np.array([start + self.shift]))[0]
            self._check_range(months / 12 + 1970, ts)
            first = np.floor(np.round(months, 9)).astype(int).astype("M8[M]")
            length = (first + 1).astype("M8[us]") - first.astype("M8[us]")
            rest = np.maximum(months - first.astype(int), 0) * (length / _MICROSECOND) / 1e6
            instants = first.astype("M8[us]") + _microseconds(np.round(rest, 3)) - self.shift
        return [d.replace(tzinfo=self.start.tzinfo) for d in instants.astype("M8[us]").tolist()]

    def _check_range(self, years: Float64[np.ndarray, " n"], ts: Float64[np.ndarray, " n"]) -> None:
        if np.max(years, initial=1) >= datetime.MAXYEAR:
            raise UnitError(
                f"{np.max(ts):g} {self.unit} after {self.start_text} there is no date any more: "
                "forecast less far."
            )


# Steps between the ticks of an axis, in seconds, and in months.
_MINUTE, _HOUR, _DAY_LONG = 60, 3600, 86400
_TICKS = (
    *(1, 2, 5, 10, 20, 30),
    *(_MINUTE * m for m in (1, 2, 5, 10, 20, 30)),
    *(_HOUR * h for h in (1, 2, 3, 6, 12)),
    *(_DAY_LONG * d for d in (1, 2, 4, 7, 14)),
)
_MONTH_TICKS = (1, 2, 3, 6, *(12 * m * 10**k for k in range(4) for m in (1, 2, 5)))
MOST_TICKS = 6


def list_ticks(calendar: Calendar, low: float, high: float) -> list[tuple[float, str]]:
    """Round dates between two times, and their texts."""
    start, end = calendar.dates(np.array([low, high]))
    length = (end - start).total_seconds()
    step = next((s for s in _TICKS if length <= MOST_TICKS * s), None)
    if step is not None:
        first = start.replace(hour=0, minute=0, second=0, microsecond=0)
        count = int((start - first).total_seconds() // step)
        dates = [first + datetime.timedelta(seconds=step * (count + i)) for i in range(9)]
        form = "%H:%M:%S" if step < 60 else "%m-%d %H:%M" if step < 86400 else "%Y-%m-%d"
    else:
        months = length / 86400 / 30.44
        apart = next((m for m in _MONTH_TICKS if months <= MOST_TICKS * m), _MONTH_TICKS[-1])
        number = (12 * start.year + start.month - 1) // apart * apart
        first = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        numbers = [n for n in range(number, number + 9 * apart, apart) if 12 <= n < 12 * 9999]
        dates = [first.replace(year=n // 12, month=n % 12 + 1) for n in numbers]
        form = "%Y-%m" if apart < 12 else "%Y"
    kept = [date for date in dates if start <= date <= end]
    places = calendar.count(kept) if kept else []
    return [(float(p), d.strftime(form)) for p, d in zip(places, kept, strict=True)]


def format_dates(dates: Sequence[datetime.datetime], sep: str = "T") -> list[str]:
    """ISO dates, without the time of day if all are at midnight, without seconds if all are 0."""
    if all(d.time() == datetime.time() and d.tzinfo is None for d in dates):
        return [d.date().isoformat() for d in dates]
    if sep == " " and all(d.second == d.microsecond == 0 for d in dates):
        return [d.isoformat(sep, "minutes") for d in dates]
    return [d.isoformat(sep) for d in dates]


def _choose_unit(calendar: Calendar, dates: Sequence[datetime.datetime]) -> str:
    """The unit in which the sampling and the span of `dates` are numbers that people like to read.

    Months and years are only for dates that are whole months apart. Otherwise it is the longest
    unit up to days that two samples are at least apart, or a longer one for a long series.
    """
    months = calendar.count(dates)
    if np.all(months == np.round(months)):
        return "years" if np.all(months % 12 == 0) else "months"
    seconds = dataclasses.replace(calendar, unit="seconds").count(dates)
    gap, span = np.median(np.diff(seconds)), seconds[-1]
    units = ("seconds", "minutes", "hours", "days")
    short = [unit for unit in units if SECONDS[unit] <= gap] or ["seconds"]
    longer = units[units.index(short[-1]) :]
    return next((u for u in longer if span <= _MOST_UNITS * SECONDS[u]), "days")


def _plain(dates: Sequence[datetime.datetime], zone: datetime.tzinfo | None) -> np.ndarray:
    """The dates in the time zone of the first, as NumPy has them."""
    local = dates if zone is None else [date.astimezone(zone) for date in dates]
    return np.array([date.replace(tzinfo=None) for date in local], "M8[us]")


def _shift_to_first(instants: np.ndarray) -> np.timedelta64:
    """The way from the first date to the start of a month; a day if all dates end a month."""
    starts = instants.astype("M8[M]").astype("M8[us]")
    since = instants - starts
    ends = (instants + _DAY).astype("M8[M]").astype("M8[us]")
    if np.all(instants + _DAY - ends == instants[0] - instants[0].astype("M8[D]")):
        return ends[0] - instants[0]
    if since[0] < 28 * _DAY:
        return -since[0]
    return (instants[0].astype("M8[M]") + 1).astype("M8[us]") - instants[0]


def _calendar_months(instants: np.ndarray) -> Float64[np.ndarray, " n"]:
    """Months since 1970, with the share of the month that has passed."""
    first = instants.astype("M8[M]")
    start, end = first.astype("M8[us]"), (first + 1).astype("M8[us]")
    return first.astype(int) + (instants - start) / (end - start)


def _microseconds(seconds: Float64[np.ndarray, " n"]) -> np.ndarray:
    return np.round(seconds * 1e6).astype("m8[us]")
