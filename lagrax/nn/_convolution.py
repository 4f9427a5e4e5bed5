"""The convolutional field on accelerators, as one function with a derivative written by hand.

Automatic differentiation would store float32 arrays where 16 bits suffice, and compute separate
sums for the gradients of the biases. benchmarks/NOTES.md has the times.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ._affine import Affine


class JoinedHistory(eqx.Module):
    """The distinct entries of a history, concatenated, and the number of each entry among them."""

    entries: Float[Array, "..."]
    places: tuple[int, ...] = eqx.field(static=True)


def pack_weights(layers: list[Affine], width: int) -> tuple[Array, Array, Array]:
    """The weights of the three layers for `width` hidden channels, with the biases included.

    The first spare channel of each hidden layer is the constant 1. It comes from the 1 that follows
    the arguments. The biases are the weights of that channel, so they need no extra operation.
    """
    w1, b1, w2, b2, w3, b3 = jax.tree.leaves(layers)
    filters, spare = b1.size, width - b1.size
    more = (0, spare)
    one = jax.nn.one_hot(filters, width, dtype=w1.dtype)
    w1 = jnp.concatenate([jnp.pad(w1, ((0, 0), more)), (jnp.pad(b1, more) + one)[None]])
    of_one = (jnp.pad(b2, more) + one)[None, None, None]
    w2 = jnp.pad(w2, ((0, 0), (0, 0), more, more))
    w2 = w2 + jnp.pad(of_one, ((1, 1), (1, 1), (filters, spare - 1), (0, 0)))
    w3 = jnp.pad(jnp.concatenate([w3, b3[None]]), ((0, spare - 1), (0, 0)))
    return w1, w2, w3


def join_history(history: Sequence[Array]) -> JoinedHistory | None:
    if not history:
        return None
    distinct = []
    for entry in history:
        if not any(entry is other for other in distinct):
            distinct.append(entry)
    places = [[entry is other for other in distinct].index(True) for entry in history]
    # The barriers make XLA compute the cotangent of each entry once and separately.
    entries = [lax.optimization_barrier(entry) for entry in distinct]
    return JoinedHistory(jnp.concatenate(entries, axis=-1), tuple(places))


def merge_weights(w1: Array, places: tuple[int, ...], channels: int) -> Array:
    """The first layer for distinct entries. An entry that occurs several times has the sum of its
    weights. The rows belong to the state, if it is used, to each entry in turn, and to the 1."""
    number = len(set(places))
    if number == len(places):
        return w1
    of_entries = w1[-1 - channels * len(places) : -1].reshape(len(places), channels, -1)
    which = jax.nn.one_hot(jnp.asarray(places), number, dtype=w1.dtype)
    summed = jnp.tensordot(which, of_entries, (0, 0), precision="highest")
    first = w1[: -1 - channels * len(places)]
    return jnp.concatenate([first, summed.reshape(number * channels, -1), w1[-1:]])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(weights: tuple[Array, Array, Array], x: Array, dtype: DTypeLike) -> Array:
    """The field of its concatenated arguments and a 1, with the weights of `pack_weights`."""
    return _convolve_forward(weights, x, dtype)[0]


def _convolve_forward(weights, x, dtype):
    w1, w2, w3 = weights
    # Rounding the state to bfloat16 would show in the gradient.
    x = x if dtype == jnp.bfloat16 else x.astype(dtype)
    h1 = jax.nn.relu(_dot(x, w1.astype(x.dtype), (3,), (0,))).astype(dtype)
    # The backward pass compares h1 with 0. Without the barrier XLA stores its argument as well.
    h1 = lax.optimization_barrier(h1)
    # Asking for a float32 sum of 16-bit products would compute in tf32, on copies.
    h2 = jax.nn.relu(_conv(h1, w2.astype(dtype)))
    return _dot(h2, w3.astype(dtype), (3,), (0,)), (weights, x, h1, h2)


def _convolve_backward(dtype, saved, g):
    (w1, w2, w3), x, h1, h2 = saved
    # At JAX's default precision float32 means tf32, in which the weight gradient is slow. float16
    # has the same number of bits.
    default = jax.config.jax_default_matmul_precision is None  # pyright: ignore
    narrow = jnp.float16 if dtype == jnp.float32 and default else dtype
    scale = _scale(g) if narrow == jnp.float16 else 1.0
    g = g * scale
    g2 = sum(g[..., i, None] * w3[:, i].astype(g.dtype) for i in range(g.shape[-1]))
    g2 = jnp.where(h2 > 0, g2, 0).astype(dtype)
    # With the barrier it runs as a forward convolution, which is faster in tf32.
    turned = lax.optimization_barrier(w2[::-1, ::-1].swapaxes(2, 3).astype(dtype))
    g1 = jnp.where(h1 > 0, _conv(g2, turned), 0)
    pixels = (0, 1, 2)
    dw1 = _dot(x.astype(dtype), g1, pixels, pixels)
    dw2 = _conv(h1.astype(narrow), g2.astype(narrow), ((1, 1), (1, 1)), ("CHWN", "IHWO", "HWNC"))
    dw3 = _dot(h2, g.astype(dtype), pixels, pixels)
    dx = _dot(g1, w1.astype(dtype), (3,), (1,))
    like = ((w1, w2, w3), g)
    return jax.tree.map(lambda d, a: d.astype(a.dtype) / scale, ((dw1, dw2, dw3), dx), like)


convolve.defvjp(_convolve_forward, _convolve_backward)


def _scale(g: Array) -> Array:
    """A power of two that scales `g` well into float16's range. Entries become at most 1/16 and
    the sum of all at most 2^13, since the weight gradient, a sum over all pixels, is float16."""
    size = jnp.abs(lax.stop_gradient(g))
    size = jnp.maximum(2**4 * jnp.max(size), 2**-13 * jnp.sum(size))
    exponent = jnp.where(size > 0, -jnp.ceil(jnp.log2(size)), 0)
    return jnp.exp2(jnp.clip(exponent, -100, 100))


def _dot(a: Array, b: Array, axes_a: tuple[int, ...], axes_b: tuple[int, ...]) -> Array:
    """The product over the given axes, summed in at least float32."""
    wide = jnp.promote_types(a.dtype, jnp.float32)
    return lax.dot_general(a, b, ((axes_a, axes_b), ((), ())), preferred_element_type=wide)


def _conv(
    x: Array, w: Array, padding: Any = "SAME", axes: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC")
) -> Array:
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=axes)
