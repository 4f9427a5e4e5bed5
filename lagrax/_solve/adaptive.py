"""Adaptive steps through an interval: found once, under a controller of diffrax, then replayed."""

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

from .interval import Interval, Leg, State
from .solution import RESULTS
from .steps import Stepper, empty_infos, lagged_in_step, term_of


class ConstantSteps(diffrax.AbstractStepSizeController):
    """Steps of length dt0, each interval's last one cut short. diffrax's own ConstantStepSize
    counts the steps of the whole span beforehand and loses count where a breakpoint adds one."""

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return t0 + dt0, dt0

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        dt0 = controller_state
        return True, t1, t1 + dt0, False, dt0, diffrax.RESULTS.successful


class Pace(eqx.Module):
    """What adaptive stepping carries across a breakpoint: above all the length of its steps."""

    dt: Real[Array, ""]
    controller: PyTree
    slope: PyTree
    accepted: Int[Array, ""]
    rejected: Int[Array, ""]
    result: RESULTS
    t: Real[Array, ""]


class Taken(eqx.Module):
    """The accepted steps of one interval: their ends, as fractions of it, and their number."""

    fractions: Float[Array, " max_steps_plus_1"]
    count: Int[Array, ""]


def first_pace(interval: Interval, stepper: Stepper, controller, dt0, t1, smooth: bool) -> Pace:
    """The first step's length, from `dt0` or by the controller's own search."""
    f = interval.vector_field()
    term = term_of(f)
    # The search looks one step ahead, which may go beyond the interval, where f is another one.
    within = term
    if interval.history:
        within = term_of(lambda t, y: f(jnp.where(t > interval.end, interval.end, t), y))
    t_next, state = controller.init(
        within,
        interval.start,
        t1,
        interval.y,
        dt0,
        None,
        lambda term, t, y, args: term.vf(t, y, args),
        stepper.solver.error_order(term),
    )
    # A state of 0 has a first step so short that far from t = 0 it vanishes in rounding.
    dt = jnp.maximum(t_next - interval.start, 2 * _resolution(interval.start, interval.length))
    zero = jnp.asarray(0)
    return Pace(
        dt=jnp.asarray(dt, interval.start.dtype),
        controller=jax.tree.map(jnp.asarray, state),
        slope=stepper.begin(f, interval.start, dt, interval.y) if smooth else None,
        accepted=zero,
        rejected=zero,
        result=RESULTS.successful,
        t=interval.start,
    )


def _resolution(t: Array, length: Array) -> Array:
    """The longest step that counts as none, at time t in an interval of this length."""
    return 2 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), length)


def pace_through(
    interval: Interval,
    stepper: Stepper,
    controller: diffrax.AbstractStepSizeController,
    pace: Pace,
    *,
    max_steps: int,
    record: bool,
    room: int,
    smooth: bool,
    step_ts: Real[Array, " stops"] | None = None,
) -> tuple[Leg, Pace, Taken]:
    """Adaptive steps, at most `room` of them here and `max_steps` in all. `smooth` says that the
    field is continuous where the interval begins, so that the last slope is still valid; `record`
    that dense output is wanted; `step_ts` are times at which a step is to end."""
    f = interval.vector_field(stepper.looks_ahead)
    begun = pace.accepted
    slope = pace.slope if smooth else stepper.begin(f, interval.start, pace.dt, interval.y)
    y, t, dt = interval.y, interval.start, pace.dt
    end = interval.end
    clip = _make_clip(end, controller, step_ts)
    travel = _Travel(
        t=t,
        t_next=clip(t, t + dt, True),
        y=y,
        slope=slope,
        pace=pace,
        saved=jnp.asarray(0),
        saves=_initial_saves(interval),
        fractions=jnp.zeros(room + 1, t.dtype),
        infos=_infos_at(y, empty_infos(stepper, t, y, (room,))) if record else None,
    )
    advance = _make_advance(interval, f, stepper, controller, clip, begun)

    def going(travel):
        pace = travel.pace
        spent = pace.accepted + pace.rejected >= max_steps
        spent |= pace.accepted - begun >= room
        return (travel.t < end) & (pace.result == RESULTS.successful) & ~spent

    travel = eqxi.while_loop(going, advance, travel, kind="lax", buffers=_buffers)
    pace = travel.pace
    short = (travel.t < end) & (pace.result == RESULTS.successful)
    result = RESULTS.where(short, RESULTS.promote(diffrax.RESULTS.max_steps_reached), pace.result)
    count = pace.accepted - begun
    slope = travel.slope if smooth else None
    pace = Pace(pace.dt, pace.controller, slope, pace.accepted, pace.rejected, result, travel.t)
    # An interval of no length takes no step, but its end still moves with its length: replayed, it
    # takes one.
    empty = interval.length == 0
    fractions = jnp.where(empty, travel.fractions.at[1].set(1), travel.fractions)
    taken = Taken(fractions, jnp.where(empty, 1, count))
    return _leg(interval, travel.y, travel.saves, travel.infos, taken), pace, taken


class _Travel(eqx.Module):
    """The state of the adaptive loop within one interval."""

    t: Array
    t_next: Array
    y: State
    slope: PyTree
    pace: Pace
    saved: Int[Array, ""]
    saves: Any
    fractions: Any
    infos: Any


def _buffers(travel):
    return (travel.saves, travel.fractions, travel.infos)


def _make_clip(
    end: Array, controller: diffrax.AbstractStepSizeController, step_ts: Array | None = None
):
    """The end of the next step, from t to t_next if that can be.

    Not beyond `end`, nor beyond the next of the sorted `step_ts`: call it the stop. Nor so short of
    the stop that a sliver remains; after a rejection a step that would
    still overshoot is halved. Under PID control the rest of the interval is shared out in equal
    steps of at most the length asked for: as many, but smaller and less often rejected. Where that
    length is asked for again, their number is whole but for rounding, which must not decide.
    """
    share = isinstance(controller, diffrax.PIDController)
    rounding = float(jnp.finfo(end.dtype).eps) ** 0.5
    if step_ts is not None:
        step_ts = jnp.append(step_ts, jnp.inf).astype(end.dtype)

    def clip(t, t_next, kept):
        rest = end - t
        margin = 100 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(end), jnp.abs(rest))
        stop = end
        if step_ts is not None:
            stop = step_ts[jnp.searchsorted(step_ts, t + margin, side="right")]
            stop = jnp.where(stop > end - margin, end, stop)
            rest = stop - t
        if share:
            pieces = jnp.maximum(1, jnp.ceil(rest / (t_next - t) - rounding))
            t_next = jnp.where(kept & (t_next > t), t + rest / pieces, t_next)
        return jnp.where(t_next > stop - margin, jnp.where(kept, stop, t + 0.5 * rest), t_next)

    return clip


def _initial_saves(interval: Interval) -> State | None:
    count = interval.save_at.shape[0]
    return _repeated(interval.y, count) if count else None


def _infos_at(y: State, infos: PyTree) -> PyTree:
    """With a first step that stays at y, for an interval of no length, in which none is taken."""
    put = lambda x, rows: rows.at[0].set(x)
    return infos | {end: jax.tree.map(put, y, infos[end]) for end in ("y0", "y1") if end in infos}


def _leg(interval, y, saves, infos, taken: Taken) -> Leg:
    if infos is None:
        return Leg(y, saves, None)
    ts = interval.start + taken.fractions * interval.length
    used = jnp.arange(ts.shape[0]) <= taken.count
    return Leg(y, saves, (jnp.where(used, ts, jnp.inf), infos))


def _save_step(stepper, saves, save_at, begin, end, info):
    """Writes the states saved within one step, which goes from fraction `begin` to `end`, all at
    once."""
    if saves is None:
        return None
    within = (save_at >= begin) & (save_at <= end)
    # Outside the step the polynomial may overflow; there it is not looked at.
    places = jnp.where(within, save_at, begin)
    values = jax.vmap(stepper.interpolation(t0=begin, t1=end, **info).evaluate)(places)

    def leaf(new, old):
        return jnp.where(within.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(leaf, values, saves)


def _save_passed(
    stepper, saves, saved, save_at, begin, end, info, keep, kind: Literal["lax", "checkpointed"]
):
    """The same one by one, from number `saved` on: for many saved times, few of them in a step."""
    if saves is None:
        return saved, None
    polynomial = stepper.interpolation(t0=begin, t1=end, **info)
    count = save_at.shape[0]

    def passed(carry):
        i, _ = carry
        return keep & (i < count) & (save_at[jnp.minimum(i, count - 1)] <= end)

    def write(carry):
        i, saves = carry
        return i + 1, _put(saves, polynomial.evaluate(save_at[i]), i, True)

    return eqxi.while_loop(
        passed,
        write,
        (saved, saves),
        kind=kind,
        max_steps=count,
        buffers=lambda carry: carry[1],
        checkpoints=count if kind == "checkpointed" else None,
    )


def _make_advance(interval, f, stepper, controller, clip, begun) -> Callable:
    """One try of a step: accepted, or rejected and to be repeated shorter."""
    end = interval.end
    length = jnp.where(interval.length == 0, 1, interval.length)
    order = stepper.solver.error_order(term_of(f))

    def advance(now: _Travel) -> _Travel:
        pace = now.pace
        h = now.t_next - now.t
        lagged = lagged_in_step(interval, stepper, now.t, h)
        y, error, info, slope, failed = stepper.step(f, now.t, h, now.y, now.slope, lagged)
        # A step that leads nowhere, as where an implicit one finds no solution, is too long: the
        # controller, which scales errors by the new state, is to see that and nothing else.
        lost = ~_finite(y)
        error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e) | lost, jnp.inf, e), error)
        keep, t, t_next, made_jump, state, controlled = controller.adapt_step_size(
            now.t, now.t_next, now.y, _select(lost, now.y, y), None, error, order, pace.controller
        )
        if made_jump is not False:
            raise ValueError(
                f"The step-size controller {type(controller).__name__} reports jumps by itself; "
                "expected them as times: diffrax.ClipStepSizeController(..., jump_ts=...)."
            )
        keep: Any = jnp.asarray(keep)
        t = jnp.minimum(t, end)
        dt = t_next - t
        # Also where dt is NaN, which is not greater than anything.
        stuck = ~(dt > _resolution(t, interval.length)) & (t < end)
        trouble = RESULTS.where(_finite(y), RESULTS.step_underflow, RESULTS.state_not_finite)
        result = RESULTS.where(keep, failed, RESULTS.successful)
        result = RESULTS.where(stuck, trouble, result)
        # An accepted step that was cut short says little about the length that is possible: the
        # controller goes on as before it (also from whether it was at its shortest step).
        cut = keep & (h < 0.99 * pace.dt) & (dt <= pace.dt)
        dt, state = _select(cut, (pace.dt, pace.controller), (dt, state))
        controlled = RESULTS.where(cut, RESULTS.successful, RESULTS.promote(controlled))
        result = RESULTS.where(result == RESULTS.successful, controlled, result)
        done = pace.accepted - begun
        begin_at = (now.t - interval.start) / length
        end_at = jnp.where(t < end, (t - interval.start) / length, 1)
        saved, saves = _save_passed(
            stepper, now.saves, now.saved, interval.save_at, begin_at, end_at, info, keep, "lax"
        )
        return _Travel(
            t=t,
            t_next=clip(t, t_next, keep),
            y=_select(keep, y, now.y),
            slope=_select(keep, slope, now.slope),
            pace=Pace(
                dt=dt,
                controller=state,
                slope=pace.slope,
                accepted=pace.accepted + keep,
                rejected=pace.rejected + ~keep,
                result=result,
                t=t,
            ),
            saved=saved,
            saves=saves,
            fractions=eqxi.buffer_at_set(now.fractions, done + 1, end_at, pred=keep),
            infos=_put(now.infos, info, done, keep),
        )

    return advance


def _finite(y: State) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(y)]))


def _put(infos: Any, info: PyTree, index: Any, keep: Any):
    if infos is None:
        return None
    return jax.tree.map(
        lambda x, buffer: eqxi.buffer_at_set(buffer, index, x, pred=keep), info, infos
    )


def replay(
    interval: Interval,
    stepper: Stepper,
    taken: Taken,
    *,
    kind: Literal["checkpointed", "bounded"],
    record: bool,
) -> Leg:
    """The accepted steps again, without the search for them: what reverse mode goes through."""
    f = interval.vector_field(stepper.looks_ahead)
    max_steps = taken.fractions.shape[0] - 1
    fractions = lax.stop_gradient(taken.fractions)
    h = fractions[1] * interval.length
    slope = stepper.begin(f, interval.start, h, interval.y)
    infos = empty_infos(stepper, interval.start, interval.y, (max_steps,)) if record else None

    def body(carry):
        j, y, slope, saved, saves, infos = carry
        begin, end = fractions[j], fractions[j + 1]
        t, h = interval.start + begin * interval.length, (end - begin) * interval.length
        lagged = lagged_in_step(interval, stepper, t, h)
        y, _, info, slope, _ = stepper.step(f, t, h, y, slope, lagged)
        if kind == "checkpointed":
            saved, saves = _save_passed(
                stepper, saves, saved, interval.save_at, begin, end, info, True, kind
            )
        else:  # A loop in a bounded loop costs more than it saves.
            saves = _save_step(stepper, saves, interval.save_at, begin, end, info)
        return j + 1, y, slope, saved, saves, _put(infos, info, j, True)

    zero = jnp.asarray(0)
    # Every place is written to; what a buffer holds before that must carry no derivative.
    saves = lax.stop_gradient(_initial_saves(interval))
    carry = (zero, interval.y, slope, zero, saves, infos)
    carry = eqxi.while_loop(
        lambda carry: carry[0] < taken.count - 1,
        body,
        carry,
        kind=kind,
        max_steps=max_steps,
        buffers=lambda carry: carry[4:] if kind == "checkpointed" else carry[5],
    )
    # The last step by itself, as the loop computes each step anew in the backward pass. (Where none
    # was taken, this one has no length.)
    _, y, _, _, saves, infos = body(carry)
    return _leg(interval, y, saves, infos, taken)


def _select(keep: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _repeated(y: State, times: int) -> State:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), y)
