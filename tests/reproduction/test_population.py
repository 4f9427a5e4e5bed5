"""The population experiment: its data, its models, its claims, and a miniature run of all of it."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import solve_ivp

from lagrax.training import Series, Trained
from reproduction import conduct, population
from reproduction.population import (
    MODELS,
    Recipe,
    Settings,
    exact_series,
    follow,
    make_field,
    split,
)

MINIATURE = Settings(
    iterations=6, seeds=(0, 1), block=3, series=5, lengths=(1, 2), train_time=2, shown=2
)


def test_data_follow_the_equation():
    """Against the closed form of each interval, one after the other."""
    settings = Settings(series=7)
    series = np.asarray(exact_series(settings, 3.2))
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


def by_scipy(name, field, x0, span):
    """The model's series from its formula in the paper, by the method of steps."""
    w_in, w, w_out = weights_of(field)
    network = lambda *z: np.tanh(np.tanh(np.concatenate(z) @ w_in) @ w) @ w_out
    pieces = []
    y = np.array([x0, 0.0]) if name == "ANODE" else np.array([x0])
    past = lambda t: y0  # constant before zero
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
    settings = Settings(steps=48)
    field = make_field(settings, MODELS[name], jax.random.key(1))
    shapes = [w.shape for w in weights_of(field)]
    inputs, outputs = {"NODE": (1, 1), "ANODE": (2, 2), "NDDE": (2, 1), "NPCDDE": (2, 1)}[name]
    assert shapes == [(inputs, 10), (10, 10), (10, outputs)]
    assert all(layer.bias is None for layer in field.layers)
    # Weights four times as large make a lively field.
    field = jax.tree.map(lambda w: 4 * w, field)
    got = follow(settings, MODELS[name], field, jnp.array([0.3, 1.5]), 3)
    for row, x0 in zip(got, (0.3, 1.5), strict=True):
        np.testing.assert_allclose(row, by_scipy(name, field, x0, 3), rtol=2e-3, atol=2e-3)


def test_recipes():
    """ "paper" is plain Adam; "clipped" is optax's own clipping and cosine."""
    settings = Settings(iterations=10)
    plain = optax.adam(0.01)
    clipped = optax.chain(
        optax.clip_by_global_norm(0.01), optax.adam(optax.cosine_decay_schedule(0.01, 10), b2=0.95)
    )
    for name, expected in (("paper", plain), ("clipped", clipped)):
        recipe = population.make_recipe(settings, name)
        assert isinstance(recipe, Recipe)
        parameters = jnp.zeros(2)
        state, other = recipe.init(parameters), expected.init(parameters)
        for i in range(10):
            gradient = jnp.array([3.0, -4.0]) * i
            update, state = recipe.update(gradient, state, parameters)
            wanted, other = expected.update(gradient, other, parameters)
            np.testing.assert_allclose(update, wanted, rtol=1e-5)


def made_up(settings, losses):
    """Runs whose final losses are `losses[recipe, a, model]`, one a seed, in every metric."""
    steps = np.arange(1, settings.iterations + 1)

    def trained(values):
        curve = np.tile(np.asarray(values, float), (settings.iterations, 1))
        series = Series(steps, curve)
        names = ["loss", *(population.test_name(n) for n in settings.lengths)]
        return Trained(None, dict.fromkeys(names, series), 1.0)

    return {key: trained(values) for key, values in losses.items()}


def losses_with(npcdde, others=1.0):
    settings = Settings()
    return {
        (recipe, a, name): [npcdde if name == "NPCDDE" else others] * 5
        for recipe in settings.recipes
        for a in settings.growth
        for name in settings.models
    }


@pytest.mark.parametrize(
    ("npcdde", "holding"),
    [
        (0.05, [True] * 10),
        (0.15, [False] * 5 + [True] * 5),
        (0.5, [False] * 8 + [True] * 2),
        (2.0, [False] * 10),
    ],
)
def test_claims_follow_the_numbers(npcdde, holding):
    settings = Settings()
    claims = population.make_claims(settings, "paper", made_up(settings, losses_with(npcdde)))
    assert [c.holds for c in claims] == holding
    assert "training loss" in claims[0].claim
    assert "over length 10 is below every other" in claims[-1].claim
    assert claims[0].value == pytest.approx(1 / npcdde, rel=1e-3)


def test_the_best_of_the_others_decides():
    settings = Settings()
    losses = losses_with(0.05)
    losses["paper", 2.0, "ANODE"] = [0.1] * 5
    claim = population.make_claims(settings, "paper", made_up(settings, losses))[0]
    assert not claim.holds
    assert "ANODE" in claim.claim


def test_medians_decide():
    settings = Settings()
    losses = losses_with(0.05)
    losses["paper", 2.0, "NPCDDE"] = [0.05, 0.05, 0.05, 9.0, 9.0]
    losses["paper", 2.0, "NODE"] = [np.nan] * 5
    assert population.make_claims(settings, "paper", made_up(settings, losses))[0].holds


def test_a_lost_seed_is_seen():
    settings = Settings()
    losses = losses_with(0.05)
    assert population.make_claims(settings, "clipped", made_up(settings, losses))[-1].holds
    losses["clipped", 3.2, "NDDE"] = [1.0, 1.0, 1.0, 1.0, 11.0]
    assert not population.make_claims(settings, "clipped", made_up(settings, losses))[-1].holds


def test_coarse_steps_are_seen():
    """A lively field with one step a unit of time has another loss than with finer steps."""
    for steps, alike in ((1, False), (24, True)):
        settings = Settings(steps=steps, series=5)
        data = split(settings, exact_series(settings, 2.0))
        task = population.make_task(settings, "ANODE")
        field = jax.tree.map(lambda w: 4 * w, task.make(jax.random.key(1)))
        coarse, fine = task.loss(field, data[0]).mean(), task.evaluate(field, data)["finer"]
        assert (abs(coarse / fine - 1) < 0.01) == alike


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    experiment = dataclasses.replace(population.EXPERIMENT, quick=MINIATURE)
    out = tmp_path_factory.mktemp("runs")
    return experiment, conduct(experiment, out, quick=True, progress=False), out


def test_miniature_run_writes_everything(miniature):
    _, folder, _ = miniature
    assert folder.name == "population-quick"
    result = json.loads((folder / "result.json").read_text())
    names = [
        "maps",
        "losses-paper",
        "trajectories-paper",
        "losses-clipped",
        "trajectories-clipped",
    ]
    assert result["figures"] == names
    for name in names:
        for suffix in ("json", "png", "pdf"):
            assert (folder / "figures" / f"{name}.{suffix}").stat().st_size > 0
    assert len(result["runs"]) == 16
    assert result["settings"]["iterations"] == 6
    assert all((folder / run["name"] / "done.json").exists() for run in result["runs"])
    # Training and lengths 1 and 2, at both growths, with both recipes; no seed fails.
    assert len(result["claims"]) == 2 * 2 * 3 + 1
    assert all(claim["experiment"] == "population" for claim in result["claims"])
    assert len(result["tables"]) == 2
    assert len(result["tables"][0]["rows"]) == 8


def test_miniature_run_again_changes_no_number(miniature):
    experiment, folder, out = miniature
    before = json.loads((folder / "result.json").read_text())
    pictures = {p.name: p.read_bytes() for p in (folder / "figures").iterdir()}
    conduct(experiment, out, quick=True, progress=False)
    after = json.loads((folder / "result.json").read_text())
    assert before["claims"] == after["claims"]
    assert before["tables"] == after["tables"]
    assert {p.name: p.read_bytes() for p in (folder / "figures").iterdir()} == pictures


def test_learned_series_are_those_of_the_median_seed():
    settings = dataclasses.replace(MINIATURE, seeds=(0, 1, 2))
    keys = jax.random.split(jax.random.key(0), 3)
    fields = eqx.filter_vmap(lambda key: make_field(settings, MODELS["NODE"], key))(keys)
    losses = Series(np.arange(1, 7), np.tile([3.0, 1.0, 2.0], (6, 1)))
    true = exact_series(settings, 2.0)[:, :21]
    got = population.median_series(settings, "NODE", Trained(fields, {"loss": losses}, 0.0), true)
    chosen = jax.tree.map(lambda x: x[2], fields)
    np.testing.assert_allclose(
        got, follow(settings, MODELS["NODE"], chosen, true[:, 0], 2), rtol=1e-6
    )
