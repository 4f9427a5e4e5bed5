"""A block of training steps, compiled as one program."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._solve.arguments import is_real
from ._devices import replicate, shard_rows
from ._machine import load
from ._metrics import Record


class Program(NamedTuple):
    """The part of a block that does not change. Equal programs share their compiled code."""

    loss: Callable
    optimiser: Any
    batch_size: int | None
    evaluate: Callable | None
    single_seed: bool
    mesh: Mesh | None = None

    def over_seeds(self, function: Callable) -> Callable:
        """Maps `function(values_of_the_seed, shared_values)` over the seeds."""
        if self.single_seed:
            return function
        return eqx.filter_vmap(function, in_axes=(eqx.if_array(0), None))


class TrainingState(NamedTuple):
    """The state between two steps. `best` holds the best model so far and its metric, if the best
    model is kept."""

    model: PyTree
    optimiser: PyTree
    seed: Array
    best: tuple[PyTree, Array] | None = None


def initial_state(program: Program, make: Callable, seeds: Array, keep_best: bool) -> TrainingState:
    def one_seed(seed, _):
        model = make(jax.random.key(seed))
        if not jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)):
            raise ValueError(
                f"make returned {model!r:.60}, which holds nothing to train; expected a pytree "
                "with arrays of floats."
            )
        optimiser = program.optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        # NumPy arrays may have types that JAX lacks, which a compiled block cannot return.
        arrays, static = eqx.partition(TrainingState(model, optimiser, seed), eqx.is_array)
        return eqx.combine(jax.tree.map(jnp.asarray, arrays), static)

    # It runs once, and compiling it would take longer.
    state = program.over_seeds(one_seed)(seeds, None)
    if not keep_best:
        return state
    # The type is given: weakly typed, it would make the second block compile again.
    worst = jnp.full(jnp.shape(state.seed), jnp.inf, jnp.zeros(()).dtype)
    return state._replace(best=(state.model, worst))


def run_block(
    program: Program,
    state: TrainingState,
    data: PyTree,
    test_data: PyTree,
    step: int,
    length: int,
    keep: str | None,
) -> tuple[TrainingState, list[Record]]:
    """Runs `length` steps after `step`. Returns the new state and one record a step, the last one
    with the metrics of `evaluate`."""
    state, metrics, evaluated = _compiled_block(
        program, state, data, test_data, jnp.asarray(step), length
    )
    # Several seeds are the first axis, since the whole loop is vmapped. Records go by step.
    axis = 0 if program.single_seed else 1
    metrics = {name: np.moveaxis(np.asarray(x), axis, 0) for name, x in metrics.items()}
    records = [
        {"step": step + i + 1} | {name: x[i] for name, x in metrics.items()} for i in range(length)
    ]
    duplicates = sorted(evaluated.keys() & records[-1].keys())
    if duplicates:
        raise ValueError(f"evaluate returned {', '.join(duplicates)}, which exist: rename them.")
    evaluated = {name: np.asarray(x) for name, x in evaluated.items()}
    records[-1] |= evaluated
    return _update_best(state, evaluated, keep), records


@eqx.filter_jit
def _compiled_block(
    program: Program,
    state: TrainingState,
    data: PyTree,
    test_data: PyTree,
    step: Array,
    length: int,
):
    def one_seed(state, data):
        batches = _BatchRows(program.batch_size, state.seed, step, length, data)
        arrays, static = eqx.partition(state, eqx.is_array)

        def body(arrays, number):
            batch, weights = batches.at(number)
            batch = shard_rows(program.mesh, batch)
            state, metrics = _step(program, eqx.combine(arrays, static), batch, weights, number)
            return eqx.filter(state, eqx.is_array), metrics

        arrays, metrics = jax.lax.scan(body, arrays, step + jnp.arange(length))
        return eqx.combine(arrays, static), metrics

    state, metrics = program.over_seeds(one_seed)(state, data)
    evaluated = {}
    if program.evaluate is not None:
        evaluated = program.over_seeds(program.evaluate)(state.model, test_data)
        _check_metrics(evaluated, "evaluate")
    return replicate(program.mesh, (state, metrics, evaluated))


def _step(
    program: Program, state: TrainingState, batch: PyTree, weights: Array | None, number: Array
) -> tuple[TrainingState, dict]:
    random = {"key": _loss_key(state.seed, number)} if _takes_key(program.loss) else {}

    def mean_loss(model):
        returned = program.loss(model, batch, **random)
        values, metrics = returned if isinstance(returned, tuple) else (returned, {})
        _check_loss(values, weights)
        _check_metrics(metrics, "loss")
        if {"loss", "step"} & metrics.keys():
            raise ValueError("The metrics of a loss may not be called loss or step: rename them.")
        return jnp.average(jnp.asarray(values), weights=weights), metrics

    (value, metrics), gradient = eqx.filter_value_and_grad(mean_loss, has_aux=True)(state.model)
    parameters = eqx.filter(state.model, eqx.is_inexact_array)
    loss_of = lambda parameters: mean_loss(eqx.combine(parameters, state.model))[0]
    # Arguments of optimisers with a line search, or that look at the loss.
    extra = {"value": value, "grad": gradient, "value_fn": loss_of}
    update = load("optax").with_extra_args_support(program.optimiser).update
    extra = _choose_arguments(update, extra, grad_fn=lambda at, _: eqx.filter_grad(loss_of)(at))
    updates, optimiser = update(gradient, state.optimiser, parameters, **extra)
    model = eqx.apply_updates(state.model, updates)
    new = state._replace(model=model, optimiser=optimiser)
    return _keep_types(state, new), {"loss": value, **metrics}


def _choose_arguments(function: Callable, usual: dict[str, Any], **named: Any) -> dict[str, Any]:
    """The arguments that `function` takes. With `**kwargs` it gets the `usual` ones and those that
    it names."""
    parameters = inspect.signature(function).parameters
    takes_any = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    wanted = {*parameters, *usual} if takes_any else {*parameters}
    return {name: value for name, value in (usual | named).items() if name in wanted}


def _keep_types(old: TrainingState, new: TrainingState) -> TrainingState:
    """Casts numbers to their initial precision. A float32 learning rate makes float32 updates of
    bfloat16 parameters."""

    def cast(new, old):
        differs = eqx.is_inexact_array(old) and eqx.is_inexact_array(new) and new.dtype != old.dtype
        return new.astype(old.dtype) if differs else new

    return jax.tree.map(cast, new, old)


def _takes_key(loss: Callable) -> bool:
    try:
        parameter = inspect.signature(loss).parameters.get("key")
    except (TypeError, ValueError):
        return False
    # A key with a default is not ours to give, as in functools.partial(loss, key=key).
    return parameter is not None and parameter.default is parameter.empty


def _loss_key(seed: Array, number: Array) -> PRNGKeyArray:
    """A key apart from those that `make` and the order of the rows get from the seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**32 - 1), number)


class _BatchRows:
    """The rows of each step. Each pass over the data has its own order, made from the seed and the
    number of the pass, so a block needs nothing from the block before it."""

    def __init__(self, size: int | None, seed: Array, step: Array, length: int, data: PyTree):
        self.data, self.rows = data, count_rows(data)
        self.size = None if size is None or size >= self.rows else size
        if self.size is not None:
            self.per_pass = -(-self.rows // self.size)
            self.first = step // self.per_pass
            passes = self.first + jnp.arange((length - 1) // self.per_pass + 2)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), passes)
            self.orders = jax.vmap(lambda key: jax.random.permutation(key, self.rows))(keys)

    def at(self, number: Array) -> tuple[PyTree, Array | None]:
        """The rows of step `number` and their weights, 1 or 0. None weights all rows alike."""
        if self.size is None:
            return self.data, None
        places = number % self.per_pass * self.size + jnp.arange(self.size)
        order = self.orders[number // self.per_pass - self.first]
        # The last batch of a pass is filled up with rows of weight 0.
        chosen = order[jnp.minimum(places, self.rows - 1)]
        return jax.tree.map(lambda x: x[chosen], self.data), (places < self.rows).astype(float)


def count_rows(data: PyTree) -> int:
    return jax.tree.leaves(data)[0].shape[0]


# --- the best model -------------------------------------------------------------------------------


def _update_best(
    state: TrainingState, evaluated: dict[str, np.ndarray], keep: str | None
) -> TrainingState:
    """Replaces the best model, for each seed, where the metric `keep` has a new minimum."""
    if keep is None or state.best is None:
        return state
    model, least = state.best
    _check_kept_metric(keep, evaluated, least.ndim)
    value = jnp.asarray(evaluated[keep], least.dtype)
    better = value < least

    def choose(new, old):
        if not eqx.is_array(new):
            return new
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    best = (jax.tree.map(choose, state.model, model), jnp.where(better, value, least))
    return state._replace(best=best)


def _check_kept_metric(keep: str, evaluated: dict[str, np.ndarray], axes: int) -> None:
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


# --- checks of returned values --------------------------------------------------------------------


def _check_loss(values: Any, weights: Array | None) -> None:
    if not is_real(values):
        raise TypeError(
            f"loss returned {_describe(values)}; expected one real value a row of the batch, or a "
            "single one, and perhaps a dictionary of metrics: return value, metrics."
        )
    if weights is not None and jnp.shape(values) != weights.shape:
        raise ValueError(
            f"loss returned values of shape {jnp.shape(values)} for a batch of {weights.size} "
            "rows; expected one a row, since the last batch of a pass has rows of weight 0."
        )


def _check_metrics(metrics: Any, source: str) -> None:
    if not isinstance(metrics, dict):
        raise TypeError(
            f"{source} returned {metrics!r:.60} for its metrics; expected a dictionary, such as "
            '{"error": error}.'
        )
    for name, value in metrics.items():
        if not is_real(value):
            raise ValueError(
                f"{source} returned the metric {name!r} as {_describe(value)}; expected a number "
                "or an array of numbers, real ones. Split a complex one into its two parts."
            )


def _describe(value: Any) -> str:
    """A value in a message. Of an array, only the type is known while it is traced."""
    return f"an array of {value.dtype}" if isinstance(value, jax.Array) else f"{value!r:.60}"
