"""What an experiment found, as its `result.json` holds it."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lagrax.training._files import read_json, write_json


class ResultError(ValueError):
    """A result cannot be read, for the reason that the message gives."""


Number = int | float | None


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper (or of ours) as a number, and the bar that it has to reach."""

    claim: str
    holds: bool
    value: Number = None
    bar: Number = None
    unit: str = ""
    better: str = ""

    @classmethod
    def at_least(cls, claim: str, value: Number, bar: float, unit: str) -> "Claim":
        number = _four_digits(value)
        return cls(claim, number is not None and number >= bar, number, bar, unit, "higher")

    @classmethod
    def at_most(cls, claim: str, value: Number, bar: float, unit: str) -> "Claim":
        number = _four_digits(value)
        return cls(claim, number is not None and number <= bar, number, bar, unit, "lower")


def _four_digits(value: Number) -> Number:
    """They also decide, so that what is printed and the verdict never disagree."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under the names of their columns."""

    columns: Sequence[Any]
    rows: Sequence[Any]
    title: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """A training, by the name of its folder."""

    name: str
    seconds: Number = None


@dataclasses.dataclass(frozen=True)
class Result:
    """All of it. `figures` are the names of those in the folder `figures`."""

    experiment: str
    title: str = ""
    about: str = ""
    quick: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    date: str = ""
    seconds: Number = None
    runs: Sequence[Run] = ()
    claims: Sequence[Claim] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[str] = ()


def write_result(folder: Path, result: Result) -> None:
    content = dataclasses.asdict(result)
    # Each claim can be read on its own.
    content["claims"] = [{"experiment": result.experiment} | c for c in content["claims"]]
    write_json(folder / "result.json", content)


def read_result(folder: Path) -> Result:
    """The result in `folder`. Keys that are not known here are left aside."""
    path = folder / "result.json"
    try:
        raw = read_json(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    result = _record(Result, raw, path)
    if not all(row and isinstance(row, list) for table in result.tables for row in table.rows):
        raise _damaged(path, "the rows of a table are lists of cells, but not all of these")
    quick = result.quick or folder.resolve().name.endswith("-quick")
    return dataclasses.replace(result, quick=quick)


_PARTS = {"runs": Run, "claims": Claim, "tables": Table}
_KINDS = {str: str, bool: bool, Number: (int, float), dict[str, Any]: dict}


def _record(kind: type, raw: Any, path: Path) -> Any:
    """`raw` as a `kind`, or a sentence on what is wrong with it. Null means absent."""
    what = kind.__name__.lower()
    if not isinstance(raw, dict):
        raise _damaged(path, f"a {what} is {raw!r:.40}, not an object")
    given = {}
    for field in dataclasses.fields(kind):
        value = raw.get(field.name)
        if value is not None:
            # What is not in the list is a sequence.
            kinds = _KINDS.get(field.type, list)
            if not isinstance(value, kinds) or not _is_finite_enough(value):
                raise _damaged(path, f"`{field.name}` of a {what} is {value!r:.40}")
            if kind is Result and field.name in _PARTS:
                value = [_record(_PARTS[field.name], part, path) for part in value]
            given[field.name] = value
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise _damaged(path, f"a {what} lacks `{field.name}`")
    return kind(**given)


def _is_finite_enough(value: Any) -> bool:
    """JSON has whole numbers of any length; those beyond 10^308 cannot be shown."""
    return not isinstance(value, int) or abs(value) < 1e308


def _damaged(path: Path, why: str) -> ResultError:
    return ResultError(f"{path} cannot be read: {why}. Run its experiment again, or leave it out.")
