"""One self-contained HTML page of everything measured: claims, tables, figures, settings.

It loads nothing from anywhere, so it can be opened from disk, sent by mail and kept.
"""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from lagrax.plotting import Figure, from_json
from lagrax.plotting._elements import (
    Html,
    Section,
    day,
    duration,
    element,
    page,
    scrollable,
    show_figure,
    show_particulars,
    show_table,
)
from lagrax.training._files import read_json, write_atomically
from lagrax.training._machine import load

from .images import image_result, list_record_files
from .models import paper_models, paper_size
from .result import Claim, Number, Result, ResultError, read_result

_HERE = Path(__file__).parent


# --- results --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A result and its figures: a text says why one cannot be shown."""

    result: Result
    figures: list[Figure | str]
    anchor: str
    first_figure: int

    @property
    def title(self) -> str:
        return self.result.title or self.result.experiment


def _find(folders: Sequence[Path]) -> list[Path]:
    """The folders of experiments among `folders` and directly inside them, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        inside = sorted(path for path in folder.glob("*") if path.is_dir() and path.name != "lines")
        places = [path for path in (folder, *inside) if _is_experiment(path)]
        if not places:
            inside = "holds no result.json and no lines of runs, and neither do the folders in it"
            raise ResultError(
                f"{folder} {inside if folder.is_dir() else 'is no folder'}: run `python -m "
                "reproduction` first, or name the folder that it wrote."
            )
        found |= {path.resolve(): path for path in places}
    return list(found.values())


def _is_experiment(folder: Path) -> bool:
    return (folder / "result.json").is_file() or bool(list_record_files(folder))


def read_experiment(folder: Path) -> tuple[Result, list[Figure | str]]:
    """What `result.json` says, or, in a folder without one, what the lines of runs do; with the
    figures, or a sentence on why one cannot be shown."""
    if not (folder / "result.json").is_file() and list_record_files(folder):
        result, figures = image_result(folder)
        return result, [*figures]
    result = read_result(folder)
    return result, [_read_figure(folder, str(name)) for name in result.figures]


def _read(folder: Path, number: int, first_figure: int) -> Experiment:
    result, figures = read_experiment(folder)
    slug = re.sub(r"[^a-z0-9]+", "-", result.experiment.lower())
    return Experiment(
        result=result,
        figures=figures,
        anchor=f"experiment-{number}-{slug}".strip("-"),
        first_figure=first_figure,
    )


def _read_figure(folder: Path, name: str) -> Figure | str:
    path = folder / "figures" / f"{name}.json"
    try:
        if Path(name).name != name or not path.is_file():
            return f"The figure “{name}” is missing from the experiment's folder."
        return from_json(read_json(path))
    except (OSError, ValueError) as error:
        return f"The figure “{name}” cannot be read: {error}"


# --- the page -------------------------------------------------------------------------------------


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Writes the page of all experiments in `folders` to `out`, whole or not at all.

    A folder is that of one experiment, or holds several of them.
    """
    load("plotly.offline")  # Its absence is said before anything is read.
    experiments: list[Experiment] = []
    for number, folder in enumerate(_find(folders), 1):
        first = 1 + sum(len(experiment.figures) for experiment in experiments)
        experiments.append(_read(folder, number, first))
    write_atomically(out, _page(experiments))
    return out


def _page(experiments: Sequence[Experiment]) -> str:
    title = "Neural Piecewise-Constant Delay Differential Equations: a reproduction"
    introduction = Html(
        "The experiments of Qunxi Zhu, Yifei Shen, Dongsheng Li and Wei Lin, <cite>Neural "
        "Piecewise-Constant Delay Differential Equations</cite>, AAAI 2022, run anew with lagrax, "
        "a JAX library of delay differential equations: what was measured, and whether it bears "
        "out what the paper says."
    )
    return page(
        title, introduction, [_overview(experiments), *map(_section, experiments), _models()]
    )


# --- claims ---------------------------------------------------------------------------------------


def _overview(experiments: Sequence[Experiment]) -> Section:
    parts = [element("p", _summary(experiments))]
    for experiment in experiments:
        link = element("a", experiment.title, href=f"#{experiment.anchor}")
        parts.append(element("h3", link, *_quick_mark(experiment)))
        if experiment.result.claims:
            parts.append(element("ul", *map(_claim, experiment.result.claims), class_="claims"))
        else:
            parts.append(element("p", "No claim is tested here.", class_="muted"))
    return Section("overview", "Overview", parts)


def _summary(experiments: Sequence[Experiment]) -> str:
    full = [claim for e in experiments if not e.result.quick for claim in e.result.claims]
    quick = sum(len(e.result.claims) for e in experiments if e.result.quick)
    held = sum(claim.holds for claim in full)
    sentences = ["Each claim is put as a number and a bar, of ours, that the number has to reach."]
    if full:
        sentences.append(
            f"Of {len(full)} tested here, {held} {'holds' if held == 1 else 'hold'} and "
            f"{len(full) - held} {'does' if len(full) - held == 1 else 'do'} not."
        )
    if quick:
        sentences.append(
            f"{quick} {'verdict comes' if quick == 1 else 'verdicts come'} from quick runs, which "
            f"train too briefly for {'it' if quick == 1 else 'them'} to mean much"
            f"{', and are not counted.' if full else '.'}"
        )
    return " ".join(sentences)


def _quick_mark(experiment: Experiment) -> list[str]:
    mark = element("span", "quick run", class_="quick")
    return [" ", mark] if experiment.result.quick else []


def _claim(claim: Claim) -> Html:
    verdict, kind = ("holds", "holds") if claim.holds else ("does not hold", "fails")
    unit = f" {claim.unit}" if claim.unit else ""
    measured = "It could not be measured."
    if _known(claim.value):
        measured = f"Measured: {claim.value:.4g}{unit}."
    if _known(claim.bar):
        bound = {"higher": "at least ", "lower": "at most "}.get(claim.better, "")
        measured += f" The bar: {bound}{claim.bar:.4g}{unit}."
    return element(
        "li",
        element("p", verdict, class_=f"verdict {kind}"),
        element("p", claim.claim),
        element("p", measured, class_="muted"),
    )


def _known(value: Number) -> bool:
    return value is not None and math.isfinite(value)


# --- sections -------------------------------------------------------------------------------------


def _section(experiment: Experiment) -> Section:
    result = experiment.result
    parts: list[Html] = []
    if result.quick:
        parts.append(
            element(
                "p",
                "This is a quick run: it trains far less than the paper does, to show that all "
                "parts work. Its verdicts mean little.",
                class_="notice",
            )
        )
    parts.append(element("p", result.about))
    parts.append(element("p", _circumstances(experiment), class_="muted"))
    parts += [show_table(t.columns, t.rows, t.title, t.note) for t in result.tables]
    for number, figure in enumerate(experiment.figures, experiment.first_figure):
        if isinstance(figure, Figure):
            parts.append(show_figure(figure, number))
        else:
            label = element("strong", f"Figure {number}.")
            parts.append(element("p", label, f" {figure}", class_="notice"))
    seconds = {run.name: run.seconds for run in result.runs}
    parts.append(show_particulars(result.settings, result.machine, seconds))
    return Section(experiment.anchor, experiment.title, parts, _quick_mark(experiment))


def _circumstances(experiment: Experiment) -> str:
    result = experiment.result
    machine = result.machine
    parts = []
    if experiment.result.claims:
        held = sum(claim.holds for claim in experiment.result.claims)
        parts.append(f"{held} of {len(experiment.result.claims)} claims hold.")
    when = f" on {day(result.date)}" if result.date else ""
    took = f" in {duration(result.seconds)}" if _known(result.seconds) else ""
    if when or took:
        parts.append(f"Run{when}{took}.")
    if machine.get("device"):
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        parts.append(f"Device: {machine['device']}{cores}.")
    return " ".join(parts)


# --- the paper's image models ---------------------------------------------------------------------

_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}


def _models() -> Section:
    """The sizes of the paper's models as built here, next to those that it prints."""
    paper = json.loads((_HERE / "tables.json").read_text(encoding="utf-8"))
    sizes = {
        (name, data): (paper_size(name, data), paper["filters_and_parameters"][name][data])
        for name in paper_models()
        for data in _DATA
    }
    agreeing = sum(here == there for here, there in sizes.values())
    agree = element(
        "p",
        f"Of the paper’s {len(sizes)} image models, {agreeing} have the same numbers of "
        "filters and parameters here as in its table.",
    )
    label = "Filters and parameters of each model"
    table = scrollable(_size_table(sizes), label)
    details = element("details", element("summary", label), table)
    return Section("models", "The paper’s image models", [agree, details])


def _size_table(sizes: dict[tuple[str, str], tuple[dict[str, int], dict[str, int]]]) -> Html:
    groups = [element("th", title, colspan=4, scope="colgroup") for title in _DATA.values()]
    names = ["filters", "paper’s", "parameters", "paper’s"] * len(_DATA)
    columns = [element("th", name, scope="col", class_="number") for name in names]
    body = []
    for model in paper_models():
        cells = []
        for data in _DATA:
            here, there = sizes[model, data]
            cells += [f"{size[key]:,}" for key in ("filters", "params") for size in (here, there)]
        values = [element("td", cell, class_="number") for cell in cells]
        body.append(element("tr", element("th", model, scope="row"), *values))
    first = element("th", "Model", rowspan=2, scope="col")
    head = element("thead", element("tr", first, *groups), element("tr", *columns))
    return element("table", head, element("tbody", *body), class_="measures")
