"""ioctl(2): request numbers, made as asm-generic/ioctl.h makes them, and the call itself."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from struct import Struct

_WRITE, _READ = 1, 2  # as seen from user space


def _number(direction: int, kind: str, number: int, layout: Struct) -> int:
    return direction << 30 | layout.size << 16 | ord(kind) << 8 | number


def iow(kind: str, number: int, layout: Struct) -> int:
    """Return the request whose struct the kernel reads, as _IOW does."""
    return _number(_WRITE, kind, number, layout)


def iowr(kind: str, number: int, layout: Struct) -> int:
    """Return the request whose struct the kernel reads and writes, as _IOWR does."""
    return _number(_READ | _WRITE, kind, number, layout)


def call(fd: int, request: int, argument: bytearray) -> int:
    """Call ioctl until it is neither interrupted nor told to come again; raises OSError.

    Changes `argument` in place. With `bytes`, Python would return the buffer and lose the result.
    """
    while True:
        try:
            result: int = fcntl.ioctl(fd, request, argument)
            return result
        except (InterruptedError, BlockingIOError):
            continue
