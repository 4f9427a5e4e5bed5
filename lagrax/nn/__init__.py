"""Neural differential equations with a past, as layers: fields, flows and classifiers.

A *field* (`MLP`, `Conv`, or any function `f(t, y, args, *, history)`) is the right-hand side; a
*layer* (`NODE`, `ANODE`, `NDDE`, `NPCDDE`, `UNPCDDE`) follows it from its input to its final state.
All layers are one `Flow` with different delays. Arrays have their channels last and any batch axes
in front; a batch shares its steps, `jax.vmap(layer)` gives each member its own.

The leaves of fields and layers are their parameters, all of them arrays, so models pass through
`jax.jit`, `jax.grad`, `jax.vmap` and optax as they are.
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
