"""Population dynamics (eq. 20). Four models learn x' = a x(t) (1 - x(⌊t⌋)) from 100 short series.

The setting is the paper's. Fields have two hidden layers of ten without biases. The series on
[0, 3] are sampled every 0.1 and learned in 3,000 iterations of Adam at 0.01. The tests go on from
t = 3 to 13. The paper does not say how the first states are drawn; here they are uniform in
[0.05, 2]. A test series starts from the last training state alone, with a constant past, for all
models. At a knot such as t = 3 this loses nothing for the NPCDDE, but it does for the NDDE, so the
NDDE is tested with the true past as well.

There are two recipes. "paper" is the above. "clipped" is ours. It clips gradients to a norm of
0.01, which applies nearly always, averages their squares over 20 iterations instead of 1,000, and
lets the learning rate fall along a cosine. At a = 3.2 the loss has steep places that throw Adam
off, and the paper's recipe loses seeds. Clipping at 0.1 and 1 and a rate of 0.03 lost one now and
then (benchmarks/results/population_recipes.txt).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lagrax import nn
from lagrax._solve.delays import Delay, Hold, Lag
from lagrax._solve.gradients import Direct
from lagrax._solve.solve import solve
from lagrax.systems import Population

# The growth rates. The paper calls a = 3.2 chaotic. It looks so over ten seasons; in the long run
# the population follows a stable cycle of 36 seasons (docs/paper.md).
REGIMES = {2.0: "oscillation", 3.2: "irregular"}


@dataclasses.dataclass(frozen=True)
class PopulationSettings:
    """`block` is the number of iterations between two evaluations, `steps` the number of solver
    steps in a unit of time, `finer` the factor by which tests take more of them, and `shown` the
    number of series in the figures. `clip` and `memory` are those of the clipped recipe."""

    growth: tuple[float, ...] = tuple(REGIMES)
    models: tuple[str, ...] = ("NODE", "ANODE", "NDDE", "NPCDDE")
    recipes: tuple[str, ...] = ("paper", "clipped")
    iterations: int = 3000
    seeds: tuple[int, ...] = tuple(range(40))
    block: int = 50
    learning_rate: float = 0.01
    clip: float = 0.01
    memory: float = 0.95
    width: int = 10
    series: int = 100
    starts: tuple[float, float] = (0.05, 2.0)
    data_seed: int = 0
    period: float = 0.1
    train_time: int = 3
    lengths: tuple[int, ...] = (1, 2, 5, 10)
    steps: int = 12
    finer: int = 4
    shown: int = 10

    @property
    def samples(self) -> int:
        """Samples in a unit of time."""
        return round(1 / self.period)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def with_finer_steps(self) -> "PopulationSettings":
        return dataclasses.replace(self, steps=self.finer * self.steps)


# --- data -----------------------------------------------------------------------------------------

Series = Float[Array, "series times"]


def make_series(settings: PopulationSettings, a: float) -> Series:
    """The exact solutions over training and test, sampled every `period`."""
    low, high = settings.starts
    key = jax.random.key(settings.data_seed)
    x0 = jax.random.uniform(key, (settings.series,), minval=low, maxval=high)
    ts = _sample_times(settings, settings.train_time + settings.longest)
    return Population(a=a).solution(ts, x0).T


def split(settings: PopulationSettings, series: Series) -> tuple[Array, Array]:
    """Training and test series. The test begins with the last training state."""
    last = settings.train_time * settings.samples
    return series[:, : last + 1], series[:, last:]


def _sample_times(settings: PopulationSettings, span: int) -> Array:
    # Concrete even inside jit, since a solve with known save times is cheaper.
    with jax.ensure_compile_time_eval():
        return jnp.arange(span * settings.samples + 1) * settings.period


# --- models ---------------------------------------------------------------------------------------


class PopulationModel(NamedTuple):
    """The number of zeros appended to the state, and the delays of the field."""

    augment: int
    delays: tuple[Delay, ...]


MODELS = {
    "NODE": PopulationModel(0, ()),
    "ANODE": PopulationModel(1, ()),
    "NDDE": PopulationModel(0, (Lag(1.0),)),
    "NPCDDE": PopulationModel(0, (Hold(1.0),)),
}


def make_field(settings: PopulationSettings, model: PopulationModel, key: PRNGKeyArray) -> nn.MLP:
    """W_out tanh(W tanh(W_in [x(t), past])), as in the paper's appendix."""
    return nn.MLP(
        1 + model.augment,
        (settings.width, settings.width),
        history=len(model.delays),
        use_bias=False,
        key=key,
    )


def predict(
    settings: PopulationSettings,
    model: PopulationModel,
    field: nn.MLP,
    past: Float[Array, " series"] | Callable[[Array], Array],
    span: int,
) -> Series:
    """The solutions of a field over `span`, without their augmented component.

    `past` holds the first states, or is a function that gives the states before zero, too.
    """
    augment = nn.Augment(model.augment)
    y0 = (lambda t: augment(past(t)[:, None])) if callable(past) else augment(past[:, None])
    # Without a past the whole span is one interval, with one its length is 1.
    steps = settings.steps * (1 if model.delays else span)
    solution = solve(
        field,
        t0=0.0,
        t1=float(span),
        y0=y0,
        delays=model.delays,
        saveat=diffrax.SaveAt(ts=_sample_times(settings, span)),
        # Of low order, since a model of the wrong kind can learn a stiff equation.
        solver=diffrax.Bosh3(),
        steps=steps,
        gradient=Direct(),
        throw=False,
    )
    return solution.ys[..., 0].T  # pyright: ignore[reportOptionalSubscript]


def true_past(settings: PopulationSettings, training: Series) -> Callable[[Array], Array]:
    """The exact solution over the last unit of time of the training, which is exponential."""
    start, end = training[:, -1 - settings.samples], training[:, -1]
    return lambda t: end * (end / start) ** t


class TrainingTask(NamedTuple):
    """How a model is made, trained and tested. Both regimes share it, and so the compiled code."""

    make: Callable
    loss: Callable
    evaluate: Callable


FINER = "finer"


def metric_of_test(length: int, with_true_past: bool = False) -> str:
    return f"test_{length}" + ("_true_past" if with_true_past else "")


def make_task(settings: PopulationSettings, name: str) -> TrainingTask:
    model, finer = MODELS[name], settings.with_finer_steps()

    def loss(field, series, settings=settings):
        predicted = predict(settings, model, field, series[:, 0], settings.train_time)
        return jnp.mean((predicted - series) ** 2, axis=1)

    # A field can learn to profit from the errors of a coarse solver. Finer steps in the tests
    # judge the equation, and not its solver.
    def evaluate(field, series):
        training, test = series
        found = {FINER: jnp.mean(loss(field, training, finer))}
        found |= test_losses(field, test, test[:, 0])
        if has_lag(model):
            found |= test_losses(field, test, true_past(settings, training), True)
        return found

    def test_losses(field, test, past, with_true_past=False):
        error = (predict(finer, model, field, past, settings.longest) - test) ** 2
        ends = {length: length * settings.samples + 1 for length in settings.lengths}
        return {
            metric_of_test(length, with_true_past): jnp.mean(error[:, :end])
            for length, end in ends.items()
        }

    return TrainingTask(partial(make_field, settings, model), loss, evaluate)


def has_lag(model: PopulationModel) -> bool:
    """Whether the model reads its past at every instant, and not at knots alone."""
    return any(isinstance(delay, Lag) for delay in model.delays)


# --- recipes --------------------------------------------------------------------------------------


class ClippedAdam(eqx.Module):
    """Adam on clipped gradients, at a rate that falls along a cosine to `floor` of its start.
    `memory` is the decay of the squared gradients.

    It is an optax transformation. Its numbers are arrays, so all recipes share compiled code.
    """

    rate: Array
    floor: Array
    clip: Array
    memory: Array
    iterations: int = eqx.field(static=True)

    def init(self, parameters: PyTree) -> PyTree:
        return self._chain().init(parameters)

    def update(self, gradient: PyTree, state: PyTree, parameters: PyTree) -> tuple[PyTree, PyTree]:
        return self._chain().update(gradient, state, parameters)

    def _chain(self) -> optax.GradientTransformation:
        def rate(count):
            cosine = 0.5 * (1 + jnp.cos(jnp.pi * count / self.iterations))
            return self.rate * (self.floor + (1 - self.floor) * cosine)

        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adam(rate, b2=self.memory),  # pyright: ignore[reportArgumentType]
        )


def make_recipe(settings: PopulationSettings, name: str) -> ClippedAdam:
    """Those beside "paper" and "clipped" change one thing in the paper's each, see steepness.py."""
    factor, floor, clip, memory = {
        "paper": (1.0, 1.0, np.inf, 0.999),
        "clipped": (1.0, 0.0, settings.clip, settings.memory),
        "low-rate": (0.3, 1.0, np.inf, 0.999),
        "cosine": (1.0, 0.0, np.inf, 0.999),
        "short-memory": (1.0, 1.0, np.inf, settings.memory),
        "clip": (1.0, 1.0, settings.clip, 0.999),
    }[name]
    rate = jnp.asarray(factor * settings.learning_rate)
    return ClippedAdam(
        rate, jnp.asarray(floor), jnp.asarray(clip), jnp.asarray(memory), settings.iterations
    )
