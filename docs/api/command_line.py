"""Writes what `lagrax COMMAND --help` says into the page about the command line.

`python docs/api/command_line.py` after a change of the command; `tests/test_api.py` says when.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main

from lagrax._cli.app import app

PAGE = Path(__file__).with_name("command-line.md")
HELP = re.compile(
    r"^```text\nUsage: lagrax(?P<path>( [a-z][a-z-]*)*) .*?^```$", re.DOTALL | re.MULTILINE
)
WIDTH = 80


def commands() -> Iterator[tuple[str, ...]]:
    """Those that the page has: all, of `simulate` the first one alone, since they are alike."""
    for name, command in typer.main.get_command(app).commands.items():  # pyright: ignore
        yield (name,)
        for one in list(getattr(command, "commands", {}))[:1]:
            yield (name, one)


def context_of(path: tuple[str, ...], arguments: list[str], **more):
    """The command at `path`, and its arguments as it reads them."""
    command, context = typer.main.get_command(app), None
    for name in (None, *path):
        command = command if name is None else command.commands[name]  # pyright: ignore
        last = len(path) == 0 or name == path[-1]
        given, options = (arguments, more) if last else ([], {"resilient_parsing": True})
        context = command.make_context(name or "lagrax", given, context, **options)
    return context


def help_of(path: tuple[str, ...]) -> str:
    context = context_of(path, [], resilient_parsing=True, terminal_width=WIDTH)
    lines = context.command.get_help(context).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def shown(page: str) -> dict[tuple[str, ...], str]:
    """What the page says about each command."""
    found = {}
    for match in HELP.finditer(page):
        found[tuple(match["path"].split())] = match[0]
    return found


def block(path: tuple[str, ...]) -> str:
    return f"```text\n{help_of(path)}\n```"


def updated(page: str) -> str:
    for path, old in shown(page).items():
        page = page.replace(old, block(path))
    for path in commands():
        if path not in shown(page):
            page += f"\n## lagrax {' '.join(path)}\n\n{block(path)}\n"
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
