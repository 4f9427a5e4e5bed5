"""The protocol of a run, which says how its model is trained, solved and measured."""

import dataclasses
import hashlib
import json
import math
from typing import Any, NamedTuple

import diffrax
import jax.numpy as jnp
import msgspec

from lagrax import Checkpointed, Direct

from ..models import DATASETS, paper_intervals

SOLVERS = {
    "euler": diffrax.Euler(),
    "midpoint": diffrax.Midpoint(),
    "bosh3": diffrax.Bosh3(),
    "tsit5": diffrax.Tsit5(),
    "dopri5": diffrax.Dopri5(),
}

# The dtypes of the products inside the field. f32 is tf32 on NVIDIA's GPUs.
PRECISIONS = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Differences from the paper's training, each with its default left out.

    **Arguments:**

    - `flips`: mirrors every other image from left to right, at random.
    - `shift`: moves each image by at most this many pixels along both axes. Border pixels repeat.
    - `warmup`, `cosine`: the learning rate rises linearly over this many epochs, and then falls to
      zero by half a cosine.
    - `weight_decay`: of AdamW, for weights but not for biases.
    - `smoothing`: the share of the labels that is spread evenly over all classes.
    - `random_steps`: numbers of steps in an interval. Each step of the training draws one of them,
      and tests take the `steps` of the protocol.
    """

    flips: bool = False
    shift: int = 0
    warmup: int = 0
    cosine: bool = False
    weight_decay: float = 0.0
    smoothing: float = 0.0
    random_steps: tuple[int, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """The fields that differ from the defaults, by name."""
        values = {x.name: (getattr(self, x.name), x.default) for x in dataclasses.fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def __str__(self) -> str:
        """The differences in words."""
        words = {
            "flips": "flips",
            "shift": f"shifts by up to {self.shift}",
            "warmup": f"{self.warmup} epochs of warm-up",
            "cosine": "cosine",
            "weight_decay": f"weight decay {self.weight_decay:g}",
            "smoothing": f"label smoothing {self.smoothing:g}",
            "random_steps": f"{', '.join(map(str, self.random_steps))} steps at random",
        }
        return ", ".join(words[name] for name in self.content)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a model is trained, solved and measured.

    **Arguments:**

    - `solver`: the name of the solver, one of `SOLVERS`.
    - `steps`: the number of equal steps in each interval.
    - `rtol`: the relative and absolute tolerance of adaptive steps. Give this or `steps`.
    - `precision`: the arithmetic of the field, one of `PRECISIONS`.
    - `images`: trains on the first images only. Default: all.
    - `test_images`: tests on the first images only. Default: all.
    - `validation`: holds out this many of the last training images. The run then keeps the model
      of the epoch that is best on them, instead of the last one.
    - `counted`: counts the evaluations of an adaptive solver on this many test images after each
      epoch. 0 turns it off, which saves time on a CPU.
    - `checked`: compares the trained model with one of fine steps, which takes long on a CPU.
    - `recipe`: differences from the paper's training.
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
    recipe: Recipe | None = None

    def __post_init__(self):
        for name, value, choices in (
            ("solver", self.solver, SOLVERS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in choices:
                raise ValueError(f"No {name} {value!r}: choose one of {', '.join(choices)}.")
        if (self.steps is None) == (self.rtol is None):
            raise ValueError(
                f"steps={self.steps} and rtol={self.rtol}: give one of them, steps for equal steps "
                "or rtol for adaptive ones."
            )
        if self.rtol is not None and not (math.isfinite(self.rtol) and self.rtol > 0):
            raise ValueError(f"rtol={self.rtol}: expected a positive, finite number.")
        if self.rtol is not None and self.solver == "euler":
            raise ValueError("euler does not estimate its error: give steps, or another solver.")
        if self.recipe is not None and self.recipe.random_steps and self.rtol is not None:
            raise ValueError(f"rtol={self.rtol} leaves no steps to draw: give steps instead.")

    @property
    def content(self) -> dict[str, Any]:
        """The fields by name, without `validation` and `recipe` if they are None, as in older
        runs."""
        content = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        for name in ("validation", "recipe"):
            if content[name] is None:
                del content[name]
        return content | ({} if self.recipe is None else {"recipe": self.recipe.content})

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> "Protocol":
        """The inverse of `content`, after it was written as JSON."""
        return msgspec.convert(content, cls)

    @property
    def digest(self) -> str:
        """Eight digits that distinguish protocols in names of files."""
        text = json.dumps(self.content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def image_counts(self) -> tuple[int | None, int | None, int | None]:
        """The numbers of training, test and validation images; None for all, or for none."""
        return self.images, self.test_images, self.validation

    @property
    def flow_options(self) -> dict[str, Any]:
        """The options of the model's `Flow`."""
        solver = {"solver": SOLVERS[self.solver], "throw": False}
        if self.rtol is not None:
            control = diffrax.PIDController(rtol=self.rtol, atol=self.rtol)
            return solver | {"stepsize_controller": control, "gradient": Checkpointed()}
        return solver | {"steps": self.steps, "gradient": Direct()}

    @property
    def dtype(self) -> Any:
        return PRECISIONS[self.precision]

    def describe_solver(self) -> str:
        """The solver and its steps, as in "2 midpoint steps"."""
        if self.rtol is not None:
            return f"adaptive {self.solver}, {self.rtol:g}"
        return f"{self.steps} {self.solver} {'step' if self.steps == 1 else 'steps'}"


def default_protocol(model: str) -> Protocol:
    """The protocol of the tables has ten or twelve evaluations of the field, in equal steps."""
    intervals = paper_intervals(model)
    if intervals == 1:
        return Protocol("bosh3", 4)
    return Protocol("midpoint", {2: 3, 3: 2, 5: 1, 6: 1}[intervals])


def quick_protocol(model: str) -> Protocol:
    """The protocol of a quick sweep, which takes two cores two minutes, for any model."""
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


class ImageRun(NamedTuple):
    """One training of one model on one data set. Runs with the same `name` are the same."""

    dataset: str
    model: str
    seed: int
    protocol: Protocol

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.model}-{self.seed}-{self.protocol.digest}"

    def __str__(self) -> str:
        return f"{DATASETS[self.dataset]}, {self.model}, seed {self.seed}"
