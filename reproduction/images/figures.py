"""The figures of the image classifiers, from the lines of their runs."""

import itertools
from collections.abc import Sequence

import numpy as np

from lagrax.plotting import COLOURS, Figure, Line, Panel, Points

from ..data.errors import join_names
from ..models import AUGMENTED, CHANNELS, DATASETS, TABLE_1
from .protocol import ImageRun
from .records import RunRecord
from .statistics import Cells, Spread, find_same_seeds, group_by_seed, paper_accuracy

# The models whose curves the paper shows.
CURVES = ("NODE", "NDDE", "UNPCDDE5")


def image_figures(default: Cells, other: Sequence[RunRecord]) -> list[Figure]:
    """Of the runs of the paper's tables, and of those in `other` settings."""
    figures = [*_against_the_paper(default), *_curves(default), *_evaluations(default)]
    return figures + _other_curves(other, default)


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


def _curve(lines: Sequence[RunRecord], metric: str, label: str, colour: str) -> Line:
    """The mean over the seeds, within a standard deviation of it."""
    values = np.stack([getattr(line, metric) for line in lines])
    epochs, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
    if len(lines) == 1:
        return Line(epochs, mean, label, colour)
    std = values.std(axis=0, ddof=1)
    return Line(epochs, mean, label, colour, low=mean - std, high=mean + std)


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
        "Test accuracies against those of the paper, a large dot for each model of Table 1 and a "
        "small one for each augmented one; bars are standard deviations over the seeds. Above the "
        "dashed line ours, of the best epoch, is higher."
    )
    return [Figure("against-the-paper", caption, panels, len(panels))] if panels else []


def _marks_against_the_paper(
    dataset: str, models: Sequence[str], cells: Cells
) -> list[Line | Points]:
    ours = {model: Spread.of([line.best for line in cells[dataset, model]]) for model in models}
    paper = {model: paper_accuracy(dataset, model) for model in models}
    family = {model: model.rpartition("+")[2].rstrip("235") for model in models}
    ends = [x.mean for found in (ours, paper) for x in found.values()]
    ends = [min(ends), max(ends)]
    marks: list[Line | Points] = [Line(ends, ends, colour="grey", dashed=True, width=1.0)]
    for model in models:
        (x, dx), (y, dy) = ((s.mean, s.std) for s in (paper[model], ours[model]))
        for across, up in (([x - dx, x + dx], [y, y]), ([x, x], [y - dy, y + dy])):
            marks.append(Line(across, up, colour=_FAMILIES[family[model]], width=0.8))
    for (name, colour), (table, size) in itertools.product(
        _FAMILIES.items(), ((TABLE_1, 8), (AUGMENTED, 4))
    ):
        shown = [model for model in models if family[model] == name and model in table]
        if shown:
            x, y = ([found[m].mean for m in shown] for found in (paper, ours))
            marks.append(Points(x, y, name, colour, size))
    return marks


def _panel(metric: str, groups: dict[str, list[RunRecord]], colours: dict[str, str]) -> Panel:
    curves = [_curve(x, metric, name, colours[name]) for name, x in groups.items()]
    ylim = _late_range(curves) if metric == "test_accuracy" else None
    return Panel(curves, _METRICS[metric], "epoch", ylim=ylim)


def _late_range(curves: Sequence[Line]) -> tuple[float, float] | None:
    """That of the epochs from the tenth on, if there are so many: the first rise would hide all
    differences."""
    bounds = [np.asarray(x) for c in curves for x in (c.y, c.low, c.high) if x is not None]
    if any(len(x) < 11 for x in bounds):
        return None
    low, high = np.concatenate([x[9:] for x in bounds]).min(), np.concatenate(bounds).max()
    return float(low - 0.05 * (high - low)), float(high + 0.05 * (high - low))


def _curves(cells: Cells) -> list[Figure]:
    rows = {
        title: {model: cells[dataset, model] for model in CURVES if (dataset, model) in cells}
        for dataset, title in DATASETS.items()
    }
    rows = {title: models for title, models in rows.items() if models}
    shown = [model for model in CURVES if any(model in models for models in rows.values())]
    panels = [_panel(metric, models, _COLOURS) for models in rows.values() for metric in _METRICS]
    caption = (
        f"Training loss, test loss and test accuracy of {join_names(shown)}: the mean over the "
        "seeds and, shaded, a standard deviation on either side. The first rise of the accuracies "
        "lies below their panels."
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
    panels: dict[str, list[Line]] = {}
    in_order = sorted(
        itertools.product(models, DATASETS),
        key=lambda pair: (pair[0].rpartition("+")[0], [*DATASETS].index(pair[1])),
    )
    for model, dataset in in_order:
        counts = [line.nfe for line in cells.get((dataset, model), []) if line.nfe is not None]
        if counts:
            channels, _, family = model.rpartition("+")
            mean = np.mean(counts, axis=0)
            curve = Line(
                np.arange(1, len(mean) + 1),
                mean,
                family,
                _COLOURS[family],
                dashed=family.startswith("U"),
            )
            title = " + ".join(filter(None, [DATASETS[dataset], channels and CHANNELS[channels]]))
            panels.setdefault(title, []).append(curve)
    curves = [np.asarray(curve.y) for of_panel in panels.values() for curve in of_panel]
    low, high = min(map(np.min, curves), default=0.0), max(map(np.max, curves), default=0.0)
    room = max(0.05 * (high - low), 1.0)
    return [
        Panel(curves, title, "epoch", "evaluations", ylim=(float(low - room), float(high + room)))
        for title, curves in panels.items()
    ]


def _other_curves(lines: Sequence[RunRecord], cells: Cells) -> list[Figure]:
    """A row for each model that has the same seeds in the default setting to stand beside, and one
    for each data set where they are missing."""
    rows: dict[str, dict[str, list[RunRecord]]] = {}
    for run, group in group_by_seed(lines).items():
        title, usual = DATASETS[run.dataset], find_same_seeds(group, cells)
        if usual:
            title = f"{title}, {run.model}"
            rows.setdefault(title, {_DEFAULT: usual})
        rows.setdefault(title, {})[_label(run, bool(usual))] = group
    labels = dict.fromkeys(label for row in rows.values() for label in row if label != _DEFAULT)
    colours = dict(zip(labels, itertools.cycle(COLOURS), strict=False)) | {_DEFAULT: "grey"}
    panels = [_panel(metric, row, colours) for row in rows.values() for metric in _METRICS]
    caption = (
        "Training loss, test loss and test accuracy of runs of other settings: the mean over the "
        "seeds and, shaded, a standard deviation on either side."
    )
    if any(_DEFAULT in row for row in rows.values()):
        caption += f" Next to them stands the {_DEFAULT}."
    return [Figure("other-curves", caption, panels, 3, list(rows))] if rows else []


_DEFAULT = "default setting with the same seeds"


def _label(run: ImageRun, has_row: bool) -> str:
    """What tells it apart."""
    protocol = run.protocol
    words = f"{protocol.describe_solver()}, {protocol.precision}, {protocol.epochs} epochs"
    return words if has_row else f"{run.model}, {words}"
