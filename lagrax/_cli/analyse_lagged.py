"""Branches of equations with lags, for `lagrax analyse`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..analysis import Branch, Cycle, continue_branch, find_hopf
from ..analysis._lagged import as_lagged
from ..training._progress import Progress
from .analyse_diagram import Finding, summarise_ranges
from .analyse_equation import AnalysedEquation, ParameterRange
from .lagged_run import find_equilibria

# A population that goes through many Hopf points has cycles that are hardly ever stable.
MOST_CYCLES = 4


def find_branches(
    equation: AnalysedEquation, over: ParameterRange, progress: bool, intervals: int = 30
) -> Finding:
    """The equilibria over a parameter, and the cycles that branch off."""
    make = equation.over(over.name)
    with Progress("branches", 0, 3, shown=progress) as shown:
        rest = _follow_equilibria(make, over)
        shown.update(1, f"{len(rest)} of equilibria")
        cycles = _follow_cycles(make, over, rest, intervals)
        shown.update(3, f"{len(cycles)} of cycles")
    branches = [*rest, *cycles]
    summary = summarise_ranges([over], sum(len(b.parameters) for b in branches))
    summary |= {"branches": [_summarise(branch) for branch in branches]}
    lines = [f"Over {over}:"]
    for branch in branches:
        lines += [f"  {line}" for line in _describe(branch, over)]
    if not branches:
        lines.append("  no equilibrium was found at either end")
        return Finding(summary, lines, [], {})
    figure = branches[0].figure(*branches[1:], name="diagram", parameter=over.name)
    table = _tabulate(branches, over.name, equation.states)
    return Finding(summary, lines, [figure], {"diagram.csv": table})


def _follow_equilibria(make: Callable[..., Any], over: ParameterRange) -> list[Branch]:
    """The branches from both ends of the range, each once."""
    found: list[Branch] = []
    for first, last in ((over.low, over.high), (over.high, over.low)):
        f = as_lagged(make(jnp.asarray(first)))
        for y in find_equilibria(f):
            if any(_ends_at(branch, first, y) for branch in found):
                continue
            try:
                found.append(continue_branch(make, first, last, f.state(jnp.asarray(y))))
            except ValueError:
                continue  # it lies on a fold or a branching
    return found


def _ends_at(branch: Branch, parameter: float, y: np.ndarray) -> bool:
    ends = [(branch.parameters[i], branch.extent(i)[0]) for i in (0, -1)]
    near = lambda state: np.max(np.abs(state - y)) <= 1e-6 * (np.max(np.abs(y)) + 1e-6)
    return any(value == parameter and near(state) for value, state in ends)


def _follow_cycles(
    make: Callable[..., Any], over: ParameterRange, rest: list[Branch], intervals: int
) -> list[Branch]:
    found: list[Branch] = []
    for branch in rest:
        for event in branch.events:
            if event.kind != "Hopf" or len(found) == MOST_CYCLES:
                continue
            try:
                start = branch.points[event.after]
                frequency = branch.frequency(event)
                hopf = find_hopf(make, event.parameter, start=start, frequency=frequency)
                found.append(
                    continue_branch(make, over.low, over.high, hopf, intervals=intervals, most=150)
                )
            except ValueError:
                continue  # it lies at the end of the range
    return found


# --- words and tables -----------------------------------------------------------------------------


def _kind(branch: Branch) -> str:
    return "cycles" if isinstance(branch.points[0], Cycle) else "equilibria"


def _summarise(branch: Branch) -> dict[str, Any]:
    return {
        "kind": _kind(branch),
        "from": float(branch.parameters[0]),
        "to": float(branch.parameters[-1]),
        "stable_share": float(np.mean(branch.stable)),
        "events": [{"kind": e.kind, "parameter": e.parameter} for e in branch.events],
    }


def _describe(branch: Branch, over: ParameterRange) -> list[str]:
    first, last = branch.parameters[0], branch.parameters[-1]
    share = "stable" if np.all(branch.stable) else "unstable"
    share = "partly stable" if np.any(branch.stable) and not np.all(branch.stable) else share
    if isinstance(branch.points[0], Cycle):
        periods = [float(cycle.period) for cycle in branch.points]
        about = f"cycles of period {periods[0]:.5g} to {periods[-1]:.5g}"
    else:
        shown = lambda i: ", ".join(f"{x:.5g}" for x in branch.extent(i)[0])
        about = f"equilibria {shown(0)} to {shown(-1)}"
    lines = [f"{about}, {share}, from {over.name} = {first:.5g} to {last:.5g}"]
    lines += [f"  {e.kind} at {over.name} = {e.parameter:.7g}" for e in branch.events]
    return lines


def _tabulate(
    branches: list[Branch], parameter: str, states: list[str]
) -> tuple[list[str], list[Any]]:
    names = ["branch", parameter, "stable", "period"]
    names += [f"{state}_{end}" for state in states for end in ("low", "high")]
    rows = []
    for number, branch in enumerate(branches, 1):
        for i, point in enumerate(branch.points):
            period = float(point.period) if isinstance(point, Cycle) else 0.0
            row = [number, branch.parameters[i], int(branch.stable[i]), period]
            rows.append([*row, *branch.extent(i).T.ravel()])
    return names, [*np.array(rows, float).T]
