"""The studies of the models' parts, of continuous models, and of another recipe.

They have no counterpart in the paper. All choose the epoch on held-out images, as the validation
study does, and share its runs.

- *Ablation*: the past that the field reads, the number of intervals and their length, and shared
  fields, at equal parameters and evaluations of the field. Models have up to 1.6 % more or fewer
  parameters than NODE, and all take twelve evaluations.
- *Continuity*: training with random numbers of steps, against the same number in each step. The
  accuracy with fine steps shows which model still is the solution of its equation.
- *Recipe*: augmented images, a decaying learning rate and weight decay, with the parameters of the
  paper's models.
"""

import dataclasses

from .protocol import Protocol, Recipe
from .validation_study import validation_protocol

# --- the settings ---------------------------------------------------------------------------------

ABLATION_DATASET = "cifar10"

# The models of the ablation, and the past that their field reads beside z(t).
PASTS = {
    "NODE": "none",
    "NDDE": "input",
    "NPCDDE2_last": "z_k",
    "NPCDDE3_last": "z_k",
    "NPCDDE6_last": "z_k",
    "NPCDDE2": "z_k, input",
    "NPCDDE3_ends": "z_k, input",
    "NPCDDE6_ends": "z_k, input",
    "NPCDDE3": "all knots",
    "NPCDDE6": "all knots",
    "UNPCDDE2": "all knots",
    "UNPCDDE3": "all knots",
    "UNPCDDE6": "all knots",
}
ABLATION_MODELS = tuple(PASTS)

# A question, the model with the part, and the one without.
QUESTIONS = (
    ("input instead of no past", "NDDE", "NODE"),
    ("z_k instead of no past, τ = 1/2", "NPCDDE2_last", "NODE"),
    ("z_k instead of no past, τ = 1/3", "NPCDDE3_last", "NODE"),
    ("z_k instead of no past, τ = 1/6", "NPCDDE6_last", "NODE"),
    ("skip to the input beside z_k, n = 2", "NPCDDE2", "NPCDDE2_last"),
    ("skip to the input beside z_k, n = 3", "NPCDDE3_ends", "NPCDDE3_last"),
    ("skip to the input beside z_k, n = 6", "NPCDDE6_ends", "NPCDDE6_last"),
    ("z_k beside the input, τ = 1/3", "NPCDDE3_ends", "NDDE"),
    ("all knots instead of z_k and the input, n = 3", "NPCDDE3", "NPCDDE3_ends"),
    ("all knots instead of z_k and the input, n = 6", "NPCDDE6", "NPCDDE6_ends"),
    ("two intervals instead of one", "NPCDDE2", "NDDE"),
    ("three intervals instead of two", "NPCDDE3", "NPCDDE2"),
    ("six intervals instead of three", "NPCDDE6", "NPCDDE3"),
    ("own fields instead of a shared one, n = 2", "UNPCDDE2", "NPCDDE2"),
    ("own fields instead of a shared one, n = 3", "UNPCDDE3", "NPCDDE3"),
    ("own fields instead of a shared one, n = 6", "UNPCDDE6", "NPCDDE6"),
)

CONTINUITY_DATASET = "mnist"
CONTINUITY_MODELS = ("UNPCDDE2",)


def continuity_protocol(model: str) -> Protocol:
    """The numbers of steps have the mean of the validation study, and so its cost."""
    protocol = validation_protocol(model)
    assert protocol.steps is not None
    steps = protocol.steps
    choices = tuple(range(1, 2 * steps, max(1, steps - 1)))
    return dataclasses.replace(protocol, recipe=Recipe(random_steps=choices))


RECIPE_DATASET = "cifar10"
RECIPE_MODELS = ("A4+UNPCDDE5", "A4+NODE")


def recipe_protocol(model: str) -> Protocol:
    return dataclasses.replace(
        validation_protocol(model),
        epochs=60,
        learning_rate=3e-3,
        recipe=Recipe(flips=True, shift=2, warmup=2, cosine=True, weight_decay=0.05),
    )
