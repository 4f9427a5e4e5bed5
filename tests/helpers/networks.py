"""Networks written out as formulas, and comparisons of arrays."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(0)


MIDPOINT = {"solver": diffrax.Midpoint(), "steps": 1}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def check_close(a, b, tol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tol, atol=tol), a, b)


def evaluate_plainly(field, *arguments):
    """The network on its arguments side by side, each layer written out. Differentiable."""
    x = jnp.concatenate(arguments, axis=-1)
    for i, layer in enumerate(field.layers):
        x = apply_plainly(layer, field.design.activation(x) if i else x)
    return x


def apply_plainly(layer, x):
    weight, bias = layer.weight, 0 if layer.bias is None else layer.bias
    if weight.ndim == 2:
        return jnp.einsum("...i,io->...o", x, weight) + bias
    height, width = x.shape[-3:-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
    shifted = lambda i, j: x[..., i : i + height, j : j + width, :]
    return sum(shifted(i, j) @ weight[i, j] for i in range(3) for j in range(3)) + bias


def value_and_gradient(function, at):
    """The gradient of the sum of sines of `function`, and its value."""

    def loss(at):
        out = function(at)
        return jnp.sin(out).sum(), out

    return jax.jit(jax.grad(loss, has_aux=True))(at)
