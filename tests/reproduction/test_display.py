"""Progress of trainings on stderr."""

import re
import sys

from reproduction.display import TrainingDisplay


def work(display):
    with display:
        display.add("NODE", runs=2, iterations=100)
        display.add("NPCDDE", runs=1, iterations=1000)
        first, second = (display.reporter("NODE", run) for run in range(2))
        first(50, 0.5)
        second(100, 0.25)
        first(100, 0.75)
        for run, loss in enumerate((0.75, 0.25)):
            display.finish("NODE", run, loss, 1.5)
        display.reporter("NPCDDE")(500, 0.125)


def test_off_a_terminal_each_training_has_one_line_at_its_end(capsys):
    work(TrainingDisplay())
    assert capsys.readouterr().err == "NODE: 2 × 100 iterations, loss 5.00e-01, 3 s\n"


def test_a_training_of_before_counts_as_done(capsys):
    display = TrainingDisplay()
    with display:
        display.add("NODE", runs=1, iterations=100)
        display.finish("NODE", 0, 0.5, 60.0)
    assert capsys.readouterr().err == "NODE: 100 iterations, loss 5.00e-01, 60 s\n"
    # It says nothing about the pace of now.
    assert display._seconds_per_step() is None


def test_nothing_is_shown_if_not_wanted(capsys):
    work(TrainingDisplay(shown=False))
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_table_shows_all(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    work(TrainingDisplay())
    shown = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", capsys.readouterr().err)
    table = shown[shown.rindex("model") :]
    for words in ("iteration", "loss", "time left"):
        assert words in table
    assert re.search(r"NODE +2 × 100 +5\.00e-01 +done", table)
    assert re.search(r"NPCDDE +500 of 1,000 +1\.25e-01 +\d+ s", table)
    assert re.search(r"\d+ s left in all", table)
