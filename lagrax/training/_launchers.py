"""Where independent tasks are run: here, one after the other, or on the workers of Ray."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ._machine import load

Launcher = Literal["here", "ray"]
LAUNCHERS = ("here", "ray")

# How often a task is begun again whose worker has died; it finds in its folder how far it was.
RETRIES = 3


class WorkerDied(RuntimeError):
    """A task ended with its worker every time it was tried, or with the machine's part of Ray."""


def launch(
    launcher: Launcher, task: Callable[..., Any], arguments: Sequence[tuple], *, gpus: int = 1
) -> Iterator[tuple[int, Any]]:
    """Runs `task` with each of the arguments; their numbers and what came of them, as they end.

    So many `gpus` each has for itself on a cluster that has some.
    """
    if launcher == "ray":
        yield from _on_ray(task, arguments, gpus)
        return
    for number, given in enumerate(arguments):
        yield number, task(*given)


def _on_ray(
    task: Callable[..., Any], arguments: Sequence[tuple], gpus: int
) -> Iterator[tuple[int, Any]]:
    """On the cluster that `ray start` has made or $RAY_ADDRESS names, else on one of its own."""
    # Ray reads these when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or it reports to its makers
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or it tells stdout of each retry
    if "RAY_ADDRESS" not in os.environ:
        # As on a Mac, a cluster of its own then listens to this machine alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = load("ray")
    mine = not ray.is_initialized()
    if mine:
        with warnings.catch_warnings():
            # JAX warns of forks; these become other programs at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        options = {"num_cpus": 1, "num_gpus": gpus if has_gpu else 0, "max_retries": RETRIES}
        remote = ray.remote(**options)(task)
        waiting = {remote.remote(*given): number for number, given in enumerate(arguments)}
        while waiting:
            (ended, *_), _ = ray.wait(list(waiting))
            number = waiting.pop(ended)
            yield number, _result(ray, ended, f"Task {number + 1} of {len(arguments)}")
    finally:
        if mine:
            ray.shutdown()


def _result(ray: Any, ended: Any, name: str) -> Any:
    errors = ray.exceptions
    try:
        return ray.get(ended)
    except errors.RayTaskError as error:
        # What the task raised, without the story of how it came here.
        raise error.cause from None
    except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
        raise WorkerDied(
            f"{name} ended with its worker {RETRIES + 1} times; what is done is kept. Look for "
            "what kills it, such as memory, and run the same command again."
        ) from error
    # A task's own OSError came above. This is Ray's, which older versions raise for the same.
    except (errors.LocalRayletDiedError, OSError) as error:
        raise WorkerDied(
            f"{name} ended because Ray's own process on its machine (raylet) died; what is done is "
            "kept. Look for what kills it, such as memory, and run the same command again."
        ) from error
