"""Integrals of terms are exact, and held-out errors are those of separate fits."""

import numpy as np
import pytest

from lagrax import Hold
from lagrax.identify._regression import (
    Library,
    assign_folds,
    build_normal_equations,
    cross_validate,
    integrate_terms,
    list_monomials,
)
from lagrax.identify._series import read_series
from lagrax.identify._windows import cut_windows


def test_integrals_of_terms_are_exact_for_parabolas():
    """Integrals of 1, x, z and x z over each gap, for x = 1 + t held at whole times."""
    ts = np.linspace(0, 3, 13)
    (trajectory,) = read_series(ts, 1 + ts)
    library = Library(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), np.zeros(2), np.ones(2))
    found = integrate_terms(trajectory, [Hold(1.0)], library).terms
    gap, middle = np.diff(ts), (ts[1:] + ts[:-1]) / 2
    held = 1 + np.floor(middle)
    expected = np.stack([gap, gap * (1 + middle), gap * held, gap * (1 + middle) * held], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_knot_between_samples_divides_their_gap():
    ts = np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0])
    (trajectory,) = read_series(ts, 2 + ts)
    library = Library(np.array([[0, 1]]), np.zeros(2), np.ones(2))
    found = integrate_terms(trajectory, [Hold(1.0)], library).terms[:, 0]
    np.testing.assert_allclose(found, [0.8, 0.8, 0.2 * 2 + 0.2 * 3, 1.2, 1.2], rtol=1e-12)


def test_held_out_errors_are_those_of_a_fit_to_the_other_windows():
    rng = np.random.default_rng(0)
    ts = np.arange(0, 12, 0.1)
    (trajectory,) = read_series(ts, np.sin(ts) + 0.1 * rng.standard_normal(120))
    windows = cut_windows([trajectory], 10, 0.0)
    library = Library(list_monomials(1, 1), np.zeros(1), np.ones(1))
    normal = build_normal_equations([trajectory], windows, [], library)
    errors = cross_validate(normal)
    columns = np.cumsum(integrate_terms(trajectory, [], library).terms, axis=0)
    columns = np.concatenate([np.zeros((1, 2)), columns])

    def centred(window):
        here = slice(window.first, window.last + 1)
        x, y = columns[here], trajectory.ys[here]
        return x - x.mean(axis=0), y - y.mean(axis=0)

    folds = np.arange(len(windows)) * 5 // len(windows)
    unit = np.mean([np.sum(centred(w)[1] ** 2) for w in windows])
    for i in (0, 4, len(windows) - 1):
        others = [centred(w) for w, f in zip(windows, folds, strict=True) if f != folds[i]]
        x, y = (np.concatenate(part) for part in zip(*others, strict=True))
        c = np.linalg.lstsq(x, y, rcond=None)[0]
        x, y = centred(windows[i])
        assert errors[i] == pytest.approx(np.sum((y - x @ c) ** 2) / unit, rel=1e-5)


def test_many_windows_go_to_the_folds_in_turn():
    np.testing.assert_array_equal(assign_folds(39), np.arange(39) * 5 // 39)
    np.testing.assert_array_equal(assign_folds(40), np.arange(40) // 4 % 5)
    # Each has its share of a transient, be the rest as long as it will.
    assert set(assign_folds(2000)[:25]) == set(range(5))
