"""What an experiment of the paper is, and how one is conducted: train, check the claims, draw."""

import dataclasses
import datetime
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lagrax import plotting, training
from lagrax.training import _machine
from lagrax.training._files import write_json

from .result import Claim, Result, Run, Table, write_result


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    claims: Sequence[Claim]
    figures: Sequence[plotting.Figure]
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
        self.runs: dict[str, Run] = {}
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, name: str, *arguments: Any, **options: Any) -> training.Trained:
        folder = self._folder / name
        trained = training.train(
            *arguments, folder=folder, config=self._config, **options, **self._options
        )
        with self._lock:
            self.seconds += trained.seconds
            self.runs[name] = Run(name, round(trained.seconds, 2))
        return trained

    def side_by_side(
        self, calls: dict[str, tuple[Sequence[Any], dict[str, Any]]]
    ) -> list[training.Trained]:
        """Several trainings at once, by name, each with its arguments and options. A small model
        keeps one core busy, and the others have none to do."""
        stop, x64 = threading.Event(), jnp.result_type(float) == jnp.float64

        def one(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> training.Trained:
            # JAX keeps this by thread.
            with jax.enable_x64(x64):
                return self(name, *arguments, stop=stop, **options)

        with ThreadPoolExecutor(min(len(calls), os.cpu_count() or 1)) as pool:
            try:
                futures = [pool.submit(one, name, *call) for name, call in calls.items()]
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                # They end at their next block, and leaving the pool waits for that.
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def write_figures(folder: Path, drawn: Sequence[plotting.Figure]) -> None:
    """Each in the folder `figures`, as what it says and as pictures."""
    for figure in drawn:
        path = folder / "figures" / figure.name
        write_json(path.with_name(f"{figure.name}.json"), plotting.to_json(figure))
        plotting.draw(figure, *(path.with_name(f"{figure.name}.{x}") for x in ("png", "pdf")))


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
    write_figures(folder, outcome.figures)
    write_result(
        folder,
        Result(
            experiment=experiment.name,
            title=experiment.title,
            about=experiment.about,
            quick=quick,
            settings=config,
            machine=_machine.describe(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=round(train.seconds, 2),
            runs=[train.runs[name] for name in sorted(train.runs)],
            claims=outcome.claims,
            tables=outcome.tables,
            figures=[figure.name for figure in outcome.figures],
        ),
    )
    return folder
