"""The folder with the answer of a command. All of its files are written, or none."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..training._files import read_json, write_json, writing

SUMMARY = "summary.json"
PAGE = "report.html"
UNFINISHED = "unfinished"


class FolderError(ValueError):
    """A folder cannot take an answer; the message says why and what to do."""


def check_folder(folder: Path, command: str) -> None:
    """Raises if a folder cannot take the answer of a command, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"--out {folder} is a file; expected a folder: give another name.")
    if folder.is_dir() and any(folder.iterdir()) and read_summary(folder).get("command") != command:
        raise FolderError(
            f"--out {folder} holds something other than an answer of `lagrax {command}`; expected "
            "a new or empty folder, or an earlier answer: give another folder."
        )
    for path in folder.glob("*"):
        if path.is_symlink() and path.is_dir():
            raise FolderError(
                f"--out {folder}: {path} is a link to another folder, which is never written to: "
                "remove the link, or give another folder."
            )
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"--out {folder}: {there} cannot be written to: give another folder.")


def note_new_folder(folder: Path) -> list[str]:
    """A line to print about a folder that has yet to be made."""
    return [] if folder.exists() else [f"Made the folder {folder.resolve()}"]


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of the answer in a folder; empty if there is none."""
    try:
        content = read_json(folder / SUMMARY)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_unfinished(folder: Path) -> bool:
    """Whether a command was killed while its files replaced those of an earlier answer."""
    return bool(read_summary(folder).get(UNFINISHED))


def is_model_alone(summary: dict[str, Any]) -> bool:
    """Whether a fit was stopped after its model was saved, or there is none."""
    return "equations" not in summary


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder, whose files move to `folder` in the end, the page last.

    Files of an earlier answer that this one does not have are removed.
    """
    folder = folder.absolute()
    with writing(folder):
        _remove_unfinished(folder)
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            _move_files(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_unfinished(folder: Path) -> None:
    """Removes the temporary folders of killed processes."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*.part"):
        number = path.name.removesuffix(".part").rpartition(".")[2]
        if number.isdecimal() and _has_ended(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _has_ended(process: int) -> bool:
    if process == os.getpid():  # in a container the killed process often had the same number
        return True
    if os.name != "posix":  # on Windows, os.kill ends the process
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _move_files(unfinished: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(unfinished, folder)
        return
    names = [str(p.relative_to(unfinished)) for p in unfinished.rglob("*") if p.is_file()]
    before = read_summary(folder)
    files = before.get("files")
    files = files if isinstance(files, list) else []
    # A damaged summary may hold names that no file can have, such as one with a NUL.
    old = {x for x in files if isinstance(x, str) and x.isprintable() and len(x) < 256}
    if before:
        # If the process is killed here, the summary still tells which files belong to an answer.
        write_json(folder / SUMMARY, before | {"files": sorted(old | {*names}), UNFINISHED: True})
    for name in sorted(names, key=lambda name: (name == PAGE, name == SUMMARY, name)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished / name, folder / name)
    for name in old - set(names):
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            path.unlink()


def write_summary(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Writes the summary, with the list of files in `folder`, and returns it."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    summary = summary | {"files": sorted({*names, SUMMARY})}
    write_json(folder / SUMMARY, summary)
    return summary
