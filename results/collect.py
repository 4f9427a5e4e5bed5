"""Copies what the laptop experiments found from a folder of runs to results/laptop.

lagrax reproduce all --out runs
python results/collect.py runs            writes results/laptop anew
python results/collect.py --check         says whether its README.md is that of its numbers
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

LAPTOP = Path(__file__).parent / "laptop"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=Path, help="the folder that reproduce wrote")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    if options.check:
        same = (LAPTOP / "README.md").read_text(encoding="utf-8") == page(LAPTOP)
        print("README.md is that of its numbers" if same else "README.md is out of date")
        return not same
    if options.runs is None:
        parser.error("name the folder that `lagrax reproduce all` wrote")
    collect(options.runs)
    return 0


def collect(runs: Path) -> None:
    results = sorted(p for p in runs.glob("*/result.json") if not p.parent.name.endswith("-quick"))
    if not results:
        sys.exit(f"{runs} holds no full experiment: run `lagrax reproduce all --out {runs}` first")
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
        "Made by `results/collect.py` from what `lagrax reproduce all` wrote; do not edit.\n",
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
            "never" if claim["value"] is None else f"{claim['value']:g} {claim['unit']}",
            f"{'≥' if claim['better'] == 'higher' else '≤'} {claim['bar']:g}",
            "holds" if claim["holds"] else "**does not hold**",
        ]
        for claim in claims
    ]
    return _markdown(["claim", "measured", "bar", "verdict"], rows)


def _table(table: dict) -> list[str]:
    rows = [[str(cell) for cell in row] for row in table["rows"]]
    return [f"{table['title']}:\n", *_markdown(table["columns"], rows), f"{table['note']}\n"]


def _markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"]


if __name__ == "__main__":
    sys.exit(main())
