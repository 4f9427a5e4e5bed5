"""Statistics over the seeds of a run."""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .protocol import ImageRun
from .records import RunRecord

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
