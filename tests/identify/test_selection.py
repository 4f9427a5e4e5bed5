"""Selection of delays: known structures are named, and the regression behind it is exact."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Hold, Lag, Learn, holds, select_delays
from lagrax._solve.delays import describe
from lagrax.identify._lookback import find_earliest
from lagrax.identify._regression import (
    Library,
    assign_folds,
    build_normal_equations,
    cross_validate,
    integrate_terms,
    list_monomials,
    select_terms,
)
from lagrax.identify._series import interpolate, read_series
from lagrax.identify._windows import (
    LEAST_AT_REST,
    MOST_WINDOWS,
    Window,
    cut_windows,
    default_window,
    split_windows,
)

CANDIDATES = {
    "none": [],
    "one hold": holds(1.0, 1),
    "two holds": holds(1.0, 2),
    "half": [Hold(0.5)],
    "double": [Hold(2.0)],
    "lag": [Lag(1.0)],
    "half a lag": [Lag(0.5)],
}


def crowded(rate):
    return lambda t, x, args, *, history: rate * x * (1 - history[0])


# What an equation looks back at, the equation, and the delays to be named. The last is a candidate
# of two holds, of which one is inert.
STRUCTURES = {
    "one hold": ([Hold(1.0)], crowded(2.8), [Hold(1.0)]),
    "a lag": ([Lag(1.0)], crowded(1.8), [Lag(1.0)]),
    "none": ([], lambda t, x, args: jnp.stack([x[1], (1 - x[0] ** 2) * x[1] - x[0]]), []),
    "lag 0 inert": ([Hold(1.0, lag=1)], crowded(1.2), [Hold(1.0, lag=1)]),
}


def measured(structure, seed, noise=0.01):
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
def test_a_known_structure_is_named(structure):
    found = select_delays(*measured(structure, 0), CANDIDATES)
    assert describe(found.delays) == describe(STRUCTURES[structure][2])


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_known_structure_is_named_in_nine_of_ten_seeds(structure):
    names = [describe(select_delays(*measured(structure, s), CANDIDATES).delays) for s in range(10)]
    assert names.count(describe(STRUCTURES[structure][2])) >= 9


def test_a_second_hold_that_does_nothing_is_dropped():
    found = select_delays(*measured("one hold", 1), [holds(1.0, 2)])
    assert describe(found.delays) == "Hold(1.0)"
    useful, useless = found.best.losses
    assert useful > 0.1 > 0.01 > useless


def test_a_period_among_the_candidates_is_found():
    found = select_delays(
        *measured("one hold", 2), {"none": [], "hold": [Hold(Learn(0.95, 0.9, 1.2))]}
    )
    assert found.delays[0].tau == pytest.approx(1.0, rel=0.01)


def test_the_answer_can_be_read_and_drawn(tmp_path):
    found = select_delays(*measured("one hold", 0), CANDIDATES)
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(CANDIDATES)
    assert [line.split("  ")[0] for line in lines if "chosen" in line] == [found.best.name]
    figure = found.figure()
    assert len(figure.panels) == 2
    lagrax.figures.draw(figure, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 5000


def test_bad_candidates_are_named(unchecked):
    ts, ys = measured("one hold", 0)
    with pytest.raises(ValueError, match=r"0\.1 apart and Hold\(0\.2\)"):
        select_delays(ts, ys, [[Hold(0.2)]])
    with pytest.raises(ValueError, match="2 windows to compare"):
        select_delays(ts[:30], ys[0][:30], [[]])
    with pytest.raises(ValueError, match="no candidates"):
        select_delays(ts, ys, {})
    with pytest.raises(TypeError, match=r"'one' holds 1\.0"):
        select_delays(ts, ys, {"one": [1.0]})


# --- the regression behind it ---------------------------------------------------------------------


def test_integrals_of_terms_are_exact_for_parabolas():
    """x = 1 + t, held at whole times: integrals of 1, x, z, x z over each gap, by hand."""
    ts = np.linspace(0, 3, 13)
    (trajectory,) = read_series(ts, 1 + ts)
    library = Library(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), np.zeros(2), np.ones(2))
    found = integrate_terms(trajectory, [Hold(1.0)], library)
    gap, middle = np.diff(ts), (ts[1:] + ts[:-1]) / 2
    held = 1 + np.floor(middle)
    expected = np.stack([gap, gap * (1 + middle), gap * held, gap * (1 + middle) * held], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_knot_between_samples_divides_their_gap():
    ts = np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0])
    (trajectory,) = read_series(ts, 2 + ts)
    library = Library(np.array([[0, 1]]), np.zeros(2), np.ones(2))
    found = integrate_terms(trajectory, [Hold(1.0)], library)[:, 0]
    np.testing.assert_allclose(found, [0.8, 0.8, 0.2 * 2 + 0.2 * 3, 1.2, 1.2], rtol=1e-12)


def test_interpolation_keeps_to_one_side_of_a_kink():
    ts = np.linspace(0, 2, 11)
    (trajectory,) = read_series(ts, np.abs(ts - 1) + ts**2)
    times = np.array([0.05, 0.93, 0.999, 1.001, 1.5])
    found = interpolate(trajectory, times, np.array([1.0]))[:, 0]
    np.testing.assert_allclose(found, np.abs(times - 1) + times**2, rtol=1e-12)


def test_held_out_errors_are_those_of_a_fit_to_the_other_windows():
    rng = np.random.default_rng(0)
    ts = np.arange(0, 12, 0.1)
    (trajectory,) = read_series(ts, np.sin(ts) + 0.1 * rng.standard_normal(120))
    windows = cut_windows([trajectory], 10, 0.0)
    library = Library(list_monomials(1, 1), np.zeros(1), np.ones(1))
    normal = build_normal_equations([trajectory], windows, [], library)
    errors = cross_validate(normal)
    columns = np.cumsum(integrate_terms(trajectory, [], library), axis=0)
    columns = np.concatenate([np.zeros((1, 2)), columns])

    def centred(window):
        here = slice(window.first, window.last + 1)
        x, y = columns[here], trajectory.ys[here]
        return x - x.mean(axis=0), y - y.mean(axis=0)

    folds = np.arange(len(windows)) * 5 // len(windows)
    unit = np.mean([np.sum(centred(w)[1] ** 2) for w in windows])
    for i in (0, 4, len(windows) - 1):
        others = [centred(w) for w, f in zip(windows, folds, strict=True) if f != folds[i]]
        x, y = (np.concatenate(part) for part in zip(*others, strict=True))
        c = np.linalg.lstsq(x, y, rcond=None)[0]
        x, y = centred(windows[i])
        assert errors[i] == pytest.approx(np.sum((y - x @ c) ** 2) / unit, rel=1e-5)


def test_windows_without_a_past_are_left_out():
    ts = np.arange(0, 10, 0.1)
    trajectories = read_series(ts, ts)
    assert cut_windows(trajectories, 10, 0.0)[0] == Window(0, 0, 10)
    assert cut_windows(trajectories, 10, 2.0)[0] == Window(0, 20, 30)
    assert cut_windows(trajectories, 10, 9.0)[0] == Window(0, 0, 10)  # too few would be left


def test_folds_take_turns_where_windows_are_many():
    np.testing.assert_array_equal(assign_folds(39), np.arange(39) * 5 // 39)
    np.testing.assert_array_equal(assign_folds(40), np.arange(40) // 4 % 5)
    # Each has its share of a transient, be the rest as long as it will.
    assert set(assign_folds(2000)[:25]) == set(range(5))


def test_an_equation_looks_back_less_far_from_a_knot():
    assert find_earliest([], 0.3) == 0.3
    assert find_earliest([Lag(0.5)], 2.0) == 1.5
    assert find_earliest([Hold(0.1)], 3 * 0.1) == pytest.approx(0.3)
    assert find_earliest([Hold(1.0), Lag(0.1)], 2.9) == 2.0
    assert find_earliest([Hold(1.0, lag=1)], 2.0) == 1.0
    assert find_earliest([Hold(times=[0.0, 1.0])], 2.0) == -np.inf


@pytest.mark.parametrize(
    ("delays", "first"), [([], 0), ([Hold(5.0)], 0), ([Hold(5.0, lag=1)], 5), ([Lag(5.0)], 5)]
)
def test_the_first_window_starts_where_its_past_is_known(delays, first):
    ts = np.arange(200.0)
    learning, *_ = split_windows(read_series(ts, np.sin(ts / 9)), 4, delays, 0.2)
    assert learning[0].first == first


def steady_growth(samples, noise=0.01, seed=0):
    """x' = x (1 - x) from 0.05: within ten units of time it stands still."""
    ts = 0.1 * np.arange(samples)
    rng = np.random.default_rng(seed)
    return ts, 1 / (1 + 19 * np.exp(-ts)) + noise * rng.standard_normal(samples)


def test_most_windows_at_rest_are_left_out():
    trajectories = read_series(*steady_growth(20_000))
    learning, testing, _ = split_windows(trajectories, 16, [], 0.2)
    moving = sum(w.first < 64 for w in learning)
    assert moving == 16  # all of them
    assert moving + LEAST_AT_REST <= len(learning) < 300
    assert learning[-1].last > 0.7 * 20_000
    assert len(testing) > 200
    wave = read_series(0.1 * np.arange(20_000), np.sin(0.1 * np.arange(20_000)))
    assert MOST_WINDOWS / 2 < len(split_windows(wave, 16, [], 0.2)[0]) <= MOST_WINDOWS


@pytest.mark.parametrize("samples", [150, 1000, 10_000])
def test_a_transient_is_not_outvoted_by_a_long_rest(samples):
    trajectories = read_series(*steady_growth(samples))
    learning, *_ = split_windows(trajectories, default_window(trajectories, []), [], 0.2)
    library = Library(list_monomials(1, 2), np.zeros(1), np.ones(1))
    normal = build_normal_equations(trajectories, learning, [], library)
    assert library.powers[select_terms(normal)].tolist() == [[1], [2]]
