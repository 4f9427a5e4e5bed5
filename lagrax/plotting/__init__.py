"""Figures as data. They are drawn by matplotlib (PNG, PDF) or plotly (HTML)."""

from ._figures import (
    COLOURS as COLOURS,
    Figure as Figure,
    Line as Line,
    Mark as Mark,
    Panel as Panel,
    Points as Points,
    Range as Range,
    Values as Values,
    legend as legend,
    rows as rows,
)
from ._json import from_json as from_json, to_json as to_json
from ._matplotlib import PICTURES as PICTURES, draw as draw
from ._plotly import plotly_panels as plotly_panels
