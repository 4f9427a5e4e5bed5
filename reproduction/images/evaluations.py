"""Evaluations of the field that an adaptive solver needs for the trained models.

After each epoch, Dormand and Prince's solver with the tolerance 0.001 solves a fixed batch of test
images. It takes two evaluations to choose the first step, and one step of seven stages at least in
each interval, since the held states change between intervals. A model of n intervals therefore
takes 2 + 7n evaluations or more, whatever it has learned. Figures and tables show the excess.
"""

from collections.abc import Sequence

import numpy as np

from ..models import AUGMENTED, DATASETS, TABLE_1, paper_intervals
from ..result import ResultTable
from .records import RunRecord
from .statistics import Cells

ORIGIN = (
    "The models were trained with fixed steps, so no training has seen this number. A model of n "
    "intervals takes 2 + 7n evaluations at least."
)


def get_least_evaluations(model: str) -> int:
    """The evaluations of a solve with one step an interval."""
    return 2 + 7 * paper_intervals(model)


def count_above_least(model: str, records: Sequence[RunRecord]) -> np.ndarray:
    """Evaluations above the least number, by seed and epoch, of the runs that counted them."""
    counts = [x.nfe for x in records if x.nfe is not None]
    return np.array(counts, dtype=int) - get_least_evaluations(model)


def evaluation_tables(cells: Cells) -> list[ResultTable]:
    """One table of all models, if any were counted."""
    rows = []
    for model in (*TABLE_1, *AUGMENTED):
        changes = [_show_change(model, cells.get((dataset, model), [])) for dataset in DATASETS]
        if any(change != "–" for change in changes):
            rows.append([model, str(get_least_evaluations(model)), *changes])
    note = (
        "Evaluations above the least number, after the first epoch → after the last one: mean over "
        f"the seeds, for a fixed batch of 256 test images. {ORIGIN}"
    )
    columns = ["model", "least", *DATASETS.values()]
    return [ResultTable(columns, rows, "Evaluations of an adaptive solver", note)] if rows else []


def _show_change(model: str, records: Sequence[RunRecord]) -> str:
    counts = count_above_least(model, records)
    return f"{counts[:, 0].mean():.1f} → {counts[:, -1].mean():.1f}" if counts.size else "–"
