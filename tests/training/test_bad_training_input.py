"""Bad arguments of `train`, and damaged run folders."""

import jax
import numpy as np
import pytest
from helpers import sample_files
from helpers.refusals import HUGE, check_call, check_files, check_words
from helpers.sample_files import CHECKPOINT, checkpoint, listing, run, write
from helpers.small_run import ADAM, DATA, loss, make

from lagrax.training import train
from lagrax.training._errors import RunError
from lagrax.training._files import WriteError
from lagrax.training._run_folder import RunFolder


def trained(loss=loss, make=make, data=DATA, optimiser=ADAM, **options):
    return train(loss, make, data, optimiser, **{"steps": 1, "progress": False} | options)


def with_metric(model, batch):
    return loss(model, batch), {"z": 1j * model.weight}


def key_as_metric(model, test):
    return {"key": jax.random.key(0)}


def opened(folder):
    with RunFolder(folder, sample_files.CONFIG) as run:
        return run.restore(sample_files.STATE)


DEVICE = jax.devices()[0]

CALLS = {
    "no loss": (lambda: trained(loss=None), TypeError, ["train got loss=None", "function"]),
    "a model in place of make": (
        lambda: trained(make={"a": 1.0}),
        TypeError,
        ["train got make={'a': 1.0}", "function"],
    ),
    "no optimiser": (lambda: trained(optimiser=None), TypeError, ["optimiser=None", "optax.adam"]),
    "a rate as optimiser": (lambda: trained(optimiser=0.1), TypeError, ["optimiser=0.1"]),
    "data in words": (lambda: trained(data=["abc"]), TypeError, ["train got data with 'abc'"]),
    "test data in words": (
        lambda: trained(test_data="abc"),
        TypeError,
        ["train got test_data with 'abc'"],
    ),
    "a list as config": (lambda: trained(config=[1]), TypeError, ["config=[1]", "dictionary"]),
    "seconds in words": (
        lambda: trained(checkpoint_seconds="often"),
        ValueError,
        ["checkpoint_seconds='often'"],
    ),
    "devices in words": (lambda: trained(devices="two"), TypeError, ["devices='two'"]),
    "devices that are not there": (
        lambda: trained(devices=4096),
        ValueError,
        ["devices=4096", "the number that JAX sees"],
    ),
    "one device twice": (
        lambda: trained(devices=[DEVICE, DEVICE]),
        ValueError,
        ["train got devices=[", "only once"],
    ),
    "none of the devices": (
        lambda: trained(devices=[]),
        ValueError,
        ["devices=[]", "at least one"],
    ),
    "devices of true": (
        lambda: trained(devices=True),
        TypeError,
        ["devices=True", "expected a number"],
    ),
    "steps of true": (lambda: trained(steps=True), ValueError, ["steps=True", "whole number"]),
    "steps of training without end": (
        lambda: trained(steps=HUGE),
        ValueError,
        ["train got steps=1000", "32 bits"],
    ),
    "a block without end": (lambda: trained(block=HUGE), ValueError, ["train got block=1000"]),
    "a block beyond memory": (
        lambda: trained(block=10**9, steps=10**9),
        ValueError,
        ["train got block=1,000,000,000", "10,000,000 steps in one compiled call"],
    ),
    "a complex metric": (
        lambda: trained(loss=with_metric),
        ValueError,
        ["the metric 'z' as an array of complex64", "real ones"],
    ),
    "a key as metric": (
        lambda: trained(evaluate=key_as_metric),
        ValueError,
        ["the metric 'key' as an array of key<fry>", "real ones"],
    ),
    "a complex loss": (
        lambda: trained(loss=lambda model, batch: loss(model, batch) + 0j),
        TypeError,
        ["loss returned an array of complex64", "real value"],
    ),
    "a training in NUL": (
        lambda: trained(folder="a\0b"),
        ValueError,
        ["train's folder got 'a\\x00b'", "NUL"],
    ),
    "a training in a number": (lambda: trained(folder=3), TypeError, ["folder got 3", "path"]),
    "stop without an event": (
        lambda: trained(stop=True),
        TypeError,
        ["train got stop=True", "threading.Event"],
    ),
    "evaluate a number": (lambda: trained(evaluate=3), TypeError, ["evaluate=3", "function"]),
    "a loss without return": (
        lambda: trained(loss=lambda model, batch: None),
        TypeError,
        ["loss returned None"],
    ),
    "a model without parameters": (
        lambda: trained(make=lambda key: {"n": 3}),
        ValueError,
        ["make returned {'n': 3}", "nothing to train"],
    ),
    "steps in words": (lambda: trained(steps="3"), ValueError, ["steps='3'", "whole number"]),
    "no steps": (lambda: trained(steps=0), ValueError, ["steps=0"]),
    "an empty block": (lambda: trained(block=0), ValueError, ["block=0"]),
    "a negative batch": (lambda: trained(batch_size=-1), ValueError, ["batch_size=-1"]),
    "no seeds": (lambda: trained(seeds=()), ValueError, ["seeds=()"]),
    "one seed twice": (lambda: trained(seeds=(1, 1)), ValueError, ["seeds=(1, 1)"]),
    "a negative seed": (lambda: trained(seeds=-1), ValueError, ["seeds=-1"]),
    "a seed beyond 31 bits": (lambda: trained(seeds=2**40), ValueError, ["seeds=1099511627776"]),
    "no data": (lambda: trained(data=()), ValueError, ["shapes []"]),
    "data without rows": (lambda: trained(data=np.zeros((0, 2))), ValueError, ["[(0, 2)]"]),
    "data of different lengths": (
        lambda: trained(data=(np.zeros(3), np.zeros(4))),
        ValueError,
        ["shapes [(3,), (4,)]"],
    ),
    "event files without a folder": (
        lambda: trained(tensorboard=True),
        ValueError,
        ["tensorboard=True", "no folder"],
    ),
    "an array as config": (
        lambda: trained(config={"rate": np.ones(2)}),
        ValueError,
        ["config['rate'] that JSON cannot hold"],
    ),
    "a metric called loss": (
        lambda: trained(evaluate=lambda model, test: {"loss": 0.0}),
        ValueError,
        ["evaluate returned loss", "rename"],
    ),
    "a list of metrics to keep": (
        lambda: trained(keep=["error"], evaluate=lambda model, test: {}),
        TypeError,
        ["train got keep=['error']", "name of a metric"],
    ),
    "seeds beyond memory": (
        lambda: trained(seeds=range(10**12)),
        ValueError,
        ["train got seeds=range(0, 1000000000000)", "at most 1,000,000"],
    ),
    "seeds in words": (lambda: trained(seeds="one"), ValueError, ["seeds=one"]),
    "a training in a file": (
        lambda: trained(folder=__file__),
        WriteError,
        [__file__, "a file is where a folder should be"],
    ),
}

OTHER = {"['weight']": np.zeros(4, np.float32)}
DOUBLE = {"['weight']": np.zeros(3)}
RENAMED = {"['wait']": np.zeros(3, np.float32)}

# The files of a folder, what is done with it, the error, its words.
FILES = {
    "a run configured otherwise": (
        run(**{"config.json": '{"config": {"steps": 30, "seeds": 0}}'}),
        opened,
        RunError,
        ["steps was 30, now 20", "--no-resume"],
    ),
    "a run with a list as configuration": (
        run(**{"config.json": "[1, 2]"}),
        opened,
        RunError,
        ["config.json cannot be read", "configuration"],
    ),
    "a run with half a configuration": (
        run(**{"config.json": '{"config": {"steps"'}),
        opened,
        RunError,
        ["config.json cannot be read", "line 1 column"],
    ),
    "a run with a folder as configuration": (
        {k: v for k, v in run().items() if k != "config.json"} | {"config.json": None},
        opened,
        RunError,
        ["config.json cannot be read", "directory"],
    ),
    "a run with another's checkpoint": (
        run(**{CHECKPOINT: checkpoint(OTHER)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
    "a checkpoint of another type": (
        run(**{CHECKPOINT: checkpoint(DOUBLE)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
    "a checkpoint of other names": (
        run(**{CHECKPOINT: checkpoint(RENAMED)}),
        opened,
        RunError,
        [CHECKPOINT, "another model"],
    ),
}

NOT_JSON = b'{"step": 1, "loss": 0.5}\n{"step": 2, "lo\n'
NO_STEP = b'{"loss": 0.5}\n'
TEXT = b'{"step": 1, "loss": "low"}\n'

# Damaged checkpoints, and those of damaged metrics, are set aside.
ASIDE = {
    "not safetensors": (run(**{CHECKPOINT: b"PK\x03\x04" * 9}), ["it cannot be read"]),
    "an empty one": (run(**{CHECKPOINT: b""}), ["it cannot be read"]),
    "half of one": (run(**{CHECKPOINT: checkpoint()[:90]}), ["it cannot be read"]),
    "another digest": (
        run(**{CHECKPOINT: sample_files.tensors({}, {"step": "2"}, "0" * 64)}),
        ["does not match its digest"],
    ),
    "without a step": (run(**{CHECKPOINT: checkpoint(step=None)}), ["its step is None"]),
    "a step in words": (run(**{CHECKPOINT: checkpoint(step="two")}), ["its step is 'two'"]),
    "bytes below zero": (run(**{CHECKPOINT: checkpoint(bytes="-5")}), ["its bytes is '-5'"]),
    "seconds without end": (
        run(**{CHECKPOINT: checkpoint(seconds="inf")}),
        ["its seconds is 'inf'"],
    ),
    "without its metrics": (run(**{"metrics.jsonl": b""}), ["metrics.jsonl does not hold"]),
    "metrics of another run": (
        run(**{"metrics.jsonl": sample_files.METRICS.replace(b"0.5", b"0.6")}),
        ["metrics.jsonl does not hold the lines"],
    ),
    "metrics with a broken line": (
        run(**{"metrics.jsonl": NOT_JSON, CHECKPOINT: checkpoint(metrics=NOT_JSON)}),
        ["metrics.jsonl cannot be read"],
    ),
    "metrics in words": (
        run(**{"metrics.jsonl": TEXT, CHECKPOINT: checkpoint(metrics=TEXT)}),
        ["metrics.jsonl cannot be read", "got `str`"],
    ),
    "metrics without a step": (
        run(**{"metrics.jsonl": NO_STEP, CHECKPOINT: checkpoint(metrics=NO_STEP)}),
        ["metrics.jsonl holds a line without a step"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(case, unchecked, tmp_path, monkeypatch):
    check_call(CALLS[case], tmp_path, monkeypatch)


@pytest.mark.parametrize("case", FILES)
def test_files_are_refused(case, unchecked, tmp_path):
    check_files(FILES[case], tmp_path)


@pytest.mark.parametrize("case", ASIDE)
def test_damaged_checkpoints_are_set_aside(case, unchecked, tmp_path, capsys):
    files, words = ASIDE[case]
    before = listing(write(tmp_path, files))
    step, _, _ = opened(tmp_path)
    assert step == 0
    check_words(capsys.readouterr().err, [str(tmp_path / CHECKPOINT), "set aside", *words])
    after = listing(tmp_path)
    damaged = CHECKPOINT.replace(".safetensors", ".damaged")
    assert after[damaged] == before[CHECKPOINT]
    assert after["config.json"] == before["config.json"]


def test_the_sample_run_is_valid(tmp_path):
    """Otherwise the tables above would test something else."""
    step, state, seconds = opened(write(tmp_path / "run", run()))
    assert (step, seconds) == (2, 1.5)
    np.testing.assert_array_equal(state["weight"], sample_files.STATE["weight"])
