"""Computes and describes the plots of `lagrax explore`, without a browser.

The numbers that sliders move are arguments of programs compiled once for each equation and each
`lag`, so a move takes milliseconds.
"""

import base64
import contextlib
import functools
import io
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._solve.gradients import Direct
from .._solve.solve import solve
from ..analysis import KnotMap, Orbit, bifurcation, cobweb, knot_map
from ..plotting import COLOURS, Figure, Line, Mark, Panel, Points, plotly_panels
from ..systems import HeldSystem, Hutchinson, LinearSystem, System
from ..training._machine import load
from .explore_sliders import KNOTS, SYMBOLS, ExplorerState
from .long_run import LongRun, precisely
from .simulate import log_field

Drawing = dict[str, Any]

# The number of samples of a trajectory, and of values of the parameter in a diagram.
SAMPLES, VALUES = 601, 400
# Beyond, plots overflow; curves end there.
_LARGEST = 1e300
STATE_COLOURS = ("blue", "green")


# --- one state of the sliders ---------------------------------------------------------------------

# One request at a time, so that the second of two that need the same program does not compile it.
_LOCK = threading.Lock()


class View(NamedTuple):
    """The plots and the sentence for one state of the sliders. `plane` is the cobweb or its
    substitute under `plane_title`. The diagram marks `here`, the states in the long run."""

    trajectory: Drawing
    plane: Drawing
    plane_title: str
    sentence: str
    here: Float[np.ndarray, " states"]


@contextlib.contextmanager
def _in_float64_on_cpu() -> Iterator[None]:
    """Computes in float64 on the CPU. An accelerator would take longer for so small a problem."""
    with precisely(), jax.default_device(jax.devices("cpu")[0]):
        yield


def make_view(state: ExplorerState) -> View:
    with _LOCK:
        return _make_view(state)


def make_diagram(state: ExplorerState, here: Float[np.ndarray, " states"]) -> Drawing:
    """Draws the long run over the parameter on the axis, with a line at its present value. The
    states are one small image, so their number does not slow the browser."""
    with _LOCK:
        return _make_diagram(state, here)


def compile_for(state: ExplorerState) -> None:
    """Compiles the programs for `state`. It takes no lock, so requests need not wait."""
    _make_diagram(state, _make_view(state).here)


def _make_view(state: ExplorerState) -> View:
    with _in_float64_on_cpu():
        system = state.make_system()
        if not isinstance(system, HeldSystem):
            return _view_lagged(state, system)
        return _view_held(state, system)


def _view_held(state: ExplorerState, system: HeldSystem) -> View:
    equation, tau = state.equation, state.tau
    ts = np.linspace(0.0, equation.t1, SAMPLES)
    instants = tau * np.arange(KNOTS + 1)
    asked = np.concatenate([ts, instants])
    ys = np.asarray(system.solution(asked, state.start, intervals=equation.intervals), float)
    ys = ys.reshape(len(asked), -1)
    ys = np.where(np.abs(ys) < _LARGEST, ys, np.nan)
    knots = ys[SAMPLES:]
    shown = instants <= equation.t1
    # The knots join the samples, so that the curve goes through them.
    order = np.argsort(asked, kind="stable")
    order = order[asked[order] <= equation.t1]
    trajectory = _draw_trajectory(state, asked[order], ys[order], instants[shown], knots[shown])
    if isinstance(system, LinearSystem):
        plane = _draw_successive_knots(knots[:, 0], "x₁")
        sentence, here = _describe_linear_run(state, system)
        title = "Successive knots of x₁"
        sentence += " The state has two components, so the plot shows knots instead of a cobweb."
        return View(trajectory, plane, title, sentence, here)
    f = knot_map(system, state.start)
    sentence, here = _describe_long_run(state, f)
    if f.size == 1:
        plane, title = _draw(cobweb(f, state.start, KNOTS)), "Cobweb of the knot map"
        return View(trajectory, plane, title, sentence, here)
    sentence += f" The next knot depends on {f.size} earlier ones, so the plot shows knots instead "
    sentence += "of a cobweb."
    return View(
        trajectory, _draw_successive_knots(knots[:, 0], "x"), "Successive knots", sentence, here
    )


def _draw(figure: Figure) -> Drawing:
    return plotly_panels(figure, check=False)[0]


def _draw_trajectory(
    state: ExplorerState, ts: np.ndarray, curve: np.ndarray, instants: np.ndarray, knots: np.ndarray
) -> Drawing:
    names = state.equation.states
    marks: list[Mark] = []
    for i, (name, colour) in enumerate(zip(names, STATE_COLOURS, strict=False)):
        marks.append(Line(ts, curve[:, i], name, colour))
        if len(instants):
            marks.append(Points(instants, knots[:, i], f"{name} at the knots", colour))
    # Dots at both ends are drawn whole.
    t1 = state.equation.t1
    panel = Panel(marks, "", "t", ", ".join(names), xlim=(-0.01 * t1, 1.01 * t1))
    return _draw(Figure("trajectory", "The solution and its knots.", [panel]))


def _draw_successive_knots(knots: Float[np.ndarray, " knots"], name: str) -> Drawing:
    """Draws each knot against the next, joined in the order of time."""
    ends = (float(knots.min()), float(knots.max()))
    marks: list[Mark] = [
        Line(ends, ends, "next = this", "grey", dashed=True, width=1),
        Line(knots[:-1], knots[1:], "in the order of time", "orange", width=0.6),
        Points(knots[:-1], knots[1:], "knots"),
    ]
    panel = Panel(marks, "", f"{name} at a knot", f"{name} at the next", equal=True)
    return _draw(Figure("knots", "Successive knots.", [panel]))


# --- the long run ---------------------------------------------------------------------------------

# Iterates that distinguish chaos from an invariant curve, and the last of them, which are shown.
_ITERATES, _KEPT = 4_000, 128
# From this multiplier on, 5,000 iterates do not show where an orbit ends.
_SLOW = 0.995


def _describe_long_run(
    state: ExplorerState, f: KnotMap
) -> tuple[str, Float[np.ndarray, " states"]]:
    value = jnp.asarray([state.values[state.axis]], float)
    settled = bifurcation(state.over_axis(), value, state.start, keep=_ITERATES, skip=1_000)
    states = np.asarray(settled.states, float)[0, -_KEPT:, 0]
    period, exponents = int(settled.periods[0]), np.asarray(settled.exponents, float)
    at_rest = bool(np.all(states == float(state.start)))
    orbit = _find_orbit(f, states, period) if period and np.all(np.isfinite(states)) else None
    if orbit is not None and _SLOW < abs(orbit.multipliers[0]) < 1 and not at_rest:
        orbit, period = None, 0  # a slow approach, whose rounds are nearly equal
    start = np.ravel(state.start)
    run = LongRun(start, [], period, exponents, False, None, _ITERATES, at_rest)
    if not np.all(np.isfinite(states)):
        return run.sentence, np.empty(0)
    if run.underflows:
        return run.sentence, states[:1]
    if orbit is None or at_rest:
        return _use_minus_signs(
            f"{run.sentence} Largest Lyapunov exponent {exponents[0]:.3g}."
        ), states
    points = " → ".join(f"{x:.4g}" for x in states[-period:])
    where = f", {points}" if period <= 8 else ""
    return f"{run.sentence[:-1]}{where}; {_use_minus_signs(orbit.verdict)}.", states[-period:]


def _find_orbit(f: KnotMap, states: Float[np.ndarray, " kept"], period: int) -> Orbit:
    """The cycle at the end of `states`. Derivatives are taken at 64 points whatever the period, so
    that one compiled program serves all periods."""
    last = np.stack([states[len(states) - 64 - j : len(states) - j] for j in range(f.lags)], axis=1)
    jacobians = np.asarray(_jacobians(f, jnp.asarray(last)), float)[-period:]
    around = functools.reduce(lambda product, J: J @ product, jacobians)
    multipliers = np.linalg.eigvals(around).astype(complex)
    order = np.argsort(-np.abs(multipliers), kind="stable")
    points: Any = last[-period:]  # by NumPy, since JAX would compile for each length
    return Orbit(points, multipliers[order])


@eqx.filter_jit
def _jacobians(f: KnotMap, points: Float[Array, "n size"]) -> Float[Array, "n size size"]:
    return jax.vmap(f.jacobian)(points)


def _use_minus_signs(text: str) -> str:
    return text.replace(" -", " −")


def _describe_linear_run(
    state: ExplorerState, system: LinearSystem
) -> tuple[str, Float[np.ndarray, " states"]]:
    moduli = _find_moduli(state, np.array([state.values[state.axis]]))[0]
    exponents = np.log(np.maximum(moduli, 1e-300))
    run = LongRun(np.ravel(state.start), [], 0, exponents, True, None)
    return f"{run.sentence} Largest multiplier of modulus {moduli[0]:.4g}.", moduli


def _find_moduli(state: ExplorerState, values: np.ndarray) -> Float[np.ndarray, "values n"]:
    """The moduli of the multipliers, the largest first."""
    # Padded to one length, so that one value needs no program of its own.
    filled = np.resize(values, VALUES)
    matrices = np.asarray(_knot_matrices(state.over_axis(), jnp.asarray(filled)), float)
    return np.sort(np.abs(np.linalg.eigvals(matrices[: len(values)])), axis=1)[:, ::-1]


@eqx.filter_jit
def _knot_matrices(make: eqx.Partial, values: Float[Array, " v"]) -> Float[Array, "v n n"]:
    return jax.vmap(lambda value: make(value).knot_matrix)(values)


# --- equations with a lag -------------------------------------------------------------------------

_NO_MAP = (
    " The equation looks back at a continuous piece of its solution, so it has no knot map and no "
    "cobweb. The plane shows x(t) against x(t − τ) instead."
)


def _view_lagged(state: ExplorerState, system: System) -> View:
    equation, tau = state.equation, state.tau
    ts = np.linspace(0.0, equation.t1, 2 * SAMPLES - 1)
    ys = np.asarray(
        _solve_samples(system, state.start, equation.t1, equation.intervals, len(ts)), float
    )
    trajectory = _draw_trajectory(state, ts, ys[:, None], np.empty(0), np.empty((0, 1)))
    late = ts >= max(tau, equation.t1 / 3)
    before = np.interp(ts[late] - tau, ts, ys)
    panel = Panel([Line(before, ys[late], "x", width=1)], "", "x(t − τ)", "x(t)", equal=True)
    plane = _draw(Figure("plane", "The state against the state before.", [panel]))
    sentence = _describe_swing(ys[len(ts) // 2 :]) + _NO_MAP
    return View(trajectory, plane, "Phase plane", sentence, _find_extrema(ys[len(ts) // 2 :]))


@eqx.filter_jit
def _solve_samples(
    system: System, y0: Float[Array, ""], t1: float, intervals: int, samples: int
) -> Float[Array, " samples"]:
    return _solve_lagged(system, y0, t1, intervals, np.linspace(0.0, t1, samples))


def _solve_lagged(
    system: System, y0: Any, t1: Any, intervals: int, ts: Any, steps: int = 32
) -> Float[Array, " samples"]:
    # Its logarithm is smooth where a population rises and falls by orders of magnitude.
    in_logarithm = isinstance(system, Hutchinson)
    solution: Any = solve(
        log_field(system) if in_logarithm else system,
        0.0,
        t1,
        jnp.log(y0) if in_logarithm else y0,
        delays=system.delays,
        steps=steps,
        intervals=intervals,
        gradient=Direct(),
        saveat=diffrax.SaveAt(ts=ts),
        throw=False,
    )
    return jnp.exp(solution.ys) if in_logarithm else solution.ys


def _describe_swing(late: Float[np.ndarray, " times"]) -> str:
    low, high = float(late.min()), float(late.max())
    if not np.isfinite(high - low):
        return "It grows to infinity."
    if high - low < 1e-2 * (1 + abs(high)):
        if late[-1] > 2 * low > 0:
            return f"It swings slowly. The plot ends while it grows again from {low:.3g}."
        return f"It settles at {late[-1]:.3g}."
    return f"It swings between {low:.3g} and {high:.3g}."


def _find_extrema(late: Float[np.ndarray, " times"]) -> Float[np.ndarray, " extremes"]:
    """The maxima and minima of a series; its last value if it has none."""
    inner, left, right = late[1:-1], late[:-2], late[2:]
    turns = (inner >= left) & (inner >= right) | (inner <= left) & (inner <= right)
    return inner[turns] if np.any(turns) else late[-1:]


# --- the diagram ----------------------------------------------------------------------------------

# For each value, equations with a lag are solved over 30 periods, of which the second half is kept.
_PERIODS, _LATE, _STEPS = 30, 300, 12


def _make_diagram(state: ExplorerState, here: Float[np.ndarray, " states"]) -> Drawing:
    values = np.linspace(*state.axis_range, VALUES)
    with _in_float64_on_cpu():
        if issubclass(state.equation.system, LinearSystem):
            return _draw_moduli(state, values, here)
        if issubclass(state.equation.system, HeldSystem):
            found = bifurcation(state.over_axis(), values, state.start, keep=100, skip=400)
            states = np.asarray(found.states, float)[:, :, 0]
        else:
            values = values[:: VALUES // 80]
            late = _solve_late(state.over_axis(), state.start, jnp.asarray(values))
            turns = [_find_extrema(ys) for ys in np.asarray(late, float)]
            return _draw_extrema(state, values, turns, here)
    return _draw_states(state, states, here)


@eqx.filter_jit
def _solve_late(
    make: eqx.Partial, y0: Float[Array, ""], values: Float[Array, " v"]
) -> Float[Array, "v late"]:
    def one(value):
        system = make(value)
        ts = system.tau * jnp.linspace(_PERIODS / 2, _PERIODS, _LATE)
        return _solve_lagged(system, y0, _PERIODS * system.tau, _PERIODS, ts, _STEPS)

    return jax.vmap(one)(values)


def _draw_states(
    state: ExplorerState, states: Float[np.ndarray, "v kept"], here: np.ndarray
) -> Drawing:
    ends = _find_ends(state, states)
    drawing = _draw_with_marker(state, [], ends, "x at the knots", here)
    drawing["layout"]["yaxis"]["showgrid"] = False  # it would cover the branches
    first, last = state.axis_range
    half = (last - first) / (len(states) - 1) / 2
    drawing["layout"]["images"] = [
        {
            "source": _make_image(states, ends),
            "xref": "x",
            "yref": "y",
            "x": first - half,
            "y": ends[1],
            "sizex": last - first + 2 * half,
            "sizey": ends[1] - ends[0],
            "sizing": "stretch",
            "layer": "below",
        }
    ]
    return drawing


def _draw_extrema(
    state: ExplorerState, values: np.ndarray, extrema: list[np.ndarray], here: np.ndarray
) -> Drawing:
    """Draws the extrema over each value as dots. Columns of an image would be stairs, since there
    are few values."""
    over = np.repeat(values, [len(found) for found in extrema])
    states = np.concatenate(extrema)
    dots = Points(over, states, "extrema", "blue", size=1.8)
    ends = _find_ends(state, states)
    return _draw_with_marker(state, [dots], ends, "maxima and minima of x", here)


def _find_ends(state: ExplorerState, states: np.ndarray) -> tuple[float, float]:
    """The range of a diagram that shows the states, up to the equation's `top`."""
    known = states[np.isfinite(states)]
    top = min(float(known.max(initial=0.1)), state.equation.top)
    low = float(known.min(initial=top))
    margin = 0.04 * (top - low) or 0.04
    return low - margin, top + margin


def _draw_moduli(state: ExplorerState, values: np.ndarray, here: np.ndarray) -> Drawing:
    moduli = _find_moduli(state, values)
    marks: list[Mark] = [
        Line(values, modulus, "multipliers", colour)
        for modulus, colour in zip(
            moduli.T[::-1], [*["sky"] * (moduli.shape[1] - 1), "blue"], strict=True
        )
    ]
    top = max(1.2, min(3.0, float(moduli.max())))
    marks.append(Line(state.axis_range, (1.0, 1.0), "limit of stability", "grey", True, 1))
    return _draw_with_marker(state, marks, (-0.05, 1.05 * top), "modulus of the multipliers", here)


def _draw_with_marker(
    state: ExplorerState,
    behind: list[Mark],
    ends: tuple[float, float],
    label: str,
    here: np.ndarray,
) -> Drawing:
    marks: list[Mark] = [Line([0, 0], ends, "here", "orange"), Points([0], [0], "here", "orange")]
    name = SYMBOLS.get(state.axis, state.axis)
    panel = Panel([*marks, *behind], "", name, label, xlim=state.axis_range, ylim=ends)
    drawing = _draw(Figure("diagram", "The long run over a parameter.", [panel]))
    for trace, moved in zip(drawing["data"], make_marker(state, here), strict=False):
        trace |= moved | {"zorder": 1}  # in front, but first in the list for updates
    return drawing


def make_marker(state: ExplorerState, here: Float[np.ndarray, " states"]) -> list[Drawing]:
    """The data of the diagram's first two traces, which follow the parameter on its axis."""
    value = state.values[state.axis]
    states = [float(f"{x:.4g}") for x in here[:_KEPT].tolist()]
    return [{"x": [value, value]}, {"x": [value] * len(states), "y": states}]


def _make_image(
    states: Float[np.ndarray, "v kept"], ends: tuple[float, float], rows: int = 221
) -> str:
    """A PNG with one column for each value. States that are visited more often are more opaque."""
    cells = np.floor((states - ends[0]) / (ends[1] - ends[0]) * rows)
    inside = (cells >= 0) & (cells < rows)
    column = np.broadcast_to(np.arange(len(states))[:, None], states.shape)[inside]
    cell = (rows - 1 - cells[inside].astype(int)) * len(states) + column
    counts = np.bincount(cell, minlength=rows * len(states)).reshape(rows, -1)
    share = np.minimum(np.sqrt(counts / (0.1 * states.shape[1])), 1.0)
    pixels = np.empty((*counts.shape, 4), np.uint8)
    pixels[..., :3] = list(bytes.fromhex(COLOURS["blue"][1:]))
    pixels[..., 3] = np.where(counts > 0, 70 + 185 * share, 0)
    content = io.BytesIO()
    quickly = {"compress_level": 1}
    load("matplotlib.image").imsave(content, pixels, format="png", pil_kwargs=quickly)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
