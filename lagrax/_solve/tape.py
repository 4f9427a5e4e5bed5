"""The tape is the dense output of a whole solve. It is written step by step, and read by time."""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Real, Shaped

from .breakpoints import Breakpoints

State = PyTree[Shaped[Array, "..."]]


class Piece(NamedTuple):
    """The polynomials of one step or of several, and the times at which the steps begin and end."""

    begin: Array
    end: Array
    coefficients: PyTree

    def evaluate(self, t: Real[Array, "..."]) -> State:
        """The state at t. With several steps, `t` has a time for each."""
        return jax.tree.map(partial(evaluate_polynomial, self._find_fraction(t)), self.coefficients)

    def differentiate(self, t: Real[Array, "..."]) -> State:
        """The slope at t, which is the derivative of the state by time."""
        fraction, length = self._find_fraction(t), self.end - self.begin
        # In a step of no length the state stays where it is.
        factor = jnp.where(length == 0, 0, 1 / jnp.where(length == 0, 1, length))

        def leaf(c):
            powers = jnp.moveaxis(c, fraction.ndim, 0)
            count = jnp.arange(1, len(powers), dtype=fraction.dtype)
            powers = powers[1:] * count.reshape(-1, *[1] * (powers.ndim - 1))
            slope = evaluate_polynomial(fraction, jnp.moveaxis(powers, 0, fraction.ndim))
            return (
                slope * factor.reshape(*factor.shape, *[1] * (slope.ndim - factor.ndim))
            ).astype(c.dtype)

        return jax.tree.map(leaf, self.coefficients)

    def _find_fraction(self, t: Array) -> Array:
        length = self.end - self.begin
        return (t - self.begin) / jnp.where(length == 0, 1, length)


def evaluate_polynomial(fraction: Array, coefficients: Array) -> Array:
    """The value of a polynomial, or of several with a fraction for each, by Horner's scheme."""
    c = coefficients
    x = fraction.reshape(*fraction.shape, *[1] * (c.ndim - 1 - fraction.ndim))
    powers = jnp.moveaxis(c, fraction.ndim, 0)
    value = powers[-1]
    for each in powers[-2::-1]:
        value = (value * x + each).astype(c.dtype)
    return value


class Recorded(NamedTuple):
    """Coefficients of polynomials, lowest first: those of the state, and of parts of it.

    If nobody reads the whole state, it has its lowest power alone, for a backward pass, or is None.
    """

    state: PyTree
    parts: list[PyTree]

    def select(self, part: int | None) -> PyTree:
        """The coefficients of the state, or of one of its parts."""
        return self.state if part is None else self.parts[part]


class Tape(eqx.Module):
    """The polynomials of all steps of a solve, in the order of time.

    - `ts`: the ends of the steps, beginning with t0; infinite where no step was taken.
    - `coefficients`: those of each step's polynomials in the fraction of the step.
    - `powers`: how many of the coefficients of the state there are, None for all.
    - `first`: the number of the first step of each interval, and of the step after the last one.
    - `knots`: the ends of the intervals, beginning with t0.
    - `is_even`: whether all steps have the same length, known when traced. A step is then found by
      arithmetic, not by a search, and its ends are.
    - `breakpoints`: those that lags pass, if any lag is a function.
    """

    # Any, since a while loop that writes them replaces the arrays by its buffers.
    ts: Float[Array, " steps_plus_1"] | Any
    coefficients: Recorded | Any
    first: Int[Array, " knots"]
    knots: Float[Array, " knots"]
    is_even: bool = eqx.field(static=True, default=False)
    powers: int | None = eqx.field(static=True, default=None)
    breakpoints: Breakpoints | None = None

    def locate(
        self, t: Real[Array, "..."], right: Bool[Array, "..."] | bool = False, tau: Any = 0.0
    ) -> Int[Array, "..."]:
        """The number of the step that contains t.

        At a knot, where the solution has a kink, that is a step of the earlier interval, which is
        never one of no length; with `right` it is one of the later interval. `tau` is the lag that
        was subtracted to get t, if any: t carries the rounding of the times it was computed from.
        """
        ts, knots, t, tau = lax.stop_gradient((self.ts, self.knots, t, tau))
        # Rounding may have moved t across the knot that it is meant to be.
        rounding = 8 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(t), tau)
        if self.is_even:
            # Both steps at the end of a step will do, unless it is a knot.
            t = t + jnp.where(right, rounding, -rounding)
            step = jnp.floor((t - knots[0]) / self._length()).astype(int)
            return jnp.clip(step, 0, ts.shape[0] - 2)
        row = jnp.searchsorted(knots[1:-1], t + jnp.where(right, rounding, -rounding))
        return self._find(row, jnp.searchsorted(ts, t, side="right") - 1)

    def locate_in(self, row: Int[Array, "..."], t: Real[Array, "..."]) -> Int[Array, "..."]:
        """The number of the step of interval `row` that contains t."""
        ts, t = lax.stop_gradient((self.ts, t))
        return self._find(row, jnp.searchsorted(ts, t, side="right") - 1)

    def _find(self, row: Array, step: Array) -> Array:
        first = self.first[row]
        return jnp.clip(step, first, jnp.maximum(self.first[row + 1] - 1, first))

    def start_of(self, step: Int[Array, ""]) -> State:
        """The state at the start of a step."""
        return jax.tree.map(lambda x: x[step, 0], self.coefficients.state)

    def drop_starts(self) -> "Tape":
        """The tape without the starts of steps, if it has them for a backward pass alone."""
        if self.powers is None:
            return self
        coefficients = Recorded(None, self.coefficients.parts)
        return dataclasses.replace(self, coefficients=coefficients, powers=0)

    def take(
        self,
        step: Int[Array, "..."],
        component: Int[Array, "..."] | None = None,
        part: int | None = None,
    ) -> Piece:
        """The polynomials of the state in steps by their numbers.

        They are those of a part of the state, or of one component in each step, if these are given.
        """
        where = step if component is None else (step, slice(None), component)
        coefficients = jax.tree.map(lambda x: x[where], self.coefficients.select(part))
        if self.is_even:
            begin, length = lax.stop_gradient(self.knots[0]), self._length()
            return Piece(begin + step * length, begin + (step + 1) * length, coefficients)
        return Piece(self.ts[step], self.ts[step + 1], coefficients)

    def _length(self) -> Array:
        """The length of each step of even steps."""
        knots = lax.stop_gradient(self.knots)
        return (knots[-1] - knots[0]) / (self.ts.shape[0] - 1)

    def evaluate(self, t: Real[Array, "..."], right: bool = False) -> State:
        """The state at time t; at a knot, that of the earlier interval unless `right`."""
        return self.take(self.locate(t, right)).evaluate(t)


def add_piece(
    tape: Tape,
    step: Int[Array, "..."],
    piece: Piece,
    component: Int[Array, "..."] | None = None,
    part: int | None = None,
) -> Tape:
    """Adds to the entries of steps; a step may occur several times. The transpose of `take`."""
    ts = tape.ts
    if not tape.is_even:
        ts = ts.at[step].add(piece.begin).at[step + 1].add(piece.end)
    where = step if component is None else (step, slice(None), component)
    add = lambda rows, x: rows.at[where].add(x)
    coefficients = jax.tree.map(add, tape.coefficients.select(part), piece.coefficients)
    return eqx.tree_at(lambda t: (t.ts, t.coefficients.select(part)), tape, (ts, coefficients))


def find_span(
    tape: Tape,
    number: Int[Array, ""],
    row: Int[Array, ""],
    start: Real[Array, ""],
    length: Real[Array, ""],
    steps: int | None,
) -> tuple[Array, Array]:
    """The start and the length of a step of interval `row`, which move with those of the interval.

    `steps` is the number of equal steps in an interval, or None if their ends are on the tape.
    """
    if steps is not None:
        h = length / steps
        return start + h * (number - tape.first[row]), h
    begin, end = lax.stop_gradient((tape.ts[number], tape.ts[number + 1]))
    still, whole = lax.stop_gradient((start, length))
    empty = whole == 0
    divisor = jnp.where(empty, 1, whole)
    low = jnp.where(empty, 0, (begin - still) / divisor)
    high = jnp.where(empty, 1, (end - still) / divisor)
    stretch = length - whole
    return begin + low * stretch + (start - still), end - begin + (high - low) * stretch


def move_times(tape: Tape, starts: Array, lengths: Array) -> Tape:
    """The tape with step ends that move with the intervals; their values stay as they are."""
    ts, (still, whole) = lax.stop_gradient((tape.ts, (starts, lengths)))
    number = jnp.arange(ts.shape[0])
    # The end of a step belongs to the interval of the step, and t0 to the first one.
    row = jnp.searchsorted(tape.first[1:], jnp.maximum(number - 1, 0), side="right")
    used = number <= tape.first[-1]
    row = jnp.minimum(row, starts.shape[0] - 1)
    divisor = jnp.where(whole[row] == 0, 1, whole[row])
    fraction = jnp.where(used, (ts - still[row]) / divisor, 0)
    fraction = jnp.where(used & (number == tape.first[row + 1]), 1, fraction)
    shift = fraction * (lengths - whole)[row] + (starts - still)[row]
    return dataclasses.replace(tape, ts=ts + jnp.where(used, shift, 0))


class Recording(eqx.Module):
    """A tape that is being written.

    `states` are the solver's states at the start of each step for a backward pass, or None.
    """

    tape: Tape
    states: PyTree

    def buffers(self) -> PyTree:
        """The arrays that are written one row at a time."""
        points = self.tape.breakpoints
        return self.tape.ts, self.tape.coefficients, self.states, points and points.buffers()

    def read(self) -> Tape:
        """The tape, also within an `equinox.internal.while_loop`, where its arrays are buffers."""
        read = lambda x: x[:] if x.shape else x
        return jax.tree.map(read, self.tape, is_leaf=lambda x: hasattr(x, "at"))

    def put(self, number: Any, end: Any, coefficients: PyTree, state: PyTree, keep: Any):
        """The recording with one more step, if `keep` is true. If `end` is None, it is there."""
        put = lambda x, rows: eqxi.buffer_at_set(rows, number, x, pred=keep)
        ts = self.tape.ts
        if end is not None:
            ts = eqxi.buffer_at_set(ts, number + 1, end, pred=keep)
        return self._replace(
            ts,
            jax.tree.map(put, coefficients, self.tape.coefficients),
            None if self.states is None else jax.tree.map(put, state, self.states),
        )

    def put_breakpoints(self, breakpoints: Breakpoints | None) -> "Recording":
        """The recording with other breakpoints."""
        tape = dataclasses.replace(self.tape, breakpoints=breakpoints)
        return Recording(tape, self.states)

    def put_all(self, number: Any, coefficients: PyTree, states: PyTree) -> "Recording":
        """The recording with several more steps, whose ends are on the tape already."""
        put = lambda x, rows: lax.dynamic_update_slice_in_dim(rows, x, number, axis=0)
        return self._replace(
            self.tape.ts,
            jax.tree.map(put, coefficients, self.tape.coefficients),
            None if self.states is None else jax.tree.map(put, states, self.states),
        )

    def put_empty(self, row: Any, constant: Recorded, state: PyTree, keep: Any) -> "Recording":
        """The recording with a step of no length as the first one of interval `row`.

        `constant` are the polynomials there, without powers above 0.
        """
        number = self.tape.first[row]
        still = lambda c, rows: jnp.zeros(rows.shape[1:], rows.dtype).at[0].set(c[0])
        coefficients = jax.tree.map(still, constant, self.tape.coefficients)
        end = self.tape.knots[row + 1]
        return self.put(number, end, coefficients, state, keep)

    def finish(self, row: Any, count: Any, end: Any) -> "Recording":
        """The recording after interval `row`, which has so many steps and whose end was reached."""
        first, knots, ts = self.tape.first, self.tape.knots, self.tape.ts
        last = first[row] + count
        reached = ts[last] >= end
        ts = ts.at[last].set(jnp.where(reached, knots[row + 1], ts[last]))
        # A solve that fails in this interval has no steps in the later ones.
        later = jnp.arange(first.shape[0]) > row
        tape = dataclasses.replace(self.tape, ts=ts, first=jnp.where(later, last, first))
        return Recording(tape, self.states)

    def _replace(self, ts: Any, coefficients: PyTree, states: PyTree) -> "Recording":
        tape = dataclasses.replace(self.tape, ts=ts, coefficients=coefficients)
        return Recording(tape, states)


# --- the polynomial of one step -------------------------------------------------------------------


def make_coefficients(interpolation: Callable, info: dict[str, PyTree]) -> PyTree:
    """The coefficients of a step's dense output `info` as a polynomial in the fraction of the step.

    They are fewer numbers than `info`, whose size is that of all slopes.
    """
    names = sorted(info)
    dims = [x.ndim for x in jax.tree.leaves(info["y0"])]
    stages = {}
    for name in names:
        first = jax.tree.leaves(info[name])[0]
        stages[name] = first.shape[0] if first.ndim > dims[0] else None
    weights = find_weights(interpolation, tuple(stages.items()))
    used = np.any(weights != 0, axis=0)
    weights = weights[:, used]

    def leaf(*parts):
        rows = [x[None] if stages[n] is None else x for n, x in zip(names, parts, strict=True)]
        rows = _select_rows(rows, used)
        w = jnp.asarray(weights, rows.dtype)
        return jnp.tensordot(w, rows, axes=1, precision=lax.Precision.HIGHEST)

    return jax.tree.map(leaf, *(info[name] for name in names))


def _select_rows(blocks: list[Array], used: np.ndarray) -> Array:
    kept, begin = [], 0
    for block in blocks:
        of_block = used[begin : begin + block.shape[0]]
        begin += block.shape[0]
        if of_block.all():
            kept.append(block)
        elif of_block.any():
            kept.append(block[np.flatnonzero(of_block)])
    return jnp.concatenate(kept)


@functools.lru_cache
def find_weights(interpolation: Callable, stages: tuple[tuple[str, int | None], ...]) -> np.ndarray:
    """The matrix that maps a step's dense output to the coefficients of its polynomial.

    diffrax's interpolations are polynomials whose coefficients are linear in what a step returns,
    so that their values for the unit vectors say all. `stages` gives, for each name in a step's
    dense output, the number of its rows, or None if it is one state.
    """
    counts = [1 if n is None else n for _, n in stages]
    begins = np.cumsum([0, *counts])
    fractions = 0.5 - 0.5 * np.cos(np.pi * (np.arange(12) + 0.5) / 12)

    def evaluate(fraction, unit):
        rows = {
            name: unit[begin] if n is None else unit[begin : begin + n]
            for (name, n), begin in zip(stages, begins[:-1], strict=True)
        }
        polynomial = interpolation(t0=np.zeros(()), t1=np.ones(()), **rows)
        return polynomial.evaluate(fraction)

    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        inputs = jnp.asarray(fractions), jnp.eye(begins[-1], dtype=float)
        program = jax.jit(jax.vmap(evaluate, (0, None))).lower(*inputs)
        # It runs once.
        options: Any = {"xla_backend_optimization_level": 0}
        values = np.asarray(program.compile(options)(*inputs))
    for degree in range(1, 10):
        powers = np.vander(fractions, degree + 1, increasing=True)
        weights = np.linalg.lstsq(powers, values, rcond=None)[0]
        if np.allclose(powers @ weights, values, rtol=0, atol=1e-10 * np.max(np.abs(values))):
            weights[np.abs(weights) < 1e-11] = 0
            # Exactly the state at the start of the step, from which a step can be taken again.
            weights[0] = np.eye(begins[-1])[begins[[name for name, _ in stages].index("y0")]]
            return weights
    raise ValueError(
        f"The dense output {interpolation} is not a polynomial in time; expected a solver of "
        "diffrax, such as diffrax.Tsit5(), or save at t1 and without a Lag."
    )
