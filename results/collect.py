"""Collects results of the laptop experiments in results/laptop, of the images in results/images.

python -m reproduction all --out runs
python results/collect.py runs            rewrites results/laptop

python -m reproduction images --out runs
python results/collect.py --images runs   adds new runs to results/images
python results/collect.py --images        rewrites its page and pictures, and the generated
                                          parts of docs/images.md

python results/collect.py --check         checks that the pages agree with their numbers
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lagrax.plotting import Figure, draw
from reproduction.images.accuracy import divide_records, make_image_result
from reproduction.images.caveats import list_caveats
from reproduction.images.records import (
    RunRecord,
    get_table_position,
    list_record_files,
    parse_record,
    read_records,
)
from reproduction.result import Claim, Result, ResultTable, read_result, show_cell

LAPTOP = Path(__file__).parent / "laptop"
IMAGES = Path(__file__).parent / "images"
STUDY = Path(__file__).parent.parent / "docs" / "images.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=Path, help="the folder of the results")
    parser.add_argument("--images", action="store_true", help="the image classifiers")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    if options.check:
        return check()
    if options.images:
        collect_images(options.runs)
    elif options.runs is None:
        parser.error("name the folder that `python -m reproduction all` wrote")
    else:
        collect(options.runs)
    return 0


def check() -> int:
    """The number of pages that do not show their numbers."""
    pages = {LAPTOP / "README.md": page(LAPTOP)}
    pages |= make_image_pages(ImageResults.read(IMAGES))
    wrong = 0
    for path, expected in pages.items():
        same = path.read_text(encoding="utf-8") == expected
        print(f"{path} is {'up to date' if same else 'out of date'}")
        wrong += not same
    return wrong


def collect(runs: Path) -> None:
    results = sorted(p for p in runs.glob("*/result.json") if not p.parent.name.endswith("-quick"))
    if not results:
        sys.exit(
            f"{runs} holds no full experiment: run `python -m reproduction all --out {runs}` first"
        )
    shutil.rmtree(LAPTOP, ignore_errors=True)
    for path in results:
        target = LAPTOP / path.parent.name
        target.mkdir(parents=True)
        shutil.copy(path, target)
        for kept in sorted([*path.parent.glob("figures/*.png"), *path.parent.glob("*.jsonl")]):
            shutil.copy(kept, target)
    found = [json.loads(p.read_text(encoding="utf-8")) for p in results]
    claims = [claim for result in found for claim in result["claims"]]
    text = json.dumps(claims, indent=1, ensure_ascii=False) + "\n"
    (LAPTOP / "claims.json").write_text(text, encoding="utf-8")
    (LAPTOP / "README.md").write_text(page(LAPTOP), encoding="utf-8")


def page(folder: Path) -> str:
    parts = [
        "# The paper's laptop experiments, as measured\n",
        "Made by `results/collect.py` from the results of `python -m reproduction all`; "
        "do not edit.\n",
    ]
    for path in sorted(folder.glob("*/result.json")):
        result, place = read_result(path.parent), path.parent.name
        pictures = [f"![{name}]({place}/{name}.png)\n" for name in result.figures]
        parts += [f"## {result.title}\n", f"**{result.finding}**\n", *pictures[:1]]
        parts += [f"{result.about}\n", *_facts(result), *_claims(result.claims)]
        for table in result.tables:
            parts += _table(table)
        if (path.parent / "seeds.jsonl").is_file():
            parts.append(f"The final losses of every seed: [seeds.jsonl]({place}/seeds.jsonl).\n")
        parts += pictures[1:]
    return "\n".join(parts)


# --- images ---------------------------------------------------------------------------------------


class ImageResults(NamedTuple):
    """The results of the image classifiers, computed once for all pages that show them."""

    result: Result
    figures: list[Figure]
    caveats: list[str]

    @classmethod
    def read(cls, folder: Path) -> "ImageResults":
        records = read_records(folder)
        groups = divide_records(records)
        return cls(*make_image_result(records), list_caveats(groups.default, groups.study))

    def get_tables(self, *, of_study: bool) -> list[str]:
        prefix = "Protocol study"
        tables = [t for t in self.result.tables if t.title.startswith(prefix) == of_study]
        return [part for table in tables for part in _table(table)]


def collect_images(runs: Path | None) -> None:
    if runs is not None:
        _add_records(runs / "images" if (runs / "images").is_dir() else runs)
    images = ImageResults.read(IMAGES)
    for figure in images.figures:
        draw(figure, IMAGES / f"{figure.name}.png")
    for path, text in make_image_pages(images).items():
        path.write_text(text, encoding="utf-8")


def _add_records(folder: Path) -> None:
    """Adds the records of new runs, each to the file of its data set."""
    known = {record.run for record in read_records(IMAGES)}
    lines: dict[str, list[tuple[RunRecord, str]]] = {}
    for path in [*list_record_files(IMAGES), *list_record_files(folder)]:
        for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
            record = parse_record(line)
            if path.parent == IMAGES or record.run not in known:
                known.add(record.run)
                lines.setdefault(record.dataset, []).append((record, line))
    for dataset, pairs in lines.items():
        pairs.sort(key=lambda pair: get_table_position(pair[0]))
        content = "".join(f"{line}\n" for _, line in pairs)
        (IMAGES / f"{dataset}.jsonl").write_text(content, encoding="utf-8")


def make_image_pages(images: ImageResults) -> dict[Path, str]:
    """The text of each page that shows image results."""
    study = STUDY.read_text(encoding="utf-8")
    study = _between(study, "study", images.get_tables(of_study=True))
    study = _between(study, "caveats", _bullets(images.caveats))
    return {IMAGES / "README.md": make_image_page(images), STUDY: study}


def make_image_page(images: ImageResults) -> str:
    result = images.result
    machine = result.machine
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("lagrax", "jax"))
    pictures = [part for figure in images.figures for part in _picture(figure)]
    bullets = _bullets(images.caveats)
    return "\n".join(
        [
            "# The paper's image classifiers, as measured\n",
            "Made by `results/collect.py` from the records of the runs in this folder; do not "
            "edit. [docs/images.md](../../docs/images.md) describes the training and gives the "
            "reasons for its settings.\n",
            f"**{result.finding}**\n" if result.finding else "",
            f"{result.about}\n",
            f"{len(result.trainings)} runs, whose times add up to {result.seconds / 3600:.1f} "
            f"hours, on {machine['device']}, {versions}.\n",
            *pictures[:2],
            *(["## Before you use the numbers\n", *bullets] if bullets else []),
            "## Accuracies\n",
            *images.get_tables(of_study=False),
            "## Over the epochs\n",
            *pictures[2:],
            *(["## Claims\n", *_claims(result.claims)] if result.claims else []),
        ]
    )


def _bullets(sentences: list[str]) -> list[str]:
    return ["".join(f"- {sentence}\n" for sentence in sentences)] if sentences else []


def _picture(figure: Figure) -> list[str]:
    return [f"![{figure.name}]({figure.name}.png)\n", f"{figure.caption}\n"]


def _between(text: str, name: str, parts: list[str]) -> str:
    """The page with these parts between the markers of a name."""
    markers = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, _, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not end:
        sys.exit(f"The page lacks its markers {' and '.join(m.strip() for m in markers)}")
    return "\n".join([before + markers[0], *parts, markers[1] + after])


# --- Markdown -------------------------------------------------------------------------------------


def _facts(result: Result) -> list[str]:
    machine, versions = result.machine, result.machine["versions"]
    return [
        f"{len(result.trainings)} trainings, {result.seconds:.0f} s in all, on "
        f"{machine['cores']} cores ({machine['device']}), lagrax {versions['lagrax']} at "
        f"{machine['commit']}, jax {versions['jax']}, {result.date[:10]}.\n"
    ]


def _claims(claims: Sequence[Claim]) -> list[str]:
    rows = [
        [
            claim.claim,
            claim.show_value(),
            claim.show_target(),
            claim.verdict if claim.holds else f"**{claim.verdict}**",
        ]
        for claim in claims
    ]
    return _markdown(["claim", "measured", "target", "verdict"], rows)


def _table(table: ResultTable) -> list[str]:
    rows = [[show_cell(cell) for cell in row] for row in table.rows]
    note = [f"{table.note}\n"] if table.note else []
    return [f"{table.title}:\n", *_markdown(table.columns, rows), *note]


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"]


if __name__ == "__main__":
    sys.exit(main())
