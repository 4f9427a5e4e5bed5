"""Right-hand sides that are networks: `MLP` and `Conv`, of the state and of a history."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._solve.delays import RealScalar
from ._affine import Affine, on_accelerator, padded, product, rows
from ._checks import check_key, check_whole, checked_sequence
from ._convolution import Joined, convolve, joined, merged, packed


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
        pad_to = self.pad_to or (32 if on_accelerator() else 1)
        return -(-width // pad_to) * pad_to

    @property
    def fused(self) -> bool:
        """Whether the field is one function with its derivative by hand. Known when it is traced:
        `hold` and the evaluations must agree on what passes between them."""
        return self.by_hand and self.compute_dtype is not None and on_accelerator()


def _checked(name: str, design: Design) -> Design:
    check_whole(name, "channels", design.channels, 1)
    check_whole(name, "history", design.history, 0)
    if design.pad_to is not None:
        check_whole(name, "pad_to", design.pad_to, 1)
    if not design.uses_state and not design.history:
        raise ValueError(
            f"{name} got uses_state=False and history=0, which leaves no argument. Give the number "
            "of history entries it looks at: history=1."
        )
    dtype = design.compute_dtype
    return design if dtype is None else design._replace(compute_dtype=jnp.dtype(dtype))


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
            return joined(used)
        first = self._layer(0)
        if not used:
            return first.bias
        weight = first.weight[-self.design.channels * len(used) :]
        entries = jnp.concatenate(used, axis=-1)
        if self._dense:
            dtype = self.design.compute_dtype or entries.dtype
            return rows(weight, first.bias, entries, entries.ndim - 1, dtype)
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
            x = product(y, self._layer(0).weight[: self.design.channels], dtype)
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
            x = rows(self._layer(0).weight[: self.design.channels], None, y, y.ndim - 1, dtype)
            if held is not None:
                x = x + held.reshape(held.shape + (1,) * (x.ndim - held.ndim)).astype(x.dtype)
        for i in range(1, len(self.layers)):
            layer = self._layer(i)
            x = rows(layer.weight, layer.bias, self.design.activation(x), 0, dtype)
        return jnp.moveaxis(jnp.asarray(x, y.dtype), 0, -1)

    def _fused(self, y: Array, held: Joined | None, dtype: DTypeLike) -> Array:
        wide = jnp.promote_types(dtype, jnp.float32)
        arguments = [y] if self.design.uses_state else []
        arguments += [] if held is None else [held.entries]
        x = jnp.concatenate([*arguments, jnp.ones_like(y[..., :1])], axis=-1).astype(wide)
        width = self.design.padded(self.layers[-1].weight.shape[0] + 1)
        w1, w2, w3 = packed(self.layers, width)
        if held is not None:
            w1 = merged(w1, held.places, y.shape[-1])
        slope: Array = convolve((w1, w2, w3), x.reshape(-1, *x.shape[-3:]), dtype)
        return slope.reshape(y.shape).astype(y.dtype)

    def _layer(self, i: int) -> Affine:
        """Layer `i` with its hidden channels padded. The parameters stay as they are, so neither
        gradients nor checkpoints know of it."""
        inputs, outputs = self.layers[i].weight.shape[-2:]
        if i > 0:
            inputs = self.design.padded(inputs)
        if i < len(self.layers) - 1:
            outputs = self.design.padded(outputs)
        return padded(self.layers[i], inputs, outputs)

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
        for width in checked_sequence("MLP", "widths", widths):
            check_whole("MLP", "widths", width, 1)
        check_key("MLP", key)
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
        check_whole("Conv", "filters", filters, 1)
        check_key("Conv", key)
        self.design = _checked(
            "Conv", Design(channels, history, uses_state, jax.nn.relu, compute_dtype, pad_to, True)
        )
        keys = jax.random.split(key, 3)
        self.layers = [
            Affine(self.design.inputs, filters, key=keys[0]),
            Affine(filters, filters, window=(3, 3), key=keys[1]),
            Affine(filters, channels, key=keys[2]),
        ]
