"""`lagrax fit`: from a CSV file to an equation, a forecast and a report."""

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._solve.delays import Delay, Hold, Lag
from .._solve.solution import SolveError
from ..identify import Forecast, IdentifyError
from ..training._files import write_atomically
from ..training._machine import describe as machine, load
from .answers import PAGE, FolderError, answering, check_folder, write_figures, write_summary
from .fit_model import FIELDS as FIELDS, Fit, FitError as FitError, Request as Request, find, times
from .fit_report import figures, page_of
from .long_run import LongRun
from .table import Table, TableError, read_table, write_table


def fit(request: Request) -> tuple[dict[str, Any], list[str]]:
    """Does what is asked and writes the answer: the summary, and lines to be printed."""
    # What is wrong with the request is said before it takes minutes to find out.
    check_folder(request.out, "fit")
    for package in ("matplotlib.figure", "optax", "plotly.offline", "safetensors"):
        load(package)
    table = read_table(request.data, request.time, request.columns or None, inputs=request.inputs)
    found = find(request, table)
    summary = _write(found)
    return summary | {"folder": str(request.out.resolve())}, _told(found)


def fits(request: Request, tables: Sequence[Path], out: Path) -> list[Request]:
    """The same request for each of several tables, with an answer of its own below `out`."""
    names = [table.stem for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FitError(
            f"Two tables are called {twice[0]}, and answers go to folders of their names: rename "
            "one, or fit them one after the other."
        )
    return [
        dataclasses.replace(request, data=table.absolute(), out=out.absolute() / table.stem)
        for table in tables
    ]


def fit_one(request: Request) -> tuple[dict[str, Any] | None, str]:
    """One of many fits: its summary, or None and what went wrong."""
    try:
        summary, lines = fit(request)
    except (FitError, FolderError, IdentifyError, SolveError, TableError, OSError) as error:
        return None, str(error)
    return summary, "\n".join(lines)


def _write(found: Fit) -> dict[str, Any]:
    drawn = figures(found)
    table, predicted = found.table, found.predicted
    later = np.arange(len(table.ts)) >= found.held_out
    with answering(found.request.out) as folder:
        found.model.save(folder / "model")
        columns = [x for pair in zip(table.ys.T, predicted.T, strict=True) for x in pair]
        names = [x for name in table.names for x in (name, f"{name}_predicted")]
        write_table(
            folder / "fit.csv",
            [table.time_name, *names, "held_out"],
            [times(table, table.ts), *columns, later.astype(int)],
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
    write_table(path, [table.time_name, *names], [times(table, forecast.ts), *columns])


def _summary(found: Fit) -> dict[str, Any]:
    request, model = found.request, found.model
    options = {
        k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(request).items()
    }
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
        "held_out_from": str(times(found.table, found.table.ts)[found.held_out]),
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
        "options": options,
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
    after = times(found.table, found.table.ts)[found.held_out]
    lines.append(f"On the held-out end, from {after} on, at most {found.model.window_} ahead:")
    lines += [
        f"  {s.name}: R² {s.r2:.4f}, nrmse {s.nrmse:.4f} (standing still: {s.standing_still:.4f})"
        for s in found.scores
    ]
    lines += [found.doubt] if found.doubt else []
    runs = found.long_run
    return lines + (runs.lines() if isinstance(runs, LongRun) else [runs])
