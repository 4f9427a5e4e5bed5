"""Steps whose delayed times lie in the step itself, which lags do that vanish.

Such a step is an equation for its own dense output. It is solved by iteration, beginning with the
step before. Each iteration gains a power of the step's length, so that a few are enough.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .tape import Piece, State, Tape

# A step that needs more iterations is too long.
MOST_ITERATIONS = 16
# The last change is at most this fraction of the error that the tolerances allow.
FRACTION = 0.01


def make_constant(t: Array, h: Array, y: State, like: PyTree) -> Piece:
    """A step in which the state stays as it is. `like` are coefficients of the same shape."""
    still = lambda y, c: jnp.zeros_like(c).at[0].set(y)
    return Piece(t, t + h, jax.tree.map(still, y, like))


def predict_step(tape: Tape, number: Array, t: Array, h: Array, y: State) -> Piece:
    """A first approximation of step `number`, the continuation of the step before.

    It is the constant state if the step before was much shorter.
    """
    before = tape.take(jnp.maximum(number - 1, 0))
    constant = make_constant(t, h, y, before.coefficients)
    continues = (number > 0) & (h <= 2 * (before.end - before.begin))
    return jax.tree.map(lambda b, c: jnp.where(continues, b, c), before, constant)


def find_tolerances(controller: Any, dtype: Any) -> tuple[Any, Any]:
    """The relative and the absolute change at which the iteration ends."""
    least = 100 * jnp.finfo(dtype).eps
    if not isinstance(controller, diffrax.PIDController):
        return least, least
    return jnp.maximum(FRACTION * controller.rtol, least), FRACTION * controller.atol


def iterate_step(
    take_step: Callable[[Piece], tuple], own: Piece, tolerances: tuple
) -> tuple[PyTree, Bool[Array, ""], Int[Array, ""]]:
    """Takes a step until its dense output is the one that it has read.

    `take_step(own)` returns anything, the dense output, and whether it depends on `own`. Also
    returns whether that succeeded, and the number of iterations. Not reverse-differentiable.
    """
    rtol, atol = tolerances

    def is_close(new: Piece, old: Piece) -> Array:
        middle = 0.5 * (new.begin + new.end)

        def leaf(x, y):
            return jnp.all(jnp.abs(x - y) <= atol + rtol * jnp.abs(x))

        close = [
            leaf(x, y)
            for t in (middle, new.end)
            for x, y in zip(
                jax.tree.leaves(new.evaluate(t)), jax.tree.leaves(old.evaluate(t)), strict=True
            )
        ]
        return jnp.all(jnp.stack(close))

    def body(carry):
        count, own, _, _ = carry
        answer, step, depends = take_step(own)
        return count + 1, step, answer, ~depends | is_close(step, own)

    shapes = jax.eval_shape(take_step, own)[0]
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    unfinished = lambda carry: (carry[0] < MOST_ITERATIONS) & ~carry[3]
    carry = (jnp.asarray(0), own, empty, jnp.asarray(False))
    count, _, answer, done = lax.while_loop(unfinished, body, carry)
    return answer, done, count


def solve_transposed(pull_own: Callable[[PyTree], PyTree], bar: PyTree) -> PyTree:
    """The cotangent w of a step's dense output, w = bar + pull_own(w), by the same iteration.

    This is the implicit rule. `pull_own` maps a cotangent of the dense output to that of what the
    step has read of it.
    """

    def body(carry):
        count, w, _ = carry
        new = jax.tree.map(jnp.add, bar, pull_own(w))
        size = lambda tree: jnp.max(
            jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree) if x.size])
        )
        change = size(jax.tree.map(jnp.subtract, new, w))
        least = 100 * jnp.finfo(change.dtype).eps
        return count + 1, new, change <= least * size(new)

    unfinished = lambda carry: (carry[0] < 2 * MOST_ITERATIONS) & ~carry[2]
    return lax.while_loop(unfinished, body, (jnp.asarray(0), bar, jnp.asarray(False)))[1]
