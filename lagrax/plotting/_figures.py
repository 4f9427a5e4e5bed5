"""Figures as data: lines and points in panels, drawn by matplotlib (PNG, PDF) or plotly (HTML).

An experiment describes its figures once; what is written to disk, shown in a report or printed on
paper is drawn from the same description, which is plain JSON. Texts are plain, too: neither LaTeX
nor HTML, Unicode instead (τ, x′, ⌊t⌋).
"""

import dataclasses
import html
import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
from jaxtyping import ArrayLike, Float, Real

from .._solve.arguments import check_whole, is_number, is_whole, real_array
from ..training._files import checked_path, write_atomically
from ..training._machine import load

if TYPE_CHECKING:  # matplotlib comes with an extra
    import matplotlib.axes
    import matplotlib.figure
    import matplotlib.lines

Values = Real[ArrayLike, " _"] | Sequence[SupportsFloat]
Range = tuple[float | int, float | int]

# Beyond, what is drawn around the values overflows.
_LARGEST = 1e307
# Panels side by side, of which each is then a tenth of an inch wide.
_MOST_COLUMNS = 100

COLOURS = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "amber": "#E69F00",
    "yellow": "#F0E442",
    "grey": "#777777",
}
"""The colours of marks, by name: Okabe and Ito's, which stay apart for colour-blind readers. Grey
is for what serves as a reference."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve.

    **Arguments:**

    - `x`, `y`: the points that it goes through; a NaN is a gap.
    - `label`: its entry in the legend, which equal labels share; none without.
    - `colour`: a name in `COLOURS`.
    - `dashed`: for a reference.
    - `width`: in points.
    - `low`, `high`: a shaded band around it.
    """

    x: Values
    y: Values
    label: str | None = None
    colour: str = "blue"
    dashed: bool = False
    width: float | int = 1.5
    low: Values | None = None
    high: Values | None = None

    def __post_init__(self):
        _check_mark(self, "width", "x", "y", "low", "high")
        if (self.low is None) != (self.high is None):
            raise ValueError("A line has only one of `low` and `high`; a band needs both.")


@dataclasses.dataclass(frozen=True)
class Points:
    """Dots.

    **Arguments:**

    - `x`, `y`: where they are.
    - `label`, `colour`: as of a `Line`.
    - `size`: their diameter in points.
    """

    x: Values
    y: Values
    label: str | None = None
    colour: str = "blue"
    size: float | int = 4.0

    def __post_init__(self):
        _check_mark(self, "size", "x", "y")


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes.

    **Arguments:**

    - `marks`: each a `Line` or `Points`, the last on top.
    - `title`, `xlabel`, `ylabel`: texts.
    - `xlog`, `ylog`: whether an axis is logarithmic.
    - `equal`: whether both axes have the same scale.
    - `xlim`, `ylim`: their ranges; all that there is, if left out.
    """

    marks: Sequence[Line | Points]
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    ylog: bool = False
    equal: bool = False
    xlim: Range | None = None
    ylim: Range | None = None
    xlog: bool = False

    def __post_init__(self):
        if not all(isinstance(mark, Line | Points) for mark in self.marks):
            raise TypeError(f"A panel got marks={self.marks!r:.60}; expected Line and Points.")
        for log, name in ((self.xlog, "xlim"), (self.ylog, "ylim")):
            limits = getattr(self, name)
            if limits is not None and not _is_range(limits):
                raise ValueError(
                    f"A panel got {name}={limits!r:.60}; expected two different numbers, of at "
                    f"most {_LARGEST:g} in size."
                )
            if log and limits is not None and min(limits) <= 0:
                raise ValueError(f"A logarithmic axis needs a positive `{name}`, not {limits}.")


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels in rows, with a caption that says what they show.

    **Arguments:**

    - `name`: that of its files.
    - `caption`: a sentence or two, for reports.
    - `panels`: row by row.
    - `columns`: how many panels a row has.
    - `rows`: names of the rows, where they have some.
    - `share_y`: whether the panels of a row have the same vertical range.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 1
    rows: Sequence[str] = ()
    share_y: bool = False

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.+=-]*", self.name):
            raise ValueError(
                f"A figure's name is that of its files, so it holds letters, digits and . + = - _ "
                f"alone and starts with one of the first two; {self.name!r} does not."
            )
        if not is_whole(self.columns) or self.columns < 1 or not self.panels:
            raise ValueError(
                f"The figure {self.name!r} has {len(self.panels)} panels in {self.columns} "
                "columns; it needs one of each at least."
            )
        check_whole("A figure", "columns", self.columns, 1, _MOST_COLUMNS)
        height = math.ceil(len(self.panels) / self.columns)
        if self.rows and len(self.rows) != height:
            raise ValueError(
                f"The figure {self.name!r} names {len(self.rows)} rows, but {len(self.panels)} "
                f"panels in {self.columns} columns fill {height}."
            )


Mark = Line | Points


def _is_range(limits: Any) -> bool:
    ends = real_array(limits)
    if ends is None or ends.shape != (2,):
        return False
    return bool(np.all(np.abs(ends) <= _LARGEST) and ends[0] != ends[1])


def _check_mark(mark: Mark, size: str, *fields: str) -> None:
    kind = type(mark).__name__.lower()
    if mark.colour not in COLOURS:
        raise ValueError(f"No colour {mark.colour!r}: choose one of {', '.join(COLOURS)}.")
    if not is_number(getattr(mark, size)) or getattr(mark, size) < 0:
        raise ValueError(
            f"`{size}` of {kind} is {getattr(mark, size)!r:.60}; expected a positive number."
        )
    given = {name: getattr(mark, name) for name in fields if getattr(mark, name) is not None}
    for name, values in given.items():
        known = real_array(values)
        if known is None:
            raise ValueError(f"`{name}` of {kind} is {values!r:.60}; expected numbers.")
        largest = np.max(np.abs(known), where=np.isfinite(known), initial=0.0)
        if largest > _LARGEST:
            raise ValueError(
                f"`{name}` of {kind} goes up to {largest:.3g} in size; expected at most "
                f"{_LARGEST:g}. Draw it in another unit."
            )
    shapes = {name: np.shape(values) for name, values in given.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"The values of {kind} need one axis and the same length; got {got}.")


def legend(figure: Figure) -> list[Mark]:
    """The marks that stand in the figure's one legend: the first of each label."""
    labelled = [mark for panel in figure.panels for mark in panel.marks if mark.label]
    return list({mark.label: mark for mark in reversed(labelled)}.values())[::-1]


def rows(figure: Figure) -> list[Sequence[Panel]]:
    """The figure's panels, row by row."""
    panels, width = figure.panels, figure.columns
    return [panels[start : start + width] for start in range(0, len(panels), width)]


# --- JSON -----------------------------------------------------------------------------------------

_KINDS: dict[str, type[Mark]] = {"line": Line, "points": Points}
_TEXT = (str,), "a text"
_YES_OR_NO = (bool,), "true or false"
_NUMBER = (int, float), "a number"
_LIST = (list, tuple), "a list"
_EXPECTED = {
    "name": _TEXT,
    "caption": _TEXT,
    "panels": _LIST,
    "columns": ((int,), "a whole number"),
    "rows": _LIST,
    "share_y": _YES_OR_NO,
    "marks": _LIST,
    "title": _TEXT,
    "xlabel": _TEXT,
    "ylabel": _TEXT,
    "xlog": _YES_OR_NO,
    "ylog": _YES_OR_NO,
    "equal": _YES_OR_NO,
    "xlim": _LIST,
    "ylim": _LIST,
    "x": _LIST,
    "y": _LIST,
    "low": _LIST,
    "high": _LIST,
    "label": _TEXT,
    "colour": _TEXT,
    "dashed": _YES_OR_NO,
    "width": _NUMBER,
    "size": _NUMBER,
}


def to_json(figure: Figure) -> dict[str, Any]:
    """The figure as plain JSON: five significant digits, and null for what is not finite."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            kind = [("kind", name) for name, kind in _KINDS.items() if isinstance(value, kind)]
            fields = dataclasses.fields(value)
            return dict(kind) | {f.name: plain(getattr(value, f.name)) for f in fields}
        if value is None or isinstance(value, str | bool | int):
            return value
        if np.ndim(value) == 0:
            return _rounded([value])[0]
        return [plain(item) for item in (value.tolist() if hasattr(value, "tolist") else value)]

    return plain(figure)


def from_json(description: Any) -> Figure:
    """The figure that `to_json` described. Keys that it does not know are left aside."""
    fields = _fields(Figure, description)
    fields["panels"] = [_panel(panel) for panel in fields["panels"]]
    if not all(isinstance(row, str) for row in fields.get("rows", ())):
        raise ValueError(f"The names of a figure's rows are texts, not {fields['rows']!r}.")
    return Figure(**fields)


def _panel(description: Any) -> Panel:
    fields = _fields(Panel, description)
    fields["marks"] = [_mark(mark) for mark in fields["marks"]]
    for name in fields.keys() & {"xlim", "ylim"}:
        if len(fields[name]) != 2 or not all(_is_number(end) for end in fields[name]):
            raise ValueError(f"`{name}` is a pair of numbers, not {fields[name]!r}.")
        fields[name] = tuple(map(float, fields[name]))
    return Panel(**fields)


def _mark(description: Any) -> Mark:
    kind = description.get("kind") if isinstance(description, dict) else None
    if kind not in _KINDS:
        raise ValueError(f"A panel's mark is one of {', '.join(_KINDS)}; got the kind {kind!r}.")
    fields = _fields(_KINDS[kind], description)
    for name in fields.keys() & {"x", "y", "low", "high"}:
        if not all(value is None or _is_number(value) for value in fields[name]):
            raise ValueError(f"`{name}` of a {kind} holds something other than numbers and null.")
        fields[name] = [math.nan if value is None else float(value) for value in fields[name]]
    return _KINDS[kind](**fields)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fields(kind: type, description: Any) -> dict[str, Any]:
    """What `description` says about a `kind`, each value checked for its type; null is absent."""
    what = kind.__name__.lower()
    if not isinstance(description, dict):
        raise ValueError(f"A {what} is described by an object, not by {description!r:.60}.")
    found = {}
    for field in dataclasses.fields(kind):
        value = description.get(field.name)
        if value is None:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"The description of a {what} lacks `{field.name}`.")
            continue
        types, expected = _EXPECTED[field.name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"`{field.name}` of a {what} is {expected}, not {value!r:.60}.")
        found[field.name] = value
    return found


# --- ranges ---------------------------------------------------------------------------------------


def _ranges(figure: Figure) -> Iterator[tuple[Range | None, Range | None]]:
    """Each panel's horizontal and vertical range, the same in every drawing.

    None means that there is nothing to show. Panels with equal scales become squares unless they
    fix their ranges, which keeps a grid of them regular.
    """
    for row in rows(figure):
        for panel in row:
            marks = [mark for other in (row if figure.share_y else [panel]) for mark in other.marks]
            x = panel.xlim or _around(
                _values(marks if panel.equal else panel.marks, "x"), panel.xlog
            )
            y = panel.ylim or _vertical_range(marks, panel.ylog)
            free = panel.xlim is None and panel.ylim is None
            yield _square(x, y) if panel.equal and free else (x, y)


def _values(marks: Sequence[Mark], *fields: str) -> Float[np.ndarray, " n"]:
    """The finite values of some fields of `marks`, all in one."""
    given = [getattr(mark, name, None) for mark in marks for name in fields]
    arrays = [np.asarray(values, float) for values in given if values is not None]
    values = np.concatenate([*arrays, np.empty(0)])
    return values[np.isfinite(values)]


def _vertical_range(marks: Sequence[Mark], log: bool) -> Range | None:
    curves, floors = _values(marks, "y", "high"), _values(marks, "low")
    if not log:
        return _around(np.concatenate([curves, floors]))
    curves = curves[curves > 0]
    # A band that nearly reaches zero would press its curve to the top of a logarithmic axis.
    floors = floors[floors > 0.1 * curves.min(initial=np.inf)]
    return _around(np.concatenate([curves, floors]), log)


def _around(values: Float[np.ndarray, " n"], log: bool = False) -> Range | None:
    if log:
        exponents = _around(np.log10(values[values > 0]))
        return None if exponents is None else (10 ** exponents[0], 10 ** exponents[1])
    if not values.size:
        return None
    bottom, top = float(values.min()), float(values.max())
    margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 1.0
    return bottom - margin, top + margin


def _square(x: Range | None, y: Range | None) -> tuple[Range | None, Range | None]:
    if x is None or y is None:
        return x, y
    half = max(x[1] - x[0], y[1] - y[0]) / 2
    x_middle, y_middle = sum(x) / 2, sum(y) / 2
    return (x_middle - half, x_middle + half), (y_middle - half, y_middle + half)


# --- matplotlib -----------------------------------------------------------------------------------

_INK = "#222222"
_FAINT = "#DDDDDD"


# The kinds of picture, and what is left out of each so that the same figure gives the same bytes.
PICTURES = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def draw(figure: Figure, *paths: str | Path) -> None:
    """Draws `figure` once and writes it to each of `paths`: .png, .pdf or .svg."""
    if not isinstance(figure, Figure):
        raise TypeError(f"draw got {figure!r:.60}; expected a lagrax.plotting.Figure.")
    places = [checked_path("draw", path) for path in paths]
    for path in places:
        if path.suffix not in PICTURES:
            raise ValueError(f"{path} is no picture: expected a name in {', '.join(PICTURES)}.")
    drawing = _on_paper(figure)
    # Laid out once, and not again for each file: that takes most of the time.
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    box = drawing.get_tightbbox().padded(0.05)
    for path in places:
        content = io.BytesIO()
        form, metadata = path.suffix[1:], PICTURES[path.suffix]
        drawing.savefig(content, format=form, metadata=metadata, dpi=150, bbox_inches=box)
        write_atomically(path, content.getvalue())


def _on_paper(figure: Figure) -> "matplotlib.figure.Figure":
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
    ranges = _ranges(figure)
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
    axes.set_xscale("log" if panel.xlog else "linear")
    axes.set_yscale("log" if panel.ylog else "linear")
    for mark in panel.marks:
        axes.add_line(_artist(mark, mark.x, mark.y))
        if isinstance(mark, Line) and mark.low is not None and mark.high is not None:
            low, high = np.asarray(mark.low, float), np.asarray(mark.high, float)
            colour = COLOURS[mark.colour]
            axes.fill_between(np.asarray(mark.x), low, high, color=colour, alpha=0.2, lw=0)
    axes.autoscale_view()
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")
    if x_range is not None:
        axes.set_xlim(*x_range)
    if y_range is not None:
        axes.set_ylim(*y_range)
    axes.grid(color=_FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=_INK, linewidth=0.6)
    axes.tick_params(which="both", labelsize=7, color=_INK, labelcolor=_INK, width=0.6)


def _artist(mark: Mark, x: Values, y: Values) -> "matplotlib.lines.Line2D":
    """`mark` as matplotlib draws it through (x, y): its own points, or those of a legend's key."""
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
        rasterized=len(x) > 500,  # a PDF of many thousand dots is slow to open
    )


def _write_around(axes: "matplotlib.axes.Axes", figure: Figure, i: int, j: int, fit: int) -> None:
    """The texts around the panel in row i, column j, less those that its neighbours say for it.

    `fit` is how many letters find room in a line.
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
        [_artist(_visible(mark), [0], [0]) for mark in marks],
        [mark.label or "" for mark in marks],
        loc="outside lower center",
        ncols=max(1, min(len(marks), fit // letters)),
        fontsize=8,
        labelcolor=_INK,
        frameon=False,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def _visible(mark: Mark) -> Mark:
    """`mark` at a size that shows its colour in a legend."""
    return dataclasses.replace(mark, size=max(mark.size, 5.0)) if isinstance(mark, Points) else mark


# --- plotly ---------------------------------------------------------------------------------------


def plotly_panels(figure: Figure, *, check: bool = True, digits: int = 5) -> list[dict[str, Any]]:
    """One drawing a panel, as plotly's `data` and `layout`, checked by plotly and plain JSON. The
    check takes longer than all else: leave it out for figures drawn many times a second.

    They have no titles, no legend and no colours but those of the marks: the page around them
    shows the former and chooses the latter, so that they follow its light or dark scheme.
    """
    panels = []
    for panel, (x_range, y_range) in zip(figure.panels, _ranges(figure), strict=True):
        bands = [
            _plotly_band(mark, y_range, digits)
            for mark in panel.marks
            if isinstance(mark, Line) and mark.low is not None
        ]
        traces = bands + [_plotly_mark(mark, digits) for mark in panel.marks]
        panels.append({"data": traces, "layout": _plotly_layout(panel, x_range, y_range)})
    return [_checked(panel) for panel in panels] if check else panels


def _checked(panel: dict[str, Any]) -> dict[str, Any]:
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
        # Plotly counts in pixels, of which 96 make the inch that has 72 points.
        style = {"mode": "markers", "marker": {"color": colour, "size": mark.size * 96 / 72}}
    return style | {
        "x": _rounded(mark.x, digits),
        "y": _rounded(mark.y, digits),
        "name": html.escape(mark.label or "", quote=False),
        "hovertemplate": "%{x:.4~g}, %{y:.4~g}<extra>%{fullData.name}</extra>",
    }


def _plotly_band(line: Line, y_range: Range | None, digits: int) -> dict[str, Any]:
    """A closed outline around each stretch without gaps, cut off below the range: zero has no place
    on a logarithmic axis, and the whole outline would go with it."""
    x, low, high = (np.asarray(values, float) for values in (line.x, line.low, line.high))
    if y_range is not None:
        low, high = np.maximum(low, min(y_range)), np.maximum(high, min(y_range))
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    outline_x, outline_y = [], []
    for is_known, stretch in itertools.groupby(range(len(x)), key=known.__getitem__):
        if is_known:
            there = np.array([*stretch])
            back = there[::-1]
            outline_x += [*_rounded(x[there], digits), *_rounded(x[back], digits), None]
            outline_y += [*_rounded(high[there], digits), *_rounded(low[back], digits), None]
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


def _plotly_layout(panel: Panel, x_range: Range | None, y_range: Range | None) -> dict[str, Any]:
    def axis(label, **more):
        lines = (html.escape(line, quote=False) for line in textwrap.wrap(label, 28))
        title = {"text": "<br>".join(lines), "standoff": 6}
        return {"title": title, "automargin": True, "zeroline": False, "nticks": 6} | more

    x, y = axis(panel.xlabel), axis(panel.ylabel)
    for one, log, limits in ((x, panel.xlog, x_range), (y, panel.ylog, y_range)):
        if log:
            # Plotly enlarges powers of ten.
            one |= {"type": "log", "exponentformat": "power", "tickfont": {"size": 9}}
        if limits is not None:
            one["range"] = [math.log10(end) if log else float(end) for end in limits]
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


def _rounded(values: Values, digits: int = 5) -> list[float | None]:
    """The values with `digits` significant digits, and with more if all values share their first
    digits. None stands for a value that is not finite."""
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    spread = np.ptp(finite) if finite.size else 0.0
    alike = np.log10(np.abs(finite).max() / spread) if spread > 0 else 0.0
    digits += min(12, max(0, math.ceil(alike) - 1))
    rounded = [float(f"{value:.{digits}g}") for value in array.tolist()]
    return [value if math.isfinite(value) else None for value in rounded]
