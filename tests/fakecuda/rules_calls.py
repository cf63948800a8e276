"""Rules of initialising, devices, contexts, streams, events and modules."""

from __future__ import annotations

import ctypes
import threading
import time
import uuid
from pathlib import Path

from cuda.bindings import driver

from tests.fakecuda import cu
from tests.fakecuda.cu import Peer, call, code
from tests.fakecuda.runner import rule

INVALID_VALUE, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT = 1, 3, 100, 101, 201
INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 400, 500, 600, 801


@rule()
def nothing_works_before_init() -> None:
    assert code("cuDeviceGetCount") == NOT_INITIALIZED
    assert code("cuMemAllocHost", 4096) == NOT_INITIALIZED
    assert code("cuMemCreate", cu.GRANULARITY, cu.properties(), 0) == NOT_INITIALIZED
    assert call("cuDriverGetVersion") == 13040
    assert code("cuInit", 1) == INVALID_VALUE
    call("cuInit", 0)
    call("cuInit", 0)
    assert code("cuMemAllocHost", 4096) == INVALID_CONTEXT


@rule()
def nothing_works_in_a_forked_child() -> None:
    cu.start()

    def child(_: object) -> None:
        assert code("cuInit", 0) == NOT_INITIALIZED
        assert code("cuDeviceGetCount") == NOT_INITIALIZED
        assert code("cuCtxSynchronize") == NOT_INITIALIZED

    assert Peer(child).wait() == 0


@rule()
def init_starts_a_thread() -> None:
    assert len(list(Path("/proc/self/task").iterdir())) == 1
    call("cuInit", 0)
    assert len(list(Path("/proc/self/task").iterdir())) == 2


@rule(FAULT_cuInit=100)
def no_device() -> None:
    assert code("cuInit", 0) == NO_DEVICE
    assert code("cuDeviceGetCount") == NOT_INITIALIZED


@rule(FAULT_cuInit="slow:150")
def slow_init() -> None:
    began = time.monotonic()
    call("cuInit", 0)
    assert time.monotonic() - began >= 0.15


@rule(DEVICES=3)
def devices_are_told_apart() -> None:
    call("cuInit", 0)
    assert call("cuDeviceGetCount") == 3
    identities = {bytes(call("cuDeviceGetUuid", device).bytes) for device in range(3)}
    assert len(identities) == 3
    for ordinal in range(3):
        text = call("cuDeviceGetPCIBusId", 32, ordinal).split(b"\0")[0]
        assert int(call("cuDeviceGetByPCIBusId", text)) == ordinal
        assert int(text[5:7], 16) == cu.attribute(33, ordinal)
        assert call("cuDeviceGetName", 64, ordinal).startswith(b"fakecuda")
    assert code("cuDeviceGet", 3) == INVALID_DEVICE
    assert call("cuDeviceTotalMem", 0) == 16 << 30


def identity(ordinal: int) -> str:
    return str(uuid.UUID(bytes=bytes(call("cuDeviceGetUuid", ordinal).bytes)))


@rule(CUDA_VISIBLE_DEVICES="1")
def visible_by_index() -> None:
    call("cuInit", 0)
    assert call("cuDeviceGetCount") == 1
    assert identity(0).startswith("17")


@rule(CUDA_VISIBLE_DEVICES="GPU-17,0,7,1")
def visible_by_uuid_up_to_the_first_that_is_not_there() -> None:
    call("cuInit", 0)
    assert call("cuDeviceGetCount") == 2
    assert identity(0).startswith("17")
    assert identity(1).startswith("10")


@rule(CUDA_VISIBLE_DEVICES="")
def none_visible() -> None:
    assert code("cuInit", 0) == NO_DEVICE


@rule(CUDA_VISIBLE_DEVICES="0,0")
def one_visible_twice() -> None:
    assert code("cuInit", 0) == NO_DEVICE


@rule(FASTEST_FIRST=1)
def fastest_first_is_not_pci_order() -> None:
    call("cuInit", 0)
    assert identity(0).startswith("17")


@rule(FASTEST_FIRST=1, CUDA_DEVICE_ORDER="PCI_BUS_ID")
def pci_order() -> None:
    call("cuInit", 0)
    assert identity(0).startswith("10")


@rule(MIG=1)
def mig_shows_one_instance() -> None:
    call("cuInit", 0)
    assert call("cuDeviceGetCount") == 1
    assert b"MIG" in call("cuDeviceGetName", 64, 0)


@rule(MIG=1, CUDA_VISIBLE_DEVICES="MIG-1716c0da")
def mig_by_uuid() -> None:
    call("cuInit", 0)
    assert call("cuDeviceGetCount") == 1
    assert identity(0).startswith("1716c0da")
    assert cu.attribute(33) == 0x11  # the parent GPU's


@rule()
def attributes_of_the_sample_preset() -> None:
    call("cuInit", 0)
    assert [cu.attribute(n, d) for d in (0, 1) for n in (124, 146, 152)] == [1, 1, 0, 1, 1, 0]


@rule(PRESET="h200")
def attributes_of_the_h200_preset() -> None:
    call("cuInit", 0)
    assert call("cuDriverGetVersion") == 13000
    assert [cu.attribute(n, d) for d in (0, 1) for n in (124, 146, 152)] == [1, 0, None, 1, 0, None]


@rule(ATTR_146=0, ATTR_146_DEV1=1, ATTR_124="unknown")
def attributes_by_switch() -> None:
    call("cuInit", 0)
    assert [cu.attribute(146, 0), cu.attribute(146, 1), cu.attribute(124, 0)] == [0, 1, None]


@rule(DRIVER_VERSION=11050)
def old_driver_lacks_functions_and_attributes() -> None:
    call("cuInit", 0)
    assert cu.attribute(102) == 1
    assert [cu.attribute(124), cu.attribute(146)] == [None, None]
    cu.use(0)
    pointer = cu.pinned(4096)
    try:
        driver.cuMemGetHandleForAddressRange(pointer, 4096, cu.DMA_BUF_FD, 0)
    except RuntimeError as missing:
        assert "not found" in str(missing)
    else:
        raise AssertionError("the function is there")


@rule(DRIVER_VERSION=12000)
def functions_are_found_by_name_and_version() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    pointer, status = ctypes.c_void_p(), ctypes.c_int()

    def find(name: bytes, version: int) -> tuple[int, bool, int]:
        address = (ctypes.byref(pointer), version, ctypes.c_uint64(0), ctypes.byref(status))
        return library.cuGetProcAddress_v2(name, *address), bool(pointer), status.value

    assert find(b"cuMemAlloc", 12000) == (0, True, 0)
    assert find(b"cuMemAlloc", 2000) == (NOT_FOUND, False, 2)
    assert find(b"cuNoSuchThing", 12000) == (NOT_FOUND, False, 1)
    assert find(b"cuMemcpy", 12000) == (0, True, 0)
    assert find(b"cuDeviceGetUuid", 12000) == (0, True, 0)
    second = pointer.value
    assert find(b"cuDeviceGetUuid", 10000) == (0, True, 0)
    assert pointer.value != second


@rule()
def contexts() -> None:
    call("cuInit", 0)
    assert call("cuDevicePrimaryCtxGetState", 0) == (0, 0)
    assert code("cuDevicePrimaryCtxRelease", 0) == INVALID_CONTEXT
    context = cu.use(0)
    assert call("cuDevicePrimaryCtxGetState", 0) == (0, 1)
    assert int(call("cuCtxGetDevice")) == 0
    other = cu.use(1)
    assert int(call("cuCtxGetDevice")) == 1
    call("cuCtxPushCurrent", context)
    assert int(call("cuCtxGetCurrent")) == int(context)
    assert int(call("cuCtxPopCurrent")) == int(context)
    assert int(call("cuCtxGetCurrent")) == int(other)
    call("cuDevicePrimaryCtxRelease", 1)
    assert code("cuCtxSynchronize") == 709  # CONTEXT_IS_DESTROYED
    assert code("cuCtxSetCurrent", other) == INVALID_CONTEXT
    assert code("cuCtxSetCurrent", driver.CUcontext(4096)) == INVALID_CONTEXT


@rule()
def a_context_is_current_in_one_thread() -> None:
    cu.start()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(code("cuCtxSynchronize")))
    thread.start()
    thread.join()
    assert codes == [INVALID_CONTEXT]


@rule(PEER_DEV1=0)
def peers() -> None:
    context = cu.start(0)
    other = cu.use(1)
    assert call("cuDeviceCanAccessPeer", 0, 1) == 1
    assert call("cuDeviceCanAccessPeer", 1, 0) == 0
    assert code("cuCtxEnablePeerAccess", context, 0) == INVALID_DEVICE
    call("cuCtxSetCurrent", context)
    call("cuCtxEnablePeerAccess", other, 0)
    assert code("cuCtxEnablePeerAccess", other, 0) == 704
    call("cuCtxDisablePeerAccess", other)
    assert code("cuCtxDisablePeerAccess", other) == 705


@rule()
def work_is_done_when_it_is_waited_for() -> None:
    cu.start()
    stream, host = call("cuStreamCreate", 1), int(call("cuMemAllocHost", 64))
    call("cuMemsetD8Async", host, 7, 64, stream)
    assert ctypes.string_at(host, 1) == b"\0"
    assert code("cuStreamQuery", stream) == NOT_READY
    assert code("cuStreamQuery", stream) == 0
    assert ctypes.string_at(host, 64) == b"\7" * 64


@rule()
def streams_are_not_ordered_among_each_other() -> None:
    cu.start()
    stream, device = call("cuStreamCreate", 1), call("cuMemAlloc", 64)
    call("cuMemsetD8", device, 1, 64)  # in the default stream, which a non-blocking one does not wait for
    call("cuMemsetD8Async", device, 2, 64, stream)
    call("cuStreamSynchronize", stream)
    assert cu.read(device, 1) == b"\1"
    blocking = call("cuStreamCreate", 0)
    call("cuMemsetD8", device, 3, 64)
    call("cuMemsetD8Async", device, 4, 64, blocking)
    call("cuStreamSynchronize", blocking)
    assert cu.read(device, 1) == b"\4"


@rule()
def events() -> None:
    cu.start()
    stream, other, device = call("cuStreamCreate", 1), call("cuStreamCreate", 1), call("cuMemAlloc", 64)
    before, after, untimed = call("cuEventCreate", 0), call("cuEventCreate", 0), call("cuEventCreate", 2)
    assert code("cuEventElapsedTime", before, after) == INVALID_HANDLE
    call("cuEventRecord", before, stream)
    call("cuMemsetD8Async", device, 1, 64, stream)
    call("cuEventRecord", after, stream)
    call("cuEventRecord", untimed, stream)
    assert code("cuEventElapsedTime", before, after) == NOT_READY
    call("cuStreamWaitEvent", other, after, 0)
    call("cuMemsetD8Async", device, 2, 64, other)
    call("cuStreamSynchronize", other)
    assert code("cuEventQuery", after) == 0
    assert call("cuEventElapsedTime", before, after) >= 0
    assert code("cuEventQuery", untimed) == NOT_READY
    call("cuEventSynchronize", untimed)
    assert code("cuEventElapsedTime", before, untimed) == INVALID_HANDLE
    assert cu.read(device, 1) == b"\2"
    call("cuEventDestroy", before)
    assert code("cuEventDestroy", before) == INVALID_HANDLE


@rule()
def handles_belong_to_their_context() -> None:
    cu.start(0)
    stream, function = call("cuStreamCreate", 0), cu.kernel("dmabuf_mp_fill")
    event = call("cuEventCreate", 0)
    cu.use(1)
    assert code("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert code("cuEventRecord", event, 0) == INVALID_HANDLE
    assert cu.launch(function, (0, 0, 0, 0, 0, 0, 0, 0)) == INVALID_HANDLE
    cu.use(0)
    call("cuStreamDestroy", stream)
    assert code("cuStreamDestroy", stream) == INVALID_HANDLE
    assert code("cuStreamSynchronize", stream) == INVALID_HANDLE


@rule(DRIVER_VERSION=12000, ATTR_75_DEV1=7, ATTR_76_DEV1=0)
def modules() -> None:
    cu.start(0)
    module = call("cuModuleLoadData", cu.PTX.encode())
    assert code("cuModuleGetFunction", module, b"dmabuf_mp") == NOT_FOUND
    assert cu.launch(call("cuModuleGetFunction", module, b"other"), (0,)) == NOT_SUPPORTED
    assert code("cuModuleLoadData", b"no PTX") == 200
    assert code("cuModuleLoadData", cu.PTX.replace("8.0", "8.1").encode()) == 222
    wrong = cu.PTX.replace(".param .u32 h)", ".param .u64 h)").encode()
    function = call("cuModuleGetFunction", call("cuModuleLoadData", wrong), b"dmabuf_mp_fill")
    assert cu.launch(function, (0, 0, 0, 0, 0, 0, 0, 0)) == NOT_SUPPORTED
    function = call("cuModuleGetFunction", module, b"dmabuf_mp_fill")
    call("cuModuleUnload", module)
    assert cu.launch(function, (0, 0, 0, 0, 0, 0, 0, 0)) == INVALID_HANDLE
    cu.use(1)
    assert code("cuModuleLoadData", cu.PTX.encode()) == 209


@rule(FAULT_cuCtxSynchronize="lost:46@2")
def a_device_can_be_lost() -> None:
    cu.start()
    call("cuCtxSynchronize")
    call("cuCtxSynchronize")
    assert code("cuCtxSynchronize") == 46
    assert code("cuMemAllocHost", 4096) == 46
    call("cuDevicePrimaryCtxRelease", 0)
    cu.use(0)
    call("cuMemAllocHost", 4096)


@rule(FAULT_cuMemAllocHost_DEV1=2)
def any_call_can_fail_on_one_device() -> None:
    cu.start(0)
    call("cuMemAllocHost", 4096)
    cu.use(1)
    assert code("cuMemAllocHost", 4096) == 2


@rule(FAULT_cuStreamSynchronize="crash")
def any_call_can_crash() -> None:
    def child(_: object) -> None:
        cu.start()
        code("cuStreamSynchronize", 0)

    assert Peer(child).wait() == -11


@rule()
def the_package_ptx_fits() -> None:
    ptx = Path(__file__).parents[2] / "dmabuf_mp/backends/cuda/kernels.ptx"
    cu.start()
    module = call("cuModuleLoadData", ptx.read_bytes() + b"\0")
    host = int(call("cuMemAllocHost", 4096))
    data = (host + 15) // 16 * 16
    for name, more in ((b"dmabuf_mp_fill", ()), (b"dmabuf_mp_check", (data + 1024,))):
        function = call("cuModuleGetFunction", module, name)
        assert cu.launch(function, (data, 16, 3, 0, 0x1000, 0, 0, 0, *more)) == 0
        call("cuCtxSynchronize")
    assert ctypes.c_uint64.from_address(data + 1024).value == 19
