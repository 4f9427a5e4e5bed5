"""The solution so far: states at the last knots, dense output, and how lags read it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

State = PyTree[Shaped[Array, "..."]]


class KnotBuffer(eqx.Module):
    """The states at the last knots, newest first.

    They are separate variables if all ages are known when traced, so that a read copies nothing.
    Otherwise they are stacked.
    """

    states: PyTree
    stacked: bool = eqx.field(static=True)

    def __getitem__(self, age: int | Array) -> PyTree:
        if self.stacked:
            return jax.tree.map(lambda x: x[age], self.states)
        return self.states[age]

    def push(self, y: PyTree) -> "KnotBuffer":
        """The buffer with one more knot in place of the oldest."""
        if self.stacked:
            shift = lambda y, r: jnp.concatenate([y[None], r[:-1]])
            return KnotBuffer(jax.tree.map(shift, y, self.states), True)
        return KnotBuffer([y, *self.states[:-1]], False)


def make_knot_buffer(y0: PyTree, size: int, stacked: bool) -> KnotBuffer:
    """A buffer filled with the state at t0."""
    if not stacked:
        return KnotBuffer([y0] * size, False)
    repeat = lambda x: jnp.broadcast_to(x, (size, *x.shape))
    return KnotBuffer(jax.tree.map(repeat, y0), True)


class DenseOutput(eqx.Module):
    """The solver's dense output over consecutive intervals, with room for `steps` steps in each.

    Rows are intervals, in the order of time from row `oldest` to the last one and on from the
    first. Unused places at the end of a row have infinite `ts`.
    """

    ts: Float[Array, "intervals steps_plus_1"]
    infos: PyTree[Shaped[Array, "intervals steps ..."]]
    interpolation: Callable = eqx.field(static=True)
    oldest: Int[Array, ""] | int = 0

    @property
    def last_start(self) -> Real[Array, ""]:
        """The start of the last interval."""
        return self.ts[self._row(-1), 0]

    def push(self, steps: tuple[Array, PyTree]) -> "DenseOutput":
        """The output with one more interval in place of the oldest.

        Overwriting one row is cheaper than moving all the others.
        """
        put = lambda rows, new: rows.at[self.oldest].set(new)
        ts, infos = jax.tree.map(put, (self.ts, self.infos), steps)
        return DenseOutput(ts, infos, self.interpolation, self._row(1))

    def _row(self, number: Any) -> Any:
        """The row of an interval by its number, which is 0 for the oldest."""
        return (self.oldest + number) % self.ts.shape[0]

    def evaluate(
        self,
        t: Real[Array, ""],
        right: Bool[Array, ""] | bool = False,
        ahead: Real[Array, ""] | None = None,
        tau: Real[Array, ""] | float = 0.0,
    ) -> PyTree[Array]:
        """The state at time t, or at t + ahead by the polynomial of the step that contains t.

        At a breakpoint, where the solution has a kink, the earlier interval is read, which is never
        one of no length; with `right` the later one is read. `tau` is the lag that was subtracted
        to get t, if any: t carries the rounding of the times that it was computed from.
        """
        # Rounding may have moved t across the breakpoint that it is meant to be.
        rounding = 8 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), tau)
        starts = self.ts[self._row(jnp.arange(1, self.ts.shape[0])), 0]
        earlier = jnp.searchsorted(starts, t - rounding, side="left")
        later = jnp.searchsorted(starts, t + rounding, side="right")
        row = self._row(jnp.where(right, later, earlier))
        step = self._step(row, t)
        info = jax.tree.map(lambda x: x[row, step], self.infos)
        t0, t1 = self.ts[row, step], self.ts[row, step + 1]
        time = t if ahead is None else t + ahead
        return self.interpolation(t0=t0, t1=t1, **info).evaluate(time)

    def _step(self, row: Int[Array, ""], t: Real[Array, ""]) -> Int[Array, ""]:
        """The number of the step in a row that contains t, or is closest to it.

        By bisection, since `jnp.searchsorted` would copy the row with its room for many steps.
        """
        steps = self.ts.shape[1] - 1
        ts, t = lax.stop_gradient((self.ts, t))

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            after = (ts[row, middle] <= t) & jnp.isfinite(ts[row, middle + 1])
            return jnp.where(after, middle, low), jnp.where(after, high, middle)

        bounds = jnp.asarray(0), jnp.asarray(steps)
        return lax.fori_loop(0, (steps - 1).bit_length(), halve, bounds)[0]


class LagReader(eqx.Module):
    """Reads lagged states from the initial function and the dense output.

    `dense` is None if no lag reaches a time after t0.
    """

    taus: list[Real[Array, ""]]
    initial: Callable
    t0: Real[Array, ""]
    dense: DenseOutput | None

    def read(
        self, t: Real[Array, ""], right: Bool[Array, ""], ahead: Real[Array, ""] | None = None
    ) -> list[State]:
        """The lagged states at time t, one for each lag.

        `right` says that t begins an interval. The right-hand one is then meant, of the two
        derivatives at a kink and of the two values where the past jumps to `y0`.

        With `ahead` the states are those at t + ahead, extrapolated from time t. Some implicit
        methods look beyond the end of a step, where a kink may lie or nothing is known yet.
        """
        return [self._read_one(t - tau, tau, right, ahead) for tau in self.taus]

    def _read_one(self, t: Real[Array, ""], tau: Real[Array, ""], right, ahead) -> State:
        eps = jnp.finfo(t.dtype).eps * lax.stop_gradient(jnp.maximum(tau, jnp.abs(self.t0)))
        # Rounding must not decide on which side of t0 the initial function is evaluated: at t0, or
        # just before, where the past has not jumped to y0 yet.
        near = jnp.abs(t - self.t0) <= 32 * eps
        t0 = lax.stop_gradient(self.t0)
        beside = jnp.where(right, t0, t0 - eps)
        time = jnp.where(near, beside + (t - lax.stop_gradient(t)), t)
        initial = self.initial
        if ahead is not None:
            initial = lambda t: extrapolate(self.initial, t, ahead)
        if self.dense is None:
            return initial(time)
        first = self.dense.last_start < self.t0
        early = first | jnp.where(near, ~right, t < self.t0)
        before = initial(jnp.where(early, time, self.t0))
        after = self.dense.evaluate(jnp.where(early, self.t0, t), right, ahead, tau)
        return jax.tree.map(lambda b, a: jnp.where(early, b, a), before, after)


# Places at which a function is evaluated to extrapolate it by one, and their Lagrange weights.
# Kvaerno5 looks 0.23 of a step ahead, so that the earliest place is still within the step.
NODES = np.array([0.0, -0.9, -1.8, -2.7, -3.6])
WEIGHTS = np.array(
    [np.prod((1 - np.delete(NODES, i)) / (x - np.delete(NODES, i))) for i, x in enumerate(NODES)]
)


def extrapolate(function: Callable, t: Real[Array, ""], ahead: Real[Array, ""]) -> State:
    """Extrapolates `function` to t + ahead by a polynomial of degree 4 through values up to t.

    The function itself may change at t.
    """
    values = jax.vmap(function)(t + ahead * NODES.astype(t.dtype))

    def leaf(x):
        return jnp.where(ahead > 0, jnp.tensordot(WEIGHTS.astype(x.dtype), x, axes=1), x[0])

    return jax.tree.map(leaf, values)
