"""Files that appear whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> None:
    """All of `content` at `path`, or nothing, whenever the machine stops."""
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
