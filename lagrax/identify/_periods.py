"""Scans of periods by the held-out error of polynomial equations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._solve.delays import Delay, Hold, describe, periods_to_learn, with_periods
from ..training._progress import Progress
from ._lookback import find_reach, read_period
from ._regression import (
    Library,
    build_normal_equations,
    check_library_size,
    cross_validate,
    is_not_worse,
    list_monomials,
)
from ._series import Trajectory, compute_scale, median_gap
from ._windows import Window, cut_windows

WindowErrors = Float[np.ndarray, " windows"]


class ComparedSeries(NamedTuple):
    """Series, windows and the degree of the polynomials that explain them.

    Candidates are compared on the same windows, whose past is known for all of them.
    """

    trajectories: list[Trajectory]
    windows: list[Window]
    degree: int
    centre: Float[np.ndarray, " states"]
    scale: Float[np.ndarray, " states"]
    gap: float

    def measure(self, delays: Sequence[Delay], without: int | None = None) -> WindowErrors:
        """The held-out error of each window, optionally `without` all terms in one entry of the
        history."""
        states, inputs = len(self.centre), self.trajectories[0].us.shape[1]
        times = 1 + len(delays)
        powers = _list_powers(states, times, inputs, self.degree)
        if without is not None:
            first = (1 + without) * states
            powers = powers[powers[:, first : first + states].sum(axis=1) == 0]
        us = np.concatenate([t.us for t in self.trajectories])
        centre = np.concatenate([np.tile(self.centre, times), us.mean(axis=0)])
        scale = np.concatenate([np.tile(self.scale, times), compute_scale(us)])
        library = Library(powers, centre, scale)
        return cross_validate(
            build_normal_equations(self.trajectories, self.windows, delays, library)
        )


def _list_powers(
    states: int, times: int, inputs: int, degree: int
) -> Int[np.ndarray, "terms variables"]:
    """All monomials up to `degree`, and those of the state at a single time up to one more, since
    equations are often of higher degree in the present state than in products with the past."""
    variables = times * states + inputs
    rows = [list_monomials(variables, degree)]
    higher = list_monomials(states, degree + 1)
    higher = higher[higher.sum(axis=1) > degree]
    for i in range(times):
        before, after = i * states, variables - (i + 1) * states
        rows.append(np.pad(higher, ((0, 0), (before, after))))
    return np.concatenate(rows)


# With fewer samples between two knots, the measured past alone seems to explain the series.
LEAST_SAMPLES = 3


def check_sampling(trajectories: Sequence[Trajectory], delays: Sequence[Delay]) -> None:
    """Raises if holds are too short for a regression on these samples."""
    gap = median_gap(trajectories)
    longest = with_periods(delays, [learn.high for learn in periods_to_learn(delays)])
    for delay in longest:
        if isinstance(delay, Hold) and delay.times is None:
            tau = read_period(delay)
            if tau < 0.99 * LEAST_SAMPLES * gap:
                raise ValueError(
                    f"The samples are {gap:.3g} apart and {describe([delay])} has knots every "
                    f"{tau:.3g}; libraries, learned periods and select_delays need {LEAST_SAMPLES} "
                    "samples between knots at least. Sample more often, or train a network (mlp) "
                    "with a period that is given."
                )


def prepare_comparison(
    trajectories: list[Trajectory],
    candidates: Sequence[Sequence[Delay]],
    degree: int,
    window: int,
) -> ComparedSeries:
    for delays in candidates:
        check_sampling(trajectories, delays)
        states, inputs = (part.shape[1] for part in (trajectories[0].ys, trajectories[0].us))
        check_library_size(states * (1 + len(delays)) + inputs, degree)
    states = np.concatenate([t.filled for t in trajectories])
    reach = max(find_reach(delays) for delays in candidates)
    windows = cut_windows(trajectories, window, reach, max(1, window // 2))
    return ComparedSeries(
        trajectories,
        windows,
        degree,
        states.mean(axis=0),
        compute_scale(states),
        median_gap(trajectories),
    )


# Of one scan; a longer one would take minutes.
MOST_PERIODS = 1500
# The number of valleys to refine, the deepest first. Those at fractions of the period are nearly as
# deep as the right one, until the resolution tells them apart.
VALLEYS = 8


class Scan(NamedTuple):
    """The held-out error over the periods tried for a `Learn`. `Identifier.scans_` has one each.

    One deep valley means that the period is certain, several that it is doubtful.

    - `periods`: increasing.
    - `errors`: the root mean square error of each.
    - `good`: whether each explains the series about as well as the best one.
    """

    periods: Float[np.ndarray, " tried"]
    errors: Float[np.ndarray, " tried"]
    good: Bool[np.ndarray, " tried"]

    def ranges(self) -> list[tuple[float, float]]:
        """The first and last period of each run of good neighbours."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.good.astype(int), [0]])))
        ends = zip(edges[::2], edges[1::2] - 1, strict=True)
        return [(float(self.periods[a]), float(self.periods[b])) for a, b in ends]


def find_periods(
    comparison: ComparedSeries, delays: Sequence[Delay], *, progress: bool = False
) -> tuple[list[Delay], list[Scan]]:
    """The delays with the best period for each `Learn`, and the scan of each period.

    The error has a narrow valley at the right period and a kink wherever a sample passes a knot, so
    a gradient does not lead there. Several periods are scanned in turn, twice.
    """
    learned = periods_to_learn(delays)
    periods = [learn.start for learn in learned]
    scans: list[Scan] = [Scan(np.zeros(0), np.zeros(0), np.zeros(0, bool)) for _ in learned]
    for _ in range(min(len(learned), 2)):
        for i, learn in enumerate(learned):
            tried = lambda tau, i=i: with_periods(delays, [*periods[:i], tau, *periods[i + 1 :]])
            errors = lambda tau, tried=tried: comparison.measure(tried(float(tau)))
            held = any(isinstance(d, Hold) and d.tau is learn for d in delays)
            low = max(learn.low, LEAST_SAMPLES * comparison.gap) if held else learn.low
            low = min(low, 0.999 * learn.high)
            latest = max(float(np.abs(t.ts).max()) for t in comparison.trajectories)
            scanned = _scan_period(errors, low, learn.high, latest, progress)
            scans[i] = scanned.scan
            periods[i] = scanned.longest if held else _find_shortest(errors, scanned)
    return with_periods(delays, periods), scans


class _Scanned(NamedTuple):
    """A scan and the longest of the periods that explain the series about as well as the best.

    `found` has the errors of each period tried.
    """

    scan: Scan
    longest: float
    found: list[WindowErrors]
    latest: float


def _find_shortest(errors: Callable[[float], WindowErrors], scanned: _Scanned) -> float:
    """The best period of the shortest ones that explain the series about as well as any.

    On a cycle a lag and its multiples, or its complements, say the same.
    """
    scan = scanned.scan
    if not scan.good.any():
        return scanned.longest
    first = int(np.argmax(scan.good))
    run = np.argmin(np.append(scan.good[first:], False))
    best = first + int(np.argmin(scan.errors[first : first + run]))
    start = float(scan.periods[best])
    return _refine_valley(errors, start, scanned.found[best], scan.periods, scanned.latest)[0]


def _scan_period(
    errors: Callable[[float], WindowErrors], low: float, high: float, latest: float, progress: bool
) -> _Scanned:
    """Scans from `low` to `high`, then refines the deepest valleys. A change of the period moves
    knots in proportion to their distance from time zero, at most `latest`."""
    # A valley ends where the last knot has moved by half an interval. A tenth resolves it.
    count = np.log(high / low) * latest / (0.1 * np.sqrt(low * high))
    grid = np.geomspace(low, high, int(np.clip(count, 100, MOST_PERIODS)))
    found: list[WindowErrors] = []
    with Progress("periods", 0, len(grid), shown=progress) as bar:
        for number, tau in enumerate(grid, 1):
            found.append(errors(tau))
            bar.update(number, f"error {np.sqrt(found[-1].mean()):.3g}")
    means = np.array([e.mean() for e in found])
    padded = np.concatenate([[np.inf], means, [np.inf]])
    valleys = np.flatnonzero((means <= padded[:-2]) & (means <= padded[2:]))
    valleys = valleys[np.argsort(means[valleys])][:VALLEYS]
    refined = [_refine_valley(errors, float(grid[v]), found[v], grid, latest) for v in valleys]
    least = min((e for _, e in refined), key=np.mean)
    # Of periods that explain the series equally well, the longest has the fewest knots.
    best = max(tau for tau, e in refined if is_not_worse(e, least))
    good = np.array([is_not_worse(e, least) for e in found])
    return _Scanned(Scan(grid, np.sqrt(means), good), float(best), found, latest)


def _refine_valley(
    errors: Callable[[float], WindowErrors],
    tau: float,
    error: WindowErrors,
    grid: Float[np.ndarray, " tried"],
    latest: float,
) -> tuple[float, WindowErrors]:
    """The bottom of the valley around `tau`, by successively finer grids within `grid`."""
    best, ratio = (tau, error), float(grid[1] / grid[0])
    while (ratio - 1) * latest / tau > 1e-3:
        finer = np.clip(best[0] * ratio ** np.linspace(-1, 1, 21), grid[0], grid[-1])
        best = min(((t, errors(t)) for t in finer), key=lambda pair: pair[1].mean())
        ratio = ratio**0.15
    return best
