"""Cases about memories, exports and imports: every path, every refusal, and what is given back."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.errors import DriverError, Unsupported, WrongBuffer
from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import dmabuf
from dmabuf_mp.patterns import positions, word
from tests.backends.cuda.double import PATTERN, SIZE, backend, case, exported, held, raising
from tests.hardware import probe
from tests.hardware.run import paths_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PASSING_PATHS = 4 * 7 + 2 + 1  # between GPUs, from one to the CPU, from the CPU to one


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
    ends = ("cuda:0", "cuda:1"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:0"), ("cuda:1", "cuda:1")
    for producer, consumer in (*ends, ("cuda:0", "cpu"), ("cpu", "cuda:1")):
        for path in paths_between(producer, consumer):
            if path.memory in ("memfd", "pinned", "device", "host_numa"):
                yield producer, consumer, (path.memory, path.handle, path.importer)


@case()
def a_dmabuf_is_named_for_the_kernels_lists() -> None:
    for memory in ("pinned", "device"):
        allocation, fd, _ = exported(backend().open("cuda:0"), memory, "dmabuf")
        with fd:
            assert dmabuf.identity(fd.fileno()).name == f"dmabuf-mp:{memory}:{os.getpid()}"
        allocation.close()


def attempt(how: Callable[..., dict[str, str]], *arguments: str) -> str:
    try:
        result = how(*arguments)
    except Unsupported:
        return "Unsupported"
    return "Unsupported" if result["outcome"] == "no" else result["outcome"] + result["reason"]


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
