"""`Identifier`, an equation learned from series."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._solve.arguments import check_whole, is_number
from .._solve.delays import Delay, describe, periods_to_learn, with_periods
from ..training import Series
from ..training._files import checked_path
from ..training._machine import load
from ._checks import IdentifyError, check_finite, check_held_out
from ._dataset import Dataset, prepare_dataset
from ._ensemble import MOST_SQUARED, Lesson, learn_members, make_loss, take_windows
from ._errors import Band, Errors, find_band, measure_errors
from ._fields import HeldLinear, Polynomial, choose_symbols, name_variables
from ._fitted import FittedModel, match_periods, prepare_setup
from ._frames import is_frame, read_values, replace_states, split_groups
from ._hidden import add_hidden, estimate_hidden
from ._linear import fit_linear
from ._options import DEFAULTS, Options, check_options
from ._periods import check_sampling, find_periods, prepare_comparison
from ._regression import check_library_size
from ._series import Trajectory, check_numbers, is_list_of_series, read_series, take_states
from ._simulation import LinearPast, sample_past, stack_windows, take_member
from ._uncertainty import Likelihood, Profile, StandardErrors
from ._windows import Split, default_window, split_windows, take_learning_part

# Standard deviations that hold 90 % of a normal distribution.
SPREADS = 1.645

# (times, states), or (times,) if a series or an initial value had no axis of states.
States = Float[np.ndarray, "times ..."]


class Forecast(NamedTuple):
    """The answer of `Identifier.forecast`.

    - `ts`: the times.
    - `mean`: the mean over the ensemble, a row for each time, shaped as the fitted series.
    - `low`, `high`: the band that should hold 90 % of later measurements. It comes from the errors
      of predictions as far ahead from many samples of the series (split conformal prediction), and
      is at least as wide as the spread between the members.
    """

    ts: Float[np.ndarray, " times"]
    mean: States
    low: States
    high: States


class Identifier(Options):
    """Learns the equation behind measured series, z′ = f(z(t), its past, inputs).

    It follows scikit-learn's conventions. Arguments are stored unchanged, `fit` returns the model
    itself, and learned attributes end in an underscore.

    **Arguments:**

    - `delays`: the delays of the equation, as in `lagrax.solve`; () is an ordinary equation. A
      period may be `Learn(...)`. `lagrax.select_delays` helps to choose.
    - `field`: `"mlp"`, a network; `"library"`, a readable sum of a few monomials, selected from all
      of them up to `degree`; `"linear"`, a linear equation whose past is held at every sample; or
      your own field, `f(t, y, args, *, history)`, an `eqx.Module` whose
      arrays are the parameters and whose `args` are the inputs at t.
    - `loss`: `"huber"` counts large errors by their size rather than its square. Choose it for
      series with outages or outliers.
    - `fit_starts`: whether least squares also fits the state at the start of each window, for a
      library or your own field. Choose it if noise is large; it takes longer.
    - `hidden`: the number of states that are not measured, the last ones of your own field's state.
      They are fitted at the start of each window, so take a `window` that shows their effect. The
      parameters of the field are the start of the search.
    - `width`, `depth`: the size of the network's hidden layers, and their number.
    - `degree`: the highest degree of the library's monomials.
    - `season`: the length of a season, for changes over it in a linear equation.
    - `window`: the number of samples that training predicts from one measured start. Short windows
      make long and chaotic series easy; long ones average noise. By default 16, or more to span
      twice the reach of the delays, at most a quarter of the shortest trajectory or half of a short
      one. Four short trajectories or more are predicted whole.
    - `ensemble`: the number of models, trained from different starts. More than one makes a band
      around forecasts.
    - `validation`: the share at the end of each trajectory that is held out, to stop early. Of many
      short trajectories, the last ones are held out whole.
    - `iterations`, `learning_rate`, `batch_size`: the settings of Adam. Its learning rate decays to
      a hundredth.
    - `patience`: training stops when held-out windows have not improved for this many iterations.
    - `steps`: the solver's steps in each interval between knots. By default, training takes one
      for every two samples, or as many as the equation needs, and predictions control their error.
    - `solver`: a solver of diffrax, used with equal steps.
    - `seed`: the random seed. Results are reproducible.
    - `progress`: whether to show the progress of training on stderr.

    **Learned attributes:**

    - `equation_`: the field, that of the first model of an ensemble.
    - `delays_`, `periods_`: the delays and the learned periods, as numbers.
    - `losses_`: training and held-out losses over the iterations.
    - `error_`: the held-out error of each state, in its own unit.
    - `scans_`: the scan of each learned period.
    - `hidden_`: the estimates of hidden states for each trajectory, from earlier samples alone.
    - `steps_`, `window_`: the chosen values.
    - `series_`: the fitted trajectories.
    - `held_out_from_`: the first held-out sample of each trajectory, or its length if none is.
    - `predicted_from_`: the first sample of each trajectory that `predict` predicts.
    """

    # Options are frozen; scikit-learn changes the arguments of a model in place.
    __setattr__ = object.__setattr__

    # --- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments, by name."""
        del deep
        return {name: getattr(self, name) for name in DEFAULTS}

    def set_params(self, **params: Any) -> "Identifier":
        """Changes arguments, which take effect in the next `fit`."""
        for name, value in params.items():
            if name not in DEFAULTS:
                raise ValueError(f"Identifier has no argument {name!r}: {', '.join(DEFAULTS)}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = {
            name: value
            for name, value in self.get_params().items()
            if name not in ("delays", "solver") and value != DEFAULTS[name]
        }
        more = "".join(f", {name}={value!r}" for name, value in changed.items())
        return f"Identifier([{describe(list(self.delays)).replace('none', '')}]{more})"

    # --- learning

    def fit(
        self,
        ts: Any,
        ys: Any = None,
        inputs: Any = None,
        *,
        time: str | None = None,
        by: str | None = None,
    ) -> "Identifier":
        """Learns from one trajectory, or from a list of them.

        - `ts`: increasing times of shape (n,). They may be irregular, and differ between
          trajectories.
        - `ys`: the states at these times, of shape (n,) or (n, states). NaN is a missing value.
        - `inputs`: the inputs from each time to the next, of shape (n,) or (n, inputs), all known.

        Each may be a data frame or series of pandas, polars, pyarrow or any other library that
        narwhals reads. Names of columns then appear in equations and error messages.

        Or give one data frame and the names of its columns,
        `fit(frame, ["x", "y"], inputs=["u"], time="hour")`. Without `ys`, all other columns are
        states. If the frame holds several trajectories, `by="subject"` names the column that tells
        them apart.
        """
        check_options(self)
        self.__dict__.pop("_model", None)
        if by is not None:
            ts = split_groups(ts, by)
        series = read_series(ts, ys, inputs, time=time)
        series = add_hidden(series, self.hidden) if self.hidden else series
        dataset = prepare_dataset(series, self.delays, self.field, self.degree)
        given = take_states(ts, ys)
        self._flat = _is_flat(given[-1] if is_list_of_series(given) else given)
        if self.field == "linear":
            self._fit_linear(dataset)
            return self
        if self.field == "library":
            variables = dataset.states * (1 + len(self.delays)) + dataset.inputs
            check_library_size(variables, self.degree)
        delays = self._scan_periods(dataset.shifted)
        window = self.window or default_window(dataset.shifted, delays)
        split = split_windows(dataset.shifted, window, delays, self.validation)
        learning, held_out = (stack_windows(dataset.shifted, w, delays) for w in split[:2])
        check_held_out(series, held_out.weights[..., : dataset.states - self.hidden])
        periods = match_periods(self.delays, delays)
        setup = prepare_setup(dataset, self, periods, [learning, held_out])
        lesson = Lesson(dataset, split.learning, learning, held_out, delays)
        setup, members, losses = learn_members(setup, lesson, self)
        model = FittedModel.of_members(dataset, setup, members, self.steps is not None)
        if self.hidden:
            model = self._estimate_hidden(model, window)
            held_out = stack_windows(model.dataset.shifted, split.held_out, delays)
        error = model.measure_error(held_out)
        check_finite(error)
        self._set_learned(model, split, window, losses, error)
        return self

    def _estimate_hidden(self, model: FittedModel, window: int) -> FittedModel:
        """The model of a dataset with estimates of its hidden states."""
        dataset = model.dataset
        shifted = [self._estimate_in(model, t, window) for t in dataset.shifted]
        series = [t._replace(filled=s.filled) for t, s in zip(dataset.series, shifted, strict=True)]
        return model._replace(dataset=dataset._replace(series=series, shifted=shifted))

    def _estimate_in(self, model: FittedModel, trajectory: Trajectory, window: int) -> Trajectory:
        loss = make_loss(model.setup, model.dataset, self)
        member = take_member(model.members, 0)
        return estimate_hidden(member, loss, trajectory, window, self.hidden)

    def _fit_linear(self, dataset: Dataset) -> None:
        """Learns from the first part, to judge the held-out end, and again from all samples."""
        window = self.window or default_window(dataset.shifted, [])
        split = split_windows(dataset.shifted, window, [], self.validation)
        judged = fit_linear(dataset, self, split.held_out_from, window)
        held_out = stack_windows(dataset.shifted, split.held_out, judged.delays)
        check_held_out(dataset.series, held_out.weights)
        error = judged.measure_error(held_out)
        check_finite(error)
        model = fit_linear(dataset, self, [len(t.ts) for t in dataset.series], window)
        self.scans_ = []
        self._set_learned(model, split, window, {}, error, judged)

    def _scan_periods(self, trajectories: list[Trajectory]) -> list[Delay]:
        """The delays, with scanned numbers for the periods to learn."""
        delays, self.scans_ = list(self.delays), []
        if self.field == "library" or periods_to_learn(delays):
            check_sampling(trajectories, delays)
        if periods_to_learn(delays):
            starts = with_periods(delays, [learn.start for learn in periods_to_learn(delays)])
            part = take_learning_part(trajectories, starts, self.validation)
            comparison = prepare_comparison(part, [delays], 2, min(self.window or 16, 16))
            delays, self.scans_ = find_periods(comparison, delays, progress=self.progress)
        return delays

    def _set_learned(
        self,
        model: FittedModel,
        split: Split,
        window: int,
        losses: dict[str, Series],
        error: np.ndarray,
        judged: FittedModel | None = None,
    ) -> None:
        # `judged` has not seen the held-out part, if the model was fitted to that as well.
        self._model, self._judged, self._errors = model, judged or model, None
        self._columns = model.dataset.series[0].columns
        self.series_ = model.dataset.series
        self.n_features_in_ = model.dataset.states - self.hidden
        self.equation_ = model.field
        self.delays_, self.periods_ = model.delays, model.periods
        self.steps_, self.window_ = model.setup.steps, window
        self.losses_, self.error_ = losses, error[: self.n_features_in_]
        self.held_out_from_, self._split = split.held_out_from, split
        if self.hidden:
            self.hidden_ = [t.filled[:, -self.hidden :] for t in self.series_]
        self.predicted_from_ = [model.find_first_start(t) + 1 for t in self.series_]

    # --- using

    def standard_errors(self) -> StandardErrors:
        """The standard error of each parameter of your own field (or of a library's coefficients),
        in its place, and those of the learned periods.

        They allow for errors that overlapping windows have in common. With noisy starts the
        estimates are biased as well; `fit_starts=True` removes most of that.
        """
        return self._find_likelihood().find_standard_errors()

    def profile(self, where: Callable[[Any], Any], level: float = 0.95) -> Profile:
        """The profile interval of the parameter that `where` selects, as in `lambda field:
        field.rate`: its values with which the other parameters, fitted again, explain the series
        nearly as well.

        Choose it over standard errors if the equation is far from linear in the parameter. Then the
        interval is not symmetric, and it may have no end.
        """
        if not callable(where):
            raise TypeError(f"profile got where={where!r}; expected a function of the field.")
        if not is_number(level) or not 0 < level < 1:
            raise ValueError(f"profile got level={level!r}; expected a share between 0 and 1.")
        return self._find_likelihood().find_profile(where, level)

    def _find_likelihood(self) -> Likelihood:
        self._check_fitted()
        if self.field in ("mlp", "linear"):
            raise IdentifyError(
                f"field={self.field!r} has no standard errors; expected your own field, or "
                "field='library'."
            )
        model, windows = self._model, self._split.learning
        arrays = stack_windows(model.dataset.shifted, windows, model.delays)
        stride = -(-len(windows) // MOST_SQUARED)
        loss = make_loss(model.setup, model.dataset, self)
        return Likelihood(
            take_member(model.members, 0),
            loss,
            take_windows(arrays, np.arange(len(windows))),
            windows[::stride],
            model.periods,
        )

    def simulate(self, ts: Any, y0: Any, inputs: Any = None) -> States:
        """Solves the learned equation from the first of the times `ts`, and returns the mean over
        the ensemble.

        - `y0`: the state there, which stands for a constant past, or a function of time.
        - `inputs`: the inputs from each time to the next, as in `fit`.

        The result has a row for each time, shaped as `y0`.
        """
        self._check_fitted()
        if callable(y0):
            origin = self._model.dataset.origin
            past = lambda t: jnp.atleast_1d(jnp.asarray(y0(t + origin), float))
            flat = jax.eval_shape(lambda t: jnp.asarray(y0(t)), 0.0).ndim == 0
        else:
            past, flat = _make_past(np.zeros(1), self._check_state(y0)[None]), np.ndim(y0) == 0
        ts = check_numbers(ts, "ts")
        increasing = ts.ndim == 1 and len(ts) > 1 and np.all(np.diff(ts) > 0)
        if not increasing or not np.all(np.isfinite(ts)):
            raise ValueError(
                f"simulate got ts of shape {ts.shape}; expected increasing times, two at least and "
                "all of them finite."
            )
        us = jnp.asarray(self._check_inputs(inputs, len(ts)), float)
        return _reshape(self._model.simulate(ts, past, us).mean(axis=0), flat)

    def predict(
        self,
        ts: Any,
        ys: Any = None,
        inputs: Any = None,
        *,
        time: str | None = None,
        horizon: int | None = None,
    ) -> Any:
        """Predicts measured series, restarting from the measurements every `horizon` samples (by
        default those of a training window).

        The result is shaped as `ys`; a data frame is answered by one with the same columns. A first
        part is copied, up to the first sample whose past was measured as far back as the equation
        may look (a whole period for a hold). `score` leaves it out.
        """
        trajectories = self._read_series(ts, ys, inputs, time)
        predicted = self._predict_all(trajectories, horizon)
        given = take_states(ts, ys)
        several = is_list_of_series(given)
        answers = [
            _shape_like(*part)
            for part in zip(given if several else [given], trajectories, predicted, strict=True)
        ]
        return answers if several else answers[0]

    def _predict_as_judged(self, ts: Any, ys: Any, inputs: Any) -> np.ndarray:
        """As `predict`, by the model that has not seen the held-out part."""
        (trajectory,) = self._read_series(ts, ys, inputs, None)
        return self._judged.predict(trajectory, self.window_)

    def _read_series(self, ts: Any, ys: Any, inputs: Any, time: str | None) -> list[Trajectory]:
        """Reads series that must have the states and inputs of the fitted ones."""
        self._check_fitted()
        measured = self._columns._replace(states=self._columns.states[: self.n_features_in_])
        trajectories = read_series(ts, ys, inputs, time=time, columns=measured)
        if self.hidden and trajectories[0].ys.shape[1] == self.n_features_in_:
            trajectories = add_hidden(trajectories, self.hidden)
        first, fitted = trajectories[0], self._model.dataset
        shape, expected = (first.ys.shape[1], first.us.shape[1]), (fitted.states, fitted.inputs)
        if shape != expected:
            raise ValueError(
                f"Got series with {shape[0]} states and {shape[1]} inputs; the model was fitted to "
                f"{expected[0]} and {expected[1]}."
            )
        for names, known in zip(first.columns[1:], self._columns[1:], strict=True):
            if names and known and names != known:
                raise ValueError(
                    f"Got columns {', '.join(names)}; the model was fitted to {', '.join(known)}, "
                    "in this order."
                )
        return trajectories

    def _predict_all(self, trajectories: list[Trajectory], horizon: int | None) -> list[np.ndarray]:
        horizon = self.window_ if horizon is None else horizon
        check_whole("predict", "horizon", horizon, 1)
        if self.hidden:
            origin = self._model.dataset.origin
            moved = [t._replace(ts=t.ts - origin) for t in trajectories]
            filled = [self._estimate_in(self._model, t, self.window_).filled for t in moved]
            pairs = zip(trajectories, filled, strict=True)
            trajectories = [t._replace(filled=states) for t, states in pairs]
        measured = self.n_features_in_
        return [self._model.predict(t, horizon)[:, :measured] for t in trajectories]

    def score(
        self,
        ts: Any,
        ys: Any = None,
        inputs: Any = None,
        *,
        time: str | None = None,
        horizon: int | None = None,
        metric: str = "r2",
    ) -> float:
        """The quality of predictions over a horizon, averaged over the states.

        `metric="r2"` is the share of the variance that they explain: 1 is perfect, 0 is as good as
        the mean. `metric="nrmse"` is the root mean square error in standard deviations. The score
        is NaN if a state does not vary.
        """
        if metric not in ("r2", "nrmse"):
            raise ValueError(f"score got metric={metric!r}; expected 'r2' or 'nrmse'.")
        trajectories = self._read_series(ts, ys, inputs, time)
        predicted = self._predict_all(trajectories, horizon)
        starts = [self._model.find_first_start(t) + 1 for t in trajectories]
        compared = zip(trajectories, predicted, starts, strict=True)
        errors = np.concatenate([(p - t.ys[:, : p.shape[1]])[s:] for t, p, s in compared])
        known = np.concatenate([t.ys[s:] for t, s in zip(trajectories, starts, strict=True)])
        known = known[:, : self.n_features_in_]
        # A diverged prediction has an infinite error; a missing measurement has none.
        errors = np.where(np.isnan(known), np.nan, np.where(np.isnan(errors), np.inf, errors))
        variance = np.nanvar(known, axis=0)
        unit = np.where(variance > 0, variance, np.nan)
        ratio = np.nanmean(errors**2, axis=0) / unit
        return float(np.mean(1 - ratio) if metric == "r2" else np.mean(np.sqrt(ratio)))

    def forecast(self, ts: Any, inputs: Any = None) -> Forecast:
        """Continues the last of the fitted trajectories to the times `ts`, all after its end.

        `inputs`, if the model has them, has one row more than `ts`. The first row acts from the end
        of the series to the first of these times.
        """
        self._check_fitted()
        series = self.series_[-1]
        ts = np.atleast_1d(check_numbers(ts, "ts"))
        later = ts.ndim == 1 and np.all(np.diff(ts, prepend=series.ts[-1]) > 0)
        if not later or not np.all(np.isfinite(ts)):
            raise ValueError(
                f"forecast got ts={ts}; expected increasing times after the end of the series, "
                f"{series.ts[-1]:g}."
            )
        # If the last values are missing, start from the last time with all states known.
        known = series.last_known
        whole = np.concatenate([series.ts[known:], ts])
        rows = "one row for the end of the series and one for each time"
        us = self._check_inputs(inputs, len(ts) + 1, rows)
        us = jnp.asarray(np.concatenate([series.us[known:-1], us]), float)
        past = _make_past(*sample_past(self._model.dataset.shifted[-1].until(known), self.delays_))
        runs = self._model.simulate(whole, past, us)[:, len(series.ts) - known :]
        mean, spread = runs.mean(axis=0), runs.std(axis=0)
        errors = self._measure_errors(len(whole) - 1)
        band = self._find_band(errors)
        lines = (mean, *band.around(mean, ts - series.ts[known], SPREADS * spread))
        measured = self.n_features_in_
        return Forecast(ts, *(_reshape(line[:, :measured], self._flat) for line in lines))

    def _find_band(self, errors: Errors) -> Band:
        """The band around forecasts that `errors` make."""
        logarithmic = getattr(self._judged.field, "logarithmic", None)
        return find_band(errors, self._judged.dataset.scale, logarithmic)

    def _measure_errors(self, horizon: int) -> Errors:
        """Errors of predictions up to `horizon` samples ahead, which are kept for shorter ones."""
        kept = self._errors
        if kept is None or kept[0] < horizon:
            errors = measure_errors(self._judged, self.held_out_from_, horizon)
            self._errors = kept = horizon, errors
        return kept[1]

    def equations(
        self, states: Sequence[str] | None = None, inputs: Sequence[str] | None = None
    ) -> list[str]:
        """The learned equation as text, one line for each state. Only a library shows its terms.

        Without names, variables have the names of their columns if these are single words, and
        otherwise x1, x2, ... and u1, u2, ... in the order of the columns.
        """
        self._check_fitted()
        dataset = self._model.dataset
        states = list(states or choose_symbols(self._columns.states, "x", dataset.states))
        inputs = list(inputs or choose_symbols(self._columns.inputs, "u", dataset.inputs))
        if (len(states), len(inputs)) != (dataset.states, dataset.inputs):
            raise ValueError(
                f"equations got {len(states)} names of states and {len(inputs)} of inputs; the "
                f"model has {dataset.states} and {dataset.inputs}."
            )
        names = name_variables(self.delays_, states, inputs)
        if isinstance(self.equation_, HeldLinear):
            return self.equation_.format(states, inputs)
        if isinstance(self.equation_, Polynomial):
            return self.equation_.format(states, names)
        return [f"{state}′ = f({', '.join(names)})" for state in states]

    # --- saving

    def save(self, folder: str | Path) -> None:
        """Writes the model to a folder, as `model.json` and `model.safetensors`. Code is not saved;
        give your own field to `load` again."""
        self._check_fitted()
        folder = checked_path("Identifier.save", folder)
        losses = {k: v._asdict() for k, v in self.losses_.items()}
        results = {"losses": losses, "error": self.error_}
        _import_folder().write_folder(folder, self, self._model, self.window_, self._flat, results)

    @classmethod
    def load(cls, folder: str | Path, *, field: Callable | None = None) -> "Identifier":
        """Reads a model that `save` wrote. `field` is your own field if it was fitted with one."""
        folder = checked_path("Identifier.load", folder)
        files = _import_folder()
        with files.explain_damage(folder):
            saved, arrays = files.read_folder(folder)
            model = cls(**files.read_options(saved, field, folder))
            fitted, split = files.restore_model(model, saved, arrays)
            model._flat = saved.flat and fitted.dataset.states - model.hidden == 1
            model.scans_ = []
            until, judged = split.held_out_from, None
            if model.field == "linear":
                judged = fit_linear(fitted.dataset, model, until, saved.window)
            model._set_learned(fitted, split, saved.window, arrays.losses, arrays.error, judged)
            return model

    # --- checks

    def _check_fitted(self) -> None:
        if not hasattr(self, "_model"):
            raise IdentifyError("This Identifier has not been fitted: call fit(ts, ys) first.")

    def _check_inputs(
        self, inputs: Any, times: int, rows: str = "one row for each time"
    ) -> np.ndarray:
        width = self._model.dataset.inputs
        values, _ = read_values(inputs, "inputs", self._columns.inputs)
        us = np.zeros((times, 0)) if values is None else check_numbers(values, "inputs")
        us = us[:, None] if us.ndim == 1 else us
        if us.shape != (times, width):
            raise ValueError(f"Got inputs of shape {us.shape}; expected {(times, width)}, {rows}.")
        return us

    def _check_state(self, y0: Any) -> np.ndarray:
        y = np.atleast_1d(check_numbers(y0, "y0"))
        states = self._model.dataset.states
        if y.shape != (states,) or not np.all(np.isfinite(y)):
            raise ValueError(
                f"simulate got y0={y0!r}; expected {states} finite numbers, or a "
                "function of time that returns them."
            )
        return y


def _import_folder() -> ModuleType:
    """Imports late, because `import lagrax` needs no extra."""
    load("msgspec")
    from . import _folder

    return _folder


def _is_flat(states: Any) -> bool:
    """Whether a series has no axis of states."""
    return not is_frame(states) and np.ndim(states) == 1


def _reshape(states: Float[np.ndarray, "times states"], flat: bool) -> States:
    return states[:, 0] if flat else states


def _shape_like(given: Any, trajectory: Trajectory, states: np.ndarray) -> Any:
    """States as an array or data frame like the one that was given."""
    columns = trajectory.columns
    if not is_frame(given) or not columns.states:
        return _reshape(states, _is_flat(given))
    kept = (columns.time, *columns.states) if columns.time else columns.states
    return replace_states(given, kept, columns.states, states)


def _make_past(ts: np.ndarray, ys: np.ndarray) -> LinearPast:
    return LinearPast(jnp.asarray(ts, float), jnp.asarray(ys, float))
