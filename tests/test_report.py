"""The report is one page that needs nothing else, says what was measured, and shows every panel."""

import json
import math
import re
import shutil
import sys

import pytest

from lagrax.figures import Figure, Line, Panel, Points, to_json
from lagrax.paper import report
from lagrax.paper.report import write_report
from lagrax.paper.result import ResultError

HOSTILE = "</script><script>document.title = 'broken'</script><b>bold</b> & \"quoted\""
CLAIMS = [
    {"claim": "The NPCDDE wins.", "value": 31.2, "bar": 10, "holds": True, "better": "higher"},
    {
        "claim": HOSTILE,
        "value": 0.5,
        "bar": 0.1,
        "holds": False,
        "unit": "of it",
        "better": "lower",
    },
    {"claim": "It gets there.", "value": None, "bar": 3.0, "holds": False, "experiment": "x"},
    {"claim": "It stays there.", "value": math.nan, "bar": None, "holds": False},
]


def a_figure(name="losses", panels=10, columns=5):
    x = [0.0, 1.0, 2.0]
    marks = [
        Line(x, [1.0, 0.1, math.nan], "NPCDDE", low=[0.5, 0.0, math.nan], high=[2.0, 1.0, 1.0]),
        Line(x, [1.0, 1.0, 1.0], HOSTILE, "grey", dashed=True),
        Points(x, [0.2, 0.3, 0.4], "points", "amber"),
    ]
    all_panels = [
        Panel(marks, HOSTILE, "t", "loss", ylog=number % 2 == 0) for number in range(panels)
    ]
    rows = [f"row {number}" for number in range(panels // columns)]
    return Figure(name, f"Losses. {HOSTILE}", all_panels, columns, rows)


def experiment(folder, figures=(), **changes):
    """An experiment's folder as `lagrax reproduce` leaves it."""
    (folder / "figures").mkdir(parents=True)
    for figure in figures:
        (folder / "figures" / f"{figure.name}.json").write_text(json.dumps(to_json(figure)))
    result = {
        "experiment": "population",
        "title": "Population dynamics",
        "about": f"Models of a population. {HOSTILE}",
        "quick": False,
        "settings": {"iterations": 3000, "seeds": [0, 1], "nested": {"a": [1.5]}, "rate": 0.01},
        "machine": {"versions": {"jax": "0.10.0"}, "commit": None, "device": "cpu", "cores": 2},
        "date": "2026-11-15T10:00:00+00:00",
        "seconds": 231.4,
        "runs": [{"name": HOSTILE, "seconds": 11.2}, {"name": "long", "seconds": 7500}],
        "claims": CLAIMS,
        "tables": [
            {"title": HOSTILE, "columns": ["model", "loss"], "rows": [["NODE", 1.5], ["A", None]]},
            {"columns": ["model", "a wide column of numbers"] * 5, "rows": [], "note": "A note."},
        ],
        "figures": [figure.name for figure in figures],
        "from_a_newer_version": {"unknown": True},
    }
    (folder / "result.json").write_text(json.dumps(result | changes))
    return folder


def page_of(folders, tmp_path):
    return write_report(folders, tmp_path / "new" / "report.html").read_text(encoding="utf-8")


def visible(page):
    """The page's text without scripts and tags, with single spaces."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


# --- what is read ---------------------------------------------------------------------------------


def test_experiments_are_found_once(tmp_path):
    runs = tmp_path / "runs"
    experiment(runs / "population")
    experiment(runs / "annuli", experiment="annuli", title="Annuli")
    (runs / "unfinished").mkdir()
    page = page_of([runs, runs / "population"], tmp_path)
    assert page.count("<h2>Population dynamics</h2>") == 1
    assert page.index("<h2>Annuli</h2>") < page.index("<h2>Population dynamics</h2>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "result.json cannot be read: Expecting property name.* Run its experiment again"),
        ("[]", r"a result is \[\], not an object"),
        ("{}", "a result lacks `experiment`"),
        ('{"experiment": "a", "claims": 3}', "`claims` of a result is 3"),
        ('{"experiment": "a", "claims": [3]}', "a claim is 3, not an object"),
        ('{"experiment": "a", "claims": [{"claim": "b"}]}', "a claim lacks `holds`"),
        ('{"experiment": "a", "tables": [{"columns": []}]}', "a table lacks `rows`"),
        (
            '{"experiment": "a", "tables": [{"columns": [], "rows": [1]}]}',
            "rows of a table are lists of cells",
        ),
        ('{"experiment": "a", "seconds": "long"}', "`seconds` of a result is 'long'"),
    ],
)
def test_damaged_results_are_refused(tmp_path, text, message):
    folder = experiment(tmp_path / "population")
    (folder / "result.json").write_text(text)
    with pytest.raises(ResultError, match=message):
        write_report([folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_folders_without_results_are_refused(tmp_path):
    with pytest.raises(ResultError, match=r"holds no result.json.*run `lagrax reproduce` first"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(ResultError, match=r"absent is no folder.*run `lagrax reproduce` first"):
        write_report([tmp_path / "absent"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_failed_writing_leaves_the_old_page(tmp_path, monkeypatch):
    folder = experiment(tmp_path / "population")
    out = tmp_path / "report.html"
    out.write_text("old")
    monkeypatch.setattr("os.replace", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report([folder], out)
    assert out.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [folder, out]


def test_smallest_result(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "result.json").write_text('{"experiment": "old kind"}')
    text = visible(page_of([folder], tmp_path))
    assert "old kind" in text
    assert "No claim is tested here." in text


def test_missing_and_damaged_figures_are_named(tmp_path):
    names = ["gone", "../result", "damaged", "strange"]
    folder = experiment(tmp_path / "population", figures=[a_figure()])
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"figures": ["losses", *names]}))
    (folder / "figures" / "damaged.json").write_text("{")
    (folder / "figures" / "strange.json").write_text("3")
    text = visible(page_of([folder], tmp_path))
    assert "Figure 1. Losses." in text
    assert "Figure 2. The figure “gone” is missing" in text
    assert "Figure 3. The figure “../result” is missing" in text
    assert "Figure 4. The figure “damaged” cannot be read" in text
    assert "Figure 5. The figure “strange” cannot be read: A figure is described by" in text


def test_absent_plotly_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r'plotly: pip install "lagrax\[plot\]"'):
        write_report([tmp_path], tmp_path / "report.html")


# --- what is said ---------------------------------------------------------------------------------


def test_claims_and_circumstances(tmp_path):
    text = visible(page_of([experiment(tmp_path / "population")], tmp_path))
    assert "Of 4 tested here, 1 holds and 3 do not." in text
    assert "holds The NPCDDE wins. Measured: 31.2. The bar: at least 10." in text
    assert "Measured: 0.5 of it. The bar: at most 0.1 of it." in text
    assert "does not hold It gets there. It could not be measured. The bar: 3." in text
    assert "does not hold It stays there. It could not be measured." in text
    assert "Run on 15 November 2026 in 3 min 51 s. Device: cpu, 2 cores." in text
    assert "seeds 0, 1" in text
    assert "jax 0.10.0" in text
    assert "long 2 h 5 min" in text
    assert "quick" not in text


@pytest.mark.parametrize(("name", "quick"), [("population-quick", False), ("population", True)])
def test_quick_runs_are_marked_and_not_counted(tmp_path, name, quick):
    runs = [experiment(tmp_path / name, quick=quick, date="some day")]
    alone = visible(page_of(runs, tmp_path))
    assert "Population dynamics quick run" in alone
    assert "This is a quick run" in alone
    assert "4 verdicts come from quick runs, which train too briefly for them to" in alone
    assert "tested here" not in alone
    assert "Run on some day" in alone
    runs.append(experiment(tmp_path / "full" / "population", claims=CLAIMS[:2]))
    both = visible(page_of(runs, tmp_path))
    assert "Of 2 tested here, 1 holds and 1 does not. 4 verdicts" in both
    assert "are not counted" in both


def test_models_of_the_paper(tmp_path):
    page = page_of([experiment(tmp_path / "population")], tmp_path)
    assert "Of the paper’s 60 image models, 60 have the same numbers" in page
    assert "108,398" in page


def test_page_is_escaped_and_loads_nothing(tmp_path):
    folder = experiment(tmp_path / "population", [a_figure()], title=HOSTILE, experiment=HOSTILE)
    page = page_of([folder], tmp_path)
    outside = re.sub(r"<script>/\*\*\s*\* plotly.js.*?</script>", "", page, flags=re.DOTALL)
    assert len(outside) < 0.1 * len(page)
    assert outside.count("<b>") == 0
    assert outside.count("<script") == outside.count("</script>") == 10 + 1
    assert re.search(r"(src|href)=\"(?!#|data:)|url\(|@import|https?://", outside) is None
    for drawing in re.findall(r'<script type="application/json">(.*?)</script>', outside):
        assert set(json.loads(drawing)) == {"data", "layout"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3600, "1 h 0 min")],
)
def test_durations(seconds, words):
    assert report._duration(seconds) == words


# --- in a browser ---------------------------------------------------------------------------------

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The report of two experiments, open in the browser, all panels drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    folder = tmp_path_factory.mktemp("runs")
    experiment(folder / "population", [a_figure()])
    experiment(
        folder / "annuli-quick", [a_figure("flow", 3, 3)], experiment="annuli", title="Annuli"
    )
    browser.get(write_report([folder], folder / "report.html").as_uri())
    left = "return document.querySelectorAll('.plot:not([data-drawn])').length"
    WebDriverWait(browser, 60).until(lambda chrome: chrome.execute_script(left) == 0)
    return browser


def resize(page, width):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def test_every_panel_is_drawn(page):
    shapes = (
        "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll(%s).length)"
    )
    assert len(page.execute_script(shapes % "'svg'")) == 13
    assert all(count >= 2 for count in page.execute_script(shapes % "'.scatter path.js-line'"))
    assert all(count == 3 for count in page.execute_script(shapes % "'.scatter path.point'"))


def test_no_errors_and_no_requests(page):
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.title.endswith("a reproduction")


def test_text_is_visible(page):
    text = page.execute_script("return document.body.innerText")
    for words in ("does not hold", "Measured: 31.2", HOSTILE, "row 1", "NPCDDE", "quick run"):
        assert words in text


@pytest.mark.parametrize(("width", "columns"), [(1280, 5), (768, 3), (360, 1)])
def test_fits_any_screen(page, width, columns):
    """Panels wrap, wide tables scroll in their boxes, and the page never scrolls sideways."""
    resize(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.execute_script("return document.documentElement.scrollWidth") == width
    template = page.execute_script(
        "return [...document.querySelectorAll('.panels')]"
        ".map(p => getComputedStyle(p).gridTemplateColumns.split(' ').length)"
    )
    assert max(template) == columns
    overflow = "return document.querySelector('#models .scroll').scrollWidth > innerWidth"
    assert page.execute_script(overflow) == (width < 1280)


def test_scheme_reaches_the_drawings_while_open(page):
    colours = {}
    for scheme in ("light", "dark", "light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        seen = page.execute_script(
            "const style = s => getComputedStyle(document.querySelector(s));"
            "return [style('.plot .xtick text').fill, style('.plot .gridlayer path').stroke,"
            "style('.plot .infolayer text').fill, style('body').color]"
        )
        assert colours.setdefault(scheme, seen) == seen
    assert all(light != dark for light, dark in zip(*colours.values(), strict=True))
    assert colours["dark"][0] == colours["dark"][3]


def test_printing_opens_what_is_closed(page):
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = false)")
    opened = "return document.querySelectorAll('details[open]').length"
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script(opened) == 3
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert page.execute_script(opened) == 0
