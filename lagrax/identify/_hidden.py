"""States that are not measured.

They follow the equation and have no measurements, so they show only by what they do to the others.
Training fits them at the start of each window. Before a prediction they are estimated from the
measurements up to its start, and no later ones: a window that ends there is fitted by its own start
under the learned equation (moving-horizon estimation).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._fields import Equation
from ._optimise import WindowLoss, fit_starts
from ._series import Trajectory
from ._simulation import SolveSetup, WindowArrays, solve_window, stack_windows, to_jax
from ._windows import Window


def add_hidden(series: Sequence[Trajectory], number: int) -> list[Trajectory]:
    """The series with so many states more, which have no values and are taken to be 0 at first."""
    return [_widen(t, number) for t in series]


def _widen(t: Trajectory, number: int) -> Trajectory:
    nothing = np.full((len(t.ts), number), np.nan)
    names = tuple(f"hidden{i + 1}" for i in range(number)) if t.columns.states else ()
    return t._replace(
        ys=np.concatenate([t.ys, nothing], axis=1),
        filled=np.concatenate([t.filled, 0 * np.nan_to_num(nothing)], axis=1),
        columns=t.columns._replace(states=(*t.columns.states, *names)),
    )


def estimate_hidden(
    equation: Equation, loss: WindowLoss, trajectory: Trajectory, window: int, number: int
) -> Trajectory:
    """The trajectory with estimates of its last `number` states.

    The estimate at each sample rests on the `window` samples before it. Those of the first window
    rest on all of that one.
    """
    last = len(trajectory.ts) - 1
    size = min(window, last)
    windows = [Window(0, end - size, end) for end in range(size, last + 1)]
    arrays = to_jax(stack_windows([trajectory], windows, []))
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(equation, eqx.is_inexact_array)))
    _, starts, _ = fit_starts(equation, loss, arrays, np.ones(count, bool))
    states = np.asarray(
        _solve_from(equation, loss.setup, arrays, jnp.asarray(starts, float)), float
    )
    filled = trajectory.filled.copy()
    filled[:size, -number:] = states[0, :size, -number:]
    filled[size:, -number:] = states[:, -1, -number:]
    return trajectory._replace(filled=filled)


@eqx.filter_jit
def _solve_from(
    equation: Equation, setup: SolveSetup, windows: WindowArrays, starts: Array
) -> Float[Array, "windows samples states"]:
    def one(window: WindowArrays, start: Array) -> Array:
        moved = window._replace(past_ys=window.past_ys.at[-1].set(start))
        return solve_window(equation, setup, moved)

    return jax.vmap(one)(windows, starts)
