"""What do the three gradients cost?

This script differentiates a mean square at the end with respect to the weights of a field, for
`Direct`, `Checkpointed` and `Adjoint`, and for diffrax with a scan over the intervals and its
`RecursiveCheckpointAdjoint`. The field is an MLP of 16 states and 16 held ones (hidden layers of 64
and 64); batch 1024, float32, Tsit5 with equal steps. Memory is the size of the temporary buffers of
the compiled gradient, as reported by XLA. The error of a gradient is relative to `Direct` in
float64 with 256 steps an interval, which is as accurate as the gradient of the equation.

Times are medians of three timings in one run. Memory in MB:

    intervals x steps     8 x 1    8 x 4   8 x 16   8 x 64   64 x 16  256 x 16
    Direct                   57      228      967     3855      6961     27509
    Checkpointed              5       15        6        9        10        23
    Adjoint                   6        6        6        6        13        38
    diffrax                   7        8       12       18        67       256

Direct stores every stage of every step, Adjoint the knots. Checkpointed stores the knots and the
stages of one interval, or with eight steps and more the states between them and the stages of one
step. diffrax stores the state at some steps, which is more with 256 intervals. The error of the
gradient in float64 is 4e-3, 6e-7, 2e-10 and 3e-13 with 1, 4, 16 and 64 steps, for Adjoint as for
Direct. In float32 it stays at 3e-6.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8:

    1        ≤ 3 met       Checkpointed: memory that one more interval adds, in states
    0.00143  ≤ 0.2 met     Checkpointed: memory over Direct's, 64 intervals of 16 steps
    1        ≤ 1.2 met     Adjoint: memory with 64 steps over 1, 8 intervals
    0.874    ≤ 1.5 met     Checkpointed: time over Direct's, 8 intervals of 16 steps
    0.533    ≤ 1 met       Checkpointed: memory over diffrax's, 8 intervals of 16 steps
    0.533    ≤ 1 met       Checkpointed: memory over diffrax's, 8 intervals of 64 steps
    1.07     ≥ 1 met       diffrax's time over Checkpointed's, 8 intervals of 16 steps
    2.53e-13 ≤ 1e-08 met   Adjoint: gradient's error in float64, 64 steps

`.venv-bench/bin/python benchmarks/gradient_cost.py` takes three minutes. It prints the table and
the goals, and writes results/gradient_cost.json and a picture. `--tiny` checks that everything
runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import measuring
import numpy as np

import lagrax
from lagrax.nn import MLP
from lagrax.plotting import Figure, Line, Panel, Points, draw

QUESTION = "What do the three gradients cost?"
STATES, WIDTHS = 16, (64, 64)
STRENGTH = 3.0  # of the weights, so that one step an interval is not yet exact
SPAN = 4.0  # all of it, however many intervals: longer ones are no harder
WAYS = {
    "Direct": lagrax.Direct(),
    "Checkpointed": lagrax.Checkpointed(),
    "Adjoint": lagrax.Adjoint(),
}
PEER = "diffrax, recursive checkpoints"
ACCURATE = 256  # steps an interval of the reference
COLUMNS = {"way": "", "intervals": "", "steps": "", "mb": ".2f", "ms": ".1f"}
COLOURS = {"Direct": "orange", "Checkpointed": "blue", "Adjoint": "green", PEER: "grey"}


@dataclass(frozen=True)
class Size:
    batch: int
    intervals: tuple[int, ...]  # at `at_steps` steps each
    steps: tuple[int, ...]  # in each of `at_intervals`
    at_steps: int
    at_intervals: int
    timed: int  # the most steps in all of a program that is run, not only compiled
    judged: int  # the batch with which errors are measured
    accurate: int
    repeats: int


FULL = Size(1024, (1, 4, 16, 64, 256), (1, 4, 16, 64), 16, 8, 128, 32, ACCURATE, 3)
TINY = Size(8, (1, 2), (1, 2), 1, 1, 8, 4, 2, 1)


def network(dtype=jnp.float32) -> MLP:
    with jax.enable_x64(False):  # the same random numbers in every type
        mlp = MLP(STATES, WIDTHS, history=1, key=jax.random.key(0))
    return jax.tree.map(lambda x: STRENGTH * x.astype(dtype) if eqx.is_inexact_array(x) else x, mlp)


def starts(batch: int, dtype=jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, STATES)), dtype)


# --- the programs ---------------------------------------------------------------------------------


def with_lagrax(gradient, intervals: int, steps: int) -> Callable:
    def end(field, y0):
        sol = lagrax.solve(
            field,
            0.0,
            SPAN,
            y0,
            delays=[lagrax.Hold(SPAN / intervals)],
            steps=steps,
            gradient=gradient,
            throw=False,
        )
        return sol.ys[-1]

    return end


def with_diffrax(intervals: int, steps: int) -> Callable:
    """The same steps: one `diffeqsolve` an interval, the held share of the first layer computed
    once, as in lagrax."""
    tau = SPAN / intervals

    def end(field, y0):
        def interval(y, k):
            prepared = field.hold((y,))
            sol = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, z, held: field(t, z, None, history=held)),
                diffrax.Tsit5(),
                k * tau,
                (k + 1) * tau,
                tau / steps,
                y,
                prepared,
                adjoint=diffrax.RecursiveCheckpointAdjoint(),
                max_steps=steps + 1,
                throw=False,
            )
            return sol.ys[-1], None

        return jax.lax.scan(interval, y0, jnp.arange(intervals, dtype=y0.dtype))[0]

    return end


def gradient_of(end: Callable) -> Callable:
    """Of a mean square, with respect to the field's weights; to be jitted."""

    def loss(weights, rest, y0):
        return jnp.mean(end(eqx.combine(weights, rest), y0) ** 2)

    return jax.grad(loss)


def program(way: str, intervals: int, steps: int) -> Callable:
    if way == PEER:
        return gradient_of(with_diffrax(intervals, steps))
    return gradient_of(with_lagrax(WAYS[way], intervals, steps))


def compile_gradient(way: str, intervals: int, steps: int, batch: int, dtype=jnp.float32):
    """Returns the compiled gradient and its arguments."""
    weights, rest = eqx.partition(network(dtype), eqx.is_inexact_array)
    gradient, y0 = program(way, intervals, steps), starts(batch, dtype)
    run = jax.jit(lambda weights, y0: gradient(weights, rest, y0))
    return run.lower(weights, y0).compile(), (weights, y0)


# --- measuring ------------------------------------------------------------------------------------


def shapes(size: Size) -> list[tuple[int, int]]:
    """(intervals, steps) of every row."""
    some = [(n, size.at_steps) for n in size.intervals]
    return list(dict.fromkeys(some + [(size.at_intervals, k) for k in size.steps]))


def cost_rows(size: Size) -> list[dict]:
    """Returns memory for all shapes, and times for the short ones."""
    rows = []
    for intervals, steps in shapes(size):
        calls, found = {}, []
        for way in (*WAYS, PEER):
            run, arguments = compile_gradient(way, intervals, steps, size.batch)
            memory = run.memory_analysis().temp_size_in_bytes / 1e6
            found.append({"way": way, "intervals": intervals, "steps": steps, "mb": memory})
            if intervals * steps <= size.timed:
                calls[way] = lambda run=run, arguments=arguments: run(*arguments)
        if calls:
            times = measuring.milliseconds(calls, repeats=size.repeats)
            for row in found:
                row["ms"] = times[row["way"]]
        print(measuring.table(found, COLUMNS), flush=True)
        rows += found
    return rows


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(tree)])


def error_rows(size: Size) -> list[dict]:
    """The gradients' errors against the number of steps, in both floating point types. (Those of
    Checkpointed and diffrax are Direct's to rounding.)"""
    rows, intervals = [], size.at_intervals
    with jax.enable_x64(True):
        run, arguments = compile_gradient(
            "Direct", intervals, size.accurate, size.judged, jnp.float64
        )
        exact = flat(run(*arguments))
    for dtype in ("float64", "float32"):
        for steps in size.steps:
            for way in ("Direct", "Adjoint"):
                with jax.enable_x64(dtype == "float64"):
                    run, arguments = compile_gradient(way, intervals, steps, size.judged, dtype)
                    found = flat(run(*arguments))
                error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
                rows.append({"way": way, "dtype": dtype, "intervals": intervals})
                rows[-1] |= {"steps": steps, "error": error}
    return rows


# --- what comes of it -----------------------------------------------------------------------------


def chosen(rows: list[dict], **wanted) -> list[dict]:
    return [row for row in rows if wanted.items() <= row.items()]


def value(rows: list[dict], what: str, **wanted) -> float:
    found = chosen(rows, **wanted)
    return found[0].get(what, float("nan")) if found else float("nan")


def goals_of(rows: list[dict], errors: list[dict], size: Size) -> list[dict]:
    n, k = size.at_intervals, size.at_steps
    few, many = size.steps[0], size.steps[-1]
    most = size.intervals[-2]

    def memory(way, intervals, steps):
        return value(rows, "mb", way=way, intervals=intervals, steps=steps)

    def time(way):
        return value(rows, "ms", way=way, intervals=n, steps=k)

    # What an interval more takes, in states: Checkpointed needs one, its knot.
    state = 4e-6 * size.batch * STATES
    first, last = size.intervals[-2:]
    grown = memory("Checkpointed", last, k) - memory("Checkpointed", first, k)
    share = memory("Checkpointed", most, k) / memory("Direct", most, k)
    flat = memory("Adjoint", n, many) / memory("Adjoint", n, few)
    at = f"{n} intervals of {k} steps"
    worst = value(errors, "error", way="Adjoint", dtype="float64", intervals=n, steps=many)
    return [
        measuring.at_most(
            "Checkpointed: memory that one more interval adds, in states",
            grown / (last - first) / state,
            3,
        ),
        measuring.at_most(
            f"Checkpointed: memory over Direct's, {most} intervals of {k} steps", share, 0.2
        ),
        measuring.at_most(
            f"Adjoint: memory with {many} steps over {few}, {n} intervals", flat, 1.2
        ),
        measuring.at_most(
            f"Checkpointed: time over Direct's, {at}", time("Checkpointed") / time("Direct"), 1.5
        ),
        measuring.at_most(
            f"Checkpointed: memory over diffrax's, {at}",
            memory("Checkpointed", n, k) / memory(PEER, n, k),
            1,
        ),
        measuring.at_most(
            f"Checkpointed: memory over diffrax's, {n} intervals of {many} steps",
            memory("Checkpointed", n, many) / memory(PEER, n, many),
            1,
        ),
        measuring.at_least(
            f"diffrax's time over Checkpointed's, {at}", time(PEER) / time("Checkpointed"), 1
        ),
        measuring.at_most(f"Adjoint: gradient's error in float64, {many} steps", worst, 1e-8),
    ]


def line(rows: list[dict], way: str, x: str, y: str) -> Line:
    return Line(*points_of(rows, way, x, y), way, COLOURS[way], dashed=way == PEER)


def points_of(rows: list[dict], way: str, x: str, y: str) -> tuple[list[float], list[float]]:
    points = sorted([row for row in chosen(rows, way=way) if y in row], key=lambda row: row[x])
    return [row[x] for row in points], [row[y] for row in points]


def picture(rows: list[dict], errors: list[dict], size: Size) -> Figure:
    over_intervals = chosen(rows, steps=size.at_steps)
    over_steps = chosen(rows, intervals=size.at_intervals)
    in_float64 = chosen(errors, dtype="float64")
    intervals, steps = "number of intervals", "steps in each interval"

    def panel(rows, x, y, title, xlabel, ylabel):
        marks = [line(rows, way, x, y) for way in (*WAYS, PEER)]
        return Panel(marks, title, xlabel, ylabel, xlog=True, ylog=True)

    # Dots, as the two errors are all but the same.
    errors_of = [
        line(in_float64, "Direct", "steps", "error"),
        Points(*points_of(in_float64, "Adjoint", "steps", "error"), "Adjoint", "green", 6),
    ]
    each, all_of = f"{size.at_steps} steps in each interval", f"{size.at_intervals} intervals"
    panels = [
        panel(over_intervals, "intervals", "mb", each, intervals, "memory, MB"),
        panel(over_steps, "steps", "mb", all_of, steps, "memory, MB"),
        panel(over_steps, "steps", "ms", all_of, steps, "time, ms"),
        Panel(errors_of, f"{all_of}, float64", steps, "relative error", xlog=True, ylog=True),
    ]
    return Figure("gradient_cost", "What a gradient costs, and its error.", panels, columns=2)


def main() -> None:
    options = measuring.options_for(QUESTION, measuring.RESULTS / "gradient_cost.json")
    size = TINY if options.tiny else FULL
    rows, errors = cost_rows(size), error_rows(size)
    columns = {"way": "", "dtype": "", "intervals": "", "steps": "", "error": ".1e"}
    print(measuring.table(errors, columns))
    goals = goals_of(rows, errors, size)
    measuring.write(options.out, QUESTION, [*rows, *errors], goals)
    image = options.out.with_suffix(".png")
    draw(picture(rows, errors, size), image)
    print(f"wrote {image}")


if __name__ == "__main__":
    main()
