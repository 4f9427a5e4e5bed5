"""Linear regression of an equation in its integral form, z(t) - z(s) = the integral of the field.

A field that is linear in its coefficients needs no solver. The integrals of its terms along the
measured series are the columns of a least-squares problem. Integrals are cut at the knots, and held
states are interpolated from the series. Each window has its own constant, so neither noise in its
first sample nor drift before it matters. So has each part of a window after a gap that is much
longer than the others, because nothing is known about the states within it.

Each window keeps its own normal equations. Held-out errors are sums of these and subsets of terms
are submatrices, which is fast enough to try hundreds of periods.
"""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._solve.delays import Delay
from ._frames import Columns
from ._lookback import find_kinks, find_sources
from ._series import Trajectory, find_long_gaps, interpolate
from ._windows import Window

# Gauss-Legendre nodes on [0, 1], exact for the cube of a parabola.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2

FOLDS = 5
# Fewer windows than folds are held out one by one.
LEAST_WINDOWS = 3
# Neighbouring windows overlap, so at least this many in a row are held out together.
IN_A_ROW = 4

# States go up to five standard deviations, whose twentieth power is 1e14. Added to that, a constant
# loses all its digits in float64.
MOST_DEGREE = 20
TOO_HIGH = "Added to higher powers, low ones lose all their digits in floating point."
# Of a library. The normal equations of each window have the square of it.
MOST_TERMS = 1000
# Numbers in the normal equations, which take 8 GB.
MOST_PRODUCTS = 10**9
# Operations to select terms, which take a day at a billion a second.
MOST_WORK = 10**14


class Library(NamedTuple):
    """Monomials in (variable - centre) / scale.

    The variables are the state, the entries of the history and the inputs, concatenated. `powers`
    has a row for each term.
    """

    powers: Int[np.ndarray, "terms variables"]
    centre: Float[np.ndarray, " variables"]
    scale: Float[np.ndarray, " variables"]

    def __call__(
        self, variables: Float[np.ndarray, "times variables"]
    ) -> Float[np.ndarray, "times terms"]:
        x = (variables - self.centre) / self.scale
        terms = np.ones((len(x), len(self.powers)))
        for i, column in enumerate(x.T):
            for power in range(1, self.powers[:, i].max(initial=0) + 1):
                terms[:, self.powers[:, i] >= power] *= column[:, None]
        return terms


def check_library_size(variables: int, degree: int) -> None:
    """Raises if a library is too large, before it is built."""
    terms = math.comb(variables + degree, degree)
    if terms > MOST_TERMS:
        raise ValueError(
            f"Polynomials of degree {degree} in {variables} variables (states, their past, inputs) "
            f"have {terms:.3g} terms; expected at most {MOST_TERMS:,}. Give a lower degree, or "
            "fewer delays or columns."
        )


def list_monomials(variables: int, degree: int) -> Int[np.ndarray, "terms variables"]:
    """The powers of all monomials up to `degree`, the constant first."""
    rows = [
        np.bincount(np.array(chosen, int), minlength=variables)
        for d in range(degree + 1)
        for chosen in combinations_with_replacement(range(variables), d)
    ]
    return np.array(rows, int).reshape(len(rows), variables)


class Integrals(NamedTuple):
    """The integral of each term over each gap between samples, and in which run of samples each
    sample is. Integrals over the gap between two runs are not known."""

    terms: Float[np.ndarray, "gaps terms"]
    runs: Int[np.ndarray, " samples"]


def integrate_terms(trajectory: Trajectory, delays: Sequence[Delay], library: Library) -> Integrals:
    """Integrates each term over each gap between samples.

    Runs of samples end at long gaps, and where a delay reads the state within one.
    """
    ts = trajectory.ts
    kinks = find_kinks(delays, ts[0], ts[-1])
    breaks = np.unique(np.concatenate([ts, kinks]))
    lengths, middles = np.diff(breaks), (breaks[:-1] + breaks[1:]) / 2
    times = (breaks[:-1, None] + lengths[:, None] * _NODES).ravel()
    middles = np.repeat(middles, len(_NODES))
    gap = np.clip(np.searchsorted(ts, middles, side="right") - 1, 0, len(ts) - 2)
    sources = [times, *(find_sources(d, times, middles) for d in delays)]
    states = [interpolate(trajectory, source, kinks) for source in sources]
    terms = library(np.concatenate([*states, trajectory.us[gap]], axis=1))
    weights = (lengths[:, None] * _WEIGHTS).ravel()
    total = np.zeros((len(ts) - 1, len(library.powers)))
    np.add.at(total, gap, weights[:, None] * terms)
    unknown = np.zeros(len(ts) - 1, bool)
    long = find_long_gaps(trajectory)
    for source in sources if long.any() else ():
        np.logical_or.at(unknown, gap, _lies_in(ts, long, source))
    return Integrals(total, np.concatenate([[0], np.cumsum(unknown)]))


def _lies_in(
    ts: Float[np.ndarray, " samples"],
    gaps: Bool[np.ndarray, " samples-1"],
    times: Float[np.ndarray, " times"],
) -> Bool[np.ndarray, " times"]:
    """Whether each of `times` lies within one of the marked `gaps` between `ts`."""
    place = np.clip(np.searchsorted(ts, times, side="right") - 1, 0, len(ts) - 2)
    share = (times - ts[place]) / (ts[place + 1] - ts[place])
    return gaps[place] & (share > 1e-6) & (share < 1 - 1e-6)


class NormalEquations(NamedTuple):
    """The normal equations of each window and state, over the samples that this state has.

    `columns` are products of the columns with each other, `mixed` of the columns and the state, and
    `squares` of the state with itself.
    """

    columns: Float[np.ndarray, "windows states terms terms"]
    mixed: Float[np.ndarray, "windows states terms"]
    squares: Float[np.ndarray, "windows states"]

    def for_terms(self, terms: Int[np.ndarray, " chosen"]) -> "NormalEquations":
        columns = self.columns[:, :, terms][:, :, :, terms]
        return NormalEquations(columns, self.mixed[:, :, terms], self.squares)

    def for_state(self, i: int) -> "NormalEquations":
        return NormalEquations(*(part[:, i : i + 1] for part in self))


def build_normal_equations(
    trajectories: Sequence[Trajectory],
    windows: Sequence[Window],
    delays: Sequence[Delay],
    library: Library,
) -> NormalEquations:
    terms, states = len(library.powers), trajectories[0].ys.shape[1]
    if len(windows) * states * terms**2 > MOST_PRODUCTS:
        raise ValueError(
            f"The normal equations of {terms:,} terms in {len(windows):,} windows and {states} "
            f"states have {len(windows) * states * terms**2:.3g} numbers; expected at most "
            f"{MOST_PRODUCTS:.0e}, which take 8 GB. Give a lower degree, or fewer delays."
        )
    integrals = [integrate_terms(t, delays, library) for t in trajectories]
    columns = np.zeros((len(windows), states, terms, terms))
    mixed = np.zeros((len(windows), states, terms))
    squares = np.zeros((len(windows), states))
    for i, w in enumerate(windows):
        integral = np.zeros((w.last - w.first + 1, terms))
        whole, runs = integrals[w.trajectory]
        np.cumsum(whole[w.first : w.last], axis=0, out=integral[1:])
        here = slice(w.first, w.last + 1)
        for j, y in enumerate(trajectories[w.trajectory].ys[here].T):
            for run in np.unique(runs[here]):
                same = runs[here] == run
                sums = _sum_products(integral[same], y[same])
                columns[i, j] += sums[0]
                mixed[i, j] += sums[1]
                squares[i, j] += sums[2]
    _check_enough(squares, terms, trajectories[0].columns)
    return NormalEquations(columns, mixed, squares)


def _sum_products(columns: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Products about the means, over the samples at which `y` is known."""
    known = ~np.isnan(y)
    if known.sum() < 2:
        nothing = np.zeros(columns.shape[1])
        return np.outer(nothing, nothing), nothing, 0.0
    x, y = columns[known], y[known]
    x, y = x - x.mean(axis=0, keepdims=True), y - y.mean()
    return x.T @ x, x.T @ y, float(np.sum(y**2))


def _check_enough(squares: np.ndarray, terms: int, columns: Columns) -> None:
    useful = (squares > 0).sum(axis=0)
    if useful.min() == 0:
        i = int(useful.argmin())
        label = columns.label("ys", i) if columns.states else f"State {i + 1} of {len(useful)}"
        raise ValueError(
            f"{label} does not change within any window, so there is nothing to learn about it. "
            "Leave it out, or give it as an input."
        )
    if useful.min() < LEAST_WINDOWS:
        raise ValueError(
            f"The series gives {useful.min()} windows to compare {terms} terms on; expected at "
            f"least {LEAST_WINDOWS}. Give a longer series or more of them (in Python also a "
            "shorter `window`)."
        )


def solve_normal(
    columns: Float[np.ndarray, "terms terms"], mixed: Float[np.ndarray, " terms"]
) -> Float[np.ndarray, " terms"]:
    """Least squares, with columns scaled to the same size and very slightly damped."""
    size = np.sqrt(np.maximum(np.diag(columns), 1e-300))
    scaled = columns / size / size[:, None] + 1e-10 * np.eye(len(size))
    return np.linalg.solve(scaled, mixed / size) / size


def assign_folds(number: int) -> Int[np.ndarray, " windows"]:
    """The fold of each window for cross-validation.

    Blocks of at least `IN_A_ROW` windows go to the folds in turn, so that no fold has all of a
    transient. With few windows, a block is a fifth of them.
    """
    blocks = FOLDS * max(1, number // (FOLDS * IN_A_ROW))
    return np.arange(number) * blocks // number % FOLDS


def cross_validate(normal: NormalEquations) -> Float[np.ndarray, " windows"]:
    """The squared error of each window under coefficients fitted to the other folds.

    In units of the mean square over all windows, averaged over the states.
    """
    number, states = normal.squares.shape
    folds = assign_folds(number)
    unit = np.maximum(normal.squares.mean(axis=0), 1e-300)
    errors = np.zeros((number, states))
    for i in range(states):
        columns, mixed, squares = (part[:, i] for part in normal)
        for fold in range(FOLDS):
            inside = folds == fold
            c = solve_normal(columns[~inside].sum(axis=0), mixed[~inside].sum(axis=0))
            square = squares[inside] - 2 * mixed[inside] @ c + (columns[inside] @ c) @ c
            errors[inside, i] = np.maximum(square, 0) / unit[i]
    return errors.mean(axis=1)


# Errors below 0.1 % of the signal are ignored.
FLOOR = 1e-6


def is_not_worse(
    errors: Float[np.ndarray, " windows"], best: Float[np.ndarray, " windows"]
) -> bool:
    """Whether `errors` exceed `best` by less than 5 % or by less than two standard errors, in the
    geometric mean over windows.

    Ratios are compared, because a few windows with large errors would dominate differences.
    """
    growth = np.log((errors + FLOOR) / (best + FLOOR))
    scatter = growth.std(ddof=1) / np.sqrt(len(growth)) if len(growth) > 1 else 0.0
    return bool(growth.mean() <= max(2 * scatter, np.log(1.05)))


def check_selection_cost(terms: int, windows: int) -> None:
    """Raises if `select_terms` would take longer than a day. It leaves out each remaining term in
    turn and sums the products of all windows each time."""
    work = windows * terms**4
    if work > MOST_WORK:
        raise ValueError(
            f"Finding out which of {terms:,} terms are needed in {windows:,} windows takes about "
            f"{work / 1e9 / 3600:.0f} hours; expected less than a day. Give a lower degree, or "
            "fewer delays or columns."
        )


def select_terms(normal: NormalEquations) -> list[int]:
    """Drops terms, the least needed first, as long as held-out errors do not get worse."""
    terms = list(range(normal.columns.shape[2]))
    best = cross_validate(normal)
    while len(terms) > 1:
        fewer = [[t for t in terms if t != left] for left in terms]
        errors = [cross_validate(normal.for_terms(np.array(f))) for f in fewer]
        least = int(np.argmin([np.log(e + 1e-12).mean() for e in errors]))
        if not is_not_worse(errors[least], best):
            break
        terms = fewer[least]
        best = min(best, errors[least], key=lambda e: e.mean())
    return terms


def regress(
    normal: NormalEquations, chosen: list[list[int]], terms: list[int]
) -> Float[np.ndarray, "terms states"]:
    """The coefficients of `terms` in each state's equation, zero unless `chosen` for this state."""
    coefficients = np.zeros((len(terms), len(chosen)))
    for i, own in enumerate(chosen):
        columns, mixed, _ = (
            part[:, 0].sum(axis=0) for part in normal.for_state(i).for_terms(np.array(own))
        )
        for term, value in zip(own, solve_normal(columns, mixed), strict=True):
            coefficients[terms.index(term), i] = value
    return coefficients
