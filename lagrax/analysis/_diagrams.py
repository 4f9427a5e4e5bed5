"""Where a map settles, over a parameter, and how it gets there."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._solve.arguments import check_memory, is_traced
from ..plotting import Figure, Line, Mark, Panel, Points, Range
from ..systems import System
from ._exponents import normalised
from ._map import (
    KnotMap,
    Start,
    Values,
    as_map,
    check_counts,
    check_known,
    checked_values,
    start_of,
)


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
    plotting.draw(diagram.figure(parameter="a"), Path("diagram.png"))
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
    if not is_traced(values):
        checked_values("bifurcation", "values", values)
    values = jnp.asarray(values, float)
    check_counts("bifurcation", keep=(keep, 1), skip=(skip, 0))
    check_known(start, "bifurcation got start")
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"bifurcation got values of shape {values.shape}; expected a list of values. Write "
            "jnp.linspace(1.5, 3.5, 2000)."
        )
    check_memory("bifurcation", f"keep={keep} for {values.size:,} values", keep * values.size)
    states, exponents = _diagram(make, values, start, int(keep), int(skip))
    return Bifurcation(values, states, exponents, _periods(np.asarray(states)))


@eqx.filter_jit
def _diagram(
    make: Callable, values: Float[Array, " values"], start: Start, keep: int, skip: int
) -> tuple[Float[Array, "values kept n"], Float[Array, " values"]]:
    def one(value):
        f = as_map(make(value))

        def kept(carry, _):
            state = carry[0][: f.size // f.lags]
            carry, growth = _advanced(f, carry)
            return carry, (state, growth)

        _, (states, growth) = jax.lax.scan(kept, _settled(f, start, skip), length=keep)
        return states, jnp.where(jnp.all(jnp.isfinite(states)), jnp.mean(growth), jnp.nan)

    return jax.vmap(one)(values)


def _advanced(f: KnotMap, carry: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
    """The next point and direction, and the logarithm of how much that was stretched."""
    x, direction = carry
    new, pushed = jax.jvp(f, (x,), (direction,))
    unit, growth = normalised(pushed)
    # On a superstable orbit nothing is left of it, and any other direction is as good.
    other = jnp.full_like(x, x.size**-0.5)
    return (new, jnp.where(jnp.isneginf(growth), other, unit)), growth


def _settled(f: KnotMap, start: Start, skip: int) -> tuple[Array, Array]:
    x = start_of(f, start)
    carry = (x, jnp.full_like(x, x.size**-0.5))
    return jax.lax.fori_loop(0, skip, lambda _, c: _advanced(f, c)[0], carry)


@eqx.filter_jit
def largest_exponents(
    make: Callable, values: Float[Array, " values"], iterates: int, skip: int
) -> Float[Array, " values"]:
    """The largest Lyapunov exponent for each value of a parameter, over many iterates, of which
    none are kept."""

    def one(value):
        f = as_map(make(value))

        def add(_, carry):
            carry, total = carry
            carry, growth = _advanced(f, carry)
            return carry, total + growth

        start = (_settled(f, None, skip), jnp.zeros(()))
        (x, _), total = jax.lax.fori_loop(0, iterates, add, start)
        return jnp.where(jnp.all(jnp.isfinite(x)), total / iterates, jnp.nan)

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
    f = as_map(equation)
    if f.size != 1:
        raise ValueError(
            f"cobweb got a map of {f.size} numbers; expected one of a single number, a scalar "
            "state with one hold. For planar maps there is `basins`."
        )
    check_counts("cobweb", iterates=(iterates, 1))
    orbit = _drop_overflow(f.orbit(start, iterates + 1))
    known = orbit[np.isfinite(orbit)]
    margin = 0.1 * np.ptp(known) or 0.5
    ends = (float(known.min() - margin), float(known.max() + margin))
    x = np.linspace(*ends, 400)
    graph = _drop_overflow(_apply(f, jnp.asarray(x, f.point().dtype)[:, None]))
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


def _drop_overflow(points: Float[Array, "n 1"]) -> Float[np.ndarray, " n"]:
    """The numbers, with NaN for those too large to be drawn."""
    numbers = np.asarray(points, float)[:, 0]
    return np.where(np.abs(numbers) < 1e300, numbers, np.nan)


@eqx.filter_jit
def _apply(f: KnotMap, points: Float[Array, "n size"]) -> Float[Array, "n size"]:
    return jax.vmap(f)(points)
