"""How a solve is differentiated: one interval at a time, from the state at its knot."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from .adaptive import Pace, Taken, first_pace, pace_through, replay
from .field import Field
from .interval import Interval, Leg
from .solution import RESULTS
from .steps import Outcome, Stepper, jump, make_stepper, march, stroll


class Direct(eqx.Module):
    """Differentiates through every step.

    Choose it for forward mode (`jax.jvp`, `jax.jacfwd`), for higher derivatives, and for short
    solves with equal `steps`: all of them are then kept in memory and nothing is computed twice.
    (Adaptive steps are found first and then gone through again.)
    """


class Checkpointed(eqx.Module):
    """Keeps the state at each knot and replays one interval at a time. The default.

    Choose it for training, and unless there is a reason for another one. The gradient is that of
    the computed solution, exact to rounding; accepted adaptive steps count as given. Memory: one
    state an interval (and, with adaptive steps, the times where they end, with room for `max_steps`
    or, where there are many intervals, for four times their share of these, 1024 at least), and
    the steps of a single interval.
    """


class Adjoint(eqx.Module):
    """The continuous adjoint of the paper's Theorem 2, integrated backwards within each interval
    from the state stored at its end.

    Memory is one state an interval, however many steps are taken. The gradient is that of the
    equation, not of the computed solution, so it is only as accurate as the tolerances: choose it
    where `Checkpointed` does not fit into memory. Not for equations with a `Lag`.

    **Arguments:**

    - `solver`, `stepsize_controller`: of the backward pass, by default the solve's own.
    """

    solver: diffrax.AbstractSolver | None = None
    stepsize_controller: diffrax.AbstractStepSizeController | None = None


Gradient = Direct | Checkpointed | Adjoint


class Method(NamedTuple):
    """How every interval is stepped through, whatever its data."""

    stepper: Stepper
    controller: Any  # None with equal steps
    steps: Any  # None with adaptive ones
    max_steps: int
    constant: bool
    unroll: bool
    record: bool  # whether the steps are kept as dense output
    room: int  # how many adaptive steps an interval may take
    smooth: bool
    step_ts: Any  # times at which an adaptive step is to end; None without any


def cross(
    interval: Interval, method: Method, gradient: Gradient, pace: Pace | None
) -> tuple[Leg, Pace | None, Outcome]:
    """The solution over one interval, differentiable the way `gradient` says."""
    if method.constant:
        return jump(interval), pace, Outcome(RESULTS.successful, interval.end)
    if isinstance(gradient, Adjoint):
        return _adjoint(interval, method, gradient, pace)
    if method.steps is not None:
        return _equal_steps(interval, method, gradient, pace)
    return _adaptive_steps(interval, method, gradient, pace)


def _equal_steps(interval, method: Method, gradient, pace):
    def run(interval):
        return march(interval, method.stepper, method.steps, method.record, method.unroll)

    if isinstance(gradient, Checkpointed):
        # prevent_cse guards against a hazard that cannot occur inside a scan, at a cost.
        run = eqx.filter_checkpoint(run, prevent_cse=False)
    leg, outcome = run(interval)
    return leg, pace, outcome


def _forward(interval, method: Method, pace):
    """The interval without any gradient: its leg, the pace after it, the steps taken."""
    if method.steps is not None:
        leg, outcome = march(interval, method.stepper, method.steps, method.record, method.unroll)
        return leg, pace, None, outcome
    leg, pace, taken = pace_through(
        interval,
        method.stepper,
        method.controller,
        pace,
        max_steps=method.max_steps,
        record=method.record,
        room=method.room,
        smooth=method.smooth,
        step_ts=method.step_ts,
    )
    return leg, pace, taken, Outcome(pace.result, pace.t)


def _adaptive_steps(interval, method: Method, gradient, pace):
    if isinstance(gradient, Direct):
        # The steps are looked for first, then gone through again: only that is differentiated.
        still, pace = jax.tree.map(
            lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, (interval, pace)
        )
        _, pace, taken, outcome = _forward(still, method, pace)
        assert taken is not None
        leg = replay(interval, method.stepper, taken, kind="bounded", record=method.record)
        return leg, pace, outcome

    return _with_backward(interval, method, gradient, pace, _replay_backward)


def _replay_backward(interval, method: Method, gradient, kept, cotangent):
    del gradient
    taken, _ = kept
    return _replay_pullback(interval, method, taken, cotangent)


@eqx.filter_custom_jvp
def _replay_pullback(interval, method: Method, taken: Taken, cotangent: Leg) -> Interval:
    return _pull_through_replay(interval, method, taken, cotangent, kind="checkpointed")


@_replay_pullback.def_jvp
def _replay_pullback_jvp(primals, tangents):
    # Nested loops with checkpoints have no forward mode: second derivatives go through the interval
    # as those of `Direct` do.
    return eqx.filter_jvp(partial(_pull_through_replay, kind="bounded"), primals, tangents)


def _pull_through_replay(
    interval,
    method: Method,
    taken: Taken,
    cotangent: Leg,
    *,
    kind: Literal["checkpointed", "bounded"],
) -> Interval:
    again = lambda i: replay(i, method.stepper, taken, kind=kind, record=method.record)
    return _pullback(again, interval, cotangent)


def _pullback(function, interval: Interval, cotangent: Leg) -> Interval:
    _, pull = eqx.filter_vjp(function, interval)
    (interval,) = pull(cotangent)
    return interval


def _with_backward(interval, method: Method, gradient: Gradient, pace, backward: Callable):
    """The interval with a backward pass of its own: `backward(interval, method, gradient, (taken,
    y1), cotangent)` gives the cotangent of the interval.

    `backward` must not close over arrays: those of `method` and `gradient`, such as tolerances or
    `jump_ts`, are traced with the solve, and are known to the backward pass only as arguments."""
    moving, still = eqx.partition(interval, eqx.is_inexact_array)
    fixed_arrays, fixed_rest = eqx.partition((still, method, gradient, pace), eqx.is_array)

    def unpack(moving, fixed_arrays):
        still, method, gradient, pace = eqx.combine(fixed_arrays, fixed_rest)
        return eqx.combine(moving, still), method, gradient, pace

    def forward(moving, fixed_arrays):
        interval, method, _, pace = unpack(moving, fixed_arrays)
        return _forward(interval, method, pace)

    @jax.custom_vjp
    def run(moving, fixed_arrays):
        leg, pace, _, outcome = forward(moving, fixed_arrays)
        return leg, pace, outcome

    def run_forward(moving, fixed_arrays):
        leg, pace, taken, outcome = forward(moving, fixed_arrays)
        return (leg, pace, outcome), (moving, fixed_arrays, taken, leg.y)

    def run_backward(kept, cotangent):
        moving, fixed_arrays, taken, y1 = kept
        interval, method, gradient, _ = unpack(moving, fixed_arrays)
        leg_cotangent, _, _ = cotangent
        return backward(interval, method, gradient, (taken, y1), leg_cotangent), None

    run.defvjp(run_forward, run_backward)
    return run(moving, fixed_arrays)


# --- Theorem 2 ------------------------------------------------------------------------------------


def _adjoint(interval, method: Method, gradient: Adjoint, pace):
    return _with_backward(interval, method, gradient, pace, _theorem_2)


def _theorem_2(interval: Interval, method: Method, gradient: Adjoint, kept, cotangent: Leg):
    """Eqs. 15 and 16 over one interval, in reversed time w = end - t.

    The adjoint a(t) runs back from the interval's end, jumps at every saved time, and gathers on
    its way the integrals of a^T df/dtheta and of a^T df/dz(l tau) for all held states. Adding the
    latter to a(l tau), the second line of eq. 16, is left to the caller's chain rule.
    """
    _, y1 = kept
    prepared, pull_prepared = eqx.filter_vjp(
        lambda field, history: field.prepare(history), interval.field, tuple(interval.history)
    )
    theta = (interval.field, interval.args, prepared, interval.start, interval.length)
    length = jnp.where(interval.length == 0, 1, interval.length)

    def scaled_field(z, theta, w):
        field, args, prepared, start, moving_length = theta
        # The factor is 1; it carries the dependence of dt on the interval's length.
        factor = moving_length / length
        t = interval.inside(start + (1 - w / length) * moving_length)
        dz = field.evaluate(t, z, args, prepared)
        return jax.tree.map(lambda d: (factor * d).astype(d.dtype), dz)

    def reversed_field(w, state, _args, _prepared):
        z, a, _ = state
        dz, pull = eqx.filter_vjp(lambda z, theta: scaled_field(z, theta, w), z, theta)
        return (jax.tree.map(jnp.negative, dz), *pull(a))

    def slope_at(z, s):
        return jax.tree.map(lambda d: length * d, scaled_field(z, theta, (1 - s) * length))

    # The adjoint is linear: scaled to size one, absolute tolerances mean the same for every loss.
    largest = _largest((cotangent.y, cotangent.saves))
    scale = jnp.where(largest == 0, 1, largest)
    a, saves = jax.tree.map(lambda x: x / scale, (cotangent.y, cotangent.saves))
    zero = jax.tree.map(jnp.zeros_like, eqx.filter(theta, eqx.is_inexact_array))
    answer = _backwards(interval, method, gradient, reversed_field, slope_at, (y1, a, zero), saves)
    # No loss, no gradient: also where the backward pass does not arrive, after a failure.
    a, (field, args, prepared, start, moving_length), at_saves = jax.tree.map(
        lambda x: jnp.where(largest == 0, 0, x * scale), answer
    )
    # An interval of no length is not gone through, but its end still moves with its length.
    moving_length += lax.cond(
        interval.length == 0,
        lambda: _at_no_length(interval, theta, cotangent),
        lambda: jnp.zeros_like(moving_length),
    )
    field_too, history = pull_prepared(prepared)
    field = jax.tree.map(jnp.add, field, field_too)
    return Interval(field, args, a, list(history), None, start, moving_length, at_saves)


def _at_no_length(interval: Interval, theta: PyTree, cotangent: Leg) -> Array:
    """The cotangent of the length where that is zero: a saved state moves with its fraction."""
    field, args, prepared, start, _ = theta
    slope = field.evaluate(start, interval.y, args, prepared)
    total = cotangent.y
    if interval.save_at.shape[0]:
        share = lambda y, saves: y + jnp.tensordot(interval.save_at.astype(y.dtype), saves, axes=1)
        total = jax.tree.map(share, total, cotangent.saves)
    products = jax.tree.map(lambda c, d: jnp.sum(jnp.real(c * d)), total, slope)
    return sum(jax.tree.leaves(products), jnp.zeros_like(interval.length))


def _largest(tree: PyTree[Array]) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree) if x.size]))


def _backwards(interval, method, gradient: Adjoint, field, slope_at, state, saves):
    """From the end of the interval to its start, with a jump of the adjoint at each saved time.
    Gives the adjoint at the start, the integrals, and the cotangents of the saved times."""
    length, count = interval.length, interval.save_at.shape[0]
    stepper = method.stepper if gradient.solver is None else make_stepper(gradient.solver)
    controller = gradient.stepsize_controller
    zero, pace = jnp.zeros_like(length), None
    if controller is not None:
        begin = _piece(field, state, zero, length)
        pace = first_pace(begin, stepper, controller, None, length, smooth=False)

    def run(state, begin, size, pace):
        piece = _piece(field, state, begin, size)
        if controller is None:
            count = jnp.maximum(1, jnp.ceil(method.steps * size / length)).astype(int)
            return stroll(piece, stepper, count), pace
        most = method.max_steps
        leg, pace, _ = pace_through(
            *(piece, stepper, controller, pace),
            max_steps=most,
            record=False,
            room=most,
            smooth=False,
        )
        return leg.y, pace

    def run_to(w, state, begin, pace):
        # Fractions are filled up with ones and times are repeated: most pieces may have no length.
        skip = lambda state, begin, size, pace: (state, pace)
        return lax.cond(w > begin, run, skip, state, begin, w - begin, pace)

    def to_save(carry, x):
        state, begin, pace = carry
        s, cotangent = x
        w = (1 - s) * length
        (z, a, gathered), pace = run_to(w, state, begin, pace)
        products = jax.tree.map(lambda c, d: jnp.sum(jnp.real(c * d)), cotangent, slope_at(z, s))
        a = jax.tree.map(jnp.add, a, cotangent)
        return ((z, a, gathered), w, pace), sum(jax.tree.leaves(products))

    carry, at_saves = (state, zero, pace), interval.save_at
    if count:
        carry, at_saves = lax.scan(to_save, carry, (interval.save_at, saves), reverse=True)
    state, begin, pace = carry
    (_, a, gathered), pace = run_to(length, state, begin, pace)
    if pace is not None:
        # A backward pass that did not arrive must not pass for a gradient.
        lost = pace.result != RESULTS.successful
        return jax.tree.map(lambda x: jnp.where(lost, jnp.nan, x), (a, gathered, at_saves))
    return a, gathered, at_saves


def _piece(field, state, begin, length) -> Interval:
    whole = Field(prepare=lambda history: history, evaluate=field)
    return Interval(whole, None, state, [], None, begin, length, jnp.zeros(0, length.dtype))
