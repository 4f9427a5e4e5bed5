"""Lyapunov exponents, the rates at which neighbouring orbits part."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._solve.arguments import check_memory, check_whole, is_whole
from ..systems import System
from ._map import KnotMap, Point, Start, as_map, get_start


def lyapunov(
    equation: KnotMap | System,
    start: Start = None,
    *,
    iterates: int = 10_000,
    skip: int = 1_000,
) -> Float[Array, " size"]:
    """The Lyapunov exponents of the orbit from `start`, the largest first.

    Nearby orbits part by a factor exp(λ) in one period of the hold. A positive exponent means
    chaos. Divide by the period for exponents in the time of the equation.

    ```python
    lyapunov(lagrax.systems.Population(a=3.0))  # about 0.38
    ```

    The exponents are averages over `iterates`, after `skip` iterates that are left out. Their error
    is about 1/sqrt(iterates) for a chaotic orbit and 30/iterates for others. They are NaN if the
    orbit escapes.
    """
    f = as_map(equation)
    if not is_whole(iterates) or not is_whole(skip) or iterates < 1 or skip < 0:
        raise ValueError(
            f"lyapunov got iterates={iterates} and skip={skip}; expected whole numbers, at least "
            "1 (better thousands) and at least 0."
        )
    check_whole("lyapunov", "iterates", iterates, 1)
    check_whole("lyapunov", "skip", skip, 0)
    check_memory("lyapunov", f"iterates={iterates}", iterates * f.size)
    return _lyapunov(f, get_start(f, start), int(iterates), int(skip))


def least_of_chaos(iterates: int) -> float:
    """The smallest exponent that means chaos. On an invariant curve, averages over n iterates lie
    within about 30/n of zero."""
    return max(1e-3, 30 / iterates)


@eqx.filter_jit
def _lyapunov(f: KnotMap, point: Point, iterates: int, skip: int) -> Float[Array, " size"]:
    def advance(carry, _):
        x, frame = carry
        new, push = jax.linearize(f, x)
        pushed = jax.vmap(push, 1, 1)
        frame, growth = _orthonormalise(pushed(frame))
        if f.size > 1:
            # Rounding spoils the last exponent, but not the sum of all, which is the determinant's.
            whole, rest = jnp.linalg.slogdet(pushed(jnp.eye(f.size)))[1], jnp.sum(growth[:-1])
            growth = growth.at[-1].set(jnp.where(jnp.isfinite(rest), whole - rest, -jnp.inf))
        return (new, frame), growth

    carry = (point, jnp.eye(f.size, dtype=point.dtype))
    carry = jax.lax.fori_loop(0, skip, lambda _, c: advance(c, None)[0], carry)
    _, growth = jax.lax.scan(advance, carry, length=iterates)
    return jnp.sort(jnp.mean(growth, axis=0), descending=True)


def _orthonormalise(frame: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Orthonormal columns that span the same spaces, and the logarithms of the lengths that remain.

    Gram-Schmidt, done twice, keeps small components of a column small. LAPACK's reflections replace
    them by 1e-16, which spoils the exponents of a population that falls to 1e-98.
    """
    n, resolution = len(frame), jnp.log(jnp.finfo(frame.dtype).eps)
    columns: list[Array] = []
    growth = []
    for column in frame.T:
        unit, length = normalise(column)
        unit, left = normalise(_project_out(columns, unit))
        # If nothing remains, any direction orthogonal to the others serves as well.
        across = jnp.eye(n)[jnp.argmin(sum((q**2 for q in columns), jnp.zeros(n)))]
        spare, _ = normalise(_project_out(columns, across))
        columns.append(jnp.where(jnp.isneginf(length + left), spare, unit))
        growth.append(length + jnp.maximum(left, resolution))
    return jnp.stack(columns, axis=1), jnp.stack(growth)


def _project_out(columns: list[Array], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    for q in 2 * columns:
        vector = vector - q * (q @ vector)
    return vector


def normalise(vector: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The vector with length 1, and the logarithm of its length. Squares of small components do not
    underflow."""
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1)
    length = jnp.linalg.norm(scaled)
    return scaled / jnp.where(length > 0, length, 1), jnp.log(largest) + jnp.log(length)
