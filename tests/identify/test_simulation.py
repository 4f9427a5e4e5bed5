"""The equation over one window of a series."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measurements import population_series, solve_series

from lagrax import Hold, Lag, Learn
from lagrax.identify._fields import Equation, Polynomial
from lagrax.identify._series import read_series
from lagrax.identify._simulation import SolveSetup, solve_window, stack_windows
from lagrax.identify._windows import Window


@pytest.mark.parametrize("kind", [Hold, pytest.param(Lag, marks=pytest.mark.slow)])
def test_the_gradient_of_a_period_matches_finite_differences(kind, x64):
    """Against finite differences, from a period at which no sample meets a knot."""
    learn = Learn(0.93)
    ts, ys = population_series(span=6)
    (trajectory,) = read_series(ts, ys)
    rows = stack_windows([trajectory], [Window(0, 20, 35), Window(0, 35, 50)], [kind(0.93)])
    field = Polynomial(jnp.array([[2.2], [-2.3]]), ((True,), (True,)), ((1, 0), (1, 1)))
    setting = SolveSetup([kind(learn)], (0.93,), 4, 3, diffrax.Bosh3(), False, np.ones(1))

    @jax.jit
    def loss(shift):
        equation = Equation(field, shift[None])
        states = jax.vmap(lambda row: solve_window(equation, setting, row))(rows)
        return jnp.mean((states - rows.ys) ** 2)

    for shift in (-0.31, 0.117):
        gradient = jax.grad(loss)(jnp.asarray(shift))
        difference = (loss(jnp.asarray(shift + 1e-6)) - loss(jnp.asarray(shift - 1e-6))) / 2e-6
        assert float(gradient) == pytest.approx(float(difference), rel=1e-4)
        assert abs(float(gradient)) > 1e-3


def test_the_last_given_instant_is_held_to_the_end(x64):
    """Also in windows long after it."""
    times = np.array([0.0, 1.0, 2.0, 3.0])
    ts = np.arange(0, 12, 0.1)
    decay = lambda t, x, args, *, history: 0.5 * history[0] - 0.3 * x
    ys = solve_series(decay, ts, 1.0, [Hold(times=times)])
    (trajectory,) = read_series(ts, ys)
    rows = stack_windows([trajectory], [Window(0, 80, 100)], [Hold(times=times)])
    field = Polynomial(jnp.array([[-0.3], [0.5]]), ((True,), (True,)), ((1, 0), (0, 1)))
    setting = SolveSetup([Hold(times=times)], (), None, 4, diffrax.Tsit5(), False, np.ones(1))
    row = jax.tree.map(lambda x: jnp.asarray(x[0]), rows)
    found = solve_window(Equation(field, jnp.zeros(0)), setting, row)
    np.testing.assert_allclose(found[:, 0], ys[80:101], rtol=1e-5)
