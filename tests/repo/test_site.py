"""The documentation builds without a warning and without a network, and its links work."""

import ast
import functools
import importlib
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *DOCS.rglob("*.md"),
    *(ROOT / "results").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
]


# --- the built site -------------------------------------------------------------------------------


class Links(HTMLParser):
    """The resources, links and anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.loaded, self.linked, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.linked.append(found["href"])
        elif tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loaded.append(found["href"])
        elif tag in ("script", "img", "iframe", "source", "video") and found.get("src"):
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Every request fails, as without a network.
    environment = {**os.environ, "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


@functools.cache
def links_of(path: Path) -> Links:
    return Links(path.read_text(encoding="utf-8"))


def find_broken_links(page: Path, site: Path) -> list[str]:
    """Returns the links of a built page whose file or anchor does not exist."""
    links, found = links_of(page), []
    for target in (*links.linked, *links.loaded):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        to = to / "index.html" if to.is_dir() else to
        if not to.is_file() or not to.is_relative_to(site):
            found.append(f"{page.relative_to(site)}: {target} is not there")
            continue
        anchored = parts.fragment and to.suffix == ".html"
        if anchored and unquote(parts.fragment) not in links_of(to).anchors:
            found.append(f"{page.relative_to(site)}: {target} has no such anchor")
    return found


def test_every_link_of_the_site_works(site):
    pages = [p for p in site.rglob("*.html") if p.name != "404.html"]
    assert len(pages) > 25
    assert [sentence for page in pages for sentence in find_broken_links(page, site)] == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="gone.html">x</a><a href="#nowhere">y</a><p id="here"></p>'
        '<a href="#here">z</a><img src="gone.png"><a href="https://e.org/">w</a>'
    )
    assert [s.split(": ")[1] for s in find_broken_links(page, tmp_path)] == [
        "gone.html is not there",
        "#nowhere has no such anchor",
        "gone.png is not there",
    ]


def test_no_page_loads_from_another_host(site):
    for page in site.rglob("*.html"):
        foreign = [url for url in links_of(page).loaded if urlsplit(url).netloc]
        assert foreign == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8"))


def test_the_site_has_its_main_sections(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for tab in ("Concepts", "Coming from", "Tutorials", "The paper", "Performance", "API"):
        assert re.search(rf"md-tabs__link[^>]*>\s*{tab}", start), tab
    # A phone enlarges this picture, which is wider than high, and not the chart of the ratios.
    assert re.search(r'<img class="wide" [^>]*src="images/population.png"', start)
    performance = (site / "performance" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<img alt=[^>]*src="../images/speed.png"', performance)
    assert "torchdiffeq, fastest program" in performance
    assert "Checkpointed()" in (site / "gradients" / "index.html").read_text(encoding="utf-8")


# --- pages as they lie in the repository ----------------------------------------------------------

# Links to other places and, in the README, to the pages of the repository's host are left out.
LINK = re.compile(r"\]\((?!\w+:|#|\.\./\.\./actions/)([^)\s#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_files_of_the_repository(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing = [t for t in LINK.findall(text) if not (page.parent / unquote(t)).exists()]
    assert missing == []


def test_short_code_is_kept_on_one_line_outside_of_blocks(load_script):
    hooks = load_script(DOCS / "site.py")
    block = "<pre><span></span><code>lagrax fit</code></pre><pre><code>lagrax fit</code></pre>"
    long = "<code>a_name_of_more_than_twenty_four_letters</code>"
    page = f"<p><code>--field library</code> {long}</p>{block}"
    expected = page.replace("<code>--field", '<code class="short">--field')
    assert hooks.mark_short_code(page) == expected


def test_links_are_rewritten_for_the_site(load_script):
    hooks = load_script(DOCS / "site.py")
    page = "[a](../results/x.md) [b](gradients.md#memory) ![c](images/c.png) [d](https://e.org)"
    expected = "[a](results/x.md) [b](gradients.md#memory) ![c](images/c.png) [d](https://e.org)"
    assert hooks.rewrite_links(page, "images.md", inside=True) == expected
    page = "[a](../../results/x.md#y) [b](../solve.md) [c](#d)"
    expected = "[a](../results/x.md#y) [b](../solve.md) [c](#d)"
    assert hooks.rewrite_links(page, "api/nn.md", inside=True) == expected
    page = "[a](../../docs/images.md) ![b](curves.png) [c](docs/x.md)"
    expected = "[a](../../images.md) ![b](curves.png) [c](docs/x.md)"
    assert hooks.rewrite_links(page, "results/images/README.md", inside=False) == expected


# --- the paper's map, and the picture of the files ------------------------------------------------


def resolve(name: str):
    """Returns the object with a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.fixture(scope="module")
def paper():
    return (DOCS / "paper.md").read_text(encoding="utf-8")


def test_the_papers_page_has_every_equation(paper):
    rows = paper.split("## Equations")[1].split("## Statements")[0]
    firsts = [row.split("|")[1] for row in rows.splitlines() if row.startswith("| (")]
    numbers = [
        int(n) for first in firsts for n in re.findall(r"\((\d+)\)", first.split(" ")[1] + first)
    ]
    assert sorted(set(numbers)) == list(range(1, 24))


def test_every_name_on_the_papers_page_exists(paper):
    names = re.findall(r"`((?:lagrax|reproduction)(?:\.\w+)+)", paper)
    assert len(names) > 20
    for name in names:
        resolve(name)
    tests = set(re.findall(r"`(test_\w+)`", paper))
    defined = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert tests
    assert tests <= defined


def test_the_map_at_3_2_has_a_stable_cycle_of_36():
    """Computed with plain floats, without lagrax."""
    x, slopes = 0.5, []
    for k in range(20_000):
        if k >= 10_000:
            slopes.append(math.log(abs((1 - 3.2 * x) * math.exp(3.2 * (1 - x)))))
        x = x * math.exp(3.2 * (1 - x))
    assert sum(slopes) / len(slopes) < -0.05
    orbit = [x]
    for _ in range(36):
        orbit.append(orbit[-1] * math.exp(3.2 * (1 - orbit[-1])))
    assert orbit[36] == pytest.approx(x, abs=1e-9)
    assert all(abs(orbit[k] - x) > 1e-6 for k in range(1, 36))


@pytest.mark.parametrize("page", ["diffrax", "torchdde"])
def test_the_order_on_lagged_equations_is_measured(page):
    text = " ".join((DOCS / "coming-from" / f"{page}.md").read_text(encoding="utf-8").split())
    assert "about 4 with Tsit5 and 6 with Dopri8" in text
    measured = json.loads((ROOT / "benchmarks/results/work_precision.json").read_text())
    order = {goal["name"]: goal["value"] for goal in measured["goals"]}
    (tsit5,) = [v for k, v in order.items() if "utchinson" in k and "Tsit5: order" in k]
    (dopri8,) = [v for k, v in order.items() if "utchinson" in k and "Dopri8: order" in k]
    assert round(tsit5) == 4
    assert int(dopri8) == 6


def test_contributing_shows_every_folder():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = page.split("## Where things are")[1].split("```")[1]
    shown, folder = set(), ""
    for depth, name in re.findall(r"^( *)(\S+)", tree, re.MULTILINE):
        folder = folder if depth else name
        shown.add(folder + name if depth else name)
    assert {f"lagrax/{p.parent.name}/" for p in ROOT.glob("lagrax/*/__init__.py")} <= shown
    assert not [name for name in shown if not (ROOT / name).exists()]


def test_the_picture_of_the_files_is_that_of_the_imports(load_script):
    pictures = load_script(DOCS / "pictures.py")
    assert {"solve.py", "steps.py"} <= set(pictures.FLOW)
    for caller, callee in pictures.ASKS:
        tree = ast.parse((ROOT / "lagrax/_solve" / caller).read_text(encoding="utf-8"))
        asked = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level}
        assert Path(callee).stem in asked, (caller, callee)
    for name in pictures.FLOW:
        assert (ROOT / "lagrax/_solve" / name).is_file()
