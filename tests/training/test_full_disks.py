"""Full, failing and read-only disks: a run ends with one sentence and can be resumed."""

import errno
import os
import shutil

import pytest
from helpers.faults import DISK_FULL, fail_at_call, mount, raise_disk_full
from helpers.interrupted_run import check_ends_the_same, stop_run, write_error_of
from helpers.small_run import run_in

from lagrax.training import _metrics
from lagrax.training._files import WriteError
from lagrax.training._run_folder import RunFolder


@pytest.mark.parametrize("tensorboard", [False, True])
def test_run_resumes_after_any_failed_write(tmp_path, undisturbed, tensorboard):
    """Fails each write to the disk in turn, from the configuration to the summary."""
    for number in range(1, 99):
        folder = tmp_path / str(number)
        fails, calls = fail_at_call(number, os.fsync, raise_disk_full)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            message = write_error_of(folder, tensorboard=tensorboard)
        assert not list(folder.rglob(".*.part"))
        if len(calls) < number:
            break
        assert message == f"{folder} {DISK_FULL}"
        assert not (folder / "done.json").exists()
        check_ends_the_same(folder, undisturbed, tensorboard=tensorboard)
    assert number > 10


@pytest.mark.parametrize("number", [1, 2, 4])
def test_run_resumes_after_half_a_line_was_written(tmp_path, undisturbed, monkeypatch, number):
    def half(file, content):
        file.write(content[: len(content) // 2])
        raise_disk_full()

    with monkeypatch.context() as patch:
        patch.setattr(_metrics, "write_all", fail_at_call(number, _metrics.write_all, half)[0])
        with pytest.raises(WriteError, match="the disk is full"):
            run_in(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == undisturbed[1][
        : (tmp_path / "metrics.jsonl").stat().st_size
    ]
    check_ends_the_same(tmp_path, undisturbed)


def test_partial_writes_are_completed():
    class Slow:
        content = b""

        def write(self, rest):
            self.content += bytes(rest[:3])
            return len(rest[:3])

    file = Slow()
    _metrics.write_all(file, b"ten bytes.")
    assert file.content == b"ten bytes."


def test_run_resumes_on_a_disk_with_any_number_of_free_pages(disk, undisturbed):
    """From a disk without a free page to one that holds the whole run."""
    ends = []
    for pages in range(16):
        folder, filler = disk / "run", disk / "filler"
        filler.write_bytes(bytes(4096 * (16 - pages)))
        message = write_error_of(folder)
        assert message in (None, f"{folder} {DISK_FULL}")
        assert not list(disk.rglob(".*.part"))
        ends.append("full" if message else "done")
        filler.unlink()
        check_ends_the_same(folder, undisturbed)
        shutil.rmtree(folder)
    assert ends[:4] == ["full"] * 4
    assert ends[-1] == "done"
    assert ends == sorted(ends, reverse=True)


def test_read_only_disk_is_reported(disk, undisturbed):
    folder = disk / "run"
    stop_run(folder)
    assert mount("-o", "remount,ro", disk)
    for place in (folder, disk / "new"):
        message = write_error_of(place)
        assert message.startswith(f"{place} cannot be written: that is not allowed (Read-only file")
    assert mount("-o", "remount,rw", disk)
    check_ends_the_same(folder, undisturbed)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="may write everywhere")
def test_forbidden_folder_is_reported(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(WriteError, match=r"that is not allowed \(Permission denied\)"):
            run_in(tmp_path / "run")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_file_in_place_of_the_folder_is_reported(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    message = write_error_of(tmp_path / name)
    assert message.startswith(f"{tmp_path / name} cannot be written: a file is where a folder")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", [10, 20])
def test_removed_folder_is_reported(tmp_path, undisturbed, monkeypatch, step, again):
    """Also if there is a new folder of the same name."""
    folder, append = tmp_path / "run", RunFolder.append

    def vanishing(self, records):
        append(self, records)
        if records[-1]["step"] == step:
            shutil.rmtree(folder)
            if again:
                folder.mkdir()
                (folder / "metrics.jsonl").touch()

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", vanishing)
        message = write_error_of(folder)
    assert message.startswith(f"{folder} cannot be written: it is gone.")
    assert not (folder / "checkpoints").exists()
    check_ends_the_same(folder, undisturbed)


def test_input_output_error_is_reported(tmp_path, monkeypatch, undisturbed):
    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_at_call(4, os.fsync, fails)[0])
        with pytest.raises(WriteError, match="written: Input/output error"):
            run_in(tmp_path)
    check_ends_the_same(tmp_path, undisturbed)
