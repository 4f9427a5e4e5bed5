"""How the intervals of a solve are stepped through, decided once for all of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import diffrax

from .delays import Entry, Hold, Input, LagEntry, find_moving, is_function
from .field import Field
from .grid import Grid
from .saving import list_subs
from .steps import Stepper, make_stepper


class Method(NamedTuple):
    """How every interval is stepped through, apart from the interval's own data.

    - `stepper`: takes one step.
    - `steps`: the number of equal steps in each interval, or None for adaptive steps.
    - `controller`, `dt0`, `step_ts`: for adaptive steps, their control, the length of the first
      one, and times at which a step must end. None if not given.
    - `max_steps`: the most adaptive steps in the whole solve, `room` in one interval.
    - `has_tape`: whether the dense output of all steps is kept, for lags or for the answer.
    - `keeps_polynomials`: whether the tape keeps the polynomials of the whole state. Otherwise it
      keeps those parts of it that lags read.
    - `function_lags`: the number of lags that are functions or read like these.
    - `vanishes`: whether one of them may be 0, so that steps read themselves.
    - `levels`: through how many lags a kink is followed.
    - `is_continuous`: whether held and lagged states are continuous at breakpoints.
    """

    stepper: Stepper
    steps: int | None
    controller: diffrax.AbstractStepSizeController | None
    dt0: Any
    step_ts: Any
    max_steps: int
    room: int
    has_tape: bool
    keeps_polynomials: bool
    function_lags: int
    vanishes: bool
    levels: int
    is_continuous: bool

    def take_single_steps(self) -> "Method":
        """The method for a field that is constant between breakpoints, which one step solves."""
        return self._replace(stepper=make_stepper(diffrax.Euler()), steps=1, controller=None)

    def keeps_slope(self, field: Field) -> bool:
        """Whether the last slope of an interval is the first one of the next interval."""
        return self.is_continuous and not field.may_jump

    def unrolls_steps(self, field: Field) -> bool:
        """Whether the equal steps of one interval are unrolled."""
        return field.has_products and self._is_short(1)

    def unrolls_intervals(self, field: Field, intervals: int) -> bool:
        """Whether the equal steps of all intervals are unrolled."""
        return field.has_products and self._is_short(intervals)

    def _is_short(self, intervals: int) -> bool:
        """Whether there are so few evaluations that a compiled loop costs more than it saves.

        The limit trades run time for compile time. benchmarks/NOTES.md has the gain on a GPU.
        """
        cost = self.stepper.evaluations(True)
        return (
            self.steps is not None and cost is not None and intervals * self.steps * cost[1] <= 32
        )


def make_method(
    solver: diffrax.AbstractSolver,
    controller: diffrax.AbstractStepSizeController | None,
    *,
    steps: int | None,
    dt0: Any,
    step_ts: Any,
    max_steps: int,
    delays: Sequence[Entry],
    has_jumps: bool,
    has_past: bool,
    is_shared: bool,
    grid: Grid,
    saveat: diffrax.SaveAt,
) -> Method:
    """Decides how to step through the intervals.

    `has_jumps` says that the state jumps, `has_past` that the past is a function, `is_shared` that
    all intervals have one field.
    """
    subs = list_subs(saveat)
    has_tape = bool(grid.num_dense or saveat.dense or any(sub.steps for sub in subs))
    reads_all = any(isinstance(d, LagEntry) and d.of is None for d in delays) or find_moving(delays)
    saves = saveat.dense or any(sub.steps or sub.ts is not None for sub in subs)
    # What is held jumps at its instants. A lagged state jumps if the past does not end in y0.
    held = any(isinstance(d, Hold) or (isinstance(d, Input) and not d.linear) for d in delays)
    lags = [d for d in delays if isinstance(d, LagEntry)]
    lagged = (has_past and bool(lags)) or not all(d.smooths for d in lags)
    jumps = has_jumps or held or lagged
    moving = find_moving(delays)
    # Steps may end anywhere at a breakpoint, at which the states that such lags read may jump.
    restarts = bool(moving) and (has_jumps or has_past)
    stepper = make_stepper(solver, not moving and _loops_over_stages(solver, steps), restarts)
    return Method(
        stepper=stepper,
        steps=steps,
        controller=controller,
        dt0=dt0,
        step_ts=step_ts,
        max_steps=max_steps,
        room=_find_room(steps, max_steps, grid.num_intervals),
        has_tape=has_tape,
        keeps_polynomials=bool(reads_all or saves),
        function_lags=len(moving),
        vanishes=any(is_function(d) and d.low == 0 for d in delays),
        levels=find_order(solver) + has_past,
        is_continuous=stepper.state_is_slope and is_shared and not jumps,
    )


def _loops_over_stages(solver: diffrax.AbstractSolver, steps: int | None) -> bool:
    """Whether the stages of a step are a compiled loop.

    Programs of adaptive steps hold several steps: for the search, the replay and the start.
    Unrolled, these take half as long again to compile and run no faster. Equal steps run faster
    unrolled, but for methods of many stages, whose gradients then compute cheap slopes many times.
    Stages are always unrolled for lags that are functions, which tell the reads of each stage.
    """
    stages = getattr(getattr(solver, "tableau", None), "num_stages", 0)
    return steps is None or stages > 8


def find_order(solver: diffrax.AbstractSolver) -> int:
    """The order of a solver."""
    return int(solver.order(diffrax.ODETerm(lambda t, y, args: y)) or 1)


def _find_room(steps: int | None, max_steps: int, intervals: int) -> int:
    """The most steps in one interval, for which memory is kept.

    The ends of all steps are kept for the gradient. An interval may take all of `max_steps`. If
    there are many intervals it may take four times its share, so that the others need less memory.
    """
    if steps is not None:
        return steps
    return min(max_steps, max(1024, 4 * max_steps // intervals))
