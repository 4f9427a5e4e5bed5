"""Does an NDDE cost n times as much as an NPCDDE?

The paper says so: O(nK) evaluations of the field instead of O(K), for K evaluations of an ordinary
equation over the same span, since an NDDE computes its past anew. This script solves z' =
f(z(t), z(t - tau)) over n = T/tau intervals in two ways. "recomputed" does what the paper
describes: in interval k it solves for the k + 1 pieces z(s), z(tau + s), ..., z(k tau + s)
together. "looked up" reads the dense output of the solution so far (`lagrax.Lag`). The third
program is the NPCDDE z' = f(z(t), z_k) with the same field.

T is 4, f is an MLP of 4 states and 4 past ones (hidden layers of 32 and 32), batch 64, float32,
Tsit5 with equal steps. Each program takes the fewest steps in an interval with which its largest
error at T is below 1e-4, compared with 64 steps over T at least. Evaluations count one call of f on
one state. Memory is the size of the temporary buffers as reported by XLA, times are medians of
41 turns in one run, both of the gradient of a mean square at T with respect to the weights. The
cores were shared with other work, so a single time may be off by half.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8:

    4.5      ≥ 4 met       8 intervals: NDDE, recomputed, over NPCDDE, evaluations
    8.38     ≥ 4 met       8 intervals: NDDE, recomputed, over NPCDDE, time
    58.2     ≥ 4 met       8 intervals: NDDE, recomputed, over NPCDDE, memory
    1        ≤ 2 met       8 intervals: NDDE, looked up, over NPCDDE, evaluations
    1.11     ≤ 2 met       8 intervals: NDDE, looked up, over NPCDDE, time
    1.97     ≤ 2 met       8 intervals: NDDE, looked up, over NPCDDE, memory

`python benchmarks/recomputed_past.py` takes two minutes. It prints the rows and the goals, and
writes results/recomputed_past.json and a picture. `--tiny` checks that everything runs.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import measuring

import lagrax
from lagrax.nn import MLP
from lagrax.plotting import Figure, Line, Panel, Points, draw

QUESTION = "Does an NDDE cost n times as much as an NPCDDE?"
RESULTS = measuring.RESULTS / "recomputed_past.json"
SPAN, STATES, WIDTHS, BATCH = 4.0, 4, (32, 32), 64
STRENGTH = 2.0  # of the weights, so that the solutions bend
ACCURACY = 1e-4
STAGES = 6  # of Tsit5, whose first one is the last of the step before

# `solve(field, y0, n, steps)` gives the state at T.
Solve = Callable[[MLP, jax.Array, int, int], jax.Array]


def solve_held(field: MLP, y0: jax.Array, n: int, steps: int) -> jax.Array:
    return _solve(field, SPAN, y0, [lagrax.Hold(SPAN / n)], steps)


def solve_looked_up(field: MLP, y0: jax.Array, n: int, steps: int) -> jax.Array:
    return _solve(field, SPAN, y0, [lagrax.Lag(SPAN / n)], steps)


def solve_recomputed(field: MLP, y0: jax.Array, n: int, steps: int) -> jax.Array:
    """By the method of steps: interval k solves for all pieces of the solution up to its own."""

    def pieces(t, ys, args, *, history):
        past = jnp.concatenate([y0[None], ys[:-1]])
        return field(t, ys, args, history=field.hold((past,)))

    starts = y0[None]
    for _ in range(n):
        ends = _solve(pieces, SPAN / n, starts, [], steps)
        starts = jnp.concatenate([y0[None], ends])
    return starts[-1]


def _solve(field, span: float, y0: jax.Array, delays: list, steps: int) -> jax.Array:
    gradient = lagrax.Checkpointed()
    sol = lagrax.solve(
        field, 0.0, span, y0, delays=delays, steps=steps, gradient=gradient, throw=False
    )
    assert sol.ys is not None
    return sol.ys[-1]


PROGRAMS: dict[str, Solve] = {
    "NPCDDE": solve_held,
    "NDDE, looked up": solve_looked_up,
    "NDDE, recomputed": solve_recomputed,
}
# Pieces that are solved in all n intervals together.
PIECES = {
    "NPCDDE": lambda n: n,
    "NDDE, looked up": lambda n: n,
    "NDDE, recomputed": lambda n: n * (n + 1) // 2,
}


def find_steps(solve: Solve, reference: Solve, field: MLP, y0: jax.Array, n: int) -> int:
    """The fewest steps in an interval that are accurate enough."""
    exact = reference(field, y0, n, max(8, 64 // n))
    for steps in range(1, 64):
        if jnp.max(jnp.abs(reference(field, y0, n, steps) - exact)) < ACCURACY:
            break
    error = float(jnp.max(jnp.abs(solve(field, y0, n, steps) - exact)))
    assert error < 1.5 * ACCURACY, f"{steps} steps in each of {n} intervals: the error is {error}"
    return steps


def measure(numbers: tuple[int, ...], repeats: int) -> list[dict]:
    field = MLP(STATES, WIDTHS, history=1, activation=jnp.tanh, key=jax.random.key(0))
    field = jax.tree.map(lambda w: STRENGTH * w, field)
    y0 = jax.random.normal(jax.random.key(1), (BATCH, STATES))
    rows, calls = [], {}
    for n in numbers:
        for name, solve in PROGRAMS.items():
            # The two NDDEs are one equation, and take the same steps.
            reference = solve_held if solve is solve_held else solve_looked_up
            steps = find_steps(solve, reference, field, y0, n)
            loss = lambda field, solve=solve, n=n, s=steps: jnp.mean(solve(field, y0, n, s) ** 2)
            gradient = jax.jit(jax.grad(loss)).lower(field).compile()
            calls[str(len(rows))] = lambda gradient=gradient: gradient(field)
            memory = gradient.memory_analysis().temp_size_in_bytes / 1e6
            rows.append(
                {
                    "program": name,
                    "intervals": n,
                    "steps": steps,
                    "evaluations": STAGES * steps * PIECES[name](n),
                    "memory_mb": memory,
                }
            )
    for number, ms in measuring.milliseconds(calls, repeats=repeats).items():
        rows[int(number)]["gradient_ms"] = ms
    return rows


def list_goals(rows: list[dict]) -> list[dict]:
    last = {row["program"]: row for row in rows if row["intervals"] == rows[-1]["intervals"]}
    begin, base = f"{rows[-1]['intervals']} intervals", last["NPCDDE"]
    goals = []
    for program, limit, better in (
        ("NDDE, recomputed", 4.0, measuring.at_least),
        ("NDDE, looked up", 2.0, measuring.at_most),
    ):
        for key in ("evaluations", "gradient_ms", "memory_mb"):
            what = {"gradient_ms": "time", "memory_mb": "memory"}.get(key, key)
            name = f"{begin}: {program}, over NPCDDE, {what}"
            goals.append(better(name, last[program][key] / base[key], limit))
    return goals


def draw_rows(rows: list[dict], path: Path) -> None:
    colours = dict(zip(PROGRAMS, ("blue", "green", "orange"), strict=True))
    titles = {"evaluations": "evaluations of the field", "gradient_ms": "gradient, ms"}
    titles["memory_mb"] = "memory of the gradient, MB"
    panels = []
    for key, title in titles.items():
        marks = []
        for name in PROGRAMS:
            own = [row for row in rows if row["program"] == name]
            x, y = ([row[k] for row in own] for k in ("intervals", key))
            marks += [Line(x, y, label=name, colour=colours[name])]
            marks += [Points(x, y, colour=colours[name])]
        panels.append(Panel(marks, title, "intervals n"))
    draw(Figure("recomputed_past", "", panels, columns=3), path)


def main() -> None:
    options = measuring.options_for(QUESTION, RESULTS)
    rows = measure((1, 2), 1) if options.tiny else measure((1, 2, 4, 8), 41)
    columns = {"program": "", "intervals": "", "steps": "", "evaluations": ""}
    print(measuring.table(rows, columns | {"gradient_ms": ".2f", "memory_mb": ".3f"}))
    measuring.write(options.out, QUESTION, rows, list_goals(rows))
    draw_rows(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
