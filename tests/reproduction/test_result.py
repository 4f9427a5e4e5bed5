"""Claims and their verdicts, and results as they are read from JSON."""

import dataclasses
import json
import math

import pytest
from helpers.pages import a_figure

from lagrax.plotting import to_json
from lagrax.plotting._page import Cell
from reproduction import ResultError, read_result
from reproduction.result import (
    Claim,
    Result,
    ResultTable,
    TrainingTime,
    read_entry,
    show_cell,
    write_result,
)

CURVE = a_figure("curve", 1, 1)


@pytest.mark.parametrize(
    ("value", "at_least", "at_most"),
    [(10.0, True, True), (10.01, True, False), (9.0, False, True), (9.99999, True, True)],
)
def test_printed_numbers_decide(value, at_least, at_most):
    assert Claim.at_least("a", value, 10.0, "b").holds == at_least
    assert Claim.at_most("a", value, 10.0, "b").holds == at_most


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((9.0, 12.0), "undecided"),
        ((10.5, 12.0), "holds"),
        ((10.0, 12.0), "holds"),
        ((9.0, math.nan), "holds"),
        (None, "holds"),
    ],
)
def test_a_target_within_the_interval_leaves_a_claim_undecided(interval, verdict):
    claim = Claim.at_least("a", 11.0, 10.0, "b", interval)
    assert (claim.verdict, claim.is_reached) == (verdict, True)


@pytest.mark.parametrize("kind", [Claim.at_least, Claim.at_most])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_claim_without_a_number_is_undecided(kind, value):
    claim = kind("a", value, 1.0, "b")
    assert (claim.verdict, claim.value) == ("undecided", None)
    assert claim.show_value() == "not measured"


@pytest.mark.parametrize(
    ("value", "target", "interval", "shown", "goal"),
    [
        (22.594, 10.0, (16.04, 33.0), "22.59 (16 to 33) times lower", "10 times lower"),
        (0.35, 10.0, (0.25, 0.5), "2.857 (2 to 4) times higher", "10 times lower"),
        (1.25, 1.0, None, "1.25 times lower", "lower"),
        (15490.0, 1.0, None, "15490 times lower", "lower"),
    ],
)
def test_ratios_read_the_right_way_round(value, target, interval, shown, goal):
    claim = Claim.at_least("a", value, target, "times lower", interval)
    assert (claim.show_value(), claim.show_target()) == (shown, goal)


def test_other_units_name_the_side_of_the_target():
    claim = Claim.at_least("a", -0.5, 0.0, "points", (-1.0, 1.0))
    assert claim.show_value() == "−0.5 (−1 to 1) points"
    assert claim.show_target() == "at least 0 points"
    lead = Claim.at_least("a", 1, 1.0, "epochs")
    assert (lead.show_value(), lead.show_target()) == ("1 epoch", "at least 1 epoch")
    assert Claim.at_most("a", 5e-7, 0.01, "off").show_target() == "at most 0.01 off"


def test_results_survive_a_file(tmp_path):
    cells = ["NODE", 1, 2.5, None, Cell("4.6e-2", "4e-2 to 5e-2")]
    table = ResultTable(["model", *"abcd"], [cells], "Losses", "A note.")
    claim = Claim.at_least("a", 3.0, 1.0, "times lower", (2.0, 4.0))
    result = Result("tiny", "Tiny", finding="It works.", claims=[claim], tables=[table])
    result = dataclasses.replace(result, trainings=[TrainingTime("a", 1.5)], figures=["curve"])
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result
    assert [show_cell(cell) for cell in cells] == [
        "NODE",
        "1",
        "2.5",
        "–",
        "4.6e-2 (4e-2 to 5e-2)",
    ]


def test_unknown_keys_are_ignored_and_the_folder_may_mark_a_quick_run(tmp_path):
    folder = tmp_path / "tiny-quick"
    folder.mkdir()
    (folder / "result.json").write_text('{"experiment": "tiny", "from_a_newer_version": {"a": 1}}')
    assert read_result(folder) == Result("tiny", quick=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "Expected `object`"),
        ("{}", "`experiment`"),
        ({"claims": 3}, "claims"),
        ({"claims": [3]}, "claims"),
        ({"claims": [{"claim": "b"}]}, "`verdict`"),
        ({"claims": [{"claim": "b", "verdict": "yes"}]}, "'yes'"),
        ({"tables": [{"columns": []}]}, "`rows`"),
        ({"tables": [{"columns": [], "rows": [1]}]}, "rows"),
        ({"tables": [{"columns": [], "rows": [[]]}]}, "rows"),
        ({"trainings": [{"seconds": 3}]}, "`name`"),
        ({"seconds": "long"}, "seconds"),
        ({"seconds": int("9" * 400)}, "seconds"),
    ],
)
def test_damaged_results_are_refused(tmp_path, content, words):
    text = content if isinstance(content, str) else json.dumps({"experiment": "a"} | content)
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ResultError, match=r"result.json cannot be read: .*Run its experiment") as e:
        read_result(tmp_path)
    assert words in str(e.value)


def test_figures_that_cannot_be_shown_are_named(tmp_path):
    names = ["curve", "gone", "../result", "damaged", "strange"]
    write_result(tmp_path, Result("tiny", figures=names))
    (tmp_path / "figures").mkdir()
    for name, content in {"curve": to_json(CURVE), "strange": 3}.items():
        (tmp_path / f"figures/{name}.json").write_text(json.dumps(content))
    (tmp_path / "figures/damaged.json").write_text("{")
    curve, *others = read_entry(tmp_path).figures
    assert curve.caption == CURVE.caption
    for figure, name in zip(others, names[1:], strict=True):
        assert f"“{name}”" in figure
