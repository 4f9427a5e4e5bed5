"""The command `lagrax`, also as `python -m lagrax`."""

import os
import sys

INTERRUPTED = 130


def main() -> int:
    try:
        from ._cli.app import run
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lagrax"):
            raise
        if sys.argv[1:] == ["--version"]:
            print(f"lagrax {sys.modules['lagrax'].__version__}")
            return 0
        print(f'The command needs {error.name}: pip install "lagrax[cli]"', file=sys.stderr)
        return 2
    return exit_if_interrupted(run(sys.argv[1:]))


def exit_if_interrupted(code: int) -> int:
    """Returns the exit code, but ends the process at once after Ctrl-C. XLA may be in the middle of
    a computation then, and crashes while Python shuts down. All files are closed."""
    if code == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
