"""`lagrax simulate`: a classical equation solved, drawn and written down."""

from pathlib import Path
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._files import write_atomically
from ._solve import solve
from .analysing import scalars_of
from .figures import COLOURS, PICTURES, Figure, Line, Panel, Points, draw
from .systems import HeldSystem, System

# More would take hours; a wrong unit of time asks for them easily.
MOST_INTERVALS = 1_000_000


class SimulateError(ValueError):
    """An equation cannot be simulated as asked; the message says why and what to do."""


def simulate(
    name: str,
    system: System,
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
    start = system.y0 if y0 is None else _start(y0, system.y0)
    _check_span(t1, float(np.asarray(system.tau)))
    picture = out or (None if csv else Path(f"{name}.png"))
    _check_paths(picture, csv)
    ts = np.linspace(0.0, t1, samples)
    solution = solve(
        system,
        0.0,
        t1,
        start,
        delays=system.delays,
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8),
        max_steps=_most_steps(system, t1),
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
    )
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
    return summary, [f"{evaluations} evaluations of the equation"]


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


def _start(text: str, like: Array) -> Array:
    try:
        numbers = [float(x) for x in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != like.size or not np.all(np.isfinite(numbers)):
        what = "one number" if like.size == 1 else f"{like.size} numbers with commas between"
        raise SimulateError(f"--y0 {text}: expected {what}.")
    return jnp.asarray(numbers, like.dtype).reshape(like.shape)


def _most_steps(system: System, t1: float) -> int:
    # Steps that a lag looks back at are kept, so there is room for fewer of them.
    each = 1000 if isinstance(system, HeldSystem) else 20
    return 4096 + each * int(t1 / float(np.asarray(system.tau)))


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
    rows += [
        ",".join(str(x) for x in (np.float32(t), *row)) for t, row in zip(ts, states, strict=True)
    ]
    return "\n".join(rows) + "\n"


def _parameters_of(system: System) -> dict[str, int | float]:
    return {n: type(d)(getattr(system, n)) for n, d in scalars_of(type(system)).items()}
