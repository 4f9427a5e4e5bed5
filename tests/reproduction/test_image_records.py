"""Records of finished runs."""

import json

import numpy as np
import pytest
from helpers.image_runs import a_line, written

from reproduction import (
    ResultError,
    __main__ as cli,
)
from reproduction.images.records import encode_record, parse_record, read_records


def test_two_different_records_of_one_run_are_refused(tmp_path):
    written(tmp_path, a_line(best=50.0), a_line("mnist"))
    written(tmp_path / "lines", a_line(best=50.0))
    assert [(x.dataset, x.best) for x in read_records(tmp_path)] == [
        ("cifar10", 50.0),
        ("mnist", 53.0),
    ]
    written(tmp_path / "lines", a_line(best=51.0), name="other.jsonl")
    with pytest.raises(ResultError, match=r"line 1 of .*some.jsonl and line 1 of .*lines/other"):
        read_records(tmp_path)


def test_blank_lines_are_skipped(tmp_path):
    path = written(tmp_path, a_line()) / "some.jsonl"
    path.write_text(f"\n{path.read_text()}\n  \n{json.dumps(a_line(seed=1))}")
    assert [record.seed for record in read_records(tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "malformed|truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field"),
        (json.dumps(a_line() | {"nfe": [1]}), "`nfe` has 1 values for 30 epochs"),
        (json.dumps(a_line() | {"test_loss": ["low"] * 30}), r"Expected numbers .*test_loss"),
        (json.dumps(a_line() | {"model": "RESNET"}), "the paper has no 'RESNET' on 'cifar10'"),
        (json.dumps(a_line() | {"solver": "rk4"}), "No solver 'rk4'"),
        (json.dumps(a_line() | {"seed": "0"}), r"`str` .*seed"),
        (json.dumps({k: v for k, v in a_line().items() if k != "device"}), "`device`"),
        (
            json.dumps(a_line(best=9700.0, fine_accuracy=None)),
            "`test_accuracy` has 9,700, which is no percentage",
        ),
        (json.dumps(a_line(fine_accuracy=-1.0)), "fine_accuracy"),
        (json.dumps(a_line(params=3)), r"`params` is 3, but NODE has [\d,]+"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, bad, why):
    folder = written(tmp_path, a_line())
    with (folder / "some.jsonl").open("a") as file:
        file.write(bad + "\n")
    with pytest.raises(ResultError, match=rf"Line 2 of .*some\.jsonl is no finished run \(.*{why}"):
        read_records(folder)
    assert cli.run(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 2
    assert not (tmp_path / "page.html").exists()


def test_numbers_that_are_not_finite_are_null():
    line = json.dumps(a_line() | {"test_loss": [None, *[1.0] * 29]})
    record = parse_record(line)
    assert np.isnan(record.test_loss[0])
    record.test_loss[1] = np.inf
    assert json.loads(encode_record(record))["test_loss"][:3] == [None, None, 1.0]
