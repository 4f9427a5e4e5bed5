"""Reads lags that are functions of time and state, within the stages of a step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree, Real

from .delays import Entry, find_moving, is_function
from .grid import clip
from .tape import Piece, State, Tape


class Reads(NamedTuple):
    """The place of a read on the tape: the number of a step, or `early` for the initial function.

    There is one for each lag. `own` says that the delayed time lies in the step being taken.
    """

    step: Int[Array, "..."]
    early: Bool[Array, "..."]
    own: Bool[Array, "..."]


class FunctionLags(eqx.Module):
    """The lags of an interval that depend on time or state, and how to read them.

    - `places`: their entries of the history.
    - `functions`, `low`, `high`: the lags as functions of t, y and args, and their bounds.
    - `initial`, `t0`: the initial function, and the time up to which it gives the state.
    - `parts`: the functions of the state that are wanted in place of the state, or None.
    - `tape`, `limit`: the solution so far, of which steps before number `limit` may be read.
    - `segments`: the stretch between breakpoints that each lag reads (see `Breakpoints`). None with
      equal steps, which cross breakpoints, so that the delayed time alone decides.
    - `own`: an approximation of the step being taken, for lags that vanish.
    """

    places: tuple[int, ...] = eqx.field(static=True)
    functions: list[Callable]
    low: Real[Array, " lags"]
    high: Real[Array, " lags"]
    initial: Callable
    t0: Real[Array, ""]
    parts: list[Callable | None]
    tape: Tape | None = None
    limit: Int[Array, ""] | None = None
    segments: Int[Array, " lags"] | None = None
    own: Piece | None = None

    def find_taus(self, t: Real[Array, ""], y: State, args: PyTree) -> Real[Array, " lags"]:
        """The lags as the functions give them."""
        return jnp.stack([jnp.asarray(f(t, y, args), self.low.dtype) for f in self.functions])

    def find_times(self, t: Real[Array, ""], y: State, args: PyTree) -> Real[Array, " lags"]:
        """The delayed times, with lags kept within their bounds.

        The stages of a step that is rejected later may lie outside. NaN stays NaN.
        """
        return t - clip(self.find_taus(t, y, args), self.low, self.high, jnp)

    def is_within_bounds(self, taus: Real[Array, " lags"], dt: Real[Array, ""]) -> Bool[Array, ""]:
        """Whether all lags are within their bounds, up to rounding.

        A lag that touches 0 is less than that by the error of the solution. It may be so by a
        fraction of the length `dt` of a step.
        """
        taus, low, high, dt = lax.stop_gradient((taus, self.low, self.high, dt))
        slack = 64 * jnp.finfo(taus.dtype).eps * jnp.maximum(jnp.abs(low), jnp.abs(taus))
        below = jnp.where(low == 0, 0.01 * dt, slack)
        return jnp.all((taus >= low - below) & (taus <= high + slack))

    def find_first_segments(
        self, t: Real[Array, ""], y: State, slope: State, args: PyTree
    ) -> Int[Array, " lags"]:
        """The stretches that lags read after t0: after it if they vanish there, or before it."""
        one = jnp.ones_like(t)
        find = lambda t, y: self.find_times(t, y, args)
        times, speed = jax.jvp(find, (t, y), (one, slope))
        return jnp.where((times >= t - self._resolution(times)) & (speed > 0), 1, 0)

    def locate(self, times: Real[Array, " lags"], right: Bool[Array, ""]) -> Reads:
        """The places of the delayed times on the tape.

        `right` says that the time of the read begins an interval (see `LagReader.read`).
        """
        times = lax.stop_gradient(times)
        assert self.tape is not None
        assert self.limit is not None
        last = self.limit - (self.own is None)
        if self.segments is None:
            near = jnp.abs(times - self.t0) <= self._resolution(times)
            early = jnp.where(near, ~right, times < self.t0)
            step = jnp.minimum(self.tape.locate(times, right, times), last)
        else:
            breakpoints = self.tape.breakpoints
            assert breakpoints is not None
            early = self.segments == 0
            begin = breakpoints.steps[jnp.maximum(self.segments - 1, 0)]
            end = jnp.minimum(breakpoints.steps[self.segments] - 1, last)
            step = jnp.searchsorted(self.tape.ts, times, side="right") - 1
            step = jnp.clip(step, begin, jnp.maximum(begin, end))
        # With `is_first` nothing is on the tape yet.
        early |= last < 0
        own = ~early & (step == self.limit) if self.own is not None else jnp.zeros_like(early)
        return Reads(jnp.maximum(step, 0), early, own)

    def take(self, reads: Reads) -> Piece:
        """The polynomials of the steps that are read."""
        assert self.tape is not None
        return self.tape.take(jnp.where(reads.own, jnp.maximum(reads.step - 1, 0), reads.step))

    def evaluate(self, times: Real[Array, " lags"], reads: Reads, pieces: Piece) -> list[State]:
        """The delayed states, each of one lag.

        A delayed time that has passed the end of its stretch reads beyond the end of a polynomial,
        at most by the length of its step.
        """
        before = jax.vmap(self._read_initial)(times)
        after = _evaluate_near(pieces, jnp.where(reads.early, pieces.begin, times))
        choose = lambda which, x, y: jax.vmap(jnp.where)(which, x, y)
        values = jax.tree.map(lambda b, a: choose(reads.early, b, a), before, after)
        if self.own is not None:
            own = jax.vmap(self.own.evaluate)(jnp.where(reads.own, times, self.own.begin))
            values = jax.tree.map(lambda o, v: choose(reads.own, o, v), own, values)
        split = lambda i: jax.tree.map(lambda x: x[i], values)
        states = [split(i) for i in range(len(self.functions))]
        return [y if of is None else of(y) for y, of in zip(states, self.parts, strict=True)]

    def read(
        self,
        t: Real[Array, ""],
        y: State,
        args: PyTree,
        right: Bool[Array, ""],
        known: "tuple[Reads, Piece] | None" = None,
    ) -> tuple[list[State], Reads]:
        """The delayed states at time t and state y, and where on the tape they are.

        `known` gives the places and the polynomials there if they are known already.
        """
        times = self.find_times(t, y, args)
        reads = self.locate(times, right) if known is None else known[0]
        pieces = self.take(reads) if known is None else known[1]
        return self.evaluate(times, reads, pieces), reads

    def _read_initial(self, t: Real[Array, ""]) -> State:
        """The initial function, which beyond t0 keeps the value just before t0."""
        t0 = lax.stop_gradient(self.t0)
        last = t0 - jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.max(self.low))
        beyond = jnp.maximum(lax.stop_gradient(t) - last, 0)
        return self.initial(t - beyond)

    def _resolution(self, times: Array) -> Array:
        t0 = lax.stop_gradient(self.t0)
        scale = jnp.maximum(jnp.maximum(jnp.abs(t0), jnp.abs(times)), lax.stop_gradient(self.low))
        return 64 * jnp.finfo(times.dtype).eps * scale


def _evaluate_near(pieces: Piece, times: Real[Array, " lags"]) -> State:
    length = pieces.end - pieces.begin
    low, high = lax.stop_gradient((pieces.begin - length, pieces.end + length))
    return pieces.evaluate(clip(times, low, high, jnp))


def make_lag_functions(delays: Sequence[Entry], t: Array, y: State, args: PyTree) -> list[Entry]:
    """Traces the functions, so that arrays that they close over are leaves."""

    def make(delay: Any) -> Any:
        if not is_function(delay):
            return delay
        given: Any = delay.tau
        try:
            tau = eqx.filter_eval_shape(lambda: jax.tree.map(jnp.asarray, given(t, y, args)))
        except Exception as error:
            error.add_note("lagrax called the function of a Lag as function(t, y, args).")
            raise
        _check_tau(tau)
        typed = lambda t, y, args: jnp.asarray(given(t, y, args), t.dtype)
        traced = eqx.filter_closure_convert(typed, t, y, args)
        return eqx.tree_at(lambda d: d.tau, delay, traced)

    return [make(delay) for delay in delays]


def _check_tau(tau: Any) -> None:
    """Checks the shape and type of what a lag function returned."""
    if not isinstance(tau, jax.ShapeDtypeStruct):
        raise ValueError(
            f"The function of a Lag returned a pytree {jax.tree.structure(tau)}; expected one "
            "number, the lag. Several lags are several entries of `delays`."
        )
    if tau.shape != ():
        raise ValueError(
            f"The function of a Lag returned an array of shape {tau.shape}; expected one number, "
            "the lag. Several lags are several entries of `delays`."
        )
    if not (jnp.issubdtype(tau.dtype, jnp.floating) or jnp.issubdtype(tau.dtype, jnp.integer)):
        raise ValueError(f"The function of a Lag returned {tau.dtype}; expected a real number.")


def make_function_lags(delays: Sequence[Any], initial: Callable, t0: Array) -> FunctionLags | None:
    """The reader of lags whose times are not known beforehand, or None if there is no such lag."""
    places = find_moving(delays)
    if not places:
        return None
    lags = [delays[i] for i in places]
    as_time = lambda x: jnp.asarray(x, t0.dtype)
    fixed = lambda tau: eqx.Partial(lambda tau, t, y, args: tau, as_time(tau))
    functions: list[Any] = [lag.tau if is_function(lag) else fixed(lag.tau) for lag in lags]
    parts = [lag.of for lag in lags]
    low = [as_time(lag.low if is_function(lag) else lag.tau) for lag in lags]
    high = [as_time(lag.high if is_function(lag) else lag.tau) for lag in lags]
    return FunctionLags(places, functions, jnp.stack(low), jnp.stack(high), initial, t0, parts)
