"""Files of MNIST, CIFAR-10 and SVHN with a few random images, in the formats of the originals."""

import io
import struct
import tarfile

import numpy as np
import pytest
import scipy.io

from reproduction import data

TRAIN, TEST = 10, 4
MNIST = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def made(shape):
    """A data set of random images, of which all labels occur."""
    rng = np.random.default_rng(0)
    images = lambda n: rng.integers(0, 256, (n, *shape), np.uint8)
    labels = lambda n: rng.permutation(10)[:n].astype(np.int32)
    return data.Images(images(TRAIN), labels(TRAIN), images(TEST), labels(TEST))


GREY, COLOUR = made((28, 28, 1)), made((32, 32, 3))


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def mnist_files(ending="", pack=lambda content: content):
    content = [array.squeeze().astype(np.uint8) for array in GREY]
    return {name + ending: pack(idx(a)) for name, a in zip(MNIST, content, strict=True)}


def batches():
    """CIFAR-10's six, as rows of 3072 bytes and labels."""
    rows = lambda images: images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    cut = lambda array: np.split(array, 5)
    images = [*cut(rows(COLOUR.train_images)), rows(COLOUR.test_images)]
    return zip(images, [*cut(COLOUR.train_labels), COLOUR.test_labels], strict=True)


def binary_files():
    joined = [np.c_[labels.astype(np.uint8), images] for images, labels in batches()]
    return {f"{name}.bin": a.tobytes() for name, a in zip(BATCHES, joined, strict=True)}


def archive(files, odd=()):
    """A tar.gz of files, with odd members in front."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for member in odd:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def inside(folder, files):
    return {f"{folder}/{name}": content for name, content in files.items()}


def mat(images, labels, **more):
    file = io.BytesIO()
    digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    content = {"X": images.transpose(1, 2, 3, 0), "y": digits} | more
    scipy.io.savemat(file, {k: v for k, v in content.items() if v is not None}, do_compression=True)
    return file.getvalue()


def svhn_files(**more):
    return {
        "train_32x32.mat": mat(COLOUR.train_images, COLOUR.train_labels, **more),
        "test_32x32.mat": mat(COLOUR.test_images, COLOUR.test_labels),
    }


BIN, BINARY_TAR = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"


def binary_tar(odd=()):
    return {BINARY_TAR: archive(inside(BIN, binary_files()), odd)}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def check(got, expected):
    for mine, theirs, name in zip(got, expected, got._fields, strict=True):
        np.testing.assert_array_equal(mine, theirs, name)
        assert mine.dtype == theirs.dtype
        assert mine.flags.c_contiguous
        assert mine.flags.writeable


def odd(name, kind=tarfile.REGTYPE, target="", size=0):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


class Evil:
    """Pickled, it is a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def complaint(*arguments, **options):
    """The message of the error that `data.load` raises, which is one sentence."""
    with pytest.raises(data.DataError) as caught:
        data.load(*arguments, **options)
    message = str(caught.value)
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message
    return message
