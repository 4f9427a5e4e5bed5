"""The API pages have every public name, each with an example; the command line's says what
`--help` does. (`test_docs.py` runs the examples.)"""

import ast
import importlib
import inspect
import re
import shlex
import types
from collections import Counter
from pathlib import Path

import pytest

import lagrax
from lagrax._cli import app as cli

FOLDER = Path(__file__).parents[2] / "docs" / "api"
PAGES = {p.name: p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.md"))}

# All that these modules define is public, but for the names below.
MODULES = ("nn", "systems", "analysis", "training", "figures")
# What a user meets of modules that are otherwise the package's own.
MET = (
    "lagrax.identify.Forecast",
    "lagrax.selection.Candidate",
    "lagrax.selection.Selection",
)
ANNOTATION = "a type, for annotations"
INSIDE = "serves other modules of lagrax"
NOT_PUBLIC = {
    "lagrax.analysis.Start": ANNOTATION,
    "lagrax.figures.Mark": ANNOTATION,
    "lagrax.figures.PICTURES": INSIDE,
    "lagrax.figures.Range": ANNOTATION,
    "lagrax.figures.Values": ANNOTATION,
    "lagrax.figures.from_json": INSIDE,
    "lagrax.figures.legend": INSIDE,
    "lagrax.figures.plotly_panels": INSIDE,
    "lagrax.figures.rows": INSIDE,
    "lagrax.figures.to_json": INSIDE,
    "lagrax.systems.History": ANNOTATION,
    "lagrax.systems.Matrices": ANNOTATION,
    "lagrax.systems.Matrix": ANNOTATION,
    "lagrax.systems.State": ANNOTATION,
}

ENTRY = re.compile(r"^(?:#+ )?::: (\S+)$", re.MULTILINE)
NEXT = re.compile(r"^#+ ", re.MULTILINE)
CODE = re.compile(r"^```(?:python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def defined(module: types.ModuleType) -> set[str]:
    """The names without an underscore that a module makes itself, by what is written in it, or
    passes on from its own parts."""
    names = set()
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = getattr(statement, "targets", None) or [statement.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.ImportFrom):
            names |= {alias.asname for alias in statement.names if alias.asname == alias.name}
    return {f"{module.__name__}.{name}" for name in names if not name.startswith("_")}


def public() -> set[str]:
    exported = {
        f"lagrax.{name}"
        for name, value in vars(lagrax).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    modules = [importlib.import_module(f"lagrax.{name}") for name in MODULES]
    return exported.union(MET, *map(defined, modules)) - NOT_PUBLIC.keys()


def entries(page: str) -> dict[str, str]:
    """The code of each entry's section, which ends at the next entry or heading."""
    found = list(ENTRY.finditer(page))
    ends = sorted([m.start() for m in (*found, *NEXT.finditer(page))] + [len(page)])
    return {
        m[1]: "\n".join(CODE.findall(page, m.end(), next(e for e in ends if e > m.start())))
        for m in found
    }


def without_example(page: str) -> list[str]:
    return [
        name
        for name, code in entries(page).items()
        if not re.search(rf"\b{name.rpartition('.')[2]}\b", code)
    ]


def faults(pages: dict[str, str], names: set[str]) -> dict[str, list[str]]:
    counts = Counter(name for page in pages.values() for name in ENTRY.findall(page))
    found = {
        "missing": sorted(names - counts.keys()),
        "not public": sorted(counts.keys() - names),
        "more than once": sorted(name for name, count in counts.items() if count > 1),
        "without example": [name for page in pages.values() for name in without_example(page)],
    }
    return {fault: names for fault, names in found.items() if names}


def test_every_public_name_is_there_once_with_an_example():
    assert faults(PAGES, public()) == {}


def test_faults_are_found():
    page = (
        "# Page\n\n## ::: lagrax.Hold\n    options:\n      members: [tau]\n\nText.\n\n"
        "```python\nlagrax.Hold(1.0)\n```\n\n"
        "::: lagrax.holds\n\n```pycon\n>>> lagrax.Hold(1.0)\n```\n\n"
        "## Other\n\n```python\nlagrax.holds(1.0, 2)\n```\n"
    )
    names = {"lagrax.Hold", "lagrax.holds", "lagrax.Lag"}
    assert list(entries(page)) == ["lagrax.Hold", "lagrax.holds"]
    assert faults({"page.md": page}, names) == {
        "missing": ["lagrax.Lag"],
        "without example": ["lagrax.holds"],
    }
    again = "::: lagrax.Hold\n\n```python\nHold\n```\n\n::: lagrax.old\n\n```python\nold\n```\n"
    assert faults({"page.md": page, "again.md": again}, names - {"lagrax.Lag"}) == {
        "not public": ["lagrax.old"],
        "more than once": ["lagrax.Hold"],
        "without example": ["lagrax.holds"],
    }


def test_public_names():
    names = public()
    assert {"lagrax.solve", "lagrax.nn.MLP", "lagrax.systems.SYSTEMS"} <= names
    assert not names & {"lagrax.nn", "lagrax.__version__", "lagrax.nn.Lag", "lagrax.nn._layers"}


@pytest.mark.parametrize("name", sorted({*public(), *NOT_PUBLIC}))
def test_a_name_can_be_imported(name):
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    if name not in NOT_PUBLIC and callable(value):
        assert inspect.getdoc(value)


# --- the command line -----------------------------------------------------------------------------

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICK = ("simulate", "info")


@pytest.fixture
def command_line(load_script):
    return load_script(FOLDER / "command_line.py")


@pytest.fixture
def page():
    return PAGES["command-line.md"]


def lines_of(page: str) -> list[list[str]]:
    """The command lines that a page shows, without `$ lagrax`."""
    shown = [line for block in CONSOLE.findall(page) for line in block.splitlines()]
    assert all(line.startswith("$ lagrax ") for line in shown)
    return [shlex.split(line)[2:] for line in shown]


def test_the_page_says_what_help_does(command_line, page):
    assert command_line.updated(page) == page, "Run python docs/api/command_line.py."
    assert set(command_line.shown(page)) == set(command_line.commands())


def test_a_stale_page_is_noticed(command_line, page):
    assert command_line.updated(page.replace("The period of a held state.", "Old.")) == page
    start = page.index("## lagrax models")
    shorter = page[:start] + page[page.index("## lagrax info") :]
    assert "\n## lagrax models\n\n```text\nUsage: lagrax models" in command_line.updated(shorter)


def test_each_command_has_an_example(command_line, page):
    shown = {line[0] for line in lines_of(page)}
    assert shown == {path[0] for path in command_line.commands()}


def test_examples_have_options_that_exist(command_line, page):
    for line in lines_of(page):
        depth = 2 if line[0] == "simulate" else 1
        context = command_line.context_of(tuple(line[:depth]), line[depth:])
        assert context.params
    with pytest.raises(cli.typer.TyperException, match="--holds"):
        command_line.context_of(("fit",), ["data.csv", "--holds", "1.0"])


def test_quick_examples_run(lagrax_command, page):
    for line in lines_of(page):
        if line[0] in QUICK:
            code, out, err = lagrax_command(*line)
            assert (code, err) == (0, "")
            assert out
