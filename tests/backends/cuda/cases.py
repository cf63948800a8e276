"""What the CUDA backend does on the software driver, a test double: `python -m tests.backends.cuda.cases`.

Started by test_on_double.py in an environment that loads the double. Each case runs in a process of its own,
forked from one that has imported everything and initialised nothing, and prints one line of JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmabuf_mp import backends
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.errors import DmabufMpError, DriverError, ResourceRefused, Unsupported, UsageError, WrongBuffer
from dmabuf_mp.fds import Fd
from dmabuf_mp.patterns import M, Pattern, positions, word
from tests.hardware import kernels, probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATTERN = Pattern("random", seed=7, kappa=3)
SIZE = 2**16 + 7
PASSING_PATHS = 4 * 7 + 2 + 1  # between GPUs, from one to the CPU, from the CPU to one
DEADLINE_S = 60
CASES: dict[str, tuple[Callable[[], None], dict[str, str | int]]] = {}


def case(**switches: str | int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function to run on the double with these switches."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        CASES[function.__name__] = function, switches
        return function

    return register


def backend() -> Any:
    return backends.load("cuda")


def exported(device: Any, memory: str, handle: str, **options: Any) -> tuple[Any, Fd, Offer]:
    allocation = device.allocate(memory, SIZE, options)
    device.fill(allocation, PATTERN, 0)
    offer = Offer(SIZE, allocation.allocated_bytes, 0, memory, handle, device.info.uuid)
    return allocation, allocation.export(handle), offer


@contextmanager
def raising(kind: type[DmabufMpError], *parts: str) -> Iterator[None]:
    """See that an error of exactly this kind is raised, and that its text has these parts."""
    try:
        yield
    except DmabufMpError as error:
        assert isinstance(error, kind), repr(error)
        assert all(part in str(error) for part in parts), str(error)
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def held(device: Any) -> tuple[list[str], int]:
    """Return what a leak would add to: this process's open fds, and the device's memory in use."""
    device.make_current()
    return sorted(fd.name for fd in Path("/proc/self/fd").iterdir()), device.cuda("cuMemGetInfo")[0]


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
def all_paths_within_one_process() -> None:
    tried = 0
    for producer, consumer, path in all_paths():
        if "Unsupported" not in (said := attempt(probe.same, *path, producer, consumer)):
            assert said == "pass", (path, said)
            tried += 1
    assert tried == PASSING_PATHS, tried


@case()
def all_paths_between_two_processes() -> None:
    tried = 0
    for producer, consumer, path in all_paths():
        child = os.fork()
        if not child:
            said = attempt(probe.separate, *path, producer, consumer)
            print(path, producer, consumer, said, flush=True)
            os._exit({"pass": 0, "Unsupported": 7}.get(said, 1))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 7), (path, status)
        tried += status == 0
    assert tried == PASSING_PATHS, tried


def all_paths() -> Iterator[tuple[str, str, tuple[str, str, str]]]:
    """Yield each path between two devices, and to and from the CPU, but for what this machine has not."""
    from tests.hardware.run import paths_between

    ends = ("cuda:0", "cuda:1"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:0"), ("cuda:1", "cuda:1")
    for producer, consumer in (*ends, ("cuda:0", "cpu"), ("cpu", "cuda:1")):
        for path in paths_between(producer, consumer):
            if path.memory in ("memfd", "pinned", "device", "host_numa"):
                yield producer, consumer, (path.memory, path.handle, path.importer)


def attempt(how: Callable[..., dict[str, str]], *arguments: str) -> str:
    try:
        result = how(*arguments)
    except Unsupported:
        return "Unsupported"
    return "Unsupported" if result["outcome"] == "no" else result["outcome"] + result["reason"]


@case()
def gpu_and_cpu_agree_on_every_bit() -> None:
    sys.argv[1:] = ["cuda:1", str(2**20 + 3)]
    said = StringIO()
    with redirect_stdout(said):
        kernels.main()
    cases = [json.loads(line) for line in said.getvalue().splitlines()]
    assert len(cases) > 800
    assert [case for case in cases if not case["ok"]] == []


@case()
def memory_is_poisoned_and_all_of_it_is_compared() -> None:
    device = backend().open("cuda:0")
    for memory in ("pinned", "device", "host_numa", "memfd"):
        allocation = device.allocate(memory, SIZE, {})
        assert device.read(allocation, 0, SIZE) == b"\xff" * SIZE
        assert device.check(allocation, PATTERN, 0) == CheckCounts(0, positions(SIZE), 0)
        device.fill(allocation, PATTERN, 2)
        assert device.read(allocation, 4, 4) == word(PATTERN, 1, 2).to_bytes(4, "little")
        assert len(device.read(allocation, SIZE - 3, 100)) == 3
        device.write(allocation, SIZE - 1, b"\0")
        assert device.check(allocation, PATTERN, 2) == CheckCounts(positions(SIZE) - 1, 1, SIZE - 1)
        other = device.allocate("device", SIZE, {})
        device.copy(allocation, other)
        assert device.check(other, PATTERN, 2).mismatched == 1
        allocation.close()
        other.close()
    device.close()


@case()
def sizes_round_up_to_the_page_or_the_granularity() -> None:
    device = backend().open("cuda:0")
    for memory, unit in (("pinned", mmap.PAGESIZE), ("device", 2**21), ("host_numa", 2**21)):
        for size in (1, unit, unit + 1):
            allocation = device.allocate(memory, size, {})
            assert allocation.allocated_bytes == -(-size // unit) * unit
            assert allocation.pointer % mmap.PAGESIZE == 0
            allocation.close()
    device.close()


@case()
def everything_is_given_back() -> None:
    device, other = backend().open("cuda:0"), backend().open("cuda:1")
    for _ in range(2):  # the first time, libraries open what they keep
        before = held(device)
        for memory, handle, importer in (
            ("pinned", "dmabuf", "external_memory"),
            ("device", "dmabuf", "external_memory"),
            ("device", "posix_fd", "external_memory"),
            ("device", "posix_fd", "vmm"),
            ("host_numa", "posix_fd", "vmm"),
            ("memfd", "memfd", "host_register"),
        ):
            allocation, fd, offer = exported(device, memory, handle)
            buffer = other.import_fd(importer, fd, offer)
            assert fd.closed or importer != "vmm"
            buffer.close()
            buffer.close()
            assert fd.closed
            allocation.close()
            allocation.close()
    assert held(device) == before


@case(FAULT_cuMemMap=999)
def a_failure_midway_gives_everything_back() -> None:
    device = backend().open("cuda:0")
    for memory in ("device", "host_numa"):
        before = held(device)
        with raising(DriverError, "CUDA_ERROR_UNKNOWN: ", ", during cuMemMap, on cuda:0 (GPU-"):
            device.allocate(memory, SIZE, {})
        assert held(device) == before


@case(FAULT_cuMemAllocHost=2, FAULT_cuMemCreate=801)
def refusals_are_told_apart() -> None:
    from dmabuf_mp.backends.cuda import driver

    backend().inventory()
    with raising(ResourceRefused, "CUDA_ERROR_OUT_OF_MEMORY: ", ", during cuMemAllocHost, on cuda:0"):
        backend().open("cuda:0")
    with raising(Unsupported, "CUDA_ERROR_NOT_SUPPORTED: ", ", during cuMemCreate, on a device"):
        driver.Driver("a device")("cuMemCreate", 2**21, driver.allocation(driver.LOCATION_DEVICE, 0), 0)


@case(MEMORY_BYTES=2**22)
def more_than_the_device_has_is_unsupported() -> None:
    device = backend().open("cuda:0")
    with raising(Unsupported, "larger than free device memory"):
        device.allocate("device", 2**23, {})
    with raising(Unsupported, "MemAvailable"):
        device.allocate("pinned", 2**50, {})
    device.close()


@case(PRESET="h200")
def a_refusal_names_what_the_attribute_announced() -> None:
    device = backend().open("cuda:0")
    pinned = device.allocate("pinned", SIZE, {})
    with raising(Unsupported, "CUDA_ERROR_INVALID_VALUE", "HOST_ALLOC_DMA_BUF_SUPPORTED is 0"):
        pinned.export("dmabuf")
    with raising(Unsupported, "named by dmabuf, not by posix_fd"):
        pinned.export("posix_fd")
    _, fd, offer = exported(device, "device", "dmabuf", pcie=True)
    with raising(Unsupported, "CUDA_ERROR_NOT_SUPPORTED", "cuImportExternalMemory", "DMA_BUF_SUPPORTED is 1"):
        device.import_fd("external_memory", fd, offer)
    assert fd.closed


@case(ATTR_146=1, EXPORT_PINNED=1)
def an_invalid_argument_is_an_error_where_support_was_announced() -> None:
    pinned = backend().open("cuda:0").allocate("pinned", SIZE, {})
    with raising(DriverError, "CUDA_ERROR_INVALID_VALUE"):
        pinned.export("dmabuf")


@case(EXPORT_PCIE="unsupported", ATTR_124=0, EXPORT_DEVICE="ok")
def what_went_otherwise_than_announced_is_noted() -> None:
    allocation, fd, _ = exported(backend().open("cuda:0"), "device", "dmabuf", pcie=True)
    fallback, disagreement = allocation.notes
    assert fallback.startswith("no PCIe mapping, the default one instead: CUDA_ERROR_NOT_SUPPORTED")
    assert disagreement == "DMA_BUF_SUPPORTED is 0, and the export works all the same"
    fd.close()


@case()
def a_pcie_mapping_that_works_is_not_noted() -> None:
    allocation, fd, _ = exported(backend().open("cuda:0"), "pinned", "dmabuf", pcie=True)
    assert allocation.notes == []
    fd.close()


@case(CREATE_HOST_NUMA=1, ATTR_146="unknown")
def host_numa_memory_that_cannot_be_is_unsupported() -> None:
    with raising(Unsupported, "CUDA_ERROR_INVALID_VALUE", "HOST_ALLOC_DMA_BUF_SUPPORTED is unknown"):
        backend().open("cuda:0").allocate("host_numa", SIZE, {})


@case(DRIVER_VERSION=11060)
def a_driver_that_is_too_old_is_told_from_one_that_fails() -> None:
    from dmabuf_mp.backends.cuda import driver

    backend().inventory()
    with raising(Unsupported, "no cuMemGetHandleForAddressRange in the CUDA driver"):
        driver.Driver()("cuMemGetHandleForAddressRange", 0, 0, driver.enum("CUmemRangeHandleType", 1), 0)
    with raising(DriverError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "older than 525"):
        backend().open("cuda:0")


@case(IMPORT_VMM_OTHER="zeros")
def wrong_data_on_another_gpu_is_found() -> None:
    device, other = backend().open("cuda:0"), backend().open("cuda:1")
    allocation, fd, offer = exported(device, "device", "posix_fd")
    assert other.check(other.import_fd("vmm", fd, offer), PATTERN, 0) == CheckCounts(0, positions(SIZE), 0)
    assert device.check(allocation, PATTERN, 0).mismatched == 0


@case()
def what_is_not_the_announced_buffer_is_refused() -> None:
    device = backend().open("cuda:0")
    before = held(device)[0]
    for memory, handle, importer in (
        ("device", "posix_fd", "vmm"),
        ("host_numa", "posix_fd", "external_memory"),
        ("pinned", "dmabuf", "external_memory"),
        ("memfd", "memfd", "host_register"),
    ):
        offer = Offer(SIZE, 2**17, 0, memory, handle, device.info.uuid)
        reader, writer = os.pipe()
        os.close(writer)
        for wrong in (reader, os.open("/dev/zero", os.O_RDONLY), os.open("/", os.O_RDONLY)):
            with raising(WrongBuffer, "expected a"):
                device.import_fd(importer, Fd(wrong), offer)
    assert held(device)[0] == before


@case()
def a_range_outside_of_the_buffer_is_refused() -> None:
    device = backend().open("cuda:0")
    allocation, fd, offer = exported(device, "pinned", "dmabuf")
    for size, allocated, offset in (
        (SIZE, 2**17, 8),
        (2**17 + 1, 2**17, 0),
        (SIZE, 2**17, 2**16),
        (1, 2**17, -16),
    ):
        with raising(WrongBuffer, "expected a range inside"):
            device.import_fd(
                "external_memory", fd.duplicate(), Offer(size, allocated, offset, "pinned", "dmabuf")
            )
    with raising(WrongBuffer, f"expected a dma-buf of {2**20} bytes, got one of {offer.allocated_bytes}"):
        device.import_fd("external_memory", fd, Offer(SIZE, 2**20, 0, "pinned", "dmabuf"))
    allocation.close()


@case()
def an_offset_is_where_the_shared_range_begins() -> None:
    device, other = backend().open("cuda:0"), backend().open("cuda:1")
    for memory, handle, importer in (
        ("pinned", "dmabuf", "external_memory"),
        ("device", "posix_fd", "vmm"),
        ("memfd", "memfd", "host_register"),
    ):
        allocation, fd, offer = exported(device, memory, handle)
        shifted = Offer(16, offer.allocated_bytes, 48, memory, handle, offer.device_uuid)
        buffer = other.import_fd(importer, fd, shifted)
        expected = b"".join(word(PATTERN, i, 0).to_bytes(4, "little") for i in range(12, 16))
        assert other.read(buffer, 0, 16) == expected
        buffer.close()
        allocation.close()


@case()
def memory_of_a_gpu_that_is_not_visible_is_unsupported() -> None:
    device = backend().open("cuda:0")
    _, fd, offer = exported(device, "device", "posix_fd")
    hidden = Offer(SIZE, offer.allocated_bytes, 0, "device", "posix_fd", "GPU-elsewhere")
    with raising(Unsupported, "on GPU-elsewhere", "visible here: cuda:0 (GPU-", "cuda:1 (GPU-"):
        device.import_fd("vmm", fd, hidden)
    assert fd.closed


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


def run(name: str) -> tuple[int, str]:
    """Run one case in a child; return how it ended, and what it printed."""
    function, switches = CASES[name]
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                signal.alarm(DEADLINE_S)
                os.environ.update({f"FAKECUDA_{key}": str(value) for key, value in switches.items()})
                function()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read()


def main() -> None:
    for prefix in ("cuda", "cpu"):
        backends.load(prefix)
    for name in CASES:
        status, output = run(name)
        print(json.dumps({"name": name, "status": status, "output": output}), flush=True)


if __name__ == "__main__":
    main()
