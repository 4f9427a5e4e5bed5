"""Where in which interval `saveat` wants the solution, and putting the answer together."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .arguments import is_traced
from .delays import AnyArray
from .grid import Grid, clipped
from .history import Records


class Places(eqx.Module):
    """The times to save at, sorted into intervals.

    `save_at[i]` are the places within interval i, as fractions of it, filled up with ones;
    `index` says where each time stands in the flattened `save_at`.
    """

    ts: Float[AnyArray, " times"]
    save_at: Float[AnyArray, "intervals saves"]
    index: Int[AnyArray, " times"]


def is_sub(x: Any) -> bool:
    return isinstance(x, diffrax.SubSaveAt)


def sub_saves(saveat: diffrax.SaveAt) -> list[diffrax.SubSaveAt]:
    return jax.tree.leaves(saveat.subs, is_leaf=is_sub)


def make_places(saveat: diffrax.SaveAt, grid: Grid, dtype: Any) -> Places:
    wanted = [sub.ts for sub in sub_saves(saveat) if sub.ts is not None]
    if not wanted:
        return Places(np.zeros(0, dtype), np.zeros((grid.num, 0), dtype), np.zeros(0, int))
    traced = is_traced(grid.starts, grid.lengths, *wanted)
    xp = jnp if traced else np
    ts = xp.concatenate([xp.asarray(t, grid.starts.dtype) for t in wanted])
    # A time on a breakpoint belongs to the interval that ends there.
    row = xp.searchsorted(grid.starts[1:], ts, side="left")
    length = xp.where(grid.lengths == 0, 1, grid.lengths)
    if traced:
        # How many times fall into an interval is not known: each keeps a place for all of them.
        order = jnp.argsort(ts)
        fractions = (ts[order][None, :] - grid.starts[:, None]) / length[:, None]
        column = jnp.argsort(order)
    else:
        order = np.argsort(ts, kind="stable")
        column = np.empty_like(order)
        sorted_row = row[order]
        column[order] = np.arange(len(ts)) - np.searchsorted(sorted_row, sorted_row, side="left")
        fractions = np.ones((grid.num, column.max() + 1))
        fractions[row, column] = (ts - grid.starts[row]) / length[row]
    index = row * fractions.shape[1] + column
    return Places(ts.astype(dtype), clipped(fractions, 0, 1, xp).astype(dtype), index)


def collect(
    saveat: diffrax.SaveAt,
    args: PyTree,
    span: tuple[Array, Array],
    ends: tuple[PyTree, PyTree],
    at_ts: tuple[Array, PyTree],
    at_steps: Callable[[], tuple[Array, PyTree, Array]],
) -> tuple[PyTree, PyTree]:
    """`ts` and `ys` of the solution, in the structure of `saveat.subs`."""
    (t0, t1), (y0, y1) = span, ends
    taken = 0

    def one(sub: diffrax.SubSaveAt):
        nonlocal taken
        parts = [(t0, y0)] if sub.t0 else []
        parts = [jax.tree.map(lambda x: x[None], part) for part in parts]
        if sub.ts is not None:
            rows = slice(taken, taken + sub.ts.shape[0])
            taken += sub.ts.shape[0]
            parts.append(jax.tree.map(lambda x: x[rows], at_ts))
        if sub.steps:
            parts.append(_every(at_steps(), sub.steps, (t1, y1) if sub.t1 else None))
        elif sub.t1:
            parts.append(jax.tree.map(lambda x: x[None], (t1, y1)))
        ts, ys = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        return ts, jax.vmap(lambda t, y: sub.fn(t, y, args))(ts, ys)

    pairs = jax.tree.map(one, saveat.subs, is_leaf=is_sub)
    is_pair = lambda x: isinstance(x, tuple) and len(x) == 2 and eqx.is_array(x[0])
    ts = jax.tree.map(lambda p: p[0], pairs, is_leaf=is_pair)
    ys = jax.tree.map(lambda p: p[1], pairs, is_leaf=is_pair)
    return ts, ys


def _every(steps, n: int, last) -> tuple[Array, PyTree]:
    """Every n-th step, and the last one too if wanted."""
    ts, ys, count = steps
    ts, ys = jax.tree.map(lambda x: x[n - 1 :: n], (ts, ys))
    if last is None or n == 1:
        return ts, ys
    row = count // n
    missing = count % n > 0

    def put(x, end):
        x = jnp.concatenate([x, jnp.full_like(x[:1], jnp.inf)])
        return x.at[row].set(jnp.where(missing, end, x[row]))

    return jax.tree.map(put, (ts, ys), last)


def steps_of(records: Records, size: int) -> tuple[Array, PyTree, Array]:
    """The ends of all steps and the states there, one after the other, filled up with infinity to
    `size`; and how many there are. Steps of no length, where traced breakpoints coincide or lie
    outside the span, do not count."""
    ts, ys = records.ts[:, 1:], records.infos["y1"]
    used = jnp.isfinite(ts) & (ts > records.ts[:, :-1])
    count = jnp.sum(used)
    target = jnp.where(used, jnp.cumsum(used).reshape(used.shape) - 1, size).reshape(-1)

    def pack(x):
        flat = x.reshape(-1, *x.shape[2:])
        return jnp.full((size, *flat.shape[1:]), jnp.inf, x.dtype).at[target].set(flat, mode="drop")

    return pack(ts), jax.tree.map(pack, ys), count
