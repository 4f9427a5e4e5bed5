"""How long is one training step on the population equation?

A step trains the paper's NPCDDE (field 2-10-10-1, tanh, no biases) on 100 series on [0, 3] with 31
samples each: mean square, gradient and Adam in float32. lagrax, a scan of diffrax's `diffeqsolve`
over the three intervals, and loops over them around torchdiffeq and torchode use the same
parameters and series. All compute the held state's part of the first layer once an interval. The
field is taken at the start and after 1,000 steps of training. The learning rate is zero, so that
all steps are alike.

`call_ms` is the time of a step in a call of its own. `ms` is, for JAX's programs, the time of one
of 20 steps in a compiled loop, as `lagrax.training` runs them and any user of diffrax can. PyTorch
has the better of one thread and all threads. `torch.compile` and `torch.jit` were not tried.

An error is the largest of all samples, compared with 100 steps an interval in float64, which agree
with SciPy's DOP853. Each program of another library is compared with lagrax's fastest program whose
error is not larger (within 5 %; errors below 2e-6 are rounding and count as equal). Over both
fields and for both times, the goals take a library's fastest program with an error below 0.01, and
among such programs the one that is hardest to beat. lagrax's programs were chosen after the others'
errors were known: a solver with nearly the same error is a fair comparison, but it was selected.

Times are medians of ten turns in one run; first calls are medians of three.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.1.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, torch 2.13.0+cpu, torchdiffeq 0.2.5, torchode 1.0.1, scipy 1.17.1, optax 0.2.8:

    21.5     ≥ 30 missed   torchdiffeq, fastest program: its time over lagrax's at equal error, a
                           step a call
    12.8     ≥ 30 missed   torchdiffeq, hardest to beat: its time over lagrax's at equal error, a
                           step a call
    29       ≥ 30 missed   torchdiffeq, fastest program: its time over lagrax's at equal error, JAX
                           in a compiled loop
    15       ≥ 30 missed   torchdiffeq, hardest to beat: its time over lagrax's at equal error, JAX
                           in a compiled loop
    24.2     ≥ 30 missed   torchode, fastest program: its time over lagrax's at equal error, a step
                           a call
    24.2     ≥ 30 missed   torchode, hardest to beat: its time over lagrax's at equal error, a step
                           a call
    42.7     ≥ 30 met      torchode, fastest program: its time over lagrax's at equal error, JAX in
                           a compiled loop
    29.98    ≥ 30 missed   torchode, hardest to beat: its time over lagrax's at equal error, JAX in
                           a compiled loop
    1.97     ≥ 2 missed    diffrax, fastest program: its time over lagrax's at equal error, a step a
                           call
    1.97     ≥ 2 missed    diffrax, hardest to beat: its time over lagrax's at equal error, a step a
                           call
    2.43     ≥ 2 met       diffrax, fastest program: its time over lagrax's at equal error, JAX in a
                           compiled loop
    2.06     ≥ 2 met       diffrax, hardest to beat: its time over lagrax's at equal error, JAX in a
                           compiled loop
    1.49     ≥ 2 missed    diffrax with lagrax's field, fastest program: its time over lagrax's at
                           equal error, a step a call
    1.49     ≥ 2 missed    diffrax with lagrax's field, hardest to beat: its time over lagrax's at
                           equal error, a step a call
    1.61     ≥ 2 missed    diffrax with lagrax's field, fastest program: its time over lagrax's at
                           equal error, JAX in a compiled loop
    1.61     ≥ 2 missed    diffrax with lagrax's field, hardest to beat: its time over lagrax's at
                           equal error, JAX in a compiled loop
    1.57     ≤ 1 missed    lagrax over diffrax, Tsit5 at 1e-3: first call
    1.45     ≤ 1 missed    lagrax over diffrax, Tsit5, 1 step: first call

`python benchmarks/population_step.py` needs requirements.txt and takes six to eight minutes on the
machine above. It prints the rows and the goals, and writes results/population_step.json. Without
PyTorch's libraries it leaves their rows out and says so. `--tiny` checks that everything runs.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import measuring
import numpy as np
import optax
from jax import lax

import lagrax
from lagrax.nn import MLP
from reproduction.population_models import PopulationSettings, make_series, split

try:
    import scipy.integrate
    import torch
    import torchdiffeq
    import torchode
except ImportError as error:
    torch, ABSENT = None, str(error)

QUESTION = "How long is one training step on the population equation?"
RESULTS = measuring.RESULTS / "population_step.json"
GROWTH, INTERVALS, PERIOD = 2.0, 3, 0.1
A_PERIOD = round(1 / PERIOD)  # samples
TIMES = np.arange(INTERVALS * A_PERIOD + 1) * PERIOD
# Made before jit, under which its times would be traced: their number an interval is then unknown.
SAVEAT = diffrax.SaveAt(ts=TIMES)
FRACTIONS = np.float32(TIMES[1 : A_PERIOD + 1])
# Errors that float32 leaves to chance, and errors with which nobody would train.
FLOOR, SENSIBLE = 2e-6, 1e-2


@dataclass(frozen=True)
class Size:
    series: int
    training: int  # steps, to the trained field
    block: int  # steps in one compiled loop
    repeats: int
    seconds: float  # that a turn lasts, about
    compilations: int  # of the programs that are compared by them
    everything: bool  # or two programs of each library


FULL, TINY = Size(100, 1000, 20, 10, 0.02, 3, True), Size(100, 20, 2, 1, 0.0, 1, False)


class Problem(NamedTuple):
    """A field, the series it is trained on, and what it gives in float64: solution, gradient."""

    field: MLP
    series: jax.Array
    solution: np.ndarray
    gradient: list[np.ndarray]


class Program(NamedTuple):
    """A way to solve: `follow(field, starts)`, with the field's parameters in its own library's
    arrays, gives the samples of each series."""

    library: str
    name: str
    follow: Callable
    tolerance: float | None = None


# --- lagrax ---------------------------------------------------------------------------------------


def lagrax_program(
    name: str, tolerance: float | None = None, *, saveat: diffrax.SaveAt = SAVEAT, **options: Any
) -> Program:
    if tolerance is not None:
        options["stepsize_controller"] = diffrax.PIDController(rtol=tolerance, atol=tolerance)

    def follow(field, starts):
        delays, end = [lagrax.Hold(1.0)], float(INTERVALS)
        solution = lagrax.solve(
            field, 0.0, end, starts[:, None], delays=delays, saveat=saveat, throw=False, **options
        )
        return solution.ys[..., 0].T

    return Program("lagrax", name, follow, tolerance)


def lagrax_programs() -> list[Program]:
    tsit5, dopri5, bosh3 = diffrax.Tsit5(), diffrax.Dopri5(), diffrax.Bosh3()
    direct = lagrax.Direct()
    return [
        lagrax_program("Tsit5 at 1e-3", 1e-3, solver=tsit5),
        lagrax_program("Tsit5, 1 step", solver=tsit5, steps=1, gradient=direct),
        lagrax_program("Tsit5 at 1e-5", 1e-5, solver=tsit5),
        lagrax_program("Dopri5 at 1e-3", 1e-3, solver=dopri5),
        lagrax_program("Tsit5, 1 step, Checkpointed", solver=tsit5, steps=1),
        lagrax_program("Tsit5, 2 steps", solver=tsit5, steps=2, gradient=direct),
        lagrax_program("Tsit5, 3 steps", solver=tsit5, steps=3, gradient=direct),
        lagrax_program("Tsit5, 5 steps", solver=tsit5, steps=5, gradient=direct),
        lagrax_program("Dopri5, 1 step", solver=dopri5, steps=1, gradient=direct),
        lagrax_program("Bosh3, 2 steps", solver=bosh3, steps=2, gradient=direct),
    ]


# --- diffrax --------------------------------------------------------------------------------------


def split_field(field: MLP):
    """As a user would write it, with the held state's share of the first layer once an interval."""
    first, second, third = (layer.weight for layer in field.layers)

    def slope(t, y, share):
        return jnp.tanh(jnp.tanh(y @ first[:1] + share) @ second) @ third

    return lambda held: held @ first[1:], slope


def lagrax_field(field: MLP):
    return lambda held: field.hold((held,)), lambda t, y, share: field(t, y, history=share)


def diffrax_program(
    name: str,
    tolerance: float | None = None,
    *,
    solver: diffrax.AbstractSolver,
    steps: int | None = None,
    adjoint: diffrax.AbstractAdjoint,
    dense: bool = True,
    vmapped: bool = False,
    make: Callable = split_field,
) -> Program:
    """A scan of `diffeqsolve` over the intervals. The dense output evaluated at the samples is
    faster than `SaveAt(ts=...)`, which looks for them step by step."""
    controller: Any = diffrax.ConstantStepSize()
    if tolerance is not None:
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    saveat = diffrax.SaveAt(dense=True, t1=True) if dense else diffrax.SaveAt(ts=FRACTIONS)

    def follow(field, starts):
        hold, slope = make(field)

        def interval(y, _):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(slope),
                solver,
                0.0,
                1.0,
                None if steps is None else 1 / steps,
                y,
                hold(y),
                saveat=saveat,
                stepsize_controller=controller,
                adjoint=adjoint,
                max_steps=32 if steps is None else steps,
                throw=False,
            )
            ys = jax.vmap(solution.evaluate)(FRACTIONS) if dense else solution.ys
            return solution.ys[-1], ys

        def whole(y0):
            _, ys = lax.scan(interval, y0, length=INTERVALS)
            return jnp.concatenate([y0[None], ys.reshape(-1, *y0.shape)])

        if vmapped:
            return jax.vmap(whole)(starts[:, None])[..., 0]
        return whole(starts[:, None])[..., 0].T

    library = "diffrax" if make is split_field else "diffrax with lagrax's field"
    return Program(library, name, follow, tolerance)


def diffrax_programs() -> list[Program]:
    tsit5, dopri5 = diffrax.Tsit5(), diffrax.Dopri5()
    recursive, direct = diffrax.RecursiveCheckpointAdjoint(), diffrax.DirectAdjoint()
    make = diffrax_program
    return [
        make("Tsit5 at 1e-3", 1e-3, solver=tsit5, adjoint=recursive),
        make("Tsit5, 1 step", solver=tsit5, steps=1, adjoint=direct),
        make("Tsit5 at 1e-3, SaveAt(ts)", 1e-3, solver=tsit5, adjoint=recursive, dense=False),
        make("Tsit5 at 1e-3, direct", 1e-3, solver=tsit5, adjoint=direct),
        make("Tsit5 at 1e-3, vmapped", 1e-3, solver=tsit5, adjoint=recursive, vmapped=True),
        make("Dopri5 at 1e-3", 1e-3, solver=dopri5, adjoint=recursive),
        make("Tsit5 at 1e-5", 1e-5, solver=tsit5, adjoint=recursive),
        make("Tsit5, 2 steps", solver=tsit5, steps=2, adjoint=recursive),
        make("Tsit5, 1 step", solver=tsit5, steps=1, adjoint=direct, make=lagrax_field),
    ]


# --- PyTorch --------------------------------------------------------------------------------------


def torch_field(field: MLP):
    weights = [torch.from_numpy(np.array(layer.weight)) for layer in field.layers]
    return torch.nn.ParameterList([torch.nn.Parameter(w) for w in weights])


def torch_slope(weights, y, share):
    h = torch.tanh(torch.addmm(share, y, weights[0][:1]))
    return torch.tanh(h @ weights[1]) @ weights[2]


def torch_program(library: str, name: str, interval: Callable, tolerance=None) -> Program:
    """A loop over the intervals; `interval(weights, y, share)` has the samples of one."""

    def follow(weights, starts):
        y, parts = starts[:, None], [starts[None, :, None]]
        for _ in range(INTERVALS):
            ys = interval(weights, y, y @ weights[0][1:])
            y, parts = ys[-1], [*parts, ys[1:]]
        return torch.cat(parts)[..., 0].T

    return Program(library, name, follow, tolerance)


def torch_times():
    return torch.from_numpy(np.float32(TIMES[: A_PERIOD + 1]))


def by_torchdiffeq(name: str, tolerance: float | None = None, adjoint=False, **options) -> Program:
    if tolerance is not None:
        options |= {"rtol": tolerance, "atol": tolerance}

    def interval(weights, y, share):
        if not adjoint:
            slope = lambda t, y: torch_slope(weights, y, share)
            return torchdiffeq.odeint(slope, y, torch_times(), **options)
        # What the adjoint gives a gradient to must be a state: what is held has no slope.
        still = torch.zeros_like(share)
        slopes = lambda t, state: (torch_slope(weights, *state), still)
        own = {"adjoint_params": tuple(weights)}
        return torchdiffeq.odeint_adjoint(slopes, (y, share), torch_times(), **options, **own)[0]

    return torch_program("torchdiffeq", name, interval, tolerance)


def by_torchode(name: str, method: str, tolerance=None, steps: int | None = None) -> Program:
    def interval(weights, y, share):
        slope = lambda t, y, share: torch_slope(weights, y, share)
        term = torchode.ODETerm(slope, with_args=True, with_stats=False)
        controller, dt0 = torchode.FixedStepController(), None
        if tolerance is not None:
            controller = torchode.IntegralController(tolerance, tolerance, term=term)
        else:
            dt0 = torch.full((len(y),), 1 / steps)
        solver = torchode.AutoDiffAdjoint(
            getattr(torchode, method)(term=term),
            controller,
            backprop_through_step_size_control=False,
        )
        problem = torchode.InitialValueProblem(y, t_eval=torch_times().expand(len(y), -1))
        return solver.solve(problem, term, dt0=dt0, args=share).ys.transpose(0, 1)

    return torch_program("torchode", name, interval, tolerance)


def torch_programs() -> list[Program]:
    def rk4(steps):
        return {"method": "rk4", "options": {"step_size": 1 / steps, "interp": "cubic"}}

    return [
        by_torchdiffeq("dopri5 at 1e-3", 1e-3, method="dopri5"),
        by_torchdiffeq("rk4, 2 steps", **rk4(2)),
        by_torchode("Dopri5 at 1e-3", "Dopri5", 1e-3),
        by_torchode("Tsit5, 1 step", "Tsit5", steps=1),
        by_torchdiffeq("dopri5 at 1e-5", 1e-5, method="dopri5"),
        by_torchdiffeq("dopri5 at 1e-3, adjoint", 1e-3, adjoint=True, method="dopri5"),
        by_torchdiffeq("rk4, 1 step", **rk4(1)),
        by_torchdiffeq("rk4, 4 steps", **rk4(4)),
        by_torchdiffeq("rk4, 10 steps", method="rk4"),
        by_torchdiffeq("rk4, 2 steps, adjoint", adjoint=True, **rk4(2)),
        by_torchode("Tsit5 at 1e-3", "Tsit5", 1e-3),
        by_torchode("Tsit5 at 1e-5", "Tsit5", 1e-5),
        by_torchode("Tsit5, 2 steps", "Tsit5", steps=2),
    ]


# --- problems -------------------------------------------------------------------------------------


def make_problems(size: Size) -> dict[str, Problem]:
    settings = PopulationSettings(series=size.series, train_time=INTERVALS, period=PERIOD)
    series = split(settings, make_series(settings, GROWTH))[0]
    start = MLP(1, (10, 10), history=1, use_bias=False, key=jax.random.key(0))
    fine = lagrax_program("", solver=diffrax.Bosh3(), steps=12, gradient=lagrax.Direct())
    trained = jax.jit(training(fine.follow))(start, series, 0.01, size.training)[0]
    fields, reference = {"start": start, "trained": trained}, make_reference()
    return {name: Problem(f, series, *reference(f, series)) for name, f in fields.items()}


def make_reference() -> Callable[[MLP, jax.Array], tuple[np.ndarray, list[np.ndarray]]]:
    """In float64: 100 steps an interval, which must agree with scipy, and their gradient."""
    with jax.enable_x64(True):
        saveat = diffrax.SaveAt(ts=TIMES)
    fine = lagrax_program("", saveat=saveat, solver=diffrax.Tsit5(), steps=100)
    block = jax.jit(training(fine.follow))

    def reference(field, series):
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda x: jnp.asarray(np.array(x), jnp.float64), (field, series))
            _, _, gradient, ys = block(*wide, 0.0, 1)
            solution, gradient = np.array(ys), [np.array(g) for g in jax.tree.leaves(gradient)]
        if torch is not None:
            off = np.max(np.abs(solution - by_scipy(field, np.array(series[:, 0], np.float64))))
            assert off < 1e-9, f"the references differ by {off}"
        return solution, gradient

    return reference


def by_scipy(field: MLP, y: np.ndarray) -> np.ndarray:
    first, second, third = (np.array(layer.weight, np.float64) for layer in field.layers)
    parts = [y[:, None]]
    for _ in range(INTERVALS):
        share = y[:, None] * first[1]
        slope = lambda t, y, s=share: np.tanh(np.tanh(y[:, None] * first[0] + s) @ second) @ third
        solution = scipy.integrate.solve_ivp(
            lambda t, y, f=slope: f(t, y)[:, 0],
            (0.0, 1.0),
            y,
            method="DOP853",
            t_eval=np.minimum(TIMES[1 : A_PERIOD + 1], 1.0),
            rtol=1e-12,
            atol=1e-13,
        )
        y, parts = solution.y[:, -1], [*parts, solution.y]
    return np.concatenate(parts, axis=1)


# --- steps ----------------------------------------------------------------------------------------


def training(follow: Callable) -> Callable:
    """`block(field, series, rate, count)` takes so many steps in one compiled loop and gives field,
    optimiser, gradient and samples. The rate is not known when it is compiled: at zero, every step
    starts from the same field."""

    def block(field, series, rate, count):
        optimiser = optax.adam(rate)

        def loss(field):
            ys = follow(field, series[:, 0])
            return jnp.mean((ys - series) ** 2), ys

        def step(_, carry):
            field, state, _, _ = carry
            gradient, ys = jax.grad(loss, has_aux=True)(field)
            updates, state = optimiser.update(gradient, state)
            return optax.apply_updates(field, updates), state, gradient, ys

        empty = (field, jnp.zeros_like(series))
        return lax.fori_loop(0, count, step, (field, optimiser.init(field), *empty))

    return block


def torch_step(program: Program, problem: Problem) -> Callable:
    weights, series = torch_field(problem.field), torch.from_numpy(np.array(problem.series))
    optimiser = torch.optim.Adam(weights.parameters(), lr=0.0)

    def step():
        optimiser.zero_grad()
        ys = program.follow(weights, series[:, 0])
        torch.mean((ys - series) ** 2).backward()
        optimiser.step()
        return [w.grad for w in weights], ys

    return step


def errors(answer: tuple, problem: Problem) -> dict[str, float]:
    """The largest error of the solution, and that of the gradient relative to its length."""
    gradient, ys = answer
    flat = np.concatenate([np.ravel(np.asarray(g, np.float64)) for g in gradient])
    exact = np.concatenate([np.ravel(g) for g in problem.gradient])
    return {
        "error": float(np.max(np.abs(np.asarray(ys, np.float64) - problem.solution))),
        "gradient_error": float(np.linalg.norm(flat - exact) / np.linalg.norm(exact)),
    }


Calls = dict[tuple[int, str], Callable]  # by the row's place and what is timed


def jax_rows(programs: list[Program], problems: dict, size: Size, calls: Calls, rows: list) -> None:
    for program in programs:
        seconds, block = first_call(program, problems["start"])
        for name, problem in problems.items():
            start = problem.field, problem.series, 0.0
            _, _, gradient, ys = block(*start, 1)
            calls[len(rows), "call_ms"] = lambda b=block, s=start: b(*s, 1)
            calls[len(rows), "ms"] = lambda b=block, s=start: b(*s, size.block)
            row = {"problem": name, "library": program.library, "program": program.name}
            row |= errors((jax.tree.leaves(gradient), ys), problem)
            rows.append(row | {"first_call_s": seconds, "tolerance": program.tolerance})


def first_call(program: Program, problem: Problem) -> tuple[float, Callable]:
    """Its seconds, in which the program is traced and compiled, and the compiled program."""
    jax.clear_caches()
    block = jax.jit(training(program.follow))
    start = time.perf_counter()
    jax.block_until_ready(block(problem.field, problem.series, 0.0, 1))
    return time.perf_counter() - start, block


def torch_rows(programs: list[Program], problems: dict, calls: Calls, rows: list) -> None:
    for program in programs:
        for name, problem in problems.items():
            step = torch_step(program, problem)
            gradient, ys = step()
            calls[len(rows), "ms"] = step
            row = {"problem": name, "library": program.library, "program": program.name}
            row |= errors((gradient, ys.detach()), problem)
            rows.append(row | {"tolerance": program.tolerance})


def time_rows(calls: Calls, rows: list[dict], size: Size) -> None:
    times = measuring.milliseconds(calls, repeats=size.repeats, seconds=size.seconds)
    for (i, what), ms in times.items():
        of_block = what == "ms" and "first_call_s" in rows[i]
        rows[i][what] = ms / size.block if of_block else ms
    for row in rows:
        row.setdefault("call_ms", row["ms"])


# --- comparisons ----------------------------------------------------------------------------------


def compare(rows: list[dict]) -> None:
    """Adds to the peers' rows how many times as long they take as lagrax at equal error, and as
    lagrax's solver of the same name at the same tolerance."""
    for row in rows:
        if row["library"] == "lagrax":
            continue
        for what, ratio in (("ms", "over_lagrax"), ("call_ms", "over_lagrax_by_call")):
            own = measuring.fastest_as_accurate(rows, row, floor=FLOOR, time=what)
            row[ratio] = row[what] / own[what] if own else float("nan")
            if own and what == "ms":
                row["compared_with"] = own["program"]
        if row["tolerance"] is not None:
            solver = row["program"].split()[0].capitalize()
            own = find(rows, row["problem"], "lagrax", f"{solver} at {row['tolerance']:.0e}")
            if own:
                row["over_lagrax_at_same_tolerance"] = row["ms"] / own["ms"]


def find(rows: list[dict], problem: str, library: str, program: str) -> dict:
    wanted = {"problem": problem, "library": library, "program": program.replace("e-0", "e-")}
    return next((r for r in rows if wanted.items() <= r.items()), {})


WAYS = {
    "a step a call": ("call_ms", "over_lagrax_by_call"),
    "JAX in a compiled loop": ("ms", "over_lagrax"),
}


def goals_of(rows: list[dict], compilations: dict[str, float]) -> list[dict]:
    out = []
    libraries = {"torchdiffeq": 30, "torchode": 30, "diffrax": 2, "diffrax with lagrax's field": 2}
    for library, goal in libraries.items():
        sensible = [r for r in rows if r["library"] == library and r["error"] < SENSIBLE]
        for way, (what, ratio) in WAYS.items():
            fastest = [
                min((r for r in sensible if r["problem"] == p), key=lambda r: r[what])[ratio]
                for p in sorted({r["problem"] for r in sensible})
            ]
            every = [r[ratio] for r in sensible]
            for which, ratios in (("fastest program", fastest), ("hardest to beat", every)):
                value = float(np.min(ratios)) if ratios else float("nan")
                name = f"{library}, {which}: its time over lagrax's at equal error, {way}"
                out.append(measuring.at_least(name, value, goal))
    for name, ratio in compilations.items():
        out.append(measuring.at_most(f"lagrax over diffrax, {name}: first call", ratio, 1))
    return out


def compare_compilations(rows: list[dict], problem: Problem, size: Size) -> dict[str, float]:
    """The first calls of the same solver in both libraries, which take turns."""
    out = {}
    for name in ("Tsit5 at 1e-3", "Tsit5, 1 step"):
        pair = [
            next(p for p in ps if p.name == name) for ps in (lagrax_programs(), diffrax_programs())
        ]
        seconds = [[find(rows, "start", p.library, name)["first_call_s"]] for p in pair]
        for _ in range(size.compilations - 1):
            for program, of_program in zip(pair, seconds, strict=True):
                of_program.append(first_call(program, problem)[0])
        own, other = (statistics.median(s) for s in seconds)
        out[name] = own / other
    return out


def measure(size: Size) -> tuple[list[dict], list[dict]]:
    problems, rows, calls = make_problems(size), [], {}
    number = None if size.everything else 2
    jax_rows(lagrax_programs()[:number] + diffrax_programs()[:number], problems, size, calls, rows)
    compilations = compare_compilations(rows, problems["start"], size)
    if torch is not None:
        programs = torch_programs()[: None if size.everything else 4]
        threads = measuring.torch_threads(torch_step(programs[0], problems["start"]))
        print(f"PyTorch uses {threads} thread(s)")
        torch_rows(programs, problems, calls, rows)
    time_rows(calls, rows, size)
    compare(rows)
    return rows, goals_of(rows, compilations)


def main() -> None:
    options = measuring.options_for(QUESTION, RESULTS)
    size = TINY if options.tiny else FULL
    rows, goals = measure(size)
    columns = {"problem": "", "library": "", "program": "", "ms": ".3f", "call_ms": ".3f"}
    columns |= {"error": ".1e", "gradient_error": ".1e", "first_call_s": ".1f"}
    columns |= {"over_lagrax": ".1f", "over_lagrax_by_call": ".1f"}
    columns |= {"over_lagrax_at_same_tolerance": ".1f"}
    rows.sort(key=lambda r: r["problem"])
    print(measuring.table(rows, columns))
    if torch is None:
        rows.append({"library": "PyTorch's", "failed": ABSENT})
        print(f"PyTorch's libraries were left out: {ABSENT}")
    peers = ("torch", "torchdiffeq", "torchode", "scipy", "optax")
    measuring.write(options.out, QUESTION, rows, goals, *peers)


if __name__ == "__main__":
    main()
