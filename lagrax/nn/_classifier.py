"""Classifiers, which map the final state of a layer linearly to logits."""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Shaped

from ._affine import Affine
from ._checks import check_key, check_sequence, check_whole


class Head(eqx.Module):
    """Maps the flattened final state linearly to logits.

    **Arguments:**

    - `shape`: the shape of the final state without batch axes, augmented channels included.
    - `classes`: the number of logits.
    - `key`: the random key for the initial parameters.
    """

    affine: Affine
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: Sequence[int], classes: int = 10, *, key: PRNGKeyArray):
        for size in check_sequence("Head", "shape", shape):
            check_whole("Head", "shape", size, 1)
        check_whole("Head", "classes", classes, 1)
        check_key("Head", key)
        self.affine = Affine(math.prod(shape), classes, key=key)
        self.shape = tuple(shape)

    def __call__(
        self, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch classes"]:
        del key
        batch = x.shape[: x.ndim - len(self.shape)]
        if x.shape != (*batch, *self.shape):
            raise ValueError(
                f"Head got a state of shape {x.shape}; expected {self.shape} after the batch "
                "axes. Build it with the shape of the final state, augmented channels included."
            )
        return self.affine(x.reshape(*batch, -1))


class Classifier(eqx.Module):
    """A layer with a head on its final state. Calling it returns logits.

    **Arguments:**

    - `flow`: any layer of this module, or another function from an input to a final state.
    - `head`: a function from the final state to logits, for example a `Head`.
    """

    flow: Callable
    head: Callable

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch classes"]:
        del key
        return self.head(self.flow(x))


def parameter_count(model: PyTree) -> int:
    """The number of trainable numbers in `model`, or in the result of `eqx.filter_eval_shape`."""
    leaves = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return sum(math.prod(x.shape) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))
