"""Trains one of the paper's image classifiers with Adam and measures it on the test images.

Images are floats in [0, 1], without normalisation or augmentation. The data set lives on the device
as bytes, and an epoch is one compiled program. docs/images.md gives the reasons for the default
protocol.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int32, PRNGKeyArray, PyTree, UInt8

from lagrax.nn import Classifier
from lagrax.training import Trained, _machine, train
from lagrax.training._checkpoints import load_checkpoint, load_metadata, save_checkpoint
from lagrax.training._errors import DamagedError, RunError
from lagrax.training._files import parse_json

from ..data import Images
from ..models import paper_intervals, paper_model, paper_size
from ..result import ResultError
from .convolution import replace_convolutions
from .protocol import ImageRun, Protocol, Recipe
from .records import RunRecord, TrainingRecord

# The solver that counts evaluations: that of the code which the paper's models are based on.
ADAPTIVE = {
    "solver": diffrax.Dopri5(),
    "stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-3),
}

# The number of test images that go through a model at once.
TEST_BATCH = 1000

# In the folder of a run.
MODEL_FILE = "model.safetensors"


class Batches(NamedTuple):
    """Images and labels on the device, in batches. Images that fill up the last have weight 0."""

    images: UInt8[Array, "..."]
    labels: Int32[Array, "..."]
    weights: Float[Array, "..."]


class DeviceImages(NamedTuple):
    """A data set on the device."""

    name: str
    train: tuple[UInt8[Array, "..."], Int32[Array, "..."]]
    test: Batches
    validation: Batches | None


def move_to_device(
    name: str,
    images: Images,
    train_images: int | None = None,
    test_images: int | None = None,
    validation: int | None = None,
) -> DeviceImages:
    """Moves a data set to the device, or only its first training and test images.

    The last `validation` of the training images are held out.
    """
    pixels, labels = images.train_images[:train_images], images.train_labels[:train_images]
    end = len(labels) - (validation or 0)
    if end <= 0:
        raise ValueError(
            f"validation={validation} holds out all {len(labels)} training images of {name}."
        )
    return DeviceImages(
        name,
        (jnp.asarray(pixels[:end]), jnp.asarray(labels[:end])),
        _make_batches(images.test_images[:test_images], images.test_labels[:test_images]),
        _make_batches(pixels[end:], labels[end:]) if validation else None,
    )


def _make_batches(images: np.ndarray, labels: np.ndarray) -> Batches:
    """Fills the last batch up with images of weight 0."""
    size = min(TEST_BATCH, len(labels))
    missing = -len(labels) % size
    weights = np.pad(np.ones(len(labels), np.float32), (0, missing))
    images = np.concatenate([images, images[:missing]])
    labels = np.concatenate([labels, labels[:missing]])
    batches = [x.reshape(-1, size, *x.shape[1:]) for x in (images, labels, weights)]
    return Batches(*map(jnp.asarray, batches))


def train_run(
    run: ImageRun, data: DeviceImages, folder: Path | None = None, **options: Any
) -> RunRecord:
    """Trains a model, saves it in `folder`, and returns the record of the run.

    A run that was stopped continues from its last checkpoint in `folder`. The `options` `progress`,
    `resume` and `tensorboard` are those of `lagrax.training.train`.
    """
    protocol, epoch_steps = run.protocol, -(-len(data.train[1]) // run.protocol.batch_size)
    functions = _make_functions(run.dataset, run.model, protocol)
    trained = train(
        functions.loss,
        functions.make,
        data.train,
        make_optimiser(protocol, epoch_steps),
        steps=protocol.epochs * epoch_steps,
        seeds=run.seed,
        batch_size=protocol.batch_size,
        block=epoch_steps,
        evaluate=functions.evaluate,
        test_data=(data.test, data.validation),
        keep="validation_error" if protocol.validation else None,
        folder=folder,
        config={"model": run.model, **protocol.content},
        **options,
    )
    comparison = functions.compare_solvers(trained.model, data.test) if protocol.checked else {}
    if folder is not None:
        _save_model(folder / MODEL_FILE, run, trained.model)
    return _make_record(run, data, trained, epoch_steps, comparison)


class _Functions(NamedTuple):
    """The functions that all seeds of a model share, so that they are compiled once."""

    loss: Callable
    make: Callable
    evaluate: Callable
    compare_solvers: Callable


@functools.cache
def _make_functions(dataset: str, model: str, protocol: Protocol) -> _Functions:
    make = functools.partial(
        _make_model, model, dataset, compute_dtype=protocol.dtype, **protocol.flow_options
    )
    f32 = {"key": jax.random.key(0), "compute_dtype": jnp.float32}
    adaptive = _make_model(model, dataset, **f32, **ADAPTIVE)
    fine = _make_model(model, dataset, **f32, **make_fine_options(model))

    def evaluate(model: Classifier, data: tuple[Batches, Batches | None]) -> dict[str, Array]:
        test, validation = data
        loss, accuracy = _measure(model, test)
        metrics = {"test_loss": loss, "test_accuracy": accuracy}
        if validation is not None:
            metrics["validation_error"] = 100 - _measure(model, validation)[1]
        if not protocol.counted:
            return metrics
        batch = _to_floats(test.images[0, : protocol.counted])
        solution = copy_parameters(model, adaptive).flow.solve(batch)
        return metrics | {"nfe": solution.stats["num_evaluations"]}

    @eqx.filter_jit
    def compare_solvers(model: Classifier, test: Batches) -> dict[str, Array]:
        found = _compare_solvers(model, copy_parameters(model, fine), test)
        _, accuracy = _measure(copy_parameters(model, adaptive), test)
        return found | {"adaptive_accuracy": accuracy}

    return _Functions(_make_loss(protocol, make), make, evaluate, compare_solvers)


def _make_model(model: str, dataset: str, key: Any, **options: Any) -> Classifier:
    made = paper_model(model, dataset, key=key, **options)
    return made if jax.default_backend() != "cpu" else replace_convolutions(made)


def make_fine_options(model: str) -> dict[str, Any]:
    """Steps so small that their error does not show: 60 or more evaluations in all."""
    steps = -(-10 // paper_intervals(model))
    return {"solver": diffrax.Tsit5(), "steps": steps, "throw": False}


def copy_parameters(model: PyTree, other: PyTree) -> Any:
    """The model `other`, which is solved in another way, with the parameters of `model`."""
    return jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(model))


def _to_floats(images: UInt8[Array, "..."]) -> Float[Array, "..."]:
    return images.astype(jnp.float32) / 255


def _compute_loss(model: Classifier, batch: tuple[Array, Array]) -> Float[Array, " batch"]:
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(_to_floats(images)), labels)


def _make_loss(protocol: Protocol, make: Callable[..., Classifier]) -> Callable:
    """The cross-entropy, of changed images, labels and steps if the protocol has a recipe."""
    recipe = protocol.recipe
    if recipe is None:
        return _compute_loss
    models = [make(key=jax.random.key(0), steps=steps) for steps in recipe.random_steps]

    def loss(model, batch, key):
        images, labels = batch
        image_key, steps_key = jax.random.split(key)
        x = _to_floats(augment_images(recipe, images, image_key))
        if models:
            branches = [lambda m, x, other=other: copy_parameters(m, other)(x) for other in models]
            number = jax.random.randint(steps_key, (), 0, len(branches))
            logits = jax.lax.switch(number, branches, model, x)
        else:
            logits = model(x)
        targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), recipe.smoothing)
        return optax.softmax_cross_entropy(logits, targets)

    return loss


def augment_images(
    recipe: Recipe, images: UInt8[Array, "..."], key: PRNGKeyArray
) -> UInt8[Array, "..."]:
    """Mirrors and moves each image of a batch at random."""
    flip_key, shift_key = jax.random.split(key)
    if recipe.flips:
        flipped = jax.random.bernoulli(flip_key, shape=(len(images), 1, 1, 1))
        images = jnp.where(flipped, images[:, :, ::-1], images)
    if recipe.shift:
        border = (recipe.shift, recipe.shift)
        padded = jnp.pad(images, ((0, 0), border, border, (0, 0)), mode="edge")
        starts = jax.random.randint(shift_key, (len(images), 2), 0, 2 * recipe.shift + 1)
        cut = lambda image, start: jax.lax.dynamic_slice(image, (*start, 0), images.shape[1:])
        images = jax.vmap(cut)(padded, starts)
    return images


# A compiled program belongs to its optimiser, which the seeds share.
@functools.cache
def make_optimiser(protocol: Protocol, epoch_steps: int) -> optax.GradientTransformation:
    """Adam, or that of the protocol's recipe."""
    recipe, rate = protocol.recipe, protocol.learning_rate
    if recipe is None:
        return optax.adam(rate)
    if recipe.cosine:
        rate = optax.warmup_cosine_decay_schedule(
            0.0 if recipe.warmup else rate,
            rate,
            recipe.warmup * epoch_steps,
            protocol.epochs * epoch_steps,
        )
    decayed = functools.partial(jax.tree.map, lambda x: x.ndim > 1)
    return optax.adamw(rate, weight_decay=recipe.weight_decay, mask=decayed)


def _measure(model: Classifier, batches: Batches) -> tuple[Array, Array]:
    """The mean loss, and the accuracy in percent."""

    def measure_batch(_, batch):
        logits = model(_to_floats(batch.images))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        hits = jnp.argmax(logits, axis=-1) == batch.labels
        return None, (jnp.sum(losses * batch.weights), jnp.sum(hits * batch.weights))

    _, sums = jax.lax.scan(measure_batch, None, batches)
    loss, hits = [jnp.sum(x) / jnp.sum(batches.weights) for x in sums]
    return loss, 100 * hits


def _compare_solvers(model: Classifier, fine: Classifier, test: Batches) -> dict[str, Array]:
    """Measures how much the model depends on the steps that it was trained with.

    `fine_accuracy` is its accuracy with fine steps. `solver_error` is the distance of its final
    states from those with fine steps, relative to the distance of these from the initial states.
    """

    def compare_batch(_, batch):
        x = _to_floats(batch.images)
        coarse, true = model.flow(x), fine.flow(x)
        hits = jnp.argmax(fine.head(true), axis=-1) == batch.labels
        start = jnp.pad(x, [(0, 0)] * 3 + [(0, true.shape[-1] - x.shape[-1])])
        squares = [jnp.sum(d**2, axis=(1, 2, 3)) for d in (coarse - true, true - start)]
        return None, [jnp.sum(x * batch.weights) for x in (hits, *squares)]

    _, sums = jax.lax.scan(compare_batch, None, test)
    hits, error, distance = [jnp.sum(s) for s in sums]
    return {
        "fine_accuracy": 100 * hits / jnp.sum(test.weights),
        "solver_error": jnp.sqrt(error / distance),
    }


def _make_record(
    run: ImageRun,
    data: DeviceImages,
    trained: Trained,
    epoch_steps: int,
    comparison: dict[str, Array],
) -> RunRecord:
    protocol, metrics = run.protocol, trained.metrics
    losses = metrics["loss"].values.reshape(protocol.epochs, epoch_steps)
    # The last batch of an epoch is smaller.
    sizes = np.full(epoch_steps, protocol.batch_size)
    sizes[-1] = len(data.train[1]) - (epoch_steps - 1) * protocol.batch_size
    validation = None
    if protocol.validation:
        validation = _round(100 - metrics["validation_error"].values, 3)
    machine = _machine.describe()
    return RunRecord(
        dataset=run.dataset,
        model=run.model,
        seed=run.seed,
        epochs=protocol.epochs,
        train_loss=_round(np.average(losses, axis=1, weights=sizes), 5),
        test_loss=_round(metrics["test_loss"].values, 5),
        test_accuracy=_round(metrics["test_accuracy"].values, 3),
        validation_accuracy=validation,
        nfe=[int(n) for n in metrics["nfe"].values] if protocol.counted else None,
        fine_accuracy=_round_to_five_digits(comparison.get("fine_accuracy")),
        adaptive_accuracy=_round_to_five_digits(comparison.get("adaptive_accuracy")),
        solver_error=_round_to_five_digits(comparison.get("solver_error")),
        **paper_size(run.model, run.dataset),
        solver=protocol.solver,
        steps=protocol.steps,
        rtol=protocol.rtol,
        precision=protocol.precision,
        seconds=round(trained.seconds, 2),
        device=machine["device"],
        versions=machine["versions"] | {"commit": machine["commit"]},
        training=TrainingRecord.of(protocol, len(data.train[1])),
    )


def _round(values: np.ndarray, decimals: int) -> np.ndarray:
    return np.array([round(float(x), decimals) for x in values])


def _round_to_five_digits(value: Array | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return float(f"{float(value):.5g}")


# --- trained models -------------------------------------------------------------------------------


def _save_model(path: Path, run: ImageRun, model: Classifier) -> None:
    about = {"dataset": run.dataset, "model": run.model, "seed": run.seed}
    about["protocol"] = run.protocol.content
    save_checkpoint(path, model, {"run": json.dumps(about)})


def load_model(path: str | Path) -> Classifier:
    """Loads the classifier that a run saved in its folder, or in this file.

    It maps images as floats in [0, 1], of shape (..., height, width, channels), to logits, and is
    solved as it was trained. It may have been trained on another kind of machine.
    """
    path = Path(path)
    path = path / MODEL_FILE if path.is_dir() else path
    try:
        about = load_metadata(path)
        run = parse_json(about["run"])
        protocol = Protocol.of_content(run["protocol"])
        options = {"compute_dtype": protocol.dtype, **protocol.flow_options}
        like = _make_model(run["model"], run["dataset"], key=jax.random.key(0), **options)
        model, _ = load_checkpoint(path, like)
    except (DamagedError, RunError, KeyError, TypeError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ResultError(
            f"{path} holds no trained classifier of images ({why}): name the folder of a finished "
            "run, runs/images/runs/NAME."
        ) from error
    return model
