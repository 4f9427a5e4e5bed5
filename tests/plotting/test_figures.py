"""Figures survive JSON, refuse what is broken, and are drawn whole."""

import dataclasses
import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lagrax import plotting
from lagrax.plotting import (
    COLOURS,
    Figure,
    Line,
    Panel,
    Points,
    _figures,
    _matplotlib,
    draw,
    from_json,
    legend,
    plotly_panels,
    to_json,
)

NAN = math.nan
HOSTILE = r"</script><b>$\frac{ & %{x} "


def loss_panel(**more):
    x = np.arange(1, 6)
    band = {"low": [0.0, 0.05, NAN, 0.01, 0.01], "high": [2.0, 1.0, NAN, 0.2, 0.1]}
    lines = [
        Line(x, [1.0, 0.5, NAN, 0.1, 0.05], "NPCDDE", **band),
        Line(x, [1.0, 0.9, 0.8, 0.7, 0.6], "NODE", "orange", dashed=True),
        Points(x, [0.3] * 5, HOSTILE, "grey"),
    ]
    return Panel(lines, title=HOSTILE, xlabel=HOSTILE, ylabel="loss", ylog=True, **more)


def figure(name="losses", panels=4, columns=2, **more):
    return Figure(name, f"A caption {HOSTILE}", [loss_panel()] * panels, columns, **more)


def plain(x, y, **more):
    return Figure("plain", "", [Panel([Line(x, y)], **more)])


# --- JSON -----------------------------------------------------------------------------------------

# Descriptions, not figures: beartype draws random items, which hypothesis forbids in strategies.
texts = st.text(max_size=8)


@st.composite
def marks(choose):
    length = choose(st.integers(0, 4))
    numbers = st.none() | st.floats(-1e300, 1e300) | st.integers(-9, 9)
    values = st.lists(numbers, min_size=length, max_size=length)
    mark = {"x": choose(values), "y": choose(values), "label": choose(st.none() | texts)}
    mark["colour"] = choose(st.sampled_from(sorted(COLOURS)))
    if choose(st.booleans()):
        return mark | {"kind": "points", "size": choose(st.floats(1, 9))}
    band = {"low": choose(values), "high": choose(values)} if choose(st.booleans()) else {}
    return mark | band | {"kind": "line", "dashed": choose(st.booleans())}


panels = st.fixed_dictionaries(
    {
        "marks": st.lists(marks(), max_size=2),
        "title": texts,
        "equal": st.booleans(),
        "xlim": st.none() | st.tuples(st.floats(-5, 0), st.floats(1, 5)),
    }
)
descriptions = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9][\w.+=-]{0,5}", fullmatch=True),
        "caption": texts,
        "panels": st.lists(panels, min_size=1, max_size=3),
        "columns": st.integers(1, 4),
        "share_y": st.booleans(),
    }
)


@given(descriptions)
@settings(max_examples=15)
def test_json_round_trip(description):
    original = from_json(description)
    written = json.loads(json.dumps(to_json(original), allow_nan=False))
    again = from_json(written)
    assert to_json(again) == written
    assert dataclasses.replace(again, panels=[Panel([])], rows=()) == dataclasses.replace(
        original, panels=[Panel([])], rows=()
    )
    for panel, copy in zip(original.panels, again.panels, strict=True):
        assert (panel.title, panel.equal) == (copy.title, copy.equal)
        for mark, other in zip(panel.marks, copy.marks, strict=True):
            assert type(mark) is type(other)
            np.testing.assert_allclose(other.y, mark.y, rtol=1e-4, atol=1e-300)


def test_json_numbers():
    """Arrays of any kind become lists of five digits; what is not finite becomes null."""
    line = Line(jnp.arange(3), np.array([1.23456789, NAN, np.inf]), low=[1, 2, 3], high=[4, 5, 6])
    written = to_json(Figure("f", "", [Panel([line])]))["panels"][0]["marks"][0]
    assert written["kind"] == "line"
    assert written["x"] == [0, 1, 2]
    assert written["y"] == [1.2346, None, None]
    assert to_json(plain([np.float32(0.1)], [0]))["panels"][0]["marks"][0]["x"] == [0.1]


def test_unknown_keys_are_left_aside():
    written = to_json(figure()) | {"palette": "new"}
    written["panels"][0]["marks"][0]["glow"] = 3
    assert to_json(from_json(written)) == to_json(figure())


def broken(change):
    written = to_json(figure())
    change(written, written["panels"][0], written["panels"][0]["marks"][0])
    return written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f, p, m: m.update(kind="heatmap"), "one of line, points; got the kind 'heatmap'"),
        (lambda f, p, m: p.update(marks=[3]), "one of line, points; got the kind None"),
        (lambda f, p, m: m.update(colour="pink"), "No colour 'pink': choose one of blue, orange"),
        (lambda f, p, m: m.update(x=[1, 2]), r"same length; got x \(2,\), y \(5,\), low \(5,\)"),
        (lambda f, p, m: m.update(y="12345"), "`y` of a line is a list, not '12345'"),
        (lambda f, p, m: m.update(y=[1, 2, 3, 4, "5"]), "`y` of a line holds something other"),
        (lambda f, p, m: m.update(y=[1, 2, 3, 4, True]), "`y` of a line holds something other"),
        (lambda f, p, m: m.update(high=None), "only one of `low` and `high`"),
        (lambda f, p, m: m.update(width=True), "`width` of a line is a number, not True"),
        (lambda f, p, m: p.update(ylim=[1]), r"`ylim` is a pair of numbers, not \[1\]"),
        (lambda f, p, m: p.update(xticks=[[1]]), r"A tick is a number and a text, not \[1\]"),
        (lambda f, p, m: p.update(ylim=[0, 1]), r"positive `ylim`, not \(0.0, 1.0\)"),
        (lambda f, p, m: p.update(ylog="yes"), "`ylog` of a panel is true or false, not 'yes'"),
        (lambda f, p, m: f.pop("caption"), "description of a figure lacks `caption`"),
        (lambda f, p, m: f.update(panels=[1]), "A panel is described by an object, not by 1"),
        (lambda f, p, m: f.update(panels=[]), "has 0 panels in 2 columns"),
        (lambda f, p, m: f.update(rows=["a"]), "names 1 rows, but 4 panels in 2 columns fill 2"),
        (lambda f, p, m: f.update(rows=[1, 2]), r"rows are texts, not \[1, 2\]"),
        (lambda f, p, m: f.update(name="../a"), "name '../a'; expected letters, digits"),
    ],
)
def test_broken_descriptions_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_json(broken(change))


def test_legend_has_each_label_once():
    assert [mark.label for mark in legend(figure())] == ["NPCDDE", "NODE", HOSTILE]
    assert legend(plain([0], [0])) == []


# --- matplotlib -----------------------------------------------------------------------------------


def test_draw_writes_whole_files(tmp_path):
    paths = [tmp_path / "new" / f"losses.{suffix}" for suffix in ("pdf", "png", "svg")]
    draw(figure(panels=3, rows=["first", HOSTILE], share_y=True), *paths)
    before = [path.read_bytes() for path in paths]
    assert sorted((tmp_path / "new").iterdir()) == paths
    for content, start in zip(before, (b"%PDF", b"\x89PNG", b"<?xml"), strict=True):
        assert content.startswith(start)
    draw(figure(panels=3, rows=["first", HOSTILE], share_y=True), *paths[:2])
    assert [path.read_bytes() for path in paths] == before


def test_draw_knows_its_formats(tmp_path):
    with pytest.raises(ValueError, match=r"x\.txt is no picture: expected a name in \.png, "):
        draw(plain([0, 1], [0, 1]), tmp_path / "x.png", tmp_path / "x.txt")
    assert list(tmp_path.iterdir()) == []


def test_failed_drawing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draw(plain([0, 1], [0, 1]), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def on_paper(described):
    drawing = _matplotlib.make_drawing(described)
    drawing.draw_without_rendering()
    return drawing


def test_texts_that_neighbours_share_are_written_once():
    axes = on_paper(figure(rows=["a", "b"], share_y=True)).axes
    assert [bool(a.get_title()) for a in axes] == [True, True, False, False]
    assert [bool(a.get_xlabel()) for a in axes] == [False, False, True, True]
    assert [bool(a.get_ylabel()) for a in axes] == [True, False, True, False]
    assert [[text.get_text() for text in a.texts] for a in axes] == [["a"], [], ["b"], []]


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (4, 6)])
@pytest.mark.parametrize("equal", [False, True])
def test_nothing_overlaps(rows, columns, equal):
    points = Points([0, 1], [0, 2], "points")
    panel = Panel([points, Line([0, 1], [0, 2], "line")], "A title", "x", "y", equal=equal)
    names = [f"row {number}" for number in range(rows)]
    drawing = on_paper(Figure("grid", "", [panel] * rows * columns, columns, names))
    boxes = [axes.get_tightbbox().shrunk(0.98, 0.98) for axes in drawing.axes]
    boxes.append(drawing.legends[0].get_window_extent())
    for number, box in enumerate(boxes):
        assert box.width > 0
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_ranges():
    [(x, y)] = _figures.find_ranges(plain([0, 10, NAN], [0.0, 1.0, np.inf]))
    assert x == pytest.approx((-0.5, 10.5))
    assert y == pytest.approx((-0.05, 1.05))
    [(_, y)] = _figures.find_ranges(plain([0, 1], [1e-2, 1.0], ylog=True))
    assert y == pytest.approx((10**-2.1, 10**0.1))
    [(_, y)] = _figures.find_ranges(plain([0, 1], [-1.0, 0.0], ylog=True))
    assert y is None
    [(x, _)] = _figures.find_ranges(plain([0, 1, 100], [0.0, 1.0, 2.0], xlog=True))
    assert x == pytest.approx((10**-0.1, 10**2.1))
    assert list(_figures.find_ranges(plain([], []))) == [(None, None)]
    [(x, y)] = _figures.find_ranges(plain([0, 10], [3.0, 3.0], equal=True))
    assert x == pytest.approx((-0.5, 10.5))
    assert y == pytest.approx((-2.5, 8.5))
    assert list(_figures.find_ranges(plain([], [], equal=True))) == [(None, None)]
    assert list(_figures.find_ranges(plain([0], [0], xlim=(0.0, 1.0), ylim=(2.0, 3.0)))) == [
        ((0.0, 1.0), (2.0, 3.0))
    ]


def test_shared_range_and_band_near_zero():
    """A band's foot may reach a tenth of the lowest curve; a row shares its range."""
    tiny = Line([0, 1], [1.0, 1.0], low=[1e-9, 0.2], high=[2.0, 2.0])
    other = Line([0, 1], [100.0, 10.0])
    row = Figure("f", "", [Panel([m], ylog=True) for m in (tiny, other)], 2, share_y=True)
    (_, first), (_, second) = _figures.find_ranges(row)
    assert first == second
    assert 0.1 < first[0] < 0.2
    assert 100 < first[1] < 200


# --- plotly ---------------------------------------------------------------------------------------


def test_plotly_panels():
    drawings = plotting.plotly_panels(figure())
    assert len(drawings) == 4
    json.dumps(drawings, allow_nan=False)
    band, npcdde, node, points = drawings[0]["data"]
    layout = drawings[0]["layout"]
    assert npcdde["y"] == [1.0, 0.5, None, 0.1, 0.05]
    assert node["line"]["dash"] == "dash"
    assert points["mode"] == "markers"
    assert points["name"] == r"&lt;/script&gt;&lt;b&gt;$\frac{ &amp; %{x} "
    assert layout["showlegend"] is False
    assert layout["yaxis"]["type"] == "log"
    # The outline goes there and back around each stretch, and stays on the logarithmic axis.
    assert band["x"] == [1, 2, 2, 1, None, 4, 5, 5, 4, None]
    assert min(y for y in band["y"] if y is not None) > 0
    assert layout["yaxis"]["range"][0] <= math.log10(min(filter(None, band["y"]))) + 1e-4


def test_plotly_equal_axes_and_limits():
    described = plain([0, 1], [0, 1], equal=True, xlim=(0, 2), ylim=(0.0, 3.0))
    layout = plotting.plotly_panels(described)[0]["layout"]
    assert layout["yaxis"]["scaleanchor"] == "x"
    assert layout["xaxis"]["range"] == [0, 2]
    assert layout["yaxis"]["range"] == [0, 3]
    assert "range" not in plotting.plotly_panels(plain([], []))[0]["layout"]["xaxis"]
    layout = plotting.plotly_panels(plain([1, 10], [0, 1], xlog=True, xlim=(0.1, 100.0)))[0][
        "layout"
    ]
    assert layout["xaxis"]["type"] == "log"
    assert layout["xaxis"]["range"] == pytest.approx([-1, 2])
    drawing = on_paper(plain([1, 10], [0, 1], xlog=True))
    assert drawing.axes[0].get_xscale() == "log"


def test_ticks_have_labels():
    ticks = ((0.0, "2024"), (1.0, "<2025>"))
    described = plain([0, 1], [0, 1], xticks=ticks)
    axis = plotting.plotly_panels(described)[0]["layout"]["xaxis"]
    assert (axis["tickvals"], axis["ticktext"]) == ([0, 1], ["2024", "&lt;2025&gt;"])
    labels = on_paper(described).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["2024", "<2025>"]
    assert from_json(to_json(described)).panels[0].xticks == ticks


@pytest.mark.parametrize(
    ("limits", "texts"),
    [
        ((3e-4, 20.0), ["10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹"]),
        ((1e-12, 1.0), ["10⁻¹²", "10⁻¹⁰", "10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰"]),
        ((0.03, 0.6), ["0.05", "0.1", "0.2", "0.5"]),
        ((0.31, 0.58), ["0.4", "0.5"]),
        ((0.61, 0.64), ["0.61", "0.62", "0.63", "0.64"]),
    ],
)
def test_logarithmic_axes_have_whole_numbers_as_ticks(limits, texts):
    panel = Panel([Line([0, 1], list(limits))], ylog=True, ylim=limits)
    figure = Figure("x", "", [panel])
    assert plotly_panels(figure)[0]["layout"]["yaxis"]["ticktext"] == texts
    drawing = _matplotlib.make_drawing(figure)
    drawing.draw_without_rendering()
    (axes,) = drawing.axes
    assert [label.get_text() for label in axes.get_yticklabels(which="both")][: len(texts)] == texts
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))


def test_band_where_there_is_nothing_to_show():
    nothing = [NAN, NAN]
    line = Line([0, 1], nothing, low=nothing, high=nothing)
    [drawing] = plotting.plotly_panels(Figure("f", "", [Panel([line])]))
    assert drawing["data"][0]["x"] == []


# --- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("matplotlib.figure", _matplotlib.make_drawing),
        ("plotly.graph_objects", plotting.plotly_panels),
    ],
)
def test_absent_extra_says_what_to_install(monkeypatch, module, use):
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(ImportError, match=rf'{package}: pip install "lagrax\[plot\]"'):
        use(figure())


def test_numbers_that_are_alike_keep_what_tells_them_apart():
    """Such as seconds since 1970: five digits would put a day's samples on one place."""
    times = 1_704_100_000 + 60.0 * np.arange(50)
    assert len(set(_figures.round_values(times))) == 50
    assert _figures.round_values([1.23456789, 2.3456789]) == [1.2346, 2.3457]
    assert _figures.round_values([5.123456789] * 2) == [5.1235] * 2
    assert _figures.round_values([np.nan, np.inf]) == [None, None]
