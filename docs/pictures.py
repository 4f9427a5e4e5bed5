"""Draws the pictures of the documentation that are not made elsewhere.

python docs/pictures.py
"""

from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import lagrax
from lagrax import analysis
from lagrax.plotting import COLOURS, Line

FOLDER = Path(__file__).parent / "images"


def history() -> Figure:
    """What the field is given by each delay, along one solution."""
    ts = np.linspace(0, 6, 601)
    delays = [lagrax.Hold(1.0), lagrax.Hold(1.0, lag=1), lagrax.Lag(1.0)]

    def field(t, y, args, *, history):
        return jnp.cos(2.2 * t) + 0.4 * (history[2] - history[0]) - 0.3 * y

    sol = lagrax.solve(field, 0.0, 6.0, 0.6, delays=delays, saveat=diffrax.SaveAt(dense=True))

    def state(t):
        return np.asarray(sol.evaluate(jnp.maximum(t, 0.0)))

    given = {
        "Hold(1.0): z(⌊t⌋)": (state(np.floor(ts)), "blue"),
        "Hold(1.0, lag=1): z(⌊t⌋ − 1)": (state(np.floor(ts) - 1), "orange"),
        "Lag(1.0): z(t − 1)": (state(ts - 1), "green"),
    }
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (title, (past, colour)) in zip(panels, given.items(), strict=True):
        axes.plot(ts, state(ts), color="0.72", label="the state z(t)")
        axes.plot(ts, past, color=COLOURS[colour])
        axes.plot(sol.knots.ts, sol.knots.ys, ".", color="0.4", label="knots")
        axes.set(title=title, xlabel="t", xticks=range(7))
        axes.spines[["top", "right"]].set_visible(False)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, loc="outside lower center", ncols=2)
    return figure


def stability() -> Figure:
    """The chart of a chattering tool, and the branches of a population with a lag."""
    with jax.enable_x64(True):
        chart = _chatter_chart()
        make = lagrax.systems.Hutchinson
        rest = analysis.continue_branch(make, 1.0, 2.2)
        cycles = analysis.continue_branch(make, 1.0, 2.2, analysis.find_hopf(make, 1.5))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.contourf(chart.x, chart.y, chart.stable, levels=[0.5, 1.5], colors=[COLOURS["sky"]])
    left.plot(*chart.boundary.T, ".", color=COLOURS["blue"], markersize=2)
    left.text(7.0, 0.05, "stable", ha="center", va="center")
    left.set(xlabel="lag τ", ylabel="width of cut w", ylim=(0.02, 0.5))
    named = {}
    for mark in rest.figure(cycles).panels[0].marks:
        if isinstance(mark, Line):
            style = "--" if mark.dashed else "-"
            (curve,) = right.plot(mark.x, mark.y, style, color=COLOURS[mark.colour])
            named.setdefault(mark.label, curve)
    right.legend(named.values(), named.keys(), frameon=False, loc="upper left")
    right.set(xlabel="growth rate a", ylabel="population")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _chatter_chart() -> analysis.StabilityChart:
    def chatter(t, z, w, *, history):
        (x, v), (before,) = z, history
        return jnp.stack([v, -0.1 * v - x + w * (before[0] - x)])

    def tool(tau, w):
        return analysis.LaggedEquation(chatter, jnp.zeros(2), w, delays=[lagrax.Lag(tau)])

    return analysis.stability_chart(tool, np.linspace(1, 14, 90), np.linspace(0.02, 0.5, 60))


# The files that a solve passes through: their place, and what happens there. And their imports.
FLOW = {
    "solve.py": (0, 0, "solve(): the loop over\nthe intervals"),
    "problem.py": (-1, 0, "checks the arguments,\nmakes the Problem"),
    "grid.py": (-1, 2, "delays → breakpoints,\nwhere holds are sampled"),
    "method.py": (-1, 1, "how all intervals\nare stepped through"),
    "solution.py": (1, -1, "Solution, result codes\nwith their remedies"),
    "saving.py": (-1, -1, "SaveAt → which interval\nholds which time"),
    "gradients.py": (0, 1, "one interval: Direct,\nCheckpointed or Adjoint"),
    "steps.py": (0, 2, "one step; an interval\nof equal steps"),
    "adaptive.py": (1, 2, "adaptive steps, found\nand replayed"),
    "interval.py": (0, 3, "the vector field\nover one interval"),
    "field.py": (-1, 3, "the user's field,\ntraced and checked"),
    "history.py": (1, 3, "how holds and lags\nread the past"),
    "recording.py": (1, 1, "one interval, written\non the tape"),
    "backward.py": (1, 0, "back over the tape,\nstep by step"),
    "tape.py": (2, 0.5, "the dense output of\nthe whole solve"),
}
ASKS = [
    ("solve.py", "problem.py"),
    ("problem.py", "method.py"),
    ("method.py", "grid.py"),
    ("solve.py", "gradients.py"),
    ("solve.py", "saving.py"),
    ("solve.py", "solution.py"),
    ("gradients.py", "steps.py"),
    ("gradients.py", "adaptive.py"),
    ("adaptive.py", "steps.py"),
    ("steps.py", "interval.py"),
    ("interval.py", "field.py"),
    ("interval.py", "history.py"),
    ("solve.py", "backward.py"),
    ("solve.py", "recording.py"),
    ("recording.py", "tape.py"),
    ("backward.py", "tape.py"),
]


def flow() -> Figure:
    """How a solve flows through the files."""
    figure = Figure(figsize=(11.5, 7))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.62, 2.62), ylim=(-3.42, 1.42))
    axes.axis("off")
    for caller, callee in ASKS:
        (x0, y0, _), (x1, y1, _) = FLOW[caller], FLOW[callee]
        (x0, y0), (x1, y1) = _edge(x0, -y0, x1 - x0, y0 - y1), _edge(x1, -y1, x0 - x1, y1 - y0)
        arrow = {"arrowstyle": "-|>", "color": "0.45", "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
    for name, (x, y, what) in FLOW.items():
        style = "round,pad=0,rounding_size=0.05"
        colour = COLOURS["blue"] if x == 0 else "0.55"
        box = FancyBboxPatch(
            (x - WIDE, -y - HIGH), 2 * WIDE, 2 * HIGH, style, fc="white", ec=colour, lw=1.5
        )
        axes.add_patch(box)
        axes.text(x, -y + 0.15, name, ha="center", va="center", weight="bold", color=colour)
        axes.text(x, -y - 0.1, what, ha="center", va="center", fontsize=8.5, linespacing=1.3)
    arrow = {"arrowstyle": "-|>", "color": COLOURS["orange"], "lw": 1.5}
    axes.annotate("field, span, start, delays", (0, HIGH), (0, 0.85), arrowprops=arrow, ha="center")
    return figure


WIDE, HIGH = 0.43, 0.3


def _edge(x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    """Where the way from the middle of a box in that direction leaves it."""
    scale = min(WIDE / abs(dx) if dx else np.inf, HIGH / abs(dy) if dy else np.inf)
    return x + scale * dx, y + scale * dy


def main() -> None:
    for name, draw in (("history", history), ("flow", flow), ("stability", stability)):
        path = FOLDER / f"{name}.png"
        draw().savefig(path, dpi=130)
        print(path)


if __name__ == "__main__":
    main()
