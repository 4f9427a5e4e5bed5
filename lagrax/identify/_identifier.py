"""`Identifier`: an equation learned from series, and what can be done with it."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._checks import check_solver
from .._delays import (
    Delay,
    Hold,
    Lag,
    Learn,
    describe,
    is_number,
    is_whole,
    periods_to_learn,
    with_periods,
)
from .._equations import (
    PERIOD_ROOM,
    REST,
    Equation,
    Network,
    Past,
    Polynomial,
    Row,
    Setting,
    intervals_over,
    make_rows,
    names_of,
    past_of,
    steps_between,
    without_small,
)
from .._files import write_json
from .._learning import (
    Errors,
    HeldOut,
    least_squares,
    mean_of,
    member_of,
    optimiser,
    simulation,
)
from .._machine import describe as machine
from .._regression import (
    Library,
    Normal,
    monomials,
    needed_terms,
    normal_equations,
    reach_of,
    regressed,
)
from .._runs import save_checkpoint
from .._series import Trajectory, Window, as_trajectories, gap_of, is_several
from .._windows import (
    default_window,
    divided,
    drawn_windows,
    first_instant,
    first_known,
    last_known,
)
from ..selection import check_sampling, find_periods, make_task
from ..training import Series, train
from ._checks import (
    IdentifyError,
    check_coefficients,
    check_held_out,
    check_precision,
    check_sizes,
)
from ._folder import (
    count_of_series,
    delay_to_json,
    delays_from_json,
    filled_from,
    losses_of,
    read_folder,
    under,
)

# (times, states), or (times,) where a series or a start was given without an axis of states.
States = Float[np.ndarray, "times ..."]

# Steps in an interval, and intervals in a series: a model that asks for more was not fitted.
MOST_STEPS = 10**6
MOST_POWER = 100

# Terms of a library that move a state by less than these shares of what the largest one does are
# tried without.
SMALL = (0.1, 0.01)


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
        _check_arguments(self)
        self.__dict__.pop("_members", None)
        self._take(as_trajectories(ts, ys, inputs))
        self._flat = _is_flat(ys[-1] if is_several(ys) else ys)
        trajectories, delays = self._shifted, list(self.delays)
        found, self.scans_ = delays, []
        if self.field == "library" or periods_to_learn(delays):
            check_sampling(trajectories, delays)
        if periods_to_learn(delays):
            task = make_task(trajectories, [delays], 2, min(self.window or 16, 16))
            found, self.scans_ = find_periods(task, delays, progress=self.progress)
        window = self.window or default_window(trajectories, found)
        learning, testing = divided(trajectories, window, found, self.validation)
        self._settle(found, window)
        rows = make_rows(trajectories, learning, found)
        held = make_rows(trajectories, testing, found)
        check_held_out(held)
        self._setting = self._made_setting(found, _spans(rows) + _spans(held))
        if self.field == "library":
            members = self._fit_library(found, learning, rows)
            self.losses_ = {}
        else:
            members, self.losses_ = self._fit_by_gradient(rows, held)
            if callable(self.field):
                members = self._all_polished(members, rows)
        self._finish(members, held)
        return self

    def _take(self, trajectories: list[Trajectory]) -> None:
        """The series and their scales, with times counted from an origin that leaves knots where
        they are: float32 has seven digits only. A field of one's own may look at the clock."""
        taus = [d.tau for d in self.delays if isinstance(d, Hold)]
        first = min(t.ts[0] for t in trajectories)
        self._origin = 0.0
        if callable(self.field):
            pass
        elif not taus:
            self._origin = float(first)
        elif not any(tau is None or isinstance(tau, Learn) for tau in taus):
            numbers = {float(tau) for tau in taus}  # pyright: ignore[reportArgumentType]
            if len(numbers) == 1:
                (tau,) = numbers
                self._origin = float(np.floor(first / tau + 1e-9) * tau)
        check_precision(trajectories, self._origin)
        check_sizes(trajectories, self.degree if self.field == "library" else 1)
        self.series_ = trajectories
        self._shifted = [t._replace(ts=t.ts - self._origin) for t in trajectories]
        states = np.concatenate([t.filled for t in trajectories])
        self._centre, self._scale = states.mean(axis=0), _spread(states)
        slopes = [np.diff(t.filled, axis=0) / np.diff(t.ts)[:, None] for t in trajectories]
        self._slope = np.sqrt(np.mean(np.concatenate(slopes) ** 2, axis=0)) + 1e-12 * self._scale

    def _settle(self, found: list[Delay], window: int) -> None:
        learned = periods_to_learn(self.delays)
        self._periods = tuple(
            next(float(f.tau) for f, d in zip(found, self.delays, strict=True) if d.tau is learn)  # pyright: ignore
            for learn in learned
        )
        self.window_ = window

    def _smallest(self) -> list[Delay]:
        """The delays with the smallest periods that training may give them."""
        return with_periods(self.delays, [p * (1 - PERIOD_ROOM) for p in self._periods])

    def _made_setting(self, found: list[Delay], spans: list[tuple[float, float]]) -> Setting:
        inputs = self._shifted[0].us.shape[1] > 0
        span = max(b - a for a, b in spans)
        return Setting(
            list(self.delays),
            self._periods,
            intervals_over(self._smallest(), spans, bool(self._periods)),
            self.steps or steps_between(found, gap_of(self._shifted), span, inputs),
            self.solver,
            inputs,
        )

    def _made_field(self, key: Array) -> Callable:
        if callable(self.field):
            return self.field
        us = np.concatenate([t.us for t in self.series_])
        times = 1 + len(self.delays)
        centre = np.concatenate([np.tile(self._centre, times), us.mean(axis=0)])
        scale = np.concatenate([np.tile(self._scale, times), _spread(us)])
        return Network(
            jnp.asarray(centre, float),
            jnp.asarray(scale, float),
            jnp.asarray(self._slope, float),
            width=self.width,
            depth=self.depth,
            key=key,
        )

    def _fit_by_gradient(self, rows: Row, held: Row) -> tuple[PyTree, dict[str, Series]]:
        # Often enough to stop in time, seldom enough to cost little.
        block = min(50, max(1, self.patience // 4))
        loss, shifts = self._loss(), jnp.zeros(len(self._periods))
        trained = train(
            loss,
            lambda key: Equation(self._made_field(key), shifts),
            _as_arrays(rows),
            optimiser(self.learning_rate, self.iterations),
            steps=self.iterations,
            seeds=[self.seed + i for i in range(self.ensemble)],
            batch_size=min(self.batch_size, len(rows.ts)),
            evaluate=HeldOut(loss),
            test_data=_as_arrays(held),
            keep="held_out",
            patience=-(-self.patience // block),
            block=block,
            progress=self.progress,
        )
        return trained.model, trained.metrics

    def _fit_library(self, found: list[Delay], windows: Sequence[Window], rows: Row) -> PyTree:
        """Terms by regression, then their coefficients by following the equation itself."""
        states, inputs = len(self._scale), self._shifted[0].us.shape[1]
        variables = states * (1 + len(found)) + inputs
        powers = monomials(variables, self.degree)
        library = Library(powers, np.zeros(variables), np.ones(variables))
        normal = normal_equations(self._shifted, windows, found, library)
        chosen = [needed_terms(normal.of_state(i)) for i in range(states)]
        terms = sorted(set().union(*chosen)) or [0]
        used = tuple(tuple(j in chosen[i] for i in range(states)) for j in terms)
        rng = np.random.default_rng(self.seed)
        members, seen, error = [], [], 0.0
        for member in range(self.ensemble):
            drawn = drawn_windows(rng, len(windows), member)
            drawn_normal = Normal(*(part[drawn] for part in normal))
            start = regressed(drawn_normal, chosen, terms)
            check_coefficients(start)
            field = Polynomial(
                jnp.asarray(start, float),
                used,
                tuple(tuple(int(p) for p in powers[j]) for j in terms),
            )
            equation = Equation(field, jnp.zeros(len(self._periods)))
            seen.append(_few(Row(*(x[drawn] for x in rows))))
            polished, squares = least_squares(equation, self._loss(), seen[-1])
            members.append(polished)
            error += squares
        sizes = np.sqrt(np.einsum("wstt->ts", normal.of(np.array(terms)).columns))
        return jax.tree.map(lambda *x: jnp.stack(x), *self._simplest(members, seen, sizes, error))

    def _simplest(
        self, members: list[Equation], seen: Sequence[Row], sizes: np.ndarray, error: float
    ) -> list[Equation]:
        """Without terms that hardly move a state, where the windows are followed as well without
        them: by Schwarz's criterion, under which a term has to earn its place."""
        kept = without_small(members, sizes, REST)
        count = sum(int(np.sum(row.weights > 0)) for row in seen)
        for least in SMALL:
            fewer = without_small(members, sizes, least)
            dropped = _terms(kept) - _terms(fewer)
            if dropped:
                pairs = zip(fewer, seen, strict=True)
                found = [least_squares(equation, self._loss(), rows) for equation, rows in pairs]
                if sum(squares for _, squares in found) <= error * count ** (dropped / count):
                    return [equation for equation, _ in found]
        return kept

    def _all_polished(self, members: PyTree, rows: Row) -> PyTree:
        """A field of few parameters gets to the bottom, where Adam only comes near."""
        if sum(x[0].size for x in jax.tree.leaves(eqx.filter(members, eqx.is_array))) > 100:
            return members
        rng = np.random.default_rng(self.seed)
        polished = []
        for i in range(self.ensemble):
            drawn = drawn_windows(rng, len(rows.ts), i)
            seen = _few(Row(*(x[drawn] for x in rows)))
            polished.append(least_squares(member_of(members, i), self._loss(), seen)[0])
        return jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *polished)

    def _loss(self) -> Errors:
        return Errors(self._setting, jnp.asarray(self._scale, float))

    def _finish(self, members: PyTree, held: Row) -> None:
        self._members = members
        self._number = len(jax.tree.leaves(eqx.filter(members, eqx.is_array))[0])
        first = member_of(members, 0)
        self.equation_ = first.field
        self.delays_ = [_plain(d) for d in self._setting.learned(first)]
        learned = periods_to_learn(self._setting.delays)
        pairs = [*zip(self._setting.delays, self.delays_, strict=True)]
        self.periods_ = [
            float(next(d.tau for old, d in pairs if old.tau is learn))  # pyright: ignore
            for learn in learned
        ]
        self.n_features_in_ = len(self._scale)
        self.steps_ = self._setting.steps
        predicted = np.asarray(mean_of(self._members, self._setting, _as_arrays(held)))
        weights = held.weights
        square = np.where(weights > 0, (predicted - held.ys) ** 2, 0.0)
        self.error_ = np.sqrt(square.sum(axis=(0, 1)) / np.maximum(weights.sum(axis=(0, 1)), 1))
        if not np.all(np.isfinite(self.error_)):
            raise IdentifyError(
                "The learned equation does not stay finite over held-out windows. Likely reasons: "
                "the series has another period, the degree is too high, or the series is too "
                "short. (In Python a shorter `window` or a smaller `learning_rate` may help, too.)"
            )

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
            past = lambda t: jnp.atleast_1d(jnp.asarray(y0(t + self._origin), float))
            flat = jax.eval_shape(lambda t: jnp.asarray(y0(t)), 0.0).ndim == 0
        else:
            past, flat = _past(np.zeros(1), self._checked_state(y0)[None]), np.ndim(y0) == 0
        return _shaped(self._simulated(ts, past, inputs).mean(axis=0), flat)

    def _simulated(
        self, ts: Any, past: Callable, inputs: Any
    ) -> Float[np.ndarray, "members times states"]:
        """By each member; `past` is on the shifted clock."""
        ts = np.asarray(ts, float)
        increasing = ts.ndim == 1 and len(ts) > 1 and np.all(np.diff(ts) > 0)
        if not increasing or not np.all(np.isfinite(ts)):
            raise ValueError(
                f"simulate got ts of shape {ts.shape}; expected increasing times, two at least and "
                "all of them finite."
            )
        us = jnp.asarray(self._checked_inputs(inputs, len(ts)), float)
        shifted = ts - self._origin
        setting = self._setting._replace(
            steps=self._steps_for(ts),
            intervals=self._intervals_for(shifted) if self._periods else None,
        )
        # A function of one's own may close over what changes, and is compiled anew.
        program = simulation if isinstance(past, Past) else simulation.__wrapped__
        run = program(shifted.tobytes(), bool(self._periods))
        members = [member_of(self._members, i) for i in range(self._number)]
        found = np.stack([np.asarray(run(m, setting, past, us)) for m in members])
        if not np.all(np.isfinite(found)):
            warnings.warn(
                "The learned equation does not stay finite there; values behind are NaN. It was "
                "learned near the measured states, and may run away from others.",
                stacklevel=3,
            )
        return found

    def _steps_for(self, ts: np.ndarray) -> int:
        """Without delays one interval is all of the span."""
        if self._setting.delays or self._setting.inputs or self.steps:
            return self._setting.steps
        gap = gap_of(self.series_)
        return max(4, int(np.ceil((ts[-1] - ts[0]) / (2 * gap))))

    def _intervals_for(self, ts: np.ndarray) -> int | None:
        span = (float(ts[0]), float(ts[-1]))
        return intervals_over(self._smallest(), [span], bool(self._periods))

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
        if not is_whole(horizon) or horizon < 1:
            raise ValueError(f"predict got horizon={horizon!r}; expected a whole number >= 1.")
        return [self._predicted(t, horizon) for t in trajectories]

    def _predicted(self, trajectory: Trajectory, horizon: int) -> States:
        shifted = trajectory._replace(ts=trajectory.ts - self._origin)
        first, last = self._first_start(trajectory), len(shifted.ts) - 1
        windows = [Window(0, s, min(s + horizon, last)) for s in range(first, last, horizon)]
        rows = make_rows([shifted], windows, self.delays_)
        longest = max(_spans(rows), key=lambda span: span[1] - span[0])
        setting = self._setting._replace(
            intervals=intervals_over(self._smallest(), _spans(rows), bool(self._periods)),
            steps=self._steps_for(np.array(longest)),
        )
        ys = np.asarray(mean_of(self._members, setting, _as_arrays(rows)))
        out = shifted.filled.copy()
        for w, y in zip(windows, ys, strict=True):
            out[w.first + 1 : w.last + 1] = y[1 : w.last - w.first + 1]
        return out

    def _first_start(self, trajectory: Trajectory) -> int:
        """The first sample whose past is known, if that leaves half of the series."""
        ts = trajectory.ts
        reach = reach_of([d for d in self.delays_ if d.tau is not None])
        known = max(ts[0] + reach, first_instant(self.delays_))
        first = max(int(np.searchsorted(ts, known)), first_known(trajectory))
        return first if 2 * first < len(ts) else first_known(trajectory)

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
        starts = [self._first_start(t) + 1 for t in trajectories]
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
        us = np.concatenate([series.us[known:-1], us])
        measured = Trajectory(*(part[: known + 1] for part in self._shifted[-1]))
        past = _past(*past_of(measured, self.delays_))
        runs = self._simulated(whole, past, us)[:, len(series.ts) - known :]
        mean, spread = runs.mean(axis=0), runs.std(axis=0)
        width = 2 * np.sqrt(spread**2 + self.error_**2)
        lines = (mean, mean - width, mean + width)
        return Forecast(ts, *(_shaped(line, self._flat) for line in lines))

    def equations(
        self, states: Sequence[str] | None = None, inputs: Sequence[str] | None = None
    ) -> list[str]:
        """The learned equation in words, one line a state. Only a library's can be read."""
        self._check_fitted()
        states = list(states or _default_names("x", len(self._scale)))
        inputs = list(inputs or _default_names("u", self.series_[0].us.shape[1]))
        if (len(states), len(inputs)) != (len(self._scale), self.series_[0].us.shape[1]):
            raise ValueError(
                f"equations got {len(states)} names of states and {len(inputs)} of inputs; the "
                f"model has {len(self._scale)} and {self.series_[0].us.shape[1]}."
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
        folder = Path(folder)
        name = type(self.solver).__name__
        if not eqx.tree_equal(getattr(diffrax, name, lambda: None)(), self.solver):
            raise IdentifyError(
                f"The solver {self.solver!r} is kept by its name alone, and {name}() of diffrax is "
                "another: fit with one of diffrax's as it is."
            )
        arrays = {
            "members": self._members,
            "series": [t._asdict() for t in self.series_],
            "losses": {k: v._asdict() for k, v in self.losses_.items()},
            "error": self.error_,
        }
        save_checkpoint(folder / "model.safetensors", _as_numpy(arrays), {"format": "1"})
        write_json(folder / "model.json", self._described())

    def _described(self) -> dict[str, Any]:
        plain = lambda x: x.item() if isinstance(x, np.generic) else x
        params = {name: plain(value) for name, value in self.get_params().items()}
        own = callable(self.field)
        params |= {
            "delays": [delay_to_json(d, periods_to_learn(self.delays)) for d in self.delays],
            "field": "own" if own else self.field,
            "solver": type(self.solver).__name__,
        }
        powers = None
        if isinstance(self.equation_, Polynomial):
            powers = {"powers": self.equation_.powers, "used": self.equation_.used}
        return {
            "format": 1,
            "flat": self._flat,
            "arguments": params,
            "periods": list(self._periods),
            "window": self.window_,
            "steps": self.steps_,
            "terms": powers,
            "machine": machine(),
        }

    @classmethod
    def load(cls, folder: str | Path, *, field: Callable | None = None) -> "Identifier":
        """What `save` wrote. `field` is the field of your own that it was fitted with, if so."""
        folder = Path(folder)
        about, arrays = read_folder(folder)
        try:
            return _restored(cls, about, arrays, field, folder)
        except (
            *(KeyError, TypeError, ValueError, IndexError, AttributeError),
            *(OverflowError, RecursionError, MemoryError),
        ) as error:
            raise IdentifyError(
                f"{folder} does not hold what Identifier.save wrote ({type(error).__name__}: "
                f"{error}). Fit and save again."
            ) from None

    # --- checks

    def _check_fitted(self) -> None:
        if not hasattr(self, "_members"):
            raise IdentifyError("This Identifier has not been fitted: call fit(ts, ys) first.")

    def _check_widths(self, trajectory: Trajectory) -> None:
        got = (trajectory.ys.shape[1], trajectory.us.shape[1])
        expected = (len(self._scale), self.series_[0].us.shape[1])
        if got != expected:
            raise ValueError(
                f"Got series with {got[0]} states and {got[1]} inputs; the model was fitted to "
                f"{expected[0]} and {expected[1]}."
            )

    def _checked_inputs(
        self, inputs: Any, times: int, rows: str = "one row for each time"
    ) -> np.ndarray:
        width = self.series_[0].us.shape[1]
        us = np.zeros((times, 0)) if inputs is None else np.asarray(inputs, float)
        us = us[:, None] if us.ndim == 1 else us
        if us.shape != (times, width):
            raise ValueError(f"Got inputs of shape {us.shape}; expected {(times, width)}, {rows}.")
        return us

    def _checked_state(self, y0: Any) -> np.ndarray:
        y = np.atleast_1d(np.asarray(y0, float))
        if y.shape != self._scale.shape or not np.all(np.isfinite(y)):
            raise ValueError(
                f"simulate got y0={y0!r}; expected {len(self._scale)} finite numbers, or a "
                "function of time that returns them."
            )
        return y


# --- checks ---------------------------------------------------------------------------------------


def _check_arguments(model: Identifier) -> None:
    if isinstance(model.field, str) and model.field not in ("mlp", "library"):
        raise ValueError(
            f"Identifier got field={model.field!r}; expected 'mlp', 'library', or a field of your "
            "own, f(t, y, args, *, history)."
        )
    if not isinstance(model.field, str) and not callable(model.field):
        raise TypeError(f"Identifier got field={model.field!r}, which cannot be called.")
    delays = model.delays
    if not isinstance(delays, Sequence) or not all(isinstance(d, (Hold, Lag)) for d in delays):
        raise TypeError(f"Identifier got delays={delays!r}; expected a list of Hold and Lag.")
    counts = ("width", "depth", "degree", "ensemble", "iterations", "batch_size", "patience")
    for name in (*counts, *(n for n in ("window", "steps") if getattr(model, n) is not None)):
        value = getattr(model, name)
        if not is_whole(value) or value < 1:
            raise ValueError(f"Identifier got {name}={value!r}; expected a whole number >= 1.")
    if not is_number(model.learning_rate) or model.learning_rate <= 0:
        raise ValueError(
            f"Identifier got learning_rate={model.learning_rate!r}; expected a positive number."
        )
    check_solver(model.solver)
    if not is_number(model.validation) or not 0 < model.validation < 1:
        raise ValueError(
            f"Identifier got validation={model.validation!r}; expected a share between 0 and 1."
        )
    if not is_whole(model.seed) or not 0 <= model.seed <= 2**31 - model.ensemble:
        raise ValueError(
            f"Identifier got seed={model.seed!r}; expected a whole number >= 0, below 2^31."
        )


# --- small things ---------------------------------------------------------------------------------


def _names() -> list[str]:
    return [n for n in inspect.signature(Identifier).parameters if n != "self"]


def _is_flat(ys: Any) -> bool:
    """Whether a series has no axis of states."""
    return np.ndim(ys) == 1


def _shaped(states: Float[np.ndarray, "times states"], flat: bool) -> States:
    return states[:, 0] if flat else states


def _terms(members: Sequence[Any]) -> int:
    """How many coefficients the library equations of an ensemble have in all."""
    return sum(int(np.sum(member.field.used)) for member in members)


def _few(rows: Row) -> Row:
    """As many as least squares need."""
    return _as_arrays(Row(*(x[:: -(-len(x) // 200)] for x in rows)))


def _spans(rows: Row) -> list[tuple[float, float]]:
    return [(float(ts[0]), float(ts[-1])) for ts in rows.ts]


def _spread(values: np.ndarray) -> np.ndarray:
    spread = values.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def _default_names(letter: str, number: int) -> list[str]:
    return [letter] if number == 1 else [f"{letter}{i + 1}" for i in range(number)]


def _past(ts: np.ndarray, ys: np.ndarray) -> Past:
    return Past(jnp.asarray(ts, float), jnp.asarray(ys, float))


def _as_arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.asarray(x, float) if eqx.is_array_like(x) else x, tree)


def _as_numpy(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_array_like(x) else x, tree)


def _plain(delay: Delay) -> Delay:
    """With a number for its period."""
    if delay.tau is None:
        return delay
    tau = float(delay.tau)  # pyright: ignore[reportArgumentType]
    return Lag(tau) if isinstance(delay, Lag) else Hold(tau, lag=delay.lag)


# --- from a folder --------------------------------------------------------------------------------


def _restored(
    cls: type[Identifier],
    about: dict[str, Any],
    arrays: dict[str, np.ndarray],
    field: Callable | None,
    folder: Path,
) -> Identifier:
    arguments = dict(about["arguments"])
    if arguments["field"] != "own" and field is not None:
        raise IdentifyError(
            f"The model in {folder} was fitted with field={arguments['field']!r:.40} and none of "
            "its own: leave `field` out."
        )
    if arguments["field"] == "own":
        if field is None:
            raise IdentifyError(
                f"The model in {folder} was fitted with a field of its own: give it again, "
                "load(folder, field=...)."
            )
        arguments["field"] = field
    solver = getattr(diffrax, str(arguments["solver"]), None)
    if not (isinstance(solver, type) and issubclass(solver, diffrax.AbstractSolver)):
        raise IdentifyError(f"{folder} names a solver that diffrax lacks, {arguments['solver']!r}.")
    arguments |= {"delays": delays_from_json(arguments["delays"]), "solver": solver()}
    model = cls(**arguments)
    _check_arguments(model)
    parts = [under(arrays, f"['series'][{i}]") for i in range(count_of_series(arrays))]
    model._take([Trajectory(*(p[f"['{name}']"] for name in Trajectory._fields)) for p in parts])
    model._flat = len(model._scale) == 1 and bool(about.get("flat"))
    model._periods, model.window_ = tuple(about["periods"]), int(about["window"])
    found = with_periods(model.delays, model._periods)
    _check_effort(model, found, about["steps"])
    learning, testing = divided(model._shifted, model.window_, found, model.validation)
    rows = make_rows(model._shifted, testing[-1:], found)
    spans = _spans(make_rows(model._shifted, learning + testing, found))
    setting = model._made_setting(found, spans)
    model._setting = setting._replace(steps=int(about["steps"]))
    model.losses_ = losses_of(arrays)
    model.scans_ = []
    if model.field == "mlp" and model.depth >= len(arrays):
        raise ValueError(f"depth is {model.depth}, with {len(arrays)} arrays")
    # By its shapes alone: what a file says of them may not fit into memory.
    like = eqx.filter_eval_shape(_empty_members, model, about["terms"])
    members = filled_from(like, under(arrays, "['members']"))
    model._finish(members, rows)
    model.error_ = arrays["['error']"]
    return model


def _check_effort(model: Identifier, found: list[Delay], steps: Any) -> None:
    """What a file says may take any time and memory."""
    spans = [(float(t.ts[0]), float(t.ts[-1])) for t in model._shifted]
    intervals = intervals_over(found, spans, True) or 0
    lags = [d.lag for d in found if isinstance(d, Hold)]
    for name, value in (("steps", steps), ("intervals", intervals), ("lag", max(lags, default=0))):
        if not is_whole(value) or value > MOST_STEPS:
            raise ValueError(f"{name} = {value!r:.40}")
    if model.window_ < 1:
        raise ValueError(f"window = {model.window_}")


def _empty_members(model: Identifier, terms: dict[str, Any] | None) -> Equation:
    if terms is not None:
        powers = tuple(tuple(int(p) for p in row) for row in terms["powers"])
        used = tuple(tuple(bool(u) for u in row) for row in terms["used"])
        variables = len(model._scale) * (1 + len(model.delays)) + model.series_[0].us.shape[1]
        for row in powers:
            if len(row) != variables or not all(0 <= p <= MOST_POWER for p in row):
                raise ValueError(f"a term has the powers {row!r:.40}")
        field: Callable = Polynomial(jnp.zeros((len(powers), len(used[0]))), used, powers)
    else:
        field = model._made_field(jax.random.key(0))
    return Equation(field, jnp.zeros(len(model._periods)))
