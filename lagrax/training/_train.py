"""One training loop for everything: compiled blocks of steps, metrics, checkpoints, resuming.

```python
trained = lagrax.training.train(loss, make, data, optax.adam(1e-2), steps=3000, folder="runs/mine")
```

Run it again after a crash, a kill or Ctrl-C and it goes on where it stopped, to bit-for-bit the
same parameters and metrics. Everything a step does follows from the seed and its number, so a
checkpoint needs to hold no more than the model and the optimiser's state.
"""

import inspect
import json
import operator
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._solve.arguments import check_whole, is_number, is_real, is_whole
from . import _machine
from ._devices import as_the_first_knows, divided, make_mesh, on_all
from ._files import checked_path
from ._progress import Progress
from ._runs import InMemory, Record, RunError as RunError, RunFolder, fingerprint

# Steps in one compiled call, which keeps the metrics of all of them.
_MOST_STEPS = 10**7


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and what to do."""


class Series(NamedTuple):
    """A metric over the training.

    - `steps`: the numbers of the steps after which it was taken; the first is 1.
    - `values`: one for each of these, and with several seeds one column for each seed.
    """

    steps: np.ndarray
    values: np.ndarray


class Trained(NamedTuple):
    """What `train` returns.

    - `model`: the trained one; with several seeds its arrays have the seeds in front.
    - `metrics`: a `Series` for each metric by name, `"loss"` among them.
    - `seconds`: the time of training, all attempts of a run that was stopped and continued.
    """

    model: PyTree
    metrics: dict[str, Series]
    seconds: float


class _State(NamedTuple):
    """`best` is the model with the least of the metric to keep it by, and that least value."""

    model: PyTree
    optimiser: PyTree
    seed: Array
    best: tuple[PyTree, Array] | None = None


class _Job(NamedTuple):
    """What stays the same in all steps; two runs with the same one share their compiled code."""

    loss: Callable
    optimiser: Any
    batch_size: int | None
    evaluate: Callable | None
    single: bool
    mesh: Mesh | None = None


def train(
    loss: Callable[..., Any],
    make: Callable[[PRNGKeyArray], PyTree],
    data: PyTree,
    optimiser: Any,
    *,
    steps: int | np.integer,
    seeds: int | np.integer | Sequence[int] | np.ndarray = 0,
    batch_size: int | np.integer | None = None,
    evaluate: Callable[..., dict[str, Any]] | None = None,
    test_data: PyTree = None,
    keep: str | None = None,
    patience: int | np.integer | None = None,
    block: int | np.integer = 100,
    devices: int | np.integer | Sequence[Any] | None = None,
    folder: str | Path | None = None,
    config: dict[str, Any] | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    progress: bool | Callable[[int, Any], None] = True,
    tensorboard: bool = False,
    stop: threading.Event | None = None,
) -> Trained:
    """Minimises `loss` over models made by `make`, in blocks of steps compiled as one.

    Choose it where runs are long, may be stopped, or have several seeds; for anything else a loop
    of your own does as well, since models are ordinary pytrees.

    **Arguments:**

    - `loss(model, batch)`: one value a row of the batch; the mean is minimised. (A single one will
      do where all batches are full.) It may return `(values, metrics)` with a dictionary of more to
      record at each step, as it is: where the last batch of a pass is filled up, its metrics are of
      the filling, too, which the loss leaves out. `loss(model, batch, key)` is given a random key,
      another one at each step, for dropout or noise.
    - `make(key)`: the model to start from, whose inexact arrays are trained.
    - `data`: arrays with a common first axis, the rows. They stay on the device.
    - `optimiser`: an optax gradient transformation, also one that asks for the loss, such as
      `optax.contrib.reduce_on_plateau()` or `optax.lbfgs()`.
    - `steps`: how many. A run in a folder may be given more of them later, and goes on from its
      last whole block, so that it ends as one that was given them at once.
    - `seeds`: one, or several that train side by side as one vmapped program: compiled once, and on
      a CPU faster than one after the other.
    - `batch_size`: rows a step, shuffled anew each time all have been seen, the last batch of a
      pass being smaller if they do not come out even. None takes all rows at every step.
    - `evaluate(model, test_data)`: a dictionary of metrics, taken after each block.
    - `keep`: a metric of `evaluate`, one real number; the model that is returned is then not the
      last one, but for each seed the one that had the least of it after a block.
    - `patience`: stop once no seed has had a new least for so many blocks.
    - `block`: steps in one compiled call. Progress, metrics and checkpoints come between blocks.
    - `devices`: so many, or just these, share the rows of each step (its batch must come out even);
      the result is that of one to rounding. With several processes (`jax.distributed`) all call
      `train` alike with `devices=jax.devices()`, and the first one keeps the folder.
    - `folder`: where configuration, metrics, checkpoints and the mark `done.json` go; None keeps
      nothing. A run that is there already is continued, or begun anew with `resume=False`.
    - `config`: what else belongs to the run's configuration. A folder whose run was configured
      otherwise, or had other data or another start, is refused. Functions cannot be compared: name
      here what makes a run another one, such as the learning rate.
    - `checkpoint_seconds`: the least time between two checkpoints.
    - `progress`: whether to show the loss and the time left on stderr. A function is called after
      each block instead, with the number of its last step and the loss of that step.
    - `tensorboard`: whether to write event files, too.
    - `stop`: once set, by another thread, the run ends between two blocks as by Ctrl-C.

    **Returns:** a `Trained`.
    """
    _check_parts(loss, make, optimiser, evaluate, config, checkpoint_seconds)
    _check_surroundings(folder, stop)
    numbers: dict[str, Any] = {"steps": steps, "block": block, "batch_size": batch_size}
    own = _checked(seeds, config, **numbers | ({"patience": patience} if keep else {}))
    own |= {"keep": keep} if keep else {}
    _check_keep(keep, patience, evaluate)
    data, test_data = _on_device(data, "data"), _on_device(test_data, "test_data")
    _check_rows(data)
    mesh = make_mesh(devices, own["batch_size"] or _rows(data), _rows(data))
    job = _Job(loss, optimiser, own["batch_size"], evaluate, isinstance(own["seeds"], int), mesh)
    state = _start(job, make, jnp.asarray(own["seeds"]))
    if keep is not None:
        # Not weakly typed, or the second block would be compiled anew.
        worst = jnp.full(jnp.shape(state.seed), jnp.inf, jnp.zeros(()).dtype)
        state = state._replace(best=(state.model, worst))
    if folder is not None:
        own |= {"data": fingerprint(data), "start": fingerprint(state)}
        own |= {} if evaluate is None else {"test_data": fingerprint(test_data)}
    with _open_run(folder, own, resume, tensorboard) as run:
        # An end within a block is no end of a block any longer once there are more steps.
        usable = lambda step: step == own["steps"] or step % own["block"] == 0
        step, state, seconds = run.restore(state, usable)
        step, state, seconds, run.records = as_the_first_knows(step, state, seconds, run.records)
        state, data, test_data = on_all(mesh, (state, data, test_data))
        point = (step, state, seconds)
        clock = _Clock(seconds, checkpoint_seconds)
        with Progress(
            run.name, step, own["steps"], shown=bool(progress) and not callable(progress)
        ) as bar:
            try:
                while step < own["steps"] and not _lost_patience(run.records, own):
                    length = min(own["block"], own["steps"] - step)
                    new, records, found = _block(job, state, data, test_data, step, length)
                    new = _with_best(new, found, keep)
                    run.append(records)
                    _stop_if_lost(records)
                    # One assignment, which Ctrl-C cannot divide.
                    point = (step + length, new, clock.seconds())
                    step, state, seconds = point
                    bar.update(step, _text(records[-1]["loss"]))
                    if callable(progress):
                        progress(step, records[-1]["loss"])
                    # Before a block cut short, too: with more steps the run goes on from there.
                    last = own["steps"] - step < own["block"] or _lost_patience(run.records, own)
                    if last or clock.checkpoint_due():
                        run.save(step, state, seconds)
                    if stop is not None and stop.is_set():
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                if point[0] > 0:
                    run.save(*point)
                raise
        run.finish(step, seconds)
        model = state.model if state.best is None else state.best[0]
        return Trained(model, _series(run.records), seconds)


def _on_device(data: PyTree, name: str) -> PyTree:
    def one(x: Any) -> Array:
        try:
            return jnp.asarray(x)
        except (TypeError, ValueError):
            raise TypeError(f"train got {name} with {x!r:.60}; expected arrays.") from None

    return jax.tree.map(one, data)


def _open_run(
    folder: str | Path | None, config: dict[str, Any], resume: bool, tensorboard: bool
) -> InMemory | RunFolder:
    if folder is not None and jax.process_index() == 0:
        return RunFolder(Path(folder), config, resume=resume, tensorboard=tensorboard)
    if tensorboard and folder is None:
        raise ValueError("train got tensorboard=True and no folder for the event files: give one.")
    return InMemory()


class _Clock:
    """Time that counts on from an earlier attempt, whatever the wall clock does."""

    def __init__(self, seconds: float, interval: float):
        self._seconds = self._last = seconds
        self._interval = interval
        self._now = time.monotonic()

    def seconds(self) -> float:
        now = time.monotonic()
        # Even this clock may go back when a machine goes on as another one.
        self._seconds += max(now - self._now, 0.0)
        self._now = now
        return self._seconds

    def checkpoint_due(self) -> bool:
        due = self.seconds() - self._last >= self._interval
        if due:
            self._last = self._seconds
        return due


# --- compiled -------------------------------------------------------------------------------------


def _start(job: _Job, make: Callable, seeds: Array) -> _State:
    def one(seed, _):
        model = make(jax.random.key(seed))
        if not jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)):
            raise ValueError(
                f"make returned {model!r:.60}, which holds nothing to train; expected a pytree "
                "with arrays of floats."
            )
        optimiser = job.optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        # NumPy's arrays may be of types that JAX does not have, and compiled blocks not return.
        arrays, static = eqx.partition(_State(model, optimiser, seed), eqx.is_array)
        return eqx.combine(jax.tree.map(jnp.asarray, arrays), static)

    # Not compiled: it runs once, and compiling it takes longer.
    return _over_seeds(job, one)(seeds, None)


def _over_seeds(job: _Job, function: Callable) -> Callable:
    """`function(of the seed, shared by all)` for each seed."""
    return function if job.single else eqx.filter_vmap(function, in_axes=(eqx.if_array(0), None))


@eqx.filter_jit
def _compiled(job: _Job, state: _State, data: PyTree, test_data: PyTree, step: Array, length: int):
    def one(state, data):
        batches = _Batches(job.batch_size, state.seed, step, length, data)
        arrays, static = eqx.partition(state, eqx.is_array)

        def body(arrays, number):
            batch, weights = batches.at(number)
            batch = divided(job.mesh, batch)
            state, metrics = _step(job, eqx.combine(arrays, static), batch, weights, number)
            return eqx.filter(state, eqx.is_array), metrics

        arrays, metrics = jax.lax.scan(body, arrays, step + jnp.arange(length))
        return eqx.combine(arrays, static), metrics

    state, metrics = _over_seeds(job, one)(state, data)
    evaluated = {}
    if job.evaluate is not None:
        evaluated = _over_seeds(job, job.evaluate)(state.model, test_data)
        _check_metrics(evaluated, "evaluate")
    return on_all(job.mesh, (state, metrics, evaluated))


def _step(
    job: _Job, state: _State, batch: PyTree, weights: Array | None, number: Array
) -> tuple[_State, dict]:
    random = {"key": _key_of_loss(state.seed, number)} if _takes_key(job.loss) else {}

    def mean(model):
        values = job.loss(model, batch, **random)
        values, metrics = values if isinstance(values, tuple) else (values, {})
        if not is_real(values):
            raise TypeError(
                f"loss returned {_seen(values)}; expected one real value a row of the batch, or a "
                "single one, and perhaps a dictionary of metrics: return value, metrics."
            )
        if weights is not None and jnp.shape(values) != weights.shape:
            raise ValueError(
                f"loss returned values of shape {jnp.shape(values)} for a batch of {weights.size} "
                "rows; expected one a row, since the last batch of a pass has rows that do not "
                "count."
            )
        _check_metrics(metrics, "loss")
        if {"loss", "step"} & metrics.keys():
            raise ValueError("The metrics of a loss may not be called loss or step: rename them.")
        return jnp.average(jnp.asarray(values), weights=weights), metrics

    (value, metrics), gradient = eqx.filter_value_and_grad(mean, has_aux=True)(state.model)
    parameters = eqx.filter(state.model, eqx.is_inexact_array)
    # What optimisers beyond the usual ask for, such as those that search along a line.
    loss_of = lambda parameters: mean(eqx.combine(parameters, state.model))[0]
    more = {"value": value, "grad": gradient, "value_fn": loss_of}
    update = _machine.load("optax").with_extra_args_support(job.optimiser).update
    more = _choose_arguments(update, more, grad_fn=lambda at, _: eqx.filter_grad(loss_of)(at))
    updates, optimiser = update(gradient, state.optimiser, parameters, **more)
    model = eqx.apply_updates(state.model, updates)
    new = state._replace(model=model, optimiser=optimiser)
    return _keep_types(state, new), {"loss": value, **metrics}


def _choose_arguments(function: Callable, usual: dict[str, Any], **named: Any) -> dict[str, Any]:
    """Those that `function` takes; if it takes any, the `usual` ones and those that it names."""
    parameters = inspect.signature(function).parameters
    takes_any = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    wanted = {*parameters, *usual} if takes_any else {*parameters}
    return {name: value for name, value in (usual | named).items() if name in wanted}


def _keep_types(old: _State, new: _State) -> _State:
    """Casts numbers to the precision that they began with. A float32 learning rate makes float32
    updates of bfloat16 parameters."""

    def one(new, old):
        cast = eqx.is_inexact_array(old) and eqx.is_inexact_array(new) and new.dtype != old.dtype
        return new.astype(old.dtype) if cast else new

    return jax.tree.map(one, new, old)


def _takes_key(loss: Callable) -> bool:
    try:
        parameter = inspect.signature(loss).parameters.get("key")
    except (TypeError, ValueError):
        return False
    # With a default, as functools.partial(loss, key=key) has it, it is somebody else's.
    return parameter is not None and parameter.default is parameter.empty


def _key_of_loss(seed: Array, number: Array) -> PRNGKeyArray:
    """Apart from those that the seed itself has given to `make` and to the order of the rows."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**32 - 1), number)


def _check_metrics(metrics: Any, source: str) -> None:
    if not isinstance(metrics, dict):
        raise TypeError(
            f"{source} returned {metrics!r:.60} for its metrics; expected a dictionary, such as "
            '{"error": error}.'
        )
    for name, value in metrics.items():
        if not is_real(value):
            raise ValueError(
                f"{source} returned the metric {name!r} as {_seen(value)}; expected a number, or "
                "an array of them, and real ones. Split a complex one into its two parts."
            )


def _seen(value: Any) -> str:
    """A value in a message; of an array its type, since what it holds is traced."""
    return f"an array of {value.dtype}" if isinstance(value, jax.Array) else f"{value!r:.60}"


class _Batches:
    """The rows of each step. Every pass over the data has an order of its own, made of the seed and
    the number of the pass, so nothing has to be remembered from one block to the next."""

    def __init__(self, size: int | None, seed: Array, step: Array, length: int, data: PyTree):
        self.data, self.rows = data, _rows(data)
        self.size = None if size is None or size >= self.rows else size
        if self.size is not None:
            self.per_pass = -(-self.rows // self.size)
            self.first = step // self.per_pass
            passes = self.first + jnp.arange((length - 1) // self.per_pass + 2)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), passes)
            self.orders = jax.vmap(lambda key: jax.random.permutation(key, self.rows))(keys)

    def at(self, number: Array) -> tuple[PyTree, Array | None]:
        """The rows of step `number`, and which of them count (all, if None)."""
        if self.size is None:
            return self.data, None
        places = number % self.per_pass * self.size + jnp.arange(self.size)
        order = self.orders[number // self.per_pass - self.first]
        # The last batch of a pass is filled up with rows that do not count.
        chosen = order[jnp.minimum(places, self.rows - 1)]
        return jax.tree.map(lambda x: x[chosen], self.data), (places < self.rows).astype(float)


def _rows(data: PyTree) -> int:
    return jax.tree.leaves(data)[0].shape[0]


# --- between blocks -------------------------------------------------------------------------------


def _block(
    job: _Job, state: _State, data: PyTree, test_data: PyTree, step: int, length: int
) -> tuple[_State, list[Record], dict[str, np.ndarray]]:
    number = jnp.asarray(step)
    state, metrics, evaluated = _compiled(job, state, data, test_data, number, length)
    # With several seeds they come first, since the whole loop is vmapped; records go by step.
    axis = 0 if job.single else 1
    metrics = {name: np.moveaxis(np.asarray(x), axis, 0) for name, x in metrics.items()}
    records = [
        {"step": step + i + 1} | {name: x[i] for name, x in metrics.items()} for i in range(length)
    ]
    taken = sorted(evaluated.keys() & records[-1].keys())
    if taken:
        raise ValueError(f"evaluate returned {', '.join(taken)}, which exist: rename them.")
    evaluated = {name: np.asarray(x) for name, x in evaluated.items()}
    records[-1] |= evaluated
    return state, records, evaluated


def _with_best(state: _State, evaluated: dict[str, np.ndarray], keep: str | None) -> _State:
    """Where the metric has a new least, the model is the best so far."""
    if keep is None or state.best is None:
        return state
    model, least = state.best
    _check_kept(keep, evaluated, least.ndim)
    value = jnp.asarray(evaluated[keep], least.dtype)
    better = value < least

    def chosen(new, old):
        if not eqx.is_array(new):
            return new
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    best = (jax.tree.map(chosen, state.model, model), jnp.where(better, value, least))
    return state._replace(best=best)


def _lost_patience(records: Sequence[Record], own: dict[str, Any]) -> bool:
    """Found from the records alone, so that a run stops at the same step however often it was
    continued."""
    keep, patience = own.get("keep"), own.get("patience")
    if patience is None:
        return False
    values = np.array([record[keep] for record in records if keep in record], float)
    if len(values) <= patience:
        return False
    values = np.where(np.isnan(values), np.inf, values).reshape(len(values), -1)
    return int(np.argmin(values, axis=0).max()) < len(values) - patience


def _check_parts(
    loss: Any, make: Any, optimiser: Any, evaluate: Any, config: Any, checkpoint_seconds: Any
) -> None:
    functions = {"loss": loss, "make": make} | ({} if evaluate is None else {"evaluate": evaluate})
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"train got {name}={function!r:.60}; expected a function.")
    if not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise TypeError(
            f"train got optimiser={optimiser!r:.60}; expected one of optax, such as "
            "optax.adam(1e-2)."
        )
    if config is not None and not isinstance(config, dict):
        raise TypeError(f"train got config={config!r:.60}; expected a dictionary.")
    if not is_number(checkpoint_seconds):
        raise ValueError(
            f"train got checkpoint_seconds={checkpoint_seconds!r}; expected a number of seconds."
        )


def _check_surroundings(folder: Any, stop: Any) -> None:
    if folder is not None:
        checked_path("train's folder", folder)
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise TypeError(f"train got stop={stop!r:.60}; expected a threading.Event.")


def _check_keep(keep: str | None, patience: Any, evaluate: Callable | None) -> None:
    if keep is not None and evaluate is None:
        raise ValueError(f"train got keep={keep!r} and no evaluate, which returns that metric.")
    if keep is None and patience is not None:
        raise ValueError(f"train got patience={patience} and no `keep`, the metric to wait for.")


def _check_kept(keep: str, evaluated: dict[str, np.ndarray], axes: int) -> None:
    if keep not in evaluated:
        names = ", ".join(map(repr, evaluated)) or "a metric"
        raise ValueError(
            f"train got keep={keep!r}, which evaluate does not return; expected {names}."
        )
    value = evaluated[keep]
    if value.ndim > axes or jnp.iscomplexobj(value):
        raise ValueError(
            f"train got keep={keep!r}, for which evaluate returns an array of shape "
            f"{value.shape[axes:]} and {value.dtype}; expected one real number."
        )


def _stop_if_lost(records: list[Record]) -> None:
    if not np.any(np.isfinite(records[-1]["loss"])):
        first = next(r["step"] for r in records if not np.any(np.isfinite(r["loss"])))
        raise TrainingError(
            f"The loss is not finite from step {first} on. Lower the learning rate, clip the "
            "gradients (optax.clip_by_global_norm), or look for what is not finite in the data."
        )


def _text(loss: Any) -> str:
    return f"loss {float(np.median(loss)):.3g}"


def _series(records: Sequence[Record]) -> dict[str, Series]:
    names = dict.fromkeys(name for record in records for name in record if name != "step")
    return {
        name: Series(
            np.array([r["step"] for r in records if name in r]),
            np.array([r[name] for r in records if name in r]),
        )
        for name in names
    }


def _checked(seeds: Any, config: dict[str, Any] | None, **numbers: Any) -> dict[str, Any]:
    """What a run is configured by, as JSON has it."""
    own: dict[str, Any] = {
        name: value if value is None else _whole(name, value) for name, value in numbers.items()
    }
    if min(own["steps"], own["block"]) > _MOST_STEPS:
        raise ValueError(
            f"train got block={own['block']:,}; expected at most {_MOST_STEPS:,} steps in one "
            "compiled call, which keeps the metrics of all of them and shows nothing until its end."
        )
    single = is_whole(seeds)
    try:
        listed = [operator.index(seed) for seed in ([seeds] if single else seeds)]
    except TypeError:
        listed = []
    if not listed or len(set(listed)) < len(listed) or not all(0 <= s < 2**31 for s in listed):
        raise ValueError(
            f"train got seeds={seeds}; expected a whole number from 0 to 2^31 - 1, or several "
            "different ones."
        )
    own["seeds"] = listed[0] if single else listed
    for name, value in (config or {}).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"train got config[{name!r}] that JSON cannot hold: {error}."
            ) from None
    # Apart from the arguments, which may have the same names.
    return own | {f"config.{name}": value for name, value in (config or {}).items()}


def _whole(name: str, value: Any) -> int:
    check_whole("train", name, value, 1)
    return int(value)


def _check_rows(data: PyTree) -> None:
    shapes = [jnp.shape(x) for x in jax.tree.leaves(data)]
    if not shapes or any(not s or s[0] != shapes[0][0] or not s[0] for s in shapes):
        raise ValueError(
            f"train got data of shapes {shapes}; expected arrays with one common first axis, the "
            "rows, of which there is one at least."
        )
