"""The command `lagrax fit`, from a table to an equation, a forecast and a report."""

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer

from .._solve.delays import Delay, Hold, Lag
from .._solve.solution import SolveError
from ..identify import Forecast, Identifier, IdentifyError
from ..identify._selection import Selection
from ..plotting._matplotlib import write_figures
from ..training._files import write_atomically
from ..training._launchers import launch
from ..training._machine import describe as machine, load
from .answers import (
    PAGE,
    FolderError,
    answering,
    check_folder,
    is_model_alone,
    note_new_folder,
    read_summary,
    write_summary,
)
from .command import (
    Json,
    Verbose,
    answer_paths,
    check_launcher,
    leaving_as_it_was,
    print_answer,
    print_json,
    takes,
)
from .fit_figures import draw_figures
from .fit_model import Fit, describe_held_out, describe_optimism, fit_equation
from .fit_options import FitError as FitError, FitOptions
from .fit_report import render_fit
from .fit_scores import QUIET, Score
from .fit_terms import warn_of_weak_terms
from .long_run import LongRun
from .table import Measurements, TableError, read_tables, write_table

# Columns whose errors are compared with simple forecasts on lines of their own.
MOST_COMPARED = 3

Task = tuple[Path, Path, FitOptions]


@takes(FitOptions)
def fit(
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA...", help="Measurements, with a header.")
    ],
    options: FitOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the answer. fit-DATA by default; fits for several tables."),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(help="Fit several tables here, or with ray on the workers of a cluster."),
    ] = "here",
    together: Annotated[
        bool, typer.Option("--together", help="Fit one equation to several tables.")
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Learn an equation from measurements, forecast, and report.

    DATA is a CSV, Excel (the first sheet) or Parquet file. Dates are counted in a unit that suits
    them, which the command names first; durations may have units of their own. Without --hold,
    --lag and --select the equation is an ordinary one. Inputs keep their last value during the
    forecast. --field library gives an equation that can be read. Each of several tables is fitted
    by itself, and has its answer in a folder of its name; --together fits one equation to all.
    """
    check_launcher(launcher)
    if len(data) > 1 and not together:
        tasks = list_tasks(data, out or Path("fits"), options)
        _fit_several(tasks, launcher, as_json, verbose)
        return
    folder = out or Path(f"fit-{data[0].stem}")
    with leaving_as_it_was(lambda: _say_where_model_is(folder)):
        summary, lines = fit_table(data, folder, options)
    print_answer(summary, lines, as_json, verbose)


# --- one table and several ------------------------------------------------------------------------


def fit_table(
    data: Path | Sequence[Path], out: Path, options: FitOptions
) -> tuple[dict[str, Any], list[str]]:
    """Fits one equation to a table, or to several, and writes the answer to the folder `out`.

    Returns the summary and the lines to print.
    """
    paths = [data] if isinstance(data, Path) else [*data]
    # A wrong request fails before anything is computed.
    check_folder(out, "fit")
    for package in ("matplotlib.figure", "optax", "jinja2", "plotly.offline", "safetensors"):
        load(package)
    tables = [table for path in paths for table in _read_named(path, options, len(paths) > 1)]
    _check_alike(paths, tables)
    name = paths[0] if len(paths) == 1 else Path(f"{len(paths)} tables")
    note = note_new_folder(out)
    result = fit_equation(name, options, tables, lambda model: _keep_model(model, out))
    lines = [*format_lines(result), *note]
    summary = write_answer(result, out)
    return summary | {"folder": str(out.resolve())}, lines


def _keep_model(model: Identifier, out: Path) -> None:
    """Saves a model before it is used, unless that would replace an earlier answer."""
    if is_model_alone(read_summary(out)):
        with answering(out) as folder:
            model.save(folder / "model")
            write_summary(folder, {"command": "fit", "precision": str(jnp.zeros(()).dtype)})


def _say_where_model_is(out: Path) -> str:
    """A sentence on a model that was saved before the command was stopped."""
    alone = (out / "model").is_dir() and is_model_alone(read_summary(out))
    return f"The fitted model is in {out / 'model'}." if alone else ""


def _read_named(path: Path, options: FitOptions, several: bool) -> list[Measurements]:
    """The series of a table; one of `several` tables names its series after itself."""
    tables = read_tables(path, options.roles)
    if not several:
        return tables
    name = lambda table: f"{path.stem} {table.group}".strip()
    return [dataclasses.replace(table, group=name(table)) for table in tables]


def _check_alike(paths: Sequence[Path], tables: Sequence[Measurements]) -> None:
    for table in tables[1:]:
        for what in ("names", "input_names", "unit"):
            first, other = getattr(tables[0], what), getattr(table, what)
            if first != other:
                raise FitError(
                    f"The tables {', '.join(p.name for p in paths)} differ in their "
                    f"{'unit of time' if what == 'unit' else 'columns'}, {first} and {other}; "
                    "expected the same in all: name it with --unit, --column or --input."
                )


def list_tasks(tables: Sequence[Path], out: Path, options: FitOptions) -> list[Task]:
    """The arguments of `fit_table` for each table. Each has a folder of its name below `out`."""
    names = [table.stem for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FitError(
            f"Two tables are called {twice[0]}, and answers go to folders of their names: rename "
            "one, or fit them one after the other."
        )
    return [(table.absolute(), out.absolute() / table.stem, options) for table in tables]


def try_fit(data: Path, out: Path, options: FitOptions) -> tuple[dict[str, Any] | None, str]:
    """Fits one of several tables.

    Returns its summary and the lines to print, or None and the error.
    """
    try:
        summary, lines = fit_table(data, out, options)
    except (FitError, FolderError, IdentifyError, SolveError, TableError, OSError) as error:
        return None, str(error)
    return summary, "\n".join(lines)


def _fit_several(tasks: Sequence[Task], launcher: Any, as_json: bool, verbose: bool) -> None:
    """Prints answers as they come. A table that fails is named, and the others continue."""
    summaries, failed = [], 0
    for number, (summary, lines) in launch(launcher, try_fit, tasks):
        name = tasks[number][0].name
        if summary is None:
            failed += 1
            print(f"{name}: failed: {lines}", file=sys.stderr)
            continue
        summaries.append(summary)
        doubt = [summary["doubt"]] if summary["doubt"] else []
        for line in [*(f"wrote {path}" for path in answer_paths(summary, verbose)), *doubt]:
            print(f"{name}: {line}", file=sys.stderr)
        if not as_json:
            print(*(f"{name}: {equation}" for equation in summary["equations"]), sep="\n")
    if as_json:
        print_json(summaries)
    elif summaries:
        print(*_list_scores(summaries), sep="\n")
    if failed:
        raise typer.Exit(1)


def _list_scores(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """A table of the errors of several fits, and of the best simple forecast of each column."""
    rows = [("table", "column", "error", "best simple forecast", "")]
    for summary in summaries:
        for score in summary["scores"]:
            known = {"standing still": score["standing_still"], **score["baselines"]}
            errors = {name: error for name, error in known.items() if error is not None}
            best = min(errors, key=errors.__getitem__, default=None)
            rows.append(
                (
                    Path(summary["folder"]).name,
                    score["name"],
                    "" if score["nrmse"] is None else f"{score['nrmse']:.3g}",
                    "" if best is None else f"{errors[best]:.3g} ({best})",
                    "doubtful" if summary["doubt"] else "",
                )
            )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return ["  ".join(f"{x:{w}}" for x, w in zip(r, widths, strict=True)).rstrip() for r in rows]


# --- the answer -----------------------------------------------------------------------------------


def write_answer(result: Fit, out: Path) -> dict[str, Any]:
    """Writes all results to the folder `out`, and returns the summary."""
    figures = draw_figures(result)
    with answering(out) as folder:
        result.model.save(folder / "model")
        _write_fit(folder / "fit.csv", result)
        if result.forecast is not None:
            trusted = result.doubt is None
            _write_forecast(folder / "forecast.csv", result.table, result.forecast, trusted)
        write_figures(folder, list(figures.values()))
        write_atomically(folder / PAGE, render_fit(result, figures))
        return write_summary(folder, summarise(result))


def _write_fit(path: Path, result: Fit) -> None:
    """Writes measurements and predictions, one series below the other."""
    columns: list[list[np.ndarray]] = []
    by = [result.options.by or "series"] if result.options.by or len(result.parts) > 1 else []
    for table, predicted, held_out in result.parts:
        group = [np.full(len(table.ts), table.group)] if by else []
        pairs = [x for pair in zip(table.ys.T, predicted.T, strict=True) for x in pair]
        later = (np.arange(len(table.ts)) >= held_out).astype(int)
        columns.append([*group, table.format_times(table.ts), *pairs, later])
    table = result.table
    names = [x for name in table.names for x in (name, f"{name}_predicted")]
    write_table(
        path,
        [*by, table.time_name, *names, "held_out"],
        [np.concatenate(part) for part in zip(*columns, strict=True)],
    )


def _write_forecast(path: Path, table: Measurements, forecast: Forecast, trusted: bool) -> None:
    """Writes the forecast; `trusted` is 0 throughout if the fit is doubtful."""
    parts = ("mean", "low", "high")
    names = [f"{name}_{part}" for name in table.names for part in parts]
    columns = [getattr(forecast, p)[:, i] for i in range(len(table.names)) for p in parts]
    flags = np.full(len(forecast.ts), int(trusted))
    times = table.format_times(forecast.ts)
    write_table(path, [table.time_name, *names, "trusted"], [times, *columns, flags])


def summarise(result: Fit) -> dict[str, Any]:
    """The results as JSON has them."""
    model, runs, table = result.model, result.long_run, result.table
    return {
        "command": "fit",
        "columns": list(table.names),
        "inputs": list(table.input_names),
        "left_out": list(table.left_out),
        "times": table.time_label,
        "unit": table.unit,
        "start": table.calendar.start.isoformat() if table.calendar else None,
        "precision": result.precision,
        "sampling": table.sampling,
        "missing": table.missing,
        "gaps": len(table.gaps),
        "series": len(result.parts),
        "seasons": [list(season) for season in table.seasons],
        "season": result.season.words if result.season else None,
        "notes": result.notes,
        "equations": result.equations,
        "symbols": result.symbols._asdict(),
        "terms": [_without_nan(t._asdict()) | {"weak": t.is_weak} for t in result.terms],
        "delays": [_delay_to_json(d) for d in model.delays_],
        "periods": model.periods_,
        "unsure": result.unsure,
        "scores": [_without_nan(s._asdict()) | {"verdict": s.verdict} for s in result.scores],
        "failure": result.failure,
        "doubt": result.doubt,
        "held_out": describe_held_out(result),
        "horizon": model.window_,
        "selection": _selection_to_json(result.selection),
        "long_run": runs.to_json() if isinstance(runs, LongRun) else {"sentence": runs},
        "options": {"data": str(result.data)} | result.options.to_json(),
        "seconds": result.seconds,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def _format_score(score: Score) -> str:
    spread = f" ± {score.spread:.2g}" if np.isfinite(score.spread) else ""
    others = ", ".join(f"{name}: {error:.4f}" for name, error in score.rivals.items())
    return f"  {score.name}: R² {score.r2:.4f}, nrmse {score.nrmse:.4f}{spread} ({others})"


def _without_nan(record: dict[str, Any]) -> dict[str, Any]:
    plain = lambda x: _without_nan(x) if isinstance(x, dict) else x
    is_number = lambda x: not isinstance(x, float) or np.isfinite(x)
    return {name: plain(value) if is_number(value) else None for name, value in record.items()}


def _selection_to_json(selection: Selection | None) -> list[dict[str, Any]] | None:
    if selection is None:
        return None
    return [
        {
            "candidate": candidate.name,
            "error": candidate.error,
            "needed": [_delay_to_json(delay) for delay in candidate.kept],
            "chosen": candidate is selection.best,
        }
        for candidate in selection.candidates
    ]


def _delay_to_json(delay: Delay) -> dict[str, Any]:
    kind = "lag" if isinstance(delay, Lag) else "hold"
    record = {"kind": kind, "tau": float(np.asarray(delay.tau))}
    return record | ({"lag": delay.lag} if isinstance(delay, Hold) else {})


def format_lines(result: Fit) -> list[str]:
    """The results as lines to print."""
    lines = [result.failure] if result.failure else []
    lines += [score.comparison for score in result.scores[:MOST_COMPARED]]
    lines += [str(result.selection)] if result.selection else []
    lines += result.equations
    lines += [f"where {result.symbols.legend}"] if result.symbols.legend else []
    weak = warn_of_weak_terms(result.terms)
    lines += [weak] if weak else []
    table, model = result.table, result.model
    if model.periods_:
        periods = ", ".join(table.with_unit(float(f"{p:.6g}")) for p in model.periods_)
        lines.append(f"Learned period: {periods}")
    lines += result.unsure
    lines.append(
        f"Held out: {describe_held_out(result)}. From {result.scores[0].starts} starts there, at "
        f"most {model.window_} samples ahead{describe_optimism(result)}:"
    )
    lines += [_format_score(score) for score in result.scores]
    lines += [s.verdict for s in result.scores if s.movement < QUIET]
    lines += [result.doubt] if result.doubt else []
    runs = result.long_run
    return lines + (runs.lines() if isinstance(runs, LongRun) else [runs])
