"""Why training fails at a = 3.2: the trials, the numbers of the evidence, and a miniature run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lagrax.systems import Population
from lagrax.training import Series, Trained
from reproduction import conduct, steepness
from reproduction.population_models import (
    FINER,
    MODELS,
    PopulationSettings,
    make_field,
    make_series,
    make_task,
    metric_of_test,
    predict,
    split,
)
from reproduction.steepness import (
    GRADIENT,
    RESTARTED,
    change_growth,
    find_lost,
    make_claims,
    make_jobs,
    make_traced_jobs,
    root_mean_square,
)

SMALL = dataclasses.replace(steepness.EXPERIMENT.full, series=5, seeds=(0, 1, 2), iterations=6)


@pytest.fixture(scope="module")
def data():
    return split(SMALL, make_series(SMALL, 3.2))


@pytest.fixture(scope="module")
def field():
    return jax.tree.map(lambda w: 3 * w, make_field(SMALL, MODELS["NPCDDE"], jax.random.key(1)))


def test_a_restarted_prediction_starts_from_the_data(field, data):
    """Against one season at a time, solved on its own."""
    series, job = data[0], make_jobs(SMALL, data)[RESTARTED]
    seasons = []
    for k in range(3):
        season = series[:, 10 * k : 10 * k + 11]
        predicted = predict(SMALL, MODELS["NPCDDE"], field, season[:, 0], 1)
        seasons.append(np.mean((predicted - season)[:, 1:] ** 2, axis=1))
    np.testing.assert_allclose(job.loss(field, series), np.mean(seasons, axis=0), rtol=1e-4)


def test_a_season_restarts_only_in_that_recipe(field, data):
    jobs = make_jobs(SMALL, data)
    whole = make_task(SMALL, "NPCDDE").loss(field, data[0])
    for recipe, job in jobs.items():
        same = np.allclose(job.loss(field, data[0]), whole, rtol=1e-3)
        assert same == (recipe != RESTARTED)


def test_traced_gradients_are_those_of_the_loss(field, data):
    """The length of the gradient, against a central difference along it."""
    loss = make_traced_jobs(SMALL, data)["traced"].loss
    _, metrics = loss(field, data[0])
    mean = lambda field: jnp.mean(loss(field, data[0])[0])
    gradient = jax.grad(mean)(field)
    length = metrics[GRADIENT]
    along = lambda s: mean(jax.tree.map(lambda w, g: w + s * g / length, field, gradient))
    difference = (along(1e-2) - along(-1e-2)) / 2e-2
    assert difference == pytest.approx(float(length), rel=1e-2)


def test_the_growth_of_a_change_is_that_of_the_solutions(x64):
    """Against differences of exact solutions three seasons later."""
    x0 = np.linspace(0.05, 2, 7)
    end = lambda x: np.asarray(Population(a=3.2).solution(jnp.array([3.0]), jnp.asarray(x)))[0]
    expected = np.abs(end(x0 + 1e-6) - end(x0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(change_growth(3.2, x0, 3), expected, rtol=1e-4)


@pytest.mark.parametrize("memory", [0.95, 0.999])
def test_the_running_mean_is_adam_s(memory):
    lengths = np.array([0.1, 0.2, 5.0, 0.1, 0.3])
    adam = optax.adam(1.0, b1=0.0, b2=memory, eps=0.0)
    state = adam.init(jnp.zeros(()))
    for length, mean in zip(lengths, root_mean_square(lengths, memory), strict=True):
        update, state = adam.update(jnp.asarray(length), state)
        assert length / mean == pytest.approx(-float(update), rel=1e-4)


def trained_with(losses):
    """A training whose metrics after the last block are `losses`, one a seed."""
    names = [FINER, *map(metric_of_test, SMALL.lengths)]
    series = Series(np.array([6]), np.array([losses], float))
    return Trained(None, dict.fromkeys(names, series), 1.0)


def test_lost_seeds_are_counted():
    lost = find_lost(trained_with([0.01, 0.09, 0.11, np.nan]))
    np.testing.assert_array_equal(lost, [False, False, True, True])


@pytest.mark.parametrize(
    ("lost", "total", "verdicts"),
    [
        (20, 40, ["holds", "does not hold"]),
        (0, 40, ["undecided", "undecided"]),
        (0, 160, ["does not hold", "holds"]),
    ],
)
def test_claims_follow_the_counts(lost, total, verdicts):
    own = np.arange(total) < lost
    claims = make_claims({"paper": own, RESTARTED: own})
    assert [claim.verdict for claim in claims] == verdicts
    assert claims[0].value == 100 * lost / total


@pytest.mark.slow
def test_a_miniature_run(tmp_path):
    settings = PopulationSettings(
        growth=(3.2,),
        models=("NPCDDE",),
        recipes=("paper", RESTARTED),
        iterations=6,
        seeds=(0, 1),
        block=3,
        series=5,
        lengths=(1, 2),
        finer=1,
    )
    experiment = dataclasses.replace(steepness.EXPERIMENT, full=settings)
    folder, entry = conduct(experiment, tmp_path, progress=False)
    result = entry.result
    assert result.figures == ["steepness", "recipes"]
    assert {training.name for training in result.trainings} == {"paper", RESTARTED, "traced"}
    trials, traced = result.tables
    assert [row[0] for row in trials.rows] == ["paper", RESTARTED]
    assert [row[0] for row in traced.rows] == ["0", "1"]
    assert len((folder / "seeds.jsonl").read_text().splitlines()) == 4
    assert [claim.claim.split(",")[2].split()[0] for claim in result.claims] == [
        *("paper", RESTARTED)
    ]
