"""How long is one step with a true delay?

The first problem is Hutchinson's equation x' = a x(t) (1 - x(t - tau)) from 100 starts over ten
delays with 21 samples, and the gradient of a mean square with respect to a and tau. The second one
is a network 2-10-10-1 that has learned the equation, over three delays with 31 samples, and the
gradient with respect to its weights. lagrax uses `Lag`; torchdde has the better of one thread and
all threads. All is in float32. Steps are equal in each delay unless a row says otherwise.

An error is the largest of all samples, compared with 64 steps in float64, which agree with the
method of steps on SciPy's DOP853. Each program of torchdde is compared with lagrax's fastest
program whose error is not larger (within 5 %; errors below 5e-6 are rounding and count as equal).
The goals take the smallest ratio over all programs whose error is below 0.05.

Times are medians of seven turns in one run.

Measured on AMD EPYC, 2 cores, python 3.11.7, lagrax 0.1.0, jax 0.10.2, diffrax 0.7.2, equinox
0.13.8, torch 2.13.0+cpu, torchdde 0.1.3, scipy 1.17.1:

    139      ≥ 30 met      torchdde over lagrax at equal error, Hutchinson, solve, in time
    62.1     ≥ 30 met      torchdde over lagrax at equal error, Hutchinson, gradient, in time
    40       ≥ 30 met      torchdde over lagrax at equal error, network, solve, in time
    31.3     ≥ 30 met      torchdde over lagrax at equal error, network, gradient, in time

torchdde's gradients are computed by backpropagation. Its adjoint was measured as well; in version
0.1.3 its error exceeds a hundred times the size of the gradient. The direct gradients of
Hutchinson's equation have errors of 1.2 and 0.6 % with 2 and 4 steps of Dopri5. lagrax's programs
were chosen after torchdde's errors were known. Times of one program differ by up to 1.5 times
between runs.

`python benchmarks/ndde_step.py` needs requirements.txt and takes five to seven minutes on the
machine above. It prints the rows and the goals, and writes results/ndde_step.json. Without torchdde
it leaves its rows out and says so. `--tiny` checks that everything runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import measuring
import numpy as np
from population_step import training

import lagrax
from lagrax.nn import MLP
from lagrax.systems import Hutchinson

try:
    import scipy.integrate
    import torch
    import torchdde
except ImportError as error:
    torch, ABSENT = None, str(error)

QUESTION = "How long is one step with a true delay?"
RESULTS = measuring.RESULTS / "ndde_step.json"
# Errors that float32 leaves to chance, and errors with which a row is no solution.
FLOOR, SENSIBLE = 5e-6, 0.05


@dataclass(frozen=True)
class Size:
    training: int  # steps, to the trained field
    repeats: int
    seconds: float  # that a turn lasts, about
    everything: bool  # or one program of each library


FULL, TINY = Size(500, 7, 0.02, True), Size(10, 1, 0.0, False)


class Problem(NamedTuple):
    """z'(t) = field(z(t), z(t - 1)) from a constant past; the loss is the mean square of the
    distance from `target` at the times `ts`. `solution` and `gradient` are in float64."""

    field: Any
    starts: np.ndarray
    ts: np.ndarray
    target: np.ndarray
    solution: np.ndarray
    gradient: np.ndarray


# --- lagrax ---------------------------------------------------------------------------------------


def follower(ts: np.ndarray, **options: Any) -> Callable:
    """`follow(field, starts)`: the samples, one row a time. A field that is a system has its own
    delay, which may be traced: the number of intervals is said."""
    # Made before jit, under which its times would be traced: their number an interval is then
    # unknown.
    saveat, end = diffrax.SaveAt(ts=ts), float(ts[-1])

    def follow(field, starts):
        delays, y0 = [lagrax.Lag(1.0)], starts[:, None]
        if isinstance(field, Hutchinson):
            delays = field.delays
        solution = lagrax.solve(
            field,
            0.0,
            end,
            y0,
            delays=delays,
            intervals=round(end),
            saveat=saveat,
            throw=False,
            **options,
        )
        return solution.ys[..., 0]

    return follow


def lagrax_programs() -> dict[str, dict]:
    tsit5, adaptive = diffrax.Tsit5(), diffrax.PIDController(rtol=1e-5, atol=1e-5)
    direct = {"gradient": lagrax.Direct()}
    return {
        "Tsit5, 2 steps": {"solver": tsit5, "steps": 2} | direct,
        "Tsit5, 1 step": {"solver": tsit5, "steps": 1} | direct,
        "Tsit5, 2 steps, Checkpointed": {"solver": tsit5, "steps": 2},
        "Tsit5, 3 steps": {"solver": tsit5, "steps": 3} | direct,
        "Tsit5, 4 steps": {"solver": tsit5, "steps": 4} | direct,
        "Bosh3, 2 steps": {"solver": diffrax.Bosh3(), "steps": 2} | direct,
        "Heun, 4 steps": {"solver": diffrax.Heun(), "steps": 4} | direct,
        "Tsit5 at 1e-5": {"solver": tsit5, "stepsize_controller": adaptive, "max_steps": 64},
    }


def loss_of(follow: Callable) -> Callable:
    def loss(field, starts, target):
        ys = follow(field, starts)
        return jnp.mean((ys - target) ** 2), ys

    return loss


def lagrax_calls(options: dict, problem: Problem) -> tuple[Callable, Callable]:
    """The solution alone, and the gradient with it."""
    follow = follower(problem.ts, **options)
    gradient = jax.jit(jax.grad(loss_of(follow), has_aux=True))
    # A delay that no gradient is taken to need not be traced.
    still = Hutchinson(problem.field.a) if isinstance(problem.field, Hutchinson) else problem.field
    dynamic, static = eqx.partition(still, eqx.is_array)
    forward = jax.jit(lambda dynamic, starts: follow(eqx.combine(dynamic, static), starts))
    starts, target = jnp.float32(problem.starts), jnp.float32(problem.target)

    def both():
        gradients, ys = gradient(problem.field, starts, target)
        return jax.tree.leaves(gradients), ys

    return lambda: forward(dynamic, starts), both


# --- torchdde -------------------------------------------------------------------------------------


def torchdde_programs() -> dict[str, dict]:
    if torch is None:
        return {}
    rk2, rk4, bosh3, dopri5 = torchdde.RK2, torchdde.RK4, torchdde.Bosh3, torchdde.Dopri5
    return {
        "RK4, 2 steps": {"solver": rk4, "steps": 2},
        "Dopri5, 2 steps": {"solver": dopri5, "steps": 2},
        "RK2, 4 steps": {"solver": rk2, "steps": 4},
        "Bosh3, 2 steps": {"solver": bosh3, "steps": 2},
        "RK4, 1 step": {"solver": rk4, "steps": 1},
        "RK4, 4 steps": {"solver": rk4, "steps": 4},
        "Dopri5, 1 step": {"solver": dopri5, "steps": 1},
        "Dopri5, 4 steps": {"solver": dopri5, "steps": 4},
        "Dopri5 at 1e-3": {"solver": dopri5, "tolerance": 1e-3},
        "Dopri5 at 1e-5": {"solver": dopri5, "tolerance": 1e-5},
        "Bosh3 at 1e-3": {"solver": bosh3, "tolerance": 1e-3},
        "RK4, 2 steps, adjoint": {"solver": rk4, "steps": 2, "direct": False},
    }


def torch_field(field: Any):
    """The same field; its first parameters are the delays, which torchdde's adjoint expects."""

    class Field(torch.nn.Module):
        def __init__(self, delay, parameters):
            super().__init__()
            self.delays = torch.nn.Parameter(torch.tensor([delay]))
            tensors = [torch.from_numpy(np.array(p)) for p in parameters]
            self.own = torch.nn.ParameterList([torch.nn.Parameter(x) for x in tensors])

    class Logistic(Field):
        def forward(self, t, y, args, *, history):
            return self.own[0] * y * (1 - history[0])

    class Network(Field):
        def forward(self, t, y, args, *, history):
            h = torch.tanh(torch.cat([y, history[0]], 1) @ self.own[0])
            return torch.tanh(h @ self.own[1]) @ self.own[2]

    if isinstance(field, Hutchinson):
        return Logistic(float(field.tau), [field.a])
    return Network(1.0, [layer.weight for layer in field.layers])


def torchdde_calls(options: dict, problem: Problem) -> tuple[Callable, Callable]:
    module, solver = torch_field(problem.field), options["solver"]()
    trains_delay = isinstance(problem.field, Hutchinson)
    module.delays.requires_grad_(trains_delay or not options.get("direct", True))
    starts, ts, target = (
        torch.from_numpy(np.float32(x)) for x in (problem.starts, problem.ts, problem.target)
    )
    controller, dt0 = torchdde.ConstantStepSizeController(), None
    if "tolerance" in options:
        tolerance = options["tolerance"]
        controller = torchdde.AdaptiveStepSizeController(rtol=tolerance, atol=tolerance)
    else:
        dt0 = torch.tensor(1 / options["steps"])
    parameters = [*module.own, module.delays] if trains_delay else [*module.own]

    def solution():
        ys = torchdde.integrate(
            module,
            solver,
            ts[0],
            ts[-1],
            ts,
            lambda t: starts[:, None],
            None,
            controller,
            dt0=dt0,
            delays=module.delays,
            discretize_then_optimize=options.get("direct", True),
        )
        return ys[..., 0].T

    def forward():
        with torch.no_grad():
            return solution()

    def both():
        ys = solution()
        gradient = torch.autograd.grad(torch.mean((ys - target) ** 2), parameters)
        return [g.detach() for g in gradient], ys.detach()

    return forward, both


# --- problems -------------------------------------------------------------------------------------


def make_problems(size: Size) -> dict[str, Problem]:
    """The network has learnt Hutchinson's equation from series as short as the paper's."""
    starts = np.random.default_rng(0).uniform(0.2, 1.5, 100)
    system = Hutchinson(jnp.float32(1.5), jnp.float32(1.0))
    ts, short = np.arange(21) * 0.5, np.arange(31) * 0.1
    follow = jax.jit(follower(ts, solver=diffrax.Tsit5(), steps=12))
    target = follow(Hutchinson(jnp.float32(1.65), jnp.float32(1.0)), jnp.float32(starts))
    fine = jax.jit(follower(short, solver=diffrax.Bosh3(), steps=12, gradient=lagrax.Direct()))
    series = fine(system, jnp.float32(starts))
    field = MLP(1, (10, 10), history=1, use_bias=False, key=jax.random.key(0))
    train = jax.jit(training(lambda field, starts: fine(field, starts).T))
    field = train(field, series.T, 0.01, size.training)[0]
    return {
        "Hutchinson": with_reference(system, logistic(1.5), starts, ts, target),
        "network": with_reference(field, network(field), starts, short, series),
    }


def with_reference(field: Any, slope: Callable, starts, ts, target) -> Problem:
    """In float64: 64 steps an interval, which must agree with scipy, and their gradient."""
    starts, target = np.array(starts, np.float64), np.array(target, np.float64)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.array(x), jnp.float64), field)
        loss = loss_of(follower(ts, solver=diffrax.Tsit5(), steps=64))
        gradient, ys = jax.jit(jax.grad(loss, has_aux=True))(wide, starts, target)
        gradient, solution = flat(jax.tree.leaves(gradient)), np.array(ys)
    if torch is not None:
        off = np.max(np.abs(solution - by_scipy(slope, starts, ts)))
        assert off < 1e-8, f"the references differ by {off}"
    return Problem(field, starts, ts, target, solution, gradient)


def logistic(a: float) -> Callable:
    return lambda y, lagged: a * y * (1 - lagged)


def network(field: MLP) -> Callable:
    first, second, third = (np.array(layer.weight, np.float64) for layer in field.layers)

    def slope(y, lagged):
        h = np.tanh(np.stack([y, lagged], 1) @ first)
        return (np.tanh(h @ second) @ third)[:, 0]

    return slope


def by_scipy(slope: Callable, starts: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """The method of steps on scipy's dense output, for a delay of 1."""
    lagged, y, parts = lambda t: starts, starts, [starts[None]]
    for k in range(round(ts[-1])):
        solution = scipy.integrate.solve_ivp(
            lambda t, y, lagged=lagged: slope(y, lagged(t - 1)),
            (k, k + 1),
            y,
            method="DOP853",
            dense_output=True,
            rtol=1e-12,
            atol=1e-13,
        )
        lagged, y = solution.sol, solution.y[:, -1]
        inside = ts[(ts > k + 1e-9) & (ts < k + 1 + 1e-9)]
        parts.append(solution.sol(np.minimum(inside, k + 1)).T)
    return np.concatenate(parts)


# --- rows -----------------------------------------------------------------------------------------


def flat(arrays) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in arrays])


def errors(answer: tuple, problem: Problem) -> dict[str, float]:
    """The largest error of the solution, and that of the gradient relative to its length."""
    gradient, ys = answer
    off = np.linalg.norm(flat(gradient) - problem.gradient)
    return {
        "error": float(np.max(np.abs(np.asarray(ys) - problem.solution))),
        "gradient_error": float(off / np.linalg.norm(problem.gradient)),
    }


def measure(size: Size) -> list[dict]:
    rows, calls, number = [], {}, None if size.everything else 1
    problems = make_problems(size)
    if torch is not None:
        first = next(iter(torchdde_programs().values()))
        threads = measuring.torch_threads(torchdde_calls(first, problems["Hutchinson"])[1])
        print(f"PyTorch uses {threads} thread(s)")
    libraries = {
        "lagrax": (lagrax_programs(), lagrax_calls),
        "torchdde": (torchdde_programs(), torchdde_calls),
    }
    for name, problem in problems.items():
        for library, (programs, make) in libraries.items():
            for program, options in list(programs.items())[:number]:
                forward, both = make(options, problem)
                calls[len(rows), "forward_ms"] = forward
                calls[len(rows), "gradient_ms"] = both
                row = {"problem": name, "library": library, "program": program}
                rows.append(row | errors(both(), problem))
    times = measuring.milliseconds(calls, repeats=size.repeats, seconds=size.seconds)
    for (i, what), ms in times.items():
        rows[i][what] = ms
    compare(rows)
    return rows


WHATS = {"forward_ms": "forward_over_lagrax", "gradient_ms": "gradient_over_lagrax"}


def compare(rows: list[dict]) -> None:
    """Adds to torchdde's rows how many times as long they take as lagrax at equal error."""
    for row in rows:
        if row["library"] == "lagrax":
            continue
        for what, ratio in WHATS.items():
            own = measuring.fastest_as_accurate(rows, row, floor=FLOOR, time=what)
            row[ratio] = row[what] / own[what] if own else float("nan")


def goals_of(rows: list[dict]) -> list[dict]:
    out = []
    for problem in ("Hutchinson", "network"):
        for what, ratio in (("solve", "forward_over_lagrax"), ("gradient", "gradient_over_lagrax")):
            ratios = [
                r[ratio]
                for r in rows
                if r["problem"] == problem and ratio in r and r["error"] < SENSIBLE
            ]
            value = float(np.min(ratios)) if ratios else float("nan")
            name = f"torchdde over lagrax at equal error, {problem}, {what}, in time"
            out.append(measuring.at_least(name, value, 30))
    return out


def main() -> None:
    options = measuring.options_for(QUESTION, RESULTS)
    rows = measure(TINY if options.tiny else FULL)
    goals = goals_of(rows)
    columns = {"problem": "", "library": "", "program": "", "error": ".1e", "gradient_error": ".1e"}
    columns |= dict.fromkeys(WHATS, ".3f") | dict.fromkeys(WHATS.values(), ".0f")
    print(measuring.table(rows, columns))
    if torch is None:
        rows.append({"library": "torchdde", "failed": ABSENT})
        print(f"torchdde was left out: {ABSENT}")
    measuring.write(options.out, QUESTION, rows, goals, "torch", "torchdde", "scipy")


if __name__ == "__main__":
    main()
