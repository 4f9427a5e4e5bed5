"""Which windows of measured series a model learns from, and which are held out."""

from collections.abc import Sequence

import numpy as np

from .._solve.delays import Delay, Hold
from ._regression import earliest_of, reach_of
from ._series import Trajectory, Window, cut, gap_of

# More windows than these say little more.
MOST_WINDOWS = 2000
# Of windows at rest as many are kept as there are others, and these at least.
LEAST_AT_REST = 16


def default_window(trajectories: Sequence[Trajectory], delays: Sequence[Delay]) -> int:
    gap = gap_of(trajectories)
    reach = reach_of([d for d in delays if d.tau is not None])
    wanted = max(16, int(np.ceil(2 * reach / gap)))
    return max(1, min(wanted, min(len(t.ts) for t in trajectories) // 4 + 1))


def first_known(trajectory: Trajectory) -> int:
    """The first sample from which on every state has been measured."""
    return int(np.argmax(~np.isnan(trajectory.ys), axis=0).max())


def last_known(trajectory: Trajectory) -> int:
    """The last sample up to which every state was measured."""
    return len(trajectory.ts) - 1 - int(np.argmax(~np.isnan(trajectory.ys[::-1]), axis=0).max())


def divided(
    trajectories: Sequence[Trajectory], window: int, delays: Sequence[Delay], share: float
) -> tuple[list[Window], list[Window]]:
    """Windows to learn from, and held-out ones behind them. What comes after the last value of a
    state is left out."""
    trajectories = [Trajectory(*(part[: last_known(t) + 1] for part in t)) for t in trajectories]
    step = max(1, window // 4)
    windows = _with_past(trajectories, cut(trajectories, window, 0.0, step), delays)
    windows = _from_measured(trajectories, windows, reach_of(delays))
    windows = [w for w in windows if _has_instants(trajectories[w.trajectory], w.first, delays)]
    ends = [(1 - share) * (len(t.ts) - 1) for t in trajectories]
    learning = [w for w in windows if w.last <= ends[w.trajectory]]
    testing = [w for w in windows if w.first >= ends[w.trajectory]]
    # Of short series the held-out windows begin in what is learned from, and end behind it.
    testing = testing or [w for w in windows if w.last > ends[w.trajectory]]
    if not learning or not testing:
        # Shorter ones are held out whole, the last ones.
        kept = max(1, round((1 - share) * len(trajectories)))
        learning = [w for w in windows if w.trajectory < kept]
        testing = [w for w in windows if w.trajectory >= kept]
    if not learning or not testing:
        raise ValueError(
            f"The series are too short for windows of {window} samples with {share:.0%} of it held "
            "out. Give a smaller `window`, a longer series, or more trajectories."
        )
    # A series with a window to learn from has some; one without is learned from whole.
    alone = {w.trajectory for w in [*learning, *testing]}
    learning += [w for w in windows if w.trajectory not in alone]
    learning = _few_at_rest(trajectories, learning)
    return learning[:: -(-len(learning) // MOST_WINDOWS)], testing[:: -(-len(testing) // 256)]


def _with_past(
    trajectories: Sequence[Trajectory], windows: list[Window], delays: Sequence[Delay]
) -> list[Window]:
    """Windows that look back no further than their trajectory goes, if that leaves half of them."""
    known = []
    for w in windows:
        ts = trajectories[w.trajectory].ts
        if earliest_of(delays, ts[w.first]) >= ts[0] - 1e-9 * (ts[-1] - ts[0]):
            known.append(w)
    return known if 2 * len(known) >= len(windows) else windows


def _few_at_rest(trajectories: Sequence[Trajectory], windows: list[Window]) -> list[Window]:
    """Without most windows at rest, where these are many: nothing but noise varies there, and a
    regression on noise finds coefficients too close to zero."""
    rest = np.flatnonzero(_at_rest(trajectories, windows))
    kept = max(LEAST_AT_REST, len(windows) - len(rest))
    if len(rest) <= kept:
        return windows
    left_out = set(np.delete(rest, np.linspace(0, len(rest) - 1, kept).astype(int)).tolist())
    return [w for i, w in enumerate(windows) if i not in left_out]


def _at_rest(trajectories: Sequence[Trajectory], windows: list[Window]) -> np.ndarray:
    """For each window, whether its states wander no further than they jump from sample to sample,
    and less than a fifth as far as in another window."""
    inside = [trajectories[w.trajectory].filled[w.first : w.last + 1] for w in windows]
    wandered = np.array([x.var(axis=0) for x in inside])
    jumped = np.array([np.mean(np.diff(x, axis=0) ** 2, axis=0) for x in inside])
    return ((wandered <= jumped) & (wandered < 0.04 * wandered.max(axis=0))).all(axis=1)


def _from_measured(
    trajectories: Sequence[Trajectory], windows: list[Window], reach: float
) -> list[Window]:
    """Windows whose first sample is measured, moved there where it is not, and whose others are not
    all missing; and if that leaves half of them, those which look back at no long gap."""
    all_measured = [np.flatnonzero(~np.isnan(t.ys).any(axis=1)) for t in trajectories]
    or_end = [np.append(m, len(t.ts)) for t, m in zip(trajectories, all_measured, strict=True)]
    gapless = [_without_gap(t, m, reach) for t, m in zip(trajectories, all_measured, strict=True)]
    found: dict[Window, bool] = {}
    for w in windows:
        ys, measured = trajectories[w.trajectory].ys, all_measured[w.trajectory]
        place = int(np.searchsorted(measured, w.first))
        # Where no sample has all its states a window stays where it is.
        first = w.first if not measured.size else int(or_end[w.trajectory][place])
        moved = Window(w.trajectory, first, w.last + first - w.first)
        if moved.last < len(ys) and not np.isnan(ys[first + 1 : moved.last + 1]).all():
            found[moved] = bool(gapless[w.trajectory][place]) if measured.size else True
    seen = [w for w, good in found.items() if good]
    return seen if 2 * len(seen) >= len(found) else list(found)


def _without_gap(trajectory: Trajectory, measured: np.ndarray, reach: float) -> np.ndarray:
    """For each measured sample, whether what it looks back at has no gap that is long for this
    series."""
    ts = trajectory.ts[measured]
    if len(ts) < 3:
        return np.ones(len(ts), bool)
    long = np.diff(ts, prepend=ts[:1]) > 10 * np.median(np.diff(ts))
    until = np.cumsum(long)
    before = np.concatenate([[0], until])[np.searchsorted(ts, ts - reach, side="right")]
    return until == before


def _has_instants(trajectory: Trajectory, first: int, delays: Sequence[Delay]) -> bool:
    """Whether a start is the series' own, or behind the first instants of all holds: before these
    an equation holds the state that it starts from."""
    return first == 0 or float(trajectory.ts[first]) >= first_instant(delays)


def first_instant(delays: Sequence[Delay]) -> float:
    needed = [-np.inf]
    for delay in delays:
        if isinstance(delay, Hold) and delay.times is not None and delay.lag < len(delay.times):
            needed.append(float(delay.times[delay.lag]))
    return max(needed)


def drawn_windows(rng: np.random.Generator, number: int, member: int) -> np.ndarray:
    """Windows for a member of an ensemble: the first has each once, others as often as drawn."""
    return np.arange(number) if member == 0 else rng.integers(0, number, number)
