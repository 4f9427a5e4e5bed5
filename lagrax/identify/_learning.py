"""How the parameters of an equation are learned from windows of series, and how a learned one is
followed."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..training._machine import load
from ._equations import Equation, Row, Setting, follow, followed


class Errors(eqx.Module):
    """The mean squared error of each window, in standard deviations. A module, so that fits of the
    same shape share their compiled code."""

    setting: Setting
    scale: Float[Array, " states"]

    def residuals(self, equation: Equation, row: Row) -> Float[Array, "samples states"]:
        states = follow(equation, self.setting, row)
        return jnp.where(row.weights > 0, states - row.ys, 0) / self.scale

    def __call__(self, equation: Equation, rows: Row) -> Float[Array, " rows"]:
        squares = jax.vmap(lambda row: jnp.sum(self.residuals(equation, row) ** 2))(rows)
        return squares / jnp.maximum(jnp.sum(rows.weights, axis=(1, 2)), 1)


class HeldOut(eqx.Module):
    errors: Errors

    def __call__(self, equation: Equation, rows: Row) -> dict[str, Array]:
        return {"held_out": jnp.mean(self.errors(equation, rows))}


@functools.cache
def optimiser(learning_rate: float, iterations: int) -> Any:
    """Adam with a rate that decays to a hundredth. A step in which a window runs away is passed
    over."""
    optax = load("optax")
    schedule = optax.cosine_decay_schedule(learning_rate, iterations, 0.01)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    return optax.apply_if_finite(clipped, 10**6)


@eqx.filter_jit
def _linearised(equation: Equation, errors: Errors, rows: Row) -> tuple[Array, Array]:
    """Residuals and their derivatives with respect to all parameters, one after the other."""
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, shaped = jax.flatten_util.ravel_pytree(arrays)

    def residuals(flat):
        moved = eqx.combine(shaped(flat), static)
        found = jax.vmap(lambda row: errors.residuals(moved, row))(rows).ravel()
        return found, found

    return jax.jacfwd(residuals, has_aux=True)(flat)


# With less of it, terms that the series cannot tell apart make the equations of a step singular.
LEAST_DAMPING = 1e-12


def least_squares(equation: Equation, errors: Errors, rows: Row) -> tuple[Equation, float]:
    """The equation with the least sum of squares, and that sum: Levenberg and Marquardt's method.
    By hand: it compiles in half the time of `optimistix.least_squares`, most of that of a fit."""
    arrays, static = eqx.partition(equation, eqx.is_inexact_array)
    flat, shaped = jax.flatten_util.ravel_pytree(arrays)
    at = lambda x: eqx.combine(shaped(jnp.asarray(x, flat.dtype)), static)
    linear = lambda x: [np.asarray(part, float) for part in _linearised(at(x), errors, rows)]
    here, damping = np.asarray(flat, float), 1e-3
    slopes, values = linear(here)
    for _ in range(50):
        # Of parameters brought to the same effect, so that units do not matter.
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
        gained = 1 - np.sum(new_values**2) / np.sum(values**2)
        here, slopes, values = here + step, new_slopes, new_values
        damping = max(damping / 10, LEAST_DAMPING)
        if gained < 1e-6:
            break
    return at(here), float(np.sum(values**2))


def member_of(members: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, members)


@eqx.filter_jit
def mean_of(members: PyTree, setting: Setting, rows: Row) -> Array:
    """The states over the rows, as the mean of all members has them."""
    arrays, static = eqx.partition(members, eqx.is_array)
    one = lambda a: jax.vmap(lambda row: follow(eqx.combine(a, static), setting, row))(rows)
    return jnp.mean(jax.lax.map(one, arrays), axis=0)


@functools.lru_cache(maxsize=32)
def simulation(times: bytes, learned: bool) -> Callable:
    """An equation followed over given times, compiled once for all starts. With numbers for its
    periods the times are known to the compiler, in double precision."""
    ts = np.frombuffer(times)

    @eqx.filter_jit
    def run(equation: Equation, setting: Setting, past: Callable, us: Array) -> Array:
        return followed(equation, setting, jnp.asarray(ts, float) if learned else ts, past, us)

    return run
