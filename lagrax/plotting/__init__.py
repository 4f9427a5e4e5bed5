"""Figures as data: lines and points in panels, drawn by matplotlib (PNG, PDF) or plotly (HTML)."""

from ._figures import (
    COLOURS as COLOURS,
    PICTURES as PICTURES,
    Figure as Figure,
    Line as Line,
    Mark as Mark,
    Panel as Panel,
    Points as Points,
    Range as Range,
    Values as Values,
    draw as draw,
    from_json as from_json,
    legend as legend,
    plotly_panels as plotly_panels,
    rows as rows,
    to_json as to_json,
)
