"""How fast neighbouring orbits part: Lyapunov exponents."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._delays import is_whole
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
    about one over the square root of that number. NaN where the orbit escapes.
    """
    f = as_map(equation)
    if not is_whole(iterates) or not is_whole(skip) or iterates < 1 or skip < 0:
        raise ValueError(
            f"lyapunov got iterates={iterates} and skip={skip}; expected at least 1, better "
            "thousands, and at least 0, both of them whole numbers."
        )
    return _lyapunov(f, start_of(f, start), int(iterates), int(skip))


@eqx.filter_jit
def _lyapunov(f: KnotMap, point: Point, iterates: int, skip: int) -> Float[Array, " size"]:
    def advance(carry, _):
        x, frame = carry
        new, push = jax.linearize(f, x)
        frame, stretch = _orthonormal(jax.vmap(push, 1, 1)(frame))
        return (new, frame), jnp.log(stretch)

    carry = (point, jnp.eye(f.size, dtype=point.dtype))
    carry = jax.lax.fori_loop(0, skip, lambda _, c: advance(c, None)[0], carry)
    _, growth = jax.lax.scan(advance, carry, length=iterates)
    return jnp.sort(jnp.mean(growth, axis=0), descending=True)


def _orthonormal(frame: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    if frame.shape[0] == 1:  # no need of LAPACK
        return jnp.ones_like(frame), jnp.abs(frame[0])
    frame, upper = jnp.linalg.qr(frame)
    return frame, jnp.abs(jnp.diagonal(upper))
