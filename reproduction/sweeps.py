"""Many runs of the image classifiers, in pieces of any length, on any machines that share a folder.

A finished run is a file of one line below `lines/`, which appears whole or not at all; a run that
has one is not trained again. What is being trained lies below `runs/`, and is continued there.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from lagrax.training import TrainingError
from lagrax.training._files import write_atomically, writing
from lagrax.training._launchers import Launcher, launch
from lagrax.training._machine import load

from . import data as data_sets
from .accuracy import SEEDS, image_result
from .experiment import write_figures
from .images import (
    AUGMENTED,
    DATASETS,
    TABLE_1,
    Data,
    Protocol,
    Run,
    default_protocol,
    on_device,
    quick_protocol,
    train_run,
)
from .lines import read_lines
from .models import paper_filters
from .validation import validation_protocol


class Plan(NamedTuple):
    """What `plan` takes when nothing is asked for."""

    datasets: Sequence[str]
    models: Sequence[str]
    seeds: int
    protocol: Callable[[str], Protocol]


FULL = Plan(tuple(DATASETS), (*TABLE_1, *AUGMENTED), SEEDS, default_protocol)
# By the name that `--study` takes.
STUDIES = {"validation": Plan(("cifar10",), TABLE_1, SEEDS, validation_protocol)}
QUICK = Plan(("mnist",), ("UNPCDDE2", "NODE"), 1, quick_protocol)


def plan(
    datasets: Sequence[str] = (),
    models: Sequence[str] = (),
    seeds: int | None = None,
    *,
    quick: bool = False,
    study: str | None = None,
    **changes: Any,
) -> list[Run]:
    """The runs of a sweep in their order: Table 1, one data set after the other, then the augmented
    models. What is left out, or "all", is everything, in a quick sweep what that is made for.

    `study` is one of `STUDIES`. `changes` are made to the protocol: `solver`, `steps` or `rtol`,
    `precision`, `epochs`.
    """
    if study is not None and (quick or study not in STUDIES):
        raise ValueError(
            f"study={study!r}: expected one of {', '.join(STUDIES)}, and not together with quick."
        )
    default = QUICK if quick else FULL if study is None else STUDIES[study]
    datasets = _chosen(datasets, default.datasets, tuple(DATASETS))
    models = _chosen(models, default.models, FULL.models)
    for dataset, model in itertools.product(datasets, models):
        # Refuses those that the paper does not have.
        paper_filters(model, dataset)
    tables = [[model for model in models if model in table] for table in (TABLE_1, AUGMENTED)]
    return [
        Run(dataset, model, seed, _changed(default.protocol(model), **changes))
        for table in tables
        for dataset, model in itertools.product(datasets, table)
        for seed in range(default.seeds if seeds is None else seeds)
    ]


def _chosen(asked: Sequence[str], default: Sequence[str], all_: Sequence[str]) -> Sequence[str]:
    return all_ if "all" in asked else tuple(dict.fromkeys(asked)) or default


def _changed(
    protocol: Protocol,
    solver: str | None = None,
    steps: int | None = None,
    rtol: float | None = None,
    precision: str | None = None,
    epochs: int | None = None,
) -> Protocol:
    """What is None stays, but adaptive steps replace equal ones and are dopri5's if not named."""
    if rtol is None:
        steps = protocol.steps if steps is None else steps
        solver = solver or protocol.solver
    return dataclasses.replace(
        protocol,
        solver=solver or "dopri5",
        steps=steps,
        rtol=rtol,
        precision=precision or ("f32" if jax.default_backend() == "cpu" else protocol.precision),
        epochs=epochs or protocol.epochs,
    )


class Swept(NamedTuple):
    """Where everything is, and how many runs came to which end."""

    folder: Path
    trained: int
    done_before: int
    elsewhere: int
    failed: int


def sweep(
    runs: Sequence[Run],
    folder: Path,
    *,
    data: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    tensorboard: bool = False,
    devices: int | None = None,
    launcher: Launcher = "here",
) -> Swept:
    """Trains those of `runs` that have no line in `folder`, or all with `resume=False`; then draws
    what all lines there say.

    One that another process is training is left to it. One whose loss does not stay finite is
    named, and the others go on. `data` is the folder of the original files, see `data.load`. So
    many `devices` share each step. With the `launcher` "ray" runs are trained side by side by the
    workers of a cluster, which must all see the folder.
    """
    folder = folder.absolute()
    _images.cache_clear()
    done = {line.run for line in read_lines(folder)} if resume else set()
    tell = functools.partial(_tell, progress)
    left = [(number, run) for number, run in enumerate(runs, 1) if run not in done]
    options = {"resume": resume, "tensorboard": tensorboard, "devices": devices}
    options["progress"] = progress and launcher == "here"
    tasks = [(run, f"run {number} of {len(runs)}", folder, data, options) for number, run in left]
    all_images = any(run.protocol.images is None for _, run in left)
    if all_images and launcher == "here" and jax.default_backend() == "cpu":
        tell(
            "JAX finds no accelerator here: on a CPU an epoch takes minutes and a run hours. With "
            "--quick there are few images."
        )
    ends = {"trained": 0, "done_before": len(runs) - len(left), "elsewhere": 0, "failed": 0}
    for number, (end, sentence) in launch(launcher, train_one, tasks, gpus=devices or 1):
        ends[end] += 1
        tell(sentence if launcher == "here" else f"{_in_words(left[number][1])}: {sentence}")
    swept = Swept(folder, **ends)
    tell(
        f"{swept.trained} of {len(runs)} runs trained, {swept.done_before} done before, "
        f"{swept.elsewhere} left to other processes, {swept.failed} failed."
    )
    _, figures = image_result(folder)
    write_figures(folder, figures)
    return swept


def train_one(
    run: Run, number: str, folder: Path, data: str | Path | None, options: dict[str, Any]
) -> tuple[str, str]:
    """Trains one run, unless another process does or did; how it ended, in a word and in others."""
    tell = functools.partial(_tell, options["progress"])
    used = _images(data, options["progress"], run.dataset, *run.protocol.used)
    tell(f"{_in_words(run)}: {number}")
    line, place = folder / "lines" / f"{run.name}.jsonl", folder / "runs" / run.name
    with _claimed(place) as mine:
        if not mine:
            return "elsewhere", "Another process is training it: left to that."
        if options["resume"] and line.exists():
            return "done_before", "Another process has trained it."
        for unfinished in line.parent.glob(f".{line.name}.*.part"):  # of a process that was killed
            unfinished.unlink()
        try:
            found = train_run(run, used, place, **options)
        except TrainingError as error:
            return "failed", f"It failed: {error}"
        write_atomically(line, json.dumps(found) + "\n")
        # The line says all that these do.
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
        (place / "metrics.jsonl").unlink(missing_ok=True)
    accuracy = found["test_accuracy"]
    best = max(x for x in accuracy if x is not None)
    took = f"in {found['seconds']:.0f} s"
    return "trained", f"Test accuracy {accuracy[-1]} %, at best {best} %, {took}"


@contextlib.contextmanager
def _claimed(place: Path) -> Iterator[bool]:
    """Whether the run in `place` is ours until the end of the block, its line included. The system
    lets go of the lock when the process ends, in whatever way."""
    filelock = load("filelock")
    lock = filelock.FileLock(place.with_name(f".{place.name}.lock"))
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        mine = _acquired(lock, filelock.Timeout)
    try:
        yield mine
    finally:
        if mine:
            lock.release()


def _acquired(lock: Any, taken: type[Exception]) -> bool:
    try:
        lock.acquire(timeout=0)
    except taken:
        return False
    return True


# A worker trains many runs, most of them on the images of the one before.
@functools.lru_cache(maxsize=1)
def _images(
    folder: str | Path | None,
    shown: bool,
    dataset: str,
    train: int | None,
    test: int | None,
    validation: int | None,
) -> Data:
    _tell(shown, f"Reading {DATASETS[dataset]}")
    return on_device(dataset, data_sets.load(dataset, folder), train, test, validation)


def _in_words(run: Run) -> str:
    return f"{DATASETS[run.dataset]}, {run.model}, seed {run.seed}"


def _tell(shown: bool, sentence: str) -> None:
    if shown:
        print(sentence, file=sys.stderr, flush=True)
