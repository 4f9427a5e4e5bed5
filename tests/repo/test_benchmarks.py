"""The results of the benchmarks are complete, and the pages agree with them."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ANSWERS = sorted((BENCHMARKS / "results").glob("*.json"))
# Those that write such an answer; with --tiny they run anywhere.
SCRIPTS = sorted(p.stem for p in BENCHMARKS.glob("*.py") if "QUESTION" in p.read_text())


@pytest.fixture
def table(load_script):
    return load_script(BENCHMARKS / "table.py")


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_results_are_complete(path):
    answer = json.loads(path.read_text(encoding="utf-8"))
    assert answer["question"].endswith("?")
    assert isinstance(answer["hardware"], str)
    assert {"jax", "python"} <= answer["versions"].keys()
    assert answer["rows"]
    assert answer["goals"]
    for goal in answer["goals"]:
        value, bar = goal["value"], goal["goal"]
        assert math.isfinite(value), goal
        better = {"higher": value >= bar, "lower": value <= bar}
        assert goal["met"] == better[goal["better"]], goal


def test_the_page_agrees_with_the_results(table):
    assert (BENCHMARKS / "results/README.md").read_text(encoding="utf-8") == table.page(
        BENCHMARKS / "results"
    )


def test_the_docs_agree_with_the_results(table):
    text = table.DOCS.read_text(encoding="utf-8")
    assert text == table.with_table(text, BENCHMARKS / "results")
    assert "| goal | measured | target | verdict |" in text


def test_the_chart_agrees_with_the_results(table, tmp_path):
    results = BENCHMARKS / "results"
    assert table.chart_is_current(results, table.CHART)
    for path in results.glob("*.json"):
        shutil.copy(path, tmp_path)
    changed = json.loads((tmp_path / "throughput.json").read_text(encoding="utf-8"))
    for one in changed["goals"]:
        one["value"] *= 2
    (tmp_path / "throughput.json").write_text(json.dumps(changed), encoding="utf-8")
    assert not table.chart_is_current(tmp_path, table.CHART)
    table.draw_chart(tmp_path, tmp_path / "chart.png")
    assert table.chart_is_current(tmp_path, tmp_path / "chart.png")


def test_every_script_has_results():
    assert set(SCRIPTS) <= {path.stem for path in ANSWERS}
    assert len(SCRIPTS) >= 7


def numbers_in(tree):
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers_in(part)
    elif isinstance(tree, int | float) and math.isfinite(tree):
        yield from (tree, tree / 1000)  # seconds, too


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_has_the_measurements(name, table):
    source = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
    answer = json.loads((BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8"))
    assert source == table.with_goals(source, answer)
    changed = {**answer, "goals": [{**answer["goals"][0], "value": 123.4}]}
    assert ("    123 " in table.with_goals(source, changed)) == bool(table.HEADER.search(source))


@pytest.mark.parametrize("name", SCRIPTS)
def test_numbers_in_a_header_are_in_the_results(name, table):
    """Checks numbers with a decimal point or above ten, except those of settings."""
    source = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
    measured = table.HEADER.search(source)
    header = table.HEADER.sub("", source).split('"""')[1]
    own = [line for line in header.splitlines() if line.startswith("    ")]
    results = json.loads((BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8"))
    known = list(numbers_in(results))
    number = r"(?<![\w.,-])(?<!batch )(\d+\.\d+(?:e[-+]\d+)?|\d{2,})(?![\w,.-]| intervals)"
    shown = re.findall(number, "\n".join(own))
    wrong = [text for text in shown if text not in {written_as(text, x) for x in known}]
    assert not wrong
    assert len(shown) > 10 or not own
    assert own or measured


def written_as(text, number):
    if "e" in text:
        return f"{number:.1e}"
    return f"{number:.{len(text.partition('.')[2])}f}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name, tmp_path):
    """It runs with or without the libraries that it compares with."""
    out = tmp_path / f"{name}.json"
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--tiny", "--out", out]
    # The flags of the tests switch off optimisations that convolutions need.
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    subprocess.run(command, check=True, timeout=600, capture_output=True, env=env)
    assert json.loads(out.read_text(encoding="utf-8"))["rows"]


def test_the_page_on_published_tables_agrees_with_the_results(load_script):
    tables = load_script(BENCHMARKS / "real_tables.py")
    results = tables.read_results()
    assert tables.PAGE.read_text(encoding="utf-8") == tables.format_page(results)
    for name, result in results.items():
        for scores in result["columns"].values():
            assert 0 <= scores["covered"] <= 1, name
            assert all(math.isfinite(error) for error in scores.values()), name
