"""Sunspots, 1700 to 2008: an equation with holds, an AR model and a neural ODE, out of sample.

The yearly number of sunspots oscillates with a period of about eleven years. Each model learns once
from the years up to 1948. Every year from 1949 to 2008 is then forecast from 1, 2, ..., 11 years
before it. The models get the measurements up to that year and are not fitted again.

- equation: x' = f(x(t), x(⌊t⌋), x(⌊t⌋ − 1), ...) with a small network f and x the square root of
  the number, learned by `lagrax.Identifier`. The holds have a period of one year, the sampling
  period.
- AR: a linear recursion on the same x, by statsmodels, of the order with the least AIC.
- NODE: the equation without its holds. A single state that depends only on its present rises or
  falls for ever, so this model cannot have a cycle. It shows how much the past contributes.
- persistence: the last value. mean: the mean of all years up to 1948.

No choice depends on the years after 1948. The number of holds is chosen by a rehearsal: learned
from the years to 1888, judged on 1889 to 1948. These were tried by hand in that rehearsal and are
not repeated here:

- AR on the numbers themselves (about as good), and its order by BIC (far too short);
- networks of 8, 16, and twice 32 units, which hardly differ (we use 16);
- learning rates of 0.01 (held-out windows are best at the first evaluation) and 0.002 (no better,
  slow);
- `field="library"`, which is hardly better than persistence with two holds. If samples lie only on
  the knots, the straight line between two of them has x' = 2 (x(t) − x(⌊t⌋)) on average for any
  data, and the regression finds this. Libraries and `select_delays` therefore require several
  samples between knots and refuse this series.

Length, batches and learning rate of the training were then set by the available time. By then one
short run had shown errors on the test years, of the AR model and of barely trained networks.

Both learned models are means over several starts of the network. The table also shows the range of
the single ones. `--write` writes the results of the full run to sunspots.md.

Data: yearly sunspots of the National Geophysical Data Center (NOAA), in the public domain, from
`statsmodels.datasets.sunspots`; statsmodels is under the BSD 3-Clause licence.

    python examples/sunspots.py            a few minutes; writes sunspots.png
    python examples/sunspots.py --quick    half a minute; the networks learn too little
    python examples/sunspots.py --out PATH
    python examples/sunspots.py --write    writes sunspots.md and sunspots.png beside this script
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import lagrax
from lagrax.plotting import Figure, Line, Panel, Points, draw

HORIZONS = np.arange(1, 12)
AHEAD = len(HORIZONS)
LEARN_TO, TEST_TO = 1948, 2008
REHEARSAL_TO = 1888
LONGEST_ORDER = 20
# Close to minima, where a forecast has a whole cycle before it.
SHOWN = (1953, 1964, 1975, 1986, 1997)


class Effort(NamedTuple):
    candidates: tuple[int, ...]  # numbers of holds
    seeds: int
    iterations: int
    batch_size: int


FULL = Effort(candidates=(3, 6, 9, 12), seeds=3, iterations=600, batch_size=32)
QUICK = Effort(candidates=(3,), seeds=1, iterations=20, batch_size=8)


class Forecasts(NamedTuple):
    """Forecasts, one row an origin, one column a year ahead; `single` are those of each start."""

    name: str
    forecasts: np.ndarray
    single: list[np.ndarray]


class Series(NamedTuple):
    years: np.ndarray
    numbers: np.ndarray

    def until(self, year: int) -> "Series":
        kept = self.years <= year
        return Series(self.years[kept], self.numbers[kept])

    def at(self, years: np.ndarray) -> np.ndarray:
        return self.numbers[np.searchsorted(self.years, years)]


def load() -> Series:
    from statsmodels.datasets import sunspots

    table = sunspots.load_pandas().data
    return Series(table["YEAR"].to_numpy(float), table["SUNACTIVITY"].to_numpy(float))


def numbers_of(roots: np.ndarray) -> np.ndarray:
    return np.maximum(roots, 0.0) ** 2


def origins_for(first: int, last: int) -> np.ndarray:
    """Every year from which one of `first` to `last` is forecast."""
    return np.arange(first - AHEAD, last)


# --- models ---------------------------------------------------------------------------------------


def learn(series: Series, holds: int, effort: Effort, seed: int) -> lagrax.Identifier:
    model = lagrax.Identifier(
        delays=lagrax.holds(1.0, holds) if holds else (),
        width=16,
        depth=1,
        window=AHEAD,
        steps=1 if holds else None,
        iterations=effort.iterations,
        batch_size=effort.batch_size,
        learning_rate=4e-3,
        patience=100,
        seed=seed,
        progress=False,
    )
    return model.fit(series.years, np.sqrt(series.numbers))


def follow(model: lagrax.Identifier, series: Series, origins: np.ndarray) -> np.ndarray:
    """The learned equation from each origin on, with the measurements before it as its past. All
    at once, since the equation does not know the year: each starts at 0."""
    back = np.arange(-max(1, len(model.delays_)), 1)
    pasts = np.sqrt(series.at(origins[:, None] + back))
    equation = model.equation_ if model.delays_ else without_past(model.equation_)

    def one(past):
        measured = lambda t: jnp.interp(t, back, past)[None]
        return lagrax.solve(
            equation,
            0.0,
            float(AHEAD),
            measured if model.delays_ else past[-1:],
            delays=model.delays_,
            steps=model.steps_ if model.delays_ else 4 * AHEAD,
            saveat=diffrax.SaveAt(ts=HORIZONS.astype(float)),
        ).ys[:, 0]

    return numbers_of(np.asarray(jax.jit(jax.vmap(one))(pasts)))


def without_past(equation):
    return lambda t, y, args: equation(t, y, args, history=())


def learn_forecasts(
    name: str, series: Series, to: int, origins, holds: int, effort: Effort
) -> Forecasts:
    single = []
    for seed in range(effort.seeds):
        say(f"{name}: start {seed + 1} of {effort.seeds}")
        model = learn(series.until(to), holds, effort, seed)
        single.append(follow(model, series, origins))
    return Forecasts(name, np.mean(single, axis=0), single)


def autoregression(series: Series, to: int, origins: np.ndarray) -> Forecasts:
    from statsmodels.tsa.ar_model import AutoReg, ar_select_order

    roots = np.sqrt(series.until(to).numbers)
    order = max(ar_select_order(roots, LONGEST_ORDER, ic="aic").ar_lags)
    fitted = AutoReg(roots, order).fit()
    known = [np.sqrt(series.until(origin).numbers) for origin in origins]
    rows = [fitted.apply(roots).forecast(AHEAD) for roots in known]
    return Forecasts(f"AR({order})", numbers_of(np.array(rows)), [])


def baselines(series: Series, to: int, origins: np.ndarray) -> list[Forecasts]:
    shape = (len(origins), AHEAD)
    last = np.broadcast_to(series.at(origins)[:, None], shape)
    mean = np.full(shape, series.until(to).numbers.mean())
    return [Forecasts("persistence", last, []), Forecasts("mean", mean, [])]


# --- comparison -----------------------------------------------------------------------------------


def rmse(forecasts: np.ndarray, series: Series, origins: np.ndarray, first: int, last: int):
    """Over the same years, `first` to `last`, at each horizon."""
    targets = origins[:, None] + HORIZONS
    judged = (targets >= first) & (targets <= last)
    truth = series.at(np.clip(targets, series.years[0], series.years[-1]))
    square = np.where(judged, (forecasts - truth) ** 2, 0.0)
    return np.sqrt(square.sum(axis=0) / judged.sum(axis=0))


def rehearse(series: Series, effort: Effort) -> dict[int, float]:
    """The error of each number of holds, a mean over the horizons, on the years before the test."""
    series, first = series.until(LEARN_TO), REHEARSAL_TO + 1
    origins = origins_for(first, LEARN_TO)
    errors = {}
    for holds in effort.candidates:
        name = f"rehearsal with {holds} holds"
        one = learn_forecasts(name, series, REHEARSAL_TO, origins, holds, effort._replace(seeds=1))
        errors[holds] = float(rmse(one.forecasts, series, origins, first, LEARN_TO).mean())
    return errors


class Comparison(NamedTuple):
    series: Series
    origins: np.ndarray
    results: list[Forecasts]
    rehearsal: dict[int, float]
    holds: int

    def errors(self, forecasts: np.ndarray) -> np.ndarray:
        return rmse(forecasts, self.series, self.origins, LEARN_TO + 1, TEST_TO)


def compare(effort: Effort) -> Comparison:
    series = load()
    rehearsal = rehearse(series, effort) if len(effort.candidates) > 1 else {}
    holds = min(rehearsal, key=rehearsal.__getitem__) if rehearsal else effort.candidates[0]
    origins = origins_for(LEARN_TO + 1, TEST_TO)
    results = [
        learn_forecasts("equation", series, LEARN_TO, origins, holds, effort),
        autoregression(series, LEARN_TO, origins),
        learn_forecasts("NODE", series, LEARN_TO, origins, 0, effort),
        *baselines(series, LEARN_TO, origins),
    ]
    return Comparison(series, origins, results, rehearsal, holds)


# --- what is shown --------------------------------------------------------------------------------


def table(found: Comparison) -> list[list[str]]:
    rows = [["model", *map(str, HORIZONS), "mean"]]
    for result in found.results:
        errors = found.errors(result.forecasts)
        rows.append([result.name, *(f"{e:.1f}" for e in errors), f"{errors.mean():.1f}"])
        if len(result.single) > 1:
            each = np.array([found.errors(one) for one in result.single])
            each = np.concatenate([each, each.mean(axis=1, keepdims=True)], axis=1)
            ends = zip(each.min(axis=0), each.max(axis=0), strict=True)
            rows.append([f"{result.name}, single", *(f"{a:.1f}–{b:.1f}" for a, b in ends)])
    return rows


def verdict(found: Comparison) -> str:
    errors = {r.name: found.errors(r.forecasts) for r in found.results}
    ranking = sorted(errors, key=lambda name: errors[name].mean())
    equation, ar = found.results[0].name, found.results[1].name
    better = int(np.sum(errors[equation] < errors[ar]))
    gain = 100 * (1 - errors[equation].mean() / errors[ar].mean())
    return (
        f"Over all horizons {ranking[0]} has the least error, before {', '.join(ranking[1:])}. "
        f"The equation is better than {ar} at {better} of {AHEAD} horizons; its mean error is "
        f"{abs(gain):.0f} % {'smaller' if gain > 0 else 'larger'}."
    )


def align_columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = lambda row: "  ".join(
        f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(row)
    )
    return "\n".join(line(row).rstrip() for row in rows)


def choice(found: Comparison) -> str:
    if not found.rehearsal:
        return f"The equation has {found.holds} holds, without a rehearsal."
    errors = ", ".join(f"{n} holds {e:.1f}" for n, e in found.rehearsal.items())
    return f"Errors in the rehearsal, one start each: {errors}; so the equation has {found.holds}."


INTRODUCTION = f"""\
The yearly number of sunspots oscillates with a period of about eleven years. Five models learn once
from the years up to {LEARN_TO}. Each year from {LEARN_TO + 1} to {TEST_TO} is then forecast
from 1, 2, ..., {AHEAD} years before it:

- *equation*: x′ = f(x(t), x(⌊t⌋), x(⌊t⌋ − 1), ...) with a small network f, a hold for each of
  the last years, and x the square root of the number, learned by `lagrax.Identifier`;
- *AR*: a linear recursion on the same x;
- *NODE*: the equation without its holds, which shows how much the past contributes;
- *persistence*: the last value; *mean*: the mean of all years up to {LEARN_TO}."""


def page(found: Comparison) -> str:
    head, *rows = [f"| {' | '.join(row)} |" for row in table(found)]
    rule = "|---|" + "---:|" * (AHEAD + 1)
    paragraphs = [
        "# Sunspots",
        INTRODUCTION,
        "![Forecasts, and errors by horizon](sunspots.png)",
        verdict(found),
        f"Root-mean-square error of forecasts of the years {LEARN_TO + 1} to {TEST_TO}, in sunspot "
        "numbers, by the number of years ahead:",
        "\n".join([head, rule, *rows]),
        f"The learned models are means over {len(found.results[0].single)} starts; “single” is the "
        "range of the errors of one start. The test years hold only five or six cycles, and errors "
        "of neighbouring years are correlated, so small differences mean little.",
        choice(found),
        "Written by `python examples/sunspots.py --write`. The script lists what was tried.",
    ]
    return "\n\n".join(paragraphs) + "\n"


COLOURS = ("blue", "orange", "green", "amber", "grey")


def picture(found: Comparison) -> Figure:
    equation, ar = found.results[:2]
    shown = found.series.years >= SHOWN[0] - 15
    marks: list[Line | Points] = [
        Line(found.series.years[shown], found.series.numbers[shown], "measured", "grey", width=1.0)
    ]
    for result, colour in ((ar, COLOURS[1]), (equation, COLOURS[0])):
        for start in SHOWN:
            row = int(np.flatnonzero(found.origins == start)[0])
            x = np.concatenate([[start], start + HORIZONS])
            y = np.concatenate([found.series.at(x[:1]), result.forecasts[row]])
            marks.append(Line(x, y, result.name, colour))
    starts = np.array(SHOWN)
    marks.append(Points(starts, found.series.at(starts), "a forecast starts", "purple", 6.0))
    return Figure(
        "sunspots",
        "Forecasts of the yearly number of sunspots, and their errors by horizon.",
        [
            Panel(marks, "forecasts of the next eleven years", "year", "sunspot number"),
            Panel(
                [error_line(found, r, c) for r, c in zip(found.results, COLOURS, strict=True)],
                f"forecasts of {LEARN_TO + 1} to {TEST_TO}",
                "years ahead",
                "root-mean-square error",
            ),
        ],
        columns=2,
    )


def error_line(found: Comparison, result: Forecasts, colour: str) -> Line:
    errors = found.errors(result.forecasts)
    dashed = not result.single and not result.name.startswith("AR")
    if len(result.single) < 2:
        return Line(HORIZONS, errors, result.name, colour, dashed)
    each = np.array([found.errors(one) for one in result.single])
    low, high = each.min(axis=0), each.max(axis=0)
    return Line(HORIZONS, errors, result.name, colour, dashed, low=low, high=high)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short training of each network")
    parser.add_argument("--out", metavar="PATH", type=Path, help="where the picture goes")
    parser.add_argument("--write", action="store_true", help="write sunspots.md and its picture")
    options = parser.parse_args()
    if options.write and (options.quick or options.out):
        parser.error("--write is for the full run, beside this script: without --quick and --out")
    beside = Path(__file__).resolve().with_suffix(".png")
    path = beside if options.write else options.out or Path("sunspots.png")
    try:
        found = compare(QUICK if options.quick else FULL)
        draw(picture(found), path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("statsmodels", "matplotlib", "optax"):
            raise
        say('This example needs more: pip install "lagrax[examples]"')
        return 1
    print(f"Root-mean-square error of forecasts of {LEARN_TO + 1} to {TEST_TO}, by years ahead:\n")
    print(align_columns(table(found)), verdict(found), choice(found), sep="\n\n")
    print(f"\nThe picture lies in {path.resolve()}")
    if options.write:
        beside.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
