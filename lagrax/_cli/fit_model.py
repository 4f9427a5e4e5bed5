"""What `lagrax fit` finds: from a table of measurements to an equation and a forecast."""

import contextlib
import dataclasses
import datetime
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer
from jaxtyping import Float

from .._solve.arguments import MOST_COUNT
from .._solve.delays import Delay, Hold, Lag, Learn, holds
from ..identify import Forecast, Identifier, IdentifyError
from ..identify._checks import MOST
from ..identify._selection import LEAST_SAMPLES, Scan, Selection, select_delays
from ..identify._windows import last_known
from .long_run import LongRun, long_run_of, precisely, why_no_map
from .table import Table

MOST_MODELS = MOST["ensemble"]
MOST_RANGES = 4
States = Float[np.ndarray, "times states"]


class FitError(ValueError):
    """A fit cannot be done as asked; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The options of `lagrax fit` that one fit depends on."""

    time: Annotated[str | None, typer.Option(help="Column of times. The first one by default.")] = (
        None
    )
    column: Annotated[
        list[str] | None,
        typer.Option(help="Column to learn. Repeat for more; all others by default."),
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Column that drives the system. Repeat for more."),
    ] = None
    hold: Annotated[float | None, typer.Option(help="Period of a held state.")] = None
    lags: Annotated[
        int | None, typer.Option(help="Number of holds. 1 by default.", min=1, max=16)
    ] = None
    lag: Annotated[float | None, typer.Option(help="Look back at the state this long ago.")] = None
    learn_tau: Annotated[
        bool,
        typer.Option("--learn-tau", help="Find the period, from a third to three times the given."),
    ] = False
    select: Annotated[
        bool, typer.Option("--select", help="Compare delays and choose those that are needed.")
    ] = False
    field: Annotated[
        Literal["mlp", "library"],
        typer.Option(help="Right-hand side: a network, or a polynomial that can be read."),
    ] = "mlp"
    degree: Annotated[
        int, typer.Option(help="Highest degree of the library's terms.", min=1, max=6)
    ] = 2
    forecast: Annotated[
        int, typer.Option(help="Number of samples to forecast.", min=0, max=1_000_000)
    ] = 10
    ensemble: Annotated[
        int,
        typer.Option(
            help="Number of models, for the band of the forecast.", min=1, max=MOST_MODELS
        ),
    ] = 5
    iterations: Annotated[
        int, typer.Option(help="Most iterations of the training.", min=1, max=MOST_COUNT)
    ] = 2000
    seed: Annotated[
        int,
        typer.Option(help="Random seed. Results are reproducible.", min=0, max=2**31 - MOST_MODELS),
    ] = 0


class Score(NamedTuple):
    """How well a column is predicted over the held-out end: the share of its variance that is
    explained, the error in standard deviations, and that of standing still instead."""

    name: str
    r2: float
    nrmse: float
    standing_still: float


@dataclasses.dataclass(frozen=True)
class Fit:
    """All that was found. `long_run` is a sentence where there is nothing to analyse."""

    data: Path
    options: FitOptions
    table: Table
    model: Identifier
    selection: Selection | None
    predicted: States
    held_out: int
    scores: list[Score]
    forecast: Forecast | None
    long_run: LongRun | str
    seconds: dict[str, float]

    @property
    def equations(self) -> list[str]:
        return self.model.equations(self.table.names, self.table.input_names)

    @property
    def doubt(self) -> str | None:
        """Why the forecast is not to be trusted, if so."""
        judged = [s for s in self.scores if s.standing_still > 0]
        lazy = [s.name for s in judged if not s.nrmse < s.standing_still]
        # At rest, where nothing but noise varies, noise in the start alone makes the root of two.
        wild = [s.name for s in judged if s.nrmse > 1.5 and s.name not in lazy]
        verdicts = {"No better than standing still on the held-out end": lazy}
        verdicts |= {"Off by more than the held-out end varies": wild}
        said = [f"{verdict}: {', '.join(names)}." for verdict, names in verdicts.items() if names]
        advice = (
            "Do not trust the forecast; try other delays (--hold, --lag, --select), another "
            "--degree or --field, or measure for longer."
        )
        return " ".join([*said, advice]) if said else None

    @property
    def unsure(self) -> list[str]:
        """A sentence for each period from which the series cannot tell others."""
        chosen = self.selection.best if self.selection else None
        if chosen is not None and chosen.kept and len(chosen.scans) == 1:
            tau = float(np.asarray(chosen.kept[0].tau))
            return _unsure([tau], chosen.scans)
        return _unsure(self.model.periods_, self.model.scans_)


def _unsure(periods: Sequence[float], scans: Sequence[Scan]) -> list[str]:
    said = []
    # A model that was loaded has periods, and no scans.
    for period, scan in zip(periods, scans, strict=False):
        good = scan.periods[scan.good]
        if np.all(np.abs(good / period - 1) < 0.01):
            continue
        runs = [dict.fromkeys(f"{end:.3g}" for end in ends) for ends in scan.ranges()]
        others = ", ".join(" to ".join(run) for run in runs)
        if len(runs) > MOST_RANGES:
            others = f"many from {good.min():.3g} to {good.max():.3g}"
        said.append(
            f"The period {period:.4g} is not sure: of those that were tried, {others} explain the "
            "series about as well."
        )
    return said


def find(data: Path, options: FitOptions, table: Table) -> Fit:
    """Does what is asked, with progress on stderr."""
    clock = [time.monotonic()]
    _check(options, table)
    _say(f"{data.name}: {_taken(table)}")
    selection = _selected(options, table) if options.select else None
    clock.append(time.monotonic())
    model = _trained(options, table, _delays(options, table, selection))
    clock.append(time.monotonic())
    _say("Predicting, forecasting, and looking at the long run")
    predicted, first = _predicted(table, model)
    # As `Identifier.fit` holds it out.
    held_out = int(np.floor((1 - model.validation) * last_known(model.series_[-1]))) + 1
    found = Fit(
        data,
        options,
        table,
        model,
        selection,
        predicted,
        held_out,
        _scores(table, predicted, held_out, first, model.window_),
        _forecast(options, table, model),
        _long_run(model),
        {},
    )
    clock.append(time.monotonic())
    names = ("choosing the delays", "fitting", "forecast and long run")
    took = dict(zip(names, np.diff(clock).round(2).tolist(), strict=True))
    return dataclasses.replace(found, seconds={k: v for k, v in took.items() if v > 0.05})


def times(table: Table, ts: np.ndarray) -> np.ndarray:
    """As the file has them: numbers, or dates, without an hour where none is needed."""
    if table.start is None:
        return ts
    # Days as floats are off by nanoseconds, over decades by more.
    digits = 6 if np.max(np.abs(ts), initial=0) < 1e4 else 3
    try:
        dates = [
            table.start + datetime.timedelta(seconds=round(86400 * t, digits)) for t in ts.tolist()
        ]
    except OverflowError:
        raise FitError(
            f"{np.max(ts):g} days after {table.start} there is no date any more: forecast less far."
        ) from None
    midnight = all(d.time() == datetime.time() and d.tzinfo is None for d in dates)
    return np.array([d.date().isoformat() if midnight else d.isoformat() for d in dates])


def _later(table: Table, number: int) -> np.ndarray:
    """The next times after the last one, as far apart as samples are."""
    months = _months_later(table, number)
    if months is not None:
        return months
    gap = gap_of(table)
    ts = table.ts[-1] + gap * np.arange(1, number + 1)
    return np.round(ts, 9 - int(np.floor(np.log10(gap))))  # 15.3, not 15.299999999999999


def _months_later(table: Table, number: int) -> np.ndarray | None:
    """Where samples are months apart, on the same day of each or on its last; months differ."""
    if table.start is None:
        return None
    day = np.timedelta64(1, "D")
    start = np.datetime64(table.start.replace(tzinfo=None), "s")
    dates = start + np.round(table.ts * 86400).astype("m8[s]")
    for shift in (0 * day, day):  # the last day of a month is the one before a first
        months = (dates + shift).astype("M8[M]")
        days = dates + shift - months
        if np.all(days == days[0]) and days[0] < 28 * day:
            step = np.median(np.diff(months.astype(int)))
            later = months[-1] + (step * np.arange(1, number + 1)).astype(int)
            return (later + days[0] - shift - start) / day
    return None


def _taken(table: Table) -> str:
    """What was taken from the file for what."""
    since = f", in days since {times(table, np.zeros(1))[0]}" if table.start else ""
    parts = [f"time {table.time_name}{since}", f"states {', '.join(table.names)}"]
    parts += [f"inputs {', '.join(table.input_names)}"] if table.input_names else []
    parts += [f"left out (no numbers) {', '.join(table.left_out)}"] if table.left_out else []
    return f"{'; '.join(parts)}."


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


# --- delays ---------------------------------------------------------------------------------------


def gap_of(table: Table) -> float:
    """The time between two samples, in the middle of all."""
    return float(np.median(np.diff(table.ts)))


def _check(options: FitOptions, table: Table) -> None:
    times(table, _later(table, options.forecast)[-1:])  # whether there are such dates
    if options.lags is not None and options.hold is None and not options.select:
        raise FitError(f"--lags {options.lags} needs the period of the holds: add --hold TAU.")
    if options.learn_tau and options.hold is None and options.lag is None and not options.select:
        raise FitError("--learn-tau needs a period to start from: add --hold TAU or --lag TAU.")
    gap, span = gap_of(table), float(table.ts[-1] - table.ts[0])
    unit = f" {table.unit}" if table.unit else ""
    for name, tau, many in (("hold", options.hold, options.lags or 1), ("lag", options.lag, 1)):
        if tau is None:
            continue
        if not (np.isfinite(tau) and tau > 0):
            raise FitError(f"--{name} {tau:g}: expected a positive number.")
        if tau < 0.999 * gap:
            raise FitError(
                f"--{name} {tau:g} is shorter than the time between two samples, {gap:g}{unit}, so "
                f"they cannot show it: expected at least that."
            )
        if tau * many > span / 2:
            back = f"--{name} {tau:g}" + (f" with --lags {many}" if many > 1 else "")
            raise FitError(
                f"{back} looks back further than half of the series, which spans {span:g}{unit}: "
                "expected less, or a longer series."
            )


def _delays(options: FitOptions, table: Table, selection: Selection | None) -> list[Delay]:
    if selection is not None:
        return _chosen(selection, learn=options.learn_tau)
    lags = options.lags or 1
    period = lambda tau, many: _to_learn(table, tau, many) if options.learn_tau else tau
    held = [] if options.hold is None else holds(period(options.hold, lags), lags)
    lagged = [] if options.lag is None else [Lag(period(options.lag, 1))]
    return [*held, *lagged]


def _to_learn(table: Table, tau: float, lags: int) -> Learn:
    """From a third to three times `tau`, as far as samples can show it."""
    span = float(table.ts[-1] - table.ts[0])
    low = max(tau / 3, min(LEAST_SAMPLES * gap_of(table), 0.999 * tau))
    high = min(3 * tau, span / (2 * lags))
    return Learn(tau, low, max(high, 1.001 * tau))


@contextlib.contextmanager
def _named(table: Table) -> Iterator[None]:
    """What is refused is told of columns by their names."""
    names = {"ys": table.names, "inputs": table.input_names}
    try:
        yield
    except (IdentifyError, ValueError) as error:
        name = lambda found: f"The column {names[found[2]][int(found[1])]!r}"
        told = re.sub(r"Column (\d+) of (ys|inputs)", name, str(error))
        raise (IdentifyError if isinstance(error, IdentifyError) else FitError)(told) from None


def _selected(options: FitOptions, table: Table) -> Selection:
    candidates = _candidates(options, table)
    _say(f"Comparing {len(candidates)} candidates for the delays")
    with _named(table):
        return select_delays(table.ts, table.ys, candidates, _inputs(table), degree=options.degree)


def _candidates(options: FitOptions, table: Table) -> dict[str, list[Delay]]:
    """Around the periods that are asked for; where there are none, whatever can be found."""
    if options.hold is None and options.lag is None:
        return _any_candidates(options, table)
    found: dict[str, list[Delay]] = {"none": []}
    learned = lambda tau, many: _to_learn(table, tau, many) if options.learn_tau else tau
    factors = () if options.learn_tau else (0.5, 2.0)
    longest = float(table.ts[-1] - table.ts[0]) / 2
    gap = gap_of(table)
    around = lambda tau, least: [f * tau for f in factors if least <= f * tau <= longest]
    if options.hold is not None:
        for many in range(1, (options.lags or 2) + 1):
            name = f"{many} hold{'s' * (many > 1)} of {options.hold:g}"
            found[name] = [*holds(learned(options.hold, many), many)]
        for tau in around(options.hold, LEAST_SAMPLES * gap):
            found[f"1 hold of {tau:g}"] = [Hold(tau)]
    if options.lag is not None:
        for tau in around(options.lag, gap):
            found[f"a lag of {tau:g}"] = [Lag(tau)]
    # What acts after the period of a hold may act after a lag of it.
    for tau in (options.lag, options.hold):
        if tau is not None:
            found[f"a lag of {tau:g}"] = [Lag(learned(tau, 1))]
    return found


def _any_candidates(options: FitOptions, table: Table) -> dict[str, list[Delay]]:
    gap, span = gap_of(table), float(table.ts[-1] - table.ts[0])
    low = LEAST_SAMPLES * gap
    high = max(span / 8, 2 * low)
    period = lambda: Learn(float(np.sqrt(low * high)), low, high)
    many = options.lags or 2
    found: dict[str, list[Delay]] = {"none": [], "1 hold": [*holds(period(), 1)]}
    if many > 1:
        found[f"{many} holds"] = [*holds(period(), many)]
    found["a lag"] = [Lag(period())]
    return found


def _chosen(selection: Selection, learn: bool) -> list[Delay]:
    """The delays of the best candidate, their periods found, or to be refined in training."""
    periods: dict[float, Any] = {}
    for delay in selection.delays:
        tau = float(f"{float(np.asarray(delay.tau)):.9g}")
        periods[tau] = Learn(tau, 0.9 * tau, 1.1 * tau) if learn else tau
    written = [periods[float(f"{float(np.asarray(d.tau)):.9g}")] for d in selection.delays]
    return [
        Lag(tau) if isinstance(d, Lag) else Hold(tau, lag=d.lag)
        for d, tau in zip(selection.delays, written, strict=True)
    ]


# --- the model ------------------------------------------------------------------------------------


def _inputs(table: Table) -> np.ndarray | None:
    return table.inputs if table.input_names else None


def _advise(table: Table) -> None:
    """Powers of numbers that vary by little are nearly proportional, and cannot be told apart."""
    for name, y in zip(table.names, table.ys.T, strict=True):
        if np.nanmax(np.abs(y)) > 1000 * np.nanmax(np.abs(y - np.nanmean(y))):
            _say(
                f"The column {name!r} is {np.nanmean(y):g} and varies by little: subtract its mean "
                "for a library to find the right terms."
            )


def _trained(options: FitOptions, table: Table, delays: Sequence[Delay]) -> Identifier:
    model = Identifier(
        delays,
        options.field,
        degree=options.degree,
        ensemble=options.ensemble,
        iterations=options.iterations,
        seed=options.seed,
    )
    if options.learn_tau and any(isinstance(d.tau, Learn) for d in delays):
        _say("Looking for the period, then fitting the equation")
    elif options.field == "library":
        _say("Fitting the equation")
    if options.field == "library":
        _advise(table)
    with _named(table):
        return model.fit(table.ts, table.ys, _inputs(table))


def _predicted(table: Table, model: Identifier) -> tuple[States, int]:
    """What is predicted of each sample, NaN for the first ones, whose past is not known, and where
    predictions start."""
    predicted = np.array(model.predict(table.ts, table.ys, _inputs(table)))
    copied = np.all(predicted == _filled(table), axis=1)
    first = max(int(np.argmin(copied)) - 1, 0)
    predicted[: first + 1] = np.nan
    return predicted, first


def _scores(
    table: Table, predicted: States, held_out: int, first: int, horizon: int
) -> list[Score]:
    known, seen = table.ys[held_out:], predicted[held_out:]
    # What stood where each prediction started.
    number = np.arange(held_out, len(table.ts)) - first
    still = _filled(table)[first + (number - 1) // horizon * horizon]
    scores = []
    for i, name in enumerate(table.names):
        there = np.isfinite(known[:, i])
        variance = float(np.var(known[there, i])) if there.any() else 0.0
        error, other = (
            float(np.mean((x[there, i] - known[there, i]) ** 2)) / variance
            if variance > 0
            else float("nan")
            for x in (seen, still)
        )
        scores.append(Score(name, 1 - error, float(np.sqrt(error)), float(np.sqrt(other))))
    return scores


def _filled(table: Table) -> States:
    """With straight lines where values are missing."""
    return np.stack(
        [np.interp(table.ts, table.ts[(k := ~np.isnan(y))], y[k]) for y in table.ys.T], axis=1
    )


def _forecast(options: FitOptions, table: Table, model: Identifier) -> Forecast | None:
    if not options.forecast:
        return None
    ts = _later(table, options.forecast)
    inputs = np.tile(table.inputs[-1], (len(ts) + 1, 1)) if table.input_names else None
    return model.forecast(ts, inputs)


def _long_run(model: Identifier) -> LongRun | str:
    reason = why_no_map(model)
    if reason is not None:
        return reason
    with precisely():
        return long_run_of(model)
