"""The checked equation that `solve` is given, with its breakpoints and its method."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .arguments import is_traced
from .checks import (
    check_delays,
    check_enough_intervals,
    check_fields,
    check_intervals,
    check_number_of_fields,
    check_number_of_periods,
    check_progress_meter,
    check_resolution,
    check_saveat,
    check_span,
    check_state,
)
from .delays import Entry
from .gradients import Gradient
from .grid import Grid, make_grid
from .jumps import Jump, check_jumps
from .method import Method, find_order, make_method
from .method_checks import (
    check_controller,
    check_gradient,
    check_solver,
    check_steps,
    check_vanishing,
    set_tolerances,
    take_times,
)
from .saving import SaveTimes, find_save_times


class Problem(NamedTuple):
    """A checked equation and how to solve it.

    - `fields`: one field for all intervals if `is_shared`, otherwise one for each.
    - `y0`, `past`: the state at t0, and the past as a function of time or None if it is constant.
    - `traced_ends`: those of t0 and t1 that are traced; the gradient of a failure reaches them.
    """

    fields: list[Callable]
    is_shared: bool
    args: PyTree
    y0: PyTree
    past: Callable | None
    delays: list[Entry]
    jumps: list[Jump]
    grid: Grid
    method: Method
    gradient: Gradient
    saveat: diffrax.SaveAt
    save_times: SaveTimes
    meter: diffrax.AbstractProgressMeter
    traced_ends: list[Any]


class _InitialValueProblem(NamedTuple):
    """The checked equation. `dtype` is that of time, for the other fields see `Problem`."""

    fields: list[Callable]
    is_shared: bool
    y0: PyTree
    past: Callable | None
    dtype: Any
    delays: list[Entry]
    jumps: list[Jump]


def make_problem(
    field: Any,
    t0: Any,
    t1: Any,
    y0: Any,
    args: PyTree,
    *,
    delays: Any,
    jumps: Any,
    solver: Any,
    stepsize_controller: Any,
    steps: Any,
    dt0: Any,
    intervals: Any,
    saveat: Any,
    gradient: Any,
    max_steps: Any,
    progress_meter: Any,
) -> Problem:
    """Checks the arguments of `solve`, and finds the breakpoints and the method."""
    equation = _check_equation(field, t0, t1, y0, delays, jumps)
    dtype = equation.dtype
    check_solver(solver)
    check_progress_meter(progress_meter)
    check_steps(steps, max_steps, stepsize_controller, dt0)
    check_vanishing(equation.delays, steps)
    controller, step_ts, jump_ts = take_times(stepsize_controller)
    controller = check_controller(solver, controller, dt0) if steps is None else None
    solver = set_tolerances(solver, controller, dtype)
    check_saveat(saveat, t0, t1, dtype)
    gradient = check_gradient(gradient, equation.delays, solver, controller, saveat, dtype)
    grid = _make_checked_grid(equation, t0, t1, intervals, solver, jump_ts)
    args, dt0, delays = _as_dynamic((args, dt0, equation.delays))
    delays, jumps = _as_arrays((delays, equation.jumps))
    method = make_method(
        solver,
        controller,
        steps=steps,
        dt0=dt0,
        step_ts=step_ts,
        max_steps=max_steps,
        delays=delays,
        has_jumps=bool(jumps),
        has_past=equation.past is not None,
        is_shared=equation.is_shared,
        grid=grid,
        saveat=saveat,
    )
    return Problem(
        fields=equation.fields,
        is_shared=equation.is_shared,
        args=args,
        y0=equation.y0,
        past=equation.past,
        delays=delays,
        jumps=jumps,
        grid=_as_arrays(grid),
        method=method,
        gradient=gradient,
        saveat=saveat,
        save_times=_as_arrays(find_save_times(saveat, grid, dtype)),
        meter=progress_meter,
        traced_ends=[t for t in (t0, t1) if is_traced(t)],
    )


def _check_equation(
    field: Any, t0: Any, t1: Any, y0: Any, delays: Any, jumps: Any
) -> _InitialValueProblem:
    check_delays(delays)
    delays = list(delays)
    fields = check_fields(field, delays)
    check_span(t0, t1)
    check_number_of_periods(delays, t0, t1)
    y0, past, dtype = check_state(y0, t0)
    jumps = check_jumps(jumps, y0)
    if jumps and past is None:
        # A jump at t0 does not change the past.
        past = eqx.Partial(lambda y0, t: y0, y0)
    check_resolution(delays, jumps, t0, t1, dtype)
    is_shared = not isinstance(field, (list, tuple))
    return _InitialValueProblem(fields, is_shared, y0, past, dtype, delays, jumps)


def _make_checked_grid(
    equation: _InitialValueProblem, t0: Any, t1: Any, intervals: Any, solver: Any, jump_ts: Any
) -> Grid:
    """Makes the grid, and checks that the numbers of intervals and of fields suffice for it."""
    fields, delays, jumps = equation.fields, equation.delays, equation.jumps
    if equation.is_shared or intervals is not None:
        check_intervals(intervals, delays, t0, t1)
    else:
        intervals = len(fields)
    grid = make_grid(
        *(delays, t0, t1),
        intervals=intervals,
        # A jump of the state is a kink one lag later, so it is followed through one lag more.
        levels=find_order(solver) + bool(jumps),
        dtype=equation.dtype,
        jump_ts=jump_ts,
        jumps=jumps,
    )
    if not equation.is_shared:
        check_number_of_fields(fields, grid.num_intervals, delays, t0, t1)
    if jump_ts is None and not jumps:
        check_enough_intervals(intervals, grid.num_intervals, delays)
    return grid


def _as_arrays(tree: PyTree) -> PyTree:
    """Converts NumPy arrays, so that they are arguments of the compiled program."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, tree)


def _as_dynamic(tree: PyTree) -> PyTree:
    """Converts Python's floats, so that another value of a parameter needs no compilation."""

    def leaf(x):
        if isinstance(x, (float, np.floating)):
            return jnp.asarray(float(x))
        return jnp.asarray(complex(x)) if isinstance(x, (complex, np.complexfloating)) else x

    return jax.tree.map(leaf, tree)
