"""Networks with a lag for each link: equal steps through equal intervals, compared with NumPy."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax

SPAN = 6.0


def make_network(count):
    """Weights, lags between 1 and 3, frequencies and first phases."""
    generator = np.random.default_rng(0)
    weights = generator.uniform(0.0, 2.0, (count, count)) / count
    omega, start = generator.normal(1.5, 0.3, count), generator.uniform(0.0, 6.0, count)
    return weights, generator.uniform(1.0, 3.0, (count, count)), omega, start


def oscillators(t, theta, args, *, history):
    weights, omega = args
    return omega + jnp.sum(weights * jnp.sin(history[0] - theta[:, None]), axis=1)


def solve_by_numpy(weights, taus, omega, start, h=0.01):
    """The phases at the end, by Runge-Kutta of order 4 and Hermite's cubics."""
    rows, columns = round(SPAN / h) + 2, np.arange(len(start))
    ys, slopes = np.zeros((rows, len(start))), np.zeros((rows, len(start)))
    ys[0] = start

    def slope(t, theta):
        times = t - taus
        row = np.clip(np.floor(times / h).astype(int), 0, rows - 2)
        s = times / h - row
        y0, y1, f0, f1 = (x[row + k, columns] for x in (ys, slopes) for k in (0, 1))
        change = s**2 * (3 - 2 * s) * (y1 - y0)
        past = y0 + change + h * s * (1 - s) * ((1 - s) * f0 - s * f1)
        past = np.where(times < 0, start + omega * times, past)
        return omega + np.sum(weights * np.sin(past - theta[:, None]), axis=1)

    for k in range(rows - 2):
        t, y = k * h, ys[k]
        k1 = slopes[k] = slope(t, y)
        k2 = slope(t + h / 2, y + h / 2 * k1)
        k3 = slope(t + h / 2, y + h / 2 * k2)
        k4 = slope(t + h, y + h * k3)
        ys[k + 1] = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        slopes[k + 1] = slope(t + h, ys[k + 1])
    return ys[rows - 2]


def solve(count, scale=1.0, steps=8, solver=None, **how):
    weights, taus, omega, start = make_network(count)
    return lagrax.solve(
        oscillators,
        0.0,
        SPAN,
        lambda t: start + omega * t,
        (weights, omega),
        delays=[lagrax.LagMatrix(taus * scale)],
        solver=solver or diffrax.Bosh3(),
        steps=steps,
        **how,
    )


@pytest.mark.parametrize(
    "solver", [diffrax.Heun(), diffrax.Tsit5()], ids=lambda s: type(s).__name__
)
def test_a_network_with_many_lags_agrees_with_numpy(solver, x64):
    """More lags than breakpoints are kept for, so that all intervals are equal."""
    sol = solve(33, solver=solver)
    np.testing.assert_allclose(np.diff(sol.knots.ts), sol.knots.ts[1], rtol=1e-12)
    # No kink is followed, so the order is two.
    np.testing.assert_allclose(sol.ys[-1], solve_by_numpy(*make_network(33)), atol=1e-3)
    finer = solve(33, solver=solver, steps=32)
    np.testing.assert_allclose(finer.ys[-1], solve_by_numpy(*make_network(33)), atol=6e-5)


@pytest.mark.parametrize(
    "gradient", [lagrax.Checkpointed(), lagrax.Direct()], ids=["back", "direct"]
)
def test_gradient_with_respect_to_the_scale_of_all_lags(gradient, x64):
    """With traced lags the intervals divide the span evenly."""

    @jax.jit
    def mean(scale):
        return jnp.mean(solve(11, scale, gradient=gradient, intervals=8).ys[-1])

    weights, taus, omega, start = make_network(11)
    change = 1e-3
    by_numpy = [
        np.mean(solve_by_numpy(weights, taus * (1 + sign * change), omega, start))
        for sign in (-1, 1)
    ]
    quotient = (by_numpy[1] - by_numpy[0]) / (2 * change)
    np.testing.assert_allclose(jax.grad(mean)(1.0), quotient, rtol=2e-3)
