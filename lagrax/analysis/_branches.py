"""Branches of equilibria and cycles over a parameter, by pseudo-arclength continuation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float

from .._solve.arguments import check_whole, is_number
from .._solve.delays import RealScalar
from ..plotting import Figure, Line, Mark, Panel, Points
from ._collocation import Mesh, Profile, collocate, equidistribute, interpolate, node_times
from ._cycles import Cycle, find_cycle, leave_out_shift, multipliers_of, periods_to_lag
from ._equilibria import (
    MOST_NODES,
    Equation,
    Hopf,
    check_guess,
    find_equilibrium,
    find_fold,
    find_hopf,
    roots_of,
)
from ._lagged import as_lagged, get_lags, linearise, slope_at_rest
from ._newton import iterate_newton

# Roots and multipliers kept for each point of a branch.
_COUNT = 12


class Event(NamedTuple):
    """A point of a branch at which its stability changes.

    - `kind`: One of "fold", "branching", "Hopf", "period doubling" and "torus".
    - `parameter`: The value of the parameter. Hopf points and folds of equilibria are exact. Others
      are interpolated between two points of the branch.
    - `after`: The number of the point of the branch before the event.
    """

    kind: str
    parameter: float
    after: int


class Branch(NamedTuple):
    """Equilibria or cycles over a parameter. `continue_branch` follows them.

    - `parameters`: The value of the parameter at each point.
    - `points`: The equilibria as states, or the cycles as `Cycle`s.
    - `spectrum`: The rightmost characteristic roots of each equilibrium, or the largest Floquet
      multipliers of each cycle.
    - `stable`: Whether each point is stable.
    - `events`: The changes of stability, in the order in which they are met.
    """

    parameters: Float[np.ndarray, " points"]
    points: Sequence[Any]
    spectrum: Complex[np.ndarray, "points count"]
    stable: Bool[np.ndarray, " points"]
    events: Sequence[Event]

    def figure(
        self,
        *others: "Branch",
        name: str = "branch",
        parameter: str = "parameter",
        component: int = 0,
    ) -> Figure:
        """Draws one component of the state over the parameter, together with `others`. Cycles are
        drawn as their largest and smallest value, unstable parts dashed."""
        marks: list[Mark] = []
        for branch in (self, *others):
            marks += branch._draw(component)
        caption = (
            f"Equilibria, and the largest and smallest values of cycles, over {parameter}. Solid "
            "lines are stable, dashed ones unstable."
        )
        return Figure(name, caption, [Panel(marks, "", parameter, "state")])

    def extent(self, index: int) -> Float[np.ndarray, "2 size"]:
        """The smallest and the largest value of each component at a point of the branch."""
        point = self.points[index]
        if isinstance(point, Cycle):
            profile = np.asarray(point.profile, float)
            return np.stack([profile.min(axis=0), profile.max(axis=0)])
        state = [np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(point)]
        return np.stack([np.concatenate(state)] * 2)

    def frequency(self, event: Event) -> float:
        """The imaginary part of the root or multiplier that passes the limit of stability."""
        here = self.spectrum[event.after]
        if isinstance(self.points[0], Cycle):
            here = leave_out_shift(here)
            return float(abs(here[np.argmin(np.abs(np.abs(here) - 1))].imag))
        return float(abs(here[np.argmin(np.abs(here.real))].imag))

    def _draw(self, component: int) -> list[Mark]:
        cycles = isinstance(self.points[0], Cycle)
        rows = [self.extent(i) for i in range(len(self.points))]
        if component not in range(rows[0].shape[1]):
            raise ValueError(
                f"figure got component={component!r}; expected one from 0 to "
                f"{rows[0].shape[1] - 1}: the state has {rows[0].shape[1]}."
            )
        curves = np.array([row[:, component] for row in rows]).T
        curves = curves if cycles else curves[:1]
        kind, colour = ("cycle", "orange") if cycles else ("equilibrium", "blue")
        # Stretches of either kind end at the event between them.
        at = [event.after + 1 for event in self.events]
        parameters = np.insert(self.parameters, at, [event.parameter for event in self.events])
        is_event = np.insert(np.zeros(len(rows), bool), at, True)
        stable = np.insert(self.stable, at, True)
        marks: list[Mark] = []
        for curve in curves:
            full = np.insert(curve, at, [(curve[i - 1] + curve[i]) / 2 for i in at])
            solid = np.where(stable, full, np.nan)
            dashed = np.where(~stable | is_event, full, np.nan)
            if not np.all(self.stable):
                marks.append(Line(parameters, dashed, f"unstable {kind}", colour, True, 1.2))
            if np.any(self.stable):
                marks.append(Line(parameters, solid, f"stable {kind}", colour, width=2))
        for event in self.events:
            near = [float(curve[event.after : event.after + 2].mean()) for curve in curves]
            marks.append(Points([event.parameter] * len(near), near, "event", "grey", 6))
        return marks


def continue_branch(
    make: Callable[[Any], Equation],
    first: RealScalar,
    last: RealScalar,
    start: Any = None,
    *,
    step: float = 0.05,
    most: int = 500,
    intervals: int = 20,
    degree: int = 4,
) -> Branch:
    """Follows equilibria or cycles over a parameter, through folds, by pseudo-arclength.

    ```python
    Hutchinson = lagrax.systems.Hutchinson
    rest = continue_branch(Hutchinson, 1.0, 2.5)
    cycles = continue_branch(Hutchinson, 1.0, 2.5, find_hopf(Hutchinson, 1.5))
    rest.figure(cycles, parameter="a")
    ```

    The branch ends where the parameter leaves the range from `first` to `last`, where a cycle
    shrinks to a point, or after `most` points. Stability comes with each point.

    **Arguments:**

    - `make`: The equation as a function of the parameter.
    - `first`, `last`: The ends of the range. The branch starts at `first` and towards `last`, or at
      the Hopf point.
    - `start`: An equilibrium or a cycle near the first point, or a `Hopf` point, from which cycles
      branch off. By default the equilibrium that `find_equilibrium` finds.
    - `step`: The longest step, as a fraction of the branch's extent. Steps adapt below it.
    - `most`: The most points.
    - `intervals`, `degree`: As for `find_cycle`.
    """
    check_guess("continue_branch", first=first, last=last)
    check_whole("continue_branch", "most", most, 2)
    check_whole("continue_branch", "intervals", intervals, 3)
    check_whole("continue_branch", "degree", degree, 1, 12, "Raise `intervals` instead.")
    if not is_number(step) or not 0 < step <= 1:
        raise ValueError(f"continue_branch got step={step!r:.60}; expected a number in (0, 1].")
    ends = (float(np.asarray(first)), float(np.asarray(last)))
    if ends[0] == ends[1]:
        raise ValueError(f"continue_branch got first={first} and last={last}; expected a range.")
    if isinstance(start, Hopf):
        walk = _start_at_hopf(make, start, ends, intervals, degree)
    elif isinstance(start, Cycle):
        cycle = find_cycle(make(jnp.asarray(ends[0])), start, intervals=intervals, degree=degree)
        walk = _start_at_cycle(make, cycle, ends)
    else:
        walk = _start_at_equilibrium(make, start, ends)
    points = _follow(make, walk, ends, float(step), most)
    return _judge_cycles(make, points) if walk.mesh is not None else _judge(make, points)


# --- the walk -------------------------------------------------------------------------------------


class _Walk(NamedTuple):
    """A point of a branch as a vector whose last entry is the parameter, and the way on from it.

    - `tangent`: The direction of the branch, of length 1 in the norm given by `weights`.
    - `mesh`: The mesh of a cycle, None for an equilibrium.
    """

    point: Float[Array, " unknowns"]
    tangent: Float[Array, " unknowns"]
    weights: Float[Array, " unknowns"]
    mesh: Mesh | None = None
    size: int = 0

    def profile(self, point: Array) -> Profile:
        return point[:-2].reshape(-1, self.size)


def _start_at_equilibrium(make: Callable, start: Any, ends: tuple[float, float]) -> _Walk:
    f = as_lagged(make(jnp.asarray(ends[0])))
    y = f.vector(find_equilibrium(f, start))
    p = jnp.asarray(ends[0], y.dtype)
    tangent, _ = _direct(make, _Walk(jnp.append(y, p), jnp.eye(y.size + 1)[-1], jnp.ones(1)))
    moved = jnp.max(jnp.abs(tangent[:-1])) * abs(ends[1] - ends[0])
    scale = jnp.maximum(jnp.max(jnp.abs(y)), jnp.where(jnp.isfinite(moved), moved, 0.0))
    scale = jnp.where(scale > 0, scale, 1.0)
    weights = jnp.append(jnp.full(y.size, 1 / (y.size * scale**2)), _parameter_weight(ends))
    return _orient(_Walk(jnp.append(y, p), tangent, weights.astype(y.dtype)), ends)


def _parameter_weight(ends: tuple[float, float]) -> float:
    return (ends[1] - ends[0]) ** -2


def _orient(walk: _Walk, ends: tuple[float, float]) -> _Walk:
    """Lets the branch begin towards the last value of the parameter."""
    sign = 1.0 if (ends[1] - ends[0]) * float(walk.tangent[-1]) >= 0 else -1.0
    length = jnp.sqrt(walk.weights @ walk.tangent**2)
    return walk._replace(tangent=sign * walk.tangent / length)


def _weigh_cycle(profile: Profile, period: Any, scale: Any, ends: tuple[float, float]) -> Array:
    each = jnp.full(profile.size, 1 / (profile.size * scale**2), profile.dtype)
    return jnp.concatenate([each, jnp.stack([period**-2, jnp.asarray(_parameter_weight(ends))])])


def _start_at_cycle(make: Callable, cycle: Cycle, ends: tuple[float, float]) -> _Walk:
    p = jnp.asarray(ends[0], cycle.period.dtype)
    point = jnp.concatenate([cycle.profile.ravel(), jnp.stack([cycle.period, p])])
    scale = jnp.max(jnp.ptp(cycle.profile, axis=0))
    weights = _weigh_cycle(cycle.profile, cycle.period, scale, ends)
    walk = _Walk(point, jnp.eye(point.size)[-1], weights, cycle.mesh, cycle.profile.shape[1])
    return _orient(walk._replace(tangent=_direct(make, walk)[0]), ends)


def _start_at_hopf(
    make: Callable, hopf: Hopf, ends: tuple[float, float], intervals: int, degree: int
) -> _Walk:
    f = as_lagged(make(hopf.parameter))
    y, mesh = f.vector(hopf.state), jnp.linspace(0, 1, intervals + 1)
    mesh = mesh.astype(y.dtype)
    turn = jnp.exp(2j * jnp.pi * node_times(mesh, degree))
    wave = (turn[:, None] * hopf.vector).real
    profile = jnp.broadcast_to(y, wave.shape)
    period = 2 * jnp.pi / hopf.frequency
    point = jnp.concatenate([profile.ravel(), jnp.stack([period, hopf.parameter])])
    # By the normal form, the size of cycles at a quarter of the range from here.
    ratio = hopf.speed.real * (ends[1] - ends[0]) / 4 / (hopf.frequency * hopf.lyapunov)
    size = 2 * jnp.sqrt(jnp.abs(ratio))
    size = jnp.where(jnp.isfinite(size) & (size > 0), size, 1.0)
    weights = _weigh_cycle(profile, period, size, ends)
    tangent = jnp.append(wave.ravel(), jnp.zeros(2, y.dtype))
    tangent = tangent / jnp.sqrt(weights @ tangent**2)
    return _Walk(point, tangent, weights.astype(y.dtype), mesh, f.size)


def _residual(make: Callable, walk: _Walk, reference: Array) -> Callable:
    """The equation of the branch, one condition less than there are unknowns."""

    def residual(point: Array) -> Array:
        f = as_lagged(make(point[-1]))
        if walk.mesh is None:
            return slope_at_rest(f, point[:-1])
        return collocate(
            f, walk.mesh, walk.profile(point), point[-2], walk.profile(jnp.asarray(reference))
        )

    return residual


@eqx.filter_jit
def _direct(make: Callable, walk: _Walk) -> tuple[Array, Array]:
    """The tangent of the branch, with a positive part along that of `walk`."""
    derivative = jax.jacfwd(_residual(make, walk, walk.point))(walk.point)
    matrix = jnp.concatenate([derivative, walk.tangent[None]])
    return jnp.linalg.solve(matrix, jnp.eye(walk.point.size)[-1]), matrix


@eqx.filter_jit
def _advance(make: Callable, walk: _Walk, length: Array, bound: Array):
    """The next point after a step of this length or, with a bound, the point at that parameter."""
    predicted = walk.point + length * walk.tangent
    predicted = jnp.where(jnp.isfinite(bound), _reach(walk, bound), predicted)
    residual = _residual(make, walk, jax.lax.stop_gradient(predicted))
    unit = jnp.zeros_like(walk.point).at[-1].set(1)
    normal = jnp.where(jnp.isfinite(bound), unit, walk.weights * walk.tangent)
    scale = jnp.max(jnp.abs(normal))
    conditions = lambda x: jnp.append(residual(x), normal @ (x - predicted) / scale)
    point, converged = iterate_newton(conditions, predicted, 10)
    matrix = jax.jacfwd(conditions)(point)
    tangent = jnp.linalg.solve(matrix, unit)
    tangent = tangent / jnp.sqrt(walk.weights @ tangent**2)
    turned = walk.weights @ (tangent * walk.tangent)
    tangent = tangent * jnp.sign(turned)
    missed = jnp.sqrt(walk.weights @ (point - predicted) ** 2)
    return walk._replace(point=point, tangent=tangent), converged, missed, jnp.abs(turned)


def _reach(walk: _Walk, bound: Array) -> Array:
    speed = walk.tangent[-1]
    length = (bound - walk.point[-1]) / jnp.where(speed == 0, 1.0, speed)
    return (walk.point + length * walk.tangent).at[-1].set(bound)


@eqx.filter_jit
def _remesh(walk: _Walk) -> _Walk:
    if walk.mesh is None:
        return walk
    before, old = walk.mesh, walk.profile(walk.point)
    mesh = equidistribute(before, old)
    times = node_times(mesh, old.shape[0] // (mesh.shape[0] - 1))
    move = lambda x: jnp.append(interpolate(before, walk.profile(x), times).ravel(), x[-2:])
    return walk._replace(point=move(walk.point), tangent=move(walk.tangent), mesh=mesh)


def _follow(
    make: Callable, walk: _Walk, ends: tuple[float, float], longest: float, most: int
) -> list[_Walk]:
    low, high = min(ends), max(ends)
    points, length, free = [walk], longest / 4, jnp.asarray(jnp.nan)
    while len(points) < most:
        new, converged, missed, turned = _advance(make, walk, jnp.asarray(length), free)
        p = float(new.point[-1])
        inside = low <= p <= high
        # A long way from the predicted point, or a sharp turn, may lead to another branch.
        safe = bool(converged) and float(missed) < 0.5 * length and float(turned) > 0.8
        if not safe or not (inside or len(points) > 1):
            length /= 2
            if length < 1e-6 * longest:
                break
            continue
        if not inside:
            bound = jnp.asarray(low if p < low else high)
            last, converged, _, _ = _advance(make, walk, jnp.asarray(length), bound)
            points += [last] if converged else []
            break
        if _is_point(new, points):
            break
        walk = _remesh(new)
        points.append(new)
        length = min(longest, length * (1.5 if float(missed) < 0.1 * length else 1.0))
    if len(points) < 2:
        raise ValueError(
            f"continue_branch could not leave its start at {float(walk.point[-1]):g}. Give a "
            "smaller `step`, or another start."
        )
    return points


def _is_point(walk: _Walk, points: list[_Walk]) -> bool:
    """Whether a cycle has shrunk to an equilibrium."""
    if walk.mesh is None or len(points) < 5:
        return False
    spreads = [float(jnp.max(jnp.ptp(w.profile(w.point), axis=0))) for w in (points[1], walk)]
    return spreads[1] < 0.5 * spreads[0]


# --- stability ------------------------------------------------------------------------------------


def _judge(make: Callable, walks: list[_Walk]) -> Branch:
    """The branch of these equilibria, with their characteristic roots."""
    points = jnp.stack([walk.point for walk in walks])
    spectrum = _find_spectrum(make, points)
    parameters = np.asarray(points[:, -1], float)
    stable = np.real(spectrum).max(axis=1) < 0
    events = _find_events(make, np.asarray(points, float), spectrum)
    f = as_lagged(make(points[0, -1]))
    return Branch(parameters, [f.state(p[:-1]) for p in points], spectrum, stable, events)


def _find_spectrum(make: Callable, points: Array) -> np.ndarray:
    f = as_lagged(make(points[0, -1]))
    count = _COUNT if len(f.taus) else f.size
    nodes = 32 if f.size <= 8 else 16
    while True:
        roots, confirmed = _roots_along(make, points, count, nodes)
        if np.all(confirmed) or nodes >= MOST_NODES:
            return np.asarray(roots)
        nodes *= 2


@eqx.filter_jit
def _roots_along(make: Callable, points: Array, count: int, nodes: int):
    def one(point):
        f = as_lagged(make(point[-1]))
        return roots_of(linearise(f, point[:-1]), get_lags(f), count, nodes)

    return jax.lax.map(one, points)


def _find_events(make: Callable, points: np.ndarray, spectrum: np.ndarray) -> list[Event]:
    unstable = np.sum(np.real(spectrum) > 0, axis=1)
    events = []
    for i in np.flatnonzero(unstable[1:] != unstable[:-1]):
        here, there = spectrum[i], spectrum[i + 1]
        critical = here[np.argmin(np.abs(here.real))]
        share = _share(np.sort(here.real), np.sort(there.real), 0.0)
        guess = points[i] + share * (points[i + 1] - points[i])
        exact = None
        if abs(unstable[i + 1] - unstable[i]) == 2 and abs(critical.imag) > 0:
            kind = "Hopf"
            exact = _refine(find_hopf, make, guess, frequency=float(abs(critical.imag)))
        elif _turns(points[:, -1], int(i)):
            kind, exact = "fold", _refine(find_fold, make, guess)
        else:
            kind = "branching"
        # Newton's method may have gone to another one. Two points at a fold are close together.
        width = np.ptp(points[max(0, i - 1) : i + 3, -1])
        if exact is None or abs(exact - guess[-1]) > 2 * width:
            exact = float(guess[-1])
        events.append(Event(kind, exact, int(i)))
    return events


def _refine(find: Callable, make: Callable, guess: np.ndarray, **options: Any) -> float | None:
    f = as_lagged(make(jnp.asarray(guess[-1], float)))
    try:
        start = f.state(jnp.asarray(guess[:-1]))
        return float(find(make, float(guess[-1]), start=start, **options).parameter)
    except ValueError:
        return None


def _turns(parameters: np.ndarray, i: int) -> bool:
    """Whether the parameter turns back at the step after point i."""
    steps = np.sign(np.diff(parameters))
    return bool(np.any(steps[max(0, i - 1) : i + 2] != steps[max(0, i - 1)]))


def _share(before: np.ndarray, after: np.ndarray, level: float) -> float:
    """Where between two points the value that crosses a level does so."""
    crosses = (before > level) != (after > level)
    if not np.any(crosses):
        return 0.5
    j = int(np.flatnonzero(crosses)[-1])
    return float((level - before[j]) / (after[j] - before[j]))


def _judge_cycles(make: Callable, walks: list[_Walk]) -> Branch:
    """The branch of these cycles, with their multipliers. The Hopf point itself is no cycle."""
    cycles, spectrum, counts = [], [], []
    kept = [w for w in walks if float(jnp.max(jnp.ptp(w.profile(w.point), axis=0))) > 0]
    for walk in kept:
        f = as_lagged(make(walk.point[-1]))
        cycle = Cycle(walk.point[-2], walk.mesh, walk.profile(walk.point), f.y0)  # pyright: ignore
        found = np.asarray(multipliers_of(f, cycle, _COUNT, periods_to_lag(f, cycle)))
        cycles.append(cycle)
        spectrum.append(found)
        counts.append(leave_out_shift(found))
    parameters = np.array([float(walk.point[-1]) for walk in kept])
    rest = np.array(counts)
    stable = np.abs(rest).max(axis=1, initial=0.0) < 1
    return Branch(parameters, cycles, np.array(spectrum), stable, _cycle_events(parameters, rest))


def _cycle_events(parameters: np.ndarray, multipliers: np.ndarray) -> list[Event]:
    sizes = np.abs(multipliers)
    outside, events = np.sum(sizes > 1, axis=1), []
    for i in np.flatnonzero(outside[1:] != outside[:-1]):
        critical = multipliers[i][np.argmin(np.abs(sizes[i] - 1))]
        share = _share(np.sort(sizes[i]), np.sort(sizes[i + 1]), 1.0)
        at = float(parameters[i] + share * (parameters[i + 1] - parameters[i]))
        if abs(critical.imag) > 1e-3:
            kind = "torus"
        elif critical.real < 0:
            kind = "period doubling"
        else:
            kind = "fold" if _turns(parameters, int(i)) else "branching"
        events.append(Event(kind, at, int(i)))
    return events
