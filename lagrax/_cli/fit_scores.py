"""How well a fitted equation predicts the held-out end, in numbers and in words."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

States = Float[np.ndarray, "times states"]
# Where nothing but noise varies, noise in the start alone makes an error of the root of two.
MOST_ERROR = 1.5
# A held-out end with less of the deviation of the whole series hardly moves.
QUIET = 0.25
_ADVICE = (
    "Do not trust the forecast; try other delays (--hold, --lag, --select), another --degree or "
    "--field, or measure for longer."
)


class Score(NamedTuple):
    """The prediction of a column over the held-out end; NaN if it does not vary there.

    - `r2`: the share of its variance that is explained.
    - `nrmse`: the root mean square error, in its standard deviations.
    - `standing_still`: the same error of predicting the value at the start.
    - `movement`: its standard deviation, as a share of that of the whole column.
    """

    name: str
    r2: float
    nrmse: float
    standing_still: float
    movement: float

    @property
    def verdict(self) -> str:
        """The numbers in words."""
        if not np.isfinite(self.nrmse):
            return f"{self.name} does not vary over the held-out end, so it has no score."
        share = f"{100 * self.r2:.0f} %" if self.r2 < 0.99 else "more than 99 %"
        explained = f"explain {share} of the variance of {self.name}"
        if self.r2 < 0.005:
            explained = f"of {self.name} are no better than its mean"
        sentence = f"Predictions {explained}, with {self._compare()} the error of standing still."
        if self.movement < QUIET:
            sentence += (
                f" The held-out end hardly moves (its deviation is {100 * self.movement:.2g} % of "
                "the whole series'), so R² says little: compare the errors."
            )
        return sentence

    def _compare(self) -> str:
        ratio = self.nrmse / self.standing_still if self.standing_still > 0 else np.inf
        if ratio > 1.05:
            return f"{ratio:.2g} times"
        if 0 < ratio < 0.15:
            return f"1/{1 / ratio:,.0f} of"
        return f"{100 * ratio:.0f} % of" if 0 < ratio < 0.95 else "about"


def score_predictions(
    names: Sequence[str],
    ys: States,
    filled: States,
    predicted: States,
    held_out: int,
    starts: int,
    horizon: int,
) -> list[Score]:
    """Compares predictions with the measurements from sample `held_out` on.

    Predictions start at sample `starts`, and anew from there every `horizon` samples.
    """
    number = np.arange(held_out, len(ys)) - starts
    still = filled[starts + (number - 1) // horizon * horizon]
    scores = []
    for i, name in enumerate(names):
        known = np.isfinite(ys[held_out:, i])
        measured = ys[held_out:, i][known]
        variance = float(np.var(measured)) if known.any() else 0.0
        errors = [
            float(np.mean((x[known, i] - measured) ** 2)) / variance if variance > 0 else np.nan
            for x in (predicted[held_out:], still)
        ]
        error, other = (float(np.sqrt(error)) for error in errors)
        movement = float(np.sqrt(variance / np.nanvar(ys[:, i])))
        scores.append(Score(name, 1 - errors[0], error, other, movement))
    return scores


def find_doubt(scores: Sequence[Score]) -> str | None:
    """Why the forecast is not to be trusted, or None."""
    judged = [s for s in scores if s.standing_still > 0]
    lazy = [s.name for s in judged if not s.nrmse < s.standing_still]
    wild = [s.name for s in judged if s.nrmse > MOST_ERROR and s.name not in lazy]
    reasons = []
    if lazy:
        reasons.append(f"No better than standing still on the held-out end: {', '.join(lazy)}.")
    if wild:
        reasons.append(f"Off by more than the held-out end varies: {', '.join(wild)}.")
    return " ".join([*reasons, _ADVICE]) if reasons else None
