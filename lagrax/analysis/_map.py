"""The map from the states at one knot to those at the next."""

from collections.abc import Callable, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree, Real, Shaped

from .._solve.arguments import (
    check_memory,
    check_whole,
    is_number,
    is_real,
    is_traced,
    is_whole,
    real_array,
)
from .._solve.checks import check_delays
from .._solve.delays import Delay, Hold, Lag, Learn, RealScalar, describe
from .._solve.gradients import Direct
from .._solve.solve import solve
from ..systems import HeldSystem, System

Point = Float[Array, " size"]
Values = Real[ArrayLike, "..."] | Sequence[RealScalar]
# A state like y0, a point of the map, or None for the map's own start.
Start = PyTree[Shaped[ArrayLike, "..."]] | None


class KnotMap(eqx.Module):
    """The map from the states at the last knots to the next: `step(newest, older, ...)`.

    `knot_map` makes the map of an equation. Write a known map down as

    ```python
    ricker = KnotMap(lambda x: x * jnp.exp(3.2 * (1 - x)), y0=0.5)
    henon = KnotMap(lambda x, older: 1 - 1.4 * x**2 + 0.3 * older, y0=0.1, lags=2)
    ```

    States are any pytree of real arrays. The map takes and returns a *point*, a vector that holds
    the knots, the newest first. `point` and `knots` convert one into the other.

    **Arguments:**

    - `step`: A function of `lags` states, the newest first, that returns the next state.
    - `y0`: A start. All states have its structure and shapes.
    - `lags`: The number of knots that the next one depends on.
    """

    step: Callable
    y0: PyTree[Float[Array, "..."]]
    lags: int = eqx.field(static=True)

    def __init__(self, step: Callable, y0: PyTree[Shaped[ArrayLike, "..."]], lags: int = 1):
        if not is_whole(lags) or lags < 1:
            raise ValueError(
                f"KnotMap got lags={lags!r}; expected a whole number, at least 1, of knots on "
                "which the next one depends."
            )
        if not callable(step):
            raise TypeError(
                f"KnotMap got step={step!r:.60}, which cannot be called; expected a function of "
                f"{lags} states, the newest first."
            )
        self.step, self.lags = step, int(lags)
        self.y0 = _checked_state(step, y0, self.lags)

    @property
    def size(self) -> int:
        """The length of a point, which is the size of a state times `lags`."""
        return self.lags * self._state_size

    @property
    def _state_size(self) -> int:
        return sum(x.size for x in jax.tree.leaves(self.y0))

    def __call__(self, point: Point) -> Point:
        """The next point."""
        new, _ = ravel_pytree(self.step(*self.knots(point)))
        return jnp.concatenate([new.astype(point.dtype), point[: self.size - new.size]])

    def point(self, *states: PyTree[Shaped[ArrayLike, "..."]]) -> Point:
        """The knots, the newest first, as a point. One state means a constant past, none a constant
        past at `y0`."""
        states = states or (self.y0,)
        states = states * self.lags if len(states) == 1 else states
        if len(states) != self.lags:
            raise ValueError(
                f"point got {len(states)} states; expected {self.lags}, one for each knot on which "
                "the next depends, the newest first, or a single one for a constant past."
            )
        for state in states:
            _check_real(state, "point")
        if not all(self._is_state(s) for s in states):
            got, expected = _shapes(states[0]), _shapes(self.y0)
            raise ValueError(
                f"point got a state of shape {got}; expected that of the map's y0, {expected}."
            )
        like = lambda s: jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), s, self.y0)
        return jnp.concatenate([ravel_pytree(like(s))[0] for s in states])

    def knots(self, point: Point) -> tuple[PyTree[Float[Array, "..."]], ...]:
        """The states at the last knots, the newest first."""
        example, unravel = ravel_pytree(self.y0)
        return tuple(unravel(x) for x in point.astype(example.dtype).reshape(self.lags, -1))

    def orbit(
        self, start: Start = None, iterates: int = 100, skip: int = 0
    ) -> Float[Array, "iterates size"]:
        """The points from `start` on, itself included unless the first `skip` are left out.
        `start` is a state (a constant past), a point, or by default `y0`."""
        check_counts("orbit", iterates=(iterates, 1), skip=(skip, 0))
        check_memory("orbit", f"iterates={iterates}", iterates * self.size)
        return orbit_of(self, get_start(self, start), iterates, skip)

    def jacobian(self, point: Point) -> Float[Array, "size size"]:
        """The derivative of the map; its eigenvalues at a fixed point are the multipliers."""
        return jax.jacfwd(self)(point)

    def _is_state(self, x: Any) -> bool:
        same = jax.tree.structure(x) == jax.tree.structure(self.y0)
        return same and _shapes(x) == _shapes(self.y0)


def _shapes(tree: PyTree) -> str:
    return str(jax.tree.map(lambda x: list(np.shape(x)), tree))


def _checked_state(step: Callable, y0: PyTree, lags: int) -> PyTree[Float[Array, "..."]]:
    """`y0` in the type that the map returns."""
    _check_real([x for x in jax.tree.leaves(y0) if not np.iscomplexobj(x)], "KnotMap")
    check_known(y0, "KnotMap got y0")
    y0 = jax.tree.map(jnp.asarray, y0)
    y0 = jax.tree.map(lambda x: x.astype(jnp.result_type(x, float)) if _is_int(x) else x, y0)
    if not jax.tree.leaves(y0) or any(jnp.iscomplexobj(x) for x in jax.tree.leaves(y0)):
        types = [str(x.dtype) for x in jax.tree.leaves(y0)]
        raise ValueError(
            f"KnotMap got y0 with arrays of {types}; expected at least one, and real ones. Split a "
            "complex state into its real and imaginary parts."
        )
    arrays = lambda *knots: jax.tree.map(jnp.asarray, step(*knots))
    new = eqx.filter_eval_shape(arrays, *[y0] * lags)
    shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (new, y0)]
    if jax.tree.structure(new) != jax.tree.structure(y0) or shapes[0] != shapes[1]:
        raise ValueError(
            f"The step returned a state of shape {_shapes(new)} for y0 of shape {_shapes(y0)}. "
            "Return the next state in the structure of y0."
        )
    return jax.tree.map(lambda x, n: x.astype(jnp.result_type(x, n)), y0, new)


def check_counts(name: str, **counts: tuple[Any, int]) -> None:
    """Each a number and its least value."""
    for what, (value, least) in counts.items():
        check_whole(name, what, value, least)


def _check_real(state: PyTree, name: str) -> None:
    for x in jax.tree.leaves(state):
        if not is_real(x) and (is_traced(x) or real_array(x) is None):
            raise TypeError(f"{name} got a state of {x!r:.60}; expected real numbers.")


def check_known(state: PyTree, what: str) -> None:
    """Raises for a state that is known and not finite. Its structure is checked elsewhere."""
    for x in jax.tree.leaves(state):
        known = None if is_traced(x) else real_array(x)
        if known is not None and not np.all(np.isfinite(known)):
            raise ValueError(f"{what}={x!s:.60}; expected finite numbers.")


def check_make(name: str, make: Any) -> None:
    """Raises for one equation in place of a function that makes equations."""
    if isinstance(make, (System, KnotMap)):
        kind = type(make).__name__
        example = kind if isinstance(make, System) else "lambda a: KnotMap(...)"
        raise TypeError(
            f"{name} got the equation {make!r:.60}; expected a function from the parameter to an "
            f"equation, such as {example}."
        )


def check_values(name: str, what: str, values: Any) -> np.ndarray:
    """The values of a parameter in float64, checked to be finite."""
    known = real_array(values)
    if known is None or not np.all(np.isfinite(known)):
        raise ValueError(f"{name} got {what}={values!r:.60}; expected finite real numbers.")
    return known


def _is_int(x: Array) -> bool:
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def get_start(f: KnotMap, start: Start) -> Point:
    if start is None:
        return f.point()
    check_known(start, "Got start")
    if not f._is_state(start) and eqx.is_array_like(start) and np.shape(start) == (f.size,):
        return jnp.asarray(start, f.point().dtype)
    return f.point(start)


@eqx.filter_jit
def orbit_of(f: KnotMap, point: Point, iterates: int, skip: int) -> Float[Array, "iterates size"]:
    point = jax.lax.fori_loop(0, skip, lambda _, x: f(x), point)
    return jax.lax.scan(lambda x, _: (f(x), x), point, length=iterates)[1]


def knot_map(
    equation: Callable,
    y0: Start = None,
    args: PyTree = None,
    *,
    delays: Sequence[Delay] | None = None,
    solver: diffrax.AbstractSolver | None = None,
    steps: int | None = None,
    rtol: float | None = None,
) -> KnotMap:
    """The knot map of an equation whose delays are holds of one period.

    ```python
    exact = knot_map(lagrax.systems.Population(a=3.2))
    learned = knot_map(field, y0=jnp.array([0.5]), delays=lagrax.holds(1.0, 2), steps=4)
    ```

    A system with a closed form is solved exactly. Other equations, and systems for which `solver`,
    `steps` or `rtol` is given, are solved by `lagrax.solve` over one interval. For a trained model,
    give the `steps` of its training, which are part of its map. A field that depends on time must
    have the period of the holds; otherwise there is no such map.

    **Arguments:**

    - `equation`: A system of `lagrax.systems`, or a field as for `lagrax.solve`.
    - `y0`: A start, which has the structure of a state. By default that of the system.
    - `args`: Passed to the field.
    - `delays`: The delays of the equation. By default those of the system.
    - `solver`, `steps`: As for `lagrax.solve`.
    - `rtol`: The tolerance of adaptive steps. By default 1e-9 in float64 and 1e-5 in float32.
    """
    if isinstance(equation, System):
        y0 = equation.y0 if y0 is None else y0
        delays = equation.delays if delays is None else delays
    if y0 is None or delays is None:
        missing = "y0" if y0 is None else "delays"
        raise ValueError(
            f"knot_map got a field without {missing}. Write knot_map(field, y0, "
            "delays=lagrax.holds(1.0, 1)), or KnotMap(step, y0) for a known map."
        )
    if not isinstance(delays, Sequence) or not all(isinstance(d, (Hold, Lag)) for d in delays):
        check_delays(delays)
    tau = _find_period(delays)
    lags = 1 + max(d.lag for d in delays if isinstance(d, Hold))
    if isinstance(equation, HeldSystem) and solver is None and steps is None and rtol is None:
        return KnotMap(equation.flow(equation.tau), y0, lags)
    if steps is not None and rtol is not None:
        raise ValueError(
            f"knot_map got steps={steps} and rtol={rtol}; expected one of them. Equal steps have "
            "no tolerance."
        )
    if rtol is not None and not (is_number(rtol) and rtol > 0):
        raise ValueError(f"knot_map got rtol={rtol!r}; expected a positive number, such as 1e-6.")
    solver = diffrax.Tsit5() if solver is None else solver
    return KnotMap(
        _SolvedInterval(equation, args, list(delays), tau, solver, steps, rtol), y0, lags
    )


def _find_period(delays: Sequence[Delay]) -> RealScalar:
    periodic = [d.tau for d in delays if isinstance(d, Hold) and d.tau is not None]
    taus = [tau for tau in periodic if not isinstance(tau, Learn)]
    known = not any(is_traced(tau) for tau in taus)
    same = not known or len({float(np.asarray(tau)) for tau in taus}) == 1
    if not taus or len(taus) < len(delays) or not same:
        raise ValueError(
            f"knot_map got the delays {describe(delays)}; expected holds of one period, such as "
            "lagrax.holds(1.0, 2). Only then do finitely many knots determine the next one, and "
            "always in the same way."
        )
    return taus[0]


class _SolvedInterval(eqx.Module):
    """The solution over one interval by `lagrax.solve`, with the older knots as the past."""

    field: Callable
    args: PyTree
    delays: list[Delay]
    tau: RealScalar
    solver: diffrax.AbstractSolver
    steps: int | None
    rtol: float | None

    def __call__(self, *knots: PyTree) -> PyTree:
        dtype = jnp.result_type(*jax.tree.leaves(knots[0]))
        tau = jnp.asarray(self.tau, dtype)
        rtol = self.rtol or (1e-9 if dtype == jnp.float64 else 1e-5)
        # The tolerance controls the state, not its derivative, which orbits and exponents need.
        # Near a fixed point steps would become too long for the derivative.
        adaptive = diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, dtmax=tau / 16)

        def past(t):
            number = jnp.round(-t / tau).astype(int)
            return jax.tree.map(lambda *states: jnp.stack(states)[number], *knots)

        solution = solve(
            self.field,
            0.0,
            self.tau,
            knots[0] if len(knots) == 1 else past,
            self.args,
            delays=self.delays,
            solver=self.solver,
            steps=self.steps,
            stepsize_controller=adaptive if self.steps is None else None,
            intervals=1,
            gradient=Direct(),
            max_steps=1024,
            throw=False,
        )
        return jax.tree.map(lambda x: x[-1], solution.ys)


def as_map(equation: KnotMap | System) -> KnotMap:
    return equation if isinstance(equation, KnotMap) else knot_map(equation)
