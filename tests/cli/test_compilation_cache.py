"""The commands keep compiled programs; the package alone does not."""

import os
import subprocess
import sys

import jax
import pytest

from lagrax._cli.compilation_cache import VARIABLE, enable_compilation_cache

NAMES = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """JAX without a cache, and a home of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no"])
def test_the_variable_turns_it_off(no_cache, monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None
    assert list(no_cache.iterdir()) == []


def test_the_variable_names_a_folder(no_cache, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(no_cache / "mine"))
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(no_cache / "mine")
    assert (no_cache / "mine").is_dir()


def test_another_cache_stays(no_cache):
    jax.config.update("jax_compilation_cache_dir", str(no_cache))
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(no_cache)


def test_a_folder_that_cannot_be_made_is_no_error(no_cache, monkeypatch):
    (no_cache / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(no_cache / "file/inside"))
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None


def run(home, *command):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(home), "HOME": str(home)}
    result = subprocess.run(
        [sys.executable, *command], env=environment, cwd=home, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    return sorted(home.rglob("*-cache"))


# The package alone, and a solve that keeps no program.
SOLVE = """
import lagrax, pathlib
lagrax.solve(lambda t, y, args, *, history: -y, 0.0, 1.0, 1.0, delays=[])
assert not [*pathlib.Path().rglob("*-cache")]
"""
# The command, which here also keeps programs that compile in no time.
SIMULATE = """
from lagrax._cli import compilation_cache
compilation_cache._LEAST_SECONDS = 0.0
from lagrax._cli.app import run
raise SystemExit(run("simulate population --csv x.csv".split()))
"""


def test_a_command_keeps_its_programs_and_an_import_none(tmp_path):
    programs = run(tmp_path, "-c", SOLVE + SIMULATE)
    assert programs
    times = [path.stat().st_mtime_ns for path in programs]
    assert run(tmp_path, "-c", SIMULATE) == programs
    assert [path.stat().st_mtime_ns for path in programs] == times
