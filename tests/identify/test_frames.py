"""Series come as data frames of several libraries, and their columns keep their names."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers.measurements import population_series

from lagrax import Hold, Identifier, Lag, holds, select_delays
from lagrax.training._machine import MissingExtra

TS, YS = population_series(span=8)


def arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


@pytest.fixture(scope="module")
def fitted():
    frame = pl.DataFrame({"hour": TS, "prey": YS})
    return Identifier([Hold(1.0)], "library").fit(frame, time="hour")


def read(frame, name):
    return np.asarray(frame[name])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, arrow])
def test_a_frame_gives_the_same_model_as_its_arrays(make):
    frame = make({"site": ["a"] * len(TS), "hour": TS, "prey": YS})
    model = Identifier([Hold(1.0)], "library").fit(frame, ["prey"], time="hour")
    arrays = Identifier([Hold(1.0)], "library").fit(TS, YS)
    assert model.equations() == ["prey′ = 2.6 prey − 2.6 prey prey(⌊t⌋)"]
    assert model.equations(["x"]) == arrays.equations()
    predicted = model.predict(frame)
    assert type(predicted) is type(frame)
    np.testing.assert_array_equal(read(predicted, "hour"), TS)
    np.testing.assert_array_equal(read(predicted, "prey"), arrays.predict(TS, YS))
    assert model.score(frame) == arrays.score(TS, YS)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_column_tells_trajectories_apart(make):
    first, second = (population_series(span=8, x0=x0) for x0 in (0.4, 0.7))
    columns = {
        "site": ["a"] * len(first[0]) + ["b"] * len(second[0]),
        "hour": np.concatenate([first[0], second[0]]),
        "prey": np.concatenate([first[1], second[1]]),
    }
    model = Identifier([Hold(1.0)], "library").fit(make(columns), time="hour", by="site")
    assert model.equations() == ["prey′ = 2.6 prey − 2.6 prey prey(⌊t⌋)"]
    assert [len(t.ts) for t in model.series_] == [81, 81]
    np.testing.assert_array_equal(model.series_[1].ys[:, 0], second[1])


def test_bad_columns_of_trajectories_are_refused():
    frame = pl.DataFrame({"site": ["a", None] * 5, "hour": range(10), "prey": range(10)})
    with pytest.raises(ValueError, match="has no column 'plot': its columns are site, hour, prey"):
        Identifier().fit(frame, time="hour", by="plot")
    with pytest.raises(ValueError, match="'site' has missing values"):
        Identifier().fit(frame, time="hour", by="site")
    with pytest.raises(TypeError, match="expected a data frame that has this column"):
        Identifier().fit(TS, YS, by="site")


@pytest.mark.parametrize("make", [pd.Series, lambda values: pl.Series("prey", values)])
def test_series_count_as_arrays(make):
    ys = make(YS)
    model = Identifier([Hold(1.0)], "library").fit(make(TS), ys)
    assert isinstance(model.predict(TS, ys), np.ndarray)
    assert model.forecast([8.5]).mean.shape == (1,)


@pytest.fixture(scope="module")
def driven():
    """x' = u - x with a stepwise input."""
    us = np.sin(np.floor(TS))
    xs = [0.0]
    for u in us[:-1]:
        xs.append(u + (xs[-1] - u) * np.exp(-0.1))
    return xs, us


def test_states_and_inputs_may_be_frames_beside_an_array_of_times(driven):
    states, inputs = (
        pl.DataFrame({name: x}) for name, x in zip(("level", "valve"), driven, strict=True)
    )
    model = Identifier((), "library", degree=1).fit(TS, states, inputs)
    assert model.equations() == ["level′ = −1 level + 1 valve"]
    later = pl.DataFrame({"other": [1.0, 1.0], "valve": [0.5, 0.5]})
    np.testing.assert_array_equal(
        model.forecast([8.1], later).mean, model.forecast([8.1], [0.5, 0.5]).mean
    )


def test_names_that_are_no_words_are_replaced_by_symbols(driven, tmp_path):
    xs, us = driven
    frame = pl.DataFrame({"t": TS, "valve [%]": us, "level 1 [m]": xs})
    model = Identifier((), "library", degree=1).fit(frame, inputs="valve [%]", time="t")
    assert model.equations() == ["x′ = −1 x + 1 u"]
    model.save(tmp_path)
    assert Identifier.load(tmp_path).predict(frame).equals(model.predict(frame))


def test_numbered_columns_have_no_names(library):
    ts, ys = population_series()
    predicted = library.predict(ts, pd.DataFrame({7: ys}))
    np.testing.assert_array_equal(predicted, library.predict(ts, ys)[:, None])


def test_missing_values_of_every_kind_are_missing(fitted):
    values = [None if i in (7, 31) else y for i, y in enumerate(YS)]
    frames = [
        pl.DataFrame({"hour": TS, "prey": values}),
        pd.DataFrame({"hour": TS, "prey": pd.Series(values, dtype="Float64")}),
        pd.DataFrame({"hour": TS, "prey": values}),
    ]
    scores = {fitted.score(frame) for frame in frames}
    assert scores == {fitted.score(TS, np.array(values, float))}


def test_an_answer_keeps_the_index_of_pandas(fitted):
    frame = pd.DataFrame({"hour": TS, "prey": YS}, index=100 + np.arange(len(TS)))
    predicted = fitted.predict(frame)
    assert list(predicted.index) == list(frame.index)
    np.testing.assert_array_equal(predicted["prey"], fitted.predict(TS, YS))


def test_lists_of_frames_are_several_trajectories(fitted):
    frame = pl.DataFrame({"hour": TS, "prey": YS})
    whole, part = fitted.predict([frame, frame[:50]])
    assert whole.equals(fitted.predict(frame))
    assert part.equals(fitted.predict(frame[:50]))
    assert fitted.score([frame, frame[:50]]) == fitted.score([TS, TS[:50]], [YS, YS[:50]])


def test_delays_are_selected_from_a_frame():
    ts, ys = population_series(span=12, noise=0.01)
    frame = pd.DataFrame({"hour": ts, "prey": ys})
    candidates = [holds(1.0, 1), [Lag(1.0)]]
    found = select_delays(frame, candidates=candidates, time="hour")
    assert found.best.name == "Hold(1.0)"
    assert [c.error for c in found.candidates] == [
        c.error for c in select_delays(ts, ys, candidates).candidates
    ]


def test_errors_name_the_column():
    frame = pl.DataFrame({"hour": TS, "prey": 1e30 * YS})
    with pytest.raises(ValueError, match=r"The column 'prey' goes up to .*Multiply it by 1e-30"):
        Identifier(field="library").fit(frame, time="hour")
    constant = pl.DataFrame({"hour": TS, "prey": YS, "wolf": np.ones(len(TS))})
    with pytest.raises(ValueError, match="The column 'wolf' does not change"):
        Identifier(field="library").fit(constant, time="hour")
    with pytest.raises(ValueError, match="The column 'prey' of trajectory 1 has no values"):
        Identifier().fit([frame, frame.with_columns(prey=np.nan)], time="hour")


FRAME = pl.DataFrame({"hour": TS, "prey": YS, "site": ["a"] * len(TS)})


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        ((FRAME,), {}, ValueError, "needs `time`.*columns are hour, prey, site"),
        (
            (pd.DataFrame({"prey": YS}, index=pd.Index(TS, name="hour")),),
            {"time": "hour"},
            ValueError,
            r"no column 'hour'.*index: call reset_index\(\)",
        ),
        ((FRAME,), {"time": "day"}, ValueError, "no column 'day': its columns are hour, prey"),
        ((FRAME, ["wolf"]), {"time": "hour"}, ValueError, "no column 'wolf'"),
        ((FRAME,), {"time": "hour"}, TypeError, "The column 'site' holds String; expected numbers"),
        ((FRAME, YS), {"time": "hour"}, TypeError, "ndarray as ys of a data frame.*names"),
        ((FRAME, "prey", "prey"), {"time": "hour"}, ValueError, "'prey' has two roles"),
        ((FRAME[["hour"]],), {"time": "hour"}, ValueError, "no column of states besides hour"),
        ((FRAME.lazy(),), {"time": "hour"}, TypeError, "LazyFrame.*Collect"),
        ((TS, YS), {"time": "hour"}, TypeError, "time='hour' and ndarray as ts"),
        ((TS,), {}, TypeError, "no ys"),
        (
            (FRAME.with_columns(hour=pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 3, 21))),),
            {"ys": "prey", "time": "hour"},
            TypeError,
            "The column 'hour' holds dates",
        ),
        (
            ([FRAME[["hour", "prey"]], FRAME[["hour", "prey"]].rename({"prey": "wolf"})],),
            {"time": "hour"},
            ValueError,
            "columns of different names",
        ),
    ],
)
def test_unsuitable_frames_are_refused(arguments, options, kind, words, unchecked):
    with pytest.raises(kind, match=words):
        Identifier().fit(*arguments, **options)


def test_a_model_asks_for_the_columns_that_it_was_fitted_to(fitted):
    frame = pl.DataFrame({"hour": TS, "wolf": YS})
    with pytest.raises(ValueError, match="no column 'prey'"):
        fitted.predict(frame)
    with pytest.raises(ValueError, match="Got columns wolf; the model was fitted to prey"):
        fitted.predict(TS, frame[["wolf"]])


def test_arrays_do_not_need_narwhals(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals.stable.v2", None)
    Identifier([Hold(1.0)], "library").fit(TS, YS)
    with pytest.raises(MissingExtra, match=r"lagrax\[train\]"):
        Identifier().fit(FRAME, time="hour")
