"""The files of the data sets, complete, missing, damaged or hostile."""

import gzip
import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from helpers.data_files import (
    BATCHES,
    BIN,
    BINARY_TAR,
    COLOUR,
    GREY,
    MNIST,
    TRAIN,
    archive,
    binary_files,
    binary_tar,
    check,
    complaint,
    idx,
    inside,
    mnist_files,
    odd,
    svhn_files,
    write,
)

from reproduction import data
from reproduction.data import cifar10, reading, sources

LAYOUTS = {
    "mnist plain": ("mnist", mnist_files()),
    "mnist below": ("mnist", inside("mnist", mnist_files())),
    "mnist torchvision": ("mnist", inside("MNIST/raw", mnist_files())),
    "mnist gzip": ("mnist", inside("mnist", mnist_files(".gz", gzip.compress))),
    "mnist gzip by name only": ("mnist", mnist_files(".gz")),
    "mnist gzip but by name": ("mnist", mnist_files("", gzip.compress)),
    "mnist dotted": ("mnist", {k.replace("-idx", ".idx"): v for k, v in mnist_files().items()}),
    "mnist both": ("mnist", mnist_files()
                   | dict(list(mnist_files(".gz", gzip.compress).items())[:2])),
    "cifar binary": ("cifar10", binary_files()),
    "cifar binary below": ("cifar10", inside(BIN, binary_files())),
    "cifar binary two below": ("cifar10", inside(f"cifar10/{BIN}", binary_files())),
    "cifar binary archive": ("cifar10", binary_tar()),
    "cifar binary archive below": ("cifar10", inside("cifar10", binary_tar())),
    "cifar archive of ./": ("cifar10", {BINARY_TAR: archive(inside(f"./{BIN}", binary_files()))}),
    "cifar part of one, all of another": ("cifar10", binary_tar()
                                          | dict(list(binary_files().items())[:4])),
    "svhn": ("svhn", svhn_files()),
    "svhn below": ("svhn", inside("svhn", svhn_files())),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout_is_read(case, tmp_path, small):
    name, files = LAYOUTS[case]
    check(data.load(name, write(tmp_path, files)), GREY if name == "mnist" else COLOUR)


def test_a_named_folder_comes_before_the_environment(tmp_path, small, monkeypatch):
    """In the folder named, else in that of the environment, else in the cache."""
    named = write(tmp_path / "named", mnist_files())
    other = write(tmp_path / "other", mnist_files())
    (other / MNIST[1]).write_bytes(idx(np.zeros(TRAIN, np.uint8)))
    monkeypatch.setenv("LAGRAX_DATA", str(other))
    check(data.load("mnist", named), GREY)
    check(data.load("mnist", str(named)), GREY)
    assert not data.load("mnist").train_labels.any()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAGRAX_DATA", "~/named")
    check(data.load("mnist"), GREY)


def test_the_cache_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert data.cache_folder() == tmp_path / "x" / "lagrax"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data.cache_folder() == tmp_path / ".cache" / "lagrax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.cache_folder() == tmp_path / ".cache" / "lagrax"


def test_a_missing_home_folder_is_reported(monkeypatch):
    def nowhere():
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LAGRAX_DATA", raising=False)
    assert "home folder" in complaint("mnist")


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="'imagenet': choose one of mnist, cifar10, svhn"):
        data.load("imagenet")


# Files to change, and words that the message must hold beside the name of the first.


def rows(count, label=0):
    return bytes([label, *bytes(3072)]) * count


PIXELS, DIGITS = mnist_files()[MNIST[0]], mnist_files()[MNIST[1]]
PACKED, TAR = gzip.compress(DIGITS), binary_tar()[BINARY_TAR]
TRAIN_MAT, TEST_MAT = "train_32x32.mat", "test_32x32.mat"
CUT = archive(inside(BIN, binary_files() | {"data_batch_4.bin": rows(1)}))
FIVE = archive(inside(BIN, {k: v for k, v in binary_files().items() if "3" not in k}))

DAMAGED = {
    "idx magic": ({MNIST[0]: b"\x89PNG" + bytes(99)}, ["0x89504e47", "0x00000803"]),
    "idx of labels for images": ({MNIST[0]: DIGITS}, ["0x00000801", "0x00000803"]),
    "idx empty": ({MNIST[2]: b""}, ["0 bytes", "header"]),
    "idx header cut": ({MNIST[2]: b"\x00\x00\x08"}, ["3 bytes", "header"]),
    "idx cut": ({MNIST[0]: PIXELS[:-1]}, ["7,855 of 7,856 bytes"]),
    "idx longer": ({MNIST[0]: PIXELS + b"0"}, ["longer", "7,856"]),
    "idx count": ({MNIST[1]: idx(np.arange(9, dtype=np.uint8))}, ["of 9, and not of 10"]),
    "idx shape": ({MNIST[2]: idx(np.zeros((4, 27, 28), np.uint8))}, ["4 × 27 × 28", "4 × 28 × 28"]),
    "idx label": ({MNIST[3]: idx(np.array([1, 2, 10, 4], np.uint8))}, ["label 10", "0 to 9"]),
    "gzip cut": ({MNIST[1]: PACKED[:-9]}, ["cannot be read", "end-of-stream"]),
    "gzip empty": ({MNIST[1]: PACKED[:2]}, ["cannot be read"]),
    "gzip check sum": ({MNIST[1]: PACKED[:-8] + bytes(8)}, ["CRC"]),
    "binary cut": ({"data_batch_2.bin": rows(2)[:-1]}, ["6,145 of 6,146"]),
    "binary longer": ({"test_batch.bin": rows(5)}, ["longer"]),
    "binary label": ({"test_batch.bin": rows(4, 11)}, ["label 11"]),
    "tar cut": ({BINARY_TAR: TAR[:-2000]}, ["cannot be read"]),
    "tar check sum": ({BINARY_TAR: TAR[:-8] + bytes(8)}, ["CRC"]),
    "tar empty": ({BINARY_TAR: b""}, ["cannot be read"]),
    "tar of other files": ({BINARY_TAR: archive({"a": b"b"})}, ["lacks", BATCHES[0]]),
    "tar of five batches": ({BINARY_TAR: FIVE}, [f"lacks {BIN}/data_batch_3.bin:"]),
    "tar with a batch cut": ({BINARY_TAR: CUT}, [f"{BIN}/data_batch_4.bin", "3,073 of 6,146"]),
    "mat cut": ({TEST_MAT: svhn_files()[TEST_MAT][:500]}, ["cut short after 500 of at least 12,"]),
    "mat empty": ({TRAIN_MAT: b""}, ["cannot be read"]),
    "mat of something else": ({TRAIN_MAT: b"<html>" * 99}, ["cannot be read"]),
    "mat names": (svhn_files(y=None), ["X and y"]),
    "mat count": ({TRAIN_MAT: svhn_files()[TEST_MAT]}, ["32 × 32 × 3 × 4", "32 × 32 × 3 × 10"]),
    "mat type": (svhn_files(X=np.zeros((32, 32, 3, TRAIN), np.int16)), ["int16", "uint8"]),
    "mat labels": (svhn_files(y=np.ones((9, 1))), ["9 × 1", "10 numbers"]),
    "mat label 0": (svhn_files(y=np.arange(10.0)), ["label 0.0", "1 to 10"]),
    "mat label broken": (svhn_files(y=np.full(10, 1.5)), ["label 1.5"]),
    "mat label nan": (svhn_files(y=np.full(10, np.nan)), ["label nan"]),
    "mat labels as text": (svhn_files(y="0123456789"), ["labels"]),
    "mat labels as cells": (svhn_files(y=np.array(["a"] * 10, object)), ["labels"]),
    "mat labels sparse": (svhn_files(y=scipy.sparse.csc_array(np.eye(10))), ["sparse labels"]),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(case, tmp_path, small):
    changes, words = DAMAGED[case]
    first = next(iter(changes))
    name = "mnist" if first in MNIST else "svhn" if first.endswith(".mat") else "cifar10"
    sets = [mnist_files(), svhn_files(), binary_files(), {BINARY_TAR: b""}]
    write(tmp_path, next(files for files in sets if first in files) | changes)
    message = complaint(name, tmp_path)
    for word in [str(tmp_path / first), "put the original", *words]:
        assert word in message, message


def test_a_batch_that_is_too_long_is_refused(tmp_path, small, monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH_LIMIT", 5000)
    message = complaint("cifar10", write(tmp_path, binary_files()))
    assert "data_batch_1.bin is longer than 5,000 bytes" in message


def test_an_unreadable_file_is_named(tmp_path, small, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reading, "open", refuse, raising=False)
    message = complaint("mnist", write(tmp_path, mnist_files()))
    assert f"{MNIST[0]} cannot be read (Permission denied)" in message


def test_a_file_that_vanishes_is_named(tmp_path, small, monkeypatch):
    write(tmp_path, mnist_files())
    found = data.find_files(sources.SOURCES["mnist"], tmp_path)
    monkeypatch.setattr(data, "find_files", lambda *_: found)
    (tmp_path / MNIST[1]).unlink()
    assert f"{MNIST[1]} is missing" in complaint("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("mnist", {}, ["no MNIST", MNIST[0], "in mnist below", "--data", "LAGRAX_DATA"]),
        ("cifar10", {}, ["no CIFAR-10", BINARY_TAR, "not the Python one"]),
        ("svhn", {}, ["no SVHN", "train_32x32.mat and test_32x32.mat"]),
        ("svhn", {"svhn/test_32x32.mat": b""}, ["svhn lacks train_32x32.mat of SVHN"]),
        ("cifar10", inside(BIN, dict.fromkeys(list(binary_files())[:3])),
         [f"{BIN} lacks data_batch_4.bin, data_batch_5.bin and test_batch.bin of CIFAR-10"]),
        ("mnist", dict.fromkeys(MNIST[:3]), [f"lacks {MNIST[3]} of MNIST"]),
        ("mnist", dict.fromkeys(MNIST[:2]), [f"lacks {MNIST[2]} and {MNIST[3]} of MNIST"]),
    ],
)  # fmt: skip
def test_missing_files_are_named(name, files, words, tmp_path):
    write(tmp_path, {key: content or b"" for key, content in files.items()})
    message = complaint(name, tmp_path)
    for word in [str(tmp_path), *words]:
        assert word in message, message


def test_a_missing_folder_is_refused(tmp_path, monkeypatch):
    assert f"{tmp_path / 'no'} is no folder" in complaint("mnist", tmp_path / "no")
    monkeypatch.setenv("LAGRAX_DATA", str(tmp_path / "none"))
    assert f"{tmp_path / 'none'} is no folder" in complaint("svhn")


ODD_MEMBERS = [
    odd("../data_batch_1.bin", size=7),
    odd(f"../{BIN}/data_batch_1.bin", size=7),
    odd(f"{BIN}/../{BIN}/data_batch_1.bin", size=7),
    odd("data_batch_1.bin", size=7),
    odd(f"/tmp/{BIN}/data_batch_1.bin", size=7),
    odd(f"{BIN}/data_batch_2.bin", tarfile.SYMTYPE, "/etc/passwd"),
    odd(f"{BIN}/data_batch_3.bin", tarfile.LNKTYPE, "../data_batch_1.bin"),
    odd(f"{BIN}/data_batch_4.bin", tarfile.DIRTYPE),
    odd(f"{BIN}/data_batch_5.bin", tarfile.FIFOTYPE),
    odd(f"{BIN}/test_batch.bin", tarfile.CHRTYPE),
]


def test_odd_members_of_an_archive_are_skipped(tmp_path, small, monkeypatch):
    write(tmp_path / "in", binary_tar(ODD_MEMBERS))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    check(data.load("cifar10", tmp_path / "in"), COLOUR)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [BINARY_TAR]


def test_links_are_not_followed(tmp_path, small):
    files = {name: content for name, content in binary_files().items() if "1" not in name}
    link = odd(f"{BIN}/data_batch_1.bin", tarfile.SYMTYPE, "data_batch_2.bin")
    write(tmp_path, {BINARY_TAR: archive(inside(BIN, files), [link])})
    assert f"lacks {BIN}/data_batch_1.bin" in complaint("cifar10", tmp_path)


# Images of each class from 0 on, as published.
SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
SVHN_TEST = [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]

# SHA-256 of the images, row by row, each pixel with its channels: taken from the files themselves
# (MNIST), and from copies as ordinary pictures that no code of lagrax has read (the others).
PICTURES = {
    "mnist": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    ),
    "cifar10": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    ),
    "svhn": (
        "a24062f843a6a12618ee9b23e91a9bfe13726bba939c0b549914638ba9ab7010",
        "d9450824511009532ca0f47ac5621a3ceb71bfc7169dca110eeeed7e52f772bd",
    ),
}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (28, 28, 1), MNIST_TRAIN, MNIST_TEST),
        ("cifar10", (32, 32, 3), [5000] * 10, [1000] * 10),
        ("svhn", (32, 32, 3), SVHN_TRAIN, SVHN_TEST),
    ],
)
def test_the_original_data(name, shape, train, test):
    if not os.environ.get("LAGRAX_DATA"):
        pytest.skip("LAGRAX_DATA names no folder with the data sets")
    try:
        images = data.load(name)
    except data.DataError as error:
        if "holds no" in str(error):
            pytest.skip(str(error))
        raise
    assert images.train_images.shape == (sum(train), *shape)
    assert images.test_images.shape == (sum(test), *shape)
    assert np.bincount(images.train_labels).tolist() == train
    assert np.bincount(images.test_labels).tolist() == test
    pictures = (images.train_images, images.test_images)
    assert tuple(hashlib.sha256(x).hexdigest() for x in pictures) == PICTURES[name]
