"""The paper's image classifiers, by name, with the filters and sizes of its tables."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from lagrax import Hold
from lagrax.nn import (
    NDDE,
    NODE,
    NPCDDE,
    UNPCDDE,
    AbstractLayer,
    Classifier,
    Conv,
    Flow,
    Head,
    parameter_count,
)
from lagrax.nn._checks import check_key

# In the order in which they are trained and shown.
DATASETS = {"cifar10": "CIFAR-10", "svhn": "SVHN", "mnist": "MNIST"}

_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "svhn": (32, 32, 3)}

# The filters of the paper's parameter table: for images of one channel, of three channels.
_FILTERS = {
    "NODE": (92, 92),
    "NDDE": (92, 92),
    "NPCDDE2": (91, 91),
    "UNPCDDE2": (64, 64),
    "NPCDDE3": (91, 91),
    "UNPCDDE3": (52, 52),
    "NPCDDE5": (91, 91),
    "UNPCDDE5": (40, 40),
    "A1+NODE": (87, 86),
    "A1+NDDE": (86, 85),
    "A1+NPCDDE5": (86, 84),
    "A1+UNPCDDE5": (38, 37),
    "A2+NODE": (81, 79),
    "A2+NDDE": (81, 78),
    "A2+NPCDDE5": (80, 77),
    "A2+UNPCDDE5": (35, 34),
    "A4+NODE": (70, 63),
    "A4+NDDE": (69, 62),
    "A4+NPCDDE5": (68, 61),
    "A4+UNPCDDE5": (30, 26),
}

# The models of the ablation study that the paper lacks, with about as many parameters as its own.
_VARIANT_FILTERS = {
    "NPCDDE2_last": (92, 92),
    "NPCDDE3_last": (92, 92),
    "NPCDDE6_last": (92, 92),
    "NPCDDE3_ends": (91, 91),
    "NPCDDE6_ends": (91, 91),
    "NPCDDE6": (91, 91),
    "UNPCDDE6": (37, 37),
}

# The models of the paper's first table of accuracies, and of the second.
TABLE_1 = tuple(name for name in _FILTERS if "+" not in name)
AUGMENTED = tuple(name for name in _FILTERS if "+" in name)
VARIANTS = tuple(_VARIANT_FILTERS)
# The channels that an augmentation adds.
CHANNELS = {"A1": "1 channel", "A2": "2 channels", "A4": "4 channels"}

# From the number of intervals and a maker of fields (history, number of the field) to a layer.
_FAMILIES: dict[str, Callable[..., AbstractLayer | Flow]] = {
    "NODE": lambda n, make, **options: NODE(make(0, 0), **options),
    "NDDE": lambda n, make, **options: NDDE(make(1, 0), **options),
    "NPCDDE": lambda n, make, **options: NPCDDE(make(n, 0), n, **options),
    "UNPCDDE": lambda n, make, **options: UNPCDDE([make(k + 1, k) for k in range(n)], **options),
    # Of z_k alone, and of z_k and the input.
    "NPCDDE_last": lambda n, make, **options: NPCDDE(make(1, 0), n, lags=1, **options),
    "NPCDDE_ends": lambda n, make, **options: Flow(make(2, 0), [Hold(1 / n), Hold(1.0)], **options),
}


def paper_models() -> tuple[str, ...]:
    """The names of the paper's image models, in the order of its tables."""
    return tuple(_FILTERS)


def all_models() -> tuple[str, ...]:
    """The names of the paper's image models, then those of the variants in the ablation study."""
    return (*_FILTERS, *_VARIANT_FILTERS)


def paper_filters(name: str, data: str) -> int:
    """The number of filters of the model `name` on the images `data`."""
    filters = _FILTERS | _VARIANT_FILTERS
    for kind, value, choices in (("model", name, _FILTERS), ("data set", data, _SHAPES)):
        if value not in choices and value not in _VARIANT_FILTERS:
            raise ValueError(f"No {kind} {value!r} in the paper; it has {', '.join(choices)}.")
    return filters[name][_SHAPES[data][-1] == 3]


def paper_intervals(name: str) -> int:
    """The number of intervals between the knots of the model `name`."""
    return _parse_name(name)[2]


def _parse_name(name: str) -> tuple[int, str, int]:
    """Augmented channels, family and intervals, from a name such as A2+UNPCDDE5."""
    match = re.fullmatch(r"(?:A(\d)\+)?([A-Z]+)(\d?)(_\w+)?", name)
    if match is None or name not in all_models():
        raise ValueError(f"No model {name!r} in the paper; it has {', '.join(_FILTERS)}.")
    return int(match[1] or 0), match[2] + (match[4] or ""), int(match[3] or 1)


def paper_model(
    name: str,
    data: str,
    *,
    key: PRNGKeyArray,
    compute_dtype: DTypeLike | None = None,
    pad_to: int | None = None,
    **options: Any,
) -> Classifier:
    """One of the paper's image classifiers, as in `paper_model("A2+UNPCDDE5", "cifar10", key=key)`.

    The variants of the ablation study have names, too: the field of "NPCDDE3_last" gets z(t) and
    the last held state alone, that of "NPCDDE3_ends" also the input.

    **Arguments:**

    - `data`: the images, "mnist", "cifar10" or "svhn". The model takes them in the shape (...,
      height, width, channels), as floats in [0, 1].
    - `compute_dtype`, `pad_to`: passed to the fields (`Conv`).
    - `options`: passed to the layer (`Flow`). By default its steps are adaptive, as in the paper;
      `steps=1, solver=diffrax.Midpoint()` is several times faster.
    """
    filters = paper_filters(name, data)
    check_key("paper_model", key)
    p, family, n = _parse_name(name)
    height, width, channels = _SHAPES[data]
    keys = jax.random.split(key, n + 1)

    def make(history, number):
        return Conv(
            channels + p,
            filters,
            history=history,
            compute_dtype=compute_dtype,
            pad_to=pad_to,
            key=keys[number],
        )

    flow = _FAMILIES[family](n, make, augment=p, **options)
    return Classifier(flow, Head((height, width, channels + p), key=keys[n]))


@cache
def paper_size(name: str, data: str) -> dict[str, int]:
    """The `filters` and `params` of the model `name` on the images `data`, without making it."""
    model = eqx.filter_eval_shape(paper_model, name, data, key=jax.random.key(0))
    return {"filters": paper_filters(name, data), "params": parameter_count(model)}
