"""Progress of trainings on stderr, in a live table on a terminal and in plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lagrax.training._machine import load


class _Row:
    """The progress of one training, over all of its seeds."""

    def __init__(self, runs: int, iterations: int):
        self.runs, self.iterations = runs, iterations
        self.done: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.finished: set[int] = set()
        self.seconds = 0.0

    @property
    def steps(self) -> int:
        return sum(self.done.values())

    @property
    def steps_left(self) -> int:
        return self.runs * self.iterations - self.steps

    @property
    def is_finished(self) -> bool:
        return len(self.finished) == self.runs

    def show_iteration(self) -> str:
        seeds = "" if self.runs == 1 else f"{self.runs} × "
        reached = f"{self.steps // self.runs:,} of " if self.steps_left else ""
        return f"{reached}{seeds}{self.iterations:,}"

    def show_loss(self) -> str:
        return f"{np.median(list(self.losses.values())):.2e}" if self.losses else ""


class TrainingDisplay:
    """One row for each training, by its label. Use it as a context manager."""

    def __init__(self, shown: bool = True):
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._terminal = shown and sys.stderr.isatty()
        self._lines = shown and not self._terminal
        self._live: Any = None
        self._start = time.monotonic()
        self._known_steps = 0  # of runs that were finished before

    def __enter__(self) -> "TrainingDisplay":
        self._start = time.monotonic()
        if self._terminal:
            console = load("rich.console").Console(stderr=True)
            self._live = load("rich.live").Live(
                get_renderable=self._table, console=console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def knows_runs(self) -> bool:
        """Whether some runs were finished before."""
        return self._known_steps > 0

    def add(self, label: str, runs: int, iterations: int) -> None:
        with self._lock:
            self._rows[label] = _Row(runs, iterations)

    def reporter(self, label: str, run: int = 0) -> Callable[[int, Any], None]:
        """The function to call after each block of a run, with its step and its loss."""

        def report(step: int, loss: Any) -> None:
            with self._lock:
                self._rows[label].done[run] = step
                self._rows[label].losses[run] = float(np.median(loss))

        return report

    def finish(self, label: str, run: int, loss: Any, seconds: float) -> None:
        """Marks a run as finished, whether it was trained now or before, in `seconds` in all."""
        row = self._rows[label]
        with self._lock:
            if run not in row.done:
                self._known_steps += row.iterations
            row.done[run] = row.iterations
            row.losses[run] = float(np.median(loss))
            row.finished.add(run)
            row.seconds += seconds
            if row.is_finished and self._lines:
                line = f"{label}: {row.show_iteration()} iterations, loss {row.show_loss()}"
                print(f"{line}, {row.seconds:.0f} s", file=sys.stderr, flush=True)

    def _table(self) -> Any:
        table = load("rich.table").Table(box=load("rich.box").SIMPLE_HEAD, pad_edge=False)
        table.add_column("model")
        for name in ("iteration", "loss", "time left"):
            table.add_column(name, justify="right")
        with self._lock:
            pace = self._seconds_per_step()
            for label, row in self._rows.items():
                left = "done" if row.is_finished else self._show_left(pace, row)
                table.add_row(label, row.show_iteration(), row.show_loss(), left)
            if len(self._rows) > 1:
                table.caption = self._describe_left(pace)
        return table

    def _seconds_per_step(self) -> float | None:
        """Of all trainings together, as they share the cores."""
        steps = sum(row.steps for row in self._rows.values()) - self._known_steps
        return (time.monotonic() - self._start) / steps if steps else None

    def _show_left(self, pace: float | None, row: _Row) -> str:
        return "" if pace is None else f"{pace * row.steps_left:.0f} s"

    def _describe_left(self, pace: float | None) -> str:
        steps = sum(row.steps_left for row in self._rows.values())
        if pace is None:
            return "compiling" if steps else ""
        return f"{pace * steps:.0f} s left in all" if steps else ""
