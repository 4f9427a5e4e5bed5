"""Stability charts of equations with lags over two parameters."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._solve.arguments import check_memory, check_whole
from ..plotting import Figure
from ._equilibria import Equation, equilibrium_of, roots_of
from ._lagged import LaggedEquation, State, as_lagged, get_lags, linearise
from ._map import Values
from ._planes import draw_stability, find_edges, make_grid


class StabilityChart(NamedTuple):
    """The stability of an equilibrium over two parameters.

    - `x`, `y`: The values of the parameters.
    - `growth`: The largest real part of a characteristic root for each pair. Below 0 the
      equilibrium is stable. NaN if none was found.
    - `unstable`: The number of roots with a positive real part, of those that were computed.
    - `boundary`: Points at which the growth is 0 to rounding, in no special order.
    """

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    growth: Float[np.ndarray, "ny nx"]
    unstable: Int[np.ndarray, "ny nx"]
    boundary: Float[np.ndarray, "_ 2"]

    @property
    def stable(self) -> Bool[np.ndarray, "ny nx"]:
        """Whether the equilibrium is stable, for each pair."""
        return self.growth < 0

    def figure(
        self, name: str = "chart", *, xlabel: str = "first", ylabel: str = "second"
    ) -> Figure:
        """Draws the stable region and its boundary."""
        caption = f"The {xlabel} and {ylabel} for which all roots have a negative real part."
        return Figure(name, caption, [draw_stability(self, xlabel, ylabel)])


def stability_chart(
    make: Callable[..., Equation],
    x: Values,
    y: Values,
    *,
    start: State = None,
    nodes: int = 24,
    count: int = 8,
) -> StabilityChart:
    """Finds where an equilibrium of an equation with lags is stable, over two parameters.

    All pairs are one program. Where the boundary passes between two points of the grid, it is found
    to rounding.

    ```python
    def lagged(a, tau):
        return lagrax.systems.Hutchinson(a, tau)


    chart = stability_chart(lagged, jnp.linspace(0.1, 4, 60), jnp.linspace(0.1, 2, 60))
    ```

    For equations with holds use `stability_region`.

    **Arguments:**

    - `make`: The equation as a function of both parameters.
    - `x`, `y`: Increasing values of the first and second parameter.
    - `start`: A state near the equilibrium. By default `y0` of the equation.
    - `nodes`: The number of nodes in the longest lag. Raise it if the longest lag is many periods
      of the fastest oscillation, and compare.
    - `count`: The number of rightmost roots that are corrected by Newton's method.
    """
    check_whole("stability_chart", "nodes", nodes, 2)
    check_whole("stability_chart", "count", count, 1)
    xs, ys, pairs = make_grid("stability_chart", x, y)
    size = as_lagged(make(*jnp.asarray(pairs[0, 0], float))).size
    check_memory("stability_chart", f"nodes={nodes}", (size * (nodes + 1)) ** 2)
    flat = pairs.reshape(-1, 2)
    growth, unstable = _grow(make, flat, start, count, nodes)
    growth = growth.reshape(pairs.shape[:2])
    ends = find_edges(pairs, growth < 0)
    boundary = _find_zeros(lambda pairs: _grow(make, pairs, start, count, nodes)[0], *ends)
    return StabilityChart(xs, ys, growth, unstable.reshape(growth.shape), boundary)


def _find_zeros(
    growth: Callable[[np.ndarray], np.ndarray], good: np.ndarray, bad: np.ndarray
) -> Float[np.ndarray, "_ 2"]:
    """Points of no growth between stable and unstable ones, by Ridders' method.

    C. Ridders, *A new algorithm for computing a single root of a real continuous function*, IEEE
    Trans. Circuits and Systems 26 (1979).
    """
    if not len(good):
        return good
    at = lambda share: good + share[:, None] * (bad - good)
    # Where there is no equilibrium, the growth has no value, and the method halves the edge.
    known = lambda share: np.nan_to_num(growth(at(share)), nan=1.0)
    a, b = np.zeros(len(good)), np.ones(len(good))
    low, high, closest = known(a), known(b), a
    for _ in range(40):
        middle = (a + b) / 2
        there = known(middle)
        root = np.sqrt(there**2 - low * high)
        new = middle - (middle - a) * there / np.where(root > 0, root, 1.0)
        value = known(new)
        moved, closest = np.abs(new - closest), new
        for point, found in ((middle, there), (new, value)):
            inside = (point >= a) & (point <= b)
            lower, upper = inside & (found < 0), inside & (found >= 0)
            a, low = np.where(lower, point, a), np.where(lower, found, low)
            b, high = np.where(upper, point, b), np.where(upper, found, high)
        if np.all(moved <= 4 * jnp.finfo(jnp.result_type(float)).eps):
            break
    return at(closest)


# The pairs are computed in groups of at most this many, which bounds the memory.
_GROUP = 256


def _grow(
    make: Callable, pairs: np.ndarray, start: Any, count: int, nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest real part, and the number of roots to the right of the axis, for each pair."""
    # Groups of a few sizes, so that few programs are compiled.
    group = min(_GROUP, 2 ** math.ceil(math.log2(len(pairs))))
    padded = np.pad(pairs, ((0, -len(pairs) % group), (0, 0)), mode="edge").reshape(-1, group, 2)
    parts = [_grow_group(make, jnp.asarray(g, float), start, count, nodes) for g in padded]
    growth, unstable = (np.concatenate([np.asarray(p[i]) for p in parts]) for i in range(2))
    return growth[: len(pairs)].astype(float), unstable[: len(pairs)]


@eqx.filter_jit
def _grow_group(
    make: Callable, pairs: Float[Array, "pairs 2"], start: Any, count: int, nodes: int
) -> tuple[Float[Array, " pairs"], Int[Array, " pairs"]]:
    def one(pair):
        f: LaggedEquation = as_lagged(make(pair[0], pair[1]))
        y, _ = equilibrium_of(f, f.vector(start))
        known = jnp.all(jnp.isfinite(y))
        safe = jnp.where(known, y, f.vector(start))
        roots, _ = roots_of(linearise(f, safe), get_lags(f), count, nodes)
        growth = jnp.max(jnp.where(jnp.isnan(roots.real), -jnp.inf, roots.real))
        return jnp.where(known, growth, jnp.nan), jnp.sum(roots.real > 0)

    return jax.vmap(one)(pairs)
