"""The command `lagrax predict`, which applies a fitted equation to another table."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer

from ..identify import Identifier
from ..plotting import Figure, Line, Mark, Points
from ..plotting._matplotlib import write_figures
from ..training._machine import load
from .answers import (
    answering,
    check_folder,
    is_model_alone,
    note_new_folder,
    read_summary,
    write_summary,
)
from .command import Json, Verbose, leaving_as_it_was, print_answer
from .fit_figures import MOST_PANELS, MOST_SERIES, draw_times, find_extremes
from .fit_model import States, needs_float64
from .fit_options import FitError
from .fit_seasons import repeat_seasons
from .table import Measurements, Roles, read_tables, write_table
from .units import Calendar, parse_period

FitFolder = Annotated[Path, typer.Argument(metavar="FIT", help="Folder of a fit.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="Table with the columns of the fit.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the answer. predict-DATA by default.")]
Horizon = Annotated[
    int | None,
    typer.Option(help="Start anew from measurements after so many samples.", min=1),
]


class Prediction(NamedTuple):
    """One series and what the equation predicts of it, NaN up to its start."""

    table: Measurements
    predicted: States


def predict(
    fit: FitFolder,
    data: Data,
    out: Out = None,
    horizon: Horizon = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict another table by a fitted equation.

    DATA has the columns of the table that FIT was learned from: times, inputs, and states. Each
    series is predicted from its first measured state to its end, with its own inputs. States may be
    missing after the first row. Where they are measured, the error is reported.
    """
    with leaving_as_it_was():
        summary, lines = predict_table(fit, data, out or Path(f"predict-{data.stem}"), horizon)
    print_answer(summary, lines, as_json, verbose)


def predict_table(
    fit: Path, data: Path, out: Path, horizon: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Predicts a table and writes the answer to the folder `out`."""
    check_folder(out, "predict")
    load("matplotlib.figure")
    fitted = read_summary(fit)
    if fitted.get("command") != "fit":
        raise FitError(f"{fit} is not the folder of a fit; expected one that `lagrax fit` wrote.")
    if is_model_alone(fitted):
        raise FitError(
            f"{fit} holds a model alone, since the command was stopped before it wrote the rest; "
            "expected a whole answer: run that `lagrax fit` again."
        )
    tables = read_like(data, fitted)
    exact = fitted.get("precision") == "float64" or jnp.zeros(()).dtype == jnp.float64
    with jax.enable_x64(exact or needs_float64(tables)):
        model = Identifier.load(fit / "model")
        predictions = [_predict_series(model, table, horizon) for table in tables]
    errors = _measure(predictions)
    lines = [
        f"{name}: rmse {error['rmse']:.4g}, R² {error['r2']:.4f}" for name, error in errors.items()
    ]
    lines = lines or ["No later state is measured, so there is no error to report."]
    lines += note_new_folder(out)
    with answering(out) as folder:
        _write_predictions(folder / "prediction.csv", predictions, fitted["options"].get("by"))
        write_figures(folder, [_draw(predictions)])
        summary = {
            "command": "predict",
            "fit": str(fit),
            "data": str(data),
            "series": len(tables),
            "horizon": horizon,
            "errors": errors,
        }
        summary = write_summary(folder, summary)
    return summary | {"folder": str(out.resolve())}, lines


def read_like(data: Path, fitted: dict[str, Any]) -> list[Measurements]:
    """The series of a table with the roles of the table that was fitted."""
    options = fitted["options"]
    roles = Roles(
        options.get("time"),
        fitted["columns"],
        options.get("inputs") or (),
        fitted["unit"],
        by=options.get("by"),
        date_format=options.get("date_format"),
        dt=parse_period(str(options["dt"])) if options.get("dt") else None,
    )
    tables = read_tables(data, roles, to_learn=False)
    seasons = [(float(length), float(pairs)) for length, pairs in fitted["seasons"]]
    return [repeat_seasons(t, seasons, _count_origin(t, fitted["start"])) for t in tables]


def _count_origin(table: Measurements, start: str | None) -> float:
    """The time of the first row, counted from the start of the table that was fitted."""
    if start is None or table.calendar is None:
        return 0.0
    first = datetime.datetime.fromisoformat(start)
    zone = table.calendar.start.tzinfo
    if (first.tzinfo is None) != (zone is None):
        first = first.replace(tzinfo=zone)
    calendar = Calendar.from_dates([first, table.calendar.start], table.unit)
    return float(calendar.count([table.calendar.start])[0])


def _predict_series(model: Identifier, table: Measurements, horizon: int | None) -> Prediction:
    inputs = table.inputs if table.input_names else None
    known = np.flatnonzero(np.isfinite(table.ys).all(axis=1))
    if not known.size or known[0] == len(table.ts) - 1:
        raise FitError(
            f"{table.group or 'The table'} has no row with all states known and a row after it; "
            "expected one to start from: fill in the first row."
        )
    predicted = np.array(
        model.predict(table.ts, table.ys, inputs, horizon=horizon or len(table.ts)), float
    )
    start = model._model.find_first_start(model._read_series(table.ts, table.ys, inputs, None)[0])
    predicted[: start + 1] = np.nan
    return Prediction(table, predicted)


def _measure(predictions: Sequence[Prediction]) -> dict[str, dict[str, float]]:
    """The error of each column over all series; of columns without later values none."""
    errors = {}
    for j, name in enumerate(predictions[0].table.names):
        measured = np.concatenate([p.table.ys[:, j] for p in predictions])
        predicted = np.concatenate([p.predicted[:, j] for p in predictions])
        both = np.isfinite(measured) & np.isfinite(predicted)
        if both.any():
            square = float(np.mean((predicted - measured)[both] ** 2))
            variance = float(np.var(measured[both]))
            r2 = 1 - square / variance if variance > 0 else float("nan")
            errors[name] = {"rmse": square**0.5, "r2": r2, "samples": int(both.sum())}
    return errors


def _write_predictions(path: Path, predictions: Sequence[Prediction], by: str | None) -> None:
    first = predictions[0].table
    names = [x for name in first.names for x in (name, f"{name}_predicted")]
    rows = []
    for table, predicted in predictions:
        group = [np.full(len(table.ts), table.group)] if by else []
        pairs = [x for pair in zip(table.ys.T, predicted.T, strict=True) for x in pair]
        rows.append([*group, table.format_times(table.ts), *pairs])
    columns = [np.concatenate(part) for part in zip(*rows, strict=True)]
    write_table(path, [*([by] if by else []), first.time_name, *names], columns)


def _draw(predictions: Sequence[Prediction]) -> Figure:
    table = predictions[0].table
    panels = []
    for j, name in enumerate(table.names[:MOST_PANELS]):
        marks: list[Mark] = []
        for part, predicted in predictions[:MOST_SERIES]:
            dots, turns = find_extremes(part.ys[:, j]), find_extremes(predicted[:, j])
            marks.append(Points(part.ts[dots], part.ys[dots, j], "measured", "grey", 3.0))
            marks.append(Line(part.ts[turns], predicted[turns, j], "predicted", width=1))
        panels.append(draw_times(marks, table, name))
    return Figure(
        "prediction",
        "Each series as the equation predicts it from its first measured state.",
        panels,
        1 if len(panels) == 1 else 2,
    )
