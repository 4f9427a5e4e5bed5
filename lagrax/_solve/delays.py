"""What an argument from the past is, and where the solution has its breakpoints."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .arguments import (
    check_whole,
    format_value,
    is_number,
    is_real,
    is_traced,
    is_whole,
    real_array,
)

# NumPy where all is known beforehand, JAX where something is traced.
AnyArray = Any
RealScalar = float | int | Real[ArrayLike, ""]

# Each is an entry of the history. Compiling a solve with this many takes ten seconds, and with more
# grows as their square.
MOST_DELAYS = 1000
# Held states of which each is a variable of the compiled loop; it is compiled longer the more there
# are (a second for these), so of more they are rows of one array.
MOST_VARIABLES = 100
# Rows are moved by one at every breakpoint: so many moves take minutes.
MOST_MOVES = 10**11


@dataclasses.dataclass(frozen=True, eq=False)
class Learn:
    """A period to be found from data: `Hold(Learn(0.7))`, `Lag(Learn(1.4))`, for
    `lagrax.Identifier` and `lagrax.select_delays`.

    `start` need only be near: all periods from `low` to `high` (a third of it to three times it)
    are tried, then the best is refined. Delays that share one `Learn`, as those of
    `holds(Learn(0.7), 2)` do, share the period.
    """

    start: float
    low: float
    high: float

    def __init__(
        self, start: float | int, low: float | int | None = None, high: float | int | None = None
    ):
        for name, value in (("start", start), ("low", low), ("high", high)):
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(
                    f"Learn got {name}={format_value(value)}; expected a positive number."
                )
        for name, value in (
            ("start", start),
            ("low", start / 3 if low is None else low),
            ("high", start * 3 if high is None else high),
        ):
            object.__setattr__(self, name, float(value))
        if not self.low <= self.start <= self.high or self.low == self.high:
            raise ValueError(
                f"Learn got start={self.start:g}, low={self.low:g}, high={self.high:g}; expected "
                "low <= start <= high, and low < high."
            )


class Hold(eqx.Module):
    """The state held since an earlier instant, constant between two instants.

    `Hold(tau, lag=j)` is z(⌊(t − jτ)/τ⌋τ): the state at the last multiple of `tau` not after `t`,
    or `j` multiples before that. Instants are multiples of `tau` on the absolute clock, whatever
    `t0` is.

    `Hold(times=[...], lag=j)` holds at irregular instants: a controller's clock, a dosing plan.
    Before the first instant the state at `t0` is held.

    Choose it whenever the past enters through samples: the equation is then an ordinary one
    between instants and keeps the solver's full order.

    **Arguments:**

    - `tau`: the time between two instants; an array is differentiable, and `Learn(...)` is found
      from data.
    - `lag`: how many instants to look back behind the last one.
    - `times`: the instants, increasing, instead of `tau`.
    """

    tau: RealScalar | Learn | None
    times: Float[Array, " instants"] | np.ndarray | None
    lag: int = eqx.field(static=True)

    def __init__(
        self,
        tau: RealScalar | Learn | None = None,
        *,
        lag: int = 0,
        times: Sequence[RealScalar] | Real[ArrayLike, " instants"] | None = None,
    ):
        if (tau is None) == (times is None):
            raise ValueError(
                f"Hold takes either a period or instants, got tau={tau!r} and times={times!r}. "
                "Write Hold(1.0) or Hold(times=[0.0, 0.7, 1.9])."
            )
        if not is_whole(lag) or lag < 0:
            raise ValueError(
                f"Hold got lag={lag!r}; expected a whole number 0, 1, 2, ... of instants to look "
                "back. For the state at t - tau use Lag(tau)."
            )
        check_whole("Hold", "lag", lag, 0)
        self.tau = None if tau is None else _checked_period(tau, "Hold")
        self.times = None if times is None else _checked_times(times)
        self.lag = int(lag)


class Lag(eqx.Module):
    """The state a fixed time ago, z(t − τ): the delay of a delay differential equation.

    Choose it where the past moves on with time; where it enters through samples, `Hold` is faster
    and keeps the solver's order. Solved by the method of steps on the solver's own dense output.
    Needs the past before `t0`: give `y0` as a function of time, or as a value for a constant past.

    The dense output limits the order: diffrax's for Dopri8 is of order six, so with a lag that
    solver gains little over Tsit5.
    """

    tau: RealScalar | Learn

    def __init__(self, tau: RealScalar | Learn):
        self.tau = _checked_period(tau, "Lag")


Delay = Hold | Lag

TOO_MANY = (
    "Each is an entry of the history, and with more a solve is compiled for minutes. For one "
    "sample from far back give that alone, Hold(tau, lag=n)."
)


def holds(tau: RealScalar | Learn, n: int) -> list[Hold]:
    """The holds of lag 0, 1, ..., n − 1: the states at the last `n` instants, the newest first.

    Choose it where the field looks at several samples; it is the history of the paper's NPCDDE
    (its eq. 13).
    """
    if not is_whole(n) or n < 1:
        raise ValueError(f"holds got n={n!r}; expected a whole number of holds, at least 1.")
    check_whole("holds", "n", n, 1, MOST_DELAYS, TOO_MANY)
    return [Hold(tau, lag=j) for j in range(n)]


def periods_to_learn(delays: Sequence[Delay]) -> list[Learn]:
    """Each once, in the order of the delays."""
    return list(dict.fromkeys(d.tau for d in delays if isinstance(d.tau, Learn)))


def with_periods(delays: Sequence[Delay], periods: Sequence[RealScalar]) -> list[Delay]:
    """The delays with numbers in place of `periods_to_learn(delays)`."""
    number = dict(zip(periods_to_learn(delays), periods, strict=True))

    def one(delay: Delay) -> Delay:
        if not isinstance(delay.tau, Learn):
            return delay
        tau = number[delay.tau]
        return Lag(tau) if isinstance(delay, Lag) else Hold(tau, lag=delay.lag)

    return [one(delay) for delay in delays]


def _checked_period(tau: Any, name: str) -> RealScalar | Learn:
    if isinstance(tau, Learn):
        return tau
    if isinstance(tau, (bool, str, complex)) or np.ndim(tau) != 0:
        raise ValueError(
            f"{name} got tau={tau!r}; expected one positive number. "
            f"For several delays pass several: delays=[{name}(1.0), {name}(2.0)]."
        )
    if not is_traced(tau) and not (is_number(tau) and float(tau) > 0):
        raise ValueError(
            f"{name} got tau={tau!r}; expected a positive, finite number. "
            "An equation without delays takes delays=()."
        )
    # A whole number would be compiled into the program, a float is an argument of it.
    return float(tau) if is_whole(tau) else tau


def _checked_times(times: Any) -> Any:
    given = times
    times = (times if is_real(times) else None) if is_traced(times) else real_array(times)
    if times is None:
        raise ValueError(
            f"Hold got times={given!r:.60}; expected instants, one number after the other."
        )
    if times.ndim != 1 or times.shape[0] == 0:
        raise ValueError(
            f"Hold got times of shape {times.shape}; expected at least one instant, one after the "
            "other."
        )
    if not is_traced(times):
        if not np.all(np.isfinite(times)):
            raise ValueError(f"Hold got times={times}; expected finite instants.")
        if not np.all(np.diff(times) > 0):
            raise ValueError(
                f"Hold got times={times}; expected strictly increasing instants. Sort them and "
                "drop the repeated ones."
            )
    # An array of JAX's is left as it is: a layer trains that.
    is_parameter = isinstance(given, jax.Array) and jnp.issubdtype(given.dtype, jnp.floating)
    return given if is_parameter else times


def describe(delays: Sequence[Delay]) -> str:
    """`Hold(1.0), Lag(0.5)`, for messages."""

    def one(d: Delay) -> str:
        tau = "tau" if is_traced(d.tau) else d.tau
        if isinstance(tau, Learn):
            tau = f"Learn({tau.start:g})"
        elif isinstance(tau, (float, np.ndarray, jax.Array)):
            tau = repr(float(f"{float(tau):.6g}"))
        if isinstance(d, Lag):
            return f"Lag({tau})"
        lag = f", lag={d.lag}" if d.lag else ""
        return f"Hold({tau}{lag})" if d.times is None else f"Hold(times=...{lag})"

    return ", ".join(one(d) for d in delays) or "none"
