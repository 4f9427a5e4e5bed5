"""Sweeps on disks that cannot be written."""

import json

import pytest
from helpers.faults import DISK_FULL, mount

from lagrax.training._files import WriteError
from reproduction.images import sweeps


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_file_in_place_of_the_folder_is_reported(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    error = pytest.raises(WriteError, match="a file is where a folder should be")
    with error, sweeps._claim(tmp_path / name / "run"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_sweep_on_a_full_disk_can_be_repeated(disk, reproduction_command, kills, tmp_path):
    kills.write_images(tmp_path / "mnist")
    line = "images --quick --epochs 1 --model NODE --data mnist --out"
    code, out, err = reproduction_command(*line.split(), str(disk))
    assert (code, out) == (1, "")
    (run,) = (disk / "images-quick/runs").glob("mnist*")
    assert err.splitlines()[-1] == f"{run} {DISK_FULL}"
    assert mount("-o", "remount,size=64m", disk)
    for place in (str(disk), "undisturbed"):
        assert reproduction_command(*line.split(), place)[0] == 0
    # A commit may have been made in between.
    apart = {"seconds": 0, "versions": {}}
    one, other = (
        [json.loads(p.read_text()) | apart for p in place.rglob("lines/*.jsonl")]
        for place in (disk, tmp_path / "undisturbed")
    )
    assert one == other
