"""One self-contained HTML page with all findings, figures, tables and claims.

It loads nothing from anywhere, so it can be opened from disk, sent by mail and kept.
"""

import collections
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lagrax.plotting import Figure
from lagrax.plotting._page import day, duration, render_page
from lagrax.training._files import write_atomically
from lagrax.training._machine import load

from .images import image_result, list_record_files
from .models import paper_models, paper_size
from .result import Claim, Entry, Result, ResultError, ResultTable, read_entry

_HERE = Path(__file__).parent
# The experiment at the top of the page, if it is there.
_LEADING = "population"


# --- results --------------------------------------------------------------------------------------


def write_report(
    folders: Sequence[Path], out: Path, known: Mapping[Path, Entry] | None = None
) -> Path:
    """Writes the page of all experiments in `folders` to `out`, whole or not at all.

    A folder is that of one experiment, or holds several of them. Those in `known` are not read
    again.
    """
    for module in ("plotly.offline", "jinja2"):
        load(module)  # Report its absence before anything is read.
    entries = {path.resolve(): entry for path, entry in (known or {}).items()}
    found = [
        entries.get(folder.resolve()) or read_experiment(folder)
        for folder in _find_experiments(folders)
    ]
    write_atomically(out, _render([_make_chapter(*pair) for pair in enumerate(found, 1)]))
    return out


def _find_experiments(folders: Sequence[Path]) -> list[Path]:
    """The folders of experiments among `folders` and directly inside them, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        inside = sorted(path for path in folder.glob("*") if path.is_dir() and path.name != "lines")
        experiments = [path for path in (folder, *inside) if _is_experiment(path)]
        if not experiments:
            inside = "holds no result.json and no lines of runs, and neither do the folders in it"
            raise ResultError(
                f"{folder} {inside if folder.is_dir() else 'is no folder'}: run `python -m "
                "reproduction` first, or name the folder that it wrote."
            )
        found |= {path.resolve(): path for path in experiments}
    return list(found.values())


def _is_experiment(folder: Path) -> bool:
    return (folder / "result.json").is_file() or bool(list_record_files(folder))


def read_experiment(folder: Path) -> Entry:
    """Reads `result.json` with its figures. A folder without one is read by its lines of runs."""
    if not (folder / "result.json").is_file() and list_record_files(folder):
        result, figures = image_result(folder)
        return Entry(result, [*figures])
    return read_entry(folder)


# --- the page -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Chapter:
    """The part of the report on one experiment."""

    anchor: str
    result: Result
    figures: list[Figure | str]

    @property
    def title(self) -> str:
        return self.result.title or self.result.experiment

    @property
    def picture(self) -> Figure | None:
        """The figure that shows the finding best."""
        return next((figure for figure in self.figures if isinstance(figure, Figure)), None)

    @property
    def tables(self) -> Sequence[ResultTable]:
        return self.result.tables

    @property
    def seconds(self) -> dict[str, Any]:
        return {training.name: training.seconds for training in self.result.trainings}

    @property
    def circumstances(self) -> str:
        """Date, duration and device of the run."""
        result, machine = self.result, self.result.machine
        when = f" on {day(result.date)}" if result.date else ""
        known = result.seconds is not None and math.isfinite(result.seconds)
        took = f" The times of training add up to {duration(result.seconds)}." if known else ""
        if result.waited is not None and math.isfinite(result.waited):
            # Trainings run side by side, so their times add up to more.
            overlap = took and f"{took[:-1]}, since some run side by side."
            took = f" It took {duration(result.waited)}.{overlap}"
        run = f"Run{when}.{took}" if when else took
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        device = f"Device: {machine['device']}{cores}." if machine.get("device") else ""
        return f"{run} {device}".strip()


def _make_chapter(number: int, entry: Entry) -> Chapter:
    slug = re.sub(r"[^a-z0-9]+", "-", entry.result.experiment.lower())
    return Chapter(f"experiment-{number}-{slug}".strip("-"), entry.result, entry.figures)


def _render(chapters: Sequence[Chapter]) -> str:
    # A full run says more than a quick one.
    importance = lambda c: (not c.result.quick, c.result.experiment == _LEADING)
    leading = max(chapters, key=importance)
    chapters = [leading, *(chapter for chapter in chapters if chapter is not leading)]
    columns, rows, agreeing = _compare_sizes()
    return render_page(
        _HERE / "report.html",
        title="Neural Piecewise-Constant Delay Differential Equations: a reproduction",
        leading=leading,
        chapters=chapters,
        summary=_summarise(chapters),
        count=_count,
        verdict_class={"holds": "holds", "does not hold": "fails", "undecided": "undecided"},
        size_columns=columns,
        size_rows=rows,
        agreeing=agreeing,
    )


def _summarise(chapters: Sequence[Chapter]) -> str:
    claims = [claim for chapter in chapters for claim in chapter.result.claims]
    if not claims:
        return "No claim is judged here. That takes a full run, such as `make reproduce`."
    return (
        "Each claim is a number with a target, which is ours. A claim is undecided if the target "
        f"lies within the uncertainty of the number. Altogether, {_count(claims)}."
    )


def _count(claims: Sequence[Claim]) -> str:
    """The number of claims with each verdict, in words."""
    counts = collections.Counter(claim.verdict for claim in claims)
    verbs = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not hold", "do not hold"),
        "undecided": ("is undecided", "are undecided"),
    }
    parts = [f"{n} {verbs[verdict][n != 1]}" for verdict, n in counts.most_common()]
    return f"of {len(claims)} claims, {', '.join(parts)}"


# --- the paper's image models ---------------------------------------------------------------------

_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}


def _compare_sizes() -> tuple[list[str], list[list[str]], int]:
    """The sizes of the paper's models as built here next to those that it prints, as a table, and
    the number of models that agree."""
    paper = json.loads((_HERE / "tables.json").read_text(encoding="utf-8"))
    rows, agreeing = [], 0
    for model in paper_models():
        row = [model]
        for dataset in _DATA:
            here = paper_size(model, dataset)
            there = paper["filters_and_parameters"][model][dataset]
            agreeing += here == there
            row += [f"{size[key]:,}" for key in ("filters", "params") for size in (here, there)]
        rows.append(row)
    names = ("filters", "filters in the paper", "parameters", "parameters in the paper")
    columns = ["model", *(f"{title}: {name}" for title in _DATA.values() for name in names)]
    return columns, rows, agreeing
