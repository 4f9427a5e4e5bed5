"""Exit codes, errors, options, output and Ctrl-C, which all commands share."""

import contextlib
import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from ..training._launchers import LAUNCHERS
from .compilation_cache import enable_compilation_cache


def in_order(*names: str) -> type[typer.core.TyperGroup]:
    """A class of command groups that list their commands in this order."""

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
    """Runs a command line and returns its exit code.

    The code is 2 for an error in `refused` and 1 for one in `failed`. Both end with one sentence.
    """
    enable_compilation_cache()
    try:
        code = app(list(arguments), prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        return _print_error(_describe_error(error), error.exit_code)
    except refused as error:
        return _print_error(str(error), 2)
    except failed as error:
        return _print_error(str(error), 1)
    return code or 0


# What pydantic expected of the value of an option, by its type of error.
_EXPECTED = {
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def _describe_error(error: typer.TyperException) -> str:
    """The message of an error in an option, with the value that pydantic rejected."""
    message = error.format_message().replace("Value error, ", "").removesuffix(".")
    for detail in getattr(error.__cause__, "errors", list)()[:1]:
        given, expected = str(detail["input"]), _EXPECTED.get(detail["type"])
        if expected is not None:
            expected = expected.format(**detail.get("ctx", {}))
            message = message.replace(detail["msg"], f"got {given}; expected {expected}")
        elif given not in message:
            message = f"{message}; got {given}"
    return f"{message}."


def _print_error(sentence: str, code: int) -> int:
    if sentence:
        print(sentence, file=sys.stderr)
    return code


def takes(record: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each field of the dataclass `record`.

    The command receives the record as `options`. Fields are annotated as the options of a command
    are, so that an option is declared in one place.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(record, include_extras=True)
        names = [field.name for field in dataclasses.fields(record)]

        def command(**given: Any) -> None:
            options = record(**{name: given.pop(name) for name in names})
            function(options=options, **given)

        kind = inspect.Parameter.KEYWORD_ONLY
        fields = [
            inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name])
            for f in dataclasses.fields(record)
        ]
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            own = [parameter.replace(kind=kind)]
            parameters += fields if parameter.name == "options" else own
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = function.__doc__
        return command

    return decorate


def add_options(
    options: Mapping[str, tuple[Any, Any, Any]], *, first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command further options, which it receives as `**parameters`.

    Each is a type, a `typer.Option` and a default, by name. They stand before the command's own
    options in its help if `first`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        own = [
            p.replace(kind=kind, annotation=hints[p.name])
            for p in inspect.signature(function).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        more = [
            inspect.Parameter(n, kind, default=default, annotation=Annotated[type_, option])
            for n, (type_, option, default) in options.items()
        ]
        parameters = [*more, *own] if first else [*own, *more]

        def command(**given: Any) -> None:
            function(**given)

        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def bad(sentence: str) -> typer.BadParameter:
    """An error in the command line, with exit code 2."""
    return typer.BadParameter(sentence)


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="List all files of the answer.")]


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


def print_answer(
    summary: dict[str, Any], lines: Sequence[str], as_json: bool, verbose: bool
) -> None:
    """Prints the lines and the one file to open first; with `verbose` all files."""
    if as_json:
        print_json(summary)
        return
    print(*lines, *(f"Wrote {path}" for path in answer_paths(summary, verbose)), sep="\n")


def answer_paths(summary: dict[str, Any], verbose: bool) -> list[Path]:
    """The one file of an answer to open first; with `verbose` all files."""
    files = summary["files"]
    first = next((name for name in OPEN_FIRST if name in files), files[0])
    return [Path(summary["folder"]) / name for name in (files if verbose else [first])]


# The file of an answer to open first, the best one first.
OPEN_FIRST = (
    "report.html",
    *(
        f"figures/{name}.png"
        for name in ("diagram", "region", "chart", "cobweb", "cycle", "prediction")
    ),
)


@contextlib.contextmanager
def leaving_as_it_was(say_what_is_there: Callable[[], str] = str) -> Iterator[None]:
    """Ends a command after Ctrl-C. It has written all of its answer or nothing, or the part that
    `say_what_is_there` names."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"Stopped. {say_what_is_there() or 'Nothing was written.'}", file=sys.stderr)
        raise typer.Exit(130) from None


def check_launcher(launcher: str) -> None:
    if launcher not in LAUNCHERS:
        raise bad(f"No launcher {launcher!r}: choose one of {', '.join(LAUNCHERS)}.")
