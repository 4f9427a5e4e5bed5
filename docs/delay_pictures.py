"""Draws the pictures of docs/which-delay.md, one for each kind of delay.

python docs/delay_pictures.py
"""

from collections.abc import Callable
from pathlib import Path

import diffrax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import lagrax
from lagrax.plotting import COLOURS

FOLDER = Path(__file__).parent / "images"
STATE, ENTRY, MARK = "0.6", COLOURS["blue"], COLOURS["orange"]
T1 = 8.0
TS = np.linspace(0.0, T1, 801)
DENSE = diffrax.SaveAt(dense=True)


def wave(t, y, args, *, history):
    """A solution to read the past of."""
    del args, history
    return 1.6 * jnp.cos(1.7 * t) - 0.25 * y


def solve(field: Callable = wave, y0=0.3, **how):
    return lagrax.solve(field, 0.0, T1, y0, saveat=DENSE, **how)


def read(sol, ts) -> np.ndarray:
    """The solution, whose past before 0 is constant."""
    return np.asarray(sol.evaluate(jnp.clip(jnp.asarray(ts), 0.0, T1)))


def plot_state(axes: Axes, y, label: str = "state z(t)") -> None:
    axes.plot(TS, y, color=STATE, label=label)


def draw_arrow(axes: Axes, begin, end) -> None:
    style = {"arrowstyle": "->", "color": MARK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, begin, arrowprops=style)


def draw_hold(axes: Axes) -> None:
    sol = solve(delays=[lagrax.Hold(1.0)])
    plot_state(axes, read(sol, TS))
    axes.plot(TS, read(sol, np.floor(TS)), color=ENTRY, label="Hold(1.0)")
    axes.plot(sol.knots.ts, sol.knots.ys, "o", color=MARK, markersize=4, label="samples")


def draw_input(axes: Axes) -> None:
    ts, us = np.array([0.0, 1.0, 3.0, 4.5, 6.5]), np.array([0.0, 1.0, -0.5, 0.8, 0.0])

    def follow(t, y, args, *, history):
        return 2.0 * (history[0] - y)

    sol = solve(follow, 0.0, delays=[lagrax.Input(ts, us, delay=0.3)])
    plot_state(axes, read(sol, TS))
    place = np.searchsorted(ts + 0.3, TS, side="right") - 1
    axes.plot(TS, us[np.maximum(place, 0)], color=ENTRY, label="Input(ts, us, delay=0.3)")
    axes.plot(ts, us, "o", color=MARK, markersize=4, label="samples")


def draw_lag(axes: Axes) -> None:
    sol = solve(delays=[lagrax.Lag(1.2)])
    plot_state(axes, read(sol, TS))
    axes.plot(TS, read(sol, TS - 1.2), color=ENTRY, label="Lag(1.2)")
    for t in (2.0, 4.0, 6.0):
        draw_arrow(axes, (t - 1.2, read(sol, t - 1.2)), (t, read(sol, t - 1.2)))


def draw_function(axes: Axes) -> None:
    def tau(t, y, args):
        return 0.9 + 0.6 * jnp.tanh(y)

    sol = solve(delays=[lagrax.Lag(tau, low=0.3, high=1.5)])
    y = read(sol, TS)
    past = TS - np.asarray(tau(TS, y, None))
    plot_state(axes, y)
    axes.plot(TS, read(sol, past), color=ENTRY, label="Lag(function, low=0.3, high=1.5)")
    for t in (1.5, 3.3, 5.2, 7.0):
        at = np.searchsorted(TS, t)
        draw_arrow(axes, (past[at], read(sol, past[at])), (t, read(sol, past[at])))


def draw_matrix(axes: Axes) -> None:
    taus = np.array([[1.0, 0.8, 1.8], [0.7, 1.0, 1.3], [2.0, 1.1, 1.0]])

    def network(t, y, args, *, history):
        return jnp.array([1.5, 1.7, 1.9]) + 0.4 * jnp.sum(jnp.sin(history[0] - y[:, None]), axis=1)

    sol = solve(network, jnp.array([0.0, 2.0, 4.0]), delays=[lagrax.LagMatrix(taus)])
    lifts, now = -2.6 * np.arange(3), 6.2
    for j in range(3):
        y = np.cos(read(sol, TS)[:, j])
        label = "state of each node" if j == 0 else None
        axes.plot(TS, y + lifts[j], color=STATE, label=label)
        t = now - taus[0, j]
        place = (t, float(np.cos(read(sol, t)[j])) + lifts[j])
        label = "row 1 of LagMatrix(tau)" if j == 0 else None
        axes.plot(*place, "o", color=ENTRY, label=label)
        draw_arrow(axes, place, (now, place[1]))
        axes.text(T1 + 0.1, lifts[j], f"node {j + 1}", va="center", color="0.4")
    axes.axvline(now, color=MARK, linewidth=1, linestyle=":")
    axes.set(yticks=[], ylim=(-6.5, 1.5))


def draw_distributed(axes: Axes) -> None:
    def kernel(s):
        return 4 * s * jnp.exp(-2 * s)

    sol = solve(delays=[lagrax.Distributed(kernel, 3.0)], steps=2)
    ages = np.linspace(0.0, 3.0, 301)
    weights = np.asarray(kernel(ages)) * (ages[1] - ages[0])
    plot_state(axes, read(sol, TS))
    past = read(sol, TS[:, None] - ages)
    axes.plot(TS, past @ weights, color=ENTRY, label="Distributed(kernel, 3.0)")
    now, base = 6.0, -1.9
    high = base + 0.9 * np.asarray(kernel(ages))
    axes.fill_between(now - ages, base, high, color=MARK, alpha=0.35, linewidth=0)
    axes.text(now - 3.0, base + 0.06, "weights at t = 6", color=MARK, ha="right")
    axes.axvline(now, color=MARK, linewidth=1, linestyle=":")


def draw_slope(axes: Axes) -> None:
    def neutral(t, y, args, *, history):
        return -0.7 * history[0] - y

    sol = solve(neutral, lambda t: 1.0 - t, delays=[lagrax.Slope(1.5)])
    y = read(sol, TS)
    plot_state(axes, y)
    slope = np.append(-np.ones(150), np.gradient(y, TS))[: len(TS)]
    axes.plot(TS, slope, color=ENTRY, label="Slope(1.5)")
    ends = np.arange(0.0, T1, 1.5)
    axes.plot(ends, read(sol, ends), "o", color=MARK, markersize=4, label="kinks")


def draw_jump(axes: Axes) -> None:
    def decay(t, y, args):
        return -0.8 * y

    times = np.array([0.5, 2.0, 4.5, 6.0])
    sol = solve(decay, 0.2, jumps=[lagrax.Jump(times, add=np.array([1.0, 1.0, 0.6, 1.2]))])
    y = read(sol, TS).copy()
    y[np.searchsorted(TS, times) - 1] = np.nan
    plot_state(axes, y)
    before, after = read(sol, times - 1e-3), read(sol, times + 1e-3)
    for t, low, high in zip(times, before, after, strict=True):
        draw_arrow(axes, (t, low), (t, high))
    axes.plot([], [], color=MARK, label="Jump(times, add=amounts)")


PICTURES = {
    "hold": draw_hold,
    "input": draw_input,
    "lag": draw_lag,
    "function": draw_function,
    "matrix": draw_matrix,
    "distributed": draw_distributed,
    "slope": draw_slope,
    "jump": draw_jump,
}


def main() -> None:
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(6.6, 2.3), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set(xlabel="t", xlim=(0, T1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=3)
        path = FOLDER / f"delay_{name}.png"
        figure.savefig(path, dpi=130)
        print(path)


if __name__ == "__main__":
    main()
