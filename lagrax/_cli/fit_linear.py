"""The linear equation of held samples that `lagrax fit` compares with a library."""

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._solve.delays import Delay
from ..identify import Identifier, IdentifyError
from ..identify._fields import HeldLinear
from .fit_options import FitError, FitOptions
from .fit_scores import EQUAL, find_counted
from .fit_seasons import count_season
from .table import Measurements

# An equation with smaller errors, in standard deviations, is a good one, and is kept.
GOOD = 0.1
# The kind of a linear equation is chosen for forecasts up to this share of the series.
MOST_AHEAD = 0.25


def is_compared(
    options: FitOptions, delays: Sequence[Delay], tables: Sequence[Measurements]
) -> bool:
    """Whether a linear equation is compared with what was asked for: a library that nobody gave
    delays, of regular samples."""
    asked = options.select or delays
    regular = all(table.is_regular for table in tables)
    return options.field == "library" and options.linear and not asked and regular


def make_linear(options: FitOptions, tables: Sequence[Measurements], later: int) -> Identifier:
    """A linear equation, not fitted yet, for forecasts of so many samples."""
    table = max(tables, key=lambda t: len(t.ts))
    season = count_season(options.season[0], table.unit) if options.season else None
    ahead = options.window or min(later, int(MOST_AHEAD * len(table.ts))) or None
    return Identifier(
        field="linear", season=season, window=ahead, seed=options.seed, progress=False
    )


def choose_model(
    fit_library: Callable[[], Identifier], fit_linear: Callable[[], Identifier], later: int
) -> tuple[Identifier, str | None]:
    """The better of two equations, and a sentence about both.

    If both are as good it is the linear one, since its kind was chosen from several origins, and it
    is fitted to the whole series in the end.
    """
    try:
        linear = fit_linear()
    except (FitError, IdentifyError):
        return fit_library(), None
    try:
        library = fit_library()
    except IdentifyError as error:
        return linear, f"No polynomial was found, and a linear equation was: {error}"
    ahead = max(1, later or linear.window_)
    errors = [_measure_error(model, ahead) for model in (library, linear)]
    better = errors[0] > GOOD and EQUAL * errors[0] >= errors[1]
    words = (
        f"Held-out errors up to {ahead} samples ahead are {errors[0]:.3g} standard deviations for "
        f"the polynomial without delays and {errors[1]:.3g} for a linear equation of "
        f"{_describe_memory(linear)}."
    )
    if better:
        return linear, f"{words} The linear one is used; --no-linear keeps the other."
    return library, f"{words} The polynomial is used; --field linear keeps the other."


def _measure_error(model: Identifier, ahead: int) -> float:
    """The root mean square of held-out errors in standard deviations, and its geometric mean over
    states."""
    errors = model._measure_errors(max(ahead, model.window_)).until(ahead)
    counted = find_counted(errors)[..., None] & np.isfinite(errors.measured)
    off = np.nan_to_num(np.abs(errors.predicted - errors.measured), nan=np.inf)
    off = np.minimum(off / model._model.dataset.scale, 1e6)
    size = [
        np.sqrt(np.mean(off[..., j][counted[..., j]] ** 2))
        for j in range(off.shape[2])
        if counted[..., j].any()
    ]
    return float(np.exp(np.mean(np.log(np.maximum(size, 1e-12))))) if size else np.inf


def _describe_memory(model: Identifier) -> str:
    number = len(model.delays_)
    return f"{number} held samples" if number > 1 else "the last sample"


# --- the long run ---------------------------------------------------------------------------------


def describe_linear_run(model: Identifier, in_words: Callable[[float], str]) -> str:
    """The long run of each state's recursion, from its characteristic roots. `in_words` names a
    time."""
    field: Any = model.equation_
    assert isinstance(field, HeldLinear)
    states = model._columns.states or tuple(f"x{i + 1}" for i in range(len(field.logarithmic)))
    lags = np.asarray(field.lags, float)
    sentences = []
    for j, name in enumerate(states):
        weights = np.zeros(field.lag[-1] + 1)
        weights[list(field.lag)] = lags[:, j]
        number = int(np.flatnonzero(weights)[-1]) + 1 if weights.any() else 0
        roots = np.roots([1.0, *-weights[:number]]) if number else np.zeros(1)
        sentences.append(_describe_roots(name, roots, field.gap, in_words))
    return " ".join(sentences)


def _describe_roots(
    name: str, roots: np.ndarray, gap: float, in_words: Callable[[float], str]
) -> str:
    first = complex(roots[np.argmax(np.abs(roots))])
    size, angle = abs(first), abs(cmath.phase(first))
    if size > 1 + 1e-6:
        return f"Deviations of {name} grow by a factor of {size:.4g} from sample to sample."
    if size > 1 - 1e-6:
        return f"{name} does not return to a level: what disturbs it stays."
    turn = ""
    if 1e-6 < angle < np.pi - 1e-6:
        turn = f", turning once in {in_words(float(f'{2 * np.pi / angle * gap:.3g}'))}"
    rate = float(f"{-gap / np.log(max(size, 1e-12)) * np.log(2):.3g}")
    return f"Deviations of {name} from its level halve in {in_words(rate)}{turn}."
