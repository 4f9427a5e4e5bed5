"""Keeps what was measured: the laptop experiments in results/laptop, the images in results/images.

python -m reproduction all --out runs
python results/collect.py runs            writes results/laptop anew

python -m reproduction images --out runs
python results/collect.py --images runs   adds the runs that are new to results/images
python results/collect.py --images        writes its page and its pictures anew, and the
                                          tables of docs/images.md

python results/collect.py --check         says whether the pages are those of their numbers
"""

import argparse
import dataclasses
import json
import shutil
import sys
from pathlib import Path

from lagrax.plotting import Figure, draw
from reproduction import read_experiment
from reproduction.images.records import (
    get_table_position,
    list_record_files,
    parse_record,
    read_records,
)

LAPTOP = Path(__file__).parent / "laptop"
IMAGES = Path(__file__).parent / "images"
STUDY = Path(__file__).parent.parent / "docs" / "images.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=Path, help="the folder that reproduce wrote")
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
    """How many pages are not those of their numbers."""
    pages = {
        LAPTOP / "README.md": page(LAPTOP),
        IMAGES / "README.md": images_page(IMAGES),
        STUDY: with_study(STUDY.read_text(encoding="utf-8"), IMAGES),
    }
    wrong = 0
    for path, expected in pages.items():
        same = path.read_text(encoding="utf-8") == expected
        print(f"{path} is {'that of its numbers' if same else 'out of date'}")
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
        for picture in sorted(path.parent.glob("figures/*.png")):
            shutil.copy(picture, target)
    found = [json.loads(p.read_text(encoding="utf-8")) for p in results]
    keys = ("experiment", "claim", "value", "bar", "holds", "unit", "better")
    claims = [{k: claim[k] for k in keys} for result in found for claim in result["claims"]]
    text = json.dumps(claims, indent=1, ensure_ascii=False) + "\n"
    (LAPTOP / "claims.json").write_text(text, encoding="utf-8")
    (LAPTOP / "README.md").write_text(page(LAPTOP), encoding="utf-8")


def page(folder: Path) -> str:
    parts = [
        "# The paper's laptop experiments, as measured\n",
        "Made by `results/collect.py` from what `python -m reproduction all` wrote; do not edit.\n",
    ]
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {result['title']}\n", f"{result['about']}\n", *_facts(result)]
        parts += _claims(result["claims"])
        for table in result["tables"]:
            parts += _table(table)
        for name in result["figures"]:
            parts.append(f"![{name}]({path.parent.name}/{name}.png)\n")
    return "\n".join(parts)


# --- images ---------------------------------------------------------------------------------------


def collect_images(runs: Path | None) -> None:
    if runs is not None:
        _add_lines(runs / "images" if (runs / "images").is_dir() else runs)
    _, figures = read_experiment(IMAGES)
    for figure in figures:
        draw(figure, IMAGES / f"{figure.name}.png")
    (IMAGES / "README.md").write_text(images_page(IMAGES), encoding="utf-8")
    STUDY.write_text(with_study(STUDY.read_text(encoding="utf-8"), IMAGES), encoding="utf-8")


def _add_lines(folder: Path) -> None:
    """The lines of runs that are not there yet, each to the file of its data set."""
    known = {line.run for line in read_records(IMAGES)}
    texts: dict[str, list[str]] = {}
    for path in [*list_record_files(IMAGES), *list_record_files(folder)]:
        for text in path.read_text(encoding="utf-8").splitlines():
            run = parse_record(text).run
            if path.parent == IMAGES or run not in known:
                known.add(run)
                texts.setdefault(run.dataset, []).append(text)
    for dataset, lines in texts.items():
        content = sorted(lines, key=lambda text: get_table_position(parse_record(text)))
        (IMAGES / f"{dataset}.jsonl").write_text("\n".join(content) + "\n", encoding="utf-8")


def images_page(folder: Path) -> str:
    result, figures = read_experiment(folder)
    machine = result.machine
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("lagrax", "jax"))
    parts = [
        "# The paper's image classifiers, as measured\n",
        "Made by `results/collect.py` from the lines of the runs in this folder; do not edit. "
        "[docs/images.md](../../docs/images.md) says how they are trained and why.\n",
        f"{result.about}\n",
        f"{len(result.runs)} runs, whose times add up to {result.seconds / 3600:.1f} hours, on "
        f"{machine['device']}, {versions}.\n",
    ]
    shown = [part for figure in figures for part in _picture(figure)]
    tables = [t for t in result.tables if not t.title.startswith("Protocol study")]
    parts += [*shown[:2], "## Accuracies\n"]
    parts += [part for table in tables for part in _table(dataclasses.asdict(table))]
    parts += ["## Over the epochs\n", *shown[2:]]
    claims = [dataclasses.asdict(claim) for claim in result.claims]
    parts += ["## Claims\n", *_claims(claims)] if claims else []
    return "\n".join(parts)


def _picture(figure: Figure) -> list[str]:
    return [f"![{figure.name}]({figure.name}.png)\n", f"{figure.caption}\n"]


def with_study(text: str, folder: Path) -> str:
    """A page with the tables of the protocol study between its markers."""
    tables = [t for t in read_experiment(folder)[0].tables if t.title.startswith("Protocol study")]
    parts = [part for table in tables for part in _table(dataclasses.asdict(table))]
    return _between(text, "study", parts)


def _between(text: str, name: str, parts: list[str]) -> str:
    """A page with these parts between the markers of a name."""
    markers = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, _, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not end:
        sys.exit(f"The page lacks its markers {' and '.join(m.strip() for m in markers)}")
    return "\n".join([before + markers[0], *parts, markers[1] + after])


# --- Markdown -------------------------------------------------------------------------------------


def _facts(result: dict) -> list[str]:
    machine, versions = result["machine"], result["machine"]["versions"]
    return [
        f"{len(result['runs'])} trainings, {result['seconds']:.0f} s summed up, on "
        f"{machine['cores']} cores ({machine['device']}), lagrax {versions['lagrax']} at "
        f"{machine['commit']}, jax {versions['jax']}, {result['date'][:10]}.\n"
    ]


def _claims(claims: list[dict]) -> list[str]:
    rows = [
        [
            claim["claim"],
            "never" if claim["value"] is None else f"{_number(claim['value'])} {claim['unit']}",
            f"{'≥' if claim['better'] == 'higher' else '≤'} {claim['bar']:g}",
            "holds" if claim["holds"] else "**does not hold**",
        ]
        for claim in claims
    ]
    return _markdown(["claim", "measured", "bar", "verdict"], rows)


def _number(value: float) -> str:
    return f"−{-value:g}" if value < 0 else f"{value:g}"


def _table(table: dict) -> list[str]:
    rows = [[str(cell) for cell in row] for row in table["rows"]]
    note = [f"{table['note']}\n"] if table["note"] else []
    return [f"{table['title']}:\n", *_markdown(table["columns"], rows), *note]


def _markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"]


if __name__ == "__main__":
    sys.exit(main())
