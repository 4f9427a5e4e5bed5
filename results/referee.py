"""Writes docs/referee.md, the questions of a referee with answers from the measured numbers.

python results/referee.py           rewrites the page
python results/referee.py --check   checks that it agrees with the numbers
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduction.images.accuracy import divide_records, make_image_result
from reproduction.images.caveats import list_caveats
from reproduction.images.evaluations import get_least_evaluations
from reproduction.images.records import RunRecord, read_records
from reproduction.population import count_failures, show_small
from reproduction.population_models import metric_of_test
from reproduction.result import Claim, Result, ResultTable, read_result
from reproduction.steepness import TRACED, change_growth

RESULTS = Path(__file__).parent
PAGE = RESULTS.parent / "docs" / "referee.md"
COST = RESULTS.parent / "benchmarks" / "results" / "recomputed_past.json"

HEAD = """# A referee's questions

The reproduction of *Neural Piecewise-Constant Delay Differential Equations* (AAAI 2022), as a
sceptical referee would examine it: do its results depend on seeds, on what the paper leaves open,
or on the test set, and are the comparisons fair? Each answer gives the measured number and links to
the place where the rest is.

<!-- Made by results/referee.py from the measured numbers; do not edit. -->
"""


class Numbers(NamedTuple):
    """The results that the answers quote, read once."""

    population: Result
    seeds: list[dict[str, Any]]
    steepness: Result
    images: Result
    records: list[RunRecord]
    caveats: list[str]
    cost: list[dict[str, Any]]

    @classmethod
    def read(cls) -> "Numbers":
        laptop, images = RESULTS / "laptop", RESULTS / "images"
        records = list(read_records(images))
        groups = divide_records(records)
        lines = (laptop / "population" / "seeds.jsonl").read_text(encoding="utf-8").splitlines()
        return cls(
            read_result(laptop / "population"),
            [json.loads(line) for line in lines],
            read_result(laptop / "steepness"),
            make_image_result(records)[0],
            records,
            list_caveats(groups.default, groups.study),
            json.loads(COST.read_text(encoding="utf-8"))["rows"],
        )

    def losses(self, recipe: str, a: float, model: str, metric: str) -> np.ndarray:
        """The final losses of all seeds."""
        own = {"recipe": recipe, "a": a, "model": model}
        found = [x[metric] for x in self.seeds if own.items() <= x.items()]
        return np.array([np.inf if x is None else x for x in found])

    def claim(self, words: str) -> Claim:
        """The claim on the population that begins with these words."""
        (found,) = [x for x in self.population.claims if x.claim.startswith(words)]
        return found

    def table(self, result: Result, title: str) -> ResultTable:
        (found,) = [x for x in result.tables if x.title == title]
        return found

    def caveat(self, words: str) -> str:
        (found,) = [x for x in self.caveats if words in x]
        return found


def make_page(numbers: Numbers) -> str:
    parts = [HEAD]
    for question, answer in [*answer_population(numbers), *answer_theory(numbers)]:
        parts += [f"## {question}\n", f"{answer}\n"]
    for question, answer in answer_images(numbers):
        parts += [f"## {question}\n", f"{answer}\n"]
    return "\n".join(parts)


# --- the population -------------------------------------------------------------------------------


def answer_population(numbers: Numbers) -> Iterator[tuple[str, str]]:
    count = len(numbers.population.settings["seeds"])
    claims = [
        numbers.claim(f"a = 3.2, paper recipe: the NPCDDE's median {_length(n)}") for n in (5, 10)
    ]
    clipped = [
        numbers.claim(f"a = 3.2, clipped recipe: the NPCDDE's median {_length(n)}") for n in (5, 10)
    ]
    failed = count_failures(numbers.losses("paper", 3.2, "NPCDDE", "loss"))
    yield (
        "Do the results at a = 3.2 depend on the seeds?",
        f"Yes, with the paper's recipe: over {count} seeds the NPCDDE's median error is "
        f"{claims[0].show_value()} than the best other model's over 5 seasons "
        f"({claims[0].verdict}) and {claims[1].show_value()} over 10 ({claims[1].verdict}), and "
        f"{failed} of {count} seeds fail. With our clipped recipe it is {clipped[0].show_value()} "
        f"({clipped[0].verdict}) and {clipped[1].show_value()} ({clipped[1].verdict}); [all "
        "medians, intervals and failures](../results/laptop/README.md) and [every "
        "seed](../results/laptop/population/seeds.jsonl) are there.",
    )
    yield (
        "Is the same seed the same run?",
        f"Yes: each of the {len(numbers.seeds)} runs of the population is trained alone by the "
        "same program, so its numbers do not depend on the other seeds "
        "(`test_seeds_alone_equal_single_runs`). The experiments with annuli and multiples train "
        "all seeds as one program, whose rounding may depend on their number.",
    )
    yield (
        "Do the figures show what the claims use?",
        f"Curves are medians over the {count} seeds with quartiles, predicted series those of the "
        "seed of median loss, and states that a figure cuts off are named in its caption. The "
        "captions at a = 3.2 say that the long run is a stable cycle of 36 seasons, not chaos: see "
        "[the figures](../results/laptop/README.md).",
    )
    known, true = (
        np.median(numbers.losses("paper", 2.0, "NDDE", metric_of_test(1, with_true_past=past)))
        for past in (False, True)
    )
    yield (
        "Is the NDDE tested with the past that it needs?",
        f"Both ways: at a = 2 and over 1 season its median error is {show_small(known)} with a "
        f"constant past, as in training, and {show_small(true)} with the true one. All lengths are "
        "in [the tables](../results/laptop/README.md).",
    )
    yield from _answer_steepness(numbers)


def _length(n: int) -> str:
    return f"test loss over length {n} "


def _answer_steepness(numbers: Numbers) -> Iterator[tuple[str, str]]:
    trials = numbers.table(numbers.steepness, "Recipes at a = 3.2")
    lost = {str(row[0]): getattr(row[2], "text", str(row[2])) for row in trials.rows}
    traced = numbers.table(numbers.steepness, "The largest gradient of each seed")
    ratios = [float(str(row[3])) for row in traced.rows]
    x0 = np.linspace(0.05, 2, 400)
    growth = np.max(change_growth(3.2, x0, 3))
    others = ", ".join(f"{lost[name]} if {changes}" for name, changes in _CHANGES.items())
    yield (
        "Why does training fail at a = 3.2, and what helps?",
        f"A small change grows up to {growth:.0f} times over the three seasons of the training, so "
        "the loss has steep walls; the largest gradient of a run exceeds its running mean by "
        f"{min(ratios):.0f} to {max(ratios):.0f} times ({TRACED} seeds), and Adam then takes too "
        f"long a step. The paper's recipe loses {lost['paper']} seeds; it is {others}: see [the "
        "page](steepness.md).",
    )


_CHANGES = {
    "short-memory": "Adam forgets within 20 iterations",
    "clipped": "gradients are clipped, too",
    "restarted": "each season starts from the data",
}


# --- theory ---------------------------------------------------------------------------------------


def answer_theory(numbers: Numbers) -> Iterator[tuple[str, str]]:
    yield (
        "Are the statements on representation shown?",
        "[What each model can represent](tutorials/representations.ipynb) runs Proposition 1 "
        "(none of the 256 maps of four points is a root), the reflection by all five models, and "
        "residual network, NODE, Euler's method and NDDE as special cases of the UNPCDDE. It also "
        "shows that the proposition needs the whole line: with a detour, the simple NPCDDE "
        "represents x² − 2 on [−2, 2].",
    )
    last = max(row["intervals"] for row in numbers.cost)
    rows = {row["program"]: row for row in numbers.cost if row["intervals"] == last}
    recomputed, looked_up = (
        _compare_costs(rows[f"NDDE, {how}"], rows["NPCDDE"]) for how in ("recomputed", "looked up")
    )
    yield (
        "Does an NDDE cost O(nK), and an NPCDDE O(K)?",
        f"With {last} intervals, at equal accuracy, an NDDE that computes its past anew takes "
        f"{recomputed} of an NPCDDE, as the paper says. One that looks its past up "
        f"(`lagrax.Lag`) takes {looked_up}: see [the "
        "measurement](../benchmarks/results/README.md).",
    )


def _compare_costs(row: dict[str, Any], base: dict[str, Any]) -> str:
    names = {"evaluations": "evaluations", "gradient_ms": "time", "memory_mb": "memory"}
    *first, last = [f"{row[key] / base[key]:.2g} times the {name}" for key, name in names.items()]
    return f"{', '.join(first)} and {last}"


# --- images ---------------------------------------------------------------------------------------


def answer_images(numbers: Numbers) -> Iterator[tuple[str, str]]:
    counts = Counter(
        count
        for record in numbers.records
        if record.is_default and record.dataset != "mnist" and record.model.endswith("PCDDE5")
        for count in record.nfe or ()
    )
    ((count, total),) = counts.items()
    least = get_least_evaluations("NPCDDE5")
    yield (
        "What do the numbers of function evaluations tell?",
        f"Little: all {total:,} counts of NPCDDE5 and UNPCDDE5 on CIFAR-10 and SVHN are {count}, "
        f"{count - least} above the least that five intervals can take, and they come from models "
        "trained with fixed steps. [The tables](../results/images/README.md) show the excess over "
        "that least number, and nothing is claimed from it.",
    )
    verdicts = Counter(claim.verdict for claim in numbers.images.claims)
    yield (
        "Are claims on images tested?",
        f"{len(numbers.images.claims)} claims are decided together by Welch's test with a "
        f"correction for their number: {verdicts['holds']} hold, {verdicts['does not hold']} do "
        f"not, {verdicts['undecided']} are undecided. The target of each is [in the "
        "list](../results/images/README.md#claims).",
    )
    yield (
        "What qualifies the image tables?",
        f"{numbers.caveat('The solver errors of the trained')} "
        f"{numbers.caveat('would be expected')} [The "
        "list](../results/images/README.md#before-you-use-the-numbers) also has the steps, "
        "the arithmetic and the seeds that break a mean.",
    )
    commits = {x.versions["commit"] for x in numbers.records if x.versions.get("commit")}
    changed = [x for x in numbers.records if (x.versions.get("commit") or "").endswith("+")]
    yield (
        "Which code made the runs?",
        f"{len(numbers.records)} runs come from {len(commits)} commits; {len(changed)} runs are "
        "marked, since their tree had uncommitted changes. [The last "
        "table](../results/images/README.md) lists runs by commit.",
    )
    yield from _answer_studies(numbers)


def _answer_studies(numbers: Numbers) -> Iterator[tuple[str, str]]:
    validation = numbers.table(numbers.images, "Validation study, CIFAR-10")
    tables = "[the tables](../results/images/README.md#accuracies)"
    chosen = {str(row[0]): row[1] for row in validation.rows}
    questions = numbers.table(numbers.images, "Ablation, CIFAR-10, one part at a time").rows
    better = [row for row in questions if row[3] != "undecided"]
    named = "; ".join(f"{row[0]}: {row[2]}, {row[3]}" for row in better)
    node, npcdde = numbers.table(numbers.images, "Recipe study").rows
    recipe = numbers.table(numbers.images, "Recipe study, the models compared").rows[0]
    fixed, random = numbers.table(numbers.images, "Continuity study").rows
    yield (
        "Does the order of the models survive held-out images and one solver for all?",
        f"By an epoch chosen on 5,000 held-out images, with midpoint steps for all, NODE has "
        f"{chosen['NODE']} % on CIFAR-10, NPCDDE5 {chosen['NPCDDE5']} % and UNPCDDE5 "
        f"{chosen['UNPCDDE5']} %. The order of these three is the paper's: see [the "
        "tables](../results/images/README.md#accuracies).",
    )
    yield (
        "Which part of the model makes the difference?",
        f"Of {len(questions)} comparisons of one part each, at equal parameters and evaluations, "
        f"{len(better)} is decided ({named}). The others need more seeds than the three to five "
        f"that were trained: see {tables}.",
    )
    yield (
        "Can the same model do better?",
        f"Yes, and a NODE as well. With our recipe, {_name(npcdde)} reaches {npcdde[1]} % (the "
        f"paper has {npcdde[3]}) and {_name(node)} {node[1]} % (the paper has {node[3]}), each in "
        f"{npcdde[4]} seeds. The difference of {recipe[2]} is {recipe[3]}, so the gain of both is "
        f"the recipe's. With fine steps the accuracies are {npcdde[2]} % and {node[2]} %: see "
        f"{tables}.",
    )
    yield (
        "Are the trained models solutions of their equations?",
        f"Not with the paper's training. {_name(fixed)} has {fixed[2]} % with its own steps and "
        f"{fixed[3]} % with fine ones, and its own steps err by {fixed[5]}. Trained with random "
        f"numbers of steps at the same cost, it has {random[2]} % and {random[3]} %, and its steps "
        f"err by {random[5]}. It is then close to the solution, and loses {_lost(fixed, random)} "
        f"points of accuracy with its own steps: see {tables}.",
    )


def _name(row: list) -> str:
    dataset, model = str(row[0]).split(", ")
    return f"{model} on {dataset}"


def _lost(fixed: list, random: list) -> str:
    """The accuracy with its own steps that a model loses by random ones, in points."""
    own = [float(str(row[2]).split()[0]) for row in (fixed, random)]
    return f"{own[0] - own[1]:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/referee.md.")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    page = make_page(Numbers.read())
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    same = PAGE.read_text(encoding="utf-8") == page
    print(f"{PAGE} is {'up to date' if same else 'out of date'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
