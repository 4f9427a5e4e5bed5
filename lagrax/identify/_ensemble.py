"""The members of an ensemble, learned by gradients or from a library of monomials."""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.delays import Delay
from ..training import Series, train
from ._checks import IdentifyError, check_coefficients
from ._dataset import Dataset
from ._fields import Equation, Network, Polynomial, add_pull, drop_small_terms
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
from ._simulation import SolveSetup, WindowArrays, count_members, take_member, to_jax
from ._speed import MOST_SHARE, MOST_STEPS, count_steps, find_longest_interval, measure_speed
from ._windows import Window, draw_windows

# Terms that move a state by less than these shares of its largest term are left out on trial.
SMALL = (0.1, 0.01)
# Errors below this share of the deviation are not noise that is worth forgetting.
NOISY = 0.1
# A term below this share comes from interpolation between samples, not from the equation.
NEGLIGIBLE = 1e-5
# So do errors below this share of the deviation, and no term is kept for their sake.
RESOLVED = 3e-4
# Huber's constant (95 % of the efficiency remains on normal noise), the deviation of a normal
# distribution whose absolute value has the median 1, and a noise that is always allowed for.
HUBER, NORMAL, LEAST_NOISE = 1.345, 1.4826, 1e-3
# Least squares refines fields of at most this many parameters, on at most this many windows.
MOST_REFINED = 100
MOST_SQUARED = 200
# Times that training starts, with more steps if the learned equation turns out to need them.
MOST_TRIES = 3


class Lesson(NamedTuple):
    """The data to learn from.

    `windows` are those to learn from, and `learning` and `held_out` are arrays. `delays` have
    numbers for their periods.
    """

    dataset: Dataset
    windows: Sequence[Window]
    learning: WindowArrays
    held_out: WindowArrays
    delays: Sequence[Delay]


def learn_members(
    setup: SolveSetup, lesson: Lesson, options: Options
) -> tuple[SolveSetup, PyTree, dict[str, Series]]:
    """Learns the members with as many steps as the learned equation needs.

    Returns the setup with these steps, the members and the losses.
    """
    dataset, start = lesson.dataset, None
    if options.field == "library":
        start = _start_library(setup, lesson, options)
        setup = _take_enough_steps(setup, start.equations[0], lesson, options)
    for tries_left in range(MOST_TRIES)[::-1]:
        loss = make_loss(setup, dataset, options)
        if options.hidden:
            members, losses = _learn_hidden(loss, lesson, options), {}
        elif start is None:
            windows = lesson.learning, lesson.held_out
            members, losses = train_ensemble(loss, dataset, *windows, options)
        else:
            members, losses = _refine_library(start, loss), {}
        enough = _take_enough_steps(setup, take_member(members, 0), lesson, options)
        if enough.steps == setup.steps or not tries_left:
            return setup, members, losses
        setup = enough
    raise AssertionError


def make_loss(setup: SolveSetup, dataset: Dataset, options: Options) -> WindowLoss:
    huber = None
    if options.loss == "huber":
        huber = jnp.asarray(HUBER * np.maximum(measure_noise(dataset), LEAST_NOISE), float)
    scale = jnp.asarray(dataset.scale, float)
    starts = options.fit_starts or options.hidden > 0
    return WindowLoss(setup, scale, huber, starts, options.hidden)


def measure_noise(dataset: Dataset) -> Float[np.ndarray, " states"]:
    """The deviation of the noise of each state, in standard deviations of the state: the median
    distance of a measurement from the line between its neighbours, which outliers hardly change."""
    found = []
    for j in range(dataset.states):
        off = [np.zeros(0)]
        for t in dataset.series:
            known = ~np.isnan(t.ys[:, j])
            ts, y = t.ts[known], t.ys[known, j]
            share = (ts[1:-1] - ts[:-2]) / (ts[2:] - ts[:-2])
            line = y[:-2] + share * (y[2:] - y[:-2])
            off.append((y[1:-1] - line) / np.sqrt(1 + share**2 + (1 - share) ** 2))
        whole = np.abs(np.concatenate(off))
        found.append(NORMAL * float(np.median(whole)) if whole.size else 0.0)
    return np.array(found) / dataset.scale


def _take_enough_steps(
    setup: SolveSetup, equation: Equation, lesson: Lesson, options: Options
) -> SolveSetup:
    """The setup with more steps, if an equation of this speed needs them."""
    if options.steps is not None:
        return setup
    assert setup.steps is not None
    longest = find_longest_interval(lesson.delays, [lesson.learning], setup.inputs)
    speed = measure_speed(equation.field, lesson.dataset, lesson.delays)
    if speed * longest > MOST_SHARE * MOST_STEPS:
        warnings.warn(
            f"The learned equation changes within {1 / speed:.2g}, and samples or knots are up to "
            f"{longest:.2g} apart: the {MOST_STEPS} steps that training takes between them are too "
            "few. Give more `steps`, or samples that show how fast it is.",
            stacklevel=4,
        )
    return setup._replace(steps=count_steps(speed, longest, setup.steps))


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


def _learn_hidden(loss: WindowLoss, lesson: Lesson, options: Options) -> PyTree:
    """Least squares from the given field. Adam would need the hidden states at all starts."""
    equation = Equation(build_field(options, lesson.dataset, jax.random.key(0)), jnp.zeros(0))
    members = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, to_jax(equation))
    if sum(x.size for x in jax.tree.leaves(eqx.filter(members, eqx.is_array))) > MOST_REFINED:
        raise IdentifyError(
            f"Identifier got hidden={options.hidden} and a field of many parameters; expected at "
            f"most {MOST_REFINED}, since they are fitted by least squares. Give a smaller one."
        )
    return _refine(members, loss, lesson.learning, options.seed)


def _refine(members: PyTree, loss: WindowLoss, windows: WindowArrays, seed: int) -> PyTree:
    """Refines fields of few parameters by least squares, which converges further than Adam."""
    leaves = jax.tree.leaves(eqx.filter(members, eqx.is_array))
    if sum(x[0].size for x in leaves) > MOST_REFINED:
        return members
    rng = np.random.default_rng(seed)
    refined = []
    for i in range(count_members(members)):
        drawn = take_windows(windows, draw_windows(rng, len(windows.ts), i))
        refined.append(minimise_squares(take_member(members, i), loss, drawn)[0])
    return jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *refined)


class LibraryStart(NamedTuple):
    """The members of a library as regression has them, the windows of each, and how much each term
    with coefficient 1 moves each state."""

    equations: list[Equation]
    data: list[WindowArrays]
    sizes: Float[np.ndarray, "terms states"]


def _start_library(setup: SolveSetup, lesson: Lesson, options: Options) -> LibraryStart:
    """Selects terms and finds their coefficients by regression."""
    dataset, windows, delays = lesson.dataset, lesson.windows, lesson.delays
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
    equations, data = [], []
    for i in range(options.ensemble):
        drawn = draw_windows(rng, len(windows), i)
        start = regress(NormalEquations(*(part[drawn] for part in normal)), chosen, terms)
        check_coefficients(start)
        field = Polynomial(jnp.asarray(start, float), used, term_powers)
        equations.append(Equation(field, jnp.zeros(len(setup.periods))))
        data.append(take_windows(lesson.learning, drawn))
    sizes = np.sqrt(np.einsum("wstt->ts", normal.for_terms(np.array(terms)).columns))
    return LibraryStart(equations, data, sizes)


def _refine_library(start: LibraryStart, loss: WindowLoss) -> PyTree:
    """Refines the coefficients by solving the equation, and drops terms that are not needed."""
    members, error = _minimise_all(start.equations, loss, start.data)
    members, error = _simplify(members, loss, start.data, start.sizes, error)
    members = _add_pull(members, loss, start.data, error)
    return jax.tree.map(lambda *x: jnp.stack(x), *members)


def _simplify(
    members: list[Equation],
    loss: WindowLoss,
    data: Sequence[WindowArrays],
    sizes: Float[np.ndarray, "terms states"],
    error: float,
) -> tuple[list[Equation], float]:
    """Drops terms that hardly move a state, if Schwarz's criterion prefers the fit without them.

    Returns the members and the sum of their squares.
    """
    kept = drop_small_terms(members, sizes, NEGLIGIBLE)
    count = _count_values(data)
    known = max(error, RESOLVED**2 * count)
    for least in SMALL:
        fewer = drop_small_terms(members, sizes, least)
        dropped = _count_terms(kept) - _count_terms(fewer)
        if dropped:
            refitted, squares = _minimise_all(fewer, loss, data)
            if squares <= known * count ** (dropped / count):
                return refitted, squares
    return kept, error


def _add_pull(
    members: list[Equation], loss: WindowLoss, data: Sequence[WindowArrays], error: float
) -> list[Equation]:
    """Adds a pull of each state towards a level, if Schwarz's criterion asks for it.

    Regression on noisy states does not see that they forget the noise they start from, since each
    window has a constant of its own there. Solutions from measured starts do.
    """
    count = _count_values(data)
    if error < NOISY**2 * count:
        return members
    more = add_pull(members)
    added = _count_terms(more) - _count_terms(members)
    if not added:
        return members
    refitted, squares = _minimise_all(more, loss, data)
    return refitted if squares * count ** (added / count) < error else members


def _minimise_all(
    members: Sequence[Equation], loss: WindowLoss, data: Sequence[WindowArrays]
) -> tuple[list[Equation], float]:
    """Least squares for each member on its own windows, and the sum of all squares."""
    pairs = zip(members, data, strict=True)
    fitted = [minimise_squares(equation, loss, windows) for equation, windows in pairs]
    return [equation for equation, _ in fitted], sum(squares for _, squares in fitted)


def _count_values(data: Sequence[WindowArrays]) -> int:
    return sum(int(np.sum(windows.weights > 0)) for windows in data)


def _count_terms(members: Sequence[Equation]) -> int:
    """The number of coefficients in the library equations of an ensemble."""
    return sum(int(np.sum(member.field.used)) for member in members)  # pyright: ignore


def take_windows(windows: WindowArrays, drawn: np.ndarray) -> WindowArrays:
    """The drawn windows, thinned to as many as least squares needs."""
    stride = -(-len(drawn) // MOST_SQUARED)
    return to_jax(WindowArrays(*(x[drawn][::stride] for x in windows)))
