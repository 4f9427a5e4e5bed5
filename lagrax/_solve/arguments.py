"""The kinds of value that arguments are of: whole numbers, numbers, arrays of real numbers."""

import math
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# Compiled loops count in 32 bits.
MOST_COUNT = 2**31 - 1
# Numbers kept of one computation: 4 GB in float32, and as much again while it is put together.
MOST_KEPT = 10**9


def is_traced(*values: Any) -> bool:
    return any(isinstance(v, Tracer) for v in values)


def is_whole(value: Any) -> TypeGuard[int | np.integer]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether this is one finite real number, of Python's, NumPy's or JAX's."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, (bool, str)) or kind in ("b", "c") or np.ndim(value) != 0:
        return False
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def real_array(values: Any) -> np.ndarray | None:
    """These numbers in float64; None where some are text, dates, complex or no numbers at all, and
    where rows differ in length. NumPy itself turns text into numbers and drops imaginary parts."""
    try:
        array = np.asarray(values)
        return None if array.dtype.kind in "cSUmM" else array.astype(float)
    except (TypeError, ValueError, OverflowError):
        return None


def is_real(value: Any) -> bool:
    """Whether this is an array or a number, traced or not, that is neither complex nor a key."""
    if not isinstance(value, (bool, int, float, np.generic, np.ndarray, jax.Array)):
        return False
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return any(jnp.issubdtype(jnp.result_type(value), kind) for kind in kinds)


def format_value(value: Any) -> str:
    """A value in a message, however long it is."""
    if is_whole(value) and abs(int(value)) >= 10**40:
        return f"a number of {int(value).bit_length()} bits"
    return f"{value!r:.60}"


def check_whole(
    who: str, what: str, value: Any, least: int, most: int = MOST_COUNT, why: str = ""
) -> None:
    """Whether `value` is a whole number from `least` to `most`. `why` is a sentence on what more
    would cost, and what to do instead."""
    if not is_whole(value) or value < least:
        raise ValueError(
            f"{who} got {what}={format_value(value)}; expected a whole number >= {least}."
        )
    if value > most:
        why = why or ("Compiled loops count in 32 bits." if most == MOST_COUNT else "")
        raise ValueError(
            f"{who} got {what}={format_value(value)}; expected at most {most:,}. {why}".rstrip()
        )


def check_memory(who: str, what: str, numbers: int) -> None:
    """Whether so many `numbers` fit into memory; `what` names the arguments that make them."""
    if numbers > MOST_KEPT:
        raise ValueError(
            f"{who} got {what}, which keeps {numbers:.3g} numbers; expected at most "
            f"{MOST_KEPT:.0e}, which take 4 GB in float32. Ask for fewer."
        )
