"""Writing a report where it was asked for, without ever harming what is there.

A regular or absent target is replaced whole, by a temporary file beside it and a rename, so that it is
valid at every moment. A device, a pipe or standard output is written in place, and once.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.model import Report

STDOUT = "-"
INTERVAL_S = 1.0


def is_stdout(target: str) -> bool:
    """Tell whether a target is standard output: `-`, or the very file or pipe that it leads to."""
    return target == STDOUT or _standard_stream(target) == 1


def stdout_fd() -> int:
    """Return standard output's number; raises OSError where it was closed from the start."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    return 1


def impossible(target: str) -> str | None:
    """Say why nothing can ever be written to a target, or return None."""
    if target == STDOUT:
        return None
    if os.path.isdir(target):  # noqa: PTH112 - answers for every path, Path raises
        return "it is a folder"
    folder = os.path.dirname(target) or "."  # noqa: PTH120
    if not os.path.isdir(folder):  # noqa: PTH112
        return f"there is no folder {folder!r}"
    return None if target else "it has no name"


def replaceable(target: str) -> bool:
    """Tell whether a target can be written again and again: it is absent, or a regular file of its own."""
    if target == STDOUT or _standard_stream(target) is not None:
        return False
    try:
        return stat.S_ISREG(Path(target).stat().st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # writing it will say why


def write(target: str, data: bytes) -> None:
    """Write a whole report; raises OSError, and then leaves a regular target as it was."""
    if replaceable(target):
        _replace(Path(os.path.realpath(target)), data)
        return
    stream = stdout_fd() if target == STDOUT else _standard_stream(target)
    if stream is not None:
        write_all(stream, data)
        return
    fd = os.open(target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however many calls it takes; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _standard_stream(target: str) -> int | None:
    """Return 1 or 2 where a target is the file or pipe behind it; renaming over it would cut it off."""
    for fd in (1, 2):
        try:
            there, ours = Path(target).stat(), os.fstat(fd)
        except (OSError, ValueError):
            continue
        if os.path.samestat(there, ours) and not stat.S_ISCHR(ours.st_mode):
            return fd
    return None


def _replace(target: Path, data: bytes) -> None:
    mode = None
    if target.exists():
        mode = stat.S_IMODE(target.stat().st_mode)
        # The folder's permission is enough for a rename; the file's own was given for a reason.
        os.close(os.open(target, os.O_WRONLY | os.O_CLOEXEC))
    temporary = target.with_name(f".dmabuf-mp-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(fd, data)
            if mode is not None:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)
        if target.exists() and not target.is_file():
            raise FileExistsError(f"{target} has become something else than a file meanwhile")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class ReportFile:
    """One report's target, kept up to date while the run goes on.

    It is written at most once in `INTERVAL_S`, and never for more than a tenth of the run's time.
    """

    def __init__(self, flag: str, target: str, render: Callable[[Report], bytes]) -> None:
        self.flag = flag
        self.target = target
        self._render = render
        self._next_s = time.monotonic() + INTERVAL_S
        self.replaceable = replaceable(target)

    def update(self, report: Report) -> None:
        """Write a report that is still growing; a failure is left for `finish` to meet again."""
        if self.replaceable and time.monotonic() >= self._next_s:
            started_s = time.monotonic()
            self.finish(report)
            ended_s = time.monotonic()
            self._next_s = ended_s + max(INTERVAL_S, 9 * (ended_s - started_s))

    def finish(self, report: Report) -> str | None:
        """Write the whole report; return what went wrong, for people, or None."""
        try:
            write(self.target, self._render(report))
        except OSError as error:
            return f"{self.flag} {self.target}: the report could not be written: {error.strerror or error}"
        return None
