"""Stops the run of `small_run`, resumes it, and compares it with an undisturbed run."""

import json

import pytest

from lagrax.training._files import WriteError
from lagrax.training._run_folder import RunFolder

from .small_run import check_same, run_in


class StopTraining(BaseException):
    """Ends a training from within."""


def patch_save(monkeypatch, step):
    """Stops training after the metrics of `step` are written and before their checkpoint is."""
    save = RunFolder.save

    def failing(self, number, state, seconds):
        if number >= step:
            raise StopTraining
        save(self, number, state, seconds)

    monkeypatch.setattr(RunFolder, "save", failing)


def stop_run(folder, step=15):
    """Leaves a run with checkpoints of steps 5 and 10, and metrics up to step 15."""
    with pytest.MonkeyPatch.context() as patch:
        patch_save(patch, step)
        with pytest.raises(StopTraining):
            run_in(folder)
    return folder


def check_ends_the_same(folder, undisturbed, **options):
    """Resumes the run in `folder` and compares it with `undisturbed`, bit for bit."""
    trained, metrics = undisturbed
    again = run_in(folder, **options)
    check_same(trained.model, again.model)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert json.loads((folder / "done.json").read_text())["steps"] == 20
    assert not list(folder.rglob(".*.part"))
    return again


def write_error_of(folder, **options):
    """The message of a run that cannot be written, or None."""
    try:
        run_in(folder, **options)
    except WriteError as error:
        return str(error)
    return None
