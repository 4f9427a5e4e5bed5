"""What MkDocs does not do by itself: pages from outside docs/, and formulas.

Pages link to each other by their places in the repository, so that links work wherever the files
are read. In the site docs/ is the root: `docs/images.md` is `images.md`, and
`results/images/README.md` keeps its place.

Formulas become MathML, which browsers show by themselves; MathJax would have to be fetched.
"""

import html
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
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
    return mend(markdown, page.file.src_uri, inside)


def mend(markdown: str, uri: str, inside: bool) -> str:
    """The page with its links from place to place in the repository as links within the site."""
    place = posixpath.dirname(f"docs/{uri}" if inside else uri)

    def within_the_site(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(place, link[2])).removeprefix("docs/")
        return link[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(within_the_site, markdown)


# Code is left alone; the rest may have formulas as Markdown's extension or as notebooks write them.
CODE = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.DOTALL)
FORMULA = re.compile(
    r"\\\((?P<a>.+?)\\\)|\\\[(?P<b>.+?)\\\]|\$\$(?P<c>.+?)\$\$|\$(?P<d>[^$\n]+?)\$", re.DOTALL
)


def on_page_content(content: str, **_: object) -> str:
    return formulas(content)


def formulas(content: str) -> str:
    """The page's HTML with LaTeX as MathML."""

    def as_mathml(found: re.Match) -> str:
        display = "block" if found["b"] or found["c"] else "inline"
        return convert(html.unescape(next(filter(None, found.groups()))), display=display)

    # Every third piece is code, followed by the name of its tag.
    pieces = CODE.split(content)
    pieces[0::3] = [FORMULA.sub(as_mathml, piece) for piece in pieces[0::3]]
    return "".join(piece for i, piece in enumerate(pieces) if i % 3 != 2)
