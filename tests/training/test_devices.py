"""Training on several devices and in several processes gives what one device gives.

JAX fixes the number of its devices when it starts, so these run in processes of their own.
"""

import json
import socket
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lagrax.training import train
from lagrax.training._devices import make_mesh

# What all of them train; `result` is what they print.
COMMON = """
import json, os, sys
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={sys.argv[1]}"
import jax
if len(sys.argv) > 4:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[4]}", 2, int(sys.argv[5]))
import jax.numpy as jnp, numpy as np, optax, lagrax
from lagrax.training import train

rows = np.random.default_rng(0).normal(size=(42, 3)).astype(np.float32)
shardings = set()


def make(key):
    field = lagrax.nn.MLP(3, (16,), history=2, key=key)
    return lagrax.nn.NPCDDE(field, 2, steps=2, throw=False)


def loss(model, rows):
    jax.debug.inspect_array_sharding(rows, callback=lambda s: shardings.add(str(s.num_devices)))
    return jnp.mean((model(rows) - jnp.roll(rows, 1, axis=1)) ** 2, axis=1)


def run(**options):
    options = {"batch_size": 8, "steps": 30, "block": 10, "progress": False} | options
    trained = train(loss, make, rows, optax.adam(1e-2), **options)
    leaves = jax.tree.leaves(trained.model)
    assert all(leaf.is_fully_replicated for leaf in leaves)
    values = [np.asarray(leaf.addressable_data(0)).tolist() for leaf in leaves]
    return {"model": values, "loss": trained.metrics["loss"].values.tolist()}
"""


def started(code, *arguments):
    program = textwrap.dedent(COMMON) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def assert_same(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a["loss"], b["loss"], atol=tolerance)
    for x, y in zip(a["model"], b["model"], strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


def test_four_devices_train_as_one_does(tmp_path):
    """Its last batch of a pass has rows that do not count; a run is continued on fewer devices."""
    code = """
        alone = run()
        assert shardings == {"1"}, shardings
        shardings.clear()
        four = run(devices=4)
        assert shardings == {"4"}, shardings
        folder = sys.argv[2]
        stops = iter([False, True])
        class Stop:
            def is_set(self): return next(stops)
        try:
            run(devices=4, folder=folder, checkpoint_seconds=0, stop=Stop())
        except KeyboardInterrupt:
            pass
        continued = run(devices=2, folder=folder)
        print(json.dumps([alone, four, continued]))
    """
    alone, four, continued = answer(started(code, 4, tmp_path / "run"))
    assert len(alone["loss"]) == 30
    assert_same(alone, four)
    assert_same(alone, continued)


def test_two_processes_train_as_one_does(tmp_path):
    code = """
        found = run(devices=jax.devices(), steps=int(sys.argv[3]), folder=sys.argv[2])
        print(json.dumps(found))
    """
    alone = answer(started("print(json.dumps(run()))", 1))
    folder = tmp_path / "run"
    # The second time the run is there, and both have it from the first process.
    for _ in range(2):
        port = free_port()
        pair = [started(code, 2, folder, 30, port, number) for number in (0, 1)]
        first, second = [answer(process) for process in pair]
        assert_same(alone, first)
        assert second["model"] == first["model"]
    assert (folder / "done.json").is_file()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("devices", "message"),
    [(0, "expected 1 to 1"), (3, "expected 1 to 1"), (-1, "expected 1 to 1")],
)
def test_too_many_devices(devices, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(devices, 8, 40)


def test_rows_that_do_not_come_out_even():
    import jax

    two = jax.devices() * 2
    with pytest.raises(ValueError, match="7 rows a step for 2 devices"):
        make_mesh(two, 7, 40)
    with pytest.raises(ValueError, match="change batch_size"):
        make_mesh(two, 100, 41)


def test_one_device_by_its_number():
    rows = jnp.ones((6, 1))
    trained = train(
        lambda model, rows: (model - rows[:, 0]) ** 2,
        lambda key: jnp.zeros(()),
        rows,
        optax.sgd(0.5),
        steps=3,
        devices=1,
        progress=False,
    )
    assert float(trained.model) == pytest.approx(1.0)
