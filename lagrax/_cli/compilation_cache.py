"""Compiled programs kept for the next command, which then starts in a fraction of the time."""

import os
import platform
from pathlib import Path

import jax
import platformdirs

VARIABLE = "LAGRAX_COMPILATION_CACHE"
_OFF = ("off", "no", "false", "0")
# Older programs are removed beyond this size.
_MOST_BYTES = 2**29
# Programs that compile faster are not worth a file.
_LEAST_SECONDS = 0.2


def enable_compilation_cache() -> None:
    """Turns on JAX's persistent compilation cache, in the user's cache folder.

    The environment variable `LAGRAX_COMPILATION_CACHE` turns it off, or names another folder. A
    cache that JAX itself is configured with stays as it is.
    """
    place = os.environ.get(VARIABLE, "")
    configured = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if place.lower() in _OFF or configured is not None:
        return
    folder = Path(place) if place else _default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return  # A home that cannot be written to is no reason to fail.
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)


def _default_folder() -> Path:
    # By machine, since homes are shared and programs are compiled for one processor.
    folder = Path(platformdirs.user_cache_dir("lagrax", appauthor=False))
    return folder / "programs" / (platform.node() or "local")
