"""Concentric annuli g_2d (eq. 6), which no NODE can separate, by four models of the plane.

An inner disc of radius r1 has the class −1, the annulus between r2 and r3 the class +1. The models
differ only in their past. They are the NODE, the simple NPCDDE (eq. 8) with one interval and with
two, and the special NPCDDE with a skip connection (eq. 12). All have T = 1, fields with the same
hidden layers, and a linear map of z(T) that is fitted to the classes.

The paper gives neither the data nor the training. Both follow the source of the task, E. Dupont,
A. Doucet, Y. W. Teh: Augmented Neural ODEs, NeurIPS 2019, and its public code, in the radii, two
hidden relu layers of width 32, PyTorch's initial weights, batches of 64 and Adam at 1e-3. There are
twice the inner points of its configuration file (500 and 1,500), and the loss is the squared error
(theirs is Huber's, half of it up to an error of 1). The special model and the simple one with one
interval differ by less than their seeds do, hence the large number of seeds.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from lagrax._solve.gradients import Direct
from lagrax.nn import MLP, NODE, NPCDDE, AbstractLayer, Classifier, Head
from lagrax.plotting import Figure, Line, Panel, Points
from lagrax.plotting._page import Cell

from .experiment import Experiment, Findings, Trainer, Training
from .intervals import lead_interval, ratio_interval
from .result import CellValue, Claim, ResultTable


@dataclasses.dataclass(frozen=True)
class AnnuliSettings:
    """`steps` is the number of Tsit5 steps of the NODE. The training points count as separated
    from the accuracy `separated` on. The figures show `shown` of them."""

    seeds: tuple[int, ...] = tuple(range(60))
    radii: tuple[float, float, float] = (0.5, 1.0, 1.5)
    inner: int = 1000
    outer: int = 2000
    data_seed: int = 0
    widths: tuple[int, ...] = (32, 32)
    steps: int = 10
    epochs: int = 6
    batch_size: int = 64
    learning_rate: float = 1e-3
    separated: float = 0.99
    shown: int = 300


# --- data and models ------------------------------------------------------------------------------


class LabelledPoints(NamedTuple):
    x: Float[Array, "points 2"]
    target: Float[Array, " points"]


def make_data(settings: AnnuliSettings) -> LabelledPoints:
    """Draws the points, which are the same for all seeds. Their radii follow the code of Dupont et
    al., uniform over the disc and nearly so over the annulus."""
    draw = np.random.default_rng(settings.data_seed)
    r1, r2, r3 = settings.radii

    def ring(low: float, high: float, points: int) -> np.ndarray:
        radius = low + (high - low) * np.sqrt(draw.random(points))
        angle = draw.uniform(0, 2 * np.pi, points)
        return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    x = np.concatenate([ring(0.0, r1, settings.inner), ring(r2, r3, settings.outer)])
    target = np.repeat([-1.0, 1.0], [settings.inner, settings.outer])
    return LabelledPoints(jnp.asarray(x, float), jnp.asarray(target, float))


class AnnuliModel(NamedTuple):
    """`layer(field, **options)` makes the model; `field(history)` makes a field that reads
    `history` held states."""

    label: str
    colour: str
    layer: Callable[..., AbstractLayer]


# In the order of the paper's feature spaces.
MODELS = {
    "node": AnnuliModel("NODE", "orange", lambda field, **options: NODE(field(0), **options)),
    "one": AnnuliModel(
        "NPCDDE, n = 1", "sky", lambda field, **options: NPCDDE(field(1), 1, lags=1, **options)
    ),
    "two": AnnuliModel(
        "NPCDDE, n = 2", "purple", lambda field, **options: NPCDDE(field(1), 2, lags=1, **options)
    ),
    "special": AnnuliModel(
        "special NPCDDE", "blue", lambda field, **options: NPCDDE(field(2), 2, **options)
    ),
}


def make_model(name: str, settings: AnnuliSettings, key: PRNGKeyArray) -> Classifier:
    """The fields of equations (8) and (12) read held states alone, so one step an interval is
    exact."""
    field_key, head_key = jax.random.split(key)

    def field(history: int) -> MLP:
        return MLP(
            2,
            settings.widths,
            history=history,
            uses_state=history == 0,
            activation=jax.nn.relu,
            key=field_key,
        )

    layer = MODELS[name].layer(field, steps=settings.steps, gradient=Direct(), throw=False)
    return Classifier(layer, Head((2,), 1, key=head_key))


def _loss(model: Classifier, batch: LabelledPoints) -> Array:
    return (model(batch.x)[:, 0] - batch.target) ** 2


def _evaluate(model: Classifier, test: tuple[LabelledPoints, Array]) -> dict[str, Array]:
    data, rows = test
    features = model.flow(data.x)
    right = jnp.sign(model.head(features)[:, 0]) == data.target
    return {"accuracy": jnp.mean(right), "features": features[rows]}


# --- the experiment -------------------------------------------------------------------------------


class AnnuliCurves(NamedTuple):
    """The loss of each step, accuracy and features after each epoch, and the flow of the first
    seed after the training."""

    loss: Float[np.ndarray, "steps seeds"]
    accuracy: Float[np.ndarray, "epochs seeds"]
    features: Float[np.ndarray, "epochs seeds shown 2"]
    flow: Float[np.ndarray, "times shown 2"]


# By the name of the model.
Curves = dict[str, AnnuliCurves]


def run(settings: AnnuliSettings, trainer: Trainer) -> Findings:
    data = make_data(settings)
    rows = jnp.linspace(0, len(data.x) - 1, settings.shown).astype(int)
    curves = {name: _train(name, settings, trainer, data, rows) for name in MODELS}
    shown = LabelledPoints(data.x[rows], data.target[rows])
    return Findings(
        sentence=_summarise(curves, settings),
        claims=make_claims(curves, settings),
        figures=[
            _make_flow_figure(curves, shown, settings),
            _make_features_figure(curves, shown, settings),
        ],
        tables=[_make_table(curves, settings)],
    )


def _train(
    name: str, settings: AnnuliSettings, trainer: Trainer, data: LabelledPoints, rows: Array
) -> AnnuliCurves:
    epoch = -(-len(data.x) // settings.batch_size)
    job = Training(
        label=MODELS[name].label,
        loss=_loss,
        make=lambda key: make_model(name, settings, key),
        data=data,
        optimiser=optax.adam(settings.learning_rate),
        steps=epoch * settings.epochs,
        options={
            "batch_size": settings.batch_size,
            "evaluate": _evaluate,
            "test_data": (data, rows),
            "block": epoch,
        },
        averaged=epoch,
    )
    trained = trainer.together(name, job, settings.seeds)
    first = jax.tree.map(lambda leaf: leaf[0], trained.model)
    flow = first.flow.solve(data.x[rows], saveat=diffrax.SaveAt(ts=jnp.linspace(0, 1, 21)))
    loss, accuracy, features = (
        trained.metrics[metric].values for metric in ("loss", "accuracy", "features")
    )
    return AnnuliCurves(loss, accuracy, features, np.asarray(flow.ys))


# --- claims ---------------------------------------------------------------------------------------


def _summarise(curves: Curves, settings: AnnuliSettings) -> str:
    reached = {name: 100 * _median(c.accuracy[-1]) for name, c in curves.items()}
    least = min(reached[name] for name in MODELS if name != "node")
    return (
        f"After {settings.epochs} epochs the NODE classifies {reached['node']:.1f} % of the points "
        f"of two concentric annuli, and the worst of the NPCDDEs {least:.1f} %."
    )


def mean_losses(curves: AnnuliCurves) -> Float[np.ndarray, " seeds"]:
    """The mean over all steps, which is the lower the faster the loss falls."""
    return np.mean(curves.loss, axis=0)


def first_epochs(curves: AnnuliCurves, settings: AnnuliSettings) -> Float[np.ndarray, " seeds"]:
    """The epoch after which the classes are separated; for a seed that does not get there, one
    more than the last."""
    apart = curves.accuracy >= settings.separated
    return np.where(apart.any(axis=0), apart.argmax(axis=0), len(apart)) + 1.0


def _median(values: Float[np.ndarray, " seeds"]) -> float:
    return float(np.median(values))


def make_claims(curves: Curves, settings: AnnuliSettings) -> list[Claim]:
    loss = {name: mean_losses(c) for name, c in curves.items()}
    epoch = {name: first_epochs(c, settings) for name, c in curves.items()}
    ratio = f"(ratio of the mean training losses over {settings.epochs} epochs)"
    begin = "On concentric annuli the loss of the"

    def falls_faster(claim: str, own: str, *others: str) -> Claim:
        return Claim.at_least(
            f"{begin} {claim} {ratio}",
            min(_median(loss[name]) for name in others) / _median(loss[own]),
            1.0,
            "times lower",
            ratio_interval([loss[name] for name in others], loss[own]),
        )

    slower = [epoch[name] for name in MODELS if name != "special"]
    return [
        falls_faster("simple NPCDDE with T = τ falls faster than that with T = 2τ", "one", "two"),
        falls_faster(
            "special NPCDDE falls faster than those of the NODE and of the simple NPCDDE with "
            "T = 2τ",
            "special",
            "node",
            "two",
        ),
        falls_faster(
            "special NPCDDE falls slightly faster than that of the simple NPCDDE with T = τ",
            "special",
            "one",
        ),
        Claim.at_least(
            f"The special NPCDDE is the first to separate the annuli (epochs by which it is ahead "
            f"of the best other model in classifying {100 * settings.separated:.0f} % of the "
            "points)",
            min(map(_median, slower)) - _median(epoch["special"]),
            1.0,
            "epochs",
            lead_interval(slower, epoch["special"]),
        ),
    ]


def _make_table(curves: Curves, settings: AnnuliSettings) -> ResultTable:
    def row(name: str, c: AnnuliCurves) -> list[CellValue]:
        last = np.mean(c.loss[-(len(c.loss) // settings.epochs) :], axis=0)
        epoch = _median(first_epochs(c, settings))
        return [
            MODELS[name].label,
            _estimate(mean_losses(c)),
            _estimate(last),
            f"{100 * _median(c.accuracy[-1]):.1f} %",
            f"{epoch:g}" if epoch <= settings.epochs else "never",
        ]

    columns = [
        "model",
        "mean loss",
        "loss in the last epoch",
        "final accuracy",
        f"first epoch ≥ {100 * settings.separated:.0f} %",
    ]
    rows = [row(name, c) for name, c in curves.items()]
    note = f"Medians and ranges over {len(settings.seeds)} seeds, on the training points."
    return ResultTable(columns, rows, "Concentric annuli", note)


def _estimate(values: Float[np.ndarray, " seeds"]) -> Cell:
    return Cell(f"{np.median(values):.3f}", f"{np.min(values):.3f} to {np.max(values):.3f}")


# --- figures --------------------------------------------------------------------------------------

# The paper's red, blue, yellow and cyan; its colours as far as colour-blind readers tell them.
_INITIAL = {1: "orange", -1: "blue"}
_FINAL = {1: "yellow", -1: "sky"}


def _make_flow_figure(curves: Curves, shown: LabelledPoints, settings: AnnuliSettings) -> Figure:
    panels = [
        _loss_panel(curves, settings),
        Panel(
            _points(np.asarray(shown.x), shown, _INITIAL, "initial states,", 2.5),
            title="(b) part of the data",
            xlabel="z₁",
            ylabel="z₂",
            equal=True,
        ),
        *(
            _flow_panel(f"({letter}) {MODELS[name].label}", curves[name], shown)
            for letter, name in zip("cdef", ("node", "two", "one", "special"), strict=True)
        ),
    ]
    caption = (
        "Fitting concentric annuli. (a) The training losses of the NODE, the NPCDDEs of equation "
        "(8) with n = 1 and τ = 1 and with n = 2 and τ = 0.5, and the special NPCDDE of equation "
        f"(12) with τ = 0.5: medians and quartiles over {len(settings.seeds)} seeds, averaged over "
        f"{_window(settings)} steps. (b) A part of the training data. (c) to (f) The flows from "
        "the initial to the final states of the first seed after the training."
    )
    return Figure("annuli", caption, panels, columns=3)


def _window(settings: AnnuliSettings) -> int:
    """The steps in a quarter of an epoch, over which the losses of batches are averaged."""
    return max(1, (settings.inner + settings.outer) // settings.batch_size // 4)


def _loss_panel(curves: Curves, settings: AnnuliSettings) -> Panel:
    width = _window(settings)
    lines = []
    for name, c in curves.items():
        smooth = np.mean(np.lib.stride_tricks.sliding_window_view(c.loss, width, axis=0), axis=-1)
        lines.append(
            Line(
                settings.epochs * (np.arange(len(smooth)) + width / 2) / len(c.loss),
                np.median(smooth, axis=1),
                label=MODELS[name].label,
                colour=MODELS[name].colour,
                low=np.quantile(smooth, 0.25, axis=1),
                high=np.quantile(smooth, 0.75, axis=1),
            )
        )
    return Panel(lines, title="(a) training loss", xlabel="epoch", ylog=True)


def _flow_panel(title: str, curves: AnnuliCurves, shown: LabelledPoints) -> Panel:
    # A gap after each trajectory makes one line of all. More than a third would hide the rest.
    paths = np.pad(curves.flow, ((0, 1), (0, 0), (0, 0)), constant_values=np.nan)
    x, y = paths[:, ::3].transpose(2, 1, 0).reshape(2, -1)
    marks = [
        Line(x, y, colour="grey", width=0.3),
        *_points(curves.flow[0], shown, _INITIAL, "initial states,", 2.5),
        *_points(curves.flow[-1], shown, _FINAL, "final states,", 2.5),
    ]
    return Panel(marks, title=title, xlabel="z₁", ylabel="z₂", equal=True)


def _make_features_figure(
    curves: Curves, shown: LabelledPoints, settings: AnnuliSettings
) -> Figure:
    panels = [
        Panel(
            _points(features[0], shown, _INITIAL, "class", 2.0),
            title=f"epoch {epoch + 1}",
            equal=True,
        )
        for c in curves.values()
        for epoch, features in enumerate(c.features)
    ]
    caption = (
        f"The feature spaces z(T) of the first seed after each of the {settings.epochs} epochs of "
        "fitting concentric annuli: the NODE, the NPCDDEs of equation (8) with n = 1 and τ = 1 and "
        "with n = 2 and τ = 0.5, and the special NPCDDE of equation (12) with τ = 0.5."
    )
    return Figure(
        "annuli-features",
        caption,
        panels,
        columns=settings.epochs,
        rows=[MODELS[name].label for name in curves],
    )


def _points(
    states: np.ndarray, shown: LabelledPoints, colours: dict[int, str], kind: str, size: float
) -> list[Points]:
    classes = np.asarray(shown.target)
    return [
        Points(
            *states[classes == c].T,
            label=f"{kind} {'+' if c > 0 else '−'}1",
            colour=colour,
            size=size,
        )
        for c, colour in colours.items()
    ]


EXPERIMENT = Experiment(
    name="annuli",
    title="Concentric annuli",
    about="No NODE can separate concentric annuli. The simple NPCDDEs (eq. 8) and the special one "
    "with a skip connection (eq. 12) can. The paper gives neither data nor training: both are "
    "ours.",
    claimed="The targets are ours, too.",
    full=AnnuliSettings(),
    quick=AnnuliSettings(steps=4, seeds=(0, 1, 2, 3, 4)),
    run=run,
)
