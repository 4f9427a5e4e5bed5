"""Errors of training and of run folders."""

# Ends the messages of errors that a new run would avoid.
RESTART = "begin anew (resume=False, or --no-resume)"


class TrainingError(RuntimeError):
    """Training cannot continue. The message gives the reason and the remedy."""


class RunError(RuntimeError):
    """A run folder cannot be used. The message gives the reason and the remedy."""


class DamagedError(Exception):
    """The content of a file is not valid. The message gives the reason without the file's name."""
