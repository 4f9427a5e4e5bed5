"""One interval: what the solution over it depends on, and the field that is integrated there.

Between two breakpoints the held states are constants, so the equation is an ordinary one.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree, Real

from .field import Field
from .history import Past, State, extrapolate

VectorField = Callable[..., State]


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
