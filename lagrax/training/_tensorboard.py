"""Event files for TensorBoard."""

import contextlib
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._machine import load


class EventFile:
    """Writes metrics to an event file, in the calling thread.

    It uses the record writer of tensorboardX. On a full disk (tensorboardX 2.6.5, 64 KiB), the
    `add_scalar` of `SummaryWriter` waits forever for a thread that has ended, and `EventsWriter`
    leaves its file open.
    """

    def __init__(self, folder: Path, step: int):
        library = load("tensorboardX")
        proto = library.proto
        self._event, self._summary = proto.event_pb2.Event, proto.summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # The number keeps names apart if a run is resumed twice within a second.
        number = len(list(folder.iterdir()))
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{number}"
        self._file = library.record_writer.RecordWriter(str(folder / name))
        self._write(0, file_version="brain.Event:2")
        # TensorBoard then ignores what an interrupted run wrote after its checkpoint.
        start = proto.event_pb2.SessionLog(status=proto.event_pb2.SessionLog.START)
        self._write(step + 1, session_log=start)

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            values = [
                self._summary.Value(tag=tag, simple_value=number)
                for name, value in record.items()
                for tag, number in _curve_points(name, value)
            ]
            self._write(record["step"], summary=self._summary(value=values))
        self._file.flush()

    def _write(self, step: int, **content: Any) -> None:
        event = self._event(step=step, wall_time=time.time(), **content)
        self._file.write(event.SerializeToString())

    def close(self) -> None:
        # Everything has been flushed. A full disk has been reported by `append`.
        with contextlib.suppress(OSError):
            self._file.close()


def _curve_points(name: str, value: Any) -> list[tuple[str, float]]:
    """Tag and value of each curve, one for each seed. Metrics that are arrays have no curve."""
    if name == "step" or np.ndim(value) > 1:
        return []
    if np.ndim(value) == 0:
        return [(name, float(value))]
    return [(f"{name}/{i}", float(x)) for i, x in enumerate(value)]
