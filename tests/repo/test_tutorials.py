"""The tutorials store their outputs, and a short form of their code runs."""

import ast
import json
import os
import re
import sys
import types
from pathlib import Path

import jax
import pytest

plt = pytest.importorskip("matplotlib.pyplot")

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.ipynb"))
each_tutorial = pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell: dict) -> str:
    return "".join(cell["source"])


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def is_parameters(cell: dict) -> bool:
    return "parameters" in cell["metadata"].get("tags", [])


def assigned_names(code: str) -> set[str]:
    """Returns the names that code assigns at its top level."""
    targets = [t for s in ast.parse(code).body if isinstance(s, ast.Assign) for t in s.targets]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def has_output(code: str) -> bool:
    """Returns whether a cell prints, draws or ends with a value, outside of its definitions."""
    body = ast.parse(code).body
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    run = [n for s in body if not isinstance(s, definitions) for n in ast.walk(s)]
    called = {ast.unparse(n.func) for n in run if isinstance(n, ast.Call)}
    if called & {"print", "display", "plt.subplots", "plt.figure"}:
        return True
    last = body[-1] if body else None
    is_call = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)  # it may return None
    return isinstance(last, ast.Expr) and not is_call and not code.rstrip().endswith(";")


def test_cells_with_output_are_recognised():
    for code in ("print(1)", "for x in y:\n    print(x)", "fig, ax = plt.subplots()", "a = 1\na"):
        assert has_output(code)
    for code in ("a = 1", "def f():\n    print(1)", "model.fit(x)", "a;", ""):
        assert not has_output(code)


@each_tutorial
def test_a_tutorial_begins_with_its_title(path):
    notebook = read(path)
    first = notebook["cells"][0]
    assert first["cell_type"] == "markdown"
    assert text(first).startswith("# ")
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


@each_tutorial
def test_the_short_form_overrides_parameters(path):
    (cell,) = [cell for cell in code_cells(read(path)) if is_parameters(cell)]
    short = assigned_names(cell["metadata"]["short"])
    assert short
    assert short <= assigned_names(text(cell))


@each_tutorial
def test_outputs_are_stored(path):
    for cell in code_cells(read(path)):
        outputs = cell["outputs"]
        assert outputs or not has_output(text(cell)), f"no output is stored of\n{text(cell)}"
        assert "execution" not in cell["metadata"], "times make every run a difference"
        for output in outputs:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", output


@each_tutorial
def test_links_to_other_pages_work(path):
    for cell in read(path)["cells"]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text(cell)):
            if cell["cell_type"] == "markdown" and "://" not in target:
                assert (path.parent / target).exists(), target


@pytest.mark.filterwarnings("error")
@each_tutorial
def test_the_code_of_a_tutorial_runs(path, monkeypatch, tmp_path):
    folder = tmp_path / path.stem
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert os.environ["MPLBACKEND"] == "Agg"  # set in conftest, before anything imports matplotlib
    # A module that is listed, as classes look up the module they were defined in.
    module = types.ModuleType(f"tutorial_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        with plt.rc_context(), jax.enable_x64(False):
            for number, cell in enumerate(code_cells(read(path)), start=1):
                exec(compile(text(cell), f"{path.name}, code cell {number}", "exec"), vars(module))
                if is_parameters(cell):
                    exec(cell["metadata"]["short"], vars(module))
    finally:
        plt.close("all")
