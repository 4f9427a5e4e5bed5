"""Why training fails at a = 3.2, and recipes that each mend one thing.

The population's map from season to season is steep where the population is small. Over the three
seasons of the training a small change of a state grows by a factor of up to ninety, and later
seasons enlarge the effect of a change of the weights. So the loss has steep walls. If Adam meets
one after many small gradients, it divides the sudden gradient by the small root mean square of the
past ones, and takes a step of several learning rates in each weight.

The trials change one thing each in the paper's recipe:

- "restarted" predicts each season from the measured state at its start, instead of from the
  prediction of the season before. This is teacher forcing (R. Williams and D. Zipser, Neural
  Computation 1, 1989), or multiple shooting with measured knots. At a knot, the state is all that
  an NPCDDE with one lag knows of its past, so nothing is lost.
- "short-memory" averages the squared gradients over 20 iterations instead of 1,000.
- "clipped" is the second recipe of the population experiment. It clips gradients, has the short
  memory, and lets the learning rate fall.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from lagrax.plotting import Figure, Line, Panel
from lagrax.plotting._page import Cell
from lagrax.systems import Population
from lagrax.training import Trained

from .experiment import Experiment, Findings, Trainer, Training
from .intervals import median_interval, share_interval
from .population import median, show_small
from .population_models import (
    FINER,
    MODELS,
    PopulationSettings,
    Series,
    make_recipe,
    make_series,
    make_task,
    metric_of_test,
    predict,
    split,
)
from .result import Claim, ResultTable

MODEL = "NPCDDE"
RESTARTED = "restarted"
COLOURS = {"paper": "orange", "short-memory": "purple", "clipped": "sky", RESTARTED: "blue"}
CHANGES = {
    "paper": "nothing",
    "short-memory": "Adam averages squares over 20 iterations",
    "clipped": "clipped gradients, short memory, falling rate",
    RESTARTED: "each season starts from the data",
}
# The metric that is the length of the gradient before an iteration.
GRADIENT = "gradient"
# Seeds whose gradients are recorded.
TRACED = 12
# Iterations on either side of the largest gradient that the figure shows.
AROUND = 60
LIMIT = 40  # Of so many seeds, at most one is to be lost.
# A seed is lost if its training loss ends above this, a third of that of a model without a past.
LOST = 0.1

Values = Float[np.ndarray, " _"]


def run(settings: PopulationSettings, trainer: Trainer) -> Findings:
    (a,) = settings.growth
    data = split(settings, make_series(settings, a))
    jobs = make_jobs(settings, data)
    trials = trainer.one_by_one(jobs, settings.seeds)
    traced = trainer.one_by_one(make_traced_jobs(settings, data), settings.seeds[:TRACED])["traced"]
    lost = {recipe: find_lost(trained) for recipe, trained in trials.items()}
    return Findings(
        sentence=summarise(lost),
        claims=make_claims(lost),
        figures=[make_evidence_figure(settings, traced), make_trials_figure(trials)],
        tables=[make_trials_table(settings, trials, lost), make_traced_table(settings, traced)],
        seeds=list_seeds(settings, trials),
    )


# --- trainings ------------------------------------------------------------------------------------


def make_jobs(settings: PopulationSettings, data: tuple[Array, Array]) -> dict[str, Training]:
    """A training for each recipe."""
    losses = {RESTARTED: make_restarted_loss(settings)}
    whole = make_task(settings, MODEL).loss
    return {
        recipe: _make_job(settings, recipe, recipe, losses.get(recipe, whole), data)
        for recipe in settings.recipes
    }


def make_traced_jobs(
    settings: PopulationSettings, data: tuple[Array, Array]
) -> dict[str, Training]:
    """The paper's recipe with the gradient of each iteration, which doubles the cost."""
    loss = _with_gradient(make_task(settings, MODEL).loss)
    return {"traced": _make_job(settings, "paper, traced", "paper", loss, data)}


def _make_job(
    settings: PopulationSettings,
    label: str,
    recipe: str,
    loss: Callable,
    data: tuple[Array, Array],
) -> Training:
    task = make_task(settings, MODEL)
    return Training(
        label=label,
        loss=loss,
        make=task.make,
        data=data[0],
        optimiser=make_recipe(settings, "paper" if recipe == RESTARTED else recipe),
        steps=settings.iterations,
        options={"evaluate": task.evaluate, "test_data": data, "block": settings.block},
    )


def make_restarted_loss(settings: PopulationSettings) -> Callable:
    """The loss of predictions that start anew from the data at each knot."""
    knots, samples = settings.train_time, settings.samples

    def loss(field: PyTree, series: Series) -> Float[Array, " series"]:
        starts = series[:, : knots * samples : samples]
        predicted = predict(settings, MODELS[MODEL], field, starts.T.ravel(), 1)
        parts = [series[:, k * samples : (k + 1) * samples + 1] for k in range(knots)]
        errors = (predicted - jnp.concatenate(parts)) ** 2
        # The first sample of a piece is given.
        return jnp.mean(errors[:, 1:], axis=1).reshape(knots, -1).mean(axis=0)

    return loss


def _with_gradient(loss: Callable) -> Callable:
    """The loss with the length of its gradient as a metric."""

    def with_gradient(field: PyTree, series: Series) -> tuple[Array, dict[str, Array]]:
        gradient = eqx.filter_grad(lambda field: jnp.mean(loss(field, series)))(field)
        length = jax.lax.stop_gradient(optax.tree.norm(gradient))
        return loss(field, series), {GRADIENT: length}

    return with_gradient


# --- numbers --------------------------------------------------------------------------------------


def final(trained: Trained, metric: str) -> Values:
    return trained.metrics[metric].values[-1]


def find_lost(trained: Trained) -> np.ndarray:
    """Whether each seed ends with a training loss above `LOST`, on fine steps and over all three
    seasons."""
    losses = final(trained, FINER)
    return np.isnan(losses) | (losses > LOST)


def change_growth(a: float, x0: Values, seasons: int) -> Values:
    """The factor by which a small change of x(0) grows over so many seasons: the derivative of the
    map of the knots, x exp(a (1 − x)), along the knots."""
    factor, x = np.ones_like(x0), x0
    step = Population(a=a).knot_map
    for _ in range(seasons):
        factor = factor * (1 - a * x) * np.exp(a * (1 - x))
        x = np.asarray(step(jnp.asarray(x)))
    return np.abs(factor)


def root_mean_square(lengths: Values, memory: float) -> Values:
    """The running root mean square by which Adam divides, of the lengths of the gradients."""
    total, out = 0.0, []
    for k, length in enumerate(lengths, 1):
        total = memory * total + (1 - memory) * length**2
        out.append(np.sqrt(total / (1 - memory**k)))
    return np.array(out)


# --- sentence, claims and tables ------------------------------------------------------------------


def summarise(lost: dict[str, np.ndarray]) -> str:
    counts = {recipe: f"{int(x.sum())} of {len(x)}" for recipe, x in lost.items()}
    return (
        f"At a = 3.2 the paper's recipe loses {counts['paper']} seeds of the NPCDDE, and "
        f"{counts[RESTARTED]} if each season starts from the data."
    )


def make_claims(lost: dict[str, np.ndarray]) -> list[Claim]:
    claims = []
    for recipe, own in lost.items():
        count, total = int(own.sum()), len(own)
        low, high = share_interval(count, total)
        options = 100 * count / total, 100 / LIMIT, "% of the seeds", (100 * low, 100 * high)
        begin = f"a = 3.2, NPCDDE, {recipe} recipe:"
        if recipe == "paper":
            claims.append(Claim.at_least(f"{begin} more than 1 seed in {LIMIT} is lost", *options))
        else:
            claims.append(Claim.at_most(f"{begin} at most 1 seed in {LIMIT} is lost", *options))
    return claims


def make_trials_table(
    settings: PopulationSettings, trials: dict[str, Trained], lost: dict[str, np.ndarray]
) -> ResultTable:
    tests = {metric_of_test(n): f"test, length {n}" for n in settings.lengths}
    metrics = {FINER: "training"} | tests
    rows = []
    for recipe, trained in trials.items():
        count, total = int(lost[recipe].sum()), len(lost[recipe])
        low, high = share_interval(count, total)
        share = Cell(f"{count} of {total}", f"{100 * low:.0f} to {100 * high:.0f} %")
        losses = [_estimate(final(trained, metric)) for metric in metrics]
        rows.append([recipe, CHANGES[recipe], share, *losses])
    columns = ["recipe", "changes", "lost seeds", *metrics.values()]
    note = (
        f"Medians over the seeds, with 95 % bootstrap intervals, of the losses of the NPCDDE at "
        f"a = {settings.growth[0]:g} with fine steps; the training loss is that of three seasons "
        f"in one go for all recipes. A seed is lost if its training loss is above {LOST:g}, a "
        "third of that of the NODE. Intervals of shares are Wilson's."
    )
    return ResultTable(columns, rows, "Recipes at a = 3.2", note)


def _estimate(losses: Values) -> Cell:
    low, high = median_interval(losses)
    return Cell(show_small(median(losses)), f"{show_small(low)} to {show_small(high)}")


def make_traced_table(settings: PopulationSettings, traced: Trained) -> ResultTable:
    """The largest gradient of each seed, and the loss around it."""
    rows = []
    lengths, losses = (traced.metrics[name].values for name in (GRADIENT, "loss"))
    for seed, own, loss in zip(settings.seeds, lengths.T, losses.T, strict=False):
        k = int(np.nanargmax(own))
        ratio = own[k] / root_mean_square(own, 0.999)[k]
        after = np.max(loss[k : k + AROUND])
        rows.append(
            [
                str(seed),
                show_small(float(own[k])),
                f"{k + 1}",
                f"{ratio:.0f}",
                show_small(float(np.min(loss[: k + 1]))),
                show_small(float(after)),
                show_small(float(traced.metrics[FINER].values[-1, len(rows)])),
            ]
        )
    columns = ["seed", "largest gradient", "iteration", "over the running mean"]
    columns += ["least loss before", f"worst of {AROUND} after", "final loss"]
    note = (
        "The paper's recipe. The running mean is the root mean square of the gradients' lengths "
        "with Adam's memory, 0.999. A single gradient can exceed it by a factor of "
        f"{1 / np.sqrt(1 - 0.999):.0f} at most, and by {1 / np.sqrt(1 - settings.memory):.1f} with "
        f"a memory of {settings.memory:g}. These are the runs of the same seeds above: recording "
        "the gradients changed no number."
    )
    return ResultTable(columns, rows, "The largest gradient of each seed", note)


def list_seeds(settings: PopulationSettings, trials: dict[str, Trained]) -> list[dict]:
    records = []
    for recipe, trained in trials.items():
        for i, seed in enumerate(settings.seeds):
            found = {m: float(x.values[-1, i]) for m, x in trained.metrics.items()}
            finite = {m: x if np.isfinite(x) else None for m, x in found.items()}
            records.append({"recipe": recipe, "seed": seed} | finite)
    return records


# --- figures --------------------------------------------------------------------------------------


def make_evidence_figure(settings: PopulationSettings, traced: Trained) -> Figure:
    lengths, losses = (traced.metrics[name].values for name in (GRADIENT, "loss"))
    worst = int(np.argmax(np.nanmax(lengths, axis=0)))
    k = int(np.nanargmax(lengths[:, worst]))
    order = np.argsort(traced.metrics[FINER].values[-1])
    shown = {"largest gradient": (worst, "orange"), "median seed": (order[len(order) // 2], "blue")}
    panels = [
        _make_growth_panel(settings),
        _make_series_panel("length of the gradient", lengths, shown),
        _make_series_panel("training loss", losses, shown),
        _make_ratio_panel(settings, lengths[:, worst], k),
    ]
    return Figure(
        "steepness",
        f"Top left: the factor by which a small change of the first state grows over "
        f"{settings.train_time} seasons. Top right and bottom left: length of the gradient and "
        "training loss of two seeds of the paper's recipe, the one that met the largest gradient "
        "and the one of median final loss. Bottom right: the gradient of the first, divided by "
        "its running root mean square with Adam's memory and with a short one.",
        panels,
        columns=2,
    )


def _make_growth_panel(settings: PopulationSettings) -> Panel:
    x0 = np.linspace(*settings.starts, 400)
    rates = {2.0: "green", settings.growth[0]: "orange"}
    lines = [
        Line(x0, change_growth(a, x0, settings.train_time), label=f"a = {a:g}", colour=colour)
        for a, colour in rates.items()
    ]
    title = f"growth of a change over {settings.train_time} seasons"
    return Panel(lines, title, "first state", ylog=True, ylim=(1e-3, 1e3))


def _make_series_panel(
    title: str, values: Float[np.ndarray, "steps seeds"], shown: dict[str, tuple[int, str]]
) -> Panel:
    iterations = np.arange(1, len(values) + 1)
    lines = [
        Line(iterations, values[:, seed], label=label, colour=colour, width=0.7)
        for label, (seed, colour) in shown.items()
    ]
    return Panel(lines, title, "iteration", ylog=True)


def _make_ratio_panel(settings: PopulationSettings, lengths: Values, k: int) -> Panel:
    part = slice(max(k - AROUND, 0), k + AROUND)
    lines = [
        Line(
            np.arange(len(lengths))[part] + 1,
            (lengths / root_mean_square(lengths, memory))[part],
            label=f"memory {memory:g}",
            colour=colour,
        )
        for memory, colour in ((0.999, "orange"), (settings.memory, "purple"))
    ]
    return Panel(lines, "gradient over its running mean", "iteration")


def make_trials_figure(trials: dict[str, Trained]) -> Figure:
    lines = []
    for recipe, trained in trials.items():
        losses = np.sort(np.nan_to_num(final(trained, FINER), nan=np.inf))
        shares = (1 + np.arange(len(losses))) / len(losses)
        steps = [np.repeat(losses, 2), np.repeat(np.r_[0, shares], 2)[1:-1]]
        lines.append(Line(*steps, label=recipe, colour=COLOURS[recipe]))
    panel = Panel(lines, "", "training loss", "share of the seeds", xlog=True)
    return Figure(
        "recipes",
        "The share of the seeds whose final training loss, over all three seasons, is at most the "
        "one below, for each recipe.",
        [panel],
        columns=1,
    )


FULL = PopulationSettings(
    growth=(3.2,),
    models=(MODEL,),
    recipes=tuple(CHANGES),
    seeds=tuple(range(40)),
)
EXPERIMENT = Experiment(
    name="steepness",
    title="Why training fails at a = 3.2",
    about=(
        "The NPCDDE learns the population at a = 3.2 from many seeds with recipes that each change "
        "one thing, and the gradients of some seeds are recorded."
    ),
    claimed="The paper says nothing on this; the claims are ours.",
    full=FULL,
    quick=PopulationSettings(
        growth=(3.2,),
        models=(MODEL,),
        recipes=("paper", RESTARTED),
        seeds=(0, 1, 2),
        iterations=600,
        block=100,
    ),
    run=run,
)
