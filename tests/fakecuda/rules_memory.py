"""Rules of pinned, registered and device memory, copies, fills and the two kernels."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal

import numpy as np
from cuda.bindings import driver

from tests.fakecuda import cu
from tests.fakecuda.cu import Peer, call, code
from tests.fakecuda.runner import rule

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 1, 2, 201
ILLEGAL_ADDRESS, ALREADY_REGISTERED, NOT_REGISTERED, MISALIGNED = 700, 712, 713, 716


@rule()
def memory_is_freed_once_and_by_its_own_function() -> None:
    cu.start()
    device, host = call("cuMemAlloc", 4096), call("cuMemAllocHost", 4096)
    assert code("cuMemFree", int(device) + 16) == INVALID_VALUE
    assert code("cuMemFree", int(host)) == INVALID_VALUE
    assert code("cuMemFreeHost", int(device)) == INVALID_VALUE
    call("cuMemFree", device)
    call("cuMemFreeHost", host)
    assert code("cuMemFree", device) == INVALID_VALUE
    assert code("cuMemFreeHost", host) == INVALID_VALUE
    assert code("cuMemFree", 0) == INVALID_VALUE
    assert code("cuMemAlloc", 0) == INVALID_VALUE
    call("cuCtxSetCurrent", 0)
    assert code("cuMemAlloc", 4096) == INVALID_CONTEXT


@rule()
def allocations_need_not_begin_on_a_page() -> None:
    cu.start()
    assert int(call("cuMemAllocHost", 4096)) % cu.PAGE == 512
    assert int(call("cuMemAlloc", 4096)) % cu.PAGE == 512


@rule(MEMORY_BYTES=1 << 20)
def device_memory_is_counted_and_runs_out() -> None:
    cu.start()
    assert call("cuMemGetInfo") == (1 << 20, 1 << 20)
    pointer = call("cuMemAlloc", 512 << 10)
    free, total = call("cuMemGetInfo")
    assert (free, total) == ((512 << 10) - 512, 1 << 20)
    assert code("cuMemAlloc", 512 << 10) == OUT_OF_MEMORY
    call("cuMemFree", pointer)
    assert call("cuMemGetInfo") == (1 << 20, 1 << 20)


@rule()
def the_cpu_cannot_read_device_memory() -> None:
    def child(_: object) -> None:
        cu.start()
        device = call("cuMemAlloc", 4096)
        ctypes.string_at(int(device), 1)

    assert Peer(child).wait() == -signal.SIGSEGV


@rule()
def the_cpu_shares_pinned_memory() -> None:
    cu.start()
    host, device = int(call("cuMemAllocHost", 64)), call("cuMemAlloc", 64)
    assert int(call("cuMemHostGetDevicePointer", host, 0)) == host
    ctypes.memset(host, 5, 64)
    call("cuMemcpyHtoD", device, host, 64)
    call("cuMemsetD8", host, 6, 64)
    assert ctypes.string_at(host, 64) == b"\6" * 64
    call("cuMemcpyDtoH", host, device, 64)
    assert ctypes.string_at(host, 64) == b"\5" * 64


@rule()
def registered_memory() -> None:
    cu.start()
    memory = mmap.mmap(-1, 4 * cu.PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    call("cuMemHostRegister", base, 2 * cu.PAGE, 2)
    assert code("cuMemHostRegister", base, 2 * cu.PAGE, 2) == ALREADY_REGISTERED
    assert code("cuMemHostRegister", base + cu.PAGE, 2 * cu.PAGE, 2) == ALREADY_REGISTERED
    assert int(call("cuMemHostGetDevicePointer", base, 0)) == base
    call("cuMemsetD32", base, 0x01020304, 4)
    assert memory[:4] == b"\4\3\2\1"
    assert code("cuMemHostUnregister", base + cu.PAGE) == INVALID_VALUE
    call("cuMemHostUnregister", base)
    assert code("cuMemHostUnregister", base) == NOT_REGISTERED
    assert code("cuMemHostGetDevicePointer", base, 0) == INVALID_VALUE
    assert code("cuMemHostRegister", base, 2 * cu.PAGE, 64) == INVALID_VALUE
    assert code("cuMemHostRegister", call("cuMemAllocHost", 64), 64, 2) == ALREADY_REGISTERED


@rule()
def registering_needs_memory_that_can_be_written() -> None:
    cu.start()
    memory = np.frombuffer(mmap.mmap(-1, cu.PAGE, prot=mmap.PROT_READ), dtype=np.uint8)
    assert code("cuMemHostRegister", memory.ctypes.data, cu.PAGE, 2) == INVALID_VALUE
    call("cuMemHostRegister", memory.ctypes.data, cu.PAGE, 8)  # READ_ONLY
    cu.fill(int(memory.ctypes.data), 0)
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (int(memory.ctypes.data), 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert code("cuMemHostRegister", 4096, cu.PAGE, 2) == ILLEGAL_ADDRESS


@rule()
def registering_needs_memory_that_is_there() -> None:
    cu.start()
    assert code("cuMemHostRegister", cu.PAGE, cu.PAGE, 2) == INVALID_VALUE


@rule()
def copies() -> None:
    cu.start()
    first, second = call("cuMemAlloc", 4096), call("cuMemAlloc", 4096)
    data = os.urandom(4096)
    call("cuMemcpyHtoD", first, data, 4096)
    call("cuMemcpyDtoD", second, first, 4096)
    assert cu.read(int(second), 4096) == data
    host = ctypes.create_string_buffer(4096)
    call("cuMemcpy", ctypes.addressof(host), second, 4096)
    assert host.raw == data
    pinned = int(call("cuMemAllocHost", 4096))
    call("cuMemcpyAsync", pinned, second, 4096, 0)
    assert ctypes.string_at(pinned, 4096) != data
    call("cuStreamSynchronize", 0)
    assert ctypes.string_at(pinned, 4096) == data
    call("cuMemcpyDtoHAsync", ctypes.addressof(host), first, 4096, 0)  # pageable: done at once
    assert host.raw == data
    assert code("cuMemcpyDtoH", ctypes.addressof(host), int(first) + 1, 4096) == INVALID_VALUE
    assert code("cuMemcpyHtoD", first, second, 4096) == INVALID_VALUE
    assert code("cuMemcpyHtoD", ctypes.addressof(host), data, 16) == INVALID_VALUE
    assert code("cuMemsetD8", ctypes.addressof(host), 0, 16) == INVALID_VALUE
    assert code("cuMemsetD32", int(first) + 1, 0, 1) == INVALID_VALUE
    call("cuMemcpyDtoH", ctypes.addressof(host), first, 4096)


@rule()
def a_kernel_outside_its_memory_kills_the_context() -> None:
    cu.start()
    fill = cu.kernel("dmabuf_mp_fill")
    device = int(call("cuMemAlloc", 4096))
    assert cu.launch(fill, (device, 1025, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    for dead in (("cuMemAlloc", 4096), ("cuStreamSynchronize", 0), ("cuMemFree", device)):
        assert code(*dead) == ILLEGAL_ADDRESS
    cu.use(1)
    call("cuCtxSynchronize")


@rule()
def a_kernel_cannot_use_what_was_never_registered() -> None:
    cu.start()
    memory = ctypes.create_string_buffer(4096)
    address = (ctypes.addressof(memory) + 15) // 16 * 16
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (address, 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuStreamSynchronize", 0) == ILLEGAL_ADDRESS


@rule()
def a_kernel_needs_aligned_data() -> None:
    cu.start()
    device = int(call("cuMemAlloc", 4096))
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (device + 4, 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == MISALIGNED


@rule()
def a_kernel_reaches_a_peer_only_where_that_is_enabled() -> None:
    home = cu.start(1)
    device = int(call("cuMemAlloc", 4096))
    cu.use(0)
    call("cuCtxEnablePeerAccess", home, 0)
    cu.fill(device, 4096)
    assert cu.check(device, 4096) == [1024, 0, 2**64 - 1]
    call("cuCtxDisablePeerAccess", home)
    assert len(cu.read(device, 16)) == 16  # a copy always reaches it
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (device, 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule()
def kernels_fill_and_check_every_byte() -> None:
    cu.start()
    for kind in range(3):
        for size in (1, 3, 4, 4096, 4099, 200_001):
            device = int(call("cuMemAlloc", size))
            cu.fill(device, size, kind=kind, seed=7, kappa=3, t=2)
            data = cu.read(device, size)
            assert 0 not in data[size // 4 * 4 :]
            assert 0 not in np.frombuffer(data[: size // 4 * 4], dtype="<u4")
            units = size // 4 + size % 4
            assert cu.check(device, size, kind=kind, seed=7, kappa=3, t=2) == [units, 0, 2**64 - 1]
            call("cuMemsetD8", device + size - 1, data[-1] ^ 1, 1)
            last = size - 1 if size % 4 else size - 4
            assert cu.check(device, size, kind=kind, seed=7, kappa=3, t=2) == [units - 1, 1, last]
            call("cuMemFree", device)


@rule()
def round_0_of_the_ramp_is_the_pattern_of_the_sample() -> None:
    cu.start()
    device = int(call("cuMemAlloc", 16384))
    cu.fill(device, 16384)
    assert np.array_equal(np.frombuffer(cu.read(device, 16384), "<u4"), 0x1000 + np.arange(4096, dtype="<u4"))


@rule(FLIP="4098:3")
def a_bit_can_be_flipped() -> None:
    cu.start()
    device = int(call("cuMemAlloc", 16384))
    cu.fill(device, 16384)
    assert cu.check(device, 16384) == [4095, 1, 4096]
    assert np.frombuffer(cu.read(device, 16384), "<u4")[1024] == (0x1000 + 1024) ^ 1 << 19


@rule()
def pointers_say_what_they_are() -> None:
    context = cu.start(1)
    device, host = int(call("cuMemAlloc", 4096)), int(call("cuMemAllocHost", 4096))

    def ask(number: int, pointer: int) -> int:
        return int(call("cuPointerGetAttribute", driver.CUpointer_attribute(number), pointer))

    assert ask(2, device) == 2  # MEMORY_TYPE: device
    assert ask(2, host) == 1
    assert ask(9, device + 100) == 1  # DEVICE_ORDINAL
    assert ask(1, device) == int(context)
    assert ask(11, device + 100) == device  # RANGE_START_ADDR
    assert ask(12, device) == 4096
    unknown = driver.CUpointer_attribute(2)
    assert code("cuPointerGetAttribute", unknown, 4096) == INVALID_VALUE
    assert code("cuPointerGetAttribute", driver.CUpointer_attribute(4), device) == INVALID_VALUE
    assert [int(v) for v in call("cuMemGetAddressRange", device + 8)] == [device, 4096]


@rule()
def a_context_takes_its_memory_with_it() -> None:
    cu.start(0)
    device, host = call("cuMemAlloc", 4096), call("cuMemAllocHost", 4096)
    stream = call("cuStreamCreate", 0)
    call("cuDevicePrimaryCtxRelease", 0)
    cu.use(0)
    assert code("cuMemFree", device) == INVALID_VALUE
    assert code("cuMemFreeHost", host) == INVALID_VALUE
    assert code("cuStreamSynchronize", stream) == 400
    assert call("cuMemGetInfo")[0] == 16 << 30
