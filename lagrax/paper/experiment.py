"""What an experiment of the paper is, and how one is conducted: train, check the claims, draw."""

import dataclasses
import datetime
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import _machine, figures, training
from .._runs import write_json


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper (or of ours) with the number that decides it."""

    claim: str
    value: float | None
    bar: float
    unit: str
    better: str
    holds: bool

    @classmethod
    def at_least(cls, claim: str, value: float | None, bar: float, unit: str) -> "Claim":
        return cls(claim, _number(value), bar, unit, "higher", _is_number(value) and value >= bar)

    @classmethod
    def at_most(cls, claim: str, value: float | None, bar: float, unit: str) -> "Claim":
        return cls(claim, _number(value), bar, unit, "lower", _is_number(value) and value <= bar)


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _number(value: float | None) -> float | None:
    return float(f"{value:.4g}") if _is_number(value) else None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under the names of their columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    claims: Sequence[Claim]
    figures: Sequence[figures.Figure]
    tables: Sequence[Table] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A function, and its frozen configurations: the paper's, and a quick one that shows the same
    figures in less time. `run(settings, train)` trains by `train(name, loss, make, data, optimiser,
    ...)`, which is `lagrax.training.train` with a folder for each name."""

    name: str
    title: str
    about: str
    full: Any
    quick: Any
    run: Callable[[Any, "Trainer"], Outcome]


class Trainer:
    """`training.train` with the experiment's folder and configuration, taking down the times."""

    def __init__(self, folder: Path, config: dict[str, Any], options: dict[str, Any]):
        self._folder, self._config, self._options = folder, config, options
        self.runs: list[dict[str, Any]] = []

    def __call__(self, name: str, *arguments: Any, **options: Any) -> training.Trained:
        trained = training.train(
            *arguments,
            folder=self._folder / name,
            config=self._config,
            **options,
            **self._options,
        )
        self.runs.append({"name": name, "seconds": round(trained.seconds, 2)})
        return trained


def conduct(
    experiment: Experiment,
    out: Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    **options: Any,
) -> Path:
    """Runs an experiment, or what is left of it; returns its folder, `out/name` or
    `out/name-quick`, in which `result.json` and `figures/` lie.

    `seeds` replaces the number of seeds; `options` go to `training.train`: `resume`, `progress`,
    `tensorboard`.
    """
    settings = experiment.quick if quick else experiment.full
    if seeds is not None:
        settings = dataclasses.replace(settings, seeds=tuple(range(seeds)))
    folder = out / (experiment.name + ("-quick" if quick else ""))
    config = json.loads(json.dumps(dataclasses.asdict(settings)))
    train = Trainer(folder, config, options)
    outcome = experiment.run(settings, train)
    for figure in outcome.figures:
        write_json(folder / "figures" / f"{figure.name}.json", figures.to_json(figure))
        figures.draw(figure, folder / "figures")
    _write_result(folder, experiment, quick, config, train.runs, outcome)
    return folder


def _write_result(
    folder: Path,
    experiment: Experiment,
    quick: bool,
    config: dict[str, Any],
    runs: list[dict[str, Any]],
    outcome: Outcome,
) -> None:
    claims = [{"experiment": experiment.name} | dataclasses.asdict(c) for c in outcome.claims]
    now = datetime.datetime.now(datetime.UTC)
    write_json(
        folder / "result.json",
        {
            "experiment": experiment.name,
            "title": experiment.title,
            "about": experiment.about,
            "quick": quick,
            "settings": config,
            "machine": _machine.describe(),
            "date": now.isoformat(timespec="seconds"),
            "seconds": round(sum(run["seconds"] for run in runs), 2),
            "runs": runs,
            "claims": claims,
            "tables": [dataclasses.asdict(table) for table in outcome.tables],
            "figures": [figure.name for figure in outcome.figures],
        },
    )
