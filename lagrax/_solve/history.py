"""The solution so far: the states at the last breakpoints, the dense output, and reading them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

State = PyTree[Shaped[Array, "..."]]


class Ring(eqx.Module):
    """The states at the last breakpoints, the newest first: one by one where their ages are known
    when traced, so that looking one up copies nothing, else stacked."""

    states: PyTree
    stacked: bool = eqx.field(static=True)

    def __getitem__(self, age: int | Array) -> PyTree:
        if self.stacked:
            return jax.tree.map(lambda x: x[age], self.states)
        return self.states[age]

    def pushed(self, y: PyTree) -> "Ring":
        if self.stacked:
            shift = lambda y, r: jnp.concatenate([y[None], r[:-1]])
            return Ring(jax.tree.map(shift, y, self.states), True)
        return Ring([y, *self.states[:-1]], False)


class Records(eqx.Module):
    """The solver's dense output over consecutive intervals, each of up to `steps` steps.

    The intervals are in the order of time from row `oldest` on, and from the last row on to the
    first. Unused places at the end of an interval have infinite `ts`.
    """

    ts: Float[Array, "intervals steps_plus_1"]
    infos: PyTree[Shaped[Array, "intervals steps ..."]]
    interpolation: Callable = eqx.field(static=True)
    oldest: Int[Array, ""] | int = 0

    @property
    def last_start(self) -> Real[Array, ""]:
        return self.ts[self._rows(-1), 0]

    def pushed(self, record: tuple[Array, PyTree]) -> "Records":
        """With the record of one more interval in place of the oldest, which is cheaper than to
        move all the others up."""
        put = lambda rows, new: rows.at[self.oldest].set(new)
        ts, infos = jax.tree.map(put, (self.ts, self.infos), record)
        return Records(ts, infos, self.interpolation, self._rows(1))

    def _rows(self, number: Any) -> Any:
        """Where the intervals with these numbers are, 0 the oldest."""
        return (self.oldest + number) % self.ts.shape[0]

    def evaluate(
        self,
        t: Real[Array, ""],
        right: Bool[Array, ""] | bool = False,
        ahead: Real[Array, ""] | None = None,
        tau: Real[Array, ""] | float = 0.0,
    ) -> PyTree[Array]:
        """The state at t. At a breakpoint, where the solution has a kink, the earlier interval
        answers (so that one of no length never does), or with `right` the later one. With `ahead`
        that at t + ahead, as the step in which t lies has it. `tau` is the lag that was subtracted
        to get t, if any: t is as coarse as the times that it was computed from."""
        # Not t itself, which rounding may have put on the other side of the breakpoint it is.
        rounding = 8 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), tau)
        starts = self.ts[self._rows(jnp.arange(1, self.ts.shape[0])), 0]
        earlier = jnp.searchsorted(starts, t - rounding, side="left")
        later = jnp.searchsorted(starts, t + rounding, side="right")
        row = self._rows(jnp.where(right, later, earlier))
        step = self._step(row, t)
        info = jax.tree.map(lambda x: x[row, step], self.infos)
        t0, t1 = self.ts[row, step], self.ts[row, step + 1]
        time = t if ahead is None else t + ahead
        return self.interpolation(t0=t0, t1=t1, **info).evaluate(time)

    def _step(self, row: Int[Array, ""], t: Real[Array, ""]) -> Int[Array, ""]:
        """The step of an interval that t lies in; the first or the last one, where it lies outside.
        By bisection: `jnp.searchsorted` takes a copy of the row, with its room for many steps."""
        steps = self.ts.shape[1] - 1
        ts, t = lax.stop_gradient((self.ts, t))

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            ahead = (ts[row, middle] <= t) & jnp.isfinite(ts[row, middle + 1])
            return jnp.where(ahead, middle, low), jnp.where(ahead, high, middle)

        bounds = jnp.asarray(0), jnp.asarray(steps)
        return lax.fori_loop(0, (steps - 1).bit_length(), halve, bounds)[0]


class Past(eqx.Module):
    """The solution before the present interval, for lags: the initial function, then records
    (None where no lag reaches beyond t0)."""

    taus: list[Real[Array, ""]]
    initial: Callable
    t0: Real[Array, ""]
    records: Records | None

    def __call__(
        self, t: Real[Array, ""], right: Bool[Array, ""], ahead: Real[Array, ""] | None = None
    ) -> list[State]:
        """The lagged states at time t. `right` says that t begins an interval, so that of the two
        derivatives at a kink, or the two values where the past jumps to `y0`, the right-hand one is
        meant. With `ahead` they are those at t + ahead of what was known at t: some implicit
        methods look beyond the end of a step, where there may be a kink or nothing yet."""
        return [self._at(t - tau, tau, right, ahead) for tau in self.taus]

    def _at(self, t: Real[Array, ""], tau: Real[Array, ""], right, ahead) -> State:
        eps = jnp.finfo(t.dtype).eps * lax.stop_gradient(jnp.maximum(tau, jnp.abs(self.t0)))
        # Rounding alone must not decide on which side of t0 the initial function is asked: it is
        # asked at t0, or just before, where the past has not yet jumped to y0.
        near = jnp.abs(t - self.t0) <= 32 * eps
        t0 = lax.stop_gradient(self.t0)
        beside = jnp.where(right, t0, t0 - eps)
        time = jnp.where(near, beside + (t - lax.stop_gradient(t)), t)
        initial = self.initial
        if ahead is not None:
            initial = lambda t: extrapolate(self.initial, t, ahead)
        if self.records is None:
            return initial(time)
        first = self.records.last_start < self.t0
        early = first | jnp.where(near, ~right, t < self.t0)
        before = initial(jnp.where(early, time, self.t0))
        after = self.records.evaluate(jnp.where(early, self.t0, t), right, ahead, tau)
        return jax.tree.map(lambda b, a: jnp.where(early, b, a), before, after)


# Where a function is read to extrapolate it by one, and its Lagrange weights there. Kvaerno5 looks
# 0.23 of a step ahead, so that the earliest place is still within the step.
NODES = np.array([0.0, -0.9, -1.8, -2.7, -3.6])
WEIGHTS = np.array(
    [np.prod((1 - np.delete(NODES, i)) / (x - np.delete(NODES, i))) for i, x in enumerate(NODES)]
)


def extrapolate(function: Callable, t: Real[Array, ""], ahead: Real[Array, ""]) -> State:
    """`function` at t + ahead, by the polynomial of degree 4 through its values at t and before:
    beyond t it need not go on as it was."""
    values = jax.vmap(function)(t + ahead * NODES.astype(t.dtype))

    def leaf(x):
        return jnp.where(ahead > 0, jnp.tensordot(WEIGHTS.astype(x.dtype), x, axes=1), x[0])

    return jax.tree.map(leaf, values)
