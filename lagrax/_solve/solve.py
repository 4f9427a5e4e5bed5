"""`solve` checks its arguments once, then goes from interval to interval."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree, Shaped

from .adaptive import AdaptiveState, start_adaptive
from .backward import Parts, differentiate_on_tape
from .checks import explain_call
from .delays import Entry, Hold, Input, RealScalar, list_fixed_lags
from .failure import make_nan, replace_invalid
from .field import Field, has_hold, make_field, make_fields, make_past
from .function_lags import make_function_lags, make_lag_functions
from .gradients import Checkpointed, Direct, Gradient, explain_forward_mode, solve_interval
from .history import KnotBuffer, make_knot_buffer, make_lag_reader
from .inputs import make_input_rows
from .interval import Interval
from .jumps import Jump, JumpRow, apply_jumps, make_jump_rows, make_jumps
from .parts import bind_delay
from .problem import Problem, make_problem
from .recording import make_recording, record_interval
from .saving import collect, in_order_of_times, list_subs, pack_steps, read_saves
from .solution import RESULTS, Knots, LagValues, Solution, is_close, is_within, raise_if_failed
from .steps import is_finite, select
from .tape import Recording, Tape, move_times


@explain_call
def solve(
    field: Callable | Sequence[Callable],
    t0: RealScalar,
    t1: RealScalar,
    y0: PyTree[Shaped[ArrayLike, "..."]] | Callable,
    args: PyTree = None,
    *,
    delays: Sequence[Entry] = (),
    jumps: Sequence[Jump] = (),
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
) -> Solution:
    """Solves dy/dt = field(t, y, args, history=...) from t0 to t1.

    **Arguments:**

    - `field`: a function `f(t, y, args, *, history)` that returns dy/dt, shaped like `y`. A list of
      fields has one for each interval, for parameters that are not shared. A field may have a
      method `hold(history)`, which is called once an interval; its result is then passed as
      `history`.
    - `t0`, `t1`: the start and the end, with t1 >= t0.
    - `y0`: the state at t0, any pytree of floating point or complex arrays. A value means that the
      past was constant. A function of time gives the past for t <= t0.
    - `args`: passed to the field.
    - `delays`: the entries of `history`, in this order: `Hold`, `holds(...)`, `Lag`, `LagMatrix`,
      `Slope`, `Distributed`, `Input`. Without any, the equation is an ordinary one.
    - `jumps`: instants at which the state changes, as a list of `Jump`.
    - `solver`: any ODE solver of diffrax. With a `Lag`, the order is limited by that of its
      dense output, about 4 with Tsit5 and 6 with Dopri8.
    - `stepsize_controller`: a controller of diffrax, by default `PIDController(rtol=1e-5,
      atol=1e-7)`. The step size is carried across knots. The `jump_ts` of a
      `ClipStepSizeController` become knots and may be traced and differentiated.
    - `steps`: the number of equal steps in each interval, instead of adaptive ones. This is the
      fast path.
    - `dt0`: the length of the first adaptive step, by default found automatically.
    - `intervals`: required if a delay, t0 or t1 is traced (trained or vmapped). Give at least the
      number of periods of the shortest delay in the span, plus one for a hold without an instant
      at t0. Knots for kinks behind several lags come in addition, for at most a hundred sums of
      traced lags. (With a traced `Lag`, knots follow the kink at an instant of a `Hold` through one
      lag only, so solvers of high order may be a little less accurate.)
    - `saveat`: as in diffrax. Build it outside of `jit`, so that its times are known before
      tracing, which is cheaper.
    - `gradient`: `Checkpointed()`, `Direct()` or `Adjoint()`.
    - `max_steps`: the maximum number of adaptive steps, rejected ones included. With a `Lag` or
      with dense output, memory is kept for this many steps, so lower it for large states. Without,
      and with many intervals, each may take at most four times its share of them, or 1024.
    - `throw`: raises a `SolveError` if the solve fails. Otherwise see `Solution.result`.
    - `progress_meter`: as in diffrax. It is updated at every knot.

    **Returns:** a `Solution`.
    """
    problem = make_problem(
        *(field, t0, t1, y0, args),
        delays=delays,
        jumps=jumps,
        solver=solver,
        stepsize_controller=stepsize_controller,
        steps=steps,
        dt0=dt0,
        intervals=intervals,
        saveat=saveat,
        gradient=gradient,
        max_steps=max_steps,
        progress_meter=progress_meter,
    )
    with explain_forward_mode(gradient, steps is None or problem.method.has_tape):
        solution = _solve(problem)
    return raise_if_failed(solution) if throw else solution


class _Carry(NamedTuple):
    """The state of the loop over intervals, which each interval passes on to the next.

    `before` are the states before jumps, or None if no hold samples them. `recording` is the tape,
    or None if nothing reads it. `adaptive` is None with equal steps.
    `failed_at` is NaN until the solve fails, and `taus` are the lags then that are functions.
    """

    knots: KnotBuffer
    before: KnotBuffer | None
    recording: Recording | None
    adaptive: AdaptiveState | None
    result: RESULTS
    failed_at: Array
    taus: Array | None
    meter: PyTree

    def find_state(self, hold: Hold, d: int, age: Any) -> PyTree:
        """The state that a hold sampled `age` breakpoints ago; `d` is not needed here."""
        del d
        before = self.before if hold.before_jumps else None
        return (self.knots if before is None else before)[age]


class _GridRow(NamedTuple):
    """One interval's share of the grid and of the saved times. `jumps` are those at its end."""

    number: Array
    start: Array
    length: Array
    save_at: Array
    ages: list[Array | None]
    past_times: list[Array]
    from_past: list[Array | None]
    has_kink: Array | None
    inputs: list[PyTree]
    jumps: list[JumpRow]


@eqx.filter_jit
def _solve(problem: Problem) -> Solution:
    grid, t0 = problem.grid, problem.grid.starts[0]
    initial = make_past(problem.past, problem.y0, t0)
    delays = [bind_delay(d, t0, problem.y0, problem.args) for d in problem.delays]
    problem = problem._replace(delays=delays)
    fields = make_fields(
        problem.fields, t0, problem.y0, problem.args, problem.delays, grid.num_intervals
    )
    problem = problem._replace(
        jumps=make_jumps(problem.jumps, t0, problem.y0, problem.args),
        delays=make_lag_functions(problem.delays, t0, problem.y0, problem.args),
    )
    if fields[0].is_constant and problem.method.has_tape:
        problem = problem._replace(method=problem.method.take_single_steps())
    sources = (fields, initial, problem, _make_rows(problem))
    if not problem.method.has_tape:
        carry, outputs = _solve_intervals(sources)
    elif isinstance(problem.gradient, Direct):
        carry, outputs = _solve_directly(sources)
    else:
        carry, outputs = _solve_with_backward(sources)
    problem.meter.close(carry.meter)
    return _make_solution(problem, fields[0], carry, outputs, make_nan(sources[:3], t0.dtype))


def _solve_intervals(
    sources: tuple, found: Tape | None = None, keep_states: bool = False
) -> tuple[_Carry, tuple]:
    """Goes from interval to interval.

    `sources` are the fields, the initial function, the problem, and the rows of its intervals. Also
    returns the state at the end of each interval, whether it is finite, and the saved states.
    `found` holds adaptive steps that are to be taken again. With `keep_states` the solver's states
    are recorded, for a backward pass.
    """
    fields, initial, problem, rows = sources
    carry = _make_first_carry(problem, fields[0], initial, rows, found, keep_states)
    advance = partial(_advance, problem, found)
    unroll = problem.method.unrolls_intervals(fields[0], problem.grid.num_intervals)
    if problem.is_shared and not unroll:
        return lax.scan(partial(advance, fields[0], initial), carry, rows)
    of_intervals = _merge_equal_holds(problem, fields[0]) if problem.is_shared else fields
    each = []
    for i, field in enumerate(of_intervals):
        row = jax.tree.map(lambda x: x[i], rows)  # noqa: B023
        carry, output = advance(field, initial, carry, row)
        each.append(output)
    return carry, jax.tree.map(lambda *x: jnp.stack(x), *each)


def _solve_directly(sources: tuple) -> tuple:
    """Solves on a tape. Adaptive steps are found first, then taken again with a derivative."""
    problem = sources[2]
    if problem.method.steps is not None:
        return _solve_intervals(sources)
    found, _ = _solve_intervals(
        jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, sources)
    )
    assert found.recording is not None
    tape = move_times(found.recording.tape, problem.grid.starts, problem.grid.lengths)
    taken, outputs = _solve_intervals(sources, tape)
    return found._replace(knots=taken.knots, recording=taken.recording), outputs


def _solve_with_backward(sources: tuple) -> tuple:
    """Solves on a tape with a backward pass of its own."""

    def forward(sources, keep_states):
        carry, (y1s, finite, _, before) = _solve_intervals(sources, keep_states=keep_states)
        recording = carry.recording
        assert recording is not None
        rest = carry._replace(knots=None, recording=None)
        answer = carry.knots[0], y1s, before, recording.tape.drop_starts(), finite, rest
        return answer, (recording.tape, recording.states)

    def make_interval(sources, number, row, y, held):
        fields, initial, problem = sources
        field = fields[0] if problem.is_shared else fields[number]
        return _make_interval(problem, field, initial, y, lambda hold, d, age: held[d], row)

    def pass_jumps(sources, row, y):
        problem = sources[2]
        return apply_jumps(problem.jumps, row.jumps, row.start + row.length, y, problem.args)

    parts = Parts(make_interval, lambda sources: _find_first_state(sources[2]), pass_jumps)
    y1, y1s, before, tape, finite, carry = differentiate_on_tape(forward, parts, sources)
    grid = sources[2].grid
    tape = move_times(tape, grid.starts, grid.lengths)
    knots = make_knot_buffer(y1, 1, False)
    return carry._replace(knots=knots, recording=Recording(tape, None)), (y1s, finite, None, before)


# --- the loop over intervals ----------------------------------------------------------------------


def _make_rows(problem: Problem) -> _GridRow:
    grid = problem.grid
    inputs = [d for d in problem.delays if isinstance(d, Input)]
    return _GridRow(
        jnp.arange(grid.num_intervals),
        grid.starts,
        grid.lengths,
        problem.save_times.fractions,
        [None if isinstance(a, int) else a for a in grid.ages],
        grid.past_times,
        [None if isinstance(f, bool) else f for f in grid.from_past],
        grid.kinks,
        [make_input_rows(d, sample) for d, sample in zip(inputs, grid.samples, strict=True)],
        [jax.tree.map(lambda x: x[1:], r) for r in _make_jump_rows(problem)],
    )


def _make_jump_rows(problem: Problem) -> list[JumpRow]:
    """The jumps at every knot."""
    pairs = zip(problem.jumps, problem.grid.events, strict=True)
    return [make_jump_rows(jump, number, problem.y0) for jump, number in pairs]


def _find_first_state(problem: Problem) -> PyTree:
    """The state after the jumps at t0."""
    at_start = [jax.tree.map(lambda x: x[0], r) for r in _make_jump_rows(problem)]
    return apply_jumps(problem.jumps, at_start, problem.grid.starts[0], problem.y0, problem.args)


def _make_first_carry(
    problem: Problem, field: Field, initial: Callable, rows: _GridRow, found, keep_states: bool
) -> _Carry:
    grid, method = problem.grid, problem.method
    stacked = not all(isinstance(age, int) for age in grid.ages)
    samples_before = any(isinstance(d, Hold) and d.before_jumps for d in problem.delays)
    recording = None
    if method.has_tape:
        recording = make_recording(method, problem.y0, problem.delays, grid, found, keep_states)
    carry = _Carry(
        make_knot_buffer(_find_first_state(problem), grid.num_knots, stacked),
        make_knot_buffer(problem.y0, grid.num_knots, stacked) if samples_before else None,
        recording,
        None,
        RESULTS.successful,
        jnp.full_like(grid.end, jnp.nan),
        jnp.zeros(method.function_lags, grid.end.dtype) if method.function_lags else None,
        problem.meter.init(),
    )
    if method.steps is None and not field.is_constant and found is None:
        row = jax.tree.map(lambda x: x[0], rows)
        interval = _make_interval(problem, field, initial, carry.knots[0], carry.find_state, row)
        interval = interval.with_tape(recording.tape if recording else None, jnp.asarray(0))
        carry = carry._replace(adaptive=start_adaptive(interval, method, grid.end))
    return carry


def _make_interval(
    problem: Problem, field: Field, initial: Callable, y: PyTree, find_state: Callable, row
) -> Interval:
    """The equation over one interval, without a tape.

    `find_state(hold, d, age)` gives the state at the breakpoint at which a hold, number d, looks.
    """
    grid = problem.grid

    def find_held(hold, d):
        static_age = grid.ages[d]
        value = find_state(hold, d, static_age if isinstance(static_age, int) else row.ages[d])
        if problem.past is not None and row.from_past[d] is not None:
            past = initial(row.past_times[d])
            value = select(row.from_past[d], past, value)
        return value if hold.of is None else hold.of(value)

    number = iter(range(len(problem.delays)))  # the grid counts holds alone
    inputs = iter(row.inputs)

    def find_entry(delay):
        if isinstance(delay, Hold):
            return find_held(delay, next(number))
        return next(inputs) if isinstance(delay, Input) else None

    history = [find_entry(d) for d in problem.delays]
    functions = make_function_lags(problem.delays, initial, grid.starts[0])
    lags, entries = None, list_fixed_lags(problem.delays)
    if entries:
        t0, is_first, reaches = grid.starts[0], row.number == 0, bool(grid.num_dense)
        lags = make_lag_reader(entries, initial, t0, row.start, is_first, reaches)
        if problem.past is None and not reaches and not any(d.needs_state for d in entries):
            # The past is constant, and no lag reaches a time after t0, so entries are constant.
            constant = iter(lags.complete(lags.read(row.start, jnp.array(True)), y))
            history = [next(constant) if h is None else h for h in history]
            lags = None
    return Interval(
        field, problem.args, y, history, lags, row.start, row.length, row.save_at, functions
    )


def _advance(problem: Problem, found, field: Field, initial: Callable, carry: _Carry, row):
    """Solves one interval and passes its end on to the next."""
    method, recording = problem.method, carry.recording
    interval = _make_interval(problem, field, initial, carry.knots[0], carry.find_state, row)
    if recording is None:
        solution, adaptive, outcome = solve_interval(
            interval, method, problem.gradient, carry.adaptive
        )
        end, saves = solution.y1, solution.saves
    else:
        end, recording, adaptive, outcome = record_interval(
            *(interval, method, recording, row.number, carry.adaptive, found, row.has_kink)
        )
        saves = None
    failed = (carry.result == RESULTS.successful) & (outcome.result != RESULTS.successful)
    y1 = apply_jumps(problem.jumps, row.jumps, interval.end, end, problem.args)
    carry = _Carry(
        carry.knots.push(y1),
        carry.before.push(end) if carry.before is not None else None,
        recording,
        adaptive,
        RESULTS.where(failed, outcome.result, carry.result),
        jnp.where(failed, outcome.t, carry.failed_at),
        select(failed, outcome.taus, carry.taus),
        problem.meter.step(carry.meter, (row.number + 1) / problem.grid.num_intervals),
    )
    return carry, (y1, is_finite(y1), saves, end if problem.jumps else None)


def _merge_equal_holds(problem: Problem, field: Field) -> list[Field]:
    """The shared field for each interval, traced so that it knows which held states are equal.

    All states from before t0 are the first one if the past is constant.
    """
    (given,) = problem.fields
    t0, y0, args, delays = problem.grid.starts[0], problem.y0, problem.args, problem.delays
    traced = {tuple(range(len(delays))): field}
    fields = []
    for number in range(problem.grid.num_intervals):
        equal_to = _find_equal_holds(problem, number)
        if equal_to is None or not has_hold(given):
            fields.append(field)
            continue
        if equal_to not in traced:
            merged = make_field(given, t0, y0, args, delays, equal_to)
            traced[equal_to] = dataclasses.replace(
                field, prepare=merged.prepare, evaluate=merged.evaluate
            )
        fields.append(traced[equal_to])
    return fields


def _find_equal_holds(problem: Problem, number: int) -> tuple[int, ...] | None:
    """The first entry of the history that equals each entry, in interval `number`.

    None if that is not known when traced.
    """
    ages = problem.grid.ages
    if problem.past is not None or not all(
        isinstance(d, Hold) and d.of is None for d in problem.delays
    ):
        return None
    if not all(isinstance(age, int) for age in ages):
        return None
    states = [max(number - age, 0) for age in ages]
    return tuple(states.index(state) for state in states)


# --- the answer -----------------------------------------------------------------------------------


def _make_solution(
    problem: Problem, field: Field, carry: _Carry, outputs: tuple, nan: Array
) -> Solution:
    y0 = _find_first_state(problem)
    grid, method, times = problem.grid, problem.method, problem.save_times
    y1s, finite, saves, before = outputs
    tape = None if carry.recording is None else carry.recording.tape
    t0, t1 = grid.starts[0], grid.end
    knot_ts = jnp.concatenate([grid.starts, t1[None]])
    # Only `knots` reads all these states: a compiled program that does not return it keeps none.
    put_first = lambda a, b: jnp.concatenate([a[None], b])
    knot_ys = jax.tree.map(put_first, y0, y1s)
    good = jnp.concatenate([is_finite(y0)[None], finite])
    inside = is_within(times.ts, t0, t1)
    result, failed_at = _find_result(problem, knot_ts, good, inside, carry)

    valid = lambda ts: ((ts <= failed_at) | jnp.isnan(failed_at)) & grid.covered
    y1 = replace_invalid(valid(t1) & good[-1], carry.knots[0], nan)
    saved = in_order_of_times(times, saves) if tape is None else read_saves(tape, times, grid)
    if problem.jumps and saved is not None:
        at_end = jax.vmap(select, in_axes=(0, None, 0))
        saved = at_end(is_close(times.ts, t1), carry.knots[0], saved)
    at_ts = replace_invalid(valid(times.ts) & inside, saved, nan)
    at_steps = None
    if any(sub.steps for sub in list_subs(problem.saveat)):
        room = method.max_steps if method.steps is None else grid.num_intervals * method.steps
        assert tape is not None
        step_ts, step_ys, count = pack_steps(tape, carry.knots[0], room)
        step_ys = replace_invalid(valid(step_ts) | jnp.isinf(step_ts), step_ys, nan)
        at_steps = step_ts, step_ys, count
    ts, ys = collect(
        *(problem.saveat, problem.args, (t0, y0), (t1, y1), (times.ts, at_ts), at_steps)
    )
    at_knots = lambda ys: replace_invalid(valid(knot_ts) & good, ys, nan)
    knots_after = at_knots(knot_ys)
    knots_before = knots_after
    if problem.jumps:
        knots_before = at_knots(jax.tree.map(put_first, problem.y0, before))
    return Solution(
        t0=t0,
        t1=t1,
        ts=ts,
        ys=ys,
        knots=Knots(knot_ts, knots_after, knots_before),
        stats=_make_stats(problem, field, carry),
        result=result,
        failed_at=lax.stop_gradient(failed_at),
        dense=tape if problem.saveat.dense else None,
        _jumps=bool(problem.jumps),
        _nan=nan,
        _lags=_find_lags(problem, carry.taus),
        _last_dt=None if carry.adaptive is None else carry.adaptive.dt,
    )


def _find_lags(problem: Problem, taus: Array | None) -> LagValues | None:
    """The lags that are functions, at the time of a failure, and their bounds."""
    lags = make_function_lags(problem.delays, lambda t: t, problem.grid.starts[0])
    if lags is None or taus is None:
        return None
    return lax.stop_gradient(LagValues(taus, lags.low, lags.high))


def _find_result(
    problem: Problem, ts: Array, good: Array, inside: Array, carry: _Carry
) -> tuple[RESULTS, Array]:
    """The result and the time of the failure.

    `good` says at which of the knots, whose times are `ts`, the state is finite. `inside` says
    which of the saved times lie in the span.
    """
    lost = ~jnp.all(good) & (carry.result == RESULTS.successful)
    result = RESULTS.where(lost, RESULTS.state_not_finite, carry.result)
    failed_at = jnp.where(lost, ts[jnp.argmin(good)], carry.failed_at)
    covered = problem.grid.covered
    if covered is not True:
        result = RESULTS.where(covered, result, RESULTS.intervals_too_few)
    unsaved = ~jnp.all(inside) & (result == RESULTS.successful)
    return RESULTS.where(unsaved, RESULTS.saved_outside, result), failed_at


def _make_stats(problem: Problem, field: Field, carry: _Carry) -> dict[str, Any]:
    grid, method, n = problem.grid, problem.method, problem.grid.num_intervals
    # If traced breakpoints coincide, intervals of no length are evaluated but are no steps.
    some = n if grid.covered is True else jnp.sum(grid.lengths > 0)
    evaluations = None
    if field.is_constant:
        accepted, rejected, evaluations = some, 0, n
    elif method.steps is not None:
        accepted, rejected = some * method.steps, 0
        saves = problem.save_times.fractions.shape[1] > 0
        cost = method.stepper.evaluations(method.has_tape or saves)
        if cost is not None:
            evaluations = n * (cost[0] + method.steps * cost[1])
    else:
        assert carry.adaptive is not None
        accepted, rejected = carry.adaptive.accepted, carry.adaptive.rejected
        cost = method.stepper.evaluations(True)
        if cost is not None:
            search = 2 if method.dt0 is None else 0
            begins = cost[0] * (1 if method.keeps_slope(field) else n)
            evaluations = search + begins + cost[1] * (accepted + rejected)
            evaluations += cost[1] * carry.adaptive.repeated
    return {
        "num_intervals": n,
        "num_steps": accepted + rejected,
        "num_accepted_steps": accepted,
        "num_rejected_steps": rejected,
        "num_evaluations": evaluations,
        "max_steps": method.max_steps,
    }
