"""Which delays does a measured series show? How many, of which kind, with which periods.

Candidates are compared without training a network: polynomials of the state and its past are
fitted in integral form (`_regression`), a few milliseconds each, and judged by windows of the
series that they were not fitted to.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._solve.arguments import check_whole
from .._solve.delays import Delay, Hold, Lag, describe, periods_to_learn, with_periods
from ..plotting import Figure, Panel, Points
from ..training._progress import Progress
from ._regression import (
    MOST_DEGREE,
    TOO_HIGH,
    Library,
    check_terms,
    held_out,
    monomials,
    normal_equations,
    not_worse,
    reach_of,
)
from ._series import Trajectory, Window, as_trajectories, cut, gap_of

Errors = Float[np.ndarray, " windows"]


class Candidate(NamedTuple):
    """What became of one candidate.

    - `name`: as it was given, or made of its delays.
    - `delays`: its delays, with the periods that were found.
    - `kept`: those of them that the series needs.
    - `error`: the held-out error with these (root mean square, in units of the signal within a
      window).
    - `losses`: by how much the error grows without each of `delays`.
    - `scans`: one for each period that was to be found.
    """

    name: str
    delays: list[Delay]
    kept: list[Delay]
    error: float
    losses: list[float]
    scans: Sequence["Scan"] = ()


@dataclasses.dataclass(frozen=True)
class Selection:
    """The answer of `select_delays`. `print` it for a table, draw `figure()` for a picture.

    - `candidates`: what became of each, as a `Candidate`.
    - `best`: the one that was chosen.
    """

    candidates: list[Candidate]
    best: Candidate

    @property
    def delays(self) -> list[Delay]:
        """The delays to use, such as `Identifier(delays=selection.delays)`."""
        return self.best.kept

    def __str__(self) -> str:
        rows = [("candidate", "error", "needed", "")]
        for c in self.candidates:
            mark = "<- chosen" if c is self.best else ""
            rows.append((c.name, f"{c.error:.3g}", describe(c.kept), mark))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ("  ".join(f"{x:{w}}" for x, w in zip(r, [*widths, 0], strict=True)) for r in rows)
        return "\n".join(line.rstrip() for line in lines)

    def figure(self) -> Figure:
        """Held-out error of each candidate, and what each of its delays is worth."""
        places = np.arange(1, len(self.candidates) + 1)
        errors = np.array([c.error for c in self.candidates])
        best = [c is self.best for c in self.candidates]
        marks = [
            Points(places, errors, label="held-out error", size=6.0),
            Points(places[best], errors[best], label="chosen", colour="orange", size=9.0),
        ]
        worth = [
            (place, loss)
            for place, c in zip(places, self.candidates, strict=True)
            for loss in c.losses
        ]
        value = Points(
            [place for place, _ in worth],
            [loss for _, loss in worth],
            label="growth of the error without one of its delays",
            colour="green",
            size=6.0,
        )
        names = "; ".join(f"{i}: {c.name}" for i, c in zip(places, self.candidates, strict=True))
        ends = (0.5, len(places) + 0.5)
        return Figure(
            "delays",
            f"Held-out error of each candidate, and what each of its delays is worth. {names}.",
            [
                Panel(marks, "", "candidate", "held-out error", ylog=True, xlim=ends),
                Panel([value], "", "candidate", "growth of the error", xlim=ends),
            ],
            columns=2,
        )


def select_delays(
    ts: Any,
    ys: Any,
    candidates: Mapping[str, Sequence[Delay]] | Sequence[Sequence[Delay]],
    inputs: Any = None,
    *,
    degree: int = 2,
    window: int = 16,
) -> Selection:
    """Compares what an equation could look back at, by a held-out criterion and by which of its
    delays can be left out.

    ```python
    from lagrax import Hold, Lag, holds

    found = lagrax.select_delays(
        ts, ys, {"none": [], "one hold": holds(1.0, 1), "two": holds(1.0, 2), "lag": [Lag(1.0)]}
    )
    print(found)
    ```

    Each candidate's delays are dropped one after the other, the least needed first, as long as the
    held-out error does not grow by more than it scatters (two standard errors): that is sparsity by
    groups, all terms with an entry of the history at a time. Of the candidates that are then as
    good as the best, the one with the fewest delays is chosen.

    **Arguments:**

    - `ts`, `ys`, `inputs`: as in `Identifier.fit`.
    - `candidates`: lists of delays, by name or not. `Learn` stands for a period to be found.
    - `degree`: of the polynomials; of the state at one time alone they have one degree more.
    - `window`: how many samples a prediction spans.

    Trust it as far as polynomials can describe the equation; then train, and compare `score`s.
    """
    check_whole("select_delays", "degree", degree, 1, MOST_DEGREE, TOO_HIGH)
    check_whole("select_delays", "window", window, 1)
    trajectories = as_trajectories(ts, ys, inputs)
    named = _named(candidates)
    task = make_task(trajectories, list(named.values()), degree, window)
    judged = [_judge(task, name, delays) for name, delays in named.items()]
    least = min((errors for _, errors in judged), key=np.mean)
    good = [c for c, errors in judged if not_worse(errors, least)]
    best = min(good, key=lambda c: (len(c.kept), c.error))
    return Selection([c for c, _ in judged], best)


def _named(candidates: Any) -> dict[str, list[Delay]]:
    lists = list(candidates.values()) if isinstance(candidates, Mapping) else candidates
    if not isinstance(lists, Sequence) or not all(isinstance(x, Sequence) for x in lists):
        raise TypeError(
            f"select_delays got candidates={candidates!r:.80}; expected lists of delays, such as "
            "[[], [Hold(1.0)]]."
        )
    if not isinstance(candidates, Mapping):
        names = [describe(list(delays)) for delays in candidates]
        again = [
            name if names.count(name) == 1 else f"{i + 1}: {name}" for i, name in enumerate(names)
        ]
        candidates = dict(zip(again, candidates, strict=True))
    if not candidates:
        raise ValueError(
            "select_delays got no candidates; expected lists of delays, such as [[], [Hold(1.0)]]."
        )
    for name, delays in candidates.items():
        for delay in delays:
            if not isinstance(delay, (Hold, Lag)):
                raise TypeError(
                    f"The candidate {name!r} holds {delay!r}; expected lagrax.Hold or lagrax.Lag."
                )
    return {name: list(delays) for name, delays in candidates.items()}


class Task(NamedTuple):
    """Series to explain, over which windows, by polynomials of which degree. Candidates are held
    against each other on the same windows, whose past is known to all of them."""

    trajectories: list[Trajectory]
    windows: list[Window]
    degree: int
    centre: Float[np.ndarray, " states"]
    scale: Float[np.ndarray, " states"]
    gap: float

    def errors(self, delays: Sequence[Delay], without: int | None = None) -> Errors:
        """Held-out, a window each; without all terms in one entry of the history, if that is
        given."""
        states, inputs = len(self.centre), self.trajectories[0].us.shape[1]
        times = 1 + len(delays)
        powers = _powers(states, times, inputs, self.degree)
        if without is not None:
            first = (1 + without) * states
            powers = powers[powers[:, first : first + states].sum(axis=1) == 0]
        us = np.concatenate([t.us for t in self.trajectories])
        spread = us.std(axis=0)
        centre = np.concatenate([np.tile(self.centre, times), us.mean(axis=0)])
        scale = np.concatenate([np.tile(self.scale, times), np.where(spread > 0, spread, 1.0)])
        library = Library(powers, centre, scale)
        return held_out(normal_equations(self.trajectories, self.windows, delays, library))


def _powers(
    states: int, times: int, inputs: int, degree: int
) -> Int[np.ndarray, "terms variables"]:
    """All monomials up to `degree`, and of the state at one time up to one more: an equation is
    seldom less simple in its present than in how that meets the past."""
    variables = times * states + inputs
    rows = [monomials(variables, degree)]
    higher = monomials(states, degree + 1)
    higher = higher[higher.sum(axis=1) > degree]
    for i in range(times):
        before, after = i * states, variables - (i + 1) * states
        rows.append(np.pad(higher, ((0, 0), (before, after))))
    return np.concatenate(rows)


# Fewer samples between two knots do not show what happens there: the measured past alone would
# seem to explain it.
LEAST_SAMPLES = 3


def check_sampling(trajectories: Sequence[Trajectory], delays: Sequence[Delay]) -> None:
    gap = gap_of(trajectories)
    longest = with_periods(delays, [learn.high for learn in periods_to_learn(delays)])
    for delay in longest:
        if isinstance(delay, Hold) and delay.times is None:
            tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
            if tau < 0.99 * LEAST_SAMPLES * gap:
                raise ValueError(
                    f"The samples are {gap:.3g} apart and {describe([delay])} has knots every "
                    f"{tau:.3g}; libraries, learned periods and select_delays need {LEAST_SAMPLES} "
                    "samples between knots at least. Sample more often, or train a network (mlp) "
                    "with a period that is given."
                )


def make_task(
    trajectories: list[Trajectory],
    candidates: Sequence[Sequence[Delay]],
    degree: int,
    window: int,
) -> Task:
    for delays in candidates:
        check_sampling(trajectories, delays)
        states, inputs = (part.shape[1] for part in (trajectories[0].ys, trajectories[0].us))
        check_terms(states * (1 + len(delays)) + inputs, degree)
    states = np.concatenate([t.filled for t in trajectories])
    spread = states.std(axis=0)
    reach = max(reach_of(delays) for delays in candidates)
    windows = cut(trajectories, window, reach, max(1, window // 2))
    return Task(
        trajectories,
        windows,
        degree,
        states.mean(axis=0),
        np.where(spread > 0, spread, 1.0),
        gap_of(trajectories),
    )


def _judge(task: Task, name: str, delays: list[Delay]) -> tuple[Candidate, Errors]:
    kept, scans = find_periods(task, delays)
    found = list(kept)
    errors = task.errors(kept)
    root = lambda e: float(np.sqrt(np.mean(e)))
    losses = [root(task.errors(kept, without=i)) - root(errors) for i in range(len(kept))]
    while kept:
        fewer = [kept[:i] + kept[i + 1 :] for i in range(len(kept))]
        reduced = [task.errors(kept, without=i) for i in range(len(kept))]
        least = int(np.argmin([np.mean(e) for e in reduced]))
        if not not_worse(reduced[least], errors):
            break
        kept = fewer[least]
    errors = task.errors(kept)
    return Candidate(name, found, kept, root(errors), losses, scans), errors


# --- periods --------------------------------------------------------------------------------------

# Of a scan; a longer one would take minutes.
MOST_PERIODS = 1500
# A scan's deepest valleys are looked at more closely: those at fractions of the period are nearly
# as deep, until the resolution tells them apart.
VALLEYS = 8


class Scan(NamedTuple):
    """Held-out errors (root mean square) over the periods that were tried for a `Learn`. An
    `Identifier` has them in `scans_`. One deep valley means a sure period; several, a doubtful one.

    - `periods`: increasing.
    - `errors`: one for each.
    - `good`: which of them explain the series about as well as the best one.
    """

    periods: Float[np.ndarray, " tried"]
    errors: Float[np.ndarray, " tried"]
    good: Bool[np.ndarray, " tried"]

    def ranges(self) -> list[tuple[float, float]]:
        """Those that are good, from the first to the last of neighbouring ones."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.good.astype(int), [0]])))
        ends = zip(edges[::2], edges[1::2] - 1, strict=True)
        return [(float(self.periods[a]), float(self.periods[b])) for a, b in ends]


def find_periods(
    task: Task, delays: Sequence[Delay], *, progress: bool = False
) -> tuple[list[Delay], list[Scan]]:
    """The delays with the best period for each `Learn`, and the scans that found it.

    Along a period the error has a narrow valley at the right one and kinks wherever a sample passes
    a knot, so it is scanned, not descended. Several periods are found one after the other, twice.
    """
    learned = periods_to_learn(delays)
    periods = [learn.start for learn in learned]
    scans: list[Scan] = [Scan(np.zeros(0), np.zeros(0), np.zeros(0, bool)) for _ in learned]
    for _ in range(min(len(learned), 2)):
        for i, learn in enumerate(learned):
            tried = lambda tau, i=i: with_periods(delays, [*periods[:i], tau, *periods[i + 1 :]])
            errors = lambda tau, tried=tried: task.errors(tried(float(tau)))
            held = any(isinstance(d, Hold) and d.tau is learn for d in delays)
            low = max(learn.low, LEAST_SAMPLES * task.gap) if held else learn.low
            low = min(low, 0.999 * learn.high)
            periods[i], scans[i] = _scanned(errors, low, learn.high, _longest(task), progress)
    return with_periods(delays, periods), scans


def _longest(task: Task) -> float:
    """How far from zero a knot may lie: a change of the period moves it that much more."""
    return max(float(np.abs(t.ts).max()) for t in task.trajectories)


def _scanned(
    errors: Callable[[float], Errors], low: float, high: float, longest: float, progress: bool
) -> tuple[float, Scan]:
    # Half an interval at the far end is where the valley ends: a tenth of one finds it.
    count = np.log(high / low) * longest / (0.1 * np.sqrt(low * high))
    grid = np.geomspace(low, high, int(np.clip(count, 100, MOST_PERIODS)))
    found = []
    with Progress("periods", 0, len(grid), shown=progress) as bar:
        for number, tau in enumerate(grid, 1):
            found.append(errors(tau))
            bar.update(number, f"error {np.sqrt(found[-1].mean()):.3g}")
    means = np.array([e.mean() for e in found])
    padded = np.concatenate([[np.inf], means, [np.inf]])
    valleys = np.flatnonzero((means <= padded[:-2]) & (means <= padded[2:]))
    valleys = valleys[np.argsort(means[valleys])][:VALLEYS]
    ratio = grid[1] / grid[0]
    refined = [_refined(errors, float(grid[v]), found[v], ratio, longest) for v in valleys]
    least = min((e for _, e in refined), key=np.mean)
    # Of periods that explain the series equally well, the longest has the fewest knots.
    best = max(tau for tau, e in refined if not_worse(e, least))
    good = np.array([not_worse(e, least) for e in found])
    return float(best), Scan(grid, np.sqrt(means), good)


def _refined(errors, tau: float, found: Errors, ratio: float, longest: float):
    """The bottom of the valley around `tau`, by grids ever closer."""
    best = (tau, found)
    while (ratio - 1) * longest / tau > 1e-3:
        closer = best[0] * ratio ** np.linspace(-1, 1, 21)
        best = min(((t, errors(t)) for t in closer), key=lambda pair: pair[1].mean())
        ratio = ratio**0.15
    return best
