"""`doses` turns the rows of a dosing record into instants of a `Jump` and samples of an `Input`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from .arguments import real_array
from .delays import Input, RealScalar
from .jumps import Jump

COLUMNS = ("TIME", "AMT", "RATE", "II", "ADDL", "EVID", "SS", "CMT", "ID")


class Doses(NamedTuple):
    """The doses of one patient, or of several with an axis of patients in front.

    - `times`, `amounts`: of the boluses.
    - `switches`, `rates`: the total rate of all infusions, each from its switch to the next.

    Rows of several patients are filled up with times of infinity, which `Jump` and `Input` ignore.
    They are NumPy arrays. Pass them through `jax.vmap` for a patient each.
    """

    times: Float[np.ndarray, "*patients boluses"]
    amounts: Float[np.ndarray, "*patients boluses"]
    switches: Float[np.ndarray, "*patients switches"]
    rates: Float[np.ndarray, "*patients switches"]

    def boluses(self, place: Callable = lambda amount: amount, lag: RealScalar = 0.0) -> Jump:
        """The boluses as a `Jump`.

        `place(amount)` gives what one bolus adds to the state, such as
        `lambda amount: {"gut": amount, "blood": 0.0}`. `lag` is the time until it arrives.
        """
        add: PyTree = jax.vmap(lambda amount: jax.tree.map(jax.numpy.asarray, place(amount)))(
            self.amounts
        )
        # A lag that is known keeps the times known, too.
        return Jump(self.times + lag, add=add)

    def infusion(self, lag: RealScalar = 0.0) -> Input:
        """The rate of the infusions as an `Input`, which arrives after `lag`."""
        return Input(self.switches, self.rates, lag)


def doses(table: Any, *, by: str | None = None) -> Doses:
    """Reads the doses of a table in the form of NONMEM.

    Choose it for records of many doses. A few are written faster as `Jump` and `Input`.

    **Arguments:**

    - `table`: a data frame or a dictionary of columns; their names may be in small letters. `TIME`
      and `AMT` are needed. With a `RATE` above 0 a dose is an infusion at that rate, otherwise a
      bolus. `ADDL` more doses follow at intervals of `II`. Only rows with an `EVID` of 1 are doses;
      without that column, rows with an `AMT` above 0 are. Other columns are ignored.
    - `by`: the column that names the patient, such as `"ID"`. The result then has a row for each of
      them, in the order in which they appear.

    **Returns:** a `lagrax.Doses`.

    Resets (`EVID` of 3 or 4), steady states (`SS`) and rates that are estimated (`RATE` below 0)
    are refused.
    """
    given_names = list(getattr(table, "columns", table))
    listed = ", ".join(map(str, given_names))
    names = {str(name).upper(): name for name in given_names}
    columns = {n: _read_column(table, names[n], n) for n in COLUMNS if n in names}
    for name in ("TIME", "AMT"):
        if name not in columns:
            raise ValueError(f"doses got the columns {listed}; expected {name} among them.")
    count = len(columns["TIME"])
    columns = {n: np.zeros(count) for n in ("RATE", "II", "ADDL")} | columns
    given = columns.get("EVID", np.where(np.nan_to_num(columns["AMT"]) > 0, 1.0, 0.0))
    _check_events(given, columns)
    if by is None:
        _check_one_patient(columns, given == 1)
        return _find_doses(columns, given == 1)
    if by not in given_names:
        raise ValueError(f"doses got by={by!r}; expected one of {listed}.")
    patient = np.asarray(table[by])
    subjects = list(dict.fromkeys(patient.tolist()))
    return _stack([_find_doses(columns, (given == 1) & (patient == s)) for s in subjects])


def _read_column(table: Any, given: Any, name: str) -> np.ndarray:
    if name == "ID":
        return np.asarray(table[given])
    column = real_array(table[given])
    if column is None:
        raise ValueError(f"doses got a column {given} that is not of numbers alone.")
    return column


def _check_events(given: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """Checks the rows that are doses, and that no row asks for more than doses."""
    if np.any(np.isin(given, (3, 4))):
        raise ValueError(
            "doses got an EVID of 3 or 4, which resets the state. Leave the row out and add "
            "Jump([time], lambda t, y, args: ...), which returns the state after the reset."
        )
    if np.any(np.nan_to_num(columns.get("SS", np.zeros(1))) != 0):
        raise ValueError(
            "doses got a steady state (SS), which it does not compute. Begin the table earlier, "
            "with doses enough to reach it."
        )
    for name in ("TIME", "AMT", "RATE", "II", "ADDL"):
        values = columns[name][given == 1]
        lowest = -np.inf if name == "TIME" else 0
        bad = values[~(np.isfinite(values) & (values >= lowest))]
        if bad.size:
            kind = "finite numbers" if name == "TIME" else "numbers of at least 0"
            raise ValueError(f"doses got {name}={bad[0]:g} in a row of a dose; expected {kind}.")
    repeats = (columns["ADDL"] > 0) & (given == 1)
    if np.any(columns["II"][repeats] <= 0):
        raise ValueError("doses got an ADDL without an interval II above 0 between the doses.")


def _check_one_patient(columns: dict[str, np.ndarray], chosen: np.ndarray) -> None:
    for name, remedy in (("ID", 'Give by="ID"'), ("CMT", "Read the rows of each by themselves")):
        values = np.unique(columns[name][chosen]) if name in columns else np.zeros(1)
        if len(values) > 1:
            raise ValueError(f"doses got {len(values)} values of {name}; expected one. {remedy}.")


def _find_doses(columns: dict[str, np.ndarray], chosen: np.ndarray) -> Doses:
    """The doses of one patient, whose rows are chosen."""
    time, amount, rate, interval, more = (
        columns[name][chosen] for name in ("TIME", "AMT", "RATE", "II", "ADDL")
    )
    repeats = more.astype(int) + 1
    number = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    amount, rate = np.repeat(amount, repeats), np.repeat(rate, repeats)
    time = np.repeat(time, repeats) + number * np.repeat(interval, repeats)
    infused = rate > 0
    times, amounts = _add_up(time[~infused], amount[~infused])
    if not len(times):
        times, amounts = np.array([np.inf]), np.zeros(1)
    begin, rate = time[infused], rate[infused]
    end = begin + amount[infused] / rate
    # An `Input` has its first value before its first instant, too: nothing runs then.
    start = np.array([np.min(begin) - 1 if len(begin) else 0.0])
    switches, changes = _add_up(
        np.concatenate([start, begin, end]), np.concatenate([[0.0], rate, -rate])
    )
    return Doses(times, amounts, switches, _remove_rounding(np.cumsum(changes), rate))


def _add_up(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts by time, and adds values at the same time up to rounding."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    apart = np.diff(times, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(times))
    group = np.cumsum(apart) - 1
    return times[apart], np.bincount(group, values, minlength=int(apart.sum()))


def _remove_rounding(rates: np.ndarray, each: np.ndarray) -> np.ndarray:
    """A sum of rates that have all ended is 0."""
    return np.where(np.abs(rates) <= 1e-9 * np.sum(each), 0.0, rates)


def _stack(patients: list[Doses]) -> Doses:
    """One row for each patient. The rows are filled up with infinite times."""
    filled = []
    for name, fill in zip(Doses._fields, (np.inf, 0.0, np.inf, 0.0), strict=True):
        rows = [getattr(patient, name) for patient in patients]
        width = max(len(row) for row in rows)
        pad = lambda row: np.concatenate([row, np.full(width - len(row), fill)])  # noqa: B023
        filled.append(np.stack([pad(row) for row in rows]))
    return Doses(*filled)
