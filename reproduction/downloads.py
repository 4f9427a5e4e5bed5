"""Files from the data sets' public homes: with progress, resumed, and whole or not at all."""

import contextlib
import hashlib
import http.client
import math
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lagrax.training._machine import load as load_module
from lagrax.training._progress import Progress

from .data_error import OWN_FILES, DataError, reason

# Seconds without a byte after which a server counts as gone.
TIMEOUT = 30.0

MEGABYTE = 10**6
CHUNK = 2**16


class Download(NamedTuple):
    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def fetch(downloads: Sequence[Download], folder: Path, progress: bool) -> list[Path]:
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
            problem = f"{error.filename or path} cannot be used ({reason(error)})"
            raise DataError(f"{problem}: set XDG_CACHE_HOME to another folder.") from error
        paths.append(path)
    return paths


def _check_kept(path: Path, download: Download) -> None:
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


def _download(download: Download, path: Path, progress: bool) -> None:
    """Goes on with what an earlier attempt has left, for as long as anything arrives."""
    part = path.with_name(f"{path.name}.part")
    before, problem = -1, ""
    while before < (have := _kept(part, download)) < download.size:
        before = have
        try:
            _receive(download, part, have, progress)
        except (OSError, http.client.HTTPException) as error:
            problem = reason(error)
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


def _kept(part: Path, download: Download) -> int:
    """Bytes that have arrived so far. More than there should be cannot be the beginning."""
    size = part.stat().st_size if part.exists() else 0
    if size > download.size:
        part.unlink()
        return 0
    return size


def _receive(download: Download, part: Path, have: int, progress: bool) -> None:
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


def _bar(download: Download, have: int, progress: bool) -> Progress:
    done, total = _megabytes(download, have), _megabytes(download, download.size)
    return Progress(download.name, done, total, shown=progress and download.size > MEGABYTE)


def _megabytes(download: Download, have: int) -> int:
    """The last counts as one when all is there, and not before."""
    return math.ceil(have / MEGABYTE) if have == download.size else have // MEGABYTE


def _offset(response: Any, have: int, download: Download) -> int:
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
