"""Figures as JSON, written and read with checks."""

import dataclasses
import math
from typing import Any

import numpy as np

from ._figures import Figure, Line, Mark, Panel, Points, round_values

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
    "xticks": _LIST,
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
    """The figure as plain JSON, with five significant digits and null for numbers that are not
    finite."""

    def simplify(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            kind = [("kind", name) for name, kind in _KINDS.items() if isinstance(value, kind)]
            fields = dataclasses.fields(value)
            return dict(kind) | {f.name: simplify(getattr(value, f.name)) for f in fields}
        if value is None or isinstance(value, str | bool | int):
            return value
        if np.ndim(value) == 0:
            return round_values([value])[0]
        return [simplify(item) for item in (value.tolist() if hasattr(value, "tolist") else value)]

    return simplify(figure)


def from_json(description: Any) -> Figure:
    """The figure that `to_json` described. Unknown keys are ignored."""
    fields = _read_fields(Figure, description)
    fields["panels"] = [_read_panel(panel) for panel in fields["panels"]]
    if not all(isinstance(row, str) for row in fields.get("rows", ())):
        raise ValueError(f"The names of a figure's rows are texts, not {fields['rows']!r}.")
    return Figure(**fields)


def _read_panel(description: Any) -> Panel:
    fields = _read_fields(Panel, description)
    fields["marks"] = [_read_mark(mark) for mark in fields["marks"]]
    for name in fields.keys() & {"xlim", "ylim"}:
        if len(fields[name]) != 2 or not all(_is_number(end) for end in fields[name]):
            raise ValueError(f"`{name}` is a pair of numbers, not {fields[name]!r}.")
        fields[name] = tuple(map(float, fields[name]))
    for tick in fields.get("xticks", ()):
        if len(tick) != 2 or not _is_number(tick[0]) or not isinstance(tick[1], str):
            raise ValueError(f"A tick is a number and a text, not {tick!r}.")
    fields["xticks"] = tuple((float(place), label) for place, label in fields.get("xticks", ()))
    return Panel(**fields)


def _read_mark(description: Any) -> Mark:
    kind = description.get("kind") if isinstance(description, dict) else None
    if kind not in _KINDS:
        raise ValueError(f"A panel's mark is one of {', '.join(_KINDS)}; got the kind {kind!r}.")
    fields = _read_fields(_KINDS[kind], description)
    for name in fields.keys() & {"x", "y", "low", "high"}:
        if not all(value is None or _is_number(value) for value in fields[name]):
            raise ValueError(f"`{name}` of a {kind} holds something other than numbers and null.")
        fields[name] = [math.nan if value is None else float(value) for value in fields[name]]
    return _KINDS[kind](**fields)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_fields(kind: type, description: Any) -> dict[str, Any]:
    """The fields of a `kind` in its description, with their types checked. Null means absent."""
    noun = kind.__name__.lower()
    if not isinstance(description, dict):
        raise ValueError(f"A {noun} is described by an object, not by {description!r:.60}.")
    found = {}
    for field in dataclasses.fields(kind):
        value = description.get(field.name)
        if value is None:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"The description of a {noun} lacks `{field.name}`.")
            continue
        types, expected = _EXPECTED[field.name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"`{field.name}` of a {noun} is {expected}, not {value!r:.60}.")
        found[field.name] = value
    return found
