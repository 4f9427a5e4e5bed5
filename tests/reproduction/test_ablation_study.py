"""Variants of the models, other recipes of training, and the studies that compare them."""

import dataclasses
import json

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.image_runs import BRIEF, some_images
from scipy import stats

from reproduction import models, plan, sweep
from reproduction.images import (
    ImageRun,
    Protocol,
    image_result,
    load_model,
    sweeps,
    training,
)
from reproduction.images.ablation_study import (
    ABLATION_MODELS,
    QUESTIONS,
    continuity_protocol,
    recipe_protocol,
)
from reproduction.images.protocol import Recipe
from reproduction.images.records import encode_record, parse_record, read_records
from reproduction.images.training import augment_images, make_optimiser, train_run
from reproduction.images.validation_study import validation_protocol
from reproduction.result import show_number

RECIPE = Recipe(flips=True, shift=2, warmup=1, cosine=True, weight_decay=0.05, smoothing=0.1)


def test_models_of_the_ablation_are_of_equal_size_and_cost():
    runs = plan(study="ablation")
    assert len(runs) == 13 * 5
    assert {run.model for run in runs} == {*ABLATION_MODELS}
    node = models.paper_size("NODE", "cifar10")["params"]
    for run in runs:
        protocol, intervals = run.protocol, models.paper_intervals(run.model)
        assert (run.dataset, protocol.solver, protocol.validation) == ("cifar10", "midpoint", 5000)
        assert 2 * protocol.steps * intervals == 12
        assert abs(models.paper_size(run.model, "cifar10")["params"] / node - 1) < 0.016
    assert all({a, b} <= {*ABLATION_MODELS} for _, a, b in QUESTIONS)


def test_the_ablation_shares_runs_with_the_validation_study():
    shared = {*plan(study="ablation")} & {*plan(study="validation")}
    expected = {"NODE", "NDDE", "NPCDDE2", "UNPCDDE2", "NPCDDE3", "UNPCDDE3"}
    assert {run.model for run in shared} == expected


@pytest.mark.parametrize(("name", "has_input"), [("NPCDDE3_last", False), ("NPCDDE3_ends", True)])
@pytest.mark.usefixtures("tiny_models")
def test_the_past_of_a_variant(name, has_input):
    """One Euler step an interval, by hand."""
    options = {"solver": diffrax.Euler(), "steps": 1}
    model = models.paper_model(name, "cifar10", key=jax.random.key(0), **options)
    x = z = jax.random.uniform(jax.random.key(1), (2, 32, 32, 3))
    field = model.flow.field if has_input else model.flow.flow.field
    for _ in range(3):
        past = field.hold((z, x) if has_input else (z,))
        z = z + field(0.0, z, history=past) / 3
    np.testing.assert_allclose(model.flow(x), z, rtol=1e-5, atol=1e-6)


def a_record(model, seed, accuracy, protocol):
    """A line of a run of 30 epochs whose chosen epoch is the second."""
    epochs = protocol.epochs
    other = {"test_accuracy": [40.0, accuracy, *[41.0] * (epochs - 2)]}
    other |= {"validation_accuracy": [40.0, 60.0, *[50.0] * (epochs - 2)], "nfe": None}
    other |= {name: [1.0] * epochs for name in ("train_loss", "test_loss")}
    other |= {"fine_accuracy": accuracy - 1, "seconds": 1.0, "device": "d", "versions": {}}
    own = {name: getattr(protocol, name) for name in ("solver", "steps", "rtol", "precision")}
    shared = {"batch_size": 256, "learning_rate": protocol.learning_rate, "validation": 5000}
    shared |= {"recipe": protocol.recipe.content} if protocol.recipe else {}
    line = {"dataset": "cifar10", "model": model, "seed": seed, "epochs": epochs}
    return json.dumps(line | own | other | {"protocol": shared}) + "\n"


def tables_of(folder, lines):
    (folder / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    result, _ = image_result(folder)
    return {table.title: table for table in result.tables}


def test_the_tables_of_the_ablation(tmp_path):
    """Differences and their intervals against SciPy's Welch test."""
    accuracies = {
        "NPCDDE2": [56.0, 56.1, 56.2, 55.9],
        "NPCDDE2_last": [54.0, 54.3, 53.9],
        "NPCDDE3_last": [54.0, 53.0, 55.0],
        "NODE": [54.1, 53.4, 54.6],
        "UNPCDDE2": [50.0, 60.0],
    }
    lines = [
        a_record(model, seed, accuracy, validation_protocol(model))
        for model, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]
    tables = tables_of(tmp_path, lines)
    models = {row[0]: row for row in tables["Ablation, CIFAR-10"].rows}
    assert models["NPCDDE2_last"][1:6] == ["1/2", "z_k", "shared", "54.07 ± 0.21", "53.07 ± 0.21"]
    assert models["NPCDDE6"][-1] == "–"
    questions = {row[1]: row for row in tables["Ablation, CIFAR-10, one part at a time"].rows}
    assert {*questions} == {
        *("NPCDDE2 − NPCDDE2_last", "NPCDDE2_last − NODE", "NPCDDE3_last − NODE"),
    }
    assert questions["NPCDDE2 − NPCDDE2_last"][3:] == ["better", "4 and 3"]
    assert questions["NPCDDE3_last − NODE"][3] == "undecided"
    # One of three tests decides, so each has a third of twice 5 %.
    test = stats.ttest_ind(accuracies["NPCDDE2"], accuracies["NPCDDE2_last"], equal_var=False)
    interval = test.confidence_interval(1 - 0.1 / 3)
    shown = f"{show_number(interval.low, 2)} to {show_number(interval.high, 2)}"
    assert questions["NPCDDE2 − NPCDDE2_last"][2] == f"1.983 ({shown}) points"


def test_models_of_the_paper_alone_are_no_ablation(tmp_path):
    lines = [a_record("NODE", 0, 54.0, validation_protocol("NODE"))]
    assert not [title for title in tables_of(tmp_path, lines) if "Ablation" in title]


def test_the_table_of_the_recipe(tmp_path):
    lines = [a_record("A4+NODE", 0, 70.0, recipe_protocol("A4+NODE"))]
    table = tables_of(tmp_path, lines)["Recipe study"]
    assert table.rows == [["CIFAR-10, A4+NODE", "70.00", "69.00", "58.93 ± 0.33", "1"]]
    assert "Runs of other settings" not in tables_of(tmp_path, lines)
    values = {"A4+UNPCDDE5": [73.0, 74.0, 73.5], "A4+NODE": [70.0, 70.1, 70.3]}
    lines = [
        a_record(model, seed, accuracy, recipe_protocol(model))
        for model, accuracies in values.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    chosen, fine = tables_of(tmp_path, lines)["Recipe study, the models compared"].rows
    assert chosen[1:2] + chosen[3:] == ["A4+UNPCDDE5 − A4+NODE", "better", "3 and 3"]
    assert chosen[2].startswith(f"{73.5 - np.mean(values['A4+NODE']):.3f} (")
    assert fine[2] == chosen[2]


def test_the_table_of_continuity(tmp_path):
    """Lines of models with random steps stand beside those of the tables."""
    protocol = continuity_protocol("UNPCDDE2")
    assert np.mean(protocol.recipe.random_steps) == protocol.steps
    lines = [
        a_record("UNPCDDE2", seed, 96.0 + seed, protocol).replace("cifar10", "mnist")
        for seed in range(2)
    ]
    tables = tables_of(tmp_path, lines)
    assert "Runs of other settings" not in tables
    # The last epoch has 41, and fine steps one less than the chosen one.
    row = ["MNIST, UNPCDDE2", "random", "41.00 ± 0.00", "95.50 ± 0.71", "−54.50 ± 0.71", "–", "2"]
    assert tables["Continuity study"].rows == [row]


# --- recipes --------------------------------------------------------------------------------------


def test_a_recipe_survives_a_round_trip():
    protocol = dataclasses.replace(BRIEF, recipe=RECIPE)
    assert protocol.digest != BRIEF.digest
    assert "recipe" not in BRIEF.content
    assert Protocol.of_content(protocol.content) == protocol
    assert str(RECIPE) == (
        "flips, shifts by up to 2, 1 epochs of warm-up, cosine, weight decay 0.05, label "
        "smoothing 0.1"
    )
    with pytest.raises(ValueError, match=r"rtol=0.1 leaves no steps to draw"):
        Protocol("tsit5", rtol=0.1, recipe=Recipe(random_steps=(1, 2)))


def test_images_are_mirrored_and_moved():
    images = jnp.asarray(some_images((8, 8, 3)).train_images)
    same = augment_images(Recipe(), images, jax.random.key(0))
    np.testing.assert_array_equal(same, images)
    changed = np.asarray(augment_images(Recipe(flips=True, shift=1), images, jax.random.key(0)))
    found = set()
    for image, new in zip(np.asarray(images), changed, strict=True):
        for flipped in (False, True):
            padded = np.pad(image[:, ::-1] if flipped else image, ((1, 1), (1, 1), (0, 0)), "edge")
            for i, j in np.ndindex(3, 3):
                if np.array_equal(padded[i : i + 8, j : j + 8], new):
                    found.add((flipped, i, j))
                    break
            else:
                continue
            break
        else:
            pytest.fail("no shift of at most one pixel gives this image")
    assert len(found) == 18


def test_the_learning_rate_falls_to_zero_and_biases_do_not_decay():
    protocol = dataclasses.replace(BRIEF, epochs=3, learning_rate=0.1, recipe=RECIPE)
    optimiser = make_optimiser(protocol, 10)
    weights = {"weight": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    zeros, state = jax.tree.map(jnp.zeros_like, weights), optimiser.init(weights)
    factors = []
    for _ in range(31):
        updates, state = optimiser.update(zeros, state, weights)
        np.testing.assert_array_equal(updates["bias"], 0)
        factors.append(-float(updates["weight"][0, 0]) / 0.05)
    np.testing.assert_allclose(factors[:11], np.linspace(0, 0.1, 11), atol=1e-7)
    cosine = 0.05 * (1 + np.cos(np.pi * np.arange(21) / 20))
    np.testing.assert_allclose(factors[10:], cosine, atol=1e-7)
    plain = make_optimiser(BRIEF, 10)
    gradient = jax.tree.map(jnp.ones_like, weights)
    ours, _ = plain.update(gradient, plain.init(weights), weights)
    adam = optax.adam(BRIEF.learning_rate)
    theirs, _ = adam.update(gradient, adam.init(weights), weights)
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


@pytest.mark.usefixtures("tiny_models")
def test_the_number_of_steps_is_drawn_in_each_step():
    recipe = Recipe(random_steps=(1, 3), smoothing=0.2)
    protocol = Protocol("euler", 2, precision="f32", counted=0, recipe=recipe)
    functions = training._make_functions("mnist", "NODE", protocol)
    model = functions.make(key=jax.random.key(0))
    images, labels = some_images().train_images[:4], some_images().train_labels[:4]
    expected = []
    for steps in recipe.random_steps:
        other = functions.make(key=jax.random.key(0), steps=steps)
        logs = np.asarray(jax.nn.log_softmax(other(jnp.asarray(images, jnp.float32) / 255)))
        own, mean = logs[np.arange(4), labels], logs.mean(axis=1)
        expected.append(-0.8 * own - 0.2 * mean)
    found = set()
    for number in range(8):
        values = functions.loss(model, (jnp.asarray(images), labels), jax.random.key(number))
        errors = [np.abs(values - x).max() for x in expected]
        assert min(errors) < 1e-5
        found.add(int(np.argmin(errors)))
    assert found == {0, 1}
    assert np.abs(expected[0] - expected[1]).max() > 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_models")
def test_a_run_with_a_recipe(tmp_path):
    recipe = dataclasses.replace(RECIPE, random_steps=(1, 2))
    protocol = dataclasses.replace(BRIEF, validation=20, checked=True, recipe=recipe)
    data = training.move_to_device("mnist", some_images(), *protocol.image_counts)
    run = ImageRun("mnist", "NODE", 0, protocol)
    record = train_run(run, data, tmp_path, progress=False)
    line = encode_record(record)
    assert parse_record(line).run == run
    assert encode_record(parse_record(line)) == line
    model, own = load_model(tmp_path), some_images()
    adaptive = models.paper_model("NODE", "mnist", key=jax.random.key(0), **training.ADAPTIVE)
    logits = training.copy_parameters(model, adaptive)(
        jnp.asarray(own.test_images, jnp.float32) / 255
    )
    hits = np.mean(np.argmax(np.asarray(logits), axis=-1) == own.test_labels)
    # A batch shares its adaptive steps, so a single image may turn.
    assert record.adaptive_accuracy == pytest.approx(100 * hits, abs=3.4)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_models")
@pytest.mark.parametrize("study", ["ablation", "continuity", "recipe"])
def test_a_study_on_a_small_set_resumes(study, tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.data.load", lambda *_: some_images((32, 32, 3)))
    monkeypatch.setattr("reproduction.images.sweeps.write_figures", lambda *_: None)
    default = sweeps.STUDIES[study]

    def brief(model):
        return dataclasses.replace(
            BRIEF, validation=20, epochs=3, recipe=default.protocol(model).recipe
        )

    small = default._replace(datasets=("cifar10",), protocol=brief, models=default.models[-2:])
    monkeypatch.setitem(sweeps.STUDIES, study, small)
    runs = plan(study=study, seeds=1)
    assert sweep(runs[:1], tmp_path, progress=False).trained == 1
    assert sweep(runs, tmp_path, progress=False)[1:3] == (len(runs) - 1, 1)
    assert {record.run for record in read_records(tmp_path)} == {*runs}
