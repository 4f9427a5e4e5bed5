"""A page needs nothing else, shows every panel, escapes all text, and fits any screen."""

import math
import re
import sys

import pytest
from helpers.pages import HOSTILE, a_figure

from lagrax.plotting import _page
from lagrax.plotting._page import Cell, day, duration, prose, render_page, words

EVERYTHING = """
{% extends "page.html" %}
{% block lead %}
<p class="finding">{{ hostile }}</p>
{{ show.figure(figures[0], large=true) }}
{% endblock %}
{% block sections %}
{% call show.section("figures", hostile, mark) %}
{{ show.figure(figures[1]) }}
{{ show.absent_figure(hostile) }}
{% endcall %}
{% call show.section("tables", "Tables") %}
{{ show.table(columns, rows, hostile, hostile) }}
{% endcall %}
{% call show.section("settings", "Settings") %}
{{ show.particulars({"a": hostile}, machine, {"run": 90}) }}
{% endcall %}
{% endblock %}
"""


def render(folder, sections, **content):
    """A page whose block `sections` holds a piece of a template."""
    block = f'{{% extends "page.html" %}}{{% block sections %}}{sections}{{% endblock %}}'
    (folder / "piece.html").write_text(block, encoding="utf-8")
    whole = render_page(folder / "piece.html", title="A page", introduction="", **content)
    return whole.partition("<main>")[2].partition("</main>")[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A page with one of each part."""
    path = tmp_path_factory.mktemp("template") / "everything.html"
    path.write_text(EVERYTHING, encoding="utf-8")
    values = [HOSTILE, 1.5, None, math.nan, Cell("4.6e-2", "0.1 to 0.2"), 0.1]
    return render_page(
        path,
        title=f"A page. {HOSTILE}",
        hostile=HOSTILE,
        figures=[a_figure("flow", 3, 3), a_figure()],
        columns=["model", *["a wide column of numbers, with its unit"] * 5],
        rows=[values],
        machine={"versions": {"jax": "0.10.0"}, "cores": 2},
        mark="marked",
    )


# --- the text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("at a = 2 over [0, 3] by 99 % of", "at a~=~2 over [0,~3] by 99~% of"),
        ("x (1 − y) + 1 < b", "x (1~−~y)~+~1~&lt;~b"),
        ("Use `--seeds 3` & `b`.", "Use <code>--seeds 3</code> &amp; <code>b</code>."),
        ("One ` and <b>", "One ` and &lt;b&gt;"),
        ("try --hold 1s", 'try <span style="white-space: nowrap">--hold</span> 1s'),
        ("`a` and ` alone", "<code>a</code> and ` alone"),
    ],
)
def test_prose_keeps_equations_on_one_line_and_shows_code(text, html):
    assert prose(text) == html.replace("~", "\N{NO-BREAK SPACE}")


def test_page_is_escaped_and_loads_nothing(whole):
    outside = re.sub(r'<script type="text/plain".*?</script>', "", whole, flags=re.DOTALL)
    assert outside.count("<b>") == 0
    assert outside.count("<script") == outside.count("</script>") == 1
    assert re.search(r"(src|href)=\"(?!#|data:)|url\(|@import|https?://", outside) is None


def test_page_is_smaller_than_two_megabytes(whole):
    assert len(whole.encode()) < 2e6


def test_contents_lead_to_the_sections(whole):
    links = re.findall(r'<li><a href="#([^"]*)">', whole)
    assert links == re.findall(r'<section id="([^"]*)">', whole)
    assert links == ["figures", "tables", "settings"]


def test_figures_are_numbered_in_order(whole):
    assert re.findall(r'<figure id="figure-(\d)"', whole) == ["1", "2"]
    assert re.findall(r"<strong>Figure (\d)\.</strong>", whole) == ["1", "2", "3"]


def test_tables(tmp_path):
    assert "<h3>" not in render(tmp_path, '{{ show.table(["model"], []) }}')
    rows = [["NODE", 0.123456789], ["A", None], ["B", Cell("4.6e-2", "4e-2 to 5e-2")]]
    piece = '{{ show.table(["model", "loss"], rows, "Losses", "A note.") }}'
    shown = render(tmp_path, piece, rows=rows)
    assert "<h3>Losses</h3>" in shown
    assert '<td class="number" data-label="loss">0.123457</td>' in shown
    assert '<td class="number" data-label="loss">–</td>' in shown
    assert ">4.6e-2<small>4e-2 to 5e-2</small></td>" in shown
    assert '<p class="note">A note.</p>' in shown


def test_particulars_leave_out_what_is_empty(tmp_path):
    machine = {"versions": {"jax": "0.10.0"}, "cores": 2}
    shown = render(tmp_path, "{{ show.particulars({}, machine, {}) }}", machine=machine)
    assert re.findall("<caption>(.*?)</caption>", shown) == ["Versions and machine"]
    assert re.findall('<th scope="row">(.*?)</th>', shown) == ["jax", "cores"]


@pytest.mark.parametrize("package", ["jinja2", "plotly"])
def test_absent_package_says_what_to_install(monkeypatch, tmp_path, package):
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    _page._pack_plotly.cache_clear()
    with pytest.raises(ImportError, match=rf'{package}: pip install "lagrax\[plot\]"'):
        render(tmp_path, "")


@pytest.mark.parametrize(
    ("value", "expected"),
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
def test_values(value, expected):
    assert words(value) == expected


@pytest.mark.parametrize(
    ("date", "expected"),
    [("2026-11-05T10:00:00+00:00", "5 November 2026"), ("some day", "some day")],
)
def test_days(date, expected):
    assert day(date) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3600, "1 h 0 min")],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(browser, whole, tmp_path_factory):
    """The page, open in the browser, all panels drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(whole, encoding="utf-8")
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
    for part in ("Figure 2.", HOSTILE, "row 1", "NPCDDE", "marked", "0.1 to 0.2"):
        assert part in shown


@pytest.mark.parametrize(("width", "columns"), [(1280, 3), (768, 2), (390, 1)])
def test_fits_any_screen(opened, width, columns):
    """Panels wrap, no column of a table is cut off, and the page never scrolls sideways."""
    resize(opened, width)
    opened.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    template = opened.execute_script(
        "return [...document.querySelectorAll('.panels')]"
        ".map(p => getComputedStyle(p).gridTemplateColumns.split(' ').length)"
    )
    assert max(template) == columns
    cut_off = (
        "return [...document.querySelectorAll('.scroll')]"
        ".filter(box => box.scrollWidth > box.clientWidth).length"
    )
    assert opened.execute_script(cut_off) == 0


def test_buttons_appear_on_hover(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    resize(opened, 1280)
    panel = opened.find_element("css selector", ".panel")
    buttons = panel.find_element("css selector", ".modebar-container")
    assert buttons.value_of_css_property("opacity") == "0"
    ActionChains(opened).move_to_element(panel).perform()
    assert buttons.value_of_css_property("opacity") == "1"


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
