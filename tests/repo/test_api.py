"""The API pages have every public name and every command, each with an example.

`test_docs.py` runs the examples in Python.
"""

import ast
import importlib
import inspect
import re
import shlex
import types
from collections import Counter
from pathlib import Path

import pytest
import typer.main

import lagrax
from lagrax._cli.app import app as lagrax_app
from reproduction.__main__ import app as reproduction_app

FOLDER = Path(__file__).parents[2] / "docs" / "api"
PAGES = {p.name: p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.md"))}

# Everything that these modules define is public, except for NOT_PUBLIC.
MODULES = (
    "lagrax.analysis",
    "lagrax.identify",
    "lagrax.nn",
    "lagrax.plotting",
    "lagrax.systems",
    "lagrax.training",
)
ANNOTATION = "a type, for annotations"
EXPORTED = "documented by its name in `lagrax`"
INSIDE = "serves other modules of lagrax"
NOT_PUBLIC = {
    "lagrax.analysis.Start": ANNOTATION,
    "lagrax.identify.Identifier": EXPORTED,
    "lagrax.identify.IdentifyError": EXPORTED,
    "lagrax.identify.select_delays": EXPORTED,
    "lagrax.plotting.Mark": ANNOTATION,
    "lagrax.plotting.PICTURES": INSIDE,
    "lagrax.plotting.Range": ANNOTATION,
    "lagrax.plotting.Values": ANNOTATION,
    "lagrax.plotting.from_json": INSIDE,
    "lagrax.plotting.legend": INSIDE,
    "lagrax.plotting.plotly_panels": INSIDE,
    "lagrax.plotting.rows": INSIDE,
    "lagrax.plotting.to_json": INSIDE,
    "lagrax.systems.History": ANNOTATION,
    "lagrax.systems.Matrices": ANNOTATION,
    "lagrax.systems.Matrix": ANNOTATION,
    "lagrax.systems.State": ANNOTATION,
}

ENTRY = re.compile(r"^(?:#+ )?::: (\S+)$", re.MULTILINE)
NEXT = re.compile(r"^#+ ", re.MULTILINE)
CODE = re.compile(r"^```(?:python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def defined_names(module: types.ModuleType) -> set[str]:
    """Returns the names without an underscore that a module defines or exports."""
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
    modules = [importlib.import_module(name) for name in MODULES]
    return exported.union(*map(defined_names, modules)) - NOT_PUBLIC.keys()


def entries(page: str) -> dict[str, str]:
    """Returns the code of each entry, up to the next entry or heading."""
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


def find_faults(pages: dict[str, str], names: set[str]) -> dict[str, list[str]]:
    counts = Counter(name for page in pages.values() for name in ENTRY.findall(page))
    found = {
        "missing": sorted(names - counts.keys()),
        # The reproduction is no library: its page shows a few of its names.
        "not public": sorted(n for n in counts.keys() - names if n.startswith("lagrax.")),
        "more than once": sorted(name for name, count in counts.items() if count > 1),
        "without example": [name for page in pages.values() for name in without_example(page)],
    }
    return {fault: names for fault, names in found.items() if names}


def test_every_public_name_has_one_entry_with_an_example():
    assert find_faults(PAGES, public()) == {}


def test_faults_are_found():
    page = (
        "# Page\n\n## ::: lagrax.Hold\n    options:\n      members: [tau]\n\nText.\n\n"
        "```python\nlagrax.Hold(1.0)\n```\n\n"
        "::: lagrax.holds\n\n```pycon\n>>> lagrax.Hold(1.0)\n```\n\n"
        "## Other\n\n```python\nlagrax.holds(1.0, 2)\n```\n"
    )
    names = {"lagrax.Hold", "lagrax.holds", "lagrax.Lag"}
    assert list(entries(page)) == ["lagrax.Hold", "lagrax.holds"]
    assert find_faults({"page.md": page}, names) == {
        "missing": ["lagrax.Lag"],
        "without example": ["lagrax.holds"],
    }
    again = "::: lagrax.Hold\n\n```python\nHold\n```\n\n::: lagrax.old\n\n```python\nold\n```\n"
    assert find_faults({"page.md": page, "again.md": again}, names - {"lagrax.Lag"}) == {
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


# --- the commands ---------------------------------------------------------------------------------

COMMAND = r"lagrax|python -m reproduction"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINE = re.compile(rf"\$ ({COMMAND}) (.+)")
APPS = {"lagrax": lagrax_app, "python -m reproduction": reproduction_app}
QUICK = ("simulate", "info")
# The laptop experiments share their options, and the page shows the help of one.
SAME_OPTIONS = {"all", "annuli", "multiples", "steepness"}


@pytest.fixture
def site(load_script):
    return load_script(FOLDER.parent / "site.py")


def console_lines() -> list[tuple[str, list[str]]]:
    """Returns the command lines of the API pages, each as a program and its arguments."""
    lines = [line for p in PAGES.values() for b in CONSOLE.findall(p) for line in b.splitlines()]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [(match[1], shlex.split(match[2])) for match in found if match]


def lines_of_all_pages() -> list[tuple[str, list[str]]]:
    """Returns the command lines in the blocks of all pages, without the remarks behind them."""
    root = FOLDER.parents[1]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    blocks = [block for p in pages for block in BLOCK.findall(p.read_text(encoding="utf-8"))]
    lines = [line for kind, b in blocks if kind in ("", "console") for line in b.splitlines()]
    lines = [re.split(r"  +|  #", line)[0] for line in lines]
    found = [re.fullmatch(rf"(?:\$ )?({COMMAND}) (.+)", line) for line in lines]
    return [(match[1], shlex.split(match[2])) for match in found if match]


def test_each_command_has_its_help_and_an_example(site):
    shown = {(program, arguments[0]) for program, arguments in console_lines()}
    helped = {command for page in PAGES.values() for command in site.HELP.findall(page)}
    for program, app in APPS.items():
        names = set(typer.main.get_command(app).commands) - SAME_OPTIONS
        assert {name for other, name in shown if other == program} >= names
        assert helped >= {f"{program} {name}" for name in names}


def test_help_replaces_its_marker(site):
    page = site.insert_help("Before\n\n<!-- help: lagrax info -->\n\nafter")
    assert page.startswith("Before\n\n```text\nUsage: lagrax info [OPTIONS]")
    assert page.endswith("```\n\nafter")


def test_examples_have_options_that_exist(site):
    lines = lines_of_all_pages()
    assert len(lines) > len(console_lines())
    for program, arguments in lines:
        if not arguments[0].isalpha():  # such as --version
            continue
        depth = 2 if arguments[0] == "simulate" else 1
        command = " ".join([program, *arguments[:depth]])
        assert site.context_of(command, arguments[depth:]).params
    with pytest.raises(typer.TyperException, match="--holds"):
        site.context_of("lagrax fit", ["data.csv", "--holds", "1.0"])


def test_quick_examples_run(lagrax_command):
    for program, arguments in console_lines():
        if program == "lagrax" and arguments[0] in QUICK:
            code, out, err = lagrax_command(*arguments)
            assert (code, err) == (0, "")
            assert out
