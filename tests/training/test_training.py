"""The training loop: against optax by hand, seed by seed, and what a user sees of it."""

import functools
import json
import math
import struct
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.small_run import (
    ADAM,
    DATA,
    XS,
    Affine,
    away_from_two,
    evaluate,
    loss,
    make,
    run_in,
    same,
)

from lagrax.training import RunError, TrainingError, train
from lagrax.training._checkpoints import load_checkpoint
from lagrax.training._progress import Progress


def by_hand(seed, batches):
    """The loop as anybody would write it."""
    model = make(jax.random.key(seed))
    state = ADAM.init(eqx.filter(model, eqx.is_inexact_array))
    losses = []
    for batch in batches:
        value, gradient = eqx.filter_value_and_grad(lambda m, b: jnp.mean(loss(m, b)))(model, batch)
        updates, state = ADAM.update(gradient, state)
        model = eqx.apply_updates(model, updates)
        losses.append(float(value))
    return model, losses


def test_equals_the_loop_by_hand():
    trained = train(loss, make, DATA, ADAM, steps=25, seeds=3, block=10, progress=False)
    model, losses = by_hand(3, [DATA] * 25)
    np.testing.assert_allclose(trained.model.weight, model.weight, rtol=1e-5)
    np.testing.assert_allclose(trained.metrics["loss"].values, losses, rtol=1e-5)
    np.testing.assert_array_equal(trained.metrics["loss"].steps, np.arange(1, 26))
    assert trained.model.name == "not an array"


def test_seeds_side_by_side_equal_each_alone():
    options = {"steps": 20, "batch_size": 4, "evaluate": evaluate, "test_data": jnp.array(3.0)}
    together = train(loss, make, DATA, ADAM, seeds=[5, 2], block=10, progress=False, **options)
    assert together.metrics["loss"].values.shape == (20, 2)
    assert together.metrics["error"].steps.tolist() == [10, 20]
    for i, seed in enumerate([5, 2]):
        alone = train(loss, make, DATA, ADAM, seeds=seed, block=10, progress=False, **options)
        for name in ("loss", "error"):
            values = together.metrics[name].values[:, i]
            np.testing.assert_allclose(values, alone.metrics[name].values, rtol=1e-4)
        np.testing.assert_allclose(together.model.weight[i], alone.model.weight, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 10, 99])
@pytest.mark.parametrize("block", [1, 7])
def test_every_row_counts_once_in_a_pass(size, block):
    """A model that only sums up the rows it is shown; ten rows, the last batch smaller."""
    rows = jnp.arange(10.0) + 1
    steps = -(-10 // size) * 2

    def seen(model, batch):
        return model["unused"] * 0 + batch, {"batch": batch}

    start = lambda key: {"unused": jnp.zeros(())}
    run = train(
        seen, start, rows, optax.sgd(0.0), steps=steps, batch_size=size, block=block, progress=False
    )
    means = run.metrics["loss"].values
    first, second = np.split(run.metrics["batch"].values, 2)
    counts = [min(size, 10 - i * size) for i in range(steps // 2)]
    for batches, part in ((first, means[: steps // 2]), (second, means[steps // 2 :])):
        shown = [b[:n] for b, n in zip(batches, counts, strict=True)]
        np.testing.assert_array_equal(np.sort(np.concatenate(shown)), rows)
        np.testing.assert_allclose(part, [s.mean() for s in shown], rtol=1e-6)
    if size < 10:
        assert not np.array_equal(first, second), "the second pass has the order of the first"


def test_blocks_do_not_change_the_result():
    one, other = (
        train(loss, make, DATA, ADAM, steps=12, batch_size=3, block=block, progress=False)
        for block in (12, 5)
    )
    np.testing.assert_allclose(one.metrics["loss"].values, other.metrics["loss"].values, rtol=1e-6)


# --- the folder -----------------------------------------------------------------------------------


def test_folder_holds_everything(tmp_path):
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


def test_a_finished_run_is_not_repeated(tmp_path):
    first = run_in(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    again = run_in(tmp_path)
    same(first.model, again.model)
    np.testing.assert_array_equal(first.metrics["loss"].values, again.metrics["loss"].values)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_other_settings_are_refused(tmp_path):
    run_in(tmp_path)
    with pytest.raises(RunError, match=r"steps was 20, now 10.*--no-resume"):
        run_in(tmp_path, steps=10)
    run_in(tmp_path, steps=10, resume=False)
    assert json.loads((tmp_path / "done.json").read_text())["steps"] == 10


@pytest.mark.parametrize("steps", ["many", None, [], -1])
def test_a_number_of_steps_that_is_none_is_refused(tmp_path, steps):
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


def test_other_data_to_test_on_are_refused(tmp_path):
    options = {"steps": 3, "folder": tmp_path, "progress": False}
    train(loss, make, DATA, ADAM, evaluate=evaluate, test_data=jnp.array(3.0), **options)
    with pytest.raises(RunError, match="test_data was"):
        train(loss, make, DATA, ADAM, evaluate=evaluate, test_data=jnp.array(2.0), **options)
    with pytest.raises(RunError, match="test_data was"):
        train(loss, make, DATA, ADAM, **options)


@pytest.mark.parametrize("options", [{}, {"keep": "error"}, {"keep": "error", "patience": 2}])
@pytest.mark.parametrize("steps", [3, 20, 23])
def test_a_run_may_be_given_more_steps(tmp_path, steps, options):
    """It ends as one that was given them at once, even if its first end lies within a block."""
    options |= {"checkpoint_seconds": 1e9}
    first, more = (run_in(tmp_path / "more", steps=n, **options) for n in (steps, 40))
    whole = run_in(tmp_path / "whole", steps=40, **options)
    assert len(first.metrics["loss"].steps) == steps
    same(more.model, whole.model)
    assert more.metrics.keys() == whole.metrics.keys()
    for name, series in whole.metrics.items():
        np.testing.assert_array_equal(more.metrics[name].steps, series.steps)
        np.testing.assert_array_equal(more.metrics[name].values, series.values)
    names = ("metrics.jsonl", "done.json")
    one, other = ([tmp_path / x / name for name in names] for x in ("more", "whole"))
    assert one[0].read_bytes() == other[0].read_bytes()
    assert json.loads(one[1].read_text())["steps"] == json.loads(other[1].read_text())["steps"]


@pytest.mark.parametrize("stopped", [5, 23])
def test_a_best_model_at_an_end_within_a_block_is_not_kept(tmp_path, stopped):
    """The weight passes 2 at the first end, where a run with more steps does not look."""
    target = train(loss, make, DATA, ADAM, steps=stopped, progress=False).model.weight
    options = {"evaluate": away_from_two, "test_data": target, "keep": "distance"}
    options |= {"block": 10, "progress": False}
    for steps in (stopped, 60):
        more = train(loss, make, DATA, ADAM, steps=steps, folder=tmp_path, **options)
    whole = train(loss, make, DATA, ADAM, steps=60, **options)
    assert more.metrics["distance"].steps.tolist() == [10, 20, 30, 40, 50, 60]
    same(more.model, whole.model)


def test_a_damaged_end_within_a_block_is_computed_again(tmp_path):
    whole, _ = (run_in(tmp_path / name, steps=23) for name in ("whole", "mended"))
    path = tmp_path / "mended/checkpoints/step-00000023.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    same(run_in(tmp_path / "mended", steps=23).model, whole.model)
    texts = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "mended")]
    assert texts[0] == texts[1]


def test_a_loss_with_noise(tmp_path):
    """Another key at each step and for each seed, the same ones after a stop."""

    def noisy(model, batch, key):
        noise = jax.random.normal(key)
        return loss(model, batch) + noise, {"noise": noise}

    options = {"seeds": (0, 1), "batch_size": 4, "block": 5, "progress": False}
    whole = train(noisy, make, DATA, ADAM, steps=20, **options)
    assert len(np.unique(whole.metrics["noise"].values)) == 40
    alone = train(noisy, make, DATA, ADAM, steps=20, **options | {"seeds": 1})
    np.testing.assert_allclose(alone.metrics["noise"].values, whole.metrics["noise"].values[:, 1])
    for steps in (10, 20):
        parts = train(noisy, make, DATA, ADAM, steps=steps, folder=tmp_path, **options)
    same(parts.model, whole.model)
    np.testing.assert_array_equal(parts.metrics["noise"].values, whole.metrics["noise"].values)
    plain = train(loss, make, DATA, ADAM, steps=20, **options)
    np.testing.assert_allclose(plain.model.weight, whole.model.weight, rtol=1e-5)


@pytest.mark.parametrize("seeds", [0, [0, 1]], ids=["one", "two"])
def test_optimisers_that_ask_for_the_loss(seeds):
    """A quadratic, which L-BFGS with its line search solves at once."""
    quadratic = lambda model, x: (x @ model["w"] - 3.0 * x[:, 0]) ** 2
    start = lambda key: {"w": jnp.zeros(1)}
    x = jnp.linspace(-1.0, 1.0, 16)[:, None]
    options = {"steps": 5, "seeds": seeds, "progress": False}
    found = train(quadratic, start, x, optax.lbfgs(), **options)
    np.testing.assert_allclose(found.model["w"], 3.0, rtol=1e-5)
    plateau = optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=1))
    assert np.all(train(quadratic, start, x, plateau, **options).model["w"] > 0.3)


def test_a_model_may_hold_a_key(tmp_path):
    class Noisy(eqx.Module):
        weight: jax.Array
        key: jax.Array

    start = lambda key: Noisy(jnp.zeros(()), key)
    value = lambda model, rows: (model.weight - rows[0][:, 0]) ** 2
    options = {"steps": 3, "folder": tmp_path, "progress": False}
    first, again = (train(value, start, DATA, ADAM, **options) for _ in range(2))
    np.testing.assert_array_equal(*(jax.random.key_data(x.model.key) for x in (first, again)))


KINDS = (
    "bool int2 int4 uint4 int32 float16 bfloat16 float4_e2m1fn float8_e4m3fn float8_e5m2 "
    "float8_e4m3b11fnuz complex64"
)
EXTRAS = {kind: lambda kind=kind: jnp.array([0, 1]).astype(kind) for kind in KINDS.split()}
EXTRAS |= {
    kind: lambda kind=kind: np.arange(3).astype(kind[6:])
    for kind in ("numpy int64", "numpy float64", "numpy float32", "numpy complex128")
}
EXTRAS |= {
    f"key {kind}": lambda kind=kind: jax.random.key(7, impl=kind)
    for kind in ("threefry2x32", "rbg", "unsafe_rbg")
}
EXTRAS |= {
    "NumPy's number": lambda: np.float64(0.1),
    "int4, one": lambda: jnp.array(3).astype("int4"),
    "int4, none": lambda: jnp.zeros((0, 2), "int4"),
}


class Extra(eqx.Module):
    """A model with something more, which the loss leaves alone."""

    weight: jax.Array
    extra: object


def raw(leaf):
    key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if key else leaf)
    return str(leaf.dtype), array.shape, array.tobytes()


@pytest.mark.parametrize("kind", EXTRAS)
@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_whatever_a_model_holds_its_run_can_go_on(tmp_path, kind, seeds):
    start = lambda key: Extra(jnp.zeros(()), EXTRAS[kind]())
    value = lambda model, rows: (model.weight - rows[0][:, 0]) ** 2
    options = {"seeds": seeds, "block": 2, "progress": False}
    for steps in (2, 4):
        more = train(value, start, DATA, optax.sgd(0.1), steps=steps, folder=tmp_path, **options)
    whole = train(value, start, DATA, optax.sgd(0.1), steps=4, **options)
    assert raw(more.model.weight) == raw(whole.model.weight)
    assert raw(more.model.extra) == raw(whole.model.extra)


def test_a_model_in_double_precision_can_go_on(tmp_path, x64):
    start = lambda key: Extra(jnp.zeros(()), jnp.array([1.0 + 2.0j]))
    value = lambda model, rows: (model.weight - rows[0][:, 0]) ** 2
    for steps in (1, 2):
        options = {"steps": steps, "folder": tmp_path, "progress": False}
        run = train(value, start, DATA, optax.sgd(0.1), **options)
    assert run.model.extra.dtype == "complex128"
    np.testing.assert_array_equal(run.model.extra, [1 + 2j])


@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_arrays_of_numpy_are_trained(seeds):
    start = lambda key: {"weight": np.zeros(1)}
    value = lambda model, rows: (model["weight"] - 1.0) ** 2
    options = {"steps": 50, "seeds": seeds, "progress": False}
    run = train(value, start, DATA, optax.sgd(0.1), **options)
    np.testing.assert_allclose(run.model["weight"], 1.0, rtol=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [1, -math.inf, math.nan]}])
def test_a_configuration_with_what_is_no_number(tmp_path, value):
    run_in(tmp_path, steps=5, config={"x": value, "y": 1})
    run_in(tmp_path, steps=10, config={"x": value, "y": 1.0})
    with pytest.raises(RunError, match=r"config\.x was"):
        run_in(tmp_path, steps=10, config={"x": 0.0, "y": 1})
    strict((tmp_path / "config.json").read_text())


def strict(text):
    """JSON as every other program reads it."""

    def refused(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refused)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float8_e5m2"])
def test_metrics_are_json_in_any_precision(tmp_path, kind):
    values = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1.1]).astype(kind)
    noted = lambda model, batch: (loss(model, batch), {"m": values})
    run = train(noted, make, DATA, ADAM, steps=1, folder=tmp_path, progress=False)
    line = strict((tmp_path / "metrics.jsonl").read_text())
    assert line["m"][:3] == [None] * 3
    np.testing.assert_array_equal(np.array(line["m"][3]).astype(values.dtype), values[3])
    assert np.isnan(run.metrics["m"].values[0, :3]).all()


def test_other_versions_are_told(tmp_path, capsys):
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
def test_versions_that_are_none(tmp_path, machine):
    run_in(tmp_path, steps=10)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": machine}))
    assert len(run_in(tmp_path, steps=20).metrics["loss"].steps) == 20


RATE = jnp.float32(0.1)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.sgd(RATE),
        optax.sgd(RATE, momentum=jnp.float32(0.9)),
        optax.adam(RATE, mu_dtype=jnp.float32),
        optax.chain(optax.sgd(0.1), optax.ema(jnp.float32(0.9))),
    ],
    ids=["rate", "momentum", "moments", "average"],
)
def test_parameters_keep_their_precision(optimiser):
    start = lambda key: {"w": jnp.zeros((), jnp.bfloat16)}
    value = lambda model, rows: (model["w"] - 1.0) ** 2 + 0 * rows[0][:, 0]
    run = train(value, start, DATA, optimiser, steps=60, progress=False)
    assert run.model["w"].dtype == jnp.bfloat16
    assert abs(run.model["w"] - 1) < 0.15


@pytest.mark.parametrize("opaque", [False, True], ids=["step by step", "opaque"])
@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_sharpness_aware_minimisation(opaque, seeds):
    """Against the loop by hand, as optax's documentation writes it."""
    uphill = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    optimiser = optax.contrib.sam(optax.adam(0.1), uphill, opaque_mode=opaque)
    run = train(loss, make, DATA, optimiser, steps=7, seeds=seeds, progress=False)
    model = make(jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    gradient = jax.grad(lambda arrays, _: jnp.mean(loss(eqx.combine(arrays, static), DATA)))
    state = optimiser.init(arrays)
    for _ in range(7):
        updates, state = optimiser.update(gradient(arrays, 0), state, arrays, grad_fn=gradient)
        arrays = optax.apply_updates(arrays, updates)
    found = np.ravel(run.model.weight)[0]
    np.testing.assert_allclose(found, arrays.weight, rtol=1e-5)


def test_starting_over_leaves_foreign_files_alone(tmp_path):
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
def test_absent_extra_says_what_to_install(tmp_path, monkeypatch, module, options):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "lagrax\[train\]"'):
        run_in(tmp_path, **options)


# --- what a user sees -----------------------------------------------------------------------------


def test_a_lost_run_says_so(tmp_path):
    with pytest.raises(TrainingError, match=r"not finite from step \d+ on. Lower the learning"):
        train(
            loss, make, DATA, optax.sgd(1e6), steps=100, block=10, folder=tmp_path, progress=False
        )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert None in [json.loads(line)["loss"] for line in lines]


def test_one_lost_seed_does_not_stop_the_others():
    def sometimes(model, batch):
        return jnp.where(model.weight > 0, jnp.nan, 1.0) * jnp.sum(loss(model, batch))

    run = train(sometimes, make, DATA, optax.sgd(0.0), steps=3, seeds=range(8), progress=False)
    last = run.metrics["loss"].values[-1]
    assert 0 < np.isnan(last).sum() < 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"block": 0}, "block=0"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"seeds": ()}, r"seeds=\(\)"),
        ({"seeds": (1, 1)}, r"seeds=\(1, 1\)"),
        ({"data": (jnp.zeros(3), jnp.zeros(4))}, r"shapes \[\(3,\), \(4,\)\]"),
        ({"data": ()}, r"shapes \[\]"),
        ({"tensorboard": True}, "no folder"),
        ({"seeds": -1}, "seeds=-1"),
        ({"seeds": 2**40}, "seeds=1099511627776"),
        ({"data": jnp.zeros((0, 2))}, r"shapes \[\(0, 2\)\]"),
        ({"config": {"rate": jnp.ones(2)}}, r"config\['rate'\] that JSON cannot hold"),
        ({"evaluate": lambda model, _: {"loss": 0.0}}, "evaluate returned loss"),
    ],
)
def test_bad_input(options, message):
    options = {"steps": 1, "data": DATA, "progress": False} | options
    with pytest.raises(ValueError, match=message):
        train(loss, make, options.pop("data"), ADAM, **options)


def test_numbers_of_numpy_will_do():
    options = {"steps": np.int64(2), "batch_size": np.int32(4), "progress": False}
    several = train(loss, make, DATA, ADAM, seeds=np.array([0, 1]), **options)
    single = train(loss, make, (XS, 3 * XS - 1), ADAM, seeds=np.int64(1), **options)
    np.testing.assert_allclose(several.model.weight[1], single.model.weight, rtol=1e-5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda model, batch: jnp.mean(loss(model, batch)), "expected one a row"),
        (lambda model, batch: (loss(model, batch), {"loss": 1.0}), "may not be called loss"),
    ],
)
def test_a_loss_that_cannot_be_averaged(bad, message):
    with pytest.raises(ValueError, match=message):
        train(bad, make, DATA, ADAM, steps=3, batch_size=4, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": lambda m, b: (loss(m, b), loss(m, b))}, "loss returned .*expected a dictionary"),
        ({"evaluate": lambda m, d: jnp.mean(loss(m, d))}, "evaluate .*expected a dictionary"),
        ({"evaluate": lambda m, d: {"a": {"b": 1.0}}}, "metric 'a' as .*expected a number"),
    ],
)
@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_metrics_that_are_none(options, message, seeds):
    parts: dict = {"loss": loss, "make": make, "data": DATA, "optimiser": ADAM} | options
    with pytest.raises((TypeError, ValueError), match=message):
        train(**parts, test_data=DATA, steps=3, seeds=seeds, progress=False)


def test_progress_can_be_a_function(capfd):
    seen = []
    trained = train(
        loss, make, DATA, ADAM, steps=25, block=10, progress=lambda *found: seen.append(found)
    )
    assert [step for step, _ in seen] == [10, 20, 25]
    losses = trained.metrics["loss"].values[[9, 19, 24]]
    np.testing.assert_allclose([x for _, x in seen], losses, rtol=1e-6)
    assert capfd.readouterr().err == ""


def test_plain_progress_without_a_terminal(capfd):
    train(loss, make, DATA, ADAM, steps=20, block=10)
    message = capfd.readouterr().err
    assert message.startswith("training: 20 of 20, ")
    assert message.isprintable() or message.count("\n") == 1
    assert "\x1b" not in message


def test_bar_in_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    train(loss, make, DATA, ADAM, steps=20, block=10)
    assert "20/20" in capfd.readouterr().err


def events(folder):
    """(tag, step, value) of every scalar in the event files, read by the format's definition."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack("<Q", content[place : place + 8])
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


def test_tensorboard_files(tmp_path):
    trained = run_in(tmp_path, tensorboard=True)
    found = {(tag, step): value for tag, step, value in events(tmp_path / "tensorboard")}
    values = trained.metrics["loss"].values
    assert math.isclose(found["loss/1", 20], values[-1][1], rel_tol=1e-6)
    assert {step for tag, step in found if tag == "error/0"} == {5, 10, 15, 20}
    assert len([1 for tag, _ in found if tag == "loss/0"]) == 20


def test_two_bars_share_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("first", 0, 4) as first, Progress("second", 0, 4) as second:
        first.update(2, "a")
        second.update(4, "b")
    shown = capfd.readouterr().err
    assert "first" in shown
    assert "second" in shown


def test_the_best_model_is_kept_for_each_seed():
    options = {"steps": 60, "block": 1, "progress": False, "evaluate": away_from_two}
    last = train(loss, make, DATA, ADAM, seeds=[0, 1], test_data=jnp.array(2.0), **options)
    best = train(
        loss, make, DATA, ADAM, seeds=[0, 1], test_data=jnp.array(2.0), keep="distance", **options
    )
    values = last.metrics["distance"].values
    np.testing.assert_array_equal(best.metrics["distance"].values, values)
    np.testing.assert_allclose(np.abs(best.model.weight - 2.0), values.min(axis=0), rtol=1e-6)
    assert np.all(np.abs(last.model.weight - 2.0) > np.abs(best.model.weight - 2.0) + 0.1)


def test_training_ends_when_patience_does(tmp_path):
    options = {"block": 2, "progress": False, "evaluate": away_from_two, "keep": "distance"}
    options |= {"test_data": jnp.array(2.0), "patience": 3}
    trained = train(loss, make, DATA, ADAM, steps=200, seeds=0, folder=tmp_path / "a", **options)
    values = trained.metrics["distance"].values
    assert len(values) < 100
    assert np.argmin(values) == len(values) - 4
    summary = json.loads((tmp_path / "a" / "done.json").read_text())
    assert summary["steps"] == 2 * len(values)
    again = train(loss, make, DATA, ADAM, steps=200, seeds=0, folder=tmp_path / "a", **options)
    same(trained.model, again.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "error"}, "no evaluate"),
        ({"patience": 3}, "no `keep`"),
        ({"keep": "errors", "evaluate": evaluate, "test_data": jnp.array(3.0)}, "'errors'"),
        ({"keep": "error", "evaluate": evaluate, "patience": 0}, "patience=0"),
        ({"keep": "step", "evaluate": evaluate}, "'step', which evaluate does not return.*error"),
        ({"keep": "loss", "evaluate": evaluate}, "'loss', which evaluate does not return"),
        (
            {"keep": "errors", "evaluate": lambda m, d: {"errors": loss(m, DATA)}},
            r"keep='errors'.*array of shape \(10,\) and float32.*one real number",
        ),
        (
            {"keep": "e", "evaluate": lambda m, d: {"e": m.weight + 1j}},
            r"'e'.*complex64",
        ),
    ],
)
@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_what_cannot_be_kept_is_named(seeds, options, message):
    options = {"test_data": jnp.array(3.0), "seeds": seeds} | options
    with pytest.raises(ValueError, match=message):
        train(loss, make, DATA, ADAM, steps=5, progress=False, **options)


# --- what is easily got wrong ---------------------------------------------------------------------


def test_keys_of_a_loss_are_others_than_those_of_the_rows():
    seen = lambda model, batch, key: (loss(model, batch), {"key": jax.random.key_data(key)})
    run = train(seen, make, DATA, ADAM, steps=6, batch_size=5, seeds=3, progress=False)
    own = jax.random.key(3)
    rows = [jax.random.key_data(k) for k in (own, *(jax.random.fold_in(own, i) for i in range(6)))]
    given = {tuple(key.tolist()) for key in run.metrics["key"].values}
    assert not {tuple(np.asarray(key).tolist()) for key in rows} & given


def test_a_block_that_ends_in_the_next_pass():
    """Four batches a pass: blocks of three reach into the next one."""
    seen = lambda model, batch: (model["x"] * 0 + batch, {"batch": batch})
    start, rows = lambda key: {"x": jnp.zeros(())}, jnp.arange(10.0)
    options = {"steps": 8, "batch_size": 3, "progress": False}
    one, other = (train(seen, start, rows, optax.sgd(0.0), block=b, **options) for b in (1, 3))
    np.testing.assert_array_equal(one.metrics["batch"].values, other.metrics["batch"].values)


def counting(table, **options):
    """Each step adds one to a number, by which `evaluate` reads a metric from the table."""
    value = lambda model, batch: -model["number"] + 0 * batch
    start = lambda key: {"number": jnp.zeros(()), "seed": jax.random.key_data(key)[-1]}

    def read(model, table):
        return {"m": table[jnp.round(model["number"]).astype(int) - 1, model["seed"].astype(int)]}

    options |= {"evaluate": read, "test_data": table, "keep": "m", "patience": 2, "block": 1}
    steps = len(table)
    return train(value, start, jnp.zeros(1), optax.sgd(1.0), steps=steps, progress=False, **options)


def test_patience_waits_for_every_seed():
    first, second = [9.0, 8.0, 7.0, 6.0, 5.0, 5.5, 5.6, 5.7, 5.8], [9.0, 1, 2, 3, 4, 5, 5, 5, 5]
    run = counting(jnp.array([first, second]).T, seeds=[0, 1])
    assert run.metrics["m"].steps[-1] == 7
    np.testing.assert_array_equal(run.model["number"], [5.0, 2.0])


def test_patience_does_not_count_what_is_no_number():
    run = counting(jnp.array([[jnp.nan, 3.0, 2.0, 1.0, 0.5, 0.6, 0.7, 0.8]]).T, seeds=0)
    assert run.metrics["m"].steps[-1] == 7
    assert run.model["number"] == 5.0


@pytest.mark.parametrize("lost", [3, 4, 6])
def test_from_which_step_on_it_is_lost(lost):
    def value(model, batch):
        return jnp.where(model["number"] < lost - 1, -model["number"], jnp.nan) + 0 * batch

    start, options = lambda key: {"number": jnp.zeros(())}, {"steps": 12, "block": 6}
    with pytest.raises(TrainingError, match=f"from step {lost} on"):
        train(value, start, jnp.zeros(1), optax.sgd(1.0), progress=False, **options)


def test_a_key_that_is_given_already():
    noisy = lambda model, batch, key: (loss(model, batch), {"noise": jax.random.normal(key)})
    bound = functools.partial(noisy, key=jax.random.key(7))
    noise = train(bound, make, DATA, ADAM, steps=3, progress=False).metrics["noise"].values
    np.testing.assert_allclose(noise, jax.random.normal(jax.random.key(7)), rtol=1e-6)
