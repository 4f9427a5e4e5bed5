"""One interval: what is integrated over it, and how it is stepped through.

Between two breakpoints the held states are constants, so the equation is an ordinary one. Steps
are equal (`march`, the fast path) or adaptive (`pace_through`), made by the solver's own tableau.
"""

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

from ._field import Field
from ._solution import RESULTS, Records

State = PyTree[Shaped[Array, "..."]]
VectorField = Callable[..., State]


# --- what is integrated ---------------------------------------------------------------------------


class Past(eqx.Module):
    """The solution before the present interval, for lags: the initial function, then records
    (None where no lag reaches beyond t0)."""

    taus: list[Real[Array, ""]]
    initial: Callable
    t0: Real[Array, ""]
    records: Records | None

    def __call__(
        self, t: Real[Array, ""], right: Bool[Array, ""], ahead: Real[Array, ""] | None = None
    ) -> list[State]:
        """The lagged states at time t. `right` says that t begins an interval, so that of the two
        derivatives at a kink, or the two values where the past jumps to `y0`, the right-hand one is
        meant. With `ahead` they are those at t + ahead of what was known at t: some implicit
        methods look beyond the end of a step, where there may be a kink or nothing yet."""
        return [self._at(t - tau, tau, right, ahead) for tau in self.taus]

    def _at(self, t: Real[Array, ""], tau: Real[Array, ""], right, ahead) -> State:
        rounding = 32 * jnp.finfo(t.dtype).eps * jnp.maximum(tau, jnp.abs(self.t0))
        # Rounding alone must not decide on which side of t0 the initial function is asked.
        near = jnp.abs(t - self.t0) <= rounding
        time = jnp.where(near, self._beside_t0(right) + (t - lax.stop_gradient(t)), t)
        initial = self.initial if ahead is None else lambda t: self._continued(t, ahead)
        if self.records is None:
            return initial(time)
        first = self.records.last_start < self.t0
        early = first | jnp.where(near, ~right, t < self.t0)
        before = initial(jnp.where(early, time, self.t0))
        after = self.records.evaluate(jnp.where(early, self.t0, t), right, ahead)
        return jax.tree.map(lambda b, a: jnp.where(early, b, a), before, after)

    def _continued(self, t: Real[Array, ""], ahead: Real[Array, ""]) -> State:
        """The initial function at t + ahead, as the polynomial of degree 4 through it at t and
        before has it: at t0 and beyond it need not be what it was."""
        weights = np.array([5, -10, 10, -5, 1])
        values = jax.vmap(self.initial)(t - ahead * np.arange(len(weights)))

        def leaf(x):
            return jnp.where(ahead > 0, jnp.tensordot(weights.astype(x.dtype), x, axes=1), x[0])

        return jax.tree.map(leaf, values)

    def _beside_t0(self, right: Bool[Array, ""]) -> Real[Array, ""]:
        """t0, or just before it, where the past has not yet jumped to y0."""
        t0, numbers = lax.stop_gradient(self.t0), jnp.finfo(self.t0.dtype)
        return jnp.where(right, t0, t0 - jnp.maximum(numbers.eps * jnp.abs(t0), numbers.tiny))


class Interval(eqx.Module):
    """All that the solution over one interval depends on: what gradients are taken to.

    `history` has one entry for each delay, None where a lag stands. `save_at` are the places to
    save, as fractions of the interval, sorted.
    """

    field: Field
    args: PyTree
    y: State
    history: list[Any]
    past: Past | None
    start: Real[Array, ""]
    length: Real[Array, ""]
    save_at: Float[Array, " saves"]

    @property
    def end(self) -> Real[Array, ""]:
        return self.start + self.length

    def vector_field(self, looks_ahead: bool = False) -> VectorField:
        """f(t, y, lagged=None); `lagged` are the lagged states, where they are known already.
        `looks_ahead` says that t may lie beyond the end."""
        past = self.past
        if past is None:
            prepared = self.field.prepare(tuple(self.history))
            evaluate = self.field.evaluate
            return lambda t, y, lagged=None: evaluate(self.inside(t), y, self.args, prepared)

        def f(t, y, lagged=None):
            if lagged is None:
                known = jnp.where(t > self.end, self.end, t) if looks_ahead else t
                lagged = past(known, t <= self.start, t - known if looks_ahead else None)
            entries = iter(lagged)
            history = tuple(next(entries) if h is None else h for h in self.history)
            return self.field.evaluate(self.inside(t), y, self.args, self.field.prepare(history))

        return f

    def inside(self, t: Real[Array, ""]) -> Real[Array, ""]:
        """A time at an end of the interval, moved into it by a few roundings: a field that changes
        at breakpoints by itself, as u[floor(t / tau)] does, is then that of this interval."""
        if not self.history or not self.field.uses_time:
            return t
        eps, tiny = jnp.finfo(t.dtype).eps, jnp.finfo(t.dtype).tiny
        start, end, now = lax.stop_gradient((self.start, self.end, t))
        rounding = 4 * eps * jnp.maximum(jnp.abs(start), jnp.abs(end))
        moved = jnp.where(now - start <= rounding, start + 4 * eps * jnp.abs(start), now)
        before_end = end - jnp.maximum(4 * eps * jnp.abs(end), tiny)
        moved = jnp.where(jnp.abs(now - end) <= rounding, before_end, moved)
        return moved + (t - now)


class Leg(eqx.Module):
    """The solution over one interval: its end, the saved states, the dense output if wanted."""

    y: State
    saves: State | None
    record: tuple[Float[Array, " steps_plus_1"], PyTree] | None


def _select(keep: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _repeated(y: State, times: int) -> State:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), y)


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

    def evaluations(self, dense: bool) -> tuple[int, int] | None:
        del dense
        # An implicit step evaluates the field within a root finder, which keeps its count.
        return (0, 1) if isinstance(self.solver, diffrax.Euler) else None

    def begin(self, f: VectorField, t: Array, h: Array, y: State) -> PyTree:
        return self.solver.init(_term(f), t, t + h, y, None)

    def step(self, f, t, h, y, state, lagged=None, dense=True):
        del lagged, dense
        y1, error, info, state, result = self.solver.step(
            _term(f), t, t + h, y, None, state, made_jump=False
        )
        return y1, error, info, state, RESULTS.promote(result)


Stepper = ExplicitRungeKutta | AnySolver


def make_stepper(solver: diffrax.AbstractSolver) -> Stepper:
    # A wrapped one, such as HalfSolver(Heun()), is an AbstractERK too, and steps in its own way.
    if isinstance(solver, diffrax.AbstractERK) and hasattr(solver, "tableau"):
        return ExplicitRungeKutta(solver)
    return AnySolver(solver)


def _term(f: VectorField) -> diffrax.ODETerm:
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


# --- a whole interval -----------------------------------------------------------------------------


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


def march(
    interval: Interval, stepper: Stepper, steps: int, record: bool, unroll: bool
) -> tuple[Leg, RESULTS]:
    """`steps` equal steps."""
    f = interval.vector_field(stepper.looks_ahead)
    saves = interval.save_at.shape[0]
    dense = record or saves > 0
    h = interval.length / steps
    starts = interval.start + h * jnp.arange(steps)
    lagged = jax.vmap(lambda t: _lagged_in_step(interval, stepper, t, h))(starts)
    carries = dense or isinstance(stepper, AnySolver)

    def body(carry, x):
        y, slope = carry
        t, lagged = x
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
    return leg, RESULTS.successful if isinstance(stepper, ExplicitRungeKutta) else _first(results)


def _lagged_in_step(interval: Interval, stepper: Stepper, t: Array, h: Array) -> PyTree | None:
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


def _first(results: RESULTS) -> RESULTS:
    """The first failure, or success."""
    first = jnp.argmax(results != RESULTS.successful)
    return jax.tree.map(lambda x: x[first], results)


def _interpolated(stepper, save_at, fractions, infos, steps: int) -> State:
    """The states at `save_at`, from the dense output of equal steps."""
    if infos is None or save_at.shape[0] == 0:
        return None
    step = jnp.clip(jnp.floor(save_at * steps), 0, steps - 1).astype(int)

    def one(s, j):
        info = jax.tree.map(lambda x: x[j], infos)
        return stepper.interpolation(t0=fractions[j], t1=fractions[j + 1], **info).evaluate(s)

    return jax.vmap(one)(save_at, step)


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
    term = _term(f)
    # The search looks one step ahead, which may go beyond the interval, where f is another one.
    within = term
    if interval.history:
        within = _term(lambda t, y: f(jnp.where(t > interval.end, interval.end, t), y))
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
    dt = t_next - interval.start
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
) -> tuple[Leg, Pace, Taken]:
    """Adaptive steps, at most `room` of them here and `max_steps` in all. `smooth` says that the
    field is continuous where the interval begins, so that the last slope is still valid; `record`
    that dense output is wanted."""
    f = interval.vector_field(stepper.looks_ahead)
    begun = pace.accepted
    slope = pace.slope if smooth else stepper.begin(f, interval.start, pace.dt, interval.y)
    y, t, dt = interval.y, interval.start, pace.dt
    end = interval.end
    clip = _make_clip(end, controller)
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


def _make_clip(end: Array, controller: diffrax.AbstractStepSizeController):
    """The end of the next step, from t to t_next if that can be.

    Not beyond `end`, nor so short of it that a sliver remains; after a rejection a step that would
    still overshoot is halved. Under PID control the rest of the interval is shared out in equal
    steps of at most the length asked for: as many, but smaller and less often rejected. Where that
    length is asked for again, their number is whole but for rounding, which must not decide.
    """
    share = isinstance(controller, diffrax.PIDController)
    rounding = float(jnp.finfo(end.dtype).eps) ** 0.5

    def clip(t, t_next, kept):
        rest = end - t
        if share:
            pieces = jnp.maximum(1, jnp.ceil(rest / (t_next - t) - rounding))
            t_next = jnp.where(kept & (t_next > t), t + rest / pieces, t_next)
        margin = 100 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(end), jnp.abs(rest))
        return jnp.where(t_next > end - margin, jnp.where(kept, end, t + 0.5 * rest), t_next)

    return clip


def _initial_saves(interval: Interval) -> State | None:
    count = interval.save_at.shape[0]
    return _repeated(interval.y, count) if count else None


def empty_infos(stepper: Stepper, t: Array, y: State, places: tuple[int, ...]) -> PyTree:
    """Room for the dense output of as many steps as there are `places`."""

    def info():
        f = lambda t, y, lagged=None: y
        return stepper.step(f, t, t, y, stepper.begin(f, t, t, y))[2]

    return jax.tree.map(
        lambda x: jnp.zeros((*places, *x.shape), x.dtype), eqx.filter_eval_shape(info)
    )


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
    order = stepper.solver.error_order(_term(f))

    def advance(now: _Travel) -> _Travel:
        pace = now.pace
        h = now.t_next - now.t
        lagged = _lagged_in_step(interval, stepper, now.t, h)
        y, error, info, slope, failed = stepper.step(f, now.t, h, now.y, now.slope, lagged)
        # A step that leads nowhere, as where an implicit one finds no solution, is too long: the
        # controller, which scales errors by the new state, is to see that and nothing else.
        lost = ~_finite(y)
        error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e) | lost, jnp.inf, e), error)
        keep, t, t_next, made_jump, state, controlled = controller.adapt_step_size(
            now.t, now.t_next, now.y, _select(lost, now.y, y), None, error, order, pace.controller
        )
        keep: Any = jnp.asarray(keep)
        t = jnp.minimum(t, end)
        dt = t_next - t
        # Also where dt is NaN, which is not greater than anything.
        resolution = 2 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), interval.length)
        stuck = ~(dt > resolution) & (t < end)
        trouble = RESULTS.where(_finite(y), RESULTS.step_underflow, RESULTS.state_not_finite)
        result = RESULTS.where(keep, failed, RESULTS.successful)
        result = RESULTS.where(stuck, trouble, result)
        controlled = RESULTS.promote(controlled)
        result = RESULTS.where(result == RESULTS.successful, controlled, result)
        if made_jump is not False:
            slope = lax.cond(made_jump, lambda: stepper.begin(f, t, dt, y), lambda: slope)
        # A step cut short by the interval's end says little about the length that is possible.
        cut = h < 0.99 * pace.dt
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
                dt=jnp.where(keep & cut, jnp.maximum(dt, pace.dt), dt),
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
        lagged = _lagged_in_step(interval, stepper, t, h)
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
