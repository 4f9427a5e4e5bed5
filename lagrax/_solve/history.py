"""How an interval reads the solution so far: states at the last knots, and lagged states."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree, Real

from .tape import Piece, State, Tape


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


class LagReader(eqx.Module):
    """Reads the states of all lags at once, from the initial function and the tape.

    `reaches` says whether any lag reaches a time after t0; if not, there is no tape. `is_first`
    says that no interval lies behind this one, so that there is nothing on the tape yet.
    """

    taus: Real[Array, " lags"]
    initial: Callable
    t0: Real[Array, ""]
    is_first: Bool[Array, ""]
    reaches: bool = eqx.field(static=True)
    tape: Tape | None = None

    def locate(self, t: Real[Array, ""], right: Bool[Array, ""]) -> Int[Array, " lags"]:
        """The numbers of the steps on the tape that `read` needs."""
        assert self.tape is not None
        times = t - self.taus
        times = jnp.where(self._is_early(times, right), self.t0, times)
        return self.tape.locate(times, right, self.taus)

    def read(
        self,
        t: Real[Array, ""],
        right: Bool[Array, ""],
        ahead: Real[Array, ""] | None = None,
        piece: Piece | None = None,
    ) -> list[State]:
        """The lagged states at time t, one for each lag.

        `right` says that t begins an interval. The right-hand one is then meant, of the two
        derivatives at a kink and of the two values where the past jumps to `y0`.

        With `ahead` the states are those at t + ahead, extrapolated from time t. Some implicit
        methods look beyond the end of a step, where a kink may lie or nothing is known yet.

        `piece` holds the steps found by `locate` if they are read from the tape already.
        """
        times = t - self.taus
        t0, eps = lax.stop_gradient(self.t0), self._resolution()
        # Rounding must not decide on which side of t0 the initial function is evaluated: at t0, or
        # just before, where the past has not jumped to y0 yet.
        beside = jnp.where(right, t0, t0 - eps)
        moved = beside + (times - lax.stop_gradient(times))
        before = jnp.where(self._is_near(times), moved, times)
        initial = self.initial
        if ahead is not None:
            initial = lambda t: extrapolate(self.initial, t, ahead)
        if not self.reaches:
            return self._split(jax.vmap(initial)(before))
        early = self._is_early(times, right)
        if piece is None:
            assert self.tape is not None
            piece = self.tape.take(self.locate(t, right))
        after = jnp.where(early, self.t0, times)
        after = piece.evaluate(after if ahead is None else after + ahead)
        before = jax.vmap(initial)(jnp.where(early, before, self.t0))
        choose = jax.vmap(lambda e, b, a: jnp.where(e, b, a))
        return self._split(jax.tree.map(lambda b, a: choose(early, b, a), before, after))

    def _split(self, states: State) -> list[State]:
        split = lambda i: jax.tree.map(lambda x: x[i], states)
        return [split(i) for i in range(self.taus.shape[0])]

    def _resolution(self) -> Array:
        taus, t0 = lax.stop_gradient((self.taus, self.t0))
        return jnp.finfo(taus.dtype).eps * jnp.maximum(taus, jnp.abs(t0))

    def _is_near(self, times: Array) -> Array:
        """Whether times differ from t0 by rounding alone."""
        return jnp.abs(times - self.t0) <= 32 * self._resolution()

    def _is_early(self, times: Array, right: Bool[Array, ""]) -> Array:
        """Whether the state at these times is given by the initial function."""
        return self.is_first | jnp.where(self._is_near(times), ~right, times < self.t0)


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
