"""`lagrax analyse`: the long run of a classical or a learned equation, and how it changes with a
parameter."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..analysis import (
    Bifurcation,
    KnotMap,
    Orbit,
    StabilityRegion,
    bifurcation,
    periodic_orbits,
    stability_region,
)
from ..analysis._diagrams import largest_exponents
from ..analysis._exponents import least_of_chaos
from ..identify import Identifier, IdentifyError
from ..plotting import Figure, Line, Mark, Panel
from ..systems import SYSTEMS, DigitalControl, HeldSystem, LinearSystem, System
from ..training._files import write_atomically
from ..training._machine import describe as machine
from ..training._progress import Progress
from .answers import (
    answering,
    check_folder,
    is_unfinished,
    read_summary,
    write_figures,
    write_summary,
)
from .long_run import LongRun, learned_map, long_run, long_run_of, precisely, why_no_map
from .table import write_table

Made = KnotMap | System


class AnalyseError(ValueError):
    """Something cannot be analysed as asked; the message says why and what to do."""


class Span(NamedTuple):
    """A parameter, and between which values it is varied."""

    name: str
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Subject:
    """An equation as a function of its parameters, which `parameters` has with their values."""

    name: str
    parameters: dict[str, int | float]
    make: Callable[..., Made]
    linear: bool
    states: list[str]
    model: Identifier | None = None

    @property
    def learned(self) -> bool:
        return self.model is not None

    def now(self) -> LongRun:
        """Its long run at its parameters."""
        if self.model is not None:
            return long_run_of(self.model, self.parameters["tau"])
        return long_run(self.make(**self.parameters))

    def over(self, *names: str) -> Callable[..., Made]:
        """As a function of some of the parameters alone."""
        return lambda *values: self.make(**self.parameters | dict(zip(names, values, strict=True)))


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much is computed: `values` of the parameter, of which each is iterated `skip` times
    before `keep` iterates are kept. Where these have no period, `confirm` tell chaos."""

    values: int
    keep: int
    skip: int
    confirm: int


# A learned equation is solved in steps, and takes a hundred times as long as a closed form.
FULL, LEARNED, GRID = Extent(2000, 500, 1000, 30_000), Extent(400, 200, 400, 1_000), 120
# More do not fit into memory.
MOST_STATES = 50_000_000


# --- what is analysed -----------------------------------------------------------------------------


def parameters_of(name: str) -> dict[str, int | float]:
    """The parameters of a system that are single numbers, and their defaults. A controller has its
    gain besides, a factor of all its feedback."""
    return ({"gain": 1.0} if name == "digital-control" else {}) | scalars_of(SYSTEMS[name])


def scalars_of(system: type[System]) -> dict[str, int | float]:
    """The arguments that are single numbers, and their defaults."""
    arguments = inspect.signature(system.__init__).parameters.values()
    return {p.name: p.default for p in arguments if isinstance(p.default, int | float)}


def held_systems() -> list[str]:
    return [name for name, system in SYSTEMS.items() if issubclass(system, HeldSystem)]


def _subject(target: str, given: Mapping[str, int | float]) -> Subject:
    if target in held_systems():
        return _classical(target, given)
    if target in SYSTEMS:
        raise AnalyseError(
            f"The equation {target} has a lag, and only those with holds have a map from knot to "
            f"knot: expected one of {', '.join(held_systems())}."
        )
    if not Path(target).is_dir():
        raise AnalyseError(
            f"No equation and no folder {target!r}: expected one of {', '.join(held_systems())}, "
            "or a folder that `lagrax fit` wrote."
        )
    return _learned(Path(target), given)


def _classical(name: str, given: Mapping[str, int | float]) -> Subject:
    system, known = SYSTEMS[name], parameters_of(name)
    _check_known(name, given, known)

    def make(**parameters: Any) -> System:
        if "gain" in parameters:
            parameters["K"] = parameters.pop("gain") * DigitalControl().K
        return system(**parameters)

    parameters = known | dict(given)
    try:
        size = make(**parameters).y0.size
    except ValueError as error:
        raise AnalyseError(str(error)) from None
    return Subject(name, parameters, make, issubclass(system, LinearSystem), _numbered(size))


def _learned(folder: Path, given: Mapping[str, int | float]) -> Subject:
    inside = folder / "model" if (folder / "model").is_dir() else folder
    if is_unfinished(inside.parent):
        raise AnalyseError(
            f"{folder} holds parts of two answers, since the second was stopped while it was "
            "written: run that `lagrax fit` again."
        )
    try:
        model = Identifier.load(inside)
    except IdentifyError as error:
        raise AnalyseError(str(error)) from None
    reason = why_no_map(model)
    if reason is not None:
        raise AnalyseError(f"{folder}: {reason}")
    known = {"tau": float(np.asarray(model.delays_[0].tau))}
    name = folder.resolve().parent.name if folder.name == "model" else folder.resolve().name
    _check_known(name, given, known)
    columns = read_summary(inside.parent).get("columns")
    size = model.n_features_in_
    named = isinstance(columns, list) and len(columns) == size
    states = [str(x) for x in columns] if named else _numbered(size)  # pyright: ignore
    make = lambda tau: learned_map(model, tau)
    return Subject(name, known | dict(given), make, False, states, model)


def _numbered(size: int) -> list[str]:
    return ["x"] if size == 1 else [f"x{i + 1}" for i in range(size)]


def _check_known(name: str, asked: Mapping[str, Any], known: Mapping[str, int | float]) -> None:
    for parameter, value in asked.items():
        if parameter not in known:
            raise AnalyseError(f"{name} has no parameter {parameter}: it has {', '.join(known)}.")
        if not np.all(np.isfinite(value)) or (parameter == "tau" and np.min(value) <= 0):
            sign = "positive" if parameter == "tau" else "finite"
            raise AnalyseError(f"{parameter} = {_shown(value)}: expected a {sign} number.")


def _shown(value: Any) -> str:
    return " to ".join(f"{x:g}" for x in np.ravel(value))


def _check_spans(subject: Subject, spans: Sequence[Span]) -> None:
    _check_known(subject.name, {s.name: (s.low, s.high) for s in spans}, subject.parameters)
    for span in spans:
        if isinstance(subject.parameters[span.name], int):
            raise AnalyseError(
                f"--param {span.name}: {span.name} is a whole number, which cannot be varied; give "
                f"one, such as --{span.name} 1."
            )
        if not span.low < span.high:
            raise AnalyseError(
                f"--param {span.name} {span.low:g} {span.high:g}: expected the lower value first."
            )
    if len(spans) > 2 or len({s.name for s in spans}) < len(spans):
        raise AnalyseError(
            f"--param {', '.join(s.name for s in spans)}: expected one parameter, or two different "
            "ones of a linear equation."
        )
    if len(spans) == 2 and not subject.linear:
        raise AnalyseError(
            f"{subject.name} is not linear, and two parameters give the region in which a linear "
            "equation is stable: give one --param."
        )


def _check_extent(spans: Sequence[Span], values: int | None, extent: Extent) -> None:
    grid = len(spans) == 2
    each = values or (GRID if grid else extent.values)
    many = each**2 if grid else each * extent.keep
    if spans and many > MOST_STATES:
        how = f"--values {each}" + ("" if grid else f" with --keep {extent.keep}")
        what = "pairs" if grid else "states"
        raise AnalyseError(f"{how} makes {many:.3g} {what}; expected at most {MOST_STATES:,}.")


# --- the answer -----------------------------------------------------------------------------------


class Finding(NamedTuple):
    """What was found over the parameters: for the summary, to be printed, to be drawn, and to be
    written, each table as names and columns by the name of its file."""

    summary: dict[str, Any]
    lines: list[str]
    figures: list[Figure]
    tables: dict[str, tuple[list[str], list[Any]]]
    states: Bifurcation | None = None


def analyse(
    target: str,
    spans: Sequence[Span],
    given: Mapping[str, int | float],
    out: Path | None,
    *,
    values: int | None = None,
    keep: int | None = None,
    skip: int | None = None,
    progress: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Analyses an equation and writes what it finds: the summary, and lines to be printed."""
    with precisely():
        subject = _subject(target, given)
        _check_spans(subject, spans)
        folder = out or Path(f"analysis-{subject.name}")
        check_folder(folder, "analyse")
        usual = LEARNED if subject.learned else FULL
        extent = dataclasses.replace(
            usual,
            values=values or usual.values,
            keep=keep or usual.keep,
            skip=usual.skip if skip is None else skip,
        )
        _check_extent(spans, values, extent)
        now = subject.now()
        found = _over(subject, spans, values, extent, progress)
        drawn = [*found.figures, *([now.cobweb] if now.cobweb else [])]
        summary = {
            "command": "analyse",
            "subject": subject.name,
            "parameters": subject.parameters,
            **now.to_json(),
            **found.summary,
            "machine": machine(),
        }
        with answering(folder) as inside:
            write_figures(inside, drawn)
            for name, (names, columns) in found.tables.items():
                write_table(inside / name, names, columns)
            if found.states is not None:
                text = _states_text(subject, spans[0].name, found.states)
                write_atomically(inside / "states.csv", text)
            summary = write_summary(inside, summary)
    where = ", ".join(f"{k} = {v:g}" for k, v in subject.parameters.items())
    lines = [f"{subject.name}, {where}:", *(f"  {line}" for line in now.lines()), *found.lines]
    return summary | {"folder": str(folder.resolve())}, lines


def _over(
    subject: Subject, spans: Sequence[Span], values: int | None, extent: Extent, progress: bool
) -> Finding:
    if not spans:
        return Finding({}, [], [], {})
    if len(spans) == 2:
        return _region(subject, spans[0], spans[1], values or GRID)
    if subject.linear:
        return _moduli(subject, spans[0], extent)
    return _diagram(subject, spans[0], extent, progress)


# --- one parameter --------------------------------------------------------------------------------

# Values at a time, so that progress can be shown.
CHUNKS = 8


def _diagram(subject: Subject, span: Span, extent: Extent, progress: bool) -> Finding:
    make = subject.over(span.name)
    values = np.linspace(span.low, span.high, extent.values)
    diagram = _confirmed(make, _bifurcation(make, values, extent, progress), extent)
    critical = _changes(make, span, 17 if subject.learned else 41)
    windows = _windows(diagram, extent)
    figure = diagram.figure("diagram", parameter=span.name)
    states = np.asarray(diagram.states, float)
    columns = [values, np.asarray(diagram.exponents, float), diagram.periods]
    names = [span.name, "exponent", "period"]
    for i, state in enumerate(subject.states):
        names += [f"{state}_low", f"{state}_high"]
        columns += [states[:, :, i].min(axis=1), states[:, :, i].max(axis=1)]
    summary = _span_summary(span, extent.values) | {
        "critical": [c._asdict() | {"point": list(c.point)} for c in critical],
        "windows": windows,
    }
    lines = [
        f"Over {span.name} from {span.low:g} to {span.high:g}, {extent.values:,} values:",
        *(f"  {line}" for line in _told(span, critical, windows)),
    ]
    return Finding(summary, lines, [figure], {"diagram.csv": (names, columns)}, diagram)


def _span_summary(span: Span, values: int) -> dict[str, Any]:
    return {
        "over": [{"parameter": span.name, "low": span.low, "high": span.high}],
        "values": values,
    }


def _bifurcation(
    make: Callable[..., Made], values: np.ndarray, extent: Extent, progress: bool
) -> Bifurcation:
    """In chunks of one size, the last filled up, so that one program serves all."""
    size = -(-len(values) // CHUNKS)
    count = -(-len(values) // size)
    filled = np.pad(values, (0, count * size - len(values)), mode="edge")
    parts = []
    with Progress("diagram", 0, len(values), shown=progress) as shown:
        for chunk in filled.reshape(count, size):
            part = bifurcation(make, chunk, keep=extent.keep, skip=extent.skip)
            parts.append(jax.tree.map(np.asarray, part))
            shown.update(min(len(parts) * size, len(values)), "values")
    joined = [np.concatenate(x)[: len(values)] for x in zip(*parts, strict=True)]
    found, states, exponents, periods = joined
    return Bifurcation(jnp.asarray(found), jnp.asarray(states), jnp.asarray(exponents), periods)


def _confirmed(make: Callable[..., Made], diagram: Bifurcation, extent: Extent) -> Bifurcation:
    """With exponents over more iterates where there is no period: those that are kept do not tell
    chaos from an orbit that goes round an invariant curve."""
    exponents, unsure = np.array(diagram.exponents, float), diagram.periods == 0
    if np.any(unsure):
        asked = jnp.asarray(np.asarray(diagram.values)[unsure])
        exponents[unsure] = largest_exponents(make, asked, extent.confirm, extent.skip)
    return diagram._replace(exponents=jnp.asarray(exponents))


class Change(NamedTuple):
    """A value of the parameter at which a fixed point changes its stability."""

    value: float
    point: tuple[float, ...]
    gains: bool
    event: str


def _changes(make: Callable[..., Made], span: Span, many: int) -> list[Change]:
    """Fixed points are found on a grid; where one is stable at a value and not at the next, the
    value in between is found by bisection."""
    grid = np.linspace(span.low, span.high, many)
    found: list[Change] = []
    before: list[Orbit] = []
    for i, value in enumerate(grid):
        here = periodic_orbits(make(jnp.asarray(value)))
        for first in before if i else []:
            second = _nearest(first, here)
            if second is None or _nearest(second, before) is not first:
                continue
            if _inside(first) != _inside(second):
                found.append(_bisected(make, grid[i - 1], value, first, second))
        before = here
    return found


def _nearest(orbit: Orbit, others: Sequence[Orbit]) -> Orbit | None:
    distance = lambda other: float(np.abs(np.asarray(orbit.points - other.points)).max())
    return min(others, key=distance, default=None)


def _inside(orbit: Orbit) -> bool:
    return bool(np.abs(orbit.multipliers[0]) < 1)


def _bisected(
    make: Callable[..., Made], low: float, high: float, first: Orbit, second: Orbit
) -> Change:
    gains, at = _inside(second), first
    for _ in range(48):
        middle = (low + high) / 2
        start = np.asarray(at.points)
        near = _nearest(at, periodic_orbits(make(jnp.asarray(middle)), starts=start))
        if near is None:
            break
        at = near
        low, high = (middle, high) if _inside(near) != gains else (low, middle)
    largest = at.multipliers[0]
    event = "an invariant curve, multipliers on the unit circle"
    if abs(largest.imag) < 1e-6:
        event = "a doubling of its period, multiplier −1"
        event = event if largest.real < 0 else "a fold or a branching, multiplier 1"
    point = tuple(float(x) for x in np.asarray(at.points)[0])
    return Change((low + high) / 2, point, gains, event)


def _windows(diagram: Bifurcation, extent: Extent) -> list[dict[str, float | int | bool]]:
    """Stretches of values with the same period; 0 is chaos, −1 is slow to settle, or escapes, and
    −2 falls so low that nothing is left of it. Those shorter than a hundredth of all are left out,
    and may lie inside others, which are then not said to have their period `throughout`."""
    periods, exponents = diagram.periods, np.asarray(diagram.exponents)
    chaotic = (periods == 0) & (exponents > least_of_chaos(extent.confirm))
    lost = (periods > 0) & (exponents > least_of_chaos(extent.keep))
    kinds = np.select([chaotic, lost, periods > 0], [0, -2, periods], -1)
    values = np.asarray(diagram.values, float)
    edges = np.flatnonzero(np.diff(kinds)) + 1
    found: list[dict[str, float | int | bool]] = []
    for a, b in zip(np.append(0, edges), np.append(edges, len(kinds)), strict=True):
        if b - a < max(2, len(kinds) / 100):
            continue
        if found and found[-1]["period"] == kinds[a]:
            found[-1]["high"] = float(values[b - 1])
        else:
            ends = {"low": float(values[a]), "high": float(values[b - 1])}
            found.append(ends | {"period": int(kinds[a])})
    for w in found:
        inside = (values >= w["low"]) & (values <= w["high"])
        w["throughout"] = bool(np.all(kinds[inside] == w["period"]))
    return found


def _told(span: Span, critical: Sequence[Change], windows: Sequence[Mapping]) -> list[str]:
    lines = []
    for c in critical:
        verb = "gains" if c.gains else "loses"
        point = ", ".join(f"{0.0 if abs(x) < 1e-9 else x:.5g}" for x in c.point)
        lines.append(
            f"the fixed point {point} {verb} its stability at {span.name} = {c.value:.7g} "
            f"(by {c.event})"
        )
    low = "so low that in floating point nothing is left"
    named = {0: "chaos", -1: "no period found", -2: low, 1: "a fixed point"}
    for w in windows:
        what = named.get(w["period"], f"period {w['period']}")
        but = "" if w["throughout"] else ", but for narrow windows,"
        lines.append(f"{what}{but} from {w['low']:.5g} to {w['high']:.5g}")
    return lines


def _states_text(subject: Subject, parameter: str, diagram: Bifurcation) -> str:
    """One row for each value of the parameter: that, then all states kept, each with its
    components."""
    states = np.asarray(diagram.states, float)
    names = [f"{state}[{i}]" for i in range(states.shape[1]) for state in subject.states]
    rows = np.column_stack([np.asarray(diagram.values, float), states.reshape(len(states), -1)])
    written = (",".join([f"{x:.7g}" for x in row]) for row in rows.tolist())
    return "\n".join([",".join([parameter, *names]), *written]) + "\n"


# --- linear equations -----------------------------------------------------------------------------


def _moduli(subject: Subject, span: Span, extent: Extent) -> Finding:
    """The multipliers of a linear equation over a parameter, and where it is stable."""
    make: Callable[..., Any] = subject.over(span.name)
    matrices = eqx.filter_jit(jax.vmap(lambda value: make(value).knot_matrix))
    values = np.linspace(span.low, span.high, extent.values)
    moduli = _sizes(matrices, values)
    crossings = _crossings(matrices, values, moduli[:, 0] < 1)
    with np.errstate(divide="ignore"):
        exponents = np.log(moduli[:, 0])
    names = [span.name, "exponent", *(f"modulus{i + 1}" for i in range(moduli.shape[1]))]
    summary = _span_summary(span, extent.values) | {"critical": crossings}
    told = [f"Over {span.name} from {span.low:g} to {span.high:g}, {extent.values:,} values:"]
    told += [
        f"  {'becomes stable' if c['gains'] else 'is no longer stable'} at {span.name} = "
        f"{c['value']:.7g}"
        for c in crossings
    ] or [f"  {'stable' if moduli[0, 0] < 1 else 'not stable'} at all of them"]
    table = {"diagram.csv": (names, [values, exponents, *moduli.T])}
    return Finding(summary, told, [_moduli_figure(span, values, moduli, exponents)], table)


def _moduli_figure(
    span: Span, values: np.ndarray, moduli: np.ndarray, exponents: np.ndarray
) -> Figure:
    ends = (span.low, span.high)
    # The largest comes last, on top of those that it shares its modulus with.
    above: list[Mark] = [
        Line(values, modulus, label, colour)
        for modulus, label, colour in zip(
            moduli.T[::-1],
            [*["others"] * (moduli.shape[1] - 1), "largest multiplier"],
            [*["sky"] * (moduli.shape[1] - 1), "blue"],
            strict=True,
        )
    ]
    above.append(Line(ends, (1.0, 1.0), "limit of stability", "grey", True, 1))
    below: list[Mark] = [
        Line(ends, (0.0, 0.0), None, "grey", True, 1),
        Line(values, np.where(np.isfinite(exponents), exponents, np.nan)),
    ]
    return Figure(
        "diagram",
        f"Above, the moduli of the multipliers over {span.name}: the equation is stable where all "
        "are below 1. Below, the exponent of what remains in the end.",
        [
            Panel(above, "", span.name, "modulus of the multipliers", xlim=ends),
            Panel(below, "", span.name, "Lyapunov exponent", xlim=ends),
        ],
    )


def _sizes(matrices: Callable, values: np.ndarray) -> np.ndarray:
    """The moduli of the multipliers for each value, the largest first."""
    found = np.asarray(matrices(jnp.asarray(values)), float)
    return np.sort(np.abs(np.linalg.eigvals(found)), axis=1)[:, ::-1]


def _crossings(matrices: Callable, values: np.ndarray, stable: np.ndarray) -> list[dict[str, Any]]:
    places = np.flatnonzero(stable[1:] != stable[:-1])
    if not len(places):
        return []
    low, high, gains = values[places], values[places + 1], stable[places + 1]
    for _ in range(48):
        middle = (low + high) / 2
        same = (_sizes(matrices, middle)[:, 0] < 1) == gains
        low, high = np.where(same, low, middle), np.where(same, middle, high)
    return [
        {"value": _tidy(v, values), "gains": bool(g)}
        for v, g in zip((low + high) / 2, gains, strict=True)
    ]


def _tidy(value: float, among: np.ndarray) -> float:
    """Zero, where rounding has left little else."""
    return 0.0 if abs(value) < 1e-12 * float(np.ptp(among)) else float(value)


def _region(subject: Subject, x: Span, y: Span, resolution: int) -> Finding:
    xs, ys = (np.linspace(span.low, span.high, resolution) for span in (x, y))
    region: StabilityRegion = stability_region(subject.over(x.name, y.name), xs, ys)
    share = float(np.mean(region.stable))
    grid_x, grid_y = np.meshgrid(xs, ys)
    figure = region.figure("region", xlabel=x.name, ylabel=y.name)
    tables = {
        "region.csv": (
            [x.name, y.name, "radius"],
            [grid_x.ravel(), grid_y.ravel(), region.radius.ravel()],
        ),
        "boundary.csv": ([x.name, y.name], [*region.boundary.T]),
    }
    over = [{"parameter": s.name, "low": s.low, "high": s.high} for s in (x, y)]
    summary = {"over": over, "values": resolution, "stable_share": share}
    what = f"Over {x.name} from {x.low:g} to {x.high:g} and {y.name} from {y.low:g} to {y.high:g}:"
    return Finding(summary, [what, f"  stable at {share:.1%} of the pairs"], [figure], tables)
