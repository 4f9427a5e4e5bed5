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
        rounding = 32 * jnp.finfo(t.dtype).eps * jnp.maximum(tau, jnp.abs(self.t0))
        # Rounding alone must not decide on which side of t0 the initial function is asked.
        near = jnp.abs(t - self.t0) <= rounding
        time = jnp.where(near, self._beside_t0(right) + (t - lax.stop_gradient(t)), t)
        initial = self.initial if ahead is None else lambda t: self._continued(t, ahead)
        if self.records is None:
            return initial(time)
        first = self.records.last_start < self.t0
        early = first | jnp.where(near, ~right, t < self.t0)
        before = initial(jnp.where(early, time, self.t0))
        after = self.records.evaluate(jnp.where(early, self.t0, t), right, ahead, tau)
        return jax.tree.map(lambda b, a: jnp.where(early, b, a), before, after)

    def _continued(self, t: Real[Array, ""], ahead: Real[Array, ""]) -> State:
        """The initial function at t + ahead, as the polynomial of degree 4 through it at t and
        before has it: at t0 and beyond it need not be what it was."""
        weights = np.array([5, -10, 10, -5, 1])
        values = jax.vmap(self.initial)(t - ahead * np.arange(len(weights)))

        def leaf(x):
            return jnp.where(ahead > 0, jnp.tensordot(weights.astype(x.dtype), x, axes=1), x[0])

        return jax.tree.map(leaf, values)

    def _beside_t0(self, right: Bool[Array, ""]) -> Real[Array, ""]:
        """t0, or just before it, where the past has not yet jumped to y0."""
        t0, numbers = lax.stop_gradient(self.t0), jnp.finfo(self.t0.dtype)
        return jnp.where(right, t0, t0 - jnp.maximum(numbers.eps * jnp.abs(t0), numbers.tiny))


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
            evaluate = self.field.evaluate
            return lambda t, y, lagged=None: evaluate(self.inside(t), y, self.args, prepared)

        def f(t, y, lagged=None):
            if lagged is None:
                known = jnp.where(t > self.end, self.end, t) if looks_ahead else t
                lagged = past(known, t <= self.start, t - known if looks_ahead else None)
            entries = iter(lagged)
            history = tuple(next(entries) if h is None else h for h in self.history)
            return self.field.evaluate(self.inside(t), y, self.args, self.field.prepare(history))

        return f

    def inside(self, t: Real[Array, ""]) -> Real[Array, ""]:
        """A time at an end of the interval, moved into it by a few roundings: a field that changes
        at breakpoints by itself, as u[floor(t / tau)] does, is then that of this interval."""
        if not self.history or not self.field.uses_time:
            return t
        eps, tiny = jnp.finfo(t.dtype).eps, jnp.finfo(t.dtype).tiny
        start, end, now = lax.stop_gradient((self.start, self.end, t))
        rounding = 4 * eps * jnp.maximum(jnp.abs(start), jnp.abs(end))
        moved = jnp.where(now - start <= rounding, start + 4 * eps * jnp.abs(start), now)
        before_end = end - jnp.maximum(4 * eps * jnp.abs(end), tiny)
        moved = jnp.where(jnp.abs(now - end) <= rounding, before_end, moved)
        return moved + (t - now)


class Leg(eqx.Module):
    """The solution over one interval: its end, the saved states, the dense output if wanted."""

    y: State
    saves: State | None
    record: tuple[Float[Array, " steps_plus_1"], PyTree] | None
