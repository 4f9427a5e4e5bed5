"""Folders of lagrax import in one order, without cycles; `import lagrax` needs no extra."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A folder may import those before it.
ORDER = ("_solve", "nn", "systems", "training", "plotting", "analysis", "identify", "_cli")

# Packages that come with extras. jax installs scipy, but lagrax does not load it by itself.
OPTIONAL = {
    "dash",
    "fastexcel",
    "filelock",
    "flask",
    "jinja2",
    "matplotlib",
    "msgspec",
    "narwhals",
    "optax",
    "plotly",
    "polars",
    "pooch",
    "ray",
    "rich",
    "safetensors",
    "scipy",
    "tensorboardX",
    "typer",
}


def find_modules(package: Path) -> dict[str, Path]:
    """The modules below `package`, by dotted names such as `lagrax.nn._fields`."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def find_imports(name: str, path: Path, modules: set[str]) -> set[str]:
    """The names that a module imports, at its top or inside a function."""
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
    return found


def import_graph(package: Path) -> dict[str, set[str]]:
    modules = find_modules(package)
    return {name: find_imports(name, path, set(modules)) for name, path in modules.items()}


def folder_of(module: str) -> str:
    return module.split(".")[1]


def find_problems(graph: dict[str, set[str]]) -> list[str]:
    """One sentence for each forbidden import."""
    problems = []
    for module in sorted(graph.keys() - {"lagrax", "lagrax.__main__"}):
        if folder_of(module) not in ORDER:
            problems.append(f"{module} is in none of the folders {', '.join(ORDER)}")
            continue
        for target in sorted(graph[module]):
            if target == "lagrax":
                problems.append(f"{module} imports lagrax itself: import the module that is meant")
            elif target.startswith("lagrax."):
                problems += check_import(module, target, graph)
            elif target.partition(".")[0] == "reproduction":
                problems.append(f"{module} imports {target}: the library never imports it")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # graphlib lists a cycle from the imported module to the importing one.
        problems.append("cycle of imports: " + " → ".join(reversed(error.args[1])))
    return problems


def check_import(module: str, target: str, graph: dict[str, set[str]]) -> list[str]:
    if target not in graph:
        return [f"{module} imports {target}, which does not exist"]
    importing, imported = folder_of(module), folder_of(target)
    if importing == imported or ORDER.index(imported) < ORDER.index(importing):
        return []
    return [f"{module} imports {target}, but {imported} comes after {importing}"]


def test_folders_import_in_order():
    assert find_problems(import_graph(ROOT / "lagrax")) == []


def test_top_level_is_the_design():
    entries = {p.stem for p in (ROOT / "lagrax").iterdir() if p.name != "__pycache__"}
    assert entries == {*ORDER, "__init__", "__main__", "py"}  # py.typed


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"lagrax._solve.grid": {"lagrax.nn._fields"}, "lagrax.nn._fields": set()},
            "lagrax._solve.grid imports lagrax.nn._fields, but nn comes after _solve",
        ),
        (
            {"lagrax.nn.a": {"lagrax.nn.b"}, "lagrax.nn.b": {"lagrax.nn.a"}},
            "cycle of imports: lagrax.nn.",
        ),
        ({"lagrax.nn.a": {"lagrax"}, "lagrax": set()}, "lagrax.nn.a imports lagrax itself"),
        ({"lagrax.nn.a": {"reproduction.images"}}, "lagrax.nn.a imports reproduction.images"),
        ({"lagrax.novel": set()}, "lagrax.novel is in none of the folders"),
        ({"lagrax.nn.a": {"lagrax._solve.b"}}, "lagrax.nn.a imports lagrax._solve.b, which does"),
    ],
)
def test_checker_reports_forbidden_imports(graph, message):
    assert any(problem.startswith(message) for problem in find_problems(graph))


def test_checker_accepts_the_order():
    graph = {
        "lagrax": {"lagrax._solve.solve", "lagrax.nn"},
        "lagrax._solve.solve": {"lagrax._solve.grid", "jax"},
        "lagrax._solve.grid": set(),
        "lagrax.nn": {"lagrax._solve.solve"},
        "lagrax._cli.app": {"lagrax.nn", "lagrax._solve.grid"},
    }
    assert find_problems(graph) == []


def test_graph_sees_every_form_of_import(tmp_path):
    package = tmp_path / "lagrax"
    (package / "nn").mkdir(parents=True)
    sources = {
        "__init__.py": "from ._solve import solve\n",
        "_solve.py": "import math\nfrom collections import abc\n",
        "systems.py": "import lagrax._solve\nfrom lagrax import nn\n",
        "nn/__init__.py": "from .fields import x\n",
        "nn/fields.py": "from .. import systems\ndef late():\n    from .._solve import y\n",
        "late.py": "def late():\n    from lagrax import solve\n    import reproduction.data\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source, encoding="utf-8")
    assert import_graph(package) == {
        "lagrax": {"lagrax._solve"},
        "lagrax._solve": {"math", "collections"},
        "lagrax.systems": {"lagrax._solve", "lagrax.nn"},
        "lagrax.nn": {"lagrax.nn.fields"},
        "lagrax.nn.fields": {"lagrax.systems", "lagrax._solve"},
        "lagrax.late": {"lagrax", "reproduction.data"},
    }


def test_import_needs_no_extra():
    """The core dependencies come first because some load an optional package if they find it."""
    script = (
        "import sys, jax, jax.scipy, diffrax, equinox, jaxtyping\n"
        "before = set(sys.modules)\n"
        "import lagrax\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "lagrax" in loaded
    assert loaded & OPTIONAL == set()
