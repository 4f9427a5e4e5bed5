"""The code in the documentation runs, and its table of memory is measured."""

import doctest
import importlib.util
import os
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# test_coming_from.py runs the code of these and checks its results.
CHECKED = [ROOT / "docs/coming-from" / f"{name}.md" for name in ("dde23", "delaydiffeq", "diffrax")]
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {*CHECKED})]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[int, str, str]]:
    """Returns the Python blocks of a page: the number of lines before each, its kind, its code."""
    return [(page.count("\n", 0, m.start(2)), *m.groups()) for m in BLOCK.finditer(page)]


def run(page: str, path: Path, names: dict) -> None:
    """Runs the blocks of a page in order. Blocks with prompts must print the shown output."""
    for before, kind, code in blocks(page):
        if kind == "pycon":
            shown = doctest.DocTestParser().get_doctest(code, {}, str(path), str(path), before)
            shown.globs = names  # the page's own, not a copy
            runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
            runner.run(shown, out=said.append, clear_globs=False)
            assert not said, "".join(said)
        else:
            # The empty lines in front make tracebacks name the page's own line.
            exec(compile("\n" * before + code, path, "exec"), names)


def test_blocks_are_found():
    page = "Text\n\n```python\na = 1\n```\n\n```\nno code\n```\n\n```pycon\n>>> a\n1\n```\n"
    assert blocks(page) == [(3, "python", "a = 1\n"), (11, "pycon", ">>> a\n1\n")]
    assert blocks((ROOT / "docs" / "gradients.md").read_text(encoding="utf-8"))
    assert ROOT / "docs" / "api" / "solve.md" in PAGES


def test_wrong_output_on_a_page_fails():
    page = (
        "```python\na = [1, 2]\n```\n\n```pycon\n>>> b = sum(a)\n>>> print(b, a)\n3 [1, ...]\n```\n"
    )
    names: dict = {}
    run(page, Path("page.md"), names)
    assert names["b"] == 3
    with pytest.raises(AssertionError, match=r"page.md[\s\S]*Expected:\s+4 \["):
        run(page.replace("3 [", "4 ["), Path("page.md"), {})
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("```pycon\n>>> 1 / 0\n0\n```\n", Path("page.md"), {})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_code_of_a_page_runs(path, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert os.environ["MPLBACKEND"] == "Agg"  # set in conftest, before anything imports matplotlib
    # A module that is listed, as classes look up the module they were defined in.
    module = types.ModuleType(f"page_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with jax.enable_x64(False), np.printoptions():
        run(path.read_text(encoding="utf-8"), path, module.__dict__)


@pytest.fixture
def memory():
    spec = importlib.util.spec_from_file_location("memory", ROOT / "docs" / "memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_memory_table_supports_its_text(memory):
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
def test_the_memory_table_is_measured(memory):
    written = memory.read_table(memory.PAGE.read_text(encoding="utf-8"))
    assert memory.differences(memory.measure(), written) == []
