"""The observed order of every explicit solver, which knots must not lower.

Equations and step counts were chosen so that the leading error term dominates at errors above
rounding. Elsewhere, before the asymptotic range, Tsit5 and Dopri8 scatter around their order, as
they do in diffrax without any delay.
"""

import itertools
import math

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.reference import breakpoints, held_instant, reference

import lagrax
from lagrax import Hold, Lag, holds

# Steps an interval at which the leading error term dominates.
STEPS = {
    diffrax.Euler: (128, 512),
    diffrax.Midpoint: (24, 96),
    diffrax.Heun: (24, 96),
    diffrax.Ralston: (24, 96),
    diffrax.Bosh3: (12, 48),
    diffrax.Tsit5: (40, 100),
    diffrax.Dopri5: (10, 24),
    diffrax.Dopri8: (5, 10),
}
# Each number of steps is a program of its own. Breakpoints do not depend on the solver.
FEW = (diffrax.Euler, diffrax.Tsit5, diffrax.Dopri8)


def drive(history):
    return sum(0.7 ** (i + 1) * h for i, h in enumerate(history))


def past(t, xp=jnp):
    return xp.stack([0.5 + 0.1 * xp.sin(t), 0.3 * xp.cos(t)])


RATE = np.array([-0.4 + 4.0j, -0.2 + 3.0j])


def turning(t, z, history, xp):
    """A linear equation, whose leading error term dominates from coarse steps on."""
    return RATE * z + drive(history)


def shaken(t, z, history, xp):
    """For Dopri8, which is of order nine without the forcing."""
    return 5.0 * xp.stack([xp.cos(10.0 * t), xp.sin(10.0 * t)]) - z + drive(history)


def solve_turning(delays, points):
    """`turning` by its closed form, from breakpoint to breakpoint."""
    states = {0.0: past(0.0, np)}

    def held(delay, begin):
        instant = held_instant(delay, begin)
        if instant is not None and instant < -1e-9:
            return past(instant, np)
        return states[min(states, key=lambda s: abs(s - (instant or 0.0)))]

    for begin, end in itertools.pairwise(points):
        c, growth = drive([held(d, begin) for d in delays]), np.exp(RATE * (end - begin))
        states[end] = growth * states[begin] + c * (growth - 1) / RATE
    return np.array([states[p] for p in points])


def by_scipy(equation, delays, points):
    f = lambda t, z, history: equation(t, z, history, np)
    start = lambda t: past(t, np) + (0j if equation is turning else 0)
    return reference(f, 0.0, SPAN, start, delays, points, rtol=1e-13, atol=1e-14)


SPAN = 2.8
CASES = {
    "regular": [Hold(1.0)],
    "lagged": holds(0.8, 3),
    "multi-rate": [Hold(1.0), Hold(0.7, lag=1)],
    "irregular": [Hold(times=[0.3, 0.9, 2.0])],
    "lag": [Lag(1.0)],
}


@pytest.mark.parametrize(
    ("case", "solvers"),
    [
        *((case, STEPS if case in ("multi-rate", "lag") else FEW) for case in CASES),
        *(
            pytest.param(case, STEPS, marks=pytest.mark.slow)
            for case in ("regular", "lagged", "irregular")
        ),
    ],
)
def test_the_order_is_kept(case, solvers, x64):
    delays, measured = CASES[case], {}
    points = breakpoints(delays, 0.0, SPAN)
    answers = {
        turning: by_scipy(turning, delays, points)
        if case == "lag"
        else solve_turning(delays, points),
        shaken: by_scipy(shaken, delays, points),
    }
    for solver in solvers:
        counts = STEPS[solver]
        equation = shaken if solver is diffrax.Dopri8 else turning
        field = lambda t, z, args, *, history, f=equation: f(t, z, history, jnp)
        start = lambda t, f=equation: past(t) + (0j if f is turning else 0)
        errors = []
        for steps in counts:
            sol = lagrax.solve(field, 0.0, SPAN, start, delays=delays, solver=solver(), steps=steps)
            np.testing.assert_allclose(sol.knots.ts, points, rtol=1e-12)
            errors.append(float(np.max(np.abs(np.asarray(sol.knots.ys) - answers[equation]))))
        order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
        measured[solver.__name__] = round(float(order), 2), solver().order(None), errors
    if case == "lag":
        # A lag reads the dense output, and diffrax's for Dopri8 is of order six only.
        order, _, errors = measured.pop("Dopri8")
        assert order > 5.6, errors
    slack = 0.4 if case == "lag" else 0.25
    wrong = {name: m for name, m in measured.items() if not abs(m[0] - m[1]) <= slack}
    assert not wrong, f"{wrong} of {measured}"


@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize(
    ("solver", "counts"),
    [
        pytest.param(diffrax.Bosh3, (8, 16, 32), marks=pytest.mark.slow, id="Bosh3"),
        pytest.param(diffrax.Tsit5, (4, 6, 9), id="Tsit5"),
    ],
)
def test_several_lags_keep_the_order(solver, counts, traced, x64):
    """Kinks reach every sum of lags. They are breakpoints as long as they affect the order."""
    taus, t1 = (1.0, 2**0.5, 3**0.5), 12.0
    field = lambda t, z, args, *, history: -0.3 * z + 0.9 * jnp.sin(drive(history))
    f = lambda t, z, history: -0.3 * z + 0.9 * np.sin(drive(history))
    start = lambda t: past(t, np)
    expected = reference(f, 0.0, t1, start, [Lag(tau) for tau in taus], [t1], 1e-13, 1e-14)[0]

    def solve_with_lags(taus, steps):
        delays = [Lag(tau) for tau in taus]
        options = {"delays": delays, "solver": solver(), "steps": steps, "intervals": 12}
        return lagrax.solve(field, 0.0, t1, past, **options)

    if not traced:
        order = solver().order(None)
        assert solve_with_lags(taus, 1).stats["num_intervals"] <= t1 + math.comb(order + 3, 3)
    by_taus = eqx.filter_jit(solve_with_lags)
    sols = [by_taus(jnp.array(taus), k) if traced else solve_with_lags(taus, k) for k in counts]
    errors = [float(np.max(np.abs(np.asarray(sol.ys[-1]) - expected))) for sol in sols]
    measured = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert measured > solver().order(None) - 0.4, errors


def jumping(t):
    return jnp.where(t < 0, 0.0, 1.0)


# Kvaerno's methods of order 4 and 5 look beyond the end of a step. (What a lag reads of the latter
# is a cubic.)
IMPLICIT = [
    pytest.param(diffrax.Kvaerno3(), 3, marks=pytest.mark.slow),
    (diffrax.Kvaerno4(), 4),
    (diffrax.Kvaerno5(), 4),
]


def of_two_lags(t, y, args, *, history):
    return history[0] - 2 * history[1] - y


@pytest.mark.parametrize(("solver", "order"), IMPLICIT)
@pytest.mark.parametrize("start", [1.0, pytest.param(jnp.cos, marks=pytest.mark.slow), jumping])
def test_implicit_methods_keep_their_order_with_lags(solver, order, start, x64):
    def end(solver, steps):
        options = {"delays": [Lag(1.0), Lag(0.5)], "solver": solver, "steps": steps}
        return lagrax.solve(of_two_lags, 0.0, 2.0, start, **options).ys[-1]

    exact = end(diffrax.Dopri8(), 32)
    errors = [abs(end(solver, steps) - exact) for steps in (8, 16)]
    assert np.log2(errors[0] / errors[1]) > order - 0.2


@pytest.mark.parametrize(("solver", "order"), IMPLICIT)
@pytest.mark.parametrize("switched", [True, False], ids=["switched", "smooth"])
def test_implicit_methods_keep_their_order_with_fields_of_time(solver, order, switched, x64):
    """Their stages lie beyond the knots, at which the field may switch."""
    inputs = np.array([1.0, 100.0, -20.0, 7.0])

    def end(solver, steps):
        def field(t, x, args, *, history):
            drive = jnp.asarray(inputs)[jnp.floor(t).astype(int)] if switched else 30 * jnp.sin(t)
            return drive * jnp.cos(t) - x + 0 * history[0]

        return lagrax.solve(field, 0.0, 4.0, 1.0, delays=[Hold(1.0)], solver=solver, steps=steps).ys

    exact = end(diffrax.Dopri8(), 16)
    errors = [float(np.max(np.abs(end(solver, steps) - exact))) for steps in (8, 16)]
    assert np.log2(errors[0] / errors[1]) > order - 0.3, errors
    assert errors[0] < 1e-3


def test_the_order_that_is_lost_when_steps_cross_knots(x64):
    """A single diffrax solve whose steps cross the knots is of first order.

    Its held states are exact, so that only the crossing is to blame.
    """
    a, x0, t1 = 3.2, 0.4, 2.8
    knots = [x0]
    for _ in range(3):
        knots.append(knots[-1] * np.exp(a * (1 - knots[-1])))
    expected = knots[2] * np.exp(a * (1 - knots[2]) * 0.8)
    held = jnp.asarray(knots)
    term = diffrax.ODETerm(lambda t, x, args: a * x * (1 - held[jnp.floor(t).astype(int)]))
    ours, naive, counts = [], [], (9, 15, 27, 60)
    for n in counts:
        sol = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, t1, t1 / n, x0)
        naive.append(abs(float(sol.ys[-1]) - expected))
        sol = lagrax.solve(
            lambda t, x, args, *, history: a * x * (1 - history[0]),
            0.0,
            t1,
            x0,
            delays=[Hold(1.0)],
            steps=n // 3,
        )
        ours.append(abs(float(sol.ys[-1]) - expected))
    order = lambda errors, n: -np.polyfit(np.log(counts[:n]), np.log(errors[:n]), 1)[0]
    assert order(ours, 4) > 4.5
    assert order(naive, 4) < 2
    assert min(naive) > 1000 * ours[-1]
