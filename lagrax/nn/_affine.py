"""Affine maps, the layers of networks, and the ways to compute them."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from ._checks import check_key, check_whole


class Affine(eqx.Module):
    """An affine map of the last axis. With a window, a convolution that keeps the image's size.

    `weight` has the shape (*window, inputs, outputs). Without a window it is a matrix; (3, 3) is
    the window of a convolution of images. As in PyTorch, initial weights and biases are uniform in
    ±1/√fan_in.
    """

    weight: Float[Array, "*window inputs outputs"]
    bias: Float[Array, " outputs"] | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        window: tuple[int, ...] = (),
        use_bias: bool = True,
        key: PRNGKeyArray,
    ):
        check_whole("Affine", "inputs", inputs, 1)
        check_whole("Affine", "outputs", outputs, 1)
        check_key("Affine", key)
        bound = 1 / math.sqrt(math.prod(window) * inputs)
        wkey, bkey = jax.random.split(key)
        shape = (*window, inputs, outputs)
        self.weight = jax.random.uniform(wkey, shape, minval=-bound, maxval=bound)
        self.bias = None
        if use_bias:
            self.bias = jax.random.uniform(bkey, (outputs,), minval=-bound, maxval=bound)

    def __call__(
        self, x: Float[Array, "..."], dtype: DTypeLike | None = None
    ) -> Float[Array, "..."]:
        """Multiplies in `dtype`, by default that of `x`, and sums in at least float32."""
        y = multiply(x, self.weight, x.dtype if dtype is None else dtype)
        return y if self.bias is None else y + self.bias.astype(y.dtype)


def multiply(x: Array, weight: Array, dtype: DTypeLike) -> Array:
    """The linear part of an `Affine`, which is a matrix product or a convolution."""
    x, weight = x.astype(dtype), weight.astype(dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    if weight.ndim == 2:
        return jnp.matmul(x, weight, preferred_element_type=wide)
    y = lax.conv_general_dilated(
        x.reshape(-1, *x.shape[-3:]),
        weight,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=wide,
    )
    return y.reshape(*x.shape[:-1], -1)


def apply_to_axis(
    weight: Array, bias: Array | None, x: Array, axis: int, dtype: DTypeLike
) -> Array:
    """An affine map of one axis of `x`. The outputs are the first axis of the result."""
    wide = jnp.promote_types(dtype, jnp.float32)
    weight, x = weight.astype(dtype), x.astype(dtype)
    if not on_accelerator():
        # XLA's CPU backend lacks some products of 16-bit numbers. The operands are rounded already.
        weight, x = weight.astype(wide), x.astype(wide)
    y = lax.dot_general(weight, x, (((0,), (axis,)), ((), ())), preferred_element_type=wide)
    return y if bias is None else y + bias.astype(y.dtype).reshape(-1, *(1,) * (y.ndim - 1))


def pad_channels(layer: Affine, inputs: int, outputs: int) -> Affine:
    """Adds channels with zero weights, up to the given numbers."""
    *window, old_inputs, old_outputs = layer.weight.shape
    more = (0, outputs - old_outputs)
    widths = [(0, 0) for _ in window] + [(0, inputs - old_inputs), more]
    weight = jnp.pad(layer.weight, widths)
    bias = None if layer.bias is None else jnp.pad(layer.bias, more)
    return eqx.tree_at(lambda a: (a.weight, a.bias), layer, (weight, bias), is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


def on_accelerator() -> bool:
    return jax.default_backend() != "cpu"
