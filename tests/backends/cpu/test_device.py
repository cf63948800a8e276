"""The CPU as a device, on memfds: the same calls that a worker makes."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dmabuf_mp import backends
from dmabuf_mp.backends.base import Buffer, CheckCounts, Offer
from dmabuf_mp.errors import InternalError, Unsupported
from dmabuf_mp.patterns import KINDS, Pattern, positions
from tests.forked import in_child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.backends.base import Allocation, Device

SIZE = 3 * 4096 + 7


@pytest.fixture
def cpu() -> Iterator[Device]:
    device = backends.load("cpu").open("cpu")
    yield device
    device.close()


@pytest.fixture
def buffer(cpu: Device) -> Iterator[Allocation]:
    allocation = cpu.allocate("memfd", SIZE, {})
    yield allocation
    allocation.close()


def imported(cpu: Device, allocation: Allocation) -> Buffer:
    offer = Offer(
        allocation.size_bytes, allocation.allocated_bytes, allocation.offset_bytes, "memfd", "memfd"
    )
    return cpu.import_fd("mmap", allocation.export("memfd"), offer)


def test_the_inventory_is_one_cpu_with_what_it_can_allocate() -> None:
    (info,) = backends.load("cpu").inventory().devices
    assert info.selector == "cpu"
    assert info.name
    assert info.details["page_bytes"] == mmap.PAGESIZE
    assert info.details["cores"] == os.cpu_count()
    assert cast("int", info.details["memory_bytes"]) > 2**24
    assert info.details["udmabuf"]
    assert info.details["dma_heaps"]


def test_there_is_no_second_cpu() -> None:
    with pytest.raises(Unsupported, match="no device 'cpu:1'"):
        backends.load("cpu").open("cpu:1")


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_fills_the_other_checks(cpu: Device, buffer: Allocation, kind: str) -> None:
    other = imported(cpu, buffer)
    for t in range(3):
        cpu.fill(buffer, Pattern(kind), t)
        assert cpu.check(other, Pattern(kind), t) == CheckCounts(positions(SIZE), 0)
    cpu.fill(other, Pattern(kind), 3)
    assert cpu.check(buffer, Pattern(kind), 3) == CheckCounts(positions(SIZE), 0)
    other.close()


def test_another_process_sees_the_same_memory(cpu: Device, buffer: Allocation) -> None:
    cpu.fill(buffer, Pattern(), 0)

    def consume() -> object:
        other = imported(cpu, buffer)
        counts = cpu.check(other, Pattern(), 0)
        cpu.fill(other, Pattern(), 1)
        other.close()
        return counts.matched

    assert in_child(consume) == str(positions(SIZE))
    assert cpu.check(buffer, Pattern(), 1).mismatched == 0


def test_new_memory_never_passes(cpu: Device, buffer: Allocation) -> None:
    counts = cpu.check(buffer, Pattern(), 0)
    assert counts.matched + counts.mismatched == positions(SIZE)
    assert counts.mismatched >= SIZE // 4


def test_parts_are_read_and_written_where_they_are(cpu: Device, buffer: Allocation) -> None:
    cpu.write(buffer, 5, b"abc")
    assert cpu.read(buffer, 4, 5) == b"\xffabc\xff"
    cpu.write(buffer, SIZE - 1, b"z")
    assert cpu.read(buffer, SIZE - 2, 100) == b"\xffz"
    with pytest.raises(ValueError, match="broadcast"):
        cpu.write(buffer, SIZE - 1, b"zz")


def test_a_copy_is_whole(cpu: Device, buffer: Allocation) -> None:
    target = cpu.allocate("memfd", SIZE, {})
    cpu.fill(buffer, Pattern("random", seed=3), 0)
    cpu.copy(buffer, target)
    assert cpu.check(target, Pattern("random", seed=3), 0) == CheckCounts(positions(SIZE), 0)
    target.close()


def test_a_copy_into_another_size_is_refused(cpu: Device, buffer: Allocation) -> None:
    target = cpu.allocate("memfd", SIZE + 1, {})
    with pytest.raises(ValueError, match="broadcast"):
        cpu.copy(buffer, target)
    target.close()


def test_an_importer_of_another_device_is_unsupported_and_the_fd_closed(
    cpu: Device, buffer: Allocation
) -> None:
    fd = buffer.export("memfd")
    with pytest.raises(Unsupported, match="no importer 'vmm', but mmap"):
        cpu.import_fd("vmm", fd, Offer(1, 1, 0, "memfd", "memfd"))
    assert fd.closed


def test_a_buffer_of_another_device_is_our_own_mistake(cpu: Device) -> None:
    foreign = cast("Buffer", SimpleNamespace(size_bytes=4, close=lambda: None))
    with pytest.raises(InternalError, match="another device"):
        cpu.check(foreign, Pattern(), 0)
