"""Solves published delay problems with lagrax, for the table of a page.

python docs/delay_problems.py            solves them and writes the table of delay-problems.md
python docs/delay_problems.py E1 E2      solves these again and keeps the others
python docs/delay_problems.py --check    checks that the table is what the last measurement says

Most are from the test set of Enright and Hayashi (1997), the stiff ones from that of RADAR5. Where
no solution is known in closed form, the error is that against an independent solution by SciPy at a
tolerance of 1e-12.
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
from scipy.integrate import DOP853, Radau

import lagrax
from lagrax import Lag, Slope

PAGE = Path(__file__).parent / "delay-problems.md"
MEASURED = Path(__file__).parent / "delay-problems.json"
TABLE = re.compile(r"(?<=<!-- problems -->\n).*?(?=<!-- /problems -->)", re.DOTALL)
TOLERANCES = (1e-4, 1e-6, 1e-8)


class PublishedProblem(NamedTuple):
    """A published problem: its name and source, equation, span, past, lags and solution.

    The field gets the states at the `lags`, numbers or functions with the bounds `low`, and after
    them the slopes at the lags `slopes`. It jumps or has a kink at the `switches`. `exact` gives
    the solution at the end, or is None if there is no closed form. Stiff problems are solved by
    implicit methods.
    """

    name: str
    source: str
    kind: str
    field: Callable
    t0: float
    t1: float
    past: Callable
    lags: list
    low: list[float]
    exact: Callable | None
    slopes: tuple[float, ...] = ()
    switches: tuple[float, ...] = ()
    is_stiff: bool = False


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


def _hoppensteadt(t, y, args, *, history):
    """Susceptibles of an epidemic, which begins in phases."""
    r, c = 0.5, 1 / ROOT2
    grown = jnp.exp(r / 10)
    phases = [
        -r * y * 0.4 * (1 - t),
        -r * y * (0.4 * (1 - t) + 10 - grown * y),
        -r * y * (10 - grown * y),
    ]
    return jnp.select([t < 1 - c, t < 1, t < 2 - c], phases, -r * grown * y * (history[0] - y))


def _marchuk(t, y, args, *, history):
    """Virus in units of 1e-6, plasma cells, antibodies and the damaged part of an organ."""
    virus, cells, antibodies, damage = y[0], y[1], y[2], y[3]
    working = jnp.where(damage <= 0.1, 1.0, (1 - damage) * 10 / 9)
    return jnp.stack(
        [
            (2 - 0.8 * antibodies) * virus,
            working * 1e-2 * history[0][2] * history[0][0] - 0.5 * (cells - 1),
            0.17 * (cells - antibodies) - 8e-6 * antibodies * virus,
            1e-5 * virus - 0.12 * damage,
        ]
    )


def _marchuk_past(t):
    return jnp.stack([jnp.maximum(0, 1 + 1e6 * t), 1 + 0 * t, 1 + 0 * t, 0 * t])


def _ottesen(t, y, args, *, history):
    """Arterial and venous pressure and heart rate. The resistance of the vessels falls at 600."""
    ca, cv, r, stroke = 1.55, 519.0, 0.068, 67.9
    resistance = 0.84 + 0.21 * jnp.exp(jnp.minimum(600 - t, 0))
    flow = (y[0] - y[1]) / resistance
    sympathetic = 1 / (1 + (history[0][0] / 93) ** 7)
    parasympathetic = 1 / (1 + (93 / y[0]) ** 7)
    return jnp.stack(
        [
            (stroke * y[2] - flow) / ca,
            (flow - y[1] / r) / cv,
            0.84 * sympathetic - 1.17 * parasympathetic,
        ]
    )


def _oregonator(t, y, args, *, history):
    """Bromous acid and bromide in units of 1e-9 and 1e-6."""
    x, bromide, before = 1e-9 * y[0], 1e-6 * y[1], 1e-6 * history[0][1]
    slow, fast, grown = 1.34 * 0.06 * bromide, 1.6e9 * x * before, 8000 * 0.06 * x
    return jnp.stack([1e9 * (slow - fast + grown - 8e7 * x**2), 1e6 * (grown - slow - fast)])


def _robertson(t, y, args, *, history):
    """The second concentration is in units of 1e-4."""
    first, second = 0.04 * y[0] - history[0][1] * y[2], 0.3 * y[1] ** 2
    return jnp.stack([-first, 1e4 * (first - second), second])


def _e1(t, y, args, *, history):
    r, c = np.pi / np.sqrt(3) + 1 / 20, np.sqrt(3) / (2 * np.pi) - 1 / 25
    return r * y * (1 - history[0] - c * history[1])


def _e2(t, y, args, *, history):
    eaten = y[0] ** 2 / (y[0] ** 2 + 1)
    growth = y[0] * (1 - history[0][0] - 2.9 * history[1][0])
    return jnp.stack([growth - y[1] * eaten, y[1] * (eaten - 0.1)])


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
# The pressures and the heart rate at rest, without the reflex.
AT_REST = (93.0, 93 / (1 + 1.05 / 0.068), 93 / (1.05 * 67.9 * (1 + 0.068 / 1.05)))
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
    PublishedProblem(
        "epidemic",
        "Hoppensteadt and Waltman 1971",
        "constant",
        *(_hoppensteadt, 0.0, 10.0, lambda t: 10.0 + 0 * t, [1.0], [], None),
        switches=(1 - 1 / ROOT2, 1.0, 2 - 1 / ROOT2),
    ),
    PublishedProblem(
        "Marchuk’s immune response",
        "Hairer et al. 1993",
        "constant",
        *(_marchuk, 0.0, 60.0, _marchuk_past, [0.5], [], None),
    ),
    PublishedProblem(
        "baroreflex",
        "Ottesen 1997",
        "constant",
        *(_ottesen, 0.0, 1000.0, constant(*AT_REST), [4.0], [], None),
        switches=(600.0,),
    ),
    PublishedProblem(
        "E1",
        "Kuang and Feldstein 1991",
        "constant, neutral",
        *(_e1, 0.0, 40.0, lambda t: 2 + t, [1.0], [], None),
        slopes=(1.0,),
    ),
    PublishedProblem(
        "E2",
        "Kuang 1991",
        "constant, neutral",
        *(_e2, 0.0, 2.0, lambda t: jnp.stack([0.33 - t / 10, 2.22 + t / 10]), [0.42], [], None),
        slopes=(0.42,),
    ),
    PublishedProblem(
        "Oregonator",
        "Epstein and Luo 1991",
        "constant, stiff",
        *(_oregonator, 0.0, 27.0, constant(0.1, 10.0), [0.15], [], None),
        is_stiff=True,
    ),
    PublishedProblem(
        "Robertson",
        "Guglielmi and Hairer 2001",
        "constant, stiff",
        *(_robertson, 0.0, 2.0, constant(1.0, 0.0, 0.0), [0.01], [], None),
        is_stiff=True,
    ),
]


def solve(problem: PublishedProblem, tol: Any, **options) -> lagrax.Solution:
    """Solves a problem by lagrax, with the relative and absolute tolerance `tol`."""
    low = iter(problem.low)
    delays = [Lag(tau, low=next(low)) if callable(tau) else Lag(tau) for tau in problem.lags]
    delays += [Slope(tau) for tau in problem.slopes]
    solver = diffrax.Kvaerno5() if problem.is_stiff else diffrax.Tsit5()
    options = {
        "max_steps": 32768 if problem.is_stiff else 4096,
        "delays": delays,
        "solver": solver,
    } | options
    control = diffrax.PIDController(rtol=tol, atol=tol)
    if problem.switches:
        control = diffrax.ClipStepSizeController(control, jump_ts=jnp.array(problem.switches))
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
    until that no longer changes. Windows that are no longer than any lag are solved once.
    """
    shape = np.shape(problem.past(problem.t0))
    slope = jax.jit(lambda t, y, history: problem.field(t, y, None, history=history))
    is_constant = not any(map(callable, problem.lags))
    window = min(problem.lags) if is_constant else window
    find_lags = jax.jit(
        lambda t, y: jnp.stack(
            [f(t, y, None) + 0.0 * t if callable(f) else f for f in problem.lags]
        )
    )
    past = _Past(problem._replace(past=jax.jit(problem.past)))
    y, begin = past.read(problem.t0), problem.t0

    def field(t, y, older):
        y = y.reshape(shape)
        history = []
        for lag in np.asarray(find_lags(t, y)):
            at = t - lag
            history.append(np.reshape((past if at <= begin else older).read(at), shape))
        return np.ravel(slope(t, y, history))

    method = Radau if problem.is_stiff else DOP853
    while begin < problem.t1 - 1e-9:
        end = min(t for t in (begin + window, *problem.switches, problem.t1) if t > begin + 1e-9)
        within, older, last = np.nextafter(end, begin), past, None
        for _ in range(50):
            newer = _Past(past.problem)
            run = method(
                lambda t, y: field(min(t, within), y, older),  # noqa: B023
                *(begin, y, end),
                rtol=tol,
                atol=tol,
            )
            while run.status == "running":
                run.step()
                newer.ends.append(run.t)
                newer.pieces.append(run.dense_output())
            done = is_constant or (last is not None and np.max(np.abs(run.y - last)) <= 10 * tol)
            older, last = newer, run.y
            if done:
                break
        past.ends += older.ends
        past.pieces += older.pieces
        y, begin = np.asarray(last), end
    return y.reshape(shape)


def find_neutral_reference(problem: PublishedProblem, tol: float = 1e-13) -> np.ndarray:
    """The state at the end of a neutral problem with one constant lag, by SciPy.

    The solution on the intervals between multiples of the lag is one ordinary equation, in which
    each interval reads the state and the slope of the one before. Nothing is interpolated.
    """
    (tau,), t0 = problem.lags, problem.t0
    count = int(np.ceil((problem.t1 - t0) / tau - 1e-9))

    @jax.jit
    def slopes(s, ys, known):
        def step(before, level):
            number, y = level
            slope = problem.field(t0 + number * tau + s, y, None, history=before)
            slope = jnp.where(number < known, slope, 0.0)
            return [y, slope], slope

        first = list(jax.jvp(problem.past, (t0 + s - tau,), (jnp.ones_like(s),)))
        return jax.lax.scan(step, first, (jnp.arange(count), ys))[1]

    starts = ends = np.stack([np.asarray(problem.past(t0), float)] * count)
    for known in range(1, count + 1):
        length = min(tau, problem.t1 - t0 - (known - 1) * tau)
        run = DOP853(
            lambda s, ys: np.ravel(slopes(s, ys.reshape(starts.shape), known)),  # noqa: B023
            *(0.0, np.ravel(starts), length),
            rtol=tol,
            atol=tol,
        )
        while run.status == "running":
            run.step()
        ends = run.y.reshape(starts.shape)
        starts[known:] = ends[known - 1]
    return ends[-1]


# --- the table ------------------------------------------------------------------------------------


def find_solution(problem: PublishedProblem) -> np.ndarray:
    """The state at the end, in closed form or by SciPy."""
    if problem.exact is not None:
        return np.asarray(problem.exact(problem.t1))
    if problem.slopes:
        return find_neutral_reference(problem)
    return find_reference(problem)


def measure(problem: PublishedProblem, solution: Any) -> list[dict[str, float]]:
    """The error at the end and the cost, for each tolerance.

    The cost is the number of evaluations, or of steps if the solver is implicit.
    """
    cost = "steps" if problem.is_stiff else "evaluations"
    run = jax.jit(lambda tol: solve(problem, tol))
    rows = []
    for tol in TOLERANCES:
        sol = run(tol)
        error = np.max(np.abs(sol.ys[0] - np.asarray(solution)) / np.maximum(1, np.abs(solution)))
        rows.append({"error": float(error), cost: int(sol.stats[f"num_{cost}"])})
    return rows


def as_table(measured: dict[str, Any]) -> str:
    """The table of the page."""
    heads = [f"{tol:.0e}".replace("e-0", "e-") for tol in TOLERANCES]
    lines = [
        f"| problem | lag | {' | '.join(f'tolerance {head}' for head in heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for problem in PROBLEMS:
        rows = measured[problem.name]["rows"]
        cells = [_format_cell(**row) for row in rows]
        name = f"{problem.name} ({problem.source})"
        lines.append(f"| {name} | {problem.kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _format_cell(error: float, evaluations: int | None = None, steps: int | None = None) -> str:
    cost = f"{evaluations:,}" if steps is None else f"{steps:,} steps"
    return f"{error:.0e}, {cost}".replace("e-0", "e-")


def main() -> int:
    """Writes the table, or checks it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        table = as_table(json.loads(MEASURED.read_text(encoding="utf-8")))
        return int(TABLE.findall(page) != [table])
    names = sys.argv[1:] or [problem.name for problem in PROBLEMS]
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    with jax.enable_x64(True):
        for problem in (problem for problem in PROBLEMS if problem.name in names):
            solution = find_solution(problem)
            rows = measure(problem, solution)
            measured[problem.name] = {"solution": solution.tolist(), "rows": rows}
            print(problem.name, rows, flush=True)
    MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(TABLE.sub(lambda _: as_table(measured), page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
