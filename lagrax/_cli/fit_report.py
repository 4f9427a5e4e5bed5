"""What `lagrax fit` has found, as figures and as a page."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np

from .._solve.delays import Delay, Lag
from ..plotting import Figure, Line, Mark, Panel, Points
from ..plotting._elements import (
    Html,
    Section,
    day,
    element,
    page,
    show_figure,
    show_particulars,
    show_table,
)
from ..training._machine import describe as machine
from .fit_model import Fit
from .long_run import LongRun

# Samples before the forecast that are shown with it, for each that is forecast.
BEFORE = 4
MOST_PANELS = 6


# --- figures --------------------------------------------------------------------------------------


def figures(found: Fit) -> dict[str, Figure]:
    """All that there are, by name, in the order of the page."""
    drawn = [
        _fit(found),
        _portrait(found),
        _forecast(found),
        found.selection.figure() if found.selection else None,
        _scan(found),
        _losses(found),
        found.long_run.cobweb if isinstance(found.long_run, LongRun) else None,
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def _columns(found: Fit) -> int:
    return 1 if len(found.table.names) == 1 else 2


def _more(found: Fit) -> str:
    hidden = len(found.table.names) - MOST_PANELS
    return f" {hidden} more columns are in the CSV file." if hidden > 0 else ""


def _each(found: Fit, marks: Callable[[int], list[Mark]]) -> list[Panel]:
    """One panel for each of the first columns."""
    names = found.table.names[:MOST_PANELS]
    return [Panel(marks(i), "", found.table.time_label, name) for i, name in enumerate(names)]


def _fit(found: Fit) -> Figure:
    table, cut = found.table, found.held_out
    size = 3.0 if len(table.ts) < 400 else 1.5

    def marks(i: int) -> list[Mark]:
        ys, lows = table.ys[:, i], [np.nanmin(table.ys[:, i]), np.nanmax(table.ys[:, i])]
        edge = float(table.ts[cut - 1] + table.ts[cut]) / 2
        return [
            Line([edge, edge], lows, "held out from here on", "grey", True, 1),
            Points(table.ts, ys, "measured", "grey", size),
            Line(table.ts, found.predicted[:, i], "predicted", "blue", width=1),
        ]

    many = found.model.window_
    caption = (
        f"What was measured, and what the equation says, started anew from the measurements every "
        f"{many} samples.{_more(found)}"
    )
    return Figure("fit", caption, _each(found, marks), _columns(found))


def _forecast(found: Fit) -> Figure | None:
    table, forecast = found.table, found.forecast
    if forecast is None:
        return None
    last = slice(-min(len(table.ts), max(BEFORE * len(forecast.ts), 40)), None)

    def marks(i: int) -> list[Mark]:
        # From the last measurement on, so that the band has no gap before it.
        known = np.flatnonzero(np.isfinite(table.ys[:, i]))[-1]
        join = lambda values: np.append(table.ys[known, i], values[:, i])
        ts = np.append(table.ts[known], forecast.ts)
        mean, low, high = map(join, (forecast.mean, forecast.low, forecast.high))
        return [
            Points(table.ts[last], table.ys[last, i], "measured", "grey", 3.0),
            Line(ts, mean, "forecast, with its band", "orange", low=low, high=high),
        ]

    held = " Inputs stay as they were last." if table.input_names else ""
    caption = (
        f"The series continued by {len(forecast.ts)} samples. The band is two standard deviations "
        f"wide on either side: between the {found.model.ensemble} models of the ensemble, and of "
        f"the errors on held-out windows.{held}{_more(found)}"
    )
    return Figure("forecast", caption, _each(found, marks), _columns(found))


def _portrait(found: Fit) -> Figure:
    table, seen = found.table, found.predicted
    x, y = table.names[0], table.names[-1 if len(table.names) == 1 else 1]
    measured, predicted = table.ys[:, :2], seen[:, :2]
    caption = f"{y} against {x}, as measured and as predicted."
    if len(table.names) == 1:
        gap = _forgetting(found)
        caption = f"{x} against what it was {gap:g} before, as measured and as predicted."
        measured, predicted = (_with_past(table.ts, z[:, 0], gap) for z in (table.ys, seen))
        x, y = f"{x}(t − {gap:g})", f"{x}(t)"
    marks: list[Mark] = [
        Points(measured[:, 0], measured[:, 1], "measured", "grey", 3.0),
        Line(predicted[:, 0], predicted[:, 1], "predicted", "blue", width=0.8),
    ]
    return Figure("portrait", caption, [Panel(marks, "", x, y)])


def _with_past(ts: np.ndarray, values: np.ndarray, gap: float) -> np.ndarray:
    """What each value was `gap` before, and the value."""
    known = np.isfinite(values)
    back = np.interp(ts - gap, ts[known], values[known], left=np.nan)
    return np.stack([back, values], axis=1)


def _forgetting(found: Fit) -> float:
    """After how long a series resembles itself but little: where its correlation with itself has
    fallen to 1/e. Before, a portrait would show a diagonal."""
    gap, table = found.table.gap, found.table
    known = np.isfinite(table.ys[:, 0])
    regular = np.arange(table.ts[0], table.ts[-1] + gap / 2, gap)
    x = np.interp(regular, table.ts[known], table.ys[known, 0])
    x = x - x.mean()
    many = max(2, len(x) // 4)
    correlation = np.array([np.mean(x[k:] * x[: len(x) - k]) for k in range(many)]) / np.mean(x * x)
    low = np.flatnonzero(correlation < np.exp(-1))
    return float(f"{gap * (low[0] if len(low) else 1):.6g}")


def _losses(found: Fit) -> Figure | None:
    if not found.model.losses_:
        return None
    marks: list[Mark] = []
    names = {"loss": ("training", "sky"), "held_out": ("held out", "orange")}
    for name, (label, colour) in names.items():
        series = found.model.losses_[name]
        values = np.reshape(series.values, (len(series.steps), -1))
        marks += [Line(series.steps, v, label, colour, width=0.8) for v in values.T]
    caption = (
        "The mean squared error of a window, in squares of standard deviations, while the "
        f"{found.model.ensemble} models were trained. Each is kept as it was when the held-out "
        "error was smallest."
    )
    panel = Panel(marks, "", "iteration", "mean squared error", ylog=True)
    return Figure("training", caption, [panel])


def _scan(found: Fit) -> Figure | None:
    scans = [scan for scan in found.model.scans_ if len(scan.periods)]
    if not scans:
        return None
    panels = []
    for scan, period in zip(scans, found.model.periods_, strict=True):
        ends = [float(scan.errors.min()), float(scan.errors.max())]
        marks: list[Mark] = [
            Line(scan.periods, scan.errors, "held-out error", width=1),
            Line([period, period], ends, "learned", "orange", True, 1.2),
        ]
        panels.append(Panel(marks, "", "period", "held-out error", ylog=True))
    caption = (
        "The error on held-out windows of a polynomial equation with each of the periods that were "
        "tried. The valley at the right one is narrow; at its fractions there are others, and of "
        "those that are as deep once looked at closely the longest period is taken. Training then "
        "moves it by little."
    )
    return Figure("periods", caption, panels, min(len(panels), 2))


# --- the page -------------------------------------------------------------------------------------


def page_of(found: Fit, drawn: dict[str, Figure]) -> str:
    """The report, with each figure where it belongs."""
    numbers = {name: i + 1 for i, name in enumerate(drawn)}

    def show(name: str) -> list[Html]:
        return [show_figure(drawn[name], numbers[name])] if name in drawn else []

    name = found.data.name
    introduction = (
        f"An equation learned by lagrax from {len(found.table.ts):,} samples of "
        f"{', '.join(found.table.names)} in {name}, what it forecasts, and where it leads."
    )
    sections = [
        Section("overview", "Overview", _overview(found)),
        Section("fit", "The fit", [*show("fit"), *show("portrait")]),
        *([Section("forecast", "The forecast", show("forecast"))] if found.forecast else []),
        Section(
            "learned",
            "What was learned",
            [*_learned(found), *show("delays"), *show("periods"), *show("training")],
        ),
        Section("stability", "Stability", [*_stability(found), *show("cobweb")]),
        Section("settings", "Settings", [_settings(found)]),
    ]
    return page(f"{name}: a fitted equation", introduction, sections)


def _overview(found: Fit) -> list[Html]:
    table, model = found.table, found.model
    written = table.format_times(table.ts)
    first, last, cut = written[0], written[-1], written[found.held_out]
    equations = [element("p", element("strong", line)) for line in found.equations]
    unit = "" if table.unit is None else f", counted in {table.clock or table.unit}"
    sentence = f"The series goes from {first} to {last}{unit}. Its end, from {cut} on, was not "
    sentence += "learned from."
    if model.periods_ or found.selection:
        sentence += " (The search for delays and their periods has seen all of it.)"
    if model.losses_:
        sentence += " Training stopped by the error there, so the scores below flatter a little."
    rows = [
        [s.name, f"{s.r2:.4f}", f"{s.nrmse:.4f}", f"{s.standing_still:.4f}"] for s in found.scores
    ]
    return [
        *equations,
        element("p", sentence),
        show_table(
            ["column", "R²", "error", "error of standing still"],
            rows,
            "On the held-out end",
            f"Predictions start from measurements and go at most {model.window_} samples ahead. "
            "R² is the share of the variance that they explain; errors are root mean squares in "
            "standard deviations. To stand still is to predict the value at the start.",
        ),
        *([element("p", element("strong", found.doubt))] if found.doubt else []),
    ]


def _learned(found: Fit) -> list[Html]:
    model, options = found.model, found.options
    kind = (
        f"a polynomial of degree {options.degree} at most, with the terms that the series needs"
        if options.field == "library"
        else f"a neural network with {model.depth} hidden layers of {model.width} units"
    )
    back = _phrase(model.delays_)
    sentence = f"The right-hand side is {kind}. It looks back at {back}."
    if any(not isinstance(d, Lag) for d in model.delays_):
        sentence += " Holds change at multiples of their period, counted from time 0."
    if model.periods_:
        sentence += f" Learned: {', '.join(f'{p:.6g}' for p in model.periods_)}."
    parts = [element("p", said) for said in (sentence, *found.unsure)]
    if found.table.input_names:
        what = ", ".join(found.table.input_names)
        inputs = f"Inputs: {what}, each held from one sample to the next. "
        inputs += "In the forecast they stay at their last value."
        parts.append(element("p", inputs))
    if found.selection is not None:
        rows = [
            [
                c.name,
                f"{c.error:.4g}",
                _phrase(c.kept),
                "chosen" if c is found.selection.best else "",
            ]
            for c in found.selection.candidates
        ]
        note = (
            "The error of polynomial equations on held-out windows, in units of the signal. Of "
            "those that are as good as the best, the one that needs the fewest delays is chosen."
        )
        parts.append(show_table(["candidate", "error", "needs", ""], rows, "Candidates", note))
    return parts


def _phrase(delays: list[Delay]) -> str:
    """The delays in words."""
    said = []
    for delay in delays:
        tau = float(np.asarray(delay.tau))
        if isinstance(delay, Lag):
            said.append(f"the state {tau:.6g} ago")
        elif delay.lag == 0:
            said.append(f"the state held every {tau:.6g}")
        else:
            said.append(f"that {delay.lag} hold{'s' * (delay.lag > 1)} of {tau:.6g} before")
    return ", ".join(said) or "nothing"


def _stability(found: Fit) -> list[Html]:
    runs = found.long_run
    if isinstance(runs, str):
        return [element("p", runs)]
    exponents = ", ".join(f"{x:.4g}" for x in runs.exponents)
    about = (
        "From one knot, where the state is held, to the next the equation is a map. Its fixed "
        f"points are where the series could rest. {runs.sentence} Lyapunov exponents for one "
        f"period: {exponents}."
    )
    note = "Found by Newton’s method from many starts, of the first model of the ensemble."
    note += f" {runs.omission}" if runs.left_out else ""
    columns = ["states at the knots", "period", "multipliers", "which is"]
    table = show_table(columns, runs.rows(), "Fixed points and cycles", note)
    none = element("p", "No fixed point was found.")
    return [element("p", about), table if runs.orbits else none]


def _settings(found: Fit) -> Html:
    given = {"data": str(found.data)} | found.options.to_json()
    given |= {"column": list(found.table.names), "inputs": list(found.table.input_names)}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    fitted: dict[str, Any] = {"window": found.model.window_, "date": day(today)}
    return show_particulars(given | fitted, machine(), found.seconds)
