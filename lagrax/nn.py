"""Neural differential equations with a past, as layers: fields, flows, and the paper's models.

A *field* (`MLP`, `Conv`, or any function `f(t, y, args, *, history)`) is the right-hand side; a
*layer* (`NODE`, `ANODE`, `NDDE`, `NPCDDE`, `UNPCDDE`) follows it from its input to its final state.
All layers are one `Flow` with different delays. Arrays have their channels last and any batch axes
in front; a batch shares its steps, `jax.vmap(layer)` gives each member its own.

The leaves of fields and layers are their parameters, all of them arrays, so models pass through
`jax.jit`, `jax.grad`, `jax.vmap` and optax as they are.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Real, Shaped

from ._checks import check_delays
from ._delays import Delay, Lag, RealScalar, holds, is_whole
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
        _check_whole("Affine", "inputs", inputs, 1)
        _check_whole("Affine", "outputs", outputs, 1)
        _check_key("Affine", key)
        bound = 1 / math.sqrt(math.prod(window) * inputs)
        wkey, bkey = jax.random.split(key)
        shape = (*window, inputs, outputs)
        self.weight = jax.random.uniform(wkey, shape, minval=-bound, maxval=bound)
        self.bias = None
        if use_bias:
            self.bias = jax.random.uniform(bkey, (outputs,), minval=-bound, maxval=bound)

    def __call__(
        self, x: Float[Array, "..."], dtype: DTypeLike | None = None
    ) -> Float[Array, "..."]:
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


def _rows(weight: Array, bias: Array | None, x: Array, axis: int, dtype: DTypeLike) -> Array:
    """An affine map of `axis` of `x`, with one row for each output."""
    wide = jnp.promote_types(dtype, jnp.float32)
    weight, x = weight.astype(dtype), x.astype(dtype)
    if not _on_accelerator():
        # XLA's CPU backend lacks some products of 16-bit numbers; rounded they are already.
        weight, x = weight.astype(wide), x.astype(wide)
    y = lax.dot_general(weight, x, (((0,), (axis,)), ((), ())), preferred_element_type=wide)
    return y if bias is None else y + bias.astype(y.dtype).reshape(-1, *(1,) * (y.ndim - 1))


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


class Design(NamedTuple):
    """What a field looks at and how it computes: its arguments, as `field.design`. See `MLP` and
    `Conv` for their meaning."""

    channels: int
    history: int
    uses_state: bool
    activation: Callable
    compute_dtype: DTypeLike | None
    pad_to: int | None
    by_hand: bool = False

    @property
    def inputs(self) -> int:
        """How many channels the first layer is given."""
        return self.channels * (self.history + self.uses_state)

    def padded(self, width: int) -> int:
        pad_to = self.pad_to or (32 if _on_accelerator() else 1)
        return -(-width // pad_to) * pad_to

    @property
    def fused(self) -> bool:
        """Whether the field is one function with its derivative by hand. Known when it is traced:
        `hold` and the evaluations must agree on what passes between them."""
        return self.by_hand and self.compute_dtype is not None and _on_accelerator()


def _on_accelerator() -> bool:
    return jax.default_backend() != "cpu"


def _checked(name: str, design: Design) -> Design:
    _check_whole(name, "channels", design.channels, 1)
    _check_whole(name, "history", design.history, 0)
    if design.pad_to is not None:
        _check_whole(name, "pad_to", design.pad_to, 1)
    if not design.uses_state and not design.history:
        raise ValueError(
            f"{name} got uses_state=False and history=0, which leaves no argument. Give the number "
            "of history entries it looks at: history=1."
        )
    dtype = design.compute_dtype
    return design if dtype is None else design._replace(compute_dtype=jnp.dtype(dtype))


def _check_key(name: str, key: Any) -> None:
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{name} got key={key!r:.60}; expected a key of jax.random, such as jax.random.key(0)."
        )


def _check_whole(name: str, what: str, value: Any, least: int) -> None:
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} got {what}={value!r}; expected a whole number >= {least}.")


def _checked_sequence(name: str, what: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} got {what}={values!r:.60}; expected a list of them.")
    return values


class Joined(eqx.Module):
    """The distinct entries of a history side by side, and which of them each entry is."""

    entries: Float[Array, "..."]
    places: tuple[int, ...] = eqx.field(static=True)


Held = Float[Array, "..."] | Joined | None


class AbstractField(eqx.Module):
    """A network on z(t) and the entries of its history side by side: z(t), z_k, z_{k-1}, ...

    Its first layer is split: `hold(history)` computes the share of the held entries, which the
    solver calls once an interval, and each evaluation adds the share of z(t). (`Conv` on
    accelerators only joins the held entries there: reading the share would take longer than
    computing it.) To evaluate a field by hand, write
    `field(t, y, None, history=field.hold(history))`.
    """

    layers: eqx.AbstractVar[list[Affine]]
    design: eqx.AbstractVar[Design]

    def hold(self, history: Sequence[Float[Array, "..."]]) -> Held:
        """The share of the held entries in the first layer, with its bias."""
        used = self._used(history)
        if self.design.fused:
            return _joined(used)
        first = self._layer(0)
        if not used:
            return first.bias
        weight = first.weight[-self.design.channels * len(used) :]
        entries = jnp.concatenate(used, axis=-1)
        if self._dense:
            dtype = self.design.compute_dtype or entries.dtype
            return _rows(weight, first.bias, entries, entries.ndim - 1, dtype)
        share = eqx.tree_at(lambda a: a.weight, first, weight)
        return share(entries, self.design.compute_dtype)

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, "*batch channels"],
        args: PyTree = None,
        *,
        history: Held,
    ) -> Float[Array, "*batch channels"]:
        """dz/dt, where `history` is what `hold` returned."""
        del t, args
        self._check(y)
        dtype = y.dtype if self.design.compute_dtype is None else self.design.compute_dtype
        if isinstance(history, Joined) or self.design.fused:
            assert history is None or isinstance(history, Joined)
            return self._fused(y, history, dtype)
        if self._dense:
            return self._by_rows(y, history, dtype)
        x = history
        if self.design.uses_state:
            x = _product(y, self._layer(0).weight[: self.design.channels], dtype)
            x = x if history is None else x + history.astype(x.dtype)
        for i in range(1, len(self.layers)):
            x = self._layer(i)(self.design.activation(x), dtype)
        return jnp.asarray(x, y.dtype)

    @property
    def _dense(self) -> bool:
        return all(layer.weight.ndim == 2 for layer in self.layers)

    def _by_rows(self, y: Array, held: Array | None, dtype: DTypeLike) -> Array:
        """With one row for each hidden channel. A batch is then the axis that lies close together
        in memory, which is faster where it is longer than the layers are wide
        (benchmarks/NOTES.md)."""
        x = held
        if self.design.uses_state:
            # The bias is in what is held.
            x = _rows(self._layer(0).weight[: self.design.channels], None, y, y.ndim - 1, dtype)
            if held is not None:
                x = x + held.reshape(held.shape + (1,) * (x.ndim - held.ndim)).astype(x.dtype)
        for i in range(1, len(self.layers)):
            layer = self._layer(i)
            x = _rows(layer.weight, layer.bias, self.design.activation(x), 0, dtype)
        return jnp.moveaxis(jnp.asarray(x, y.dtype), 0, -1)

    def _fused(self, y: Array, held: Joined | None, dtype: DTypeLike) -> Array:
        wide = jnp.promote_types(dtype, jnp.float32)
        arguments = [y] if self.design.uses_state else []
        arguments += [] if held is None else [held.entries]
        x = jnp.concatenate([*arguments, jnp.ones_like(y[..., :1])], axis=-1).astype(wide)
        width = self.design.padded(self.layers[-1].weight.shape[0] + 1)
        w1, w2, w3 = _packed(self.layers, width)
        if held is not None:
            w1 = _merged(w1, held.places, y.shape[-1])
        slope: Array = _convolve((w1, w2, w3), x.reshape(-1, *x.shape[-3:]), dtype)
        return slope.reshape(y.shape).astype(y.dtype)

    def _layer(self, i: int) -> Affine:
        """Layer `i` with its hidden channels padded. The parameters stay as they are, so neither
        gradients nor checkpoints know of it."""
        inputs, outputs = self.layers[i].weight.shape[-2:]
        if i > 0:
            inputs = self.design.padded(inputs)
        if i < len(self.layers) - 1:
            outputs = self.design.padded(outputs)
        return _padded(self.layers[i], inputs, outputs)

    def _used(self, history: Sequence[Array]) -> tuple[Array, ...]:
        needed, got = self.design.history, len(history)
        if got < needed:
            raise ValueError(
                f"{type(self).__name__} was made for {needed} history entries and got {got}. Make "
                f"it with history={got}, or give {needed} delays."
            )
        for entry in history[:needed]:
            self._check(entry)
        return tuple(history[:needed])

    def _check(self, y: Array) -> None:
        window = max(layer.weight.ndim for layer in self.layers) - 2
        expected = (*("height", "width")[:window], str(self.design.channels))
        if y.ndim < len(expected) or y.shape[-1] != self.design.channels:
            raise ValueError(
                f"{type(self).__name__} got a state of shape {y.shape}; expected (..., "
                f"{', '.join(expected)}), channels last. Move the channels, or make the field with "
                "other `channels` (augmented ones count)."
            )


class MLP(AbstractField):
    """A fully connected field on the last axis: for time series and points.

    The paper's population model is `MLP(1, (10, 10), history=1, use_bias=False, key=key)`.

    **Arguments:**

    - `channels`: the size of the state's last axis.
    - `widths`: of the hidden layers.
    - `history`: how many entries of the history it looks at, from the first on. Further ones are
      ignored.
    - `uses_state`: whether it looks at z(t). Without it the field is constant between knots (eqs. 8
      and 12) and is evaluated once an interval.
    - `activation`: of each number; better a smooth one, for the sake of high-order solvers.
    - `use_bias`: whether its layers have biases.
    - `compute_dtype`, `pad_to`: see `Conv`.
    - `key`: of the initial parameters, uniform in ±1/√fan_in.
    """

    layers: list[Affine]
    design: Design = eqx.field(static=True)

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
        for width in _checked_sequence("MLP", "widths", widths):
            _check_whole("MLP", "widths", width, 1)
        _check_key("MLP", key)
        self.design = _checked(
            "MLP", Design(channels, history, uses_state, activation, compute_dtype, pad_to)
        )
        if not widths:
            raise ValueError(
                "MLP got no widths; expected that of at least one hidden layer, such as (64, 64)."
            )
        sizes = [self.design.inputs, *widths, channels]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = [
            Affine(inputs, outputs, use_bias=use_bias, key=k)
            for inputs, outputs, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]


class Conv(AbstractField):
    """The paper's convolutional field: 1×1, relu, 3×3, relu, 1×1, all with biases. For images.

    The state is (..., height, width, channels).

    **Arguments:**

    - `channels`: of the state, augmented ones included.
    - `filters`: of the two hidden layers.
    - `history`, `uses_state`: see `MLP`.
    - `compute_dtype`: what the products inside the field are computed in; parameters and state
      stay as they are. By default the type of the state. On accelerators a given type also has its
      derivative written by hand, for speed and for reverse mode alone: leave it out for `jax.jvp`.
      Choose `jnp.float16` there, as fast as `jnp.bfloat16` and with less than half its error;
      `jnp.bfloat16` where states or hidden values may exceed 65,504. `jnp.float32` computes at
      JAX's precision. At the default one, which is tf32 on NVIDIA's GPUs, the 3×3 weight gradient
      is then that of float16 copies of its operands: as many bits as tf32, but they overflow
      beyond 65,504; `jax.default_matmul_precision("highest")` does without.
    - `pad_to`: hidden channels are filled up with zeros to a multiple of it, inside the field
      alone; neither the parameters nor the function change. By default 32 on accelerators, with
      room for the biases where the derivative is written by hand, and 1 on CPUs.
    - `key`: of the initial parameters, uniform in ±1/√fan_in.
    """

    layers: list[Affine]
    design: Design = eqx.field(static=True)

    def __init__(
        self,
        channels: int,
        filters: int,
        *,
        history: int = 0,
        uses_state: bool = True,
        compute_dtype: DTypeLike | None = None,
        pad_to: int | None = None,
        key: PRNGKeyArray,
    ):
        _check_whole("Conv", "filters", filters, 1)
        _check_key("Conv", key)
        self.design = _checked(
            "Conv", Design(channels, history, uses_state, jax.nn.relu, compute_dtype, pad_to, True)
        )
        keys = jax.random.split(key, 3)
        self.layers = [
            Affine(self.design.inputs, filters, key=keys[0]),
            Affine(filters, filters, window=(3, 3), key=keys[1]),
            Affine(filters, channels, key=keys[2]),
        ]


# --- the convolutional field on accelerators ------------------------------------------------------
#
# One function with its derivative by hand: autodiff would keep float32 arrays and pass them back
# where 16 bits do, and sum up for the biases. benchmarks/NOTES.md has the times.


def _packed(layers: list[Affine], width: int) -> tuple[Array, Array, Array]:
    """The weights of the three layers for `width` hidden channels, with the biases among them.

    The first spare channel of either hidden layer is the constant 1, which comes from the 1 behind
    the arguments. Biases are the weights of that channel, and cost nothing of their own.
    """
    w1, b1, w2, b2, w3, b3 = jax.tree.leaves(layers)
    filters, spare = b1.size, width - b1.size
    more = (0, spare)
    one = jax.nn.one_hot(filters, width, dtype=w1.dtype)
    w1 = jnp.concatenate([jnp.pad(w1, ((0, 0), more)), (jnp.pad(b1, more) + one)[None]])
    of_one = (jnp.pad(b2, more) + one)[None, None, None]
    w2 = jnp.pad(w2, ((0, 0), (0, 0), more, more))
    w2 = w2 + jnp.pad(of_one, ((1, 1), (1, 1), (filters, spare - 1), (0, 0)))
    w3 = jnp.pad(jnp.concatenate([w3, b3[None]]), ((0, spare - 1), (0, 0)))
    return w1, w2, w3


def _joined(history: Sequence[Array]) -> Joined | None:
    if not history:
        return None
    distinct = []
    for entry in history:
        if not any(entry is other for other in distinct):
            distinct.append(entry)
    places = [[entry is other for other in distinct].index(True) for entry in history]
    # Barriers, so that the cotangent of each entry is computed once, and by itself.
    entries = [lax.optimization_barrier(entry) for entry in distinct]
    return Joined(jnp.concatenate(entries, axis=-1), tuple(places))


def _merged(w1: Array, places: tuple[int, ...], channels: int) -> Array:
    """The first layer for distinct entries: equal ones are multiplied by the sum of their weights.
    Its rows are those of the state, if it is used, of the entries one after the other, and of 1."""
    number = len(set(places))
    if number == len(places):
        return w1
    of_entries = w1[-1 - channels * len(places) : -1].reshape(len(places), channels, -1)
    which = jax.nn.one_hot(jnp.asarray(places), number, dtype=w1.dtype)
    summed = jnp.tensordot(which, of_entries, (0, 0), precision="highest")
    first = w1[: -1 - channels * len(places)]
    return jnp.concatenate([first, summed.reshape(number * channels, -1), w1[-1:]])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(weights: tuple[Array, Array, Array], x: Array, dtype: DTypeLike) -> Array:
    """The field on its arguments and a 1 side by side, by weights as `_packed` gives them."""
    return _convolve_forward(weights, x, dtype)[0]


def _convolve_forward(weights, x, dtype):
    w1, w2, w3 = weights
    # Not in bfloat16: rounding the state that much shows in the gradient.
    x = x if dtype == jnp.bfloat16 else x.astype(dtype)
    h1 = jax.nn.relu(_dot(x, w1.astype(x.dtype), (3,), (0,))).astype(dtype)
    # Where h1 > 0, so was its argument: without the barrier XLA keeps that, too.
    h1 = lax.optimization_barrier(h1)
    # A float32 sum of 16-bit products would here be computed in tf32, on copies.
    h2 = jax.nn.relu(_conv(h1, w2.astype(dtype)))
    return _dot(h2, w3.astype(dtype), (3,), (0,)), (weights, x, h1, h2)


def _convolve_backward(dtype, saved, g):
    (w1, w2, w3), x, h1, h2 = saved
    # At JAX's default precision float32 means tf32, in which the weight gradient is slow; float16
    # has as many bits.
    default = jax.config.jax_default_matmul_precision is None  # pyright: ignore
    narrow = jnp.float16 if dtype == jnp.float32 and default else dtype
    scale = _scale(g) if narrow == jnp.float16 else 1.0
    g = g * scale
    g2 = sum(g[..., i, None] * w3[:, i].astype(g.dtype) for i in range(g.shape[-1]))
    g2 = jnp.where(h2 > 0, g2, 0).astype(dtype)
    # Behind the barrier it runs as a forward convolution, which is faster in tf32.
    turned = lax.optimization_barrier(w2[::-1, ::-1].swapaxes(2, 3).astype(dtype))
    g1 = jnp.where(h1 > 0, _conv(g2, turned), 0)
    pixels = (0, 1, 2)
    dw1 = _dot(x.astype(dtype), g1, pixels, pixels)
    dw2 = _conv(h1.astype(narrow), g2.astype(narrow), ((1, 1), (1, 1)), ("CHWN", "IHWO", "HWNC"))
    dw3 = _dot(h2, g.astype(dtype), pixels, pixels)
    dx = _dot(g1, w1.astype(dtype), (3,), (1,))
    like = ((w1, w2, w3), g)
    return jax.tree.map(lambda d, a: d.astype(a.dtype) / scale, ((dw1, dw2, dw3), dx), like)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _scale(g: Array) -> Array:
    """A power of two that takes `g` well inside float16's range: entries to 1/16 at most, and the
    sum of all to 2^13, since the weight gradient, a sum over all pixels, is float16 as well."""
    size = jnp.abs(lax.stop_gradient(g))
    size = jnp.maximum(2**4 * jnp.max(size), 2**-13 * jnp.sum(size))
    exponent = jnp.where(size > 0, -jnp.ceil(jnp.log2(size)), 0)
    return jnp.exp2(jnp.clip(exponent, -100, 100))


def _dot(a: Array, b: Array, axes_a: tuple[int, ...], axes_b: tuple[int, ...]) -> Array:
    """The product over the given axes, summed up in float32 at least."""
    wide = jnp.promote_types(a.dtype, jnp.float32)
    return lax.dot_general(a, b, ((axes_a, axes_b), ((), ())), preferred_element_type=wide)


def _conv(
    x: Array, w: Array, padding: Any = "SAME", axes: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC")
) -> Array:
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=axes)


# --- layers ---------------------------------------------------------------------------------------


class Augment(eqx.Module):
    """Puts `p` zero channels behind the others (Ap in the paper's tables).

    Trajectories get room to pass each other, which those of a `NODE` cannot. Layers have it built
    in: `NPCDDE(field, 5, augment=2)`; the field then has two channels more than the input.
    """

    p: int = eqx.field(static=True)

    def __init__(self, p: int):
        _check_whole("Augment", "p", p, 0)
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
    """A neural delay differential equation, z' = f(z(t), z(t - tau)), with a constant past (eq. 7).

    For a system whose delay moves on with time. It must look up its past at every evaluation:
    where held samples serve as well, `NPCDDE` is faster. The field has `history=1`.
    """

    flow: Flow

    def __init__(
        self, field: Callable, tau: RealScalar = 1.0, *, T: RealScalar = 1.0, **options: Any
    ):
        self.flow = Flow(field, [Lag(tau)], T=T, **options)


class NPCDDE(AbstractLayer):
    """A neural piecewise-constant delay differential equation (eq. 13).

    z' = f(z(t), z_k, z_{k-1}, ...), where z_k is the state at the last multiple of tau = T/n. The
    first choice for a past: universal (Theorem 1, Proposition 2) at the price of a `NODE`.

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
        _check_whole("NPCDDE", "n", n, 1)
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
        n = len(_checked_sequence("UNPCDDE", "fields", fields))
        _check_whole("UNPCDDE", "the number of fields", n, 1)
        tau, end = _shared(T, n)
        self.flow = Flow(list(fields), holds(tau, n if lags is None else lags), T=end, **options)


# --- the paper's models ---------------------------------------------------------------------------


class Head(eqx.Module):
    """A linear map of the flattened final state to logits.

    **Arguments:**

    - `shape`: of the final state without batch axes, augmented channels included.
    - `classes`: how many logits.
    - `key`: of the initial parameters.
    """

    affine: Affine
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: Sequence[int], classes: int = 10, *, key: PRNGKeyArray):
        for size in _checked_sequence("Head", "shape", shape):
            _check_whole("Head", "shape", size, 1)
        _check_whole("Head", "classes", classes, 1)
        _check_key("Head", key)
        self.affine = Affine(math.prod(shape), classes, key=key)
        self.shape = tuple(shape)

    def __call__(
        self, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch classes"]:
        del key
        batch = x.shape[: x.ndim - len(self.shape)]
        if x.shape != (*batch, *self.shape):
            raise ValueError(
                f"Head got a state of shape {x.shape}; expected {self.shape} behind the batch "
                "axes. Make it with the shape of the final state, augmented channels included."
            )
        return self.affine(x.reshape(*batch, -1))


class Classifier(eqx.Module):
    """A layer and a head on its final state; calling it gives logits.

    **Arguments:**

    - `flow`: from an input to a final state: any layer here, or another function.
    - `head`: from there to logits, such as a `Head`.
    """

    flow: Callable
    head: Callable

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch classes"]:
        del key
        return self.head(self.flow(x))


_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "svhn": (32, 32, 3)}

# The filters of the paper's parameter table: for images of one channel, of three channels.
_FILTERS = {
    "NODE": (92, 92),
    "NDDE": (92, 92),
    "NPCDDE2": (91, 91),
    "UNPCDDE2": (64, 64),
    "NPCDDE3": (91, 91),
    "UNPCDDE3": (52, 52),
    "NPCDDE5": (91, 91),
    "UNPCDDE5": (40, 40),
    "A1+NODE": (87, 86),
    "A1+NDDE": (86, 85),
    "A1+NPCDDE5": (86, 84),
    "A1+UNPCDDE5": (38, 37),
    "A2+NODE": (81, 79),
    "A2+NDDE": (81, 78),
    "A2+NPCDDE5": (80, 77),
    "A2+UNPCDDE5": (35, 34),
    "A4+NODE": (70, 63),
    "A4+NDDE": (69, 62),
    "A4+NPCDDE5": (68, 61),
    "A4+UNPCDDE5": (30, 26),
}

# From the number of intervals and a maker of fields (history, number of the field) to a layer.
_FAMILIES: dict[str, Callable[..., AbstractLayer]] = {
    "NODE": lambda n, make, **options: NODE(make(0, 0), **options),
    "NDDE": lambda n, make, **options: NDDE(make(1, 0), **options),
    "NPCDDE": lambda n, make, **options: NPCDDE(make(n, 0), n, **options),
    "UNPCDDE": lambda n, make, **options: UNPCDDE([make(k + 1, k) for k in range(n)], **options),
}


def paper_models() -> tuple[str, ...]:
    """The names of the paper's image models, in the order of its tables."""
    return tuple(_FILTERS)


def paper_filters(name: str, data: str) -> int:
    """How many filters the paper gives the model `name` on the images `data`."""
    for what, value, choices in (("model", name, _FILTERS), ("data set", data, _SHAPES)):
        if value not in choices:
            raise ValueError(f"No {what} {value!r} in the paper; it has {', '.join(choices)}.")
    return _FILTERS[name][_SHAPES[data][-1] == 3]


def paper_intervals(name: str) -> int:
    """How many intervals the model `name` has between its knots."""
    return _parsed(name)[2]


def _parsed(name: str) -> tuple[int, str, int]:
    """Augmented channels, family and intervals, from a name such as A2+UNPCDDE5."""
    match = re.fullmatch(r"(?:A(\d)\+)?([A-Z]+)(\d?)", name) if name in _FILTERS else None
    if match is None:
        raise ValueError(f"No model {name!r} in the paper; it has {', '.join(_FILTERS)}.")
    return int(match[1] or 0), match[2], int(match[3] or 1)


def paper_model(
    name: str,
    data: str,
    *,
    key: PRNGKeyArray,
    compute_dtype: DTypeLike | None = None,
    pad_to: int | None = None,
    **options: Any,
) -> Classifier:
    """One of the paper's image classifiers: `paper_model("A2+UNPCDDE5", "cifar10", key=key)`.

    `data` is mnist, cifar10 or svhn: images (..., height, width, channels) of floats in [0, 1].
    `compute_dtype` and `pad_to` go to the fields (`Conv`), `options` to the layer (`Flow`): with
    none the steps are adaptive, as in the paper; `steps=1, solver=diffrax.Midpoint()` is several
    times faster.
    """
    filters = paper_filters(name, data)
    _check_key("paper_model", key)
    p, family, n = _parsed(name)
    height, width, channels = _SHAPES[data]
    keys = jax.random.split(key, n + 1)

    def make(history, number):
        return Conv(
            channels + p,
            filters,
            history=history,
            compute_dtype=compute_dtype,
            pad_to=pad_to,
            key=keys[number],
        )

    flow = _FAMILIES[family](n, make, augment=p, **options)
    return Classifier(flow, Head((height, width, channels + p), key=keys[n]))


@cache
def paper_size(name: str, data: str) -> dict[str, int]:
    """The `filters` and `params` of the model `name` on the images `data`, without making it."""
    model = eqx.filter_eval_shape(paper_model, name, data, key=jax.random.key(0))
    return {"filters": paper_filters(name, data), "params": parameter_count(model)}


def parameter_count(model: PyTree) -> int:
    """How many numbers of `model` are trained. Works on `eqx.filter_eval_shape`'s result, too."""
    leaves = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return sum(math.prod(x.shape) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))
