"""The study that decided how images are trained: precision, solver and steps, best or last epoch.

CIFAR-10, three models, two seeds in each setting, and the five of the defaults. For the models with
several intervals a setting differs from the default in one thing. NODE was studied with two Tsit5
steps; then two other solvers of the same cost were tried, and the one with the least error taken.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..result import Table
from .protocol import Protocol, default_protocol
from .records import RunRecord
from .statistics import Spread, paper_accuracy

DATASET = "cifar10"
MODELS = ("NODE", "NPCDDE5", "UNPCDDE5")
SEEDS = (0, 1)
PRECISIONS = ("f16", "bf16", "f32")

# Twelve evaluations of the field each, the default first.
EQUAL_COST = (Protocol("bosh3", 4), Protocol("midpoint", 6), Protocol("tsit5", 2))


def belongs_to_study(line: RunRecord) -> bool:
    run, protocol = line.run, line.run.protocol
    if run.dataset != DATASET or run.model not in MODELS:
        return False
    if run.seed not in SEEDS:
        return line.is_default
    free = {name: getattr(protocol, name) for name in ("solver", "steps", "rtol", "precision")}
    return dataclasses.replace(default_protocol(run.model), **free) == protocol


def studied_protocol(model: str) -> Protocol:
    """The setting whose precision and number of steps were varied."""
    return EQUAL_COST[-1] if model == "NODE" else default_protocol(model)


def twice_the_steps(model: str) -> Protocol:
    protocol = studied_protocol(model)
    assert protocol.steps is not None
    return dataclasses.replace(protocol, steps=2 * protocol.steps)


def adaptive_steps(model: str) -> Protocol:
    return dataclasses.replace(default_protocol(model), solver="dopri5", steps=None, rtol=1e-3)


def study_plan(model: str) -> list[Protocol]:
    """What is compared, the default first."""
    change = dataclasses.replace
    return [
        *(EQUAL_COST if model == "NODE" else [default_protocol(model)]),
        *(change(studied_protocol(model), precision=precision) for precision in PRECISIONS[1:]),
        twice_the_steps(model),
        adaptive_steps(model),
    ]


def study_tables(lines: Sequence[RunRecord]) -> list[Table]:
    """Three questions, and a table with an answer in numbers for each. Where settings are compared,
    cells hold a number a seed; what is planned and not there is shown as missing."""
    settings: dict[tuple[str, Protocol], list[RunRecord]] = {
        (model, protocol): [] for model in MODELS for protocol in study_plan(model)
    }
    # And whatever else was tried.
    for line in sorted(lines, key=lambda line: line.run.seed):
        settings.setdefault((line.run.model, line.run.protocol), []).append(line)
    table = _Settings(settings)
    return [_precision_table(table), _solver_table(table), _epoch_table(table)]


class _Settings:
    """Models, protocols and lines, by model. What is compared are the seeds that all have."""

    def __init__(self, lines: dict[tuple[str, Protocol], list[RunRecord]]):
        self._lines = lines

    def all(self) -> list[RunRecord]:
        return [line for lines in self._lines.values() for line in lines]

    def every_seed(self, model: str, protocol: Protocol) -> list[RunRecord]:
        return self._lines[model, protocol]

    def of(self, model: str, protocol: Protocol) -> list[RunRecord]:
        return [line for line in self._lines[model, protocol] if line.run.seed in SEEDS]

    def by_precision(self) -> Iterator[tuple[str, Protocol, list[RunRecord]]]:
        """Those that differ from the studied one in nothing else."""
        for model in MODELS:
            for precision in PRECISIONS:
                protocol = dataclasses.replace(studied_protocol(model), precision=precision)
                yield model, protocol, self.of(model, protocol)

    def by_solver(self) -> Iterator[tuple[str, Protocol, list[RunRecord]]]:
        """Those with the default precision."""
        for model, protocol in self._lines:
            if protocol.precision == default_protocol(model).precision:
                yield model, protocol, self.of(model, protocol)


def _precision_table(settings: _Settings) -> Table:
    rows, seeds_apart = [], [0.0]
    means: dict[str, list[float]] = {}
    for model, protocol, lines in settings.by_precision():
        loss = _each(lines, "{:.3f}", lambda x: x.train_loss[-1])
        steps = protocol.describe_solver()
        name = f"{model}, {steps}, {protocol.precision}"
        rows.append([name, *_accuracies(lines), loss, _seconds(lines)])
        if lines:
            best = [line.best for line in lines]
            means.setdefault(model, []).append(float(np.mean(best)))
            seeds_apart.append(max(best) - min(best))
    apart = max((max(m) - min(m) for m in means.values()), default=0.0)
    note = (
        f"The means of a model's best accuracies in the precisions are at most {apart:.2f} points "
        f"apart; two seeds in the same precision are up to {max(seeds_apart):.2f} apart. "
        "f32 is tf32 on NVIDIA's GPUs; the first of two runs also compiles."
    )
    columns = ["model, solver, field", "best epoch", "last epoch", "training loss", "seconds"]
    return Table(columns, rows, "Protocol study, the precision of the field", note)


def _solver_table(settings: _Settings) -> Table:
    rows = []
    for model, protocol, lines in settings.by_solver():
        counts = [f"{x.nfe[0]:.0f} → {x.nfe[-1]:.0f}" for x in lines if x.nfe is not None]
        rows.append(
            [
                f"{model}, {protocol.describe_solver()}",
                *_accuracies(lines),
                _each(lines, "{:.1f}", lambda x: x.solver_error and 100 * x.solver_error),
                _each(lines, "{:+.2f}", _finer),
                ", ".join(dict.fromkeys(counts)) or "–",
                _seconds(lines),
            ]
        )
    note = (
        "Steps are those in each interval. The error is how far the final states are from those "
        "with fine steps, in % of the way that these have come; fine − coarse is the accuracy with "
        "fine steps less that with the steps of the training; evaluations are those of the "
        "adaptive solver after the first and the last epoch. "
        f"{' '.join(_step_answers(settings))}"
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
    return Table(columns, rows, "Protocol study, solver and steps", note)


def _step_answers(settings: _Settings) -> Iterator[str]:
    """Solvers of equal cost; twice the steps and adaptive ones, seed by seed; and fine steps
    against all."""
    yield from _equal_cost_answer(settings)
    pairs = list(_by_seed(settings, studied_protocol, twice_the_steps))
    errors = [(a.solver_error, b.solver_error) for a, b in pairs]
    fewer = [before / after for before, after in errors if before and after]
    if fewer:
        yield (
            f"Twice the steps divide the error by {min(fewer):.1f} to {max(fewer):.1f}, and change "
            f"the best accuracy of a seed by {_gains(pairs)} points."
        )
    pairs = list(_by_seed(settings, default_protocol, adaptive_steps))
    if pairs:
        longer = [b.seconds / a.seconds for a, b in pairs]
        yield (
            f"Adaptive steps take {min(longer):.1f} to {max(longer):.1f} times as long as the "
            f"default's, and change the best accuracy of a seed by {_gains(pairs)} points."
        )
    changes = [abs(x) for x in map(_finer, settings.all()) if x is not None]
    if changes:
        yield (
            f"Over all {len(changes)} runs of the three models, fine steps change the accuracy of "
            f"the trained model by {np.median(changes):.2f} points in the median and "
            f"{max(changes):.2f} at most."
        )


def _equal_cost_answer(settings: _Settings) -> Iterator[str]:
    """The means of NODE's solvers, by rising error, once all their seeds are there."""
    means = []
    for protocol in EQUAL_COST:
        lines = settings.of("NODE", protocol)
        errors = [x.solver_error for x in lines if x.solver_error is not None]
        if len(errors) < len(SEEDS):
            return
        best = float(np.mean([x.best for x in lines]))
        means.append((100 * float(np.mean(errors)), best, protocol.describe_solver()))
    means.sort()
    left = ", ".join(f"{error:.1f} % with {words}" for error, _, words in means)
    accuracies = ", ".join(f"{best:.2f}" for _, best, _ in means)
    yield (
        f"NODE's solvers of equal cost, twelve evaluations, leave an error of {left} (means of "
        f"{len(SEEDS)} seeds); their best accuracies are {accuracies}, in this order."
    )


def _by_seed(
    settings: _Settings, before: Callable[[str], Protocol], after: Callable[[str], Protocol]
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """The lines of two settings that share their model and their seed."""
    for model in MODELS:
        for a in settings.of(model, before(model)):
            for b in settings.of(model, after(model)):
                if a.run.seed == b.run.seed:
                    yield a, b


def _gains(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> str:
    """What the second setting changes in the best accuracy, from the least to the most."""
    gains = [b.best - a.best for a, b in pairs]
    return f"{_signed(min(gains))} to {_signed(max(gains))}"


def _finer(line: RunRecord) -> float | None:
    """What fine steps change in the accuracy of the trained model."""
    return None if line.fine_accuracy is None else line.fine_accuracy - line.last


def _epoch_table(settings: _Settings) -> Table:
    rows = []
    for model in MODELS:
        lines = settings.every_seed(model, default_protocol(model))
        best, last = Spread.of([x.best for x in lines]), Spread.of([x.last for x in lines])
        numbers = ", ".join(str(x.best_epoch) for x in lines) or "–"
        rows.append([model, str(best), str(last), numbers, str(paper_accuracy(DATASET, model))])
    above = [line.best - line.last for line in settings.all()]
    note = (
        "Mean ± standard deviation over the seeds of the default setting. "
        f"Over all {len(above)} runs of the three models, the best epoch is {np.mean(above):.2f} "
        f"points above the last in the mean ({min(above):.2f} to {max(above):.2f}). The paper does "
        "not say which of them its accuracies are of."
    )
    columns = ["model", "best epoch", "last epoch", "numbers of the best", "paper"]
    return Table(columns, rows, "Protocol study, best or last epoch", note)


def _accuracies(lines: Sequence[RunRecord]) -> list[str]:
    """Of the best and the last epoch."""
    return [_each(lines, "{:.2f}", lambda x: x.best), _each(lines, "{:.2f}", lambda x: x.last)]


def _seconds(lines: Sequence[RunRecord]) -> str:
    return _each(lines, "{:.0f}", lambda x: x.seconds)


def _each(
    lines: Sequence[RunRecord], form: str, number: Callable[[RunRecord], float | None]
) -> str:
    """A number for each seed, or what says that it is missing."""
    found = {line.run.seed: number(line) for line in lines}
    values = [found.get(seed) for seed in SEEDS]
    shown = ["–" if x is None else _minus(form.format(float(x))) for x in values]
    return ", ".join(shown) if found else "–"


def _signed(value: float) -> str:
    return _minus(f"{value:+.2f}")


def _minus(number: str) -> str:
    return number.replace("-", "−")
