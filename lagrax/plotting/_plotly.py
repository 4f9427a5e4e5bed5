"""Figures as plotly drawings, for HTML pages."""

import html
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..training._machine import load
from ._figures import (
    COLOURS,
    Figure,
    Line,
    Mark,
    Panel,
    Range,
    find_ranges,
    list_log_ticks,
    round_values,
)


def plotly_panels(figure: Figure, *, check: bool = True, digits: int = 5) -> list[dict[str, Any]]:
    """The `data` and `layout` of one plotly drawing for each panel, as plain JSON.

    Plotly checks them unless `check` is false. The check takes most of the time, so leave it out
    for figures that are drawn many times a second. Numbers have `digits` significant digits.

    The page around a drawing shows titles and legend, and colours everything except the marks, so
    that drawings follow its light or dark scheme.
    """
    panels = []
    for panel, (x_range, y_range) in zip(figure.panels, find_ranges(figure), strict=True):
        bands = [
            _plotly_band(mark, y_range, digits)
            for mark in panel.marks
            if isinstance(mark, Line) and mark.low is not None
        ]
        traces = bands + [_plotly_mark(mark, digits) for mark in panel.marks]
        panels.append({"data": traces, "layout": _plotly_layout(panel, x_range, y_range)})
    return [_check_drawing(panel) for panel in panels] if check else panels


def _check_drawing(panel: dict[str, Any]) -> dict[str, Any]:
    plotly = load("plotly.graph_objects")
    return {
        "data": [plotly.Scatter(trace).to_plotly_json() for trace in panel["data"]],
        "layout": plotly.Layout(panel["layout"]).to_plotly_json(),
    }


def _plotly_mark(mark: Mark, digits: int) -> dict[str, Any]:
    colour = COLOURS[mark.colour]
    if isinstance(mark, Line):
        dash = "dash" if mark.dashed else "solid"
        line = {"color": colour, "width": mark.width, "dash": dash, "simplify": False}
        style = {"mode": "lines", "line": line}
    else:
        # An inch has 96 pixels, in which plotly counts, and 72 points.
        style = {"mode": "markers", "marker": {"color": colour, "size": mark.size * 96 / 72}}
    return style | {
        "x": round_values(mark.x, digits),
        "y": round_values(mark.y, digits),
        "name": html.escape(mark.label or "", quote=False),
        "hovertemplate": "%{x:.4~g}, %{y:.4~g}<extra>%{fullData.name}</extra>",
    }


def _plotly_band(line: Line, y_range: Range | None, digits: int) -> dict[str, Any]:
    """A closed outline around each stretch without gaps, cut off below the range. An outline that
    reached zero would not be drawn at all on a logarithmic axis."""
    x, low, high = (np.asarray(values, float) for values in (line.x, line.low, line.high))
    if y_range is not None:
        low, high = np.maximum(low, min(y_range)), np.maximum(high, min(y_range))
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    numbers = lambda values: round_values(values, digits)
    outline_x, outline_y = [], []
    for is_known, stretch in itertools.groupby(range(len(x)), key=known.__getitem__):
        if is_known:
            there = np.array([*stretch])
            back = there[::-1]
            outline_x += [*numbers(x[there]), *numbers(x[back]), None]
            outline_y += [*numbers(high[there]), *numbers(low[back]), None]
    red, green, blue = bytes.fromhex(COLOURS[line.colour][1:])
    return {
        "x": outline_x,
        "y": outline_y,
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.2)",
        "hoverinfo": "skip",
    }


def _fix_ticks(ticks: Sequence[tuple[float, str]]) -> dict[str, Any]:
    places, labels = zip(*ticks, strict=True)
    return {"tickmode": "array", "tickvals": [*places], "ticktext": [*map(html.escape, labels)]}


def _plotly_layout(panel: Panel, x_range: Range | None, y_range: Range | None) -> dict[str, Any]:
    # Panels are wider than high. An axis of times with its start has 33 letters.
    def axis(label, letters):
        lines = (html.escape(line, quote=False) for line in textwrap.wrap(label, letters))
        title = {"text": "<br>".join(lines), "standoff": 6}
        return {"title": title, "automargin": True, "zeroline": False, "nticks": 6}

    x, y = axis(panel.xlabel, 40), axis(panel.ylabel, 28)
    for one, log, limits in ((x, panel.xlog, x_range), (y, panel.ylog, y_range)):
        if log:
            one["type"] = "log"
        if log and limits is not None:
            one |= _fix_ticks(list_log_ticks(limits))
        if limits is not None:
            one["range"] = [math.log10(end) if log else float(end) for end in limits]
    if panel.xticks:
        x |= _fix_ticks(panel.xticks)
    if panel.equal:
        y |= {"scaleanchor": "x", "constrain": "domain"}
        x |= {"constrain": "domain"}
    return {
        "xaxis": x,
        "yaxis": y,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "font": {"size": 11},
        "showlegend": False,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
