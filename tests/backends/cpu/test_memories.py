"""Allocation on this machine's own memory: what is given, what is refused and how, and that nothing leaks."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.cpu import memories
from dmabuf_mp.errors import DmabufMpError, ResourceRefused, Unsupported
from dmabuf_mp.linux import dmabuf, memfd
from dmabuf_mp.patterns import poison
from tests.dmabufs import need
from tests.forked import in_child, leave_fds, open_fds

if TYPE_CHECKING:
    from dmabuf_mp.backends.cpu.mapped import MappedBuffer

PAGE = mmap.PAGESIZE


def allocate(size_bytes: int = 100) -> MappedBuffer:
    return memories.allocate("memfd", size_bytes, {})


def refusal_in_child(prepare: object, size_bytes: int = 100) -> str:
    """Return the refusal of an allocation in a child that is prepared so, and what it leaked."""

    def attempt() -> str:
        prepare()  # type: ignore[operator]
        try:
            allocate(size_bytes)
        except DmabufMpError as error:
            return f"{type(error).__name__}: {error}"
        return "allocated"

    return in_child(attempt)


@pytest.mark.parametrize(
    ("size", "allocated"), [(1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE), (100_000, 25 * 4096)]
)
def test_new_memory_is_whole_pages_of_poison(size: int, allocated: int) -> None:
    buffer = allocate(size)
    assert (buffer.size_bytes, buffer.allocated_bytes, buffer.offset_bytes) == (size, allocated, 0)
    with buffer.access(write=False) as view:
        assert view.size == size
    with buffer.access(write=False, whole=True) as view:
        assert view.size == allocated and (view == poison(size)).all()
    del view
    buffer.close()


def test_the_memfd_is_sealed_named_and_of_the_allocated_size() -> None:
    buffer = allocate()
    with buffer.export("memfd") as fd:
        assert os.fstat(fd.fileno()).st_size == buffer.allocated_bytes
        assert (memfd.get_seals(fd.fileno()) or 0) & memfd.F_SEAL_SHRINK
        assert dmabuf.target(fd.fileno()) == f"/memfd:dmabuf-mp:memfd:{os.getpid()} (deleted)"
        assert not os.get_inheritable(fd.fileno())
    buffer.close()


def test_names_fit_into_what_the_kernel_allows() -> None:
    longest = "dmabuf-mp:dma_heap:4194304"  # the highest pid there is
    assert len(longest) < dmabuf.DMA_BUF_NAME_LEN


def test_closing_gives_everything_back_and_twice_does_no_harm() -> None:
    before = open_fds()
    buffer = allocate()
    assert len(open_fds()) > len(before)
    buffer.close()
    buffer.close()
    assert open_fds() == before
    assert "closed" in repr(buffer)
    for use in (
        lambda: buffer.address,
        lambda: buffer.export("memfd"),
        lambda: buffer.access(write=False).__enter__(),
    ):
        with pytest.raises(ValueError, match="close"):
            use()


def test_a_view_that_outlives_the_close_keeps_its_memory_until_it_goes() -> None:
    before = open_fds()
    buffer = allocate()
    with buffer.access(write=True) as view:
        view[:] = 7
    buffer.close()
    assert (view == 7).all()
    del view, buffer
    assert open_fds() == before


@pytest.mark.parametrize(
    ("memory", "node"),
    [
        ("memfd", "/dev/null"),
        pytest.param("udmabuf", "/dev/udmabuf", marks=pytest.mark.dmabuf),
        pytest.param("dma_heap", "/dev/dma_heap/system", marks=pytest.mark.dmabuf),
    ],
)
@pytest.mark.parametrize("size_bytes", [2**46, 2**63 - 1])
def test_more_than_there_is_is_refused_before_anything_is_allocated(
    memory: str, node: str, size_bytes: int
) -> None:
    need(node)
    before = open_fds()
    with pytest.raises(Unsupported, match=r"larger than .*, which leaves [0-9]+ bytes"):
        memories.allocate(memory, size_bytes, {})
    assert open_fds() == before


def test_a_handle_that_the_memory_has_not_is_unsupported() -> None:
    buffer = allocate()
    with pytest.raises(Unsupported, match="memfd memory is named by a memfd fd, not by dmabuf"):
        buffer.export("dmabuf")
    buffer.close()


def test_an_unknown_memory_is_unsupported_and_names_those_there_are() -> None:
    with pytest.raises(Unsupported, match="knows no 'pinned', but udmabuf, dma_heap, memfd"):
        memories.allocate("pinned", 100, {})


@pytest.mark.skipif(Path("/dev/udmabuf").exists(), reason="this kernel has udmabuf")
def test_a_kernel_without_udmabuf_is_named_with_the_option_that_would_help() -> None:
    with pytest.raises(Unsupported, match="no /dev/udmabuf: it needs a kernel with CONFIG_UDMABUF"):
        memories.allocate("udmabuf", 100, {})
    assert "CONFIG_UDMABUF" in str(memories.usable()["udmabuf"])


@pytest.mark.skipif(Path("/dev/dma_heap").exists(), reason="this kernel has heaps")
def test_a_kernel_without_heaps_is_named_with_the_option_that_would_help() -> None:
    with pytest.raises(Unsupported, match="no /dev/dma_heap/cma: it needs a kernel with CONFIG_DMABUF_HEAPS"):
        memories.allocate("dma_heap", 100, {"heap": "cma"})
    assert "CONFIG_DMABUF_HEAPS" in str(memories.usable()["dma_heaps"])


def test_every_step_that_finds_no_fd_is_refused_and_leaks_nothing() -> None:
    results = [in_child(lambda free=free: attempt_with(free)) for free in range(4)]
    assert results[0] == results[1] == "ResourceRefused: True, leaked 0"
    assert results[2] == "allocated"


def attempt_with(free: int) -> str:
    """Allocate where only so many fds are left; say how it went and how many fewer are left after."""
    leave_fds(free)
    try:
        allocate()
    except ResourceRefused as error:
        return f"ResourceRefused: {'the limit of open files' in str(error)}, leaked {free - count_free()}"
    return "allocated"


def count_free() -> int:
    """Return how many fds can still be opened."""
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return len(taken)


def test_the_limit_of_address_space_is_a_refused_resource() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))

    said = refusal_in_child(limit, 2**26)
    assert said.startswith("ResourceRefused: mmap of memfd memory, 67108864 bytes: no memory")
    assert "address space (1048576)" in said


def test_the_limit_of_a_files_size_is_a_refused_resource() -> None:
    said = refusal_in_child(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, PAGE)), 2 * PAGE)
    assert said == f"ResourceRefused: memfd_create: larger than the limit of a file's size ({PAGE})"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter names a system call by its number")
def test_a_seccomp_filter_without_memfd_create_is_unsupported(number: int) -> None:
    def forbid() -> None:
        # Load the system call's number; 319 is memfd_create: answer it with the error, allow the rest.
        code = struct.pack(
            "HBBI" * 4,
            0x20,
            0,
            0,
            0,
            0x15,
            0,
            1,
            319,
            0x06,
            0,
            0,
            0x00050000 | number,
            0x06,
            0,
            0,
            0x7FFF0000,
        )
        program = ctypes.create_string_buffer(code)
        filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(program)))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, 2, filter_, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER

    said = refusal_in_child(forbid)
    assert said.startswith("Unsupported: memfd_create: ")
    assert os.strerror(number) in said


def test_without_proc_it_works_all_the_same(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("chroot needs root")
    assert refusal_in_child(lambda: os.chroot(tmp_path)) == "allocated"
    assert "larger than this machine's memory" in refusal_in_child(lambda: os.chroot(tmp_path), 2**46)
