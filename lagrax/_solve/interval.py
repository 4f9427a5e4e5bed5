"""Everything that the solution in one interval depends on, and the vector field there.

Between two breakpoints the held states are constants, so the equation is an ordinary one.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree, Real

from .field import Field
from .function_lags import FunctionLags
from .history import LagReader, extrapolate
from .parts import record_parts
from .solution import RESULTS
from .tape import Piece, Recorded, State, Tape

VectorField = Callable[..., State]


class Interval(eqx.Module):
    """One interval and everything that its solution depends on, which gradients are taken to.

    `history` has one entry for each delay, None for a lag. `lags` reads those that are known for
    each time, `function_lags` those that are functions of time and state. `save_at` holds the
    places to save, as sorted fractions of the interval.
    """

    field: Field
    args: PyTree
    y: State
    history: list[Any]
    lags: LagReader | None
    start: Real[Array, ""]
    length: Real[Array, ""]
    save_at: Float[Array, " saves"]
    function_lags: FunctionLags | None = None

    @property
    def reads_tape(self) -> bool:
        """Whether any lag reads the tape."""
        return self.function_lags is not None or (self.lags is not None and self.lags.reaches)

    @property
    def end(self) -> Real[Array, ""]:
        """The time at which the interval ends."""
        return self.start + self.length

    def with_tape(
        self,
        tape: Tape | None,
        limit: Any = None,
        segments: Array | None = None,
        own: Piece | None = None,
    ) -> "Interval":
        """The interval whose lags read this tape, if they read any.

        Lags that are functions read steps before number `limit`, `segments` of these, and the step
        that is being taken, of which `own` is an approximation (see `FunctionLags`).
        """
        lags, functions = self.lags, self.function_lags
        if lags is not None and lags.reaches:
            lags = dataclasses.replace(lags, tape=tape)
        if functions is not None:
            functions = dataclasses.replace(
                functions, tape=tape, limit=limit, segments=segments, own=own
            )
        return dataclasses.replace(self, lags=lags, function_lags=functions)

    def record(self, coefficients: PyTree, tape: Tape) -> Recorded:
        """What a tape like this one keeps of one step, given the polynomial of the state."""
        entries = [] if self.lags is None or not self.lags.reaches else self.lags.entries
        return record_parts(entries, coefficients, tape.powers)

    def vector_field(
        self, looks_ahead: bool = False, known: Iterator | None = None, found: list | None = None
    ) -> VectorField:
        """Makes f(t, y, lagged=None).

        `lagged` are the entries of lags if they are read already. `looks_ahead` says that t may lie
        beyond the end of the interval. `known` gives the part of the tape that lags read which are
        functions, for each evaluation in turn, and `found` is a list to which that is appended.
        """
        lags, functions = self.lags, self.function_lags
        if lags is None and functions is None:
            prepared = self.field.prepare(tuple(self.history))
            return lambda t, y, lagged=None: self._evaluate(t, y, prepared, looks_ahead)

        def f(t, y, lagged=None):
            history, right = list(self.history), t <= self.start
            if functions is not None:
                piece = None if known is None else next(known)
                states, reads = functions.read(t, y, self.args, right, piece)
                if found is not None:
                    found.append(reads)
                for place, state in zip(functions.places, states, strict=True):
                    history[place] = state
            if lags is not None:
                if lagged is None:
                    inside = jnp.where(t > self.end, self.end, t) if looks_ahead else t
                    lagged = lags.read(inside, right, t - inside if looks_ahead else None)
                entries = iter(lags.complete(lagged, y))
                history = [next(entries) if h is None else h for h in history]
            return self._evaluate(t, y, self.field.prepare(tuple(history)), looks_ahead)

        return f

    def _evaluate(self, t, y, prepared, looks_ahead: bool) -> State:
        """The field at time t; beyond the end, where it may change, it is extrapolated."""
        evaluate = lambda t: self.field.evaluate(self.move_inside(t), y, self.args, prepared)
        if not (looks_ahead and self.field.may_jump):
            return evaluate(t)
        return lax.cond(
            t > self.end + self._rounding(t.dtype),
            lambda: extrapolate(evaluate, self.end, t - self.end),
            lambda: evaluate(t),
        )

    def move_inside(self, t: Real[Array, ""]) -> Real[Array, ""]:
        """Moves a time at an end of the interval inside by a few roundings.

        A field that changes at breakpoints by itself, such as u[floor(t / tau)], is then evaluated
        as it is within this interval.
        """
        if not self.field.may_jump:
            return t
        rounding = self._rounding(t.dtype)
        start, end, now = lax.stop_gradient((self.start, self.end, t))
        moved = jnp.where(now - start <= rounding, start + rounding, now)
        moved = jnp.where(jnp.abs(now - end) <= rounding, end - rounding, moved)
        return moved + (t - now)

    def _rounding(self, dtype: Any) -> Real[Array, ""]:
        """The largest rounding of a time in this interval.

        It is relative to the larger end, since one of the two may be 0.
        """
        ends = lax.stop_gradient((self.start, self.end))
        return 4 * jnp.finfo(dtype).eps * jnp.maximum(*map(jnp.abs, ends))


class IntervalSolution(eqx.Module):
    """The final state of one interval and the states saved in it, or None if there are none."""

    y1: State
    saves: State | None


class Outcome(NamedTuple):
    """The result of stepping through one interval, and the time that was reached.

    `taus` are the lags there that are functions, or None.
    """

    result: RESULTS
    t: Array
    taus: Array | None = None
