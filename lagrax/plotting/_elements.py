"""HTML put together from elements, for pages that have no template yet."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._figures import Figure
from ._page import _environment, day as day, duration as duration


class Html(str):
    """Text that is HTML already; all other text is escaped on its way into an element."""

    def __html__(self) -> str:
        return self


def element(name: str, *content: str, **attributes: object) -> Html:
    """`<name attributes>content</name>`; `class_` is class, `aria_label` is aria-label."""
    inside = "".join(part if isinstance(part, Html) else html.escape(part) for part in content)
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{inside}</{name}>")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page that its table of contents leads to, under a heading of its own."""

    anchor: str
    title: str
    content: Sequence[str]
    mark: Sequence[str] = ()


# The environment of the page whose figures are being shown.
_current: list[Any] = []


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    environment = _environment_of_page()
    _current.clear()
    template = environment.get_template("elements.html")
    return template.render(title=title, introduction=introduction, parts=sections)


def _environment_of_page() -> Any:
    if not _current:
        _current.append(_environment(Path(__file__).parent))
    return _current[0]


def _show() -> Any:
    return _environment_of_page().globals["show"]


def show_table(
    columns: Sequence[Any], rows: Sequence[Sequence[Any]], title: str = "", note: str = ""
) -> Html:
    return Html(_show().table(columns, rows, title, note))


def scrollable(table: Html, label: str) -> Html:
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def show_particulars(
    settings: Mapping[str, Any], machine: Mapping[str, Any], seconds: Mapping[str, Any]
) -> Html:
    return Html(_show().particulars(settings, machine, seconds))


def show_figure(figure: Figure, number: int) -> Html:
    del number
    return Html(_show().figure(figure))
