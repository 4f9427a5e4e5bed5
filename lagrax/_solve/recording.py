"""One interval whose steps are written on the tape."""

from collections.abc import Sequence

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .adaptive import AdaptiveState, record_steps
from .delays import Entry, LagEntry
from .grid import Grid
from .interval import Interval, Outcome
from .method import Method
from .parts import record_parts
from .solution import RESULTS
from .steps import make_empty_step, read_lags, take_equal_steps
from .tape import Recording, State, Tape, find_span, make_coefficients


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
    entries = [d for d in delays if isinstance(d, LagEntry)] if grid.num_dense else []
    record = lambda c: record_parts(entries, c, powers)
    coefficients = eqx.filter_eval_shape(record, coefficients)
    states = jax.tree.map(room, state) if keep_states else None
    is_even = found is None and method.steps is not None and grid.is_even
    tape = Tape(ts, jax.tree.map(room, coefficients), first, knots, is_even, powers)
    return Recording(tape, states)


def record_interval(
    interval: Interval,
    method: Method,
    recording: Recording,
    row: Array,
    state: AdaptiveState | None,
    found: Tape | None,
) -> tuple[State, Recording, AdaptiveState | None, Outcome]:
    """Solves interval number `row`, whose lags read the tape, and writes its steps there.

    Adaptive steps are searched for, not reverse-differentiably, unless they are `found` already.
    """
    interval = interval.with_tape(recording.tape)
    if method.steps is not None:
        y, recording, outcome = _record_equal_steps(interval, method, recording, row)
        return y, recording, state, outcome
    if found is None:
        assert state is not None
        y, state, recording = record_steps(interval, method, state, recording, row)
        return y, recording, state, Outcome(state.result, state.t)
    y, recording = _take_found_steps(interval, method, recording, row, found)
    return y, recording, state, Outcome(RESULTS.successful, interval.end)


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
    f = interval.vector_field(stepper.looks_ahead)
    span = lambda number: find_span(found, number, row, interval.start, interval.length, None)

    def body(carry):
        number, y, state, recording = carry
        t, h = span(number)
        lagged = read_lags(interval, stepper, t, h)
        y, _, info, after, _ = stepper.step(f, t, h, y, state, lagged)
        coefficients = make_coefficients(stepper.interpolation, info)
        coefficients = interval.record(coefficients, recording.tape)
        return number + 1, y, after, recording.put(number, None, coefficients, state, True)

    first = found.first[row]
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
