"""The folder of a run: its content, and the checks of its configuration when it is resumed."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.small_run import (
    ADAM,
    DATA,
    Affine,
    away_from_two,
    check_same,
    evaluate,
    loss,
    make,
    run_in,
)

from lagrax.training import RunError, train
from lagrax.training._checkpoints import load_checkpoint


def test_folder_holds_config_metrics_checkpoints_and_summary(tmp_path):
    trained = run_in(tmp_path / "run", config={"width": 10})
    config = json.loads((tmp_path / "run/config.json").read_text())
    given = {"steps": 20, "seeds": [0, 1], "batch_size": 4, "block": 5, "config.width": 10}
    assert {name: config["config"][name] for name in given} == given
    assert config["config"].keys() - given.keys() == {"data", "start", "test_data"}
    assert config["machine"]["versions"]["jax"] == jax.__version__
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines] == list(range(1, 21))
    np.testing.assert_allclose([x["loss"] for x in lines], trained.metrics["loss"].values)
    assert [x["step"] for x in lines if "error" in x] == [5, 10, 15, 20]
    done = json.loads((tmp_path / "run/done.json").read_text())
    assert done["steps"] == 20
    assert done["last"] == lines[-1]
    names = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["step-00000015.safetensors", "step-00000020.safetensors"]


def test_finished_run_is_loaded_and_not_repeated(tmp_path):
    first = run_in(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    again = run_in(tmp_path)
    check_same(first.model, again.model)
    np.testing.assert_array_equal(first.metrics["loss"].values, again.metrics["loss"].values)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_restart_leaves_foreign_files_alone(tmp_path):
    run_in(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    run_in(tmp_path, resume=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("filelock", {}),
        ("safetensors.numpy", {}),
        ("tensorboardX", {"tensorboard": True}),
    ],
)
def test_missing_package_names_its_extra(tmp_path, monkeypatch, module, options):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "lagrax\[train\]"'):
        run_in(tmp_path, **options)


# --- configuration --------------------------------------------------------------------------------


def test_other_settings_are_refused(tmp_path):
    run_in(tmp_path)
    with pytest.raises(RunError, match=r"steps was 20, now 10.*--no-resume"):
        run_in(tmp_path, steps=10)
    run_in(tmp_path, steps=10, resume=False)
    assert json.loads((tmp_path / "done.json").read_text())["steps"] == 10


@pytest.mark.parametrize("steps", ["many", None, [], -1])
def test_invalid_steps_in_the_configuration_are_refused(tmp_path, steps):
    run_in(tmp_path)
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    found["config"]["steps"] = steps
    path.write_text(json.dumps(found))
    with pytest.raises(RunError, match="other settings"):
        run_in(tmp_path)


def test_another_model_is_refused(tmp_path):
    run_in(tmp_path)
    wide = lambda key: Affine(jnp.zeros(3), jnp.zeros(3))
    options = {"steps": 20, "seeds": (0, 1), "batch_size": 4, "block": 5, "progress": False}
    with pytest.raises(RunError, match="start was"):
        train(loss, wide, DATA, ADAM, folder=tmp_path, **options)
    config = tmp_path / "config.json"
    trained = json.loads(config.read_text())
    del trained["config"]["start"], trained["config"]["data"]
    like = wide(jax.random.key(0))
    with pytest.raises(RunError, match="holds another model or optimiser"):
        load_checkpoint(tmp_path / "checkpoints/step-00000020.safetensors", like)


def test_other_data_are_refused(tmp_path):
    options = {"steps": 3, "folder": tmp_path, "progress": False}
    train(loss, make, DATA, ADAM, **options)
    with pytest.raises(RunError, match="data was"):
        train(loss, make, (DATA[0], -DATA[1]), ADAM, **options)
    with pytest.raises(RunError, match="start was"):
        train(loss, make, DATA, optax.sgd(0.1), **options)


def test_other_test_data_are_refused(tmp_path):
    options = {"steps": 3, "folder": tmp_path, "progress": False}
    train(loss, make, DATA, ADAM, evaluate=evaluate, test_data=jnp.array(3.0), **options)
    with pytest.raises(RunError, match="test_data was"):
        train(loss, make, DATA, ADAM, evaluate=evaluate, test_data=jnp.array(2.0), **options)
    with pytest.raises(RunError, match="test_data was"):
        train(loss, make, DATA, ADAM, **options)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [1, -math.inf, math.nan]}])
def test_configuration_may_hold_nan_and_infinity(tmp_path, value):
    run_in(tmp_path, steps=5, config={"x": value, "y": 1})
    run_in(tmp_path, steps=10, config={"x": value, "y": 1.0})
    with pytest.raises(RunError, match=r"config\.x was"):
        run_in(tmp_path, steps=10, config={"x": 0.0, "y": 1})
    parse_strict_json((tmp_path / "config.json").read_text())


def parse_strict_json(text):
    """JSON as every other program reads it."""

    def refused(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refused)


def test_other_versions_are_reported(tmp_path, capsys):
    run_in(tmp_path, steps=10)
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    versions = found["machine"]["versions"]
    found["machine"]["versions"] = versions | {"jax": "0.1\x1b[2J", "rich": "0", "gone": "1"}
    path.write_text(json.dumps(found))
    run_in(tmp_path, steps=10)
    assert capsys.readouterr().err == ""  # It has ended.
    run_in(tmp_path, steps=20)
    said = capsys.readouterr().err
    assert f"jax was '0.1\\x1b[2J', now {jax.__version__!r}" in said
    assert "may differ" in said
    assert "rich" not in said
    assert "gone" not in said
    assert "optax" not in said


@pytest.mark.parametrize("machine", [None, 3, [], {}, {"versions": 3}, {"versions": {"jax": 3}}])
def test_invalid_versions_are_ignored(tmp_path, machine):
    run_in(tmp_path, steps=10)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": machine}))
    assert len(run_in(tmp_path, steps=20).metrics["loss"].steps) == 20


# --- more steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"keep": "error"}, {"keep": "error", "patience": 2}])
@pytest.mark.parametrize("steps", [3, 20, 23])
def test_run_given_more_steps_equals_one_that_had_them_at_once(tmp_path, steps, options):
    """It ends as one that was given them at once, even if its first end lies within a block."""
    options |= {"checkpoint_seconds": 1e9}
    first, more = (run_in(tmp_path / "more", steps=n, **options) for n in (steps, 40))
    whole = run_in(tmp_path / "whole", steps=40, **options)
    assert len(first.metrics["loss"].steps) == steps
    check_same(more.model, whole.model)
    assert more.metrics.keys() == whole.metrics.keys()
    for name, series in whole.metrics.items():
        np.testing.assert_array_equal(more.metrics[name].steps, series.steps)
        np.testing.assert_array_equal(more.metrics[name].values, series.values)
    names = ("metrics.jsonl", "done.json")
    one, other = ([tmp_path / x / name for name in names] for x in ("more", "whole"))
    assert one[0].read_bytes() == other[0].read_bytes()
    assert json.loads(one[1].read_text())["steps"] == json.loads(other[1].read_text())["steps"]


@pytest.mark.parametrize("stopped", [5, 23])
def test_best_model_of_a_partial_block_is_forgotten(tmp_path, stopped):
    """The weight passes 2 at the first end, where a run with more steps does not look."""
    target = train(loss, make, DATA, ADAM, steps=stopped, progress=False).model.weight
    options = {"evaluate": away_from_two, "test_data": target, "keep": "distance"}
    options |= {"block": 10, "progress": False}
    for steps in (stopped, 60):
        more = train(loss, make, DATA, ADAM, steps=steps, folder=tmp_path, **options)
    whole = train(loss, make, DATA, ADAM, steps=60, **options)
    assert more.metrics["distance"].steps.tolist() == [10, 20, 30, 40, 50, 60]
    check_same(more.model, whole.model)


def test_damaged_end_within_a_block_is_recomputed(tmp_path):
    whole, _ = (run_in(tmp_path / name, steps=23) for name in ("whole", "mended"))
    path = tmp_path / "mended/checkpoints/step-00000023.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    check_same(run_in(tmp_path / "mended", steps=23).model, whole.model)
    texts = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "mended")]
    assert texts[0] == texts[1]


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float8_e5m2"])
def test_metrics_are_valid_json_in_any_precision(tmp_path, kind):
    values = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1.1]).astype(kind)
    noted = lambda model, batch: (loss(model, batch), {"m": values})
    run = train(noted, make, DATA, ADAM, steps=1, folder=tmp_path, progress=False)
    line = parse_strict_json((tmp_path / "metrics.jsonl").read_text())
    assert line["m"][:3] == [None] * 3
    np.testing.assert_array_equal(np.array(line["m"][3]).astype(values.dtype), values[3])
    assert np.isnan(run.metrics["m"].values[0, :3]).all()
