"""What every command shares: exit codes, one sentence for an error, JSON, Ctrl-C."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
import typer.core

from ..training._launchers import LAUNCHERS


def in_order(*names: str) -> type[typer.core.TyperGroup]:
    """A group of commands that lists them in this order."""

    class Group(typer.core.TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            del ctx
            return list(names)

    return Group


def run_app(
    app: typer.Typer,
    name: str,
    arguments: Sequence[str],
    refused: tuple[type[BaseException], ...],
    failed: tuple[type[BaseException], ...],
) -> int:
    """Runs a command line and returns its exit code: 2 for an error in `refused`, 1 for one in
    `failed`."""
    try:
        code = app(list(arguments), prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        return _complain(_quoting(error), error.exit_code)
    except refused as error:
        return _complain(str(error), 2)
    except failed as error:
        return _complain(str(error), 1)
    return code or 0


def _quoting(error: typer.TyperException) -> str:
    """What is wrong with an option, and what was given where pydantic refused it."""
    details = getattr(error.__cause__, "errors", list)()
    got = f"; got {details[0]['input']}." if details else ""
    return f"{error.format_message()}{got}"


def _complain(sentence: str, code: int) -> int:
    if sentence:
        print(sentence, file=sys.stderr)
    return code


def bad(sentence: str) -> typer.BadParameter:
    return typer.BadParameter(sentence)


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


@contextlib.contextmanager
def leaving_as_it_was() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped. Nothing was written.", file=sys.stderr)
        raise typer.Exit(130) from None


def check_launcher(launcher: str) -> None:
    if launcher not in LAUNCHERS:
        raise bad(f"No launcher {launcher!r}: choose one of {', '.join(LAUNCHERS)}.")
