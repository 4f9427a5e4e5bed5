"""The folder of a saved model: `model.json`, `model.safetensors`, and what they are made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._delays import Delay, Hold, Lag, Learn
from .._files import read_json
from .._runs import Damaged, load_arrays
from ..training import Series
from ._checks import IdentifyError


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    missing = [n for n in ("model.json", "model.safetensors") if not (folder / n).is_file()]
    if missing:
        raise IdentifyError(
            f"{folder} holds no {missing[0]}: give a folder that Identifier.save or `lagrax fit` "
            "wrote."
        )
    try:
        about = read_json(folder / "model.json")
        arrays, _ = load_arrays(folder / "model.safetensors")
    except (ValueError, OSError, Damaged) as error:
        raise IdentifyError(f"The model in {folder} is damaged: {error}.") from None
    if not isinstance(about, dict) or about.get("format") != 1:
        raise IdentifyError(f"{folder / 'model.json'} is not of a format that this lagrax reads.")
    return about, arrays


def delay_to_json(delay: Delay, learned: Sequence[Learn]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(delay).__name__}
    if isinstance(delay.tau, Learn):
        found["learn"] = [delay.tau.start, delay.tau.low, delay.tau.high]
        found["period"] = learned.index(delay.tau)
    elif delay.tau is not None:
        found["tau"] = float(delay.tau)  # pyright: ignore[reportArgumentType]
    if isinstance(delay, Hold):
        found["lag"] = delay.lag
        if delay.times is not None:
            found["times"] = np.asarray(delay.times).tolist()
    return found


def delays_from_json(found: Sequence[dict[str, Any]]) -> list[Delay]:
    learned: dict[int, Learn] = {}

    def one(about: dict[str, Any]) -> Delay:
        tau: Any = about.get("tau")
        if "learn" in about:
            tau = learned.setdefault(int(about["period"]), Learn(*about["learn"]))
        if about["kind"] == "Lag":
            return Lag(tau)
        return Hold(tau, lag=about["lag"], times=about.get("times"))

    return [one(about) for about in found]


def under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def count_of_series(arrays: dict[str, np.ndarray]) -> int:
    return len({k.split("]")[1] for k in arrays if k.startswith("['series']")})


def losses_of(arrays: dict[str, np.ndarray]) -> dict[str, Series]:
    names = dict.fromkeys(k.split("'")[3] for k in arrays if k.startswith("['losses']"))
    return {
        name: Series(*(arrays[f"['losses']['{name}']['{part}']"] for part in Series._fields))
        for name in names
    }


def filled_from(like: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """`like` with the arrays of all members in place of its own."""
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    dynamic, static = eqx.partition(like, is_shape)
    named, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    leaves = []
    for place, leaf in named:
        found = arrays[jax.tree_util.keystr(place)]
        if found.shape[1:] != leaf.shape:
            raise ValueError(f"{jax.tree_util.keystr(place)} has shape {found.shape[1:]}")
        leaves.append(jnp.asarray(found, leaf.dtype))
    return eqx.combine(jax.tree.unflatten(structure, leaves), static)
