"""Concentric annuli, with a miniature of the experiment."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reproduction import annuli
from reproduction.annuli import (
    EXPERIMENT,
    MODELS,
    AnnuliCurves,
    AnnuliSettings,
    make_claims,
    make_data,
    make_model,
)
from reproduction.experiment import Trainer

SMALL = AnnuliSettings(
    seeds=(0, 1), inner=20, outer=41, widths=(4,), steps=1, epochs=2, batch_size=16, shown=12
)


def test_data():
    data = make_data(AnnuliSettings())
    radius = np.linalg.norm(data.x, axis=1)
    inner, outer = radius[data.target == -1], radius[data.target == 1]
    assert (len(inner), len(outer)) == (1000, 2000)
    assert 0 <= inner.min() < 0.1
    assert 0.49 < inner.max() <= 0.5
    assert 1.0 <= outer.min() < 1.01
    assert 1.49 < outer.max() <= 1.5
    # The disc is evenly filled, so a quarter of its points lie within half its radius.
    assert abs(np.mean(inner < 0.25) - 0.25) < 0.04
    assert np.all(np.abs(np.mean(data.x, axis=0)) < 0.05)
    other = make_data(AnnuliSettings(data_seed=1))
    assert not np.array_equal(data.x, other.x)


@pytest.mark.parametrize(("name", "n", "lags"), [("one", 1, 1), ("two", 2, 1), ("special", 2, 2)])
def test_recurrences(name, n, lags):
    """z_{k+1} = z_k + τ f(z_k) of equation (8), z_k + τ f(z_k, z_{k-1}) of equation (12)."""
    settings = AnnuliSettings(inner=5, outer=5)
    model = make_model(name, settings, jax.random.key(3))
    field = model.flow.flow.field

    def f(*states):
        y = np.concatenate(states, axis=-1)
        for layer in field.layers[:-1]:
            y = np.maximum(y @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
        return y @ np.asarray(field.layers[-1].weight) + np.asarray(field.layers[-1].bias)

    x = np.asarray(make_data(settings).x)
    z = [x] * lags
    for _ in range(n):
        z.append(z[-1] + f(*z[: -lags - 1 : -1]) / n)
    np.testing.assert_allclose(model.flow(jnp.asarray(x)), z[-1], rtol=1e-5, atol=1e-6)
    assert len(field.layers) == 3
    assert field.layers[0].weight.shape == (2 * lags, 32)
    assert model(jnp.asarray(x)).shape == (10, 1)


def curves(loss, epoch, settings):
    """As if the loss had stayed at `loss` and the classes been separated from `epoch` on."""
    seeds = len(settings.seeds)
    accuracy = np.where(np.arange(1, settings.epochs + 1) >= epoch, 1.0, 0.7)
    # One seed that goes astray does not move the median.
    losses = np.full((12, seeds), loss)
    losses[:, -1] = 50.0
    return AnnuliCurves(
        losses,
        np.tile(accuracy[:, None], seeds),
        np.zeros((settings.epochs, seeds, 4, 2)),
        np.zeros((3, 4, 2)),
    )


@pytest.mark.parametrize(
    ("losses", "epochs", "values", "holds"),
    [
        # As the paper has it: the NODE, n = 1, n = 2, the special one.
        ((0.9, 0.4, 0.6, 0.3), (9, 4, 5, 3), (1.5, 2, 1.333, 1), [True] * 4),
        # The special one is the last to fall and never separates.
        ((0.9, 0.4, 0.2, 1.0), (9, 4, 3, 9), (0.5, 0.2, 0.4, -4), [False] * 4),
        # A tie with n = 1 is not first, even if the others are far behind.
        ((0.9, 0.4, 0.6, 0.5), (9, 3, 5, 3), (1.5, 1.2, 0.8, 0), [True, True, False, False]),
        # That the others never get there counts as the epoch after the last.
        ((0.9, 0.4, 0.6, 0.3), (9, 9, 9, 6), (1.5, 2, 1.333, 1), [True] * 4),
        ((0.9, 0.4, 0.6, 0.3), (9, 9, 9, 9), (1.5, 2, 1.333, 0), [True, True, True, False]),
    ],
)
def test_claims(losses, epochs, values, holds):
    settings = AnnuliSettings()
    made = {
        name: curves(loss, epoch, settings)
        for name, loss, epoch in zip(MODELS, losses, epochs, strict=True)
    }
    claims = make_claims(made, settings)
    assert [claim.value for claim in claims] == pytest.approx(values)
    assert [claim.holds for claim in claims] == holds


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    folder = tmp_path_factory.mktemp("annuli")
    return folder, EXPERIMENT.run(SMALL, Trainer(folder, {}))


def test_claims_follow_from_what_was_written(miniature):
    folder, outcome = miniature
    loss = {}
    for name in MODELS:
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert len(records) == 2 * math.ceil(61 / 16)
        assert [r["step"] for r in records if "accuracy" in r] == [4, 8]
        loss[name] = np.median(np.mean([r["loss"] for r in records], axis=0))
    expected = [
        loss["two"] / loss["one"],
        min(loss["node"], loss["two"]) / loss["special"],
        loss["one"] / loss["special"],
    ]
    assert [claim.value for claim in outcome.claims[:3]] == pytest.approx(expected, rel=1e-3)
    decided = [claim for claim in outcome.claims if claim.verdict != "undecided"]
    assert all(claim.holds == (claim.value >= claim.target) for claim in decided)


def test_figures_and_table(miniature):
    _, outcome = miniature
    training, features = outcome.figures
    assert [panel.title[:3] for panel in training.panels] == [f"({x})" for x in "abcdef"]
    assert training.columns == 3
    assert [line.colour for line in training.panels[0].marks] == ["orange", "sky", "purple", "blue"]
    flow = training.panels[-1]
    trajectories, *points = flow.marks
    assert np.isnan(trajectories.x).sum() == 12 // 3
    assert sum(len(mark.x) for mark in points) == 2 * 12

    assert (len(features.panels), features.columns) == (4 * 2, 2)
    assert list(features.rows) == [model.label for model in MODELS.values()]
    # The last feature spaces are where the flows end.
    for last, place in (
        (features.panels[1], 2),
        (features.panels[5], 3),
        (features.panels[7], 5),
    ):
        final = training.panels[place].marks[-2:]
        for mark, end in zip(last.marks, final, strict=True):
            np.testing.assert_allclose(mark.x, end.x, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(mark.y, end.y, rtol=1e-4, atol=1e-5)

    (table,) = outcome.tables
    assert [len(row) for row in table.rows] == [len(table.columns)] * 4


def test_the_sentence_gives_the_accuracies():
    settings = AnnuliSettings()
    epochs = {"node": 99, "one": 1, "two": 1, "special": 1}
    made = {name: curves(1.0, epoch, settings) for name, epoch in epochs.items()}
    sentence = annuli._summarise(made, settings)
    assert "the NODE classifies 70.0 %" in sentence
    assert "the worst of the NPCDDEs 100.0 %" in sentence
