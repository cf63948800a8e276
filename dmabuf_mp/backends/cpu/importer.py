"""The `mmap` importer: look at what came, then map it. Nothing is mapped that could kill its reader."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dmabuf_mp.backends.cpu.mapped import MappedBuffer, round_up
from dmabuf_mp.backends.cpu.refusals import translated
from dmabuf_mp.errors import Unsupported, WrongBuffer
from dmabuf_mp.linux import dmabuf, memfd

if TYPE_CHECKING:
    from dmabuf_mp.backends.base import Offer
    from dmabuf_mp.fds import Fd

ALIGNMENT_BYTES = 16  # of the shared range's offset


def _memfd_size(fd: int) -> int:
    """Return the size of a memfd that cannot shrink; an unsealed one could end its reader by SIGBUS."""
    seals = memfd.get_seals(fd)
    if seals is None:
        raise WrongBuffer(f"expected a memfd, got {dmabuf.target(fd) or 'another kind of fd'}")
    if not seals & memfd.F_SEAL_SHRINK:
        raise WrongBuffer(
            f"expected a memfd sealed against shrinking, got {dmabuf.target(fd)} with seals {seals:#x}"
        )
    return os.fstat(fd).st_size


def _dmabuf_size(fd: int, memory: str) -> int:
    """Return the size of a dma-buf, after a look at who exported it."""
    if not dmabuf.is_dmabuf(fd):
        raise WrongBuffer(f"expected a dma-buf, got {dmabuf.target(fd) or 'another kind of fd'}")
    found = dmabuf.identity(fd)
    if memory == "udmabuf" and found.exporter not in (memory, None):
        raise WrongBuffer(
            f"expected a dma-buf of udmabuf, got one of {found.exporter} ({found.name or 'unnamed'})"
        )
    return found.size_bytes


def map_offer(fd: Fd, offer: Offer) -> MappedBuffer:
    """Map an fd that is what its offer says; takes the fd.

    Raises WrongBuffer, before anything is mapped, where it is not; Unsupported where its exporter
    allows no mapping.
    """
    with ExitStack() as undo:
        undo.enter_context(fd)
        with translated(f"a look at the {offer.handle} fd"):
            match offer.handle:
                case "memfd":
                    real_bytes = _memfd_size(fd.fileno())
                case "dmabuf":
                    real_bytes = _dmabuf_size(fd.fileno(), offer.memory)
                case _:
                    raise Unsupported(f"the CPU cannot map a {offer.handle} fd")
        if real_bytes != round_up(offer.allocated_bytes):
            raise WrongBuffer(
                f"expected a buffer of {round_up(offer.allocated_bytes)} bytes, got {real_bytes}"
            )
        end_bytes = offer.offset_bytes + offer.size_bytes
        if (
            offer.offset_bytes < 0
            or offer.offset_bytes % ALIGNMENT_BYTES
            or not offer.offset_bytes < end_bytes
        ):
            raise WrongBuffer(
                f"expected an offset that is a multiple of {ALIGNMENT_BYTES} and a size from 1,"
                f" got {offer.size_bytes} bytes at {offer.offset_bytes}"
            )
        if end_bytes > real_bytes:
            raise WrongBuffer(f"expected at least {end_bytes} bytes, got {real_bytes}")
        buffer = MappedBuffer(
            fd,
            memory=offer.memory,
            handle=offer.handle,
            size_bytes=offer.size_bytes,
            allocated_bytes=real_bytes,
            offset_bytes=offer.offset_bytes,
            writable=offer.writable,
        )
        undo.pop_all()
        return buffer
