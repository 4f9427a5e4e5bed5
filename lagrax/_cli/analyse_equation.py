"""The equation that `lagrax analyse` analyses, classical or learned, and its parameters."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis import KnotMap, LaggedEquation
from ..identify import Identifier, IdentifyError
from ..systems import SYSTEMS, DigitalControl, HeldSystem, LinearSystem, System
from .answers import is_unfinished, read_summary
from .lagged_run import LaggedRun, find_lagged_run, has_lags_alone, learned_lagged
from .long_run import LongRun, learned_map, long_run, long_run_of, why_no_map


class AnalyseError(ValueError):
    """An analysis cannot be done as asked; the message says why and what to do."""


class ParameterRange(NamedTuple):
    """A parameter and the ends between which it varies."""

    name: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name} from {self.low:g} to {self.high:g}"


@dataclasses.dataclass(frozen=True)
class AnalysedEquation:
    """An equation as a function of its parameters.

    `parameters` holds their values, `model` the learned equation, if it is one.
    """

    name: str
    parameters: dict[str, int | float]
    make: Callable[..., KnotMap | System | LaggedEquation]
    is_linear: bool
    states: list[str]
    model: Identifier | None = None
    has_lags: bool = False

    def find_long_run(self) -> LongRun | LaggedRun:
        """Its long run at the values of its parameters."""
        if self.has_lags:
            around = None
            if self.model is not None:
                around = np.concatenate([t.filled for t in self.model.series_])
            return find_lagged_run(self.make(**self.parameters), self.states, around)  # pyright: ignore
        if self.model is not None:
            return long_run_of(self.model, self.parameters["tau"])
        return long_run(self.make(**self.parameters))  # pyright: ignore

    def over(self, *names: str) -> Callable[..., Any]:
        """The equation as a function of some of its parameters."""
        return lambda *values: self.make(**self.parameters | dict(zip(names, values, strict=True)))


def parameters_of(name: str) -> dict[str, int | float]:
    """The scalar parameters of a system with their defaults. A controller also has `gain`, a factor
    of its whole feedback."""
    return ({"gain": 1.0} if name == "digital-control" else {}) | scalars_of(SYSTEMS[name])


def scalars_of(system: type[System]) -> dict[str, int | float]:
    """The scalar arguments of a system with their defaults."""
    arguments = inspect.signature(system.__init__).parameters.values()
    return {p.name: p.default for p in arguments if isinstance(p.default, int | float)}


_PARAMETERS = {
    "a": "growth rate",
    "lag": "count that growth depends on, 0 for the last one, 1 for the one before",
    "gain": "factor of the feedback",
    "omega": "frequency ω",
    "zeta": "damping ζ",
    "k": "strength of the held feedback",
    "beta": "production rate β",
    "gamma": "decay rate γ",
    "n": "steepness of the production",
}


def describe_parameter(name: str, parameter: str) -> str:
    """A few words on a parameter of the system called `name`."""
    if parameter == "tau":
        return "period τ of the hold" if name in held_systems() else "lag τ"
    return _PARAMETERS[parameter]


def held_systems() -> list[str]:
    return [name for name, system in SYSTEMS.items() if issubclass(system, HeldSystem)]


def find_equation(target: str, given: Mapping[str, int | float]) -> AnalysedEquation:
    """The equation named `target`, or the learned one in the folder `target`."""
    if target in SYSTEMS:
        return _make_classical(target, given)
    if not Path(target).is_dir():
        raise AnalyseError(
            f"No equation and no folder {target!r}: expected one of {', '.join(SYSTEMS)}, "
            "or a folder that `lagrax fit` wrote."
        )
    return _load_learned(Path(target), given)


def _make_classical(name: str, given: Mapping[str, int | float]) -> AnalysedEquation:
    system, known = SYSTEMS[name], parameters_of(name)
    _check_values(name, given, known)

    def make(**parameters: Any) -> System:
        if "gain" in parameters:
            parameters["K"] = parameters.pop("gain") * DigitalControl().K
        return system(**parameters)

    parameters = known | dict(given)
    try:
        size = make(**parameters).y0.size
    except ValueError as error:
        raise AnalyseError(str(error)) from None
    is_linear = issubclass(system, LinearSystem)
    has_lags = name not in held_systems()
    return AnalysedEquation(
        name, parameters, make, is_linear, number_states(size), has_lags=has_lags
    )


def _load_learned(folder: Path, given: Mapping[str, int | float]) -> AnalysedEquation:
    inside = folder / "model" if (folder / "model").is_dir() else folder
    if is_unfinished(inside.parent):
        raise AnalyseError(
            f"{folder} holds parts of two answers, since the second was stopped while it was "
            "written: run that `lagrax fit` again."
        )
    try:
        exact = read_summary(inside.parent).get("precision") == "float64"
        with jax.enable_x64(exact or jnp.zeros(()).dtype == jnp.float64):
            model = Identifier.load(inside)
    except IdentifyError as error:
        raise AnalyseError(str(error)) from None
    has_lags = has_lags_alone(model)
    reason = None if has_lags else why_no_map(model)
    if reason is not None:
        raise AnalyseError(f"{folder}: {reason}")
    # Several learned lags stay as they are.
    varied = not has_lags or len(model.delays_) == 1
    known = {"tau": float(np.asarray(model.delays_[0].tau))} if varied else {}
    name = folder.resolve().parent.name if folder.name == "model" else folder.resolve().name
    _check_values(name, given, known)
    columns = read_summary(inside.parent).get("columns")
    size = model.n_features_in_
    has_names = isinstance(columns, list) and len(columns) == size
    states = [str(x) for x in columns] if has_names else number_states(size)  # pyright: ignore
    make = lambda **taus: (learned_lagged if has_lags else learned_map)(model, **taus)
    return AnalysedEquation(name, known | dict(given), make, False, states, model, has_lags)


def number_states(size: int) -> list[str]:
    """Names for the components of a state."""
    return ["x"] if size == 1 else [f"x{i + 1}" for i in range(size)]


# --- checks ---------------------------------------------------------------------------------------


def check_ranges(equation: AnalysedEquation, ranges: Sequence[ParameterRange]) -> None:
    asked = {r.name: (r.low, r.high) for r in ranges}
    _check_values(equation.name, asked, equation.parameters)
    for r in ranges:
        if isinstance(equation.parameters[r.name], int):
            raise AnalyseError(
                f"--param {r.name}: {r.name} is a whole number, which cannot be varied; give one "
                f"value, such as --{r.name} 1."
            )
        if not r.low < r.high:
            raise AnalyseError(
                f"--param {r.name} {r.low:g} {r.high:g}: expected the lower value first."
            )
    if len(ranges) > 2 or len(asked) < len(ranges):
        raise AnalyseError(
            f"--param {', '.join(r.name for r in ranges)}: expected one parameter, or two "
            "different ones of an equation that is linear or has lags."
        )
    if len(ranges) == 2 and not (equation.is_linear or equation.has_lags):
        raise AnalyseError(
            f"{equation.name} is not linear, and two parameters give the stability region of an "
            "equation that is linear or has lags: give one --param."
        )


def _check_values(name: str, asked: Mapping[str, Any], known: Mapping[str, int | float]) -> None:
    for parameter, value in asked.items():
        if parameter not in known:
            which = ", ".join(known) or "none"
            raise AnalyseError(f"{name} has no parameter {parameter}: it has {which}.")
        if not np.all(np.isfinite(value)) or (parameter == "tau" and np.min(value) <= 0):
            sign = "positive" if parameter == "tau" else "finite"
            got = " to ".join(f"{x:g}" for x in np.ravel(value))
            raise AnalyseError(f"{parameter} = {got}: expected a {sign} number.")
