"""CUDA's driver API as the rules call it: `call` for what has to succeed, `code` for what may be refused."""

from __future__ import annotations

import array
import ctypes
import os
import socket
import traceback
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = os.sysconf("SC_PAGESIZE")
GRANULARITY = 2 << 20
DMA_BUF_FD = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DEVICE, HOST, HOST_NUMA = 1, 2, 3
OPAQUE_FD, DMABUF = 1, 9

PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry dmabuf_mp_fill(.param .u64 a, .param .u64 b, .param .u32 c, .param .u32 d,
    .param .u32 e, .param .u32 f, .param .u32 g, .param .u32 h) { ret; }
.visible .entry dmabuf_mp_check(.param .u64 .ptr .global .align 16 a, .param .u64 b, .param .u32 c,
    .param .b32 d, .param .u32 e, .param .u32 f, .param .u32 g, .param .u32 h, .param .u64 i) { ret; }
.visible .entry other(.param .u64 a) { ret; }
"""
_FILL = (*[ctypes.c_uint64] * 2, *[ctypes.c_uint32] * 6)


def code(function: str, *arguments: Any) -> int:
    """Call and return the result code."""
    return int(getattr(driver, function)(*arguments)[0])


def call(function: str, *arguments: Any) -> Any:
    """Call what has to succeed and return what it gives: nothing, one value or a tuple."""
    result, *values = getattr(driver, function)(*arguments)
    assert int(result) == 0, f"{function}{arguments}: {result!r}"
    return values[0] if len(values) == 1 else tuple(values)


def start(ordinal: int = 0) -> Any:
    """Initialise and make a device's primary context current."""
    call("cuInit", 0)
    return use(ordinal)


def use(ordinal: int) -> Any:
    """Make the primary context of a device current."""
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))
    call("cuCtxSetCurrent", context)
    return context


def attribute(number: int, ordinal: int = 0) -> int | None:
    """Return a device's attribute, None where it is unknown."""
    known = driver.CUdevice_attribute(number)
    result, value = driver.cuDeviceGetAttribute(known, call("cuDeviceGet", ordinal))
    assert int(result) in (0, 1)
    return None if result else int(value)


def pinned(size: int) -> int:
    """Allocate as the sample does: one page more, rounded up to the page."""
    return (int(call("cuMemAllocHost", size + PAGE)) + PAGE - 1) // PAGE * PAGE


def properties(kind: int = DEVICE, where: int = 0, handles: Any = POSIX_FD) -> Any:
    """Describe memory for cuMemCreate."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType(kind)
    prop.location.id = where
    prop.requestedHandleTypes = handles
    return prop


def access(ordinal: int = 0, flags: int = 3, kind: int = DEVICE) -> list[Any]:
    """Describe what a device may do with a mapping."""
    described = driver.CUmemAccessDesc()
    described.location.type = driver.CUmemLocationType(kind)
    described.location.id = ordinal
    described.flags = driver.CUmemAccess_flags(flags)
    return [described]


def location(ordinal: int = 0) -> Any:
    """Name a device as a place."""
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType(DEVICE)
    place.id = ordinal
    return place


def mapping(handle: Any, size: int = GRANULARITY) -> int:
    """Map memory at new addresses, without access to them."""
    base = call("cuMemAddressReserve", size, 0, 0, 0)
    call("cuMemMap", base, size, 0, handle, 0)
    return int(base)


def export(pointer: int, size: int, flags: int = 0) -> int:
    """Export a range as a dma-buf."""
    return int(call("cuMemGetHandleForAddressRange", pointer, size, DMA_BUF_FD, flags))


def external(fd: int, size: int, kind: int = DMABUF) -> Any:
    """Describe a descriptor for cuImportExternalMemory."""
    described = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    described.type = driver.CUexternalMemoryHandleType(kind)
    described.handle.fd = fd
    described.size = size
    return described


def buffer(size: int, offset: int = 0) -> Any:
    """Describe a part of an external memory."""
    described = driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    described.size = size
    described.offset = offset
    return described


def imported(fd: int, size: int, kind: int = DMABUF) -> int:
    """Import a descriptor and return its pointer."""
    memory = call("cuImportExternalMemory", external(fd, size, kind))
    return int(call("cuExternalMemoryGetMappedBuffer", memory, buffer(size)))


def kernel(name: str) -> Any:
    """Return one of the kernels of PTX."""
    return call("cuModuleGetFunction", call("cuModuleLoadData", PTX.encode()), name.encode())


def launch(function: Any, values: tuple[int, ...], stream: Any = 0) -> int:
    """Launch a kernel with one block and return the result code."""
    types = (*_FILL, ctypes.c_uint64)[: len(values)]
    return code("cuLaunchKernel", function, 1, 1, 1, 256, 1, 1, 0, stream, (values, types), 0)


def fill(
    pointer: int, size: int, *, kind: int = 0, base: int = 0x1000, seed: int = 0, kappa: int = 0, t: int = 0
) -> None:
    """Fill a range with a pattern, and wait."""
    arguments = (pointer, size // 4, size % 4, kind, base, seed, kappa, t)
    assert launch(kernel("dmabuf_mp_fill"), arguments) == 0
    call("cuCtxSynchronize")


def check(
    pointer: int, size: int, *, kind: int = 0, base: int = 0x1000, seed: int = 0, kappa: int = 0, t: int = 0
) -> list[int]:
    """Check a range and return matched, mismatched and the first offset."""
    results = call("cuMemAllocHost", 24)
    counters = (ctypes.c_uint64 * 3).from_address(int(results))
    counters[:] = [0, 0, 2**64 - 1]
    arguments = (pointer, size // 4, size % 4, kind, base, seed, kappa, t, int(results))
    assert launch(kernel("dmabuf_mp_check"), arguments) == 0
    call("cuCtxSynchronize")
    found = list(counters)
    call("cuMemFreeHost", results)
    return found


def read(pointer: int, size: int) -> bytes:
    """Copy to the host."""
    data = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH", ctypes.addressof(data), pointer, size)
    return data.raw


class Peer:
    """A forked process that runs `role(socket)`, and this side's end of the socket to it."""

    def __init__(self, role: Callable[[socket.socket], None]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.socket.close()
                role(theirs)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()

    def wait(self) -> int:
        """Return the exit status, a signal's number negative."""
        self.socket.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def send_fd(to: socket.socket, fd: int, data: bytes = b"F") -> None:
    """Send one descriptor."""
    to.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive_fd(peer: socket.socket) -> int:
    """Receive one descriptor."""
    _, ancillary, _, _ = peer.recvmsg(64, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    return array.array("i", ancillary[0][2])[0]
