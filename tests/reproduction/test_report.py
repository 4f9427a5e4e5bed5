"""The report shows everything measured, of all experiments, and every figure."""

import json
import re
import sys

import pytest
from helpers.pages import HOSTILE, a_figure

from lagrax.plotting import to_json
from reproduction import ResultError, read_experiment
from reproduction.report import write_report

CLAIMS = [
    {
        "claim": "The NPCDDE wins.",
        "value": 0.25,
        "target": 10,
        "verdict": "does not hold",
        "better": "higher",
        "unit": "times lower",
    },
    {
        "claim": HOSTILE,
        "value": 0.5,
        "target": 0.1,
        "verdict": "undecided",
        "unit": "of it",
        "better": "lower",
        "low": 0.05,
        "high": 0.9,
    },
    {"claim": "It gets there.", "verdict": "undecided", "experiment": "x"},
    {"claim": "It is.", "value": 3, "target": 2, "verdict": "holds", "better": "higher"},
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
        "finding": "The NPCDDE predicts best.",
        "quick": False,
        "settings": {"iterations": 3000, "seeds": [0, 1], "nested": {"a": [1.5]}, "rate": 0.01},
        "machine": {"versions": {"jax": "0.10.0"}, "commit": None, "device": "cpu", "cores": 2},
        "date": "2026-11-15T10:00:00+00:00",
        "seconds": 231.4,
        "trainings": [{"name": HOSTILE, "seconds": 11.2}, {"name": "long", "seconds": 7500}],
        "claims": CLAIMS,
        "tables": [
            {
                "title": HOSTILE,
                "columns": ["model", "loss"],
                "rows": [["NODE", ["4.6e-2", "4e-2 to 5e-2"]], ["A", None]],
            },
            {"columns": ["model", "a wide column of numbers"] * 5, "rows": [], "note": "A note."},
        ],
        "figures": [figure.name for figure in figures],
    }
    (folder / "result.json").write_text(json.dumps(result | changes))
    return folder


def page_of(folders, tmp_path):
    return write_report(folders, tmp_path / "new" / "report.html").read_text(encoding="utf-8")


def visible(page):
    """The page's text without scripts and tags, with single spaces."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


# --- reading --------------------------------------------------------------------------------------


def test_experiments_are_found_once(tmp_path):
    runs = tmp_path / "runs"
    experiment(runs / "population")
    experiment(runs / "annuli", experiment="annuli", title="Annuli")
    (runs / "unfinished").mkdir()
    page = page_of([runs, runs / "population"], tmp_path)
    assert page.count("<h2>Population dynamics</h2>") == 1
    # The experiment of the leading picture comes first.
    assert page.index("<h2>Population dynamics</h2>") < page.index("<h2>Annuli</h2>")


def test_known_experiments_are_not_read_again(tmp_path):
    folder = experiment(tmp_path / "population", [a_figure()])
    known = {folder: read_experiment(folder)}
    for path in [*folder.rglob("*.json")]:
        path.write_text("{")
    page = write_report([tmp_path], tmp_path / "report.html", known).read_text()
    assert "Figure 1." in visible(page)


def test_folders_without_results_are_refused(tmp_path):
    for folder, words in (
        (tmp_path, "holds no result.json"),
        (tmp_path / "absent", "is no folder"),
    ):
        with pytest.raises(ResultError, match=rf"{words}.*run `python -m reproduction` first"):
            write_report([folder], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_result_leaves_no_page(tmp_path):
    folder = experiment(tmp_path / "population")
    (folder / "result.json").write_text("{}")
    with pytest.raises(ResultError):
        write_report([folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_failed_writing_leaves_the_old_page(tmp_path, monkeypatch):
    folder = experiment(tmp_path / "population")
    out = tmp_path / "report.html"
    out.write_text("old")
    monkeypatch.setattr("os.replace", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report([folder], out)
    assert out.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [folder, out]


def test_the_smallest_result_is_enough(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/result.json").write_text('{"experiment": "old kind"}')
    text = visible(page_of([tmp_path / "old"], tmp_path))
    assert "old kind" in text
    assert "No claim is judged here" in text


@pytest.mark.parametrize("module", ["plotly.offline", "jinja2"])
def test_an_absent_package_is_named(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(ImportError, match=rf'{package}: pip install "lagrax\[plot\]"'):
        write_report([tmp_path], tmp_path / "report.html")


# --- the page -------------------------------------------------------------------------------------


def test_the_page_leads_with_the_finding_and_a_large_picture(tmp_path):
    figures = [a_figure("first"), a_figure("second")]
    experiment(tmp_path / "runs/annuli", experiment="annuli", finding="Annuli part.")
    experiment(tmp_path / "runs/population", figures)
    page = page_of([tmp_path / "runs"], tmp_path)
    head = page[: page.index("<nav")]
    assert "The NPCDDE predicts best." in head
    assert re.findall(r'<figure id="(.*?)"(.*?)>', page) == [
        ("figure-1", ' class="large"'),
        ("figure-2", ""),
    ]
    assert head.count("<figure") == 1
    assert visible(page).count("The NPCDDE predicts best.") == 1
    assert "Annuli part." in page[page.index("<main") :]


def test_a_full_run_leads_before_a_quick_one(tmp_path):
    experiment(tmp_path / "runs/population-quick", quick=True, finding="Quick finding.")
    experiment(tmp_path / "runs/annuli", experiment="annuli", finding="Full finding.")
    page = page_of([tmp_path / "runs"], tmp_path)
    assert "Full finding." in page[: page.index("<nav")]


def test_claims_are_folded_by_experiment(tmp_path):
    page = page_of([experiment(tmp_path / "population")], tmp_path)
    text = visible(page)
    counts = "of 4 claims, 2 are undecided, 1 does not hold, 1 holds"
    assert f"Altogether, {counts}." in text
    assert f"Population dynamics: {counts}" in page[page.index("<details", page.index("claims")) :]
    assert (
        "does not hold The NPCDDE wins. Measured: 4 times higher. Target: 10 times lower." in text
    )
    assert "Measured: 0.5 (0.05 to 0.9) of it. Target: at most 0.1 of it." in text
    assert "undecided It gets there. Measured: not measured." in text
    assert "holds It is. Measured: 3. Target: at least 2." in text


def test_circumstances_are_there(tmp_path):
    text = visible(page_of([experiment(tmp_path / "population")], tmp_path))
    assert "The times of training add up to 3 min 51 s. Device: cpu, 2 cores." in text
    assert "Run on 15 November 2026." in text
    assert "seeds 0, 1" in text
    assert "jax 0.10.0" in text
    assert "long 2 h 5 min" in text
    assert "quick" not in text


def test_ranges_stand_below_their_numbers(tmp_path):
    page = page_of([experiment(tmp_path / "population")], tmp_path)
    assert "4.6e-2<small>4e-2 to 5e-2</small>" in page


@pytest.mark.parametrize(("name", "quick"), [("population-quick", False), ("population", True)])
def test_quick_runs_are_marked(tmp_path, name, quick):
    folder = experiment(tmp_path / name, quick=quick, claims=[], date="some day")
    text = visible(page_of([folder], tmp_path))
    assert "Population dynamics quick run" in text
    assert "This is a quick run" in text
    assert "No claim is judged here" in text
    assert "Run on some day" in text


def test_absent_figures_are_named(tmp_path):
    folder = experiment(tmp_path / "population", figures=[a_figure()])
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"figures": ["gone", "losses"]}))
    text = visible(page_of([folder], tmp_path))
    assert "Figure 1. Losses." in text
    assert "Figure 2. The figure “gone” is missing" in text


def test_models_of_the_paper(tmp_path):
    page = page_of([experiment(tmp_path / "population")], tmp_path)
    assert "Of the paper’s 60 image models, 60 have the same numbers" in visible(page)
    assert "108,398" in page


def test_the_page_is_escaped_small_and_loads_nothing(tmp_path):
    folder = experiment(tmp_path / "population", [a_figure()], title=HOSTILE, experiment=HOSTILE)
    page = page_of([folder], tmp_path)
    assert len(page) < 2e6
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert len(outside) < 0.1 * len(page)
    assert outside.count("<b>") == 0
    assert page.count("<script") == page.count("</script>") == 3
    assert re.search(r"(src|href)=\"(?!#|data:)|url\(|@import|https?://", outside) is None
