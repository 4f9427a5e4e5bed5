"""Tables, figures and claims made of records."""

import json
import math

import numpy as np
import pytest
from helpers.image_runs import a_line, written
from scipy import stats

from lagrax.plotting import Line as Curve
from reproduction import (
    write_report,
)
from reproduction.images import (
    image_result,
)
from reproduction.images.claims import WRONG_SHARE, find_error_rate, image_claims
from reproduction.images.figures import find_late_range
from reproduction.images.records import parse_record
from reproduction.images.statistics import SEEDS, Spread, get_cross_validated, paper_accuracy
from reproduction.models import AUGMENTED, TABLE_1


def cell(result, title, model):
    (table,) = [table for table in result.tables if table.title == title]
    (row,) = [row for row in table.rows if row[0] == model]
    return row[1:]


def test_tables_of_records(tmp_path):
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
        "53.00",
        f"{mean:.2f} ± {std:.2f}",
        f"{mean - 1:.2f} ± {std:.2f}",
        f"{mean - 0.5:.2f} ± {std:.2f}",
        "52.50",
        "53.92 ± 0.67",
        f"−{53.92 - mean:.2f}",
        "3 of 5",
    ]
    missing = ["–"] * 6 + ["56.73 ± 0.54", "–", "–"]
    assert cell(result, "Table 1, CIFAR-10", "UNPCDDE5") == missing
    assert cell(result, "Table 1, MNIST", "NODE")[0] == "–"
    augmented = cell(result, "Augmented models, SVHN", "A2+NPCDDE5")
    medians = augmented.pop(1), augmented.pop(4)
    assert medians == ("83.00", "82.50")
    assert augmented == ["83.00", "–", "82.00", "82.50", "82.98 ± 0.37", "+0.02", "1 of 5"]
    (other,) = [table for table in result.tables if table.title == "Runs of other settings"]
    assert len(other.rows) == 3
    names = ["against-the-paper", "curves", "evaluations", "evaluations-augmented", "other-curves"]
    assert [figure.name for figure in figures] == names
    assert result.claims == []
    assert result.seconds == 40.0 * len(content)
    assert result.machine["device"] == "a device"


def test_other_settings_are_compared_with_the_same_seeds(tmp_path):
    content = [a_line("mnist", "NPCDDE5", i, best=96.0 + i) for i in range(3)]
    content += [a_line("mnist", "NPCDDE5", i, best=97.5, steps=2) for i in (0, 2)]
    # No default run has this seed.
    content += [a_line("mnist", "NPCDDE5", i, best=97.5, steps=4) for i in (2, 3)]
    result, _ = image_result(written(tmp_path, *content))
    other = result.tables[-1]
    at = other.columns.index("default's best")
    found = {row[1]: row[at] for row in other.rows}
    assert found == {"2 midpoint steps": "97.00 ± 1.41", "4 midpoint steps": "–"}


def test_a_note_counts_the_models_that_reach_the_paper(tmp_path):
    content = []
    for model, best in (("NODE", 53.5), ("NDDE", 55.0), ("NPCDDE2", 57.0), ("UNPCDDE2", 90.0)):
        seeds = SEEDS - (model == "UNPCDDE2")
        content += [a_line(model=model, seed=i, best=best) for i in range(seeds)]
    result, _ = image_result(written(tmp_path, *content))
    notes = {table.title: table.note for table in result.tables}
    assert notes["Table 1, SVHN"] == ""
    note = notes["Table 1, CIFAR-10"]
    assert "2 of the 3 models with 5 seeds" in note
    assert "missed: NDDE by 0.30 points" in note
    assert "0.00 points lower in the mean, 2 do; at the last, 1" in note


def test_cross_validated_epoch_ignores_its_own_seed():
    """Two of three seeds are best in the second epoch, so that is the third one's; the mean of the
    third and one of these is best in the third."""
    accuracies = ([50.0, 53.0, 51.5], [50.0, 53.5, 51.25], [50.0, 51.0, 54.0])
    found = get_cross_validated(
        [
            parse_record(json.dumps(a_line(seed=i, epochs=3) | {"test_accuracy": values}))
            for i, values in enumerate(accuracies)
        ]
    )
    assert found == [51.5, 51.25, 51.0]
    assert get_cross_validated([]) == []


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


# --- figures --------------------------------------------------------------------------------------


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


def test_accuracy_panels_cut_off_the_first_rise():
    rising = [np.linspace(10, 80, 9), np.full(21, 80.0)]
    curves = [Curve(np.arange(30), np.concatenate([*rising[:1], rising[1] + i])) for i in (0, 4)]
    low, high = find_late_range(curves)
    assert 79 < low < 80
    assert 84 < high < 85
    assert find_late_range([Curve(np.arange(4), np.arange(4.0))]) is None


def test_curves_are_means_over_seeds(tmp_path):
    content = [a_line(seed=i, best=best) for i, best in enumerate((52.0, 54.0))]
    _, (_, curves, evaluations) = image_result(written(tmp_path, *content))
    (line,) = curves.panels[2].marks
    np.testing.assert_allclose(line.y[:3], [40, 53, 52])
    np.testing.assert_allclose(line.high[1] - line.y[1], math.sqrt(2))
    np.testing.assert_allclose(line.y[1] - line.low[1], math.sqrt(2))
    assert list(curves.rows) == ["CIFAR-10"]
    assert [panel.title for panel in evaluations.panels] == ["CIFAR-10"]


# --- claims ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("distance", [-0.8, -0.5, 0.3, 0.6, 0.8])
def test_a_cell_is_decided_by_welch_s_test(distance):
    paper = paper_accuracy("svhn", "NODE")
    line = paper.mean - paper.std
    (claim,) = image_claims(cells_of({("svhn", "NODE"): line + distance}))
    # Each of the five seeds in `cells_of` is 0.05 from the next.
    std = 0.05 * math.sqrt(2.5)
    found = stats.ttest_ind_from_stats(line + distance, std, 5, line, paper.std, 5, equal_var=False)
    assert (claim.verdict == "undecided") == (found.pvalue > 2 * WRONG_SHARE)
    assert claim.holds == (claim.verdict != "undecided" and distance > 0)
    assert claim.value == pytest.approx(distance, abs=1e-3)


def test_claims_are_corrected_for_their_number():
    p_values = np.random.default_rng(0).beta(0.3, 1, 60)
    for used in (p_values, p_values[p_values > 0.3]):
        adjusted = stats.false_discovery_control(used)
        decided = used <= find_error_rate(used.tolist())
        assert decided.tolist() == (adjusted <= 2 * WRONG_SHARE).tolist()
    assert 5 < np.sum(p_values <= find_error_rate(p_values.tolist())) < np.sum(p_values < 0.1)


def test_verdicts_name_the_wrong_direction_rarely():
    """Differences of means of which one in five is real: of the decided ones, five in a hundred or
    fewer have the wrong sign."""
    rng = np.random.default_rng(1)
    shifts = np.where(rng.random((400, 80)) < 0.2, 2.0, 1e-9)
    a, b = rng.normal(shifts[..., None], 1, (400, 80, 5)), rng.normal(0, 1, (400, 80, 5))
    found = stats.ttest_ind(a, b, axis=-1, equal_var=False)
    wrong = [
        np.mean((t < 0)[p <= find_error_rate(p.tolist())])
        for t, p in zip(found.statistic, found.pvalue, strict=True)
        if np.any(p <= find_error_rate(p.tolist()))
    ]
    assert len(wrong) > 100
    assert np.mean(wrong) < WRONG_SHARE


def test_only_whole_cells_have_claims():
    assert image_claims(cells_of({("svhn", "NODE"): 99.0}, seeds=4)) == []


@pytest.mark.parametrize("errors", [-2.1, -1.9, 1.9, 2.1])
def test_clear_differences_exceed_two_standard_errors(tmp_path, errors):
    paper = paper_accuracy("svhn", "NODE")
    # Each of the five seeds is 0.05 from the next.
    apart = errors * math.sqrt((0.05**2 * 2.5 + paper.std**2) / 5)
    accuracies = [paper.mean + apart + 0.05 * (i - 2) for i in range(5)]
    written(tmp_path, *(a_line("svhn", "NODE", i, x) for i, x in enumerate(accuracies)))
    table = image_result(tmp_path)[0].tables[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    found = row["clearly below"], row["clearly above"]
    assert found == (str(int(errors < -2)), str(int(errors > 2)))


@pytest.mark.parametrize(
    ("means", "smaller"), [((80, 82, 83), 1), ((80, 83, 82), -1), ((83, 82.5, 84), -0.5)]
)
def test_the_order_of_the_models(means, smaller):
    models = ("NODE", "NPCDDE5", "UNPCDDE5")
    cells = cells_of({("mnist", m): float(x) for m, x in zip(models, means, strict=True)})
    order, *others = image_claims(cells)
    assert "rises from NODE to NPCDDE5 to UNPCDDE5" in order.claim
    # Each of the five seeds in `cells_of` is 0.05 from the next. All four claims are decided.
    half = stats.t.isf(WRONG_SHARE, 8) * 0.05 * math.sqrt(2.5 * 2 / 5)
    assert order.high - order.value == pytest.approx(half, rel=1e-2)
    assert order.value == pytest.approx(smaller)
    assert order.holds == (smaller > 0)
    assert len(others) == 3


@pytest.mark.parametrize(
    ("changed", "ahead", "best"), [({}, 1, 1), ({"NPCDDE2": 80.5}, -0.5, 1), ({"NDDE": 90}, -8, -5)]
)
def test_claims_about_baselines_and_the_best_model(changed, ahead, best):
    means = {m: 80.0 + i for i, m in enumerate(("NODE", "NDDE"))} | changed
    means |= {m: float(changed.get(m, 82.0)) for m in TABLE_1[2:-1]} | {"UNPCDDE5": 85.0}
    means["NPCDDE5"] = 84.0
    claims = image_claims(cells_of({("svhn", m): float(x) for m, x in means.items()}))
    (own,) = [claim for claim in claims if "outperform NODE and NDDE" in claim.claim]
    (winner,) = [claim for claim in claims if "is the best of Table 1" in claim.claim]
    assert "UNPCDDE5 is the best" in winner.claim
    assert (own.value, winner.value) == (pytest.approx(ahead), pytest.approx(best))
    assert (own.holds, winner.holds) == (ahead > 0, best > 0)


def test_claims_about_the_best_augmented_model():
    models = [m for m in AUGMENTED if m.startswith("A2")]
    claims = image_claims(
        cells_of({("mnist", m): 98.0 for m in models} | {("mnist", "A2+NODE"): 98.5})
    )
    (winner,) = [claim for claim in claims if "is the best of" in claim.claim]
    assert "A2+NODE is the best of those with 2 channels more" in winner.claim
    assert winner.value == pytest.approx(0.5)
