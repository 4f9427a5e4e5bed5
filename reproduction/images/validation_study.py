"""The validation study: the epoch is chosen by images that no model is trained or tested on.

The tables of the paper's protocol choose the epoch by the test images, or by those of other seeds,
and solve models of one interval by another method than the rest. Here 5,000 training images choose
the epoch, and all models take midpoint steps, with as many evaluations of the field as the default.
"""

from collections.abc import Sequence

from ..models import DATASETS, paper_intervals, paper_models
from ..result import Table
from .protocol import Protocol
from .records import RunRecord
from .statistics import Cells, Spread, paper_accuracy

HELD_OUT = 5000

# Midpoint steps in each interval, by the number of intervals.
STEPS = {1: 6, 2: 3, 3: 2, 5: 1}

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
    "midpoint steps, ten or twelve evaluations of the field from 0 to 1. The error is how far the "
    "final states of the chosen model are from those with fine steps, in % of the way that these "
    "have come. The default is trained on all images, with the solver of the tables above."
)


def validation_protocol(model: str) -> Protocol:
    return Protocol("midpoint", STEPS[paper_intervals(model)], validation=HELD_OUT)


def belongs_to_validation(line: RunRecord) -> bool:
    return line.run.protocol == validation_protocol(line.run.model)


def validation_tables(lines: Sequence[RunRecord], default: Cells) -> list[Table]:
    """One table for each data set with lines of the study."""
    tables = []
    for dataset, title in DATASETS.items():
        rows = []
        for model in paper_models():
            group = [x for x in lines if (x.run.dataset, x.run.model) == (dataset, model)]
            if not group:
                continue
            fine = [x.fine_accuracy for x in group if x.fine_accuracy is not None]
            errors = [100 * x.solver_error for x in group if x.solver_error is not None]
            measures = [
                Spread.of([x.chosen for x in group]),
                Spread.of(fine),
                Spread.of(errors),
                Spread.of([x.best for x in group]),
                Spread.of([x.last for x in group]),
                Spread.of([x.best for x in default.get((dataset, model), [])]),
                paper_accuracy(dataset, model),
            ]
            rows.append([model, *map(str, measures), str(len(group))])
        if rows:
            tables.append(Table(COLUMNS, rows, f"Validation study, {title}", NOTE))
    return tables
