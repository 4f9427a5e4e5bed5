"""The equations of `lagrax explore`, their sliders, and where these are."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..systems import SYSTEMS, DigitalControl, HeldSystem, LinearSystem, System
from .analyse import parameters_of

# How many knots are shown where these are shown for themselves.
KNOTS = 60


class ExploreError(ValueError):
    """The page cannot be shown as asked; the message says why and what to do."""


class Slider(NamedTuple):
    """A number that can be moved between `low` and `high`."""

    name: str
    low: float
    high: float
    step: float
    value: float
    about: str

    def clipped(self, value: float) -> float:
        """The nearest value that the slider has."""
        steps = round((min(max(value, self.low), self.high) - self.low) / self.step)
        return round(self.low + steps * self.step, 10)


@dataclasses.dataclass(frozen=True)
class Subject:
    """An equation of the page. `t1` is the end of its trajectory; `top` is where its diagram is cut
    off, of which most would else be empty."""

    name: str
    title: str
    equation: str
    sliders: tuple[Slider, ...]
    t1: float
    top: float = math.inf

    @property
    def axes(self) -> list[str]:
        """The parameters over which there is a diagram, the first by default."""
        return [s.name for s in self.sliders if s.name not in ("lag", "start")]

    @property
    def states(self) -> list[str]:
        return ["x"] if self.usual_start.size == 1 else ["x₁", "x₂"]

    @property
    def diagram_title(self) -> str:
        if issubclass(self.system, LinearSystem):
            return "Multipliers: below 1 it dies out"
        where = "where it stays" if issubclass(self.system, HeldSystem) else "highest and lowest"
        return f"Bifurcation diagram: {where}"

    @property
    def values(self) -> dict[str, float]:
        return {s.name: s.value for s in self.sliders}

    @property
    def system(self) -> type[System]:
        return SYSTEMS[self.name]

    @functools.cached_property
    def usual_start(self) -> Float[np.ndarray, "..."]:
        made: Any = self.system
        return np.array(made().y0, float)

    @functools.cached_property
    def intervals(self) -> int:
        """Enough for the shortest period that the slider has, and for all knots that are shown."""
        shortest = next(s.low for s in self.sliders if s.name == "tau")
        return max(KNOTS, math.ceil(self.t1 / shortest))


_ABOUT = {
    "a": "growth",
    "tau": "τ, the period of the hold",
    "lag": "samples before the last",
    "gain": "factor of the feedback",
    "omega": "ω, the frequency",
    "zeta": "ζ, the damping",
    "k": "held feedback",
    "beta": "β, the production",
    "gamma": "γ, the decay",
    "n": "steepness",
    "start": "the first state",
}

_LAGGED = {"tau": "τ, the delay"}


def _subject(
    name: str, title: str, equation: str, t1: float, top: float = math.inf, **ranges: Any
) -> Subject:
    about = _ABOUT if issubclass(SYSTEMS[name], HeldSystem) else _ABOUT | _LAGGED
    made: Any = SYSTEMS[name]
    start = round(float(np.ravel(made().y0)[0]), 6)  # of a float32
    values = parameters_of(name) | {"lag": 0.0, "start": start}
    sliders = (
        Slider(n, low, high, step, values[n], about[n]) for n, (low, high, step) in ranges.items()
    )
    return Subject(name, title, equation, tuple(sliders), t1, top)


@functools.cache
def subjects() -> dict[str, Subject]:
    """All equations, by name, with the ranges in which they are worth looking at."""
    found = [
        _subject(
            "population",
            "Population, with seasons",
            "x′ = a x(t) (1 − x(⌊t/τ⌋τ − lag·τ))",
            30.0,
            top=6.0,
            a=(0.2, 4.0, 0.01),
            tau=(0.2, 1.5, 0.01),
            lag=(0.0, 3.0, 1.0),
            start=(0.05, 2.0, 0.01),
        ),
        _subject(
            "linear",
            "Linear, with two holds",
            "x₁′ = x₂,  x₂′ = −x₁ − 0.4 x₂(⌊t/τ⌋τ) − 0.2 x₂(⌊t/τ⌋τ − τ)",
            40.0,
            tau=(0.2, 4.0, 0.01),
            start=(-2.0, 2.0, 0.01),
        ),
        _subject(
            "digital-control",
            "Digital control of a mass",
            "x₁″ = −gain (0.5 x₁ + x₁′)(⌊t/τ⌋τ)",
            30.0,
            gain=(0.1, 4.0, 0.01),
            tau=(0.2, 3.0, 0.01),
            start=(-2.0, 2.0, 0.01),
        ),
        _subject(
            "held-oscillator",
            "Held oscillator",
            "x₁″ + 2ζω x₁′ + ω² x₁ = −k x₁(⌊t/τ⌋τ)",
            40.0,
            k=(-1.0, 2.0, 0.01),
            tau=(0.2, 3.0, 0.01),
            omega=(0.2, 3.0, 0.01),
            zeta=(0.0, 1.0, 0.01),
            start=(-2.0, 2.0, 0.01),
        ),
        _subject(
            "hutchinson",
            "Hutchinson (lag)",
            "x′ = a x(t) (1 − x(t − τ))",
            60.0,
            a=(0.2, 3.0, 0.01),
            tau=(0.5, 2.0, 0.01),
            start=(0.05, 2.0, 0.01),
        ),
        _subject(
            "mackey-glass",
            "Mackey–Glass (lag)",
            "x′ = β x(t − τ) / (1 + x(t − τ)ⁿ) − γ x(t)",
            500.0,
            tau=(5.0, 30.0, 0.1),
            beta=(0.05, 0.4, 0.005),
            gamma=(0.05, 0.2, 0.005),
            n=(2.0, 20.0, 0.1),
            start=(0.1, 1.5, 0.01),
        ),
    ]
    return {subject.name: subject for subject in found}


class Place(NamedTuple):
    """Where all sliders are, and which parameter is on the diagram's axis."""

    subject: Subject
    values: dict[str, float]
    axis: str

    @property
    def start(self) -> Float[Array, "..."]:
        """The slider moves the first component, and the others begin as they always do."""
        first = self.subject.usual_start.copy()
        first.flat[0] = self.values["start"]
        return jnp.asarray(first)

    @property
    def numbers(self) -> dict[str, Any]:
        """The parameters as arrays, so that another value is no other program."""
        given = {n: v for n, v in self.values.items() if n not in ("start", "lag")}
        return {n: jnp.asarray(v, float) for n, v in given.items()}

    @property
    def lag(self) -> int:
        return int(self.values.get("lag", 0))

    @property
    def tau(self) -> float:
        return self.values["tau"]

    @property
    def slider(self) -> Slider:
        """That of the parameter on the axis."""
        return next(s for s in self.subject.sliders if s.name == self.axis)

    @property
    def diagram_key(self) -> str:
        """What the diagram depends on: all but the parameter on its axis."""
        others = {n: v for n, v in self.values.items() if n != self.axis}
        return f"{self.subject.name} over {self.axis} at {others}"

    def made(self) -> System:
        return _made(self.subject.name, self.lag, self.numbers)

    def over_axis(self) -> eqx.Partial:
        """The equation as a function of the parameter on the axis. It is no closure, so that the
        program compiled for it is found again."""
        return eqx.Partial(_varied, (self.subject.name, self.lag, self.axis), self.numbers)


def place(name: Any, values: Mapping[Any, Any], axis: Any = None) -> Place:
    """Checks what a browser sent: numbers outside of a slider's range are moved into it, what is
    left out has its usual value, and anything else is refused."""
    subject = subjects().get(name) if isinstance(name, str) else None
    if subject is None:
        raise ExploreError(f"No equation {name!r:.40}: expected one of {', '.join(subjects())}.")
    known = {s.name: s for s in subject.sliders}
    found = subject.values
    for key, value in values.items():
        if key not in known:
            raise ExploreError(f"{name} has no slider {key!r:.40}: it has {', '.join(known)}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Whole numbers may be too large for a float.
        if not is_number or not abs(value) < 1e300:
            raise ExploreError(f"{key} = {value!r:.40}: expected a finite number.")
        found[key] = known[key].clipped(float(value))
    return Place(subject, found, axis if axis in subject.axes else subject.axes[0])


def _made(name: str, lag: int, numbers: Mapping[str, Any]) -> System:
    given = dict(numbers) | ({"lag": lag} if name == "population" else {})
    if "gain" in given:
        given["K"] = given.pop("gain") * DigitalControl().K
    return SYSTEMS[name](**given)


def _varied(fixed: tuple[str, int, str], numbers: Mapping[str, Any], value: Any) -> System:
    name, lag, axis = fixed
    return _made(name, lag, {**numbers, axis: value})
