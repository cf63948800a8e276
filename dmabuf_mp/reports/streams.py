"""Words for standard output and standard error, either of which may be closed, full or gone."""

from __future__ import annotations

import contextlib
import json
import sys

from dmabuf_mp.reports.files import stdout_fd
from dmabuf_mp.reports.text import printable

PROGRAM = "dmabuf-mp"
EXIT_LOST = 1


class StdoutError(Exception):
    """Standard output took no more."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def stdout_lost(error: Exception) -> int:
    """Say that standard output could not be written, and return the exit code for it."""
    complain(f"standard output could not be written: {getattr(error, 'strerror', None) or 'it is closed'}")
    return EXIT_LOST


def complain(message: str, *, prefix: str = f"{PROGRAM}: ") -> None:
    """Write a message to standard error, if there is any."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write("".join(f"{prefix}{printable(line)}\n" for line in message.split("\n")))
            sys.stderr.flush()


def say(text: str) -> None:
    """Write to standard output; raises StdoutError."""
    try:
        stdout_fd()
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise StdoutError(error) from error


def say_json(value: object) -> None:
    """Write JSON to standard output."""
    say(json.dumps(value, indent=2))
