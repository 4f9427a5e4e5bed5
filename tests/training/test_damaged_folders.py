"""Damaged files, special files and links in a run folder."""

import json
import os
import shutil
import signal
import struct
from pathlib import Path

import pytest
from helpers import sample_files
from helpers.faults import flip, truncate
from helpers.interrupted_run import check_ends_the_same, stop_run
from helpers.small_run import run_in

from lagrax._cli.answers import read_summary
from lagrax.identify import Identifier, IdentifyError
from lagrax.training import RunError

# --- damaged files --------------------------------------------------------------------------------


def change(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def remove_digest(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    del header["__metadata__"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def make_folder(path):
    path.unlink()
    path.mkdir()


CHECKPOINT_DAMAGES = {
    "empty": lambda p: truncate(p, 0),
    "cut in the length of the header": lambda p: truncate(p, 4),
    "cut after the length of the header": lambda p: truncate(p, 8),
    "cut in the header": lambda p: truncate(p, 100),
    "cut in the data": lambda p: truncate(p, -20),
    "without the last byte": lambda p: truncate(p, -1),
    "a wrong length": lambda p: flip(p, 0),
    "an immense length": lambda p: flip(p, 7),
    "a flipped bit of the header": lambda p: flip(p, 30),
    "a flipped bit of the data": lambda p: flip(p, -1),
    "another step": lambda p: flip(p, p.read_bytes().index(b'"step":"') + 8),
    "another name": lambda p: change(p, b".model.bias", b".model.bids"),
    "no digest": remove_digest,
    "nonsense": lambda p: p.write_bytes(bytes(range(256)) * 8),
    "a folder": make_folder,
}


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGES.values(), ids=CHECKPOINT_DAMAGES)
@pytest.mark.parametrize("both", [False, True], ids=["the newest", "both"])
def test_damaged_checkpoints_are_set_aside(tmp_path, undisturbed, capsys, damage, both):
    stop_run(tmp_path)
    older, newest = sorted((tmp_path / "checkpoints").glob("*.safetensors"))
    for path in (newest, older) if both else (newest,):
        damage(path)
    check_ends_the_same(tmp_path, undisturbed)
    message = capsys.readouterr().err
    assert f"{newest} is damaged" in message
    assert (str(older) in message) == both
    assert newest.with_suffix(".damaged").exists()


METRICS_DAMAGES = {
    "shorter": lambda p: p.write_bytes(b"".join(p.read_bytes().splitlines(keepends=True)[:7])),
    "cut in a line": lambda p: truncate(p, -10),
    "cut in an early line": lambda p: truncate(p, 70),
    "longer": lambda p: p.write_bytes(p.read_bytes() * 2),
    "half a line more": lambda p: p.write_bytes(p.read_bytes() + b'{"step": 16, "lo'),
    "changed": lambda p: flip(p, 15),
    "not text": lambda p: p.write_bytes(b"\xff\x00" * 99),
    "empty": lambda p: truncate(p, 0),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", METRICS_DAMAGES.values(), ids=METRICS_DAMAGES)
def test_damaged_metrics_are_recomputed(tmp_path, undisturbed, damage):
    damage(stop_run(tmp_path) / "metrics.jsonl")
    check_ends_the_same(tmp_path, undisturbed)


def test_checkpoint_without_its_metrics_is_set_aside(tmp_path, undisturbed, capsys):
    METRICS_DAMAGES["shorter"](stop_run(tmp_path) / "metrics.jsonl")
    check_ends_the_same(tmp_path, undisturbed)
    assert "metrics.jsonl does not hold the lines" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", '{"config": 3}', "[]", '{"config"', "\0"])
def test_unreadable_configuration_is_refused(tmp_path, text):
    stop_run(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"config.json cannot be read: .* Remove its folder"):
        run_in(tmp_path)
    assert {p: p.read_bytes() for p in before if p != path} == {
        p: x for p, x in before.items() if p != path
    }


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"20", b'{"steps": "all"}'])
def test_damaged_summary_is_rewritten(tmp_path, undisturbed, content):
    run_in(tmp_path)
    (tmp_path / "done.json").write_bytes(content)
    check_ends_the_same(tmp_path, undisturbed)


def test_damaged_last_checkpoint_is_recomputed(tmp_path, undisturbed):
    run_in(tmp_path)
    flip(tmp_path / "checkpoints/step-00000020.safetensors", -1)
    check_ends_the_same(tmp_path, undisturbed)


# --- special files and links ----------------------------------------------------------------------


def make_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_device_link(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def move_behind_link(path, place):
    path.replace(place)
    path.symlink_to(place)


@pytest.fixture
def time_limit():
    """Ends a test that waits for a pipe, which would take forever."""

    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


SPECIAL_FILES = {"a pipe": make_pipe, "a device": make_device_link}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize("make", SPECIAL_FILES.values(), ids=SPECIAL_FILES)
class TestSpecialFiles:
    def test_in_place_of_the_configuration(self, tmp_path, make):
        make(stop_run(tmp_path) / "config.json")
        with pytest.raises(RunError, match=r"config.json cannot be read: it is not a regular file"):
            run_in(tmp_path)

    def test_in_place_of_the_metrics(self, tmp_path, make):
        make(stop_run(tmp_path) / "metrics.jsonl")
        with pytest.raises(RunError, match=r"metrics.jsonl .*expected a regular file.*Remove"):
            run_in(tmp_path)

    def test_in_place_of_a_checkpoint(self, tmp_path, undisturbed, make, capsys):
        path = stop_run(tmp_path) / "checkpoints/step-00000010.safetensors"
        make(path)
        check_ends_the_same(tmp_path, undisturbed)
        assert f"{path} is damaged (it cannot be read: it is not a reg" in capsys.readouterr().err

    def test_in_place_of_the_summary(self, tmp_path, undisturbed, make):
        run_in(tmp_path)
        make(tmp_path / "done.json")
        check_ends_the_same(tmp_path, undisturbed)

    def test_in_place_of_the_lock(self, tmp_path, make):
        make(stop_run(tmp_path) / "lock")
        with pytest.raises(RunError, match=r"lock .*expected a regular file.*Remove"):
            run_in(tmp_path)

    @pytest.mark.parametrize("name", ["model.json", "model.safetensors", "summary.json"])
    def test_in_place_of_parts_of_a_model(self, tmp_path, make, name):
        make(sample_files.write(tmp_path, sample_files.model()) / name)
        if name == "summary.json":
            assert read_summary(tmp_path) == {}
        else:
            with pytest.raises(IdentifyError, match=name):
                Identifier.load(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock", "checkpoints", "tensorboard"])
@pytest.mark.parametrize("resume", [True, False])
def test_links_to_other_runs_are_refused(tmp_path, name, resume):
    other = stop_run(tmp_path / "other")
    (other / "tensorboard").mkdir()
    (other / "tensorboard/mine").touch()
    before = sample_files.listing(other)
    folder = stop_run(tmp_path / "run")
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(other / name)
    with pytest.raises(RunError, match=rf"{name} is a link; expected a .*Remove"):
        run_in(folder, resume=resume, tensorboard=True)
    assert sample_files.listing(other) == before
    path.unlink()
    run_in(folder)


def test_links_that_are_only_read_are_followed(tmp_path, undisturbed):
    stop_run(tmp_path)
    move_behind_link(tmp_path / "config.json", tmp_path / "configuration")
    move_behind_link(tmp_path / "checkpoints/step-00000010.safetensors", tmp_path / "ten")
    os.remove(tmp_path / "checkpoints/step-00000005.safetensors")
    check_ends_the_same(tmp_path, undisturbed)
    assert (tmp_path / "ten").exists()


def test_link_to_a_run_folder_is_followed(tmp_path, undisturbed):
    stop_run(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    check_ends_the_same(tmp_path / "link", undisturbed)
