"""Standard errors and profile intervals of the parameters of a fitted field.

Windows overlap, and errors within one of them have its noisy start in common. So the covariance is
that of a sandwich whose scores are summed over neighbouring windows (Newey and West 1987). Rises of
the sum of squares are divided by what it is larger than the usual one (Chandler and Bate 2007).
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ._checks import IdentifyError
from ._fields import Equation
from ._optimise import (
    WindowLoss,
    fit_starts,
    linearise,
    linearise_with_starts,
    minimise_squares,
)
from ._simulation import PERIOD_ROOM, WindowArrays
from ._windows import Window

MOST_PARAMETERS = 100
# Fewer windows that do not overlap say little about how errors in one of them vary together.
LEAST_DISJOINT = 8
# Refits of the other parameters for each end of an interval.
REFITS = 24
# An end further away than this many standard errors is not looked for.
FARTHEST = 30.0


class StandardErrors(NamedTuple):
    """Standard errors: `field` has that of each parameter in its place, and `periods` those of the
    learned periods."""

    field: PyTree
    periods: list[float]


class Profile(NamedTuple):
    """A profile interval of one parameter.

    - `estimate`: its fitted value.
    - `low`, `high`: the ends of the interval, infinite if the series do not bound it.
    - `values`, `rises`: the values that were tried, in order, and how much worse the best fit with
      each of them is, in units of which an interval of 95 % ends at 3.84.
    """

    estimate: float
    low: float
    high: float
    values: Float[np.ndarray, " tried"]
    rises: Float[np.ndarray, " tried"]


class Likelihood:
    """The sum of squares of windows around a fitted equation."""

    def __init__(
        self,
        equation: Equation,
        loss: WindowLoss,
        arrays: WindowArrays,
        windows: Sequence[Window],
        periods: Sequence[float],
    ):
        self.equation, self.loss, self.arrays = equation, loss, arrays
        dynamic, self.static = eqx.partition(equation, eqx.is_inexact_array)
        flat, self.unravel = jax.flatten_util.ravel_pytree(dynamic)
        if flat.size > MOST_PARAMETERS:
            raise IdentifyError(
                f"The field has {flat.size} parameters; expected at most {MOST_PARAMETERS}. "
                "Standard errors are for equations whose numbers have a meaning: give your own "
                "`field`."
            )
        self.periods = periods
        self.slopes, self.values = _linearise(equation, loss, arrays)
        self.square = float(np.sum(self.values**2))
        self.known = np.asarray(arrays.weights, float) > 0
        usual, self.covariance = self._find_covariances(windows)
        ratio = np.diag(self.covariance) / np.maximum(np.diag(usual), 1e-300)
        # What the variance of each parameter is larger than without overlap and common starts.
        self.inflation = np.where(np.diag(usual) > 0, ratio, 1.0)
        self.variance = self.square / max(int(self.known.sum()) - flat.size, 1)

    def _find_covariances(self, windows: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
        """The usual covariance, as if all errors were independent, and the one of the sandwich."""
        size = np.linalg.norm(self.slopes, axis=0)
        used = size > 0
        scaled = self.slopes / np.where(used, size, 1)
        inverse = np.linalg.pinv(scaled.T @ scaled, rcond=1e-12, hermitian=True)
        inverse = inverse / np.outer(*(2 * [np.where(used, size, np.inf)]))
        count = int(self.known.sum())
        usual = inverse * self.square / max(count - int(used.sum()), 1)
        groups, disjoint = _find_overlaps(windows)
        if disjoint < max(LEAST_DISJOINT, 2 * int(used.sum())):
            samples = {(w.trajectory, k) for w in windows for k in range(w.first + 1, w.last + 1)}
            repeated = self.known.any(axis=2).sum() / max(len(samples), 1)
            return usual, usual * max(repeated, 1.0)
        by_window = self.slopes.reshape(len(windows), -1, self.slopes.shape[1])
        scores = np.einsum("wnp,wn->wp", by_window, self.values.reshape(len(windows), -1))
        middle = (
            sum(weight * np.outer(scores[i], scores[j]) for i, j, weight in groups)
            * disjoint
            / (disjoint - 1)
        )
        return usual, inverse @ middle @ inverse

    def find_standard_errors(self) -> StandardErrors:
        deviations = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        errors: Any = eqx.combine(self.unravel(jnp.asarray(deviations, float)), self.static)
        shifts = np.asarray(self.equation.shifts, float)
        slopes = PERIOD_ROOM / np.cosh(shifts) ** 2
        pairs = zip(self.periods, slopes, np.asarray(errors.shifts), strict=True)
        return StandardErrors(errors.field, [float(p * d * e) for p, d, e in pairs])

    def find_profile(self, where: Callable[[Any], Any], level: float) -> Profile:
        """The values of the parameter `where` at which the other parameters fit nearly as well."""
        place = self._find_place(where)
        flat, _ = jax.flatten_util.ravel_pytree(eqx.filter(self.equation, eqx.is_inexact_array))
        estimate = float(flat[place])
        step = float(np.sqrt(max(self.covariance[place, place], 0.0)))
        if not step > 0:
            raise IdentifyError(
                "The predictions do not depend on this parameter, so it has no interval."
            )
        most = statistics.NormalDist().inv_cdf((1 + level) / 2) ** 2
        tried: dict[float, float] = {estimate: 0.0}
        low, high = (
            self._find_end(place, estimate, sign * step, most, tried) for sign in (-1.0, 1.0)
        )
        values = np.array(sorted(tried))
        return Profile(estimate, low, high, values, np.array([tried[v] for v in values]))

    def _find_end(
        self, place: int, estimate: float, step: float, most: float, tried: dict[float, float]
    ) -> float:
        """Where the rise reaches `most`: enclosed by doubled steps, then by halving."""
        equation, inside, outside, ahead = self.equation, 0.0, None, np.sqrt(most)
        for _ in range(REFITS):
            value = estimate + ahead * step
            rise, refitted = self._find_rise(equation, place, value)
            tried[value] = rise
            if rise < most:
                inside, equation = ahead, refitted
            else:
                outside = ahead
            if outside is None:
                ahead *= 2
                if ahead > FARTHEST:
                    return float(np.sign(step) * np.inf)
                continue
            if outside - inside < 0.01 * outside:
                break
            ahead = (inside + outside) / 2
        return estimate + ahead * step

    def _find_rise(self, equation: Equation, place: int, value: float) -> tuple[float, Equation]:
        """How much worse the best fit with this value is, and that fit."""
        flat, _ = jax.flatten_util.ravel_pytree(eqx.filter(equation, eqx.is_inexact_array))
        start = eqx.combine(self.unravel(flat.at[place].set(value)), self.static)
        fixed = np.arange(flat.size) == place
        refitted, square = minimise_squares(start, self.loss, self.arrays, fixed)
        return (square - self.square) / (self.variance * self.inflation[place]), refitted

    def _find_place(self, where: Callable[[Any], Any]) -> int:
        """The place of a parameter among all of them."""
        flat, _ = jax.flatten_util.ravel_pytree(eqx.filter(self.equation, eqx.is_inexact_array))
        pick = lambda x: where(eqx.combine(self.unravel(x), self.static).field)
        shape = np.shape(where(self.equation.field))
        if shape != ():
            raise ValueError(
                f"profile got a `where` that selects an array of shape {shape}; expected one "
                "number, such as lambda field: field.rates[0]."
            )
        slopes = np.asarray(jax.grad(lambda x: jnp.asarray(pick(x), float))(flat))
        chosen = np.flatnonzero(slopes)
        if len(chosen) != 1 or slopes[chosen[0]] != 1:
            raise ValueError(
                "profile got a `where` that selects no parameter of the field; expected one of its "
                "arrays or an element of it, such as lambda field: field.rate."
            )
        return int(chosen[0])


def _linearise(
    equation: Equation, loss: WindowLoss, arrays: WindowArrays
) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of all errors to the parameters, and the errors. Of fitted starts, the part is
    left out that the start of the window can undo."""
    if not loss.fits_starts:
        slopes, values = linearise(equation, loss, arrays)
        return np.asarray(slopes, float), np.asarray(values, float)
    fixed = np.ones(_count_parameters(equation), bool)
    _, starts, _ = fit_starts(equation, loss, arrays, fixed)
    now = linearise_with_starts(equation, loss, arrays, starts)
    undone = np.linalg.pinv(now.start_slopes) @ now.slopes
    slopes = now.slopes - now.start_slopes @ undone
    return slopes.reshape(-1, slopes.shape[2]), now.values.ravel()


def _count_parameters(equation: Equation) -> int:
    return sum(x.size for x in jax.tree.leaves(eqx.filter(equation, eqx.is_inexact_array)))


def _find_overlaps(windows: Sequence[Window]) -> tuple[list[tuple[int, int, float]], int]:
    """Pairs of windows whose errors have something in common, with the weights of a triangle, and
    the number of windows that do not overlap."""
    pairs, disjoint, end = [], 0, (-1, 0)
    for i, w in enumerate(windows):
        if w.trajectory != end[0] or w.first >= end[1]:
            disjoint, end = disjoint + 1, (w.trajectory, w.last)
        near = [
            j
            for j, other in enumerate(windows)
            if other.trajectory == w.trajectory and abs(other.first - w.first) <= w.last - w.first
        ]
        reach = max(abs(j - i) for j in near) + 1
        pairs += [(i, j, 1 - abs(j - i) / reach) for j in near]
    return pairs, disjoint
