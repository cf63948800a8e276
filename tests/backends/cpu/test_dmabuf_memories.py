"""The package's own buffers as real dma-bufs: allocated, named, sent, refused, and given back."""

from __future__ import annotations

import grp
import os
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.backends.cpu import mapped, memories
from dmabuf_mp.backends.cpu.device import CpuDevice
from dmabuf_mp.backends.cpu.importer import map_offer
from dmabuf_mp.errors import DmabufMpError, DriverError, ResourceRefused, Unsupported, WrongBuffer
from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import dmabuf, udmabuf
from dmabuf_mp.patterns import Pattern, positions
from tests import dmabufs
from tests.forked import in_child, leave_fds, open_fds
from tests.linux.vgem import Vgem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.backends.cpu.mapped import MappedBuffer

pytestmark = pytest.mark.dmabuf
SIZE = 2 * 4096 + 7
ALLOCATED = 3 * 4096
NODES = {"udmabuf": Path("/dev/udmabuf"), "dma_heap": Path("/dev/dma_heap/system")}
EXPORTERS = {"udmabuf": "udmabuf", "dma_heap": "system"}
BUFINFO = Path("/sys/kernel/debug/dma_buf/bufinfo")


@pytest.fixture(params=dmabufs.MEMORIES)
def memory(request: pytest.FixtureRequest) -> str:
    dmabufs.need(*dmabufs.NODES)
    return str(request.param)


@pytest.fixture
def buffer(memory: str) -> Iterator[MappedBuffer]:
    allocation = memories.allocate(memory, SIZE, {})
    yield allocation
    allocation.close()


@pytest.fixture
def cpu() -> CpuDevice:
    return CpuDevice()


def offer_of(buffer: MappedBuffer) -> Offer:
    return Offer(SIZE, buffer.allocated_bytes, 0, buffer.memory, "dmabuf")


def imported(buffer: MappedBuffer) -> MappedBuffer:
    return map_offer(buffer.export("dmabuf"), offer_of(buffer))


def test_new_memory_is_poisoned_named_and_of_its_exporter(memory: str, buffer: MappedBuffer) -> None:
    assert buffer.allocated_bytes == ALLOCATED
    with buffer.export("dmabuf") as fd:
        assert dmabuf.identity(fd.fileno()) == dmabuf.Identity(
            os.fstat(fd.fileno()).st_ino, ALLOCATED, EXPORTERS[memory], f"dmabuf-mp:{memory}:{os.getpid()}"
        )
    with buffer.access(write=False, whole=True) as view:
        assert (view == 0xFF).all()
    del view
    with pytest.raises(Unsupported, match="named by a dmabuf fd, not by memfd"):
        buffer.export("memfd")


def test_the_kernel_lists_a_buffer_until_it_is_closed(memory: str) -> None:
    dmabufs.need(str(BUFINFO))
    name = f"dmabuf-mp:{memory}:{os.getpid()}"
    buffer = memories.allocate(memory, SIZE, {})
    assert name in BUFINFO.read_text()
    second = imported(buffer)
    buffer.close()
    assert name in BUFINFO.read_text()  # whoever has it mapped keeps it
    second.close()
    assert name not in BUFINFO.read_text()


def test_several_importers_see_one_memory(cpu: CpuDevice, buffer: MappedBuffer) -> None:
    others = [imported(buffer) for _ in range(3)]
    for t, writer in enumerate((buffer, *others)):
        cpu.fill(writer, Pattern("random", seed=7), t)
        for reader in (buffer, *others):
            assert cpu.check(reader, Pattern("random", seed=7), t) == CheckCounts(positions(SIZE), 0)
    cpu.write(buffer, 9, b"?")
    assert cpu.check(others[2], Pattern("random", seed=7), 3).first_offset_bytes == 8
    for other in others:
        other.close()


def test_another_process_reads_and_writes_it(cpu: CpuDevice, buffer: MappedBuffer) -> None:
    cpu.fill(buffer, Pattern(), 0)

    def consume() -> object:
        other = imported(buffer)
        counts = cpu.check(other, Pattern(), 0)
        cpu.fill(other, Pattern(), 1)
        return counts.matched

    assert in_child(consume) == str(positions(SIZE))
    assert cpu.check(buffer, Pattern(), 1).mismatched == 0


def test_a_copy_crosses_from_one_exporter_to_the_other(cpu: CpuDevice, buffer: MappedBuffer) -> None:
    for memory in ("memfd", *dmabufs.MEMORIES):
        target = memories.allocate(memory, SIZE, {})
        cpu.fill(buffer, Pattern(), 2)
        cpu.copy(buffer, target)
        assert cpu.check(target, Pattern(), 2).mismatched == 0
        target.close()


def test_the_mapping_is_good_after_its_producer_is_gone(cpu: CpuDevice, memory: str) -> None:
    producers = memories.allocate(memory, SIZE, {})
    cpu.fill(producers, Pattern(), 0)
    other = imported(producers)
    producers.close()
    assert cpu.check(other, Pattern(), 0) == CheckCounts(positions(SIZE), 0)
    other.close()


def test_what_is_not_the_buffer_that_was_announced_is_refused(memory: str, buffer: MappedBuffer) -> None:
    before = open_fds()
    offer = offer_of(buffer)
    wrong = {
        "expected a memfd, got /dmabuf:dmabuf-mp:": replace(offer, handle="memfd"),
        f"expected a buffer of {2 * ALLOCATED} bytes, got {ALLOCATED}": replace(
            offer, allocated_bytes=2 * ALLOCATED
        ),
        f"expected at least {ALLOCATED + 1} bytes, got {ALLOCATED}": replace(offer, size_bytes=ALLOCATED + 1),
        "expected an offset": replace(offer, offset_bytes=4),
    }
    if memory == "dma_heap":
        wrong["expected a dma-buf of udmabuf, got one of system"] = replace(offer, memory="udmabuf")
    for said, wrong_offer in wrong.items():
        with pytest.raises(WrongBuffer, match=said):
            map_offer(buffer.export("dmabuf"), wrong_offer)
    assert open_fds() == before


def test_a_range_with_an_offset_is_read_where_it_is(cpu: CpuDevice, buffer: MappedBuffer) -> None:
    cpu.write(buffer, 4112, b"here")
    other = map_offer(buffer.export("dmabuf"), replace(offer_of(buffer), offset_bytes=4112, size_bytes=16))
    assert cpu.read(other, 0, 4) == b"here"
    other.close()


@contextmanager
def limited(name: str, value: int) -> Iterator[None]:
    """Set a limit of udmabuf for a while."""
    file = Path(udmabuf.PARAMETERS) / name
    dmabufs.need(str(file))
    before = file.read_text()
    file.write_text(str(value))
    try:
        yield
    finally:
        file.write_text(before)


def test_beyond_size_limit_mb_the_error_names_it_and_how_to_raise_it() -> None:
    dmabufs.need(udmabuf.DEVICE)
    before = open_fds()
    with limited("size_limit_mb", 1):
        memories.allocate("udmabuf", 2**20, {}).close()
        with pytest.raises(Unsupported) as refused:
            memories.allocate("udmabuf", 2**20 + 1, {})
    assert str(refused.value) == (
        "1052672 bytes are over udmabuf's size_limit_mb (1):"
        " as root, echo 2 > /sys/module/udmabuf/parameters/size_limit_mb"
    )
    assert open_fds() == before
    with limited("size_limit_mb", 2):
        memories.allocate("udmabuf", 2**20 + 1, {}).close()


def test_list_limit_is_for_lists_only_and_ours_are_none() -> None:
    dmabufs.need(udmabuf.DEVICE)
    with limited("list_limit", 0):
        memories.allocate("udmabuf", 1, {}).close()


def test_more_than_memavailable_is_refused_by_us_and_nobody_is_killed(memory: str) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available_kb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    with pytest.raises(Unsupported, match="larger than MemAvailable, which leaves"):
        memories.allocate(memory, available_kb * 1024 + 2**28, {})


def test_a_heap_that_is_not_there_is_named_beside_those_that_are() -> None:
    dmabufs.need("/dev/dma_heap/system")
    for name in ("cma-of-nobody", "../null", ""):
        with pytest.raises(Unsupported, match=f"no heap '{name}': /dev/dma_heap has .*system"):
            memories.allocate("dma_heap", 1, {"heap": name})


def test_what_can_be_used_is_said() -> None:
    dmabufs.need(*dmabufs.NODES)
    said = memories.usable()
    assert said["udmabuf"] == "yes"
    assert "system" in said["dma_heaps"]  # type: ignore[operator]


def as_nobody(memory: str, *groups: int) -> str:
    """Return what a user who owns nothing and is in these groups gets: a refusal or `allocated`."""

    def attempt() -> str:
        os.setgroups(groups)
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            memories.allocate(memory, 1, {}).close()
        except Unsupported as error:
            return f"{error} {memories.usable()}"
        return "allocated"

    return in_child(attempt)


def test_a_user_without_permission_is_told_the_nodes_group_and_the_udev_rule(memory: str) -> None:
    said = as_nobody(memory)
    node = NODES[memory]
    assert said.startswith(f"no permission to open {node} (mode 0600, group root): be root, or")
    assert f'udev rule in /etc/udev/rules.d: KERNEL=="{node.name}"' in said


def test_a_node_that_belongs_to_a_group_is_for_its_members(memory: str) -> None:
    node, video = NODES[memory], grp.getgrnam("video").gr_gid
    before = node.stat()
    os.chown(node, 0, video)
    node.chmod(0o660)
    try:
        assert as_nobody(memory).startswith(
            f"no permission to open {node} (mode 0660, group video): join the group video"
        )
        assert as_nobody(memory, video) == "allocated"
    finally:
        os.chown(node, before.st_uid, before.st_gid)
        node.chmod(stat.S_IMODE(before.st_mode))


def test_every_step_that_finds_no_fd_is_refused_and_leaks_nothing(memory: str) -> None:
    def held() -> list[int]:
        """Return the open fds, found without opening one."""
        return [fd for fd in range(256) if os.path.lexists(f"/proc/self/fd/{fd}")]

    def attempt(free: int) -> str:
        leave_fds(free)
        before = held()
        try:
            buffer = memories.allocate(memory, SIZE, {})
        except ResourceRefused as error:
            return f"refused {'the limit of open files' in str(error)} {before == held()}"
        except DmabufMpError as error:
            return repr(error)
        buffer.close()
        return "allocated"

    said = [in_child(lambda free=free: attempt(free)) for free in range(6)]
    assert said[-1] == "allocated"
    refused = said[: said.index("allocated")]
    assert len(refused) >= 3
    assert set(refused) == {"refused True True"}


def test_every_access_is_bracketed_by_sync(
    cpu: CpuDevice, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does the work; the wrapper around the call only notes the directions."""
    real, seen = dmabuf.sync, []

    @contextmanager
    def noted(fd: int, *, read: bool, write: bool) -> Iterator[None]:
        with real(fd, read=read, write=write):
            seen.append("write" if write else "read")
            yield
        seen.append("end")

    monkeypatch.setattr(dmabuf, "sync", noted)
    buffer = memories.allocate(memory, SIZE, {})
    for access, directions in (
        (lambda: None, ["write", "end"]),  # the poison
        (lambda: cpu.fill(buffer, Pattern(), 0), ["write", "end"]),
        (lambda: cpu.check(buffer, Pattern(), 0), ["read", "end"]),
        (lambda: cpu.read(buffer, 0, 4), ["read", "end"]),
        (lambda: cpu.write(buffer, 0, b"abcd"), ["write", "end"]),
        (lambda: cpu.copy(buffer, buffer), ["read", "write", "end", "end"]),
    ):
        access()
        assert seen == directions
        seen.clear()
    buffer.close()


def test_a_fence_that_does_not_signal_ends_the_access_and_one_that_does_lets_it_go_on(
    cpu: CpuDevice, buffer: MappedBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu.fill(buffer, Pattern(), 0)
    consumer = imported(buffer)
    with Vgem.open() as card, card.fenced_buffer() as (other, signal):
        with dmabuf.export_sync_file(other, read=True) as fence, buffer.export("dmabuf") as fd:
            dmabuf.import_sync_file(fd.fileno(), fence.fileno(), write=True)
        with monkeypatch.context() as patch:
            patch.setattr(mapped, "FENCE_TIMEOUT_S", 0.02)
            with pytest.raises(DriverError, match=r"a device's fence has not signalled in 0.02 s"):
                cpu.check(consumer, Pattern(), 0)
        signal()
        assert cpu.check(consumer, Pattern(), 0) == CheckCounts(positions(SIZE), 0)
    consumer.close()


def test_a_check_waits_for_the_fence_and_reads_after_it(cpu: CpuDevice, buffer: MappedBuffer) -> None:
    """A child plays the device: it writes the data, and signals, only once the check is under way."""
    consumer = imported(buffer)
    with Vgem.open() as card, card.fenced_buffer() as (other, signal):
        with dmabuf.export_sync_file(other, read=True) as fence, buffer.export("dmabuf") as fd:
            dmabuf.import_sync_file(fd.fileno(), fence.fileno(), write=True)
        parent = os.getpid()
        if not (pid := os.fork()):
            code = 1
            try:
                while "poll" not in Path(f"/proc/{parent}/wchan").read_text():
                    os.sched_yield()
                with memoryview(consumer._map) as raw:
                    filled = memories.allocate("memfd", SIZE, {})
                    cpu.fill(filled, Pattern(), 0)
                    raw[:SIZE] = cpu.read(filled, 0, SIZE)
                signal()
                code = 0
            finally:
                os._exit(code)
        assert cpu.check(consumer, Pattern(), 0) == CheckCounts(positions(SIZE), 0)
        assert os.waitpid(pid, 0)[1] == 0
    consumer.close()


def test_a_buffer_of_another_exporter_is_mapped_like_ours(cpu: CpuDevice) -> None:
    """vgem stands for the GPU whose exporter allows the CPU to map what it made."""
    with Vgem.open() as card, card.fenced_buffer() as (other, signal):
        signal()
        offer = Offer(4096, dmabuf.size(other), 0, "device", "dmabuf")
        buffer = map_offer(Fd(os.dup(other)), offer)
        cpu.fill(buffer, Pattern(), 0)
        assert cpu.check(buffer, Pattern(), 0).mismatched == 0
        buffer.close()
        with pytest.raises(WrongBuffer, match="expected a dma-buf of udmabuf, got one of"):
            map_offer(Fd(os.dup(other)), replace(offer, memory="udmabuf"))
