"""How many trajectories a second?

The first problem is the population equation x' = 2 x (1 - x(floor t)) over 100 units of time from
100,000 starts, solved by lagrax, by diffrax with a scan over the intervals, and by SciPy's
`solve_ivp` interval by interval. The second one is Hutchinson's equation x' = 1.8 x (1 - x(t - 1))
over 20 units, solved by lagrax and jitcdde. Tolerances and steps are chosen so that the largest
error at any knot is below 1e-4 (by up to five times), compared with the exact solution (Hutchinson:
SciPy at 1e-12). That error is measured in the same run.

Times are medians of five timings (three for SciPy and jitcdde) in one run, each in its best layout.
Slow cases are extrapolated to 100,000 trajectories: from 10,000 (lagrax with a lag, SciPy as one
state), 50 (jitcdde) or 10 (SciPy one after the other).

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.1.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, scipy 1.17.1, jitcdde 1.8.3:

    1.64     ≥ 1 met       population, float64, fixed steps: diffrax's time over lagrax's
    2.7      ≥ 1 met       population, float64, adaptive steps: diffrax's time over lagrax's
    1.84     ≥ 1 met       population, float32, fixed steps: diffrax's time over lagrax's
    4.01     ≥ 1 met       population, float32, adaptive steps: diffrax's time over lagrax's
    5.72     ≥ 1 met       population: scipy's time over lagrax's
    40.6     ≥ 1 met       hutchinson: adaptive jitcdde's time over lagrax's with fixed steps
    8.21     ≥ 1 met       hutchinson: adaptive jitcdde's time over lagrax's with adaptive steps
    0.00377  ≤ 0.1 met     time against trajectories, logarithmic: distance of the slope from 1
    0.00904  ≤ 0.1 met     time against intervals, logarithmic: distance of the slope from 1

Time grows in proportion to trajectories and intervals. A trajectory is cheapest with about a
thousand at a time, because their states fit in the caches. A state of 10,000 or more is slower, so
solve large batches in chunks (`jax.lax.map` over 1000 trajectories at a time).

`.venv-bench/bin/python benchmarks/throughput.py` takes three minutes. It prints the tables and the
goals, and writes results/throughput.json and a picture. It names rows whose package is missing.
`--tiny` checks that everything runs.
"""

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import measuring
import numpy as np

import lagrax
from lagrax.plotting import Figure, Line, Panel, draw

QUESTION = "How many trajectories a second?"
RATE, INTERVALS = 2.0, 100
LAG_RATE, LAG_INTERVALS = 1.8, 20
ERROR = 1e-4
CHUNK = 1000
CHUNKS = {f"chunks of {n}": n for n in (CHUNK, 5 * CHUNK)}  # diffrax likes larger ones in float32
LAYOUTS = ("one state", *CHUNKS, "vmapped")
# The loosest of 1e-3, 3e-4, 1e-4, ... with which the best layout of each stays below ERROR, and the
# fewest equal steps.
STEPS, LAG_STEPS = 2, 4
TOLERANCES = {"lagrax": 1e-4, "diffrax": 3e-5, "scipy": 1e-4, "lagrax, lag": 3e-6, "jitcdde": 1e-6}
ALONE = 3e-7  # for jitcdde with one trajectory at a time


@dataclass(frozen=True)
class Size:
    trajectories: int
    lagged: int  # trajectories of Hutchinson's equation
    scipy_one_state: int
    scipy_alone: int
    jitcdde: int  # in one system, and also one after the other
    numbers: tuple[int, ...]  # of trajectories
    intervals: tuple[int, ...]
    stream: int  # numbers in the arrays whose addition measures the bandwidth
    repeats: int


FULL = Size(
    100_000,
    10_000,
    10_000,
    10,
    50,
    (1, 10, 100, 1000, 10_000, 30_000, 100_000, 300_000),
    (10, 30, 100, 300, 1000),
    2**24,
    5,
)
TINY = Size(CHUNK, CHUNK, 10, 1, 2, (1, 10, CHUNK), (10, 20), 2**16, 1)


def starts(number: int, dtype=np.float64) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 1.5, number).astype(dtype)


# --- the programs: from starts of shape (n,) to knots of shape (intervals, n) ---------------------


def population(t, x, a, *, history):
    (held,) = history
    return a * x * (1 - held)


def controller(tolerance: float) -> diffrax.PIDController:
    return diffrax.PIDController(rtol=tolerance, atol=tolerance)


def ours(x0, *, adaptive=False, intervals=INTERVALS, delay=lagrax.Hold, rate=RATE, steps=STEPS):
    name = "lagrax" if delay is lagrax.Hold else "lagrax, lag"
    how: dict[str, Any] = {"steps": steps}
    if adaptive:
        how = {"stepsize_controller": controller(TOLERANCES[name])}
        # With a lag, memory is kept for max_steps; 16 an interval are enough here.
        how["max_steps"] = 4096 if delay is lagrax.Hold else 16 * intervals
    sol = lagrax.solve(
        population,
        0.0,
        float(intervals),
        x0,
        jnp.asarray(rate, x0.dtype),
        delays=[delay(1.0)],
        throw=False,
        **how,
    )
    return sol.knots.ys[1:]


ours_lagged = partial(
    ours, intervals=LAG_INTERVALS, delay=lagrax.Lag, rate=LAG_RATE, steps=LAG_STEPS
)


def plain_diffrax(x0, *, adaptive=False):
    how = controller(TOLERANCES["diffrax"]) if adaptive else diffrax.ConstantStepSize()
    term = diffrax.ODETerm(lambda t, x, args: args[0] * x * (1 - args[1]))

    def interval(x, k):
        sol = diffrax.diffeqsolve(
            term,
            diffrax.Tsit5(),
            k,
            k + 1,
            None if adaptive else 1 / STEPS,
            x,
            (jnp.asarray(RATE, x.dtype), x),
            stepsize_controller=how,
            throw=False,
        )
        return sol.ys[-1], sol.ys[-1]

    return jax.lax.scan(interval, x0, jnp.arange(INTERVALS, dtype=x0.dtype))[1]


def ends(solve: Callable) -> Callable:
    return lambda x0: solve(x0)[-1]


def laid_out(solve: Callable, layout: str) -> Callable:
    """`solve` for all starts in one of the LAYOUTS, compiled."""
    if layout == "one state":
        return jax.jit(solve)
    if layout == "vmapped":
        return jax.jit(jax.vmap(solve))
    chunk = CHUNKS[layout]
    return jax.jit(lambda x0: jax.lax.map(solve, x0.reshape(-1, min(chunk, x0.shape[0]))))


def by_knot(knots: jax.Array, layout: str) -> np.ndarray:
    """What a program returns, as (intervals, trajectories)."""
    answer = np.asarray(knots)
    if layout == "vmapped":
        return answer.T
    return answer if answer.ndim == 2 else answer.transpose(1, 0, 2).reshape(answer.shape[1], -1)


def scipy_by_interval(x0: np.ndarray) -> np.ndarray:
    from scipy.integrate import solve_ivp

    tolerance, knots = TOLERANCES["scipy"], []
    for k in range(INTERVALS):
        growth = RATE * (1 - x0)
        sol = solve_ivp(
            lambda t, x, g=growth: g * x,
            (k, k + 1),
            x0,
            t_eval=[k + 1],
            rtol=tolerance,
            atol=tolerance,
        )
        x0 = sol.y[:, -1]
        knots.append(x0)
    return np.stack(knots)


def scipy_alone(x0: np.ndarray) -> np.ndarray:
    return np.concatenate([scipy_by_interval(x0[i : i + 1]) for i in range(len(x0))], axis=1)


def jitcdde_program(number: int, tolerance: float = TOLERANCES["jitcdde"]) -> Callable:
    """Compiles a system of `number` independent equations; the answer integrates it anew."""
    from jitcdde import jitcdde, t, y

    equations = [LAG_RATE * y(i) * (1 - y(i, t - 1.0)) for i in range(number)]
    dde = jitcdde(equations, verbose=False)
    # Its compiler takes any folder of packages around it for its own.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        dde.compile_C()

    def run(x0):
        dde.purge_past()
        dde.reset_integrator()
        dde.constant_past(list(x0))
        dde.set_integration_parameters(rtol=tolerance, atol=tolerance)
        dde.adjust_diff()
        return np.stack([dde.integrate(k) for k in range(1, LAG_INTERVALS + 1)])

    return run


def jitcdde_alone() -> Callable:
    run = jitcdde_program(1, ALONE)
    return lambda x0: np.concatenate([run(x0[i : i + 1]) for i in range(len(x0))], axis=1)


# --- errors ---------------------------------------------------------------------------------------


def exact(x0: np.ndarray) -> np.ndarray:
    x, knots = x0.astype(np.float64), []
    for _ in range(INTERVALS):
        x = x * np.exp(RATE * (1 - x))
        knots.append(x)
    return np.stack(knots)


def hutchinson(x0: np.ndarray) -> np.ndarray:
    """By scipy and the method of steps."""
    from scipy.integrate import solve_ivp

    before, knots = lambda t: x0, []
    for k in range(LAG_INTERVALS):
        sol = solve_ivp(
            lambda t, x, past=before: LAG_RATE * x * (1 - past(t - 1)),
            (k, k + 1),
            knots[-1] if knots else x0,
            method="DOP853",
            rtol=1e-12,
            atol=1e-13,
            dense_output=True,
        )
        before = sol.sol
        knots.append(sol.y[:, -1])
    return np.stack(knots)


def largest(difference: np.ndarray) -> float:
    return float(np.max(np.abs(difference)))


# --- against the peers ----------------------------------------------------------------------------


def held_rows(size: Size) -> list[dict]:
    """lagrax and diffrax on the population equation."""
    rows, calls = [], {}
    for dtype in ("float64", "float32"):
        x0 = jnp.asarray(starts(size.trajectories, dtype))
        reference = exact(np.asarray(x0))
        for package, solve in (("lagrax", ours), ("diffrax", plain_diffrax)):
            for stepping in ("fixed", "adaptive"):
                for layout in LAYOUTS if dtype == "float64" else CHUNKS:
                    knots = partial(solve, adaptive=stepping == "adaptive")
                    row = {"equation": "population", "program": package, "steps": stepping}
                    row |= {"dtype": dtype, "layout": layout}
                    answer = by_knot(laid_out(knots, layout)(x0), layout)
                    row["error"] = largest(answer - reference)
                    calls[len(rows)] = partial(laid_out(ends(knots), layout), x0)
                    rows.append(row)
    for i, ms in measuring.milliseconds(calls, repeats=size.repeats).items():
        rows[i] |= {"measured": size.trajectories, "us_each": 1e3 * ms / size.trajectories}
    return rows


def peer_row(equation, program, layout, number, make: Callable, reference: Callable) -> dict:
    """A program that is too slow for all trajectories, and may be absent."""
    row = {"equation": equation, "program": program, "steps": "adaptive", "dtype": "float64"}
    row |= {"layout": layout, "measured": number, "extrapolated": True}
    x0 = starts(number)
    try:
        call = make()
        row["error"] = largest(call(x0) - reference(x0))
        (ms,) = measuring.milliseconds({"": lambda: call(x0)}, repeats=3).values()
        row["us_each"] = 1e3 * ms / number
    except ImportError as error:
        row["absent"] = str(error)
    return row


def lagged_rows(size: Size) -> list[dict]:
    """lagrax on Hutchinson's equation; the error is that of as many starts as jitcdde gets."""
    rows, calls, layout = [], {}, LAYOUTS[1]
    x0 = jnp.asarray(starts(size.lagged))
    try:
        reference = hutchinson(starts(size.jitcdde))
    except ImportError:
        reference = np.nan
    for stepping in ("fixed", "adaptive"):
        knots = partial(ours_lagged, adaptive=stepping == "adaptive")
        row = {"equation": "hutchinson", "program": "lagrax", "steps": stepping}
        row |= {"dtype": "float64", "layout": layout, "measured": size.lagged}
        answer = by_knot(laid_out(knots, layout)(x0), layout)
        row["error"] = largest(answer[:, : size.jitcdde] - reference)
        calls[len(rows)] = partial(laid_out(ends(knots), layout), x0)
        rows.append(row)
    for i, ms in measuring.milliseconds(calls, repeats=size.repeats).items():
        rows[i]["us_each"] = 1e3 * ms / size.lagged
    return rows


def peer_rows(size: Size) -> list[dict]:
    held, lagged = ("population", "scipy"), ("hutchinson", "jitcdde")
    alone, n = "one after the other", size.jitcdde
    return [
        peer_row(*held, "one state", size.scipy_one_state, lambda: scipy_by_interval, exact),
        peer_row(*held, alone, size.scipy_alone, lambda: scipy_alone, exact),
        peer_row(*lagged, f"one system of {n}", n, lambda: jitcdde_program(n), hutchinson),
        peer_row(*lagged, alone, n, jitcdde_alone, hutchinson),
    ]


# --- how the cost grows ---------------------------------------------------------------------------


def gigabytes_a_second(numbers: int, repeats: int) -> float:
    """Measures the memory bandwidth by adding two long arrays: two are read, one is written.

    One program adds many times, because the first access to new memory takes longer.
    """
    times, x, y = 20, jnp.ones(numbers), jnp.ones(numbers)
    add = jax.jit(lambda x, y: jax.lax.fori_loop(0, times, lambda i, x: x + y, x))
    (ms,) = measuring.milliseconds({"": lambda: add(x, y)}, repeats=repeats).values()
    return times * 3 * x.nbytes / ms / 1e6


def bytes_each(intervals: int) -> float:
    """Estimates the bytes that a solve reads and writes for each trajectory, from XLA's counts.

    XLA counts the body of a loop once. So the part that does not grow with the intervals is one
    step, and the rest stores the knots.
    """

    def count_bytes(intervals):
        program = jax.jit(ends(partial(ours, intervals=intervals)))
        cost = program.lower(jnp.ones(CHUNK)).compile().cost_analysis()
        return cost["bytes accessed"] / CHUNK

    few, many = count_bytes(10), count_bytes(20)
    knots = (many - few) / 10
    return intervals * (knots + STEPS * (few - 10 * knots))


def scaling_rows(size: Size) -> list[dict]:
    """Equal steps in float64 against the number of trajectories and of intervals."""
    rows, calls = [], {}

    def add(against, layout, number, intervals):
        program = laid_out(ends(partial(ours, intervals=intervals)), layout)
        calls[len(rows)] = partial(program, jnp.asarray(starts(number)))
        rows.append({"against": against, "layout": layout, "number": number})
        rows[-1] |= {"intervals": intervals}

    for number in size.numbers:
        add("trajectories", LAYOUTS[0], number, INTERVALS)
        if number % CHUNK == 0:
            add("trajectories", LAYOUTS[1], number, INTERVALS)
    for intervals in size.intervals:
        add("intervals", LAYOUTS[1], 10 * CHUNK, intervals)
    per_interval = bytes_each(INTERVALS) / INTERVALS
    for i, ms in measuring.milliseconds(calls, repeats=size.repeats).items():
        row = rows[i]
        row |= {"ms": ms, "us_each": 1e3 * ms / row["number"]}
        row["gb_a_second"] = per_interval * row["intervals"] * row["number"] / ms / 1e6
    return rows


def chosen(rows: list[dict], **wanted) -> list[dict]:
    return [row for row in rows if wanted.items() <= row.items()]


def slope(rows: list[dict], against: str, layout: str) -> float:
    """Of time, on logarithmic axes, over the last three points."""
    key = "number" if against == "trajectories" else "intervals"
    points = [(r[key], r["ms"]) for r in chosen(rows, against=against, layout=layout)][-3:]
    if len(points) < 2:
        return float("nan")
    return float(np.polyfit(*np.log(points).T, 1)[0])


def summary(rows: list[dict], bandwidth: float) -> dict:
    """Where the cost of a trajectory stops falling, and how fast data move there."""
    out: dict[str, Any] = {"bandwidth_gb_a_second": bandwidth, "bytes_each": bytes_each(INTERVALS)}
    for name, layout in (("one_state", LAYOUTS[0]), ("chunks", LAYOUTS[1])):
        found = chosen(rows, against="trajectories", layout=layout)
        least = min(row["us_each"] for row in found)
        stop = next(row for row in found if row["us_each"] <= 1.1 * least)
        out[f"{name}_stops_falling_at"] = stop["number"]
        out[f"{name}_gb_a_second_there"] = stop["gb_a_second"]
        out[f"{name}_gb_a_second_at_most_trajectories"] = found[-1]["gb_a_second"]
        out[f"{name}_slope"] = slope(rows, "trajectories", layout)
    return out


# --- what comes of it -----------------------------------------------------------------------------


def goals_of(rows: list[dict], scaling: list[dict]) -> list[dict]:
    def best(**wanted):
        times = [r["us_each"] for r in chosen(rows, **wanted) if r.get("error", 1) <= ERROR]
        return min(times, default=float("nan"))

    out, held, lagged = [], {"equation": "population"}, {"equation": "hutchinson"}
    for dtype in ("float64", "float32"):
        for stepping in ("fixed", "adaptive"):
            same = held | {"dtype": dtype, "steps": stepping}
            ratio = best(program="diffrax", **same) / best(program="lagrax", **same)
            name = f"population, {dtype}, {stepping} steps: diffrax's time over lagrax's"
            out.append(measuring.at_least(name, ratio, 1))
    f64 = {"dtype": "float64"}
    ratio = best(program="scipy", **held) / best(program="lagrax", **held, **f64)
    out.append(measuring.at_least("population: scipy's time over lagrax's", ratio, 1))
    for stepping in ("fixed", "adaptive"):
        ratio = best(program="jitcdde", **lagged) / best(program="lagrax", **lagged, steps=stepping)
        name = f"hutchinson: adaptive jitcdde's time over lagrax's with {stepping} steps"
        out.append(measuring.at_least(name, ratio, 1))
    for against in ("trajectories", "intervals"):
        found = abs(slope(scaling, against, LAYOUTS[1]) - 1)
        name = f"time against {against}, logarithmic: distance of the slope from 1"
        out.append(measuring.at_most(name, found, 0.1))
    return out


def whole_decades(rows: list[dict]) -> tuple[float, float]:
    exponents = np.log10([row["us_each"] for row in rows])
    return float(10 ** np.floor(min(exponents))), float(10 ** np.ceil(max(exponents)))


def picture(scaling: list[dict], facts: dict) -> Figure:
    def line(against, layout, key, **style):
        found = chosen(scaling, against=against, layout=layout)
        x, y = [r[key] for r in found], [r["us_each"] for r in found]
        return Line(x, y, layout, **style)

    streamed = facts["bytes_each"] / facts["bandwidth_gb_a_second"] / 1e3
    ends = [chosen(scaling, against="trajectories")[i]["number"] for i in (0, -1)]
    first, *_, last = chosen(scaling, against="intervals")
    straight = np.array([first["intervals"], last["intervals"]])
    trajectories = Panel(
        [
            line("trajectories", LAYOUTS[0], "number", colour="orange"),
            line("trajectories", LAYOUTS[1], "number"),
            Line(
                ends,
                [streamed] * 2,
                "the bytes it moves, at the speed of main memory",
                "grey",
                dashed=True,
            ),
        ],
        f"{INTERVALS} intervals",
        "number of trajectories",
        "µs a trajectory",
        xlog=True,
        ylog=True,
        ylim=whole_decades(chosen(scaling, against="trajectories")),
    )
    intervals = Panel(
        [
            line("intervals", LAYOUTS[1], "intervals"),
            Line(
                straight,
                last["us_each"] * straight / last["intervals"],
                "proportional",
                "green",
                dashed=True,
            ),
        ],
        f"{last['number']} trajectories",
        "number of intervals",
        "µs a trajectory",
        xlog=True,
        ylog=True,
        ylim=whole_decades(chosen(scaling, against="intervals")),
    )
    caption = "What one trajectory of the population equation costs: Tsit5, equal steps, float64."
    return Figure("throughput", caption, [trajectories, intervals], columns=2)


COMPARED = {"equation": "", "program": "", "steps": "", "dtype": "", "layout": "", "error": ".1e"}
COMPARED |= {"measured": "", "us_each": ".3g", "for_100000_s": ".3g", "a_second": ".3g"}
COMPARED |= {"absent": ""}
SCALED = {"against": "", "layout": "", "number": "", "intervals": "", "ms": ".3g"}
SCALED |= {"us_each": ".3g", "gb_a_second": ".3g"}


def main() -> None:
    options = measuring.options_for(QUESTION, measuring.RESULTS / "throughput.json")
    size = TINY if options.tiny else FULL
    jax.config.update("jax_enable_x64", True)
    rows = held_rows(size) + lagged_rows(size) + peer_rows(size)
    for row in rows:
        if "us_each" in row:
            row |= {"for_100000_s": 0.1 * row["us_each"], "a_second": 1e6 / row["us_each"]}
    print(measuring.table(rows, COMPARED), flush=True)
    scaling = scaling_rows(size)
    facts = summary(scaling, gigabytes_a_second(size.stream, size.repeats))
    print(measuring.table(scaling, SCALED), *facts.items(), sep="\n")
    goals = goals_of(rows, scaling)
    everything = [*rows, *scaling, {"summary": facts}]
    measuring.write(options.out, QUESTION, everything, goals, "scipy", "jitcdde")
    image = options.out.with_suffix(".png")
    draw(picture(scaling, facts), image)
    print(f"wrote {image}")


if __name__ == "__main__":
    main()
