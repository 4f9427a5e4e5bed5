"""The fields that are learned, a network or a sum of monomials, and how they are printed."""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._solve.delays import Delay, Hold, Lag, RealScalar
from ._lookback import read_period


class _FieldOfVariables(eqx.Module):
    """A field of the state, its history and the inputs, joined in one vector."""

    @abstractmethod
    def evaluate(self, x: Float[Array, " variables"]) -> Float[Array, " states"]: ...

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, " states"],
        args: Float[Array, " inputs"] | None,
        *,
        history: Sequence[Float[Array, " states"]] = (),
    ) -> Float[Array, " states"]:
        inputs = () if args is None else (args,)
        return self.evaluate(jnp.concatenate([y, *history, *inputs]))


class Network(_FieldOfVariables):
    """A network of the state, its history and the inputs.

    Arguments are scaled to mean 0 and deviation 1; the result is in units of the measured slopes.
    These scales are not trained.
    """

    mlp: eqx.nn.MLP
    centre: Float[Array, " variables"]
    scale: Float[Array, " variables"]
    slope: Float[Array, " states"]

    def __init__(
        self,
        centre: Float[Array, " variables"],
        scale: Float[Array, " variables"],
        slope: Float[Array, " states"],
        *,
        width: int,
        depth: int,
        key: PRNGKeyArray,
    ):
        mlp = eqx.nn.MLP(centre.size, slope.size, width, depth, jnp.tanh, key=key)
        # A field close to zero keeps every window finite at the start of training.
        small = 0.1 * mlp.layers[-1].weight
        self.mlp = eqx.tree_at(lambda m: m.layers[-1].weight, mlp, small)
        self.centre, self.scale, self.slope = centre, scale, slope

    def evaluate(self, x: Float[Array, " variables"]) -> Float[Array, " states"]:
        centre, scale, slope = jax.lax.stop_gradient((self.centre, self.scale, self.slope))
        return slope * self.mlp((x - centre) / scale)


class Polynomial(_FieldOfVariables):
    """A sum of monomials in the state, its history and the inputs.

    `powers` has a row for each term. `used` says which states' equations have a term; the others
    have the coefficient 0.
    """

    coefficients: Float[Array, "terms states"]
    used: tuple[tuple[bool, ...], ...] = eqx.field(static=True)
    powers: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def evaluate(self, x: Float[Array, " variables"]) -> Float[Array, " states"]:
        terms = [_multiply_powers(x, powers) for powers in self.powers]
        coefficients = jnp.where(np.array(self.used), self.coefficients, 0)
        return jnp.sum(jnp.stack(terms)[:, None] * coefficients, axis=0)

    def format(self, states: Sequence[str], variables: Sequence[str]) -> list[str]:
        """One equation for each state, such as x′ = 2.6 x − 2.6 x x(⌊t⌋)."""
        lines = []
        for i, state in enumerate(states):
            terms = [
                ("−" if (c := float(self.coefficients[j, i])) < 0 else "+", abs(c), powers)
                for j, powers in enumerate(self.powers)
                if self.used[j][i]
            ]
            text = " ".join(
                " ".join([sign, f"{size:.4g}", format_monomial(powers, variables)]).strip()
                for sign, size, powers in terms
            )
            text = re.sub("^− ", "−", text.removeprefix("+ "))
            lines.append(f"{state}′ = {text or '0'}")
        return lines


class HeldLinear(_FieldOfVariables):
    """A linear equation of states held at every sample, for each state by itself.

    Its slope is constant from sample to sample, and takes z_k to constant + Σ lags z_(k−i) +
    inputs · u. A state that is `logarithmic` moves so in its logarithm, with a constant growth
    rate. `lag` has the lags in samples, 0 first.
    """

    constant: Float[Array, " states"]
    lags: Float[Array, "lags states"]
    inputs: Float[Array, "inputs states"]
    gap: float = eqx.field(static=True)
    lag: tuple[int, ...] = eqx.field(static=True)
    logarithmic: tuple[bool, ...] = eqx.field(static=True)

    def evaluate(self, x: Float[Array, " variables"]) -> Float[Array, " states"]:
        states = len(self.logarithmic)
        y, us = x[:states], x[states * (1 + len(self.lag)) :]
        held = x[states : states * (1 + len(self.lag))].reshape(len(self.lag), states)
        log = np.array(self.logarithmic)
        tiny = jnp.finfo(x.dtype).tiny
        seen = jnp.where(log, jnp.log(jnp.maximum(jnp.where(log, held, 1), tiny)), held)
        change = self.constant + jnp.sum(self.lags * seen, axis=0) + us @ self.inputs - seen[0]
        return jnp.where(log, y * change, change) / self.gap

    def recur(
        self,
        past: Float[np.ndarray, "windows lags states"],
        us: Float[np.ndarray, "windows steps inputs"],
    ) -> Float[np.ndarray, "windows steps states"]:
        """The solution at the samples after those in `past`, which are the newest first and all up
        to the longest lag. It is exact and needs no solver."""
        log = np.array(self.logarithmic)
        number = self.lag[-1] + 1
        window = np.array(past[:, :number], float)
        window = np.where(log, np.log(np.maximum(window, np.finfo(float).tiny)), window)
        constant, lags, inputs = (np.asarray(x, float) for x in self.coefficients)
        rows = []
        for step in range(us.shape[1]):
            driven = constant + us[:, step] @ inputs
            value = driven + np.einsum("wls,ls->ws", window[:, list(self.lag)], lags)
            value = np.clip(value, -1e100, 1e100)
            window = np.concatenate([value[:, None], window[:, :-1]], axis=1)
            rows.append(np.where(log, np.exp(np.clip(value, -300, 300)), value))
        return np.stack(rows, axis=1)

    def is_sampled(self, ts: Float[np.ndarray, " times"]) -> bool:
        """Whether these times are as far apart as samples."""
        return bool(np.all(np.abs(np.diff(ts) / self.gap - 1) < 1e-3))

    @property
    def coefficients(self) -> tuple[Array, Array, Array]:
        return self.constant, self.lags, self.inputs

    def format(self, states: Sequence[str], inputs: Sequence[str]) -> list[str]:
        """One recursion for each state, such as x(k+1) = 0.3 + 1.5 x(k) − 0.9 x(k−1) + 0.7 u."""
        lines = []
        for i, state in enumerate(states):
            name = f"log {state}" if self.logarithmic[i] else state
            places = ["(k)", *(f"(k−{lag})" for lag in self.lag[1:])]
            terms = [(self.constant[i], "")]
            terms += [(c, f"{name}{k}") for c, k in zip(self.lags[:, i], places, strict=True)]
            terms += [(c, name) for c, name in zip(self.inputs[:, i], inputs, strict=True)]
            lines.append(f"{name}(k+1) = {_format_sum(terms)}")
        return lines


def _format_sum(terms: Sequence[tuple[Any, str]]) -> str:
    """A sum such as 2.6 x − 2.6 y, without terms whose coefficient is 0."""
    text = " ".join(
        f"{'−' if float(c) < 0 else '+'} {abs(float(c)):.4g} {name}".strip()
        for c, name in terms
        if float(c)
    )
    return re.sub("^− ", "−", text.removeprefix("+ ")) or "0"


class Equation(eqx.Module):
    """The trained field, and the shift of each learned period."""

    field: Callable
    shifts: Float[Array, " periods"]


def _multiply_powers(x: Array, powers: tuple[int, ...]) -> Array:
    factors = [x[i] for i, power in enumerate(powers) for _ in range(power)]
    return jnp.prod(jnp.stack(factors)) if factors else jnp.ones((), x.dtype)


def drop_small_terms(
    members: Sequence[Equation], sizes: Float[np.ndarray, "terms states"], least: float
) -> list[Equation]:
    """Drops the terms of an ensemble's libraries that move a state by less than the share `least`
    of its largest term. `sizes` is how much each term with coefficient 1 moves each state."""
    fields: list[Polynomial] = [member.field for member in members]  # pyright: ignore
    share = np.max([np.abs(np.asarray(f.coefficients)) for f in fields], axis=0) * sizes
    used = np.array(fields[0].used) & (share > least * share.max(axis=0))
    kept = np.flatnonzero(used.any(axis=1)) if used.any() else np.arange(1)
    flags = tuple(tuple(bool(u) for u in used[j]) for j in kept)
    powers = tuple(fields[0].powers[j] for j in kept)
    smaller = [Polynomial(field.coefficients[kept], flags, powers) for field in fields]
    return [Equation(f, m.shifts) for f, m in zip(smaller, members, strict=True)]


def add_pull(members: Sequence[Equation]) -> list[Equation]:
    """Adds the constant and the state itself to each state's equation, with coefficient 0 where
    they were missing."""
    fields: list[Polynomial] = [member.field for member in members]  # pyright: ignore
    states, variables = fields[0].coefficients.shape[1], len(fields[0].powers[0])
    unit = lambda i: tuple(int(k == i) for k in range(variables))
    needed = [unit(-1), *(unit(i) for i in range(states))]
    powers = (*fields[0].powers, *(p for p in needed if p not in fields[0].powers))
    more = len(powers) - len(fields[0].powers)
    flags = [list(row) for row in fields[0].used] + [[False] * states for _ in range(more)]
    for i in range(states):
        flags[powers.index(unit(-1))][i] = flags[powers.index(unit(i))][i] = True
    used = tuple(map(tuple, flags))
    padded = [
        jnp.pad(jnp.where(np.array(f.used), f.coefficients, 0), ((0, more), (0, 0))) for f in fields
    ]
    return [
        Equation(Polynomial(c, used, powers), m.shifts)
        for c, m in zip(padded, members, strict=True)
    ]


# --- names ----------------------------------------------------------------------------------------


def choose_symbols(names: Sequence[str], letter: str, number: int) -> list[str]:
    """Symbols for variables in an equation: their names if all are single words, otherwise a
    letter, numbered if there are several."""
    if names and all(re.fullmatch(r"\w+", name) for name in names):
        return list(names)
    return [letter] if number == 1 else [f"{letter}{i + 1}" for i in range(number)]


def name_variables(
    delays: Sequence[Delay], states: Sequence[str], inputs: Sequence[str]
) -> list[str]:
    """The variables of a field as they are printed."""
    names = list(states)
    for delay in delays:
        names += [f"{state}({_format_source(delay)})" for state in states]
    return names + list(inputs)


def _format_source(delay: Delay) -> str:
    """The time that a delay refers to."""
    if isinstance(delay, Hold) and delay.times is not None:
        return f"t_k−{delay.lag}" if delay.lag else "t_k"
    tau = f"{read_period(delay):.4g}"
    if isinstance(delay, Lag):
        return f"t−{tau}"
    held = "⌊t⌋" if tau == "1" else f"⌊t/{tau}⌋·{tau}"
    return f"{held}−{delay.lag * float(tau):.4g}" if delay.lag else held


def format_monomial(powers: Sequence[int], variables: Sequence[str]) -> str:
    """A product such as x y²; nothing for the constant term."""
    raised = {1: "", 2: "²", 3: "³"}
    return " ".join(
        f"{variables[i]}{raised.get(p, f'^{p}')}" for i, p in enumerate(powers) if p > 0
    )
