"""Selects the number, kind and periods of the delays that a measured series shows.

Candidates are compared without training a network. Polynomials of the state and its past are fitted
in integral form (`_regression`), in a few milliseconds each. Their errors on held-out windows are
compared.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._solve.arguments import check_whole, is_number
from .._solve.delays import Delay, Lag, describe, has_one_period
from ..plotting import Figure, Panel, Points
from ._lookback import find_reach
from ._options import Options
from ._periods import ComparedSeries, Scan as Scan, WindowErrors, find_periods, prepare_comparison
from ._regression import MOST_DEGREE, TOO_HIGH, is_not_worse
from ._series import read_series
from ._windows import take_learning_part


class Candidate(NamedTuple):
    """The result for one candidate.

    - `name`: the given name, or a description of the delays.
    - `delays`: all its delays, with numbers for their periods.
    - `kept`: the delays that the series needs.
    - `error`: the held-out error with `kept` (root mean square, in units of the signal within a
      window).
    - `losses`: the growth of the error without each of `delays`.
    - `scans`: the scan of each period that had to be found.
    """

    name: str
    delays: list[Delay]
    kept: list[Delay]
    error: float
    losses: list[float]
    scans: Sequence[Scan] = ()


@dataclasses.dataclass(frozen=True)
class Selection:
    """The answer of `select_delays`. Print it for a table; draw `figure()` for a picture.

    - `candidates`: the result for each, a `Candidate`.
    - `best`: the chosen one.
    """

    candidates: list[Candidate]
    best: Candidate

    @property
    def delays(self) -> list[Delay]:
        """The delays to use, as in `Identifier(delays=selection.delays)`."""
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
        """The held-out error of each candidate, and its growth without each of the delays."""
        places = np.arange(1, len(self.candidates) + 1)
        errors = np.array([c.error for c in self.candidates])
        best = [c is self.best for c in self.candidates]
        marks = [
            Points(places, errors, label="held-out error", size=6.0),
            Points(places[best], errors[best], label="chosen", colour="orange", size=9.0),
        ]
        growth = [
            (place, loss)
            for place, c in zip(places, self.candidates, strict=True)
            for loss in c.losses
        ]
        points = Points(
            [place for place, _ in growth],
            [loss for _, loss in growth],
            label="growth of the error without one of its delays",
            colour="green",
            size=6.0,
        )
        names = "; ".join(f"{i}: {c.name}" for i, c in zip(places, self.candidates, strict=True))
        ends = (0.5, len(places) + 0.5)
        return Figure(
            "delays",
            f"Held-out error of each candidate, and its growth without each delay. {names}.",
            [
                Panel(marks, "", "candidate", "held-out error", ylog=True, xlim=ends),
                Panel([points], "", "candidate", "growth of the error", xlim=ends),
            ],
            columns=2,
        )


def select_delays(
    ts: Any,
    ys: Any = None,
    candidates: Mapping[str, Sequence[Delay]] | Sequence[Sequence[Delay]] = (),
    inputs: Any = None,
    *,
    time: str | None = None,
    degree: int = 2,
    window: int = 16,
    validation: float | int = Options.validation,
) -> Selection:
    """Compares candidates for the delays of an equation by their error on held-out windows.

    ```python
    from lagrax import Hold, Lag, holds

    found = lagrax.select_delays(
        ts, ys, {"none": [], "one hold": holds(1.0, 1), "two": holds(1.0, 2), "lag": [Lag(1.0)]}
    )
    print(found)
    ```

    Each candidate loses its delays one after the other, the least needed first, as long as the
    held-out error grows by less than two standard errors. Dropping a delay drops all terms with its
    entry of the history. Of the candidates that are then as good as the best, the one with the
    fewest delays is chosen, and of several lags the shortest.

    **Arguments:**

    - `ts`, `ys`, `inputs`, `time`: as in `Identifier.fit`.
    - `candidates`: lists of delays, by name or in a list. A period may be `Learn(...)`.
    - `degree`: the degree of the polynomials. Powers of the state at a single time have one more.
    - `window`: the number of samples that a prediction spans.
    - `validation`: the share at the end of each trajectory that is left out, since `Identifier`
      holds it out and judges the equation there. With 0 the whole series is used.

    The comparison is only as good as polynomials describe the equation. To be sure, fit an
    `Identifier` with each and compare their `score`s.
    """
    check_whole("select_delays", "degree", degree, 1, MOST_DEGREE, TOO_HIGH)
    check_whole("select_delays", "window", window, 1)
    if not is_number(validation) or not 0 <= validation < 1:
        raise ValueError(
            f"select_delays got validation={validation!r}; expected a share from 0 to below 1."
        )
    trajectories = read_series(ts, ys, inputs, time=time)
    named = _name_candidates(candidates)
    if validation:
        trajectories = take_learning_part(trajectories, [], validation)
    comparison = prepare_comparison(trajectories, list(named.values()), degree, window)
    results = [_evaluate(comparison, name, delays) for name, delays in named.items()]
    least = min((errors for _, errors in results), key=np.mean)
    good = [c for c, errors in results if is_not_worse(errors, least)]
    best = min(good, key=lambda c: (len(c.kept), c.error))
    if best.kept and all(isinstance(d, Lag) for d in best.kept):
        # On a cycle, longer lags say the same as shorter ones.
        lags = [c for c in good if [*map(type, c.kept)] == [*map(type, best.kept)]]
        best = min(lags, key=lambda c: find_reach(c.kept))
    return Selection([c for c, _ in results], best)


def _name_candidates(candidates: Any) -> dict[str, list[Delay]]:
    """The candidates by name; those in a list are named by their delays."""
    lists = list(candidates.values()) if isinstance(candidates, Mapping) else candidates
    if not isinstance(lists, Sequence) or not all(isinstance(x, Sequence) for x in lists):
        raise TypeError(
            f"select_delays got candidates={candidates!r:.80}; expected lists of delays, such as "
            "[[], [Hold(1.0)]]."
        )
    if not isinstance(candidates, Mapping):
        names = [describe(list(delays)) for delays in candidates]
        unique = [
            name if names.count(name) == 1 else f"{i + 1}: {name}" for i, name in enumerate(names)
        ]
        candidates = dict(zip(unique, candidates, strict=True))
    if not candidates:
        raise ValueError(
            "select_delays got no candidates; expected lists of delays, such as [[], [Hold(1.0)]]."
        )
    for name, delays in candidates.items():
        for delay in delays:
            if not has_one_period(delay):
                raise TypeError(
                    f"The candidate {name!r} holds {delay!r}; expected lagrax.Hold or lagrax.Lag, "
                    "with one period."
                )
    return {name: list(delays) for name, delays in candidates.items()}


def _evaluate(
    comparison: ComparedSeries, name: str, delays: list[Delay]
) -> tuple[Candidate, WindowErrors]:
    """Finds the periods of a candidate, then drops the delays that the series does not need."""
    found, scans = find_periods(comparison, delays)
    errors = comparison.measure(found)
    root = lambda e: float(np.sqrt(np.mean(e)))
    losses = [root(comparison.measure(found, without=i)) - root(errors) for i in range(len(found))]
    kept = list(found)
    while kept:
        reduced = [comparison.measure(kept, without=i) for i in range(len(kept))]
        least = int(np.argmin([np.mean(e) for e in reduced]))
        if not is_not_worse(reduced[least], errors):
            break
        del kept[least]
    errors = comparison.measure(kept)
    return Candidate(name, found, kept, root(errors), losses, scans), errors
