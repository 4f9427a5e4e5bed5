"""Solutions against closed forms and against an independent reference."""

import itertools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.reference import reference

import lagrax
from lagrax import Hold, Lag, holds

TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-12)


def population(t, x, a, *, history):
    (held,) = history
    return a * x * (1 - held)


def population_exact(ts, x0, a):
    knots = [x0]
    for _ in range(int(np.max(ts)) + 1):
        knots.append(knots[-1] * np.exp(a * (1 - knots[-1])))
    k = np.floor(ts).astype(int)
    start = np.asarray(knots)[k]
    return start * np.exp(a * (1 - start) * (ts - k))


def test_the_example_of_the_readme(x64):
    sol = lagrax.solve(
        population,
        t0=0.0,
        t1=20.0,
        y0=0.5,
        args=3.2,
        delays=[Hold(1.0)],
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, 20, 201)),
        stepsize_controller=TIGHT,
    )
    np.testing.assert_allclose(sol.ys, population_exact(np.asarray(sol.ts), 0.5, 3.2), rtol=1e-6)
    np.testing.assert_allclose(sol.knots.ts, np.arange(21))
    np.testing.assert_allclose(sol.knots.ys[1:4], sol.ys[10:40:10], rtol=1e-9)
    assert sol.result == lagrax.RESULTS.successful
    assert np.isnan(sol.failed_at)


SOLVERS = [
    diffrax.Euler(),
    diffrax.Midpoint(),
    diffrax.Heun(),
    diffrax.Ralston(),
    diffrax.Bosh3(),
    diffrax.Tsit5(),
    diffrax.Dopri5(),
    diffrax.Dopri8(),
    diffrax.Kvaerno3(),
    diffrax.Kvaerno5(),
]
ids = [type(s).__name__ for s in SOLVERS]


@pytest.mark.parametrize("solver", SOLVERS, ids=ids)
def test_fixed_steps_of_every_solver(solver, x64):
    order = solver.order(diffrax.ODETerm(lambda t, y, a: y))
    steps = {1: 4000, 2: 200, 3: 60}.get(order, 20)
    sol = lagrax.solve(
        population, 0.0, 3.5, 0.4, 1.5, delays=[Hold(1.0)], solver=solver, steps=steps
    )
    np.testing.assert_allclose(
        sol.ys[-1], population_exact(np.array([3.5]), 0.4, 1.5)[0], rtol=1e-3
    )
    if order > 1:
        np.testing.assert_allclose(
            sol.ys[-1], population_exact(np.array([3.5]), 0.4, 1.5)[0], rtol=2e-5
        )


@pytest.mark.parametrize("solver", SOLVERS[1:], ids=ids[1:])
def test_adaptive_steps_of_every_solver(solver, x64):
    controller = diffrax.PIDController(rtol=1e-7, atol=1e-9)
    ts = np.array([0.0, 0.3, 1.0, 2.0, 2.7, 3.5])
    sol = lagrax.solve(
        population,
        0.0,
        3.5,
        0.4,
        1.5,
        delays=[Hold(1.0)],
        solver=solver,
        stepsize_controller=controller,
        saveat=diffrax.SaveAt(ts=ts),
        max_steps=100_000,
    )
    np.testing.assert_allclose(sol.ys, population_exact(ts, 0.4, 1.5), rtol=2e-5)


# A field that takes any number of history entries and depends on everything.
def mixing(t, y, args, *, history):
    total = sum((0.7 ** (i + 1)) * jnp.sin(h) for i, h in enumerate(history))
    return -0.6 * y + total + 0.2 * jnp.cos(t) * y[::-1]


def mixing_numpy(t, y, history):
    total = sum((0.7 ** (i + 1)) * np.sin(h) for i, h in enumerate(history))
    return -0.6 * y + total + 0.2 * np.cos(t) * y[::-1]


def past_jax(t):
    return jnp.stack([1.0 + 0.3 * jnp.sin(t), jnp.cos(0.5 * t)])


def past_numpy(t):
    return np.stack([1.0 + 0.3 * np.sin(t), np.cos(0.5 * t)])


IRREGULAR = [0.2, 0.9, 1.0, 2.3, 3.1]
CASES = {
    "none": ([], 0.0, 2.0),
    "hold": ([Hold(1.0)], 0.0, 3.0),
    "lagged holds": (holds(0.5, 4), 0.0, 3.2),
    "only an old hold": ([Hold(0.5, lag=3)], 0.0, 2.75),
    "start between knots": ([Hold(1.0), Hold(1.0, lag=1)], 0.3, 3.1),
    "negative times": (holds(0.4, 2), -1.3, 0.9),
    "two rates": ([Hold(0.5), Hold(0.3, lag=1)], 0.0, 2.0),
    "rates that meet": ([Hold(0.5), Hold(0.25), Hold(1.0, lag=1)], 0.0, 3.0),
    "irregular": ([Hold(times=IRREGULAR)], 0.0, 4.0),
    "irregular, lagged, with a clock": ([Hold(times=IRREGULAR, lag=2), Hold(0.7)], 0.1, 3.4),
    "lag": ([Lag(0.8)], 0.0, 3.0),
    "lag longer than the span": ([Lag(5.0)], 0.0, 2.0),
    "two lags": ([Lag(1.0), Lag(0.6)], 0.2, 2.9),
    "hold and lag": ([Hold(0.5), Lag(0.7)], 0.0, 2.4),
    "lag and hold of one length": ([Lag(1.0), Hold(1.0)], 0.3, 2.7),
    "lag and lagged hold": ([Lag(0.35), Hold(1.0, lag=1)], 0.0, 2.2),
}


@pytest.mark.parametrize("case", CASES)
def test_every_mixture_of_delays_against_scipy(case, x64):
    delays, t0, t1 = CASES[case]
    ts = np.unique(
        np.concatenate([np.linspace(t0, t1, 9), [t for t in (0.5, 1.0, 2.0) if t0 < t < t1]])
    )
    expected = reference(mixing_numpy, t0, t1, past_numpy, delays, ts)
    options = {"delays": delays, "saveat": diffrax.SaveAt(ts=ts)}
    adaptive = lagrax.solve(mixing, t0, t1, past_jax, stepsize_controller=TIGHT, **options)
    np.testing.assert_allclose(adaptive.ys, expected, atol=2e-8)
    fixed = lagrax.solve(mixing, t0, t1, past_jax, steps=30, solver=diffrax.Dopri8(), **options)
    np.testing.assert_allclose(fixed.ys, expected, atol=2e-8)


# These functions have their numbers as leaves or arguments, so that all cases share one program.
class JumpingPast(eqx.Module):
    """0 before t0, then 1."""

    t0: jax.Array

    def __call__(self, t):
        return jnp.where(t < self.t0, 0.0, 1.0)


def minus_the_lag(t, y, args, *, history):
    return -history[0]


@pytest.mark.parametrize("t0", [0.0, 0.1, -1.0, 10.0, 1000.7])
@pytest.mark.parametrize("options", [{"steps": 1}, {"steps": 4}, {}, {"dt0": 0.013}], ids=str)
def test_a_past_that_jumps_to_the_state(t0, options, x64):
    """y' = -y(t - 1) with y = 0 before t0 and 1 there is 1, then 1 - s, then (s - 1)^2 / 2 more."""
    ts = t0 + np.array([0.5, 1.0, 1.5, 2.0, 3.0])
    options = options | {"delays": [Lag(1.0)], "saveat": diffrax.SaveAt(ts=ts)}
    sol = lagrax.solve(minus_the_lag, t0, t0 + 3, JumpingPast(jnp.asarray(t0)), **options)
    np.testing.assert_allclose(sol.ys, [1.0, 1.0, 0.5, 0.0, -0.5], atol=1e-10)


@pytest.mark.parametrize("t0", [0.0, -1.0, 10.0])
def test_a_past_that_jumps_in_float32(t0):
    """The solution is 1 up to t0 + tau, then 1 - s."""
    past = JumpingPast(jnp.asarray(t0))
    for tau, steps in itertools.product((1.0, 1.7), (3, 7, None)):
        sol = lagrax.solve(minus_the_lag, t0, t0 + 2 * tau, past, delays=[Lag(tau)], steps=steps)
        np.testing.assert_allclose(sol.knots.ys[1:], [1.0, 1.0 - tau], atol=2e-5)


def test_a_past_that_jumps_before_the_start(x64):
    """Adaptive steps find the jump. y(1) is 1/2."""
    past = JumpingPast(jnp.asarray(-0.5))
    options = {"stepsize_controller": diffrax.PIDController(rtol=1e-8, atol=1e-10)}
    sol = lagrax.solve(minus_the_lag, 0.0, 1.0, past, delays=[Lag(1.0)], **options)
    np.testing.assert_allclose(sol.ys[-1], 0.5, atol=3e-6)


def test_a_past_with_a_kink_at_an_instant(x64):
    delays, bent = [Lag(1.0), Hold(times=[-0.45])], lambda t: jnp.abs(t + 0.45)
    field = lambda t, y, args, *, history: history[0] - y
    sol = lagrax.solve(field, 0.0, 1.0, bent, delays=delays, steps=16)
    # By parts: the bend comes through the lag at t = 0.55.
    inner = lambda a, b, sign: sign * ((b - 1.55) * np.exp(b) - (a - 1.55) * np.exp(a))
    exact = np.exp(-1.0) * (0.45 + inner(0, 0.55, -1.0) + inner(0.55, 1.0, 1.0))
    np.testing.assert_allclose(sol.ys[-1], exact, atol=1e-11)


def follow_inputs(t, x, args, *, history):
    inputs, tau = args
    return inputs[jnp.floor(t / tau).astype(int)] - 0.5 * history[0] - x


@pytest.mark.parametrize("gradient", [lagrax.Checkpointed(), lagrax.Direct(), lagrax.Adjoint()])
@pytest.mark.parametrize("tau", [1.0, 0.1, 0.3])
def test_a_field_that_switches_at_the_knots(tau, gradient, x64):
    """The inputs of a digital controller at the end of an interval are those of that interval."""
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=40))

    def end(inputs):
        options = {"delays": [Hold(tau)], "steps": 8, "gradient": gradient}
        return lagrax.solve(follow_inputs, 0.0, 40 * tau, 1.0, (inputs, tau), **options).ys[-1]

    def by_hand(inputs):
        x = 1.0
        for u in inputs:
            x = (u - 0.5 * x) * (1 - np.exp(-tau)) + x * np.exp(-tau)
        return x

    value, slope = jax.value_and_grad(end)(inputs)
    exact = jax.value_and_grad(by_hand)(inputs)
    np.testing.assert_allclose(value, exact[0], atol=1e-8)
    np.testing.assert_allclose(slope, exact[1], atol=1e-8)


def test_a_switch_at_time_zero_reached_from_the_left(x64):
    """A time just before 0 must not vanish beside the other numbers of the field."""

    def knots(inputs):
        def field(t, x, inputs, *, history):
            return inputs[(jnp.floor(t / 2) + 2).astype(int)] + 0 * x

        return lagrax.solve(field, -4.0, 4.0, 0.0, inputs, delays=[Hold(2.0)], steps=4).knots.ys

    inputs = jnp.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(knots(inputs), 2 * np.array([0, 1, 11, 111, 1111.0]), rtol=1e-12)
    np.testing.assert_allclose(jax.jacobian(knots)(inputs), 2 * np.tri(5, 4, -1), atol=1e-12)


def test_a_past_that_jumps_at_time_zero(x64):
    past = lambda t: jnp.where(t / 2 < 0, 1.0, 0.0)
    follow = lambda t, x, args, *, history: history[0]
    sol = lagrax.solve(follow, 0.0, 1.0, past, delays=[Lag(1.0)], steps=2)
    np.testing.assert_allclose(sol.ys, [1.0], rtol=1e-12)


@pytest.mark.parametrize("delay", [Hold(1.0), Lag(1.0)])
def test_adaptive_steps_do_not_see_a_switch_at_the_knots(delay, x64):
    def field(t, x, args, *, history):
        return jnp.where(jnp.floor(t) % 2 == 0, 1.0, -2.0) - x - 0.1 * history[0]

    sol = lagrax.solve(field, 0.0, 6.0, 1.0, delays=[delay])
    assert sol.stats["num_steps"] <= 40
    exact = lagrax.solve(field, 0.0, 6.0, 1.0, delays=[delay], steps=64).ys[-1]
    np.testing.assert_allclose(sol.ys[-1], exact, atol=1e-5)


def test_an_unused_hold_makes_breakpoints(x64):
    """Steps end at instants of an unused hold, at which the forcing jumps, and one lag later."""
    field = lambda t, y, args, *, history: history[0] - y + jnp.where(t < 0.9, 0.0, 5.0)
    ends = [
        lagrax.solve(
            field, 0.0, 2.5, jnp.cos, delays=[Lag(1.0), Hold(times=[0.9])], steps=steps
        ).ys[-1]
        for steps in (4, 8, 16)
    ]
    assert abs(ends[0] - ends[2]) < 1e-7
    assert abs(ends[1] - ends[2]) < 1e-9


def toward_the_lag(t, y, args, *, history):
    return history[0] - y


@pytest.mark.parametrize("options", [{}, {"steps": 16}, {"solver": diffrax.Kvaerno5()}])
def test_a_solve_goes_on_from_an_earlier_one(options, x64):
    """The past is never evaluated after its end."""
    delays, dense = [Lag(1.0)], diffrax.SaveAt(dense=True)
    earlier = lagrax.solve(toward_the_lag, 0.0, 2.0, jnp.cos, delays=delays, saveat=dense)
    later = lagrax.solve(toward_the_lag, 2.0, 4.0, earlier.evaluate, delays=delays, **options)
    whole = lagrax.solve(toward_the_lag, 0.0, 4.0, jnp.cos, delays=delays, steps=64)
    np.testing.assert_allclose(later.ys, whole.ys, atol=1e-5)


@pytest.mark.parametrize(
    "delays", [[Lag(0.1), Lag(0.3)], [Lag(0.1), Hold(0.3)]], ids=["lags", "lag and hold"]
)
def test_breakpoints_do_not_depend_on_the_start(delays, x64):
    for t0 in (0.0, 3e3, 3e5):
        sol = lagrax.solve(minus_the_lag, t0, t0 + 3.0, 1.0, delays=delays, steps=1)
        assert sol.stats["num_intervals"] == 30


@pytest.mark.parametrize("inner", [diffrax.Heun(), diffrax.Kvaerno3()])
def test_a_wrapped_solver(inner, x64):
    field = lambda t, y, a, *, history: a * y * (1 - history[0])
    options = {"delays": [Hold(1.0)], "stepsize_controller": diffrax.PIDController(1e-9, 1e-9)}
    wrapped = diffrax.HalfSolver(inner)
    found = lagrax.solve(field, 0.0, 2.5, 0.5, 1.8, solver=wrapped, max_steps=10**6, **options)
    exact = 0.5
    for length in (1.0, 1.0, 0.5):
        exact *= np.exp(1.8 * (1 - exact) * length)
    np.testing.assert_allclose(found.ys[-1], exact, rtol=1e-6)


def test_whole_numbers_are_not_compiled_into_the_program():
    assert isinstance(Hold(4).tau, float)
    assert isinstance(Lag(np.int64(2)).tau, float)


def test_a_value_means_a_constant_past(x64):
    delays = [Hold(0.5, lag=2), Lag(0.7)]
    start = past_jax(0.0)
    by_value = lagrax.solve(mixing, 0.0, 2.0, start, delays=delays, steps=10)
    by_function = lagrax.solve(mixing, 0.0, 2.0, lambda t: start, delays=delays, steps=10)
    np.testing.assert_allclose(by_value.ys, by_function.ys, rtol=1e-14)


def test_before_the_first_irregular_instant_the_start_is_held(x64):
    sol = lagrax.solve(
        lambda t, y, args, *, history: history[0], 0.0, 3.0, 1.0, delays=[Hold(times=[1.0, 2.0])]
    )
    np.testing.assert_allclose(sol.knots.ys, [1.0, 2.0, 4.0, 8.0])


def test_implicit_solver_on_a_stiff_field_with_held_feedback(x64):
    def stiff(t, y, args, *, history):
        return -1e4 * (y - jnp.sin(t)) - 0.5 * history[0]

    controller = diffrax.PIDController(rtol=1e-7, atol=1e-9)
    sol = lagrax.solve(
        stiff,
        0.0,
        3.0,
        jnp.array([1.0]),
        delays=[Hold(1.0)],
        solver=diffrax.Kvaerno5(),
        stepsize_controller=controller,
    )
    expected = reference(
        lambda t, y, h: -1e4 * (y - np.sin(t)) - 0.5 * h[0],
        0.0, 3.0, lambda t: np.array([1.0]), [Hold(1.0)], [3.0], rtol=1e-9, atol=1e-11,
    )  # fmt: skip
    np.testing.assert_allclose(sol.ys, expected, atol=1e-6)
    assert sol.stats["num_steps"] < 400


def test_pytree_states(x64):
    def field(t, y, args, *, history):
        (held,) = history
        return {"a": -held["b"][0] * y["a"], "b": (y["b"][0] * 0 + held["a"].sum(),)}

    y0 = {"a": jnp.array([1.0, 2.0]), "b": (jnp.asarray(0.5),)}
    sol = lagrax.solve(field, 0.0, 1.0, y0, delays=[Hold(0.5)], stepsize_controller=TIGHT)
    first = np.array([1.0, 2.0]) * np.exp(-0.25)
    middle = 0.5 + 0.5 * 3.0
    np.testing.assert_allclose(sol.knots.ys["b"][0], [0.5, middle, middle + 0.5 * first.sum()])
    np.testing.assert_allclose(sol.ys["a"][-1], first * np.exp(-0.5 * middle), rtol=1e-9)


def test_complex_states(x64):
    def field(t, z, args, *, history):
        return 1j * args * z + 0.3 * history[0]

    z0, w = 1.0 + 0.5j, 2.0
    sol = lagrax.solve(field, 0.0, 2.0, z0, w, delays=[Hold(1.0)], stepsize_controller=TIGHT)
    z = z0
    for _ in range(2):
        z = np.exp(1j * w) * z + 0.3 * z * (np.exp(1j * w) - 1) / (1j * w)
    np.testing.assert_allclose(sol.ys[-1], z, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"steps": 10}], ids=["adaptive", "fixed"])
def test_float32_stays_float32(options):
    sol = lagrax.solve(population, 0.0, 2.5, 0.4, 1.5, delays=[Hold(1.0)], **options)
    assert sol.ys.dtype == sol.ts.dtype == sol.knots.ts.dtype == jnp.float32
    np.testing.assert_allclose(
        sol.ys[-1], population_exact(np.array([2.5]), 0.4, 1.5)[0], rtol=1e-4
    )


def test_float32_state_while_float64_is_on(x64):
    y0 = jnp.asarray(0.4, jnp.float32)
    sol = lagrax.solve(population, 0.0, 2.5, y0, 1.5, delays=[Hold(1.0)], steps=10)
    assert sol.ys.dtype == jnp.float32


def test_rounding_of_periods_makes_no_slivers(x64):
    """In floating point 3 * 0.1 is more than 0.3. There are three intervals, the last from 0.2."""
    sol = lagrax.solve(population, 0.0, 0.3, 0.5, 1.0, delays=[Hold(0.1)], steps=2)
    assert sol.stats["num_intervals"] == 3
    clocks = [Hold(0.1), Hold(0.2)]
    sol = lagrax.solve(mixing, 0.3, 0.6, past_jax(0.3), delays=clocks, steps=2)
    np.testing.assert_allclose(sol.knots.ts, [0.3, 0.4, 0.5, 0.6])


@pytest.mark.parametrize("options", [{}, {"steps": 8}], ids=["adaptive", "fixed"])
def test_jit_and_vmap_equal_a_loop(options, x64):
    def final(y0, a, tau):
        sol = lagrax.solve(
            population, 0.0, 3.0, y0, a, delays=[Hold(tau), Hold(tau, lag=1)][:1], intervals=5,
            saveat=diffrax.SaveAt(ts=jnp.array([0.4, 1.1, 3.0])), **options,
        )  # fmt: skip
        return sol.ys, sol.stats["num_steps"]

    y0s, rates, taus = (
        jnp.array([0.2, 0.9, 1.4]),
        jnp.array([1.0, 2.0, 3.0]),
        jnp.array([1.0, 0.7, 0.95]),
    )
    batched, steps = jax.jit(jax.vmap(final))(y0s, rates, taus)
    for i in range(3):
        single, n = final(y0s[i], rates[i], taus[i])
        np.testing.assert_allclose(batched[i], single, rtol=1e-12)
        assert "steps" in options or steps[i] == n
        concrete = lagrax.solve(
            population, 0.0, 3.0, y0s[i], rates[i], delays=[Hold(float(taus[i]))],
            saveat=diffrax.SaveAt(ts=np.array([0.4, 1.1, 3.0])), **options,
        )  # fmt: skip
        np.testing.assert_allclose(single, concrete.ys, rtol=1e-5 if not options else 1e-12)


def test_traced_two_rates_equal_concrete_ones(x64):
    def final(taus):
        delays = [Hold(taus[0]), Hold(taus[1], lag=1), Lag(taus[2])]
        return lagrax.solve(
            mixing,
            0.0,
            2.0,
            past_jax,
            delays=delays,
            intervals=6,
            steps=20,
            solver=diffrax.Dopri8(),
        ).ys

    taus = jnp.array([0.5, 0.4, 0.7])
    delays = [Hold(0.5), Hold(0.4, lag=1), Lag(0.7)]
    expected = reference(mixing_numpy, 0.0, 2.0, past_numpy, delays, [2.0])
    np.testing.assert_allclose(jax.jit(final)(taus), expected, atol=1e-7)


def test_traced_instants_equal_concrete_ones(x64):
    def final(times):
        return lagrax.solve(
            mixing, 0.0, 4.0, past_jax, delays=[Hold(times=times, lag=1)], steps=20
        ).ys

    concrete = final(np.array(IRREGULAR))
    np.testing.assert_allclose(jax.jit(final)(jnp.array(IRREGULAR)), concrete, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"steps": 6}], ids=["adaptive", "fixed"])
def test_one_field_for_each_interval(options, x64):
    def make(c):
        return lambda t, y, args, *, history: c * history[0] - args * y

    fields = [make(c) for c in (1.0, -2.0, 0.5)]
    sol = lagrax.solve(fields, 0.0, 3.0, 1.0, 0.8, delays=[Hold(1.0)], **options)
    y = 1.0
    for c in (1.0, -2.0, 0.5):
        y = y * np.exp(-0.8) + c * y * (1 - np.exp(-0.8)) / 0.8
    np.testing.assert_allclose(sol.ys[-1], y, rtol=1e-5)
    same = lagrax.solve([fields[0]] * 3, 0.0, 3.0, 1.0, 0.8, delays=[Hold(1.0)], steps=6)
    shared = lagrax.solve(fields[0], 0.0, 3.0, 1.0, 0.8, delays=[Hold(1.0)], steps=6)
    np.testing.assert_allclose(same.ys, shared.ys, rtol=1e-14)


def test_one_field_for_each_interval_with_a_lag(x64):
    fields = [lambda t, y, args, *, history, c=c: c * history[0] - y for c in (1.0, -1.0)]
    sol = lagrax.solve(fields, 0.0, 2.0, jnp.array([1.0]), delays=[Lag(1.0)], steps=20)
    shared = reference(
        lambda t, y, h: (1.0 if t < 1.0 else -1.0) * h[0] - y,
        0.0, 2.0, lambda t: np.array([1.0]), [Lag(1.0)], [2.0],
    )  # fmt: skip
    np.testing.assert_allclose(sol.ys, shared, rtol=1e-8)


def test_no_delays_is_diffrax(x64):
    field = lambda t, y, args: jnp.sin(t) - args * y
    ts = jnp.linspace(0, 5, 11)
    ours = lagrax.solve(
        field, 0.0, 5.0, 1.0, 0.5, stepsize_controller=TIGHT, saveat=diffrax.SaveAt(ts=ts)
    )
    theirs = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 5.0, None, 1.0, 0.5,
        stepsize_controller=TIGHT, saveat=diffrax.SaveAt(ts=ts),
    )  # fmt: skip
    np.testing.assert_allclose(ours.ys, theirs.ys, rtol=1e-9)
    assert ours.stats["num_steps"] <= theirs.stats["num_steps"] + 1


def test_another_parameter_needs_no_new_compilation():
    traces = []

    def field(t, x, a, *, history):
        traces.append(a)
        return a * x * (1 - history[0])

    lagrax.solve(field, 0.0, 2.0, 0.5, 3.0, delays=[Hold(1.0)], steps=2)
    once = len(traces)
    lagrax.solve(field, 0.0, 2.2, 0.7, 3.1, delays=[Hold(1.1)], steps=2)
    assert len(traces) == once


# --- times to step to -----------------------------------------------------------------------------


def clip(rtol=1e-8, atol=1e-10, **times):
    return diffrax.ClipStepSizeController(diffrax.PIDController(rtol=rtol, atol=atol), **times)


@pytest.mark.parametrize("times", ["jump_ts", "step_ts"])
def test_a_short_pulse_after_a_knot_is_not_stepped_over(times, x64):
    pulse = lambda t, x, args, *, history: -0.1 * x + 1000 * ((t >= 1.3) & (t < 1.301))
    controller = clip(1e-6, 1e-8, **{times: [1.3, 1.301]})
    sol = lagrax.solve(pulse, 0.0, 3.0, 1.0, delays=[Hold(1.0)], stepsize_controller=controller)
    exact = np.exp(-0.3) + 1e4 * (1 - np.exp(-1e-4)) * np.exp(-0.1 * 1.699)
    np.testing.assert_allclose(sol.ys[-1], exact, rtol=1e-5)


def test_steps_end_at_step_ts(x64):
    decay = lambda t, x, args, *, history: -x
    step_ts = [0.31, 0.32, 1.0, 1.7, 5.0]
    sol = lagrax.solve(
        decay, 0.0, 2.0, 1.0, delays=[Hold(1.0)], saveat=diffrax.SaveAt(steps=True),
        stepsize_controller=clip(1e-3, 1e-5, step_ts=step_ts[::-1]),
    )  # fmt: skip
    assert set(step_ts[:-1]) <= set(sol.ts.tolist())
    assert sol.stats["num_accepted_steps"] <= 12
    np.testing.assert_array_equal(sol.knots.ts, [0.0, 1.0, 2.0])


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("delays", [[Hold(0.7)], [Lag(0.7)], [Hold(1.0, lag=1), Lag(0.7)]])
def test_jumps_are_breakpoints_and_travel_with_lags(delays, jitted, x64):
    """The reference is SciPy, stopped at each breakpoint."""
    jumps = np.array([-0.5, 0.4, 1.3, 9.0])

    def field(t, y, history, xp):
        return xp.sum(xp.where(t < jumps, -1.0, 1.0)) + sum(history) - y

    def run(jump_ts):
        return lagrax.solve(
            lambda t, y, args, *, history: field(t, y, history, jnp), 0.0, 2.5, 0.3,
            delays=delays, stepsize_controller=clip(jump_ts=jump_ts), solver=diffrax.Dopri5(),
        )  # fmt: skip

    sol = (eqx.filter_jit(run) if jitted else run)(jumps)
    instants = Hold(times=jumps)  # its own breakpoints are those of the jumps
    expected = reference(
        lambda t, y, history: field(t, y, history[1:], np), 0.0, 2.5, lambda t: 0.3,
        [instants, *delays], [2.5], rtol=1e-11,
    )  # fmt: skip
    np.testing.assert_allclose(sol.ys[-1], expected[0, 0], rtol=1e-6)
    np.testing.assert_allclose(np.intersect1d(jumps, sol.knots.ts), [0.4, 1.3])


def test_controllers_that_report_jumps_by_themselves_are_refused():
    class Jumping(diffrax.PIDController):
        def adapt_step_size(self, *args):
            keep, t, t_next, _, state, result = super().adapt_step_size(*args)
            return keep, t, t_next, keep, state, result

    with pytest.raises(ValueError, match=r"Jumping.*jump_ts"):
        lagrax.solve(
            lambda t, y, args: -y, 0.0, 1.0, 1.0, stepsize_controller=Jumping(rtol=1e-3, atol=1e-3)
        )
    with pytest.raises(ValueError, match=r"store_rejected_steps=100.*Leave it out"):
        lagrax.solve(
            lambda t, y, args: -y, 0.0, 1.0, 1.0, stepsize_controller=clip(store_rejected_steps=100)
        )


@pytest.mark.parametrize("force", [True, False])
def test_short_intervals_leave_error_control_on(force, x64):
    """An interval shorter than `dtmin` says nothing about the steps after it."""
    clocks = [Hold(1.0), Hold(times=[0, 1.001, 2.0005, 2.001])]

    def run(**options):
        return lagrax.solve(
            lambda t, x, args, *, history: -50 * (x - jnp.cos(3 * history[0] + history[1])),
            0.0, 3.0, 1.0, delays=clocks, saveat=diffrax.SaveAt(ts=np.linspace(0, 3, 61)),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8, **options),
        ).ys  # fmt: skip

    dtmin = 5e-3 if force else 1e-3
    np.testing.assert_allclose(run(dtmin=dtmin, force_dtmin=force), run(), atol=1e-5)


def test_constant_step_size(x64):
    sol = lagrax.solve(
        population, 0.0, 2.5, 0.4, 1.5, delays=[Hold(1.0)],
        stepsize_controller=diffrax.ConstantStepSize(), dt0=0.03,
    )  # fmt: skip
    np.testing.assert_allclose(
        sol.ys[-1], population_exact(np.array([2.5]), 0.4, 1.5)[0], rtol=1e-8
    )
    assert sol.stats["num_steps"] == 34 + 34 + 17


def test_progress_meter_is_moved_to_the_end(capfd):
    lagrax.solve(
        population, 0.0, 4.0, 0.4, 1.5, delays=[Hold(1.0)],
        progress_meter=diffrax.TextProgressMeter(minimum_increase=0.1),
    )  # fmt: skip
    jax.effects_barrier()
    assert "100.00%" in capfd.readouterr().out


# --- what is easily got wrong ---------------------------------------------------------------------


def test_adaptive_steps_of_unshared_fields_with_a_lag(x64):
    """The slope with which an interval begins is that of its own field."""
    fields = [lambda t, y, args, *, history, c=c: c * history[0] - y for c in (5.0, -5.0, 5.0)]
    run = lambda **options: lagrax.solve(fields, 0.0, 3.0, 1.0, delays=[Lag(1.0)], **options).ys
    control = diffrax.PIDController(rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(run(dt0=1.0, stepsize_controller=control), run(steps=64), rtol=1e-6)


class FieldOfAllHolds(eqx.Module):
    """A field whose `hold` computes with all held states at once."""

    weight: jax.Array

    def hold(self, history):
        return self.weight @ jnp.concatenate(history)

    def __call__(self, t, y, args, *, history):
        return history - self.weight[:, :2] @ y


def test_a_given_past_is_not_merged_with_the_start(x64):
    field = FieldOfAllHolds(jnp.array([[1.0, 0.3, -0.5, 0.2], [0.1, 0.8, 0.4, -0.6]]))
    past = lambda t: jnp.array([1.0 + t, jnp.cos(t)])
    run = lambda steps: lagrax.solve(field, 0.0, 1.0, past, delays=holds(0.5, 2), steps=steps).ys
    np.testing.assert_allclose(run(2), run(64), atol=1e-4)


def test_traced_lags_from_another_start(x64):
    field = lambda t, y, args, *, history: history[0] - 2 * history[1]

    def run(taus):
        options = {"delays": [Lag(taus[0]), Lag(taus[1])], "intervals": 5, "steps": 8}
        return lagrax.solve(field, 3.0, 5.0, 1.0, **options).ys[-1]

    np.testing.assert_allclose(jax.jit(run)(jnp.array([0.5, 0.8])), run([0.5, 0.8]), rtol=1e-10)


@pytest.mark.parametrize("traced", [False, True])
def test_a_past_that_jumps_to_the_state_at_an_instant(traced, x64):
    """At t0 = 3 tau, rounded up, the hold samples the state at t0 and not the past before it."""
    t0 = np.nextafter(3 * 0.1, 1.0)
    past = lambda t: jnp.where(t < t0, 0.0, 1.0)
    toward = lambda t, y, args, *, history: history[0] - y

    def run(tau):
        options = {"delays": [Hold(tau)], "intervals": 3, "steps": 2}
        return lagrax.solve(toward, t0, t0 + 0.05, past, **options).ys[-1]

    np.testing.assert_allclose((jax.jit(run) if traced else run)(0.1), 1.0, rtol=1e-12)


def test_traced_instants_before_the_start(x64):
    toward = lambda t, y, args, *, history: history[0] - y

    def run(times):
        options = {"delays": [Hold(times=times, lag=1)], "steps": 4}
        return lagrax.solve(toward, 0.0, 2.0, lambda t: 1.0 + t, **options).ys[-1]

    times = np.array([-0.5, 1.0])
    np.testing.assert_allclose(jax.jit(run)(jnp.asarray(times)), run(times), rtol=1e-12)


@pytest.mark.parametrize("periodic", [Hold(0.4), Lag(0.4)])
def test_traced_instants_beside_a_known_period_need_no_number_of_intervals(periodic, x64):
    toward = lambda t, y, args, *, history: history[0] - 2 * history[1] - y

    def run(times):
        return lagrax.solve(toward, 0.1, 2.0, 1.0, delays=[periodic, Hold(times=times)], steps=6).ys

    times = np.array([0.5, 1.15])
    np.testing.assert_allclose(jax.jit(run)(jnp.asarray(times)), run(times), rtol=1e-8)


def test_two_irregular_clocks(x64):
    field = lambda t, y, args, *, history: history[0] - 2 * history[1]
    clocks = [1.0, 2.0], [0.5, 2.5]
    sol = lagrax.solve(field, 0.0, 3.0, 1.0, delays=[Hold(times=times) for times in clocks])
    y, held, expected = 1.0, [1.0, 1.0], [1.0]
    for t, length in ((0.0, 0.5), (0.5, 0.5), (1.0, 1.0), (2.0, 0.5), (2.5, 0.5)):
        held = [y if t in times else old for times, old in zip(clocks, held, strict=True)]
        y += length * (held[0] - 2 * held[1])
        expected.append(y)
    np.testing.assert_allclose(sol.knots.ts, [0.0, 0.5, 1.0, 2.0, 2.5, 3.0])
    np.testing.assert_allclose(sol.knots.ys, expected, rtol=1e-12)


@pytest.mark.parametrize("lag", [150, 10**6], ids=["in the span", "before it"])
def test_a_hold_of_a_long_lag(lag):
    """Exactly x' = -x + cos(k - lag) in interval k, then with the states after t0."""
    field = lambda t, x, args, *, history: -x + history[0]
    sol = lagrax.solve(field, 0.0, 200.0, jnp.cos, delays=[lagrax.Hold(1.0, lag=lag)], steps=4)
    knots = [1.0]
    for k in range(200):
        held = knots[k - lag] if k >= lag else float(jnp.cos(jnp.float32(k - lag)))
        knots.append(held + (knots[-1] - held) * np.exp(-1))
    np.testing.assert_allclose(sol.knots.ys, knots, atol=1e-3)


def sum_of_held(instants, t1):
    """y' = the state held since the last of the instants, from 1 at 0 on."""
    y, ends = 1.0, [*instants[1:], t1]
    for begin, end in zip(instants, ends, strict=True):
        y += (end - begin) * y
    return y


def test_instants_near_zero_in_a_long_span():
    """The spacing of float32 depends on the instants, not on the span."""
    instants = np.linspace(0, 1, 21)
    sol = lagrax.solve(
        lambda t, y, args, *, history: history[0], 0.0, 86400.0, 1.0, delays=[Hold(times=instants)]
    )
    np.testing.assert_allclose(sol.knots.ts[:-1], instants, rtol=1e-6)
    np.testing.assert_allclose(sol.ys[-1], sum_of_held(instants, 86400.0), rtol=1e-5)


def test_traced_instants_of_two_clocks_near_zero_in_a_long_span():
    """Instants of the second clock lie between those of the first."""

    def solve(shift):
        delays = [
            Hold(times=np.linspace(0, 1, 11) + shift),
            Hold(times=np.linspace(0.05, 0.95, 10)),
        ]
        return lagrax.solve(
            lambda t, y, args, *, history: history[0] - 0.5 * history[1],
            0.0, 86400.0, 1.0, delays=delays, intervals=22,
        ).knots  # fmt: skip

    known, traced = solve(0.0), jax.jit(solve)(0.0)
    np.testing.assert_allclose(np.unique(traced.ts), known.ts, atol=1e-6)
    np.testing.assert_allclose(traced.ys[-1], known.ys[-1], rtol=1e-5)


def test_a_short_lag_near_zero_in_a_long_span():
    """No interval is longer than the lag, though float32 is coarse at the end of the span."""
    field = lambda t, y, args, *, history: -0.1 * history[0] + 0 * history[1]
    delays = [Lag(1.0), Hold(times=[0.0, 2.015])]
    knots = lagrax.solve(field, 0.0, 20_000.0, 1.0, delays=delays, steps=1).knots
    assert np.diff(knots.ts[knots.ts < 10]).max() < 1 + 1e-6


def test_instants_that_float32_cannot_tell_apart_are_refused():
    delays = [Hold(times=[1000.0, 1000.0001, 1001.0])]
    with pytest.raises(ValueError, match=r"1000.0 and 1000.0001.*float32.*Drop one.*float64"):
        lagrax.solve(lambda t, y, args, *, history: history[0], 999.0, 1002.0, 1.0, delays=delays)


def test_a_first_step_that_vanishes_in_rounding():
    """For a state of 0 the search finds a first step of a millionth."""
    field = lambda t, y, args: 1 - y
    for t0 in (2050.0, 20_000.0):
        sol = lagrax.solve(field, t0, t0 + 10, 0.0)
        np.testing.assert_allclose(sol.ys[-1], 1 - np.exp(-10), rtol=1e-4)
