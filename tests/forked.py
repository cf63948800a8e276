"""Runs a part of a test in a forked child, for limits, filters and roots that cannot be undone."""

from __future__ import annotations

import os
import resource
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(function: Callable[[], object]) -> str:
    """Return str() of what a function returns in a child; AssertionError with its traceback if it raises."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        code, said = 1, ""
        try:
            code, said = 0, str(function())
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(sender, said.encode())
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}: {said}"
    return said


def open_fds() -> dict[str, str]:
    """Return what this process has open, by the fds' numbers."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the fd of the listing itself
            found[link.name] = str(link.readlink())
    return found


def leave_fds(free: int) -> None:
    """Take every fd that the limit allows but so many; only for a child."""
    highest = max(int(fd) for fd in open_fds())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + free + 2, hard))
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    for fd in taken[len(taken) - free :]:
        os.close(fd)
