"""The command `lagrax`, as a user types it."""

import csv
import json
import re
import sys

import jax
import numpy as np
import pytest
import scipy.integrate

import lagrax
from lagrax import __main__
from lagrax._cli import app as cli, simulate as simulating


def test_version_agrees_with_the_package(lagrax_command):
    assert lagrax_command("--version") == (0, f"lagrax {lagrax.__version__}\n", "")


def test_help_names_every_command(lagrax_command):
    code, out, _ = lagrax_command("--help")
    assert code == 0
    for name in ("simulate", "analyse", "explore", "fit", "predict", "info"):
        assert name in out
    assert "\x1b" not in out


# --- info ---------------------------------------------------------------------------------


def test_info(lagrax_command, monkeypatch):
    code, out, _ = lagrax_command("info", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["versions"]["jax"] == jax.__version__
    assert found["devices"][0].startswith("cpu")
    versions = cli._machine.versions()
    monkeypatch.setattr(cli._machine, "versions", lambda: versions | {"plotly": None})
    code, out, _ = lagrax_command("info")
    assert re.search(r'plotly +absent; pip install "lagrax\[plot\]"', out)


def test_an_absent_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lagrax._cli.app", None)
    monkeypatch.delitem(sys.modules, "typer")
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "lagrax._cli.app")
    monkeypatch.setattr(sys, "argv", ["lagrax", "info"])
    assert __main__.main() == 2
    assert 'The command needs typer: pip install "lagrax[cli]"' in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["lagrax", "--version"])
    assert __main__.main() == 0
    assert capsys.readouterr().out == f"lagrax {lagrax.__version__}\n"


# --- simulate -------------------------------------------------------------------------------------


def read_csv(path):
    with path.open() as file:
        rows = list(csv.reader(file))
    return rows[0], np.array(rows[1:], float)


def test_the_curve_goes_through_its_knots(lagrax_command, monkeypatch):
    drawn = []
    monkeypatch.setattr(simulating, "draw", lambda figure, path: drawn.append(figure))
    options = ["--a", "3.32", "--tau", "1.12", "--t1", "30"]
    code, *_ = lagrax_command("simulate", "population", *options)
    assert code == 0
    line, knots = drawn[0].panels[0].marks
    on_the_line = dict(zip(np.asarray(line.x).tolist(), np.asarray(line.y).tolist(), strict=True))
    assert len(knots.x) > 20
    for t, x in zip(np.asarray(knots.x).tolist(), np.asarray(knots.y).tolist(), strict=True):
        assert on_the_line[t] == pytest.approx(x, abs=1e-4)
    assert np.all(np.diff(line.x) >= 0)


def test_simulate_population(lagrax_command, tmp_path):
    line = "simulate population --a 2.5 --t1 7 --y0 0.3 --samples 71 --out x.png --csv x.csv"
    code, out, err = lagrax_command(*line.split())
    assert (code, err) == (0, "")
    assert f"Wrote {tmp_path / 'x.png'}" in out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    header, table = read_csv(tmp_path / "x.csv")
    assert header == ["t", "x"]
    x, expected = 0.3, []
    for _ in range(7):
        expected += [x * np.exp(2.5 * (1 - x) * s / 10) for s in range(10)]
        x *= np.exp(2.5 * (1 - x))
    np.testing.assert_allclose(table[:, 0], np.arange(71) / 10, rtol=1e-6)
    np.testing.assert_allclose(table[:, 1], [*expected, x], rtol=1e-4)


def test_simulate_a_population_with_a_lag(lagrax_command, tmp_path):
    line = "simulate population --a 0.9 --lag 1 --t1 6 --samples 7 --csv x.csv"
    assert lagrax_command(*line.split())[0] == 0
    x = [0.5, 0.5]
    for _ in range(6):
        x.append(x[-1] * np.exp(0.9 * (1 - x[-2])))
    np.testing.assert_allclose(read_csv(tmp_path / "x.csv")[1][:, 1], x[1:], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "parameters", "t1"),
    [
        ("--lag 1", {"lag": 1}, 30),
        ("--lag 2 --a 2", {"lag": 2, "a": 2.0}, 20),
        ("--a 6", {"a": 6.0}, 20),
        ("--a 8", {"a": 8.0}, 20),
    ],
)
def test_growth_from_a_deep_trough_is_exact(lagrax_command, tmp_path, options, parameters, t1):
    line = f"simulate population {options} --t1 {t1} --samples {10 * t1 + 1} --csv x.csv"
    assert lagrax_command(*line.split())[0] == 0
    ts, xs = read_csv(tmp_path / "x.csv")[1].T
    assert xs.min() < 1e-12
    with jax.enable_x64(True):
        exact = lagrax.systems.Population(**parameters).solution(np.arange(10 * t1 + 1) / 10)
    np.testing.assert_allclose(ts, np.arange(10 * t1 + 1) / 10, rtol=1e-8)
    np.testing.assert_allclose(xs, exact, rtol=1e-7)


def test_a_trough_below_any_number(lagrax_command, tmp_path):
    line = "simulate population --lag 3 --a 2 --t1 800 --samples 801 --csv x.csv"
    code, out, err = lagrax_command(*line.split())
    assert (code, err) == (0, "")
    assert "Zeros in the samples are positive numbers too small" in out
    logs = [np.log(0.5)] * 4
    for _ in range(800):
        logs.append(logs[-1] + 2 * (1 - np.exp(logs[-4])))
    xs, exact = read_csv(tmp_path / "x.csv")[1][:, 1], np.exp(logs[3:])
    gone = np.flatnonzero(xs == 0)[0]
    assert xs[gone:].max() > 1  # It grows again.
    np.testing.assert_allclose(xs, exact, rtol=1e-6, atol=1e-307)


def hutchinson_in_steps(a, t1):
    """The logarithm of the solution at 0, 0.1, ..., by SciPy, from lag to lag."""
    past, start, logs = lambda t: [np.log(0.5)], np.log(0.5), [np.log(0.5)]
    for k in range(t1):
        tight = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-11, "max_step": 0.05}
        field = lambda t, y, past=past: [a * (1 - np.exp(past(t - 1)[0]))]
        step = scipy.integrate.solve_ivp(field, (k, k + 1), [start], dense_output=True, **tight)
        past, start = step.sol, step.y[0, -1]
        logs += step.sol(k + np.arange(1, 11) / 10)[0].tolist()
    return np.array(logs)


@pytest.mark.parametrize(("a", "t1"), [(3.5, 60), (4.0, 40), (5.0, 40)])
def test_simulate_a_lag_with_sharp_peaks(lagrax_command, tmp_path, a, t1):
    line = f"simulate hutchinson --a {a} --t1 {t1} --samples {10 * t1 + 1} --csv x.csv"
    code, _, err = lagrax_command(*line.split())
    assert (code, err) == (0, "")
    xs = read_csv(tmp_path / "x.csv")[1][:, 1]
    assert xs.min() < 2e-11
    np.testing.assert_allclose(xs, np.exp(hutchinson_in_steps(a, t1)), rtol=1e-5)


def test_mackey_glass_from_almost_nothing(lagrax_command, tmp_path):
    line = "simulate mackey-glass --y0 1e-30 --t1 17 --samples 18 --csv x.csv"
    assert lagrax_command(*line.split())[0] == 0
    # While the past is constant, x′ = β x0 - γ x.
    expected = 1e-30 * (2 - np.exp(-0.1 * np.arange(18)))
    np.testing.assert_allclose(read_csv(tmp_path / "x.csv")[1][:, 1], expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("population --y0 0", 0.0),
        ("population --y0 -0.5 --a 1 --t1 1", -0.5 * np.exp(1.5)),
        ("hutchinson --y0 -0.5 --a 1 --t1 1", -0.5 * np.exp(1.5)),
    ],
)
def test_starts_that_are_not_positive(lagrax_command, tmp_path, line, last):
    code, out, _ = lagrax_command("simulate", *line.split(), "--csv", "x.csv")
    assert code == 0
    assert "Zeros" not in out
    np.testing.assert_allclose(read_csv(tmp_path / "x.csv")[1][-1, 1], last, rtol=1e-7)


def test_a_state_that_may_become_negative(lagrax_command):
    code, out, _ = lagrax_command("simulate", "mackey-glass", "--beta", "-0.2", "--json")
    assert code == 0
    assert json.loads(out)["final"][0] < 0


def test_samples_have_the_digits_that_are_known(lagrax_command, tmp_path):
    line = "simulate population --t1 1 --samples 11 --csv x.csv"
    assert lagrax_command(*line.split())[0] == 0
    rows = (tmp_path / "x.csv").read_text().splitlines()
    assert rows[1] == "0,0.5"
    assert rows[4] == f"0.3,{0.5 * np.exp(0.48):.9g}"


@pytest.mark.parametrize("name", lagrax.systems.SYSTEMS)
def test_simulate_every_system(lagrax_command, tmp_path, name):
    code, out, _ = lagrax_command("simulate", name, "--t1", "5", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["files"] == [str(tmp_path / f"{name}.png")]
    assert np.all(np.isfinite(answer["final"]))
    assert answer["t1"] == 5


def test_simulate_csv_alone_draws_nothing(lagrax_command, tmp_path):
    assert lagrax_command("simulate", "linear", "--csv", "y.csv")[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["y.csv"]
    header, table = read_csv(tmp_path / "y.csv")
    assert header == ["t", "x1", "x2"]
    assert table.shape == (401, 3)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("simulate nothing", "No equation 'nothing': expected one of population, linear"),
        ("simulate population --b 3", "No such option: --b"),
        ("simulate population --a much", "'--a': got much; expected a number"),
        ("simulate population --tau 0", "tau=0.0; expected a positive"),
        ("simulate population --t1 -1", "--t1 -1: expected a positive"),
        ("simulate population --t1 nan", "--t1 nan: expected a positive"),
        ("simulate population --t1 1e9", "1e+09 intervals; expected at most 1,000,000"),
        (
            "simulate population --samples 1",
            "'--samples': got 1; expected at least 2",
        ),
        ("simulate population --y0 1,2", "--y0 1,2: expected one number"),
        ("simulate linear --y0 1", "--y0 1: expected 2 numbers"),
        ("simulate mackey-glass --y0 -1", "--y0 -1: expected a positive number"),
        ("simulate mackey-glass --y0 0 --n 9.65", "--y0 0: expected a positive number"),
        ("simulate linear --y0 1,x", "--y0 1,x: expected 2 numbers"),
        ("simulate population --out x.txt", "--out x.txt: expected a name that ends in .png"),
        ("simulate population --out x.png --csv x.png", "are both x.png: give two names"),
        ("simulate population --csv -", "--csv -: expected a file"),
        ("nothing", "No such command 'nothing'"),
    ],
)
def test_bad_input_gets_one_sentence(lagrax_command, tmp_path, line, sentence):
    code, out, err = lagrax_command(*line.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "until", "remedy"),
    [
        (
            "population --a -50 --y0 1e9",
            r"1\.3\d*e-08",
            "an earlier --t1, or change --y0, --a, --tau, --lag.",
        ),
        ("population --y0 -1e300", "0", "too fast. Change --y0, --a, --tau, --lag."),
        ("hutchinson --y0 -0.5", r"3\.00\d*", "an earlier --t1, or change --y0, --a, --tau."),
        ("held-oscillator --omega 1e6", r"0\.0\d*", "--y0, --omega, --zeta, --k, --tau."),
    ],
)
def test_a_failing_solve_names_the_time_and_a_remedy(lagrax_command, tmp_path, line, until, remedy):
    code, out, err = lagrax_command("simulate", *line.split())
    assert (code, out) == (1, "")
    assert re.match(rf"The solve stopped at t = {until}, ", err)
    assert remedy in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(lagrax_command, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = lagrax_command("simulate", "population", "--out", "file/x.png")
    assert code == 1
    assert "file" in err


@pytest.mark.parametrize(("name", "t1"), [("population", "20000"), ("mackey-glass", "5000")])
def test_a_long_simulation(lagrax_command, name, t1):
    code, _, err = lagrax_command("simulate", name, "--t1", t1, "--csv", "x.csv")
    assert (code, err) == (0, "")


def test_every_system_has_its_summary(lagrax_command):
    _, out, _ = lagrax_command("simulate", "--help")
    assert simulating.SUMMARIES.keys() == lagrax.systems.SYSTEMS.keys()
    assert "$" not in out


def test_a_new_folder_is_announced(lagrax_command, tmp_path):
    line = ["simulate", "population", "--out", "plots/x.png"]
    assert f"Made the folder {tmp_path / 'plots'}\n" in lagrax_command(*line)[1]
    assert "Made the folder" not in lagrax_command(*line)[1]
