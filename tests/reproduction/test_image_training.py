"""The training of one image classifier, and the record and the model that it leaves."""

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.image_runs import BRIEF, same_but_for_time, scores, some_images

from lagrax import nn, training
from reproduction import (
    ResultError,
    load_model,
    models as _models,
)
from reproduction.images import (
    ImageRun,
    convolution,
    training as images,
)
from reproduction.images.records import encode_record, parse_record
from reproduction.images.training import train_run

pytestmark = pytest.mark.usefixtures("tiny_models")
QUIETLY = {"progress": False}


@pytest.fixture
def models(monkeypatch):
    """The models that runs have trained, in their order."""
    kept = []

    def train(*arguments, **options):
        trained = training.train(*arguments, **options)
        kept.append(trained.model)
        return trained

    monkeypatch.setattr(images, "train", train)
    return kept


def test_a_record_survives_a_round_trip(mnist):
    protocol = dataclasses.replace(BRIEF, counted=5, checked=True)
    run = ImageRun("mnist", "NODE", 3, protocol)
    record = train_run(run, mnist, **QUIETLY)
    assert all(n >= 6 for n in record.nfe)
    assert 0 < record.solver_error < 1
    assert (record.filters, record.seed, record.epochs) == (4, 3, 2)
    assert record.training.training_images == 70
    assert record.versions["jax"] == jax.__version__
    line = encode_record(record)
    read = parse_record(line)
    assert read.run == run
    assert encode_record(read) == line


def test_unmeasured_numbers_are_null(mnist):
    record = train_run(ImageRun("mnist", "NODE", 0, BRIEF), mnist, **QUIETLY)
    content = json.loads(encode_record(record))
    assert content["nfe"] is content["fine_accuracy"] is content["solver_error"] is None


def test_every_test_image_counts_once(mnist, models):
    line = train_run(ImageRun("mnist", "NODE", 1, BRIEF), mnist, **QUIETLY)
    data = some_images()
    loss, accuracy = scores(models[0], data.test_images, data.test_labels)
    assert mnist.test.images.shape[:2] == (2, 20)
    assert line.test_loss[-1] == pytest.approx(loss, abs=2e-5)
    assert line.test_accuracy[-1] == pytest.approx(accuracy, abs=1e-3)
    first, _ = scores(models[0], data.test_images[:20], data.test_labels[:20])
    assert abs(first - loss) > 1e-3


def test_training_loss_is_the_mean_over_images(mnist, models):
    # A model that does not learn has the same loss at all steps.
    protocol = dataclasses.replace(BRIEF, learning_rate=0.0)
    line = train_run(ImageRun("mnist", "NODE", 2, protocol), mnist, **QUIETLY)
    data = some_images()
    loss, _ = scores(models[0], data.train_images, data.train_labels)
    np.testing.assert_allclose(line.train_loss, [loss, loss], atol=2e-5)


def test_solver_error_is_the_relative_distance_of_final_states(mnist):
    """An independent measure of `solver_error`: the ratio of distances, one image at a time."""
    task = images._make_functions("mnist", "NODE", dataclasses.replace(BRIEF, checked=True))
    model = task.make(jax.random.key(5))
    found = task.compare_solvers(model, mnist.test)
    x = jnp.asarray(some_images().test_images, jnp.float32) / 255
    fine = _models.paper_model(
        "NODE", "mnist", key=jax.random.key(5), **images.make_fine_options("NODE")
    )
    coarse, true = np.asarray(model.flow(x)), np.asarray(fine.flow(x))
    expected = np.linalg.norm(coarse - true) / np.linalg.norm(true - np.asarray(x))
    assert float(found["solver_error"]) == pytest.approx(expected, rel=1e-3)
    assert expected > 1e-4


def test_a_stopped_run_continues_to_the_same_record(mnist, tmp_path):
    run = ImageRun("mnist", "NODE", 0, BRIEF)
    whole = train_run(run, mnist, **QUIETLY)
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        train_run(run, mnist, tmp_path / "run", stop=stop, **QUIETLY)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    resumed = train_run(run, mnist, tmp_path / "run", **QUIETLY)
    assert same_but_for_time(whole, resumed)


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_saved_model_loads_on_any_backend(mnist, models, tmp_path, monkeypatch, precision):
    protocol = dataclasses.replace(BRIEF, precision=precision)
    line = train_run(ImageRun("mnist", "UNPCDDE2", 1, protocol), mnist, tmp_path, **QUIETLY)
    found, own = load_model(tmp_path), some_images()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(models[-1]), strict=True):
        np.testing.assert_array_equal(a, b)
    loss, accuracy = scores(found, own.test_images, own.test_labels)
    assert loss == pytest.approx(line.test_loss[-1], rel=1e-3)
    assert accuracy == pytest.approx(line.test_accuracy[-1], abs=1e-3)
    # What a GPU trained has its layers in another form there.
    monkeypatch.setattr(images, "replace_convolutions", lambda model: model)
    elsewhere = load_model(tmp_path / "model.safetensors")
    assert jax.tree.structure(elsewhere) != jax.tree.structure(found)
    assert scores(elsewhere, own.test_images, own.test_labels)[0] == pytest.approx(loss, rel=1e-3)


def test_a_file_without_a_model_is_refused(mnist, tmp_path):
    with pytest.raises(ResultError, match=r"model.safetensors holds no trained .*No such file"):
        load_model(tmp_path)
    train_run(ImageRun("mnist", "NODE", 0, BRIEF), mnist, tmp_path, **QUIETLY)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    (checkpoint, *_) = (tmp_path / "checkpoints").iterdir()
    with pytest.raises(ResultError, match="it lacks 'run'"):
        load_model(checkpoint)
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b"", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(ResultError, match="name the folder of a finished run"):
            load_model(path)


def test_seeds_share_compiled_code(mnist):
    compiled, protocol = [], dataclasses.replace(BRIEF, epochs=1, checked=True)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    counts = []
    for seed in (0, 1):
        before = len(compiled)
        train_run(ImageRun("mnist", "NDDE", seed, protocol), mnist, **QUIETLY)
        counts.append(len(compiled) - before)
    assert counts[0] > 1
    assert counts[1] == 0


def test_cpu_convolution_matches_affine():
    layer = nn.Affine(3, 5, window=(3, 3), key=jax.random.key(0))
    ours = convolution.CPUConvolution(layer)
    x = jax.random.normal(jax.random.key(1), (2, 7, 6, 3))

    def both(layer, x):
        return jnp.sum(jnp.sin(layer(x)))

    for argument in (0, 1):
        pair = [jax.grad(both, argument)(f, x) for f in (layer, ours)]
        for a, b in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer(x), ours(x), rtol=1e-6)
    model = images._make_model("UNPCDDE2", "mnist", jax.random.key(0))
    kinds = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, nn.Affine))
    assert sum(isinstance(x, convolution.CPUConvolution) for x in kinds) == 2
