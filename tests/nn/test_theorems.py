"""Special cases, theorems and propositions of the paper."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.networks import (
    KEY,
    MIDPOINT,
    check_close,
    evaluate_plainly,
    normal,
    value_and_gradient,
)

from lagrax.nn import MLP, NDDE, NODE, NPCDDE, UNPCDDE, Conv


def with_parameters(field, layers):
    return eqx.tree_at(lambda f: f.layers, field, layers)


def read_last_entry(g, entries):
    """The field `g` on the last of `entries` history entries: zeros connect it to the others."""
    field = MLP(2, (8,), history=entries, uses_state=False, key=KEY)
    zeros = jnp.zeros((2 * (entries - 1), 8))
    weight = jnp.concatenate([zeros, g.layers[0].weight])
    first = eqx.tree_at(lambda a: a.weight, g.layers[0], weight)
    return with_parameters(field, [first, *g.layers[1:]])


@pytest.mark.parametrize("residual", ["mlp", "conv"])
def test_resnet_is_a_unpcdde(residual):
    """Eqs. 1, 17, 18: z_{k+1} = z_k + f(z_k, theta_k), with one evaluation an interval."""
    n = 4
    keys = jax.random.split(KEY, n)
    make = partial(MLP, 3, (6,)) if residual == "mlp" else partial(Conv, 3, 6)
    fields = [make(history=1, uses_state=False, key=k) for k in keys]
    x = normal(0, 2, 4, 4, 3)
    layer = UNPCDDE(fields, T=float(n))

    def resnet(fields, x):
        for field in fields:
            x = x + evaluate_plainly(field, x)
        return x

    stats = eqx.filter_eval_shape(layer.solve, x).stats
    assert stats["num_evaluations"] == n
    assert stats["num_steps"] == n
    got, out = value_and_gradient(lambda layer: layer(x), layer)
    expected, expected_out = value_and_gradient(lambda fields: resnet(fields, x), fields)
    check_close(out, expected_out)
    check_close(jax.tree.leaves(got), jax.tree.leaves(expected), 1e-4)


def test_node_is_a_unpcdde():
    """Fields that ignore the history, with shared parameters."""
    field = MLP(2, (8,), key=KEY)
    x = normal(0, 5, 2)
    node = NODE(field, solver=diffrax.Heun(), steps=6)(x)
    check_close(UNPCDDE([field] * 3, solver=diffrax.Heun(), steps=2)(x), node, 1e-6)
    assert jnp.abs(node - x).max() > 0.05


@pytest.mark.parametrize("n", [1, 5])
def test_euler_scheme_is_a_npcdde(n):
    """Eqs. 8, 9: the simple NPCDDE is z_{k+1} = z_k + tau f(z_k), Euler's scheme for a NODE."""
    of_state = MLP(2, (8,), key=KEY)
    of_held = with_parameters(MLP(2, (8,), history=1, uses_state=False, key=KEY), of_state.layers)
    x = normal(0, 5, 2)
    sol = NPCDDE(of_held, n, lags=1).solve(x)
    euler = NODE(of_state, solver=diffrax.Euler(), steps=n)
    check_close(sol.ys[-1], euler(x), 1e-6)
    y = x
    for _ in range(n):
        y = y + evaluate_plainly(of_state, y) / n
    check_close(sol.ys[-1], y, 1e-6)
    assert sol.stats["num_evaluations"] == n


@pytest.mark.parametrize(
    ("tau", "options"),
    [(1.0, MIDPOINT), (1.7, MIDPOINT), (1.0, {"max_steps": 64, "solver": diffrax.Heun()})],
)
def test_ndde_whose_delay_spans_all_is_npcdde1(tau, options):
    """The delayed state is then the input throughout."""
    field = Conv(2, 4, history=1, key=KEY)
    x = normal(0, 2, 4, 4, 2)
    check_close(NDDE(field, tau, **options)(x), NPCDDE(field, 1, **options)(x), 1e-6)
    assert jnp.abs(NDDE(field, 0.5, **options)(x) - NDDE(field, tau, **options)(x)).max() > 1e-4


def test_the_simple_ndde_with_one_delay_is_the_simple_npcdde():
    """Eq. 7, as printed, is eq. 8 where T = tau: the field sees the input alone, throughout."""
    field = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    check_close(NDDE(field, 1.0, steps=2)(x), x + evaluate_plainly(field, x), 1e-6)
    check_close(NPCDDE(field, 1, lags=1)(x), x + evaluate_plainly(field, x), 1e-6)
    # With tau = 1/2 the field sees the past of 0 first, then what has come of it: z(s) = x + s f(x)
    # on [0, 1/2], then x + f(x)/2 + the integral of f(z(s)) over that, here by Gauss and Legendre.
    nodes, weights = np.polynomial.legendre.leggauss(8)
    inner = sum(
        w / 4 * evaluate_plainly(field, x + (s + 1) / 4 * evaluate_plainly(field, x))
        for s, w in zip(nodes, weights, strict=True)
    )
    found = NDDE(field, 0.5, steps=40, solver=diffrax.Tsit5())(x)
    check_close(found, x + evaluate_plainly(field, x) / 2 + inner, 1e-5)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_theorem_1(tau):
    """With g = (F - id)/(2 tau) on z(floor((t - tau)/tau) tau), the final state is F(x)."""
    g = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    layer = NPCDDE(read_last_entry(g, 2), 2, T=2 * tau)
    sol = layer.solve(x)
    F = x + 2 * tau * evaluate_plainly(g, x)
    check_close(sol.ys[-1], F, 1e-6)
    check_close(sol.knots.ys[1], (F + x) / 2, 1e-6)
    assert sol.stats["num_evaluations"] == 2
    # Not so without the skip connection: eq. 8 iterates x + tau g(x).
    assert jnp.abs(NPCDDE(g, 2, T=2 * tau, lags=1)(x) - F).max() > 1e-3


def test_theorem_1_reflects_what_a_node_cannot():
    reflect = lambda t, y, args, *, history: -2 * history[1]  # (F(x) - x)/(2 tau), tau = 1/2
    x = jnp.asarray([[-1.0], [1.0]])
    check_close(NPCDDE(reflect, 2)(x), -x, 0)


@pytest.mark.parametrize(("n", "more"), [(3, 0), (3, 1), (1, 1)])
def test_proposition_2(n, more):
    """With g = (F - id)/(n tau) on the oldest held state, the knots go from x to F(x) evenly. The
    hold of lag n differs from that of lag n - 1 only after T."""
    entries = n + more
    g = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    sol = NPCDDE(read_last_entry(g, entries), n, lags=entries).solve(x)
    F = x + evaluate_plainly(g, x)
    for k in range(n + 1):
        check_close(sol.knots.ys[k], (k * F + (n - k) * x) / n, 1e-6)


def test_function_iterated_twice():
    """The paper's example: F(x) = 16x as two intervals of a field that learned x -> 3x."""
    linear = lambda t, y, args, *, history: 3 * history[0]
    assert NPCDDE(linear, 2, T=2.0, lags=1)(jnp.asarray([1.5])) == 24
