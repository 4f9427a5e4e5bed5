"""Guides for users of other libraries: both sides of each page compute the same numbers.

Blocks in `python` are lagrax's (and diffrax's) and always run. Those in `py` are another library's
and run where it is installed.
"""

import re
import sys
import types
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"

# What both sides call by the same name, and how far they may differ, relative to its size.
SAME = {
    "torchdiffeq": {
        "ys": 1e-4,
        "slope": 1e-3,
        "ys_adjoint": 1e-4,
        "slope_adjoint": 1e-3,
        "features": 1e-4,
    },
    # torchdde's gradient with respect to the delay is off by some per cent, even with short steps.
    "torchdde": {"ys": 1e-3, "slope_a": 1e-3, "slope_tau": 5e-2},
    "pysindy": {"ys": 1e-4, "slope": 5e-3, "end": 1e-2, "score": 1e-3},
}


def run(name: str, language: str, monkeypatch) -> dict:
    """Runs the blocks of a page in one language and returns their names."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found
    module = types.ModuleType(f"coming_from_{name}_{language}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.enable_x64(False):
        for code in found:
            exec(compile(code, f"{name}.md", "exec"), module.__dict__)
    return module.__dict__


def as_array(value) -> np.ndarray:
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value, float)


def test_each_library_has_a_page():
    assert {path.stem for path in FOLDER.glob("*.md")} == {"diffrax", *SAME}


@pytest.mark.slow  # the page itself is run with the others
def test_diffrax_and_lagrax_agree(monkeypatch):
    names = run("diffrax", "python", monkeypatch)
    for kind in ("", "_held", "_lag"):
        np.testing.assert_allclose(names[f"ours{kind}"], names[f"theirs{kind}"], atol=1e-4)


@pytest.mark.parametrize("name", SAME)
def test_both_sides_agree(name, monkeypatch):
    pytest.importorskip(name)
    ours = run(name, "python", monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of others are theirs
        theirs = run(name, "py", monkeypatch)
    for variable, tolerance in SAME[name].items():
        own, other = as_array(ours[variable]).squeeze(), as_array(theirs[variable]).squeeze()
        assert own.shape == other.shape, variable
        assert np.max(np.abs(own - other)) <= tolerance * np.max(np.abs(other)), variable
