"""How an interval reads the solution so far: states at the last knots, and entries of lags."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree, Real

from .delays import LagEntry
from .tape import Piece, State, Tape, add_piece


class KnotBuffer(eqx.Module):
    """The states at the last knots, newest first.

    They are separate variables if all ages are known when traced, so that a read copies nothing.
    Otherwise they are stacked.
    """

    states: PyTree
    stacked: bool = eqx.field(static=True)

    def __getitem__(self, age: int | Array) -> PyTree:
        if self.stacked:
            return jax.tree.map(lambda x: x[age], self.states)
        return self.states[age]

    def push(self, y: PyTree) -> "KnotBuffer":
        """The buffer with one more knot in place of the oldest."""
        if self.stacked:
            shift = lambda y, r: jnp.concatenate([y[None], r[:-1]])
            return KnotBuffer(jax.tree.map(shift, y, self.states), True)
        return KnotBuffer([y, *self.states[:-1]], False)


def make_knot_buffer(y0: PyTree, size: int, stacked: bool) -> KnotBuffer:
    """A buffer filled with the state at t0."""
    if not stacked:
        return KnotBuffer([y0] * size, False)
    repeat = lambda x: jnp.broadcast_to(x, (size, *x.shape))
    return KnotBuffer(jax.tree.map(repeat, y0), True)


# With so many lags, the initial function is evaluated only while some of them reach it. With few
# of them, the branch costs more to compile than it saves.
MANY = 100


class LagReader(eqx.Module):
    """Reads the entries of all lags, from the initial function and the tape.

    Entries that read the same kind of values form a group, and each group is one search and one
    gather. An entry with a function `of` is a group of its own.

    `reaches` says whether any lag reaches a time after t0; if not, there is no tape. `is_first`
    says that no interval lies behind this one, so that there is nothing on the tape yet, and
    `is_late` that no lag reaches the initial function any more.
    """

    entries: list[LagEntry]
    initial: Callable
    t0: Real[Array, ""]
    is_first: Bool[Array, ""]
    is_late: Bool[Array, ""]
    reaches: bool = eqx.field(static=True)
    tape: Tape | None = None

    def locate(self, t: Real[Array, ""], right: Bool[Array, ""]) -> list[Int[Array, "..."]]:
        """The numbers of the steps on the tape that `read` needs, for each group."""
        return [group.locate(self, t, right) for group in self._groups()]

    def take(self, steps: list[Int[Array, "..."]]) -> list[Piece]:
        """The polynomials that `locate` found, for each group."""
        assert self.tape is not None
        groups = zip(self._groups(), steps, strict=True)
        return [self.tape.take(step, group.components, group.part) for group, step in groups]

    def add(self, tape: Tape, steps: list[Int[Array, "..."]], pieces: list[Piece]) -> Tape:
        """Adds to the entries of a tape. The transpose of `take`."""
        for group, step, piece in zip(self._groups(), steps, pieces, strict=True):
            tape = add_piece(tape, step, piece, group.components, group.part)
        return tape

    def read(
        self,
        t: Real[Array, ""],
        right: Bool[Array, ""],
        ahead: Real[Array, ""] | None = None,
        pieces: list[Piece] | None = None,
    ) -> list[PyTree]:
        """The entries at time t, before `complete`.

        `right` says that t begins an interval. The right-hand one is then meant, of the two
        derivatives at a kink and of the two values where the past jumps to `y0`.

        With `ahead` the entries are those at t + ahead, extrapolated from time t. Some implicit
        methods look beyond the end of a step, where a kink may lie or nothing is known yet.

        `pieces` holds the polynomials found by `locate` if they are taken from the tape already.
        """
        if pieces is None and self.reaches:
            pieces = self.take(self.locate(t, right))
        entries: list[Any] = [None] * len(self.entries)
        for i, group in enumerate(self._groups()):
            piece = pieces[i] if pieces is not None else None
            values = group.read(self, t, right, ahead, piece)
            for number, entry in group.split(values):
                entries[number] = self.entries[number].assemble(entry)
        return entries

    def complete(self, entries: list[PyTree], y: State) -> list[PyTree]:
        """The entries that the field gets, given those of `read` and the state at time t."""
        pairs = zip(self.entries, entries, strict=True)
        return [e.complete(x, y if e.of is None else e.of(y)) for e, x in pairs]

    def _groups(self) -> "list[_Group]":
        groups, parts = [], 0
        for reads in dict.fromkeys(e.reads for e in self.entries if e.of is None):
            numbers = [i for i, e in enumerate(self.entries) if e.reads == reads and e.of is None]
            groups.append(_Group(numbers, [self.entries[i] for i in numbers], reads, None))
        for i, entry in enumerate(self.entries):
            if entry.of is not None:
                groups.append(_Group([i], [entry], entry.reads, parts))
                parts += 1
        return groups


class _Group(NamedTuple):
    """The entries of a `LagReader` that read the same kind of values, and their numbers there.

    `part` is the number of the part of the state that they read on the tape, None for all of it.
    """

    numbers: list[int]
    entries: list[LagEntry]
    reads: str
    part: int | None

    @property
    def components(self) -> Array | None:
        """The components that belong to the lags of all entries, in one row."""
        if self.reads != "components":
            return None
        return jnp.concatenate([jnp.ravel(e.components) for e in self.entries])

    def locate(self, reader: LagReader, t: Array, right: Array) -> Array:
        """The numbers of the steps that contain the lagged times."""
        assert reader.tape is not None
        times, taus = self._find_times(t)
        times = jnp.where(_is_early(reader, times, taus, right), reader.t0, times)
        return reader.tape.locate(times, right, taus)

    def read(self, reader: LagReader, t: Array, right: Array, ahead, piece: Piece | None) -> PyTree:
        """The values of all lags in one row (see `LagReader.read`)."""
        times, taus = self._find_times(t)
        t0, eps = lax.stop_gradient(reader.t0), _resolution(reader, taus)
        # Rounding must not decide on which side of t0 the initial function is evaluated: at t0, or
        # just before, where the past has not jumped to y0 yet.
        beside = jnp.where(right, t0, t0 - eps)
        moved = beside + (times - lax.stop_gradient(times))
        before = jnp.where(_is_near(reader, times, taus), moved, times)
        if piece is None:
            return self._read_initial(reader, before, ahead)
        early = _is_early(reader, times, taus, right)
        after = jnp.where(early, reader.t0, times)
        after = after if ahead is None else after + ahead
        after = piece.differentiate(after) if self.reads == "slopes" else piece.evaluate(after)

        def choose(after):
            initial = self._read_initial(reader, jnp.where(early, before, reader.t0), ahead)
            choose = jax.vmap(lambda e, b, a: jnp.where(e, b, a))
            return jax.tree.map(lambda b, a: choose(early, b, a), initial, after)

        if taus.shape[0] < MANY:
            return choose(after)
        return lax.cond(reader.is_late, lambda after: after, choose, after)

    def split(self, values: PyTree) -> list[tuple[int, PyTree]]:
        """The numbers of the entries, and the values of each, with the axes of its lags."""
        parts, begin = [], 0
        for number, entry in zip(self.numbers, self.entries, strict=True):
            shape = jnp.shape(entry.taus)
            rows = slice(begin, begin + math.prod(shape))
            begin = rows.stop
            of_entry = lambda x: x[rows].reshape(*shape, *x.shape[1:])  # noqa: B023
            parts.append((number, jax.tree.map(of_entry, values)))
        return parts

    def _find_times(self, t: Array) -> tuple[Array, Array]:
        """The lagged times and the lags, each in one row."""
        taus = jnp.concatenate([jnp.ravel(jnp.asarray(e.taus, t.dtype)) for e in self.entries])
        return t - taus, taus

    def _read_initial(self, reader: LagReader, times: Array, ahead) -> PyTree:
        """The values of the initial function."""
        function = initial = reader.initial
        of = self.entries[0].of
        if of is not None:
            function = initial = lambda t: of(reader.initial(t))
        if self.reads == "slopes":
            function = lambda t: jax.jvp(initial, (t,), (jnp.ones_like(t),))[1]
        extrapolated = function
        if ahead is not None:
            extrapolated = lambda t: extrapolate(function, t, ahead)
        if self.components is None:
            return jax.vmap(extrapolated)(times)
        pick = lambda t, i: jax.tree.map(lambda x: x[i], extrapolated(t))
        return jax.vmap(pick)(times, self.components)


def _resolution(reader: LagReader, taus: Array) -> Array:
    taus, t0 = lax.stop_gradient((taus, reader.t0))
    return jnp.finfo(taus.dtype).eps * jnp.maximum(taus, jnp.abs(t0))


def _is_near(reader: LagReader, times: Array, taus: Array) -> Array:
    """Whether times differ from t0 by rounding alone."""
    return jnp.abs(times - reader.t0) <= 32 * _resolution(reader, taus)


def _is_early(reader: LagReader, times: Array, taus: Array, right: Array) -> Array:
    """Whether the solution at these times is given by the initial function."""
    near = _is_near(reader, times, taus)
    return reader.is_first | jnp.where(near, ~right, times < reader.t0)


def make_lag_reader(
    entries: list[LagEntry],
    initial: Callable,
    t0: Array,
    start: Array,
    is_first: Array,
    reaches: bool,
) -> LagReader:
    """The reader for an interval that begins at `start`."""
    longest = jnp.max(jnp.stack([jnp.max(jnp.asarray(e.taus, t0.dtype)) for e in entries]))
    beyond, scale = lax.stop_gradient((start - longest - t0, jnp.maximum(jnp.abs(t0), longest)))
    is_late = beyond > 64 * jnp.finfo(t0.dtype).eps * scale
    return LagReader(entries, initial, t0, is_first, is_late, reaches)


# Places at which a function is evaluated to extrapolate it by one, and their Lagrange weights.
# Kvaerno5 looks 0.23 of a step ahead, so that the earliest place is still within the step.
NODES = np.array([0.0, -0.9, -1.8, -2.7, -3.6])
WEIGHTS = np.array(
    [np.prod((1 - np.delete(NODES, i)) / (x - np.delete(NODES, i))) for i, x in enumerate(NODES)]
)


def extrapolate(function: Callable, t: Real[Array, ""], ahead: Real[Array, ""]) -> State:
    """Extrapolates `function` to t + ahead by a polynomial of degree 4 through values up to t.

    The function itself may change at t.
    """
    values = jax.vmap(function)(t + ahead * NODES.astype(t.dtype))

    def leaf(x):
        return jnp.where(ahead > 0, jnp.tensordot(WEIGHTS.astype(x.dtype), x, axes=1), x[0])

    return jax.tree.map(leaf, values)
