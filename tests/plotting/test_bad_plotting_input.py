"""Bad arguments of figures."""

import numpy as np
import pytest
from helpers.refusals import NAN, check_call

from lagrax import plotting
from lagrax.plotting import Figure, Line, Panel, Points


def a_panel(**options):
    return Panel([Line([1, 2], [1, 2])], **options)


def drawn(*marks, path="a.png"):
    return plotting.draw(Figure("a", "", [Panel(marks)]), path)


CALLS = {
    "no such colour": (lambda: Line([1], [1], colour="red"), ValueError, ["'red'", "orange"]),
    "a line of two lengths": (lambda: Line([1, 2], [1]), ValueError, ["x (2,), y (1,)"]),
    "a line in words": (lambda: Line(["a"], [1]), ValueError, ["`x` of line is ['a']", "numbers"]),
    "points in words": (lambda: Points([1], ["b"]), ValueError, ["`y` of points is ['b']"]),
    "a line of texts": (lambda: Line(["1"], [1]), ValueError, ["`x` of line is ['1']"]),
    "a complex line": (
        lambda: Line([1], np.array([1j])),
        ValueError,
        ["`y` of line is array([0.+1.j])", "numbers"],
    ),
    "a line too long to draw": (
        lambda: drawn(Line([0, 1], [1e308, -1e308])),
        ValueError,
        ["`y` of line goes up to 1e+308", "another unit"],
    ),
    "a width in words": (lambda: Line([1], [1], width="a"), ValueError, ["`width` of line is 'a'"]),
    "a size that is none": (lambda: Points([1], [1], size=NAN), ValueError, ["`size` of points"]),
    "a mark that is none": (lambda: Panel([3]), TypeError, ["marks=[3]", "Line and Points"]),
    "a range with NaN": (lambda: a_panel(xlim=(NAN, 1)), ValueError, ["xlim=(nan, 1)"]),
    "a range of one end": (lambda: a_panel(ylim=(1,)), ValueError, ["ylim=(1,)", "two"]),
    "a range too long": (lambda: a_panel(xlim=(-1e308, 1e308)), ValueError, ["xlim=(-1e+308"]),
    "a million columns": (
        lambda: Figure("a", "", [a_panel()], 10**6),
        ValueError,
        ["columns=1000000", "at most 100"],
    ),
    "a column and a half": (lambda: Figure("a", "", [a_panel()], 1.5), ValueError, ["1.5 columns"]),
    "a picture in NUL": (
        lambda: drawn(Line([1], [1]), path="a\0.png"),
        ValueError,
        ["draw got 'a\\x00.png'", "NUL"],
    ),
    "half a band": (lambda: Line([1], [1], low=[0]), ValueError, ["`low` and `high`"]),
    "the logarithm of zero": (
        lambda: a_panel(xlog=True, xlim=(0, 1)),
        ValueError,
        ["positive `xlim`, not (0, 1)"],
    ),
    "a figure's name": (lambda: Figure("../a", "", [a_panel()]), ValueError, ["'../a'"]),
    "a figure without panels": (lambda: Figure("a", "", []), ValueError, ["'a' has 0 panels"]),
    "no columns": (lambda: Figure("a", "", [a_panel()], 0), ValueError, ["in 0 columns"]),
    "rows that are not there": (
        lambda: Figure("a", "", [a_panel()], rows=["x", "y"]),
        ValueError,
        ["names 2 rows", "fill 1"],
    ),
    "a picture as text": (
        lambda: plotting.draw(Figure("a", "", [a_panel()]), "a.txt"),
        ValueError,
        ["a.txt is no picture", ".png"],
    ),
    "no figure": (lambda: plotting.draw(3, "a.png"), TypeError, ["draw got 3", "Figure"]),
    "a description of nothing": (lambda: plotting.from_json([]), ValueError, ["A figure is", "[]"]),
    "a mark of no kind": (
        lambda: plotting.from_json({"name": "a", "caption": "", "panels": [{"marks": [3]}]}),
        ValueError,
        ["line, points", "None"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)
