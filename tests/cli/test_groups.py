"""Several series in one table, inputs that are known in advance, and `lagrax predict`."""

import csv
import json

import numpy as np
import pytest

from lagrax._cli.fit import fit_table
from lagrax._cli.fit_options import FitOptions
from lagrax._cli.units import Duration

RATE = 0.5


def write_rows(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def solve(x0, us, gap=0.5):
    """x' = u − x / 2 by its closed form, with inputs held for `gap`."""
    xs = [x0]
    for u in us[:-1]:
        rest = u / RATE
        xs.append(rest + (xs[-1] - rest) * np.exp(-RATE * gap))
    return np.array(xs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A fit to five patients, each with a constant weight, and inputs for the hours after them."""
    folder = tmp_path_factory.mktemp("groups")
    rng, rows = np.random.default_rng(0), []
    for patient in "abcde":
        us = rng.integers(0, 4, 11)
        xs = solve(rng.uniform(1, 5), us)
        rows += [[patient, 70, 0.5 * k, x, u] for k, (x, u) in enumerate(zip(xs, us, strict=True))]
    header = ["patient", "weight", "hour", "drug", "rate"]
    write_rows(folder / "doses.csv", header, rows)
    write_rows(folder / "later.csv", ["hour", "rate"], [[5.5, 3], [6.0, 1], [6.5, 1]])
    options = FitOptions(
        by="patient",
        inputs=["rate"],
        future=folder / "later.csv",
        field="library",
        degree=1,
        ensemble=1,
        forecast=Duration(3),
    )
    fit_table(folder / "doses.csv", folder / "fit", options)
    return folder


def test_one_equation_is_fitted_to_all_series(folder):
    summary = json.loads((folder / "fit/summary.json").read_text())
    assert summary["equations"] == ["drug′ = −0.5 drug + 1 rate"]
    assert (summary["series"], summary["left_out"]) == (5, ["weight"])
    assert summary["held_out"] == "1 of 5 series (e)"
    rows = read_rows(folder / "fit/fit.csv")
    assert [row["patient"] for row in rows] == [p for p in "abcde" for _ in range(11)]
    assert {row["patient"] for row in rows if row["held_out"] == "1"} == {"e"}
    page = (folder / "fit/report.html").read_text()
    assert "55 samples in 5 series of doses.csv" in page
    assert "Inputs are those of later.csv." in page


def test_forecasts_use_inputs_that_are_known(folder):
    last = read_rows(folder / "doses.csv")[-1]
    rows = read_rows(folder / "fit/forecast.csv")
    expected = solve(float(last["drug"]), [float(last["rate"]), 3, 1, 1])[1:]
    assert [float(row["hour"]) for row in rows] == [5.5, 6.0, 6.5]
    np.testing.assert_allclose([float(r["drug_mean"]) for r in rows], expected, rtol=1e-3)


def test_other_series_are_predicted_from_their_first_state(folder, lagrax_command, tmp_path):
    """Other starts and inputs, with states that are known at first alone, or throughout."""
    us = {"x": [0, 3, 0, 0], "y": [1, 1, 1, 2]}
    truth = {p: solve(x0, np.array(us[p])) for p, x0 in (("x", 9.0), ("y", 0.1))}
    header = ["patient", "hour", "drug", "rate"]
    rows = [
        [p, 0.5 * k, truth[p][k] if p == "y" or k == 0 else "", us[p][k]]
        for p in us
        for k in range(4)
    ]
    write_rows(tmp_path / "new.csv", header, rows)
    code, out, err = lagrax_command("predict", str(folder / "fit"), "new.csv")
    assert code == 0, err
    assert out.startswith("drug: rmse ")
    found = read_rows(tmp_path / "predict-new/prediction.csv")
    predicted = [row["drug_predicted"] for row in found]
    assert predicted[0] == predicted[4] == ""
    for start, patient in ((0, "x"), (4, "y")):
        np.testing.assert_allclose(
            [float(x) for x in predicted[start + 1 : start + 4]], truth[patient][1:], rtol=2e-3
        )
    answer = json.loads((tmp_path / "predict-new/summary.json").read_text())
    assert answer["errors"]["drug"]["samples"] == 3
    assert answer["errors"]["drug"]["r2"] > 0.999
    assert (tmp_path / "predict-new/figures/prediction.png").exists()


@pytest.mark.parametrize(
    ("rows", "line", "sentence"),
    [
        ([["x", 0, 1, 0]] * 3, "fit new.csv", "is not the folder of a fit"),
        ([["x", 0, "", 0], ["x", 1, "", 0], ["x", 2, "", 0]], "FIT new.csv", "x has no row with"),
        ([["x", 0, 1, 0], ["x", 1, "", ""], ["x", 2, "", 0]], "FIT new.csv", "is missing"),
        ([["x", 0, 1, 0]], "FIT new.csv", "has too few rows of values: 1; expected at least 3"),
    ],
)
def test_bad_tables_are_refused(folder, lagrax_command, tmp_path, rows, line, sentence):
    write_rows(tmp_path / "new.csv", ["patient", "hour", "drug", "rate"], rows)
    code, out, err = lagrax_command("predict", *line.replace("FIT", str(folder / "fit")).split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (tmp_path / "predict-new").exists()


def test_several_tables_are_fitted_together(lagrax_command, tmp_path):
    """Tables of the same columns; another column or unit is named."""
    rng = np.random.default_rng(1)
    for name in "abcd":
        xs = solve(rng.uniform(1, 5), np.ones(12))
        write_rows(
            tmp_path / f"{name}.csv", ["t [h]", "x"], [[0.5 * k, x] for k, x in enumerate(xs)]
        )
    names = [f"{name}.csv" for name in "abcd"]
    line = ["--together", "--field", "library", "--degree", "1", "--ensemble", "1"]
    code, out, err = lagrax_command("fit", *names, *line)
    assert code == 0, err
    assert "x′ = 1 − 0.5 x" in out.replace("−0.5 x + 1", "1 − 0.5 x")
    assert "1 of 4 series (d)" in out
    assert {row["series"] for row in read_rows(tmp_path / "fit-a/fit.csv")} == set("abcd")
    write_rows(tmp_path / "d.csv", ["t [h]", "y"], [[k, k * k] for k in range(12)])
    code, out, err = lagrax_command("fit", *names, *line)
    assert (code, out) == (2, "")
    assert "The tables a.csv, b.csv, c.csv, d.csv differ in their columns" in err


def test_past_inputs_are_no_future(folder, lagrax_command, tmp_path):
    write_rows(tmp_path / "past.csv", ["hour", "rate"], [[4.5, 3], [6.0, 1]])
    line = f"fit {folder / 'doses.csv'} --by patient --input rate --future past.csv"
    code, out, err = lagrax_command(*line.split())
    assert (code, out) == (2, "")
    assert "its first time, 4.5, is not after the end of the series, 5; expected later" in err
