"""How an experiment conducts its trainings."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.pages import a_figure

from lagrax.training import train
from reproduction import read_result
from reproduction.experiment import Experiment, Findings, Trainer, Training, conduct
from reproduction.result import Claim, ResultTable

ADAM = optax.adam(0.1)
ROWS = jnp.ones(3)
CURVE = a_figure("curve", 1, 1)


def make(key):
    return jax.random.normal(key, ())


def loss(x, rows):
    return (x - rows) ** 2


def broken(x, rows):
    raise ValueError("broken")


def job(**changes):
    return dataclasses.replace(Training("Model", loss, make, ROWS, ADAM, steps=50), **changes)


def test_seeds_alone_equal_single_runs(tmp_path):
    trainer = Trainer(tmp_path, {"k": 1, "seeds": [3, 1]})
    jobs = {"zero": job(data=0 * ROWS), "one": job(options={"block": 25})}
    found = trainer.one_by_one(jobs, [3, 1])
    assert list(found) == ["zero", "one"]
    for i, seed in enumerate([3, 1]):
        alone = train(loss, make, ROWS, ADAM, steps=50, seeds=seed, block=25, progress=False)
        values = found["one"].metrics["loss"].values
        assert values.shape == (50, 2)
        np.testing.assert_array_equal(values[:, i], alone.metrics["loss"].values)
        np.testing.assert_array_equal(found["one"].model[i], alone.model)
    assert [time.name for time in trainer.times] == ["one", "zero"]


def test_more_seeds_train_only_the_new_ones(tmp_path):
    few = Trainer(tmp_path, {"k": 1, "seeds": [0]}).one_by_one({"a": job()}, [0])["a"]
    record = tmp_path / "a/seed-0/done.json"
    before = record.stat().st_mtime_ns
    many = Trainer(tmp_path, {"k": 1, "seeds": [0, 1]}).one_by_one({"a": job()}, [0, 1])["a"]
    assert record.stat().st_mtime_ns == before
    np.testing.assert_allclose(many.model[:1], few.model)
    config = json.loads((tmp_path / "a/seed-1/config.json").read_text())["config"]
    assert config["config.k"] == 1


def test_seeds_together_are_one_run(tmp_path):
    trained = Trainer(tmp_path, {}).together("all", job(), (0, 1))
    assert trained.model.shape == (2,)
    assert (tmp_path / "all/done.json").exists()


def test_threads_keep_the_precision(tmp_path, x64):
    start = lambda key: jnp.zeros((), jnp.float64)
    found = Trainer(tmp_path, {}).one_by_one({"a": job(make=start, steps=1)}, [0, 1])
    assert found["a"].model.dtype == jnp.float64


def test_one_that_fails_stops_the_others(tmp_path):
    endless = job(steps=10**6, options={"block": 10})
    with pytest.raises(ValueError, match="broken"):
        Trainer(tmp_path, {}).one_by_one({"endless": endless, "bad": job(loss=broken)}, [0])
    assert not (tmp_path / "endless/seed-0/done.json").exists()
    assert (tmp_path / "endless/seed-0/metrics.jsonl").stat().st_size > 0


@dataclasses.dataclass(frozen=True)
class TinySettings:
    steps: int = 50
    seeds: tuple[int, ...] = (0, 1)


@pytest.fixture
def tiny():
    def run(settings, trainer):
        trained = trainer.together("only", job(steps=settings.steps), settings.seeds)
        claim = Claim.at_most("it falls", float(trained.metrics["loss"].values[-1].max()), 0.1, "")
        seeds = [{"seed": seed, "loss": 0.5} for seed in settings.seeds]
        return Findings("It falls.", [claim], [CURVE], [ResultTable(["a"], [["1"]])], seeds)

    return Experiment("tiny", "Tiny", "About it.", TinySettings(), TinySettings(steps=5), run)


@pytest.mark.parametrize("quick", [False, True])
def test_conducting_writes_everything(tmp_path, tiny, quick):
    folder, entry = conduct(tiny, tmp_path, quick=quick, seeds=3, progress=False)
    assert folder == tmp_path / ("tiny-quick" if quick else "tiny")
    result = read_result(folder)
    assert result == entry.result
    assert (result.experiment, result.title, result.quick) == ("tiny", "Tiny", quick)
    assert result.settings == {"steps": 5 if quick else 50, "seeds": [0, 1, 2]}
    assert result.finding == "It falls."
    assert result.machine["versions"]["lagrax"]
    lines = (folder / "seeds.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]
    kinds = {".json", ".png"} if quick else {".json", ".png", ".pdf"}
    assert {p.suffix for p in (folder / "figures").iterdir()} == kinds


def test_only_full_runs_judge_claims(tmp_path, tiny):
    for quick, count in ((False, 1), (True, 0)):
        _, entry = conduct(tiny, tmp_path, quick=quick, progress=False)
        assert len(entry.result.claims) == count
