"""Self-contained HTML pages, rendered from templates.

`templates/page.html` is the frame of a page, and `templates/parts.html` holds its sections, tables
and figures. A command has a template of its own that extends the frame. A page loads nothing from
anywhere, so it can be opened from disk, sent by mail and kept.
"""

import base64
import datetime
import functools
import gzip
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..training._machine import load
from ._figures import COLOURS, Figure, Panel, Points, legend, rows
from ._plotly import plotly_panels

_TEMPLATES = Path(__file__).with_name("templates")


def render_page(template: Path, **content: Any) -> str:
    """Renders the page of a template that extends `page.html`.

    The template writes parts of the page with the macros of `parts.html`, as `show.table(...)` or
    `show.figure(...)`. All text is escaped. The page needs `title`, and `introduction` unless the
    template fills the block `lead`.

    Raises `MissingExtra` where jinja2 or plotly is absent. A command that computes for long should
    load both first.
    """
    environment = _environment(template.parent)
    return environment.get_template(template.name).render(content)


def _environment(folder: Path) -> Any:
    """An environment for one page. It numbers the figures and collects the table of contents."""
    jinja2 = load("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"words": words, "duration": duration, "day": day, "all_square": _square}
    environment.filters["prose"] = prose
    environment.tests |= {
        "numeric": lambda value: words(value)[:1] in "0123456789+-−–",
        "detailed": lambda value: isinstance(value, Cell),
        "points": lambda mark: isinstance(mark, Points),
    }
    contents: list[tuple[str, str]] = []
    drawings: list[dict[str, Any]] = []
    environment.globals |= {
        "contents": contents,
        "add_to_contents": lambda anchor, title: contents.append((anchor, title)) or "",
        "add_drawing": lambda drawing: drawings.append(drawing) or len(drawings) - 1,
        "packed_drawings": lambda: _pack(json.dumps(drawings, allow_nan=False)),
        "packed_plotly": _pack_plotly,
        "next_figure": itertools.count(1).__next__,
        "colours": COLOURS,
        "marks_of_legend": legend,
        "panel_rows": _panel_rows,
        "particulars_of": _particulars,
    }
    environment.globals["show"] = environment.get_template("parts.html").module
    return environment


@functools.cache
def _pack_plotly() -> str:
    """Plotly's script of 4.8 MB as 1.8 MB of text. The Python package of plotly has this one bundle
    alone, not the smaller ones for a few kinds of charts."""
    return _pack(load("plotly.offline").get_plotlyjs())


def _pack(text: str) -> str:
    """Compresses `text` by gzip and writes the result in base 85. `page.js` decodes it."""
    packed = base64.b85encode(gzip.compress(text.encode(), 9, mtime=0))
    # Without "<" nothing in the text can end the element that holds it.
    return packed.replace(b"<", b",").decode()


# --- tables ---------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A cell of a table with a smaller second line, such as the range of a number."""

    text: str
    detail: str


def _particulars(
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    seconds: Mapping[str, float | int | None],
) -> list[tuple[str, Mapping[str, Any]]]:
    """`machine` is an answer of `_machine.describe()`, `seconds` the duration of each run."""
    flat: dict[str, Any] = {}
    for key, value in machine.items():
        flat |= value if isinstance(value, dict) else {key: value}
    tables = {
        "Settings": settings,
        "Versions and machine": flat,
        "Time of each run": {name: duration(time) for name, time in seconds.items()},
    }
    return [(title, values) for title, values in tables.items() if values]


# --- figures --------------------------------------------------------------------------------------


class _DrawnPanel(NamedTuple):
    title: str
    description: str
    drawing: dict[str, Any]
    equal: bool


def _panel_rows(figure: Figure) -> Iterator[tuple[str, list[_DrawnPanel]]]:
    """The panels of each row under the row's name. Rows without names share one grid, which wraps
    without leaving gaps."""
    drawings = iter(plotly_panels(figure, digits=4))  # as many as a reader sees on hover
    grid = zip(figure.rows, rows(figure), strict=True) if figure.rows else [("", figure.panels)]
    for name, row in grid:
        yield (
            name,
            [_DrawnPanel(p.title, _describe(p, name), next(drawings), p.equal) for p in row],
        )


def _square(panels: Sequence[_DrawnPanel]) -> bool:
    return all(panel.equal for panel in panels)


def _describe(panel: Panel, row: str) -> str:
    """A text for readers who do not see the panel."""
    axes = f"{panel.ylabel or 'y'} against {panel.xlabel or 'x'}"
    scale = " on a logarithmic scale" if panel.ylog else ""
    labels = dict.fromkeys(mark.label for mark in panel.marks if mark.label)
    title = ", ".join(filter(None, [row, panel.title]))
    return f"{title}: " * bool(title) + axes + scale + f" ({', '.join(labels)})" * bool(labels)


# --- words ----------------------------------------------------------------------------------------


def words(value: Any) -> str:
    """A value of a table or a setting as text for people."""
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(words, value))
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


# An operator between two operands, a number before its per cent sign, a comma within [a, b].
_EQUATION = re.compile(r"(?<=\S) ([=≈≠≤≥<>+−-]) (?=\S)")
_PERCENT = re.compile(r"(?<=\d) (?=%)")
_INTERVAL = re.compile(r"(?<=\[)([^\s\]]+), (?=[^\s\]]+\])")
# An option of the command.
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


def prose(text: str) -> Any:
    """A sentence as HTML. Lines do not break inside equations and options, and `code` is set as
    code."""
    text = _EQUATION.sub("\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    text = _PERCENT.sub("\N{NO-BREAK SPACE}", text)
    text = _INTERVAL.sub("\\1,\N{NO-BREAK SPACE}", text)
    markup = load("markupsafe")
    pieces = [str(markup.escape(piece)) for piece in text.split("`")]
    # Every second piece stands between two backticks; one without a partner stays as it is.
    for i in range(1, len(pieces) - 1, 2):
        pieces[i] = f"<code>{pieces[i]}</code>"
    whole = '<span style="white-space: nowrap">\\1</span>'
    pieces[::2] = [_OPTION.sub(whole, piece) for piece in pieces[::2]]
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return markup.Markup("".join(pieces))


def duration(seconds: float | int | None) -> str:
    """A number of seconds with a unit that suits its size."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def day(date: str) -> str:
    """An ISO date as people write it; any other text unchanged."""
    try:
        when = datetime.datetime.fromisoformat(date)
    except ValueError:
        return date
    return f"{when.day} {when:%B %Y}"
