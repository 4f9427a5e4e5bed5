"""Imports inside lagrax point one way, and `import lagrax` needs no extra."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lagrax"

# A module may import what stands before it. Modules that share a rank do not import each other;
# those inside a listed package may, as long as there is no cycle.
ORDER: list[tuple[str, ...]] = [
    ("_values",),
    ("_delays", "_files", "_machine", "_series"),
    ("_regression",),
    ("_field", "_solution", "_windows"),
    ("_interval", "_saving"),
    ("_stepping",),
    ("_pacing",),
    ("_gradients",),
    ("_checks",),
    ("_solve",),
    ("_equations", "nn", "systems"),
    ("_devices", "_learning", "_launchers", "_progress", "_runs", "_table", "figures"),
    ("_page",),
    ("training",),
    ("analysis", "selection"),
    ("identify",),
    ("_answers", "_longrun"),
    ("_fit", "analysing"),
    ("_explore_sliders", "_fit_report", "simulating"),
    ("_explore_view", "fitting"),
    ("exploring",),
    ("paper",),
    ("cli",),
    ("__main__",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# What comes with extras, scipy included: jax installs it, but lagrax does not load it by itself.
OPTIONAL = {
    "dash",
    "filelock",
    "flask",
    "matplotlib",
    "optax",
    "plotly",
    "ray",
    "rich",
    "safetensors",
    "scipy",
    "tensorboardX",
    "typer",
}


def module_names(package: Path) -> dict[str, Path]:
    """All modules below `package`, as dotted names such as `lagrax.paper.data`."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported_by(name: str, path: Path, modules: set[str]) -> set[str]:
    """The modules among `modules` that `name` imports, at its top or inside a function."""
    root = name.partition(".")[0]
    here = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return {target for target in found if target.partition(".")[0] == root}


def import_graph(package: Path) -> dict[str, set[str]]:
    modules = module_names(package)
    return {name: imported_by(name, path, set(modules)) for name, path in modules.items()}


def rank_of(module: str) -> int | None:
    return RANK.get(module.split(".")[1])


def problems(graph: dict[str, set[str]], root: str = "lagrax") -> list[str]:
    """One sentence for each thing wrong with `graph`; none when all is well."""
    found = []
    for module in sorted(graph.keys() - {root}):
        if rank_of(module) is None:
            found.append(
                f"{module} has no place in the order of imports: "
                "add it to ORDER in tests/test_imports.py"
            )
            continue
        for target in sorted(graph[module]):
            if target == root:
                found.append(f"{module} imports {root} itself: import the module that is meant")
            elif target not in graph:
                found.append(f"{module} imports {target}, which does not exist")
            else:
                found += step_back(module, target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # graphlib lists a cycle from the imported to the importer.
        found.append("cycle of imports: " + " → ".join(reversed(error.args[1])))
    return found


def step_back(module: str, target: str) -> list[str]:
    mine, its = rank_of(module), rank_of(target)
    if mine is None or its is None or module.split(".")[1] == target.split(".")[1] or its < mine:
        return []
    what = "of the same rank" if its == mine else "which comes after it in the order"
    return [f"{module} imports {target}, {what}"]


def test_imports_point_one_way():
    assert problems(import_graph(PACKAGE)) == []


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"lagrax._delays": {"lagrax._solve"}, "lagrax._solve": set()},
            "lagrax._delays imports lagrax._solve, which comes after it in the order",
        ),
        (
            {"lagrax.nn": {"lagrax.systems"}, "lagrax.systems": set()},
            "lagrax.nn imports lagrax.systems, of the same rank",
        ),
        (
            {"lagrax.paper.a": {"lagrax.paper.b"}, "lagrax.paper.b": {"lagrax.paper.a"}},
            "cycle of imports: lagrax.paper.",
        ),
        (
            {"lagrax._delays": {"lagrax._solve"}, "lagrax._solve": {"lagrax._delays"}},
            "cycle of imports: lagrax._",
        ),
        ({"lagrax.nn": {"lagrax"}, "lagrax": set()}, "lagrax.nn imports lagrax itself"),
        ({"lagrax.novel": set()}, "lagrax.novel has no place in the order of imports: add it"),
        ({"lagrax.nn": {"lagrax._solv"}}, "lagrax.nn imports lagrax._solv, which does not exist"),
    ],
)
def test_checker_flags(graph, message):
    assert any(problem.startswith(message) for problem in problems(graph))


def test_checker_accepts_the_direction():
    graph = {
        "lagrax": {"lagrax._solve", "lagrax.nn"},
        "lagrax._delays": set(),
        "lagrax._solve": {"lagrax._delays"},
        "lagrax.nn": {"lagrax._solve"},
        "lagrax.paper": {"lagrax.paper.data"},
        "lagrax.paper.data": {"lagrax.nn"},
        "lagrax.cli": {"lagrax.paper"},
    }
    assert problems(graph) == []


def test_graph_sees_every_form_of_import(tmp_path):
    package = tmp_path / "lagrax"
    (package / "paper").mkdir(parents=True)
    sources = {
        "__init__.py": "from ._solve import solve\n",
        "_delays.py": "import math\nfrom collections import abc\n",
        "_solve.py": "from . import _delays\nimport jax\n",
        "nn.py": "def late():\n    from lagrax import solve\n",
        "systems.py": "import lagrax._solve\nfrom lagrax import _delays\n",
        "paper/__init__.py": "from .data import x\n",
        "paper/data.py": "from .. import nn\nfrom .._delays import y\nfrom . import __init__\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source, encoding="utf-8")
    assert import_graph(package) == {
        "lagrax": {"lagrax._solve"},
        "lagrax._delays": set(),
        "lagrax._solve": {"lagrax._delays"},
        "lagrax.nn": {"lagrax"},
        "lagrax.systems": {"lagrax._solve", "lagrax._delays"},
        "lagrax.paper": {"lagrax.paper.data"},
        "lagrax.paper.data": {"lagrax.nn", "lagrax._delays", "lagrax.paper"},
    }


def test_import_needs_no_extra():
    """What `import lagrax` loads beyond its core dependencies holds no optional package.

    The core dependencies come first because some load an optional package where they find it.
    """
    script = (
        "import sys, jax, jax.scipy, diffrax, equinox, jaxtyping\n"
        "before = set(sys.modules)\n"
        "import lagrax\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "lagrax" in loaded
    assert loaded & OPTIONAL == set()
