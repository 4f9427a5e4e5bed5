"""Layers, which map an input to the final state of an equation. Each is a `Flow`."""

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
from .._solve.delays import Entry, Input, Lag, RealScalar, holds
from .._solve.gradients import Checkpointed, Gradient
from .._solve.jumps import Jump
from .._solve.solution import Solution
from .._solve.solve import solve
from ._checks import check_sequence, check_whole
from ._fields import AbstractField


class Augment(eqx.Module):
    """Appends `p` zero channels (Ap in the paper's tables).

    They give trajectories room to pass each other, which those of a `NODE` cannot do. Layers have
    an option for it: `NPCDDE(field, 5, augment=2)`, whose field has two channels more than the
    input.
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


class _SolveOptions(NamedTuple):
    """Options of `lagrax.solve`, under the same names."""

    delays: tuple[Entry, ...]
    jumps: tuple[Jump, ...]
    intervals: int | None
    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController | None
    steps: int | None
    gradient: Gradient
    max_steps: int
    throw: bool


class _Periods(eqx.Module):
    """A final time of `number` periods, for a trained period."""

    tau: Real[Array, ""]
    number: int = eqx.field(static=True)


class Flow(eqx.Module):
    """The map from an initial state to the state at time T. All layers are built on it.

    Choose it directly for delays that no named layer has, such as several periods, a mixture of
    holds and lags, or a trained `tau`.

    **Arguments:**

    - `field`: `MLP`, `Conv` or any function `f(t, y, args, *, history)`. A list has one field for
      each interval between knots.
    - `delays`, `jumps`: as in `lagrax.solve`. A `tau`, `times`, amount or sample given as a JAX
      array is a parameter, and so are the arrays of a jump's function that is an equinox module.
      Delays that share the array share the parameter.
    - `T`: the final time.
    - `augment`: the number of zero channels to append to the input, see `Augment`.
    - `intervals`: as in `lagrax.solve`, needed if `tau` is trained.
    - `solver`, `stepsize_controller`, `steps`, `gradient`, `max_steps`, `throw`: as in
      `lagrax.solve`. `steps=1` with `diffrax.Midpoint()` trains images fast. Leave `steps` out for
      adaptive steps.
    """

    field: Callable | list[Callable]
    augment: Augment
    _arrays: list[Array]
    _static: PyTree = eqx.field(static=True)

    def __init__(
        self,
        field: Callable | list[Callable] | tuple[Callable, ...],
        delays: Sequence[Entry] = (),
        *,
        T: RealScalar | _Periods = 1.0,
        jumps: Sequence[Jump] = (),
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
        options = _SolveOptions(
            *(tuple(delays), tuple(jumps), intervals, solver, stepsize_controller, steps),
            *(gradient, max_steps, throw),
        )
        # Every leaf is then an array, and a model passes through jax.jit without a filter.
        self._arrays, self._static = _extract_arrays((T, options))

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Shaped[Array, "..."]:
        """The state at T. `key` is ignored; it allows layers in an `eqx.nn.Sequential`."""
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
        inputs: Sequence[Input] = (),
        jumps: Sequence[Jump] = (),
    ) -> Solution:
        """The whole solution from `t0` to `t1` (by default t0 + T), for time series.

        `x` is the state at `t0`, or a function of time that gives the past for t <= t0. `args` are
        passed to the field. `saveat` and `intervals` are as in `lagrax.solve`.

        `inputs` and `jumps` are those of this solve, such as the commands and doses of one series.
        They come after the layer's own delays and jumps.
        """
        T, options = _insert_arrays(self._arrays, self._static)
        T = T.number * T.tau if isinstance(T, _Periods) else T
        if intervals is not None:
            options = options._replace(intervals=intervals)
        options = options._replace(
            delays=(*options.delays, *inputs), jumps=(*options.jumps, *jumps)
        )
        return solve(
            self.field,
            t0=t0,
            t1=t0 + T if t1 is None else t1,
            y0=(lambda t: self.augment(x(t))) if callable(x) else self.augment(x),
            args=args,
            saveat=saveat,
            **options._asdict(),
        )


def _divide_span(T: RealScalar, n: int) -> tuple[RealScalar, RealScalar | _Periods]:
    """The period T / n, and T. If T is trained, the period is the one parameter."""
    tau = T / n
    return tau, _Periods(tau, n) if isinstance(tau, jax.Array) else T


@dataclasses.dataclass(frozen=True)
class _ArrayIndex:
    """Stands for the array of this number."""

    number: int


class _ConstantArray:
    """A NumPy array that is not trained, such as the instants of a `Hold`. It is hashable, so a
    compiled program can hold it as a constant."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _ConstantArray) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.array.tobytes())


def _extract_arrays(tree: PyTree) -> tuple[list[Array], PyTree]:
    """The JAX arrays of `tree`, and the rest. An array that occurs several times, as the period of
    `holds(tau, 2)` does, is one parameter."""
    arrays = {id(x): x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)}
    number = {key: i for i, key in enumerate(arrays)}

    def replace(x: Any) -> Any:
        if isinstance(x, jax.Array):
            return _ArrayIndex(number[id(x)])
        return _ConstantArray(x) if isinstance(x, np.ndarray) else x

    return list(arrays.values()), jax.tree.map(replace, tree)


def _insert_arrays(arrays: list[Array], rest: PyTree) -> Any:
    def replace(x: Any) -> Any:
        if isinstance(x, _ArrayIndex):
            return arrays[x.number]
        return x.array if isinstance(x, _ConstantArray) else x

    return jax.tree.map(replace, rest)


class AbstractLayer(eqx.Module):
    """A `Flow` with a name. `layer(x)` is the final state, `layer.solve(x, ...)` the solution."""

    flow: eqx.AbstractVar[Flow]

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Shaped[Array, "..."]:
        """The state at T; see `Flow`."""
        return self.flow(x, key=key)

    def solve(self, x: Shaped[ArrayLike, "..."] | Callable, **options: Any) -> Solution:
        """The whole solution; see `Flow.solve` for the options."""
        return self.flow.solve(x, **options)


class NODE(AbstractLayer):
    """A neural ordinary differential equation, z' = f(z(t)) (eq. 2).

    The baseline without a past. Its map is a homeomorphism, so it cannot move points out of a
    surrounding ring. Use a layer with a past, or `ANODE`, for that. `options` are those of `Flow`.
    """

    flow: Flow

    def __init__(self, field: Callable, *, T: RealScalar = 1.0, **options: Any):
        self.flow = Flow(field, T=T, **options)


class ANODE(AbstractLayer):
    """An augmented neural ODE, a `NODE` of the input with `p` zero channels appended.

    Choose it if the equation must have no past and a `NODE` cannot separate the data. The field and
    the final state have `p` channels more than the input. `options` are those of `Flow`.
    """

    flow: Flow

    def __init__(self, field: Callable, p: int = 1, *, T: RealScalar = 1.0, **options: Any):
        self.flow = Flow(field, T=T, augment=p, **options)


class NDDE(AbstractLayer):
    """A neural delay differential equation, z' = f(z(t), z(t - tau)), with a constant past.

    Choose it for a system with a constant lag. It looks up its past at every evaluation, so
    `NPCDDE` is faster if held samples serve as well. The field has `history=1`. With a field that
    has `uses_state=False`, it is the simple equation z' = f(z(t - tau)) (eq. 7).
    """

    flow: Flow

    def __init__(
        self, field: Callable, tau: RealScalar = 1.0, *, T: RealScalar = 1.0, **options: Any
    ):
        self.flow = Flow(field, [Lag(tau)], T=T, **options)


class NPCDDE(AbstractLayer):
    """A neural piecewise-constant delay differential equation (eq. 13).

    z' = f(z(t), z_k, z_{k-1}, ...), where z_k is the state at the last multiple of tau = T/n.
    Choose it first among the layers with a past, because it is universal (Theorem 1, Proposition 2)
    and looks nothing up. No step crosses a knot, so it takes more adaptive steps than a `NODE`.
    Before the start, the held states equal the initial state.

    - `n`: the number of intervals in T. (If T is a JAX array, tau is trained, and T with it.)
    - `lags`: the number of held states that the field gets, by default n. The field has
      `history=lags`. (The paper's formula has one more, which equals the one before it up to T.)

    The simple equation (eq. 8) is `NPCDDE(MLP(..., history=1, uses_state=False), n, lags=1)`. The
    equation with a skip connection (eq. 12) is
    `NPCDDE(MLP(..., history=2, uses_state=False), 2)`. They take n and 2 evaluations.
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
        tau, end = _divide_span(T, n)
        self.flow = Flow(field, holds(tau, lags), T=end, **options)


class UNPCDDE(AbstractLayer):
    """An `NPCDDE` whose intervals have fields of their own, with unshared parameters (eq. 14).

    Choose it if intervals should do different things, as the layers of a residual network do. It is
    the continuous form of one. With fields of z_k alone and T = n, it *is* a residual network
    (eqs. 17 and 18).

    `fields` has one field for each of the n intervals. In the paper, field k = 0, 1, ... has
    `history=k + 1`, all held states that exist by then. A solve must span n intervals.
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
        n = len(check_sequence("UNPCDDE", "fields", fields))
        check_whole("UNPCDDE", "the number of fields", n, 1)
        tau, end = _divide_span(T, n)
        self.flow = Flow(list(fields), holds(tau, n if lags is None else lags), T=end, **options)
