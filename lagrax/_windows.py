"""Which windows of measured series a model learns from, and which are held out."""

from collections.abc import Sequence

import numpy as np

from ._delays import Delay, Hold
from ._regression import reach_of
from ._series import Trajectory, Window, cut, gap_of

# More windows than these say little more.
MOST_WINDOWS = 2000


def default_window(trajectories: Sequence[Trajectory], delays: Sequence[Delay]) -> int:
    gap = gap_of(trajectories)
    reach = reach_of([d for d in delays if d.tau is not None])
    wanted = max(16, int(np.ceil(2 * reach / gap)))
    return max(1, min(wanted, min(len(t.ts) for t in trajectories) // 4 + 1))


def divided(
    trajectories: Sequence[Trajectory], window: int, delays: Sequence[Delay], share: float
) -> tuple[list[Window], list[Window]]:
    """Windows to learn from, and held-out ones behind them."""
    step = max(1, window // 4)
    total = sum(max(len(t.ts) - 1 - window, 0) // step + 1 for t in trajectories)
    windows = cut(trajectories, window, reach_of(delays), step * -(-total // MOST_WINDOWS))
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
    return learning, testing[:: -(-len(testing) // 256)]


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
