"""Fixtures of the tests of training."""

import pytest
from helpers.small_run import run_in


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The result of an undisturbed run, and its metrics.jsonl."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_in(folder), (folder / "metrics.jsonl").read_bytes()
