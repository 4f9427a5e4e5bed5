"""Reads files that may be damaged or hostile, and says in one sentence why one is refused."""

import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import OWN_FILES, DataError, replace_file, summarise_error

CHUNK = 2**16

# The images and the labels of a training or test set.
ImagesAndLabels = tuple[np.ndarray, np.ndarray]


@contextlib.contextmanager
def explain_errors(where: str | Path) -> Iterator[None]:
    """Turns any error of a reader, whichever library raises it, into a sentence about the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{where} is missing: {OWN_FILES}.") from error
    except Exception as error:
        raise replace_file(where, f"cannot be read ({summarise_error(error)})") from error


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Opens a file, and decompresses it if its content is gzip, whatever its name says."""
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as decompressed:
            yield decompressed


def check_size(where: str | Path, got: int, expected: int) -> None:
    if got < expected:
        raise replace_file(where, f"is cut short after {got:,} of {expected:,} bytes")
    if got > expected:
        raise replace_file(where, f"is longer than its {expected:,} bytes")


def check_labels(where: str | Path, values: Any, count: int, first: int = 0) -> np.ndarray:
    """The labels as int32, if there are `count` and all are among the ten from `first` on."""
    labels = np.asarray(values)
    if labels.shape != (count,) or labels.dtype.kind not in "uif":
        raise replace_file(where, f"has labels of shape {labels.shape}, and not {count:,} numbers")
    wrong = labels[~np.isin(labels, np.arange(first, first + 10))]
    if wrong.size:
        raise replace_file(where, f"has a label {wrong[0]}, which is not in {first} to {first + 9}")
    return labels.astype(np.int32)
