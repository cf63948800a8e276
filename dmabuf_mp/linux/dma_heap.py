"""linux/dma-heap.h: dma-bufs from the kernel's heaps. Everything raises OSError."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import ioctl

FOLDER = "/dev/dma_heap"

_ALLOCATION = struct.Struct("=QIIQ")  # len, fd, fd_flags, heap_flags
DMA_HEAP_IOCTL_ALLOC = ioctl.iowr("H", 0, _ALLOCATION)


def heaps() -> tuple[str, ...]:
    """Return the names of this machine's heaps, none where the kernel has none."""
    folder = Path(FOLDER)
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def open_heap(name: str) -> Fd:
    """Open one heap."""
    return Fd(os.open(f"{FOLDER}/{name}", os.O_RDONLY | os.O_CLOEXEC))


def allocate(heap: int, size_bytes: int) -> Fd:
    """Return a new dma-buf of zeros, rounded up to whole pages; size 0 is EINVAL.

    **More than there is is not refused: the kernel kills the process for it.** Ask first.
    """
    argument = bytearray(_ALLOCATION.pack(size_bytes, 0, os.O_RDWR | os.O_CLOEXEC, 0))
    ioctl.call(heap, DMA_HEAP_IOCTL_ALLOC, argument)
    return Fd(_ALLOCATION.unpack(argument)[1])
