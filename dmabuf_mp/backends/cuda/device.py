"""One CUDA device, opened in this process: fills and checks with the kernels of kernels.cu."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmabuf_mp import patterns
from dmabuf_mp.backends.base import CheckCounts, Given
from dmabuf_mp.backends.cuda import driver, importers, memories
from dmabuf_mp.backends.cuda.memories import CudaBuffer
from dmabuf_mp.errors import DriverError, InternalError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.backends.base import Buffer, Offer
    from dmabuf_mp.backends.cuda.memories import CudaAllocation
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import DeviceInfo, Json
    from dmabuf_mp.patterns import Pattern

PTX = Path(__file__).with_name("kernels.ptx")
BLOCK = 256  # threads; kernels.cu is compiled for this
BLOCK_WORDS = 4096  # what one block of the check takes at a time
BLOCKS_PER_MULTIPROCESSOR = 8

Counters = ctypes.c_uint64 * 3
_NOTHING_FOUND = (0, 0, 2**64 - 1)  # matched, mismatched, first offset
_ARGUMENTS = (*[ctypes.c_uint64] * 2, *[ctypes.c_uint32] * 6)  # data, words; tail, kind, base, seed, kappa, t


class CudaDevice:
    """A device with its primary context, one stream and the two kernels.

    Every call sets the context current in the calling thread, and is finished when it returns. `visible`
    is every device that this process sees.
    """

    def __init__(self, info: DeviceInfo, visible: tuple[DeviceInfo, ...]) -> None:
        self.info = info
        self.visible = visible
        self._given = Given()
        self.ordinal = int(info.selector.removeprefix("cuda:"))
        self.cuda = cuda = driver.Driver(f"{info.selector} ({info.uuid})")
        handle = cuda("cuDeviceGet", self.ordinal)
        with ExitStack() as undo:
            self._context = cuda("cuDevicePrimaryCtxRetain", handle)
            undo.callback(cuda, "cuDevicePrimaryCtxRelease", handle)
            self.make_current()
            self.stream = cuda("cuStreamCreate", 0)
            undo.callback(cuda, "cuStreamDestroy", self.stream)
            module = cuda("cuModuleLoadData", PTX.read_bytes() + b"\0")
            undo.callback(cuda, "cuModuleUnload", module)
            self._fill = cuda("cuModuleGetFunction", module, b"dmabuf_mp_fill")
            self._check = cuda("cuModuleGetFunction", module, b"dmabuf_mp_check")
            # A kernel adds to counters in its own memory: atomics across the bus would wait for each other.
            self._counters = cuda("cuMemAlloc", ctypes.sizeof(Counters))
            undo.callback(cuda, "cuMemFree", self._counters)
            self._pinned = cuda("cuMemAllocHost", ctypes.sizeof(Counters))
            undo.callback(cuda, "cuMemFreeHost", self._pinned)
            self._undo = undo.pop_all()
        multiprocessors = driver.attribute(handle, driver.MULTIPROCESSOR_COUNT) or 1
        self.blocks = BLOCKS_PER_MULTIPROCESSOR * multiprocessors

    def __repr__(self) -> str:
        return f"<CudaDevice {self.info.selector} ({self.info.uuid}) {self.info.name}>"

    def make_current(self) -> None:
        """Set this device's context current in the calling thread."""
        self.cuda("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int | None:
        """Return an attribute of the device; None where the driver does not know it."""
        return driver.attribute(self.cuda("cuDeviceGet", self.ordinal), number)

    def allocate(self, memory: str, size_bytes: int, options: Mapping[str, Json]) -> CudaAllocation:
        """Allocate, poisoned with 0xFF. Raises Unsupported where this machine or driver cannot."""
        self.make_current()
        with ExitStack() as undo:
            allocation = memories.allocate(self, memory, size_bytes, options)
            undo.callback(allocation.close)
            poison = patterns.poison(size_bytes)
            self.cuda("cuMemsetD8Async", allocation.pointer, poison, allocation.allocated_bytes, self.stream)
            self.synchronise()
            undo.pop_all()
            return self._given.add(f"{memory} memory on {self.info.selector}", allocation)

    def import_fd(self, importer: str, fd: Fd, offer: Offer) -> CudaBuffer:
        """Turn an fd into device-readable memory; takes the fd. Raises Unsupported or WrongBuffer."""
        self.make_current()
        imported = importers.import_fd(self, importer, fd, offer)
        return self._given.add(f"import of {offer.memory} memory on {self.info.selector}", imported)

    def fill(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Write every word and tail byte of the pattern's step t."""
        self.make_current()
        self.launch_fill(buffer, pattern, t)
        self.synchronise()

    def check(self, buffer: Buffer, pattern: Pattern, t: int) -> CheckCounts:
        """Compare every word and tail byte with the pattern's step t."""
        self.make_current()
        counters = Counters.from_address(self._pinned)
        counters[:] = list(_NOTHING_FOUND)
        self.cuda("cuMemcpyHtoDAsync", self._counters, self._pinned, ctypes.sizeof(Counters), self.stream)
        self.launch_check(buffer, pattern, t)
        self.cuda("cuMemcpyDtoHAsync", self._pinned, self._counters, ctypes.sizeof(Counters), self.stream)
        self.synchronise()
        matched, mismatched, first = counters
        return CheckCounts(matched, mismatched, first if mismatched else None)

    def launch_fill(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Start a fill in the device's stream, without waiting."""
        self._launch(self._fill, _arguments(buffer, pattern, t), _ARGUMENTS)

    def launch_check(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Start a check in the device's stream, without waiting; it adds to the counters."""
        arguments = (*_arguments(buffer, pattern, t), int(self._counters))
        self._launch(self._check, arguments, (*_ARGUMENTS, ctypes.c_uint64))

    def _launch(self, function: Any, arguments: tuple[int, ...], types: tuple[Any, ...]) -> None:
        blocks = min(arguments[1] // BLOCK_WORDS + 1, self.blocks)
        shape = (blocks, 1, 1, BLOCK, 1, 1)
        self.cuda("cuLaunchKernel", function, *shape, 0, self.stream, (arguments, types), 0)

    def read(self, buffer: Buffer, offset_bytes: int, length: int) -> bytes:
        """Read a part; shorter where the shared range ends."""
        length = min(length, buffer.size_bytes - offset_bytes)
        source = _address(buffer, offset_bytes, length)
        self.make_current()
        data = ctypes.create_string_buffer(length)
        self.cuda("cuMemcpyDtoHAsync", ctypes.addressof(data), source, length, self.stream)
        self.synchronise()
        return data.raw

    def write(self, buffer: Buffer, offset_bytes: int, data: bytes) -> None:
        """Write a part."""
        target = _address(buffer, offset_bytes, len(data))
        self.make_current()
        source = ctypes.create_string_buffer(data, len(data))
        self.cuda("cuMemcpyHtoDAsync", target, ctypes.addressof(source), len(data), self.stream)
        self.synchronise()

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy the shared range of one buffer into another of the same size."""
        if source.size_bytes != target.size_bytes:
            raise ValueError(f"buffers of {source.size_bytes} and {target.size_bytes} bytes differ in size")
        ends = _address(target, 0, source.size_bytes), _address(source, 0, source.size_bytes)
        self.make_current()
        self.cuda("cuMemcpyAsync", *ends, source.size_bytes, self.stream)
        self.synchronise()

    def held(self) -> Mapping[str, int]:
        """Return which buffers are not closed."""
        return self._given.held()

    def free_bytes(self) -> int | None:
        """Return how much of the GPU's memory is free; None where the driver does not say."""
        try:
            self.make_current()
            free: int
            free, _ = self.cuda("cuMemGetInfo")
        except (DriverError, Unsupported):
            return None
        return free

    def synchronise(self) -> None:
        """Wait until everything that was started in the device's stream is finished."""
        self.cuda("cuStreamSynchronize", self.stream)

    def close(self) -> None:
        """Give back the context and what is in it."""
        self.make_current()
        self._undo.close()


def _address(buffer: Buffer, offset_bytes: int, length: int) -> int:
    """Return where a part of a buffer is for the device."""
    if not isinstance(buffer, CudaBuffer):
        raise InternalError(f"a CUDA device was given a buffer of another device: {buffer!r}")
    if not 0 <= offset_bytes <= offset_bytes + length <= buffer.size_bytes:
        raise ValueError(f"{length} bytes at {offset_bytes} are not inside {buffer.size_bytes} bytes")
    return buffer.pointer + offset_bytes


def _arguments(buffer: Buffer, pattern: Pattern, t: int) -> tuple[int, ...]:
    """Return what both kernels take, in the order of `_ARGUMENTS`."""
    words, tail = patterns.split(buffer.size_bytes)
    kind = patterns.KINDS.index(pattern.kind)
    pointer = _address(buffer, 0, buffer.size_bytes)
    return (pointer, words, tail, kind, pattern.base, pattern.seed & patterns.M, pattern.kappa, t)
