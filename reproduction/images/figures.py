"""The figures of the image classifiers, made of the records of their runs."""

import itertools
from collections.abc import Sequence

import numpy as np

from lagrax.plotting import COLOURS, Figure, Line, Panel, Points

from ..data.errors import join_names
from ..models import AUGMENTED, CHANNELS, DATASETS, TABLE_1
from .evaluations import ORIGIN, count_above_least
from .protocol import ImageRun
from .records import RunRecord
from .statistics import Cells, Spread, find_same_seeds, get_best, group_by_seed, paper_accuracy

# The models whose curves the paper shows.
CURVES = ("NODE", "NDDE", "UNPCDDE5")

_METRICS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy, %",
}
# Shared fields are light, unshared ones dark and dashed, so that both are visible if they agree.
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
# By family, for models of any number of intervals.
_FAMILIES = {"NODE": "grey", "NDDE": "purple", "NPCDDE": "sky", "UNPCDDE": "blue"}

_DEFAULT = "default setting with the same seeds"


def image_figures(default: Cells, other: Sequence[RunRecord]) -> list[Figure]:
    """The figures of the runs of the paper's tables, and of those in `other` settings."""
    return [
        *_draw_against_the_paper(default),
        *_draw_curves(default),
        *_draw_evaluations(default),
        *_draw_other_curves(other, default),
    ]


# --- against the paper ----------------------------------------------------------------------------


def _draw_against_the_paper(cells: Cells) -> list[Figure]:
    panels = []
    for dataset, title in DATASETS.items():
        models = [m for m in (*TABLE_1, *AUGMENTED) if (dataset, m) in cells]
        if models:
            marks = _draw_models(dataset, models, cells)
            x = "the paper's test accuracy, %"
            panels.append(Panel(marks, title, x, "ours, best epoch", equal=True))
    caption = (
        "Test accuracies here against those of the paper, with a large dot for each model of Table "
        "1 and a small one for each augmented model. Bars are standard deviations over the seeds. "
        "Above the dashed line our accuracy at the best epoch is higher."
    )
    return [Figure("against-the-paper", caption, panels, len(panels))] if panels else []


def _draw_models(dataset: str, models: Sequence[str], cells: Cells) -> list[Line | Points]:
    ours = {model: Spread.of(get_best(cells[dataset, model])) for model in models}
    paper = {model: paper_accuracy(dataset, model) for model in models}
    family = {model: model.rpartition("+")[2].rstrip("235") for model in models}
    means = [x.mean for spreads in (ours, paper) for x in spreads.values()]
    ends = [min(means), max(means)]
    marks: list[Line | Points] = [Line(ends, ends, colour="grey", dashed=True, width=1.0)]
    for model in models:
        (x, dx), (y, dy) = ((s.mean, s.std) for s in (paper[model], ours[model]))
        for xs, ys in (([x - dx, x + dx], [y, y]), ([x, x], [y - dy, y + dy])):
            marks.append(Line(xs, ys, colour=_FAMILIES[family[model]], width=0.8))
    for (name, colour), (table, size) in itertools.product(
        _FAMILIES.items(), ((TABLE_1, 8), (AUGMENTED, 4))
    ):
        shown = [model for model in models if family[model] == name and model in table]
        if shown:
            x, y = ([spreads[m].mean for m in shown] for spreads in (paper, ours))
            marks.append(Points(x, y, name, colour, size))
    return marks


# --- over the epochs ------------------------------------------------------------------------------


def _draw_curves(cells: Cells) -> list[Figure]:
    rows = {
        title: {model: cells[dataset, model] for model in CURVES if (dataset, model) in cells}
        for dataset, title in DATASETS.items()
    }
    rows = {title: models for title, models in rows.items() if models}
    shown = [model for model in CURVES if any(model in models for models in rows.values())]
    panels = [
        _make_panel(metric, models, _COLOURS) for models in rows.values() for metric in _METRICS
    ]
    caption = (
        f"Training loss, test loss and test accuracy of {join_names(shown)}: mean over the seeds "
        "and, shaded, one standard deviation on either side. The first rise of the accuracies is "
        "cut off."
    )
    return [Figure("curves", caption, panels, 3, list(rows))] if rows else []


def _draw_other_curves(records: Sequence[RunRecord], cells: Cells) -> list[Figure]:
    """A row for each model that has the same seeds in the default setting, and a row for each data
    set with the other models."""
    rows: dict[str, dict[str, list[RunRecord]]] = {}
    for run, group in group_by_seed(records).items():
        title, default = DATASETS[run.dataset], find_same_seeds(group, cells)
        if default:
            title = f"{title}, {run.model}"
            rows.setdefault(title, {_DEFAULT: default})
        rows.setdefault(title, {})[_make_label(run, bool(default))] = group
    labels = dict.fromkeys(label for row in rows.values() for label in row if label != _DEFAULT)
    colours = dict(zip(labels, itertools.cycle(COLOURS), strict=False)) | {_DEFAULT: "grey"}
    panels = [_make_panel(metric, row, colours) for row in rows.values() for metric in _METRICS]
    caption = (
        "Training loss, test loss and test accuracy of runs of other settings: mean over the "
        "seeds and, shaded, one standard deviation on either side."
    )
    if any(_DEFAULT in row for row in rows.values()):
        caption += f" The {_DEFAULT} is drawn in grey."
    return [Figure("other-curves", caption, panels, 3, list(rows))] if rows else []


def _make_label(run: ImageRun, has_row: bool) -> str:
    """The setting of a run, and its model if that does not name the row."""
    protocol = run.protocol
    words = f"{protocol.describe_solver()}, {protocol.precision}, {protocol.epochs} epochs"
    return words if has_row else f"{run.model}, {words}"


def _make_panel(metric: str, groups: dict[str, list[RunRecord]], colours: dict[str, str]) -> Panel:
    lines = [_make_line(x, metric, name, colours[name]) for name, x in groups.items()]
    ylim = find_late_range(lines) if metric == "test_accuracy" else None
    return Panel(lines, _METRICS[metric], "epoch", ylim=ylim)


def _make_line(records: Sequence[RunRecord], metric: str, label: str, colour: str) -> Line:
    """The mean over the seeds, within one standard deviation."""
    values = np.stack([getattr(record, metric) for record in records])
    epochs, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
    if len(records) == 1:
        return Line(epochs, mean, label, colour)
    std = values.std(axis=0, ddof=1)
    return Line(epochs, mean, label, colour, low=mean - std, high=mean + std)


def find_late_range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The range from the tenth epoch on, if there are more, because the first rise would hide all
    differences."""
    bounds = [np.asarray(x) for c in lines for x in (c.y, c.low, c.high) if x is not None]
    if any(len(x) < 11 for x in bounds):
        return None
    low, high = np.concatenate([x[9:] for x in bounds]).min(), np.concatenate(bounds).max()
    return float(low - 0.05 * (high - low)), float(high + 0.05 * (high - low))


# --- evaluations of the field ---------------------------------------------------------------------


def _draw_evaluations(cells: Cells) -> list[Figure]:
    tables = {"evaluations": TABLE_1, "evaluations-augmented": AUGMENTED}
    figures = []
    for name, models in tables.items():
        panels = _make_evaluation_panels(cells, models)
        caption = (
            "Evaluations of the field, above the least number, that an adaptive solver (Dormand "
            "and Prince's, tolerance 0.001) needs for a fixed batch of 256 test images after each "
            f"epoch: mean over the seeds. {ORIGIN}"
        )
        if panels:
            figures.append(Figure(name, caption, panels, min(3, len(panels))))
    return figures


def _make_evaluation_panels(cells: Cells, models: Sequence[str]) -> list[Panel]:
    """One for each data set and number of channels, all with one scale."""
    panels: dict[str, list[Line]] = {}
    in_order = sorted(
        itertools.product(models, DATASETS),
        key=lambda pair: (pair[0].rpartition("+")[0], [*DATASETS].index(pair[1])),
    )
    for model, dataset in in_order:
        counts = count_above_least(model, cells.get((dataset, model), []))
        if counts.size:
            channels, _, family = model.rpartition("+")
            mean, dashed = counts.mean(axis=0), family.startswith("U")
            epochs = np.arange(1, len(mean) + 1)
            line = Line(epochs, mean, family, _COLOURS[family], dashed=dashed)
            title = " + ".join(filter(None, [DATASETS[dataset], channels and CHANNELS[channels]]))
            panels.setdefault(title, []).append(line)
    means = [np.asarray(line.y, float) for lines in panels.values() for line in lines]
    highest = max(map(np.max, means), default=0.0)
    ylim = (0.0, 1.05 * float(highest) + 1.0)
    return [
        Panel(lines, title, "epoch", "evaluations above the least", ylim=ylim)
        for title, lines in panels.items()
    ]
