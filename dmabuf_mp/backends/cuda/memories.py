"""What a CUDA producer can allocate, and how each memory is exported as an fd."""

from __future__ import annotations

import mmap
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dmabuf_mp.backends.cpu import available
from dmabuf_mp.backends.cpu import memories as linux_memories
from dmabuf_mp.backends.cuda import driver
from dmabuf_mp.backends.cuda.driver import CudaError
from dmabuf_mp.errors import DmabufMpError, Unsupported
from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import dmabuf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dmabuf_mp.backends.cpu.mapped import MappedBuffer
    from dmabuf_mp.backends.cuda.device import CudaDevice
    from dmabuf_mp.model import Json


def round_up(size_bytes: int, granularity: int) -> int:
    """Return the least multiple of the granularity that holds the size."""
    return -(-size_bytes // granularity) * granularity


class CudaBuffer:
    """Memory at an address of a device, undone in the reverse order of what made it."""

    def __init__(self, device: CudaDevice, pointer: int, size_bytes: int, undo: ExitStack) -> None:
        self.pointer = pointer
        self.size_bytes = size_bytes
        self.closed = False
        self._device = device
        self._undo = undo.pop_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.size_bytes} bytes on {self._device.info.selector}>"

    def close(self) -> None:
        """Undo the allocation or the import."""
        failed = sys.exception()
        try:
            self._device.make_current()
            self._undo.close()
        except DmabufMpError:
            if failed is None:  # else, as on a lost device, what failed first is what to tell
                raise
        self.closed = True


class CudaAllocation(CudaBuffer):
    """Memory that this process allocated; `notes` says what went otherwise than asked, or than announced."""

    offset_bytes = 0

    def __init__(
        self,
        device: CudaDevice,
        pointer: int,
        size_bytes: int,
        undo: ExitStack,
        *,
        allocated_bytes: int,
        exports: Mapping[str, Callable[[CudaAllocation], Fd]],
    ) -> None:
        super().__init__(device, pointer, size_bytes, undo)
        self.allocated_bytes = allocated_bytes
        self.notes: list[str] = []
        self._exports = exports

    def export(self, handle: str) -> Fd:
        """Return a new fd for it; the caller owns the fd. Raises Unsupported."""
        if handle not in self._exports:
            raise Unsupported(f"this memory is named by {' or '.join(self._exports)}, not by {handle}")
        self._device.make_current()
        return self._exports[handle](self)


def allocate(device: CudaDevice, memory: str, size_bytes: int, options: Mapping[str, Json]) -> CudaAllocation:
    """Allocate one of the memories of `paths.py`, not yet poisoned. Raises Unsupported."""
    pcie = bool(options.get("pcie", False))
    with ExitStack() as undo:
        match memory:
            case "pinned":
                return _pinned(device, size_bytes, undo, pcie=pcie)
            case "device":
                return _device(device, size_bytes, undo, pcie=pcie)
            case "host_numa":
                return _host_numa(device, size_bytes, undo)
            case _:
                return _registered(device, memory, size_bytes, undo, options)


def _pinned(device: CudaDevice, size_bytes: int, undo: ExitStack, *, pcie: bool) -> CudaAllocation:
    """Allocate page-locked host memory: a page more than needed, so that its start can be a page's."""
    allocated = round_up(size_bytes, mmap.PAGESIZE)
    available.ask(allocated)
    host = device.cuda("cuMemAllocHost", allocated + mmap.PAGESIZE)
    undo.callback(device.cuda, "cuMemFreeHost", host)
    export = partial(_export_dmabuf, device, pcie=pcie, host=True)
    return CudaAllocation(
        device,
        round_up(host, mmap.PAGESIZE),
        size_bytes,
        undo,
        allocated_bytes=allocated,
        exports={"dmabuf": export},
    )


def _device(device: CudaDevice, size_bytes: int, undo: ExitStack, *, pcie: bool) -> CudaAllocation:
    """Allocate the GPU's own memory."""
    wanted = driver.allocation(driver.LOCATION_DEVICE, device.ordinal)
    allocated = round_up(size_bytes, granularity(device, wanted))
    free, _ = device.cuda("cuMemGetInfo")
    if allocated > free:
        raise Unsupported(f"{allocated} bytes are larger than free device memory, which is {free} bytes")
    made = device.cuda("cuMemCreate", allocated, wanted, 0)
    undo.callback(device.cuda, "cuMemRelease", made)
    exports = {
        "dmabuf": partial(_export_dmabuf, device, pcie=pcie, host=False),
        "posix_fd": partial(_export_posix_fd, device, made),
    }
    pointer = map_memory(device, made, allocated, undo)
    return CudaAllocation(device, pointer, size_bytes, undo, allocated_bytes=allocated, exports=exports)


def _host_numa(device: CudaDevice, size_bytes: int, undo: ExitStack) -> CudaAllocation:
    """Allocate host memory on the NUMA node next to the device, or on node 0 where the device has none."""
    node = max(0, device.attribute(driver.HOST_NUMA_ID) or 0)
    wanted = driver.allocation(driver.LOCATION_HOST_NUMA, node)
    with refusals(device, driver.HOST_ALLOC_DMA_BUF_SUPPORTED, host=True):
        allocated = round_up(size_bytes, granularity(device, wanted))
        available.ask(allocated)
        made = device.cuda("cuMemCreate", allocated, wanted, 0)
    undo.callback(device.cuda, "cuMemRelease", made)
    pointer = map_memory(device, made, allocated, undo)
    exports = {"posix_fd": partial(_export_posix_fd, device, made)}
    return CudaAllocation(device, pointer, size_bytes, undo, allocated_bytes=allocated, exports=exports)


def _registered(
    device: CudaDevice, memory: str, size_bytes: int, undo: ExitStack, options: Mapping[str, Json]
) -> CudaAllocation:
    """Allocate one of Linux's memories, and make it the device's to touch."""
    mapped = linux_memories.allocate(memory, size_bytes, options)
    undo.callback(mapped.close)
    return CudaAllocation(
        device,
        register(device, mapped, undo),
        size_bytes,
        undo,
        allocated_bytes=mapped.allocated_bytes,
        exports={mapped.handle: lambda _: mapped.export(mapped.handle)},
    )


def register(device: CudaDevice, mapped: MappedBuffer, undo: ExitStack) -> int:
    """Page-lock a mapping for the device; return the device's address of its shared range."""
    size_bytes = mapped.allocated_bytes
    device.cuda("cuMemHostRegister", mapped.address, size_bytes, driver.HOST_REGISTER_DEVICEMAP)
    undo.callback(device.cuda, "cuMemHostUnregister", mapped.address)
    return int(device.cuda("cuMemHostGetDevicePointer", mapped.address, 0)) + mapped.offset_bytes


def granularity(device: CudaDevice, wanted: Any) -> int:
    """Return the size in bytes of which a virtual-memory allocation is a multiple."""
    minimum = driver.enum("CUmemAllocationGranularity_flags", 0)
    return int(device.cuda("cuMemGetAllocationGranularity", wanted, minimum))


def map_memory(device: CudaDevice, made: Any, allocated_bytes: int, undo: ExitStack) -> int:
    """Give virtual-memory memory an address that the device may read and write."""
    pointer = device.cuda("cuMemAddressReserve", allocated_bytes, 0, 0, 0)
    undo.callback(device.cuda, "cuMemAddressFree", pointer, allocated_bytes)
    device.cuda("cuMemMap", pointer, allocated_bytes, 0, made, 0)
    undo.callback(device.cuda, "cuMemUnmap", pointer, allocated_bytes)
    device.cuda("cuMemSetAccess", pointer, allocated_bytes, [driver.access(device.ordinal)], 1)
    return int(pointer)


@contextmanager
def refusals(device: CudaDevice, attribute: int, *, host: bool) -> Iterator[None]:
    """Say beside a refusal what the device's attribute had announced.

    Drivers refuse to export host memory, or to create it, as an invalid argument: Unsupported all the same.
    """
    try:
        yield
    except (Unsupported, CudaError) as error:
        announced = device.attribute(attribute)
        value = "unknown" if announced is None else announced
        said = f"{error}; {driver.ATTRIBUTE_NAMES[attribute]} is {value}"
        invalid = isinstance(error, CudaError) and error.code == driver.INVALID_VALUE
        if isinstance(error, Unsupported) or (host and invalid and not announced):
            raise Unsupported(said) from error
        raise


def _export_dmabuf(device: CudaDevice, allocation: CudaAllocation, *, pcie: bool, host: bool) -> Fd:
    """Export a whole allocation as a dma-buf, mapped over PCIe where that was asked for and can be had."""
    attribute = driver.HOST_ALLOC_DMA_BUF_SUPPORTED if host else driver.DMA_BUF_SUPPORTED
    kind = driver.enum("CUmemRangeHandleType", driver.RANGE_DMA_BUF_FD)
    whole = "cuMemGetHandleForAddressRange", allocation.pointer, allocation.allocated_bytes, kind
    name = linux_memories.buffer_name("pinned" if host else "device")
    if pcie:
        try:
            return _named(Fd(device.cuda(*whole, driver.RANGE_MAPPING_TYPE_PCIE)), name)
        except (Unsupported, CudaError) as error:
            allocation.notes.append(f"no PCIe mapping, the default one instead: {error}")
    with refusals(device, attribute, host=host):
        fd = Fd(device.cuda(*whole, 0))
    if device.attribute(attribute) == 0:
        allocation.notes.append(
            f"{driver.ATTRIBUTE_NAMES[attribute]} is 0, and the export works all the same"
        )
    return _named(fd, name)


def _named(fd: Fd, name: str) -> Fd:
    """Name a dma-buf in the kernel's own lists, where the kernel does that: no verdict hangs on it."""
    with suppress(OSError):
        dmabuf.set_name(fd.fileno(), name)
    return fd


def _export_posix_fd(device: CudaDevice, made: Any, _: CudaAllocation) -> Fd:
    kind = driver.enum("CUmemAllocationHandleType", driver.POSIX_FD)
    return Fd(device.cuda("cuMemExportToShareableHandle", made, kind, 0))
