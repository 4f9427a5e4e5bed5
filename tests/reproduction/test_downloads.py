"""Downloads of the data sets, from a server on this machine."""

import gzip
import hashlib
import http.server
import socket
import sys
import threading
import time

import filelock
import pytest
from helpers.data_files import (
    BINARY_TAR,
    COLOUR,
    GREY,
    MNIST,
    binary_tar,
    check,
    complaint,
    mnist_files,
    svhn_files,
    write,
)

from reproduction import data
from reproduction.data import downloads, sources

TRAIN_MAT, TEST_MAT = "train_32x32.mat", "test_32x32.mat"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as `server.say` says for the file and the first byte, or else with the rest."""

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
        """Ignores that the client hangs up, which some tests are about."""
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
def test_files_are_downloaded_once(name, cache, server, capfd):
    expected = GREY if name == "mnist" else COLOUR
    check(data.load(name), expected)
    asked = server.asked.copy()
    assert {file for file, _ in asked} == left(cache / name)
    assert all(part is None for _, part in asked)
    check(data.load(name), expected)
    assert server.asked == asked
    assert capfd.readouterr().err == ""


def test_a_partial_download_continues(cache, server):
    leave_part(cache, server, 1234)
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TRAIN_MAT, "bytes=1234-"), (TEST_MAT, None)]
    assert left(cache) == {TRAIN_MAT, TEST_MAT}


def test_a_complete_part_is_not_requested_again(cache, server):
    leave_part(cache, server, None)
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TEST_MAT, None)]


def test_a_download_continues_when_the_connection_breaks(cache, server, monkeypatch):
    """Each answer ends after 9,000 bytes, and the next request continues there."""
    monkeypatch.setattr(downloads, "CHUNK", 1000)
    server.say = lambda name, start: {"body": server.files[name][start : start + 9000]}
    check(data.load("svhn"), COLOUR)
    size = len(server.files[TRAIN_MAT])
    starts = [None, *(f"bytes={n}-" for n in range(9000, size, 9000))]
    assert len(starts) > 2
    assert [part for name, part in server.asked if name == TRAIN_MAT] == starts


def test_the_part_is_kept_when_the_server_dies(cache, server, monkeypatch):
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


def test_a_server_that_sends_nothing_is_reported(cache, server):
    server.say = lambda name, start: {"body": b""}
    message = complaint("svhn")
    assert "the connection broke off" in message
    assert "kept" not in message
    assert len(server.asked) == 1


def test_a_silent_server_times_out(cache, server, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    silent = threading.Event()
    server.say = lambda name, start: silent.wait(10) and None
    try:
        assert "timed out" in complaint("svhn")
    finally:
        silent.set()


def test_a_server_without_ranges_sends_the_whole_file(cache, server):
    def whole(name, start):
        content = server.files[name]
        return {"status": 200, "headers": {"Content-Length": len(content)}, "body": content}

    leave_part(cache, server, 1234)
    server.say = whole
    check(data.load("svhn"), COLOUR)
    assert server.asked[0] == (TRAIN_MAT, "bytes=1234-")


def test_a_wrong_range_does_not_pass(cache, server):
    leave_part(cache, server, 1234)
    server.say = lambda name, start: {"body": server.files[name][: -start or None]}
    assert "SHA-256" in complaint("svhn")
    assert left(cache) == set()
    check(data.load("svhn"), COLOUR)


def test_a_part_that_the_server_refuses_is_deleted(cache, server):
    leave_part(cache, server, 1234)
    refuse = {"status": 416, "headers": {}, "body": b""}
    server.say = lambda name, start: refuse if start else None
    assert "HTTP 416" in complaint("svhn")
    assert left(cache) == set()
    check(data.load("svhn"), COLOUR)


def test_a_part_longer_than_the_file_is_deleted(cache, server):
    write(cache / "svhn", {f"{TRAIN_MAT}.part": server.files[TRAIN_MAT] + b"more"})
    check(data.load("svhn"), COLOUR)
    assert server.asked[0] == (TRAIN_MAT, None)


@pytest.mark.parametrize("part", [0, 1234])
def test_a_wrong_digest_is_refused(part, cache, server):
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


def test_a_page_in_place_of_the_file_is_refused(cache, server):
    """As the networks of hotels and trains answer."""
    server.say = lambda *_: {"headers": {"Content-Length": 5}, "body": b"Hello"}
    size = len(server.files[TRAIN_MAT])
    assert f"it offers 5 bytes instead of {size}" in complaint("svhn")
    assert left(cache) == set()
    leave_part(cache, server, 1234)
    assert "it offers 5 bytes" in complaint("svhn")
    assert (cache / "svhn" / f"{TRAIN_MAT}.part").stat().st_size == 1234


def test_too_many_bytes_are_refused(cache, server):
    size = len(server.files[TRAIN_MAT])
    server.say = lambda name, start: {"headers": {}, "body": server.files[name] + bytes(10**6)}
    assert f"it sends more than {size} bytes" in complaint("svhn")
    assert left(cache) == set()


def test_a_file_that_is_gone_is_reported(cache, server):
    server.say = lambda *_: {"status": 404, "headers": {}, "body": b""}
    message = complaint("cifar10")
    assert "HTTP 404 Not Found" in message
    assert f"http://127.0.0.1:{server.server_port}/some/{BINARY_TAR}" in message


def test_a_refused_connection_is_reported(cache, server, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        offer(monkeypatch, "mnist", mnist_files(".gz"), unused.getsockname()[1])
        message = complaint("mnist")
    for word in [f"{MNIST[0]}.gz", "Connection refused", "run again", "--data", "LAGRAX_DATA"]:
        assert word in message, message


def test_an_unknown_host_is_reported(cache, server, monkeypatch):
    def getaddrinfo(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "(Name or service not known)" in complaint("svhn")


def test_a_damaged_file_in_the_cache_is_downloaded_again(cache, server):
    data.load("svhn")
    path = cache / "svhn" / TEST_MAT
    path.write_bytes(path.read_bytes()[:-1])
    server.asked.clear()
    check(data.load("svhn"), COLOUR)
    assert server.asked == [(TEST_MAT, None)]


def test_an_unusable_cache_is_named(cache, server):
    cache.write_bytes(b"a file where a folder should be")
    message = complaint("svhn")
    assert str(cache) in message
    assert "XDG_CACHE_HOME" in message


def test_ctrl_c_keeps_the_part(cache, server, monkeypatch):
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


def test_a_second_process_waits(cache, server, capfd):
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


def test_long_downloads_show_progress(cache, server, capfd, monkeypatch):
    monkeypatch.setattr(downloads, "MEGABYTE", 1000)
    data.load("svhn")
    lines = capfd.readouterr().err.splitlines()
    size = len(server.files[TRAIN_MAT]) // 1000
    assert len(lines) == 2
    assert lines[0].startswith(f"{TRAIN_MAT}: {size} of {size}, MB downloaded, ")
    data.load("cifar10", progress=False)
    assert capfd.readouterr().err == ""


def test_every_download_has_a_digest():
    for source in sources.SOURCES.values():
        (layout,) = (x for x in source.layouts if x.downloads)
        for download, names in zip(layout.downloads, layout.files, strict=True):
            assert download.name in names
            assert len(bytes.fromhex(download.sha256)) == 32
