"""The trained models in results/images/models."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reproduction import data, load_model
from reproduction.images.records import read_records
from reproduction.models import paper_size

FOLDER = Path(__file__).parents[2] / "results" / "images" / "models"
FILES = sorted(FOLDER.glob("*.safetensors"))


def test_every_model_of_table_1_is_kept():
    names = {path.stem.split("-")[1] for path in FILES}
    assert names == {
        *("NODE", "NDDE", "NPCDDE2", "UNPCDDE2"),
        *("NPCDDE3", "UNPCDDE3", "NPCDDE5", "UNPCDDE5"),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_model_loads(path):
    dataset, name, _ = path.stem.split("-")
    leaves = jax.tree.leaves(load_model(path))
    assert sum(x.size for x in leaves) == paper_size(name, dataset)["params"]


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_model_has_the_accuracy_of_its_line(path):
    if "LAGRAX_DATA" not in os.environ:
        pytest.skip("LAGRAX_DATA names no folder with the data sets")
    dataset, name, seed = path.stem.split("-")
    (record,) = [
        x
        for x in read_records(FOLDER.parent)
        if (x.run.dataset, x.run.model, x.run.seed) == (dataset, name, int(seed))
        and x.run.protocol.validation
    ]
    images = data.load(dataset, os.environ["LAGRAX_DATA"])
    some = slice(500)
    logits = load_model(path)(jnp.asarray(images.test_images[some], jnp.float32) / 255)
    share = 100 * np.mean(np.argmax(np.asarray(logits), axis=-1) == images.test_labels[some])
    # Five hundred images have a standard error of 2.2 points.
    assert abs(share - record.chosen) < 7
