"""Irregular sampling: integration with error control, and long gaps that hide the state."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measurements import read_coefficients

from lagrax import Identifier, Lag
from lagrax.identify._dataset import prepare_dataset
from lagrax.identify._regression import Library, build_normal_equations, list_monomials, regress
from lagrax.identify._series import find_long_gaps, read_series
from lagrax.identify._speed import MOST_STEPS, count_steps, measure_speed
from lagrax.identify._windows import cut_windows

# When blood was taken in a published study of indomethacin, in hours.
HOURS = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])


def decay(ts, c0, k=1.203):
    """The solution of c' = −k c²."""
    return 1 / (k * (ts - ts[0]) + 1 / c0)


def test_irregular_samples_are_solved_with_error_control():
    starts = [2.05, 1.5, 2.5, 1.8, 2.2, 2.6]
    model = Identifier([], "library").fit([HOURS] * 6, [decay(HOURS, c) for c in starts])
    assert read_coefficients(model) == {(2,): pytest.approx(-1.203, rel=1e-3)}
    np.testing.assert_allclose(model.simulate(HOURS, 2.0), decay(HOURS, 2.0), rtol=1e-3)
    # Twelve hours apart, while the state halves within two minutes at first.
    sparse = np.linspace(0.25, 60, 6)
    np.testing.assert_allclose(model.simulate(sparse, 20.0), decay(sparse, 20.0), rtol=1e-3)
    far = model.predict(HOURS, decay(HOURS, 20.0), horizon=10)
    np.testing.assert_allclose(far, decay(HOURS, 20.0), rtol=1e-3)


def driven_series(long, every=10, samples=120):
    """x' = u − x by its closed form, every tenth gap `long` and the others 0.5."""
    gaps = np.full(samples - 1, 0.5)
    gaps[every - 1 :: every] = long
    us = np.random.default_rng(0).standard_normal(samples)
    xs = np.zeros(samples)
    for i, gap in enumerate(gaps):
        xs[i + 1] = us[i] + (xs[i] - us[i]) * np.exp(-gap)
    return np.concatenate([[0], np.cumsum(gaps)]), xs, us


def find_coefficients(ts, ys, us, delays=()):
    """The coefficients of all linear terms by regression alone."""
    trajectories = read_series(ts, ys, us)
    variables = 2 + len(delays)
    library = Library(list_monomials(variables, 1), np.zeros(variables), np.ones(variables))
    windows = cut_windows(trajectories, 16, 0.0)
    normal = build_normal_equations(trajectories, windows, delays, library)
    terms = [*range(variables + 1)]
    return regress(normal, [terms], terms)[:, 0]


@pytest.mark.parametrize("long", [5.0, 8.0, 15.0])
def test_regression_does_not_integrate_over_long_gaps(long):
    np.testing.assert_allclose(find_coefficients(*driven_series(long)), [0, -1, 1], atol=0.05)


def test_a_stretch_of_missing_values_is_a_long_gap():
    ts, xs, us = driven_series(0.5)
    xs[20:60] = xs[80:100] = np.nan
    np.testing.assert_allclose(find_coefficients(ts, xs, us), [0, -1, 1], atol=0.05)


def test_delays_do_not_read_the_state_within_a_long_gap():
    """x' = u − x(t − 1): the state is known on a fine grid, and its sampling has long gaps."""
    step, rng = 0.01, np.random.default_rng(1)
    levels = np.repeat(rng.standard_normal(120), 50)
    xs = np.zeros(len(levels) + 1)
    for i, u in enumerate(levels):
        past = (xs[max(i - 100, 0)] + xs[max(i - 99, 0)]) / 2
        xs[i + 1] = xs[i] + step * (u - past)
    kept = np.concatenate([np.arange(b, b + 600, 5) for b in range(0, 5400, 1000)])
    ts = step * kept
    found = find_coefficients(ts, xs[kept], levels[kept], [Lag(1.0)])
    np.testing.assert_allclose(found, [0, 0, -1, 1], atol=5e-3)


@pytest.mark.parametrize(
    ("gaps", "long"),
    [
        ([1, 1, 1, 1, 1, 1], []),
        ([1, 1, 12, 1, 1, 1], [2]),
        ([12, 1, 1, 1, 1, 12], [0, 5]),
        (1.7 ** np.arange(12), []),
        ([0.1, 10, 0.1, 10, 0.1, 10], []),
        ([1, 12], [1]),
        ([1], []),
    ],
    ids=["equal", "one", "ends", "geometric", "pairs", "two", "single"],
)
def test_gaps_are_long_beside_those_around(gaps, long):
    ts = np.concatenate([[0], np.cumsum(gaps), [sum(gaps) + 1] if len(gaps) == 1 else []])
    (trajectory,) = read_series(ts, ts + 1)
    assert np.flatnonzero(find_long_gaps(trajectory)).tolist() == long


def test_steps_follow_the_speed_of_the_equation():
    """The Jacobian of x' = −30 x + y, y' = −y / 100 in units of the states, and its steps."""
    ts = np.linspace(0, 1, 21)
    series = read_series(ts, np.stack([np.sin(9 * ts), 1000 * np.cos(7 * ts)], axis=1))
    dataset = prepare_dataset(series, [Lag(0.2)], "mlp", 1)
    field = lambda t, y, args, *, history: jnp.stack(
        [y[1] - 30 * y[0], -y[1] / 100 + history[0][1]]
    )
    jacobian = np.array([[-30, 1], [0, -0.01]]) * dataset.scale / dataset.scale[:, None]
    speed = measure_speed(field, dataset, [Lag(0.2)])
    assert speed == pytest.approx(np.linalg.norm(jacobian, 2), rel=1e-4)
    assert count_steps(30.0, 0.1, 2) == 2
    assert count_steps(30.0, 1.0, 2) == pytest.approx(30 / 0.7, abs=1)
    assert count_steps(1e9, 1.0, 2) == MOST_STEPS
