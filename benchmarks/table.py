"""Writes results/README.md, every goal of every benchmark, met or missed, and the table in
docs/performance.md.

python benchmarks/table.py            writes both anew from the JSON files in results
python benchmarks/table.py --check    says whether they are those of the JSON files
"""

import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "performance.md"

# The questions that docs/performance.md answers in its table.
SHOWN = ("population_step", "ndde_step", "throughput", "gradient_cost", "gpu_step")
BEGIN, END = "<!-- made by benchmarks/table.py -->\n", "<!-- end -->\n"


def page(folder: Path) -> str:
    parts = [
        "# What was measured\n",
        "Made by `benchmarks/table.py` from the JSON files beside it, which hold all rows; do not "
        "edit. Ratios are of times in one run on one machine (gpu_field_study: several runs and "
        "cards, named in its rows).\n",
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
    value = f"{goal['value']:.3g}"
    if float(value) == goal["goal"]:
        value = f"{goal['value']:.4g}"  # which shows on which side it lies
    return f"| {goal['name']} | {value} | {bar} | {verdict} |"


def with_table(text: str, folder: Path) -> str:
    """`text` of docs/performance.md with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = []
    for name in SHOWN:
        answer = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        lines = ["| goal | measured | asked for | |", "| --- | --- | --- | --- |"]
        lines += [_goal(goal) for goal in answer["goals"]]
        link = f"[`{name}.py`](../benchmarks/{name}.py)"
        parts.append(f"**{answer['question']}** {link}, {answer['hardware']}.\n")
        parts.append("\n".join(lines) + "\n")
    return before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    wanted = {
        RESULTS / "README.md": page(RESULTS),
        DOCS: with_table(DOCS.read_text(encoding="utf-8"), RESULTS),
    }
    old = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if options.check:
        print("\n".join(f"{path} is out of date" for path in old) or "both are up to date")
        return bool(old)
    for path in old:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
