"""The paper's image classifiers: 20 models, three data sets, Adam, cross-entropy, test accuracy.

A *run* is one model on one data set with one seed. A finished run is one line of JSON; tables and
figures are made of lines alone, wherever and in whatever order they were trained.

Images are floats in [0, 1] and nothing else: no normalisation, no augmentation. The data set lives
on the device as bytes, and an epoch is one compiled program. How runs are solved (`Protocol`) was
decided by a study, see docs/images.md. `sweeps` trains many runs, `lines` reads what they left.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int32, PyTree, UInt8

from lagrax._solve.gradients import Checkpointed, Direct
from lagrax.nn import Affine, Classifier
from lagrax.training import Trained, _machine, train
from lagrax.training._checkpoints import load_checkpoint, load_metadata, save_checkpoint
from lagrax.training._errors import DamagedError, RunError
from lagrax.training._files import parse_json

from .data import Images
from .models import paper_intervals, paper_model, paper_models, paper_size
from .result import ResultError

# In the order in which they are trained and shown.
DATASETS = {"cifar10": "CIFAR-10", "svhn": "SVHN", "mnist": "MNIST"}
TABLE_1 = tuple(name for name in paper_models() if "+" not in name)
AUGMENTED = tuple(name for name in paper_models() if "+" in name)
# How many of them an augmentation adds.
CHANNELS = {"A1": "1 channel", "A2": "2 channels", "A4": "4 channels"}

SOLVERS = {
    "euler": diffrax.Euler(),
    "midpoint": diffrax.Midpoint(),
    "bosh3": diffrax.Bosh3(),
    "tsit5": diffrax.Tsit5(),
    "dopri5": diffrax.Dopri5(),
}

# What a line says of its protocol beside the keys of its own.
MEASURED = ("images", "test_images", "validation", "counted", "checked")

# What the products inside the field are computed in. f32 is tf32 on NVIDIA's GPUs.
PRECISIONS = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32}

# The solver of the paper's lineage, for training as it did and for counting its evaluations.
ADAPTIVE = {
    "solver": diffrax.Dopri5(),
    "stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-3),
}

# Test images that go through a model at once.
TEST_BATCH = 1000

# In the folder of a run.
MODEL_FILE = "model.safetensors"


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a model is trained and solved.

    `steps` equal steps in each interval, or, where `rtol` is given, adaptive ones with that as
    relative and absolute tolerance. `images` trains on so many of the first ones, None on all.
    `validation` holds out that many of the last of these: the model is then the one of the epoch
    that is best on them, and not the last.

    The rest says how much is measured, of which a CPU had better do little: `test_images` tests on
    so many of the first ones, None on all; `counted` is how many of these an adaptive solver takes
    each epoch to have its evaluations counted, 0 for none; `checked` is whether the trained model
    is held against one with fine steps.
    """

    solver: str
    steps: int | None = None
    rtol: float | None = None
    precision: str = "f16"
    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 1e-3
    images: int | None = None
    test_images: int | None = None
    validation: int | None = None
    counted: int = 256
    checked: bool = True

    def __post_init__(self):
        for what, value, choices in (
            ("solver", self.solver, SOLVERS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in choices:
                raise ValueError(f"No {what} {value!r}: choose one of {', '.join(choices)}.")
        if (self.steps is None) == (self.rtol is None):
            raise ValueError(
                f"steps={self.steps} and rtol={self.rtol}: give one of them, steps for equal steps "
                "or rtol for adaptive ones."
            )
        if self.rtol is not None and not (math.isfinite(self.rtol) and self.rtol > 0):
            raise ValueError(f"rtol={self.rtol}: expected a positive, finite number.")
        if self.rtol is not None and self.solver == "euler":
            raise ValueError("euler does not estimate its error: give steps, or another solver.")

    @property
    def digest(self) -> str:
        """A few digits that tell protocols apart."""
        content = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    @property
    def used(self) -> tuple[int | None, int | None, int | None]:
        """The numbers of training, test and validation images; None for all, or for none."""
        return self.images, self.test_images, self.validation

    @property
    def options(self) -> dict[str, Any]:
        """For the model's `Flow`."""
        solver = {"solver": SOLVERS[self.solver], "throw": False}
        if self.rtol is not None:
            control = diffrax.PIDController(rtol=self.rtol, atol=self.rtol)
            return solver | {"stepsize_controller": control, "gradient": Checkpointed()}
        return solver | {"steps": self.steps, "gradient": Direct()}

    @property
    def dtype(self) -> Any:
        return PRECISIONS[self.precision]


def default_protocol(model: str) -> Protocol:
    """Ten or twelve evaluations of the field from 0 to 1, in equal steps."""
    intervals = paper_intervals(model)
    if intervals == 1:
        return Protocol("bosh3", 4)
    return Protocol("midpoint", {2: 3, 3: 2, 5: 1}[intervals])


def quick_protocol(model: str) -> Protocol:
    """What two cores do within two minutes: few images, few epochs, one step in each interval."""
    del model
    return Protocol(
        "euler",
        1,
        precision="f32",
        epochs=4,
        batch_size=32,
        images=2000,
        test_images=500,
        counted=16,
        checked=False,
    )


class Split(NamedTuple):
    """Images and labels on the device; `counts` says which of the last batch's count."""

    images: UInt8[Array, "..."]
    labels: Int32[Array, "..."]
    counts: Float[Array, "..."]


class Data(NamedTuple):
    """A data set ready for training, the test and the validation images in batches."""

    name: str
    train: tuple[UInt8[Array, "..."], Int32[Array, "..."]]
    test: Split
    validation: Split | None


def on_device(
    name: str,
    images: Images,
    train_images: int | None = None,
    test_images: int | None = None,
    validation: int | None = None,
) -> Data:
    """Moves a data set, or the first of its images, to the device. The last `validation` of the
    training images are held out."""
    used, tested = images.train_images[:train_images], slice(test_images)
    labels = images.train_labels[:train_images]
    trained = len(labels) - (validation or 0)
    if trained <= 0:
        raise ValueError(
            f"validation={validation} holds out all {len(labels)} training images of {name}."
        )
    held_out = _in_batches(used[trained:], labels[trained:]) if validation else None
    return Data(
        name,
        (jnp.asarray(used[:trained]), jnp.asarray(labels[:trained])),
        _in_batches(images.test_images[tested], images.test_labels[tested]),
        held_out,
    )


def _in_batches(images: np.ndarray, labels: np.ndarray) -> Split:
    """Filled up to whole batches by images that do not count."""
    size = min(TEST_BATCH, len(labels))
    more = -len(labels) % size
    counts = np.pad(np.ones(len(labels), np.float32), (0, more))
    images = np.concatenate([images, images[:more]])
    labels = np.concatenate([labels, labels[:more]])
    batches = [x.reshape(-1, size, *x.shape[1:]) for x in (images, labels, counts)]
    return Split(*map(jnp.asarray, batches))


# --- one run --------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One training. Two with the same `name` are the same."""

    dataset: str
    model: str
    seed: int
    protocol: Protocol

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.model}-{self.seed}-{self.protocol.digest}"


def train_run(run: Run, data: Data, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    """Trains a model, or goes on with it in `folder`, and keeps it there; returns the run's line.

    `options` go to `lagrax.training.train`: `progress`, `resume`, `tensorboard`.
    """
    protocol, per_epoch = run.protocol, -(-len(data.train[1]) // run.protocol.batch_size)
    task = _task(run.dataset, run.model, protocol)
    trained = train(
        task.loss,
        task.make,
        data.train,
        task.optimiser,
        steps=protocol.epochs * per_epoch,
        seeds=run.seed,
        batch_size=protocol.batch_size,
        block=per_epoch,
        evaluate=task.evaluate,
        test_data=(data.test, data.validation),
        keep="validation_error" if protocol.validation else None,
        folder=folder,
        config={"model": run.model, **dataclasses.asdict(protocol)},
        **options,
    )
    check = task.check(trained.model, data.test) if protocol.checked else {}
    if folder is not None:
        _save_model(folder / MODEL_FILE, run, trained.model)
    return _line(run, data, trained, per_epoch, check)


class _Task(NamedTuple):
    """What all seeds of a model share, so that it is compiled once."""

    loss: Callable
    make: Callable
    optimiser: Any
    evaluate: Callable
    check: Callable


@functools.cache
def _task(dataset: str, model: str, protocol: Protocol) -> _Task:
    make = functools.partial(
        _make, model, dataset, compute_dtype=protocol.dtype, **protocol.options
    )
    counting = _make(model, dataset, key=jax.random.key(0), compute_dtype=jnp.float32, **ADAPTIVE)
    fine = _make(model, dataset, key=jax.random.key(0), compute_dtype=jnp.float32, **_fine(model))

    def evaluate(model: Classifier, splits: tuple[Split, Split | None]) -> dict[str, Array]:
        test, validation = splits
        loss, accuracy = _mean_scores(model, test)
        measured = {"test_loss": loss, "test_accuracy": accuracy}
        if validation is not None:
            measured["validation_error"] = 100 - _mean_scores(model, validation)[1]
        if not protocol.counted:
            return measured
        batch = _floats(test.images[0, : protocol.counted])
        solution = _with_parameters_of(model, counting).flow.solve(batch)
        return measured | {"nfe": solution.stats["num_evaluations"]}

    @eqx.filter_jit
    def check(model: Classifier, test: Split) -> dict[str, Array]:
        return _solver_check(model, _with_parameters_of(model, fine), test)

    return _Task(_loss, make, optax.adam(protocol.learning_rate), evaluate, check)


def _make(model: str, dataset: str, key: Any, **options: Any) -> Classifier:
    made = paper_model(model, dataset, key=key, **options)
    return made if jax.default_backend() != "cpu" else _for_cpu(made)


def _fine(model: str) -> dict[str, Any]:
    """Steps so small that their error does not show: 60 or more evaluations in all."""
    steps = -(-10 // paper_intervals(model))
    return {"solver": diffrax.Tsit5(), "steps": steps, "throw": False}


def _with_parameters_of(model: PyTree, other: PyTree) -> Any:
    """`other`, which is solved in another way, with the parameters of `model`."""
    return jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(model))


def _floats(images: UInt8[Array, "..."]) -> Float[Array, "..."]:
    return images.astype(jnp.float32) / 255


def _loss(model: Classifier, batch: tuple[Array, Array]) -> Float[Array, " batch"]:
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(_floats(images)), labels)


def _scores(model: Classifier, batch: Split) -> tuple[Array, Array]:
    """Summed loss and number of hits."""
    logits = model(_floats(batch.images))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    hits = jnp.argmax(logits, axis=-1) == batch.labels
    return jnp.sum(losses * batch.counts), jnp.sum(hits * batch.counts)


def _mean_scores(model: Classifier, split: Split) -> tuple[Array, Array]:
    """Mean loss, and accuracy in percent."""
    _, scores = jax.lax.scan(lambda _, batch: (None, _scores(model, batch)), None, split)
    loss, hits = [jnp.sum(s) / jnp.sum(split.counts) for s in scores]
    return loss, 100 * hits


def _solver_check(model: Classifier, fine: Classifier, test: Split) -> dict[str, Array]:
    """Does the model depend on the steps it was trained with? Its accuracy with fine steps, and how
    far its final states are from theirs, relative to the way these have come."""

    def one(_, batch):
        x = _floats(batch.images)
        coarse, true = model.flow(x), fine.flow(x)
        hits = jnp.argmax(fine.head(true), axis=-1) == batch.labels
        start = jnp.pad(x, [(0, 0)] * 3 + [(0, true.shape[-1] - x.shape[-1])])
        squares = [jnp.sum(d**2, axis=(1, 2, 3)) for d in (coarse - true, true - start)]
        return None, [jnp.sum(x * batch.counts) for x in (hits, *squares)]

    _, sums = jax.lax.scan(one, None, test)
    hits, error, way = [jnp.sum(s) for s in sums]
    return {
        "fine_accuracy": 100 * hits / jnp.sum(test.counts),
        "solver_error": jnp.sqrt(error / way),
    }


def _line(
    run: Run, data: Data, trained: Trained, per_epoch: int, check: dict[str, Array]
) -> dict[str, Any]:
    """A finished run, as its line of JSON says it."""
    protocol, metrics = run.protocol, trained.metrics
    losses = metrics["loss"].values.reshape(protocol.epochs, per_epoch)
    # The last batch of an epoch is smaller.
    sizes = np.full(per_epoch, protocol.batch_size)
    sizes[-1] = len(data.train[1]) - (per_epoch - 1) * protocol.batch_size
    machine = _machine.describe()
    return {
        "dataset": run.dataset,
        "model": run.model,
        "seed": run.seed,
        "epochs": protocol.epochs,
        "train_loss": _rounded(np.average(losses, axis=1, weights=sizes), 5),
        "test_loss": _rounded(metrics["test_loss"].values, 5),
        "test_accuracy": _rounded(metrics["test_accuracy"].values, 3),
        **_validation_accuracies(metrics),
        "nfe": [int(n) for n in metrics["nfe"].values] if protocol.counted else None,
        **{name: _five_digits(check.get(name)) for name in ("fine_accuracy", "solver_error")},
        **paper_size(run.model, run.dataset),
        "solver": protocol.solver,
        "steps": protocol.steps,
        "rtol": protocol.rtol,
        "precision": protocol.precision,
        "seconds": round(trained.seconds, 2),
        "device": machine["device"],
        "versions": machine["versions"] | {"commit": machine["commit"]},
        "protocol": {
            "optimiser": "adam",
            "learning_rate": protocol.learning_rate,
            "batch_size": protocol.batch_size,
            "training_images": len(data.train[1]),
            **{name: getattr(protocol, name) for name in MEASURED},
        },
    }


def _validation_accuracies(metrics: dict[str, Any]) -> dict[str, list[float | None]]:
    if "validation_error" not in metrics:
        return {}
    return {"validation_accuracy": _rounded(100 - metrics["validation_error"].values, 3)}


def _rounded(values: np.ndarray, digits: int) -> list[float | None]:
    """JSON has no number for what is not finite."""
    return [round(float(v), digits) if np.isfinite(v) else None for v in values]


def _five_digits(value: Array | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return float(f"{float(value):.5g}")


# --- trained models -------------------------------------------------------------------------------


def _save_model(path: Path, run: Run, model: Classifier) -> None:
    about = {"dataset": run.dataset, "model": run.model, "seed": run.seed}
    about["protocol"] = dataclasses.asdict(run.protocol)
    save_checkpoint(path, model, {"run": json.dumps(about)})


def load_model(path: str | Path) -> Classifier:
    """The classifier that a run left in its folder, or in this file.

    It takes images as floats in [0, 1], of shape (..., height, width, channels), to logits, and is
    solved as it was trained. Another machine may have trained it.
    """
    path = Path(path)
    path = path / MODEL_FILE if path.is_dir() else path
    try:
        about = load_metadata(path)
        run = parse_json(about["run"])
        protocol = Protocol(**run["protocol"])
        options = {"compute_dtype": protocol.dtype, **protocol.options}
        like = _make(run["model"], run["dataset"], key=jax.random.key(0), **options)
        model, _ = load_checkpoint(path, like)
    except (DamagedError, RunError, KeyError, TypeError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ResultError(
            f"{path} holds no trained classifier of images ({why}): name the folder of a finished "
            "run, runs/images/runs/NAME."
        ) from error
    return model


# --- on a CPU -------------------------------------------------------------------------------------


class _Convolution(Affine):
    """A 3×3 convolution for CPUs. XLA is some thirty times slower there with the gradient of one
    inside a loop, such as that over an epoch, unless its axes come in the order of images."""

    def __init__(self, layer: Affine):
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, x: Float[Array, "..."], dtype: Any = None) -> Float[Array, "..."]:
        dtype = x.dtype if dtype is None else dtype
        images = x.reshape(-1, *x.shape[-3:]).astype(dtype).astype(jnp.float32)
        y = _convolve(images, self.weight.astype(dtype).astype(jnp.float32))
        assert self.bias is not None
        return y.reshape(*x.shape[:-1], -1) + self.bias


def _for_cpu(model: Classifier) -> Classifier:
    def is_affine(x: Any) -> bool:
        return isinstance(x, Affine)

    def faster(x: Any) -> Any:
        return _Convolution(x) if is_affine(x) and x.weight.ndim == 4 else x

    return jax.tree.map(faster, model, is_leaf=is_affine)


@jax.custom_vjp
def _convolve(x: Float[Array, "n h w a"], weight: Float[Array, "3 3 a b"]) -> Array:
    return _in_order_of_images(x, weight)


def _in_order_of_images(x: Array, weight: Array) -> Array:
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, (1, 1), ((1, 1), (1, 1)), dimension_numbers=axes)


def _convolve_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _in_order_of_images(x, weight), (x, weight)


def _convolve_backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, weight = kept
    dx = _in_order_of_images(dy, jnp.flip(weight, (0, 1)).swapaxes(2, 3))
    # The images of x and of its cotangent slide over each other; their number is summed over.
    dw = _in_order_of_images(x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3))
    return dx, dw.transpose(1, 2, 0, 3)


_convolve.defvjp(_convolve_forward, _convolve_backward)
