"""What do lags that depend on the state cost?

Two equations up to t = 30: C1 of the collection DDETST, y' = -2 y(t - 1 - |y|) (1 - y^2) from a
past of 0.5 (Mallet-Paret and Nussbaum), and y' = -1.2 y(t - 1 - y^2 / 2) from 0.8. In lagrax steps
end where a lag passes a kink. jitcdde takes adaptive steps of at most 1 in compiled C and ignores
these kinks. SciPy's solve_ivp (RK45) goes by a method of steps of length 1, the shortest lag, on
its own dense output, and ignores them, too.

Errors are the largest at the whole numbers, compared with SciPy's DOP853 at 1e-12. "At equal error"
takes the fastest row of lagrax among those that are at least as accurate; evaluations are compared
in the same way. jitcdde does not count its evaluations. Times are medians of turns in one run on a
busy machine, in float64.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, scipy 1.17.1, jitcdde 1.8.3:

    8.71     ≥ 1 met       time of scipy over lagrax's at equal error, hardest to beat
    0.082    ≥ 1 missed    time of jitcdde over lagrax's at equal error, hardest to beat
    0.967    ≥ 1 missed    evaluations of scipy over lagrax's at equal error, hardest to beat

`python benchmarks/state_dependent.py` takes a few minutes. It prints the table and writes the rows.
Without jitcdde its rows are left out.
"""

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from measuring import (
    RESULTS,
    at_least,
    fastest_as_accurate,
    milliseconds,
    options_for,
    table,
    write,
)
from scipy.integrate import solve_ivp

import lagrax

QUESTION = "What do lags that depend on the state cost?"


class Equation(NamedTuple):
    """y' = slope(y, y(t - lag(y))) with a constant past, for lags of at least 1 and at most 3."""

    name: str
    slope: Callable
    lag: Callable
    start: float


EQUATIONS = (
    Equation(
        "C1 of DDETST",
        lambda y, past: -2 * past * (1 - y**2),
        lambda y: 1 + (y**2) ** 0.5,
        0.5,
    ),
    Equation("quadratic lag", lambda y, past: -1.2 * past, lambda y: 1 + y**2 / 2, 0.8),
)


def with_lagrax(equation: Equation, end: int, tolerance: float) -> Callable:
    """The states at whole numbers, and the number of evaluations."""
    # The square root has no derivative at 0, and is |y| all the same.
    lag = lambda t, y, args: equation.lag(y)
    delays = [lagrax.Lag(lag, low=1.0, high=3.0)]
    field = lambda t, y, args, *, history: equation.slope(y, history[0])
    controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    saveat = diffrax.SaveAt(ts=np.arange(0.0, end + 1))

    @jax.jit
    def run(start):
        how = {"saveat": saveat, "stepsize_controller": controller, "max_steps": 1024}
        sol = lagrax.solve(field, 0.0, float(end), start, delays=delays, **how)
        return sol.ys, sol.stats["num_evaluations"]

    return partial(run, jnp.asarray(equation.start))


def with_scipy(equation: Equation, end: int, tolerance: float, method: str = "RK45") -> Callable:
    def run():
        past, ys, evaluations = lambda t: np.array([equation.start]), [equation.start], 0
        pieces: list[Callable] = []

        def read(t):
            place = int(np.floor(t))
            return past(t) if t <= 0 else pieces[min(place, len(pieces) - 1)](t)

        def slope(t, y):
            return equation.slope(y, read(t - equation.lag(y[0])))

        for k in range(end):
            how = {"method": method, "rtol": tolerance, "atol": tolerance, "dense_output": True}
            sol = solve_ivp(slope, (k, k + 1), [ys[-1]], **how)
            pieces.append(sol.sol)
            ys.append(sol.y[0, -1])
            evaluations += sol.nfev
        return np.array(ys), evaluations

    return run


def with_jitcdde(equation: Equation, end: int, tolerance: float) -> Callable:
    from jitcdde import jitcdde, t, y

    dde = jitcdde(
        [equation.slope(y(0), y(0, t - equation.lag(y(0))))], max_delay=3.0, verbose=False
    )
    # Its compiler takes any folder of packages around it for its own.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        dde.compile_C(simplify=False)

    def run():
        dde.purge_past()
        dde.reset_integrator()
        dde.constant_past([equation.start])
        # While the past is constant, it sees no error, and its steps would get too long.
        dde.set_integration_parameters(rtol=tolerance, atol=tolerance, max_step=1.0)
        # The slope jumps at 0, from that of the past.
        dde.adjust_diff(shift_ratio=1e-7)
        return np.array([equation.start, *(dde.integrate(k)[0] for k in range(1, end + 1))]), None

    return run


def measure(end: int, tolerances: tuple[float, ...], repeats: int) -> list[dict]:
    libraries = {"lagrax": with_lagrax, "scipy": with_scipy}
    if importlib.util.find_spec("jitcdde"):
        libraries["jitcdde"] = with_jitcdde
    rows = []
    for equation in EQUATIONS:
        exact, _ = with_scipy(equation, end, 1e-12, "DOP853")()
        calls = {
            (library, tolerance): make(equation, end, tolerance)
            for library, make in libraries.items()
            for tolerance in tolerances
        }
        answers = {name: call() for name, call in calls.items()}
        ms = milliseconds(calls, repeats=repeats)
        for (library, tolerance), (ys, evaluations) in answers.items():
            row = {"problem": equation.name, "library": library, "tolerance": tolerance}
            row |= {"ms": ms[library, tolerance], "error": float(np.max(np.abs(ys - exact)))}
            rows.append(row if evaluations is None else row | {"evaluations": int(evaluations)})
    return rows


def judge(rows: list[dict]) -> list[dict]:
    goals = []
    for key, what, libraries in (
        ("ms", "time", ("scipy", "jitcdde")),
        ("evaluations", "evaluations", ("scipy",)),
    ):
        for library in libraries:
            ratios = []
            for row in rows:
                if row["library"] == library:
                    own = fastest_as_accurate(rows, row, floor=1e-9, time=key)
                    if own is not None:
                        ratios.append(row[key] / own[key])
            if ratios:
                name = f"{what} of {library} over lagrax's at equal error, hardest to beat"
                goals.append(at_least(name, min(ratios), 1))
    return goals


def main() -> None:
    options = options_for(QUESTION, RESULTS / "state_dependent.json")
    jax.config.update("jax_enable_x64", True)
    tolerances = (1e-3, 1e-4) if options.tiny else (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
    rows = measure(3 if options.tiny else 30, tolerances, 1 if options.tiny else 5)
    columns = {"problem": "", "library": "", "tolerance": ".0e", "ms": ".2f", "error": ".1e"}
    print(table(rows, columns | {"evaluations": ""}))
    write(options.out, QUESTION, rows, judge(rows), "scipy", "jitcdde")


if __name__ == "__main__":
    main()
