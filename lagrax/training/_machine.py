"""Records the versions, commit and device behind a result, and loads optional packages."""

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

# Packages that lagrax uses, and the extra that installs each; None for a core dependency.
PACKAGES = {
    "jax": None,
    "jaxlib": None,
    "diffrax": None,
    "equinox": None,
    "numpy": None,
    "filelock": "train",
    "msgspec": "train",
    "optax": "train",
    "safetensors": "train",
    "narwhals": "train",
    "rich": "train",
    "tensorboardX": "train",
    "jinja2": "plot",
    "matplotlib": "plot",
    "plotly": "plot",
    "typer": "cli",
    "platformdirs": "cli",
    "polars": "cli",
    "fastexcel": "cli",
    "dash": "explore",
    "ray": "ray",
    "pooch": "reproduction",
}


class MissingExtra(ImportError):
    """An optional package is not installed. The message names the extra that installs it."""


def load(module: str) -> Any:
    """Imports an optional module. Raises a `MissingExtra` if its package is not installed."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = PACKAGES[package]
        raise MissingExtra(f'This needs {package}: pip install "lagrax[{extra}]"') from error


def versions() -> dict[str, str | None]:
    """The versions of lagrax and of the packages it uses. None for packages not installed."""
    # A source tree on PYTHONPATH has no metadata, so this reads the attribute.
    return {"lagrax": sys.modules["lagrax"].__version__} | {p: _version(p) for p in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of lagrax's source if it runs from a git checkout. "+" marks changes."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + (
        "+" if _git(root, "status", "--porcelain", "--", "lagrax", "reproduction") else ""
    )


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def describe() -> dict[str, Any]:
    """Versions, commit and hardware as JSON."""
    devices = jax.devices()
    return {
        "versions": {name: version for name, version in versions().items() if version},
        "commit": commit(),
        "python": platform.python_version(),
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
