"""How fast neighbouring orbits part: Lyapunov exponents."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._solve.arguments import check_memory, check_whole, is_whole
from ..systems import System
from ._map import KnotMap, Point, Start, as_map, start_of


def lyapunov(
    equation: KnotMap | System,
    start: Start = None,
    *,
    iterates: int = 10_000,
    skip: int = 1_000,
) -> Float[Array, " size"]:
    """The Lyapunov exponents of the orbit from `start`, the largest first: by which factor
    exp(λ) nearby orbits part in one period of the hold. A positive one means chaos. Divide by
    the period for exponents in the equation's time.

    ```python
    lyapunov(lagrax.systems.Population(a=3.0))  # about 0.38
    ```

    They are averages over `iterates` after leaving out `skip`; of a chaotic orbit they are known to
    about one over the square root of that number, of others to some 30 over that number. NaN where
    the orbit escapes.
    """
    f = as_map(equation)
    if not is_whole(iterates) or not is_whole(skip) or iterates < 1 or skip < 0:
        raise ValueError(
            f"lyapunov got iterates={iterates} and skip={skip}; expected at least 1, better "
            "thousands, and at least 0, both of them whole numbers."
        )
    check_whole("lyapunov", "iterates", iterates, 1)
    check_whole("lyapunov", "skip", skip, 0)
    check_memory("lyapunov", f"iterates={iterates}", iterates * f.size)
    return _lyapunov(f, start_of(f, start), int(iterates), int(skip))


def least_of_chaos(iterates: int) -> float:
    """The exponent from which on an orbit without a period is called chaotic: averages of one that
    goes round an invariant curve scatter by some 30 over their number."""
    return max(1e-3, 30 / iterates)


@eqx.filter_jit
def _lyapunov(f: KnotMap, point: Point, iterates: int, skip: int) -> Float[Array, " size"]:
    def advance(carry, _):
        x, frame = carry
        new, push = jax.linearize(f, x)
        pushed = jax.vmap(push, 1, 1)
        frame, growth = _orthonormal(pushed(frame))
        if f.size > 1:
            # What is small next to the rest is lost in the last one, and not in the determinant.
            whole, rest = jnp.linalg.slogdet(pushed(jnp.eye(f.size)))[1], jnp.sum(growth[:-1])
            growth = growth.at[-1].set(jnp.where(jnp.isfinite(rest), whole - rest, -jnp.inf))
        return (new, frame), growth

    carry = (point, jnp.eye(f.size, dtype=point.dtype))
    carry = jax.lax.fori_loop(0, skip, lambda _, c: advance(c, None)[0], carry)
    _, growth = jax.lax.scan(advance, carry, length=iterates)
    return jnp.sort(jnp.mean(growth, axis=0), descending=True)


def _orthonormal(frame: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """The columns made orthonormal, and the logarithms of what was left of each.

    By Gram and Schmidt, twice over: small components of a column stay small. LAPACK's reflections
    leave 1e-16 in their place, and where a population falls to 1e-98, that grows into the answer.
    """
    n, resolution = len(frame), jnp.log(jnp.finfo(frame.dtype).eps)
    columns: list[Array] = []
    growth = []
    for column in frame.T:
        unit, length = normalised(column)
        unit, left = normalised(_without(columns, unit))
        # Where nothing is left, any direction across the others is as good.
        across = jnp.eye(n)[jnp.argmin(sum((q**2 for q in columns), jnp.zeros(n)))]
        spare, _ = normalised(_without(columns, across))
        columns.append(jnp.where(jnp.isneginf(length + left), spare, unit))
        growth.append(length + jnp.maximum(left, resolution))
    return jnp.stack(columns, axis=1), jnp.stack(growth)


def _without(columns: list[Array], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    for q in 2 * columns:
        vector = vector - q * (q @ vector)
    return vector


def normalised(vector: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Of length 1, and the logarithm of its length; squares of small numbers would be none."""
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1)
    length = jnp.linalg.norm(scaled)
    return scaled / jnp.where(length > 0, length, 1), jnp.log(largest) + jnp.log(length)
