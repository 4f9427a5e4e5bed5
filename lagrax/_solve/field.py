"""The user's field and past, with all they close over made explicit."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .delays import Delay, describe


class Field(eqx.Module):
    """The user's field. `prepare` runs once an interval on the held states, `evaluate` gets its
    result. Arrays they close over are leaves, so that gradients reach them. `may_jump` says that
    there are breakpoints and that the field depends on time, so that it may change there."""

    prepare: Callable
    evaluate: Callable
    may_jump: bool = eqx.field(static=True, default=False)


def takes_history(field: Callable) -> bool:
    try:
        parameters = inspect.signature(field).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "history" or p.kind is p.VAR_KEYWORD for p in parameters)


def closed(function: Callable, *examples: Any) -> Callable:
    """`function` as a pytree whose leaves are the traced arrays it closes over."""
    return eqx.filter_closure_convert(function, *examples)


def make_past(past: Callable | None, y0: PyTree, t0: Array) -> Callable:
    """The state before t0, as a function of time."""
    if past is None:
        return eqx.Partial(lambda y0, t: y0, y0)
    return closed(lambda t: _like(past(t), y0), t0)


def make_field(
    field: Callable,
    t: Array,
    y: PyTree,
    args: PyTree,
    delays: Sequence[Delay],
    places: tuple[int, ...] | None = None,
) -> Field:
    """Traces the field once, so that a wrong one is told so here.

    `places` says which entry of the history each entry is known to be, itself or an earlier one:
    equal ones reach the field's `hold` as one object, so that it may treat them as one.
    """
    history = tuple(y for _ in delays)
    call = field
    if not takes_history(field):
        call = lambda t, y, args, *, history: field(t, y, args)
    hold = getattr(field, "hold") if has_hold(field) else lambda history: history  # noqa: B009
    if places is None:
        prepare = closed(hold, history)
    else:
        distinct = sorted(set(places))
        of_distinct = closed(
            lambda *states: hold(tuple(states[distinct.index(p)] for p in places)),
            *(history[p] for p in distinct),
        )
        prepare = eqx.Partial(_prepare_distinct, of_distinct, distinct)
    prepared = eqx.filter_eval_shape(prepare, history)

    def evaluate(t, y, args, history):
        return _like(call(t, y, args, history=history), y)

    _check_call(call, t, y, args, prepared, delays)
    return Field(prepare, closed(evaluate, t, y, args, _example(prepared)))


def _prepare_distinct(prepare: Callable, distinct: list[int], history: tuple) -> PyTree:
    return prepare(*(history[p] for p in distinct))


def has_hold(field: Any) -> bool:
    return callable(getattr(field, "hold", None))


def _example(struct: PyTree) -> PyTree:
    is_struct = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if is_struct(x) else x, struct, is_leaf=is_struct
    )


def _like(slope: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(lambda d, y: jnp.asarray(d, y.dtype), slope, y)


def _check_call(call, t, y, args, prepared, delays) -> None:
    try:
        slope = eqx.filter_eval_shape(
            lambda t, y, args, history: jax.tree.map(
                jnp.asarray, call(t, y, args, history=history)
            ),
            t,
            y,
            args,
            prepared,
        )
    except (ValueError, IndexError) as error:
        if "to unpack" not in str(error) and str(error) != "tuple index out of range":
            raise
        raise type(error)(
            f"The field could not take its history apart ({error}): history is a tuple of "
            f"{len(delays)}, one entry for each delay, and the delays are {describe(delays)}. "
            "Take as many, or change `delays`."
        ) from error
    got, expected = jax.tree.structure(slope), jax.tree.structure(y)
    if got != expected:
        raise ValueError(
            f"The field returned a pytree {got}, expected that of the state, {expected}. Return "
            "dy/dt in the structure of y."
        )
    for d, x in zip(jax.tree.leaves(slope), jax.tree.leaves(y), strict=True):
        if d.shape != x.shape:
            raise ValueError(
                f"The field returned the shape {d.shape} for a state of shape {x.shape}. Return "
                "dy/dt in the shape of y."
            )
        if jnp.result_type(d, x) != x.dtype:
            raise ValueError(
                f"The field returned {d.dtype} for a state of {x.dtype}. Convert one to the other: "
                f"y0 to {d.dtype}, or the field's result with .astype({x.dtype})."
            )


def jaxpr_of(field: Field, t: Array, y: PyTree, args: PyTree, delays: Sequence[Delay]) -> Any:
    """The jaxpr of one evaluation as a function of t and y."""
    prepared = eqx.filter_eval_shape(field.prepare, tuple(y for _ in delays))
    evaluate = lambda t, y: field.evaluate(t, y, args, _example(prepared))
    return jax.make_jaxpr(evaluate)(t, y).jaxpr


def is_constant(jaxpr: Any) -> bool:
    """Whether a field depends on neither t nor y, so that it is constant between breakpoints, as
    in the paper's eqs. 8 and 12."""
    return not any(_needed(jaxpr, [True] * len(jaxpr.outvars)))


def uses_time(jaxpr: Any) -> bool:
    """Whether a field depends on t."""
    return _needed(jaxpr, [True] * len(jaxpr.outvars))[0]


def has_products(jaxpr: Any) -> bool:
    """Whether a field multiplies matrices or convolves: then an evaluation is worth more than a
    turn of a loop."""
    text = str(jaxpr)
    return "dot_general" in text or "conv_general_dilated" in text


def _needed(jaxpr: Any, wanted: list[bool]) -> list[bool]:
    """Which inputs of a jaxpr its wanted outputs depend on."""
    live = {v for v, w in zip(jaxpr.outvars, wanted, strict=True) if w and _is_variable(v)}
    for eqn in reversed(jaxpr.eqns):
        outputs = [v in live for v in eqn.outvars]
        if not any(outputs):
            continue
        inner = eqn.params.get("jaxpr")
        if eqn.primitive.name in ("jit", "pjit") and inner is not None:
            inputs = _needed(inner.jaxpr, outputs)
        else:
            inputs = [True] * len(eqn.invars)
        live |= {v for v, n in zip(eqn.invars, inputs, strict=True) if n and _is_variable(v)}
    return [v in live for v in jaxpr.invars]


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # literals carry their value
