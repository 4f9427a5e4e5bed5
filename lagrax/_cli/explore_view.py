"""What the page of `lagrax explore` shows: its pictures and its sentences.

Nothing here knows of browsers. All numbers that a slider moves are arguments of programs compiled
once for each equation (and each `lag`), so a move costs milliseconds.
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
from ..systems import HeldSystem, LinearSystem, System
from ..training._machine import load
from .explore_sliders import KNOTS, Place
from .long_run import LongRun, precisely

Drawing = dict[str, Any]

# Samples of a trajectory, and values of the parameter in a diagram.
SAMPLES, VALUES = 601, 400
STATE_COLOURS = ("blue", "green")


# --- what follows a slider ------------------------------------------------------------------------

# One request at a time: the second of two that need the same program waits until it is compiled.
_LOCK = threading.Lock()


class View(NamedTuple):
    """Everything that follows a slider. `plane` is the cobweb, or what stands in its place, under
    its title; `here` are the states in the long run, which the diagram marks."""

    trajectory: Drawing
    plane: Drawing
    plane_title: str
    sentence: str
    here: Float[np.ndarray, " states"]


@contextlib.contextmanager
def _exactly() -> Iterator[None]:
    """In float64, and near the browser: an accelerator would only take longer for so little."""
    with precisely(), jax.default_device(jax.devices("cpu")[0]):
        yield


def view(place: Place) -> View:
    with _LOCK:
        return _view(place)


def diagram(place: Place, here: Float[np.ndarray, " states"]) -> Drawing:
    """Where the equation stays over the parameter on the axis, with a line at its value. The states
    are one small image, which is drawn at once, however many they are."""
    with _LOCK:
        return _diagram(place, here)


def compile_for(place: Place) -> None:
    """Makes the programs for `place`, while others are used."""
    _diagram(place, _view(place).here)


def _view(place: Place) -> View:
    with _exactly():
        system = place.made()
        if not isinstance(system, HeldSystem):
            return _lagged_view(place, system)
        return _held_view(place, system)


def _held_view(place: Place, system: HeldSystem) -> View:
    subject, tau = place.subject, place.tau
    ts = np.linspace(0.0, subject.t1, SAMPLES)
    instants = tau * np.arange(KNOTS + 1)
    asked = np.concatenate([ts, instants])
    ys = np.asarray(system.solution(asked, place.start, intervals=subject.intervals), float)
    ys = ys.reshape(len(asked), -1)
    knots = ys[SAMPLES:]
    shown = instants <= subject.t1
    # The curve goes through its knots, wherever they lie between the samples.
    order = np.argsort(asked, kind="stable")
    order = order[asked[order] <= subject.t1]
    trajectory = _trajectory(place, asked[order], ys[order], instants[shown], knots[shown])
    if isinstance(system, LinearSystem):
        plane = _successive(knots[:, 0], "x₁")
        sentence, here = _linear_run(place, system)
        title = "Successive knots of x₁"
        sentence += " The state has two components, so the knots are shown instead of a cobweb."
        return View(trajectory, plane, title, sentence, here)
    f = knot_map(system, place.start)
    sentence, here = _long_run(place, f)
    if f.size == 1:
        plane, title = _drawing(cobweb(f, place.start, KNOTS)), "Cobweb of the knot map"
        return View(trajectory, plane, title, sentence, here)
    sentence += (
        f" The next knot depends on {f.size} before it, so the knots are shown instead of a cobweb."
    )
    return View(trajectory, _successive(knots[:, 0], "x"), "Successive knots", sentence, here)


def _drawing(figure: Figure) -> Drawing:
    return plotly_panels(figure, check=False)[0]


def _trajectory(
    place: Place, ts: np.ndarray, curve: np.ndarray, instants: np.ndarray, knots: np.ndarray
) -> Drawing:
    names = place.subject.states
    marks: list[Mark] = []
    for i, (name, colour) in enumerate(zip(names, STATE_COLOURS, strict=False)):
        marks.append(Line(ts, curve[:, i], name, colour))
        if len(instants):
            marks.append(Points(instants, knots[:, i], f"{name} at the knots", colour))
    panel = Panel(marks, "", "t", ", ".join(names), xlim=(0.0, place.subject.t1))
    return _drawing(Figure("trajectory", "The solution and its knots.", [panel]))


def _successive(knots: Float[np.ndarray, " knots"], name: str) -> Drawing:
    """Each knot against the next, joined in the order of time."""
    ends = (float(knots.min()), float(knots.max()))
    marks: list[Mark] = [
        Line(ends, ends, "next = this", "grey", dashed=True, width=1),
        Line(knots[:-1], knots[1:], "in the order of time", "orange", width=0.6),
        Points(knots[:-1], knots[1:], "knots"),
    ]
    panel = Panel(marks, "", f"{name} at a knot", f"{name} at the next", equal=True)
    return _drawing(Figure("knots", "Successive knots.", [panel]))


# --- the long run ---------------------------------------------------------------------------------

# As many as tell chaos, and those of them that are shown.
_ITERATES, _KEPT = 4_000, 128


def _long_run(place: Place, f: KnotMap) -> tuple[str, Float[np.ndarray, " states"]]:
    value = jnp.asarray([place.values[place.axis]], float)
    settled = bifurcation(place.over_axis(), value, place.start, keep=_ITERATES, skip=1_000)
    states = np.asarray(settled.states, float)[0, -_KEPT:, 0]
    period, exponents = int(settled.periods[0]), np.asarray(settled.exponents, float)
    run = LongRun(np.ravel(place.start), [], period, exponents, False, None, _ITERATES)
    if not np.all(np.isfinite(states)):
        return run.sentence, np.empty(0)
    if run.lost:
        return run.sentence, states[:1]
    if not period:
        return _signed(f"{run.sentence} Largest Lyapunov exponent {exponents[0]:.3g}."), states
    orbit = _orbit(f, states, period)
    points = " → ".join(f"{x:.4g}" for x in states[-period:])
    where = f", {points}" if period <= 8 else ""
    return f"{run.sentence[:-1]}{where}; {_signed(orbit.verdict)}.", states[-period:]


def _orbit(f: KnotMap, states: Float[np.ndarray, " kept"], period: int) -> Orbit:
    """The cycle at the end of `states`. The derivatives are those of a fixed number of points, for
    which there is one program, whatever the period."""
    last = np.stack([states[len(states) - 64 - j : len(states) - j] for j in range(f.lags)], axis=1)
    jacobians = np.asarray(_jacobians(f, jnp.asarray(last)), float)[-period:]
    around = functools.reduce(lambda product, J: J @ product, jacobians)
    multipliers = np.linalg.eigvals(around).astype(complex)
    order = np.argsort(-np.abs(multipliers), kind="stable")
    points: Any = last[-period:]  # left to NumPy: JAX compiles for each length
    return Orbit(points, multipliers[order])


@eqx.filter_jit
def _jacobians(f: KnotMap, points: Float[Array, "n size"]) -> Float[Array, "n size size"]:
    return jax.vmap(f.jacobian)(points)


def _signed(text: str) -> str:
    return text.replace(" -", " −")


def _linear_run(place: Place, system: LinearSystem) -> tuple[str, Float[np.ndarray, " states"]]:
    moduli = _moduli(place, np.array([place.values[place.axis]]))[0]
    exponents = np.log(np.maximum(moduli, 1e-300))
    run = LongRun(np.ravel(place.start), [], 0, exponents, True, None)
    return f"{run.sentence} Largest multiplier of modulus {moduli[0]:.4g}.", moduli


def _moduli(place: Place, values: np.ndarray) -> Float[np.ndarray, "values n"]:
    """The moduli of the multipliers, the largest first."""
    # Filled up, so that one value needs no program of its own.
    filled = np.resize(values, VALUES)
    matrices = np.asarray(_knot_matrices(place.over_axis(), jnp.asarray(filled)), float)
    return np.sort(np.abs(np.linalg.eigvals(matrices[: len(values)])), axis=1)[:, ::-1]


@eqx.filter_jit
def _knot_matrices(make: eqx.Partial, values: Float[Array, " v"]) -> Float[Array, "v n n"]:
    return jax.vmap(lambda value: make(value).knot_matrix)(values)


# --- equations with a lag -------------------------------------------------------------------------

_NO_MAP = (
    " x(t − τ) changes without pause, so no finite number of states says what comes next: there is "
    "no knot map and no cobweb, and the plane shows x(t) against x(t − τ) instead."
)


def _lagged_view(place: Place, system: System) -> View:
    subject, tau = place.subject, place.tau
    ts = np.linspace(0.0, subject.t1, 2 * SAMPLES - 1)
    ys = np.asarray(_solved(system, place.start, subject.t1, subject.intervals, len(ts)), float)
    trajectory = _trajectory(place, ts, ys[:, None], np.empty(0), np.empty((0, 1)))
    late = ts >= max(tau, subject.t1 / 3)
    before = np.interp(ts[late] - tau, ts, ys)
    panel = Panel([Line(before, ys[late], "x", width=1)], "", "x(t − τ)", "x(t)", equal=True)
    plane = _drawing(Figure("plane", "The state against the state before.", [panel]))
    sentence = _swing(ys[len(ts) // 2 :]) + _NO_MAP
    return View(trajectory, plane, "Phase plane", sentence, _extremes(ys[len(ts) // 2 :]))


@eqx.filter_jit
def _solved(
    system: System, y0: Float[Array, ""], t1: float, intervals: int, samples: int
) -> Float[Array, " samples"]:
    return _lagged(system, y0, t1, intervals, np.linspace(0.0, t1, samples))


def _lagged(
    system: System, y0: Any, t1: Any, intervals: int, ts: Any, steps: int = 16
) -> Float[Array, " samples"]:
    solution: Any = solve(
        system,
        0.0,
        t1,
        y0,
        delays=system.delays,
        steps=steps,
        intervals=intervals,
        gradient=Direct(),
        saveat=diffrax.SaveAt(ts=ts),
        throw=False,
    )
    return solution.ys


def _swing(late: Float[np.ndarray, " times"]) -> str:
    low, high = float(late.min()), float(late.max())
    if not np.isfinite(high - low):
        return "It runs away to infinity."
    if high - low < 1e-2 * (1 + abs(high)):
        return f"It settles at {late[-1]:.3g}."
    return f"It swings between {low:.3g} and {high:.3g}."


def _extremes(late: Float[np.ndarray, " times"]) -> Float[np.ndarray, " extremes"]:
    """The highest and lowest points of each swing; the last, where there is none."""
    inner, left, right = late[1:-1], late[:-2], late[2:]
    turns = (inner >= left) & (inner >= right) | (inner <= left) & (inner <= right)
    return inner[turns] if np.any(turns) else late[-1:]


# --- the diagram ----------------------------------------------------------------------------------

# So many periods of a lag for each value, of which the second half is kept.
_PERIODS, _LATE, _STEPS = 30, 300, 12


def _diagram(place: Place, here: Float[np.ndarray, " states"]) -> Drawing:
    values = np.linspace(place.slider.low, place.slider.high, VALUES)
    with _exactly():
        if issubclass(place.subject.system, LinearSystem):
            return _of_moduli(place, values, here)
        if issubclass(place.subject.system, HeldSystem):
            found = bifurcation(place.over_axis(), values, place.start, keep=100, skip=400)
            states = np.asarray(found.states, float)[:, :, 0]
        else:
            values = values[:: VALUES // 80]
            late = _late(place.over_axis(), place.start, jnp.asarray(values))
            turns = [_extremes(ys) for ys in np.asarray(late, float)]
            states = np.full((len(turns), max(map(len, turns))), np.nan)
            for row, found in zip(states, turns, strict=True):
                row[: len(found)] = found
    return _of_states(place, states, here)


@eqx.filter_jit
def _late(
    make: eqx.Partial, y0: Float[Array, ""], values: Float[Array, " v"]
) -> Float[Array, "v late"]:
    def one(value):
        system = make(value)
        ts = system.tau * jnp.linspace(_PERIODS / 2, _PERIODS, _LATE)
        return _lagged(system, y0, _PERIODS * system.tau, _PERIODS, ts, _STEPS)

    return jax.vmap(one)(values)


def _of_states(place: Place, states: Float[np.ndarray, "v kept"], here: np.ndarray) -> Drawing:
    held = issubclass(place.subject.system, HeldSystem)
    known = states[np.isfinite(states)]
    top = min(float(known.max(initial=0.1)), place.subject.top)
    low = float(known.min(initial=top))
    ends = (low - 0.04 * (top - low), top + 0.04 * (top - low))
    label = "x at the knots" if held else "highest and lowest x"
    drawing = _with_marker(place, [], ends, label, here)
    drawing["layout"]["yaxis"]["showgrid"] = False  # it would cover the branches
    slider = place.slider
    half = (slider.high - slider.low) / (len(states) - 1) / 2
    drawing["layout"]["images"] = [
        {
            "source": _image(states, ends),
            "xref": "x",
            "yref": "y",
            "x": slider.low - half,
            "y": ends[1],
            "sizex": slider.high - slider.low + 2 * half,
            "sizey": ends[1] - ends[0],
            "sizing": "stretch",
            "layer": "below",
        }
    ]
    return drawing


def _of_moduli(place: Place, values: np.ndarray, here: np.ndarray) -> Drawing:
    moduli = _moduli(place, values)
    marks: list[Mark] = [
        Line(values, modulus, "multipliers", colour)
        for modulus, colour in zip(
            moduli.T[::-1], [*["sky"] * (moduli.shape[1] - 1), "blue"], strict=True
        )
    ]
    slider, top = place.slider, max(1.2, min(3.0, float(moduli.max())))
    marks.append(Line((slider.low, slider.high), (1.0, 1.0), "limit of stability", "grey", True, 1))
    return _with_marker(place, marks, (-0.05, 1.05 * top), "modulus of the multipliers", here)


def _with_marker(
    place: Place, behind: list[Mark], ends: tuple[float, float], label: str, here: np.ndarray
) -> Drawing:
    slider = place.slider
    marks: list[Mark] = [Line([0, 0], ends, "here", "orange"), Points([0], [0], "here", "orange")]
    limits = (slider.low, slider.high)
    panel = Panel([*marks, *behind], "", slider.name, label, xlim=limits, ylim=ends)
    drawing = _drawing(Figure("diagram", "The long run over a parameter.", [panel]))
    for trace, moved in zip(drawing["data"], marker(place, here), strict=False):
        trace |= moved | {"zorder": 1}  # in front, but first, where it is easily found again
    return drawing


def marker(place: Place, here: Float[np.ndarray, " states"]) -> list[Drawing]:
    """What of the diagram's first two traces follows the parameter on its axis."""
    value = place.values[place.axis]
    states = [float(f"{x:.4g}") for x in here[:_KEPT].tolist()]
    return [{"x": [value, value]}, {"x": [value] * len(states), "y": states}]


def _image(states: Float[np.ndarray, "v kept"], ends: tuple[float, float], rows: int = 221) -> str:
    """A PNG whose columns are the values; the more often a state is visited, the less it is
    transparent."""
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
