"""Image classifiers with few filters and few images, and records of runs made by hand."""

import contextlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

from reproduction import models
from reproduction.data import Images
from reproduction.images import Protocol, default_protocol, training
from reproduction.images.records import encode_record

BRIEF = Protocol("euler", 1, precision="f32", epochs=2, batch_size=32, counted=0, checked=False)


@contextlib.contextmanager
def tiny_models():
    """Four filters, and test images in two batches of which the last is filled up."""
    with pytest.MonkeyPatch.context() as patch:
        for filters in ("_FILTERS", "_VARIANT_FILTERS"):
            patch.setattr(models, filters, dict.fromkeys(getattr(models, filters), (4, 4)))
        patch.setattr(training, "TEST_BATCH", 20)
        clear_caches()
        yield
    clear_caches()


def clear_caches():
    """Forgets functions and sizes of models with other filters."""
    training._make_functions.cache_clear()
    models.paper_size.cache_clear()


def some_images(shape=(28, 28, 1)):
    rng = np.random.default_rng(0)
    draw = lambda n: rng.integers(0, 256, (n, *shape), np.uint8)
    labels = lambda n: rng.integers(0, 10, n).astype(np.int32)
    return Images(draw(70), labels(70), draw(30), labels(30))


def scores(model, pictures, labels):
    """Mean loss and percentage of hits, from the logits of all images at once."""
    logits = np.asarray(model(jnp.asarray(pictures, jnp.float32) / 255), np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return losses.mean(), 100 * np.mean(logits.argmax(axis=1) == labels)


def same_but_for_time(*records):
    a, b = (json.loads(encode_record(record)) | {"seconds": 0} for record in records)
    return a == b


def a_line(dataset="cifar10", model="NODE", seed=0, best=53.0, **changes):
    """A line such as a run leaves: the second epoch is the best, one point above the last."""
    protocol = default_protocol(model)
    epochs = changes.pop("epochs", protocol.epochs)
    accuracy = [40.0, best] + [best - 1] * (epochs - 2)
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "epochs": epochs,
        "train_loss": [1.0] * epochs,
        "test_loss": [1.5] * epochs,
        "test_accuracy": accuracy,
        "nfe": [21] * epochs,
        "fine_accuracy": best - 0.5,
        "solver_error": 0.08,
        "solver": protocol.solver,
        "steps": protocol.steps,
        "rtol": None,
        "precision": protocol.precision,
        "seconds": 40.0,
        "device": "a device",
        "versions": {"jax": "1", "lagrax": "2"},
        "protocol": {"learning_rate": 1e-3, "batch_size": 256, "training_images": 50000},
    } | changes


def written(folder, *content, name="some.jsonl"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in content))
    return folder
