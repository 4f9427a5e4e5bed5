"""The folder of a saved model, `model.json` and `model.safetensors`.

This module needs msgspec, so `Identifier` imports it only to save and load.
"""

import contextlib
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import PyTree

from .._solve.delays import Delay, Hold, Lag, Learn, periods_to_learn, with_periods
from ..training import Series
from ..training._checkpoints import load_arrays, save_checkpoint
from ..training._errors import DamagedError
from ..training._files import check_regular, read_whole, write_json
from ..training._machine import describe as machine
from ._checks import IdentifyError, check_finite
from ._dataset import Dataset, prepare_dataset
from ._ensemble import build_field
from ._fields import Equation, HeldLinear, Polynomial
from ._fitted import FittedModel, prepare_setup
from ._frames import Columns
from ._linear import find_gap, restore_linear
from ._options import DEFAULTS, Options, check_options
from ._series import Trajectory
from ._simulation import count_intervals, stack_windows
from ._windows import Split, split_windows

JSON, ARRAYS = "model.json", "model.safetensors"
SERIES = ("ts", "ys", "us", "filled")

# Bounds on the work that a file may ask for. No fitted model exceeds them.
MOST_STEPS = 10**6
MOST_POWER = 100
MOST_BYTES = 2**30

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
Lags = Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)]
Power = Annotated[int, msgspec.Meta(ge=0, le=MOST_POWER)]


class SavedDelay(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A delay. `learn` has the start and bounds of a period to learn; delays with equal `period`
    share it."""

    kind: typing.Literal["Hold", "Lag"]
    learn: tuple[float, float, float] | None = None
    period: int | None = None
    tau: float | None = None
    lag: Lags | None = None
    times: list[float] | None = None


class SavedTerms(msgspec.Struct, forbid_unknown_fields=True):
    """The terms of a library, as in `Polynomial`."""

    powers: tuple[tuple[Power, ...], ...]
    used: tuple[tuple[bool, ...], ...]


class SavedLinear(msgspec.Struct, forbid_unknown_fields=True):
    """The lags of a linear equation in samples, and which states it has the logarithm of."""

    lag: tuple[Lags, ...]
    logarithmic: tuple[bool, ...]


class SavedHeader(msgspec.Struct):
    format: int


class SavedModel(msgspec.Struct, kw_only=True):
    """The content of `model.json`. `flat` says whether the states were given without an axis."""

    format: typing.Literal[1] = 1
    flat: bool = False
    arguments: dict[str, Any]
    periods: tuple[float, ...]
    window: Count
    steps: Count
    terms: SavedTerms | None
    linear: SavedLinear | None = None
    columns: tuple[str | None, tuple[str, ...], tuple[str, ...]] = (None, (), ())
    machine: Any = None


_TYPES = typing.get_type_hints(Options)
_NUMBERS = [name for name in DEFAULTS if name not in ("delays", "field", "solver")]
# `Options` as JSON: the numbers as they are, the rest by names.
SavedOptions: Any = msgspec.defstruct(
    "SavedOptions",
    [
        ("delays", list[SavedDelay]),
        ("field", str),
        ("solver", str),
        *((name, _TYPES[name], DEFAULTS[name]) for name in _NUMBERS),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
)


class LoadedArrays(NamedTuple):
    """The arrays of a saved model by their use; `members` by the path of each leaf."""

    series: list[Trajectory]
    members: dict[str, np.ndarray]
    losses: dict[str, Series]
    error: np.ndarray


# --- writing --------------------------------------------------------------------------------------


def write_folder(
    folder: Path, options: Options, model: FittedModel, window: int, flat: bool, results: Any
) -> None:
    """Writes a model. `results` has the losses and the held-out error."""
    name = type(options.solver).__name__
    if not eqx.tree_equal(getattr(diffrax, name, lambda: None)(), options.solver):
        raise IdentifyError(
            f"The solver {options.solver!r} is saved by its name alone, and {name}() of diffrax is "
            "another: fit with one of diffrax's as it is."
        )
    series = [{name: getattr(t, name) for name in SERIES} for t in model.dataset.series]
    arrays = {"members": model.members, "series": series} | results
    as_numpy = lambda x: np.asarray(x) if eqx.is_array_like(x) else x
    save_checkpoint(folder / ARRAYS, jax.tree.map(as_numpy, arrays), {"format": "1"})
    field = model.field
    assert model.setup.steps is not None  # Predictions alone are solved without.
    saved = SavedModel(
        flat=flat,
        arguments=msgspec.to_builtins(_to_saved_options(options)),
        periods=model.setup.periods,
        window=window,
        steps=model.setup.steps,
        terms=SavedTerms(field.powers, field.used) if isinstance(field, Polynomial) else None,
        linear=SavedLinear(field.lag, field.logarithmic) if isinstance(field, HeldLinear) else None,
        columns=msgspec.to_builtins(model.dataset.series[0].columns),
        machine=machine(),
    )
    write_json(folder / JSON, msgspec.to_builtins(saved))


def _to_saved_options(options: Options) -> Any:
    plain = lambda x: x.item() if isinstance(x, np.generic) else x
    learned = periods_to_learn(options.delays)
    return SavedOptions(
        delays=[_to_saved_delay(d, learned) for d in options.delays],
        field="own" if callable(options.field) else options.field,
        solver=type(options.solver).__name__,
        **{name: plain(getattr(options, name)) for name in _NUMBERS},
    )


def _to_saved_delay(delay: Delay, learned: Sequence[Learn]) -> SavedDelay:
    saved = SavedDelay(type(delay).__name__)  # pyright: ignore[reportArgumentType]
    if isinstance(delay.tau, Learn):
        saved.learn = (delay.tau.start, delay.tau.low, delay.tau.high)
        saved.period = learned.index(delay.tau)
    elif delay.tau is not None:
        saved.tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
    if isinstance(delay, Hold):
        saved.lag = delay.lag
        saved.times = None if delay.times is None else np.asarray(delay.times).tolist()
    return saved


# --- reading --------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Turns errors from wrong values in a file into an `IdentifyError`."""
    try:
        yield
    except (
        *(KeyError, TypeError, ValueError, IndexError, AttributeError, msgspec.ValidationError),
        *(OverflowError, RecursionError, MemoryError),
    ) as error:
        raise IdentifyError(
            f"{folder} does not hold what Identifier.save wrote ({type(error).__name__}: "
            f"{error}). Fit and save again."
        ) from None


def restore_model(
    options: Options, saved: SavedModel, arrays: LoadedArrays
) -> tuple[FittedModel, Split]:
    """Rebuilds a fitted model and the split of its series, and evaluates it once."""
    check_options(options)
    dataset = prepare_dataset(arrays.series, options.delays, options.field, options.degree)
    delays = with_periods(options.delays, saved.periods)
    _check_intervals(dataset, delays)
    split = split_windows(dataset.shifted, saved.window, delays, options.validation)
    if saved.linear is not None:
        model = _restore_linear(options, dataset, saved.linear, arrays)
        last = stack_windows(dataset.shifted, split.held_out[-1:], model.delays)
        check_finite(model.measure_error(last))
        return model, split
    windows = stack_windows(dataset.shifted, [*split.learning, *split.held_out], delays)
    setup = prepare_setup(dataset, options, saved.periods, [windows])
    if options.field == "mlp" and options.depth >= len(arrays.members):
        raise ValueError(f"depth is {options.depth}, with {len(arrays.members)} arrays")
    # Shapes only, because an array of the size that the file claims may not fit into memory.
    like = eqx.filter_eval_shape(lambda: _empty_member(options, dataset, saved))
    members = _fill_members(like, arrays.members)
    setup = setup._replace(steps=saved.steps)
    model = FittedModel.of_members(dataset, setup, members, options.steps is not None)
    last = stack_windows(dataset.shifted, split.held_out[-1:], delays)
    check_finite(model.measure_error(last))
    return model, split


def _restore_linear(
    options: Options, dataset: Dataset, saved: SavedLinear, arrays: LoadedArrays
) -> FittedModel:
    states, longest = len(saved.logarithmic), min(len(t.ts) for t in dataset.shifted)
    if states != dataset.states or [*saved.lag] != sorted({0, *saved.lag}):
        raise ValueError(f"linear = {saved!r:.60}")
    if saved.lag[-1] > longest:
        raise ValueError(f"a lag of {saved.lag[-1]} samples, with {longest} samples")
    gap = find_gap(dataset.shifted)

    def make_empty() -> Equation:
        lags, inputs = jnp.zeros((len(saved.lag), states)), jnp.zeros((dataset.inputs, states))
        field = HeldLinear(jnp.zeros(states), lags, inputs, gap, saved.lag, saved.logarithmic)
        return Equation(field, jnp.zeros(0))

    members = _fill_members(eqx.filter_eval_shape(make_empty), arrays.members)
    return restore_linear(dataset, options, members)


def _empty_member(options: Options, dataset: Dataset, saved: SavedModel) -> Equation:
    """A member of the right structure, to be filled with arrays."""
    if saved.terms is None:
        field = build_field(options, dataset, jax.random.key(0))
    else:
        variables = dataset.states * (1 + len(options.delays)) + dataset.inputs
        field = _empty_polynomial(saved.terms, dataset.states, variables)
    return Equation(field, jnp.zeros(len(saved.periods)))


def read_folder(folder: Path) -> tuple[SavedModel, LoadedArrays]:
    """Reads a model and checks the types of all values. Sizes are checked as they are used."""
    missing = [name for name in (JSON, ARRAYS) if not (folder / name).is_file()]
    if missing:
        raise IdentifyError(
            f"{folder} holds no {missing[0]}: give a folder that Identifier.save or `lagrax fit` "
            "wrote."
        )
    try:
        saved = _read_model(folder / JSON)
        if (size := (folder / ARRAYS).stat().st_size) > MOST_BYTES:
            raise DamagedError(f"its arrays take {size:,} bytes; expected at most {MOST_BYTES:,}")
        arrays, _ = load_arrays(folder / ARRAYS)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, ValueError, OSError, RecursionError, DamagedError) as error:
        raise IdentifyError(f"The model in {folder} is damaged: {error}.") from None
    columns = Columns(*saved.columns)
    return saved, LoadedArrays(
        [Trajectory(**part, columns=columns) for part in _read_series(arrays)],
        _take_under(arrays, "['members']"),
        _read_losses(arrays),
        arrays["['error']"],
    )


def _read_model(path: Path) -> SavedModel:
    check_regular(path)
    text = read_whole(path).decode()
    try:
        header = msgspec.json.decode(text, type=SavedHeader)
    except msgspec.ValidationError:
        header = None
    if header is None or header.format != 1:
        raise IdentifyError(f"{path} is not of a format that this lagrax reads.")
    return msgspec.json.decode(text, type=SavedModel)


def _take_under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def _read_series(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    count = len({k.split("]")[1] for k in arrays if k.startswith("['series']")})
    return [{name: arrays[f"['series'][{i}]['{name}']"] for name in SERIES} for i in range(count)]


def _read_losses(arrays: dict[str, np.ndarray]) -> dict[str, Series]:
    names = dict.fromkeys(k.split("'")[3] for k in arrays if k.startswith("['losses']"))
    return {
        name: Series(*(arrays[f"['losses']['{name}']['{part}']"] for part in Series._fields))
        for name in names
    }


def read_options(saved: SavedModel, field: Callable | None, folder: Path) -> dict[str, Any]:
    """The arguments of `Identifier`, with the user's own `field` if the model has one."""
    options = msgspec.convert(saved.arguments, SavedOptions)
    if options.field != "own" and field is not None:
        raise IdentifyError(
            f"The model in {folder} was fitted with field={options.field!r:.40} and none of "
            "its own: leave `field` out."
        )
    if options.field == "own" and field is None:
        raise IdentifyError(
            f"The model in {folder} was fitted with a field of its own: give it again, "
            "load(folder, field=...)."
        )
    solver = getattr(diffrax, options.solver, None)
    if not (isinstance(solver, type) and issubclass(solver, diffrax.AbstractSolver)):
        raise IdentifyError(f"{folder} names a solver that diffrax lacks, {options.solver!r}.")
    return msgspec.structs.asdict(options) | {
        "delays": _read_delays(options.delays),
        "field": options.field if field is None else field,
        "solver": solver(),
    }


def _read_delays(saved: Sequence[SavedDelay]) -> list[Delay]:
    learned: dict[int | None, Learn] = {}

    def read(delay: SavedDelay) -> Delay:
        tau: Any = delay.tau
        if delay.learn is not None:
            tau = learned.setdefault(delay.period, Learn(*delay.learn))
        if delay.kind == "Lag":
            return Lag(tau)
        return Hold(tau, lag=delay.lag or 0, times=delay.times)

    return [read(delay) for delay in saved]


def _check_intervals(dataset: Dataset, delays: Sequence[Delay]) -> None:
    """Raises if the delays of a file make more intervals than any use needs."""
    spans = [(float(t.ts[0]), float(t.ts[-1])) for t in dataset.shifted]
    intervals = count_intervals(delays, spans, True) or 0
    if intervals > MOST_STEPS:
        raise ValueError(f"intervals = {intervals!r:.40}")


def _empty_polynomial(terms: SavedTerms, states: int, variables: int) -> Polynomial:
    """A library with these terms and coefficients zero."""
    for row in terms.powers:
        if len(row) != variables:
            raise ValueError(f"a term has the powers {row!r:.40}")
    if [len(row) for row in terms.used] != [states] * len(terms.powers):
        raise ValueError(
            f"{len(terms.powers)} terms of {states} equations have used = {terms.used!r:.40}"
        )
    return Polynomial(jnp.zeros((len(terms.powers), states)), terms.used, terms.powers)


def _fill_members(like: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """Replaces the shapes of one member by the arrays of all members, stacked."""
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    dynamic, static = eqx.partition(like, is_shape)
    named, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    leaves = []
    for path, leaf in named:
        array = arrays[jax.tree_util.keystr(path)]
        if array.shape[1:] != leaf.shape:
            raise ValueError(f"{jax.tree_util.keystr(path)} has shape {array.shape[1:]}")
        leaves.append(jnp.asarray(array, leaf.dtype))
    return eqx.combine(jax.tree.unflatten(structure, leaves), static)
