"""The convolutional field as accelerators compute it, with its derivative written by hand."""

import re
from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from helpers.networks import (
    KEY,
    MIDPOINT,
    check_close,
    evaluate_plainly,
    normal,
    value_and_gradient,
)

from lagrax import Adjoint, Direct
from lagrax.nn import NODE, NPCDDE, UNPCDDE, Conv, _affine, _convolution, _fields

ARGUMENTS = [(2, True), (0, True), (1, True), (1, False), (2, False)]


@pytest.fixture(scope="module", autouse=True)
def accelerator():
    """Fields compute as they do on accelerators, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_affine, _fields):
            patch.setattr(module, "on_accelerator", lambda: True)
        jax.clear_caches()
        yield
    jax.clear_caches()


# How far from float32 each type may be, relative to the norm, and how far it must be to be it.
BOUNDS = {"float32": (0, 1e-6), "float16": (1e-6, 1e-2), "bfloat16": (1e-5, 5e-2)}


MOST_TYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.slow)]


def relative_distances(got, expected):
    """The relative distance of each leaf."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]


@pytest.mark.parametrize("dtype", MOST_TYPES)
@pytest.mark.parametrize(
    ("history", "uses_state", "pad_to"),
    [(*a, None) for a in ARGUMENTS]
    + [pytest.param(*ARGUMENTS[0], p, marks=pytest.mark.slow) for p in (1, 5)],
)
def test_fused_field_equals_the_network(history, uses_state, pad_to, dtype):
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
        out = evaluate_plainly(field, *used[0], *used[1])
        return jnp.sin(3 * out).sum(), out

    with jax.default_matmul_precision("highest"):
        got, expected = [
            jax.jit(jax.grad(f, (0, 1), has_aux=True))(field, used) for f in (fused, plain)
        ]
    least, most = BOUNDS[dtype]
    assert got[1].dtype == jnp.float32
    assert all(least <= d < most for d in relative_distances(got, expected))


@pytest.mark.parametrize("uses_state", [True, False])
def test_equal_entries_of_a_history_are_read_once(uses_state):
    field = Conv(3, 5, history=4, uses_state=uses_state, compute_dtype="float32", key=KEY)
    y, z, w = [normal(i, 2, 4, 3, 3) for i in range(3)]
    assert field.hold([z, w, z, z]).entries.shape == (2, 4, 3, 6)

    def merged(field, z, w):
        out = field(0.0, y, history=field.hold([z, w, z, z]))
        return jnp.sin(3 * out).sum(), out

    def plain(field, z, w):
        out = evaluate_plainly(field, *[y] * uses_state, z, w, z, z)
        return jnp.sin(3 * out).sum(), out

    with jax.default_matmul_precision("highest"):
        got, expected = [
            jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(field, z, w) for f in (merged, plain)
        ]
    assert all(d < 1e-5 for d in relative_distances(got, expected))


@pytest.mark.parametrize(
    "dtype",
    ["float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float32", "bfloat16"))],
)
def test_fused_gradient_may_have_any_size(dtype):
    """Also far outside float16's range. At the default precision, the weight gradient of float32
    is computed from float16 copies."""
    field = Conv(3, 5, history=1, compute_dtype=dtype, key=KEY)
    y, z = normal(0, 4, 4, 3), normal(1, 4, 4, 3)

    @jax.jit
    @partial(jax.grad, argnums=(0, 1, 2))
    def fused(field, y, z, size):
        return size * jnp.sin(field(0.0, y, history=field.hold([z]))).sum()

    plain = lambda field, y, z: jnp.sin(evaluate_plainly(field, y, z)).sum()
    expected = jax.jit(jax.grad(plain, (0, 1, 2)))(field, y, z)
    for size in (1e-12, 1.0, 1e12):
        got = jax.tree.map(lambda g: g / size, fused(field, y, z, size))  # noqa: B023
        assert all(d < BOUNDS[dtype][1] + 1e-3 for d in relative_distances(got, expected))
    assert all(jnp.all(g == 0) for g in jax.tree.leaves(fused(field, y, z, 0.0)))


@pytest.mark.parametrize("shape", [(3,), (2, 5, 7), (1 << 20,)])
def test_cotangents_fit_into_float16(shape):
    g = 1e-9 * normal(0, *shape)
    scale = _convolution._scale(g)
    assert jnp.log2(scale) == jnp.round(jnp.log2(scale))
    room = 1 / jnp.maximum(2**4 * jnp.abs(scale * g).max(), 2**-13 * jnp.abs(scale * g).sum())
    assert 1 <= room < 2


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
        check_close(forward, jax.jit(product)(plain, y)[0], 1e-5)
        check_close(backward, forward, 1e-5)
        loop = jax.vmap(lambda y, z: fused(0.0, y, history=fused.hold([z])))(y, z)
        check_close(loop, plain(0.0, y, history=plain.hold([z])), 1e-5)


def test_fused_field_without_the_state_is_evaluated_once_an_interval():
    field = Conv(2, 6, history=1, uses_state=False, compute_dtype="float16", key=KEY)
    stats = eqx.filter_eval_shape(NPCDDE(field, 3, lags=1).solve, normal(0, 4, 4, 2)).stats
    assert stats["num_evaluations"] == 3


# --- in layers ------------------------------------------------------------------------------------


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


def make_conv_layer(kind, dtype, p=0, **options):
    make = lambda history, seed: Conv(
        2 + p, 6, history=history, compute_dtype=dtype, key=jax.random.key(seed)
    )
    return CONV_LAYERS[kind](make, augment=p, **(MIDPOINT | options))


def test_holds_before_the_start_are_read_once():
    """In interval k of NPCDDE3 the field is given min(k + 1, 3) distinct states of two channels."""
    layer = make_conv_layer("NPCDDE", "float32")
    text = str(jax.make_jaxpr(layer)(normal(0, 2, 4, 4, 2)))
    widths = {int(w) for w in re.findall(r"f32\[2,4,4,(\d+)\] = concatenate", text)}
    assert {2 + 2 * k + 1 for k in (1, 2, 3)} <= widths


@pytest.mark.parametrize(
    "dtype",
    ["float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float32", "bfloat16"))],
)
@pytest.mark.parametrize("p", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("kind", CONV_LAYERS)
def test_fused_layer_equals_the_plain_one(kind, p, dtype):
    """All gradients together: a value that rounding takes across a relu's kink weighs little."""
    x = normal(0, 4, 8, 8, 2)
    with jax.default_matmul_precision("highest"):
        got, expected = [
            value_and_gradient(lambda a: a[0](a[1]), (make_conv_layer(kind, d, p), x))
            for d in (dtype, None)
        ]
    (gradients, out), (expected_gradients, expected_out) = got, expected
    assert relative_distances(out, expected_out)[0] < BOUNDS[dtype][1]
    join = lambda tree: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
    assert relative_distances(join(gradients), join(expected_gradients))[0] < BOUNDS[dtype][1]


@pytest.mark.parametrize(
    "options", [{"gradient": Direct()}, {"gradient": Adjoint()}, {"steps": None, **LOOSE}]
)
def test_fused_and_plain_gradients_agree_for_each_method(options):
    x = normal(0, 2, 4, 4, 2)
    with jax.default_matmul_precision("highest"):
        got, expected = [
            value_and_gradient(lambda a: a(x), make_conv_layer("NPCDDE", d, **options))
            for d in ("float32", None)
        ]
    assert all(d < 1e-5 for d in relative_distances(got, expected))


def test_forward_mode_works_without_a_compute_dtype():
    x, dx = normal(0, 4, 4, 2), normal(1, 4, 4, 2)
    layer = make_conv_layer("NPCDDE", None, gradient=Direct())
    _, forward = jax.jit(lambda x, dx: jax.jvp(layer, (x,), (dx,)))(x, dx)
    backward = jax.jit(jax.grad(lambda x: layer(x).sum()))(x)
    check_close(forward.sum(), (backward * dx).sum(), 1e-4)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(make_conv_layer("NPCDDE", "float32", gradient=Direct()), (x,), (dx,))
