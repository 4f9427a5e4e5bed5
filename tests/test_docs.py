"""The code in the documentation runs, and what it says about memory is what is measured."""

import importlib.util
import os
import re
import sys
import types
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the number of lines before it."""
    return [(page.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(page)]


def test_blocks_are_found():
    page = "Text\n\n```python\na = 1\n```\n\n```\nno code\n```\n\n```python\nb = a\n```\n"
    assert blocks(page) == [(3, "a = 1\n"), (11, "b = a\n")]
    assert blocks((ROOT / "docs" / "gradients.md").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_code_of_a_page_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert os.environ["MPLBACKEND"] == "Agg"  # set in conftest, before anything imports matplotlib
    # A module that is listed, as classes look up the module they were defined in.
    module = types.ModuleType(f"page_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.enable_x64(False):
        for before, code in blocks(path.read_text(encoding="utf-8")):
            # The empty lines in front make tracebacks name the page's own line.
            exec(compile("\n" * before + code, path, "exec"), module.__dict__)


@pytest.fixture
def memory():
    spec = importlib.util.spec_from_file_location("memory", ROOT / "docs" / "memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_memory_table_shows_what_the_page_says(memory):
    table = memory.read_table(memory.PAGE.read_text(encoding="utf-8"))
    assert list(table) == list(memory.WAYS)
    assert {len(row) for row in table.values()} == {len(memory.STEPS)}
    growth = {way: row[-1] - row[0] for way, row in table.items()}
    assert growth["Direct()"] > 6 * growth["Checkpointed()"]
    assert table["Adjoint()"][-1] < 1.1 * table["Adjoint()"][0]


def test_the_memory_check_notices_a_difference(memory):
    measured = {"Direct()": [1.0, 2.0, 3.0, 4.0, 5.0], "Adjoint()": [0.5] * 5}
    page = f"<!-- memory -->\n{memory.as_table(measured)}<!-- /memory -->"
    assert memory.read_table(page) == measured
    assert memory.differences(measured, measured) == []
    (sentence,) = memory.differences(measured, {**measured, "Direct()": [1.2, 2.0, 3.0, 4.0, 9.0]})
    assert "200 steps" in sentence
    assert memory.differences(measured, {"Direct()": measured["Direct()"]})
    with pytest.raises(ValueError, match="markers"):
        memory.read_table("A page without markers.")


@pytest.mark.slow
def test_the_memory_table_is_what_is_measured(memory):
    written = memory.read_table(memory.PAGE.read_text(encoding="utf-8"))
    assert memory.differences(memory.measure(), written) == []
