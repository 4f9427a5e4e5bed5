"""`Identifier`: trajectories, networks, predictions, forecasts and scikit-learn's conventions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measurements import population_series, read_coefficients
from helpers.sample_files import model as sample_model, write

from lagrax import Hold, Identifier, IdentifyError
from lagrax._cli.long_run import learned_map
from lagrax.identify._simulation import solve_from

QUICK = {"iterations": 100, "progress": False, "width": 8}


# --- trajectories ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_trajectories_of_different_lengths():
    runs = [population_series(span=span, x0=x0) for span, x0 in ((3, 0.3), (4, 0.7), (6, 1.2))]
    ts, ys = [list(part) for part in zip(*runs, strict=True)]
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    assert read_coefficients(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)
    assert [p.shape for p in model.predict(ts, ys)] == [(31,), (41,), (61,)]
    assert model.score(ts, ys) > 0.9999


@pytest.mark.slow
def test_one_row_of_times_serves_all_trajectories():
    ts, first = population_series(span=4, x0=0.3)
    _, second = population_series(span=4, x0=0.9)
    model = Identifier([Hold(1.0)], "library").fit(ts, [first, second])
    assert read_coefficients(model) == pytest.approx({(1, 0): 2.6, (1, 1): -2.6}, rel=1e-3)


def test_the_end_of_each_trajectory_is_held_out(library):
    assert library.held_out_from_ == [161]  # of 201 samples
    assert library.predicted_from_ == [11]  # a period and a sample from the start


def test_the_last_of_many_short_trajectories_are_held_out_whole():
    runs = [population_series(span=2, x0=x0) for x0 in np.linspace(0.3, 1.2, 7)]
    ts, ys = [list(part) for part in zip(*runs, strict=True)]
    model = Identifier([Hold(1.0)], "library", window=20).fit(ts, ys)
    assert model.held_out_from_ == [*[21] * 6, 0]


# --- networks and fields of the user --------------------------------------------------------------


class Growth(eqx.Module):
    a: jax.Array

    def __call__(self, t, y, args, *, history):
        return self.a * y * (1 - history[0])


def test_a_network_learns(network):
    ts, ys = population_series()
    assert network.score(ts, ys) > 0.8
    assert network.score(ts, ys, metric="nrmse") == pytest.approx(
        np.sqrt(1 - network.score(ts, ys)), rel=1e-6
    )
    assert network.losses_["held_out"].values.shape == (2, 2)
    assert network.equations() == ["x′ = f(x, x(⌊t⌋))"]


@pytest.mark.slow
def test_a_field_of_the_user_is_trained_and_saved(tmp_path):
    model = Identifier([Hold(1.0)], Growth(jnp.array(1.5)), **QUICK).fit(*population_series())
    assert float(model.equation_.a) == pytest.approx(2.6, rel=1e-4)
    model.save(tmp_path)
    with pytest.raises(IdentifyError, match="give it again"):
        Identifier.load(tmp_path)
    loaded = Identifier.load(tmp_path, field=Growth(jnp.array(0.0)))
    assert float(loaded.equation_.a) == float(model.equation_.a)


def test_the_same_seed_gives_the_same_model(network):
    again = Identifier([Hold(1.0)], ensemble=2, **QUICK).fit(*population_series(noise=0.01))
    other = Identifier([Hold(1.0)], ensemble=2, seed=5, **QUICK).fit(*population_series(noise=0.01))
    later = np.array([20.5, 21.0])
    np.testing.assert_array_equal(network.forecast(later).mean, again.forecast(later).mean)
    assert not np.allclose(network.forecast(later).mean, other.forecast(later).mean)


@pytest.mark.slow
def test_training_stops_early():
    model = Identifier([Hold(1.0)], patience=50, learning_rate=0.2, **QUICK | {"iterations": 2000})
    model.fit(*population_series(noise=0.3))
    values = model.losses_["held_out"].values[:, 0]
    assert len(model.losses_["loss"].values) < 2000
    blocks = 5  # of 12 iterations, to be patient for 50
    assert np.argmin(values) == len(values) - 1 - blocks


# --- simulations, predictions, forecasts ----------------------------------------------------------


def test_simulate_follows_the_closed_form(library):
    ts, expected = population_series(span=8, x0=0.7)
    np.testing.assert_allclose(library.simulate(ts, 0.7), expected, rtol=2e-3)


def test_simulations_from_other_initial_values_share_a_program(network, monkeypatch):
    traced = []
    count = lambda *a: traced.append(a) or solve_from(*a)
    monkeypatch.setattr("lagrax.identify._simulation.solve_from", count)
    ts = np.linspace(0, 3.3, 12)
    first, second = network.simulate(ts, 0.4), network.simulate(ts, 0.7)
    assert len(traced) == 1
    np.testing.assert_allclose(first[0], 0.4, rtol=1e-6)
    np.testing.assert_allclose(second[0], 0.7, rtol=1e-6)
    np.testing.assert_allclose(network.simulate(ts[:7], 0.7), second[:7], rtol=1e-4)


def test_a_past_may_close_over_values_that_change(network):
    level = 0.4
    past = lambda t: level
    first = network.simulate([0.0, 0.5], past)
    level = 0.7
    np.testing.assert_allclose(network.simulate([0.0, 0.5], past)[0], 0.7, rtol=1e-6)
    np.testing.assert_allclose(first, network.simulate([0.0, 0.5], 0.4), rtol=1e-6)


def test_answers_are_shaped_like_the_series(network):
    ts, ys = population_series(span=3.0)
    assert network.simulate(ts, 0.4).shape == network.simulate(ts, lambda t: 0.4).shape == (31,)
    assert network.simulate(ts, [0.4]).shape == (31, 1)
    assert network.simulate(ts, lambda t: jnp.array([0.4])).shape == (31, 1)
    assert network.predict(ts, ys).shape == (31,)
    assert network.predict(ts, ys[:, None]).shape == (31, 1)
    assert [p.shape for p in network.predict([ts, ts], [ys, ys[:, None]])] == [(31,), (31, 1)]
    assert network.score(ts, ys) == network.score(ts, ys[:, None])
    assert {part.shape for part in network.forecast([20.5, 21.0])} == {(2,)}


def test_predictions_restart_every_horizon(tmp_path):
    """An equation that is zero predicts the measurement at each restart."""
    hold, zero = [{"kind": "Hold", "tau": 1.0, "lag": 0}], np.zeros((1, 1, 1), np.float32)
    files = sample_model(
        {"delays": hold},
        {"['members'].field.coefficients": zero},
        terms={"powers": [[0, 0]], "used": [[True]]},
    )
    model = Identifier.load(write(tmp_path, files))
    ts, ys = population_series()
    first = 10  # the past is known from there on
    starts = first + (np.arange(len(ts)) - first - 1) // 7 * 7
    expected = np.where(np.arange(len(ts)) > first, ys[np.maximum(starts, 0)], ys)
    np.testing.assert_allclose(model.predict(ts, ys, horizon=7), expected, rtol=1e-6)


@pytest.mark.slow
def test_predictions_do_not_depend_on_later_samples():
    """With knots between samples, where the past has to be extrapolated."""
    ts, ys = population_series()
    model = Identifier([Hold(1.003)], "library").fit(ts, ys)
    before = model.predict(ts, ys, horizon=10)
    first = model.predicted_from_[0] - 1
    start = first + 10 * ((140 - first) // 10)
    changed = ys.copy()
    changed[start + 1 :] += 1.0
    after = model.predict(ts, changed, horizon=10)
    np.testing.assert_array_equal(before[: start + 11], after[: start + 11])
    assert not np.allclose(before[start + 11 :], after[start + 11 :])


def test_a_diverging_prediction_has_the_worst_score(library):
    ts, ys = population_series()
    assert library.score(ts, -5 * ys) == -np.inf
    assert library.score(ts, -5 * ys, metric="nrmse") == np.inf


def test_a_constant_state_has_no_score(library):
    ts, _ = population_series()
    for metric in ("r2", "nrmse"):
        assert np.isnan(library.score(ts, np.ones_like(ts), metric=metric))


@pytest.mark.parametrize("missing", [pytest.param(0, marks=pytest.mark.slow), 12])
def test_forecasts_start_from_the_last_known_states(missing):
    ts, ys = population_series(span=24.6)
    later, truth = ts[-6:], ys[-6:].copy()
    ts, ys = ts[:-6], ys[:-6]
    if missing:
        ys[-missing:] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    found = model.forecast(later)
    np.testing.assert_allclose(found.mean, truth, rtol=1e-3)
    assert np.all(found.high > found.low)


def test_forecasts_over_missing_values_use_the_inputs():
    """x' = u - x, driven until the end of the series and on."""
    ts = np.arange(0, 30.05, 0.1)
    us = np.sin(np.floor(ts))
    xs = [0.0]
    for u in us[:-1]:
        xs.append(u + (xs[-1] - u) * np.exp(-0.1))
    ys = np.array(xs)
    ys[250:280] = np.nan
    model = Identifier((), "library").fit(ts[:280], ys[:280], us[:280])
    found = model.forecast(ts[280:], us[279:])
    np.testing.assert_allclose(found.mean, ys[280:], atol=1e-3)
    with pytest.raises(ValueError, match="one row for the end of the series and one for each time"):
        model.forecast(ts[280:], us[280:])


def test_the_long_run_starts_from_the_last_known_states():
    ts, ys = population_series(span=24.0)
    ys[-12:] = np.nan
    model = Identifier([Hold(1.0)], "library").fit(ts, ys)
    np.testing.assert_allclose(learned_map(model).point(), ys[-13], rtol=1e-6)


@pytest.mark.slow
def test_the_band_covers_noisy_measurements():
    """Most of the noise around the right equation lies within two standard deviations."""
    ts, noisy = population_series(noise=0.05)
    model = Identifier([Hold(1.0)], "library", ensemble=4).fit(ts[:161], noisy[:161])
    forecast = model.forecast(ts[161:])
    inside = (forecast.low < noisy[161:]) & (noisy[161:] < forecast.high)
    assert inside.mean() > 0.75
    assert np.all(forecast.high - forecast.low < 2.0)


# --- conventions ----------------------------------------------------------------------------------


def test_changed_arguments_take_effect_in_the_next_fit(network):
    later = np.array([20.5])
    before = network.forecast(later)
    ensemble = network.ensemble
    network.set_params(ensemble=5, delays=[Hold(0.5)])
    after = network.forecast(later)
    network.set_params(ensemble=ensemble, delays=[Hold(1.0)])
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.low, after.low)


def test_arguments_are_stored_unchanged():
    delays = (Hold(1.0),)
    model = Identifier(delays, "library", seed=3)
    assert model.get_params()["delays"] is delays
    copy = Identifier(**model.get_params())
    assert copy.get_params() == model.get_params()
    assert copy.set_params(seed=4) is copy
    assert (copy.seed, model.seed) == (4, 3)
    assert repr(model) == "Identifier([Hold(1.0)], field='library', seed=3)"
    with pytest.raises(ValueError, match="no argument 'sead'"):
        model.set_params(sead=1)


def test_bad_questions_are_refused(network):
    ts, ys = population_series()
    with pytest.raises(IdentifyError, match="not been fitted"):
        Identifier().forecast([1.0])
    with pytest.raises(ValueError, match="after the end of the series, 20"):
        network.forecast([19.0])
    with pytest.raises(ValueError, match="horizon=0"):
        network.predict(ts, ys, horizon=0)
    with pytest.raises(ValueError, match="metric='r3'"):
        network.score(ts, ys, metric="r3")
    with pytest.raises(ValueError, match="2 states"):
        network.predict(ts, np.stack([ys, ys], 1))
    with pytest.raises(ValueError, match="1 finite numbers"):
        network.simulate(ts, [0.1, 0.2])
    with pytest.raises(ValueError, match="increasing times"):
        network.simulate([1.0, 0.5], 0.4)
    with pytest.raises(ValueError, match="inputs of shape"):
        network.simulate(ts, 0.4, inputs=ts)
