"""MappedBuffer: shared memory in this process's address space, allocated here or received."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp.backends.cpu.refusals import translated
from dmabuf_mp.errors import DriverError, Unsupported
from dmabuf_mp.linux import dmabuf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dmabuf_mp.fds import Fd

FENCE_TIMEOUT_S = 10.0


def round_up(size_bytes: int) -> int:
    """Return a size in whole pages."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class MappedBuffer:
    """An fd's memory, mapped; writable if asked, unless the fd was opened for reading only.

    Owns the fd and the mapping until `close`. Sizes and the offset of the shared range are in bytes.
    """

    def __init__(
        self,
        fd: Fd,
        *,
        memory: str,
        handle: str,
        size_bytes: int,
        allocated_bytes: int,
        offset_bytes: int = 0,
        writable: bool = True,
    ) -> None:
        read_only = not writable or fcntl.fcntl(fd.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        protection = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        with translated(f"mmap of {memory} memory, {allocated_bytes} bytes"):
            self._map = mmap.mmap(fd.fileno(), allocated_bytes, mmap.MAP_SHARED, protection)
        self._fd = fd
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)
        self.notes: list[str] = []
        self.memory = memory
        self.handle = handle
        self.size_bytes = size_bytes
        self.allocated_bytes = allocated_bytes
        self.offset_bytes = offset_bytes

    def __repr__(self) -> str:
        state = "closed" if self._bytes is None else f"fd {self._fd.fileno()}"
        return f"<MappedBuffer {self.memory} {self.size_bytes} bytes of {self.allocated_bytes}: {state}>"

    def _mapped(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise ValueError(f"{self!r} was used after its close")
        return self._bytes

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._bytes is None

    @property
    def address(self) -> int:
        """Where the mapping begins in this process; the shared range begins `offset_bytes` later."""
        return self._mapped().ctypes.data

    @contextmanager
    def access(self, *, write: bool, whole: bool = False) -> Iterator[NDArray[np.uint8]]:
        """Yield the shared range's bytes (or the whole allocation's), between the syncs that a dma-buf needs.

        Waits until devices are done with it; DriverError if that takes longer than FENCE_TIMEOUT_S.
        """
        start, stop = (0, None) if whole else (self.offset_bytes, self.offset_bytes + self.size_bytes)
        if self.handle != "dmabuf":
            yield self._mapped()[start:stop]
            return
        with ExitStack() as synced:
            with translated(f"sync of {self.memory} memory"):
                number = self._fd.fileno()
                if not dmabuf.wait_idle(number, FENCE_TIMEOUT_S, write=write):
                    raise DriverError(
                        f"{self.memory}: a device's fence has not signalled in {FENCE_TIMEOUT_S:g} s"
                    )
                # A write may be of a part, and then what lies beside it has to be current: always read, too.
                synced.enter_context(dmabuf.sync(number, read=True, write=write))
            yield self._mapped()[start:stop]

    def export(self, handle: str) -> Fd:
        """Return a new fd for the buffer."""
        if handle != self.handle:
            raise Unsupported(f"{self.memory} memory is named by a {self.handle} fd, not by {handle}")
        with translated(f"dup of {self.memory} memory's fd"):
            return self._fd.duplicate()

    def close(self) -> None:
        """Unmap and close; a view that someone still holds keeps its memory mapped until it goes."""
        self._bytes = None
        with suppress(BufferError):
            self._map.close()
        self._fd.close()
