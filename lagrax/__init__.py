"""Delay differential equations for JAX, and the neural networks made of them."""

from . import nn as nn, systems as systems
from ._delays import Hold as Hold, Lag as Lag, holds as holds
from ._gradients import Adjoint as Adjoint, Checkpointed as Checkpointed, Direct as Direct
from ._solution import (
    RESULTS as RESULTS,
    Knots as Knots,
    Solution as Solution,
    SolveError as SolveError,
)
from ._solve import solve as solve

__version__ = "0.1.0"
