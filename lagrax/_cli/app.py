"""The command `lagrax`.

Answers go to stdout, progress and errors to stderr. An error is one sentence. The exit code is 2
for bad input, 1 for a failure during the work, and 130 after Ctrl-C.
"""

import os
from collections.abc import Sequence
from typing import Annotated

import jax
import typer

from .._solve.solution import SolveError
from ..identify import IdentifyError
from ..training import TrainingError, _machine
from ..training._errors import RunError
from ..training._launchers import WorkerDied
from .analyse import AnalyseError, CommandWithRanges, analyse
from .answers import FolderError
from .command import Json, in_order, leaving_as_it_was, print_json, run_app
from .explore_sliders import ExploreError
from .fit import FitError, fit
from .predict import predict
from .simulate import SimulateError, app as simulate_app
from .table import TableError

app = typer.Typer(
    cls=in_order("simulate", "analyse", "explore", "fit", "predict", "info"),
    help="Solve, analyse and learn delay differential equations.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="Example: lagrax fit measurements.csv --field library --forecast 2h",
)


# Errors of the request, and errors during the work.
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
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = None,
) -> None:
    del version


app.add_typer(simulate_app, name="simulate")
app.command(
    "analyse",
    cls=CommandWithRanges,
    epilog="Example: lagrax analyse hutchinson --param tau 0.5 3 --param a 0.5 2",
)(analyse)
app.command(
    "fit",
    epilog="Example: lagrax fit oven.csv --input setpoint --hold 60s --field library",
)(fit)
app.command("predict", epilog="Example: lagrax predict fit-oven new.csv --horizon 60")(predict)


@app.command(epilog="Example: lagrax info --json")
def info(as_json: Json = False) -> None:
    """Show versions, devices and installed extras."""
    found = _machine.versions()
    name = lambda d: d.platform if d.device_kind == d.platform else f"{d.platform}: {d.device_kind}"
    devices = [name(device) for device in jax.devices()]
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


@app.command(epilog="Example: lagrax explore --port 8050")
def explore(
    port: Annotated[
        int, typer.Option(help="Port of the page. 0 takes a free one.", min=0, max=65535)
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Vary an equation with sliders, on a page in the browser.

    The trajectory, the cobweb of the knot map and the bifurcation diagram follow at once. The page
    answers this user alone and loads nothing from other machines.
    """
    _machine.load("dash")  # raises MissingExtra before the import below does
    from .explore import explore as serve

    with leaving_as_it_was():
        serve(port, browser)
