"""What does the gradient through a lag cost?

This script compiles gradients of solves with lags and reports the size of their temporary buffers,
as XLA gives it, and the time to trace, lower and compile. The state has 1,000 numbers, float32,
Tsit5; the loss is the sum of squares at the end. A "tape" is the dense output of `max_steps` steps
(or of all equal steps), five states a step with Tsit5. Beside it stands diffrax's solve of the same
equation without its lags and with `SaveAt(dense=True)`, which keeps the slopes of all steps. No
step reads them there, so its gradient needs no cotangents of them.

Compilation is compared within one process: a training loss on the population equation with a lag
against the same loss with plain diffrax and without one, and 64 different lags against one.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8:

    2.2      ≤ 2.5 met     lags 1 and 10, max_steps 4096: the gradient's memory, in tapes
    1        ≤ 1.2 met     lags 1 and 10, max_steps 4096: the solve's memory, in tapes
    2.27     ≤ 2.5 met     lags 1 and 10, max_steps 256: the gradient's memory, in tapes
    1.07     ≤ 1.2 met     lags 1 and 10, max_steps 256: the solve's memory, in tapes
    2.2      ≤ 2.5 met     lag 1, max_steps 4096: the gradient's memory, in tapes
    1        ≤ 1.2 met     lag 1, max_steps 4096: the solve's memory, in tapes
    2.23     ≤ 2.5 met     lag 1, max_steps 256: the gradient's memory, in tapes
    1.02     ≤ 1.2 met     lag 1, max_steps 256: the solve's memory, in tapes
    2.18     ≤ 2.5 met     lags 1 and 10, 10 steps an interval: the gradient's memory, in tapes
    1.67     ≤ 1.5 missed  population: compilation with a lag over diffrax's without
    5.45     ≤ 3 missed    64 lags over 1 lag: compilation

`.venv-bench/bin/python benchmarks/lag_cost.py` takes two minutes. It prints the rows and the goals,
and writes results/lag_cost.json. `--tiny` checks that everything runs.
"""

import time
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import measuring
import numpy as np

import lagrax
from lagrax.nn import MLP

QUESTION = "What does the gradient through a lag cost?"
SIZE, TINY_SIZE = 1000, 10
COLUMNS = {"problem": "", "program": "", "way": "", "mb": ".2f", "tapes": ".2f", "ms": ".1f"}
# Lags, the end, and the options of the solve.
PROBLEMS = {
    "lags 1 and 10, max_steps 4096": ((1.0, 10.0), 20.0, {"max_steps": 4096}),
    "lags 1 and 10, max_steps 256": ((1.0, 10.0), 20.0, {"max_steps": 256}),
    "lag 1, max_steps 4096": ((1.0,), 20.0, {"max_steps": 4096}),
    "lag 1, max_steps 256": ((1.0,), 20.0, {"max_steps": 256}),
    "lags 1 and 10, 10 steps an interval": ((1.0, 10.0), 80.0, {"steps": 10}),
}


# --- memory ---------------------------------------------------------------------------------------


def with_lagrax(taus, t1: float, options: dict, gradient=lagrax.Checkpointed()) -> Callable:
    def loss(y0):
        field = lambda t, y, args, *, history: sum(jnp.sin(h) for h in history) - 0.5 * y
        delays = [lagrax.Lag(tau) for tau in taus]
        sol = lagrax.solve(
            field, 0.0, t1, y0, delays=delays, gradient=gradient, throw=False, **options
        )
        return jnp.sum(sol.ys**2)

    return loss


def with_diffrax(taus, t1: float, options: dict) -> Callable:
    """Without lags, but with dense output of as many steps."""

    def loss(y0):
        field = lambda t, y, args: sum(jnp.sin(y) for _ in taus) - 0.5 * y
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            0.0,
            t1,
            None,
            y0,
            saveat=diffrax.SaveAt(t1=True, dense=True),
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-7),
            throw=False,
            **options,
        )
        return jnp.sum(sol.ys**2) + jnp.sum(sol.evaluate(t1 / 2))  # reads it, as a lag does

    return loss


def memory_rows(size: int) -> list[dict]:
    rows, y0 = [], jnp.ones(size)
    for problem, (taus, t1, options) in PROBLEMS.items():
        steps = options.get("max_steps") or int(t1 / min(taus)) * options["steps"]
        ways = {"Checkpointed": with_lagrax(taus, t1, options)}
        if "steps" in options:
            ways["Direct"] = with_lagrax(taus, t1, options, lagrax.Direct())
        else:
            ways["diffrax, dense, no lag"] = with_diffrax(taus, t1, options)
        calls, found = {}, []
        for way, loss in ways.items():
            for program, function in (("solve", loss), ("gradient", jax.grad(loss))):
                run = jax.jit(function).lower(y0).compile()
                memory = run.memory_analysis().temp_size_in_bytes
                row = {"problem": problem, "program": program, "way": way, "mb": memory / 1e6}
                found.append(row | {"tapes": memory / (4 * 5 * size * steps)})
                calls[program + way] = lambda run=run: run(y0)
        times = measuring.milliseconds(calls, repeats=3)
        for row in found:
            row["ms"] = times[row["program"] + row["way"]]
        print(measuring.table(found, COLUMNS), flush=True)
        rows += found
    return rows


# --- compilation ----------------------------------------------------------------------------------


def compile_seconds(function: Callable, *args) -> float:
    """The processor's time to trace, lower and compile, which other load does not change."""
    jax.clear_caches()
    start = time.process_time()
    jax.jit(function).lower(*args).compile()
    return time.process_time() - start


def population_losses() -> tuple[Callable, Callable, tuple]:
    """A training loss with a lag, and the same with plain diffrax and without one."""
    ts = np.linspace(0.0, 3.0, 31)
    control = diffrax.PIDController(rtol=1e-3, atol=1e-5)
    networks = [MLP(1, (16, 16), history=n, key=jax.random.key(0)) for n in (1, 0)]
    weights, (rest, plain) = (
        eqx.partition(networks[0], eqx.is_inexact_array)[0],
        (eqx.partition(n, eqx.is_inexact_array)[1] for n in networks),
    )
    free = eqx.partition(networks[1], eqx.is_inexact_array)[0]

    def lagged(weights, free, y0):
        sol = lagrax.solve(
            eqx.combine(weights, rest),
            *(0.0, 3.0, y0),
            delays=[lagrax.Lag(1.0)],
            saveat=diffrax.SaveAt(ts=ts),
            stepsize_controller=control,
            throw=False,
        )
        return jnp.mean(sol.ys**2)

    def unlagged(weights, free, y0):
        network = eqx.combine(free, plain)
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: network(t, y, None, history=network.hold(()))),
            diffrax.Tsit5(),
            *(0.0, 3.0, None, y0),
            saveat=diffrax.SaveAt(ts=ts),
            stepsize_controller=control,
            throw=False,
        )
        return jnp.mean(sol.ys**2)

    return lagged, unlagged, (weights, free, jnp.ones((100, 1)))


def compile_rows(lags: int) -> list[dict]:
    lagged, unlagged, args = population_losses()

    def with_lags(count):
        def solve(y0):
            field = lambda t, y, args, *, history: sum(jnp.sin(h) for h in history) - y
            delays = [lagrax.Lag(1.0 + 0.5 * i / count) for i in range(count)]
            return lagrax.solve(field, 0.0, 3.0, y0, delays=delays, steps=2, throw=False).ys

        return solve

    programs = {
        "population, gradient, lagrax with a lag": (jax.grad(lagged), *args),
        "population, gradient, diffrax without": (jax.grad(unlagged, argnums=1), *args),
        "1 lag, solve": (with_lags(1), jnp.ones(84)),
        f"{lags} lags, solve": (with_lags(lags), jnp.ones(84)),
    }
    compile_seconds(jnp.sin, 1.0)  # what a process does once
    rows = []
    for problem, (function, *inputs) in programs.items():
        seconds = min(compile_seconds(function, *inputs) for _ in range(2))
        rows.append({"problem": problem, "program": "compilation", "seconds": seconds})
    print(measuring.table(rows, {"problem": "", "seconds": ".2f"}), flush=True)
    return rows


# --- goals ----------------------------------------------------------------------------------------


def goals_of(rows: list[dict], compiled: list[dict]) -> list[dict]:
    def value(what: str, **wanted):
        return next((r[what] for r in rows if wanted.items() <= r.items()), float("nan"))

    goals = []
    for problem, (_, _, options) in PROBLEMS.items():
        own = {"problem": problem, "way": "Checkpointed"}
        name = f"{problem}: the gradient's memory, in tapes"
        goals.append(measuring.at_most(name, value("tapes", program="gradient", **own), 2.5))
        if "max_steps" in options:
            name = f"{problem}: the solve's memory, in tapes"
            goals.append(measuring.at_most(name, value("tapes", program="solve", **own), 1.2))
    seconds = [row["seconds"] for row in compiled]
    lags = compiled[3]["problem"].split(",")[0]
    return [
        *goals,
        measuring.at_most(
            "population: compilation with a lag over diffrax's without",
            seconds[0] / seconds[1],
            1.5,
        ),
        measuring.at_most(f"{lags} over 1 lag: compilation", seconds[3] / seconds[2], 3),
    ]


def main() -> None:
    options = measuring.options_for(QUESTION, measuring.RESULTS / "lag_cost.json")
    rows = memory_rows(TINY_SIZE if options.tiny else SIZE)
    compiled = compile_rows(4 if options.tiny else 64)
    measuring.write(options.out, QUESTION, [*rows, *compiled], goals_of(rows, compiled))


if __name__ == "__main__":
    main()
