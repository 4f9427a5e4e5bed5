"""The breakpoints of a solve, and where each delay finds its value in each interval."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .arguments import is_traced
from .delays import MOST_VARIABLES, AnyArray, Delay, Hold, Lag, describe

# Rows are moved by one at every breakpoint: so many moves take minutes.
MOST_MOVES = 10**11


class Grid(eqx.Module):
    """The breakpoints of one solve and, for each interval between them, where the past lies.

    For the d-th hold (lags do not count), `ages[d]` says how many breakpoints ago it sampled the
    state: one number where it is the same in every interval, else one for each. `past_times[d]` are
    instants before t0, where the initial function gives the held value; `from_past[d]` says in
    which intervals.

    `ring` is the number of breakpoints whose states must be kept for the holds, `window` the number
    of intervals whose dense output must be kept for the lags, `num` the number of intervals.
    `covered` is False where a traced delay does not fit the static number of intervals. `end` is
    t1 itself: the last start and length, rounded each, may add up to less.
    """

    starts: Float[AnyArray, " intervals"]
    lengths: Float[AnyArray, " intervals"]
    end: Float[AnyArray, ""]
    ages: list[int | Int[AnyArray, " intervals"]]
    past_times: list[Float[AnyArray, " intervals"]]
    from_past: list[bool | Bool[AnyArray, " intervals"]]
    covered: bool | Bool[Array, ""]
    num: int = eqx.field(static=True)
    ring: int = eqx.field(static=True)
    window: int = eqx.field(static=True)


def make_grid(
    delays: Sequence[Delay],
    t0: Any,
    t1: Any,
    *,
    intervals: int | None,
    levels: int,
    dtype: Any,
    jump_ts: Any = None,
) -> Grid:
    """Breakpoints are t0, the instants of all holds, `jump_ts` (times at which the field jumps),
    the points to which a kink there travels by lags, and as many more as keep an interval within
    the shortest lag. A kink travels `levels` times: each passage through the equation makes the
    solution smoother by one order."""
    traced = is_traced(t0, t1, jump_ts, *jax.tree.leaves(list(delays)))
    xp = jnp if traced else np
    if not traced:
        t0, t1 = float(t0), float(t1)
        delays = jax.tree.map(lambda x: x if np.ndim(x) else float(x), list(delays))
    if traced and intervals is None:
        intervals = _enough_intervals(delays, t0, t1)
    slack = 8 * float(jnp.finfo(dtype).eps)
    lags = any(isinstance(d, Lag) for d in delays)
    inner, clocks = _candidates(delays, jump_ts, t0, t1, intervals, levels, slack, xp)
    points = xp.concatenate([xp.atleast_1d(c) for c in [*inner, t1]])
    points, order = clipped(points, t0, t1, xp), None
    if traced:
        points, order = _in_order(points, t0 if lags else 0.0, slack)
    else:
        points = _merged(np.sort(points), t0, t1, slack, lags)
    starts = xp.concatenate([xp.atleast_1d(xp.asarray(t0, points.dtype)), points[:-1]])
    num = points.shape[0]
    lag_taus = [d.tau for d in delays if isinstance(d, Lag)]
    if traced:
        held = _samples_in_order(delays, clocks, inner, order, t0, slack, jump_ts)
    else:
        held = _samples_by_time(delays, starts, t0, slack, jump_ts)
    ages, past_times, from_past = held
    ring = 1 + max([int(np.max(a)) if not is_traced(a) else num for a in ages], default=0)
    _check_ring(delays, ring, num)
    return Grid(
        starts=starts.astype(dtype),
        lengths=(points - starts).astype(dtype),
        end=xp.asarray(points[-1], dtype),
        ages=ages,
        past_times=[p.astype(dtype) for p in past_times],
        from_past=from_past,
        covered=_covered(delays, t0, t1, intervals, slack) if traced else True,
        num=num,
        ring=ring,
        window=_window(lag_taus, _one_lag_alone(delays, jump_ts), starts, t1, slack, xp),
    )


def _check_ring(delays: Sequence[Delay], ring: int, num: int) -> None:
    if ring > MOST_VARIABLES and ring * num > MOST_MOVES:
        raise ValueError(
            f"{describe(delays)} looks back over {ring - 1:,} of {num:,} intervals. As many states "
            f"are kept and each is moved at every breakpoint, {ring * num:.3g} times in all; "
            f"expected at most {MOST_MOVES:.0e}. Give a smaller lag, or a shorter span."
        )


def _enough_intervals(delays, t0, t1) -> int | None:
    """Intervals of the shortest period in a span, where both are known. Only instants are traced
    then, whose number is known."""
    periods = [d.tau for d in delays if d.tau is not None]
    if not periods or is_traced(t0, t1, *periods):
        return None
    shortest = min(float(tau) for tau in periods)
    return math.ceil((float(t1) - float(t0)) / shortest) + 2


def _candidates(
    delays, jump_ts, t0, t1, intervals, levels, slack, xp
) -> tuple[list[Any], list[int]]:
    """Where a breakpoint may lie; those outside (t0, t1) are clipped away later. And for each hold,
    which of the arrays has its instants; that is asked for where something is traced."""
    found: list[Any] = []
    seen: list[Any] = []
    clocks: list[int] = []
    lags = [d.tau for d in delays if isinstance(d, Lag)]
    for hold in (d for d in delays if isinstance(d, Hold)):
        same = [hold.times is None and _same(hold.tau, tau) for tau in seen]
        clocks.append(same.index(True) if any(same) else len(found))
        if any(same):
            continue
        seen.append(hold.tau)
        if hold.times is not None:
            found.append(hold.times)
        else:
            first = _floor(t0 / hold.tau, slack, xp) + 1
            found.append((first + xp.arange(_count(hold.tau, t0, t1, intervals, xp))) * hold.tau)
    if jump_ts is not None:
        found.append(xp.asarray(jump_ts))
    if not lags:
        return found, clocks
    # An interval must not be longer than the shortest lag: what that looks at is then known.
    shortest = lags[0] if len(lags) == 1 else xp.min(xp.stack([xp.asarray(x) for x in lags]))
    only_lag = _one_lag_alone(delays, jump_ts)
    if xp is np and not only_lag:
        kinks = np.concatenate([[t0], *found])
        kinks = _travelled(kinks[kinks < t1], lags, t1, levels)
        kinks = np.append(t0, _merged(np.sort(kinks), t0, t1, slack, True))
        return [_filled(kinks, shortest, _rounding(kinks[1:], t0, slack, np))], clocks
    multiples = t0 + xp.arange(1, _count(shortest, t0, t1, intervals, xp) + 1) * shortest
    if only_lag:
        return [multiples], clocks
    levels = min(levels, intervals)
    return [*found, *_passed_on(found, lags, t0, levels), multiples[levels:]], clocks


def _passed_on(instants: list[Any], lags: list[Any], t0, levels: int) -> list[Any]:
    """Where traced lags take kinks, as far as a static number of breakpoints goes: those at
    instants once, that at t0 to the sums of up to `levels` lags.

    Where some coincide, the intervals between them have no length, and the derivative is that for
    one order of them. All orders agree with one way to move the delays a little: those that more
    lags have passed on come later, of as many lags those of the earlier ones come first.
    """
    sums = [
        combination
        for count in range(1, levels + 1)
        for combination in itertools.combinations_with_replacement(range(len(lags)), count)
    ]
    found = []
    for which in sums:
        found += [kinks + lags[which[0]] for kinks in instants if len(which) == 1]
        found.append(t0 + sum(lags[i] for i in which))
    return found


def _same(a: Any, b: Any) -> bool:
    return a is b or (not is_traced(a, b) and a == b)


def _count(tau, t0, t1, intervals, xp) -> int:
    return int(np.ceil((t1 - t0) / tau)) + 1 if xp is np else intervals - 1


def _covered(delays: Sequence[Any], t0, t1, intervals, slack):
    """Whether `intervals` periods of every traced delay reach from t0 to t1."""
    covered = jnp.asarray(t1 >= t0)
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            times = jnp.asarray(delay.times)
            covered &= jnp.all(jnp.isfinite(times)) & jnp.all(jnp.diff(times) > 0)
            continue
        tau = jnp.asarray(delay.tau)
        first = t0 if isinstance(delay, Lag) else _floor(t0 / tau, slack, jnp) * tau
        reach = first + intervals * tau
        covered &= (tau > 0) & (reach >= t1 - slack * _largest(t0, t1, jnp))
    return covered


def _travelled(kinks, lags, t1, levels):
    """All points reached from a kink by up to `levels` lags."""
    reached = [kinks]
    for _ in range(levels):
        kinks = np.unique(np.concatenate([kinks + tau for tau in lags]))
        kinks = kinks[kinks < t1]
        reached.append(kinks)
    return np.concatenate(reached)


def _filled(points, longest, widths):
    """With more of them in equal distances wherever two are farther apart than `longest`, by more
    than the `widths` that rounding may make."""
    gaps = np.diff(points)
    pieces = np.maximum(1, np.ceil((gaps - widths) / longest)).astype(int)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin, pieces, gaps = (np.repeat(x, pieces) for x in (points[:-1], pieces, gaps))
    return begin + gaps * number / pieces


def _rounding(points, t0, slack, xp):
    """How far apart times may be that rounding alone tells apart. It is relative to where they are,
    not to the span: near 0 times are close together. Those that lags make are sums with t0."""
    return slack * xp.maximum(xp.abs(points), xp.abs(t0))


def _merged(points, t0, t1, slack, lags):
    """Drops points that rounding alone tells apart from each other, from t0 or from t1."""
    after, before = (_rounding(np.asarray(t), 0.0, slack, np) for t in (t0, t1))
    points = points[(points > t0 + after) & (points < t1 - before)]
    keep = np.diff(points, prepend=-np.inf) > _rounding(points, t0 if lags else 0.0, slack, np)
    return np.concatenate([points[keep], [t1]])


def _in_order(points, t0, slack):
    """The points by time; those that rounding alone tells apart stay in the order in which they
    come. And their order."""
    order = jnp.argsort(points)
    apart = jnp.diff(points[order]) > _rounding(points[order][1:], t0, slack, jnp)
    group = jnp.zeros_like(order).at[order[1:]].set(jnp.cumsum(apart))
    order = jnp.argsort(group)
    points = points[order]
    return points + lax.stop_gradient(lax.cummax(points) - points), order


def _largest(t0, t1, xp):
    """The size of the times that rounding is relative to."""
    return xp.maximum(xp.maximum(xp.abs(t0), xp.abs(t1)), t1 - t0)


def clipped(x, low, high, xp):
    """clip() with a one-sided derivative at the limits, where JAX's own passes on half."""
    return xp.where(x < low, low, xp.where(x > high, high, x))


def _floor(quotient, slack, xp):
    """floor() that takes 2.9999999 for the 3 it was before rounding."""
    return xp.floor(quotient + slack * xp.maximum(1.0, xp.abs(quotient)))


def _one_clock_alone(delays, jump_ts) -> bool:
    """Whether all delays are holds that share one clock, so that every breakpoint is an instant."""
    first = delays[0]
    same = (isinstance(d, Hold) and d.times is None and _same(d.tau, first.tau) for d in delays)
    return jump_ts is None and all(same)


def _one_lag_alone(delays, jump_ts) -> bool:
    """Whether one lag makes all breakpoints, so that every interval is as long as it."""
    return jump_ts is None and len(delays) == 1 and isinstance(delays[0], Lag)


def _known_age(hold, num: int):
    """The age where every breakpoint is an instant: one number, or, where that is large, one for
    each interval."""
    # No state is older than that at t0, with which the ring is filled.
    age = min(hold.lag, num - 1)
    return age if age < MOST_VARIABLES else np.minimum(age, np.arange(num))


def _samples_by_time(delays, starts, t0, slack, jump_ts):
    """For each hold, where its sample was taken (see `Grid`), by the times of the breakpoints."""
    ages, times, from_past = [], [], []
    index = np.arange(starts.shape[0])
    for hold in (d for d in delays if isinstance(d, Hold)):
        instants = _instants(hold, starts, t0, slack)
        times.append(np.minimum(instants, t0))
        before = instants < t0 - slack * np.maximum(np.abs(t0), np.abs(instants))
        from_past.append(before if before.any() else False)
        # The ring of knots starts filled with the state at t0, so looking further back than t0
        # finds that state too.
        age = np.maximum(index - _nearest(starts, instants), 0)
        ages.append(_known_age(hold, len(starts)) if _one_clock_alone(delays, jump_ts) else age)
    return ages, times, from_past


def _nearest(starts, instants):
    """Which of the sorted `starts` is closest to each instant; of equal ones the first."""
    after = np.minimum(np.searchsorted(starts, instants), starts.shape[0] - 1)
    later, earlier = starts[after], starts[np.maximum(after - 1, 0)]
    closest = np.where(instants - earlier <= later - instants, earlier, later)
    return np.searchsorted(starts, closest)


def _instants(hold, starts, t0, slack):
    """The instant whose state `hold` holds, in each interval."""
    if hold.times is None:
        return (_floor(starts / hold.tau, slack, np) - hold.lag) * hold.tau
    times = np.asarray(hold.times)
    gap = np.min(np.diff(times)) if times.shape[0] > 1 else 0.0
    width = slack * np.maximum(gap, np.abs(starts))
    index = np.searchsorted(times, starts + width, side="right") - 1 - hold.lag
    return np.where(index >= 0, times[np.maximum(index, 0)], t0)


def _samples_in_order(delays, clocks, inner, order, t0, slack, jump_ts):
    """The same where something is traced: by the order of the breakpoints, each hold changing at
    its own. Where instants of two clocks coincide the times do not tell them apart, but only one of
    them moves with a traced period."""
    owners = [np.full(np.size(c), number) for number, c in enumerate(inner)]
    owner = jnp.asarray(np.concatenate([*owners, [len(inner)]]))[order]
    index = jnp.arange(owner.shape[0])
    ages, times, from_past = [], [], []
    for hold, clock in zip((d for d in delays if isinstance(d, Hold)), clocks, strict=True):
        # The first interval begins at t0, each other one at the end of that before it.
        own = jnp.concatenate([jnp.array([False]), owner[:-1] == clock])
        places = jnp.sort(jnp.where(own, index, owner.shape[0]))
        sample = jnp.cumsum(own) - 1 - hold.lag  # the number of its instant; at or before t0: < 0
        place = jnp.where(sample >= 0, places[jnp.maximum(sample, 0)], 0)
        instants = _numbered(hold, sample, t0, slack)
        times.append(jnp.minimum(instants, t0))
        from_past.append(instants < t0 - slack * jnp.maximum(jnp.abs(t0), jnp.abs(instants)))
        ages.append(
            _known_age(hold, len(index)) if _one_clock_alone(delays, jump_ts) else index - place
        )
    return ages, times, from_past


def _numbered(hold, number, t0, slack):
    """The instant of a traced hold that has this number; 0 is the first among the breakpoints."""
    if hold.times is None:
        return (_floor(t0 / hold.tau, slack, jnp) + 1 + number) * hold.tau
    times = jnp.asarray(hold.times)
    return jnp.where(number >= 0, times[jnp.clip(number, 0, times.shape[0] - 1)], t0)


def _window(lag_taus, only_lag, starts, t1, slack, xp) -> int:
    """How many intervals back the longest lag reaches; none where only the initial function is
    looked at."""
    if not lag_taus or (xp is np and min(lag_taus) >= (t1 - starts[0]) * (1 - slack)):
        return 0
    if only_lag:
        return 1  # the intervals are as long as it
    if xp is jnp:
        return starts.shape[0]
    earliest = starts - max(lag_taus)
    width = slack * np.maximum(max(lag_taus), np.abs(starts))
    oldest = np.searchsorted(starts, earliest - width, side="right") - 1
    return int(np.max(np.arange(starts.shape[0]) - np.maximum(oldest, 0)))
