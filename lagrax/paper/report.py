"""One self-contained HTML page of everything measured: claims, tables, figures, settings.

It loads nothing from anywhere, so it can be opened from disk, sent by mail and kept.
"""

import dataclasses
import datetime
import html
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._files import write_atomically
from .._machine import load
from ..figures import COLOURS, Figure, Mark, Panel, Points, from_json, legend, plotly_panels, rows
from ..nn import paper_models, paper_size
from .accuracy import image_result
from .lines import files as line_files
from .result import Claim, Number, Result, ResultError, Table, read_result

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
                f"{folder} {inside if folder.is_dir() else 'is no folder'}: run `lagrax reproduce` "
                "first, or name the folder that it wrote."
            )
        found |= {path.resolve(): path for path in places}
    return list(found.values())


def _is_experiment(folder: Path) -> bool:
    return (folder / "result.json").is_file() or bool(line_files(folder))


def read_experiment(folder: Path) -> tuple[Result, list[Figure | str]]:
    """What `result.json` says, or, in a folder without one, what the lines of runs do; with the
    figures, or a sentence on why one cannot be shown."""
    if not (folder / "result.json").is_file() and line_files(folder):
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
    if Path(name).name != name or not path.is_file():
        return f"The figure “{name}” is missing from the experiment's folder."
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        return f"The figure “{name}” cannot be read: {error}"


# --- HTML -----------------------------------------------------------------------------------------


class Html(str):
    """Text that is HTML already; all other text is escaped on its way into an element."""


def element(name: str, *content: str, **attributes: object) -> Html:
    """`<name attributes>content</name>`; `class_` is class, `aria_label` is aria-label."""
    inside = "".join(part if isinstance(part, Html) else html.escape(part) for part in content)
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{inside}</{name}>")


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Writes the page of all experiments in `folders` to `out`, whole or not at all.

    A folder is one of an experiment, or one that holds several, as `lagrax reproduce` writes them.
    """
    plotly = load("plotly.offline")
    experiments: list[Experiment] = []
    for number, folder in enumerate(_find(folders), 1):
        first = 1 + sum(len(experiment.figures) for experiment in experiments)
        experiments.append(_read(folder, number, first))
    page = _page(experiments, plotly.get_plotlyjs())
    write_atomically(out, page)
    return out


def _page(experiments: Sequence[Experiment], plotly: str) -> str:
    title = "Neural Piecewise-Constant Delay Differential Equations: a reproduction"
    # The policy makes sure of what the page promises: nothing is loaded from anywhere.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:"
    )
    head = Html(
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<link rel="icon" href="data:,">'
    ) + element("title", title)
    style = element("style", Html((_HERE / "report.css").read_text(encoding="utf-8")))
    body = element(
        "body",
        _header(title, experiments),
        element(
            "main",
            _overview(experiments),
            *[_section(experiment) for experiment in experiments],
            _models(),
        ),
        element("script", Html(plotly.replace("</script", r"<\/script"))),
        element("script", Html((_HERE / "report.js").read_text(encoding="utf-8"))),
    )
    return (
        f"<!doctype html>\n{element('html', element('head', Html(head), style), body, lang='en')}\n"
    )


def _header(title: str, experiments: Sequence[Experiment]) -> Html:
    paper = Html(
        "Qunxi Zhu, Yifei Shen, Dongsheng Li and Wei Lin, <cite>Neural Piecewise-Constant Delay "
        "Differential Equations</cite>, AAAI 2022"
    )
    links = [("overview", "Overview")]
    links += [(experiment.anchor, experiment.title) for experiment in experiments]
    links += [("models", "The paper’s image models")]
    return element(
        "header",
        element("h1", title),
        element(
            "p",
            "The experiments of ",
            paper,
            ", run anew with lagrax, a JAX library of delay differential equations: what was "
            "measured, and whether it bears out what the paper says.",
        ),
        element(
            "nav",
            element("ul", *[element("li", element("a", t, href=f"#{a}")) for a, t in links]),
            aria_label="Contents",
        ),
    )


# --- claims ---------------------------------------------------------------------------------------


def _overview(experiments: Sequence[Experiment]) -> Html:
    parts = [element("h2", "Overview"), element("p", _summary(experiments))]
    for experiment in experiments:
        parts.append(
            element(
                "h3",
                element("a", experiment.title, href=f"#{experiment.anchor}"),
                *_quick_mark(experiment),
            )
        )
        if experiment.result.claims:
            parts.append(element("ul", *map(_claim, experiment.result.claims), class_="claims"))
        else:
            parts.append(element("p", "No claim is tested here.", class_="muted"))
    return element("section", *parts, id="overview")


def _summary(experiments: Sequence[Experiment]) -> str:
    full = [claim for e in experiments if not e.result.quick for claim in e.result.claims]
    quick = sum(len(e.result.claims) for e in experiments if e.result.quick)
    held = sum(claim.holds for claim in full)
    sentences = ["Each claim is put as a number and a bar that the number has to reach."]
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


def _quick_mark(experiment: Experiment) -> Iterator[Html]:
    if experiment.result.quick:
        yield Html(" ")
        yield element("span", "quick run", class_="quick")


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


# --- sections -------------------------------------------------------------------------------------


def _section(experiment: Experiment) -> Html:
    result = experiment.result
    parts = [element("h2", experiment.title, *_quick_mark(experiment))]
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
    parts += [_table(table) for table in experiment.result.tables]
    for number, figure in enumerate(experiment.figures, experiment.first_figure):
        if isinstance(figure, Figure):
            parts.append(_figure(figure, number))
        else:
            label = element("strong", f"Figure {number}.")
            parts.append(element("p", label, f" {figure}", class_="notice"))
    parts.append(_particulars(experiment))
    return element("section", *parts, id=experiment.anchor)


def _circumstances(experiment: Experiment) -> str:
    result = experiment.result
    machine = result.machine
    parts = []
    if experiment.result.claims:
        held = sum(claim.holds for claim in experiment.result.claims)
        parts.append(f"{held} of {len(experiment.result.claims)} claims hold.")
    when = f" on {_day(result.date)}" if result.date else ""
    took = f" in {_duration(result.seconds)}" if _known(result.seconds) else ""
    if when or took:
        parts.append(f"Run{when}{took}.")
    if machine.get("device"):
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        parts.append(f"Device: {machine['device']}{cores}.")
    return " ".join(parts)


def _table(table: Table) -> Html:
    head = [
        element("th", _text(name), scope="col", class_=_place(number))
        for number, name in enumerate(table.columns)
    ]
    body = [
        element(
            "tr",
            element("th", _text(first), scope="row"),
            *[element("td", _text(cell), class_="number") for cell in rest],
        )
        for first, *rest in table.rows
    ]
    content = [element("thead", element("tr", *head)), element("tbody", *body)]
    heading = [element("h3", table.title)] if table.title else []
    box = _scrollable(element("table", *content, class_="measures"), table.title or "Table")
    note = [element("p", table.note, class_="note")] if table.note else []
    return Html("".join([*heading, box, *note]))


def _scrollable(table: Html, label: str) -> Html:
    """A wide table scrolls in its own box, by keyboard as well, and not the page."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _place(column: int) -> str:
    return "number" if column else "name"


def _particulars(experiment: Experiment) -> Html:
    """All settings, versions and times, for who wants to run the same again."""
    machine = {}
    for key, value in experiment.result.machine.items():
        machine |= value if isinstance(value, dict) else {key: value}
    times = {run.name: _duration(run.seconds) for run in experiment.result.runs}
    tables = [
        ("Settings", experiment.result.settings),
        ("Versions and machine", machine),
        ("Time of each run", times),
    ]
    return element(
        "details",
        element("summary", "Settings, versions and times"),
        element("div", *[_pairs(*table) for table in tables if table[1]], class_="columns"),
    )


def _pairs(title: str, values: dict[str, Any]) -> Html:
    body = [
        element("tr", element("th", str(key), scope="row"), element("td", _text(value)))
        for key, value in values.items()
    ]
    table = element("table", element("caption", title), element("tbody", *body), class_="settings")
    return _scrollable(table, title)


# --- figures --------------------------------------------------------------------------------------


def _figure(figure: Figure, number: int) -> Html:
    drawings = iter(plotly_panels(figure))
    shape = "panels squares" if all(panel.equal for panel in figure.panels) else "panels"
    parts = [_legend(legend(figure))]
    # Rows without names share one grid, which wraps without leaving gaps.
    grid = zip(figure.rows, rows(figure), strict=True) if figure.rows else [("", figure.panels)]
    for name, row in grid:
        if name:
            parts.append(element("p", name, class_="row-name"))
        panels = [_panel(panel, name, next(drawings)) for panel in row]
        parts.append(element("div", *panels, class_=shape, style=f"--columns: {figure.columns}"))
    caption = element("figcaption", element("strong", f"Figure {number}."), f" {figure.caption}")
    return element("figure", *parts, caption, id=f"figure-{number}")


def _panel(panel: Panel, row: str, drawing: dict[str, Any]) -> Html:
    axes = f"{panel.ylabel or 'y'} against {panel.xlabel or 'x'}"
    scale = " on a logarithmic scale" if panel.ylog else ""
    shown = dict.fromkeys(mark.label for mark in panel.marks if mark.label)
    title = ", ".join(filter(None, [row, panel.title]))
    label = f"{title}: " * bool(title) + axes + scale + f" ({', '.join(shown)})" * bool(shown)
    heading = element("p", panel.title, class_="panel-title")
    box = element("div", class_="plot", role="img", aria_label=label)
    # An escaped "<" keeps a text in the drawing from ending the script.
    data = json.dumps(drawing, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")
    script = element("script", Html(data), type="application/json")
    return element("div", heading, box, script, class_="panel")


def _legend(marks: Sequence[Mark]) -> Html:
    entries = [element("li", _key(mark), mark.label or "") for mark in marks]
    return element("ul", *entries, class_="legend", aria_label="Legend") if entries else Html("")


def _key(mark: Mark) -> Html:
    colour = COLOURS[mark.colour]
    if isinstance(mark, Points):
        shape = element("circle", cx=14, cy=6, r=4, fill=colour)
    else:
        dashes = "5 3" if mark.dashed else "none"
        shape = element(
            "line", x1=1, x2=27, y1=6, y2=6, stroke=colour, stroke_width=3, stroke_dasharray=dashes
        )
    return element("svg", shape, viewBox="0 0 28 12", aria_hidden="true")


# --- the paper's image models ---------------------------------------------------------------------

_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}


def _models() -> Html:
    """The sizes of the paper's models as built here, next to those that it prints."""
    paper = json.loads((_HERE / "tables.json").read_text(encoding="utf-8"))
    sizes = {
        (name, data): (paper_size(name, data), paper["filters_and_parameters"][name][data])
        for name in paper_models()
        for data in _DATA
    }
    agreeing = sum(here == there for here, there in sizes.values())
    return element(
        "section",
        element("h2", "The paper’s image models"),
        element(
            "p",
            f"Of the paper’s {len(sizes)} image models, {agreeing} have the same numbers of "
            "filters and parameters here as in its table.",
        ),
        element(
            "details",
            element("summary", "Filters and parameters of each model"),
            _scrollable(_size_table(sizes), "Filters and parameters of each model"),
        ),
        id="models",
    )


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


# --- words ----------------------------------------------------------------------------------------


def _known(value: Number) -> bool:
    return value is not None and math.isfinite(value)


def _text(value: Any) -> str:
    """A value of a table or a setting, for people."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _duration(seconds: Number) -> str:
    if seconds is None or not _known(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _day(date: str) -> str:
    try:
        day = datetime.datetime.fromisoformat(date)
    except ValueError:
        return date
    return f"{day.day} {day:%B %Y}"
