"""The equations of `lagrax explore`, their sliders and the values of these."""

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
from .analyse import describe_parameter, parameters_of

# The number of knots in plots of knots.
KNOTS = 60


class ExploreError(ValueError):
    """The page cannot be shown as asked; the message says why and what to do."""


SYMBOLS = {"tau": "τ", "omega": "ω", "zeta": "ζ", "beta": "β", "gamma": "γ"}


class Slider(NamedTuple):
    """A parameter between `low` and `high`. A typed value may lie outside, between `least` and
    `most`; the slider's range then grows."""

    name: str
    low: float
    high: float
    step: float
    value: float
    about: str
    least: float
    most: float

    @property
    def symbol(self) -> str:
        """The name as formulas have it."""
        return SYMBOLS.get(self.name, self.name)

    @property
    def is_whole(self) -> bool:
        return self.step == 1

    def check(self, value: Any) -> float:
        """Returns the value of a request as a number within the limits."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # A whole number may be too large for a float.
        if not is_number or not abs(value) < 1e300:
            raise ExploreError(f"{self.name} = {value!r:.40}: expected a finite number.")
        if not self.least <= value <= self.most or (self.is_whole and value != int(value)):
            kind = "a whole number" if self.is_whole else "a number"
            raise ExploreError(
                f"{self.name} = {float(value):g}: expected {kind} from {self.least:g} to "
                f"{self.most:g}."
            )
        return float(value)


@dataclasses.dataclass(frozen=True)
class ExplorerEquation:
    """An equation of the page. The trajectory ends at `t1`. The diagram is cut off at `top`, above
    which most of it would be empty."""

    name: str
    title: str
    formula: str
    sliders: tuple[Slider, ...]
    t1: float
    top: float = math.inf

    @property
    def axes(self) -> list[str]:
        """The parameters that the diagram may vary, the default one first."""
        return [s.name for s in self.sliders if s.name not in ("lag", "start")]

    @property
    def states(self) -> list[str]:
        return ["x"] if self.usual_start.size == 1 else ["x₁", "x₂"]

    @property
    def diagram_title(self) -> str:
        if issubclass(self.system, LinearSystem):
            return "Multipliers (stable below 1)"
        held = issubclass(self.system, HeldSystem)
        return "Bifurcation diagram" if held else "Bifurcation diagram (extrema)"

    @property
    def system(self) -> type[System]:
        return SYSTEMS[self.name]

    @functools.cached_property
    def usual_start(self) -> Float[np.ndarray, "..."]:
        make: Any = self.system
        return np.array(make().y0, float)

    @functools.cached_property
    def intervals(self) -> int:
        """The number of intervals that suffices for the shortest period and for `KNOTS` knots."""
        shortest = next(s.least for s in self.sliders if s.name == "tau")
        return max(KNOTS, math.ceil(self.t1 / shortest))


# `(low, high, step)`, or `(low, high, step, least, most)` if the range may grow.
Range = tuple[float, float, float] | tuple[float, float, float, float, float]
_START = (-2.0, 2.0, 0.01, -1000.0, 1000.0)


class _Listing(NamedTuple):
    """An equation as listed below. Its parameters get their usual values from its system."""

    title: str
    formula: str
    t1: float
    ranges: dict[str, Range]
    top: float = math.inf


# The ranges show most of an equation's behaviour. The limits keep trajectories within
# floating-point numbers, and periods long enough for the number of intervals that the programs are
# compiled for. Equations with a lag are solved with fixed steps, which are accurate within the
# ranges alone, so these do not grow.
_LISTINGS = {
    "population": _Listing(
        "Population, with seasons",
        "x′ = a x(t) (1 − x(⌊t/τ⌋τ − lag·τ))",
        40.0,  # holds the cycle of 36 seasons at a = 3.2
        {
            "a": (0.2, 4.0, 0.01, -5.0, 10.0),
            "tau": (0.2, 1.5, 0.01, 0.2, 10.0),
            "lag": (0.0, 3.0, 1.0, 0.0, 8.0),
            "start": (0.05, 2.0, 0.01, -10.0, 10.0),
        },
        top=6.0,
    ),
    "linear": _Listing(
        "Linear, with two holds",
        "x₁′ = x₂,  x₂′ = −x₁ − 0.4 x₂(⌊t/τ⌋τ) − 0.2 x₂(⌊t/τ⌋τ − τ)",
        40.0,
        {"tau": (0.2, 4.0, 0.01, 0.2, 20.0), "start": _START},
    ),
    "digital-control": _Listing(
        "Digital control of a mass",
        "x₁″ = −gain (0.5 x₁ + x₁′)(⌊t/τ⌋τ)",
        30.0,
        {
            "gain": (0.1, 4.0, 0.01, -20.0, 20.0),
            "tau": (0.2, 3.0, 0.01, 0.2, 20.0),
            "start": _START,
        },
    ),
    "held-oscillator": _Listing(
        "Held oscillator",
        "x₁″ + 2ζω x₁′ + ω² x₁ = −k x₁(⌊t/τ⌋τ)",
        40.0,
        {
            "k": (-1.0, 2.0, 0.01, -50.0, 50.0),
            "tau": (0.2, 3.0, 0.01, 0.2, 20.0),
            "omega": (0.2, 3.0, 0.01, 0.0, 20.0),
            "zeta": (0.0, 1.0, 0.01, -0.5, 5.0),
            "start": _START,
        },
    ),
    "hutchinson": _Listing(
        "Hutchinson (lag)",
        "x′ = a x(t) (1 − x(t − τ))",
        60.0,
        {"a": (0.2, 3.0, 0.01), "tau": (0.5, 2.0, 0.01), "start": (0.05, 2.0, 0.01)},
    ),
    "mackey-glass": _Listing(
        "Mackey–Glass (lag)",
        "x′ = β x(t − τ) / (1 + x(t − τ)ⁿ) − γ x(t)",
        500.0,
        {
            "tau": (5.0, 30.0, 0.1),
            "beta": (0.05, 0.4, 0.005),
            "gamma": (0.05, 0.2, 0.005),
            "n": (2.0, 20.0, 0.1),
            "start": (0.1, 1.5, 0.01),
        },
    ),
}


@functools.cache
def equations() -> dict[str, ExplorerEquation]:
    """All equations by name."""
    return {name: _make_equation(name, listing) for name, listing in _LISTINGS.items()}


def _make_equation(name: str, listing: _Listing) -> ExplorerEquation:
    make: Any = SYSTEMS[name]
    start = round(float(np.ravel(make().y0)[0]), 6)  # the digits of a float32
    values = parameters_of(name) | {"lag": 0.0, "start": start}
    sliders = []
    for parameter, (low, high, step, *limits) in listing.ranges.items():
        least, most = limits or (low, high)
        about = "initial state" if parameter == "start" else describe_parameter(name, parameter)
        about = about.removesuffix(f" {SYMBOLS.get(parameter)}").replace(" τ of", " of")
        value = float(values[parameter])
        sliders.append(Slider(parameter, low, high, step, value, about, least, most))
    title, formula, t1, _, top = listing
    return ExplorerEquation(name, title, formula, tuple(sliders), t1, top)


class ExplorerState(NamedTuple):
    """The values of all sliders, their ranges, and the parameter on the diagram's axis."""

    equation: ExplorerEquation
    values: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    axis: str

    @property
    def start(self) -> Float[Array, "..."]:
        """The initial state. Its slider moves the first component alone."""
        first = self.equation.usual_start.copy()
        first.flat[0] = self.values["start"]
        return jnp.asarray(first)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as arrays, so that other values run the same compiled program."""
        given = {n: v for n, v in self.values.items() if n not in ("start", "lag")}
        return {n: jnp.asarray(v, float) for n, v in given.items()}

    @property
    def lag(self) -> int:
        return int(self.values.get("lag", 0))

    @property
    def tau(self) -> float:
        return self.values["tau"]

    @property
    def axis_range(self) -> tuple[float, float]:
        return self.ranges[self.axis]

    @property
    def diagram_key(self) -> str:
        """Everything that the diagram depends on. The value on its axis only moves its marker."""
        others = {n: v for n, v in self.values.items() if n != self.axis}
        return f"{self.equation.name} over {self.axis} in {self.axis_range} at {others}"

    def make_system(self) -> System:
        return _make_system(self.equation.name, self.lag, self.parameters)

    def over_axis(self) -> eqx.Partial:
        """The equation as a function of the parameter on the axis. A closure would be a new
        function each time, and compiled again."""
        return eqx.Partial(_vary, (self.equation.name, self.lag, self.axis), self.parameters)


def make_state(
    name: Any, values: Mapping[Any, Any], axis: Any = None, ranges: Mapping[Any, Any] | None = None
) -> ExplorerState:
    """Checks the request of a browser. Parameters that it leaves out have their usual values."""
    equation = equations().get(name) if isinstance(name, str) else None
    if equation is None:
        raise ExploreError(f"No equation {name!r:.40}: expected one of {', '.join(equations())}.")
    known = {s.name: s for s in equation.sliders}
    for key in {*values, *(ranges or {})}:
        if key not in known:
            raise ExploreError(f"{name} has no slider {key!r:.40}: it has {', '.join(known)}.")
    found = {n: s.check(values.get(n, s.value)) for n, s in known.items()}
    return ExplorerState(
        equation,
        found,
        {n: _find_range(s, found[n], (ranges or {}).get(n, ())) for n, s in known.items()},
        axis if axis in equation.axes else equation.axes[0],
    )


def _find_range(slider: Slider, value: float, asked: Any) -> tuple[float, float]:
    """The usual range of a slider, grown by the asked one and by its value."""
    ends = [slider.low, slider.high, value, *map(slider.check, asked)]
    return min(ends), max(ends)


def _make_system(name: str, lag: int, parameters: Mapping[str, Any]) -> System:
    given = dict(parameters) | ({"lag": lag} if name == "population" else {})
    if "gain" in given:
        given["K"] = given.pop("gain") * DigitalControl().K
    return SYSTEMS[name](**given)


def _vary(fixed: tuple[str, int, str], parameters: Mapping[str, Any], value: Any) -> System:
    name, lag, axis = fixed
    return _make_system(name, lag, {**parameters, axis: value})
