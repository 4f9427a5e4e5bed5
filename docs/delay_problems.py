"""Solves published problems whose lags depend on time or state, for the table of a page.

python docs/delay_problems.py            solves them and writes the table of delay-problems.md
python docs/delay_problems.py --check    checks that the table is what the last measurement says

Most are from the test set of Enright and Hayashi (1997). Where no solution is known in closed form,
the error is that against an independent solution by SciPy at a tolerance of 1e-12.
"""

import bisect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import DOP853

import lagrax
from lagrax import Lag

PAGE = Path(__file__).parent / "delay-problems.md"
MEASURED = Path(__file__).parent / "delay-problems.json"
TABLE = re.compile(r"(?<=<!-- problems -->\n).*?(?=<!-- /problems -->)", re.DOTALL)
TOLERANCES = (1e-4, 1e-6, 1e-8)


class PublishedProblem(NamedTuple):
    """A published problem: its name and source, equation, span, past, lags and solution.

    `exact` gives the solution at the end, or is None if there is no closed form.
    """

    name: str
    source: str
    kind: str
    field: Callable
    t0: float
    t1: float
    past: Callable
    lags: list[Callable]
    low: list[float]
    exact: Callable | None


def _feldstein(t, y, args, *, history):
    return history[0] / (2 * jnp.sqrt(t))


def _b1(t, y, args, *, history):
    return 1 - history[0]


def _b2(t, y, args, *, history):
    return jnp.where(history[0] < 0, 1.0, -1.0) - y


def _pantograph(t, y, args, *, history):
    return -y + 0.7 * history[0]


def _c1(t, y, args, *, history):
    return -2 * history[0] * (1 - y**2)


def _c2(t, y, args, *, history):
    z, x = history[0][0], y[0]
    return jnp.stack([-2 * z, (jnp.abs(z) - jnp.abs(x)) / (1 + jnp.abs(z))])


def _c4(t, y, args, *, history):
    """Mahaffy, Bélair and Mackey: red blood cells, whose age at death depends on the state."""
    produced, died = 0.00372 * history[0][1], 0.00372 * history[1][1]
    cells, hormone, age = y[0], y[1], y[2]
    return jnp.stack(
        [
            produced - 0.1 * cells - 0.00178,
            15600 / (1 + 0.0382 * cells**6.96) - 6.65 * hormone,
            1 - 0.00178 * jnp.exp(0.1 * age) / died,
        ]
    )


def _d1(t, y, args, *, history):
    return jnp.stack([y[1], -history[0][1] * y[1] ** 2 * jnp.exp(1 - y[1])])


def _d2(t, y, args, *, history):
    """Gatica and Waltman: antigen, antibody, their complex, and the lag itself."""
    r1, r2, alpha, delta = 0.02, 0.005, 3.0, 0.01
    antigen, antibody, both, lag = y[0], y[1], y[2], y[3]
    now, before = antigen * antibody, history[0][0] * history[0][1]
    return jnp.stack(
        [
            -r1 * now + r2 * both,
            -r1 * now + alpha * r1 * before,
            r1 * now - r2 * both,
            1 + (3 * delta - now - both) * jnp.exp(delta * lag) / (before + history[0][2]),
        ]
    )


def _sum_series(t: float) -> float:
    """The pantograph's power series."""
    term, total = 1.0, 0.0
    for k in range(80):
        total += term * t**k
        term *= (-1 + 0.7 * 0.5**k) / (k + 1)
    return total


def _feldstein_exact(t: float) -> float:
    return t / 4 + 0.5 + (1 - np.sqrt(0.5)) * np.sqrt(t)


ROOT2 = float(np.sqrt(2))
constant = lambda *values: lambda t: jnp.array(values) + 0 * t
PROBLEMS = [
    PublishedProblem(
        "y′ = y(y − √2 + 1) / (2√t)",
        "Feldstein and Neves 1984",
        "state",
        *(_feldstein, 1.0, 5.0, lambda t: 1.0 + 0 * t),
        *([lambda t, y, args: t - y + ROOT2 - 1], [0.4], _feldstein_exact),
    ),
    PublishedProblem(
        "pantograph, y′ = −y + 0.7 y(t/2)",
        "Fox et al. 1971",
        "time, vanishing",
        *(_pantograph, 0.0, 10.0, lambda t: 1.0 + 0 * t),
        *([lambda t, y, args: t / 2], [0.0], _sum_series),
    ),
    PublishedProblem(
        "B1",
        "Neves 1975",
        "time, vanishing",
        *(_b1, 0.1, 10.0, jnp.log),
        *([lambda t, y, args: t - jnp.exp(1 - 1 / t)], [0.0], np.log),
    ),
    PublishedProblem(
        "B2",
        "Neves and Thompson 1992",
        "time, vanishing",
        *(_b2, 0.0, 2 * float(np.log(66)), lambda t: 1.0 + 0 * t),
        *([lambda t, y, args: t / 2], [0.0], lambda t: 66 * np.exp(-t) - 1),
    ),
    PublishedProblem(
        "C1",
        "Paul 1994",
        "state",
        *(_c1, 0.0, 30.0, lambda t: 0.5 + 0 * t),
        *([lambda t, y, args: 1 + jnp.abs(y)], [1.0], None),
    ),
    PublishedProblem(
        "C2",
        "Paul 1994",
        "state",
        *(_c2, 0.0, 40.0, constant(1.0, 0.5)),
        *([lambda t, y, args: y[1]], [0.05], None),
    ),
    PublishedProblem(
        "C4, red blood cells",
        "Mahaffy et al. 1998",
        "state",
        *(_c4, 0.0, 100.0, constant(3.5, 10.0, 50.0)),
        *([lambda t, y, args: 3.0, lambda t, y, args: 3 + y[2]], [3.0, 3.0], None),
    ),
    PublishedProblem(
        "D1",
        "Neves 1975",
        "state, vanishing",
        *(_d1, 0.1, 5.0, lambda t: jnp.stack([jnp.log(t), 1 / t])),
        *(
            [lambda t, y, args: t - jnp.exp(1 - y[1])],
            [0.0],
            lambda t: np.array([np.log(t), 1 / t]),
        ),
    ),
    PublishedProblem(
        "D2, antibodies",
        "Gatica and Waltman 1982",
        "state, vanishing",
        *(_d2, 0.0, 40.0, constant(5.0, 0.1, 0.0, 0.0)),
        *([lambda t, y, args: y[3]], [0.0], None),
    ),
]


def solve(problem: PublishedProblem, tol: Any, **options) -> lagrax.Solution:
    """Solves a problem by lagrax, with the relative and absolute tolerance `tol`."""
    delays = [Lag(f, low=low) for f, low in zip(problem.lags, problem.low, strict=True)]
    options = {"max_steps": 4096, "delays": delays} | options
    control = diffrax.PIDController(rtol=tol, atol=tol)
    return lagrax.solve(
        *(problem.field, problem.t0, problem.t1, problem.past),
        stepsize_controller=control,
        **options,
    )


# --- an independent solution ----------------------------------------------------------------------


class _Past:
    """The solution so far as a list of SciPy's dense outputs."""

    def __init__(self, problem: PublishedProblem):
        self.problem, self.ends, self.pieces = problem, [], []

    def read(self, t: float) -> np.ndarray:
        if t <= self.problem.t0 or not self.pieces:
            return np.atleast_1d(np.asarray(self.problem.past(min(t, self.problem.t0)), float))
        t = min(t, self.ends[-1])  # beyond, a first guess that stays finite
        return self.pieces[bisect.bisect_left(self.ends, t)](t)


def find_reference(
    problem: PublishedProblem, window: float = 1.0, tol: float = 1e-12
) -> np.ndarray:
    """The state at the end by SciPy, window by window.

    Each window is solved again and again, with delayed states in the window from the last solution,
    until that no longer changes.
    """
    shape = np.shape(problem.past(problem.t0))
    slope = jax.jit(lambda t, y, history: problem.field(t, y, None, history=history))
    find_lags = jax.jit(lambda t, y: jnp.stack([f(t, y, None) + 0.0 * t for f in problem.lags]))
    past = _Past(problem._replace(past=jax.jit(problem.past)))
    y, begin = past.read(problem.t0), problem.t0

    def field(t, y, older):
        y = y.reshape(shape)
        history = []
        for lag in np.asarray(find_lags(t, y)):
            at = t - lag
            history.append(np.reshape((past if at <= begin else older).read(at), shape))
        return np.ravel(slope(t, y, history))

    while begin < problem.t1 - 1e-9:
        end, older, last = min(begin + window, problem.t1), past, None
        for _ in range(50):
            newer = _Past(past.problem)
            run = DOP853(
                lambda t, y: field(t, y, older),  # noqa: B023
                *(begin, y, end),
                rtol=tol,
                atol=tol,
            )
            while run.status == "running":
                run.step()
                newer.ends.append(run.t)
                newer.pieces.append(run.dense_output())
            done = last is not None and np.max(np.abs(run.y - last)) <= 10 * tol
            older, last = newer, run.y
            if done:
                break
        past.ends += older.ends
        past.pieces += older.pieces
        y, begin = last, end
    return y.reshape(shape)


# --- the table ------------------------------------------------------------------------------------


def find_solution(problem: PublishedProblem) -> np.ndarray:
    """The state at the end, in closed form or by `find_reference`."""
    if problem.exact is not None:
        return np.asarray(problem.exact(problem.t1))
    return find_reference(problem)


def measure(problem: PublishedProblem, solution: Any) -> list[dict[str, float]]:
    """The error at the end and the number of evaluations, for each tolerance."""
    run = jax.jit(lambda tol: solve(problem, tol))
    rows = []
    for tol in TOLERANCES:
        sol = run(tol)
        error = np.max(np.abs(sol.ys[0] - np.asarray(solution)) / np.maximum(1, np.abs(solution)))
        rows.append({"error": float(error), "evaluations": int(sol.stats["num_evaluations"])})
    return rows


def as_table(measured: dict[str, Any]) -> str:
    """The table of the page."""
    heads = [f"{tol:.0e}".replace("e-0", "e-") for tol in TOLERANCES]
    lines = [
        f"| problem | lag depends on | {' | '.join(f'tolerance {head}' for head in heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for problem in PROBLEMS:
        rows = measured[problem.name]["rows"]
        cells = [f"{row['error']:.0e}, {row['evaluations']:,}".replace("e-0", "e-") for row in rows]
        name = f"{problem.name} ({problem.source})"
        lines.append(f"| {name} | {problem.kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the table, or checks it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        table = as_table(json.loads(MEASURED.read_text(encoding="utf-8")))
        return int(TABLE.findall(page) != [table])
    measured = {}
    with jax.enable_x64(True):
        for problem in PROBLEMS:
            solution = find_solution(problem)
            rows = measure(problem, solution)
            measured[problem.name] = {"solution": solution.tolist(), "rows": rows}
            print(problem.name, rows, flush=True)
    MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(TABLE.sub(lambda _: as_table(measured), page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
