"""linux/udmabuf.h: a dma-buf made of a sealed memfd's pages. Everything raises OSError."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import ioctl

DEVICE = "/dev/udmabuf"
PARAMETERS = "/sys/module/udmabuf/parameters"
UDMABUF_FLAGS_CLOEXEC = 1

_CREATE = struct.Struct("=IIQQ")  # memfd, flags, offset, size
UDMABUF_CREATE = ioctl.iow("u", 0x42, _CREATE)


def open_device() -> Fd:
    """Open /dev/udmabuf."""
    return Fd(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))


def create(device: int, memfd: int, size_bytes: int, offset_bytes: int = 0) -> Fd:
    """Return a new dma-buf of a memfd's range, which stays alive without the memfd.

    The memfd must be sealed against shrinking, and not against writing; the range must be whole pages
    within it, and no larger than the limits: else EINVAL.
    """
    argument = bytearray(_CREATE.pack(memfd, UDMABUF_FLAGS_CLOEXEC, offset_bytes, size_bytes))
    return Fd(ioctl.call(device, UDMABUF_CREATE, argument))


def limit(name: str) -> int | None:
    """Return a limit of the module (`list_limit`, `size_limit_mb`), or None where it is not to be read."""
    try:
        return int((Path(PARAMETERS) / name).read_text())
    except (OSError, ValueError):
        return None
