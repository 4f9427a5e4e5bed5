"""Training on several devices: the rows of a batch are divided among them, all else is on each."""

import json
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .._solve.arguments import is_whole

ROWS = "rows"


def make_mesh(
    devices: int | np.integer | Sequence[Any] | None, batch: int, rows: int
) -> Mesh | None:
    """The devices in a row; None for the one that JAX would take by itself."""
    if devices is None:
        return None
    if is_whole(devices):
        there = jax.devices()
        if not 1 <= devices <= len(there):
            raise ValueError(
                f"train got devices={devices}; expected 1 to {len(there)}, as many as JAX sees "
                f"({there[0].device_kind}). On a CPU, XLA_FLAGS="
                "--xla_force_host_platform_device_count=N makes N of them."
            )
        devices = there[: int(devices)]
    if not isinstance(devices, Sequence) or not all(isinstance(d, jax.Device) for d in devices):
        raise TypeError(
            f"train got devices={devices!r:.60}; expected how many, or some of jax.devices()."
        )
    if not devices:
        raise ValueError("train got devices=[]; expected at least one, or None for the first.")
    size = min(batch, rows)
    if size % len(devices):
        raise ValueError(
            f"train got {size} rows a step for {len(devices)} devices; expected a multiple of "
            f"{len(devices)}, so that each has as many: change batch_size, or devices."
        )
    if len(set(devices)) < len(devices):
        raise ValueError(f"train got devices={devices!r:.60}; expected each device only once.")
    return Mesh(np.array(devices), (ROWS,))


def divided(mesh: Mesh | None, batch: PyTree) -> PyTree:
    """Within a compiled program: each device has its part of the rows, and computes with it."""
    if mesh is None:
        return batch
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec(ROWS)))


def on_all(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Every device has all of it."""
    if mesh is None:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array_like)
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, PartitionSpec())), rest)


def as_the_first_knows(*known: PyTree) -> tuple[PyTree, ...]:
    """What the first process has, in all of them: arrays, or what JSON can hold."""
    if jax.process_count() == 1:
        return known
    return tuple(_from_first(x) for x in known)


def _from_first(known: PyTree) -> PyTree:
    arrays, rest = eqx.partition(known, eqx.is_array)
    if jax.tree.leaves(arrays):
        return eqx.combine(multihost_utils.broadcast_one_to_all(arrays), rest)
    # Every process has to say beforehand how much it expects.
    text = np.frombuffer(json.dumps(known).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(text))))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    return json.loads(text.tobytes())
