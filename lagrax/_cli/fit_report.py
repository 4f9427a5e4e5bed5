"""The page of a fit."""

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._solve.delays import Delay, Lag
from ..plotting import Figure
from ..plotting._page import day, render_page
from ..training._machine import describe as describe_machine
from .fit_model import Fit, describe_future, describe_held_out, describe_optimism
from .long_run import LongRun
from .table import Measurements

TEMPLATE = Path(__file__).with_name("templates") / "fit.html"


def render_fit(result: Fit, figures: dict[str, Figure]) -> str:
    """Renders the page with all results."""
    table, model = result.table, result.model
    runs = result.long_run if isinstance(result.long_run, LongRun) else None
    return render_page(
        TEMPLATE,
        title=f"{result.data.name}: a fitted equation",
        result=result,
        samples=sum(len(part.table.ts) for part in result.parts),
        table=table,
        model=model,
        figures=figures,
        first=table.format_time(table.ts[0]),
        last=table.format_time(table.ts[-1]),
        held_out=describe_held_out(result),
        optimism=describe_optimism(result),
        future=describe_future(result),
        lines=[_split_equation(equation) for equation in result.equations],
        rivals=[*result.scores[0].rivals],
        columns=_list_columns(result),
        scores=[_format_score(score) for score in result.scores],
        look_back=_describe_delays(model.delays_, table),
        holds=any(not isinstance(delay, Lag) for delay in model.delays_),
        periods=", ".join(table.with_unit(float(f"{p:.6g}")) for p in model.periods_),
        terms=_list_terms(result),
        candidates=_list_candidates(result),
        runs=runs,
        exponents=", ".join(f"{x:.4g}" for x in runs.exponents) if runs else "",
        settings=_list_settings(result),
        machine=describe_machine(),
    )


def _list_columns(result: Fit) -> list[list[Any]]:
    """A row about the values of each column."""
    rows = []
    columns = np.concatenate([part.table.ys for part in result.parts]).T
    for name, values in zip(result.table.names, columns, strict=True):
        known = values[np.isfinite(values)]
        low, mean, high = (f"{x:.4g}" for x in (known.min(), known.mean(), known.max()))
        rows.append([name, len(known), len(values) - len(known), low, mean, high])
    return rows


def _format_score(score: Any) -> list[str]:
    spread = f" ± {score.spread:.2g}" if np.isfinite(score.spread) else ""
    others = [f"{error:.4f}" for error in score.rivals.values()]
    return [score.name, f"{score.r2:.4f}", f"{score.nrmse:.4f}{spread}", *others]


def _split_equation(equation: str) -> list[str]:
    """An equation in parts, within which a line should not break."""
    left, right = equation.split(" = ", 1)
    first, *others = re.split(r" (?=[+−] )", right)
    return [f"{left} = {first}", *others]


def _describe_delays(delays: Sequence[Delay], table: Measurements) -> str:
    """The delays in words."""
    words = []
    for delay in delays:
        tau = table.with_unit(float(f"{float(np.asarray(delay.tau)):.6g}"))
        if isinstance(delay, Lag):
            words.append(f"the state {tau} ago")
        elif delay.lag == 0:
            words.append(f"the state held every {tau.removeprefix('1 ')}")
        else:
            words.append(f"that {delay.lag} hold{'s' * (delay.lag > 1)} of {tau} before")
    return ", ".join(words) or "nothing"


def _list_terms(result: Fit) -> list[list[str]]:
    prime = "" if len(result.scores) == 1 else "{}′: "
    support = lambda term: "weak" if term.is_weak else "good"
    return [
        [
            prime.format(t.state) + t.text,
            t.number,
            f"{t.spread:.2g}",
            support(t),
        ]
        for t in result.terms
        if np.isfinite(t.spread)
    ]


def _list_candidates(result: Fit) -> list[list[str]]:
    if result.selection is None:
        return []
    return [
        [
            candidate.name,
            f"{candidate.error:.4g}",
            _describe_delays(candidate.kept, result.table),
            "chosen" if candidate is result.selection.best else "",
        ]
        for candidate in result.selection.candidates
    ]


def _list_settings(result: Fit) -> dict[str, Any]:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    options = {"data": str(result.data)} | result.options.to_json()
    options |= {"column": list(result.table.names), "inputs": list(result.table.input_names)}
    return options | {"window": result.model.window_, "date": day(today)}
