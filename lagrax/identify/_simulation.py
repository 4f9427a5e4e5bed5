"""The equation solved over windows of measured series, and over times that a user gives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay, Hold, RealScalar, with_periods
from .._solve.gradients import Direct
from .._solve.solve import solve
from ._fields import Equation
from ._lookback import find_kinks, find_reach, is_periodic, read_period
from ._series import POINTS, Trajectory, fill_gaps, interpolate
from ._windows import Window

# Training may change a learned period by this share of the scanned one.
PERIOD_ROOM = 0.1
# Adaptive steps between two samples, on average. An equation that needs more is stiff.
STEPS_A_SAMPLE = 64


class SolveSetup(NamedTuple):
    """The arguments of `solve` that training leaves unchanged.

    `periods` are the scanned ones of the `Learn`s among `delays`. `intervals` and `steps` are those
    of `solve` over a window; without `steps`, errors are controlled relative to `unit`, the size of
    each state. `inputs` says whether the field has inputs.
    """

    delays: list[Delay]
    periods: tuple[float, ...]
    intervals: int | None
    steps: int | None
    solver: diffrax.AbstractSolver
    inputs: bool
    unit: Float[Any, " states"]

    def current_delays(self, equation: Equation) -> list[Delay]:
        """The delays with the periods of `equation`."""
        factors = 1 + PERIOD_ROOM * jnp.tanh(equation.shifts)
        return with_periods(
            self.delays, [p * m for p, m in zip(self.periods, factors, strict=True)]
        )

    def choose_solver_steps(self, samples: int) -> dict[str, Any]:
        """The arguments of `solve` about steps, for a solution at so many `samples`."""
        if self.steps is not None:
            return {"steps": self.steps}
        control: Any = diffrax.PIDController(rtol=1e-5, atol=1e-6 * self.unit)
        return {"stepsize_controller": control, "max_steps": 1024 + STEPS_A_SAMPLE * samples}


class WindowArrays(NamedTuple):
    """The samples of a window as arrays, which values count, and points of the past before it.
    With a leading axis, several windows."""

    ts: Float[Any, "*windows samples"]
    ys: Float[Any, "*windows samples states"]
    weights: Float[Any, "*windows samples states"]
    us: Float[Any, "*windows samples inputs"]
    past_ts: Float[Any, "*windows past"]
    past_ys: Float[Any, "*windows past states"]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The first and the last time of each window."""
        return [(float(ts[0]), float(ts[-1])) for ts in self.ts]


class LinearPast(eqx.Module):
    """Piecewise-linear interpolation between points, constant beyond the ends."""

    ts: Float[Array, " points"]
    ys: Float[Array, "points states"]

    def __call__(self, t: RealScalar) -> Float[Array, " states"]:
        return jax.vmap(jnp.interp, (None, None, 1))(t, self.ts, self.ys)


def stack_windows(
    trajectories: Sequence[Trajectory], windows: Sequence[Window], delays: Sequence[Delay]
) -> WindowArrays:
    """Stacks windows. Shorter ones are padded with samples of weight zero."""
    length = max(w.last - w.first for w in windows) + 1
    reach = find_reach(delays) * (1 + PERIOD_ROOM)
    pasts = [
        sample_past(_take_past(trajectories[w.trajectory], w.first, reach), delays) for w in windows
    ]
    past = max(len(ts) for ts, _ in pasts)
    rows = []
    for w, (ts, ys) in zip(windows, pasts, strict=True):
        t = trajectories[w.trajectory]
        here, more = slice(w.first, w.last + 1), length - (w.last + 1 - w.first)
        ends, lead = [(0, more), (0, 0)], past - len(ts)
        weights = (~np.isnan(t.ys[here])).astype(float)
        weights[0] = 0.0  # the window starts from this sample
        step = 0.1 * (t.ts[w.last] - t.ts[w.last - 1])
        rows.append(
            WindowArrays(
                np.concatenate([t.ts[here], t.ts[w.last] + step * np.arange(1, more + 1)]),
                np.pad(t.filled[here], ends, mode="edge"),
                np.pad(weights, ends),
                np.pad(t.us[here], ends, mode="edge"),
                np.concatenate([ts[0] - np.arange(lead, 0, -1.0), ts]),
                np.pad(ys, [(lead, 0), (0, 0)], mode="edge"),
            )
        )
    return WindowArrays(*(np.stack(part) for part in zip(*rows, strict=True)))


def _take_past(trajectory: Trajectory, last: int, reach: float) -> Trajectory:
    """The samples up to `last`, from `reach` before it. Later samples must not enter a
    prediction."""
    ts = trajectory.ts
    first = max(int(np.searchsorted(ts, ts[last] - reach)) - 8, 0)  # more samples, to interpolate
    measured = np.flatnonzero(~np.isnan(trajectory.ys[: last + 1]).all(axis=1))
    first = min(first, int(measured[-POINTS:][0])) if len(measured) else first
    part = slice(first, last + 1)
    ys = trajectory.ys[part]
    filled = _extend_gaps(trajectory, part)
    return Trajectory(ts[part], ys, trajectory.us[part], filled, trajectory.columns)


def _extend_gaps(trajectory: Trajectory, part: slice) -> Float[np.ndarray, "points states"]:
    """Fills missing values; those at the end continue the line through the last two."""
    ts, ys = trajectory.ts[part], trajectory.ys[part]
    if np.isnan(ys).all(axis=0).any():
        return trajectory.filled[part]
    extended = fill_gaps(ts, ys)
    for column, closed in zip(ys.T, extended.T, strict=True):
        known = np.flatnonzero(~np.isnan(column))
        if known[-1] < len(ts) - 1 and len(known) > 1:
            a, b = known[-2:]
            slope = (column[b] - column[a]) / (ts[b] - ts[a])
            closed[b + 1 :] = column[b] + slope * (ts[b + 1 :] - ts[b])
    return extended


def sample_past(
    trajectory: Trajectory, delays: Sequence[Delay]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "points states"]]:
    """Points dense enough for linear interpolation: the samples, three between each two, and the
    kinks."""
    ts = trajectory.ts
    if len(ts) == 1 or not delays:
        return ts, trajectory.filled
    kinks = find_kinks(delays, ts[0], ts[-1])
    between = ts[:-1, None] + np.diff(ts)[:, None] * np.array([0.25, 0.5, 0.75])
    points = np.unique(np.concatenate([ts, between.ravel(), kinks]))
    return points, interpolate(trajectory, points, kinks)


def count_intervals(
    delays: Sequence[Delay], spans: Sequence[tuple[float, float]], learned: bool
) -> int | None:
    """The most intervals between knots in any of `spans`; None if no delay has a period.

    While periods are `learned`, the delays have their shortest ones, and the instants of longer
    ones may lie anywhere.
    """
    periodic = [d for d in delays if is_periodic(d)]
    if not periodic:
        return None
    numbers = [1]
    for delay in periodic:
        tau = read_period(delay)
        if learned:
            numbers += [int(np.ceil((b - a) / tau)) + 1 for a, b in spans]
        else:
            numbers += [int(np.floor(b / tau) - np.floor(a / tau)) + 1 for a, b in spans]
    return max(numbers)


def solve_window(
    equation: Equation, setup: SolveSetup, window: WindowArrays
) -> Float[Array, "samples states"]:
    """The states at the times of a window, started from its first sample."""
    past = LinearPast(window.past_ts, window.past_ys)
    return solve_from(equation, setup, window.ts, past, window.us)


def solve_from(
    equation: Equation, setup: SolveSetup, ts: Any, past: Callable, us: Any
) -> Float[Array, "samples states"]:
    """The states at `ts`, started from a past that is known as a function of time."""
    field, delays = equation.field, setup.current_delays(equation)
    y0: Any = past if delays else past(ts[0])
    if setup.inputs:
        field, delays, y0 = _hold_inputs(field, delays, ts, us, past)
    elif not delays:
        field = _drop_history(field)
    solution = solve(
        field,
        ts[0],
        ts[-1],
        y0,
        delays=delays,
        solver=setup.solver,
        **setup.choose_solver_steps(len(ts)),
        intervals=setup.intervals,
        saveat=diffrax.SaveAt(ts=ts),
        gradient=Direct(),
        throw=False,
    )
    ys: Any = solution.ys
    return ys[0] if setup.inputs else ys


def _drop_history(field: Callable) -> Callable:
    return lambda t, y, args: field(t, y, None, history=())


def _hold_inputs(field: Callable, delays: Sequence[Delay], ts: Any, us: Any, past: Callable):
    """Adds a hold at the times of the samples, since inputs jump there. It holds the clock, which
    selects the right input also at the very end of an interval."""

    def with_clock(t, state, args, *, history):
        y, clock = state
        *states, (_, since) = history
        inputs = us[jnp.argmin(jnp.abs(ts - since))]
        slope = field(t, y, inputs, history=tuple(z for z, _ in states))
        return slope, 1 + 0 * clock

    return with_clock, [*delays, Hold(times=ts)], lambda t: (past(t), jnp.asarray(t, past(t).dtype))


# --- ensembles ------------------------------------------------------------------------------------


def to_jax(tree: PyTree) -> PyTree:
    """Turns all numbers into JAX arrays of the default precision."""
    return jax.tree.map(lambda x: jnp.asarray(x, float) if eqx.is_array_like(x) else x, tree)


def take_member(members: PyTree, i: int) -> PyTree:
    """Member `i` of an ensemble, whose arrays are stacked."""
    return jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, members)


def count_members(members: PyTree) -> int:
    return len(jax.tree.leaves(eqx.filter(members, eqx.is_array))[0])


@eqx.filter_jit
def predict_mean(members: PyTree, setup: SolveSetup, windows: WindowArrays) -> Array:
    """The states over each window, averaged over the members."""
    arrays, static = eqx.partition(members, eqx.is_array)
    one = lambda a: jax.vmap(lambda w: solve_window(eqx.combine(a, static), setup, w))(windows)
    return jnp.mean(jax.lax.map(one, arrays), axis=0)


@functools.lru_cache(maxsize=32)
def compile_simulation(times: bytes, learned: bool) -> Callable:
    """A function that solves an equation at the given times, compiled once for all initial values.

    With numbers for its periods, the times are constants of the program in double precision.
    """
    ts = np.frombuffer(times)

    @eqx.filter_jit
    def run(equation: Equation, setup: SolveSetup, past: Callable, us: Array) -> Array:
        return solve_from(equation, setup, jnp.asarray(ts, float) if learned else ts, past, us)

    return run
