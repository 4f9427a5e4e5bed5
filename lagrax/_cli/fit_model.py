"""Fits an equation to a table of measurements, and forecasts."""

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._solve.delays import Delay, Learn
from ..identify import Forecast, Identifier
from ..identify._checks import has_too_many_digits
from ..identify._fields import HeldLinear
from ..identify._selection import Scan, Selection, select_delays
from ..training._machine import load
from .fit_baselines import FilledSeries, predict_baselines
from .fit_delays import Lookback, make_candidates, make_delays, read_lookback, refine_chosen
from .fit_linear import choose_model, describe_linear_run, is_compared, make_linear
from .fit_options import FitError, FitOptions
from .fit_scores import Score, explain_failure, find_doubt, score_predictions
from .fit_seasons import Season, add_seasons, continue_inputs, find_season, read_season
from .fit_terms import Symbols, Term, choose_all_symbols, list_terms
from .lagged_run import has_lags_alone
from .long_run import LongRun, long_run_of, precisely, why_no_map
from .table import Measurements, read_inputs
from .units import MONTHS, Calendar, Duration, UnitError

States = Float[np.ndarray, "samples states"]
MOST_RANGES = 4
# A state that is measured seldom repeats its value; a setting does so most of the time.
MOST_REPEATED = 0.5
MOST_SAMPLES = 1_000_000


class PredictedSeries(NamedTuple):
    """One series of a table with its predictions.

    - `predicted`: NaN up to the first sample whose past was measured.
    - `held_out`: the first sample that was not learned from, or their number.
    """

    table: Measurements
    predicted: States
    held_out: int


@dataclasses.dataclass(frozen=True)
class Fit:
    """The results of a fit.

    - `parts`: the series, of which the last one is forecast and shown.
    - `long_run`: a sentence if there is no map to analyse.
    - `season`: the season that was found, or None.
    - `notes`: sentences about the fit that are worth knowing.
    """

    data: Path
    options: FitOptions
    parts: list[PredictedSeries]
    model: Identifier
    selection: Selection | None
    scores: list[Score]
    forecast: Forecast | None
    long_run: LongRun | str
    season: Season | None
    notes: list[str]
    seconds: dict[str, float]
    precision: str = "float32"

    @property
    def table(self) -> Measurements:
        return self.parts[-1].table

    @property
    def predicted(self) -> States:
        return self.parts[-1].predicted

    @property
    def held_out(self) -> int:
        return self.parts[-1].held_out

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
        season = self.season.option if self.season and not self.options.season else None
        doubt = find_doubt(self.scores, season)
        hint = suggest_inputs(self.table) if doubt else None
        return f"{doubt} {hint}" if hint else doubt

    @property
    def failure(self) -> str | None:
        """A sentence if the equation explains nothing of any column, or None."""
        return explain_failure(self.scores)

    @property
    def unsure(self) -> list[str]:
        """A sentence for each period that the series does not determine."""
        chosen = self.selection.best if self.selection else None
        if chosen is not None and chosen.kept and len(chosen.scans) == 1:
            tau = float(np.asarray(chosen.kept[0].tau))
            return _compare_periods([tau], chosen.scans, self.table)
        return _compare_periods(self.model.periods_, self.model.scans_, self.table)


def suggest_inputs(table: Measurements) -> str | None:
    """A sentence on columns that look as if they drive the others, if no inputs are named."""
    if len(table.names) < 2 or len(table.input_names) > table.season_inputs:
        return None
    repeats = lambda y: float(np.mean(np.diff(y[np.isfinite(y)]) == 0))
    columns = zip(table.names, table.ys.T, strict=True)
    stepping = [name for name, y in columns if repeats(y) > MOST_REPEATED]
    if not stepping or len(stepping) == len(table.names):
        return None
    options = " ".join(f"--input {name}" for name in stepping)
    return f"Columns that change in steps may drive the others: add {options} if they do."


def _compare_periods(
    periods: Sequence[float], scans: Sequence[Scan], table: Measurements
) -> list[str]:
    sentences = []
    # A model that was loaded has periods, and no scans.
    for period, scan in zip(periods, scans, strict=False):
        good, (low, high) = scan.periods[scan.good], scan.periods[[0, -1]]
        if not 1.02 * low < period < high / 1.02:
            sentences.append(
                f"The period {table.with_unit(float(f'{period:.4g}'))} is at the end of those that "
                f"were tried, {low:.4g} to {high:.4g}: start from another one (--hold, --lag)."
            )
            continue
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


def fit_equation(
    data: Path,
    options: FitOptions,
    tables: Sequence[Measurements],
    keep: Callable[[Identifier], None] = lambda _: None,
) -> Fit:
    """Fits one equation to all series as the options ask, with progress on stderr.

    `keep` gets the fitted model before it is used, so that it is not lost if the rest fails.
    """
    with jax.enable_x64(jnp.zeros(()).dtype == jnp.float64 or needs_float64(tables)):
        return _fit_equation(data, options, tables, keep)


def needs_float64(tables: Sequence[Measurements]) -> bool:
    """Whether times or values have more digits than float32."""
    return any(has_too_many_digits(t.ts - t.ts[0], t.ys) for t in tables)


def _fit_equation(
    data: Path,
    options: FitOptions,
    tables: Sequence[Measurements],
    keep: Callable[[Identifier], None],
) -> Fit:
    stamps = [time.monotonic()]
    later, future = _read_future(options, tables[-1])
    tables = [add_seasons(table, options.season or ()) for table in tables]
    table = max(tables, key=lambda t: t.span)
    lookback = read_lookback(options, table)
    _say(f"{data.name}: {describe_table(table, len(tables))}")
    notes: list[str] = []
    with _noting(notes):
        selection = _select(options, lookback, tables) if options.select else None
        stamps.append(time.monotonic())
        delays = make_delays(lookback, table)
        if selection is not None:
            delays = refine_chosen(selection, options.learn_tau)
        model = _train(options, tables, delays, len(later), notes)
        stamps.append(time.monotonic())
        keep(model)
        _say_equations(options, table, model)
        _say("Predicting the series")
        parts = _predict(tables, model)
        until = min(n or len(t.ts) for t, n in zip(tables, model.held_out_from_, strict=True))
        season = find_season(table, until)
        if options.season:
            season = read_season(table, options.season[0])
        _say("Measuring errors from held-out starts")
        scores = _score(tables, model, season, len(later))
        forecast = _forecast(tables[-1], model, later, future) if len(later) else None
        long_run = _look_at_long_run(model, scores, table)
    stamps.append(time.monotonic())
    names = ("choosing the delays", "fitting", "forecast and long run")
    seconds: dict[str, float] = dict(zip(names, np.diff(stamps).round(2).tolist(), strict=True))
    if selection is None:
        del seconds["choosing the delays"]
    return Fit(
        data,
        options,
        parts,
        model,
        selection,
        scores,
        forecast,
        long_run,
        season,
        notes,
        seconds,
        str(jnp.zeros(()).dtype),
    )


@contextlib.contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Collects warnings, which say what a user should know, and shows them as sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    notes.extend(dict.fromkeys(str(warning.message) for warning in caught))
    for note in notes:
        _say(note)


def _read_future(
    options: FitOptions, table: Measurements
) -> tuple[Float[np.ndarray, " samples"], Float[np.ndarray, "samples inputs"] | None]:
    """The times of the forecast, and the inputs then if they are known."""
    if options.future is None:
        return _choose_forecast_times(options.forecast, table), None
    if not table.input_names:
        raise FitError("--future holds inputs, and there are none: name them with --input.")
    return read_inputs(options.future, table.input_names, table, options.roles)


def _choose_forecast_times(length: Duration, table: Measurements) -> Float[np.ndarray, " samples"]:
    try:
        samples = length.value if length.unit is None else length.count(table.unit) / table.gap
        if length.unit is None and samples != int(samples):
            raise UnitError("expected a whole number of samples, or a duration such as 2h.")
        if 0 < samples < 0.999:
            raise UnitError(
                f"shorter than the time between two samples, {table.in_words(table.gap)}; expected "
                "at least that."
            )
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


def describe_table(table: Measurements, number: int = 1) -> str:
    """The roles of the columns and the missing values, in a line."""
    unit = f", in {table.calendar or table.unit}" if table.unit else ""
    parts = [f"{number} series"] if number > 1 else []
    quote = lambda names: ", ".join(f"'{name}'" for name in names)
    parts += [f"times {quote([table.time_name])}{unit}", f"states {quote(table.names)}"]
    parts += [f"inputs {quote(table.input_names)}"] if table.input_names else []
    parts += [f"left out (no numbers) {quote(table.left_out)}"] if table.left_out else []
    if table.missing:
        counts = ", ".join(f"{n} of {quote([name])}" for name, n in table.missing.items())
        parts.append(f"missing {counts}")
    return f"{'; '.join(parts)}."


def describe_future(result: Fit) -> str:
    """What the forecast takes the inputs to be; nothing without inputs."""
    table = result.table
    names = table.input_names[: len(table.input_names) - table.season_inputs]
    if not names:
        return ""
    if result.options.future is not None:
        return f"Inputs are those of {result.options.future.name}."
    return "Inputs keep their last value."


def describe_held_out(result: Fit) -> str:
    """The part of the series that was not learned from."""
    cut = [part for part in result.parts if 0 < part.held_out < len(part.table.ts)]
    whole = [part.table.group for part in result.parts if part.held_out == 0]
    if whole and not cut:
        groups = ", ".join(whole) if len(whole) <= 5 else "the last ones"
        return f"{len(whole)} of {len(result.parts)} series ({groups})"
    if len(result.parts) > 1:
        return f"the ends of {len(cut)} of {len(result.parts)} series"
    return f"the end, from {result.table.format_time(result.table.ts[result.held_out])} on"


def describe_optimism(result: Fit) -> str:
    """What the fit has seen of the held-out part; nothing if it has seen none of it."""
    if not result.model.losses_:
        return ""
    return " (training stopped by the error there, so scores flatter a little)"


def _say_equations(options: FitOptions, table: Measurements, model: Identifier) -> None:
    if options.field != "mlp":
        symbols = choose_all_symbols(table.names, table.input_names)
        for equation in model.equations(symbols.states, symbols.inputs):
            _say(f"Learned {equation}")


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


def _arrange(tables: Sequence[Measurements]) -> tuple[Any, Any, Any]:
    """Times, states and inputs as `Identifier` takes them, in lists if there are several series."""
    ts = [table.ts for table in tables]
    states = [_frame(table.names, table.ys) for table in tables]
    inputs = [_frame(table.input_names, table.inputs) for table in tables]
    if len(tables) == 1:
        return ts[0], states[0], inputs[0]
    return ts, states, inputs if tables[0].input_names else None


def _select(options: FitOptions, lookback: Lookback, tables: Sequence[Measurements]) -> Selection:
    candidates = make_candidates(lookback, max(tables, key=lambda t: t.span))
    _say(f"Comparing {len(candidates)} candidates for the delays")
    ts, states, inputs = _arrange(tables)
    with _as_fit_error():
        return select_delays(ts, states, candidates, inputs, degree=options.degree)


def _advise(table: Measurements) -> None:
    """Powers of numbers that vary by little are nearly proportional, and cannot be told apart."""
    for name, y in zip(table.names, table.ys.T, strict=True):
        if np.nanmax(np.abs(y)) > 1000 * np.nanmax(np.abs(y - np.nanmean(y))):
            _say(
                f"The column {name!r} is {np.nanmean(y):g} and varies by little: subtract its mean "
                "for a library to find the right terms."
            )


def _train(
    options: FitOptions,
    tables: Sequence[Measurements],
    delays: Sequence[Delay],
    later: int,
    notes: list[str],
) -> Identifier:
    if options.field == "linear" and (delays or options.select):
        raise FitError(
            "--field linear holds as many samples as predict best: leave --hold, --lag and "
            "--select out, or use --field library."
        )
    fit_asked = lambda: _fit_asked(options, tables, delays)
    fit_linear = lambda: _fit_to(tables, make_linear(options, tables, later))
    if options.field == "linear":
        _say("Fitting the equation")
        return fit_linear()
    if not is_compared(options, delays, tables):
        return fit_asked()
    model, sentence = choose_model(fit_asked, fit_linear, later)
    notes.extend([sentence] if sentence else [])
    return model


def _fit_asked(
    options: FitOptions, tables: Sequence[Measurements], delays: Sequence[Delay]
) -> Identifier:
    model = Identifier(delays, **options.identifier_arguments())
    if options.learn_tau and any(isinstance(d.tau, Learn) for d in delays):
        _say("Looking for the period, then fitting the equation")
    elif options.field == "library":
        _say("Fitting the equation")
    if options.field == "library":
        _advise(tables[-1])
    return _fit_to(tables, model)


def _fit_to(tables: Sequence[Measurements], model: Identifier) -> Identifier:
    ts, states, inputs = _arrange(tables)
    with _as_fit_error():
        return model.fit(ts, states, inputs)


def _predict(tables: Sequence[Measurements], model: Identifier) -> list[PredictedSeries]:
    """The predictions of each series, NaN up to the sample at which they start."""
    parts = []
    rows = zip(tables, model.predicted_from_, model.held_out_from_, strict=True)
    for table, first, held_out in rows:
        inputs = table.inputs if table.input_names else None
        predicted = np.array(model._predict_as_judged(table.ts, table.ys, inputs), float)
        predicted[:first] = np.nan
        parts.append(PredictedSeries(table, predicted, held_out))
    return parts


def _score(
    tables: Sequence[Measurements], model: Identifier, season: Season | None, later: int
) -> list[Score]:
    """Scores predictions from many held-out starts, and those of simple forecasts."""
    errors = model._measure_errors(max(model.window_, later)).until(model.window_)
    pairs = zip(model.series_, model.held_out_from_, strict=True)
    own = len(tables[0].input_names) - tables[0].season_inputs
    series = [FilledSeries(t.filled, t.us[:, :own], until) for t, until in pairs]
    regular = all(t.is_regular for t in tables)
    baselines = predict_baselines(series, errors, season, regular)
    variance = np.concatenate([t.filled for t in model.series_]).var(axis=0)
    return score_predictions(tables[0].names, errors, baselines, variance)


def _forecast(
    table: Measurements, model: Identifier, later: np.ndarray, future: np.ndarray | None
) -> Forecast:
    """Continues the series, with the inputs in `future` or at their last value."""
    _say("Forecasting")
    inputs = continue_inputs(table, later, future) if table.input_names else None
    return model.forecast(later, inputs)


def _look_at_long_run(
    model: Identifier, scores: Sequence[Score], table: Measurements
) -> LongRun | str:
    if explain_failure(scores) is not None:
        return "The equation explains nothing, so its long run is not that of the series."
    if isinstance(model.equation_, HeldLinear):
        return describe_linear_run(model, table.with_unit)
    if has_lags_alone(model):
        return (
            "`lagrax analyse` with the folder of this fit finds its equilibria, whether they are "
            "stable, and its cycle."
        )
    reason = why_no_map(model)
    if reason is not None:
        return reason
    _say("Looking at the long run")
    with precisely():
        return long_run_of(model)
