"""Rules of how the double's descriptors look: as a dma-buf, and as what CUDA's shareable handles are."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakecuda import cu
from tests.fakecuda.cu import Peer, call, receive_fd, send_fd
from tests.fakecuda.rules_sharing import SIZE, created, export_device, export_opaque, export_pinned
from tests.fakecuda.runner import rule

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

SYNC, SET_NAME, EXPORT_SYNC_FILE, IMPORT_SYNC_FILE = 0x40086200, 0x40086201, 0xC0086202, 0x40086203
SYNC_READ, SYNC_END = 1, 4


def error(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the errno that a call fails with; 0 where it does not."""
    try:
        function(*arguments)
    except OSError as failed:
        return failed.errno or -1
    return 0


def link(path: str) -> str:
    """Return where a link leads."""
    return str(Path(path).readlink())


def set_name(fd: int, name: bytes) -> None:
    """Name a dma-buf."""
    fcntl.ioctl(fd, SET_NAME, name + b"\0")


def describe(fd: int) -> dict[str, str]:
    """Return the fields of an fdinfo."""
    return dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())


@rule()
def a_dmabuf_reads_as_one() -> None:
    cu.start()
    fd = export_pinned()
    assert link(f"/proc/self/fd/{fd}") == "/dmabuf:"
    assert link(f"/proc/{os.getpid()}/fd/{fd}") == "/dmabuf:"
    assert link(f"/dev/fd/{fd}") == "/dmabuf:"
    folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    assert os.readlink(str(fd), dir_fd=folder) == "/dmabuf:"
    info = describe(fd)
    assert info["size"] == str(SIZE)
    assert info["exp_name"] == "fake_nv_dmabuf"
    assert "name" not in info
    set_name(fd, b"n" * 31)
    assert link(f"/proc/self/fd/{fd}") == "/dmabuf:" + "n" * 31
    assert describe(fd)["name"] == "n" * 31
    assert error(set_name, fd, b"n" * 32) == errno.EINVAL


@rule()
def a_dmabuf_has_a_size_and_no_position() -> None:
    cu.start()
    fd = export_pinned()
    assert os.lseek(fd, 0, os.SEEK_END) == SIZE
    assert os.lseek(fd, 0, os.SEEK_SET) == 0
    assert error(os.lseek, fd, 0, os.SEEK_CUR) == errno.EINVAL
    assert error(os.lseek, fd, 8, os.SEEK_SET) == errno.EINVAL
    status = os.fstat(fd)
    assert status.st_size == SIZE
    assert not stat.S_ISREG(status.st_mode)
    assert str(status.st_ino) == describe(fd)["ino"]


@rule()
def a_dmabuf_is_not_read_written_cut_or_sealed() -> None:
    cu.start()
    fd = export_pinned()
    assert error(os.read, fd, 8) == errno.EINVAL
    assert error(os.write, fd, b"x") == errno.EINVAL
    assert error(os.ftruncate, fd, 0) == errno.EINVAL
    assert error(fcntl.fcntl, fd, fcntl.F_GET_SEALS) == errno.EINVAL


@rule()
def a_dmabuf_answers_its_ioctls() -> None:
    cu.start()
    fd = export_pinned()
    for flags, expected in ((SYNC_READ, 0), (SYNC_READ | SYNC_END, 0), (0, errno.EINVAL), (8, errno.EINVAL)):
        assert error(fcntl.ioctl, fd, SYNC, struct.pack("Q", flags)) == expected
    assert error(fcntl.ioctl, fd, 0x5401) == errno.ENOTTY
    fence = bytearray(struct.pack("Ii", SYNC_READ, -1))
    fcntl.ioctl(fd, EXPORT_SYNC_FILE, fence)
    fence_fd = struct.unpack("Ii", fence)[1]
    assert select.select([fence_fd], [], [], 0)[0] == [fence_fd]
    fcntl.ioctl(fd, IMPORT_SYNC_FILE, struct.pack("Ii", SYNC_READ, fence_fd))


@rule()
def exports_of_one_memory_are_told_apart() -> None:
    cu.start()
    base, handle = created(cu.DEVICE)
    first, second = cu.export(base, SIZE), cu.export(base, SIZE)
    posix = int(call("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 0))
    assert os.fstat(first).st_ino != os.fstat(second).st_ino
    set_name(first, b"first")
    assert link(f"/proc/self/fd/{second}") == "/dmabuf:"
    assert link(f"/proc/self/fd/{posix}") == "/dev/nvidiactl"


@rule()
def a_dmabuf_stays_one_across_dup_and_sockets() -> None:
    def peer(other: socket.socket) -> None:
        fd = receive_fd(other)
        assert link(f"/proc/self/fd/{fd}") == "/dmabuf:mine"
        assert os.fstat(fd).st_ino == int(other.recv(64))

    child = Peer(peer)
    cu.start()
    fd = export_pinned()
    set_name(fd, b"mine")
    copy = os.dup(fd)
    assert os.fstat(copy).st_ino == os.fstat(fd).st_ino
    send_fd(child.socket, copy)
    assert link(f"/proc/{os.getpid()}/fd/{copy}") == "/dmabuf:mine"
    child.socket.send(str(os.fstat(fd).st_ino).encode())
    assert child.wait() == 0


def mapped(fd: int, length: int = SIZE, flags: int = mmap.MAP_SHARED) -> bytes:
    """Map a descriptor and return its first word."""
    with mmap.mmap(fd, length, flags) as memory:
        return memory[:4]


@rule()
def pinned_memory_is_mapped_and_device_memory_is_not() -> None:
    cu.start()
    pinned = export_pinned()
    assert mapped(pinned) == b"\0\x10\0\0"
    assert error(mapped, pinned, SIZE + 1) == errno.EINVAL
    assert error(mapped, pinned, SIZE, mmap.MAP_PRIVATE) == errno.EINVAL
    assert error(mapped, export_device()) == 524
    assert error(mapped, export_opaque(cu.DEVICE)) == errno.EINVAL


@rule(MMAP_PINNED=524, MMAP_DEVICE="ok")
def mapping_by_switch() -> None:
    cu.start()
    assert error(mapped, export_pinned()) == 524
    assert mapped(export_device()) == b"\0\x10\0\0"


@rule(PRESET="h200")
def h200_maps_no_dmabuf() -> None:
    cu.start()
    assert error(mapped, export_device()) == 524


@rule()
def a_shareable_handle_is_an_open_control_device() -> None:
    cu.start()
    fd = export_opaque(cu.DEVICE)
    assert link(f"/proc/self/fd/{fd}") == "/dev/nvidiactl"
    assert os.lseek(fd, 0, os.SEEK_END) == 0
    assert stat.S_ISCHR(os.fstat(fd).st_mode)
    assert error(fcntl.ioctl, fd, SYNC, struct.pack("Q", SYNC_READ)) == errno.EINVAL
    assert "exp_name" not in describe(fd)


@rule()
def the_drivers_own_descriptors_name_no_memfd() -> None:
    cu.start()
    cu.pinned(SIZE)
    links = {link(f"/proc/self/fd/{fd}") for fd in range(32) if os.path.lexists(f"/proc/self/fd/{fd}")}
    assert "/dev/nvidiactl" in links
    assert not any("memfd" in link for link in links)


@rule()
def other_descriptors_are_left_alone() -> None:
    fd = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.write(fd, b"12345678")
    assert link(f"/proc/self/fd/{fd}").startswith("/memfd:plain")
    assert os.lseek(fd, 2, os.SEEK_SET) == 2
    assert os.read(fd, 2) == b"34"
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == 0
    assert error(fcntl.ioctl, fd, SYNC, struct.pack("Q", SYNC_READ)) == errno.ENOTTY
    assert "exp_name" not in describe(fd)
    assert mapped(fd, 8) == b"1234"
    assert error(os.open, "/proc/self/fdinfo/9999", os.O_RDONLY) == errno.ENOENT
