"""Small files in the formats of the data sets: what is read of them, and what is said of those that
are missing, damaged, hostile or cut off on their way here."""

import gzip
import hashlib
import http.server
import os
import socket
import sys
import tarfile
import threading
import time
from pathlib import Path

import filelock
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
    idx,
    inside,
    mnist_files,
    odd,
    svhn_files,
    write,
)

from reproduction import data
from reproduction.data import cifar10, downloads, reading, sources


def complaint(*arguments, **options):
    """What an error says: one sentence, and no traceback is needed to understand it."""
    with pytest.raises(data.DataError) as caught:
        data.load(*arguments, **options)
    message = str(caught.value)
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message
    return message


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
def test_reads(case, tmp_path, small):
    name, files = LAYOUTS[case]
    check(data.load(name, write(tmp_path, files)), GREY if name == "mnist" else COLOUR)


def test_where_files_are_looked_for(tmp_path, small, monkeypatch):
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


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert data.cache_folder() == tmp_path / "x" / "lagrax"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data.cache_folder() == tmp_path / ".cache" / "lagrax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.cache_folder() == tmp_path / ".cache" / "lagrax"


def test_without_a_home(monkeypatch):
    def nowhere():
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LAGRAX_DATA", raising=False)
    assert "home folder" in complaint("mnist")


def test_an_unknown_data_set():
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
def test_damaged_files(case, tmp_path, small):
    changes, words = DAMAGED[case]
    first = next(iter(changes))
    name = "mnist" if first in MNIST else "svhn" if first.endswith(".mat") else "cifar10"
    sets = [mnist_files(), svhn_files(), binary_files(), {BINARY_TAR: b""}]
    write(tmp_path, next(files for files in sets if first in files) | changes)
    message = complaint(name, tmp_path)
    for word in [str(tmp_path / first), "put the original", *words]:
        assert word in message, message


def test_a_batch_too_long_to_be_one(tmp_path, small, monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH_LIMIT", 5000)
    message = complaint("cifar10", write(tmp_path, binary_files()))
    assert "data_batch_1.bin is longer than 5,000 bytes" in message


def test_a_file_that_may_not_be_read(tmp_path, small, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reading, "open", refuse, raising=False)
    message = complaint("mnist", write(tmp_path, mnist_files()))
    assert f"{MNIST[0]} cannot be read (Permission denied)" in message


def test_a_file_that_vanishes(tmp_path, small, monkeypatch):
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
def test_missing_files(name, files, words, tmp_path):
    write(tmp_path, {key: content or b"" for key, content in files.items()})
    message = complaint(name, tmp_path)
    for word in [str(tmp_path), *words]:
        assert word in message, message


def test_a_folder_that_is_none(tmp_path, monkeypatch):
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


def test_odd_members_of_an_archive_are_passed_over(tmp_path, small, monkeypatch):
    write(tmp_path / "in", binary_tar(ODD_MEMBERS))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    check(data.load("cifar10", tmp_path / "in"), COLOUR)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [BINARY_TAR]


def test_links_are_no_batches(tmp_path, small):
    files = {name: content for name, content in binary_files().items() if "1" not in name}
    link = odd(f"{BIN}/data_batch_1.bin", tarfile.SYMTYPE, "data_batch_2.bin")
    write(tmp_path, {BINARY_TAR: archive(inside(BIN, files), [link])})
    assert f"lacks {BIN}/data_batch_1.bin" in complaint("cifar10", tmp_path)


# Downloads, from a server on this machine.


class Handler(http.server.BaseHTTPRequestHandler):
    """What `server.say` answers to the path and first byte asked for, if anything."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        asked = self.headers.get("Range")
        self.server.asked.append((name, asked))
        content = self.server.files[name]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        headers = {"Content-Length": len(content) - start}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        answer = {"status": 206 if asked else 200, "headers": headers, "body": content[start:]}
        answer |= self.server.say(name, start) or {}
        self.send_response(answer["status"])
        for key, value in answer["headers"].items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(answer["body"])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """That the client hangs up is what some tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.say = {}, [], lambda name, start: None
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(server, small, tmp_path, monkeypatch):
    """The folder of the cache. Its data sets are downloaded from the server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("LAGRAX_DATA", raising=False)
    files = {
        "mnist": mnist_files(".gz", lambda content: gzip.compress(content, mtime=0)),
        "cifar10": binary_tar(),
        "svhn": svhn_files(),
    }
    for name in data.DATASETS:
        server.files |= files[name]
        offer(monkeypatch, name, files[name], server.server_port)
    return tmp_path / "lagrax"


def offer(monkeypatch, name, files, port):
    offered = [
        downloads.Download(
            f"http://127.0.0.1:{port}/some/{file}", len(x), hashlib.sha256(x).hexdigest()
        )
        for file, x in files.items()
    ]
    source = sources.SOURCES[name]
    layouts = [x._replace(downloads=offered if x.downloads else ()) for x in source.layouts]
    monkeypatch.setitem(sources.SOURCES, name, source._replace(layouts=layouts))


def leave_part(cache, server, size, name=TRAIN_MAT):
    write(cache / "svhn", {f"{name}.part": server.files[name][:size]})


def left(cache):
    """The files in the cache but the locks."""
    return {x.name for x in cache.rglob("*") if x.is_file() and x.suffix != ".lock"}


@pytest.mark.parametrize("name", data.DATASETS)
def test_downloads_once(name, cache, server, capfd):
    expected = GREY if name == "mnist" else COLOUR
    check(data.load(name), expected)
    asked = server.asked.copy()
    assert {file for file, _ in asked} == left(cache / name)
    assert all(part is None for _, part in asked)
    check(data.load(name), expected)
    assert server.asked == asked
    assert capfd.readouterr().err == ""


def test_goes_on_with_half_a_download(cache, server):
    leave_part(cache, server, 1234)
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TRAIN_MAT, "bytes=1234-"), (TEST_MAT, None)]
    assert left(cache) == {TRAIN_MAT, TEST_MAT}


def test_a_whole_part_is_not_asked_for_again(cache, server):
    leave_part(cache, server, None)
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TEST_MAT, None)]


def test_goes_on_when_a_server_dies_midway(cache, server, monkeypatch):
    """Each answer ends after 9,000 bytes; the next request goes on from there."""
    monkeypatch.setattr(downloads, "CHUNK", 1000)
    server.say = lambda name, start: {"body": server.files[name][start : start + 9000]}
    check(data.load("svhn"), COLOUR)
    size = len(server.files[TRAIN_MAT])
    starts = [None, *(f"bytes={n}-" for n in range(9000, size, 9000))]
    assert len(starts) > 2
    assert [part for name, part in server.asked if name == TRAIN_MAT] == starts


def test_a_server_that_dies_for_good(cache, server, monkeypatch):
    monkeypatch.setattr(downloads, "MEGABYTE", 1000)
    monkeypatch.setattr(downloads, "CHUNK", 1000)
    say = lambda name, start: {"status": 503, "headers": {}, "body": b""} if start else first
    first = {"body": server.files[TRAIN_MAT][:9000]}
    server.say = say
    message = complaint("svhn")
    for word in [
        TRAIN_MAT,
        "127.0.0.1",
        "HTTP 503",
        "9.0 of 3",
        "run again",
        "--data",
    ]:
        assert word in message, message
    assert left(cache) == {f"{TRAIN_MAT}.part"}
    server.say, server.asked = lambda *_: None, []
    check(data.load("svhn"), COLOUR)
    assert server.asked[0] == (TRAIN_MAT, "bytes=9000-")


def test_a_server_that_begins_but_never_sends(cache, server):
    server.say = lambda name, start: {"body": b""}
    message = complaint("svhn")
    assert "the connection broke off" in message
    assert "kept" not in message
    assert len(server.asked) == 1


def test_a_server_that_falls_silent(cache, server, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    silent = threading.Event()
    server.say = lambda name, start: silent.wait(10) and None
    try:
        assert "timed out" in complaint("svhn")
    finally:
        silent.set()


def test_a_server_that_cannot_go_on_in_between(cache, server):
    def whole(name, start):
        content = server.files[name]
        return {"status": 200, "headers": {"Content-Length": len(content)}, "body": content}

    leave_part(cache, server, 1234)
    server.say = whole
    check(data.load("svhn"), COLOUR)
    assert server.asked[0] == (TRAIN_MAT, "bytes=1234-")


def test_a_server_that_goes_on_elsewhere(cache, server):
    leave_part(cache, server, 1234)
    server.say = lambda name, start: {"body": server.files[name][: -start or None]}
    assert "SHA-256" in complaint("svhn")
    assert left(cache) == set()
    check(data.load("svhn"), COLOUR)


def test_a_part_that_the_server_finds_too_long(cache, server):
    leave_part(cache, server, 1234)
    refuse = {"status": 416, "headers": {}, "body": b""}
    server.say = lambda name, start: refuse if start else None
    assert "HTTP 416" in complaint("svhn")
    assert left(cache) == set()
    check(data.load("svhn"), COLOUR)


def test_a_part_longer_than_the_file(cache, server):
    write(cache / "svhn", {f"{TRAIN_MAT}.part": server.files[TRAIN_MAT] + b"more"})
    check(data.load("svhn"), COLOUR)
    assert server.asked[0] == (TRAIN_MAT, None)


@pytest.mark.parametrize("part", [0, 1234])
def test_a_wrong_check_sum(part, cache, server):
    """A file that is not the original is deleted; the next attempt begins at the start."""
    if part:
        leave_part(cache, server, part)
    good = server.files[TRAIN_MAT]
    server.files[TRAIN_MAT] = bytes(len(good))
    message = complaint("svhn")
    for word in [
        TRAIN_MAT,
        "127.0.0.1",
        "SHA-256",
        hashlib.sha256(good).hexdigest(),
        "deleted",
    ]:
        assert word in message, message
    assert left(cache) == set()
    server.files[TRAIN_MAT] = good
    check(data.load("svhn"), COLOUR)


def test_a_page_in_place_of_the_file(cache, server):
    """As the networks of hotels and trains answer."""
    server.say = lambda *_: {"headers": {"Content-Length": 5}, "body": b"Hello"}
    size = len(server.files[TRAIN_MAT])
    assert f"it offers 5 bytes instead of {size}" in complaint("svhn")
    assert left(cache) == set()
    leave_part(cache, server, 1234)
    assert "it offers 5 bytes" in complaint("svhn")
    assert (cache / "svhn" / f"{TRAIN_MAT}.part").stat().st_size == 1234


def test_more_than_is_due_is_not_taken(cache, server):
    size = len(server.files[TRAIN_MAT])
    server.say = lambda name, start: {"headers": {}, "body": server.files[name] + bytes(10**6)}
    assert f"it sends more than {size} bytes" in complaint("svhn")
    assert left(cache) == set()


def test_a_file_that_is_gone(cache, server):
    server.say = lambda *_: {"status": 404, "headers": {}, "body": b""}
    message = complaint("cifar10")
    assert "HTTP 404 Not Found" in message
    assert f"http://127.0.0.1:{server.server_port}/some/{BINARY_TAR}" in message


def test_no_network(cache, server, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        offer(monkeypatch, "mnist", mnist_files(".gz"), unused.getsockname()[1])
        message = complaint("mnist")
    for word in [f"{MNIST[0]}.gz", "Connection refused", "run again", "--data", "LAGRAX_DATA"]:
        assert word in message, message


def test_a_name_that_is_not_known(cache, server, monkeypatch):
    def getaddrinfo(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "(Name or service not known)" in complaint("svhn")


def test_a_kept_file_that_was_damaged_since_is_downloaded_anew(cache, server):
    data.load("svhn")
    path = cache / "svhn" / TEST_MAT
    path.write_bytes(path.read_bytes()[:-1])
    server.asked.clear()
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TEST_MAT, None)]


def test_a_cache_that_cannot_be_written(cache, server):
    cache.write_bytes(b"a file where a folder should be")
    message = complaint("svhn")
    assert str(cache) in message
    assert "XDG_CACHE_HOME" in message


def test_ctrl_c_leaves_what_has_arrived(cache, server, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "CHUNK", 1000)
    monkeypatch.setattr(downloads, "MEGABYTE", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(downloads.Progress, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            data.load("svhn")
    have = (cache / "svhn" / f"{TRAIN_MAT}.part").stat().st_size
    assert 0 < have <= 1000
    check(data.load("svhn"), COLOUR)
    assert (TRAIN_MAT, f"bytes={have}-") in server.asked


def test_waits_for_another_process(cache, server, capfd):
    folder = cache / "svhn"
    folder.mkdir(parents=True)
    got, said = [], ""
    thread = threading.Thread(target=lambda: got.append(data.load("svhn")))
    with filelock.FileLock(folder / f".{TRAIN_MAT}.lock"):
        thread.start()
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capfd.readouterr().err
        write(folder, {TRAIN_MAT: server.files[TRAIN_MAT]})
    thread.join()
    assert said == f"Waiting for another process that downloads {TRAIN_MAT}\n"
    check(got[0], COLOUR)
    assert server.asked == [(TEST_MAT, None)]


def test_progress_of_a_long_download(cache, server, capfd, monkeypatch):
    monkeypatch.setattr(downloads, "MEGABYTE", 1000)
    data.load("svhn")
    lines = capfd.readouterr().err.splitlines()
    size = len(server.files[TRAIN_MAT]) // 1000
    assert len(lines) == 2
    assert lines[0].startswith(f"{TRAIN_MAT}: {size} of {size}, MB downloaded, ")
    data.load("cifar10", progress=False)
    assert capfd.readouterr().err == ""


def test_the_table_of_downloads():
    for source in sources.SOURCES.values():
        (layout,) = (x for x in source.layouts if x.downloads)
        for download, names in zip(layout.downloads, layout.files, strict=True):
            assert download.name in names
            assert len(bytes.fromhex(download.sha256)) == 32


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
def test_the_real_data(name, shape, train, test):
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
