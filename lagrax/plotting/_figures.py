"""Figures as data. A figure holds panels, a panel holds lines and points.

An experiment describes its figures once. Files, pages and JSON are made from that description.
Texts are plain Unicode (τ, x′, ⌊t⌋), without LaTeX or HTML.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, SupportsFloat

import numpy as np
from jaxtyping import ArrayLike, Float, Real

from .._solve.arguments import check_whole, is_number, is_whole, real_array

Values = Real[ArrayLike, " _"] | Sequence[SupportsFloat]
Range = tuple[float | int, float | int]

# Larger values overflow in the margins that drawings add.
_LARGEST = 1e307
# Of this many panels side by side, each is a tenth of an inch wide.
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
"""The colours of marks by name. They are those of Okabe and Ito, which colour-blind readers can
distinguish. Grey is for references."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve.

    **Arguments:**

    - `x`, `y`: The points on the curve. A NaN makes a gap.
    - `label`: The entry in the legend, if any. Equal labels share one entry.
    - `colour`: A name in `COLOURS`.
    - `dashed`: Whether the curve is dashed, as references are.
    - `width`: The width in points.
    - `low`, `high`: The edges of a shaded band.
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

    - `x`, `y`: The positions.
    - `label`, `colour`: As for a `Line`.
    - `size`: The diameter in points.
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

    - `marks`: `Line`s and `Points`, the last one on top.
    - `title`, `xlabel`, `ylabel`: Texts.
    - `xlog`, `ylog`: Whether an axis is logarithmic.
    - `equal`: Whether both axes have the same scale.
    - `xlim`, `ylim`: The ranges of the axes. By default they hold all marks.
    - `xticks`: Places on the horizontal axis and their labels, such as dates. Numbers by default.
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
    xticks: Sequence[tuple[float, str]] = ()

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
    """Panels in rows, with a caption.

    **Arguments:**

    - `name`: The name of its files.
    - `caption`: One or two sentences for reports.
    - `panels`: The panels, row by row.
    - `columns`: The number of panels in a row.
    - `rows`: The names of the rows, if they have any.
    - `share_y`: Whether the panels of a row have the same vertical range.
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
                f"A figure has the name {self.name!r}; expected letters, digits and . + = - _ "
                f"alone, the first a letter or digit, since it names files."
            )
        if not is_whole(self.columns) or self.columns < 1 or not self.panels:
            raise ValueError(
                f"The figure {self.name!r} has {len(self.panels)} panels in {self.columns} "
                "columns; expected at least one of each."
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
    """The marks in the figure's legend. Of equal labels, the first mark counts."""
    labelled = [mark for panel in figure.panels for mark in panel.marks if mark.label]
    return list({mark.label: mark for mark in reversed(labelled)}.values())[::-1]


def rows(figure: Figure) -> list[Sequence[Panel]]:
    """The panels of each row."""
    panels, width = figure.panels, figure.columns
    return [panels[start : start + width] for start in range(0, len(panels), width)]


# --- ranges and numbers ---------------------------------------------------------------------------


def find_ranges(figure: Figure) -> Iterator[tuple[Range | None, Range | None]]:
    """The horizontal and vertical range of each panel, for all kinds of drawings.

    A range is None if the panel shows nothing. Panels with equal scales are squares unless they fix
    a range, which keeps a grid of them regular.
    """
    for row in rows(figure):
        for panel in row:
            marks = [mark for other in (row if figure.share_y else [panel]) for mark in other.marks]
            x = panel.xlim or _add_margin(
                _join_values(marks if panel.equal else panel.marks, "x"), panel.xlog
            )
            y = panel.ylim or _find_vertical_range(marks, panel.ylog)
            free = panel.xlim is None and panel.ylim is None
            yield _make_square(x, y) if panel.equal and free else (x, y)


def _join_values(marks: Sequence[Mark], *fields: str) -> Float[np.ndarray, " n"]:
    """The finite values of some fields of `marks` in one array."""
    given = [getattr(mark, name, None) for mark in marks for name in fields]
    arrays = [np.asarray(values, float) for values in given if values is not None]
    values = np.concatenate([*arrays, np.empty(0)])
    return values[np.isfinite(values)]


def _find_vertical_range(marks: Sequence[Mark], log: bool) -> Range | None:
    curves, floors = _join_values(marks, "y", "high"), _join_values(marks, "low")
    if not log:
        return _add_margin(np.concatenate([curves, floors]))
    curves = curves[curves > 0]
    # On a logarithmic axis a band that nearly reaches zero would squeeze its curve.
    floors = floors[floors > 0.1 * curves.min(initial=np.inf)]
    return _add_margin(np.concatenate([curves, floors]), log)


def _add_margin(values: Float[np.ndarray, " n"], log: bool = False) -> Range | None:
    if log:
        exponents = _add_margin(np.log10(values[values > 0]))
        return None if exponents is None else (10 ** exponents[0], 10 ** exponents[1])
    if not values.size:
        return None
    bottom, top = float(values.min()), float(values.max())
    margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 1.0
    return bottom - margin, top + margin


def _make_square(x: Range | None, y: Range | None) -> tuple[Range | None, Range | None]:
    if x is None or y is None:
        return x, y
    half = max(x[1] - x[0], y[1] - y[0]) / 2
    x_middle, y_middle = sum(x) / 2, sum(y) / 2
    return (x_middle - half, x_middle + half), (y_middle - half, y_middle + half)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_TICKS = 7


def list_log_ticks(limits: Range) -> list[tuple[float, str]]:
    """The ticks of a logarithmic axis: powers of ten, or round numbers where there are no two."""
    low, high = sorted(float(end) for end in limits)
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last > first:
        powers = range(first, last + 1, -(-(last - first + 1) // _MOST_TICKS))
        return [(10.0**n, f"10{str(n).translate(_SUPERSCRIPTS)}") for n in powers]
    for factors in ((1, 2, 5), range(1, 10)):
        numbers = [f * 10.0**n for n in range(last - 1, last + 2) for f in factors]
        ticks = [(x, f"{x:g}") for x in numbers if low <= x <= high]
        if len(ticks) >= 2:
            return ticks
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(s for s in (step, step / 2, step / 5) if high // s - low // s >= 2)
    places = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    return [(float(x), f"{x:.6g}") for x in places]


def round_values(values: Values, digits: int = 5) -> list[float | None]:
    """The values with `digits` significant digits, and with more if all values share their first
    digits. None stands for a value that is not finite."""
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    spread = np.ptp(finite) if finite.size else 0.0
    alike = np.log10(np.abs(finite).max() / spread) if spread > 0 else 0.0
    digits += min(12, max(0, math.ceil(alike) - 1))
    rounded = [float(f"{value:.{digits}g}") for value in array.tolist()]
    return [value if math.isfinite(value) else None for value in rounded]
