"""Defines an experiment. Running it trains, checks the claims and draws the figures."""

import dataclasses
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lagrax import plotting, training
from lagrax.plotting._matplotlib import write_figures
from lagrax.training import _machine
from lagrax.training._files import write_atomically

from .display import TrainingDisplay
from .result import Claim, Entry, Result, ResultTable, TrainingTime, write_result


@dataclasses.dataclass(frozen=True)
class Findings:
    """The outcome of an experiment. `sentence` sums it up, and the first figure shows it best.
    `seeds` holds one record of final numbers for each trained model."""

    sentence: str
    claims: Sequence[Claim]
    figures: Sequence[plotting.Figure]
    tables: Sequence[ResultTable] = ()
    seeds: Sequence[dict[str, Any]] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A function with two configurations, both frozen dataclasses with a field `seeds`.

    `about` says what is done, and `claimed` what the claims of a full run are taken from.

    `full` trains as the paper does, or as we do where it does not say. `quick` trains less, so its
    claims are not judged. `run(settings, trainer)` trains through the trainer.
    """

    name: str
    title: str
    about: str
    full: Any
    quick: Any
    run: Callable[[Any, "Trainer"], Findings]
    claimed: str = ""


@dataclasses.dataclass(frozen=True)
class Training:
    """The arguments of `training.train` but for the seeds, and a label for people.

    The progress shows the mean loss over the last `averaged` steps in the end.
    """

    label: str
    loss: Callable
    make: Callable
    data: Any
    optimiser: Any
    steps: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    averaged: int = 1


class Trainer:
    """Runs `training.train` in the folders of an experiment and records the times."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        display: TrainingDisplay | None = None,
        **options: Any,
    ):
        self._folder, self._config, self._options = folder, config, options
        self._display = display or TrainingDisplay(shown=False)
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def times(self) -> list[TrainingTime]:
        return [TrainingTime(name, round(self._seconds[name], 2)) for name in sorted(self._seconds)]

    def together(self, name: str, job: Training, seeds: Sequence[int]) -> training.Trained:
        """Trains all seeds as one vmapped program, in the folder `name`.

        Choose it for many seeds of a model that is cheap beside the overhead of a step. Rounding
        may make a seed's numbers depend on the other seeds.
        """
        self._display.add(job.label, 1, job.steps)
        return self._train(name, name, job, 0, self._config, tuple(seeds))

    def one_by_one(
        self, jobs: dict[str, Training], seeds: Sequence[int]
    ) -> dict[str, training.Trained]:
        """Trains each seed alone, by the same program, in the folder `name/seed-N`.

        A seed's numbers do not depend on the other seeds, so more can be trained later. As many
        run at the same time as there are cores, since a small model keeps one core busy. The first
        seeds come first, so that each program is compiled once.
        """
        for job in jobs.values():
            self._display.add(job.label, len(seeds), job.steps)
        config = {key: value for key, value in self._config.items() if key != "seeds"}
        first, rest = seeds[:1], seeds[1:]
        order = [(n, s) for part in (first, rest) for n in jobs for s in part]
        calls = [
            (name, f"{name}/seed-{seed}", jobs[name], seed, config, seed) for name, seed in order
        ]
        found = dict(zip(order, self._side_by_side(calls), strict=True))
        return {name: _stack([found[name, seed] for seed in seeds]) for name in jobs}

    def _side_by_side(self, calls: Sequence[tuple[Any, ...]]) -> list[training.Trained]:
        stop, x64 = threading.Event(), jnp.result_type(float) == jnp.float64

        def one(*call: Any) -> training.Trained:
            # JAX keeps this by thread.
            with jax.enable_x64(x64):
                return self._train(*call, stop=stop)

        with ThreadPoolExecutor(min(len(calls), os.cpu_count() or 1)) as pool:
            try:
                futures = [pool.submit(one, *call) for call in calls]
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                # They end at their next block, and leaving the pool waits for that.
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _train(
        self,
        name: str,
        folder: str,
        job: Training,
        run: int,
        config: dict[str, Any],
        seeds: int | Sequence[int],
        **options: Any,
    ) -> training.Trained:
        trained = training.train(
            job.loss,
            job.make,
            job.data,
            job.optimiser,
            steps=job.steps,
            seeds=seeds,
            folder=self._folder / folder,
            config=config,
            progress=self._display.reporter(job.label, run),
            **job.options,
            **options,
            **self._options,
        )
        last = trained.metrics["loss"].values[-job.averaged :].mean(axis=0)
        self._display.finish(job.label, run, last, trained.seconds)
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + trained.seconds
        return trained


def _stack(runs: Sequence[training.Trained]) -> training.Trained:
    """The runs of single seeds as one with the seeds in front, as `training.train` returns it."""
    arrays = [eqx.filter(run.model, eqx.is_array) for run in runs]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    metrics = {
        name: training.Series(
            series.steps, np.stack([run.metrics[name].values for run in runs], axis=1)
        )
        for name, series in runs[0].metrics.items()
    }
    model = eqx.combine(stacked, runs[0].model)
    return training.Trained(model, metrics, sum(run.seconds for run in runs))


def conduct(
    experiment: Experiment,
    out: Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[Path, Entry]:
    """Runs an experiment, resuming unfinished trainings, and writes `result.json` and `figures/`
    in the folder `out/name`, or `out/name-quick`. Returns the folder and its content.

    `seeds` replaces the number of seeds. `options` go to `training.train`, such as `resume` and
    `tensorboard`.
    """
    settings = experiment.quick if quick else experiment.full
    if seeds is not None:
        settings = dataclasses.replace(settings, seeds=tuple(range(seeds)))
    folder = out / (experiment.name + ("-quick" if quick else ""))
    config = json.loads(json.dumps(dataclasses.asdict(settings)))
    start = time.monotonic()
    with TrainingDisplay(shown=progress) as display:
        trainer = Trainer(folder, config, display, **options)
        findings = experiment.run(settings, trainer)
    if progress:
        print("Drawing the figures", file=sys.stderr)
    write_figures(folder, findings.figures, ("png",) if quick else ("png", "pdf"))
    _write_seeds(folder, findings.seeds)
    result = Result(
        experiment=experiment.name,
        title=experiment.title,
        about=experiment.about if quick else f"{experiment.about} {experiment.claimed}".strip(),
        finding=findings.sentence,
        quick=quick,
        settings=config,
        machine=_machine.describe(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(sum(training.seconds or 0 for training in trainer.times), 2),
        # What was trained in an earlier call has no time in this one.
        waited=None if display.knows_runs else round(time.monotonic() - start, 2),
        trainings=trainer.times,
        claims=[] if quick else findings.claims,
        tables=findings.tables,
        figures=[figure.name for figure in findings.figures],
    )
    write_result(folder, result)
    return folder, Entry(result, list(findings.figures))


def _write_seeds(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    if records:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(folder / "seeds.jsonl", lines)
