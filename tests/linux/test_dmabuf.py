"""What the kernel's dma-bufs do, on udmabuf and on the system heap: what the package builds on."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.linux import dma_heap, dmabuf, memfd, udmabuf
from tests import dmabufs
from tests.forked import in_child
from tests.linux.vgem import Vgem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.fds import Fd

pytestmark = pytest.mark.dmabuf
PAGE = mmap.PAGESIZE
SIZE = 4 * PAGE


def make(memory: str, size_bytes: int = SIZE) -> Fd:
    """Return a new dma-buf of one of the two exporters."""
    if memory == "dma_heap":
        with dma_heap.open_heap("system") as heap:
            return dma_heap.allocate(heap.fileno(), size_bytes)
    with memfd.create("pages", size_bytes) as pages, udmabuf.open_device() as device:
        return udmabuf.create(device.fileno(), pages.fileno(), size_bytes)


@pytest.fixture(params=dmabufs.MEMORIES)
def memory(request: pytest.FixtureRequest) -> str:
    dmabufs.need(*dmabufs.NODES)
    return str(request.param)


@pytest.fixture
def fd(memory: str) -> Iterator[int]:
    with make(memory) as made:
        yield made.fileno()


@pytest.fixture
def device() -> Iterator[int]:
    dmabufs.need(udmabuf.DEVICE)
    with udmabuf.open_device() as opened:
        yield opened.fileno()


def refused(number: int) -> pytest.RaisesExc[OSError]:
    """Expect an OSError of this number."""
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def test_identity(memory: str, fd: int) -> None:
    dmabuf.set_name(fd, "some-name")
    found = dmabuf.identity(fd)
    assert found.size_bytes == SIZE
    assert found.exporter == {"udmabuf": "udmabuf", "dma_heap": "system"}[memory]
    assert found.name == "some-name"
    assert dmabuf.is_dmabuf(fd)
    assert dmabuf.target(fd) == "/dmabuf:some-name"


def test_identity_is_one_for_every_fd_of_a_buffer_and_another_for_the_next(memory: str, fd: int) -> None:
    left, right = socket.socketpair()
    with left, right, make(memory) as other:
        socket.send_fds(left, [b"x"], [fd])
        _, (sent,), _, _ = socket.recv_fds(right, 1, 1)
        second = os.dup(fd)
        assert dmabuf.identity(sent) == dmabuf.identity(second) == dmabuf.identity(fd)
        assert dmabuf.identity(other.fileno()).inode != dmabuf.identity(fd).inode
        os.close(sent)
        os.close(second)


def test_identity_without_proc_is_what_only_dmabufs_answer(fd: int, tmp_path: Path) -> None:
    inode = dmabuf.identity(fd).inode

    def look() -> object:
        os.chroot(tmp_path)
        return dmabuf.is_dmabuf(fd), dmabuf.identity(fd)

    expected = dmabuf.Identity(inode=inode, size_bytes=SIZE, exporter=None, name=None)
    assert in_child(look) == str((True, expected))


def test_size_by_lseek_and_nothing_else_to_seek(fd: int) -> None:
    assert dmabuf.size(fd) == os.fstat(fd).st_size == SIZE
    assert os.lseek(fd, 0, os.SEEK_SET) == 0
    for offset, whence in ((1, os.SEEK_SET), (0, os.SEEK_CUR), (-1, os.SEEK_END)):
        with refused(errno.EINVAL):
            os.lseek(fd, offset, whence)


def test_it_closes_on_exec(fd: int) -> None:
    assert not os.get_inheritable(fd)
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


@pytest.mark.parametrize(("length", "offset"), [(SIZE + 1, 0), (SIZE, PAGE), (PAGE, SIZE)])
def test_a_mapping_longer_than_the_buffer_is_refused(fd: int, length: int, offset: int) -> None:
    with refused(errno.EINVAL):
        mmap.mmap(fd, length, offset=offset)


@pytest.mark.parametrize(("length", "offset"), [(1, 0), (SIZE - 1, 0), (SIZE - PAGE, PAGE)])
def test_a_part_can_be_mapped(fd: int, length: int, offset: int) -> None:
    mmap.mmap(fd, length, offset=offset).close()


def test_sync_brackets_a_read_a_write_or_both_and_needs_a_direction(fd: int) -> None:
    for read, write in ((True, False), (False, True), (True, True)):
        with dmabuf.sync(fd, read=read, write=write):
            pass
    with refused(errno.EINVAL), dmabuf.sync(fd):
        pass


def test_sync_ends_when_the_access_fails(fd: int) -> None:
    with pytest.raises(KeyError), dmabuf.sync(fd, read=True):
        raise KeyError
    with dmabuf.sync(fd, read=True), dmabuf.sync(fd, read=True):
        pass


def test_names_of_up_to_31_bytes(fd: int) -> None:
    dmabuf.set_name(fd, "n" * 31)
    assert dmabuf.identity(fd).name == "n" * 31
    with refused(errno.EINVAL):
        dmabuf.set_name(fd, "n" * 32)
    assert dmabuf.identity(fd).name == "n" * 31
    dmabuf.set_name(fd, "")
    assert dmabuf.identity(fd).name == ""


def test_a_mapping_outlives_the_fd_and_the_process_that_made_it(memory: str) -> None:
    left, right = socket.socketpair()
    with left, right:

        def produce() -> None:
            with make(memory) as fd, mmap.mmap(fd.fileno(), SIZE) as mapped:
                mapped[:5] = b"alive"
                socket.send_fds(left, [b"x"], [fd.fileno()])

        in_child(produce)
        _, (fd,), _, _ = socket.recv_fds(right, 1, 1)
        with mmap.mmap(fd, SIZE) as mapped:
            os.close(fd)
            assert mapped[:5] == b"alive"


def test_idle_buffers_have_signalled_fences(fd: int) -> None:
    for read, write in ((True, False), (False, True), (True, True)):
        with dmabuf.export_sync_file(fd, read=read, write=write) as fence:
            assert dmabuf.wait_sync_file(fence.fileno(), 0)
            dmabuf.import_sync_file(fd, fence.fileno(), read=read, write=write)
    with refused(errno.EINVAL):
        dmabuf.export_sync_file(fd)
    assert dmabuf.wait_idle(fd, 0, write=True)


def test_a_pending_fence_is_waited_for_until_the_deadline_or_its_signal(fd: int) -> None:
    with Vgem.open() as card, card.fenced_buffer() as (other, signal):
        assert not dmabuf.wait_idle(other, 0.01, write=False)
        with dmabuf.export_sync_file(other, read=True) as fence:
            dmabuf.import_sync_file(fd, fence.fileno(), write=True)
        assert not dmabuf.wait_idle(fd, 0.01, write=False)
        assert not dmabuf.wait_idle(fd, 0.01, write=True)
        signal()
        assert dmabuf.wait_idle(fd, 10, write=True)


def test_a_device_that_only_reads_holds_up_writers_alone(fd: int) -> None:
    with Vgem.open() as card, card.fenced_buffer() as (other, signal):
        with dmabuf.export_sync_file(other, read=True) as fence:
            dmabuf.import_sync_file(fd, fence.fileno(), read=True)
        assert dmabuf.wait_idle(fd, 0, write=False)
        assert not dmabuf.wait_idle(fd, 0.01, write=True)
        signal()
        assert dmabuf.wait_idle(fd, 10, write=True)


SEAL_WRITE, SEAL_FUTURE_WRITE = 8, 16


@pytest.mark.parametrize(
    ("seals", "number"),
    [
        (memfd.F_SEAL_SHRINK, 0),
        (memfd.F_SEAL_SHRINK | memfd.F_SEAL_GROW | memfd.F_SEAL_SEAL, 0),
        (0, errno.EINVAL),
        (memfd.F_SEAL_GROW, errno.EINVAL),
        (memfd.F_SEAL_SHRINK | SEAL_WRITE, errno.EINVAL),
        (memfd.F_SEAL_SHRINK | SEAL_FUTURE_WRITE, errno.EINVAL),
    ],
)
def test_the_seals_that_udmabuf_demands(device: int, seals: int, number: int) -> None:
    with memfd.create("pages", SIZE, seals) as pages:
        if number:
            with refused(number):
                udmabuf.create(device, pages.fileno(), SIZE)
        else:
            udmabuf.create(device, pages.fileno(), SIZE).close()


@pytest.mark.parametrize(
    ("size_bytes", "offset_bytes"),
    [(0, 0), (PAGE + 1, 0), (PAGE, 1), (SIZE, PAGE), (2 * SIZE, 0), (PAGE, SIZE), (PAGE, 2**63)],
)
def test_the_ranges_that_udmabuf_refuses(device: int, size_bytes: int, offset_bytes: int) -> None:
    with memfd.create("pages", SIZE) as pages, refused(errno.EINVAL):
        udmabuf.create(device, pages.fileno(), size_bytes, offset_bytes)


def test_udmabuf_takes_a_part_of_a_memfd_and_only_of_a_memfd(device: int) -> None:
    with memfd.create("pages", SIZE) as pages:
        os.pwrite(pages.fileno(), b"second", PAGE)
        with udmabuf.create(device, pages.fileno(), PAGE, PAGE) as fd, mmap.mmap(fd.fileno(), PAGE) as mapped:
            assert mapped[:6] == b"second"
            with refused(errno.EBADFD):
                udmabuf.create(device, fd.fileno(), PAGE)
    with refused(errno.EBADFD):
        udmabuf.create(device, 9999, PAGE)


def test_memory_is_one_through_the_memfd_and_through_the_dmabuf(device: int) -> None:
    with (
        memfd.create("pages", SIZE) as pages,
        udmabuf.create(device, pages.fileno(), SIZE) as fd,
        mmap.mmap(fd.fileno(), SIZE) as through_dmabuf,
        mmap.mmap(pages.fileno(), SIZE) as through_memfd,
    ):
        with dmabuf.sync(fd.fileno(), read=True, write=True):
            through_memfd[5:8] = b"one"
            assert through_dmabuf[5:8] == b"one"
            through_dmabuf[9:12] = b"two"
        assert through_memfd[9:12] == os.pread(pages.fileno(), 3, 9) == b"two"


def test_under_a_live_udmabuf_the_memfd_cannot_shrink_nor_be_sealed_against_writing(device: int) -> None:
    with (
        memfd.create("pages", SIZE, memfd.F_SEAL_SHRINK) as pages,
        udmabuf.create(device, pages.fileno(), SIZE) as fd,
    ):
        with refused(errno.EPERM):
            os.ftruncate(pages.fileno(), PAGE)
        with refused(errno.EBUSY):
            fcntl.fcntl(pages.fileno(), memfd.F_ADD_SEALS, SEAL_WRITE)
        os.ftruncate(pages.fileno(), 2 * SIZE)
        assert dmabuf.size(fd.fileno()) == SIZE


def test_the_limits_are_there_to_be_read() -> None:
    dmabufs.need(udmabuf.DEVICE)
    assert (udmabuf.limit("size_limit_mb") or 0) >= 1
    assert (udmabuf.limit("list_limit") or 0) >= 1
    assert udmabuf.limit("no_such_limit") is None


@pytest.mark.parametrize(("asked", "size_bytes"), [(1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)])
def test_the_heap_rounds_up_to_pages_of_zeros(asked: int, size_bytes: int) -> None:
    dmabufs.need("/dev/dma_heap/system")
    assert "system" in dma_heap.heaps()
    with dma_heap.open_heap("system") as heap:
        with dma_heap.allocate(heap.fileno(), asked) as fd, mmap.mmap(fd.fileno(), size_bytes) as mapped:
            assert dmabuf.size(fd.fileno()) == size_bytes
            assert not any(mapped[:])
        with refused(errno.EINVAL):
            dma_heap.allocate(heap.fileno(), 0)


def test_the_kernels_list_shows_a_buffer_by_name_while_it_lives(fd: int) -> None:
    bufinfo = Path("/sys/kernel/debug/dma_buf/bufinfo")
    dmabufs.need(str(bufinfo))
    dmabuf.set_name(fd, "dmabuf-mp:listed")
    inode = f"{dmabuf.identity(fd).inode:08}"
    assert any("dmabuf-mp:listed" in line and inode in line for line in bufinfo.read_text().splitlines())


def test_it_is_no_file_to_read_write_or_cut(fd: int) -> None:
    for use in (
        lambda: os.read(fd, 16),
        lambda: os.write(fd, b"x"),
        lambda: os.ftruncate(fd, 0),
        lambda: os.fsync(fd),
    ):
        with refused(errno.EINVAL):
            use()
    with refused(errno.ESPIPE):
        os.pread(fd, 16, 0)
    with refused(errno.ENXIO):
        os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
