"""Trains in compiled blocks of steps, with metrics, checkpoints and resuming.

```python
trained = lagrax.training.train(loss, make, data, optax.adam(1e-2), steps=3000, folder="runs/mine")
```

After a crash, a kill or Ctrl-C, the same call resumes the run. Its parameters and metrics are bit
for bit those of an undisturbed run. The seed and the number of a step decide all randomness, so a
checkpoint holds only the model and the state of the optimiser.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from ._block import Program, TrainingState, count_rows, initial_state, run_block
from ._checkpoints import fingerprint
from ._devices import broadcast_from_first, make_mesh, replicate
from ._errors import TrainingError
from ._machine import load
from ._metrics import Record, null_to_nan, to_json
from ._options import Schedule, check_functions, check_rows, check_run, check_schedule, to_device
from ._progress import Progress


class Series(NamedTuple):
    """A metric over the training.

    - `steps`: the numbers of the steps after which it was taken; the first step is 1.
    - `values`: one for each of these steps; with several seeds, one column for each seed.
    """

    steps: np.ndarray
    values: np.ndarray


class Trained(NamedTuple):
    """The result of `train`.

    - `model`: the trained model. With several seeds, its arrays have a leading axis of seeds.
    - `metrics`: a `Series` for each metric by name, `"loss"` among them.
    - `seconds`: the time of training, summed over all attempts of a resumed run.
    """

    model: PyTree
    metrics: dict[str, Series]
    seconds: float


def train(
    loss: Callable[..., Any],
    make: Callable[[PRNGKeyArray], PyTree],
    data: PyTree,
    optimiser: Any,
    *,
    steps: int | np.integer,
    seeds: int | np.integer | Sequence[int] | np.ndarray = 0,
    batch_size: int | np.integer | None = None,
    evaluate: Callable[..., dict[str, Any]] | None = None,
    test_data: PyTree = None,
    keep: str | None = None,
    patience: int | np.integer | None = None,
    block: int | np.integer = 100,
    devices: int | np.integer | Sequence[Any] | None = None,
    folder: str | Path | None = None,
    config: dict[str, Any] | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    progress: bool | Callable[[int, Any], None] = True,
    tensorboard: bool = False,
    stop: threading.Event | None = None,
) -> Trained:
    """Minimises `loss` over models made by `make`, in blocks of steps compiled as one.

    Use it for runs that are long, may be interrupted, or have several seeds. For anything else, a
    loop of your own does as well, since models are ordinary pytrees.

    **Arguments:**

    - `loss(model, batch)`: returns one value for each row of the batch, of which the mean is
      minimised. A single value is accepted if all batches are full. It may return
      `(values, metrics)` with a dictionary of further metrics to record at each step. Metrics of
      the last batch of a pass include the rows that fill it up; the loss leaves these out.
      `loss(model, batch, key)` gets a new random key at each step, for dropout or noise.
    - `make(key)`: returns the initial model. Its inexact arrays are trained.
    - `data`: arrays with a common first axis, the rows. They stay on the device.
    - `optimiser`: an optax gradient transformation. Those that need the loss work too, such as
      `optax.contrib.reduce_on_plateau()` and `optax.lbfgs()`.
    - `steps`: the number of steps. A run in a folder may be given more steps later. It continues
      from its last whole block, and ends as a run that had them from the start.
    - `seeds`: one seed, or several. Several are trained side by side in one vmapped program. It is
      compiled once, and on a CPU it is faster than one seed after the other.
    - `batch_size`: rows in each step. The rows are shuffled anew in each pass over the data, and
      the last batch of a pass may be smaller. None uses all rows in every step.
    - `evaluate(model, test_data)`: returns a dictionary of metrics, recorded after each block.
    - `keep`: a metric of `evaluate`, one real number. `train` then returns, for each seed, the
      model with the least value of it after a block, instead of the last model.
    - `patience`: stops the training if no seed has had a new minimum of `keep` for this number of
      blocks.
    - `block`: steps in one compiled call. Progress, metrics and checkpoints come between blocks.
    - `devices`: a number of devices, or a list of them, that share the rows of each step. The batch
      size must be a multiple of their number. The result equals that of one device up to rounding.
      With several processes (`jax.distributed`), each calls `train` alike with
      `devices=jax.devices()`, and the first one writes the folder.
    - `folder`: receives configuration, metrics, checkpoints and the mark `done.json`. A run that is
      there already is resumed, or begun anew with `resume=False`. None writes nothing.
    - `config`: further entries of the run's configuration. A folder is refused if its run had
      another configuration, other data or another initial model. Functions cannot be compared, so
      put values here that distinguish runs, such as the learning rate.
    - `checkpoint_seconds`: the least time between two checkpoints.
    - `progress`: whether to show the loss and the time left on stderr. A function is called after
      each block instead, with the number of its last step and the loss of that step.
    - `tensorboard`: whether to write event files as well.
    - `stop`: if another thread sets this event, the run ends after the current block, as by Ctrl-C.

    **Returns:** a `Trained`.
    """
    check_functions(loss, make, optimiser, evaluate)
    config = {} if config is None else config
    check_run(folder, config, checkpoint_seconds, tensorboard, stop)
    schedule = check_schedule(steps, block, batch_size, seeds, keep, patience, evaluate)
    data, test_data = to_device(data, "data"), to_device(test_data, "test_data")
    check_rows(data)
    mesh = make_mesh(devices, schedule.batch_size or count_rows(data), count_rows(data))
    program = Program(loss, optimiser, schedule.batch_size, evaluate, schedule.single_seed, mesh)
    state = initial_state(program, make, jnp.asarray(schedule.seeds), keep is not None)
    run: MemoryRun | Any = MemoryRun()
    if folder is not None and jax.process_index() == 0:
        entries = schedule.to_config() | {f"config.{name}": x for name, x in config.items()}
        entries |= {"data": fingerprint(data), "start": fingerprint(state)}
        entries |= {} if evaluate is None else {"test_data": fingerprint(test_data)}
        run = _open_folder(Path(folder), entries, resume, tensorboard)
    with run:
        position = _restore(run, state, schedule)
        state, data, test_data = replicate(mesh, (position.state, data, test_data))
        position = position._replace(state=state)
        clock = _Clock(position.seconds, checkpoint_seconds)
        report = progress if callable(progress) else None
        shown = bool(progress) and report is None
        with Progress(run.name, position.step, schedule.steps, shown=shown) as bar:
            loop = _Loop(program, schedule, data, test_data, run, clock, bar, report, stop)
            position = loop.run(position)
        run.finish(position.step, position.seconds)
        state = position.state
        model = state.model if state.best is None else state.best[0]
        return Trained(model, _to_series(run.records), position.seconds)


class MemoryRun:
    """A run without a folder."""

    name = "training"

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __enter__(self) -> "MemoryRun":
        return self

    def __exit__(self, *_: object) -> None: ...

    def restore(self, state: PyTree, usable: Callable[[int], bool]) -> tuple[int, PyTree, float]:
        return 0, state, 0.0

    def append(self, records: Sequence[Record]) -> None:
        self.records += [null_to_nan(to_json(record)) for record in records]

    def save(self, step: int, state: PyTree, seconds: float) -> None: ...

    def finish(self, step: int, seconds: float) -> None: ...


def _open_folder(folder: Path, config: dict[str, Any], resume: bool, tensorboard: bool) -> Any:
    load("msgspec")  # `import lagrax` does without this extra.
    from ._run_folder import RunFolder

    return RunFolder(folder, config, resume=resume, tensorboard=tensorboard)


# --- the loop over blocks -------------------------------------------------------------------------


class Position(NamedTuple):
    """The point that a run has reached."""

    step: int
    state: TrainingState
    seconds: float


def _restore(run: Any, state: TrainingState, schedule: Schedule) -> Position:
    # A run that ended within a block, and has more steps now, continues before that block.
    usable = lambda step: step == schedule.steps or step % schedule.block == 0
    step, state, seconds = run.restore(state, usable)
    step, state, seconds, run.records = broadcast_from_first(step, state, seconds, run.records)
    return Position(step, state, seconds)


class _Loop(NamedTuple):
    """Runs blocks until the steps are done, patience is lost, or `stop` is set."""

    program: Program
    schedule: Schedule
    data: PyTree
    test_data: PyTree
    folder: Any
    clock: "_Clock"
    bar: Progress
    report: Callable[[int, Any], None] | None
    stop: threading.Event | None

    def run(self, position: Position) -> Position:
        try:
            while not self._is_over(position.step):
                # A single assignment, so that Ctrl-C finds either the old or the new position.
                position = self._run_block(position)
                self._show(position.step, self.folder.records[-1]["loss"])
                if self._is_last_whole_block(position.step) or self.clock.checkpoint_due():
                    self.folder.save(*position)
                if self.stop is not None and self.stop.is_set():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if position.step > 0:
                self.folder.save(*position)
            raise
        return position

    def _run_block(self, position: Position) -> Position:
        schedule, (step, state, _) = self.schedule, position
        length = min(schedule.block, schedule.steps - step)
        state, records = run_block(
            self.program, state, self.data, self.test_data, step, length, schedule.keep
        )
        self.folder.append(records)
        _check_finite(records)
        return Position(step + length, state, self.clock.seconds())

    def _show(self, step: int, loss: Any) -> None:
        self.bar.update(step, f"loss {float(np.median(loss)):.3g}")
        if self.report is not None:
            self.report(step, loss)

    def _is_over(self, step: int) -> bool:
        return step >= self.schedule.steps or _is_patience_lost(self.folder.records, self.schedule)

    def _is_last_whole_block(self, step: int) -> bool:
        """Whether the run ends here or within the next block. Given more steps later, it continues
        from here."""
        return self._is_over(step) or self.schedule.steps - step < self.schedule.block


class _Clock:
    """Seconds of training, continued from an earlier attempt."""

    def __init__(self, seconds: float, interval: float):
        self._seconds = self._last = seconds
        self._interval = interval
        self._now = time.monotonic()

    def seconds(self) -> float:
        now = time.monotonic()
        # A monotonic clock may go back where a virtual machine is moved to another host.
        self._seconds += max(now - self._now, 0.0)
        self._now = now
        return self._seconds

    def checkpoint_due(self) -> bool:
        due = self.seconds() - self._last >= self._interval
        if due:
            self._last = self._seconds
        return due


def _is_patience_lost(records: Sequence[Record], schedule: Schedule) -> bool:
    """Depends on the records alone, so a resumed run ends at the same step."""
    keep, patience = schedule.keep, schedule.patience
    if patience is None:
        return False
    values = np.array([record[keep] for record in records if keep in record], float)
    if len(values) <= patience:
        return False
    values = np.where(np.isnan(values), np.inf, values).reshape(len(values), -1)
    return int(np.argmin(values, axis=0).max()) < len(values) - patience


def _check_finite(records: list[Record]) -> None:
    if not np.any(np.isfinite(records[-1]["loss"])):
        first = next(r["step"] for r in records if not np.any(np.isfinite(r["loss"])))
        raise TrainingError(
            f"The loss is not finite from step {first} on. Lower the learning rate, clip the "
            "gradients (optax.clip_by_global_norm), or check the data for NaN and infinities."
        )


def _to_series(records: Sequence[Record]) -> dict[str, Series]:
    names = dict.fromkeys(name for record in records for name in record if name != "step")
    return {
        name: Series(
            np.array([r["step"] for r in records if name in r]),
            np.array([r[name] for r in records if name in r]),
        )
        for name in names
    }
