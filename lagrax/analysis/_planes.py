"""Basins of attraction and stability regions in the plane."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact, Int

from .._solve.arguments import check_memory, is_number
from ..plotting import Figure, Line, Mark, Panel, Points, Range
from ..systems import LinearSystem, System
from ._map import KnotMap, Values, as_map, check_counts, check_values, orbit_of


class Basins(NamedTuple):
    """The basins of attraction of a planar map.

    - `x`, `y`: The coordinates of the starts.
    - `labels`: The number of the attractor for each start. 0 has the largest basin, and -1 means
      that the orbit escapes.
    - `attractors`: Points of each attractor.
    """

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    labels: Int[np.ndarray, "ny nx"]
    attractors: tuple[Float[np.ndarray, "_ 2"], ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of starts in each basin."""
        return tuple(float(np.mean(self.labels == i)) for i in range(len(self.attractors)))

    def figure(self, name: str = "basins", *, xlabel: str = "x", ylabel: str = "y") -> Figure:
        """Draws the basins in colours and dots on the attractors. Starts of escaping orbits are
        white; basins from the sixth on share one colour."""
        colours = ("sky", "amber", "green", "purple", "yellow")
        marks: list[Mark] = []
        for i in range(min(len(self.attractors), len(colours) + 1)):
            others = i == len(colours)
            colour, label = ("grey", "others") if others else (colours[i], f"attractor {i + 1}")
            there = self.labels >= i if others else self.labels == i
            marks.append(draw_area(self.x, self.y, there, colour, label))
        for points in self.attractors[: len(colours)]:
            marks.append(Points(points[:, 0], points[:, 1], colour="blue", size=2))
        escaping = float(np.mean(self.labels < 0))
        caption = f"Starts, coloured by the attractor of their orbit; {escaping:.0%} escape."
        return Figure(name, caption, [draw_plane(self.x, self.y, marks, xlabel, ylabel)])


def basins(
    equation: KnotMap | System,
    x: Range,
    y: Range,
    *,
    resolution: int = 200,
    iterates: int = 1_000,
) -> Basins:
    """Finds the basins of attraction of a planar map from a grid of starts.

    The state has two numbers with one hold, or one number with two holds. In the second case x is
    the newest knot and y the one before.

    ```python
    henon = KnotMap(lambda x, older: 1 - 1.4 * x**2 + 0.3 * older, y0=0.1, lags=2)
    basins(henon, (-2, 2), (-4, 4)).shares
    ```

    Two starts share an attractor, of any kind, if their orbits come closer to each other than a
    cell of the grid after `iterates`. Raise `resolution` to separate close attractors. Raise
    `iterates` if orbits settle slowly, which shows as many attractors.
    """
    f = as_map(equation)
    if f.size != 2:
        raise ValueError(
            f"basins got a map of {f.size} numbers; expected a planar one, of two: a state of two "
            "numbers with one hold, or a scalar one with two."
        )
    check_counts("basins", resolution=(resolution, 2), iterates=(iterates, 1))
    check_memory("basins", f"resolution={resolution}", 2 * _RECORDED * resolution**2)
    if not (_is_range(x) and _is_range(y)):
        raise ValueError(
            f"basins got x={x}, y={y}; expected two ranges (low, high) of finite numbers."
        )
    xs, ys = np.linspace(*x, resolution), np.linspace(*y, resolution)
    starts = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    cell = np.array([xs[1] - xs[0], ys[1] - ys[0]])
    visited = np.asarray(_iterate_late(f, jnp.asarray(starts, f.point().dtype), iterates), float)
    middle, reach = starts.mean(axis=0), 1e3 * np.ptp(starts, axis=0)
    stays = np.all(np.abs(visited - middle) < reach, axis=(1, 2))  # false for NaN, too
    labels = np.full(len(starts), -1)
    labels[stays] = _label_groups(visited[stays] / cell)
    # Some orbits of each attractor show a chaotic one well enough.
    some = [visited[labels == i][:20].reshape(-1, 2) for i in range(labels.max() + 1)]
    attractors = tuple(_drop_duplicates(points, cell) for points in some)
    return Basins(xs, ys, labels.reshape(resolution, resolution), attractors)


def _is_range(ends: Any) -> bool:
    return np.shape(ends) == (2,) and all(map(is_number, ends)) and ends[0] < ends[1]


_RECORDED = 32


@eqx.filter_jit
def _iterate_late(f: KnotMap, starts: Float[Array, "starts 2"], iterates: int):
    return jax.vmap(lambda x: orbit_of(f, x, _RECORDED, iterates))(starts)


def _label_groups(visited: Float[np.ndarray, "starts recorded 2"]) -> Int[np.ndarray, " starts"]:
    """Numbers the groups of orbits that meet, the largest first. Points whose coordinates differ by
    less than half a unit share a cell in one of four shifted grids."""
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
        for cell in cells:  # all orbits through a cell get its smallest label
            smallest = np.full(cell.max(initial=0) + 1, starts)
            np.minimum.at(smallest, cell.ravel(), np.repeat(labels, recorded))
            labels = smallest[cell].min(axis=1)
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-sizes, kind="stable"))[group]


def _drop_duplicates(points: Float[np.ndarray, "n 2"], cell: Float[np.ndarray, " 2"]) -> np.ndarray:
    _, first = np.unique(np.round(points / cell, 3), axis=0, return_index=True)
    return points[np.sort(first)]


class StabilityRegion(NamedTuple):
    """The stability of a linear equation over two parameters.

    - `x`, `y`: The values of the parameters.
    - `radius`: The largest modulus of a multiplier for each pair. Below 1 the equation is stable.
    - `boundary`: Points at which the radius is 1 to rounding, in no special order.
    """

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    radius: Float[np.ndarray, "ny nx"]
    boundary: Float[np.ndarray, "_ 2"]

    @property
    def stable(self) -> Bool[np.ndarray, "ny nx"]:
        """Whether the equation is stable, for each pair."""
        return self.radius < 1

    def figure(
        self, name: str = "stability", *, xlabel: str = "first", ylabel: str = "second"
    ) -> Figure:
        """Draws the stable region and its boundary."""
        caption = f"The {xlabel} and {ylabel} for which all multipliers lie inside the unit circle."
        return Figure(name, caption, [draw_stability(self, xlabel, ylabel)])


def stability_region(make: Callable[..., Any], x: Values, y: Values) -> StabilityRegion:
    """Finds the exact stability region of a linear equation with holds over two parameters.

    The knot matrix comes from matrix exponentials, not from a simulation. Where the boundary passes
    between two points of the grid, it is found to rounding.

    ```python
    def loop(gain, tau):
        return lagrax.systems.DigitalControl(K=gain * jnp.array([[0.5, 1.0]]), tau=tau)


    region = stability_region(loop, jnp.linspace(0.1, 4, 100), jnp.linspace(0.05, 2, 100))
    ```

    **Arguments:**

    - `make`: A function of both parameters that returns a linear system of `lagrax.systems` or a
      square matrix, such as the `jacobian` of a `KnotMap` at a known fixed point.
    - `x`, `y`: Increasing values of the first and second parameter.
    """
    xs, ys, pairs = make_grid("stability_region", x, y)
    radius = _radius(make, pairs.reshape(-1, 2)).reshape(pairs.shape[:2])
    return StabilityRegion(xs, ys, radius, _boundary(make, pairs, radius < 1))


def make_grid(name: str, x: Values, y: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The checked values of two parameters, and all pairs of them."""
    xs, ys = (check_values(name, which, v) for which, v in (("x", x), ("y", y)))
    for which, values in (("x", xs), ("y", ys)):
        if values.ndim != 1 or len(values) < 2 or np.any(np.diff(values) <= 0):
            raise ValueError(
                f"{name} got {which} of shape {values.shape}; expected at least two finite values "
                "that increase, such as jnp.linspace(0.1, 4, 100)."
            )
    return xs, ys, np.stack(np.meshgrid(xs, ys), axis=-1)


def _radius(make: Callable, pairs: Float[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
    # NumPy computes the eigenvalues, since JAX has none on accelerators.
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
    """Bisects each edge of the grid that has a stable and an unstable end."""
    good, bad = find_edges(pairs, stable)
    if not len(good):
        return good
    for _ in range(52 if jnp.result_type(float) == jnp.float64 else 24):
        middle = (good + bad) / 2
        here = (_radius(make, middle) < 1)[:, None]
        good, bad = np.where(here, middle, good), np.where(here, bad, middle)
    return (good + bad) / 2


def find_edges(
    pairs: Float[np.ndarray, "ny nx 2"], stable: Bool[np.ndarray, "ny nx"]
) -> tuple[Float[np.ndarray, "_ 2"], Float[np.ndarray, "_ 2"]]:
    """The stable and the unstable end of each edge of the grid that has both."""
    across, along = stable[:, 1:] != stable[:, :-1], stable[1:] != stable[:-1]
    ends = [(pairs[:, :-1], pairs[:, 1:], stable[:, :-1], across)]
    ends += [(pairs[:-1], pairs[1:], stable[:-1], along)]
    first, second, inside = (np.concatenate([end[i][end[3]] for end in ends]) for i in range(3))
    good = np.where(inside[:, None], first, second)
    return good, np.where(inside[:, None], second, first)


def draw_area(
    x: np.ndarray, y: np.ndarray, there: np.ndarray, colour: str, label: str | None
) -> Line:
    """A region of a grid as thick strokes along its rows. A panel is about 230 points high."""
    xs, ys = [np.empty(0)], [np.empty(0)]
    step = (x[-1] - x[0]) / (len(x) - 1)
    for row, height in zip(there, y, strict=True):
        change = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(int)))
        for start, end in change.reshape(-1, 2):
            xs.append(np.array([x[start] - step / 4, x[end - 1] + step / 4, np.nan]))
            ys.append(np.array([height, height, np.nan]))
    return Line(np.concatenate(xs), np.concatenate(ys), label, colour, width=260 / len(y))


# A panel is about 230 points high.
_ROWS = 240


def draw_stability(chart: Any, xlabel: str, ylabel: str) -> Panel:
    """The stable region of a chart of stability, and its boundary."""
    strokes = list_strokes(chart.x, chart.y, chart.stable, chart.boundary)
    xs = [(start, end, np.nan) for start, end, _ in strokes]
    ys = [(height, height, np.nan) for *_, height in strokes]
    gap = [np.nan]
    marks: list[Mark] = [
        Line(gap, gap, "stable", "sky", width=6),  # for the legend
        Line(np.ravel(xs), np.ravel(ys), None, "sky", width=300 / _ROWS),
        Points(chart.boundary[:, 0], chart.boundary[:, 1], "boundary", "blue", size=1.5),
    ]
    return draw_plane(chart.x, chart.y, marks, xlabel, ylabel)


def list_strokes(
    x: np.ndarray,
    y: np.ndarray,
    there: Bool[np.ndarray, "ny nx"],
    boundary: Float[np.ndarray, "_ 2"],
) -> list[tuple[float, float, float]]:
    """A region as horizontal strokes (start, end, height), up to the lines between neighbouring
    points of its boundary. `boundary` has the order of `find_edges`."""
    across, along = there[:, 1:] != there[:, :-1], there[1:] != there[:-1]
    number = int(across.sum())
    if len(boundary) != number + int(along.sum()):  # made by hand
        boundary = np.concatenate(_find_middles(x, y, across, along))
    on_rows, on_columns = np.full(across.shape, np.nan), np.full(along.shape, np.nan)
    on_rows[across], on_columns[along] = boundary[:number, 0], boundary[number:, 1]
    each = -(-_ROWS // (len(y) - 1))
    strokes = []
    for j in range(len(y) - 1):
        sides = _list_sides(x, y, on_rows, on_columns, j)
        for share in (np.arange(each) + 0.5) / each:
            height = float(y[j] + share * (y[j + 1] - y[j]))
            above = np.nan_to_num(on_columns[j], nan=np.inf) < height
            inside = np.where(above, there[j + 1], there[j])
            ends = [np.interp(height, *sides(i)) for i in np.flatnonzero(np.diff(inside)).tolist()]
            ends = [x[0]] * int(inside[0]) + ends + [x[-1]] * int(inside[-1])
            strokes += [
                (float(a), float(b), height) for a, b in zip(ends[::2], ends[1::2], strict=True)
            ]
    return strokes


def _find_middles(
    x: np.ndarray, y: np.ndarray, across: np.ndarray, along: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The middles of the edges of the grid, in the order of `find_edges`."""
    rows = np.stack(np.meshgrid((x[1:] + x[:-1]) / 2, y), axis=-1)[across]
    columns = np.stack(np.meshgrid(x, (y[1:] + y[:-1]) / 2), axis=-1)[along]
    return rows, columns


def _list_sides(
    x: np.ndarray, y: np.ndarray, on_rows: np.ndarray, on_columns: np.ndarray, j: int
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Where the boundary crosses the sides of a cell of row j, as increasing heights and places."""

    def sides(i: int) -> tuple[np.ndarray, np.ndarray]:
        points = np.array(
            [
                (y[j], on_rows[j, i]),
                (y[j + 1], on_rows[j + 1, i]),
                (on_columns[j, i], x[i]),
                (on_columns[j, i + 1], x[i + 1]),
            ]
        )
        points = points[np.isfinite(points).all(axis=1)]
        heights, places = points[np.argsort(points[:, 0])].T
        return heights, places

    return sides


def draw_plane(x: np.ndarray, y: np.ndarray, marks: list[Mark], xlabel: str, ylabel: str) -> Panel:
    ends = [(float(values[0]), float(values[-1])) for values in (x, y)]
    return Panel(marks, "", xlabel, ylabel, xlim=ends[0], ylim=ends[1])
