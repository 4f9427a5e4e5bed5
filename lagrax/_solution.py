"""What a solve returns, and what can have gone wrong."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Real, Shaped

from ._missing import fill


class RESULTS(diffrax.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """diffrax's result codes, and those of delay equations.

    `RESULTS[sol.result]` is the message, which holds the remedy; it is empty where the solve was
    successful. Under `jit` and `vmap` compare codes: `sol.result == RESULTS.successful`.
    """

    successful = ""
    state_not_finite = (
        "The state became infinite or NaN; `sol.failed_at` says when. At t0 that is `y0` itself, "
        "or its type has too few digits for the tolerances. Later the equation may blow up there, "
        "or steps are too long for it: use more `steps`, or leave `steps` out for adaptive ones."
    )
    step_underflow = (
        "The step size fell below what the floating point type can resolve; `sol.failed_at` says "
        "when. The solution may become infinite there; if not, loosen the tolerances, use float64, "
        "or a stiff solver such as diffrax.Kvaerno5."
    )
    intervals_too_few = (
        "The static number of intervals does not cover the span from t0 to t1, or a traced t1 is "
        "before t0, a traced tau is not positive, or traced instants do not increase. Raise "
        "`intervals`, bound tau from below, or sort the instants."
    )
    saved_outside = (
        "A traced time in `saveat.ts` lies outside the span from t0 to t1; the state saved there "
        "is NaN. Drop it, or widen the span."
    )


class SolveError(RuntimeError):
    """Raised by `solve(..., throw=True)` when the result is not successful. The message says what
    went wrong, when, and what to do."""


class Knots(NamedTuple):
    """The breakpoints of the solution and the states there, t0 and t1 included.

    - `ts`: the times: instants of holds, and where kinks come through a lag.
    - `ys`: the states, like `y0` with one axis more in front.
    """

    ts: Float[Array, " knots"]
    ys: PyTree[Shaped[Array, "knots ..."]]


class Records(eqx.Module):
    """The solver's dense output over consecutive intervals, each of up to `steps` steps.

    The intervals are in the order of time from row `oldest` on, and from the last row on to the
    first. Unused places at the end of an interval have infinite `ts`.
    """

    ts: Float[Array, "intervals steps_plus_1"]
    infos: PyTree[Shaped[Array, "intervals steps ..."]]
    interpolation: Callable = eqx.field(static=True)
    oldest: Int[Array, ""] | int = 0

    @property
    def last_start(self) -> Real[Array, ""]:
        return self.ts[self._rows(-1), 0]

    def pushed(self, record: tuple[Array, PyTree]) -> "Records":
        """With the record of one more interval in place of the oldest, which is cheaper than to
        move all the others up."""
        put = lambda rows, new: rows.at[self.oldest].set(new)
        ts, infos = jax.tree.map(put, (self.ts, self.infos), record)
        return Records(ts, infos, self.interpolation, self._rows(1))

    def _rows(self, number: Any) -> Any:
        """Where the intervals with these numbers are, 0 the oldest."""
        return (self.oldest + number) % self.ts.shape[0]

    def evaluate(
        self,
        t: Real[Array, ""],
        right: Bool[Array, ""] | bool = False,
        ahead: Real[Array, ""] | None = None,
        tau: Real[Array, ""] | float = 0.0,
    ) -> PyTree[Array]:
        """The state at t. At a breakpoint, where the solution has a kink, the earlier interval
        answers (so that one of no length never does), or with `right` the later one. With `ahead`
        that at t + ahead, as the step in which t lies has it. `tau` is the lag that was subtracted
        to get t, if any: t is as coarse as the times that it was computed from."""
        # Not t itself, which rounding may have put on the other side of the breakpoint it is.
        rounding = 8 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), tau)
        starts = self.ts[self._rows(jnp.arange(1, self.ts.shape[0])), 0]
        earlier = jnp.searchsorted(starts, t - rounding, side="left")
        later = jnp.searchsorted(starts, t + rounding, side="right")
        row = self._rows(jnp.where(right, later, earlier))
        step = self._step(row, t)
        info = jax.tree.map(lambda x: x[row, step], self.infos)
        t0, t1 = self.ts[row, step], self.ts[row, step + 1]
        time = t if ahead is None else t + ahead
        return self.interpolation(t0=t0, t1=t1, **info).evaluate(time)

    def _step(self, row: Int[Array, ""], t: Real[Array, ""]) -> Int[Array, ""]:
        """The step of an interval that t lies in; the first or the last one, where it lies outside.
        By bisection: `jnp.searchsorted` takes a copy of the row, with its room for many steps."""
        steps = self.ts.shape[1] - 1
        ts, t = lax.stop_gradient((self.ts, t))

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            ahead = (ts[row, middle] <= t) & jnp.isfinite(ts[row, middle + 1])
            return jnp.where(ahead, middle, low), jnp.where(ahead, high, middle)

        bounds = jnp.asarray(0), jnp.asarray(steps)
        return lax.fori_loop(0, (steps - 1).bit_length(), halve, bounds)[0]


class Solution(eqx.Module):
    """The answer of `lagrax.solve`.

    - `ts`, `ys`: what `saveat` asked for.
    - `knots`: the breakpoints `knots.ts` and the states there `knots.ys`, always.
    - `stats`: counts of intervals, steps, rejected steps and evaluations of the field (`None`
      where an implicit solver hides them).
    - `result`: a `lagrax.RESULTS`; `failed_at` is the time of the failure, else NaN. States after
      it are NaN, and so is the gradient of a loss that uses them.
    - `evaluate(t)`: the solution anywhere, where `saveat=SaveAt(dense=True)` asked for it.
    """

    t0: Real[Array, ""]
    t1: Real[Array, ""]
    ts: PyTree[Array] | None
    ys: PyTree[Array] | None
    knots: Knots
    stats: dict[str, Any]
    result: RESULTS
    failed_at: Float[Array, ""]
    dense: Records | None
    _missing: Real[Array, ""] = eqx.field(repr=False)

    def evaluate(self, t: Real[ArrayLike, "..."]) -> PyTree[Array]:
        """The state at time `t` (one time, or an array of them); NaN outside [t0, t1], and after a
        failure."""
        if self.dense is None:
            raise ValueError(
                "This solution has no dense output, so it cannot be evaluated between the saved "
                "times. Solve with saveat=diffrax.SaveAt(dense=True), or save at `ts`."
            )
        t = jnp.asarray(t, self.t0.dtype)
        if t.ndim > 0:
            return jax.vmap(self.evaluate)(t)
        inside = within(t, self.t0, self.t1) & (self.result != RESULTS.intervals_too_few)
        inside &= (t <= self.failed_at) | jnp.isnan(self.failed_at)
        # Not `clip`, whose derivative at an end is a half.
        t = jnp.where(t > self.t1, self.t1, jnp.where(t < self.t0, self.t0, t))
        return fill(inside, self.dense.evaluate(t), self._missing)


def within(ts: Real[Array, "..."], t0: Real[Array, ""], t1: Real[Array, ""]) -> Bool[Array, "..."]:
    """Whether times lie in the span; those that were meant for its ends may be off by rounding."""
    slack = 8 * jnp.finfo(t0.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
    return (ts >= t0 - slack) & (ts <= t1 + slack)
