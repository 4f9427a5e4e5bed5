"""Checkpoints hold every type of leaf, and detect every damage."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.small_run import DATA

from lagrax.training import train
from lagrax.training._checkpoints import load_arrays, save_checkpoint
from lagrax.training._errors import DamagedError


def test_truncations_and_flipped_bits_are_detected(tmp_path):
    path = tmp_path / "x.safetensors"
    about = {"step": "3", "bytes": "17"}
    save_checkpoint(path, {"a": jnp.arange(3.0), "b": jnp.ones((2, 1), int)}, about)
    arrays, found = load_arrays(path)
    assert found == about
    np.testing.assert_array_equal(arrays["['a']"], np.arange(3.0))
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        for damaged in (content[:place], bytes(flipped)):
            path.write_bytes(damaged)
            with pytest.raises(DamagedError):
                load_arrays(path)


TYPES = [
    *("bool", "int2", "int4", "uint4", "int32", "float16", "bfloat16", "float4_e2m1fn"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "complex64"),
]
NUMPY_TYPES = ("int64", "float64", "float32", "complex128")
KEY_TYPES = ("threefry2x32", "rbg", "unsafe_rbg")


class Extended(eqx.Module):
    """A model with leaves that the loss does not use."""

    weight: jax.Array
    extra: object


def make_extended(key):
    extra = {kind: jnp.array([0, 1]).astype(kind) for kind in TYPES}
    extra |= {f"numpy {kind}": np.arange(3).astype(kind) for kind in NUMPY_TYPES}
    extra |= {f"key {kind}": jax.random.key(7, impl=kind) for kind in KEY_TYPES}
    extra |= {"number": np.float64(0.1), "scalar": jnp.array(3).astype("int4")}
    return Extended(jnp.zeros(()), extra | {"empty": jnp.zeros((0, 2), "int4")})


def squared_error(model, rows):
    return (model.weight - rows[0][:, 0]) ** 2


def content_of(leaf):
    key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if key else leaf)
    return str(leaf.dtype), array.shape, array.tobytes()


@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_run_of_a_model_with_any_type_of_leaf_resumes(tmp_path, seeds):
    run = functools.partial(
        train,
        squared_error,
        make_extended,
        DATA,
        optax.sgd(0.1),
        seeds=seeds,
        block=2,
        progress=False,
    )
    run(steps=2, folder=tmp_path)
    resumed, whole = run(steps=4, folder=tmp_path).model, run(steps=4).model
    assert content_of(resumed.weight) == content_of(whole.weight)
    for name, leaf in whole.extra.items():
        assert content_of(resumed.extra[name]) == content_of(leaf), name


def test_run_in_double_precision_resumes(tmp_path, x64):
    make = lambda key: Extended(jnp.zeros(()), jnp.array([1.0 + 2.0j]))
    for steps in (1, 2):
        options = {"steps": steps, "folder": tmp_path, "progress": False}
        run = train(squared_error, make, DATA, optax.sgd(0.1), **options)
    assert run.model.extra.dtype == "complex128"
    np.testing.assert_array_equal(run.model.extra, [1 + 2j])
