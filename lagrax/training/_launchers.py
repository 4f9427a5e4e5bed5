"""Launches independent tasks, in this process one after the other or on workers of Ray."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ._machine import load

Launcher = Literal["here", "ray"]
LAUNCHERS = ("here", "ray")

# Attempts after the first one if a worker dies. Each resumes from the folder of its task.
RETRIES = 3


class WorkerDied(RuntimeError):
    """The worker of a task died in every attempt, or Ray's own process on its machine died."""


def launch(
    launcher: Launcher, task: Callable[..., Any], arguments: Sequence[tuple], *, gpus: int = 1
) -> Iterator[tuple[int, Any]]:
    """Runs `task` with each of the arguments. Yields number and result of each task as it ends.

    Each task reserves `gpus` GPUs if the cluster has any.
    """
    if launcher == "ray":
        yield from _on_ray(task, arguments, gpus)
        return
    for number, its_arguments in enumerate(arguments):
        yield number, task(*its_arguments)


def _on_ray(
    task: Callable[..., Any], arguments: Sequence[tuple], gpus: int
) -> Iterator[tuple[int, Any]]:
    """Runs on the cluster that `ray start` made or $RAY_ADDRESS names, or else starts one."""
    # Ray reads these variables when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # keep retries out of stdout
    if "RAY_ADDRESS" not in os.environ:
        # A new cluster then listens to this machine alone, as it does on a Mac.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = load("ray")
    starts_cluster = not ray.is_initialized()
    if starts_cluster:
        with warnings.catch_warnings():
            # JAX warns of forks. These execute another program at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        options = {"num_cpus": 1, "num_gpus": gpus if has_gpu else 0, "max_retries": RETRIES}
        remote = ray.remote(**options)(task)
        waiting = {remote.remote(*each): number for number, each in enumerate(arguments)}
        while waiting:
            (ended, *_), _ = ray.wait(list(waiting))
            number = waiting.pop(ended)
            yield number, _result(ray, ended, f"Task {number + 1} of {len(arguments)}")
    finally:
        if starts_cluster:
            ray.shutdown()


def _result(ray: Any, ended: Any, name: str) -> Any:
    errors = ray.exceptions
    try:
        return ray.get(ended)
    except errors.RayTaskError as error:
        # The exception of the task, without the trace of the worker.
        raise error.cause from None
    except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
        raise WorkerDied(
            f"{name} ended with its worker {RETRIES + 1} times. Finished work is kept. Find what "
            "kills it, such as a lack of memory, and run the same command again."
        ) from error
    # An OSError of the task is a RayTaskError. Older versions of Ray raise their own for a raylet
    # that died.
    except (errors.LocalRayletDiedError, OSError) as error:
        raise WorkerDied(
            f"{name} ended because Ray's own process on its machine (raylet) died. Finished work "
            "is kept. Find what kills it, such as a lack of memory, and run the same command again."
        ) from error
