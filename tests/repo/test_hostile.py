"""Hostile files are refused as data, and none of their code runs.

Each message names the file. Nothing is written outside, nothing is imported, and time and memory
stay within bounds. test_data.py covers odd members of archives, and test_explore.py the server of
`lagrax explore`.
"""

import ast
import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from helpers import sample_files
from helpers.data_files import (
    BIN,
    BINARY_TAR,
    COLOUR,
    MNIST,
    Evil,
    archive,
    binary_files,
    check,
    inside,
    mnist_files,
    odd,
    svhn_files,
)
from helpers.sample_files import CHECKPOINT, listing, model, run, write

import lagrax
import reproduction
from lagrax import Identifier, IdentifyError, plotting
from lagrax._cli import answers as _answers
from lagrax._cli.table import TableError, read_table
from lagrax.training import _files
from lagrax.training._errors import RunError
from lagrax.training._run_folder import RunFolder
from reproduction import DataError, ResultError, data, read_experiment
from reproduction.data import cifar10

PACKAGES = [Path(module.__file__).parent for module in (lagrax, reproduction)]

# Data sets have a few images each.
pytestmark = pytest.mark.usefixtures("small")


class Bounds:
    """Within the block: no canary, nothing outside `folder` changes, few megabytes, few seconds."""

    def __init__(self, folder, megabytes=150, seconds=20):
        self.folder, self.megabytes, self.seconds = folder, megabytes, seconds

    def __enter__(self):
        self.before = listing(self.folder)
        self.modules = set(sys.modules)
        self.start = time.monotonic()
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < self.megabytes * 10**6, f"{peak / 10**6:.0f} MB"
        assert time.monotonic() - self.start < self.seconds
        assert listing(self.folder) == self.before
        foreign = {name for name in set(sys.modules) - self.modules if "canary" in name}
        assert foreign == set()


@pytest.fixture
def bounds(tmp_path, monkeypatch):
    """The working folder is one of its own, in which code that runs would leave a canary."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd/canary.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.syspath_prepend(str(tmp_path / "cwd"))
    return lambda **limits: Bounds(tmp_path, **limits)


def refused(kind, act, *words):
    with pytest.raises(kind) as caught:
        act()
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert len(message) < 1000


CANARY = Evil(exec, "import canary")

# --- no file is executed --------------------------------------------------------------------------


FORBIDDEN = {"pickle", "cPickle", "_pickle", "pickletools", "marshal", "shelve", "dill", "joblib"}
FORBIDDEN |= {"cloudpickle", "yaml", "imp", "code", "codeop", "runpy"}
RUNNERS = {"eval", "exec", "compile", "__import__", "breakpoint"}


def calls(tree):
    """The names of what is called, `np.load` as `np.load`, and the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in PACKAGES for path in folder.rglob("*.py")),
    ids=lambda path: path.stem,
)
def test_no_module_can_execute_what_it_reads(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module.partition(".")[0])
    assert not imported & FORBIDDEN
    # Variables of loops over constants.
    listed = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and isinstance(node.iter, ast.Tuple)
        and all(isinstance(x, ast.Constant) for x in node.iter.elts)
    }
    for name, call in calls(tree):
        where = f"line {call.lineno}: {name}"
        assert name not in RUNNERS, where
        assert not {keyword.arg for keyword in call.keywords} & {"allow_pickle", "shell"}, where
        assert name not in ("np.load", "numpy.load", "jnp.load", "os.system"), where
        assert not name.endswith((".extractall", ".extract", "unpack_archive")), where
        # A module that a file could name would be run by its import.
        if name in ("importlib.import_module", "import_module"):
            assert path.name == "_machine.py"
        if name in ("load", "load_module", "_machine.load"):
            module = call.args[0]
            assert isinstance(module, ast.Constant) or module.id in listed, where


def npz(value):
    file = io.BytesIO()
    np.savez(file, value)
    return file.getvalue()


def npy(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


OBJECTS = np.array([CANARY], object)
IMPOSTORS = {
    "a pickle": pickle.dumps(CANARY),
    "a pickle of protocol 0": pickle.dumps(CANARY, 0),
    "an array of objects": npy(OBJECTS),
    "an archive of arrays of objects": npz(OBJECTS),
    "a script": b"#!/bin/sh\ntouch ran\n",
    "a module": b"import canary\n",
}


def table(folder):
    return read_table(folder / "x.csv")


def opened(folder):
    with RunFolder(folder, sample_files.CONFIG) as opened:
        return opened.restore(sample_files.STATE)


# By what reads it: the files around it, the file, what is done, and the error.
READERS = {
    "a table": ({}, "x.csv", table, TableError),
    "a model's words": (model(), "model.json", Identifier.load, IdentifyError),
    "a model's numbers": (model(), "model.safetensors", Identifier.load, IdentifyError),
    "a configuration": (run(), "config.json", opened, RunError),
    "a result": ({}, "result.json", read_experiment, ResultError),
    "a line": ({}, "a.jsonl", read_experiment, ResultError),
    "images": (mnist_files(), MNIST[0], lambda folder: data.load("mnist", folder), DataError),
    "labels": (mnist_files(), MNIST[3], lambda folder: data.load("mnist", folder), DataError),
    "a batch": (
        binary_files(),
        "data_batch_1.bin",
        lambda folder: data.load("cifar10", folder),
        DataError,
    ),
    "an archive": ({}, BINARY_TAR, lambda folder: data.load("cifar10", folder), DataError),
    "MATLAB's": (
        svhn_files(),
        "test_32x32.mat",
        lambda folder: data.load("svhn", folder),
        DataError,
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_code_in_place_of_data(reader, bounds, tmp_path):
    around, name, act, kind = READERS[reader]
    for number, content in enumerate(IMPOSTORS.values()):
        folder = write(tmp_path / f"{number}", around | {name: content})
        with bounds():
            # A model is named by its folder.
            refused(kind, lambda folder=folder: act(folder), str(folder))


def test_a_checkpoint_that_is_a_pickle(bounds, tmp_path, capsys):
    write(tmp_path / "run", run(**{CHECKPOINT: pickle.dumps(CANARY)}))
    before = listing(tmp_path / "cwd")
    assert opened(tmp_path / "run")[0] == 0
    assert f"{tmp_path / 'run' / CHECKPOINT} is damaged" in capsys.readouterr().err
    assert listing(tmp_path / "cwd") == before


# --- names and links that lead elsewhere ----------------------------------------------------------


def test_arrays_with_names_of_files(bounds, tmp_path):
    """The names in a file of arrays are names, and never paths."""
    arrays = {"../../x": np.ones(3), "/tmp/x": np.ones(3), "['series'][../../x]['ts']": np.ones(3)}
    write(tmp_path / "m", model(arrays=arrays))
    with bounds(megabytes=400):
        refused(IdentifyError, lambda: Identifier.load(tmp_path / "m"), str(tmp_path / "m"))


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..", "", "a/../../secret", "a\0b", "x" * 5000, "~/secret"],
    ids=["up", "absolute", "above", "empty", "winding", "nul", "long", "home"],
)
def test_figures_with_names_of_other_files(name, bounds, tmp_path):
    description = plotting.to_json(plotting.Figure("a", "SECRET", [plotting.Panel([])]))
    write(tmp_path, {"secret.json": json.dumps(description)})
    content = json.dumps({"experiment": "a", "figures": [name]})
    write(tmp_path / "result", {"result.json": content, "figures/b.json": "{}"})
    with bounds():
        _, (shown,) = read_experiment(tmp_path / "result")
    assert "missing" in shown or "cannot be read" in shown


def test_a_solver_that_is_a_path_or_code(bounds, tmp_path):
    for number, name in enumerate(
        ["../canary", "canary.ran", "__builtins__", "__doc__", "Solution"]
    ):
        folder = write(tmp_path / f"{number}", model({"solver": name}))
        with bounds():
            refused(IdentifyError, lambda folder=folder: Identifier.load(folder), name)


def test_an_answer_s_list_of_files_cannot_remove_others(tmp_path):
    """Neither by its names nor by links; nor is a folder that a link leads to written to."""
    write(tmp_path, {"mine": "precious", "elsewhere/mine": "precious"})
    names = ["../mine", str(tmp_path / "mine"), "link", ".", "..", "a\0b", 3, None, ["x"]]
    summary = {"command": "fit", "files": names}
    write(tmp_path / "answer", {"summary.json": json.dumps(summary)})
    os.symlink("../mine", tmp_path / "answer/link")
    with _answers.answering(tmp_path / "answer") as folder:
        _answers.write_summary(folder, {"command": "fit"})
    assert (tmp_path / "mine").read_text() == "precious"
    os.symlink("../elsewhere", tmp_path / "answer/model")
    before = listing(tmp_path)
    refused(
        _answers.FolderError,
        lambda: _answers.check_folder(tmp_path / "answer", "fit"),
        str(tmp_path / "answer/model"),
        "another folder",
    )
    assert listing(tmp_path) == before


@pytest.mark.parametrize("files", [5, "abc", {"a": 1}, None], ids=repr)
def test_an_answer_s_list_of_files_that_is_none(files, tmp_path):
    content = json.dumps({"command": "fit", "files": files})
    write(tmp_path / "answer", {"summary.json": content, "a": "mine", "b": "mine"})
    with _answers.answering(tmp_path / "answer") as folder:
        _answers.write_summary(folder, {"command": "fit"})
    assert {p.name for p in (tmp_path / "answer").iterdir()} == {"a", "b", "summary.json"}


def test_members_of_an_archive_are_never_written(bounds, tmp_path):
    members = [
        odd("../../ran", size=7),
        odd(str(tmp_path / "cwd/ran"), size=7),
        odd("link", tarfile.SYMTYPE, str(tmp_path / "cwd")),
        odd("link/ran", size=7),
        odd("hard", tarfile.LNKTYPE, "/etc/passwd"),
        odd("dev", tarfile.CHRTYPE),
        odd("block", tarfile.BLKTYPE),
        odd("pipe", tarfile.FIFOTYPE),
        odd(f"{BIN}/data_batch_1.bin/../../../ran", size=7),
    ]
    write(tmp_path / "in", {BINARY_TAR: archive(inside(BIN, binary_files()), members)})
    with bounds():
        check(data.load("cifar10", tmp_path / "in"), COLOUR)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "pipe"])
def test_files_that_are_none(target, bounds, tmp_path):
    """A device or a pipe in place of a file would never end."""
    os.mkfifo(tmp_path / "pipe")
    folder = write(tmp_path / "in", {k: v for k, v in mnist_files().items() if k != MNIST[0]})
    os.symlink(target if target.startswith("/") else tmp_path / "pipe", folder / MNIST[0])
    refused(DataError, lambda: data.load("mnist", folder), str(folder), f"lacks {MNIST[0]}")
    os.remove(folder / MNIST[0])


def test_a_table_without_end(bounds, tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "LONGEST", 10**6)
    os.symlink("/dev/zero", tmp_path / "x.csv")
    with bounds(megabytes=10):
        refused(TableError, lambda: table(tmp_path), "x.csv", "longer than 1,000,000 bytes")


# --- much from little -----------------------------------------------------------------------------


def zeros(size, level=9):
    """That many zeros, packed."""
    packer, parts = zlib.compressobj(level, wbits=31), []
    for _ in range(size // 2**24):
        parts.append(packer.compress(bytes(2**24)))
    return b"".join([*parts, packer.flush()])


@pytest.fixture(scope="module")
def bomb():
    """A megabyte that unpacks to two hundred."""
    return zeros(2 * 10**8, 1)


def test_a_bomb_in_place_of_images(bomb, bounds, tmp_path):
    head = gzip.compress(mnist_files()[MNIST[0]])
    write(tmp_path / "in", mnist_files() | {MNIST[0]: head + bomb})
    with bounds(megabytes=50, seconds=5):
        refused(DataError, lambda: data.load("mnist", tmp_path / "in"), MNIST[0], "longer than")


@pytest.mark.parametrize("where", ["inside", "behind", "before", "header"])
def test_a_bomb_in_an_archive(where, bounds, tmp_path, monkeypatch):
    """A member of gigabytes; zeros behind the last one; a header that takes all memory."""
    monkeypatch.setattr(cifar10, "ARCHIVE_LIMIT", 2**22)
    files = inside(BIN, binary_files())
    member = odd(f"{BIN}/data_batch_1.bin" if where == "inside" else "readme.html")
    member.type = tarfile.XHDTYPE if where == "header" else tarfile.REGTYPE
    member.size = 2**26
    head = member.tobuf()
    tar = gzip.decompress(archive(files))
    if where == "behind":
        content = gzip.compress(tar) + zeros(member.size)
    else:
        content = gzip.compress(head) + zeros(member.size) + gzip.compress(tar)
    write(tmp_path / "in", {BINARY_TAR: content})
    with bounds(megabytes=100, seconds=10):
        refused(DataError, lambda: data.load("cifar10", tmp_path / "in"), BINARY_TAR)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archive_with_a_header_of_digits(kind, bounds, tmp_path):
    """Regular expressions of Python before 3.11.10 take quadratic time for it."""
    header = odd("header", kind)
    header.size = 2**18
    digits = header.tobuf(tarfile.USTAR_FORMAT) + b"1" * header.size
    tar = gzip.compress(digits + gzip.decompress(archive(inside(BIN, binary_files()))))
    write(tmp_path / "in", {BINARY_TAR: tar})
    with bounds(megabytes=50, seconds=5):
        check(data.load("cifar10", tmp_path / "in"), COLOUR)


def test_an_archive_of_many_members(bounds, tmp_path):
    head = odd("a").tobuf(tarfile.USTAR_FORMAT)
    write(tmp_path / "in", {BINARY_TAR: gzip.compress(head * 200_000)})
    with bounds(megabytes=50, seconds=5):
        refused(
            DataError,
            lambda: data.load("cifar10", tmp_path / "in"),
            BINARY_TAR,
            "more than 1,000 members",
        )


def test_an_archive_of_negative_size(bounds, tmp_path):
    """It would go back to the beginning, again and again."""
    member = odd("a")
    member.size = -1024
    head = member.tobuf(tarfile.GNU_FORMAT)
    write(tmp_path / "in", {BINARY_TAR: gzip.compress(head * 9)})
    with bounds(megabytes=50, seconds=5):
        refused(DataError, lambda: data.load("cifar10", tmp_path / "in"), BINARY_TAR, "negative")


def test_the_limit_leaves_room_for_the_originals():
    """Six batches and a few pages, and more than that is not unpacked."""
    assert 6 * 31_035_704 + 10**6 < cifar10.ARCHIVE_LIMIT < 2 * 6 * 31_035_704


@pytest.mark.parametrize(
    "shape",
    [(2**32 - 1, 28, 28), (10, 2**32 - 1, 2**32 - 1), (0, 0, 0), (2**31, 2, 1)],
    ids=str,
)
def test_enormous_images(shape, bounds, tmp_path):
    header = struct.pack(">4I", 0x803, *shape)
    write(tmp_path / "in", mnist_files() | {MNIST[0]: header + bytes(100)})
    with bounds(megabytes=20, seconds=5):
        refused(DataError, lambda: data.load("mnist", tmp_path / "in"), MNIST[0], "holds an array")


def mat_element(
    name, dims, kind=9, body=b"", claimed=None, packed=True, *, stored=2, order="<", flags=8
):
    """An array of MATLAB's by hand: its class, its shape, the length that it claims to have, how
    its numbers are stored, and the length of its flags."""
    tag = struct.Struct(f"{order}II").pack
    part = lambda code, content: tag(code, len(content)) + content + bytes(-len(content) % 8)
    inner = tag(6, flags) + tag(kind, 0) + part(5, struct.pack(f"{order}{len(dims)}i", *dims))
    inner += part(1, name.encode())
    inner += tag(stored, len(body) if claimed is None else claimed)
    inner += body + bytes(-len(body) % 8)
    whole = tag(14, len(inner)) + inner
    return mat_packed(whole, order) if packed else whole


def mat_packed(content, order="<"):
    packed = zlib.compress(content)
    return struct.pack(f"{order}II", 15, len(packed)) + packed


def mat_header(order="<", mark=b"IM"):
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + mark


MAT_HEADER = mat_header()
DIGITS = mat_element("y", (10, 1), body=bytes(range(1, 11)))
BODY = bytes(32 * 32 * 3 * 10)
SHAPE = (32, 32, 3, 10)
MATS = {
    "images of enormous shape": mat_element("X", (2**31 - 1, 2**31 - 1, 3, 10), body=b"abc"),
    "more images than there are": mat_element("X", (32, 32, 3, 2**31 - 1), body=BODY),
    "a length that is not there": mat_element("X", SHAPE, claimed=2**32 - 8, body=BODY),
    "cells": mat_element("X", SHAPE, kind=1),
    "a struct": mat_element("X", (1, 1), kind=2),
    "an object": mat_element("X", (1, 1), kind=3),
    "a function": mat_element("X", (1, 1), kind=16),
    "an opaque one": mat_element("X", (1, 1), kind=17),
    "text": mat_element("X", SHAPE, kind=4, body=BODY),
    "no kind at all": mat_element("X", SHAPE, kind=99, body=BODY),
    "a length that is not there, not packed": mat_element(
        "X", SHAPE, claimed=2**32 - 8, body=BODY, packed=False
    ),
    "packed zeros": mat_element("X", SHAPE, body=bytes(2**26)),
    "packed zeros of another name": mat_element("Z", (2**26, 1), body=bytes(2**26)),
    "cut off": mat_element("X", SHAPE, body=BODY)[:40],
    "cut off and packed": mat_packed(mat_element("X", SHAPE, body=BODY, packed=False)[:-9]),
    "flags of another length": mat_element("X", SHAPE, body=BODY, flags=24),
    "a name longer than any": mat_element("X" * 10**6, SHAPE, body=BODY),
    "a hundred thousand dimensions": mat_element("X", (1,) * 10**5, body=BODY),
    "complex numbers": mat_element("X", SHAPE, kind=0x0809, body=BODY),
    "packed within packed": mat_packed(mat_element("X", SHAPE, body=BODY)),
}  # fmt: skip
# SciPy ends the process where it meets some of them.
STORED = (0, 8, 10, 11, 14, 15, 19, 20, 21, 255, 0x0102, 0xFFFF, 2**32 - 1)
MATS |= {
    f"numbers of kind {stored}{', not packed' * (not packed)}": mat_element(
        "X", SHAPE, body=BODY, stored=stored, packed=packed
    )
    for stored in STORED
    for packed in (True, False)
}


@pytest.mark.parametrize("case", MATS)
def test_matlab_s_arrays(case, bounds, tmp_path):
    files = svhn_files() | {"train_32x32.mat": MAT_HEADER + MATS[case] + DIGITS}
    write(tmp_path / "in", files)
    with bounds(megabytes=50, seconds=5):
        refused(DataError, lambda: data.load("svhn", tmp_path / "in"), "train_32x32.mat")


@pytest.mark.parametrize(("order", "mark"), [("<", b"XX"), (">", b"XX"), ("<", b"MI"), ("<", b"")])
def test_matlab_s_files_of_another_byte_order(order, mark, bounds, tmp_path):
    """SciPy takes an unknown mark for one order, and who looks first may take it for the other."""
    zeros = mat_element("X", SHAPE, body=bytes(2**26), order=order)
    content = mat_header(order, mark) + zeros
    write(tmp_path / "in", svhn_files() | {"train_32x32.mat": content})
    with bounds(megabytes=20, seconds=5):
        refused(DataError, lambda: data.load("svhn", tmp_path / "in"), "train_32x32.mat")


@pytest.mark.parametrize(("order", "mark"), [("<", b"IM"), (">", b"MI")])
@pytest.mark.parametrize("packed", [True, False])
def test_the_array_by_hand_is_right(tmp_path, order, mark, packed):
    body = np.arange(len(BODY)).astype(np.uint8)
    content = mat_header(order, mark)
    content += mat_element("X", SHAPE, body=body.tobytes(), order=order, packed=packed)
    digits = np.arange(1, 11).astype(f"{order}u2").tobytes()
    content += mat_element("y", (10, 1), 6, digits, order=order, stored=4, packed=packed)
    write(tmp_path, svhn_files() | {"train_32x32.mat": content})
    found = data.load("svhn", tmp_path)
    assert found.train_labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    theirs = scipy.io.loadmat(tmp_path / "train_32x32.mat")
    np.testing.assert_array_equal(found.train_images, theirs["X"].transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(found.train_labels, theirs["y"].ravel() % 10)


# --- headers of checkpoints and models ------------------------------------------------------------


def header(content, length=None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def tensor(shape, offsets, dtype="F32"):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


HEADERS = {
    "a header without end": header(b"{}", 2**60),
    "a header of all numbers": header(b"{}", 2**64 - 1),
    "a header of a gigabyte": header(b"{}", 10**9),
    "a deep header": header(b"[" * 10**5),
    "an enormous shape": header(tensor([2**40, 2**40], [0, 4])) + bytes(4),
    "a shape that overflows": header(tensor([2**63, 2], [0, 0])),
    "numbers beyond the end": header(tensor([4], [0, 16])) + bytes(4),
    "numbers before the beginning": header(tensor([1], [-4, 0])),
    "numbers in the header": header(tensor([1], [8, 4])) + bytes(8),
    "no type": header(tensor([1], [0, 8], "PICKLE")) + bytes(8),
    "words as a shape": header(tensor("../../x", [0, 4])) + bytes(4),
    "a list": header([1, 2]),
    "two of one name": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},' * 2 + b"}"),
    "another file": header({"a": {"file": "../../../etc/passwd", "shape": [1]}}),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_of_models(case, bounds, tmp_path):
    write(tmp_path / "m", model() | {"model.safetensors": HEADERS[case]})
    with bounds(megabytes=20, seconds=5):
        refused(
            IdentifyError, lambda: Identifier.load(tmp_path / "m"), str(tmp_path / "m"), "damaged"
        )


@pytest.mark.parametrize("case", HEADERS)
def test_headers_of_checkpoints(case, tmp_path, capsys):
    write(tmp_path, run(**{CHECKPOINT: HEADERS[case]}))
    assert opened(tmp_path)[0] == 0
    assert f"{tmp_path / CHECKPOINT} is damaged" in capsys.readouterr().err


def sparse(path, size=2**36):
    """A file of arrays whose content is no more than its length: the disk holds a few bytes."""
    start = header(tensor([size // 4], [0, size]))
    path.write_bytes(start)
    os.truncate(path, len(start) + size)


def test_a_sparse_model(bounds, tmp_path):
    write(tmp_path / "m", model())
    sparse(tmp_path / "m/model.safetensors")
    before = listing(tmp_path / "cwd")
    words = str(tmp_path / "m"), "68,719,476", "at most 1,073,741,824"
    refused(IdentifyError, lambda: Identifier.load(tmp_path / "m"), *words)
    assert listing(tmp_path / "cwd") == before


def test_a_sparse_checkpoint(tmp_path):
    """It may be that of a larger model: nothing is set aside."""
    write(tmp_path, run())
    sparse(tmp_path / CHECKPOINT)
    refused(RunError, lambda: opened(tmp_path), str(tmp_path / CHECKPOINT), "another model")
    assert (tmp_path / CHECKPOINT).exists()


def test_a_checkpoint_of_a_larger_model(tmp_path):
    write(tmp_path, run(**{CHECKPOINT: sample_files.checkpoint({"['weight']": np.ones(2**20)})}))
    refused(RunError, lambda: opened(tmp_path), str(tmp_path / CHECKPOINT), "another model")


USED = {
    "too few rows": [[True]],
    "too many rows": [[True]] * 3,
    "short rows": [[], []],
    "a short row": [[True], []],
    "long rows": [[True, True], [True, True]],
    "none": [],
}


@pytest.mark.parametrize("case", USED)
def test_models_with_other_flags_than_terms(case, tmp_path):
    write(tmp_path, model(terms={"powers": [[0], [1]], "used": USED[case]}))
    refused(IdentifyError, lambda: Identifier.load(tmp_path), str(tmp_path), "used")


HOLD = [{"kind": "Hold", "tau": 1.0, "lag": 0}]
ASKING = {
    "steps": model(steps=10**12),
    "width": model({"field": "mlp", "width": 10**9}, terms=None),
    "depth": model({"field": "mlp", "depth": 10**9}, terms=None),
    "powers": model(terms={"powers": [[0], [10**9]], "used": [[True], [True]]}),
    "tau": model({"delays": [HOLD[0] | {"tau": 1e-12}]}),
    "tau beyond numbers": model({"delays": [HOLD[0] | {"tau": 1e-320}]}),
    "lag": model({"delays": [HOLD[0] | {"lag": 10**12}]}),
    "window": model(window=-(10**12)),
    "a number of a thousand digits": model() | {"model.json": b'{"format": ' + b"1" * 5000 + b"}"},
    "nesting": model() | {"model.json": b'{"a":' * 10**5},
}


@pytest.mark.parametrize("case", ASKING)
def test_models_that_ask_for_time_and_memory(case, bounds, tmp_path):
    write(tmp_path / "m", ASKING[case])
    with bounds(megabytes=100, seconds=10):
        refused(IdentifyError, lambda: Identifier.load(tmp_path / "m"), str(tmp_path / "m"))


# --- JSON and tables ------------------------------------------------------------------------------

DEEP = b"[" * 10**5
JSONS = {
    "a configuration": (run(**{"config.json": DEEP}), opened, RunError, "config.json"),
    "a result": ({"result.json": DEEP}, read_experiment, ResultError, "result.json"),
    "a line": ({"a.jsonl": b'{"a": ' + DEEP}, read_experiment, ResultError, "a.jsonl"),
}


@pytest.mark.parametrize("case", JSONS)
def test_deep_json(case, bounds, tmp_path):
    files, act, kind, name = JSONS[case]
    write(tmp_path / "in", files)
    with bounds(megabytes=20):
        refused(kind, lambda: act(tmp_path / "in"), str(tmp_path / "in"), name, "nested too deeply")


def test_deep_json_of_a_figure_and_of_an_answer(bounds, tmp_path):
    content = json.dumps({"experiment": "a", "figures": ["b"]})
    write(tmp_path / "in", {"result.json": content, "figures/b.json": DEEP, "summary.json": DEEP})
    with bounds(megabytes=20):
        _, (shown,) = read_experiment(tmp_path / "in")
        assert "“b” cannot be read: it is nested too deeply" in shown
        assert _answers.read_summary(tmp_path / "in") == {}


@pytest.mark.parametrize("case", ["a result", "a line"])
def test_files_longer_than_any(case, bounds, tmp_path):
    """Of no content: the disk holds nothing of them."""
    name = {"a result": "result.json", "a line": "a.jsonl"}[case]
    with open(write(tmp_path / "in", {"x": ""}) / name, "wb") as file:
        file.truncate(_files.LONGEST + 1)
    start = time.monotonic()
    refused(ResultError, lambda: read_experiment(tmp_path / "in"), name, "268,435,456 bytes")
    assert time.monotonic() - start < 10


LONG = {
    "one cell": "t,x\n0," + "1" * 10**6,
    "one name": "t," + "x" * 10**6 + "\n0,1\n",
    "many columns": "t," + ",".join(f"x{n}" for n in range(200_000)) + "\n0,1\n",
    "many names alike": ",".join(["t", *["x"] * 200_000]) + "\n0,1\n",
    "open quotation": 't,x\n0,"' + "1\n" * 10**5,
    "commas alone": "," * 10**6 + "\n",
}


@pytest.mark.parametrize("case", LONG)
def test_tables_with_long_lines(case, bounds, tmp_path):
    write(tmp_path, {"x.csv": LONG[case]})
    with bounds(seconds=10):
        refused(TableError, lambda: table(tmp_path), str(tmp_path / "x.csv"))


@pytest.mark.parametrize("code", ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x08", "\x7f"])
@pytest.mark.parametrize("header", ["t{},x", "t,x{}", "t,x,{}note", "t,x{},x{}"])
def test_a_table_s_names_with_escape_codes(code, header, lagrax_command, tmp_path):
    """A terminal would follow them."""
    header = header.replace("{}", code)
    words = ",a" * (header.count(",") - 1)
    write(tmp_path, {"x.csv": "\n".join([header, *(f"{t},{t % 3}{words}" for t in range(12))])})
    refused(TableError, lambda: table(tmp_path), "x.csv", repr(code)[1:-1], "rename")
    exit_code, out, err = lagrax_command("fit", "x.csv")
    assert (exit_code, out) == (2, "")
    assert (out + err).replace("\n", "").isprintable()


def test_a_table_s_formulas_and_markup_stay_text(bounds, tmp_path):
    """What a name says is shown as it is, and a cell that begins with = is no number."""
    rows = "".join(f"{t},{t % 3}\n" for t in range(12))
    write(tmp_path, {"x.csv": "t,x\n" + rows.replace("5,2", "5,=cmd|' /C calc'!A0")})
    with bounds():
        refused(TableError, lambda: table(tmp_path), "row 7, column 'x'", "=cmd|")
