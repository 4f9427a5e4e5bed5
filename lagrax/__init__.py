"""Delay differential equations for JAX, and the neural networks made of them."""

from . import (
    analysis as analysis,
    figures as figures,
    nn as nn,
    systems as systems,
    training as training,
)
from ._delays import Hold as Hold, Lag as Lag, Learn as Learn, holds as holds
from ._gradients import Adjoint as Adjoint, Checkpointed as Checkpointed, Direct as Direct
from ._solution import (
    RESULTS as RESULTS,
    Knots as Knots,
    Solution as Solution,
    SolveError as SolveError,
)
from ._solve import solve as solve
from .identify import Identifier as Identifier, IdentifyError as IdentifyError
from .selection import select_delays as select_delays

__version__ = "0.1.0"
