"""States that are not measured."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lagrax import Identifier


class Oscillator(eqx.Module):
    """x′ = v and v′ = −stiffness x − damping v."""

    stiffness: jax.Array
    damping: jax.Array

    def __call__(self, t, y, args, *, history):
        x, v = y
        return jnp.stack([v, -self.stiffness * x - self.damping * v])


TS = 0.2 * np.arange(150)
RATE, DAMPING = 2.0, 0.1


def solve_exactly(ts):
    """The solution with stiffness 4 and damping 0.2 from (1, 0)."""
    w = np.sqrt(RATE**2 - DAMPING**2)
    x = np.exp(-DAMPING * ts) * (np.cos(w * ts) + DAMPING / w * np.sin(w * ts))
    v = -np.exp(-DAMPING * ts) * RATE**2 / w * np.sin(w * ts)
    return x, v


def make_guess():
    return Oscillator(jnp.array(3.0), jnp.array(0.0))


@pytest.fixture(scope="module")
def oscillator():
    """Learned from positions alone."""
    with jax.enable_x64(True):
        x, _ = solve_exactly(TS)
        x = x + 0.002 * np.random.default_rng(0).standard_normal(len(TS))
        model = Identifier(field=make_guess(), hidden=1, window=12, progress=False).fit(TS, x)
        yield model, x


def test_parameters_are_found_without_the_speed(oscillator):
    model, _ = oscillator
    assert float(model.equation_.stiffness) == pytest.approx(4.0, rel=0.005)
    assert float(model.equation_.damping) == pytest.approx(0.2, abs=0.01)
    errors = model.standard_errors().field
    assert abs(float(model.equation_.stiffness) - 4) < 4 * float(errors.stiffness) < 0.1
    assert model.n_features_in_ == 1
    assert model.error_.shape == (1,)


def test_the_speed_is_estimated_from_earlier_samples(oscillator):
    model, x = oscillator
    _, v = solve_exactly(TS)
    assert np.sqrt(np.mean((model.hidden_[0][:, 0] - v) ** 2)) < 0.01
    changed = x.copy()
    changed[100:] = 0.0
    late = model.predict(TS, changed, horizon=5)
    early = model.predict(TS, x, horizon=5)
    np.testing.assert_allclose(late[:100], early[:100], atol=1e-6)


@pytest.mark.slow
def test_predictions_and_forecasts_are_of_the_measured_state(oscillator):
    model, x = oscillator
    predicted = model.predict(TS, x, horizon=10)
    assert predicted.shape == x.shape
    assert model.score(TS, x, horizon=10) > 0.999
    later = TS[-1] + 0.2 * np.arange(1, 16)
    forecast = model.forecast(later)
    np.testing.assert_allclose(forecast.mean, solve_exactly(later)[0], atol=0.003)
    assert np.all(forecast.low < forecast.high)
    whole = model.simulate(np.linspace(0, 2, 5), [1.0, 0.0])
    np.testing.assert_allclose(whole, np.stack(solve_exactly(np.linspace(0, 2, 5)), 1), atol=0.01)


@pytest.mark.slow
def test_a_saved_model_keeps_its_estimates(oscillator, tmp_path):
    model, _ = oscillator
    model.save(tmp_path / "model")
    loaded = Identifier.load(tmp_path / "model", field=make_guess())
    np.testing.assert_array_equal(loaded.hidden_[0], model.hidden_[0])
    later = TS[-1] + 0.2 * np.arange(1, 4)
    np.testing.assert_allclose(loaded.forecast(later).mean, model.forecast(later).mean, rtol=1e-5)
