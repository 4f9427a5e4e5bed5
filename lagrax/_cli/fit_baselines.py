"""Simple forecasts that a fitted equation should beat: standing still, last season, and AR(p)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..identify._errors import Errors
from .fit_seasons import Season

STILL, SEASON = "standing still", "last season"
# Longest autoregression, and samples for each of its lags at least.
MOST_LAGS = 40
SAMPLES_A_LAG = 5
MOST_ROWS = 20_000
Values = Float[np.ndarray, "samples states"]


class FilledSeries(NamedTuple):
    """One measured series with its missing values filled, up to `until` for learning."""

    filled: Values
    inputs: Float[np.ndarray, "samples inputs"]
    until: int


def predict_baselines(
    series: Sequence[FilledSeries], errors: Errors, season: Season | None, regular: bool
) -> dict[str, list[Float[np.ndarray, "origins steps"]]]:
    """What each baseline predicts where the equation did, for each state.

    An autoregression needs `regular` samples.
    """
    states, steps = errors.measured.shape[2], errors.measured.shape[1]
    still = [
        np.stack([series[i].filled[s] for i, s in errors.origins])[:, j] for j in range(states)
    ]
    predicted = {STILL: [np.repeat(x[:, None], steps, axis=1) for x in still]}
    if season is not None:
        predicted[f"{SEASON} ({season.words})"] = [
            _repeat_season(series, errors, season.samples, j) for j in range(states)
        ]
    if regular:
        models = [_fit_autoregression(series, j, season) for j in range(states)]
        orders = sorted({len(m.lags) for m in models if m is not None})
        name = f"AR({', '.join(map(str, orders))})"
        if orders and None not in models:
            predicted[name] = [
                _run_autoregression(series, errors, model, j)
                for j, model in enumerate(models)
                if model is not None
            ]
    return predicted


def _repeat_season(
    series: Sequence[FilledSeries], errors: Errors, season: int, j: int
) -> Float[np.ndarray, "origins steps"]:
    """The value of the last season; that at the origin where there is none yet."""
    rows = []
    for i, s in errors.origins:
        ahead = np.arange(1, errors.measured.shape[1] + 1)
        place = s + ahead - season * -(-ahead // season)
        rows.append(series[i].filled[np.where(place >= 0, place, s), j])
    return np.array(rows)


# --- autoregression -------------------------------------------------------------------------------


class Autoregression(NamedTuple):
    """x(k + 1) = constant + lags · (x(k), x(k − 1), ...) + inputs · u(k)."""

    constant: float
    lags: Float[np.ndarray, " lags"]
    inputs: Float[np.ndarray, " inputs"]


def _fit_autoregression(
    series: Sequence[FilledSeries], j: int, season: Season | None
) -> Autoregression | None:
    """Least squares on the part to learn from, with the order of the least Schwarz criterion.

    None if the series are too short.
    """
    samples = sum(s.until for s in series)
    wanted = max(12, season.samples + 1 if season is not None and season.samples < 60 else 0)
    longest = max((s.until for s in series), default=0)
    most = min(wanted, max(MOST_LAGS, wanted), samples // SAMPLES_A_LAG, longest // 2)
    if most < 1:
        return None
    rows = [_list_lags(s, j, most) for s in series if s.until > most]
    if not rows:
        return None
    table = np.concatenate(rows)[-MOST_ROWS:]
    size = np.linalg.norm(table, axis=0)
    size[size == 0] = 1
    # With orthogonal columns, every order has its coefficients and its error in the same triangle.
    triangle = np.asarray(np.linalg.qr(table / size, mode="r"))
    first, best, least = 1 + series[0].inputs.shape[1], None, np.inf
    for order in range(1, most + 1):
        used = first + order
        square = float(np.sum(triangle[used:, -1] ** 2)) / len(table)
        criterion = len(table) * np.log(square + 1e-30) + used * np.log(len(table))
        if criterion < least:
            left, right = triangle[:used, :used], triangle[:used, -1]
            found = np.linalg.lstsq(left, right, rcond=1e-12)[0] * size[-1] / size[:used]
            least = criterion
            best = Autoregression(float(found[0]), found[first:], found[1:first])
    return best


def _list_lags(series: FilledSeries, j: int, most: int) -> Float[np.ndarray, "rows columns"]:
    """A constant, the inputs and the last `most` values, and the value after them."""
    x = series.filled[: series.until, j]
    rows = len(x) - most
    past = [x[most - 1 - lag : most - 1 - lag + rows] for lag in range(most)]
    us = series.inputs[most - 1 : most - 1 + rows]
    return np.column_stack([np.ones(rows), us, *past, x[most:]])


def _run_autoregression(
    series: Sequence[FilledSeries], errors: Errors, model: Autoregression, j: int
) -> Float[np.ndarray, "origins steps"]:
    order, steps = len(model.lags), errors.measured.shape[1]
    past = []
    for i, s in errors.origins:
        x = series[i].filled[: s + 1, j]
        past.append(np.pad(x[-order:], (max(order - len(x), 0), 0), mode="edge")[::-1])
    window, rows = np.array(past), []
    for step in range(steps):
        us = np.stack(
            [series[i].inputs[min(s + step, len(series[i].inputs) - 1)] for i, s in errors.origins]
        )
        # What grows without bound is as wrong as can be, and no reason for a warning.
        value = np.clip(model.constant + window @ model.lags + us @ model.inputs, -1e100, 1e100)
        window = np.column_stack([value, window[:, :-1]])
        rows.append(value)
    return np.stack(rows, axis=1)
