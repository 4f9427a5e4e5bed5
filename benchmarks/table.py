"""Writes what was measured to where it is read: results/README.md (every goal of every benchmark,
met or missed, and its rows), the table in docs/performance.md, and the headers of the scripts.

python benchmarks/table.py            writes all of them anew from the JSON files in results
python benchmarks/table.py --check    says whether they are those of the JSON files
"""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path

SCRIPTS = Path(__file__).parent
RESULTS = SCRIPTS / "results"
DOCS = SCRIPTS.parent / "docs" / "performance.md"

# The questions that docs/performance.md answers in its table.
SHOWN = ("population_step", "ndde_step", "throughput", "gradient_cost", "gpu_step")
BEGIN, END = "<!-- made by benchmarks/table.py -->\n", "<!-- end -->\n"

# Tables with more rows than this are left to the JSON files.
MOST_ROWS = 100

# In the header of a script: the indented lines below are made here.
HEADER = re.compile(r"(?m)^Measured[^:]*:\n\n(?:    .*\n)*\n*")


def page(folder: Path) -> str:
    parts = [
        "# What was measured\n",
        "Made by `benchmarks/table.py` from the JSON files beside it; do not edit. Ratios are of "
        "times in one run on one machine (gpu_field_study: several runs and cards, named in its "
        "rows).\n",
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
        *_rows(answer["rows"]),
    ]


def _rows(rows: list[dict]) -> list[str]:
    """All of them, folded up: one table for those that tell of the same things."""
    kinds: dict[tuple, list[dict]] = {}
    for row in rows:
        kinds.setdefault(tuple(row)[:2], []).append(row)
    tables = []
    for kind in kinds.values():
        columns = list(dict.fromkeys(name for row in kind for name in row))
        if len(kind) > MOST_ROWS or any(isinstance(v, dict) for row in kind for v in row.values()):
            continue
        lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
        lines += [" | ".join(_cell(row.get(name)) for name in columns) for row in kind]
        tables.append("\n".join(f"| {line} |" for line in lines) + "\n")
    return ['<details markdown="1"><summary>The rows</summary>\n', *tables, "</details>\n"]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "–" if value is None else str(value)


def _bar(goal: dict) -> str:
    return f"{'≤' if goal['better'] == 'lower' else '≥'} {goal['goal']:g}"


def _value(goal: dict) -> str:
    value = f"{goal['value']:.3g}"
    # Enough digits to show on which side of the bar it lies.
    return f"{goal['value']:.4g}" if float(value) == goal["goal"] else value


def _goal(goal: dict) -> str:
    verdict = "met" if goal["met"] else "**missed**"
    return f"| {goal['name']} | {_value(goal)} | {_bar(goal)} | {verdict} |"


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


def with_goals(source: str, answer: dict) -> str:
    """The `source` of a script, with what was measured in its header."""
    versions = ", ".join(f"{name} {v}" for name, v in answer["versions"].items() if v != "absent")
    lines = [f"Measured on {answer['hardware']}, {versions}:", ""]
    for goal in answer["goals"]:
        verdict = f"{_bar(goal)} {'met' if goal['met'] else 'missed'}"
        text = f"{_value(goal):<9}{verdict:<14}{goal['name']}"
        lines += textwrap.wrap(text, 100, initial_indent=4 * " ", subsequent_indent=27 * " ")
    head, *rest = lines
    return HEADER.sub("\n".join([*textwrap.wrap(head, 100), *rest, "", ""]), source, count=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    wanted = {
        RESULTS / "README.md": page(RESULTS),
        DOCS: with_table(DOCS.read_text(encoding="utf-8"), RESULTS),
    }
    for path in sorted(RESULTS.glob("*.json")):
        script = SCRIPTS / f"{path.stem}.py"
        answer = json.loads(path.read_text(encoding="utf-8"))
        wanted[script] = with_goals(script.read_text(encoding="utf-8"), answer)
    old = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if options.check:
        print("\n".join(f"{path} is out of date" for path in old) or "all are up to date")
        return bool(old)
    for path in old:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
