"""Cases about devices: who they are, how they fail, what their kernels find."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import redirect_stdout
from io import StringIO

from dmabuf_mp.backends.base import CheckCounts
from dmabuf_mp.errors import DriverError, ResourceRefused, Unsupported, UsageError
from dmabuf_mp.patterns import M, Pattern, positions, word
from tests.backends.cuda.double import PATTERN, SIZE, backend, case, raising
from tests.hardware import kernels


@case()
def inventory_identifies_each_device() -> None:
    found = backend().inventory()
    assert found.host == {"driver": "CUDA 13.4", "software_driver": True}
    first, second = found.devices
    assert (first.selector, second.selector) == ("cuda:0", "cuda:1")
    assert first.uuid is not None and first.uuid.startswith("GPU-") and first.uuid != second.uuid
    assert first.details["pci_id"] == "0000:11:00.0"
    assert first.details["compute_capability"] == "9.0"
    assert first.details["memory_bytes"] == 2**34
    assert first.details["peers"] == {"cuda:1": True}
    assert first.details["dma_buf_mmap_supported"] == 0
    opened = backend().open(second.uuid and f"cuda:{second.uuid}")
    assert opened.info == second
    opened.close()


@case(PRESET="h200")
def an_attribute_newer_than_the_driver_is_unknown() -> None:
    (first, _) = backend().inventory().devices
    assert first.details["dma_buf_mmap_supported"] is None
    assert first.details["host_alloc_dma_buf_supported"] == 0


@case(FASTEST_FIRST=1)
def devices_are_in_pci_order() -> None:
    ids = [device.details["pci_id"] for device in backend().inventory().devices]
    assert ids == sorted(ids) and len(ids) == 2


@case(MIG=1)
def a_mig_instance_has_its_own_name() -> None:
    (only,) = backend().inventory().devices
    assert only.uuid is not None and only.uuid.startswith("MIG-")
    assert only.details["mig"] is True


@case(DEVICES=0)
def a_driver_without_devices_is_a_reason() -> None:
    found = backend().inventory()
    assert not found.devices and "CUDA_ERROR_NO_DEVICE" in found.reason
    with raising(Unsupported, "CUDA_ERROR_NO_DEVICE"):
        backend().open("cuda:0")


@case(FAULT_cuInit=999)
def a_driver_that_fails_is_an_error_and_not_a_skip() -> None:
    with raising(DriverError, "CUDA_ERROR_UNKNOWN: ", ", during cuInit, on any device"):
        backend().inventory()


@case()
def a_device_that_is_not_there_is_unsupported() -> None:
    with raising(Unsupported, "no device cuda:2", "cuda:0 (GPU-", "cuda:1 (GPU-"):
        backend().open("cuda:2")
    with raising(UsageError, "fits several"):
        backend().open("cuda:GPU-1")


@case()
def gpu_and_cpu_agree_on_every_bit() -> None:
    sys.argv[1:] = ["cuda:1", str(2**20 + 3)]
    said = StringIO()
    with redirect_stdout(said):
        kernels.main()
    cases = [json.loads(line) for line in said.getvalue().splitlines()]
    assert len(cases) > 800
    assert [case for case in cases if not case["ok"]] == []


@case(FAULT_cuMemAllocHost=2, FAULT_cuMemCreate=801)
def refusals_are_told_apart() -> None:
    from dmabuf_mp.backends.cuda import driver

    backend().inventory()
    with raising(ResourceRefused, "CUDA_ERROR_OUT_OF_MEMORY: ", ", during cuMemAllocHost, on cuda:0"):
        backend().open("cuda:0")
    with raising(Unsupported, "CUDA_ERROR_NOT_SUPPORTED: ", ", during cuMemCreate, on a device"):
        driver.Driver("a device")("cuMemCreate", 2**21, driver.allocation(driver.LOCATION_DEVICE, 0), 0)


@case(DRIVER_VERSION=11060)
def a_driver_that_is_too_old_is_told_from_one_that_fails() -> None:
    from dmabuf_mp.backends.cuda import driver

    backend().inventory()
    with raising(Unsupported, "this CUDA driver has no cuMemGetHandleForAddressRange"):
        driver.Driver()("cuMemGetHandleForAddressRange", 0, 0, driver.enum("CUmemRangeHandleType", 1), 0)
    with raising(DriverError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "older than 525"):
        backend().open("cuda:0")


@case()
def two_threads_can_use_one_device() -> None:
    device, other = backend().open("cuda:0"), backend().open("cuda:1")
    allocation = device.allocate("device", SIZE, {})
    found: list[CheckCounts] = []

    def check() -> None:
        device.fill(allocation, PATTERN, 0)
        found.append(device.check(allocation, PATTERN, 0))

    other.make_current()
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    found.append(device.check(allocation, PATTERN, 0))
    assert found == [CheckCounts(positions(SIZE), 0)] * 2


@case()
def a_process_forked_after_cuinit_is_told_so() -> None:
    backend().inventory()
    child = os.fork()
    if not child:
        status = 1
        try:
            with raising(DriverError, "CUDA_ERROR_NOT_INITIALIZED", "forked", "fresh process"):
                backend().open("cuda:0")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@case(FAULT_cuLaunchKernel="lost:700")
def a_lost_device_is_an_error_at_every_call() -> None:
    device = backend().open("cuda:0")
    allocation = device.allocate("device", SIZE, {})
    with raising(DriverError, "CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.fill(allocation, PATTERN, 0)
    with raising(DriverError, "CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.read(allocation, 0, 1)


@case()
def large_seeds_and_steps_arrive_whole() -> None:
    device = backend().open("cuda:0")
    allocation = device.allocate("device", 64, {})
    for pattern, t in (
        (Pattern("random", seed=M + 7), 2),
        (Pattern(base=M, kappa=M), 2**20),
        (Pattern("address"), 5),
    ):
        device.fill(allocation, pattern, t)
        expected = b"".join(word(pattern, i, t).to_bytes(4, "little") for i in range(16))
        assert device.read(allocation, 0, 64) == expected, pattern
