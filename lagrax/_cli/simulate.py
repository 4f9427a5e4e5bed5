"""`lagrax simulate`: a classical equation solved, drawn and written down."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._solve.solution import RESULTS, Knots, Solution, SolveError
from .._solve.solve import solve
from ..plotting import COLOURS, PICTURES, Figure, Line, Panel, Points, draw
from ..systems import SYSTEMS, HeldSystem, Hutchinson, MackeyGlass, Population, System
from ..training._files import write_atomically
from .analyse import scalars_of
from .long_run import precisely

# More would take hours; a wrong unit of time asks for them easily.
MOST_INTERVALS = 1_000_000


class SimulateError(ValueError):
    """An equation cannot be simulated as asked; the message says why and what to do."""


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

    Returns a summary and the lines to print.
    """
    picture = out or (None if csv else Path(f"{name}.png"))
    with precisely():
        system = _made(name, parameters)
        start = system.y0 if y0 is None else _start(y0, system)
        _check_span(t1, float(np.asarray(system.tau)))
        _check_paths(picture, csv)
        ts = np.linspace(0.0, t1, samples)
        solution = _solved(system, start, ts)
    states = np.asarray(solution.ys).reshape(samples, -1)
    if picture is not None:
        draw(_picture(name, system, ts, states, solution), picture)
    if csv is not None:
        write_atomically(csv, _csv(ts, states))
    evaluations = int(solution.stats["num_evaluations"])
    summary = {
        "system": type(system).__name__,
        "parameters": _parameters_of(system),
        "t1": float(np.asarray(solution.ts)[-1]),
        "final": states[-1].tolist(),
        "evaluations": evaluations,
        "files": [str(path.resolve()) for path in (picture, csv) if path is not None],
    }
    lines = [f"{evaluations} evaluations of the equation"]
    return summary, lines + _vanished(system, start, states)


def _made(name: str, parameters: Mapping[str, int | float]) -> System:
    try:
        return SYSTEMS[name](**parameters)
    except ValueError as error:
        raise SimulateError(str(error)) from None


# --- the solution ---------------------------------------------------------------------------------


def _solved(system: System, start: Array, ts: np.ndarray) -> Solution:
    positive = _stays_positive(system, start)
    # An error of the logarithm is a relative one of the state, however large the logarithm.
    rtol, atol = (1e-14, 1e-9) if positive else (1e-8, 1e-10)
    solution = solve(
        log_field(system) if positive else system,
        0.0,
        float(ts[-1]),
        np.log(start) if positive else start,  # XLA's is infinite for the smallest numbers
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
    knots = Knots(knots.ts, jnp.exp(knots.ys))
    return dataclasses.replace(solution, ys=jnp.exp(states), knots=knots)


def _stays_positive(system: System, start: Array) -> bool:
    """Whether all states are positive. Then it is their logarithm that is solved for: what a
    population grows from again may be smaller than any tolerance, or than any number there is."""
    if isinstance(system, MackeyGlass):
        return float(system.beta) >= 0
    return isinstance(system, Population | Hutchinson) and float(start) > 0


def log_field(system: System) -> Callable:
    """The field x′/x of the logarithm of a state."""

    def field(t, y, args, *, history):
        # A population's does not depend on its size: one too small to divide by is taken larger.
        x = jnp.exp(jnp.maximum(y, -700.0))
        return system(t, x, args, history=[jnp.exp(h) for h in history]) / x

    return field


def _most_steps(system: System, t1: float) -> int:
    # Steps that a lag looks back at are kept, so there is room for fewer of them.
    each = 2500 if isinstance(system, HeldSystem) else 100
    return 4096 + each * int(t1 / float(np.asarray(system.tau)))


def _check_success(system: System, solution: Solution) -> None:
    if solution.result == RESULTS.successful:
        return
    until = float(solution.failed_at)
    remedy = "Give an earlier --t1, or change" if until > 0 else "Change"
    options = ", ".join(f"--{name}" for name in ("y0", *scalars_of(type(system))))
    raise SolveError(
        f"The solution can be followed until t = {until:g}: it becomes infinite or undefined "
        f"there, or changes too fast. {remedy} {options}."
    )


def _vanished(system: System, start: Array, states: np.ndarray) -> list[str]:
    if not _stays_positive(system, start) or states.all():
        return []
    return ["Written as 0 where it is positive, but smaller than any number of the computer."]


# --- what was asked for, and what is written ------------------------------------------------------


def _check_paths(picture: Path | None, csv: Path | None) -> None:
    if picture is not None and picture.suffix not in PICTURES:
        raise SimulateError(f"--out {picture}: expected a name that ends in {', '.join(PICTURES)}.")
    if picture is not None and csv is not None and picture.resolve() == csv.resolve():
        raise SimulateError(f"--out and --csv are both {picture}: give two names.")
    for option, path in (("out", picture), ("csv", csv)):
        if path is not None and path.is_dir():
            raise SimulateError(
                f"--{option} {path} is a folder; expected a file: name one inside it."
            )


def _start(text: str, system: System) -> Array:
    like = system.y0
    try:
        numbers = [float(x) for x in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != like.size or not np.all(np.isfinite(numbers)):
        what = "one number" if like.size == 1 else f"{like.size} numbers with commas between"
        raise SimulateError(f"--y0 {text}: expected {what}.")
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


def _picture(
    name: str, system: System, ts: np.ndarray, states: np.ndarray, solution: Any
) -> Figure:
    columns = _columns(states)
    knots = np.asarray(solution.knots.ys).reshape(-1, len(columns))
    # The curve goes through its knots, wherever they lie between the samples.
    all_ts, all_states = np.append(ts, solution.knots.ts), np.append(states, knots, axis=0)
    order = np.argsort(all_ts, kind="stable")
    marks: list[Line | Points] = [
        Line(all_ts[order], all_states[order, i], label=column, colour=list(COLOURS)[i])
        for i, column in enumerate(columns)
    ]
    if isinstance(system, HeldSystem):
        # All under one entry of the legend, in the colour of their curve.
        marks += [
            Points(solution.knots.ts, knots[:, i], label="knots", colour=list(COLOURS)[i])
            for i in range(len(columns))
        ]
    parameters = ", ".join(f"{k} = {v:g}" for k, v in _parameters_of(system).items())
    panel = Panel(marks, f"{name}: {parameters}" if parameters else name, "t", ", ".join(columns))
    return Figure(name, f"The {name} equation.", [panel])


def _columns(states: np.ndarray) -> list[str]:
    return ["x"] if states.shape[1] == 1 else [f"x{i + 1}" for i in range(states.shape[1])]


def _csv(ts: np.ndarray, states: np.ndarray) -> str:
    rows = [",".join(["t", *_columns(states)])]
    # More digits than these are not known.
    rows += [",".join(f"{x:.9g}" for x in (t, *row)) for t, row in zip(ts, states, strict=True)]
    return "\n".join(rows) + "\n"


def _parameters_of(system: System) -> dict[str, int | float]:
    return {n: type(d)(getattr(system, n)) for n, d in scalars_of(type(system)).items()}
