"""Bad arguments, files and command lines of the reproduction."""

import json

import jax
import pytest
from helpers.refusals import check_call, check_command, check_files
from helpers.sample_files import line, write

from reproduction import DataError, ResultError, data, models, plan, read_result, write_report

KEY = jax.random.key(0)


def reported(folder):
    return write_report([folder], folder / "report.html")


def of_a_result(**content):
    return {"result.json": json.dumps({"experiment": "a"} | content)}


CALLS = {
    "no such model": (
        lambda: models.paper_model("RESNET", "mnist", key=KEY),
        ValueError,
        ["'RESNET'"],
    ),
    "no such images": (lambda: models.paper_size("NODE", "imagenet"), ValueError, ["'imagenet'"]),
    "intervals of no model": (lambda: models.paper_intervals("net"), ValueError, ["'net'", "NODE"]),
    "a model of a seed": (lambda: models.paper_model("NODE", "mnist", key=1), TypeError, ["key=1"]),
    "a data set in no home": (
        lambda: data.load("mnist", "~nobody-at-all/data"),
        DataError,
        ["~nobody-at-all/data", "LAGRAX_DATA"],
    ),
    "a plan of no model": (lambda: plan(["mnist"], ["NET"]), ValueError, ["'NET'", "NODE"]),
}

MANY = "9" * 400

# The files of a folder, what is done with it, the error, its words.
FILES = {
    "a result of bytes": ({"result.json": b"\xff\xfe"}, read_result, ResultError, ["result.json"]),
    "a result that is a folder": ({"result.json": None}, read_result, ResultError, ["directory"]),
    "a result with a claim in words": (
        of_a_result(claims=[{"claim": "b", "verdict": "yes"}]),
        reported,
        ResultError,
        ["result.json cannot be read", "'yes'", "$.claims[0].verdict"],
    ),
    "half a line": (
        {"a.jsonl": line() + line()[:40]},
        reported,
        ResultError,
        ["Line 2 of ", "a.jsonl", "truncated"],
    ),
    "a line without a key": (
        {"a.jsonl": line("seconds")},
        reported,
        ResultError,
        ["Line 1 of ", "a.jsonl", "missing required field `seconds`"],
    ),
    "a line of no number": (
        {"a.jsonl": line(seconds="long")},
        reported,
        ResultError,
        ["Line 1 of ", "`str` - at `$.seconds`"],
    ),
    "a line with a number too long": (
        {"a.jsonl": line(seconds=int(MANY))},
        reported,
        ResultError,
        ["Line 1 of ", "out of range - at `$.seconds`"],
    ),
    "a line with a list as steps": (
        {"lines/a.jsonl": line(steps=[1])},
        reported,
        ResultError,
        ["Line 1 of ", "`array` - at `$.steps`"],
    ),
    "a line of too few epochs": (
        {"a.jsonl": line(test_loss=[1.0])},
        reported,
        ResultError,
        ["Line 1 of ", "`test_loss` has 1 values for 3 epochs"],
    ),
    "a line without any accuracy": (
        {"a.jsonl": line(test_accuracy=[None] * 3)},
        reported,
        ResultError,
        ["Line 1 of ", "`test_accuracy` has no number at all"],
    ),
    "lines in a folder": (
        {"a.jsonl": None},
        reported,
        ResultError,
        ["a.jsonl cannot be read", "directory"],
    ),
}

AROUND = {
    "file": "mine",
    "full/thesis.tex": "years",
    "broken/population/result.json": "{",
    "lines/a.jsonl": line() + b"{}\n",
    "page.html/inside": "mine",
    "mnist/train-images-idx3-ubyte": b"\0\0\x08\x03",
}

# What is typed, the exit code, and words of the only line on stderr.
LINES = {
    "report full": (2, ["full holds no result.json"]),
    "report file": (2, ["file is no folder"]),
    "report broken": (2, ["broken/population/result.json cannot be read"]),
    "report lines": (2, ["Line 2 of lines/a.jsonl", "missing required field"]),
    "report lines absent": (2, ["absent is no folder"]),
    "report broken --out page.html": (2, ["--out page.html is a folder"]),
    "images --quick --data file": (2, ["file is no folder"]),
    "images --quick --data full": (2, ["full holds no MNIST"]),
    "images --quick --data mnist": (2, ["mnist lacks train-labels-idx1-ubyte"]),
    "images --devices 4096": (2, ["--devices 4096: JAX sees", "Leave --devices out"]),
    "images --devices 0": (2, ["'--devices'", "expected at least 1"]),
    "images --launcher slurm": (2, ["No launcher 'slurm'", "ray"]),
    "images --rtol nan": (2, ["rtol=nan", "positive"]),
    "images --epochs 0": (2, ["'--epochs'"]),
    "multiples --quick --out file": (2, ["--out file", "file is a file; expected a folder"]),
    "images --quick --out file/runs": (2, ["--out file/runs", "file is a file"]),
    "multiples --launcher ray": (2, ["No such option: --launcher"]),
    "multiples annuli": (2, ["annuli"]),
    "models NODE": (2, ["NODE"]),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)


@pytest.mark.parametrize("case", FILES)
def test_files_are_refused(case, unchecked, tmp_path):
    check_files(FILES[case], tmp_path)


@pytest.mark.parametrize("typed", LINES)
def test_command_lines_are_refused(typed, reproduction_command, tmp_path):
    check_command(LINES[typed], typed.split(), reproduction_command, tmp_path, AROUND)


def test_the_sample_line_is_valid(tmp_path):
    """Otherwise the table above would test something else."""
    write(tmp_path / "lines", {"a.jsonl": line()})
    assert "53" in reported(tmp_path / "lines").read_text()
