"""Why training fails at a = 3.2: recipes that each change one thing, and the size of gradients."""

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

GRADIENT = "gradient"
RESTARTED = "restarted"
SETTINGS = PopulationSettings(
    growth=(3.2,),
    models=("NPCDDE",),
    recipes=("paper", "restarted", "clipped", "short-memory", "clip", "cosine", "low-rate"),
    seeds=tuple(range(160)),
)
# Seeds of the other recipes.
FEW = 40


def make_jobs(settings: PopulationSettings, data: tuple[Array, Array]) -> dict[str, Training]:
    """A training for each recipe. All record the gradient's length at each step."""
    task = make_task(settings, "NPCDDE")
    whole = _with_gradient(task.loss)
    pieces = _with_gradient(_make_restarted_loss(settings))
    return {
        recipe: Training(
            label=recipe,
            loss=pieces if recipe == RESTARTED else whole,
            make=task.make,
            data=data[0],
            optimiser=make_recipe(settings, "paper" if recipe == RESTARTED else recipe),
            steps=settings.iterations,
            options={"evaluate": task.evaluate, "test_data": data, "block": settings.block},
        )
        for recipe in settings.recipes
    }


def _make_restarted_loss(settings: PopulationSettings):
    """The loss of predictions that start anew from the data at each knot."""
    knots, samples = settings.train_time, settings.samples

    def loss(field: PyTree, series: Series) -> Float[Array, " series"]:
        starts = series[:, : knots * samples : samples]
        predicted = predict(settings, MODELS["NPCDDE"], field, starts.T.ravel(), 1)
        parts = [series[:, k * samples : (k + 1) * samples + 1] for k in range(knots)]
        errors = (predicted - jnp.concatenate(parts)) ** 2
        # The first sample of a piece is given.
        return jnp.mean(errors[:, 1:], axis=1).reshape(knots, -1).mean(axis=0)

    return loss


def _with_gradient(loss):
    """The loss with the length of its gradient as a metric."""

    def with_gradient(field, series):
        gradient = eqx.filter_grad(lambda field: jnp.mean(loss(field, series)))(field)
        length = jax.lax.stop_gradient(optax.global_norm(gradient))
        return loss(field, series), {GRADIENT: length}

    return with_gradient
