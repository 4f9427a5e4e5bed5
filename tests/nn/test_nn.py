"""Fields and layers against formulas written out, and what the paper proves about them."""

import copy
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reproduction
from lagrax import Adjoint, Checkpointed, Direct, Hold, Lag, holds, nn, solve
from lagrax.nn import (
    ANODE,
    MLP,
    NDDE,
    NODE,
    NPCDDE,
    UNPCDDE,
    Affine,
    Augment,
    Classifier,
    Conv,
    Flow,
    Head,
    _affine,
    _convolution,
    _fields,
    parameter_count,
)
from reproduction.models import paper_model, paper_models, paper_size

KEY = jax.random.key(0)
TABLES = Path(reproduction.__file__).with_name("tables.json")
TABLE = json.loads(TABLES.read_text(encoding="utf-8"))["filters_and_parameters"]
MIDPOINT = {"solver": diffrax.Midpoint(), "steps": 1}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def close(a, b, tol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tol, atol=tol), a, b)


def by_hand(field, *arguments):
    """The network on its arguments side by side, each layer written out. Differentiable."""
    x = jnp.concatenate(arguments, axis=-1)
    for i, layer in enumerate(field.layers):
        x = layer_by_hand(layer, field.design.activation(x) if i else x)
    return x


def layer_by_hand(layer, x):
    weight, bias = layer.weight, 0 if layer.bias is None else layer.bias
    if weight.ndim == 2:
        return jnp.einsum("...i,io->...o", x, weight) + bias
    height, width = x.shape[-3:-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
    shifted = lambda i, j: x[..., i : i + height, j : j + width, :]
    return sum(shifted(i, j) @ weight[i, j] for i in range(3) for j in range(3)) + bias


FIELDS = {
    "mlp": (partial(MLP, 3, (5, 4)), (2, 3)),
    "conv": (partial(Conv, 3, 5), (2, 4, 3, 3)),
    "mlp without biases": (partial(MLP, 3, (5, 4), use_bias=False), (3,)),
    "mlp, one layer, relu": (partial(MLP, 3, (7,), activation=jax.nn.relu), (2, 2, 3)),
    "conv without batch": (partial(Conv, 3, 5), (4, 3, 3)),
    "conv with two batch axes": (partial(Conv, 3, 5), (2, 2, 3, 3, 3)),
}
ARGUMENTS = [(2, True), (0, True), (1, True), (1, False), (2, False)]


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "history", "uses_state"),
    [(kind, *a) for kind in ("mlp", "conv") for a in ARGUMENTS]
    + [(kind, *ARGUMENTS[0]) for kind in list(FIELDS)[2:]]
    + [("mlp without biases", 0, True)],
)
def test_field_is_the_network_on_its_arguments_side_by_side(kind, history, uses_state):
    make, shape = FIELDS[kind]
    field = make(history=history, uses_state=uses_state, key=KEY)
    y, *past = [normal(i, *shape) for i in range(4)]  # one entry more than any field looks at

    def split(field, y, past):
        out = field(0.3, y, None, history=field.hold(past))
        return jnp.sin(out).sum(), out

    def plain(field, y, past):
        out = by_hand(field, *[y] * uses_state, *past[:history])
        return jnp.sin(out).sum(), out

    (got, out), (expected, expected_out) = [
        jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(field, y, past) for f in (split, plain)
    ]
    close(out, expected_out)
    close(got, expected, 2e-5)
    assert all(jnp.any(g != 0) for g in jax.tree.leaves(got[0]))


def test_between_knots_only_the_share_of_the_state_is_left_of_the_first_layer():
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
    """Uniform in ±1/√fan_in, biases too."""
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

    close(padded(0.0, y, None, history=held), plain(0.0, y, None, history=plain.hold(past)), 2e-6)
    grads = [jax.jit(jax.grad(value, (0, 1, 2)))(f, y, past) for f in (plain, padded)]
    close(*[jax.tree.leaves(g) for g in grads], 1e-5)


def test_padding_is_without_effect_where_activation_of_zero_is_not_zero():
    plain, padded = [MLP(2, (3, 3), activation=jax.nn.softplus, pad_to=p, key=KEY) for p in (1, 8)]
    y = normal(0, 4, 2)
    close(*[f(0.0, y, None, history=f.hold(())) for f in (plain, padded)], 1e-6)


@pytest.mark.parametrize("make", [partial(MLP, 3, (20, 20)), partial(Conv, 3, 20)])
def test_bfloat16_inside_the_field_alone(make):
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
def test_float64(make):
    field = make(history=1, key=KEY)
    assert all(p.dtype == jnp.float64 for p in jax.tree.leaves(field))
    x = normal(0, 3, 3, 3)
    layer = NPCDDE(field, 2, lags=1, **MIDPOINT)
    assert layer(x).dtype == jnp.float64
    y = field(0.0, x, None, history=field.hold([x]))
    np.testing.assert_allclose(y, by_hand(field, x, x), rtol=1e-13, atol=1e-13)
    # The state's type decides, not the parameters'.
    assert layer(x.astype(jnp.float32)).dtype == jnp.float32
    np.testing.assert_allclose(layer(x.astype(jnp.float32)), layer(x), rtol=1e-5, atol=1e-5)


# --- the convolutional field as accelerators compute it -------------------------------------------


@pytest.fixture
def accelerator(monkeypatch):
    """Fields compute as they do on accelerators, on the CPU."""
    jax.clear_caches()
    for module in (_affine, _fields):
        monkeypatch.setattr(module, "on_accelerator", lambda: True)
    yield
    jax.clear_caches()


# How far from float32 each type may be, relative to the norm, and how far it must be to be it.
BOUNDS = {"float32": (0, 1e-6), "float16": (1e-6, 1e-2), "bfloat16": (1e-5, 5e-2)}
MOST_TYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.slow)]


def distances(got, expected):
    """The relative distance of each leaf."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("dtype", MOST_TYPES)
@pytest.mark.parametrize(
    ("history", "uses_state", "pad_to"),
    [(*a, None) for a in ARGUMENTS]
    + [pytest.param(*ARGUMENTS[0], p, marks=pytest.mark.slow) for p in (1, 5)],
)
def test_fused_field_is_the_network(history, uses_state, pad_to, dtype):
    field = Conv(
        3, 5, history=history, uses_state=uses_state, pad_to=pad_to, compute_dtype=dtype, key=KEY
    )
    y, *past = [normal(i, 2, 4, 3, 3) for i in range(4)]
    used = (y,) * uses_state, tuple(past[:history])

    def fused(field, used):
        state, past = used
        # Without the state only the shape of what stands in its place matters.
        out = field(0.3, *(state or (y,)), None, history=field.hold(past))
        return jnp.sin(3 * out).sum(), out

    def plain(field, used):
        out = by_hand(field, *used[0], *used[1])
        return jnp.sin(3 * out).sum(), out

    with jax.default_matmul_precision("highest"):
        got, expected = [
            jax.jit(jax.grad(f, (0, 1), has_aux=True))(field, used) for f in (fused, plain)
        ]
    least, most = BOUNDS[dtype]
    assert got[1].dtype == jnp.float32
    assert all(least <= d < most for d in distances(got, expected))


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("uses_state", [True, False])
def test_equal_entries_of_a_history_are_read_once(uses_state):
    field = Conv(3, 5, history=4, uses_state=uses_state, compute_dtype="float32", key=KEY)
    y, z, w = [normal(i, 2, 4, 3, 3) for i in range(3)]
    assert field.hold([z, w, z, z]).entries.shape == (2, 4, 3, 6)

    def merged(field, z, w):
        out = field(0.0, y, history=field.hold([z, w, z, z]))
        return jnp.sin(3 * out).sum(), out

    def plain(field, z, w):
        out = by_hand(field, *[y] * uses_state, z, w, z, z)
        return jnp.sin(3 * out).sum(), out

    with jax.default_matmul_precision("highest"):
        got, expected = [
            jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(field, z, w) for f in (merged, plain)
        ]
    assert all(d < 1e-5 for d in distances(got, expected))


@pytest.mark.usefixtures("accelerator")
def test_holds_before_the_start_are_read_once():
    """In interval k of NPCDDE3 the field is given min(k + 1, 3) distinct states of two channels."""
    layer = conv_layer("NPCDDE", "float32")
    text = str(jax.make_jaxpr(layer)(normal(0, 2, 4, 4, 2)))
    widths = {int(w) for w in re.findall(r"f32\[2,4,4,(\d+)\] = concatenate", text)}
    assert {2 + 2 * k + 1 for k in (1, 2, 3)} <= widths


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    "dtype",
    ["float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float32", "bfloat16"))],
)
@pytest.mark.parametrize("size", [1e-12, pytest.param(1.0, marks=pytest.mark.slow), 1e12])
def test_fused_gradient_of_any_size(dtype, size):
    """Far below and above what float16 holds. At the default precision float32 has a weight
    gradient of float16 copies."""
    field = Conv(3, 5, history=1, compute_dtype=dtype, key=KEY)
    y, z = normal(0, 4, 4, 3), normal(1, 4, 4, 3)
    fused = lambda field, y, z: size * jnp.sin(field(0.0, y, history=field.hold([z]))).sum()
    plain = lambda field, y, z: jnp.sin(by_hand(field, y, z)).sum()
    got, expected = [jax.jit(jax.grad(f, (0, 1, 2)))(field, y, z) for f in (fused, plain)]
    got = jax.tree.map(lambda g: g / size, got)
    assert all(d < BOUNDS[dtype][1] + 1e-3 for d in distances(got, expected))
    nothing = jax.grad(lambda field: 0 * fused(field, y, z))(field)
    assert all(jnp.all(g == 0) for g in jax.tree.leaves(nothing))


@pytest.mark.parametrize("shape", [(3,), (2, 5, 7), (1 << 20,)])
def test_cotangents_fit_into_float16(shape):
    g = 1e-9 * normal(0, *shape)
    scale = _convolution._scale(g)
    assert jnp.log2(scale) == jnp.round(jnp.log2(scale))
    room = 1 / jnp.maximum(2**4 * jnp.abs(scale * g).max(), 2**-13 * jnp.abs(scale * g).sum())
    assert 1 <= room < 2


CONV_LAYERS = {
    "NODE": lambda make, **o: NODE(make(0, 0), **o),
    "NPCDDE": lambda make, **o: NPCDDE(make(3, 0), 3, **o),
    "UNPCDDE": lambda make, **o: UNPCDDE([make(k + 1, k) for k in range(3)], **o),
}


LOOSE = {
    "solver": diffrax.Heun(),
    "stepsize_controller": diffrax.PIDController(rtol=1e-2, atol=1e-2),
    "max_steps": 64,
}


def conv_layer(kind, dtype, p=0, **options):
    make = lambda history, seed: Conv(
        2 + p, 6, history=history, compute_dtype=dtype, key=jax.random.key(seed)
    )
    return CONV_LAYERS[kind](make, augment=p, **(MIDPOINT | options))


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    "dtype",
    ["float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float32", "bfloat16"))],
)
@pytest.mark.parametrize("p", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("kind", CONV_LAYERS)
def test_fused_layer_is_the_plain_one(kind, p, dtype):
    """All gradients together: a value that rounding takes across a relu's kink weighs little."""
    x = normal(0, 4, 8, 8, 2)
    with jax.default_matmul_precision("highest"):
        got, expected = [
            graded(lambda a: a[0](a[1]), (conv_layer(kind, d, p), x)) for d in (dtype, None)
        ]
    (gradients, out), (expected_gradients, expected_out) = got, expected
    assert distances(out, expected_out)[0] < BOUNDS[dtype][1]
    join = lambda tree: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
    assert distances(join(gradients), join(expected_gradients))[0] < BOUNDS[dtype][1]


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    "options", [{"gradient": Direct()}, {"gradient": Adjoint()}, {"steps": None, **LOOSE}]
)
def test_fused_gradients_however_taken(options):
    """Against the plain field under the same options."""
    x = normal(0, 2, 4, 4, 2)
    with jax.default_matmul_precision("highest"):
        got, expected = [
            graded(lambda a: a(x), conv_layer("NPCDDE", d, **options)) for d in ("float32", None)
        ]
    assert all(d < 1e-5 for d in distances(got, expected))


@pytest.mark.usefixtures("accelerator")
def test_fused_field_has_second_derivatives_and_batches():
    fused, plain = [Conv(2, 6, history=1, compute_dtype=d, key=KEY) for d in ("float32", None)]
    y, z = normal(0, 3, 4, 4, 2), normal(1, 3, 4, 4, 2)

    def slope(field, y):
        return jnp.sin(field(0.0, y, history=field.hold([z])))

    def product(field, y):
        """Of the Hessian with z."""
        gradient = jax.grad(lambda y: slope(field, y).sum())
        return jax.jvp(gradient, (y,), (z,))[1], jax.grad(lambda y: (gradient(y) * z).sum())(y)

    with jax.default_matmul_precision("highest"):
        forward, backward = jax.jit(product)(fused, y)
        close(forward, jax.jit(product)(plain, y)[0], 1e-5)
        close(backward, forward, 1e-5)
        loop = jax.vmap(lambda y, z: fused(0.0, y, history=fused.hold([z])))(y, z)
        close(loop, plain(0.0, y, history=plain.hold([z])), 1e-5)


@pytest.mark.usefixtures("accelerator")
def test_fused_field_without_the_state_is_evaluated_once_an_interval():
    field = Conv(2, 6, history=1, uses_state=False, compute_dtype="float16", key=KEY)
    stats = eqx.filter_eval_shape(NPCDDE(field, 3, lags=1).solve, normal(0, 4, 4, 2)).stats
    assert stats["num_evaluations"] == 3


@pytest.mark.usefixtures("accelerator")
def test_forward_mode_where_no_compute_dtype_is_given():
    x, dx = normal(0, 4, 4, 2), normal(1, 4, 4, 2)
    layer = conv_layer("NPCDDE", None, gradient=Direct())
    _, forward = jax.jvp(layer, (x,), (dx,))
    close(forward.sum(), (jax.grad(lambda x: layer(x).sum())(x) * dx).sum(), 1e-4)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(conv_layer("NPCDDE", "float32", gradient=Direct()), (x,), (dx,))


# --- layers ---------------------------------------------------------------------------------------


def population(t, x, a, *, history):
    return a * x * (1 - history[0])


def exact_population(ts, x, a, start):
    """On [k, k+1] the solution is x_k exp(a(1 - x_k)(t - k))."""
    out = []
    for k in range(start, int(ts[-1]) + 1):
        inside = ts[(ts >= k) & (ts < k + 1)]
        out += [x * np.exp(a * (1 - x) * (t - k)) for t in inside]
        x = x * np.exp(a * (1 - x))
    return np.stack(out)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("t0", "t1"), [(0, 3), (3, 13)])
def test_time_series_on_any_span(t0, t1):
    """The population experiment: tau = 1, training on [0, 3], forecasts on [3, 13]."""
    ts = np.linspace(t0, t1, 10 * (t1 - t0) + 1)
    x = np.array([[0.3], [0.5], [1.4]])
    layer = NPCDDE(population, 1, stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9))
    sol = layer.solve(x, t0=t0, t1=t1, args=2.0, saveat=diffrax.SaveAt(ts=ts))
    assert sol.ys.shape == (len(ts), 3, 1)
    np.testing.assert_allclose(sol.ys, exact_population(ts, x, 2.0, t0), rtol=1e-6)
    assert sol.stats["num_intervals"] == t1 - t0


LAYERS = {
    "NODE": (lambda make, **o: NODE(make(0), **o), 1),
    "ANODE": (lambda make, **o: ANODE(make(0), 1, **o), 1),
    "NDDE": (lambda make, **o: NDDE(make(1), 0.5, **o), 2),
    "NPCDDE": (lambda make, **o: NPCDDE(make(3), 3, **o), 3),
    "UNPCDDE": (lambda make, **o: UNPCDDE([make(k + 1) for k in range(3)], **o), 3),
    "simple": (lambda make, **o: NPCDDE(make(1, uses_state=False), 3, lags=1, **o), 3),
    "special": (lambda make, **o: NPCDDE(make(2, uses_state=False), 2, **o), 2),
}


def layer_of(make, channels=2, **options):
    keys = iter(jax.random.split(KEY, 9))
    field = lambda history, **o: MLP(channels, (8,), history=history, key=next(keys), **o)
    return make(field, **options)


def graded(function, at):
    """The gradient of the sum of sines of `function`, and its value."""

    def loss(at):
        out = function(at)
        return jnp.sin(out).sum(), out

    return jax.jit(jax.grad(loss, has_aux=True))(at)


def unsplit(field):
    """The field as a plain function of its whole history."""

    def f(t, y, args, *, history):
        used = history[: field.design.history]
        return by_hand(field, *([y] if field.design.uses_state else []), *used)

    return f


DELAYS = {
    "NODE": [],
    "ANODE": [],
    "NDDE": [Lag(0.5)],
    "NPCDDE": holds(1 / 3, 3),
    "UNPCDDE": holds(1 / 3, 3),
    "simple": [Hold(1 / 3)],
    "special": [Hold(0.5), Hold(0.5, lag=1)],
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_is_solve_with_its_delays(kind):
    """Values and gradients, against plain fields that concatenate at every evaluation."""
    make, intervals = LAYERS[kind]
    channels = 3 if kind == "ANODE" else 2
    layer = layer_of(make, channels, **MIDPOINT)
    x = normal(0, 4, 2)
    y0 = jnp.concatenate([x, jnp.zeros((4, 1))], axis=-1) if kind == "ANODE" else x

    def plain(field, y0):
        field = [unsplit(f) for f in field] if kind == "UNPCDDE" else unsplit(field)
        sol = solve(field, 0.0, 1.0, y0, delays=DELAYS[kind], **MIDPOINT)
        return sol.ys[-1]

    stats = eqx.filter_eval_shape(layer.solve, x).stats
    assert stats["num_intervals"] == intervals
    got, out = graded(lambda layer: layer(x), layer)
    expected, expected_out = graded(lambda field: plain(field, y0), layer.flow.field)
    close(out, expected_out)
    close(jax.tree.leaves(got), jax.tree.leaves(expected), 2e-5)
    assert all(jnp.any(g != 0) for g in jax.tree.leaves(got))


@pytest.mark.parametrize(
    ("make", "entries"),
    [
        (lambda f: NODE(f), 0),
        (lambda f: NDDE(f), 1),
        (lambda f: NPCDDE(f, 3), 3),
        (lambda f: NPCDDE(f, 3, lags=1), 1),
        (lambda f: UNPCDDE([f, f]), 2),
        (lambda f: UNPCDDE([f, f], lags=1), 1),
    ],
)
def test_field_is_given_so_many_states_of_the_past(make, entries):
    seen = set()

    def field(t, y, args, *, history):
        seen.add(len(history))
        return -y

    eqx.filter_eval_shape(make(field), jnp.ones(1))
    assert seen == {entries}


def test_unpcdde_written_out():
    """Interval k has its own field of z(t), z_k, ..., z_0 (eq. 14); midpoint steps."""
    n = 3
    fields = [Conv(2, 4, history=k + 1, key=jax.random.key(k)) for k in range(n)]
    x = normal(0, 2, 4, 4, 2)

    @jax.jit
    def written_out(fields, x):
        knots = [x]
        for field in fields:
            past, h = knots[::-1], 1 / n
            half = knots[-1] + h / 2 * by_hand(field, knots[-1], *past)
            knots.append(knots[-1] + h * by_hand(field, half, *past))
        return jnp.stack(knots)

    sol = UNPCDDE(fields, **MIDPOINT).solve(x)
    close(sol.knots.ys, written_out(fields, x))
    close(sol.knots.ts, jnp.arange(n + 1) / n, 1e-6)


@pytest.mark.parametrize("kind", ["NDDE", "UNPCDDE"])
def test_direct_and_checkpointed_gradients_agree(kind):
    make, _ = LAYERS[kind]
    x = normal(0, 3, 1)
    got, expected = [
        jax.tree.leaves(graded(lambda a: a(x), layer_of(make, 1, gradient=g, **MIDPOINT))[0])
        for g in (Direct(), Checkpointed())
    ]
    close(got, expected)
    assert all(jnp.any(g != 0) for g in got)


def test_adjoint_gradient_is_near():
    """Theorem 2: optimise, then discretise."""
    make = lambda g: layer_of(LAYERS["NPCDDE"][0], steps=1, solver=diffrax.Heun(), gradient=g)
    x = normal(0, 3, 2)
    got, expected = [graded(lambda a: a(x), make(g))[0] for g in (Adjoint(), Checkpointed())]
    close(jax.tree.leaves(got), jax.tree.leaves(expected), 3e-2)
    with pytest.raises(ValueError, match="no equation for a Lag"):
        layer_of(LAYERS["NDDE"][0], gradient=Adjoint())(x)


@pytest.mark.parametrize("kind", ["ANODE", "NDDE", "UNPCDDE", "special"])
def test_batch_is_a_loop_over_its_members(kind):
    layer = layer_of(LAYERS[kind][0], 3 if kind == "ANODE" else 2, **MIDPOINT)
    x = normal(0, 2, 2, 2)
    together = layer(x)
    close(together, jax.vmap(jax.vmap(layer))(x), 1e-6)
    close(together[1, 0], layer(x[1, 0]), 1e-6)


@pytest.mark.parametrize("kind", ["ANODE", "NPCDDE"])
def test_jit_takes_layers_as_they_are(kind):
    """All leaves are arrays, so no filter is needed, and equal layers share one compilation."""
    make, channels = LAYERS[kind][0], 3 if kind == "ANODE" else 2
    options = lambda: {
        "solver": diffrax.Heun(),
        "stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-3),
    }
    layers = [layer_of(make, channels, **options()) for _ in range(2)]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(layers))
    traced = []

    @jax.jit
    def run(layer, x):
        traced.append(1)
        return layer(x)

    x = normal(0, 2)
    for layer in layers:
        close(run(layer, x), layer(x))
    assert len(traced) == 1


def test_solve_options_arrive():
    field = lambda t, y, args, *, history: jnp.sin(y)
    x = jnp.ones(1)
    stats = NODE(field, steps=7, solver=diffrax.Midpoint()).solve(x).stats
    assert (stats["num_steps"], stats["num_evaluations"]) == (7, 14)
    loose, tight = [
        NODE(
            field,
            T=2.0,
            solver=diffrax.Heun(),
            stepsize_controller=diffrax.PIDController(rtol=r, atol=r),
            max_steps=170,
        ).solve(x)
        for r in (1e-2, 1e-4)
    ]
    assert loose.stats["num_steps"] < tight.stats["num_steps"]
    assert loose.stats["max_steps"] == 170
    assert loose.t1 == 2
    explode = lambda t, y, args, *, history: y**2 * 1e30
    assert not jnp.isfinite(NODE(explode, steps=3, throw=False)(x)).all()
    with pytest.raises(RuntimeError, match="infinite or NaN"):
        NODE(explode, steps=3)(x)
    with pytest.raises(TypeError, match="step"):
        NODE(field, step=3)


def test_augment_puts_zeros_behind():
    x = normal(0, 2, 3)
    close(Augment(2)(x), np.pad(x, [(0, 0), (0, 2)]), 0)
    assert Augment(0)(x) is x
    field = MLP(4, (5,), key=KEY)
    padded = jnp.pad(x, [(0, 0), (0, 1)])
    close(ANODE(field, **MIDPOINT)(x), NODE(field, **MIDPOINT)(padded), 0)
    held = MLP(4, (5,), history=2, key=KEY)
    layer = NPCDDE(held, 2, **MIDPOINT)
    plain = layer(padded)
    close(NPCDDE(held, 2, augment=1, **MIDPOINT)(x), plain, 0)
    close(eqx.nn.Sequential([Augment(1), layer])(x), plain, 0)  # pyright: ignore


def test_past_may_be_a_function():
    """z' = z(t - 1) with z = e^{ct} before, c e^c = 1, goes on as e^{ct}; augmented, too."""
    c = 0.5671432904097838
    field = lambda t, y, args, *, history: history[0]
    layer = NDDE(field, 1.0, augment=1, steps=20)
    y = layer.solve(lambda t: jnp.exp(c * jnp.asarray([t])), t1=1.5).ys[-1]
    close(y, jnp.asarray([np.exp(1.5 * c), 0.0]), 1e-5)


@pytest.mark.usefixtures("x64")
def test_tau_may_be_trained():
    """z' = z_k over [0, 1] is (1 + tau)(1 + (1 - tau)) for 1/2 <= tau < 1."""
    field = lambda t, y, args, *, history: history[0]
    layer = Flow(field, [Hold(jnp.asarray(0.7))], intervals=2, steps=1)
    x = jnp.asarray([3.0])
    assert parameter_count(layer) == 1
    value, grad = eqx.filter_value_and_grad(lambda layer: layer(x)[0])(layer)
    np.testing.assert_allclose(value, 3 * 1.7 * 1.3, rtol=1e-12)
    np.testing.assert_allclose(jax.tree.leaves(grad)[0], 3 * (1.3 - 1.7), rtol=1e-9)


@pytest.mark.parametrize("delay", [Hold(0.5), Hold(times=[0.0, 0.3])], ids=["tau", "times"])
def test_a_flow_can_be_copied(delay):
    mlp = nn.MLP(1, (4,), history=1, key=jax.random.key(0))
    flow, x = nn.Flow(mlp, [delay], steps=2), jnp.ones((2, 1))
    for other in (copy.copy(flow), copy.deepcopy(flow)):
        np.testing.assert_array_equal(other(x), flow(x))


def test_holds_of_one_array_share_one_period():
    mlp = nn.MLP(1, (4,), history=2, key=jax.random.key(0))
    tau = jnp.array(0.4)
    flow = nn.Flow(mlp, holds(tau, 2), steps=4, intervals=4)
    assert nn.parameter_count(flow) == nn.parameter_count(mlp) + 1
    x = jnp.ones((3, 1))
    slopes = jax.grad(lambda flow: flow(x).sum())(flow)
    (found,) = [leaf for leaf in jax.tree.leaves(slopes) if leaf.shape == ()]
    made = lambda tau: nn.Flow(mlp, holds(tau, 2), steps=4, intervals=4)(x).sum()
    assert found == pytest.approx(float(jax.grad(made)(tau)), rel=1e-4)


@pytest.mark.parametrize(("array", "trained"), [(list, 0), (np.array, 0), (jnp.array, 3)])
def test_instants_are_trained_where_they_are_an_array_of_jax_s(array, trained):
    mlp = nn.MLP(1, (4,), history=1, key=jax.random.key(0))
    made = lambda times: nn.Flow(mlp, [Hold(times=array(times))], steps=4)
    flow = made([0.0, 0.3, 0.7])
    assert nn.parameter_count(flow) == nn.parameter_count(mlp) + trained
    # They are constants of the program, and equal ones are the same program.
    traced = []
    run = jax.jit(lambda flow, x: traced.append(0) or flow(x))
    x = jnp.ones((2, 1))
    first, again = run(flow, x), run(made([0.0, 0.3, 0.7]), x)
    np.testing.assert_array_equal(first, again)
    assert len(traced) == 1
    other = run(made([0.0, 0.2, 0.7]), x)
    assert len(traced) == (1 if trained else 2)
    assert np.max(np.abs(other - first)) > 0


def test_flow_mixes_delays():
    field = lambda t, y, args, *, history: history[0] + 2 * history[1]
    flow = Flow(field, [Hold(0.5), Lag(1.0)], steps=2)
    x = jnp.ones(1)
    # z_0 = 1 over [0, 1/2], then z_1 = 1 + 3/2; the lagged state is 1 throughout.
    close(flow(x), jnp.asarray([2.5 + (2.5 + 2) / 2]), 1e-5)


# --- what the paper proves ------------------------------------------------------------------------


def with_parameters(field, layers):
    return eqx.tree_at(lambda f: f.layers, field, layers)


def on_the_last(g, entries):
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
            x = x + by_hand(field, x)
        return x

    stats = eqx.filter_eval_shape(layer.solve, x).stats
    assert stats["num_evaluations"] == n
    assert stats["num_steps"] == n
    got, out = graded(lambda layer: layer(x), layer)
    expected, expected_out = graded(lambda fields: resnet(fields, x), fields)
    close(out, expected_out)
    close(jax.tree.leaves(got), jax.tree.leaves(expected), 1e-4)


def test_node_is_a_unpcdde():
    """Fields that ignore the history, with shared parameters."""
    field = MLP(2, (8,), key=KEY)
    x = normal(0, 5, 2)
    node = NODE(field, solver=diffrax.Heun(), steps=6)(x)
    close(UNPCDDE([field] * 3, solver=diffrax.Heun(), steps=2)(x), node, 1e-6)
    assert jnp.abs(node - x).max() > 0.05


@pytest.mark.parametrize("n", [1, 5])
def test_euler_scheme_is_a_npcdde(n):
    """Eqs. 8, 9: the simple NPCDDE is z_{k+1} = z_k + tau f(z_k), Euler's scheme for a NODE."""
    of_state = MLP(2, (8,), key=KEY)
    of_held = with_parameters(MLP(2, (8,), history=1, uses_state=False, key=KEY), of_state.layers)
    x = normal(0, 5, 2)
    sol = NPCDDE(of_held, n, lags=1).solve(x)
    euler = NODE(of_state, solver=diffrax.Euler(), steps=n)
    close(sol.ys[-1], euler(x), 1e-6)
    y = x
    for _ in range(n):
        y = y + by_hand(of_state, y) / n
    close(sol.ys[-1], y, 1e-6)
    assert sol.stats["num_evaluations"] == n


@pytest.mark.parametrize(
    ("tau", "options"),
    [(1.0, MIDPOINT), (1.7, MIDPOINT), (1.0, {"max_steps": 64, "solver": diffrax.Heun()})],
)
def test_ndde_whose_delay_spans_all_is_npcdde1(tau, options):
    """The delayed state is then the input throughout."""
    field = Conv(2, 4, history=1, key=KEY)
    x = normal(0, 2, 4, 4, 2)
    close(NDDE(field, tau, **options)(x), NPCDDE(field, 1, **options)(x), 1e-6)
    assert jnp.abs(NDDE(field, 0.5, **options)(x) - NDDE(field, tau, **options)(x)).max() > 1e-4


def test_the_simple_ndde_with_one_delay_is_the_simple_npcdde():
    """Eq. 7, as printed, is eq. 8 where T = tau: the field sees the input alone, throughout."""
    field = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    close(NDDE(field, 1.0, steps=2)(x), x + by_hand(field, x), 1e-6)
    close(NPCDDE(field, 1, lags=1)(x), x + by_hand(field, x), 1e-6)
    # With tau = 1/2 the field sees the past of 0 first, then what has come of it: z(s) = x + s f(x)
    # on [0, 1/2], then x + f(x)/2 + the integral of f(z(s)) over that, here by Gauss and Legendre.
    nodes, weights = np.polynomial.legendre.leggauss(8)
    inner = sum(
        w / 4 * by_hand(field, x + (s + 1) / 4 * by_hand(field, x))
        for s, w in zip(nodes, weights, strict=True)
    )
    found = NDDE(field, 0.5, steps=40, solver=diffrax.Tsit5())(x)
    close(found, x + by_hand(field, x) / 2 + inner, 1e-5)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_theorem_1(tau):
    """With g = (F - id)/(2 tau) on z(floor((t - tau)/tau) tau), the final state is F(x)."""
    g = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    layer = NPCDDE(on_the_last(g, 2), 2, T=2 * tau)
    sol = layer.solve(x)
    F = x + 2 * tau * by_hand(g, x)
    close(sol.ys[-1], F, 1e-6)
    close(sol.knots.ys[1], (F + x) / 2, 1e-6)
    assert sol.stats["num_evaluations"] == 2
    # Not so without the skip connection: eq. 8 iterates x + tau g(x).
    assert jnp.abs(NPCDDE(g, 2, T=2 * tau, lags=1)(x) - F).max() > 1e-3


def test_theorem_1_reflects_what_a_node_cannot():
    reflect = lambda t, y, args, *, history: -2 * history[1]  # (F(x) - x)/(2 tau), tau = 1/2
    x = jnp.asarray([[-1.0], [1.0]])
    close(NPCDDE(reflect, 2)(x), -x, 0)


@pytest.mark.parametrize(("n", "more"), [(3, 0), (3, 1), (1, 1)])
def test_proposition_2(n, more):
    """With g = (F - id)/(n tau) on the oldest held state, the knots go from x to F(x) evenly. The
    hold of lag n differs from that of lag n - 1 only after T."""
    entries = n + more
    g = MLP(2, (8,), history=1, uses_state=False, key=KEY)
    x = normal(0, 5, 2)
    sol = NPCDDE(on_the_last(g, entries), n, lags=entries).solve(x)
    F = x + by_hand(g, x)
    for k in range(n + 1):
        close(sol.knots.ys[k], (k * F + (n - k) * x) / n, 1e-6)


def test_function_iterated_twice():
    """The paper's example: F(x) = 16x as two intervals of a field that learned x -> 3x."""
    linear = lambda t, y, args, *, history: 3 * history[0]
    assert NPCDDE(linear, 2, T=2.0, lags=1)(jnp.asarray([1.5])) == 24


# --- the paper's models ---------------------------------------------------------------------------


def test_paper_tables():
    """All 60 counts of parameters, and the filters behind them."""
    assert set(paper_models()) == set(TABLE)
    assert len(paper_models()) == 20
    for name, columns in TABLE.items():
        assert set(columns) == {"mnist", "cifar10", "svhn"}
        for data, expected in columns.items():
            assert paper_size(name, data) == expected, (name, data)


@pytest.mark.parametrize(
    ("name", "data", "intervals", "channels"),
    [
        ("NODE", "mnist", 1, 1),
        ("A1+NDDE", "mnist", 1, 2),
        ("NPCDDE3", "svhn", 3, 3),
        ("A2+UNPCDDE5", "cifar10", 5, 5),
    ],
)
def test_paper_model_shapes_and_options(name, data, intervals, channels):
    model = paper_model(name, data, key=KEY, pad_to=8, compute_dtype=jnp.bfloat16, **MIDPOINT)
    size = 28 if data == "mnist" else 32
    x = jnp.zeros((2, size, size, 1 if data == "mnist" else 3))
    sol = eqx.filter_eval_shape(model.flow.solve, x)
    assert sol.ys.shape == (1, 2, size, size, channels)
    assert sol.stats["num_intervals"] == intervals
    assert sol.stats["num_evaluations"] == 2 * intervals
    assert eqx.filter_eval_shape(model, x).shape == (2, 10)
    fields = model.flow.flow.field
    for field in fields if isinstance(fields, list) else [fields]:
        assert field.design.compute_dtype == jnp.bfloat16
        assert field.design.pad_to == 8


def test_paper_model_gives_logits():
    model = paper_model("A1+NPCDDE5", "mnist", key=KEY, **MIDPOINT)
    x = jax.random.uniform(KEY, (1, 28, 28, 1))
    final = model.flow(x)
    head = model.head.affine
    close(model(x), final.reshape(1, -1) @ head.weight + head.bias, 1e-4)
    other = paper_model("A1+NPCDDE5", "mnist", key=jax.random.key(1), **MIDPOINT)
    assert eqx.tree_equal(model, paper_model("A1+NPCDDE5", "mnist", key=KEY, **MIDPOINT))
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        assert jnp.any(a != b)
    first, second = paper_model("UNPCDDE2", "mnist", key=KEY).flow.flow.field
    assert jnp.all(first.layers[1].weight != second.layers[1].weight)


def test_paper_model_is_adaptive_by_default():
    model = paper_model("NODE", "mnist", key=KEY)
    stats = eqx.filter_eval_shape(model.flow.solve, jnp.zeros((1, 28, 28, 1))).stats
    assert isinstance(stats["num_steps"], jax.ShapeDtypeStruct)  # known only when it has run


def test_head_and_classifier():
    head = Head((3, 2), 5, key=KEY)
    assert head(normal(0, 3, 2)).shape == (5,)
    assert head(normal(0, 7, 4, 3, 2)).shape == (7, 4, 5)
    x = normal(0, 7, 3, 2)
    weight, bias = head.affine.weight, head.affine.bias
    close(head(x), jnp.stack([row.ravel() @ weight + bias for row in x]))
    field = MLP(2, (4,), key=KEY)
    model = Classifier(NODE(field, steps=1), head)
    close(model(x), head(NODE(field, steps=1)(x)), 0)
    assert parameter_count(model) == (2 * 4 + 4 + 4 * 2 + 2) + (6 * 5 + 5)
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(3, 2\)"):
        head(normal(0, 2, 3))


# --- user errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper_model("NODE7", "mnist", key=KEY), "No model 'NODE7'.*NODE, NDDE, NPCDDE2"),
        (lambda: paper_model("NODE", "imagenet", key=KEY), "No data set.*mnist, cifar10, svhn"),
        (lambda: MLP(0, key=KEY), "channels=0; expected a whole number >= 1"),
        (lambda: MLP(1, (), key=KEY), "at least one hidden layer"),
        (lambda: MLP(1, (4, 0), key=KEY), "widths=0"),
        (lambda: MLP(1, history=-1, key=KEY), "history=-1"),
        (lambda: MLP(1, uses_state=False, key=KEY), "leaves no argument.*history=1"),
        (lambda: Conv(1, 0, key=KEY), "filters=0"),
        (lambda: Conv(1, 4, pad_to=0, key=KEY), "pad_to=0"),
        (lambda: Augment(-1), "p=-1"),
        (lambda: NPCDDE(MLP(1, key=KEY), 0), "n=0"),
        (lambda: UNPCDDE([]), "the number of fields=0"),
        (lambda: NODE(MLP(2, key=KEY))(jnp.ones(3)), r"shape \(3,\); expected \(..., 2\)"),
        (lambda: NODE(Conv(2, 4, key=KEY))(jnp.ones((5, 2))), r"\(..., height, width, 2\)"),
        (
            lambda: NPCDDE(MLP(2, history=3, key=KEY), 2)(jnp.ones(2)),
            "field with history=3, but gives it 2 held.*Build the field with history=2",
        ),
        (
            lambda: UNPCDDE([MLP(2, key=KEY)] * 2).solve(jnp.ones(2), t1=2.0),
            "2 fields for 4 intervals",
        ),
    ],
)
def test_user_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_import_needs_no_extra():
    script = (
        "import sys, jax, jax.scipy, diffrax, equinox, jaxtyping\n"
        "before = set(sys.modules)\n"
        "import lagrax.nn\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    loaded = set(run.stdout.split())
    assert "lagrax" in loaded
    assert loaded & {"optax", "orbax", "matplotlib", "plotly", "typer", "rich", "scipy"} == set()


def test_a_trained_end_is_one_parameter():
    """T = n tau stays so."""
    field = nn.MLP(1, (4,), history=2, key=jax.random.key(0))
    for layer in (
        nn.NPCDDE(field, 2, T=jnp.array(3.0), intervals=4, steps=2),
        nn.UNPCDDE([field, field], T=jnp.array(3.0), lags=2, steps=2),
    ):
        moved = jax.tree.map(lambda x: x + 0.1 if x.ndim == 0 else x, layer)
        knots = moved.solve(jnp.ones(1)).knots.ts
        np.testing.assert_allclose(np.unique(knots), [0.0, 1.6, 3.2], rtol=1e-6)


def test_a_flow_from_another_start_and_further(x64):
    field = lambda t, y, args, *, history: jnp.sin(t) - y * history[0]
    x, plain = jnp.ones(1), {"delays": [Hold(1.0)], "steps": 4}
    flow = nn.Flow(field, [Hold(1.0)], T=2.0, steps=4)
    np.testing.assert_allclose(flow.solve(x, t0=3.0).ys, solve(field, 3.0, 5.0, x, **plain).ys)
    trained = nn.Flow(field, [Hold(jnp.asarray(1.0))], T=2.0, intervals=2, steps=4)
    further = eqx.filter_jit(lambda flow: flow.solve(x, t1=4.0, intervals=4).ys)(trained)
    np.testing.assert_allclose(further, solve(field, 0.0, 4.0, x, **plain).ys)
