"""Folders of lagrax import in one order, and `import lagrax` needs no extra."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lagrax"

# A folder imports from the folders before it and from itself. Those in one place do not import
# each other.
ORDER: list[tuple[str, ...]] = [
    ("_solve",),
    ("nn", "systems"),
    ("training",),
    ("plotting",),
    ("analysis",),
    ("identify",),
    ("_cli",),
    ("__main__",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# What comes with extras, scipy included: jax installs it, but lagrax does not load it by itself.
OPTIONAL = {
    "dash",
    "filelock",
    "flask",
    "jinja2",
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
    """All modules below `package`, as dotted names such as `lagrax.nn._layers`."""
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
            found.append(f"{module} has no place in the order of imports: add its folder to ORDER")
            continue
        for target in sorted(graph[module]):
            if target == root:
                found.append(f"{module} imports {root} itself: import the module that is meant")
            elif target not in graph:
                found.append(f"{module} imports {target}, which does not exist")
            elif is_step_back(module, target):
                found.append(f"{module} imports {target}, which does not come before it")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # graphlib lists a cycle from the imported to the importer.
        found.append("cycle of imports: " + " → ".join(reversed(error.args[1])))
    return found


def is_step_back(module: str, target: str) -> bool:
    mine, its = rank_of(module), rank_of(target)
    same_folder = module.split(".")[1] == target.split(".")[1]
    return not same_folder and mine is not None and its is not None and its >= mine


def test_folders_import_in_one_order():
    assert problems(import_graph(PACKAGE)) == []


def test_library_does_not_import_the_reproduction():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "reproduction" for name in names), path


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"lagrax.nn._a": {"lagrax.training"}, "lagrax.training": set()},
            "lagrax.nn._a imports lagrax.training, which does not come before it",
        ),
        (
            {"lagrax.nn": {"lagrax.systems"}, "lagrax.systems": set()},
            "lagrax.nn imports lagrax.systems, which does not come before it",
        ),
        (
            {"lagrax.nn._a": {"lagrax.nn._b"}, "lagrax.nn._b": {"lagrax.nn._a"}},
            "cycle of imports: lagrax.nn.",
        ),
        ({"lagrax.nn": {"lagrax"}, "lagrax": set()}, "lagrax.nn imports lagrax itself"),
        ({"lagrax.novel": set()}, "lagrax.novel has no place in the order of imports: add its"),
        ({"lagrax.nn": {"lagrax._solv"}}, "lagrax.nn imports lagrax._solv, which does not exist"),
    ],
)
def test_checker_flags(graph, message):
    assert any(problem.startswith(message) for problem in problems(graph))


def test_checker_accepts_the_order():
    graph = {
        "lagrax": {"lagrax._solve.solve", "lagrax.nn"},
        "lagrax._solve.delays": set(),
        "lagrax._solve.solve": {"lagrax._solve.delays"},
        "lagrax.nn": {"lagrax.nn._layers"},
        "lagrax.nn._layers": {"lagrax._solve.solve"},
        "lagrax._cli.app": {"lagrax.nn"},
    }
    assert problems(graph) == []


def test_graph_sees_every_form_of_import(tmp_path):
    package = tmp_path / "lagrax"
    for folder in ("_solve", "nn"):
        (package / folder).mkdir(parents=True)
    sources = {
        "__init__.py": "from ._solve.solve import solve\n",
        "_solve/__init__.py": "",
        "_solve/delays.py": "import math\nfrom collections import abc\n",
        "_solve/solve.py": "from . import delays\nimport jax\n",
        "systems.py": "import lagrax._solve.solve\nfrom lagrax._solve import delays\n",
        "nn/__init__.py": "from ._layers import x\n",
        "nn/_layers.py": "from .._solve.delays import y\ndef f():\n    from lagrax import solve\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source, encoding="utf-8")
    assert import_graph(package) == {
        "lagrax": {"lagrax._solve.solve"},
        "lagrax._solve": set(),
        "lagrax._solve.delays": set(),
        "lagrax._solve.solve": {"lagrax._solve.delays"},
        "lagrax.systems": {"lagrax._solve.solve", "lagrax._solve.delays"},
        "lagrax.nn": {"lagrax.nn._layers"},
        "lagrax.nn._layers": {"lagrax._solve.delays", "lagrax"},
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
