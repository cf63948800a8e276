"""What this machine can allocate: memfd, udmabuf, dma_heap; mapped, poisoned and named."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from dmabuf_mp.backends.cpu import available
from dmabuf_mp.backends.cpu.mapped import MappedBuffer, round_up
from dmabuf_mp.backends.cpu.paths import LINUX_EXPORTS
from dmabuf_mp.backends.cpu.refusals import opening, translated
from dmabuf_mp.errors import Unsupported
from dmabuf_mp.linux import dma_heap, dmabuf, memfd, udmabuf
from dmabuf_mp.patterns import poison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json

MIB = 2**20


def buffer_name(memory: str) -> str:
    """Return what the kernel's lists call a buffer of this process; within the 31 bytes it allows."""
    return f"dmabuf-mp:{memory}:{os.getpid()}"


def _memfd(memory: str, size_bytes: int) -> Fd:
    available.ask(size_bytes)
    with translated("memfd_create"):
        try:
            return memfd.create(buffer_name(memory), size_bytes)
        except PermissionError as error:
            raise Unsupported(
                f"memfd_create: {error.strerror} (EPERM), by a seccomp filter most likely"
            ) from error


@contextmanager
def _udmabuf_limit(size_bytes: int) -> Iterator[None]:
    """Raise Unsupported, and how to raise the limit, where EINVAL means that it is reached."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        limit_mb = udmabuf.limit("size_limit_mb")
        if limit_mb is not None and size_bytes > limit_mb * MIB:
            needed = -(-size_bytes // MIB)
            raise Unsupported(
                f"{size_bytes} bytes are over udmabuf's size_limit_mb ({limit_mb}):"
                f" as root, echo {needed} > {udmabuf.PARAMETERS}/size_limit_mb"
            ) from error
        raise


def _opened_udmabuf() -> Fd:
    with opening(udmabuf.DEVICE, "CONFIG_UDMABUF"):
        return udmabuf.open_device()


def _udmabuf(size_bytes: int) -> Fd:
    with (
        _opened_udmabuf() as device,
        _memfd("udmabuf", size_bytes) as pages,
        translated("UDMABUF_CREATE"),
        _udmabuf_limit(size_bytes),
    ):
        return udmabuf.create(device.fileno(), pages.fileno(), size_bytes)


def _opened_heap(name: str) -> Fd:
    with opening(f"{dma_heap.FOLDER}/{name}", "CONFIG_DMABUF_HEAPS"):
        if (there := dma_heap.heaps()) and name not in there:
            raise Unsupported(f"no heap {name!r}: {dma_heap.FOLDER} has {', '.join(there)}")
        return dma_heap.open_heap(name)


def _dma_heap(size_bytes: int, heap: str) -> Fd:
    with _opened_heap(heap) as opened:
        available.ask(size_bytes)
        with translated(f"DMA_HEAP_IOCTL_ALLOC of heap {heap}"):
            return dma_heap.allocate(opened.fileno(), size_bytes)


def allocate(memory: str, size_bytes: int, options: Mapping[str, Json]) -> MappedBuffer:
    """Allocate whole pages and fill them with 0xFF; raises Unsupported or ResourceRefused."""
    allocated_bytes = round_up(size_bytes)
    with ExitStack() as undo:
        match memory:
            case "memfd":
                fd = _memfd(memory, allocated_bytes)
            case "udmabuf":
                fd = _udmabuf(allocated_bytes)
            case "dma_heap":
                fd = _dma_heap(allocated_bytes, str(options.get("heap", "system")))
            case _:
                raise Unsupported(
                    f"this machine's own memory knows no {memory!r}, but {', '.join(LINUX_EXPORTS)}"
                )
        undo.enter_context(fd)
        handle = LINUX_EXPORTS[memory][0]
        if handle == "dmabuf":
            with translated("DMA_BUF_SET_NAME"):
                dmabuf.set_name(fd.fileno(), buffer_name(memory))
        buffer = MappedBuffer(
            fd, memory=memory, handle=handle, size_bytes=size_bytes, allocated_bytes=allocated_bytes
        )
        undo.callback(buffer.close)
        with buffer.access(write=True, whole=True) as view:
            view.fill(poison(size_bytes))
        undo.pop_all()
        return buffer


def usable() -> dict[str, Json]:
    """Say whether udmabuf can be opened, and which heaps, or why not; allocates nothing."""
    heaps: list[Json] = []
    reason: Json = None
    for name in dma_heap.heaps() or ("system",):
        try:
            _opened_heap(name).close()
            heaps.append(name)
        except Unsupported as error:
            reason = str(error)
    said: dict[str, Json] = {"udmabuf": "yes", "dma_heaps": heaps or reason}
    try:
        _opened_udmabuf().close()
    except Unsupported as error:
        said["udmabuf"] = str(error)
    return said
