"""The validation study: images held out of the training choose the epoch."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers.image_runs import scores, some_images

from reproduction import models as paper_models, plan
from reproduction.images import (
    ImageRun,
    Protocol,
    default_protocol,
    image_result,
    load_model,
    training,
)
from reproduction.images.records import encode_record, parse_record
from reproduction.images.training import move_to_device, train_run
from reproduction.images.validation_study import HELD_OUT, validation_protocol

BRIEF = Protocol(
    *("midpoint", 1, None, "f32"),
    epochs=5,
    batch_size=10,
    learning_rate=0.03,
    validation=20,
    counted=0,
)


pytestmark = pytest.mark.usefixtures("tiny_models")


def test_held_out_images_are_not_trained_on():
    whole = some_images()
    data = move_to_device("mnist", whole, validation=20)
    np.testing.assert_array_equal(data.train[0], whole.train_images[:50])
    kept = np.asarray(data.validation.images).reshape(-1, 28, 28, 1)[:20]
    np.testing.assert_array_equal(kept, whole.train_images[50:])
    some = move_to_device("mnist", whole, train_images=40, validation=10)
    np.testing.assert_array_equal(some.train[1], whole.train_labels[:30])
    np.testing.assert_array_equal(some.validation.labels.ravel(), whole.train_labels[30:40])
    with pytest.raises(ValueError, match="validation=70 holds out all 70"):
        move_to_device("mnist", whole, validation=70)


def test_the_kept_model_is_that_of_the_chosen_epoch(tmp_path):
    whole = some_images()
    protocol = dataclasses.replace(BRIEF, checked=True)
    data = move_to_device("mnist", whole, *protocol.image_counts)
    content = train_run(ImageRun("mnist", "NODE", 0, protocol), data, tmp_path, progress=False)
    line = parse_record(encode_record(content))
    assert line.run.protocol.validation == 20
    assert content.training.training_images == 50
    epoch = int(np.argmax(line.validation_accuracy))
    assert epoch < 4, "the last epoch would show nothing"
    assert len(set(line.validation_accuracy)) > 1
    model = load_model(tmp_path)
    held_out = whole.train_images[50:], whole.train_labels[50:]
    assert scores(model, *held_out)[1] == pytest.approx(line.validation_accuracy[epoch], abs=1e-3)
    _, tested = scores(model, whole.test_images, whole.test_labels)
    assert line.chosen == pytest.approx(tested, abs=1e-3)
    assert line.chosen == line.test_accuracy[epoch]
    fine = paper_models.paper_model(
        "NODE", "mnist", key=jax.random.key(0), **training.make_fine_options("NODE")
    )
    fine = training.copy_parameters(model, fine)
    _, expected = scores(fine, whole.test_images, whole.test_labels)
    assert line.fine_accuracy == pytest.approx(expected, abs=1e-3)


def test_all_models_of_the_study_take_midpoint_steps():
    runs = plan(study="validation")
    assert len(runs) == 40
    for run in runs:
        protocol = run.protocol
        assert (run.dataset, protocol.solver, protocol.validation) == ("cifar10", "midpoint", 5000)
        default = default_protocol(run.model)
        evaluations = {"midpoint": 2, "bosh3": 3}
        assert protocol.steps * 2 == default.steps * evaluations[default.solver]
    with pytest.raises(ValueError, match="study='best'"):
        plan(study="best")
    with pytest.raises(ValueError, match="not together with quick"):
        plan(study="validation", quick=True)


def test_the_table_of_the_study(tmp_path):
    """Chosen, best and last accuracies are worked out here by hand."""
    protocol = dataclasses.replace(validation_protocol("NODE"), epochs=30)
    assert protocol.validation == HELD_OUT
    template = {
        **{"dataset": "cifar10", "model": "NODE", "epochs": 30, "nfe": None},
        **{"solver": "midpoint", "steps": 6, "rtol": None, "precision": protocol.precision},
        **{"train_loss": [1.0] * 30, "test_loss": [1.0] * 30, "fine_accuracy": 51.5},
        **{"solver_error": 0.05, "seconds": 1.0, "device": "d", "versions": {}},
        "protocol": {"batch_size": 256, "learning_rate": 1e-3, "validation": HELD_OUT},
    }
    chosen_epoch = [7, 9]
    with open(tmp_path / "a.jsonl", "w") as file:
        for seed, epoch in enumerate(chosen_epoch):
            validation = [40.0] * 30
            validation[epoch] = validation[epoch + 3] = 55.0
            tested = [50.0] * 30
            tested[epoch], tested[20], tested[29] = 52.0 + seed, 54.0, 51.0
            own = {"seed": seed, "validation_accuracy": validation, "test_accuracy": tested}
            file.write(json.dumps(template | own) + "\n")
    result, _ = image_result(tmp_path)
    (table,) = [t for t in result.tables if t.title.startswith("Validation study")]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["chosen epoch"] == "52.50 ± 0.71"
    assert row["best epoch"] == "54.00 ± 0.00"
    assert row["last epoch"] == "51.00 ± 0.00"
    assert row["chosen, fine steps"] == "51.50 ± 0.00"
    assert row["error, %"] == "5.00 ± 0.00"
    assert row["seeds"] == "2"
