"""Image classifiers: what a run measures, sweeps over runs, and what is made of their lines."""

import dataclasses
import json
import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lagrax import nn, training
from lagrax.plotting import Line as Curve
from lagrax.training import TrainingError
from reproduction import (
    ResultError,
    __main__ as cli,
    load_model,
    models as _models,
    plan,
    sweep,
    write_report,
)
from reproduction.data import Images
from reproduction.images import (
    ImageRun,
    Protocol,
    convolution,
    default_protocol,
    image_result,
    protocol_study as study,
    training as images,
)
from reproduction.images.accuracy import SEEDS, by_the_others, image_claims
from reproduction.images.figures import _late_range
from reproduction.images.records import encode_record, parse_record, read_records
from reproduction.images.statistics import Spread, paper_accuracy
from reproduction.images.sweeps import QUICK
from reproduction.images.training import move_to_device, train_run
from reproduction.models import AUGMENTED, DATASETS, TABLE_1

QUIETLY = {"progress": False}
BRIEF = Protocol("euler", 1, precision="f32", epochs=2, batch_size=32, counted=0, checked=False)


@pytest.fixture(scope="module", autouse=True)
def _tiny():
    """Four filters, and test images in two batches of which the last is filled up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_models, "_FILTERS", dict.fromkeys(_models._FILTERS, (4, 4)))
        patch.setattr(images, "TEST_BATCH", 20)
        _forget()
        yield
    _forget()


def _forget():
    """What was computed with other filters."""
    images._make_functions.cache_clear()
    _models.paper_size.cache_clear()


def some_images(shape=(28, 28, 1)):
    rng = np.random.default_rng(0)
    draw = lambda n: rng.integers(0, 256, (n, *shape), np.uint8)
    labels = lambda n: rng.integers(0, 10, n).astype(np.int32)
    return Images(draw(70), labels(70), draw(30), labels(30))


@pytest.fixture(scope="module")
def mnist():
    return move_to_device("mnist", some_images())


@pytest.fixture
def models(monkeypatch):
    """The models that runs have trained, in their order."""
    kept = []

    def train(*arguments, **options):
        trained = training.train(*arguments, **options)
        kept.append(trained.model)
        return trained

    monkeypatch.setattr(images, "train", train)
    return kept


def same_but_for_time(*records):
    a, b = (json.loads(encode_record(record)) | {"seconds": 0} for record in records)
    return a == b


def scores(model, pictures, labels):
    """Mean loss and percentage of hits, from the logits of all images at once."""
    logits = np.asarray(model(jnp.asarray(pictures, jnp.float32) / 255), np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return losses.mean(), 100 * np.mean(logits.argmax(axis=1) == labels)


# --- a run ----------------------------------------------------------------------------------------


def test_a_line_holds_everything(mnist):
    protocol = dataclasses.replace(BRIEF, counted=5, checked=True)
    run = ImageRun("mnist", "NODE", 3, protocol)
    record = train_run(run, mnist, **QUIETLY)
    assert all(n >= 6 for n in record.nfe)
    assert 0 < record.solver_error < 1
    assert (record.filters, record.seed, record.epochs) == (4, 3, 2)
    assert record.training.training_images == 70
    assert record.versions["jax"] == jax.__version__
    line = encode_record(record)
    read = parse_record(line)
    assert read.run == run
    assert encode_record(read) == line


def test_what_is_not_measured_is_null(mnist):
    record = train_run(ImageRun("mnist", "NODE", 0, BRIEF), mnist, **QUIETLY)
    content = json.loads(encode_record(record))
    assert content["nfe"] is content["fine_accuracy"] is content["solver_error"] is None


def test_every_test_image_counts_once(mnist, models):
    line = train_run(ImageRun("mnist", "NODE", 1, BRIEF), mnist, **QUIETLY)
    data = some_images()
    loss, accuracy = scores(models[0], data.test_images, data.test_labels)
    assert mnist.test.images.shape[:2] == (2, 20)
    assert line.test_loss[-1] == pytest.approx(loss, abs=2e-5)
    assert line.test_accuracy[-1] == pytest.approx(accuracy, abs=1e-3)
    first, _ = scores(models[0], data.test_images[:20], data.test_labels[:20])
    assert abs(first - loss) > 1e-3


def test_the_training_loss_is_the_mean_over_images(mnist, models):
    # A model that does not learn has the same loss at all steps.
    protocol = dataclasses.replace(BRIEF, learning_rate=0.0)
    line = train_run(ImageRun("mnist", "NODE", 2, protocol), mnist, **QUIETLY)
    data = some_images()
    loss, _ = scores(models[0], data.train_images, data.train_labels)
    np.testing.assert_allclose(line.train_loss, [loss, loss], atol=2e-5)


def test_fine_steps_show_the_error_of_coarse_ones(mnist):
    """An independent measure of `solver_error`: the ratio of distances, one image at a time."""
    task = images._make_functions("mnist", "NODE", dataclasses.replace(BRIEF, checked=True))
    model = task.make(jax.random.key(5))
    found = task.compare_solvers(model, mnist.test)
    x = jnp.asarray(some_images().test_images, jnp.float32) / 255
    fine = _models.paper_model(
        "NODE", "mnist", key=jax.random.key(5), **images.make_fine_options("NODE")
    )
    coarse, true = np.asarray(model.flow(x)), np.asarray(fine.flow(x))
    expected = np.linalg.norm(coarse - true) / np.linalg.norm(true - np.asarray(x))
    assert float(found["solver_error"]) == pytest.approx(expected, rel=1e-3)
    assert expected > 1e-4


def test_a_stopped_run_goes_on_to_the_same_line(mnist, tmp_path):
    run = ImageRun("mnist", "NODE", 0, BRIEF)
    whole = train_run(run, mnist, **QUIETLY)
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        train_run(run, mnist, tmp_path / "run", stop=stop, **QUIETLY)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    resumed = train_run(run, mnist, tmp_path / "run", **QUIETLY)
    assert same_but_for_time(whole, resumed)


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_trained_model_is_kept(mnist, models, tmp_path, monkeypatch, precision):
    protocol = dataclasses.replace(BRIEF, precision=precision)
    line = train_run(ImageRun("mnist", "UNPCDDE2", 1, protocol), mnist, tmp_path, **QUIETLY)
    found, own = load_model(tmp_path), some_images()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(models[-1]), strict=True):
        np.testing.assert_array_equal(a, b)
    loss, accuracy = scores(found, own.test_images, own.test_labels)
    assert loss == pytest.approx(line.test_loss[-1], rel=1e-3)
    assert accuracy == pytest.approx(line.test_accuracy[-1], abs=1e-3)
    # What a GPU trained has its layers in another form there.
    monkeypatch.setattr(images, "replace_convolutions", lambda model: model)
    elsewhere = load_model(tmp_path / "model.safetensors")
    assert jax.tree.structure(elsewhere) != jax.tree.structure(found)
    assert scores(elsewhere, own.test_images, own.test_labels)[0] == pytest.approx(loss, rel=1e-3)


def test_what_is_no_trained_model_is_refused(mnist, tmp_path):
    with pytest.raises(ResultError, match=r"model.safetensors holds no trained .*No such file"):
        load_model(tmp_path)
    train_run(ImageRun("mnist", "NODE", 0, BRIEF), mnist, tmp_path, **QUIETLY)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    (checkpoint, *_) = (tmp_path / "checkpoints").iterdir()
    with pytest.raises(ResultError, match="it lacks 'run'"):
        load_model(checkpoint)
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b"", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(ResultError, match="name the folder of a finished run"):
            load_model(path)


def test_seeds_share_their_compiled_code(mnist):
    compiled, protocol = [], dataclasses.replace(BRIEF, epochs=1, checked=True)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    counts = []
    for seed in (0, 1):
        before = len(compiled)
        train_run(ImageRun("mnist", "NDDE", seed, protocol), mnist, **QUIETLY)
        counts.append(len(compiled) - before)
    assert counts[0] > 1
    assert counts[1] == 0


def test_convolutions_on_a_cpu_are_those_of_the_field():
    layer = nn.Affine(3, 5, window=(3, 3), key=jax.random.key(0))
    ours = convolution.CPUConvolution(layer)
    x = jax.random.normal(jax.random.key(1), (2, 7, 6, 3))

    def both(layer, x):
        return jnp.sum(jnp.sin(layer(x)))

    for argument in (0, 1):
        pair = [jax.grad(both, argument)(f, x) for f in (layer, ours)]
        for a, b in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer(x), ours(x), rtol=1e-6)
    model = images._make_model("UNPCDDE2", "mnist", jax.random.key(0))
    kinds = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, nn.Affine))
    assert sum(isinstance(x, convolution.CPUConvolution) for x in kinds) == 2


# --- protocols and plans --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "rk4", "steps": 1}, "No solver 'rk4': choose one of euler, "),
        ({"solver": "euler", "steps": 1, "precision": "f8"}, "No precision 'f8': choose one of"),
        ({"solver": "tsit5"}, "steps=None and rtol=None: give one of them"),
        ({"solver": "tsit5", "steps": 1, "rtol": 0.1}, "steps=1 and rtol=0.1: give one of them"),
        ({"solver": "tsit5", "rtol": 0.0}, "rtol=0.0: expected a positive"),
        ({"solver": "euler", "rtol": 0.1}, "euler does not estimate its error"),
    ],
)
def test_protocols_check_themselves(options, message):
    with pytest.raises(ValueError, match=message):
        Protocol(**options)


def test_the_order_of_a_full_sweep():
    runs = plan(precision="f16")
    assert len(runs) == 60 * SEEDS
    assert len({run.name for run in runs}) == len(runs)
    cells = list(dict.fromkeys((run.dataset, run.model) for run in runs))
    assert cells[:2] == [("cifar10", "NODE"), ("cifar10", "NDDE")]
    assert [d for d, m in cells if "+" not in m] == [d for d in DATASETS for _ in range(8)]
    assert ["+" in m for _, m in cells] == [False] * 24 + [True] * 36
    assert [run.seed for run in runs[:6]] == [0, 1, 2, 3, 4, 0]
    assert all(run.protocol == default_protocol(run.model) for run in runs)


def test_plans_change_the_protocol():
    (run,) = plan(["mnist"], ["NODE"], 1, rtol=1e-4, epochs=7)
    assert (run.protocol.solver, run.protocol.steps, run.protocol.rtol) == ("dopri5", None, 1e-4)
    # Without an accelerator.
    assert (run.protocol.epochs, run.protocol.precision) == (7, "f32")
    (run,) = plan(["mnist"], ["NPCDDE3"], 1, solver="bosh3", precision="bf16")
    assert (run.protocol.solver, run.protocol.steps) == ("bosh3", 2)
    assert run.protocol.precision == "bf16"
    assert len(plan(["all"], ["NODE"], 2)) == 6
    assert len(plan(["mnist"], ["all"], 1)) == 20
    assert [(r.dataset, r.model) for r in plan(quick=True)] == [("mnist", m) for m in QUICK.models]
    with pytest.raises(ValueError, match="No model 'RESNET' in the paper"):
        plan(["mnist"], ["RESNET"])


# --- sweeps ---------------------------------------------------------------------------------------


@pytest.fixture
def _own_data(monkeypatch):
    """Made-up images, and quick runs that measure little."""
    monkeypatch.setattr("reproduction.data.load", lambda dataset, folder: some_images())
    quick = QUICK._replace(protocol=lambda model: BRIEF)
    monkeypatch.setattr("reproduction.images.sweeps.QUICK", quick)


def few(**changes):
    """Two models, two seeds."""
    return plan(seeds=2, quick=True, **{"epochs": 1} | changes)


@pytest.mark.usefixtures("_own_data")
def test_a_sweep_does_what_is_left(tmp_path, monkeypatch, capsys):
    runs = few()
    assert sweep(runs[:1], tmp_path, **QUIETLY)[1:5] == (1, 0, 0, 0)
    (path,) = (tmp_path / "lines").iterdir()
    first = path.read_text()
    assert path.name == f"{runs[0].name}.jsonl"
    # Stopped at the second run of what is left.
    trained = []

    def stopped(run, *arguments, **options):
        if trained:
            raise KeyboardInterrupt
        trained.append(run)
        return train_run(run, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("reproduction.images.sweeps.train_run", stopped)
        with pytest.raises(KeyboardInterrupt):
            sweep(runs, tmp_path, **QUIETLY)
    assert trained == [runs[1]]
    capsys.readouterr()
    assert sweep(runs, tmp_path)[1:5] == (2, 2, 0, 0)
    err = capsys.readouterr().err
    assert "MNIST, NODE, seed 1: run 4 of 4" in err
    assert "2 of 4 runs trained, 2 done before" in err
    assert path.read_text() == first
    assert {line.run for line in read_records(tmp_path)} == set(runs)
    models = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")}
    assert models == {f"runs/{run.name}/model.safetensors" for run in runs}
    assert not list(tmp_path.rglob("metrics.jsonl"))
    assert (tmp_path / "figures/other-curves.png").read_bytes().startswith(b"\x89PNG")
    # Other protocols are other runs; what is done may be done again.
    assert sweep(few(epochs=2)[:1], tmp_path, **QUIETLY).trained == 1
    assert sweep(runs[:1], tmp_path, resume=False, **QUIETLY).trained == 1
    assert same_but_for_time(parse_record(path.read_text()), parse_record(first))


def test_a_full_sweep_without_an_accelerator_says_how_long(tmp_path, monkeypatch, capsys):
    def failed(*arguments, **options):
        raise TrainingError("not here")

    monkeypatch.setattr("reproduction.data.load", lambda dataset, folder: some_images())
    monkeypatch.setattr("reproduction.images.sweeps.train_run", failed)
    for quick in (False, True):
        sweep(plan(["mnist"], ["NODE"], 1, quick=quick), tmp_path)
        assert ("an epoch takes minutes and a run hours" in capsys.readouterr().err) != quick


@pytest.mark.usefixtures("_own_data")
def test_lines_count_in_any_file_and_need_no_data(tmp_path, monkeypatch):
    runs = few()[:1]
    sweep(runs, tmp_path, **QUIETLY)
    (path,) = (tmp_path / "lines").iterdir()
    path.rename(tmp_path / "collected.jsonl")
    monkeypatch.setattr("reproduction.data.load", lambda *_: 1 / 0)
    assert sweep(runs, tmp_path, **QUIETLY)[1:5] == (0, 1, 0, 0)
    with pytest.raises(ZeroDivisionError):
        sweep(few()[:2], tmp_path, **QUIETLY)


@pytest.mark.usefixtures("_own_data")
def test_sweeps_share_a_folder(tmp_path):
    runs, ended = few(), []
    both = [
        threading.Thread(target=lambda r: ended.append(sweep(r, tmp_path, **QUIETLY)), args=[r])
        for r in (runs, runs[::-1])
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(ended) == 2
    assert sum(end.trained for end in ended) == len(runs)
    assert len(list((tmp_path / "lines").iterdir())) == len(runs)


@pytest.mark.usefixtures("_own_data")
def test_what_another_process_trains_is_left_to_it(tmp_path, capsys):
    import filelock

    runs = few()[:2]
    (tmp_path / "runs").mkdir()
    with filelock.FileLock(tmp_path / "runs" / f".{runs[0].name}.lock"):
        assert sweep(runs, tmp_path)[1:5] == (1, 0, 1, 0)
    assert "Another process is training it: left to that." in capsys.readouterr().err
    assert sweep(runs, tmp_path, **QUIETLY)[1:5] == (1, 1, 0, 0)


@pytest.mark.usefixtures("_own_data")
def test_one_that_fails_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    def failing(run, *arguments, **options):
        if run.model == "UNPCDDE2":
            raise TrainingError("The loss is not finite from step 7 on.")
        return train_run(run, *arguments, **options)

    monkeypatch.setattr("reproduction.images.sweeps.train_run", failing)
    assert sweep(few(), tmp_path)[1:5] == (2, 0, 0, 2)
    assert "It failed: The loss is not finite from step 7 on." in capsys.readouterr().err
    line = ["images", "--quick", "--epochs", "1", "--out", str(tmp_path / "runs")]
    assert cli.run([*line, "--model", "NODE", "--model", "UNPCDDE2"]) == 1
    assert "No claim" not in capsys.readouterr().out
    # With nothing to report, it says so and ends.
    line[-1] = str(tmp_path / "other")
    assert cli.run([*line, "--model", "UNPCDDE2"]) == 1
    assert "0 of 1 runs trained" in capsys.readouterr().err


@pytest.mark.usefixtures("_own_data")
def test_the_command(tmp_path, capsys):
    line = ["images", "--quick", "--epochs", "1", "--out", str(tmp_path)]
    assert cli.run([*line, "--model", "NODE", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["folder"] == str(tmp_path / "images-quick")
    assert answer["quick"]
    page = (tmp_path / "report.html").read_text()
    assert "Runs of other settings" in page
    assert "Table 1" not in page


# --- lines ----------------------------------------------------------------------------------------


def a_line(dataset="cifar10", model="NODE", seed=0, best=53.0, **changes):
    """A line such as a run leaves: the second epoch is the best, one point above the last."""
    protocol = default_protocol(model)
    epochs = changes.pop("epochs", protocol.epochs)
    accuracy = [40.0, best] + [best - 1] * (epochs - 2)
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "epochs": epochs,
        "train_loss": [1.0] * epochs,
        "test_loss": [1.5] * epochs,
        "test_accuracy": accuracy,
        "nfe": [21] * epochs,
        "fine_accuracy": best - 0.5,
        "solver_error": 0.08,
        "solver": protocol.solver,
        "steps": protocol.steps,
        "rtol": None,
        "precision": protocol.precision,
        "seconds": 40.0,
        "device": "a device",
        "versions": {"jax": "1", "lagrax": "2"},
        "protocol": {"learning_rate": 1e-3, "batch_size": 256, "training_images": 50000},
    } | changes


def written(folder, *content, name="some.jsonl"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in content))
    return folder


def cell(result, title, model):
    (table,) = [table for table in result.tables if table.title == title]
    (row,) = [row for row in table.rows if row[0] == model]
    return row[1:]


def test_tables_of_lines(tmp_path):
    values = [52.0, 53.0, 54.5]
    content = [a_line(seed=i, best=best) for i, best in enumerate(values)]
    content += [a_line("svhn", "A2+NPCDDE5", 4, 83.0)]
    # Neither a study nor the table is made of these.
    content += [a_line(seed=3, best=99.0, epochs=29), a_line(seed=4, best=99.0, precision="f32")]
    shorter = {"learning_rate": 1e-3, "batch_size": 256, "training_images": 9, "images": 9}
    content += [a_line("mnist", best=99.0, protocol=shorter)]
    result, figures = image_result(written(tmp_path, *content))
    mean, std = np.mean(values), np.std(values, ddof=1)
    assert cell(result, "Table 1, CIFAR-10", "NODE") == [
        f"{mean:.2f} ± {std:.2f}",
        f"{mean:.2f} ± {std:.2f}",
        f"{mean - 1:.2f} ± {std:.2f}",
        f"{mean - 0.5:.2f} ± {std:.2f}",
        "53.92 ± 0.67",
        f"−{53.92 - mean:.2f}",
        "3 of 5",
    ]
    missing = ["–", "–", "–", "–", "56.73 ± 0.54", "–", "–"]
    assert cell(result, "Table 1, CIFAR-10", "UNPCDDE5") == missing
    assert cell(result, "Table 1, MNIST", "NODE")[0] == "–"
    augmented = cell(result, "Augmented models, SVHN", "A2+NPCDDE5")
    assert augmented == ["83.00", "–", "82.00", "82.50", "82.98 ± 0.37", "+0.02", "1 of 5"]
    (other,) = [table for table in result.tables if table.title == "Runs of other settings"]
    assert len(other.rows) == 3
    names = ["against-the-paper", "curves", "evaluations", "evaluations-augmented", "other-curves"]
    assert [figure.name for figure in figures] == names
    assert result.claims == []
    assert result.seconds == 40.0 * len(content)
    assert result.machine["device"] == "a device"


def test_other_settings_are_held_against_the_same_seeds(tmp_path):
    content = [a_line("mnist", "NPCDDE5", i, best=96.0 + i) for i in range(3)]
    content += [a_line("mnist", "NPCDDE5", i, best=97.5, steps=2) for i in (0, 2)]
    # No default run has this seed.
    content += [a_line("mnist", "NPCDDE5", i, best=97.5, steps=4) for i in (2, 3)]
    result, _ = image_result(written(tmp_path, *content))
    other = result.tables[-1]
    at = other.columns.index("default's best")
    found = {row[1]: row[at] for row in other.rows}
    assert found == {"2 midpoint steps": "97.00 ± 1.41", "4 midpoint steps": "–"}


def test_dots_lie_at_the_paper_s_accuracy_and_ours(tmp_path):
    values = [55.0, 57.0]
    content = [a_line(model="NPCDDE3", seed=i, best=best) for i, best in enumerate(values)]
    content += [a_line(model="A1+NPCDDE5", best=58.0), a_line("svhn", "UNPCDDE2", best=80.0)]
    _, (figure, *_) = image_result(written(tmp_path, *content))
    assert [panel.title for panel in figure.panels] == ["CIFAR-10", "SVHN"]
    *others, large, small = figure.panels[0].marks
    assert large.label == small.label == "NPCDDE"
    assert large.size > small.size
    assert (large.x, large.y) == ([56.34], [56.0])
    assert (small.x, small.y) == ([57.05], [58.0])
    std = np.std(values, ddof=1)
    bars = [(*mark.x, *mark.y) for mark in others if not mark.dashed]
    assert bars[0] == (56.34 - 0.51, 56.34 + 0.51, 56.0, 56.0)
    assert bars[1] == (56.34, 56.34, 56.0 - std, 56.0 + std)
    assert figure.panels[1].marks[-1].label == "UNPCDDE"


def test_curves_of_other_settings_stand_beside_the_default(tmp_path):
    content = [a_line("mnist", "NPCDDE5", 1, best=96.0), a_line("mnist", "NPCDDE5", 2, best=50.0)]
    content += [a_line("mnist", "NPCDDE5", 1, best=97.0, steps=2)]
    # No seed to compare with.
    content += [a_line("svhn", m, best=97.0, steps=4) for m in ("NPCDDE3", "UNPCDDE3")]
    _, figures = image_result(written(tmp_path, *content))
    other = figures[-1]
    assert list(other.rows) == ["SVHN", "MNIST, NPCDDE5"]
    curves = [curve for panel in other.panels for curve in panel.marks]
    pairs = {(curve.label, curve.colour) for curve in curves}
    assert len(pairs) == len(dict(pairs)) == len({colour for _, colour in pairs}) == 4
    usual, changed = other.panels[-1].marks
    assert usual.label == "default setting with the same seeds"
    assert changed.label == "2 midpoint steps, f16, 30 epochs"
    assert (max(usual.y), max(changed.y)) == (96.0, 97.0)


def test_accuracies_are_shown_from_where_they_differ():
    rising = [np.linspace(10, 80, 9), np.full(21, 80.0)]
    curves = [Curve(np.arange(30), np.concatenate([*rising[:1], rising[1] + i])) for i in (0, 4)]
    low, high = _late_range(curves)
    assert 79 < low < 80
    assert 84 < high < 85
    assert _late_range([Curve(np.arange(4), np.arange(4.0))]) is None


def test_a_table_says_how_many_models_reach_the_paper(tmp_path):
    content = []
    for model, best in (("NODE", 53.5), ("NDDE", 55.0), ("NPCDDE2", 57.0), ("UNPCDDE2", 90.0)):
        seeds = SEEDS - (model == "UNPCDDE2")
        content += [a_line(model=model, seed=i, best=best) for i in range(seeds)]
    result, _ = image_result(written(tmp_path, *content))
    notes = {table.title: table.note for table in result.tables}
    assert notes["Table 1, SVHN"] == ""
    assert notes["Table 1, CIFAR-10"] == (
        "By their best epoch 2 of the 3 models with 5 seeds reach the paper's mean less its "
        "standard deviation (missed: NDDE by 0.30 points); by the others' epoch, 0.00 points lower "
        "in the mean, it is 2, and by their last 1."
    )


def test_the_epoch_of_the_other_seeds():
    """Two of three seeds are best in the second epoch, so that is the third one's; the mean of the
    third and one of these is best in the third."""
    accuracies = ([50.0, 53.0, 51.5], [50.0, 53.5, 51.25], [50.0, 51.0, 54.0])
    found = by_the_others(
        [
            parse_record(json.dumps(a_line(seed=i, epochs=3) | {"test_accuracy": values}))
            for i, values in enumerate(accuracies)
        ]
    )
    assert found == [51.5, 51.25, 51.0]
    assert by_the_others([]) == []


def test_curves_are_means_over_seeds(tmp_path):
    content = [a_line(seed=i, best=best) for i, best in enumerate((52.0, 54.0))]
    _, (_, curves, evaluations) = image_result(written(tmp_path, *content))
    (line,) = curves.panels[2].marks
    np.testing.assert_allclose(line.y[:3], [40, 53, 52])
    np.testing.assert_allclose(line.high[1] - line.y[1], math.sqrt(2))
    np.testing.assert_allclose(line.y[1] - line.low[1], math.sqrt(2))
    assert list(curves.rows) == ["CIFAR-10"]
    assert [panel.title for panel in evaluations.panels] == ["CIFAR-10"]


def cells_of(means, seeds=SEEDS):
    """The cells of a table whose best accuracies have these means."""
    spread = np.linspace(-0.1, 0.1, seeds)
    return {
        (dataset, model): [
            parse_record(json.dumps(a_line(dataset, model, i, mean + x)))
            for i, x in enumerate(spread)
        ]
        for (dataset, model), mean in means.items()
    }


def test_claims_of_whole_cells():
    paper = paper_accuracy("svhn", "NODE")
    cells = cells_of({("svhn", "NODE"): paper.mean - paper.std + 0.25})
    (claim,) = image_claims(cells)
    assert claim.holds
    assert claim.value == pytest.approx(0.25, abs=1e-3)
    (claim,) = image_claims(cells_of({("svhn", "NODE"): paper.mean - paper.std - 0.25}))
    assert not claim.holds
    assert image_claims(cells_of({("svhn", "NODE"): 99.0}, seeds=4)) == []


@pytest.mark.parametrize("errors", [-2.1, -1.9, 1.9, 2.1])
def test_cells_that_are_clearly_beside_the_paper_s(tmp_path, errors):
    paper = paper_accuracy("svhn", "NODE")
    # Each of the five seeds is 0.05 from the next.
    apart = errors * math.sqrt((0.05**2 * 2.5 + paper.std**2) / 5)
    accuracies = [paper.mean + apart + 0.05 * (i - 2) for i in range(5)]
    written(tmp_path, *(a_line("svhn", "NODE", i, x) for i, x in enumerate(accuracies)))
    table = image_result(tmp_path)[0].tables[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    found = row["clearly below it"], row["clearly above it"]
    assert found == (str(int(errors < -2)), str(int(errors > 2)))


@pytest.mark.parametrize(
    ("means", "smaller"), [((80, 82, 83), 1), ((80, 83, 82), -1), ((83, 82.5, 84), -0.5)]
)
def test_the_order_of_the_models(means, smaller):
    models = ("NODE", "NPCDDE5", "UNPCDDE5")
    cells = cells_of({("mnist", m): float(x) for m, x in zip(models, means, strict=True)})
    order, *others = image_claims(cells)
    assert "rises from NODE to NPCDDE5 to UNPCDDE5" in order.claim
    # Each of the five seeds in `cells_of` is 0.05 from the next.
    assert f"standard error of {0.05 * math.sqrt(2.5 * 2 / 5):.2f}" in order.claim
    assert order.value == pytest.approx(smaller)
    assert order.holds == (smaller > 0)
    assert len(others) == 3


@pytest.mark.parametrize(
    ("changed", "ahead", "best"), [({}, 1, 1), ({"NPCDDE2": 80.5}, -0.5, 1), ({"NDDE": 90}, -8, -5)]
)
def test_the_paper_s_own_models_and_its_best(changed, ahead, best):
    means = {m: 80.0 + i for i, m in enumerate(("NODE", "NDDE"))} | changed
    means |= {m: float(changed.get(m, 82.0)) for m in TABLE_1[2:-1]} | {"UNPCDDE5": 85.0}
    means["NPCDDE5"] = 84.0
    claims = image_claims(cells_of({("svhn", m): float(x) for m, x in means.items()}))
    (own,) = [claim for claim in claims if "outperform NODE and NDDE" in claim.claim]
    (winner,) = [claim for claim in claims if "is the best of Table 1" in claim.claim]
    assert "UNPCDDE5 is the best" in winner.claim
    assert (own.value, winner.value) == (pytest.approx(ahead), pytest.approx(best))
    assert (own.holds, winner.holds) == (ahead > 0, best > 0)


def test_the_best_of_the_augmented_models():
    models = [m for m in AUGMENTED if m.startswith("A2")]
    claims = image_claims(
        cells_of({("mnist", m): 98.0 for m in models} | {("mnist", "A2+NODE"): 98.5})
    )
    (winner,) = [claim for claim in claims if "is the best of" in claim.claim]
    assert "A2+NODE is the best of those with 2 channels more" in winner.claim
    assert winner.value == pytest.approx(0.5)


def test_a_run_counts_once(tmp_path):
    written(tmp_path, a_line(best=50.0), a_line("mnist"))
    written(tmp_path / "lines", a_line(best=50.0))
    assert [(x.dataset, x.best) for x in read_records(tmp_path)] == [
        ("cifar10", 50.0),
        ("mnist", 53.0),
    ]
    written(tmp_path / "lines", a_line(best=51.0), name="other.jsonl")
    with pytest.raises(ResultError, match=r"line 1 of .*some.jsonl and line 1 of .*lines/other"):
        read_records(tmp_path)


def test_blank_lines_are_skipped(tmp_path):
    path = written(tmp_path, a_line()) / "some.jsonl"
    path.write_text(f"\n{path.read_text()}\n  \n{json.dumps(a_line(seed=1))}")
    assert [record.seed for record in read_records(tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "malformed|truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field"),
        (json.dumps(a_line() | {"nfe": [1]}), "`nfe` has 1 values for 30 epochs"),
        (json.dumps(a_line() | {"test_loss": ["low"] * 30}), r"Expected numbers .*test_loss"),
        (json.dumps(a_line() | {"model": "RESNET"}), "the paper has no 'RESNET' on 'cifar10'"),
        (json.dumps(a_line() | {"solver": "rk4"}), "No solver 'rk4'"),
        (json.dumps(a_line() | {"seed": "0"}), r"`str` .*seed"),
        (json.dumps({k: v for k, v in a_line().items() if k != "device"}), "`device`"),
        (
            json.dumps(a_line(best=9700.0, fine_accuracy=None)),
            "`test_accuracy` has 9,700, which is no percentage",
        ),
        (json.dumps(a_line(fine_accuracy=-1.0)), "fine_accuracy"),
        (json.dumps(a_line(params=3)), r"`params` is 3, but NODE has [\d,]+"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, bad, why):
    folder = written(tmp_path, a_line())
    with (folder / "some.jsonl").open("a") as file:
        file.write(bad + "\n")
    with pytest.raises(ResultError, match=rf"Line 2 of .*some\.jsonl is no finished run \(.*{why}"):
        read_records(folder)
    assert cli.run(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 2
    assert not (tmp_path / "page.html").exists()


def test_numbers_that_are_not_finite_are_null():
    line = json.dumps(a_line() | {"test_loss": [None, *[1.0] * 29]})
    record = parse_record(line)
    assert np.isnan(record.test_loss[0])
    record.test_loss[1] = np.inf
    assert json.loads(encode_record(record))["test_loss"][:3] == [None, None, 1.0]


@pytest.mark.parametrize(
    ("values", "text"), [([], "–"), ([1.0], "1.00"), ([1.0, 2.0], "1.50 ± 0.71")]
)
def test_spreads(values, text):
    assert str(Spread.of(values)) == text


def test_a_report_of_lines_alone(tmp_path):
    folder = written(tmp_path / "images", *(a_line(seed=i) for i in range(SEEDS)))
    (tmp_path / "some-run").mkdir()
    (tmp_path / "some-run/metrics.jsonl").write_text("{}\n")
    before = sorted(tmp_path.rglob("*"))
    for place in (folder, tmp_path):
        page = write_report([place], tmp_path / "report.html").read_text()
        assert page.count("<h2>Image classification</h2>") == 1
        for words in ("Table 1, CIFAR-10", "53.00 ± 0.00", "53.92 ± 0.67", "less its standard"):
            assert words in page
        assert "Evaluations of the field" in page
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "report.html"])


# --- the study ------------------------------------------------------------------------------------


def test_the_study_compares_settings_by_seed(tmp_path):
    tsit5 = {"solver": "tsit5", "solver_error": 0.08}
    content = [a_line(seed=1, best=53.0, steps=2, **tsit5), a_line(seed=2, best=99.0)]
    tsit5["solver_error"] = 0.02
    content += [a_line(seed=i, best=54.0 + i, steps=4, **tsit5) for i in (0, 1)]
    content += [a_line(seed=0, solver="bosh3", steps=6)]
    # Other settings with other seeds are none of its own.
    content += [a_line(seed=3, best=99.0, precision="bf16")]
    result, _ = image_result(written(tmp_path, *content))
    precision, solver, epochs = [t for t in result.tables if t.title.startswith("Protocol study")]
    first = ["NODE, 2 tsit5 steps, f16", "–, 53.00", "–, 52.00", "–, 1.000", "–, 40"]
    assert precision.rows[0] == first
    assert precision.rows[1] == ["NODE, 2 tsit5 steps, bf16", "–", "–", "–", "–"]
    assert len(precision.rows) == 9
    rows = {row[0]: row[1:] for row in solver.rows}
    assert rows["NODE, 4 tsit5 steps"][:4] == [
        "54.00, 55.00",
        "53.00, 54.00",
        "2.0, 2.0",
        "+0.50, +0.50",
    ]
    assert rows["NODE, adaptive dopri5, 0.001"] == ["–"] * 6
    assert rows["NODE, 6 bosh3 steps"][0] == "53.00, –"
    assert rows["NODE, 4 bosh3 steps"] == ["–"] * 6
    assert "divide the error by 4.0 to 4.0" in solver.note
    assert "by +2.00 to +2.00 points" in solver.note
    assert "of equal cost" not in solver.note
    assert "Over all 5 runs" in solver.note
    # The default with all its seeds.
    assert epochs.rows[0] == ["NODE", "99.00", "98.00", "2", "53.92 ± 0.67"]
    assert epochs.rows[1][1:4] == ["–"] * 3
    assert "1.00 points above the last" in epochs.note


def test_the_study_compares_solvers_of_equal_cost(tmp_path):
    content = [
        a_line(seed=i, best=best + i, solver=p.solver, steps=p.steps, solver_error=error * (1 + i))
        for p, best, error in zip(study.EQUAL_COST, (53, 55, 54), (0.02, 0.04, 0.03), strict=True)
        for i in study.SEEDS
    ]
    result, _ = image_result(written(tmp_path, *content))
    (table,) = [t for t in result.tables if t.title.endswith("solver and steps")]
    assert (
        "an error of 3.0 % with 4 bosh3 steps, 4.5 % with 2 tsit5 steps, 6.0 % with 6 midpoint "
        "steps (means of 2 seeds); their best accuracies are 53.50, 54.50, 55.50, in this order."
    ) in table.note


def test_the_study_compares_adaptive_steps_with_the_default(tmp_path):
    content = [a_line(model="NPCDDE5", seed=i, best=56.0 + i, seconds=30.0 + i) for i in (0, 1)]
    adaptive = {"solver": "dopri5", "steps": None, "rtol": 1e-3, "seconds": 124.0}
    content += [a_line(model="NPCDDE5", seed=1, best=56.5, **adaptive)]
    result, _ = image_result(written(tmp_path, *content))
    (table,) = [t for t in result.tables if t.title.endswith("solver and steps")]
    assert (
        "Adaptive steps take 4.0 to 4.0 times as long as the default's, and change the best "
        "accuracy of a seed by −0.50 to −0.50 points."
    ) in table.note
    assert "Twice the steps" not in table.note


def test_the_study_s_solvers_have_equal_cost():
    for protocol in study.EQUAL_COST:
        model = _models.paper_model("NODE", "mnist", key=jax.random.key(0), **protocol.flow_options)
        assert model.flow.solve(jnp.zeros((1, 28, 28, 1))).stats["num_evaluations"] == 12


def test_without_other_settings_there_is_no_study(tmp_path):
    result, _ = image_result(written(tmp_path, a_line()))
    assert not [t for t in result.tables if t.title.startswith("Protocol study")]


def test_the_study_s_plan_is_of_other_settings():
    for model in study.MODELS:
        settings = study.study_plan(model)
        assert settings[0] == default_protocol(model)
        assert study.studied_protocol(model) in settings
        assert len(set(settings)) == len(settings) == (7 if model == "NODE" else 5)
