"""The way in: `dmabuf-mp`, and `python -m dmabuf_mp`. Imports next to nothing until it knows what to do."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from dmabuf_mp import __version__

if TYPE_CHECKING:
    from types import FrameType

    from dmabuf_mp.cli import Services

LAST_STANDARD_FD = 2


def main(services: Services | None = None) -> int:
    """Run the command line and return its exit code; tests hand in doubles of the services."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored for us, by nohup for example
            signal.signal(number, _leave)
    _fill_standard_fds()
    if sys.argv[1:] in (["--version"], ["-V"]):
        return _print_version()
    # Before numpy is imported, whose OpenBLAS would start threads: this process is going to fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from dmabuf_mp.cli import run_command

    return run_command(sys.argv[1:], services)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once with 128 + the signal, and without a traceback; a run puts its own handlers in place."""
    raise SystemExit(128 + number)


def _fill_standard_fds() -> None:
    """Put /dev/null where a standard stream is closed, so that no other file ever gets its number."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= LAST_STANDARD_FD:
        fd = os.dup(fd)
    os.close(fd)


def _print_version() -> int:
    try:
        sys.stdout.write(f"dmabuf-mp {__version__}\n")
        sys.stdout.flush()
    except (OSError, AttributeError) as error:  # there is no sys.stdout where it was closed
        from dmabuf_mp.reports.streams import stdout_lost

        return stdout_lost(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
