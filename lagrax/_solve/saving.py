"""Finds the interval of every saved time, interpolates there, and collects the answer."""

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .arguments import is_traced
from .delays import AnyArray
from .grid import Grid, clip
from .tape import State, Tape


class SaveTimes(eqx.Module):
    """The times to save at, sorted into intervals.

    `fractions[i]` are the places within interval i, as fractions of it, filled up with ones.
    `index` is the position of each time in the flattened `fractions`.
    """

    ts: Float[AnyArray, " times"]
    fractions: Float[AnyArray, "intervals saves"]
    index: Int[AnyArray, " times"]


def list_subs(saveat: diffrax.SaveAt) -> list[diffrax.SubSaveAt]:
    """Lists the parts of a `SaveAt`."""
    return jax.tree.leaves(saveat.subs, is_leaf=_is_sub)


def _is_sub(x: Any) -> bool:
    return isinstance(x, diffrax.SubSaveAt)


def find_save_times(saveat: diffrax.SaveAt, grid: Grid, dtype: Any) -> SaveTimes:
    """Finds the interval of every time in `saveat`."""
    wanted = [sub.ts for sub in list_subs(saveat) if sub.ts is not None]
    if not wanted:
        none = np.zeros((grid.num_intervals, 0), dtype)
        return SaveTimes(np.zeros(0, dtype), none, np.zeros(0, int))
    traced = is_traced(grid.starts, grid.lengths, *wanted)
    xp = jnp if traced else np
    ts = xp.concatenate([xp.asarray(t, grid.starts.dtype) for t in wanted])
    if grid.events:
        # Where the state jumps, a time on a breakpoint belongs to the interval that begins there.
        rounding = 8 * float(jnp.finfo(dtype).eps) * xp.abs(ts)
        row = xp.searchsorted(grid.starts[1:], ts + rounding, side="right")
    else:
        row = xp.searchsorted(grid.starts[1:], ts, side="left")
    length = xp.where(grid.lengths == 0, 1, grid.lengths)
    if traced:
        # Any number of the times may lie in one interval, so each keeps a place for all of them.
        order = jnp.argsort(ts)
        fractions = (ts[order][None, :] - grid.starts[:, None]) / length[:, None]
        column = jnp.argsort(order)
    else:
        order = np.argsort(ts, kind="stable")
        column = np.empty_like(order)
        sorted_row = row[order]
        column[order] = np.arange(len(ts)) - np.searchsorted(sorted_row, sorted_row, side="left")
        fractions = np.ones((grid.num_intervals, column.max() + 1))
        fractions[row, column] = (ts - grid.starts[row]) / length[row]
    index = row * fractions.shape[1] + column
    return SaveTimes(ts.astype(dtype), clip(fractions, 0, 1, xp).astype(dtype), index)


# --- within an interval ---------------------------------------------------------------------------


def make_room(y: State, save_at: Float[Array, " saves"]) -> State | None:
    """Room for the states saved in one interval, or None if there are none."""
    count = save_at.shape[0]
    repeat = lambda x: jnp.broadcast_to(x, (count, *x.shape))
    return jax.tree.map(repeat, y) if count else None


def save_equal_steps(interpolation: Callable, save_at, ends, infos) -> State | None:
    """The saved states of an interval of equal steps, whose ends are fractions of it."""
    if infos is None or save_at.shape[0] == 0:
        return None
    steps = ends.shape[0] - 1
    step = jnp.clip(jnp.floor(save_at * steps), 0, steps - 1).astype(int)

    def one(s, j):
        info = jax.tree.map(lambda x: x[j], infos)
        return interpolation(t0=ends[j], t1=ends[j + 1], **info).evaluate(s)

    return jax.vmap(one)(save_at, step)


def save_step(interpolation: Callable, saves, save_at, begin, end, info) -> State | None:
    """Writes the states saved in the step from fraction `begin` to `end`, all at once."""
    if saves is None:
        return None
    within = (save_at >= begin) & (save_at <= end)
    # Outside the step the polynomial may overflow, so it is not evaluated there.
    places = jnp.where(within, save_at, begin)
    values = jax.vmap(interpolation(t0=begin, t1=end, **info).evaluate)(places)

    def leaf(new, old):
        return jnp.where(within.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(leaf, values, saves)


def save_step_in_loop(
    interpolation: Callable,
    saves,
    number: Int[Array, ""],
    save_at,
    begin,
    end,
    info,
    keep,
    kind: Literal["lax", "checkpointed"],
) -> tuple[Int[Array, ""], State | None]:
    """Writes the states saved in one step, one by one from the given number on.

    Returns the next number. Choose it for many saved times of which few lie in a step.
    """
    if saves is None:
        return number, None
    polynomial = interpolation(t0=begin, t1=end, **info)
    count = save_at.shape[0]

    def in_step(carry):
        i, _ = carry
        return keep & (i < count) & (save_at[jnp.minimum(i, count - 1)] <= end)

    def write(carry):
        i, saves = carry
        return i + 1, put_row(saves, polynomial.evaluate(save_at[i]), i, True)

    return eqxi.while_loop(
        in_step,
        write,
        (number, saves),
        kind=kind,
        max_steps=count,
        buffers=lambda carry: carry[1],
        checkpoints=count if kind == "checkpointed" else None,
    )


def put_row(rows: PyTree | None, row: PyTree, index: Any, keep: Any) -> PyTree | None:
    """Writes one row of the buffers of an `equinox.internal.while_loop`, if there are any."""
    if rows is None:
        return None
    return jax.tree.map(lambda x, b: eqxi.buffer_at_set(b, index, x, pred=keep), row, rows)


# --- the answer -----------------------------------------------------------------------------------


def in_order_of_times(times: SaveTimes, saves: PyTree) -> PyTree:
    """Sorts the saved states of all intervals into the order of the times."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[times.index], saves)


def read_saves(tape: Tape, times: SaveTimes, grid: Grid) -> PyTree:
    """The states at the saved times, in the order of the times."""
    row = times.index // max(1, times.fractions.shape[1])
    ts = grid.starts[row] + times.fractions.reshape(-1)[times.index] * grid.lengths[row]
    return tape.take(tape.locate_in(row, ts)).evaluate(ts)


def pack_steps(tape: Tape, y1: PyTree, size: int) -> tuple[Array, PyTree, Array]:
    """The ends of all steps and the states there, filled up with infinity, and their number.

    Steps of no length, which lie between traced breakpoints that coincide or are outside the span,
    do not count. `y1` is the state after the last step.
    """
    last = tape.first[-1]
    number = jnp.arange(tape.ts.shape[0] - 1)
    used = (number < last) & (tape.ts[1:] > tape.ts[:-1])
    target = jnp.where(used, jnp.cumsum(used) - 1, size)

    def pack(x):
        return jnp.full((size, *x.shape[1:]), jnp.inf, x.dtype).at[target].set(x, mode="drop")

    # A step ends where the next one with a length begins, which is after all jumps in between.
    following = lax.cummin(jnp.where(used, number, last)[1:], reverse=True)
    following = jnp.append(following, last)

    def ends(c, y1):
        starts = jnp.concatenate([c[:, 0], y1[None]]).at[last].set(y1)
        return starts[following]

    return (
        pack(tape.ts[1:]),
        jax.tree.map(lambda c, y: pack(ends(c, y)), tape.coefficients.state, y1),
        jnp.sum(used),
    )


def collect(
    saveat: diffrax.SaveAt,
    args: PyTree,
    start: tuple[Array, PyTree],
    end: tuple[Array, PyTree],
    at_ts: tuple[Array, PyTree],
    at_steps: tuple[Array, PyTree, Array] | None,
) -> tuple[PyTree, PyTree]:
    """Puts `ts` and `ys` of the solution into the structure of `saveat.subs`.

    `start`, `end`, `at_ts` and `at_steps` are times and the states there.
    """
    used = 0

    def one(sub: diffrax.SubSaveAt):
        nonlocal used
        parts = [jax.tree.map(lambda x: x[None], start)] if sub.t0 else []
        if sub.ts is not None:
            rows = slice(used, used + sub.ts.shape[0])
            used += sub.ts.shape[0]
            parts.append(jax.tree.map(lambda x: x[rows], at_ts))
        if sub.steps:
            parts.append(_every_nth_step(at_steps, sub.steps, end if sub.t1 else None))
        elif sub.t1:
            parts.append(jax.tree.map(lambda x: x[None], end))
        ts, ys = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        return ts, jax.vmap(lambda t, y: sub.fn(t, y, args))(ts, ys)

    pairs = jax.tree.map(one, saveat.subs, is_leaf=_is_sub)
    is_pair = lambda x: isinstance(x, tuple) and len(x) == 2 and eqx.is_array(x[0])
    ts = jax.tree.map(lambda p: p[0], pairs, is_leaf=is_pair)
    ys = jax.tree.map(lambda p: p[1], pairs, is_leaf=is_pair)
    return ts, ys


def _every_nth_step(steps, n: int, end) -> tuple[Array, PyTree]:
    """Every n-th step, and the end unless it is None."""
    ts, ys, count = steps
    ts, ys = jax.tree.map(lambda x: x[n - 1 :: n], (ts, ys))
    if end is None or n == 1:
        return ts, ys
    row = count // n
    missing = count % n > 0

    def put(x, last):
        x = jnp.concatenate([x, jnp.full_like(x[:1], jnp.inf)])
        return x.at[row].set(jnp.where(missing, last, x[row]))

    return jax.tree.map(put, (ts, ys), end)
