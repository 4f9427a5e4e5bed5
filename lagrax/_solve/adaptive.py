"""Adaptive steps through an interval, found under a controller of diffrax and then replayed."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree, Real

from .crossing import Passage, find_passage
from .interval import Interval, IntervalSolution
from .method import Method
from .saving import make_room, save_step, save_step_in_loop
from .solution import RESULTS
from .steps import ExplicitRungeKutta, Stepper, is_finite, make_term, read_lags, select
from .tape import Piece, Recording, State, make_coefficients
from .vanishing import find_tolerances, iterate_step, make_constant, predict_step


class AdaptiveState(eqx.Module):
    """The state of adaptive stepping, which is carried from interval to interval.

    - `dt`: the length of the next step.
    - `controller`: the state of the step size controller.
    - `slope`: the last slope, or None if the next interval cannot use it.
    - `accepted`, `rejected`: the numbers of steps so far.
    - `result`, `t`: the result so far, and the time that was reached.
    - `segments`, `taus`: what lags read next, and how long they were, if they are functions.
    - `repeated`: how often steps were taken again since they read themselves.
    """

    dt: Real[Array, ""]
    controller: PyTree
    slope: PyTree
    accepted: Int[Array, ""]
    rejected: Int[Array, ""]
    result: RESULTS
    t: Real[Array, ""]
    segments: Int[Array, " lags"] | None = None
    taus: Real[Array, " lags"] | None = None
    repeated: Int[Array, ""] | int = 0


class AcceptedSteps(eqx.Module):
    """The ends of the accepted steps of one interval, as fractions of it, and their number."""

    ends: Float[Array, " max_steps_plus_1"]
    count: Int[Array, ""]


# --- the search for steps -------------------------------------------------------------------------


def start_adaptive(interval: Interval, method: Method, t1: Array) -> AdaptiveState:
    """Finds the length of the first step, from `dt0` or by the controller's own search."""
    stepper, controller = method.stepper, method.controller
    assert controller is not None
    f = interval.vector_field()
    term = make_term(f)
    # The search looks one step ahead, and the field may change at the end of the interval.
    within = term
    if interval.history:
        within = make_term(lambda t, y: f(jnp.where(t > interval.end, interval.end, t), y))
    # diffrax divides a known span into equal steps, which breakpoints here divide further.
    constant = isinstance(controller, diffrax.ConstantStepSize)
    t_next, state = controller.init(
        within,
        interval.start,
        jnp.full_like(t1, jnp.inf) if constant else t1,
        interval.y,
        method.dt0,
        None,
        lambda term, t, y, args: term.vf(t, y, args),
        stepper.solver.error_order(term),
    )
    # The search for a state of 0 finds a step so short that it vanishes in rounding far from t = 0.
    dt = jnp.maximum(t_next - interval.start, 2 * _resolution(interval.start, interval.length))
    zero, lags = jnp.asarray(0), interval.function_lags
    keeps_slope = method.keeps_slope(interval.field)
    segments, taus = None, None
    if lags is not None:
        segments, taus = jnp.zeros(lags.low.shape, int), jnp.zeros_like(lags.low)
    if method.vanishes and lags is not None:
        slope = f(interval.start, interval.y)
        segments = lags.find_first_segments(interval.start, interval.y, slope, interval.args)
    return AdaptiveState(
        dt=jnp.asarray(dt, interval.start.dtype),
        controller=jax.tree.map(jnp.asarray, state),
        slope=stepper.begin(f, interval.start, dt, interval.y) if keeps_slope else None,
        accepted=zero,
        rejected=zero,
        result=RESULTS.successful,
        t=interval.start,
        segments=segments,
        taus=taus,
        repeated=zero,
    )


def _resolution(t: Array, length: Array) -> Array:
    """The longest step that counts as none, at time t in an interval of this length."""
    return 2 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), length)


class _LoopState(eqx.Module):
    """The state of the loop over the steps of one interval.

    `saved` counts the saved times passed so far, `retakes` how often the next step was shortened to
    end at a breakpoint. `saves`, `ends` and `recording` are buffers. The first two are None with a
    tape, and the last one without.
    """

    t: Array
    t_next: Array
    y: State
    slope: PyTree
    adaptive: AdaptiveState
    saved: Int[Array, ""]
    retakes: Int[Array, ""]
    saves: Any
    ends: Any
    recording: Recording | None


def find_steps(
    interval: Interval, method: Method, state: AdaptiveState
) -> tuple[IntervalSolution, AdaptiveState, AcceptedSteps]:
    """Solves an interval in adaptive steps. Not reverse-differentiable."""
    loop, new = _take_adaptive_steps(interval, method, state, None)
    # An interval of no length takes no step. Its end still moves with its length: replay one step.
    empty = interval.length == 0
    ends = jnp.where(empty, loop.ends.at[1].set(1), loop.ends)
    steps = AcceptedSteps(ends, jnp.where(empty, 1, new.accepted - state.accepted))
    return IntervalSolution(loop.y, loop.saves), new, steps


def record_steps(
    interval: Interval, method: Method, state: AdaptiveState, recording: Recording, row: Array
) -> tuple[State, AdaptiveState, Recording]:
    """Solves interval number `row` in adaptive steps, which are written on the tape.

    Not reverse-differentiable.
    """
    loop, new = _take_adaptive_steps(interval, method, state, recording, row)
    assert loop.recording is not None
    # An interval of no length takes no step. Its end still moves with its length, so it gets a step
    # on the tape, which stays where it is.
    empty = interval.length == 0
    count = new.accepted - state.accepted
    tape = loop.recording.tape
    constant = interval.record(jax.tree.map(lambda x: x[None], loop.y), tape)
    recording = loop.recording.put_empty(row, constant, loop.slope, empty)
    return loop.y, new, recording.finish(row, jnp.where(empty, 1, count), interval.end)


def _take_adaptive_steps(
    interval: Interval,
    method: Method,
    state: AdaptiveState,
    recording: Recording | None,
    row: Any = None,
) -> tuple[_LoopState, AdaptiveState]:
    stepper = method.stepper
    first = None
    if recording is not None:
        first, own = recording.tape.first[row], None
        if method.vanishes:
            like = recording.tape.take(first).coefficients
            own = make_constant(interval.start, state.dt, interval.y, like)
        interval = interval.with_tape(recording.tape, first, state.segments, own)
    f = interval.vector_field(stepper.looks_ahead)
    y, t, end = interval.y, interval.start, interval.end
    keeps_slope = method.keeps_slope(interval.field)
    clip = _make_clip(end, method.controller, method.step_ts)
    loop = _LoopState(
        t=t,
        t_next=clip(t, t + state.dt, True),
        y=y,
        slope=state.slope if keeps_slope else stepper.begin(f, t, state.dt, y),
        adaptive=_check_lags(interval, state),
        saved=jnp.asarray(0),
        retakes=jnp.asarray(0),
        saves=make_room(y, interval.save_at),
        ends=None if recording else jnp.zeros(method.room + 1, t.dtype),
        recording=recording,
    )

    def unfinished(loop):
        now = loop.adaptive
        spent = now.accepted + now.rejected >= method.max_steps
        if recording is None:
            spent |= now.accepted - state.accepted >= method.room
        return (loop.t < end) & (now.result == RESULTS.successful) & ~spent

    advance = _make_advance(interval, f, method, clip, state.accepted, first)
    buffers = lambda loop: (loop.saves, loop.ends, recording and loop.recording.buffers())
    loop = eqxi.while_loop(unfinished, advance, loop, kind="lax", buffers=buffers)
    now = loop.adaptive
    short = (loop.t < end) & (now.result == RESULTS.successful)
    result = RESULTS.where(short, RESULTS.promote(diffrax.RESULTS.max_steps_reached), now.result)
    slope = loop.slope if keeps_slope else None
    new = dataclasses.replace(now, slope=slope, result=result, t=loop.t)
    return loop, new


def _check_lags(interval: Interval, state: AdaptiveState) -> AdaptiveState:
    """Checks the bounds of lags at the start of an interval."""
    lags = interval.function_lags
    if lags is None:
        return state
    taus = lags.find_taus(interval.start, interval.y, interval.args)
    left = ~lags.is_within_bounds(taus, state.dt) & (state.result == RESULTS.successful)
    result = RESULTS.where(left, RESULTS.lag_out_of_bounds, state.result)
    return dataclasses.replace(state, result=result, taus=taus)


def _make_clip(
    end: Array,
    controller: diffrax.AbstractStepSizeController | None,
    step_ts: Array | None = None,
) -> Callable:
    """Makes `clip(t, t_next, accepted)`, which gives the end of the step from t.

    It is t_next, with these exceptions:

    - No step passes `end` or the next of the sorted `step_ts`, here called the stop.
    - A step that would end within rounding of the stop ends at the stop.
    - After a rejection, a step that would still pass the stop ends halfway to it.
    - Under PID control, the rest of the interval is divided into equal steps of at most the given
      length. As many steps are taken, but shorter ones, which are rejected less often. If that
      length divides the rest but for rounding, their number is not rounded up.
    """
    divides = isinstance(controller, diffrax.PIDController)
    rounding = float(jnp.finfo(end.dtype).eps) ** 0.5
    if step_ts is not None:
        step_ts = jnp.append(step_ts, jnp.inf).astype(end.dtype)

    def clip(t, t_next, accepted):
        rest = end - t
        margin = 100 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(end), jnp.abs(rest))
        stop = end
        if step_ts is not None:
            stop = step_ts[jnp.searchsorted(step_ts, t + margin, side="right")]
            stop = jnp.where(stop > end - margin, end, stop)
            rest = stop - t
        if divides:
            pieces = jnp.maximum(1, jnp.ceil(rest / (t_next - t) - rounding))
            t_next = jnp.where(accepted & (t_next > t), t + rest / pieces, t_next)
        last = jnp.where(accepted, stop, t + 0.5 * rest)
        return jnp.where(t_next > stop - margin, last, t_next)

    return clip


def _make_advance(interval: Interval, f, method: Method, clip, begun: Array, first) -> Callable:
    """Makes the loop's body, which tries one step and accepts or rejects it.

    `begun` is the number of steps accepted before this interval, and `first` the number of its
    first step on the tape.
    """
    stepper, controller, end = method.stepper, method.controller, interval.end
    assert controller is not None
    length = jnp.where(interval.length == 0, 1, interval.length)
    order: Any = stepper.solver.error_order(make_term(f))

    def advance(now: _LoopState) -> _LoopState:
        state = now.adaptive
        number, h = state.accepted - begun, now.t_next - now.t
        of_step, field = interval, f
        if interval.reads_tape and now.recording is not None:
            # Read from the buffers themselves, since another tape would be a copy.
            of_step = interval.with_tape(now.recording.read(), first + number, state.segments)
            field = of_step.vector_field(stepper.looks_ahead)
        outputs, coefficients, repeated = _try_step(of_step, method, field, now, h)
        y, error, info, slope, failed = outputs
        # A step that leads nowhere, such as an implicit one without a solution, was too long. The
        # controller scales errors by the new state, so both are replaced.
        lost = ~is_finite(y)
        error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e) | lost, jnp.inf, e), error)
        accepted, t, t_next, made_jump, control, controlled = controller.adapt_step_size(
            now.t, now.t_next, now.y, select(lost, now.y, y), None, error, order, state.controller
        )
        _check_made_jump(controller, made_jump)
        accepted: Any = jnp.asarray(accepted)
        t = jnp.minimum(t, end)
        dt = t_next - t
        # An accepted step that was clipped says little about the possible length, so the controller
        # goes on from its state before that step, which also knows whether dt is dtmin.
        clipped = accepted & (h < 0.99 * state.dt) & (dt <= state.dt)
        passage = None
        if of_step.function_lags is not None:
            lags, args = of_step.function_lags, of_step.args
            passage = find_passage(lags, args, now.t, h, coefficients, now.retakes)
            passage = passage.limit(accepted, jnp.asarray(t_next))
            accepted, t = accepted & ~passage.retake, jnp.where(passage.retake, now.t, t)
            clipped |= passage.retake
        result = _judge_step(interval, y, failed, accepted, t, dt)
        controlled = RESULTS.where(clipped, RESULTS.successful, RESULTS.promote(controlled))
        result = RESULTS.where(result == RESULTS.successful, controlled, result)
        dt, control = select(clipped, (state.dt, state.controller), (dt, control))
        begin_at = (now.t - interval.start) / length
        end_at = jnp.where(t < end, (t - interval.start) / length, 1)
        saved, saves = save_step_in_loop(
            *(stepper.interpolation, now.saves, now.saved, interval.save_at, begin_at, end_at),
            *(info, accepted, "lax"),
        )
        ends, recording = now.ends, now.recording
        if recording is None:
            ends = eqxi.buffer_at_set(ends, number + 1, end_at, pred=accepted)
        else:
            coefficients = interval.record(coefficients, recording.tape)
            recording = recording.put(first + number, t, coefficients, now.slope, accepted)
        new = _LoopState(
            t=t,
            t_next=clip(t, t_next, accepted),
            y=select(accepted, y, now.y),
            slope=select(accepted, slope, now.slope),
            adaptive=AdaptiveState(
                dt=dt,
                controller=control,
                slope=state.slope,
                accepted=state.accepted + accepted,
                rejected=state.rejected + ~accepted,
                result=result,
                t=t,
                segments=state.segments,
                taus=state.taus,
                repeated=state.repeated + repeated,
            ),
            saved=saved,
            retakes=now.retakes,
            saves=saves,
            ends=ends,
            recording=recording,
        )
        if passage is None:
            return new
        return _pass_breakpoints(of_step, method, now, new, passage, first + number, accepted)

    return advance


def _try_step(interval: Interval, method: Method, field, now: _LoopState, h: Array) -> tuple:
    """What the stepper returns, and the coefficients of the step if there is a tape.

    Also returns how often the step was taken again, since it reads itself.
    """
    stepper, lags = method.stepper, interval.function_lags

    def take_step(field):
        lagged = read_lags(interval, stepper, now.t, h)
        outputs = stepper.step(field, now.t, h, now.y, now.slope, lagged)
        coefficients = None
        if now.recording is not None:
            coefficients = make_coefficients(stepper.interpolation, outputs[2])
        return outputs, coefficients

    if not method.vanishes:
        return *take_step(field), 0
    assert lags is not None
    assert lags.tape is not None
    assert lags.limit is not None

    def read_own(own: Piece) -> tuple:
        of_own = interval.with_tape(lags.tape, lags.limit, lags.segments, own)
        found: list = []
        is_explicit = isinstance(stepper, ExplicitRungeKutta)
        field = of_own.vector_field(stepper.looks_ahead, found=found if is_explicit else None)
        outputs, coefficients = take_step(field)
        # An implicit step reads within loops, and is iterated in any case.
        depends = jnp.stack([jnp.any(reads.own) for reads in found]) if found else True
        return (outputs, coefficients), Piece(now.t, now.t + h, coefficients), jnp.any(depends)

    own = predict_step(lags.tape, lags.limit, now.t, h, now.y)
    tolerances = find_tolerances(method.controller, now.t.dtype)
    answer, done, count = iterate_step(read_own, own, tolerances)
    (y, error, *rest, failed), coefficients = answer
    error = jax.tree.map(lambda e: jnp.where(done, e, jnp.inf), error)
    failed = RESULTS.where(done, failed, RESULTS.nonlinear_max_steps_reached)
    return (y, error, *rest, failed), coefficients, count - 1


def _pass_breakpoints(
    interval: Interval, method: Method, old: _LoopState, new: _LoopState, passage: Passage, step, ok
) -> _LoopState:
    """The loop after step number `step`, in which lags may have passed breakpoints.

    `ok` says whether the step was accepted.
    """
    lags, recording, state = interval.function_lags, new.recording, new.adaptive
    assert lags is not None
    assert recording is not None
    assert state.segments is not None
    breakpoints: Any = recording.tape.breakpoints
    breakpoints = breakpoints.put_segments(step, state.segments, ok)
    has_kink = ok & passage.passes & (passage.level < method.levels)
    breakpoints = breakpoints.put(step + 1, passage.level, has_kink)
    taus = lags.find_taus(new.t, new.y, interval.args)
    left = ~lags.is_within_bounds(taus, state.dt) & (state.result == RESULTS.successful)
    state = dataclasses.replace(
        state,
        result=RESULTS.where(left, RESULTS.lag_out_of_bounds, state.result),
        segments=jnp.where(ok, passage.segments, state.segments),
        taus=taus,
    )
    return dataclasses.replace(
        new,
        t_next=jnp.where(passage.retake, passage.end, new.t_next),
        adaptive=state,
        retakes=jnp.where(passage.retake, old.retakes + 1, 0),
        recording=recording.put_breakpoints(breakpoints),
    )


def _check_made_jump(controller: diffrax.AbstractStepSizeController, made_jump: Any) -> None:
    if made_jump is not False:
        raise ValueError(
            f"The step-size controller {type(controller).__name__} reports jumps by itself; "
            "expected them as times: diffrax.ClipStepSizeController(..., jump_ts=...)."
        )


def _judge_step(interval: Interval, y: State, failed: RESULTS, accepted, t, dt) -> RESULTS:
    """The result after one step, whose own result is `failed`; `dt` is the next step's length."""
    result = RESULTS.where(accepted, failed, RESULTS.successful)
    # Written so that a NaN dt counts as stuck.
    stuck = ~(dt > _resolution(t, interval.length)) & (t < interval.end)
    why = RESULTS.where(is_finite(y), RESULTS.step_underflow, RESULTS.state_not_finite)
    return RESULTS.where(stuck, why, result)


# --- the replay -----------------------------------------------------------------------------------


def replay_steps(
    interval: Interval,
    stepper: Stepper,
    steps: AcceptedSteps,
    *,
    kind: Literal["checkpointed", "bounded"],
) -> IntervalSolution:
    """Takes the accepted steps again, without a search. Reverse mode goes through this."""
    f = interval.vector_field(stepper.looks_ahead)
    max_steps = steps.ends.shape[0] - 1
    ends = lax.stop_gradient(steps.ends)
    slope = stepper.begin(f, interval.start, ends[1] * interval.length, interval.y)

    def body(carry):
        j, y, slope, saved, saves = carry
        begin, end = ends[j], ends[j + 1]
        t, h = interval.start + begin * interval.length, (end - begin) * interval.length
        lagged = read_lags(interval, stepper, t, h)
        y, _, info, slope, _ = stepper.step(f, t, h, y, slope, lagged)
        where = (interval.save_at, begin, end, info)
        if kind == "checkpointed":
            saved, saves = save_step_in_loop(
                stepper.interpolation, saves, saved, *where, True, kind
            )
        else:  # A loop within a bounded loop costs more than it saves.
            saves = save_step(stepper.interpolation, saves, *where)
        return j + 1, y, slope, saved, saves

    zero = jnp.asarray(0)
    # Every place is overwritten, so the initial content must carry no derivative.
    saves = lax.stop_gradient(make_room(interval.y, interval.save_at))
    carry = eqxi.while_loop(
        lambda carry: carry[0] < steps.count - 1,
        body,
        (zero, interval.y, slope, zero, saves),
        kind=kind,
        max_steps=max_steps,
        buffers=lambda carry: carry[4] if kind == "checkpointed" else None,
    )
    # The last step stands outside of the loop, since the backward pass of the loop takes each of
    # its steps once more. If none was accepted, this one has no length.
    _, y, _, _, saves = body(carry)
    return IntervalSolution(y, saves)
