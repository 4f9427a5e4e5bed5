"""The times at which an equation reads its past."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .._solve.delays import Delay, Hold, Lag, periods_to_learn, with_periods

Times = Float[np.ndarray, " times"]


def read_period(delay: Delay) -> float:
    """The period of a delay that has a number for it."""
    return float(delay.tau)  # pyright: ignore[reportArgumentType]


def is_periodic(delay: Delay) -> bool:
    """Whether a delay has a period, rather than given instants."""
    return isinstance(delay, Lag) or delay.times is None


def find_kinks(delays: Sequence[Delay], t0: float, t1: float) -> Times:
    """The sampling instants of all holds between t0 and t1. Solutions have a kink there."""
    instants = [np.zeros(0)]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            instants.append(np.asarray(delay.times, float))
        elif isinstance(delay, Hold):
            tau = read_period(delay)
            instants.append(tau * np.arange(np.ceil(t0 / tau), np.floor(t1 / tau) + 1))
    kinks = np.unique(np.concatenate(instants))
    return kinks[(kinks >= t0) & (kinks <= t1)]


def find_reach(delays: Sequence[Delay]) -> float:
    """The longest time that an equation looks back. Infinite for a hold at given instants, whose
    last value is held for ever. A period to learn counts with its upper bound."""
    delays = with_periods(delays, [learn.high for learn in periods_to_learn(delays)])
    reaches = [0.0]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            reaches.append(np.inf)
        elif isinstance(delay, Hold):
            reaches.append((delay.lag + 1) * read_period(delay))
        else:
            reaches.append(read_period(delay))
    return max(reaches)


def find_earliest(delays: Sequence[Delay], start: float) -> float:
    """The earliest time that an equation reads from `start` on. A hold looks back less far from a
    knot than from elsewhere."""
    earliest = [start]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            earliest.append(-np.inf)
            continue
        tau = read_period(delay)
        held = isinstance(delay, Hold)
        earliest.append((np.floor(start / tau + 1e-9) - delay.lag) * tau if held else start - tau)
    return float(min(earliest))


def find_sources(delay: Delay, times: Times, middles: Times) -> Times:
    """The time whose state `delay` refers to, for each of `times`. Each of `middles` lies in the
    same interval between knots, safely away from its ends."""
    if isinstance(delay, Lag):
        return times - read_period(delay)
    if delay.times is not None:
        instants = np.asarray(delay.times, float)
        place = np.searchsorted(instants, middles, side="right") - 1 - delay.lag
        return np.where(place >= 0, instants[np.maximum(place, 0)], -np.inf)
    tau = read_period(delay)
    return (np.floor(middles / tau) - delay.lag) * tau


def find_first_instant(delays: Sequence[Delay]) -> float:
    """The first time at which every hold at given instants has its value."""
    firsts = [-np.inf]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None and delay.lag < len(delay.times):
            firsts.append(float(delay.times[delay.lag]))
    return max(firsts)
