"""Launchers of tasks: in this process in their order, or on Ray with workers that die."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.small_run import check_same, run_in

from lagrax.training import _launchers
from lagrax.training._files import WriteError
from lagrax.training._launchers import WorkerDied, launch
from reproduction import __main__ as command

TESTS = Path(__file__).parent
SOAK = TESTS.parents[1] / "results" / "soak"


def double(number):
    return 2 * number


def raise_write_error(path):
    raise WriteError(f"{path} cannot be written.")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(folder, kills):
    """Kills its process after the second block, in the first `kills` attempts."""
    attempts = folder.parent / "attempts"
    with attempts.open("a") as file:
        file.write(f"{os.getpid()}\n")
    left = kills - len(attempts.read_text().splitlines())
    found = run_in(folder, stop=_Killer() if left >= 0 else None)
    return found.model, found.metrics["loss"].values.tolist()


class _Killer:
    """Kills the process after the second block."""

    def __init__(self):
        self.blocks = 0

    def is_set(self):
        self.blocks += 1
        if self.blocks == 2:
            die()
        return False


# --- here -----------------------------------------------------------------------------------------


def test_here_tasks_run_in_order():
    tasks = launch("here", double, [(3,), (1,), (2,)])
    assert list(tasks) == [(0, 6), (1, 2), (2, 4)]
    assert list(launch("here", double, [])) == []


def test_here_tasks_start_when_the_result_before_is_used():
    begun = []
    for number, _ in launch("here", begun.append, [(0,), (1,)]):
        assert begun == list(range(number + 1))


def test_missing_ray_names_its_extra(reproduction_command, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = "images --quick --model NODE --launcher ray --data ."
    code, out, err = reproduction_command(*line.split())
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == 'This needs ray: pip install "lagrax[ray]"'


def test_another_launcher_is_refused(reproduction_command):
    code, out, err = reproduction_command("images", "--launcher", "slurm")
    assert (code, out) == (2, "")
    assert err.endswith("No launcher 'slurm': choose one of here, ray.\n")


# --- ray ------------------------------------------------------------------------------------------


class _Errors:
    class RayTaskError(Exception):
        cause = WriteError("x cannot be written.")

    class WorkerCrashedError(Exception): ...

    class NodeDiedError(Exception): ...

    class OutOfMemoryError(Exception): ...

    class LocalRayletDiedError(Exception): ...


class _Ray:
    """The part of Ray that a launcher uses. Tasks end from the last to the first."""

    exceptions = _Errors

    def __init__(self, initialised=False, gpus=0):
        self.initialised, self.gpus, self.asked = initialised, gpus, {}

    def is_initialized(self):
        return self.initialised

    def init(self, **options):
        self.initialised = True

    def shutdown(self):
        self.initialised = False

    def cluster_resources(self):
        return {"CPU": 2.0} | ({"GPU": self.gpus} if self.gpus else {})

    def remote(self, **options):
        self.asked = options

        class Remote:
            def __init__(self, task):
                self.remote = lambda *given: lambda: task(*given)

        return Remote

    def wait(self, waiting):
        return waiting[-1:], waiting[:-1]

    def get(self, ended):
        return ended()


@pytest.fixture
def fake_ray(monkeypatch):
    def make(**options):
        ray = _Ray(**options)
        monkeypatch.setattr(_launchers, "load", {"ray": ray}.__getitem__)
        return ray

    return make


def test_results_come_in_the_order_of_their_ends(fake_ray):
    ray = fake_ray()
    assert list(launch("ray", double, [(3,), (1,)])) == [(1, 2), (0, 6)]
    assert ray.asked == {"num_cpus": 1, "num_gpus": 0, "max_retries": 3}
    assert not ray.initialised


def test_tasks_reserve_gpus_if_there_are_any(fake_ray):
    ray = fake_ray(initialised=True, gpus=8)
    assert list(launch("ray", double, [(3,)], gpus=2)) == [(0, 6)]
    assert ray.asked["num_gpus"] == 2
    assert ray.initialised, "a cluster that was there before stays"


@pytest.mark.parametrize("kind", ["WorkerCrashedError", "NodeDiedError", "OutOfMemoryError"])
def test_task_that_always_dies_is_named(fake_ray, kind):
    ray = fake_ray()

    def fails():
        raise getattr(_Errors, kind)

    sentence = (
        r"Task 1 of 1 ended with its worker 4 times\. Finished work is kept\. Find what kills it"
    )
    with pytest.raises(WorkerDied, match=sentence):
        list(launch("ray", fails, [()]))
    assert not ray.initialised


@pytest.mark.parametrize("error", [_Errors.LocalRayletDiedError("it died"), OSError("Broken pipe")])
def test_killed_raylet_is_reported(fake_ray, error):
    """Older versions of Ray raise an OSError for it."""
    ray = fake_ray()

    def fails():
        raise error

    sentence = r"^Task 2 of 2 ended because Ray's own process on its .* died\. Finished work"
    with pytest.raises(WorkerDied, match=sentence):
        list(launch("ray", fails, [(), ()]))
    assert not ray.initialised


def test_error_of_a_task_is_raised_as_it_is(fake_ray):
    fake_ray()

    def fails():
        raise _Errors.RayTaskError("a long story")

    with pytest.raises(WriteError) as error:
        list(launch("ray", fails, [()]))
    assert type(error.value) is WriteError
    assert str(error.value) == "x cannot be written."


# --- a cluster, for real --------------------------------------------------------------------------

# In separate processes, since Ray reads where it may listen when it is imported.
BEGIN = """
from pathlib import Path
from lagrax.training._launchers import launch
import test_launchers as t
"""


def python(code):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (*TESTS.parents[:2], TESTS)))
    }
    command = [sys.executable, "-c", BEGIN + code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    return run


@pytest.mark.slow
def test_training_of_a_killed_worker_is_retried_and_resumed(tmp_path):
    code = f"""
import pickle
folder = Path({str(tmp_path)!r})
found = dict(launch("ray", t.train_and_die, [(folder / "run", 2), (folder / "other" / "run", 0)]))
(folder / "found").write_bytes(pickle.dumps(found))
"""
    (tmp_path / "other").mkdir()
    run = python(code)
    assert run.stderr == ""
    found = pickle.loads((tmp_path / "found").read_bytes())
    undisturbed = run_in(tmp_path / "undisturbed")
    assert len(set((tmp_path / "attempts").read_text().splitlines())) == 3
    for model, losses in found.values():
        check_same(model, undisturbed.model)
        assert losses == undisturbed.metrics["loss"].values.tolist()
    one, other = (tmp_path / x / "metrics.jsonl" for x in ("run", "undisturbed"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_a_task_that_always_dies_on_ray():
    code = """
from lagrax.training._files import WriteError
try:
    list(launch("ray", t.die, [()]))
except t.WorkerDied as error:
    print(error)
import ray
assert not ray.is_initialized()
try:
    list(launch("ray", t.raise_write_error, [("x",)]))
except WriteError as error:
    print(error)
"""
    run = python(code)
    first, second = run.stdout.splitlines()
    assert first.startswith("Task 1 of 1 ended with its worker 4 times. Finished work is kept.")
    assert second == "x cannot be written."
    assert run.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks into /proc")
def test_new_cluster_listens_to_this_machine_alone():
    code = """
for _ in launch("ray", t.listening, [()]):
    print(t.json.dumps(t.listening()))
"""
    before = listening()
    run = python(code)
    new = set(json.loads(run.stdout)) - set(before)
    assert new, "it listens somewhere"
    assert all(address.rpartition(":")[0].endswith("0100007F") for address in new), new
    for _ in range(50):
        if not set(listening()) & new:
            break
        time.sleep(0.1)
    assert not set(listening()) & new, "it is shut down"


def listening():
    """The addresses on which this machine listens, in the notation of Linux."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, status = line.split()[:4]
            if status == "0A":
                found.append(local)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
def test_sweep_on_ray_leaves_the_same_lines(tmp_path, load_script):
    """Even if one of its workers is killed as soon as it trains."""
    load_script(SOAK / "kills.py").write_images(tmp_path / "mnist")
    line = "images --quick --model NODE --epochs 1 --seeds 2 --data mnist --out"

    def sweep(out, *more, meanwhile=lambda process: None):
        command = [sys.executable, "-m", "reproduction", *line.split(), out, *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
            meanwhile(process)
            out, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
        return err

    killed = []

    def kill_one(process):
        while process.poll() is None and not list(tmp_path.glob("ray/*/runs/*/metrics.jsonl")):
            time.sleep(0.05)
        killed.append(workers(tmp_path)[0])
        os.kill(killed[0], signal.SIGKILL)

    sweep("here")
    said = sorted(sweep("ray", "--launcher", "ray", meanwhile=kill_one).splitlines())
    assert killed
    assert len(said) == 3, said
    assert said[0].startswith("2 of 2 runs trained, 0 done before")
    assert said[1].startswith("MNIST, NODE, seed 0: Test accuracy ")
    assert said[2].startswith("MNIST, NODE, seed 1: Test accuracy ")
    one, other = (lines(tmp_path / out) for out in ("here", "ray"))
    assert len(one) == 2
    assert one == other
    here, there = (
        {str(p.relative_to(tmp_path / x)) for p in (tmp_path / x).rglob("*") if p.is_file()}
        for x in ("here", "ray")
    )
    assert here == there
    assert "0 of 2 runs trained, 2 done before" in sweep("ray", "--launcher", "ray")
    assert lines(tmp_path / "ray") == other


def workers(folder):
    """The processes that train below a folder, found by the titles that Ray gives them."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title, where = (place / "cmdline").read_bytes(), os.readlink(place / "cwd")
        except OSError:
            continue
        if title.startswith(b"ray::train_one") and Path(where) == folder:
            found.append(int(place.name))
    return found


def lines(folder):
    """The lines without times, and without the commit, which may have changed."""
    apart = {"seconds": 0, "versions": {}}
    return {p.name: json.loads(p.read_text()) | apart for p in folder.rglob("lines/*")}


def test_command_passes_the_launcher_on(reproduction_command, monkeypatch):
    asked = {}

    def sweep(runs, folder, **options):
        asked.update(options, runs=len(runs))
        raise WorkerDied("Task 1 of 1 ended.")

    monkeypatch.setattr(command, "sweep", sweep)
    line = "images --quick --model NODE --launcher ray --devices 1"
    assert reproduction_command(*line.split()) == (1, "", "Task 1 of 1 ended.\n")
    assert (asked["launcher"], asked["devices"], asked["runs"]) == ("ray", 1, 1)
