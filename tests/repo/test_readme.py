"""What the README states: its badges, commands, features, results and ratios."""

import functools
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import yaml

import lagrax
from lagrax._cli.app import app as lagrax_app
from lagrax.nn import MLP, NDDE, NPCDDE
from lagrax.systems import MackeyGlass, Population

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def supported_pythons() -> list[str]:
    return [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r"3\.\d+$", c)]


def test_badges_state_the_supported_versions_and_the_licence():
    versions = supported_pythons()
    assert f"![Python {' | '.join(versions)}]" in README
    assert f"badge/python-{'%20%7C%20'.join(versions)}-" in README
    assert f"![Licence {PROJECT['license']}]" in README
    assert f"badge/licence-{PROJECT['license'].replace('-', '--')}-" in README


def test_ci_runs_on_every_supported_python():
    read = lambda name: yaml.safe_load((ROOT / ".github" / name).read_text(encoding="utf-8"))
    assert read("workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == (
        supported_pythons()
    )
    assert read("workflows/release.yml")["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    for form in ("bug", "feature"):
        assert read(f"ISSUE_TEMPLATE/{form}.yml")["body"]


def test_readme_and_docs_state_the_supported_versions_of_jax():
    (requirement,) = [d for d in PROJECT["dependencies"] if d.startswith("jax>")]
    low, above = re.findall(r"0\.(\d+)", requirement)
    assert f"Requires JAX 0.{low} to 0.{int(above) - 1}," in README
    for page in (README, (ROOT / "docs/index.md").read_text(encoding="utf-8")):
        assert f"{requirement.replace('jax', 'jax[cuda12]')}" in page


def test_the_version_is_the_newest_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\d+\.\d+\.\d+) \(([\d-]+)\)$", changelog, re.MULTILINE)[0]
    assert version == lagrax.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f"\ndate-released: {date}\n" in citation
    assert f"  version = {{{version}}}," in README


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_commands_name_extras_and_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for extras in re.findall(r'"(?:lagrax|\.)\[([\w,]+)\]', text):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), page
        for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", text, re.MULTILINE):
            assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), (page, target)


# --- features -------------------------------------------------------------------------------------


def decay(t, y, args, *, history):
    return -history[0]


@functools.cache
def learned() -> lagrax.Identifier:
    ts = jnp.arange(0, 12.05, 0.1)
    model = lagrax.Identifier([lagrax.Hold(lagrax.Learn(0.8))], "library", progress=False)
    return model.fit(ts, Population(a=2.6).solution(ts, 0.4))


def final(delays, field=decay, **options):
    return lagrax.solve(field, 0.0, 2.0, 1.0, delays=delays, steps=4, **options).ys[-1]


def lagged_pair():
    field = lambda t, y, args, *, history: -history[0][:, 0]
    delays = [lagrax.LagMatrix(jnp.ones((2, 2)))]
    return lagrax.solve(field, 0.0, 2.0, jnp.ones(2), delays=delays, steps=4).ys[-1]


def slope_of_lag():
    tau = jnp.asarray(0.5)
    lag = lambda tau: final([lagrax.Lag(tau)], intervals=16)
    return jnp.isfinite(jax.grad(lag)(tau)) and jax.grad(lag)(tau) != 0


def leading_root():
    """x′ = −x(t − 1) at 0, whose leading root solves λ = −exp(−λ)."""
    equation = lagrax.analysis.LaggedEquation(decay, 0.0, delays=[lagrax.Lag(1.0)])
    root = lagrax.analysis.characteristic_roots(equation, 0.0)[0]
    return jnp.abs(root + jnp.exp(-root)) < 1e-5


def succeeds(call: Callable) -> bool:
    try:
        call()
    except (TypeError, ValueError):
        return False
    return True


def has_command(name: str) -> bool:
    return name in {c.name or c.callback.__name__ for c in lagrax_app.registered_commands}


KEY = jax.random.key(0)
# Whether lagrax has each feature of the table, found by using it.
FEATURES = {
    "Held states as a kind of delay": lambda: final([lagrax.Hold(1.0)]) == pytest.approx(0.0),
    "Lags": lambda: final([lagrax.Lag(1.0)]) == pytest.approx(-0.5, abs=1e-6),
    "Lags that depend on the state": lambda: jnp.isfinite(
        final([lagrax.Lag(lambda t, y, args: 1.0 + 0.2 * y, low=0.5)])
    ),
    "A lag for each link of a network": lambda: (
        lagged_pair() == pytest.approx([-0.5, -0.5], abs=1e-6)
    ),
    # x′ = −∫ x(t − s) ds over [0, 1], whose right side begins at −1.
    "Integrals over the past": lambda: (
        -1 < final([lagrax.Distributed(lambda s: 1.0, 1.0, nodes=4)]) < 0
    ),
    "Holds and lags in one equation": lambda: jnp.isfinite(
        final([lagrax.Hold(1.0), lagrax.Lag(0.5)])
    ),
    "Jumps of the state at known instants, such as doses": lambda: (
        final([], jumps=[lagrax.Jump([1.0], add=1.0)], field=lambda t, y, args: 0 * y) == 2.0
    ),
    "Inputs held between samples, with steps that end there": lambda: (
        final([lagrax.Input([0.0, 1.0], [2.0, 4.0])]) == pytest.approx(-5.0)
    ),
    "Reverse-mode gradients": lambda: jnp.isfinite(
        jax.grad(lambda tau: final([lagrax.Hold(tau)], intervals=4))(1.0)
    ),
    "`jax.jit`, `jax.vmap`": lambda: (
        jax.jit(jax.vmap(lambda tau: final([lagrax.Hold(tau)], intervals=4)))(jnp.ones(3)).shape
        == (3,)
    ),
    "Implicit solvers": lambda: jnp.isfinite(
        final([lagrax.Hold(1.0)], solver=diffrax.Kvaerno3(), gradient=lagrax.Direct())
    ),
    "Learned lags": slope_of_lag,
    "Learned sampling periods": lambda: learned().periods_ == [pytest.approx(1.0, abs=0.01)],
    "Layers for neural delay equations": lambda: (
        issubclass(NDDE, eqx.Module)
        and NPCDDE(MLP(1, (4,), history=1, key=KEY), 1, steps=1)(jnp.ones(1)).shape == (1,)
    ),
    "Equations from measured series": lambda: "x(⌊t" in learned().equations()[0],
    "Fixed points, multipliers, bifurcations of held equations": lambda: (
        lagrax.analysis.periodic_orbits(Population(a=1.5))[-1].multipliers is not None
        and lagrax.analysis.bifurcation is not None
    ),
    "Equilibria, cycles and their stability with lags": leading_root,
    "Lyapunov exponents of held equations": lambda: (
        lagrax.analysis.lyapunov(Population(a=3.0))[0] > 0
    ),
    "Lyapunov exponents of equations with lags": lambda: succeeds(
        lambda: lagrax.analysis.lyapunov(MackeyGlass())
    ),
    "From a CSV file to a forecast, without Python": lambda: has_command("fit"),
    "Neutral equations": lambda: final([lagrax.Slope(1.0)]) == pytest.approx(1.0, abs=1e-6),
    "Events found on the way": lambda: "event" in inspect.signature(lagrax.solve).parameters,
    "Stochastic equations": lambda: hasattr(lagrax, "Noise"),
}


def feature_table() -> dict[str, str]:
    """The features of the README's table, and lagrax's cell in each row."""
    rows = re.findall(r"^\| ([^|]+?) \| (✓|–) \|", section("What it adds"), re.MULTILINE)
    return dict(rows)


def test_the_feature_table_is_covered():
    assert list(feature_table()) == list(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_lagrax_has_the_features_of_the_table(feature):
    assert bool(FEATURES[feature]()) == (feature_table()[feature] == "✓")


# --- numbers and the command ----------------------------------------------------------------------


def goal(benchmark: str, *words: str) -> float:
    """The measured value of the one goal of a benchmark whose name has these words."""
    answer = json.loads((ROOT / f"benchmarks/results/{benchmark}.json").read_text(encoding="utf-8"))
    (found,) = [g for g in answer["goals"] if all(word in g["name"] for word in words)]
    return found["value"]


def test_speed_ratios_are_those_measured():
    step = ("fastest program", "a step a call")
    torchdiffeq = goal("population_step", "torchdiffeq,", *step)
    diffrax_ratio = goal("population_step", "diffrax, fastest", *step[1:])
    torchdde = goal("ndde_step", "torchdde", "Hutchinson", "gradient")
    text = section("Speed")
    assert f"{torchdiffeq:.1f} times as fast as with torchdiffeq" in text
    assert f"{diffrax_ratio:.1f} times as fast as with diffrax" in text
    assert f"{torchdde:.0f} times as fast as with torchdde" in text
    network = goal("delay_network", "solve at equal error", "vbjax")
    assert f"{network:.1f} times as fast as with vbjax at steps of 0.1 ms" in text
    source = (ROOT / "benchmarks/delay_network.py").read_text(encoding="utf-8")
    assert "84 regions" in source
    assert "6,972 links" in source
    assert "network of 84 nodes with 6,972 lags" in text
    function = goal("state_dependent", "time of jitcdde", "hardest")
    assert f"takes {1 / function:.0f} times as long as with jitcdde" in text
    first_call = goal("population_step", "first call", "Tsit5 at 1e-3")
    assert f"takes {first_call:.1f} times as long as with diffrax" in text


def test_accuracies_are_those_of_the_results():
    results = (ROOT / "results/images/README.md").read_text(encoding="utf-8")
    reached = dict(re.findall(r"^\| ([^|]+) \| (\d+) of 60 \|", results, re.MULTILINE))
    text = " ".join(section("The paper, reproduced").split())
    assert f"60 image accuracies, {reached['best epoch']} are reached" in text
    assert f"and {reached['last epoch']} by the last epoch" in text
    (largest,) = re.findall(r" to ([\d.]+) % on MNIST", results)
    assert f"fixed steps reach {float(largest):.0f} % on MNIST" in text


def coefficients(equation: str) -> dict[str, float]:
    """Coefficients by term, such as {"": 0.0785, "temperature": -0.0041}."""
    right = equation.split("′ = ")[1].replace("− ", "-").replace("+ ", "")
    terms = re.findall(r"(-?\d[\d.]*) ?([a-z]\S*)?", right)
    return {re.sub(r"\d\S*?([·)])", r"60\1", name): float(number) for number, name in terms}


def test_the_oven_command_finds_equation_and_period(lagrax_command):
    text = section("From a CSV file to a forecast")
    (command,) = re.findall(r"^lagrax (.+)$", text, re.MULTILINE)
    arguments = [str(ROOT / a) if a.endswith(".csv") else a for a in shlex.split(command)]
    code, out, _ = lagrax_command(*arguments, "--json")
    answer = json.loads(out)
    assert code == 0
    (shown,) = re.findall(r"^temperature′ = .+$", text, re.MULTILINE)
    (found,) = answer["equations"]
    shown, found = coefficients(shown), coefficients(found)
    assert found.keys() == shown.keys()
    for term, value in shown.items():
        assert found[term] == pytest.approx(value, abs=0.003 if not term else 2e-4), term
    (period,) = re.findall(r"the period, (\d+) s", " ".join(text.split()))
    assert answer["periods"] == [pytest.approx(float(period), abs=0.1)]
