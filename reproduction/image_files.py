"""Readers: the files of a data set in, the images and labels of the training and test set out.

What a file says of itself is checked before it is used, and no file can make code run.
"""

import contextlib
import gzip
import math
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from .data_error import OWN_FILES, DataError, listed, reason

# Twice a batch of CIFAR-10: what claims to be one is read no further.
BATCH_LIMIT = 2**26

# More than CIFAR-10's archives hold: what unpacks to more is not unpacked any further.
ARCHIVE_LIMIT = 2**28
MOST_MEMBERS = 1000

CHUNK = 2**16

Split = tuple[np.ndarray, np.ndarray]


@contextlib.contextmanager
def _reading(where: str | Path) -> Iterator[None]:
    """Whatever goes wrong with a damaged file, in whichever library, becomes one sentence."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{where} is missing: {OWN_FILES}.") from error
    except Exception as error:
        raise _not_original(where, f"cannot be read ({reason(error)})") from error


def _not_original(where: str | Path, problem: str) -> DataError:
    return DataError(f"{where} {problem}: put the original, or a whole copy, in its place.")


def _labels(where: str | Path, values: Any, count: int, first: int = 0) -> np.ndarray:
    """Labels as int32, if there are `count` and all are among the ten from `first` on."""
    labels = np.asarray(values)
    if labels.shape != (count,) or labels.dtype.kind not in "uif":
        raise _not_original(where, f"has labels of shape {labels.shape}, and not {count:,} numbers")
    wrong = labels[~np.isin(labels, np.arange(first, first + 10))]
    if wrong.size:
        raise _not_original(
            where, f"has a label {wrong[0]}, which is not in {first} to {first + 9}"
        )
    return labels.astype(np.int32)


def read_mnist(paths: Sequence[Path], counts: tuple[int, int]) -> list[Split]:
    splits = zip(paths[::2], paths[1::2], counts, strict=True)
    return [
        (_idx(images, (n, 28, 28))[..., None], _labels(labels, _idx(labels, (n,)), n))
        for images, labels, n in splits
    ]


def _idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array of bytes in the IDX format, plain or gzip whatever its name, of a shape that is
    known, so that a wrong header cannot ask for memory."""
    header, size = struct.Struct(f">{1 + len(shape)}I"), math.prod(shape)
    with _reading(path), _decompressed(path) as file:
        start = file.read(header.size)
        body = file.read(size + 1)
    if len(start) < header.size:
        raise _not_original(path, f"ends after {len(start)} bytes, inside its header")
    magic, *got = header.unpack(start)
    if magic != (expected := 0x0800 + len(shape)):
        raise _not_original(path, f"begins with {magic:#010x}, and not with {expected:#010x}")
    if tuple(got) != shape:
        raise _not_original(path, f"holds an array of {_times(got)}, and not of {_times(shape)}")
    _check_size(path, len(start) + len(body), header.size + size)
    return np.frombuffer(body, np.uint8).reshape(shape)


def _times(shape: Iterable[int]) -> str:
    return " × ".join(f"{n:,}" for n in shape)


def _check_size(where: str | Path, got: int, expected: int) -> None:
    if got < expected:
        raise _not_original(where, f"is cut short after {got:,} of {expected:,} bytes")
    if got > expected:
        raise _not_original(where, f"is longer than its {expected:,} bytes")


@contextlib.contextmanager
def _decompressed(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked


# Takes the name of a batch of CIFAR-10, its contents and the number of images.
Parser = Callable[[str, bytes, int], Split]


def read_cifar(
    paths: Sequence[Path], counts: tuple[int, int], *, parse: Parser, members: Sequence[str] = ()
) -> list[Split]:
    """Six batches in as many files, or as `members` of one archive: five to train, one to test."""
    contents = _members(paths[0], members) if members else map(_content, paths)
    sizes = [counts[0] // 5] * 5 + [counts[1]]
    batches = [
        parse(where, content, n) for (where, content), n in zip(contents, sizes, strict=True)
    ]
    train = [np.concatenate(parts) for parts in zip(*batches[:5], strict=True)]
    return [
        (rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels)
        for rows, labels in (train, batches[5])
    ]


def _content(path: Path) -> tuple[str, bytes]:
    with _reading(path), open(path, "rb") as file:
        return str(path), _limited(path, file)


def _limited(where: str | Path, file: Any) -> bytes:
    content = file.read(BATCH_LIMIT + 1)
    if len(content) > BATCH_LIMIT:
        raise _too_long(where)
    return content


def _too_long(where: str | Path) -> DataError:
    return _not_original(where, f"is longer than {BATCH_LIMIT:,} bytes")


def _members(path: Path, names: Sequence[str]) -> list[tuple[str, bytes]]:
    """Files inside an archive, which is read from one end to the other. Nothing is unpacked to the
    disk, and links and everything else that is not asked for are passed over."""
    with _reading(path), _decompressed(path) as file:
        stream = _Bounded(path, file)
        found = dict(_tar_files(path, stream, names))
        # To the end, where gzip keeps its check.
        while stream.read(CHUNK):
            pass
    if missing := [name for name in names if name not in found]:
        raise _not_original(path, f"lacks {listed(missing)}")
    return [(f"{path}: {name}", found[name]) for name in names]


def _tar_files(path: Path, stream: "_Bounded", names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Those files of an archive that are asked for.

    Extended headers are skipped: Python before 3.11.10 takes forever to parse hostile ones, and
    short names need none.
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
                raise _too_long(f"{path}: {name}")
            content = stream.read(padded)
            yield name, content[:size]
            padded -= len(content)
        while padded and (skipped := len(stream.read(min(padded, CHUNK)))):
            padded -= skipped
        if padded:
            raise ValueError("it is cut short")
    raise ValueError(f"it has more than {MOST_MEMBERS:,} members")


class _Bounded:
    """A stream that is read up to a limit: few bytes can unpack to any number of them."""

    def __init__(self, path: Path, file: Any):
        self._path, self._file, self._left = path, file, ARCHIVE_LIMIT

    def read(self, size: int) -> bytes:
        content = self._file.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise _not_original(self._path, f"unpacks to more than {ARCHIVE_LIMIT:,} bytes")
        return content


def binary_batch(where: str, content: bytes, count: int) -> Split:
    """Rows of a label and the 3072 bytes of an image."""
    _check_size(where, len(content), count * 3073)
    rows = np.frombuffer(content, np.uint8).reshape(count, 3073)
    return rows[:, 1:], _labels(where, rows[:, 0], count)


def pickled_batch(where: str, content: bytes, count: int) -> Split:
    """A dictionary that Python 2 pickled, with an array of numpy's in it."""
    with _reading(where):
        batch = _Pickle(where, content).read()
    match batch:
        case {
            b"data": _Inert(
                state=(
                    _,
                    (int(), int()) as shape,
                    _Inert(arguments=(b"u1", *_)),
                    order,
                    bytes(body),
                )
            ),
            b"labels": list(values),
        }:
            pass
        case _:
            raise _not_original(where, "is no batch of CIFAR-10")
    if shape != (count, 3072):
        raise _not_original(where, f"has images of shape {shape}, and not {(count, 3072)}")
    _check_size(f"The array of images in {where}", len(body), count * 3072)
    # Before numpy sees them: lists within lists can be few bytes and many numbers.
    if not all(isinstance(value, int) for value in values):
        raise _not_original(where, "has labels that are no numbers")
    rows = np.frombuffer(body, np.uint8).reshape(shape, order="F" if order else "C")
    return rows, _labels(where, values, count)


class _Inert:
    """Stands for what a pickle makes by calling a name of numpy's: keeps what it is told, and does
    nothing."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, *arguments: Any):
        self.name, self.arguments, self.state = name, arguments, None


class _Pickle:
    """A batch of CIFAR-10, read without Python's own reader of pickles, which runs what they say.

    A pickle is a list of instructions for a machine with a stack. Those are followed that make
    numbers, texts, tuples, lists and dictionaries. Of names there are three, and they stand for
    nothing but themselves; what is made by calling one is a `_Inert`. All else is refused, so that
    no code runs and nothing is imported.
    """

    NAMES = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")
    # Three times those of a batch: each may store an object, and takes a single byte.
    MOST = 100_000

    # By instruction: the form of the number behind it, or what it puts on the stack.
    NUMBERS: ClassVar = {b"K": "<B", b"M": "<H", b"J": "<i"}
    TEXTS: ClassVar = {b"U": "<B", b"T": "<i", b"C": "<B", b"X": "<I", b"\x8c": "<B"}
    KEEPS: ClassVar = {b"q": "<B", b"r": "<I"}
    FETCHES: ClassVar = {b"h": "<B", b"j": "<I"}
    CONSTANTS: ClassVar = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
    TUPLES: ClassVar = {b"\x85": 1, b"\x86": 2, b"\x87": 3}

    def __init__(self, where: str, content: bytes):
        self._where, self._content, self._place = where, content, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._kept: dict[int, Any] = {}

    def read(self) -> Any:
        for _ in range(self.MOST):
            code = self._take(1)
            if code == b".":
                return self._stack.pop()
            self._follow(code)
        raise ValueError(f"it has more than {self.MOST:,} instructions")

    def _follow(self, code: bytes) -> None:
        stack = self._stack
        if code in self.NUMBERS:
            stack.append(self._number(self.NUMBERS[code]))
        elif code in self.TEXTS:
            stack.append(self._take(self._number(self.TEXTS[code])))
        elif code in self.KEEPS:
            self._kept[self._number(self.KEEPS[code])] = stack[-1]
        elif code in self.FETCHES:
            stack.append(self._kept[self._number(self.FETCHES[code])])
        elif code in self.CONSTANTS:
            stack.append(self.CONSTANTS[code])
        elif code in self.TUPLES:
            stack.append(tuple(self._popped(self.TUPLES[code])))
        elif code in b"]}":
            stack.append([] if code == b"]" else {})
        elif code == b"(":
            self._marks.append(len(stack))
        elif code == b"t":
            stack.append(tuple(self._since_mark()))
        elif code in b"ae":
            new = self._since_mark() if code == b"e" else self._popped(1)
            _of(list, stack[-1]).extend(new)
        elif code in b"su":
            new = self._since_mark() if code == b"u" else self._popped(2)
            _of(dict, stack[-1]).update(zip(new[::2], new[1::2], strict=True))
        else:
            self._follow_name(code)

    def _follow_name(self, code: bytes) -> None:
        if code in b"ci":
            self._stack.append(self._admitted(self._line(), self._line()))
        elif code == b"\x93":
            self._stack.append(self._admitted(*self._popped(2)))
        elif code == b"R":
            name, arguments = self._popped(2)
            self._stack.append(_Inert(_of(str, name), *_of(tuple, arguments)))
        elif code == b"b":
            (state,) = self._popped(1)
            _of(_Inert, self._stack[-1]).state = state
        elif code in b"\x80\x95":
            self._take(1 if code == b"\x80" else 8)  # the version; a length
        elif code == b"\x94":
            self._kept[len(self._kept)] = self._stack[-1]
        else:
            raise ValueError(f"no batch of CIFAR-10 holds the instruction {code!r}")

    def _admitted(self, module: bytes, name: bytes) -> str:
        text = (_of(bytes, module) + b"." + _of(bytes, name)).decode("utf-8", "replace")
        if text not in self.NAMES:
            wish = f"{text!a:.80}"
            raise _not_original(self._where, f"asks for {wish}, which no batch of CIFAR-10 does")
        return text

    def _take(self, size: int) -> bytes:
        start, end = self._place, self._place + size
        if not start <= end <= len(self._content):
            raise ValueError(f"it ends after {len(self._content):,} bytes, in the middle")
        self._place = end
        return self._content[start:end]

    def _line(self) -> bytes:
        end = self._content.find(b"\n", self._place)
        line = self._take(max(end - self._place, 0))
        self._take(1)
        return line

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _since_mark(self) -> list[Any]:
        return self._popped(len(self._stack) - self._marks.pop())

    def _popped(self, number: int) -> list[Any]:
        place = len(self._stack) - number
        if number < 0 or place < 0:
            raise ValueError("it takes more than it has given")
        popped = self._stack[place:]
        del self._stack[place:]
        return popped


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def read_svhn(paths: Sequence[Path], counts: tuple[int, int]) -> list[Split]:
    return [_mat(path, n) for path, n in zip(paths, counts, strict=True)]


# MATLAB's codes for the kinds of arrays, and for how their numbers are stored.
KINDS = {
    **{1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single"},
    **{8: "int8", 9: "uint8", 10: "int16", 11: "uint16", 12: "int32", 13: "uint32"},
    **{14: "int64", 15: "uint64", 16: "function", 17: "opaque"},
}
NUMBERS = {
    **{1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"},
    **{12: "i8", 13: "u8"},
}
INT8, INT32, UINT32, MATRIX, PACKED = 1, 5, 6, 14, 15
MOST_DIMENSIONS = 32


def _mat(path: Path, count: int) -> Split:
    """MATLAB's first index changes fastest and counts rows; the digit 0 has the label 10."""
    shape = (32, 32, 3, count)
    with _reading(path):
        found = {}
        # Each label may take eight bytes.
        for content, order in _mat_elements(path, math.prod(shape) + 8 * count + CHUNK):
            array = _MatArray(content, order)
            if array.name in (b"X", b"y"):
                found[array.name] = _mat_numbers(path, array, shape)
        if len(found) < 2:
            raise _not_original(path, "holds no arrays X and y")
        labels = _labels(path, found[b"y"], count, first=1)
    return found[b"X"].reshape(shape, order="F").transpose(3, 0, 1, 2), labels % 10


def _mat_elements(path: Path, limit: int) -> Iterator[tuple[bytearray, str]]:
    """The arrays of a MATLAB file, unpacked, and their byte order. Together they may hold no more
    bytes than the limit."""
    left = limit
    with open(path, "rb") as file:
        header = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:])
        if order is None or header[124:126] != struct.pack(f"{order}H", 0x0100):
            raise ValueError("it is no MATLAB file of version 5")
        while tag := file.read(8):
            kind, size = struct.unpack(f"{order}II", tag)
            if kind == PACKED:
                content = _unpacked(file, size, left)
                kind, size = struct.unpack_from(f"{order}II", content)
                del content[:8]
            else:
                content = bytearray(file.read(min(size, left + 1)))
            left -= len(content)
            if left < 0:
                raise _not_original(path, f"unpacks to more than {limit:,} bytes")
            if kind != MATRIX or size != len(content):
                raise ValueError(f"an element of the kind {kind} should have {size:,} bytes")
            yield content, order


def _unpacked(file: IO[bytes], size: int, limit: int) -> bytearray:
    """The next `size` bytes of a file, unpacked to little more than `limit` bytes at most."""
    unpacker, content = zlib.decompressobj(), bytearray()
    while size and not unpacker.eof and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        while chunk and len(content) <= limit:
            content += unpacker.decompress(chunk, CHUNK)
            chunk = unpacker.unconsumed_tail
    if len(content) <= limit and (size or not unpacker.eof):
        raise ValueError("a packed element is cut short, or goes on behind its end")
    return content


class _MatArray:
    """An array of MATLAB's. What its header says is checked against the bytes that are there.

    SciPy's own reader is not for files of others: it ends the process where it does not know how
    numbers are stored.
    """

    def __init__(self, content: bytearray, order: str):
        self._content, self._order, self._place = content, order, 0
        flags, _ = struct.unpack(f"{order}II", self._part(UINT32))
        self.kind = KINDS.get(flags & 0xFF, "unknown")
        if flags & 0x0800:
            self.kind = f"complex {self.kind}"
        if flags & 0x0200:
            self.kind = f"logical {self.kind}"
        self.shape = () if self.kind == "opaque" else self._shape()
        self.name = self._part(INT8)

    def _shape(self) -> tuple[int, ...]:
        shape = np.frombuffer(self._part(INT32), f"{self._order}i4")
        if shape.size > MOST_DIMENSIONS:
            raise ValueError(f"it has an array of {shape.size:,} dimensions")
        return tuple(shape.tolist())

    def _part(self, expected: int) -> bytes:
        kind, part = self._next()
        if kind != expected:
            raise ValueError(f"its header has a part of the kind {kind} in place of {expected}")
        return bytes(part)

    def numbers(self) -> np.ndarray:
        """The real parts, one after the other. They share memory with the array."""
        kind, part = self._next()
        if kind not in NUMBERS:
            raise ValueError(f"its numbers are stored as the unknown kind {kind}")
        return np.frombuffer(part, f"{self._order}{NUMBERS[kind]}")

    def _next(self) -> tuple[int, memoryview]:
        """The kind and the bytes of the next part; up to four bytes may stand inside its tag."""
        kind, size = struct.unpack_from(f"{self._order}II", self._content, self._place)
        start = self._place + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, start - 4
        part = memoryview(self._content)[start : start + size]
        if len(part) < size or (start % 8 and size > 4):
            raise ValueError(f"a part of {size:,} bytes is cut short")
        self._place = start + size + -(start + size) % 8
        return kind, part


def _mat_numbers(path: Path, array: _MatArray, shape: tuple[int, ...]) -> np.ndarray:
    """The images X or the labels y, if their kind and shape are right."""
    what = {b"X": "images", b"y": "labels"}[array.name]
    if what == "images":
        right = (array.kind, array.shape) == ("uint8", shape)
        expected = f"uint8 of {_times(shape)}"
    else:
        number = re.fullmatch(r"double|single|u?int(8|16|32|64)", array.kind) is not None
        right = number and math.prod(array.shape) == shape[-1]
        expected = f"{shape[-1]:,} numbers"
    if not right:
        problem = f"holds {array.kind} {what} of {_times(array.shape)}"
        raise _not_original(path, f"{problem}, and not {expected}")
    numbers = array.numbers()
    if what == "images":
        if numbers.dtype != np.uint8:
            raise _not_original(path, f"holds images stored as {numbers.dtype}, and not as uint8")
        _check_size(f"The array of images in {path}", numbers.size, math.prod(shape))
    return numbers
