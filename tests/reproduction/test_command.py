"""`python -m reproduction`, as a user types it."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reproduction
from reproduction import read_result

COMMAND = [sys.executable, "-m", "reproduction"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nothing", "No such command 'nothing'"),
        ("multiples --seeds 0", "'--seeds': Input should be greater than or equal to 1"),
        ("multiples --seeds many", "'--seeds': Input should be a valid integer"),
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
        ("images --steps 0", "'--steps': Input should be greater than or equal to 1"),
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


def test_models_are_the_paper_s(reproduction_command):
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


@pytest.mark.parametrize("package", ["matplotlib", "plotly"])
@pytest.mark.parametrize("name", ["multiples", "images"])
def test_what_draws_is_asked_for_before_training(
    reproduction_command, monkeypatch, tmp_path, package, name
):
    monkeypatch.setitem(sys.modules, package, None)
    for module in list(sys.modules):
        if module.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, module)
    code, out, err = reproduction_command(name, "--quick", "--out", "runs")
    assert (code, out, err) == (2, "", f'This needs {package}: pip install "lagrax[plot]"\n')
    assert not (tmp_path / "runs").exists()


def test_reproduce_then_report(reproduction_command, tmp_path):
    code, out, _ = reproduction_command("multiples", "--quick", "--json", "--out", "runs")
    (answer,) = json.loads(out)
    assert code == 0
    assert answer["experiment"] == "multiples"
    assert {"claim", "value", "bar", "holds"} <= set(answer["claims"][0])
    assert {"title", "columns", "rows", "note"} <= set(answer["tables"][0])
    assert Path(answer["report"]) == tmp_path / "runs/report.html"
    result = read_result(tmp_path / "runs/multiples-quick")
    assert result.quick
    code, out, err = reproduction_command("multiples", "--quick", "--out", "runs")
    assert code == 0
    assert "holds: " in out
    assert f"Report: {tmp_path / 'runs/report.html'}" in out
    assert "\x1b" not in out + err
    code, out, _ = reproduction_command("report", "runs", "--out", "page.html", "--json")
    assert code == 0
    page = (tmp_path / "page.html").read_text()
    assert Path(json.loads(out)["report"]).name == "page.html"
    assert result.claims[0].claim.split(":")[0][:20] in page
    assert reproduction_command("report", "runs")[1] == f"Report: {tmp_path / 'report.html'}\n"


def test_a_damaged_neighbour_does_not_hide_a_result(reproduction_command, tmp_path):
    (tmp_path / "runs/old").mkdir(parents=True)
    (tmp_path / "runs/old/result.json").write_text("{")
    code, out, err = reproduction_command("multiples", "--quick", "--out", "runs")
    assert code == 0
    assert "holds: " in out
    assert "Left out of the report: " in err
    assert (tmp_path / "runs/report.html").exists()


def test_images_that_are_not_there(reproduction_command, tmp_path):
    code, out, err = reproduction_command("images", "--quick", "--data", "absent")
    assert (code, out) == (2, "")
    assert err == "Reading MNIST\nabsent is no folder: name one that holds MNIST.\n"
    assert list(tmp_path.iterdir()) == []


def test_other_settings_are_refused(reproduction_command):
    line = ["multiples", "--quick", "--out", "runs"]
    assert reproduction_command(*line)[0] == 0
    code, _, err = reproduction_command(*line, "--seeds", "3")
    assert code == 2
    assert "--no-resume" in err


def test_interrupted_it_says_how_to_continue(tmp_path):
    command = [*COMMAND, "population", "--quick", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*/*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("Stopped. The same command again continues")
    assert "Traceback" not in err
    assert "\x1b" not in out + err
