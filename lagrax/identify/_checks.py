"""What a model refuses: arguments, and series and equations that cannot be had in the precision at
hand, or not judged."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._solve.arguments import MOST_COUNT, check_whole, is_number, is_whole
from .._solve.checks import check_solver
from .._solve.delays import MOST_DELAYS, TOO_MANY, Hold, Lag
from ._equations import Row
from ._regression import MOST_DEGREE, TOO_HIGH
from ._series import Trajectory

# Far more than any use needs; `WHY` says what more would cost.
MOST = {"width": 10_000, "depth": 100, "degree": MOST_DEGREE, "ensemble": 1000, "steps": 10**6}
WHY = {
    "width": "A layer has the square of it in weights.",
    "depth": "Layers are compiled one by one.",
    "degree": TOO_HIGH,
    "ensemble": "Each is trained, which takes that many times as long; 5 to 30 make a band.",
    "steps": "More in an interval are shorter than single precision resolves.",
}
# Of all networks together: with Adam's averages and gradients 16 GB.
MOST_WEIGHTS = 10**9


class IdentifyError(RuntimeError):
    """A model cannot be fitted, used or loaded; the message says why and what to do."""


def check_arguments(model: Any) -> None:
    """Those of `Identifier`, which keeps them as they are until it is fitted."""
    if isinstance(model.field, str) and model.field not in ("mlp", "library"):
        raise ValueError(
            f"Identifier got field={model.field!r}; expected 'mlp', 'library', or a field of your "
            "own, f(t, y, args, *, history)."
        )
    if not isinstance(model.field, str) and not callable(model.field):
        raise TypeError(f"Identifier got field={model.field!r}, which cannot be called.")
    delays = model.delays
    if not isinstance(delays, Sequence) or not all(isinstance(d, (Hold, Lag)) for d in delays):
        raise TypeError(f"Identifier got delays={delays!r}; expected a list of Hold and Lag.")
    check_whole("Identifier", "the number of delays", len(delays), 0, MOST_DELAYS, TOO_MANY)
    counts = ("width", "depth", "degree", "ensemble", "iterations", "batch_size", "patience")
    for name in (*counts, *(n for n in ("window", "steps") if getattr(model, n) is not None)):
        most, why = MOST.get(name, MOST_COUNT), WHY.get(name, "")
        check_whole("Identifier", name, getattr(model, name), 1, most, why)
    weights = model.ensemble * model.depth * model.width**2
    if model.field == "mlp" and weights > MOST_WEIGHTS:
        raise ValueError(
            f"Identifier got width={model.width}, depth={model.depth} and "
            f"ensemble={model.ensemble}, which make {weights:.3g} weights; expected at most "
            f"{MOST_WEIGHTS:.0e}, for which training takes 16 GB. Lower one of them."
        )
    if not is_number(model.learning_rate) or model.learning_rate <= 0:
        raise ValueError(
            f"Identifier got learning_rate={model.learning_rate!r}; expected a positive number."
        )
    check_solver(model.solver)
    if not is_number(model.validation) or not 0 < model.validation < 1:
        raise ValueError(
            f"Identifier got validation={model.validation!r}; expected a share between 0 and 1."
        )
    if not is_whole(model.seed) or not 0 <= model.seed <= 2**31 - model.ensemble:
        raise ValueError(
            f"Identifier got seed={model.seed!r}; expected a whole number >= 0, below 2^31."
        )


_MORE_DIGITS = (
    'call jax.config.update("jax_enable_x64", True) first (for the command: set JAX_ENABLE_X64=1 '
    "in its environment)."
)


def check_precision(trajectories: Sequence[Trajectory], origin: float) -> None:
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
        i = lost[0]
        raise ValueError(
            f"Column {i} of ys goes up to {largest[i]:g} and varies by {spread[i]:.3g} only: too "
            f"many digits for {dtype}. Subtract its mean ({states[:, i].mean():g}), or "
            f"{_MORE_DIGITS}"
        )


def check_sizes(trajectories: Sequence[Trajectory], degree: int) -> None:
    """The terms of an equation are numbers of this precision, too."""
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
                    f"Column {i} of {name} goes up to {size:g}, and terms of degree {degree} in it "
                    f"are too {'large' if power > 0 else 'small'} for {dtype}. Multiply it by "
                    f"1e{-round(power):d}, or {_MORE_DIGITS}"
                )


def check_coefficients(found: Float[np.ndarray, "terms states"]) -> None:
    """Columns of very different units may call for numbers that this precision does not have."""
    info, sizes = jnp.finfo(jnp.zeros(()).dtype), np.abs(found[found != 0])
    if sizes.size and not (info.tiny < sizes.min() and sizes.max() < info.max):
        raise ValueError(
            f"The equation has coefficients from {sizes.min():.1g} to {sizes.max():.1g}, which is "
            f"too wide for {info.dtype}. Multiply the columns by powers of ten, so that all of "
            f"them go up to about 1, or {_MORE_DIGITS}"
        )


def check_held_out(held: Row) -> None:
    unseen = np.flatnonzero(held.weights.sum(axis=(0, 1)) == 0)
    if unseen.size:
        raise IdentifyError(
            f"Column {unseen[0]} of ys was not measured in the part that is held out, so its error "
            "cannot be told. Give a larger `validation`, or leave the column out."
        )
