"""`solve`: checks its input once, then goes interval by interval."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree, Shaped

from .adaptive import Pace, first_pace
from .arguments import is_traced
from .checks import (
    check_delays,
    check_delays_against_span,
    check_enough_intervals,
    check_fields,
    check_intervals,
    check_number_of_fields,
    check_options,
    check_progress_meter,
    check_resolution,
    check_saveat,
    check_solver,
    check_span,
    check_steps,
    checked_controller,
    checked_gradient,
    checked_state,
    dynamic_scalars,
    with_tolerances,
    without_times,
)
from .delays import Delay, Hold, Lag, RealScalar
from .failure import fill, make_missing
from .field import (
    Field,
    has_hold,
    has_products,
    is_constant,
    jaxpr_of,
    make_field,
    make_past,
    uses_time,
)
from .gradients import Checkpointed, Gradient, Method, cross
from .grid import Grid, make_grid
from .history import Past, Records, Ring
from .interval import Interval
from .saving import Places, collect, make_places, steps_of, sub_saves
from .solution import RESULTS, Knots, Solution, SolveError, within
from .steps import Stepper, empty_infos, is_finite, make_stepper


def solve(
    field: Callable | Sequence[Callable],
    t0: RealScalar,
    t1: RealScalar,
    y0: PyTree[Shaped[ArrayLike, "..."]] | Callable,
    args: PyTree = None,
    *,
    delays: Sequence[Delay] = (),
    solver: diffrax.AbstractSolver = diffrax.Tsit5(),
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    steps: int | None = None,
    dt0: RealScalar | None = None,
    intervals: int | None = None,
    saveat: diffrax.SaveAt = diffrax.SaveAt(t1=True),
    gradient: Gradient = Checkpointed(),
    max_steps: int = 4096,
    throw: bool = True,
    progress_meter: diffrax.AbstractProgressMeter = diffrax.NoProgressMeter(),
    **unknown: Any,
) -> Solution:
    """Solves dy/dt = field(t, y, args, history=...) from t0 to t1.

    **Arguments:**

    - `field`: `f(t, y, args, *, history)`, shaped like `y`. A list of fields has one for each
      interval (parameters that are not shared). A field may offer a method `hold(history)`: it is
      then called once an interval, and its result is passed as `history` instead.
    - `t0`, `t1`: the span; t1 >= t0.
    - `y0`: the state at t0, any pytree of floating point or complex arrays; or a function of time,
      the past for t <= t0. A value means that the past was constant.
    - `args`: passed to the field.
    - `delays`: what `history` holds, one entry for each: `Hold`, `holds(...)`, `Lag`. None at all
      is an ordinary differential equation.
    - `solver`: any ODE solver of diffrax.
    - `stepsize_controller`: of diffrax; by default adaptive, `PIDController(rtol=1e-5,
      atol=1e-7)`. The length of the steps is carried across breakpoints. The `jump_ts` of a
      `ClipStepSizeController` become breakpoints; they may be traced and differentiated.
    - `steps`: this many equal steps in each interval instead of adaptive ones: the fast path.
    - `dt0`: the first adaptive step; found by itself if left out.
    - `intervals`: needed where a delay, t0 or t1 is traced (trained, vmapped): at least as many as
      there are periods of the shortest delay in the span, and one more for a hold that has no
      instant at t0. (A traced `Lag` passes the kink at the instant of a `Hold` on once, not
      further, so that high orders may suffer a little.)
    - `saveat`: as in diffrax. Build it outside `jit`: its times are then known beforehand, which is
      cheaper.
    - `gradient`: `Checkpointed()`, `Direct()` or `Adjoint()`.
    - `max_steps`: at most this many adaptive steps, rejected ones included. Where there are many
      intervals, each may take at most four times its share of them, or 1024. With a `Lag`, or with
      dense output, room for so many steps is kept (for 256 at least): lower it for large states.
    - `throw`: raise where the solve fails; otherwise see `Solution.result`.
    - `progress_meter`: as in diffrax, moved on at every breakpoint.

    **Returns:** a `Solution`.
    """
    if unknown:
        check_options(unknown, solve)
    check_delays(delays)
    delays = list(delays)
    fields = check_fields(field, delays)
    check_span(t0, t1)
    check_delays_against_span(delays, t0, t1)
    check_solver(solver)
    check_progress_meter(progress_meter)
    check_steps(steps, max_steps, stepsize_controller, dt0)
    adaptive = steps is None
    stepsize_controller, step_ts, jump_ts = without_times(stepsize_controller)
    controller = checked_controller(solver, stepsize_controller, dt0) if adaptive else None
    y0, past, dtype = checked_state(y0, t0)
    solver = with_tolerances(solver, controller, dtype)
    check_saveat(saveat, t0, t1, dtype)
    gradient = checked_gradient(gradient, delays, solver, controller, saveat, dtype)
    check_resolution(delays, t0, t1, dtype)
    if isinstance(fields, list) and intervals is None:
        intervals = len(fields)  # one for each, which is checked below
    else:
        check_intervals(intervals, delays, t0, t1)
    grid = make_grid(
        delays, t0, t1, intervals=intervals, levels=_order(solver), dtype=dtype, jump_ts=jump_ts
    )
    check_number_of_fields(fields, grid.num, delays, t0, t1)
    if jump_ts is None:
        check_enough_intervals(intervals, grid.num, delays)
    places = make_places(saveat, grid, dtype)
    args, dt0, traceable = dynamic_scalars((args, dt0, list(delays)))
    problem = _Problem(
        fields,
        args,
        y0,
        past,
        traceable,
        solver,
        controller,
        step_ts,
        steps,
        dt0,
        max_steps,
        gradient,
        saveat,
        progress_meter,
        [t for t in (t0, t1) if is_traced(t)],
    )
    solution = _solve(problem, _as_arrays(grid), _as_arrays(places))
    return _thrown(solution) if throw else solution


def _order(solver: diffrax.AbstractSolver) -> int:
    return int(solver.order(diffrax.ODETerm(lambda t, y, args: y)) or 1)


class _Problem(NamedTuple):
    fields: Callable | list[Callable]
    args: PyTree
    y0: PyTree
    past: Callable | None
    delays: list[Delay]
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController | None
    step_ts: Any
    steps: int | None
    dt0: RealScalar | None
    max_steps: int
    gradient: Gradient
    saveat: diffrax.SaveAt
    meter: diffrax.AbstractProgressMeter
    traced_ends: list[Any]  # of t0 and t1 those that are traced, for the gradient of a failure


class _Carry(NamedTuple):
    """What one interval hands to the next. `ring[j]` is the state j breakpoints ago, `records` the
    dense output of the last intervals, for lags."""

    ring: Ring
    records: Records | None
    pace: Pace | None
    result: RESULTS
    failed_at: Array
    meter: PyTree


def _as_arrays(tree: PyTree) -> PyTree:
    """NumPy arrays, known beforehand, become arguments of the compiled program."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, tree)


@eqx.filter_jit
def _solve(problem: _Problem, grid: Grid, places: Places) -> Solution:
    y0, past = problem.y0, problem.past
    initial = make_past(past, y0, grid.starts[0])
    given = problem.fields if isinstance(problem.fields, list) else [problem.fields]
    fields = [make_field(f, grid.starts[0], y0, problem.args, problem.delays) for f in given]
    jaxprs = [jaxpr_of(f, grid.starts[0], y0, problem.args, problem.delays) for f in fields]
    breakpoints = bool(problem.delays) or grid.num > 1
    fields = [
        dataclasses.replace(f, may_jump=breakpoints and uses_time(j))
        for f, j in zip(fields, jaxprs, strict=True)
    ]
    method = _method(problem, fields, jaxprs, grid, places)
    rows = _rows(grid, places)
    unrolled = isinstance(problem.fields, list)
    if not unrolled and method.unroll and _unrolls(method.steps, method.stepper, grid.num):
        fields, unrolled = _merging_fields(problem, fields[0], grid), True

    def step(field, carry, row):
        interval = _interval(problem, field, grid, initial, carry, row)
        return _cross(problem, method, grid, interval, carry, row)

    carry = _first_carry(problem, method, fields[0], grid, initial, rows)
    if not unrolled:
        carry, out = lax.scan(lambda c, row: step(fields[0], c, row), carry, rows)
    else:
        outs = []
        for i, field in enumerate(fields):
            carry, out = step(field, carry, jax.tree.map(lambda x: x[i], rows))  # noqa: B023
            outs.append(out)
        out = jax.tree.map(lambda *x: jnp.stack(x), *outs)
    problem.meter.close(carry.meter)
    missing = make_missing((fields, initial, problem, grid, places), grid.starts.dtype)
    return _solution(problem, method, grid, places, carry, out, missing)


def _merging_fields(problem: _Problem, field: Field, grid: Grid) -> list[Field]:
    """The one field for each interval, told which held states are the same there: before the start
    all of them are the first one."""
    given: Any = problem.fields
    of_places = {tuple(range(len(problem.delays))): field}
    fields = []
    for number in range(grid.num):
        places = _places_of_holds(problem, grid, number)
        if places is None or not has_hold(given):
            fields.append(field)
            continue
        if places not in of_places:
            t, y0, args, delays = grid.starts[0], problem.y0, problem.args, problem.delays
            merging = make_field(given, t, y0, args, delays, places)
            of_places[places] = dataclasses.replace(merging, may_jump=field.may_jump)
        fields.append(of_places[places])
    return fields


def _places_of_holds(problem: _Problem, grid: Grid, number: int) -> tuple[int, ...] | None:
    """Which entry of the history each one is in interval `number`, itself or an earlier one. None
    where that is not known when traced."""
    if problem.past is not None or not all(isinstance(d, Hold) for d in problem.delays):
        return None
    if not all(isinstance(age, int) for age in grid.ages):
        return None
    states = [max(number - age, 0) for age in grid.ages]
    return tuple(states.index(state) for state in states)


def _method(
    problem: _Problem, fields: list[Field], jaxprs: list[Any], grid: Grid, places: Places
) -> Method:
    stepper = make_stepper(problem.solver)
    steps_saved = any(sub.steps for sub in sub_saves(problem.saveat))
    has_lags = any(isinstance(d, Lag) for d in problem.delays)
    record = bool(grid.window or steps_saved or problem.saveat.dense)
    return Method(
        stepper=stepper,
        controller=problem.controller,
        steps=problem.steps,
        max_steps=problem.max_steps,
        constant=not has_lags and all(is_constant(j) for j in jaxprs),
        unroll=_unrolls(problem.steps, stepper) and all(has_products(j) for j in jaxprs),
        record=record,
        room=_room(problem, grid, record),
        smooth=stepper.state_is_slope and _smooth(problem, has_lags) and not _may_jump(fields),
        step_ts=problem.step_ts,
    )


def _smooth(problem: _Problem, has_lags: bool) -> bool:
    """Whether the field is continuous at breakpoints: not where a held state changes, nor where a
    lag passes t0 and the given past may jump to y0."""
    jumps = has_lags and problem.past is not None
    return not jumps and not any(isinstance(d, Hold) for d in problem.delays)


def _may_jump(fields: list[Field]) -> bool:
    return len(fields) > 1 or fields[0].may_jump


def _room(problem: _Problem, grid: Grid, record: bool) -> int:
    """How many steps an interval may take: with a record all of these are kept, without one their
    ends, for the gradient. One interval may take all of `max_steps`; of many, one that takes many
    times its share is given up, so that the others need not keep room for as many."""
    if problem.steps is not None:
        return problem.steps
    return min(problem.max_steps, max(256 if record else 1024, 4 * problem.max_steps // grid.num))


def _unrolls(steps: int | None, stepper: Stepper, intervals: int = 1) -> bool:
    """Whether there are so few evaluations (of the steps of one interval, or of all of them) that a
    loop costs more than it saves. The limit is a compromise with the time compilation takes; the
    gain on a GPU is in benchmarks/NOTES.md."""
    cost = stepper.evaluations(True)
    return steps is not None and cost is not None and intervals * steps * cost[1] <= 32


class _Row(NamedTuple):
    """One interval's share of the grid."""

    number: Array
    start: Array
    length: Array
    save_at: Array
    ages: list[Array | None]
    past_times: list[Array]
    from_past: list[Array | None]


def _rows(grid: Grid, places: Places) -> _Row:
    return _Row(
        jnp.arange(grid.num),
        grid.starts,
        grid.lengths,
        places.save_at,
        [None if isinstance(a, int) else a for a in grid.ages],
        grid.past_times,
        [None if isinstance(f, bool) else f for f in grid.from_past],
    )


def _interval(problem: _Problem, field, grid: Grid, initial, carry: _Carry, row: _Row) -> Interval:
    """The equation over one interval, with its held states looked up."""

    def held(d):
        static_age = grid.ages[d]
        age = static_age if isinstance(static_age, int) else row.ages[d]
        value = carry.ring[age]
        if problem.past is None or row.from_past[d] is None:
            return value
        before = initial(row.past_times[d])
        return jax.tree.map(lambda b, v: jnp.where(row.from_past[d], b, v), before, value)

    number = iter(range(len(problem.delays)))  # of the hold, as in the grid
    # A lag over the whole span of a constant past is that constant.
    lagged = problem.y0 if problem.past is None and grid.window == 0 else None
    history = [held(next(number)) if isinstance(d, Hold) else lagged for d in problem.delays]
    past = None
    if any(h is None for h in history):
        taus = [jnp.asarray(d.tau, row.start.dtype) for d in problem.delays if isinstance(d, Lag)]
        past = Past(taus, initial, grid.starts[0], carry.records)
    return Interval(
        field, problem.args, carry.ring[0], history, past, row.start, row.length, row.save_at
    )


def _first_carry(problem: _Problem, method: Method, field, grid: Grid, initial, rows) -> _Carry:
    row = jax.tree.map(lambda x: x[0], rows)
    if all(isinstance(age, int) for age in grid.ages):
        ring = Ring([problem.y0] * grid.ring, False)
    else:
        repeat = lambda x: jnp.broadcast_to(x, (grid.ring, *x.shape))
        ring = Ring(jax.tree.map(repeat, problem.y0), True)
    nan = jnp.asarray(jnp.nan, row.start.dtype)
    carry = _Carry(ring, None, None, RESULTS.successful, nan, problem.meter.init())
    if grid.window:
        carry = carry._replace(records=_no_records(problem, method, grid))
    if method.steps is None and not method.constant:
        interval = _interval(problem, field, grid, initial, carry, row)
        t1 = grid.end
        pace = first_pace(
            interval, method.stepper, method.controller, problem.dt0, t1, method.smooth
        )
        carry = carry._replace(pace=pace)
    return carry


def _no_records(problem: _Problem, method: Method, grid: Grid) -> Records:
    """Records that are never looked at, since they lie before t0, but can be interpolated."""
    t0 = grid.starts[0]
    ts = jnp.full((grid.window, method.room + 1), t0 - 1).at[:, 0].set(t0 - 2)
    if method.steps is None:
        ts = ts.at[:, 2:].set(jnp.inf)
    infos = empty_infos(method.stepper, t0, problem.y0, (grid.window, method.room))
    return Records(ts, infos, method.stepper.interpolation, jnp.asarray(0))


def _cross(problem: _Problem, method: Method, grid: Grid, interval, carry: _Carry, row: _Row):
    leg, pace, outcome = cross(interval, method, problem.gradient, carry.pace)
    records = carry.records
    if records is not None:
        assert leg.record is not None
        records = records.pushed(leg.record)
    failed = (carry.result == RESULTS.successful) & (outcome.result != RESULTS.successful)
    carry = _Carry(
        carry.ring.pushed(leg.y),
        records,
        pace,
        RESULTS.where(failed, outcome.result, carry.result),
        jnp.where(failed, outcome.t, carry.failed_at),
        problem.meter.step(carry.meter, (row.number + 1) / grid.num),
    )
    return carry, (leg.y, is_finite(leg.y), leg.saves, leg.record if method.record else None)


def _solution(
    problem: _Problem, method: Method, grid: Grid, places: Places, carry: _Carry, out, missing
) -> Solution:
    ys, finite, saves, record = out
    t0, t1 = grid.starts[0], grid.end
    ts = jnp.concatenate([grid.starts, t1[None]])
    good = jnp.concatenate([is_finite(problem.y0)[None], finite])
    inside = within(places.ts, t0, t1)
    result, failed_at = _result(grid, ts, good, carry)
    unsaved = ~jnp.all(inside) & (result == RESULTS.successful)
    result = RESULTS.where(unsaved, RESULTS.saved_outside, result)
    valid = lambda ts: ((ts <= failed_at) | jnp.isnan(failed_at)) & grid.covered
    # Nothing else looks at all the knots: a compiled program that does not either keeps none.
    all_ys = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), problem.y0, ys)
    knots = Knots(ts, fill(valid(ts) & good, all_ys, missing))
    y1 = fill(valid(t1) & good[-1], carry.ring[0], missing)
    records = None
    if record is not None:
        linear = diffrax.LocalLinearInterpolation
        interpolation = linear if method.constant else method.stepper.interpolation
        step_ends, infos = record
        records = Records(step_ends, infos, interpolation)

    def at_steps():
        assert records is not None
        size = grid.num if method.constant else grid.num * (method.steps or 0)
        if not method.constant and method.steps is None:
            size = problem.max_steps
        ts, ys, count = steps_of(records, size)
        return ts, fill(valid(ts) | jnp.isinf(ts), ys, missing), count

    ts, ys = collect(
        problem.saveat,
        problem.args,
        (t0, t1),
        (problem.y0, y1),
        (places.ts, fill(valid(places.ts) & inside, _saved(places, saves), missing)),
        at_steps,
    )
    return Solution(
        t0=t0,
        t1=t1,
        ts=ts,
        ys=ys,
        knots=knots,
        stats=_stats(problem, method, grid, places, carry),
        result=result,
        failed_at=lax.stop_gradient(failed_at),
        dense=records if problem.saveat.dense else None,
        _missing=missing,
    )


def _saved(places: Places, saves: PyTree) -> PyTree:
    """The saved states in the order of the times."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[places.index], saves)


def _result(grid: Grid, ts: Array, good: Array, carry: _Carry) -> tuple[RESULTS, Array]:
    """`good` says at which of the knots, whose times are `ts`, the state is finite."""
    lost = ~jnp.all(good) & (carry.result == RESULTS.successful)
    result = RESULTS.where(lost, RESULTS.state_not_finite, carry.result)
    failed_at = jnp.where(lost, ts[jnp.argmin(good)], carry.failed_at)
    if grid.covered is not True:
        result = RESULTS.where(grid.covered, result, RESULTS.intervals_too_few)
    return result, failed_at


def _stats(problem: _Problem, method: Method, grid: Grid, places: Places, carry: _Carry) -> dict:
    n = grid.num
    # Traced breakpoints may coincide: intervals of no length are evaluated, and are no steps.
    some = n if grid.covered is True else jnp.sum(grid.lengths > 0)
    if method.constant:
        accepted, rejected, evaluations = some, 0, n
    elif method.steps is not None:
        accepted, rejected = some * method.steps, 0
        cost = method.stepper.evaluations(method.record or places.save_at.shape[1] > 0)
        evaluations = None if cost is None else n * (cost[0] + method.steps * cost[1])
    else:
        assert carry.pace is not None
        accepted, rejected = carry.pace.accepted, carry.pace.rejected
        cost = method.stepper.evaluations(True)
        evaluations = None
        if cost is not None:
            begins = cost[0] * (1 if method.smooth else n)
            search = 2 if problem.dt0 is None else 0
            evaluations = search + begins + cost[1] * (accepted + rejected)
    return {
        "num_intervals": n,
        "num_steps": accepted + rejected,
        "num_accepted_steps": accepted,
        "num_rejected_steps": rejected,
        "num_evaluations": evaluations,
        "max_steps": problem.max_steps,
    }


def _thrown(solution: Solution) -> Solution:
    result = solution.result
    failed = result != RESULTS.successful
    if is_traced(failed):
        # Inside jit the time is not known when the message is written.
        ys, knots, dense = result.error_if((solution.ys, solution.knots, solution.dense), failed)
        return dataclasses.replace(solution, ys=ys, knots=knots, dense=dense)
    if failed:
        # Outside of jit, jax.grad knows the times, too, but as tracers.
        failed_at = lax.stop_gradient(solution.failed_at)
        where = f" It failed at t = {float(failed_at):g}."
        if result == RESULTS.max_steps_reached:
            where += _why_more(solution)
        raise SolveError(f"{RESULTS[result]}{where if jnp.isfinite(failed_at) else ''}")
    return solution


def _why_more(solution: Solution) -> str:
    intervals, max_steps = solution.stats["num_intervals"], solution.stats["max_steps"]
    t0, t1, failed_at = lax.stop_gradient((solution.t0, solution.t1, solution.failed_at))
    apart = jnp.finfo(t0.dtype).eps * jnp.abs(failed_at)
    if apart * 10**4 > (t1 - t0) / intervals:
        return (
            f" In {t0.dtype}, times there are {float(apart):.1g} apart, too far for "
            "intervals and steps as short as these: more of them do not help. Use float64 "
            "(jax.config.update('jax_enable_x64', True)), or let the span begin near 0."
        )
    if intervals > max_steps // 2:
        return (
            f" The delays make {intervals:,} intervals, and each of these takes a step at least: "
            f"give max_steps={max(8 * intervals, 2 * max_steps)}."
        )
    return (
        " If more do not take it further, the solution is infinite there. (Where there are many "
        "intervals, one may take at most four times its share.)"
    )
