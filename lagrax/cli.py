"""The command `lagrax`.

Answers go to stdout, progress and errors to stderr. Bad input ends with one sentence and exit code
2, what fails on the way with one and 1, Ctrl-C with 130 and how to continue.
"""

import contextlib
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
import typer.core

from . import _machine, nn
from ._answers import FolderError
from ._explore_sliders import ExploreError
from ._launchers import LAUNCHERS, WorkerDied, launch
from ._runs import RunError
from ._solution import SolveError
from ._table import TableError
from ._values import MOST_COUNT
from .analysing import (
    AnalyseError,
    Span,
    analyse as analyse_equation,
    held_systems,
    parameters_of,
    scalars_of,
)
from .fitting import FIELDS, FitError, Request, fit as fit_table, fit_one, fits
from .identify import IdentifyError
from .paper import (
    EXPERIMENTS,
    DataError,
    Result,
    ResultError,
    conduct,
    plan,
    read_experiment,
    sweep,
    write_report,
)
from .paper.images import DATASETS, PRECISIONS, SOLVERS
from .paper.lines import files as line_files
from .simulating import SimulateError, simulate as simulate_equation
from .systems import SYSTEMS, System
from .training import TrainingError


class _InReadingOrder(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return ["simulate", "analyse", "explore", "fit", "reproduce", "report", "models", "info"]


app = typer.Typer(
    cls=_InReadingOrder,
    help="Delay differential equations for JAX, and the neural networks made of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


# What is wrong with what was asked for, and what goes wrong on the way.
REFUSED = (
    AnalyseError,
    DataError,
    ExploreError,
    FitError,
    FolderError,
    _machine.MissingExtra,
    ResultError,
    RunError,
    SimulateError,
    TableError,
)
FAILED = (IdentifyError, SolveError, TrainingError, WorkerDied, OSError)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code."""
    try:
        code = app(list(arguments), prog_name="lagrax", standalone_mode=False)
    except typer.TyperException as error:
        return _complain(_quoting(error), error.exit_code)
    except REFUSED as error:
        return _complain(str(error), 2)
    except FAILED as error:
        return _complain(str(error), 1)
    return code or 0


def _quoting(error: typer.TyperException) -> str:
    """What is wrong with an option, and what was given where pydantic refused it."""
    details = getattr(error.__cause__, "errors", list)()
    got = f"; got {details[0]['input']}." if details else ""
    return f"{error.format_message()}{got}"


def _complain(sentence: str, code: int) -> int:
    if sentence:
        print(sentence, file=sys.stderr)
    return code


def _bad(sentence: str) -> typer.BadParameter:
    return typer.BadParameter(sentence)


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


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


# --- reproduce, report ----------------------------------------------------------------------------


def _of_images(about: str, **limits: Any) -> Any:
    return typer.Option(help=f"Images: {about}", **limits)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}; all of these, which a laptop can do; or images."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs"),
    seeds: Annotated[int | None, typer.Option(help="How many seeds.", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short run, the same figures.")] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue what is there, or begin anew (--no-resume).")
    ] = True,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files, too.")
    ] = False,
    as_json: Json = False,
    dataset: Annotated[list[str] | None, _of_images(f"{', '.join(DATASETS)}, or all.")] = None,
    model: Annotated[list[str] | None, _of_images("As `lagrax models` has them, or all.")] = None,
    data: Annotated[Path | None, _of_images("The folder of the original files.")] = None,
    solver: Annotated[str | None, _of_images(f"{', '.join(SOLVERS)}.")] = None,
    steps: Annotated[int | None, _of_images("Equal steps in each interval.", min=1)] = None,
    rtol: Annotated[float | None, _of_images("Adaptive steps, of this tolerance.")] = None,
    precision: Annotated[str | None, _of_images(f"The field's: {', '.join(PRECISIONS)}.")] = None,
    epochs: Annotated[int | None, _of_images("How many epochs.", min=1)] = None,
    devices: Annotated[int | None, _of_images("How many share each step.", min=1)] = None,
    launcher: Annotated[
        str | None, _of_images("here, or ray for the workers of a cluster, runs side by side.")
    ] = None,
) -> None:
    """Run the paper's experiments, check their claims, report.

    Stopped, by Ctrl-C or otherwise, the same command continues. The images are a sweep over data
    sets, models and seeds: it skips the runs that are done, and machines may share its folder. In
    full it takes a GPU for hours; with --quick, two cores for two minutes.
    """
    options = {"resume": resume, "tensorboard": tensorboard, "progress": True}
    protocol = {"solver": solver, "steps": steps, "rtol": rtol}
    protocol |= {"precision": precision, "epochs": epochs}
    images = {"dataset": dataset, "model": model, "data": data, "devices": devices}
    given = _given(images | {"launcher": launcher} | protocol)
    if name not in (*EXPERIMENTS, "images", "all"):
        raise _bad(f"No experiment {name!r}; there are {', '.join(EXPERIMENTS)}, images, all.")
    if name != "images" and given:
        raise _bad(f"--{next(iter(given))} is for images alone: leave it out with {name}.")
    # Their absence is said before hours of training, not after.
    _machine.load("matplotlib.figure")
    _machine.load("plotly.offline")
    with _saying_how_to_continue(resume):
        if name == "images":
            folders, failed = _images(out, quick, seeds, given, options)
        else:
            chosen, failed = EXPERIMENTS if name == "all" else [name], 0
            folders = [
                conduct(EXPERIMENTS[n], out, quick=quick, seeds=seeds, **options) for n in chosen
            ]
        report = _report_of(out, folders)
    _print_results({folder: read_experiment(folder)[0] for folder in folders}, report, as_json)
    if failed:
        raise typer.Exit(1)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """An option that may be repeated is an empty list where it is not given."""
    return {name: value for name, value in options.items() if value is not None and value != []}


@contextlib.contextmanager
def _saying_how_to_continue(resume: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        again = "The same command again" if resume else "The same command without --no-resume"
        print(f"Stopped. {again} continues where this one was.", file=sys.stderr)
        raise typer.Exit(130) from None


def _images(
    out: Path, quick: bool, seeds: int | None, given: dict[str, Any], options: dict[str, Any]
) -> tuple[list[Path], int]:
    """Sweeps, which says itself what became of each run; the folder, and how many runs failed."""
    where = {k: given.pop(k) for k in ("data", "devices", "launcher") if k in given}
    _check_launcher(where.get("launcher", "here"))
    if where.get("devices", 1) > jax.device_count():
        raise _bad(f"--devices {where['devices']}: JAX sees {jax.device_count()} here.")
    datasets, models = given.pop("dataset", ()), given.pop("model", ())
    try:
        runs = plan(datasets, models, seeds, quick=quick, **given)
    except ValueError as error:
        raise _bad(str(error)) from None
    folder = out / ("images-quick" if quick else "images")
    swept = sweep(runs, folder, **where, **options)
    if not line_files(swept.folder):  # and so nothing to report
        raise typer.Exit(1 if swept.failed else 0)
    return [swept.folder], swept.failed


def _report_of(out: Path, folders: list[Path]) -> Path:
    """Of everything in `out`, or, if something there cannot be read, of what was run now."""
    try:
        return write_report([out], out / "report.html").resolve()
    except ResultError as error:
        print(f"Left out of the report: {error}", file=sys.stderr)
        return write_report(folders, out / "report.html").resolve()


def _summary(folder: Path, result: Result, report: Path) -> dict[str, Any]:
    kept = ("experiment", "quick", "seconds", "claims", "tables")
    content = dataclasses.asdict(result)
    return {k: content[k] for k in kept} | {"folder": str(folder), "report": str(report)}


def _print_results(results: dict[Path, Result], report: Path, as_json: bool) -> None:
    if as_json:
        _print_json([_summary(folder, result, report) for folder, result in results.items()])
        return
    for folder, result in results.items():
        _print_result(folder, result)
    print(f"Report: {report}")


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


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `lagrax reproduce` wrote.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Make one self-contained HTML page of everything measured."""
    if out.is_dir():
        raise _bad(f"--out {out} is a folder; expected a file: name one inside it.")
    path = write_report(runs, out).resolve()
    if as_json:
        _print_json({"report": str(path)})
    else:
        print(f"Report: {path}")


# --- fit, analyse ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _leaving_as_it_was() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped. Nothing was written.", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_answer(summary: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        _print_json(summary)
        return
    for line in lines:
        print(line)
    for name in summary["files"]:
        print(f"Wrote {Path(summary['folder']) / name}")


@app.command()
def fit(
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA.csv...", help="Measurements, with a header.")
    ],
    time: Annotated[
        str | None, typer.Option(help="The column of times (by default the first).")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="What to learn; give it again for more (all).")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="What drives it; give it again for more.")
    ] = None,
    hold: Annotated[float | None, typer.Option(help="The period of a held state.")] = None,
    lags: Annotated[int | None, typer.Option(help="How many holds (1).", min=1, max=16)] = None,
    lag: Annotated[float | None, typer.Option(help="Look back at the state this long ago.")] = None,
    learn_tau: Annotated[
        bool, typer.Option("--learn-tau", help="Find the period, from a third to three times it.")
    ] = False,
    select: Annotated[
        bool, typer.Option("--select", help="Compare delays, and take those that it needs.")
    ] = False,
    field: Annotated[str, typer.Option(help=f"The right-hand side: {', '.join(FIELDS)}.")] = "mlp",
    degree: Annotated[int, typer.Option(help="Of the library's terms.", min=1, max=6)] = 2,
    forecast: Annotated[int, typer.Option(help="How many samples ahead.", min=0)] = 10,
    ensemble: Annotated[int, typer.Option(help="How many models, for the band.", min=1)] = 5,
    iterations: Annotated[int, typer.Option(help="Of the training.", min=1, max=MOST_COUNT)] = 2000,
    seed: Annotated[int, typer.Option(help="The same gives the same.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder (fit-DATA; of many: fits).")] = None,
    launcher: Annotated[
        str, typer.Option(help="Of many tables: here, or ray for the workers of a cluster.")
    ] = "here",
    as_json: Json = False,
) -> None:
    """Learn an equation from measurements, forecast, and report.

    Times and periods are in the unit of the time column, in days where that has dates. Without
    --hold, --lag and --select the equation is an ordinary one. Inputs stay at their last value
    during the forecast. --field library gives an equation that can be read. Each of many tables is
    fitted by itself, and has its answer in a folder of its name.
    """
    _check_launcher(launcher)
    request = Request(
        data[0],
        out or Path(f"fit-{data[0].stem}"),
        time,
        tuple(column or ()),
        tuple(inputs or ()),
        hold,
        lags,
        lag,
        learn_tau,
        select,
        field,
        degree,
        forecast,
        ensemble,
        iterations,
        seed,
    )
    if len(data) > 1:
        _fit_many(fits(request, data, out or Path("fits")), launcher, as_json)
        return
    with _leaving_as_it_was():
        summary, lines = fit_table(request)
    _print_answer(summary, lines, as_json)


def _fit_many(requests: Sequence[Request], launcher: Any, as_json: bool) -> None:
    """One answer after the other as they come; those that fail are named, and the others go on."""
    summaries, failed = [], 0
    for number, (summary, told) in launch(launcher, fit_one, [(r,) for r in requests]):
        name = requests[number].data.name
        failed += summary is None
        summaries += [summary] if summary else []
        where = f"wrote {summary['folder']}" if summary else f"failed: {told}"
        print(f"{name}: {where}", file=sys.stderr)
        if summary and summary["doubt"]:
            print(f"{name}: {summary['doubt']}", file=sys.stderr)
        if summary and not as_json:
            print(*(f"{name}: {equation}" for equation in summary["equations"]), sep="\n")
    if as_json:
        _print_json(summaries)
    if failed:
        raise typer.Exit(1)


def _check_launcher(launcher: str) -> None:
    if launcher not in LAUNCHERS:
        raise _bad(f"No launcher {launcher!r}: choose one of {', '.join(LAUNCHERS)}.")


# --- models, info ---------------------------------------------------------------------------------


@app.command()
def models(as_json: Json = False) -> None:
    """List the paper's image models with filters and parameters."""
    rows = [
        {"dataset": data, "model": name, **nn.paper_size(name, data)}
        for data in ("mnist", "cifar10", "svhn")
        for name in nn.paper_models()
    ]
    if as_json:
        _print_json(rows)
        return
    print(f"{'dataset':9}{'model':13}{'filters':>8}{'params':>9}")
    for row in rows:
        print(f"{row['dataset']:9}{row['model']:13}{row['filters']:8}{row['params']:9,}")


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, devices, and which optional parts are present."""
    found = _machine.versions()
    devices = [f"{d.platform}: {d.device_kind}" for d in jax.devices()]
    if as_json:
        _print_json(_machine.describe() | {"versions": found, "devices": devices})
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
            _print_json(summary)
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
        raise _bad(
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
        with _leaving_as_it_was():
            summary, lines = analyse_equation(target, spans, given, **options)
        _print_answer(summary, lines, as_json)

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
    from .exploring import explore as serve

    with _leaving_as_it_was():
        serve(port, browser)
