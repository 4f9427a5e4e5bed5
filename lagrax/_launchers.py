"""Where independent tasks are run: here, one after the other, or on the workers of Ray."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ._machine import load

Launcher = Literal["here", "ray"]
LAUNCHERS = ("here", "ray")

# How often a task is begun again whose worker has died; it finds in its folder how far it was.
RETRIES = 3


class WorkerDied(RuntimeError):
    """A task ended with its worker every time it was tried."""


def launch(
    launcher: Launcher, task: Callable[..., Any], arguments: Sequence[tuple]
) -> Iterator[tuple[int, Any]]:
    """Runs `task` with each of the arguments; their numbers and what came of them, as they end."""
    if launcher == "ray":
        yield from _on_ray(task, arguments)
        return
    for number, given in enumerate(arguments):
        yield number, task(*given)


def _on_ray(task: Callable[..., Any], arguments: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
    """On the cluster that `ray start` has made or $RAY_ADDRESS names, else on one of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray reports to its makers
    ray = load("ray")
    mine = not ray.is_initialized()
    if mine:
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        # A task has a GPU for itself where there are some.
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        remote = ray.remote(num_cpus=1, num_gpus=int(has_gpu), max_retries=RETRIES)(task)
        waiting = {remote.remote(*given): number for number, given in enumerate(arguments)}
        while waiting:
            (ended, *_), _ = ray.wait(list(waiting))
            number = waiting.pop(ended)
            try:
                yield number, ray.get(ended)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                raise WorkerDied(
                    f"Task {number + 1} of {len(arguments)} ended with its worker {RETRIES + 1} "
                    "times; others are done. Look for what kills it, such as memory, and run the "
                    "same command again."
                ) from error
    finally:
        if mine:
            ray.shutdown()
