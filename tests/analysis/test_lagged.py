"""Equilibria, roots, Hopf points, cycles and branches of lagged equations, against closed forms."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import lambertw

import lagrax
from lagrax.analysis import (
    LaggedEquation,
    characteristic_roots,
    continue_branch,
    find_cycle,
    find_equilibrium,
    find_fold,
    find_hopf,
    floquet_multipliers,
    stability_chart,
)
from lagrax.systems import Hutchinson, MackeyGlass

LAG = [lagrax.Lag(1.0)]


def decay(t, x, rates, *, history):
    """x' = b x + a x(t - tau)."""
    (lagged,) = history
    return rates[0] * x + rates[1] * lagged


def two_neurons(t, x, p, *, history):
    """The coupled neurons of the tutorial of DDEBifurcationKit.jl."""
    a, c = p
    own, other = history
    g = lambda z: (jnp.tanh(z - 1) + jnp.tanh(1.0)) * jnp.cosh(1.0) ** 2
    return -x - a * g(2.0 * own) + c * g(1.2 * other[::-1])


def stuart_landau(t, z, p, *, history):
    """z' = (growth + i omega) z - |z|^2 z + gain (z(t - tau) - z)."""
    growth, omega, gain = p
    (x, y), (lagged,) = z, history
    square = x**2 + y**2
    return jnp.stack(
        [
            growth * x - omega * y - square * x + gain * (lagged[0] - x),
            growth * y + omega * x - square * y + gain * (lagged[1] - y),
        ]
    )


GROWTH, OMEGA, GAIN, TAU = 0.3, 1.0, 0.2, 7.0


def rotating_wave(gain=GAIN):
    """Frequency and radius of the cycle of `stuart_landau`: z = r exp(i f t)."""
    missing = lambda f: f - OMEGA + gain * np.sin(f * TAU)
    frequency = brentq(missing, 0.8, 1.2, xtol=1e-15)
    return frequency, np.sqrt(GROWTH + gain * (np.cos(frequency * TAU) - 1))


def wave(t):
    frequency, radius = rotating_wave()
    return radius * jnp.stack([jnp.cos(frequency * t), jnp.sin(frequency * t)])


def make_oscillator(gain=GAIN):
    p = (GROWTH, OMEGA, gain)
    return LaggedEquation(stuart_landau, jnp.array([0.5, 0.0]), p, delays=[lagrax.Lag(TAU)])


# --- equilibria and characteristic roots ----------------------------------------------------------


def test_equilibria_of_classical_equations(x64):
    """Half-way between its two equilibria, Hutchinson's slope is flat."""
    np.testing.assert_allclose(find_equilibrium(Hutchinson(1.8)), 1.0, rtol=1e-14)
    np.testing.assert_allclose(find_equilibrium(Hutchinson(1.8), 0.1), 0.0, atol=1e-14)
    exact = lambda beta: (beta / 0.1 - 1) ** 0.1
    found, slope = jax.value_and_grad(lambda beta: find_equilibrium(MackeyGlass(beta)))(0.3)
    np.testing.assert_allclose(found, exact(0.3), rtol=1e-13)
    np.testing.assert_allclose(slope, 0.1 * 2.0**-0.9 / 0.1, rtol=1e-12)


def test_equilibria_compose_with_jit_and_vmap(x64):
    betas = jnp.array([0.15, 0.2, 0.3])
    found = jax.jit(jax.vmap(lambda beta: find_equilibrium(MackeyGlass(beta))))(betas)
    np.testing.assert_allclose(found, (np.asarray(betas) / 0.1 - 1) ** 0.1, rtol=1e-12)
    without = lambda a: find_equilibrium(LaggedEquation(lambda t, x, a: x**2 + a, 1.0, a))
    np.testing.assert_allclose(jax.vmap(without)(jnp.array([-4.0, 1.0])), [2.0, np.nan])


@pytest.mark.parametrize("tau", [0.3, 1.0, 20.0])
def test_roots_of_a_scalar_equation_are_lambert(x64, tau):
    """λ = b + W_k(a τ exp(−b τ))/τ, S. Yi, P. W. Nelson, A. G. Ulsoy (2010)."""
    b, a = -0.4, -1.3
    f = LaggedEquation(decay, 0.0, (b, a), delays=[lagrax.Lag(tau)])
    branches = lambertw(a * tau * np.exp(-b * tau), np.arange(-40, 41)) / tau + b
    exact = np.array(sorted(branches, key=lambda z: (-round(z.real, 9), -z.imag)))[:10]
    np.testing.assert_allclose(characteristic_roots(f, count=10), exact, rtol=1e-10)


def test_roots_that_are_not_there(x64):
    """Where the population is extinct, the lagged state drops out, and one root is left."""
    roots = characteristic_roots(Hutchinson(1.8), 0.0, count=3)
    np.testing.assert_allclose(roots[0], 1.8, rtol=1e-12)
    assert np.all(np.isneginf(roots.real[1:]))


def test_derivatives_of_a_root(x64):
    """dW/dx = W/(x (1 + W)), in the lag and in a coefficient, and the second derivative."""

    def growth(a, tau):
        f = LaggedEquation(decay, 0.0, (0.0, -a), delays=[lagrax.Lag(tau)])
        return characteristic_roots(f, 0.0, count=2)[0].real

    exact = lambda a, tau: lambertw(-a * tau).real / tau
    a, tau, e = 1.8, 0.9, 1e-6
    by_a, by_tau = jax.grad(growth, (0, 1))(a, tau)
    w = lambertw(-a * tau)
    np.testing.assert_allclose(by_a, (w / (a * tau * (1 + w))).real, rtol=1e-10)
    np.testing.assert_allclose(by_tau, (exact(a, tau + e) - exact(a, tau - e)) / 2 / e, rtol=1e-6)
    second = (exact(a + 1e-4, tau) - 2 * exact(a, tau) + exact(a - 1e-4, tau)) / 1e-8
    np.testing.assert_allclose(jax.hessian(growth)(a, tau), second, rtol=1e-5)


def test_ordinary_equations_have_the_eigenvalues_of_the_jacobian(x64):
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    f = LaggedEquation(lambda t, y, A: A @ y, jnp.zeros(4), jnp.asarray(matrix))
    found = characteristic_roots(f, count=4)
    exact = np.linalg.eigvals(matrix)
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(exact), rtol=1e-10)


def test_roots_of_pytrees_with_several_lags(x64):
    """A dictionary and two lags of a rotation: the roots solve λ = i w exp(−λ τ_1) − exp(−λ τ_2)
    and its conjugate."""

    def field(t, y, w, *, history):
        first, second = history
        return {
            "a": -w * first["b"][0] - second["a"],
            "b": (w * first["a"] - second["b"][0])[None],
        }

    y0 = {"a": 0.3, "b": jnp.array([0.1])}
    f = LaggedEquation(field, y0, 0.7, delays=[lagrax.Lag(0.4), lagrax.Lag(1.1)])
    assert f.size == 2
    rest = find_equilibrium(f)
    np.testing.assert_allclose([rest["a"], rest["b"][0]], 0.0, atol=1e-14)
    roots = np.asarray(characteristic_roots(f, count=8))
    for root in roots:
        missing = [root - s * 0.7j * np.exp(-0.4 * root) + np.exp(-1.1 * root) for s in (1.0, -1.0)]
        assert min(np.abs(missing)) < 1e-12
    np.testing.assert_allclose(roots.imag.sum(), 0, atol=1e-9)


def test_single_precision_gives_five_digits():
    root = characteristic_roots(Hutchinson(1.8))[0]
    np.testing.assert_allclose(root, lambertw(-1.8, 0), rtol=1e-5)
    np.testing.assert_allclose(find_hopf(Hutchinson, 1.5).parameter, np.pi / 2, rtol=1e-5)


# --- Hopf points and folds ------------------------------------------------------------------------


def test_hopf_points_of_closed_forms(x64):
    """Hutchinson at aτ = π/2. Mackey–Glass: λ = −γ − 0.4 exp(−λτ) has a root iω where
    ω² = 0.4² − γ², cos ωτ = −γ/0.4."""
    hopf = find_hopf(Hutchinson, 1.5)
    np.testing.assert_allclose([hopf.parameter, hopf.frequency], np.pi / 2, rtol=1e-13)
    assert hopf.kind == "supercritical"
    w = lambertw(-np.pi / 2)
    np.testing.assert_allclose(hopf.speed, w / (np.pi / 2 * (1 + w)), rtol=1e-10)
    glass = find_hopf(lambda tau: MackeyGlass(tau=tau), 5.0)
    np.testing.assert_allclose(glass.frequency, np.sqrt(0.15), rtol=1e-12)
    np.testing.assert_allclose(glass.parameter, np.arccos(-0.25) / np.sqrt(0.15), rtol=1e-12)


def test_hopf_points_are_differentiable(x64):
    at = lambda tau: find_hopf(lambda a: Hutchinson(a, tau), 0.8).parameter
    np.testing.assert_allclose(jax.grad(at)(2.0), -np.pi / 2 / 4, rtol=1e-10)


def test_hopf_points_of_coupled_neurons(x64):
    """With two lags of up to 20.2 the roots are close together. The tutorial of
    DDEBifurcationKit.jl finds Hopf points at about 0.29890362, 0.34537483 and 0.36830746."""
    delays = [lagrax.Lag(12.7), lagrax.Lag(20.2)]
    make = lambda a: LaggedEquation(two_neurons, jnp.zeros(2), (a, 15 / 29), delays=delays)
    for published, accuracy in ((0.29890362, 4e-4), (0.34537483, 2e-4), (0.36830746, 2e-3)):
        hopf = find_hopf(make, published)
        assert hopf.parameter == pytest.approx(published, abs=accuracy)
        # x1 = ±x2 splits the characteristic equation in two scalar ones.
        root, slope = 1j * hopf.frequency, jnp.cosh(1.0) ** 2 / jnp.cosh(1.0) ** 2
        lagged = -2 * hopf.parameter * slope * np.exp(-12.7 * root)
        coupled = 15 / 29 * 1.2 * slope * np.exp(-20.2 * root)
        assert min(abs(root + 1 - lagged - s * coupled) for s in (1, -1)) < 1e-10


def test_folds(x64):
    make = lambda p: LaggedEquation(
        lambda t, x, p, *, history: p - history[0] ** 2, 1.0, p, delays=LAG
    )
    fold = find_fold(make, 0.3, start=0.4)
    np.testing.assert_allclose([fold.parameter, fold.state], 0.0, atol=1e-12)


# --- charts ---------------------------------------------------------------------------------------


def test_chart_of_a_delayed_oscillator(x64):
    """The lobes of regenerative chatter, x″ + 2ζx′ + x = w (x(t − τ) − x): on the boundary
    w = ((1 − ω²)² + 4ζ²ω²)/(2 (ω² − 1)) and τ = 2/ω (jπ − arctan((ω² − 1)/(2ζω)))
    (G. Stépán, *Retarded dynamical systems*, 1989)."""
    zeta = 0.1

    def field(t, z, w, *, history):
        (x, v), (lagged,) = z, history
        return jnp.stack([v, -2 * zeta * v - x + w * (lagged[0] - x)])

    make = lambda tau, w: LaggedEquation(field, jnp.zeros(2), w, delays=[lagrax.Lag(tau)])
    chart = stability_chart(make, jnp.linspace(1.0, 12.0, 12), jnp.linspace(0.05, 1.0, 8))
    assert len(chart.boundary) > 8
    # Below w = 2ζ(1 + ζ) it is stable for every lag.
    assert np.all(chart.stable[chart.y < 2 * zeta * (1 + zeta)])
    assert 0.2 < chart.stable.mean() < 0.8
    for tau, w in chart.boundary:
        square = np.roots([1.0, 4 * zeta**2 - 2 - 2 * w, 1 + 2 * w])
        omega = np.sqrt(square[np.isreal(square) & (square.real > 1)].real)
        turns = (omega * tau / 2 + np.arctan((omega**2 - 1) / (2 * zeta * omega))) / np.pi
        assert np.min(np.abs(turns - np.round(turns))) < 1e-9


# --- cycles ---------------------------------------------------------------------------------------


def test_a_rotating_wave_and_its_multipliers(x64):
    """In the frame that turns with it the wave is an equilibrium, whose characteristic roots are
    its Floquet exponents. The lag is longer than the period."""
    frequency, radius = rotating_wave()
    cycle = find_cycle(make_oscillator())
    period = 2 * np.pi / frequency
    np.testing.assert_allclose(cycle.period, period, rtol=1e-9)
    np.testing.assert_allclose(np.hypot(*cycle.profile.T), radius, rtol=1e-7)
    late = cycle.evaluate(cycle.ts + 3 * cycle.period)
    np.testing.assert_allclose(late, cycle.ys, atol=1e-9)

    def turning(t, z, args, *, history):
        angle = -frequency * TAU
        turn = jnp.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        rate = stuart_landau(t, z, (GROWTH, OMEGA, GAIN), history=[turn @ history[0]])
        return rate + frequency * jnp.array([z[1], -z[0]])

    still = LaggedEquation(turning, jnp.array([radius, 0.0]), delays=[lagrax.Lag(TAU)])
    exponents = characteristic_roots(still, still.y0, count=6)
    multipliers = floquet_multipliers(make_oscillator(), cycle, count=6)
    expected = np.exp(np.asarray(exponents) * period)
    np.testing.assert_allclose(np.sort_complex(multipliers), np.sort_complex(expected), atol=1e-7)


def test_derivative_of_a_period(x64):
    start = find_cycle(make_oscillator(), wave, period=6.6)
    slope = jax.grad(lambda gain: find_cycle(make_oscillator(gain), start).period)(GAIN)
    exact = lambda gain: 2 * np.pi / rotating_wave(gain)[0]
    differences = (exact(GAIN + 1e-5) - exact(GAIN - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, differences, rtol=1e-6)


@pytest.mark.parametrize("degree", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_periods_converge_with_the_degree(x64, degree):
    """The error falls at least with the power m + 1, K. Engelborghs et al. (2000)."""
    exact, errors = 2 * np.pi / rotating_wave()[0], []
    for intervals in (6, 12):
        options = {"intervals": intervals, "degree": degree}
        found = find_cycle(make_oscillator(), wave, period=exact, **options)
        errors.append(abs(float(found.period) / exact - 1))
    assert degree + 0.7 < np.log2(errors[0] / errors[1]) < 2 * degree + 1.2


def test_cycles_of_ordinary_equations(x64):
    """Van der Pol's cycle at μ = 1 has the period 6.6632868593 and, by Liouville's formula, the
    multiplier exp of the integral of its divergence."""

    def field(t, z, mu):
        x, v = z
        return jnp.stack([v, mu * (1 - x**2) * v - x])

    f = LaggedEquation(field, jnp.array([2.0, 0.0]), 1.0)
    guess = lambda t: jnp.stack([2 * jnp.cos(t), -2 * jnp.sin(t)])
    cycle = find_cycle(f, guess, period=6.3, intervals=40)
    assert cycle.period == pytest.approx(6.6632868593, abs=1e-8)
    ts = np.linspace(0, float(cycle.period), 20_001)
    x = np.asarray(cycle.evaluate(jnp.asarray(ts[:-1])))[:, 0]
    exact = np.exp(np.mean(1 - x**2) * ts[-1])
    multipliers = floquet_multipliers(f, cycle, count=2)
    np.testing.assert_allclose(multipliers, [1.0, exact], atol=1e-7)


# --- branches -------------------------------------------------------------------------------------


def test_branch_of_a_population(x64):
    """Cycles start with the size that the normal form gives, and end with that of a simulation."""
    hopf = find_hopf(Hutchinson, 1.5)
    rest = continue_branch(Hutchinson, 1.0, 2.2, step=0.1)
    (event,) = rest.events
    assert (event.kind, rest.parameters[0], rest.parameters[-1]) == ("Hopf", 1.0, 2.2)
    assert event.parameter == pytest.approx(np.pi / 2, abs=1e-12)
    np.testing.assert_array_equal(rest.stable, rest.parameters < np.pi / 2)
    cycles = continue_branch(Hutchinson, 1.0, 2.2, hopf, step=0.1)
    assert np.all(cycles.stable)
    assert cycles.events == []
    first, last = cycles.points[0], cycles.points[-1]
    beyond = cycles.parameters[0] - float(hopf.parameter)
    radius = np.sqrt(-hopf.speed.real * beyond / (hopf.frequency * hopf.lyapunov))
    np.testing.assert_allclose(np.ptp(first.profile), 4 * radius, rtol=1e-2)
    system, ts = Hutchinson(2.2), last.period * jnp.linspace(0, 1, 9)
    sol = lagrax.solve(
        *(system, 0.0, last.period, last.evaluate),
        **{"delays": system.delays, "steps": 64, "saveat": diffrax.SaveAt(ts=ts), "intervals": 6},
    )
    np.testing.assert_allclose(sol.ys, last.evaluate(ts), atol=1e-5)
    figure = rest.figure(cycles, parameter="a")
    assert len(figure.panels[0].marks) == 5


def test_branch_through_a_fold(x64):
    """x' = p + x(t − 1) − x³ folds where 3x² = 1; one of the outer equilibria is stable."""

    def field(t, x, p, *, history):
        return p + 0.5 * x + 0.5 * history[0] - x**3

    make = lambda p: LaggedEquation(field, -1.2, p, delays=LAG)
    branch = continue_branch(make, -0.6, 0.6)
    folds = [event.parameter for event in branch.events]
    assert [event.kind for event in branch.events] == ["fold", "fold"]
    exact = 2 / (3 * np.sqrt(3))
    np.testing.assert_allclose(folds, [exact, -exact], atol=1e-12)
    assert branch.parameters[-1] == 0.6
    states = np.array(branch.points)
    np.testing.assert_array_equal(branch.stable, np.abs(states) > 1 / np.sqrt(3))


@pytest.mark.slow
def test_the_period_of_blood_cells_doubles(x64):
    """J. D. Farmer, *Chaotic attractors of an infinite-dimensional dynamical system*, Physica D 4
    (1982): the period of Mackey–Glass doubles at τ = 13.3."""
    make = lambda tau: MackeyGlass(tau=tau)
    cycles = continue_branch(make, 4.0, 14.5, find_hopf(make, 5.0), intervals=30)
    doubling = [event for event in cycles.events if event.kind == "period doubling"]
    assert doubling[0].parameter == pytest.approx(13.3, abs=0.1)
