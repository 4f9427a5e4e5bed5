"""Reservations about the accuracy tables, each with its number from the records."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from ..data.errors import join_names
from ..models import AUGMENTED, DATASETS, TABLE_1
from .claims import BASELINES, WRONG_SHARE, compare_cells, compute_spreads, image_claims
from .protocol import Protocol, default_protocol
from .records import RunRecord
from .statistics import MEASURES, SEEDS, Cells, Spread, get_best, get_fine


def list_caveats(cells: Cells, study: Sequence[RunRecord]) -> list[str]:
    """Sentences to read before the tables. Empty unless all cells of the tables are whole."""
    models = (*TABLE_1, *AUGMENTED)
    if any(len(cells.get((d, m), [])) < SEEDS for d in DATASETS for m in models):
        return []
    return [
        _describe_protocol(),
        *_compare_node_solvers(cells, study),
        _describe_adaptive_runs(study),
        "The cross-validated epoch does not look at the seed it is used for, but it still looks "
        "at the test images. Only the validation study holds images out.",
        _describe_solver_errors(cells),
        *_describe_outliers(cells),
        _count_expected(cells),
        f"The {len(image_claims(cells))} claims are decided by Welch's test, corrected for their "
        f"number: of the decided ones, {100 * WRONG_SHARE:.0f} % at most are expected to be wrong. "
        "A claim is undecided if its target lies within its interval.",
    ]


def _describe_protocol() -> str:
    baselines = default_protocol(BASELINES[0])
    return (
        "All models are trained with fixed steps and a field in float16. "
        f"{join_names(BASELINES)} take {baselines.describe_solver()}, and the others midpoint "
        "steps, at ten to twelve evaluations of the field each. The paper uses an adaptive solver."
    )


def _compare_node_solvers(cells: Cells, study: Sequence[RunRecord]) -> Iterator[str]:
    """NODE with the solver of the other models, and UNPCDDE5's gain over it."""
    midpoint = Protocol("midpoint", 6)
    other = [x for x in study if x.model == "NODE" and x.run.protocol == midpoint]
    seeds = {record.seed for record in other}
    same = [x for x in cells["cifar10", "NODE"] if x.seed in seeds]
    if not other or len(other) != len(same):
        return
    rise = np.mean(get_best(other)) - np.mean(get_best(same))
    gain = np.mean(get_best(cells["cifar10", "UNPCDDE5"])) - np.mean(
        get_best(cells["cifar10", "NODE"])
    )
    yield (
        f"The solver matters: with {midpoint.describe_solver()}, NODE on CIFAR-10 is {rise:.2f} "
        f"points better than with its default steps ({len(other)} seeds). With them, the gain of "
        f"UNPCDDE5 over NODE, {gain:.2f} points, would be smaller."
    )


def _describe_adaptive_runs(study: Sequence[RunRecord]) -> str:
    adaptive = [record for record in study if record.rtol is not None]
    models = join_names(list(dict.fromkeys(record.model for record in adaptive)))
    tried = {record.dataset for record in adaptive}
    here, elsewhere = (
        join_names([title for name, title in DATASETS.items() if (name in tried) == here])
        for here in (True, False)
    )
    return (
        f"Training with adaptive steps was tried for {models} on {here} alone, not on "
        f"{elsewhere}, where the solver errors are largest."
    )


def _describe_solver_errors(cells: Cells) -> str:
    ranges = []
    for dataset, title in DATASETS.items():
        means = [
            100 * np.mean([x.solver_error for x in cells[dataset, m] if x.solver_error is not None])
            for m in TABLE_1
        ]
        ranges.append(f"{min(means):.1f} to {max(means):.1f} % on {title}")
    return (
        f"The solver errors of the trained models of Table 1 are {join_names(ranges)}. With errors "
        "this large, a model is a discrete network rather than the solution of its equation."
    )


def _describe_outliers(cells: Cells) -> Iterator[str]:
    """Seeds whose accuracy with fine steps lies more than two points and six standard deviations
    from the mean of the other seeds."""
    for (dataset, model), records in cells.items():
        for record in records:
            others = get_fine([x for x in records if x is not record])
            rest = Spread.of(others)
            if record.fine_accuracy is None or len(others) < 2:
                continue
            distance = abs(record.fine_accuracy - rest.mean)
            if distance > max(2, 6 * rest.std):
                yield (
                    f"One seed decides a mean: {DATASETS[dataset]}, {model}, seed {record.seed} "
                    f"goes from {record.last:.2f} to {record.fine_accuracy:.2f} with fine steps. "
                    f"Without it, the mean with fine steps is {rest}."
                )


def _count_expected(cells: Cells) -> str:
    spreads = compute_spreads(cells, MEASURES["best epoch"])
    claims = compare_cells(spreads)
    reached = sum(claim.is_reached for claim in claims)
    # For two samples of one normal distribution, the difference of the means divided by the
    # paper's standard deviation and sqrt(2 / SEEDS) has Student's distribution.
    chance = stats.t.sf(-1 / np.sqrt(2 / SEEDS), df=SEEDS - 1)
    return (
        f"{reached} of {len(claims)} cells reach the paper's mean less its standard deviation at "
        f"the best epoch. About {len(claims) * chance:.0f} would be expected if our accuracies and "
        "the paper's had the same distributions."
    )
