"""Bad arguments of `lagrax.Identifier` and `select_delays`, and damaged folders of models."""

import json
import pickle

import diffrax
import numpy as np
import pytest
from helpers.refusals import HUGE, check_call, check_files
from helpers.sample_files import model, write

import lagrax
from lagrax import Hold, Identifier
from lagrax.identify import IdentifyError, select_delays

TS, SINE = np.arange(30.0), np.sin(np.arange(30.0))


def field(t, y, args, *, history):
    return -y + sum(history)


def fit(*series, **arguments):
    return Identifier(**{"progress": False} | arguments).fit(*(series or (TS, SINE)))


class Hostile:
    """Unpickled, it would raise another error than the expected one."""

    def __reduce__(self):
        return (pytest.fail, ("a file was executed",))


CALLS = {
    "no learning": (lambda: fit(learning_rate=0.0), ValueError, ["learning_rate=0.0", "positive"]),
    "learning in words": (lambda: fit(learning_rate="fast"), ValueError, ["learning_rate='fast'"]),
    "validation in words": (
        lambda: fit(validation="a fifth"),
        ValueError,
        ["validation='a fifth'"],
    ),
    "delays none": (lambda: fit(delays=None), TypeError, ["Identifier got delays=None", "list"]),
    "delays a period": (lambda: fit(delays=1.0), TypeError, ["Identifier got delays=1.0", "list"]),
    "a solver's class": (lambda: fit(solver=diffrax.Tsit5), TypeError, ["Tsit5()"]),
    "no iterations": (lambda: fit(iterations=0), ValueError, ["iterations=0"]),
    "degree one hundred": (
        lambda: fit(field="library", degree=100),
        ValueError,
        ["Identifier got degree=100", "at most 20", "floating point"],
    ),
    "delays of a linear equation": (
        lambda: fit(delays=[Hold(1.0)], field="linear"),
        ValueError,
        ["1 delays and field='linear'", "leave `delays` out"],
    ),
    "members of a linear equation": (
        lambda: fit(field="linear", ensemble=5),
        ValueError,
        ["ensemble=5 and field='linear'", "leave `ensemble` out"],
    ),
    "another loss": (lambda: fit(loss="absolute"), ValueError, ["loss='absolute'", "'huber'"]),
    "starts of a network": (
        lambda: fit(fit_starts=True),
        ValueError,
        ["fit_starts=True and field='mlp'", "least squares"],
    ),
    "starts of a linear equation": (
        lambda: fit(field="linear", fit_starts=True),
        ValueError,
        ["field='linear'", "leave `loss` and `fit_starts` out"],
    ),
    "starts in words": (lambda: fit(fit_starts="yes"), TypeError, ["fit_starts='yes'"]),
    "errors of a linear equation": (
        lambda: fit(field="linear").standard_errors(),
        IdentifyError,
        ["field='linear' has no standard errors", "your own field"],
    ),
    "errors of no fit": (lambda: Identifier().standard_errors(), IdentifyError, ["call fit"]),
    "a profile of a name": (
        lambda: Identifier().profile("rate"),
        TypeError,
        ["where='rate'", "function of the field"],
    ),
    "a profile of a certain level": (
        lambda: Identifier().profile(lambda f: f.rate, level=95),
        ValueError,
        ["level=95", "between 0 and 1"],
    ),
    "hidden states of a library": (
        lambda: fit(field="library", hidden=1),
        ValueError,
        ["hidden=1 with 0 delays and field='library'", "your own field"],
    ),
    "hidden states with a past": (
        lambda: fit(delays=[Hold(1.0)], field=field, hidden=1),
        ValueError,
        ["hidden=1 with 1 delays"],
    ),
    "fewer hidden states than none": (lambda: fit(hidden=-1), ValueError, ["hidden=-1"]),
    "a season of a library": (
        lambda: fit(field="library", season=12.0),
        ValueError,
        ["season=12.0 and field='library'", "cosines and sines"],
    ),
    "a season of no length": (
        lambda: fit(field="linear", season=0.0),
        ValueError,
        ["season=0.0", "positive"],
    ),
    "a library without end": (
        lambda: fit(field="library", degree=20, delays=lagrax.holds(6.0, 4)),
        ValueError,
        ["degree 20 in 5 variables", "5.31e+04 terms", "lower degree"],
    ),
    "a library beyond a day": (
        lambda: fit(
            np.arange(2000.0),
            np.sin(np.arange(2000.0)),
            np.cos(np.arange(2000.0)[:, None] * [1, 2, 3, 4]),
            field="library",
            degree=7,
            window=8,
        ),
        ValueError,
        ["which of 792 terms", "hours", "less than a day", "lower degree"],
    ),
    "candidates of degree one hundred": (
        lambda: select_delays(TS, SINE, [[]], degree=100),
        ValueError,
        ["select_delays got degree=100", "at most 20"],
    ),
    "all of a series held out": (
        lambda: select_delays(TS, SINE, [[]], validation=1.0),
        ValueError,
        ["select_delays got validation=1.0", "below 1"],
    ),
    "a window without end": (
        lambda: select_delays(TS, SINE, [[]], window=HUGE),
        ValueError,
        ["select_delays got window=1000"],
    ),
    "a billion members": (
        lambda: fit(ensemble=10**9),
        ValueError,
        ["Identifier got ensemble=1000000000", "at most 1,000", "as long"],
    ),
    "networks beyond memory": (
        lambda: fit(width=5000, depth=50, ensemble=10),
        ValueError,
        ["width=5000, depth=50 and ensemble=10", "1.25e+10 weights", "16 GB"],
    ),
    "a layer beyond memory": (lambda: fit(width=10**9), ValueError, ["width=1000000000"]),
    "layers without end": (lambda: fit(depth=10**9), ValueError, ["depth=1000000000"]),
    "iterations without end": (lambda: fit(iterations=HUGE), ValueError, ["iterations=1000"]),
    "steps of a model without end": (lambda: fit(steps=HUGE), ValueError, ["steps=1000"]),
    "a complex series": (lambda: fit(TS, SINE + 1j), TypeError, ["ys is ndarray", "real numbers"]),
    "a folder with NUL": (
        lambda: Identifier.load("a\0b"),
        ValueError,
        ["Identifier.load got 'a\\x00b'", "NUL"],
    ),
    "a seed too large": (lambda: fit(seed=2**31), ValueError, ["seed=2147483648", "2^31"]),
    "steps fractional of a model": (lambda: fit(steps=1.5), ValueError, ["steps=1.5"]),
    "times in words": (lambda: fit("then", SINE), TypeError, ["ts is str", "array"]),
    "an argument that is none": (
        lambda: Identifier().set_params(widht=3),
        ValueError,
        ["'widht'", "width"],
    ),
    "equations of no fit": (lambda: Identifier().equations(), IdentifyError, ["call fit"]),
    "a model nowhere": (
        lambda: Identifier.load("nowhere"),
        IdentifyError,
        ["nowhere holds no mod"],
    ),
    "no candidates": (lambda: select_delays(TS, SINE, []), ValueError, ["no candidates", "Hold("]),
    "one delay as candidates": (
        lambda: select_delays(TS, SINE, Hold(1.0)),
        TypeError,
        ["candidates=Hold(tau=1.0", "lists of delays"],
    ),
    "delays as candidates": (
        lambda: select_delays(TS, SINE, [Hold(1.0)]),
        TypeError,
        ["candidates=[Hold(tau=1.0", "lists of delays"],
    ),
    "a period as candidate": (
        lambda: select_delays(TS, SINE, {"a": [4.0]}),
        TypeError,
        ["The candidate 'a' holds 4.0"],
    ),
    "degree zero": (lambda: select_delays(TS, SINE, [[]], degree=0), ValueError, ["degree=0"]),
    "window zero": (lambda: select_delays(TS, SINE, [[]], window=0), ValueError, ["window=0"]),
}

# The files of a folder, what is done with it, the error, its words.
FILES = {
    "a model without its words": (
        {"model.safetensors": model()["model.safetensors"]},
        Identifier.load,
        IdentifyError,
        ["holds no model.json"],
    ),
    "a model without its numbers": (
        {"model.json": model()["model.json"]},
        Identifier.load,
        IdentifyError,
        ["holds no model.safetensors"],
    ),
    "a model of the next version": (
        model(format=2),
        Identifier.load,
        IdentifyError,
        ["model.json is not of a format"],
    ),
    "a model in another encoding": (
        model() | {"model.json": "{“a”: 1}".encode("utf-16")},
        Identifier.load,
        IdentifyError,
        ["is damaged", "utf-8"],
    ),
    "a model cut short": (
        model() | {"model.safetensors": model()["model.safetensors"][:-5]},
        Identifier.load,
        IdentifyError,
        ["is damaged", "it cannot be read"],
    ),
    "a model with one bit turned": (
        model() | {"model.safetensors": model()["model.safetensors"][:-1] + b"\x01"},
        Identifier.load,
        IdentifyError,
        ["is damaged", "does not match its digest"],
    ),
    "a model with another's numbers": (
        model(arrays={"['members'].field.coefficients": np.zeros((1, 3, 1), np.float32)}),
        Identifier.load,
        IdentifyError,
        [".field.coefficients has shape (3, 1)"],
    ),
    "a model with pickled numbers": (
        model() | {"model.safetensors": pickle.dumps(Hostile())},
        Identifier.load,
        IdentifyError,
        ["is damaged"],
    ),
    "a model of half a sentence": (
        model() | {"model.json": "{"},
        Identifier.load,
        IdentifyError,
        ["is damaged"],
    ),
    "a model without its arguments": (
        model() | {"model.json": json.dumps({"format": 1, "arguments": {}})},
        Identifier.load,
        IdentifyError,
        ["does not hold what", "missing required field"],
    ),
    "a model with a width in words": (
        model({"width": "wide"}),
        Identifier.load,
        IdentifyError,
        ["Expected `int`, got `str`", "$.width"],
    ),
    "a model without a series": (
        model(arrays={"['series'][0]['ts']": None}),
        Identifier.load,
        IdentifyError,
        ["KeyError", "ts"],
    ),
    "a model without its error": (
        model(arrays={"['error']": None}),
        Identifier.load,
        IdentifyError,
        ["['error']"],
    ),
    "a model with an unknown argument": (
        model({"colour": "red"}),
        Identifier.load,
        IdentifyError,
        ["`colour`"],
    ),
    "a model with a delay of no kind": (
        model({"delays": [{"tau": 1.0}]}),
        Identifier.load,
        IdentifyError,
        ["`kind`"],
    ),
    "a model with a wrong delay": (
        model({"delays": [{"kind": "Lag", "tau": -1.0}]}),
        Identifier.load,
        IdentifyError,
        ["Lag got tau=-1.0"],
    ),
    "a model of no solver": (
        model({"solver": "Tsit55"}),
        Identifier.load,
        IdentifyError,
        ["'Tsit55'"],
    ),
    "a model of a function that is no solver": (
        model({"solver": "diffeqsolve"}),
        Identifier.load,
        IdentifyError,
        ["'diffeqsolve'"],
    ),
    "a model with its own field, and none given": (
        model({"field": "own"}),
        Identifier.load,
        IdentifyError,
        ["field of its own", "field=..."],
    ),
    "a model without one, and one given": (
        model(),
        lambda folder: Identifier.load(folder, field=field),
        IdentifyError,
        ["'library'", "leave `field` out"],
    ),
    "a model that is a list": (
        model() | {"model.json": "[1]"},
        Identifier.load,
        IdentifyError,
        ["model.json is not of a format"],
    ),
    "a model with periods for nothing": (
        model(periods=[1.0]),
        Identifier.load,
        IdentifyError,
        ["does not hold what"],
    ),
}


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        ({"field": "mpl"}, (TS, SINE), "field='mpl'"),
        ({"field": 3}, (TS, SINE), "cannot be called"),
        ({"delays": Hold(1.0)}, (TS, SINE), "expected a list"),
        ({"delays": [1.0]}, (TS, SINE), "expected a list"),
        ({"ensemble": 0}, (TS, SINE), "ensemble=0"),
        ({"window": 0}, (TS, SINE), "window=0"),
        ({"validation": 1.0}, (TS, SINE), "validation=1.0"),
        ({"seed": -1}, (TS, SINE), "seed=-1"),
        ({}, (TS, SINE[:-1]), r"\(30,\).*\(29, 1\)"),
        ({}, (TS[::-1], SINE), "do not increase"),
        ({}, (np.append(TS[:-1], TS[-2]), SINE), "28 comes before 28"),
        ({}, (np.append(TS[:-1], np.nan), SINE), "not finite"),
        ({}, (TS, np.append(SINE[:-1], np.inf)), "infinite"),
        ({}, (TS, np.full(30, np.nan)), "no values at all"),
        ({}, (TS[:2], SINE[:2]), "2 samples"),
        ({}, (TS, ["a"] * 30), "not numbers"),
        ({}, (TS.astype("datetime64[D]"), SINE), "holds dates"),
        ({"window": 29}, (TS, SINE), "too short for windows of 29"),
        ({}, (TS, np.zeros((30, 2, 2))), r"shape \(30, 2, 2\)"),
        ({}, ([TS, TS], [SINE, SINE, SINE]), "3 trajectories in ys and 2 in ts"),
        ({}, (TS, [SINE, np.stack([SINE, SINE], 1)]), "different numbers"),
        ({}, (TS, SINE, SINE[:-1]), "inputs of shape"),
        ({}, (TS, SINE, np.append(SINE[:-1], np.nan)), "not finite"),
        ({"delays": [Hold(1.0), Hold(0.3)]}, (TS + 1e9, SINE), "too many digits"),
        ({}, (TS, 1e9 + SINE), "Column 0 of ys goes up to 1e.09 .*digits for float32. Subtract"),
        (
            {"field": "library"},
            (TS, 1e20 * SINE),
            "degree 2 .* too large .* Multiply it by 1e-20,",
        ),
        ({"field": "library"}, (TS, 1e-20 * SINE), "degree 2 .* too small .* Multiply it by 1e20,"),
        ({"field": "library", "degree": 4}, (TS, 1e10 * SINE), "degree 4 .* too large"),
        ({"field": "library"}, (TS, SINE, 1e20 * SINE), "Column 0 of inputs goes up to 9.999"),
        ({}, (TS, 1e38 * SINE), "degree 1 .* too large for float32"),
        ({}, (TS, 1e300 * SINE), "9.9+e.299, which cannot be squared. Multiply it by 1e-300"),
        ({}, (TS, SINE, 1e-300 * SINE), "Column 0 of inputs goes up to 9.9+e-301, which cannot"),
    ],
)
def test_bad_series_are_refused(arguments, data, message, unchecked):
    with pytest.raises((ValueError, TypeError), match=message):
        Identifier(**arguments).fit(*data)


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.forecast("later"), "ts is str"),
        (lambda m: m.forecast([4 + 1j]), "ts is list.*real numbers"),
        (lambda m: m.forecast(np.array(["2024-01-01"], "datetime64[D]")), "ts holds dates"),
        (lambda m: m.simulate("later", 1.0), "ts is str"),
        (lambda m: m.simulate([0.0, 1.0], "one"), "y0 is str"),
        (lambda m: m.simulate([0.0, 1.0], 1.0, ["off", "on"]), "inputs is list"),
    ],
)
def test_questions_in_words_are_refused(ask, message, unchecked, tmp_path):
    loaded = Identifier.load(write(tmp_path / "model", model()))
    with pytest.raises(TypeError, match=message):
        ask(loaded)


@pytest.mark.parametrize("case", FILES)
def test_files_are_refused(case, unchecked, tmp_path):
    check_files(FILES[case], tmp_path)


def test_the_sample_model_is_valid(tmp_path):
    """Otherwise the table above would test something else."""
    loaded = Identifier.load(write(tmp_path / "model", model()))
    assert loaded.equations() == ["x′ = 0 − 1 x"]
