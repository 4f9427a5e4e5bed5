"""What is kept under results/ is whole, and its page says what its numbers say."""

import dataclasses
import json
from pathlib import Path

import pytest

from lagrax.paper import EXPERIMENTS, read_experiment, read_result
from lagrax.paper.images import default_protocol
from lagrax.paper.lines import read_lines
from lagrax.paper.study import MODELS, belongs_to_study

RESULTS = Path(__file__).parent.parent / "results"
LAPTOP = RESULTS / "laptop"
IMAGES = RESULTS / "images"
STUDY = RESULTS.parent / "docs" / "images.md"


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


def test_claims_are_those_of_the_experiments():
    claims = json.loads((LAPTOP / "claims.json").read_text(encoding="utf-8"))
    found = [
        (name, claim.claim, claim.holds)
        for name in sorted(EXPERIMENTS)
        for claim in read_result(LAPTOP / name).claims
    ]
    assert [(c["experiment"], c["claim"], c["holds"]) for c in claims] == found
    for claim in claims:
        if claim["value"] is not None:
            higher = claim["value"] >= claim["bar"]
            lower = claim["value"] <= claim["bar"]
            assert claim["holds"] == (higher if claim["better"] == "higher" else lower)


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


def test_the_page_of_the_images_is_that_of_their_lines(collect):
    assert (IMAGES / "README.md").read_text(encoding="utf-8") == collect.images_page(IMAGES)
    _, figures = read_experiment(IMAGES)
    assert figures
    for figure in figures:
        assert (IMAGES / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_study_is_that_of_the_lines(collect):
    page = STUDY.read_text(encoding="utf-8")
    assert page == collect.with_study(page, IMAGES)
    assert page == collect.with_study(page.replace("| NODE, f16 |", "| edited |"), IMAGES)
    with pytest.raises(SystemExit, match="lacks its markers"):
        collect.with_study("A page without markers.", IMAGES)


def test_the_study_shows_what_the_page_says():
    """The sentences behind its tables."""
    lines = [line for line in read_lines(IMAGES) if belongs_to_study(line)]
    for model in MODELS:
        default = default_protocol(model)
        own = [line for line in lines if line.run.model == model]
        seconds = {
            precision: [
                line.seconds
                for line in own
                if line.run.protocol == dataclasses.replace(default, precision=precision)
            ]
            for precision in ("f16", "bf16", "f32")
        }
        assert all(len(times) == 2 for times in seconds.values())
        assert min(seconds["f32"]) > min(seconds["f16"])
        evaluated = [line.run.protocol.steps for line in own if line.run.protocol.steps]
        assert min(evaluated) == default.steps
    changes = [abs(line.fine_accuracy - line.last) for line in lines]
    apart = [line.best for line in lines if line.is_default and line.run.model == "NPCDDE5"]
    assert max(changes) < max(apart) - min(apart)


def test_the_page_names_the_default_steps():
    page = " ".join(STUDY.read_text(encoding="utf-8").split())
    steps = [default_protocol(f"NPCDDE{n}").steps for n in (2, 3, 5)]
    assert "with 2, 3 and 5 intervals it takes {}, {} and {} midpoint steps".format(*steps) in page
    assert (default_protocol("NODE").solver, default_protocol("NODE").steps) == ("tsit5", 2)


def test_collecting_lines(collect, tmp_path, monkeypatch, capsys):
    images, page = tmp_path / "images", tmp_path / "images.md"
    lines = (IMAGES / "cifar10.jsonl").read_text(encoding="utf-8").splitlines()
    images.mkdir()
    (images / "cifar10.jsonl").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    new = tmp_path / "runs/images/lines"
    new.mkdir(parents=True)
    (new / "a.jsonl").write_text(lines[3] + "\n", encoding="utf-8")
    # There already, and so left as it is.
    (new / "b.jsonl").write_text(lines[1].replace('"seconds": ', '"seconds": 9'), encoding="utf-8")
    page.write_text("Before.\n<!-- study -->\nold\n<!-- /study -->\nBehind.\n", encoding="utf-8")
    monkeypatch.setattr(collect, "IMAGES", images)
    monkeypatch.setattr(collect, "STUDY", page)
    monkeypatch.setattr("sys.argv", ["collect.py", "--images", str(tmp_path / "runs")])
    assert collect.main() == 0
    kept = (images / "cifar10.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(kept) == sorted([lines[0], lines[1], lines[3]])
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
