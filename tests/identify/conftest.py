"""Models that are fitted once, for tests that only look at them."""

import pytest
from helpers.measurements import population_series

from lagrax import Hold, Identifier


@pytest.fixture(scope="session")
def network():
    model = Identifier([Hold(1.0)], ensemble=2, iterations=100, width=8, progress=False)
    return model.fit(*population_series(noise=0.01))


@pytest.fixture(scope="session")
def library():
    return Identifier([Hold(1.0)], "library").fit(*population_series())
