"""Where an equation is stable, over two parameters, for `lagrax analyse`."""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..analysis import StabilityChart, StabilityRegion, stability_chart, stability_region
from ..analysis._equilibria import equilibria_from
from ..analysis._lagged import as_lagged
from .analyse_diagram import Finding, summarise_ranges
from .analyse_equation import AnalysedEquation, ParameterRange
from .long_run import format_state


def find_stable_pairs(
    equation: AnalysedEquation, x: ParameterRange, y: ParameterRange, resolution: int
) -> Finding:
    """The pairs of parameters for which the equation, or its equilibrium near the start, is stable.

    The region of a linear equation with holds is exact. Any equation with lags has a chart.
    """
    xs, ys = (np.linspace(r.low, r.high, resolution) for r in (x, y))
    make = equation.over(x.name, y.name)
    if equation.has_lags:
        chart = stability_chart(make, xs, ys)
        about, values = _describe_equilibrium(make, [x, y]), chart.growth
        return _make_finding("chart", chart, about, "growth", values, [x, y])
    region = stability_region(make, xs, ys)
    return _make_finding("region", region, "stable", "radius", region.radius, [x, y])


def _describe_equilibrium(make: Callable[..., Any], ranges: list[ParameterRange]) -> str:
    """Names the equilibrium of the chart, which Newton's method finds from the start."""
    start, found = np.empty(0), []
    for pair in itertools.product(*((r.low, r.high) for r in ranges)):
        equation = as_lagged(make(*jnp.asarray(pair, float)))
        start = np.asarray(equation.vector(), float)
        found.append(np.asarray(equilibria_from(equation, jnp.asarray(start)[None]), float)[0])
    low, high = np.nanmin(found, axis=0), np.nanmax(found, axis=0)
    same = np.allclose(low, high, rtol=1e-6, atol=1e-9)
    where = format_state(low) if same else f"{format_state(low)} to {format_state(high)}"
    return f"the equilibrium {where}, found from {format_state(start)}, is stable"


def _make_finding(
    name: str,
    chart: StabilityChart | StabilityRegion,
    about: str,
    value: str,
    values: np.ndarray,
    ranges: list[ParameterRange],
) -> Finding:
    x, y = ranges
    share = float(np.mean(chart.stable))
    pairs = [grid.ravel() for grid in np.meshgrid(chart.x, chart.y)]
    tables = {
        f"{name}.csv": ([x.name, y.name, value], [*pairs, values.ravel()]),
        "boundary.csv": ([x.name, y.name], [*chart.boundary.T]),
    }
    return Finding(
        summarise_ranges(ranges, len(chart.x)) | {"stable_share": share},
        [f"Over {x} and {y}:", f"  {about} at {share:.1%} of the pairs"],
        [chart.figure(name, xlabel=x.name, ylabel=y.name)],
        tables,
    )
