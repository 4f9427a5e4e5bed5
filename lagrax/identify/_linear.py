"""Linear equations whose past is held at every sample.

Between two samples such an equation has a constant slope, so at the samples its solution is an
autoregression, z_(k+1) = a₀ z_k + a₁ z_(k−1) + ... + b·u_k + c. Its coefficients follow from least
squares over one step, as in time-series analysis. This is the right criterion for noise that drives
the state, rather than that of a sensor.

An equation may also be one of changes (a random walk with drift), of changes over a season, and of
logarithms. Standing still and last season are among these. The kind is chosen by predictions as far
ahead as the user's from several origins, with coefficients that were fitted before each of them.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from .._solve.delays import Hold
from ._checks import IdentifyError
from ._dataset import Dataset
from ._fields import Equation, HeldLinear
from ._fitted import FittedModel, prepare_setup
from ._options import DEFAULTS, Options
from ._series import Trajectory
from ._simulation import stack_windows, take_member
from ._windows import Window

# The longest memory: a season and one sample, if a season is not longer than that.
MOST_LAGS = 12
MOST_SEASON = 60
# Samples for each lag at least.
SAMPLES_A_LAG = 5
# Seasons that changes over a season are learned from, at least.
LEAST_SEASONS = 4
# Shares of a series after which predictions start, each time with coefficients from before.
CUTS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST_STARTS = 60
LEAST_SAMPLES = 16
# Samples in which a spread is measured if there is no season, and the number of these groups.
GROUP = 4
LEAST_GROUPS = 8
# The spread of a group grows with a power of its level: 0 for additive and 1 for multiplicative
# changes. Above this power, logarithms are nearer to additive changes.
POWER = 0.5
# An input that changes over a season by less than this share of its deviation repeats with it.
REPEATS = 0.25
# Errors below this share of the deviation come from rounding.
RESOLVED = 1e-6
# Gaps may differ by this share.
UNEVEN = 0.01
LARGEST = 1e6
# Of the solver from sample to sample, for an exponential function.
STEPS = 4

Values = Float[np.ndarray, " samples"]


class StateSeries(NamedTuple):
    """One state of one trajectory, with the samples at which it was measured."""

    values: Values
    known: Bool[np.ndarray, " samples"]
    inputs: Float[np.ndarray, "samples inputs"]

    def until(self, end: int) -> "StateSeries":
        return StateSeries(self.values[:end], self.known[:end], self.inputs[:end])


class Kind(NamedTuple):
    """An equation of values, or of changes over `difference` samples if this is not 0; of their
    logarithms or not."""

    difference: int
    logarithmic: bool

    def transform(self, values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(values, np.finfo(float).tiny)) if self.logarithmic else values

    def transform_back(self, values: np.ndarray) -> np.ndarray:
        return np.exp(np.clip(values, -300.0, 300.0)) if self.logarithmic else values


class Recursion(NamedTuple):
    """z(k + 1) = constant + lags · (z(k), z(k − 1), ...) + inputs · u(k)."""

    kind: Kind
    constant: float
    lags: Float[np.ndarray, " lags"]
    inputs: Float[np.ndarray, " inputs"]


def fit_linear(
    dataset: Dataset, options: Options, until: Sequence[int], horizon: int
) -> FittedModel:
    """The model of the first samples of each trajectory, `until` of them."""
    field = learn_linear(dataset, until, options.season, horizon)
    return restore_linear(
        dataset, options, jax.tree.map(lambda x: x[None], Equation(field, jnp.zeros(0)))
    )


def restore_linear(dataset: Dataset, options: Options, members: PyTree) -> FittedModel:
    """The model with these members, an ensemble of one."""
    field: HeldLinear = take_member(members, 0).field  # pyright: ignore[reportAssignmentType]
    # Slopes are constant between samples, or those of an exponential function.
    steps = options.steps or (STEPS if any(field.logarithmic) else 1)
    delays = [Hold(field.gap, lag=lag) for lag in field.lag]
    given = {name: getattr(options, name) for name in DEFAULTS}
    held = Options(**(given | {"delays": delays, "steps": steps}))
    spans = [Window(i, 0, len(t.ts) - 1) for i, t in enumerate(dataset.shifted)]
    arrays = stack_windows(dataset.shifted, spans, held.delays)
    setup = prepare_setup(dataset, held, (), [arrays])
    return FittedModel.of_members(dataset, setup, members, True)


def learn_linear(
    dataset: Dataset, until: Sequence[int], season: float | None, horizon: int
) -> HeldLinear:
    """A linear equation for each state.

    - `until`: the samples of each trajectory to learn from.
    - `season`: the length of a season, in the unit of time.
    - `horizon`: the samples ahead for which the kind of equation is chosen.
    """
    gap = find_gap(dataset.shifted)
    samples = 0 if season is None else round(season / gap)
    samples = samples if samples > 1 else 0
    used = [(t, end) for t, end in zip(dataset.shifted, until, strict=True) if end > 1]
    found = []
    for j in range(dataset.states):
        parts = [
            StateSeries(t.filled[:end, j], ~np.isnan(t.ys[:end, j]), t.us[:end]) for t, end in used
        ]
        if max(len(p.values) for p in parts) < LEAST_SAMPLES:
            raise IdentifyError(
                f"A linear equation is learned from {max(len(p.values) for p in parts)} samples; "
                f"expected {LEAST_SAMPLES} at least. Give a longer series, or field='library'."
            )
        found.append(_learn_state(parts, samples, horizon))
    return _join(found, gap)


def find_gap(trajectories: Sequence[Trajectory]) -> float:
    """The time between two samples, which all trajectories have in common."""
    apart = np.concatenate([np.diff(t.ts) for t in trajectories])
    gap = float(np.mean(apart))
    phases = [(t.ts[0] - trajectories[0].ts[0]) / gap for t in trajectories]
    even = np.all(np.abs(apart / gap - 1) < UNEVEN) and all(
        abs(p - round(p)) < UNEVEN for p in phases
    )
    if not even:
        raise IdentifyError(
            f"Samples are {apart.min():.4g} to {apart.max():.4g} apart; expected equal gaps for a "
            "linear equation, whose past is held at each sample. Interpolate the series, or use "
            "field='library'."
        )
    return gap


def _join(found: Sequence[Recursion], gap: float) -> HeldLinear:
    """One field of all states, with the lags that any of them needs."""
    needed = {0} | {int(lag) for r in found for lag in np.flatnonzero(r.lags)}
    lags = sorted(needed)
    take = lambda r: [r.lags[lag] if lag < len(r.lags) else 0.0 for lag in lags]
    return HeldLinear(
        jnp.asarray([r.constant for r in found], float),
        jnp.asarray(np.array([take(r) for r in found]).T, float),
        jnp.asarray(np.array([r.inputs for r in found]).T, float),
        gap,
        tuple(lags),
        tuple(r.kind.logarithmic for r in found),
    )


# --- the kind -------------------------------------------------------------------------------------


def _learn_state(parts: Sequence[StateSeries], season: int, horizon: int) -> Recursion:
    """The kind of equation that predicts best, fitted to all samples."""
    logarithmic = grows_with_level([p.values for p in parts], season)
    differences = [0, 1, season] if season else [0, 1]
    kinds = [Kind(difference, logarithmic) for difference in differences]
    errors = [_judge_kind(parts, kind, season, horizon) for kind in kinds]
    best = kinds[int(np.argmin(errors))]
    found = fit_recursion(parts, best, season)
    assert found is not None  # It was fitted to a share of these samples.
    return found


def grows_with_level(values: Sequence[Values], season: int) -> bool:
    """Whether spreads are nearer to proportional to the level than to constant, by Tukey's plot of
    spread against level; an uncertain slope is none."""
    group = season or GROUP
    whole = np.concatenate([v[len(v) % group :] for v in values]).reshape(-1, group)
    if np.min(np.concatenate(values)) <= 0:
        return False
    level, spread = whole.mean(axis=1), whole.std(axis=1, ddof=1)
    moves = spread > 1e-9 * level
    x, y = np.log(level[moves]), np.log(spread[moves])
    if len(x) < LEAST_GROUPS or x.std() < 1e-6:
        return False
    x = x - x.mean()
    slope = (x @ y) / (x @ x)
    error = np.sqrt(np.sum((y - y.mean() - slope * x) ** 2) / (len(x) - 2) / (x @ x))
    return bool(slope - 2 * error > POWER)


def _judge_kind(parts: Sequence[StateSeries], kind: Kind, season: int, horizon: int) -> float:
    """The mean logarithm of the errors after each cut, infinite if some cut leaves too little."""
    scale = max(float(np.concatenate([p.values for p in parts]).std()), 1e-300)
    errors = []
    for share, end in itertools.pairwise(CUTS):
        before = [int(share * len(p.values)) for p in parts]
        later = [int(end * len(p.values)) for p in parts]
        if kind.difference > 1 and max(before) < LEAST_SEASONS * kind.difference:
            return np.inf
        cut = [p.until(b) for p, b in zip(parts, before, strict=True)]
        recursion = fit_recursion(cut, kind, season)
        if recursion is None:
            return np.inf
        squares = [
            _square_errors(recursion, *row, horizon)
            for row in zip(parts, before, later, strict=True)
        ]
        found = np.concatenate(squares)
        if found.size:
            errors.append(np.log(np.sqrt(found.mean()) / scale + RESOLVED))
    return float(np.mean(errors)) if errors else np.inf


def _square_errors(
    recursion: Recursion, part: StateSeries, first: int, last: int, horizon: int
) -> Float[np.ndarray, " predicted"]:
    """Squared errors of predictions from the samples before `first` to `last`."""
    origins = np.arange(max(first - 1, 0), last - 1)
    if not origins.size:
        return np.zeros(0)
    number = min(MOST_STARTS, len(origins))
    origins = origins[np.linspace(0, len(origins) - 1, number).round().astype(int)]
    predicted = predict(recursion, part, origins, horizon)
    place = origins[:, None] + np.arange(1, horizon + 1)
    exists = place < len(part.values)
    place = np.minimum(place, len(part.values) - 1)
    error = np.abs(predicted - part.values[place])[exists & part.known[place]]
    return np.minimum(np.nan_to_num(error, nan=np.inf), LARGEST * np.ptp(part.values)) ** 2


def predict(
    recursion: Recursion, part: StateSeries, origins: Int[np.ndarray, " origins"], steps: int
) -> Float[np.ndarray, "origins steps"]:
    """Predictions from each origin. Values before the first one are equal to it."""
    z = recursion.kind.transform(part.values)
    number = max(len(recursion.lags), 1)
    window = z[np.maximum(origins[:, None] - np.arange(number), 0)]
    lags = np.pad(recursion.lags, (0, number - len(recursion.lags)))
    rows = []
    for step in range(steps):
        us = part.inputs[np.minimum(origins + step, len(part.inputs) - 1)]
        value = recursion.constant + window @ lags + us @ recursion.inputs
        value = np.clip(value, -1e100, 1e100)
        window = np.column_stack([value, window[:, :-1]])
        rows.append(value)
    return recursion.kind.transform_back(np.stack(rows, axis=1))


# --- coefficients ---------------------------------------------------------------------------------


def fit_recursion(parts: Sequence[StateSeries], kind: Kind, season: int) -> Recursion | None:
    """Least squares over one step, with as many lags as Akaike's corrected criterion prefers, since
    predictions are wanted rather than the true order. None if there are too few samples."""
    drivers = _choose_drivers(parts, kind, season)
    tables = _list_rows(parts, kind, drivers, _count_lags(parts, kind, season))
    if tables is None:
        return None
    base, lags, y = tables
    # Changes may drift or not. Values need their level, and seasonal inputs are about a mean.
    bases = [0, 1] if kind.difference and not drivers.any() else [base.shape[1]]
    fits = [_fit_order(base[:, :width], lags, y) for width in bases]
    _, width, found = min(fits, key=lambda fit: fit[0])
    inputs = np.zeros(len(drivers))
    if width > 1:
        inputs[drivers] = found[1:width]
    constant = float(found[0]) if width else 0.0
    return Recursion(kind, constant, _expand(found[width:], kind.difference), inputs)


def _choose_drivers(
    parts: Sequence[StateSeries], kind: Kind, season: int
) -> Bool[np.ndarray, " inputs"]:
    """The inputs of an equation of this kind. Changes are driven by inputs that repeat with the
    season, which changes over a season do not see; other inputs shift the level."""
    width = parts[0].inputs.shape[1]
    if kind.difference != 1:
        return np.full(width, kind.difference == 0)
    long = [p.inputs for p in parts if len(p.inputs) > season]
    if not season or not long:
        return np.zeros(width, bool)
    change = np.concatenate([u[season:] - u[:-season] for u in long])
    size = np.concatenate(long).std(axis=0)
    return (np.sqrt(np.mean(change**2, axis=0)) < REPEATS * size) & (size > 0)


def _count_lags(parts: Sequence[StateSeries], kind: Kind, season: int) -> int:
    lengths = [max(len(p.values) - kind.difference, 0) for p in parts]
    most = MOST_LAGS
    if kind.difference <= 1 and 0 < season < MOST_SEASON:
        most = max(most, season + 1)
    return min(most, sum(lengths) // SAMPLES_A_LAG, max(lengths) // 2)


def _list_rows(
    parts: Sequence[StateSeries], kind: Kind, drivers: Bool[np.ndarray, " inputs"], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """For each step to a measured sample: the constant and the inputs, the last `most` values, and
    the value after them."""
    base, lags, y = [], [], []
    for part in parts:
        z, d = kind.transform(part.values), kind.difference
        w = z[d:] - z[: len(z) - d] if d else z
        to = np.arange(max(most, 1), len(w))
        to = to[part.known[to + d]]
        us = part.inputs[to + d - 1][:, drivers]
        base.append(np.column_stack([np.ones(len(to)), us]))
        lags.append(w[to[:, None] - np.arange(1, most + 1)])
        y.append(w[to])
    rows = np.concatenate(base), np.concatenate(lags), np.concatenate(y)
    return rows if len(rows[2]) > rows[0].shape[1] + 3 else None


def _fit_order(
    base: Float[np.ndarray, "rows base"],
    lags: Float[np.ndarray, "rows lags"],
    y: Float[np.ndarray, " rows"],
) -> tuple[float, int, Float[np.ndarray, " coefficients"]]:
    """The least criterion over all numbers of lags, the width of `base`, and the coefficients."""
    table = np.column_stack([base, lags, y])
    size = np.linalg.norm(table, axis=0)
    size[size == 0] = 1
    # With orthogonal columns, every order has its coefficients and its error in the same triangle.
    triangle = np.asarray(np.linalg.qr(table / size, mode="r"))
    rows, width = base.shape[0], base.shape[1]
    floor = (RESOLVED * float(np.std(y)) / size[-1]) ** 2 + 1e-300
    best, least = width, np.inf
    for used in range(width, table.shape[1]):
        if rows - used - 2 <= 0:
            break
        square = float(np.sum(triangle[used:, -1] ** 2)) / rows
        criterion = rows * np.log(max(square, floor)) + 2 * (used + 1) * rows / (rows - used - 2)
        if criterion < least:
            best, least = used, criterion
    left, right = triangle[:best, :best], triangle[:best, -1]
    found = np.linalg.lstsq(left, right, rcond=1e-10)[0] if best else np.zeros(0)
    return least, width, found * size[-1] / size[:best]


def _expand(lags: Float[np.ndarray, " changes"], difference: int) -> Float[np.ndarray, " lags"]:
    """The lags of values from those of changes, x(k + 1) = x(k + 1 − d) + Σ φ (x(k) − x(k − d))."""
    if not difference:
        return lags
    whole = np.zeros(difference + len(lags))
    whole[difference - 1] = 1.0
    whole[: len(lags)] += lags
    whole[difference:] -= lags
    return whole
