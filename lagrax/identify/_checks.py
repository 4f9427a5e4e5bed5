"""Checks that a fit is possible in the precision at hand, and that it can be validated."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ._series import Trajectory


class IdentifyError(RuntimeError):
    """A model cannot be fitted, used or loaded; the message says why and what to do."""


_MORE_DIGITS = (
    'call jax.config.update("jax_enable_x64", True) first (for the command: set JAX_ENABLE_X64=1 '
    "in its environment)."
)


def has_too_many_digits(ts: Float[np.ndarray, " n"], ys: Float[np.ndarray, "n states"]) -> bool:
    """Whether float32 resolves these times or states badly."""
    eps = float(jnp.finfo(jnp.float32).eps)
    gap = float(np.median(np.diff(ts)))
    repeated = np.any(np.diff(ts.astype(np.float32)) <= 0)
    missing = np.isnan(ys)
    mean = np.where(missing, 0.0, ys).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1)
    known = np.where(missing, mean, ys)
    largest = np.abs(known).max(axis=0)
    unit = np.where(largest > 0, largest, 1.0)  # squares of large numbers overflow
    spread = (known / unit).std(axis=0) * unit
    lost = (largest * eps * 1000 > spread) & (spread > 0)
    return bool(repeated or np.abs(ts).max() * eps * 100 > gap or lost.any())


def check_precision(trajectories: Sequence[Trajectory], origin: float) -> None:
    """Raises if times or states need more digits than JAX's precision has."""
    dtype = jnp.zeros(()).dtype
    eps = float(jnp.finfo(dtype).eps)
    for t in trajectories:
        kept, gap = (t.ts - origin).astype(dtype), np.median(np.diff(t.ts))
        if np.any(np.diff(kept) <= 0) or np.abs(kept).max() * eps * 100 > gap:
            raise ValueError(
                f"The times go up to {np.abs(t.ts).max():g} and are {gap:g} apart: too many digits "
                f"for {dtype}. Count time from the start of the series in a longer unit, or "
                f"{_MORE_DIGITS}"
            )
    states = np.concatenate([t.filled for t in trajectories])
    largest, spread = np.abs(states).max(axis=0), states.std(axis=0)
    lost = np.flatnonzero((largest * eps * 1000 > spread) & (spread > 0))
    if lost.size:
        i = int(lost[0])
        raise ValueError(
            f"{trajectories[0].columns.label('ys', i)} goes up to {largest[i]:g} and varies by "
            f"{spread[i]:.3g} only: too many digits for {dtype}. Subtract its mean "
            f"({states[:, i].mean():g}), or {_MORE_DIGITS}"
        )


def check_sizes(trajectories: Sequence[Trajectory], degree: int) -> None:
    """Raises if terms of this degree overflow or underflow in JAX's precision."""
    dtype = jnp.zeros(()).dtype
    most = float(np.log10(float(jnp.finfo(dtype).max))) - 1
    for name, parts in (
        ("ys", [t.filled for t in trajectories]),
        ("inputs", [t.us for t in trajectories]),
    ):
        for i, size in enumerate(np.abs(np.concatenate(parts)).max(axis=0)):
            power = np.log10(size) if size > 0 else 0.0
            if degree * abs(power) > most:
                raise ValueError(
                    f"{trajectories[0].columns.label(name, i)} goes up to {size:g}, and terms of "
                    f"degree {degree} in it are too {'large' if power > 0 else 'small'} for "
                    f"{dtype}. Multiply it by 1e{-round(power):d}, or {_MORE_DIGITS}"
                )


def check_coefficients(coefficients: Float[np.ndarray, "terms states"]) -> None:
    """Raises if columns of very different units need coefficients outside JAX's precision."""
    info, sizes = jnp.finfo(jnp.zeros(()).dtype), np.abs(coefficients[coefficients != 0])
    if sizes.size and not (info.tiny < sizes.min() and sizes.max() < info.max):
        raise ValueError(
            f"The equation has coefficients from {sizes.min():.1g} to {sizes.max():.1g}, which is "
            f"too wide for {info.dtype}. Multiply the columns by powers of ten, so that all of "
            f"them go up to about 1, or {_MORE_DIGITS}"
        )


def check_held_out(trajectories: Sequence[Trajectory], weights: Float[np.ndarray, "..."]) -> None:
    """Raises if no held-out sample has a value of some state; `weights` count them."""
    unseen = np.flatnonzero(weights.sum(axis=(0, 1)) == 0)
    if unseen.size:
        raise IdentifyError(
            f"{trajectories[0].columns.label('ys', int(unseen[0]))} was not measured in the part "
            "that is held out, so its error cannot be estimated. Give a larger `validation`, or "
            "leave the column out."
        )


def check_finite(error: Float[np.ndarray, " states"]) -> None:
    """Raises if the equation diverges over held-out windows."""
    if not np.all(np.isfinite(error)):
        raise IdentifyError(
            "The learned equation does not stay finite over held-out windows. Likely reasons: "
            "the series has another period, the degree is too high, or the series is too "
            "short. (In Python a shorter `window` or a smaller `learning_rate` may help, too.)"
        )
