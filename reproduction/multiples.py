"""F(x) = 16x by the simple equation (8), in one interval or as a smaller map applied twice.

The field is f = a z(⌊t/τ⌋τ) + b (eq. 10) with a = b = 0 at the start and τ = 1. With T = τ it has
to learn a = 15. With T = 2τ it applies x ↦ 4x twice, so a = 3.

The paper gives neither data nor optimiser. Here 100 inputs are spread evenly over [0, 1], and each
step of Adam at 0.01, the learning rate of the population experiment, uses all of them. Training
ends when both have converged. Nothing is random, so all seeds agree.
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

from .experiment import Experiment, Findings, Trainer, Training
from .result import Claim, ResultTable


@dataclasses.dataclass(frozen=True)
class MultiplesSettings:
    """`factor` is the paper's c². A loss below `fallen` times its start counts as learned."""

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


# Loss, a and b before each step, of the first seed.
Curves = dict[str, np.ndarray]


def run(settings: MultiplesSettings, trainer: Trainer) -> Findings:
    curves = {n: _train(n, settings, trainer) for n in (1, 2)}
    fallen = {n: iterations_until_fallen(c["loss"], settings.fallen) for n, c in curves.items()}
    return Findings(
        sentence=_summarise(fallen, settings),
        claims=make_claims(curves, fallen, settings),
        figures=[_make_figure(curves, settings)],
        tables=[_make_table(curves, fallen, settings)],
    )


def _train(n: int, settings: MultiplesSettings, trainer: Trainer) -> Curves:
    """Trains with T = nτ."""

    def make(key: PRNGKeyArray) -> NPCDDE:
        del key
        options = {"gradient": Direct(), "throw": False}
        return NPCDDE(Multiple(), n, T=n * settings.tau, lags=1, **options)

    x = jnp.linspace(0, 1, settings.inputs)
    job = Training(
        label=f"NPCDDE, {_NAMES[n]}",
        loss=_loss,
        make=make,
        data=(x, settings.factor * x),
        optimiser=optax.adam(settings.learning_rate),
        steps=settings.steps,
        options={"block": settings.steps},
    )
    trained = trainer.together(f"T={n}tau", job, settings.seeds)
    return {name: series.values[:, 0] for name, series in trained.metrics.items()}


def _loss(model: NPCDDE, batch: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
    x, target = batch
    field = model.flow.field
    assert isinstance(field, Multiple)
    return (model(x) - target) ** 2, {"a": field.a, "b": field.b}


def iterations_until_fallen(loss: np.ndarray, part: float) -> float:
    """The iterations until the loss is below a part of its start; NaN if it never is."""
    below = np.flatnonzero(loss < part * loss[0])
    return float(below[0]) if below.size else math.nan


def _summarise(fallen: dict[int, float], settings: MultiplesSettings) -> str:
    learns = f"learns F(x) = {settings.factor:g}x"
    if math.isnan(fallen[2]):
        return f"With T = 2τ the NPCDDE does not learn F(x) = {settings.factor:g}x."
    if math.isnan(fallen[1]):
        return f"With T = 2τ the NPCDDE {learns} in {fallen[2]:.0f} iterations, with T = τ never."
    return (
        f"With T = 2τ the NPCDDE {learns} in {fallen[2]:.0f} iterations, and in {fallen[1]:.0f} "
        "with T = τ."
    )


def make_claims(
    curves: dict[int, Curves], fallen: dict[int, float], settings: MultiplesSettings
) -> list[Claim]:
    small = math.sqrt(settings.factor) - 1
    return [
        Claim.at_least(
            f"Fitting F(x) = {settings.factor:g}x, the training loss with T = 2τ falls faster than "
            f"with T = τ (iterations until it is below {100 * settings.fallen:.0f} % of its start)",
            fallen[1] / fallen[2],
            1.0,
            "times faster",
        ),
        Claim.at_most(
            f"With T = 2τ the field learns x ↦ (c − 1)x, that is, a = {small:g}",
            float(abs(curves[2]["a"][-1] - small)),
            0.01,
            "off",
        ),
    ]


_COLOURS = {1: "sky", 2: "purple"}
_NAMES = {1: "T = τ", 2: "T = 2τ"}


def _make_figure(curves: dict[int, Curves], settings: MultiplesSettings) -> Figure:
    titles = {"loss": "training loss", "a": "a", "b": "b"}

    def panel(name: str, title: str) -> Panel:
        lines = [
            Line(np.arange(len(c[name])), c[name], label=_NAMES[n], colour=_COLOURS[n])
            for n, c in curves.items()
        ]
        if name != "loss":
            return Panel(lines, title=title, xlabel="iteration")
        # Below this there is nothing but rounding.
        limits = 1e-6, 2 * float(curves[1]["loss"][0])
        return Panel(lines, title=title, xlabel="iteration", ylog=True, ylim=limits)

    caption = (
        f"Fitting F(x) = {settings.factor:g}x by the NPCDDEs of equation (8) with the field az + b "
        "and the final times T = τ and T = 2τ. The training loss (left) and the parameters a "
        "(middle) and b (right) during the training."
    )
    panels = [panel(name, title) for name, title in titles.items()]
    return Figure("multiples", caption, panels, columns=3)


def _make_table(
    curves: dict[int, Curves], fallen: dict[int, float], settings: MultiplesSettings
) -> ResultTable:
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
        f"Iterations until the loss is below {100 * settings.fallen:.0f} % of its start. Losses, "
        f"a and b are those after {settings.steps:,} iterations."
    )
    return ResultTable(columns, rows, f"Fitting F(x) = {settings.factor:g}x", note)


EXPERIMENT = Experiment(
    name="multiples",
    title="A multiple, F(x) = 16x, in one interval or two",
    about="The simple NPCDDE (eq. 8) with a linear field learns a large multiple, in one interval "
    "or as a smaller multiple applied twice. The paper says that the second is faster.",
    full=MultiplesSettings(),
    quick=MultiplesSettings(steps=4000),
    run=run,
)
