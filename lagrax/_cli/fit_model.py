"""Fits an equation to a table of measurements, and forecasts."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._solve.delays import Delay, Learn
from ..identify import Forecast, Identifier
from ..identify._selection import Scan, Selection, select_delays
from ..training._machine import load
from .fit_delays import Lookback, make_candidates, make_delays, read_lookback, refine_chosen
from .fit_options import FitError, FitOptions
from .fit_scores import Score, States, find_doubt, score_predictions
from .fit_terms import Symbols, Term, choose_all_symbols, list_terms
from .long_run import LongRun, long_run_of, precisely, why_no_map
from .table import Measurements
from .units import MONTHS, Calendar, Duration, UnitError

MOST_RANGES = 4
MOST_SAMPLES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Fit:
    """The results of a fit.

    - `predicted`: NaN up to the first sample whose past was measured.
    - `held_out`: the first sample that was not learned from.
    - `long_run`: a sentence if there is no map to analyse.
    """

    data: Path
    options: FitOptions
    table: Measurements
    model: Identifier
    selection: Selection | None
    predicted: States
    held_out: int
    scores: list[Score]
    forecast: Forecast | None
    long_run: LongRun | str
    seconds: dict[str, float]

    @property
    def symbols(self) -> Symbols:
        return choose_all_symbols(self.table.names, self.table.input_names)

    @property
    def equations(self) -> list[str]:
        return self.model.equations(self.symbols.states, self.symbols.inputs)

    @property
    def terms(self) -> list[Term]:
        return list_terms(self.model, self.symbols)

    @property
    def ignores_past(self) -> bool:
        """Whether a library has delays and needs none. A state from the past is written x(...)."""
        terms = self.terms
        return bool(self.model.delays_ and terms) and not any("(" in t.text for t in terms)

    @property
    def doubt(self) -> str | None:
        """Why the forecast is not to be trusted, or None."""
        return find_doubt(self.scores)

    @property
    def unsure(self) -> list[str]:
        """A sentence for each period that the series does not determine."""
        chosen = self.selection.best if self.selection else None
        if chosen is not None and chosen.kept and len(chosen.scans) == 1:
            tau = float(np.asarray(chosen.kept[0].tau))
            return _compare_periods([tau], chosen.scans, self.table)
        return _compare_periods(self.model.periods_, self.model.scans_, self.table)


def _compare_periods(
    periods: Sequence[float], scans: Sequence[Scan], table: Measurements
) -> list[str]:
    sentences = []
    # A model that was loaded has periods, and no scans.
    for period, scan in zip(periods, scans, strict=False):
        good = scan.periods[scan.good]
        if np.all(np.abs(good / period - 1) < 0.01):
            continue
        ranges = [dict.fromkeys(f"{end:.3g}" for end in ends) for ends in scan.ranges()]
        others = ", ".join(" to ".join(ends) for ends in ranges)
        if len(ranges) > MOST_RANGES:
            others = f"many from {good.min():.3g} to {good.max():.3g}"
        sentences.append(
            f"The period {table.with_unit(float(f'{period:.4g}'))} is not sure: of those that were "
            f"tried, {others} explain the series about as well."
        )
    return sentences


def fit_equation(data: Path, options: FitOptions, table: Measurements) -> Fit:
    """Fits the table as the options ask, with progress on stderr."""
    stamps = [time.monotonic()]
    lookback = read_lookback(options, table)
    later = _choose_forecast_times(options.forecast, table)
    _say(f"{data.name}: {describe_table(table)}")
    selection = _select(options, lookback, table) if options.select else None
    stamps.append(time.monotonic())
    delays = make_delays(lookback, table)
    if selection is not None:
        delays = refine_chosen(selection, options.learn_tau)
    model = _train(options, table, delays)
    stamps.append(time.monotonic())
    _say("Predicting, forecasting, and looking at the long run")
    predicted, starts = _predict(table, model)
    held_out = model.held_out_from_[-1]
    filled = model.series_[-1].filled
    scores = score_predictions(
        table.names, table.ys, filled, predicted, held_out, starts, model.window_
    )
    result = Fit(
        data,
        options,
        table,
        model,
        selection,
        predicted,
        held_out,
        scores,
        _forecast(table, model, later) if len(later) else None,
        _look_at_long_run(model),
        {},
    )
    stamps.append(time.monotonic())
    names = ("choosing the delays", "fitting", "forecast and long run")
    seconds = dict(zip(names, np.diff(stamps).round(2).tolist(), strict=True))
    if selection is None:
        del seconds["choosing the delays"]
    return dataclasses.replace(result, seconds=seconds)


def _choose_forecast_times(length: Duration, table: Measurements) -> Float[np.ndarray, " samples"]:
    try:
        samples = length.value if length.unit is None else length.count(table.unit) / table.gap
        if length.unit is None and samples != int(samples):
            raise UnitError("expected a whole number of samples, or a duration such as 2h.")
        if samples > MOST_SAMPLES:
            raise UnitError(f"{samples:,.0f} samples; expected at most {MOST_SAMPLES:,}.")
        return later_times(table, int(np.ceil(samples - 1e-9)))
    except UnitError as error:
        raise FitError(f"--forecast {length}: {error}") from None


def later_times(table: Measurements, number: int) -> Float[np.ndarray, " number"]:
    """The next times after the last one, as far apart as the samples are."""
    calendar, ts = table.calendar, table.ts
    if calendar is not None and calendar.unit not in MONTHS:
        dates = calendar.dates(ts)
        regular = Calendar.from_dates(dates)
        if regular.unit in MONTHS:  # Monthly samples are continued by the calendar.
            months = _continue(regular.count(dates), number)
            return calendar.count(regular.dates(months))
    later = _continue(ts, number)
    table.format_times(later[-1:])  # Raises if there are no such dates.
    return later


def _continue(ts: Float[np.ndarray, " n"], number: int) -> Float[np.ndarray, " number"]:
    gap = float(np.median(np.diff(ts)))
    later = ts[-1] + gap * np.arange(1, number + 1)
    return np.round(later, 9 - int(np.floor(np.log10(gap))))  # 15.3, not 15.299999999999999


def describe_table(table: Measurements) -> str:
    """The roles of the columns and the missing values, in a line."""
    unit = f", in {table.calendar or table.unit}" if table.unit else ""
    parts = [f"time {table.time_name}{unit}", f"states {', '.join(table.names)}"]
    parts += [f"inputs {', '.join(table.input_names)}"] if table.input_names else []
    parts += [f"left out (no numbers) {', '.join(table.left_out)}"] if table.left_out else []
    if table.missing:
        parts.append(f"missing {', '.join(f'{n} of {name}' for name, n in table.missing.items())}")
    return f"{'; '.join(parts)}."


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


# --- the model ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_fit_error() -> Iterator[None]:
    """Reports an unsuitable series as an error of the command."""
    try:
        yield
    except ValueError as error:
        raise FitError(str(error)) from None


def _frame(names: Sequence[str], values: np.ndarray) -> Any:
    """A data frame, whose column names appear in the messages of `lagrax.identify`."""
    return load("polars").DataFrame(values, schema=list(names)) if names else None


def _select(options: FitOptions, lookback: Lookback, table: Measurements) -> Selection:
    candidates = make_candidates(lookback, table)
    _say(f"Comparing {len(candidates)} candidates for the delays")
    states, inputs = _frame(table.names, table.ys), _frame(table.input_names, table.inputs)
    with _as_fit_error():
        return select_delays(table.ts, states, candidates, inputs, degree=options.degree)


def _inputs(table: Measurements) -> np.ndarray | None:
    return table.inputs if table.input_names else None


def _advise(table: Measurements) -> None:
    """Powers of numbers that vary by little are nearly proportional, and cannot be told apart."""
    for name, y in zip(table.names, table.ys.T, strict=True):
        if np.nanmax(np.abs(y)) > 1000 * np.nanmax(np.abs(y - np.nanmean(y))):
            _say(
                f"The column {name!r} is {np.nanmean(y):g} and varies by little: subtract its mean "
                "for a library to find the right terms."
            )


def _train(options: FitOptions, table: Measurements, delays: Sequence[Delay]) -> Identifier:
    model = Identifier(delays, **options.identifier_arguments())
    if options.learn_tau and any(isinstance(d.tau, Learn) for d in delays):
        _say("Looking for the period, then fitting the equation")
    elif options.field == "library":
        _say("Fitting the equation")
    if options.field == "library":
        _advise(table)
    states, inputs = _frame(table.names, table.ys), _frame(table.input_names, table.inputs)
    with _as_fit_error():
        return model.fit(table.ts, states, inputs)


def _predict(table: Measurements, model: Identifier) -> tuple[States, int]:
    """The predictions, and the sample at which they start. Up to it they are NaN."""
    predicted = np.array(model.predict(table.ts, table.ys, _inputs(table)))
    starts = model.predicted_from_[-1] - 1
    predicted[: starts + 1] = np.nan
    return predicted, starts


def _forecast(table: Measurements, model: Identifier, later: np.ndarray) -> Forecast:
    """Continues the series. Inputs stay at their last value."""
    rows = (len(later) + 1, 1)
    return model.forecast(later, np.tile(table.inputs[-1], rows) if table.input_names else None)


def _look_at_long_run(model: Identifier) -> LongRun | str:
    reason = why_no_map(model)
    if reason is not None:
        return reason
    with precisely():
        return long_run_of(model)
