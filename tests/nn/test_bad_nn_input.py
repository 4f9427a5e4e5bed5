"""Bad arguments of fields and layers."""

import jax
import jax.numpy as jnp
import pytest
from helpers.refusals import check_call

from lagrax import Hold, nn

KEY = jax.random.key(0)
ONES = jnp.ones((3, 2))


def field(t, y, args, *, history):
    return -y + sum(history)


def mlp(history=0, **options):
    return nn.MLP(2, (4,), history=history, key=KEY, **options)


CALLS = {
    "no channels": (lambda: nn.MLP(0, key=KEY), ValueError, ["MLP got channels=0"]),
    "channels fractional": (lambda: nn.MLP(1.5, key=KEY), ValueError, ["MLP got channels=1.5"]),
    "a layer of none": (lambda: nn.MLP(2, (4, 0), key=KEY), ValueError, ["MLP got widths=0"]),
    "no layers": (lambda: nn.MLP(2, (), key=KEY), ValueError, ["MLP got no widths", "(64, 64)"]),
    "one width": (lambda: nn.MLP(2, 8, key=KEY), TypeError, ["MLP got widths=8", "list"]),
    "history negative": (lambda: mlp(-1), ValueError, ["MLP got history=-1"]),
    "nothing to look at": (lambda: mlp(uses_state=False), ValueError, ["uses_state=False"]),
    "a seed as key": (lambda: nn.MLP(2, key=0), TypeError, ["MLP got key=0", "jax.random.key(0)"]),
    "no key": (lambda: nn.Conv(3, 4, key=None), TypeError, ["Conv got key=None", "jax.random"]),
    "no filters": (lambda: nn.Conv(3, 0, key=KEY), ValueError, ["Conv got filters=0"]),
    "no inputs": (lambda: nn.Affine(0, 1, key=KEY), ValueError, ["Affine got inputs=0"]),
    "augment negative": (lambda: nn.Augment(-1), ValueError, ["Augment got p=-1"]),
    "p negative": (lambda: nn.ANODE(mlp(), -1), ValueError, ["Augment got p=-1"]),
    "one delay of a flow": (lambda: nn.Flow(mlp(1), Hold(1.0)), TypeError, ["one delay", "list"]),
    "a number as delay of a flow": (lambda: nn.Flow(mlp(1), [1.0]), TypeError, ["1.0", "Hold(1.0"]),
    "a flow's unknown option": (lambda: nn.NODE(mlp(), step=3), TypeError, ["'step'"]),
    "no intervals": (lambda: nn.NPCDDE(mlp(1), 0), ValueError, ["NPCDDE got n=0"]),
    "intervals of a layer fractional": (lambda: nn.NPCDDE(mlp(1), 1.5), ValueError, ["n=1.5"]),
    "a field of another history": (
        lambda: nn.NPCDDE(mlp(1), 2),
        ValueError,
        ["history=1", "2 held states", "history=2"],
    ),
    "no lags": (lambda: nn.NPCDDE(field, 2, lags=0), ValueError, ["n=0", "at least 1"]),
    "unshared without fields": (lambda: nn.UNPCDDE([]), ValueError, ["the number of fields=0"]),
    "unshared fields a number": (lambda: nn.UNPCDDE(3), TypeError, ["UNPCDDE got fields=3"]),
    "a layer's lag zero": (lambda: nn.NDDE(mlp(1), tau=0.0), ValueError, ["Lag got tau=0.0"]),
    "a layer of no field": (lambda: nn.NODE(3)(ONES), TypeError, ["field=3", "cannot be called"]),
    "a layer's T negative": (lambda: nn.NODE(mlp(), T=-1.0)(ONES), ValueError, ["t1=-1.0"]),
    "a state of other channels": (
        lambda: nn.NODE(mlp(), steps=1)(jnp.ones((3, 1))),
        ValueError,
        ["MLP got a state of shape (3, 1)", "channels"],
    ),
    "padding to none": (
        lambda: nn.Conv(1, 4, pad_to=0, key=KEY),
        ValueError,
        ["Conv got pad_to=0"],
    ),
    "a state without channels": (
        lambda: nn.NODE(mlp())(jnp.ones(3)),
        ValueError,
        ["shape (3,); expected (..., 2)"],
    ),
    "a point for an image": (
        lambda: nn.NODE(nn.Conv(2, 4, key=KEY))(jnp.ones((5, 2))),
        ValueError,
        ["(..., height, width, 2)"],
    ),
    "unshared fields for a longer span": (
        lambda: nn.UNPCDDE([mlp()] * 2).solve(jnp.ones(2), t1=2.0),
        ValueError,
        ["2 fields for 4 intervals"],
    ),
    "too little history": (
        lambda: nn.NDDE(mlp(2), steps=1)(ONES),
        ValueError,
        ["MLP was made for 2 history entries and got 1"],
    ),
    "head of a number": (lambda: nn.Head(3, key=KEY), TypeError, ["Head got shape=3"]),
    "no classes": (lambda: nn.Head((2,), 0, key=KEY), ValueError, ["Head got classes=0"]),
    "head of another state": (
        lambda: nn.Head((2, 2), key=KEY)(ONES),
        ValueError,
        ["Head got a state of shape (3, 2)", "(2, 2)"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)
