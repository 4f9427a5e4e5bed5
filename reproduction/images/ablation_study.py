"""The studies of the models' parts, of continuous models, and of another recipe.

They have no counterpart in the paper. All choose the epoch on held-out images, as the validation
study does, and share its runs.

- *Ablation*: the past that the field reads, the number of intervals and their length, and shared
  fields, at equal parameters and evaluations of the field. Models have up to 1.6 % more or fewer
  parameters than NODE, and all take twelve evaluations.
- *Continuity*: training with random numbers of steps, against the same number in each step. The
  accuracy with fine steps shows which model still is the solution of its equation.
- *Recipe*: augmented images, a decaying learning rate and weight decay, with the parameters of the
  paper's models. A NODE trained in the same way shows how much of the gain is the model's.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from ..models import DATASETS, paper_intervals, paper_size
from ..result import ResultTable
from .claims import Comparison, find_error_rate
from .protocol import Protocol, Recipe
from .records import RunRecord
from .statistics import Spread, get_fine, paper_accuracy
from .validation_study import HELD_OUT, validation_protocol

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

# --- continuity -----------------------------------------------------------------------------------

CONTINUITY_DATASET = "mnist"
CONTINUITY_MODELS = ("UNPCDDE2",)


def continuity_protocol(model: str) -> Protocol:
    """The numbers of steps have the mean of the validation study, and so its cost."""
    protocol = validation_protocol(model)
    assert protocol.steps is not None
    steps = protocol.steps
    choices = tuple(range(1, 2 * steps, max(1, steps - 1)))
    return dataclasses.replace(protocol, recipe=Recipe(random_steps=choices))


def belongs_to_continuity(record: RunRecord) -> bool:
    return record.model in CONTINUITY_MODELS and record.run.protocol == continuity_protocol(
        record.model
    )


# --- the recipe -----------------------------------------------------------------------------------

RECIPE_DATASET = "cifar10"
RECIPE_MODELS = ("A4+UNPCDDE5", "A4+NODE")


def recipe_protocol(model: str) -> Protocol:
    return dataclasses.replace(
        validation_protocol(model),
        epochs=60,
        learning_rate=3e-3,
        recipe=Recipe(flips=True, shift=2, warmup=2, cosine=True, weight_decay=0.05),
    )


def belongs_to_recipe(record: RunRecord) -> bool:
    return record.run.protocol == recipe_protocol(record.model)


# --- tables ---------------------------------------------------------------------------------------

# With fewer seeds, intervals are too wide to tell anything.
FEWEST = 3


def ablation_tables(records: Sequence[RunRecord]) -> list[ResultTable]:
    """The models and the questions, of the runs with the protocol of the validation study."""
    groups = {
        model: [x for x in records if (x.dataset, x.model) == (ABLATION_DATASET, model)]
        for model in ABLATION_MODELS
    }
    if not any(groups[model] for model in ABLATION_MODELS if "_" in model):
        return []  # Only the models of the paper, which the validation study shows.
    title = f"Ablation, {DATASETS[ABLATION_DATASET]}"
    models = [_make_model_row(model, group) for model, group in groups.items()]
    columns = ["model", "τ", "past beside z(t)", "fields", "chosen epoch", "chosen, fine steps"]
    columns += ["parameters", "seeds"]
    note = (
        f"The chosen epoch is the best on {HELD_OUT:,} held-out training images. All models take "
        "twelve evaluations by midpoint steps and have nearly the same number of parameters."
    )
    if not all(groups.values()):
        note += " – marks models that are not yet trained (`--study ablation`)."
    return [ResultTable(columns, models, title, note), _make_question_table(title, groups)]


def _make_model_row(model: str, group: Sequence[RunRecord]) -> list[str]:
    n = paper_intervals(model)
    return [
        model,
        "1" if n == 1 else f"1/{n}",
        PASTS[model],
        "own" if model.startswith("UN") else "shared",
        str(Spread.of([x.chosen for x in group])),
        str(Spread.of(get_fine(group))),
        f"{paper_size(model, ABLATION_DATASET)['params']:,}",
        str(len(group) or "–"),
    ]


def _make_question_table(title: str, groups: dict[str, list[RunRecord]]) -> ResultTable:
    comparisons = []
    for question, model, other in QUESTIONS:
        chosen = [[x.chosen for x in groups[name]] for name in (model, other)]
        counts = len(chosen[0]), len(chosen[1])
        if min(counts) >= FEWEST:
            one, two = (Spread.of(values) for values in chosen)
            comparisons.append(Comparison(question, one, two, counts))
    error_rate = find_error_rate([x.p_value for x in comparisons])
    names = {question: f"{model} − {other}" for question, model, other in QUESTIONS}
    rows = [_show_verdict(x, names[x.claim], error_rate) for x in comparisons]
    note = (
        "Differences of the mean accuracy at the chosen epoch, with intervals of Welch's test, "
        f"corrected for the number of questions. {len(comparisons)} of {len(QUESTIONS)} questions "
        f"have {FEWEST} seeds or more on both sides."
    )
    columns = ["question", "models", "difference", "verdict", "seeds"]
    return ResultTable(columns, rows, f"{title}, one part at a time", note)


def recipe_tables(records: Sequence[RunRecord]) -> list[ResultTable]:
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.dataset, record.model), []).append(record)
    rows = [
        [
            f"{DATASETS[dataset]}, {model}",
            str(Spread.of([x.chosen for x in group])),
            str(Spread.of(get_fine(group))),
            str(paper_accuracy(dataset, model)),
            str(len(group)),
        ]
        for (dataset, model), group in groups.items()
    ]
    if not rows:
        return []
    protocol = records[0].run.protocol
    note = (
        f"Our own recipe: {protocol.epochs} epochs at a rate of {protocol.learning_rate:g}, "
        f"{protocol.recipe}. Models and parameters are the paper's, and the steps those of the "
        "validation study. The epoch is chosen on held-out images. If the accuracy with fine steps "
        "is far lower, the steps have become part of the model."
    )
    columns = ["model", "chosen epoch", "chosen, fine steps", "paper", "seeds"]
    tables = [ResultTable(columns, rows, "Recipe study", note)]
    one, two = (groups.get((RECIPE_DATASET, model), []) for model in RECIPE_MODELS)
    if min(len(one), len(two)) < FEWEST:
        return tables
    name = " − ".join(RECIPE_MODELS)
    measures = {
        "chosen epoch": ([x.chosen for x in one], [x.chosen for x in two]),
        "chosen, fine steps": (get_fine(one), get_fine(two)),
    }
    comparisons = [
        Comparison(measure, Spread.of(a), Spread.of(b), (len(a), len(b)))
        for measure, (a, b) in measures.items()
    ]
    error_rate = find_error_rate([x.p_value for x in comparisons])
    rows = [_show_verdict(x, name, error_rate) for x in comparisons]
    note = "Differences of the means, with intervals of Welch's test, corrected for their number."
    columns = ["accuracy", "models", "difference", "verdict", "seeds"]
    return [*tables, ResultTable(columns, rows, "Recipe study, the models compared", note)]


def _show_verdict(comparison: Comparison, models: str, error_rate: float) -> list[str]:
    claim = comparison.judge(error_rate)
    verdict = {"holds": "better", "does not hold": "worse"}.get(claim.verdict, claim.verdict)
    seeds = " and ".join(map(str, comparison.seeds))
    return [claim.claim, models, claim.show_value(), verdict, seeds]


def continuity_tables(
    records: Sequence[RunRecord], default: Mapping[tuple[str, str], Sequence[RunRecord]]
) -> list[ResultTable]:
    """Models trained with random numbers of steps, beside those with fixed ones in `default`."""
    rows = []
    for model in CONTINUITY_MODELS:
        of_model = [x for x in records if x.model == model]
        pairs = (("fixed", default.get((CONTINUITY_DATASET, model), ())), ("random", of_model))
        for steps, group in pairs:
            if group:
                name = f"{DATASETS[CONTINUITY_DATASET]}, {model}"
                rows.append([name, steps, *_show_gap(group), str(len(group))])
    if not records:
        return []
    steps = records[0].run.protocol.recipe
    assert steps is not None
    choices = " or ".join(map(str, steps.random_steps))
    note = (
        f"With random steps, each batch of the training takes {choices} steps an interval. The "
        "accuracies are those of the last epoch. A positive difference is lost with fine steps. "
        "The error left is that of the final state with the model's own steps, relative to its way "
        f"from the first one. Random steps are trained without {HELD_OUT:,} of the training images."
    )
    columns = ["model", "steps", "own steps", "fine steps", "difference", "error left", "seeds"]
    return [ResultTable(columns, rows, "Continuity study", note)]


def _show_gap(records: Sequence[RunRecord]) -> list[str]:
    """The accuracies with a model's own steps and with fine ones, and how far they differ."""
    fine = get_fine(records)
    gaps = [x.last - x.fine_accuracy for x in records if x.fine_accuracy is not None]
    errors = [100 * x.solver_error for x in records if x.solver_error is not None]
    own = str(Spread.of([x.last for x in records]))
    gap = str(Spread.of(gaps)).replace("-", "−")
    error = f"{Spread.of(errors)} %" if errors else "–"
    return [own, str(Spread.of(fine)), gap, error]
