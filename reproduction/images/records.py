"""Records of finished runs, one line of JSON each, in any files of a folder.

The files are `*.jsonl` in the folder itself or in its subfolder `lines`, into which a sweep writes
one file for each run.
"""

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from lagrax.training._files import read_whole

from ..models import DATASETS, all_models, paper_size
from ..result import ResultError
from .protocol import ImageRun, Protocol, Recipe, default_protocol

# A number for each epoch. JSON has null for one that is not finite.
Series = np.ndarray

Percentage = Annotated[float, msgspec.Meta(ge=0, le=100)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class TrainingRecord(msgspec.Struct, frozen=True):
    """The part of a record that describes the training. Older records lack some of its fields."""

    batch_size: Count
    learning_rate: float
    optimiser: str = "adam"
    training_images: Count | None = None
    images: Count | None = None
    test_images: Count | None = None
    validation: Count | None = None
    counted: Count = 256
    checked: bool = True
    recipe: Recipe | None = None

    @classmethod
    def of(cls, protocol: Protocol, training_images: int) -> "TrainingRecord":
        shared = {name: getattr(protocol, name) for name in _shared_fields()}
        return cls(training_images=training_images, **shared)

    @property
    def protocol_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _shared_fields()}


@functools.cache
def _shared_fields() -> tuple[str, ...]:
    return tuple(x for x in TrainingRecord.__struct_fields__ if x in Protocol.__dataclass_fields__)


class RunRecord(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """The model and the protocol of a finished run, with a number for each epoch and metric.

    `validation_accuracy`, `nfe`, `fine_accuracy`, `adaptive_accuracy` and `solver_error` are None
    if they were not measured. A number of a series that was not finite is NaN.
    """

    dataset: str
    model: str
    seed: Count
    epochs: Annotated[int, msgspec.Meta(ge=1)]
    train_loss: Series
    test_loss: Series
    test_accuracy: Series
    validation_accuracy: Series | None = None
    nfe: list[Count] | None
    fine_accuracy: Percentage | None = None
    adaptive_accuracy: Percentage | None = None
    solver_error: float | None = None
    filters: Count | None = None
    params: Count | None = None
    solver: str
    steps: Count | None
    rtol: float | None
    precision: str
    seconds: float
    device: str
    versions: dict[str, str | None]
    training: TrainingRecord = msgspec.field(name="protocol")

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS or self.model not in all_models():
            raise ValueError(f"the paper has no {self.model!r} on {self.dataset!r}")
        assert self.run  # Checks the protocol.
        for name in ("train_loss", "test_loss", "test_accuracy", "validation_accuracy", "nfe"):
            series = getattr(self, name)
            if series is not None and len(series) != self.epochs:
                raise ValueError(f"`{name}` has {len(series)} values for {self.epochs} epochs")
        for name in ("test_accuracy", "validation_accuracy"):
            _check_accuracies(name, getattr(self, name))
        if self.training.validation and self.validation_accuracy is None:
            raise ValueError("it lacks `validation_accuracy`")
        expected = paper_size(self.model, self.dataset)
        for name, number in expected.items():
            if (given := getattr(self, name)) not in (None, number):
                raise ValueError(f"`{name}` is {given:,}, but {self.model} has {number:,}")

    @functools.cached_property
    def run(self) -> ImageRun:
        fields = {"solver", "steps", "rtol", "precision", "epochs"}
        own = {name: getattr(self, name) for name in fields}
        protocol = Protocol(**own, **self.training.protocol_fields)
        return ImageRun(self.dataset, self.model, self.seed, protocol)

    @property
    def last(self) -> float:
        """The test accuracy of the last epoch, in percent."""
        return float(self.test_accuracy[-1])

    @property
    def best(self) -> float:
        """The highest test accuracy of all epochs."""
        return float(np.nanmax(self.test_accuracy))

    @property
    def best_epoch(self) -> int:
        """The first epoch with the highest test accuracy, counted from 1."""
        return 1 + int(np.nanargmax(self.test_accuracy))

    @property
    def chosen(self) -> float:
        """The test accuracy of the first epoch that is best on the validation images."""
        assert self.validation_accuracy is not None
        return float(self.test_accuracy[np.nanargmax(self.validation_accuracy)])

    @property
    def is_default(self) -> bool:
        """Whether the run follows the protocol of the tables."""
        return self.run.protocol == default_protocol(self.model)


def _check_accuracies(name: str, series: Series | None) -> None:
    if series is None:
        return
    if np.all(np.isnan(series)):
        raise ValueError(f"`{name}` has no number at all")
    for value in series[~np.isnan(series)]:
        if not 0 <= value <= 100:
            raise ValueError(f"`{name}` has {value:,g}, which is no percentage")


# --- files ----------------------------------------------------------------------------------------


def list_record_files(folder: Path) -> list[Path]:
    """The files of records in a folder. The `metrics.jsonl` of a training is not one of them."""
    paths = [*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("lines/*.jsonl"))]
    return [path for path in paths if path.name != "metrics.jsonl"]


def read_records(folder: Path) -> list[RunRecord]:
    """All records in a folder, in the order of the paper's tables.

    A record may occur twice. Two different records of one run are refused.
    """
    found: dict[ImageRun, tuple[str, bytes, RunRecord]] = {}
    for path in list_record_files(folder):
        for where, record in _read_file(path):
            content = encode_record(record)
            before, same, _ = found.setdefault(record.run, (where, content, record))
            if content != same:
                raise ResultError(
                    f"{before} and {where} hold different results of one run ({record.run}): "
                    "remove one of them."
                )
    return sorted((record for *_, record in found.values()), key=get_table_position)


def get_table_position(record: RunRecord) -> tuple[Any, ...]:
    """The sorting key for the order of the paper's tables."""
    datasets, models, run = list(DATASETS), all_models(), record.run
    return datasets.index(run.dataset), models.index(run.model), run.protocol.digest, run.seed


def _read_file(path: Path) -> Iterator[tuple[str, RunRecord]]:
    """The records of a file, each with the place of its line."""
    try:
        lines = read_whole(path).splitlines()
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}. Move it elsewhere.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            yield where, parse_record(line)
        except ValueError as error:
            raise ResultError(
                f"{where.capitalize()} is no finished run ({str(error).rstrip('.')}): remove it, "
                "and train its run again."
            ) from error


def parse_record(line: bytes | str) -> RunRecord:
    """Reads one line. Raises a ValueError if it is not a record."""
    try:
        return msgspec.json.decode(line, type=RunRecord, dec_hook=_decode_series)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def encode_record(record: RunRecord) -> bytes:
    """A line of JSON without its end."""
    return msgspec.json.encode(record, enc_hook=_encode_series)


def _decode_series(kind: type, values: Any) -> Series:
    assert kind is np.ndarray
    try:
        numbers = msgspec.convert(values, list[float | None])
    except msgspec.ValidationError:
        raise ValueError("Expected numbers or null") from None
    return np.array([math.nan if x is None else x for x in numbers], float)


def _encode_series(series: Series) -> list[float | None]:
    return [float(x) if math.isfinite(x) else None for x in series]
