"""The folder of one training run: configuration, metrics, checkpoints, and the mark of its end.

```
config.json              what was asked for, and with which versions
metrics.jsonl            one line a step
checkpoints/step-….safetensors
tensorboard/             event files, if asked for
done.json                the summary; there once the run has ended
```

Metrics are appended, and are on the disk before the checkpoint that counts on them; all else is
written under another name and then renamed. So a kill at any moment leaves a state to continue
from. A checkpoint carries a digest of itself and of the metrics before it: what does not fit is set
aside.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from . import _machine
from ._files import check_regular, parse_json, read_json, write_atomically, write_json, writing
from ._machine import load

Record = dict[str, Any]

BEGIN_ANEW = "begin anew (resume=False, or --no-resume)"

# Other versions of these may change the last digits.
COMPUTING = ("lagrax", "jax", "jaxlib", "diffrax", "equinox", "numpy", "optax")

# The newest may turn out damaged; then the one before it serves.
KEPT_CHECKPOINTS = 2

# Bytes of names and shapes in a checkpoint, which safetensors limits to as many.
MOST_HEADER = 10**8


class RunError(RuntimeError):
    """A run folder cannot be used; the message says why and what to do."""


class InMemory:
    """A run that leaves nothing behind."""

    name = "training"

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __enter__(self) -> "InMemory":
        return self

    def __exit__(self, *_: object) -> None: ...

    def restore(
        self, state: PyTree, usable: Callable[[int], bool] = lambda step: True
    ) -> tuple[int, PyTree, float]:
        return 0, state, 0.0

    def append(self, records: Sequence[Record]) -> None:
        self.records += _filled([_plain(record) for record in records])

    def save(self, step: int, state: PyTree, seconds: float) -> None: ...

    def finish(self, step: int, seconds: float) -> None: ...


class _End(NamedTuple):
    """How far metrics.jsonl goes after the lines of `step`, and the digest of all of these."""

    step: int
    size: int
    digest: Any

    def move(self, step: int, content: bytes) -> "_End":
        digest = self.digest.copy()
        digest.update(content)
        return _End(step, self.size + len(content), digest)


class RunFolder:
    """Makes or opens the folder of a run and holds it alone until the end of the `with` block."""

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
        # As its file has it. JSON has no NaN and no infinity; as texts they equal themselves.
        self._config = json.loads(json.dumps(config), parse_constant=str)
        self._resume, self._tensorboard = resume, tensorboard
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "RunFolder":
        with self._closing, writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_own(self.folder)
            lock = load("filelock").FileLock(self.folder / "lock", timeout=0)
            self._closing.callback(lock.release)
            _hold_alone(self.folder, lock)
            if not self._resume:
                _clear(self.folder)
            for place in (self.folder, self.folder / "checkpoints"):
                for unfinished in place.glob(".*.part"):  # of a process that was killed
                    unfinished.unlink()
            self._settle_config(self.folder / "config.json")
            # Up to here a failure lets go of what was opened; from here on `__exit__` does.
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _settle_config(self, path: Path) -> None:
        if not path.exists():
            self._machine = _machine.describe()
            write_json(path, {"config": self._config, "machine": self._machine})
            return
        found = _read_config(path)
        before = found.get("config") if isinstance(found, dict) else None
        if not isinstance(before, dict):
            raise _unreadable(path, "it does not hold a configuration")
        self._machine = found.get("machine")
        names = sorted(
            k for k in before.keys() | self._config.keys() if before.get(k) != self._config.get(k)
        )
        if names == ["steps"] and before.get("steps") in range(self._config["steps"]):
            # The same run, which is to go on: nothing that a step does depends on their number.
            write_json(path, found | {"config": self._config})
        elif names:
            changes = ", ".join(
                f"{k} was {before.get(k)}, now {self._config.get(k)}" for k in names
            )
            raise RunError(
                f"{self.folder} holds a run with other settings ({changes}). Choose another "
                f"folder, or {BEGIN_ANEW}."
            )

    # --- reading

    def restore(
        self, state: PyTree, usable: Callable[[int], bool] = lambda step: True
    ) -> tuple[int, PyTree, float]:
        """Step, state and seconds of the newest sound checkpoint of a `usable` step; else `state`
        at step 0."""
        with writing(self.folder):
            restored, about = self._newest_sound(state, usable)
            step = int(about["step"])
            if 0 < step < self._config["steps"]:
                self._warn_of_versions()
            self._open_metrics(step, int(about["bytes"]))
            self._events = self._open_events(step) if self._tensorboard else None
        return step, restored, float(about["seconds"])

    def _newest_sound(
        self, state: PyTree, usable: Callable[[int], bool]
    ) -> tuple[PyTree, dict[str, str]]:
        for path in reversed(_checkpoints(self.folder)):
            try:
                restored, about = load_checkpoint(path, state)
                _check_about(about)
                if not usable(int(about["step"])):
                    path.unlink()
                    continue
                self._check_metrics(int(about["bytes"]), about["metrics"])
            except Damaged as damage:
                _set_aside(path, damage)
            else:
                return restored, about
        return state, {"step": "0", "bytes": "0", "seconds": "0"}

    def _warn_of_versions(self) -> None:
        before = self._machine.get("versions") if isinstance(self._machine, dict) else None
        before, now = before if isinstance(before, dict) else {}, _machine.versions()
        others = [
            f"{name} was {before[name]!r:.40}, now {now[name]!r}"
            for name in COMPUTING
            if before.get(name, now[name]) != now[name]
        ]
        if others:
            print(
                f"{self.folder} was begun with other versions ({', '.join(others)}). Training goes "
                "on; its last digits may differ from those of a run with the same versions "
                "throughout.",
                file=sys.stderr,
            )

    def _check_metrics(self, size: int, digest: str) -> None:
        path = self.folder / "metrics.jsonl"
        content = b""
        if path.exists() and path.stat().st_size >= size:
            with path.open("rb") as file:
                content = file.read(size)
        if len(content) < size or hashlib.sha256(content).hexdigest() != digest:
            raise Damaged("metrics.jsonl does not hold the lines that it counts on")
        try:
            lines = [parse_json(line.decode()) for line in content.splitlines()]
        except ValueError as error:
            raise Damaged(f"metrics.jsonl cannot be read: {error}") from None
        if not all(isinstance(line, dict) and "step" in line for line in lines):
            raise Damaged("metrics.jsonl holds a line without a step")

    def _open_metrics(self, step: int, size: int) -> None:
        path = self.folder / "metrics.jsonl"
        # Without a buffer: what a full disk has refused must not be written again when it closes.
        self._metrics = path.open("ab", buffering=0)
        self._closing.callback(self._metrics.close)
        # Lines behind the checkpoint are written again, by the same steps.
        self._metrics.truncate(size)
        content = path.read_bytes()
        self.records = [_filled(json.loads(line)) for line in content.splitlines()]
        self._ends = (_End(step, len(content), hashlib.sha256(content)),)

    # --- writing

    def append(self, records: Sequence[Record]) -> None:
        plain = [_plain(record) for record in records]
        content = "".join(json.dumps(record) + "\n" for record in plain).encode()
        with writing(self.folder):
            # Not done any longer, if a damaged end is computed again.
            (self.folder / "done.json").unlink(missing_ok=True)
            _write_all(self._metrics, content)
            # One assignment, which Ctrl-C cannot divide. Before and after it there is the end that
            # belongs to the loop's state.
            self._ends = (self._ends[-1], self._ends[-1].move(records[-1]["step"], content))
            self.records += _filled(plain)
            if self._events is not None:
                self._events.write(self.records[-len(records) :])

    def save(self, step: int, state: PyTree, seconds: float) -> None:
        """Saves the state after `step`, with which the last block or the one before it ended."""
        (end,) = (end for end in self._ends if end.step == step)
        about = {
            "step": str(step),
            "seconds": f"{seconds:.3f}",
            "bytes": str(end.size),
            "metrics": end.digest.hexdigest(),
        }
        with writing(self.folder):
            self._check_there()
            os.fsync(self._metrics.fileno())
            save_checkpoint(_checkpoint_path(self.folder, step), state, about)
            for path in _checkpoints(self.folder)[:-KEPT_CHECKPOINTS]:
                path.unlink()

    def finish(self, step: int, seconds: float) -> None:
        path = self.folder / "done.json"
        if _is_json(path):
            return
        last = {name: x for name, x in self.records[-1].items() if np.ndim(x) < 2}
        summary = {"steps": step, "seconds": round(seconds, 3), "last": _plain(last)}
        with writing(self.folder):
            self._check_there()
            write_json(path, summary)

    def _check_there(self) -> None:
        """What is written to a removed file is lost, and the system says nothing."""
        path = self.folder / "metrics.jsonl"
        if not os.path.samestat(os.fstat(self._metrics.fileno()), path.stat()):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", str(path))

    def _open_events(self, step: int) -> "_Events":
        events = _Events(self.folder / "tensorboard", step)
        self._closing.callback(events.close)
        return events


def _check_own(folder: Path) -> None:
    """Refuses links and devices where the run changes what is there: it changes its own alone."""
    expected = {"lock": "regular file", "metrics.jsonl": "regular file"}
    expected |= {"checkpoints": "folder", "tensorboard": "folder"}
    for name, kind in expected.items():
        path = folder / name
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            what = "a link" if stat.S_ISLNK(mode) else "a pipe or a device"
            raise RunError(
                f"{path} is {what}; expected a {kind}. Remove it, or choose another folder."
            )


def _hold_alone(folder: Path, lock: Any) -> None:
    """The system lets go of the lock when the process ends, in whatever way."""
    try:
        lock.acquire()
    except load("filelock").Timeout:
        raise RunError(
            f"{folder} is in use by another process. Wait for it to end, or choose another folder."
        ) from None


def _clear(folder: Path) -> None:
    """Removes what a run has written, and nothing else that may lie there. The configuration comes
    last: as long as there are checkpoints it must be known whose they are."""
    (folder / "done.json").unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for name in ("metrics.jsonl", "config.json"):
        (folder / name).unlink(missing_ok=True)


def _read_config(path: Path) -> Any:
    try:
        return read_json(path, constant=str)
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _is_json(path: Path) -> bool:
    try:
        read_json(path)
    except (ValueError, OSError):
        return False
    return True


def _unreadable(path: Path, why: object) -> RunError:
    return RunError(f"{path} cannot be read: {why}. Remove its folder, or choose another one.")


# --- metrics --------------------------------------------------------------------------------------


def _plain(record: Record) -> Record:
    """Numbers as JSON has them. Not finite ones are null."""
    return {name: _numbers(value) for name, value in record.items()}


def _write_all(file: Any, content: bytes) -> None:
    """A file without a buffer may take less than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _numbers(value: Any) -> Any:
    array = np.asarray(value)
    if array.ndim:
        return [_numbers(x) for x in array]
    # Not `np.inexact`, which does not know bfloat16.
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.item()
    # The shortest digits that give the same float32 (or float64) back.
    return float(str(array[()])) if np.isfinite(array) else None


def _filled(value: Any) -> Any:
    """NaN again where the file has null."""
    if isinstance(value, dict):
        return {name: _filled(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_filled(x) for x in value]
    return math.nan if value is None else value


class _Events:
    """Event files, written at once. The writer of tensorboardX leaves that to a thread, and waits
    for ever once a full disk has ended this."""

    def __init__(self, folder: Path, step: int):
        library = load("tensorboardX")
        proto = library.proto
        self._event, self._summary = proto.event_pb2.Event, proto.summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # With a number, since a run may be continued twice in a second.
        number = len(list(folder.iterdir()))
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{number}"
        self._file = library.record_writer.RecordWriter(str(folder / name))
        self._write(0, file_version="brain.Event:2")
        # What a stopped attempt wrote behind its checkpoint does not count.
        start = proto.event_pb2.SessionLog(status=proto.event_pb2.SessionLog.START)
        self._write(step + 1, session_log=start)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            values = [
                self._summary.Value(tag=tag, simple_value=number)
                for name, value in record.items()
                for tag, number in _curves(name, value)
            ]
            self._write(record["step"], summary=self._summary(value=values))
        self._file.flush()

    def _write(self, step: int, **what: Any) -> None:
        event = self._event(step=step, wall_time=time.time(), **what)
        self._file.write(event.SerializeToString())

    def close(self) -> None:
        # All is there; a disk that is full has said so before.
        with contextlib.suppress(OSError):
            self._file.close()


def _curves(name: str, value: Any) -> list[tuple[str, float]]:
    """A curve for each seed. More than a number for each is data."""
    if name == "step" or np.ndim(value) > 1:
        return []
    if np.ndim(value) == 0:
        return [(name, float(value))]
    return [(f"{name}/{i}", float(x)) for i, x in enumerate(value)]


# --- checkpoints ----------------------------------------------------------------------------------


class Damaged(Exception):
    """What is wrong with a file."""


def save_checkpoint(path: Path, state: PyTree, about: dict[str, str]) -> None:
    """The arrays of `state` and the strings `about`, with a digest of both."""
    arrays = _arrays(state)
    save = load("safetensors.numpy").save
    write_atomically(path, save(arrays, metadata=about | {"digest": _digest(arrays, about)}))


def load_checkpoint(path: Path, like: PyTree) -> tuple[PyTree, dict[str, str]]:
    """The inverse, into the structure of `like`; a file that is not what was saved is refused."""
    wanted = _arrays(like)
    # Before anything is read: a file can claim more than any memory holds.
    if path.stat().st_size > sum(x.nbytes for x in wanted.values()) + MOST_HEADER:
        raise _another_model(path)
    arrays, about = load_arrays(path)
    expected = {name: (x.shape, str(x.dtype)) for name, x in wanted.items()}
    if {name: (x.shape, str(x.dtype)) for name, x in arrays.items()} != expected:
        raise _another_model(path)
    dynamic, static = eqx.partition(like, eqx.is_array)
    named, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    leaves = [_restored(leaf, arrays[_stored(place, leaf)[0]]) for place, leaf in named]
    return eqx.combine(jax.tree.unflatten(structure, leaves), static), about


def _another_model(path: Path) -> RunError:
    return RunError(
        f"{path} holds another model or optimiser than those to be trained. Choose another folder, "
        f"or {BEGIN_ANEW}."
    )


def load_about(path: Path) -> dict[str, str]:
    """What was written about the arrays of a checkpoint, unchecked: no array is read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    safetensors = load("safetensors")
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise Damaged(f"it cannot be read: {error}") from None


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The named arrays of a checkpoint and what was written about it."""
    with _opened(path) as file:
        about = dict(file.metadata() or {})
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if about.pop("digest", None) != _digest(arrays, about):
        raise Damaged("its content does not match its digest")
    return arrays, about


def fingerprint(tree: PyTree) -> str:
    """A few digits that change with any number in `tree`."""
    return _digest(_arrays(tree), {})[:16]


def _arrays(state: PyTree) -> dict[str, np.ndarray]:
    named, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(state, eqx.is_array))
    return dict(_stored(place, leaf) for place, leaf in named)


# Other types are stored as bytes.
SAFETENSORS_TYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
}


def _stored(place: Any, leaf: Any) -> tuple[str, np.ndarray]:
    """Name and numbers of a leaf in the file. Bytes have their type in the name."""
    name = jax.tree_util.keystr(place)
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if array.dtype.name in SAFETENSORS_TYPES:
        return name, array
    return f"{name} {array.dtype.name}", np.ascontiguousarray(array[..., None]).view(np.uint8)


def _restored(like: Any, numbers: np.ndarray) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(like))
    if np.dtype(like.dtype).name not in SAFETENSORS_TYPES:
        numbers = numbers.view(like.dtype)[..., 0]
    return jnp.asarray(numbers)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _digest(arrays: dict[str, np.ndarray], about: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _check_about(about: dict[str, str]) -> None:
    for name, kind in {"step": int, "bytes": int, "seconds": float, "metrics": str}.items():
        try:
            value = kind(about[name])
        except (KeyError, ValueError):
            value = -1
        if kind is not str and not 0 <= value < math.inf:
            raise Damaged(f"its {name} is {about.get(name)!r:.40}")


def _checkpoint_path(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08}.safetensors"


def _checkpoints(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    paths = (folder / "checkpoints").glob("step-*.safetensors")
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def _set_aside(path: Path, damage: Damaged) -> None:
    aside = path.with_suffix(".damaged")
    os.replace(path, aside)
    print(
        f"{path} is damaged ({damage}). It is set aside as {aside.name}, and training goes on from "
        "what came before it.",
        file=sys.stderr,
    )
