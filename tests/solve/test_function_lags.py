"""Lags that are functions of time and state: exact solutions, orders, gradients, bounds."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import RESULTS, Checkpointed, Direct, Hold, Input, Jump, Lag

ROOT2 = np.sqrt(2)


def control(tol):
    return diffrax.PIDController(rtol=tol, atol=tol)


# --- an equation with an exact solution -----------------------------------------------------------


# Feldstein and Neves (1984). The delayed time passes t0 at t = 2, where y'' jumps.
PUBLISHED = Lag(lambda t, y, args: t - y + ROOT2 - 1, low=0.4, high=4)


def published(t, y, args, *, history):
    return history[0] / (2 * jnp.sqrt(t))


def exact(t):
    return np.where(t <= 2, np.sqrt(t), t / 4 + 0.5 + (1 - ROOT2 / 2) * np.sqrt(t))


def test_error_follows_the_tolerance_and_a_step_ends_at_the_kink(x64):
    saveat = diffrax.SaveAt(subs=diffrax.SubSaveAt(ts=np.linspace(1, 5, 9)), dense=True)
    solve = jax.jit(
        lambda tol: lagrax.solve(
            published, 1.0, 5.0, 1.0, delays=[PUBLISHED], stepsize_controller=control(tol),
            saveat=saveat,
        )
    )  # fmt: skip
    for tol in (1e-5, 1e-7, 1e-9):
        sol = solve(tol)
        np.testing.assert_allclose(sol.ys, exact(sol.ts), atol=2 * tol)
        assert np.min(np.abs(sol.dense.ts - 2)) < 3 * tol


def jumping(t):
    return jnp.where(t < 0, 2.0, 1.0)


# The delayed time of y' = y(y - 2) passes 0 at t = 1/2, where the past jumps from 2 to 1.
JUMPING = {"delays": [Lag(lambda t, y, args: t - y + 2, low=0.3)], "solver": diffrax.Bosh3()}


def delayed(t, y, args, *, history):
    return history[0]


def test_located_steps_keep_the_order(x64):
    """Constant steps that end at the kink as well, against equal steps that cross it."""
    located = jax.jit(
        lambda dt: lagrax.solve(
            *(delayed, 0.0, 0.8, jumping),
            dt0=dt,
            stepsize_controller=diffrax.ConstantStepSize(),
            **JUMPING,
        )
    )
    exact = 2 + (np.exp(0.6) - 1) / 2
    lengths = np.array([0.1, 0.05, 0.025])
    errors = np.array([abs(located(h).ys[0] - exact) for h in lengths])
    assert np.all(np.log2(errors[:-1] / errors[1:]) > 2.6)
    crossing = lagrax.solve(delayed, 0.0, 0.8, jumping, steps=11, **JUMPING)
    assert crossing.stats["num_steps"] > 0.8 / lengths[-1]
    assert abs(crossing.ys[0] - exact) > 100 * errors[-1]


# --- the same as what is known otherwise ----------------------------------------------------------


def beside(t, y, args, *, history):
    lagged, held, signal = history
    return -1.3 * lagged + 0.4 * jnp.sin(held) - 0.1 * y * signal


@pytest.mark.parametrize("options", [{"stepsize_controller": control(1e-9)}, {"steps": 8}])
def test_function_that_is_constant_matches_a_fixed_lag(options, x64):
    """Also past jumps of the state and of the past, which arrive through the lag."""

    def solve(lag):
        return lagrax.solve(
            beside, 0.0, 3.1, lambda t: jnp.where(t < 0, 2.0 + t, 1.0),
            delays=[lag, Hold(0.8), Input([0.5, 1.7], jnp.array([0.0, 2.0]))],
            jumps=[Jump([1.1], add=0.7)], saveat=diffrax.SaveAt(ts=[0.6, 1.9, 2.6], t1=True),
            **options,
        ).ys  # fmt: skip

    tolerance = 1e-7 if "stepsize_controller" in options else 0.03
    got = solve(Lag(lambda t, y, args: 0.7 + 0 * y, low=0.7, high=0.7))
    np.testing.assert_allclose(got, solve(Lag(0.7)), atol=tolerance)


def test_lag_beside_a_function_follows_its_kinks(x64):
    """The kinks that the function makes pass the fixed lag too."""
    lags = [PUBLISHED, Lag(0.5)]
    field = lambda t, y, args, *, history: history[0] / (2 * jnp.sqrt(t)) - 0.1 * history[1]
    sol = lagrax.solve(
        field, 1.0, 3.5, 1.0, delays=lags, saveat=diffrax.SaveAt(dense=True),
        stepsize_controller=control(1e-9),
    )  # fmt: skip
    # The first kink is where the delayed time passes t0.
    ends = np.asarray(sol.dense.ts)
    ends = ends[np.isfinite(ends)]
    ys = sol.evaluate(ends)
    kink = ends[np.argmin(np.abs(ys - ROOT2))]
    np.testing.assert_allclose(sol.evaluate(kink), ROOT2, atol=1e-7)
    assert np.min(np.abs(ends - (kink + 0.5))) < 1e-7


def test_past_that_jumps_is_seen_on_its_own_side(x64):
    sol = lagrax.solve(
        *(delayed, 0.0, 0.8, jumping),
        delays=JUMPING["delays"],
        stepsize_controller=control(1e-8),
    )
    np.testing.assert_allclose(sol.ys[0], 2 + (np.exp(0.6) - 1) / 2, rtol=3e-8)


def test_time_dependent_lag(x64):
    """y' = y(t - 1 - t/2) = y(t/2 - 1): a parabola after a constant past."""
    lag = Lag(lambda t, y, args: 1 + t / 2, low=1.0)
    field = lambda t, y, args, *, history: history[0]
    for options in ({}, {"steps": 5}):
        sol = lagrax.solve(field, 0.0, 4.0, 1.0, delays=[lag], **options)
        # y = 1 + t up to 2, then y' = t / 2.
        np.testing.assert_allclose(sol.ys[0], 3 + 3, rtol=1e-6)


# --- gradients ------------------------------------------------------------------------------------


class Transport(eqx.Module):
    """A lag with parameters of its own."""

    slope: jax.Array

    def __call__(self, t, y, args):
        return 0.5 + self.slope * y**2 + 0.1 * args["c"] * jnp.sin(t)


def loss(p, gradient, options):
    sol = lagrax.solve(
        lambda t, y, args, *, history: -args["a"] * history[0] * y + jnp.sin(t),
        0.0,
        p["t1"],
        lambda t: p["y"] * jnp.cos(p["w"] * t),
        p,
        delays=[Lag(p["lag"], low=0.3, high=4.0)],
        gradient=gradient,
        intervals=14,
        saveat=diffrax.SaveAt(ts=[0.5, 1.7, 2.5], t1=True),
        max_steps=256,
        **options,
    )
    return jnp.sum(sol.ys**2) + sol.knots.ys[4]


@pytest.mark.parametrize(
    "options",
    [
        {"stepsize_controller": control(1e-11)},
        pytest.param({"steps": 4}, marks=pytest.mark.slow),
        pytest.param({"steps": 4, "solver": diffrax.Kvaerno3()}, marks=pytest.mark.slow),
        pytest.param(
            {"stepsize_controller": control(1e-6), "solver": diffrax.Kvaerno3()},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_gradients_match_each_other_and_differences(options, x64):
    p = {"a": 0.8, "c": 1.0, "y": 1.2, "w": 0.9, "t1": 3.1, "lag": Transport(jnp.asarray(0.6))}
    p = jax.tree.map(jnp.asarray, p)
    leaves, structure = jax.tree.flatten(p)
    of = lambda gradient: lambda leaves: loss(structure.unflatten(leaves), gradient, options)
    value_and_grad = jax.jit(jax.value_and_grad(of(Checkpointed())))
    value, got = value_and_grad(leaves)
    same, expected = jax.jit(jax.value_and_grad(of(Direct())))(leaves)
    np.testing.assert_allclose(same, value, rtol=1e-12)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    tolerance = 1e-5 if "solver" in options and "steps" not in options else 2e-7
    for i in range(len(leaves)):
        moved = [
            value_and_grad([x + e * (j == i) for j, x in enumerate(leaves)])[0]
            for e in (1e-5, -1e-5)
        ]
        np.testing.assert_allclose(got[i], (moved[0] - moved[1]) / 2e-5, atol=tolerance)


# --- lags that vanish -----------------------------------------------------------------------------


def pantograph(p, tol, gradient=Checkpointed(), solver=None):
    """y' = a y(t) + b y(q t), whose lag is 0 at the start."""
    return lagrax.solve(
        lambda t, y, args, *, history: p["a"] * y + p["b"] * history[0],
        0.0,
        2.0,
        p["start"],
        delays=[Lag(lambda t, y, args: (1 - p["q"]) * t, low=0)],
        solver=diffrax.Tsit5() if solver is None else solver,
        stepsize_controller=control(tol),
        gradient=gradient,
        max_steps=128,
    )


def sum_series(p, t):
    """Its power series."""
    term, total = p["start"], 0.0
    for k in range(40):
        total += term * t**k
        term *= (p["a"] + p["b"] * p["q"] ** k) / (k + 1)
    return total


PANTOGRAPH = {"a": -1.0, "b": 0.7, "q": 0.5, "start": 1.2}


def test_pantograph_matches_its_series(x64):
    solve = jax.jit(pantograph)
    for tol in (1e-4, 1e-7, 1e-10):
        sol = solve(PANTOGRAPH, tol)
        np.testing.assert_allclose(sol.ys[0], sum_series(PANTOGRAPH, 2.0), atol=tol)
        # Iterations are few, and they are counted.
        steps = sol.stats["num_steps"]
        assert 6 * steps < sol.stats["num_evaluations"] < 30 * steps


@pytest.mark.parametrize("gradient", [Checkpointed(), Direct()])
def test_gradient_of_the_pantograph_matches_that_of_its_series(gradient, x64):
    expected = jax.grad(sum_series)(PANTOGRAPH, 2.0)
    got = jax.jit(jax.grad(lambda p: pantograph(p, 1e-9, gradient).ys[0]))(PANTOGRAPH)
    for name in PANTOGRAPH:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-7)


def test_implicit_solver_iterates_lags_that_vanish(x64):
    """Values and gradients of the pantograph, with an implicit solver."""
    expected = jax.value_and_grad(sum_series)(PANTOGRAPH, 2.0)
    solve = lambda p, tol: pantograph(p, tol, solver=diffrax.Kvaerno5()).ys[0]
    value_and_grad = jax.jit(jax.value_and_grad(solve))
    for tol in (1e-5, 1e-8):
        value, gradient = value_and_grad(PANTOGRAPH, tol)
        np.testing.assert_allclose(value, expected[0], atol=10 * tol)
        for name in PANTOGRAPH:
            np.testing.assert_allclose(gradient[name], expected[1][name], atol=100 * tol)


BATCH = {name: value * np.array([1.0, 0.8, 0.2]) for name, value in PANTOGRAPH.items()}


def test_batch_of_lags_that_vanish(x64):
    """Rows that need other numbers of steps and iterations."""
    got = jax.jit(jax.vmap(lambda p: pantograph(p, 1e-8)))(BATCH)
    assert len(set(got.stats["num_steps"].tolist())) > 1
    np.testing.assert_allclose(got.ys[:, 0], sum_series(BATCH, 2.0), rtol=1e-7)


@pytest.mark.slow
def test_gradients_of_a_batch_of_lags_that_vanish(x64):
    got = jax.jit(jax.vmap(jax.grad(lambda p: pantograph(p, 1e-8).ys[0])))(BATCH)
    expected = jax.vmap(jax.grad(lambda p: sum_series(p, 2.0)))(BATCH)
    for name in PANTOGRAPH:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-6)


def test_lag_vanishes_within_the_span(x64):
    """Problem D1 of Enright and Hayashi, y = (log t, 1/t): the lag touches 0 at t = 1."""
    field = lambda t, y, args, *, history: jnp.stack(
        [y[1], -history[0][1] * y[1] ** 2 * jnp.exp(1 - y[1])]
    )
    sol = lagrax.solve(
        *(field, 0.1, 3.0, lambda t: jnp.stack([jnp.log(t), 1 / t])),
        delays=[Lag(lambda t, y, args: t - jnp.exp(1 - y[1]), low=0)],
        stepsize_controller=control(1e-8),
    )
    np.testing.assert_allclose(sol.ys[0], [np.log(3), 1 / 3], atol=1e-6)


# --- bounds, batches, types -----------------------------------------------------------------------


def grow(t, y, args, *, history):
    return 0.5 + 0 * history[0]


BOUNDED = [Lag(lambda t, y, args: y, low=0.5, high=1.5)]


@pytest.mark.parametrize("options", [{}, {"steps": 3}])
def test_lag_that_leaves_its_bounds_ends_the_solve(options):
    """y = 1 + t/2 exceeds 1.5 at t = 1."""
    save = diffrax.SaveAt(ts=[0.5, 1.9])
    sol = lagrax.solve(grow, 0.0, 2.0, 1.0, delays=BOUNDED, throw=False, saveat=save, **options)
    assert sol.result == RESULTS.lag_out_of_bounds
    assert 0.9 < sol.failed_at < 1.6
    np.testing.assert_allclose(sol.ys, [1.25, np.nan], rtol=1e-5)
    with pytest.raises(lagrax.SolveError, match=r"above high=1.5.* t = 1\."):
        lagrax.solve(grow, 0.0, 2.0, 1.0, delays=BOUNDED, **options)


@pytest.mark.parametrize(
    ("tau", "message"),
    [
        (lambda t, y, args: 0.3 + 0 * y, "returned 0.3, which is 0.2 below low=0.5"),
        (lambda t, y, args: 0 * y + jnp.nan, "returned NaN"),
    ],
)
def test_lag_out_of_bounds_at_the_start(tau, message):
    with pytest.raises(lagrax.SolveError, match=message):
        lagrax.solve(grow, 0.0, 2.0, 1.0, delays=[Lag(tau, low=0.5)])


def test_batch_matches_single_solves_in_float32():
    solve = lambda y0: (
        lagrax.solve(
            lambda t, y, args, *, history: -history[0] * y,
            0.0,
            3.0,
            y0,
            delays=[Lag(lambda t, y, args: 0.5 + 0.2 * y**2, low=0.5)],
            saveat=diffrax.SaveAt(ts=[1.0, 2.0, 3.0]),
            max_steps=256,
        ).ys
    )
    starts = jnp.array([0.5, 1.0, 1.5])
    batch = jax.jit(jax.vmap(solve))(starts)
    assert batch.dtype == jnp.float32
    single = jax.jit(solve)
    np.testing.assert_allclose(batch, [single(y) for y in starts], rtol=1e-4)
