"""`python -m lagrax` and the command `lagrax`."""

import os
import sys
from importlib import metadata

STOPPED = 130


def main() -> int:
    try:
        from ._cli.app import run
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
    return exit_at_once_if_stopped(run(sys.argv[1:]))


def exit_at_once_if_stopped(code: int) -> int:
    """Returns the exit code, or ends the process here after Ctrl-C: XLA may be in the middle of a
    computation, and crashes when Python cleans up. All files are closed."""
    if code == STOPPED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
