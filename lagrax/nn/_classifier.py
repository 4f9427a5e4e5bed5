"""Classifiers: a layer, and a linear map of its final state to logits."""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Shaped

from ._affine import Affine
from ._checks import check_key, check_whole, checked_sequence


class Head(eqx.Module):
    """A linear map of the flattened final state to logits.

    **Arguments:**

    - `shape`: of the final state without batch axes, augmented channels included.
    - `classes`: how many logits.
    - `key`: of the initial parameters.
    """

    affine: Affine
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: Sequence[int], classes: int = 10, *, key: PRNGKeyArray):
        for size in checked_sequence("Head", "shape", shape):
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
                f"Head got a state of shape {x.shape}; expected {self.shape} behind the batch "
                "axes. Make it with the shape of the final state, augmented channels included."
            )
        return self.affine(x.reshape(*batch, -1))


class Classifier(eqx.Module):
    """A layer and a head on its final state; calling it gives logits.

    **Arguments:**

    - `flow`: from an input to a final state: any layer here, or another function.
    - `head`: from there to logits, such as a `Head`.
    """

    flow: Callable
    head: Callable

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch classes"]:
        del key
        return self.head(self.flow(x))


def parameter_count(model: PyTree) -> int:
    """How many numbers of `model` are trained. Works on `eqx.filter_eval_shape`'s result, too."""
    leaves = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return sum(math.prod(x.shape) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))
