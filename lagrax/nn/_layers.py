"""Layers: what follows a field from its input to its final state. All are one `Flow`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree, Real, Shaped

from .._solve.checks import check_delays
from .._solve.delays import Delay, Lag, RealScalar, holds
from .._solve.gradients import Checkpointed, Gradient
from .._solve.solution import Solution
from .._solve.solve import solve
from ._checks import check_whole, checked_sequence
from ._fields import AbstractField


class Augment(eqx.Module):
    """Puts `p` zero channels behind the others (Ap in the paper's tables).

    Trajectories get room to pass each other, which those of a `NODE` cannot. Layers have it built
    in: `NPCDDE(field, 5, augment=2)`; the field then has two channels more than the input.
    """

    p: int = eqx.field(static=True)

    def __init__(self, p: int):
        check_whole("Augment", "p", p, 0)
        self.p = p

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Shaped[Array, "..."]:
        del key
        x = jnp.asarray(x)
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, self.p)]) if self.p else x


class _Options(NamedTuple):
    """What a flow passes on to `lagrax.solve`, by the same names."""

    delays: tuple[Delay, ...]
    intervals: int | None
    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController | None
    steps: int | None
    gradient: Gradient
    max_steps: int
    throw: bool


class _Periods(eqx.Module):
    """A final time that is so many periods, for periods that are trained."""

    tau: Real[Array, ""]
    number: int = eqx.field(static=True)


class Flow(eqx.Module):
    """The map from an initial state to the state at time T: the core of all layers.

    Choose it directly for delays that no named layer has: several periods, holds and lags mixed, a
    trained `tau`.

    **Arguments:**

    - `field`: `MLP`, `Conv` or any `f(t, y, args, *, history)`; a list of them has one for each
      interval between knots.
    - `delays`: as in `lagrax.solve`. A `tau` given as an array of JAX's is a parameter to train,
      one where several delays share it, and so are such `times`.
    - `T`: the final time.
    - `augment`: so many zero channels are put behind those of the input, see `Augment`.
    - `intervals`: as in `lagrax.solve`, needed where `tau` is trained.
    - `solver`, `stepsize_controller`, `steps`, `gradient`, `max_steps`, `throw`: as in
      `lagrax.solve`. `steps=1` with `diffrax.Midpoint()` trains images fast; leave `steps` out for
      adaptive steps.
    """

    field: Callable | list[Callable]
    augment: Augment
    _arrays: list[Array]
    _static: PyTree = eqx.field(static=True)

    def __init__(
        self,
        field: Callable | list[Callable] | tuple[Callable, ...],
        delays: Sequence[Delay] = (),
        *,
        T: RealScalar | _Periods = 1.0,
        augment: int = 0,
        intervals: int | None = None,
        solver: diffrax.AbstractSolver = diffrax.Tsit5(),
        stepsize_controller: diffrax.AbstractStepSizeController | None = None,
        steps: int | None = None,
        gradient: Gradient = Checkpointed(),
        max_steps: int = 4096,
        throw: bool = True,
    ):
        check_delays(delays)
        self.field = list(field) if isinstance(field, (list, tuple)) else field
        self.augment = Augment(augment)
        options = _Options(
            tuple(delays), intervals, solver, stepsize_controller, steps, gradient, max_steps, throw
        )
        # Split, so that every leaf is an array and a model passes through jax.jit without a filter.
        self._arrays, self._static = _split((T, options))

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Shaped[Array, "..."]:
        """The state at T. `key` is not used: it lets a layer stand in an `eqx.nn.Sequential`."""
        del key
        return self.solve(x).ys[-1]  # pyright: ignore[reportOptionalSubscript]

    def solve(
        self,
        x: Shaped[ArrayLike, "..."] | Callable,
        *,
        t0: RealScalar = 0.0,
        t1: RealScalar | None = None,
        args: PyTree = None,
        saveat: diffrax.SaveAt = diffrax.SaveAt(t1=True),
        intervals: int | None = None,
    ) -> Solution:
        """The whole solution from `t0` to `t1` (t0 + T if left out): for time series.

        `x` is the state at `t0`, or a function of time, the past for t <= t0. `args` go to the
        field, `saveat` and `intervals` are those of `lagrax.solve`.
        """
        T, options = _put_back(self._arrays, self._static)
        T = T.number * T.tau if isinstance(T, _Periods) else T
        if intervals is not None:
            options = options._replace(intervals=intervals)
        return solve(
            self.field,
            t0=t0,
            t1=t0 + T if t1 is None else t1,
            y0=(lambda t: self.augment(x(t))) if callable(x) else self.augment(x),
            args=args,
            saveat=saveat,
            **options._asdict(),
        )


def _shared(T: RealScalar, n: int) -> tuple[RealScalar, RealScalar | _Periods]:
    """The n-th part of T, and T: where they are trained, one parameter, that part."""
    tau = T / n
    return tau, _Periods(tau, n) if isinstance(tau, jax.Array) else T


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an array stood."""

    number: int


class _Fixed:
    """A NumPy array that is not to be trained, such as the instants of a `Hold`, as a constant of
    compiled programs."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Fixed) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.array.tobytes())


def _split(tree: PyTree) -> tuple[list[Array], PyTree]:
    """The arrays of JAX's, and the rest. One that stands in several places, as the period of
    `holds(tau, 2)` does, is one parameter."""
    arrays = {id(x): x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)}
    number = {key: i for i, key in enumerate(arrays)}

    def kept(x: Any) -> Any:
        if isinstance(x, jax.Array):
            return _Place(number[id(x)])
        return _Fixed(x) if isinstance(x, np.ndarray) else x

    return list(arrays.values()), jax.tree.map(kept, tree)


def _put_back(arrays: list[Array], rest: PyTree) -> Any:
    def given(x: Any) -> Any:
        if isinstance(x, _Place):
            return arrays[x.number]
        return x.array if isinstance(x, _Fixed) else x

    return jax.tree.map(given, rest)


class AbstractLayer(eqx.Module):
    """A named kind of `Flow`. `layer(x)` is the final state, `layer.solve(x, ...)` the solution."""

    flow: eqx.AbstractVar[Flow]

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Shaped[Array, "..."]:
        """The state at T; see `Flow`."""
        return self.flow(x, key=key)

    def solve(self, x: Shaped[ArrayLike, "..."] | Callable, **options: Any) -> Solution:
        """The whole solution; see `Flow.solve` for `t0`, `t1`, `args`, `saveat`, `intervals`."""
        return self.flow.solve(x, **options)


class NODE(AbstractLayer):
    """A neural ordinary differential equation, z' = f(z(t)) (eq. 2).

    The baseline without a past. Its map is a homeomorphism, so it cannot take what lies inside a
    ring out of it: use a layer with a past, or `ANODE`, for that. `options` are those of `Flow`.
    """

    flow: Flow

    def __init__(self, field: Callable, *, T: RealScalar = 1.0, **options: Any):
        self.flow = Flow(field, T=T, **options)


class ANODE(AbstractLayer):
    """An augmented neural ODE: `p` zero channels behind those of the input, then a `NODE`.

    Choose it where a past is out of the question and a `NODE` cannot part what lies close together.
    The field has `p` channels more than the input, and so has the final state. `options` are those
    of `Flow`.
    """

    flow: Flow

    def __init__(self, field: Callable, p: int = 1, *, T: RealScalar = 1.0, **options: Any):
        self.flow = Flow(field, T=T, augment=p, **options)


class NDDE(AbstractLayer):
    """A neural delay differential equation, z' = f(z(t), z(t - tau)), with a constant past.

    For a system whose delay moves on with time. It must look up its past at every evaluation:
    where held samples serve as well, `NPCDDE` is faster. The field has `history=1`; one that has
    `uses_state=False` makes it the simple equation z' = f(z(t - tau)) (eq. 7).
    """

    flow: Flow

    def __init__(
        self, field: Callable, tau: RealScalar = 1.0, *, T: RealScalar = 1.0, **options: Any
    ):
        self.flow = Flow(field, [Lag(tau)], T=T, **options)


class NPCDDE(AbstractLayer):
    """A neural piecewise-constant delay differential equation (eq. 13).

    z' = f(z(t), z_k, z_{k-1}, ...), where z_k is the state at the last multiple of tau = T/n. The
    first choice for a past: universal (Theorem 1, Proposition 2), with no need to look anything up.
    No step crosses a knot, so that adaptive ones are more than a `NODE`'s.

    - `n`: the number of intervals in T. (Where T is an array of JAX's, tau is trained, T with it.)
    - `lags`: the number of held states the field is given, n if left out; the field has
      `history=lags`. (The paper's formula has one more, which equals the one before it up to T.)

    The simple equation (eq. 8) is `NPCDDE(MLP(..., history=1, uses_state=False), n, lags=1)`, the
    one with a skip connection (eq. 12) `NPCDDE(MLP(..., history=2, uses_state=False), 2)`: n and 2
    evaluations. Before the start the state was that at the start.
    """

    flow: Flow

    def __init__(
        self,
        field: Callable,
        n: int,
        *,
        T: RealScalar = 1.0,
        lags: int | None = None,
        **options: Any,
    ):
        check_whole("NPCDDE", "n", n, 1)
        lags = n if lags is None else lags
        if isinstance(field, AbstractField) and field.design.history != lags:
            raise ValueError(
                f"NPCDDE got a field with history={field.design.history}, but gives it {lags} held "
                f"states. Build the field with history={lags}, or give lags="
                f"{field.design.history}."
            )
        tau, end = _shared(T, n)
        self.flow = Flow(field, holds(tau, lags), T=end, **options)


class UNPCDDE(AbstractLayer):
    """An `NPCDDE` with a field of its own in each interval: unshared parameters (eq. 14).

    Choose it where depth should do different things, as in a residual network, of which it is the
    continuous form: with fields that look at z_k alone and T = n it *is* one (eqs. 17 and 18).

    `fields` are the n of them; the paper's number k = 0, 1, ... has `history=k + 1`, all the held
    states there are by then. A solve must span n intervals.
    """

    flow: Flow

    def __init__(
        self,
        fields: Sequence[Callable],
        *,
        T: RealScalar = 1.0,
        lags: int | None = None,
        **options: Any,
    ):
        n = len(checked_sequence("UNPCDDE", "fields", fields))
        check_whole("UNPCDDE", "the number of fields", n, 1)
        tau, end = _shared(T, n)
        self.flow = Flow(list(fields), holds(tau, n if lags is None else lags), T=end, **options)
