"""Checks of the equation, its span and the outputs, for `solve`.

Every message says what was got, what was expected, and what to do.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .arguments import format_value, is_number, is_real, is_traced, is_whole, real_array
from .delays import (
    MOST_DELAYS,
    TOO_MANY,
    Entry,
    Hold,
    Input,
    LagEntry,
    Learn,
    RealScalar,
    describe,
    list_periods,
)
from .field import takes_history
from .jumps import Jump
from .saving import list_subs

P = ParamSpec("P")
R = TypeVar("R")

# With more intervals the list of breakpoints alone is too long for most memories.
MOST_INTERVALS = 10**8


# --- the call -------------------------------------------------------------------------------------


# For names that are not options of `solve`, an alternative that follows "solve() has no option".
ALTERNATIVES = {
    "t_eval": "Give saveat=diffrax.SaveAt(ts=times).",
    "ts": "Give t0, t1 and saveat=diffrax.SaveAt(ts=times).",
    "method": "Give solver=, such as diffrax.Tsit5().",
    "rtol": "Give stepsize_controller=diffrax.PIDController(rtol=..., atol=...).",
    "atol": "Give stepsize_controller=diffrax.PIDController(rtol=..., atol=...).",
    "tau": "Give delays=[lagrax.Hold(tau)].",
    "terms": "The first argument is the field, f(t, y, args, *, history), as in term.vector_field.",
    "adjoint": "Give gradient=lagrax.Checkpointed(), Direct() or Adjoint().",
    "event": (
        "lagrax does not stop at events. Solve with saveat=diffrax.SaveAt(dense=True) and find the "
        "root of your condition on sol.evaluate, for example with optimistix.root_find."
    ),
    "discrete_terminating_event": (
        "lagrax does not stop at events. Solve to t1 and find the condition in the saved states."
    ),
    "solver_state": "A solve goes on from a state and its past: y0=earlier.evaluate.",
    "controller_state": "A solve goes on from a state and its past: y0=earlier.evaluate.",
    "made_jump": (
        "Give times at which the field jumps as diffrax.ClipStepSizeController(..., jump_ts=...)."
    ),
}


def explain_call(function: Callable[P, R]) -> Callable[P, R]:
    """Improves the error of a call with arguments in the wrong order or with unknown options."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:
            try:
                signature.bind(*args, **options)
            except TypeError:
                explanation = _explain_arguments(signature, args, options)
                if explanation is not None:
                    raise TypeError(explanation) from None
            raise

    return call


def _explain_arguments(signature: inspect.Signature, args: tuple, options: dict) -> str | None:
    if any(isinstance(a, diffrax.AbstractSolver) for a in args):
        return (
            "solve() takes field, t0, t1, y0, args in this order, and all other options by name. "
            "Instead of diffrax.diffeqsolve(term, solver, t0, t1, dt0, y0, args) write "
            "solve(term.vector_field, t0, t1, y0, args, solver=solver, dt0=dt0)."
        )
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(positional):
        return (
            f"solve() takes field, t0, t1, y0, args in this order, and got {len(args)} arguments "
            "without a name. Give all other options by name, such as dt0=0.1."
        )
    unknown = [name for name in options if name not in signature.parameters]
    if not unknown:
        required = [p.name for p in positional[len(args) :] if p.default is p.empty]
        missing = [name for name in required if name not in options]
        if not missing:
            return None
        return (
            f"solve() is missing {' and '.join(missing)}. It takes field, t0, t1, y0, args in this "
            "order."
        )
    close = difflib.get_close_matches(unknown[0], signature.parameters, n=1)
    hint = ALTERNATIVES.get(unknown[0], f"Did you mean {close[0]}=?" if close else "")
    return (
        f"solve() has no option {unknown[0]!r}. {hint}".rstrip()
        + f" Its options are {', '.join(signature.parameters)}."
    )


# --- the equation ---------------------------------------------------------------------------------


def check_delays(delays: Any) -> None:
    """Checks that `delays` is a list of entries of the history, and none is to be learned."""
    if isinstance(delays, (Hold, LagEntry, Input)):
        raise TypeError(f"delays={describe([delays])} is one delay; expected a list: delays=[...].")
    if not isinstance(delays, Sequence) or isinstance(delays, str):
        raise TypeError(
            f"delays={delays!r}; expected a list of Hold, Lag, Input and the like, or () for none."
        )
    if len(delays) > MOST_DELAYS:
        raise ValueError(
            f"Got {len(delays):,} delays; expected at most {MOST_DELAYS:,}. {TOO_MANY}"
        )
    for delay in delays:
        if not isinstance(delay, (Hold, LagEntry, Input)):
            raise TypeError(
                f"delays holds {delay!r:.60}; expected lagrax.Hold, lagrax.Lag, another lag or "
                f"lagrax.Input{_suggest_delay(delay)}."
            )
        if isinstance(getattr(delay, "tau", None), Learn):
            raise TypeError(
                f"{describe([delay])} has a period to be learned; expected a number. "
                "lagrax.Identifier(delays=[...]).fit(ts, ys) finds it."
            )


def check_fields(field: Any, delays: Sequence[Entry]) -> list[Callable]:
    fields = list(field) if isinstance(field, (list, tuple)) else [field]
    for f in fields:
        if not callable(f):
            hint = " Pass term.vector_field." if isinstance(f, diffrax.ODETerm) else ""
            if isinstance(f, diffrax.MultiTerm):
                hint = " lagrax solves dy/dt = f, without noise or further terms."
            raise TypeError(
                f"field={format_value(f)} cannot be called; expected f(t, y, args, *, history)."
                f"{hint}"
            )
        if delays and not takes_history(f):
            raise TypeError(
                f"The field {getattr(f, '__name__', f)!r} takes no `history`; expected "
                "f(t, y, args, *, history), where history has one entry for each delay. Add the "
                "keyword, or leave `delays` out."
            )
    return fields


def check_number_of_fields(fields: list, num: int, delays: Sequence[Entry], t0, t1) -> None:
    if len(fields) != num:
        raise ValueError(
            f"Got {len(fields)} fields for {num} intervals (delays {describe(delays)} from t = "
            f"{t0} to {t1}); expected one field for each interval. Give {num} fields, or one field "
            "for all."
        )


def _suggest_delay(given: Any) -> str:
    if isinstance(given, Jump):
        return ". Jumps are an argument of their own: jumps=[...]"
    if is_number(given):
        return f", for example Hold({given!r})"
    if isinstance(given, type) and issubclass(given, (Hold, LagEntry)):
        return f", for example {given.__name__}(1.0)"
    return ""


def check_state(y0: Any, t0: RealScalar) -> tuple[PyTree, Callable | None, Any]:
    """Returns the state at t0, the past or None if it is constant, and the dtype of time."""
    past = y0 if callable(y0) else None
    try:
        y = y0(t0) if callable(y0) else y0
    except TypeError as error:
        error.add_note("lagrax called y0 as a function of time, y0(t0), which gives the past.")
        raise
    if not jax.tree.leaves(y):
        raise ValueError(f"y0={y!r} holds no numbers; expected an array or a pytree of arrays.")
    if not all(
        isinstance(x, (int, float, complex, np.generic, np.ndarray, jax.Array))
        for x in jax.tree.leaves(y)
    ):
        raise TypeError(f"y0={y!r}; expected an array, a pytree of arrays, or a function of time.")
    for leaf in jax.tree.leaves(y):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufcV":
            raise TypeError(
                f"The state y0 has an array of {leaf.dtype}; expected floating point or complex "
                "numbers. Convert with .astype(float)."
            )
    y = jax.tree.map(jnp.asarray, y)
    for leaf in jax.tree.leaves(y):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"The state y0 has dtype {leaf.dtype}; expected floating point or complex numbers. "
                "Write y0=1.0 instead of y0=1, or convert with .astype(float)."
            )
    real = jnp.result_type(*[jnp.finfo(leaf.dtype).dtype for leaf in jax.tree.leaves(y)])
    return jax.tree.map(lambda x: x.astype(jnp.result_type(x.dtype, real)), y), past, real


def check_span(t0: Any, t1: Any) -> None:
    for name, t in (("t0", t0), ("t1", t1)):
        if not is_traced(t) and not is_number(t):
            raise ValueError(
                f"{name}={t!r}; expected one finite time. The order is field, t0, t1, y0, args."
            )
    # Compared by NumPy, since within `jit` JAX would trace even known numbers.
    if not is_traced(t0, t1) and not np.asarray(t1) >= np.asarray(t0):
        raise ValueError(
            f"Got t0={t0} and t1={t1}; expected t1 >= t0. Delay equations only go forward: swap "
            "the two, or reverse time in the field."
        )


def check_number_of_periods(delays: Sequence[Entry], t0: Any, t1: Any) -> None:
    for delay in delays:
        for tau in list_periods([delay]):
            if is_traced(tau, t0, t1):
                continue
            many = (float(t1) - float(t0)) / float(np.min(np.asarray(tau, float)))
            if many > MOST_INTERVALS:
                raise ValueError(
                    f"{describe([delay])} makes {many:.3g} intervals from t0={t0} to t1={t1}; "
                    f"expected at most {MOST_INTERVALS:,}. Give both in the same unit of time."
                )


def check_resolution(
    delays: Sequence[Entry], jumps: Sequence[Jump], t0: Any, t1: Any, dtype: Any
) -> None:
    """Checks that times so far from zero resolve the periods and the instants."""
    if is_traced(t0, t1):
        return
    for jump in jumps:
        if not is_traced(jump.times):
            _check_instants_apart("Jump", np.asarray(jump.times, float), t0, t1, dtype)
    eps = float(jnp.finfo(dtype).eps)
    apart = eps * max(abs(float(t0)), abs(float(t1)))
    for delay in delays:
        if isinstance(delay, Input):
            if not is_traced(delay.ts, delay.delay):
                times = np.asarray(delay.ts, float) + np.asarray(delay.delay, float)
                _check_instants_apart("Input", times, t0, t1, dtype)
            continue
        if isinstance(delay, Hold) and delay.times is not None and not is_traced(delay.times):
            _check_instants_apart("Hold", np.asarray(delay.times, float), t0, t1, dtype)
        periods = list_periods([delay])
        if any(isinstance(tau, Learn) or is_traced(tau) for tau in periods):
            continue
        if any(np.min(np.asarray(tau, float)) < 16 * apart for tau in periods):
            raise ValueError(
                f"{describe([delay])} is too short for {jnp.dtype(dtype).name} between t = {t0} "
                f"and {t1}, where times are up to {apart:.1g} apart. Use float64 "
                "(jax.config.update('jax_enable_x64', True)), or let the span begin near 0."
            )


def _check_instants_apart(who: str, times: np.ndarray, t0: Any, t1: Any, dtype: Any) -> None:
    """Checks that the type of time tells apart all instants within the span."""
    eps = float(jnp.finfo(dtype).eps)
    times = times[(times >= float(t0)) & (times <= float(t1))]
    close = np.flatnonzero(np.diff(times) <= 8 * eps * np.abs(times[1:]))
    if close.size:
        one, next_one = times[close[0]], times[close[0] + 1]
        raise ValueError(
            f"{who} got the instants {one!s} and {next_one!s}, which are too close for "
            f"{jnp.dtype(dtype).name}: times there are {eps * abs(next_one):.1g} apart. "
            "Drop one of them, use float64 (jax.config.update('jax_enable_x64', True)), or "
            "let the span begin near 0."
        )


def check_intervals(intervals: Any, delays: Sequence[Entry], t0: Any, t1: Any) -> None:
    if intervals is not None and not is_whole(intervals):
        raise TypeError(f"intervals={intervals!r}; expected a whole number.")
    if intervals is not None and intervals < 1:
        raise ValueError(f"intervals={intervals}; expected at least 1.")
    if intervals is not None and intervals > MOST_INTERVALS:
        raise ValueError(
            f"intervals={format_value(intervals)}; expected at most {MOST_INTERVALS:,}. Give times "
            "and delays in the same unit."
        )
    periods = list_periods(delays)
    if intervals is None and periods and is_traced(t0, t1, *periods):
        cause = "A delay" if is_traced(*periods) else "t0 or t1"
        raise ValueError(
            f"{cause} is traced (inside jit, grad or vmap), so the number of intervals is not "
            "known when the program is compiled. Give solve(..., intervals=N), where N is at least "
            "the number of periods of the shortest delay from t0 to t1, plus one if a Hold has no "
            "instant at t0."
        )


def check_enough_intervals(intervals: int | None, num: int, delays: Sequence[Entry]) -> None:
    # Traced lags make breakpoints for kinks in addition to these.
    known = not is_traced(*list_periods(delays))
    if intervals is not None and num > intervals and len(delays) == 1 and known:
        raise ValueError(
            f"intervals={intervals}, but {describe(delays)} needs {num} to reach t1. Raise it, or "
            "leave it out: it is needed only where a delay, t0 or t1 is traced."
        )


# --- outputs --------------------------------------------------------------------------------------


def check_progress_meter(meter: Any) -> None:
    if not isinstance(meter, diffrax.AbstractProgressMeter):
        raise TypeError(
            f"progress_meter={meter!r}; expected one of diffrax's, such as "
            "diffrax.TextProgressMeter()."
        )


def check_saveat(saveat: Any, t0: Any, t1: Any, dtype: Any) -> None:
    if not isinstance(saveat, diffrax.SaveAt):
        raise TypeError(
            f"saveat={saveat!r}; expected diffrax.SaveAt(...), such as diffrax.SaveAt(ts=times)."
        )
    for name in ("solver_state", "controller_state", "made_jump"):
        if getattr(saveat, name):
            raise ValueError(
                f"saveat has {name}=True, and lagrax does not save that: a solve goes on from a "
                "state and its past, `y0=earlier.evaluate`, not from within a step."
            )
    for sub in list_subs(saveat):
        if sub.steps and sub.ts is not None:
            raise ValueError(
                "saveat has both `ts` and `steps`. Save them apart: "
                "SaveAt(subs=[SubSaveAt(ts=...), SubSaveAt(steps=True)])."
            )
        if sub.ts is None or (is_traced(sub.ts) and is_real(sub.ts)):
            continue
        ts = None if is_traced(sub.ts) else real_array(sub.ts)
        if ts is None:
            raise ValueError(f"saveat.ts={sub.ts!r:.60}; expected a row of real times.")
        _check_times(ts, t0, t1, dtype)


def _check_times(ts: np.ndarray, t0: Any, t1: Any, dtype: Any) -> None:
    if ts.ndim != 1 or np.isnan(ts).any():
        raise ValueError(
            f"saveat.ts has shape {ts.shape} and {np.isnan(ts).sum()} NaN; expected a row of times."
        )
    if np.any(np.diff(ts) < 0):
        first = int(np.argmax(np.diff(ts) < 0))
        raise ValueError(
            f"saveat.ts is not sorted: {ts[first]} comes before {ts[first + 1]}. Sort it."
        )
    if is_traced(t0, t1):
        return
    slack = 8 * float(jnp.finfo(dtype).eps) * max(abs(float(t0)), abs(float(t1)))
    outside = ts[(ts < float(t0) - slack) | (ts > float(t1) + slack)]
    if outside.size:
        raise ValueError(
            f"saveat.ts reaches outside the span [{t0}, {t1}]: {outside.size} of its {ts.size} "
            f"times, such as {outside[0]}. Drop them, or widen the span."
        )
