"""Fields against networks written out."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.networks import KEY, MIDPOINT, check_close, evaluate_plainly, normal

from lagrax.nn import MLP, NPCDDE, Affine, Conv, Head, parameter_count

FIELDS = {
    "mlp": (partial(MLP, 3, (5, 4)), (2, 3)),
    "conv": (partial(Conv, 3, 5), (2, 4, 3, 3)),
    "mlp without biases": (partial(MLP, 3, (5, 4), use_bias=False), (3,)),
    "mlp, one layer, relu": (partial(MLP, 3, (7,), activation=jax.nn.relu), (2, 2, 3)),
    "conv without batch": (partial(Conv, 3, 5), (4, 3, 3)),
    "conv with two batch axes": (partial(Conv, 3, 5), (2, 2, 3, 3, 3)),
}


ARGUMENTS = [(2, True), (0, True), (1, True), (1, False), (2, False)]


@pytest.mark.parametrize(
    ("kind", "history", "uses_state"),
    [(kind, *a) for kind in ("mlp", "conv") for a in ARGUMENTS]
    + [(kind, *ARGUMENTS[0]) for kind in list(FIELDS)[2:]]
    + [("mlp without biases", 0, True)],
)
def test_field_equals_the_network_of_its_concatenated_arguments(kind, history, uses_state):
    make, shape = FIELDS[kind]
    field = make(history=history, uses_state=uses_state, key=KEY)
    y, *past = [normal(i, *shape) for i in range(4)]  # one entry more than any field looks at

    def split(field, y, past):
        out = field(0.3, y, None, history=field.hold(past))
        return jnp.sin(out).sum(), out

    def plain(field, y, past):
        out = evaluate_plainly(field, *[y] * uses_state, *past[:history])
        return jnp.sin(out).sum(), out

    (got, out), (expected, expected_out) = [
        jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(field, y, past) for f in (split, plain)
    ]
    check_close(out, expected_out)
    check_close(got, expected, 2e-5)
    assert all(jnp.any(g != 0) for g in jax.tree.leaves(got[0]))


def test_evaluations_do_not_repeat_the_share_of_the_history():
    field = MLP(2, (64,), history=9, key=KEY)
    y = normal(0, 2)
    held = field.hold([y] * 9)
    flops = lambda f, *x: jax.jit(f).lower(*x).compile().cost_analysis()["flops"]
    once = flops(lambda past: field.hold(past), [y] * 9)
    each = flops(lambda y, held: field(0.0, y, None, history=held), y, held)
    assert each < once / 2
    blind = MLP(2, (64,), history=1, uses_state=False, key=KEY)
    assert jnp.all(jax.jacobian(lambda y: blind(0.0, y, None, history=held))(y) == 0)


def test_paper_population_field_has_the_paper_shapes():
    field = MLP(1, (10, 10), history=1, use_bias=False, key=KEY)
    assert [layer.weight.shape for layer in field.layers] == [(2, 10), (10, 10), (10, 1)]
    assert parameter_count(field) == 130
    assert field.design.activation is jnp.tanh


@pytest.mark.parametrize(
    ("field", "fans"),
    [
        (MLP(7, (200, 300), history=2, key=KEY), [21, 200, 300]),
        (MLP(7, (200, 300), history=2, uses_state=False, key=KEY), [14, 200, 300]),
        (Conv(40, 50, history=1, key=KEY), [80, 450, 50]),
    ],
    ids=["mlp", "mlp without state", "conv"],
)
def test_parameters_start_as_in_pytorch(field, fans):
    """Weights and biases are uniform in ±1/√fan_in."""
    for layer, fan in zip(field.layers, fans, strict=True):
        bound = fan**-0.5
        for array in (layer.weight, layer.bias):
            assert jnp.abs(array).max() <= bound
            assert jnp.abs(array).max() > 0.8 * bound
        weight = layer.weight.ravel()
        # A uniform distribution has the standard deviation bound/√3.
        assert abs(weight.std() * 3**0.5 / bound - 1) < 0.05
        assert abs(weight.mean()) < 0.1 * bound
    head = Head((4, 4, 10), 30, key=KEY).affine
    assert 0.8 * 160**-0.5 < jnp.abs(head.weight).max() <= 160**-0.5
    assert 0.8 * 160**-0.5 < jnp.abs(head.bias).max() <= 160**-0.5


@pytest.mark.parametrize("make", [partial(MLP, 2, (3, 3)), partial(Conv, 2, 3)])
def test_key_decides_the_parameters(make):
    same = eqx.tree_equal(make(key=KEY), make(key=KEY))
    assert same
    other = jax.tree.leaves(make(key=jax.random.key(1)))
    for a, b in zip(jax.tree.leaves(make(key=KEY)), other, strict=True):
        assert jnp.all(a != b)
    weights = [np.ravel(x)[:3].tolist() for x in jax.tree.leaves(make(key=KEY))]
    assert len({w[0] for w in weights}) == len(weights)  # no two arrays from one key


# --- padding and precision ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "pad_to", "history", "uses_state"),
    [
        (partial(MLP, 3, (5, 6)), 4, 2, True),
        (partial(Conv, 3, 5), 16, 2, True),
        (partial(Conv, 3, 5), 16, 2, False),
        (partial(Conv, 3, 5), 4, 0, True),
    ],
)
def test_padding_changes_neither_parameters_nor_function(make, pad_to, history, uses_state):
    plain, padded = [
        make(history=history, uses_state=uses_state, pad_to=p, key=KEY) for p in (1, pad_to)
    ]
    assert eqx.tree_equal(plain.layers, padded.layers)
    y, *past = [normal(i, 3, 3, 3) for i in range(history + 1)]
    held = padded.hold(past)
    # Hidden channels come first in dense fields and last in convolutional ones.
    assert held.shape[0 if isinstance(plain, MLP) else -1] == -(-5 // pad_to) * pad_to

    def value(field, y, past):
        return jnp.sin(field(0.0, y, None, history=field.hold(past))).sum()

    check_close(
        padded(0.0, y, None, history=held), plain(0.0, y, None, history=plain.hold(past)), 2e-6
    )
    grads = [jax.jit(jax.grad(value, (0, 1, 2)))(f, y, past) for f in (plain, padded)]
    check_close(*[jax.tree.leaves(g) for g in grads], 1e-5)


def test_padding_allows_activations_that_are_not_zero_at_zero():
    plain, padded = [MLP(2, (3, 3), activation=jax.nn.softplus, pad_to=p, key=KEY) for p in (1, 8)]
    y = normal(0, 4, 2)
    check_close(*[f(0.0, y, None, history=f.hold(())) for f in (plain, padded)], 1e-6)


@pytest.mark.parametrize("make", [partial(MLP, 3, (20, 20)), partial(Conv, 3, 20)])
def test_compute_dtype_applies_only_inside_the_field(make):
    full, half = [make(history=1, compute_dtype=d, key=KEY) for d in (None, jnp.bfloat16)]
    assert eqx.tree_equal(full.layers, half.layers)
    y, past = normal(0, 4, 4, 3), [normal(1, 4, 4, 3)]

    def value(field, y, past):
        return (field(0.0, y, None, history=field.hold(past)) ** 2).sum()

    a, b = [f(0.0, y, None, history=f.hold(past)) for f in (full, half)]
    assert b.dtype == jnp.float32
    assert half.hold(past).dtype == jnp.float32
    assert 1e-5 < jnp.abs(a - b).max() < 0.02  # near, and not by computing in float32 after all
    grad = jax.jit(jax.grad(value, (0, 1, 2)))
    ga, gb = [jax.tree.leaves(grad(f, y, past)) for f in (full, half)]
    for x, z in zip(ga, gb, strict=True):
        assert z.dtype == jnp.float32
        assert jnp.linalg.norm(x - z) < 0.03 * jnp.linalg.norm(x)


def test_bfloat16_products_are_summed_in_float32():
    layer = Affine(1000, 1, use_bias=False, key=KEY)
    layer = eqx.tree_at(lambda a: a.weight, layer, jnp.ones((1000, 1)))
    assert layer(jnp.ones(1000), jnp.bfloat16) == 1000  # bfloat16 itself cannot count beyond 256
    field = Conv(1, 8, compute_dtype=jnp.bfloat16, key=KEY)
    jaxpr = jax.make_jaxpr(lambda y: field(0.0, y, None, history=None))(jnp.ones((4, 4, 1)))
    (conv,) = [e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert [v.aval.dtype for v in conv.invars] == [jnp.bfloat16, jnp.bfloat16]
    assert conv.outvars[0].aval.dtype == jnp.float32


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [partial(MLP, 3, (5, 6)), partial(Conv, 3, 5)])
def test_float64_is_kept(make):
    field = make(history=1, key=KEY)
    assert all(p.dtype == jnp.float64 for p in jax.tree.leaves(field))
    x = normal(0, 3, 3, 3)
    layer = eqx.filter_jit(NPCDDE(field, 2, lags=1, **MIDPOINT))
    assert layer(x).dtype == jnp.float64
    y = field(0.0, x, None, history=field.hold([x]))
    np.testing.assert_allclose(y, evaluate_plainly(field, x, x), rtol=1e-13, atol=1e-13)
    # The type of the state decides, not that of the parameters.
    assert layer(x.astype(jnp.float32)).dtype == jnp.float32
    np.testing.assert_allclose(layer(x.astype(jnp.float32)), layer(x), rtol=1e-5, atol=1e-5)
