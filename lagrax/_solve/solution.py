"""What a solve returns, and what can have gone wrong."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree, Real, Shaped

from .failure import fill
from .history import Records


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
