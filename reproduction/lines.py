"""Finished runs of the image classifiers: one line of JSON each, in any files of a folder.

A folder holds them as `*.jsonl`, directly or below `lines/`, where a sweep writes one file a run.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lagrax.training._files import parse_json, read_whole

from .images import DATASETS, MEASURED, Protocol, Run, default_protocol
from .models import paper_models
from .result import ResultError

_PAPER = json.loads(Path(__file__).with_name("tables.json").read_text(encoding="utf-8"))


class Line(NamedTuple):
    """A run and what came of it, over its epochs. `validation_accuracy`, `nfe`, `fine_accuracy` and
    `solver_error` are None where they were not measured; a number that was not finite is NaN."""

    run: Run
    train_loss: np.ndarray
    test_loss: np.ndarray
    test_accuracy: np.ndarray
    validation_accuracy: np.ndarray | None
    nfe: np.ndarray | None
    fine_accuracy: float | None
    solver_error: float | None
    seconds: float
    device: str
    versions: dict[str, Any]

    @property
    def last(self) -> float:
        """The accuracy of the last epoch, in percent."""
        return float(self.test_accuracy[-1])

    @property
    def best(self) -> float:
        return float(np.nanmax(self.test_accuracy))

    @property
    def best_epoch(self) -> int:
        """The first has the number 1."""
        return 1 + int(np.nanargmax(self.test_accuracy))

    @property
    def chosen(self) -> float:
        """The test accuracy of the epoch that is best on the validation images, of equal ones the
        first."""
        assert self.validation_accuracy is not None
        return float(self.test_accuracy[np.nanargmax(self.validation_accuracy)])

    @property
    def is_default(self) -> bool:
        """Whether it was trained as those of the tables are."""
        return self.run.protocol == default_protocol(self.run.model)


def files(folder: Path) -> list[Path]:
    """The files of lines in a folder. A training's own `metrics.jsonl` is none."""
    paths = [*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("lines/*.jsonl"))]
    return [path for path in paths if path.name != "metrics.jsonl"]


def read_lines(folder: Path) -> list[Line]:
    """All lines in a folder, in the order of the paper's tables. A run that is there twice counts
    once, and what `lines/` holds is the newer."""
    found = {line.run: line for path in files(folder) for line in _read(path)}
    return sorted(found.values(), key=lambda line: place(line.run))


def place(run: Run) -> tuple[Any, ...]:
    """Its place in the order of the paper's tables."""
    datasets, models = list(DATASETS), paper_models()
    return datasets.index(run.dataset), models.index(run.model), run.protocol.digest, run.seed


def _read(path: Path) -> Iterator[Line]:
    try:
        text = read_whole(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}. Move it elsewhere.") from error
    for number, content in enumerate(text.splitlines(), 1):
        try:
            yield parse(content)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ResultError(
                f"Line {number} of {path} is no finished run ({why}): remove it, and train its run "
                "again."
            ) from error


def parse(text: str) -> Line:
    """One line. What is wrong with it is a ValueError, KeyError, TypeError or OverflowError."""
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError(f"{content!r:.40} is no object")
    run = _run(content)
    if run.dataset not in DATASETS or run.model not in paper_models():
        raise ValueError(f"the paper has no {run.model!r} on {run.dataset!r}")
    if not isinstance(run.seed, int):
        raise ValueError(f"the seed is {run.seed!r}")
    for name, value in dataclasses.asdict(run.protocol).items():
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"its {name} is {value!r:.40}")
    if np.all(np.isnan(_series(content, "test_accuracy"))):
        raise ValueError("`test_accuracy` has no number at all")
    nfe = content["nfe"]
    return Line(
        run,
        *(_series(content, name) for name in ("train_loss", "test_loss", "test_accuracy")),
        validation_accuracy=(
            _series(content, "validation_accuracy") if run.protocol.validation else None
        ),
        nfe=None if nfe is None else _series(content, "nfe"),
        fine_accuracy=_number(content, "fine_accuracy"),
        solver_error=_number(content, "solver_error"),
        seconds=float(content["seconds"]),
        device=str(content["device"]),
        versions=dict(content["versions"]),
    )


def _run(content: dict[str, Any]) -> Run:
    trained = content["protocol"]
    protocol = Protocol(
        **{name: content[name] for name in ("solver", "steps", "rtol", "precision", "epochs")},
        batch_size=trained["batch_size"],
        learning_rate=trained["learning_rate"],
        # Absent from lines of before there was a choice.
        **{name: trained[name] for name in MEASURED if name in trained},
    )
    return Run(content["dataset"], content["model"], content["seed"], protocol)


def _series(content: dict[str, Any], name: str) -> np.ndarray:
    values = [math.nan if value is None else value for value in content[name]]
    if len(values) != content["epochs"] or not values:
        raise ValueError(f"`{name}` has {len(values)} values for {content['epochs']} epochs")
    return np.array(values, float)


def _number(content: dict[str, Any], name: str) -> float | None:
    value = content.get(name)
    return None if value is None else float(value)


# --- over seeds -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1) of one number over the seeds; NaN where there is none."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            return cls(math.nan, math.nan)
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.2f}" + ("" if math.isnan(self.std) else f" ± {self.std:.2f}")


def published(dataset: str, model: str) -> Spread:
    """The accuracy that the paper gives."""
    return Spread(**_PAPER["accuracy_percent"][model][dataset])


def grouped(lines: Sequence[Line]) -> dict[Run, list[Line]]:
    """Lines that differ in their seed alone, by their run with the seed 0."""
    groups: dict[Run, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.run._replace(seed=0), []).append(line)
    return groups


# Lines of the tables: by data set and model.
Cells = dict[tuple[str, str], list[Line]]


def same_seeds(group: Sequence[Line], cells: Cells) -> list[Line]:
    """The lines of the same model and seeds in the default setting, if all of them are there."""
    run, seeds = group[0].run, {line.run.seed for line in group}
    found = [x for x in cells.get((run.dataset, run.model), []) if x.run.seed in seeds]
    return found if len(found) == len(seeds) else []


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def in_words(protocol: Protocol) -> str:
    """How it is solved, in few words."""
    if protocol.rtol is not None:
        return f"adaptive {protocol.solver}, {protocol.rtol:g}"
    steps = "step" if protocol.steps == 1 else "steps"
    return f"{protocol.steps} {protocol.solver} {steps}"
