"""The results under results/ are whole, and their pages agree with their numbers."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction import EXPERIMENTS, read_result
from reproduction.images import ImageRun, default_protocol
from reproduction.images.accuracy import divide_records, make_image_result
from reproduction.images.caveats import list_caveats
from reproduction.images.evaluations import get_least_evaluations
from reproduction.images.protocol_study import (
    EQUAL_COST,
    MODELS,
    adaptive_protocol,
    belongs_to_study,
    double_steps,
    studied_protocol,
)
from reproduction.images.records import read_records
from reproduction.images.statistics import Spread, paper_accuracy
from reproduction.intervals import share_interval
from reproduction.models import AUGMENTED, DATASETS, TABLE_1
from reproduction.population import show_small
from reproduction.steepness import LOST, change_growth

RESULTS = Path(__file__).parents[2] / "results"
LAPTOP = RESULTS / "laptop"
IMAGES = RESULTS / "images"
STUDY = RESULTS.parent / "docs" / "images.md"


@functools.cache
def kept_records():
    return read_records(IMAGES)


@functools.cache
def kept_result():
    return make_image_result(kept_records())[0]


@pytest.fixture
def collect(load_script):
    return load_script(RESULTS / "collect.py")


def test_the_page_is_that_of_the_numbers(collect):
    assert (LAPTOP / "README.md").read_text(encoding="utf-8") == collect.page(LAPTOP)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_is_there_in_full(name):
    result = read_result(LAPTOP / name)
    assert not result.quick
    assert result.claims
    # Its settings are those of the code.
    settings = json.loads(json.dumps(EXPERIMENTS[name].full.__dict__))
    assert result.settings == settings
    for figure in result.figures:
        assert (LAPTOP / name / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_page_says_of_steepness():
    page = " ".join((STUDY.parent / "steepness.md").read_text(encoding="utf-8").split())
    settings, result = EXPERIMENTS["steepness"].full, read_result(LAPTOP / "steepness")
    x0 = np.linspace(*settings.starts, 400)
    steep, flat = (np.max(change_growth(a, x0, settings.train_time)) for a in (3.2, 2.0))
    assert f"up to {steep:.0f} at *a* = 3.2, and of up to {flat:.0f} at *a* = 2" in page
    for memory, factor, rates in ((0.999, 32, 3.2), (settings.memory, 4.5, 0.45)):
        assert 1 / np.sqrt(1 - memory) == pytest.approx(factor, rel=0.02)
        assert 0.1 / np.sqrt(1 - memory) == pytest.approx(rates, rel=0.02)
    trials, traced = result.tables
    lost = {row[0]: int(row[2].text.split()[0]) for row in trials.rows}
    assert lost == {"paper": 5, "short-memory": 0, "clipped": 0, "restarted": 0}
    assert "None of the three lost a seed of 40, where the paper's recipe lost 5" in page
    assert round(100 * share_interval(0, 40)[1]) == 9
    lines = (LAPTOP / "population" / "seeds.jsonl").read_text(encoding="utf-8").splitlines()
    node = [x["loss"] for x in map(json.loads, lines) if (x["model"], x["a"]) == ("NODE", 3.2)]
    assert 3 < np.median(node) / LOST < 3.2
    # By the median errors in training and over one, two, five and ten seasons.
    medians = {row[0]: [float(cell.text) for cell in row[3:]] for row in trials.rows}
    order = [sorted(medians, key=lambda recipe, i=i: medians[recipe][i]) for i in range(5)]
    assert all(order[i][:2] == ["clipped", "short-memory"] for i in (0, 3, 4))
    assert (order[1][0], order[2][0], order[3][-1], order[4][-1]) == (
        *("restarted", "clipped", "restarted", "restarted"),
    )
    # Traced runs are those of the same seeds.
    lines = (LAPTOP / "steepness" / "seeds.jsonl").read_text(encoding="utf-8").splitlines()
    final = {x["seed"]: x["finer"] for x in map(json.loads, lines) if x["recipe"] == "paper"}
    assert [row[-1] for row in traced.rows] == [
        show_small(final[int(row[0])]) for row in traced.rows
    ]


def test_claims_are_those_of_the_experiments():
    claims = json.loads((LAPTOP / "claims.json").read_text(encoding="utf-8"))
    found = [
        (name, claim.claim, claim.verdict)
        for name in sorted(EXPERIMENTS)
        for claim in read_result(LAPTOP / name).claims
    ]
    assert [(c["experiment"], c["claim"], c["verdict"]) for c in claims] == found
    for claim in claims:
        if claim["verdict"] == "undecided":
            assert claim["low"] < claim["target"] < claim["high"]
        else:
            better = claim["better"] == "higher"
            reached = (claim["value"] >= claim["target"]) == better
            assert (claim["verdict"] == "holds") == (reached or claim["value"] == claim["target"])


def test_collecting(collect, tmp_path, monkeypatch, capsys):
    runs, laptop = tmp_path / "runs", tmp_path / "laptop"
    monkeypatch.setattr(collect, "LAPTOP", laptop)
    with pytest.raises(SystemExit, match="holds no full experiment"):
        collect.collect(runs)
    for name in ("multiples", "multiples-quick"):
        (runs / name / "figures").mkdir(parents=True)
        for path in (LAPTOP / "multiples").iterdir():
            target = "figures" if path.suffix == ".png" else "."
            (runs / name / target / path.name).write_bytes(path.read_bytes())
    collect.collect(runs)
    assert [p.name for p in sorted(laptop.iterdir())] == ["README.md", "claims.json", "multiples"]
    monkeypatch.setattr("sys.argv", ["collect.py", "--check"])
    assert collect.main() == 0
    (laptop / "README.md").write_text("edited by hand")
    assert collect.main() == 1
    assert "out of date" in capsys.readouterr().out


# --- images ---------------------------------------------------------------------------------------


def test_the_pages_agree_with_the_records(collect):
    images = collect.ImageResults.read(IMAGES)
    for path, text in collect.make_image_pages(images).items():
        assert path.read_text(encoding="utf-8") == text
    assert images.figures
    for figure in images.figures:
        assert (IMAGES / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="lacks its markers"):
        collect._between("A page without markers.", "study", [])


def test_the_caveats_are_those_of_the_audit():
    """The numbers that an independent audit of the records found."""
    groups = divide_records(kept_records())
    caveats = " ".join(list_caveats(groups.default, groups.study))
    for words in (
        "19.5 to 32.8 % on MNIST",
        "4.5 to 17.1 % on SVHN",
        "SVHN, UNPCDDE5, seed 4 goes from 81.45 to 74.66 with fine steps",
        "81.24 ± 0.38",
        "48 of 60 cells",
        "About 54",
        "1.03 points better than with its default steps (2 seeds)",
        "3.06 points",
        "NODE, NPCDDE5 and UNPCDDE5 on CIFAR-10 alone, not on SVHN and MNIST",
    ):
        assert words in caveats
    assert list_caveats(dict(list(groups.default.items())[:-1]), groups.study) == []


def test_the_finding_counts_the_cells():
    finding = kept_result().finding
    assert "48 of 60 pairs" in finding
    assert "NODE and NDDE on 3 of 3 data sets" in finding


def test_runs_of_changed_code_are_marked():
    (table,) = [t for t in kept_result().tables if t.title.startswith("Commits")]
    assert sum(int(row[2]) for row in table.rows) == len(kept_records())
    changed = sum(int(row[2]) for row in table.rows if "uncommitted changes" in row[0])
    assert changed == sum(x.versions["commit"].endswith("+") for x in kept_records()) > 0


@pytest.fixture(scope="module")
def compared():
    """The lines of the study's two seeds."""
    lines = [line for line in kept_records() if belongs_to_study(line) and line.run.seed < 2]
    return lambda model, protocol: [
        line for line in lines if (line.run.model, line.run.protocol) == (model, protocol)
    ]


def test_the_study_shows_what_the_page_says_of_precision_and_steps(compared):
    for model in MODELS:
        once, twice = (
            compared(model, studied_protocol(model)),
            compared(model, double_steps(model)),
        )
        slower = compared(model, dataclasses.replace(studied_protocol(model), precision="f32"))
        assert len(once) == len(twice) == len(slower) == 2
        assert min(x.seconds for x in slower) > min(x.seconds for x in once)
        apart = abs(once[0].best - once[1].best)
        assert all(abs(a.best - b.best) < apart for a, b in zip(once, twice, strict=True))
    lines = [line for line in kept_records() if belongs_to_study(line)]
    changes = [abs(line.fine_accuracy - line.last) for line in lines]
    assert np.quantile(changes, 0.85) < 0.5


def test_the_study_shows_what_the_page_says_of_one_interval(compared):
    found = {protocol: compared("NODE", protocol) for protocol in EQUAL_COST}
    assert all(len(lines) == 2 for lines in found.values())
    error = {p: np.mean([x.solver_error for x in lines]) for p, lines in found.items()}
    assert min(error, key=error.get) == default_protocol("NODE") == default_protocol("NDDE")
    best = {p: np.mean([x.best for x in lines]) for p, lines in found.items()}
    lost = {p: np.mean([x.last - x.fine_accuracy for x in lines]) for p, lines in found.items()}
    bosh3, midpoint, tsit5 = EQUAL_COST
    apart = max(abs(a.best - b.best) for a, b in found.values())
    assert best[midpoint] - max(best[bosh3], best[tsit5]) > apart
    assert lost[midpoint] > lost[bosh3]


def test_the_page_compares_with_the_paper_on_both_sides():
    page = " ".join(STUDY.read_text(encoding="utf-8").split())
    ours = {
        (d, m): np.mean([x.best for x in of]) for d in DATASETS for m, of in by_model(d).items()
    }
    paper = {cell: paper_accuracy(*cell).mean for cell in ours}
    baselines = [cell for cell in ours if cell[1].split("+")[-1] in ("NODE", "NDDE")]
    own = [cell for cell in ours if cell not in baselines]
    said = []
    for cells, side in ((baselines, "above"), (own, "below")):
        apart = [ours[cell] - paper[cell] for cell in cells]
        assert (np.mean(apart) > 0) == (side == "above")
        number = sum(x > 0 for x in apart)
        mean = f"{abs(np.mean(apart)):.2f} points {side} it in the mean"
        said.append(f"in {number} of {len(cells)} cells and {mean}")
    for dataset, title in DATASETS.items():
        gain, theirs = (x[dataset, "UNPCDDE5"] - x[dataset, "NODE"] for x in (ours, paper))
        said.append(f"{gain:.2f} on {title} ({theirs:.2f} in the paper)")
    for sentence in said:
        assert sentence in page


def test_the_page_says_how_coarse_the_steps_are():
    page = " ".join(STUDY.read_text(encoding="utf-8").split())
    for dataset, title in DATASETS.items():
        of = by_model(dataset)
        errors = [100 * np.mean([x.solver_error for x in of[model]]) for model in TABLE_1]
        assert f"by {min(errors):.1f} to {max(errors):.1f} % on {title}" in page


def test_how_much_holds_by_each_accuracy():
    page = " ".join(STUDY.read_text(encoding="utf-8").split())
    table = next(t for t in kept_result().tables if t.title.startswith("How much holds"))
    found = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    cells = [row["reach the paper"] for row in found.values()]
    best, others, last = (text.removesuffix(" of 60") for text in cells[:3])
    assert f"of 60 cells, 20 models on 3 data sets, {best} reach the paper's mean" in page
    assert (
        f"best epoch, {others} by the epoch that a model's other seeds choose, and {last}" in page
    )
    clearly = [found["best epoch"][f"clearly {side}"] for side in ("below", "above")]
    assert f"{clearly[0]} cells are below the paper's mean by more than two standard" in page
    # Student's distribution: five seeds of ours and five of the paper's.
    by_chance = 60 * 2 * stats.t.sf(2, df=8)
    chance = f"where chance alone would make some {by_chance:.0f} in all"
    assert f"errors of the difference, and {clearly[1]} above it, {chance}" in page
    assert found["best epoch"]["above baselines"] == "3 of 3"
    assert found["cross-validated epoch"]["above baselines"] == "2 of 3"
    assert found["last epoch, fine steps"]["order"] == "0 of 3"


def test_which_runs_shared_a_gpu():
    """They take more than twice as long as on CIFAR-10; the number of images alone makes 1.5."""
    median = lambda lines: np.median([x.seconds for x in lines])
    svhn, cifar10 = by_model("svhn"), by_model("cifar10")
    shared = [m for m in svhn if median(svhn[m]) > 2 * median(cifar10[m])]
    assert shared == [m for m in TABLE_1 if m != "NPCDDE3"]


def test_every_cell_has_its_seeds(compared):
    assert all(len(compared(m, adaptive_protocol(m))) == 2 for m in MODELS)
    for dataset in DATASETS:
        assert all(len(found) == 5 for found in by_model(dataset).values())


def test_the_cells_below_the_paper_s():
    short = {d: shortfalls(d) for d in DATASETS}
    assert {dataset: list(models) for dataset, models in short.items()} == {
        "cifar10": ["NPCDDE2", "A2+NODE", "A2+UNPCDDE5"],
        "svhn": ["NDDE", "UNPCDDE2", "A1+NDDE", "A1+NPCDDE5", "A4+UNPCDDE5"],
        "mnist": ["UNPCDDE3", "UNPCDDE5", "A1+UNPCDDE5", "A2+NDDE"],
    }
    by_distance = sorted(((x, d, m) for d in short for m, x in short[d].items()), reverse=True)
    assert {(d, m) for _, d, m in by_distance[:5]} == {*list_tries()}
    assert by_distance[5][0] < 0.14


def test_the_study_shows_what_the_page_says_of_adaptive_steps(compared):
    for model in MODELS:
        default, adaptive = (
            compared(model, p(model)) for p in (default_protocol, adaptive_protocol)
        )
        best, other = ([x.best for x in lines] for lines in (default, adaptive))
        assert abs(np.mean(best) - np.mean(other)) < max(*best, *other) - min(*best, *other)
        assert min(x.seconds for x in adaptive) > 2.5 * max(x.seconds for x in default)
        errors = [[x.solver_error for x in lines] for lines in (default, adaptive)]
        assert np.mean(errors[1]) < np.mean(errors[0])


def list_tries():
    """By data set and model, the records of other settings, each with that of the same seed in the
    default one."""
    groups = divide_records(kept_records())
    default = {x.run[:3]: x for records in groups.default.values() for x in records}
    found = {}
    for record in groups.other:
        found.setdefault(record.run[:2], []).append((record, default[record.run[:3]]))
    return found


def test_twice_the_steps_are_better_and_not_always_enough():
    enough = set()
    for (dataset, model), pairs in list_tries().items():
        assert {x.run.protocol for x, _ in pairs} == {double_steps(model)}
        assert len(pairs) == (1 if model == "A1+NPCDDE5" else 3)
        rises = [x.best - usual.best for x, usual in pairs]
        assert np.mean(rises) > 0
        if model == "A4+UNPCDDE5":
            assert min(rises) > 0
            assert 0.9 < np.mean(rises) < 1
        elif len(rises) > 1:
            assert np.mean(rises) < 2 * np.std(rises, ddof=1) / np.sqrt(len(rises))
        assert all(0.15 < x.solver_error / usual.solver_error < 0.65 for x, usual in pairs)
        paper = paper_accuracy(dataset, model)
        if np.mean([x.best for x, _ in pairs]) > paper.mean - paper.std:
            enough.add(dataset)
    assert enough == {"svhn"}


def test_fine_steps_matter_more_on_svhn_and_mnist():
    lines = [line for line in kept_records() if line.is_default]
    of = lambda dataset: [line for line in lines if line.run.dataset == dataset]
    for model in TABLE_1:
        errors = [
            np.mean([x.solver_error for x in of(dataset) if x.run.model == model])
            for dataset in ("cifar10", "svhn", "mnist")
        ]
        assert errors == sorted(errors)
    lost = {
        dataset: [abs(x.last - x.fine_accuracy) for x in of(dataset)]
        for dataset in ("cifar10", "svhn", "mnist")
    }
    assert np.median(lost["cifar10"]) < 0.5
    assert 2 < max(lost["svhn"]) < 10
    assert 2 < max(lost["mnist"]) < 10


def by_model(dataset):
    lines = [x for x in kept_records() if x.is_default and x.run.dataset == dataset]
    return {m: [x for x in lines if x.run.model == m] for m in (*TABLE_1, *AUGMENTED)}


def falls(lines):
    return {m: np.mean([x.best - x.last for x in found]) for m, found in lines.items()}


def shortfalls(dataset):
    """Of the models whose best epoch is below the paper's mean less its deviation."""
    whole = by_model(dataset)
    paper = {m: paper_accuracy(dataset, m) for m in whole}
    found = {m: paper[m].mean - paper[m].std - np.mean([x.best for x in whole[m]]) for m in whole}
    return {m: short for m, short in found.items() if short > 0}


def test_augmented_models_overfit():
    fallen = falls(by_model("cifar10"))
    assert min(fallen[m] for m in AUGMENTED) > max(fallen[m] for m in TABLE_1)
    fallen = falls(by_model("svhn"))
    assert all(fallen[model] > fallen[model.split("+")[1]] for model in AUGMENTED)
    assert max(falls(by_model("mnist")).values()) < 0.5


def test_the_paper_s_order():
    claims = [claim for claim in kept_result().claims if " less that of " in claim.claim]
    found = {claim.claim.split(" (")[0]: claim for claim in claims}
    for title in DATASETS.values():
        assert found[f"{title}: all NPCDDEs and UNPCDDEs outperform NODE and NDDE"].value > 0
    claim = found["CIFAR-10: all NPCDDEs and UNPCDDEs outperform NODE and NDDE"]
    assert claim.value < 0.125 * (claim.high - claim.value)
    assert claim.verdict == "undecided"
    best = {name: claim for name, claim in found.items() if " is the best of " in name}
    second = {name: x.claim.split("less that of ")[1].rstrip(")") for name, x in best.items()}
    assert best["CIFAR-10: UNPCDDE5 is the best of Table 1"].value > 0
    for name, other in (("SVHN", "UNPCDDE3"), ("MNIST", "UNPCDDE2")):
        name = f"{name}: UNPCDDE5 is the best of Table 1"
        assert best[name].value < 0
        assert second[name] == other
    for channels, ahead in (
        ("1 channel", [True, True, True]),
        ("2 channels", [True, True, False]),
        ("4 channels", [False, False, False]),
    ):
        leads = [claim.value for name, claim in best.items() if f"with {channels} more" in name]
        assert [lead > 0 for lead in leads] == ahead
    assert np.mean([claim.verdict == "undecided" for claim in claims]) > 0.5


def test_the_gain_over_node_differs_clearly_on_mnist_alone():
    errors = {}
    for dataset in DATASETS:
        (ours, theirs), (node, their_node) = (
            (Spread.of([x.best for x in by_model(dataset)[m]]), paper_accuracy(dataset, m))
            for m in ("UNPCDDE5", "NODE")
        )
        apart = (ours.mean - node.mean) - (theirs.mean - their_node.mean)
        variance = sum(x.std**2 for x in (ours, theirs, node, their_node))
        errors[dataset] = apart / np.sqrt(variance / 5)
    assert [dataset for dataset, error in errors.items() if abs(error) > 2] == ["mnist"]
    assert f"{-errors['svhn']:.1f} of them smaller" in STUDY.read_text(encoding="utf-8")


def test_the_page_says_what_counts_of_evaluations_are():
    counts = [
        count
        for dataset in ("cifar10", "svhn")
        for model, lines in by_model(dataset).items()
        if model.endswith("PCDDE5")
        for line in lines
        for count in line.nfe
    ]
    assert set(counts) == {get_least_evaluations("NPCDDE5") + 6}
    page = " ".join((STUDY.parent / "paper.md").read_text(encoding="utf-8").split())
    assert (
        f"All {len(counts):,} counts of NPCDDE5 and UNPCDDE5 on CIFAR-10 and SVHN, augmented or "
        f"not, are {counts[0]}, six above the least" in page
    )


def test_what_the_page_says_of_the_ablation_and_the_recipe():
    tables = {table.title: table for table in kept_result().tables}
    questions = tables["Ablation, CIFAR-10, one part at a time"].rows
    assert [row[0] for row in questions if row[3] != "undecided"] == ["input instead of no past"]
    for _, chosen, _, paper, seeds in tables["Recipe study"].rows:
        assert seeds == "5"
        assert mean(chosen) > mean(paper) + 5
    compared = tables["Recipe study, the models compared"].rows
    assert [row[3] for row in compared] == ["undecided", "undecided"]
    fixed, random = tables["Continuity study"].rows
    assert mean(fixed[4]) > 1
    assert abs(mean(random[4])) < 0.1


def mean(shown):
    return float(shown.split(" ± ")[0].replace("−", "-"))


def test_the_page_names_what_the_paper_leaves_open():
    page = " ".join((STUDY.parent / "paper.md").read_text(encoding="utf-8").split())
    multiples, population = EXPERIMENTS["multiples"].full, EXPERIMENTS["population"].full
    for said in (
        f"{multiples.inputs} inputs evenly over [0, 1], Adam at {multiples.learning_rate:g} with",
        "uniform in [{:g}, {:g}]".format(*population.starts),
        f"{population.steps} Bosh3 steps a unit of time, tests with steps {population.finer} times",
        f"all {population.series} series in each step of Adam",
    ):
        assert said in page


def test_the_page_names_the_default_steps():
    page = " ".join(STUDY.read_text(encoding="utf-8").split())
    steps = [default_protocol(f"NPCDDE{n}").steps for n in (2, 3, 5)]
    assert "with 2, 3 and 5 intervals it takes {}, {} and {} midpoint steps".format(*steps) in page
    for model in ("NODE", "NDDE"):
        assert (default_protocol(model).solver, default_protocol(model).steps) == ("bosh3", 4)
    assert "with one interval takes 4 Bosh3 steps" in page
    run = ImageRun("mnist", "UNPCDDE5", 0, default_protocol("UNPCDDE5"))
    assert f'reproduction.load_model("runs/images/runs/{run.name}")' in page


def test_collecting_records(collect, tmp_path, monkeypatch, capsys):
    images, page = tmp_path / "images", tmp_path / "images.md"
    lines = (IMAGES / "cifar10.jsonl").read_text(encoding="utf-8").splitlines()
    images.mkdir()
    (images / "cifar10.jsonl").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    new = tmp_path / "runs/images/lines"
    new.mkdir(parents=True)
    (new / "a.jsonl").write_text(lines[3] + "\n", encoding="utf-8")
    # It exists already, and so is left as it is.
    (new / "b.jsonl").write_text(lines[1].replace('"seconds": ', '"seconds": 9'), encoding="utf-8")
    study, caveats = (f"<!-- {x} -->\nold\n<!-- /{x} -->\n" for x in ("study", "caveats"))
    page.write_text(f"Before.\n{study}Between.\n{caveats}Behind.\n", encoding="utf-8")
    monkeypatch.setattr(collect, "IMAGES", images)
    monkeypatch.setattr(collect, "STUDY", page)
    monkeypatch.setattr("sys.argv", ["collect.py", "--images", str(tmp_path / "runs")])
    assert collect.main() == 0
    kept = (images / "cifar10.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(kept) == sorted([lines[0], lines[1], lines[3]])
    assert "old" not in page.read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["collect.py", "--check"])
    assert collect.main() == 0
    page.write_text(page.read_text(encoding="utf-8").replace("Before", "Earlier"), encoding="utf-8")
    assert collect.main() == 0
    (images / "README.md").write_text("edited by hand", encoding="utf-8")
    assert collect.main() == 1
    assert "out of date" in capsys.readouterr().out


def test_the_gpu_script_s_table_is_that_of_its_results():
    """Its header shows one line a program and arithmetic, one column a model."""
    folder = RESULTS.parent / "benchmarks"
    header = (folder / "gpu_step.py").read_text(encoding="utf-8").split('"""')[1]
    rows = json.loads((folder / "results/gpu_step.json").read_text(encoding="utf-8"))["rows"]
    steps = {}
    for row in rows:
        if row.get("ms") is not None:
            steps.setdefault((row["program"], row["arithmetic"]), {})[row["model"]] = row["ms"]
    for (program, arithmetic), times in steps.items():
        lines = [
            line.split() for line in header.splitlines() if line.split()[:1] == program.split()[:1]
        ]
        shown = [f"{times[m]:.1f}" for m in ("NODE", "NPCDDE5", "UNPCDDE5") if m in times]
        if len(shown) == 3:
            assert any(line[-3:] == shown for line in lines), (program, arithmetic, shown)
    assert len(steps) >= 8
