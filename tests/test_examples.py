"""Every script in examples/ runs from any folder and leaves its picture there."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lagrax

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# Those that take minutes have a short form.
SHORT = {"sunspots": ["--quick"]}


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
    done = run(script, *SHORT.get(script.stem, []), folder=tmp_path)
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


# --- sunspots -------------------------------------------------------------------------------------


@pytest.fixture
def sunspots(load_script):
    return load_script(next(p for p in EXAMPLES if p.stem == "sunspots"))


def table_of(page: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}


def test_sunspots_page_says_what_the_script_finds(sunspots):
    """All that needs no training is computed again: the AR model and the baselines."""
    page = (Path(sunspots.__file__).with_suffix(".md")).read_text(encoding="utf-8")
    series = sunspots.load()
    origins = sunspots.origins_for(sunspots.LEARN_TO + 1, sunspots.TEST_TO)
    ar = sunspots.autoregression(series, sunspots.LEARN_TO, origins)
    results = [ar, *sunspots.baselines(series, sunspots.LEARN_TO, origins)]
    found = sunspots.Comparison(series, origins, results, {}, 0)
    written = table_of(page)
    for name, *cells in sunspots.table(found):
        assert written[name] == cells
    names = ["model", "equation", "equation, single", ar.name, "NODE", "NODE, single"]
    assert list(written) == [*names, "persistence", "mean"]


def test_sunspots_verdict_is_that_of_its_table(sunspots):
    page = (Path(sunspots.__file__).with_suffix(".md")).read_text(encoding="utf-8")
    means = {
        name: float(cells[-1])
        for name, cells in table_of(page).items()
        if name != "model" and not name.endswith("single")
    }
    best = min(means, key=means.__getitem__)
    assert f"{best} has the least error" in page


def test_sunspots_forecasts_see_no_later_year(sunspots):
    """Numbers after an origin do not change what is forecast from it, whoever forecasts."""
    series = sunspots.load()
    origins = sunspots.origins_for(sunspots.LEARN_TO + 1, sunspots.TEST_TO)
    other = series._replace(numbers=np.where(series.years > 1980, 500.0, series.numbers))
    early = origins <= 1980

    def forecasts(data):
        ar = sunspots.autoregression(data, sunspots.LEARN_TO, origins)
        return [r.forecasts for r in (ar, *sunspots.baselines(data, sunspots.LEARN_TO, origins))]

    for a, b in zip(forecasts(series), forecasts(other), strict=True):
        np.testing.assert_array_equal(a[early], b[early])
        assert np.all(a.shape == (len(origins), sunspots.AHEAD))


def test_sunspots_errors_are_over_the_same_years_at_each_horizon(sunspots):
    series = sunspots.load()
    origins = sunspots.origins_for(1949, 2008)
    mean = series.until(1948).numbers.mean()
    forecasts = np.full((len(origins), sunspots.AHEAD), mean)
    expected = np.sqrt(np.mean((series.at(np.arange(1949, 2009)) - mean) ** 2))
    np.testing.assert_allclose(sunspots.rmse(forecasts, series, origins, 1949, 2008), expected)


def test_sunspots_follows_an_equation_that_is_known(sunspots):
    """x' = x(⌊t⌋ − 1) − x(⌊t⌋) is the recursion x(k + 1) = x(k − 1)."""

    class Known:
        delays_ = lagrax.holds(1.0, 2)
        equation_ = staticmethod(lambda t, y, args, *, history: history[1] - history[0])

    series = sunspots.load()
    origins = np.array([1950, 1977])
    found = sunspots.follow(Known(), series, origins)
    now, before = series.at(origins), series.at(origins - 1)
    np.testing.assert_allclose(found[:, 0::2], np.repeat(before[:, None], 6, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found[:, 1::2], np.repeat(now[:, None], 5, axis=1), rtol=1e-4)


def test_sunspots_without_statsmodels_says_what_to_install(sunspots, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    monkeypatch.setattr(sys, "argv", ["sunspots.py", "--quick"])
    assert sunspots.main() == 1
    assert 'pip install "lagrax[examples]"' in capsys.readouterr().err
