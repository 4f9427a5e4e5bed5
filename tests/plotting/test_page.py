"""A page needs nothing else, shows every panel, escapes all text, and fits any screen."""

import json
import math
import re
import sys

import pytest
from helpers.pages import HOSTILE, a_figure

from lagrax.plotting._page import (
    Html,
    Section,
    day,
    duration,
    element,
    page,
    show_figure,
    show_particulars,
    show_table,
    text,
)


def a_page():
    """A page with one of each part that there is."""
    verdict = element("p", "does not hold", class_="verdict fails")
    claim = element("li", verdict, element("p", HOSTILE), element("p", "It is 0.", class_="muted"))
    columns = ["model", *["a wide column of numbers"] * 5]
    values = ["NODE", 1.5, None, math.nan, 12345.678, 0.1]
    machine = {"versions": {"jax": "0.10.0"}, "cores": 2}
    mark = [" ", element("span", "marked", class_="quick")]
    sections = [
        Section("overview", "Overview", [element("ul", claim, class_="claims"), HOSTILE]),
        Section("figures", HOSTILE, [show_figure(a_figure(), 1)], mark),
        Section("more", "More", [show_figure(a_figure("flow", 3, 3), 2)]),
        Section("tables", "Tables", [show_table(columns, [values], HOSTILE, HOSTILE)]),
        Section("settings", "Settings", [show_particulars({"a": HOSTILE}, machine, {"run": 90})]),
    ]
    return page(f"A page. {HOSTILE}", HOSTILE, sections)


# --- the text -------------------------------------------------------------------------------------


def test_text_is_escaped_and_html_is_not():
    inner = element("b", "<i>", Html("<hr>"))
    assert inner == "<b>&lt;i&gt;<hr></b>"
    assert element("p", inner, class_='"x"', aria_label=3) == (
        f'<p class="&quot;x&quot;" aria-label="3">{inner}</p>'
    )


def test_page_is_escaped_and_loads_nothing():
    whole = a_page()
    outside = re.sub(r"<script>/\*\*\s*\* plotly.js.*?</script>", "", whole, flags=re.DOTALL)
    assert len(outside) < 0.1 * len(whole)
    assert outside.count("<b>") == 0
    assert outside.count("<script") == outside.count("</script>") == 13 + 1
    assert re.search(r"(src|href)=\"(?!#|data:)|url\(|@import|https?://", outside) is None
    for drawing in re.findall(r'<script type="application/json">(.*?)</script>', outside):
        assert set(json.loads(drawing)) == {"data", "layout"}


def test_contents_lead_to_the_sections():
    whole = a_page()
    links = re.findall(r'<li><a href="#([^"]*)">', whole)
    assert links == re.findall(r'<section id="([^"]*)">', whole)
    assert links == ["overview", "figures", "more", "tables", "settings"]


def test_tables():
    assert "<h3>" not in show_table(["model"], [])
    shown = show_table(["model", "loss"], [["NODE", 0.123456789], ["A", None]], "Losses", "A note.")
    assert shown.startswith("<h3>Losses</h3>")
    assert '<td class="number">0.123457</td>' in shown
    assert '<td class="number">–</td>' in shown
    assert shown.endswith('<p class="note">A note.</p>')


def test_particulars_leave_out_what_is_empty():
    shown = show_particulars({}, {"versions": {"jax": "0.10.0"}, "cores": 2}, {})
    assert re.findall("<caption>(.*?)</caption>", shown) == ["Versions and machine"]
    assert re.findall('<th scope="row">(.*?)</th>', shown) == ["jax", "cores"]


def test_absent_plotly_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r'plotly: pip install "lagrax\[plot\]"'):
        page("A page", "", [])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a", "a"),
        (None, "–"),
        (math.nan, "–"),
        (1 / 3, "0.333333"),
        (123456789, "123456789"),
        (True, "true"),
        ([1, None, "b"], "1, –, b"),
        ({"a": [1.5]}, '{"a": [1.5]}'),
    ],
)
def test_values(value, words):
    assert text(value) == words


@pytest.mark.parametrize(
    ("date", "words"),
    [("2026-11-05T10:00:00+00:00", "5 November 2026"), ("some day", "some day")],
)
def test_days(date, words):
    assert day(date) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3600, "1 h 0 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """The page, open in the browser, all panels drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(a_page(), encoding="utf-8")
    browser.get(path.as_uri())
    left = "return document.querySelectorAll('.plot:not([data-drawn])').length"
    WebDriverWait(browser, 60).until(lambda chrome: chrome.execute_script(left) == 0)
    return browser


def resize(opened, width):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def test_every_panel_is_drawn(opened):
    shapes = (
        "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll(%s).length)"
    )
    assert len(opened.execute_script(shapes % "'svg'")) == 13
    assert all(count >= 2 for count in opened.execute_script(shapes % "'.scatter path.js-line'"))
    assert all(count == 3 for count in opened.execute_script(shapes % "'.scatter path.point'"))


def test_no_errors_and_no_requests(opened):
    assert [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert opened.title.startswith("A page. </script>")


def test_text_is_visible(opened):
    shown = opened.execute_script("return document.body.innerText")
    for words in ("does not hold", "Figure 2.", HOSTILE, "row 1", "NPCDDE", "marked"):
        assert words in shown


@pytest.mark.parametrize(("width", "columns"), [(1280, 5), (768, 3), (360, 1)])
def test_fits_any_screen(opened, width, columns):
    """Panels wrap, wide tables scroll in their boxes, and the page never scrolls sideways."""
    resize(opened, width)
    opened.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    template = opened.execute_script(
        "return [...document.querySelectorAll('.panels')]"
        ".map(p => getComputedStyle(p).gridTemplateColumns.split(' ').length)"
    )
    assert max(template) == columns
    overflow = "return document.querySelector('#tables .scroll').scrollWidth > innerWidth"
    assert opened.execute_script(overflow) == (width < 1280)


def test_scheme_reaches_the_drawings_while_open(opened):
    colours = {}
    for scheme in ("light", "dark", "light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        seen = opened.execute_script(
            "const style = s => getComputedStyle(document.querySelector(s));"
            "return [style('.plot .xtick text').fill, style('.plot .gridlayer path').stroke,"
            "style('.plot .infolayer text').fill, style('body').color]"
        )
        assert colours.setdefault(scheme, seen) == seen
    assert all(light != dark for light, dark in zip(*colours.values(), strict=True))
    assert colours["dark"][0] == colours["dark"][3]


def test_printing_opens_what_is_closed(opened):
    opened.execute_script("document.querySelectorAll('details').forEach(d => d.open = false)")
    count = "return document.querySelectorAll('details[open]').length"
    opened.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.execute_script(count) == 1
    opened.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert opened.execute_script(count) == 0
