"""Checks of single arguments, such as numbers and arrays of reals, used throughout lagrax."""

import math
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# Compiled loops count in 32 bits.
MOST_COUNT = 2**31 - 1
# The most numbers that one computation may keep: 4 GB in float32, and twice that at its peak.
MOST_KEPT = 10**9


def is_traced(*values: Any) -> bool:
    """Whether any of the values is traced by JAX."""
    return any(isinstance(v, Tracer) for v in values)


def is_whole(value: Any) -> TypeGuard[int | np.integer]:
    """Whether a value is a Python or NumPy integer."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is one finite real number of Python, NumPy or JAX."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, (bool, str)) or kind in ("b", "c") or np.ndim(value) != 0:
        return False
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def real_array(values: Any) -> np.ndarray | None:
    """Converts real numbers to a float64 array.

    Returns None for text, dates, complex numbers, other objects and rows of different lengths.
    NumPy alone would turn text into numbers and drop imaginary parts.
    """
    try:
        array = np.asarray(values)
        return None if array.dtype.kind in "cSUmM" else array.astype(float)
    except (TypeError, ValueError, OverflowError):
        return None


def is_real(value: Any) -> bool:
    """Whether a value is a real array or number, traced or not. Random keys are not real."""
    if not isinstance(value, (bool, int, float, np.generic, np.ndarray, jax.Array)):
        return False
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return any(jnp.issubdtype(jnp.result_type(value), kind) for kind in kinds)


def format_value(value: Any) -> str:
    """Formats a value for an error message, shortened if it is long."""
    if is_whole(value) and abs(int(value)) >= 10**40:
        return f"a number of {int(value).bit_length()} bits"
    return f"{value!r:.60}"


def check_whole(
    who: str, what: str, value: Any, least: int, most: int = MOST_COUNT, why: str = ""
) -> None:
    """Checks that `value` is a whole number from `least` to `most`.

    `why` is a sentence on the cost of larger values and on the alternative.
    """
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
    """Checks that a result of this many numbers fits into memory.

    `what` names the arguments that determine the count.
    """
    if numbers > MOST_KEPT:
        raise ValueError(
            f"{who} got {what}, which keeps {numbers:.3g} numbers; expected at most "
            f"{MOST_KEPT:.0e}, which take 4 GB in float32. Ask for fewer."
        )
