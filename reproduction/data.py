"""MNIST, CIFAR-10 and SVHN, read from the files in which their authors give them away.

```python
images = reproduction.data.load("cifar10", "~/data")
```

Files come from a folder that is named, else from that in `LAGRAX_DATA`, else from a cache into
which they are downloaded. What a file says of itself is checked against what is known of the data
set before it is used, and no file can make code run.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from .data_error import OWN_FILES, DataError, listed
from .downloads import Download, fetch
from .image_files import (
    Parser,
    Split,
    binary_batch,
    pickled_batch,
    read_cifar,
    read_mnist,
    read_svhn,
)


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
        paths = fetch(layout.downloads, _cache() / dataset, progress)
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


# Where files are found.


class _Layout(NamedTuple):
    """One of the forms in which a data set is given away: its files, each under one of several
    names, what reads them, and where they are to be had."""

    files: Sequence[Sequence[str]]
    read: Callable[[Sequence[Path], tuple[int, int]], list[Split]]
    downloads: Sequence[Download] = ()


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
            most, lacking = len(found), f"{folder / name} lacks {listed(missing)}"
    if most:
        raise DataError(f"{lacking} of {source.title}: add what is missing, or use another folder.")
    raise DataError(
        f"{folder} holds no {source.title}: put {source.wanted} there or in {source.folders[1]} "
        "below it, or name no folder, neither with --data nor with LAGRAX_DATA, to download it."
    )


def _first(place: Path, names: Sequence[str]) -> Path | None:
    return next((place / name for name in names if (place / name).is_file()), None)


def _cache() -> Path:
    """By the XDG rules, in which a relative path counts as none."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "lagrax"
    except RuntimeError as error:
        raise DataError(f"There is no home folder to download into: {OWN_FILES}.") from error


# The data sets.
#
# Addresses, sizes and digests are those of tensorflow_datasets 4.9.10 on PyPI, in its files
# url_checksums/mnist.txt, url_checksums/cifar10.txt and datasets/svhn_cropped/checksums.tsv.
# MNIST's are also what its unpacked files give if packed as they once were: by GNU `gzip -6`, as
# train-images.idx3-ubyte and so on, of the times 848331386, 848331398, 885827245 and 885827268.

_MNIST_HOME = "https://storage.googleapis.com/cvdf-datasets/mnist"
_MNIST_DOWNLOADS = (
    Download(
        f"{_MNIST_HOME}/train-images-idx3-ubyte.gz",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    Download(
        f"{_MNIST_HOME}/train-labels-idx1-ubyte.gz",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    Download(
        f"{_MNIST_HOME}/t10k-images-idx3-ubyte.gz",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    Download(
        f"{_MNIST_HOME}/t10k-labels-idx1-ubyte.gz",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
# The binary one of CIFAR-10's archives: it holds nothing but images and labels.
_CIFAR_DOWNLOAD = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_SVHN_HOME = "http://ufldl.stanford.edu/housenumbers"
_SVHN_DOWNLOADS = (
    Download(
        f"{_SVHN_HOME}/train_32x32.mat",
        182_040_794,
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    Download(
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


def _cifar(folder: str, archive: str, names: Sequence[str], parse: Parser) -> Iterator[_Layout]:
    """One of CIFAR-10's versions, unpacked and in its archive."""
    yield _Layout([[name] for name in names], functools.partial(read_cifar, parse=parse))
    members = [f"{folder}/{name}" for name in names]
    read = functools.partial(read_cifar, parse=parse, members=members)
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
                read_mnist,
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
            *_cifar(_CIFAR_FOLDERS[0], "cifar-10-binary.tar.gz", _BINARY, binary_batch),
            *_cifar(_CIFAR_FOLDERS[1], "cifar-10-python.tar.gz", _BATCHES, pickled_batch),
        ],
    ),
    "svhn": _DataSet(
        title="SVHN",
        counts=(73_257, 26_032),
        wanted="train_32x32.mat and test_32x32.mat",
        folders=("", "svhn", "SVHN"),
        layouts=[
            _Layout([[download.name] for download in _SVHN_DOWNLOADS], read_svhn, _SVHN_DOWNLOADS)
        ],
    ),
}
DATASETS = tuple(_SETS)
