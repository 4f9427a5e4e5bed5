"""Claims, and how an experiment conducts its trainings."""

import dataclasses
import json
import math

import jax.numpy as jnp
import optax
import pytest

from lagrax.plotting import Figure, Line, Panel
from reproduction.experiment import Experiment, Outcome, Trainer, conduct
from reproduction.result import Claim, Table, read_result

ADAM = optax.adam(0.1)


def make(key):
    return jnp.zeros(())


def loss(x, rows):
    return (x - rows) ** 2


def broken(x, rows):
    raise ValueError("broken")


ROWS = jnp.ones(3)
QUIETLY = {"progress": False}


@pytest.mark.parametrize(
    ("value", "at_least", "at_most"),
    [(10.0, True, True), (10.01, True, False), (9.0, False, True), (9.99999, True, True)],
)
def test_claims_decide_by_what_they_print(value, at_least, at_most):
    assert Claim.at_least("a", value, 10.0, "b").holds == at_least
    assert Claim.at_most("a", value, 10.0, "b").holds == at_most


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_claim_without_a_number_does_not_hold(value):
    for kind in (Claim.at_least, Claim.at_most):
        assert kind("a", value, 1.0, "b") == dataclasses.replace(
            kind("a", 1.0, 1.0, "b"), value=None, holds=False
        )


def test_side_by_side_keeps_the_order(tmp_path):
    train = Trainer(tmp_path, {"k": 1}, QUIETLY)
    calls = {
        name: ((loss, make, ROWS * i, ADAM), {"steps": 200, "block": 50})
        for i, name in enumerate(("zero", "one"))
    }
    zero, one = train.side_by_side(calls)
    assert float(zero.model) == 0
    assert float(one.model) == pytest.approx(1, abs=1e-2)
    assert set(train.runs) == {"zero", "one"}
    assert train.seconds == pytest.approx(zero.seconds + one.seconds)
    config = json.loads((tmp_path / "one/config.json").read_text())["config"]
    assert config["config.k"] == 1


def test_side_by_side_keeps_the_precision(tmp_path, x64):
    start = lambda key: jnp.zeros((), jnp.float64)
    calls = {n: ((loss, start, jnp.ones(3), ADAM), {"steps": 1}) for n in ("a", "b")}
    for trained in Trainer(tmp_path, {}, QUIETLY).side_by_side(calls):
        assert trained.model.dtype == jnp.float64


def test_one_that_fails_stops_the_others(tmp_path):
    train = Trainer(tmp_path, {}, QUIETLY)
    endless = {"steps": 10**6, "block": 10}
    with pytest.raises(ValueError, match="broken"):
        train.side_by_side(
            {
                "broken": ((broken, make, ROWS, ADAM), {"steps": 1}),
                "endless": ((loss, make, ROWS, ADAM), endless),
            }
        )
    assert not (tmp_path / "endless/done.json").exists()
    assert (tmp_path / "endless/metrics.jsonl").stat().st_size > 0


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 20
    seeds: tuple[int, ...] = (0, 1)


def run(settings, train):
    trained = train("only", loss, make, ROWS, ADAM, steps=settings.steps, seeds=settings.seeds)
    steps, values = trained.metrics["loss"]
    claim = Claim.at_most("it falls", values[-1].max(), 0.1, "loss")
    figure = Figure("curve", "A curve.", [Panel([Line(steps, values[:, 0])])])
    return Outcome([claim], [figure], [Table(["a"], [["1"]], "A table")])


@pytest.mark.parametrize("quick", [False, True])
def test_conducting(tmp_path, quick):
    experiment = Experiment("tiny", "Tiny", "About it.", Settings(), Settings(steps=5), run)
    folder = conduct(experiment, tmp_path, quick=quick, seeds=3, progress=False)
    assert folder == tmp_path / ("tiny-quick" if quick else "tiny")
    result = read_result(folder)
    assert (result.experiment, result.title, result.quick) == ("tiny", "Tiny", quick)
    assert result.settings == {"steps": 5 if quick else 20, "seeds": [0, 1, 2]}
    assert [claim.holds for claim in result.claims] == [not quick]
    assert [table.title for table in result.tables] == ["A table"]
    assert {p.name for p in (folder / "figures").iterdir()} == {
        "curve.json",
        "curve.png",
        "curve.pdf",
    }
    assert result.machine["versions"]["lagrax"]
