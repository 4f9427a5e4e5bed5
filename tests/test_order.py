"""The observed order of every explicit solver, which knots must not lower."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import reference

import lagrax
from lagrax import Hold, Lag, holds

# Steps an interval at which the error is well above rounding and well below one.
STEPS = {
    diffrax.Euler: (16, 32, 64, 128),
    diffrax.Midpoint: (8, 16, 32, 64),
    diffrax.Heun: (8, 16, 32, 64),
    diffrax.Ralston: (8, 16, 32, 64),
    diffrax.Bosh3: (4, 8, 16, 32),
    diffrax.Tsit5: (4, 6, 8, 12),
    diffrax.Dopri5: (4, 6, 8, 12),
    diffrax.Dopri8: (2, 3, 4, 5),
}


def mixing(t, y, args, *, history):
    total = sum((0.9 ** (i + 1)) * jnp.sin(h) for i, h in enumerate(history))
    return -0.9 * y * (1 + 0.3 * jnp.sin(3 * t)) + total + 0.4 * jnp.cos(4 * t) * y[::-1] ** 2


def mixing_numpy(t, y, history):
    total = sum((0.9 ** (i + 1)) * np.sin(h) for i, h in enumerate(history))
    return -0.9 * y * (1 + 0.3 * np.sin(3 * t)) + total + 0.4 * np.cos(4 * t) * y[::-1] ** 2


def past(t):
    return jnp.stack([1.0 + 0.3 * jnp.sin(t), jnp.cos(0.5 * t)])


def past_numpy(t):
    return np.stack([1.0 + 0.3 * np.sin(t), np.cos(0.5 * t)])


CASES = {
    "regular": ([Hold(1.0)], 0.25),
    "lagged": (holds(0.8, 3), 0.25),
    "multi-rate": ([Hold(1.0), Hold(0.7)], 0.25),
    "irregular": ([Hold(times=[0.3, 0.9, 2.0])], 0.25),
    "lag": ([Lag(1.0)], 0.4),
}


def observed_order(solver, delays, expected, t1, start=past):
    errors = []
    for steps in STEPS[solver]:
        sol = lagrax.solve(mixing, 0.0, t1, start, delays=delays, solver=solver(), steps=steps)
        errors.append(float(jnp.max(jnp.abs(sol.ys[-1] - expected))))
    return -np.polyfit(np.log(STEPS[solver]), np.log(errors), 1)[0], errors


@pytest.mark.parametrize("case", CASES)
def test_the_order_is_kept(case, x64):
    delays, slack = CASES[case]
    t1 = 2.8
    expected = reference(mixing_numpy, 0.0, t1, past_numpy, delays, [t1])[0]
    measured = {}
    for solver in STEPS:
        order, errors = observed_order(solver, delays, expected, t1)
        measured[solver.__name__] = (round(order, 2), solver().order(None), errors)
    wrong = {name: m for name, m in measured.items() if not abs(m[0] - m[1]) <= slack}
    assert not wrong, measured


def test_the_order_that_is_lost_when_steps_cross_knots(x64):
    """The naive use: one diffrax solve whose steps do not stop at the knots, the held state taken
    as if it were known (here from the exact solution, so that only the crossing is to blame)."""
    a, x0, t1 = 1.5, 0.4, 2.8
    knots = [x0]
    for _ in range(3):
        knots.append(knots[-1] * np.exp(a * (1 - knots[-1])))
    expected = knots[2] * np.exp(a * (1 - knots[2]) * 0.8)
    held = jnp.asarray(knots)
    term = diffrax.ODETerm(lambda t, x, args: a * x * (1 - held[jnp.floor(t).astype(int)]))
    ours, naive, counts = [], [], (7, 11, 15, 23, 31)
    for n in counts:
        sol = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, t1, t1 / n, x0)
        naive.append(abs(float(sol.ys[-1]) - expected))
        sol = lagrax.solve(
            lambda t, x, args, *, history: a * x * (1 - history[0]),
            0.0, t1, x0, delays=[Hold(1.0)], steps=n // 3,
        )  # fmt: skip
        ours.append(abs(float(sol.ys[-1]) - expected))
    order = lambda errors: -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order(ours) > 4.5
    assert order(naive) < 2
    assert min(naive) > 100 * max(ours[-2:])
