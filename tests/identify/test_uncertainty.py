"""Standard errors, profile intervals, fitted starts and Huber's loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from lagrax import Identifier


class Decay(eqx.Module):
    """x′ = level − rate x."""

    rate: jax.Array
    level: jax.Array

    def __call__(self, t, x, args, *, history):
        return self.level - self.rate * x


class Drift(eqx.Module):
    slopes: jax.Array

    def __call__(self, t, x, args, *, history):
        return self.slopes


def make_decays(samples=80, noise=0.1, seed=0, starts=(5.0, -2.0, 8.0, 0.0)):
    """Four solutions of x′ = 0.6 − 0.3 x."""
    rng = np.random.default_rng(seed)
    ts = 0.25 * np.arange(samples)
    return ts, [
        2 + (start - 2) * np.exp(-0.3 * ts) + noise * rng.standard_normal(samples)
        for start in starts
    ]


def fit_decay(ts, ys, **options):
    start = Decay(jnp.array(0.5), jnp.array(0.5))
    options = {"iterations": 50, "progress": False, "window": 10, "fit_starts": True} | options
    return Identifier(field=start, **options).fit(ts, ys)


@pytest.mark.usefixtures("x64")
def test_standard_errors_and_intervals_of_a_line_are_those_of_regression():
    """Each series has its own intercept and all have one slope, so both are known exactly."""
    rng = np.random.default_rng(0)
    ts = np.arange(20.0)
    ys = [[k, 0] + ts[:, None] * [0.5, -1.0] + 0.3 * rng.standard_normal((20, 2)) for k in range(6)]
    model = Identifier(
        field=Drift(jnp.zeros(2)), fit_starts=True, window=19, iterations=20, progress=False
    ).fit(ts, ys)
    learned = [y for y, first in zip(ys, model.held_out_from_, strict=True) if first]
    x = ts - ts.mean()
    slopes = [y.T @ x / (x @ x) for y in learned]
    expected = np.mean(slopes, axis=0)
    np.testing.assert_allclose(model.equation_.slopes, expected, rtol=1e-5)
    # Both states share one variance, in units of their deviations.
    scale = np.concatenate(ys).std(axis=0)
    rest = [(y - y.mean(axis=0) - np.outer(x, expected)) / scale for y in learned]
    degrees = 2 * len(learned) * 19 - 2
    variance = np.sum(np.square(rest)) / degrees
    errors = scale * np.sqrt(variance / (len(learned) * (x @ x)))
    np.testing.assert_allclose(model.standard_errors().field.slopes, errors, rtol=1e-4)
    profile = model.profile(lambda field: field.slopes[1])
    ends = expected[1] + 1.96 * errors[1] * np.array([-1, 1])
    np.testing.assert_allclose([profile.low, profile.high], ends, atol=0.03 * errors[1])
    narrow = model.profile(lambda field: field.slopes[1], level=0.5)
    assert narrow.high - narrow.estimate == pytest.approx(0.6745 * errors[1], rel=0.03)
    with pytest.raises(ValueError, match="shape \\(2,\\); expected one number"):
        model.profile(lambda field: field.slopes)


@pytest.mark.usefixtures("x64")
def test_a_profile_interval_is_not_symmetric():
    """SciPy's minimum over the other parameter and the starts rises by 3.84 at its ends."""
    ts, ys = make_decays(16, 1.0, 1)
    model = fit_decay(ts, ys, window=15)
    learned = [y for y, first in zip(ys, model.held_out_from_, strict=True) if first]
    profile = model.profile(lambda field: field.rate)

    def sum_squares(rate):
        """The solution is linear in the level and the starts."""
        decay = np.exp(-rate * ts)
        columns = np.kron(np.eye(len(learned)), decay[:, None])
        risen = np.tile((1 - decay) / rate, len(learned))[:, None]
        matrix, right = np.hstack([risen, columns]), np.concatenate(learned)
        return np.sum((right - matrix @ np.linalg.lstsq(matrix, right)[0]) ** 2)

    found = minimize_scalar(sum_squares, bounds=(0.01, 2.0), method="bounded")
    assert profile.estimate == pytest.approx(found.x, rel=1e-3)
    variance = found.fun / (len(learned) * 15 - 2)
    rise = lambda rate: (sum_squares(rate) - found.fun) / variance - 3.8415
    assert profile.low == pytest.approx(brentq(rise, 1e-3, found.x), abs=0.005)
    assert profile.high == pytest.approx(brentq(rise, found.x, 5.0), abs=0.005)
    assert profile.high - profile.estimate > 1.05 * (profile.estimate - profile.low)
    assert np.all(np.diff(profile.values) > 0)
    assert profile.rises.min() >= -1e-6


def test_outages_do_not_spoil_a_robust_fit():
    ts, ys = make_decays(noise=0.05)
    for y in ys:
        y[20:26], y[50:53] = 0.0, 12.0
    model = fit_decay(ts, ys, loss="huber")
    assert float(model.equation_.rate) == pytest.approx(0.3, abs=0.02)
    assert float(model.equation_.level) == pytest.approx(0.6, abs=0.04)


@pytest.mark.slow
def test_standard_errors_are_the_scatter_of_estimates():
    """With overlapping windows, and without bias."""
    found, errors = [], []
    for seed in range(25):
        model = fit_decay(*make_decays(seed=seed))
        found.append([float(model.equation_.rate), float(model.equation_.level)])
        expected = model.standard_errors().field
        errors.append([float(expected.rate), float(expected.level)])
    scatter = np.std(found, axis=0, ddof=1)
    np.testing.assert_allclose(np.mean(errors, axis=0), scatter, rtol=0.35)
    np.testing.assert_allclose(np.mean(found, axis=0), [0.3, 0.6], atol=0.003)
