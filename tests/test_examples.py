"""Every script in examples/ runs from any folder and leaves its picture there."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def png_size(path: Path) -> tuple[int, int]:
    """Width and height from the header, which every PNG begins with."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def run(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    # Without the tests' coverage and plug-ins, as a user would run it; no window may open.
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example_draws_its_picture(script, tmp_path):
    done = run(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    pictures = list(tmp_path.glob("*.png"))
    assert pictures, f"{script.name} left no picture in the current folder"
    for picture in pictures:
        assert picture.name in done.stdout
        width, height = png_size(picture)
        assert 400 <= width <= 4000
        assert 200 <= height <= 4000
        assert 5_000 < picture.stat().st_size < 1_000_000


def test_population_goes_where_it_is_told_to(tmp_path):
    (script,) = [p for p in EXAMPLES if p.stem == "population"]
    done = run(script, "--out", "other.png", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["other.png"]
    assert "evaluations" in done.stdout


def test_population_without_matplotlib_says_what_to_install(tmp_path):
    (script,) = [p for p in EXAMPLES if p.stem == "population"]
    # A module that is None in sys.modules cannot be imported: as if it were not installed.
    absent = "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_path("
    code = f"{absent}{str(script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert 'pip install "lagrax[plot]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
