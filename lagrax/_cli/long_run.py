"""The long run of an equation with holds, in words, tables and pictures."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._solve.delays import Hold, RealScalar
from ..analysis import (
    KnotMap,
    Orbit,
    Start,
    bifurcation,
    cobweb,
    knot_map,
    lyapunov,
    periodic_orbits,
)
from ..analysis._exponents import least_of_chaos
from ..identify import Identifier
from ..plotting import Figure
from ..systems import LinearSystem, System

# Longer cycles are reported, but their points are not computed.
LONGEST_CYCLE = 8
# Knots before and while a turn is measured, and the share by which an orbit on a curve may vary.
SETTLED, TURNED, STEADY = 4_000, 2_000, 0.01


def precisely() -> contextlib.AbstractContextManager:
    """Turns on float64, without which a slow approach looks like a period."""
    return jax.enable_x64(True)


class LongRun(NamedTuple):
    """The long run of the orbit from `start`.

    - `orbits`: The fixed points, and the cycle to which the orbit settles.
    - `period`: The period of that cycle, 0 if there is none.
    - `exponents`: The Lyapunov exponents for one period of the hold, averaged over `iterates`.
    - `at_rest`: Whether `start` is a fixed point itself, to the last digit.
    - `left_out`: The number of orbits outside the range of the measurements.
    - `unit`: The size of states. Numbers that are tiny next to it are printed as 0.
    - `turn`: The knots that one turn round a closed curve takes on average, or None.
    """

    start: np.ndarray
    orbits: list[Orbit]
    period: int
    exponents: np.ndarray
    linear: bool
    cobweb: Figure | None
    iterates: int = 10_000
    at_rest: bool = False
    left_out: int = 0
    unit: float = 1.0
    turn: float | None = None

    @property
    def sentence(self) -> str:
        """The long run in a sentence."""
        exponent, each = float(self.exponents[0]), "in each period of the hold"
        if self.linear:
            verb = "dies out" if exponent < 0 else "grows"
            if exponent == 0:
                return "From almost every start it neither dies out nor grows."
            factor = f"by a factor of {np.exp(exponent):.4g} {each} in the end"
            return f"From almost every start it {verb}, {factor}."
        begin = f"From {format_state(self.start, self.unit)}"
        if not np.isfinite(exponent):
            return f"{begin} it runs away to infinity."
        if self.underflows:
            return (
                f"{begin} it falls below the smallest floating-point number and is rounded to 0, "
                "which it cannot leave. The exact orbit does, so its long run is not known."
            )
        if self.at_rest and self.period and exponent > least_of_chaos(self.iterates):
            return (
                f"{begin} it does not move. This fixed point is unstable, so nearby orbits leave."
            )
        if self.period == 1:
            return f"{begin} it settles at a fixed point."
        if self.period > 1:
            return f"{begin} it settles into a cycle that repeats after {self.period} knots."
        if exponent > least_of_chaos(self.iterates):
            return (
                f"{begin} it is chaotic. It never repeats, and nearby orbits part by a factor of "
                f"{np.exp(exponent):.4g} {each}."
            )
        if self.turn is not None:
            return (
                f"{begin} it goes round a closed curve (an invariant curve) without repeating, "
                f"once in about {self.turn:.3g} knots."
            )
        rest = "It settles slowly"
        # An orbit of one number cannot go round a curve.
        rest += ", or goes round an invariant curve." if len(self.exponents) > 1 else "."
        return f"{begin} it does not repeat within 64 knots and is not chaotic. {rest}"

    @property
    def underflows(self) -> bool:
        """Whether the orbit repeats although nearby orbits part. It then stays by rounding, as a
        population that should fall to 1e-400."""
        repeats = self.period > 0 and not self.linear and not self.at_rest
        return repeats and float(self.exponents[0]) > least_of_chaos(self.iterates)

    @property
    def absence(self) -> str:
        """What there is to say without orbits."""
        where = " near the measurements" if self.left_out else ""
        return f"No fixed point was found{where}."

    @property
    def omission(self) -> str:
        """The number of orbits left out, in a sentence."""
        more = " more" if self.orbits else ""
        number = (
            f"One{more} orbit is" if self.left_out == 1 else f"{self.left_out}{more} orbits are"
        )
        return f"{number} left out, being far from all measurements."

    def points(self, orbit: Orbit) -> str:
        """The states of an orbit at the knots, in order."""
        states = np.asarray(orbit.points, float)[:, : len(self.start)]
        return " → ".join(format_state(state, self.unit) for state in states)

    def rows(self) -> list[list[str]]:
        """A row for each orbit, with its states, period, multipliers and stability."""
        return [
            [
                self.points(o),
                str(o.period),
                ", ".join(map(format_number, o.multipliers)),
                o.stability,
            ]
            for o in self.orbits
        ]

    @property
    def figures(self) -> list[Figure]:
        """The cobweb, if there is one."""
        return [self.cobweb] if self.cobweb else []

    def lines(self) -> list[str]:
        """The lines to print."""
        kind = lambda o: "fixed point" if o.period == 1 else f"cycle of {o.period}"
        found = [f"{kind(o)} {self.points(o)}, {o.verdict}" for o in self.orbits]
        found = found or [self.absence]
        found += [self.omission] if self.left_out else []
        which = "exponent" if len(self.exponents) == 1 else "exponents"
        exponents = ", ".join(f"{x:.5g}" for x in self.exponents)
        return [*found, self.sentence, f"Lyapunov {which} for one period of the hold: {exponents}"]

    def to_json(self) -> dict[str, Any]:
        orbits = [
            {
                "period": o.period,
                "points": np.asarray(o.points, float).tolist(),
                "multipliers": [[float(m.real), float(m.imag)] for m in o.multipliers],
                "stability": o.stability,
                "verdict": o.verdict,
            }
            for o in self.orbits
        ]
        exponents = [float(x) if np.isfinite(x) else None for x in self.exponents]
        return {
            "sentence": self.sentence,
            "orbits": orbits,
            "period": self.period,
            "exponents": exponents,
        }


def format_state(numbers: np.ndarray, unit: float = 1.0) -> str:
    shown = [f"{0.0 if abs(x) < 1e-12 * unit else x:.5g}" for x in np.ravel(numbers)]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def format_number(z: complex) -> str:
    if abs(z.imag) <= 1e-9 * abs(z):
        return f"{z.real:.5g}"
    return f"{z.real:.5g}{'+' if z.imag > 0 else '−'}{abs(z.imag):.5g}i"


def long_run(equation: KnotMap | System, start: Start = None, iterates: int = 10_000) -> LongRun:
    """Finds the long run of an equation from `start`, by default its own."""
    f = equation if isinstance(equation, KnotMap) else knot_map(equation)
    begin = np.asarray(f.point() if start is None else f.point(start), float)
    begin = begin[: f.size // f.lags]
    orbits = periodic_orbits(f)
    if isinstance(equation, LinearSystem):
        moduli = np.abs(np.linalg.eigvals(np.asarray(equation.knot_matrix, float)))
        exponents = np.sort(np.log(np.maximum(moduli, 1e-300)))[::-1]
        return LongRun(begin, orbits, 1 if exponents[0] < 0 else 0, exponents, True, None)
    settled = bifurcation(lambda _: f, [0.0], start)
    period = int(settled.periods[0])
    if not np.all(np.isfinite(settled.states)):
        return LongRun(begin, orbits, 0, np.full(f.size, np.nan), False, _draw_cobweb(f, start))
    if 1 < period <= LONGEST_CYCLE:
        last = np.asarray(f.orbit(start, 1, 1_500))
        orbits = orbits + periodic_orbits(f, period, last)
    exponents = np.asarray(lyapunov(f, start, iterates=iterates), float)
    picture, at_rest = _draw_cobweb(f, start), _is_at_rest(settled.states, begin)
    chaotic = exponents[0] > least_of_chaos(iterates)
    turn = None if period or chaotic or f.size == 1 else find_turn(f, start)
    run = LongRun(begin, orbits, period, exponents, False, picture, iterates, at_rest)
    return run._replace(turn=turn)


def find_turn(f: KnotMap, start: Start = None) -> float | None:
    """The mean number of knots that an orbit on a closed curve takes to go round once, the inverse
    of its rotation number.

    None if the orbit still shrinks or grows, or if it does not always turn the same way around its
    mean, as seen in its first number and that at the knot before.
    """
    x = np.asarray(f.orbit(start, TURNED, SETTLED), float).reshape(TURNED, -1)[:, 0]
    early, late = np.ptp(x[: TURNED // 2]), np.ptp(x[TURNED // 2 :])
    if not late > 0 or abs(late / early - 1) > STEADY:
        return None
    x = x - x.mean()
    angles = np.arctan2(x[:-1], x[1:])
    turns = (np.diff(angles) + np.pi) % (2 * np.pi) - np.pi
    mean = abs(float(turns.mean()))
    return 2 * np.pi / mean if np.all(turns > 0) or np.all(turns < 0) else None


def _is_at_rest(states: jax.Array, start: np.ndarray) -> bool:
    return bool(np.all(np.asarray(states, float)[0] == start))


def _draw_cobweb(f: KnotMap, start: Start) -> Figure | None:
    orbit = np.asarray(f.orbit(start, 61))
    return cobweb(f, start) if f.size == 1 and np.all(np.isfinite(orbit)) else None


# --- learned equations ----------------------------------------------------------------------------


def why_no_map(model: Identifier) -> str | None:
    """A sentence on why a learned equation has no knot map, or None if it has one."""
    delays = model.delays_
    if model.series_[0].us.shape[1]:
        return (
            "The equation has inputs, and the next knot depends on them, too. So there is no map "
            "from knot to knot to analyse."
        )
    if not delays:
        return (
            "The equation has no delays, so it has no knots, and no map from knot to knot to "
            "analyse."
        )
    if not all(isinstance(d, Hold) and d.times is None for d in delays):
        return (
            "The equation has a lag or irregular instants, so finitely many knots do not determine "
            "the next one. Only an equation with holds of one period has a map to analyse."
        )
    if len({float(np.asarray(d.tau)) for d in delays}) > 1:
        return (
            "The equation has holds of different periods, so the step from one knot to the next "
            "varies. Only an equation with holds of one period has a map to analyse."
        )
    return None


def learned_map(model: Identifier, tau: RealScalar | None = None, unit: float = 1.0) -> KnotMap:
    """The knot map of a learned equation, the first of an ensemble.

    `tau` replaces the learned period, and states are multiples of `unit`. The map starts at the end
    of the series, where all states are known.
    """
    reason = why_no_map(model)
    if reason is not None:
        raise ValueError(reason)
    exact = lambda x: jnp.asarray(x, float) if eqx.is_inexact_array(x) else x
    period = jnp.asarray(model.delays_[0].tau if tau is None else tau, float)
    field, series = jax.tree.map(exact, model.equation_), model.series_[-1]
    return knot_map(
        field if unit == 1 else _InUnit(field, unit),
        jnp.asarray(series.filled[series.last_known] / unit, float),
        delays=[Hold(period, lag=d.lag) for d in model.delays_ if isinstance(d, Hold)],
        solver=model.solver,
        steps=model.steps_,
    )


class _InUnit(eqx.Module):
    """A field whose states are multiples of `unit`."""

    field: Callable
    unit: float

    def __call__(self, t: Any, y: Any, args: Any, *, history: Any = ()) -> Any:
        held = tuple(self.unit * z for z in history)
        return self.field(t, self.unit * y, args, history=held) / self.unit


def _unit_of(states: np.ndarray) -> float:
    """A power of ten that gives small states a size near one, as the search for orbits expects.
    Large states need none."""
    largest = float(np.abs(states).max())
    return 10.0 ** np.floor(np.log10(largest)) if largest < 0.01 else 1.0


def _long_run_in(unit: float, model: Identifier, tau: RealScalar | None) -> LongRun:
    found = long_run(learned_map(model, tau, unit), iterates=2_000)
    if unit == 1:
        return found
    orbits = [Orbit(o.points * unit, o.multipliers) for o in found.orbits]
    picture = found.cobweb and _draw_cobweb(learned_map(model, tau), None)
    return found._replace(start=found.start * unit, orbits=orbits, cobweb=picture, unit=unit)


def long_run_of(model: Identifier, tau: RealScalar | None = None) -> LongRun:
    """Finds the long run of a learned equation from the end of its series.

    Orbits are left out if they are further from all measurements than these are from each other.
    """
    states = np.concatenate([t.filled for t in model.series_])
    found = _long_run_in(_unit_of(states), model, tau)
    low, high = states.min(axis=0), states.max(axis=0)
    width = high - low

    def is_near(orbit: Orbit) -> bool:
        points = np.asarray(orbit.points, float).reshape(-1, len(low))
        return bool(np.all((points >= low - width) & (points <= high + width)))

    near = [orbit for orbit in found.orbits if is_near(orbit)]
    return found._replace(orbits=near, left_out=len(found.orbits) - len(near))
