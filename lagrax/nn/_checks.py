"""Checks of the arguments of fields, layers and models."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._solve.arguments import check_whole as check_whole


def check_key(name: str, key: Any) -> None:
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{name} got key={key!r:.60}; expected a key of jax.random, such as jax.random.key(0)."
        )


def check_sequence(name: str, what: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} got {what}={values!r:.60}; expected a list.")
    return values
