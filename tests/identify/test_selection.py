"""The delays of known equations are selected from their series."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Hold, Lag, Learn, holds, select_delays
from lagrax._solve.delays import describe

CANDIDATES = {
    "none": [],
    "one hold": holds(1.0, 1),
    "two holds": holds(1.0, 2),
    "half": [Hold(0.5)],
    "double": [Hold(2.0)],
    "lag": [Lag(1.0)],
    "half a lag": [Lag(0.5)],
}


def make_growth(rate):
    return lambda t, x, args, *, history: rate * x * (1 - history[0])


# The delays of an equation, the equation, and the delays to select.
STRUCTURES = {
    "one hold": ([Hold(1.0)], make_growth(2.8), [Hold(1.0)]),
    "a lag": ([Lag(1.0)], make_growth(1.8), [Lag(1.0)]),
    "none": ([], lambda t, x, args: jnp.stack([x[1], (1 - x[0] ** 2) * x[1] - x[0]]), []),
    "lag 0 inert": ([Hold(1.0, lag=1)], make_growth(1.2), [Hold(1.0, lag=1)]),
}


def sample_structure(structure, seed, noise=0.01):
    delays, field, _ = STRUCTURES[structure]
    rng = np.random.default_rng(seed)
    ts = np.arange(0, 10.01, 0.1)
    runs = []
    for _ in range(4):
        y0 = jnp.asarray(2 * rng.standard_normal(2) if not delays else 0.2 + 1.2 * rng.random())
        ys = lagrax.solve(
            field, 0.0, 10.05, y0, delays=delays, saveat=diffrax.SaveAt(ts=ts), max_steps=2048
        ).ys
        ys = np.asarray(ys, float)
        runs.append(ys + noise * ys.std(axis=0) * rng.standard_normal(ys.shape))
    return ts, runs


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_known_structure_is_selected(structure):
    found = select_delays(*sample_structure(structure, 0), CANDIDATES)
    assert describe(found.delays) == describe(STRUCTURES[structure][2])


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_known_structure_is_selected_in_nine_of_ten_seeds(structure):
    names = [
        describe(select_delays(*sample_structure(structure, s), CANDIDATES).delays)
        for s in range(10)
    ]
    assert names.count(describe(STRUCTURES[structure][2])) >= 9


def test_an_inert_second_hold_is_dropped():
    found = select_delays(*sample_structure("one hold", 1), [holds(1.0, 2)])
    assert describe(found.delays) == "Hold(1.0)"
    useful, useless = found.best.losses
    assert useful > 0.1 > 0.01 > useless


def test_a_period_among_the_candidates_is_found():
    found = select_delays(
        *sample_structure("one hold", 2), {"none": [], "hold": [Hold(Learn(0.95, 0.9, 1.2))]}
    )
    assert found.delays[0].tau == pytest.approx(1.0, rel=0.01)


def test_a_selection_is_printed_and_drawn(tmp_path):
    found = select_delays(*sample_structure("one hold", 0), CANDIDATES)
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(CANDIDATES)
    assert [line.split("  ")[0] for line in lines if "chosen" in line] == [found.best.name]
    figure = found.figure()
    assert len(figure.panels) == 2
    lagrax.figures.draw(figure, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 5000


def test_the_held_out_end_is_hidden_from_a_selection():
    ts, runs = sample_structure("one hold", 3)
    candidates = {"none": [], "hold": [Hold(Learn(0.95, 0.9, 1.2))]}
    ruined = [np.where(ts > 0.8 * ts[-1], 5.0, ys) for ys in runs]
    first, other = (select_delays(ts, ys, candidates) for ys in (runs, ruined))
    assert str(first) == str(other)
    assert str(first) != str(select_delays(ts, runs, candidates, validation=0))


def test_unsuitable_series_and_candidates_are_refused(unchecked):
    ts, ys = sample_structure("one hold", 0)
    with pytest.raises(ValueError, match=r"0\.1 apart and Hold\(0\.2\)"):
        select_delays(ts, ys, [[Hold(0.2)]])
    with pytest.raises(ValueError, match="windows to compare"):
        select_delays(ts[:30], ys[0][:30], [[]])
    with pytest.raises(ValueError, match="no candidates"):
        select_delays(ts, ys, {})
    with pytest.raises(TypeError, match=r"'one' holds 1\.0"):
        select_delays(ts, ys, {"one": [1.0]})


def test_the_shortest_of_equal_lags_is_found():
    """On a cycle of period 1, lags of about 0.3, 0.7, 1.3 and 1.7 say the same."""
    ts = np.arange(0, 20, 1 / 12)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(ts))
    found = select_delays(ts, np.sin(2 * np.pi * ts) + noise, {"lag": [Lag(Learn(0.8, 0.3, 2.0))]})
    (scan,) = found.candidates[0].scans
    assert scan.good[scan.periods > 1.2].any()
    # Refining a valley does not leave the range, either.
    assert 0.3 <= float(found.candidates[0].delays[0].tau) < 0.4


def test_the_shortest_of_equal_candidates_is_chosen():
    ts = np.arange(0, 20, 1 / 12)
    ys = np.sin(2 * np.pi * ts) + 0.01 * np.random.default_rng(0).standard_normal(len(ts))
    candidates = {"long": [Lag(2.25)], "short": [Lag(0.25)], "none": []}
    assert select_delays(ts, ys, candidates).best.name in ("short", "none")
