"""The user's field and past, as pytrees whose leaves are the arrays that they close over."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .delays import Entry, Hold, Input, LagEntry, describe, is_function, make_example
from .inputs import example_of_input, read_inputs


class Field(eqx.Module):
    """The user's field, in two parts.

    `prepare` runs once an interval on the held states, and `evaluate` takes its result. Arrays
    that they close over are leaves, so that gradients reach them.

    - `is_constant`: the field is constant between breakpoints, as in the paper's eqs. 8 and 12.
    - `may_jump`: the field depends on time, so it may change at breakpoints.
    - `has_products`: the field multiplies matrices or convolves, so that an evaluation costs more
      than one turn of a compiled loop.
    """

    prepare: Callable
    evaluate: Callable
    is_constant: bool = eqx.field(static=True, default=False)
    may_jump: bool = eqx.field(static=True, default=False)
    has_products: bool = eqx.field(static=True, default=False)


def takes_history(field: Callable) -> bool:
    """Whether a field has a parameter `history`."""
    try:
        parameters = inspect.signature(field).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "history" or p.kind is p.VAR_KEYWORD for p in parameters)


def has_hold(field: Any) -> bool:
    """Whether a field splits itself in `hold(history)` and `__call__`."""
    return callable(getattr(field, "hold", None))


def make_past(past: Callable | None, y0: PyTree, t0: Array) -> Callable:
    """Makes the initial function, which is the state before t0 as a function of time."""
    if past is None:
        return eqx.Partial(lambda y0, t: y0, y0)
    return eqx.filter_closure_convert(lambda t: _as_type_of(y0, past(t)), t0)


def make_fields(
    fields: Sequence[Callable], t: Array, y: PyTree, args: PyTree, delays: Sequence[Entry], num: int
) -> list[Field]:
    """Traces each field once, so that an invalid one raises here. `num` counts the intervals."""
    made = [make_field(f, t, y, args, delays) for f in fields]
    jaxprs = [_trace(f, t, y, args, delays) for f in made]
    used = [find_used_inputs(j, [True] * len(j.outvars)) for j in jaxprs]
    has_lines = any(isinstance(d, Input) and d.linear for d in delays)
    moves = has_lines or any(isinstance(d, LagEntry) for d in delays)
    is_constant = not moves and not any(any(inputs) for inputs in used)
    products = all(_has_products(j) for j in jaxprs)
    breakpoints = bool(delays) or num > 1
    fields_of_values = [_follow_lines(f) for f in made] if has_lines else made
    return [
        dataclasses.replace(
            f, is_constant=is_constant, may_jump=breakpoints and inputs[0], has_products=products
        )
        for f, inputs in zip(fields_of_values, used, strict=True)
    ]


def _follow_lines(field: Field) -> Field:
    """The field with inputs that change within an interval, so it prepares at each evaluation."""
    return Field(eqx.Partial(_keep), eqx.Partial(_prepare_and_evaluate, field))


def _keep(history: tuple) -> tuple:
    return tuple(history)


def _prepare_and_evaluate(
    field: Field, t: Array, y: PyTree, args: PyTree, history: tuple
) -> PyTree:
    return field.evaluate(t, y, args, field.prepare(read_inputs(history, t)))


def _example_history(y: PyTree, delays: Sequence[Entry]) -> tuple:
    def example(delay: Entry) -> PyTree:
        if is_function(delay):
            return y if delay.of is None else delay.of(y)
        if isinstance(delay, LagEntry):
            return make_example(delay, y)
        if isinstance(delay, Hold) and delay.of is not None:
            return delay.of(y)
        return example_of_input(delay) if isinstance(delay, Input) else y

    return tuple(example(d) for d in delays)


def make_field(
    field: Callable,
    t: Array,
    y: PyTree,
    args: PyTree,
    delays: Sequence[Entry],
    equal_to: tuple[int, ...] | None = None,
) -> Field:
    """Traces a field and checks its result.

    `equal_to[i]` is the first entry of the history known to equal entry i. Equal entries reach the
    field's `hold` as one object, so that it may treat them as one.
    """
    history = _example_history(y, delays)
    call = field
    if not takes_history(field):
        call = lambda t, y, args, *, history: field(t, y, args)
    hold = getattr(field, "hold") if has_hold(field) else lambda history: history  # noqa: B009

    def evaluate(t, y, args, history):
        return _as_type_of(y, call(t, y, args, history=history))

    with _explain_call(field, y, delays):
        if equal_to is None:
            prepare = eqx.filter_closure_convert(hold, history)
        else:
            distinct = sorted(set(equal_to))
            of_distinct = eqx.filter_closure_convert(
                lambda *states: hold(tuple(states[distinct.index(i)] for i in equal_to)),
                *(history[i] for i in distinct),
            )
            prepare = eqx.Partial(_prepare_distinct, of_distinct, distinct)
        prepared = eqx.filter_eval_shape(prepare, history)
        slope = eqx.filter_eval_shape(
            lambda t, y, args, history: jax.tree.map(
                jnp.asarray, call(t, y, args, history=history)
            ),
            *(t, y, args, prepared),
        )
    _check_slope(slope, y)
    example = _example(prepared)
    return Field(prepare, eqx.filter_closure_convert(evaluate, t, y, args, example))


def _prepare_distinct(prepare: Callable, distinct: list[int], history: tuple) -> PyTree:
    return prepare(*(history[i] for i in distinct))


def _example(struct: PyTree) -> PyTree:
    is_struct = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if is_struct(x) else x, struct, is_leaf=is_struct
    )


def _as_type_of(y: PyTree, values: PyTree) -> PyTree:
    return jax.tree.map(lambda v, y: jnp.asarray(v, y.dtype), values, y)


# --- checks of a field ----------------------------------------------------------------------------


@contextlib.contextmanager
def _explain_call(field: Callable, y: PyTree, delays: Sequence[Entry]) -> Iterator[None]:
    """Adds a note to an error of the field, which says how the field was called."""
    try:
        yield
    except Exception as error:
        if delays:
            error.add_note(
                "lagrax called the field as field(t, y, args, history=history). Here history is a "
                f"tuple of {len(delays)}, one entry for each delay of delays=[{describe(delays)}]."
            )
        elif takes_history(field):
            # Those of `lagrax.systems` bring their delays with them.
            own = hasattr(field, "delays")
            example = "field.delays of this field" if own else "[lagrax.Hold(1.0)]"
            error.add_note(
                "lagrax called the field as field(t, y, args, history=()), since the solve has no "
                f"`delays`. Give one for each entry of history, such as delays={example}."
            )
        else:
            error.add_note("lagrax called the field as field(t, y, args).")
        if is_list_of_numbers(y):
            error.add_note(_explain_list(y))
        raise


def is_list_of_numbers(y: PyTree) -> bool:
    """Whether a state is a list of numbers, where an array was probably meant."""
    return isinstance(y, list) and all(jnp.ndim(x) == 0 for x in jax.tree.leaves(y))


def _explain_list(y: list) -> str:
    return (
        f"y0 is a list of {len(y)} numbers, which is a pytree, so y is a list and not an array. "
        "For an array write y0=jnp.array([...])."
    )


def _check_slope(slope: PyTree, y: PyTree) -> None:
    got, expected = jax.tree.structure(slope), jax.tree.structure(y)
    if got != expected:
        hint = f" {_explain_list(y)}" if is_list_of_numbers(y) else ""
        hint = " Does it lack a `return`?" if slope is None else hint
        raise ValueError(
            f"The field returned a pytree {got}, expected that of the state, {expected}. Return "
            f"dy/dt in the structure of y.{hint}"
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


# --- properties of a field ------------------------------------------------------------------------


def _trace(field: Field, t: Array, y: PyTree, args: PyTree, delays: Sequence[Entry]) -> Any:
    """The jaxpr of one evaluation, as a function of t and y."""
    prepared = eqx.filter_eval_shape(field.prepare, _example_history(y, delays))
    evaluate = lambda t, y: field.evaluate(t, y, args, _example(prepared))
    return jax.make_jaxpr(evaluate)(t, y).jaxpr


def find_used_inputs(jaxpr: Any, wanted: list[bool]) -> list[bool]:
    """Which inputs of a jaxpr its wanted outputs depend on."""
    live = {v for v, w in zip(jaxpr.outvars, wanted, strict=True) if w and _is_variable(v)}
    for eqn in reversed(jaxpr.eqns):
        outputs = [v in live for v in eqn.outvars]
        if not any(outputs):
            continue
        inner = eqn.params.get("jaxpr")
        if eqn.primitive.name in ("jit", "pjit") and inner is not None:
            inputs = find_used_inputs(inner.jaxpr, outputs)
        else:
            inputs = [True] * len(eqn.invars)
        live |= {v for v, n in zip(eqn.invars, inputs, strict=True) if n and _is_variable(v)}
    return [v in live for v in jaxpr.invars]


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # literals carry their value


def _has_products(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one within it, multiplies matrices or convolves."""
    return any(
        eqn.primitive.name in ("dot_general", "conv_general_dilated")
        or any(_has_products(inner) for inner in _inner_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation, such as those of a loop or of branches."""
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else [value]:
            if hasattr(each, "eqns"):
                yield each
