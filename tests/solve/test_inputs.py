"""`Input` against closed forms, matrix exponentials, and the same signal held by a clock."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import lagrax
from lagrax import Adjoint, Checkpointed, Direct, Hold, Input, Lag

RATE = 0.7
TS, US = np.array([0.3, 1.1, 2.0]), np.array([1.0, -2.0, 3.0])
SAVED = np.array([0.1, 0.55, 1.35, 1.5, 2.25, 3.9])
TIGHT = diffrax.PIDController(rtol=1e-9, atol=1e-11)
PATHS = {"adaptive": {"stepsize_controller": TIGHT}, "fixed": {"steps": 8}}


def field(t, y, rate, *, history):
    return -rate * y + history[0]


def solve(ts=TS, us=US, delay=0.25, *, linear=False, **options):
    options = {"saveat": diffrax.SaveAt(ts=SAVED)} | options
    signal = Input(ts, us, delay, linear=linear)
    return lagrax.solve(field, 0.0, 4.0, 1.0, RATE, delays=[signal], **options)


def exact(ts, us, delay, linear):
    """The solution at `SAVED`, from switch to switch by its closed form."""
    begins = jnp.concatenate([jnp.zeros(1), ts + delay])
    values = jnp.concatenate([us[:1], us])
    slopes = jnp.diff(us) / jnp.diff(ts) if linear else jnp.zeros(len(ts) - 1)
    slopes = jnp.concatenate([jnp.zeros(1), slopes, jnp.zeros(1)])

    def flow(y, i, s):
        particular = lambda s: values[i] / RATE + slopes[i] * (s / RATE - 1 / RATE**2)
        return particular(s) + (y - particular(0.0)) * jnp.exp(-RATE * s)

    states = [1.0]
    for i in range(len(ts)):
        states.append(flow(states[-1], i, begins[i + 1] - begins[i]))
    piece = np.searchsorted(TS + 0.25, SAVED)
    return jnp.stack([flow(states[i], i, t - begins[i]) for i, t in zip(piece, SAVED, strict=True)])


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_input_matches_the_closed_form(x64, path, linear):
    sol = solve(linear=linear, **PATHS[path])
    np.testing.assert_allclose(sol.ys, exact(TS, US, 0.25, linear), atol=1e-7)
    np.testing.assert_allclose(sol.knots.ts, [0, *TS + 0.25, 4])


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(
    ("gradient", "path"),
    [
        (Direct(), "fixed"),
        (Checkpointed(), "fixed"),
        (Checkpointed(), "adaptive"),
        pytest.param(Direct(), "adaptive", marks=pytest.mark.slow),
        (Adjoint(), "adaptive"),
    ],
)
def test_gradients_of_samples_times_and_delay(x64, gradient, path, linear):
    weights = jnp.arange(1.0, 7.0)

    def loss(p):
        sol = solve(*p, linear=linear, gradient=gradient, **PATHS[path])
        return jnp.sum(weights * jnp.sin(sol.ys))

    p = (jnp.asarray(TS), jnp.asarray(US), jnp.asarray(0.25))
    expected = jax.grad(lambda p: jnp.sum(weights * jnp.sin(exact(*p, linear))))(p)
    for got, want in zip(jax.grad(loss)(p), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("solver", [diffrax.Bosh3(), diffrax.Tsit5()], ids=["Bosh3", "Tsit5"])
def test_solvers_keep_their_order(x64, solver, linear):
    errors = [
        abs(solve(solver=solver, steps=n, linear=linear).ys[-1] - exact(TS, US, 0.25, linear)[-1])
        for n in (2, 4)
    ]
    assert np.log2(errors[0] / errors[1]) > {"Bosh3": 2.7, "Tsit5": 4.7}[type(solver).__name__]


def test_the_first_sample_holds_before_and_the_last_after():
    delays = [Input([1.0, 2.0], [5.0, 7.0])]
    sol = lagrax.solve(lambda t, y, a, *, history: history[0], 0.0, 4.0, 0.0, delays=delays)
    np.testing.assert_allclose(sol.knots.ys, [0, 5, 10, 24])
    late = lagrax.solve(
        lambda t, y, a, *, history: history[0],
        3.0,
        4.0,
        0.0,
        delays=[Input([1.0, 2.0], [5.0, 7.0])],
    )
    np.testing.assert_allclose(late.knots.ys, [0, 7])


def test_samples_of_any_structure_reach_the_field():
    us = {"mode": np.array([0, 1]), "gain": jnp.array([[1.0, 2.0], [3.0, 4.0]])}

    def chosen(t, y, args, *, history):
        return history[0]["gain"][history[0]["mode"]] + 0 * y

    sol = lagrax.solve(chosen, 0.0, 2.0, 0.0, delays=[Input([0.0, 1.0], us)], steps=1)
    np.testing.assert_allclose(sol.knots.ys, [0, 1, 5])


def test_batches_of_delays_give_each_member_its_own_knots(x64):
    batch = jnp.array([0.0, 0.25, 5.0])
    final = lambda delay: solve(delay=delay, steps=6, saveat=diffrax.SaveAt(t1=True)).ys[-1]
    each = [final(float(delay)) for delay in batch]
    np.testing.assert_allclose(jax.jit(jax.vmap(final))(batch), jnp.stack(each), rtol=1e-12)


@pytest.mark.parametrize("linear", [False, True])
def test_rows_of_a_batch_may_be_filled_up(x64, linear):
    final = lambda ts, us: solve(ts, us, linear=linear, steps=4).ys
    longer = jax.jit(final)(np.append(TS, [np.inf, np.inf]), np.append(US, [0.0, 0.0]))
    np.testing.assert_allclose(longer, final(TS, US), rtol=1e-12)


def test_input_beside_a_hold_and_a_lag_matches_a_held_clock(x64):
    """The same signal, looked up by a clock that `Hold(times=...)` samples."""
    past = lambda t: 1.0 + 0.3 * t

    def signal(t, y, args, *, history):
        u, held, lagged = history
        return u - 0.5 * held * y - lagged

    def clocked(t, y, args, *, history):
        held_clock, held, lagged = history
        u = jnp.asarray(US)[
            jnp.maximum(jnp.searchsorted(TS, held_clock[1] + 1e-9, side="right") - 1, 0)
        ]
        return jnp.stack([signal(t, y[0], args, history=(u, held[0], lagged[0])), 1.0])

    options = {"steps": 6, "saveat": diffrax.SaveAt(ts=SAVED)}
    delays = [Hold(0.8), Lag(0.7)]
    ours = lagrax.solve(signal, 0.0, 4.0, past, delays=[Input(TS, US), *delays], **options)
    both = lambda t: jnp.stack([past(t), t])
    theirs = lagrax.solve(clocked, 0.0, 4.0, both, delays=[Hold(times=TS), *delays], **options)
    np.testing.assert_allclose(ours.ys, theirs.ys[:, 0], rtol=1e-12)


def test_plant_with_dead_time_matches_the_matrix_exponential(x64):
    """Zero-order hold with a dead time of 0.37 periods: each period is two matrix exponentials."""
    A, B = np.array([[0.0, 1.0], [-2.0, -0.3]]), np.array([0.0, 1.0])
    us = np.random.default_rng(1).normal(size=20)

    def plant(t, x, args, *, history):
        return A @ x + B * history[0]

    def propagate(x, u, s):
        big = np.zeros((3, 3))
        big[:2, :2], big[:2, 2] = A, B * u
        return (expm(big * s) @ [*x, 1.0])[:2]

    x, expected = np.zeros(2), []
    for k, u in enumerate(us):
        x = propagate(x, us[max(k - 1, 0)], 0.37 * 0.5)
        x = propagate(x, u, 0.63 * 0.5)
        expected.append(x)
    ts = 0.5 * np.arange(20)
    sol = lagrax.solve(
        plant,
        0.0,
        10.0,
        jnp.zeros(2),
        delays=[Input(ts, us, delay=0.185)],
        saveat=diffrax.SaveAt(ts=ts + 0.5),
        steps=6,
    )
    np.testing.assert_allclose(sol.ys, expected, atol=1e-9)


@pytest.mark.parametrize("linear", [False, True])
def test_memory_of_the_gradient_grows_with_the_number_of_samples(linear):
    def temporary(count):
        ts = np.arange(float(count))

        def final(us):
            delays = [Input(ts, us, linear=linear)]
            return lagrax.solve(field, 0.0, float(count), 1.0, RATE, delays=delays, steps=1).ys[-1]

        lowered = jax.jit(jax.grad(final)).lower(jnp.ones(count))
        program = lowered.compile()
        return program.memory_analysis().temp_size_in_bytes, len(lowered.as_text().splitlines())

    (few, short), (many, long) = temporary(500), temporary(2000)
    assert long == short
    assert many < 4.5 * few
