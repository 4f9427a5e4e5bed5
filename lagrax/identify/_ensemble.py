"""The members of an ensemble, learned by gradients or from a library of monomials."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay
from ..training import Series, train
from ._checks import check_coefficients
from ._dataset import Dataset
from ._fields import Equation, Network, Polynomial, drop_small_terms
from ._optimise import HeldOutMetric, WindowLoss, make_optimiser, minimise_squares
from ._options import Options
from ._regression import (
    Library,
    NormalEquations,
    build_normal_equations,
    check_selection_cost,
    list_monomials,
    regress,
    select_terms,
)
from ._series import compute_scale
from ._simulation import WindowArrays, count_members, take_member, to_jax
from ._windows import Window, draw_windows

# Terms that move a state by less than these shares of its largest term are left out on trial.
SMALL = (0.1, 0.01)
# A term below this share comes from interpolation between samples, not from the equation.
NEGLIGIBLE = 1e-5
# Least squares refines fields of at most this many parameters, on at most this many windows.
MOST_REFINED = 100
MOST_SQUARED = 200


def build_field(options: Options, dataset: Dataset, key: Array) -> Callable:
    """The user's own field, or a network of the state, its values at the delays, and the inputs."""
    if callable(options.field):
        return options.field
    times = 1 + len(options.delays)
    us = np.concatenate([t.us for t in dataset.series])
    centre = np.concatenate([np.tile(dataset.centre, times), us.mean(axis=0)])
    scale = np.concatenate([np.tile(dataset.scale, times), compute_scale(us)])
    return Network(
        jnp.asarray(centre, float),
        jnp.asarray(scale, float),
        jnp.asarray(dataset.slope, float),
        width=options.width,
        depth=options.depth,
        key=key,
    )


def train_ensemble(
    loss: WindowLoss,
    dataset: Dataset,
    windows: WindowArrays,
    held_out: WindowArrays,
    options: Options,
) -> tuple[PyTree, dict[str, Series]]:
    """Trains each member by Adam and keeps it as of its lowest held-out error."""
    shifts = jnp.zeros(len(loss.setup.periods))
    # Evaluated often enough to stop in time, seldom enough to cost little.
    block = min(50, max(1, options.patience // 4))
    result = train(
        loss,
        lambda key: Equation(build_field(options, dataset, key), shifts),
        to_jax(windows),
        make_optimiser(options.learning_rate, options.iterations),
        steps=options.iterations,
        seeds=[options.seed + i for i in range(options.ensemble)],
        batch_size=min(options.batch_size, len(windows.ts)),
        evaluate=HeldOutMetric(loss),
        test_data=to_jax(held_out),
        keep="held_out",
        patience=-(-options.patience // block),
        block=block,
        progress=options.progress,
    )
    members = result.model
    if callable(options.field):
        members = _refine(members, loss, windows, options.seed)
    return members, result.metrics


def _refine(members: PyTree, loss: WindowLoss, windows: WindowArrays, seed: int) -> PyTree:
    """Refines fields of few parameters by least squares, which converges further than Adam."""
    leaves = jax.tree.leaves(eqx.filter(members, eqx.is_array))
    if sum(x[0].size for x in leaves) > MOST_REFINED:
        return members
    rng = np.random.default_rng(seed)
    refined = []
    for i in range(count_members(members)):
        drawn = _take_windows(windows, draw_windows(rng, len(windows.ts), i))
        refined.append(minimise_squares(take_member(members, i), loss, drawn)[0])
    return jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *refined)


def fit_library(
    loss: WindowLoss,
    dataset: Dataset,
    windows: Sequence[Window],
    arrays: WindowArrays,
    delays: Sequence[Delay],
    options: Options,
) -> PyTree:
    """Selects terms by regression, then refines their coefficients by solving the equation.

    `arrays` are the `windows` stacked, and `delays` have numbers for their periods.
    """
    variables = dataset.states * (1 + len(delays)) + dataset.inputs
    powers = list_monomials(variables, options.degree)
    check_selection_cost(len(powers), len(windows))
    library = Library(powers, np.zeros(variables), np.ones(variables))
    normal = build_normal_equations(dataset.shifted, windows, delays, library)
    chosen = [select_terms(normal.for_state(i)) for i in range(dataset.states)]
    terms = sorted(set().union(*chosen)) or [0]
    used = tuple(tuple(j in own for own in chosen) for j in terms)
    term_powers = tuple(tuple(int(p) for p in powers[j]) for j in terms)
    rng = np.random.default_rng(options.seed)
    members, data, error = [], [], 0.0
    for i in range(options.ensemble):
        drawn = draw_windows(rng, len(windows), i)
        start = regress(NormalEquations(*(part[drawn] for part in normal)), chosen, terms)
        check_coefficients(start)
        field = Polynomial(jnp.asarray(start, float), used, term_powers)
        equation = Equation(field, jnp.zeros(len(loss.setup.periods)))
        data.append(_take_windows(arrays, drawn))
        member, squares = minimise_squares(equation, loss, data[-1])
        members.append(member)
        error += squares
    sizes = np.sqrt(np.einsum("wstt->ts", normal.for_terms(np.array(terms)).columns))
    members = _simplify(members, loss, data, sizes, error)
    return jax.tree.map(lambda *x: jnp.stack(x), *members)


def _simplify(
    members: list[Equation],
    loss: WindowLoss,
    data: Sequence[WindowArrays],
    sizes: Float[np.ndarray, "terms states"],
    error: float,
) -> list[Equation]:
    """Drops terms that hardly move a state, if Schwarz's criterion prefers the fit without them."""
    kept = drop_small_terms(members, sizes, NEGLIGIBLE)
    count = sum(int(np.sum(windows.weights > 0)) for windows in data)
    for least in SMALL:
        fewer = drop_small_terms(members, sizes, least)
        dropped = _count_terms(kept) - _count_terms(fewer)
        if dropped:
            pairs = zip(fewer, data, strict=True)
            refitted = [minimise_squares(equation, loss, windows) for equation, windows in pairs]
            if sum(squares for _, squares in refitted) <= error * count ** (dropped / count):
                return [equation for equation, _ in refitted]
    return kept


def _count_terms(members: Sequence[Equation]) -> int:
    """The number of coefficients in the library equations of an ensemble."""
    return sum(int(np.sum(member.field.used)) for member in members)  # pyright: ignore


def _take_windows(windows: WindowArrays, drawn: np.ndarray) -> WindowArrays:
    """The drawn windows, thinned to as many as least squares needs."""
    stride = -(-len(drawn) // MOST_SQUARED)
    return to_jax(WindowArrays(*(x[drawn][::stride] for x in windows)))
