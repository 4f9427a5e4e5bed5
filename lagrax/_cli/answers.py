"""The folder with a command's answer: its own files, all of them or none."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import plotting
from ..training._files import read_json, write_json, writing

SUMMARY = "summary.json"
PAGE = "report.html"
UNFINISHED = "unfinished"


class FolderError(ValueError):
    """A folder cannot take an answer; the message says why and what to do."""


def check_folder(folder: Path, command: str) -> None:
    """Refuses a folder with something else in it, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"--out {folder} is a file; expected a folder: name another.")
    if folder.is_dir() and any(folder.iterdir()) and read_summary(folder).get("command") != command:
        raise FolderError(
            f"--out {folder} holds something other than an answer of `lagrax {command}`; expected "
            "a new or empty folder, or one of its own: name another."
        )
    for path in folder.glob("*"):
        if path.is_symlink() and path.is_dir():
            raise FolderError(
                f"--out {folder}: {path} leads to another folder; expected one of its own: remove "
                "it, or name another."
            )
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"--out {folder}: {there} cannot be written to: name another folder.")


def read_summary(folder: Path) -> dict[str, Any]:
    """What a command wrote about its answer in this folder; nothing where it did not."""
    try:
        content = read_json(folder / SUMMARY)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_unfinished(folder: Path) -> bool:
    """Whether a command was killed while its files took the places of an earlier answer's."""
    return bool(read_summary(folder).get(UNFINISHED))


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[Path]:
    """A folder to write to, whose files go to `folder` once all of them are there, the page last.
    What an earlier answer wrote there and this one does not is removed."""
    folder = folder.absolute()
    with writing(folder):
        _sweep(folder)
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            _move(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what killed processes were writing."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*.part"):
        number = path.name.removesuffix(".part").rpartition(".")[2]
        if number.isdecimal() and _has_ended(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _has_ended(process: int) -> bool:
    if process == os.getpid():  # In containers an earlier one often had the same number.
        return True
    if os.name != "posix":  # On Windows, to ask is to end it.
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _move(unfinished: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(unfinished, folder)
        return
    names = [str(p.relative_to(unfinished)) for p in unfinished.rglob("*") if p.is_file()]
    before = read_summary(folder)
    files = before.get("files")
    files = files if isinstance(files, list) else []
    # What no file can be called, such as a name with a NUL, was not written here.
    old = {x for x in files if isinstance(x, str) and x.isprintable() and len(x) < 256}
    if before:
        # Killed in between, the folder is known for what it is, and which files are its own.
        write_json(folder / SUMMARY, before | {"files": sorted(old | {*names}), UNFINISHED: True})
    for name in sorted(names, key=lambda name: (name == PAGE, name == SUMMARY, name)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished / name, folder / name)
    for name in old - set(names):
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            path.unlink()


def write_figures(folder: Path, drawn: Sequence[plotting.Figure]) -> None:
    """Each in the folder `figures`, as what it says and as a picture."""
    for figure in drawn:
        path = folder / "figures" / figure.name
        write_json(path.with_name(f"{figure.name}.json"), plotting.to_json(figure))
        plotting.draw(figure, path.with_name(f"{figure.name}.png"))


def write_summary(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Says in `folder` what was found and which files there are; the summary with these."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    summary = summary | {"files": sorted({*names, SUMMARY})}
    write_json(folder / SUMMARY, summary)
    return summary
