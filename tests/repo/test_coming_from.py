"""Guides for users of other libraries: both sides of each page compute the same numbers.

Blocks in `python` are lagrax's (and diffrax's) and always run. Those in `py` are another library's
and run where it is installed.
"""

import gc
import math
import re
import sys
import types
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"

# What both sides call by the same name, and how far they may differ, relative to its size.
SAME = {
    "torchdiffeq": {
        "ys": 1e-4,
        "slope": 1e-3,
        "ys_adjoint": 1e-4,
        "slope_adjoint": 1e-3,
        "features": 1e-4,
    },
    # torchdde's gradient with respect to the delay is off by some per cent, even with short steps.
    "torchdde": {"ys": 1e-3, "slope_a": 1e-3, "slope_tau": 5e-2},
    "pysindy": {"ys": 1e-4, "slope": 5e-3, "end": 1e-2, "score": 1e-3},
    "jitcdde": {"ys": 1e-3},
}
# Pages on programs in other languages, whose side of the page is not run.
FOREIGN = ("dde23", "delaydiffeq")


def run(name: str, language: str, monkeypatch) -> dict:
    """Runs the blocks of a page in one language and returns their names."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found
    module = types.ModuleType(f"coming_from_{name}_{language}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.enable_x64(False):
        for code in found:
            exec(compile(code, f"{name}.md", "exec"), module.__dict__)
    return module.__dict__


def as_array(value) -> np.ndarray:
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value, float)


def test_each_library_has_a_page():
    assert {path.stem for path in FOLDER.glob("*.md")} == {"diffrax", *FOREIGN, *SAME}


def test_the_equation_of_dde23_has_its_exact_solution(monkeypatch):
    ours = run("dde23", "python", monkeypatch)
    exact = wille_baker(np.linspace(0, 5, 51), 0.2)
    np.testing.assert_allclose(ours["ys"], exact, rtol=1e-4)
    last = lambda tau: wille_baker(np.array([5.0]), tau)[0, 1]
    # The quotient is exact up to its step, and the intervals of the exact solution stay in order.
    quotient = (last(0.2 + 1e-5) - last(0.2 - 1e-5)) / 2e-5
    np.testing.assert_allclose(ours["slope"], quotient, rtol=1e-3)
    assert ours["moving"] == pytest.approx(moving_lag(), abs=1e-4)


def moving_lag(h=1e-3):
    """y' = -y(t - 1 - y^2 / 2) at 5, from a past of 0.8, by Heun's method and linear reads."""
    ys = [0.8]

    def slope(t, y):
        place = (t - 1 - y**2 / 2) / h
        k = int(np.floor(place))
        return -0.8 if place <= 0 else -(ys[k] + (place - k) * (ys[k + 1] - ys[k]))

    for step in range(round(5 / h)):
        t, y = step * h, ys[-1]
        first = slope(t, y)
        ys.append(y + h / 2 * (first + slope(t + h, y + h * first)))
    return ys[-1]


def wille_baker(ts, tau):
    """y1' = y1(t - 1), y2' = y1(t - 1) + y2(t - tau), y3' = y2 with a past of ones.

    On each interval the solution is a Taylor polynomial, and these sums are the whole of it.
    """
    y1, y2, y3 = (np.ones_like(ts) for _ in range(3))
    # y1 = sum over n of (t - n + 1)^n / n!, each term from t = n - 1 on.
    terms = [(n, n - 1) for n in range(1, 9)]
    power = lambda since, n: np.where(ts > since, np.maximum(ts - since, 0) ** n, 0)
    factorial = lambda n: float(math.factorial(n))
    for n, since in terms:
        y1 = y1 + power(since, n) / factorial(n)
    # By Laplace transforms, y2 is the sum of y1's terms and its own past, each delayed m tau.
    for m in range(int(6 / tau)):
        y2 = y2 + power(m * tau, m + 1) / factorial(m + 1)
        y3 = y3 + power(m * tau, m + 2) / factorial(m + 2)
        for n, since in terms:
            y2 = y2 + power(since + m * tau, n + m) / factorial(n + m)
            y3 = y3 + power(since + m * tau, n + m + 1) / factorial(n + m + 1)
    return np.stack([y1, y2, y3 + ts], axis=1)


def test_the_equation_of_delaydiffeq_agrees_with_scipy(monkeypatch):
    ours = run("delaydiffeq", "python", monkeypatch)
    reference = lambda tau: tumour(ours["p"], tau)
    np.testing.assert_allclose(ours["us"], reference(1.0), rtol=1e-3, atol=1e-5)
    quotient = (reference(1.001) - reference(0.999))[-1, 2] / 2e-3
    np.testing.assert_allclose(ours["slope"], quotient, rtol=1e-2)


def tumour(p, tau):
    """The states at 0, 0.5, ..., 10, by the method of steps with SciPy."""
    p0, q0, v0, d0, p1, q1, v1, d1, d2, beta0, beta1 = p
    past, start, ts = lambda t: np.ones(3), np.ones(3), np.linspace(0, 10, 21)

    def slope(t, u, past):
        lagged = past(t - tau)[2]
        first, second = v0 / (1 + beta0 * lagged**2), v1 / (1 + beta1 * lagged**2)
        return [
            first * (p0 - q0) * u[0] - d0 * u[0],
            first * (1 - p0 + q0) * u[0] + second * (p1 - q1) * u[1] - d1 * u[1],
            second * (1 - p1 + q1) * u[1] - d2 * u[2],
        ]

    rows = [start]
    for k in range(math.ceil(10 / tau)):
        span = (k * tau, (k + 1) * tau)
        answer = solve_ivp(
            slope, span, start, args=(past,), rtol=1e-10, atol=1e-12, dense_output=True
        )
        past, start = answer.sol, answer.y[:, -1]
        rows += [past(t) for t in ts if span[0] < t <= span[1]]
    return np.stack(rows)


def test_diffrax_and_lagrax_agree(monkeypatch):
    names = run("diffrax", "python", monkeypatch)
    for kind in ("", "_held", "_lag"):
        np.testing.assert_allclose(names[f"ours{kind}"], names[f"theirs{kind}"], atol=1e-4)


@pytest.mark.parametrize("name", SAME)
def test_both_sides_agree(name, monkeypatch, tmp_path):
    pytest.importorskip(name)
    ours = run(name, "python", monkeypatch)
    monkeypatch.chdir(tmp_path)  # jitcdde's compiler takes packages around it for its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of others are theirs
        theirs = run(name, "py", monkeypatch)
    for variable, tolerance in SAME[name].items():
        own, other = as_array(ours[variable]).squeeze(), as_array(theirs[variable]).squeeze()
        assert own.shape == other.shape, variable
        assert np.max(np.abs(own - other)) <= tolerance * np.max(np.abs(other)), variable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jitcdde leaves its folder to be removed at the end
        theirs.clear()
        gc.collect()
