"""Training on several devices and in several processes equals training on one device."""

import socket

import jax
import numpy as np
import pytest
from helpers.sharded_run import DEVICE_COUNTS, read_answer, run, start_process

from lagrax.training._devices import make_mesh


@pytest.fixture(scope="module")
def one_device():
    DEVICE_COUNTS.clear()
    result = run()
    assert {1} == DEVICE_COUNTS
    assert len(result["loss"]) == 30
    return result


def check_equal(result, expected, tolerance=1e-5):
    np.testing.assert_allclose(result["loss"], expected["loss"], atol=tolerance)
    for x, y in zip(result["model"], expected["model"], strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


def test_four_devices_equal_one_and_two_can_resume(one_device, tmp_path):
    code = """
four = run(linear=False, devices=4)
assert DEVICE_COUNTS == {4}, DEVICE_COUNTS
stops = iter([False, True])
class Stop:
    def is_set(self): return next(stops)
try:
    run(devices=4, folder=folder, checkpoint_seconds=0, stop=Stop())
except KeyboardInterrupt:
    pass
print(json.dumps([four, run(devices=2, folder=folder)]))
"""
    four, resumed = read_answer(start_process(code, 4, tmp_path / "run"))
    check_equal(four, run(linear=False))
    check_equal(resumed, one_device)


def test_two_processes_equal_one(one_device, tmp_path):
    """The second call resumes the run, which the first process reads from the folder."""
    code = """
run(devices=jax.devices(), folder=folder, steps=20)
print(json.dumps(run(devices=jax.devices(), folder=folder)))
"""
    folder, port = tmp_path / "run", find_free_port()
    pair = [start_process(code, 2, folder, port, number) for number in (0, 1)]
    first, second = [read_answer(process) for process in pair]
    check_equal(first, one_device)
    assert second["model"] == first["model"]
    assert (folder / "done.json").is_file()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 30


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("devices", [0, 3, -1])
def test_number_of_devices_is_checked(devices):
    with pytest.raises(ValueError, match="expected 1 to 1"):
        make_mesh(devices, 8, 40)


def test_uneven_batches_are_refused():
    two = jax.devices() * 2
    with pytest.raises(ValueError, match="7 rows a step for 2 devices"):
        make_mesh(two, 7, 40)
    with pytest.raises(ValueError, match="change batch_size"):
        make_mesh(two, 100, 41)


def test_one_device_may_be_given_by_number(one_device):
    check_equal(run(devices=1), one_device)
