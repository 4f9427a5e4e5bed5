"""The table of published problems is what was measured, and holds."""

import json
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script(load_script):
    return load_script(DOCS / "delay_problems.py")


@pytest.fixture(scope="module")
def measured(script):
    return json.loads(script.MEASURED.read_text(encoding="utf-8"))


def test_the_table_is_what_was_measured(script, measured):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.TABLE.findall(page) == [script.as_table(measured)]


def test_errors_fall_with_the_tolerance(script, measured):
    for problem in script.PROBLEMS:
        errors = [row["error"] for row in measured[problem.name]["rows"]]
        assert errors[-1] < errors[0]
        assert errors[-1] < 1e-4, problem.name


def check(script, measured, problem):
    stored = measured[problem.name]
    rows = script.measure(problem, np.asarray(stored["solution"]))
    for now, then in zip(rows, stored["rows"], strict=True):
        assert now["error"] <= 2 * then["error"] + 1e-9
        (cost,) = now.keys() - {"error"}
        assert abs(now[cost] - then[cost]) <= 0.1 * then[cost]


@pytest.mark.parametrize("name", ["C1", "E1", "epidemic"])
def test_a_problem_is_solved_as_the_table_says(name, script, measured, x64):
    (problem,) = (p for p in script.PROBLEMS if p.name == name)
    np.testing.assert_allclose(script.find_solution(problem), measured[name]["solution"], 1e-9)
    check(script, measured, problem)


@pytest.mark.slow
def test_all_problems_are_solved_as_the_table_says(script, measured, x64):
    for problem in script.PROBLEMS:
        solution = script.find_solution(problem)
        np.testing.assert_allclose(solution, measured[problem.name]["solution"], rtol=1e-8)
        check(script, measured, problem)
