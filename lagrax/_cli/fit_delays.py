"""The delays that `lagrax fit` uses, or compares."""

from typing import NamedTuple

import numpy as np

from .._solve.delays import Delay, Hold, Lag, Learn, holds
from ..identify import Selection
from ..identify._periods import LEAST_SAMPLES
from .fit_options import FitError, FitOptions
from .table import Measurements
from .units import Duration, UnitError


class Lookback(NamedTuple):
    """The periods asked for, in the unit of the table's times."""

    hold: float | None
    lag: float | None
    lags: int | None
    learn: bool


def read_lookback(options: FitOptions, table: Measurements) -> Lookback:
    """The periods that the options ask for, checked against the sampling of the table."""
    if options.lags is not None and options.hold is None and not options.select:
        raise FitError(f"--lags {options.lags} needs the period of the holds: add --hold TAU.")
    if options.learn_tau and not (options.hold or options.lag or options.select):
        raise FitError("--learn-tau needs a period to start from: add --hold TAU or --lag TAU.")
    return Lookback(
        _read_period("hold", options.hold, options.lags or 1, table),
        _read_period("lag", options.lag, 1, table),
        options.lags,
        options.learn_tau,
    )


def _read_period(name: str, given: Duration | None, lags: int, table: Measurements) -> float | None:
    if given is None:
        return None
    try:
        tau = given.count(table.unit)
    except UnitError as error:
        raise FitError(f"--{name} {given}: {error}") from None
    if tau < 0.999 * table.gap:
        raise FitError(
            f"--{name} {given} is shorter than the time between two samples, "
            f"{table.in_words(table.gap)}, so they cannot show it: expected at least that."
        )
    if tau * lags > table.span / 2:
        back = f"--{name} {given}" + (f" with --lags {lags}" if lags > 1 else "")
        raise FitError(
            f"{back} looks back further than half of the series, which spans "
            f"{table.in_words(table.span)}: expected less, or a longer series."
        )
    return float(tau)


def make_delays(lookback: Lookback, table: Measurements) -> list[Delay]:
    """The delays that were asked for."""
    delays: list[Delay] = []
    if lookback.hold is not None:
        lags = lookback.lags or 1
        delays += holds(_period(lookback, table, lookback.hold, lags), lags)
    if lookback.lag is not None:
        delays.append(Lag(_period(lookback, table, lookback.lag, 1)))
    return delays


def _period(lookback: Lookback, table: Measurements, tau: float, lags: int) -> float | Learn:
    """`tau`, or if it is to be learned from a third to three times it, as samples can show."""
    if not lookback.learn:
        return tau
    low = max(tau / 3, min(LEAST_SAMPLES * table.gap, 0.999 * tau))
    high = min(3 * tau, table.span / (2 * lags))
    return Learn(tau, low, max(high, 1.001 * tau))


def make_candidates(lookback: Lookback, table: Measurements) -> dict[str, list[Delay]]:
    """Candidates around the periods asked for, or with any period if none is."""
    if lookback.hold is None and lookback.lag is None:
        return _make_any_candidates(lookback.lags or 2, table)
    candidates: dict[str, list[Delay]] = {"none": []}
    if lookback.hold is not None:
        for lags in range(1, (lookback.lags or 2) + 1):
            name = f"{lags} hold{'s' * (lags > 1)} of {table.with_unit(lookback.hold)}"
            candidates[name] = [*holds(_period(lookback, table, lookback.hold, lags), lags)]
        for tau in _neighbours(lookback, table, lookback.hold, LEAST_SAMPLES * table.gap):
            candidates[f"1 hold of {table.with_unit(tau)}"] = [Hold(tau)]
    if lookback.lag is not None:
        for tau in _neighbours(lookback, table, lookback.lag, table.gap):
            candidates[f"a lag of {table.with_unit(tau)}"] = [Lag(tau)]
    # What acts after the period of a hold may act after a lag of it.
    for tau in (lookback.lag, lookback.hold):
        if tau is not None:
            candidates[f"a lag of {table.with_unit(tau)}"] = [Lag(_period(lookback, table, tau, 1))]
    return candidates


def _neighbours(lookback: Lookback, table: Measurements, tau: float, least: float) -> list[float]:
    """Half and twice a period, if the samples can show them; none if it is to be learned."""
    factors = () if lookback.learn else (0.5, 2.0)
    return [f * tau for f in factors if least <= f * tau <= table.span / 2]


def _make_any_candidates(lags: int, table: Measurements) -> dict[str, list[Delay]]:
    low = LEAST_SAMPLES * table.gap
    high = max(table.span / 8, 2 * low)
    period = lambda: Learn(float(np.sqrt(low * high)), low, high)
    candidates: dict[str, list[Delay]] = {"none": [], "1 hold": [*holds(period(), 1)]}
    if lags > 1:
        candidates[f"{lags} holds"] = [*holds(period(), lags)]
    candidates["a lag"] = [Lag(period())]
    return candidates


def refine_chosen(selection: Selection, learn: bool) -> list[Delay]:
    """The delays of the best candidate, with the periods that were found.

    Delays with equal periods share one. If `learn`, training refines it by up to a tenth.
    """
    periods: dict[float, float | Learn] = {}
    delays: list[Delay] = []
    for delay in selection.delays:
        tau = float(f"{float(np.asarray(delay.tau)):.9g}")
        start = Learn(tau, 0.9 * tau, 1.1 * tau) if learn else tau
        period = periods.setdefault(tau, start)
        delays.append(Lag(period) if isinstance(delay, Lag) else Hold(period, lag=delay.lag))
    return delays
