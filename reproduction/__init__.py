"""The paper's experiments, run by `python -m reproduction`.

Q. Zhu, Y. Shen, D. Li, W. Lin: Neural Piecewise-Constant Delay Differential Equations, AAAI 2022.
"""

from . import annuli, multiples, population, steepness
from .data import DataError as DataError
from .experiment import Experiment, conduct as conduct
from .images import load_model as load_model, plan as plan, sweep as sweep
from .report import read_experiment as read_experiment, write_report as write_report
from .result import (
    Claim as Claim,
    Entry as Entry,
    Result as Result,
    ResultError as ResultError,
    read_result as read_result,
)

# Those for a laptop. The images (`plan`, `sweep`) are the rest.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        multiples.EXPERIMENT,
        annuli.EXPERIMENT,
        population.EXPERIMENT,
        steepness.EXPERIMENT,
    )
}
