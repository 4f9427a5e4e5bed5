"""Published and independently computed numbers, and stiff, long or extreme equations."""

import itertools
import math

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy.integrate import solve_ivp

import lagrax
from lagrax import Hold, Lag

TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-12)
FLOATS = [pytest.param(np.float32, id="float32"), pytest.param(np.float64, id="float64")]


# --- references that were not made here -----------------------------------------------------------


def test_the_simplest_lag_has_its_polynomials(x64):
    """y' = −y(t − 1) after 1: Σ (−1)^k (t − k + 1)^k / k! over k <= t + 1 (R. D. Driver, *Ordinary
    and Delay Differential Equations*, 1977)."""

    def exact(t):
        return sum((-1) ** k * (t - k + 1) ** k / math.factorial(k) for k in range(int(t) + 2))

    ts = np.linspace(0, 10, 41)
    sol = lagrax.solve(
        lambda t, y, args, *, history: -history[0],
        0.0,
        10.0,
        1.0,
        delays=[Lag(1.0)],
        stepsize_controller=TIGHT,
        saveat=diffrax.SaveAt(ts=ts),
    )
    np.testing.assert_allclose(sol.ys, [exact(t) for t in ts], atol=1e-9)


def by_polynomials(taus, derivative, start, end, unit):
    """The exact solution of a linear system by the method of steps.

    It is a polynomial on each interval of length `unit`, of which all lags are multiples.
    `derivative(now, *lagged)` maps polynomials in the time since the start of the interval.
    """
    pieces = [[Polynomial([x]) for x in start]] * round(max(taus) / unit)
    for _ in range(round(end / unit)):
        lagged = [pieces[-round(tau / unit)] for tau in taus]
        begin = [p(unit) for p in pieces[-1]]
        pieces.append(derivative(begin, *lagged))
    return pieces[round(max(taus) / unit) :]


def test_the_example_of_dde23(x64):
    """Example 3 of Willé and Baker, *DELSOL*, Appl. Numer. Math. 9 (1992), the first of the manual
    of MATLAB's dde23: y1' = y1(t − 1), y2' = y1(t − 1) + y2(t − 0.2), y3' = y2(t), all 1 before."""

    def derivative(begin, one, fifth):
        y1 = one[0].integ(k=begin[0])
        y2 = (one[0] + fifth[1]).integ(k=begin[1])
        return [y1, y2, y2.integ(k=begin[2])]

    pieces = by_polynomials([1.0, 0.2], derivative, [1.0, 1.0, 1.0], 5.0, 0.2)

    def field(t, y, args, *, history):
        one, fifth = history
        return jnp.stack([one[0], one[0] + fifth[1], y[1]])

    ts = 0.2 * np.arange(1, 26)
    sol = lagrax.solve(
        field,
        0.0,
        5.0,
        jnp.ones(3),
        delays=[Lag(1.0), Lag(0.2)],
        stepsize_controller=TIGHT,
        saveat=diffrax.SaveAt(ts=ts),
    )
    expected = [[p(0.2) for p in piece] for piece in pieces]
    np.testing.assert_allclose(sol.ys, expected, rtol=1e-8)


def mackey_glass(t, y, args, *, history):
    (z,) = history
    return 0.2 * z / (1 + z**10) - 0.1 * y


def granulopoiesis(t, y, args, *, history):
    ((z, _),) = history
    flow = 10 * y[0] / (1 + 40 * y[1])
    return jnp.stack([1.1 / (1 + jnp.sqrt(10.0) * z**1.25) - flow, 10 * flow - 2.43 * y[1]])


# Problems A1 and A2 of W. H. Enright, H. Hayashi, *The evaluation of numerical software for delay
# differential equations* (1997): lag, start, and values by jitcdde 1.8.3 with tolerances of 1e-11,
# of which nine digits agree with those of 1e-10.
DDETST = {
    "Mackey-Glass": (
        mackey_glass,
        14.0,
        0.5,
        {20: 1.0444381063, 50: 0.5122030457, 100: 0.8281877476, 200: 1.2627331652},
    ),
    "granulopoiesis": (
        granulopoiesis,
        20.0,
        (1.05767027 / 3, 1.030713491 / 3),
        {25: (3.0999261970, 1.7908146062), 50: (0.2034835670, 0.4363314164)},
    ),
}


@pytest.mark.parametrize("name", DDETST)
def test_problems_of_enright_and_hayashi(name, x64):
    field, tau, start, values = DDETST[name]
    ts = np.array(list(values))
    sol = lagrax.solve(
        field,
        0.0,
        float(ts[-1]),
        jnp.asarray(start),
        delays=[Lag(tau)],
        stepsize_controller=TIGHT,
        saveat=diffrax.SaveAt(ts=ts),
        max_steps=20_000,
    )
    np.testing.assert_allclose(sol.ys, list(values.values()), rtol=2e-8)


# --- stiff ----------------------------------------------------------------------------------------


def test_a_stiff_plant_under_a_hold(x64):
    """Two time scales, a millionth and one, with the exact solution of its linear parts."""
    fast = 1e6

    def field(t, y, args, *, history):
        (held,) = history
        return jnp.stack([-fast * (y[0] - y[1]), -y[1] + 0.5 * held[0]])

    sol = lagrax.solve(
        field,
        0.0,
        5.0,
        jnp.array([3.0, 1.0]),
        delays=[Hold(1.0)],
        solver=diffrax.Kvaerno5(),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-10),
        max_steps=20_000,
    )
    x, y = 3.0, 1.0
    for _ in range(5):
        # With u held, y relaxes to u/2; x follows y, by a millionth behind.
        target = 0.5 * x
        end = target + (y - target) * np.exp(-1.0)
        x, y = target + (y - target) * np.exp(-1.0) * fast / (fast - 1), end
    np.testing.assert_allclose(sol.ys[-1], [x, y], rtol=1e-6)
    assert sol.stats["num_steps"] < 2000  # an explicit solver would need a million


def test_a_stiff_oscillator_under_a_hold(x64):
    """Van der Pol's with a sampled force, against SciPy's Radau from knot to knot."""
    mu = 1000.0

    def force(held):
        return 0.5 * np.tanh(held)

    def field(t, y, args, *, history):
        (held,) = history
        return jnp.stack([y[1], mu * ((1 - y[0] ** 2) * y[1]) - y[0] + 0.5 * jnp.tanh(held[0])])

    sol = lagrax.solve(
        field,
        0.0,
        400.0,
        jnp.array([2.0, 0.0]),
        delays=[Hold(100.0)],
        solver=diffrax.Kvaerno5(),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-10),
    )
    y = np.array([2.0, 0.0])
    for _ in range(4):
        u = force(y[0])

        def f(t, y, u=u):
            return [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0] + u]

        y = solve_ivp(f, (0, 100), y, method="Radau", rtol=1e-10, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(sol.ys[-1], y, rtol=1e-6)


# --- long -----------------------------------------------------------------------------------------

LONG = 100_000


def relaxing(t, y, args, *, history):
    return -y + 0.5 * history[0]


def long_solve(intervals, tau, size, dtype, **options):
    y0 = jnp.ones(size, dtype)
    span = {"t0": 0.0, "t1": intervals * tau}
    sol = lagrax.solve(relaxing, y0=y0, delays=[Hold(tau)], steps=1, throw=False, **span, **options)
    return sol.ys[-1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_hundred_thousand_intervals(dtype, x64):
    tau = 1e-4
    exact = (np.exp(-tau) + 0.5 * (1 - np.exp(-tau))) ** LONG
    found = long_solve(LONG, tau, 1, dtype)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, exact, rtol=1e-9 if dtype == np.float64 else 3e-3)


def test_memory_does_not_grow_with_the_intervals():
    """Only the grid grows, by three numbers an interval. Unused knots are not kept."""
    size = 10_000

    def memory(intervals):
        program = jax.jit(lambda: long_solve(intervals, 1e-4, size, jnp.float32))
        return program.lower().compile().memory_analysis().temp_size_in_bytes

    few, many = memory(1_000), memory(LONG)
    assert many - few < 100 * LONG
    assert many < 30 * 4 * size + 100 * LONG


def test_a_hundred_thousand_intervals_of_two_clocks():
    """Samples are found without a table of all intervals by all instants."""
    decay = lambda t, y, args, *, history: -1e-5 * history[1]
    clocks = [[Hold(2.0), Hold(1.0)], [Hold(2.0), Hold(times=np.arange(1.0, LONG))]]
    for delays in clocks:
        sol = lagrax.solve(decay, 0.0, float(LONG), np.float64(1.0), delays=delays, steps=1)
        assert sol.stats["num_intervals"] == LONG
        np.testing.assert_allclose(sol.ys[-1], (1 - 1e-5) ** LONG, rtol=1e-3)


def test_a_lag_is_as_accurate_as_dense_output(x64):
    """x' = -x(t - 1) with past 1 is 19/120 at 5. The documentation gives the errors of Kvaerno5."""
    field = lambda t, x, args, *, history: -history[0]

    def error(solver, **bound):
        controller = diffrax.PIDController(rtol=1e-6, atol=1e-8, **bound)
        options = {"delays": [Lag(1.0)], "solver": solver, "stepsize_controller": controller}
        return abs(float(lagrax.solve(field, 0.0, 5.0, 1.0, **options).ys[-1]) - 19 / 120)

    for solver in (diffrax.Tsit5(), diffrax.Dopri8(), diffrax.Kvaerno3(), diffrax.Kvaerno4()):
        assert error(solver) < 1e-6
    assert error(diffrax.Kvaerno5()) > 1e-4
    assert error(diffrax.Kvaerno5(), dtmax=0.125) < 1e-6


def test_a_population_that_falls_far(x64):
    """The documentation's example for `atol` falls to 1e-23 and returns at t = 11."""
    system, knots = lagrax.systems.Population(6.0), np.arange(13.0)
    exact = np.asarray(system.solution(knots, 0.5))
    assert exact.min() < 1e-22
    due = lambda states: np.flatnonzero(np.asarray(states)[2:] > 1)[0] + 2
    assert due(exact) == 11

    def solve_at_knots(field, start, **options):
        options |= {"delays": system.delays, "saveat": diffrax.SaveAt(ts=knots)}
        return lagrax.solve(field, 0.0, 12.0, start, **options).ys

    growth = lambda t, u, args, *, history: 6.0 * (1 - jnp.exp(history[0]))
    tight = diffrax.PIDController(rtol=1e-8, atol=1e-40)
    assert due(solve_at_knots(system, 0.5)) < 11
    np.testing.assert_allclose(
        solve_at_knots(system, 0.5, stepsize_controller=tight), exact, rtol=1e-5
    )
    np.testing.assert_allclose(jnp.exp(solve_at_knots(growth, np.log(0.5))), exact, rtol=1e-5)


def test_a_lag_far_from_zero_in_float32():
    """The documentation says that the rounding of t - tau costs a thousandth at 10,000, and that
    adaptive steps may not arrive.
    """
    field = lambda t, x, args, *, history: -history[0]
    options = {"delays": [Lag(1.0)], "steps": 8}
    near, far = (lagrax.solve(field, t0, t0 + 5, 1.0, **options).ys[-1] for t0 in (0.0, 1e4))
    assert abs(near - 19 / 120) < 1e-5
    assert 3e-4 < abs(far - 19 / 120) < 3e-3
    with pytest.raises(lagrax.SolveError, match=r"more of them do not help. Use float64"):
        lagrax.solve(field, 1e4, 1e4 + 5, 1.0, delays=[Lag(1.0)])


# --- extreme --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("steps", [None, 20])
def test_extreme_periods(dtype, steps, x64):
    """In units of tau the equation is the same for every tau."""
    rows = {
        Hold: (lambda t, y, tau, *, history: (0.5 * history[0] - y) / tau, relax(3)),
        Lag: (lambda t, y, tau, *, history: -history[0] / tau, -1 / 6),
    }
    for tau, (delay, (field, exact)) in itertools.product((1e-6, 1e6), rows.items()):
        options = {"delays": [delay(tau)], "steps": steps, "throw": False}
        sol = lagrax.solve(field, 0.0, 3 * tau, dtype(1.0), dtype(tau), **options)
        assert sol.result == lagrax.RESULTS.successful
        assert sol.ys.dtype == dtype
        np.testing.assert_allclose(sol.ys[-1], exact, rtol=2e-5)


def relax(intervals):
    return (np.exp(-1.0) + 0.5 * (1 - np.exp(-1.0))) ** intervals


def test_periods_that_are_too_short_for_the_times_are_refused():
    with pytest.raises(ValueError, match=r"Hold\(1e-06\) is too short for float32") as caught:
        lagrax.solve(relaxing, 1.0, 1.00001, 1.0, delays=[Hold(1e-6)])
    assert "float64" in str(caught.value)


def test_far_from_zero_steps_are_as_good_as_float32_allows():
    """At 1e9 times are 64 apart, a ten-thousandth of this period."""
    tau, t0 = 1e6, 1e9
    field = lambda t, y, args, *, history: (0.5 * history[0] - y) / tau
    sol = lagrax.solve(field, t0, t0 + 3 * tau, 1.0, delays=[Hold(tau)])
    np.testing.assert_allclose(sol.ys[-1], relax(3), rtol=1e-4)
