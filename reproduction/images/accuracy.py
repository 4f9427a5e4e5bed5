"""What the image classifiers reached, from the lines of their runs alone: the paper's tables next
to ours, and its claims.

Tables and claims are of runs as `default_protocol` says, and of the seeds that there are; what is
missing is shown as missing. The paper does not say whether its accuracies are of the last or of
the best epoch: both are shown, and the best one is compared. The test images choose it, so there is
a third one between the two: that of the epoch which is best in the mean of a model's other seeds.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lagrax.plotting import Figure

from ..data.errors import join_names
from ..models import AUGMENTED, CHANNELS, DATASETS, TABLE_1
from ..result import Claim, Result, Run, Table
from .figures import image_figures
from .protocol_study import belongs_to_study, study_tables
from .records import RunRecord, read_records
from .statistics import Cells, Spread, find_same_seeds, group_by_seed, paper_accuracy
from .validation_study import belongs_to_validation, validation_tables

# As many as the paper has.
SEEDS = 5

ABOUT = (
    "The paper's classifiers of images, trained by Adam on images as floats in [0, 1] and nothing "
    "else."
)
ABOUT_TABLES = (
    " An accuracy is that on all test images, in percent: mean ± standard deviation over the "
    f"seeds, of which each model has {SEEDS} in the end; – is what has not been trained. The paper "
    "does not say which epoch its accuracies are of. The best one is compared with them; it is "
    "found by the test images themselves, which flatters. The others' epoch is the one that is "
    "best in the mean of the model's other seeds, of equal ones the first. All bars are ours. The "
    "paper has the numbers of NODE and NDDE, augmented or not, from the work on NDDEs before it "
    "(Zhu, Guo and Lin, ICLR 2021), and says that its own NDDE has another past."
)

# By rising accuracy, as the paper has it.
ORDER = ("NODE", "NPCDDE5", "UNPCDDE5")
BASELINES = ("NODE", "NDDE")


def image_result(folder: Path) -> tuple[Result, list[Figure]]:
    """What the lines in `folder` say, with the figures."""
    lines = read_records(folder)
    default, study, validated, other = _sorted(lines)
    tables = [*_measures_table(default), *_accuracy_tables(default)]
    tables += validation_tables(validated, default)
    tables += study_tables(study) if study else ()
    tables += [_other_table(other, default)] if other else []
    figures = image_figures(default, other)
    result = Result(
        experiment="images",
        title="Image classification",
        about=ABOUT + (ABOUT_TABLES if default else ""),
        quick=folder.resolve().name.endswith("-quick"),
        machine=_machines(lines),
        seconds=round(sum(line.seconds for line in lines), 2),
        runs=[Run(line.run.name, line.seconds) for line in lines],
        claims=image_claims(default),
        tables=tables,
        figures=[figure.name for figure in figures],
    )
    return result, figures


def _sorted(
    lines: Sequence[RunRecord],
) -> tuple[Cells, list[RunRecord], list[RunRecord], list[RunRecord]]:
    """The cells of the tables, the lines of the protocol study (which shares some of those), those
    of the validation study, and others."""
    default: Cells = {}
    for line in lines:
        if line.is_default:
            default.setdefault((line.run.dataset, line.run.model), []).append(line)
    study = [line for line in lines if belongs_to_study(line)]
    validated = [line for line in lines if belongs_to_validation(line)]
    known = (*itertools.chain(*default.values()), *study, *validated)
    other = [line for line in lines if all(line is not x for x in known)]
    return default, study if any(not line.is_default for line in study) else [], validated, other


def _machines(lines: Sequence[RunRecord]) -> dict[str, object]:
    """Devices and versions, all that occur."""
    names = dict.fromkeys(name for line in lines for name in line.versions)
    versions = {
        name: ", ".join(dict.fromkeys(str(line.versions.get(name, "–")) for line in lines))
        for name in names
    }
    devices = dict.fromkeys(line.device for line in lines)
    return {"device": ", ".join(devices), "versions": versions}


# --- tables and claims ----------------------------------------------------------------------------


def _accuracy_tables(cells: Cells) -> list[Table]:
    if not cells:
        return []
    named = {"Table 1": TABLE_1, "Augmented models": AUGMENTED}
    return [
        _accuracy_table(f"{title}, {DATASETS[dataset]}", dataset, models, cells)
        for title, models in named.items()
        for dataset in DATASETS
    ]


def _accuracy_table(title: str, dataset: str, models: Sequence[str], cells: Cells) -> Table:
    rows = []
    for model in models:
        lines, paper = cells.get((dataset, model), []), paper_accuracy(dataset, model)
        shown = [Spread.of(measure(lines)) for measure in _MEASURES.values()]
        difference = f"{shown[0].mean - paper.mean:+.2f}".replace("-", "−") if lines else "–"
        rows.append([model, *map(str, [*shown, paper]), difference, _seeds(lines)])
    columns = ["model", *_MEASURES, "paper", "best − paper", "seeds"]
    return Table(columns, rows, title, _reached_note(dataset, models, cells))


def by_the_others(lines: Sequence[RunRecord]) -> list[float]:
    """The accuracy of each seed at the epoch that is best in the mean of the others."""
    if len(lines) < 2:
        return []
    accuracies = np.nan_to_num([line.test_accuracy for line in lines])
    # Of equal epochs the first: rounding must not choose.
    others = np.round((accuracies.sum(axis=0) - accuracies) / (len(lines) - 1), 6)
    return np.take_along_axis(accuracies, others.argmax(axis=1)[:, None], axis=1)[:, 0].tolist()


def _reached_note(dataset: str, models: Sequence[str], cells: Cells) -> str:
    """How many of the models with all their seeds reach the paper's, and which do not."""
    left = {}
    for model in models:
        lines, paper = cells.get((dataset, model), []), paper_accuracy(dataset, model)
        if len(lines) >= SEEDS:
            best, last = best_and_last(lines)
            kinds = (best, Spread.of(by_the_others(lines)), last)
            left[model] = [x.mean - (paper.mean - paper.std) for x in kinds]
    if not left:
        return ""
    best, others, last = [sum(x[i] >= 0 for x in left.values()) for i in range(3)]
    lower = np.mean([x[0] - x[1] for x in left.values()])
    below = [f"{model} by {-x[0]:.2f} points" for model, x in left.items() if x[0] < 0]
    noun = "model" if len(left) == 1 else "models"
    return (
        f"By their best epoch {best} of the {len(left)} {noun} with {SEEDS} seeds reach the "
        f"paper's mean less its standard deviation{_in_brackets(below)}; by the others' epoch, "
        f"{lower:.2f} points lower in the mean, it is {others}, and by their last {last}."
    )


def _in_brackets(below: Sequence[str]) -> str:
    return f" (missed: {join_names(below)})" if below else ""


def best_and_last(lines: Sequence[RunRecord]) -> tuple[Spread, Spread]:
    return Spread.of([x.best for x in lines]), Spread.of([x.last for x in lines])


_MEASURES: dict[str, Callable[[Sequence[RunRecord]], list[float]]] = {
    "best epoch": lambda lines: [x.best for x in lines],
    "others' epoch": by_the_others,
    "last epoch": lambda lines: [x.last for x in lines],
    "last, fine steps": lambda lines: [
        x.fine_accuracy for x in lines if x.fine_accuracy is not None
    ],
}


def _seeds(lines: Sequence[RunRecord]) -> str:
    if not lines:
        return "–"
    return str(len(lines)) if len(lines) >= SEEDS else f"{len(lines)} of {SEEDS}"


def image_claims(cells: Cells) -> list[Claim]:
    """Those that can be decided: of models with all their seeds, by their best epoch."""
    reached = _reached(cells, _MEASURES["best epoch"])
    return [*itertools.chain(*_order_claims(reached).values()), *_cell_claims(reached)]


Reached = dict[tuple[str, str], Spread]


def _reached(cells: Cells, measure: Callable[[Sequence[RunRecord]], list[float]]) -> Reached:
    whole = {cell: measure(lines) for cell, lines in cells.items() if len(lines) >= SEEDS}
    return {cell: Spread.of(values) for cell, values in whole.items()}


def _measures_table(cells: Cells) -> list[Table]:
    """How much depends on the epoch that is taken."""
    if not any(len(lines) >= SEEDS for lines in cells.values()):
        return []
    rows = []
    for name, measure in _MEASURES.items():
        reached = _reached(cells, measure)
        kinds = [_cell_claims(reached), *_order_claims(reached).values()]
        cells_hold, *orders_hold = [f"{sum(c.holds for c in k)} of {len(k)}" for k in kinds]
        rows.append([name, cells_hold, *_beside_the_paper(reached), *orders_hold])
    columns = ["accuracy", "cells that reach the paper's", "clearly below it", "clearly above it"]
    columns += _order_claims({})
    note = (
        "A cell, a model on a data set, reaches the paper's where its mean is not below the "
        "paper's less its standard deviation, and is clearly below or above it where the two means "
        "are more than two standard errors of their difference apart, of which chance alone makes "
        "some. The other columns are what the paper says of the "
        "order of its models: UNPCDDE5 above NPCDDE5 above NODE; all NPCDDEs and UNPCDDEs above "
        "NODE and NDDE; the model that it has as the best of Table 1, and of those with as many "
        "channels more."
    )
    return [Table(columns, rows, "By each accuracy, how much holds", note)]


def _beside_the_paper(reached: Reached) -> tuple[str, str]:
    """How many cells are below the paper's by more than two standard errors, and how many above."""
    leads = []
    for cell, ours in reached.items():
        paper = paper_accuracy(*cell)
        leads.append((ours.mean - paper.mean) / _standard_error(ours, paper))
    return str(sum(x < -2 for x in leads)), str(sum(x > 2 for x in leads))


def _standard_error(a: Spread, b: Spread) -> float:
    """That of the difference of two means over all seeds."""
    return math.sqrt((a.std**2 + b.std**2) / SEEDS)


def _order_claims(reached: Reached) -> dict[str, list[Claim]]:
    """What the paper says of its models' order, and which it prints as the best."""
    claims: dict[str, list[Claim]] = {
        kind: [] for kind in ("order", "above baselines", "best of Table 1", "best augmented")
    }
    for dataset, title in DATASETS.items():
        means = {model: reached[dataset, model] for where, model in reached if where == dataset}
        if all(model in means for model in ORDER):
            rises = [_lead(means, after, [before]) for before, after in itertools.pairwise(ORDER)]
            claim = f"{title}: the accuracy rises from {' to '.join(ORDER)}"
            claims["order"].append(_ahead(claim, min(rises)))
        if all(model in means for model in TABLE_1):
            own = [model for model in TABLE_1 if model not in BASELINES]
            least = min(_lead(means, model, BASELINES) for model in own)
            claim = f"{title}: all NPCDDEs and UNPCDDEs outperform NODE and NDDE"
            claims["above baselines"].append(_ahead(claim, least))
        for name, models in {"Table 1": TABLE_1, **_by_channels()}.items():
            if all(model in means for model in models):
                kind = "best of Table 1" if name == "Table 1" else "best augmented"
                claims[kind].append(_best_claim(dataset, name, models, means))
    return claims


def _best_claim(dataset: str, name: str, models: Sequence[str], means: dict[str, Spread]) -> Claim:
    best = max(models, key=lambda model: paper_accuracy(dataset, model).mean)
    lead = _lead(means, best, [model for model in models if model != best])
    return _ahead(f"{DATASETS[dataset]}: {best} is the best of {name}", lead)


def _by_channels() -> dict[str, list[str]]:
    return {
        f"those with {more} more": [m for m in AUGMENTED if m.startswith(f"{prefix}+")]
        for prefix, more in CHANNELS.items()
    }


class _Lead(NamedTuple):
    """By how much the mean of `model` is above that of `other`, and the standard error of that."""

    by: float
    error: float
    model: str
    other: str


def _lead(means: dict[str, Spread], model: str, others: Sequence[str]) -> _Lead:
    """Over the best of the others."""
    other = max(others, key=lambda other: means[other].mean)
    a, b = means[model], means[other]
    return _Lead(a.mean - b.mean, _standard_error(a, b), model, other)


def _ahead(claim: str, lead: _Lead) -> Claim:
    difference = f"the mean of {lead.model} less that of {lead.other}"
    detail = f"({difference}, with a standard error of {lead.error:.2f})"
    return Claim.at_least(f"{claim} {detail}", lead.by, 0.0, "points")


def _cell_claims(reached: Reached) -> list[Claim]:
    claims = []
    for dataset, model in itertools.product(DATASETS, (*TABLE_1, *AUGMENTED)):
        if (dataset, model) in reached:
            paper = paper_accuracy(dataset, model)
            claims.append(
                Claim.at_least(
                    f"{DATASETS[dataset]}, {model}: the mean accuracy of the best epoch is not "
                    f"below the paper's {paper.mean:.2f} less its standard deviation, "
                    f"{paper.std:.2f} (what is left)",
                    reached[dataset, model].mean - (paper.mean - paper.std),
                    0.0,
                    "points",
                )
            )
    return claims


def _other_table(lines: Sequence[RunRecord], cells: Cells) -> Table:
    rows = []
    for run, group in group_by_seed(lines).items():
        protocol = run.protocol
        best, last = best_and_last(group)
        settings = [protocol.describe_solver(), protocol.precision, protocol.epochs]
        images = f"{protocol.images:,}" if protocol.images else "all"
        name = f"{DATASETS[run.dataset]}, {run.model}"
        usual = Spread.of([line.best for line in find_same_seeds(group, cells)])
        seeds = str(len(group))
        rows.append([name, *map(str, settings), images, seeds, str(best), str(usual), str(last)])
    columns = ["model", "solver", "field", "epochs", "images", "seeds", "best epoch"]
    columns += ["default's best", "last epoch"]
    note = (
        "Not trained as those of the paper's tables, and in none of the claims. The default's best "
        "is the best epoch of the same seeds in the default setting, where these are there."
    )
    return Table(columns, rows, "Runs of other settings", note)
