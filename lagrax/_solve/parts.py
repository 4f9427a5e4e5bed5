"""Parts of the state whose past delays want, as functions given by `of=`, and their polynomials."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .delays import Entry, Hold, LagEntry
from .field import find_used_inputs
from .tape import Recorded, State, evaluate_polynomial


class Part(eqx.Module):
    """A function of the state, traced once, so that arrays that it closes over are leaves.

    `is_affine` says that its derivative is the same at all states, as that of a selection is.
    """

    function: Callable
    is_affine: bool = eqx.field(static=True)

    def __call__(self, y: State) -> PyTree[Array]:
        """The part of a state."""
        return self.function(y)

    def find_coefficients(self, coefficients: PyTree[Array]) -> PyTree[Array]:
        """The polynomial of the part in one step, given that of the state.

        If the function is not affine, this is the polynomial of the same degree through its values
        at as many places in the step, which keeps the order of the dense output.
        """
        first = jax.tree.map(lambda c: c[0], coefficients)
        if self.is_affine:
            move = lambda c: jax.jvp(self.function, (first,), (c,))[1]
            others = jax.vmap(move)(jax.tree.map(lambda c: c[1:], coefficients))
            put_first = lambda a, b: jnp.concatenate([a[None], b])
            return jax.tree.map(put_first, self.function(first), others)
        count = jax.tree.leaves(coefficients)[0].shape[0]
        places, weights = _find_interpolation(count)
        states = jax.tree.map(lambda c: evaluate_at(c, places), coefficients)
        values = jax.vmap(self.function)(states)
        fit = lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1)
        return jax.tree.map(fit, values)


def evaluate_at(c: Array, places: np.ndarray) -> Array:
    """The values of one polynomial at several fractions of its step."""
    fractions = jnp.asarray(places, jnp.finfo(c.dtype).dtype)
    return jax.vmap(lambda x: evaluate_polynomial(x, c))(fractions)


@functools.lru_cache
def _find_interpolation(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places in a step, and the matrix from values there to coefficients of a polynomial."""
    places = 0.5 - 0.5 * np.cos(np.pi * np.arange(count) / max(1, count - 1))
    return places, np.linalg.inv(np.vander(places, increasing=True))


def record_parts(
    entries: list[LagEntry], coefficients: PyTree[Array], powers: int | None
) -> Recorded:
    """What the tape keeps of one step.

    Of the polynomial of the state it keeps the lowest `powers`, or all if None.
    """
    state = None
    if powers != 0:
        state = jax.tree.map(lambda c: c[:powers], coefficients)
    parts: list[Any] = [e.of for e in entries if e.of is not None]
    return Recorded(state, [part.find_coefficients(coefficients) for part in parts])


def bind_delay(delay: Entry, t: Array, y: State, args: PyTree) -> Any:
    """A delay for one solve, in which arrays of its functions are leaves. It checks them."""
    if not isinstance(delay, (Hold, LagEntry)):
        return delay
    if delay.of is not None:
        part = _make_part(delay.of, y, type(delay).__name__)
        y = part(y)
        delay = eqx.tree_at(lambda d: d.of, delay, part)
    return delay.bind(t, y, args) if isinstance(delay, LagEntry) else delay


def _make_part(of: Callable, y: State, who: str) -> Part:
    try:
        function = eqx.filter_closure_convert(lambda y: jax.tree.map(jnp.asarray, of(y)), y)
    except Exception as error:
        error.add_note(f"lagrax called the function `of` of a {who} as of(y), with a state y.")
        raise
    leaves = jax.tree.leaves(eqx.filter_eval_shape(function, y))
    if not leaves or not all(jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves):
        raise ValueError(
            f"The function `of` of a {who} returned {[str(x.dtype) for x in leaves]}; expected "
            "floating point or complex arrays, such as lambda y: y['level']."
        )
    jaxpr = jax.make_jaxpr(lambda y, v: jax.jvp(function, (y,), (v,))[1])(y, y).jaxpr
    used = find_used_inputs(jaxpr, [True] * len(jaxpr.outvars))
    return Part(function, not any(used[: len(jax.tree.leaves(y))]))
