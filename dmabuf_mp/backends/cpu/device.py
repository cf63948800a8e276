"""The CPU as a device: fills, checks and copies shared memory with numpy."""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp.backends.base import Given
from dmabuf_mp.backends.cpu import blocks, memories
from dmabuf_mp.backends.cpu.importer import map_offer
from dmabuf_mp.backends.cpu.mapped import MappedBuffer
from dmabuf_mp.errors import InternalError, Unsupported
from dmabuf_mp.model import DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.backends.base import Buffer, CheckCounts, Offer
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json
    from dmabuf_mp.patterns import Pattern


def _model_name() -> str:
    """Return the processor's name as the kernel has it, or the architecture's."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def info() -> DeviceInfo:
    """Describe this machine's CPU and memory, and which dma-bufs it can allocate."""
    details: dict[str, Json] = {
        "page_bytes": mmap.PAGESIZE,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE,
        **memories.usable(),
    }
    return DeviceInfo("cpu", name=_model_name(), details=details)


def _mapped(buffer: Buffer) -> MappedBuffer:
    if not isinstance(buffer, MappedBuffer):
        raise InternalError(f"the CPU was given a buffer of another device: {buffer!r}")
    return buffer


class CpuDevice:
    """This machine's CPU; every call is finished when it returns."""

    def __init__(self) -> None:
        self.info = info()
        self._given = Given()

    def allocate(self, memory: str, size_bytes: int, options: Mapping[str, Json]) -> MappedBuffer:
        """Allocate `memfd`, `udmabuf` or `dma_heap` memory, poisoned with 0xFF."""
        return self._given.add(f"{memory} memory", memories.allocate(memory, size_bytes, options))

    def import_fd(self, importer: str, fd: Fd, offer: Offer) -> MappedBuffer:
        """Map an fd (`mmap`); takes the fd."""
        if importer != "mmap":
            fd.close()
            raise Unsupported(f"the CPU has no importer {importer!r}, but mmap")
        return self._given.add(f"import of {offer.memory} memory", map_offer(fd, offer))

    def fill(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Write every word and tail byte of the pattern's step t."""
        with _mapped(buffer).access(write=True) as view:
            blocks.fill(view, pattern, t)

    def check(self, buffer: Buffer, pattern: Pattern, t: int) -> CheckCounts:
        """Compare every word and tail byte with the pattern's step t."""
        with _mapped(buffer).access(write=False) as view:
            return blocks.check(view, pattern, t)

    def read(self, buffer: Buffer, offset_bytes: int, length: int) -> bytes:
        """Read a part of the shared range; shorter where the range ends."""
        with _mapped(buffer).access(write=False) as view:
            return view[offset_bytes : offset_bytes + length].tobytes()

    def write(self, buffer: Buffer, offset_bytes: int, data: bytes) -> None:
        """Write a part of the shared range; ValueError beyond its end."""
        with _mapped(buffer).access(write=True) as view:
            view[offset_bytes : offset_bytes + len(data)] = np.frombuffer(data, np.uint8)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy the shared range of one buffer into another of the same size."""
        with _mapped(source).access(write=False) as read, _mapped(target).access(write=True) as written:
            np.copyto(written, read)

    def held(self) -> Mapping[str, int]:
        """Return which buffers are not closed."""
        return self._given.held()

    def free_bytes(self) -> None:
        """Tell nothing: the machine's memory is everybody's."""

    def close(self) -> None:
        """Nothing was taken by opening."""
