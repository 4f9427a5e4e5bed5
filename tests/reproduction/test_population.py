"""The population experiment: its claims, tables and figures, and a miniature run of all of it."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest

from lagrax.training import Series, Trained
from reproduction import conduct, population
from reproduction.population import count_failures, make_claims, show_small, summarise
from reproduction.population_models import (
    MODELS,
    REGIMES,
    PopulationSettings,
    make_field,
    make_series,
    metric_of_test,
    predict,
    split,
)

SETTINGS = PopulationSettings(seeds=(0, 1, 2, 3, 4))
MINIATURE = PopulationSettings(
    models=("NODE", "NDDE", "NPCDDE"),
    iterations=6,
    seeds=(0, 1),
    block=3,
    series=5,
    lengths=(1, 2),
    train_time=2,
    shown=2,
    finer=1,
)


def trainings_with(losses):
    """Trainings whose final losses are `losses[recipe, a, model]`, one a seed, in every metric."""
    steps = np.arange(1, SETTINGS.iterations + 1)
    metrics = ["loss", *map(metric_of_test, SETTINGS.lengths)]

    def trained(values):
        series = Series(steps, np.tile(np.asarray(values, float), (len(steps), 1)))
        return Trained(None, dict.fromkeys(metrics, series), 1.0)

    return {key: trained(values) for key, values in losses.items()}


def losses_with(npcdde, others=1.0):
    return {
        (recipe, a, name): [npcdde if name == "NPCDDE" else others] * 5
        for recipe in SETTINGS.recipes
        for a in SETTINGS.growth
        for name in SETTINGS.models
    }


def claims_of(losses, recipe="paper"):
    return make_claims(SETTINGS, recipe, trainings_with(losses))


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
    claims = claims_of(losses_with(npcdde))
    assert [c.holds for c in claims] == holding
    assert "training loss" in claims[0].claim
    assert "over length 10 is lower than" in claims[-1].claim
    assert claims[0].value == pytest.approx(1 / npcdde, rel=1e-3)


def test_the_best_of_the_others_decides():
    losses = losses_with(0.05)
    losses["paper", 2.0, "ANODE"] = [0.1] * 5
    claim = claims_of(losses)[0]
    assert claim.verdict == "does not hold"
    assert "closest is ANODE" in claim.claim


def test_medians_decide():
    losses = losses_with(0.05)
    losses["paper", 2.0, "NODE"] = [np.nan] * 5
    losses["paper", 2.0, "NPCDDE"] = [0.05, 0.05, 0.05, 0.05, np.nan]
    assert claims_of(losses)[0].value == 20


def test_scattered_seeds_leave_a_claim_undecided():
    losses = losses_with(0.05)
    losses["paper", 2.0, "NPCDDE"] = [0.001, 0.01, 0.05, 0.5, 9.0]
    claim = claims_of(losses)[0]
    assert claim.verdict == "undecided"
    assert claim.low < claim.target < claim.high


def test_failed_seeds_are_counted():
    assert count_failures(np.array([1.0, 9.0, 11.0, np.nan])) == 2
    losses = losses_with(0.05)
    # Five seeds without a failure do not show that fewer than 1 in 40 fails.
    claim = claims_of(losses, "clipped")[-1]
    assert (claim.value, claim.verdict) == (0, "undecided")
    losses["clipped", 3.2, "NDDE"] = [1.0, 1.0, 1.0, 1.0, 11.0]
    claim = claims_of(losses, "clipped")[-1]
    assert (claim.value, claim.verdict) == (20, "does not hold")
    assert "NDDE at a = 3.2, 1 of 5" in claim.claim


@pytest.mark.parametrize(
    ("npcdde", "words"),
    [
        ([0.001] * 5, "an error 1000 times lower than the best of NODE, ANODE and NDDE"),
        ([2.0] * 5, "is not below that of the"),
        ([0.1, 0.1, 0.9, 9.0, 9.0], "is not clearly below that of the"),
    ],
)
def test_the_sentence_says_what_the_numbers_bear_out(npcdde, words):
    losses = losses_with(1.0) | {("paper", 2.0, "NPCDDE"): npcdde}
    sentence = summarise(SETTINGS, trainings_with(losses))
    assert sentence.startswith("After 3,000 iterations at a = 2, the NPCDDE")
    assert words in sentence


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.0456, "4.6e-2"), (1.23e-12, "1.2e-12"), (11.4, "11"), (234.5, "234"), (5e6, "5.0e6")],
)
def test_small_numbers_are_short(number, shown):
    assert show_small(number) == shown
    assert show_small(np.inf) == "not finite"


# --- a miniature of the whole ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    experiment = dataclasses.replace(population.EXPERIMENT, full=MINIATURE)
    out = tmp_path_factory.mktemp("runs")
    return experiment, out, *conduct(experiment, out, progress=False)


def test_a_run_writes_everything(miniature):
    _, _, folder, entry = miniature
    result = entry.result
    assert result.figures == [
        "forecast",
        "losses-paper",
        "trajectories-paper",
        "losses-clipped",
        "trajectories-clipped",
        "maps",
    ]
    assert [figure.name for figure in entry.figures] == result.figures
    assert len(result.trainings) == 12
    for training in result.trainings:
        assert (folder / training.name / "seed-1/done.json").exists()
    # Training and lengths 1 and 2, at both growth rates, with both recipes; few seeds fail.
    assert len(result.claims) == 2 * 2 * 3 + 1
    assert [table.title.split()[-1].strip("()") for table in result.tables] == list(
        REGIMES.values()
    )
    # The NDDE has a second row, with its true past.
    assert all(len(table.rows) == 2 * 4 for table in result.tables)


def test_seeds_are_kept_unrounded(miniature):
    _, _, folder, _ = miniature
    records = [json.loads(line) for line in (folder / "seeds.jsonl").read_text().splitlines()]
    assert len(records) == 12 * 2
    for record in records[:4]:
        run = f"{record['recipe']}-a{record['a']:g}-{record['model']}/seed-{record['seed']}"
        lines = (folder / run / "metrics.jsonl").read_text().splitlines()
        metrics = [json.loads(line) for line in lines]
        assert record["test_2"] == pytest.approx(metrics[-1]["test_2"], rel=1e-6)
        assert record["loss"] == pytest.approx(np.mean([m["loss"] for m in metrics[-3:]]), rel=1e-6)


# Resuming is tested with smaller runs in tests/training.
@pytest.mark.slow
def test_a_finished_run_changes_no_number(miniature):
    experiment, out, _, before = miniature
    _, after = conduct(experiment, out, progress=False)
    assert after.result.claims == before.result.claims
    assert after.result.tables == before.result.tables
    assert after.result.finding == before.result.finding


def test_learned_series_are_those_of_the_median_seed():
    settings = dataclasses.replace(MINIATURE, seeds=(0, 1, 2))
    keys = jax.random.split(jax.random.key(0), 3)
    fields = eqx.filter_vmap(lambda key: make_field(settings, MODELS["NODE"], key))(keys)
    losses = Series(np.arange(1, 7), np.tile([3.0, 1.0, 2.0], (6, 1)))
    data = split(settings, make_series(settings, 2.0))
    trained = Trained(fields, {"loss": losses}, 0.0)
    got = population.predict_by_median_seed(settings, "NODE", trained, data)
    chosen = jax.tree.map(lambda x: x[2], fields)
    for series, true in zip(got, data, strict=True):
        expected = predict(settings, MODELS["NODE"], chosen, true[:2, 0], 2)
        np.testing.assert_allclose(series, expected[:, : true.shape[1]], rtol=1e-6)
