"""Writes the measurements to the pages that show them.

These are results/README.md (every goal of every benchmark, met or missed, and its rows), the chart
and the tables of docs/performance.md, and the headers of the scripts.

python benchmarks/table.py            writes all of them from the JSON files in results
python benchmarks/table.py --check    checks that all of them agree with the JSON files
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

CHART = SCRIPTS.parent / "docs" / "images" / "speed.png"

# The bars of the chart: label, benchmark, and words that pick one of its goals.
BARS = (
    (
        "population, a training step",
        "torchode",
        "population_step",
        ("torchode, fastest", "a step a call"),
    ),
    (
        "population, a training step",
        "torchdiffeq",
        "population_step",
        ("torchdiffeq, fastest", "a step a call"),
    ),
    (
        "population, a training step",
        "diffrax",
        "population_step",
        ("diffrax, fastest", "a step a call"),
    ),
    (
        "population, the first call, compiling",
        "diffrax",
        "population_step",
        ("Tsit5 at 1e-3: first call",),
    ),
    ("a lagged network, a gradient", "torchdde", "ndde_step", ("network, gradient",)),
    ("Hutchinson's equation, a gradient", "torchdde", "ndde_step", ("Hutchinson, gradient",)),
    ("a brain network, a second", "vbjax", "delay_network", ("solve at equal error", "vbjax")),
    (
        "a brain network, a second",
        "tvboptim",
        "delay_network",
        ("solve at equal error", "tvboptim"),
    ),
    ("state-dependent lags, a solve", "jitcdde", "state_dependent", ("time of jitcdde", "hardest")),
    ("Hutchinson's equation, many solves", "jitcdde", "throughput", ("jitcdde", "adaptive steps")),
    ("population, many solves", "SciPy", "throughput", ("scipy",)),
    ("population, many solves", "diffrax", "throughput", ("float64, adaptive",)),
    (
        "NPCDDE5 on a GPU, a training step",
        "torchdiffeq",
        "gpu_step",
        ("torchdiffeq dopri5, direct", "lagrax in f32"),
    ),
    ("NPCDDE5 on a GPU, a training step", "diffrax", "gpu_step", ("diffrax", "lagrax in f32")),
    ("a network on a GPU, a gradient", "vbjax", "gpu_delays", ("0.1 ms, gradient",)),
)

# The questions that docs/performance.md answers in its tables.
SHOWN = (
    *("population_step", "ndde_step", "throughput", "gradient_cost", "lag_cost", "plain_cost"),
    *("delay_network", "state_dependent"),
    *("gpu_step", "gpu_delays"),
)
BEGIN, END = "<!-- made by benchmarks/table.py -->\n", "<!-- end -->\n"
TOTAL = re.compile(r"(?<=<!-- goals -->\n\n).*")

# Longer tables are left out of the page; the JSON files have them.
MOST_ROWS = 100

# The part of a script's header that is written here.
HEADER = re.compile(r"(?m)^Measured[^:]*:\n\n(?:    .*\n)*\n*")


GOALS_HEAD = ("| goal | measured | target | verdict |", "| --- | --- | --- | --- |")


def page(folder: Path) -> str:
    parts = [
        "# All measurements\n",
        "Written by `benchmarks/table.py` from the JSON files in this folder; do not edit. A ratio "
        "compares times of one run on one machine (gpu_field_study: several runs and cards, named "
        "in its rows).\n",
    ]
    for path in sorted(folder.glob("*.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))
        if "goals" in answer:
            parts += _section(path, answer)
    return "\n".join(parts)


def _section(path: Path, answer: dict) -> list[str]:
    versions = ", ".join(f"{name} {v}" for name, v in answer["versions"].items())
    lines = [*GOALS_HEAD]
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
    """Returns the rows as folded tables, one for rows with the same columns."""
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
    return ['<details markdown="1"><summary>Rows</summary>\n', *tables, "</details>\n"]


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
    """Returns the text of docs/performance.md with its tables made from the results."""
    before, _, rest = TOTAL.sub(_count_goals(folder), text).partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = []
    for name in SHOWN:
        answer = read(folder, name)
        met = sum(goal["met"] for goal in answer["goals"])
        summary = f"{answer['question']} {met} of {len(answer['goals'])} goals met."
        parts.append(f'<details markdown="1"><summary>{summary}</summary>\n')
        parts.append(f"[`{name}.py`](../benchmarks/{name}.py), {answer['hardware']}.\n")
        parts.append("\n".join([*GOALS_HEAD, *map(_goal, answer["goals"])]) + "\n")
        parts.append("</details>\n")
    return before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after


def _count_goals(folder: Path) -> str:
    goals = [goal for name in SHOWN for goal in read(folder, name)["goals"]]
    met = sum(goal["met"] for goal in goals)
    return (
        f"Of {len(goals)} goals, {met} are met and {len(goals) - met} are missed; "
        "[all of them](#goals) are below."
    )


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


# --- the chart ------------------------------------------------------------------------------------


def ratios(folder: Path) -> list[float]:
    """Returns for each bar how many times as long as lagrax the other library takes."""
    found = []
    for *_, name, words in BARS:
        goals = read(folder, name)["goals"]
        (goal,) = [g for g in goals if all(word in g["name"] for word in words)]
        # A goal that should be low is lagrax's time divided by the other library's.
        found.append(goal["value"] if goal["better"] == "higher" else 1 / goal["value"])
    return found


def draw_chart(folder: Path, path: Path) -> None:
    """Draws the ratios as bars. The file also holds them as text, for a test to compare."""
    from matplotlib.figure import Figure

    values = ratios(folder)
    # Narrow, so that its text stays legible on a phone.
    figure = Figure(figsize=(5.6, 6.4), layout="constrained")
    axes = figure.subplots()
    places = range(len(BARS), 0, -1)
    colours = ["#0072B2" if value >= 1 else "#D55E00" for value in values]
    axes.barh(places, [value - 1 for value in values], left=1, color=colours, height=0.7)
    for place, value in zip(places, values, strict=True):
        text = f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"
        side = (
            {"ha": "left", "xytext": (4, 0)} if value >= 1 else {"ha": "right", "xytext": (-4, 0)}
        )
        axes.annotate(text, (value, place), textcoords="offset points", va="center", **side)
    axes.set_yticks(places, [f"{other}\n{case}" for case, other, *_ in BARS], fontsize=8.5)
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set(
        xscale="log", xlim=(0.035, 130), xlabel="time of the other library divided by lagrax's"
    )
    axes.set_xticks(
        [0.1, 0.5, 1, 2, 5, 10, 20, 50, 100], ["0.1", "0.5", "1", "2", "5", "10", "20", "50", "100"]
    )
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Description": json.dumps(values), "Software": None})


def chart_is_current(folder: Path, path: Path) -> bool:
    from PIL import Image

    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.text.get("Description") == json.dumps(ratios(folder))


# --- headers of the scripts, and all of it --------------------------------------------------------


def with_goals(source: str, answer: dict) -> str:
    """Returns the source of a script with the measurements in its header."""
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
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    options = parser.parse_args()
    wanted = {
        RESULTS / "README.md": page(RESULTS),
        DOCS: with_table(DOCS.read_text(encoding="utf-8"), RESULTS),
    }
    for path in sorted(RESULTS.glob("*.json")):
        script = SCRIPTS / f"{path.stem}.py"
        answer = read(RESULTS, path.stem)
        wanted[script] = with_goals(script.read_text(encoding="utf-8"), answer)
    old = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    draw = not chart_is_current(RESULTS, CHART)
    if options.check:
        late = [*old, *([CHART] if draw else [])]
        print("\n".join(f"{path} is out of date" for path in late) or "all are up to date")
        return bool(late)
    if draw:
        draw_chart(RESULTS, CHART)
        print(f"wrote {CHART}")
    for path in old:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
