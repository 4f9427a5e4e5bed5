"""Equations to be learned from measured series: their fields, and how they are followed over
windows of the series."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._solve.delays import Delay, Hold, Lag, RealScalar, with_periods
from .._solve.gradients import Direct
from .._solve.solve import solve
from ._regression import kinks_of, reach_of
from ._series import POINTS, Trajectory, Window, filled, interpolated

# How far a learned period may move from where the scan has put it.
PERIOD_ROOM = 0.1


class Network(eqx.Module):
    """A network on the state, its history and the inputs, each brought to mean 0 and deviation 1;
    what it returns is in units of the measured slopes. These scales are not trained."""

    mlp: eqx.nn.MLP
    centre: Float[Array, " variables"]
    scale: Float[Array, " variables"]
    slope: Float[Array, " states"]

    def __init__(
        self,
        centre: Float[Array, " variables"],
        scale: Float[Array, " variables"],
        slope: Float[Array, " states"],
        *,
        width: int,
        depth: int,
        key: PRNGKeyArray,
    ):
        mlp = eqx.nn.MLP(centre.size, slope.size, width, depth, jnp.tanh, key=key)
        # It starts close to standing still, from where no window runs away.
        small = 0.1 * mlp.layers[-1].weight
        self.mlp = eqx.tree_at(lambda m: m.layers[-1].weight, mlp, small)
        self.centre, self.scale, self.slope = centre, scale, slope

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, " states"],
        args: Float[Array, " inputs"] | None,
        *,
        history: Sequence[Float[Array, " states"]] = (),
    ) -> Float[Array, " states"]:
        centre, scale, slope = jax.lax.stop_gradient((self.centre, self.scale, self.slope))
        return slope * self.mlp((_variables(y, history, args) - centre) / scale)


class Polynomial(eqx.Module):
    """A sum of monomials in the state, its history and the inputs. `powers` has one row for each
    term; a term that a state's equation does not have has the coefficient 0 there, and `used`
    keeps it so."""

    coefficients: Float[Array, "terms states"]
    used: tuple[tuple[bool, ...], ...] = eqx.field(static=True)
    powers: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, " states"],
        args: Float[Array, " inputs"] | None,
        *,
        history: Sequence[Float[Array, " states"]] = (),
    ) -> Float[Array, " states"]:
        x = _variables(y, history, args)
        terms = [_monomial(x, powers) for powers in self.powers]
        coefficients = jnp.where(np.array(self.used), self.coefficients, 0)
        return jnp.sum(jnp.stack(terms)[:, None] * coefficients, axis=0)

    def text(self, states: Sequence[str], variables: Sequence[str]) -> list[str]:
        """One equation a state, such as x′ = 2.6 x − 2.6 x x(⌊t⌋)."""
        lines = []
        for i, state in enumerate(states):
            terms = [
                (float(self.coefficients[j, i]), powers)
                for j, powers in enumerate(self.powers)
                if self.used[j][i]
            ]
            written = " ".join(
                f"{'−' if c < 0 else '+'} {abs(c):.4g}{_named(powers, variables)}"
                for c, powers in terms
            )
            lines.append(f"{state}′ = {written.removeprefix('+ ') or '0'}")
        return lines


def _variables(y: Array, history: Sequence[Array], inputs: Array | None) -> Array:
    return jnp.concatenate([y, *history] + ([] if inputs is None else [inputs]))


def _monomial(x: Array, powers: tuple[int, ...]) -> Array:
    factors = [x[i] for i, power in enumerate(powers) for _ in range(power)]
    return jnp.prod(jnp.stack(factors)) if factors else jnp.ones((), x.dtype)


def _named(powers: Sequence[int], variables: Sequence[str]) -> str:
    raised = {1: "", 2: "²", 3: "³"}
    return "".join(
        f" {variables[i]}{raised.get(p, f'^{p}')}" for i, p in enumerate(powers) if p > 0
    )


def names_of(delays: Sequence[Delay], states: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """How the variables of a field are written."""
    names = list(states)
    for delay in delays:
        names += [f"{state}({_when(delay)})" for state in states]
    return names + list(inputs)


def _when(delay: Delay) -> str:
    if isinstance(delay, Hold) and delay.times is not None:
        return f"t_k−{delay.lag}" if delay.lag else "t_k"
    tau = f"{float(delay.tau):.4g}"  # pyright: ignore[reportArgumentType]
    if isinstance(delay, Lag):
        return f"t−{tau}"
    held = "⌊t⌋" if tau == "1" else f"⌊t/{tau}⌋·{tau}"
    return f"{held}−{delay.lag * float(tau):.4g}" if delay.lag else held


class Equation(eqx.Module):
    """What is trained: a field, and how far learned periods have moved."""

    field: Callable
    shifts: Float[Array, " periods"]


# A term that moves a state by less than this share of what the largest one does is a rest: what
# interpolation between samples called for, and the equation itself does not.
REST = 1e-5


def without_small(
    members: Sequence[Equation], sizes: Float[np.ndarray, "terms states"], least: float
) -> list[Equation]:
    """The library equations of an ensemble without the terms that move a state by less than the
    share `least` of what the largest one does; `sizes` is how much each term moves each state where
    its coefficient is 1."""
    fields: list[Any] = [member.field for member in members]
    share = np.max([np.abs(np.asarray(f.coefficients)) for f in fields], axis=0) * sizes
    used = np.array(fields[0].used) & (share > least * share.max(axis=0))
    kept = np.flatnonzero(used.any(axis=1)) if used.any() else np.arange(1)
    flags = tuple(tuple(bool(u) for u in used[j]) for j in kept)
    powers = tuple(fields[0].powers[j] for j in kept)
    smaller = [Polynomial(field.coefficients[kept], flags, powers) for field in fields]
    return [Equation(f, m.shifts) for f, m in zip(smaller, members, strict=True)]


class Setting(NamedTuple):
    """What stays as it is in training. `periods` are those that the scan has found for the `Learn`s
    among `delays`; `intervals` and `steps` are those of `solve` over a window."""

    delays: list[Delay]
    periods: tuple[float, ...]
    intervals: int | None
    steps: int
    solver: diffrax.AbstractSolver
    inputs: bool

    def learned(self, equation: Equation) -> list[Delay]:
        """The delays with their periods as they are now."""
        moved = 1 + PERIOD_ROOM * jnp.tanh(equation.shifts)
        return with_periods(self.delays, [p * m for p, m in zip(self.periods, moved, strict=True)])


class Row(NamedTuple):
    """A window as arrays: its samples, which of them count, and the samples before it."""

    ts: Float[Any, " samples"]
    ys: Float[Any, "samples states"]
    weights: Float[Any, "samples states"]
    us: Float[Any, "samples inputs"]
    past_ts: Float[Any, " past"]
    past_ys: Float[Any, "past states"]


class Past(eqx.Module):
    """Straight lines between points; the first and the last value hold beyond them."""

    ts: Float[Array, " points"]
    ys: Float[Array, "points states"]

    def __call__(self, t: RealScalar) -> Float[Array, " states"]:
        return jax.vmap(jnp.interp, (None, None, 1))(t, self.ts, self.ys)


def make_rows(
    trajectories: Sequence[Trajectory], windows: Sequence[Window], delays: Sequence[Delay]
) -> Row:
    """One row a window, stacked. Shorter ones are filled up with samples that do not count."""
    length = max(w.last - w.first for w in windows) + 1
    reach = reach_of(delays) * (1 + PERIOD_ROOM)
    pasts = [past_of(_until(trajectories[w.trajectory], w.first, reach), delays) for w in windows]
    past = max(len(ts) for ts, _ in pasts)
    rows = []
    for w, (ts, ys) in zip(windows, pasts, strict=True):
        t = trajectories[w.trajectory]
        here, more = slice(w.first, w.last + 1), length - (w.last + 1 - w.first)
        ends, lead = [(0, more), (0, 0)], past - len(ts)
        weights = (~np.isnan(t.ys[here])).astype(float)
        weights[0] = 0.0  # it starts there
        step = 0.1 * (t.ts[w.last] - t.ts[w.last - 1])
        rows.append(
            Row(
                np.concatenate([t.ts[here], t.ts[w.last] + step * np.arange(1, more + 1)]),
                np.pad(t.filled[here], ends, mode="edge"),
                np.pad(weights, ends),
                np.pad(t.us[here], ends, mode="edge"),
                np.concatenate([ts[0] - np.arange(lead, 0, -1.0), ts]),
                np.pad(ys, [(lead, 0), (0, 0)], mode="edge"),
            )
        )
    return Row(*(np.stack(part) for part in zip(*rows, strict=True)))


def _until(trajectory: Trajectory, last: int, reach: float) -> Trajectory:
    """What is known at sample `last` of the time up to `reach` before it: nothing that comes
    later may enter a prediction."""
    ts = trajectory.ts
    first = max(int(np.searchsorted(ts, ts[last] - reach)) - 8, 0)  # some more, to interpolate
    measured = np.flatnonzero(~np.isnan(trajectory.ys[: last + 1]).all(axis=1))
    first = min(first, int(measured[-POINTS:][0])) if len(measured) else first
    part = slice(first, last + 1)
    ys = trajectory.ys[part]
    return Trajectory(ts[part], ys, trajectory.us[part], _continued(trajectory, part))


def _continued(trajectory: Trajectory, part: slice) -> Float[np.ndarray, "points states"]:
    """Values that are missing at the end follow the line of the last two."""
    ts, ys = trajectory.ts[part], trajectory.ys[part]
    if np.isnan(ys).all(axis=0).any():
        return trajectory.filled[part]
    found = filled(ts, ys)
    for column, closed in zip(ys.T, found.T, strict=True):
        known = np.flatnonzero(~np.isnan(column))
        if known[-1] < len(ts) - 1 and len(known) > 1:
            a, b = known[-2:]
            slope = (column[b] - column[a]) / (ts[b] - ts[a])
            closed[b + 1 :] = column[b] + slope * (ts[b + 1 :] - ts[b])
    return found


def past_of(
    trajectory: Trajectory, delays: Sequence[Delay]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "points states"]]:
    """Points between which straight lines do: the samples, three between each two, the knots."""
    ts = trajectory.ts
    if len(ts) == 1 or not delays:
        return ts, trajectory.filled
    kinks = kinks_of(delays, ts[0], ts[-1])
    between = ts[:-1, None] + np.diff(ts)[:, None] * np.array([0.25, 0.5, 0.75])
    points = np.unique(np.concatenate([ts, between.ravel(), kinks]))
    return points, interpolated(trajectory, points, kinks)


def intervals_over(
    delays: Sequence[Delay], windows: Sequence[tuple[float, float]], learned: bool
) -> int | None:
    """Enough for every window; None where no delay has a period. While periods are `learned` these
    are the shortest, and longer ones may have their instants anywhere."""
    periodic = [d for d in delays if isinstance(d, Lag) or d.times is None]
    if not periodic:
        return None
    numbers = [1]
    for delay in periodic:
        tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
        if learned:
            numbers += [int(np.ceil((b - a) / tau)) + 1 for a, b in windows]
        else:
            numbers += [int(np.floor(b / tau) - np.floor(a / tau)) + 1 for a, b in windows]
    return max(numbers)


def steps_between(delays: Sequence[Delay], gap: float, span: float, inputs: bool) -> int:
    """Equal steps in each interval: one for every two samples, which follow what happens."""
    if inputs:
        return 2
    taus = [float(d.tau) for d in delays if isinstance(d, Lag) or d.times is None]  # pyright: ignore
    if not taus and delays:
        kinks = kinks_of(delays, -np.inf, np.inf)
        taus = [float(np.diff(kinks).max(initial=gap))]
    longest = min([*taus, span])
    return int(np.clip(np.ceil(longest / (2 * gap)), *((2, 64) if taus else (4, 4096))))


def follow(equation: Equation, setting: Setting, row: Row) -> Float[Array, "samples states"]:
    """The states at the times of the row, started from its first sample."""
    past = Past(row.past_ts, row.past_ys)
    return followed(equation, setting, row.ts, past, row.us)


def followed(
    equation: Equation, setting: Setting, ts: Any, past: Callable, us: Any
) -> Float[Array, "samples states"]:
    field, delays = equation.field, setting.learned(equation)
    y0: Any = past if delays else past(ts[0])
    if setting.inputs:
        field, delays, y0 = _with_inputs(field, delays, ts, us, past)
    elif not delays:
        field = _without_past(field)
    solution = solve(
        field,
        ts[0],
        ts[-1],
        y0,
        delays=delays,
        solver=setting.solver,
        steps=setting.steps,
        intervals=setting.intervals,
        saveat=diffrax.SaveAt(ts=ts),
        gradient=Direct(),
        throw=False,
    )
    ys: Any = solution.ys
    return ys[0] if setting.inputs else ys


def _without_past(field: Callable) -> Callable:
    return lambda t, y, args: field(t, y, None, history=())


def _with_inputs(field: Callable, delays: Sequence[Delay], ts: Any, us: Any, past: Callable):
    """Inputs jump at the samples, so these become breakpoints: a hold at their times. What it holds
    is the clock, from which follows which input is on, also at the very end of an interval."""

    def with_clock(t, state, args, *, history):
        y, clock = state
        *looked_back, (_, since) = history
        inputs = us[jnp.argmin(jnp.abs(ts - since))]
        slope = field(t, y, inputs, history=tuple(z for z, _ in looked_back))
        return slope, 1 + 0 * clock

    return with_clock, [*delays, Hold(times=ts)], lambda t: (past(t), jnp.asarray(t, past(t).dtype))
