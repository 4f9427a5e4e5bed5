"""What goes wrong in long runs: kills, damage, full disks, a second process, clocks that jump.

A run ends with exactly the undisturbed result, or stops with one sentence and keeps what it had.
`results/soak/kills.py` kills many more.
"""

import concurrent.futures
import errno
import functools
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import sample_files
from helpers.small_run import ADAM, DATA, away_from_two, loss, make, run_in, same

from lagrax._cli import analyse as analysing, answers as _answers
from lagrax._cli.answers import answering, read_summary, write_summary
from lagrax.identify import Identifier, IdentifyError
from lagrax.training import RunError, _files, _machine, _metrics, _train, train
from lagrax.training._checkpoints import load_arrays, save_checkpoint
from lagrax.training._errors import DamagedError
from lagrax.training._files import WriteError, write_atomically
from lagrax.training._run_folder import RunFolder
from reproduction.images import sweeps

SOAK = Path(__file__).parents[2] / "results" / "soak"
FULL = "cannot be written: the disk is full. Make room, and run the same again."


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_in(folder), (folder / "metrics.jsonl").read_bytes()


def ends_the_same(folder, undisturbed, **options):
    trained, metrics = undisturbed
    again = run_in(folder, **options)
    same(trained.model, again.model)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert json.loads((folder / "done.json").read_text())["steps"] == 20
    assert not list(folder.rglob(".*.part"))
    return again


class Stop(BaseException):
    """Ends a training from within, as nothing else does."""


def stop_at(monkeypatch, step):
    """A stop after the metrics of `step` are written, before their checkpoint is."""
    save = RunFolder.save

    def failing(self, number, state, seconds):
        if number >= step:
            raise Stop
        save(self, number, state, seconds)

    monkeypatch.setattr(RunFolder, "save", failing)


def stopped(folder, step=15):
    """A run with checkpoints of the steps 5 and 10, and metrics of the step 15."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Stop):
            run_in(folder)
    return folder


# --- stopped --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [5, 10, 20])
def test_goes_on_where_it_stopped(tmp_path, undisturbed, step):
    ends_the_same(stopped(tmp_path, step), undisturbed)


def test_interrupted_in_a_block_the_last_whole_one_is_kept(tmp_path, undisturbed, monkeypatch):
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
    ends_the_same(tmp_path, undisturbed)


def interrupt_at(number, run):
    """Ctrl-C at that line of the loop and of the folder; whether there are so many."""
    traced = {"_train", "_run_folder", "_metrics", "_checkpoints", "_files"}
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
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["saved before", "saved by it"])
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_leaves_a_run_that_goes_on(tmp_path, monkeypatch, seconds, stride):
    # It asks git, and takes most of the time.
    monkeypatch.setattr(_machine, "describe", dict)
    run = functools.partial(run_in, steps=4, seeds=0, block=2)
    whole = run(tmp_path / "whole")
    metrics = (tmp_path / "whole/metrics.jsonl").read_bytes()
    for number in itertools.count(1, stride):
        folder = tmp_path / f"{number}"
        if not interrupt_at(number, lambda: run(folder, checkpoint_seconds=seconds)):  # noqa: B023
            break
        again = run(folder)
        same(whole.model, again.model)
        assert (folder / "metrics.jsonl").read_bytes() == metrics, f"line {number}"
    assert number > 300


def test_stopped_by_another_thread_it_can_go_on(tmp_path, undisturbed):
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path, stop=stop)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5  # one block, and its checkpoint
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    ends_the_same(tmp_path, undisturbed)


def test_a_kept_model_survives_a_stop(tmp_path, monkeypatch):
    options = {"block": 2, "progress": False, "evaluate": away_from_two, "keep": "distance"}
    options |= {"test_data": jnp.array(2.0), "patience": 10, "steps": 200, "seeds": 0}
    whole = train(loss, make, DATA, ADAM, **options)
    with monkeypatch.context() as patch:
        stop_at(patch, 10)
        with pytest.raises(Stop):
            train(loss, make, DATA, ADAM, folder=tmp_path, checkpoint_seconds=0.0, **options)
    continued = train(loss, make, DATA, ADAM, folder=tmp_path, **options)
    assert len(continued.metrics["loss"].values) > 10
    same(whole.model, continued.model)


# --- killed ---------------------------------------------------------------------------------------


@pytest.fixture
def kills(load_script):
    return load_script(SOAK / "kills.py")


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("training", 2),
        pytest.param("training", 10, marks=pytest.mark.slow),
        pytest.param("sweep", 3, marks=pytest.mark.slow),
        pytest.param("answer", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments_it_ends_the_same(kills, tmp_path, kind, number):
    hits, ended_the_same = kills.survive(kind, tmp_path / "run", 5, random.Random(number), number)
    assert ended_the_same
    assert hits


def test_the_page_of_the_soak_is_that_of_its_numbers(kills):
    found = json.loads((SOAK / "kills.json").read_text(encoding="utf-8"))
    page = (SOAK / "README.md").read_text(encoding="utf-8")
    assert page == kills.with_section(page, found)
    assert found["kills"] >= 100
    assert found["same"] == found["runs"]
    new = kills.with_section("# A page\n", found)
    assert new == kills.with_section(new, found)
    assert new.startswith(f"# A page\n\n{kills.MARKERS[0]}\n\n## Kills")


def test_left_overs_of_a_kill_are_swept(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/.step-00000005.safetensors.123.part").write_text("half")
    (tmp_path / ".config.json.123.part").write_text("half")
    # Another process may be writing in a folder of its own.
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.config.json.123.part").write_text("half")
    run_in(tmp_path)
    assert list(tmp_path.rglob(".*.part")) == [tmp_path / "other/.config.json.123.part"]


# --- a second process -----------------------------------------------------------------------------


def test_a_second_process_is_refused_at_once(kills, tmp_path):
    process = kills.start("training", tmp_path, 0)
    kills.wait_for(process, lambda: (tmp_path / "metrics.jsonl").exists())
    began = time.monotonic()
    with pytest.raises(
        RunError, match=r"in use by another process\. Wait for it to end, or choose"
    ):
        run_in(tmp_path)
    assert time.monotonic() - began < 1
    assert process.wait() == 0
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == kills.STEPS


def test_the_lock_of_an_ended_process_does_not_count(tmp_path, undisturbed):
    (tmp_path / "lock").write_text("123")
    ends_the_same(tmp_path, undisturbed)


# --- damaged files --------------------------------------------------------------------------------


def truncate(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def change(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def without_digest(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    del header["__metadata__"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def as_a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "empty": lambda p: truncate(p, 0),
    "in the length of the header": lambda p: truncate(p, 4),
    "after it": lambda p: truncate(p, 8),
    "in the header": lambda p: truncate(p, 100),
    "in the data": lambda p: truncate(p, -20),
    "without the last byte": lambda p: truncate(p, -1),
    "a wrong length": lambda p: flip(p, 0),
    "an immense length": lambda p: flip(p, 7),
    "a byte of the header": lambda p: flip(p, 30),
    "a byte of the data": lambda p: flip(p, -1),
    "another step": lambda p: flip(p, p.read_bytes().index(b'"step":"') + 8),
    "another name": lambda p: change(p, b".model.bias", b".model.bids"),
    "no digest": without_digest,
    "nonsense": lambda p: p.write_bytes(bytes(range(256)) * 8),
    "a folder": as_a_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("both", [False, True], ids=["the newest", "both"])
def test_damaged_checkpoints_are_set_aside(tmp_path, undisturbed, capsys, damage, both):
    stopped(tmp_path)
    older, newest = sorted((tmp_path / "checkpoints").glob("*.safetensors"))
    for path in (newest, older) if both else (newest,):
        damage(path)
    ends_the_same(tmp_path, undisturbed)
    message = capsys.readouterr().err
    assert f"{newest} is damaged" in message
    assert (str(older) in message) == both
    assert newest.with_suffix(".damaged").exists()


def test_no_truncation_and_no_flipped_bit_escapes(tmp_path):
    path = tmp_path / "x.safetensors"
    about = {"step": "3", "bytes": "17"}
    save_checkpoint(path, {"a": jnp.arange(3.0), "b": jnp.ones((2, 1), int)}, about)
    arrays, found = load_arrays(path)
    assert found == about
    np.testing.assert_array_equal(arrays["['a']"], np.arange(3.0))
    content = path.read_bytes()
    broken = [content[:size] for size in range(len(content))]
    for place in range(len(content)):
        for bit in (0, 5):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            broken.append(bytes(flipped))
    for changed in broken:
        path.write_bytes(changed)
        with pytest.raises(DamagedError):
            load_arrays(path)


METRICS = {
    "shorter": lambda p: p.write_bytes(b"".join(p.read_bytes().splitlines(keepends=True)[:7])),
    "in the middle of a line": lambda p: truncate(p, -10),
    "in the middle of an early line": lambda p: truncate(p, 70),
    "longer": lambda p: p.write_bytes(p.read_bytes() * 2),
    "half a line more": lambda p: p.write_bytes(p.read_bytes() + b'{"step": 16, "lo'),
    "changed": lambda p: flip(p, 15),
    "not text": lambda p: p.write_bytes(b"\xff\x00" * 99),
    "empty": lambda p: truncate(p, 0),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", METRICS.values(), ids=METRICS)
def test_damaged_metrics_are_computed_again(tmp_path, undisturbed, damage):
    damage(stopped(tmp_path) / "metrics.jsonl")
    ends_the_same(tmp_path, undisturbed)


def test_lost_metrics_take_their_checkpoint_with_them(tmp_path, undisturbed, capsys):
    METRICS["shorter"](stopped(tmp_path) / "metrics.jsonl")
    ends_the_same(tmp_path, undisturbed)
    assert "metrics.jsonl does not hold the lines that it counts on" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", '{"config": 3}', "[]", '{"config"', "\0"])
def test_an_unreadable_configuration_is_named(tmp_path, text):
    stopped(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"config.json cannot be read: .* Remove its folder, or cho"):
        run_in(tmp_path)
    assert {p: p.read_bytes() for p in before if p != path} == {
        p: x for p, x in before.items() if p != path
    }


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_a_damaged_mark_of_the_end_is_written_anew(tmp_path, undisturbed, content):
    run_in(tmp_path)
    (tmp_path / "done.json").write_bytes(content)
    ends_the_same(tmp_path, undisturbed)


def test_a_done_run_with_a_damaged_end_is_mended(tmp_path, undisturbed):
    run_in(tmp_path)
    flip(tmp_path / "checkpoints/step-00000020.safetensors", -1)
    ends_the_same(tmp_path, undisturbed)


# --- folders of others ----------------------------------------------------------------------------


def as_a_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_a_device(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def as_a_link(path, place):
    path.replace(place)
    path.symlink_to(place)


@pytest.fixture
def seconds():
    """No longer than ten of them: one that waits for a pipe waits for ever."""

    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


SPECIAL = {"a pipe": as_a_pipe, "a device": as_a_device}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes in folders")
@pytest.mark.usefixtures("seconds")
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
class TestSpecialFiles:
    def test_in_place_of_the_configuration(self, tmp_path, make):
        make(stopped(tmp_path) / "config.json")
        with pytest.raises(RunError, match=r"config.json cannot be read: it is not a regular file"):
            run_in(tmp_path)

    def test_in_place_of_the_metrics(self, tmp_path, make):
        make(stopped(tmp_path) / "metrics.jsonl")
        with pytest.raises(RunError, match=r"metrics.jsonl .*expected a regular file.*Remove"):
            run_in(tmp_path)

    def test_in_place_of_a_checkpoint(self, tmp_path, undisturbed, make, capsys):
        path = stopped(tmp_path) / "checkpoints/step-00000010.safetensors"
        make(path)
        ends_the_same(tmp_path, undisturbed)
        assert f"{path} is damaged (it cannot be read: it is not a reg" in capsys.readouterr().err

    def test_in_place_of_the_mark_of_the_end(self, tmp_path, undisturbed, make):
        run_in(tmp_path)
        make(tmp_path / "done.json")
        ends_the_same(tmp_path, undisturbed)

    def test_in_place_of_the_lock(self, tmp_path, make):
        make(stopped(tmp_path) / "lock")
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
def test_links_in_a_run_lead_nowhere(tmp_path, name, resume):
    """A run continues in, truncates and removes what lies in its own folder."""
    other = stopped(tmp_path / "other")
    (other / "tensorboard").mkdir()
    (other / "tensorboard/mine").touch()
    before = sample_files.listing(other)
    folder = stopped(tmp_path / "run")
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(other / name)
    with pytest.raises(RunError, match=rf"{name} is a link; expected a .*Remove"):
        run_in(folder, resume=resume, tensorboard=True)
    assert sample_files.listing(other) == before
    path.unlink()
    run_in(folder)


def test_links_that_are_only_read_are_followed(tmp_path, undisturbed):
    stopped(tmp_path)
    as_a_link(tmp_path / "config.json", tmp_path / "configuration")
    as_a_link(tmp_path / "checkpoints/step-00000010.safetensors", tmp_path / "ten")
    os.remove(tmp_path / "checkpoints/step-00000005.safetensors")
    ends_the_same(tmp_path, undisturbed)
    assert (tmp_path / "ten").exists()


def test_a_link_to_a_folder_is_one(tmp_path, undisturbed):
    stopped(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    ends_the_same(tmp_path / "link", undisturbed)


# --- a full disk ----------------------------------------------------------------------------------


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing_at(number, function, instead):
    """`function`, but the call of that number is `instead`."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return (instead if len(calls) == number else function)(*arguments)

    return counted, calls


def complaint(folder, **options):
    """What a run says that cannot be written; None where it can."""
    try:
        run_in(folder, **options)
    except WriteError as error:
        return str(error)
    return None


@pytest.mark.parametrize("tensorboard", [False, True])
def test_wherever_the_disk_is_full_the_run_can_go_on(tmp_path, undisturbed, tensorboard):
    """Every write to the disk fails once; the configuration is the first, the end the last."""
    for number in range(1, 99):
        folder = tmp_path / str(number)
        fails, calls = failing_at(number, os.fsync, full)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            said = complaint(folder, tensorboard=tensorboard)
        assert not list(folder.rglob(".*.part"))
        if len(calls) < number:
            break
        assert said == f"{folder} {FULL}"
        assert not (folder / "done.json").exists()
        ends_the_same(folder, undisturbed, tensorboard=tensorboard)
    assert number == (15 if tensorboard else 11)  # after the last


@pytest.mark.parametrize("number", [1, 2, 4])
def test_half_a_line_fits_on_the_disk(tmp_path, undisturbed, monkeypatch, number):
    def half(file, content):
        file.write(content[: len(content) // 2])
        full()

    with monkeypatch.context() as patch:
        patch.setattr(_metrics, "write_all", failing_at(number, _metrics.write_all, half)[0])
        with pytest.raises(WriteError, match="the disk is full"):
            run_in(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == undisturbed[1][
        : (tmp_path / "metrics.jsonl").stat().st_size
    ]
    ends_the_same(tmp_path, undisturbed)


def test_what_is_written_in_pieces_is_whole():
    class Slow:
        content = b""

        def write(self, rest):
            self.content += bytes(rest[:3])
            return len(rest[:3])

    file = Slow()
    _metrics.write_all(file, b"ten bytes.")
    assert file.content == b"ten bytes."


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path):
    """Sixteen pages of 4 KiB, where one may mount such a thing."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", place]
    if not shutil.which("mount") or not mount(*options):
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_disk_that_is_full(disk, undisturbed):
    """With no page left for the first file, with one, and so on until all of it fits."""
    ends = []
    for pages in range(16):
        folder, filler = disk / "run", disk / "filler"
        filler.write_bytes(bytes(4096 * (16 - pages)))
        said = complaint(folder)
        assert said in (None, f"{folder} {FULL}")
        assert not list(disk.rglob(".*.part"))
        ends.append("full" if said else "done")
        filler.unlink()
        ends_the_same(folder, undisturbed)
        shutil.rmtree(folder)
    assert ends[:4] == ["full"] * 4
    assert ends[-1] == "done"
    assert ends == sorted(ends, reverse=True)


def test_an_answer_on_a_full_disk_leaves_the_one_before(disk):
    def answer(text, size):
        with answering(disk / "found") as folder:
            write_atomically(folder / "forecast.csv", text * size)
            write_summary(folder, {"command": "fit"})

    answer("a", 10)
    with pytest.raises(WriteError) as error:
        answer("b", 99999)
    assert str(error.value) == f"{disk / 'found'} {FULL}"
    assert [p.name for p in disk.iterdir()] == ["found"]
    assert (disk / "found/forecast.csv").read_text() == "a" * 10
    answer("b", 10)
    assert (disk / "found/forecast.csv").read_text() == "b" * 10


@pytest.mark.slow
def test_a_fit_on_a_full_disk(disk, lagrax_command, tmp_path):
    ts = np.linspace(0, 6, 31)
    rows = [f"{t:.3f},{np.exp(-t):.6f}" for t in ts]
    (tmp_path / "x.csv").write_text("\n".join(["t,x", *rows]) + "\n")
    line = ["fit", "x.csv", "--field", "library", "--ensemble", "1", "--forecast", "3", "--out"]
    assert lagrax_command(*line, "undisturbed")[0] == 0
    code, out, err = lagrax_command(*line, str(disk / "found"))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == f"{disk / 'found'} {FULL}"
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


@pytest.mark.slow
def test_a_sweep_on_a_full_disk(disk, reproduction_command, kills, tmp_path):
    kills.write_images(tmp_path / "mnist")
    line = "images --quick --epochs 1 --model NODE --data mnist --out"
    code, out, err = reproduction_command(*line.split(), str(disk))
    assert (code, out) == (1, "")
    (run,) = (disk / "images-quick/runs").glob("mnist*")
    assert err.splitlines()[-1] == f"{run} {FULL}"
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


# --- a folder that cannot be written --------------------------------------------------------------


def test_on_a_disk_to_read_from(disk, undisturbed):
    folder = disk / "run"
    stopped(folder)
    assert mount("-o", "remount,ro", disk)
    for place in (folder, disk / "new"):
        with pytest.raises(WriteError) as error:
            run_in(place)
        assert str(error.value) == (
            f"{place} cannot be written: that is not allowed (Read-only file system). Change it, "
            "or choose another place."
        )
    assert mount("-o", "remount,rw", disk)
    ends_the_same(folder, undisturbed)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="may write everywhere")
def test_in_a_folder_of_somebody_else(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(WriteError, match=r"that is not allowed \(Permission denied\)"):
            run_in(tmp_path / "run")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_where_a_file_is(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    sentence = (
        f"{tmp_path / name} cannot be written: a file is where a folder should be. Move it, or "
        "choose another place."
    )
    with pytest.raises(WriteError) as error:
        run_in(tmp_path / name)
    assert str(error.value) == sentence
    with pytest.raises(WriteError) as error, sweeps._claim(tmp_path / name / "run"):
        pass
    assert "a file is where a folder should be" in str(error.value)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", [10, 20])
def test_a_folder_that_vanishes(tmp_path, undisturbed, monkeypatch, step, again):
    """Or is another one of the same name."""
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
        with pytest.raises(WriteError) as error:
            run_in(folder)
    assert str(error.value) == (
        f"{folder} cannot be written: it is gone. See who removed it, and run the same again."
    )
    assert not (folder / "checkpoints").exists()
    ends_the_same(folder, undisturbed)


def test_a_disk_that_fails(tmp_path, monkeypatch, undisturbed):
    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_at(4, os.fsync, fails)[0])
        with pytest.raises(WriteError, match=r"written: Input/output error\. See to that, and run"):
            run_in(tmp_path)
    ends_the_same(tmp_path, undisturbed)


# --- files and answers ----------------------------------------------------------------------------


def test_atomic_write_leaves_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError) as error:
        write_atomically(path, "after")
    assert str(error.value) == f"{path} {FULL}"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_two_writers_of_one_file(tmp_path, monkeypatch):
    """Of one process here; on several machines processes may have the same number."""
    path, ready = tmp_path / "figure.json", threading.Barrier(2, timeout=10)
    fsync = os.fsync
    # Both have written what they write before either gives it its name.
    monkeypatch.setattr(os, "fsync", lambda number: (fsync(number), ready.wait()))
    texts = ["a" * 10_000, "b" * 20_000]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda text: write_atomically(path, text), texts))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_the_outermost_place_is_named():
    with pytest.raises(WriteError) as error, _files.writing(Path("a")), _files.writing(Path("a/b")):
        full()
    assert str(error.value) == f"a {FULL}"
    assert isinstance(error.value.__cause__, OSError)


def test_a_command_says_it_in_one_line(tmp_path, lagrax_command, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    code, out, err = lagrax_command("simulate", "linear", "--csv", "x.csv")
    assert (code, out, err) == (1, "", f"x.csv {FULL}\n")


def write_answer(folder, text, *names):
    with answering(folder) as inside:
        for name in names:
            write_atomically(inside / name, text)
        write_summary(inside, {"command": "fit"})


def test_killed_while_answers_change_places(tmp_path, monkeypatch):
    folder = tmp_path / "found"
    write_answer(folder, "old", "a", "b", "model/model.json", "report.html")
    replace = os.replace

    def killed(source, target):
        if Path(target) == folder / "b":
            raise Stop
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Stop):
            write_answer(folder, "new", "a", "b", "c", "report.html")
    assert (folder / "a").read_text() == "new"
    assert (folder / "b").read_text() == (folder / "report.html").read_text() == "old"
    assert _answers.is_unfinished(folder)
    with pytest.raises(analysing.AnalyseError, match=r"holds parts of two answers, .* again\."):
        analysing._learned(folder, {})
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


def test_answers_of_ended_processes_are_swept(tmp_path):
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


# --- the clock ------------------------------------------------------------------------------------


class JumpingClock:
    """Hours and days forwards and backwards between any two looks at it."""

    def __init__(self, seed):
        self.rng, self.now = random.Random(seed), 1.8e9

    def __call__(self):
        self.now += self.rng.choice([-86400 * 30, -3600, 0.001, 3600, 86400 * 30])
        return self.now


def test_the_wall_clock_may_jump(tmp_path, undisturbed, monkeypatch):
    stopped(tmp_path)
    future = time.time() + 1e8
    for path in (*tmp_path.rglob("*"), tmp_path):
        os.utime(path, (future, future))
    os.utime(tmp_path / "checkpoints/step-00000010.safetensors", (0, 0))
    began = time.monotonic()
    monkeypatch.setattr(time, "time", JumpingClock(0))
    trained = ends_the_same(tmp_path, undisturbed, tensorboard=True)
    assert 0 < trained.seconds < 60 + time.monotonic() - began


@pytest.mark.parametrize("seed", [1, 2])
def test_even_the_other_clock_may_jump(tmp_path, undisturbed, monkeypatch, seed):
    """As that of a machine that was asleep, or moved to another one, does."""

    class Time:
        monotonic = JumpingClock(seed)

    monkeypatch.setattr(_train, "time", Time)
    for folder, interval in ((tmp_path / "often", 0.0), (tmp_path / "seldom", 10.0)):
        trained = ends_the_same(folder, undisturbed, checkpoint_seconds=interval)
        assert trained.seconds >= 0
        assert json.loads((folder / "done.json").read_text())["seconds"] >= 0


# --- when checkpoints are written -----------------------------------------------------------------


class Ticking:
    """A clock that goes on by a second whenever it is looked at."""

    now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_the_seconds_of_all_attempts_count(tmp_path, monkeypatch):
    monkeypatch.setattr(_train, "time", Ticking())
    first, more = (run_in(tmp_path, steps=steps).seconds for steps in (20, 25))
    assert first >= 4
    assert more > first


def test_checkpoints_are_as_far_apart_as_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(_train, "time", Ticking())
    saved, save = [], RunFolder.save

    def noted(self, step, state, seconds):
        saved.append((step, seconds))
        save(self, step, state, seconds)

    monkeypatch.setattr(RunFolder, "save", noted)
    run_in(tmp_path, steps=20, block=1, checkpoint_seconds=7.5)
    assert saved[-1][0] == 20
    assert 2 < len(saved) < 8
    assert np.all(np.diff([seconds for _, seconds in saved[:-1]]) >= 7)


def test_a_last_checkpoint_however_short_the_run(tmp_path):
    run_in(tmp_path, checkpoint_seconds=1e9)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert names == ["step-00000020.safetensors"]
