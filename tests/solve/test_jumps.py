"""`Jump` against closed forms of pharmacokinetics, matrix exponentials and python-control."""

import control
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import lagrax
from lagrax import Adjoint, Checkpointed, Direct, Hold, Input, Jump

TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-12)
PATHS = {"adaptive": {"stepsize_controller": TIGHT}, "fixed": {"steps": 16}}
TIMES, AMOUNTS = np.array([0.0, 0.5, 1.3, 4.0]), np.array([1.0, 2.0, 3.0, 4.0])
# At the instants, between them, and at both ends.
SAVED = np.array([0.0, 0.2, 0.5, 1.3, 2.0, 4.0])
RATE = 0.7


def decay(t, y, rate):
    return -rate * y


def boluses(t, times, amounts, rate):
    """The amount in one compartment that was empty, after all doses up to time t."""
    made = jnp.asarray(t)[..., None] >= times - 1e-12
    since = jnp.where(made, jnp.asarray(t)[..., None] - times, 0)
    return jnp.sum(jnp.where(made, amounts * jnp.exp(-rate * since), 0), axis=-1)


def solve_boluses(times=TIMES, amounts=AMOUNTS, rate=RATE, ts=SAVED, **options):
    saveat = diffrax.SaveAt(ts=ts)
    jumps = [Jump(times, add=amounts)]
    return lagrax.solve(decay, 0.0, 4.0, 0.0, rate, jumps=jumps, saveat=saveat, **options)


# --- the solution ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_boluses_match_the_closed_form(x64, path):
    sol = solve_boluses(**PATHS[path])
    np.testing.assert_allclose(sol.ys, boluses(SAVED, TIMES, AMOUNTS, RATE), atol=1e-8)
    np.testing.assert_allclose(sol.knots.ts, TIMES)
    np.testing.assert_allclose(sol.knots.ys - sol.knots.before, AMOUNTS, rtol=1e-12)
    np.testing.assert_allclose(sol.knots.ys, boluses(TIMES, TIMES, AMOUNTS, RATE), atol=1e-8)


def test_traced_times_give_the_same_solution(x64):
    known = solve_boluses(steps=8)
    traced = jax.jit(lambda times: solve_boluses(times, steps=8))(TIMES)
    np.testing.assert_allclose(traced.ys, known.ys, rtol=1e-12)
    np.testing.assert_allclose(traced.knots.ys[-1], known.knots.ys[-1], rtol=1e-12)


def test_a_saved_time_within_rounding_of_a_jump_sees_the_state_after(x64):
    instant = 3 * 0.1  # 0.30000000000000004
    jumps = [Jump([instant], add=1.0)]
    saveat = diffrax.SaveAt(ts=np.array([0.3]))
    sol = lagrax.solve(decay, 0.0, 1.0, 0.0, 1.0, jumps=jumps, saveat=saveat, steps=2)
    np.testing.assert_allclose(sol.ys, [1.0])


def test_without_jumps_the_states_before_knots_are_those_after():
    sol = lagrax.solve(decay, 0.0, 1.0, 1.0, 1.0, steps=2)
    np.testing.assert_array_equal(sol.knots.before, sol.knots.ys)


def test_jumps_at_one_instant_are_made_in_order():
    add, double = Jump([1.0], add=1.0), Jump([0.5, 1.0], lambda t, y, args: 2 * y)
    still = lambda t, y, args: 0 * y
    final = lambda jumps: lagrax.solve(still, 0.0, 2.0, 1.0, jumps=jumps, steps=1).ys[-1]
    for run in (final, eqx.filter_jit(final)):
        assert run([add, double]) == 6
        assert run([double, add]) == 5
    moved = eqx.filter_jit(lambda t: final([Jump(t, double.function), Jump(t[1:], add=1.0)]))
    assert moved(jnp.array([0.5, 1.0])) == 5


def test_amounts_of_any_structure(x64):
    """One amount for all instants in one part, one for each instant in the other."""
    y0 = {"gut": jnp.zeros(2), "blood": 0.0}
    still = lambda t, y, args: jax.tree.map(lambda x: 0 * x, y)
    add = {"gut": [1.0, 10.0], "blood": jnp.array([1.0, 2.0, 3.0])}
    sol = lagrax.solve(still, 0.0, 4.0, y0, jumps=[Jump([1.0, 2.0, 3.0], add=add)], steps=1)
    np.testing.assert_allclose(sol.ys["gut"][-1], [3, 30])
    np.testing.assert_allclose(sol.knots.ys["blood"], [0, 1, 3, 6, 6])


def test_the_function_gets_time_state_and_args():
    jump = Jump([1.0, 3.0], lambda t, y, args: y + t * args)
    still = lambda t, y, args: 0 * y
    assert lagrax.solve(still, 0.0, 4.0, 1.0, 10.0, jumps=[jump], steps=1).ys[-1] == 41


def test_instants_outside_of_the_span_are_ignored():
    times = np.array([-1.0, 1.0, 9.0, np.inf, np.inf])
    final = lambda times: solve_boluses(times, np.ones(5), 0.0, np.array([4.0]), steps=1).ys[-1]
    assert final(times) == jax.jit(final)(times) == 1


@pytest.mark.parametrize("before_jumps", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_a_hold_samples_after_a_jump_or_before_it(before_jumps, traced):
    """Jumps at instants of the hold: at t0, in the middle, and at no instant of it."""

    def knots(times):
        field = lambda t, y, args, *, history: jnp.stack([jnp.zeros_like(t), history[0][0]])
        jumps = [Jump(times, add=jnp.array([[1.0, 0.0], [10.0, 0.0], [100.0, 0.0]]))]
        delays = [Hold(1.0, before_jumps=before_jumps)]
        sol = lagrax.solve(field, 0.0, 3.0, jnp.zeros(2), delays=delays, jumps=jumps, steps=1)
        return sol.ys[-1]

    times = np.array([0.0, 1.0, 1.5])
    final = jax.jit(knots)(times) if traced else knots(times)
    expected = [111, 0 + 1 + 111] if before_jumps else [111, 1 + 11 + 111]
    np.testing.assert_allclose(final, expected)


def test_samples_from_before_t0_do_not_see_a_jump_at_t0():
    field = lambda t, y, args, *, history: history[0]
    options = {"delays": [Hold(1.0, lag=1)], "jumps": [Jump([0.0], add=1.0)], "steps": 1}
    np.testing.assert_allclose(lagrax.solve(field, 0.0, 2.0, 5.0, **options).knots.ys, [6, 11, 17])


@pytest.mark.parametrize("solver", [diffrax.Bosh3(), diffrax.Tsit5()], ids=["Bosh3", "Tsit5"])
def test_solvers_keep_their_order(x64, solver):
    exact = boluses(2.0, TIMES, AMOUNTS, RATE)
    errors = [
        abs(solve_boluses(ts=np.array([2.0]), solver=solver, steps=n).ys[-1] - exact)
        for n in (2, 4)
    ]
    assert np.log2(errors[0] / errors[1]) > {"Bosh3": 2.7, "Tsit5": 4.7}[type(solver).__name__]


def test_each_member_of_a_batch_has_its_own_doses(x64):
    """The second patient has fewer doses, and a row filled up with infinity."""
    times = np.array([[0.0, 0.5, 1.3], [0.25, 2.0, np.inf]])
    amounts = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
    final = lambda times, amounts: solve_boluses(times, amounts, ts=np.array([4.0]), steps=8).ys[-1]
    expected = [
        boluses(4.0, times[0], amounts[0], RATE),
        boluses(4.0, times[1, :2], amounts[1, :2], RATE),
    ]
    np.testing.assert_allclose(jax.jit(jax.vmap(final))(times, amounts), expected, rtol=1e-6)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradient", "path"),
    [
        (Direct(), "fixed"),
        (Checkpointed(), "fixed"),
        (Adjoint(), "adaptive"),
        (Checkpointed(), "adaptive"),
        pytest.param(Direct(), "adaptive", marks=pytest.mark.slow),
        pytest.param(Adjoint(), "fixed", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_times_amounts_and_factors(x64, gradient, path):
    """Doses after a lag time, and a dialysis that leaves a part: all against the closed form."""
    ts, weights = np.array([0.2, 1.0, 2.0, 3.7]), jnp.arange(1.0, 5.0)

    def solution(p):
        jumps = [
            Jump(p["lag"] + p["times"], add=p["amounts"]),
            Jump(jnp.array([2.5]), lambda t, y, rate: p["part"] * y * jnp.exp(-0.1 * t)),
        ]
        saveat = diffrax.SaveAt(ts=ts)
        return lagrax.solve(
            decay,
            *(0.0, 4.0, 0.0, p["rate"]),
            jumps=jumps,
            saveat=saveat,
            gradient=gradient,
            **PATHS[path],
        ).ys

    def exact(p):
        y = boluses(ts, p["lag"] + p["times"], p["amounts"], p["rate"])
        return jnp.where(ts > 2.5, p["part"] * jnp.exp(-0.25) * y, y)

    p = {
        "lag": 0.1,
        "times": jnp.array([0.0, 0.5, 1.3]),
        "amounts": jnp.array([1.0, 2.0, 3.0]),
        "rate": 0.7,
        "part": 0.4,
    }
    got = jax.grad(lambda p: jnp.sum(weights * jnp.sin(solution(p))))(p)
    expected = jax.grad(lambda p: jnp.sum(weights * jnp.sin(exact(p))))(p)
    for name in p:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-6, err_msg=name)


def test_gradient_of_a_nonlinear_reset_matches_finite_differences(x64):
    """A reset through which Adjoint goes back by the transposed derivative."""
    A = jnp.array([[0.0, 1.0], [-2.0, -0.3]])

    def loss(p, gradient=Checkpointed()):
        jump = Jump(p["times"], lambda t, y, args: jnp.tanh(p["M"] @ y) + t)
        sol = lagrax.solve(
            lambda t, y, a: A @ y - y**3,
            *(0.0, 2.0, jnp.array([1.0, 0.5])),
            jumps=[jump],
            steps=24,
            gradient=gradient,
        )
        return jnp.sum(sol.ys**2)

    p = {"times": jnp.array([0.4, 1.1]), "M": jnp.array([[0.5, 1.0], [-1.0, 0.2]])}
    flat, unravel = jax.flatten_util.ravel_pytree(p)
    value = jax.jit(lambda x: loss(unravel(x)))
    h = 1e-5 * np.eye(6)
    expected = [(value(flat + e) - value(flat - e)) / 2e-5 for e in h]
    for gradient in (Checkpointed(), Adjoint()):
        got = jax.flatten_util.ravel_pytree(jax.grad(loss)(p, gradient))[0]
        np.testing.assert_allclose(got, expected, atol=2e-7)


# --- with lags and dense output -------------------------------------------------------------------


def delayed(t, y, args, *, history):
    """A gut that empties, and blood that gets what left the gut a lag ago."""
    (lagged,) = history
    return jnp.stack([-1.5 * y[0], 1.5 * lagged[0] - y[1] / 30])


def solve_delayed(times, amounts, lag, **options):
    add = jnp.stack([amounts, 0 * amounts], axis=1)
    options = {"delays": [lagrax.Lag(lag)], "jumps": [Jump(times, add=add)]} | options
    return lagrax.solve(delayed, 0.0, 24.0, jnp.zeros(2), **options)


def blood(ts, times, amounts, lag):
    """The amount in the blood, by superposition of the answers to single doses."""
    since = jnp.asarray(ts)[:, None] - times - lag
    s = jnp.maximum(since, 0)
    single = 1.5 / (1.5 - 1 / 30) * (jnp.exp(-s / 30) - jnp.exp(-1.5 * s))
    return jnp.sum(jnp.where(since > 0, amounts * single, 0), axis=1)


def test_a_bolus_is_right_a_lag_later(x64):
    """The second bolus lies within the history that the lag reads (OrdinaryDiffEq.jl #4515).

    The first one is given at t0, after a past of zeros.
    """
    times, amounts, ts = np.array([0.0, 12.0]), np.array([10.0, 20.0]), np.linspace(0, 24, 25)
    sol = solve_delayed(
        *(times, amounts, 10.0),
        stepsize_controller=TIGHT,
        saveat=diffrax.SaveAt(ts=ts, dense=True),
    )
    exact = blood(ts, times, amounts, 10.0)
    np.testing.assert_allclose(sol.ys[:, 1], exact, atol=1e-7)
    np.testing.assert_allclose(sol.evaluate(ts)[:, 1], exact, atol=1e-7)
    # Both jumps appear a lag later.
    assert {10.0, 12.0, 22.0} <= set(np.asarray(sol.knots.ts).tolist())


@pytest.mark.parametrize("gradient", [Checkpointed(), Direct()])
@pytest.mark.parametrize("path", ["fixed", pytest.param("adaptive", marks=pytest.mark.slow)])
def test_gradients_with_a_lag(x64, gradient, path):
    ts, weights = np.array([4.0, 11.0, 14.0, 23.0]), jnp.arange(1.0, 5.0)
    p = {"times": jnp.array([1.0, 12.5]), "amounts": jnp.array([1.0, 2.0]), "lag": 9.0}

    def loss(p):
        options = {"steps": 60} if path == "fixed" else PATHS[path]
        sol = solve_delayed(
            **p, intervals=6, gradient=gradient, saveat=diffrax.SaveAt(ts=ts), **options
        )
        return jnp.sum(weights * jnp.sin(sol.ys[:, 1]))

    got = jax.grad(loss)(p)
    expected = jax.grad(lambda p: jnp.sum(weights * jnp.sin(blood(ts, **p))))(p)
    for name in p:
        np.testing.assert_allclose(got[name], expected[name], atol=2e-5, err_msg=name)


def test_dense_output_and_steps_see_the_state_after_a_jump(x64):
    """Between, at t0, at an instant in the middle, and at t1."""
    jumps = [Jump(TIMES, add=AMOUNTS)]
    saveat = diffrax.SaveAt(dense=True, steps=True)
    sol = lagrax.solve(decay, 0.0, 4.0, 0.0, RATE, jumps=jumps, saveat=saveat, steps=12)
    np.testing.assert_allclose(sol.evaluate(SAVED), boluses(SAVED, TIMES, AMOUNTS, RATE), atol=1e-7)
    np.testing.assert_allclose(
        sol.evaluate(0.5 - 1e-9), boluses(0.5 - 1e-9, TIMES, AMOUNTS, RATE), atol=1e-7
    )
    np.testing.assert_allclose(sol.ys, boluses(sol.ts, TIMES, AMOUNTS, RATE), atol=1e-7)


def test_gradients_on_the_tape_match_those_without_it(x64):
    """Holds that sample before and after jumps, jumps at t0 and t1, and a nonlinear jump."""

    def loss(p, saveat, gradient):
        jumps = [
            Jump(np.array([0.0, 0.8, 1.3, 2.0]), add=p["add"]),
            Jump(p["times"], lambda t, y, args: jnp.tanh(p["factor"] * y) + t),
        ]
        field = lambda t, y, args, *, history: jnp.sin(history[0]) - history[1] * y + history[2]
        delays = [Hold(0.4), Hold(0.4, lag=1, before_jumps=True), Input([0.5, 1.0], p["us"])]
        sol = lagrax.solve(
            *(field, 0.0, 2.0, p["y0"]),
            delays=delays,
            jumps=jumps,
            saveat=saveat,
            gradient=gradient,
            steps=3,
        )
        ys = sol.evaluate(jnp.array([0.3, 1.9, 2.0])) if saveat.dense else sol.ys
        return jnp.sum(jnp.sin(ys * jnp.arange(1.0, 4.0)))

    p = {
        "add": jnp.array([0.5, -0.2, 0.4, 0.1]),
        "times": jnp.array([0.45, 1.61]),
        "factor": 0.7,
        "us": jnp.array([0.3, -0.5]),
        "y0": 0.4,
    }
    at_ts = diffrax.SaveAt(ts=np.array([0.3, 1.9, 2.0]))
    expected = jax.grad(loss)(p, at_ts, Checkpointed())
    for gradient in (Checkpointed(), Direct()):
        got = jax.grad(loss)(p, diffrax.SaveAt(dense=True), gradient)
        for name in p:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-8, err_msg=name)


# --- applications ---------------------------------------------------------------------------------


def test_two_compartments_with_absorption_infusion_and_lag_time(x64):
    """Oral doses after a lag time and an infusion, by matrix exponentials between all events."""
    A = np.array([[-1.1, 0.0, 0.0], [1.1, -0.6, 0.2], [0.0, 0.4, -0.2]])
    lag, infused = 0.35, np.array([0.0, 1.0, 0.4, 0.0])
    oral, switches = np.array([0.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.5])

    def body(t, y, args, *, history):
        return A @ y + jnp.array([0.0, 1.0, 0.0]) * history[0]

    y, t, expected = np.zeros(3), 0.0, []
    ends = sorted({*switches[1:], *(oral + lag), *np.arange(1.0, 7.0)})
    for end in ends:
        rate = infused[np.searchsorted(switches, t + 1e-9) - 1]
        big = np.zeros((4, 4))
        big[:3, :3], big[1, 3] = A, rate
        y, t = (expm(big * (end - t)) @ [*y, 1.0])[:3], end
        y[0] += 5.0 * np.any(np.isclose(oral + lag, end))
        if end in np.arange(1.0, 7.0):
            expected.append(y)
    sol = lagrax.solve(
        body,
        *(0.0, 6.0, jnp.zeros(3)),
        delays=[Input(switches, infused)],
        jumps=[Jump(oral + lag, add=[5.0, 0.0, 0.0])],
        saveat=diffrax.SaveAt(ts=np.arange(1.0, 7.0)),
        stepsize_controller=TIGHT,
    )
    np.testing.assert_allclose(sol.ys, expected, atol=1e-8)


def test_sampled_controller_with_computation_delay_matches_python_control(x64):
    """The controller samples at k tau, and its command is applied a while later.

    The state after each sample and the command in use make a discrete system. python-control
    discretises the plant over both parts of a period.
    """
    A, B = np.array([[0.0, 1.0], [1.5, -0.2]]), np.array([[0.0], [1.0]])
    K, tau, delay = np.array([4.0, 1.5]), 0.2, 0.07
    plant = control.ss(A, B, np.eye(2), 0)
    first, second = (control.c2d(plant, s) for s in (delay, tau - delay))
    x, u, expected = np.array([1.0, 0.0]), 0.0, []
    for _ in range(15):
        command = -K @ x
        x = first.A @ x + first.B[:, 0] * u
        x, u = second.A @ x + second.B[:, 0] * command, command
        expected.append(x)

    def field(t, s, args):
        return {"x": A @ s["x"] + B[:, 0] * s["u"], "seen": jnp.zeros(2), "u": 0 * s["u"]}

    samples = tau * np.arange(15)
    measure = Jump(samples, lambda t, s, args: {**s, "seen": s["x"]})
    act = Jump(samples + delay, lambda t, s, args: {**s, "u": -K @ s["seen"]})
    start = {"x": jnp.array([1.0, 0.0]), "seen": jnp.zeros(2), "u": jnp.zeros(())}
    sol = lagrax.solve(
        field,
        *(0.0, 3.0, start),
        jumps=[measure, act],
        saveat=diffrax.SaveAt(ts=samples + tau),
        steps=4,
    )
    np.testing.assert_allclose(sol.ys["x"], expected, atol=1e-8)


def test_the_program_does_not_grow_with_the_number_of_jumps():
    def measure(count):
        times = np.arange(1.0, count + 1)

        def final(amounts):
            jumps = [Jump(times, add=amounts)]
            return lagrax.solve(decay, 0.0, count + 1.0, 0.0, RATE, jumps=jumps, steps=1).ys[-1]

        lowered = jax.jit(jax.grad(final)).lower(jnp.ones(count))
        size = lowered.compile().memory_analysis().temp_size_in_bytes
        return len(lowered.as_text().splitlines()), size

    (short, few), (long, many) = measure(500), measure(2000)
    assert long == short
    assert many < 4.5 * few
