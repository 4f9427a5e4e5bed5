"""The number of equal steps that training takes, from the sampling and the equation's own speed."""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._solve.delays import Delay
from ._dataset import Dataset
from ._lookback import find_kinks, find_sources, is_periodic, read_period
from ._series import Trajectory, interpolate
from ._simulation import WindowArrays

# A step of Tsit5 over this share of the shortest time scale has a relative error of 1e-4, and over
# the other one of a few per cent, where training starts again with more steps.
SHARE, MOST_SHARE = 0.7, 1.5
# In an interval between knots. More cost as much as they gain.
MOST_STEPS = 256
# Samples at which the speed is measured.
SAMPLES = 256


def find_longest_interval(
    delays: Sequence[Delay], windows: Sequence[WindowArrays], inputs: bool
) -> float:
    """The longest time between two knots in the windows. Inputs jump at each sample."""
    if inputs:
        return max(float(np.diff(w.ts, axis=1).max()) for w in windows)
    taus = [read_period(d) for d in delays if is_periodic(d)]
    if not taus and delays:
        kinks = find_kinks(delays, -np.inf, np.inf)
        taus = [float(np.diff(kinks).max(initial=0.0))] if len(kinks) > 1 else []
    spans = [b - a for w in windows for a, b in w.spans]
    return min([*taus, max(spans)])


def choose_steps(longest: float, gap: float, delays: Sequence[Delay], inputs: bool) -> int:
    """One step for every two samples in an interval of length `longest`."""
    if inputs:
        return 2
    return int(np.clip(np.ceil(longest / (2 * gap)), *((2, 64) if delays else (4, 4096))))


def measure_speed(field: Callable, dataset: Dataset, delays: Sequence[Delay]) -> float:
    """The largest rate at which a state changes with the state itself, near the measurements.

    It is the norm of the Jacobian in units of each state. Its inverse is the shortest time scale.
    """
    parts = [_find_variables(t, delays) for t in dataset.shifted]
    ts, ys, us, *history = (np.concatenate(x) for x in zip(*parts, strict=True))
    stride = -(-len(ts) // SAMPLES)
    as_jax = lambda x: jnp.asarray(x[::stride], float)
    slopes = _find_jacobians(
        field, as_jax(ts), as_jax(ys), as_jax(us) if us.shape[1] else None, [*map(as_jax, history)]
    )
    scaled = np.asarray(slopes, float) * dataset.scale / dataset.scale[:, None]
    known = scaled[np.isfinite(scaled).all(axis=(1, 2))]
    return float(np.linalg.norm(known, 2, axis=(1, 2)).max(initial=0.0))


def _find_variables(trajectory: Trajectory, delays: Sequence[Delay]) -> list[np.ndarray]:
    """The arguments of a field in the middle of each gap between two samples."""
    ts = trajectory.ts
    middles = (ts[:-1] + ts[1:]) / 2
    kinks = find_kinks(delays, ts[0], ts[-1])
    sources = [find_sources(d, middles, middles) for d in delays]
    states = [interpolate(trajectory, times, kinks) for times in (middles, *sources)]
    return [middles, states[0], trajectory.us[:-1], *states[1:]]


@eqx.filter_jit
def _find_jacobians(
    field: Callable, ts: Array, ys: Array, us: Array | None, history: Sequence[Array]
) -> Float[Array, "samples states states"]:
    def slope(t, y, u, past):
        held = getattr(field, "hold", lambda past: past)(tuple(past))
        return jax.jacfwd(lambda y: field(t, y, u, history=held))(y)

    return jax.vmap(slope)(ts, ys, us, history)


def count_steps(speed: float, longest: float, steps: int) -> int:
    """The steps that an equation of this speed needs in an interval, at least `steps`.

    A little more speed than they are right for does not matter.
    """
    if longest * speed <= MOST_SHARE * steps:
        return steps
    return min(math.ceil(longest * speed / SHARE), MOST_STEPS)
