"""`lagrax fit`: from a CSV file to an equation, a forecast and a report."""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .._solve.delays import Delay, Hold, Lag
from .._solve.solution import SolveError
from ..identify import Forecast, IdentifyError
from ..training._files import write_atomically
from ..training._launchers import launch
from ..training._machine import describe as machine, load
from .answers import PAGE, FolderError, answering, check_folder, write_figures, write_summary
from .command import Json, check_launcher, leaving_as_it_was, print_answer, print_json, takes
from .fit_model import Fit, find
from .fit_options import FitError as FitError, FitOptions
from .fit_report import figures, page_of
from .long_run import LongRun
from .table import Table, TableError, read_table, write_table

Task = tuple[Path, Path, FitOptions]


@takes(FitOptions)
def fit(
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA.csv...", help="Measurements, with a header.")
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
    as_json: Json = False,
) -> None:
    """Learn an equation from measurements, forecast, and report.

    Times and periods are in the unit of the time column, in days where that has dates. Without
    --hold, --lag and --select the equation is an ordinary one. Inputs stay at their last value
    during the forecast. --field library gives an equation that can be read. Each of several tables
    is fitted by itself, and has its answer in a folder of its name.
    """
    check_launcher(launcher)
    if len(data) > 1:
        _fit_several(list_tasks(data, out or Path("fits"), options), launcher, as_json)
        return
    with leaving_as_it_was():
        summary, lines = fit_table(data[0], out or Path(f"fit-{data[0].stem}"), options)
    print_answer(summary, lines, as_json)


# --- one table and several ------------------------------------------------------------------------


def fit_table(data: Path, out: Path, options: FitOptions) -> tuple[dict[str, Any], list[str]]:
    """Fits an equation to one table and writes the answer to the folder `out`.

    Returns the summary and the lines to print.
    """
    # A wrong request fails before anything is computed.
    check_folder(out, "fit")
    for package in ("matplotlib.figure", "optax", "plotly.offline", "safetensors"):
        load(package)
    table = read_table(
        data, options.time, options.column or None, options.inputs or (), options.unit
    )
    found = find(data, options, table)
    summary = write_answer(found, out)
    return summary | {"folder": str(out.resolve())}, _told(found)


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


def _fit_several(tasks: Sequence[Task], launcher: Any, as_json: bool) -> None:
    """Prints answers as they come. A table that fails is named, and the others continue."""
    summaries, failed = [], 0
    for number, (summary, lines) in launch(launcher, try_fit, tasks):
        name = tasks[number][0].name
        failed += summary is None
        summaries += [summary] if summary else []
        where = f"wrote {summary['folder']}" if summary else f"failed: {lines}"
        print(f"{name}: {where}", file=sys.stderr)
        if summary and summary["doubt"]:
            print(f"{name}: {summary['doubt']}", file=sys.stderr)
        if summary and not as_json:
            print(*(f"{name}: {equation}" for equation in summary["equations"]), sep="\n")
    if as_json:
        print_json(summaries)
    if failed:
        raise typer.Exit(1)


# --- the answer -----------------------------------------------------------------------------------


def write_answer(found: Fit, out: Path) -> dict[str, Any]:
    drawn = figures(found)
    table, predicted = found.table, found.predicted
    later = np.arange(len(table.ts)) >= found.held_out
    with answering(out) as folder:
        found.model.save(folder / "model")
        columns = [x for pair in zip(table.ys.T, predicted.T, strict=True) for x in pair]
        names = [x for name in table.names for x in (name, f"{name}_predicted")]
        write_table(
            folder / "fit.csv",
            [table.time_name, *names, "held_out"],
            [table.format_times(table.ts), *columns, later.astype(int)],
        )
        if found.forecast is not None:
            _write_forecast(folder / "forecast.csv", table, found.forecast)
        write_figures(folder, list(drawn.values()))
        write_atomically(folder / PAGE, page_of(found, drawn))
        return write_summary(folder, _summary(found))


def _write_forecast(path: Path, table: Table, forecast: Forecast) -> None:
    parts = ("mean", "low", "high")
    names = [f"{name}_{part}" for name in table.names for part in parts]
    columns = [getattr(forecast, p)[:, i] for i in range(len(table.names)) for p in parts]
    write_table(path, [table.time_name, *names], [table.format_times(forecast.ts), *columns])


def _summary(found: Fit) -> dict[str, Any]:
    options, model = found.options, found.model
    runs = found.long_run
    selection = found.selection
    return {
        "command": "fit",
        "columns": list(found.table.names),
        "inputs": list(found.table.input_names),
        "left_out": list(found.table.left_out),
        "equations": found.equations,
        "delays": [_described(d) for d in model.delays_],
        "periods": model.periods_,
        "unsure": found.unsure,
        "scores": [{k: _finite(v) for k, v in s._asdict().items()} for s in found.scores],
        "doubt": found.doubt,
        "held_out_from": str(found.table.format_times(found.table.ts)[found.held_out]),
        "horizon": model.window_,
        "selection": [
            {
                "candidate": c.name,
                "error": c.error,
                "needed": [_described(d) for d in c.kept],
                "chosen": c is selection.best,
            }
            for c in selection.candidates
        ]
        if selection
        else None,
        "long_run": runs.to_json() if isinstance(runs, LongRun) else {"sentence": runs},
        "options": {"data": str(found.data)} | options.to_json(),
        "seconds": found.seconds,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _described(delay: Delay) -> dict[str, Any]:
    found = {
        "kind": "lag" if isinstance(delay, Lag) else "hold",
        "tau": float(np.asarray(delay.tau)),
    }
    return found | ({"lag": delay.lag} if isinstance(delay, Hold) else {})


def _told(found: Fit) -> list[str]:
    lines = [str(found.selection)] if found.selection else []
    lines += found.equations
    if found.model.periods_:
        lines.append(f"Learned period: {', '.join(f'{p:.6g}' for p in found.model.periods_)}")
    lines += found.unsure
    after = found.table.format_times(found.table.ts)[found.held_out]
    lines.append(f"On the held-out end, from {after} on, at most {found.model.window_} ahead:")
    lines += [
        f"  {s.name}: R² {s.r2:.4f}, nrmse {s.nrmse:.4f} (standing still: {s.standing_still:.4f})"
        for s in found.scores
    ]
    lines += [found.doubt] if found.doubt else []
    runs = found.long_run
    return lines + (runs.lines() if isinstance(runs, LongRun) else [runs])
