"""A run that tests train on one device, on several, and in several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

# JAX fixes the number of its devices when it starts.
BEGIN = """
import json, os, sys
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={sys.argv[1]}"
import jax
if len(sys.argv) > 3:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", 2, int(sys.argv[4]))
from helpers.sharded_run import DEVICE_COUNTS, run
folder = sys.argv[2]
"""

# The numbers of devices that have computed the loss.
DEVICE_COUNTS = set()


def run(linear=True, **options):
    """Trains a linear map, or a small NPCDDE, which takes seconds to compile. The last batch of
    each pass has rows of weight 0."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from lagrax.nn import MLP, NPCDDE
    from lagrax.training import train

    rows = np.random.default_rng(0).normal(size=(42, 3)).astype(np.float32)

    def make(key):
        if linear:
            return eqx.nn.Linear(3, 3, key=key)
        return NPCDDE(MLP(3, (16,), history=2, key=key), 2, steps=2, throw=False)

    def loss(model, rows):
        jax.debug.inspect_array_sharding(
            rows, callback=lambda sharding: DEVICE_COUNTS.add(sharding.num_devices)
        )
        predicted = jax.vmap(model)(rows) if linear else model(rows)
        return jnp.mean((predicted - jnp.roll(rows, 1, axis=1)) ** 2, axis=1)

    options = {"batch_size": 8, "steps": 30, "block": 10, "progress": False} | options
    trained = train(loss, make, rows, optax.adam(1e-2), **options)
    leaves = jax.tree.leaves(trained.model)
    assert all(leaf.is_fully_replicated for leaf in leaves)
    values = [np.asarray(leaf.addressable_data(0)).tolist() for leaf in leaves]
    return {"model": values, "loss": trained.metrics["loss"].values.tolist()}


def start_process(code, devices, folder, *more):
    """Starts a process that runs `code` with this number of devices. Two arguments more, a port
    and a number, make it one of two processes."""
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, *map(str, (devices, folder, *more))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def read_answer(process):
    """The JSON that a process prints last."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
