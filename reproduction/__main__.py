"""`python -m reproduction`: run the experiments, report, list the image models."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from lagrax.__main__ import exit_if_interrupted
from lagrax._cli.command import Json, bad, check_launcher, in_order, print_json, run_app
from lagrax.plotting._page import duration
from lagrax.training import RunError, TrainingError, _machine
from lagrax.training._launchers import WorkerDied

from . import EXPERIMENTS
from .data import DataError
from .experiment import Experiment, conduct
from .images import PRECISIONS, SOLVERS, STUDIES, list_record_files, plan, sweep
from .models import DATASETS, paper_models, paper_size
from .report import write_report
from .result import Claim, Entry, Result, ResultError

app = typer.Typer(
    cls=in_order(*EXPERIMENTS, "all", "images", "models", "report"),
    help="Run the paper's experiments, check its claims, and report.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

# Errors of the request, and errors on the way.
REFUSED = (DataError, _machine.MissingExtra, ResultError, RunError)
FAILED = (TrainingError, WorkerDied, OSError)


def _check_out(out: Path) -> Path:
    """Refuses a folder below a file before hours of training."""
    existing = next((path for path in (out, *out.parents) if path.exists()), out)
    if existing.exists() and not existing.is_dir():
        raise bad(f"--out {out}: {existing} is a file; expected a folder: name another one.")
    return out


Out = Annotated[Path, typer.Option(help="Folder for the results.", callback=_check_out)]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds.", min=1)]
Quick = Annotated[bool, typer.Option("--quick", help="Make a short run, which judges no claims.")]
Resume = Annotated[bool, typer.Option(help="Resume an earlier run, or start anew.")]
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
        with _explain_how_to_resume(resume):
            entries = dict(
                conduct(EXPERIMENTS[n], out, quick=quick, seeds=seeds, **options) for n in names
            )
            report = _report_on(out, entries)
        _print_results(entries, report, as_json)

    command.__doc__ = about
    return command


def _about(experiment: Experiment) -> str:
    return (
        f"{experiment.title}.\n\n{experiment.about} A stopped run is resumed by the same command."
    )


for _name, _experiment in EXPERIMENTS.items():
    app.command(_name)(_experiments_command([_name], _about(_experiment)))
app.command("all")(_experiments_command(list(EXPERIMENTS), f"Run {', '.join(EXPERIMENTS)}."))


def _check_plotting() -> None:
    """Raises before hours of training if a package that draws is absent."""
    for module in ("matplotlib.figure", "plotly.offline", "jinja2"):
        _machine.load(module)


@contextlib.contextmanager
def _explain_how_to_resume(resume: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        again = "The same command again" if resume else "The same command without --no-resume"
        print(f"Stopped. {again} resumes it.", file=sys.stderr)
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
    """Train the image classifiers on MNIST, CIFAR-10 and SVHN.

    The work can be done in any number of pieces, by data set, model and seed. Finished runs are
    skipped, and several machines may share the folder. All of it takes a GPU for hours; --quick
    takes two cores for two minutes.
    """
    _check_plotting()
    check_launcher(launcher)
    if (devices or 1) > jax.device_count():
        raise bad(
            f"--devices {devices}: JAX sees {jax.device_count()} here; expected at most that many. "
            "Leave --devices out, or run on a machine with more."
        )
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
    with _explain_how_to_resume(resume):
        swept = sweep(runs, out / ("images-quick" if quick else "images"), **where)
        if not list_record_files(swept.folder):  # and so nothing to report
            raise typer.Exit(1 if swept.failed else 0)
        entries = {swept.folder: swept.entry}
        report = _report_on(out, entries)
    _print_results(entries, report, as_json)
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


def _report_on(out: Path, entries: dict[Path, Entry]) -> Path:
    """Reports on everything in `out`, or on `entries` alone if something else cannot be read."""
    page = out / "report.html"
    try:
        return write_report([out], page, entries).resolve()
    except ResultError as error:
        print(f"Left out of the report: {error}", file=sys.stderr)
        return write_report(list(entries), page, entries).resolve()


def _print_results(entries: dict[Path, Entry], report: Path, as_json: bool) -> None:
    if as_json:
        print_json([_answer(folder, entry, report) for folder, entry in entries.items()])
        return
    for folder, (result, _) in entries.items():
        _print_result(result)
        for name in result.figures[:1]:
            print(f"Picture: {_picture(folder, name)}")
    print(f"Report: {report}")


def _picture(folder: Path, name: str) -> Path:
    return (folder / "figures" / f"{name}.png").resolve()


def _answer(folder: Path, entry: Entry, report: Path) -> dict[str, Any]:
    kept = ("experiment", "finding", "quick", "seconds", "claims", "tables")
    content = dataclasses.asdict(entry.result)
    pictures = [str(_picture(folder, name)) for name in entry.result.figures[:1]]
    where = {"folder": str(folder), "report": str(report), "picture": next(iter(pictures), None)}
    return {name: content[name] for name in kept} | where


def _print_result(result: Result) -> None:
    # Trainings run side by side, so their times add up to more.
    waited = "" if result.waited is None else f"took {duration(result.waited)}; "
    times = f"the times of training add up to {duration(result.seconds)}"
    print(f"{result.title} ({waited}{times})")
    for claim in result.claims:
        numbers = ", ".join(filter(None, [claim.show_value(), _target(claim)]))
        print(f"  {claim.verdict}: {claim.claim}: {numbers}")
    if result.finding:
        print(result.finding)


def _target(claim: Claim) -> str:
    return f"target: {claim.show_target()}" if claim.target is not None else ""


if __name__ == "__main__":
    sys.exit(exit_if_interrupted(run(sys.argv[1:])))
