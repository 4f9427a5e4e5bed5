"""Finds seasons in a table, and gives them to an equation as inputs."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .fit_options import FitError
from .table import Measurements
from .units import MONTHS, SECONDS, SHORT, Duration, UnitError

# A season correlates changes with those one season before at least so much.
LEAST_CORRELATION = 0.3
# Longer ones are not looked for.
MOST_SAMPLES = 20_000
# Pairs of cosine and sine: the season itself, its half, its third.
MOST_PAIRS = 3
# An alternating sine that is smaller is left out.
LEAST_SINE = 0.1
YEAR = 365.2425 * 86400
_CALENDAR = ("years", "weeks", "days")


class Season(NamedTuple):
    """A season as a number of samples, in words, and as the value of --season."""

    samples: int
    words: str
    option: str


def find_season(table: Measurements, until: int) -> Season | None:
    """The season of the first column up to sample `until`: the calendar's own if dates have it, or
    else the strongest period between samples."""
    known = np.isfinite(table.ys[:, 0])
    x = np.interp(table.ts, table.ts[known], table.ys[known, 0])[:until]
    change = np.diff(x)
    if until < 8 or np.all(change == change[0]) or not table.is_regular:
        return None
    change = change - change.mean()
    power = np.abs(np.fft.rfft(change, 2 * len(change))) ** 2
    products = np.fft.irfft(power)[: min(until // 2, MOST_SAMPLES)]
    strength = products / np.arange(len(change), 0, -1)[: len(products)] / np.mean(change**2)
    strength[:2] = 0.0
    for unit in _CALENDAR:
        samples = round(count_season(Duration(1, unit), table.unit) / table.gap)
        near = strength[max(samples - 1, 2) : samples + 2]
        if samples >= 3 and len(near) and near.max() > LEAST_CORRELATION:
            return Season(samples, f"1 {unit.removesuffix('s')}", f"1{SHORT[unit]}")
    inner = np.arange(3, len(strength) - 1)
    is_peak = strength[inner] >= np.maximum(strength[inner - 1], strength[inner + 1])
    peaks = inner[is_peak & (strength[inner] > LEAST_CORRELATION)]
    if not peaks.size:
        return None
    # Multiples of a season are as strong as the season itself.
    lag = int(peaks[strength[peaks] > 0.7 * strength[peaks].max()][0])
    length = float(f"{lag * table.gap:.4g}")
    unit = SHORT[table.unit] if table.unit else ""
    return Season(lag, table.with_unit(length), f"{length:g}{unit}")


def read_season(table: Measurements, season: Duration) -> Season:
    """A season that is given."""
    length = count_season(season, table.unit)
    return Season(max(1, round(length / table.gap)), table.in_words(length), str(season))


def count_season(season: Duration, unit: str | None) -> float:
    """The length of a season in the unit of the times, 0 if that is not known. A year has 365.2425
    days."""
    try:
        return season.count(unit)
    except UnitError:
        if season.unit in MONTHS and unit in SECONDS:
            return season.value * MONTHS[season.unit] / 12 * YEAR / SECONDS[unit]
        if season.unit in SECONDS and unit in MONTHS:
            return season.value * SECONDS[season.unit] / YEAR * 12 / MONTHS[unit]
        return 0.0


def add_seasons(table: Measurements, seasons: Sequence[Duration]) -> Measurements:
    """The table with the cosines and sines of its seasons as inputs.

    They act from each sample to the next, so they have the value in the middle between them.
    """
    found: list[tuple[float, float]] = []
    for season in seasons:
        length = count_season(season, table.unit)
        if not 3 * table.gap <= length <= table.span:
            raise FitError(
                f"--season {season} is not between three samples "
                f"({table.in_words(3 * table.gap)}) and the length of the series "
                f"({table.in_words(table.span)}), so it cannot be learned: give another one."
            )
        most = MOST_PAIRS if len(seasons) == 1 else MOST_PAIRS - 1
        found.append((length, min(float(most), _count_pairs(table, length))))
    return repeat_seasons(table, found)


def _count_pairs(table: Measurements, length: float) -> float:
    """The pairs of cosine and sine that samples tell apart.

    With an even number of samples a season, the last pair alternates from sample to sample, and its
    sine is enough.
    """
    pairs = int(length / table.gap - 1) // 2
    alternates = abs(length / table.gap - 2 * (pairs + 1)) < 1e-3
    sine = np.sin(2 * np.pi * (pairs + 1) * _middles(table.ts) / length)
    return pairs + 0.5 if alternates and np.abs(sine).min() > LEAST_SINE else float(pairs)


def repeat_seasons(
    table: Measurements, seasons: Sequence[tuple[float, float]], origin: float = 0.0
) -> Measurements:
    """The table with seasons of given lengths and numbers of cosines as inputs. `origin` is the
    time of its first row on the clock of the table from which the seasons were learned."""
    for number, (length, pairs) in enumerate(seasons):
        suffix = "" if len(seasons) == 1 else f"{number + 1}"
        table = _add_season(table, length, pairs, suffix, origin)
    return table


def _add_season(
    table: Measurements, length: float, pairs: float, suffix: str, origin: float
) -> Measurements:
    waves = _list_waves(_middles(table.ts) + origin, length, pairs)
    names = (f"{name}{'_' * bool(suffix)}{suffix}" for name in waves)
    return dataclasses.replace(
        table,
        input_names=(*table.input_names, *names),
        inputs=np.column_stack([table.inputs, *waves.values()]),
        seasons=(*table.seasons, (length, pairs)),
    )


def _list_waves(
    times: Float[np.ndarray, " samples"], length: float, pairs: float
) -> dict[str, Float[np.ndarray, " samples"]]:
    """The cosines and sines of a season and its fractions by their names. Half a pair is a sine."""
    waves = {}
    for pair in range(1, int(pairs + 0.5) + 1):
        angle = 2 * np.pi * pair * times / length
        if pair <= pairs:
            waves[f"cos{pair}"] = np.cos(angle)
        waves[f"sin{pair}"] = np.sin(angle)
    return waves


def _middles(ts: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " samples"]:
    """The middle between each sample and the next; the last gap is as long as the one before."""
    gaps = np.diff(ts)
    return ts + np.append(gaps, gaps[-1] if len(gaps) else 0.0) / 2


def continue_inputs(
    table: Measurements,
    later: Float[np.ndarray, " later"],
    measured: Float[np.ndarray, "later measured"] | None,
) -> Float[np.ndarray, "later+1 inputs"]:
    """The inputs from the end of the table on: those of the season, and others as `measured` or at
    their last value."""
    number = len(table.input_names) - table.season_inputs
    given = np.tile(table.inputs[-1, :number], (len(later), 1)) if measured is None else measured
    columns = [np.concatenate([table.inputs[-1:, :number], given])]
    middles = _middles(np.append(table.ts[-1], later))
    for length, pairs in table.seasons:
        columns += _list_waves(middles, length, pairs).values()
    return np.column_stack(columns)
