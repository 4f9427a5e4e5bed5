"""A learned equation, followed over measured series and over times of one's own."""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay, Hold, Lag, periods_to_learn, with_periods
from ._equations import PERIOD_ROOM, Past, Row, Setting, intervals_over, make_rows, steps_between
from ._learning import mean_of, member_of, simulation
from ._measured import Measured
from ._members import as_arrays
from ._regression import reach_of
from ._series import Trajectory, Window
from ._windows import first_instant, first_known


def made_setting(
    measured: Measured,
    delays: Sequence[Delay],
    periods: tuple[float, ...],
    rows: Sequence[Row],
    steps: int | None,
    solver: diffrax.AbstractSolver,
) -> Setting:
    """How windows are followed; `periods` are those found for the delays that are to learn one."""
    inputs = measured.inputs > 0
    setting = Setting(list(delays), periods, None, 1, solver, inputs)
    spans = [span for row in rows for span in spans_of(row)]
    longest = max(b - a for a, b in spans)
    found = with_periods(delays, periods)
    return setting._replace(
        intervals=intervals_for(setting, spans),
        steps=steps or steps_between(found, measured.gap, longest, inputs),
    )


def intervals_for(setting: Setting, spans: Sequence[tuple[float, float]]) -> int | None:
    """With the smallest periods that training may give the delays."""
    smallest = [p * (1 - PERIOD_ROOM) for p in setting.periods]
    return intervals_over(with_periods(setting.delays, smallest), spans, bool(setting.periods))


class Learned(NamedTuple):
    """`members` are the equations of an ensemble, stacked; `delays` those of the first, with
    numbers for their periods. `steps_given` is whether the user has chosen the steps."""

    measured: Measured
    setting: Setting
    members: PyTree
    delays: list[Delay]
    steps_given: bool

    @classmethod
    def of(
        cls, measured: Measured, setting: Setting, members: PyTree, steps_given: bool
    ) -> "Learned":
        delays = [_plain(d) for d in setting.learned(member_of(members, 0))]
        return cls(measured, setting, members, delays, steps_given)

    @property
    def field(self) -> Callable:
        """That of the first member."""
        return member_of(self.members, 0).field

    @property
    def periods(self) -> list[float]:
        """The learned ones."""
        pairs = [*zip(self.setting.delays, self.delays, strict=True)]
        return [
            float(next(d.tau for old, d in pairs if old.tau is learn))  # pyright: ignore
            for learn in periods_to_learn(self.setting.delays)
        ]

    def over_windows(self, rows: Row) -> Float[np.ndarray, "windows samples states"]:
        """Each from its start, by the mean of the members."""
        return np.asarray(mean_of(self.members, self.setting, as_arrays(rows)))

    def error(self, rows: Row) -> Float[np.ndarray, " states"]:
        """The root mean square of the errors, in the unit of each state."""
        weights = rows.weights
        square = np.where(weights > 0, (self.over_windows(rows) - rows.ys) ** 2, 0.0)
        return np.sqrt(square.sum(axis=(0, 1)) / np.maximum(weights.sum(axis=(0, 1)), 1))

    def simulated(
        self, ts: Float[np.ndarray, " times"], past: Callable, us: Float[Array, "times inputs"]
    ) -> Float[np.ndarray, "members times states"]:
        """By each member; `past` is on the shifted clock."""
        shifted = ts - self.measured.origin
        span = (float(shifted[0]), float(shifted[-1]))
        learned = bool(self.setting.periods)
        setting = self.setting._replace(
            steps=self._steps_over(span),
            intervals=intervals_for(self.setting, [span]) if learned else None,
        )
        # A function of one's own may close over what changes, and is compiled anew.
        program = simulation if isinstance(past, Past) else simulation.__wrapped__
        run = program(shifted.tobytes(), learned)
        number = len(jax.tree.leaves(eqx.filter(self.members, eqx.is_array))[0])
        members = [member_of(self.members, i) for i in range(number)]
        found = np.stack([np.asarray(run(m, setting, past, us)) for m in members])
        if not np.all(np.isfinite(found)):
            warnings.warn(
                "The learned equation does not stay finite there; values behind are NaN. It was "
                "learned near the measured states, and may run away from others.",
                stacklevel=3,
            )
        return found

    def _steps_over(self, span: tuple[float, float]) -> int:
        """Without delays one interval is all of the span."""
        if self.setting.delays or self.setting.inputs or self.steps_given:
            return self.setting.steps
        return max(4, int(np.ceil((span[1] - span[0]) / (2 * self.measured.gap))))

    def predicted(
        self, trajectory: Trajectory, horizon: int
    ) -> Float[np.ndarray, "samples states"]:
        """Started anew from the measurements every `horizon` samples."""
        shifted = trajectory._replace(ts=trajectory.ts - self.measured.origin)
        first, last = self.first_start(trajectory), len(shifted.ts) - 1
        windows = [Window(0, s, min(s + horizon, last)) for s in range(first, last, horizon)]
        rows = make_rows([shifted], windows, self.delays)
        spans = spans_of(rows)
        setting = self.setting._replace(
            intervals=intervals_for(self.setting, spans),
            steps=self._steps_over(max(spans, key=lambda span: span[1] - span[0])),
        )
        out = shifted.filled.copy()
        for w, y in zip(windows, self._replace(setting=setting).over_windows(rows), strict=True):
            out[w.first + 1 : w.last + 1] = y[1 : w.last - w.first + 1]
        return out

    def first_start(self, trajectory: Trajectory) -> int:
        """The first sample whose past is known, if that leaves half of the series."""
        ts = trajectory.ts
        reach = reach_of([d for d in self.delays if d.tau is not None])
        known = max(ts[0] + reach, first_instant(self.delays))
        first = max(int(np.searchsorted(ts, known)), first_known(trajectory))
        return first if 2 * first < len(ts) else first_known(trajectory)


def spans_of(rows: Row) -> list[tuple[float, float]]:
    return [(float(ts[0]), float(ts[-1])) for ts in rows.ts]


def _plain(delay: Delay) -> Delay:
    """With a number for its period."""
    if delay.tau is None:
        return delay
    tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
    return Lag(tau) if isinstance(delay, Lag) else Hold(tau, lag=delay.lag)
