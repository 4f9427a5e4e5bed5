"""A figure and a text that a page has to escape, for the tests of pages."""

import math

from lagrax.plotting import Figure, Line, Panel, Points

HOSTILE = "</script><script>document.title = 'broken'</script><b>bold</b> & \"quoted\""


def a_figure(name="losses", panels=10, columns=5):
    x = [0.0, 1.0, 2.0]
    marks = [
        Line(x, [1.0, 0.1, math.nan], "NPCDDE", low=[0.5, 0.0, math.nan], high=[2.0, 1.0, 1.0]),
        Line(x, [1.0, 1.0, 1.0], HOSTILE, "grey", dashed=True),
        Points(x, [0.2, 0.3, 0.4], "points", "amber"),
    ]
    all_panels = [
        Panel(marks, HOSTILE, "t", "loss", ylog=number % 2 == 0) for number in range(panels)
    ]
    rows = [f"row {number}" for number in range(panels // columns)]
    return Figure(name, f"Losses. {HOSTILE}", all_panels, columns, rows)
