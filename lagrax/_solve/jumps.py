"""`Jump` holds instants at which the state changes, and the change of the state there."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Real, Shaped

from .arguments import is_traced
from .delays import Hold, Input, LagEntry, RealScalar, as_arrays, check_instants

State = PyTree[Shaped[Array, "..."]]


class Jump(eqx.Module):
    """Instants at which the state changes at once, as by doses, switches, harvests and resets.

    `Jump(times, add=amounts)` adds to the state. `Jump(times, function)` replaces it by
    `function(t, y, args)`. The instants are knots, so no step crosses one. The solution is
    continuous from the right: at an instant it is the state after the jump, and
    `sol.knots.before` holds the states before. Several jumps at one instant are made in the order
    of the list. Times, amounts and everything that the function uses are differentiable.

    Choose it for changes at known times. A signal that changes the field instead of the state is an
    `Input`.

    **Arguments:**

    - `times`: increasing instants. Those outside of the span are ignored, so in a batch the rows
      may be filled up with `jnp.inf`. A jump at t0 or t1 is made.
    - `function`: the state after the jump, shaped like the state before.
    - `add`: amounts to add, structured like the state. Each array has the shape of the state, or
      one axis more in front with an amount for each instant.
    """

    times: Float[Array, " instants"] | np.ndarray
    function: Callable | None
    add: PyTree[Shaped[ArrayLike, "..."]]

    def __init__(
        self,
        times: Sequence[RealScalar] | Real[ArrayLike, " instants"],
        function: Callable | None = None,
        *,
        add: PyTree = None,
    ):
        if (function is None) == (add is None):
            raise ValueError(
                f"Jump takes either a function or amounts, got function={function!r:.60} and "
                f"add={add!r:.60}. Write Jump(times, lambda t, y, args: ...) or "
                "Jump(times, add=amounts)."
            )
        if function is not None and not callable(function):
            raise TypeError(
                f"Jump got function={function!r:.60}; expected function(t, y, args), which returns "
                "the state after the jump. Amounts are given by name: Jump(times, add=amounts)."
            )
        self.times = check_instants(times, "Jump", "times", filled_up=True)
        self.function = function
        self.add = as_arrays(add)


class JumpRow(NamedTuple):
    """Whether one jump is made at one knot, and the amounts that belong to the instant.

    The amounts are leaves of `Jump.add`, None for those that are the same at all instants.
    """

    active: Bool[Array, "..."]
    amounts: list[Array | None]


def make_jump_rows(jump: Jump, number: Int[Array, " knots"], y: State) -> JumpRow:
    """The rows of all knots, where `number` says which instant of the jump it is, -1 for none.

    All amounts are gathered here at once, for the same reason as samples of an `Input`.
    """
    rows = []
    for amount, of_state in zip(jax.tree.leaves(jump.add), jax.tree.leaves(y), strict=False):
        is_same = amount.ndim == of_state.ndim
        rows.append(None if is_same else amount[jnp.maximum(number, 0)])
    return JumpRow(number >= 0, rows)


def make_jumps(jumps: Sequence[Jump], t: Array, y: State, args: PyTree) -> list[Jump]:
    """Traces the functions, so that arrays that they close over are leaves."""

    def make(jump: Jump) -> Jump:
        if jump.function is None:
            return jump
        given = jump.function
        try:
            after = eqx.filter_eval_shape(lambda: jax.tree.map(jnp.asarray, given(t, y, args)))
        except Exception as error:
            error.add_note("lagrax called the function of a Jump as function(t, y, args).")
            raise
        _check_after(after, y)
        typed = lambda t, y, args: jax.tree.map(
            lambda a, b: jnp.asarray(a, b.dtype), given(t, y, args), y
        )
        traced = eqx.filter_closure_convert(typed, t, y, args)
        return eqx.tree_at(lambda j: j.function, jump, traced)

    return [make(jump) for jump in jumps]


def apply_jumps(
    jumps: Sequence[Jump], rows: Sequence[JumpRow], t: Real[Array, ""], y: State, args: PyTree
) -> State:
    """The state after all jumps at one knot, made in order."""
    for jump, row in zip(jumps, rows, strict=True):
        if jump.function is not None:
            y = lax.cond(row.active, lambda y, f=jump.function: f(t, y, args), lambda y: y, y)
            continue
        leaves, structure = jax.tree.flatten(y)
        amounts = [
            same if own is None else own
            for same, own in zip(jax.tree.leaves(jump.add), row.amounts, strict=True)
        ]
        added = [x + jnp.where(row.active, a, 0) for x, a in zip(leaves, amounts, strict=True)]
        y = jax.tree.unflatten(structure, added)
    return y


# --- checks ---------------------------------------------------------------------------------------


def check_jumps(jumps: Any, y: State) -> list[Jump]:
    """Checks jumps against the state, and gives their amounts its types."""
    if isinstance(jumps, Jump):
        raise TypeError("jumps is one Jump; expected a list: jumps=[...].")
    if not isinstance(jumps, Sequence) or not all(isinstance(j, Jump) for j in jumps):
        hint = ""
        if isinstance(jumps, Sequence) and any(
            isinstance(j, (Hold, LagEntry, Input)) for j in jumps
        ):
            hint = " A Hold, a Lag or an Input is an entry of delays=[...]."
        raise TypeError(
            f"jumps={jumps!r:.60}; expected a list of lagrax.Jump, or () for none.{hint}"
        )
    return [
        jump if jump.function is not None else eqx.tree_at(lambda j: j.add, jump, _fit(jump, y))
        for jump in jumps
    ]


def _fit(jump: Jump, y: State) -> State:
    got, expected = jax.tree.structure(jump.add), jax.tree.structure(y)
    if got != expected:
        raise ValueError(
            f"Jump got add={got}, expected the structure of the state, {expected}. Give an amount "
            "for each part of the state, 0 where nothing is added."
        )
    return jax.tree.map(lambda a, x: _fit_leaf(a, x, len(jump.times)), jump.add, y)


def _fit_leaf(amount: Any, of_state: Array, count: int) -> Array:
    if amount.shape not in (of_state.shape, (count, *of_state.shape)):
        raise ValueError(
            f"Jump got amounts of shape {amount.shape} for a state of shape {of_state.shape}; "
            f"expected that shape, or {(count, *of_state.shape)} with one amount for each of the "
            f"{count} instants."
        )
    if not jnp.issubdtype(amount.dtype, jnp.number) or (
        jnp.issubdtype(amount.dtype, jnp.complexfloating)
        and not jnp.issubdtype(of_state.dtype, jnp.complexfloating)
    ):
        raise ValueError(
            f"Jump got amounts of {amount.dtype} for a state of {of_state.dtype}; expected real "
            "numbers."
        )
    amount = jnp.asarray(amount, of_state.dtype)
    # By NumPy, since within `jit` JAX would trace even known numbers.
    if not is_traced(amount) and not np.all(np.isfinite(amount)):
        raise ValueError(
            f"Jump got {np.sum(~np.isfinite(amount))} amounts that are NaN or infinite; expected "
            "finite numbers. Drop these instants, or fill in the amounts."
        )
    return amount


def _check_after(after: PyTree, y: State) -> None:
    got, expected = jax.tree.structure(after), jax.tree.structure(y)
    if got != expected:
        raise ValueError(
            f"The function of a Jump returned a pytree {got}, expected that of the state, "
            f"{expected}. Return the whole state after the jump."
        )
    for a, x in zip(jax.tree.leaves(after), jax.tree.leaves(y), strict=True):
        if a.shape != x.shape or jnp.result_type(a, x) != x.dtype:
            raise ValueError(
                f"The function of a Jump returned {a.dtype} of shape {a.shape} for a state of "
                f"{x.dtype} of shape {x.shape}. Return the state after the jump, of the same shape "
                "and type."
            )
