"""Progress of an experiment's trainings on stderr: a live table on a terminal, else plain lines."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from lagrax.training._machine import load


class _Row:
    """The progress of one training, over all of its seeds."""

    def __init__(self, runs: int, iterations: int):
        self.runs, self.iterations = runs, iterations
        self.done: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.start: float | None = None
        self.end = 0.0

    @property
    def steps(self) -> int:
        return sum(self.done.values())

    @property
    def total(self) -> int:
        return self.runs * self.iterations

    @property
    def is_finished(self) -> bool:
        return self.steps == self.total

    def show_iteration(self) -> str:
        seeds = "" if self.runs == 1 else f"{self.runs} × "
        reached = "" if self.is_finished else f"{self.steps // self.runs:,} of "
        return f"{reached}{seeds}{self.iterations:,}"

    def show_loss(self) -> str:
        return f"{np.median(list(self.losses.values())):.2e}" if self.losses else ""

    def show_time(self) -> str:
        if self.start is None:
            return ""
        if self.is_finished:
            return f"done in {self.end - self.start:.0f} s"
        if not self.steps:
            return "compiling"
        spent = time.monotonic() - self.start
        return f"{spent * (self.total - self.steps) / self.steps:.0f} s"


class TrainingDisplay:
    """One row for each training, by its label. Use it as a context manager."""

    def __init__(self, shown: bool = True):
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._terminal = shown and sys.stderr.isatty()
        self._lines = shown and not self._terminal
        self._live: Any = None

    def __enter__(self) -> "TrainingDisplay":
        if self._terminal:
            console = load("rich.console").Console(stderr=True)
            self._live = load("rich.live").Live(
                get_renderable=self._table, console=console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def add(self, label: str, runs: int, iterations: int) -> None:
        with self._lock:
            self._rows[label] = _Row(runs, iterations)

    def reporter(self, label: str, run: int = 0) -> Callable[[int, Any], None]:
        """Marks a run as started. Returns the function to call after each of its blocks, with the
        step and its loss."""
        row = self._rows[label]
        with self._lock:
            row.start = row.start or time.monotonic()

        def report(step: int, loss: Any) -> None:
            with self._lock:
                row.done[run] = step
                row.losses[run] = float(np.median(loss))
                self._note_end(label, row)

        return report

    def finish(self, label: str, run: int, loss: Any) -> None:
        """Marks a run as complete, whether it was trained now or before."""
        row = self._rows[label]
        if row.done.get(run) != row.iterations:
            self.reporter(label, run)(row.iterations, loss)

    def _note_end(self, label: str, row: _Row) -> None:
        if not row.is_finished:
            return
        row.end = time.monotonic()
        if self._lines:
            line = f"{label}: {row.show_iteration()} iterations, loss {row.show_loss()}"
            print(f"{line}, {row.show_time()}", file=sys.stderr, flush=True)

    def _table(self) -> Any:
        table = load("rich.table").Table(box=load("rich.box").SIMPLE_HEAD, pad_edge=False)
        table.add_column("model")
        for name in ("iteration", "loss", "time left"):
            table.add_column(name, justify="right")
        with self._lock:
            for label, row in self._rows.items():
                table.add_row(label, row.show_iteration(), row.show_loss(), row.show_time())
        return table
