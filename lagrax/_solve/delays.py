"""The entries of `history`: `Hold`, `Lag`, `Input`, and `Learn` for periods found from data."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree, Real, Shaped

from .arguments import (
    check_whole,
    format_value,
    is_number,
    is_real,
    is_traced,
    is_whole,
    real_array,
)

# A NumPy array if every time is known before tracing, otherwise a JAX array.
AnyArray = Any
RealScalar = float | int | Real[ArrayLike, ""]
ReadKind = Literal["states", "slopes", "components"]

# Every delay is an entry of the history. A solve with this many compiles in ten seconds, and the
# time grows as the square of their number.
MOST_DELAYS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Learn:
    """A period that `lagrax.Identifier` and `lagrax.select_delays` find from data.

    Write `Hold(Learn(0.7))` or `Lag(Learn(1.4))`. A rough guess is enough for `start`.
    Periods from `low` to `high` are tried, by default from a third of `start` to three times
    `start`, and the best one is refined. Delays that share one `Learn`, such as those of
    `holds(Learn(0.7), 2)`, share the period.
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
    """The state at an earlier sampling instant, held constant until the next instant.

    `Hold(tau, lag=j)` is z(⌊(t − jτ)/τ⌋τ), the state at the last multiple of `tau` not after `t`,
    or `j` multiples earlier. Instants are multiples of `tau` on the absolute clock and do not
    depend on `t0`.

    `Hold(times=[...], lag=j)` samples at irregular instants, such as a controller's clock or a
    dosing plan. Before the first instant it holds the state at `t0`.

    Choose it whenever the past enters through samples. The equation is then an ordinary one
    between instants and keeps the solver's full order.

    **Arguments:**

    - `tau`: the time between two instants. An array is differentiable. `Learn(...)` is found from
      data.
    - `lag`: the number of instants to look back from the last one.
    - `times`: increasing instants, instead of `tau`.
    - `before_jumps`: at the instant of a `Jump`, samples the state before it instead of after it.
    - `of`: a function of the state that the field gets in place of the state, such as
      `lambda y: y["level"]`.
    """

    tau: RealScalar | Learn | None
    times: Float[Array, " instants"] | np.ndarray | None
    lag: int = eqx.field(static=True)
    before_jumps: bool = eqx.field(static=True, repr=False)
    of: Callable | None = eqx.field(repr=False)

    def __init__(
        self,
        tau: RealScalar | Learn | None = None,
        *,
        lag: int = 0,
        times: Sequence[RealScalar] | Real[ArrayLike, " instants"] | None = None,
        before_jumps: bool = False,
        of: Callable | None = None,
    ):
        if (tau is None) == (times is None):
            raise ValueError(
                f"Hold takes either a period or instants, got tau={tau!r} and times={times!r}. "
                "Write Hold(1.0) or Hold(times=[0.0, 0.7, 1.9])."
            )
        if not is_whole(lag) or lag < 0:
            raise ValueError(
                f"Hold got lag={lag!r}; expected a whole number 0, 1, 2, ... of instants to "
                "look back. For the state at t - tau use Lag(tau)."
            )
        check_whole("Hold", "lag", lag, 0)
        self.tau = None if tau is None else check_period(tau, "Hold")
        self.times = None if times is None else check_instants(times, "Hold", "times")
        self.lag = int(lag)
        self.before_jumps = bool(before_jumps)
        self.of = check_part(of, "Hold")


class LagEntry(eqx.Module):
    """An entry of the history that is made of the solution at times t - taus.

    A new kind of lag is a subclass. It says at which times it reads, what it reads there, and how
    the entry is made of that; `LagReader` and the grid do the rest.

    - `taus`: the lags, an array of any shape. The values read have these axes in front.
    - `reads`: whether these values are states, slopes of the state, or one component of the state
      each. Component `components[i]` along the first axis of the state belongs to `taus[i]`.
    - `smooths`: whether a kink becomes one order smoother on its way through the lag. Otherwise
      kinks are followed without end, and the entry jumps at them.
    - `needs_state`: whether `complete` uses the state.
    - `of`: a function of the state, whose result is read in place of the state.
    """

    reads: ClassVar[ReadKind] = "states"
    smooths: ClassVar[bool] = True
    needs_state: ClassVar[bool] = False

    of: eqx.AbstractVar[Callable | None]

    @property
    @abc.abstractmethod
    def taus(self) -> Any:
        """The lags, an array of any shape."""

    @property
    def components(self) -> Any:
        """The components that belong to the lags, if the entry reads components."""
        raise NotImplementedError

    @property
    def kinks(self) -> Any:
        """The lags after which kinks of the solution come back."""
        return self.taus

    def bind(self, t: Array, y: PyTree[Array], args: PyTree) -> "LagEntry":
        """The entry for one solve, in which arrays of its functions are leaves. It checks them."""
        del t, y, args
        return self

    def assemble(self, values: PyTree[Array]) -> PyTree[Array]:
        """The entry, given the values read. It is called for all stages of a step at once."""
        return values

    def complete(self, entry: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        """The entry that the field gets, given the state at time t. It is called in each stage."""
        del y
        return entry


class Lag(LagEntry):
    """The state some time ago, z(t − τ), as in a delay differential equation.

    Choose it if the past moves on continuously with time. If the past enters through samples,
    `Hold` is faster and keeps the solver's order.

    Equations with lags are solved by the method of steps on the solver's own dense output. They
    need a past before `t0`. Give `y0` as a function of time, or as a value for a constant past.

    The order is limited by that of the dense output, which is about 4 with Tsit5 and 6 with Dopri8.

    `Lag(function, low=..., high=...)` is z(t − function(t, y, args)), a lag that depends on time or
    on the state, such as the time of a transport at a varying speed or the age at which a crowded
    population matures. Choose a fixed lag if it does not vary, since it is read for all stages of a
    step at once. With a function, adaptive steps end where t − τ passes a kink of the solution,
    such as t0 or the instant of a `Jump`, so that the order is kept. Equal steps cross these kinks.
    Choose adaptive ones, unless the past continues smoothly into the solution.

    **Arguments:**

    - `tau`: the lag. An array is differentiable. `Learn(...)` is found from data. For a row of lags
      the field gets the states stacked in front, which compiles faster than an entry for each.
      Everything that a function uses is differentiable, such as the parameters of an `eqx.Module`.
    - `low`: a bound from below for the values of a function. No interval is longer, so give the
      largest that you are sure of. With `low=0` the lag may vanish. A step that reads itself is
      iterated, which costs a few times as much.
    - `high`: a bound from above, by default none. The past is needed so far back. A lag that leaves
      its bounds ends the solve with `RESULTS.lag_out_of_bounds`.
    - `of`: a function of the state whose past is wanted, such as `lambda y: y["level"]`. If no
      delay wants the whole state, no lag is a function, and the state is saved at `t1` alone, only
      that is kept of each step.
    """

    tau: RealScalar | Real[ArrayLike, " lags"] | Learn | Callable
    low: float | None = eqx.field(static=True)
    high: float | None = eqx.field(static=True)
    of: Callable | None = eqx.field(repr=False)

    def __init__(
        self,
        tau: RealScalar | Sequence[RealScalar] | Real[ArrayLike, " lags"] | Learn | Callable,
        *,
        low: float | int | None = None,
        high: float | int | None = None,
        of: Callable | None = None,
    ):
        self.tau = tau if callable(tau) else check_period(tau, "Lag", several=True)
        self.low, self.high = _checked_bounds(low, high, callable(tau))
        self.of = check_part(of, "Lag")

    @property
    def taus(self) -> Any:
        """The lag, or a row of lags, or the lower bound of a function if it is not 0."""
        if not callable(self.tau):
            return self.tau
        return np.full(1 if self.low else 0, self.low)

    @property
    def kinks(self) -> Any:
        """None for a function, since kinks pass it at times that are not known beforehand."""
        return np.zeros(0) if callable(self.tau) else self.tau


class Input(eqx.Module):
    """A known signal u(t − d), such as a command, a measurement or the rate of an infusion.

    The field gets the last sample, which is held until the next one, or the straight line between
    the two if `linear`. Before the first sample it gets the first one. The instants are knots, so
    steps end there and solvers keep their order, however often the signal switches.

    Choose it instead of looking the samples up in the field, which makes steps cross the switches.
    The cost of a sample does not grow with their number.

    **Arguments:**

    - `ts`: increasing times of the samples. An array is differentiable. In a batch, the rows may be
      filled up with `jnp.inf`.
    - `us`: the samples, an array or a pytree of arrays with one row for each time. Rows of any
      shape and type reach the field as they are.
    - `delay`: the time that the signal takes to arrive, known as dead time. An array is
      differentiable.
    - `linear`: interpolates linearly between the samples. After the last one, it is held.
    """

    ts: Float[Array, " samples"] | np.ndarray
    us: PyTree[Shaped[ArrayLike, "samples ..."]]
    delay: RealScalar
    linear: bool = eqx.field(static=True)

    def __init__(
        self,
        ts: Sequence[RealScalar] | Real[ArrayLike, " samples"],
        us: PyTree,
        delay: RealScalar = 0.0,
        *,
        linear: bool = False,
    ):
        self.ts = check_instants(ts, "Input", "ts", filled_up=True)
        self.us = as_arrays(us)
        self.linear = bool(linear)
        _check_samples(self.us, len(self.ts), linear)
        if not (is_number(delay) or (is_traced(delay) and is_real(delay) and np.ndim(delay) == 0)):
            raise ValueError(f"Input got delay={format_value(delay)}; expected one finite number.")
        self.delay = float(delay) if is_whole(delay) else delay


Delay = Hold | Lag
# The entries of `history`: the past of the state, and signals from outside.
Entry = Hold | LagEntry | Input

TOO_MANY = (
    "Every delay is an entry of the history, and a solve with more of them compiles for minutes. "
    "For a single sample from far back give Hold(tau, lag=n) alone."
)


def holds(tau: RealScalar | Learn, n: int) -> list[Hold]:
    """Makes holds of lag 0, 1, ..., n − 1, the states at the last `n` instants, newest first.

    Choose it if the field reads several samples. It is the history of the paper's NPCDDE (eq. 13).
    """
    if not is_whole(n) or n < 1:
        raise ValueError(f"holds got n={n!r}; expected a whole number of holds, at least 1.")
    check_whole("holds", "n", n, 1, MOST_DELAYS, TOO_MANY)
    return [Hold(tau, lag=j) for j in range(n)]


def periods_to_learn(delays: Sequence[Delay]) -> list[Learn]:
    """Lists the periods to be learned, each once, in the order of the delays."""
    return list(dict.fromkeys(d.tau for d in delays if isinstance(d.tau, Learn)))


def with_periods(delays: Sequence[Delay], periods: Sequence[RealScalar]) -> list[Delay]:
    """Replaces the periods in `periods_to_learn(delays)` by numbers."""
    number = dict(zip(periods_to_learn(delays), periods, strict=True))

    def one(delay: Delay) -> Delay:
        if not isinstance(delay.tau, Learn):
            return delay
        tau = number[delay.tau]
        if isinstance(delay, Lag):
            return Lag(tau)
        return Hold(tau, lag=delay.lag, before_jumps=delay.before_jumps)

    return [one(delay) for delay in delays]


def has_one_period(delay: Any) -> bool:
    """Whether a delay of the whole state is a `Hold`, or a `Lag` of one number, or of a `Learn`."""
    if not isinstance(delay, (Hold, Lag)) or delay.of is not None:
        return False
    return isinstance(delay, Hold) or (_has_one_time(delay) and not is_function(delay))


def is_function(delay: Any) -> TypeGuard[Lag]:
    """Whether a delay is a lag that depends on time or on the state."""
    return isinstance(delay, Lag) and callable(delay.tau)


def _has_one_time(delay: Any) -> bool:
    return isinstance(delay, Lag) and np.ndim(delay.tau) == 0  # pyright: ignore[reportArgumentType]


def find_moving(delays: Sequence[Any]) -> tuple[int, ...]:
    """The places of lags that are read in each stage, since their times are not known before it.

    Besides a lag that is a function these are all other lags of one time, so that steps end where
    they pass a kink that the function has made.
    """
    if not any(is_function(d) for d in delays):
        return ()
    return tuple(i for i, d in enumerate(delays) if _has_one_time(d))


def make_example(entry: LagEntry, y: PyTree[Array]) -> PyTree[Array]:
    """An entry with the shapes and types that the field gets."""
    y = y if entry.of is None else entry.of(y)
    read = jax.tree.map(lambda x: x[0], y) if entry.reads == "components" else y
    shape = np.shape(entry.taus)
    values = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), read)
    return entry.complete(entry.assemble(values), y)


def list_fixed_lags(delays: Sequence[Any]) -> list[LagEntry]:
    """The lags that are not read in each stage (see `find_moving`)."""
    moving = find_moving(delays)
    return [d for i, d in enumerate(delays) if isinstance(d, LagEntry) and i not in moving]


def list_periods(delays: Sequence[Entry]) -> list[Any]:
    """Lists the periods and the lags of delays, as numbers or arrays of any shape."""
    periods = []
    for d in delays:
        if isinstance(d, LagEntry):
            periods += [d.taus] if np.size(d.taus) else []
        elif isinstance(d, Hold) and d.tau is not None:
            periods.append(d.tau)
    return periods


def check_part(of: Any, who: str) -> Callable | None:
    """Checks a function of the state, given as `of`."""
    if of is not None and not callable(of):
        raise TypeError(
            f"{who} got of={format_value(of)}; expected a function of the state, such as "
            "lambda y: y['level']."
        )
    return of


def _checked_bounds(low: Any, high: Any, needed: bool) -> tuple[float | None, float | None]:
    """Checks the bounds of a lag, which are needed if it is a function."""
    if not needed:
        if low is not None or high is not None:
            raise ValueError(
                f"Lag got low={low!r} and high={high!r} for a fixed lag; expected them only with a "
                "function, such as Lag(lambda t, y, args: 1 + y**2, low=1.0). Leave them out."
            )
        return None, None
    if low is None:
        raise ValueError(
            "Lag got a function without low; expected a bound from below for its values, such as "
            "Lag(function, low=0.5), or low=0 if the lag may vanish."
        )
    high = math.inf if high is None else high
    for name, value in (("low", low), ("high", high)):
        is_open = name == "high" and not is_traced(value) and value == math.inf
        if is_traced(value) or not (is_open or (is_number(value) and value >= 0)):
            raise ValueError(
                f"Lag got {name}={format_value(value)}; expected a number of at least 0 that is "
                "known when the program is compiled."
            )
    if high == 0:
        raise ValueError("Lag got high=0; expected a positive number. A lag of 0 is the state.")
    if not low <= high:
        raise ValueError(f"Lag got low={low!r} and high={high!r}; expected low <= high.")
    return float(low), float(high)


def check_period(tau: Any, who: str, name: str = "tau", several: bool = False) -> Any:
    """Checks a positive number, or a row of them if there may be `several`.

    It may be traced, or a `Learn`.
    """
    if isinstance(tau, Learn):
        return tau
    if several and not isinstance(tau, str) and np.ndim(tau) == 1:
        return _check_row_of_periods(tau, who, name)
    if isinstance(tau, (bool, str, complex)) or np.ndim(tau) != 0:
        one = "one positive number, or a row of them" if several else "one positive number"
        raise ValueError(
            f"{who} got {name}={tau!r:.200}; expected {one}. "
            f"For several delays pass several: delays=[{who}(...), {who}(...)]."
        )
    if not is_traced(tau) and not (is_number(tau) and float(tau) > 0):
        hint = " An equation without delays takes delays=()." if is_number(tau) and tau == 0 else ""
        raise ValueError(f"{who} got {name}={tau!r}; expected a positive, finite number.{hint}")
    # JAX compiles an integer into the program, so that another one compiles it again.
    return float(tau) if is_whole(tau) else tau


def _check_row_of_periods(taus: Any, who: str, name: str) -> Any:
    if any(map(is_traced, taus if isinstance(taus, (list, tuple)) else [taus])):
        return jnp.stack(taus) if isinstance(taus, (list, tuple)) else taus
    row = real_array(taus)
    if row is None or not row.size:
        raise ValueError(f"{who} got {name}={taus!r:.60}; expected at least one positive number.")
    check_positive(row, who, name)
    return taus if isinstance(taus, jax.Array) else row


def check_positive(taus: Any, who: str, name: str, hint: str = "") -> None:
    """Checks that all numbers of a known array are positive and finite."""
    if is_traced(taus):
        return
    wrong = np.argwhere(~((np.asarray(taus) > 0) & (np.asarray(taus) < np.inf)))
    if len(wrong):
        place = ", ".join(map(str, wrong[0]))
        raise ValueError(
            f"{who} got {name}[{place}]={np.asarray(taus)[tuple(wrong[0])]}; expected positive, "
            f"finite numbers, and {len(wrong)} of {np.size(taus)} are not. {hint}".rstrip()
        )


def check_instants(given: Any, who: str, name: str, filled_up: bool = False) -> Any:
    """Checks a row of increasing instants, the argument `name` of `who`.

    If it may be `filled_up`, infinite ones may follow. A JAX array stays the same object, since a
    layer may train it.
    """
    times = (given if is_real(given) else None) if is_traced(given) else real_array(given)
    if times is None:
        raise ValueError(f"{who} got {name}={given!r:.60}; expected a row of instants.")
    if times.ndim != 1 or times.shape[0] == 0:
        raise ValueError(
            f"{who} got {name} of shape {times.shape}; expected a row of at least one instant."
        )
    if not is_traced(times):
        known = times[times < np.inf] if filled_up else times
        if np.any(np.isnan(times)) or not np.all(np.isfinite(known)):
            raise ValueError(f"{who} got {name}={times}; expected finite instants.")
        if not np.all(np.diff(known) > 0) or not np.all(np.isfinite(times[: len(known)])):
            raise ValueError(
                f"{who} got {name}={times}; expected strictly increasing instants. Sort them and "
                "drop repeated ones."
            )
    is_parameter = isinstance(given, jax.Array) and jnp.issubdtype(given.dtype, jnp.floating)
    return given if is_parameter else times


def _is_row_of_numbers(tree: Any) -> bool:
    """Whether a list holds numbers alone, so that it means an array and not a pytree."""
    return isinstance(tree, (list, tuple)) and all(
        isinstance(x, (int, float)) for x in jax.tree.leaves(tree)
    )


def as_arrays(tree: PyTree) -> PyTree:
    """Makes leaves arrays. A list of numbers alone is an array, too."""
    as_array = lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return jax.tree.map(as_array, tree, is_leaf=_is_row_of_numbers)


def _check_samples(us: PyTree, count: int, linear: bool) -> None:
    leaves = jax.tree.leaves(us)
    if not leaves:
        raise ValueError(f"Input got us={us!r}, which holds no samples; expected an array.")
    for u in leaves:
        if not is_traced(u) and u.dtype.kind not in "biufc" and not isinstance(u, jax.Array):
            raise ValueError(f"Input got samples of {u.dtype}; expected numbers.")
        if u.shape[:1] != (count,):
            raise ValueError(
                f"Input got {count} times and samples of shape {u.shape}; expected one sample for "
                "each time, along the first axis."
            )
        if linear and not jnp.issubdtype(u.dtype, jnp.inexact):
            raise ValueError(
                f"Input got linear=True and samples of {u.dtype}; expected floating point numbers. "
                "Convert with .astype(float)."
            )
        if not is_traced(u) and jnp.issubdtype(u.dtype, jnp.inexact) and np.isnan(u).any():
            raise ValueError(
                f"Input got {np.isnan(u).sum()} NaN among the samples; expected numbers. Drop the "
                "times without a sample, or fill them in."
            )


def describe(delays: Sequence[Entry]) -> str:
    """Formats delays for messages, as `Hold(1.0), Lag(0.5)`."""

    def one(d: Entry) -> str:
        if isinstance(d, Input):
            return f"Input({len(d.ts)} samples)"
        if is_function(d):
            return f"Lag({getattr(d.tau, '__name__', type(d.tau).__name__)}, low={d.low:g})"
        if isinstance(d, LagEntry):
            return f"{type(d).__name__}({_format_periods(d.taus)})"
        tau = _format_periods(d.tau) if d.times is None else "times=..."
        return f"Hold({tau}{f', lag={d.lag}' if d.lag else ''})"

    return ", ".join(one(d) for d in delays) or "none"


def _format_periods(tau: Any) -> str:
    if isinstance(tau, Learn):
        return f"Learn({tau.start:g})"
    if np.ndim(tau):
        return f"{' x '.join(map(str, np.shape(tau)))} lags"
    return "tau" if is_traced(tau) else repr(float(f"{float(tau):.6g}"))
