"""Neural delay differential equations as layers, with their fields, heads and classifiers.

A *field* (`MLP`, `Conv`, or any function `f(t, y, args, *, history)`) is the right-hand side of an
equation. A *layer* (`NODE`, `ANODE`, `NDDE`, `NPCDDE`, `UNPCDDE`) solves the equation from its
input to the final state. Every layer is a `Flow` with particular delays. Arrays have channels last
and any number of batch axes in front. A batch shares its steps; with `jax.vmap(layer)` each member
has its own.

The leaves of fields and layers are arrays, their parameters. Models therefore pass through
`jax.jit`, `jax.grad`, `jax.vmap` and optax without filters.
"""

from ._affine import Affine as Affine
from ._classifier import Classifier as Classifier, Head as Head, parameter_count as parameter_count
from ._fields import MLP as MLP, AbstractField as AbstractField, Conv as Conv, Design as Design
from ._layers import (
    ANODE as ANODE,
    NDDE as NDDE,
    NODE as NODE,
    NPCDDE as NPCDDE,
    UNPCDDE as UNPCDDE,
    AbstractLayer as AbstractLayer,
    Augment as Augment,
    Flow as Flow,
)
