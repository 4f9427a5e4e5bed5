"""Breakpoints of a solve, and the knot or time at which each delay is sampled.

A breakpoint is the time of a knot, and a knot is a breakpoint with the state there. An instant is a
time at which a hold samples the state. Instants between t0 and t1 are breakpoints, but not the only
ones.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .arguments import is_traced
from .delays import AnyArray, Entry, Hold, Input, LagEntry, describe, is_function, list_periods
from .jumps import Jump

# Up to this many past knots are separate variables of the compiled loop. Its compile time grows
# with their number, to a second here, so more of them are rows of one array.
MOST_VARIABLES = 100
# These rows move by one at every breakpoint. This many moves take minutes.
MOST_MOVES = 10**11
# Kinks are followed to at most so many sums of lags. Each is a breakpoint for every kink. Those of
# traced lags are there even if they lie beyond the end.
MOST_SUMS = 1000
MOST_TRACED_SUMS = 100


class Grid(eqx.Module):
    """Breakpoints of one solve, and where each hold finds its state in each interval.

    `starts` and `lengths` describe the `num_intervals` intervals between breakpoints. `end` is t1
    itself; the last start and length are both rounded and may add up to less.

    The next three lists have one entry for each hold. `ages[d]` is the number of
    breakpoints since hold d sampled the state: one number if it is the same in all intervals,
    otherwise one for each. If the sample lies before t0, `from_past[d]` is true and
    `past_times[d]` is its time, at which the initial function gives the state.

    `samples` has one entry for each input: the number of its last sample at the start of each
    interval, or -1 before the first. `events` has one entry for each `Jump`: the number of its
    instant at each knot, or -1 if there is none.

    Holds need the states at the last `num_knots` breakpoints, lags the dense output of the last
    `num_dense` intervals. `covered` is False if traced delays do not fit the static number of
    intervals. `is_even` says that all of them have the same length, known when traced.

    `kinks` says at which starts the solution has a kink, if lags that are functions may pass them.
    The others only bound the length of intervals.
    """

    starts: Float[AnyArray, " intervals"]
    lengths: Float[AnyArray, " intervals"]
    end: Float[AnyArray, ""]
    ages: list[int | Int[AnyArray, " intervals"]]
    past_times: list[Float[AnyArray, " intervals"]]
    from_past: list[bool | Bool[AnyArray, " intervals"]]
    samples: list[Int[AnyArray, " intervals"]]
    events: list[Int[AnyArray, " knots"]]
    covered: bool | Bool[Array, ""]
    num_intervals: int = eqx.field(static=True)
    num_knots: int = eqx.field(static=True)
    num_dense: int = eqx.field(static=True)
    is_even: bool = eqx.field(static=True)
    kinks: Bool[AnyArray, " intervals"] | None = None


def make_grid(
    delays: Sequence[Entry],
    t0: Any,
    t1: Any,
    *,
    intervals: int | None,
    levels: int,
    dtype: Any,
    jump_ts: Any = None,
    jumps: Sequence[Jump] = (),
) -> Grid:
    """Finds the breakpoints, the samples of all holds and inputs, and the knots of jumps.

    Breakpoints are t0, the instants of holds, inputs and jumps, `jump_ts` (times at which the field
    jumps), and the points that kinks reach through lags. More are added until no interval is longer
    than the shortest lag. A kink is followed through `levels` lags, since the solution gains one
    order of smoothness with each, or through fewer if there are many different lags.
    """
    given, delays = delays, [_keep_times(d) for d in delays]
    jump_times = [jump.times for jump in jumps]
    traced = is_traced(t0, t1, jump_ts, *jump_times, *jax.tree.leaves(delays))
    xp = jnp if traced else np
    if not traced:
        t0, t1 = float(t0), float(t1)
        delays, jump_times = jax.tree.map(
            lambda x: np.asarray(x, float) if np.ndim(x) else float(x), (delays, jump_times)
        )
    if traced and intervals is None:
        intervals = _enough_intervals(given, t0, t1)
    slack = 8 * float(jnp.finfo(dtype).eps)
    lags = any(isinstance(d, _LagTimes) for d in delays)
    others = _Others(jump_ts, jump_times)
    candidates, sources, kinks = _candidates(delays, others, t0, t1, intervals, levels, slack, xp)
    points = xp.concatenate([xp.atleast_1d(c) for c in [*candidates, t1]])
    points, order = clip(points, t0, t1, xp), None
    if traced:
        points, order = _sort_traced(points, t0 if lags else 0.0, slack, len(candidates) == 1)
    else:
        points = _merge_close(np.sort(points), t0, t1, slack, lags)
    starts = xp.concatenate([xp.atleast_1d(xp.asarray(t0, points.dtype)), points[:-1]])
    num = points.shape[0]
    owner = None
    if traced:
        owner = _find_owners(candidates, order)
        found = _look_up_in_order(delays, others, sources, owner, points, t0, t1, slack)
    else:
        found = _look_up_by_time(delays, others, starts, t0, t1, slack)
    (ages, past_times, from_past), samples, events = found
    num_knots = 1 + max([int(np.max(a)) if not is_traced(a) else num for a in ages], default=0)
    _check_num_knots(given, num_knots, num)
    taus = _join_lags([d.taus for d in delays if isinstance(d, _LagTimes)], xp)
    moves = any(is_function(d) for d in given)
    dense = _count_dense_intervals(taus, _is_single_lag(delays, others), starts, t1, slack, xp)
    return Grid(
        starts=starts.astype(dtype),
        lengths=(points - starts).astype(dtype),
        end=xp.asarray(points[-1], dtype),
        ages=ages,
        samples=samples,
        events=events,
        past_times=[p.astype(dtype) for p in past_times],
        from_past=from_past,
        covered=_covers_span(delays, jump_times, t0, t1, intervals, slack) if traced else True,
        num_intervals=num,
        num_knots=num_knots,
        num_dense=num if moves else dense,
        is_even=sources.is_even if traced else _is_even(starts, points[-1], dtype),
        kinks=_find_kinks(starts, kinks, owner) if moves else None,
    )


def _find_kinks(starts, kinks, owner) -> Any:
    """At which starts the solution has a kink (see `Grid` and `_candidates`).

    `owner` says from which of the candidates traced breakpoints come.
    """
    if owner is not None:
        return jnp.concatenate([jnp.array([True]), owner[:-1] < kinks])
    return np.isin(starts, kinks) if isinstance(kinks, np.ndarray) else np.ones(len(starts), bool)


def _is_even(starts, end, dtype) -> bool:
    """Whether all intervals have the same length but for rounding."""
    even = np.linspace(starts[0], end, len(starts) + 1)[:-1]
    scale = max(abs(starts[0]), abs(end))
    return bool(np.max(np.abs(starts - even)) <= 2 * jnp.finfo(dtype).eps * scale)


class _LagTimes(eqx.Module):
    """The times of a `LagEntry`, which are all that breakpoints depend on."""

    taus: Any
    kinks: Any
    smooths: bool = eqx.field(static=True)


def _keep_times(delay: Entry) -> Any:
    """A delay without samples, kernels and the like, which may be traced if the times are not."""
    if isinstance(delay, LagEntry):
        return _LagTimes(delay.taus, delay.kinks, delay.smooths)
    where = (lambda d: d.us) if isinstance(delay, Input) else (lambda d: d.of)
    return eqx.tree_at(where, delay, None, is_leaf=lambda x: x is None)


def _look_up_in_order(delays, others, sources: "_Sources", owner, points, t0, t1, slack) -> tuple:
    """What holds and inputs sample and where jumps are, by the order of traced breakpoints."""
    events = _events_in_order(others.jump_times, sources.jumps, owner, t0, t1, slack)
    at_t0 = _last_jump_at_start(events, points, t0, slack)
    held = _samples_in_order(delays, sources.holds, owner, t0, slack, others, at_t0)
    return held, [_count_own(owner, source)[0] - 1 for source in sources.inputs], events


def _look_up_by_time(delays, others, starts, t0, t1, slack) -> tuple:
    """What holds and inputs sample and where jumps are, by the times of the breakpoints."""
    events = [_events_by_time(ts, starts, t0, t1, slack) for ts in others.jump_times]
    inputs = [d for d in delays if isinstance(d, Input)]
    samples = [_last_before(d.ts + d.delay, starts, slack) for d in inputs]
    return _samples_by_time(delays, starts, t0, slack, others), samples, events


def _check_num_knots(delays: Sequence[Entry], num_knots: int, num: int) -> None:
    if num_knots > MOST_VARIABLES and num_knots * num > MOST_MOVES:
        raise ValueError(
            f"{describe(delays)} looks back over {num_knots - 1:,} of {num:,} intervals. All their "
            f"states are kept and moved at every breakpoint, {num_knots * num:.3g} moves in all; "
            f"expected at most {MOST_MOVES:.0e}. Give a smaller lag, or a shorter span."
        )


def _enough_intervals(delays: Sequence[Entry], t0, t1) -> int | None:
    """A sufficient number of intervals, if the span and all periods are known.

    Only instants are traced then, and their number is known.
    """
    periods = list_periods(delays)
    if not periods or is_traced(t0, t1, *periods):
        return None
    shortest = min(float(np.min(np.asarray(tau, float))) for tau in periods)
    return math.ceil((float(t1) - float(t0)) / shortest) + 2


class _Others(NamedTuple):
    """Breakpoints that no delay makes, at jumps of the field and at the times of each `Jump`."""

    jump_ts: Any
    jump_times: list[Any]

    def __bool__(self) -> bool:
        return self.jump_ts is not None or bool(self.jump_times)


class _Sources(NamedTuple):
    """The indices of the candidates with the instants of each hold, input and `Jump`.

    `is_even` says that traced candidates divide the span into equal intervals.
    """

    holds: list[int]
    inputs: list[int]
    jumps: list[int]
    is_even: bool = False


def _hold_candidates(hold, t0, t1, intervals, slack, xp):
    if hold.times is not None:
        return xp.asarray(hold.times)
    first = _floor(t0 / hold.tau, slack, xp) + 1
    return (first + xp.arange(_count(hold.tau, t0, t1, intervals, xp))) * hold.tau


def _candidates(
    delays, others: _Others, t0, t1, intervals, levels, slack, xp
) -> tuple[list[Any], _Sources, Any]:
    """Candidate breakpoints, as a list of arrays; those outside (t0, t1) are dropped later.

    Also returns those at which the solution has a kink, or their number if they come first and the
    others only divide the span.

    Traced ones keep this order where they coincide. So an instant of a hold comes after the jumps
    there, or before them if the hold samples the state before jumps.
    """
    found: list[Any] = []
    places: dict[int, int] = {}
    holds = [d for d in delays if isinstance(d, Hold)]

    def add_holds(before_jumps: bool) -> None:
        seen: dict[int, Any] = {}
        for i, hold in enumerate(holds):
            if hold.before_jumps != before_jumps:
                continue
            same = [j for j, tau in seen.items() if hold.times is None and _same(hold.tau, tau)]
            places[i] = places[same[0]] if same else len(found)
            if not same:
                seen[i] = hold.tau
                found.append(_hold_candidates(hold, t0, t1, intervals, slack, xp))

    add_holds(True)
    jumps = [len(found) + i for i in range(len(others.jump_times))]
    found += [xp.asarray(ts) for ts in others.jump_times]
    add_holds(False)
    signals = [xp.asarray(d.ts) + d.delay for d in delays if isinstance(d, Input)]
    inputs = [len(found) + i for i in range(len(signals))]
    found += signals
    sources = _Sources([places[i] for i in range(len(holds))], inputs, jumps)
    if others.jump_ts is not None:
        found.append(xp.asarray(others.jump_ts))
    of_lags = [d for d in delays if isinstance(d, _LagTimes)]
    bounds = _join_lags([d.taus for d in of_lags], xp)
    if not bounds.size:
        return found, sources, len(found)
    lags = _join_lags([d.kinks for d in of_lags], xp)
    # No interval may be longer than the shortest lag, so that lags only read known states.
    shortest = xp.min(bounds)
    levels = _count_levels(of_lags, lags, levels, t0, t1, intervals, xp)
    only_lag = _is_single_lag(delays, others)
    if xp is np and not only_lag:
        kinks = np.concatenate([[t0], *found])
        kinks = _kinks_of_lags(kinks[kinks < t1], lags, t1, levels)
        kinks = np.append(t0, _merge_close(np.sort(kinks), t0, t1, slack, True))
        return [_subdivide(kinks, shortest, _rounding(kinks[1:], t0, slack, np))], sources, kinks
    multiples = t0 + xp.arange(1, _count(shortest, t0, t1, intervals, xp) + 1) * shortest
    if only_lag:
        return [multiples], sources, 0
    levels = min(levels, intervals)
    if not levels and not found:
        # Nothing but the shortest lag bounds the intervals, and equal ones need no search.
        even = t0 + (t1 - t0) * xp.arange(1, intervals) / intervals
        return [even], sources._replace(is_even=not is_traced(t0, t1)), 0
    kinks = _kinks_of_traced_lags(found, others.jump_times, lags, t0, levels)
    found = [*found, *kinks]
    return [*found, multiples[levels:]], sources, len(found)


def _join_lags(lags: list[Any], xp) -> Any:
    """All lags in one row, each once if they are known."""
    row = xp.concatenate([np.zeros(0), *(xp.ravel(xp.asarray(x)) for x in lags)])
    if xp is jnp:
        return row
    _, first = np.unique(row, return_index=True)
    return row[np.sort(first)]


def _count_levels(delays: "list[_LagTimes]", lags, levels: int, t0, t1, intervals, xp) -> int:
    """The number of lags through which a kink is followed."""
    if not lags.size:
        return 0
    if not all(d.smooths for d in delays):
        levels = _count(xp.min(lags), t0, t1, intervals, xp)
    # There are binomial(k + n, n) - 1 sums of up to n of k lags.
    most = max(MOST_SUMS if xp is np else MOST_TRACED_SUMS, levels)
    while levels and math.comb(lags.size + levels, levels) - 1 > most:
        levels -= 1
    return levels


def _kinks_of_traced_lags(
    instants: list[Any], jump_times: list[Any], lags, t0, levels: int
) -> list[Any]:
    """Points that kinks reach through traced lags, as far as a static number of breakpoints allows.

    A kink at an instant of a hold passes one lag, a jump of the state two. The kink at t0 reaches
    the sums of up to `levels` lags.

    Where some of these points coincide, the intervals between them have no length, and the
    derivative is that for one order of the points. All the orders used here agree with one way of
    moving the delays a little: points behind more lags come later, and among points behind equally
    many lags those of earlier lags come first.
    """
    found = []
    for count in range(1, levels + 1):
        which = itertools.combinations_with_replacement(range(lags.size), count)
        sums = lags[np.array(list(which))].sum(axis=1)
        kinks = {1: instants, 2: jump_times}.get(count, [])
        kinks = jnp.concatenate([*map(jnp.asarray, kinks), jnp.asarray(t0)[None]])
        found.append((sums[:, None] + kinks).ravel())
    return found


def _same(a: Any, b: Any) -> bool:
    return a is b or (not is_traced(a, b) and a == b)


def _count(tau, t0, t1, intervals, xp) -> int:
    return int(np.ceil((t1 - t0) / tau)) + 1 if xp is np else intervals - 1


def _covers_span(delays: Sequence[Any], jump_times, t0, t1, intervals, slack):
    """Whether `intervals` periods of every traced delay reach from t0 to t1."""
    covered = jnp.asarray(t1 >= t0)
    inputs = [d.ts for d in delays if isinstance(d, Input)]
    for times in map(jnp.asarray, [*jump_times, *inputs]):
        # Those that fill up a row are equal, and infinite.
        covered &= jnp.all((times[1:] > times[:-1]) | jnp.isposinf(times[1:]))
        covered &= ~jnp.any(jnp.isnan(times))
    for delay in delays:
        if isinstance(delay, Input):
            continue
        if isinstance(delay, Hold) and delay.times is not None:
            times = jnp.asarray(delay.times)
            covered &= jnp.all(jnp.isfinite(times)) & jnp.all(jnp.diff(times) > 0)
            continue
        is_lag = isinstance(delay, _LagTimes)
        if is_lag and not np.size(delay.taus):
            continue
        tau = jnp.min(jnp.asarray(delay.taus)) if is_lag else jnp.asarray(delay.tau)
        first = t0 if is_lag else _floor(t0 / tau, slack, jnp) * tau
        reach = first + intervals * tau
        covered &= (tau > 0) & (reach >= t1 - slack * _time_scale(t0, t1, jnp))
    return covered


def _kinks_of_lags(kinks, lags, t1, levels):
    """All points that kinks reach through up to `levels` lags."""
    reached = [kinks]
    for _ in range(levels):
        kinks = np.unique(kinks[:, None] + lags)
        kinks = kinks[kinks < t1]
        reached.append(kinks)
    return np.concatenate(reached)


def _subdivide(points, longest, widths):
    """Divides gaps longer than `longest` into equal parts. `widths` is the rounding of each gap."""
    gaps = np.diff(points)
    pieces = np.maximum(1, np.ceil((gaps - widths) / longest)).astype(int)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin, pieces, gaps = (np.repeat(x, pieces) for x in (points[:-1], pieces, gaps))
    return begin + gaps * number / pieces


def _rounding(points, t0, slack, xp):
    """The largest distance between two times that differ by rounding alone.

    It is relative to the times themselves, not to the span, since floating point numbers are dense
    near 0. Times that lags make are sums with t0 and carry its rounding.
    """
    return slack * xp.maximum(xp.abs(points), xp.abs(t0))


def _merge_close(points, t0, t1, slack, lags):
    """Drops points that differ from each other, from t0 or from t1 by rounding alone."""
    after, before = (_rounding(np.asarray(t), 0.0, slack, np) for t in (t0, t1))
    points = points[(points > t0 + after) & (points < t1 - before)]
    keep = np.diff(points, prepend=-np.inf) > _rounding(points, t0 if lags else 0.0, slack, np)
    return np.concatenate([points[keep], [t1]])


def _sort_traced(points, t0, slack, is_sorted: bool):
    """Sorts points by time, and returns their order too.

    Points that differ by rounding alone keep the order in which they are given. Those of one source
    increase already, and a sort of each row of a batch would take longer than the solve.
    """
    if is_sorted:
        return points + lax.stop_gradient(lax.cummax(points) - points), np.arange(len(points))
    order = jnp.argsort(points)
    apart = jnp.diff(points[order]) > _rounding(points[order][1:], t0, slack, jnp)
    group = jnp.zeros_like(order).at[order[1:]].set(jnp.cumsum(apart))
    order = jnp.argsort(group)
    points = points[order]
    return points + lax.stop_gradient(lax.cummax(points) - points), order


def _time_scale(t0, t1, xp):
    """The magnitude of times to which rounding is relative."""
    return xp.maximum(xp.maximum(xp.abs(t0), xp.abs(t1)), t1 - t0)


def clip(x, low, high, xp):
    """Clips with a one-sided derivative at the limits, where that of `jnp.clip` is a half."""
    return xp.where(x < low, low, xp.where(x > high, high, x))


def _floor(quotient, slack, xp):
    """Rounds down, but takes 2.9999999 for the 3 that it was before rounding."""
    return xp.floor(quotient + slack * xp.maximum(1.0, xp.abs(quotient)))


def _have_one_period(delays, others) -> bool:
    """Whether all delays are holds with one period, so that every breakpoint is an instant."""
    first = delays[0]
    same = (isinstance(d, Hold) and d.times is None and _same(d.tau, first.tau) for d in delays)
    return not others and all(same)


def _is_single_lag(delays, others) -> bool:
    """Whether a single lag makes all breakpoints, so that every interval has its length."""
    is_lag = len(delays) == 1 and isinstance(delays[0], _LagTimes)
    return is_lag and not others and np.size(delays[0].kinks) == 1 == np.size(delays[0].taus)


def _age_with_one_period(hold, num: int):
    """The age of a sample if every breakpoint is an instant.

    It is one number, or one for each interval if the number is large.
    """
    # No state is older than that at t0, which fills the buffer of knots at first.
    age = min(hold.lag, num - 1)
    return age if age < MOST_VARIABLES else np.minimum(age, np.arange(num))


def _samples_by_time(delays, starts, t0, slack, others):
    """Finds the samples of all holds (see `Grid`) by the times of the breakpoints."""
    ages, times, from_past = [], [], []
    index = np.arange(starts.shape[0])
    for hold in (d for d in delays if isinstance(d, Hold)):
        instants = _instants(hold, starts, t0, slack)
        times.append(np.minimum(instants, t0))
        before = instants < t0 - slack * np.maximum(np.abs(t0), np.abs(instants))
        from_past.append(before if before.any() else False)
        # The buffer of knots starts filled with the state at t0, so a look further back finds it.
        age = np.maximum(index - _nearest(starts, instants), 0)
        one_period = _have_one_period(delays, others)
        ages.append(_age_with_one_period(hold, len(starts)) if one_period else age)
    return ages, times, from_past


def _nearest(starts, instants):
    """The index of the sorted start closest to each instant, the first of equal starts."""
    after = np.minimum(np.searchsorted(starts, instants), starts.shape[0] - 1)
    later, earlier = starts[after], starts[np.maximum(after - 1, 0)]
    closest = np.where(instants - earlier <= later - instants, earlier, later)
    return np.searchsorted(starts, closest)


def _instants(hold, starts, t0, slack):
    """The instant at which `hold` sampled its state, for each interval."""
    if hold.times is None:
        return (_floor(starts / hold.tau, slack, np) - hold.lag) * hold.tau
    times = np.asarray(hold.times)
    index = _last_before(times, starts, slack) - hold.lag
    return np.where(index >= 0, times[np.maximum(index, 0)], t0)


def _last_before(times, starts, slack):
    """The number of the last of `times` that is not after each start, or -1."""
    gap = np.min(np.diff(times[times < np.inf]), initial=np.inf)
    width = slack * np.maximum(gap if gap < np.inf else 0.0, np.abs(starts))
    return np.searchsorted(times, starts + width, side="right") - 1


def _find_owners(candidates, order):
    """The index of the candidates from which each of the sorted traced breakpoints comes."""
    owners = [np.full(np.size(c), number) for number, c in enumerate(candidates)]
    return jnp.asarray(np.concatenate([*owners, [len(candidates)]]))[order]


def _count_own(owner, source):
    """How many breakpoints of one source there are up to each start, and at which starts."""
    # The first interval begins at t0, every other one at the end of its predecessor.
    own = jnp.concatenate([jnp.array([False]), owner[:-1] == source])
    return jnp.cumsum(own), own


def _events_by_time(times, starts, t0, t1, slack):
    """The number of the instant of a `Jump` at each knot, or -1."""
    events = np.full(starts.shape[0] + 1, -1)
    inside = np.flatnonzero(_is_inside(times, t0, t1, slack, np))
    events[_nearest(np.append(starts, t1), times[inside])] = inside
    return events


def _is_inside(times, t0, t1, slack, xp):
    """Whether times lie in the span, up to the rounding of its ends."""
    width = slack * xp.maximum(xp.abs(t0), xp.abs(t1))
    return (times >= t0 - width) & (times <= t1 + width)


def _events_in_order(jump_times, sources, owner, t0, t1, slack):
    """The events of every `Jump` by the order of the breakpoints, if some are traced."""
    events = []
    for times, source in zip(jump_times, sources, strict=True):
        own = owner == source
        number = jnp.maximum(jnp.cumsum(own) - 1, 0)
        made = own & _is_inside(jnp.asarray(times), t0, t1, slack, jnp)[number]
        events.append(jnp.concatenate([jnp.array([-1]), jnp.where(made, number, -1)]))
    return events


def _last_jump_at_start(events, points, t0, slack):
    """The number of the first interval after all jumps at t0, if some times are traced."""
    if not events:
        return 0
    jumped = jnp.stack(events)[:, 1:].max(axis=0) >= 0
    near = points <= t0 + slack * jnp.abs(t0)
    return jnp.max(jnp.where(jumped & near, jnp.arange(1, points.shape[0] + 1), 0))


def _samples_in_order(delays, sources, owner, t0, slack, others, at_t0):
    """Finds the samples of all holds by the order of the breakpoints, if some are traced.

    Times would not tell apart coinciding instants of two holds, of which only one moves with a
    traced period. `at_t0` is the interval that begins with the state after all jumps at t0.
    """
    index = jnp.arange(owner.shape[0])
    ages, times, from_past = [], [], []
    for hold, source in zip((d for d in delays if isinstance(d, Hold)), sources, strict=True):
        count, own = _count_own(owner, source)
        places = jnp.sort(jnp.where(own, index, owner.shape[0]))
        sample = count - 1 - hold.lag  # negative at or before t0
        first = 0 if hold.before_jumps else at_t0
        place = jnp.where(sample >= 0, places[jnp.maximum(sample, 0)], first)
        instants = _instant_by_number(hold, sample, t0, slack)
        times.append(jnp.minimum(instants, t0))
        from_past.append(instants < t0 - slack * jnp.maximum(jnp.abs(t0), jnp.abs(instants)))
        one_period = _have_one_period(delays, others)
        age = jnp.maximum(index - place, 0)
        ages.append(_age_with_one_period(hold, len(index)) if one_period else age)
    return ages, times, from_past


def _instant_by_number(hold, number, t0, slack):
    """The instant of a traced hold by its number, which is 0 at the first breakpoint."""
    if hold.times is None:
        return (_floor(t0 / hold.tau, slack, jnp) + 1 + number) * hold.tau
    times = jnp.asarray(hold.times)
    return jnp.where(number >= 0, times[jnp.clip(number, 0, times.shape[0] - 1)], t0)


def _count_dense_intervals(lags, only_lag, starts, t1, slack, xp) -> int:
    """The number of intervals that the longest lag reaches back.

    It is 0 if lags read the initial function alone.
    """
    if not lags.size or (xp is np and np.min(lags) >= (t1 - starts[0]) * (1 - slack)):
        return 0
    if only_lag:
        return 1  # every interval has the length of the lag
    if xp is jnp:
        return starts.shape[0]
    longest = np.max(lags)
    width = slack * np.maximum(longest, np.abs(starts))
    oldest = np.searchsorted(starts, starts - longest - width, side="right") - 1
    return int(np.max(np.arange(starts.shape[0]) - np.maximum(oldest, 0)))
