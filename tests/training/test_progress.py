"""Progress on stderr, and event files."""

import math
import struct
import sys

import numpy as np
from helpers.small_run import ADAM, DATA, loss, make, run_in

from lagrax.training import train
from lagrax.training._progress import Progress


def test_progress_may_be_a_function(capfd):
    seen = []
    trained = train(
        loss, make, DATA, ADAM, steps=25, block=10, progress=lambda *found: seen.append(found)
    )
    assert [step for step, _ in seen] == [10, 20, 25]
    losses = trained.metrics["loss"].values[[9, 19, 24]]
    np.testing.assert_allclose([x for _, x in seen], losses, rtol=1e-6)
    assert capfd.readouterr().err == ""


def test_progress_without_a_terminal_is_a_plain_line(capfd):
    train(loss, make, DATA, ADAM, steps=20, block=10)
    message = capfd.readouterr().err
    assert message.startswith("training: 20 of 20, ")
    assert message.isprintable() or message.count("\n") == 1
    assert "\x1b" not in message


def test_the_time_left_does_not_count_compilation(monkeypatch, capfd):
    """100 s of compilation with the first ten steps, and then a step a second."""
    clock = iter([0.0, *[100.0] * 4, *[120.0] * 3, *[190.0] * 3])
    monkeypatch.setattr("lagrax.training._progress.time.monotonic", lambda: next(clock))
    with Progress("training", 0, 100) as progress:
        for done in (10, 30, 100):
            progress.update(done, "loss")
    first, second, last = capfd.readouterr().err.splitlines()
    assert first == "training: 10 of 100, loss"
    assert second == "training: 30 of 100, loss, 70 s left"
    assert last.endswith(" s")


def test_progress_in_a_terminal_is_a_bar(monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    train(loss, make, DATA, ADAM, steps=20, block=10)
    shown = capfd.readouterr().err
    assert shown.index("compiling") < shown.index("20/20")


def test_two_bars_share_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("first", 0, 4) as first, Progress("second", 0, 4) as second:
        first.update(2, "a")
        second.update(4, "b")
    shown = capfd.readouterr().err
    assert "first" in shown
    assert "second" in shown


def events(folder):
    """(tag, step, value) of every scalar in the event files, read by the format's definition."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack("<Q", content[place : place + 8])
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


def test_event_files_hold_every_metric(tmp_path):
    trained = run_in(tmp_path, tensorboard=True)
    found = {(tag, step): value for tag, step, value in events(tmp_path / "tensorboard")}
    values = trained.metrics["loss"].values
    assert math.isclose(found["loss/1", 20], values[-1][1], rel_tol=1e-6)
    assert {step for tag, step in found if tag == "error/0"} == {5, 10, 15, 20}
    assert len([1 for tag, _ in found if tag == "loss/0"]) == 20
