"""The figures of a fit."""

from collections.abc import Callable

import numpy as np

from ..plotting import Figure, Line, Mark, Panel, Points
from .fit_model import Fit, describe_future
from .long_run import LongRun
from .table import Measurements
from .units import list_ticks

# Measured samples shown before the forecast, for each sample of it.
BEFORE = 4
MOST_PANELS = 6
# Points of a curve that a wide screen can show: the lowest and the highest of each pixel.
MOST_DRAWN = 3000
# Series of a table that are drawn, the last ones.
MOST_SERIES = 12


def draw_figures(result: Fit) -> dict[str, Figure]:
    """All figures by name."""
    drawn = [
        _draw_fit(result),
        _draw_portrait(result),
        _draw_forecast(result),
        result.selection.figure() if result.selection else None,
        _draw_scans(result),
        _draw_losses(result),
        result.long_run.cobweb if isinstance(result.long_run, LongRun) else None,
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def draw_times(marks: list[Mark], table: Measurements, name: str) -> Panel:
    """A panel over time, whose axis shows dates if the table has them."""
    if table.calendar is None:
        return Panel(marks, "", table.time_label, name)
    ts = np.concatenate([np.asarray(mark.x, float) for mark in marks])
    ticks = list_ticks(table.calendar, float(ts.min()), float(ts.max()))
    label = table.time_name if len(ticks) > 1 else table.time_label
    return Panel(marks, "", label, name, xticks=ticks if len(ticks) > 1 else ())


def _draw_columns(
    result: Fit, name: str, caption: str, marks_of: Callable[[int], list[Mark]]
) -> Figure:
    """A figure with a panel for each of the first columns."""
    names = result.table.names
    hidden = len(names) - MOST_PANELS
    panels = [
        draw_times(marks_of(i), result.table, name) for i, name in enumerate(names[:MOST_PANELS])
    ]
    if hidden > 0:
        caption += f" The CSV file has {hidden} more columns."
    return Figure(name, caption, panels, 1 if len(names) == 1 else 2)


def find_extremes(ys: np.ndarray, most: int = MOST_DRAWN) -> np.ndarray:
    """The samples to draw: the ends, and the lowest and highest of each of many equal parts. A
    curve through them looks like one through all."""
    if len(ys) <= most:
        return np.arange(len(ys))
    kept = {0, len(ys) - 1}
    for part in np.array_split(np.arange(len(ys)), most // 2):
        known = part[np.isfinite(ys[part])]
        # A missing value breaks the curve there, too.
        turns = known[[np.argmin(ys[known]), np.argmax(ys[known])]] if len(known) else part[:1]
        kept.update(turns.tolist())
    return np.array(sorted(kept))


def _draw_fit(result: Fit) -> Figure:
    shown = result.parts[-MOST_SERIES:]
    most = MOST_DRAWN // len(shown)
    size = 3.0 if sum(len(part.table.ts) for part in shown) < 400 else 1.5

    def marks_of(i: int) -> list[Mark]:
        marks: list[Mark] = []
        for table, predicted, cut in shown:
            ys, line = table.ys[:, i], predicted[:, i]
            if 0 < cut < len(ys):
                edge = float(table.ts[cut - 1] + table.ts[cut]) / 2
                ends = [np.nanmin(ys), np.nanmax(ys)]
                marks.append(Line([edge, edge], ends, "held out from here on", "grey", True, 1))
            dots, turns = find_extremes(ys, most), find_extremes(line, most)
            colour = "orange" if cut == 0 else "blue"
            label = "predicted, held out" if cut == 0 else "predicted"
            marks.append(Points(table.ts[dots], ys[dots], "measured", "grey", size))
            marks.append(Line(table.ts[turns], line[turns], label, colour, width=1))
        return marks

    caption = (
        "The measurements and the predictions of the equation, which start anew from the "
        f"measurements every {result.model.window_} samples."
    )
    if len(result.parts) > MOST_SERIES:
        caption += f" The last {MOST_SERIES} of {len(result.parts)} series."
    return _draw_columns(result, "fit", caption, marks_of)


def _draw_forecast(result: Fit) -> Figure | None:
    table, forecast = result.table, result.forecast
    if forecast is None:
        return None
    before = slice(-min(len(table.ts), max(BEFORE * len(forecast.ts), 40)), None)
    label = "forecast, not to be trusted" if result.doubt else "forecast, with its band"
    dashed = result.doubt is not None

    def marks_of(i: int) -> list[Mark]:
        # From the last measurement on, so that the band has no gap before it.
        known = np.flatnonzero(np.isfinite(table.ys[:, i]))[-1]
        join = lambda values: np.append(table.ys[known, i], values[:, i])
        ts = np.append(table.ts[known], forecast.ts)
        mean, low, high = map(join, (forecast.mean, forecast.low, forecast.high))
        turns = find_extremes(mean)
        past, ys = table.ts[before], table.ys[before, i]
        dots = find_extremes(ys)
        return [
            Points(past[dots], ys[dots], "measured", "grey", 3.0),
            Line(
                *(ts[turns], mean[turns], label, "orange", dashed),
                low=low[turns],
                high=high[turns],
            ),
        ]

    caption = (
        f"The series continued by {len(forecast.ts)} samples. The band should hold 90 % of later "
        "measurements: it comes from the errors of predictions as far ahead within the series."
    )
    if result.doubt:
        caption += " The fit is doubtful, so do not trust the forecast."
    if describe_future(result):
        caption += f" {describe_future(result)}"
    return _draw_columns(result, "forecast", caption, marks_of)


def _draw_portrait(result: Fit) -> Figure:
    table, predicted = result.table, result.predicted
    x, y = table.names[0], table.names[-1 if len(table.names) == 1 else 1]
    measured, predicted = table.ys[:, :2], predicted[:, :2]
    caption = f"{y} against {x}, measured and predicted."
    if len(table.names) == 1:
        lag = _decorrelation_time(result)
        caption = f"{x} against its value {table.with_unit(lag)} before, measured and predicted."
        measured, predicted = (
            _pair_with_past(table.ts, z[:, 0], lag) for z in (measured, predicted)
        )
        x, y = f"{x}(t − {lag:g})", f"{x}(t)"
    dots = np.unique(np.linspace(0, len(measured) - 1, MOST_DRAWN).astype(int))
    measured, predicted = measured[dots], predicted[dots]
    marks: list[Mark] = [
        Points(measured[:, 0], measured[:, 1], "measured", "grey", 3.0),
        Line(predicted[:, 0], predicted[:, 1], "predicted", "blue", width=0.8),
    ]
    return Figure("portrait", caption, [Panel(marks, "", x, y)])


def _pair_with_past(ts: np.ndarray, values: np.ndarray, lag: float) -> np.ndarray:
    """Each value behind the value `lag` before it."""
    known = np.isfinite(values)
    past = np.interp(ts - lag, ts[known], values[known], left=np.nan)
    return np.stack([past, values], axis=1)


def _decorrelation_time(result: Fit) -> float:
    """The lag at which the correlation of the first column with itself has fallen to 1/e.

    With a shorter one a portrait would show a diagonal.
    """
    table = result.table
    known = np.isfinite(table.ys[:, 0])
    regular = np.arange(table.ts[0], table.ts[-1] + table.gap / 2, table.gap)
    x = np.interp(regular, table.ts[known], table.ys[known, 0])
    x = x - x.mean()
    products = np.fft.irfft(np.abs(np.fft.rfft(x, 2 * len(x))) ** 2)[: max(2, len(x) // 4)]
    correlation = products / np.arange(len(x), 0, -1)[: len(products)] / np.mean(x * x)
    low = np.flatnonzero(correlation < np.exp(-1))
    return float(f"{table.gap * (low[0] if len(low) else 1):.6g}")


def _draw_losses(result: Fit) -> Figure | None:
    if not result.model.losses_:
        return None
    marks: list[Mark] = []
    names = {"loss": ("training", "sky"), "held_out": ("held out", "orange")}
    for name, (label, colour) in names.items():
        series = result.model.losses_[name]
        values = np.reshape(series.values, (len(series.steps), -1))
        marks += [Line(series.steps, v, label, colour, width=0.8) for v in values.T]
    number = result.model.ensemble
    caption = (
        f"Mean squared error of a window during training of {number} model{'s' * (number > 1)}, in "
        "squares of standard deviations. Each model is kept at its smallest held-out error."
    )
    panel = Panel(marks, "", "iteration", "mean squared error", ylog=True)
    return Figure("training", caption, [panel])


def _draw_scans(result: Fit) -> Figure | None:
    scans = [scan for scan in result.model.scans_ if len(scan.periods)]
    if not scans:
        return None
    panels = []
    for scan, period in zip(scans, result.model.periods_, strict=True):
        ends = [float(scan.errors.min()), float(scan.errors.max())]
        marks: list[Mark] = [
            Line(scan.periods, scan.errors, "held-out error", width=1),
            Line([period, period], ends, "learned", "orange", True, 1.2),
        ]
        unit = f" [{result.table.unit}]" if result.table.unit else ""
        panels.append(Panel(marks, "", f"period{unit}", "held-out error", ylog=True))
    caption = (
        "Held-out error of a polynomial equation with each period that was tried. The valley at "
        "the right period is narrow, and its fractions have valleys, too. Of the valleys that are "
        "equally deep the longest period is chosen. Training then changes it little."
    )
    return Figure("periods", caption, panels, min(len(panels), 2))
