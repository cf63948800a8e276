"""linux/dma-buf.h: what any dma-buf answers, whoever exported it. Everything raises OSError."""

from __future__ import annotations

import errno
import os
import select
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import ioctl

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYNC = struct.Struct("=Q")  # flags
_NAME = struct.Struct("=Q")  # in place of the pointer that the header speaks of
_SYNC_FILE = struct.Struct("=Ii")  # flags, fd

DMA_BUF_IOCTL_SYNC = ioctl.iow("b", 0, _SYNC)
DMA_BUF_SET_NAME_B = ioctl.iow("b", 1, _NAME)
DMA_BUF_IOCTL_EXPORT_SYNC_FILE = ioctl.iowr("b", 2, _SYNC_FILE)
DMA_BUF_IOCTL_IMPORT_SYNC_FILE = ioctl.iow("b", 3, _SYNC_FILE)

DMA_BUF_SYNC_READ = 1
DMA_BUF_SYNC_WRITE = 2
DMA_BUF_SYNC_START = 0
DMA_BUF_SYNC_END = 4
DMA_BUF_NAME_LEN = 32  # with the zero at its end

ENOTSUPP = 524  # the kernel's own: a driver's way to say that its dma-bufs cannot be mapped


@dataclass(frozen=True, slots=True)
class Identity:
    """What the kernel says of a dma-buf; the inode is the same for every fd of one buffer.

    `exporter` and `name` are None without /proc.
    """

    inode: int
    size_bytes: int
    exporter: str | None
    name: str | None


def _flags(*, read: bool, write: bool) -> int:
    return DMA_BUF_SYNC_READ * read | DMA_BUF_SYNC_WRITE * write


@contextmanager
def sync(fd: int, *, read: bool = False, write: bool = False) -> Iterator[None]:
    """Bracket an access by the CPU, so that caches and devices agree; EINVAL without a direction."""
    flags = _flags(read=read, write=write)
    ioctl.call(fd, DMA_BUF_IOCTL_SYNC, bytearray(_SYNC.pack(flags | DMA_BUF_SYNC_START)))
    try:
        yield
    finally:
        ioctl.call(fd, DMA_BUF_IOCTL_SYNC, bytearray(_SYNC.pack(flags | DMA_BUF_SYNC_END)))


def set_name(fd: int, name: str) -> None:
    """Name the buffer in the kernel's own lists: at most 31 bytes, else EINVAL."""
    ioctl.call(fd, DMA_BUF_SET_NAME_B, bytearray(name.encode() + b"\0"))


def size(fd: int) -> int:
    """Return the buffer's size in bytes."""
    return os.lseek(fd, 0, os.SEEK_END)


def target(fd: int) -> str | None:
    """Return what an fd leads to (`/dmabuf:name`, `/memfd:name (deleted)`), or None without /proc."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except FileNotFoundError:
        return None


def is_dmabuf(fd: int) -> bool:
    """Whether an fd is a dma-buf: by its link in /proc or, without that, by what only dma-bufs answer."""
    if (link := target(fd)) is not None:
        return link.startswith("/dmabuf:")
    try:
        with sync(fd, read=True):
            return True
    except OSError:
        return False


def identity(fd: int) -> Identity:
    """Return who a dma-buf is; the fd must be one."""
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    says = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = says.get("name", "") if lines else None
    return Identity(os.fstat(fd).st_ino, size(fd), says.get("exp_name"), name)


def export_sync_file(fd: int, *, read: bool = False, write: bool = False) -> Fd:
    """Return a new sync file that signals once the buffer may be read, written, or both.

    ENOTTY where the kernel was built without sync files, or is older than 6.0.
    """
    argument = bytearray(_SYNC_FILE.pack(_flags(read=read, write=write), -1))
    ioctl.call(fd, DMA_BUF_IOCTL_EXPORT_SYNC_FILE, argument)
    return Fd(_SYNC_FILE.unpack(argument)[1])


def import_sync_file(fd: int, sync_file: int, *, read: bool = False, write: bool = False) -> None:
    """Add a sync file as an access of a device: writers wait for it and, if it writes, readers too."""
    argument = bytearray(_SYNC_FILE.pack(_flags(read=read, write=write), sync_file))
    ioctl.call(fd, DMA_BUF_IOCTL_IMPORT_SYNC_FILE, argument)


def wait_sync_file(sync_file: int, timeout_s: float) -> bool:
    """Wait until a sync file has signalled; False if it has not when the time is over."""
    poll = select.poll()
    poll.register(sync_file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def wait_idle(fd: int, timeout_s: float, *, write: bool) -> bool:
    """Wait until devices have finished what they do to the buffer, so that it may be read (or written).

    False if they have not when the time is over. DMA_BUF_IOCTL_SYNC waits as well, but for ever.
    """
    try:
        fence = export_sync_file(fd, read=not write, write=write)
    except OSError as error:
        if error.errno == errno.ENOTTY:
            return True  # no way to ask: sync's own wait is all there is
        raise
    with fence:
        return wait_sync_file(fence.fileno(), timeout_s)
