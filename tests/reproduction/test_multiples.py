"""F(x) = 16x, against a training written out by hand."""

import math
import re

import numpy as np
import pytest

from reproduction import multiples
from reproduction.experiment import Trainer
from reproduction.multiples import MultiplesSettings, iterations_until_fallen, make_claims

SETTINGS = MultiplesSettings(steps=400)


def by_hand(n: int, settings: MultiplesSettings) -> dict[str, np.ndarray]:
    """Loss, a and b before each Adam step, by the derivatives of z_{k+1} = z_k + τ(a z_k + b)."""
    x = np.linspace(0, 1, settings.inputs)
    theta, mean, square = np.zeros((3, 2))
    records = []
    for step in range(1, settings.steps + 1):
        a, b = theta
        z, dz = x, np.zeros((2, len(x)))
        for _ in range(n):
            dz = dz + settings.tau * (a * dz + np.stack([z, np.ones_like(x)]))
            z = z + settings.tau * (a * z + b)
        error = z - settings.factor * x
        records.append((np.mean(error**2), a, b))
        gradient = np.mean(2 * error * dz, axis=1)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        scaled = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        theta = theta - settings.learning_rate * scaled
    return dict(zip(("loss", "a", "b"), np.array(records).T, strict=True))


@pytest.fixture
def outcome(x64, tmp_path):
    return multiples.run(SETTINGS, Trainer(tmp_path, {}))


def test_training(outcome):
    (figure,) = outcome.figures
    assert figure.columns == 3
    for panel, name in zip(figure.panels, ("loss", "a", "b"), strict=True):
        for line, n in zip(panel.marks, (1, 2), strict=True):
            np.testing.assert_allclose(line.y, by_hand(n, SETTINGS)[name], rtol=1e-8, atol=1e-12)

    # So few steps do not let T = τ get there.
    assert [claim.verdict for claim in outcome.claims] == ["undecided", "does not hold"]
    assert [row[1] for row in outcome.tables[0].rows] == ["never", "never"]


def test_iterations_until_fallen():
    loss = np.array([100.0, 2.0, 1.0, 0.9, 3.0])
    assert iterations_until_fallen(loss, 0.01) == 3
    assert math.isnan(iterations_until_fallen(loss, 0.001))


@pytest.mark.parametrize(
    ("fallen", "a", "holds"),
    [
        ({1: 3000.0, 2: 600.0}, 3.005, [True, True]),
        ({1: 600.0, 2: 3000.0}, 2.98, [False, False]),
        ({1: 600.0, 2: math.nan}, 15.0, [False, False]),
    ],
)
def test_claims(fallen, a, holds):
    curves = {1: {"a": np.array([0.0, 15.0])}, 2: {"a": np.array([0.0, a])}}
    assert [claim.holds for claim in make_claims(curves, fallen, MultiplesSettings())] == holds


def test_quick_run_learns_both(tmp_path):
    outcome = multiples.run(multiples.EXPERIMENT.quick, Trainer(tmp_path, {}))
    faster, small = outcome.claims
    assert faster.holds
    assert 4 < faster.value < 6
    assert small.holds
    assert outcome.tables[0].rows[1][3] == "3"
    assert re.search(r"in 6\d\d iterations, and in \d{4} with T = τ", outcome.sentence)


@pytest.mark.parametrize(
    ("fallen", "words"), [({1: math.nan, 2: 9.0}, "T = τ never"), ({1: 9.0, 2: math.nan}, "not")]
)
def test_the_sentence_says_what_was_not_learned(fallen, words):
    assert words in multiples._summarise(fallen, MultiplesSettings())
