"""Ends steps where a lag passes a breakpoint.

The solution has a kink at t0, at the instants of holds, inputs and jumps, and again wherever a
delayed time t - tau(t, y) passes a kink. If tau depends on the state, these times are known only
once the solution is there. A step that would pass one is taken again up to there. In each step a
lag reads one side of the kink alone, so that the step sees a smooth equation and keeps its order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree, Real

from .function_lags import FunctionLags
from .tape import Piece

# A crossing is looked for at so many places of a step, and then refined so often between two of
# them. Together with a secant at the end, that gives it to 1e-9 of the step.
PLACES = 8
REFINEMENTS = 4
# A step ends close enough to a crossing if it is within this fraction of its length. An error in
# the place of a kink enters the solution with its square.
CLOSE = 1e-6
# A step that is taken again may become longer by this factor.
LONGEST = 1.001
# A crossing is known well enough after it was located so often.
MOST_RETAKES = 6


# The level of a breakpoint that is none.
SMOOTH = 10**6


class Passage(NamedTuple):
    """Where lags pass breakpoints in a step that was tried.

    - `retake`: whether the step should be taken again, up to time `end`.
    - `passes`: whether a lag is at a breakpoint at the end of the step, so that the solution has a
      kink there, of this `level` (see `Breakpoints`).
    - `segments`: the stretches that lags read in the next step.
    """

    retake: Bool[Array, ""]
    end: Real[Array, ""]
    passes: Bool[Array, ""]
    level: Int[Array, ""]
    segments: Int[Array, " lags"]

    def limit(self, accepted: Bool[Array, ""], t_next: Real[Array, ""]) -> "Passage":
        """Takes the step again only if the controller accepts it or asks for no shorter one."""
        return self._replace(retake=self.retake & (accepted | (self.end <= t_next)))


def find_passage(
    lags: FunctionLags, args: PyTree, t: Array, h: Array, coefficients: PyTree, retakes: Array
) -> Passage:
    """Finds the first crossing in a step from t, of which this is the dense output.

    `retakes` says how often the step was taken again already. `lags` have read the tape for it.
    """
    assert lags.tape is not None
    assert lags.segments is not None
    breakpoints, ts, segments = lags.tape.breakpoints, lags.tape.ts, lags.segments
    assert breakpoints is not None
    inside = segments < breakpoints.count
    low = jnp.where(segments > 0, ts[breakpoints.steps[jnp.maximum(segments - 1, 0)]], -jnp.inf)
    high = jnp.where(inside, ts[breakpoints.steps[segments]], jnp.inf)
    step = Piece(t, t + h, coefficients)

    def find_times(place: Array) -> Array:
        now = t + place * h
        return lags.find_times(now, step.evaluate(now), args)

    begin, end = find_times(jnp.zeros_like(t)), find_times(jnp.ones_like(t))
    rounding = 16 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t + h), jnp.abs(begin))
    # The last step may have ended a little before or after the crossing.
    off = jnp.maximum(0, jnp.maximum(begin - high, low - begin))
    slack = rounding + 2 * off

    def measure(place: Array) -> Array:
        """How far the first lag is outside of its stretch."""
        times = find_times(place)
        return jnp.max(jnp.maximum(times - high, low - times) - slack)

    place = _find_first_root(measure, t.dtype)
    moved = end - begin
    margin = 4 * (CLOSE * jnp.abs(moved) + rounding)
    up = (moved > 0) & (end >= high - margin)
    down = (moved < 0) & (end <= low + margin)
    close = CLOSE + 16 * jnp.finfo(t.dtype).eps * jnp.abs(t + h) / h
    retake = (place < 1 - close) | ((place > 1 + close) & (place <= LONGEST) & (retakes > 0))
    passed = jnp.where(up, segments, jnp.maximum(segments - 1, 0))
    levels = jnp.where(up | down, breakpoints.levels[passed] + 1, SMOOTH)
    return Passage(
        retake & (retakes < MOST_RETAKES),
        jnp.maximum(t + place * h, t + 4 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), h)),
        jnp.any(up | down),
        jnp.min(levels),
        segments + up - down,
    )


def _find_first_root(measure: Callable[[Array], Array], dtype) -> Array:
    """The first place up to `LONGEST` at which the measure becomes positive, or infinity."""
    places = LONGEST * jnp.arange(1, PLACES + 1, dtype=dtype) / PLACES
    positive = jax.vmap(measure)(places) > 0
    first = places[jnp.argmax(positive)]

    def refine(_, bracket):
        begin, end = bracket
        inner = begin + (end - begin) * jnp.arange(1, PLACES + 1, dtype=dtype) / PLACES
        # Rounding may hide the crossing at the end of the bracket.
        outside = (jax.vmap(measure)(inner) > 0).at[-1].set(True)
        index = jnp.argmax(outside)
        return jnp.where(index > 0, inner[index - 1], begin), inner[index]

    def find() -> Array:
        begin, end = lax.fori_loop(0, REFINEMENTS, refine, (first - LONGEST / PLACES, first))
        low, high = measure(begin), measure(end)
        secant = begin - low * (end - begin) / jnp.where(high == low, 1, high - low)
        return jnp.clip(secant, begin, end)

    return lax.cond(jnp.any(positive), find, lambda: jnp.asarray(jnp.inf, dtype))
