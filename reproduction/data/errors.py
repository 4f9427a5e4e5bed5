"""The error for a data set that cannot be read, and the words of its messages."""

from collections.abc import Iterable, Sequence

OWN_FILES = "put the original files in a folder and name it with --data or LAGRAX_DATA"


class DataError(RuntimeError):
    """A data set cannot be read. The message gives the reason and the remedy."""


def replace_file(where: object, problem: str) -> DataError:
    """The error for a file that is not the original one."""
    return DataError(f"{where} {problem}: put the original, or a whole copy, in its place.")


def summarise_error(error: BaseException) -> str:
    """The root cause of an error in a few words, without its number, type or second sentence."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return text or type(error).__name__


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence, as in "a, b and c"."""
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), *names[-1:]])


def format_shape(shape: Iterable[int]) -> str:
    return " × ".join(f"{n:,}" for n in shape)
