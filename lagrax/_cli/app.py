"""The command `lagrax`.

Answers go to stdout, progress and errors to stderr. Bad input ends with one sentence and exit code
2, what fails on the way with one and 1, Ctrl-C with 130 and how to continue.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
import typer.core

from .._solve.arguments import MOST_COUNT
from .._solve.solution import SolveError
from ..identify import IdentifyError
from ..systems import SYSTEMS, System
from ..training import TrainingError, _machine
from ..training._errors import RunError
from ..training._launchers import WorkerDied
from .analyse import (
    AnalyseError,
    Span,
    analyse as analyse_equation,
    held_systems,
    parameters_of,
    scalars_of,
)
from .answers import FolderError
from .command import Json, bad, in_order, leaving_as_it_was, print_answer, print_json, run_app
from .explore_sliders import ExploreError
from .fit import FitError, fit
from .simulate import SimulateError, simulate as simulate_equation
from .table import TableError

app = typer.Typer(
    cls=in_order("simulate", "analyse", "explore", "fit", "info"),
    help="Delay differential equations for JAX, and the neural networks made of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


# What is wrong with what was asked for, and what goes wrong on the way.
REFUSED = (
    AnalyseError,
    ExploreError,
    FitError,
    FolderError,
    _machine.MissingExtra,
    RunError,
    SimulateError,
    TableError,
)
FAILED = (IdentifyError, SolveError, TrainingError, WorkerDied, OSError)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code."""
    return run_app(app, "lagrax", arguments, REFUSED, FAILED)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        print(f"lagrax {_machine.versions()['lagrax']}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it, and end."
        ),
    ] = None,
) -> None:
    del version


# --- fit ------------------------------------------------------------------------------------------


app.command("fit")(fit)


# --- info -----------------------------------------------------------------------------------------


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, devices, and which optional parts are present."""
    found = _machine.versions()
    devices = [f"{d.platform}: {d.device_kind}" for d in jax.devices()]
    if as_json:
        print_json(_machine.describe() | {"versions": found, "devices": devices})
        return
    for package, version in found.items():
        extra = _machine.PACKAGES.get(package)
        absent = f'absent; pip install "lagrax[{extra}]"'
        print(f"{package:14}{version or absent}")
    for device in devices:
        print(f"{'device':14}{device}")
    print(f"{'python':14}{_machine.describe()['python']}, {os.cpu_count()} cores")


# --- simulate -------------------------------------------------------------------------------------

simulate = typer.Typer(
    help="Solve a classical equation and draw it.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(simulate, name="simulate")

SUMMARIES = {
    "population": "A population that feels its crowding once a season.",
    "linear": "A linear system with held arguments.",
    "digital-control": "A plant under a digital controller.",
    "held-oscillator": "An oscillator pushed by its own held position.",
    "hutchinson": "The logistic equation with a lag.",
    "mackey-glass": "Blood cells that are made late.",
}


def _simulate_command(name: str, system: type[System]) -> Callable[..., None]:
    """A command with one option for each parameter of `system`."""
    option = inspect.Parameter.KEYWORD_ONLY
    common = {
        "t1": (float, typer.Option(help="The end; it starts at 0."), 20.0),
        "y0": (str | None, typer.Option(help="The first state, with commas between."), None),
        "samples": (int, typer.Option(help="How many samples.", min=2, max=1_000_000), 401),
        "out": (Path | None, typer.Option(help="The picture: .png, .pdf, .svg."), None),
        "csv": (Path | None, typer.Option(help="The samples as CSV."), None),
        "as_json": (bool, typer.Option("--json", help="Print the answer as JSON."), False),
    }
    own = {
        n: (type(default), typer.Option(f"--{n}", help=f"The equation's {n}."), default)
        for n, default in scalars_of(system).items()
    }

    def command(as_json: bool, **options: Any) -> None:
        parameters = {n: options.pop(n) for n in own}
        summary, lines = simulate_equation(name, parameters, **options)
        if as_json:
            print_json(summary)
            return
        for line in [*lines, *(f"Wrote {path}" for path in summary["files"])]:
            print(line)

    signature = [
        inspect.Parameter(n, option, default=default, annotation=Annotated[kind, about])
        for n, (kind, about, default) in (own | common).items()
    ]
    command.__signature__ = inspect.Signature(signature)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in signature}
    command.__doc__ = f"{SUMMARIES[name]} See lagrax.systems.{system.__name__}."
    return command


for _name, _system in SYSTEMS.items():
    simulate.command(_name)(_simulate_command(_name, _system))


# --- analyse --------------------------------------------------------------------------------------


class _WithSpans(typer.core.TyperCommand):
    """A command with `--param NAME LOW HIGH`, as often as one likes: typer has lists of single
    values, and of nothing else."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined, rest = [], list(args)
        while rest:
            first = rest.pop(0)
            if first == "--param":
                first = "--param=" + " ".join(rest[:3])
                rest = rest[3:]
            joined.append(first)
        return super().parse_args(ctx, joined)


def _span(text: str) -> Span:
    try:
        name, low, high = text.split()
        return Span(name, float(low), float(high))
    except ValueError:
        raise bad(
            f"--param {text}: expected a parameter and two numbers, such as --param a 1.5 3.5."
        ) from None


def _analyse_command() -> Callable[..., None]:
    """A command with one option for each parameter that a system with holds has."""
    option = inspect.Parameter.KEYWORD_ONLY
    systems = held_systems()
    about = f"{', '.join(systems)}, or a folder that `lagrax fit` wrote."
    whole = lambda text: typer.Option(help=text, min=1, max=MOST_COUNT)
    common = {
        "target": (str, typer.Argument(metavar="EQUATION", help=about), inspect.Parameter.empty),
        "param": (
            list[str] | None,
            typer.Option(metavar="NAME LOW HIGH", help="What to vary; two of a linear equation."),
            None,
        ),
        "values": (
            int | None,
            whole("How many values of each (2000; learned 400; of two 120)."),
            None,
        ),
        "keep": (
            int | None,
            whole("How many iterates to keep for each value (500; learned 200)."),
            None,
        ),
        "skip": (int | None, whole("How many to leave out before (1000; learned 400)."), None),
        "out": (Path | None, typer.Option(help="The folder (analysis-EQUATION)."), None),
        "as_json": (bool, typer.Option("--json", help="Print the answer as JSON."), False),
    }
    kinds = {p: type(default) for s in systems for p, default in parameters_of(s).items()}
    who = {p: ", ".join(s for s in systems if p in parameters_of(s)) for p in kinds}
    own = {
        p: (kind | None, typer.Option(f"--{p}", help=f"The {p} of {who[p]}."), None)
        for p, kind in kinds.items()
    }

    def command(target: str, param: list[str] | None, as_json: bool, **options: Any) -> None:
        """See where an equation with holds goes in the long run.

        Its fixed points, multipliers and Lyapunov exponents; over one parameter a bifurcation
        diagram, over two of a linear equation the exact region of stability. A learned equation
        has the parameter tau.
        """
        given = {n: x for n in own if (x := options.pop(n)) is not None}
        spans = [_span(text) for text in param or ()]
        with leaving_as_it_was():
            summary, lines = analyse_equation(target, spans, given, **options)
        print_answer(summary, lines, as_json)

    signature = [
        inspect.Parameter(n, option, default=default, annotation=Annotated[kind, about])
        for n, (kind, about, default) in (common | own).items()
    ]
    command.__signature__ = inspect.Signature(signature)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in signature}
    return command


app.command("analyse", cls=_WithSpans)(_analyse_command())


# --- explore --------------------------------------------------------------------------------------


@app.command()
def explore(
    port: Annotated[
        int, typer.Option(help="That of the page (0: any that is free).", min=0, max=65535)
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, or print its address.")
    ] = True,
) -> None:
    """Move an equation with sliders, on a page in the browser.

    Its trajectory, the cobweb of its knot map and where it is in the bifurcation diagram follow at
    once. The page answers this machine alone, and asks nobody else for anything.
    """
    _machine.load("dash")  # Its absence is said before anything of it is used.
    from .explore import explore as serve

    with leaving_as_it_was():
        serve(port, browser)
