"""The cost of steps: the step size across knots, constant fields, fields split by `hold`."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Hold, Lag, holds


def population(t, x, a, *, history):
    return a * x * (1 - history[0])


def solve_each_interval_by_diffrax(a, x, intervals, controller):
    """Calls diffrax once for each interval.

    Tsit5 takes six evaluations a step and one at the start, and two to find the first step.
    """
    term = diffrax.ODETerm(lambda t, y, args: args[0] * y * (1 - args[1]))

    @jax.jit
    def one(k, x):
        sol = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), k, k + 1, None, x, (a, x), stepsize_controller=controller
        )
        return sol.ys[-1], sol.stats["num_steps"]

    evaluations = 0
    for k in range(intervals):
        x, steps = one(jnp.asarray(float(k)), x)
        evaluations += 2 + 1 + 6 * int(steps)
    return x, evaluations


def test_the_step_is_carried_across_knots(x64, capsys):
    controller = diffrax.PIDController(rtol=1e-6, atol=1e-6)
    a, x0, n = 3.2, jnp.asarray(0.5), 50
    sol = lagrax.solve(
        population, 0.0, float(n), x0, a, delays=[Hold(1.0)], stepsize_controller=controller
    )
    ours = int(sol.stats["num_evaluations"])
    _, theirs = solve_each_interval_by_diffrax(a, x0, n, controller)
    with capsys.disabled():
        print(f"\nevaluations over {n} intervals: {ours} carried, {theirs} afresh")
    assert ours < 0.92 * theirs
    assert sol.stats["num_rejected_steps"] < 0.1 * sol.stats["num_steps"]


@pytest.mark.parametrize(
    "solver",
    [diffrax.Midpoint(), diffrax.Tsit5(), diffrax.Dopri8()],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize("path", ["adaptive", "fixed", "fixed with saves", "lag"])
def test_evaluations_are_counted_as_made(solver, path):
    """The reference is a field that counts its own calls on the host."""
    calls = []

    def counting_field(t, y, args, *, history):
        jax.debug.callback(lambda: calls.append(1))
        return -y * history[0]

    options = {} if path in ("adaptive", "lag") else {"steps": 3}
    saveat = diffrax.SaveAt(ts=np.array([0.3, 1.7])) if "saves" in path else diffrax.SaveAt(t1=True)
    delays = [Lag(1.0)] if path == "lag" else [Hold(1.0)]
    sol = lagrax.solve(
        counting_field,
        0.0,
        2.0,
        0.5,
        delays=delays,
        solver=solver,
        saveat=saveat,
        max_steps=2000,
        **options,
    )
    jax.block_until_ready(sol.ys)
    jax.effects_barrier()
    assert len(calls) == sol.stats["num_evaluations"]


def test_a_field_without_the_state_takes_one_evaluation_an_interval(x64):
    """The paper's simple NPCDDE (eq. 8) has z(k+1) = z(k) + tau f(z(k))."""
    sol = lagrax.solve(
        lambda t, y, args, *, history: jnp.sin(args * history[0]),
        0.0, 2.5, jnp.array([0.3, 1.0]), 1.7, delays=[Hold(0.5)],
        saveat=diffrax.SaveAt(ts=np.array([0.0, 0.2, 0.5, 2.4, 2.5]), dense=True),
    )  # fmt: skip
    assert sol.stats["num_evaluations"] == sol.stats["num_intervals"] == 5
    z = [np.array([0.3, 1.0])]
    for _ in range(5):
        z.append(z[-1] + 0.5 * np.sin(1.7 * z[-1]))
    np.testing.assert_allclose(sol.knots.ys, z, rtol=1e-14)
    inside = z[4] + 0.4 * np.sin(1.7 * z[4])
    expected = [z[0], z[0] + 0.2 * np.sin(1.7 * z[0]), z[1], inside, z[5]]
    np.testing.assert_allclose(sol.ys, expected, rtol=1e-13)
    np.testing.assert_allclose(sol.evaluate(2.4), inside, rtol=1e-13)


def test_the_special_field_with_a_skip_is_constant(x64):
    """Eq. 12, as a jitted module, depends on two held states and not on y."""

    class Skip(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def __call__(self, t, y, args, *, history):
            return jnp.tanh(self.weight @ jnp.stack(history))

    sol = lagrax.solve(Skip(jnp.array([0.5, -1.0])), 0.0, 1.0, 0.7, delays=holds(0.5, 2))
    assert sol.stats["num_evaluations"] == 2
    first = 0.7 + 0.5 * np.tanh(0.5 * 0.7 - 0.7)
    np.testing.assert_allclose(sol.ys[-1], first + 0.5 * np.tanh(0.5 * first - 0.7), rtol=1e-12)


@pytest.mark.parametrize("gradient", [lagrax.Direct(), lagrax.Checkpointed(), lagrax.Adjoint()])
def test_constant_fields_have_exact_gradients(gradient, x64):
    def final(a):
        field = lambda t, y, a, *, history: a * history[0] ** 2
        return lagrax.solve(field, 0.0, 1.0, 0.5, a, delays=[Hold(0.5)], gradient=gradient).ys[-1]

    step = lambda x, a: x + 0.5 * a * x**2
    expected = jax.grad(lambda a: step(step(0.5, a), a))(1.2)
    np.testing.assert_allclose(jax.grad(final)(1.2), expected, rtol=1e-13)


@pytest.mark.parametrize(
    "field",
    [
        lambda t, y, args, *, history: history[0] + 0 * y,
        lambda t, y, args, *, history: jnp.cos(t) * history[0],
        lambda t, y, args, *, history: jax.lax.cond(y > 0, lambda: history[0], lambda: -history[0]),
    ],
    ids=["zero times y", "time", "a branch on y"],
)
def test_a_field_of_time_or_state_is_not_constant(field):
    sol = lagrax.solve(field, 0.0, 1.0, 0.5, delays=[Hold(0.5)], steps=3)
    assert sol.stats["num_evaluations"] > sol.stats["num_intervals"]


class Plain(eqx.Module):
    weight: jax.Array
    out: jax.Array

    def __call__(self, t, y, args, *, history):
        return self.out @ jnp.tanh(self.weight @ jnp.concatenate([y, *history]))


class Split(Plain):
    """The same field, with the held states' share of the first layer computed once."""

    def hold(self, history):
        size = history[0].shape[0]
        return self.weight[:, size:] @ jnp.concatenate(history)

    def __call__(self, t, y, args, *, history):
        return self.out @ jnp.tanh(self.weight[:, : y.shape[0]] @ y + history)


@pytest.mark.parametrize("options", [{}, {"steps": 4}], ids=["adaptive", "fixed"])
@pytest.mark.parametrize(
    "delays", [holds(0.5, 3), [Hold(0.5), Lag(0.5), Lag(0.25)]], ids=["holds", "lags"]
)
def test_hold_gives_the_same_numbers(options, delays, x64):
    keys = jax.random.split(jax.random.key(1), 2)
    weights = jax.random.normal(keys[0], (7, 8)), 0.4 * jax.random.normal(keys[1], (2, 7))
    y0 = jnp.array([0.2, -0.6])
    plain, split = (
        lagrax.solve(f(*weights), 0.0, 2.2, y0, delays=delays, max_steps=200, **options)
        for f in (Plain, Split)
    )
    np.testing.assert_allclose(split.ys, plain.ys, rtol=1e-12)
    assert split.stats["num_evaluations"] == plain.stats["num_evaluations"]


def test_hold_runs_once_an_interval():
    calls = []

    class Counting(eqx.Module):
        def hold(self, history):
            jax.debug.callback(lambda: calls.append(1))
            return 2 * history[0]

        def __call__(self, t, y, args, *, history):
            return history - y

    sol = lagrax.solve(Counting(), 0.0, 3.0, 0.5, delays=[Hold(1.0)], steps=7)
    jax.block_until_ready(sol.ys)
    jax.effects_barrier()
    assert len(calls) == 3


def test_many_intervals_with_one_compiled_program(x64):
    sol = lagrax.solve(population, 0.0, 2000.0, 0.5, 1.2, delays=[Hold(1.0)], steps=5)
    np.testing.assert_allclose(sol.ys[-1], 1.0, rtol=1e-9)
    assert sol.stats["num_evaluations"] == 2000 * 5 * 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_does_not_decide_how_many_steps_share_an_interval(dtype, x64):
    """A longest step that divides the interval but for rounding divides it into so many steps."""
    slow = lambda t, y, args: -1e-6 * y
    for pieces in range(2, 60):
        length = jnp.asarray(dtype(0.75) / dtype(pieces))
        control = diffrax.PIDController(rtol=1e-3, atol=1e-6, dtmax=length)
        sol = lagrax.solve(slow, 1.75, 2.5, dtype(1.0), dt0=length, stepsize_controller=control)
        assert sol.stats["num_steps"] == pieces


@pytest.mark.parametrize("delay", [Hold(1.0), Lag(1.0)], ids=["hold", "lag"])
def test_evaluations_with_a_first_step(delay):
    calls = []

    def counting_field(t, y, args, *, history):
        jax.debug.callback(lambda: calls.append(1))
        return -y * history[0]

    sol = lagrax.solve(counting_field, 0.0, 2.0, 0.5, delays=[delay], dt0=0.1, max_steps=200)
    jax.block_until_ready(sol.ys)
    jax.effects_barrier()
    assert len(calls) == sol.stats["num_evaluations"]
