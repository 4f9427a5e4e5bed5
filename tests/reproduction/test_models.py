"""The paper's image models: sizes, shapes and options."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from helpers.networks import KEY, MIDPOINT, check_close

import reproduction
from reproduction.models import paper_model, paper_models, paper_size

TABLES = Path(reproduction.__file__).with_name("tables.json")


TABLE = json.loads(TABLES.read_text(encoding="utf-8"))["filters_and_parameters"]


def test_sizes_match_the_paper():
    """All 60 counts of parameters, and the filters behind them."""
    assert set(paper_models()) == set(TABLE)
    assert len(paper_models()) == 20
    for name, columns in TABLE.items():
        assert set(columns) == {"mnist", "cifar10", "svhn"}
        for data, expected in columns.items():
            assert paper_size(name, data) == expected, (name, data)


@pytest.mark.parametrize(
    ("name", "data", "intervals", "channels"),
    [
        ("NODE", "mnist", 1, 1),
        ("A1+NDDE", "mnist", 1, 2),
        ("NPCDDE3", "svhn", 3, 3),
        ("A2+UNPCDDE5", "cifar10", 5, 5),
    ],
)
def test_paper_model_shapes_and_options(name, data, intervals, channels):
    model = paper_model(name, data, key=KEY, pad_to=8, compute_dtype=jnp.bfloat16, **MIDPOINT)
    size = 28 if data == "mnist" else 32
    x = jnp.zeros((2, size, size, 1 if data == "mnist" else 3))
    sol = eqx.filter_eval_shape(model.flow.solve, x)
    assert sol.ys.shape == (1, 2, size, size, channels)
    assert sol.stats["num_intervals"] == intervals
    assert sol.stats["num_evaluations"] == 2 * intervals
    assert eqx.filter_eval_shape(model, x).shape == (2, 10)
    fields = model.flow.flow.field
    for field in fields if isinstance(fields, list) else [fields]:
        assert field.design.compute_dtype == jnp.bfloat16
        assert field.design.pad_to == 8


def test_paper_model_returns_logits():
    model = paper_model("A1+NPCDDE5", "mnist", key=KEY, **MIDPOINT)
    x = jax.random.uniform(KEY, (1, 28, 28, 1))
    final = model.flow(x)
    head = model.head.affine
    check_close(model(x), final.reshape(1, -1) @ head.weight + head.bias, 1e-4)
    other = paper_model("A1+NPCDDE5", "mnist", key=jax.random.key(1), **MIDPOINT)
    assert eqx.tree_equal(model, paper_model("A1+NPCDDE5", "mnist", key=KEY, **MIDPOINT))
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        assert jnp.any(a != b)
    first, second = paper_model("UNPCDDE2", "mnist", key=KEY).flow.flow.field
    assert jnp.all(first.layers[1].weight != second.layers[1].weight)


def test_paper_model_is_adaptive_by_default():
    model = paper_model("NODE", "mnist", key=KEY)
    stats = eqx.filter_eval_shape(model.flow.solve, jnp.zeros((1, 28, 28, 1))).stats
    assert isinstance(stats["num_steps"], jax.ShapeDtypeStruct)  # known only when it has run
