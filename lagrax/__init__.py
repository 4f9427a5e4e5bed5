"""Delay differential equations for JAX, and the neural networks made of them."""

import sys

from . import (
    analysis as analysis,
    identify as identify,
    nn as nn,
    plotting as plotting,
    systems as systems,
    training as training,
)
from ._solve.delays import (
    Hold as Hold,
    Input as Input,
    Lag as Lag,
    Learn as Learn,
    holds as holds,
)
from ._solve.doses import Doses as Doses, doses as doses
from ._solve.gradients import Adjoint as Adjoint, Checkpointed as Checkpointed, Direct as Direct
from ._solve.jumps import Jump as Jump
from ._solve.lags import (
    Distributed as Distributed,
    LagMatrix as LagMatrix,
    Slope as Slope,
)
from ._solve.solution import (
    RESULTS as RESULTS,
    Knots as Knots,
    Solution as Solution,
    SolveError as SolveError,
)
from ._solve.solve import solve as solve
from .identify import (
    Identifier as Identifier,
    IdentifyError as IdentifyError,
    _selection as selection,
    select_delays as select_delays,
)

__version__ = "0.2.0"

# The names of two modules in version 0.1 stay importable.
figures = plotting
sys.modules |= {"lagrax.figures": plotting, "lagrax.selection": selection}
