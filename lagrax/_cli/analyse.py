"""Analyses the long run of an equation, and how a parameter changes it (`lagrax analyse`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from .._solve.arguments import MOST_COUNT
from ..plotting._matplotlib import write_figures
from ..systems import SYSTEMS
from ..training._files import write_atomically
from ..training._machine import describe as machine
from .analyse_diagram import (
    CLASSICAL,
    LEARNED,
    DiagramSize,
    Finding,
    find_diagram,
    format_states,
)
from .analyse_equation import (
    AnalysedEquation,
    AnalyseError as AnalyseError,
    ParameterRange,
    check_ranges,
    describe_parameter,
    find_equation,
    parameters_of,
)
from .analyse_lagged import find_branches
from .analyse_linear import find_multipliers
from .analyse_stability import find_stable_pairs
from .answers import answering, check_folder, note_new_folder, write_summary
from .command import (
    Json,
    Verbose,
    add_options,
    bad,
    leaving_as_it_was,
    print_answer,
)
from .long_run import precisely
from .table import write_table

# The values of each of two parameters.
GRID, LAGGED_GRID = 120, 60
# More do not fit into memory.
MOST_STATES = 50_000_000

# --- the command ----------------------------------------------------------------------------------


class CommandWithRanges(typer.core.TyperCommand):
    """A command with a repeatable option `--param NAME LOW HIGH`. Typer's repeatable options take
    one value each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined, rest = [], list(args)
        while rest:
            first = rest.pop(0)
            if first == "--param":
                first = "--param=" + " ".join(rest[:3])
                rest = rest[3:]
            joined.append(first)
        return super().parse_args(ctx, joined)


def _parse_range(text: str) -> ParameterRange:
    try:
        name, low, high = text.split()
        return ParameterRange(name, float(low), float(high))
    except ValueError:
        raise bad(
            f"--param {text}: expected a parameter and two numbers, such as --param a 1.5 3.5."
        ) from None


def _own_options() -> dict[str, tuple[Any, Any, Any]]:
    """One option for each parameter that a system has."""
    systems = list(SYSTEMS)
    kinds = {p: type(default) for s in systems for p, default in parameters_of(s).items()}
    owners = {p: [s for s in systems if p in parameters_of(s)] for p in kinds}
    return {
        p: (kind | None, typer.Option(f"--{p}", help=_help_of(p, owners[p])), None)
        for p, kind in kinds.items()
    }


def _help_of(parameter: str, owners: Sequence[str]) -> str:
    about: dict[str, list[str]] = {}
    for owner in owners:
        about.setdefault(describe_parameter(owner, parameter), []).append(owner)
    text = "; ".join(f"{words}, of {', '.join(those)}" for words, those in about.items())
    return f"{text[0].upper()}{text[1:]}."


Count = lambda text: typer.Option(help=text, min=1, max=MOST_COUNT)


@add_options(_own_options())
def analyse(
    target: Annotated[
        str,
        typer.Argument(
            metavar="EQUATION",
            help=f"{', '.join(SYSTEMS)}, or a folder that `lagrax fit` wrote.",
        ),
    ],
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME LOW HIGH",
            help=(
                "Parameter to vary and its range. An equation that is linear or has lags takes two."
            ),
        ),
    ] = None,
    values: Annotated[
        int | None,
        Count(
            "Number of values: 2000; 400 of a learned equation; 120 of each of two, 60 with lags."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        Count("Number of iterates to keep for each value: 500; 200 of a learned equation."),
    ] = None,
    skip: Annotated[
        int | None,
        Count("Number of iterates to leave out before: 1000; 400 of a learned equation."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the answer. analysis-EQUATION by default.")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
    **parameters: Any,
) -> None:
    """Analyse the long run of an equation.

    With holds, find its fixed points, multipliers and Lyapunov exponents; over one parameter, draw
    a bifurcation diagram, and over two of a linear equation the exact region of stability. With
    lags, find its equilibria, characteristic roots and the cycle; over one parameter, follow the
    equilibria and cycles, and over two draw the stability chart. A learned equation has the
    parameter tau.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    ranges = [_parse_range(text) for text in param or ()]
    with leaving_as_it_was():
        summary, lines = analyse_equation(
            target, ranges, given, out, values=values, keep=keep, skip=skip
        )
    print_answer(summary, lines, as_json, verbose)


# --- the answer -----------------------------------------------------------------------------------


def analyse_equation(
    target: str,
    ranges: Sequence[ParameterRange],
    given: Mapping[str, int | float],
    out: Path | None,
    *,
    values: int | None = None,
    keep: int | None = None,
    skip: int | None = None,
    progress: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Analyses an equation and writes the answer to the folder `out`.

    Returns the summary and the lines to print.
    """
    with precisely():
        equation = find_equation(target, given)
        check_ranges(equation, ranges)
        folder = out or Path(f"analysis-{equation.name}")
        check_folder(folder, "analyse")
        usual = CLASSICAL if equation.model is None else LEARNED
        asked = {"values": values, "keep": keep, "skip": skip}
        size = dataclasses.replace(usual, **{k: v for k, v in asked.items() if v is not None})
        _check_size(ranges, values, size)
        run = equation.find_long_run()
        found = _analyse_ranges(equation, ranges, values, size, progress)
        summary = {
            "command": "analyse",
            "subject": equation.name,
            "parameters": equation.parameters,
            **run.to_json(),
            **found.summary,
            "machine": machine(),
        }
        lines = note_new_folder(folder)
        with answering(folder) as inside:
            write_figures(inside, [*found.figures, *run.figures])
            for name, (names, columns) in found.tables.items():
                write_table(inside / name, names, columns)
            if found.diagram is not None:
                text = format_states(equation.states, ranges[0].name, found.diagram)
                write_atomically(inside / "states.csv", text)
            summary = write_summary(inside, summary)
    values_of = ", ".join(f"{k} = {v:g}" for k, v in equation.parameters.items())
    described = [f"{equation.name}, {values_of}:", *(f"  {line}" for line in run.lines())]
    return summary | {"folder": str(folder.resolve())}, [*described, *found.lines, *lines]


def _check_size(ranges: Sequence[ParameterRange], values: int | None, size: DiagramSize) -> None:
    grid = len(ranges) == 2
    each = (values or GRID) if grid else size.values
    number = each**2 if grid else each * size.keep
    if ranges and number > MOST_STATES:
        options = f"--values {each}" + ("" if grid else f" with --keep {size.keep}")
        what = "pairs" if grid else "states"
        raise AnalyseError(
            f"{options} makes {number:.3g} {what}; expected at most {MOST_STATES:,}."
        )


def _analyse_ranges(
    equation: AnalysedEquation,
    ranges: Sequence[ParameterRange],
    values: int | None,
    size: DiagramSize,
    progress: bool,
) -> Finding:
    if not ranges:
        return Finding({}, [], [], {})
    if len(ranges) == 2:
        values = values or (LAGGED_GRID if equation.has_lags else GRID)
        return find_stable_pairs(equation, *ranges, resolution=values)
    if equation.has_lags:
        return find_branches(equation, ranges[0], progress)
    if equation.is_linear:
        return find_multipliers(equation, ranges[0], size.values)
    return find_diagram(equation, ranges[0], size, progress)
