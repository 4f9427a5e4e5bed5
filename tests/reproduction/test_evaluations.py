"""Evaluations of an adaptive solver, above the least number that a model takes."""

import json

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.image_runs import a_line

import lagrax
from reproduction.images.evaluations import (
    count_above_least,
    evaluation_tables,
    get_least_evaluations,
)
from reproduction.images.records import parse_record
from reproduction.models import paper_intervals


@pytest.mark.parametrize("model", ["NODE", "NPCDDE2", "A1+NPCDDE5"])
def test_the_least_number_is_one_step_an_interval(model):
    """The field is so small that no interval needs a second step."""
    n = paper_intervals(model)
    sol = lagrax.solve(
        lambda t, y, args, *, history: 1e-5 * (y + history[0]),
        0.0,
        1.0,
        jnp.ones(3),
        delays=[lagrax.Hold(1 / n)],
        solver=diffrax.Dopri5(),
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3),
    )
    assert sol.stats["num_steps"] == n
    assert sol.stats["num_evaluations"] == get_least_evaluations(model)


def test_the_table_shows_the_excess():
    lines = [a_line("svhn", "NPCDDE5", seed, nfe=[43, 49 + 6 * seed] * 15) for seed in (0, 1)]
    records = [parse_record(json.dumps(line)) for line in lines]
    assert count_above_least("NPCDDE5", records)[:, -1].tolist() == [12, 18]
    (table,) = evaluation_tables({("svhn", "NPCDDE5"): records})
    assert table.rows == [["NPCDDE5", "37", "–", "6.0 → 15.0", "–"]]
    assert evaluation_tables({}) == []
    assert np.size(count_above_least("NODE", [])) == 0
