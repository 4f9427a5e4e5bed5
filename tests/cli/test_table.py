"""Measurements are read from CSV as they are, or refused with the place and the remedy."""

import datetime
import io
import math
import zipfile

import jax.numpy as jnp
import numpy as np
import polars
import pytest

from lagrax._cli import table_file
from lagrax._cli.table import (
    LEAST_ROWS,
    Roles,
    TableError,
    read_table,
    read_tables,
    write_table,
)
from lagrax._cli.units import Duration

TS = [0.0, 0.5, 1.0, 1.25, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def lines(header="t,x,y", **changes):
    """A good file's lines; `row3="..."` puts another text into row 3, the header being row 1."""
    rows = [header, *[f"{t},{t * t + 1},{-t}" for t in TS]]
    for row, text in changes.items():
        rows[int(row.removeprefix("row")) - 1] = text
    return rows


def write(folder, content, name="data.csv"):
    path = folder / name
    if isinstance(content, list):
        content = "\n".join(content) + "\n"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", ", "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_dialects(tmp_path, delimiter, end, start):
    text = start + end.join(line.replace(",", delimiter) for line in lines()) + end
    table = read_table(write(tmp_path, text))
    assert (table.time_name, table.names, table.input_names) == ("t", ("x", "y"), ())
    assert (table.unit, table.calendar) == (None, None)
    ts = np.array(TS)
    np.testing.assert_array_equal(table.ts, ts)
    np.testing.assert_array_equal(table.ys, np.stack([ts**2 + 1, -ts], axis=1))
    assert table.inputs.shape == (len(TS), 0)
    assert table.ts.dtype == table.ys.dtype == table.inputs.dtype == np.float64


@pytest.mark.parametrize("cell", ["", " ", "NA", "n/a", "#N/A", "NaN", "nan", "null", "None"])
def test_missing_cells_are_nan(tmp_path, cell):
    table = read_table(write(tmp_path, lines(row5=f"1.25,{cell},2e1")))
    assert math.isnan(table.ys[3, 0])
    assert table.ys[3, 1] == 20
    assert np.isnan(table.ys).sum() == 1


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "sep=;\r"])
def test_separator_line_of_spreadsheets(tmp_path, first):
    text = [first, *(line.replace(",", ";") for line in lines())]
    table = read_table(write(tmp_path, text))
    assert (table.time_name, table.names) == ("t", ("x", "y"))


def test_dates_without_dashes(tmp_path):
    days = [f"202402{day:02d}" for day in range(20, 30)]
    rows = [f"{day},{i * i}" for i, day in enumerate([*days, "20240301"])]
    table = read_table(write(tmp_path, ["day,x", *rows]))
    np.testing.assert_array_equal(table.ts, np.arange(11))
    assert str(table.calendar) == "days since 2024-02-20"
    # Eight digits that are no dates are numbers.
    rows = [f"{20240220 + 3 * i},{i * i}" for i in range(11)]
    assert read_table(write(tmp_path, ["day,x", *rows])).calendar is None


@pytest.mark.parametrize("cell", ["1,5E-12", "400.000,00", "1,5", "-1.234.567,8"])
def test_commas_in_decimals_are_refused_and_not_left_out(tmp_path, cell):
    rows = [f"{t};{cell};{t}" for t in TS]
    with pytest.raises(TableError, match="decimals with a point, and nothing between thousands"):
        read_table(write(tmp_path, ["t;x;y", *rows]))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_are_read_where_cells_have_none_between(tmp_path, delimiter):
    cells = [[str(t).replace(".", ","), f"{t * t - 2}".replace(".", ",")] for t in TS]
    cells = [["t", "x", "y"], *([*two, f"1.234,5E{i}"] for i, two in enumerate(cells))]
    table = read_table(write(tmp_path, [delimiter.join(row) for row in cells]))
    np.testing.assert_array_equal(table.ts, TS)
    np.testing.assert_array_equal(table.ys[:, 0], np.array(TS) ** 2 - 2)
    assert table.ys[:2, 1].tolist() == [1234.5, 12345.0]


@pytest.mark.parametrize("cell", ["1,234.5", "1,234,567", "1.234.567", "1 234", "1'234.5"])
def test_separators_of_thousands_get_a_hint(tmp_path, cell):
    rows = [f'{t},"{cell}"' for t in TS]
    with pytest.raises(TableError, match="decimals with a point, and nothing between thousands"):
        read_table(write(tmp_path, ["t,x", *rows]))


def test_dates_with_points_have_the_day_first(tmp_path):
    rows = [f"{day}.02.2024;{day}" for day in range(1, 13)]
    rows[1] = "2.2.2024 12:00;2"
    table = read_table(write(tmp_path, ["day;x", *rows]))
    assert (table.calendar.start, table.ts[:3].tolist()) == (
        datetime.datetime(2024, 2, 1),
        [0.0, 1.5, 2.0],
    )


def test_dates_with_slashes_tell_whether_the_month_is_first(tmp_path):
    starts = {
        "{:02}/{:02}/2024": datetime.datetime(2024, 1, 8),  # the day first
        "{1}/{0}/2024 8:30 PM": datetime.datetime(2024, 1, 8, 20, 30),
    }
    for form, start in starts.items():
        rows = [f"{form.format(day, 1)};{day}" for day in range(8, 20)]
        table = read_table(write(tmp_path, ["day;x", *rows]))
        assert (table.calendar.start, table.ts[:2].tolist()) == (start, [0.0, 1.0])
    rows = [f"02/{day:02}/2024;{day}" for day in range(1, 13)]
    path = write(tmp_path, ["day;x", *rows])
    with pytest.raises(TableError, match=r"row 2.*'02/01/2024' may have .* --date-format %m/%d/%Y"):
        read_table(path)
    for form, gap in (("%m/%d/%Y", 1.0), ("%d/%m/%Y", 31.0)):
        table = read_table(path, date_format=form, unit="days")
        assert table.ts[1] == gap
    with pytest.raises(TableError, match=r"'02/01/2024' is not of the form '%Y'; .*'2024'"):
        read_table(path, date_format="%Y")


@pytest.mark.parametrize("hour", ["{:02}:30", "{:02}.30.00", "{:02}:30:00"])
def test_dates_and_hours_in_two_columns_are_joined(tmp_path, hour):
    rows = [f"2024-03-{1 + n // 24:02},{hour.format(n % 24)},{n}" for n in range(40)]
    table = read_table(write(tmp_path, ["date,time,x", *rows]))
    assert (table.time_name, table.names) == ("date time", ("x",))
    assert table.calendar.start == datetime.datetime(2024, 3, 1, 0, 30)
    np.testing.assert_array_equal(table.ts, np.arange(40))


@pytest.mark.parametrize("index", ["rownames", "Unnamed: 0", ""])
@pytest.mark.parametrize("time", ["time", "Date", "year", "hour", "Time [h]"])
def test_the_number_of_a_row_is_not_the_time(tmp_path, index, time):
    """R and pandas write it in front."""
    rows = [f"{number},{t},{t * t}" for number, t in enumerate(TS, 1)]
    path = write(tmp_path, [f"{index},{time},x", *rows])
    table = read_table(path)
    assert (table.time_name, table.names) == (time, ("x",))
    np.testing.assert_array_equal(table.ts, TS)
    if index:  # It is the time if asked for, or if nothing else says so.
        assert read_table(path, time=index).ts[0] == 1
        path = write(tmp_path, [f"{index},a,x", *rows])
        assert read_table(path).time_name == index


def test_dates_without_a_name_are_times(tmp_path):
    """As pandas writes the index of a series."""
    rows = [f"2024-01-{day:02},{day}" for day in range(1, 13)]
    table = read_table(write(tmp_path, [",x", *rows]))
    assert (table.time_name, table.ts[-1]) == ("time", 11.0)


def test_summer_time_keeps_the_offset_of_the_file(tmp_path):
    hours = [f"2024-03-30T{hour:02}:00:00+01:00" for hour in range(20, 24)]
    hours += [f"2024-03-31T{hour:02}:00:00+01:00" for hour in range(2)]
    hours += [f"2024-03-31T{hour:02}:00:00+02:00" for hour in range(3, 9)]
    table = read_table(write(tmp_path, ["when,x", *[f"{h},{n}" for n, h in enumerate(hours)]]))
    np.testing.assert_array_equal(np.diff(table.ts), 1)
    assert list(table.format_times(table.ts)) == hours
    assert list(table.format_times(table.ts[-1:] + 1)) == ["2024-03-31T09:00:00+02:00"]


def test_times_may_be_counted_by_rows(tmp_path):
    path = write(tmp_path, ["x,y", *[f"{n % 3},{n}" for n in range(12)]])
    table = read_table(path, dt=Duration(0.5, "seconds"), exclude=["y"])
    assert (table.time_name, table.unit, table.names) == ("time", "seconds", ("x",))
    np.testing.assert_array_equal(table.ts, 0.5 * np.arange(12))


def test_a_row_of_units_below_the_header(tmp_path):
    table = read_table(write(tmp_path, ["t,x,y", "s,[m],", *lines()[1:]]))
    assert (table.time_name, table.unit, table.names) == ("t [s]", "seconds", ("x [m]", "y"))
    np.testing.assert_array_equal(table.ts, TS)


def test_windows_encoding_and_percent_signs(tmp_path):
    text = "\n".join(["t;T °C;share", *[f"{t};{t * t};{t} %" for t in TS]])
    table = read_table(write(tmp_path, text.encode("cp1252")))
    assert table.names == ("T °C", "share")
    np.testing.assert_array_equal(table.ys[:, 1], TS)


def test_series_are_told_apart_by_a_column(tmp_path):
    rows = [
        f"{who},{t},{t + n},{dose},7"
        for n, (who, dose) in enumerate([("a", 1), ("b", 2)])
        for t in TS
    ]
    path = write(tmp_path, ["who,hour,x,dose,age", *rows])
    a, b = read_tables(path, Roles(by="who", inputs=["dose"]))
    assert (a.group, b.group, a.names, a.left_out) == ("a", "b", ("x",), ("age",))
    np.testing.assert_array_equal(a.ts, TS)
    np.testing.assert_array_equal(b.ys[:, 0], np.array(TS) + 1)
    np.testing.assert_array_equal(b.inputs[:, 0], 2)
    with pytest.raises(TableError, match=r"row 14, .*name the column .* \(--by\)"):
        read_table(path, time="hour")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_before_the_header(tmp_path, end):
    rows = ["# made by hand, on a Monday", "", "#", *lines(row4="1.0,wrong,3")]
    with pytest.raises(TableError, match="row 7, column 'x'"):
        read_table(write(tmp_path, end.join(rows)))
    # As numpy.savetxt writes it.
    table = read_table(write(tmp_path, end.join(["# by hand", "# t,x,y", *lines()[1:]])))
    assert (table.time_name, table.names, table.ts.tolist()) == ("t", ("x", "y"), TS)


def test_names_of_several_lines_become_one(tmp_path):
    header = '"t\r\nin s","x\n\tin kg","y in\u00a0m"'
    table = read_table(write(tmp_path, lines(header)))
    assert (table.time_name, table.names) == ("t in s", ("x in kg", "y in\u00a0m"))


def test_blanks_around_quotation_marks(tmp_path):
    rows = [' "t" , "x, in kg" , y ', *[f' {t} , "{t * t}" , {t} ' for t in TS]]
    table = read_table(write(tmp_path, rows))
    assert (table.time_name, table.names) == ("t", ("x, in kg", "y"))


def test_text_columns_are_left_out(tmp_path):
    rows = [f"{t},{t * t},about {t},a" for t in TS]
    table = read_table(write(tmp_path, ["t,x,share,note", *rows]))
    assert (table.names, table.left_out) == (("x",), ("share", "note"))


def test_columns_and_inputs_are_chosen(tmp_path):
    header = "site,x,dose,t,note,when"
    rows = [f'a,{t * t},"{-t}",{t},"a ""word"", or two",2024-01-01' for t in TS]
    path = write(tmp_path, [header, *rows])
    table = read_table(path, time="t", inputs=["dose"])
    assert (table.time_name, table.names, table.input_names) == ("t", ("x",), ("dose",))
    np.testing.assert_array_equal(table.inputs[:, 0], -np.array(TS))
    table = read_table(path, time="t", columns=["dose", "x"])
    assert table.names == ("dose", "x")
    np.testing.assert_array_equal(table.ys[:, 1], np.array(TS) ** 2)


def test_columns_without_a_name_are_left_aside(tmp_path):
    rows = [f"{number},{t},{t * t}," for number, t in enumerate(TS)]
    assert read_table(write(tmp_path, [",t,x,", *rows]), time="t").names == ("x",)


def test_the_delimiter_splits_the_rows_equally(tmp_path):
    rows = ['t;"a, b, c";x'] + [f"{t};{t + 1};{t + 2}" for t in TS]
    assert read_table(write(tmp_path, rows)).names == ("a, b, c", "x")
    rows[0] = "t;a, b, c;x"
    assert read_table(write(tmp_path, rows)).names == ("a, b, c", "x")


def test_empty_rows_are_skipped_but_counted(tmp_path):
    rows = [*lines()[:4], "", ",,", *lines()[4:], "", ",,"]
    assert read_table(write(tmp_path, rows)).ts.tolist() == TS
    rows[7] = "2.0,wrong,3"
    with pytest.raises(TableError, match="row 8, column 'x'"):
        read_table(write(tmp_path, rows))


@pytest.mark.parametrize(
    ("second", "days"),
    [
        ("{}-{:02}-02", 1.0),
        ("{}-{:02}-01T12:00", 0.5),
        ("{}-{:02}-01 06:00:00", 0.25),
    ],
)
def test_daily_dates_are_counted_in_days(tmp_path, second, days):
    rows = [f"{2020 + n}-02-01,{n}" for n in range(12)]
    rows.insert(1, f"{second.format(2020, 2)},100")
    table = read_table(write(tmp_path, ["date,x", *rows]))
    assert str(table.calendar) == "days since 2020-02-01"
    assert table.ts[:3].tolist() == [0.0, days, 366.0]


def test_months(tmp_path):
    rows = [f"1749-{month:02},{month}" for month in range(1, 13)]
    assert read_table(write(tmp_path, ["month,x", *rows])).ts[1:3].tolist() == [1.0, 2.0]


def test_time_zones(tmp_path):
    rows = [f"2024-03-{day:02}T12:00Z,{day}" for day in range(1, 13)]
    rows[1] = "2024-03-02T12:00+06:00,2"
    table = read_table(write(tmp_path, ["when,x", *rows]))
    assert table.ts[:4].tolist() == [0.0, 0.75, 2.0, 3.0]


def test_years_are_numbers(tmp_path):
    rows = [f"{1821 + n},{n % 5}" for n in range(20)]
    table = read_table(write(tmp_path, ["year,lynx", *rows]))
    assert (table.unit, table.ts[0]) == (None, 1821.0)


@pytest.mark.parametrize(
    ("name", "given", "unit", "label"),
    [
        ("t", None, None, "t"),
        ("t", "seconds", "seconds", "t [seconds]"),
        ("t [s]", None, "seconds", "t [s]"),
        ("time (min)", None, "minutes", "time (min)"),
        ("x [m]", None, None, "x [m]"),
    ],
)
def test_numbers_have_the_unit_that_is_named(tmp_path, name, given, unit, label):
    table = read_table(write(tmp_path, lines(f"{name},x,y")), unit=given)
    assert (table.unit, table.time_label) == (unit, label)
    np.testing.assert_array_equal(table.ts, TS)


def test_dates_are_counted_in_the_unit_asked_for(tmp_path):
    rows = [f"2025-03-03T08:{minute:02},{minute}" for minute in range(12)]
    path = write(tmp_path, ["when,x", *rows])
    assert read_table(path).ts[-1] == 11
    table = read_table(path, unit="hours")
    assert (table.unit, table.time_label) == ("hours", "hours since 2025-03-03 08:00")
    assert table.ts[-1] == pytest.approx(11 / 60)
    assert list(table.format_times(table.ts[:2])) == ["2025-03-03T08:00:00", "2025-03-03T08:01:00"]


# --- Excel and Parquet ----------------------------------------------------------------------------

WORKBOOK = {
    "[Content_Types].xml": """<Types xmlns="{content}content-types">
        <Default Extension="rels" ContentType="{kind}package.relationships+xml"/>
        <Default Extension="xml" ContentType="{kind}officedocument.spreadsheetml.sheet.main+xml"/>
        </Types>""",
    "_rels/.rels": """<Relationships xmlns="{content}relationships">
        <Relationship Id="r" Type="{office}/officeDocument" Target="xl/workbook.xml"/>
        </Relationships>""",
    "xl/workbook.xml": """<workbook xmlns="{main}" xmlns:r="{office}">
        <sheets><sheet name="Data" sheetId="1" r:id="r"/></sheets></workbook>""",
    "xl/_rels/workbook.xml.rels": """<Relationships xmlns="{content}relationships">
        <Relationship Id="r" Type="{office}/worksheet" Target="worksheets/sheet.xml"/>
        <Relationship Id="s" Type="{office}/styles" Target="styles.xml"/></Relationships>""",
    "xl/styles.xml": """<styleSheet xmlns="{main}"><cellXfs count="2">
        <xf numFmtId="0"/><xf numFmtId="22" applyNumberFormat="1"/></cellXfs></styleSheet>""",
}
NAMESPACES = {
    "content": "http://schemas.openxmlformats.org/package/2006/",
    "kind": "application/vnd.openxmlformats-",
    "office": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "main": "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
}


def workbook(rows):
    """An Excel file of one sheet: texts, numbers, and dates as `(days since 1899-12-30,)`."""

    def cell(place, value):
        if isinstance(value, str):
            return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
        style, number = (' s="1"', value[0]) if isinstance(value, tuple) else ("", value)
        return f'<c r="{place}"{style}><v>{number!r}</v></c>'

    body = "".join(
        f'<row r="{number}">'
        + "".join(cell(f"{'ABCDEF'[i]}{number}", v) for i, v in enumerate(row) if v is not None)
        + "</row>"
        for number, row in enumerate(rows, 1)
    )
    sheet = f'<worksheet xmlns="{NAMESPACES["main"]}"><sheetData>{body}</sheetData></worksheet>'
    return archive(sheet)


def archive(sheet):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as content:
        for name, text in WORKBOOK.items():
            content.writestr(name, text.format(**NAMESPACES))
        content.writestr("xl/worksheets/sheet.xml", sheet)
    return file.getvalue()


def test_excel(tmp_path):
    numbers = [[t, 0.1 + 1e-17 + t / 3, "NA" if t == 2.0 else -1e-300 * t, "a"] for t in TS]
    path = write(tmp_path, workbook([[], ["t", "x", "y", "note"], *numbers]), "data.xlsx")
    table = read_table(path)
    assert (table.time_name, table.names, table.left_out) == ("t", ("x", "y"), ("note",))
    np.testing.assert_array_equal(table.ts, TS)
    np.testing.assert_array_equal(table.ys[:, 0], [row[1] for row in numbers])
    assert np.flatnonzero(np.isnan(table.ys[:, 1])).tolist() == [4]
    assert table.ys[5, 1] == -3e-300
    numbers[3][1] = "many"
    path = write(tmp_path, workbook([[], ["t", "x", "y", "note"], *numbers]), "data.xlsx")
    with pytest.raises(TableError, match="row 6, column 'x': 'many' is no number"):
        read_table(path)


def test_dates_in_excel(tmp_path):
    rows = [[(45_719 + (480 + minute) / 1440,), minute**2] for minute in range(12)]
    table = read_table(write(tmp_path, workbook([["when", "x"], *rows]), "data.xlsx"))
    assert table.time_label == "minutes since 2025-03-03 08:00"
    np.testing.assert_array_equal(table.ts, range(12))


@pytest.mark.parametrize("kind", [polars.Float32, polars.Float64, polars.Int16])
def test_parquet(tmp_path, kind):
    frame = polars.DataFrame({"t": TS, "x": np.arange(12) ** 2, "y": -np.array(TS)})
    on, words = [t > 3 for t in TS], [[t] for t in TS]
    frame = frame.with_columns(x=polars.col("x").cast(kind), on=polars.Series(on))
    frame = frame.with_columns(
        y=polars.when(polars.col("t") > 0.5).then("y"), tags=polars.Series(words)
    )
    frame.write_parquet(tmp_path / "data.parquet")
    table = read_table(tmp_path / "data.parquet")
    assert (table.names, table.left_out) == (("x", "y", "on"), ("tags",))
    np.testing.assert_array_equal(table.ts, TS)
    np.testing.assert_array_equal(table.ys[:, 0], np.arange(12) ** 2)
    np.testing.assert_array_equal(table.ys[:, 2], on)
    assert np.flatnonzero(np.isnan(table.ys[:, 1])).tolist() == [0, 1]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_dates_in_parquet(tmp_path, zone):
    start = datetime.datetime(2025, 3, 3, 8)
    when = [start + datetime.timedelta(minutes=i) for i in range(12)]
    frame = polars.DataFrame({"when": when, "x": np.arange(12.0)})
    frame = frame.with_columns(polars.col("when").dt.replace_time_zone(zone))
    frame.write_parquet(tmp_path / "data.parquet")
    table = read_table(tmp_path / "data.parquet")
    assert table.time_label.startswith("minutes since 2025-03-03 08:00")
    np.testing.assert_array_equal(table.ts, range(12))
    days = frame.with_columns(
        polars.Series("when", polars.date_range(start, start + datetime.timedelta(11), eager=True))
    )
    days.write_parquet(tmp_path / "data.parquet")
    assert read_table(tmp_path / "data.parquet").time_label == "days since 2025-03-03"


def test_control_characters_in_names_of_parquet(tmp_path):
    polars.DataFrame({"t": TS, "x\x1b[31m": TS}).write_parquet(tmp_path / "data.parquet")
    with pytest.raises(TableError, match=r"the column 'x\\x1b\[31m' in its header.*rename it"):
        read_table(tmp_path / "data.parquet")


@pytest.mark.parametrize("name", ["data.xlsx", "data.xls", "data.parquet"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PAR1" * 9, b"t,x\n0,1\n"])
def test_damaged_binary_tables(tmp_path, name, content):
    with pytest.raises(TableError, match=rf"{name} cannot be read as \w+ \("):
        read_table(write(tmp_path, content, name))


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        ('<sheetData><row r="1048576"><c r="XFD1048576"/></row></sheetData>', "1,048,576 rows"),
        (" " * 10**6, "expected at most 1,000,000: export"),
    ],
)
def test_workbooks_that_would_fill_the_memory(tmp_path, monkeypatch, sheet, message):
    monkeypatch.setattr(table_file, "LONGEST", 10**6)
    with pytest.raises(TableError, match=message):
        read_table(write(tmp_path, archive(sheet), "data.xlsx"))


# --- what is refused ------------------------------------------------------------------------------

PLACE = r"data\.csv"

REFUSED = {
    "empty": ("", {}, f"{PLACE} is empty; expected a header"),
    "blank": ("\ufeff \r\n\r\n", {}, f"{PLACE} is empty; expected a header"),
    "no header": (lines()[1:], {}, r"no header: its row 1 is 0\.0, 1\.0, -0\.0; .*add a first row"),
    "no header, dates": (
        [f"2024-01-{n:02},NA,{n}" for n in range(1, 13)],
        {},
        "no header: its row 1 is 2024-01-01, NA, 1",
    ),
    "one column": (["t"] + [str(t) for t in TS], {}, f"{PLACE} has one column, 't'; expected one"),
    "binary": (b"PK\x03\x04\x00\x00", {}, f"{PLACE} is a binary file; .*export the data as CSV"),
    "UTF-16": ("\n".join(lines()).encode("utf-16"), {}, f"{PLACE}: the text is UTF-16; .*UTF-8"),
    "Latin-1": (
        "\n".join(lines(row4="1.0,2,ä\x81")).encode("latin-1"),
        {},
        f"{PLACE}, row 4: the text is in another encoding; expected UTF-8: save",
    ),
    "open quotes": (lines(row6='2.0,"5,1'), {}, f"{PLACE}, after row 5: .*never closed"),
    "endless cell": ("x" * 200_000, {}, f"{PLACE}, after row 0: field larger"),
    "short row": (lines(row7="3.0,1"), {}, f"{PLACE}, row 7: 2 cells; expected 3, .*t, x, y"),
    "shortest row": (lines(row7="3.0"), {}, f"{PLACE}, row 7: 1 cell; expected 3"),
    "long row": (lines(row7="3.0,1,2,4"), {}, f"{PLACE}, row 7: 4 cells; expected 3"),
    "same names": (lines("t,x,x"), {}, f"{PLACE} has two columns 'x' .*rename one"),
    "no such time": (
        lines("time,x,y"),
        {"time": "tiem"},
        r"no column 'tiem': did you mean 'time'\? its columns are time, x, y\.",
    ),
    "no such column": (
        lines("t,Temperature,y"),
        {"columns": ["temperatur"]},
        r"no column 'temperatur': did you mean 'Temperature'\?",
    ),
    "no such input": (lines(), {"inputs": ["dose"]}, r"no column 'dose': its columns are t, x, y"),
    "many columns": (
        ["t," + ",".join(f"x{n}" for n in range(30))],
        {"columns": ["quite another"]},
        r"no column 'quite another': its columns are t, x0, .*x18 and 11 more\.",
    ),
    "no name": (lines(",x,y"), {}, f"{PLACE}: its first column has no name; .*say which"),
    "empty name": (lines(",x,y"), {"time": "x", "columns": [""]}, "no column ''"),
    "named twice": (lines(), {"columns": ["x"], "inputs": ["x"]}, "'x' is asked for twice"),
    "time is a value": (lines(), {"columns": ["x", "t"]}, "'t' is asked for twice"),
    "too few rows": (lines()[:LEAST_ROWS], {}, f"{PLACE} has too few rows of values: 9; .*10"),
    "header alone": (lines()[:1], {}, "too few rows of values: 0"),
    "only inputs": (lines(), {"inputs": ["x", "y"]}, "no column of numbers besides t, x, y"),
    "only text": (
        ["t,who"] + [f"{t},me" for t in TS],
        {},
        r"no column of numbers besides t; .*its columns are t, who\.",
    ),
    "no number": (
        lines(row9="5.0,1,2.5x"),
        {},
        f"{PLACE}, row 9, column 'y': '2.5x' is no number; expected one: correct it, empty it",
    ),
    "Python's own": (lines(row9="5.0,1_000,2"), {}, "row 9, column 'x': '1_000' is no number"),
    "decimal commas": (
        ["t;x;y", *[f"{t};1,{t};{t}.5" for t in range(12)]],
        {},
        "row 2, column 'x': '1,0' is no number; .*write decimals with a point",
    ),
    "decimal commas in times": (
        ["t;x", *[f"0,{t};{t}.5" for t in range(12)]],
        {},
        "row 2, column 't': '0,0' is no time; .*write decimals with a point",
    ),
    "text asked for": (
        ["t,who"] + [f"{t},me" for t in TS],
        {"columns": ["who"]},
        "row 2, column 'who': 'me' is no number",
    ),
    "infinite": (lines(row3="0.5,-inf,1"), {}, "row 3, column 'x': '-inf' is infinite"),
    "overflow": (lines(row3="0.5,1,1e999"), {}, "row 3, column 'y': '1e999' is infinite"),
    "all missing": (
        ["t,x,y"] + [f"{t},,{t}" for t in TS],
        {},
        f"{PLACE}, column 'x': the value is missing in all rows; .*--exclude x",
    ),
    "constant": (
        ["t,x,y"] + [f"{t},{t},{'NA' if t < 3 else 2.5}" for t in TS],
        {},
        f"{PLACE}, column 'y': the value is 2.5 wherever it is known; expected one that changes",
    ),
    "constant input": (
        ["t,x,y"] + [f"{t},{t},2.5" for t in TS],
        {"inputs": ["y"]},
        "expected one that changes: drop --input y",
    ),
    "gap in an input": (
        lines(row8="4.0,1,NA"),
        {"inputs": ["y"]},
        "row 8, column 'y': the value is missing; .*input is needed at all times: fill it in",
    ),
    "unsorted": (
        lines(row8="2.5,1,1"),
        {},
        r"row 8, column 't': the time '2.5' comes after '3.0' in row 7; .*sort the rows",
    ),
    "repeated": (
        lines(row8="3,1,1"),
        {},
        r"row 8, column 't': the time '3' repeats '3.0' in row 7; .*keep one",
    ),
    "missing time": (lines(row8="NA,1,1"), {}, "row 8, column 't': the time is missing; expected"),
    "infinite time": (lines(row8="inf,1,1"), {}, "row 8, column 't': 'inf' is no time; expected"),
    "words as times": (
        lines(row2="Monday,1,1"),
        {},
        r"row 2, column 't': 'Monday' is no time; expected a finite number or an ISO date",
    ),
    "a date among numbers": (
        lines(row8="2024-01-31,1,1"),
        {},
        "row 8, column 't': '2024-01-31' is no time; expected a finite number: correct it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_tables(tmp_path, case):
    content, options, message = REFUSED[case]
    with pytest.raises(TableError, match=message) as caught:
        read_table(write(tmp_path, content), **options)
    assert str(tmp_path / "data.csv") in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("2024-13-01", "'2024-13-01' is no date; .*as in the first row"),
        ("7", "'7' is no date"),
        ("", "the date is missing; expected an ISO date"),
        ("2024-01-04T00:00Z", "'2024-01-04T00:00Z' has a time zone; expected none"),
        ("2024-01-03", "'2024-01-03' repeats '2024-01-03' in row 4"),
        ("2024-01-01T12:00", "comes after '2024-01-03' in row 4"),
    ],
)
def test_refused_dates(tmp_path, cell, message):
    rows = ["date,x", *[f"2024-01-{n:02},{n}" for n in range(1, 13)]]
    rows[4] = f"{cell},4"
    with pytest.raises(TableError, match=f"row 5, column 'date': .*{message}"):
        read_table(write(tmp_path, rows))


def test_zones_in_some_rows_only(tmp_path):
    rows = ["date,x", *[f"2024-01-{n:02}T00:00Z,{n}" for n in range(1, 13)]]
    rows[4] = "2024-01-04T00:00,4"
    with pytest.raises(TableError, match=r"row 5.* has no time zone; expected one"):
        read_table(write(tmp_path, rows))


def test_absent_file_and_folder(tmp_path):
    with pytest.raises(TableError, match=r"absent\.csv does not exist; .*check its name"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(TableError, match=f"{tmp_path} is a folder; .*name the file inside"):
        read_table(tmp_path)


# --- what is written ------------------------------------------------------------------------------


def test_written_numbers_are_read_back(tmp_path):
    random = np.random.default_rng(0)
    ts = np.cumsum(random.exponential(size=50))
    ys = random.normal(size=(50, 2)) * 10.0 ** random.integers(-300, 300, (50, 2))
    ys[7, 1] = np.nan
    path = tmp_path / "new" / "forecast.csv"
    write_table(path, ["t", "x, in m", 'a "y"'], [ts, *ys.T])
    table = read_table(path)
    assert table.names == ("x, in m", 'a "y"')
    np.testing.assert_array_equal(table.ts, ts)
    np.testing.assert_array_equal(table.ys, ys)


def test_written_cells(tmp_path):
    path = tmp_path / "forecast.csv"
    columns = [["2024-01-01", "2024-01-02"], [1, 2], jnp.array([0.1, jnp.nan]), np.array([0.1, 1])]
    write_table(path, ["date", "n", "x", "y"], columns)
    assert path.read_bytes() == b"date,n,x,y\n2024-01-01,1,0.1,0.1\n2024-01-02,2,,1.0\n"


@pytest.mark.parametrize(
    ("names", "columns"),
    [(["t"], [[1], [2]]), (["t", "x"], [[1], [2, 3]]), (["t"], [[[1]]]), (["t"], [1.0])],
)
def test_ragged_columns_are_refused(tmp_path, names, columns):
    with pytest.raises(ValueError, match=r"columns of one length.*got \d names?"):
        write_table(tmp_path / "forecast.csv", names, columns)
    assert list(tmp_path.iterdir()) == []
