"""Faults for tests: full disks, failing calls, damaged files."""

import errno
import os
import subprocess

DISK_FULL = "cannot be written: the disk is full. Make room, and run the same again."


def raise_disk_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_at_call(number, function, instead):
    """`function` with `instead` in place of one call, and the list of calls."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return (instead if len(calls) == number else function)(*arguments)

    return counted, calls


def mount(*arguments):
    """Runs `mount`. Returns whether it succeeded."""
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


def truncate(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))
