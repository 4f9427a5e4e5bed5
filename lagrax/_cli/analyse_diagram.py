"""Computes, describes and draws the bifurcation diagram of `lagrax analyse`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis import Bifurcation, KnotMap, Orbit, bifurcation, periodic_orbits
from ..analysis._diagrams import largest_exponents
from ..analysis._exponents import least_of_chaos
from ..plotting import Figure
from ..systems import System
from ..training._progress import Progress
from .analyse_equation import AnalysedEquation, ParameterRange

MakeEquation = Callable[..., KnotMap | System]

# The diagram is computed in this many parts, so that progress can be shown.
PARTS = 8


class Finding(NamedTuple):
    """The result over one or two parameters.

    It has entries of the summary, lines to print, figures, and tables by file name. A table
    consists of its names and its columns.
    """

    summary: dict[str, Any]
    lines: list[str]
    figures: list[Figure]
    tables: dict[str, tuple[list[str], list[Any]]]
    diagram: Bifurcation | None = None


@dataclasses.dataclass(frozen=True)
class DiagramSize:
    """The number of `values` of the parameter, and of iterates that are left out (`skip`) and then
    kept (`keep`) for each. Where these have no period, `confirm` iterates decide on chaos."""

    values: int
    keep: int
    skip: int
    confirm: int


# A learned equation is solved in steps, which takes a hundred times as long as a closed form.
CLASSICAL, LEARNED = DiagramSize(2000, 500, 1000, 30_000), DiagramSize(400, 200, 400, 1_000)


def summarise_ranges(ranges: Sequence[ParameterRange], values: int) -> dict[str, Any]:
    over = [{"parameter": r.name, "low": r.low, "high": r.high} for r in ranges]
    return {"over": over, "values": values}


def find_diagram(
    equation: AnalysedEquation, over: ParameterRange, size: DiagramSize, progress: bool
) -> Finding:
    make = equation.over(over.name)
    values = np.linspace(over.low, over.high, size.values)
    diagram = _confirm_exponents(make, _compute(make, values, size, progress), size)
    changes = find_stability_changes(make, over, 41 if equation.model is None else 17)
    windows = find_windows(diagram, size)
    states = np.asarray(diagram.states, float)
    columns = [values, np.asarray(diagram.exponents, float), diagram.periods]
    names = [over.name, "exponent", "period"]
    for i, state in enumerate(equation.states):
        names += [f"{state}_low", f"{state}_high"]
        columns += [states[:, :, i].min(axis=1), states[:, :, i].max(axis=1)]
    summary = summarise_ranges([over], size.values) | {
        "critical": [c._asdict() | {"point": list(c.point)} for c in changes],
        "windows": windows,
    }
    lines = [
        f"Over {over}, {size.values:,} values:",
        *(f"  {line}" for line in describe_diagram(over, changes, windows)),
    ]
    figure = diagram.figure("diagram", parameter=over.name)
    return Finding(summary, lines, [figure], {"diagram.csv": (names, columns)}, diagram)


def _compute(
    make: MakeEquation, values: np.ndarray, size: DiagramSize, progress: bool
) -> Bifurcation:
    """Computes parts of one length, the last padded, so that one program serves all."""
    length = -(-len(values) // PARTS)
    count = -(-len(values) // length)
    padded = np.pad(values, (0, count * length - len(values)), mode="edge")
    parts = []
    with Progress("diagram", 0, len(values), shown=progress) as shown:
        for some in padded.reshape(count, length):
            part = bifurcation(make, some, keep=size.keep, skip=size.skip)
            parts.append(jax.tree.map(np.asarray, part))
            shown.update(min(len(parts) * length, len(values)), "values")
    joined = [np.concatenate(x)[: len(values)] for x in zip(*parts, strict=True)]
    found, states, exponents, periods = joined
    return Bifurcation(jnp.asarray(found), jnp.asarray(states), jnp.asarray(exponents), periods)


def _confirm_exponents(make: MakeEquation, diagram: Bifurcation, size: DiagramSize) -> Bifurcation:
    """Replaces exponents where there is no period by those of more iterates. The kept ones cannot
    distinguish chaos from an orbit on an invariant curve."""
    exponents, unsure = np.array(diagram.exponents, float), diagram.periods == 0
    if np.any(unsure):
        asked = jnp.asarray(np.asarray(diagram.values)[unsure])
        exponents[unsure] = largest_exponents(make, asked, size.confirm, size.skip)
    return diagram._replace(exponents=jnp.asarray(exponents))


# --- changes of stability -------------------------------------------------------------------------


class StabilityChange(NamedTuple):
    """A value of the parameter at which a fixed point gains or loses its stability."""

    value: float
    point: tuple[float, ...]
    gains: bool
    event: str


def find_stability_changes(
    make: MakeEquation, over: ParameterRange, resolution: int
) -> list[StabilityChange]:
    """Finds fixed points on a grid of values. Between neighbours of which one is stable, bisection
    finds the value of the change."""
    grid = np.linspace(over.low, over.high, resolution)
    found: list[StabilityChange] = []
    before: list[Orbit] = []
    for i, value in enumerate(grid):
        here = periodic_orbits(make(jnp.asarray(value)))
        for first in before if i else []:
            second = _find_nearest(first, here)
            if second is None or _find_nearest(second, before) is not first:
                continue
            if _is_stable(first) != _is_stable(second):
                found.append(_bisect(make, grid[i - 1], value, first, second))
        before = here
    return found


def _find_nearest(orbit: Orbit, others: Sequence[Orbit]) -> Orbit | None:
    distance = lambda other: float(np.abs(np.asarray(orbit.points - other.points)).max())
    return min(others, key=distance, default=None)


def _is_stable(orbit: Orbit) -> bool:
    return bool(np.abs(orbit.multipliers[0]) < 1)


def _bisect(
    make: MakeEquation, low: float, high: float, first: Orbit, second: Orbit
) -> StabilityChange:
    gains, at = _is_stable(second), first
    for _ in range(48):
        middle = (low + high) / 2
        start = np.asarray(at.points)
        near = _find_nearest(at, periodic_orbits(make(jnp.asarray(middle)), starts=start))
        if near is None:
            break
        at = near
        low, high = (middle, high) if _is_stable(near) != gains else (low, middle)
    point = tuple(float(x) for x in np.asarray(at.points)[0])
    return StabilityChange((low + high) / 2, point, gains, _name_event(at.multipliers[0]))


def _name_event(largest: complex) -> str:
    """The bifurcation at which the largest multiplier crosses the unit circle."""
    if abs(largest.imag) >= 1e-6:
        return "an invariant curve, multipliers on the unit circle"
    if largest.real < 0:
        return "a doubling of its period, multiplier −1"
    return "a fold or a branching, multiplier 1"


# --- windows --------------------------------------------------------------------------------------

# Kinds of behaviour that are not periods.
CHAOS, NO_PERIOD, UNDERFLOW = 0, -1, -2
_KINDS = {
    CHAOS: "chaos",
    NO_PERIOD: "no period found",
    UNDERFLOW: "below the smallest floating-point number",
    1: "a fixed point",
}


def find_windows(diagram: Bifurcation, size: DiagramSize) -> list[dict[str, float | int | bool]]:
    """The stretches of values with the same period, or with the same kind of behaviour without one.

    Stretches shorter than a hundredth of all values are left out. They may lie inside others, which
    then do not have their period `throughout`.
    """
    periods, exponents = diagram.periods, np.asarray(diagram.exponents)
    chaotic = (periods == 0) & (exponents > least_of_chaos(size.confirm))
    # Orbits nearby part although the orbit repeats: it underflowed.
    lost = (periods > 0) & (exponents > least_of_chaos(size.keep))
    kinds = np.select([chaotic, lost, periods > 0], [CHAOS, UNDERFLOW, periods], NO_PERIOD)
    values = np.asarray(diagram.values, float)
    edges = np.flatnonzero(np.diff(kinds)) + 1
    found: list[dict[str, float | int | bool]] = []
    for a, b in zip(np.append(0, edges), np.append(edges, len(kinds)), strict=True):
        if b - a < max(2, len(kinds) / 100):
            continue
        if found and found[-1]["period"] == kinds[a]:
            found[-1]["high"] = float(values[b - 1])
        else:
            ends = {"low": float(values[a]), "high": float(values[b - 1])}
            found.append(ends | {"period": int(kinds[a])})
    for w in found:
        inside = (values >= w["low"]) & (values <= w["high"])
        w["throughout"] = bool(np.all(kinds[inside] == w["period"]))
    return found


def describe_diagram(
    over: ParameterRange, changes: Sequence[StabilityChange], windows: Sequence[Mapping]
) -> list[str]:
    """One line for each change of stability and for each window."""
    lines = []
    for c in changes:
        verb = "gains" if c.gains else "loses"
        point = ", ".join(f"{0.0 if abs(x) < 1e-9 else x:.5g}" for x in c.point)
        lines.append(
            f"the fixed point {point} {verb} its stability at {over.name} = {c.value:.7g} "
            f"(by {c.event})"
        )
    for w in windows:
        kind = _KINDS.get(w["period"], f"period {w['period']}")
        except_for = "" if w["throughout"] else ", except for narrow windows,"
        lines.append(f"{kind}{except_for} from {w['low']:.5g} to {w['high']:.5g}")
    return lines


def format_states(states: Sequence[str], parameter: str, diagram: Bifurcation) -> str:
    """A CSV text with one row for each value of the parameter.

    A row has this value and then all kept states with their components.
    """
    kept = np.asarray(diagram.states, float)
    names = [f"{state}[{i}]" for i in range(kept.shape[1]) for state in states]
    rows = np.column_stack([np.asarray(diagram.values, float), kept.reshape(len(kept), -1)])
    written = (",".join([f"{x:.7g}" for x in row]) for row in rows.tolist())
    return "\n".join([",".join([parameter, *names]), *written]) + "\n"
