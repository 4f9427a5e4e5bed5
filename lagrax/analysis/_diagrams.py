"""Bifurcation diagrams and cobwebs."""

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
from ._exponents import normalise
from ._map import (
    KnotMap,
    Start,
    Values,
    as_map,
    check_counts,
    check_known,
    check_make,
    check_values,
    get_start,
)


class Bifurcation(NamedTuple):
    """The states that orbits visit in the long run, over a parameter.

    - `values`: The values of the parameter.
    - `states`: The kept states for each value, flattened.
    - `exponents`: The largest Lyapunov exponent for each value, over the kept iterates. NaN if the
      orbit escapes.
    - `periods`: The period of the orbit for each value, up to 64. 0 if it has none.
    """

    values: Float[Array, " values"]
    states: Float[Array, "values kept n"]
    exponents: Float[Array, " values"]
    periods: Int[np.ndarray, " values"]

    def figure(
        self, name: str = "bifurcation", *, parameter: str = "parameter", component: int = 0
    ) -> Figure:
        """Draws one component of the state, with the exponent below it. Of states that would
        cover each other, one is drawn."""
        values, exponents = np.asarray(self.values, float), np.asarray(self.exponents, float)
        if component not in range(self.states.shape[2]):
            raise ValueError(
                f"figure got component={component!r}; expected one from 0 to "
                f"{self.states.shape[2] - 1}: the state has {self.states.shape[2]}."
            )
        x, y = _thin(values, np.asarray(self.states, float)[:, :, component])
        ends = (float(values.min()), float(values.max()))
        ends = ends if ends[0] < ends[1] else _pad(values)
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
            Panel([Points(x, y, size=0.5)], "", parameter, label, xlim=ends, ylim=_pad(y)),
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
            f"Above, the states that the map visits in the long run, for each of {len(values):,} "
            f"values of {parameter}. Below, the largest Lyapunov exponent, which is positive for "
            "chaos."
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
    """Computes the bifurcation diagram over a parameter.

    For each value it holds the states that the map visits after `skip` iterates, with the largest
    Lyapunov exponent. All values are computed at once, on an accelerator if there is one.

    ```python
    diagram = bifurcation(lagrax.systems.Population, jnp.linspace(1.5, 3.5, 2000))
    plotting.draw(diagram.figure(parameter="a"), Path("diagram.png"))
    ```

    **Arguments:**

    - `make`: The equation as a function of the parameter, such as a class of systems or
      `lambda a: knot_map(field, y0, a, delays=...)`.
    - `values`: The values of the parameter.
    - `start`: The start of every orbit. By default that of the equation.
    - `keep`: The number of iterates to keep for each value.
    - `skip`: The number of iterates to leave out before. Raise it if branches look blurred, since
      orbits settle slowly near a bifurcation.
    """
    if not is_traced(values):
        check_values("bifurcation", "values", values)
    values = jnp.asarray(values, float)
    check_make("bifurcation", make)
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

        def keep_state(carry, _):
            state = carry[0][: f.size // f.lags]
            carry, growth = _advance(f, carry)
            return carry, (state, growth)

        _, (states, growth) = jax.lax.scan(keep_state, _settle(f, start, skip), length=keep)
        return states, jnp.where(jnp.all(jnp.isfinite(states)), jnp.mean(growth), jnp.nan)

    return jax.vmap(one)(values)


def _advance(f: KnotMap, carry: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
    """The next point and direction, and the logarithm of the factor by which the latter grew."""
    x, direction = carry
    new, pushed = jax.jvp(f, (x,), (direction,))
    unit, growth = normalise(pushed)
    # On a superstable orbit the direction vanishes, and any other serves as well.
    other = jnp.full_like(x, x.size**-0.5)
    return (new, jnp.where(jnp.isneginf(growth), other, unit)), growth


def _settle(f: KnotMap, start: Start, skip: int) -> tuple[Array, Array]:
    x = get_start(f, start)
    carry = (x, jnp.full_like(x, x.size**-0.5))
    return jax.lax.fori_loop(0, skip, lambda _, c: _advance(f, c)[0], carry)


@eqx.filter_jit
def largest_exponents(
    make: Callable, values: Float[Array, " values"], iterates: int, skip: int
) -> Float[Array, " values"]:
    """The largest Lyapunov exponent for each value of a parameter. No iterates are kept, so that
    their number is not limited by memory."""

    def one(value):
        f = as_map(make(value))

        def add(_, carry):
            carry, total = carry
            carry, growth = _advance(f, carry)
            return carry, total + growth

        start = (_settle(f, None, skip), jnp.zeros(()))
        (x, _), total = jax.lax.fori_loop(0, iterates, add, start)
        return jnp.where(jnp.all(jnp.isfinite(x)), total / iterates, jnp.nan)

    return jax.vmap(one)(values)


def _periods(states: np.ndarray) -> Int[np.ndarray, " values"]:
    """The smallest p after which the last states repeat, for each value; 0 if there is none."""
    longest = min(64, states.shape[1] // 2)
    last = states[:, -2 * longest :]
    width = 100 * np.finfo(states.dtype).eps ** 0.5 * (1 + np.max(np.abs(last), axis=(1, 2)))
    periods = np.zeros(len(states), int)
    for p in range(longest, 0, -1):
        with np.errstate(invalid="ignore"):
            off = np.max(np.abs(last[:, p:] - last[:, :-p]), axis=(1, 2))
        periods[off <= width] = p
    return periods


def _thin(values: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keeps one point in each of 801 x 501 cells. The numbers are odd, so that a level branch lies
    within a row of cells, and rounding does not split it."""
    x, y = np.repeat(values, states.shape[1]), states.ravel()
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not y.size:
        return x, y
    cells = [_find_cells(part, many) for part, many in ((x, 801), (y, 501))]
    _, first = np.unique(1000 * cells[0] + cells[1], return_index=True)
    return x[first], y[first]


def _find_cells(x: np.ndarray, many: int) -> np.ndarray:
    low, high = _pad(x)
    return np.floor((x - low) / (high - low) * many).astype(np.int64)


def _pad(x: np.ndarray) -> Range:
    """A range that holds all of `x` with a margin, so that rounding does not fill it."""
    if not x.size:
        return 0.0, 1.0
    middle, half = (x.max() + x.min()) / 2, np.ptp(x) / 2
    half = 1.05 * max(half, 0.05 * abs(middle)) or 1.0
    return float(middle - half), float(middle + half)


def cobweb(
    equation: KnotMap | System, start: Start = None, iterates: int = 60, *, name: str = "cobweb"
) -> Figure:
    """Draws the graph of a map of one number, the diagonal, and the path of an orbit between them.

    For maps of more numbers there are `bifurcation` and `basins`.
    """
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
    low = float(known.min())
    # A population is not negative, so neither is what is drawn of its map.
    ends = (max(low - margin, 0.0) if low >= 0 else low - margin, float(known.max() + margin))
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
