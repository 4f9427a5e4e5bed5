"""The study that decided how images are trained: precision, solver and steps, best or last epoch.

CIFAR-10, three models, two seeds in each setting, which differs from the default in one thing.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .images import Protocol, default_protocol
from .lines import Line, in_words, published
from .result import Table

DATASET = "cifar10"
MODELS = ("NODE", "NPCDDE5", "UNPCDDE5")
SEEDS = (0, 1)
PRECISIONS = ("f16", "bf16", "f32")


def belongs_to_study(line: Line) -> bool:
    run, protocol = line.run, line.run.protocol
    if run.dataset != DATASET or run.model not in MODELS or run.seed not in SEEDS:
        return False
    free = {name: getattr(protocol, name) for name in ("solver", "steps", "rtol", "precision")}
    return dataclasses.replace(default_protocol(run.model), **free) == protocol


def study_plan(model: str) -> list[Protocol]:
    """What is compared, the default first."""
    default = default_protocol(model)
    assert default.steps is not None
    change = dataclasses.replace
    return [
        *(change(default, precision=precision) for precision in PRECISIONS),
        change(default, steps=2 * default.steps),
        change(default, solver="dopri5", steps=None, rtol=1e-3),
    ]


def study_tables(lines: Sequence[Line]) -> list[Table]:
    """Three questions, and a table with an answer in numbers for each. Cells hold a number a seed;
    what is planned and not there is shown as missing."""
    settings: dict[tuple[str, Protocol], list[Line]] = {
        (model, protocol): [] for model in MODELS for protocol in study_plan(model)
    }
    # And whatever else was tried.
    for line in sorted(lines, key=lambda line: line.run.seed):
        settings.setdefault((line.run.model, line.run.protocol), []).append(line)
    table = _Settings(settings)
    return [_precision_table(table), _solver_table(table), _epoch_table(table)]


class _Settings:
    """Models, protocols and lines, by model."""

    def __init__(self, lines: dict[tuple[str, Protocol], list[Line]]):
        self._lines = lines

    def all(self) -> list[Line]:
        return [line for lines in self._lines.values() for line in lines]

    def of(self, model: str, protocol: Protocol) -> list[Line]:
        return self._lines[model, protocol]

    def by_precision(self) -> Iterator[tuple[str, Protocol, list[Line]]]:
        """Those with the default steps."""
        for (model, protocol), lines in self._lines.items():
            default = default_protocol(model)
            if dataclasses.replace(default, precision=protocol.precision) == protocol:
                yield model, protocol, lines

    def by_solver(self) -> Iterator[tuple[str, Protocol, list[Line]]]:
        """Those with the default precision."""
        for (model, protocol), lines in self._lines.items():
            if protocol.precision == default_protocol(model).precision:
                yield model, protocol, lines


def _precision_table(settings: _Settings) -> Table:
    rows, seeds_apart = [], [0.0]
    means: dict[str, list[float]] = {}
    for model, protocol, lines in settings.by_precision():
        loss = _each(lines, "{:.3f}", lambda x: x.train_loss[-1])
        rows.append([f"{model}, {protocol.precision}", *_accuracies(lines), loss, _seconds(lines)])
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
    columns = ["model, field", "best epoch", "last epoch", "training loss", "seconds"]
    return Table(columns, rows, "Protocol study, the precision of the field", note)


def _solver_table(settings: _Settings) -> Table:
    rows = []
    for model, protocol, lines in settings.by_solver():
        counts = [f"{x.nfe[0]:.0f} → {x.nfe[-1]:.0f}" for x in lines if x.nfe is not None]
        rows.append(
            [
                f"{model}, {in_words(protocol)}",
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
    """Twice the steps against the default, seed by seed; and fine steps against all."""
    pairs = list(_default_and_twice(settings))
    errors = [(a.solver_error, b.solver_error) for a, b in pairs]
    fewer = [before / after for before, after in errors if before and after]
    if fewer:
        gains = [b.best - a.best for a, b in pairs]
        yield (
            f"Twice the steps divide the error by {min(fewer):.1f} to {max(fewer):.1f}, and change "
            f"the best accuracy of a seed by {_signed(min(gains))} to {_signed(max(gains))} points."
        )
    changes = [abs(x) for x in map(_finer, settings.all()) if x is not None]
    if changes:
        yield (
            f"Over all {len(changes)} runs of the study, fine steps change the accuracy of the "
            f"trained model by {np.median(changes):.2f} points in the median and "
            f"{max(changes):.2f} at most."
        )


def _default_and_twice(settings: _Settings) -> Iterator[tuple[Line, Line]]:
    for model in MODELS:
        default, *_, twice, _ = study_plan(model)
        for a in settings.of(model, default):
            for b in settings.of(model, twice):
                if a.run.seed == b.run.seed:
                    yield a, b


def _finer(line: Line) -> float | None:
    """What fine steps change in the accuracy of the trained model."""
    return None if line.fine_accuracy is None else line.fine_accuracy - line.last


def _epoch_table(settings: _Settings) -> Table:
    rows = []
    for model in MODELS:
        lines = settings.of(model, default_protocol(model))
        number = _each(lines, "{:.0f}", lambda x: x.best_epoch)
        rows.append([model, *_accuracies(lines), number, str(published(DATASET, model))])
    above = [line.best - line.last for line in settings.all()]
    note = (
        f"Over all {len(above)} runs of the study, the best epoch is {np.mean(above):.2f} points "
        f"above the last in the mean ({min(above):.2f} to {max(above):.2f}). The paper does not "
        "say which of them its accuracies are of."
    )
    columns = ["model", "best epoch", "last epoch", "number of the best", "paper"]
    return Table(columns, rows, "Protocol study, best or last epoch", note)


def _accuracies(lines: Sequence[Line]) -> list[str]:
    """Of the best and the last epoch."""
    return [_each(lines, "{:.2f}", lambda x: x.best), _each(lines, "{:.2f}", lambda x: x.last)]


def _seconds(lines: Sequence[Line]) -> str:
    return _each(lines, "{:.0f}", lambda x: x.seconds)


def _each(lines: Sequence[Line], form: str, number: Callable[[Line], float | None]) -> str:
    """A number for each seed, or what says that it is missing."""
    found = {line.run.seed: number(line) for line in lines}
    values = [found.get(seed) for seed in SEEDS]
    shown = ["–" if x is None else _minus(form.format(float(x))) for x in values]
    return ", ".join(shown) if found else "–"


def _signed(value: float) -> str:
    return _minus(f"{value:+.2f}")


def _minus(number: str) -> str:
    return number.replace("-", "−")
