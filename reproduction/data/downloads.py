"""Downloads the data sets with pooch, which checks the digest of each file.

pooch's own downloader starts again from the first byte after an interruption. The one here
continues, since the largest file has 182 MB.
"""

import contextlib
import http
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from lagrax.training._machine import load as load_module
from lagrax.training._progress import Progress

from .errors import OWN_FILES, DataError, summarise_error

# Seconds without a byte after which the connection counts as lost.
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


def fetch(download: Download, folder: Path, progress: bool) -> Path:
    """The file in `folder`, downloaded if it is missing or does not have the right digest."""
    pooch = load_module("pooch")
    pooch.get_logger().setLevel("WARNING")
    path = folder / download.name

    def receive(url: str, output_file: str, _: Any) -> None:
        part = path.with_name(f"{path.name}.part")
        _download(download, part, progress)
        os.replace(part, output_file)

    try:
        # A file that is there may lie in a folder that cannot be written to.
        with contextlib.nullcontext() if path.exists() else _lock(path):
            pooch.retrieve(download.url, download.sha256, path.name, folder, downloader=receive)
    except ValueError as error:
        raise DataError(
            f"{download.name} from {download.url} does not have the SHA-256 of the original, "
            f"{download.sha256}, and was deleted: run again to download it anew, or {OWN_FILES}."
        ) from error
    except OSError as error:
        problem = f"{error.filename or path} cannot be used ({summarise_error(error)})"
        raise DataError(f"{problem}: set XDG_CACHE_HOME to another folder.") from error
    return path


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Makes a second process that wants the same file wait, and then find it."""
    filelock = load_module("filelock")
    path.parent.mkdir(parents=True, exist_ok=True)
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


def _download(download: Download, part: Path, progress: bool) -> None:
    """Completes the part of an earlier attempt, and asks again as long as something arrives."""
    before, problem = -1, ""
    while before < (have := _count_bytes(part, download)) < download.size:
        before, problem = have, _receive(download, part, progress)
    if have < download.size:
        kept = f"{have / MEGABYTE:.1f} of {download.size / MEGABYTE:.1f} MB are kept, so "
        raise DataError(
            f"{download.name} cannot be downloaded from {download.url} ({problem}): "
            f"{kept if have else ''}run again when it can be reached, or {OWN_FILES}."
        )


def _count_bytes(part: Path, download: Download) -> int:
    """The length of the part. One that is empty or longer than the file is deleted."""
    size = part.stat().st_size if part.exists() else 0
    if 0 < size <= download.size:
        return size
    part.unlink(missing_ok=True)
    return 0


def _receive(download: Download, part: Path, progress: bool) -> str:
    """Appends an answer of the server to the part. Returns the reason if that is not the rest."""
    shown = progress and download.size > MEGABYTE
    with open(part, "ab") as file:
        have = file.tell()
        total = download.size // MEGABYTE
        with Progress(download.name, have // MEGABYTE, total, shown=shown) as bar:
            # A compressed answer would be decompressed on arrival.
            headers = {"User-Agent": "lagrax", "Accept-Encoding": "identity"}
            headers |= {"Range": f"bytes={have}-"} if have else {}
            writer = _PartWriter(file, download, bar)
            hooks = {"response": writer.check}
            try:
                load_module("pooch").HTTPDownloader(
                    chunk_size=CHUNK, timeout=TIMEOUT, headers=headers, hooks=hooks
                )(download.url, writer, None)
            except DataError as error:
                return str(error)
            except OSError as error:  # requests derives its errors from OSError.
                if "HTTP 416" in (reason := summarise_error(error)):
                    file.truncate(0)
                return "the connection broke off" if "IncompleteRead" in reason else reason
    return "the connection broke off"


class _PartWriter:
    """The file that pooch writes to. It refuses an answer that is not the rest of the download."""

    def __init__(self, file: IO[bytes], download: Download, bar: Progress):
        self._file, self._download, self._bar = file, download, bar

    def check(self, response: Any, **_: Any) -> None:
        starts_anew = response.status_code == http.HTTPStatus.OK
        if not starts_anew and response.status_code != http.HTTPStatus.PARTIAL_CONTENT:
            return
        rest = self._download.size - (0 if starts_anew else self._file.tell())
        if (length := response.headers.get("Content-Length", str(rest))) != str(rest):
            raise DataError(f"it offers {length} bytes instead of {rest}")
        if starts_anew:  # Also the answer of a server that cannot continue a download.
            self._file.seek(0)
            self._file.truncate()

    def write(self, chunk: bytes) -> None:
        before, have = self._file.tell(), self._file.tell() + len(chunk)
        if have > self._download.size:
            raise DataError(f"it sends more than {self._download.size} bytes")
        self._file.write(chunk)
        if before // MEGABYTE < have // MEGABYTE:
            self._bar.update(have // MEGABYTE, "MB downloaded")

    def flush(self) -> None:
        self._file.flush()
