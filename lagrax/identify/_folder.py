"""The folder of a saved model: `model.json`, `model.safetensors`, and what they are made of."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._solve.arguments import is_whole
from .._solve.delays import Delay, Hold, Lag, Learn, periods_to_learn
from ..training import Series
from ..training._checkpoints import load_arrays
from ..training._errors import DamagedError
from ..training._files import read_json
from ..training._machine import describe as machine
from ._checks import IdentifyError
from ._equations import Polynomial, intervals_over
from ._learned import Learned
from ._measured import Measured

# Steps in an interval, intervals in a series, and the powers of a term: a model that asks for more
# was not fitted.
MOST_STEPS = 10**6
MOST_POWER = 100

# Of the arrays of a model: a file that claims more may take all memory.
MOST_BYTES = 2**30


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    missing = [n for n in ("model.json", "model.safetensors") if not (folder / n).is_file()]
    if missing:
        raise IdentifyError(
            f"{folder} holds no {missing[0]}: give a folder that Identifier.save or `lagrax fit` "
            "wrote."
        )
    try:
        about = read_json(folder / "model.json")
        if (size := (folder / "model.safetensors").stat().st_size) > MOST_BYTES:
            raise DamagedError(f"its arrays take {size:,} bytes; expected at most {MOST_BYTES:,}")
        arrays, _ = load_arrays(folder / "model.safetensors")
    except (ValueError, OSError, DamagedError) as error:
        raise IdentifyError(f"The model in {folder} is damaged: {error}.") from None
    if not isinstance(about, dict) or about.get("format") != 1:
        raise IdentifyError(f"{folder / 'model.json'} is not of a format that this lagrax reads.")
    return about, arrays


def delay_to_json(delay: Delay, learned: Sequence[Learn]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(delay).__name__}
    if isinstance(delay.tau, Learn):
        found["learn"] = [delay.tau.start, delay.tau.low, delay.tau.high]
        found["period"] = learned.index(delay.tau)
    elif delay.tau is not None:
        found["tau"] = float(delay.tau)  # pyright: ignore[reportArgumentType]
    if isinstance(delay, Hold):
        found["lag"] = delay.lag
        if delay.times is not None:
            found["times"] = np.asarray(delay.times).tolist()
    return found


def delays_from_json(found: Sequence[dict[str, Any]]) -> list[Delay]:
    learned: dict[int, Learn] = {}

    def one(about: dict[str, Any]) -> Delay:
        tau: Any = about.get("tau")
        if "learn" in about:
            tau = learned.setdefault(int(about["period"]), Learn(*about["learn"]))
        if about["kind"] == "Lag":
            return Lag(tau)
        return Hold(tau, lag=about["lag"], times=about.get("times"))

    return [one(about) for about in found]


def under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def count_of_series(arrays: dict[str, np.ndarray]) -> int:
    return len({k.split("]")[1] for k in arrays if k.startswith("['series']")})


def losses_of(arrays: dict[str, np.ndarray]) -> dict[str, Series]:
    names = dict.fromkeys(k.split("'")[3] for k in arrays if k.startswith("['losses']"))
    return {
        name: Series(*(arrays[f"['losses']['{name}']['{part}']"] for part in Series._fields))
        for name in names
    }


def filled_from(like: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """`like` with the arrays of all members in place of its own."""
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    dynamic, static = eqx.partition(like, is_shape)
    named, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    leaves = []
    for place, leaf in named:
        found = arrays[jax.tree_util.keystr(place)]
        if found.shape[1:] != leaf.shape:
            raise ValueError(f"{jax.tree_util.keystr(place)} has shape {found.shape[1:]}")
        leaves.append(jnp.asarray(found, leaf.dtype))
    return eqx.combine(jax.tree.unflatten(structure, leaves), static)


def described(
    arguments: dict[str, Any], learned: Learned, window: int, flat: bool
) -> dict[str, Any]:
    """What `model.json` says."""
    plain = lambda x: x.item() if isinstance(x, np.generic) else x
    kept = {name: plain(value) for name, value in arguments.items()}
    delays, field = arguments["delays"], learned.field
    kept |= {
        "delays": [delay_to_json(d, periods_to_learn(delays)) for d in delays],
        "field": "own" if callable(arguments["field"]) else arguments["field"],
        "solver": type(arguments["solver"]).__name__,
    }
    terms = {"powers": field.powers, "used": field.used} if isinstance(field, Polynomial) else None
    return {
        "format": 1,
        "flat": flat,
        "arguments": kept,
        "periods": list(learned.setting.periods),
        "window": window,
        "steps": learned.setting.steps,
        "terms": terms,
        "machine": machine(),
    }


def arguments_from(about: dict[str, Any], field: Callable | None, folder: Path) -> dict[str, Any]:
    arguments = dict(about["arguments"])
    if arguments["field"] != "own" and field is not None:
        raise IdentifyError(
            f"The model in {folder} was fitted with field={arguments['field']!r:.40} and none of "
            "its own: leave `field` out."
        )
    if arguments["field"] == "own":
        if field is None:
            raise IdentifyError(
                f"The model in {folder} was fitted with a field of its own: give it again, "
                "load(folder, field=...)."
            )
        arguments["field"] = field
    solver = getattr(diffrax, str(arguments["solver"]), None)
    if not (isinstance(solver, type) and issubclass(solver, diffrax.AbstractSolver)):
        raise IdentifyError(f"{folder} names a solver that diffrax lacks, {arguments['solver']!r}.")
    return arguments | {"delays": delays_from_json(arguments["delays"]), "solver": solver()}


def check_effort(
    measured: Measured, delays: Sequence[Delay], window: int, about: dict[str, Any]
) -> None:
    """What a file says may take any time and memory."""
    spans = [(float(t.ts[0]), float(t.ts[-1])) for t in measured.shifted]
    intervals = intervals_over(delays, spans, True) or 0
    lag = max((d.lag for d in delays if isinstance(d, Hold)), default=0)
    for name, value in (("steps", about["steps"]), ("intervals", intervals), ("lag", lag)):
        if not is_whole(value) or value > MOST_STEPS:
            raise ValueError(f"{name} = {value!r:.40}")
    if window < 1:
        raise ValueError(f"window = {window}")


def empty_polynomial(terms: dict[str, Any], states: int, variables: int) -> Polynomial:
    powers = tuple(tuple(int(p) for p in row) for row in terms["powers"])
    used = tuple(tuple(bool(u) for u in row) for row in terms["used"])
    for row in powers:
        if len(row) != variables or not all(0 <= p <= MOST_POWER for p in row):
            raise ValueError(f"a term has the powers {row!r:.40}")
    if [len(row) for row in used] != [states] * len(powers):
        raise ValueError(f"{len(powers)} terms of {states} equations have used = {used!r:.40}")
    return Polynomial(jnp.zeros((len(powers), states)), used, powers)
