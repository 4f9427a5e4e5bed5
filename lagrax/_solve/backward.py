"""The backward pass of a solve on a tape, step by step. The program is one step long.

The tape holds the start of every step and everything that lags have read, so each step is taken
again by itself. Its vector-Jacobian product gives the cotangents of its start and of its reads. The
latter are added to a tape of cotangents, on which earlier steps find them.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from .delays import Hold
from .interval import Interval
from .steps import ExplicitRungeKutta, find_nodes, read_lags
from .tape import Piece, Recorded, State, Tape, add_piece, find_span, make_coefficients, move_times
from .vanishing import solve_transposed


class Parts(NamedTuple):
    """The parts of a solve between its steps, which the backward pass goes through again.

    `sources` are the fields, the initial function and the problem.

    - `make_interval(sources, number, row, y, held)`: an interval, given its first state and its
      held states.
    - `find_first_state(sources)`: the state at t0, after the jumps there.
    - `pass_jumps(sources, row, y)`: the state after the jumps at the end of an interval.
    """

    make_interval: Callable
    find_first_state: Callable
    pass_jumps: Callable


def differentiate_on_tape(solve: Callable, parts: Parts, sources: PyTree) -> PyTree:
    """Calls `solve(sources, keep_states=False)`, with a backward pass of its own.

    `sources` are those of `Parts`, and the rows of the intervals. `solve` returns the final state,
    the states at the ends of intervals after and before jumps, the tape and other values without a
    derivative. Its second result is for the backward pass: the whole tape and, on demand, the
    solver's states. Without jumps there are no states before them.
    """
    moving, still = eqx.partition(sources, eqx.is_inexact_array)
    arrays, rest = eqx.partition(still, eqx.is_array)

    @jax.custom_vjp
    def run(moving, arrays):
        return solve(eqx.combine(moving, arrays, rest), keep_states=False)[0]

    def run_forward(moving, arrays):
        answer, (tape, states) = solve(eqx.combine(moving, arrays, rest), keep_states=True)
        return answer, (moving, arrays, answer[2], tape, states)

    def run_backward(kept, cotangents):
        moving, arrays, before, tape, states = kept
        sources = eqx.combine(moving, arrays, rest)
        kept = before, tape, states
        bar = _pull_back(parts, sources, kept, *cotangents[:4])
        if sources[2].method.steps is None:
            bar = explain_second_reverse(bar)
        return bar, None

    run.defvjp(run_forward, run_backward)
    return run(moving, arrays)


def explain_second_reverse(cotangent: PyTree) -> PyTree:
    """Raises an error if the cotangent of a backward pass with a loop is pulled back once more."""
    message = (
        "This solve cannot be differentiated in reverse mode twice, since its backward pass has a "
        "loop over adaptive steps. Use gradient=lagrax.Direct(), or forward mode over reverse mode "
        "as in jax.hessian."
    )
    return eqxi.nondifferentiable_backward(cotangent, msg=message)


class _Cotangents(NamedTuple):
    """What the backward pass carries from step to step: cotangents of

    - `y`, `state`: the state and the solver's state at the start of the step before.
    - `tape`: what was read from the tape, or is in the answer.
    - `knots`: held states, by the number of the interval that begins with them.
    - `before`: the states before jumps, by the number of the knot; None without jumps.
    - `sources`: all numbers that the solve depends on.
    """

    y: State
    state: PyTree
    tape: Tape
    knots: State | None
    before: State | None
    sources: PyTree


def _pull_back(parts: Parts, sources, kept: tuple, y1: State, y1s: State, before, tape_bar: Tape):
    """The cotangent of the sources, given those of what the solve returned."""
    *sources, rows = sources
    kept_before, tape, states = kept
    problem = sources[2]
    put_first = lambda first, rest: jnp.concatenate([first[None], rest])
    all_before = None
    if kept_before is not None:
        all_before = jax.tree.map(put_first, problem.y0, kept_before)
    moving = eqx.filter(sources, eqx.is_inexact_array)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    state = jax.tree.map(lambda x: x[0], states)
    start = _Cotangents(
        y1,
        zeros(eqx.filter(state, eqx.is_inexact_array)),
        dataclasses.replace(
            tape.drop_starts(), ts=jnp.zeros_like(tape.ts), coefficients=tape_bar.coefficients
        ),
        zeros(y1s) if problem.grid.ages else None,
        jax.tree.map(lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x]), before),
        zeros(moving),
    )
    step = partial(_pull_back_interval, parts, sources, tape, states, all_before)
    numbers = range(problem.grid.num_intervals)
    if problem.is_shared:
        xs = jnp.array(numbers), rows, y1s
        bars, rows_bar = lax.scan(lambda bars, x: step(bars, *x), start, xs, reverse=True)
    else:
        bars, of_rows = start, []
        for number in reversed(numbers):
            of_interval = jax.tree.map(lambda x: x[number], (rows, y1s))  # noqa: B023
            bars, row_bar = step(bars, number, *of_interval)
            of_rows.insert(0, row_bar)
        rows_bar = jax.tree.map(lambda *x: jnp.stack(x), *of_rows)

    def first_state_and_times(sources):
        grid = sources[2].grid
        ts = move_times(tape, grid.starts, grid.lengths).ts
        return parts.find_first_state(sources), sources[2].y0, ts

    _, pull = eqx.filter_vjp(first_state_and_times, sources)
    y0_bar = jax.tree.map(jnp.zeros_like, bars.y)
    if bars.before is not None:
        y0_bar = jax.tree.map(lambda x: x[0], bars.before)
    return (*_add(bars.sources, *pull((bars.y, y0_bar, bars.tape.ts))), rows_bar)


def _add(*trees: PyTree) -> PyTree:
    return jax.tree.map(lambda *x: sum(x[1:], x[0]), *trees)


def _pull_back_interval(
    parts: Parts,
    sources,
    tape: Tape,
    states,
    before: State | None,
    bars: _Cotangents,
    number: Any,
    row: Any,
    y1_bar: State,
) -> tuple[_Cotangents, Any]:
    """The cotangents at the start of interval `number`, and that of its row."""
    problem, method = sources[2], sources[2].method
    bars = bars._replace(y=_add(bars.y, y1_bar))
    jumps_row_bar = None
    if before is not None:
        bars, jumps_row_bar = _pull_back_jumps(parts, sources, bars, number, row, before)
    first, count = tape.first[number], tape.first[number + 1] - tape.first[number]
    ages = [s if a is None else a for s, a in zip(problem.grid.ages, row.ages, strict=True)]
    places = [jnp.maximum(number - age, 0) for age in ages]
    held = _read_held(problem, tape, before, places)
    y = tape.start_of(first)
    interval, pull_interval = eqx.filter_vjp(
        lambda sources, row, held: parts.make_interval(sources, number, row, y, held),
        *(sources, row, held),
    )
    replay = _Replay(method, tape, number)
    of_interval = jax.tree.map(jnp.zeros_like, eqx.filter(interval, eqx.is_inexact_array))

    def pull_step(k, carry):
        y_bar, state_bar, tape_bar, of_interval = carry
        # In a batch, other solves may have more steps here.
        active = k < count
        j = jnp.maximum(first + count - 1 - k, first)
        state = jax.tree.map(lambda x: x[j], states)
        coefficients_bar = jax.tree.map(lambda x: x[j], tape_bar.coefficients)
        reads, where = replay.read(interval, j, tape.start_of(j), state)
        own = replay.own(j) if method.vanishes else None
        _, pull = eqx.filter_vjp(
            partial(replay.step, j), interval, tape.start_of(j), state, reads, own
        )
        if method.vanishes:
            parts_bar = coefficients_bar.parts
            pull_own = lambda bar: pull((y_bar, Recorded(bar, parts_bar), state_bar))[4]
            own_bar = solve_transposed(pull_own, coefficients_bar.state)
            coefficients_bar = Recorded(own_bar, parts_bar)
        new = pull((y_bar, coefficients_bar, state_bar))[:4]
        if method.steps is None:
            new = jax.tree.map(lambda x: jnp.where(active, x, 0), new)
            keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(active, n, o), new, old)
            new = new[0], keep(new[1], y_bar), keep(new[2], state_bar), new[3]
        tape_bar = replay.add(interval, tape_bar, where, new[3])
        return new[1], new[2], tape_bar, _add(of_interval, new[0])

    most = eqxi.unvmap_max(count) if method.steps is None else method.steps
    carry = (bars.y, bars.state, bars.tape, of_interval)
    carry = lax.fori_loop(0, most, pull_step, carry)
    y_bar, state_bar, tape_bar, of_interval = _pull_begin(replay, interval, y, carry)
    sources_bar, row_bar, held_bar = pull_interval(of_interval)
    bars = _add_held(bars, problem, places, held_bar)
    if bars.knots is not None:
        y_bar = jax.tree.map(lambda y, rows: y + rows[number], y_bar, bars.knots)
    sources_bar = _add(bars.sources, sources_bar)
    bars = _Cotangents(y_bar, state_bar, tape_bar, bars.knots, bars.before, sources_bar)
    return bars, row_bar if jumps_row_bar is None else _add(row_bar, jumps_row_bar)


def _read_held(problem, tape: Tape, before: State | None, places: list) -> list[State]:
    """The states that holds look at, by the numbers of the knots."""

    def read(hold: Hold, place: Any) -> State:
        if hold.before_jumps and before is not None:
            return jax.tree.map(lambda rows: rows[place], before)
        return tape.start_of(tape.first[place])

    holds = [d for d in problem.delays if isinstance(d, Hold)]
    return [read(hold, place) for hold, place in zip(holds, places, strict=True)]


def _add_held(bars: _Cotangents, problem, places: list, held_bar: list) -> _Cotangents:
    """Adds the cotangents of held states to those of the knots."""
    holds = [d for d in problem.delays if isinstance(d, Hold)]
    for hold, place, of_place in zip(holds, places, held_bar, strict=True):
        add = lambda rows, x: rows.at[place].add(x)  # noqa: B023
        if hold.before_jumps and bars.before is not None:
            bars = bars._replace(before=jax.tree.map(add, bars.before, of_place))
        else:
            bars = bars._replace(knots=jax.tree.map(add, bars.knots, of_place))
    return bars


def _pull_back_jumps(
    parts: Parts, sources, bars: _Cotangents, number: Any, row: Any, before: State
) -> tuple[_Cotangents, Any]:
    """Goes back through the jumps at the end of an interval, from the state after to that before.

    `before` are the states before the jumps at all knots. The cotangent jumps by the transposed
    derivative. Also returns that of the row.
    """
    end = jax.tree.map(lambda rows: rows[number + 1], before)
    _, pull = eqx.filter_vjp(parts.pass_jumps, sources, row, end)
    sources_bar, row_bar, y_bar = pull(bars.y)
    y_bar = jax.tree.map(lambda y, rows: y + rows[number + 1], y_bar, bars.before)
    return bars._replace(y=y_bar, sources=_add(bars.sources, sources_bar)), row_bar


def _pull_begin(replay: "_Replay", interval: Interval, y: State, carry: tuple) -> tuple:
    """Pulls the cotangent of the solver's state back to the start of the interval that makes it.

    If the state passes on from interval to interval, that is the first interval.
    """
    y_bar, state_bar, tape_bar, of_interval = carry
    if not jax.tree.leaves(state_bar):
        return carry
    method, tape, number = replay
    first = tape.first[number]
    anew = method.steps is not None or not method.keeps_slope(interval.field)
    begun = (anew | (number == 0)) & (tape.first[number + 1] > first)
    choose = lambda x: jnp.where(begun, x, 0)
    reads, where = replay.read_begin(interval, first, y)
    _, pull = eqx.filter_vjp(partial(replay.begin, first), interval, y, reads)
    new = jax.tree.map(choose, pull(jax.tree.map(choose, state_bar)))
    state_bar = jax.tree.map(lambda x: jnp.where(begun, 0, x), state_bar)
    tape_bar = replay.add(interval, tape_bar, where, new[2])
    return _add(y_bar, new[1]), state_bar, tape_bar, _add(of_interval, new[0])


class _Replay(NamedTuple):
    """Takes steps of interval `number` again."""

    method: Any
    tape: Tape
    number: Any

    def read(self, interval: Interval, j: Array, y: State, state: PyTree) -> tuple[PyTree, Any]:
        """The part of the tape on which a step depends, and where on the tape it is.

        An explicit step reads some lags at times known beforehand, and the places of the others are
        found by taking the step. Of an implicit one that is the whole tape.
        """
        if not interval.reads_tape:
            return None, None
        if not isinstance(self.method.stepper, ExplicitRungeKutta):
            return (self.tape.ts, self.tape.drop_starts().coefficients), None
        interval = self._with_tape(interval, j, self.tape)
        t, h = self._span(interval, j)
        fixed = None
        if interval.lags is not None:
            nodes = find_nodes(interval, self.method.stepper, t, h)
            fixed = jax.vmap(interval.lags.locate)(*nodes)

        def take_step(found: list) -> None:
            f = interval.vector_field(self.method.stepper.looks_ahead, found=found)
            lagged = read_lags(interval, self.method.stepper, t, h)
            self.method.stepper.step(f, t, h, y, state, lagged)

        return self._take(interval, fixed, take_step)

    def read_begin(self, interval: Interval, j: Array, y: State) -> tuple[PyTree, Any]:
        """The part of the tape on which the start of the interval depends, and where it is."""
        if not interval.reads_tape:
            return None, None
        if not isinstance(self.method.stepper, ExplicitRungeKutta):
            return (self.tape.ts, self.tape.drop_starts().coefficients), None
        interval = self._with_tape(interval, j, self.tape)
        fixed = None
        if interval.lags is not None:
            fixed = interval.lags.locate(interval.start, jnp.array(True))
        evaluate = lambda found: interval.vector_field(found=found)(interval.start, y)
        return self._take(interval, fixed, evaluate)

    def _take(self, interval: Interval, fixed: Any, call: Callable) -> tuple[PyTree, Any]:
        """Takes polynomials from the tape, of fixed lags and of those that `call(found)` reads."""
        moving, functions = [], interval.function_lags
        if functions is not None:
            call(moving)
        pieces = None
        if interval.lags is not None:
            pieces = interval.lags.take(fixed)
        known = [] if functions is None else [(reads, functions.take(reads)) for reads in moving]
        return (pieces, known), (fixed, moving)

    def add(self, interval: Interval, tape_bar: Tape, where: Any, reads_bar: PyTree) -> Tape:
        """Adds the cotangent of what was read to the tape of cotangents."""
        if where is not None:
            (fixed, moving), (pieces, known) = where, reads_bar
            if interval.lags is not None:
                tape_bar = interval.lags.add(tape_bar, fixed, pieces)
            for reads, (_, piece) in zip(moving, known, strict=True):
                tape_bar = add_piece(tape_bar, reads.step, piece)
            return tape_bar
        if not jax.tree.leaves(reads_bar):
            return tape_bar
        ts, coefficients = _add((tape_bar.ts, tape_bar.coefficients), reads_bar)
        return dataclasses.replace(tape_bar, ts=ts, coefficients=coefficients)

    def step(
        self, j: Array, interval: Interval, y: State, state: PyTree, reads: PyTree, own: PyTree
    ):
        """The state after step j, its polynomial, and the solver's state.

        `own` are the coefficients of the step, which it reads itself if lags vanish.
        """
        stepper = self.method.stepper
        interval, fixed, known = self._with_reads(interval, j, reads, own)
        t, h = self._span(interval, j)
        if self.method.steps is not None and not isinstance(stepper, ExplicitRungeKutta):
            y, info, state, _ = stepper.step_or_stay(interval, t, h, y, state)
        else:
            f = interval.vector_field(stepper.looks_ahead, known)
            lagged = read_lags(interval, stepper, t, h, fixed)
            y, _, info, state, _ = stepper.step(f, t, h, y, state, lagged)
        state = eqx.filter(state, eqx.is_inexact_array)
        coefficients = make_coefficients(stepper.interpolation, info)
        return y, interval.record(coefficients, self.tape.drop_starts()), state

    def begin(self, j: Array, interval: Interval, y: State, reads: PyTree) -> PyTree:
        """The solver's state at the start of the interval."""
        stepper = self.method.stepper
        own = None
        if self.method.vanishes:
            own = jax.tree.map(lambda y, c: jnp.zeros_like(c).at[0].set(y), y, self.own(j))
        interval, fixed, known = self._with_reads(interval, j, reads, own)
        f = interval.vector_field(stepper.looks_ahead, known)
        if interval.lags is not None and isinstance(stepper, ExplicitRungeKutta):
            lagged = interval.lags.read(interval.start, jnp.array(True), None, fixed)
            of_start = partial(f, lagged=lagged)
        else:
            of_start = f
        state = stepper.begin(of_start, interval.start, self._span(interval, j)[1], y)
        return eqx.filter(state, eqx.is_inexact_array)

    def own(self, j: Array) -> PyTree:
        """The coefficients of step j, which it reads itself if lags vanish."""
        return jax.tree.map(lambda x: x[j], self.tape.coefficients.state)

    def _span(self, interval: Interval, j: Array) -> tuple[Array, Array]:
        start, length = interval.start, interval.length
        return find_span(self.tape, j, self.number, start, length, self.method.steps)

    def _with_reads(self, interval: Interval, j: Array, reads: PyTree, own: PyTree) -> tuple:
        """The interval that reads this part of the tape, and the parts for each kind of lag."""
        if not interval.reads_tape:
            return interval, None, None
        if isinstance(self.method.stepper, ExplicitRungeKutta):
            fixed, known = reads
            known = None if interval.function_lags is None else iter(known)
            return self._with_tape(interval, j, self.tape, own), fixed, known
        ts, coefficients = reads
        tape = dataclasses.replace(self.tape.drop_starts(), ts=ts, coefficients=coefficients)
        return self._with_tape(interval, j, tape, own), None, None

    def _with_tape(self, interval: Interval, j: Array, tape: Tape, own: PyTree = None) -> Interval:
        """The interval that reads this tape in step j, whose own coefficients are `own`."""
        if tape.breakpoints is None:
            return interval.with_tape(tape, tape.first[self.number])
        piece = None
        if self.method.vanishes:
            t, h = self._span(interval, j)
            piece = Piece(t, t + h, self.own(j) if own is None else own)
        return interval.with_tape(tape, j, tape.breakpoints.segments[j], piece)
