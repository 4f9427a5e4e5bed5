"""The answer of a solve, its result codes, and the error of a failed one."""

import dataclasses
import warnings
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree, Real, Shaped

from .arguments import is_traced
from .failure import replace_invalid
from .tape import Tape

# equinox warns about codes with other messages than in diffrax. Those of diffrax name no remedy.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    class RESULTS(diffrax.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
        """diffrax's result codes, and those of delay equations.

        `RESULTS[sol.result]` is a message that holds the remedy; it is empty if the solve was
        successful. Under `jit` and `vmap` compare codes: `sol.result == RESULTS.successful`.
        """

        __module__ = "lagrax"  # as printed

        successful = ""
        max_steps_reached = (
            "The maximum number of solver steps was reached before t1; with `throw=False`, "
            "`sol.failed_at` says when. If the solution grows without bound there, it becomes "
            "infinite and more steps do not help. If it is stiff, use a solver such as "
            "diffrax.Kvaerno5. Otherwise raise `max_steps` or loosen the tolerances."
        )
        dt_min_reached = (
            "The step size fell below the controller's `dtmin`; with `throw=False`, "
            "`sol.failed_at` says when. The solution may become infinite there; if not, lower "
            "`dtmin`, loosen the tolerances, or use a stiff solver such as diffrax.Kvaerno5."
        )
        nonlinear_max_steps_reached = (
            "An implicit step found no solution of its equation; with `throw=False`, "
            "`sol.failed_at` says when. The solution of the differential equation may become "
            "infinite there; if not, take shorter steps, or give the solver's `root_finder` more "
            "iterations."
        )
        nonlinear_divergence = (
            "The root finder of an implicit step diverged; with `throw=False`, `sol.failed_at` "
            "says when. The solution of the differential equation may become infinite there; if "
            "not, take shorter steps, or give the solver another `root_finder`."
        )
        state_not_finite = (
            "The state became infinite or NaN; with `throw=False`, `sol.failed_at` says when. At "
            "t0 the field returns NaN for `y0`, `y0` itself is not finite, or its type has too few "
            "digits for the tolerances. Later the equation may blow up there, or steps are too "
            "long for it: use more `steps`, or leave `steps` out for adaptive ones."
        )
        step_underflow = (
            "The step size fell below what the floating point type can resolve; with "
            "`throw=False`, `sol.failed_at` says when. The solution may become infinite there; if "
            "not, loosen the tolerances, use float64, or a stiff solver such as diffrax.Kvaerno5."
        )
        intervals_too_few = (
            "`intervals` is too small for the span from t0 to t1, or a traced t1 is before t0, a "
            "traced tau is not positive, or traced instants do not increase. Raise `intervals`, "
            "bound tau from below, or sort the instants."
        )
        lag_out_of_bounds = (
            "A lag left its bounds, or became NaN; with `throw=False`, `sol.failed_at` says when. "
            "Give bounds that it stays within, Lag(function, low=..., high=...), or clip it in the "
            "function."
        )
        saved_outside = (
            "A traced time in `saveat.ts` lies outside the span from t0 to t1; the state saved "
            "there is NaN. Drop it, or widen the span."
        )


class SolveError(RuntimeError):
    """Raised by `solve(..., throw=True)` if the result is not successful.

    The message says what went wrong, when, and what to do.
    """

    __module__ = "lagrax"  # as printed in a traceback


class Knots(NamedTuple):
    """The ends of the intervals that the solve goes through, with the states there.

    - `ts`: the times: t0, t1, the instants of holds, inputs and jumps, times at which kinks arrive
      through a lag, `jump_ts`, and further times where an interval would be longer than the
      shortest lag.
    - `ys`: the states, like `y0` with one more axis in front.
    - `before`: the states before the jumps at these times.
    """

    ts: Float[Array, " knots"]
    ys: PyTree[Shaped[Array, "knots ..."]]
    before: PyTree[Shaped[Array, "knots ..."]]


class LagValues(NamedTuple):
    """The lags that are functions, at the time of a failure, and their bounds."""

    taus: Real[Array, " lags"]
    low: Real[Array, " lags"]
    high: Real[Array, " lags"]


class _Shown(str):
    """A text that is printed without quotation marks."""

    __repr__ = str.__str__


class Solution(eqx.Module):
    """The answer of `lagrax.solve`.

    - `ts`, `ys`: the times and states that `saveat` asked for.
    - `knots`: the ends of the intervals, `knots.ts`, and the states there, `knots.ys`.
    - `stats`: the numbers of intervals, steps, rejected steps and evaluations of the field. The
      last is `None` for implicit solvers, which do not report it.
    - `result`: a `lagrax.RESULTS`; `failed_at` is the time of the failure, or NaN. States after it
      are NaN, and so is the gradient of a loss that uses them.
    - `evaluate(t)`: the solution at any time, after a solve with `saveat=SaveAt(dense=True)`.
    """

    t0: Real[Array, ""]
    t1: Real[Array, ""]
    ts: PyTree[Array] | None
    ys: PyTree[Array] | None
    knots: Knots
    stats: dict[str, Any]
    result: RESULTS
    failed_at: Float[Array, ""]
    dense: Tape | None
    _jumps: bool = eqx.field(repr=False, static=True)
    _nan: Real[Array, ""] = eqx.field(repr=False)
    _last_dt: Real[Array, ""] | None = eqx.field(repr=False)
    _lags: "LagValues | None" = eqx.field(repr=False, default=None)

    def evaluate(self, t: Real[ArrayLike, "..."]) -> PyTree[Array]:
        """The state at time `t`, which is one time or an array of times.

        At the instant of a jump it is the state after it.

        It is NaN outside of [t0, t1] and after a failure.
        """
        if self.dense is None:
            raise ValueError(
                "This solution has no dense output, so it cannot be evaluated between the saved "
                "times. Solve with saveat=diffrax.SaveAt(dense=True), or save at `ts`."
            )
        t = jnp.asarray(t, self.t0.dtype)
        if t.ndim > 0:
            return jax.vmap(self.evaluate)(t)
        inside = is_within(t, self.t0, self.t1) & (self.result != RESULTS.intervals_too_few)
        inside &= (t <= self.failed_at) | jnp.isnan(self.failed_at)
        # `jnp.clip` would have the derivative a half at an end.
        t = jnp.where(t > self.t1, self.t1, jnp.where(t < self.t0, self.t0, t))
        y = self.dense.evaluate(t, right=self._jumps)
        if self._jumps:
            at_end = is_close(t, self.t1)
            y = jax.tree.map(lambda y, ys: jnp.where(at_end, ys[-1], y), y, self.knots.ys)
        return replace_invalid(inside, y, self._nan)

    def __repr__(self) -> str:
        # The message of a success is empty, and those of many solves are too long.
        good = self.result == RESULTS.successful
        if is_traced(good) or not jnp.any(good):
            return eqx.tree_pformat(self)
        count = f"{jnp.sum(good)} of {good.size} " if good.ndim else ""
        shown = _Shown(f"lagrax.RESULTS<{count}successful>")
        numbers = lambda sol: (sol.t0, sol.t1, sol.stats, sol.failed_at)
        sol = eqx.tree_at(numbers, self, jax.tree.map(_show_number, numbers(self)))
        return eqx.tree_pformat(eqx.tree_at(lambda sol: sol.result, sol, shown))

    def __call__(self, *times: Any) -> None:
        raise TypeError(
            "A Solution cannot be called. Use sol.evaluate(t), after a solve with "
            "saveat=diffrax.SaveAt(dense=True)."
        )


def _show_number(x: Any) -> Any:
    """A number as Python writes it, in as few digits as its type has. Arrays stay as they are."""
    if is_traced(x) or np.ndim(x):
        return x
    return _Shown(str(np.asarray(x)))


def is_close(ts: Real[Array, "..."], t: Real[Array, ""]) -> Bool[Array, "..."]:
    """Whether times equal `t` up to rounding."""
    return jnp.abs(ts - t) <= 8 * jnp.finfo(t.dtype).eps * jnp.abs(t)


def is_within(
    ts: Real[Array, "..."], t0: Real[Array, ""], t1: Real[Array, ""]
) -> Bool[Array, "..."]:
    """Whether times lie in the span, up to the rounding of its ends."""
    slack = 8 * jnp.finfo(t0.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
    return (ts >= t0 - slack) & (ts <= t1 + slack)


# --- the error of a failed solve ------------------------------------------------------------------


def raise_if_failed(solution: Solution) -> Solution:
    """Raises a `SolveError` if the solve failed, or its message at run time inside `jit`."""
    failed = solution.result != RESULTS.successful
    if is_traced(failed):
        # Inside jit the message is fixed before the time is known.
        outputs = (solution.ys, solution.knots, solution.dense)
        ys, knots, dense = solution.result.error_if(outputs, failed)
        return dataclasses.replace(solution, ys=ys, knots=knots, dense=dense)
    if failed:
        raise SolveError(_describe_failure(solution))
    return solution


def _describe_failure(solution: Solution) -> str:
    # Outside of jit, jax.grad knows the numbers too, but as tracers.
    failed_at = float(lax.stop_gradient(solution.failed_at))
    message = RESULTS[solution.result]
    if not jnp.isfinite(failed_at):
        return message
    hint = ""
    if solution.result == RESULTS.max_steps_reached:
        hint = _explain_max_steps(solution, failed_at)
    if solution.result == RESULTS.lag_out_of_bounds:
        hint = _explain_lag(solution)
    # An error has no `sol`, and gives the time itself.
    message = message.replace("; with `throw=False`, `sol.failed_at` says when", "")
    # Equal steps are checked at the end of each interval.
    when = "at or before" if solution._last_dt is None else "at"
    return f"{hint or message} It failed {when} t = {failed_at:g}."


def _explain_lag(solution: Solution) -> str:
    """By how much a lag left its bounds."""
    assert solution._lags is not None
    taus, low, high = (np.asarray(x) for x in lax.stop_gradient(solution._lags))
    outside = np.maximum(low - taus, taus - high)
    worst = int(np.argmax(np.where(np.isnan(outside), np.inf, outside)))
    tau, low, high = taus[worst], low[worst], high[worst]
    if np.isnan(tau):
        return "The function of a Lag returned NaN. Guard it against the states that it gets."
    name, bound = ("low", low) if tau < low else ("high", high)
    beside = "below" if tau < low else "above"
    return (
        f"The function of a Lag returned {tau:.6g}, which is {abs(tau - bound):.2g} {beside} "
        f"{name}={bound:.6g}. Give bounds that it stays within, or clip it in the function."
    )


def _explain_max_steps(solution: Solution, failed_at: float) -> str:
    """The most likely reason for which `max_steps` was reached, or "" if several are."""
    intervals, max_steps = solution.stats["num_intervals"], solution.stats["max_steps"]
    t0, t1, dt = lax.stop_gradient((solution.t0, solution.t1, solution._last_dt))
    reached = "The maximum number of solver steps was reached"
    apart = float(jnp.finfo(t0.dtype).eps * abs(failed_at))
    if apart * 10**4 > (t1 - t0) / intervals:
        return (
            f"{reached}. In {t0.dtype}, times there are {apart:.1g} apart, too far for "
            "intervals and steps as short as these: more of them do not help. Use float64 "
            "(jax.config.update('jax_enable_x64', True)), or let the span begin near 0."
        )
    # Steps that are short from the start are those of a fast solution, not of an infinite one.
    usual = (failed_at - float(t0)) / max_steps
    dt = None if dt is None or float(dt) * 10**2 > usual else float(dt)
    if dt is not None and dt * 10**3 * max_steps < float(t1) - failed_at:
        return (
            f"The solution probably becomes infinite: its steps have shrunk to {dt:.1g}, "
            f"and {reached[0].lower()}{reached[1:]}. More steps do not help then. If the solution "
            "stays finite, raise `max_steps`, or use a stiff solver such as diffrax.Kvaerno5."
        )
    if intervals > max_steps // 2:
        return (
            f"{reached}. The delays make {intervals:,} intervals, and each of them takes at least "
            f"one step: give max_steps={max(8 * intervals, 2 * max_steps)}."
        )
    if solution.stats["num_steps"] < max_steps:
        return (
            f"{reached} in one interval, which may take four times its share of max_steps="
            f"{max_steps} and no more. Raise `max_steps`, or loosen the tolerances."
        )
    return ""
