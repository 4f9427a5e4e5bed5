"""Steps: one of them, by the solver's own tableau, and an interval of equal ones, the fast path."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .interval import Interval, Leg, State, VectorField
from .solution import RESULTS


def is_finite(y: State) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(y)]))


def select(keep: Any, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


# --- one step -------------------------------------------------------------------------------------


class ExplicitRungeKutta(eqx.Module):
    """A step of any explicit Runge-Kutta method of diffrax, from its Butcher tableau, unrolled.

    Written here because diffrax's own step loops over its stages and cannot be told that the last
    slope is not wanted; unrolled it runs several times faster on small fields.
    """

    solver: diffrax.AbstractERK

    @property
    def tableau(self) -> Any:
        return self.solver.tableau

    @property
    def interpolation(self) -> Callable:
        return self.solver.interpolation_cls

    @property
    def nodes(self) -> np.ndarray:
        return np.concatenate([[0.0], self.tableau.c])

    @property
    def looks_ahead(self) -> bool:
        return bool(np.max(self.nodes) > 1)

    @property
    def state_is_slope(self) -> bool:
        """Whether what a step hands to the next one depends on nothing but t and y there."""
        return True

    def evaluations(self, dense: bool) -> tuple[int, int]:
        """How often the field is evaluated: to begin an interval, and in each step."""
        stages = self.tableau.num_stages
        if not self.tableau.fsal:
            return 0, stages
        return (1, stages - 1) if dense else (0, stages - 1)

    def begin(self, f: VectorField, t: Array, h: Array, y: State) -> State | None:
        return f(t, y) if self.tableau.fsal else None

    def step(self, f, t, h, y, slope, lagged=None, dense=True):
        """The new state, its error, what interpolates, the slope to go on with, and the result.

        Without `dense` the slope at the new state, which only interpolation and the next step
        use, is not computed.
        """
        tableau = self.tableau
        stages = tableau.num_stages - (tableau.fsal and not dense)
        slopes: list[State] = []
        stage = y
        for i in range(stages):
            if i > 0:
                stage = _plus(y, h, tableau.a_lower[i - 1], slopes)
            if i == 0 and slope is not None:
                slopes.append(slope)
            else:
                slopes.append(f(t + float(self.nodes[i]) * h, stage, _entry(lagged, i)))
        y1 = stage if tableau.ssal and dense else _plus(y, h, tableau.b_sol, slopes)
        error = _plus(jax.tree.map(jnp.zeros_like, y), h, tableau.b_error, slopes)
        stacked = jax.tree.map(lambda *ks: h * jnp.stack(ks), *slopes)
        info = {"y0": y, "y1": y1, "k": stacked}
        return y1, error, info, slopes[-1] if tableau.fsal else None, RESULTS.successful


class AnySolver(eqx.Module):
    """A step of any other solver of diffrax, the implicit ones included, by its own `step`."""

    solver: diffrax.AbstractSolver

    @property
    def interpolation(self) -> Callable:
        return self.solver.interpolation_cls

    @property
    def looks_ahead(self) -> bool:
        """Whether it evaluates the field beyond the end of a step, as Kvaerno's methods of order 4
        and 5 do."""
        inner = getattr(self.solver, "solver", self.solver)  # of diffrax.HalfSolver
        nodes = getattr(getattr(inner, "tableau", None), "c", [])
        return any(float(node) > 1 for node in nodes)

    @property
    def state_is_slope(self) -> bool:
        return isinstance(self.solver, diffrax.AbstractRungeKutta) and not isinstance(
            self.solver, diffrax.HalfSolver
        )

    def evaluations(self, dense: bool) -> tuple[int, int] | None:
        del dense
        # An implicit step evaluates the field within a root finder, which keeps its count.
        return (0, 1) if isinstance(self.solver, diffrax.Euler) else None

    def begin(self, f: VectorField, t: Array, h: Array, y: State) -> PyTree:
        return self.solver.init(term_of(f), t, t + h, y, None)

    def step(self, f, t, h, y, state, lagged=None, dense=True):
        del lagged, dense
        y1, error, info, state, result = self.solver.step(
            term_of(f), t, t + h, y, None, state, made_jump=False
        )
        return y1, error, info, state, RESULTS.promote(result)

    def step_or_stay(self, interval: Interval, t, h, y, state):
        """The new state, what interpolates, the state of the solver, and the result. A step that
        fails stays where it begins, so that nothing after it meets infinity or NaN: derivatives of
        an implicit step solve linear equations, and with these they end in an error."""
        y1, info, after, result = _any_step(self, interval, t, h, y, state)
        arrived = _arrived(y1, result)
        lost = RESULTS.where(result == RESULTS.successful, RESULTS.state_not_finite, result)
        still = jax.tree.map(jnp.zeros_like, info) | {k: y for k in ("y0", "y1") if k in info}
        y1, info, after = select(arrived, (y1, info, after), (y, still, state))
        return y1, info, after, RESULTS.where(arrived, result, lost)


@eqx.filter_custom_jvp
def _any_step(solver: AnySolver, interval: Interval, t, h, y, state):
    return _step_where(True, solver, interval, t, h, y, state)


@_any_step.def_jvp
def _any_step_jvp(primals, tangents):
    found = _any_step(*primals)
    arrived = _arrived(found[0], found[-1])
    _, moved = eqx.filter_jvp(partial(_step_where, arrived), primals, tangents)
    return found, moved


def _step_where(arrived, solver: AnySolver, interval: Interval, t, h, y, state):
    """A step of the field where it arrives; elsewhere of the field 0, from which it always does."""
    field = interval.vector_field(solver.looks_ahead)

    def f(t, z):
        slope = field(t, select(arrived, z, y))
        return select(arrived, slope, jax.tree.map(jnp.zeros_like, slope))

    y1, _, info, state, result = solver.step(f, t, h, y, state)
    return y1, info, state, result


def _arrived(y: State, result: RESULTS) -> Array:
    return is_finite(y) & (result == RESULTS.successful)


Stepper = ExplicitRungeKutta | AnySolver


def make_stepper(solver: diffrax.AbstractSolver) -> Stepper:
    # A wrapped one, such as HalfSolver(Heun()), is an AbstractERK too, and steps in its own way.
    if isinstance(solver, diffrax.AbstractERK) and hasattr(solver, "tableau"):
        return ExplicitRungeKutta(solver)
    return AnySolver(solver)


def term_of(f: VectorField) -> diffrax.ODETerm:
    return diffrax.ODETerm(lambda t, y, args: f(t, y))


def _entry(lagged: PyTree | None, i: int) -> PyTree | None:
    return None if lagged is None else jax.tree.map(lambda x: x[i], lagged)


def _plus(y: State, h: Array, weights: np.ndarray, slopes: list[State]) -> State:
    """y + h * sum(weights * slopes).

    As a product with the stacked slopes, since XLA computes those once: in a sum it copies a cheap
    slope into every later stage that uses it, and the copies multiply from stage to stage.
    """
    used = [i for i, w in enumerate(weights[: len(slopes)]) if w != 0]
    if not used:
        return y

    def leaf(y, *ks):
        w = jnp.asarray(weights[used], y.dtype)
        total = jnp.tensordot(w, jnp.stack(ks), axes=1, precision=lax.Precision.HIGHEST)
        return (y + h * total).astype(y.dtype)

    return jax.tree.map(leaf, y, *(slopes[i] for i in used))


def empty_infos(stepper: Stepper, t: Array, y: State, places: tuple[int, ...]) -> PyTree:
    """Room for the dense output of as many steps as there are `places`."""

    def info():
        f = lambda t, y, lagged=None: y
        return stepper.step(f, t, t, y, stepper.begin(f, t, t, y))[2]

    return jax.tree.map(
        lambda x: jnp.zeros((*places, *x.shape), x.dtype), eqx.filter_eval_shape(info)
    )


# --- an interval of equal steps -------------------------------------------------------------------


def jump(interval: Interval) -> Leg:
    """An interval over which the field is constant: one evaluation, exact at any length."""
    slope = interval.vector_field()(interval.start, interval.y)

    def after(fraction):
        return jax.tree.map(
            lambda y, k: (y + fraction * interval.length * k).astype(y.dtype), interval.y, slope
        )

    end = after(1.0)
    ts = jnp.stack([interval.start, interval.end])
    info = jax.tree.map(lambda x: x[None], {"y0": interval.y, "y1": end})
    return Leg(end, jax.vmap(after)(interval.save_at), (ts, info))


class Outcome(NamedTuple):
    """Whether a way through an interval succeeded, and how far it came."""

    result: RESULTS
    t: Array


def march(
    interval: Interval, stepper: Stepper, steps: int, record: bool, unroll: bool
) -> tuple[Leg, Outcome]:
    """`steps` equal steps."""
    f = interval.vector_field(stepper.looks_ahead)
    saves = interval.save_at.shape[0]
    dense = record or saves > 0
    h = interval.length / steps
    starts = interval.start + h * jnp.arange(steps)
    lagged = jax.vmap(lambda t: lagged_in_step(interval, stepper, t, h))(starts)
    carries = dense or isinstance(stepper, AnySolver)

    def body(carry, x):
        y, slope = carry
        t, lagged = x
        if isinstance(stepper, AnySolver):
            y, info, slope, result = stepper.step_or_stay(interval, t, h, y, slope)
        else:
            y, _, info, slope, result = stepper.step(f, t, h, y, slope, lagged, dense)
        return (y, slope if carries else None), (info if dense else None, result)

    slope = stepper.begin(f, interval.start, h, interval.y) if carries else None
    loop = _unrolled_scan if unroll else lax.scan
    (y, _), (infos, results) = loop(body, (interval.y, slope), (starts, lagged))
    fractions = jnp.arange(steps + 1, dtype=h.dtype) / steps
    leg = Leg(
        y,
        _interpolated(stepper, interval.save_at, fractions, infos, steps),
        (interval.start + interval.length * fractions, infos) if record else None,
    )
    if isinstance(stepper, ExplicitRungeKutta):
        return leg, Outcome(RESULTS.successful, interval.end)
    # The first failure, or success.
    first = jnp.argmax(results != RESULTS.successful)
    result = jax.tree.map(lambda x: x[first], results)
    failed = result != RESULTS.successful
    return leg, Outcome(result, jnp.where(failed, starts[first], interval.end))


def lagged_in_step(interval: Interval, stepper: Stepper, t: Array, h: Array) -> PyTree | None:
    """The lagged states at all stages of a step, whose times are known beforehand: looked up at
    once they make a program of half the size. None where there are none, or an implicit step looks
    them up by itself."""
    if interval.past is None or not isinstance(stepper, ExplicitRungeKutta):
        return None
    nodes = t + h * jnp.asarray(stepper.nodes, h.dtype)
    return jax.vmap(interval.past)(nodes, nodes <= interval.start)


def _unrolled_scan(body: Callable, carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
    """What `lax.scan` computes. Not its own unrolling, whose backward pass stacks all that the
    steps keep, and so copies large states twice."""
    ys = []
    for i in range(len(jax.tree.leaves(xs)[0])):
        carry, y = body(carry, jax.tree.map(lambda x: x[i], xs))  # noqa: B023
        ys.append(y)
    return carry, jax.tree.map(lambda *y: jnp.stack(y), *ys)


def stroll(interval: Interval, stepper: Stepper, steps: Int[Array, ""]) -> State:
    """The end of the interval by a traced number of equal steps: not for reverse mode."""
    f, h = interval.vector_field(stepper.looks_ahead), interval.length / steps
    explicit = isinstance(stepper, ExplicitRungeKutta)

    def body(j, carry):
        y, state = carry
        y, _, _, state, _ = stepper.step(f, interval.start + j * h, h, y, state, dense=False)
        return y, None if explicit else state

    state = None if explicit else stepper.begin(f, interval.start, h, interval.y)
    return lax.fori_loop(0, steps, body, (interval.y, state))[0]


def _interpolated(stepper, save_at, fractions, infos, steps: int) -> State:
    """The states at `save_at`, from the dense output of equal steps."""
    if infos is None or save_at.shape[0] == 0:
        return None
    step = jnp.clip(jnp.floor(save_at * steps), 0, steps - 1).astype(int)

    def one(s, j):
        info = jax.tree.map(lambda x: x[j], infos)
        return stepper.interpolation(t0=fractions[j], t1=fractions[j + 1], **info).evaluate(s)

    return jax.vmap(one)(save_at, step)
