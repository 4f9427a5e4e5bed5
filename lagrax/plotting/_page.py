"""Self-contained HTML pages: text, tables, and figures drawn by plotly.

A page loads nothing from anywhere, so it can be opened from disk, sent by mail and kept.
"""

import dataclasses
import datetime
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..training._machine import load
from . import COLOURS, Figure, Mark, Panel, Points, legend, plotly_panels, rows

_HERE = Path(__file__).parent


class Html(str):
    """Text that is HTML already; all other text is escaped on its way into an element."""


def element(name: str, *content: str, **attributes: object) -> Html:
    """`<name attributes>content</name>`; `class_` is class, `aria_label` is aria-label."""
    inside = "".join(part if isinstance(part, Html) else html.escape(part) for part in content)
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{inside}</{name}>")


# --- the page -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page that its table of contents leads to, under a heading of its own.

    `anchor` is its address in the page; `mark` stands behind the title, in the heading alone.
    """

    anchor: str
    title: str
    content: Sequence[str]
    mark: Sequence[str] = ()


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The whole page. It needs plotly: who computes for long before `page` loads that first."""
    plotly = load("plotly.offline").get_plotlyjs()
    body = element(
        "body",
        _header(title, introduction, sections),
        element("main", *map(_section, sections)),
        element("script", Html(plotly.replace("</script", r"<\/script"))),
        element("script", _beside("_page.js")),
    )
    return f"<!doctype html>\n{element('html', _head(title), body, lang='en')}\n"


def _head(title: str) -> Html:
    # The policy makes sure of what the page promises: nothing is loaded from anywhere.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:"
    )
    meta = Html(
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<link rel="icon" href="data:,">'
    )
    style = element("style", _beside("_page.css"))
    return element("head", meta, element("title", title), style)


def _beside(name: str) -> Html:
    return Html((_HERE / name).read_text(encoding="utf-8"))


def _header(title: str, introduction: str, sections: Sequence[Section]) -> Html:
    links = [element("a", section.title, href=f"#{section.anchor}") for section in sections]
    return element(
        "header",
        element("h1", title),
        element("p", introduction),
        element("nav", element("ul", *[element("li", a) for a in links]), aria_label="Contents"),
    )


def _section(section: Section) -> Html:
    heading = element("h2", section.title, *section.mark)
    return element("section", heading, *section.content, id=section.anchor)


# --- tables ---------------------------------------------------------------------------------------


def show_table(
    columns: Sequence[Any], rows: Sequence[Sequence[Any]], title: str = "", note: str = ""
) -> Html:
    """Measures: the first cell of a row is its name, the others are numbers."""
    head = [
        element("th", text(name), scope="col", class_="number" if number else "name")
        for number, name in enumerate(columns)
    ]
    body = [
        element(
            "tr",
            element("th", text(first), scope="row"),
            *[element("td", text(cell), class_="number") for cell in rest],
        )
        for first, *rest in rows
    ]
    content = [element("thead", element("tr", *head)), element("tbody", *body)]
    heading = [element("h3", title)] if title else []
    box = scrollable(element("table", *content, class_="measures"), title or "Table")
    below = [element("p", note, class_="note")] if note else []
    return Html("".join([*heading, box, *below]))


def scrollable(table: Html, label: str) -> Html:
    """A wide table scrolls in its own box, by keyboard as well, and not the page."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def show_particulars(
    settings: Mapping[str, Any],
    machine: Mapping[str, Any],
    seconds: Mapping[str, float | int | None],
) -> Html:
    """All settings, versions and times, folded away, for who wants to run the same again.

    `machine` is what `_machine.describe()` gives, `seconds` how long each run took.
    """
    flat: dict[str, Any] = {}
    for key, value in machine.items():
        flat |= value if isinstance(value, dict) else {key: value}
    tables = {
        "Settings": settings,
        "Versions and machine": flat,
        "Time of each run": {name: duration(time) for name, time in seconds.items()},
    }
    shown = [_pairs(title, values) for title, values in tables.items() if values]
    return element(
        "details",
        element("summary", "Settings, versions and times"),
        element("div", *shown, class_="columns"),
    )


def _pairs(title: str, values: Mapping[str, Any]) -> Html:
    body = [
        element("tr", element("th", str(key), scope="row"), element("td", text(value)))
        for key, value in values.items()
    ]
    table = element("table", element("caption", title), element("tbody", *body), class_="settings")
    return scrollable(table, title)


# --- figures --------------------------------------------------------------------------------------


def show_figure(figure: Figure, number: int) -> Html:
    """The figure, which can be zoomed, under its legend; `number` is its own in the page."""
    drawings = iter(plotly_panels(figure))
    shape = "panels squares" if all(panel.equal for panel in figure.panels) else "panels"
    parts = [_legend(legend(figure))]
    # Rows without names share one grid, which wraps without leaving gaps.
    grid = zip(figure.rows, rows(figure), strict=True) if figure.rows else [("", figure.panels)]
    for name, row in grid:
        if name:
            parts.append(element("p", name, class_="row-name"))
        panels = [_panel(panel, name, next(drawings)) for panel in row]
        parts.append(element("div", *panels, class_=shape, style=f"--columns: {figure.columns}"))
    caption = element("figcaption", element("strong", f"Figure {number}."), f" {figure.caption}")
    return element("figure", *parts, caption, id=f"figure-{number}")


def _panel(panel: Panel, row: str, drawing: dict[str, Any]) -> Html:
    axes = f"{panel.ylabel or 'y'} against {panel.xlabel or 'x'}"
    scale = " on a logarithmic scale" if panel.ylog else ""
    shown = dict.fromkeys(mark.label for mark in panel.marks if mark.label)
    title = ", ".join(filter(None, [row, panel.title]))
    label = f"{title}: " * bool(title) + axes + scale + f" ({', '.join(shown)})" * bool(shown)
    heading = element("p", panel.title, class_="panel-title")
    box = element("div", class_="plot", role="img", aria_label=label)
    # An escaped "<" keeps a text in the drawing from ending the script.
    data = json.dumps(drawing, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")
    script = element("script", Html(data), type="application/json")
    return element("div", heading, box, script, class_="panel")


def _legend(marks: Sequence[Mark]) -> Html:
    entries = [element("li", _key(mark), mark.label or "") for mark in marks]
    return element("ul", *entries, class_="legend", aria_label="Legend") if entries else Html("")


def _key(mark: Mark) -> Html:
    colour = COLOURS[mark.colour]
    if isinstance(mark, Points):
        shape = element("circle", cx=14, cy=6, r=4, fill=colour)
    else:
        dashes = "5 3" if mark.dashed else "none"
        shape = element(
            "line", x1=1, x2=27, y1=6, y2=6, stroke=colour, stroke_width=3, stroke_dasharray=dashes
        )
    return element("svg", shape, viewBox="0 0 28 12", aria_hidden="true")


# --- words ----------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A value of a table or a setting, for people."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(text, value))
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def duration(seconds: float | int | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def day(date: str) -> str:
    """An ISO date as people write it; any other text as it is."""
    try:
        when = datetime.datetime.fromisoformat(date)
    except ValueError:
        return date
    return f"{when.day} {when:%B %Y}"
