"""The protocol study, from records made by hand."""

import jax
import jax.numpy as jnp
from helpers.image_runs import a_line, written

from reproduction import (
    models as _models,
)
from reproduction.images import (
    default_protocol,
    image_result,
    protocol_study as study,
)


def test_the_study_compares_settings_by_seed(tmp_path):
    tsit5 = {"solver": "tsit5", "solver_error": 0.08}
    content = [a_line(seed=1, best=53.0, steps=2, **tsit5), a_line(seed=2, best=99.0)]
    tsit5["solver_error"] = 0.02
    content += [a_line(seed=i, best=54.0 + i, steps=4, **tsit5) for i in (0, 1)]
    content += [a_line(seed=0, solver="bosh3", steps=6)]
    # Other settings with other seeds are none of its own.
    content += [a_line(seed=3, best=99.0, precision="bf16")]
    result, _ = image_result(written(tmp_path, *content))
    precision, solver, epochs = [t for t in result.tables if t.title.startswith("Protocol study")]
    first = ["NODE, 2 tsit5 steps, f16", "–, 53.00", "–, 52.00", "–, 1.000", "–, 40"]
    assert precision.rows[0] == first
    assert precision.rows[1] == ["NODE, 2 tsit5 steps, bf16", "–", "–", "–", "–"]
    assert len(precision.rows) == 9
    rows = {row[0]: row[1:] for row in solver.rows}
    assert rows["NODE, 4 tsit5 steps"][:4] == [
        "54.00, 55.00",
        "53.00, 54.00",
        "2.0, 2.0",
        "+0.50, +0.50",
    ]
    assert rows["NODE, adaptive dopri5, 0.001"] == ["–"] * 6
    assert rows["NODE, 6 bosh3 steps"][0] == "53.00, –"
    assert rows["NODE, 4 bosh3 steps"] == ["–"] * 6
    assert "divide the error by 4.0 to 4.0" in solver.note
    assert "by +2.00 to +2.00 points" in solver.note
    assert "of equal cost" not in solver.note
    assert "Over all 5 runs" in solver.note
    # The default with all its seeds.
    assert epochs.rows[0] == ["NODE", "99.00", "98.00", "2", "53.92 ± 0.67"]
    assert epochs.rows[1][1:4] == ["–"] * 3
    assert "1.00 points above the last" in epochs.note


def test_the_study_compares_solvers_of_equal_cost(tmp_path):
    content = [
        a_line(seed=i, best=best + i, solver=p.solver, steps=p.steps, solver_error=error * (1 + i))
        for p, best, error in zip(study.EQUAL_COST, (53, 55, 54), (0.02, 0.04, 0.03), strict=True)
        for i in study.SEEDS
    ]
    result, _ = image_result(written(tmp_path, *content))
    (table,) = [t for t in result.tables if t.title.endswith("solver and steps")]
    assert (
        "an error of 3.0 % with 4 bosh3 steps, 4.5 % with 2 tsit5 steps, 6.0 % with 6 midpoint "
        "steps (means of 2 seeds). Their best accuracies are 53.50, 54.50, 55.50, in this order."
    ) in table.note


def test_the_study_compares_adaptive_steps_with_the_default(tmp_path):
    content = [a_line(model="NPCDDE5", seed=i, best=56.0 + i, seconds=30.0 + i) for i in (0, 1)]
    adaptive = {"solver": "dopri5", "steps": None, "rtol": 1e-3, "seconds": 124.0}
    content += [a_line(model="NPCDDE5", seed=1, best=56.5, **adaptive)]
    result, _ = image_result(written(tmp_path, *content))
    (table,) = [t for t in result.tables if t.title.endswith("solver and steps")]
    assert (
        "Adaptive steps take 4.0 to 4.0 times as long as the default, and change the best "
        "accuracy of a seed by −0.50 to −0.50 points."
    ) in table.note
    assert "Twice the steps" not in table.note


def test_compared_solvers_have_equal_cost():
    for protocol in study.EQUAL_COST:
        model = _models.paper_model("NODE", "mnist", key=jax.random.key(0), **protocol.flow_options)
        assert model.flow.solve(jnp.zeros((1, 28, 28, 1))).stats["num_evaluations"] == 12


def test_default_runs_alone_make_no_study(tmp_path):
    result, _ = image_result(written(tmp_path, a_line()))
    assert not [t for t in result.tables if t.title.startswith("Protocol study")]


def test_settings_of_the_study_are_distinct():
    for model in study.MODELS:
        settings = study.list_settings(model)
        assert settings[0] == default_protocol(model)
        assert study.studied_protocol(model) in settings
        assert len(set(settings)) == len(settings) == (7 if model == "NODE" else 5)
