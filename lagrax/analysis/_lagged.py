"""Equations with constant lags as functions of vectors."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Complex, Float, PyTree

from .._solve.arguments import is_real, is_traced, real_array
from .._solve.delays import Lag, Learn
from .._solve.field import takes_history
from ..systems import System
from ._map import Start, check_known

Vector = Float[Array, " size"]
Past = Float[Array, "lags size"]
State = Start


class LaggedEquation(eqx.Module):
    """An autonomous equation whose delays are constant lags, y′ = f(y(t), y(t − τ_1), …).

    ```python
    def field(t, x, a, *, history):
        (lagged,) = history
        return -a * lagged


    LaggedEquation(field, 0.0, 1.5, delays=[lagrax.Lag(1.0)])
    ```

    The functions for equilibria and cycles take one of these, or a system of `lagrax.systems` with
    lags. An ordinary equation has `delays=()`. They work on the state as one vector; `vector` and
    `state` convert one into the other.

    **Arguments:**

    - `field`: As for `lagrax.solve`. It must not depend on time.
    - `y0`: A state. All states have its structure and shapes, and searches start there.
    - `args`: Passed to the field.
    - `delays`: A list of `Lag`s. Arrays as lags are differentiable.
    """

    field: Callable
    y0: PyTree[Float[Array, "..."]]
    args: PyTree
    taus: Float[Array, " lags"]
    sizes: tuple[int | None, ...] = eqx.field(static=True)

    def __init__(
        self, field: Callable, y0: State, args: PyTree = None, *, delays: Sequence[Lag] = ()
    ):
        if not callable(field):
            raise TypeError(
                f"LaggedEquation got field={field!r:.60}, which cannot be called; expected "
                "f(t, y, args, *, history)."
            )
        taus = _read_lags(delays)
        self.field, self.args = field, args
        self.y0 = _check_start(y0)
        dtype = self.vector().dtype
        flat = [jnp.ravel(jnp.asarray(tau, dtype)) for tau in taus]
        self.taus = jnp.concatenate([*flat, jnp.zeros(0, dtype)])
        self.sizes = tuple(None if jnp.ndim(tau) == 0 else jnp.size(tau) for tau in taus)
        self._check_field()

    @property
    def size(self) -> int:
        """The number of components of a state."""
        return sum(x.size for x in jax.tree.leaves(self.y0))

    def vector(self, state: State = None) -> Vector:
        """A state as a vector. By default that of `y0`."""
        if state is None:
            state = self.y0
        _check_state(state, self.y0)
        dtype = jnp.result_type(float, *jax.tree.leaves(self.y0))
        like = jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), state, self.y0)
        return ravel_pytree(like)[0].astype(dtype)

    def state(self, vector: Vector) -> PyTree[Float[Array, "..."]]:
        """The state with these components."""
        return self._unravel(vector)

    def __call__(self, y: Vector, past: Past, t: float | int = 0.0) -> Vector:
        """The slope at the state `y` with the states `past`, one row for each lag."""
        rows, history = iter(range(past.shape[0])), []
        for size in self.sizes:
            if size is None:
                history.append(self._unravel(past[next(rows)]))
            else:
                history.append(jax.vmap(self._unravel)(past[jnp.array([*_take(rows, size)])]))
        state, time = self._unravel(y), jnp.asarray(t, y.dtype)
        if takes_history(self.field):
            slope = self.field(time, state, self.args, history=self._prepare(tuple(history)))
        else:
            slope = self.field(time, state, self.args)
        return ravel_pytree(jax.tree.map(jnp.asarray, slope))[0].astype(y.dtype)

    def _unravel(self, vector: Vector) -> PyTree:
        example, unravel = ravel_pytree(self.y0)
        return unravel(vector.astype(example.dtype))

    def _prepare(self, history: tuple) -> PyTree:
        """Fields may split themselves in `hold(history)` and `__call__`, see `lagrax.solve`."""
        hold = getattr(self.field, "hold", None)
        return hold(history) if callable(hold) else history

    def _check_field(self) -> None:
        y = self.vector()
        past = jnp.broadcast_to(y, (len(self.taus), y.size))
        slope = eqx.filter_eval_shape(self, y, past)
        if slope.shape != y.shape:
            raise ValueError(
                f"The field returned {slope.size} numbers for a state of {y.size}; expected the "
                "slope in the structure of y0."
            )
        slope, later = self(y, past), self(y, past, jnp.nan)
        if is_traced(slope, later):
            return
        if np.all(np.isfinite(slope)) and not np.all(np.isfinite(later)):
            raise ValueError(
                "The field depends on time; expected an autonomous equation, which alone has "
                "equilibria and cycles of any period. Leave t out of the field."
            )


def _take(rows: Any, size: int) -> list[int]:
    return [next(rows) for _ in range(size)]


def _read_lags(delays: Any) -> list[Any]:
    """The lag of each delay, a number or a row."""
    if isinstance(delays, (str, eqx.Module)) or not isinstance(delays, Sequence):
        raise TypeError(f"LaggedEquation got delays={delays!r:.60}; expected a list of Lag.")
    for delay in delays:
        tau = getattr(delay, "tau", None)
        if not isinstance(delay, Lag):
            raise TypeError(
                f"LaggedEquation got {delay!r:.60} among its delays; expected Lag alone. For holds "
                "of one period use lagrax.analysis.knot_map."
            )
        if isinstance(tau, Learn) or callable(tau) or getattr(delay, "of", None) is not None:
            raise TypeError(
                f"LaggedEquation got {delay!r:.60}; expected constant lags of the whole state, "
                "such as Lag(1.0)."
            )
    return [delay.tau for delay in delays]


def _check_start(y0: Any) -> PyTree[Float[Array, "..."]]:
    for x in jax.tree.leaves(y0):
        if not is_real(x) and (is_traced(x) or real_array(x) is None):
            raise TypeError(f"LaggedEquation got y0={x!r:.60}; expected real numbers.")
    check_known(y0, "LaggedEquation got y0")
    if not sum(np.size(x) for x in jax.tree.leaves(y0)):
        raise ValueError("LaggedEquation got an empty y0; expected a state of some numbers.")
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float, x)), y0)


def _check_state(state: Any, y0: PyTree) -> None:
    shapes = [str(jax.tree.map(lambda x: list(np.shape(x)), tree)) for tree in (state, y0)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"Got a state of shape {shapes[0]}; expected that of the equation's y0, {shapes[1]}."
        )
    check_known(state, "Got a state")


def as_lagged(equation: Any) -> LaggedEquation:
    """The equation of a system with lags, or the equation itself."""
    if isinstance(equation, LaggedEquation):
        return equation
    if isinstance(equation, System):
        return LaggedEquation(equation, equation.y0, delays=equation.delays)  # pyright: ignore
    raise TypeError(
        f"Got {equation!r:.60} as an equation; expected a LaggedEquation(field, y0, args, "
        "delays=[...]) or a system of lagrax.systems with lags."
    )


def slope_at_rest(equation: LaggedEquation, y: Vector) -> Vector:
    """The slope of a state that has been at rest."""
    return equation(y, jnp.broadcast_to(y, (len(equation.taus), y.size)))


# --- linearisation --------------------------------------------------------------------------------


def linearise(
    equation: LaggedEquation, y: Vector, past: Past | None = None
) -> Float[Array, "terms size size"]:
    """The derivatives of the slope with respect to the state and each lagged state, stacked. The
    past is constant by default."""
    past = jnp.broadcast_to(y, (len(equation.taus), y.size)) if past is None else past
    matrices = jax.jacfwd(lambda ys: equation(ys[0], ys[1:]))(jnp.concatenate([y[None], past]))
    return jnp.moveaxis(matrices, 0, 1)


def get_lags(equation: LaggedEquation) -> Float[Array, " terms"]:
    """The lags of the matrices that `linearise` returns. That of the state is 0."""
    return jnp.concatenate([jnp.zeros(1, equation.taus.dtype), equation.taus])


def characteristic_matrix(
    matrices: Float[Array, "terms size size"],
    lags: Float[Array, " terms"],
    root: Complex[Array, ""],
) -> Complex[Array, "size size"]:
    """Δ(λ) = λ − Σ_j A_j exp(−λ τ_j), singular at the characteristic roots."""
    factors = jnp.exp(-root * lags)
    return root * jnp.eye(matrices.shape[1]) - jnp.einsum("j,jab->ab", factors, matrices)
