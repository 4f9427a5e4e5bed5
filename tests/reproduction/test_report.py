"""The report says what was measured, of all experiments, and shows every figure."""

import json
import math
import re
import sys

import pytest
from helpers.pages import HOSTILE, a_figure

from lagrax.plotting import to_json
from reproduction.report import write_report
from reproduction.result import ResultError

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


def experiment(folder, figures=(), **changes):
    """An experiment's folder as `python -m reproduction` leaves it."""
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
    with pytest.raises(
        ResultError, match=r"holds no result.json.*run `python -m reproduction` first"
    ):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(
        ResultError, match=r"absent is no folder.*run `python -m reproduction` first"
    ):
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
    outside = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
    assert outside.count("<b>") == 0
    assert outside.count("<script") == outside.count("</script>") == 1
    assert re.search(r"(src|href)=\"(?!#|data:)|url\(|@import|https?://", outside) is None
