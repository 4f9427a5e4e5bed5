"""One interval whose steps are written on the tape."""

from collections.abc import Callable, Sequence

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from .adaptive import AdaptiveState, record_steps
from .breakpoints import make_breakpoints
from .delays import Entry, list_fixed_lags
from .grid import Grid
from .interval import Interval, Outcome
from .method import Method
from .parts import record_parts
from .solution import RESULTS
from .steps import make_empty_step, read_lags, take_equal_steps
from .tape import Piece, Recording, State, Tape, find_span, make_coefficients
from .vanishing import MOST_ITERATIONS, make_constant


def make_recording(
    method: Method,
    y: State,
    delays: Sequence[Entry],
    grid: Grid,
    found: Tape | None,
    keep_states: bool,
) -> Recording:
    """An empty tape, with room for `max_steps` steps or for all equal ones.

    The ends of equal steps are known beforehand, as are those of steps that are `found` already.
    With `keep_states` it keeps everything from which steps can be taken again.
    """
    t0, intervals = grid.starts[0], grid.num_intervals
    knots = jnp.concatenate([grid.starts, grid.end[None]])
    if found is not None:
        ts, first = found.ts, found.first
    elif method.steps is None:
        # Intervals of no length, which traced delays may make, have a step of no length.
        room = method.max_steps + (0 if grid.covered is True else intervals)
        ts = jnp.full(room + 1, jnp.inf, t0.dtype).at[0].set(t0)
        first = jnp.zeros(intervals + 1, int)
    else:
        fractions = (jnp.arange(method.steps) / method.steps).astype(t0.dtype)
        inside = grid.starts[:, None] + grid.lengths[:, None] * fractions
        ts = jnp.append(inside.reshape(-1), grid.starts[-1] + grid.lengths[-1])
        first = method.steps * jnp.arange(intervals + 1)
    room = lambda x: jnp.zeros((ts.shape[0] - 1, *x.shape), x.dtype)
    state, coefficients = make_empty_step(method.stepper, t0, y)
    powers = None if method.keeps_polynomials else int(keep_states)
    entries = list_fixed_lags(delays) if grid.num_dense else []
    record = lambda c: record_parts(entries, c, powers)
    coefficients = eqx.filter_eval_shape(record, coefficients)
    states = jax.tree.map(room, state) if keep_states else None
    is_even = found is None and method.steps is not None and grid.is_even
    breakpoints = None
    if found is not None:
        breakpoints = found.breakpoints
    elif method.steps is None and method.function_lags:
        breakpoints = make_breakpoints(ts.shape[0] - 1, method.function_lags)
    coefficients = jax.tree.map(room, coefficients)
    tape = Tape(ts, coefficients, first, knots, is_even, powers, breakpoints)
    return Recording(tape, states)


def record_interval(
    interval: Interval,
    method: Method,
    recording: Recording,
    row: Array,
    state: AdaptiveState | None,
    found: Tape | None,
    has_kink: Array | None = None,
) -> tuple[State, Recording, AdaptiveState | None, Outcome]:
    """Solves interval number `row`, whose lags read the tape, and writes its steps there.

    Adaptive steps are searched for, not reverse-differentiably, unless they are `found` already.
    `has_kink` says whether the solution has a kink at the start, if lags are functions.
    """
    recording = _put_kink(recording, row, has_kink, found)
    interval = interval.with_tape(recording.tape, recording.tape.first[row])
    if method.steps is not None:
        y, recording, outcome = _record_equal_steps(interval, method, recording, row)
        return y, recording, state, outcome
    if found is None:
        assert state is not None
        y, state, recording = record_steps(interval, method, state, recording, row)
        return y, recording, state, Outcome(state.result, state.t, state.taus)
    y, recording = _take_found_steps(interval, method, recording, row, found)
    lags = interval.function_lags
    taus = None if lags is None else jnp.zeros_like(lags.low)
    return y, recording, state, Outcome(RESULTS.successful, interval.end, taus)


def _put_kink(recording: Recording, row: Array, has_kink: Array | None, found) -> Recording:
    """Adds the start of an interval to the breakpoints, if it is one."""
    tape = recording.tape
    if tape.breakpoints is None or has_kink is None or found is not None:
        return recording
    put = tape.breakpoints.put_knot(tape.first[row], tape.ts, has_kink & (row > 0))
    return recording.put_breakpoints(put)


def _record_equal_steps(
    interval: Interval, method: Method, recording: Recording, row: Array
) -> tuple[State, Recording, Outcome]:
    def keep(state, info):
        coefficients = make_coefficients(method.stepper.interpolation, info)
        coefficients = interval.record(coefficients, recording.tape)
        return None if recording.states is None else state, coefficients

    assert method.steps is not None
    unroll = method.unrolls_steps(interval.field)
    y, kept, outcome = take_equal_steps(interval, method.stepper, method.steps, keep, unroll)
    states, coefficients = kept
    return y, recording.put_all(row * method.steps, coefficients, states), outcome


def _take_found_steps(
    interval: Interval, method: Method, recording: Recording, row: Array, found: Tape
) -> tuple[State, Recording]:
    """Takes accepted steps again, reverse-differentiably and without a search."""
    stepper = method.stepper
    span = lambda number: find_span(found, number, row, interval.start, interval.length, None)

    def with_tape(tape, number, own=None):
        if interval.function_lags is None:
            return interval
        assert found.breakpoints is not None
        return interval.with_tape(tape, number, found.breakpoints.segments[number], own)

    def body(carry):
        number, y, state, recording = carry
        tape = recording.read()
        t, h = span(number)

        def take_step(own=None):
            of_step = with_tape(tape, number, own)
            f, lagged = of_step.vector_field(stepper.looks_ahead), read_lags(of_step, stepper, t, h)
            y1, _, info, after, _ = stepper.step(f, t, h, y, state, lagged)
            return y1, after, make_coefficients(stepper.interpolation, info)

        if method.vanishes:
            y, after, coefficients = _repeat_step(take_step, t, h, found.take(number).coefficients)
        else:
            y, after, coefficients = take_step()
        coefficients = interval.record(coefficients, recording.tape)
        return number + 1, y, after, recording.put(number, None, coefficients, state, True)

    first, own = found.first[row], None
    if method.vanishes:
        like = found.take(first).coefficients
        own = make_constant(interval.start, span(first)[1], interval.y, like)
    f = with_tape(recording.tape, first, own).vector_field(stepper.looks_ahead)
    state = stepper.begin(f, interval.start, span(first)[1], interval.y)
    _, y, _, recording = eqxi.while_loop(
        lambda carry: carry[0] < found.first[row + 1],
        body,
        (first, interval.y, state, recording),
        kind="bounded",
        max_steps=found.ts.shape[0] - 1,
        buffers=lambda carry: carry[3].buffers(),
    )
    return y, recording


def _repeat_step(take_step: Callable, t: Array, h: Array, coefficients: PyTree) -> tuple:
    """Takes a step that reads itself, beginning with its coefficients.

    The derivative converges with each repetition as the step has done.
    """

    def repeat(coefficients, _):
        y, after, coefficients = take_step(Piece(t, t + h, coefficients))
        return coefficients, (y, after)

    start = lax.stop_gradient(coefficients)
    coefficients, each = lax.scan(repeat, start, None, length=MOST_ITERATIONS)
    y, after = jax.tree.map(lambda x: x[-1], each)
    return y, after, coefficients
