"""Linear regression of an equation in its integral form: z(t) - z(s) is the integral of the field.

A field that is linear in its coefficients needs no solver: the integrals of its terms along the
measured series are the columns of a least-squares problem. Integrals end at the knots, held states
are read off the series, and every window has a constant of its own, so neither noise in its first
sample nor drift before it matters. This is quick enough to try hundreds of periods. Each window
keeps its own normal equations, of which held-out errors and subsets of terms are sums and
submatrices.
"""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._solve.delays import Delay, Hold, Lag, periods_to_learn, with_periods
from ._series import Times, Trajectory, Window, interpolated

# Gauss and Legendre's nodes on [0, 1]: exact for the cubes of parabolas.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2

FOLDS = 5
# Windows in a row that are held out together, at least: next ones overlap.
IN_A_ROW = 4


# States are in standard deviations, of which there are up to five: their twentieth power is 1e14,
# next to which float64 has nothing left of a constant.
MOST_DEGREE = 20
TOO_HIGH = "Next to higher powers nothing is left of low ones in floating point."
# Of a library, each pair of which is a number in each window.
MOST_TERMS = 1000
# Numbers in the normal equations: 8 GB.
MOST_PRODUCTS = 10**9
# Operations to find out which terms are needed: at a billion a second they take a day.
MOST_WORK = 10**14


class Library(NamedTuple):
    """Monomials in (variable - centre)/scale; the variables are the state, the entries of the
    history one after the other, and the inputs. `powers` has a row for each term."""

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


def check_terms(variables: int, degree: int) -> None:
    """Before they are made: there are soon more than atoms."""
    terms = math.comb(variables + degree, degree)
    if terms > MOST_TERMS:
        raise ValueError(
            f"Polynomials of degree {degree} in {variables} variables (states, their past, inputs) "
            f"have {terms:.3g} terms; expected at most {MOST_TERMS:,}. Give a lower degree, or "
            "fewer delays or columns."
        )


def monomials(variables: int, degree: int) -> Int[np.ndarray, "terms variables"]:
    """All powers up to `degree`, the constant first."""
    rows = [
        np.bincount(np.array(chosen, int), minlength=variables)
        for d in range(degree + 1)
        for chosen in combinations_with_replacement(range(variables), d)
    ]
    return np.array(rows, int).reshape(len(rows), variables)


def kinks_of(delays: Sequence[Delay], t0: float, t1: float) -> Times:
    """The instants of all holds between t0 and t1."""
    found = [np.zeros(0)]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            found.append(np.asarray(delay.times, float))
        elif isinstance(delay, Hold):
            tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
            found.append(tau * np.arange(np.ceil(t0 / tau), np.floor(t1 / tau) + 1))
    kinks = np.unique(np.concatenate(found))
    return kinks[(kinks >= t0) & (kinks <= t1)]


def reach_of(delays: Sequence[Delay]) -> float:
    """How far back an equation looks, at most; infinite where it holds at given instants."""
    delays = with_periods(delays, [learn.high for learn in periods_to_learn(delays)])
    reaches = [0.0]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            # After its last instant it looks back further and further.
            reaches.append(np.inf)
        elif isinstance(delay, Hold):
            reaches.append((delay.lag + 1) * float(delay.tau))  # pyright: ignore
        else:
            reaches.append(float(delay.tau))  # pyright: ignore[reportArgumentType]
    return max(reaches)


def earliest_of(delays: Sequence[Delay], start: float) -> float:
    """The earliest time that an equation looks at from `start` on: at a knot, that is closer than
    elsewhere."""
    found = [start]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None:
            found.append(-np.inf)
            continue
        tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
        held = isinstance(delay, Hold)
        found.append((np.floor(start / tau + 1e-9) - delay.lag) * tau if held else start - tau)
    return float(min(found))


def _looked_at(delay: Delay, times: Times, middles: Times) -> Times:
    """When the state that `delay` refers to at `times` was; `middles` lie safely between knots."""
    if isinstance(delay, Lag):
        return times - float(delay.tau)  # pyright: ignore[reportArgumentType]
    if delay.times is not None:
        instants = np.asarray(delay.times, float)
        place = np.searchsorted(instants, middles, side="right") - 1 - delay.lag
        return np.where(place >= 0, instants[np.maximum(place, 0)], -np.inf)
    tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
    return (np.floor(middles / tau) - delay.lag) * tau


def term_integrals(
    trajectory: Trajectory, delays: Sequence[Delay], library: Library
) -> Float[np.ndarray, "gaps terms"]:
    """The integral of each term over each gap between samples."""
    ts = trajectory.ts
    kinks = kinks_of(delays, ts[0], ts[-1])
    breaks = np.unique(np.concatenate([ts, kinks]))
    lengths, middles = np.diff(breaks), (breaks[:-1] + breaks[1:]) / 2
    times = (breaks[:-1, None] + lengths[:, None] * _NODES).ravel()
    middles = np.repeat(middles, len(_NODES))
    gap = np.clip(np.searchsorted(ts, middles, side="right") - 1, 0, len(ts) - 2)
    states = [interpolated(trajectory, times, kinks)]
    states += [interpolated(trajectory, _looked_at(d, times, middles), kinks) for d in delays]
    terms = library(np.concatenate([*states, trajectory.us[gap]], axis=1))
    weights = (lengths[:, None] * _WEIGHTS).ravel()
    total = np.zeros((len(ts) - 1, len(library.powers)))
    np.add.at(total, gap, weights[:, None] * terms)
    return total


class Normal(NamedTuple):
    """The normal equations, a window and a state each, of the samples that this state has: products
    of the columns, of columns and state, and of the state with itself."""

    columns: Float[np.ndarray, "windows states terms terms"]
    mixed: Float[np.ndarray, "windows states terms"]
    squares: Float[np.ndarray, "windows states"]

    def of(self, terms: Int[np.ndarray, " chosen"]) -> "Normal":
        columns = self.columns[:, :, terms][:, :, :, terms]
        return Normal(columns, self.mixed[:, :, terms], self.squares)

    def of_state(self, i: int) -> "Normal":
        return Normal(*(part[:, i : i + 1] for part in self))


def normal_equations(
    trajectories: Sequence[Trajectory],
    windows: Sequence[Window],
    delays: Sequence[Delay],
    library: Library,
) -> Normal:
    terms, states = len(library.powers), trajectories[0].ys.shape[1]
    if len(windows) * states * terms**2 > MOST_PRODUCTS:
        raise ValueError(
            f"The normal equations of {terms:,} terms in {len(windows):,} windows and {states} "
            f"states have {len(windows) * states * terms**2:.3g} numbers; expected at most "
            f"{MOST_PRODUCTS:.0e}, which take 8 GB. Give a lower degree, or fewer delays."
        )
    integrals = [term_integrals(t, delays, library) for t in trajectories]
    found = []
    for w in windows:
        ys = trajectories[w.trajectory].ys[w.first : w.last + 1]
        columns = np.cumsum(integrals[w.trajectory][w.first : w.last], axis=0)
        columns = np.concatenate([np.zeros((1, columns.shape[1])), columns])
        found.append([_products(columns, y) for y in ys.T])
    parts = [[np.stack(part) for part in zip(*of_states, strict=True)] for of_states in found]
    columns, mixed, squares = (np.stack(part) for part in zip(*parts, strict=True))
    _check_enough(squares, len(library.powers))
    return Normal(columns, mixed, squares)


def _products(columns: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    known = ~np.isnan(y)
    if known.sum() < 2:
        nothing = np.zeros(columns.shape[1])
        return np.outer(nothing, nothing), nothing, 0.0
    x, y = columns[known], y[known]
    x, y = x - x.mean(axis=0, keepdims=True), y - y.mean()
    return x.T @ x, x.T @ y, float(np.sum(y**2))


def _check_enough(squares: np.ndarray, terms: int) -> None:
    useful = (squares > 0).sum(axis=0)
    if useful.min() == 0:
        raise ValueError(
            f"State {int(useful.argmin()) + 1} of {len(useful)} does not change within any window, "
            "so there is nothing to learn of it: leave it out, or give it as an input."
        )
    if useful.min() < FOLDS:
        raise ValueError(
            f"The series gives {useful.min()} windows to compare {terms} terms on; {FOLDS} are "
            "needed at least. Give a longer series or more of them (in Python also a shorter "
            "`window`)."
        )


def coefficients(
    columns: Float[np.ndarray, "terms terms"], mixed: Float[np.ndarray, " terms"]
) -> Float[np.ndarray, " terms"]:
    """Least squares, of columns brought to the same size and very slightly damped."""
    size = np.sqrt(np.maximum(np.diag(columns), 1e-300))
    scaled = columns / size / size[:, None] + 1e-10 * np.eye(len(size))
    return np.linalg.solve(scaled, mixed / size) / size


def folds_of(number: int) -> Int[np.ndarray, " windows"]:
    """Which windows are held out together: blocks in turn, so that no fold has all of a transient.
    A block is `IN_A_ROW` windows or more, and a fifth of them where there are few."""
    blocks = FOLDS * max(1, number // (FOLDS * IN_A_ROW))
    return np.arange(number) * blocks // number % FOLDS


def held_out(normal: Normal) -> Float[np.ndarray, " windows"]:
    """The squared error of each window by coefficients from the others' folds, in units of the
    mean square of all windows; the mean over the states."""
    number, states = normal.squares.shape
    folds = folds_of(number)
    unit = np.maximum(normal.squares.mean(axis=0), 1e-300)
    errors = np.zeros((number, states))
    for i in range(states):
        columns, mixed, squares = (part[:, i] for part in normal)
        for fold in range(FOLDS):
            inside = folds == fold
            c = coefficients(columns[~inside].sum(axis=0), mixed[~inside].sum(axis=0))
            found = squares[inside] - 2 * mixed[inside] @ c + (columns[inside] @ c) @ c
            errors[inside, i] = np.maximum(found, 0) / unit[i]
    return errors.mean(axis=1)


# Errors below 0.1 % of the signal count as none.
FLOOR = 1e-6


def not_worse(errors: Float[np.ndarray, " windows"], best: Float[np.ndarray, " windows"]) -> bool:
    """Whether `errors` are no larger than `best`, window by window: by less than 5 % in the
    geometric mean, or by less than two standard errors of it. (Ratios, since a few windows with
    large errors would decide on differences.)"""
    growth = np.log((errors + FLOOR) / (best + FLOOR))
    scatter = growth.std(ddof=1) / np.sqrt(len(growth)) if len(growth) > 1 else 0.0
    return bool(growth.mean() <= max(2 * scatter, np.log(1.05)))


def check_work(terms: int, windows: int) -> None:
    """How long `needed_terms` takes: all terms that are left are left out in turn, and each time
    the products of all windows are added up."""
    work = windows * terms**4
    if work > MOST_WORK:
        raise ValueError(
            f"Finding out which of {terms:,} terms are needed in {windows:,} windows takes about "
            f"{work / 1e9 / 3600:.0f} hours; expected less than a day. Give a lower degree, or "
            "fewer delays or columns."
        )


def needed_terms(normal: Normal) -> list[int]:
    """Drops terms, the least needed first, as long as held-out windows do not get worse."""
    terms = list(range(normal.columns.shape[2]))
    best = held_out(normal)
    while len(terms) > 1:
        fewer = [[t for t in terms if t != left] for left in terms]
        errors = [held_out(normal.of(np.array(f))) for f in fewer]
        least = int(np.argmin([np.log(e + 1e-12).mean() for e in errors]))
        if not not_worse(errors[least], best):
            break
        terms = fewer[least]
        best = min(best, errors[least], key=lambda e: e.mean())
    return terms


def regressed(normal: Normal, chosen: list[list[int]], terms: list[int]) -> np.ndarray:
    found = np.zeros((len(terms), len(chosen)))
    for i, own in enumerate(chosen):
        columns, mixed, _ = (
            part[:, 0].sum(axis=0) for part in normal.of_state(i).of(np.array(own))
        )
        for term, value in zip(own, coefficients(columns, mixed), strict=True):
            found[terms.index(term), i] = value
    return found
