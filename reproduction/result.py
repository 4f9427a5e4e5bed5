"""The finding, claims and tables of an experiment, as `result.json` holds them."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from lagrax.plotting import Figure, from_json
from lagrax.plotting._page import Cell, words
from lagrax.training._files import read_json, write_json

# JSON has whole numbers of any length, but those beyond 64 bits cannot be shown.
Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | float | None
Verdict = Literal["holds", "does not hold", "undecided"]
Interval = tuple[float, float]

# A ratio below one reads better as its inverse.
_OPPOSITES = {"times lower": "times higher", "times faster": "times slower"}
_SINGULAR = {"epochs": "epoch", "points": "point"}


class ResultError(ValueError):
    """A result cannot be read, for the reason that the message gives."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, or one of ours, with a measured number and its target.

    `low` and `high` bound the number if its uncertainty is known: a 95 % bootstrap
    interval, or Welch's with a correction for the number of claims. A claim is undecided if the
    target lies between them, or if there is no number.
    """

    claim: str
    verdict: Verdict
    value: Number = None
    target: Number = None
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    low: Number = None
    high: Number = None

    @classmethod
    def at_least(
        cls, claim: str, value: Number, target: float, unit: str, interval: Interval | None = None
    ) -> "Claim":
        return cls._decide(claim, value, target, unit, interval, "higher")

    @classmethod
    def at_most(
        cls, claim: str, value: Number, target: float, unit: str, interval: Interval | None = None
    ) -> "Claim":
        return cls._decide(claim, value, target, unit, interval, "lower")

    @classmethod
    def _decide(
        cls,
        claim: str,
        value: Number,
        target: float,
        unit: str,
        interval: Interval | None,
        better: Literal["higher", "lower"],
    ) -> "Claim":
        # Rounded numbers decide, so that the verdict agrees with the printed number.
        number = _round(value)
        low, high = (None, None) if interval is None else map(_round, interval)
        found = cls(claim, "undecided", number, target, unit, better, low, high)
        if number is None or (low is not None and high is not None and low < target < high):
            return found
        return dataclasses.replace(found, verdict="holds" if found.is_reached else "does not hold")

    @property
    def holds(self) -> bool:
        return self.verdict == "holds"

    @property
    def is_reached(self) -> bool:
        """Whether the number reaches the target, be it within its uncertainty or not."""
        if self.value is None or self.target is None:
            return False
        return self.value >= self.target if self.better == "higher" else self.value <= self.target

    def show_value(self) -> str:
        """The measured number in words, such as "2.8 times higher"."""
        if self.value is None:
            return "not measured"
        number, unit, low, high = self.value, self.unit, self.low, self.high
        if unit in _OPPOSITES and 0 < number < 1:
            unit = _OPPOSITES[unit]
            number, low, high = 1 / number, high and 1 / high, low and 1 / low
        elif number == 1 and low is None:
            unit = _SINGULAR.get(unit, unit)
        bounds = ""
        if low is not None and high is not None:
            bounds = f" ({show_number(low, 2)} to {show_number(high, 2)})"
        return f"{show_number(number)}{bounds} {unit}".strip()

    def show_target(self) -> str:
        """The target in words, such as "10 times lower"."""
        if self.target is None:
            return ""
        if self.unit in _OPPOSITES:
            comparative = self.unit.removeprefix("times ")
            return comparative if self.target == 1 else f"{show_number(self.target)} {self.unit}"
        bound = {"higher": "at least ", "lower": "at most "}.get(self.better, "")
        unit = _SINGULAR.get(self.unit, self.unit) if self.target == 1 else self.unit
        return f"{bound}{show_number(self.target)} {unit}".strip()


def _round(value: Number) -> Number:
    """The number to four digits; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def show_number(number: int | float, digits: int = 4) -> str:
    """The number to so many digits, with an exponent only if it is very small or large."""
    shown = f"{abs(number):.{digits}g}"
    if "e" in shown and 1e-4 <= abs(number) < 1e6:
        shown = f"{abs(number):.0f}"
    return f"−{shown}" if number < 0 else shown


# A number with its range, such as ("4.6e-2", "4.2e-2 to 5.0e-2"), is a `Cell`.
CellValue = str | Number | Cell


def show_cell(value: CellValue) -> str:
    """The value of a table in one line."""
    return f"{value.text} ({value.detail})" if isinstance(value, Cell) else words(value)


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """Rows of cells under the names of their columns. The first cell names the row."""

    columns: Sequence[str]
    rows: Sequence[Annotated[Sequence[CellValue], msgspec.Meta(min_length=1)]]
    title: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class TrainingTime:
    """The seconds that a training took, all of its seeds together."""

    name: str
    seconds: Number = None


@dataclasses.dataclass(frozen=True)
class Result:
    """The content of `result.json`. `finding` is one sentence, `figures` are the names of those
    in the folder `figures`, the most telling one first. A quick run has no claims.

    `seconds` adds the times of all trainings, which run side by side, and `waited` is the time from
    start to end; None if some trainings were there before."""

    experiment: str
    title: str = ""
    about: str = ""
    finding: str = ""
    quick: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    date: str = ""
    seconds: Number = None
    waited: Number = None
    trainings: Sequence[TrainingTime] = ()
    claims: Sequence[Claim] = ()
    tables: Sequence[ResultTable] = ()
    figures: Sequence[str] = ()


class Entry(NamedTuple):
    """A result with its figures, or a sentence on why a figure cannot be shown."""

    result: Result
    figures: list[Figure | str]


def write_result(folder: Path, result: Result) -> None:
    content = dataclasses.asdict(result)
    # Each claim can be read on its own.
    content["claims"] = [{"experiment": result.experiment} | c for c in content["claims"]]
    write_json(folder / "result.json", content)


def read_result(folder: Path) -> Result:
    """Reads the result in `folder`. Unknown keys are ignored."""
    path = folder / "result.json"
    try:
        result = msgspec.convert(read_json(path), Result)
    except (OSError, ValueError) as error:
        raise ResultError(
            f"{path} cannot be read: {str(error).rstrip('.')}. Run its experiment again, or leave "
            "it out."
        ) from error
    quick = result.quick or folder.resolve().name.endswith("-quick")
    return dataclasses.replace(result, quick=quick)


def read_entry(folder: Path) -> Entry:
    """Reads the result in `folder` and its figures."""
    result = read_result(folder)
    return Entry(result, [_read_figure(folder, name) for name in result.figures])


def _read_figure(folder: Path, name: str) -> Figure | str:
    path = folder / "figures" / f"{name}.json"
    try:
        if Path(name).name != name or not path.is_file():
            return f"The figure “{name}” is missing from the experiment's folder."
        return from_json(read_json(path))
    except (OSError, ValueError) as error:
        return f"The figure “{name}” cannot be read: {error}"
