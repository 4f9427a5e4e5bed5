"""What does lagrax cost where nothing is delayed?

This script solves the van der Pol oscillator, an ordinary equation of two states, by lagrax and by
diffrax: 100 equal steps of Tsit5, and adaptive ones (rtol 1e-5). It reports the time of a compiled
call, and of a first one, which is the processor's time to trace, lower and compile. float32.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8:

    0.828    ≤ 1.2 met     equal steps: lagrax over diffrax, in time
    0.461    ≤ 1 met       equal steps: lagrax over diffrax, first call
    1.33     ≤ 1.2 missed  adaptive steps: lagrax over diffrax, in time
    1.16     ≤ 1 missed    adaptive steps: lagrax over diffrax, first call

`python benchmarks/plain_cost.py` takes a minute. It prints the table and writes the rows.
"""

import time
from collections.abc import Callable

import diffrax
import jax
import jax.numpy as jnp
from measuring import RESULTS, at_most, milliseconds, options_for, table, write

import lagrax

QUESTION = "What does lagrax cost where nothing is delayed?"
END, STEPS = 10.0, 100
CONTROL = diffrax.PIDController(rtol=1e-5, atol=1e-7)


def oscillator(t, y, args):
    return jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])


def with_lagrax(adaptive: bool) -> Callable:
    options = {"stepsize_controller": CONTROL} if adaptive else {"steps": STEPS}
    return lambda y0: lagrax.solve(oscillator, 0.0, END, y0, throw=False, **options).ys


def with_diffrax(adaptive: bool) -> Callable:
    options = {"stepsize_controller": CONTROL} if adaptive else {"max_steps": STEPS + 1}
    term, dt0 = diffrax.ODETerm(oscillator), None if adaptive else END / STEPS
    return lambda y0: (
        diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, END, dt0, y0, throw=False, **options).ys
    )


def first_call(function: Callable, y0: jax.Array) -> float:
    """Seconds of the processor, which other load does not change."""
    jax.clear_caches()
    start = time.process_time()
    jax.jit(function).lower(y0).compile()
    return time.process_time() - start


def main() -> None:
    options = options_for(QUESTION, RESULTS / "plain_cost.json")
    repeats = 1 if options.tiny else 3
    y0, rows, goals = jnp.array([1.0, 0.0]), [], []
    first_call(jnp.sin, y0)  # what a process does once
    for problem, adaptive in (("equal steps", False), ("adaptive steps", True)):
        solves = {"lagrax": with_lagrax(adaptive), "diffrax": with_diffrax(adaptive)}
        first = {name: min(first_call(f, y0) for _ in range(repeats)) for name, f in solves.items()}
        runs = {name: jax.jit(solve) for name, solve in solves.items()}
        calls = {name: lambda run=run: run(y0) for name, run in runs.items()}
        ms = milliseconds(calls, repeats=7 * repeats)
        for name in solves:
            row = {"problem": problem, "library": name, "us": 1e3 * ms[name]}
            rows.append(row | {"first_s": first[name]})
        ratio = ms["lagrax"] / ms["diffrax"]
        goals.append(at_most(f"{problem}: lagrax over diffrax, in time", ratio, 1.2))
        ratio = first["lagrax"] / first["diffrax"]
        goals.append(at_most(f"{problem}: lagrax over diffrax, first call", ratio, 1))
    print(table(rows, {"problem": "", "library": "", "us": ".1f", "first_s": ".2f"}))
    write(options.out, QUESTION, rows, goals)


if __name__ == "__main__":
    main()
