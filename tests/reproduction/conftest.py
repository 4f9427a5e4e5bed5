"""Small image classifiers for the tests of the reproduction."""

import pytest


@pytest.fixture(scope="module")
def tiny_models():
    from helpers import image_runs

    with image_runs.tiny_models():
        yield


@pytest.fixture(scope="module")
def mnist(tiny_models):
    from helpers.image_runs import some_images

    from reproduction.images.training import move_to_device

    return move_to_device("mnist", some_images())
