"""Bad command lines of `lagrax`, and tables that cannot be read."""

import os

import numpy as np
import pytest
from helpers.refusals import check_command, check_files
from helpers.sample_files import model

from lagrax._cli.table import TableError, read_table


def table(folder, **options):
    return read_table(folder / "x.csv", **options)


def loop(folder):
    os.symlink("x.csv", folder / "x.csv")


# The files of a folder, what is done with it, the error, its words.
FILES = {
    "a table that leads to itself": (loop, table, TableError, ["x.csv cannot be read", "symbolic"]),
    "a table that is a folder": ({"x.csv": None}, table, TableError, ["x.csv is a folder"]),
    "a table that is a picture": (
        {"x.csv": b"\x89PNG\r\n\x1a\n\0\0\0"},
        table,
        TableError,
        ["x.csv is a binary file", "CSV"],
    ),
    "a table with spaces between": (
        {"x.csv": "t x\n" + "".join(f"{n} {n}\n" for n in range(12))},
        table,
        TableError,
        ["x.csv has one column, 't x'", "commas"],
    ),
}

ROWS = [f"{t / 5:.1f},{np.sin(t / 5):.4f},{t % 4}" for t in range(60)]


def csv(*changes, header="t,x,u", rows=ROWS):
    """A table, with some of its rows replaced; row 1 is the header."""
    lines = [header, *rows]
    for number, text in changes:
        lines[number - 1] = text
    return "\n".join(lines) + "\n"


# What lies in the folder in which all commands are run.
AROUND = {
    "x.csv": csv(),
    "empty.csv": "",
    "bare.csv": csv(rows=ROWS[1:], header=ROWS[0]),
    "short.csv": csv(rows=ROWS[:5]),
    "word.csv": csv((7, "1.0,many,0")),
    "again.csv": csv((7, "0.8,0.1,0")),
    "back.csv": csv((7, "0.1,0.1,0")),
    "gap.csv": csv((7, "1.0,0.1,NA")),
    "inf.csv": csv((7, "1.0,inf,0")),
    "ragged.csv": csv((7, "1.0,0.1")),
    "latin.csv": csv((7, "1.0,ä\x81,0")).encode("latin-1"),
    "nul.csv": csv((7, "1.0,0\0,0")),
    "flat.csv": csv(rows=[f"{t},1.0,1.0" for t in range(60)]),
    "folder.csv": None,
    "file": "mine",
    "full/thesis.tex": "years",
    "answer/summary.json": '{"command": "analyse", "files": []}',
    **{f"model/{name}": content for name, content in model().items()},
    **{f"torn/{name}": content for name, content in model().items()},
    "torn/model.safetensors": b"not safetensors",
    "deep/model.json": '{"format":1,"arguments":' + "[" * 100_000,
    "deep/model.safetensors": b"",
}

# What is typed, the exit code, and words of the only line on stderr.
LINES = {
    "fit folder.csv": (2, ["folder.csv is a folder"]),
    "fit empty.csv": (2, ["empty.csv is empty", "header"]),
    "fit bare.csv": (2, ["bare.csv has no header", "its row 1 is 0.0, 0.0000, 0"]),
    "fit short.csv": (2, ["short.csv has too few rows of values: 5"]),
    "fit word.csv": (2, ["word.csv, row 7, column 'x': 'many' is no number"]),
    "fit again.csv": (2, ["again.csv, row 7, column 't': the time '0.8' repeats '0.8' in row 6"]),
    "fit back.csv": (2, ["back.csv, row 7, column 't': the time '0.1' comes after"]),
    "fit gap.csv --input u": (2, ["gap.csv, row 7, column 'u': the value is missing"]),
    "fit inf.csv": (2, ["inf.csv, row 7, column 'x': 'inf' is infinite"]),
    "fit ragged.csv": (2, ["ragged.csv, row 7: 2 cells; expected 3"]),
    "fit latin.csv": (2, ["latin.csv, row 7: the text is in another encoding"]),
    "fit nul.csv": (2, ["nul.csv is a binary file"]),
    "fit flat.csv": (2, ["flat.csv, column 'x': the value is 1 wherever it is known"]),
    "fit x.csv --time x": (2, ["x.csv, row", "column 'x': the time"]),
    "fit x.csv --column t": (2, ["x.csv: the column 't' is asked for twice"]),
    "fit x.csv --input nothing": (2, ["x.csv has no column 'nothing'"]),
    "fit x.csv --hold much": (2, ["'--hold'", "positive number"]),
    "fit x.csv --lags 0 --hold 1": (2, ["'--lags'", "expected at least 1"]),
    "fit x.csv --degree 7": (2, ["'--degree'", "expected at most 6"]),
    "fit x.csv --seed -1": (2, ["'--seed'", "expected at least 0"]),
    "fit x.csv --seed 2147483648": (2, ["'--seed'", "expected at most"]),
    "fit x.csv --forecast 1000000000": (2, ["--forecast 1e+09", "1,000,000"]),
    "fit x.csv --ensemble 1000000": (2, ["'--ensemble'", "expected at most"]),
    "fit x.csv --hold inf": (2, ["'--hold'", "positive number"]),
    "fit x.csv --out answer": (2, ["--out answer", "other than an answer of `lagrax fit`"]),
    "fit x.csv --out file/inside": (1, ["file/inside", "file"]),
    "fit x.csv other/x.csv": (2, ["Two tables are called x"]),
    "analyse absent": (2, ["No equation and no folder 'absent'"]),
    "analyse torn": (2, ["The model in torn is damaged"]),
    "analyse deep": (2, ["The model in deep is damaged"]),
    "analyse population --param a 1 2 --values 1000000": (2, ["--values 1000000", "states"]),
    "analyse population --skip 1000000000000": (
        2,
        ["'--skip'", "expected at most"],
    ),
    "analyse population --keep 1000000000000": (2, ["'--keep'", "expected at most"]),
    "analyse population --lag 1000000000": (2, ["Population got lag=1000000000", "at most 999"]),
    "fit x.csv --iterations 1000000000000": (2, ["'--iterations'", "expected at most"]),
    "analyse linear --param tau 1 2 --values 0": (2, ["'--values'"]),
    "analyse digital-control --param gain 1 2 --param tau 1 2 --values 100000": (
        2,
        ["--values 100000 makes 1e+10 pairs"],
    ),
    "analyse population --param a 1 inf": (2, ["a = 1 to inf", "finite"]),
    "analyse population --param lag 0 3": (2, ["lag is a whole number", "--lag 1"]),
    "analyse linear --lag 2": (2, ["linear has no parameter lag"]),
    "analyse population --a many": (2, ["'--a'", "expected a number"]),
    "analyse population --out full": (2, ["--out full", "other than an answer"]),
    "analyse": (2, ["Missing argument"]),
    "simulate population --a nan": (2, ["Population got a=nan", "finite"]),
    "simulate population --a inf": (2, ["Population got a=inf", "finite"]),
    "simulate population --lag -1": (2, ["Population got lag=-1", "whole number"]),
    "simulate population --lag 0.5": (2, ["'--lag'", "expected a whole number"]),
    "simulate mackey-glass --tau -1": (2, ["MackeyGlass got tau=-1.0", "positive"]),
    "simulate hutchinson --tau nan": (2, ["Hutchinson got tau=nan"]),
    "simulate held-oscillator --zeta inf": (2, ["HeldOscillator got zeta=inf"]),
    "simulate population --y0 nan": (2, ["--y0 nan: expected one number"]),
    "simulate population --y0 ,": (2, ["--y0 ,: expected one number"]),
    "simulate population --t1 0": (2, ["--t1 0: expected a positive"]),
    "simulate population --tau 1e-9": (2, ["--tau 1e-09", "intervals"]),
    "simulate population --samples 2000000": (2, ["'--samples'", "expected at most"]),
    "simulate population --samples many": (2, ["'--samples'", "expected a whole number"]),
    "simulate population --out page": (2, ["--out page: expected a name that ends in .png"]),
    "simulate population --csv full": (2, ["--csv full is a folder"]),
    "simulate population --out x.png --csv full": (2, ["--csv full is a folder"]),
    "simulate population extra": (2, ["extra"]),
    "simulate --t1 3": (2, ["--t1"]),
    "explore --port 70000": (2, ["'--port'", "expected at most 65535"]),
    "explore --port eighty": (2, ["'--port'", "expected a whole number"]),
    "info --verbose": (2, ["No such option", "--verbose"]),
    "--versoin": (2, ["No such option", "--versoin"]),
}


@pytest.mark.parametrize("case", FILES)
def test_files_are_refused(case, unchecked, tmp_path):
    check_files(FILES[case], tmp_path)


@pytest.mark.parametrize("typed", LINES)
def test_command_lines_are_refused(typed, lagrax_command, tmp_path):
    check_command(LINES[typed], typed.split(), lagrax_command, tmp_path, AROUND)
