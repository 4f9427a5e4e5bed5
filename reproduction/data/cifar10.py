"""Reads CIFAR-10's binary version, as an archive or unpacked.

The Python version is not read, because it consists of pickles, which can make any code run.
"""

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import join_names, replace_file
from .reading import (
    CHUNK,
    ImagesAndLabels,
    check_labels,
    check_size,
    explain_errors,
    open_decompressed,
)

FOLDER = "cifar-10-batches-bin"
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")

# A row of a batch: a label, and an image of 3 × 32 × 32 bytes.
ROW = 1 + 3 * 32 * 32

# Twice a batch. A longer file is not read to its end.
BATCH_LIMIT = 2**26

# The archive unpacks to less. A longer one is not unpacked any further.
ARCHIVE_LIMIT = 2**28
MOST_MEMBERS = 1000


def read_batches(paths: Sequence[Path], counts: tuple[int, int]) -> list[ImagesAndLabels]:
    """The training and the test set, from five batches and one."""
    return _join_batches(map(_read_file, paths), counts)


def read_archive(paths: Sequence[Path], counts: tuple[int, int]) -> list[ImagesAndLabels]:
    """The training and the test set, from the archive of the six batches.

    Nothing is unpacked to the disk. Links and other members of the archive are skipped.
    """
    (path,) = paths
    names = [f"{FOLDER}/{batch}" for batch in BATCHES]
    with explain_errors(path), open_decompressed(path) as file:
        stream = _LimitedStream(path, file)
        found = dict(_read_members(path, stream, names))
        # gzip keeps its checksum at the end.
        while stream.read(CHUNK):
            pass
    if missing := [name for name in names if name not in found]:
        raise replace_file(path, f"lacks {join_names(missing)}")
    return _join_batches([(f"{path}: {name}", found[name]) for name in names], counts)


def _join_batches(
    contents: Iterable[tuple[str, bytes]], counts: tuple[int, int]
) -> list[ImagesAndLabels]:
    sizes = [counts[0] // 5] * 5 + [counts[1]]
    batches = [
        _parse_batch(where, content, n) for (where, content), n in zip(contents, sizes, strict=True)
    ]
    train = [np.concatenate(parts) for parts in zip(*batches[:5], strict=True)]
    return [
        (rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)
        for rows, labels in (train, batches[5])
    ]


def _parse_batch(where: str, content: bytes, count: int) -> ImagesAndLabels:
    check_size(where, len(content), count * ROW)
    rows = np.frombuffer(content, np.uint8).reshape(count, ROW)
    return rows[:, 1:], check_labels(where, rows[:, 0], count)


def _read_file(path: Path) -> tuple[str, bytes]:
    with explain_errors(path), open(path, "rb") as file:
        content = file.read(BATCH_LIMIT + 1)
    if len(content) > BATCH_LIMIT:
        raise replace_file(path, f"is longer than {BATCH_LIMIT:,} bytes")
    return str(path), content


def _read_members(
    path: Path, stream: "_LimitedStream", names: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """The members of an archive with these names.

    Extended headers are skipped. Python before 3.11.10 takes quadratic time to parse hostile ones,
    and short names need none.
    """
    for number in range(MOST_MEMBERS):
        block = stream.read(tarfile.BLOCKSIZE)
        if block == bytes(tarfile.BLOCKSIZE) or (number and not block):
            return
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if member.size < 0 or member.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("it has a sparse member, or one of negative size")
        # Links, folders and devices have no content, whatever size they claim.
        size = 0 if member.type in b"123456" else member.size
        padded = size + -size % tarfile.BLOCKSIZE
        name = member.name.removeprefix("./")
        if name in names and member.isreg():
            if size > BATCH_LIMIT:
                raise replace_file(f"{path}: {name}", f"is longer than {BATCH_LIMIT:,} bytes")
            content = stream.read(padded)
            yield name, content[:size]
            padded -= len(content)
        while padded and (skipped := len(stream.read(min(padded, CHUNK)))):
            padded -= skipped
        if padded:
            raise ValueError("it is cut short")
    raise ValueError(f"it has more than {MOST_MEMBERS:,} members")


class _LimitedStream:
    """A stream that refuses to be read beyond a limit, since few bytes can unpack to many."""

    def __init__(self, path: Path, file: Any):
        self._path, self._file, self._left = path, file, ARCHIVE_LIMIT

    def read(self, size: int) -> bytes:
        content = self._file.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise replace_file(self._path, f"unpacks to more than {ARCHIVE_LIMIT:,} bytes")
        return content
