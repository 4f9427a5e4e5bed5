"""Windows start from known states, and few of them are at rest."""

import numpy as np
import pytest

from lagrax import Hold, Lag
from lagrax.identify._regression import (
    Library,
    build_normal_equations,
    list_monomials,
    select_terms,
)
from lagrax.identify._series import read_series
from lagrax.identify._windows import (
    LEAST_AT_REST,
    MOST_WINDOWS,
    Window,
    cut_windows,
    default_window,
    split_windows,
)


def test_windows_without_a_past_are_left_out():
    ts = np.arange(0, 10, 0.1)
    trajectories = read_series(ts, ts)
    assert cut_windows(trajectories, 10, 0.0)[0] == Window(0, 0, 10)
    assert cut_windows(trajectories, 10, 2.0)[0] == Window(0, 20, 30)
    assert cut_windows(trajectories, 10, 9.0)[0] == Window(0, 0, 10)  # too few would be left


@pytest.mark.parametrize(
    ("delays", "first"), [([], 0), ([Hold(5.0)], 0), ([Hold(5.0, lag=1)], 5), ([Lag(5.0)], 5)]
)
def test_the_first_window_starts_where_its_past_is_known(delays, first):
    ts = np.arange(200.0)
    learning, *_ = split_windows(read_series(ts, np.sin(ts / 9)), 4, delays, 0.2)
    assert learning[0].first == first


def steady_growth(samples, noise=0.01, seed=0):
    """x' = x (1 - x) from 0.05: at rest within ten units of time."""
    ts = 0.1 * np.arange(samples)
    rng = np.random.default_rng(seed)
    return ts, 1 / (1 + 19 * np.exp(-ts)) + noise * rng.standard_normal(samples)


def test_most_windows_at_rest_are_left_out():
    trajectories = read_series(*steady_growth(20_000))
    learning, testing, _ = split_windows(trajectories, 16, [], 0.2)
    moving = sum(w.first < 64 for w in learning)
    assert moving == 16  # all of them
    assert moving + LEAST_AT_REST <= len(learning) < 300
    assert learning[-1].last > 0.7 * 20_000
    assert len(testing) > 200
    wave = read_series(0.1 * np.arange(20_000), np.sin(0.1 * np.arange(20_000)))
    assert MOST_WINDOWS / 2 < len(split_windows(wave, 16, [], 0.2)[0]) <= MOST_WINDOWS


@pytest.mark.parametrize("samples", [150, 1000, 10_000])
def test_a_long_rest_does_not_hide_a_transient(samples):
    trajectories = read_series(*steady_growth(samples))
    learning, *_ = split_windows(trajectories, default_window(trajectories, []), [], 0.2)
    library = Library(list_monomials(1, 2), np.zeros(1), np.ones(1))
    normal = build_normal_equations(trajectories, learning, [], library)
    assert library.powers[select_terms(normal)].tolist() == [[1], [2]]
