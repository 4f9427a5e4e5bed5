"""The paper's experiments, each with its claims checked: `lagrax reproduce`.

Q. Zhu, Y. Shen, D. Li, W. Lin: Neural Piecewise-Constant Delay Differential Equations, AAAI 2022.
"""

from . import annuli, multiples, population
from .experiment import Experiment, conduct as conduct
from .report import write_report as write_report
from .result import Result as Result, ResultError as ResultError, read_result as read_result

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (multiples.EXPERIMENT, annuli.EXPERIMENT, population.EXPERIMENT)
}
