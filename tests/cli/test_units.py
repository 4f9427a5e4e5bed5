"""Dates are counted in units that suit them, and durations carry their own."""

import datetime

import numpy as np
import pytest

from lagrax._cli.units import (
    Calendar,
    Duration,
    UnitError,
    list_ticks,
    parse_duration,
    parse_period,
    parse_unit,
)

START = datetime.datetime(2025, 3, 3, 8)


def regular(count, start=START, **gap):
    return [start + i * datetime.timedelta(**gap) for i in range(count)]


def monthly(count, first=(2024, 1, 1), step=1):
    year, month, day = first
    numbers = [12 * year + month - 1 + step * i for i in range(count)]
    return [datetime.datetime(n // 12, n % 12 + 1, day) for n in numbers]


def month_ends(count):
    return [first - datetime.timedelta(days=1) for first in monthly(count)]


@pytest.mark.parametrize(
    ("dates", "label", "second"),
    [
        (regular(20, microseconds=250), "seconds since 2025-03-03 08:00", 0.00025),
        (regular(100, seconds=10), "seconds since 2025-03-03 08:00", 10.0),
        (regular(200, seconds=60), "minutes since 2025-03-03 08:00", 1.0),
        (regular(200, seconds=90), "minutes since 2025-03-03 08:00", 1.5),
        (regular(200, hours=6), "hours since 2025-03-03 08:00", 6.0),
        (regular(30, days=1), "days since 2025-03-03 08:00", 1.0),
        (regular(30, days=30), "days since 2025-03-03 08:00", 30.0),
        # A long series of short steps has a longer unit: its numbers stay readable.
        (regular(20_000, seconds=1), "minutes since 2025-03-03 08:00", 1 / 60),
        (regular(20_000, minutes=10), "hours since 2025-03-03 08:00", 1 / 6),
        (regular(20, start=START.replace(second=7), hours=1), "hours since 2025-03-03 08:00:07", 1),
        (monthly(14), "months since 2024-01-01", 1.0),
        (monthly(14, (2024, 1, 15)), "months since 2024-01-15", 1.0),
        (monthly(14, (2010, 3, 1), 3), "months since 2010-03-01", 3.0),
        (monthly(14, (2000, 6, 1), 12), "years since 2000-06-01", 1.0),
        (month_ends(14), "months since 2023-12-31", 1.0),
    ],
)
def test_unit_follows_span_and_sampling(dates, label, second):
    calendar = Calendar.from_dates(dates)
    ts = calendar.count(dates)
    assert str(calendar) == label
    assert (ts[0], ts[1]) == (0.0, second)
    assert calendar.dates(ts) == dates


@pytest.mark.parametrize("unit", ["seconds", "hours", "weeks", "months", "years"])
def test_dates_come_back_in_any_unit(unit):
    zone = datetime.timezone(datetime.timedelta(hours=6))
    dates = regular(150, START.replace(tzinfo=zone), days=7, hours=5, minutes=1)
    calendar = Calendar.from_dates(dates, unit)
    ts = calendar.count(dates)
    assert np.all(np.diff(ts) > 0)
    assert calendar.dates(ts) == dates


def test_units_have_their_lengths():
    dates = [START, START + datetime.timedelta(days=7)]
    lengths = {"seconds": 604_800, "minutes": 10_080, "hours": 168, "days": 7, "weeks": 1}
    for unit, length in lengths.items():
        assert Calendar.from_dates(dates, unit).count(dates)[1] == length
    # Eight of the 30 days of June.
    dates = [datetime.datetime(2025, 6, 1), datetime.datetime(2025, 6, 9)]
    assert Calendar.from_dates(dates, "months").count(dates)[1] == pytest.approx(8 / 30)
    assert Calendar.from_dates(dates, "years").count(dates)[1] == pytest.approx(8 / 360)


def test_months_go_on_by_the_calendar():
    calendar = Calendar.from_dates(month_ends(4))
    later = [str(date.date()) for date in calendar.dates(np.array([1.0, 2.0, 3.0, 13.0, 14.0]))]
    assert later == ["2024-01-31", "2024-02-29", "2024-03-31", "2025-01-31", "2025-02-28"]


@pytest.mark.parametrize("unit", ["days", "months"])
def test_dates_end(unit):
    calendar = Calendar.from_dates([START], unit)
    with pytest.raises(UnitError, match=f"{unit} after 2025-03-03 08:00 there is no date"):
        calendar.dates(np.array([1e7]))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("60s", 1.0),
        ("90 sec", 1.5),
        ("5min", 5.0),
        ("2h", 120.0),
        ("0.5 days", 720.0),
        ("1w", 10_080.0),
        ("1e3", 1000.0),
        ("2H", 120.0),
    ],
)
def test_durations_are_converted(text, minutes):
    assert parse_duration(text).count("minutes") == minutes


def test_years_are_twelve_months():
    assert parse_duration("2y").count("months") == 24
    assert parse_duration("3mo").count("years") == 0.25
    with pytest.raises(UnitError, match="days have no fixed number of months"):
        parse_duration("30d").count("months")


def test_a_duration_needs_a_unit_to_be_compared_with():
    assert Duration(2.5).count(None) == 2.5
    with pytest.raises(UnitError, match=r"the times have no unit. Add --unit"):
        parse_duration("60s").count(None)


@pytest.mark.parametrize("text", ["one", "-1", "nan", "inf", "", "s", "1.2.3", "1_0", "1e999"])
def test_invalid_durations(text):
    with pytest.raises(UnitError, match="is no duration; expected a positive number"):
        parse_duration(text)


def test_invalid_units_and_periods():
    with pytest.raises(UnitError, match=r"'m' is no unit of time.*minutes or months"):
        parse_duration("5m")
    with pytest.raises(UnitError, match=r"'fortnights' is no unit.*one of s, min, h, d, w, mo, y"):
        parse_unit("fortnights")
    with pytest.raises(UnitError, match="expected a positive number"):
        parse_period("0s")
    assert parse_unit(" Minutes ") == parse_unit("min") == "minutes"


@pytest.mark.parametrize(
    ("dates", "texts"),
    [
        (monthly(144, (1949, 1, 1)), ["1950", "1952", "1954", "1956", "1958", "1960"]),
        (
            regular(60, days=1),
            ["2025-03-17", "2025-03-31", "2025-04-14", "2025-04-28"],
        ),
        (regular(32, minutes=1), [f"03-03 08:{m}0" for m in range(4)]),
        (regular(51, seconds=10), [f"03-03 08:0{m}" for m in range(0, 9, 2)]),
        (regular(40, seconds=1), [f"08:00:{s}0" for s in range(4)]),
    ],
    ids=["years", "days", "minutes", "ten seconds", "seconds"],
)
def test_axes_have_round_dates(dates, texts):
    calendar = Calendar.from_dates(dates)
    ts = calendar.count(dates)
    ticks = list_ticks(calendar, float(ts[0]), float(ts[-1]))
    assert [text for _, text in ticks] == texts
    found = calendar.dates(np.array([place for place, _ in ticks]))
    assert all(
        d.strftime("%Y-%m-%d %H:%M:%S").find(t) >= 0 for d, t in zip(found, texts, strict=True)
    )
