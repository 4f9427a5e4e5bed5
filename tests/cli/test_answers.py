"""Answers of commands replace each other whole, or leave the one before."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.faults import DISK_FULL, mount, raise_disk_full
from helpers.interrupted_run import StopTraining

from lagrax._cli import analyse_equation as analysing, answers as _answers
from lagrax._cli.answers import answering, read_summary, write_summary
from lagrax.training._checkpoints import load_arrays
from lagrax.training._files import WriteError, write_atomically


def write_answer(folder, text, *names):
    with answering(folder) as inside:
        for name in names:
            write_atomically(inside / name, text)
        write_summary(inside, {"command": "fit"})


def test_kill_while_an_answer_is_replaced_is_noticed(tmp_path, monkeypatch):
    folder = tmp_path / "found"
    write_answer(folder, "old", "a", "b", "model/model.json", "report.html")
    replace = os.replace

    def killed(source, target):
        if Path(target) == folder / "b":
            raise StopTraining
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(StopTraining):
            write_answer(folder, "new", "a", "b", "c", "report.html")
    assert (folder / "a").read_text() == "new"
    assert (folder / "b").read_text() == (folder / "report.html").read_text() == "old"
    assert _answers.is_unfinished(folder)
    with pytest.raises(analysing.AnalyseError, match=r"holds parts of two answers, .* again\."):
        analysing.find_equation(str(folder), {})
    # The same command again, or another one of its kind.
    _answers.check_folder(folder, "fit")
    write_answer(folder, "newer", "b", "report.html")
    assert not _answers.is_unfinished(folder)
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == [
        "b",
        "report.html",
        "summary.json",
    ]
    assert read_summary(folder)["files"] == ["b", "report.html", "summary.json"]


def test_unfinished_answers_of_ended_processes_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    pid = ended.pid
    for name in (f".found.{pid}.part", f".found.{os.getpid()}.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    others = {f".found.{os.getppid()}.part", ".found.x.part", f".other.{pid}.part"}
    for name in others:
        (tmp_path / name).mkdir()
    write_answer(tmp_path / "found", "text", "a")
    assert {p.name for p in tmp_path.iterdir()} == {"found", *others}


def test_command_reports_a_full_disk_in_one_line(tmp_path, lagrax_command, monkeypatch):
    monkeypatch.setattr(os, "fsync", raise_disk_full)
    code, out, err = lagrax_command("simulate", "linear", "--csv", "x.csv")
    assert (code, out, err) == (1, "", f"x.csv {DISK_FULL}\n")


def test_full_disk_leaves_the_answer_before(disk):
    def answer(text, size):
        with answering(disk / "found") as folder:
            write_atomically(folder / "forecast.csv", text * size)
            write_summary(folder, {"command": "fit"})

    answer("a", 10)
    with pytest.raises(WriteError) as error:
        answer("b", 99999)
    assert str(error.value) == f"{disk / 'found'} {DISK_FULL}"
    assert [p.name for p in disk.iterdir()] == ["found"]
    assert (disk / "found/forecast.csv").read_text() == "a" * 10
    answer("b", 10)
    assert (disk / "found/forecast.csv").read_text() == "b" * 10


@pytest.mark.slow
def test_fit_on_a_full_disk_can_be_repeated(disk, lagrax_command, tmp_path):
    ts = np.linspace(0, 6, 31)
    rows = [f"{t:.3f},{np.exp(-t):.6f}" for t in ts]
    (tmp_path / "x.csv").write_text("\n".join(["t,x", *rows]) + "\n")
    line = ["fit", "x.csv", "--field", "library", "--ensemble", "1", "--forecast", "3", "--out"]
    assert lagrax_command(*line, "undisturbed")[0] == 0
    code, out, err = lagrax_command(*line, str(disk / "found"))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == f"{disk / 'found'} {DISK_FULL}"
    assert list(disk.iterdir()) == []
    assert mount("-o", "remount,size=64m", disk)
    assert lagrax_command(*line, str(disk / "found"))[0] == 0
    folders = disk / "found", tmp_path / "undisturbed"
    for name in ("forecast.csv", "fit.csv", "figures/fit.png"):
        one, other = ((x / name).read_bytes() for x in folders)
        assert one == other
    # The file's header has its keys in any order.
    one, other = (load_arrays(x / "model/model.safetensors") for x in folders)
    assert one[1] == other[1]
    jax.tree.map(np.testing.assert_array_equal, one[0], other[0])
