"""What does exactness at the knots buy?

This script measures the error at the end against evaluations of the field and against time, for
every explicit solver of diffrax, with equal and with adaptive steps. lagrax ends its steps at the
knots. The naive use of diffrax is one `diffeqsolve` over the whole span with a field that looks up
the past. Here the naive field gets the exact past, so that all of its additional error comes from
steps across the knots. A third program passes the knots to diffrax's controller (`jump_ts`), also
with the exact past.

The problems are the population equation (a = 3.2), a held oscillator (omega = 3) and Hutchinson's
equation (a lag), with five starts each as one state, over 4.7 units of time with a delay of one, in
float64. The error is the largest of the five, compared with the exact solution.

Two idle cores of an AMD EPYC, Python 3.11, JAX 0.10.2, diffrax 0.7.2. Errors, evaluations and
orders were the same in three runs. Observed orders, equal steps:

    solver (order)  population         held oscillator    Hutchinson, a lag
                    lagrax    naive    lagrax    naive    lagrax    naive
    Euler (1)         1.02     0.99      1.04     1.02      0.99     1.00
    Heun (2)          1.98     0.65      2.01     1.21      2.01     2.02
    Midpoint (2)      1.98     1.10      2.01     1.18      2.05     1.99
    Ralston (2)       1.98     1.17      2.01     1.46      2.04     1.96
    Bosh3 (3)         3.16     1.72      3.01     1.00      3.01     1.97
    Tsit5 (5)         5.63     0.76      5.15     0.58      3.98     1.75
    Dopri5 (5)        5.31     0.61      5.06     0.55      4.86     1.39
    Dopri8 (8)       10.30     0.95      8.99     1.71      6.64     1.83

Evaluations of the field for an error of 1e-8 with Tsit5:

    steps, way          population  held oscillator  Hutchinson, a lag
    equal, lagrax             1010              828                306
    equal, naive        not by 61441     not by 61441            21004
    adaptive, lagrax           810              849                305
    adaptive, naive           3670             2942                846
    adaptive, jump_ts          844              826                379

Solvers have their full order on held equations with lagrax, and an order of 0.6 to 1.7 with steps
across the knots. Adaptive steps find the knots by rejection, which takes 2.8 to 4.5 times the
evaluations with Tsit5. Adaptive steps of order two or three lose nothing (Heun even gains on the
population). With jump_ts diffrax needs as few evaluations as lagrax, but also the held states
beforehand. One goal is missed: with a lag, the error of Tsit5 falls faster than its order at few
steps, and more slowly afterwards.

`.venv-bench/bin/python benchmarks/work_precision.py` takes three minutes. It prints the orders and
the goals, and writes results/work_precision.json, pictures beside it and the picture of the
documentation. With another `--out` it leaves the documentation alone. `--tiny` checks that
everything runs.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import measuring
import numpy as np
from numpy.polynomial import Chebyshev

import lagrax
from lagrax.plotting import Figure, Line, Panel, draw
from lagrax.systems import HeldOscillator, Hutchinson, Population, System

QUESTION = "What does exactness at the knots buy?"
DOCS = Path(__file__).parents[1] / "docs" / "images" / "work_precision.png"
SPAN, INTERVALS = 4.7, 5
DEGREE = 40  # of the polynomials that hold Hutchinson's exact solution
ROUNDING = 1e-12  # errors below it say nothing of an order
TARGET = 1e-8
SECOND_ORDER = (8, 16, 32, 64, 128)
FIFTH_ORDER = (2, 4, 8, 16, 32, 64)
STEPS = {  # an interval
    diffrax.Euler: (32, 64, 128, 256, 512),
    diffrax.Heun: SECOND_ORDER,
    diffrax.Midpoint: SECOND_ORDER,
    diffrax.Ralston: SECOND_ORDER,
    diffrax.Bosh3: (4, 8, 16, 32, 64),
    diffrax.Tsit5: FIFTH_ORDER,
    diffrax.Dopri5: FIFTH_ORDER,
    diffrax.Dopri8: (1, 2, 3, 4, 6, 8),
}
# The naive way gets more of them, to see whether it ever arrives.
MORE = (128, 512, 2048)
MAX_STEPS = 16384
TOLERANCES = tuple(10.0**-e for e in range(3, 13))
ADAPTIVE = [("adaptive", way) for way in ("lagrax", "naive", "jump_ts")]
WAYS = {"lagrax": "lagrax", "naive": "across the knots"}
SHOWN = {"Heun": "amber", "Bosh3": "green", "Tsit5": "blue", "Dopri8": "purple"}


@dataclass(frozen=True)
class Size:
    """Which solvers, all if empty, and how many of each list are gone through."""

    solvers: tuple[type, ...] = ()
    counts: int | None = None
    more: int | None = None
    tolerances: int | None = None
    repeats: int = 5


FULL, TINY = Size(), Size((diffrax.Tsit5,), 2, 0, 2, 1)


@dataclass(frozen=True)
class Case:
    """A system, its starts side by side, the state at the end, and the exact past of the naive
    field: `history(t)`, which knows it, as `lagrax.solve` would pass it."""

    name: str
    system: System
    y0: jax.Array
    end: np.ndarray
    history: Callable


def held_case(name: str, system, y0: np.ndarray) -> Case:
    knots = system.solution(jnp.arange(INTERVALS, dtype=float), y0)
    end = np.asarray(system.solution(jnp.array([SPAN]), y0)[0])
    history = lambda t: (knots[jnp.clip(jnp.floor(t).astype(int), 0, INTERVALS - 1)],)
    return Case(name, system, jnp.asarray(y0), end, history)


def lagged_case(y0: np.ndarray) -> Case:
    """Hutchinson's: on each interval log x is the integral of a known function."""
    system = Hutchinson()
    a, pieces = float(system.a), []
    for x in y0:
        before, mine = Chebyshev([x], [-1, 0]), []
        for k in range(INTERVALS):
            total = Chebyshev.interpolate(lambda s, p=before: 1 - p(s), DEGREE, [k - 1, k]).integ()
            grown = lambda t, x=x, k=k, f=total: x * np.exp(a * (f(t - 1) - f(k - 1)))
            before = Chebyshev.interpolate(grown, DEGREE, [k, k + 1])
            mine.append(before)
            x = before(k + 1)
        pieces.append(mine)
    end = np.array([mine[-1](SPAN) for mine in pieces])
    return Case("Hutchinson, a lag", system, jnp.asarray(y0), end, lagged_history(y0, pieces))


def lagged_history(y0: np.ndarray, pieces: list[list[Chebyshev]]) -> Callable:
    """x(t - 1) from the polynomials, the constant past first."""
    constant = np.pad(y0[:, None], ((0, 0), (0, DEGREE)))
    table = np.stack(
        [constant, *(np.stack([p.coef for p in row]) for row in zip(*pieces, strict=True))]
    )
    coefficients = jnp.asarray(table)

    def history(t):
        piece = jnp.clip(jnp.floor(t), 0, INTERVALS)
        angle = jnp.arccos(jnp.clip(2 * (t - piece) - 1, -1, 1))
        powers = jnp.cos(jnp.arange(DEGREE + 1) * angle)
        return (coefficients[piece.astype(int)] @ powers,)

    return history


def cases() -> list[Case]:
    starts = np.linspace(0.3, 1.1, 5)
    oscillator = HeldOscillator(omega=3.0)
    return [
        held_case("population", Population(), starts),
        held_case("held oscillator", oscillator, np.stack([starts, starts[::-1]])),
        lagged_case(starts),
    ]


# --- the ways: programs of one traced number, with their evaluations and error --------------------


def ours(case: Case, solver, *, steps: int | None, tolerance=None):
    how = {"steps": steps}
    if steps is None:
        how = {"stepsize_controller": diffrax.PIDController(rtol=tolerance, atol=tolerance)}
        # With a lag, memory is kept for this many.
        how["max_steps"] = 2048 if case.system.delays == [lagrax.Lag(1.0)] else MAX_STEPS
    sol = lagrax.solve(
        case.system,
        0.0,
        SPAN,
        case.y0,
        delays=case.system.delays,
        solver=solver,
        **how,
        throw=False,
    )
    return sol.ys[-1], sol.stats["num_evaluations"]


def plain(case: Case, solver, *, controller, dt0):
    term = diffrax.ODETerm(lambda t, y, args: case.system(t, y, args, history=case.history(t)))
    sol = diffrax.diffeqsolve(
        term,
        solver,
        0.0,
        SPAN,
        dt0,
        case.y0,
        stepsize_controller=controller,
        max_steps=INTERVALS * MAX_STEPS,
        throw=False,
    )
    tableau = getattr(solver, "tableau", None)
    first, each = 0, tableau.num_stages if tableau else 1
    if tableau and tableau.fsal:
        first, each = 1, each - 1
    search = 2 if dt0 is None else 0
    return sol.ys[-1], search + first + each * sol.stats["num_steps"]


def naive_equal(case: Case, solver, dt0):
    return plain(case, solver, controller=diffrax.ConstantStepSize(), dt0=dt0)


def naive_adaptive(case: Case, solver, tolerance):
    controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    return plain(case, solver, controller=controller, dt0=None)


def told_adaptive(case: Case, solver, tolerance):
    controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    knots = jnp.arange(1.0, INTERVALS)
    controller = diffrax.ClipStepSizeController(controller, jump_ts=knots)
    return plain(case, solver, controller=controller, dt0=None)


def programs(case: Case, solver, size: Size) -> list[tuple[str, str, float, Callable]]:
    """(way, steps, setting, program) for one solver on one case."""
    out, kind = [], type(solver)
    counts = STEPS[kind][: size.counts]
    for steps in counts:
        program = jax.jit(partial(ours, case, solver, steps=steps))
        out.append(("lagrax", "equal", steps, program))
    crossing = jax.jit(partial(naive_equal, case, solver))
    for steps in (*counts, *[m for m in MORE if m > counts[-1]][: size.more]):
        out.append(("naive", "equal", steps, partial(crossing, SPAN / (INTERVALS * steps))))
    if kind is diffrax.Euler:
        return out
    ways = {
        "lagrax": jax.jit(lambda tolerance: ours(case, solver, steps=None, tolerance=tolerance)),
        "naive": jax.jit(partial(naive_adaptive, case, solver)),
    }
    if kind is diffrax.Tsit5:
        ways["jump_ts"] = jax.jit(partial(told_adaptive, case, solver))
    # An error of 1e-12 by a method of order two takes longer than it is worth.
    least = {2: 1e-6, 3: 1e-9}.get(solver.order(None), 0)
    for tolerance in [t for t in TOLERANCES if t >= least][: size.tolerances]:
        for way, program in ways.items():
            out.append((way, "adaptive", tolerance, partial(program, tolerance)))
    return out


def measure(size: Size) -> list[dict]:
    rows = []
    for case in cases():
        for kind in size.solvers or STEPS:
            solver, calls, found = kind(), {}, []
            for way, steps, setting, program in programs(case, solver, size):
                y, evaluations = program()
                row = {"system": case.name, "solver": kind.__name__, "way": way, "steps": steps}
                row |= {"setting": setting, "evaluations": int(evaluations)}
                row["error"] = float(np.max(np.abs(np.asarray(y) - case.end)))
                calls[len(found)] = program
                found.append(row)
            times = measuring.milliseconds(calls, repeats=size.repeats, seconds=0.003)
            for i, ms in times.items():
                found[i]["ms"] = ms
            print(f"{case.name}, {kind.__name__}: {len(found)} points", flush=True)
            rows += found
    return rows


# --- what comes of it -----------------------------------------------------------------------------


def chosen(rows: list[dict], **wanted) -> list[dict]:
    return [row for row in rows if wanted.items() <= row.items()]


def order(points: list[dict]) -> float:
    """The slope through the last three points above rounding."""
    good = [(p["setting"], p["error"]) for p in points if p["error"] > ROUNDING][-3:]
    return -float(np.polyfit(*np.log(good).T, 1)[0]) if len(good) > 1 else float("nan")


def orders(rows: list[dict]) -> list[dict]:
    out = []
    for row in rows:
        same = {key: row[key] for key in ("system", "solver")}
        if same in [{k: o[k] for k in same} for o in out]:
            continue
        nominal = getattr(diffrax, row["solver"])().order(None)
        found = {"nominal": nominal}
        for way in ("lagrax", "naive"):
            found[way] = order(chosen(rows, way=way, steps="equal", **same))
        out.append(same | found)
    return out


def interpolate_effort(points: list[dict], what: str) -> float | None:
    """Returns the amount of `what` at the error TARGET, or None if TARGET is not reached.

    Interpolates between the two points around TARGET.
    """
    points = sorted(points, key=lambda p: p["evaluations"])
    for before, after in itertools.pairwise(points):
        if after["error"] <= TARGET < before["error"]:
            errors = np.log([after["error"], before["error"]])
            amounts = np.log([after[what], before[what]])
            return float(np.exp(np.interp(np.log(TARGET), errors, amounts)))
    return None


def efforts(rows: list[dict]) -> list[dict]:
    """Returns evaluations and times at the error TARGET with Tsit5."""
    out = []
    for system in dict.fromkeys(row["system"] for row in rows):
        for steps, way in (("equal", "lagrax"), ("equal", "naive"), *ADAPTIVE):
            points = chosen(rows, system=system, solver="Tsit5", steps=steps, way=way)
            if points:
                row = {"system": system, "steps": steps, "way": way}
                row |= {what: interpolate_effort(points, what) for what in ("evaluations", "ms")}
                row["most_evaluations"] = max(p["evaluations"] for p in points)
                row["least_error"] = min(p["error"] for p in points)
                out.append(row)
    return out


def goals_of(found: list[dict], effort: list[dict]) -> list[dict]:
    goals = []
    for row in found:
        nominal, lagged = row["nominal"], row["system"].endswith("lag")
        if lagged and row["solver"] == "Dopri8":
            nominal = 6  # a lag reads the dense output, which is of this order in diffrax
        name = f"{row['system']}, {row['solver']}: order observed"
        goals.append(measuring.at_least(name, row["lagrax"], nominal - (0.5 if lagged else 0.3)))
    for system in dict.fromkeys(row["system"] for row in effort):
        for steps in ("equal", "adaptive"):
            both = {way: chosen(effort, system=system, steps=steps, way=way) for way in WAYS}
            (mine,), (naive,) = both["lagrax"], both["naive"]
            # Where the naive way does not arrive, what it took in vain is the least it needs.
            other = naive["evaluations"] or naive["most_evaluations"]
            arrived = mine["evaluations"] or float("nan")
            name = f"{system}, Tsit5, {steps} steps, error {TARGET:g}: evaluations, naive over ours"
            least = "" if naive["evaluations"] else ", at least"
            goals.append(measuring.at_least(name + least, other / arrived, 1))
    return goals


def picture(rows: list[dict], name: str, what: str, label: str) -> Figure:
    panels = []
    for steps in ("equal", "adaptive"):
        for system in dict.fromkeys(row["system"] for row in rows):
            marks = []
            for way, words in WAYS.items():
                for solver, colour in SHOWN.items():
                    points = chosen(rows, system=system, solver=solver, way=way, steps=steps)
                    points = sorted(points, key=lambda p: p["evaluations"])
                    x, y = [p[what] for p in points], [p["error"] for p in points]
                    words_too = f"{solver}, {words}"
                    marks.append(Line(x, y, words_too, colour, dashed=way == "naive"))
            panels.append(
                Panel(
                    marks, system, label, "error at the end", xlog=True, ylog=True, ylim=(1e-13, 3)
                )
            )
    caption = (
        "Error at the end against the work for it: steps that stop at the knots or cross them."
    )
    return Figure(name, caption, panels, columns=3, rows=("equal steps", "adaptive steps"))


def main() -> None:
    default = measuring.RESULTS / "work_precision.json"
    options = measuring.options_for(QUESTION, default)
    jax.config.update("jax_enable_x64", True)
    rows = measure(TINY if options.tiny else FULL)
    found, effort = orders(rows), efforts(rows)
    columns = {"system": "", "solver": "", "nominal": "", "lagrax": ".2f", "naive": ".2f"}
    print(measuring.table(found, columns))
    columns = {"system": "", "steps": "", "way": "", "evaluations": ".0f", "ms": ".3f"}
    columns |= {"most_evaluations": "", "least_error": ".1e"}
    print(f"for an error of {TARGET:g} with Tsit5:", measuring.table(effort, columns), sep="\n")
    everything = [*found, *effort, *rows]
    measuring.write(options.out, QUESTION, everything, goals_of(found, effort))
    image = options.out.with_suffix(".png")
    label = "evaluations of the field"
    work = picture(rows, "work_precision", "evaluations", label)
    draw(work, image, *[DOCS] * (options.out == default and not options.tiny))
    timed = image.with_name(image.stem + "_time.png")
    draw(picture(rows, "work_precision_time", "ms", "milliseconds"), timed)
    print(f"wrote {image} and {timed}")


if __name__ == "__main__":
    main()
