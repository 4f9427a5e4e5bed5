"""Atomic writing of files, and its errors."""

import concurrent.futures
import os
import threading
from pathlib import Path

import pytest
from helpers.faults import DISK_FULL, raise_disk_full

from lagrax.training import _files
from lagrax.training._files import WriteError, write_atomically


def test_failed_atomic_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(WriteError) as error:
        write_atomically(path, "after")
    assert str(error.value) == f"{path} {DISK_FULL}"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_two_writers_of_one_file_leave_one_whole_content(tmp_path, monkeypatch):
    """Threads of one process. Processes of several machines may have the same number."""
    path, ready = tmp_path / "figure.json", threading.Barrier(2, timeout=10)
    fsync = os.fsync
    # Both writers finish their temporary files before either renames its own.
    monkeypatch.setattr(os, "fsync", lambda number: (fsync(number), ready.wait()))
    texts = ["a" * 10_000, "b" * 20_000]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda text: write_atomically(path, text), texts))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_write_error_names_the_outermost_place():
    with pytest.raises(WriteError) as error, _files.writing(Path("a")), _files.writing(Path("a/b")):
        raise_disk_full()
    assert str(error.value) == f"a {DISK_FULL}"
    assert isinstance(error.value.__cause__, OSError)
