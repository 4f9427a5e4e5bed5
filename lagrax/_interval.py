"""One interval: what the solution over it depends on, and the field that is integrated there.

Between two breakpoints the held states are constants, so the equation is an ordinary one.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree, Real, Shaped

from ._field import Field
from ._solution import Records

State = PyTree[Shaped[Array, "..."]]
VectorField = Callable[..., State]


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


class Interval(eqx.Module):
    """All that the solution over one interval depends on: what gradients are taken to.

    `history` has one entry for each delay, None where a lag stands. `save_at` are the places to
    save, as fractions of the interval, sorted.
    """

    field: Field
    args: PyTree
    y: State
    history: list[Any]
    past: Past | None
    start: Real[Array, ""]
    length: Real[Array, ""]
    save_at: Float[Array, " saves"]

    @property
    def end(self) -> Real[Array, ""]:
        return self.start + self.length

    def vector_field(self, looks_ahead: bool = False) -> VectorField:
        """f(t, y, lagged=None); `lagged` are the lagged states, where they are known already.
        `looks_ahead` says that t may lie beyond the end."""
        past = self.past
        if past is None:
            prepared = self.field.prepare(tuple(self.history))
            return lambda t, y, lagged=None: self._evaluate(t, y, prepared, looks_ahead)

        def f(t, y, lagged=None):
            if lagged is None:
                known = jnp.where(t > self.end, self.end, t) if looks_ahead else t
                lagged = past(known, t <= self.start, t - known if looks_ahead else None)
            entries = iter(lagged)
            history = tuple(next(entries) if h is None else h for h in self.history)
            return self._evaluate(t, y, self.field.prepare(history), looks_ahead)

        return f

    def _evaluate(self, t, y, prepared, looks_ahead: bool) -> State:
        """The field at time t; beyond the end, where it may be another one, extrapolated."""
        evaluate = lambda t: self.field.evaluate(self.inside(t), y, self.args, prepared)
        if not (looks_ahead and self.field.may_jump):
            return evaluate(t)
        return lax.cond(
            t > self.end + self._rounding(t.dtype),
            lambda: extrapolate(evaluate, self.end, t - self.end),
            lambda: evaluate(t),
        )

    def inside(self, t: Real[Array, ""]) -> Real[Array, ""]:
        """A time at an end of the interval, moved into it by a few roundings: a field that changes
        at breakpoints by itself, as u[floor(t / tau)] does, is then that of this interval."""
        if not self.field.may_jump:
            return t
        rounding = self._rounding(t.dtype)
        start, end, now = lax.stop_gradient((self.start, self.end, t))
        moved = jnp.where(now - start <= rounding, start + rounding, now)
        moved = jnp.where(jnp.abs(now - end) <= rounding, end - rounding, moved)
        return moved + (t - now)

    def _rounding(self, dtype: Any) -> Real[Array, ""]:
        """By how much rounding may move a time of this interval. Relative to the larger end: one
        of them may be 0."""
        ends = lax.stop_gradient((self.start, self.end))
        return 4 * jnp.finfo(dtype).eps * jnp.maximum(*map(jnp.abs, ends))


class Leg(eqx.Module):
    """The solution over one interval: its end, the saved states, the dense output if wanted."""

    y: State
    saves: State | None
    record: tuple[Float[Array, " steps_plus_1"], PyTree] | None
