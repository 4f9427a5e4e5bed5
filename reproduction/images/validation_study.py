"""The validation study, which chooses the epoch on images that no model is trained or tested on.

In the tables of the paper's protocol, the test images choose the epoch, and models of one interval
have another solver than the rest. Here 5,000 training images choose the epoch, and all models take
midpoint steps, with the same number of evaluations of the field as in the default setting.
"""

from collections.abc import Sequence

from ..models import DATASETS, paper_intervals, paper_models
from ..result import ResultTable
from .protocol import Protocol
from .records import RunRecord
from .statistics import Cells, Spread, get_best, get_fine, get_last, paper_accuracy

HELD_OUT = 5000

# Midpoint steps in each interval, by the number of intervals.
STEPS = {1: 6, 2: 3, 3: 2, 5: 1, 6: 1}

COLUMNS = [
    "model",
    "chosen epoch",
    "chosen, fine steps",
    "error, %",
    "best epoch",
    "last epoch",
    "default's best epoch",
    "paper",
    "seeds",
]
NOTE = (
    f"The last {HELD_OUT:,} training images are not trained on. The chosen epoch is the first that "
    "is best on them, so neither the test images nor other seeds choose it. All models take "
    "midpoint steps, ten or twelve evaluations of the field from 0 to 1. The error is the distance "
    "of the chosen model's final states from those with fine steps, in % of the distance of these "
    "from the images. The default is trained on all images, with the solver of the tables above."
)


def validation_protocol(model: str) -> Protocol:
    return Protocol("midpoint", STEPS[paper_intervals(model)], validation=HELD_OUT)


def belongs_to_validation(record: RunRecord) -> bool:
    return record.run.protocol == validation_protocol(record.model)


def validation_tables(records: Sequence[RunRecord], default: Cells) -> list[ResultTable]:
    """One table for each data set with records of the study."""
    tables = []
    for dataset, title in DATASETS.items():
        groups = {
            model: [x for x in records if (x.dataset, x.model) == (dataset, model)]
            for model in paper_models()
        }
        rows = [
            _make_row(model, group, default.get((dataset, model), []))
            for model, group in groups.items()
            if group
        ]
        if rows:
            tables.append(ResultTable(COLUMNS, rows, f"Validation study, {title}", NOTE))
    return tables


def _make_row(model: str, group: Sequence[RunRecord], default: Sequence[RunRecord]) -> list[str]:
    errors = [100 * x.solver_error for x in group if x.solver_error is not None]
    measures = [
        Spread.of([x.chosen for x in group]),
        Spread.of(get_fine(group)),
        Spread.of(errors),
        Spread.of(get_best(group)),
        Spread.of(get_last(group)),
        Spread.of(get_best(default)),
        paper_accuracy(group[0].dataset, model),
    ]
    return [model, *map(str, measures), str(len(group))]
