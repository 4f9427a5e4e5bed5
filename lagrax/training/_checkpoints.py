"""Checkpoints. Each is one safetensors file with the arrays of a pytree and their digest."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._errors import RESTART, DamagedError, RunError
from ._files import check_regular, write_atomically
from ._machine import load

# The largest header that safetensors reads, in bytes. It holds the names and shapes.
LARGEST_HEADER = 10**8

# Arrays of other types are stored as bytes.
SAFETENSORS_TYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
}


def save_checkpoint(path: Path, state: PyTree, metadata: dict[str, str]) -> None:
    """Saves the arrays of `state` and `metadata`, with a digest of both."""
    arrays = _to_numpy(state)
    save = load("safetensors.numpy").save
    digest = compute_digest(arrays, metadata)
    write_atomically(path, save(arrays, metadata=metadata | {"digest": digest}))


def load_checkpoint(path: Path, like: PyTree) -> tuple[PyTree, dict[str, str]]:
    """Loads a checkpoint into the structure of `like`. Returns the pytree and the metadata.

    Raises a `DamagedError` for a damaged file, and a `RunError` for arrays of other names, shapes
    or types than those of `like`.
    """
    expected = _to_numpy(like)
    # A sparse file can claim more than fits into memory, so its size is compared before reading.
    if path.stat().st_size > sum(x.nbytes for x in expected.values()) + LARGEST_HEADER:
        raise _other_model(path)
    arrays, metadata = load_arrays(path)
    if _types(arrays) != _types(expected):
        raise _other_model(path)
    dynamic, static = eqx.partition(like, eqx.is_array)
    named, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    leaves = [_decode_leaf(leaf, arrays[_encode_leaf(place, leaf)[0]]) for place, leaf in named]
    return eqx.combine(jax.tree.unflatten(structure, leaves), static), metadata


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Loads the named arrays and the metadata of a checkpoint, and checks its digest."""
    with _open(path) as file:
        metadata = dict(file.metadata() or {})
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.pop("digest", None) != compute_digest(arrays, metadata):
        raise DamagedError("its content does not match its digest")
    return arrays, metadata


def load_metadata(path: Path) -> dict[str, str]:
    """Loads the metadata of a checkpoint alone, without checking its digest."""
    with _open(path) as file:
        return dict(file.metadata() or {})


def fingerprint(tree: PyTree) -> str:
    """Sixteen hexadecimal digits that change with any number in `tree`."""
    return compute_digest(_to_numpy(tree), {})[:16]


def compute_digest(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """SHA-256 of names, types, shapes and contents."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    safetensors = load("safetensors")
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise DamagedError(f"it cannot be read: {error}") from None


def _types(arrays: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (x.shape, str(x.dtype)) for name, x in arrays.items()}


def _other_model(path: Path) -> RunError:
    return RunError(
        f"{path} holds another model or optimiser than those to be trained. Choose another folder, "
        f"or {RESTART}."
    )


# --- leaves and arrays of the file ----------------------------------------------------------------


def _to_numpy(tree: PyTree) -> dict[str, np.ndarray]:
    named, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    return dict(_encode_leaf(place, leaf) for place, leaf in named)


def _encode_leaf(place: Any, leaf: Any) -> tuple[str, np.ndarray]:
    """Name and array of a leaf in the file. The name of an array of bytes ends with its type."""
    name = jax.tree_util.keystr(place)
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if array.dtype.name in SAFETENSORS_TYPES:
        return name, array
    return f"{name} {array.dtype.name}", np.ascontiguousarray(array[..., None]).view(np.uint8)


def _decode_leaf(like: Any, array: np.ndarray) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    if np.dtype(like.dtype).name not in SAFETENSORS_TYPES:
        array = array.view(like.dtype)[..., 0]
    return jnp.asarray(array)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
