"""Measured series of known equations, and the coefficients that a library has found for them."""

import diffrax
import numpy as np

import lagrax


def population_series(noise=0.0, span=20.0, seed=0, ts=None, x0=0.4):
    """x' = 2.6 x (1 - x(⌊t⌋)) by its closed form, sampled ten times a season unless at `ts`.

    `noise` is in units of the standard deviation.
    """
    ts = np.arange(0, span + 1e-9, 0.1) if ts is None else ts
    number = np.floor(ts + 1e-9).astype(int)
    knots = [x0]
    for _ in range(number.max()):
        knots.append(knots[-1] * np.exp(2.6 * (1 - knots[-1])))
    held = np.array(knots)[number]
    ys = held * np.exp(2.6 * (1 - held) * (ts - number))
    rng = np.random.default_rng(seed)
    return ts, ys + noise * ys.std() * rng.standard_normal(len(ts))


def solve_series(field, ts, y0, delays=()):
    """The states of an equation at `ts`, with a small error."""
    solution = lagrax.solve(
        field,
        float(ts[0]),
        float(ts[-1]),
        y0,
        delays=list(delays),
        solver=diffrax.Dopri8(),
        steps=8 if delays else 8 * len(ts),
        saveat=diffrax.SaveAt(ts=ts),
    )
    return np.array(solution.ys, float)


def read_coefficients(model, state=0):
    """The coefficients of a fitted library by the powers of their terms."""
    field = model.equation_
    return {
        powers: float(field.coefficients[j, state])
        for j, powers in enumerate(field.powers)
        if field.used[j][state]
    }
