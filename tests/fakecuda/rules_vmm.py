"""Rules of virtual memory management."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from cuda.bindings import driver

from tests.fakecuda import cu
from tests.fakecuda.cu import GRANULARITY, Peer, call, code, receive_fd, send_fd
from tests.fakecuda.runner import rule

if TYPE_CHECKING:
    import socket

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, ILLEGAL_ADDRESS, NOT_SUPPORTED = 1, 2, 101, 700, 801
DEFAULT = driver.CUmemAllocationGranularity_flags(0)


@rule()
def sizes_are_multiples_of_the_granularity() -> None:
    cu.start()
    assert call("cuMemGetAllocationGranularity", cu.properties(), DEFAULT) == GRANULARITY
    assert code("cuMemCreate", 4096, cu.properties(), 0) == INVALID_VALUE
    assert code("cuMemCreate", GRANULARITY, cu.properties(where=2), 0) == INVALID_DEVICE
    assert code("cuMemCreate", GRANULARITY, cu.properties(cu.HOST), 0) == INVALID_VALUE
    assert code("cuMemCreate", GRANULARITY, cu.properties(cu.HOST_NUMA, 1), 0) == INVALID_VALUE
    fabric = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
    assert code("cuMemCreate", GRANULARITY, cu.properties(handles=fabric), 0) == NOT_SUPPORTED
    assert code("cuMemAddressReserve", 4096, 0, 0, 0) == INVALID_VALUE
    assert code("cuMemAddressReserve", GRANULARITY, 3, 0, 0) == INVALID_VALUE


@rule(CREATE_HOST="ok", CREATE_HOST_NUMA=2)
def creation_by_switch() -> None:
    cu.start()
    call("cuMemCreate", GRANULARITY, cu.properties(cu.HOST), 0)
    assert code("cuMemCreate", GRANULARITY, cu.properties(cu.HOST_NUMA), 0) == OUT_OF_MEMORY


@rule()
def everything_is_undone_in_its_order() -> None:
    cu.start()
    handle = call("cuMemCreate", GRANULARITY, cu.properties(), 0)
    base = int(call("cuMemAddressReserve", 2 * GRANULARITY, 0, 0, 0))
    assert base % GRANULARITY == 0
    assert code("cuMemMap", base + 4096, GRANULARITY, 0, handle, 0) == INVALID_VALUE
    assert code("cuMemMap", base, 2 * GRANULARITY, 0, handle, 0) == INVALID_VALUE
    assert code("cuMemMap", base, GRANULARITY, GRANULARITY, handle, 0) == INVALID_VALUE
    assert code("cuMemMap", base + 2 * GRANULARITY, GRANULARITY, 0, handle, 0) == INVALID_VALUE
    call("cuMemMap", base, GRANULARITY, 0, handle, 0)
    assert code("cuMemMap", base, GRANULARITY, 0, handle, 0) == INVALID_VALUE
    assert code("cuMemSetAccess", base, 2 * GRANULARITY, cu.access(), 1) == INVALID_VALUE
    assert code("cuMemAddressFree", base, 2 * GRANULARITY) == INVALID_VALUE
    assert code("cuMemUnmap", base, 2 * GRANULARITY) == INVALID_VALUE
    assert code("cuMemFree", base) == INVALID_VALUE
    call("cuMemRelease", handle)
    assert code("cuMemRelease", handle) == INVALID_VALUE
    assert call("cuMemGetInfo")[0] == (16 << 30) - GRANULARITY  # mapped still
    call("cuMemUnmap", base, GRANULARITY)
    assert call("cuMemGetInfo")[0] == 16 << 30
    assert code("cuMemUnmap", base, GRANULARITY) == INVALID_VALUE
    assert code("cuMemAddressFree", base, GRANULARITY) == INVALID_VALUE
    call("cuMemAddressFree", base, 2 * GRANULARITY)
    assert code("cuMemAddressFree", base, 2 * GRANULARITY) == INVALID_VALUE


@rule()
def nothing_is_touched_without_access() -> None:
    cu.start()
    handle = call("cuMemCreate", GRANULARITY, cu.properties(), 0)
    base = cu.mapping(handle)
    location = cu.location()
    assert int(call("cuMemGetAccess", location, base)) == 0
    call("cuMemSetAccess", base, GRANULARITY, cu.access(), 1)
    assert int(call("cuMemGetAccess", location, base)) == 3
    cu.fill(base, 4096)
    call("cuMemSetAccess", base, GRANULARITY, cu.access(flags=1), 1)
    assert cu.check(base, 4096)[0] == 1024
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (base, 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule()
def a_copy_without_access_kills_the_context() -> None:
    cu.start()
    base = cu.mapping(call("cuMemCreate", GRANULARITY, cu.properties(), 0))
    data = ctypes.create_string_buffer(16)
    assert code("cuMemcpyDtoH", ctypes.addressof(data), base, 16) == ILLEGAL_ADDRESS
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule(PEER_DEV1=0)
def access_from_another_device_needs_a_peer() -> None:
    cu.start()
    base = cu.mapping(call("cuMemCreate", GRANULARITY, cu.properties(), 0))
    assert code("cuMemSetAccess", base, GRANULARITY, cu.access(1), 1) == INVALID_DEVICE
    host = cu.mapping(call("cuMemCreate", GRANULARITY, cu.properties(cu.HOST_NUMA), 0))
    call("cuMemSetAccess", host, GRANULARITY, cu.access(1), 1)


@rule()
def the_cpu_reads_host_memory_once_it_has_access() -> None:
    cu.start()
    base = cu.mapping(call("cuMemCreate", GRANULARITY, cu.properties(cu.HOST_NUMA), 0))
    call("cuMemSetAccess", base, GRANULARITY, cu.access(), 1)
    call("cuMemSetAccess", base, GRANULARITY, cu.access(0, 3, cu.HOST_NUMA), 1)
    call("cuMemsetD8", base, 9, 16)
    call("cuCtxSynchronize")
    assert ctypes.string_at(base, 16) == b"\x09" * 16
    device = cu.mapping(call("cuMemCreate", GRANULARITY, cu.properties(), 0))
    assert code("cuMemSetAccess", device, GRANULARITY, cu.access(0, 3, cu.HOST), 1) == INVALID_VALUE


@rule()
def neighbouring_mappings_are_one_range_for_a_kernel() -> None:
    cu.start()
    base = int(call("cuMemAddressReserve", 2 * GRANULARITY, 0, 0, 0))
    for at in (base, base + GRANULARITY):
        call("cuMemMap", at, GRANULARITY, 0, call("cuMemCreate", GRANULARITY, cu.properties(), 0), 0)
    call("cuMemSetAccess", base, 2 * GRANULARITY, cu.access(), 1)
    size = 2 * GRANULARITY - 5
    cu.fill(base, size, kind=1)
    assert cu.check(base, size, kind=1)[:2] == [size // 4 + 3, 0]
    assert code("cuMemGetHandleForAddressRange", base, 2 * GRANULARITY, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    call("cuMemUnmap", base, 2 * GRANULARITY)


@rule()
def only_memory_made_for_it_is_exported() -> None:
    cu.start()
    none = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    handle = call("cuMemCreate", GRANULARITY, cu.properties(handles=none), 0)
    assert code("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 0) == INVALID_VALUE
    assert code("cuMemImportFromShareableHandle", 0, cu.POSIX_FD) == INVALID_VALUE


def exchange(kind: int, producer_device: int, consumer_device: int) -> None:
    """Share VMM memory between two processes, each on its device, and check it on both sides."""

    def produce(peer: socket.socket) -> None:
        assert peer.recv(1) == b"G"
        cu.start(producer_device)
        where = producer_device if kind == cu.DEVICE else 0
        handle = call("cuMemCreate", GRANULARITY, cu.properties(kind, where), 0)
        base = cu.mapping(handle)
        call("cuMemSetAccess", base, GRANULARITY, cu.access(producer_device), 1)
        cu.fill(base, GRANULARITY, kind=1, seed=5)
        fd = int(call("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 0))
        send_fd(peer, fd)
        os.close(fd)
        assert peer.recv(1) == b"A"
        assert cu.check(base, GRANULARITY, t=1)[1] == 0

    producer = Peer(produce)
    cu.start(consumer_device)
    producer.socket.send(b"G")
    fd = receive_fd(producer.socket)
    handle = call("cuMemImportFromShareableHandle", fd, cu.POSIX_FD)
    os.close(fd)  # it is not taken over
    prop = call("cuMemGetAllocationPropertiesFromHandle", handle)
    assert int(prop.location.type) == kind
    assert prop.location.id == (producer_device if kind == cu.DEVICE else 0)
    base = cu.mapping(handle)
    assert int(call("cuMemGetAccess", cu.location(consumer_device), base)) == 0
    call("cuMemSetAccess", base, GRANULARITY, cu.access(consumer_device), 1)
    assert cu.check(base, GRANULARITY, kind=1, seed=5) == [GRANULARITY // 4, 0, 2**64 - 1]
    cu.fill(base, GRANULARITY, t=1)
    producer.socket.send(b"A")
    assert producer.wait() == 0


@rule(PRESET="h200")
def device_memory_crosses_processes() -> None:
    exchange(cu.DEVICE, 0, 0)


@rule(PRESET="h200")
def device_memory_crosses_devices() -> None:
    exchange(cu.DEVICE, 1, 0)


@rule(PRESET="h200")
def host_memory_crosses_devices() -> None:
    exchange(cu.HOST_NUMA, 0, 1)
