"""Cycles of equations with lags and their Floquet multipliers."""

import math
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Complex, Float, PyTree, Real

from .._solve.arguments import check_memory, check_whole, is_number, is_traced
from .._solve.delays import Lag, RealScalar
from .._solve.solve import solve
from ._collocation import (
    Mesh,
    Profile,
    collocate,
    equidistribute,
    interpolate,
    monodromy,
    node_times,
)
from ._equilibria import Equation
from ._lagged import LaggedEquation, as_lagged
from ._newton import find_root


class Cycle(eqx.Module):
    """A periodic solution of an equation with lags. `find_cycle` finds it.

    - `period`: Its period.
    - `mesh`: The ends of its polynomials, as fractions of the period.
    - `profile`: The states at the nodes of the polynomials, one vector in each row.
    """

    period: Float[Array, ""]
    mesh: Mesh
    profile: Profile
    example: PyTree[Float[Array, "..."]]

    @property
    def ts(self) -> Float[Array, " nodes"]:
        """The times of the nodes, from 0 up to the period."""
        degree = self.profile.shape[0] // (self.mesh.shape[0] - 1)
        return self.period * jnp.append(node_times(self.mesh, degree), 1.0)

    @property
    def ys(self) -> PyTree[Float[Array, "nodes ..."]]:
        """The states at `ts`."""
        return self._states(jnp.concatenate([self.profile, self.profile[:1]]))

    def evaluate(self, t: Real[ArrayLike, "..."]) -> PyTree[Float[Array, "..."]]:
        """The states at times `t`, which may lie outside the first period."""
        t = jnp.asarray(t, self.period.dtype)
        return self._states(interpolate(self.mesh, self.profile, t / self.period))

    def _states(self, vectors: Float[Array, "... size"]) -> PyTree[Float[Array, "..."]]:
        leaves, structure = jax.tree.flatten(self.example)
        ends = np.cumsum([x.size for x in leaves])[:-1]
        parts = jnp.split(vectors, ends, axis=-1)
        shaped = [p.reshape(*p.shape[:-1], *x.shape) for p, x in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)


def find_cycle(
    equation: Equation,
    start: Cycle | Callable[[Array], Any] | None = None,
    *,
    period: RealScalar | None = None,
    settle: RealScalar | None = None,
    intervals: int = 20,
    degree: int = 4,
) -> Cycle:
    """Finds a periodic solution, stable or not, by collocation.

    ```python
    cycle = find_cycle(lagrax.systems.Hutchinson(a=1.8))
    cycle.period  # 4.18
    ```

    By default the equation is solved from `y0` until it settles into a cycle, which Newton's method
    then makes exact to the accuracy of the polynomials. To reach unstable cycles, or to follow one
    over a parameter, use `continue_branch`. The cycle is differentiable in the parameters; give a
    `start` inside `jit` and `grad`.

    **Arguments:**

    - `equation`: A `LaggedEquation`, or a system with lags.
    - `start`: A cycle nearby, such as one for other parameters; or a function from time to the
      state, with a `period`.
    - `period`: The approximate period of a `start` that is a function.
    - `settle`: The time for which the equation is solved. By default 100 times the longest lag.
    - `intervals`, `degree`: The number of polynomials and their degree. The mesh adapts to the
      cycle. The error falls at least as the power `degree` + 1 of their number. Raise it for
      cycles with sharp peaks.

    K. Engelborghs, T. Luzyanina, K. J. in 't Hout, D. Roose, *Collocation methods for the
    computation of periodic solutions of delay differential equations*, SIAM J. Sci. Comput. 22
    (2000).
    """
    f = as_lagged(equation)
    check_whole("find_cycle", "intervals", intervals, 3)
    check_whole("find_cycle", "degree", degree, 1, 12, "Raise `intervals` instead.")
    unknowns = intervals * degree * f.size + 1
    check_memory("find_cycle", f"intervals={intervals} of degree={degree}", unknowns**2)
    cycle = _first_guess(f, start, period, settle, intervals, degree)
    for _ in range(2):
        cycle, _ = _correct(f, cycle)
        cycle = _adapt(cycle)
    cycle, converged = _correct(f, cycle)
    _check_cycle(cycle, converged)
    return cycle


def _check_cycle(cycle: Cycle, converged: Bool[Array, ""]) -> None:
    if is_traced(converged, cycle.profile, cycle.period):
        return
    if not converged:
        raise ValueError(
            "find_cycle found none from its start. Give a closer `start`, such as the cycle for "
            "other parameters, or follow it from a Hopf point by continue_branch."
        )
    spread = float(jnp.max(jnp.ptp(cycle.profile, axis=0)))
    if spread <= 1e-6 * (float(jnp.max(jnp.abs(cycle.profile))) + 1e-300) or cycle.period <= 0:
        raise ValueError(
            "find_cycle found an equilibrium only. Give a `start` with the size and period of the "
            "cycle, or follow it from a Hopf point by continue_branch."
        )


@eqx.filter_jit
def _correct(f: LaggedEquation, guess: Cycle) -> tuple[Cycle, Bool[Array, ""]]:
    shape = guess.profile.shape
    fixed = jax.lax.stop_gradient(guess)

    def conditions(unknown):
        profile = unknown[:-1].reshape(shape)
        return collocate(f, fixed.mesh, profile, unknown[-1], fixed.profile)

    unknown, converged = find_root(conditions, jnp.append(fixed.profile.ravel(), fixed.period))
    return Cycle(unknown[-1], fixed.mesh, unknown[:-1].reshape(shape), f.y0), converged


@eqx.filter_jit
def _adapt(cycle: Cycle) -> Cycle:
    degree = cycle.profile.shape[0] // (cycle.mesh.shape[0] - 1)
    mesh = equidistribute(cycle.mesh, cycle.profile)
    profile = interpolate(cycle.mesh, cycle.profile, node_times(mesh, degree))
    return Cycle(cycle.period, mesh, profile, cycle.example)


# --- the first guess ------------------------------------------------------------------------------


def _first_guess(
    f: LaggedEquation, start: Any, period: Any, settle: Any, intervals: int, degree: int
) -> Cycle:
    for name, value in (("period", period), ("settle", settle)):
        if value is not None and not is_traced(value) and not (is_number(value) and value > 0):
            raise ValueError(f"find_cycle got {name}={value!r:.60}; expected a positive number.")
    if (period is None) == callable(start) or not (
        start is None or callable(start) or isinstance(start, Cycle)
    ):
        raise ValueError(
            f"find_cycle got start={start!r:.60} and period={period!r}; expected a cycle alone, a "
            "function of time with its period, or neither."
        )
    dtype = f.vector().dtype
    mesh = jnp.linspace(0, 1, intervals + 1, dtype=dtype)
    if start is None:
        return _resample(_simulate(f, settle), f, intervals, degree)
    if isinstance(start, Cycle):
        return _resample(start, f, intervals, degree)
    times = node_times(mesh, degree)
    period = jnp.asarray(period, dtype)
    profile = jnp.stack([f.vector(start(t)) for t in period * times])
    return Cycle(period, mesh, profile, f.y0)


def _resample(start: Cycle, f: LaggedEquation, intervals: int, degree: int) -> Cycle:
    """A cycle with another number of polynomials, which lie as densely as the given ones."""
    dtype = f.vector().dtype
    mesh = jnp.linspace(0, 1, intervals + 1, dtype=dtype)
    mesh = jnp.interp(mesh, jnp.linspace(0, 1, start.mesh.size, dtype=dtype), start.mesh)
    profile = interpolate(start.mesh, start.profile, node_times(mesh, degree))
    return Cycle(start.period.astype(dtype), mesh, profile.astype(dtype), f.y0)


# The number of samples of a solution in which a period is sought.
_SAMPLES = 4000


def _simulate(f: LaggedEquation, settle: Any) -> Cycle:
    """The cycle to which the solution from `y0` settles, on a fine mesh of polygons."""
    if is_traced(settle, *jax.tree.leaves(f)):
        raise ValueError(
            "find_cycle got a traced equation (inside jit, grad or vmap) and no start. Find a "
            "cycle outside, and give it as `start`."
        )
    if settle is None and not len(f.taus):
        raise ValueError(
            "find_cycle got an equation without lags, and no time scale. Give `settle`, the time "
            "after which the solution repeats, or a `start`."
        )
    span = 100 * float(jnp.max(f.taus)) if settle is None else float(settle)
    states = sample_late(f, span)
    if not np.all(np.isfinite(states)):
        raise ValueError(f"find_cycle: the solution from y0 does not stay finite up to {span:g}.")
    if np.max(np.std(states, axis=0)) <= 1e-6 * np.max(np.abs(states)):
        raise ValueError(
            f"find_cycle: the solution from y0 is at rest after a time of {span:g}. Follow the "
            "cycle from a Hopf point by continue_branch, or give a `start`."
        )
    if find_return(states) is None:
        raise ValueError(
            f"find_cycle: the solution from y0 does not repeat within a time of {span / 4:g}. Give "
            "a longer `settle`, or a `start` with its `period`."
        )
    return guess_cycle(f, states, span)


def guess_cycle(f: LaggedEquation, states: np.ndarray, span: float) -> Cycle:
    """The last period of the samples of a solution, as a polygon."""
    lag = find_return(states)
    if lag is None:
        raise ValueError("The solution does not repeat.")
    mesh = np.linspace(0, 1, 1001)
    at = mesh[:-1] * lag + len(states) - 1 - lag
    profile = [np.interp(at, np.arange(len(states)), column) for column in states.T]
    like = lambda x: jnp.asarray(x, f.vector().dtype)
    period = lag * span / 2 / (_SAMPLES - 1)
    return Cycle(like(period), like(mesh), like(np.stack(profile, axis=1)), f.y0)


def sample_late(f: LaggedEquation, span: float) -> np.ndarray:
    """Samples of the second half of the solution from `y0`, NaN after a failure."""

    def field(t, y, f, *, history):
        return f(y, jnp.stack(history) if history else jnp.zeros((0, y.size), y.dtype))

    accuracy = 1e-8 if f.taus.dtype == jnp.float64 else 1e-5
    solution = solve(
        field,
        0.0,
        span,
        f.vector(),
        f,
        delays=[Lag(float(tau)) for tau in f.taus],
        stepsize_controller=diffrax.PIDController(rtol=accuracy, atol=1e-2 * accuracy),
        saveat=diffrax.SaveAt(ts=jnp.linspace(span / 2, span, _SAMPLES)),
        max_steps=100_000,
        throw=False,
    )
    return np.asarray(solution.ys, float)


def find_return(states: np.ndarray) -> int | None:
    """The number of samples after which the states repeat: the first deep minimum of the mean
    square distance from the shifted states."""
    # A component that hardly moves counts little.
    spread = np.std(states, axis=0)
    states = states / np.maximum(spread, 1e-6 * np.max(spread))
    half = len(states) // 2
    shifts = np.arange(1, half)
    distance = np.array([np.mean((states[k:] - states[:-k]) ** 2) for k in shifts])
    limit = 0.02 * np.max(distance)
    far = int(np.argmax(distance > limit))
    near = np.flatnonzero(distance[far:] < limit)
    if not len(near):
        return None
    first = far + int(near[0])
    after = np.flatnonzero(distance[first:] > limit)
    last = first + int(after[0]) if len(after) else len(distance)
    return int(shifts[first + np.argmin(distance[first:last])])


# --- multipliers ----------------------------------------------------------------------------------


def floquet_multipliers(
    equation: Equation, cycle: Cycle, *, count: int = 6
) -> Complex[Array, " multipliers"]:
    """The largest Floquet multipliers of a cycle.

    Small deviations grow by these factors in one period. One multiplier is 1, that of a shift in
    time; how close it comes shows the accuracy. The cycle is stable if all others lie inside the
    unit circle. Where it loses stability, a multiplier passes −1 (the period doubles), 1 (a fold or
    a branching), or a pair passes the circle (a torus).

    **Arguments:**

    - `equation`: The equation for which `cycle` was found.
    - `cycle`: The answer of `find_cycle`, or a point of a branch.
    - `count`: The number of multipliers, the largest first.
    """
    f = as_lagged(equation)
    check_whole("floquet_multipliers", "count", count, 1)
    if cycle.profile.shape[1] != f.size:
        raise ValueError(
            f"floquet_multipliers got a cycle of {cycle.profile.shape[1]} components for an "
            f"equation of {f.size}; expected a cycle of that equation."
        )
    return multipliers_of(f, cycle, count, periods_to_lag(f, cycle))


def periods_to_lag(f: LaggedEquation, cycle: Cycle) -> int:
    """The number of periods that the longest lag reaches back."""
    if is_traced(cycle.period, f.taus):
        raise ValueError(
            "The period or the lags are traced (inside jit, grad or vmap), and the number of "
            "periods in the longest lag must be known: take multipliers outside of it."
        )
    if not len(f.taus):
        return 1
    return max(1, math.ceil(float(jnp.max(f.taus)) / float(cycle.period)))


@eqx.filter_jit
def multipliers_of(
    f: LaggedEquation, cycle: Cycle, count: int, periods: int
) -> Complex[Array, " multipliers"]:
    matrix = monodromy(f, cycle.mesh, cycle.profile, cycle.period, periods)
    found = jnp.linalg.eigvals(matrix)
    return found[jnp.lexsort((-found.imag, -jnp.abs(found)))][:count]


def leave_out_shift(multipliers: np.ndarray) -> np.ndarray:
    """The multipliers without that of a shift in time."""
    return np.delete(multipliers, np.argmin(np.abs(multipliers - 1)))
