"""Rules of arguments that make no sense: whatever is passed is refused, and nothing crashes."""

from __future__ import annotations

import ctypes
import mmap

from cuda.bindings import driver

from tests.fakecuda import cu
from tests.fakecuda.cu import call, code
from tests.fakecuda.runner import rule

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT = 1, 2, 101, 201
INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS, NOT_SUPPORTED = 400, 500, 700, 801

# What zeros mean something to: the default stream, no context, no bytes, a device's number.
FINE_WITH_ZEROS = {
    "cuInit",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuMemsetD32_v2",
    "cuMemsetD32Async",
    "cuCtxPopCurrent_v2",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease_v2",
}


@rule()
def nothing_takes_null_for_an_address() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    names = [name for name in dir(driver) if name.startswith("cu")]
    functions = [name + suffix for name in names for suffix in ("", "_v2") if hasattr(library, name + suffix)]
    assert len(functions) > 80
    cu.start()
    zeros = [ctypes.c_uint64(0)] * 11
    for function in functions:
        if function not in FINE_WITH_ZEROS:
            assert getattr(library, function)(*zeros) != 0, function
    for function in functions:
        if function in FINE_WITH_ZEROS and "Ctx" not in function:
            assert getattr(library, function)(*zeros) == 0, function


@rule()
def no_other_device_is_known() -> None:
    cu.start()
    attribute = driver.CUdevice_attribute(1)
    for name in ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxGetState"):
        assert code(name, 2) == INVALID_DEVICE
    for name in ("cuDeviceGetUuid", "cuDeviceTotalMem"):
        assert code(name, 2) == INVALID_DEVICE
    assert code("cuDeviceGetAttribute", attribute, -1) == INVALID_DEVICE
    assert code("cuDeviceGetName", 32, 2) == INVALID_DEVICE
    assert code("cuDeviceGetPCIBusId", 32, 2) == INVALID_DEVICE
    assert code("cuDeviceGetPCIBusId", 8, 0) == INVALID_VALUE
    assert code("cuDeviceGetByPCIBusId", b"0000:99:00.0") == INVALID_DEVICE
    assert code("cuDeviceGetByPCIBusId", b"nonsense") == INVALID_VALUE
    assert code("cuDeviceCanAccessPeer", 0, 2) == INVALID_DEVICE
    p2p = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert call("cuDeviceGetP2PAttribute", p2p, 0, 1) == 1
    assert code("cuDeviceGetP2PAttribute", p2p, 0, 0) == INVALID_DEVICE
    base = cu.mapping(call("cuMemCreate", cu.GRANULARITY, cu.properties(), 0))
    assert code("cuMemGetAccess", cu.location(2), base) == INVALID_DEVICE
    assert code("cuMemSetAccess", base, cu.GRANULARITY, cu.access(2), 1) == INVALID_DEVICE


@rule()
def no_other_context_is_known() -> None:
    context, forged = cu.start(), driver.CUcontext(4096)
    assert code("cuCtxPushCurrent", forged) == INVALID_CONTEXT
    assert code("cuCtxEnablePeerAccess", forged, 0) == INVALID_CONTEXT
    assert code("cuCtxEnablePeerAccess", context, 0) == INVALID_CONTEXT
    assert code("cuCtxDisablePeerAccess", forged) == INVALID_CONTEXT
    other = cu.use(1)
    assert code("cuCtxEnablePeerAccess", context, 1) == INVALID_VALUE
    assert int(other) != int(context)
    call("cuCtxPopCurrent")
    assert code("cuCtxPopCurrent") == INVALID_CONTEXT
    assert code("cuCtxGetDevice") == INVALID_CONTEXT
    for _ in range(32):
        call("cuCtxPushCurrent", context)
    assert code("cuCtxPushCurrent", context) == INVALID_VALUE
    library, ordinal = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    assert library.cuCtxGetDevice_v2(ctypes.byref(ordinal), ctypes.c_void_p(int(other))) == 0
    assert ordinal.value == 1
    assert library.cuCtxGetDevice_v2(ctypes.byref(ordinal), ctypes.c_void_p(4096)) == INVALID_CONTEXT
    assert library.cuCtxSynchronize_v2(ctypes.c_void_p(4096)) == INVALID_CONTEXT


@rule()
def flags_are_those_that_there_are() -> None:
    cu.start()
    host = call("cuMemHostAlloc", 64, 3)
    assert code("cuMemHostAlloc", 64, 64) == INVALID_VALUE
    assert code("cuMemHostGetDevicePointer", host, 1) == INVALID_VALUE
    assert code("cuStreamCreate", 2) == INVALID_VALUE
    assert code("cuEventCreate", 4) == INVALID_VALUE  # for other processes: not here
    event = call("cuEventCreate", 0)
    assert code("cuStreamWaitEvent", 0, event, 2) == INVALID_VALUE
    handle = call("cuMemCreate", cu.GRANULARITY, cu.properties(), 0)
    base = call("cuMemAddressReserve", cu.GRANULARITY, 0, 0, 0)
    assert code("cuMemCreate", cu.GRANULARITY, cu.properties(), 1) == INVALID_VALUE
    assert code("cuMemAddressReserve", cu.GRANULARITY, 0, 0, 1) == INVALID_VALUE
    assert code("cuMemMap", base, cu.GRANULARITY, 0, handle, 1) == INVALID_VALUE
    assert code("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 1) == INVALID_VALUE
    windows = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_WIN32
    assert code("cuMemCreate", cu.GRANULARITY, cu.properties(handles=windows), 0) == INVALID_VALUE
    assert code("cuMemExportToShareableHandle", handle, windows, 0) == INVALID_VALUE
    managed = cu.properties()
    managed.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    assert code("cuMemCreate", cu.GRANULARITY, managed, 0) == INVALID_VALUE


@rule(ATTR_113=0)
def registering_has_its_flags() -> None:
    cu.start()
    memory = mmap.mmap(-1, cu.PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert code("cuMemHostRegister", base, cu.PAGE, 4) == NOT_SUPPORTED  # IOMEMORY
    assert code("cuMemHostRegister", base, cu.PAGE, 8) == NOT_SUPPORTED  # READ_ONLY
    assert code("cuMemHostRegister", base, 2**64 - 4096, 2) == INVALID_VALUE
    assert code("cuMemHostRegister", base, 0, 2) == INVALID_VALUE
    call("cuMemHostRegister", base, cu.PAGE, 2)
    assert code("cuMemGetAddressRange", base) == NOT_FOUND
    assert code("cuMemGetHandleForAddressRange", base, cu.PAGE, cu.DMA_BUF_FD, 0) == INVALID_VALUE


@rule()
def launches_have_their_limits() -> None:
    cu.start()
    fill, device = cu.kernel("dmabuf_mp_fill"), int(call("cuMemAlloc", 4096))
    values = ((device, 1, 0, 0, 1, 0, 0, 0), (*[ctypes.c_uint64] * 2, *[ctypes.c_uint32] * 6))

    def launch(*shape: int) -> int:
        return code("cuLaunchKernel", fill, *shape, 0, 0, values, 0)

    assert launch(2**31 - 1, 65535, 65535, 256, 2, 2) == 0
    for shape in (
        (0, 1, 1, 256, 1, 1),
        (1, 1, 1, 0, 1, 1),
        (2**31, 1, 1, 256, 1, 1),
        (1, 65536, 1, 256, 1, 1),
        (1, 1, 1, 1025, 1, 1),
        (1, 1, 1, 1, 1, 65),
        (1, 1, 1, 512, 2, 2),
    ):
        assert launch(*shape) == INVALID_VALUE, shape
    assert code("cuLaunchKernel", fill, 1, 1, 1, 1, 1, 1, 49153, 0, values, 0) == INVALID_VALUE
    assert code("cuLaunchKernel", fill, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == INVALID_VALUE


@rule()
def memory_that_nobody_has_is_refused() -> None:
    cu.start()
    assert code("cuMemAllocHost", 0) == INVALID_VALUE
    assert code("cuMemAllocHost", 2**62) == OUT_OF_MEMORY
    assert code("cuMemCreate", 2**40, cu.properties(), 0) == OUT_OF_MEMORY
    assert code("cuMemAddressReserve", 2**50, 0, 0, 0) == OUT_OF_MEMORY
    device = call("cuMemAlloc", 4096)
    assert code("cuMemcpyHtoD", device, 0, 16) == INVALID_VALUE


@rule()
def memory_must_last_until_the_work_is_done() -> None:
    for destroyed in range(2):
        cu.start(destroyed)
        first, second = (
            cu.mapping(call("cuMemCreate", cu.GRANULARITY, cu.properties(), 0)) for _ in range(2)
        )
        for base in (first, second):
            call("cuMemSetAccess", base, cu.GRANULARITY, cu.access(destroyed), 1)
        call("cuMemcpyDtoDAsync", first, second, 4096, 0)
        call("cuMemUnmap", (first, second)[destroyed], cu.GRANULARITY)
        assert code("cuStreamSynchronize", 0) == ILLEGAL_ADDRESS


@rule()
def a_fill_must_find_its_memory_too() -> None:
    cu.start()
    base = cu.mapping(call("cuMemCreate", cu.GRANULARITY, cu.properties(), 0))
    call("cuMemSetAccess", base, cu.GRANULARITY, cu.access(), 1)
    call("cuMemsetD8", base, 1, 4096)
    call("cuMemUnmap", base, cu.GRANULARITY)
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule()
def results_are_memory_that_the_kernel_reaches() -> None:
    cu.start()
    device, check = int(call("cuMemAlloc", 4096)), cu.kernel("dmabuf_mp_check")
    assert cu.launch(check, (device, 1, 0, 0, 1, 0, 0, 0, device + 4096 - 16)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule()
def external_memory_is_described_in_full() -> None:
    cu.start()
    pointer = cu.pinned(4096)
    fd = cu.export(pointer, 4096)
    dedicated, win32 = cu.external(fd, 4096), cu.external(fd, 4096, 2)
    dedicated.flags = 1
    assert code("cuImportExternalMemory", dedicated) == INVALID_VALUE
    assert code("cuImportExternalMemory", win32) == INVALID_VALUE
    memory = call("cuImportExternalMemory", cu.external(fd, 4096))
    for part in (cu.buffer(0), cu.buffer(1, 8192), cu.buffer(4097)):
        assert code("cuExternalMemoryGetMappedBuffer", memory, part) == INVALID_VALUE
    handle = call("cuMemCreate", cu.GRANULARITY, cu.properties(), 0)
    posix = int(call("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 0))
    too_large = cu.external(posix, cu.GRANULARITY + 1, cu.OPAQUE_FD)
    assert code("cuImportExternalMemory", too_large) == INVALID_VALUE
    windows = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_WIN32
    assert code("cuMemImportFromShareableHandle", posix, windows) == INVALID_VALUE


@rule()
def a_module_belongs_to_its_context() -> None:
    cu.start(0)
    module = call("cuModuleLoadData", cu.PTX.encode())
    cu.use(1)
    assert code("cuModuleGetFunction", module, b"other") == INVALID_HANDLE
    assert code("cuModuleUnload", module) == INVALID_HANDLE


@rule()
def access_is_for_places_that_there_are() -> None:
    cu.start()
    base = cu.mapping(call("cuMemCreate", cu.GRANULARITY, cu.properties(cu.HOST_NUMA), 0))
    nowhere = cu.access(0, 3, 4)  # the calling thread's own NUMA node
    assert code("cuMemSetAccess", base, cu.GRANULARITY, nowhere, 1) == INVALID_VALUE
    write_only = (ctypes.c_int * 3)(1, 0, 2)
    library = ctypes.CDLL("libcuda.so.1")
    size, count = ctypes.c_size_t(cu.GRANULARITY), ctypes.c_size_t(1)
    assert library.cuMemSetAccess(ctypes.c_uint64(base), size, write_only, count) == INVALID_VALUE
    described, granularity = cu.properties(), ctypes.c_size_t()
    address = ctypes.c_void_p(int(described.getPtr()))
    assert library.cuMemGetAllocationGranularity(ctypes.byref(granularity), address, 1) == 0
    assert library.cuMemGetAllocationGranularity(ctypes.byref(granularity), address, 2) == INVALID_VALUE
