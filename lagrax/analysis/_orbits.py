"""Fixed points and cycles of a map, their multipliers, and critical parameters."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Complex, Float, Real

from .._solve.arguments import check_memory, check_whole, is_number, is_whole
from .._solve.delays import RealScalar
from ..systems import System
from ._map import KnotMap, Point, Start, as_map, check_make, check_values, orbit_of


class Orbit(NamedTuple):
    """A periodic orbit of a map. With period one it is a fixed point. `periodic_orbits` finds them.

    - `points`: One row for each point, in the order in which the orbit visits them.
    - `multipliers`: The eigenvalues of the derivative once around the orbit, the largest first.
    """

    points: Float[Array, "period size"]
    multipliers: Complex[np.ndarray, " size"]

    @property
    def period(self) -> int:
        """The number of iterates after which the orbit repeats."""
        return self.points.shape[0]

    @property
    def stability(self) -> str:
        """One of "stable", "saddle", "unstable" and "neutral". A neutral orbit has its largest
        multiplier too close to the unit circle to tell the side."""
        size = np.abs(self.multipliers)
        width = 10 * np.sqrt(np.finfo(self.points.dtype).eps)
        if size[0] < 1 - width:
            return "stable"
        if size[0] <= 1 + width:
            return "neutral"
        return "unstable" if size[-1] > 1 else "saddle"

    @property
    def verdict(self) -> str:
        """The stability and its kind in words."""
        largest, outside = self.multipliers[0], int(np.sum(np.abs(self.multipliers) > 1))
        real = abs(largest.imag) <= 1e-6 * abs(largest)
        number = f"{largest.real:.5g}" if real else f"of modulus {abs(largest):.5g}"
        how = "turning about it" if not real else "staying on their side"
        how = "changing sides each time" if real and largest.real < 0 else how
        if self.stability == "stable":
            how = "" if largest == 0 else f", {how}"
            return f"stable: nearby orbits approach it{how} (largest multiplier {number})"
        if self.stability == "neutral":
            event = "a fold or a branching" if largest.real > 0 else "a doubling of the period"
            event = event if real else "the birth of an invariant curve"
            return f"neutral: about to lose stability by {event} (largest multiplier {number})"
        which = f" in {outside} of {len(self.multipliers)} directions"
        which = "" if self.stability == "unstable" else which
        return (
            f"{self.stability}: nearby orbits leave it{which}, {how} (largest multiplier {number})"
        )


def periodic_orbits(
    equation: KnotMap | System,
    period: int = 1,
    starts: Real[ArrayLike, "..."] | None = None,
) -> list[Orbit]:
    """Finds isolated periodic orbits of exactly this period, stable or not. Those of period 1 are
    fixed points.

    ```python
    for orbit in periodic_orbits(lagrax.systems.Population(a=2.2), period=2):
        print(orbit.points, orbit.multipliers, orbit.verdict)
    ```

    Newton's method runs from all starts at once. Each orbit is returned once, in the order of the
    smallest first coordinate. Orbits may be missed. Give more `starts` for long periods, and
    some in the region you care about. The map of a solved equation compiles several times faster
    with equal `steps` than with adaptive ones.

    **Arguments:**

    - `equation`: A `KnotMap` or a system.
    - `period`: The prime period. Orbits whose period divides it are left out.
    - `starts`: One start in each row, as a point or as a flattened state (a constant past). By
      default 64 points of the orbit of `y0` and 192 random points around it, always the same.
    """
    f = as_map(equation)
    _check_period(period, "periodic_orbits")
    points = _default_starts(f) if starts is None else _check_starts(f, starts)
    check_memory("periodic_orbits", f"period={period}", period * points.size)
    visited, converged, doubt = jax.tree.map(np.asarray, _find_orbits(f, points, int(period)))
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
    check_whole(name, "period", period, 1)


def _default_starts(f: KnotMap) -> Float[Array, "starts size"]:
    orbit = f.orbit(iterates=64)
    known = np.asarray(orbit)[np.all(np.isfinite(orbit), axis=1)]
    low, high = known.min(axis=0), known.max(axis=0)
    width = np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))
    width = np.where(width > 0, width, 1.0)
    spread = jax.random.uniform(jax.random.key(0), (192, f.size), orbit.dtype)
    around = (low - width) + spread * (high - low + 2 * width)
    return jnp.concatenate([jnp.asarray(known), around])


def _check_starts(f: KnotMap, starts: Any) -> Float[Array, "starts size"]:
    given = jnp.asarray(check_values("periodic_orbits", "starts", starts), f.point().dtype)
    small = f.size // f.lags
    rows = given[:, None] if given.ndim == 1 and small == 1 else given
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] not in (small, f.size):
        raise ValueError(
            f"periodic_orbits got starts of shape {given.shape}; expected one row for each start, "
            f"of {f.size} numbers (a point) or {small} (a state)."
        )
    return rows if rows.shape[1] == f.size else jnp.tile(rows, f.lags)


def _iterate(f: KnotMap, period: int, point: Point) -> Point:
    return jax.lax.scan(lambda x, _: (f(x), None), point, length=period)[0]


@eqx.filter_jit
def _find_orbits(
    f: KnotMap, starts: Float[Array, "starts size"], period: int
) -> tuple[Float[Array, "starts period size"], Bool[Array, " starts"], Float[Array, " starts"]]:
    """The orbits that Newton's method finds from the starts, whether it converged, and errors."""
    away = lambda x: _iterate(f, period, x) - x
    points, converged, doubt = jax.vmap(lambda x: _newton(away, x))(starts)
    orbits = jax.vmap(lambda x: orbit_of(f, x, period, 0))(points)
    return orbits, converged, doubt


def _newton(function: Callable, start: Point) -> tuple[Point, Bool[Array, ""], Float[Array, ""]]:
    """A zero of `function`, whether Newton's method converged, and the error by rounding."""
    eps = float(jnp.finfo(start.dtype).eps)
    scale = lambda x: 1 + jnp.max(jnp.abs(x))
    both = jax.jacfwd(
        lambda x: (function(x),) * 2, has_aux=True
    )  # traced once, since it may be large

    def advance(carry):
        x, _, _, calm, count = carry
        slope, value = both(x)
        change = jnp.linalg.solve(slope, value)
        small = jnp.max(jnp.abs(change)) <= eps ** (2 / 3) * scale(x)
        return x - change, slope, value, jnp.where(small, calm + 1, 0), count + 1

    # One step follows the first small change, so that slope and value are those at the zero.
    going = lambda carry: (carry[3] < 2) & (carry[4] < 60) & jnp.all(jnp.isfinite(carry[0]))
    first = (start, jnp.zeros((start.size,) * 2, start.dtype), start, jnp.zeros((), int), 0)
    x, slope, value, calm, _ = jax.lax.while_loop(going, advance, first)
    # A small change may also come from a steep slope, as where orbits escape to infinity.
    steepness = 1 + jnp.max(jnp.abs(slope))
    off = jnp.max(jnp.abs(value)) / (scale(x) * steepness)
    found = (calm == 2) & (off <= 100 * eps) & (steepness < eps ** (-2 / 3))
    # Near a singular slope, a whole neighbourhood is zero to rounding.
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
    """The answer of `critical`.

    - `parameter`: The value at which the orbit has the multiplier.
    - `orbit`: The orbit at that value.
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
    """Finds the value of a parameter at which an orbit of this period has this multiplier.

    With multiplier -1 the period doubles. With 1 the orbit appears, disappears or branches. With 0
    it attracts most. A bifurcation diagram gives a first guess:

    ```python
    critical(lagrax.systems.Population, 1.9).parameter  # 2.0
    critical(lagrax.systems.Population, 2.5, period=2).parameter  # 2.5265
    ```

    Newton's method solves for the orbit and the parameter together, so the answer is exact to
    rounding.

    **Arguments:**

    - `make`: The equation as a function of the parameter.
    - `parameter`: A first guess.
    - `period`: The period of the orbit.
    - `multiplier`: A real number.
    - `start`: A point near the orbit. By default the state after 1,000 iterates.
    """
    check_make("critical", make)
    _check_period(period, "critical")
    for name, value in (("parameter", parameter), ("multiplier", multiplier)):
        if not is_number(value):
            raise ValueError(f"critical got {name}={value!r:.60}; expected one finite real number.")
    f = as_map(make(jnp.asarray(parameter, float)))
    point = f.orbit(start, 1, 1000 if start is None else 0)[0]
    unknown = jnp.append(point, jnp.asarray(parameter, point.dtype))
    value, orbit, converged, doubt = _critical(make, unknown, int(period), float(multiplier))
    if not converged or not _is_prime(np.asarray(orbit), float(doubt)):
        found = f"found one of a shorter period at {float(value):g}" if converged else "found none"
        first = float(np.asarray(parameter))
        raise ValueError(
            f"critical looked for an orbit of period {period} with the multiplier {multiplier:g} "
            f"from {first:g} on and {found}. Give a closer `parameter`, which a bifurcation "
            "diagram shows, or a `start` near the orbit."
        )
    return Critical(float(value), _with_multipliers(as_map(make(value)), np.asarray(orbit)))


@eqx.filter_jit
def _critical(make: Callable, unknown: Point, period: int, multiplier: float):
    def conditions(unknown):
        f, x = as_map(make(unknown[-1])), unknown[:-1]
        around = lambda x: _iterate(f, period, x)
        slope = jax.jacfwd(around)(x) - multiplier * jnp.eye(f.size, dtype=x.dtype)
        return jnp.append(around(x) - x, jnp.linalg.det(slope))

    found, converged, doubt = _newton(conditions, unknown)
    orbit = orbit_of(as_map(make(found[-1])), found[:-1], period, 0)
    return found[-1], orbit, converged, doubt
