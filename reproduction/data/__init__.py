"""Reads MNIST, CIFAR-10 and SVHN from the files that their authors distribute.

```python
images = reproduction.data.load("cifar10", "~/data")
```

The files come from the folder that is named, else from the folder in `LAGRAX_DATA`, else from a
cache into which they are downloaded. The header of a file is checked against the known size of the
data set before it is used, and no file can make code run.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from .errors import OWN_FILES, DataError as DataError
from .sources import SOURCES, download_source, find_files

DATASETS = tuple(SOURCES)


class Images(NamedTuple):
    """A data set in its original split and order, with bytes as pixels and labels from 0 to 9."""

    train_images: UInt8[np.ndarray, "train height width channels"]
    train_labels: Int32[np.ndarray, " train"]
    test_images: UInt8[np.ndarray, "test height width channels"]
    test_labels: Int32[np.ndarray, " test"]


def load(dataset: str, folder: str | Path | None = None, *, progress: bool = True) -> Images:
    """Reads a data set, one of `DATASETS`.

    **Arguments:**

    - `folder`: the folder of the original files, or the folder above one such as `mnist`. By
      default `LAGRAX_DATA` names it. If that is not set either, the files are downloaded once and
      kept below `~/.cache/lagrax` (or `XDG_CACHE_HOME`). Nothing is downloaded into a folder that
      you name.
    - `progress`: shows the progress of a download on stderr.

    A folder that you name may hold copies that were compressed anew, so their contents are checked
    and not their digests. Downloads must have the SHA-256 of the originals.
    """
    if dataset not in SOURCES:
        raise ValueError(f"There is no data set {dataset!r}: choose one of {', '.join(DATASETS)}.")
    source = SOURCES[dataset]
    named = folder or os.environ.get("LAGRAX_DATA")
    if named:
        layout, paths = find_files(source, _expand_home(Path(named)))
    else:
        layout, paths = download_source(source, cache_folder() / dataset, progress)
    (images, labels), (test_images, test_labels) = layout.read(paths, source.counts)
    # Copies are contiguous, and do not keep the contents of a file in memory.
    return Images(
        np.array(images, order="C"), labels, np.array(test_images, order="C"), test_labels
    )


def _expand_home(folder: Path) -> Path:
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise DataError(f"{folder} names an unknown home folder: {OWN_FILES}.") from error


def cache_folder() -> Path:
    """The folder for downloads by the XDG rules, which ignore a relative path."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "lagrax"
    except RuntimeError as error:
        raise DataError(f"There is no home folder to download into: {OWN_FILES}.") from error
