"""Runs that are stopped, interrupted or killed end with exactly the undisturbed result.

`results/soak/kills.py` kills many more.
"""

import functools
import gc
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.interrupted_run import StopTraining, check_ends_the_same, patch_save, stop_run
from helpers.small_run import ADAM, DATA, away_from_two, check_same, loss, make, run_in

from lagrax.training import RunError, _machine, _train, train
from lagrax.training._run_folder import RunFolder

SOAK = Path(__file__).parents[2] / "results" / "soak"


# --- stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [5, 10, 20])
def test_stopped_run_resumes_to_the_same_result(tmp_path, undisturbed, step):
    check_ends_the_same(stop_run(tmp_path, step), undisturbed)


def test_interrupt_within_a_block_keeps_the_block_before(tmp_path, undisturbed, monkeypatch):
    append, calls = RunFolder.append, []

    def interrupted(self, records):
        calls.append(records)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, checkpoint_seconds=1e9)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000010.safetensors"]
    check_ends_the_same(tmp_path, undisturbed)


def interrupt_at(number, run):
    """Runs `run` and interrupts it at one executed line of the loop or the folder. Returns whether
    it has that many lines."""
    traced = {"_train", "_block", "_run_folder", "_metrics", "_checkpoints", "_files"}
    folder, lines = Path(_train.__file__).parent, itertools.count(1)
    files = {str(folder / f"{name}.py") for name in traced}

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.no_cover
# An interrupt between `open` and `with` leaves the file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["after each block", "at the interrupt"])
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_interrupt_at_any_line_leaves_a_resumable_run(tmp_path, monkeypatch, seconds, stride):
    # It runs git, which would take most of the time.
    monkeypatch.setattr(_machine, "describe", dict)
    run = functools.partial(run_in, steps=4, seeds=0, block=2)
    whole = run(tmp_path / "whole")
    metrics = (tmp_path / "whole/metrics.jsonl").read_bytes()
    for number in itertools.count(1, stride):
        folder = tmp_path / f"{number}"
        if not interrupt_at(number, lambda: run(folder, checkpoint_seconds=seconds)):  # noqa: B023
            break
        again = run(folder)
        check_same(whole.model, again.model)
        assert (folder / "metrics.jsonl").read_bytes() == metrics, f"line {number}"
    # Or the next test would report these files.
    gc.collect()
    assert number > 300


def test_stop_event_ends_the_run_after_a_block(tmp_path, undisturbed):
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path, stop=stop)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    check_ends_the_same(tmp_path, undisturbed)


def test_best_model_survives_a_stop(tmp_path, monkeypatch):
    options = {"block": 2, "progress": False, "evaluate": away_from_two, "keep": "distance"}
    options |= {"test_data": jnp.array(2.0), "patience": 10, "steps": 200, "seeds": 0}
    whole = train(loss, make, DATA, ADAM, **options)
    with monkeypatch.context() as patch:
        patch_save(patch, 10)
        with pytest.raises(StopTraining):
            train(loss, make, DATA, ADAM, folder=tmp_path, checkpoint_seconds=0.0, **options)
    continued = train(loss, make, DATA, ADAM, folder=tmp_path, **options)
    assert len(continued.metrics["loss"].values) > 10
    check_same(whole.model, continued.model)


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("training", 1),
        pytest.param("training", 10, marks=pytest.mark.slow),
        pytest.param("sweep", 3, marks=pytest.mark.slow),
        pytest.param("answer", 3, marks=pytest.mark.slow),
    ],
)
def test_run_killed_at_random_moments_ends_the_same(kills, tmp_path, kind, number):
    # With this seed the first kill comes while a file is written.
    hits, ended_the_same = kills.survive(kind, tmp_path / "run", 5, random.Random(0), number)
    assert ended_the_same
    assert hits


def test_soak_page_matches_its_numbers(kills):
    found = json.loads((SOAK / "kills.json").read_text(encoding="utf-8"))
    page = (SOAK / "README.md").read_text(encoding="utf-8")
    assert page == kills.replace_section(page, found)
    assert found["kills"] >= 100
    assert found["same"] == found["runs"]
    new = kills.replace_section("# A page\n", found)
    assert new == kills.replace_section(new, found)
    assert new.startswith(f"# A page\n\n{kills.MARKERS[0]}\n\n## Kills")


def test_unfinished_files_of_a_kill_are_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/.step-00000005.safetensors.123.part").write_text("half")
    (tmp_path / ".config.json.123.part").write_text("half")
    # Another process may be writing to a folder inside.
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.config.json.123.part").write_text("half")
    run_in(tmp_path)
    assert list(tmp_path.rglob(".*.part")) == [tmp_path / "other/.config.json.123.part"]


# --- a second process -----------------------------------------------------------------------------


def test_second_process_is_refused_until_the_first_ends(tmp_path, undisturbed):
    code = """
import filelock, sys
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("locked", flush=True)
input()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(RunError, match="in use by another process"):
            run_in(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
        process.kill()
    check_ends_the_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_refused_process_leaves_the_running_one_alone(kills, tmp_path):
    process = kills.start("training", tmp_path, 0)
    kills.wait_for(process, lambda: (tmp_path / "metrics.jsonl").exists())
    with pytest.raises(RunError, match="in use by another process"):
        run_in(tmp_path)
    assert process.poll() is None
    assert process.wait() == 0
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == kills.STEPS


def test_lock_file_of_an_ended_process_is_ignored(tmp_path, undisturbed):
    (tmp_path / "lock").write_text("123")
    check_ends_the_same(tmp_path, undisturbed)


# --- clocks ---------------------------------------------------------------------------------------


class JumpingClock:
    """Jumps by hours or days between two calls, forwards or backwards."""

    def __init__(self, seed):
        self.rng, self.now = random.Random(seed), 1.8e9

    def __call__(self):
        self.now += self.rng.choice([-86400 * 30, -3600, 0.001, 3600, 86400 * 30])
        return self.now


def test_wall_clock_jumps_change_nothing(tmp_path, undisturbed, monkeypatch):
    stop_run(tmp_path)
    future = time.time() + 1e8
    for path in (*tmp_path.rglob("*"), tmp_path):
        os.utime(path, (future, future))
    os.utime(tmp_path / "checkpoints/step-00000010.safetensors", (0, 0))
    began = time.monotonic()
    monkeypatch.setattr(time, "time", JumpingClock(0))
    trained = check_ends_the_same(tmp_path, undisturbed, tensorboard=True)
    assert 0 < trained.seconds < 60 + time.monotonic() - began


@pytest.mark.parametrize("seed", [1, 2])
def test_monotonic_clock_jumps_change_nothing(tmp_path, undisturbed, monkeypatch, seed):
    """Such a clock may jump on a machine that was asleep or moved to another host."""

    class Time:
        monotonic = JumpingClock(seed)

    monkeypatch.setattr(_train, "time", Time)
    for folder, interval in ((tmp_path / "often", 0.0), (tmp_path / "seldom", 10.0)):
        trained = check_ends_the_same(folder, undisturbed, checkpoint_seconds=interval)
        assert trained.seconds >= 0
        assert json.loads((folder / "done.json").read_text())["seconds"] >= 0


class Ticking:
    """A clock that advances by a second at each call."""

    now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_seconds_add_up_over_attempts(tmp_path, monkeypatch):
    monkeypatch.setattr(_train, "time", Ticking())
    first, more = (run_in(tmp_path, steps=steps).seconds for steps in (20, 25))
    assert first >= 4
    assert more > first


def test_checkpoint_seconds_separate_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(_train, "time", Ticking())
    saved, save = [], RunFolder.save

    def record(self, step, state, seconds):
        saved.append((step, seconds))
        save(self, step, state, seconds)

    monkeypatch.setattr(RunFolder, "save", record)
    run_in(tmp_path, steps=20, block=1, checkpoint_seconds=7.5)
    assert saved[-1][0] == 20
    assert 2 < len(saved) < 8
    assert np.all(np.diff([seconds for _, seconds in saved[:-1]]) >= 7)


def test_last_step_always_has_a_checkpoint(tmp_path):
    run_in(tmp_path, checkpoint_seconds=1e9)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert names == ["step-00000020.safetensors"]
