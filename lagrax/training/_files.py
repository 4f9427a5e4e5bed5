"""Files that are written whole or not at all, and safe reading of files from others."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR}


class WriteError(OSError):
    """A file or folder cannot be written. The message gives the place, reason and remedy."""


def checked_path(who: str, path: Any) -> Path:
    """The path as a `Path`. Raises unless the system can look it up."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"{who} got {path!r:.60}; expected a path.")
    if "\0" in str(path):
        raise ValueError(f"{who} got {str(path)!r:.60}; expected a path without NUL characters.")
    return Path(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` in its block into a `WriteError` about `path`, the outermost one."""
    try:
        yield
    except OSError as error:
        cause: BaseException | None = error
        while isinstance(cause, WriteError):
            cause = cause.__cause__
        raise WriteError(f"{path} cannot be written: {_explain(cause)}") from cause


def _explain(error: BaseException | None) -> str:
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error)
    if number in FULL:
        return "the disk is full. Make room, and run the same again."
    if number in REFUSED:
        return f"that is not allowed ({text}). Change it, or choose another place."
    if number in IN_THE_WAY:
        return "a file is where a folder should be. Move it, or choose another place."
    if number == errno.ENOENT:
        return "it is gone. See who removed it, and run the same again."
    return f"{text}. See to that, and run the same again."


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes all of `content` to `path`, or nothing if the machine stops in between."""
    content = content.encode() if isinstance(content, str) else content
    # Random, since threads share a process number, and so may processes of several machines.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            # Report the original error, not a failure to clean up.
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


# Larger than any file that is read whole. A device without an end would fill the memory.
LONGEST = 2**28


def read_whole(path: Path) -> bytes:
    """The content of a file. Raises a ValueError if it is longer than `LONGEST`."""
    parts, size = [], 0
    with open(path, "rb") as file:
        while part := file.read(2**20):
            parts.append(part)
            size += len(part)
            if size > LONGEST:
                raise ValueError(f"it is longer than {LONGEST:,} bytes")
    return b"".join(parts)


def check_regular(path: Path) -> None:
    """Raises a ValueError for a pipe, which blocks its reader, and for a device, which may have no
    end. Opening a folder fails by itself."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError("it is not a regular file")


def read_json(path: Path, constant: Callable[[str], Any] | None = None) -> Any:
    """The content of a JSON file. Raises a ValueError if it is not valid JSON."""
    check_regular(path)
    return parse_json(read_whole(path).decode(), constant)


def parse_json(text: str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parses JSON. `constant` converts NaN and infinities by name; without it, they are floats."""
    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
