"""Classical systems against SciPy and python-control."""

import inspect
import itertools
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize

import lagrax
from lagrax import analysis, systems

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-13)

SHIFT = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
LAGS = np.array(
    [
        [[-0.3, 0.1, 0.0], [0.0, -0.5, 0.2], [-0.2, 0.0, -0.7]],
        [[0.2, 0.0, -0.1], [0.1, 0.0, 0.0], [0.0, -0.3, 0.1]],
        [[0.0, 0.1, 0.0], [-0.2, 0.1, 0.0], [0.0, 0.0, 0.2]],
    ]
)
REGULAR = np.array([[-1.0, 2.0, 0.0], [-0.5, 0.3, 1.0], [0.2, 0.0, -0.4]])
INPUTS = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, -0.2]])
GAIN = np.array([[0.4, 0.3, 0.1], [0.2, -0.1, 0.6]])


class Case(NamedTuple):
    """A system, and its equation in NumPy as rhs(y, [y_k, y_{k-1}, ...])."""

    make: object
    rhs: object
    tau: float
    lags: int
    y0: object


HELD = {
    "population": Case(
        lambda: systems.Population(2.7), lambda x, h: 2.7 * x * (1 - h[0]), 1.0, 1, 0.4
    ),
    "population, tau": Case(
        lambda: systems.Population(3.1, tau=0.7), lambda x, h: 3.1 * x * (1 - h[0]), 0.7, 1, 0.2
    ),
    "population, lag": Case(
        lambda: systems.Population(1.3, tau=0.9, lag=2),
        lambda x, h: 1.3 * x * (1 - h[2]),
        0.9,
        3,
        0.4,
    ),
    "linear, singular, three lags": Case(
        lambda: systems.Linear(SHIFT, LAGS, tau=0.8),
        lambda x, h: SHIFT @ x + LAGS[0] @ h[0] + LAGS[1] @ h[1] + LAGS[2] @ h[2],
        0.8,
        3,
        np.array([1.0, -0.5, 0.3]),
    ),
    "digital control": Case(
        lambda: systems.DigitalControl(REGULAR, INPUTS, GAIN, tau=0.6),
        lambda x, h: REGULAR @ x - INPUTS @ (GAIN @ h[0]),
        0.6,
        1,
        np.array([0.3, 1.0, -1.0]),
    ),
    "held oscillator": Case(
        lambda: systems.HeldOscillator(omega=1.7, zeta=0.2, k=0.9, tau=1.3),
        lambda y, h: np.array([y[1], -2 * 0.2 * 1.7 * y[1] - 1.7**2 * y[0] - 0.9 * h[0][0]]),
        1.3,
        1,
        np.array([1.0, -0.4]),
    ),
}

LAGGED = {
    "hutchinson": Case(
        lambda: systems.Hutchinson(2.0, tau=0.9), lambda x, past: 2 * x * (1 - past), 0.9, 1, 0.3
    ),
    "mackey-glass": Case(
        lambda: systems.MackeyGlass(beta=2.0, gamma=1.0, n=9.65, tau=2.0),
        lambda x, past: 2.0 * past / (1 + past**9.65) - x,
        2.0,
        1,
        0.7,
    ),
}

# In periods: on knots, off them, just beside them, and an end within an interval.
TIMES = np.array([0.0, 0.3, 0.5, 1.0, 1.001, 1.9, 2.0, 2.4, 3.0, 3.999, 4.0, 4.6])


def ode(rhs, t0, t1, y0):
    options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13, "dense_output": True}
    return scipy.integrate.solve_ivp(rhs, (t0, t1), np.atleast_1d(y0), **options).sol


def pieces_at(pieces, tau, ts, y0):
    index = np.clip(np.floor(ts / tau).astype(int), 0, len(pieces) - 1)
    ys = np.array([pieces[i](t) for i, t in zip(index, ts, strict=True)])
    return ys.reshape(len(ts), *np.shape(y0))


def held_reference(case, ts):
    """Solves interval by interval with SciPy, from a constant past y0."""
    history = [np.array(case.y0, float)] * case.lags
    pieces = []
    for k in range(int(np.ceil(ts.max() / case.tau))):
        held = list(history)
        pieces.append(
            ode(lambda t, y: case.rhs(y, held), k * case.tau, (k + 1) * case.tau, held[0])  # noqa: B023
        )
        history = [pieces[-1]((k + 1) * case.tau), *history[:-1]]
    return pieces_at(pieces, case.tau, ts, case.y0)


def lagged_reference(case, ts):
    """The method of steps with scipy's dense output."""
    pieces = [lambda t: np.atleast_1d(case.y0)]
    for k in range(int(np.ceil(ts.max() / case.tau))):
        past, start = pieces[-1], k * case.tau
        field = lambda t, y: case.rhs(y, past(t - case.tau))  # noqa: B023
        pieces.append(ode(field, start, start + case.tau, past(start)))
    return pieces_at(pieces[1:], case.tau, ts, case.y0)


def solve_system(system, y0, ts):
    return lagrax.solve(
        system,
        0.0,
        float(ts[-1]),
        jnp.asarray(y0),
        delays=system.delays,
        stepsize_controller=TIGHT,
        saveat=diffrax.SaveAt(ts=ts),
    )


@pytest.mark.parametrize("case", HELD.values(), ids=HELD)
def test_exact_solution_is_that_of_scipy(x64, case):
    ts = case.tau * TIMES
    order = np.random.default_rng(0).permutation(len(ts))
    ys = case.make().solution(ts[order], case.y0)
    assert ys.dtype == jnp.float64
    np.testing.assert_allclose(ys, held_reference(case, ts)[order], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", HELD.values(), ids=HELD)
def test_solve_gives_the_exact_solution(x64, case):
    system, ts = case.make(), case.tau * TIMES
    sol = solve_system(system, case.y0, ts)
    np.testing.assert_allclose(sol.ys, system.solution(ts, case.y0), rtol=1e-9, atol=1e-10)
    knots = [jnp.asarray(case.y0)] * case.lags
    for k in range(1, 5):
        knots = [system.knot_map(*knots), *knots[:-1]]
        np.testing.assert_allclose(sol.knots.ts[k], k * case.tau, rtol=1e-14)
        np.testing.assert_allclose(sol.knots.ys[k], knots[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", LAGGED.values(), ids=LAGGED)
def test_lagged_systems_are_those_of_scipy(x64, case):
    ts = case.tau * TIMES
    sol = solve_system(case.make(), case.y0, ts)
    np.testing.assert_allclose(sol.ys, lagged_reference(case, ts), rtol=1e-9, atol=1e-10)


def test_the_long_run_at_3_2():
    """A stable cycle of 36 knots, and none that is shorter, in double precision."""
    x = 0.5
    for _ in range(100_000):
        x *= np.exp(3.2 * (1 - x))
    orbit = [x]
    for _ in range(36):
        orbit.append(orbit[-1] * np.exp(3.2 * (1 - orbit[-1])))
    away = np.abs(np.array(orbit[1:]) - x)
    assert away[-1] < 1e-9
    assert away[:-1].min() > 1e-4
    cycle = np.array(orbit[:-1])
    multiplier = np.prod((1 - 3.2 * cycle) * np.exp(3.2 * (1 - cycle)))
    assert abs(multiplier) < 1
    ours = systems.Population(3.2).knot_map(jnp.asarray(cycle[0], jnp.float32))
    np.testing.assert_allclose(ours, cycle[1], rtol=1e-5)


def test_population_in_closed_form(x64):
    system = systems.Population(3.2, tau=0.5)
    x1 = 0.3 * np.exp(3.2 * 0.7 * 0.5)
    x2 = x1 * np.exp(3.2 * (1 - x1) * 0.5)
    expected = [0.3 * np.exp(3.2 * 0.7 * 0.2), x1, x1 * np.exp(3.2 * (1 - x1) * 0.4), x2]
    ys = system.solution(np.array([0.2, 0.5, 0.9, 1.0]), 0.3)
    np.testing.assert_allclose(ys, expected, rtol=1e-13)
    np.testing.assert_allclose(system.knot_map(jnp.asarray(x1)), x2, rtol=1e-13)


def test_population_has_period_three(x64):
    """In the paper's section on the population the critical point 1/a* returns after three knots at
    a* = 3.1167..., so its cycle is stable with multiplier zero.
    """

    def third(a, x):
        for _ in range(3):
            x = x * np.exp(a * (1 - x))
        return x

    a = scipy.optimize.brentq(lambda a: third(a, 1 / a) - 1 / a, 3.1, 3.13, xtol=1e-14)
    assert a == pytest.approx(3.1167, abs=1e-4)
    system = systems.Population(a)
    ts = np.linspace(0.0, 12.0, 49)
    ys = system.solution(ts, 1 / a)
    np.testing.assert_allclose(ys[12:], ys[:-12], rtol=1e-10)
    for shorter in (4, 8):
        assert np.abs(ys[shorter:] - ys[:-shorter]).max() > 1
    np.testing.assert_allclose(solve_system(system, 1 / a, ts).ys, ys, rtol=1e-9)

    knot = system.knot_map
    multiplier = jax.grad(lambda x: knot(knot(knot(x))))(jnp.asarray(1 / a))
    assert abs(multiplier) < 1e-10
    late = system.solution(np.array([60.0, 63.0]), 1 / a + 0.01)
    np.testing.assert_allclose(late, 1 / a, rtol=1e-10)


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_population_loses_stability_where_its_docstring_says(x64, lag):
    """The multipliers at 1 are the roots of z^(j+1) - z^j + a tau, here by NumPy."""
    limit = 2 * np.cos(lag * np.pi / (2 * lag + 1))
    for growth, stable in ((0.99 * limit, True), (1.01 * limit, False)):
        polynomial = [1.0, -1.0, *[0.0] * (lag - 1), growth] if lag else [1.0, growth - 1]
        expected = np.sort(np.abs(np.roots(polynomial)))
        f = analysis.knot_map(systems.Population(growth / 0.5, tau=0.5, lag=lag))
        found = np.linalg.eigvals(f.jacobian(jnp.ones(lag + 1)))
        np.testing.assert_allclose(np.sort(np.abs(found)), expected, rtol=1e-6)
        assert (np.abs(found).max() < 1) == stable


def test_population_with_a_lag_of_one_goes_round_in_six_seasons(x64):
    system = systems.Population(1.02, lag=1)
    knots = np.asarray(system.solution(np.arange(2000, 2600), 0.9))
    crossings = np.sum((knots[1:] >= 1) & (knots[:-1] < 1))
    assert 600 / crossings == pytest.approx(6, abs=0.2)


@pytest.mark.parametrize("A", [REGULAR, SHIFT, np.zeros((3, 3))], ids=["regular", "shift", "zero"])
def test_knot_matrix_is_that_of_scipy(x64, A):
    tau = 0.7
    system = systems.Linear(A, LAGS, tau)
    phi = scipy.linalg.expm(A * tau)
    gamma = scipy.integrate.quad_vec(lambda s: scipy.linalg.expm(A * s), 0.0, tau, epsabs=1e-13)[0]
    newest = np.hstack([phi + gamma @ LAGS[0], gamma @ LAGS[1], gamma @ LAGS[2]])
    expected = np.vstack([newest, np.eye(6, 9)])
    np.testing.assert_allclose(system.knot_matrix, expected, rtol=1e-12, atol=1e-13)
    knots = np.random.default_rng(1).normal(size=(3, 3))
    after = system.knot_map(*jnp.asarray(knots))
    np.testing.assert_allclose(after, (expected @ knots.ravel())[:3], rtol=1e-12, atol=1e-13)


def test_double_integrator_in_closed_form(x64):
    """A textbook's sampled double integrator: Gamma B = (tau^2 / 2, tau)."""
    tau = 0.3
    system = systems.DigitalControl([[0, 1], [0, 0]], [[0], [1]], [[0.5, 1.5]], tau)
    expected = np.array([[1.0, tau], [0.0, 1.0]]) - np.outer([tau**2 / 2, tau], [0.5, 1.5])
    np.testing.assert_allclose(system.knot_matrix, expected, rtol=1e-14)


@pytest.mark.parametrize("A", [REGULAR, SHIFT], ids=["regular", "singular"])
def test_digital_control_is_the_zero_order_hold_of_python_control(x64, A):
    import control

    tau = 0.4
    system = systems.DigitalControl(A, INPUTS, GAIN, tau)
    plant = control.c2d(control.ss(A, INPUTS, np.eye(3), np.zeros((3, 2))), tau, "zoh")
    closed = plant.A - plant.B @ GAIN
    np.testing.assert_allclose(system.knot_matrix, closed, rtol=1e-10, atol=1e-10)
    x = np.array([0.3, 1.0, -1.0])
    expected = [np.linalg.matrix_power(closed, k) @ x for k in range(11)]
    ys = system.solution(tau * np.arange(11), x)
    np.testing.assert_allclose(ys, expected, rtol=1e-10, atol=1e-10)


def test_oscillator_loses_stability_where_its_docstring_says(x64):
    for k, stable in ((0.8, True), (1.2, False)):
        system = systems.HeldOscillator(omega=1.0, zeta=0.02, k=k, tau=0.08)
        assert (np.abs(np.linalg.eigvals(system.knot_matrix)).max() < 1) == stable


def check_gradient(f, p, h=1e-6):
    """Compares automatic differentiation with finite differences of one compiled program."""
    both = jax.jit(jax.value_and_grad(f))
    expected = [(both(p + h * e)[0] - both(p - h * e)[0]) / (2 * h) for e in np.eye(len(p))]
    assert np.abs(expected).min() > 0.01
    grad = both(p)[1]
    np.testing.assert_allclose(grad, expected, rtol=1e-6)
    return grad


# tau is traced too, so the number of intervals is given. In tau the solution has a kink where a
# knot meets a time, so no time is a knot.
OFF_KNOTS = np.array([0.0, 0.5, 1.0, 1.84])


def test_gradients_of_the_exact_population(x64):
    f = lambda p: jnp.sum(jnp.sin(systems.Population(*p).solution(OFF_KNOTS, intervals=3)))
    check_gradient(f, np.array([2.7, 0.8]))


def test_gradients_of_an_exact_linear_system(x64):
    """A singular, and all of A, two Bs and tau differentiated."""

    def f(p):
        system = systems.Linear(p[:4].reshape(2, 2), p[4:12].reshape(2, 2, 2), p[12])
        return jnp.sum(jnp.sin(system.solution(OFF_KNOTS, intervals=3)))

    p = [0.0, 1.0, 0.0, 0.0, -0.4, 0.2, 0.1, -0.6, 0.3, -0.1, 0.2, 0.1, 0.8]
    check_gradient(f, np.array(p))


def test_gradients_through_solve_are_the_exact_ones(x64):
    def exact(p):
        return jnp.sum(systems.HeldOscillator(*p).solution(1.84, intervals=3))

    def end(p):
        system = systems.HeldOscillator(*p)
        options = {"delays": system.delays, "steps": 20, "intervals": 3}
        return jnp.sum(lagrax.solve(system, 0.0, 1.84, system.y0, **options).ys)

    p = np.array([1.7, 0.2, 0.9, 0.8])
    expected = check_gradient(exact, p)
    np.testing.assert_allclose(jax.jit(jax.grad(end))(p), expected, rtol=1e-7)


def test_gradients_of_a_lagged_system(x64):
    def end(p):
        system = systems.MackeyGlass(p[0], p[1], p[2], tau=2.0)
        return lagrax.solve(system, 0.0, 5.0, 0.7, delays=system.delays, steps=16).ys[-1]

    check_gradient(end, np.array([2.0, 1.0, 9.65]))


def test_filter_grad_reaches_parameters_and_leaves_tau(x64):
    system = systems.Population(2.7)
    grad = eqx.filter_grad(lambda s: s.solution(0.5, 0.4))(system)
    np.testing.assert_allclose(grad.a, 0.4 * 0.6 * 0.5 * np.exp(2.7 * 0.6 * 0.5), rtol=1e-13)
    assert grad.tau is None


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_every_system_runs_as_it_comes_in_float32(name):
    system = systems.SYSTEMS[name]()
    ts = system.tau * np.linspace(0.0, 2.5, 11)
    sol = lagrax.solve(
        system,
        0.0,
        float(ts[-1]),
        system.y0,
        delays=system.delays,
        steps=16,
        saveat=diffrax.SaveAt(ts=ts),
    )
    assert sol.ys.dtype == jnp.float32
    assert sol.ys.shape == (11, *system.y0.shape)
    assert np.abs(np.diff(sol.ys, axis=0)).max() > 0.01
    if isinstance(system, systems.HeldSystem):
        exact = system.solution(ts)
        assert exact.dtype == jnp.float32
        np.testing.assert_allclose(sol.ys, exact, rtol=2e-5, atol=2e-5)


def test_every_final_class_has_a_name():
    public = [c for _, c in inspect.getmembers(systems, inspect.isclass)]
    final = {c for c in public if issubclass(c, systems.System) and not inspect.isabstract(c)}
    assert final == set(systems.SYSTEMS.values())
    assert len(final) == len(systems.SYSTEMS) == 6


def test_parameters_are_leaves_that_can_be_trained():
    """Parameters become floating point, and no type is weak, since an update would change it."""
    made = [systems.Population(3, 1), systems.Linear([[0]], [[[1]]], 2), systems.HeldOscillator(1)]
    made += [make() for make in systems.SYSTEMS.values()]
    for system in made:
        assert isinstance(system.tau, float)
        leaves = jax.tree.leaves(eqx.filter(system, eqx.is_array))
        assert leaves
        assert all(x.dtype == jnp.float32 and not x.weak_type for x in leaves)


def test_solution_takes_any_shape_of_times_and_of_populations(x64):
    system = systems.Population(2.0)
    ts, y0 = np.array([[0.0, 0.5, 3.1], [1.0, 2.0, 2.5]]), np.array([0.1, 0.7])
    ys = system.solution(ts, y0)
    assert ys.shape == (2, 3, 2)
    for i, j, k in itertools.product(range(2), range(3), range(2)):
        np.testing.assert_allclose(ys[i, j, k], system.solution(ts[i, j], y0[k]), rtol=1e-14)


def test_solution_for_many_parameters_at_once(x64):
    rates = jnp.array([1.5, 2.0, 3.2])
    many = eqx.filter_vmap(systems.Population)(rates)
    ts = jnp.array([0.4, 2.0, 2.9])
    ys = eqx.filter_vmap(lambda s: s.solution(ts))(many)
    expected = [systems.Population(a).solution(ts) for a in rates]
    np.testing.assert_allclose(ys, expected, rtol=1e-14)


def test_traced_times_need_the_number_of_intervals(x64):
    system = systems.Population(2.0, tau=0.5)
    ts, y0 = jnp.array([-0.1, 0.0, 0.7, 1.5, 1.6]), jnp.array([0.1, 0.7])
    ys = jax.jit(lambda ts: system.solution(ts, y0, intervals=3))(ts)
    np.testing.assert_allclose(ys[1:4], system.solution(ts[1:4], y0), rtol=1e-14)
    assert np.isnan(ys[0]).all()
    assert np.isnan(ys[4]).all()
    with pytest.raises(ValueError, match=r"ts is traced.*intervals=N"):
        eqx.filter_jit(system.solution)(ts)
    with pytest.raises(ValueError, match=r"tau is traced.*intervals=N"):
        jax.grad(lambda tau: systems.Population(2.0, tau).solution(1.5))(0.5)


@pytest.mark.parametrize("name", systems.SYSTEMS)
@pytest.mark.parametrize(
    ("tau", "message"),
    [
        (0.0, "got tau=0.0; expected a positive, finite number"),
        (-1, "got tau=-1; expected a positive"),
        (float("nan"), "got tau=nan; expected a positive"),
        (float("inf"), "got tau=inf; expected a positive"),
    ],
)
def test_wrong_periods(name, tau, message):
    make = systems.SYSTEMS[name]
    with pytest.raises(ValueError, match=f"{make.__name__} {message}"):
        make(tau=tau)


SQUARE = np.eye(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: systems.Linear(np.ones((2, 3)), [SQUARE]), r"A of shape \(2, 3\).*square"),
        (lambda: systems.Linear(np.ones(2), [SQUARE]), r"A of shape \(2,\).*square"),
        (lambda: systems.Linear(2.0, [SQUARE]), r"A of shape \(\).*A=\[\[a\]\]"),
        (lambda: systems.Linear(SQUARE, []), "no Bs; expected one matrix"),
        (
            lambda: systems.Linear(SQUARE, [SQUARE, np.eye(3)]),
            r"Bs\[1\] of shape \(3, 3\); expected that of A, \(2, 2\)",
        ),
        (lambda: systems.Linear(SQUARE, SQUARE), r"Bs\[0\] of shape \(2,\).*Bs=\[B\]"),
        (
            lambda: systems.DigitalControl(np.ones((1, 2)), [[1.0]], [[1.0]]),
            r"DigitalControl got A of shape \(1, 2\)",
        ),
        (
            lambda: systems.DigitalControl(SQUARE, np.ones((3, 1)), np.ones((1, 3))),
            r"B of shape \(3, 1\); expected \(2, inputs\)",
        ),
        (
            lambda: systems.DigitalControl(SQUARE, np.ones(2), np.ones((1, 2))),
            r"B of shape \(2,\); expected \(2, inputs\).*one column",
        ),
        (
            lambda: systems.DigitalControl(SQUARE, np.ones((2, 1)), np.ones((2, 1))),
            r"K of shape \(2, 1\); expected \(1, 2\)",
        ),
        (
            lambda: systems.DigitalControl(SQUARE, np.ones((2, 1)), np.ones(2)),
            r"K of shape \(2,\); expected \(1, 2\).*one row",
        ),
        (
            lambda: systems.Linear().knot_map(jnp.ones(2)),
            "knot_map got 1 knots; expected 2, one for each delay",
        ),
        (
            lambda: systems.Population().solution(0.5, intervals=0),
            "solution got intervals=0; expected 1 or more",
        ),
        (lambda: systems.Population(lag=-1), "Population got lag=-1; expected a whole number"),
        (
            lambda: systems.Population(lag=1).knot_map(jnp.ones(())),
            "knot_map got 1 knots; expected 2, one for each delay",
        ),
        # The annotations of the constructors, checked in tests alone, would come first here.
        (
            lambda: systems._scalar(np.ones(3), "Population", "a"),
            r"Population got a of shape \(3,\); expected one number.*filter_vmap\(Population\)",
        ),
        (lambda: systems._period(np.ones(3), "Population"), r"Population got tau of shape \(3,\)"),
    ],
)
def test_wrong_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
