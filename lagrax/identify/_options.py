"""Declares, describes and checks the arguments of `Identifier`, once."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import diffrax

from .._solve.arguments import MOST_COUNT, check_whole, is_number, is_whole
from .._solve.delays import MOST_DELAYS, TOO_MANY, Delay, has_one_period
from .._solve.method_checks import check_solver
from ._regression import MOST_DEGREE, TOO_HIGH

LOSSES = ("squares", "huber")
MOST_HIDDEN = 100
FIELDS = ("mlp", "library", "linear")

# Counts far above any use, and the reason for each bound.
MOST = {"width": 10_000, "depth": 100, "degree": MOST_DEGREE, "ensemble": 1000, "steps": 10**6}
WHY = {
    "width": "The number of weights of a layer is its square.",
    "depth": "Each layer is compiled separately.",
    "degree": TOO_HIGH,
    "ensemble": "Each model takes as long to train as a single one; 5 to 30 make a band.",
    "steps": "Shorter steps are below the resolution of single precision.",
}
# Of all networks together. With gradients and Adam's averages they take 16 GB.
MOST_WEIGHTS = 10**9


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Options:
    """The arguments of `Identifier`, with their defaults. `Identifier` documents them."""

    delays: Sequence[Delay] = ()
    field: str | Callable = "mlp"
    _: dataclasses.KW_ONLY
    width: int = 32
    depth: int = 2
    degree: int = 2
    season: float | None = None
    loss: str = "squares"
    fit_starts: bool = False
    hidden: int = 0
    window: int | None = None
    ensemble: int = 1
    validation: float = 0.2
    iterations: int = 2000
    learning_rate: float = 1e-2
    batch_size: int = 64
    patience: int = 500
    steps: int | None = None
    solver: diffrax.AbstractSolver = diffrax.Tsit5()  # noqa: RUF009
    seed: int = 0
    progress: bool = True


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Options)}


def check_options(options: Options) -> None:
    """Raises for the first invalid argument. `Identifier` stores arguments unchecked until `fit`,
    as scikit-learn requires."""
    _check_field(options.field)
    _check_delays(options.delays)
    _check_linear(options)
    _check_loss(options)
    _check_hidden(options)
    _check_counts(options)
    if not is_number(options.learning_rate) or options.learning_rate <= 0:
        raise ValueError(
            f"Identifier got learning_rate={options.learning_rate!r}; expected a positive number."
        )
    check_solver(options.solver)
    if not is_number(options.validation) or not 0 < options.validation < 1:
        raise ValueError(
            f"Identifier got validation={options.validation!r}; expected a share between 0 and 1."
        )
    if not is_whole(options.seed) or not 0 <= options.seed <= 2**31 - options.ensemble:
        raise ValueError(
            f"Identifier got seed={options.seed!r}; expected a whole number >= 0, below 2^31."
        )


def _check_field(field: object) -> None:
    if isinstance(field, str) and field not in FIELDS:
        raise ValueError(
            f"Identifier got field={field!r}; expected 'mlp', 'library', 'linear', or your own "
            "function, f(t, y, args, *, history)."
        )
    if not isinstance(field, str) and not callable(field):
        raise TypeError(f"Identifier got field={field!r}, which cannot be called.")


def _check_delays(delays: object) -> None:
    if not isinstance(delays, Sequence) or not all(has_one_period(d) for d in delays):
        raise TypeError(
            f"Identifier got delays={delays!r}; expected a list of Hold and Lag, each with one "
            "period."
        )
    check_whole("Identifier", "the number of delays", len(delays), 0, MOST_DELAYS, TOO_MANY)


def _check_loss(options: Options) -> None:
    if options.loss not in LOSSES:
        raise ValueError(f"Identifier got loss={options.loss!r}; expected 'squares' or 'huber'.")
    if not isinstance(options.fit_starts, bool):
        raise TypeError(f"Identifier got fit_starts={options.fit_starts!r}; expected a bool.")
    if options.fit_starts and options.field == "mlp":
        raise ValueError(
            "Identifier got fit_starts=True and field='mlp'; starts are fitted by least squares, "
            "together with a library or with your own field of few parameters."
        )
    if options.field == "linear" and (options.fit_starts or options.loss != "squares"):
        raise ValueError(
            "Identifier got field='linear', which is learned by least squares over one step: leave "
            "`loss` and `fit_starts` out."
        )


def _check_hidden(options: Options) -> None:
    check_whole("Identifier", "hidden", options.hidden, 0, MOST_HIDDEN)
    if options.hidden and (isinstance(options.field, str) or len(options.delays)):
        raise ValueError(
            f"Identifier got hidden={options.hidden!r} with {len(options.delays)} delays and "
            f"field={options.field!r:.40}; expected your own field without delays, whose state "
            "ends with the hidden ones."
        )
    if options.hidden and options.ensemble != 1:
        raise ValueError(
            f"Identifier got hidden={options.hidden!r} and ensemble={options.ensemble}; hidden "
            "states are estimated for one model: leave `ensemble` out."
        )


def _check_linear(options: Options) -> None:
    season = options.season
    if season is not None and (not is_number(season) or not 0 < season < math.inf):
        raise ValueError(f"Identifier got season={season!r}; expected a positive number, or None.")
    if options.field != "linear":
        if season is not None:
            raise ValueError(
                f"Identifier got season={season!r} and field={options.field!r:.40}; only a linear "
                "equation has a season. Give cosines and sines of time as `inputs`."
            )
        return
    if len(options.delays):
        raise ValueError(
            f"Identifier got {len(options.delays)} delays and field='linear', which holds as many "
            "samples as predict best: leave `delays` out, or use field='library'."
        )
    if options.ensemble != 1:
        raise ValueError(
            f"Identifier got ensemble={options.ensemble} and field='linear', which is learned "
            "once: leave `ensemble` out."
        )


def _check_counts(options: Options) -> None:
    counts = ("width", "depth", "degree", "ensemble", "iterations", "batch_size", "patience")
    optional = [name for name in ("window", "steps") if getattr(options, name) is not None]
    for name in (*counts, *optional):
        most, why = MOST.get(name, MOST_COUNT), WHY.get(name, "")
        check_whole("Identifier", name, getattr(options, name), 1, most, why)
    weights = options.ensemble * options.depth * options.width**2
    if options.field == "mlp" and weights > MOST_WEIGHTS:
        raise ValueError(
            f"Identifier got width={options.width}, depth={options.depth} and "
            f"ensemble={options.ensemble}, which make {weights:.3g} weights; expected at most "
            f"{MOST_WEIGHTS:.0e}, for which training takes 16 GB. Lower one of them."
        )
