"""Training on several devices. The rows of a batch are sharded; everything else is replicated."""

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
    """A mesh of the devices along one axis. None stands for JAX's default device."""
    if devices is None:
        return None
    if is_whole(devices):
        available = jax.devices()
        if not 1 <= devices <= len(available):
            raise ValueError(
                f"train got devices={devices}; expected 1 to {len(available)}, the number that JAX "
                f"sees ({available[0].device_kind}). On a CPU, XLA_FLAGS="
                "--xla_force_host_platform_device_count=N makes N of them."
            )
        devices = available[: int(devices)]
    if not isinstance(devices, Sequence) or not all(isinstance(d, jax.Device) for d in devices):
        raise TypeError(
            f"train got devices={devices!r:.60}; expected a number, or a list from jax.devices()."
        )
    if not devices:
        raise ValueError("train got devices=[]; expected at least one, or None for the first.")
    size = min(batch, rows)
    if size % len(devices):
        raise ValueError(
            f"train got {size} rows a step for {len(devices)} devices; expected a multiple of "
            f"{len(devices)}, so that all have the same number: change batch_size, or devices."
        )
    if len(set(devices)) < len(devices):
        raise ValueError(f"train got devices={devices!r:.60}; expected each device only once.")
    return Mesh(np.array(devices), (ROWS,))


def shard_rows(mesh: Mesh | None, batch: PyTree) -> PyTree:
    """Inside a compiled program, lets each device compute with its part of the rows."""
    if mesh is None:
        return batch
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec(ROWS)))


def replicate(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """Puts all of `tree` on every device."""
    if mesh is None:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array_like)
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, PartitionSpec())), rest)


def broadcast_from_first(*values: PyTree) -> tuple[PyTree, ...]:
    """The values of the first process, in all processes. Each is a pytree of arrays, or JSON."""
    if jax.process_count() == 1:
        return values
    return tuple(_broadcast(x) for x in values)


def _broadcast(value: PyTree) -> PyTree:
    arrays, rest = eqx.partition(value, eqx.is_array)
    if jax.tree.leaves(arrays):
        return eqx.combine(multihost_utils.broadcast_one_to_all(arrays), rest)
    # Every process must know the size beforehand.
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(text))))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    return json.loads(text.tobytes())
