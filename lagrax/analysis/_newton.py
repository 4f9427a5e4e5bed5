"""Newton's method, differentiable by the implicit function theorem."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Unknown = Float[Array, " unknowns"]

# Shorter steps are tried while a whole one does not reduce the residual.
_FACTORS = 0.5 ** np.arange(8)


def find_root(
    function: Callable[[Unknown], Unknown], start: Unknown, steps: int = 40
) -> tuple[Unknown, Bool[Array, ""]]:
    """A zero of `function` near `start`, and whether Newton's method converged.

    The zero is differentiable in everything that `function` closes over, to any order, and NaN
    without convergence.
    """
    root, converged = jax.lax.custom_root(
        function,
        jax.lax.stop_gradient(start),
        lambda f, x: _as_auxiliary(iterate_newton(f, x, steps)),
        lambda g, y: jnp.linalg.solve(jax.jacfwd(g)(y), y),
        has_aux=True,
    )
    converged = jax.lax.stop_gradient(converged) > 0
    return jnp.where(converged, root, jnp.nan), converged


def _as_auxiliary(answer: tuple[Unknown, Bool[Array, ""]]) -> tuple[Unknown, Float[Array, ""]]:
    """`custom_root` differentiates its auxiliary output, so that must be a real number."""
    return answer[0], answer[1].astype(answer[0].dtype)


def iterate_newton(
    function: Callable[[Unknown], Unknown], start: Unknown, steps: int = 40
) -> tuple[Unknown, Bool[Array, ""]]:
    """As `find_root`, without derivatives, and with the last iterate if it does not converge."""
    tolerance = float(jnp.finfo(start.dtype).eps) ** (2 / 3)
    # Traced once, since it may be large.
    both = jax.jacfwd(lambda x: (function(x),) * 2, has_aux=True)
    residual = jax.vmap(lambda x: jnp.linalg.norm(function(x)))
    factors = jnp.asarray(_FACTORS, start.dtype)

    def advance(carry):
        x, calm, count = carry
        slope, value = both(x)
        change = -jnp.linalg.solve(slope, value)
        tried = residual(x + factors[:, None] * change)
        # Near the zero rounding decides which of two residuals is smaller.
        small = jnp.max(jnp.abs(change)) <= tolerance * (1 + jnp.max(jnp.abs(x)))
        enough = (tried < (1 - factors / 4) * jnp.linalg.norm(value)) | small
        factor = jnp.where(jnp.any(enough), factors[jnp.argmax(enough)], factors[-1])
        return x + factor * change, jnp.where(small, calm + 1, 0), count + 1

    # One step follows the first small change, which squares its error.
    going = lambda c: (c[1] < 2) & (c[2] < steps) & jnp.all(jnp.isfinite(c[0]))
    x, calm, _ = jax.lax.while_loop(going, advance, (start, 0, 0))
    return x, jnp.asarray(calm) == 2
