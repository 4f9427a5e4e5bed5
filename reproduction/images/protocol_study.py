"""The protocol study, which chose the default precision and solver on CIFAR-10.

Three models were trained with two seeds in each setting; the default setting has five. For models
with several intervals, a setting differs from the default in one thing. NODE was studied with two
Tsit5 steps first. Then two other solvers of the same cost were tried, and the one with the least
error became the default.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..result import ResultTable
from .protocol import Protocol, default_protocol
from .records import RunRecord
from .statistics import Spread, get_best, get_last, paper_accuracy

DATASET = "cifar10"
MODELS = ("NODE", "NPCDDE5", "UNPCDDE5")
SEEDS = (0, 1)
PRECISIONS = ("f16", "bf16", "f32")

# Twelve evaluations of the field each, the default first.
EQUAL_COST = (Protocol("bosh3", 4), Protocol("midpoint", 6), Protocol("tsit5", 2))


def belongs_to_study(record: RunRecord) -> bool:
    run, protocol = record.run, record.run.protocol
    if run.dataset != DATASET or run.model not in MODELS:
        return False
    if run.seed not in SEEDS:
        return record.is_default
    varied = {name: getattr(protocol, name) for name in ("solver", "steps", "rtol", "precision")}
    return dataclasses.replace(default_protocol(run.model), **varied) == protocol


def studied_protocol(model: str) -> Protocol:
    """The setting whose precision and number of steps were varied."""
    return EQUAL_COST[-1] if model == "NODE" else default_protocol(model)


def double_steps(model: str) -> Protocol:
    protocol = studied_protocol(model)
    assert protocol.steps is not None
    return dataclasses.replace(protocol, steps=2 * protocol.steps)


def adaptive_protocol(model: str) -> Protocol:
    return dataclasses.replace(default_protocol(model), solver="dopri5", steps=None, rtol=1e-3)


def list_settings(model: str) -> list[Protocol]:
    """The compared settings, the default first."""
    change = dataclasses.replace
    return [
        *(EQUAL_COST if model == "NODE" else [default_protocol(model)]),
        *(change(studied_protocol(model), precision=precision) for precision in PRECISIONS[1:]),
        double_steps(model),
        adaptive_protocol(model),
    ]


def study_tables(records: Sequence[RunRecord]) -> list[ResultTable]:
    """A table for each of three questions, with a number for each seed of a setting."""
    settings: dict[tuple[str, Protocol], list[RunRecord]] = {
        (model, protocol): [] for model in MODELS for protocol in list_settings(model)
    }
    # Settings outside the plan come behind it.
    for record in sorted(records, key=lambda record: record.seed):
        settings.setdefault((record.model, record.run.protocol), []).append(record)
    runs = _StudyRuns(settings)
    return [_make_precision_table(runs), _make_solver_table(runs), _make_epoch_table(runs)]


class _StudyRuns:
    """The records of the study by model and protocol. Comparisons take the seeds of all settings,
    which are `SEEDS`."""

    def __init__(self, records: dict[tuple[str, Protocol], list[RunRecord]]):
        self._records = records

    def get_all(self) -> list[RunRecord]:
        return [record for records in self._records.values() for record in records]

    def get_every_seed(self, model: str, protocol: Protocol) -> list[RunRecord]:
        return self._records[model, protocol]

    def get(self, model: str, protocol: Protocol) -> list[RunRecord]:
        return [record for record in self._records[model, protocol] if record.seed in SEEDS]

    def iterate_precisions(self) -> Iterator[tuple[str, Protocol, list[RunRecord]]]:
        """The settings that differ from the studied one in the precision alone."""
        for model in MODELS:
            for precision in PRECISIONS:
                protocol = dataclasses.replace(studied_protocol(model), precision=precision)
                yield model, protocol, self.get(model, protocol)

    def iterate_solvers(self) -> Iterator[tuple[str, Protocol, list[RunRecord]]]:
        """The settings with the default precision."""
        for model, protocol in self._records:
            if protocol.precision == default_protocol(model).precision:
                yield model, protocol, self.get(model, protocol)

    def iterate_pairs(
        self, before: Callable[[str], Protocol], after: Callable[[str], Protocol]
    ) -> Iterator[tuple[RunRecord, RunRecord]]:
        """The records of two settings with the same model and seed."""
        for model in MODELS:
            for a in self.get(model, before(model)):
                for b in self.get(model, after(model)):
                    if a.seed == b.seed:
                        yield a, b


def _make_precision_table(runs: _StudyRuns) -> ResultTable:
    rows, seed_distances = [], [0.0]
    means: dict[str, list[float]] = {}
    for model, protocol, records in runs.iterate_precisions():
        name = f"{model}, {protocol.describe_solver()}, {protocol.precision}"
        loss = _show_seeds(records, "{:.3f}", lambda x: x.train_loss[-1])
        rows.append([name, *_show_accuracies(records), loss, _show_seconds(records)])
        if records:
            best = get_best(records)
            means.setdefault(model, []).append(float(np.mean(best)))
            seed_distances.append(max(best) - min(best))
    distance = max((max(m) - min(m) for m in means.values()), default=0.0)
    note = (
        "The mean of a model's best accuracies differs between precisions by at most "
        f"{distance:.2f} points. Two seeds of one precision differ by up to "
        f"{max(seed_distances):.2f}. f32 is tf32 on NVIDIA's GPUs. The time of the first of two "
        "runs includes compilation."
    )
    columns = ["model, solver, field", "best epoch", "last epoch", "training loss", "seconds"]
    return ResultTable(columns, rows, "Protocol study, the precision of the field", note)


def _make_solver_table(runs: _StudyRuns) -> ResultTable:
    rows = []
    for model, protocol, records in runs.iterate_solvers():
        counts = [f"{x.nfe[0]} → {x.nfe[-1]}" for x in records if x.nfe is not None]
        rows.append(
            [
                f"{model}, {protocol.describe_solver()}",
                *_show_accuracies(records),
                _show_seeds(records, "{:.1f}", lambda x: x.solver_error and 100 * x.solver_error),
                _show_seeds(records, "{:+.2f}", _compute_fine_change),
                ", ".join(dict.fromkeys(counts)) or "–",
                _show_seconds(records),
            ]
        )
    note = (
        "Steps are per interval. The error is the distance of the final states from those with "
        "fine steps, in % of the distance of these from the images. Fine − coarse is the accuracy "
        "with fine steps less that with the steps of the training. Evaluations are those of the "
        "adaptive solver after the first and the last epoch. "
        f"{' '.join(_compare_steps(runs))}"
    )
    columns = [
        "model, solver",
        "best epoch",
        "last epoch",
        "error, %",
        "fine − coarse",
        "evaluations",
        "seconds",
    ]
    return ResultTable(columns, rows, "Protocol study, solver and steps", note)


def _compare_steps(runs: _StudyRuns) -> Iterator[str]:
    """Sentences on solvers of equal cost, on double, adaptive and fine steps."""
    yield from _compare_solvers_of_equal_cost(runs)
    pairs = list(runs.iterate_pairs(studied_protocol, double_steps))
    errors = [(a.solver_error, b.solver_error) for a, b in pairs]
    factors = [before / after for before, after in errors if before and after]
    if factors:
        yield (
            f"Twice the steps divide the error by {min(factors):.1f} to {max(factors):.1f}, and "
            f"change the best accuracy of a seed by {_show_changes(pairs)} points."
        )
    pairs = list(runs.iterate_pairs(default_protocol, adaptive_protocol))
    if pairs:
        factors = [b.seconds / a.seconds for a, b in pairs]
        yield (
            f"Adaptive steps take {min(factors):.1f} to {max(factors):.1f} times as long as the "
            f"default, and change the best accuracy of a seed by {_show_changes(pairs)} points."
        )
    changes = [abs(x) for x in map(_compute_fine_change, runs.get_all()) if x is not None]
    if changes:
        yield (
            f"Over all {len(changes)} runs of the three models, fine steps change the accuracy of "
            f"the trained model by {np.median(changes):.2f} points in the median and "
            f"{max(changes):.2f} at most."
        )


def _compare_solvers_of_equal_cost(runs: _StudyRuns) -> Iterator[str]:
    """A sentence on NODE's solvers by rising error, once all their seeds are there."""
    means = []
    for protocol in EQUAL_COST:
        records = runs.get("NODE", protocol)
        errors = [x.solver_error for x in records if x.solver_error is not None]
        if len(errors) < len(SEEDS):
            return
        best = float(np.mean(get_best(records)))
        means.append((100 * float(np.mean(errors)), best, protocol.describe_solver()))
    means.sort()
    errors = ", ".join(f"{error:.1f} % with {words}" for error, _, words in means)
    accuracies = ", ".join(f"{best:.2f}" for _, best, _ in means)
    yield (
        f"NODE's solvers of equal cost, twelve evaluations, leave an error of {errors} (means of "
        f"{len(SEEDS)} seeds). Their best accuracies are {accuracies}, in this order."
    )


def _compute_fine_change(record: RunRecord) -> float | None:
    """The change of the trained model's accuracy when it is solved with fine steps."""
    return None if record.fine_accuracy is None else record.fine_accuracy - record.last


def _make_epoch_table(runs: _StudyRuns) -> ResultTable:
    rows = []
    for model in MODELS:
        records = runs.get_every_seed(model, default_protocol(model))
        best, last = Spread.of(get_best(records)), Spread.of(get_last(records))
        epochs = ", ".join(str(x.best_epoch) for x in records) or "–"
        rows.append([model, str(best), str(last), epochs, str(paper_accuracy(DATASET, model))])
    above = [record.best - record.last for record in runs.get_all()]
    note = (
        "Mean ± standard deviation over the seeds of the default setting. "
        f"Over all {len(above)} runs of the three models, the best epoch is {np.mean(above):.2f} "
        f"points above the last in the mean ({min(above):.2f} to {max(above):.2f}). The paper does "
        "not say at which epoch it measures."
    )
    columns = ["model", "best epoch", "last epoch", "best epochs of the seeds", "paper"]
    return ResultTable(columns, rows, "Protocol study, best or last epoch", note)


def _show_accuracies(records: Sequence[RunRecord]) -> list[str]:
    """The accuracies at the best and at the last epoch."""
    return [
        _show_seeds(records, "{:.2f}", lambda x: x.best),
        _show_seeds(records, "{:.2f}", lambda x: x.last),
    ]


def _show_seconds(records: Sequence[RunRecord]) -> str:
    return _show_seeds(records, "{:.0f}", lambda x: x.seconds)


def _show_seeds(
    records: Sequence[RunRecord], form: str, number: Callable[[RunRecord], float | None]
) -> str:
    """A number for each seed, or a dash for a missing one."""
    found = {record.seed: number(record) for record in records}
    values = [found.get(seed) for seed in SEEDS]
    shown = ["–" if x is None else _show_number(form, float(x)) for x in values]
    return ", ".join(shown) if found else "–"


def _show_changes(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> str:
    """The range of the change in the best accuracy."""
    changes = [b.best - a.best for a, b in pairs]
    return " to ".join(_show_number("{:+.2f}", x) for x in (min(changes), max(changes)))


def _show_number(form: str, value: float) -> str:
    return form.format(value).replace("-", "−")
