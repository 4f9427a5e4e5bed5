"""What an equation with held state does in the long run: the knot map and what follows from it.

The states at the knots determine everything after them, so z_k, z_{k−1}, … ↦ z_{k+1}
is an ordinary map, and its long run is that of the equation, written or learned:

```python
population = lagrax.systems.Population(a=2.2)
for orbit in lagrax.analysis.periodic_orbits(population):
    print(orbit.points, orbit.verdict)
```

Wherever a `KnotMap` is expected, a system of `lagrax.systems` with holds may be given as it is.
Switch to float64 (`jax.config.update("jax_enable_x64", True)`) for more than five digits.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Complex, Float, Inexact, Int, PyTree, Real, Shaped

from ._checks import check_delays
from ._delays import Delay, Hold, Lag, Learn, RealScalar, describe, is_number, is_traced, is_whole
from ._gradients import Direct
from ._solve import solve
from .figures import Figure, Line, Mark, Panel, Points
from .systems import HeldSystem, LinearSystem, System

Point = Float[Array, " size"]
Values = Real[ArrayLike, "..."] | Sequence[RealScalar]
Range = tuple[float | int, float | int]
# A state like y0, a point of the map, or None for the map's own start.
Start = PyTree[Shaped[ArrayLike, "..."]] | None


# --- the map --------------------------------------------------------------------------------------


class KnotMap(eqx.Module):
    """The map from the states at the last knots to the next: `step(newest, older, ...)`.

    Write one down for a map you know; make that of an equation with `knot_map`:

    ```python
    ricker = KnotMap(lambda x: x * jnp.exp(3.2 * (1 - x)), y0=0.5)
    henon = KnotMap(lambda x, older: 1 - 1.4 * x**2 + 0.3 * older, y0=0.1, lags=2)
    ```

    States are any pytree of real arrays. The map itself takes and returns a *point*: the knots, the
    newest first, flattened into one vector. `point` and `knots` go from one to the other.

    **Arguments:**

    - `step`: takes `lags` states, the newest first, and returns the next.
    - `y0`: a start; all states have its structure and shapes.
    - `lags`: how many knots the next one depends on.
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
        """The length of a point: the size of a state times `lags`."""
        return self.lags * self._state_size

    @property
    def _state_size(self) -> int:
        return sum(x.size for x in jax.tree.leaves(self.y0))

    def __call__(self, point: Point) -> Point:
        """The next point."""
        new, _ = ravel_pytree(self.step(*self.knots(point)))
        return jnp.concatenate([new.astype(point.dtype), point[: self.size - new.size]])

    def point(self, *states: PyTree[Shaped[ArrayLike, "..."]]) -> Point:
        """The knots, the newest first, as a point. A single state means a constant past, none at
        all a constant past at `y0`."""
        states = states or (self.y0,)
        states = states * self.lags if len(states) == 1 else states
        if len(states) != self.lags:
            raise ValueError(
                f"point got {len(states)} states; expected {self.lags}, one for each knot on which "
                "the next depends, the newest first, or a single one for a constant past."
            )
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
        _check_counts("orbit", iterates=(iterates, 1), skip=(skip, 0))
        return _orbit(self, _start_of(self, start), iterates, skip)

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


def _check_counts(name: str, **counts: tuple[Any, int]) -> None:
    """Each a number and its least value."""
    for what, (value, least) in counts.items():
        if not is_whole(value) or value < least:
            raise ValueError(f"{name} got {what}={value!r}; expected a whole number >= {least}.")


def _is_int(x: Array) -> bool:
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def _start_of(f: KnotMap, start: Start) -> Point:
    if start is None:
        return f.point()
    if not f._is_state(start) and eqx.is_array_like(start) and np.shape(start) == (f.size,):
        return jnp.asarray(start, f.point().dtype)
    return f.point(start)


@eqx.filter_jit
def _orbit(f: KnotMap, point: Point, iterates: int, skip: int) -> Float[Array, "iterates size"]:
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

    A system with a closed form is solved exactly; everything else, and a system for which `solver`,
    `steps` or `rtol` are given, by `lagrax.solve` over one interval. Use the `steps` with which a
    model was trained, so that its own map is seen. A field that depends on time must have the
    period of the holds, else there is no such map.

    **Arguments:**

    - `equation`: a system of `lagrax.systems`, or a field as for `lagrax.solve`.
    - `y0`: a start, which says what a state is; by default the system's.
    - `args`: passed to the field.
    - `delays`: the equation's; by default the system's.
    - `solver`, `steps`: as for `lagrax.solve`.
    - `rtol`: the tolerance of adaptive steps, by default 1e-9 in float64 and 1e-5 in float32.
    """
    if isinstance(equation, System):
        y0 = equation.y0 if y0 is None else y0
        delays = equation.delays if delays is None else delays
    if y0 is None or delays is None:
        missing = "y0" if y0 is None else "delays"
        raise ValueError(
            f"knot_map got a field without {missing}. Write knot_map(field, y0, "
            "delays=lagrax.holds(1.0, 1)); a map that you know is a KnotMap(step, y0)."
        )
    if not isinstance(delays, Sequence) or not all(isinstance(d, (Hold, Lag)) for d in delays):
        check_delays(delays)
    tau = _period_of(delays)
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
    return KnotMap(_Solved(equation, args, list(delays), tau, solver, steps, rtol), y0, lags)


def _period_of(delays: Sequence[Delay]) -> RealScalar:
    periodic = [d.tau for d in delays if isinstance(d, Hold) and d.tau is not None]
    taus = [tau for tau in periodic if not isinstance(tau, Learn)]
    known = not any(is_traced(tau) for tau in taus)
    same = not known or len({float(np.asarray(tau)) for tau in taus}) == 1
    if not taus or len(taus) < len(delays) or not same:
        raise ValueError(
            f"knot_map got the delays {describe(delays)}; expected holds of one period, such as "
            "lagrax.holds(1.0, 2): only then do finitely many knots say what comes next, and "
            "always in the same way."
        )
    return taus[0]


class _Solved(eqx.Module):
    """One interval by `lagrax.solve`, with the older knots as the past."""

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
        # The tolerance does not look at derivatives, of which most things here are made; near a
        # rest point steps would become too long for them.
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


def _as_map(equation: KnotMap | System) -> KnotMap:
    return equation if isinstance(equation, KnotMap) else knot_map(equation)


# --- periodic orbits ------------------------------------------------------------------------------


class Orbit(NamedTuple):
    """A periodic orbit of the map; of period one, a fixed point. `periodic_orbits` finds them.

    - `points`: one row for each of its points, in the order in which they are visited.
    - `multipliers`: the eigenvalues of the map's derivative once around, the largest first.
    """

    points: Float[Array, "period size"]
    multipliers: Complex[np.ndarray, " size"]

    @property
    def period(self) -> int:
        """After how many iterates it comes back."""
        return self.points.shape[0]

    @property
    def stability(self) -> str:
        """One of "stable", "saddle", "unstable", and "neutral" where the largest multiplier is so
        close to the unit circle that its side is not known."""
        size = np.abs(self.multipliers)
        width = 10 * np.sqrt(np.finfo(self.points.dtype).eps)
        if size[0] < 1 - width:
            return "stable"
        if size[0] <= 1 + width:
            return "neutral"
        return "unstable" if size[-1] > 1 else "saddle"

    @property
    def verdict(self) -> str:
        """The stability in a sentence."""
        largest, outside = self.multipliers[0], int(np.sum(np.abs(self.multipliers) > 1))
        real = abs(largest.imag) <= 1e-6 * abs(largest)
        number = f"{largest.real:.5g}" if real else f"of modulus {abs(largest):.5g}"
        how = "turning about it" if not real else "on the same side"
        how = "on alternating sides" if real and largest.real < 0 else how
        if self.stability == "stable":
            how = "" if largest == 0 else f", {how}"
            return f"stable: orbits nearby approach{how} (largest multiplier {number})"
        if self.stability == "neutral":
            event = "a fold or a branching" if largest.real > 0 else "a doubling of the period"
            event = event if real else "the birth of an invariant curve"
            return f"neutral: about to lose stability by {event} (largest multiplier {number})"
        which = f"{outside} of {len(self.multipliers)} directions"
        which = "every direction" if self.stability == "unstable" else which
        return (
            f"{self.stability}: orbits nearby leave in {which}, {how} (largest multiplier {number})"
        )


def periodic_orbits(
    equation: KnotMap | System,
    period: int = 1,
    starts: Real[ArrayLike, "..."] | None = None,
) -> list[Orbit]:
    """The isolated periodic orbits of exactly this period, stable or not; with period 1 the fixed
    points.

    ```python
    for orbit in periodic_orbits(lagrax.systems.Population(a=2.2), period=2):
        print(orbit.points, orbit.multipliers, orbit.verdict)
    ```

    Newton's method runs from all starts at once; each orbit found is returned once, in the order of
    the smallest first coordinate. There is no proof that none was missed: give more `starts` for
    long periods, and some in the region you care about. Of a solved equation, equal `steps` compile
    several times faster than adaptive ones.

    **Arguments:**

    - `equation`: a `KnotMap` or a system.
    - `period`: the prime period; orbits whose period divides it are left out.
    - `starts`: one start a row, each a point or a flattened state (a constant past). By default 64
      points of the orbit of `y0` and 192 random ones around it, always the same.
    """
    f = _as_map(equation)
    _check_period(period, "periodic_orbits")
    points = _default_starts(f) if starts is None else _checked_starts(f, starts)
    visited, converged, doubt = jax.tree.map(np.asarray, _returning(f, points, int(period)))
    orbits = []
    for orbit, width in zip(visited[converged], doubt[converged].tolist(), strict=True):
        if not _is_prime(orbit, width):
            continue
        if any(_nearest(orbit[0], other) <= max(width, its) for other, its in orbits):
            continue
        orbits.append((orbit, width))
    found = [np.roll(orbit, -np.lexsort(orbit.T[::-1])[0], axis=0) for orbit, _ in orbits]
    found = sorted(found, key=lambda orbit: tuple(orbit[0]))
    return [_with_multipliers(f, orbit) for orbit in found]


def _check_period(period: Any, name: str) -> None:
    if not is_whole(period) or period < 1:
        raise ValueError(
            f"{name} got period={period!r}; expected 1 for fixed points, or 2, 3, ... iterates "
            "after which an orbit comes back. (The period of the holds is part of the equation.)"
        )


def _default_starts(f: KnotMap) -> Float[Array, "starts size"]:
    orbit = f.orbit(iterates=64)
    known = np.asarray(orbit)[np.all(np.isfinite(orbit), axis=1)]
    low, high = known.min(axis=0), known.max(axis=0)
    width = np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))
    width = np.where(width > 0, width, 1.0)
    spread = jax.random.uniform(jax.random.key(0), (192, f.size), orbit.dtype)
    around = (low - width) + spread * (high - low + 2 * width)
    return jnp.concatenate([jnp.asarray(known), around])


def _checked_starts(f: KnotMap, starts: Any) -> Float[Array, "starts size"]:
    given = jnp.asarray(starts, f.point().dtype)
    small = f.size // f.lags
    rows = given[:, None] if given.ndim == 1 and small == 1 else given
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] not in (small, f.size):
        raise ValueError(
            f"periodic_orbits got starts of shape {given.shape}; expected one row for each start, "
            f"of {f.size} numbers (a point) or {small} (a state)."
        )
    return rows if rows.shape[1] == f.size else jnp.tile(rows, f.lags)


def _composed(f: KnotMap, period: int, point: Point) -> Point:
    return jax.lax.scan(lambda x, _: (f(x), None), point, length=period)[0]


@eqx.filter_jit
def _returning(
    f: KnotMap, starts: Float[Array, "starts size"], period: int
) -> tuple[Float[Array, "starts period size"], Bool[Array, " starts"], Float[Array, " starts"]]:
    """The orbits to which Newton's method comes, whether it does, and how far off they may be."""
    away = lambda x: _composed(f, period, x) - x
    points, converged, doubt = jax.vmap(lambda x: _newton(away, x))(starts)
    orbits = jax.vmap(lambda x: _orbit(f, x, period, 0))(points)
    return orbits, converged, doubt


def _newton(function: Callable, start: Point) -> tuple[Point, Bool[Array, ""], Float[Array, ""]]:
    """A zero of `function`, whether it was found, and the width of what rounding makes of it."""
    eps = float(jnp.finfo(start.dtype).eps)
    scale = lambda x: 1 + jnp.max(jnp.abs(x))
    both = jax.jacfwd(lambda x: (function(x),) * 2, has_aux=True)  # traced once: it may be large

    def advance(carry):
        x, _, _, calm, count = carry
        slope, value = both(x)
        change = jnp.linalg.solve(slope, value)
        small = jnp.max(jnp.abs(change)) <= eps ** (2 / 3) * scale(x)
        return x - change, slope, value, jnp.where(small, calm + 1, 0), count + 1

    # Once more after the first small change, so that the slope and the value are those at the end.
    going = lambda carry: (carry[3] < 2) & (carry[4] < 60) & jnp.all(jnp.isfinite(carry[0]))
    first = (start, jnp.zeros((start.size,) * 2, start.dtype), start, jnp.zeros((), int), 0)
    x, slope, value, calm, _ = jax.lax.while_loop(going, advance, first)
    # A small change alone may only mean a steep slope, as where orbits run off to infinity.
    steepness = 1 + jnp.max(jnp.abs(slope))
    off = jnp.max(jnp.abs(value)) / (scale(x) * steepness)
    found = (calm == 2) & (off <= 100 * eps) & (steepness < eps ** (-2 / 3))
    # Where the slope is nearly singular a whole neighbourhood is zero but for rounding.
    blur = 100 * eps * jnp.max(jnp.abs(jnp.linalg.inv(slope)))
    return x, found, scale(x) * (10 * eps**0.5 + jnp.where(jnp.isfinite(blur), blur, 0.0))


def _nearest(point: np.ndarray, orbit: np.ndarray) -> float:
    return float(np.min(np.max(np.abs(orbit - point), axis=1)))


def _is_prime(orbit: np.ndarray, width: float) -> bool:
    return len(orbit) == 1 or bool(_nearest(orbit[0], orbit[1:]) > width)


def _with_multipliers(f: KnotMap, orbit: np.ndarray) -> Orbit:
    points = jnp.asarray(orbit)
    jacobians = np.asarray(_jacobians(f, points), float)
    around = reduce(lambda product, J: J @ product, jacobians)
    multipliers = np.linalg.eigvals(around).astype(complex)
    return Orbit(points, multipliers[np.argsort(-np.abs(multipliers), kind="stable")])


@eqx.filter_jit
def _jacobians(f: KnotMap, points: Float[Array, "n size"]) -> Float[Array, "n size size"]:
    return jax.vmap(f.jacobian)(points)


class Critical(NamedTuple):
    """Where an orbit has a given multiplier: the answer of `critical`.

    - `parameter`: its value.
    - `orbit`: the orbit there.
    """

    parameter: float
    orbit: Orbit


def critical(
    make: Callable[..., KnotMap | System],
    parameter: RealScalar,
    *,
    period: int = 1,
    multiplier: float | int = -1,
    start: Start = None,
) -> Critical:
    """The value of a parameter at which an orbit of this period has this multiplier.

    With multiplier -1 its period doubles, with 1 it is born or dies (a fold) or branches, with 0 it
    attracts the most. Look at the bifurcation diagram for a first guess:

    ```python
    critical(lagrax.systems.Population, 1.9).parameter  # 2.0
    critical(lagrax.systems.Population, 2.5, period=2).parameter  # 2.5265
    ```

    Newton's method solves for the orbit and the parameter together, so the answer is exact to
    rounding.

    **Arguments:**

    - `make`: the equation as a function of the parameter.
    - `parameter`: where to start.
    - `period`: that of the orbit.
    - `multiplier`: a real number.
    - `start`: a point near the orbit; by default where the map is after 1,000 iterates.
    """
    _check_period(period, "critical")
    f = _as_map(make(jnp.asarray(parameter, float)))
    point = f.orbit(start, 1, 1000 if start is None else 0)[0]
    unknown = jnp.append(point, jnp.asarray(parameter, point.dtype))
    value, orbit, converged, doubt = _critical(make, unknown, int(period), float(multiplier))
    if not converged or not _is_prime(np.asarray(orbit), float(doubt)):
        what = f"one of a shorter period at {float(value):g}" if converged else "nothing"
        first = float(np.asarray(parameter))
        raise ValueError(
            f"critical looked for an orbit of period {period} with the multiplier {multiplier:g} "
            f"from {first:g} on and came to {what}. Give a closer `parameter`, for which a "
            "bifurcation diagram is of help, or a `start` near the orbit."
        )
    return Critical(float(value), _with_multipliers(_as_map(make(value)), np.asarray(orbit)))


@eqx.filter_jit
def _critical(make: Callable, unknown: Point, period: int, multiplier: float):
    def conditions(unknown):
        f, x = _as_map(make(unknown[-1])), unknown[:-1]
        around = lambda x: _composed(f, period, x)
        slope = jax.jacfwd(around)(x) - multiplier * jnp.eye(f.size, dtype=x.dtype)
        return jnp.append(around(x) - x, jnp.linalg.det(slope))

    found, converged, doubt = _newton(conditions, unknown)
    orbit = _orbit(_as_map(make(found[-1])), found[:-1], period, 0)
    return found[-1], orbit, converged, doubt


# --- Lyapunov exponents ---------------------------------------------------------------------------


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
    f = _as_map(equation)
    if not is_whole(iterates) or not is_whole(skip) or iterates < 1 or skip < 0:
        raise ValueError(
            f"lyapunov got iterates={iterates} and skip={skip}; expected at least 1, better "
            "thousands, and at least 0, both of them whole numbers."
        )
    return _lyapunov(f, _start_of(f, start), int(iterates), int(skip))


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


# --- bifurcation diagrams -------------------------------------------------------------------------


class Bifurcation(NamedTuple):
    """Where orbits stay, over a parameter.

    - `values`: of the parameter.
    - `states`: the kept states for each of them, flattened.
    - `exponents`: the largest Lyapunov exponent for each, over the kept iterates; NaN where the
      orbit escapes.
    - `periods`: the period, up to 64, to which the orbit has settled; 0 where it has none.
    """

    values: Float[Array, " values"]
    states: Float[Array, "values kept n"]
    exponents: Float[Array, " values"]
    periods: Int[np.ndarray, " values"]

    def figure(
        self, name: str = "bifurcation", *, parameter: str = "parameter", component: int = 0
    ) -> Figure:
        """The diagram of one component of the state, with the exponent below it. States that would
        cover each other are drawn once."""
        values, exponents = np.asarray(self.values, float), np.asarray(self.exponents, float)
        if component not in range(self.states.shape[2]):
            raise ValueError(
                f"figure got component={component!r}; expected one from 0 to "
                f"{self.states.shape[2] - 1}: the state has {self.states.shape[2]}."
            )
        x, y = _thinned(values, np.asarray(self.states, float)[:, :, component])
        ends = (float(values.min()), float(values.max()))
        ends = ends if ends[0] < ends[1] else _around(values)
        finite = exponents[np.isfinite(exponents)]
        floor = max(float(finite.min()), -2.0) if finite.size else -1.0
        top = max(float(finite.max()), 0.0) if finite.size else 1.0
        margin = 0.08 * (top - floor) or 0.1
        below: list[Mark] = [
            Line(ends, (0.0, 0.0), colour="grey", dashed=True, width=1),
            Line(values, np.where(np.isfinite(exponents), exponents, np.nan), width=1),
        ]
        label = "state at the knots" if self.states.shape[2] == 1 else f"component {component}"
        panels = [
            Panel([Points(x, y, size=0.5)], "", parameter, label, xlim=ends, ylim=_around(y)),
            Panel(
                below,
                "",
                parameter,
                "Lyapunov exponent",
                xlim=ends,
                ylim=(floor - margin, top + margin),
            ),
        ]
        caption = (
            f"Above, where the map stays for each of {len(values):,} values of {parameter}; below, "
            "the largest Lyapunov exponent, which is positive where it is chaotic."
        )
        return Figure(name, caption, panels)


def bifurcation(
    make: Callable[..., KnotMap | System],
    values: Values,
    start: Start = None,
    *,
    keep: int = 500,
    skip: int = 1_000,
) -> Bifurcation:
    """The bifurcation diagram over a parameter: for each value the states that the map visits once
    it has settled, with the Lyapunov exponent. All values run at once, on the accelerator if there
    is one.

    ```python
    diagram = bifurcation(lagrax.systems.Population, jnp.linspace(1.5, 3.5, 2000))
    figures.draw(diagram.figure(parameter="a"), Path("diagram.png"))
    ```

    **Arguments:**

    - `make`: the equation as a function of the parameter: a system, or
      `lambda a: knot_map(field, y0, a, delays=...)`.
    - `values`: of the parameter.
    - `start`: where every orbit starts; by default the equation's own.
    - `keep`: how many iterates to keep for each value.
    - `skip`: how many to leave out before. Raise it if branches look blurred: at a bifurcation
      orbits settle slowly.
    """
    values = jnp.asarray(values, float)
    _check_counts("bifurcation", keep=(keep, 1), skip=(skip, 0))
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"bifurcation got values of shape {values.shape}; expected a list of values. Write "
            "jnp.linspace(1.5, 3.5, 2000)."
        )
    states, exponents = _diagram(make, values, start, int(keep), int(skip))
    return Bifurcation(values, states, exponents, _periods(np.asarray(states)))


@eqx.filter_jit
def _diagram(
    make: Callable, values: Float[Array, " values"], start: Start, keep: int, skip: int
) -> tuple[Float[Array, "values kept n"], Float[Array, " values"]]:
    def advance(f, carry):
        x, direction = carry
        new, pushed = jax.jvp(f, (x,), (direction,))
        stretch = jnp.linalg.norm(pushed)
        lost = stretch == 0  # on a superstable orbit
        return (new, jnp.where(lost, direction, pushed / jnp.where(lost, 1, stretch))), stretch

    def one(value):
        f = _as_map(make(value))
        x = _start_of(f, start)
        carry = (x, jnp.full_like(x, x.size**-0.5))
        carry = jax.lax.fori_loop(0, skip, lambda _, c: advance(f, c)[0], carry)

        def kept(carry, _):
            state = carry[0][: f.size // f.lags]
            carry, stretch = advance(f, carry)
            return carry, (state, jnp.log(stretch))

        _, (states, growth) = jax.lax.scan(kept, carry, length=keep)
        return states, jnp.where(jnp.all(jnp.isfinite(states)), jnp.mean(growth), jnp.nan)

    return jax.vmap(one)(values)


def _periods(states: np.ndarray) -> Int[np.ndarray, " values"]:
    """The smallest p at which the last states repeat themselves."""
    longest = min(64, states.shape[1] // 2)
    last = states[:, -2 * longest :]
    width = 100 * np.finfo(states.dtype).eps ** 0.5 * (1 + np.max(np.abs(last), axis=(1, 2)))
    periods = np.zeros(len(states), int)
    for p in range(longest, 0, -1):
        with np.errstate(invalid="ignore"):
            off = np.max(np.abs(last[:, p:] - last[:, :-p]), axis=(1, 2))
        periods[off <= width] = p
    return periods


def _thinned(values: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One point for each of 801 x 501 cells that has any; of an odd number one is in the middle, so
    that rounding does not split a level branch."""
    x, y = np.repeat(values, states.shape[1]), states.ravel()
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not y.size:
        return x, y
    cells = [_scaled(part, many) for part, many in ((x, 801), (y, 501))]
    _, first = np.unique(1000 * cells[0] + cells[1], return_index=True)
    return x[first], y[first]


def _scaled(x: np.ndarray, many: int) -> np.ndarray:
    low, high = _around(x)
    return np.floor((x - low) / (high - low) * many).astype(np.int64)


def _around(x: np.ndarray) -> Range:
    """A range with all of `x`, and wider than what rounding makes of a single number."""
    if not x.size:
        return 0.0, 1.0
    middle, half = (x.max() + x.min()) / 2, np.ptp(x) / 2
    half = 1.05 * max(half, 0.05 * abs(middle)) or 1.0
    return float(middle - half), float(middle + half)


def cobweb(
    equation: KnotMap | System, start: Start = None, iterates: int = 60, *, name: str = "cobweb"
) -> Figure:
    """A picture of a map of one number: its graph, the diagonal, and the path of an orbit between
    them. For maps of more numbers look at `bifurcation` and `basins`."""
    f = _as_map(equation)
    if f.size != 1:
        raise ValueError(
            f"cobweb got a map of {f.size} numbers; expected one of a single number, a scalar "
            "state with one hold. For planar maps there is `basins`."
        )
    _check_counts("cobweb", iterates=(iterates, 1))
    orbit = np.asarray(f.orbit(start, iterates + 1), float)[:, 0]
    known = orbit[np.isfinite(orbit)]
    margin = 0.1 * np.ptp(known) or 0.5
    ends = (float(known.min() - margin), float(known.max() + margin))
    x = np.linspace(*ends, 400)
    graph = np.asarray(_applied(f, jnp.asarray(x, f.point().dtype)[:, None]), float)[:, 0]
    path = np.repeat(orbit, 2)
    marks: list[Mark] = [
        Line(ends, ends, "next = this", "grey", dashed=True, width=1),
        Line(path[:-2], path[1:-1], "orbit", "orange", width=0.6),
        Line(x, graph, "the map"),
    ]
    panel = Panel(
        marks, "", "state at a knot", "state at the next", equal=True, xlim=ends, ylim=ends
    )
    return Figure(name, f"The map and {iterates} iterates from {orbit[0]:g}.", [panel])


@eqx.filter_jit
def _applied(f: KnotMap, points: Float[Array, "n size"]) -> Float[Array, "n size"]:
    return jax.vmap(f)(points)


# --- basins ---------------------------------------------------------------------------------------


class Basins(NamedTuple):
    """Which start goes where, in the plane.

    - `x`, `y`: the starts' coordinates.
    - `labels`: the number of the attractor for each start, 0 for the one with the largest basin;
      -1 where the orbit escapes.
    - `attractors`: points of each.
    """

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    labels: Int[np.ndarray, "ny nx"]
    attractors: tuple[Float[np.ndarray, "_ 2"], ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of the starts that each attractor draws."""
        return tuple(float(np.mean(self.labels == i)) for i in range(len(self.attractors)))

    def figure(self, name: str = "basins", *, xlabel: str = "x", ylabel: str = "y") -> Figure:
        """The basins in colours, white where orbits escape, with dots on the attractors. Those from
        the sixth on share one colour."""
        colours = ("sky", "amber", "green", "purple", "yellow")
        marks: list[Mark] = []
        for i in range(min(len(self.attractors), len(colours) + 1)):
            others = i == len(colours)
            colour, label = ("grey", "others") if others else (colours[i], f"attractor {i + 1}")
            there = self.labels >= i if others else self.labels == i
            marks.append(_area(self.x, self.y, there, colour, label))
        for points in self.attractors[: len(colours)]:
            marks.append(Points(points[:, 0], points[:, 1], colour="blue", size=2))
        escaping = float(np.mean(self.labels < 0))
        caption = f"Starts by where their orbits go; {escaping:.0%} escape."
        return Figure(name, caption, [_plane(self.x, self.y, marks, xlabel, ylabel)])


def basins(
    equation: KnotMap | System,
    x: Range,
    y: Range,
    *,
    resolution: int = 200,
    iterates: int = 1_000,
) -> Basins:
    """The basins of attraction of a planar map, from a grid of starts: of a state of two numbers
    with one hold, or of a scalar state with two, where x is the newest knot and y the one before.

    ```python
    henon = KnotMap(lambda x, older: 1 - 1.4 * x**2 + 0.3 * older, y0=0.1, lags=2)
    basins(henon, (-2, 2), (-4, 4)).shares
    ```

    Two starts share an attractor, of whatever kind, if their orbits come closer to each other than
    a cell of the grid after `iterates`: raise `resolution` to tell close attractors apart, and
    `iterates` where orbits settle slowly and there seem to be many attractors.
    """
    f = _as_map(equation)
    if f.size != 2:
        raise ValueError(
            f"basins got a map of {f.size} numbers; expected a planar one, of two: a state of two "
            "numbers with one hold, or a scalar one with two."
        )
    _check_counts("basins", resolution=(resolution, 2), iterates=(iterates, 1))
    if not (_is_range(x) and _is_range(y)):
        raise ValueError(
            f"basins got x={x}, y={y}; expected two ranges (low, high) of finite numbers."
        )
    xs, ys = np.linspace(*x, resolution), np.linspace(*y, resolution)
    starts = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    cell = np.array([xs[1] - xs[0], ys[1] - ys[0]])
    visited = np.asarray(_long_run(f, jnp.asarray(starts, f.point().dtype), iterates), float)
    middle, reach = starts.mean(axis=0), 1e3 * np.ptp(starts, axis=0)
    stays = np.all(np.abs(visited - middle) < reach, axis=(1, 2))  # false for NaN, too
    labels = np.full(len(starts), -1)
    labels[stays] = _joined(visited[stays] / cell)
    # Some orbits of each attractor show a chaotic one well enough.
    some = [visited[labels == i][:20].reshape(-1, 2) for i in range(labels.max() + 1)]
    attractors = tuple(_distinct(points, cell) for points in some)
    return Basins(xs, ys, labels.reshape(resolution, resolution), attractors)


def _is_range(ends: Any) -> bool:
    return np.shape(ends) == (2,) and all(map(is_number, ends)) and ends[0] < ends[1]


_RECORDED = 32


@eqx.filter_jit
def _long_run(f: KnotMap, starts: Float[Array, "starts 2"], iterates: int):
    return jax.vmap(lambda x: _orbit(f, x, _RECORDED, iterates))(starts)


def _joined(visited: Float[np.ndarray, "starts recorded 2"]) -> Int[np.ndarray, " starts"]:
    """Numbers the groups of orbits that meet, the largest first. Points of which no coordinate
    differs by half a unit share a cell in one of four shifted grids."""
    starts, recorded, _ = visited.shape
    cells = []
    for shift in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)):
        whole = np.floor(visited.reshape(-1, 2) + shift).astype(np.int64)
        whole -= whole.min(axis=0, initial=0)
        key = whole[:, 0] * (whole[:, 1].max(initial=0) + 1) + whole[:, 1]
        cells.append(np.unique(key, return_inverse=True)[1].reshape(starts, recorded))
    labels, before = np.arange(starts), None
    while before is None or np.any(labels != before):
        before = labels
        for cell in cells:  # all that pass through a cell take its smallest label
            smallest = np.full(cell.max(initial=0) + 1, starts)
            np.minimum.at(smallest, cell.ravel(), np.repeat(labels, recorded))
            labels = smallest[cell].min(axis=1)
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-sizes, kind="stable"))[group]


def _distinct(points: Float[np.ndarray, "n 2"], cell: Float[np.ndarray, " 2"]) -> np.ndarray:
    _, first = np.unique(np.round(points / cell, 3), axis=0, return_index=True)
    return points[np.sort(first)]


# --- stability regions ----------------------------------------------------------------------------


class StabilityRegion(NamedTuple):
    """Where a linear equation is stable, over two parameters.

    - `x`, `y`: their values.
    - `radius`: the largest modulus of a multiplier for each pair; stable where it is below 1.
    - `boundary`: points at which it is 1 to rounding, in no special order.
    """

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    radius: Float[np.ndarray, "ny nx"]
    boundary: Float[np.ndarray, "_ 2"]

    @property
    def stable(self) -> Bool[np.ndarray, "ny nx"]:
        """Whether it is, for each pair."""
        return self.radius < 1

    def figure(
        self, name: str = "stability", *, xlabel: str = "first", ylabel: str = "second"
    ) -> Figure:
        """The stable region, shaded, and its boundary."""
        marks: list[Mark] = [
            _area(self.x, self.y, self.stable, "sky", "stable"),
            Points(self.boundary[:, 0], self.boundary[:, 1], "boundary", "blue", size=1.5),
        ]
        caption = f"Where all multipliers lie inside the unit circle, over {xlabel} and {ylabel}."
        return Figure(name, caption, [_plane(self.x, self.y, marks, xlabel, ylabel)])


def stability_region(make: Callable[..., Any], x: Values, y: Values) -> StabilityRegion:
    """The exact region of stability of a linear equation with holds over two parameters: its knot
    matrix comes from matrix exponentials, not from simulation, and the boundary is found to
    rounding wherever it passes between two points of the grid.

    ```python
    def loop(gain, tau):
        return lagrax.systems.DigitalControl(K=gain * jnp.array([[0.5, 1.0]]), tau=tau)


    region = stability_region(loop, jnp.linspace(0.1, 4, 100), jnp.linspace(0.05, 2, 100))
    ```

    **Arguments:**

    - `make`: the equation as a function of both: a linear system of `lagrax.systems`, or a square
      matrix, such as the `jacobian` of a `KnotMap` at a fixed point that is known.
    - `x`, `y`: increasing values of the first and second parameter.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    for name, values in (("x", xs), ("y", ys)):
        finite = np.all(np.isfinite(values))
        if values.ndim != 1 or len(values) < 2 or not finite or np.any(np.diff(values) <= 0):
            raise ValueError(
                f"stability_region got {name} of shape {values.shape}; expected at least two "
                "finite values that increase, such as jnp.linspace(0.1, 4, 100)."
            )
    pairs = np.stack(np.meshgrid(xs, ys), axis=-1)
    radius = _radius(make, pairs.reshape(-1, 2)).reshape(pairs.shape[:2])
    return StabilityRegion(xs, ys, radius, _boundary(make, pairs, radius < 1))


def _radius(make: Callable, pairs: Float[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
    # Eigenvalues on the host: accelerators do not have them.
    matrices = np.asarray(_matrices(make, jnp.asarray(pairs, float)), float)
    known = np.all(np.isfinite(matrices), axis=(1, 2))
    moduli = np.abs(np.linalg.eigvals(np.where(known[:, None, None], matrices, 0.0)))
    return np.where(known, moduli.max(axis=1), np.inf)


@eqx.filter_jit
def _matrices(make: Callable, pairs: Float[Array, "pairs 2"]) -> Inexact[Array, "pairs n n"]:
    def one(pair):
        made = make(pair[0], pair[1])
        matrix = made.knot_matrix if isinstance(made, LinearSystem) else made
        if np.ndim(matrix) != 2 or np.shape(matrix)[0] != np.shape(matrix)[1]:
            raise ValueError(
                f"stability_region got a {type(made).__name__} from make(x, y); expected a linear "
                "system of lagrax.systems or a square matrix. At a known fixed point of any other "
                "equation, return knot_map(equation).jacobian(point)."
            )
        return matrix

    return jax.vmap(one)(pairs)


def _boundary(
    make: Callable, pairs: Float[np.ndarray, "ny nx 2"], stable: Bool[np.ndarray, "ny nx"]
) -> Float[np.ndarray, "_ 2"]:
    """Bisects each edge of the grid with a stable and an unstable end."""
    across, along = stable[:, 1:] != stable[:, :-1], stable[1:] != stable[:-1]
    ends = [(pairs[:, :-1], pairs[:, 1:], stable[:, :-1], across)]
    ends += [(pairs[:-1], pairs[1:], stable[:-1], along)]
    first, second, inside = (np.concatenate([end[i][end[3]] for end in ends]) for i in range(3))
    if not len(first):
        return np.empty((0, 2))
    good = np.where(inside[:, None], first, second)
    bad = np.where(inside[:, None], second, first)
    for _ in range(52 if jnp.result_type(float) == jnp.float64 else 24):
        middle = (good + bad) / 2
        here = (_radius(make, middle) < 1)[:, None]
        good, bad = np.where(here, middle, good), np.where(here, bad, middle)
    return (good + bad) / 2


def _area(x: np.ndarray, y: np.ndarray, there: np.ndarray, colour: str, label: str | None) -> Line:
    """A region of a grid as strokes along its rows, a panel being about 230 points high."""
    xs, ys = [np.empty(0)], [np.empty(0)]
    step = (x[-1] - x[0]) / (len(x) - 1)
    for row, height in zip(there, y, strict=True):
        change = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(int)))
        for start, end in change.reshape(-1, 2):
            xs.append(np.array([x[start] - step / 4, x[end - 1] + step / 4, np.nan]))
            ys.append(np.array([height, height, np.nan]))
    return Line(np.concatenate(xs), np.concatenate(ys), label, colour, width=260 / len(y))


def _plane(x: np.ndarray, y: np.ndarray, marks: list[Mark], xlabel: str, ylabel: str) -> Panel:
    ends = [(float(values[0]), float(values[-1])) for values in (x, y)]
    return Panel(marks, "", xlabel, ylabel, xlim=ends[0], ylim=ends[1])
