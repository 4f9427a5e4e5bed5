"""Figures drawn by matplotlib, as files."""

import dataclasses
import io
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..training._files import checked_path, write_atomically, write_json
from ..training._machine import load
from ._figures import (
    COLOURS,
    Figure,
    Line,
    Mark,
    Panel,
    Range,
    Values,
    find_ranges,
    legend,
    list_log_ticks,
    rows,
)
from ._json import to_json

if TYPE_CHECKING:  # an extra installs matplotlib
    import matplotlib.axes
    import matplotlib.figure
    import matplotlib.lines

_INK = "#222222"
_FAINT = "#DDDDDD"


# The kinds of picture, and what is left out of each so that the same figure gives the same bytes.
PICTURES = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def draw(figure: Figure, *paths: str | Path) -> None:
    """Draws `figure` and writes it to each of `paths`, which end in .png, .pdf or .svg."""
    if not isinstance(figure, Figure):
        raise TypeError(f"draw got {figure!r:.60}; expected a lagrax.plotting.Figure.")
    places = [checked_path("draw", path) for path in paths]
    for path in places:
        if path.suffix not in PICTURES:
            raise ValueError(f"{path} is no picture: expected a name in {', '.join(PICTURES)}.")
    drawing = make_drawing(figure)
    # The layout takes most of the time, so it is made once for all files.
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    box = drawing.get_tightbbox().padded(0.05)
    for path in places:
        content = io.BytesIO()
        form, metadata = path.suffix[1:], PICTURES[path.suffix]
        drawing.savefig(content, format=form, metadata=metadata, dpi=150, bbox_inches=box)
        write_atomically(path, content.getvalue())


def make_drawing(figure: Figure) -> "matplotlib.figure.Figure":
    matplotlib = load("matplotlib.figure")
    grid = rows(figure)
    equal = all(panel.equal for panel in figure.panels)
    width = min(4.5, 10 / figure.columns)
    height = width * (1 if equal else 0.75)
    drawing = matplotlib.Figure(
        figsize=(width * figure.columns + 0.4, height * len(grid) + 0.6),
        layout="compressed" if equal else "constrained",
    )
    axes = drawing.subplots(len(grid), figure.columns, squeeze=False)
    ranges = find_ranges(figure)
    for i, j in itertools.product(range(len(grid)), range(figure.columns)):
        if j < len(grid[i]):
            _draw_panel(axes[i, j], grid[i][j], *next(ranges))
            _write_around(axes[i, j], figure, i, j, round(15 * width))
        else:
            axes[i, j].set_axis_off()
    _draw_legend(drawing, legend(figure))
    return drawing


def _draw_panel(
    axes: "matplotlib.axes.Axes", panel: Panel, x_range: Range | None, y_range: Range | None
) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

    axes.set_xscale("log" if panel.xlog else "linear")
    axes.set_yscale("log" if panel.ylog else "linear")
    for mark in panel.marks:
        axes.add_line(_make_artist(mark, mark.x, mark.y))
        if isinstance(mark, Line) and mark.low is not None and mark.high is not None:
            low, high = np.asarray(mark.low, float), np.asarray(mark.high, float)
            colour = COLOURS[mark.colour]
            axes.fill_between(np.asarray(mark.x), low, high, color=colour, alpha=0.2, lw=0)
    # Ticks say 20000.5, not 0.5 with +2e4 aside.
    if not panel.xlog:
        axes.ticklabel_format(axis="x", useOffset=False)
    if not panel.ylog:
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.autoscale_view()
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")
    if panel.xticks:
        axes.set_xticks([place for place, _ in panel.xticks], [text for _, text in panel.xticks])
    if x_range is not None:
        axes.set_xlim(*x_range)
    if y_range is not None:
        axes.set_ylim(*y_range)
    for one, log, limits in ((axes.xaxis, panel.xlog, x_range), (axes.yaxis, panel.ylog, y_range)):
        if log and limits is not None:
            one.set_major_locator(FixedLocator([place for place, _ in list_log_ticks(limits)]))
            one.set_major_formatter(FixedFormatter([text for _, text in list_log_ticks(limits)]))
            one.set_minor_formatter(NullFormatter())
    axes.grid(color=_FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=_INK, linewidth=0.6)
    axes.tick_params(which="both", labelsize=7, color=_INK, labelcolor=_INK, width=0.6)


def _make_artist(mark: Mark, x: Values, y: Values) -> "matplotlib.lines.Line2D":
    """A matplotlib line in the style of `mark` through (x, y), in a panel or in the legend."""
    from matplotlib.lines import Line2D

    x, y = np.asarray(x, float), np.asarray(y, float)
    colour = COLOURS[mark.colour]
    if isinstance(mark, Line):
        style = "--" if mark.dashed else "-"
        return Line2D(x, y, color=colour, linestyle=style, linewidth=mark.width)
    return Line2D(
        x,
        y,
        color=colour,
        linestyle="none",
        marker="o",
        markersize=mark.size,
        markeredgewidth=0,
        rasterized=len(x) > 500,  # a PDF with thousands of vector dots is slow to open
    )


def _write_around(axes: "matplotlib.axes.Axes", figure: Figure, i: int, j: int, fit: int) -> None:
    """Writes the texts around the panel in row i and column j, except those that a neighbour has.

    A line has room for `fit` letters.
    """
    grid = rows(figure)
    panel = grid[i][j]
    column = [row[j] for row in grid if j < len(row)]
    text: dict[str, Any] = {"fontsize": 8, "color": _INK, "parse_math": False}
    if i == 0 or panel.title != column[i - 1].title:
        axes.set_title(textwrap.fill(panel.title, fit), **text)
    if i == len(column) - 1 or panel.xlabel != column[i + 1].xlabel:
        axes.set_xlabel(textwrap.fill(panel.xlabel, fit), **text)
    if j == 0 or panel.ylabel != grid[i][j - 1].ylabel:
        axes.set_ylabel(textwrap.fill(panel.ylabel, fit), **text)
    if j and figure.share_y and panel.ylim == grid[i][j - 1].ylim:
        axes.tick_params(which="both", labelleft=False)
    if j == 0 and figure.rows:
        axes.annotate(
            textwrap.fill(figure.rows[i], fit),
            xy=(0, 0.5),
            xycoords=(axes.yaxis.label, "axes fraction"),
            xytext=(-6, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="center",
            fontweight="bold",
            **text,
        )


def _draw_legend(drawing: "matplotlib.figure.Figure", marks: Sequence[Mark]) -> None:
    if not marks:
        return
    letters = max(len(mark.label or "") for mark in marks) + 8
    fit = int(drawing.get_figwidth() * 13)
    box = drawing.legend(
        [_make_artist(_enlarge(mark), [0], [0]) for mark in marks],
        [mark.label or "" for mark in marks],
        loc="outside lower center",
        ncols=max(1, min(len(marks), fit // letters)),
        fontsize=8,
        labelcolor=_INK,
        frameon=False,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def _enlarge(mark: Mark) -> Mark:
    """`mark` at a size at which a legend shows its colour, and no wider than a line of text."""
    if isinstance(mark, Line):
        return dataclasses.replace(mark, width=min(mark.width, 6.0))
    return dataclasses.replace(mark, size=max(mark.size, 5.0))


def write_figures(
    folder: Path, figures: Sequence[Figure], formats: Sequence[str] = ("png",)
) -> None:
    """Writes each figure to the folder `figures` inside `folder`, as JSON and as pictures."""
    for figure in figures:
        path = folder / "figures" / figure.name
        write_json(path.with_name(f"{figure.name}.json"), to_json(figure))
        draw(figure, *(path.with_name(f"{figure.name}.{suffix}") for suffix in formats))
