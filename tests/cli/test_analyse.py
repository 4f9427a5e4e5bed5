"""`lagrax analyse`, as a user types it."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import lambertw

import lagrax
from lagrax._cli import (
    analyse as analysing,
    analyse_diagram,
    answers as _answers,
    long_run as _longrun,
)
from lagrax._cli.analyse_equation import ParameterRange
from lagrax._cli.long_run import learned_map, long_run_of, precisely, why_no_map
from lagrax.analysis import Bifurcation
from lagrax.plotting import from_json


def read_csv(path):
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    return header, np.array(rows, float)


# --- systems --------------------------------------------------------------------------------------


def test_population_over_a(lagrax_command, tmp_path):
    line = "analyse population --a 2.2 --param a 1.5 3.5 --values 101 --keep 128 --out found --json"
    code, out, _ = lagrax_command(*line.split())
    answer = json.loads(out)
    assert code == 0
    assert answer["parameters"] == {"a": 2.2, "tau": 1.0, "lag": 0}
    orbits = {o["period"]: o for o in answer["orbits"] if o["stability"] == "stable"}
    assert set(orbits) == {2}
    assert answer["period"] == 2
    # The fixed point 1 has the multiplier 1 - a.
    (one,) = [o for o in answer["orbits"] if np.allclose(o["points"], 1.0)]
    np.testing.assert_allclose(one["multipliers"], [[-1.2, 0.0]], atol=1e-9)
    (critical,) = answer["critical"]
    assert critical["value"] == pytest.approx(2.0, abs=1e-9)
    assert not critical["gains"]
    assert "doubling" in critical["event"]
    assert answer["windows"][0]["period"] == 1
    assert {"diagram.csv", "states.csv", "figures/diagram.png", "figures/cobweb.json"} <= set(
        answer["files"]
    )
    for name in answer["files"]:
        assert (tmp_path / "found" / name).stat().st_size > 0


@pytest.mark.slow
def test_the_files_of_a_diagram(lagrax_command, tmp_path):
    line = "analyse population --param a 1.5 3.5 --values 20 --keep 64 --skip 200 --out found"
    code, out, err = lagrax_command(*line.split())
    assert code == 0
    assert "the fixed point 1 loses its stability at a = 2 " in out
    assert out.endswith(f"Wrote {tmp_path / 'found/figures/diagram.png'}\n")
    assert "Traceback" not in err
    header, table = read_csv(tmp_path / "found/diagram.csv")
    assert header == ["a", "exponent", "period", "x_low", "x_high"]
    np.testing.assert_allclose(table[:, 0], np.linspace(1.5, 3.5, 20))
    # At a = 1.5 the exponent is ln |1 - a| at the fixed point.
    np.testing.assert_allclose(table[0, 1:], [np.log(0.5), 1, 1, 1], atol=1e-6)
    header, states = read_csv(tmp_path / "found/states.csv")
    assert states.shape == (20, 65)
    assert header[:3] == ["a", "x[0]", "x[1]"]
    np.testing.assert_allclose(states[:, 1:].min(axis=1), table[:, 3], rtol=1e-6)
    figure = from_json(json.loads((tmp_path / "found/figures/diagram.json").read_text()))
    assert len(figure.panels) == 2


def test_a_population_with_a_lag(lagrax_command):
    line = "analyse population --lag 1 --param a 0.5 1.6 --values 8 --keep 8 --skip 64 --json"
    code, out, _ = lagrax_command(*line.split())
    answer = json.loads(out)
    assert (code, answer["parameters"]["lag"]) == (0, 1)
    # S. A. Levin, R. M. May: the fixed point 1 is left at 2 cos(pi/3), for a wave.
    (critical,) = answer["critical"]
    assert critical["value"] == pytest.approx(1.0, abs=1e-9)
    assert "invariant curve" in critical["event"]


@pytest.mark.slow
def test_chaos_is_named(lagrax_command):
    code, out, _ = lagrax_command("analyse", "population", "--a", "3.0")
    assert code == 0
    assert "it is chaotic" in out


def make_diagram(periods, exponents):
    values = np.linspace(2.0, 3.0, len(periods))
    states = np.zeros((len(values), 4, 1))
    return Bifurcation(values, states, np.asarray(exponents, float), np.asarray(periods))


def test_narrow_windows_within_chaos_are_reported():
    """As at a = 2.775, where the population has the period 12 amid chaos."""
    periods, exponents = np.zeros(300, int), np.full(300, 0.3)
    periods[:50], exponents[:50] = 1, -0.3
    periods[200], exponents[200] = 12, -0.1
    size = analyse_diagram.CLASSICAL
    windows = analyse_diagram.find_windows(make_diagram(periods, exponents), size)
    assert [w["period"] for w in windows] == [1, 0]
    assert [w["throughout"] for w in windows] == [True, False]
    lines = analyse_diagram.describe_diagram(ParameterRange("a", 2.0, 3.0), [], windows)
    assert lines[0].startswith("a fixed point from 2 to 2.1")
    assert lines[1].startswith("chaos, except for narrow windows, from 2.1")


def test_underflow_is_no_period():
    """An orbit that repeats although orbits nearby part stays in place by rounding alone."""
    size = analyse_diagram.CLASSICAL
    for exponent, kind in ((0.5, analyse_diagram.UNDERFLOW), (-0.5, 1)):
        diagram = make_diagram(np.ones(20, int), np.full(20, exponent))
        assert [w["period"] for w in analyse_diagram.find_windows(diagram, size)] == [kind]


def test_an_invariant_curve_is_no_chaos(lagrax_command):
    """With two lags the population goes round one from a = 0.618 on, with windows in between."""
    line = "analyse population --lag 2 --param a 0.8 1.35 --values 10 --json --out found"
    code, out, _ = lagrax_command(*line.split())
    assert code == 0
    windows = json.loads(out)["windows"]
    assert windows
    assert not [w for w in windows if w["period"] == 0]


def test_documentation_states_the_iterates_that_decide_on_chaos():
    page = Path(__file__).parents[2].joinpath("docs/analysis.md").read_text(encoding="utf-8")
    usual, learned = analyse_diagram.CLASSICAL, analyse_diagram.LEARNED
    assert f"{usual.confirm:,} iterates ({learned.confirm:,} of a learned" in " ".join(page.split())


def test_an_underflowing_population_has_no_fixed_point(lagrax_command):
    """At a = 8 the population is to fall to 1e-470 and to rise again."""
    code, out, _ = lagrax_command("analyse", "population", "--a", "8")
    assert code == 0
    assert "falls below the smallest floating-point number" in out
    assert "settles" not in out


def test_a_linear_equation_over_one_parameter(lagrax_command, tmp_path):
    code, out, _ = lagrax_command(
        *[
            "analyse",
            "digital-control",
            "--param",
            "gain",
            "0.1",
            "4",
            "--values",
            "40",
            "--out",
            "found",
            "--json",
        ]
    )
    answer = json.loads(out)
    assert code == 0
    (critical,) = answer["critical"]
    assert critical["value"] == pytest.approx(2.0, abs=1e-9)  # gain times tau is 2
    header, table = read_csv(tmp_path / "found/diagram.csv")
    assert header == ["gain", "exponent", "modulus1", "modulus2"]
    np.testing.assert_allclose(np.exp(table[:, 1]), table[:, 2], rtol=1e-9)


@pytest.mark.slow
def test_a_linear_equation_that_grows_everywhere(lagrax_command):
    code, out, _ = lagrax_command(
        *[
            "analyse",
            "held-oscillator",
            "--zeta",
            "-0.5",
            "--param",
            "tau",
            "0.1",
            "1",
            "--values",
            "9",
        ]
    )
    assert code == 0
    assert "not stable at all of them" in out
    assert "it grows" in out


def test_the_region_of_two_parameters(lagrax_command, tmp_path):
    line = "analyse digital-control --param gain 0.1 4 --param tau 0.1 2 --values 12 --out found"
    code, out, _ = lagrax_command(*line.split())
    assert code == 0
    assert "of the pairs" in out
    header, boundary = read_csv(tmp_path / "found/boundary.csv")
    assert header == ["gain", "tau"]
    np.testing.assert_allclose(boundary[:, 0] * boundary[:, 1], 2.0, rtol=1e-9)
    assert read_csv(tmp_path / "found/region.csv")[1].shape == (144, 3)
    assert (tmp_path / "found/figures/region.png").exists()


def test_files_of_an_earlier_answer_are_removed(lagrax_command, tmp_path):
    first = "analyse linear --param tau 0.5 1 --values 4 --out found"
    assert lagrax_command(*first.split())[0] == 0
    (tmp_path / "found/notes.txt").write_text("mine")
    assert lagrax_command("analyse", "linear", "--out", "found")[0] == 0
    names = {p.name for p in (tmp_path / "found").rglob("*") if p.is_file()}
    assert names == {"notes.txt", "summary.json"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nothing", "No equation and no folder 'nothing': expected one of population, linear"),
        ("hutchinson --k 3", "hutchinson has no parameter k: it has a, tau."),
        ("mackey-glass --param tau 0 1", "tau = 0 to 1: expected a positive number."),
        ("population --k 3", "population has no parameter k: it has a, tau, lag."),
        ("population --tau -1", "tau = -1: expected a positive number."),
        ("population --a nan", "a = nan: expected a finite number."),
        ("population --param b 1 2", "population has no parameter b: it has a, tau, lag."),
        ("population --param a 2 1", "--param a 2 1: expected the lower value first."),
        ("population --param tau 0 1", "tau = 0 to 1: expected a positive number."),
        ("population --param a 1", "--param a 1: expected a parameter and two numbers"),
        ("population --param a 1 x", "--param a 1 x: expected a parameter and two numbers"),
        ("population --param a 1 2 --param tau 1 2", "population is not linear, and two"),
        ("linear --param tau 1 2 --param tau 1 3", "expected one parameter, or two different"),
        ("population --values 0", "expected at least 1"),
        ("population --out file", "--out file is a file; expected a folder"),
        ("population --out full", "--out full holds something other than an answer of `lagrax an"),
        ("full", "full holds no model.json"),
    ],
)
def test_bad_input_gets_one_sentence(lagrax_command, tmp_path, line, sentence):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    code, out, err = lagrax_command("analyse", *line.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]


def test_stopped_it_leaves_nothing(lagrax_command, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(analysing, "write_figures", stop)
    code, out, err = lagrax_command("analyse", "linear")
    assert (code, out) == (130, "")
    assert err == "Stopped. Nothing was written.\n"
    assert list(tmp_path.iterdir()) == []


# --- the folder -----------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(_answers.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="cannot be written to"):
        _answers.check_folder(tmp_path / "a/b", "fit")


def test_files_outside_are_never_removed(tmp_path):
    (tmp_path / "precious").write_text("")
    with _answers.answering(tmp_path / "found") as folder:
        _answers.write_summary(folder, {"command": "fit"})
    summary = json.loads((tmp_path / "found/summary.json").read_text())
    summary["files"] += ["../precious", "gone.csv"]
    (tmp_path / "found/summary.json").write_text(json.dumps(summary))
    with _answers.answering(tmp_path / "found") as folder:
        (folder / "report.html").write_text("")
        _answers.write_summary(folder, {"command": "fit"})
    assert (tmp_path / "precious").exists()
    assert {p.name for p in (tmp_path / "found").iterdir()} == {"report.html", "summary.json"}


def test_a_summary_that_is_none(tmp_path):
    (tmp_path / "summary.json").write_text("[1]")
    assert _answers.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text("{")
    assert _answers.read_summary(tmp_path) == {}


# --- words ----------------------------------------------------------------------------------------


def test_sentences_on_the_long_run():
    empty = _longrun.LongRun(np.array([0.5]), [], 0, np.array([np.nan]), False, None)
    assert "runs away to infinity" in empty.sentence
    assert empty.to_json()["exponents"] == [None]
    assert "No fixed point was found." in empty.lines()
    assert (
        "settles at a fixed point" in empty._replace(period=1, exponents=np.array([-1.0])).sentence
    )
    assert "an invariant curve" in empty._replace(exponents=np.array([0.0, -1.0])).sentence
    far = empty._replace(left_out=2)
    assert "No fixed point was found near the measurements." in far.lines()
    assert far.omission.startswith("2 orbits are left out")
    orbit = lagrax.analysis.Orbit(np.array([[0.0]]), np.array([0.5]))
    assert far._replace(orbits=[orbit]).omission.startswith("2 more orbits are left out")


@pytest.mark.parametrize("turn", [9.6, 4.3])
def test_the_turn_round_a_closed_curve(x64, turn):
    """A rotation on a circle that attracts."""
    c, s = np.cos(2 * np.pi / turn), np.sin(2 * np.pi / turn)
    rotation = jnp.array([[c, -s], [s, c]])
    growth = lambda z: 1.1 - 0.1 * jnp.sum(z**2)
    circle = lagrax.analysis.KnotMap(lambda z: growth(z) * (rotation @ z), y0=jnp.array([0.5, 0]))
    assert _longrun.find_turn(circle) == pytest.approx(turn, rel=2e-3)
    spiral = lagrax.analysis.KnotMap(lambda z: 0.9999 * (rotation @ z), y0=jnp.array([0.5, 0]))
    assert _longrun.find_turn(spiral) is None
    run = _longrun.LongRun(np.array([0.5]), [], 0, np.array([0.0, -1.0]), False, None, turn=turn)
    assert f"once in about {turn:g} knots" in run.sentence


def test_an_escaping_orbit(x64):
    doubling = lagrax.analysis.KnotMap(lambda x: 2 * x, y0=1.0)
    assert "runs away" in _longrun.long_run(doubling).sentence


# --- equations with lags --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_long_run_with_a_lag(lagrax_command, tmp_path):
    """At a τ = 1.8 the population's cycle has the period 4.18, of which a simulation knows."""
    code, out, _ = lagrax_command(*["analyse", "hutchinson", "--out", "found", "--json"])
    answer = json.loads(out)
    assert code == 0
    assert [e["state"] for e in answer["equilibria"]] == [
        [pytest.approx(0.0, abs=1e-12)],
        [pytest.approx(1.0)],
    ]
    # At 0 the lagged state drops out, and only one root is left.
    assert answer["equilibria"][0]["roots"] == [[pytest.approx(1.8), 0.0]]
    assert answer["equilibria"][1]["roots"][0][0] == pytest.approx(lambertw(-1.8).real)
    assert "settles into a cycle of period 4.18" in answer["sentence"]
    assert answer["cycle"]["multipliers"][0] == [pytest.approx(1.0, abs=1e-6), 0.0]
    assert (tmp_path / "found/figures/cycle.png").exists()


def test_branches_of_an_equation_with_a_lag(lagrax_command, tmp_path):
    line = "analyse hutchinson --a 1.2 --param a 1.3 1.8 --out found --json"
    code, out, _ = lagrax_command(*line.split())
    answer = json.loads(out)
    assert code == 0
    assert "comes to rest" in answer["sentence"]
    assert [b["kind"] for b in answer["branches"]] == ["equilibria", "equilibria", "cycles"]
    (event,) = [e for b in answer["branches"] for e in b["events"]]
    assert event == {"kind": "Hopf", "parameter": pytest.approx(np.pi / 2)}
    header, table = read_csv(tmp_path / "found/diagram.csv")
    assert header == ["branch", "a", "stable", "period", "x_low", "x_high"]
    cycles = table[table[:, 0] == 3]
    assert np.all(cycles[:, 2] == 1)
    assert np.all(cycles[:, 3] > 4)
    assert np.all(cycles[:, 5] > cycles[:, 4])


def test_the_chart_of_an_equation_with_a_lag(lagrax_command, tmp_path):
    line = "analyse hutchinson --a 1 --param a 0.5 3 --param tau 0.5 2 --values 6 --out found"
    code, out, _ = lagrax_command(*line.split())
    assert code == 0
    assert "  the equilibrium 1, found from 0.5, is stable at " in out
    assert out.endswith(f"Wrote {tmp_path / 'found/figures/chart.png'}\n")
    header, boundary = read_csv(tmp_path / "found/boundary.csv")
    assert header == ["a", "tau"]
    np.testing.assert_allclose(boundary[:, 0] * boundary[:, 1], np.pi / 2, rtol=1e-9)


@pytest.mark.slow
def test_a_learned_equation_with_a_lag_and_without(lagrax_command, tmp_path):
    """The lagged one is Hutchinson's; the other relaxes to 2 at the rate 0.5."""
    ts, system = np.linspace(0, 30, 301), lagrax.systems.Hutchinson(1.2)
    sol = lagrax.solve(
        *(system, 0.0, 30.0, 0.5),
        **{"delays": system.delays, "saveat": diffrax.SaveAt(ts=ts), "steps": 16},
    )
    model = lagrax.Identifier([lagrax.Lag(1.0)], "library", progress=False)
    model.fit(ts, np.asarray(sol.ys)).save(tmp_path / "lagged/model")
    code, out, _ = lagrax_command("analyse", "lagged", "--json", "--out", "first")
    answer = json.loads(out)
    assert code == 0
    (one,) = [e for e in answer["equilibria"] if abs(e["state"][0] - 1) < 0.05]
    assert one["roots"][0][0] == pytest.approx(lambertw(-1.2).real, abs=0.05)
    plain = lagrax.Identifier([], "library", progress=False)
    plain.fit(ts, 2 - 1.5 * np.exp(-0.5 * ts)).save(tmp_path / "plain/model")
    code, out, _ = lagrax_command("analyse", "plain", "--json", "--out", "second")
    answer = json.loads(out)
    (rest,) = [e for e in answer["equilibria"] if abs(e["state"][0] - 2) < 0.1]
    assert rest["roots"] == [[pytest.approx(-0.5, abs=0.05), 0.0]]
    assert "comes to rest" in answer["sentence"]


# --- learned equations ----------------------------------------------------------------------------


def series(a=1.2, periods=12, samples=5):
    ts = np.linspace(0, periods, periods * samples + 1)
    return ts, np.asarray(lagrax.systems.Population(a=a).solution(ts, y0=0.5))


@pytest.mark.slow
def test_a_learned_equation(lagrax_command, tmp_path):
    model = lagrax.Identifier(lagrax.holds(1.0, 1), "library", progress=False)
    model.fit(*series()).save(tmp_path / "mine/model")
    line = "analyse mine --param tau 0.8 2.5 --values 16 --keep 32 --skip 200 --out found --json"
    code, out, _ = lagrax_command(*line.split())
    answer = json.loads(out)
    assert code == 0
    assert answer["subject"] == "mine"
    (stable,) = [o for o in answer["orbits"] if o["stability"] == "stable"]
    np.testing.assert_allclose(stable["points"], 1.0, atol=1e-2)
    # The multiplier is 1 - a tau, so it leaves the unit circle at tau = 2/a.
    np.testing.assert_allclose(stable["multipliers"][0], [1 - 1.2, 0], atol=2e-2)
    (critical,) = [c for c in answer["critical"] if abs(c["point"][0] - 1) < 0.1]
    assert critical["value"] == pytest.approx(2 / 1.2, rel=2e-2)
    again = lagrax_command("analyse", "mine/model", "--tau", "1.5", "--json", "--out", "other")
    assert json.loads(again[1])["parameters"] == {"tau": 1.5}


@pytest.mark.slow
def test_small_units_change_nothing_but_the_numbers():
    """The orbits of a learned equation are the same in metres and in picometres."""
    unit = 1e-12
    ts = np.linspace(0, 24, 241)
    ys = np.asarray(lagrax.systems.Population(a=2.6).solution(ts, 0.4), float)
    found = []
    for scale in (1.0, unit):
        model = lagrax.Identifier([lagrax.Hold(1.0)], "library").fit(ts, scale * ys)
        with precisely():
            found.append(long_run_of(model))
    plain, small = found
    assert (plain.period, small.period) == (4, 4)
    assert [o.stability for o in small.orbits] == [o.stability for o in plain.orbits]
    assert [o.period for o in small.orbits] == [o.period for o in plain.orbits] == [1, 1, 4]
    for a, b in zip(plain.orbits, small.orbits, strict=True):
        points = np.asarray(b.points) / unit
        np.testing.assert_allclose(points, np.asarray(a.points), rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(b.multipliers, a.multipliers, rtol=0.01)
    assert small.points(small.orbits[0]) == "0"
    assert small.cobweb is not None
    states = np.concatenate([np.ravel(line.y) for line in small.cobweb.panels[0].marks])
    assert np.nanmax(states) < 10 * unit


@pytest.mark.parametrize(
    ("delays", "inputs", "why"),
    [
        ([], False, "has no delays"),
        ([lagrax.Lag(1.0)], False, "has a lag or irregular instants"),
        ([lagrax.Hold(times=[1.0, 3.0])], False, "has a lag or irregular instants"),
        ([lagrax.Hold(1.0), lagrax.Hold(0.5)], False, "holds of different periods"),
        ([lagrax.Hold(1.0)], True, "has inputs"),
    ],
)
def test_equations_without_a_map(delays, inputs, why):
    model = lagrax.Identifier(delays)
    model.delays_, model.series_ = delays, [SimpleNamespace(us=np.zeros((5, int(inputs))))]
    assert why in why_no_map(model)
    with pytest.raises(ValueError, match=why):
        learned_map(model)


def test_a_learned_equation_without_a_map(lagrax_command, tmp_path, monkeypatch):
    model = lagrax.Identifier()
    model.delays_, model.series_ = [], [SimpleNamespace(us=np.zeros((5, 1)))]
    monkeypatch.setattr(lagrax.Identifier, "load", lambda folder: model)
    (tmp_path / "plain").mkdir()
    code, _, err = lagrax_command("analyse", "plain")
    assert code == 2
    assert err.startswith("plain: The equation has inputs")
