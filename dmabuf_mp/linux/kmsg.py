"""/dev/kmsg: the kernel's log, a record at a time."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp.fds import Fd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel's longest; a shorter read fails with EINVAL
# By the kernel's levels, from emergency to debug.
LEVELS = ("error", "error", "error", "error", "warning", "info", "info", "debug")

_FAULT = re.compile(
    r"IO_PAGE_FAULT|AMD-Vi: Event logged|DMAR:.*fault|[Ii][Oo]MMU.*fault|smmu.*fault"  # devices' accesses
    r"|NVRM: Xid"
    r"|[Oo]ut of memory|oom-kill|Killed process"
    r"|BUG:|Oops|general protection|soft lockup|blocked for more than|Machine [Cc]heck"
)


@dataclass(frozen=True, slots=True)
class Record:
    """One message; `since_boot_s` is on the kernel's own clock, close to CLOCK_MONOTONIC."""

    since_boot_s: float
    level: str
    message: str

    @property
    def is_fault(self) -> bool:
        """Whether it tells of a device, the memory or the kernel itself in trouble."""
        return _FAULT.search(self.message) is not None


def open_at_end() -> Fd | None:
    """Open the log past what it holds; None where it may not be read."""
    try:
        fd = Fd(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        skip(fd.fileno())
    except OSError:
        return None
    return fd


def skip(fd: int) -> None:
    """Pass over everything up to now."""
    os.lseek(fd, 0, os.SEEK_END)


def records(fd: int, read: Callable[[int, int], bytes] = os.read) -> Iterator[Record]:
    """Yield what has been logged since, oldest first, up to now."""
    while True:
        try:
            yield parse(read(fd, _RECORD_BYTES))
        except OSError as error:
            # EPIPE: records were overwritten before they were read; the next one is there.
            if error.errno != errno.EPIPE:
                return


def parse(record: bytes) -> Record:
    """Take a record apart: `priority,number,microseconds,flags;message`, then lines with a device's data."""
    head, _, text = record.decode(errors="replace").partition(";")
    priority, _, microseconds = head.split(",")[:3]
    return Record(int(microseconds) / 1e6, LEVELS[int(priority) & 7], text.partition("\n")[0])
