"""`lagrax fit` with a linear equation of held samples."""

import json

import numpy as np
import pytest

from lagrax import Identifier, IdentifyError
from lagrax._cli.fit_linear import choose_model, describe_linear_run
from lagrax._cli.fit_options import FitError


def make_quarters(years=16, seed=0):
    """Sales that grow, with a season that grows with them."""
    rng = np.random.default_rng(seed)
    season = np.tile([0.0, 0.7, 0.1, -0.8], years)
    trend = np.cumsum(0.03 + 0.02 * rng.standard_normal(4 * years))
    return 1990 + 0.25 * np.arange(4 * years), 100 * np.exp(season + trend)


def write(path, header, *columns):
    rows = [",".join(f"{x:.10g}" for x in row) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")


def test_a_linear_equation_is_fitted_from_a_table(lagrax_command, tmp_path):
    ts, sales = make_quarters()
    write(tmp_path / "sales.csv", "year,sales", ts[:56], sales[:56])
    line = ["sales.csv", "--field", "linear", "--season", "1", "--forecast", "8"]
    code, out, _ = lagrax_command("fit", *line, "--out", "found")
    assert code == 0
    assert "\nlog sales(k+1) = " in out
    assert "last season (1)" in out.splitlines()[0]
    summary = json.loads((tmp_path / "found/summary.json").read_text())
    assert summary["inputs"] == ["cos1", "sin1", "sin2"]
    assert summary["doubt"] is None
    rows = (tmp_path / "found/forecast.csv").read_text().splitlines()[1:]
    mean, low, high = np.array([row.split(",")[1:4] for row in rows], float).T
    np.testing.assert_allclose(mean, sales[56:], rtol=0.2)
    assert np.mean((low <= sales[56:]) & (sales[56:] <= high)) >= 0.75
    write(tmp_path / "more.csv", "year,sales", ts, sales)
    code, _, _ = lagrax_command("predict", "found", "more.csv", "--out", "predicted")
    assert code == 0
    code, _, err = lagrax_command("fit", *line, "--lag", "1")
    assert code == 2
    assert "leave --hold, --lag and --select out" in err


def test_the_better_equation_is_chosen():
    ts, sales = make_quarters()
    good = Identifier(field="linear", season=1.0, window=8).fit(ts, sales)
    still = np.random.default_rng(1).standard_normal(len(ts))
    bad = Identifier(field="linear", window=8).fit(ts, still)
    model, sentence = choose_model(lambda: bad, lambda: good, 8)
    assert model is good
    assert sentence is not None
    assert "up to 8 samples ahead" in sentence
    assert sentence.endswith("The linear one is used; --no-linear keeps the other.")
    model, sentence = choose_model(lambda: good, lambda: bad, 8)
    assert model is good
    assert sentence is not None
    assert sentence.endswith("The polynomial is used; --field linear keeps the other.")

    def fail():
        raise IdentifyError("It does not stay finite.")

    def refuse():
        raise FitError("The numbers are too large.")

    assert choose_model(fail, lambda: good, 8)[0] is good
    assert choose_model(lambda: bad, fail, 8) == (bad, None)
    assert choose_model(lambda: bad, refuse, 8) == (bad, None)
    with pytest.raises(FitError):
        choose_model(refuse, lambda: good, 8)


def test_the_long_run_of_a_linear_equation():
    """x(k + 1) = 2 r cos(w) x(k) − r² x(k − 1) turns once in 9.6 samples, and shrinks by r."""
    rng = np.random.default_rng(2)
    x, r, w = np.zeros(3000), 0.95, 2 * np.pi / 9.6
    for k in range(1, 2999):
        x[k + 1] = 2 * r * np.cos(w) * x[k] - r**2 * x[k - 1] + rng.standard_normal()
    model = Identifier(field="linear", window=5).fit(0.5 * np.arange(3000), x)
    words = describe_linear_run(model, lambda t: f"{t:g} years")
    turn = float(words.split("turning once in ")[1].split()[0])
    assert turn == pytest.approx(4.8, rel=0.02)
    half = float(words.split("halve in ")[1].split()[0])
    assert half == pytest.approx(0.5 * np.log(0.5) / np.log(r), rel=0.2)
    steady = Identifier(field="linear", window=20).fit(
        np.arange(300.0), np.cumsum(rng.standard_normal(300))
    )
    assert "x1 does not return to a level" in describe_linear_run(steady, str)
