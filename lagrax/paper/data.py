"""MNIST, CIFAR-10 and SVHN, read from the files in which their authors give them away.

```python
images = lagrax.paper.data.load("cifar10", "~/data")
```

Files come from a folder that is named, else from that in `LAGRAX_DATA`, else from a cache into
which they are downloaded. What a file says of itself is checked against what is known of the data
set before it is used, and no file can make code run.
"""

import contextlib
import functools
import gzip
import hashlib
import http.client
import itertools
import math
import os
import re
import struct
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from .._machine import load as load_module
from .._progress import Progress

OWN_FILES = "put the original files in a folder and name it with --data or LAGRAX_DATA"

# Seconds without a byte after which a server counts as gone.
TIMEOUT = 30.0

MEGABYTE = 10**6
CHUNK = 2**16

# Twice a batch of CIFAR-10: what claims to be one is read no further.
BATCH_LIMIT = 2**26

# More than CIFAR-10's archives hold: what unpacks to more is not unpacked any further.
ARCHIVE_LIMIT = 2**28


class DataError(RuntimeError):
    """A data set cannot be had; the message says why and what to do."""


class Images(NamedTuple):
    """A data set as its authors split and ordered it: bytes, and labels from 0 to 9."""

    train_images: UInt8[np.ndarray, "train height width channels"]
    train_labels: Int32[np.ndarray, " train"]
    test_images: UInt8[np.ndarray, "test height width channels"]
    test_labels: Int32[np.ndarray, " test"]


def load(dataset: str, folder: str | Path | None = None, *, progress: bool = True) -> Images:
    """Reads a data set, one of `DATASETS`.

    **Arguments:**

    - `folder`: where its original files lie, or a subfolder of this such as `mnist`. Without it
      `LAGRAX_DATA` names the folder; without that they are downloaded, once, and kept below
      `~/.cache/lagrax` (or `XDG_CACHE_HOME`). Nothing is ever downloaded into a folder you name.
    - `progress`: whether to show that of a download on stderr.

    A folder you name may hold copies that were packed anew: contents are checked, not digests.
    Downloads are held against the SHA-256 of the originals.
    """
    if dataset not in _SETS:
        raise ValueError(f"There is no data set {dataset!r}: choose one of {', '.join(DATASETS)}.")
    source = _SETS[dataset]
    given = folder or os.environ.get("LAGRAX_DATA")
    if given:
        layout, paths = _find(source, _expanded(Path(given)))
    else:
        layout = next(layout for layout in source.layouts if layout.downloads)
        paths = _fetch(layout.downloads, _cache() / dataset, progress)
    (images, labels), (test_images, test_labels) = layout.read(paths, source.counts)
    # A copy: in memory as in name, and not bound to the contents of a file.
    return Images(
        np.array(images, order="C"), labels, np.array(test_images, order="C"), test_labels
    )


def _expanded(folder: Path) -> Path:
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise DataError(f"{folder} names a home folder that is not known: {OWN_FILES}.") from error


# Readers: the files of a data set in, the images and labels of the training and test set out.

_Split = tuple[np.ndarray, np.ndarray]


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
        raise _not_original(where, f"cannot be read ({_reason(error)})") from error


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


def _read_mnist(paths: Sequence[Path], counts: tuple[int, int]) -> list[_Split]:
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
_Parser = Callable[[str, bytes, int], _Split]


def _read_cifar(
    paths: Sequence[Path], counts: tuple[int, int], *, parse: _Parser, members: Sequence[str] = ()
) -> list[_Split]:
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
        raise _not_original(where, f"is longer than {BATCH_LIMIT:,} bytes")
    return content


def _members(path: Path, names: Sequence[str]) -> list[tuple[str, bytes]]:
    """Files inside an archive, which is read from one end to the other. Nothing is unpacked to the
    disk, and links and everything else that is not asked for are passed over."""
    found: dict[str, bytes] = {}
    with _reading(path), _decompressed(path) as file:
        stream: Any = _Bounded(path, file)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                content = archive.extractfile(member) if name in names and member.isreg() else None
                if content is not None:
                    found[name] = _limited(f"{path}: {name}", content)
        # To the end, where gzip keeps its check.
        while stream.read(CHUNK):
            pass
    if missing := [name for name in names if name not in found]:
        raise _not_original(path, f"lacks {_listed(missing)}")
    return [(f"{path}: {name}", found[name]) for name in names]


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


def _binary_batch(where: str, content: bytes, count: int) -> _Split:
    """Rows of a label and the 3072 bytes of an image."""
    _check_size(where, len(content), count * 3073)
    rows = np.frombuffer(content, np.uint8).reshape(count, 3073)
    return rows[:, 1:], _labels(where, rows[:, 0], count)


def _pickled_batch(where: str, content: bytes, count: int) -> _Split:
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


def _read_svhn(paths: Sequence[Path], counts: tuple[int, int]) -> list[_Split]:
    return [_mat(path, n) for path, n in zip(paths, counts, strict=True)]


def _mat(path: Path, count: int) -> _Split:
    """MATLAB's first index changes fastest and counts rows; the digit 0 has the label 10."""
    import scipy.io

    shape = (32, 32, 3, count)
    with _reading(path):
        # Before SciPy reads anything, which takes what a file says of its lengths as given.
        _check_unpacked(path, math.prod(shape) + 8 * count + CHUNK)
        for name, got, kind in scipy.io.whosmat(path):
            if name in ("X", "y"):
                _check_array(path, {"X": "images", "y": "labels"}[name], got, kind, shape)
        content = scipy.io.loadmat(path, variable_names=["X", "y"])
        if not {"X", "y"} <= content.keys():
            raise _not_original(path, "holds no arrays X and y")
        images = content["X"]
        if images.dtype != np.uint8 or images.shape != shape:
            problem = f"holds {images.dtype} images of {_times(images.shape)}"
            raise _not_original(path, f"{problem}, and not uint8 of {_times(shape)}")
        labels = _labels(path, content["y"].ravel(), count, first=1)
    return images.transpose(3, 0, 1, 2), labels % 10


def _check_array(
    path: Path, what: str, got: Sequence[int], kind: str, shape: tuple[int, ...]
) -> None:
    if what == "images":
        right, expected = (kind, tuple(got)) == ("uint8", shape), f"uint8 of {_times(shape)}"
    else:
        number = re.fullmatch(r"double|single|u?int(8|16|32|64)", kind) is not None
        right, expected = number and math.prod(got) == shape[-1], f"{shape[-1]:,} numbers"
    if not right:
        problem = f"holds {kind} {what} of {_times(got)}"
        raise _not_original(path, f"{problem}, and not {expected}")


def _check_unpacked(path: Path, limit: int) -> None:
    """Goes through the arrays of a MATLAB file, unpacks those that are packed, and keeps nothing of
    them. Neither what they hold nor the length that they claim to have may exceed the limit."""
    packed, left = 15, limit
    with open(path, "rb") as file:
        order = ">" if file.read(128).endswith(b"MI") else "<"
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            end, start = file.tell() + size, b""
            unpacker = zlib.decompressobj() if kind == packed else None
            if unpacker is None:
                start = tag + file.read(min(size, CHUNK))
                file.seek(end)
            while unpacker and (chunk := file.read(min(CHUNK, end - file.tell()))):
                while chunk and left >= 0:
                    part = unpacker.decompress(chunk, CHUNK)
                    start, left = start or part, left - len(part)
                    chunk = unpacker.unconsumed_tail
            if left < 0 or _claimed(start, order) > limit:
                raise _not_original(path, f"unpacks to more than {limit:,} bytes")


def _claimed(array: bytes, order: str) -> int:
    """How long the numbers of an array are, by its header: behind its flags, shape and name."""
    place = 8
    for part in range(4):
        if place + 8 > len(array):
            return 0
        kind, size = struct.unpack_from(f"{order}II", array, place)
        if part == 3:
            return 0 if kind >> 16 else size
        # Short ones stand inside their tag.
        place += 8 if kind >> 16 else 8 + size + -size % 8
    return 0


# Where files are found.


class _Download(NamedTuple):
    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class _Layout(NamedTuple):
    """One of the forms in which a data set is given away: its files, each under one of several
    names, what reads them, and where they are to be had."""

    files: Sequence[Sequence[str]]
    read: Callable[[Sequence[Path], tuple[int, int]], list[_Split]]
    downloads: Sequence[_Download] = ()


class _DataSet(NamedTuple):
    """`counts` are the numbers of images to train and to test with, `wanted` is the text for who
    has none of the files, and `folders` are where they are looked for."""

    title: str
    counts: tuple[int, int]
    wanted: str
    folders: Sequence[str]
    layouts: Sequence[_Layout]


def _find(source: _DataSet, folder: Path) -> tuple[_Layout, list[Path]]:
    """The first layout of which all files lie in the folder, or in one of those below it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: name one that holds {source.title}.")
    most, lacking = 0, ""
    for layout, name in itertools.product(source.layouts, source.folders):
        paths = [_first(folder / name, names) for names in layout.files]
        found = [path for path in paths if path is not None]
        if len(found) == len(paths):
            return layout, found
        if len(found) > most:
            missing = [x[0] for x, path in zip(layout.files, paths, strict=True) if not path]
            most, lacking = len(found), f"{folder / name} lacks {_listed(missing)}"
    if most:
        raise DataError(f"{lacking} of {source.title}: add what is missing, or use another folder.")
    raise DataError(
        f"{folder} holds no {source.title}: put {source.wanted} there or in {source.folders[1]} "
        "below it, or name no folder, neither with --data nor with LAGRAX_DATA, to download it."
    )


def _first(place: Path, names: Sequence[str]) -> Path | None:
    return next((place / name for name in names if (place / name).is_file()), None)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _cache() -> Path:
    """By the XDG rules, in which a relative path counts as none."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "lagrax"
    except RuntimeError as error:
        raise DataError(f"There is no home folder to download into: {OWN_FILES}.") from error


# Downloads.


def _fetch(downloads: Sequence[_Download], folder: Path, progress: bool) -> list[Path]:
    """The files in the cache, each whole: it gets its name after its digest was found right, and
    that is looked at again, for what may have happened since."""
    paths = []
    for download in downloads:
        path = folder / download.name
        try:
            if path.exists():
                _check_kept(path, download)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                with _alone(path):
                    if not path.exists():
                        _download(download, path, progress)
        except OSError as error:
            problem = f"{error.filename or path} cannot be used ({_reason(error)})"
            raise DataError(f"{problem}: set XDG_CACHE_HOME to another folder.") from error
        paths.append(path)
    return paths


def _check_kept(path: Path, download: _Download) -> None:
    if (got := _sha256(path)) != download.sha256:
        raise DataError(
            f"{path} has the SHA-256 {got}, and the original {download.sha256}: delete it and run "
            "again to download it anew."
        )


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two processes may want the same file; the second waits, and then finds it there."""
    filelock = load_module("filelock")
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"Waiting for another process that downloads {path.name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _download(download: _Download, path: Path, progress: bool) -> None:
    """Goes on with what an earlier attempt has left, for as long as anything arrives."""
    part = path.with_name(f"{path.name}.part")
    before, problem = -1, ""
    while before < (have := _kept(part, download)) < download.size:
        before = have
        try:
            _receive(download, part, have, progress)
        except (OSError, http.client.HTTPException) as error:
            problem = _reason(error)
    if have < download.size:
        kept = f"{have / MEGABYTE:.1f} of {download.size / MEGABYTE:.1f} MB are kept, so "
        raise DataError(
            f"{download.name} cannot be downloaded from {download.url} ({problem}): "
            f"{kept if have else ''}run again when it can be reached, or {OWN_FILES}."
        )
    if (got := _sha256(part)) != download.sha256:
        part.unlink()
        raise DataError(
            f"{download.name} from {download.url} has the SHA-256 {got}, and the original "
            f"{download.sha256}, so it was thrown away: run again to try anew, or {OWN_FILES}."
        )
    os.replace(part, path)


def _kept(part: Path, download: _Download) -> int:
    """Bytes that have arrived so far. More than there should be cannot be the beginning."""
    size = part.stat().st_size if part.exists() else 0
    if size > download.size:
        part.unlink()
        return 0
    return size


def _receive(download: _Download, part: Path, have: int, progress: bool) -> None:
    headers = {"User-Agent": "lagrax"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(download.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
        raise
    with response:
        have = _offset(response, have, download)
        with open(part, "ab") as file, _bar(download, have, progress) as bar:
            file.truncate(have)
            # Never more than is due, whatever the server sends.
            while chunk := response.read1(min(CHUNK, download.size - have)):
                file.write(chunk)
                have += len(chunk)
                bar.update(_megabytes(download, have), "MB downloaded")
            file.flush()
            os.fsync(file.fileno())
    if have < download.size:
        raise ConnectionError("the connection broke off")


def _bar(download: _Download, have: int, progress: bool) -> Progress:
    done, total = _megabytes(download, have), _megabytes(download, download.size)
    return Progress(download.name, done, total, shown=progress and download.size > MEGABYTE)


def _megabytes(download: _Download, have: int) -> int:
    """The last counts as one when all is there, and not before."""
    return math.ceil(have / MEGABYTE) if have == download.size else have // MEGABYTE


def _offset(response: Any, have: int, download: _Download) -> int:
    """Where in the file the answer begins: at the start, if the server cannot go on in between."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        given = response.headers.get("Content-Range", "")
        if re.fullmatch(rf"bytes {have}-\d+/(\*|{download.size})", given) is None:
            raise ConnectionError(f"asked for bytes {have} to {download.size}, it sends {given!r}")
        return have
    length = response.headers.get("Content-Length", str(download.size))
    if length != str(download.size):
        raise ConnectionError(f"it offers {length} bytes instead of {download.size}")
    return 0


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: BaseException) -> str:
    """What an error says, in few words: no number, no type, no second sentence."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return text or type(error).__name__


# The data sets.
#
# Addresses, sizes and digests are those of tensorflow_datasets 4.9.10 on PyPI, in its files
# url_checksums/mnist.txt, url_checksums/cifar10.txt and datasets/svhn_cropped/checksums.tsv.
# MNIST's are also what its unpacked files give if packed as they once were: by GNU `gzip -6`, as
# train-images.idx3-ubyte and so on, of the times 848331386, 848331398, 885827245 and 885827268.

_MNIST_HOME = "https://storage.googleapis.com/cvdf-datasets/mnist"
_MNIST_DOWNLOADS = (
    _Download(
        f"{_MNIST_HOME}/train-images-idx3-ubyte.gz",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    _Download(
        f"{_MNIST_HOME}/train-labels-idx1-ubyte.gz",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    _Download(
        f"{_MNIST_HOME}/t10k-images-idx3-ubyte.gz",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    _Download(
        f"{_MNIST_HOME}/t10k-labels-idx1-ubyte.gz",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
# The binary one of CIFAR-10's archives: it holds nothing but images and labels.
_CIFAR_DOWNLOAD = _Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_SVHN_HOME = "http://ufldl.stanford.edu/housenumbers"
_SVHN_DOWNLOADS = (
    _Download(
        f"{_SVHN_HOME}/train_32x32.mat",
        182_040_794,
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    _Download(
        f"{_SVHN_HOME}/test_32x32.mat",
        64_275_384,
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)


def _mnist_names(name: str) -> list[str]:
    """Plain or packed; and some programs unpack to the names with a dot inside the archives."""
    name = name.removesuffix(".gz")
    dotted = name.replace("-idx", ".idx")
    return [name, dotted, f"{name}.gz", f"{dotted}.gz"]


_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_BINARY = tuple(f"{name}.bin" for name in _BATCHES)
_CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")


def _cifar(folder: str, archive: str, names: Sequence[str], parse: _Parser) -> Iterator[_Layout]:
    """One of CIFAR-10's versions, unpacked and in its archive."""
    yield _Layout([[name] for name in names], functools.partial(_read_cifar, parse=parse))
    members = [f"{folder}/{name}" for name in names]
    read = functools.partial(_read_cifar, parse=parse, members=members)
    yield _Layout([[archive]], read, [x for x in (_CIFAR_DOWNLOAD,) if x.name == archive])


_SETS = {
    "mnist": _DataSet(
        title="MNIST",
        counts=(60_000, 10_000),
        wanted="train-images-idx3-ubyte and its three companions, packed by gzip or not,",
        folders=("", "mnist", "MNIST", "MNIST/raw"),
        layouts=[
            _Layout(
                [_mnist_names(download.name) for download in _MNIST_DOWNLOADS],
                _read_mnist,
                _MNIST_DOWNLOADS,
            )
        ],
    ),
    "cifar10": _DataSet(
        title="CIFAR-10",
        counts=(50_000, 10_000),
        wanted="cifar-10-binary.tar.gz or cifar-10-python.tar.gz, unpacked or not,",
        folders=("", "cifar10", *_CIFAR_FOLDERS, *(f"cifar10/{x}" for x in _CIFAR_FOLDERS)),
        layouts=[
            *_cifar(_CIFAR_FOLDERS[0], "cifar-10-binary.tar.gz", _BINARY, _binary_batch),
            *_cifar(_CIFAR_FOLDERS[1], "cifar-10-python.tar.gz", _BATCHES, _pickled_batch),
        ],
    ),
    "svhn": _DataSet(
        title="SVHN",
        counts=(73_257, 26_032),
        wanted="train_32x32.mat and test_32x32.mat",
        folders=("", "svhn", "SVHN"),
        layouts=[
            _Layout([[download.name] for download in _SVHN_DOWNLOADS], _read_svhn, _SVHN_DOWNLOADS)
        ],
    ),
}
DATASETS = tuple(_SETS)
