"""Shows progress on stderr, as a bar in a terminal and a line every ten seconds elsewhere."""

import sys
import threading
import time
from typing import Any

from ._machine import load

# Seconds between two lines without a terminal.
LINE_SECONDS = 10.0


class Progress:
    """Shows the steps done, a text such as the loss, and the time left."""

    def __init__(self, name: str, done: int, steps: int, *, shown: bool = True):
        self._name, self._first, self._steps = name, done, steps
        self._start = self._last = time.monotonic()
        self._compiled: tuple[float, int] | None = None
        self._terminal = shown and sys.stderr.isatty() and done < steps
        self._lines = shown and not sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if self._terminal:
            self._bar = _BOARD.enter()
            # Nothing can be said about the time left before the first steps are done.
            self._task = self._bar.add_task(
                self._name, total=self._steps, completed=self._first, text="compiling"
            )
        return self

    def update(self, done: int, text: str) -> None:
        if self._compiled is None:
            self._compiled = time.monotonic(), done
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif self._lines and (time.monotonic() - self._last > LINE_SECONDS or done == self._steps):
            self._last = time.monotonic()
            print(self._line(done, text), file=sys.stderr, flush=True)

    def _line(self, done: int, text: str) -> str:
        now = time.monotonic()
        # The first steps include compilation, which may take ten times as long as the rest.
        began, first = self._compiled or (self._start, self._first)
        when = ""
        if done >= self._steps:
            when = f", {now - self._start:.0f} s"
        elif done > first:
            when = f", {(now - began) * (self._steps - done) / (done - first):.0f} s left"
        return f"{self._name}: {done} of {self._steps}, {text}{when}"

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            _BOARD.leave()


class _Board:
    """All bars of this process. A terminal can show one display at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def enter(self) -> Any:
        with self._lock:
            if not self._users:
                self._bars = _bars()
                self._bars.start()
            self._users += 1
            return self._bars

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._bars.stop()


_BOARD = _Board()


def _bars() -> Any:
    progress, text = load("rich.progress"), load("rich.progress").TextColumn
    return progress.Progress(
        text("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        text("{task.fields[text]}"),
        progress.TimeElapsedColumn(),
        text("left"),
        progress.TimeRemainingColumn(),
        console=load("rich.console").Console(stderr=True),
    )
