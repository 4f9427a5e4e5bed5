"""The result of the image classifiers, made of the records of their runs alone.

Tables and claims take runs that follow `default_protocol`. The paper does not say whether its
accuracies are those of the last or of the best epoch. Both are shown, and the best one is compared.
Since the test images choose it, the tables also have a cross-validated epoch, chosen on the other
seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lagrax.plotting import Figure

from ..data.errors import join_names
from ..models import AUGMENTED, DATASETS, TABLE_1
from ..result import Result, ResultTable, TrainingTime
from .ablation_study import (
    ablation_tables,
    belongs_to_continuity,
    belongs_to_recipe,
    continuity_tables,
    recipe_tables,
)
from .claims import (
    Comparison,
    Spreads,
    compare_cells,
    compare_orders,
    compute_spreads,
    image_claims,
)
from .evaluations import evaluation_tables
from .figures import image_figures
from .protocol_study import belongs_to_study, study_tables
from .records import RunRecord, read_records
from .statistics import (
    MEASURES,
    SEEDS,
    Cells,
    Spread,
    find_same_seeds,
    get_best,
    get_cross_validated,
    get_last,
    group_by_seed,
    paper_accuracy,
)
from .validation_study import belongs_to_validation, validation_tables

ABOUT = (
    "The paper's image classifiers, trained with Adam on images as floats in [0, 1], without "
    "normalisation or augmentation."
)
ABOUT_TABLES = (
    " Accuracies are those on all test images in percent, as mean ± standard deviation over the "
    f"seeds. A whole cell has {SEEDS} seeds; – marks a missing one. The paper does not say at "
    "which epoch it measures. Its accuracies are compared with ours at the best epoch. The test "
    "images choose this epoch, so the comparison favours our numbers. The cross-validated epoch "
    "is the first that is best in the mean of the model's other seeds. The targets of the claims "
    "are ours. The paper takes the numbers of NODE and NDDE, augmented or not, from earlier work "
    "on NDDEs (Zhu, Guo and Lin, ICLR 2021), and says that its own NDDE has another past."
)


def image_result(folder: Path) -> tuple[Result, list[Figure]]:
    """The result of all records in `folder`, with its figures."""
    quick = folder.resolve().name.endswith("-quick")
    return make_image_result(read_records(folder), quick)


def make_image_result(
    records: Sequence[RunRecord], quick: bool = False
) -> tuple[Result, list[Figure]]:
    groups = divide_records(records)
    tables = [*_make_measures_table(groups.default), *_make_accuracy_tables(groups.default)]
    tables += validation_tables(groups.validation, groups.default)
    tables += [*ablation_tables(groups.validation), *recipe_tables(groups.recipe)]
    tables += continuity_tables(groups.continuity, groups.default)
    tables += evaluation_tables(groups.default)
    tables += study_tables(groups.study) if groups.study else ()
    tables += [_make_other_table(groups.other, groups.default)] if groups.other else []
    tables += _make_commit_table(records)
    figures = image_figures(groups.default, groups.other)
    result = Result(
        experiment="images",
        title="Image classification",
        about=ABOUT + (ABOUT_TABLES if groups.default else ""),
        finding=_make_finding(groups.default),
        quick=quick,
        machine=_describe_machines(records),
        seconds=round(sum(record.seconds for record in records), 2),
        trainings=[TrainingTime(record.run.name, record.seconds) for record in records],
        claims=image_claims(groups.default),
        tables=tables,
        figures=[figure.name for figure in figures],
    )
    return result, figures


def _make_finding(cells: Cells) -> str:
    """One sentence on the whole cells. Empty if there are none."""
    spreads = compute_spreads(cells, get_best)
    if not spreads:
        return ""
    cells_reached = _count_reached(compare_cells(spreads))
    orders = compare_orders(spreads)["above baselines"]
    above = (
        f", and all NPCDDEs and UNPCDDEs are above NODE and NDDE on {_count_reached(orders)} data "
        "sets"
    )
    return (
        f"At the best epoch, {cells_reached} pairs of model and data set reach the "
        f"paper's mean accuracy less its standard deviation{above if orders else ''}."
    )


def _count_reached(comparisons: Sequence[Comparison]) -> str:
    """The claims that the means bear out, within their uncertainty or not."""
    return f"{sum(x.is_reached for x in comparisons)} of {len(comparisons)}"


class RecordGroups(NamedTuple):
    """The records of the paper's tables, of each study, and of other settings.

    The protocol study shares some records with the tables.
    """

    default: Cells
    study: list[RunRecord]
    validation: list[RunRecord]
    recipe: list[RunRecord]
    continuity: list[RunRecord]
    other: list[RunRecord]


def divide_records(records: Sequence[RunRecord]) -> RecordGroups:
    default: Cells = {}
    validation, study, recipe, continuity, other = [], [], [], [], []
    for record in records:
        in_study = belongs_to_study(record)
        if in_study:
            study.append(record)
        if record.is_default:
            default.setdefault((record.dataset, record.model), []).append(record)
        elif belongs_to_validation(record):
            validation.append(record)
        elif belongs_to_recipe(record):
            recipe.append(record)
        elif belongs_to_continuity(record):
            continuity.append(record)
        elif not in_study:
            other.append(record)
    # Without other settings there is nothing to study.
    study = study if any(not record.is_default for record in study) else []
    return RecordGroups(default, study, validation, recipe, continuity, other)


def _describe_machines(records: Sequence[RunRecord]) -> dict[str, object]:
    """All devices and all versions of each package."""
    names = dict.fromkeys(name for record in records for name in record.versions)
    versions = {
        name: ", ".join(dict.fromkeys(str(x.versions.get(name, "–")) for x in records))
        for name in names
    }
    devices = dict.fromkeys(record.device for record in records)
    return {"device": ", ".join(devices), "versions": versions}


# --- tables ---------------------------------------------------------------------------------------


def _make_accuracy_tables(cells: Cells) -> list[ResultTable]:
    if not cells:
        return []
    models = {"Table 1": TABLE_1, "Augmented models": AUGMENTED}
    return [
        _make_accuracy_table(f"{title}, {DATASETS[dataset]}", dataset, names, cells)
        for title, names in models.items()
        for dataset in DATASETS
    ]


def _make_accuracy_table(
    title: str, dataset: str, models: Sequence[str], cells: Cells
) -> ResultTable:
    rows = []
    for model in models:
        records, paper = cells.get((dataset, model), []), paper_accuracy(dataset, model)
        measured = [measure(records) for measure in MEASURES.values()]
        best, *others = [str(Spread.of(values)) for values in measured]
        medians = [_show_median(values) for values in (measured[0], measured[-1])]
        difference = f"{np.mean(measured[0]) - paper.mean:+.2f}" if records else "–"
        difference = difference.replace("-", "−")
        seeds = _show_seeds(records)
        rows.append([model, best, medians[0], *others, medians[1], str(paper), difference, seeds])
    first, *other_names = MEASURES
    columns = ["model", first, "median", *other_names, "median", "paper", "best − paper", "seeds"]
    return ResultTable(columns, rows, title, _note_reached(dataset, models, cells))


def _show_median(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f}" if values else "–"


def _show_seeds(records: Sequence[RunRecord]) -> str:
    if not records:
        return "–"
    return str(len(records)) if len(records) >= SEEDS else f"{len(records)} of {SEEDS}"


def _note_reached(dataset: str, models: Sequence[str], cells: Cells) -> str:
    """A sentence on the whole cells that reach the paper's mean less its standard deviation."""
    distances = {}
    for model in models:
        records, paper = cells.get((dataset, model), []), paper_accuracy(dataset, model)
        if len(records) >= SEEDS:
            measured = [get_best(records), get_cross_validated(records), get_last(records)]
            distances[model] = [np.mean(x) - (paper.mean - paper.std) for x in measured]
    if not distances:
        return ""
    best, cross_validated, last = [sum(x[i] >= 0 for x in distances.values()) for i in range(3)]
    lower = np.mean([x[0] - x[1] for x in distances.values()])
    below = [f"{model} by {-x[0]:.2f} points" for model, x in distances.items() if x[0] < 0]
    missed = f" (missed: {join_names(below)})" if below else ""
    noun = "model" if len(distances) == 1 else "models"
    return (
        f"At the best epoch, {best} of the {len(distances)} {noun} with {SEEDS} seeds reach the "
        f"paper's mean less its standard deviation{missed}. At the cross-validated epoch, "
        f"{lower:.2f} points lower in the mean, {cross_validated} do; at the last, {last}."
    )


def _make_measures_table(cells: Cells) -> list[ResultTable]:
    """How many claims hold, by the epoch of the accuracies."""
    if not any(len(records) >= SEEDS for records in cells.values()):
        return []
    rows = []
    for name, measure in MEASURES.items():
        spreads = compute_spreads(cells, measure)
        kinds = [compare_cells(spreads), *compare_orders(spreads).values()]
        reached, *orders = map(_count_reached, kinds)
        rows.append([name, reached, *_count_clear_differences(spreads), *orders])
    columns = ["accuracy", "reach the paper", "clearly below", "clearly above"]
    columns += compare_orders({})
    note = (
        "A cell is a model on a data set. It reaches the paper if its mean is not below the "
        "paper's mean less its standard deviation. It is clearly below or above if the means are "
        "more than two standard errors of their difference apart; chance alone causes some of "
        "these. The other columns count the paper's claims about the order of its models: "
        "UNPCDDE5 above NPCDDE5 above NODE; all NPCDDEs and UNPCDDEs above NODE and NDDE; the "
        "best model of Table 1; the best model for each number of added channels. All counts "
        "compare means; the claims below also take their uncertainty into account. Fine steps "
        "solve the trained model anew, by Tsit5 with sixty evaluations at least, in float32."
    )
    return [ResultTable(columns, rows, "How much holds, by the epoch of the accuracies", note)]


def _count_clear_differences(spreads: Spreads) -> tuple[str, str]:
    """The number of cells more than two standard errors below the paper, and above it."""
    pairs = [Comparison("", ours, paper_accuracy(*cell)) for cell, ours in spreads.items()]
    leads = [pair.difference / pair.error for pair in pairs]
    return str(sum(x < -2 for x in leads)), str(sum(x > 2 for x in leads))


def _make_other_table(records: Sequence[RunRecord], cells: Cells) -> ResultTable:
    rows = []
    for run, group in group_by_seed(records).items():
        protocol = run.protocol
        images = f"{protocol.images:,}" if protocol.images else "all"
        default = find_same_seeds(group, cells)
        rows.append(
            [
                f"{DATASETS[run.dataset]}, {run.model}",
                protocol.describe_solver(),
                protocol.precision,
                str(protocol.epochs),
                images,
                str(len(group)),
                *(str(Spread.of(x)) for x in (get_best(group), get_best(default), get_last(group))),
            ]
        )
    columns = ["model", "solver", "field", "epochs", "images", "seeds", "best epoch"]
    columns += ["default's best", "last epoch"]
    note = (
        "These runs are in none of the claims, since their protocol is not the default one. The "
        "default's best is the best epoch of the same seeds in the default setting, if all of "
        "them exist."
    )
    return ResultTable(columns, rows, "Runs of other settings", note)


def _make_commit_table(records: Sequence[RunRecord]) -> list[ResultTable]:
    """The code that each run was trained with, if it ran from a git checkout."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if commit := record.versions.get("commit"):
            groups.setdefault((commit, record.dataset), []).append(record)
    rows = []
    for (commit, dataset), group in groups.items():
        changed = " with uncommitted changes" if commit.endswith("+") else ""
        models = ", ".join(dict.fromkeys(record.model for record in group))
        name = f"{commit.rstrip('+')}{changed}"
        rows.append([name, DATASETS[dataset], str(len(group)), models])
    columns = ["commit", "data set", "runs", "models"]
    return [ResultTable(columns, rows, "Commits of the runs")] if rows else []
