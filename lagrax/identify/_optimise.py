"""Parameters of an equation fitted to windows of series, by Adam or by least squares."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..training._machine import load
from ._fields import Equation
from ._simulation import SolveSetup, WindowArrays, solve_window


class WindowLoss(eqx.Module):
    """The mean squared error of each window, in standard deviations.

    It is a module, so that fits of the same shape share their compiled program.
    """

    setup: SolveSetup
    scale: Float[Array, " states"]

    def residuals(self, equation: Equation, window: WindowArrays) -> Float[Array, "samples states"]:
        states = solve_window(equation, self.setup, window)
        return jnp.where(window.weights > 0, states - window.ys, 0) / self.scale

    def __call__(self, equation: Equation, windows: WindowArrays) -> Float[Array, " windows"]:
        squares = jax.vmap(lambda w: jnp.sum(self.residuals(equation, w) ** 2))(windows)
        return squares / jnp.maximum(jnp.sum(windows.weights, axis=(1, 2)), 1)


class HeldOutMetric(eqx.Module):
    """The mean loss over held-out windows, under the name `held_out`."""

    loss: WindowLoss

    def __call__(self, equation: Equation, windows: WindowArrays) -> dict[str, Array]:
        return {"held_out": jnp.mean(self.loss(equation, windows))}


@functools.cache
def make_optimiser(learning_rate: float, iterations: int) -> Any:
    """Adam, with a learning rate that decays to a hundredth. Steps with an infinite or undefined
    gradient are skipped."""
    optax = load("optax")
    schedule = optax.cosine_decay_schedule(learning_rate, iterations, 0.01)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    return optax.apply_if_finite(clipped, 10**6)


@eqx.filter_jit
def _linearise(equation: Equation, loss: WindowLoss, windows: WindowArrays) -> tuple[Array, Array]:
    """The Jacobian of the residuals with respect to all parameters, and the residuals."""
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)

    def residuals(flat):
        changed = eqx.combine(unravel(flat), static)
        values = jax.vmap(lambda w: loss.residuals(changed, w))(windows).ravel()
        return values, values

    return jax.jacfwd(residuals, has_aux=True)(flat)


# With less damping, terms that the series cannot tell apart make the linear system singular.
LEAST_DAMPING = 1e-12


def minimise_squares(
    equation: Equation, loss: WindowLoss, windows: WindowArrays
) -> tuple[Equation, float]:
    """The equation with the least sum of squares, and that sum, by the Levenberg-Marquardt method.

    Compilation is most of the cost of a fit, and this compiles in half the time of
    `optimistix.least_squares`.
    """
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)
    at = lambda x: eqx.combine(unravel(jnp.asarray(x, flat.dtype)), static)
    linear = lambda x: [np.asarray(part, float) for part in _linearise(at(x), loss, windows)]
    here, damping = np.asarray(flat, float), 1e-3
    slopes, values = linear(here)
    for _ in range(50):
        # Columns are scaled to the same size, so that units do not matter.
        size = np.linalg.norm(slopes, axis=0)
        size = np.where(size > 0, size, 1)
        scaled = slopes / size
        damped = scaled.T @ scaled + damping * np.eye(len(size))
        step = np.linalg.solve(damped, -scaled.T @ values) / size
        new_slopes, new_values = linear(here + step)
        if not np.sum(new_values**2) < np.sum(values**2):
            damping *= 10
            if damping > 1e6:
                break
            continue
        gain = 1 - np.sum(new_values**2) / np.sum(values**2)
        here, slopes, values = here + step, new_slopes, new_values
        damping = max(damping / 10, LEAST_DAMPING)
        if gain < 1e-6:
            break
    return at(here), float(np.sum(values**2))
