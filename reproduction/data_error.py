"""What is said where a data set cannot be had."""

import urllib.error
from collections.abc import Sequence

OWN_FILES = "put the original files in a folder and name it with --data or LAGRAX_DATA"


class DataError(RuntimeError):
    """A data set cannot be had; the message says why and what to do."""


def reason(error: BaseException) -> str:
    """What an error says, in few words: no number, no type, no second sentence."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return reason(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return text or type(error).__name__


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
