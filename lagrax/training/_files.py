"""Files that appear whole or not at all, and what is said where they cannot."""

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
    """Something cannot be written; the message says where, why and what to do."""


def checked_path(who: str, path: Any) -> Path:
    """A path that the system can be asked for, whatever is there."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"{who} got {path!r:.60}; expected a path.")
    if "\0" in str(path):
        raise ValueError(f"{who} got {str(path)!r:.60}; expected a path without NUL characters.")
    return Path(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses within becomes a sentence about `path`; the outermost one counts."""
    try:
        yield
    except OSError as error:
        cause: BaseException | None = error
        while isinstance(cause, WriteError):
            cause = cause.__cause__
        raise WriteError(f"{path} cannot be written: {_why(cause)}") from cause


def _why(error: BaseException | None) -> str:
    number = getattr(error, "errno", None)
    said = getattr(error, "strerror", None) or str(error)
    if number in FULL:
        return "the disk is full. Make room, and run the same again."
    if number in REFUSED:
        return f"that is not allowed ({said}). Change it, or choose another place."
    if number in IN_THE_WAY:
        return "a file is where a folder should be. Move it, or choose another place."
    if number == errno.ENOENT:
        return "it is gone. See who removed it, and run the same again."
    return f"{said}. See to that, and run the same again."


def write_atomically(path: Path, content: bytes | str) -> None:
    """All of `content` at `path`, or nothing, whenever the machine stops."""
    content = content.encode() if isinstance(content, str) else content
    # By chance: processes of several machines may share a folder and a number, threads always do.
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
            # What went wrong before is to be told, not that this does, too.
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


# More than any file that is read whole; one without an end would take all memory.
LONGEST = 2**28


def read_whole(path: Path) -> bytes:
    """What a file holds; one that is longer than `LONGEST` is a ValueError."""
    parts, size = [], 0
    with open(path, "rb") as file:
        while part := file.read(2**20):
            parts.append(part)
            size += len(part)
            if size > LONGEST:
                raise ValueError(f"it is longer than {LONGEST:,} bytes")
    return b"".join(parts)


def check_regular(path: Path) -> None:
    """Raises a ValueError for a pipe, which would be waited for, and for a device, which may have
    no end. A folder is left to what opens it."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError("it is not a regular file")


def read_json(path: Path, constant: Callable[[str], Any] | None = None) -> Any:
    """What a JSON file holds; one that holds none, in whatever way, is a ValueError."""
    check_regular(path)
    return parse_json(read_whole(path).decode(), constant)


def parse_json(text: str, constant: Callable[[str], Any] | None = None) -> Any:
    """`constant` makes something of NaN and the infinities, which are floats otherwise."""
    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
