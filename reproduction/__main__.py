"""`python -m reproduction`: run the experiments, report, list the image models."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from lagrax.__main__ import exit_at_once_if_stopped
from lagrax._cli.command import Json, bad, check_launcher, in_order, print_json, run_app
from lagrax.training import RunError, TrainingError, _machine
from lagrax.training._launchers import WorkerDied

from . import EXPERIMENTS
from .data import DataError
from .experiment import Experiment, conduct
from .images import PRECISIONS, SOLVERS, STUDIES, list_record_files, plan, sweep
from .models import DATASETS, paper_models, paper_size
from .report import read_experiment, write_report
from .result import Result, ResultError

app = typer.Typer(
    cls=in_order(*EXPERIMENTS, "all", "images", "models", "report"),
    help="The paper's experiments: run them, check their claims, report.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

# Errors of the request, and errors on the way.
REFUSED = (DataError, _machine.MissingExtra, ResultError, RunError)
FAILED = (TrainingError, WorkerDied, OSError)

Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds.", min=1)]
Quick = Annotated[bool, typer.Option("--quick", help="Make a short run with the same figures.")]
Resume = Annotated[bool, typer.Option(help="Continue an earlier run, or start anew.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write event files.")]


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code."""
    return run_app(app, "python -m reproduction", arguments, REFUSED, FAILED)


# --- the experiments of a laptop ------------------------------------------------------------------


def _experiments_command(names: list[str], about: str) -> Callable[..., None]:
    """A command that runs the experiments with these names."""

    def command(
        out: Out = Path("runs"),
        seeds: Seeds = None,
        quick: Quick = False,
        resume: Resume = True,
        tensorboard: Tensorboard = False,
        as_json: Json = False,
    ) -> None:
        _check_plotting()
        options = {"resume": resume, "tensorboard": tensorboard, "progress": True}
        with _explaining_how_to_continue(resume):
            folders = [
                conduct(EXPERIMENTS[n], out, quick=quick, seeds=seeds, **options) for n in names
            ]
            report = _report_on(out, folders)
        _print_results(folders, report, as_json)

    command.__doc__ = about
    return command


def _about(experiment: Experiment) -> str:
    return f"{experiment.title}.\n\n{experiment.about} Run again after a stop, it continues."


for _name, _experiment in EXPERIMENTS.items():
    app.command(_name)(_experiments_command([_name], _about(_experiment)))
app.command("all")(
    _experiments_command(list(EXPERIMENTS), f"Run {', '.join(EXPERIMENTS)}, and report.")
)


def _check_plotting() -> None:
    """Raises before hours of training where matplotlib or plotly is absent."""
    _machine.load("matplotlib.figure")
    _machine.load("plotly.offline")


@contextlib.contextmanager
def _explaining_how_to_continue(resume: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        again = "The same command again" if resume else "The same command without --no-resume"
        print(f"Stopped. {again} continues where this one was.", file=sys.stderr)
        raise typer.Exit(130) from None


# --- images ---------------------------------------------------------------------------------------


@app.command()
def images(
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(DATASETS)}, or all.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A name that `models` lists, or all.")
    ] = None,
    out: Out = Path("runs"),
    seeds: Seeds = None,
    quick: Quick = False,
    data: Annotated[Path | None, typer.Option(help="Folder of the original files.")] = None,
    study: Annotated[
        str | None, typer.Option(help=f"Train the runs of a study: {', '.join(STUDIES)}.")
    ] = None,
    solver: Annotated[str | None, typer.Option(help=f"{', '.join(SOLVERS)}.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of equal steps in each interval.", min=1)
    ] = None,
    rtol: Annotated[float | None, typer.Option(help="Tolerance of adaptive steps.")] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"Arithmetic of the field: {', '.join(PRECISIONS)}.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.", min=1)] = None,
    devices: Annotated[
        int | None, typer.Option(help="Number of devices that share each step.", min=1)
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="here, or ray to run side by side on the workers of a cluster.")
    ] = "here",
    resume: Resume = True,
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Train the image classifiers: data sets, models and seeds, in any number of pieces.

    Finished runs are skipped, and several machines may share the folder. All of it takes a GPU for
    hours; --quick takes two cores for two minutes.
    """
    _check_plotting()
    check_launcher(launcher)
    if (devices or 1) > jax.device_count():
        raise bad(f"--devices {devices}: JAX sees {jax.device_count()} here.")
    protocol = {"solver": solver, "steps": steps, "rtol": rtol}
    protocol |= {"precision": precision, "epochs": epochs}
    given = {name: value for name, value in protocol.items() if value is not None}
    try:
        runs = plan(dataset or (), model or (), seeds, quick=quick, study=study, **given)
    except ValueError as error:
        raise bad(str(error)) from None
    where: dict[str, Any] = {"data": data, "devices": devices, "launcher": launcher}
    where = {name: value for name, value in where.items() if value is not None}
    where |= {"resume": resume, "tensorboard": tensorboard, "progress": True}
    with _explaining_how_to_continue(resume):
        swept = sweep(runs, out / ("images-quick" if quick else "images"), **where)
        if not list_record_files(swept.folder):  # and so nothing to report
            raise typer.Exit(1 if swept.failed else 0)
        report = _report_on(out, [swept.folder])
    _print_results([swept.folder], report, as_json)
    if swept.failed:
        raise typer.Exit(1)


@app.command()
def models(as_json: Json = False) -> None:
    """List the paper's image models with filters and parameters."""
    rows = [
        {"dataset": data, "model": name, **paper_size(name, data)}
        for data in ("mnist", "cifar10", "svhn")
        for name in paper_models()
    ]
    if as_json:
        print_json(rows)
        return
    print(f"{'dataset':9}{'model':13}{'filters':>8}{'params':>9}")
    for row in rows:
        print(f"{row['dataset']:9}{row['model']:13}{row['filters']:8}{row['params']:9,}")


# --- report ---------------------------------------------------------------------------------------


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that the experiments wrote.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Make one self-contained HTML page of everything measured."""
    if out.is_dir():
        raise bad(f"--out {out} is a folder; expected a file: name one inside it.")
    path = write_report(runs, out).resolve()
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"Report: {path}")


def _report_on(out: Path, folders: list[Path]) -> Path:
    """Reports on everything in `out`, or only on `folders` if something else cannot be read."""
    try:
        return write_report([out], out / "report.html").resolve()
    except ResultError as error:
        print(f"Left out of the report: {error}", file=sys.stderr)
        return write_report(folders, out / "report.html").resolve()


def _print_results(folders: list[Path], report: Path, as_json: bool) -> None:
    results = {folder: read_experiment(folder)[0] for folder in folders}
    if as_json:
        print_json([_summary(folder, result, report) for folder, result in results.items()])
        return
    for folder, result in results.items():
        _print_result(folder, result)
    print(f"Report: {report}")


def _summary(folder: Path, result: Result, report: Path) -> dict[str, Any]:
    kept = ("experiment", "quick", "seconds", "claims", "tables")
    content = dataclasses.asdict(result)
    return {k: content[k] for k in kept} | {"folder": str(folder), "report": str(report)}


def _print_result(folder: Path, result: Result) -> None:
    print(f"{result.title} ({result.seconds:.0f} s of training), in {folder.resolve()}")
    for claim in result.claims:
        verdict = "holds" if claim.holds else "does not hold"
        value = "never" if claim.value is None else f"{claim.value:g}"
        bar = f"{'at least' if claim.better == 'higher' else 'at most'} {claim.bar:g}"
        print(f"  {verdict}: {claim.claim}: {value} {claim.unit}, asked for {bar}")
    if result.quick:
        print("  This was a quick run: its verdicts mean little.")
    elif not result.claims:
        print("  No claim can be decided yet.")


if __name__ == "__main__":
    sys.exit(exit_at_once_if_stopped(run(sys.argv[1:])))
