"""Checks the properties of tests/solve/test_properties.py on many random equations.

    python results/soak/properties.py          50 times as many equations as in the tests
    python results/soak/properties.py scipy    some properties again, selected as by pytest's -k

`make soak` runs it. It writes properties.json, and a table in README.md between two markers.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMES = 50
TEST = re.compile(r"^tests/solve/test_properties\.py::(\w+)(\[.*\])?:$")
PASSED = re.compile(r"(\d+) passing, (\d+) failing,? (?:and )?(\d+) invalid")


def count_examples(output: str) -> dict[str, dict[str, int]]:
    """The number of examples that each property passed, failed, or did not apply to."""
    found: dict[str, dict[str, int]] = {}
    test = ""
    for line in output.splitlines():
        if heading := TEST.match(line.strip()):
            test = heading[1]
        if counts := PASSED.search(line):
            row = found.setdefault(test, {"passing": 0, "failing": 0, "invalid": 0})
            for name, number in zip(row, counts.groups(), strict=True):
                row[name] += int(number)
    return found


def main(chosen: list[str]) -> int:
    begin = time.monotonic()
    path = HERE / "properties.json"
    before = json.loads(path.read_text(encoding="utf-8")) if chosen else {}
    arguments = ["-q", "-n", "2", "-p", "no:cacheprovider", "--hypothesis-show-statistics"]
    arguments += ["-k", *chosen] if chosen else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "tests/solve/test_properties.py"],
        cwd=ROOT,
        env={**os.environ, "LAGRAX_SOAK": str(TIMES)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows = before.get("properties", {}) | count_examples(done.stdout)
    total = sum(row["passing"] for row in rows.values())
    minutes = before.get("minutes", 0) + (time.monotonic() - begin) / 60
    summary = {
        "passed": done.returncode == 0 and not any(row["failing"] for row in rows.values()),
        "examples": total,
        "minutes": round(minutes, 1),
        "properties": rows,
    }
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    write_section(summary)
    print(done.stdout[-3000:] if done.returncode else f"{total:,} examples passed.")
    return done.returncode


def write_section(summary: dict) -> None:
    verdict = "all passed" if summary["passed"] else "not all passed"
    lines = [
        f"{summary['examples']:,} random equations in {summary['minutes']} minutes: {verdict}.",
        "",
        "| property | examples | failed |",
        "| --- | --: | --: |",
    ]
    for name, row in summary["properties"].items():
        words = name.removeprefix("test_").replace("_", " ")
        lines.append(f"| {words} | {row['passing']:,} | {row['failing']} |")
    page = HERE / "README.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split("<!-- properties -->\n")
    after = rest.split("<!-- /properties -->\n")[1]
    section = "\n".join([*lines, ""])
    whole = f"{before}<!-- properties -->\n{section}<!-- /properties -->\n{after}"
    page.write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
