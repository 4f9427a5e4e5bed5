"""MkDocs hooks for pages from outside docs/, help texts of commands, and links of notebooks.

Pages link to each other by their paths in the repository, so that links also work where the files
are read. The root of the site is docs/: `docs/images.md` becomes `images.md`, and
`results/images/README.md` keeps its path.
"""

import posixpath
import re
import struct
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/*.py",
    "benchmarks/results/*.md",
    "benchmarks/results/*.json*",
    "benchmarks/results/*.png",
    "examples/*",
    "results/*/*.md",
    "results/**/*.png",
    "results/images/*.jsonl",
    "results/laptop/*/seeds.jsonl",
)
# A Markdown link or image, up to its target; the title, if any, stays.
LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pattern in OUTSIDE:
        for path in sorted(p for p in ROOT.glob(pattern) if p.is_file()):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    inside = Path(str(page.file.abs_src_path)).is_relative_to(ROOT / "docs")
    return insert_help(rewrite_links(markdown, page.file.src_uri, inside))


def rewrite_links(markdown: str, uri: str, inside: bool) -> str:
    """Replaces links between files of the repository by links within the site."""
    place = posixpath.dirname(f"docs/{uri}" if inside else uri)

    def within_the_site(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(place, link[2])).removeprefix("docs/")
        return link[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(within_the_site, markdown)


# `<!-- help: lagrax fit -->` stands for the help text of that command.
HELP = re.compile(r"^<!-- help: (.+) -->$", re.MULTILINE)


def insert_help(markdown: str) -> str:
    """Replaces each help marker by the output of the command with `--help`."""
    return HELP.sub(lambda found: f"```text\n{help_of(found[1])}\n```", markdown)


def help_of(command: str) -> str:
    """Returns the help text of a command such as "lagrax simulate population"."""
    context = context_of(command, [], resilient_parsing=True, terminal_width=80)
    return "\n".join(line.rstrip() for line in context.get_help().splitlines())


def context_of(command: str, arguments: list[str], **options: Any) -> Any:
    """Returns the context in which a command has parsed its arguments."""
    # Imported here, as they import JAX and most pages have no help text.
    from lagrax._cli.app import app as lagrax_app
    from reproduction.__main__ import app as reproduction_app

    program, app = "lagrax", lagrax_app
    if command.startswith("python -m reproduction"):
        program, app = "python -m reproduction", reproduction_app
    names = command.removeprefix(program).split()
    found, context = typer.main.get_command(app), None
    for depth, name in enumerate([program, *names]):
        found = found if depth == 0 else found.commands[name]  # pyright: ignore[reportAttributeAccessIssue]
        parse = (
            {"args": arguments, **options}
            if depth == len(names)
            else {"args": [], "resilient_parsing": True}
        )
        context = found.make_context(name, parent=context, **parse)
    return context


def on_page_content(content: str, page: Page, files: Files, **_: object) -> str:
    if page.file.src_uri.endswith(".ipynb"):
        content = clean_notebook(content, page.file, files)
    return mark_wide_pictures(mark_short_code(content), page.file, files)


# A line of code within a sentence. Blocks of code hold other elements.
SHORT_CODE = re.compile(r"(?<!<pre>)(?<!<span></span>)<code>(?=[^<]{1,24}</code>)")
PICTURE = re.compile(r'<img (?=[^>]*src="([^":]+\.png)")')


def mark_short_code(content: str) -> str:
    """Gives short pieces of code a class, so that the style sheet keeps each on one line."""
    return SHORT_CODE.sub('<code class="short">', content)


def mark_wide_pictures(content: str, file: File, files: Files) -> str:
    """Gives pictures that are wider than high a class, so that they can be enlarged on a phone."""
    by_url = {other.url: other for other in files}

    def mark(found: re.Match) -> str:
        url = posixpath.normpath(posixpath.join(file.url, found[1]))
        # A PNG begins with eight bytes, an eight-byte header of its first chunk, width and height.
        start = Path(str(by_url[url].abs_src_path)).read_bytes()[:24]
        width, height = struct.unpack(">II", start[16:])
        return f'{found[0]}class="wide" ' if width > 1.5 * height else found[0]

    return PICTURE.sub(mark, content)


# mkdocs-jupyter adds MathJax without an address, its configuration, and Mermaid from a server.
SCRIPT = re.compile(r"<script\b[^>]*>(?:(?!</script>).)*</script>", re.DOTALL)
FOREIGN = ('<script src="">', "x-mathjax-config", "cdnjs.cloudflare.com")
# It leaves links to notebooks and Markdown files, which the site does not have.
PAGE = re.compile(r'href="([^":#]+\.(?:md|ipynb))(#[^"]*)?"')


def clean_notebook(content: str, file: File, files: Files) -> str:
    """Removes foreign scripts from a notebook's HTML and links it to the pages of the site."""

    def link(found: re.Match) -> str:
        folder = posixpath.dirname(f"docs/{file.src_uri}")
        path = posixpath.normpath(posixpath.join(folder, found[1])).removeprefix("docs/")
        target = files.get_file_from_path(path)
        if target is None:
            raise ValueError(f"{file.src_uri} links to {found[1]}, which is no page of the site.")
        return f'href="{target.url_relative_to(file)}{found[2] or ""}"'

    content = SCRIPT.sub(lambda m: "" if any(f in m[0] for f in FOREIGN) else m[0], content)
    return PAGE.sub(link, content)
