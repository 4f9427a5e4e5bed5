"""Concentric annuli g_2d (eq. 6), which no NODE can separate, by four models of the plane.

An inner disc of radius r1 belongs to −1, the annulus between r2 and r3 to +1. The models differ in
their past alone: the NODE; the simple NPCDDE (eq. 8) with one interval and with two; the special
one with a skip connection (eq. 12). All have T = 1, fields with the same hidden layers, and a
linear map of z(T) that is fitted to the classes.

The paper gives neither the data nor the training. Both follow the work from which it has the task,
E. Dupont, A. Doucet, Y. W. Teh: Augmented Neural ODEs, NeurIPS 2019, and its public code: the
radii, two hidden relu layers of width 32, PyTorch's initial weights, batches of 64, Adam at 1e-3.
There are twice as many inner points as in its configuration file (500 and 1,500), and the loss is
the squared error (theirs is Huber's, which up to an error of 1 is half of it). The special model
and the simple one with one interval differ by less than their seeds do: so there are many.
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

from .experiment import Experiment, Outcome, Trainer
from .result import Claim, Table


@dataclasses.dataclass(frozen=True)
class Settings:
    """`steps` are those of Tsit5 that the NODE takes, `separated` is the accuracy from which on
    the training points count as separated, `shown` how many of them the figures show."""

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


class Data(NamedTuple):
    x: Float[Array, "points 2"]
    target: Float[Array, " points"]


def make_data(settings: Settings) -> Data:
    """All seeds have the same points. Their radii are drawn as in the code of Dupont et al.:
    evenly spread over the disc, and nearly so over the annulus."""
    draw = np.random.default_rng(settings.data_seed)
    r1, r2, r3 = settings.radii

    def ring(low: float, high: float, points: int) -> np.ndarray:
        radius = low + (high - low) * np.sqrt(draw.random(points))
        angle = draw.uniform(0, 2 * np.pi, points)
        return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    x = np.concatenate([ring(0.0, r1, settings.inner), ring(r2, r3, settings.outer)])
    target = np.repeat([-1.0, 1.0], [settings.inner, settings.outer])
    return Data(jnp.asarray(x, float), jnp.asarray(target, float))


class Model(NamedTuple):
    """`layer(field, **options)`, where `field(history)` makes one with so many held states."""

    label: str
    colour: str
    layer: Callable[..., AbstractLayer]


# In the order of the paper's feature spaces.
MODELS = {
    "node": Model("NODE", "orange", lambda field, **options: NODE(field(0), **options)),
    "one": Model(
        "NPCDDE, n = 1", "sky", lambda field, **options: NPCDDE(field(1), 1, lags=1, **options)
    ),
    "two": Model(
        "NPCDDE, n = 2", "purple", lambda field, **options: NPCDDE(field(1), 2, lags=1, **options)
    ),
    "special": Model(
        "special NPCDDE", "blue", lambda field, **options: NPCDDE(field(2), 2, **options)
    ),
}


def make_model(name: str, settings: Settings, key: PRNGKeyArray) -> Classifier:
    """The fields of equations (8) and (12) look at held states alone: one step an interval."""
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


def _loss(model: Classifier, batch: Data) -> Array:
    return (model(batch.x)[:, 0] - batch.target) ** 2


def _evaluate(model: Classifier, test: tuple[Data, Array]) -> dict[str, Array]:
    data, rows = test
    features = model.flow(data.x)
    right = jnp.sign(model.head(features)[:, 0]) == data.target
    return {"accuracy": jnp.mean(right), "features": features[rows]}


# --- the experiment -------------------------------------------------------------------------------


class Found(NamedTuple):
    """What one model has shown: the loss of each step, the rest after each epoch, and the flow of
    the first seed at the end."""

    loss: Float[np.ndarray, "steps seeds"]
    accuracy: Float[np.ndarray, "epochs seeds"]
    features: Float[np.ndarray, "epochs seeds shown 2"]
    flow: Float[np.ndarray, "times shown 2"]


def run(settings: Settings, train: Trainer) -> Outcome:
    data = make_data(settings)
    rows = jnp.linspace(0, len(data.x) - 1, settings.shown).astype(int)
    found = {name: _train(name, settings, train, data, rows) for name in MODELS}
    shown = Data(data.x[rows], data.target[rows])
    return Outcome(
        check(found, settings),
        [_training_figure(found, shown, settings), _features_figure(found, shown, settings)],
        [_table(found, settings)],
    )


def _train(name: str, settings: Settings, train: Trainer, data: Data, rows: Array) -> Found:
    epoch = -(-len(data.x) // settings.batch_size)
    trained = train(
        name,
        _loss,
        lambda key: make_model(name, settings, key),
        data,
        optax.adam(settings.learning_rate),
        steps=epoch * settings.epochs,
        seeds=settings.seeds,
        batch_size=settings.batch_size,
        evaluate=_evaluate,
        test_data=(data, rows),
        block=epoch,
    )
    first = jax.tree.map(lambda leaf: leaf[0], trained.model)
    flow = first.flow.solve(data.x[rows], saveat=diffrax.SaveAt(ts=jnp.linspace(0, 1, 21)))
    loss, accuracy, features = (
        trained.metrics[metric].values for metric in ("loss", "accuracy", "features")
    )
    return Found(loss, accuracy, features, np.asarray(flow.ys))


# --- claims ---------------------------------------------------------------------------------------


def mean_loss(found: Found) -> float:
    """Over all steps, the median over the seeds: the lower, the faster the loss falls."""
    return float(np.median(np.mean(found.loss, axis=0)))


def first_epoch(found: Found, settings: Settings) -> float:
    """That after which the classes are separated, the median over the seeds; one more than there
    are for a seed that does not get there."""
    apart = found.accuracy >= settings.separated
    return float(np.median(np.where(apart.any(axis=0), apart.argmax(axis=0), len(apart)) + 1))


def check(found: dict[str, Found], settings: Settings) -> list[Claim]:
    loss = {name: mean_loss(f) for name, f in found.items()}
    epoch = {name: first_epoch(f, settings) for name, f in found.items()}
    others = min(epoch[name] for name in epoch if name != "special")
    ratio = f"(ratio of the mean training losses over {settings.epochs} epochs)"
    return [
        Claim.at_least(
            f"On concentric annuli the loss of the simple NPCDDE with T = τ falls faster than that "
            f"with T = 2τ {ratio}",
            loss["two"] / loss["one"],
            1.0,
            "times lower",
        ),
        Claim.at_least(
            f"On concentric annuli the loss of the special NPCDDE falls faster than those of the "
            f"NODE and of the simple NPCDDE with T = 2τ {ratio}",
            min(loss["node"], loss["two"]) / loss["special"],
            1.0,
            "times lower",
        ),
        Claim.at_least(
            f"On concentric annuli the loss of the special NPCDDE falls slightly faster than that "
            f"of the simple NPCDDE with T = τ {ratio}",
            loss["one"] / loss["special"],
            1.0,
            "times lower",
        ),
        Claim.at_least(
            f"The special NPCDDE is the first to separate the annuli (epochs by which it is ahead "
            f"of the best other model in classifying {settings.separated:.0%} of the points)",
            others - epoch["special"],
            1.0,
            "epochs",
        ),
    ]


def _table(found: dict[str, Found], settings: Settings) -> Table:
    def row(name: str, f: Found) -> list[str]:
        mean = np.mean(f.loss, axis=0)
        last = np.mean(f.loss[-(len(f.loss) // settings.epochs) :], axis=0)
        epoch = first_epoch(f, settings)
        return [
            MODELS[name].label,
            _median_and_range(mean),
            _median_and_range(last),
            f"{100 * np.median(f.accuracy[-1]):.1f} %",
            f"{epoch:g}" if epoch <= settings.epochs else "never",
        ]

    columns = [
        "model",
        "mean loss",
        "loss in the last epoch",
        "final accuracy",
        f"first epoch ≥ {settings.separated:.0%}",
    ]
    rows = [row(name, f) for name, f in found.items()]
    note = f"Medians and ranges over {len(settings.seeds)} seeds, on the training points."
    return Table(columns, rows, "Concentric annuli", note)


def _median_and_range(values: np.ndarray) -> str:
    return f"{np.median(values):.3f} ({np.min(values):.3f} to {np.max(values):.3f})"


# --- figures --------------------------------------------------------------------------------------

# The paper's red, blue, yellow and cyan; its colours as far as colour-blind readers tell them.
_INITIAL = {1: "orange", -1: "blue"}
_FINAL = {1: "yellow", -1: "sky"}


def _training_figure(found: dict[str, Found], shown: Data, settings: Settings) -> Figure:
    panels = [
        _loss_panel(found, settings),
        Panel(
            _points(np.asarray(shown.x), shown, _INITIAL, "initial states,", 2.5),
            title="(b) part of the data",
            xlabel="z₁",
            ylabel="z₂",
            equal=True,
        ),
        *(
            _flow_panel(f"({letter}) {MODELS[name].label}", found[name], shown)
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


def _window(settings: Settings) -> int:
    """A quarter of an epoch, over which the losses of single batches are averaged."""
    return max(1, (settings.inner + settings.outer) // settings.batch_size // 4)


def _loss_panel(found: dict[str, Found], settings: Settings) -> Panel:
    width = _window(settings)
    lines = []
    for name, f in found.items():
        smooth = np.mean(np.lib.stride_tricks.sliding_window_view(f.loss, width, axis=0), axis=-1)
        lines.append(
            Line(
                settings.epochs * (np.arange(len(smooth)) + width / 2) / len(f.loss),
                np.median(smooth, axis=1),
                label=MODELS[name].label,
                colour=MODELS[name].colour,
                low=np.quantile(smooth, 0.25, axis=1),
                high=np.quantile(smooth, 0.75, axis=1),
            )
        )
    return Panel(lines, title="(a) training loss", xlabel="epoch", ylog=True)


def _flow_panel(title: str, found: Found, shown: Data) -> Panel:
    # A gap behind each trajectory makes one line of all; more than a third would hide the rest.
    paths = np.pad(found.flow, ((0, 1), (0, 0), (0, 0)), constant_values=np.nan)
    x, y = paths[:, ::3].transpose(2, 1, 0).reshape(2, -1)
    marks = [
        Line(x, y, colour="grey", width=0.3),
        *_points(found.flow[0], shown, _INITIAL, "initial states,", 2.5),
        *_points(found.flow[-1], shown, _FINAL, "final states,", 2.5),
    ]
    return Panel(marks, title=title, xlabel="z₁", ylabel="z₂", equal=True)


def _features_figure(found: dict[str, Found], shown: Data, settings: Settings) -> Figure:
    panels = [
        Panel(
            _points(features[0], shown, _INITIAL, "class", 2.0),
            title=f"epoch {epoch + 1}",
            equal=True,
        )
        for f in found.values()
        for epoch, features in enumerate(f.features)
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
        rows=[MODELS[name].label for name in found],
    )


def _points(
    states: np.ndarray, shown: Data, colours: dict[int, str], kind: str, size: float
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
    about="What no NODE can separate, by simple NPCDDEs (eq. 8) and by the special one with a skip "
    "connection (eq. 12). The paper gives neither data nor training; both, and the bars, are ours.",
    full=Settings(),
    quick=Settings(steps=4, seeds=(0, 1, 2, 3, 4)),
    run=run,
)
