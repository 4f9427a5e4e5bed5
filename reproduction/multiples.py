"""F(x) = 16x by the simple equation (8): two passes through one small map, or one through a large.

The field is f = a z(⌊t/τ⌋τ) + b (eq. 10) with a = b = 0 at the start and τ = 1. At T = τ it has to
learn a = 15; at T = 2τ the map x ↦ 4x applied twice, a = 3.

The paper gives neither data nor optimiser. Here 100 inputs are spread evenly over [0, 1] and all
of them are taken at each step of Adam at 0.01, the learning rate of its population experiment, for
as many steps as both take to converge. So nothing is drawn at random, and all seeds agree.
"""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lagrax._solve.delays import RealScalar
from lagrax._solve.gradients import Direct
from lagrax.nn import NPCDDE
from lagrax.plotting import Figure, Line, Panel

from .experiment import Experiment, Outcome, Trainer
from .result import Claim, Table


@dataclasses.dataclass(frozen=True)
class Settings:
    """`factor` is the paper's c², `fallen` the part of the first loss that counts as learnt."""

    seeds: tuple[int, ...] = (0,)
    factor: float = 16.0
    tau: float = 1.0
    inputs: int = 100
    learning_rate: float = 0.01
    steps: int = 6000
    fallen: float = 0.01


class Multiple(eqx.Module):
    """The field a z_k + b (eq. 10)."""

    a: Float[Array, ""]
    b: Float[Array, ""]

    def __init__(self):
        self.a = self.b = jnp.zeros(())

    def __call__(
        self,
        t: RealScalar,
        y: Float[Array, " *shape"],
        args: PyTree = None,
        *,
        history: tuple[Float[Array, " *shape"]],
    ) -> Float[Array, " *shape"]:
        del t, y, args
        (held,) = history
        return self.a * held + self.b


def run(settings: Settings, train: Trainer) -> Outcome:
    curves = {n: _curves(n, settings, train) for n in (1, 2)}
    fallen = {n: fallen_after(c["loss"], settings.fallen) for n, c in curves.items()}
    figure, table = _figure(curves, settings), _table(curves, fallen, settings)
    return Outcome(check(curves, fallen, settings), [figure], [table])


def _curves(n: int, settings: Settings, train: Trainer) -> dict[str, np.ndarray]:
    """Loss, a and b before each step with T = nτ, of the first seed, as of all."""

    def make(key: PRNGKeyArray) -> NPCDDE:
        del key
        options = {"gradient": Direct(), "throw": False}
        return NPCDDE(Multiple(), n, T=n * settings.tau, lags=1, **options)

    x = jnp.linspace(0, 1, settings.inputs)
    trained = train(
        f"T={n}tau",
        _loss,
        make,
        (x, settings.factor * x),
        optax.adam(settings.learning_rate),
        steps=settings.steps,
        seeds=settings.seeds,
        block=settings.steps,
    )
    return {name: series.values[:, 0] for name, series in trained.metrics.items()}


def _loss(model: NPCDDE, batch: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
    x, target = batch
    field = model.flow.field
    assert isinstance(field, Multiple)
    return (model(x) - target) ** 2, {"a": field.a, "b": field.b}


def fallen_after(loss: np.ndarray, part: float) -> float:
    """The iterations until the loss is below a part of its start; NaN if it never is."""
    below = np.flatnonzero(loss < part * loss[0])
    return float(below[0]) if below.size else math.nan


def check(
    curves: dict[int, dict[str, np.ndarray]], fallen: dict[int, float], settings: Settings
) -> list[Claim]:
    small = math.sqrt(settings.factor) - 1
    return [
        Claim.at_least(
            f"Fitting F(x) = {settings.factor:g}x, the training loss with T = 2τ falls faster than "
            f"with T = τ (iterations until it is below {settings.fallen:.0%} of its start)",
            fallen[1] / fallen[2],
            1.0,
            "times faster",
        ),
        Claim.at_most(
            f"With T = 2τ the field learns x ↦ (c − 1)x: a is off {small:g} by little",
            float(abs(curves[2]["a"][-1] - small)),
            0.01,
            "error of a",
        ),
    ]


_COLOURS = {1: "sky", 2: "purple"}
_NAMES = {1: "T = τ", 2: "T = 2τ"}


def _figure(curves: dict[int, dict[str, np.ndarray]], settings: Settings) -> Figure:
    titles = {"loss": "training loss", "a": "a", "b": "b"}

    def panel(name: str, title: str) -> Panel:
        lines = [
            Line(np.arange(len(c[name])), c[name], label=_NAMES[n], colour=_COLOURS[n])
            for n, c in curves.items()
        ]
        if name != "loss":
            return Panel(lines, title=title, xlabel="iteration")
        # Further down there is nothing but rounding.
        limits = 1e-6, 2 * float(curves[1]["loss"][0])
        return Panel(lines, title=title, xlabel="iteration", ylog=True, ylim=limits)

    caption = (
        f"Fitting F(x) = {settings.factor:g}x by the NPCDDEs of equation (8) with the field az + b "
        "and the final times T = τ and T = 2τ. The training loss (left) and the parameters a "
        "(middle) and b (right) during the training."
    )
    panels = [panel(name, title) for name, title in titles.items()]
    return Figure("multiples", caption, panels, columns=3)


def _table(
    curves: dict[int, dict[str, np.ndarray]], fallen: dict[int, float], settings: Settings
) -> Table:
    rows = [
        [
            _NAMES[n],
            "never" if math.isnan(fallen[n]) else f"{fallen[n]:.0f}",
            *(f"{c[name][-1]:.3g}" for name in ("loss", "a", "b")),
        ]
        for n, c in curves.items()
    ]
    columns = ["final time", "iterations", "final loss", "a", "b"]
    note = (
        f"Iterations until the loss is below {settings.fallen:.0%} of its start; the rest after "
        f"{settings.steps:,} iterations."
    )
    return Table(columns, rows, f"Fitting F(x) = {settings.factor:g}x", note)


EXPERIMENT = Experiment(
    name="multiples",
    title="A multiple, F(x) = 16x, in one interval or two",
    about="The simple NPCDDE (eq. 8) with a linear field learns a large multiple faster as two "
    "passes of a small one.",
    full=Settings(),
    quick=Settings(steps=4000),
    run=run,
)
