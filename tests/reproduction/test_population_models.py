"""The data, models and recipes of the population experiment."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import solve_ivp

from reproduction.population_models import (
    MODELS,
    PopulationSettings,
    has_lag,
    make_field,
    make_recipe,
    make_series,
    make_task,
    predict,
    split,
    true_past,
)


def test_data_follow_the_equation():
    """Against the closed form of each interval, one after the other."""
    settings = PopulationSettings(series=7)
    series = np.asarray(make_series(settings, 3.2))
    assert series.shape == (7, 131)
    assert np.all((series[:, 0] >= 0.05) & (series[:, 0] <= 2))
    x = series[:, 0].astype(float)
    for k in range(4):
        for i in range(11):
            expected = x * np.exp(3.2 * (1 - x) * i / 10)
            np.testing.assert_allclose(series[:, 10 * k + i], expected, rtol=1e-3, atol=1e-4)
        x = series[:, 10 * (k + 1)].astype(float)
    training, test = split(settings, jnp.asarray(series))
    assert training.shape == (7, 31)
    assert test.shape == (7, 101)
    np.testing.assert_array_equal(training[:, -1], test[:, 0])


def weights_of(field):
    return [np.asarray(layer.weight, float) for layer in field.layers]


def by_scipy(name, field, x0, span, past=None):
    """The model's series from its formula in the paper, by the method of steps."""
    w_in, w, w_out = weights_of(field)
    network = lambda *z: np.tanh(np.tanh(np.concatenate(z) @ w_in) @ w) @ w_out
    pieces = []
    y = np.array([x0, 0.0]) if name == "ANODE" else np.array([x0])
    past = past or (lambda t: y0)  # constant before zero
    y0 = y
    for k in range(span):
        start, before = y, past
        right = {
            "NODE": lambda t, z: network(z),
            "ANODE": lambda t, z: network(z),
            "NDDE": lambda t, z, before=before: network(z, before(t - 1)),
            "NPCDDE": lambda t, z, start=start: network(z, start),
        }[name]
        piece = solve_ivp(right, (k, k + 1), start, rtol=1e-9, atol=1e-11, dense_output=True)
        pieces.append(piece.sol)
        past, y = piece.sol, piece.y[:, -1]
    ts = np.arange(10 * span + 1) / 10
    return np.array([pieces[min(int(t), span - 1)](t)[0] for t in ts])


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_the_paper(name):
    settings = PopulationSettings(steps=48)
    field = make_field(settings, MODELS[name], jax.random.key(1))
    shapes = [w.shape for w in weights_of(field)]
    inputs, outputs = {"NODE": (1, 1), "ANODE": (2, 2), "NDDE": (2, 1), "NPCDDE": (2, 1)}[name]
    assert shapes == [(inputs, 10), (10, 10), (10, outputs)]
    assert all(layer.bias is None for layer in field.layers)
    # Weights four times as large make a lively field.
    field = jax.tree.map(lambda w: 4 * w, field)
    got = predict(settings, MODELS[name], field, jnp.array([0.3, 1.5]), 3)
    for row, x0 in zip(got, (0.3, 1.5), strict=True):
        np.testing.assert_allclose(row, by_scipy(name, field, x0, 3), rtol=2e-3, atol=2e-3)


def test_recipes():
    """ "paper" is plain Adam, "clipped" has optax's own clipping and cosine."""
    settings = PopulationSettings(iterations=10)
    plain = optax.adam(0.01)
    clipped = optax.chain(
        optax.clip_by_global_norm(0.01), optax.adam(optax.cosine_decay_schedule(0.01, 10), b2=0.95)
    )
    for name, expected in (("paper", plain), ("clipped", clipped)):
        recipe = make_recipe(settings, name)
        parameters = jnp.zeros(2)
        state, other = recipe.init(parameters), expected.init(parameters)
        for i in range(10):
            gradient = jnp.array([3.0, -4.0]) * i
            update, state = recipe.update(gradient, state, parameters)
            wanted, other = expected.update(gradient, other, parameters)
            np.testing.assert_allclose(update, wanted, rtol=1e-5)


def test_coarse_steps_are_seen():
    """A lively field with one step a unit of time has another loss than with finer steps."""
    for steps, alike in ((1, False), (24, True)):
        settings = PopulationSettings(steps=steps, series=5)
        data = split(settings, make_series(settings, 2.0))
        task = make_task(settings, "ANODE")
        field = jax.tree.map(lambda w: 4 * w, task.make(jax.random.key(1)))
        coarse, fine = task.loss(field, data[0]).mean(), task.evaluate(field, data)["finer"]
        assert (abs(coarse / fine - 1) < 0.01) == alike


def test_the_true_past_is_the_solution_before_the_test():
    settings = PopulationSettings(series=3)
    training, _ = split(settings, make_series(settings, 3.2))
    past = true_past(settings, training)
    before = np.array([past(t) for t in np.arange(-10, 1) / 10]).T
    np.testing.assert_allclose(before, training[:, -11:], rtol=1e-4)


def test_a_model_with_a_lag_reads_the_true_past():
    settings = PopulationSettings(steps=48)
    assert [name for name, model in MODELS.items() if has_lag(model)] == ["NDDE"]
    field = jax.tree.map(lambda w: 4 * w, make_field(settings, MODELS["NDDE"], jax.random.key(1)))
    past = lambda t: jnp.array([0.5, 1.2]) * 1.5**t
    got = predict(settings, MODELS["NDDE"], field, past, 3)
    for row, x0 in zip(got, (0.5, 1.2), strict=True):
        known = lambda t, x0=x0: np.array([x0 * 1.5**t])
        expected = by_scipy("NDDE", field, x0, 3, known)
        np.testing.assert_allclose(row, expected, rtol=2e-3, atol=2e-3)
