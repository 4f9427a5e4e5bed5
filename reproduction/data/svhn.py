"""Reads SVHN's arrays, which are in MATLAB's format, version 5.

SciPy's reader is not used, because it ends the process when a file of someone else's stores its
numbers as a type that it does not know.
"""

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from .errors import format_shape, replace_file
from .reading import CHUNK, ImagesAndLabels, check_labels, check_size, explain_errors

# MATLAB's codes for the class of an array, and for the type of the numbers in the file.
CLASSES = {
    **{1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single"},
    **{8: "int8", 9: "uint8", 10: "int16", 11: "uint16", 12: "int32", 13: "uint32"},
    **{14: "int64", 15: "uint64", 16: "function", 17: "opaque"},
}
DTYPES = {
    **{1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"},
    **{12: "i8", 13: "u8"},
}
INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
MOST_DIMENSIONS = 32


def read_svhn(paths: Sequence[Path], counts: tuple[int, int]) -> list[ImagesAndLabels]:
    """The training and the test set, from a file each."""
    return [_read_set(path, n) for path, n in zip(paths, counts, strict=True)]


def _read_set(path: Path, count: int) -> ImagesAndLabels:
    shape = (32, 32, 3, count)  # MATLAB's first index changes fastest.
    images = labels = None
    with explain_errors(path):
        # Each label may take eight bytes.
        for content, order in _read_elements(path, math.prod(shape) + 8 * count + CHUNK):
            array = _Array(content, order)
            if array.name == b"X":
                images = _read_images(path, array, shape)
            if array.name == b"y":
                labels = _read_labels(path, array, count)
    if images is None or labels is None:
        raise replace_file(path, "holds no arrays X and y")
    return images, labels


def _read_elements(path: Path, limit: int) -> Iterator[tuple[bytearray, str]]:
    """The decompressed arrays of a MATLAB file and their byte order.

    Together they may have no more bytes than the limit.
    """
    left = limit
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        header = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:])
        if order is None or header[124:126] != struct.pack(f"{order}H", 0x0100):
            raise ValueError("it is no MATLAB file of version 5")
        while tag := file.read(8):
            kind, size = struct.unpack(f"{order}II", tag)
            if (end := file.tell() + size) > length:
                raise replace_file(path, f"is cut short after {length:,} of at least {end:,} bytes")
            if kind == COMPRESSED:
                content = _decompress(file, size, left)
                kind, size = struct.unpack_from(f"{order}II", content)
                del content[:8]
            else:
                content = bytearray(file.read(min(size, left + 1)))
            left -= len(content)
            if left < 0:
                raise replace_file(path, f"unpacks to more than {limit:,} bytes")
            if kind != MATRIX or size != len(content):
                raise ValueError(f"an element of the kind {kind} should have {size:,} bytes")
            yield content, order


def _decompress(file: IO[bytes], size: int, limit: int) -> bytearray:
    """Decompresses the next `size` bytes of a file to hardly more than `limit` bytes."""
    decompressor, content = zlib.decompressobj(), bytearray()
    while size and not decompressor.eof and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        while chunk and len(content) <= limit:
            content += decompressor.decompress(chunk, CHUNK)
            chunk = decompressor.unconsumed_tail
    if len(content) <= limit and (size or not decompressor.eof):
        raise ValueError("a compressed element is cut short, or goes on behind its end")
    return content


class _Array:
    """An array of a MATLAB file. Its header is checked against the number of its bytes."""

    def __init__(self, content: bytearray, order: str):
        self._content, self._order, self._position = content, order, 0
        flags, _ = struct.unpack(f"{order}II", self._read_header_part(UINT32))
        self.kind = CLASSES.get(flags & 0xFF, "unknown")
        if flags & 0x0800:
            self.kind = f"complex {self.kind}"
        if flags & 0x0200:
            self.kind = f"logical {self.kind}"
        self.shape = () if self.kind == "opaque" else self._read_shape()
        self.name = self._read_header_part(INT8)

    def _read_shape(self) -> tuple[int, ...]:
        shape = np.frombuffer(self._read_header_part(INT32), f"{self._order}i4")
        if shape.size > MOST_DIMENSIONS:
            raise ValueError(f"it has an array of {shape.size:,} dimensions")
        return tuple(shape.tolist())

    def _read_header_part(self, expected: int) -> bytes:
        kind, part = self._read_part()
        if kind != expected:
            raise ValueError(f"its header has a part of the kind {kind} in place of {expected}")
        return bytes(part)

    def read_numbers(self) -> np.ndarray:
        """The real parts, one after the other. They share memory with the array."""
        kind, part = self._read_part()
        if kind not in DTYPES:
            raise ValueError(f"its numbers are stored as the unknown kind {kind}")
        return np.frombuffer(part, f"{self._order}{DTYPES[kind]}")

    def _read_part(self) -> tuple[int, memoryview]:
        """The kind and the bytes of the next part. Up to four bytes may stand inside its tag."""
        kind, size = struct.unpack_from(f"{self._order}II", self._content, self._position)
        start = self._position + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, start - 4
        part = memoryview(self._content)[start : start + size]
        if len(part) < size or (start % 8 and size > 4):
            raise ValueError(f"a part of {size:,} bytes is cut short")
        self._position = start + size + -(start + size) % 8
        return kind, part


def _read_images(path: Path, array: _Array, shape: tuple[int, ...]) -> np.ndarray:
    if (array.kind, array.shape) != ("uint8", shape):
        problem = f"holds {array.kind} images of {format_shape(array.shape)}"
        raise replace_file(path, f"{problem}, and not uint8 of {format_shape(shape)}")
    numbers = array.read_numbers()
    if numbers.dtype != np.uint8:
        raise replace_file(path, f"holds images stored as {numbers.dtype}, and not as uint8")
    check_size(f"The array of images in {path}", numbers.size, math.prod(shape))
    return numbers.reshape(shape, order="F").transpose(3, 0, 1, 2)


def _read_labels(path: Path, array: _Array, count: int) -> np.ndarray:
    is_number = re.fullmatch(r"double|single|u?int(8|16|32|64)", array.kind) is not None
    if not is_number or math.prod(array.shape) != count:
        problem = f"holds {array.kind} labels of {format_shape(array.shape)}"
        raise replace_file(path, f"{problem}, and not {count:,} numbers")
    # The digit 0 has the label 10.
    return check_labels(path, array.read_numbers(), count, first=1) % 10
