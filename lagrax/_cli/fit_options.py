"""The options of `lagrax fit`, for the command line and for the fit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .._solve.arguments import MOST_COUNT
from ..identify._options import DEFAULTS, MOST, Options
from .table import Roles
from .units import SHORT, Duration, UnitError, parse_duration, parse_period, parse_unit


class FitError(ValueError):
    """A fit cannot be done as asked. The message gives the reason and a remedy."""


def _as_option(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of an option's text; its default is parsed already."""

    def parse_option(given: Any) -> Any:
        try:
            return parse(given) if isinstance(given, str) else given
        except UnitError as error:
            raise typer.BadParameter(str(error)) from None

    return parse_option


def _declare_option(parse: Callable[[str], Any], metavar: str, help: str) -> Any:
    return typer.Option(parser=_as_option(parse), metavar=metavar, help=help)


TEN_SAMPLES = Duration(10)
MOST_MODELS = MOST["ensemble"]


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The options of `lagrax fit` that one fit depends on."""

    time: Annotated[str | None, typer.Option(help="Column of times. The first one by default.")] = (
        None
    )
    column: Annotated[
        list[str] | None,
        typer.Option(help="Column to learn. Repeat for more; all others by default."),
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Column that drives the system. Repeat for more."),
    ] = None
    unit: Annotated[
        str | None,
        _declare_option(
            parse_unit,
            "UNIT",
            f"Unit of the times: {', '.join(SHORT.values())}. Dates have one by default.",
        ),
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(help="Column to leave aside. Repeat for more.")
    ] = None
    dt: Annotated[
        Duration | None,
        _declare_option(
            parse_period, "DURATION", "Time between two rows, if no column holds times."
        ),
    ] = None
    date_format: Annotated[
        str | None,
        typer.Option(metavar="FORM", help="Form of the dates, such as %m/%d/%Y %H:%M."),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(help="Column that tells several series apart, fitted by one equation."),
    ] = None
    future: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table of the inputs during the forecast."),
    ] = None
    hold: Annotated[
        Duration | None,
        _declare_option(
            parse_period,
            "DURATION",
            "Period of a held state, such as 60s, or a number in the unit of the times.",
        ),
    ] = None
    lags: Annotated[
        int | None, typer.Option(help="Number of holds. 1 by default.", min=1, max=16)
    ] = None
    lag: Annotated[
        Duration | None,
        _declare_option(parse_period, "DURATION", "Look back at the state this long ago."),
    ] = None
    season: Annotated[
        list[Duration] | None,
        _declare_option(
            parse_period, "DURATION", "Length of a season, such as 1y. Repeat for more."
        ),
    ] = None
    learn_tau: Annotated[
        bool,
        typer.Option(
            "--learn-tau", help="Find the period, from a third to three times the given one."
        ),
    ] = False
    select: Annotated[
        bool, typer.Option("--select", help="Compare delays and choose those that are needed.")
    ] = False
    field: Annotated[
        Literal["mlp", "library", "linear"],
        typer.Option(
            help="Right-hand side: a network, a polynomial that can be read, or a linear equation "
            "that holds the last samples."
        ),
    ] = "mlp"
    linear: Annotated[
        bool,
        typer.Option(
            help="Compare a library without delays with a linear equation of held samples, and "
            "keep the one that predicts better."
        ),
    ] = True
    degree: Annotated[
        int, typer.Option(help="Highest degree of the library's terms.", min=1, max=6)
    ] = Options.degree
    window: Annotated[
        int | None,
        typer.Option(
            help="Samples that training predicts from one measured start. Chosen by default.",
            min=1,
            max=MOST_COUNT,
        ),
    ] = None
    forecast: Annotated[
        Duration,
        _declare_option(
            parse_duration,
            "DURATION",
            "Length of the forecast, such as 2h, or a number of samples.",
        ),
    ] = TEN_SAMPLES
    ensemble: Annotated[
        int,
        typer.Option(
            help="Number of models, for the band of the forecast.", min=1, max=MOST_MODELS
        ),
    ] = 5
    iterations: Annotated[
        int, typer.Option(help="Most iterations of the training.", min=1, max=MOST_COUNT)
    ] = Options.iterations
    seed: Annotated[
        int,
        typer.Option(help="Random seed. Results are reproducible.", min=0, max=2**31 - MOST_MODELS),
    ] = Options.seed

    def identifier_arguments(self) -> dict[str, Any]:
        """The options that are arguments of `Identifier`, too."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: own[name] for name in DEFAULTS if name in own and name != "season"}

    @property
    def roles(self) -> Roles:
        """The roles of the columns."""
        return Roles(
            self.time,
            self.column or None,
            self.inputs or (),
            self.unit,
            self.by,
            exclude=self.exclude or (),
            dt=self.dt,
            date_format=self.date_format,
        )

    def to_json(self) -> dict[str, Any]:
        """The options for JSON. A duration is a text, or a number if it has no unit."""
        return {f.name: _to_plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_plain(x) for x in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Duration):
        return str(value) if value.unit else value.value
    return value
