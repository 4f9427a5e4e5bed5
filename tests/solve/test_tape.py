"""The dense output of a solve, read by lags, and the backward pass through it."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Checkpointed, Direct, Hold, Lag

SAVED = np.array([0.0, 0.4, 1.1, 2.2, 2.7])
FIXED, ADAPTIVE = {"steps": 4}, {"max_steps": 100}


def mixture(t, y, a, *, history):
    return a * jnp.sin(history[0]) - y * history[1] + 0.2 * jnp.cos(t) * history[2]


def solve(p, gradient, field=mixture, delays=None, past=None, **options):
    """A hold and two lags, whose periods, past, parameter and end are all differentiated."""
    delays = delays or [Hold(0.6, lag=1), Lag(p["tau"]), Lag(2 * p["tau"] + 0.05)]
    past = past or (lambda t: jnp.cos(p["pulse"] * t) * jnp.array([1.0, 0.7]))
    return lagrax.solve(
        *(field, 0.0, p["t1"], past, p["a"]),
        **{"delays": delays, "intervals": 12, "gradient": gradient} | options,
    )


def parameters():
    return jax.tree.map(jnp.asarray, {"a": 0.8, "tau": 0.7, "pulse": 1.3, "t1": 2.83})


def losses(options):
    """The same loss for both gradients, at saved times, steps and by dense output."""

    def make(gradient):
        def loss(p):
            times = jnp.array([0.3, 1.0, 2.45])
            saved = diffrax.SaveAt(
                subs=[diffrax.SubSaveAt(ts=SAVED, t1=True), diffrax.SubSaveAt(steps=True)],
                dense=True,
            )
            sol = solve(p, gradient, saveat=saved, **options)
            at_times, at_steps = sol.ys
            at_steps = jnp.where(jnp.isfinite(at_steps), at_steps, 0)
            return (
                jnp.sum(jnp.sin(3 * at_times))
                + jnp.sum(at_steps**2)
                + jnp.sum(sol.evaluate(times) ** 3)
                + jnp.sum(sol.knots.ys[1:3])
            )

        return loss

    return make(Direct()), make(Checkpointed())


CASES = {
    "equal steps": FIXED,
    "adaptive steps": ADAPTIVE,
    "implicit": {"solver": diffrax.Kvaerno3(), "steps": 2},
    "a state of its own": {"solver": diffrax.ReversibleHeun(), "steps": 3},
    "adaptive, implicit": {"solver": diffrax.Kvaerno3(), "max_steps": 400},
    "Dopri8": {"solver": diffrax.Dopri8(), "steps": 2},
}
OFTEN = ("equal steps", "adaptive steps")


@pytest.mark.parametrize(
    "case", [c if c in OFTEN else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_checkpointed_matches_direct(case, x64):
    direct, checkpointed = losses(CASES[case])
    p = parameters()
    (value, expected), (same, got) = (
        jax.jit(jax.value_and_grad(loss))(p) for loss in (direct, checkpointed)
    )
    np.testing.assert_allclose(same, value, rtol=1e-12)
    for name in p:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-8, err_msg=name)
    if "steps" in CASES[case]:
        loss, eps = jax.jit(checkpointed), 1e-5
        for name in p:
            up, down = (loss(p | {name: p[name] + s * eps}) for s in (1, -1))
            np.testing.assert_allclose(got[name], (up - down) / (2 * eps), rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("options", [FIXED, ADAPTIVE], ids=["fixed", "adaptive"])
def test_a_batch_equals_a_loop(options, x64):
    _, loss = losses(options)
    many = jax.vmap(lambda tau, a: parameters() | {"tau": tau, "a": a})(
        jnp.array([0.55, 0.7, 0.9]), jnp.array([0.3, 0.8, 3.0])
    )
    gradient = jax.jit(jax.grad(loss))
    batch = jax.jit(jax.vmap(jax.grad(loss)))(many)
    for i in range(3):
        one = gradient(jax.tree.map(lambda x: x[i], many))  # noqa: B023
        for name in one:
            np.testing.assert_allclose(batch[name][i], one[name], rtol=1e-9, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("options", [FIXED, ADAPTIVE], ids=["fixed", "adaptive"])
def test_unshared_fields_match_direct(options, x64):
    scales = jnp.array([1.0, 0.4, 1.7, 0.9])

    def loss(scales, gradient):
        fields = [
            lambda t, y, a, *, history, s=s: s * jnp.sin(history[0]) - 0.3 * y for s in scales
        ]
        p = parameters()
        delays = [Lag(0.7)]
        return jnp.sum(solve(p, gradient, fields, delays, intervals=4, **options).ys ** 2)

    direct, checkpointed = (jax.grad(loss)(scales, g) for g in (Direct(), Checkpointed()))
    np.testing.assert_allclose(checkpointed, direct, rtol=1e-10)
    assert np.all(np.abs(direct) > 1e-3)


@pytest.mark.parametrize("solver", [diffrax.Tsit5(), diffrax.Bosh3(), diffrax.Dopri8()], ids=str)
def test_dense_output_is_that_of_diffrax(solver, x64):
    rate = lambda t, y, args: jnp.array([y[1], -y[0] * jnp.cos(t)])
    y0, ts = jnp.array([1.0, 0.3]), jnp.linspace(0.0, 2.0, 21)
    options = {"solver": solver, "saveat": diffrax.SaveAt(dense=True)}
    sol = lagrax.solve(rate, 0.0, 2.0, y0, steps=8, **options)
    same = diffrax.diffeqsolve(
        diffrax.ODETerm(rate), t0=0.0, t1=2.0, dt0=0.25, y0=y0, max_steps=9, **options
    )
    np.testing.assert_allclose(sol.evaluate(ts), jax.vmap(same.evaluate)(ts), rtol=1e-12)


@pytest.mark.parametrize(
    "delays", [[Lag(1.0)], pytest.param([Lag(1.0), Lag(10.0)], marks=pytest.mark.slow)], ids=str
)
def test_memory_is_that_of_two_tapes(delays):
    """Tsit5's polynomial has five coefficients; a step's first slope is a sixth state."""
    size, steps = 1000, 256

    def loss(y0):
        field = lambda t, y, args, *, history: sum(jnp.sin(h) for h in history) - y
        options = {"delays": delays, "max_steps": steps, "throw": False}
        return jnp.sum(lagrax.solve(field, 0.0, 20.0, y0, **options).ys ** 2)

    tape = 5 * 4 * size * steps
    memory = lambda f: jax.jit(f).lower(jnp.ones(size)).compile().memory_analysis()
    assert memory(loss).temp_size_in_bytes < 1.2 * tape
    assert memory(jax.grad(loss)).temp_size_in_bytes < 2.5 * tape
