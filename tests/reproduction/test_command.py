"""`python -m reproduction`, as a user types it."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reproduction
from reproduction import EXPERIMENTS, conduct, multiples, read_result

COMMAND = [sys.executable, "-m", "reproduction"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nothing", "No such command 'nothing'"),
        ("multiples --seeds 0", "'--seeds': got 0; expected at least 1"),
        ("multiples --seeds many", "'--seeds': got many; expected a whole number"),
        ("multiples --epochs 3", "No such option: --epochs"),
        ("all --dataset mnist", "No such option: --dataset"),
        ("all --rtol 0", "No such option: --rtol"),
        ("images --dataset mnst", "No data set 'mnst' in the paper; it has"),
        ("images --model RESNET", "No model 'RESNET' in the paper; it has"),
        ("images --solver rk4", "No solver 'rk4': choose one of euler"),
        ("images --precision f8", "No precision 'f8': choose one of f16"),
        ("images --steps 2 --rtol 1e-3", "steps=2 and rtol=0.001: give one of them"),
        ("images --rtol 0", "rtol=0.0: expected a positive"),
        ("images --solver euler --rtol 1e-3", "euler does not estimate its error"),
        ("images --steps 0", "'--steps': got 0; expected at least 1"),
        ("report", "Missing argument"),
        ("report absent", "absent is no folder: run `python -m reproduction` first"),
        ("report .", "holds no result.json"),
        ("models --jsn", "No such option: --jsn"),
    ],
)
def test_bad_input_gets_one_sentence(reproduction_command, line, sentence):
    code, out, err = reproduction_command(*line.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_listed_sizes_equal_the_papers(reproduction_command):
    code, out, _ = reproduction_command("models", "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == 60
    assert set(rows[0]) == {"dataset", "model", "filters", "params"}
    tables = json.loads(Path(reproduction.__file__).with_name("tables.json").read_text())
    for row in rows:
        published = tables["filters_and_parameters"][row["model"]][row["dataset"]]
        assert {"filters": row["filters"], "params": row["params"]} == published
    code, out, _ = reproduction_command("models")
    assert re.search(r"cifar10 +UNPCDDE5 +40 +\d+,\d+\n", out)


@pytest.mark.parametrize("package", ["matplotlib", "plotly", "jinja2"])
@pytest.mark.parametrize("name", ["multiples", "images"])
def test_absent_packages_for_drawing_are_named_before_training(
    reproduction_command, monkeypatch, tmp_path, package, name
):
    monkeypatch.setitem(sys.modules, package, None)
    for module in list(sys.modules):
        if module.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, module)
    code, out, err = reproduction_command(name, "--quick", "--out", "runs")
    assert (code, out, err) == (2, "", f'This needs {package}: pip install "lagrax[plot]"\n')
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of finished runs."""
    out = tmp_path_factory.mktemp("finished") / "runs"
    conduct(EXPERIMENTS["multiples"], out, quick=True, progress=False)
    return out


@pytest.fixture
def runs(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "runs")


def test_a_quick_run_ends_with_finding_picture_and_report(runs, reproduction_command):
    code, out, err = reproduction_command("multiples", "--quick")
    assert code == 0
    title, finding, picture, report = out.splitlines()
    assert title.startswith("A multiple, F(x) = 16x")
    assert finding.startswith("With T = 2τ the NPCDDE learns F(x) = 16x in 6")
    assert picture == f"Picture: {runs / 'multiples-quick/figures/multiples.png'}"
    assert report == f"Report: {runs / 'report.html'}"
    assert Path(picture.removeprefix("Picture: ")).exists()
    assert (runs / "report.html").exists()
    assert "\x1b" not in out + err


def test_a_full_run_prints_verdicts(reproduction_command, monkeypatch):
    tiny = dataclasses.replace(multiples.EXPERIMENT, full=multiples.MultiplesSettings(steps=30))
    monkeypatch.setitem(EXPERIMENTS, "multiples", tiny)
    code, out, _ = reproduction_command("multiples")
    assert code == 0
    assert re.search(r"  undecided: Fitting .*: not measured, target: faster\n", out)
    assert re.search(r"  does not hold: .*: \S+ off, target: at most 0.01 off\n", out)


def test_the_answer_as_json(runs, reproduction_command):
    code, out, _ = reproduction_command("multiples", "--quick", "--json")
    (answer,) = json.loads(out)
    assert code == 0
    assert answer["experiment"] == "multiples"
    assert answer["claims"] == []
    assert answer["finding"].startswith("With T = 2τ")
    assert {"title", "columns", "rows", "note"} <= set(answer["tables"][0])
    assert Path(answer["report"]) == runs / "report.html"
    assert Path(answer["picture"]).suffix == ".png"


def test_a_report_of_finished_runs(runs, reproduction_command, tmp_path):
    code, out, _ = reproduction_command("report", "runs", "--out", "page.html", "--json")
    assert code == 0
    assert json.loads(out) == {"report": str(tmp_path / "page.html")}
    page = (tmp_path / "page.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert read_result(runs / "multiples-quick").finding in page
    assert reproduction_command("report", "runs")[1] == f"Report: {tmp_path / 'report.html'}\n"


def test_a_damaged_neighbour_does_not_hide_a_result(runs, reproduction_command):
    (runs / "old").mkdir()
    (runs / "old/result.json").write_text("{")
    code, out, err = reproduction_command("multiples", "--quick")
    assert code == 0
    assert "the NPCDDE learns" in out
    assert "Left out of the report: " in err
    assert (runs / "report.html").exists()


def test_images_that_are_not_there(reproduction_command, tmp_path):
    code, out, err = reproduction_command("images", "--quick", "--data", "absent")
    assert (code, out) == (2, "")
    assert err == "Reading MNIST\nabsent is no folder: name one that holds MNIST.\n"
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_refused(runs, reproduction_command):
    code, _, err = reproduction_command("multiples", "--quick", "--seeds", "3")
    assert code == 2
    assert "--no-resume" in err


def test_an_interrupted_run_says_how_to_resume(tmp_path):
    command = [*COMMAND, "population", "--quick", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*/*/*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("Stopped. The same command again resumes")
    assert "Traceback" not in err
    assert "\x1b" not in out + err
