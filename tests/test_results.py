"""What is kept under results/ is whole, and its page says what its numbers say."""

import importlib.util
import json
from pathlib import Path

import pytest

from lagrax.paper import EXPERIMENTS, read_result

RESULTS = Path(__file__).parent.parent / "results"
LAPTOP = RESULTS / "laptop"


@pytest.fixture
def collect():
    spec = importlib.util.spec_from_file_location("collect", RESULTS / "collect.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
