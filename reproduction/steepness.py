"""Why training fails at a = 3.2: recipes that each change one thing, and the size of gradients."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from .experiment import Training
from .population_models import (
    MODELS,
    PopulationSettings,
    Series,
    make_recipe,
    make_task,
    predict,
)

# The metric that is the length of the gradient before an iteration.
GRADIENT = "gradient"
RESTARTED = "restarted"
MODEL = "NPCDDE"


def make_jobs(settings: PopulationSettings, data: tuple[Array, Array]) -> dict[str, Training]:
    """A training for each recipe."""
    losses = {RESTARTED: make_restarted_loss(settings)}
    whole = make_task(settings, MODEL).loss
    return {
        recipe: _make_job(settings, recipe, losses.get(recipe, whole), data)
        for recipe in settings.recipes
    }


def make_traced_jobs(
    settings: PopulationSettings, data: tuple[Array, Array]
) -> dict[str, Training]:
    """Trainings that record the gradient at each iteration, which doubles their cost."""
    loss = _with_gradient(make_task(settings, MODEL).loss)
    return {
        f"traced-{recipe}": _make_job(settings, recipe, loss, data)
        for recipe in ("paper", "clipped")
    }


def _make_job(
    settings: PopulationSettings, recipe: str, loss: Callable, data: tuple[Array, Array]
) -> Training:
    task = make_task(settings, MODEL)
    return Training(
        label=recipe,
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
        length = jax.lax.stop_gradient(optax.global_norm(gradient))
        return loss(field, series), {GRADIENT: length}

    return with_gradient
