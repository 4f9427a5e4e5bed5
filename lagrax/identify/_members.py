"""The members of an ensemble, learned: by gradients, or from a library of monomials."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay
from ..training import Series, train
from ._checks import check_coefficients
from ._equations import REST, Equation, Network, Polynomial, Row, without_small
from ._learning import Errors, HeldOut, least_squares, member_of, optimiser
from ._measured import Measured, spread
from ._regression import (
    Library,
    Normal,
    check_work,
    monomials,
    needed_terms,
    normal_equations,
    regressed,
)
from ._series import Window
from ._windows import drawn_windows

# Terms of a library that move a state by less than these shares of what the largest one does are
# tried without.
SMALL = (0.1, 0.01)


def network(measured: Measured, delays: int, *, width: int, depth: int, key: Array) -> Network:
    """One that sees the state, its values at so many delays, and the inputs."""
    us = np.concatenate([t.us for t in measured.series])
    centre = np.concatenate([np.tile(measured.centre, 1 + delays), us.mean(axis=0)])
    scale = np.concatenate([np.tile(measured.scale, 1 + delays), spread(us)])
    return Network(
        jnp.asarray(centre, float),
        jnp.asarray(scale, float),
        jnp.asarray(measured.slope, float),
        width=width,
        depth=depth,
        key=key,
    )


def trained(
    loss: Errors,
    initial: Callable[[Array], Equation],
    rows: Row,
    held: Row,
    *,
    seeds: Sequence[int],
    iterations: int,
    learning_rate: float,
    batch_size: int,
    patience: int,
    progress: bool,
) -> tuple[PyTree, dict[str, Series]]:
    """By Adam, each seed as it was when the held-out windows were followed best."""
    # Often enough to stop in time, seldom enough to cost little.
    block = min(50, max(1, patience // 4))
    result = train(
        loss,
        initial,
        as_arrays(rows),
        optimiser(learning_rate, iterations),
        steps=iterations,
        seeds=seeds,
        batch_size=min(batch_size, len(rows.ts)),
        evaluate=HeldOut(loss),
        test_data=as_arrays(held),
        keep="held_out",
        patience=-(-patience // block),
        block=block,
        progress=progress,
    )
    return result.model, result.metrics


def polished(members: PyTree, loss: Errors, rows: Row, seed: int) -> PyTree:
    """A field of few parameters gets to the bottom, where Adam only comes near."""
    leaves = jax.tree.leaves(eqx.filter(members, eqx.is_array))
    if sum(x[0].size for x in leaves) > 100:
        return members
    rng = np.random.default_rng(seed)
    found = []
    for i in range(len(leaves[0])):
        drawn = drawn_windows(rng, len(rows.ts), i)
        found.append(least_squares(member_of(members, i), loss, _few(rows, drawn))[0])
    return jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *found)


def from_library(
    loss: Errors,
    measured: Measured,
    windows: Sequence[Window],
    rows: Row,
    delays: Sequence[Delay],
    *,
    degree: int,
    ensemble: int,
    seed: int,
) -> PyTree:
    """Terms by regression, then their coefficients by following the equation itself."""
    variables = measured.states * (1 + len(delays)) + measured.inputs
    powers = monomials(variables, degree)
    check_work(len(powers), len(windows))
    library = Library(powers, np.zeros(variables), np.ones(variables))
    normal = normal_equations(measured.shifted, windows, delays, library)
    chosen = [needed_terms(normal.of_state(i)) for i in range(measured.states)]
    terms = sorted(set().union(*chosen)) or [0]
    used = tuple(tuple(j in own for own in chosen) for j in terms)
    rng = np.random.default_rng(seed)
    members, seen, error = [], [], 0.0
    for i in range(ensemble):
        drawn = drawn_windows(rng, len(windows), i)
        start = regressed(Normal(*(part[drawn] for part in normal)), chosen, terms)
        check_coefficients(start)
        taken = tuple(tuple(int(p) for p in powers[j]) for j in terms)
        field = Polynomial(jnp.asarray(start, float), used, taken)
        equation = Equation(field, jnp.zeros(len(loss.setting.periods)))
        seen.append(_few(rows, drawn))
        member, squares = least_squares(equation, loss, seen[-1])
        members.append(member)
        error += squares
    sizes = np.sqrt(np.einsum("wstt->ts", normal.of(np.array(terms)).columns))
    return jax.tree.map(lambda *x: jnp.stack(x), *_simplest(members, loss, seen, sizes, error))


def _simplest(
    members: list[Equation],
    loss: Errors,
    seen: Sequence[Row],
    sizes: Float[np.ndarray, "terms states"],
    error: float,
) -> list[Equation]:
    """Without terms that hardly move a state, where the windows are followed as well without them:
    by Schwarz's criterion, under which a term has to earn its place."""
    kept = without_small(members, sizes, REST)
    count = sum(int(np.sum(row.weights > 0)) for row in seen)
    for least in SMALL:
        fewer = without_small(members, sizes, least)
        dropped = _terms(kept) - _terms(fewer)
        if dropped:
            pairs = zip(fewer, seen, strict=True)
            found = [least_squares(equation, loss, rows) for equation, rows in pairs]
            if sum(squares for _, squares in found) <= error * count ** (dropped / count):
                return [equation for equation, _ in found]
    return kept


def _terms(members: Sequence[Equation]) -> int:
    """How many coefficients the library equations of an ensemble have in all."""
    return sum(int(np.sum(member.field.used)) for member in members)  # pyright: ignore


def _few(rows: Row, drawn: np.ndarray) -> Row:
    """As many of the drawn windows as least squares need."""
    return as_arrays(Row(*(x[drawn][:: -(-len(drawn) // 200)] for x in rows)))


def as_arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.asarray(x, float) if eqx.is_array_like(x) else x, tree)
