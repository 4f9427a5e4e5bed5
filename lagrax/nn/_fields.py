"""Networks as right-hand sides: `MLP` and `Conv` of the state and of a history."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._solve.delays import RealScalar
from ._affine import Affine, apply_to_axis, multiply, on_accelerator, pad_channels
from ._checks import check_key, check_sequence, check_whole
from ._convolution import JoinedHistory, convolve, join_history, merge_weights, pack_weights


class Design(NamedTuple):
    """The options of a field, as `field.design`. See `MLP` and `Conv` for their meaning."""

    channels: int
    history: int
    uses_state: bool
    activation: Callable
    compute_dtype: DTypeLike | None
    pad_to: int | None
    by_hand: bool = False

    @property
    def inputs(self) -> int:
        """The number of input channels of the first layer."""
        return self.channels * (self.history + self.uses_state)

    def pad(self, width: int) -> int:
        """The width of a hidden layer with padding."""
        pad_to = self.pad_to or (32 if on_accelerator() else 1)
        return -(-width // pad_to) * pad_to

    @property
    def is_fused(self) -> bool:
        """Whether the field runs as one function with a derivative written by hand. Decided when it
        is traced, and alike for `hold` and the evaluations, which pass values to each other."""
        return self.by_hand and self.compute_dtype is not None and on_accelerator()


def _check_design(name: str, design: Design) -> Design:
    check_whole(name, "channels", design.channels, 1)
    check_whole(name, "history", design.history, 0)
    if design.pad_to is not None:
        check_whole(name, "pad_to", design.pad_to, 1)
    if not design.uses_state and not design.history:
        raise ValueError(
            f"{name} got uses_state=False and history=0, which leaves no argument. Give the number "
            "of history entries that it reads: history=1."
        )
    dtype = design.compute_dtype
    return design if dtype is None else design._replace(compute_dtype=jnp.dtype(dtype))


# The result of `hold`.
HeldShare = Float[Array, "..."] | JoinedHistory | None


class AbstractField(eqx.Module):
    """A network of z(t) and its history. Its input is z(t), z_k, z_{k-1}, ... concatenated.

    Its first layer is split. The solver calls `hold(history)` once an interval, which computes the
    share of the held entries in the first layer. Each evaluation adds the share of z(t). (`Conv` on
    accelerators only concatenates the held entries in `hold`, since reading the share would take
    longer than computing it.) To evaluate a field yourself, write
    `field(t, y, None, history=field.hold(history))`.
    """

    layers: eqx.AbstractVar[list[Affine]]
    design: eqx.AbstractVar[Design]

    def hold(self, history: Sequence[Float[Array, "..."]]) -> HeldShare:
        """The share of the held entries in the first layer, with its bias."""
        used = self._select_history(history)
        if self.design.is_fused:
            return join_history(used)
        first = self._layer(0)
        if not used:
            return first.bias
        weight = first.weight[-self.design.channels * len(used) :]
        entries = jnp.concatenate(used, axis=-1)
        if self._is_dense:
            dtype = self.design.compute_dtype or entries.dtype
            return apply_to_axis(weight, first.bias, entries, entries.ndim - 1, dtype)
        share = eqx.tree_at(lambda a: a.weight, first, weight)
        return share(entries, self.design.compute_dtype)

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, "*batch channels"],
        args: PyTree = None,
        *,
        history: HeldShare,
    ) -> Float[Array, "*batch channels"]:
        """dz/dt. `history` is the result of `hold`."""
        del t, args
        self._check(y)
        dtype = y.dtype if self.design.compute_dtype is None else self.design.compute_dtype
        if isinstance(history, JoinedHistory) or self.design.is_fused:
            assert history is None or isinstance(history, JoinedHistory)
            return self._evaluate_fused(y, history, dtype)
        if self._is_dense:
            return self._evaluate_dense(y, history, dtype)
        x = history
        if self.design.uses_state:
            x = multiply(y, self._layer(0).weight[: self.design.channels], dtype)
            x = x if history is None else x + history.astype(x.dtype)
        for i in range(1, len(self.layers)):
            x = self._layer(i)(self.design.activation(x), dtype)
        return jnp.asarray(x, y.dtype)

    @property
    def _is_dense(self) -> bool:
        return all(layer.weight.ndim == 2 for layer in self.layers)

    def _evaluate_dense(self, y: Array, held: Array | None, dtype: DTypeLike) -> Array:
        """Evaluates with hidden channels as the first axis. The batch is then contiguous in memory,
        which is faster if it is larger than the layers are wide (benchmarks/NOTES.md)."""
        x = held
        if self.design.uses_state:
            # `held` includes the bias.
            x = apply_to_axis(
                self._layer(0).weight[: self.design.channels], None, y, y.ndim - 1, dtype
            )
            if held is not None:
                x = x + held.reshape(held.shape + (1,) * (x.ndim - held.ndim)).astype(x.dtype)
        for i in range(1, len(self.layers)):
            layer = self._layer(i)
            x = apply_to_axis(layer.weight, layer.bias, self.design.activation(x), 0, dtype)
        return jnp.moveaxis(jnp.asarray(x, y.dtype), 0, -1)

    def _evaluate_fused(self, y: Array, held: JoinedHistory | None, dtype: DTypeLike) -> Array:
        wide = jnp.promote_types(dtype, jnp.float32)
        arguments = [y] if self.design.uses_state else []
        arguments += [] if held is None else [held.entries]
        x = jnp.concatenate([*arguments, jnp.ones_like(y[..., :1])], axis=-1).astype(wide)
        width = self.design.pad(self.layers[-1].weight.shape[0] + 1)
        w1, w2, w3 = pack_weights(self.layers, width)
        if held is not None:
            w1 = merge_weights(w1, held.places, y.shape[-1])
        slope: Array = convolve((w1, w2, w3), x.reshape(-1, *x.shape[-3:]), dtype)
        return slope.reshape(y.shape).astype(y.dtype)

    def _layer(self, i: int) -> Affine:
        """Layer `i` with padded hidden channels. The parameters are not padded, so gradients and
        checkpoints have their usual shapes."""
        inputs, outputs = self.layers[i].weight.shape[-2:]
        if i > 0:
            inputs = self.design.pad(inputs)
        if i < len(self.layers) - 1:
            outputs = self.design.pad(outputs)
        return pad_channels(self.layers[i], inputs, outputs)

    def _select_history(self, history: Sequence[Array]) -> tuple[Array, ...]:
        needed, got = self.design.history, len(history)
        if got < needed:
            raise ValueError(
                f"{type(self).__name__} was made for {needed} history entries and got {got}. Build "
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
                f"{', '.join(expected)}), channels last. Move the channels, or build a field "
                "with other `channels` (augmented ones count)."
            )


class MLP(AbstractField):
    """A fully connected network of the last axis, for time series and points.

    The paper's population model is `MLP(1, (10, 10), history=1, use_bias=False, key=key)`.

    **Arguments:**

    - `channels`: the size of the state's last axis.
    - `widths`: the widths of the hidden layers.
    - `history`: the number of history entries that it reads. Further entries are ignored.
    - `uses_state`: whether it reads z(t). Without z(t) the field is constant between knots (eqs. 8
      and 12) and is evaluated once an interval.
    - `activation`: the activation function. High-order solvers need a smooth one.
    - `use_bias`: whether the layers have biases.
    - `compute_dtype`, `pad_to`: see `Conv`.
    - `key`: the random key for the initial parameters, uniform in ±1/√fan_in.
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
        for width in check_sequence("MLP", "widths", widths):
            check_whole("MLP", "widths", width, 1)
        check_key("MLP", key)
        self.design = _check_design(
            "MLP", Design(channels, history, uses_state, activation, compute_dtype, pad_to)
        )
        if not widths:
            raise ValueError(
                "MLP got no widths; expected one for at least one hidden layer, such as (64, 64)."
            )
        sizes = [self.design.inputs, *widths, channels]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = [
            Affine(inputs, outputs, use_bias=use_bias, key=k)
            for inputs, outputs, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]


class Conv(AbstractField):
    """The paper's convolutional network for images: 1×1, relu, 3×3, relu, 1×1, all with biases.

    The state is (..., height, width, channels).

    **Arguments:**

    - `channels`: the number of channels of the state, augmented ones included.
    - `filters`: the number of channels of the two hidden layers.
    - `history`, `uses_state`: see `MLP`.
    - `compute_dtype`: the type in which products inside the field are computed, by default that of
      the state. Parameters and state keep their types. On accelerators, giving a type also selects
      a derivative written by hand. It is faster and supports reverse mode only, so leave the
      option out for `jax.jvp`. Choose `jnp.float16` on accelerators, since it is as fast
      as `jnp.bfloat16` and has less than half its error. Choose `jnp.bfloat16` if states or hidden
      values may exceed 65,504. `jnp.float32` computes at JAX's precision. At the default
      precision, which is tf32 on NVIDIA's GPUs, the 3×3 weight gradient is computed from float16
      copies of its operands. These have the same number of bits as tf32 but overflow beyond
      65,504; `jax.default_matmul_precision("highest")` avoids the copies.
    - `pad_to`: pads hidden channels with zeros to a multiple of this number, inside the field only.
      Neither the parameters nor the function change. By default 32 on accelerators (with room for
      the biases if the derivative is written by hand) and 1 on CPUs.
    - `key`: the random key for the initial parameters, uniform in ±1/√fan_in.
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
        check_whole("Conv", "filters", filters, 1)
        check_key("Conv", key)
        self.design = _check_design(
            "Conv", Design(channels, history, uses_state, jax.nn.relu, compute_dtype, pad_to, True)
        )
        keys = jax.random.split(key, 3)
        self.layers = [
            Affine(self.design.inputs, filters, key=keys[0]),
            Affine(filters, filters, window=(3, 3), key=keys[1]),
            Affine(filters, channels, key=keys[2]),
        ]
