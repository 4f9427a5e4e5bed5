"""Protocols, plans and sweeps over many runs."""

import json
import threading

import pytest
from helpers.image_runs import BRIEF, same_but_for_time, some_images

from lagrax.plotting._matplotlib import write_figures
from lagrax.training import TrainingError
from reproduction import (
    __main__ as cli,
    plan,
    sweep,
)
from reproduction.images import (
    Protocol,
    default_protocol,
)
from reproduction.images.records import parse_record, read_records
from reproduction.images.statistics import SEEDS
from reproduction.images.sweeps import QUICK
from reproduction.images.training import train_run
from reproduction.models import DATASETS

pytestmark = pytest.mark.usefixtures("tiny_models")
QUIETLY = {"progress": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "rk4", "steps": 1}, "No solver 'rk4': choose one of euler, "),
        ({"solver": "euler", "steps": 1, "precision": "f8"}, "No precision 'f8': choose one of"),
        ({"solver": "tsit5"}, "steps=None and rtol=None: give one of them"),
        ({"solver": "tsit5", "steps": 1, "rtol": 0.1}, "steps=1 and rtol=0.1: give one of them"),
        ({"solver": "tsit5", "rtol": 0.0}, "rtol=0.0: expected a positive"),
        ({"solver": "euler", "rtol": 0.1}, "euler does not estimate its error"),
    ],
)
def test_invalid_protocols_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Protocol(**options)


def test_full_plan_has_the_order_of_the_tables():
    runs = plan(precision="f16")
    assert len(runs) == 60 * SEEDS
    assert len({run.name for run in runs}) == len(runs)
    cells = list(dict.fromkeys((run.dataset, run.model) for run in runs))
    assert cells[:2] == [("cifar10", "NODE"), ("cifar10", "NDDE")]
    assert [d for d, m in cells if "+" not in m] == [d for d in DATASETS for _ in range(8)]
    assert ["+" in m for _, m in cells] == [False] * 24 + [True] * 36
    assert [run.seed for run in runs[:6]] == [0, 1, 2, 3, 4, 0]
    assert all(run.protocol == default_protocol(run.model) for run in runs)


def test_plan_changes_the_protocol():
    (run,) = plan(["mnist"], ["NODE"], 1, rtol=1e-4, epochs=7)
    assert (run.protocol.solver, run.protocol.steps, run.protocol.rtol) == ("dopri5", None, 1e-4)
    # Without an accelerator.
    assert (run.protocol.epochs, run.protocol.precision) == (7, "f32")
    (run,) = plan(["mnist"], ["NPCDDE3"], 1, solver="bosh3", precision="bf16")
    assert (run.protocol.solver, run.protocol.steps) == ("bosh3", 2)
    assert run.protocol.precision == "bf16"
    assert len(plan(["all"], ["NODE"], 2)) == 6
    assert len(plan(["mnist"], ["all"], 1)) == 20
    assert [(r.dataset, r.model) for r in plan(quick=True)] == [("mnist", m) for m in QUICK.models]
    with pytest.raises(ValueError, match="No model 'RESNET' in the paper"):
        plan(["mnist"], ["RESNET"])


@pytest.fixture
def _own_data(monkeypatch):
    """Made-up images, and quick runs that measure little."""
    monkeypatch.setattr("reproduction.data.load", lambda dataset, folder: some_images())
    quick = QUICK._replace(protocol=lambda model: BRIEF)
    monkeypatch.setattr("reproduction.images.sweeps.QUICK", quick)
    # Drawing takes longer than training here.
    monkeypatch.setattr("reproduction.images.sweeps.write_figures", lambda *_: None)


def few(**changes):
    """Two models, two seeds."""
    return plan(seeds=2, quick=True, **{"epochs": 1} | changes)


@pytest.mark.usefixtures("_own_data")
def test_a_sweep_trains_the_remaining_runs(tmp_path, monkeypatch, capsys):
    runs = few()
    assert sweep(runs[:1], tmp_path, **QUIETLY)[1:5] == (1, 0, 0, 0)
    (path,) = (tmp_path / "lines").iterdir()
    first = path.read_text()
    assert path.name == f"{runs[0].name}.jsonl"
    # Stopped at the second run of what is left.
    trained = []

    def stopped(run, *arguments, **options):
        if trained:
            raise KeyboardInterrupt
        trained.append(run)
        return train_run(run, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("reproduction.images.sweeps.train_run", stopped)
        with pytest.raises(KeyboardInterrupt):
            sweep(runs, tmp_path, **QUIETLY)
    assert trained == [runs[1]]
    capsys.readouterr()
    assert sweep(runs, tmp_path)[1:5] == (2, 2, 0, 0)
    err = capsys.readouterr().err
    assert "MNIST, NODE, seed 1: run 4 of 4" in err
    assert "2 of 4 runs trained, 2 done before" in err
    assert path.read_text() == first
    assert {line.run for line in read_records(tmp_path)} == set(runs)
    models = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")}
    assert models == {f"runs/{run.name}/model.safetensors" for run in runs}
    assert not list(tmp_path.rglob("metrics.jsonl"))
    # Other protocols are other runs; what is done may be done again.
    assert sweep(few(epochs=2)[:1], tmp_path, **QUIETLY).trained == 1
    assert sweep(runs[:1], tmp_path, resume=False, **QUIETLY).trained == 1
    assert same_but_for_time(parse_record(path.read_text()), parse_record(first))


def test_a_full_sweep_on_a_cpu_is_warned_about(tmp_path, monkeypatch, capsys):
    def failed(*arguments, **options):
        raise TrainingError("not here")

    monkeypatch.setattr("reproduction.data.load", lambda dataset, folder: some_images())
    monkeypatch.setattr("reproduction.images.sweeps.train_run", failed)
    for quick in (False, True):
        sweep(plan(["mnist"], ["NODE"], 1, quick=quick), tmp_path)
        assert ("an epoch takes minutes and a run hours" in capsys.readouterr().err) != quick


@pytest.mark.usefixtures("_own_data")
def test_finished_runs_need_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.images.sweeps.write_figures", write_figures)
    runs = few()[:1]
    sweep(runs, tmp_path, **QUIETLY)
    (path,) = (tmp_path / "lines").iterdir()
    path.rename(tmp_path / "collected.jsonl")
    monkeypatch.setattr("reproduction.data.load", lambda *_: 1 / 0)
    assert sweep(runs, tmp_path, **QUIETLY)[1:5] == (0, 1, 0, 0)
    assert (tmp_path / "figures/other-curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ZeroDivisionError):
        sweep(few()[:2], tmp_path, **QUIETLY)


@pytest.mark.usefixtures("_own_data")
def test_sweeps_share_a_folder(tmp_path):
    runs, ended = few(), []
    both = [
        threading.Thread(target=lambda r: ended.append(sweep(r, tmp_path, **QUIETLY)), args=[r])
        for r in (runs, runs[::-1])
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(ended) == 2
    assert sum(end.trained for end in ended) == len(runs)
    assert len(list((tmp_path / "lines").iterdir())) == len(runs)


@pytest.mark.usefixtures("_own_data")
def test_a_run_of_another_process_is_left_to_it(tmp_path, capsys):
    import filelock

    runs = few()[:2]
    (tmp_path / "runs").mkdir()
    with filelock.FileLock(tmp_path / "runs" / f".{runs[0].name}.lock"):
        assert sweep(runs, tmp_path)[1:5] == (1, 0, 1, 0)
    assert "Another process is training it: left to that." in capsys.readouterr().err
    assert sweep(runs, tmp_path, **QUIETLY)[1:5] == (1, 1, 0, 0)


@pytest.mark.usefixtures("_own_data")
def test_a_failed_run_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    def failing(run, *arguments, **options):
        if run.model == "UNPCDDE2":
            raise TrainingError("The loss is not finite from step 7 on.")
        return train_run(run, *arguments, **options)

    monkeypatch.setattr("reproduction.images.sweeps.train_run", failing)
    assert sweep(few(), tmp_path)[1:5] == (2, 0, 0, 2)
    assert "It failed: The loss is not finite from step 7 on." in capsys.readouterr().err
    line = ["images", "--quick", "--epochs", "1", "--out", str(tmp_path / "runs")]
    assert cli.run([*line, "--model", "NODE", "--model", "UNPCDDE2"]) == 1
    assert "No claim" not in capsys.readouterr().out
    # With nothing to report, it says so and ends.
    line[-1] = str(tmp_path / "other")
    assert cli.run([*line, "--model", "UNPCDDE2"]) == 1
    assert "0 of 1 runs trained" in capsys.readouterr().err


@pytest.mark.usefixtures("_own_data")
def test_the_command_reports_its_runs(tmp_path, capsys):
    line = ["images", "--quick", "--epochs", "1", "--out", str(tmp_path)]
    assert cli.run([*line, "--model", "NODE", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["folder"] == str(tmp_path / "images-quick")
    assert answer["quick"]
    page = (tmp_path / "report.html").read_text()
    assert "Runs of other settings" in page
    assert "Table 1" not in page
