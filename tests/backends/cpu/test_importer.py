"""The importer looks before it maps: whatever is not what its offer says is refused, and closed."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.base import Offer
from dmabuf_mp.backends.cpu.importer import map_offer
from dmabuf_mp.errors import ResourceRefused, Unsupported, WrongBuffer
from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import memfd
from tests.forked import in_child, leave_fds, open_fds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = 16384
OFFER = Offer(size_bytes=10000, allocated_bytes=SIZE, offset_bytes=0, memory="memfd", handle="memfd")


@pytest.fixture(autouse=True)
def closes_what_it_takes() -> Iterator[None]:
    """Every fd that is handed to the importer belongs to it, whatever comes of it."""
    before = open_fds()
    yield
    assert open_fds() == before


def sealed(size_bytes: int = SIZE, seals: int = memfd.F_SEAL_SHRINK) -> Fd:
    return memfd.create("test", size_bytes, seals)


def test_a_sealed_memfd_is_mapped_and_shared() -> None:
    fd = sealed()
    with fd.duplicate() as mine:
        buffer = map_offer(fd, OFFER)
        with buffer.access(write=True) as view:
            view[:3] = list(b"abc")
        assert os.pread(mine.fileno(), 3, 0) == b"abc"
    assert (buffer.size_bytes, buffer.allocated_bytes) == (10000, SIZE)
    del view
    buffer.close()


def test_the_range_begins_at_its_offset() -> None:
    fd = sealed()
    os.pwrite(fd.fileno(), bytes(range(256)), 4096 + 16)
    buffer = map_offer(fd, replace(OFFER, offset_bytes=4112, size_bytes=256))
    with buffer.access(write=False) as view:
        assert view.tobytes() == bytes(range(256))
    del view
    buffer.close()


def test_an_allocation_that_is_no_whole_page_is_rounded_as_its_producer_does() -> None:
    map_offer(sealed(), replace(OFFER, allocated_bytes=SIZE - 100)).close()


def socket_fd() -> int:
    return socket.socket(socket.AF_UNIX).detach()


def file_fd() -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


def shared_file_fd() -> int:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


@pytest.mark.parametrize(
    "make", [socket_fd, file_fd, shared_file_fd, lambda: os.open("/dev/zero", os.O_RDWR)]
)
@pytest.mark.parametrize(
    ("handle", "expected"), [("memfd", "expected a memfd"), ("dmabuf", "expected a dma-buf")]
)
def test_another_kind_of_fd_is_the_wrong_buffer(make: Callable[[], int], handle: str, expected: str) -> None:
    fd = Fd(make())
    with pytest.raises(WrongBuffer, match=expected):
        map_offer(fd, replace(OFFER, handle=handle))
    assert fd.closed


@pytest.mark.parametrize("memory", ["udmabuf", "dma_heap", "device", "pinned"])
def test_a_memfd_is_never_taken_for_a_dmabuf(memory: str) -> None:
    with pytest.raises(WrongBuffer, match="expected a dma-buf, got /memfd:test"):
        map_offer(sealed(), replace(OFFER, memory=memory, handle="dmabuf"))


@pytest.mark.parametrize("seals", [0, memfd.F_SEAL_GROW])
def test_a_memfd_that_could_shrink_is_refused(seals: int) -> None:
    with pytest.raises(WrongBuffer, match="expected a memfd sealed against shrinking, got /memfd:test"):
        map_offer(sealed(seals=seals), OFFER)


@pytest.mark.parametrize("size_bytes", [4096, SIZE - 4096, SIZE + 4096, 0])
def test_another_size_than_announced_is_the_wrong_buffer(size_bytes: int) -> None:
    with pytest.raises(WrongBuffer, match=f"expected a buffer of {SIZE} bytes, got {size_bytes}"):
        map_offer(sealed(size_bytes), OFFER)


@pytest.mark.parametrize(
    ("offset_bytes", "size_bytes", "expected"),
    [
        (16, SIZE, f"expected at least {SIZE + 16} bytes, got {SIZE}"),
        (0, SIZE + 1, f"expected at least {SIZE + 1} bytes, got {SIZE}"),
        (2**62, 16, f"expected at least {2**62 + 16} bytes"),
        (8, 16, "expected an offset that is a multiple of 16"),
        (-16, 16, "expected an offset"),
        (0, 0, "and a size from 1"),
        (32, -16, "and a size from 1"),
    ],
)
def test_a_range_beyond_the_buffer_or_out_of_line_is_refused(
    offset_bytes: int, size_bytes: int, expected: str
) -> None:
    with pytest.raises(WrongBuffer, match=expected):
        map_offer(sealed(), replace(OFFER, offset_bytes=offset_bytes, size_bytes=size_bytes))


def test_a_handle_that_only_a_gpu_can_read_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="cannot map a posix_fd"):
        map_offer(sealed(), replace(OFFER, handle="posix_fd"))


def test_an_fd_for_reading_only_is_mapped_for_reading_only() -> None:
    fd = sealed()
    with fd:
        read_only = Fd(os.open(f"/proc/self/fd/{fd.fileno()}", os.O_RDONLY))
    buffer = map_offer(read_only, OFFER)
    with buffer.access(write=False) as view:
        assert not view.any()
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    del view
    buffer.close()


def test_fd_zero_is_an_fd_like_any_other() -> None:
    def imports_zero() -> object:
        os.dup2(sealed().take(), 0)
        os.pwrite(0, b"zero", 0)
        buffer = map_offer(Fd(0), OFFER)
        with buffer.access(write=False) as view:
            return bytes(view[:4])

    assert in_child(imports_zero) == "b'zero'"


def test_no_fd_left_for_the_mapping_is_a_refused_resource_and_closes_what_came() -> None:
    def attempt() -> str:
        fd = sealed()
        leave_fds(0)
        try:
            map_offer(fd, OFFER)
        except ResourceRefused as error:
            return f"{error}; {fd.closed}"
        return "mapped"

    said = in_child(attempt)
    assert "the limit of open files" in said
    assert said.endswith("; True")


def test_a_seal_that_a_peer_adds_later_does_not_shrink_it() -> None:
    fd = sealed(seals=memfd.F_SEAL_SHRINK)
    with fd.duplicate() as peer:
        buffer = map_offer(fd, OFFER)
        with pytest.raises(PermissionError):
            os.ftruncate(peer.fileno(), 0)
        os.ftruncate(peer.fileno(), 2 * SIZE)  # growing harms nobody
        fcntl.fcntl(peer.fileno(), memfd.F_ADD_SEALS, memfd.F_SEAL_GROW)
        with buffer.access(write=False) as view:
            assert not view.any()
        del view
        buffer.close()
