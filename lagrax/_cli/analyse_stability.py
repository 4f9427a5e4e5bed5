"""Where an equation is stable, over two parameters, for `lagrax analyse`."""

import numpy as np

from ..analysis import StabilityChart, StabilityRegion, stability_chart, stability_region
from .analyse_diagram import Finding, summarise_ranges
from .analyse_equation import AnalysedEquation, ParameterRange


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
        about, values = "the equilibrium is stable", chart.growth
        return _make_finding("chart", chart, about, "growth", values, [x, y])
    region = stability_region(make, xs, ys)
    return _make_finding("region", region, "stable", "radius", region.radius, [x, y])


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
