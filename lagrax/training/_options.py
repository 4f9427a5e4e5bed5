"""Checks of the arguments of `train`."""

import itertools
import json
import operator
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._solve.arguments import check_whole, is_number, is_whole
from ._files import checked_path

# Steps in one compiled call, which returns the metrics of all of them.
MOST_STEPS = 10**7

# Seeds in one program, which holds the models of all of them.
MOST_SEEDS = 10**6


class Schedule(NamedTuple):
    """The options of `train` that decide the result of a run, as JSON holds them."""

    steps: int
    block: int
    batch_size: int | None
    seeds: int | list[int]
    keep: str | None
    patience: int | None

    @property
    def single_seed(self) -> bool:
        return isinstance(self.seeds, int)

    def to_config(self) -> dict[str, Any]:
        """The entries of config.json. Without `keep` there is no patience either."""
        dropped = () if self.keep else ("keep", "patience")
        return {name: x for name, x in self._asdict().items() if name not in dropped}


def check_schedule(
    steps: Any,
    block: Any,
    batch_size: Any,
    seeds: Any,
    keep: Any,
    patience: Any,
    evaluate: Callable | None,
) -> Schedule:
    if not isinstance(keep, (str, NoneType)):
        raise TypeError(f"train got keep={keep!r:.60}; expected the name of a metric of evaluate.")
    if keep is not None and evaluate is None:
        raise ValueError(f"train got keep={keep!r} and no evaluate, which returns that metric.")
    if keep is None and patience is not None:
        raise ValueError(f"train got patience={patience} and no `keep`, the metric to wait for.")
    schedule = Schedule(
        _check_positive("steps", steps),
        _check_positive("block", block),
        None if batch_size is None else _check_positive("batch_size", batch_size),
        _check_seeds(seeds),
        keep,
        None if patience is None else _check_positive("patience", patience),
    )
    if min(schedule.steps, schedule.block) > MOST_STEPS:
        raise ValueError(
            f"train got block={schedule.block:,}; expected at most {MOST_STEPS:,} steps in one "
            "compiled call, which keeps the metrics of all of them and shows nothing until its end."
        )
    return schedule


def _check_positive(name: str, value: Any) -> int:
    check_whole("train", name, value, 1)
    return int(value)


def _check_seeds(seeds: Any) -> int | list[int]:
    single = is_whole(seeds)
    try:
        # One more than are allowed, since a range may be longer than the memory.
        several = itertools.islice(seeds, MOST_SEEDS + 1) if not single else [seeds]
        listed = [operator.index(seed) for seed in several]
    except TypeError:
        listed = []
    if len(listed) > MOST_SEEDS:
        raise ValueError(
            f"train got seeds={seeds!r:.60}; expected at most {MOST_SEEDS:,}, since one program "
            "holds the models of all of them. Train the others in another call."
        )
    if not listed or len(set(listed)) < len(listed) or not all(0 <= s < 2**31 for s in listed):
        raise ValueError(
            f"train got seeds={seeds}; expected a whole number from 0 to 2^31 - 1, or several "
            "different ones."
        )
    return listed[0] if single else listed


def check_functions(loss: Any, make: Any, optimiser: Any, evaluate: Any) -> None:
    functions = {"loss": loss, "make": make} | ({} if evaluate is None else {"evaluate": evaluate})
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"train got {name}={function!r:.60}; expected a function.")
    if not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise TypeError(
            f"train got optimiser={optimiser!r:.60}; expected one of optax, such as "
            "optax.adam(1e-2)."
        )


def check_run(
    folder: Any, config: Any, checkpoint_seconds: Any, tensorboard: bool, stop: Any
) -> None:
    """Checks the arguments that do not change the result."""
    if folder is not None:
        checked_path("train's folder", folder)
    elif tensorboard:
        raise ValueError("train got tensorboard=True and no folder for the event files: give one.")
    if not isinstance(config, dict):
        raise TypeError(f"train got config={config!r:.60}; expected a dictionary.")
    for name, value in config.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"train got config[{name!r}] that JSON cannot hold: {error}."
            ) from None
    if not is_number(checkpoint_seconds):
        raise ValueError(
            f"train got checkpoint_seconds={checkpoint_seconds!r}; expected a number of seconds."
        )
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise TypeError(f"train got stop={stop!r:.60}; expected a threading.Event.")


def to_device(data: PyTree, name: str) -> PyTree:
    def convert(x: Any) -> Array:
        try:
            return jnp.asarray(x)
        except (TypeError, ValueError):
            raise TypeError(f"train got {name} with {x!r:.60}; expected arrays.") from None

    return jax.tree.map(convert, data)


def check_rows(data: PyTree) -> None:
    shapes = [jnp.shape(x) for x in jax.tree.leaves(data)]
    if not shapes or any(not s or s[0] != shapes[0][0] or not s[0] for s in shapes):
        raise ValueError(
            f"train got data of shapes {shapes}; expected arrays with one common first axis, the "
            "rows, of which there is one at least."
        )
