"""The training loop, compared with loops written out with optax."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.small_run import ADAM, DATA, XS, away_from_two, check_same, evaluate, loss, make

from lagrax.training import TrainingError, train


def train_written_out(seed, batches):
    """The loop as a user of optax would write it."""
    model = make(jax.random.key(seed))
    state = ADAM.init(eqx.filter(model, eqx.is_inexact_array))
    losses = []
    for batch in batches:
        value, gradient = eqx.filter_value_and_grad(lambda m, b: jnp.mean(loss(m, b)))(model, batch)
        updates, state = ADAM.update(gradient, state)
        model = eqx.apply_updates(model, updates)
        losses.append(float(value))
    return model, losses


def test_training_equals_a_loop_written_out():
    trained = train(loss, make, DATA, ADAM, steps=25, seeds=3, block=10, progress=False)
    model, losses = train_written_out(3, [DATA] * 25)
    np.testing.assert_allclose(trained.model.weight, model.weight, rtol=1e-5)
    np.testing.assert_allclose(trained.metrics["loss"].values, losses, rtol=1e-5)
    np.testing.assert_array_equal(trained.metrics["loss"].steps, np.arange(1, 26))
    assert trained.model.name == "not an array"


def test_seeds_trained_together_equal_each_alone():
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


def test_blocks_do_not_change_the_result():
    one, other = (
        train(loss, make, DATA, ADAM, steps=12, batch_size=3, block=block, progress=False)
        for block in (12, 5)
    )
    np.testing.assert_allclose(one.metrics["loss"].values, other.metrics["loss"].values, rtol=1e-6)


def test_numpy_integers_are_accepted():
    options = {"steps": np.int64(2), "batch_size": np.int32(4), "progress": False}
    several = train(loss, make, DATA, ADAM, seeds=np.array([0, 1]), **options)
    single = train(loss, make, (XS, 3 * XS - 1), ADAM, seeds=np.int64(1), **options)
    np.testing.assert_allclose(several.model.weight[1], single.model.weight, rtol=1e-5)


@pytest.mark.parametrize("seeds", [0, (0, 1)], ids=["one", "two"])
def test_numpy_arrays_are_trained(seeds):
    start = lambda key: {"weight": np.zeros(1)}
    value = lambda model, rows: (model["weight"] - 1.0) ** 2
    options = {"steps": 50, "seeds": seeds, "progress": False}
    run = train(value, start, DATA, optax.sgd(0.1), **options)
    np.testing.assert_allclose(run.model["weight"], 1.0, rtol=1e-3)


# --- batches and keys -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5, 10, 99])
@pytest.mark.parametrize("block", [1, 7])
def test_each_pass_uses_every_row_once(size, block):
    """The loss returns the rows of its batch. There are ten rows, and the last batch is smaller."""
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


def test_block_may_end_within_the_next_pass():
    """A pass has four batches, and a block three."""
    seen = lambda model, batch: (model["x"] * 0 + batch, {"batch": batch})
    start, rows = lambda key: {"x": jnp.zeros(())}, jnp.arange(10.0)
    options = {"steps": 8, "batch_size": 3, "progress": False}
    one, other = (train(seen, start, rows, optax.sgd(0.0), block=b, **options) for b in (1, 3))
    np.testing.assert_array_equal(one.metrics["batch"].values, other.metrics["batch"].values)


def test_noisy_loss_gets_a_new_key_at_each_step(tmp_path):
    """Each step and seed has its own key, also in a run that is resumed."""

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
    check_same(parts.model, whole.model)
    np.testing.assert_array_equal(parts.metrics["noise"].values, whole.metrics["noise"].values)
    plain = train(loss, make, DATA, ADAM, steps=20, **options)
    np.testing.assert_allclose(plain.model.weight, whole.model.weight, rtol=1e-5)


def test_keys_of_the_loss_differ_from_those_of_the_rows():
    seen = lambda model, batch, key: (loss(model, batch), {"key": jax.random.key_data(key)})
    run = train(seen, make, DATA, ADAM, steps=6, batch_size=5, seeds=3, progress=False)
    own = jax.random.key(3)
    rows = [jax.random.key_data(k) for k in (own, *(jax.random.fold_in(own, i) for i in range(6)))]
    given = {tuple(key.tolist()) for key in run.metrics["key"].values}
    assert not {tuple(np.asarray(key).tolist()) for key in rows} & given


def test_key_with_a_default_is_left_alone():
    noisy = lambda model, batch, key: (loss(model, batch), {"noise": jax.random.normal(key)})
    bound = functools.partial(noisy, key=jax.random.key(7))
    noise = train(bound, make, DATA, ADAM, steps=3, progress=False).metrics["noise"].values
    np.testing.assert_allclose(noise, jax.random.normal(jax.random.key(7)), rtol=1e-6)


# --- optimisers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [0, [0, 1]], ids=["one", "two"])
def test_optimisers_that_need_the_loss(seeds):
    """L-BFGS with its line search minimises a quadratic function in a few steps."""
    quadratic = lambda model, x: (x @ model["w"] - 3.0 * x[:, 0]) ** 2
    start = lambda key: {"w": jnp.zeros(1)}
    x = jnp.linspace(-1.0, 1.0, 16)[:, None]
    options = {"steps": 5, "seeds": seeds, "progress": False}
    found = train(quadratic, start, x, optax.lbfgs(), **options)
    np.testing.assert_allclose(found.model["w"], 3.0, rtol=1e-5)
    plateau = optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=1))
    assert np.all(train(quadratic, start, x, plateau, **options).model["w"] > 0.3)


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
def test_sharpness_aware_minimisation_equals_a_loop_written_out(opaque, seeds):
    """The loop is that of optax's documentation."""
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


# --- the best model -------------------------------------------------------------------------------


def test_best_model_is_kept_for_each_seed():
    options = {"steps": 60, "block": 1, "progress": False, "evaluate": away_from_two}
    last = train(loss, make, DATA, ADAM, seeds=[0, 1], test_data=jnp.array(2.0), **options)
    best = train(
        loss, make, DATA, ADAM, seeds=[0, 1], test_data=jnp.array(2.0), keep="distance", **options
    )
    values = last.metrics["distance"].values
    np.testing.assert_array_equal(best.metrics["distance"].values, values)
    np.testing.assert_allclose(np.abs(best.model.weight - 2.0), values.min(axis=0), rtol=1e-6)
    assert np.all(np.abs(last.model.weight - 2.0) > np.abs(best.model.weight - 2.0) + 0.1)


def test_training_ends_when_patience_is_lost(tmp_path):
    options = {"block": 2, "progress": False, "evaluate": away_from_two, "keep": "distance"}
    options |= {"test_data": jnp.array(2.0), "patience": 3}
    trained = train(loss, make, DATA, ADAM, steps=200, seeds=0, folder=tmp_path / "a", **options)
    values = trained.metrics["distance"].values
    assert len(values) < 100
    assert np.argmin(values) == len(values) - 4
    summary = json.loads((tmp_path / "a" / "done.json").read_text())
    assert summary["steps"] == 2 * len(values)
    again = train(loss, make, DATA, ADAM, steps=200, seeds=0, folder=tmp_path / "a", **options)
    check_same(trained.model, again.model)


def train_counter(table, **options):
    """Each step adds one to a number, the row of `table` from which `evaluate` reads its metric."""
    value = lambda model, batch: -model["number"] + 0 * batch
    start = lambda key: {"number": jnp.zeros(()), "seed": jax.random.key_data(key)[-1]}

    def read(model, table):
        return {"m": table[jnp.round(model["number"]).astype(int) - 1, model["seed"].astype(int)]}

    options |= {"evaluate": read, "test_data": table, "keep": "m", "patience": 2, "block": 1}
    steps = len(table)
    return train(value, start, jnp.zeros(1), optax.sgd(1.0), steps=steps, progress=False, **options)


def test_patience_waits_for_every_seed():
    first, second = [9.0, 8.0, 7.0, 6.0, 5.0, 5.5, 5.6, 5.7, 5.8], [9.0, 1, 2, 3, 4, 5, 5, 5, 5]
    run = train_counter(jnp.array([first, second]).T, seeds=[0, 1])
    assert run.metrics["m"].steps[-1] == 7
    np.testing.assert_array_equal(run.model["number"], [5.0, 2.0])


def test_patience_ignores_nan():
    run = train_counter(jnp.array([[jnp.nan, 3.0, 2.0, 1.0, 0.5, 0.6, 0.7, 0.8]]).T, seeds=0)
    assert run.metrics["m"].steps[-1] == 7
    assert run.model["number"] == 5.0


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
def test_invalid_metric_to_keep_is_refused(seeds, options, message):
    options = {"test_data": jnp.array(3.0), "seeds": seeds} | options
    with pytest.raises(ValueError, match=message):
        train(loss, make, DATA, ADAM, steps=5, progress=False, **options)


# --- losses that are not finite, and invalid returned values --------------------------------------


def test_run_with_a_nan_loss_ends_with_advice(tmp_path):
    with pytest.raises(TrainingError, match=r"not finite from step \d+ on. Lower the learning"):
        train(
            loss, make, DATA, optax.sgd(1e6), steps=100, block=10, folder=tmp_path, progress=False
        )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert None in [json.loads(line)["loss"] for line in lines]


@pytest.mark.parametrize("lost", [3, 4, 6])
def test_error_names_the_first_step_with_a_nan_loss(lost):
    def value(model, batch):
        return jnp.where(model["number"] < lost - 1, -model["number"], jnp.nan) + 0 * batch

    start, options = lambda key: {"number": jnp.zeros(())}, {"steps": 12, "block": 6}
    with pytest.raises(TrainingError, match=f"from step {lost} on"):
        train(value, start, jnp.zeros(1), optax.sgd(1.0), progress=False, **options)


def test_other_seeds_continue_when_one_diverges():
    def sometimes(model, batch):
        return jnp.where(model.weight > 0, jnp.nan, 1.0) * jnp.sum(loss(model, batch))

    run = train(sometimes, make, DATA, optax.sgd(0.0), steps=3, seeds=range(8), progress=False)
    last = run.metrics["loss"].values[-1]
    assert 0 < np.isnan(last).sum() < 8


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda model, batch: jnp.mean(loss(model, batch)), "expected one a row"),
        (lambda model, batch: (loss(model, batch), {"loss": 1.0}), "may not be called loss"),
    ],
)
def test_loss_without_one_value_a_row_is_refused(bad, message):
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
def test_invalid_metrics_are_refused(options, message, seeds):
    parts: dict = {"loss": loss, "make": make, "data": DATA, "optimiser": ADAM} | options
    with pytest.raises((TypeError, ValueError), match=message):
        train(**parts, test_data=DATA, steps=3, seeds=seeds, progress=False)
