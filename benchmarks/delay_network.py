"""What does a network cost whose links have their own delays?

This script solves a second of activity of a brain: 84 regions that oscillate at about 10 Hz, as
Kuramoto's phases, with the 6,972 links of tvboptim's connectome and delays of 1.2 to 22 ms (the
lengths of the fibres at 10 m/s). lagrax has a `LagMatrix`. vbjax and tvboptim take steps of Heun's
method over a buffer of past steps. vbjax rounds each delay to a whole number of steps, tvboptim
interpolates linearly. jitcdde takes adaptive steps in compiled C. It gets twelve of the regions,
since a C compiler takes many minutes for the terms of all links.

Errors are root mean squares over all regions and milliseconds, compared with a method of steps
written in NumPy (Runge-Kutta of order 4 with steps of 0.1 ms and cubic dense output in float64,
whose own error is about 1e-6). "At equal error" takes the fastest row of lagrax among those that
are at least as accurate, down to 1e-6, where rounding begins. Gradients are those of the mean of
sin of all phases with respect to the frequencies, the strength of coupling and all weights; their
error is that of the strength's part, compared with a difference quotient of the method of steps.
Times are medians of turns in one run on a busy machine, in float32; jitcdde has float64 only.
"Hardest to beat" is the smallest ratio at equal error over all rows of a library.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.2.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, vbjax 0.0.19, tvboptim 0.4.0, jitcdde 1.8.3:

    13.9     ≥ 5 met       solve at equal error: time of vbjax (Heun, 0.1 ms) over lagrax's
    9.58     ≥ 2 met       gradient at equal error: time of vbjax (Heun, 0.1 ms) over lagrax's
    0.601    ≥ 1 missed    all solves: time of vbjax over lagrax's, hardest to beat
    0.579    ≥ 1 missed    all gradients: time of vbjax over lagrax's, hardest to beat
    11.4     ≥ 5 met       solve at equal error: time of tvboptim (Heun, 0.1 ms) over lagrax's
    8.9      ≥ 2 met       gradient at equal error: time of tvboptim (Heun, 0.1 ms) over lagrax's
    0.356    ≥ 1 missed    all solves: time of tvboptim over lagrax's, hardest to beat
    1.45     ≥ 1 met       all gradients: time of tvboptim over lagrax's, hardest to beat
    0.29     ≥ 5 missed    solve of 12 regions at equal error: time of jitcdde (tolerance 0.001)
                           over lagrax's
    2.02     ≥ 1 met       as many steps of Heun's method: time of vbjax over lagrax's
    0.543    ≥ 2 missed    gradient, about a step a millisecond: time of vbjax over lagrax's
    1.66     ≥ 1 met       as many steps of Heun's method: time of tvboptim over lagrax's
    1.37     ≥ 2 missed    gradient, about a step a millisecond: time of tvboptim over lagrax's
    1.11     ≤ 1.5 met     time for a link, 1000 regions over 84

`python benchmarks/delay_network.py` takes several minutes. It prints the table and writes the
rows. Without tvboptim the connectome is a random one. Rows of packages that are missing are left
out.
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
    at_most,
    fastest_as_accurate,
    milliseconds,
    options_for,
    table,
    write,
)

import lagrax

QUESTION = "What does a network cost whose links have their own delays?"
SPEED = 10.0  # of conduction, in mm/ms
STRENGTH = 0.02  # of the coupling, per ms
FINE = 0.1  # the step of the reference, in ms


class Network(NamedTuple):
    """theta_i' = omega_i + strength sum_j weights_ij sin(theta_j(t - taus_ij) - theta_i).

    Times are in ms. The weights of each row add up to 1, and pairs without a link have weight 0.
    """

    weights: np.ndarray
    taus: np.ndarray
    omega: np.ndarray
    start: np.ndarray


def make_network(count: int | None = None) -> Network:
    """The connectome of 84 regions, or a random one of `count` regions."""
    generator = np.random.default_rng(0)
    if count is None and importlib.util.find_spec("tvboptim"):
        from tvboptim.data import load_structural_connectivity

        weights, lengths, _ = load_structural_connectivity()
        weights, lengths = np.log1p(np.asarray(weights, float)), np.asarray(lengths, float)
    else:
        shape = (count or 84, count or 84)
        lengths = generator.uniform(11.5, 220.0, shape)
        weights = generator.uniform(0.0, 1.0, shape) * (1 - np.eye(len(lengths)))
    weights = weights / weights.sum(axis=1, keepdims=True)
    omega = 2e-3 * np.pi * generator.normal(10.0, 0.5, len(weights))
    start = generator.uniform(0.0, 2 * np.pi, len(weights))
    return Network(weights, lengths / SPEED, omega, start)


def take_first(network: Network, count: int) -> Network:
    """The first regions, and the links among them."""
    weights = network.weights[:count, :count]
    weights = weights / weights.sum(axis=1, keepdims=True)
    return Network(
        weights, network.taus[:count, :count], network.omega[:count], network.start[:count]
    )


# --- the reference --------------------------------------------------------------------------------


def reference(network: Network, span: float, strength: float = STRENGTH) -> np.ndarray:
    """The phases at every millisecond, by a method of steps."""
    weights, taus, omega, start = network
    count, steps = len(omega), round(span / FINE)
    ys, slopes = np.zeros((steps + 1, count)), np.zeros((steps + 1, count))
    ys[0] = start
    taus = np.where(weights > 0, taus, np.min(taus[weights > 0]))
    places = {node: _find_places(node, taus) for node in (0.0, 0.5, 1.0)}
    columns = np.arange(count)

    def read(step: int, node: float) -> np.ndarray:
        """The lagged phases at a place within a step, by Hermite's cubics."""
        back, (y0, y1, f0, f1) = places[node]
        row = np.maximum(step + back, 0) * count + columns
        past = y0 * ys.take(row) + y1 * ys.take(row + count)
        past += f0 * slopes.take(row) + f1 * slopes.take(row + count)
        return np.where(step + back < 0, start, past)

    def slope(theta: np.ndarray, past: np.ndarray) -> np.ndarray:
        return omega + strength * np.sum(weights * np.sin(past - theta[:, None]), axis=1)

    after = read(0, 0.0)
    for step in range(steps):
        y, before, middle, after = ys[step], after, read(step, 0.5), read(step, 1.0)
        k1 = slopes[step] = slope(y, before)
        k2 = slope(y + FINE / 2 * k1, middle)
        k3 = slope(y + FINE / 2 * k2, middle)
        k4 = slope(y + FINE * k3, after)
        ys[step + 1] = y + FINE / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        slopes[step + 1] = k4
    return ys[:: round(1 / FINE)]


def _find_places(node: float, taus: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """How many steps back lagged times are, and the weights of Hermite's cubic there."""
    x = node - taus / FINE
    back = np.floor(x).astype(int)
    s = x - back
    of_states = (1 - s) ** 2 * (1 + 2 * s), s**2 * (3 - 2 * s)
    return back, (*of_states, FINE * s * (1 - s) ** 2, FINE * s**2 * (s - 1))


# --- the libraries: from (omega, strength, weights) to the phases at every millisecond ------------


def with_lagrax(network: Network, span: float, solver, steps: int) -> Callable:
    delays = [lagrax.LagMatrix(network.taus, links=network.weights > 0)]
    saveat = diffrax.SaveAt(ts=np.arange(0.0, span + 0.5))
    start = jnp.asarray(network.start, jnp.float32)

    def field(t, theta, parameters, *, history):
        omega, strength, weights = parameters
        past = history[0]
        return omega + strength * jnp.sum(weights * jnp.sin(past - theta[:, None]), axis=1)

    def run(parameters):
        how = {"solver": solver, "steps": steps, "saveat": saveat, "throw": False}
        return lagrax.solve(field, 0.0, span, start, parameters, delays=delays, **how).ys

    return run


def with_vbjax(network: Network, span: float, step: float) -> Callable:
    import vbjax

    lags = jnp.asarray(np.rint(network.taus / step), int)
    count, longest = len(network.omega), int(np.max(lags)) + 1
    columns = jnp.tile(jnp.arange(count), (count, 1))
    start = jnp.asarray(network.start, jnp.float32)

    def slope(buffer, theta, t, parameters):
        omega, strength, weights = parameters
        past = buffer[t - lags, columns]
        return omega + strength * jnp.sum(weights * jnp.sin(past - theta[:, None]), axis=1)

    _, loop = vbjax.make_dde(step, longest, slope, unroll=1)
    steps, every = round(span / step), round(1 / step)

    def run(parameters):
        buffer = jnp.zeros((longest + 1 + steps, count)).at[: longest + 1].set(start)
        _, phases = loop(buffer, parameters)
        return jnp.concatenate([start[None], phases[every - 1 :: every]])

    return run


def with_tvboptim(network: Network, span: float, step: float) -> Callable:
    from tvboptim.experimental.network_dynamics import DenseDelayGraph, Network as Model, prepare
    from tvboptim.experimental.network_dynamics.coupling import DelayedKuramotoCoupling
    from tvboptim.experimental.network_dynamics.dynamics.tvb import Kuramoto
    from tvboptim.experimental.network_dynamics.result import NativeSolution
    from tvboptim.experimental.network_dynamics.solvers import Heun

    coupling = DelayedKuramotoCoupling(
        incoming_states="theta",
        local_states="theta",
        G=STRENGTH,
        buffer_strategy="circular",
        history_interpolation="linear",
    )
    start = jnp.asarray(network.start, jnp.float32)
    rows = int(np.ceil(np.max(network.taus) / step)) + 2
    past = NativeSolution(
        ts=step * jnp.arange(1 - rows, 1),
        ys=jnp.broadcast_to(start, (rows, 1, len(start))),
        dt=step,
        variable_names=("theta",),
    )
    graph = DenseDelayGraph(jnp.asarray(network.weights), jnp.asarray(network.taus))
    dynamics = Kuramoto(omega=jnp.asarray(network.omega))
    model = Model(dynamics, {"delayed": coupling}, graph, history=past)
    solver = Heun(recompute_coupling_per_stage=True)
    solve, config = prepare(model, solver, t0=0.0, t1=span, dt=step)
    every = round(1 / step)

    def run(parameters):
        settings = config.copy()
        settings.dynamics = config.dynamics.copy()
        settings.coupling = config.coupling.copy()
        settings.coupling.delayed = config.coupling.delayed.copy()
        omega, strength, weights = parameters
        settings.dynamics.omega = omega
        settings.coupling.delayed.G = strength
        leaves, kind = jax.tree.flatten(config.graph)
        settings.graph = jax.tree.unflatten(kind, [weights, *leaves[1:]])
        return jnp.concatenate([start[None], solve(settings).ys[every - 1 :: every, 0]])

    return run


def with_jitcdde(network: Network, span: float) -> Callable:
    """Compiles the network; the answer integrates it with a tolerance."""
    from jitcdde import jitcdde, t, y
    from symengine import sin

    weights, taus, omega, start = network
    links = [np.flatnonzero(row) for row in weights]
    terms = lambda i: sum(
        float(weights[i, j]) * sin(y(int(j), t - float(taus[i, j])) - y(i)) for j in links[i]
    )
    equations = [float(omega[i]) + STRENGTH * terms(i) for i in range(len(omega))]
    dde = jitcdde(equations, max_delay=float(np.max(taus)), verbose=False)
    # Its compiler takes any folder of packages around it for its own.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        dde.compile_C(simplify=False, chunk_size=200)

    def run(tolerance):
        dde.purge_past()
        dde.reset_integrator()
        dde.constant_past(start)
        dde.set_integration_parameters(rtol=tolerance, atol=tolerance)
        # Steps on thousands of delays would be its way to end them at kinks.
        dde.adjust_diff()
        times = np.arange(np.ceil(dde.t), span + 0.5)
        missing = round(span) + 1 - len(times)
        phases = [dde.integrate(time) for time in times]
        return np.concatenate([np.full((missing, len(start)), np.nan), phases])

    return run


# --- measurements ---------------------------------------------------------------------------------


class Size(NamedTuple):
    network: Network
    span: float
    steps: tuple[float, ...]  # of vbjax and tvboptim, in ms
    tolerances: tuple[float, ...]  # of jitcdde
    few: int  # regions that jitcdde gets
    many: int  # regions of the large network
    repeats: int


def list_own(network: Network, span: float) -> dict[tuple[str, str], Callable]:
    """lagrax's programs, with a step an interval."""
    own = {"Heun": diffrax.Heun(), "Bosh3": diffrax.Bosh3(), "Tsit5": diffrax.Tsit5()}
    return {
        ("lagrax", f"{name}, a step an interval"): with_lagrax(network, span, solver, 1)
        for name, solver in own.items()
    }


def list_programs(size: Size) -> dict[tuple[str, str], Callable]:
    """The programs by library and method. Those of absent libraries are left out."""
    network, span = size.network, size.span
    programs = list_own(network, span)
    many = int(np.ceil(np.min(network.taus[network.weights > 0]) / size.steps[-1]))
    name = f"Heun, {many} steps an interval"
    programs["lagrax", name] = with_lagrax(network, span, diffrax.Heun(), many)
    for library, make in (("vbjax", with_vbjax), ("tvboptim", with_tvboptim)):
        if importlib.util.find_spec(library):
            for step in size.steps:
                programs[library, f"Heun, {step:g} ms"] = make(network, span, step)
    return programs


def measure_solves(network: Network, size: Size, programs: dict, tolerances=()) -> list[dict]:
    """Times and errors of the programs, and of jitcdde with the tolerances."""
    exact = reference(network, size.span)
    parameters = make_parameters(network)
    calls = {name: partial(jax.jit(run), parameters) for name, run in programs.items()}
    if tolerances and importlib.util.find_spec("jitcdde"):
        solve = with_jitcdde(network, size.span)
        calls |= {("jitcdde", f"tolerance {x:g}"): partial(solve, x) for x in tolerances}
    answers = {name: np.asarray(call(), float) for name, call in calls.items()}
    ms = milliseconds(calls, repeats=size.repeats, seconds=0.0)
    problem = f"{len(exact[0])} regions, {size.span:g} ms"
    return [
        {
            "problem": problem,
            "library": library,
            "method": method,
            "ms": ms[library, method],
            "error": float(np.sqrt(np.nanmean((answer - exact) ** 2))),
        }
        for (library, method), answer in answers.items()
    ]


def make_parameters(network: Network) -> tuple:
    as_float = lambda x: jnp.asarray(x, jnp.float32)
    return as_float(network.omega), as_float(STRENGTH), as_float(network.weights)


def measure_gradients(size: Size, programs: dict) -> list[dict]:
    """Those of lagrax, and of the others' longest and shortest steps."""
    change = 1e-3 * STRENGTH
    means = [
        np.mean(np.sin(reference(size.network, size.span, STRENGTH + sign * change)))
        for sign in (-1, 1)
    ]
    exact = (means[1] - means[0]) / (2 * change)
    parameters, calls = make_parameters(size.network), {}
    for (library, method), run in programs.items():
        ends = (f" {size.steps[0]:g} ms", f" {size.steps[-1]:g} ms")
        if library == "lagrax" or method.endswith(ends):
            loss = lambda parameters, run=run: jnp.mean(jnp.sin(run(parameters)))
            calls[library, method] = partial(jax.jit(jax.grad(loss)), parameters)
    ms = milliseconds(calls, repeats=max(1, size.repeats // 2), seconds=0.0)
    return [
        {
            "problem": "gradient",
            "library": library,
            "method": method,
            "ms": ms[library, method],
            "error": abs(float(call()[1]) / exact - 1),
        }
        for (library, method), call in calls.items()
    ]


def measure_sizes(size: Size) -> list[dict]:
    """Time for each link and step with more regions, all linked."""
    rows, calls, links = [], {}, {}
    for count in (len(size.network.omega), size.many):
        network = make_network(count)
        run = jax.jit(with_lagrax(network, 50.0, diffrax.Heun(), 1))
        calls[count] = partial(run, make_parameters(network))
        links[count] = int(np.sum(network.weights > 0))
    ms = milliseconds(calls, repeats=size.repeats, seconds=0.0)
    for count in calls:
        row = {"regions": count, "links": links[count], "ms": ms[count]}
        rows.append(row | {"ns_a_link_and_ms": 1e6 * ms[count] / links[count] / 50.0})
    return rows


def judge(solves: list[dict], gradients: list[dict], sizes: list[dict], size: Size) -> list[dict]:
    goals = []

    def of(rows, library, ending=""):
        return [r for r in rows if r["library"] == library and r["method"].endswith(ending)]

    def compare(what, rows, row, goal):
        own = fastest_as_accurate(rows, row, floor=1e-6)
        if own is not None:
            name = f"{what}: time of {row['library']} ({row['method']}) over lagrax's"
            goals.append(at_least(name, row["ms"] / own["ms"], goal))

    def hardest(what, rows, library):
        """The smallest ratio over all rows of a library."""
        pairs = [(r, fastest_as_accurate(rows, r, floor=1e-6)) for r in of(rows, library)]
        ratios = [r["ms"] / own["ms"] for r, own in pairs if own is not None]
        if ratios:
            name = f"{what}: time of {library} over lagrax's, hardest to beat"
            goals.append(at_least(name, min(ratios), 1))

    last = f" {size.steps[-1]:g} ms"
    for library in ("vbjax", "tvboptim"):
        for row in of(solves, library, last):
            compare("solve at equal error", solves, row, 5)
        for row in of(gradients, library, last):
            compare("gradient at equal error", gradients, row, 2)
        hardest("all solves", solves, library)
        hardest("all gradients", gradients, library)
    for row in of(solves, "jitcdde"):
        compare(f"solve of {size.few} regions at equal error", solves, row, 5)
    for library in ("vbjax", "tvboptim"):
        equal = of(solves, library, last), of(solves, "lagrax", "steps an interval")
        for theirs, own in zip(*equal, strict=False):
            name = f"as many steps of Heun's method: time of {library} over lagrax's"
            goals.append(at_least(name, theirs["ms"] / own["ms"], 1))
        equal = of(gradients, library, f" {size.steps[0]:g} ms"), of(gradients, "lagrax")
        for theirs, own in zip(*equal, strict=False):
            name = f"gradient, about a step a millisecond: time of {library} over lagrax's"
            goals.append(at_least(name, theirs["ms"] / own["ms"], 2))
    few, many = (row["ns_a_link_and_ms"] for row in sizes)
    name = f"time for a link, {sizes[1]['regions']} regions over {sizes[0]['regions']}"
    return [*goals, at_most(name, many / few, 1.5)]


def main() -> None:
    options = options_for(QUESTION, RESULTS / "delay_network.json")
    if options.tiny:
        size = Size(make_network(6), 20.0, (1.0, 0.5), (1e-3,), 4, 12, 1)
    else:
        size = Size(make_network(), 1000.0, (1.0, 0.5, 0.1), (1e-3, 1e-5), 12, 1000, 3)
    programs = list_programs(size)
    solves = measure_solves(size.network, size, programs)
    few = take_first(size.network, size.few)
    solves += measure_solves(few, size, list_own(few, size.span), size.tolerances)
    columns = {"problem": "", "library": "", "method": "", "ms": ".1f", "error": ".1e"}
    print(table(solves, columns))
    gradients = measure_gradients(size, programs)
    print(table(gradients, columns))
    sizes = measure_sizes(size)
    print(table(sizes, {"regions": "", "links": "", "ms": ".1f", "ns_a_link_and_ms": ".1f"}))
    goals = judge(solves, gradients, sizes, size)
    rows = [*solves, *gradients, *sizes]
    write(options.out, QUESTION, rows, goals, "vbjax", "tvboptim", "jitcdde")


if __name__ == "__main__":
    main()
