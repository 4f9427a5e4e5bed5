"""Series are interpolated without crossing kinks, and equations look back from them."""

import numpy as np
import pytest

from lagrax import Hold, Lag
from lagrax.identify._lookback import find_earliest
from lagrax.identify._series import interpolate, read_series


def test_interpolation_keeps_to_one_side_of_a_kink():
    ts = np.linspace(0, 2, 11)
    (trajectory,) = read_series(ts, np.abs(ts - 1) + ts**2)
    times = np.array([0.05, 0.93, 0.999, 1.001, 1.5])
    found = interpolate(trajectory, times, np.array([1.0]))[:, 0]
    np.testing.assert_allclose(found, np.abs(times - 1) + times**2, rtol=1e-12)


def test_an_equation_looks_back_less_far_from_a_knot():
    assert find_earliest([], 0.3) == 0.3
    assert find_earliest([Lag(0.5)], 2.0) == 1.5
    assert find_earliest([Hold(0.1)], 3 * 0.1) == pytest.approx(0.3)
    assert find_earliest([Hold(1.0), Lag(0.1)], 2.9) == 2.0
    assert find_earliest([Hold(1.0, lag=1)], 2.0) == 1.0
    assert find_earliest([Hold(times=[0.0, 1.0])], 2.0) == -np.inf
