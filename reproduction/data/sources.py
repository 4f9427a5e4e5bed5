"""The names, folders, addresses and digests of the files of each data set.

Addresses, sizes and digests are those of tensorflow_datasets 4.9.10 on PyPI, in its files
url_checksums/mnist.txt, url_checksums/cifar10.txt and datasets/svhn_cropped/checksums.tsv. The
unpacked files of MNIST give the same digests if GNU `gzip -6` compresses them as it compressed the
originals, named train-images.idx3-ubyte and so on, with the times 848331386, 848331398, 885827245
and 885827268.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from . import cifar10
from .downloads import Download, fetch
from .errors import DataError, join_names
from .mnist import read_mnist
from .reading import ImagesAndLabels
from .svhn import read_svhn


class Layout(NamedTuple):
    """A form in which a data set is distributed.

    It has the possible names of each file, the function that reads the files, and their downloads.
    """

    files: Sequence[Sequence[str]]
    read: Callable[[Sequence[Path], tuple[int, int]], list[ImagesAndLabels]]
    downloads: Sequence[Download] = ()


class Source(NamedTuple):
    """A data set, and its numbers of training and test images.

    The files are searched for in `folders`. `wanted` describes them if they are not found.
    """

    title: str
    counts: tuple[int, int]
    wanted: str
    folders: Sequence[str]
    layouts: Sequence[Layout]


def find_files(source: Source, folder: Path) -> tuple[Layout, list[Path]]:
    """The first layout with all its files in the folder, or in one of the folders below it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: name one that holds {source.title}.")
    most, lacking = 0, ""
    for layout, name in itertools.product(source.layouts, source.folders):
        paths = [_find_first(folder / name, names) for names in layout.files]
        found = [path for path in paths if path is not None]
        if len(found) == len(paths):
            return layout, found
        if len(found) > most:
            missing = [x[0] for x, path in zip(layout.files, paths, strict=True) if not path]
            most, lacking = len(found), f"{folder / name} lacks {join_names(missing)}"
    if most:
        raise DataError(f"{lacking} of {source.title}: add what is missing, or use another folder.")
    raise DataError(
        f"{folder} holds no {source.title}: put {source.wanted} there or in {source.folders[1]} "
        "below it, or name no folder, neither with --data nor with LAGRAX_DATA, to download it."
    )


def _find_first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def download_source(source: Source, folder: Path, progress: bool) -> tuple[Layout, list[Path]]:
    """The layout that can be downloaded, and its files."""
    layout = next(layout for layout in source.layouts if layout.downloads)
    return layout, [fetch(download, folder, progress) for download in layout.downloads]


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


def _list_mnist_names(name: str) -> list[str]:
    """Compressed or not, and with the dot of the names inside the archives, which some programs
    unpack to."""
    name = name.removesuffix(".gz")
    dotted = name.replace("-idx", ".idx")
    return [name, dotted, f"{name}.gz", f"{dotted}.gz"]


SOURCES = {
    "mnist": Source(
        title="MNIST",
        counts=(60_000, 10_000),
        wanted="train-images-idx3-ubyte and its three companions, compressed by gzip or not,",
        folders=("", "mnist", "MNIST", "MNIST/raw"),
        layouts=[
            Layout(
                [_list_mnist_names(download.name) for download in _MNIST_DOWNLOADS],
                read_mnist,
                _MNIST_DOWNLOADS,
            )
        ],
    ),
    "cifar10": Source(
        title="CIFAR-10",
        counts=(50_000, 10_000),
        wanted="cifar-10-binary.tar.gz (the binary version, not the Python one), unpacked or not,",
        folders=("", "cifar10", cifar10.FOLDER, f"cifar10/{cifar10.FOLDER}"),
        layouts=[
            Layout([[name] for name in cifar10.BATCHES], cifar10.read_batches),
            Layout([[_CIFAR_DOWNLOAD.name]], cifar10.read_archive, [_CIFAR_DOWNLOAD]),
        ],
    ),
    "svhn": Source(
        title="SVHN",
        counts=(73_257, 26_032),
        wanted="train_32x32.mat and test_32x32.mat",
        folders=("", "svhn", "SVHN"),
        layouts=[
            Layout([[download.name] for download in _SVHN_DOWNLOADS], read_svhn, _SVHN_DOWNLOADS)
        ],
    ),
}
