"""Parameters of an equation fitted to windows of series, by Adam or by least squares."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..training._machine import load
from ._fields import Equation
from ._simulation import SolveSetup, WindowArrays, solve_window


class WindowLoss(eqx.Module):
    """The mean squared error of each window, in standard deviations.

    Errors beyond `huber`, if given for each state, count by their size rather than its square. With
    `fits_starts`, least squares fits the state at the start of each window, too. The last `hidden`
    states are not measured. It is a module, so that fits of the same shape share their compiled
    program.
    """

    setup: SolveSetup
    scale: Float[Array, " states"]
    huber: Float[Array, " states"] | None = None
    fits_starts: bool = eqx.field(static=True, default=False)
    hidden: int = eqx.field(static=True, default=0)

    def residuals(self, equation: Equation, window: WindowArrays) -> Float[Array, "samples states"]:
        """Errors whose squares make the loss."""
        states = solve_window(equation, self.setup, window)
        errors = jnp.where(window.weights > 0, states - window.ys, 0) / self.scale
        return self._shorten(errors)

    def residuals_from(
        self, equation: Equation, window: WindowArrays, start: Float[Array, " states"]
    ) -> Float[Array, "samples states"]:
        """Errors of the solution from `start`, the first sample's own included."""
        moved = window._replace(past_ys=window.past_ys.at[-1].set(start))
        measured = np.arange(len(self.scale)) < len(self.scale) - self.hidden
        first = jnp.where(measured, start - window.ys[0], 0) / self.scale
        first = self._shorten(first)
        return self.residuals(equation, moved).at[0].set(first)

    def _shorten(self, errors: Float[Array, "*samples states"]) -> Float[Array, "*samples states"]:
        """Half the square of the result is Huber's function of the errors."""
        if self.huber is None:
            return errors
        size = jnp.abs(errors)
        large = size > self.huber
        square = jnp.where(large, 2 * self.huber * size - self.huber**2, 1)
        return jnp.where(large, jnp.sign(errors) * jnp.sqrt(square), errors)

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
def linearise(equation: Equation, loss: WindowLoss, windows: WindowArrays) -> tuple[Array, Array]:
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
    equation: Equation,
    loss: WindowLoss,
    windows: WindowArrays,
    fixed: Bool[np.ndarray, " parameters"] | None = None,
) -> tuple[Equation, float]:
    """The equation with the least sum of squares, and that sum, by the Levenberg-Marquardt method.
    Parameters that are `fixed` keep their values.

    Compilation is most of the cost of a fit, and this compiles in half the time of
    `optimistix.least_squares`.
    """
    if loss.fits_starts:
        return _minimise_with_starts(equation, loss, windows, fixed)
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)
    at = lambda x: eqx.combine(unravel(jnp.asarray(x, flat.dtype)), static)
    linear = lambda x: [np.asarray(part, float) for part in linearise(at(x), loss, windows)]
    here, damping = np.asarray(flat, float), 1e-3
    free = np.ones(len(here)) if fixed is None else np.where(fixed, 0.0, 1.0)
    slopes, values = linear(here)
    for _ in range(50):
        slopes = slopes * free
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


# --- fitted starts --------------------------------------------------------------------------------


class Linearised(NamedTuple):
    """The errors of each window, and their derivatives to the parameters and to its start."""

    values: Float[np.ndarray, "windows values"]
    slopes: Float[np.ndarray, "windows values parameters"]
    start_slopes: Float[np.ndarray, "windows values states"]

    @property
    def square(self) -> float:
        return float(np.sum(self.values**2))


@eqx.filter_jit
def _linearise_with_starts(
    equation: Equation, loss: WindowLoss, windows: WindowArrays, starts: Array
) -> tuple[Array, Array, Array]:
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)

    def residuals(flat, start, window):
        changed = eqx.combine(unravel(flat), static)
        values = loss.residuals_from(changed, window, start).ravel()
        return values, values

    def one(window, start):
        find = jax.jacfwd(residuals, argnums=(0, 1), has_aux=True)
        (slopes, start_slopes), values = find(flat, start, window)
        return values, slopes, start_slopes

    return jax.vmap(one)(windows, starts)


def linearise_with_starts(
    equation: Equation, loss: WindowLoss, windows: WindowArrays, starts: np.ndarray
) -> Linearised:
    parts = _linearise_with_starts(equation, loss, windows, jnp.asarray(starts, float))
    return Linearised(*(np.asarray(part, float) for part in parts))


def _minimise_with_starts(
    equation: Equation,
    loss: WindowLoss,
    windows: WindowArrays,
    fixed: Bool[np.ndarray, " parameters"] | None,
) -> tuple[Equation, float]:
    equation, _, square = fit_starts(equation, loss, windows, fixed)
    return equation, square


def fit_starts(
    equation: Equation,
    loss: WindowLoss,
    windows: WindowArrays,
    fixed: Bool[np.ndarray, " parameters"] | None = None,
) -> tuple[Equation, Float[np.ndarray, "windows states"], float]:
    """The equation and the start of each window with the least sum of squares, and that sum.

    Each start matters to its own window alone, so its step follows from that of the parameters
    (Schur's complement).
    """
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)
    at = lambda x: eqx.combine(unravel(jnp.asarray(x, flat.dtype)), static)
    free = np.ones(flat.size) if fixed is None else np.where(fixed, 0.0, 1.0)
    here, starts = np.asarray(flat, float), np.asarray(windows.ys[:, 0], float)
    linear = lambda x, z: linearise_with_starts(at(x), loss, windows, z)
    now, damping = linear(here, starts), 1e-3
    for _ in range(50):
        step, start_steps = _find_steps(now._replace(slopes=now.slopes * free), damping)
        new = linear(here + step, starts + start_steps)
        if not new.square < now.square:
            damping *= 10
            if damping > 1e6:
                break
            continue
        gain = 1 - new.square / now.square
        here, starts, now = here + step, starts + start_steps, new
        damping = max(damping / 10, LEAST_DAMPING)
        if gain < 1e-6:
            break
    return at(here), starts, now.square


def _find_steps(now: Linearised, damping: float) -> tuple[np.ndarray, np.ndarray]:
    """The damped Gauss-Newton steps of the parameters and of the starts."""
    sizes = [np.sqrt(np.sum(x**2, axis=(0, 1))) for x in (now.slopes, now.start_slopes)]
    size, start_size = (np.where(s > 0, s, 1) for s in sizes)
    a, b = now.slopes / size, now.start_slopes / start_size
    own = np.einsum("wni,wnj->wij", b, b)
    own += damping * np.eye(own.shape[1]) / len(own)
    mixed, right = np.einsum("wni,wnp->wip", b, a), np.einsum("wni,wn->wi", b, now.values)
    solved = np.linalg.solve(own, np.concatenate([mixed, right[..., None]], axis=2))
    matrix = np.einsum("wnp,wnq->pq", a, a) + damping * np.eye(len(size))
    matrix -= np.einsum("wip,wiq->pq", mixed, solved[..., :-1])
    vector = np.einsum("wnp,wn->p", a, now.values)
    vector -= np.einsum("wip,wi->p", mixed, solved[..., -1])
    step = np.linalg.solve(matrix, -vector)
    start_steps = -solved[..., -1] - solved[..., :-1] @ step
    return step / size, start_steps / start_size
