"""Entries of the history beyond `Lag`: `Distributed`, `LagMatrix` and `Slope`."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, Num, PyTree, Real

from .arguments import check_whole, format_value, is_traced, real_array
from .delays import LagEntry, Learn, ReadKind, RealScalar, check_part, check_period, check_positive

# Every lag of a matrix makes a breakpoint for every kink. With more lags there are too many.
MOST_KINKS = 100
# Nodes of a quadrature. More of them make intervals shorter than rounding allows.
MOST_NODES = 200


class Distributed(LagEntry):
    """An integral over the past: ∫ kernel(s) z(t − s) ds for s from 0 to `upto`.

    Choose it if every age up to `upto` matters, such as maturation times that differ between
    individuals, or a fading memory. For a gamma kernel with a whole number as its shape, the linear
    chain is an ordinary equation and faster.

    The integral is a Gauss–Radau sum over the state at time t and `nodes - 1` lags. It is exact if
    the integrand is a polynomial of degree 2 · nodes − 2 in s. While a kink of the solution, such
    as that at t0, is less than `upto` ago, the error falls as the square of `nodes` only, and
    slower still after a jump of the state.

    No interval is longer than the shortest lag, which is about 3.7 `upto` / nodes², so cost grows
    with the square of `nodes`.

    **Arguments:**

    - `kernel`: a function of s, finite at 0, which may be a module with trainable parameters. It
      returns a number, or an array shaped like the state with a kernel for each of its numbers.
      Several kernels at once have another axis in front.
    - `upto`: the largest age. An array is differentiable. A kernel without an end is cut off there.
    - `nodes`: the number of nodes.
    - `of`: a function of the state that is integrated in place of the state (see `Lag`).
    """

    kernel: Callable
    upto: RealScalar
    of: Callable | None = eqx.field(repr=False)
    nodes: int = eqx.field(static=True)
    weights: Num[Array, "nodes ..."] | None

    needs_state: ClassVar[bool] = True

    def __init__(
        self,
        kernel: Callable,
        upto: RealScalar,
        *,
        nodes: int = 16,
        of: Callable | None = None,
    ):
        if not callable(kernel):
            raise TypeError(
                f"Distributed got kernel={format_value(kernel)}; expected a function of the age s."
            )
        if isinstance(upto, Learn):
            raise TypeError(f"Distributed got upto={upto!r}; expected a positive number.")
        check_whole("Distributed", "nodes", nodes, 2, MOST_NODES, "The shortest lag gets tiny.")
        self.kernel = kernel
        self.upto = check_period(upto, "Distributed", "upto")
        self.of = check_part(of, "Distributed")
        self.nodes = int(nodes)
        self.weights = None

    @property
    def taus(self) -> Any:
        """The nodes but for the first, which is 0."""
        return self.upto * find_radau_rule(self.nodes)[0][1:]

    @property
    def kinks(self) -> Any:
        """The end of the integral; kinks that reach its nodes are those of the quadrature."""
        return self.upto

    def bind(self, t: Array, y: PyTree[Array], args: PyTree) -> "Distributed":
        """Evaluates the kernel at the nodes, once in a solve."""
        del args
        nodes, weights = (jnp.asarray(self.upto * x, t.dtype) for x in find_radau_rule(self.nodes))
        values = jax.vmap(lambda s: jnp.asarray(self.kernel(s)))(nodes)
        _check_kernel(values, y)
        weights = weights.reshape(-1, *[1] * (values.ndim - 1)) * values
        return eqx.tree_at(lambda d: d.weights, self, weights, is_leaf=lambda x: x is None)

    def assemble(self, values: PyTree[Array]) -> PyTree[Array]:
        """The sum over the lags."""
        assert self.weights is not None
        multiply = jax.vmap(_multiply)
        weights = self.weights[1:]
        return jax.tree.map(lambda x: jnp.sum(multiply(weights, x), axis=0), values)

    def complete(self, entry: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        """The sum with its first node, which is the state."""
        assert self.weights is not None
        weight = self.weights[0]
        return jax.tree.map(lambda x, y: x + _multiply(weight, y), entry, y)


def _multiply(weight: Array, y: Array) -> Array:
    return (weight * y).astype(y.dtype)


def find_radau_rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss–Radau rule on [0, 1], whose first node is 0."""
    legendre = np.polynomial.legendre.Legendre
    last, before = legendre.basis(count), legendre.basis(count - 1)
    both = last + before
    x = np.sort(np.real(both.roots()))
    x = x - both(x) / both.deriv()(x)
    x[0] = -1
    weights = (1 - x) / (count * before(x)) ** 2
    return (1 + x) / 2, weights / 2


class LagMatrix(LagEntry):
    """States of a network whose links have their own lags: entry (i, j) is z_j(t − tau_ij).

    Choose it for networks, such as brain regions, power grids and vehicles, where a signal takes
    its own time from each node to each other one. All lags are one read of the solution so far. A
    field computes with the matrix, for example `jnp.sum(weights * history[0], axis=1)`.

    The first axis of the state, which is one array, counts the nodes. Further axes are kept. If the
    state has several arrays, `of` selects one.

    Kinks are followed through the lags of a matrix if there are at most 100 of them. In larger
    networks steps go across kinks, which are weak there, since each comes through one link. No
    interval is longer than the shortest lag.

    **Arguments:**

    - `tau`: an n by n array of lags. An array of JAX is differentiable.
    - `links`: which pairs are linked, by default all. A boolean matrix leaves out pairs, whose
      entries are then 0 and whose lags are ignored; they may be 0. For sparse networks give two
      rows of whole numbers (i, j) and in `tau` one lag for each link. The field then gets a row
      with one entry for each link, to be added up by `jax.ops.segment_sum`.
    - `of`: a function of the state that gives this array, such as `lambda y: y[0]` (see `Lag`).
    """

    tau: Real[Array, "..."] | np.ndarray
    linked: Bool[Array, "nodes nodes"] | np.ndarray | None
    sources: Int[Array, " links"] | np.ndarray | None
    of: Callable | None = eqx.field(repr=False)
    size: int = eqx.field(static=True)

    reads: ClassVar[ReadKind] = "components"

    def __init__(self, tau: Any, links: Any = None, *, of: Callable | None = None):
        self.of = check_part(of, "LagMatrix")
        tau = tau if is_traced(tau) or isinstance(tau, jax.Array) else real_array(tau)
        self.linked = self.sources = None
        if isinstance(links, tuple):
            self.sources, self.size = _check_links(tau, links)
        else:
            self.size = _check_square(tau)
            self.linked = None if links is None else _check_mask(links, self.size)
        if self.linked is not None:
            # Pairs without a link read where a linked one does.
            some = tau[np.unravel_index(np.argmax(self.linked), self.linked.shape)]
            tau = (jnp if isinstance(tau, jax.Array) else np).where(self.linked, tau, some)
        check_positive(tau, "LagMatrix", "tau", LEAVE_OUT)
        self.tau = tau

    @property
    def taus(self) -> Any:
        """The lags of all pairs, or of all links."""
        return self.tau

    @property
    def kinks(self) -> Any:
        """All lags, or none if there are many."""
        known = None if is_traced(self.tau) else np.unique(self.tau)
        count = self.tau.size if known is None else known.size
        return self.tau if count <= MOST_KINKS else np.zeros(0)

    @property
    def components(self) -> Any:
        """The node at which each link begins."""
        if self.sources is not None:
            return self.sources
        return jnp.broadcast_to(jnp.arange(self.size), (self.size, self.size))

    def bind(self, t: Array, y: PyTree[Array], args: PyTree) -> "LagMatrix":
        """Checks the state, which is one array."""
        del t, args
        shapes = [x.shape for x in jax.tree.leaves(y)]
        count = shapes[0][0] if len(shapes) == 1 and shapes[0] else 0
        if count < self.size or (self.sources is None and count > self.size):
            raise ValueError(
                f"LagMatrix is for {self.size} nodes and got a state of shapes {shapes}; expected "
                f"one array with {self.size} numbers or rows along its first axis. "
                "Select one by of=, such as LagMatrix(tau, of=lambda y: y[0])."
            )
        return self

    def assemble(self, values: PyTree[Array]) -> PyTree[Array]:
        """The matrix, with 0 for pairs without a link."""
        if self.linked is None:
            return values
        linked = self.linked

        def leaf(x):
            return jnp.where(linked.reshape(*linked.shape, *[1] * (x.ndim - 2)), x, 0)

        return jax.tree.map(leaf, values)


LEAVE_OUT = "Leave pairs without a link out, for example LagMatrix(tau, links=tau > 0)."


def _check_square(tau: Any) -> int:
    if tau is None or tau.ndim != 2 or tau.shape[0] != tau.shape[1] or not tau.size:
        shape = None if tau is None else tau.shape
        raise ValueError(
            f"LagMatrix got lags of shape {shape}; expected a square matrix of numbers, one row "
            "and one column for each node. For a list of links give LagMatrix(taus, links=(i, j))."
        )
    return tau.shape[0]


def _check_mask(links: Any, size: int) -> np.ndarray:
    if is_traced(links):
        raise TypeError("LagMatrix got traced links; expected an array known beforehand.")
    mask = np.asarray(links)
    if mask.shape != (size, size) or mask.dtype != bool or not mask.any():
        raise ValueError(
            f"LagMatrix got links of {mask.dtype} and shape {mask.shape}, {int(np.sum(mask != 0))} "
            f"of them set; expected a boolean matrix of shape {(size, size)} with at least one "
            "link, such as weights > 0."
        )
    return mask


def _check_links(tau: Any, links: tuple) -> tuple[np.ndarray, int]:
    if is_traced(*links):
        raise TypeError("LagMatrix got traced links; expected arrays known beforehand.")
    pairs = [np.asarray(x) for x in links]
    shapes = [None if tau is None else tau.shape, *(x.shape for x in pairs)]
    fits = len(pairs) == 2 and len(set(shapes)) == 1 and pairs[0].ndim == 1 and pairs[0].size > 0
    if not fits or any(x.dtype.kind not in "iu" or x.min() < 0 for x in pairs):
        raise ValueError(
            f"LagMatrix got lags of shape {shapes[0]} and links of shapes {shapes[1:]}; expected "
            "links=(i, j), two rows of whole numbers from 0 on, and as many lags."
        )
    return pairs[1], int(max(x.max() for x in pairs)) + 1


class Slope(LagEntry):
    """The slope of the solution some time ago, z'(t − τ), as in neutral equations.

    Choose it if the equation has the delayed derivative, as those of lossless transmission lines
    and of machines in contact with a moving surface do.

    The slope is the derivative of the dense output, and steps have the same order as with a `Lag`.
    A kink at t0 does not become smoother. It comes back after every lag, and all of these times are
    breakpoints, up to 1,000 sums of lags. If lags are traced, kinks at instants of a `Hold` or an
    `Input` are followed through one lag only, so adaptive steps do better there. Before t0 the
    slope is that of the past, so give `y0` as a function of time.

    Neutral equations whose factor of z'(t − τ) is above 1 in size amplify errors without bound.

    **Arguments:**

    - `tau`: the lag, or a row of lags, whose slopes are stacked in front. An array is
      differentiable.
    - `of`: a function of the state whose slope is wanted (see `Lag`).
    """

    tau: RealScalar | Real[ArrayLike, " lags"]
    of: Callable | None = eqx.field(repr=False)

    reads: ClassVar[ReadKind] = "slopes"
    smooths: ClassVar[bool] = False

    def __init__(
        self,
        tau: RealScalar | Sequence[RealScalar] | Real[ArrayLike, " lags"],
        *,
        of: Callable | None = None,
    ):
        self.of = check_part(of, "Slope")
        if isinstance(tau, Learn):
            raise TypeError(f"Slope got tau={tau!r}; expected a positive number.")
        self.tau = check_period(tau, "Slope", several=True)

    @property
    def taus(self) -> Any:
        """The lags."""
        return self.tau


def _check_kernel(values: Array, y: PyTree[Array]) -> None:
    """Checks the values of a kernel at all nodes."""
    shape = values.shape[1:]
    for leaf in jax.tree.leaves(y):
        if shape and shape[max(0, len(shape) - leaf.ndim) :] != leaf.shape:
            raise ValueError(
                f"The kernel of Distributed returned the shape {shape} for a state of shape "
                f"{leaf.shape}; expected a number, or an array of the state's shape. Several "
                "kernels have another axis in front."
            )
        if jnp.iscomplexobj(values) and not jnp.iscomplexobj(leaf):
            raise ValueError(
                f"The kernel of Distributed returned {values.dtype} for a state of {leaf.dtype}; "
                "expected real numbers."
            )
    if not is_traced(values) and not np.all(np.isfinite(values)):
        raise ValueError(
            "The kernel of Distributed is infinite or NaN at a node; expected finite numbers from "
            "0 to upto, 0 included."
        )
