"""`lagrax fit`, as a user types it."""

import csv
import dataclasses
import datetime
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import lagrax
from lagrax._cli import fit_model
from lagrax._cli.fit import format_lines, summarise, write_answer
from lagrax._cli.fit_delays import make_candidates, make_delays, read_lookback, refine_chosen
from lagrax._cli.fit_figures import draw_figures
from lagrax._cli.fit_model import Fit, describe_table, fit_equation, later_times
from lagrax._cli.fit_options import FitOptions
from lagrax._cli.fit_report import render_fit
from lagrax._cli.fit_scores import Score
from lagrax._cli.fit_terms import Term, choose_all_symbols, list_terms, warn_of_weak_terms
from lagrax._cli.table import read_table
from lagrax._cli.units import Duration
from lagrax._solve.delays import Hold, Lag, Learn, holds
from lagrax.identify._selection import Candidate, Scan, Selection
from lagrax.plotting._page import prose

QUICK = ["--field", "library", "--ensemble", "3", "--forecast", "5"]


def write_csv(path, header, *columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def read_csv(path):
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def population(periods=12, samples=5, a=2.3):
    ts = np.linspace(0, periods, periods * samples + 1)
    return ts, np.asarray(lagrax.systems.Population(a=a).solution(ts, y0=0.3), float)


class Answer(NamedTuple):
    folder: Path
    result: Fit
    summary: dict


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A fit of the population equation: its folder, results and summary."""
    folder = tmp_path_factory.mktemp("fit")
    write_csv(folder / "x.csv", ["t", "x"], *population())
    options = FitOptions(hold=Duration(1), field="library", ensemble=3, forecast=Duration(5))
    result = fit_equation(folder / "x.csv", options, [read_table(folder / "x.csv")])
    return Answer(folder / "answer", result, write_answer(result, folder / "answer"))


def with_table(result, **changes):
    """The parts of a fit whose last table is changed."""
    last = result.parts[-1]
    return [last._replace(table=dataclasses.replace(last.table, **changes))]


def page_of(result):
    return render_fit(result, draw_figures(result))


# --- many tables ----------------------------------------------------------------------------------


def test_several_tables_are_fitted_independently(lagrax_command, answer, tmp_path):
    for name, a in (("low", 1.8), ("high", 2.3)):
        write_csv(tmp_path / f"{name}.csv", ["t", "x"], *population(a=a))
    (tmp_path / "bad.csv").write_text("t,x\n0,one\n")
    tables = ["low.csv", "bad.csv", "high.csv"]
    code, out, err = lagrax_command("fit", *tables, "--hold", "1", *QUICK)
    assert code == 1
    found = [line.split(": x′ = ") for line in out.splitlines()[:2]]
    heading, low, high = out.splitlines()[2:]
    assert heading.split() == ["table", "column", "error", "best", "simple", "forecast"]
    assert low.split()[:2] == ["low", "x"]
    assert float(high.split()[2]) < 0.01
    assert [(name, round(float(rest[:4]), 1)) for name, rest in found] == [
        ("low.csv", 1.8),
        ("high.csv", 2.3),
    ]
    assert "bad.csv: failed: " in err
    assert err.startswith("low.csv: times 't'; states 'x'.\n")
    assert "\nhigh.csv: times 't'; states 'x'.\n" in err
    assert sorted(p.name for p in (tmp_path / "fits").iterdir()) == ["high", "low"]
    for name in ("fit.csv", "forecast.csv"):
        assert (tmp_path / "fits/high" / name).read_bytes() == (answer.folder / name).read_bytes()


def test_tables_of_one_name_are_refused(lagrax_command, tmp_path):
    (tmp_path / "other").mkdir()
    code, _, err = lagrax_command("fit", "x.csv", "other/x.csv", "--hold", "1")
    assert code == 2
    assert "Two tables are called x" in err
    code, _, err = lagrax_command("fit", "x.csv", "y.csv", "--launcher", "slurm")
    assert code == 2
    assert "slurm" in err


# --- the answer -----------------------------------------------------------------------------------


def test_equation_is_found(answer):
    _, result, summary = answer
    (equation,) = summary["equations"]
    assert equation.startswith("x′ = 2.")
    assert "x x(⌊t⌋)" in equation
    assert summary["scores"][0]["r2"] > 0.999
    assert summary["scores"][0]["nrmse"] < summary["scores"][0]["standing_still"]
    assert summary["delays"] == [{"kind": "hold", "tau": 1.0, "lag": 0}]
    assert "repeats after 2 knots" in summary["long_run"]["sentence"]
    assert set(result.seconds) == {"fitting", "forecast and long run"}
    json.dumps(summary, allow_nan=False)


def test_answer_has_all_files(answer):
    folder, result, summary = answer
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert there == set(summary["files"])
    pictures = {
        f"figures/{n}.{x}" for n in ("fit", "forecast", "portrait") for x in ("png", "json")
    }
    assert pictures <= there
    assert {"model/model.json", "model/model.safetensors", "report.html"} <= there
    header, rows = read_csv(folder / "fit.csv")
    assert header == ["t", "x", "x_predicted", "held_out"]
    assert len(rows) == 61
    assert rows[0][2] == ""  # nothing is predicted of where it starts
    assert [row[3] for row in rows] == ["0"] * result.held_out + ["1"] * (61 - result.held_out)
    header, rows = read_csv(folder / "forecast.csv")
    assert header == ["t", "x_mean", "x_low", "x_high", "trusted"]
    _, mean, low, high, trusted = np.array(rows, float).T
    assert np.all(trusted == 1)
    exact = population(13)[1][61:66]
    assert [row[0] for row in rows] == ["12.2", "12.4", "12.6", "12.8", "13.0"]
    np.testing.assert_allclose(mean, exact, rtol=1e-2)
    assert np.all((low <= mean) & (mean <= high))


def test_page_has_all_parts(answer):
    folder, result, _ = answer
    page = (folder / "report.html").read_text()
    for title in ("The forecast", "The fit", "The data", "What was learned", "Stability"):
        assert f">{title}</h2>" in page
    assert result.equations[0] in re.sub("<[^>]*>", "", page)
    assert page.index("Figure 1.") < page.index("Figure 2.") < page.index("Figure 3.")
    assert "where the series could rest" in page


@pytest.mark.slow
def test_saved_model_can_be_analysed(answer, lagrax_command):
    folder, result, _ = answer
    again = lagrax.Identifier.load(folder / "model")
    later = result.table.ts[-1] + np.array([0.2, 0.4])
    np.testing.assert_allclose(again.forecast(later).mean, result.forecast.mean[:2], rtol=1e-5)
    code, out, _ = lagrax_command("analyse", str(folder), "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["subject"] == "answer"
    ours = result.long_run.to_json()["orbits"]
    assert [o["stability"] for o in answer["orbits"]] == [o["stability"] for o in ours]


def test_page_has_optional_parts(answer):
    """What a selection, learned periods, training and inputs add to it."""
    result = answer.result
    chosen = Candidate("1 hold", [Hold(1.0)], [Hold(1.0)], 0.1, [0.2])
    other = Candidate("a lag", [Lag(1.0)], [Lag(1.0), Hold(1.0, lag=1)], 0.2, [0.2])
    model = lagrax.Identifier.load(answer.folder / "model")
    good = np.array([False, True, False])
    model.scans_ = [Scan(np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.1, 0.5]), good)]
    model.periods_ = [1.0]
    model.series_ = [t._replace(us=np.zeros((len(t.ts), 1))) for t in model.series_]
    dataset = model._model.dataset._replace(series=model.series_)
    model._model = model._model._replace(dataset=dataset)
    series = lagrax.training.Series(np.array([1, 2]), np.ones((2, 2)))
    model.losses_ = {"loss": series, "held_out": series}
    more = dataclasses.replace(
        result,
        model=model,
        selection=Selection([chosen, other], chosen),
        parts=with_table(result, input_names=("push",)),
        forecast=None,
        long_run="There is no map.",
    )
    drawn = draw_figures(more)
    assert list(drawn) == ["fit", "portrait", "delays", "periods", "training"]
    page = render_fit(more, drawn)
    assert "Inputs: push" in page
    assert "the state 1 ago, that 1 hold of 1 before" in page
    assert "There is no map." in page
    assert "flatter a little" in page
    assert "Learned period: 1" in format_lines(more)


@pytest.mark.slow
def test_dates_inputs_and_several_columns(lagrax_command, tmp_path):
    first = datetime.date(2024, 1, 1)
    ts, x = population(14, 7)
    dates = [first + datetime.timedelta(days=i) for i in range(len(ts))]
    cells = ["" if i == 30 else f"{v:.4f}" for i, v in enumerate(x)]
    push = np.sin(ts)
    write_csv(tmp_path / "days.csv", ["day", "x", "y", "push"], dates, cells, 2 - x**2, push)
    line = "fit days.csv --time day --input push --hold 7 --iterations 50 --ensemble 2 --json"
    code, out, err = lagrax_command(*line.split(), "--forecast", "3")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["columns"] == ["x", "y"]
    assert answer["inputs"] == ["push"]
    assert "has inputs" in answer["long_run"]["sentence"]
    assert Path(answer["folder"]) == tmp_path / "fit-days"
    header, rows = read_csv(tmp_path / "fit-days/forecast.csv")
    assert header == ["day", "x_mean", "x_low", "x_high", "y_mean", "y_low", "y_high"]
    after = [(dates[-1] + datetime.timedelta(days=i)).isoformat() for i in (1, 2, 3)]
    assert [row[0] for row in rows] == after
    assert "Inputs: push" in (tmp_path / "fit-days/report.html").read_text()
    assert (tmp_path / "fit-days/figures/training.png").exists()


@pytest.mark.parametrize("apart", [{"hours": 6}, {"microseconds": 250}], ids=str)
def test_times_are_written_as_they_were_read(tmp_path, apart):
    first, gap = datetime.datetime(2024, 1, 1), datetime.timedelta(**apart)
    dates = [(first + i * gap).isoformat() for i in range(12)]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, range(12))
    table = read_table(tmp_path / "x.csv")
    assert list(table.format_times(table.ts)) == dates


@pytest.mark.parametrize(
    ("first", "months", "after"),
    [
        ((2024, 1, 1), 1, ["2025-02-01", "2025-03-01", "2025-04-01"]),
        ((2024, 1, 15), 1, ["2025-02-15", "2025-03-15", "2025-04-15"]),
        ((2010, 3, 1), 3, ["2013-06-01", "2013-09-01", "2013-12-01"]),
        ((2000, 6, 1), 12, ["2013-06-01", "2014-06-01", "2015-06-01"]),
    ],
)
def test_months_are_continued_by_months(tmp_path, first, months, after):
    year, month, day = first
    numbers = [12 * year + month - 1 + months * i for i in range(13)]
    dates = [datetime.date(n // 12, n % 12 + 1, day) for n in numbers]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, range(13))
    table = read_table(tmp_path / "x.csv")
    assert list(table.format_times(later_times(table, 3))) == after


def test_month_ends_are_continued_by_month_ends(tmp_path):
    dates = [datetime.date(2023, m, 1) - datetime.timedelta(days=1) for m in range(1, 13)]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, range(12))
    table = read_table(tmp_path / "x.csv")
    after = ["2023-12-31", "2024-01-31", "2024-02-29"]
    assert list(table.format_times(later_times(table, 3))) == after


def test_days_are_continued_by_days(tmp_path):
    dates = [datetime.date(2024, 1, 31) + datetime.timedelta(days=30 * i) for i in range(12)]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, range(12))
    table = read_table(tmp_path / "x.csv")
    assert later_times(table, 2).tolist() == [360, 390]


def test_forecast_ends_where_dates_end(lagrax_command, tmp_path):
    dates = [f"{1900 + i}-01-01" for i in range(120)]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, np.sin(np.arange(120)))
    code, out, err = lagrax_command(
        "fit", "x.csv", "--forecast", "9000", "--field", "library", "--out", "found"
    )
    assert (code, out) == (2, "")
    assert "there is no date any more: forecast less far" in err
    assert not (tmp_path / "found").exists()


def test_roles_of_columns_are_named_first(tmp_path):
    rows = [f"2024-01-{day:02d}T08:00,{day % 7 or ''},{day},a" for day in range(1, 20)]
    (tmp_path / "x.csv").write_text("\n".join(["when,x,u,note", *rows]))
    table = read_table(tmp_path / "x.csv", inputs=["u"])
    roles = describe_table(table)
    for role in (
        "times 'when', in days since 2024-01-01 08:00",
        "states 'x'",
        "inputs 'u'",
        "left out (no numbers) 'note'",
        "missing 2 of 'x'",
    ):
        assert role in roles


def test_missing_values_and_gaps_are_counted(answer, tmp_path):
    dates = [datetime.datetime(2025, 3, 3, 8, minute) for minute in (*range(12), *range(20, 40))]
    values = ["" if i in (3, 9) else i % 5 for i in range(len(dates))]
    write_csv(tmp_path / "x.csv", ["when", "x"], dates, values)
    table = read_table(tmp_path / "x.csv")
    assert (table.missing, table.gaps) == ({"x": 2}, [11])
    assert "32 samples, 1 minute apart" in table.sampling
    assert "one gap of 9 minutes after 2025-03-03 08:11" in table.sampling
    hours = read_table(tmp_path / "x.csv", unit="hours")
    assert "32 samples, 1 minute apart" in hours.sampling
    ts, _ = population()
    ts = np.where(np.arange(len(ts)) % 3 > 0, ts, ts - 0.15)
    table = dataclasses.replace(answer.result.table, ts=ts)
    assert table.sampling == "61 samples at irregular times, 0.05 to 0.35 apart."
    assert "61 samples, 0.2 apart, without gaps." in page_of(answer.result)
    assert answer.summary["missing"] == {}


def test_durations_have_units(lagrax_command, answer, tmp_path):
    ts, x = population()
    dates = [datetime.datetime(2025, 3, 3, 8) + datetime.timedelta(minutes=t) for t in ts]
    write_csv(tmp_path / "x.csv", ["when", "level 1 [m]"], dates, x)
    line = "fit x.csv --unit min --hold 60s --field library --ensemble 3 --forecast 1min"
    code, out, err = lagrax_command(*line.split())
    assert code == 0, err
    assert "minutes since 2025-03-03 08:00" in err
    assert out.splitlines()[1:3] == [answer.summary["equations"][0], "where x is level 1 [m]"]
    assert out.count("Wrote") == 1
    assert out.splitlines()[-1] == f"Wrote {tmp_path / 'fit-x' / 'report.html'}"
    _, rows = read_csv(tmp_path / "fit-x/forecast.csv")
    assert [row[0] for row in rows][-1] == "2025-03-03T08:13:00"
    numbers = [[float(cell) for cell in row[1:]] for row in rows]
    _, others = read_csv(answer.folder / "forecast.csv")
    np.testing.assert_allclose(numbers, [[float(c) for c in row[1:]] for row in others], rtol=1e-4)
    page = (tmp_path / "fit-x/report.html").read_text()
    assert "minutes since 2025-03-03 08:00" in page
    code, out, err = lagrax_command(*line.split(), "--verbose")
    assert f"Wrote {tmp_path / 'fit-x' / 'forecast.csv'}" in out


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        (Score("x", 0.98, 0.14, 1.4, 1.0), "explain 98 % of the variance of x, with 1/10 of the"),
        (Score("x", 0.6, 0.64, 1.2, 1.0), "with 53 % of the error of standing still"),
        (Score("x", 0.9999, 0.005, 1.0, 1.0), "with 1/200 of the error of standing still"),
        (Score("x", 0.9999, 0.01, 1.0, 1.0), "explain more than 99 % of the variance"),
        (Score("x", -0.4, 1.2, 0.6, 1.0), "of x are no better than its mean, with 2 times the"),
        (Score("x", 0.5, 0.7, 0.7, 0.03), "moves (its deviation is 3 % of the whole series'), so"),
        (Score("x", np.nan, np.nan, np.nan, 0.0), "x does not vary over the held-out end"),
    ],
)
def test_scores_are_explained(score, sentence):
    assert sentence in score.verdict
    assert ("R² says little" in score.verdict) == (0 < score.movement < 0.25)


@pytest.mark.parametrize(
    ("states", "inputs", "symbols", "legend"),
    [
        (["x"], [], (["x"], []), ""),
        (["prey", "predator_2"], ["dose"], (["prey", "predator_2"], ["dose"]), ""),
        (["level 1 [m]"], [], (["x"], []), "x is level 1 [m]"),
        (
            ["level 1 [m]", "x"],
            ["dose"],
            (["x1", "x2"], ["dose"]),
            "x1 is level 1 [m], x2 is x",
        ),
        (["x"], ["flow of the pump"], (["x"], ["u"]), "u is flow of the pump"),
        (["x 1", "x 2"], ["x1"], (["x1", "x2"], ["u"]), "x1 is x 1, x2 is x 2, u is x1"),
    ],
)
def test_equations_have_short_symbols(states, inputs, symbols, legend):
    assert choose_all_symbols(states, inputs) == (*symbols, legend)


def test_weak_terms_are_named(answer):
    terms = [Term("x", "x", 2.6, 0.01), Term("x", "x y", -0.1, 0.08), Term("y", "1", 0.2, np.nan)]
    assert warn_of_weak_terms([terms[0], terms[2]]) is None
    assert "−0.1 x y in x′ (± 0.08)" in warn_of_weak_terms(terms)
    assert [term["text"] for term in answer.summary["terms"]] == ["x", "x x(⌊t⌋)"]
    # The series has no noise, so the models of the ensemble agree.
    assert not any(term["weak"] for term in answer.summary["terms"])


def test_terms_that_noise_calls_for_are_weak():
    ts = np.arange(0, 20, 0.25)
    states = np.exp(-ts / 8) * np.stack([np.cos(ts), -np.sin(ts)])
    ys = states.T + 0.15 * np.random.default_rng(1).standard_normal((len(ts), 2))
    model = lagrax.Identifier([], "library", degree=3, ensemble=5).fit(ts, ys)
    terms = list_terms(model, choose_all_symbols(["x", "y"], []))
    weak = {(term.state, term.text): term.is_weak for term in terms}
    spurious = {key for key in weak if key not in {("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")}}
    assert spurious
    assert all(weak[key] for key in spurious)
    assert not weak["x", "y"]
    assert not weak["y", "x"]


def test_terms_without_past_are_said_to_be_so(answer, tmp_path):
    assert "It looks back at the state held every 1." in page_of(answer.result)
    ts = np.linspace(0, 12, 61)
    write_csv(tmp_path / "x.csv", ["t", "x"], ts, np.exp(-0.2 * ts))
    options = FitOptions(hold=Duration(1), field="library", ensemble=1, degree=1)
    result = fit_equation(tmp_path / "x.csv", options, [read_table(tmp_path / "x.csv")])
    assert [term.text for term in result.terms] == ["x"]
    page = page_of(result)
    assert "It could look back at the state held every 1, but none of its terms does." in page
    assert "Holds change" not in page


def test_names_are_escaped(answer):
    parts = with_table(answer.result, names=("<b>bold</b>",))
    page = page_of(dataclasses.replace(answer.result, parts=parts))
    assert "<b>bold" not in page
    assert "x is &lt;b&gt;bold&lt;/b&gt;" in page


def test_useless_fits_get_a_warning(answer):
    result = answer.result
    assert result.doubt is None
    assert "(standing still: " in "\n".join(format_lines(result))
    for nrmse in (1.2, float("nan")):
        scores = [Score("x", -0.4, nrmse, 1.1, 1.0), Score("y", 0.9, 0.3, 1.0, 1.0)]
        useless = dataclasses.replace(result, scores=scores)
        sentence = "No better than standing still on the held-out end: x. Do not trust the forecast"
        assert useless.doubt.startswith(sentence)
        assert useless.doubt in format_lines(useless)
        assert str(prose(useless.doubt)) in page_of(useless)
        assert summarise(useless)["doubt"] == useless.doubt
    wild = dataclasses.replace(result, scores=[Score("x", -8.0, 3.0, 3.5, 1.0)])
    assert wild.doubt.startswith("Off by more than the held-out end varies: x. Do not trust")
    # NaN never stays silent.
    still = dataclasses.replace(result, scores=[Score("x", *[np.nan] * 3, 0.0)])
    assert still.doubt.startswith("Not judged, constant over the held-out end: x.")
    # A series at rest, predicted as well as noise allows.
    assert dataclasses.replace(result, scores=[Score("x", -0.3, 1.1, 1.4, 0.1)]).doubt is None


# --- delays ---------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population())
    return read_table(tmp_path / "x.csv")


def lookback(table, hold=None, lag=None, **options):
    """What options ask for, with plain numbers as periods."""
    duration = lambda tau: None if tau is None else Duration(tau)
    options = FitOptions(hold=duration(hold), lag=duration(lag), select=True, **options)
    return read_lookback(options, table)


def test_options_become_delays(table):
    delays = lambda **options: make_delays(lookback(table, **options), table)
    assert delays() == []
    first, second, third = delays(hold=1.0, lags=2, lag=0.5)
    assert (first.tau, first.lag, second.lag, third.tau) == (1.0, 0, 1, 0.5)
    (hold,) = delays(hold=1.0, learn_tau=True)
    assert isinstance(hold.tau, Learn)
    assert (hold.tau.low, hold.tau.high) == (pytest.approx(0.6), 3.0)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["none", "1 hold", "2 holds", "a lag"]),
        ({"lags": 1}, ["none", "1 hold", "a lag"]),
        (
            {"hold": 1.0},
            ["none", "1 hold of 1", "2 holds of 1", "1 hold of 2", "a lag of 1"],
        ),
        ({"lag": 0.3}, ["none", "a lag of 0.6", "a lag of 0.3"]),
        ({"hold": 1.0, "learn_tau": True, "lags": 1}, ["none", "1 hold of 1", "a lag of 1"]),
    ],
)
def test_candidates(table, options, names):
    assert list(make_candidates(lookback(table, **options), table)) == names


def test_chosen_delays_share_their_period():
    result = holds(1.0000000000000002, 2)
    best = Candidate("2 holds", result, [*result, Lag(0.5)], 0.1, [])
    selection = Selection([best], best)
    first, second, third = refine_chosen(selection, learn=True)
    assert first.tau is second.tau
    assert third.tau.start == 0.5
    assert [d.tau for d in refine_chosen(selection, learn=False)] == [1.0, 1.0, 0.5]


@pytest.mark.slow
def test_select_chooses_the_needed_delays(lagrax_command, tmp_path):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population(20, 5, 2.6))
    code, out, err = lagrax_command(*["fit", "x.csv", "--hold", "1", "--select"], *QUICK)
    assert code == 0, err
    assert "1 hold of 1 " in out
    assert "<- chosen" in out
    assert "Comparing 5 candidates" in err
    answer = json.loads((tmp_path / "fit-x/summary.json").read_text())
    assert answer["delays"] == [{"kind": "hold", "tau": 1.0, "lag": 0}]
    assert [c["chosen"] for c in answer["selection"]].count(True) == 1


@pytest.mark.parametrize(
    ("good", "sentence"),
    [
        ([3], ""),
        ([], ""),
        ([1, 2, 3], "The period 4 is not sure: of those that were tried, 2 to 4 explain the"),
        ([0, 3, 4], "The period 4 is not sure: of those that were tried, 1, 4 to 5 explain the"),
        ([8], "The period 9 is at the end of those that were tried, 1 to 9: start from another"),
        ([0, 2, 4, 6, 8], "The period 4 is not sure: of those that were tried, many from 1 to 9 "),
    ],
)
def test_uncertain_periods_are_named(answer, good, sentence):
    result = answer.result
    scan = Scan(np.arange(1.0, 10.0), np.ones(9), np.isin(np.arange(9), good))
    model = lagrax.Identifier.load(answer.folder / "model")
    period = 9.0 if good == [8] else 4.0
    model.periods_, model.scans_ = [period], [scan]
    learned = dataclasses.replace(result, model=model)
    best = Candidate("a lag", [Lag(period)], [Lag(period)], 0.1, [], [scan])
    selected = dataclasses.replace(result, selection=Selection([best], best))
    for unsure in (learned, selected):
        assert len(unsure.unsure) == bool(sentence)
        assert sentence in "\n".join(format_lines(unsure))
        assert str(prose(sentence)) in page_of(unsure)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("absent.csv", "absent.csv does not exist; expected a CSV file"),
        ("x.csv --time when", "x.csv has no column 'when'"),
        ("x.csv --column y", "x.csv has no column 'y'"),
        ("x.csv --field forest", "'--field': 'forest' is not one of 'mlp', 'library', 'linear'."),
        ("x.csv --lags 2", "--lags 2 needs the period of the holds: add --hold TAU."),
        ("x.csv --learn-tau", "--learn-tau needs a period to start from: add --hold TAU or"),
        ("x.csv --hold -1", "'--hold': '-1' is no duration; expected a positive number"),
        ("x.csv --hold one", "'--hold': 'one' is no duration; expected a positive number, with"),
        ("x.csv --hold 0", "'--hold': '0' is no period; expected a positive number."),
        ("x.csv --hold 5m", "'m' is no unit of time; expected one of s, min"),
        ("x.csv --hold 60s", "--hold 60s: the times have no unit. Add --unit"),
        ("x.csv --hold 3mo --unit d", "--hold 3mo: months have no fixed number of days"),
        ("x.csv --unit s --forecast 100ms", "'ms' is no unit of time"),
        ("x.csv --unit s --forecast 0.1s", "--forecast 0.1s: shorter than the time between two"),
        ("x.csv --unit min --hold 100h", "spans 12 minutes: expected less"),
        ("x.csv --season 100", "--season 100 is not between three samples (0.6) and the length"),
        ("x.csv --future y.csv", "--future holds inputs, and there are none: name them"),
        ("x.csv --forecast 1.5", "--forecast 1.5: expected a whole number of samples"),
        ("x.csv --hold nan", "'--hold': 'nan' is no duration"),
        ("x.csv --lag 0.01", "--lag 0.01 is shorter than the time between two samples, 0.2,"),
        ("x.csv --hold 4 --lags 2", "--hold 4 with --lags 2 looks back further than half"),
        ("x.csv --forecast -1", "'--forecast': '-1' is no duration"),
        ("x.csv --ensemble 0", "'--ensemble': got 0; expected at least 1"),
        ("x.csv --out x.csv", "--out x.csv is a file; expected a folder"),
        ("x.csv --out full", "--out full holds something other than an answer of `lagrax fit`"),
        ("", "Missing argument"),
    ],
)
def test_bad_input_gets_one_sentence(lagrax_command, tmp_path, line, sentence):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    code, out, err = lagrax_command("fit", *line.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "x.csv"]


def test_errors_of_the_model_end_the_command(lagrax_command, tmp_path, monkeypatch):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population())

    def refuse(*_, **__):
        raise ValueError("Too many digits.")

    monkeypatch.setattr(lagrax.Identifier, "fit", refuse)
    monkeypatch.setattr(fit_model, "select_delays", refuse)
    for line in ("fit x.csv", "fit x.csv --select"):
        code, out, err = lagrax_command(*line.split())
        assert (code, out) == (2, "")
        assert err.splitlines()[-1] == "Too many digits."


@pytest.mark.parametrize(
    ("scale", "sentence"),
    [
        (
            1e20,
            "The column 'size' goes up to 1.7e+20, and terms of degree 2 in it are",
        ),
        (
            1e300,
            "The column 'size' goes up to 1.7e+300, which cannot be squared.",
        ),
    ],
)
def test_columns_are_refused_by_their_names(lagrax_command, tmp_path, scale, sentence):
    ts, x = population()
    write_csv(tmp_path / "x.csv", ["t", "size"], ts, np.round(x / x.max() * 1.7, 6) * scale)
    code, out, err = lagrax_command("fit", "x.csv", *QUICK)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(sentence)


def test_failed_fit_writes_nothing(lagrax_command, tmp_path, monkeypatch):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population())

    def fail(*_):
        raise lagrax.IdentifyError("It does not stay finite.")

    monkeypatch.setattr(lagrax.Identifier, "fit", fail)
    first = "x.csv: times 't'; states 'x'."
    assert lagrax_command("fit", "x.csv") == (1, "", f"{first}\nIt does not stay finite.\n")
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


def test_a_fit_stopped_after_training_keeps_its_model(lagrax_command, tmp_path, monkeypatch):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population())

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lagrax.Identifier, "forecast", stop)
    code, out, err = lagrax_command("fit", "x.csv", "--hold", "1", *QUICK)
    assert (code, out) == (130, "")
    lines = err.splitlines()
    assert lines[2].startswith("Learned x′ = 2.3 x ")
    assert lines[-1] == f"Stopped. The fitted model is in {Path('fit-x/model')}."
    assert lagrax.Identifier.load("fit-x/model").equations()[0] in lines[2]
    code, _, err = lagrax_command("predict", "fit-x", "x.csv")
    assert (code, err.split(",")[0]) == (2, "fit-x holds a model alone")


def test_an_equation_that_explains_nothing_is_named_first(answer):
    useless = Score("v", -0.05, 1.02, standing_still=1.5, movement=0.9)
    good, quiet = useless._replace(r2=0.9, nrmse=0.3), useless._replace(movement=0.1)
    result = dataclasses.replace(answer.result, scores=[useless])
    sentence = "The equation explains nothing of v: the mean predicts the held-out end as well."
    assert format_lines(result)[0] == sentence
    assert page_of(result).index(sentence) < page_of(result).index("′")
    assert dataclasses.replace(result, scores=[good, useless]).failure is None
    assert dataclasses.replace(result, scores=[quiet]).failure is None


@pytest.mark.slow
def test_interrupted_fit_writes_nothing(tmp_path):
    write_csv(tmp_path / "x.csv", ["t", "x"], *population(40))
    command = [sys.executable, "-m", "lagrax", "fit", "x.csv", "--iterations", "1000000"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    time.sleep(12)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "Stopped. Nothing was written."
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]
