"""The long run of an equation with lags, or without delays, in words and tables."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._solve.delays import Lag
from ..analysis import Cycle, LaggedEquation, characteristic_roots, find_cycle, floquet_multipliers
from ..analysis._cycles import find_return, guess_cycle, leave_out_shift, sample_late
from ..analysis._equilibria import equilibria_from
from ..analysis._lagged import as_lagged
from ..identify import Identifier
from ..plotting import Figure, Line, Panel
from ..systems import System
from .long_run import format_number, format_state

# Roots that are kept for each equilibrium.
_ROOTS = 6


class LaggedRun(NamedTuple):
    """The long run of the solution from `start`.

    - `equilibria`: Each with its rightmost characteristic roots.
    - `end`: One of "rest", "cycle", "no period" and "infinity".
    - `cycle`: The cycle to which the solution settles, if any, with its Floquet multipliers.
    - `span`: The time for which the equation was solved.
    """

    start: np.ndarray
    equilibria: list[tuple[np.ndarray, np.ndarray]]
    end: str
    cycle: Cycle | None
    multipliers: np.ndarray
    span: float
    names: list[str]

    @property
    def sentence(self) -> str:
        """The long run in a sentence."""
        begin = f"From {format_state(self.start)}"
        if self.cycle is not None:
            return f"{begin} it settles into a cycle of period {float(self.cycle.period):.6g}."
        return {
            "rest": f"{begin} it comes to rest.",
            "infinity": f"{begin} it runs away to infinity within a time of {self.span:g}.",
        }.get(
            self.end,
            f"{begin} it does not repeat within a time of {self.span / 4:g}. It may be chaotic.",
        )

    @property
    def figures(self) -> list[Figure]:
        """The cycle over one period."""
        if self.cycle is None:
            return []
        ts = np.linspace(0.0, float(self.cycle.period), 401)
        ys = np.asarray(self.cycle.evaluate(ts), float).reshape(len(ts), -1)
        colours = ("blue", "orange", "green", "purple", "sky", "amber")
        marks = [
            Line(ts, y, name if len(self.names) > 1 else None, colours[i % len(colours)])
            for i, (name, y) in enumerate(zip(self.names, ys.T, strict=True))
        ]
        return [Figure("cycle", "One period of the cycle.", [Panel(marks, "", "time", "state")])]

    def lines(self) -> list[str]:
        """The lines to print."""
        found = [f"equilibrium {format_state(y)}: {_judge(r)}" for y, r in self.equilibria]
        found = [*(found or ["No equilibrium was found."]), self.sentence]
        if self.cycle is not None:
            largest = leave_out_shift(self.multipliers)[0]
            stable = "stable" if abs(largest) < 1 else "unstable"
            found.append(f"the cycle is {stable} (largest multiplier {format_number(largest)})")
        return found

    def to_json(self) -> dict[str, Any]:
        pairs = lambda zs: [[float(z.real), float(z.imag)] for z in zs if np.isfinite(z)]
        equilibria = [
            {"state": y.tolist(), "roots": pairs(roots), "stable": bool(roots[0].real < 0)}
            for y, roots in self.equilibria
        ]
        cycle = None
        if self.cycle is not None:
            period = float(self.cycle.period)
            cycle = {"period": period, "multipliers": pairs(self.multipliers)}
        return {"sentence": self.sentence, "equilibria": equilibria, "cycle": cycle}


def _judge(roots: np.ndarray) -> str:
    first = roots[0]
    how = "oscillate and " if abs(first.imag) > 1e-9 * abs(first) else ""
    stable = first.real < 0
    verdict = (
        f"{'stable' if stable else 'unstable'}: deviations {how}{'decay' if stable else 'grow'}"
    )
    return f"{verdict} (rightmost root {format_number(first)})"


def find_lagged_run(
    equation: System | LaggedEquation, names: list[str], around: np.ndarray | None = None
) -> LaggedRun:
    """Finds the long run from `y0`. Equilibria are sought around it, or around these states."""
    f = as_lagged(equation)
    start = np.asarray(f.vector(), float)
    equilibria = []
    for y in find_equilibria(f, around):
        count = _ROOTS if len(f.taus) else f.size
        roots = characteristic_roots(f, f.state(jnp.asarray(y)), count=count)
        equilibria.append((y, np.asarray(roots)))
    span = _choose_span(f, [roots for _, roots in equilibria])
    states = sample_late(f, span)
    run = LaggedRun(start, equilibria, "no period", None, np.empty(0), span, names)
    if not np.all(np.isfinite(states)):
        return run._replace(end="infinity")
    # Near a Hopf point deviations decay slowly.
    quarter = len(states) // 4
    first, last = np.ptp(states[:quarter], axis=0), np.ptp(states[-quarter:], axis=0)
    at_rest = np.max(last) <= 1e-6 * np.max(np.abs(states)) or np.max(last) < 0.5 * np.max(first)
    if at_rest:
        return run._replace(end="rest")
    if find_return(states) is None:
        return run
    try:
        cycle = find_cycle(f, guess_cycle(f, states, span), intervals=40)
    except ValueError:
        return run
    multipliers = np.asarray(floquet_multipliers(f, cycle))
    return run._replace(end="cycle", cycle=cycle, multipliers=multipliers)


def find_equilibria(f: LaggedEquation, around: np.ndarray | None = None) -> list[np.ndarray]:
    """Equilibria that Newton's method finds from 64 starts, always the same."""
    start = np.asarray(f.vector(), float)
    low, high = (start, start) if around is None else (around.min(axis=0), around.max(axis=0))
    width = np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))
    width = np.where(width > 0, width, 1.0)
    spread = np.random.default_rng(0).uniform(size=(63, f.size))
    starts = np.concatenate([start[None], low - width + spread * (high - low + 2 * width)])
    found: list[np.ndarray] = []
    for y in np.asarray(equilibria_from(f, jnp.asarray(starts)), float):
        near = (np.max(np.abs(y - other)) < 1e-6 * np.max(width) for other in found)
        if np.all(np.isfinite(y)) and not any(near):
            found.append(y)
    return sorted(found, key=tuple)


def _choose_span(f: LaggedEquation, roots: list[np.ndarray]) -> float:
    """100 of the longest lags and 100 turns of the slowest oscillation."""
    lags = float(jnp.max(f.taus)) if len(f.taus) else 0.0
    speeds = [max(abs(r[0].imag), 0.1 * abs(r[0].real)) for r in roots]
    slowest = min((s for s in speeds if s > 0), default=1.0)
    return max(100 * lags, 0.0 if lags else 100 * 2 * np.pi / slowest)


# --- learned equations ----------------------------------------------------------------------------


def has_lags_alone(model: Identifier) -> bool:
    """Whether a learned equation has no holds and no inputs."""
    return not model.series_[0].us.shape[1] and all(isinstance(d, Lag) for d in model.delays_)


def learned_lagged(model: Identifier, **taus: Any) -> LaggedEquation:
    """A learned equation with lags, with the lag `tau` in place of the learned one."""
    series = model.series_[-1]
    lags = [Lag(taus.get("tau", d.tau)) for d in model.delays_]
    y0 = jnp.asarray(series.filled[series.last_known], float)
    return LaggedEquation(_in_double(model.equation_), y0, delays=lags)


def _in_double(field: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, float) if eqx.is_inexact_array(x) else x, field)
