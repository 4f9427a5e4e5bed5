"""Times calls in turns, describes the machine, judges goals and writes JSON, for all benchmarks."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).parent / "results"


def options_for(question: str, path: Path) -> argparse.Namespace:
    """Parses the options of every script: `--out`, and `--tiny` for a short check."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--out", type=Path, default=path, help="the JSON file to write")
    parser.add_argument(
        "--tiny", action="store_true", help="run small cases, whose times mean nothing"
    )
    return parser.parse_args()


def milliseconds(
    calls: Mapping[str, Callable[[], Any]], *, repeats: int = 20, seconds: float = 0.05
) -> dict[str, float]:
    """Returns the median time of each call in milliseconds.

    The calls take turns of about `seconds`, so that other load affects all of them alike. Waits
    for JAX's results.
    """
    inner = {}
    for name, call in calls.items():
        jax.block_until_ready(call())
        start = time.perf_counter()
        jax.block_until_ready(call())
        inner[name] = max(1, int(seconds / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(inner[name]):
                answer = call()
            jax.block_until_ready(answer)
            times[name].append((time.perf_counter() - start) / inner[name])
    return {name: 1e3 * statistics.median(t) for name, t in times.items()}


def at_least(name: str, value: float, goal: float) -> dict[str, Any]:
    """Returns a goal that is met if `value` is at least `goal`. A missing value (NaN) misses it."""
    return {"name": name, "value": value, "goal": goal, "met": value >= goal, "better": "higher"}


def at_most(name: str, value: float, goal: float) -> dict[str, Any]:
    return {"name": name, "value": value, "goal": goal, "met": value <= goal, "better": "lower"}


def fastest_as_accurate(
    rows: list[dict], row: dict, *, floor: float, time: str = "ms"
) -> dict[str, Any] | None:
    """Returns the fastest of lagrax's rows on the same problem that is as accurate as `row`.

    Errors count as equal within 5 % and below `floor`, so that rounding does not decide.
    """
    limit = 1.05 * max(row["error"], floor)
    own = [r for r in rows if r["library"] == "lagrax" and r["problem"] == row["problem"]]
    accurate = [r for r in own if time in r and max(r["error"], floor) <= limit]
    return min(accurate, key=lambda r: r[time], default=None)


def torch_threads(call: Callable[[], Any]) -> int:
    """Sets PyTorch to one thread or all, whichever runs `call` faster, and returns the number."""
    import torch

    def of(threads):
        def call_with_threads():
            torch.set_num_threads(threads)
            return call()

        return call_with_threads

    choices = {str(n): of(n) for n in sorted({1, os.cpu_count() or 1})}
    times = milliseconds(choices, repeats=7, seconds=0.0)
    best = int(min(times, key=lambda n: times[n]))
    torch.set_num_threads(best)
    return best


def hardware() -> str:
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{device.device_kind}, one of them; {os.cpu_count()} CPU cores"
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(*packages: str) -> dict[str, str]:
    """Of Python, JAX, diffrax, equinox and the `packages` compared with."""
    found = {"python": platform.python_version()}
    for package in ("lagrax", "jax", "diffrax", "equinox", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def write(path: Path, question: str, rows: list[dict], goals: list[dict], *packages: str) -> None:
    """The answer as JSON; prints the goals, missed ones included."""
    answer = {
        "question": question,
        "hardware": hardware(),
        "versions": versions(*packages),
        "rows": rows,
        "goals": goals,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    for goal in goals:
        met = "met" if goal["met"] else "MISSED"
        print(f"{goal['name']}: {goal['value']:.3g}, goal {goal['goal']:g}: {met}")
    print(f"wrote {path}")


def table(rows: list[dict], columns: Mapping[str, str]) -> str:
    """`rows` as lines; `columns` gives a format for each key, such as ".2f"."""
    cells = [list(columns)]
    for row in rows:
        cells.append([_cell(row.get(key), form) for key, form in columns.items()])
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for first, *others in cells:
        rest = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *rest]))
    return "\n".join(lines)


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return format(value, form) if form else str(value)
