"""The folder with a command's answer: its own files, all of them or none."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import figures
from ._files import write_json

SUMMARY = "summary.json"
PAGE = "report.html"


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
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"--out {folder}: {there} cannot be written to: name another folder.")


def read_summary(folder: Path) -> dict[str, Any]:
    """What a command wrote about its answer in this folder; nothing where it did not."""
    try:
        content = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[Path]:
    """A folder to write to, whose files go to `folder` once all of them are there, the page last.
    What an earlier answer wrote there and this one does not is removed."""
    folder = folder.absolute()
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        _move(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(unfinished: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(unfinished, folder)
        return
    before = read_summary(folder).get("files", [])
    names = [str(p.relative_to(unfinished)) for p in unfinished.rglob("*") if p.is_file()]
    for name in sorted(names, key=lambda name: (name == PAGE, name == SUMMARY, name)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished / name, folder / name)
    for name in {str(name) for name in before} - set(names):
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            path.unlink()


def write_figures(folder: Path, drawn: Sequence[figures.Figure]) -> None:
    """Each in the folder `figures`, as what it says and as a picture."""
    for figure in drawn:
        path = folder / "figures" / figure.name
        write_json(path.with_name(f"{figure.name}.json"), figures.to_json(figure))
        figures.draw(figure, path.with_name(f"{figure.name}.png"))


def write_summary(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Says in `folder` what was found and which files there are; the summary with these."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    summary = summary | {"files": sorted({*names, SUMMARY})}
    write_json(folder / SUMMARY, summary)
    return summary
