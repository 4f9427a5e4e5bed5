"""How well a fitted equation predicts the held-out end, in numbers and in words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..identify._errors import Errors
from .fit_baselines import SEASON, STILL

# A held-out end with less of the deviation of the whole series hardly moves.
QUIET = 0.25
# A smaller R² is no better than that of the mean.
EXPLAINED = 0.005
# Errors that differ by less are equally good.
EQUAL = 1.05
_ADVICE = (
    "Do not trust the forecast; try other delays (--hold, --lag, --select), {season}another "
    "--degree or --field, or measure for longer."
)


class Score(NamedTuple):
    """The prediction of a column over the held-out end; NaN if it does not vary there.

    - `r2`: the share of its variance that is explained.
    - `nrmse`: the root mean square error, in its standard deviations.
    - `standing_still`: the same error of predicting the value at the start.
    - `movement`: its standard deviation, as a share of that of the whole column.
    - `spread`: the standard deviation of the error between the starts of predictions.
    - `starts`: their number.
    - `baselines`: the error of each other simple forecast, by its name.
    """

    name: str
    r2: float
    nrmse: float
    standing_still: float
    movement: float
    spread: float = np.nan
    starts: int = 1
    baselines: Mapping[str, float] = {}

    @property
    def rivals(self) -> dict[str, float]:
        """The error of each simple forecast by its name."""
        return {STILL: self.standing_still, **self.baselines}

    @property
    def verdict(self) -> str:
        """The numbers in words."""
        if not np.isfinite(self.nrmse):
            return f"{self.name} does not vary over the held-out end, so it has no score."
        share = f"{100 * self.r2:.0f} %" if self.r2 < 0.99 else "more than 99 %"
        explained = f"explain {share} of the variance of {self.name}"
        if self.r2 < EXPLAINED:
            explained = f"of {self.name} are no better than its mean"
        errors = [f"{_compare(self.nrmse, e)} the error of {n}" for n, e in self.rivals.items()]
        sentence = f"Predictions {explained}, with {_enumerate(errors)}."
        if self.movement < QUIET:
            sentence += (
                f" The held-out end hardly moves (its deviation is {100 * self.movement:.2g} % of "
                "the whole series'), so R² says little: compare the errors."
            )
        return sentence

    @property
    def comparison(self) -> str:
        """Which simple forecasts it beats, and which it does not."""
        if not np.isfinite(self.nrmse):
            return f"{self.name} has no score."
        groups: dict[str, list[str]] = {"worse than": [], "as good as": [], "better than": []}
        for name, error in self.rivals.items():
            worse, better = self.nrmse > EQUAL * error, EQUAL * self.nrmse < error
            word = "worse than" if worse else "better than" if better else "as good as"
            groups[word].append(f"{name} ({error:.3g})")
        words = [f"{word} {_enumerate(names)}" for word, names in groups.items() if names]
        return f"{self.name}: held-out error {self.nrmse:.3g}, {', '.join(words)}."


def _enumerate(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _compare(error: float, other: float) -> str:
    ratio = error / other if other > 0 else np.inf
    if ratio > EQUAL:
        return f"{ratio:.2g} times"
    if 0 < ratio < 0.15:
        return f"1/{1 / ratio:,.0f} of"
    return f"{100 * ratio:.0f} % of" if 0 < ratio < 0.95 else "about"


def score_predictions(
    names: Sequence[str],
    errors: Errors,
    baselines: Mapping[str, Sequence[Float[np.ndarray, "origins steps"]]],
    variance: Float[np.ndarray, " states"],
) -> list[Score]:
    """Compares predictions from held-out starts with the measurements.

    `baselines` are other predictions from these starts, and `variance` is that of whole columns.
    """
    counted = find_counted(errors)
    scores = []
    for j, name in enumerate(names):
        measured = errors.measured[..., j]
        used = counted & np.isfinite(measured)
        whole = float(np.nan_to_num(np.var(_take_once(errors, j, used)))) if used.any() else 0.0
        measure = lambda predicted, whole=whole, measured=measured, used=used: _measure(
            predicted, measured, used, whole
        )
        error, spread = measure(errors.predicted[..., j])
        others = {name: measure(predicted[j])[0] for name, predicted in baselines.items()}
        scores.append(
            Score(
                name,
                1 - error**2,
                error,
                others.pop(STILL),
                float(np.sqrt(whole / variance[j])),
                spread,
                int(used.any(axis=1).sum()),
                others,
            )
        )
    return scores


def find_counted(errors: Errors) -> Bool[np.ndarray, "origins steps"]:
    """The held-out samples that are predicted from the last sample to learn from or later."""
    first = errors.held_out[:, :1]
    return errors.held_out & first if first.any() else errors.held_out


def _take_once(errors: Errors, j: int, used: Bool[np.ndarray, "origins steps"]) -> np.ndarray:
    """The measurements among `used`, each of them once."""
    steps = np.arange(1, used.shape[1] + 1)
    sample = errors.origins[:, 1:] + steps
    trajectory = np.broadcast_to(errors.origins[:, :1], used.shape)
    values = np.stack([trajectory[used], sample[used]], axis=1)
    _, places = np.unique(values, axis=0, return_index=True)
    return errors.measured[..., j][used][places]


def _measure(
    predicted: np.ndarray, measured: np.ndarray, used: np.ndarray, variance: float
) -> tuple[float, float]:
    """The root mean square error in standard deviations, and its deviation between origins."""
    if variance <= 0:
        return np.nan, np.nan
    # Beyond this a prediction has diverged, and squares would overflow.
    square = np.minimum(np.abs(np.nan_to_num(predicted - measured, nan=np.inf)), 1e100) ** 2
    mean = float(np.mean(square[used])) / variance
    each = [np.sqrt(np.mean(s[u]) / variance) for s, u in zip(square, used, strict=True) if u.any()]
    return float(np.sqrt(mean)), float(np.std(each)) if len(each) > 1 else np.nan


def explain_failure(scores: Sequence[Score]) -> str | None:
    """A sentence if no column is predicted better than by its mean, or None.

    If the held-out end of a column hardly moves, its mean is hard to beat, and says little.
    """
    judged = [s for s in scores if np.isfinite(s.r2)]
    failed = [s for s in judged if s.r2 < EXPLAINED and s.movement >= QUIET]
    if not judged or len(failed) < len(judged):
        return None
    names = _enumerate([s.name for s in judged])
    return f"The equation explains nothing of {names}: the mean predicts the held-out end as well."


def find_doubt(scores: Sequence[Score], season: str | None = None) -> str | None:
    """Why the forecast is not to be trusted, or None. `season` is the value of --season to try."""
    reasons = []
    unknown = [s.name for s in scores if not np.isfinite(s.standing_still)]
    judged = [s for s in scores if np.isfinite(s.standing_still)]
    lazy = [s.name for s in judged if not s.nrmse < s.standing_still]
    wild = [s.name for s in judged if not s.r2 >= 0 and s.movement >= QUIET and s.name not in lazy]
    if unknown:
        reasons.append(f"Not judged, constant over the held-out end: {', '.join(unknown)}.")
    if lazy:
        reasons.append(f"No better than standing still on the held-out end: {', '.join(lazy)}.")
    if wild:
        reasons.append(f"Off by more than the held-out end varies: {', '.join(wild)}.")
    seasonal = False
    for s in judged:
        for name, error in s.baselines.items():
            if s.nrmse > EQUAL * error:
                reasons.append(f"{s.name}: worse than {name} ({s.nrmse:.3g} against {error:.3g}).")
                seasonal = seasonal or name.startswith(SEASON)
    hint = f"--season {season}, " if season and (seasonal or reasons) else ""
    return " ".join([*reasons, _ADVICE.format(season=hint)]) if reasons else None
