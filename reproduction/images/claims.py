"""The paper's claims about its image classifiers, tested on cells with all their seeds."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..models import AUGMENTED, CHANNELS, DATASETS, TABLE_1
from ..result import Claim
from .records import RunRecord
from .statistics import MEASURES, SEEDS, Cells, Spread, paper_accuracy

# By rising accuracy in the paper.
ORDER = ("NODE", "NPCDDE5", "UNPCDDE5")
BASELINES = ("NODE", "NDDE")

# The spread over the seeds, by data set and model.
Spreads = dict[tuple[str, str], Spread]


def image_claims(cells: Cells) -> list[Claim]:
    """The claims that can be tested yet, by the best epoch."""
    spreads = compute_spreads(cells, MEASURES["best epoch"])
    return [*itertools.chain(*make_order_claims(spreads).values()), *make_cell_claims(spreads)]


def compute_spreads(cells: Cells, measure: Callable[[Sequence[RunRecord]], list[float]]) -> Spreads:
    """The spreads of the cells that have all their seeds."""
    whole = {cell: measure(records) for cell, records in cells.items() if len(records) >= SEEDS}
    return {cell: Spread.of(values) for cell, values in whole.items()}


def compute_standard_error(a: Spread, b: Spread) -> float:
    """The standard error of the difference of two means over all seeds."""
    return math.sqrt((a.std**2 + b.std**2) / SEEDS)


def make_order_claims(spreads: Spreads) -> dict[str, list[Claim]]:
    """The claims about the order of the models, by kind."""
    claims: dict[str, list[Claim]] = {
        kind: [] for kind in ("order", "above baselines", "best of Table 1", "best augmented")
    }
    for dataset, title in DATASETS.items():
        found = {model: spread for (where, model), spread in spreads.items() if where == dataset}
        if all(model in found for model in ORDER):
            rises = [
                _compute_lead(found, after, [before]) for before, after in itertools.pairwise(ORDER)
            ]
            claim = f"{title}: the accuracy rises from {' to '.join(ORDER)}"
            claims["order"].append(_claim_lead(claim, min(rises)))
        if all(model in found for model in TABLE_1):
            own = [model for model in TABLE_1 if model not in BASELINES]
            least = min(_compute_lead(found, model, BASELINES) for model in own)
            claim = f"{title}: all NPCDDEs and UNPCDDEs outperform NODE and NDDE"
            claims["above baselines"].append(_claim_lead(claim, least))
        for name, models in {"Table 1": TABLE_1, **_group_by_channels()}.items():
            if all(model in found for model in models):
                kind = "best of Table 1" if name == "Table 1" else "best augmented"
                claims[kind].append(_claim_best(dataset, name, models, found))
    return claims


def _claim_best(
    dataset: str, name: str, models: Sequence[str], spreads: dict[str, Spread]
) -> Claim:
    best = max(models, key=lambda model: paper_accuracy(dataset, model).mean)
    lead = _compute_lead(spreads, best, [model for model in models if model != best])
    return _claim_lead(f"{DATASETS[dataset]}: {best} is the best of {name}", lead)


def _group_by_channels() -> dict[str, list[str]]:
    return {
        f"those with {more} more": [m for m in AUGMENTED if m.startswith(f"{prefix}+")]
        for prefix, more in CHANNELS.items()
    }


class _Lead(NamedTuple):
    """The difference of the means of two models, and its standard error."""

    by: float
    error: float
    model: str
    other: str


def _compute_lead(spreads: dict[str, Spread], model: str, others: Sequence[str]) -> _Lead:
    """The lead over the best of the others."""
    other = max(others, key=lambda other: spreads[other].mean)
    a, b = spreads[model], spreads[other]
    return _Lead(a.mean - b.mean, compute_standard_error(a, b), model, other)


def _claim_lead(claim: str, lead: _Lead) -> Claim:
    detail = f"(the mean of {lead.model} less that of {lead.other})"
    interval = lead.by - 2 * lead.error, lead.by + 2 * lead.error
    return Claim.at_least(f"{claim} {detail}", lead.by, 0.0, "points", interval)


def make_cell_claims(spreads: Spreads) -> list[Claim]:
    claims = []
    for dataset, model in itertools.product(DATASETS, (*TABLE_1, *AUGMENTED)):
        if (dataset, model) in spreads:
            ours, paper = spreads[dataset, model], paper_accuracy(dataset, model)
            distance, error = (
                ours.mean - (paper.mean - paper.std),
                compute_standard_error(ours, paper),
            )
            claims.append(
                Claim.at_least(
                    f"{DATASETS[dataset]}, {model}: the mean accuracy of the best epoch is not "
                    f"below the paper's {paper.mean:.2f} less its standard deviation, "
                    f"{paper.std:.2f} (the distance above this line)",
                    distance,
                    0.0,
                    "points",
                    (distance - 2 * error, distance + 2 * error),
                )
            )
    return claims
