"""A fitted equation, solved over measured series and over times that a user gives."""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay, Hold, Lag, periods_to_learn, with_periods
from ._dataset import Dataset
from ._fields import HeldLinear
from ._lookback import find_first_instant, find_reach, read_period
from ._options import Options
from ._series import Trajectory
from ._simulation import (
    PERIOD_ROOM,
    STEPS_A_SAMPLE,
    LinearPast,
    SolveSetup,
    WindowArrays,
    compile_simulation,
    count_intervals,
    count_members,
    predict_mean,
    stack_windows,
    take_member,
    to_jax,
)
from ._speed import choose_steps, find_longest_interval
from ._windows import Window

# A solution this many standard deviations away from the measurements runs away.
FAR = 1000.0


def prepare_setup(
    dataset: Dataset,
    options: Options,
    periods: tuple[float, ...],
    windows: Sequence[WindowArrays],
) -> SolveSetup:
    """The arguments of `solve` for these `windows`, with steps chosen by the sampling unless the
    user gave them. `periods` are the scanned ones of the periods to learn."""
    inputs = dataset.inputs > 0
    unit = jnp.asarray(dataset.scale, float)
    setup = SolveSetup(list(options.delays), periods, None, 1, options.solver, inputs, unit)
    delays = with_periods(options.delays, periods)
    longest = find_longest_interval(delays, windows, inputs)
    return setup._replace(
        intervals=_count_intervals(setup, [span for w in windows for span in w.spans]),
        steps=options.steps or choose_steps(longest, dataset.gap, delays, inputs),
    )


def _count_intervals(setup: SolveSetup, spans: Sequence[tuple[float, float]]) -> int | None:
    """With the shortest periods that training may reach."""
    shortest = [p * (1 - PERIOD_ROOM) for p in setup.periods]
    return count_intervals(with_periods(setup.delays, shortest), spans, bool(setup.periods))


class FittedModel(NamedTuple):
    """An ensemble fitted to a dataset.

    - `members`: the equations of the ensemble, stacked.
    - `delays`: those of the first member, with numbers for their periods.
    - `has_given_steps`: whether the user has chosen the steps. Otherwise only training uses equal
      ones.
    """

    dataset: Dataset
    setup: SolveSetup
    members: PyTree
    delays: list[Delay]
    has_given_steps: bool

    @classmethod
    def of_members(
        cls, dataset: Dataset, setup: SolveSetup, members: PyTree, has_given_steps: bool
    ) -> "FittedModel":
        delays = [_with_number(d) for d in setup.current_delays(take_member(members, 0))]
        return cls(dataset, setup, members, delays, has_given_steps)

    @property
    def field(self) -> Callable:
        """The field of the first member."""
        return take_member(self.members, 0).field

    @property
    def periods(self) -> list[float]:
        """The learned periods."""
        return [*match_periods(self.setup.delays, self.delays)]

    def solve_windows(self, windows: WindowArrays) -> Float[np.ndarray, "windows samples states"]:
        """The mean of the members over each window."""
        if isinstance(self.field, HeldLinear):
            return self._recur(windows)
        intervals = _count_intervals(self.setup, windows.spans)
        setup = self.setup._replace(steps=self._choose_steps(windows.spans), intervals=intervals)
        return np.asarray(predict_mean(self.members, setup, to_jax(windows)))

    def _recur(self, windows: WindowArrays) -> Float[np.ndarray, "windows samples states"]:
        """A linear equation from sample to sample."""
        field: HeldLinear = self.field  # pyright: ignore[reportAssignmentType]
        back = field.gap * np.arange(field.lag[-1] + 1)
        rows = zip(windows.ts, windows.past_ts, windows.past_ys, strict=True)
        past = np.stack([_interpolate(ts[0] - back, at, ys) for ts, at, ys in rows])
        later = field.recur(past, windows.us[:, :-1])
        return np.concatenate([past[:, :1], later], axis=1)

    def measure_error(self, windows: WindowArrays) -> Float[np.ndarray, " states"]:
        """The root mean square error over the windows, in the unit of each state."""
        weights = windows.weights
        square = np.where(weights > 0, (self.solve_windows(windows) - windows.ys) ** 2, 0.0)
        return np.sqrt(square.sum(axis=(0, 1)) / np.maximum(weights.sum(axis=(0, 1)), 1))

    def simulate(
        self, ts: Float[np.ndarray, " times"], past: Callable, us: Float[Array, "times inputs"]
    ) -> Float[np.ndarray, "members times states"]:
        """The states by each member; `past` counts time from the dataset's origin."""
        shifted = ts - self.dataset.origin
        if isinstance(self.field, HeldLinear) and self.field.is_sampled(shifted):
            return self._recur_from(shifted, past, us)
        span = (float(shifted[0]), float(shifted[-1]))
        learned = bool(self.setup.periods)
        setup = self.setup._replace(
            steps=self._choose_steps([span]),
            intervals=_count_intervals(self.setup, [span]) if learned else None,
        )
        # A user's function may close over values that change, so it is compiled anew.
        fixed = isinstance(past, LinearPast)
        compiles = compile_simulation if fixed else compile_simulation.__wrapped__
        run = compiles(shifted.tobytes(), learned)
        members = [take_member(self.members, i) for i in range(count_members(self.members))]
        states = np.stack([np.asarray(run(m, setup, past, us)) for m in members])
        if not np.all(np.isfinite(states)):
            warnings.warn(self._explain_failure(states), stacklevel=3)
        return states

    def _recur_from(
        self, ts: Float[np.ndarray, " times"], past: Callable, us: Float[Array, "times inputs"]
    ) -> Float[np.ndarray, "members times states"]:
        """A linear equation at its next samples."""
        field: HeldLinear = self.field  # pyright: ignore[reportAssignmentType]
        back = ts[0] - field.gap * np.arange(field.lag[-1] + 1)
        before = np.stack([np.asarray(past(jnp.asarray(t, float)), float) for t in back])
        later = field.recur(before[None], np.asarray(us, float)[None, :-1])
        return np.concatenate([before[None, :1], later], axis=1)

    def _explain_failure(self, states: Float[np.ndarray, "members times states"]) -> str:
        """Explains whether a solution grows without bound or is too fast for its solver."""
        away = np.abs(states - self.dataset.centre) / self.dataset.scale
        if np.nanmax(away, initial=0.0) > FAR:
            return (
                "The learned equation does not stay finite there; later values are NaN. It was "
                "learned near the measured states, and may diverge from others."
            )
        return (
            f"The learned equation needs more than {STEPS_A_SAMPLE} steps between two of these "
            "times; later values are NaN. It may grow without bound there. If not, give more "
            "times, or a solver for stiff equations, such as solver=diffrax.Kvaerno5()."
        )

    def _choose_steps(self, spans: Sequence[tuple[float, float]]) -> int | None:
        """None, for steps under error control, unless the user or the solver wants equal ones.

        Without delays, a whole span is one interval.
        """
        if isinstance(self.setup.solver, diffrax.AbstractAdaptiveSolver):
            return self.setup.steps if self.has_given_steps else None
        if self.setup.delays or self.setup.inputs or self.has_given_steps:
            return self.setup.steps
        return max(4, int(np.ceil(max(b - a for a, b in spans) / (2 * self.dataset.gap))))

    def predict(self, trajectory: Trajectory, horizon: int) -> Float[np.ndarray, "samples states"]:
        """Restarts from the measurements every `horizon` samples."""
        shifted = trajectory._replace(ts=trajectory.ts - self.dataset.origin)
        first, last = self.find_first_start(trajectory), len(shifted.ts) - 1
        windows = [Window(0, s, min(s + horizon, last)) for s in range(first, last, horizon)]
        arrays = stack_windows([shifted], windows, self.delays)
        out = shifted.filled.copy()
        for w, y in zip(windows, self.solve_windows(arrays), strict=True):
            out[w.first + 1 : w.last + 1] = y[1 : w.last - w.first + 1]
        return out

    def find_first_start(self, trajectory: Trajectory) -> int:
        """The first sample whose past is known, if that leaves half of the series."""
        ts = trajectory.ts
        reach = find_reach([d for d in self.delays if d.tau is not None])
        known = max(ts[0] + reach, find_first_instant(self.delays))
        first = max(int(np.searchsorted(ts, known)), trajectory.first_known)
        return first if 2 * first < len(ts) else trajectory.first_known


def match_periods(delays: Sequence[Delay], found: Sequence[Delay]) -> tuple[float, ...]:
    """The number that `found` has for each period to learn among `delays`."""
    pairs = [*zip(delays, found, strict=True)]
    return tuple(
        next(read_period(new) for old, new in pairs if old.tau is learn)
        for learn in periods_to_learn(delays)
    )


def _interpolate(
    times: Float[np.ndarray, " times"],
    ts: Float[np.ndarray, " points"],
    ys: Float[np.ndarray, "points states"],
) -> Float[np.ndarray, "times states"]:
    return np.stack([np.interp(times, ts, y) for y in ys.T], axis=1)


def _with_number(delay: Delay) -> Delay:
    if delay.tau is None:
        return delay
    tau = read_period(delay)
    return Lag(tau) if isinstance(delay, Lag) else Hold(tau, lag=delay.lag)
