"""Reads MNIST's arrays of bytes, which are in the IDX format."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import format_shape, replace_file
from .reading import ImagesAndLabels, check_labels, check_size, explain_errors, open_decompressed


def read_mnist(paths: Sequence[Path], counts: tuple[int, int]) -> list[ImagesAndLabels]:
    """The training and the test set, from the files of images and labels in turn."""
    pairs = zip(paths[::2], paths[1::2], counts, strict=True)
    return [
        (
            _read_idx(images, (n, 28, 28))[..., None],
            check_labels(labels, _read_idx(labels, (n,)), n),
        )
        for images, labels, n in pairs
    ]


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array of the known shape. A wrong header cannot ask for memory."""
    header, size = struct.Struct(f">{1 + len(shape)}I"), math.prod(shape)
    with explain_errors(path), open_decompressed(path) as file:
        start = file.read(header.size)
        body = file.read(size + 1)
    if len(start) < header.size:
        raise replace_file(path, f"ends after {len(start)} bytes, inside its header")
    magic, *got = header.unpack(start)
    if magic != (expected := 0x0800 + len(shape)):
        raise replace_file(path, f"begins with {magic:#010x}, and not with {expected:#010x}")
    if tuple(got) != shape:
        problem = f"holds an array of {format_shape(got)}, and not of {format_shape(shape)}"
        raise replace_file(path, problem)
    check_size(path, len(start) + len(body), header.size + size)
    return np.frombuffer(body, np.uint8).reshape(shape)
