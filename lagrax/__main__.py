"""`python -m lagrax` and the command `lagrax`."""

import os
import sys
from importlib import metadata

STOPPED = 130


def main() -> int:
    try:
        from .cli import run
    except KeyboardInterrupt:
        return STOPPED
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lagrax"):
            raise
        if sys.argv[1:] == ["--version"]:
            print(f"lagrax {metadata.version('lagrax')}")
            return 0
        print(f'The command needs {error.name}: pip install "lagrax[cli]"', file=sys.stderr)
        return 2
    code = run(sys.argv[1:])
    if code == STOPPED:
        # Ctrl-C may have left XLA in the middle of a computation, which crashes where Python tidies
        # up behind it. All files are closed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
