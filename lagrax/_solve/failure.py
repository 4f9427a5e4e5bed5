"""NaN for the states that a failed solve does not have, with gradients that are NaN too."""

from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, PyTree, Real


def make_nan(inputs: PyTree, dtype: Any) -> Real[Array, ""]:
    """Makes a NaN whose derivative with respect to every number in `inputs` is NaN."""
    numbers = [x for x in jax.tree.leaves(inputs) if eqx.is_inexact_array(x)]
    return _nan(numbers, jnp.dtype(dtype))


def replace_invalid(
    valid: Bool[Array, "..."], y: PyTree[Array], nan: Real[Array, ""]
) -> PyTree[Array]:
    """Replaces invalid states by `nan`, which comes from `make_nan`.

    With `jnp.where(valid, y, jnp.nan)` the derivative there would be 0, which looks like a
    gradient. A loss that masks these states out is not affected, since a cotangent of 0 stays 0.
    """

    def leaf(x):
        unknown = _nan_unless_zero(jnp.broadcast_to(nan, x.shape).astype(x.dtype))
        return jnp.where(valid.reshape(*valid.shape, *[1] * (x.ndim - valid.ndim)), x, unknown)

    return jax.tree.map(leaf, y)


@eqx.filter_custom_jvp
def _nan(numbers, dtype):
    # The value depends on the numbers, so that `jax.vmap` maps it whenever it maps a tangent.
    some = [jnp.real(x.ravel()[0]).astype(dtype) for x in numbers if x.size]
    return sum(some, jnp.asarray(jnp.nan, dtype))


@_nan.def_jvp
def _nan_jvp(primals, tangents):
    tangents = [jnp.sum(_nan_unless_zero(jnp.real(t))) for t in jax.tree.leaves(tangents)]
    nan = _nan(*primals)
    return nan, sum(t.astype(nan.dtype) for t in tangents)


def _nan_unless_zero(x: Array) -> Array:
    """Returns NaN unless x is 0.

    To JAX this is a linear function that is its own transpose, so it acts on cotangents as on
    tangents. No primitive of JAX has such a transpose.
    """
    return _primitive.bind(x)


def _compute(x):
    return jnp.where(x == 0, x, jnp.nan)


_primitive = jax.extend.core.Primitive("nan_unless_zero")
_primitive.def_impl(_compute)
_primitive.def_abstract_eval(lambda x: x)
ad.deflinear2(_primitive, lambda cotangent, _: [_nan_unless_zero(cotangent)])
batching.defvectorized(_primitive)
mlir.register_lowering(_primitive, mlir.lower_fun(_compute, multiple_results=False))
