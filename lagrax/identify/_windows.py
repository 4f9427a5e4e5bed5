"""Windows of measured series, and which of them a model learns from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._solve.delays import Delay
from ._lookback import find_earliest, find_first_instant, find_reach
from ._series import Trajectory, find_long_gaps, median_gap

# More windows hardly add information.
MOST_WINDOWS = 2000
MOST_HELD_OUT = 256
# Of the windows at rest, as many are kept as there are others, and at least these.
LEAST_AT_REST = 16
# A series of at most so many samples is short; that many of them can be held out by trajectory.
SHORT = 32
LEAST_WHOLE = 4


class Window(NamedTuple):
    """Samples `first` to `last` (inclusive) of a trajectory."""

    trajectory: int
    first: int
    last: int


class Split(NamedTuple):
    """Windows to learn from and windows held out for validation.

    `held_out_from` has the first held-out sample of each trajectory, or its length if none is.
    """

    learning: list[Window]
    held_out: list[Window]
    held_out_from: list[int]


def default_window(trajectories: Sequence[Trajectory], delays: Sequence[Delay]) -> int:
    """16 samples, or more to span twice the reach of the delays.

    At most half of a short series and a quarter of a long one. Several short series are predicted
    whole, since some of them can be held out.
    """
    reach = find_reach([d for d in delays if d.tau is not None])
    wanted = max(16, int(np.ceil(2 * reach / median_gap(trajectories))))
    shortest = min(len(t.ts) for t in trajectories)
    if shortest <= SHORT:
        whole = len(trajectories) >= LEAST_WHOLE
        return max(1, min(wanted, shortest - 1 if whole else shortest // 2))
    return min(wanted, max(SHORT // 2, shortest // 4 + 1))


def cut_windows(
    trajectories: Sequence[Trajectory], length: int, reach: float, stride: int | None = None
) -> list[Window]:
    """Windows of `length` gaps, `stride` apart (by default end to end).

    Windows that look back by `reach` beyond the start of their trajectory are dropped if at least
    half of the windows remain.
    """
    windows = []
    for number, trajectory in enumerate(trajectories):
        gaps = len(trajectory.ts) - 1
        size = min(length, gaps)
        starts = range(0, gaps - size + 1, stride or size)
        windows += [Window(number, s, s + size) for s in starts]

    def has_past(w: Window) -> bool:
        ts = trajectories[w.trajectory].ts
        return bool(ts[w.first] - reach >= ts[0])

    return _keep_half([w for w in windows if has_past(w)], windows)


def _keep_half(chosen: list[Window], windows: list[Window]) -> list[Window]:
    """The chosen windows if they are at least half of all, otherwise all."""
    return chosen if 2 * len(chosen) >= len(windows) else windows


def split_windows(
    trajectories: Sequence[Trajectory], window: int, delays: Sequence[Delay], share: float
) -> Split:
    """Holds out the end of each trajectory, `share` of it up to the last value of every state.

    If the trajectories are too short for windows on both sides, the last trajectories are held out
    whole.
    """
    whole = trajectories
    trajectories = [t.until(t.last_known) for t in trajectories]
    windows = _usable_windows(trajectories, window, delays)
    ends = [(1 - share) * (len(t.ts) - 1) for t in trajectories]
    first = [int(np.floor(end)) + 1 for end in ends]
    learning = [w for w in windows if w.last <= ends[w.trajectory]]
    held_out = [w for w in windows if w.first >= ends[w.trajectory]]
    # In short series, held-out windows begin in the part to learn from and end behind it.
    held_out = held_out or [w for w in windows if w.last > ends[w.trajectory]]
    if not learning or not held_out:
        kept = max(1, round((1 - share) * len(trajectories)))
        first = [len(t.ts) if i < kept else 0 for i, t in enumerate(whole)]
        learning = [w for w in windows if w.trajectory < kept]
        held_out = [w for w in windows if w.trajectory >= kept]
    if not learning or not held_out:
        raise ValueError(
            f"The series are too short for windows of {window} samples with {share:.0%} of it held "
            "out. Give a smaller `window`, a longer series, or more trajectories."
        )
    # A trajectory without a window on either side is learned from whole.
    split = {w.trajectory for w in [*learning, *held_out]}
    learning += [w for w in windows if w.trajectory not in split]
    first = [first[i] if i in split else len(t.ts) for i, t in enumerate(whole)]
    learning = _thin_rest(trajectories, learning)
    return Split(_thin(learning, MOST_WINDOWS), _thin(held_out, MOST_HELD_OUT), first)


def take_learning_part(
    trajectories: Sequence[Trajectory], delays: Sequence[Delay], share: float
) -> list[Trajectory]:
    """The trajectories without the `share` that `split_windows` holds out."""
    window = default_window(trajectories, delays)
    first = split_windows(trajectories, window, delays, share).held_out_from
    return [t.until(n - 1) for t, n in zip(trajectories, first, strict=True) if n > 0]


def _thin(windows: list[Window], most: int) -> list[Window]:
    """Every k-th window, so that at most `most` remain."""
    return windows[:: -(-len(windows) // most)]


def _usable_windows(
    trajectories: Sequence[Trajectory], window: int, delays: Sequence[Delay]
) -> list[Window]:
    """Overlapping windows that start at a measured sample and whose past is known."""
    windows = cut_windows(trajectories, window, 0.0, max(1, window // 4))
    windows = _drop_without_past(trajectories, windows, delays)
    windows = _start_at_measured(trajectories, windows, find_reach(delays))
    windows = _drop_across_long_gaps(trajectories, windows)
    # Before the first instant of a hold, the equation holds the state that it starts from. That is
    # right only at the start of a trajectory.
    instant = find_first_instant(delays)
    return [w for w in windows if w.first == 0 or trajectories[w.trajectory].ts[w.first] >= instant]


def _drop_without_past(
    trajectories: Sequence[Trajectory], windows: list[Window], delays: Sequence[Delay]
) -> list[Window]:
    """Drops windows that look back beyond the start of their trajectory, if half remain."""
    known = []
    for w in windows:
        ts = trajectories[w.trajectory].ts
        if find_earliest(delays, ts[w.first]) >= ts[0] - 1e-9 * (ts[-1] - ts[0]):
            known.append(w)
    return _keep_half(known, windows)


def _drop_across_long_gaps(
    trajectories: Sequence[Trajectory], windows: list[Window]
) -> list[Window]:
    """Drops windows that go across a long gap, if half remain. Inputs are old there, and a model
    that is trained for such horizons needs more steps everywhere."""
    long = [find_long_gaps(t) for t in trajectories]
    without = [w for w in windows if not long[w.trajectory][w.first : w.last].any()]
    return _keep_half(without, windows)


def _thin_rest(trajectories: Sequence[Trajectory], windows: list[Window]) -> list[Window]:
    """Drops most windows at rest if they outnumber the others. Only noise varies there, and a
    regression on noise finds coefficients too close to zero."""
    rest = np.flatnonzero(_find_rest(trajectories, windows))
    kept = max(LEAST_AT_REST, len(windows) - len(rest))
    if len(rest) <= kept:
        return windows
    dropped = set(np.delete(rest, np.linspace(0, len(rest) - 1, kept).astype(int)).tolist())
    return [w for i, w in enumerate(windows) if i not in dropped]


def _find_rest(trajectories: Sequence[Trajectory], windows: list[Window]) -> np.ndarray:
    """Whether the states of each window vary no more than from sample to sample, and less than a
    fifth as much as in another window."""
    inside = [trajectories[w.trajectory].filled[w.first : w.last + 1] for w in windows]
    variance = np.array([x.var(axis=0) for x in inside])
    jumps = np.array([np.mean(np.diff(x, axis=0) ** 2, axis=0) for x in inside])
    return ((variance <= jumps) & (variance < 0.04 * variance.max(axis=0))).all(axis=1)


def _start_at_measured(
    trajectories: Sequence[Trajectory], windows: list[Window], reach: float
) -> list[Window]:
    """Moves each window to the next sample with all states measured, and drops windows without any
    measured value after it. Windows that look back across a long gap are dropped if half remain."""
    all_measured = [np.flatnonzero(~np.isnan(t.ys).any(axis=1)) for t in trajectories]
    or_end = [np.append(m, len(t.ts)) for t, m in zip(trajectories, all_measured, strict=True)]
    gapless = [_find_gapless(t, m, reach) for t, m in zip(trajectories, all_measured, strict=True)]
    gapless_past: dict[Window, bool] = {}
    for w in windows:
        ys, measured = trajectories[w.trajectory].ys, all_measured[w.trajectory]
        place = int(np.searchsorted(measured, w.first))
        # If no sample has all its states, the window stays.
        first = w.first if not measured.size else int(or_end[w.trajectory][place])
        moved = Window(w.trajectory, first, w.last + first - w.first)
        if moved.last < len(ys) and not np.isnan(ys[first + 1 : moved.last + 1]).all():
            good = bool(gapless[w.trajectory][place]) if measured.size else True
            gapless_past[moved] = good
    return _keep_half([w for w, good in gapless_past.items() if good], list(gapless_past))


def _find_gapless(trajectory: Trajectory, measured: np.ndarray, reach: float) -> np.ndarray:
    """Whether the past of each measured sample, as far as `reach`, has no gap longer than ten
    median gaps."""
    ts = trajectory.ts[measured]
    if len(ts) < 3:
        return np.ones(len(ts), bool)
    long = np.diff(ts, prepend=ts[:1]) > 10 * np.median(np.diff(ts))
    until = np.cumsum(long)
    before = np.concatenate([[0], until])[np.searchsorted(ts, ts - reach, side="right")]
    return until == before


def draw_windows(rng: np.random.Generator, number: int, member: int) -> np.ndarray:
    """Bootstrap sample of windows for a member of an ensemble; the first member has each once."""
    return np.arange(number) if member == 0 else rng.integers(0, number, number)
