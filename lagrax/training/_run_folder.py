"""The folder of one training run, with configuration, metrics, checkpoints and a mark at its end.

```
config.json              the configuration of the run, and the versions it was started with
metrics.jsonl            one line a step
checkpoints/step-….safetensors
tensorboard/             event files, if asked for
done.json                the summary; present once the run has ended
```

Metrics are appended, and are on the disk before the checkpoint that counts on them. Every other
file is written under a temporary name and then renamed. A run can therefore be resumed after a kill
at any moment. A checkpoint carries a digest of itself and of the metrics before it; one that does
not match is set aside.

This module needs msgspec, so `train` imports it only where a folder is given.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import PyTree

from . import _machine
from ._checkpoints import load_checkpoint, save_checkpoint
from ._errors import RESTART, DamagedError, RunError
from ._files import read_json, write_json, writing
from ._machine import load
from ._metrics import MetricsFile, Record, null_to_nan, read_metrics, to_json
from ._tensorboard import EventFile

# Other versions of these may change the last digits.
COMPUTING = ("lagrax", "jax", "jaxlib", "diffrax", "equinox", "numpy", "optax")

# If the newest checkpoint is damaged, the one before it serves.
KEPT_CHECKPOINTS = 2

# --- records --------------------------------------------------------------------------------------

Count = Annotated[int, msgspec.Meta(ge=0)]


class ConfigFile(msgspec.Struct):
    """The content of config.json."""

    config: dict[str, Any]
    machine: Any = None


class MachineVersions(msgspec.Struct):
    """The part of a machine's description that decides the last digits."""

    versions: dict[str, Any] = {}


class DoneFile(msgspec.Struct):
    """The content of done.json, including the last record of metrics."""

    steps: Count
    seconds: float
    last: dict[str, Any]


class CheckpointHeader(msgspec.Struct):
    """The metadata of a checkpoint.

    `seconds` is the time of training so far. `bytes` and `metrics` are the size and the digest of
    metrics.jsonl after `step`.
    """

    step: Count = 0
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0  # infinity is refused
    bytes: Count = 0
    metrics: str = hashlib.sha256().hexdigest()


def parse_header(metadata: dict[str, str]) -> CheckpointHeader:
    values = {}
    for field in msgspec.structs.fields(CheckpointHeader):
        text = metadata.get(field.name)
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError:
            raise DamagedError(f"its {field.name} is {text!r:.40}") from None
    return CheckpointHeader(**values)


class Resumption(NamedTuple):
    """The checkpoint at which a run continues, and the metrics before it."""

    state: PyTree
    header: CheckpointHeader
    metrics: tuple[bytes, list[Record]]


# --- the folder -----------------------------------------------------------------------------------


class RunFolder:
    """Creates or opens the folder of a run, and locks it until the end of the `with` block."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *,
        resume: bool = True,
        tensorboard: bool = False,
    ):
        self.folder, self.name = folder, folder.name
        self.records: list[Record] = []
        # As it will be read back. JSON has no NaN and no infinity; as texts they equal themselves.
        self._config = json.loads(json.dumps(config), parse_constant=str)
        self._resume, self._tensorboard = resume, tensorboard
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "RunFolder":
        with self._closing, writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_kinds_of_files(self.folder)
            self._lock()
            if not self._resume:
                _remove_run(self.folder)
            for place in (self.folder, self.folder / "checkpoints"):
                for unfinished in place.glob(".*.part"):  # of a process that was killed
                    unfinished.unlink()
            self._machine = self._compare_config(self.folder / "config.json")
            # After an error above, this `with` releases the lock; from here on `__exit__` does.
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _lock(self) -> None:
        """Locks the folder. The system releases the lock when the process ends, in any way."""
        filelock = load("filelock")
        lock = filelock.FileLock(self.folder / "lock", timeout=0)
        self._closing.callback(lock.release)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise RunError(
                f"{self.folder} is in use by another process. Wait for it to end, or choose "
                "another folder."
            ) from None

    def _compare_config(self, path: Path) -> Any:
        """Writes the configuration, or compares it with that of the run to be resumed. Returns the
        description of the machine on which the run was started."""
        if not path.exists():
            machine = _machine.describe()
            write_json(path, {"config": self._config, "machine": machine})
            return machine
        content, file = _read_config(path)
        before, now = file.config, self._config
        names = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        if names == ["steps"] and before.get("steps") in range(now["steps"]):
            # The run is given more steps. No step depends on their number.
            write_json(path, content | {"config": now})
        elif names:
            changes = ", ".join(f"{k} was {before.get(k)}, now {now.get(k)}" for k in names)
            raise RunError(
                f"{self.folder} holds a run with other settings ({changes}). Choose another "
                f"folder, or {RESTART}."
            )
        return file.machine

    # --- reading

    def restore(
        self, state: PyTree, usable: Callable[[int], bool] = lambda step: True
    ) -> tuple[int, PyTree, float]:
        """Step, state and seconds of the newest sound checkpoint whose step is `usable`. Without
        one, returns `state` at step 0."""
        with writing(self.folder):
            found = self._find_checkpoint(state, usable)
            step, (content, self.records) = found.header.step, found.metrics
            if 0 < step < self._config["steps"]:
                self._warn_of_versions()
            self._metrics = MetricsFile(self.folder / "metrics.jsonl", step, content)
            self._closing.callback(self._metrics.close)
            self._events = None
            if self._tensorboard:
                self._events = EventFile(self.folder / "tensorboard", step)
                self._closing.callback(self._events.close)
        return step, found.state, found.header.seconds

    def _find_checkpoint(self, state: PyTree, usable: Callable[[int], bool]) -> Resumption:
        for path in reversed(_list_checkpoints(self.folder)):
            try:
                loaded, metadata = load_checkpoint(path, state)
                header = parse_header(metadata)
                if not usable(header.step):
                    path.unlink()
                    continue
                return Resumption(loaded, header, self._read_metrics(header))
            except DamagedError as damage:
                _set_aside(path, damage)
        start = CheckpointHeader()
        return Resumption(state, start, self._read_metrics(start))

    def _read_metrics(self, header: CheckpointHeader) -> tuple[bytes, list[Record]]:
        return read_metrics(self.folder / "metrics.jsonl", header.bytes, header.metrics)

    def _warn_of_versions(self) -> None:
        now = _machine.versions()
        try:
            before = msgspec.convert(self._machine, MachineVersions).versions
        except msgspec.ValidationError:
            before = {}
        changes = [
            f"{name} was {before[name]!r:.40}, now {now[name]!r}"
            for name in COMPUTING
            if before.get(name, now[name]) != now[name]
        ]
        if changes:
            print(
                f"{self.folder} was begun with other versions ({', '.join(changes)}). Training "
                "continues. Its last digits may differ from those of a run with the same versions "
                "throughout.",
                file=sys.stderr,
            )

    # --- writing

    def append(self, records: Sequence[Record]) -> None:
        """Appends the metrics of a block."""
        records = [to_json(record) for record in records]
        with writing(self.folder):
            # The run is no longer done if its damaged end is computed again.
            (self.folder / "done.json").unlink(missing_ok=True)
            self._metrics.append(records)
            self.records += [null_to_nan(record) for record in records]
            if self._events is not None:
                self._events.append(self.records[-len(records) :])

    def save(self, step: int, state: PyTree, seconds: float) -> None:
        """Saves the state after `step`, the end of the last block or of the one before it."""
        with writing(self.folder):
            self._metrics.check_in_place()
            metadata = {"step": str(step), "seconds": f"{seconds:.3f}"}
            metadata |= self._metrics.sync(step)
            path = self.folder / "checkpoints" / f"step-{step:08}.safetensors"
            save_checkpoint(path, state, metadata)
            for path in _list_checkpoints(self.folder)[:-KEPT_CHECKPOINTS]:
                path.unlink()

    def finish(self, step: int, seconds: float) -> None:
        """Marks the run as done, unless it is marked already."""
        path = self.folder / "done.json"
        if _is_done_file(path):
            return
        last = {name: x for name, x in self.records[-1].items() if np.ndim(x) < 2}
        done = DoneFile(step, round(seconds, 3), to_json(last))
        with writing(self.folder):
            self._metrics.check_in_place()
            write_json(path, msgspec.structs.asdict(done))


def _check_kinds_of_files(folder: Path) -> None:
    """Raises for links and devices among the files that a run changes or removes."""
    expected = {"lock": "regular file", "metrics.jsonl": "regular file"}
    expected |= {"checkpoints": "folder", "tensorboard": "folder"}
    for name, kind in expected.items():
        path = folder / name
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            found = "a link" if stat.S_ISLNK(mode) else "a pipe or a device"
            raise RunError(
                f"{path} is {found}; expected a {kind}. Remove it, or choose another folder."
            )


def _remove_run(folder: Path) -> None:
    """Removes the files of a run, and no others. The configuration goes last, since it says to
    which run the checkpoints belong."""
    (folder / "done.json").unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for name in ("metrics.jsonl", "config.json"):
        (folder / name).unlink(missing_ok=True)


def _read_config(path: Path) -> tuple[dict[str, Any], ConfigFile]:
    """The content of config.json as it stands, and the parts that lagrax knows."""
    try:
        content = read_json(path, constant=str)
        return content, msgspec.convert(content, ConfigFile)
    except msgspec.ValidationError:
        reason: object = "it does not hold a configuration"
    except (ValueError, OSError) as error:
        reason = error
    raise RunError(f"{path} cannot be read: {reason}. Remove its folder, or choose another one.")


def _is_done_file(path: Path) -> bool:
    try:
        msgspec.convert(read_json(path), DoneFile)
    except (ValueError, OSError):
        return False
    return True


def _list_checkpoints(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    paths = (folder / "checkpoints").glob("step-*.safetensors")
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def _set_aside(path: Path, damage: DamagedError) -> None:
    aside = path.with_suffix(".damaged")
    os.replace(path, aside)
    print(
        f"{path} is damaged ({damage}). It is set aside as {aside.name}, and training continues "
        "from the state before it.",
        file=sys.stderr,
    )
