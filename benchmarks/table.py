"""Writes results/README.md: every goal of every benchmark, met or missed.

python benchmarks/table.py            writes it anew from the JSON files beside it
python benchmarks/table.py --check    says whether it is that of the JSON files
"""

import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def page(folder: Path) -> str:
    parts = [
        "# What was measured\n",
        "Made by `benchmarks/table.py` from the JSON files beside it, which hold all rows; do not "
        "edit. Ratios are of times in one run on one machine.\n",
    ]
    for path in sorted(folder.glob("*.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))
        if "goals" in answer:
            parts += _section(path, answer)
    return "\n".join(parts)


def _section(path: Path, answer: dict) -> list[str]:
    versions = ", ".join(f"{name} {v}" for name, v in answer["versions"].items())
    lines = ["| goal | measured | asked for | |", "| --- | --- | --- | --- |"]
    lines += [_goal(goal) for goal in answer["goals"]]
    pictures = [f"![{p.stem}]({p.name})\n" for p in sorted(path.parent.glob(f"{path.stem}*.png"))]
    return [
        f"## {answer['question']}\n",
        f"`{path.stem}.py`; {answer['hardware']}; {versions}.\n",
        "\n".join(lines) + "\n",
        *pictures,
    ]


def _goal(goal: dict) -> str:
    bar = f"{'≤' if goal['better'] == 'lower' else '≥'} {goal['goal']:g}"
    verdict = "met" if goal["met"] else "**missed**"
    return f"| {goal['name']} | {goal['value']:.3g} | {bar} | {verdict} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    path = RESULTS / "README.md"
    if options.check:
        same = path.read_text(encoding="utf-8") == page(RESULTS)
        print(f"{path} is {'that of its numbers' if same else 'out of date'}")
        return not same
    path.write_text(page(RESULTS), encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
