"""The symbols of a fitted equation, and the support of its terms."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..identify import Identifier
from ..identify._fields import Polynomial, choose_symbols, format_monomial, name_variables

# Fewer models of an ensemble say little about the spread of their coefficients.
LEAST_MODELS = 3
# Terms that a warning names.
MOST_WEAK = 5


class Symbols(NamedTuple):
    """The symbols of columns in equations, and a legend if these are not their names."""

    states: list[str]
    inputs: list[str]
    legend: str


def choose_all_symbols(states: Sequence[str], inputs: Sequence[str]) -> Symbols:
    """The names of columns if these are single words, otherwise x1, x2, ... and u1, u2, ..."""
    x, u = choose_symbols(states, "x", len(states)), choose_symbols(inputs, "u", len(inputs))
    if set(x) & set(u):
        x, u = choose_symbols((), "x", len(states)), choose_symbols((), "u", len(inputs))
    pairs = [*zip([*x, *u], [*states, *inputs], strict=True)]
    legend = ", ".join(f"{symbol} is {name}" for symbol, name in pairs if symbol != name)
    return Symbols(x, u, legend)


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

    @property
    def number(self) -> str:
        """The coefficient as equations have it."""
        return f"{self.coefficient:.4g}".replace("-", "−")

    def __str__(self) -> str:
        return f"{self.number} {self.text}".removesuffix(" 1")


def list_terms(model: Identifier, symbols: Symbols) -> list[Term]:
    """The terms of a library's equations; none for other fields."""
    if not isinstance(model.equation_, Polynomial):
        return []
    members = np.asarray(model._model.members.field.coefficients)
    spread = np.full(members.shape[1:], np.nan)
    if len(members) >= LEAST_MODELS:
        spread = members.std(axis=0, ddof=1)
    variables = name_variables(model.delays_, symbols.states, symbols.inputs)
    return [
        Term(
            state,
            format_monomial(powers, variables) or "1",
            float(members[0, j, i]),
            float(spread[j, i]),
        )
        for i, state in enumerate(symbols.states)
        for j, powers in enumerate(model.equation_.powers)
        if model.equation_.used[j][i]
    ]


def warn_of_weak_terms(terms: Sequence[Term]) -> str | None:
    """Names the terms with an uncertain coefficient."""
    weak = [f"{term} in {term.state}′ (± {term.spread:.2g})" for term in terms if term.is_weak]
    if not weak:
        return None
    if len(weak) > MOST_WEAK:
        weak = [*weak[:MOST_WEAK], f"and {len(weak) - MOST_WEAK} more"]
    return f"Weakly supported: {', '.join(weak)}. The models of the ensemble differ that much."
