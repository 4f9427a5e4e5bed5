"""`saveat` returns the times and states that it asks for, and changes nothing else."""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Hold, Lag

SaveAt, SubSaveAt = diffrax.SaveAt, diffrax.SubSaveAt
PATHS = {"adaptive": {"max_steps": 200}, "fixed": {"steps": 5}}
A, X0 = 1.5, 0.4


def population(t, x, a, *, history):
    return a * x * (1 - history[0])


def solve(saveat, path="fixed", t1=2.5, delays=(Hold(1.0),), **options):
    options |= {"delays": list(delays), "saveat": saveat} | PATHS[path]
    return lagrax.solve(population, 0.0, t1, X0, A, **options)


def exact(ts):
    knots = [X0]
    for _ in range(4):
        knots.append(knots[-1] * np.exp(A * (1 - knots[-1])))
    k = np.floor(np.asarray(ts)).astype(int)
    start = np.asarray(knots)[k]
    return start * np.exp(A * (1 - start) * (ts - k))


@pytest.mark.parametrize("path", PATHS)
def test_ends_and_times(path, x64):
    ts = np.array([0.0, 0.1, 1.0, 1.0, 1.5, 2.0, 2.5])
    sol = solve(SaveAt(t0=True, ts=ts, t1=True), path)
    np.testing.assert_allclose(sol.ts, [0.0, *ts, 2.5])
    np.testing.assert_allclose(sol.ys, exact(np.array([0.0, *ts, 2.5])), rtol=2e-5)


@pytest.mark.parametrize("path", PATHS)
def test_times_traced_inside_jit_give_the_same(path, x64):
    ts = np.array([0.05, 0.6, 1.0, 1.7, 2.5])
    inside = jax.jit(lambda ts: solve(SaveAt(ts=ts), path).ys)(ts)
    np.testing.assert_allclose(inside, solve(SaveAt(ts=ts), path).ys, rtol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_save_times_do_not_change_the_solution(path, x64):
    few = solve(SaveAt(t1=True), path)
    many = solve(SaveAt(ts=np.linspace(0, 2.5, 57)), path)
    assert few.stats["num_steps"] == many.stats["num_steps"]
    np.testing.assert_allclose(few.knots.ys, many.knots.ys, rtol=1e-14)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("delays", [(Hold(1.0),), (Lag(0.8),)], ids=["hold", "lag"])
def test_dense_output(path, delays, x64):
    sol = solve(SaveAt(dense=True), path, delays=delays)
    ts = np.linspace(0, 2.5, 23)
    np.testing.assert_allclose(
        sol.evaluate(ts), solve(SaveAt(ts=ts), path, delays=delays).ys, rtol=1e-12
    )
    np.testing.assert_allclose(sol.evaluate(1.3), sol.evaluate(np.array([1.3]))[0])
    assert sol.ts is None
    assert sol.ys is None
    assert np.isnan(sol.evaluate(-0.1))
    assert np.isnan(sol.evaluate(2.6))


def test_dense_output_is_differentiable(x64):
    slope = jax.grad(lambda t: solve(SaveAt(dense=True)).evaluate(t))(0.4)
    np.testing.assert_allclose(slope, A * (1 - X0) * exact(np.array(0.4)), rtol=1e-3)


@pytest.mark.parametrize("path", PATHS)
def test_every_step(path, x64):
    sol = solve(SaveAt(t0=True, steps=True), path)
    count = int(sol.stats["num_accepted_steps"])
    ts, ys = np.asarray(sol.ts), np.asarray(sol.ys)
    assert ts.shape == ((201,) if path == "adaptive" else (16,))
    assert np.all(np.diff(ts[: count + 1]) > 0)
    assert ts[count] == 2.5
    assert np.all(np.isinf(ts[count + 1 :]))
    assert {1.0, 2.0} <= set(ts)
    np.testing.assert_allclose(ys[: count + 1], exact(ts[: count + 1]), rtol=2e-5)


@pytest.mark.parametrize("path", PATHS)
def test_every_step_of_a_traced_span(path, x64):
    """Intervals of no length, beyond a traced t1, have no steps."""
    toward = lambda t, x, args, *, history: x - 2 * history[0]

    def run(t1):
        options = {"delays": [Hold(0.5)], "intervals": 9, "saveat": diffrax.SaveAt(steps=True)}
        return lagrax.solve(toward, 0.0, t1, 1.0, **options, **PATHS[path])

    sol = jax.jit(run)(1.6)
    saved = np.isfinite(sol.ts).sum()
    assert saved == sol.stats["num_accepted_steps"]
    np.testing.assert_allclose(sol.ts[:saved], run(1.6).ts[:saved])
    np.testing.assert_allclose(sol.ts[saved - 1], 1.6)


def test_every_nth_step(x64):
    every = solve(SaveAt(steps=True))
    third = solve(SaveAt(steps=3))
    np.testing.assert_allclose(third.ts, every.ts[2::3])
    np.testing.assert_allclose(third.ys, every.ys[2::3])
    fourth = solve(SaveAt(steps=4, t1=True))
    np.testing.assert_allclose(fourth.ts, [*every.ts[3::4], 2.5])
    np.testing.assert_allclose(fourth.ys[-1], every.ys[-1])


def test_subs_and_functions(x64):
    subs = {
        "end": SubSaveAt(t1=True),
        "twice": SubSaveAt(ts=np.array([0.5, 2.0]), fn=lambda t, y, a: (2 * y, t + a)),
        "also": SubSaveAt(ts=np.array([0.25, 1.0, 2.25]), t0=True),
    }
    sol = solve(SaveAt(subs=subs))
    np.testing.assert_allclose(sol.ts["also"], [0.0, 0.25, 1.0, 2.25])
    np.testing.assert_allclose(sol.ys["also"], exact(np.array([0.0, 0.25, 1.0, 2.25])), rtol=1e-4)
    np.testing.assert_allclose(sol.ys["twice"][0], 2 * exact(np.array([0.5, 2.0])), rtol=1e-4)
    np.testing.assert_allclose(sol.ys["twice"][1], np.array([0.5, 2.0]) + A)
    np.testing.assert_allclose(sol.ys["end"], exact(np.array([2.5])), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"steps": 3}], ids=["adaptive", "fixed"])
def test_constant_fields_save_everything_too(options, x64):
    sol = lagrax.solve(
        lambda t, x, args, *, history: -history[0], 0.0, 2.5, 1.0, delays=[Hold(1.0)],
        saveat=SaveAt(steps=True, dense=True), **options,
    )  # fmt: skip
    np.testing.assert_allclose(sol.ts, [1.0, 2.0, 2.5])
    np.testing.assert_allclose(sol.evaluate(np.array([0.5, 1.5])), [0.5, 0.0], atol=1e-15)


def test_saved_pytrees(x64):
    y0 = {"x": jnp.ones(2), "y": (jnp.zeros((1, 3)),)}
    sol = lagrax.solve(
        lambda t, y, args, *, history: jax.tree.map(lambda a, b: b - a, y, history[0]),
        0.0, 1.0, y0, delays=[Lag(0.5)], saveat=SaveAt(ts=np.array([0.1, 0.9]), t1=True), steps=3,
    )  # fmt: skip
    assert jax.tree.map(jnp.shape, sol.ys) == {"x": (3, 2), "y": ((3, 1, 3),)}
    assert jax.tree.map(jnp.shape, sol.knots.ys) == {"x": (3, 2), "y": ((3, 1, 3),)}


def test_times_outside_the_span_inside_jit():
    run = lambda throw: eqx.filter_jit(lambda ts: solve(SaveAt(ts=ts), throw=throw))
    ts = np.array([-1.0, 0.5, 3.0])
    sol = run(False)(ts)
    assert np.isnan(sol.ys).tolist() == [True, False, True]
    assert sol.result == lagrax.RESULTS.saved_outside
    with pytest.raises(RuntimeError, match="outside the span from t0 to t1"):
        run(True)(ts)


SPAN_OF_NO_LENGTH = {
    "plain": {},
    "equal steps": {"steps": 3},
    "times": {"saveat": SaveAt(ts=np.array([1.0, 1.0]))},
    "dense": {"saveat": SaveAt(t1=True, dense=True)},
}


def follow_the_past(t, y, args, *, history):
    return sum(history, -2 * y)


@pytest.mark.parametrize("delays", [[Hold(0.7)], [Lag(0.7), Hold(0.3)]])
@pytest.mark.parametrize("options", SPAN_OF_NO_LENGTH.values(), ids=SPAN_OF_NO_LENGTH)
def test_a_span_of_no_length(options, delays, x64):
    sol = lagrax.solve(follow_the_past, 1.0, 1.0, 3.0, delays=delays, **options)
    assert np.all(sol.ys == 3.0)
    assert sol.dense is None or sol.evaluate(1.0) == 3.0


def test_some_spans_of_no_length(x64):
    def end(t1):
        field = lambda t, y, args, *, history: -history[0]
        return lagrax.solve(field, 0.0, t1, 1.0, delays=[Hold(1.0)], intervals=2).ys[-1]

    ends, slopes = jax.vmap(jax.value_and_grad(end))(jnp.array([0.0, 0.5, 0.9]))
    np.testing.assert_allclose(ends, [1.0, 0.5, 0.1], atol=1e-12)
    np.testing.assert_allclose(slopes, -1.0)


@pytest.mark.parametrize("gradient", [lagrax.Checkpointed(), lagrax.Direct()])
def test_many_times_in_few_steps_and_few_in_many(gradient, x64):
    """The steps of y' = -a y grow, and every saved state has its own derivative."""
    ts = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 80), np.linspace(1.0, 20.0, 40)])
    control = diffrax.PIDController(rtol=1e-8, atol=1e-10)
    options = {"saveat": SaveAt(ts=ts), "stepsize_controller": control, "gradient": gradient}
    saved = lambda a: lagrax.solve(lambda t, y, a: -a * y, 0.0, 20.0, 1.0, a, **options).ys
    np.testing.assert_allclose(saved(1.3), np.exp(-1.3 * ts), atol=1e-7)
    weights = np.cos(np.arange(ts.size))
    slope = jax.grad(lambda a: weights @ saved(a))(1.3)
    np.testing.assert_allclose(slope, weights @ (-ts * np.exp(-1.3 * ts)), atol=1e-5)


def of_held(t, x, args, *, history):
    return -x * history[0]


def save_the_end(delay, t0, t1, tau, ts, **options):
    saveat = SaveAt(ts=ts, t1=True, dense=True)
    sol = lagrax.solve(of_held, t0, t1, 1.0, delays=[delay(tau)], steps=2, saveat=saveat, **options)
    return sol.t1, sol.ys, sol.evaluate(ts[-1])


# Compiled once for all spans.
INSIDE = {
    delay: jax.jit(functools.partial(save_the_end, delay, intervals=12)) for delay in (Hold, Lag)
}

# Starts and lengths that float32 rounds, so that they do not add up to the end.
SPANS = [
    (0.0, 1.6, 0.9),
    (0.0, 2.2, 0.7),
    (3.8, 5.07, 0.52),
    (4.7, 9.3, 5.0),
    (-1 / 3, -1 / 30, 1.0),
]


@pytest.mark.parametrize("delay", [Hold, Lag])
@pytest.mark.parametrize(("t0", "t1", "tau"), SPANS)
def test_the_end_of_a_rounded_span_can_be_saved(t0, t1, tau, delay):
    # Rounding may take the last of a row of times past the end.
    for ts in (np.array([t0, t1]), np.array([t0, np.nextafter(np.float32(t1), np.float32(99))])):
        for end, ys, dense in (
            save_the_end(delay, t0, t1, tau, ts),
            INSIDE[delay](*map(np.float32, (t0, t1, tau)), ts),
        ):
            assert end == np.float32(t1)
            assert np.isfinite(ys).all()
            # Coefficients of one long step are far larger than the state at its end.
            np.testing.assert_allclose([ys[1], dense], ys[2], atol=5e-6)


@pytest.mark.parametrize("n", [3, 4])  # of 15 equal steps
@pytest.mark.parametrize("path", PATHS)
def test_every_nth_step_and_the_end(n, path, x64):
    every = solve(SaveAt(steps=True), path)
    count = int(every.stats["num_accepted_steps"])
    rows = sorted({*range(n - 1, count, n), count - 1})
    sol = solve(SaveAt(steps=n, t1=True), path)
    np.testing.assert_array_equal(sol.ts[: len(rows)], np.asarray(every.ts)[rows])
    np.testing.assert_array_equal(sol.ys[: len(rows)], np.asarray(every.ys)[rows])
    assert np.all(np.isinf(sol.ts[len(rows) :]))


def test_every_step_has_the_end_once(x64):
    every, both = solve(SaveAt(steps=True)), solve(SaveAt(steps=True, t1=True))
    np.testing.assert_array_equal(both.ts, every.ts)


def test_rounding_at_a_start_far_from_zero():
    """A time one rounding before t0 is t0."""
    t0 = -1000.3
    ts = np.array([np.nextafter(np.float32(t0), np.float32(-2000)), -500.0, 0.0], np.float32)
    slow = lambda t, x, a, *, history: -0.001 * x + 0 * history[0]
    options = {"delays": [Hold(500.0)], "steps": 2, "throw": False}
    run = eqx.filter_jit(
        lambda ts: lagrax.solve(slow, t0, 0.0, 1.0, saveat=SaveAt(ts=ts), **options)
    )
    sol = run(ts)
    assert sol.result == lagrax.RESULTS.successful
    assert np.isfinite(sol.ys).all()


def test_dense_output_near_zero_of_a_long_span():
    """In float32, too, a time belongs to the interval that it lies in."""
    tau = 0.002
    ts = tau * np.array([0.5, 2.1, 2.3, 3.7])
    sol = lagrax.solve(
        lambda t, y, args, *, history: (1 - 2 * history[0]) / tau, 0.0, 900.0, 0.0,
        delays=[Hold(times=[*tau * np.arange(6), 899.0])], steps=1,
        saveat=SaveAt(subs=SubSaveAt(ts=ts), dense=True),
    )  # fmt: skip
    # Its states at the instants are 0, 1, 0, 1, ...
    np.testing.assert_allclose(sol.ys, [0.5, 0.1, 0.3, 0.3], rtol=1e-5)
    np.testing.assert_allclose(sol.evaluate(ts), sol.ys, rtol=1e-5)
