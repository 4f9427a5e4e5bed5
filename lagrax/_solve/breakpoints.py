"""The breakpoints of a solution so far, and the stretches between them that lags read."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax.numpy as jnp
from jaxtyping import Array, Int


class Breakpoints(eqx.Module):
    """The breakpoints of the solution so far, beginning with t0, by the numbers of steps.

    In each step, a lag reads one stretch between two breakpoints. Stretch 0 is the past before t0,
    and stretch k reaches from breakpoint k - 1 to breakpoint k.

    - `steps`: the numbers of the steps that begin at breakpoints. Those from `count` on are large.
    - `levels`: the number of lags that the kink has passed. Each makes it one order smoother.
    - `segments`: the number of the stretch that each lag reads, for each step.
    """

    # Any, since a while loop that writes them replaces the arrays by its buffers.
    steps: Int[Array, " breakpoints"] | Any
    levels: Int[Array, " breakpoints"] | Any
    segments: Int[Array, "steps lags"] | Any
    count: Int[Array, ""]

    def buffers(self) -> tuple:
        """The arrays that are written one row at a time."""
        return self.steps, self.levels, self.segments

    def put(self, step: Any, level: Any, keep: Any) -> "Breakpoints":
        """With one more breakpoint at the start of a step, if `keep` is true."""
        return Breakpoints(
            eqxi.buffer_at_set(self.steps, self.count, step, pred=keep),
            eqxi.buffer_at_set(self.levels, self.count, level, pred=keep),
            self.segments,
            self.count + keep,
        )

    def put_segments(self, step: Any, segments: Array, keep: Any) -> "Breakpoints":
        """With the stretches that were read in a step, if `keep` is true."""
        put = eqxi.buffer_at_set(self.segments, step, segments, pred=keep)
        return Breakpoints(self.steps, self.levels, put, self.count)

    def put_knot(self, step: Any, ts: Array, keep: Any) -> "Breakpoints":
        """With a knot as a breakpoint, if `keep` is true. `ts` are the ends of the steps.

        A breakpoint at that time is replaced, so that no stretch is of no length.
        """
        is_new = ts[step] > ts[self.steps[self.count - 1]]
        index = jnp.where(is_new, self.count, self.count - 1)
        return Breakpoints(
            self.steps.at[index].set(jnp.where(keep, step, self.steps[index])),
            self.levels.at[index].set(jnp.where(keep, 0, self.levels[index])),
            self.segments,
            self.count + (keep & is_new),
        )


def make_breakpoints(room: int, lags: int) -> Breakpoints:
    """Breakpoints with t0 alone, and room for one at each step."""
    steps = jnp.full(room + 2, room + 1).at[0].set(0)
    return Breakpoints(steps, jnp.zeros_like(steps), jnp.zeros((room, lags), int), jnp.asarray(1))
