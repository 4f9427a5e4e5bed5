"""A fitted equation as people read it: short symbols, and how well its terms are supported."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..identify import Identifier
from ..identify._equations import Polynomial, _named, names_of
from ..identify._identifier import _default_names

# A longer name makes a product of several unreadable.
LONGEST_SYMBOL = 16
# Fewer models of an ensemble say little about the spread of their coefficients.
LEAST_MODELS = 3


class Symbols(NamedTuple):
    """The symbols of columns in equations, and a legend if these are not their names."""

    states: list[str]
    inputs: list[str]
    legend: str


def choose_symbols(states: Sequence[str], inputs: Sequence[str]) -> Symbols:
    """The names of columns if all of them can stand in a product, otherwise x1, x2, u1, ..."""
    is_symbol = lambda name: name.isidentifier() and len(name) <= LONGEST_SYMBOL
    if all(map(is_symbol, [*states, *inputs])):
        return Symbols(list(states), list(inputs), "")
    x, u = _default_names("x", len(states)), _default_names("u", len(inputs))
    pairs = zip([*x, *u], [*states, *inputs], strict=True)
    return Symbols(x, u, ", ".join(f"{symbol} is {name}" for symbol, name in pairs))


class Term(NamedTuple):
    """A term of the equation of `state`.

    `spread` is the standard deviation of its coefficient between the models of the ensemble, each
    learned from other windows; NaN if there are too few models.
    """

    state: str
    text: str
    coefficient: float
    spread: float

    @property
    def is_weak(self) -> bool:
        return abs(self.coefficient) < 2 * self.spread

    def __str__(self) -> str:
        return f"{self.coefficient:.4g} {self.text}".removesuffix(" 1")


def list_terms(model: Identifier, symbols: Symbols) -> list[Term]:
    """The terms of a library's equations; none for other fields."""
    if not isinstance(model.equation_, Polynomial):
        return []
    members = np.asarray(model._learned.members.field.coefficients)
    spread = np.full(members.shape[1:], np.nan)
    if len(members) >= LEAST_MODELS:
        spread = members.std(axis=0, ddof=1)
    variables = names_of(model.delays_, symbols.states, symbols.inputs)
    return [
        Term(
            state,
            _named(powers, variables).strip() or "1",
            float(members[0, j, i]),
            float(spread[j, i]),
        )
        for i, state in enumerate(symbols.states)
        for j, powers in enumerate(model.equation_.powers)
        if model.equation_.used[j][i]
    ]


def warn_of_weak_terms(terms: Sequence[Term]) -> str | None:
    """Names the terms whose coefficients differ between the models by as much as their size."""
    weak = [f"{term} in {term.state}′ (± {term.spread:.2g})" for term in terms if term.is_weak]
    if not weak:
        return None
    return f"Weakly supported: {', '.join(weak)}. The models of the ensemble differ that much."
