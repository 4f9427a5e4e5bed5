"""The paper's claims about its image classifiers, tested on cells with all their seeds.

Each claim is that one mean is not below another. It is decided by Welch's test (B. L. Welch,
Biometrika 34, 1947), with the correction of Benjamini and Hochberg (Journal of the Royal
Statistical Society B 57, 1995) for the number of claims: of the decided ones, 5 % at most are
expected to name the wrong direction. The intervals are those that exclude the target if and only
if the test decides (Y. Benjamini and D. Yekutieli, Journal of the American Statistical Association
100, 2005, which also has the bound on wrong directions).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from ..models import AUGMENTED, CHANNELS, DATASETS, TABLE_1
from ..result import Claim
from .records import RunRecord
from .statistics import MEASURES, SEEDS, Cells, Spread, paper_accuracy

# By rising accuracy in the paper.
ORDER = ("NODE", "NPCDDE5", "UNPCDDE5")
BASELINES = ("NODE", "NDDE")

# The expected share of wrong verdicts among those that decide, at most.
WRONG_SHARE = 0.05

# The spread over the seeds, by data set and model.
Spreads = dict[tuple[str, str], Spread]


class Comparison(NamedTuple):
    """The claim that `ours` has a mean not below that of `other`. `seeds` are their numbers."""

    claim: str
    ours: Spread
    other: Spread
    seeds: tuple[int, int] = (SEEDS, SEEDS)

    @property
    def difference(self) -> float:
        return self.ours.mean - self.other.mean

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        return math.sqrt(sum(self._variances))

    @property
    def freedom(self) -> float:
        """Welch's degrees of freedom."""
        (a, b), (m, n) = self._variances, self.seeds
        return (a + b) ** 2 / (a**2 / (m - 1) + b**2 / (n - 1)) if a + b else min(m, n) - 1.0

    @property
    def _variances(self) -> tuple[float, float]:
        """Of the two means."""
        return self.ours.std**2 / self.seeds[0], self.other.std**2 / self.seeds[1]

    @property
    def p_value(self) -> float:
        """The probability of so large a difference, to either side, if the means were equal."""
        if not self.error:
            return float(self.difference == 0)
        return float(2 * stats.t.sf(abs(self.difference) / self.error, self.freedom))

    @property
    def is_reached(self) -> bool:
        """Whether the means bear the claim out, within the uncertainty or not."""
        return self.judge(WRONG_SHARE).is_reached

    def judge(self, error_rate: float) -> Claim:
        half = float(stats.t.isf(error_rate / 2, self.freedom)) * self.error
        interval = self.difference - half, self.difference + half
        return Claim.at_least(self.claim, self.difference, 0.0, "points", interval)


def image_claims(cells: Cells) -> list[Claim]:
    """The claims that can be tested yet, by the best epoch."""
    spreads = compute_spreads(cells, MEASURES["best epoch"])
    orders = compare_orders(spreads).values()
    comparisons = [*itertools.chain(*orders), *compare_cells(spreads)]
    error_rate = find_error_rate([x.p_value for x in comparisons])
    return [x.judge(error_rate) for x in comparisons]


def find_error_rate(p_values: Sequence[float]) -> float:
    """The two-sided error rate of each test with which all of them together have `WRONG_SHARE`.

    If nothing can be decided, that of the first test.
    """
    if not p_values:
        return 2 * WRONG_SHARE
    rates = 2 * WRONG_SHARE * np.arange(1, len(p_values) + 1) / len(p_values)
    decided = np.flatnonzero(np.sort(p_values) <= rates)
    return float(rates[decided[-1] if decided.size else 0])


def compute_spreads(cells: Cells, measure: Callable[[Sequence[RunRecord]], list[float]]) -> Spreads:
    """The spreads of the cells that have all their seeds."""
    whole = {cell: measure(records) for cell, records in cells.items() if len(records) >= SEEDS}
    return {cell: Spread.of(values) for cell, values in whole.items()}


def compare_orders(spreads: Spreads) -> dict[str, list[Comparison]]:
    """The claims about the order of the models, by kind."""
    found: dict[str, list[Comparison]] = {
        kind: [] for kind in ("order", "above baselines", "best of Table 1", "best augmented")
    }
    for dataset, title in DATASETS.items():
        models = {model: spread for (where, model), spread in spreads.items() if where == dataset}
        if all(model in models for model in ORDER):
            claim = f"{title}: the accuracy rises from {' to '.join(ORDER)}"
            rises = [
                _compare(claim, models, after, [before])
                for before, after in itertools.pairwise(ORDER)
            ]
            found["order"].append(min(rises, key=lambda x: x.difference))
        if all(model in models for model in TABLE_1):
            claim = f"{title}: all NPCDDEs and UNPCDDEs outperform NODE and NDDE"
            own = [model for model in TABLE_1 if model not in BASELINES]
            leads = [_compare(claim, models, model, BASELINES) for model in own]
            found["above baselines"].append(min(leads, key=lambda x: x.difference))
        for name, group in {"Table 1": TABLE_1, **_group_by_channels()}.items():
            if all(model in models for model in group):
                kind = "best of Table 1" if name == "Table 1" else "best augmented"
                found[kind].append(_compare_best(dataset, name, group, models))
    return found


def _compare_best(
    dataset: str, name: str, group: Sequence[str], models: dict[str, Spread]
) -> Comparison:
    best = max(group, key=lambda model: paper_accuracy(dataset, model).mean)
    others = [model for model in group if model != best]
    return _compare(f"{DATASETS[dataset]}: {best} is the best of {name}", models, best, others)


def _group_by_channels() -> dict[str, list[str]]:
    return {
        f"those with {more} more": [m for m in AUGMENTED if m.startswith(f"{prefix}+")]
        for prefix, more in CHANNELS.items()
    }


def _compare(
    claim: str, models: dict[str, Spread], model: str, others: Sequence[str]
) -> Comparison:
    """A model with the best of the others."""
    other = max(others, key=lambda other: models[other].mean)
    detail = f"(the mean of {model} less that of {other})"
    return Comparison(f"{claim} {detail}", models[model], models[other])


def compare_cells(spreads: Spreads) -> list[Comparison]:
    """The claim that each cell is not below the paper's mean less its standard deviation."""
    found = []
    for dataset, model in itertools.product(DATASETS, (*TABLE_1, *AUGMENTED)):
        if (dataset, model) in spreads:
            paper = paper_accuracy(dataset, model)
            claim = (
                f"{DATASETS[dataset]}, {model}: the mean accuracy of the best epoch is not below "
                f"the paper's {paper.mean:.2f} less its standard deviation, {paper.std:.2f} (the "
                "distance above this line)"
            )
            line = Spread(paper.mean - paper.std, paper.std)
            found.append(Comparison(claim, spreads[dataset, model], line))
    return found
