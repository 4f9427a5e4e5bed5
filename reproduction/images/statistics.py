"""Statistics over the seeds of a run."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .protocol import ImageRun
from .records import RunRecord

# The number of seeds in the paper.
SEEDS = 5

# Records of the tables, by data set and model.
Cells = dict[tuple[str, str], list[RunRecord]]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1) over the seeds. NaN stands for a missing one."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            return cls(math.nan, math.nan)
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.2f}" + ("" if math.isnan(self.std) else f" ± {self.std:.2f}")


@functools.cache
def paper_accuracy(dataset: str, model: str) -> Spread:
    """The accuracy in the paper's tables."""
    return Spread(**_read_paper_tables()["accuracy_percent"][model][dataset])


@functools.cache
def _read_paper_tables() -> dict:
    path = Path(__file__).parents[1] / "tables.json"
    return json.loads(path.read_text(encoding="utf-8"))


def group_by_seed(records: Sequence[RunRecord]) -> dict[ImageRun, list[RunRecord]]:
    """Groups records that differ in their seed alone, by their run with the seed 0."""
    groups: dict[ImageRun, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.run._replace(seed=0), []).append(record)
    return groups


def find_same_seeds(group: Sequence[RunRecord], cells: Cells) -> list[RunRecord]:
    """The records of the same model and seeds in the default setting, if all of them exist."""
    run, seeds = group[0].run, {record.seed for record in group}
    found = [x for x in cells.get((run.dataset, run.model), []) if x.seed in seeds]
    return found if len(found) == len(seeds) else []


def get_cross_validated(records: Sequence[RunRecord]) -> list[float]:
    """The accuracy of each seed at the epoch that is best in the mean of the other seeds."""
    if len(records) < 2:
        return []
    accuracies = np.nan_to_num([record.test_accuracy for record in records])
    others = (accuracies.sum(axis=0) - accuracies) / (len(records) - 1)
    # Rounding lets the first of equal epochs win.
    epochs = np.round(others, 6).argmax(axis=1)
    return np.take_along_axis(accuracies, epochs[:, None], axis=1)[:, 0].tolist()


def get_best(records: Sequence[RunRecord]) -> list[float]:
    return [record.best for record in records]


def get_last(records: Sequence[RunRecord]) -> list[float]:
    return [record.last for record in records]


def get_fine(records: Sequence[RunRecord]) -> list[float]:
    """The accuracies of the trained models with fine steps, as far as they were measured."""
    return [x.fine_accuracy for x in records if x.fine_accuracy is not None]


# The accuracies of a cell, by the epoch at which they are taken.
MEASURES: dict[str, Callable[[Sequence[RunRecord]], list[float]]] = {
    "best epoch": get_best,
    "cross-validated epoch": get_cross_validated,
    "last epoch": get_last,
    "last epoch, fine steps": get_fine,
}
