"""Sealed memfds, and what tells them from other fds."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile

import pytest

from dmabuf_mp.linux import dmabuf, memfd
from tests.forked import in_child, open_fds


def test_a_new_memfd_can_neither_shrink_nor_grow_nor_be_sealed_further() -> None:
    with memfd.create("test", 8192) as fd:
        assert os.fstat(fd.fileno()).st_size == 8192
        assert not os.get_inheritable(fd.fileno())
        for size in (4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(fd.fileno(), size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd.fileno(), memfd.F_ADD_SEALS, 8)  # F_SEAL_WRITE
        assert memfd.get_seals(fd.fileno()) == memfd.F_SEAL_SHRINK | memfd.F_SEAL_GROW | memfd.F_SEAL_SEAL


def test_sixty_four_tebibytes_are_a_matter_of_numbers() -> None:
    with memfd.create("test", 2**46) as fd:
        assert os.fstat(fd.fileno()).st_size == 2**46


def test_a_size_that_is_refused_leaks_nothing() -> None:
    before = open_fds()
    with pytest.raises(OSError) as refused:
        memfd.create("test", -1)
    assert refused.value.errno == errno.EINVAL
    assert open_fds() == before


def test_only_a_memfd_has_seals_that_matter() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as shared, tempfile.TemporaryFile() as file:
        assert memfd.get_seals(shared.fileno()) in (None, memfd.F_SEAL_SEAL)
        assert memfd.get_seals(file.fileno()) in (None, memfd.F_SEAL_SEAL)
    receiver, sender = os.pipe()
    assert memfd.get_seals(receiver) is None
    os.close(receiver)
    os.close(sender)


def test_a_memfd_is_no_dmabuf_with_or_without_proc() -> None:
    with memfd.create("/dmabuf:", 4096) as fd:
        number = fd.fileno()
        assert not dmabuf.is_dmabuf(number)
        assert dmabuf.target(number) == "/memfd:/dmabuf: (deleted)"
        with tempfile.TemporaryDirectory() as empty:

            def without_proc() -> object:
                os.chroot(empty)
                return dmabuf.target(number), dmabuf.is_dmabuf(number), memfd.get_seals(number)

            if os.geteuid() == 0:
                assert in_child(without_proc) == "(None, False, 7)"


def test_a_fence_that_never_signals_ends_at_the_deadline() -> None:
    """The sync file's double is a pipe: readable once something was written."""
    receiver, sender = os.pipe()
    try:
        assert not dmabuf.wait_sync_file(receiver, 0.01)
        os.write(sender, b"x")
        assert dmabuf.wait_sync_file(receiver, 10)
    finally:
        os.close(receiver)
        os.close(sender)


def test_what_cannot_be_asked_for_a_fence_says_enotty() -> None:
    with memfd.create("test", 4096) as fd:
        assert dmabuf.wait_idle(fd.fileno(), 0, write=False)  # no sync files: sync's own wait is all
        with pytest.raises(OSError) as refused, dmabuf.sync(fd.fileno(), read=True):
            pass
        assert refused.value.errno == errno.ENOTTY
