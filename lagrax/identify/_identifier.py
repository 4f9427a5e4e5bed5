"""`Identifier`: an equation learned from series, and what can be done with it."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._solve.arguments import check_whole
from .._solve.delays import Delay, describe, periods_to_learn, with_periods
from ..training import Series
from ..training._checkpoints import save_checkpoint
from ..training._files import checked_path, write_json
from ._checks import IdentifyError, check_arguments, check_held_out
from ._equations import Equation, Past, Polynomial, Row, Setting, make_rows, names_of, past_of
from ._folder import (
    arguments_from,
    check_effort,
    count_of_series,
    described,
    empty_polynomial,
    filled_from,
    losses_of,
    read_folder,
    under,
)
from ._learned import Learned, made_setting
from ._learning import Errors
from ._measured import Measured, measured
from ._members import from_library, network, polished, trained
from ._regression import check_terms
from ._selection import check_sampling, find_periods, make_task
from ._series import Trajectory, as_trajectories, is_several
from ._windows import default_window, divided, last_known

# (times, states), or (times,) where a series or a start was given without an axis of states.
States = Float[np.ndarray, "times ..."]


class Forecast(NamedTuple):
    """What `Identifier.forecast` returns.

    - `ts`: the times.
    - `mean`: of the members of an ensemble, one row a time; shaped as the series that it continues.
    - `low`, `high`: two standard deviations on either side, made up of that between the members and
      of that of the errors on held-out windows.
    """

    ts: Float[np.ndarray, " times"]
    mean: States
    low: States
    high: States


class Identifier:
    """Learns the equation behind measured series: z′ = f(z(t), its past, inputs).

    It follows scikit-learn's conventions: arguments are kept as they are, `fit` returns the model
    itself, and what was learned ends in an underscore.

    **Arguments:**

    - `delays`: what the equation looks back at, as in `lagrax.solve`; () is an ordinary one. A
      period may be `Learn(...)`. `lagrax.select_delays` helps to choose.
    - `field`: `"mlp"`, a network; `"library"`, a sum of few monomials, chosen from all of them up
      to `degree`, to be read as an equation; or a field of your own, `f(t, y, args, *, history)`
      with an `eqx.Module`'s arrays as its parameters, where `args` are the inputs at t.
    - `width`, `depth`: of the network's hidden layers.
    - `degree`: of the library's monomials.
    - `window`: how many samples are predicted from one measured start in training. Short ones make
      long and chaotic series easy; long ones average noise. By default 16, or more where it takes
      more to see twice as far as the equation looks back, and at most a quarter of the shortest
      trajectory.
    - `ensemble`: how many models are trained from different starts, for a band around forecasts.
    - `validation`: the share of the series, at its end, that is held out to stop early by. Many
      short trajectories have their last ones held out instead.
    - `iterations`, `learning_rate`, `batch_size`: of Adam, whose rate decays to a hundredth. It
      stops early once held-out windows have not improved for `patience` iterations.
    - `steps`: of the solver in each interval between knots, by default one for every two samples.
    - `solver`: of diffrax, with equal steps.
    - `seed`: the same one gives the same model.
    - `progress`: whether to show that of the training on stderr.

    **Learned:** `equation_` (the field; the first of an ensemble), `delays_` and `periods_` (the
    learned ones as numbers), `losses_` (training and held-out, over the iterations), `error_` (the
    held-out error of each state, in its own unit), `scans_` (of the periods), `steps_` and
    `window_` (as they were chosen), `series_` (what it was fitted to).
    """

    def __init__(
        self,
        delays: Sequence[Delay] = (),
        field: str | Callable = "mlp",
        *,
        width: int = 32,
        depth: int = 2,
        degree: int = 2,
        window: int | None = None,
        ensemble: int = 1,
        validation: float = 0.2,
        iterations: int = 2000,
        learning_rate: float = 1e-2,
        batch_size: int = 64,
        patience: int = 500,
        steps: int | None = None,
        solver: diffrax.AbstractSolver = diffrax.Tsit5(),
        seed: int = 0,
        progress: bool = True,
    ):
        self.delays = delays
        self.field = field
        self.width = width
        self.depth = depth
        self.degree = degree
        self.window = window
        self.ensemble = ensemble
        self.validation = validation
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.patience = patience
        self.steps = steps
        self.solver = solver
        self.seed = seed
        self.progress = progress

    # --- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments, by name."""
        del deep
        return {name: getattr(self, name) for name in _names()}

    def set_params(self, **params: Any) -> "Identifier":
        """Changes arguments; fit again for them to count."""
        for name, value in params.items():
            if name not in _names():
                raise ValueError(f"Identifier has no argument {name!r}: {', '.join(_names())}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = {
            name: value
            for name, value in self.get_params().items()
            if name not in ("delays", "solver")
            and value != inspect.signature(type(self)).parameters[name].default
        }
        more = "".join(f", {name}={value!r}" for name, value in changed.items())
        return f"Identifier([{describe(list(self.delays)).replace('none', '')}]{more})"

    # --- learning

    def fit(self, ts: Any, ys: Any, inputs: Any = None) -> "Identifier":
        """Learns from one trajectory, or from a list of them.

        - `ts`: the times, (n,), increasing; they may be irregular, and different in each
          trajectory.
        - `ys`: the states at these, (n,) or (n, states). NaN is a missing value.
        - `inputs`: what acted from each time to the next, (n,) or (n, inputs), all known.
        """
        check_arguments(self)
        self.__dict__.pop("_learned", None)
        series = measured(as_trajectories(ts, ys, inputs), self.delays, self.field, self.degree)
        if self.field == "library":
            variables = series.states * (1 + len(self.delays)) + series.inputs
            check_terms(variables, self.degree)
        self._flat = _is_flat(ys[-1] if is_several(ys) else ys)
        found = self._scanned(series.shifted)
        window = self.window or default_window(series.shifted, found)
        learning, testing = divided(series.shifted, window, found, self.validation)
        rows, held = (make_rows(series.shifted, part, found) for part in (learning, testing))
        check_held_out(held)
        setting = self._setting(series, self._periods_in(found), [rows, held])
        loss = Errors(setting, jnp.asarray(series.scale, float))
        if self.field == "library":
            options = {"degree": self.degree, "ensemble": self.ensemble, "seed": self.seed}
            members = from_library(loss, series, learning, rows, found, **options)
            losses = {}
        else:
            members, losses = self._trained(loss, series, rows, held)
        learned = Learned.of(series, setting, members, self.steps is not None)
        self._keep(learned, window, losses, _finite(learned.error(held)))
        return self

    def _scanned(self, trajectories: list[Trajectory]) -> list[Delay]:
        """The delays, with the periods that a scan has found for those to be learned."""
        found, self.scans_ = list(self.delays), []
        if self.field == "library" or periods_to_learn(found):
            check_sampling(trajectories, found)
        if periods_to_learn(found):
            task = make_task(trajectories, [found], 2, min(self.window or 16, 16))
            found, self.scans_ = find_periods(task, found, progress=self.progress)
        return found

    def _periods_in(self, found: list[Delay]) -> tuple[float, ...]:
        pairs = [*zip(found, self.delays, strict=True)]
        return tuple(
            next(float(f.tau) for f, d in pairs if d.tau is learn)  # pyright: ignore
            for learn in periods_to_learn(self.delays)
        )

    def _setting(self, series: Measured, periods: tuple[float, ...], rows: list[Row]) -> Setting:
        return made_setting(series, self.delays, periods, rows, self.steps, self.solver)

    def _made_field(self, series: Measured, key: Array) -> Callable:
        if callable(self.field):
            return self.field
        return network(series, len(self.delays), width=self.width, depth=self.depth, key=key)

    def _trained(
        self, loss: Errors, series: Measured, rows: Row, held: Row
    ) -> tuple[PyTree, dict[str, Series]]:
        shifts = jnp.zeros(len(loss.setting.periods))
        members, losses = trained(
            loss,
            lambda key: Equation(self._made_field(series, key), shifts),
            rows,
            held,
            seeds=[self.seed + i for i in range(self.ensemble)],
            iterations=self.iterations,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            patience=self.patience,
            progress=self.progress,
        )
        if callable(self.field):
            members = polished(members, loss, rows, self.seed)
        return members, losses

    def _keep(
        self, learned: Learned, window: int, losses: dict[str, Series], error: np.ndarray
    ) -> None:
        self._learned = learned
        self.series_ = learned.measured.series
        self.n_features_in_ = learned.measured.states
        self.equation_ = learned.field
        self.delays_, self.periods_ = learned.delays, learned.periods
        self.steps_, self.window_ = learned.setting.steps, window
        self.losses_, self.error_ = losses, error

    # --- using

    def simulate(self, ts: Any, y0: Any, inputs: Any = None) -> States:
        """The learned equation at times `ts`, started at the first of them; the mean over an
        ensemble.

        `y0` is the state there, or a function of time, the past. A value stands for a constant
        past. `inputs` act from each time to the next, as in `fit`. The result has a row a time,
        each shaped as `y0`.
        """
        self._check_fitted()
        if callable(y0):
            origin = self._learned.measured.origin
            past = lambda t: jnp.atleast_1d(jnp.asarray(y0(t + origin), float))
            flat = jax.eval_shape(lambda t: jnp.asarray(y0(t)), 0.0).ndim == 0
        else:
            past, flat = _past(np.zeros(1), self._checked_state(y0)[None]), np.ndim(y0) == 0
        ts = np.asarray(ts, float)
        increasing = ts.ndim == 1 and len(ts) > 1 and np.all(np.diff(ts) > 0)
        if not increasing or not np.all(np.isfinite(ts)):
            raise ValueError(
                f"simulate got ts of shape {ts.shape}; expected increasing times, two at least and "
                "all of them finite."
            )
        us = jnp.asarray(self._checked_inputs(inputs, len(ts)), float)
        return _shaped(self._learned.simulated(ts, past, us).mean(axis=0), flat)

    def predict(
        self, ts: Any, ys: Any, inputs: Any = None, *, horizon: int | None = None
    ) -> States | list[States]:
        """What the learned equation says about measured series: it is started anew from the
        measurements every `horizon` samples (those of a training window if left out), so each
        sample is predicted from at most that far.

        The result is shaped as `ys`. Samples before the first whose past was measured for as long
        as the equation may look back (a whole period for a hold) are copied, and `score` leaves
        them out.
        """
        found = self._predictions(as_trajectories(ts, ys, inputs), horizon)
        if is_several(ys):
            return [_shaped(one, _is_flat(y)) for one, y in zip(found, ys, strict=True)]
        return _shaped(found[0], _is_flat(ys))

    def _predictions(self, trajectories: list[Trajectory], horizon: int | None) -> list[np.ndarray]:
        self._check_fitted()
        self._check_widths(trajectories[0])
        horizon = self.window_ if horizon is None else horizon
        check_whole("predict", "horizon", horizon, 1)
        return [self._learned.predicted(t, horizon) for t in trajectories]

    def score(
        self,
        ts: Any,
        ys: Any,
        inputs: Any = None,
        *,
        horizon: int | None = None,
        metric: str = "r2",
    ) -> float:
        """How good predictions over a horizon are: `metric="r2"` is the share of the variance that
        they explain (1 is perfect, 0 as good as the mean), `"nrmse"` the root mean square of their
        errors in standard deviations. The mean over the states; NaN where one does not vary."""
        if metric not in ("r2", "nrmse"):
            raise ValueError(f"score got metric={metric!r}; expected 'r2' or 'nrmse'.")
        trajectories = as_trajectories(ts, ys, inputs)
        predicted = self._predictions(trajectories, horizon)
        starts = [self._learned.first_start(t) + 1 for t in trajectories]
        compared = zip(trajectories, predicted, starts, strict=True)
        errors = np.concatenate([(p - t.ys)[s:] for t, p, s in compared])
        known = np.concatenate([t.ys[s:] for t, s in zip(trajectories, starts, strict=True)])
        # A prediction that ran away is infinitely wrong; a missing measurement says nothing.
        errors = np.where(np.isnan(known), np.nan, np.where(np.isnan(errors), np.inf, errors))
        variance = np.nanvar(known, axis=0)
        unit = np.where(variance > 0, variance, np.nan)
        ratio = np.nanmean(errors**2, axis=0) / unit
        return float(np.mean(1 - ratio) if metric == "r2" else np.mean(np.sqrt(ratio)))

    def forecast(self, ts: Any, inputs: Any = None) -> Forecast:
        """The last of the fitted trajectories continued to the times `ts`, all after its end.

        `inputs`, where the model has them, has one row more than `ts`: the first acts from the end
        of the series to the first of these times.
        """
        self._check_fitted()
        series = self.series_[-1]
        ts = np.atleast_1d(np.asarray(ts, float))
        later = ts.ndim == 1 and np.all(np.diff(ts, prepend=series.ts[-1]) > 0)
        if not later or not np.all(np.isfinite(ts)):
            raise ValueError(
                f"forecast got ts={ts}; expected increasing times after the end of the series, "
                f"{series.ts[-1]:g}."
            )
        # Where the last values are missing, from the last time at which all states were known.
        known = last_known(series)
        whole = np.concatenate([series.ts[known:], ts])
        rows = "one row for the end of the series and one for each time"
        us = self._checked_inputs(inputs, len(ts) + 1, rows)
        us = jnp.asarray(np.concatenate([series.us[known:-1], us]), float)
        seen = Trajectory(*(part[: known + 1] for part in self._learned.measured.shifted[-1]))
        past = _past(*past_of(seen, self.delays_))
        runs = self._learned.simulated(whole, past, us)[:, len(series.ts) - known :]
        mean, spread = runs.mean(axis=0), runs.std(axis=0)
        width = 2 * np.sqrt(spread**2 + self.error_**2)
        lines = (mean, mean - width, mean + width)
        return Forecast(ts, *(_shaped(line, self._flat) for line in lines))

    def equations(
        self, states: Sequence[str] | None = None, inputs: Sequence[str] | None = None
    ) -> list[str]:
        """The learned equation in words, one line a state. Only a library's can be read."""
        self._check_fitted()
        has = (self._learned.measured.states, self._learned.measured.inputs)
        states = list(states or _default_names("x", has[0]))
        inputs = list(inputs or _default_names("u", has[1]))
        if (len(states), len(inputs)) != has:
            raise ValueError(
                f"equations got {len(states)} names of states and {len(inputs)} of inputs; the "
                f"model has {has[0]} and {has[1]}."
            )
        names = names_of(self.delays_, states, inputs)
        if isinstance(self.equation_, Polynomial):
            return self.equation_.text(states, names)
        return [f"{state}′ = f({', '.join(names)})" for state in states]

    # --- keeping

    def save(self, folder: str | Path) -> None:
        """Writes the model to a folder: `model.json` and `model.safetensors`, no code. A field of
        your own has its arrays saved; give it to `load` again."""
        self._check_fitted()
        folder = checked_path("Identifier.save", folder)
        name = type(self.solver).__name__
        if not eqx.tree_equal(getattr(diffrax, name, lambda: None)(), self.solver):
            raise IdentifyError(
                f"The solver {self.solver!r} is kept by its name alone, and {name}() of diffrax is "
                "another: fit with one of diffrax's as it is."
            )
        arrays = {
            "members": self._learned.members,
            "series": [t._asdict() for t in self.series_],
            "losses": {k: v._asdict() for k, v in self.losses_.items()},
            "error": self.error_,
        }
        save_checkpoint(folder / "model.safetensors", _as_numpy(arrays), {"format": "1"})
        about = described(self.get_params(), self._learned, self.window_, self._flat)
        write_json(folder / "model.json", about)

    @classmethod
    def load(cls, folder: str | Path, *, field: Callable | None = None) -> "Identifier":
        """What `save` wrote. `field` is the field of your own that it was fitted with, if so."""
        folder = checked_path("Identifier.load", folder)
        about, arrays = read_folder(folder)
        try:
            model = cls(**arguments_from(about, field, folder))
            model._restore(about, arrays)
            return model
        except (
            *(KeyError, TypeError, ValueError, IndexError, AttributeError),
            *(OverflowError, RecursionError, MemoryError),
        ) as error:
            raise IdentifyError(
                f"{folder} does not hold what Identifier.save wrote ({type(error).__name__}: "
                f"{error}). Fit and save again."
            ) from None

    def _restore(self, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        check_arguments(self)
        parts = [under(arrays, f"['series'][{i}]") for i in range(count_of_series(arrays))]
        given = [Trajectory(*(p[f"['{name}']"] for name in Trajectory._fields)) for p in parts]
        series = measured(given, self.delays, self.field, self.degree)
        self._flat = series.states == 1 and bool(about.get("flat"))
        periods, window = tuple(about["periods"]), int(about["window"])
        found = with_periods(self.delays, periods)
        check_effort(series, found, window, about)
        learning, testing = divided(series.shifted, window, found, self.validation)
        rows = make_rows(series.shifted, learning + testing, found)
        setting = self._setting(series, periods, [rows])._replace(steps=int(about["steps"]))
        if self.field == "mlp" and self.depth >= len(arrays):
            raise ValueError(f"depth is {self.depth}, with {len(arrays)} arrays")
        # By its shapes alone: what a file says of them may not fit into memory.
        like = eqx.filter_eval_shape(lambda: self._empty(series, setting, about["terms"]))
        members = filled_from(like, under(arrays, "['members']"))
        learned = Learned.of(series, setting, members, self.steps is not None)
        _finite(learned.error(make_rows(series.shifted, testing[-1:], found)))
        self.scans_ = []
        self._keep(learned, window, losses_of(arrays), arrays["['error']"])

    def _empty(self, series: Measured, setting: Setting, terms: dict[str, Any] | None) -> Equation:
        """A member without its numbers."""
        if terms is None:
            field = self._made_field(series, jax.random.key(0))
        else:
            variables = series.states * (1 + len(self.delays)) + series.inputs
            field = empty_polynomial(terms, series.states, variables)
        return Equation(field, jnp.zeros(len(setting.periods)))

    # --- checks

    def _check_fitted(self) -> None:
        if not hasattr(self, "_learned"):
            raise IdentifyError("This Identifier has not been fitted: call fit(ts, ys) first.")

    def _check_widths(self, trajectory: Trajectory) -> None:
        got = (trajectory.ys.shape[1], trajectory.us.shape[1])
        expected = (self._learned.measured.states, self._learned.measured.inputs)
        if got != expected:
            raise ValueError(
                f"Got series with {got[0]} states and {got[1]} inputs; the model was fitted to "
                f"{expected[0]} and {expected[1]}."
            )

    def _checked_inputs(
        self, inputs: Any, times: int, rows: str = "one row for each time"
    ) -> np.ndarray:
        width = self._learned.measured.inputs
        us = np.zeros((times, 0)) if inputs is None else np.asarray(inputs, float)
        us = us[:, None] if us.ndim == 1 else us
        if us.shape != (times, width):
            raise ValueError(f"Got inputs of shape {us.shape}; expected {(times, width)}, {rows}.")
        return us

    def _checked_state(self, y0: Any) -> np.ndarray:
        y = np.atleast_1d(np.asarray(y0, float))
        states = self._learned.measured.states
        if y.shape != (states,) or not np.all(np.isfinite(y)):
            raise ValueError(
                f"simulate got y0={y0!r}; expected {states} finite numbers, or a "
                "function of time that returns them."
            )
        return y


# --- small things ---------------------------------------------------------------------------------


def _names() -> list[str]:
    return [n for n in inspect.signature(Identifier).parameters if n != "self"]


def _is_flat(ys: Any) -> bool:
    """Whether a series has no axis of states."""
    return np.ndim(ys) == 1


def _shaped(states: Float[np.ndarray, "times states"], flat: bool) -> States:
    return states[:, 0] if flat else states


def _finite(error: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(error)):
        raise IdentifyError(
            "The learned equation does not stay finite over held-out windows. Likely reasons: "
            "the series has another period, the degree is too high, or the series is too "
            "short. (In Python a shorter `window` or a smaller `learning_rate` may help, too.)"
        )
    return error


def _default_names(letter: str, number: int) -> list[str]:
    return [letter] if number == 1 else [f"{letter}{i + 1}" for i in range(number)]


def _past(ts: np.ndarray, ys: np.ndarray) -> Past:
    return Past(jnp.asarray(ts, float), jnp.asarray(ys, float))


def _as_numpy(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_array_like(x) else x, tree)
