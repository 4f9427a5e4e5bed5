"""The growth of a population depends on its last count: x' = a x(t) (1 - x(⌊t⌋)), at a = 3.2.

Between whole numbers the equation is an ordinary one, so its knots x(0), x(1), ... follow a map of
one number, x -> x exp(a (1 - x)). At a = 3.2 it has a period three, and so orbits of every period:
chaos in Li and Yorke's sense. The picture shows both: the solution with its knots, and the same
knots as a cobweb of the map.

    python examples/population.py            writes population.png
    python examples/population.py --out PATH
"""

import argparse
import sys
from pathlib import Path

import diffrax
import jax.numpy as jnp
import numpy as np

import lagrax

A = 3.2


def population(t, x, a, *, history):  # diffrax's f(t, y, args), plus the past
    (x_held,) = history
    return a * x * (1 - x_held)


def solve():
    return lagrax.solve(
        population,
        t0=0.0,
        t1=20.0,
        y0=0.5,
        args=A,
        delays=[lagrax.Hold(1.0)],  # x(⌊t⌋)
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, 20, 201)),
    )


# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"


def draw(sol, path: Path) -> None:
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot, needs neither a display nor a backend.
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.55, 1])
    draw_solution(left, sol)
    draw_cobweb(right, np.asarray(sol.knots.ys))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(-0.1, 3.6)  # room for the legends above the curves
        axes.set_yticks(range(4))
        axes.legend(loc="upper right", frameon=False, ncols=2, fontsize=9)
    figure.savefig(path, dpi=150)


def draw_solution(axes, sol) -> None:
    axes.plot(sol.ts, sol.ys, color=BLUE, label="x(t)")
    axes.plot(sol.knots.ts, sol.knots.ys, "o", color=ORANGE, markersize=4.5, label="knots x(k)")
    axes.set(title=f"x′ = {A} x(t) (1 − x(⌊t⌋))", xlabel="time t", ylabel="population x")
    axes.set_xticks(range(0, 21, 5))


def draw_cobweb(axes, knots) -> None:
    x = np.linspace(0, 3, 301)
    axes.plot(x, x, "--", color=GREY, linewidth=1, label="diagonal")
    axes.plot(x, x * np.exp(A * (1 - x)), color=BLUE, label="the map")
    # Each pair of neighbours in x(0), x(0), x(1), x(1), ... is a corner of the cobweb.
    corners = np.repeat(knots, 2)
    axes.plot(corners[:-1], corners[1:], color=ORANGE, linewidth=0.8, alpha=0.8, label="orbit")
    axes.plot(knots[:-1], knots[1:], "o", color=ORANGE, markersize=4.5, label="knots")
    axes.set(title="x ↦ x exp(a (1 − x))", xlabel="knot x(k)", ylabel="next knot x(k + 1)")
    axes.set_xlim(-0.1, 3)
    axes.set_xticks(range(4))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = "where the picture goes (default: population.png)"
    parser.add_argument("path", nargs="?", type=Path, help=where)
    parser.add_argument("--out", metavar="PATH", type=Path, help="the same, by its name")
    options = parser.parse_args()
    path = options.out or options.path or Path("population.png")
    sol = solve()
    try:
        draw(sol, path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        print('Drawing needs matplotlib: pip install "lagrax[plot]"', file=sys.stderr)
        return 1
    print(f"The picture lies in {path.resolve()}")
    print(f"{int(sol.stats['num_evaluations'])} evaluations of the equation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
