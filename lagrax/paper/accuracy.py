"""What the image classifiers reached, from the lines of their runs alone: the paper's tables next
to ours, its claims, and the curves.

Tables and claims are of runs as `default_protocol` says, and of the seeds that there are; what is
missing is shown as missing. The paper does not say whether its accuracies are of the last or of
the best epoch: both are shown, and the best one is compared. The test images choose it, so there is
a third one between the two: that of the epoch which is best in the mean of a model's other seeds.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..figures import COLOURS, Figure, Line as Curve, Panel, Points
from .images import AUGMENTED, DATASETS, TABLE_1, Run as ImageRun
from .lines import Line, Spread, grouped, in_words, published, read_lines
from .result import Claim, Result, Run, Table
from .study import belongs_to_study, study_tables

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
    "best in the mean of the model's other seeds. All bars are ours. The paper has the numbers of "
    "NODE and NDDE, augmented or not, from the work on NDDEs before it (Zhu, Guo and Lin, ICLR "
    "2021), and says that its own NDDE has another past."
)

# By rising accuracy, as the paper has it.
ORDER = ("NODE", "NPCDDE5", "UNPCDDE5")
BASELINES = ("NODE", "NDDE")
CURVES = ("NODE", "NDDE", "UNPCDDE5")


def image_result(folder: Path) -> tuple[Result, list[Figure]]:
    """What the lines in `folder` say, with the figures."""
    lines = read_lines(folder)
    default, study, other = _sorted(lines)
    tables = [*_accuracy_tables(default), *(study_tables(study) if study else ())]
    tables += [_other_table(other, default)] if other else []
    figures = [*_against_the_paper(default), *_curves(default), *_evaluations(default)]
    figures += _other_curves(other)
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


Cells = dict[tuple[str, str], list[Line]]


def _sorted(lines: Sequence[Line]) -> tuple[Cells, list[Line], list[Line]]:
    """The cells of the tables, the lines of the study (which shares some of those), and others."""
    default: Cells = {}
    for line in lines:
        if line.is_default:
            default.setdefault((line.run.dataset, line.run.model), []).append(line)
    study = [line for line in lines if belongs_to_study(line)]
    other = [line for line in lines if not line.is_default and not belongs_to_study(line)]
    return default, study if any(not line.is_default for line in study) else [], other


def _machines(lines: Sequence[Line]) -> dict[str, object]:
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
        lines, paper = cells.get((dataset, model), []), published(dataset, model)
        best, last = best_and_last(lines)
        difference = f"{best.mean - paper.mean:+.2f}".replace("-", "−") if lines else "–"
        fine = Spread.of([x.fine_accuracy for x in lines if x.fine_accuracy is not None])
        shown = [best, Spread.of(by_the_others(lines)), last, fine, paper]
        rows.append([model, *map(str, shown), difference, _seeds(lines)])
    columns = ["model", "best epoch", "others' epoch", "last epoch", "last, fine steps", "paper"]
    columns += ["best − paper", "seeds"]
    return Table(columns, rows, title, _reached_note(dataset, models, cells))


def by_the_others(lines: Sequence[Line]) -> list[float]:
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
        lines, paper = cells.get((dataset, model), []), published(dataset, model)
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
    return f" (missed: {_listed(below)})" if below else ""


def best_and_last(lines: Sequence[Line]) -> tuple[Spread, Spread]:
    return Spread.of([x.best for x in lines]), Spread.of([x.last for x in lines])


def _seeds(lines: Sequence[Line]) -> str:
    if not lines:
        return "–"
    return str(len(lines)) if len(lines) >= SEEDS else f"{len(lines)} of {SEEDS}"


def image_claims(cells: Cells) -> list[Claim]:
    """Those that can be decided: of models with all their seeds."""
    reached = {
        cell: Spread.of([line.best for line in lines])
        for cell, lines in cells.items()
        if len(lines) >= SEEDS
    }
    orders = [claim for dataset in DATASETS for claim in _order_claims(dataset, reached)]
    return [*orders, *_cell_claims(reached)]


Reached = dict[tuple[str, str], Spread]


def _order_claims(dataset: str, reached: Reached) -> list[Claim]:
    """What the paper says of its models' order, and which it prints as the best."""
    means = {model: reached[dataset, model] for where, model in reached if where == dataset}
    title, claims = DATASETS[dataset], []
    if all(model in means for model in ORDER):
        rises = [_lead(means, after, [before]) for before, after in itertools.pairwise(ORDER)]
        claims.append(_ahead(f"{title}: the accuracy rises from {' to '.join(ORDER)}", min(rises)))
    if all(model in means for model in TABLE_1):
        own = [model for model in TABLE_1 if model not in BASELINES]
        least = min(_lead(means, model, BASELINES) for model in own)
        claims.append(_ahead(f"{title}: all NPCDDEs and UNPCDDEs outperform NODE and NDDE", least))
    for name, models in {"Table 1": TABLE_1, **_by_channels()}.items():
        if all(model in means for model in models):
            winner = max(models, key=lambda model: published(dataset, model).mean)
            others = [model for model in models if model != winner]
            claim = f"{title}: {winner} is the best of {name}"
            claims.append(_ahead(claim, _lead(means, winner, others)))
    return claims


def _by_channels() -> dict[str, list[str]]:
    return {
        f"those with {more} more": [m for m in AUGMENTED if m.startswith(f"{prefix}+")]
        for prefix, more in _MORE.items()
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
    return _Lead(a.mean - b.mean, math.sqrt((a.std**2 + b.std**2) / SEEDS), model, other)


def _ahead(claim: str, lead: _Lead) -> Claim:
    difference = f"the mean of {lead.model} less that of {lead.other}"
    detail = f"({difference}, with a standard error of {lead.error:.2f})"
    return Claim.at_least(f"{claim} {detail}", lead.by, 0.0, "points")


def _cell_claims(reached: Reached) -> list[Claim]:
    claims = []
    for dataset, model in itertools.product(DATASETS, (*TABLE_1, *AUGMENTED)):
        if (dataset, model) in reached:
            paper = published(dataset, model)
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


def _other_table(lines: Sequence[Line], cells: Cells) -> Table:
    rows = []
    for run, group in grouped(lines).items():
        protocol = run.protocol
        best, last = best_and_last(group)
        settings = [in_words(protocol), protocol.precision, protocol.epochs]
        images = f"{protocol.images:,}" if protocol.images else "all"
        name = f"{DATASETS[run.dataset]}, {run.model}"
        usual = _same_seeds(group, cells.get((run.dataset, run.model), []))
        seeds = str(len(group))
        rows.append([name, *map(str, settings), images, seeds, str(best), str(usual), str(last)])
    columns = ["model", "solver", "field", "epochs", "images", "seeds", "best epoch"]
    columns += ["default's best", "last epoch"]
    note = (
        "Not trained as those of the tables above, and in none of the claims. The default's best "
        "is the best epoch of the same seeds in the default setting, where these are there."
    )
    return Table(columns, rows, "Runs of other settings", note)


def _same_seeds(group: Sequence[Line], default: Sequence[Line]) -> Spread:
    """The best epochs of the default setting, if it has all the seeds of the group."""
    seeds = {line.run.seed for line in group}
    found = [line.best for line in default if line.run.seed in seeds]
    return Spread.of(found if len(found) == len(seeds) else [])


# --- figures --------------------------------------------------------------------------------------

_METRICS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy, %",
}
# Shared fields are light, unshared ones dark and dashed: both are seen where they agree.
_COLOURS = {
    "NODE": "grey",
    "NDDE": "purple",
    "NPCDDE2": "yellow",
    "UNPCDDE2": "green",
    "NPCDDE3": "amber",
    "UNPCDDE3": "orange",
    "NPCDDE5": "sky",
    "UNPCDDE5": "blue",
}

_MORE = {"A1": "1 channel", "A2": "2 channels", "A4": "4 channels"}


def _curve(lines: Sequence[Line], metric: str, label: str, colour: str) -> Curve:
    """The mean over the seeds, within a standard deviation of it."""
    values = np.stack([getattr(line, metric) for line in lines])
    epochs, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
    if len(lines) == 1:
        return Curve(epochs, mean, label, colour)
    std = values.std(axis=0, ddof=1)
    return Curve(epochs, mean, label, colour, low=mean - std, high=mean + std)


# Of the models of a family, whatever their number of intervals.
_FAMILIES = {"NODE": "grey", "NDDE": "purple", "NPCDDE": "sky", "UNPCDDE": "blue"}


def _against_the_paper(cells: Cells) -> list[Figure]:
    panels = []
    for dataset, title in DATASETS.items():
        models = [m for m in (*TABLE_1, *AUGMENTED) if (dataset, m) in cells]
        if models:
            marks = _marks_against_the_paper(dataset, models, cells)
            x = "the paper's test accuracy, %"
            panels.append(Panel(marks, title, x, "ours, best epoch", equal=True))
    caption = (
        "Test accuracies against those of the paper, a dot for each model, augmented ones "
        "included; bars are standard deviations over the seeds. Above the dashed line ours, of the "
        "best epoch, is higher."
    )
    return [Figure("against-the-paper", caption, panels, len(panels))] if panels else []


def _marks_against_the_paper(
    dataset: str, models: Sequence[str], cells: Cells
) -> list[Curve | Points]:
    ours = {model: best_and_last(cells[dataset, model])[0] for model in models}
    paper = {model: published(dataset, model) for model in models}
    family = {model: model.rpartition("+")[2].rstrip("235") for model in models}
    ends = [x.mean for found in (ours, paper) for x in found.values()]
    ends = [min(ends), max(ends)]
    marks: list[Curve | Points] = [Curve(ends, ends, colour="grey", dashed=True, width=1.0)]
    for model in models:
        (x, dx), (y, dy) = ((s.mean, s.std) for s in (paper[model], ours[model]))
        for across, up in (([x - dx, x + dx], [y, y]), ([x, x], [y - dy, y + dy])):
            marks.append(Curve(across, up, colour=_FAMILIES[family[model]], width=0.8))
    for name, colour in _FAMILIES.items():
        of_family = [model for model in models if family[model] == name]
        if of_family:
            x, y = ([found[m].mean for m in of_family] for found in (paper, ours))
            marks.append(Points(x, y, name, colour, size=6))
    return marks


def _curves(cells: Cells) -> list[Figure]:
    rows = {
        title: {model: cells[dataset, model] for model in CURVES if (dataset, model) in cells}
        for dataset, title in DATASETS.items()
    }
    rows = {title: models for title, models in rows.items() if models}
    shown = [model for model in CURVES if any(model in models for models in rows.values())]
    panels = [
        Panel(
            [_curve(x, metric, model, _COLOURS[model]) for model, x in models.items()],
            name,
            "epoch",
        )
        for models in rows.values()
        for metric, name in _METRICS.items()
    ]
    caption = (
        f"Training loss, test loss and test accuracy of {_listed(shown)}: the mean over the seeds "
        "and, shaded, a standard deviation on either side."
    )
    return [Figure("curves", caption, panels, 3, list(rows))] if rows else []


def _evaluations(cells: Cells) -> list[Figure]:
    named = {"evaluations": TABLE_1, "evaluations-augmented": AUGMENTED}
    figures = []
    for name, models in named.items():
        panels = _evaluation_panels(cells, models)
        caption = (
            "Evaluations of the field that an adaptive solver (Dormand and Prince's, tolerance "
            "0.001) needs for a fixed batch of 256 test images, after each epoch: the mean over "
            "the seeds."
        )
        if panels:
            figures.append(Figure(name, caption, panels, min(3, len(panels))))
    return figures


def _evaluation_panels(cells: Cells, models: Sequence[str]) -> list[Panel]:
    """One for each data set and number of channels, all to one scale."""
    panels: dict[str, list[Curve]] = {}
    in_order = sorted(
        itertools.product(models, DATASETS),
        key=lambda pair: (pair[0].rpartition("+")[0], [*DATASETS].index(pair[1])),
    )
    for model, dataset in in_order:
        counts = [line.nfe for line in cells.get((dataset, model), []) if line.nfe is not None]
        if counts:
            channels, _, family = model.rpartition("+")
            mean = np.mean(counts, axis=0)
            curve = Curve(
                np.arange(1, len(mean) + 1),
                mean,
                family,
                _COLOURS[family],
                dashed=family.startswith("U"),
            )
            title = " + ".join(filter(None, [DATASETS[dataset], channels and _MORE[channels]]))
            panels.setdefault(title, []).append(curve)
    curves = [np.asarray(curve.y) for of_panel in panels.values() for curve in of_panel]
    low, high = min(map(np.min, curves), default=0.0), max(map(np.max, curves), default=0.0)
    room = max(0.05 * (high - low), 1.0)
    return [
        Panel(curves, title, "epoch", "evaluations", ylim=(float(low - room), float(high + room)))
        for title, curves in panels.items()
    ]


def _other_curves(lines: Sequence[Line]) -> list[Figure]:
    rows: dict[str, dict[ImageRun, list[Line]]] = {}
    for run, group in grouped(lines).items():
        rows.setdefault(DATASETS[run.dataset], {})[run] = group
    labels = {run: _label(run, groups) for groups in rows.values() for run in groups}
    colours = dict(zip(dict.fromkeys(labels.values()), itertools.cycle(COLOURS), strict=False))
    panels = [
        Panel(
            [_curve(x, metric, labels[run], colours[labels[run]]) for run, x in groups.items()],
            name,
            "epoch",
        )
        for groups in rows.values()
        for metric, name in _METRICS.items()
    ]
    caption = "Training loss, test loss and test accuracy of runs of other settings."
    return [Figure("other-curves", caption, panels, 3, list(rows))] if rows else []


def _label(run: ImageRun, groups: dict[ImageRun, list[Line]]) -> str:
    """The model, and more where the same one was trained in several ways."""
    if sum(other.model == run.model for other in groups) == 1:
        return run.model
    protocol = run.protocol
    return f"{run.model}, {in_words(protocol)}, {protocol.precision}, {protocol.epochs} epochs"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
