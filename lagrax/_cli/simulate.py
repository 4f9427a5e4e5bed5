"""Solves a classical equation, draws it and writes its samples (`lagrax simulate`)."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import diffrax
import jax.numpy as jnp
import numpy as np
import typer
import typer.core
from jaxtyping import Array

from .._solve.solution import RESULTS, Knots, Solution, SolveError
from .._solve.solve import solve
from ..plotting import COLOURS, PICTURES, Figure, Line, Panel, Points, draw
from ..systems import SYSTEMS, HeldSystem, Hutchinson, MackeyGlass, Population, System
from ..training._files import write_atomically
from .analyse_equation import describe_parameter, number_states, scalars_of
from .answers import note_new_folder
from .command import Json, add_options, print_json
from .long_run import precisely

# More would take hours; a wrong unit of time asks for them easily.
MOST_INTERVALS = 1_000_000


class SimulateError(ValueError):
    """An equation cannot be simulated as asked; the message says why and what to do."""


# --- the command ----------------------------------------------------------------------------------

SUMMARIES = {
    "population": "A population whose growth depends on its last count.",
    "linear": "A linear system with held arguments.",
    "digital-control": "A plant under a digital controller.",
    "held-oscillator": "An oscillator driven by its own held position.",
    "hutchinson": "The logistic equation with a lag.",
    "mackey-glass": "The production of blood cells with a lag.",
}

EXAMPLES = {
    "population": "--a 3.2 --t1 30",
    "linear": "--tau 0.5",
    "digital-control": "--tau 0.5",
    "held-oscillator": "--k 0.5 --t1 60",
    "hutchinson": "--a 2 --t1 50",
    "mackey-glass": "--tau 17 --t1 500",
}


class GroupOfEquations(typer.core.TyperGroup):
    """A group of commands that lists the equations if it gets another name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in SYSTEMS and not args[0].startswith("-"):
            raise SimulateError(f"No equation {args[0]!r}: expected one of {', '.join(SYSTEMS)}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=GroupOfEquations,
    help="Solve a classical equation and draw it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: lagrax simulate population --a 3.2 --t1 30",
)


def _add_command(name: str, system: type[System]) -> None:
    """Adds a command with one option for each parameter of `system`."""
    about = lambda parameter: f"{describe_parameter(name, parameter).capitalize()}."
    own = {
        n: (type(default), typer.Option(f"--{n}", help=about(n)), default)
        for n, default in scalars_of(system).items()
    }

    @add_options(own, first=True)
    def command(
        t1: Annotated[float, typer.Option(help="Final time. The initial time is 0.")] = 20.0,
        y0: Annotated[
            str | None, typer.Option(help="Initial state; several numbers with commas between.")
        ] = None,
        samples: Annotated[
            int, typer.Option(help="Number of samples.", min=2, max=1_000_000)
        ] = 401,
        out: Annotated[
            Path | None,
            typer.Option(
                help=f"Picture to write: .png, .pdf or .svg. {name}.png by default; none with "
                "--csv alone."
            ),
        ] = None,
        csv: Annotated[
            Path | None,
            typer.Option(
                help="CSV file of samples to write instead of a picture. Add --out for both."
            ),
        ] = None,
        as_json: Json = False,
        **parameters: Any,
    ) -> None:
        summary, lines = simulate(name, parameters, t1=t1, y0=y0, samples=samples, out=out, csv=csv)
        if as_json:
            print_json(summary)
            return
        for line in [*lines, *(f"Wrote {path}" for path in summary["files"])]:
            print(line)

    command.__doc__ = f"{SUMMARIES[name]} See lagrax.systems.{system.__name__}."
    example = f"Example: lagrax simulate {name} {EXAMPLES[name]} --out {name}.pdf"
    app.command(name, epilog=example)(command)


for _name, _system in SYSTEMS.items():
    _add_command(_name, _system)


# --- one equation ---------------------------------------------------------------------------------


def simulate(
    name: str,
    parameters: Mapping[str, int | float],
    *,
    t1: float,
    y0: str | None,
    samples: int,
    out: Path | None,
    csv: Path | None,
) -> tuple[dict[str, Any], list[str]]:
    """Solves an equation from 0 to `t1`, draws it and writes its samples.

    Returns the summary and the lines to print.
    """
    picture = out or (None if csv else Path(f"{name}.png"))
    with precisely():
        system = _make_system(name, parameters)
        start = system.y0 if y0 is None else _parse_start(y0, system)
        _check_span(t1, float(np.asarray(system.tau)))
        _check_paths(picture, csv)
        ts = np.linspace(0.0, t1, samples)
        solution = _solve_system(system, start, ts)
    states = np.asarray(solution.ys).reshape(samples, -1)
    evaluations = int(solution.stats["num_evaluations"])
    lines = [f"{evaluations} evaluations of the equation"]
    lines += _warn_of_underflow(system, start, states)
    if picture is not None:
        lines += note_new_folder(picture.parent)
        draw(_make_figure(name, system, ts, states, solution), picture)
    if csv is not None:
        lines += note_new_folder(csv.parent)
        write_atomically(csv, _format_samples(ts, states))
    return {
        "system": type(system).__name__,
        "parameters": _parameters_of(system),
        "t1": float(np.asarray(solution.ts)[-1]),
        "final": states[-1].tolist(),
        "evaluations": evaluations,
        "files": [str(path.resolve()) for path in (picture, csv) if path is not None],
    }, lines


def _make_system(name: str, parameters: Mapping[str, int | float]) -> System:
    try:
        return SYSTEMS[name](**parameters)
    except ValueError as error:
        raise SimulateError(str(error)) from None


# --- the solution ---------------------------------------------------------------------------------


def _solve_system(system: System, start: Array, ts: np.ndarray) -> Solution:
    positive = _stays_positive(system, start)
    # An absolute error of the logarithm is a relative error of the state.
    rtol, atol = (1e-14, 1e-9) if positive else (1e-8, 1e-10)
    solution = solve(
        log_field(system) if positive else system,
        0.0,
        float(ts[-1]),
        np.log(start) if positive else start,  # jnp.log is infinite for subnormal numbers
        delays=system.delays,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        max_steps=_most_steps(system, float(ts[-1])),
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
        throw=False,
    )
    _check_success(system, solution)
    if not positive:
        return solution
    states, knots = jnp.asarray(solution.ys), solution.knots
    knots = Knots(knots.ts, jnp.exp(knots.ys), jnp.exp(knots.before))
    return dataclasses.replace(solution, ys=jnp.exp(states), knots=knots)


def _stays_positive(system: System, start: Array) -> bool:
    """Whether all states are positive, so that their logarithm can be solved for.

    A population may grow again from less than any tolerance, or than the smallest floating-point
    number.
    """
    if isinstance(system, MackeyGlass):
        return float(system.beta) >= 0
    return isinstance(system, Population | Hutchinson) and float(start) > 0


def log_field(system: System) -> Callable:
    """The field x′/x of the logarithm of a state."""

    def field(t, y, args, *, history):
        # x′/x of a population does not depend on x, so a larger x avoids a division by zero.
        x = jnp.exp(jnp.maximum(y, -700.0))
        return system(t, x, args, history=[jnp.exp(h) for h in history]) / x

    return field


def _most_steps(system: System, t1: float) -> int:
    # Steps that a lag reads are kept in memory, which limits their number.
    each = 2500 if isinstance(system, HeldSystem) else 100
    return 4096 + each * int(t1 / float(np.asarray(system.tau)))


def _check_success(system: System, solution: Solution) -> None:
    if solution.result == RESULTS.successful:
        return
    until = float(solution.failed_at)
    remedy = "Give an earlier --t1, or change" if until > 0 else "Change"
    options = ", ".join(f"--{name}" for name in ("y0", *scalars_of(type(system))))
    raise SolveError(
        f"The solve stopped at t = {until:g}, where the solution becomes infinite or undefined, or "
        f"changes too fast. {remedy} {options}."
    )


def _warn_of_underflow(system: System, start: Array, states: np.ndarray) -> list[str]:
    if not _stays_positive(system, start) or states.all():
        return []
    return ["Zeros in the samples are positive numbers too small for floating point."]


# --- what was asked for, and what is written ------------------------------------------------------


def _check_paths(picture: Path | None, csv: Path | None) -> None:
    if picture is not None and picture.suffix not in PICTURES:
        raise SimulateError(f"--out {picture}: expected a name that ends in {', '.join(PICTURES)}.")
    if picture is not None and csv is not None and picture.resolve() == csv.resolve():
        raise SimulateError(f"--out and --csv are both {picture}: give two names.")
    if csv == Path("-"):
        raise SimulateError("--csv -: expected a file; the samples are not printed.")
    for option, path in (("out", picture), ("csv", csv)):
        if path is not None and path.is_dir():
            raise SimulateError(
                f"--{option} {path} is a folder; expected a file: give one inside it."
            )


def _parse_start(text: str, system: System) -> Array:
    like = system.y0
    try:
        numbers = [float(x) for x in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != like.size or not np.all(np.isfinite(numbers)):
        count = "one number" if like.size == 1 else f"{like.size} numbers with commas between"
        raise SimulateError(f"--y0 {text}: expected {count}.")
    if isinstance(system, MackeyGlass) and numbers[0] <= 0:
        raise SimulateError(f"--y0 {text}: expected a positive number of blood cells.")
    return jnp.asarray(numbers, like.dtype).reshape(like.shape)


def _check_span(t1: float, tau: float) -> None:
    if not (np.isfinite(t1) and t1 > 0):
        raise SimulateError(f"--t1 {t1:g}: expected a positive, finite number.")
    if t1 / tau > MOST_INTERVALS:
        raise SimulateError(
            f"--t1 {t1:g} with --tau {tau:g} makes {t1 / tau:.3g} intervals; expected at most "
            f"{MOST_INTERVALS:,}."
        )


def _make_figure(
    name: str, system: System, ts: np.ndarray, states: np.ndarray, solution: Any
) -> Figure:
    columns = number_states(states.shape[1])
    knots = np.asarray(solution.knots.ys).reshape(-1, len(columns))
    # The knots join the samples, so that the curve goes through them.
    all_ts, all_states = np.append(ts, solution.knots.ts), np.append(states, knots, axis=0)
    order = np.argsort(all_ts, kind="stable")
    marks: list[Line | Points] = [
        Line(all_ts[order], all_states[order, i], label=column, colour=list(COLOURS)[i])
        for i, column in enumerate(columns)
    ]
    if isinstance(system, HeldSystem):
        # One entry of the legend serves all; each has the colour of its curve.
        marks += [
            Points(solution.knots.ts, knots[:, i], label="knots", colour=list(COLOURS)[i])
            for i in range(len(columns))
        ]
    parameters = ", ".join(f"{k} = {v:g}" for k, v in _parameters_of(system).items())
    panel = Panel(marks, f"{name}: {parameters}" if parameters else name, "t", ", ".join(columns))
    return Figure(name, f"The {name} equation.", [panel])


def _format_samples(ts: np.ndarray, states: np.ndarray) -> str:
    rows = [",".join(["t", *number_states(states.shape[1])])]
    # The tolerance of the solve supports nine digits.
    rows += [",".join(f"{x:.9g}" for x in (t, *row)) for t, row in zip(ts, states, strict=True)]
    return "\n".join(rows) + "\n"


def _parameters_of(system: System) -> dict[str, int | float]:
    return {n: type(d)(getattr(system, n)) for n, d in scalars_of(type(system)).items()}
