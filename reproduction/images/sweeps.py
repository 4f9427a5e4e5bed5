"""Trains many runs, in any number of pieces, on any machines that share a folder.

A finished run is a file of one line in `lines/`, which appears whole or not at all, and is not
trained again. A run under way is in `runs/` and continues there.
"""

import contextlib
import dataclasses
import functools
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from lagrax.plotting._matplotlib import write_figures
from lagrax.training import TrainingError
from lagrax.training._files import write_atomically, writing
from lagrax.training._launchers import Launcher, launch
from lagrax.training._machine import load

from .. import data as data_sets
from ..models import AUGMENTED, DATASETS, TABLE_1, VARIANTS, paper_filters
from ..result import Entry
from .ablation_study import (
    ABLATION_DATASET,
    ABLATION_MODELS,
    CONTINUITY_DATASET,
    CONTINUITY_MODELS,
    RECIPE_DATASET,
    RECIPE_MODELS,
    continuity_protocol,
    recipe_protocol,
)
from .accuracy import SEEDS, image_result
from .protocol import ImageRun, Protocol, default_protocol, quick_protocol
from .records import RunRecord, encode_record, read_records
from .training import DeviceImages, move_to_device, train_run
from .validation_study import validation_protocol


class SweepDefaults(NamedTuple):
    """The choices of a sweep for which `plan` got no others."""

    datasets: Sequence[str]
    models: Sequence[str]
    seeds: int
    protocol: Callable[[str], Protocol]


FULL = SweepDefaults(tuple(DATASETS), (*TABLE_1, *AUGMENTED), SEEDS, default_protocol)
QUICK = SweepDefaults(("mnist",), ("UNPCDDE2", "NODE"), 1, quick_protocol)
# By the name that `--study` takes.
STUDIES = {
    "validation": SweepDefaults(("cifar10",), TABLE_1, SEEDS, validation_protocol),
    "ablation": SweepDefaults((ABLATION_DATASET,), ABLATION_MODELS, SEEDS, validation_protocol),
    "continuity": SweepDefaults(
        (CONTINUITY_DATASET,), CONTINUITY_MODELS, SEEDS, continuity_protocol
    ),
    "recipe": SweepDefaults((RECIPE_DATASET,), RECIPE_MODELS, SEEDS, recipe_protocol),
}


def plan(
    datasets: Sequence[str] = (),
    models: Sequence[str] = (),
    seeds: int | None = None,
    *,
    quick: bool = False,
    study: str | None = None,
    **changes: Any,
) -> list[ImageRun]:
    """The runs of a sweep in their order: Table 1 on each data set, then the augmented models, then
    variants.

    **Arguments:**

    - `datasets`, `models`: names, or "all". Default: all, but few in a quick sweep or a study.
    - `seeds`: the number of seeds.
    - `quick`: plans a sweep that takes two cores two minutes.
    - `study`: plans one of `STUDIES`.
    - `changes`: changes to the protocol: `solver`, `steps` or `rtol`, `precision`, `epochs`.
    """
    if study is not None and (quick or study not in STUDIES):
        raise ValueError(
            f"study={study!r}: expected one of {', '.join(STUDIES)}, and not together with quick."
        )
    default = QUICK if quick else FULL if study is None else STUDIES[study]
    datasets = _choose(datasets, default.datasets, tuple(DATASETS))
    models = _choose(models, default.models, FULL.models)
    for dataset, model in itertools.product(datasets, models):
        paper_filters(model, dataset)  # Raises for an unknown name.
    tables = [
        [model for model in models if model in table] for table in (TABLE_1, AUGMENTED, VARIANTS)
    ]
    return [
        ImageRun(dataset, model, seed, _change_protocol(default.protocol(model), **changes))
        for table in tables
        for dataset, model in itertools.product(datasets, table)
        for seed in range(default.seeds if seeds is None else seeds)
    ]


def _choose(names: Sequence[str], default: Sequence[str], all_: Sequence[str]) -> Sequence[str]:
    return all_ if "all" in names else tuple(dict.fromkeys(names)) or default


def _change_protocol(
    protocol: Protocol,
    solver: str | None = None,
    steps: int | None = None,
    rtol: float | None = None,
    precision: str | None = None,
    epochs: int | None = None,
) -> Protocol:
    """None leaves a field as it is. Adaptive steps replace equal ones, by default with dopri5."""
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


class SweepSummary(NamedTuple):
    """The folder of a sweep, the number of runs by how they ended, and the results so far."""

    folder: Path
    trained: int
    done_before: int
    elsewhere: int
    failed: int
    entry: Entry


def sweep(
    runs: Sequence[ImageRun],
    folder: Path,
    *,
    data: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    tensorboard: bool = False,
    devices: int | None = None,
    launcher: Launcher = "here",
) -> SweepSummary:
    """Trains the runs that have no record in `folder` yet, then draws the figures of all records.

    A run that another process is training is left to that process. If the loss of a run does not
    stay finite, this is reported and the sweep continues.

    **Arguments:**

    - `data`: the folder of the original files, see `data.load`.
    - `resume`: `False` trains all runs again.
    - `devices`: the number of devices that share each step.
    - `launcher`: "ray" trains runs side by side on the workers of a cluster, which must all see
      the folder.
    """
    folder = folder.absolute()
    _load_images.cache_clear()
    done = {record.run for record in read_records(folder)} if resume else set()
    remaining = [(number, run) for number, run in enumerate(runs, 1) if run not in done]
    if launcher == "here":
        _warn_about_cpu([run for _, run in remaining], progress)
    options = {"resume": resume, "tensorboard": tensorboard, "devices": devices}
    options["progress"] = progress and launcher == "here"
    tasks = [
        (run, f"run {number} of {len(runs)}", folder, data, options) for number, run in remaining
    ]
    ends = {"trained": 0, "done_before": len(runs) - len(remaining), "elsewhere": 0, "failed": 0}
    for number, (end, sentence) in launch(launcher, train_one, tasks, gpus=devices or 1):
        ends[end] += 1
        run = remaining[number][1]
        _report(progress, sentence if launcher == "here" else f"{run}: {sentence}")
    _report(
        progress,
        f"{ends['trained']} of {len(runs)} runs trained, {ends['done_before']} done before, "
        f"{ends['elsewhere']} left to other processes, {ends['failed']} failed.",
    )
    result, figures = image_result(folder)
    write_figures(folder, figures, ("png", "pdf"))
    return SweepSummary(folder, **ends, entry=Entry(result, [*figures]))


def _warn_about_cpu(runs: Sequence[ImageRun], progress: bool) -> None:
    all_images = any(run.protocol.images is None for run in runs)
    if all_images and jax.default_backend() == "cpu":
        _report(
            progress,
            "JAX finds no accelerator here. On a CPU an epoch takes minutes and a run hours; "
            "--quick trains on few images.",
        )


def train_one(
    run: ImageRun, number: str, folder: Path, data: str | Path | None, options: dict[str, Any]
) -> tuple[str, str]:
    """Trains a run unless another process does. Returns how it ended, in a word and a sentence."""
    images = _load_images(data, options["progress"], run.dataset, *run.protocol.image_counts)
    _report(options["progress"], f"{run}: {number}")
    path, run_folder = folder / "lines" / f"{run.name}.jsonl", folder / "runs" / run.name
    with _claim(run_folder) as claimed:
        if not claimed:
            return "elsewhere", "Another process is training it: left to that."
        if options["resume"] and path.exists():
            return "done_before", "Another process has trained it."
        for unfinished in path.parent.glob(f".{path.name}.*.part"):  # Of a process that was killed.
            unfinished.unlink()
        try:
            record = train_run(run, images, run_folder, **options)
        except TrainingError as error:
            return "failed", f"It failed: {error}"
        write_atomically(path, encode_record(record) + b"\n")
        # The record holds the same numbers.
        shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)
        (run_folder / "metrics.jsonl").unlink(missing_ok=True)
    return "trained", _describe(record)


def _describe(record: RunRecord) -> str:
    accuracies = f"Test accuracy {record.last:g} %, at best {record.best:g} %"
    return f"{accuracies}, in {record.seconds:.0f} s"


@contextlib.contextmanager
def _claim(run_folder: Path) -> Iterator[bool]:
    """Locks a run, and yields whether this process has the lock.

    The system releases the lock when the process ends in any way.
    """
    filelock = load("filelock")
    lock = filelock.FileLock(run_folder.with_name(f".{run_folder.name}.lock"))
    with writing(run_folder):
        run_folder.parent.mkdir(parents=True, exist_ok=True)
        claimed = _try_lock(lock, filelock.Timeout)
    try:
        yield claimed
    finally:
        if claimed:
            lock.release()


def _try_lock(lock: Any, timeout_error: type[Exception]) -> bool:
    try:
        lock.acquire(timeout=0)
    except timeout_error:
        return False
    return True


# A worker trains many runs, and most of them take the same images as the one before.
@functools.lru_cache(maxsize=1)
def _load_images(
    folder: str | Path | None,
    progress: bool,
    dataset: str,
    train: int | None,
    test: int | None,
    validation: int | None,
) -> DeviceImages:
    _report(progress, f"Reading {DATASETS[dataset]}")
    return move_to_device(dataset, data_sets.load(dataset, folder), train, test, validation)


def _report(progress: bool, sentence: str) -> None:
    if progress:
        print(sentence, file=sys.stderr, flush=True)
