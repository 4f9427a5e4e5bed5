"""Keeps the metrics of a run, one record a step, in memory and as lines of `metrics.jsonl`."""

import errno
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ._errors import DamagedError
from ._machine import load

Record = dict[str, Any]


class _End(NamedTuple):
    """Size and digest of metrics.jsonl after the lines of `step`."""

    step: int
    size: int
    digest: Any

    def advance(self, step: int, content: bytes) -> "_End":
        digest = self.digest.copy()
        digest.update(content)
        return _End(step, self.size + len(content), digest)


class MetricsFile:
    """`metrics.jsonl`, opened after the lines of a checkpoint to append those of later steps."""

    def __init__(self, path: Path, step: int, content: bytes):
        self._path = path
        self._ends = (_End(step, len(content), hashlib.sha256(content)),)
        # Unbuffered, since content that a full disk has refused must not be written on closing.
        self._file = path.open("ab", buffering=0)
        # Lines after the checkpoint are written again, by the same steps.
        self._file.truncate(len(content))

    def append(self, records: Sequence[Record]) -> None:
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        write_all(self._file, content)
        # A single assignment, so that Ctrl-C finds either the old ends or the new ones. Both
        # contain the end that belongs to the state of the training loop.
        self._ends = (self._ends[-1], self._ends[-1].advance(records[-1]["step"], content))

    def sync(self, step: int) -> dict[str, str]:
        """Forces the lines to the disk. Returns size and digest after the lines of `step`, which
        ends one of the last two blocks."""
        os.fsync(self._file.fileno())
        (end,) = (end for end in self._ends if end.step == step)
        return {"bytes": str(end.size), "metrics": end.digest.hexdigest()}

    def check_in_place(self) -> None:
        """Raises if the file has been removed or replaced, since writing to it would not fail."""
        if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", str(self._path))

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path, size: int, digest: str) -> tuple[bytes, list[Record]]:
    """The first `size` bytes of metrics.jsonl and their records. Raises a `DamagedError` if the
    bytes do not have this digest."""
    content = b""
    if path.exists() and path.stat().st_size >= size:
        with path.open("rb") as file:
            content = file.read(size)
    if len(content) < size or hashlib.sha256(content).hexdigest() != digest:
        raise DamagedError("metrics.jsonl does not hold the lines that it counts on")
    # Two to three times as fast as the standard library's decoder, line by line.
    decoder = load("msgspec.json").Decoder(dict[str, bool | int | float | list[Any] | None])
    try:
        records = decoder.decode_lines(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"metrics.jsonl cannot be read: {error}") from None
    if not all(type(record.get("step")) is int for record in records):
        raise DamagedError("metrics.jsonl holds a line without a step")
    return content, [null_to_nan(record) for record in records]


def write_all(file: Any, content: bytes) -> None:
    """Writes all of `content`. An unbuffered file may take less than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def to_json(record: Record) -> Record:
    """Numbers as Python's own, and null for NaN and infinities, which JSON does not have."""
    return {name: _number_to_json(value) for name, value in record.items()}


def _number_to_json(value: Any) -> Any:
    array = np.asarray(value)
    if array.ndim:
        return [_number_to_json(x) for x in array]
    # `np.inexact` does not include bfloat16.
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.item()
    # The shortest digits that give the same float32 (or float64) back.
    return float(str(array[()])) if np.isfinite(array) else None


def null_to_nan(value: Any) -> Any:
    """Puts NaN in the place of null, in dictionaries and lists too."""
    if isinstance(value, dict):
        return {name: null_to_nan(x) for name, x in value.items()}
    if isinstance(value, list):
        return [null_to_nan(x) for x in value]
    return math.nan if value is None else value
