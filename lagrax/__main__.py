"""`python -m lagrax` and the command `lagrax`."""

import sys


def main() -> int:
    try:
        from .cli import run
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lagrax"):
            raise
        print(f'The command needs {error.name}: pip install "lagrax[cli]"', file=sys.stderr)
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
