"""The three ways to differentiate a solve, each one interval at a time."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from .adaptive import AcceptedSteps, AdaptiveState, find_steps, replay_steps, start_adaptive
from .backward import explain_second_reverse
from .field import Field
from .interval import Interval, IntervalSolution, Outcome
from .method import Method
from .saving import save_equal_steps
from .solution import RESULTS
from .steps import find_final_state, integrate_constant, make_stepper, take_equal_steps


class Direct(eqx.Module):
    """Differentiates through every step.

    Choose it for forward mode (`jax.jvp`, `jax.jacfwd`), for higher derivatives, and for short
    solves with equal `steps`. All steps are kept in memory and nothing is computed twice, except
    that adaptive steps are found first and then taken again.
    """


class Checkpointed(eqx.Module):
    """Keeps the state at each knot and replays one interval at a time. The default.

    Choose it for training, and in general. The gradient is that of the computed solution, exact to
    rounding, with accepted adaptive steps taken as given.

    It keeps one state an interval and the steps of a single interval; of many equal steps it keeps
    the states between them, and takes each step again. With adaptive steps it also
    keeps the times at which they end. There is room for `max_steps` of these in each interval or,
    if there are many intervals, for four times an interval's share, and at least 1024.

    With a `Lag` or dense output it keeps the dense output of all steps and, in the backward pass,
    as much again. That is about eleven states a step with Tsit5, for `max_steps`
    steps or all equal ones.
    """


class Adjoint(eqx.Module):
    """The continuous adjoint of the paper's Theorem 2, integrated backwards within each interval.

    Choose it if `Checkpointed` does not fit into memory. It keeps one state an interval, however
    many steps are taken. The gradient is that of the equation, not of the computed solution, so it
    is only as accurate as the tolerances. Equations with a `Lag` are not supported: their adjoint
    reads the whole solution and its own past, and so needs as much memory as `Checkpointed`.

    **Arguments:**

    - `solver`, `stepsize_controller`: of the backward pass; by default those of the solve.
    """

    solver: diffrax.AbstractSolver | None = None
    stepsize_controller: diffrax.AbstractStepSizeController | None = None


Gradient = Direct | Checkpointed | Adjoint


@contextlib.contextmanager
def explain_forward_mode(gradient: Gradient, has_own_pass: bool) -> Iterator[None]:
    """Improves JAX's error for forward mode through a backward pass of lagrax's own.

    JAX has no class for this error, so its wording is matched. Within an outer `jit` JAX raises
    it after `solve` has returned, and it stays as it is. `has_own_pass` says whether
    `Checkpointed()` has such a backward pass here.
    """
    try:
        yield
    except TypeError as error:
        has_own_backward = isinstance(gradient, Adjoint) or (
            isinstance(gradient, Checkpointed) and has_own_pass
        )
        if not has_own_backward or "custom_vjp" not in str(error):
            raise
        why = " with adaptive steps, a Lag, or dense output"
        when = why if isinstance(gradient, Checkpointed) else ""
        raise TypeError(
            f"{type(gradient).__name__}() has no forward mode (jax.jvp, jax.jacfwd){when}. Use "
            "gradient=lagrax.Direct()."
        ) from error


def solve_interval(
    interval: Interval, method: Method, gradient: Gradient, state: AdaptiveState | None
) -> tuple[IntervalSolution, AdaptiveState | None, Outcome]:
    """Solves one interval, differentiably by `gradient`. `state` is None without adaptive steps."""
    if interval.field.is_constant:
        return integrate_constant(interval), state, Outcome(RESULTS.successful, interval.end)
    if isinstance(gradient, Adjoint):
        return _with_backward(interval, method, gradient, state, _pull_back_by_adjoint)
    if method.steps is None:
        if isinstance(gradient, Direct):
            return _find_then_replay(interval, method, state)
        return _with_backward(interval, method, gradient, state, _pull_back_by_replay)
    is_checkpointed = isinstance(gradient, Checkpointed)
    run = lambda interval: _take_steps(interval, method, is_checkpointed)
    if is_checkpointed:
        # prevent_cse guards against a hazard that cannot occur inside a scan, at a cost.
        run = eqx.filter_checkpoint(run, prevent_cse=False)
    solution, outcome = run(interval)
    return solution, state, outcome


def _take_steps(
    interval: Interval, method: Method, is_checkpointed: bool = False
) -> tuple[IntervalSolution, Outcome]:
    assert method.steps is not None
    keep = (lambda state, info: info) if interval.save_at.shape[0] else None
    unroll = method.unrolls_steps(interval.field)
    # Many steps are replayed one by one: 6 % more time, and a sixteenth of the memory for 16 steps.
    replay = is_checkpointed and not unroll and method.steps >= 8
    y, infos, outcome = take_equal_steps(
        interval, method.stepper, method.steps, keep, unroll, replay
    )
    ends = jnp.arange(method.steps + 1, dtype=interval.length.dtype) / method.steps
    saves = save_equal_steps(method.stepper.interpolation, interval.save_at, ends, infos)
    return IntervalSolution(y, saves), outcome


# --- Direct, with adaptive steps ------------------------------------------------------------------


def _find_then_replay(interval: Interval, method: Method, state):
    """Finds the steps without a derivative, then takes them again with one."""
    still, state = jax.tree.map(
        lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, (interval, state)
    )
    _, state, steps = find_steps(still, method, state)
    solution = _replay(interval, method, steps, kind="bounded")
    return solution, state, Outcome(state.result, state.t)


def _replay(interval, method: Method, steps, kind: Literal["checkpointed", "bounded"]):
    return replay_steps(interval, method.stepper, steps, kind=kind)


# --- a backward pass of its own -------------------------------------------------------------------


def _with_backward(interval, method: Method, gradient: Gradient, state, pull_back: Callable):
    """Solves an interval with a backward pass of its own.

    `pull_back(interval, method, gradient, steps, y1, cotangent)` gives the cotangent of the
    interval. It must not close over arrays: those of `method` and `gradient`, such as tolerances or
    `jump_ts`, are traced with the solve and reach the backward pass only as arguments.
    """
    moving, still = eqx.partition(interval, eqx.is_inexact_array)
    fixed_arrays, fixed_rest = eqx.partition((still, method, gradient, state), eqx.is_array)

    def unpack(moving, fixed_arrays):
        still, method, gradient, state = eqx.combine(fixed_arrays, fixed_rest)
        return eqx.combine(moving, still), method, gradient, state

    def forward(moving, fixed_arrays):
        interval, method, _, state = unpack(moving, fixed_arrays)
        if method.steps is not None:
            solution, outcome = _take_steps(interval, method)
            return (solution, state, outcome), None
        solution, state, steps = find_steps(interval, method, state)
        return (solution, state, Outcome(state.result, state.t)), steps

    @jax.custom_vjp
    def run(moving, fixed_arrays):
        return forward(moving, fixed_arrays)[0]

    def run_forward(moving, fixed_arrays):
        answer, steps = forward(moving, fixed_arrays)
        return answer, (moving, fixed_arrays, steps, answer[0].y1)

    def run_backward(kept, cotangents):
        moving, fixed_arrays, steps, y1 = kept
        interval, method, gradient, _ = unpack(moving, fixed_arrays)
        bar = pull_back(interval, method, gradient, steps, y1, cotangents[0])
        return explain_second_reverse(bar), None

    run.defvjp(run_forward, run_backward)
    return run(moving, fixed_arrays)


# --- Checkpointed, with adaptive steps ------------------------------------------------------------


def _pull_back_by_replay(interval, method: Method, gradient, steps, y1, cotangent):
    del gradient, y1
    return _pull_back(interval, method, steps, cotangent)


@eqx.filter_custom_jvp
def _pull_back(interval, method: Method, steps: AcceptedSteps, cotangent) -> Interval:
    return _pull_back_through(interval, method, steps, cotangent, kind="checkpointed")


@_pull_back.def_jvp
def _pull_back_jvp(primals, tangents):
    # Nested loops with checkpoints have no forward mode, so second derivatives go through the
    # interval as those of `Direct` do.
    return eqx.filter_jvp(partial(_pull_back_through, kind="bounded"), primals, tangents)


def _pull_back_through(interval, method: Method, steps, cotangent, *, kind) -> Interval:
    _, pull = eqx.filter_vjp(lambda i: _replay(i, method, steps, kind), interval)
    (interval,) = pull(cotangent)
    return interval


# --- Adjoint (Theorem 2) --------------------------------------------------------------------------


def _pull_back_by_adjoint(
    interval: Interval, method: Method, gradient: Adjoint, steps, y1, cotangent: IntervalSolution
) -> Interval:
    """Integrates eqs. 15 and 16 over one interval, in reversed time w = end - t.

    The adjoint a(t) runs back from the interval's end and jumps at every saved time. On its way it
    gathers the integrals of a^T df/dtheta and of a^T df/dz(l tau) for all held states. The caller's
    chain rule adds the latter to a(l tau), which is the second line of eq. 16.
    """
    del steps
    prepared, pull_prepared = eqx.filter_vjp(
        lambda field, history: field.prepare(history), interval.field, tuple(interval.history)
    )
    theta = (interval.field, interval.args, prepared, interval.start, interval.length)
    length = jnp.where(interval.length == 0, 1, interval.length)

    def scaled_field(z, theta, w):
        field, args, prepared, start, moving_length = theta
        # The factor is 1; it carries the dependence of dt on the interval's length.
        factor = moving_length / length
        t = interval.move_inside(start + (1 - w / length) * moving_length)
        dz = field.evaluate(t, z, args, prepared)
        return jax.tree.map(lambda d: (factor * d).astype(d.dtype), dz)

    def reversed_field(w, state, _args, _prepared):
        z, a, _ = state
        dz, pull = eqx.filter_vjp(lambda z, theta: scaled_field(z, theta, w), z, theta)
        return (jax.tree.map(jnp.negative, dz), *pull(a))

    def slope_at(z, s):
        return jax.tree.map(lambda d: length * d, scaled_field(z, theta, (1 - s) * length))

    # The adjoint is linear. Scaled to size one, absolute tolerances mean the same for every loss.
    largest = _largest((cotangent.y1, cotangent.saves))
    scale = jnp.where(largest == 0, 1, largest)
    a, saves = jax.tree.map(lambda x: x / scale, (cotangent.y1, cotangent.saves))
    zero = jax.tree.map(jnp.zeros_like, eqx.filter(theta, eqx.is_inexact_array))
    answer = _integrate_back(
        interval, method, gradient, reversed_field, slope_at, (y1, a, zero), saves
    )
    # Without a loss the gradient is 0, even if the backward pass does not arrive after a failure.
    a, (field, args, prepared, start, moving_length), at_saves = jax.tree.map(
        lambda x: jnp.where(largest == 0, 0, x * scale), answer
    )
    # The backward pass skips an interval of no length, whose end still moves with its length.
    moving_length += lax.cond(
        interval.length == 0,
        lambda: _at_no_length(interval, theta, cotangent),
        lambda: jnp.zeros_like(moving_length),
    )
    field_too, history = pull_prepared(prepared)
    field = jax.tree.map(jnp.add, field, field_too)
    return Interval(field, args, a, list(history), None, start, moving_length, at_saves)


def _at_no_length(interval: Interval, theta: PyTree, cotangent: IntervalSolution) -> Array:
    """The cotangent of a length of zero. A saved state moves by its fraction of the length."""
    field, args, prepared, start, _ = theta
    slope = field.evaluate(start, interval.y, args, prepared)
    total = cotangent.y1
    if interval.save_at.shape[0]:
        share = lambda y, saves: y + jnp.tensordot(interval.save_at.astype(y.dtype), saves, axes=1)
        total = jax.tree.map(share, total, cotangent.saves)
    products = jax.tree.map(lambda c, d: jnp.sum(jnp.real(c * d)), total, slope)
    return sum(jax.tree.leaves(products), jnp.zeros_like(interval.length))


def _largest(tree: PyTree[Array]) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree) if x.size]))


def _integrate_back(interval, method, gradient: Adjoint, field, slope_at, state, saves):
    """Integrates from the end of the interval to its start, with a jump at each saved time.

    Returns the adjoint at the start, the integrals, and the cotangents of the saved times.
    """
    length, count = interval.length, interval.save_at.shape[0]
    stepper = method.stepper
    if gradient.solver is not None:
        stepper = make_stepper(gradient.solver, loops=gradient.stepsize_controller is not None)
    backward = method._replace(
        stepper=stepper,
        controller=gradient.stepsize_controller,
        dt0=None,
        step_ts=None,
        room=method.max_steps,
        has_tape=False,
        keeps_polynomials=False,
        is_continuous=False,
    )
    zero, adaptive = jnp.zeros_like(length), None
    if backward.controller is not None:
        adaptive = start_adaptive(_make_piece(field, state, zero, length), backward, length)

    def run(state, begin, size, adaptive):
        piece = _make_piece(field, state, begin, size)
        if adaptive is None:
            count = jnp.maximum(1, jnp.ceil(method.steps * size / length)).astype(int)
            return find_final_state(piece, stepper, count), adaptive
        solution, adaptive, _ = find_steps(piece, backward, adaptive)
        return solution.y1, adaptive

    def run_to(w, state, begin, adaptive):
        # Saved fractions are filled up with ones and times may repeat, so a piece may be empty.
        skip = lambda state, begin, size, adaptive: (state, adaptive)
        return lax.cond(w > begin, run, skip, state, begin, w - begin, adaptive)

    def to_save(carry, x):
        state, begin, adaptive = carry
        s, cotangent = x
        w = (1 - s) * length
        (z, a, gathered), adaptive = run_to(w, state, begin, adaptive)
        products = jax.tree.map(lambda c, d: jnp.sum(jnp.real(c * d)), cotangent, slope_at(z, s))
        a = jax.tree.map(jnp.add, a, cotangent)
        return ((z, a, gathered), w, adaptive), sum(jax.tree.leaves(products))

    carry, at_saves = (state, zero, adaptive), interval.save_at
    if count:
        carry, at_saves = lax.scan(to_save, carry, (interval.save_at, saves), reverse=True)
    state, begin, adaptive = carry
    (_, a, gathered), adaptive = run_to(length, state, begin, adaptive)
    if adaptive is not None:
        # Without this, a backward pass that did not arrive would look like a gradient.
        lost = adaptive.result != RESULTS.successful
        return jax.tree.map(lambda x: jnp.where(lost, jnp.nan, x), (a, gathered, at_saves))
    return a, gathered, at_saves


def _make_piece(field, state, begin, length) -> Interval:
    """An interval without delays for a part of the backward pass."""
    whole = Field(prepare=lambda history: history, evaluate=field)
    return Interval(whole, None, state, [], None, begin, length, jnp.zeros(0, length.dtype))
