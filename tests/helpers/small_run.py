"""A small run that tests train, stop and resume many times."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lagrax.training import train

XS = np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
DATA = (jnp.asarray(XS), jnp.asarray(3 * XS - 1))
ADAM = optax.adam(0.1)


class Affine(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    name: str = "not an array"

    def __call__(self, x):
        return self.weight * x + self.bias


def make(key):
    weight, bias = jax.random.normal(key, (2,))
    return Affine(weight, bias)


def loss(model, batch):
    x, y = batch
    return jnp.sum((model(x) - y) ** 2, axis=-1)


def evaluate(model, test):
    return {"error": jnp.abs(model.weight - test)}


def away_from_two(model, test):
    """The distance of the weight, which moves to 3, from `test`."""
    return {"distance": jnp.abs(model.weight - test)}


def check_same(one, other):
    one, other = (jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (one, other))
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def run_in(folder, steps=20, seeds=(0, 1), **options):
    """Four blocks, each with a checkpoint."""
    options = {"block": 5, "checkpoint_seconds": 0.0, "progress": False} | options
    return train(
        loss,
        make,
        DATA,
        ADAM,
        steps=steps,
        seeds=seeds,
        batch_size=4,
        evaluate=evaluate,
        test_data=jnp.array(3.0),
        folder=folder,
        **options,
    )
