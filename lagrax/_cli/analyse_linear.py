"""The stability of a linear equation over one parameter, for `lagrax analyse`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..plotting import Figure, Line, Mark, Panel
from .analyse_diagram import Finding, summarise_ranges
from .analyse_equation import AnalysedEquation, ParameterRange


def find_multipliers(equation: AnalysedEquation, over: ParameterRange, values: int) -> Finding:
    """The moduli of the multipliers over a parameter, and where stability changes."""
    make: Callable[..., Any] = equation.over(over.name)
    matrices = eqx.filter_jit(jax.vmap(lambda value: make(value).knot_matrix))
    grid = np.linspace(over.low, over.high, values)
    moduli = _find_moduli(matrices, grid)
    crossings = _find_crossings(matrices, grid, moduli[:, 0] < 1)
    with np.errstate(divide="ignore"):
        exponents = np.log(moduli[:, 0])
    names = [over.name, "exponent", *(f"modulus{i + 1}" for i in range(moduli.shape[1]))]
    lines = [f"Over {over}, {values:,} values:"]
    lines += [
        f"  {'becomes stable' if c['gains'] else 'is no longer stable'} at {over.name} = "
        f"{c['value']:.7g}"
        for c in crossings
    ] or [f"  {'stable' if moduli[0, 0] < 1 else 'not stable'} at all of them"]
    return Finding(
        summarise_ranges([over], values) | {"critical": crossings},
        lines,
        [_draw_multipliers(over, grid, moduli, exponents)],
        {"diagram.csv": (names, [grid, exponents, *moduli.T])},
    )


def _draw_multipliers(
    over: ParameterRange, values: np.ndarray, moduli: np.ndarray, exponents: np.ndarray
) -> Figure:
    ends = (over.low, over.high)
    others = moduli.shape[1] - 1
    # The largest is drawn last, on top of those that share its modulus.
    above: list[Mark] = [
        Line(values, modulus, label, colour)
        for modulus, label, colour in zip(
            moduli.T[::-1],
            [*["others"] * others, "largest multiplier"],
            [*["sky"] * others, "blue"],
            strict=True,
        )
    ]
    above.append(Line(ends, (1.0, 1.0), "limit of stability", "grey", True, 1))
    below: list[Mark] = [
        Line(ends, (0.0, 0.0), None, "grey", True, 1),
        Line(values, np.where(np.isfinite(exponents), exponents, np.nan)),
    ]
    return Figure(
        "diagram",
        f"Above, the moduli of the multipliers over {over.name}; the equation is stable where all "
        "are below 1. Below, the largest Lyapunov exponent.",
        [
            Panel(above, "", over.name, "modulus of the multipliers", xlim=ends),
            Panel(below, "", over.name, "Lyapunov exponent", xlim=ends),
        ],
    )


def _find_moduli(matrices: Callable, values: np.ndarray) -> np.ndarray:
    """The moduli of the multipliers for each value, the largest first."""
    found = np.asarray(matrices(jnp.asarray(values)), float)
    return np.sort(np.abs(np.linalg.eigvals(found)), axis=1)[:, ::-1]


def _find_crossings(
    matrices: Callable, values: np.ndarray, stable: np.ndarray
) -> list[dict[str, Any]]:
    """Bisects between neighbouring values of which one is stable."""
    before = np.flatnonzero(stable[1:] != stable[:-1])
    if not len(before):
        return []
    low, high, gains = values[before], values[before + 1], stable[before + 1]
    for _ in range(48):
        middle = (low + high) / 2
        same = (_find_moduli(matrices, middle)[:, 0] < 1) == gains
        low, high = np.where(same, low, middle), np.where(same, middle, high)
    found = (low + high) / 2
    # Rounding leaves something tiny in place of zero.
    found = np.where(np.abs(found) < 1e-12 * np.ptp(values), 0.0, found)
    return [{"value": float(v), "gains": bool(g)} for v, g in zip(found, gains, strict=True)]
