"""Checks that bad input is refused with a helpful message and without leaving anything behind."""

import pytest

from .sample_files import listing, write

NAN, INF = float("nan"), float("inf")
# More than a machine counts to.
HUGE = 10**30


def check_words(message, words):
    for word in words:
        assert word in message, message


def check_call(case, folder, monkeypatch):
    """`case` is a call, the kind of its error, and words of the message."""
    call, kind, words = case
    monkeypatch.chdir(folder)
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    notes = getattr(caught.value, "__notes__", [])
    check_words("\n".join([str(caught.value), *notes]), words)
    assert listing(folder) == {}


def check_files(case, folder):
    """`case` is the files of a folder (or a function that makes them), what is done with it, the
    kind of its error, and words of the message beside the folder's name."""
    files, act, kind, words = case
    files(folder) if callable(files) else write(folder, files)
    before = listing(folder)
    with pytest.raises(kind) as caught:
        act(folder)
    check_words(str(caught.value), [str(folder), *words])
    assert listing(folder) == before


def check_command(case, arguments, command, folder, files):
    """`case` is the exit code, and words of the only sentence on stderr."""
    code, words = case
    before = listing(write(folder, files))
    got, out, err = command(*arguments)
    assert (got, out) == (code, ""), err
    *progress, sentence = err.splitlines()
    check_words(sentence, words)
    assert progress in ([], ["Reading MNIST"])
    assert listing(folder) == before
