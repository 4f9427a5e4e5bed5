"""Neural differential equations with a past, as layers: fields, flows, and the paper's models.

A *field* (`MLP`, `Conv`, or any function `f(t, y, args, *, history)`) is the right-hand side; a
*layer* (`NODE`, `ANODE`, `NDDE`, `NPCDDE`, `UNPCDDE`) follows it from its input to its final state.
All layers are one `Flow` with different delays. Arrays have their channels last and any batch axes
in front; a batch shares its steps, `jax.vmap(layer)` gives each member its own.

The leaves of fields and layers are their parameters, all of them arrays, so models pass through
`jax.jit`, `jax.grad`, `jax.vmap` and optax as they are.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Shaped

from ._delays import Delay, Lag, RealScalar, holds
from ._gradients import Checkpointed, Gradient
from ._solution import Solution
from ._solve import solve

# --- fields ---------------------------------------------------------------------------------------


class Affine(eqx.Module):
    """An affine map of the last axis; with a window, a convolution of the same size over it.

    `weight` has the shape (*window, inputs, outputs): no window is a matrix, (3, 3) an image's
    convolution. Starts as PyTorch's layers do, weights and biases uniform in ±1/√fan_in.
    """

    weight: Float[Array, "*window inputs outputs"]
    bias: Float[Array, " outputs"] | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        window: tuple[int, ...] = (),
        use_bias: bool = True,
        key: PRNGKeyArray,
    ):
        bound = 1 / math.sqrt(math.prod(window) * inputs)
        wkey, bkey = jax.random.split(key)
        shape = (*window, inputs, outputs)
        self.weight = jax.random.uniform(wkey, shape, minval=-bound, maxval=bound)
        self.bias = None
        if use_bias:
            self.bias = jax.random.uniform(bkey, (outputs,), minval=-bound, maxval=bound)

    def __call__(self, x: Float[Array, "..."], dtype: DTypeLike | None = None) -> Float[Array, "..."]:
        """Multiplies in `dtype` (that of `x` if left out) and sums up in float32 at least."""
        y = _product(x, self.weight, x.dtype if dtype is None else dtype)
        return y if self.bias is None else y + self.bias.astype(y.dtype)


def _product(x: Array, weight: Array, dtype: DTypeLike) -> Array:
    x, weight = x.astype(dtype), weight.astype(dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    if weight.ndim == 2:
        return jnp.matmul(x, weight, preferred_element_type=wide)
    y = lax.conv_general_dilated(
        x.reshape(-1, *x.shape[-3:]),
        weight,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=wide,
    )
    return y.reshape(*x.shape[:-1], -1)


def _padded(layer: Affine, inputs: int, outputs: int) -> Affine:
    """More channels, connected by zeros."""
    *window, old_inputs, old_outputs = layer.weight.shape
    more = (0, outputs - old_outputs)
    widths = [(0, 0) for _ in window] + [(0, inputs - old_inputs), more]
    weight = jnp.pad(layer.weight, widths)
    bias = None if layer.bias is None else jnp.pad(layer.bias, more)
    return eqx.tree_at(lambda a: (a.weight, a.bias), layer, (weight, bias), is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


class Arguments(NamedTuple):
    """What a field looks at: the state or not, and how many entries of its history."""

    channels: int
    history: int
    uses_state: bool

    @property
    def inputs(self) -> int:
        return self.channels * (self.history + self.uses_state)


def _arguments(name: str, channels: int, history: int, uses_state: bool) -> Arguments:
    for what, value, least in (("channels", channels, 1), ("history", history, 0)):
        if isinstance(value, bool) or value < least:
            raise ValueError(f"{name} got {what}={value!r}; expected a whole number >= {least}.")
    if not uses_state and not history:
        raise ValueError(
            f"{name} got uses_state=False and history=0, which leaves no argument. Give the number "
            "of history entries it looks at: history=1."
        )
    return Arguments(channels, history, uses_state)


def _rounding(name: str, pad_to: int) -> int:
    if isinstance(pad_to, bool) or pad_to < 1:
        raise ValueError(f"{name} got pad_to={pad_to!r}; expected a whole number >= 1.")
    return pad_to


class Field(eqx.Module):
    """A network on z(t) and the entries of its history side by side: z(t), z_k, z_{k-1}, ...

    Its first layer is split: `hold(history)` computes the share of the held entries, which the
    solver calls once an interval, and each evaluation adds the share of z(t). To evaluate a field
    by hand, write `field(t, y, None, history=field.hold(history))`.
    """

    layers: eqx.AbstractVar[list[Affine]]
    activation: eqx.AbstractVar[Callable]
    arguments: eqx.AbstractVar[Arguments]
    compute_dtype: eqx.AbstractVar[np.dtype | None]
    pad_to: eqx.AbstractVar[int]

    def hold(self, history: Sequence[Float[Array, "..."]]) -> Float[Array, "..."] | None:
        """The share of the held entries in the first layer, with its bias."""
        used = self._used(history)
        first = self._layer(0)
        if not used:
            return first.bias
        weight = first.weight[-self.arguments.channels * len(used) :]
        share = eqx.tree_at(lambda a: a.weight, first, weight)
        return share(jnp.concatenate(used, axis=-1), self.compute_dtype)

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, "*batch channels"],
        args: PyTree = None,
        *,
        history: Float[Array, "..."] | None,
    ) -> Float[Array, "*batch channels"]:
        """dz/dt, where `history` is what `hold` returned."""
        self._check(y)
        x = history
        if self.arguments.uses_state:
            weight = self._layer(0).weight[: self.arguments.channels]
            share = _product(y, weight, self.compute_dtype or y.dtype)
            x = share if history is None else share + history
        for i in range(1, len(self.layers)):
            x = self._layer(i)(self.activation(x), self.compute_dtype or y.dtype)
        return x.astype(y.dtype)

    def _layer(self, i: int) -> Affine:
        """Layer `i` with its hidden channels padded, which tensor cores like."""
        up = lambda n: -(-n // self.pad_to) * self.pad_to
        inputs, outputs = self.layers[i].weight.shape[-2:]
        last = len(self.layers) - 1
        return _padded(self.layers[i], up(inputs) if i > 0 else inputs, up(outputs) if i < last else outputs)

    def _used(self, history: Sequence[Array]) -> tuple[Array, ...]:
        needed = self.arguments.history
        if len(history) < needed:
            raise ValueError(
                f"{type(self).__name__} was made for {needed} history entries and got "
                f"{len(history)}. Make it with history={len(history)}, or add delays."
            )
        for entry in history[:needed]:
            self._check(entry)
        return tuple(history[:needed])

    def _check(self, y: Array) -> None:
        spatial = max(layer.weight.ndim for layer in self.layers) - 2
        channels = self.arguments.channels
        if y.ndim < spatial + 1 or y.shape[-1] != channels:
            expected = ", ".join(["...", "height", "width"][: spatial + 1] + [str(channels)])
            raise ValueError(
                f"{type(self).__name__} got a state of shape {y.shape}; expected ({expected}), "
                "channels last. Move the channels, or make the field with another `channels` "
                "(augmented ones count)."
            )


class MLP(Field):
    """A fully connected field on the last axis: for time series and points.

    The population experiment of the paper is `MLP(1, (10, 10), history=1, use_bias=False, key=key)`.

    **Arguments:**

    - `channels`: the size of the state's last axis.
    - `widths`: of the hidden layers.
    - `history`: how many entries of the history it looks at, from the first on. Further ones are
      ignored.
    - `uses_state`: whether it looks at z(t). Without it the field is constant between knots (eqs. 8
      and 12) and is evaluated once an interval.
    - `activation`: smooth, for the sake of high-order solvers.
    - `compute_dtype`, `pad_to`: see `Conv`.
    """

    layers: list[Affine]
    activation: Callable = eqx.field(static=True)
    arguments: Arguments = eqx.field(static=True)
    compute_dtype: np.dtype | None = eqx.field(static=True)
    pad_to: int = eqx.field(static=True)

    def __init__(
        self,
        channels: int,
        widths: Sequence[int] = (64, 64),
        *,
        history: int = 0,
        uses_state: bool = True,
        activation: Callable = jnp.tanh,
        use_bias: bool = True,
        compute_dtype: DTypeLike | None = None,
        pad_to: int = 1,
        key: PRNGKeyArray,
    ):
        if not widths or min(widths) < 1:
            raise ValueError(
                f"MLP got widths={widths!r}; expected the size of at least one hidden layer, such "
                "as (64, 64)."
            )
        self.arguments = _arguments("MLP", channels, history, uses_state)
        sizes = [self.arguments.inputs, *widths, channels]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = [
            Affine(inputs, outputs, use_bias=use_bias, key=k)
            for inputs, outputs, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        self.activation = activation
        self.compute_dtype = None if compute_dtype is None else jnp.dtype(compute_dtype)
        self.pad_to = _rounding("MLP", pad_to)


class Conv(Field):
    """The paper's convolutional field: 1×1, relu, 3×3, relu, 1×1, all with biases. For images.

    The state is (..., height, width, channels).

    **Arguments:**

    - `channels`: of the state, augmented ones included.
    - `filters`: of the two hidden layers.
    - `history`, `uses_state`: see `MLP`.
    - `compute_dtype`: what the products inside the field are computed in; sums, parameters and
      state stay as they are. `jnp.bfloat16` is fast on accelerators, at some cost in accuracy; by
      default the type of the state.
    - `pad_to`: on accelerators 16, say: hidden channels are filled up with zeros to a multiple of
      it, inside the field alone. Neither the parameters nor the function change.
    """

    layers: list[Affine]
    activation: Callable = eqx.field(static=True)
    arguments: Arguments = eqx.field(static=True)
    compute_dtype: np.dtype | None = eqx.field(static=True)
    pad_to: int = eqx.field(static=True)

    def __init__(
        self,
        channels: int,
        filters: int,
        *,
        history: int = 0,
        uses_state: bool = True,
        compute_dtype: DTypeLike | None = None,
        pad_to: int = 1,
        key: PRNGKeyArray,
    ):
        if filters < 1:
            raise ValueError(f"Conv got filters={filters!r}; expected a whole number >= 1.")
        self.arguments = _arguments("Conv", channels, history, uses_state)
        keys = jax.random.split(key, 3)
        self.layers = [
            Affine(self.arguments.inputs, filters, key=keys[0]),
            Affine(filters, filters, window=(3, 3), key=keys[1]),
            Affine(filters, channels, key=keys[2]),
        ]
        self.activation = jax.nn.relu
        self.compute_dtype = None if compute_dtype is None else jnp.dtype(compute_dtype)
        self.pad_to = _rounding("Conv", pad_to)


# --- layers ---------------------------------------------------------------------------------------

State = Shaped[ArrayLike, "*batch channels"]


class Augment(eqx.Module):
    """Puts `p` zero channels behind the others (Ap in the paper's tables).

    Trajectories get room to pass each other, which those of a `NODE` cannot. Layers have it built
    in: `NPCDDE(field, 5, augment=2)`; the field then has `channels + 2` channels.
    """

    p: int = eqx.field(static=True)

    def __init__(self, p: int):
        if isinstance(p, bool) or p < 0:
            raise ValueError(f"Augment got p={p!r}; expected a number of channels, 0, 1, 2, ...")
        self.p = p

    def __call__(self, x: State, *, key: PRNGKeyArray | None = None) -> Shaped[Array, "*batch all"]:
        del key
        x = jnp.asarray(x)
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, self.p)]) if self.p else x


class _Setup(NamedTuple):
    """All of a flow but its fields. Its arrays (a trained tau) are leaves, the rest is static."""

    delays: tuple[Delay, ...]
    T: RealScalar
    intervals: int | None
    options: tuple[tuple[str, Any], ...]


class Flow(eqx.Module):
    """The map from an initial state to the state at time T, and the core of all layers.

    Choose it directly for delays that no named layer has: several periods, holds and lags mixed, a
    trained `tau`.

    **Arguments:**

    - `field`: `MLP`, `Conv` or any `f(t, y, args, *, history)`; a list of them has one for each
      interval between knots.
    - `delays`: as in `lagrax.solve`. A `tau` given as an array is a parameter.
    - `T`: the final time.
    - `augment`: so many zero channels are put behind the input's, see `Augment`.
    - `intervals`: as in `lagrax.solve`, needed where `tau` is a parameter.
    - `solver`, `stepsize_controller`, `steps`, `gradient`, `max_steps`, `throw`: as in
      `lagrax.solve`. `steps=1` with `diffrax.Midpoint()` trains fast; leave `steps` out for adaptive
      steps.
    """

    field: Callable | list[Callable]
    augment: Augment
    _arrays: _Setup
    _static: _Setup = eqx.field(static=True)

    def __init__(
        self,
        field: Callable | Sequence[Callable],
        delays: Sequence[Delay] = (),
        *,
        T: RealScalar = 1.0,
        augment: int = 0,
        intervals: int | None = None,
        solver: diffrax.AbstractSolver = diffrax.Tsit5(),
        stepsize_controller: diffrax.AbstractStepSizeController | None = None,
        steps: int | None = None,
        gradient: Gradient = Checkpointed(),
        max_steps: int = 4096,
        throw: bool = True,
    ):
        self.field = list(field) if isinstance(field, Sequence) else field
        self.augment = Augment(augment)
        options = {
            "solver": solver,
            "stepsize_controller": stepsize_controller,
            "steps": steps,
            "gradient": gradient,
            "max_steps": max_steps,
            "throw": throw,
        }
        setup = _Setup(tuple(delays), T, intervals, tuple(options.items()))
        # Split, so that every leaf of a model is an array and jax.jit needs no filter.
        self._arrays, self._static = eqx.partition(setup, eqx.is_array_like_array)

    def __call__(self, x: State, *, key: PRNGKeyArray | None = None) -> Shaped[Array, "..."]:
        """The state at T. (`key` is not used; it lets layers stand in an `eqx.nn.Sequential`.)"""
        del key
        ys = self.solve(x).ys
        assert ys is not None
        return ys[-1]

    def solve(
        self,
        x: State | Callable,
        *,
        t0: RealScalar = 0.0,
        t1: RealScalar | None = None,
        args: PyTree = None,
        saveat: diffrax.SaveAt = diffrax.SaveAt(t1=True),
        intervals: int | None = None,
    ) -> Solution:
        """The whole solution from `t0` to `t1` (by default t0 + T): for time series.

        `x` is the state at `t0`, or a function of time, the past for t <= t0.
        """
        setup = eqx.combine(self._arrays, self._static)
        return solve(
            self.field,
            t0=t0,
            t1=t0 + setup.T if t1 is None else t1,
            y0=(lambda t: self.augment(x(t))) if callable(x) else self.augment(x),
            args=args,
            delays=setup.delays,
            intervals=setup.intervals if intervals is None else intervals,
            saveat=saveat,
            **dict(setup.options),
        )
