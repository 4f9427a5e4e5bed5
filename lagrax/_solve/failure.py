"""The states that a failed solve does not have. They are NaN, and so are their derivatives."""

from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, PyTree, Real


def make_missing(inputs: PyTree, dtype: Any) -> Real[Array, ""]:
    """NaN, whose derivative with respect to every number in `inputs` is NaN."""
    numbers = [x for x in jax.tree.leaves(inputs) if eqx.is_inexact_array(x)]
    return _missing(numbers, jnp.dtype(dtype))


def fill(valid: Bool[Array, "..."], y: PyTree[Array], missing: Real[Array, ""]) -> PyTree[Array]:
    """Replaces the states that are not valid by `missing`.

    A plain `jnp.where(valid, y, nan)` has the derivative 0 there, which looks like a gradient. A
    loss that masks these states out is not affected: a cotangent of 0 stays 0.
    """

    def leaf(x):
        unknown = _nan_unless_zero(jnp.broadcast_to(missing, x.shape).astype(x.dtype))
        return jnp.where(valid.reshape(*valid.shape, *[1] * (x.ndim - valid.ndim)), x, unknown)

    return jax.tree.map(leaf, y)


@eqx.filter_custom_jvp
def _missing(numbers, dtype):
    # It depends on the numbers so that `jax.vmap` of one of them maps it, as it maps its tangent.
    some = [jnp.real(x.ravel()[0]).astype(dtype) for x in numbers if x.size]
    return sum(some, jnp.asarray(jnp.nan, dtype))


@_missing.def_jvp
def _missing_jvp(primals, tangents):
    tangents = [jnp.sum(_nan_unless_zero(jnp.real(t))) for t in jax.tree.leaves(tangents)]
    missing = _missing(*primals)
    return missing, sum(t.astype(missing.dtype) for t in tangents)


def _nan_unless_zero(x: Array) -> Array:
    """NaN where x is not 0, as a linear function that is its own transpose: it works on tangents
    and on cotangents. (JAX has none whose transpose does that.)"""
    return _primitive.bind(x)


def _compute(x):
    return jnp.where(x == 0, x, jnp.nan)


_primitive = jax.extend.core.Primitive("nan_unless_zero")
_primitive.def_impl(_compute)
_primitive.def_abstract_eval(lambda x: x)
ad.deflinear2(_primitive, lambda cotangent, _: [_nan_unless_zero(cotangent)])
batching.defvectorized(_primitive)
mlir.register_lowering(_primitive, mlir.lower_fun(_compute, multiple_results=False))
