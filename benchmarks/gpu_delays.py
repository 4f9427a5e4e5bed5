"""How fast are equations with lags on a GPU?

The first problem is the Mackey-Glass equation with a lag of 2 over 100 units of time, for many
values of its growth at once, in 100 steps of Tsit5. diffrax solves the same equation without the
lag, in as many steps of the same solver, so it has less to do. The second one is the network of
oscillators of delay_network.py with a random lag for each link, 1,000 ms of 84 regions and 100 ms
of 1,000. lagrax takes steps as long as the shortest lag with a `LagMatrix`, and vbjax steps of
Heun's method with lags rounded to whole steps. Errors of the smaller network are root mean squares
over all regions at 100 ms, compared with a method of steps in float64. "At equal error" compares
the fastest row of lagrax among those that are at least as accurate. Gradients are those of a sum or
a mean with respect to all parameters. Everything is in float32. Times are medians of 20 calls in
one run, without compiling; `first_s` has the first call, which compiles.

Measured on NVIDIA H200, one of them; 16 CPU cores, python 3.12, lagrax 0.2.0, jax 0.11.2, diffrax
0.7.2, equinox 0.13.8, vbjax 0.0.19:

    13.1     ≥ 1 met       1,000 equations, solve: diffrax's time without a lag over lagrax's
    16.5     ≥ 1 met       1,000 equations, gradient: diffrax's time without a lag over lagrax's
    5.51     ≥ 1 met       100,000 equations, solve: diffrax's time without a lag over lagrax's
    9.86     ≥ 1 met       100,000 equations, gradient: diffrax's time without a lag over lagrax's
    0.521    ≥ 1 missed    84 regions, 1000 ms: vbjax's time over lagrax's at equal error, Heun, 1
                           ms
    0.707    ≥ 1 missed    84 regions, 1000 ms: vbjax's time over lagrax's at equal error, Heun, 1
                           ms, gradient
    4.95     ≥ 1 met       84 regions, 1000 ms: vbjax's time over lagrax's at equal error, Heun, 0.1
                           ms
    5.59     ≥ 1 met       84 regions, 1000 ms: vbjax's time over lagrax's at equal error, Heun, 0.1
                           ms, gradient

`python benchmarks/gpu_delays.py` takes a minute on a GPU with a CUDA build of JAX. It prints the
tables and writes results/gpu_delays.json. Without vbjax its rows are left out. `--tiny` checks that
everything runs, anywhere.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import delay_network
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from measuring import RESULTS, at_least, fastest_as_accurate, options_for, table, write

import lagrax

QUESTION = "How fast are equations with lags on a GPU?"
CALLS = 20
MOST_EXACT = 100  # regions; the reference takes minutes for more


class Size(NamedTuple):
    batches: tuple[int, ...]
    networks: tuple[tuple[int, float], ...]  # regions and milliseconds
    steps: tuple[float, ...]  # of vbjax, in ms
    error_at: int  # in ms


FULL = Size((1_000, 100_000), ((84, 1000.0), (1000, 100.0)), (1.0, 0.1), 100)
TINY = Size((3,), ((5, 4.0),), (1.0,), 4)


# --- Mackey-Glass ---------------------------------------------------------------------------------


def lagged_end(parameters: jax.Array) -> jax.Array:
    """The sum of squares at the end."""

    def field(t, y, parameters, *, history):
        growth, decay = parameters
        return growth * history[0] / (1 + history[0] ** 10) - decay * y

    start = jnp.full(parameters.shape[1], 0.5)
    delays = [lagrax.Lag(2.0)]
    sol = lagrax.solve(field, 0.0, 100.0, start, parameters, delays=delays, steps=2, throw=False)
    return jnp.sum(sol.ys**2)


def plain_end(parameters: jax.Array) -> jax.Array:
    """The same without a lag, by diffrax."""

    def field(t, y, parameters):
        growth, decay = parameters
        return growth * y / (1 + y**10) - decay * y

    sol = diffrax.diffeqsolve(
        *(diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 100.0, 1.0),
        jnp.full(parameters.shape[1], 0.5),
        parameters,
        stepsize_controller=diffrax.ConstantStepSize(),
        max_steps=128,
        throw=False,
    )
    return jnp.sum(sol.ys**2)


def measure_batches(size: Size) -> list[dict]:
    rows = []
    for count in size.batches:
        parameters = jnp.stack([jnp.linspace(0.1, 0.3, count), jnp.full(count, 0.1)])
        for library, end in (("lagrax, with a lag", lagged_end), ("diffrax, no lag", plain_end)):
            for call, run in (("solve", end), ("gradient", jax.grad(end))):
                problem = f"{count:,} equations, {call}"
                rows.append(
                    {"problem": problem, "library": library} | timed(jax.jit(run), parameters)
                )
    return rows


# --- networks -------------------------------------------------------------------------------------


def measure_networks(size: Size) -> list[dict]:
    rows = []
    for count, span in size.networks:
        network = delay_network.make_network(count)
        parameters = delay_network.make_parameters(network)
        exact = None
        if count <= MOST_EXACT:
            exact = delay_network.reference(network, float(size.error_at))[-1]
        for (library, method), run in list_programs(network, span, size).items():
            problem = f"{count} regions, {span:g} ms"
            solve = jax.jit(run)
            row = {"problem": problem, "library": library, "method": method}
            row |= timed(solve, parameters)
            if exact is not None:
                error = np.asarray(solve(parameters), float)[size.error_at] - exact
                row["error"] = float(np.sqrt(np.mean(error**2)))
            if method.startswith("Heun"):
                loss = lambda parameters, run=run: jnp.mean(jnp.sin(run(parameters)))
                gradient = timed(jax.jit(jax.grad(loss)), parameters)
                row |= {f"gradient_{key}": value for key, value in gradient.items()}
            rows.append(row)
    return rows


def list_programs(network, span: float, size: Size) -> dict[tuple[str, str], Callable]:
    make = partial(delay_network.with_lagrax, network, span, steps=1)
    programs: dict = {("lagrax", "Heun, a step an interval"): make(diffrax.Heun())}
    if len(network.omega) <= MOST_EXACT:
        programs["lagrax", "Tsit5, a step an interval"] = make(diffrax.Tsit5())
    if importlib.util.find_spec("vbjax"):
        for step in size.steps:
            name = f"Heun, {step:g} ms"
            programs["vbjax", name] = delay_network.with_vbjax(network, span, step)
    return programs


def timed(call: Callable, argument) -> dict[str, float]:
    """The first call in seconds, and the median of later ones in milliseconds."""
    run = lambda: jax.block_until_ready(call(argument))
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"ms": 1e3 * statistics.median(times[1:]), "first_s": times[0]}


# --- goals ----------------------------------------------------------------------------------------


def list_goals(batches: list[dict], networks: list[dict]) -> list[dict]:
    goals = []
    ms = {(row["problem"], row["library"]): row["ms"] for row in batches}
    for problem in dict.fromkeys(row["problem"] for row in batches):
        ratio = ms[problem, "diffrax, no lag"] / ms[problem, "lagrax, with a lag"]
        goals.append(at_least(f"{problem}: diffrax's time without a lag over lagrax's", ratio, 1))
    for row in networks:
        if row["library"] == "vbjax" and "error" in row:
            own = fastest_as_accurate(networks, row, floor=1e-5)
            assert own is not None
            name = f"{row['problem']}: vbjax's time over lagrax's at equal error, {row['method']}"
            goals.append(at_least(name, row["ms"] / own["ms"], 1))
            if "gradient_ms" in own:
                ratio = row["gradient_ms"] / own["gradient_ms"]
                goals.append(at_least(f"{name}, gradient", ratio, 1))
    return goals


def main() -> None:
    options = options_for(QUESTION, RESULTS / "gpu_delays.json")
    size = TINY if options.tiny else FULL
    batches, networks = measure_batches(size), measure_networks(size)
    print(table(batches, {"problem": "", "library": "", "ms": ".3g", "first_s": ".2f"}))
    columns = {"problem": "", "library": "", "method": "", "error": ".1e", "ms": ".3g"}
    print(table(networks, columns | {"gradient_ms": ".3g", "first_s": ".2f"}))
    goals = list_goals(batches, networks)
    write(options.out, QUESTION, batches + networks, goals, "vbjax")


if __name__ == "__main__":
    main()
