"""Finds the part of each `Input` that the field gets in each interval."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Real

from .delays import Input


class LinearPiece(eqx.Module):
    """The value at time `start`, and the slope, of a signal that is linear within an interval.

    Interval rows of a solve have one more axis in front.
    """

    value: PyTree[Array]
    slope: PyTree[Array]
    start: Real[Array, "..."]

    def evaluate(self, t: Real[Array, ""]) -> PyTree[Array]:
        """The signal at time t."""
        along = lambda u, v: (u + (t - self.start) * v).astype(u.dtype)
        return jax.tree.map(along, self.value, self.slope)


def make_input_rows(signal: Input, sample: Int[Array, " intervals"]) -> PyTree:
    """The held samples in each interval, or the lines between them.

    `sample` is the number of the last sample at the start of each interval, -1 before the first.
    All samples are gathered here at once. A gather in each interval would make the cotangent of all
    samples anew each time.
    """
    last = len(signal.ts) - 1
    number, following = jnp.maximum(sample, 0), jnp.minimum(sample + 1, last)
    held = jax.tree.map(lambda u: jnp.asarray(u)[number], signal.us)
    if not signal.linear:
        return held
    ts = jnp.asarray(signal.ts)
    moves = (sample >= 0) & (sample < last) & jnp.isfinite(ts[following])
    gap = jnp.where(moves, ts[following] - ts[number], 1)

    def find_slope(u: Any, start: Array) -> Array:
        of_leaf = lambda x: x.reshape(-1, *[1] * (start.ndim - 1))
        change = jnp.asarray(u)[following] - start
        return jnp.where(of_leaf(moves), change / of_leaf(gap).astype(change.dtype), 0)

    # Without a slope the start does not matter, and it may be infinite.
    start = jnp.where(moves, ts[number] + signal.delay, 0)
    return LinearPiece(held, jax.tree.map(find_slope, signal.us, held), start)


def example_of_input(signal: Input) -> PyTree[Array]:
    """One sample, with the shapes and types that the field gets."""
    return jax.tree.map(lambda u: jnp.asarray(u)[0], signal.us)


def read_inputs(history: Any, t: Real[Array, ""]) -> tuple:
    """Replaces the lines of a history by their values at time t."""
    return tuple(h.evaluate(t) if isinstance(h, LinearPiece) else h for h in history)
