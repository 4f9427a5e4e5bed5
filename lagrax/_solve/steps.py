"""One step of a solver, and an interval of equal steps, which is the fast path."""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from .interval import Interval, IntervalSolution, Outcome, VectorField
from .solution import RESULTS
from .tape import Piece, State, make_coefficients


def is_finite(y: State) -> Bool[Array, ""]:
    """Whether all numbers of a state are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(y)]))


def select(condition: Any, new: PyTree, old: PyTree) -> PyTree:
    """`jnp.where` for pytrees."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


# --- one step -------------------------------------------------------------------------------------


class ExplicitRungeKutta(eqx.Module):
    """Steps of any explicit Runge-Kutta method of diffrax, from its Butcher tableau.

    diffrax's own step always computes the last slope. Without it, and with its stages unrolled, a
    step is several times faster on small fields. With `loops` the stages are a compiled loop, as in
    diffrax, so that the program holds the field once. The field is then traced once for all stages.

    `restarts` says that the field may jump between any two steps, so that no slope is used again.
    """

    solver: diffrax.AbstractERK
    loops: bool = eqx.field(static=True, default=False)
    restarts: bool = eqx.field(static=True, default=False)

    @property
    def tableau(self) -> Any:
        """The Butcher tableau."""
        return self.solver.tableau

    @property
    def interpolation(self) -> Callable:
        """The interpolation of the dense output."""
        return self.solver.interpolation_cls

    @property
    def nodes(self) -> np.ndarray:
        """The times of the stages, as fractions of the step."""
        return np.concatenate([[0.0], self.tableau.c])

    @property
    def looks_ahead(self) -> bool:
        """Whether a stage lies beyond the end of the step."""
        return bool(np.max(self.nodes) > 1)

    @property
    def state_is_slope(self) -> bool:
        """Whether the solver's state depends on nothing but t and y at the end of a step."""
        return True

    def evaluations(self, dense: bool) -> tuple[int, int]:
        """The number of field evaluations to begin an interval, and in each step."""
        stages = self.tableau.num_stages
        if not self.tableau.fsal or self.restarts:
            return 0, stages
        return (1, stages - 1) if dense else (0, stages - 1)

    def begin(self, f: VectorField, t: Array, h: Array, y: State) -> State | None:
        """The solver's state at the start of an interval, which is the slope there."""
        return f(t, y) if self.tableau.fsal and not self.restarts else None

    def step(self, f, t, h, y, slope, lagged=None, dense=True):
        """The new state, its error, the dense output, the last slope, and the result.

        Without `dense` the slope at the new state is not computed. Only interpolation and the next
        step use it.
        """
        tableau = self.tableau
        stages = tableau.num_stages - (tableau.fsal and not dense)
        find_slopes = self._loop_over_stages if self.loops else self._unroll_stages
        slopes, stage = find_slopes(f, t, h, y, slope, lagged, stages)
        ends_in_stage = tableau.ssal and dense and not self.loops
        y1 = stage if ends_in_stage else _add_slopes(y, h, tableau.b_sol, slopes, self.loops)
        zero = jax.tree.map(jnp.zeros_like, y)
        error = _add_slopes(zero, h, tableau.b_error, slopes, self.loops)
        if not self.loops:
            slopes = jax.tree.map(lambda *ks: jnp.stack(ks), *slopes)
        info = {"y0": y, "y1": y1, "k": jax.tree.map(lambda ks: h * ks, slopes)}
        keeps = tableau.fsal and not self.restarts
        last = jax.tree.map(lambda ks: ks[-1], slopes) if keeps else None
        return y1, error, info, last, RESULTS.successful

    def _unroll_stages(self, f, t, h, y, slope, lagged, stages) -> tuple[list[State], State]:
        """The slopes of all stages, and the state of the last one. `slope` is the first slope."""
        slopes: list[State] = []
        stage = y
        for i in range(stages):
            if i > 0:
                stage = _add_slopes(y, h, self.tableau.a_lower[i - 1], slopes, False)
            if i == 0 and slope is not None:
                slopes.append(slope)
            else:
                of_stage = None if lagged is None else jax.tree.map(lambda x: x[i], lagged)  # noqa: B023
                slopes.append(f(t + float(self.nodes[i]) * h, stage, of_stage))
        return slopes, stage

    def _loop_over_stages(self, f, t, h, y, slope, lagged, stages) -> tuple[State, None]:
        """The slopes of all stages, stacked."""
        weights = np.zeros((stages, stages))
        for i, row in enumerate(self.tableau.a_lower[: stages - 1]):
            weights[i + 1, : i + 1] = row
        slopes = jax.tree.map(lambda x: jnp.zeros((stages, *x.shape), x.dtype), y)
        put = lambda slopes, i, k: jax.tree.map(lambda ks, k: ks.at[i].set(k), slopes, k)
        if slope is not None:
            slopes = put(slopes, 0, slope)

        def body(slopes, x):
            i, weights, node, of_stage = x
            k = f(t + node * h, _add_slopes(y, h, weights, slopes, True), of_stage)
            return put(slopes, i, k), None

        xs = np.arange(stages), weights, self.nodes[:stages].astype(t.dtype), lagged
        xs = jax.tree.map(lambda x: x[0 if slope is None else 1 : stages], xs)
        return lax.scan(body, slopes, xs)[0], None


class AnySolver(eqx.Module):
    """Steps of any other solver of diffrax, including implicit ones, by its own `step`.

    `restarts` says that the field may jump between any two steps.
    """

    solver: diffrax.AbstractSolver
    restarts: bool = eqx.field(static=True, default=False)

    @property
    def interpolation(self) -> Callable:
        """The interpolation of the dense output."""
        return self.solver.interpolation_cls

    @property
    def looks_ahead(self) -> bool:
        """Whether a stage lies beyond the end of the step, as in Kvaerno4 and Kvaerno5."""
        inner = getattr(self.solver, "solver", self.solver)  # of diffrax.HalfSolver
        nodes = getattr(getattr(inner, "tableau", None), "c", [])
        return any(float(node) > 1 for node in nodes)

    @property
    def state_is_slope(self) -> bool:
        """Whether the solver's state depends on nothing but t and y at the end of a step."""
        return isinstance(self.solver, diffrax.AbstractRungeKutta) and not isinstance(
            self.solver, diffrax.HalfSolver
        )

    def evaluations(self, dense: bool) -> tuple[int, int] | None:
        """The number of field evaluations to begin an interval, and in each step.

        It is None if unknown. An implicit step evaluates the field within a root finder, which does
        not report a count.
        """
        del dense
        return (0, 1) if isinstance(self.solver, diffrax.Euler) else None

    def begin(self, f: VectorField, t: Array, h: Array, y: State) -> PyTree:
        """The solver's state at the start of an interval."""
        return self.solver.init(make_term(f), t, t + h, y, None)

    def step(self, f, t, h, y, state, lagged=None, dense=True):
        """The new state, its error, the dense output, the solver's state, and the result."""
        del lagged, dense
        y1, error, info, state, result = self.solver.step(
            make_term(f), t, t + h, y, None, state, made_jump=self.restarts
        )
        return y1, error, info, state, RESULTS.promote(result)

    def step_or_stay(self, interval: Interval, t, h, y, state):
        """The new state, the dense output, the solver's state, and the result.

        A step that fails stays at its start, so that no infinity or NaN gets into later steps. The
        derivative of an implicit step solves linear equations, which would raise on these.
        """
        y1, info, after, result = _step_of_any_solver(self, interval, t, h, y, state)
        succeeded = _has_succeeded(y1, result)
        failure = RESULTS.where(result == RESULTS.successful, RESULTS.state_not_finite, result)
        still = jax.tree.map(jnp.zeros_like, info) | {k: y for k in ("y0", "y1") if k in info}
        y1, info, after = select(succeeded, (y1, info, after), (y, still, state))
        return y1, info, after, RESULTS.where(succeeded, result, failure)


@eqx.filter_custom_jvp
def _step_of_any_solver(solver: AnySolver, interval: Interval, t, h, y, state):
    return _step_if(True, solver, interval, t, h, y, state)


@_step_of_any_solver.def_jvp
def _step_of_any_solver_jvp(primals, tangents):
    found = _step_of_any_solver(*primals)
    succeeded = _has_succeeded(found[0], found[-1])
    _, moved = eqx.filter_jvp(partial(_step_if, succeeded), primals, tangents)
    return found, moved


def _step_if(condition, solver: AnySolver, interval: Interval, t, h, y, state):
    """A step of the field, or of the field 0 if the condition is false, which always succeeds."""
    field = interval.vector_field(solver.looks_ahead)

    def f(t, z):
        slope = field(t, select(condition, z, y))
        return select(condition, slope, jax.tree.map(jnp.zeros_like, slope))

    y1, _, info, state, result = solver.step(f, t, h, y, state)
    return y1, info, state, result


def _has_succeeded(y: State, result: RESULTS) -> Array:
    return is_finite(y) & (result == RESULTS.successful)


Stepper = ExplicitRungeKutta | AnySolver


def make_stepper(
    solver: diffrax.AbstractSolver, loops: bool = False, restarts: bool = False
) -> Stepper:
    """Chooses how to take steps of a solver."""
    # A wrapped solver, such as HalfSolver(Heun()), is an AbstractERK without a tableau.
    if isinstance(solver, diffrax.AbstractERK) and hasattr(solver, "tableau"):
        return ExplicitRungeKutta(solver, loops, restarts)
    return AnySolver(solver, restarts)


def make_term(f: VectorField) -> diffrax.ODETerm:
    """Makes a term of diffrax from a vector field f(t, y)."""
    return diffrax.ODETerm(lambda t, y, args: f(t, y))


def _add_slopes(
    y: State, h: Array, weights: Any, slopes: State | list[State], are_stacked: bool
) -> State:
    """y + h * sum(weights * slopes), where slopes are a list or stacked.

    The sum is a product with the stacked slopes, which XLA computes once. In a plain sum XLA copies
    a cheap slope into every later stage that uses it, and the copies multiply from stage to stage.
    """
    if not are_stacked:  # A state may be a list, too.
        used = [i for i, w in enumerate(weights[: len(slopes)]) if w != 0]
        if not used:
            return y
        weights = weights[used]
        slopes = jax.tree.map(lambda *ks: jnp.stack(ks), *(slopes[i] for i in used))
        few = 0
    else:
        few = 32  # numbers, for which calling a product takes longer than a fused sum

    def leaf(y, ks):
        w = jnp.asarray(weights[: ks.shape[0]], y.dtype)
        if y.size <= few:
            total = jnp.sum(w.reshape(-1, *[1] * y.ndim) * ks, axis=0)
        else:
            total = jnp.tensordot(w, ks, axes=1, precision=lax.Precision.HIGHEST)
        return (y + h * total).astype(y.dtype)

    return jax.tree.map(leaf, y, slopes)


def make_empty_step(stepper: Stepper, t: Array, y: State) -> tuple[PyTree, PyTree]:
    """The shapes of the solver's state, and of the coefficients of a step's polynomial."""

    def step():
        f = lambda t, y, lagged=None: y
        state = jax.tree.map(jnp.asarray, stepper.begin(f, t, t, y))
        info = stepper.step(f, t, t, y, state)[2]
        return state, make_coefficients(stepper.interpolation, info)

    return eqx.filter_eval_shape(step)


def find_nodes(interval: Interval, stepper: ExplicitRungeKutta, t: Array, h: Array, steps: int = 1):
    """The different times of the stages of a step or of several equal ones, in their order.

    Also returns whether each of them begins the interval.
    """
    nodes = t + h * jnp.asarray(_list_nodes(stepper, steps)[0], h.dtype)
    return nodes, nodes <= interval.start


def _list_nodes(stepper: ExplicitRungeKutta, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The different nodes of equal steps, in steps, and the number of that of each stage.

    Stages often share a time with one of the same step, or of the next one.
    """
    nodes = np.arange(steps)[:, None] + stepper.nodes
    _, first, number = np.unique(np.round(nodes, 12), return_index=True, return_inverse=True)
    return nodes.ravel()[first], number.reshape(nodes.shape)


def read_lags(
    interval: Interval,
    stepper: Stepper,
    t: Array,
    h: Array,
    pieces: list[Piece] | None = None,
    steps: int | None = None,
) -> PyTree | None:
    """Reads the entries of lags for all stages of a step at once.

    The times of explicit stages are known beforehand, and one read makes a program of half the
    size. Returns None if there are no lags, or if an implicit step reads them itself. `pieces` are
    the polynomials of the tape that are read, if they are known already. With `steps` these are the
    entries of so many equal steps, stacked in front.
    """
    lags = interval.lags
    if lags is None or not isinstance(stepper, ExplicitRungeKutta):
        return None
    read = lambda t, right, pieces: lags.read(t, right, None, pieces)
    entries = jax.vmap(read)(*find_nodes(interval, stepper, t, h, steps or 1), pieces)
    number = _list_nodes(stepper, steps or 1)[1]
    return jax.tree.map(lambda x: x[number if steps else number[0]], entries)


# --- an interval ----------------------------------------------------------------------------------


def integrate_constant(interval: Interval) -> IntervalSolution:
    """Solves an interval whose field is constant, exactly and with one evaluation."""
    slope = interval.vector_field()(interval.start, interval.y)

    def after(fraction):
        return jax.tree.map(
            lambda y, k: (y + fraction * interval.length * k).astype(y.dtype), interval.y, slope
        )

    return IntervalSolution(after(1.0), jax.vmap(after)(interval.save_at))


def take_equal_steps(
    interval: Interval,
    stepper: Stepper,
    steps: int,
    keep: Callable | None,
    unroll: bool,
    replay: bool = False,
) -> tuple[State, PyTree, Outcome]:
    """Takes equal steps through an interval, and returns the final state.

    Of every step it also returns `keep(state, info)`, a function of the solver's state at its start
    and of its dense output. The outcome is that of the first step that failed, if any did. `unroll`
    replaces the compiled loop by copies of its body. With `replay` the backward pass keeps the
    state at the start of each step, instead of its stages, and takes the step again.
    """
    f, lags = interval.vector_field(stepper.looks_ahead), interval.function_lags
    dense = keep is not None
    h = interval.length / steps
    starts = interval.start + h * jnp.arange(steps)
    lagged = read_lags(interval, stepper, interval.start, h, steps=steps)
    carries_state = dense or isinstance(stepper, AnySolver)

    def body(carry, x):
        y, before = carry
        t, lagged = x
        if isinstance(stepper, AnySolver):
            y, info, state, result = stepper.step_or_stay(interval, t, h, y, before)
        else:
            y, _, info, state, result = stepper.step(f, t, h, y, before, lagged, dense)
        taus = None
        if lags is not None:
            taus = lags.find_taus(t + h, y, interval.args)
            result = RESULTS.where(
                lags.is_within_bounds(taus, h), result, RESULTS.lag_out_of_bounds
            )
        kept = None if keep is None else keep(before, info)
        return (y, state if carries_state else None), (kept, result, taus)

    state = stepper.begin(f, interval.start, h, interval.y) if carries_state else None
    loop = _unrolled_scan if unroll else lax.scan
    if replay:
        body = jax.checkpoint(body, prevent_cse=False)
    (y, _), (kept, results, taus) = loop(body, (interval.y, state), (starts, lagged))
    if lags is None and isinstance(stepper, ExplicitRungeKutta):
        return y, kept, Outcome(RESULTS.successful, interval.end)
    first = jnp.argmax(results != RESULTS.successful)
    result, taus = jax.tree.map(lambda x: x[first], (results, taus))
    failed = result != RESULTS.successful
    return y, kept, Outcome(result, jnp.where(failed, starts[first], interval.end), taus)


def _unrolled_scan(body: Callable, carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
    """Computes the same as `lax.scan`.

    The backward pass of `lax.scan(..., unroll=True)` stacks the residuals of all steps, which
    copies large states twice.
    """
    ys = []
    for i in range(len(jax.tree.leaves(xs)[0])):
        carry, y = body(carry, jax.tree.map(lambda x: x[i], xs))  # noqa: B023
        ys.append(y)
    return carry, jax.tree.map(lambda *y: jnp.stack(y), *ys)


def find_final_state(interval: Interval, stepper: Stepper, steps: Int[Array, ""]) -> State:
    """Final state after a traced number of equal steps. Not reverse-differentiable."""
    f, h = interval.vector_field(stepper.looks_ahead), interval.length / steps
    explicit = isinstance(stepper, ExplicitRungeKutta)

    def body(j, carry):
        y, state = carry
        y, _, _, state, _ = stepper.step(f, interval.start + j * h, h, y, state, dense=False)
        return y, None if explicit else state

    state = None if explicit else stepper.begin(f, interval.start, h, interval.y)
    return lax.fori_loop(0, steps, body, (interval.y, state))[0]
