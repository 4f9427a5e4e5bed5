"""The answers to a referee agree with the results and follow them."""

import dataclasses
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def referee(load_script):
    return load_script(RESULTS / "referee.py")


@pytest.fixture(scope="module")
def numbers(referee):
    return referee.Numbers.read()


def test_the_page_is_that_of_the_numbers(referee, numbers):
    assert referee.PAGE.read_text(encoding="utf-8") == referee.make_page(numbers)


def test_an_answer_follows_its_numbers(referee, numbers):
    """Twice the memory of the recomputed past and a lost claim change the page."""
    page = referee.make_page(numbers)
    cost = [
        row | {"memory_mb": 2 * row["memory_mb"]}
        for row in numbers.cost
        if "NDDE" in row["program"]
    ]
    cost += [row for row in numbers.cost if row["program"] == "NPCDDE"]
    assert referee.make_page(numbers._replace(cost=cost)) != page
    lost = "does not hold"
    claims = [dataclasses.replace(claim, verdict=lost) for claim in numbers.population.claims]
    population = dataclasses.replace(numbers.population, claims=claims)
    changed = referee.make_page(numbers._replace(population=population))
    assert changed.count(lost) == page.count(lost) + 4


def test_each_answer_has_a_number_and_a_source(referee, numbers):
    questions = re.split(r"^## ", referee.make_page(numbers), flags=re.MULTILINE)[1:]
    assert len(questions) > 10
    for part in questions:
        assert re.search(r"\d", part.partition("\n")[2]), part
        assert re.search(r"\]\(|`test_\w+`|`--study", part), part
