"""The ledger: what a process holds now and did not hold before."""

from __future__ import annotations

import mmap
import os
import threading

import pytest

from dmabuf_mp import ledger
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.backends.cpu.device import CpuDevice
from dmabuf_mp.ledger import Ledger, growth, moved
from dmabuf_mp.linux import memfd


def test_what_is_opened_and_kept_is_named_and_what_is_closed_is_not() -> None:
    before = ledger.take()
    kept, closed = os.memfd_create("kept"), os.memfd_create("closed")
    os.close(closed)
    after = ledger.take()
    os.close(kept)
    assert growth(before, after) == f"fd {kept} (/memfd:kept (deleted))"
    assert growth(before, ledger.take()) == ""


def test_another_file_under_an_old_number_is_growth() -> None:
    assert growth(Ledger({5: "/a"}), Ledger({5: "/b"})) == "fd 5 (/b)"


def test_children_are_named_by_their_command() -> None:
    pid = os.getpid()
    text = growth(Ledger(children=frozenset({1})), Ledger(children=frozenset({1, pid})))
    assert text.startswith(f"process {pid} (")
    assert "python" in text


def test_a_child_is_seen_until_it_is_reaped() -> None:
    before = ledger.take()
    if (pid := os.fork()) == 0:
        os._exit(0)
    assert growth(before, ledger.take()).startswith(f"process {pid} (")
    os.waitpid(pid, 0)
    assert growth(before, ledger.take()) == ""


def test_threads_are_named_until_they_are_joined() -> None:
    before = ledger.take()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten", daemon=True)
    thread.start()
    assert growth(before, ledger.take()) == "thread 'forgotten'"
    end.set()
    thread.join()
    assert growth(before, ledger.take()) == ""


def test_our_mappings_are_named_by_what_they_map_and_others_are_not_looked_at() -> None:
    def mapped() -> Ledger:
        return Ledger(mapped=ledger.take().mapped)  # Python's mmap holds an fd besides

    before = mapped()
    with memfd.create("dmabuf-mp:mapped", mmap.PAGESIZE) as fd, memfd.create("other", mmap.PAGESIZE) as other:
        inode = os.fstat(fd.fileno()).st_ino
        mapping, another = (mmap.mmap(one.fileno(), mmap.PAGESIZE) for one in (fd, other))
    assert (
        growth(before, mapped())
        == f"a mapping of 4096 bytes (/memfd:dmabuf-mp:mapped (deleted), inode {inode})"
    )
    assert ledger.take(mapped={"known": 1}).mapped == {"known": 1}
    mapping.close()
    another.close()
    assert growth(before, mapped()) == ""


def test_only_what_a_mapping_has_grown_by_is_told() -> None:
    before, after = Ledger(mapped={"a": 4096, "b": 4096}), Ledger(mapped={"a": 12288, "c": 4096})
    assert growth(before, after) == "a mapping of 8192 bytes (a), a mapping of 4096 bytes (c)"


def test_what_a_driver_maps_and_what_a_device_has_free_is_noted_and_not_judged() -> None:
    before = Ledger(mapped={"/dev/nvidia0, inode 7": 4096, "a": 1}, free={"cuda:0": 9000, "cuda:1": 5})
    after = Ledger(
        mapped={"/dev/nvidia0, inode 7": 8192, "/dev/nvidiactl, inode 8": 4096, "a": 2},
        free={"cuda:0": 1000, "cuda:1": 5, "cuda:2": 7},
    )
    assert growth(before, after) == "a mapping of 1 bytes (a)"
    assert moved(before, after) == {"/dev/nvidia* mapped": 8192, "cuda:0 free": -8000}
    assert moved(after, before) == {"/dev/nvidia* mapped": -8192, "cuda:0 free": 8000}
    assert moved(before, before) == {}


def test_the_cpu_has_no_memory_of_its_own() -> None:
    assert ledger.take([CpuDevice()]).free == {}


def test_a_devices_buffers_are_counted_until_they_are_closed() -> None:
    device = CpuDevice()

    one, two, large = (device.allocate("memfd", size, {}) for size in (100, 100, 5000))
    offer = Offer(100, one.allocated_bytes, 0, "memfd", "memfd")
    imported = device.import_fd("mmap", one.export("memfd"), offer)
    ours = Ledger(buffers=ledger.take([device]).buffers)
    assert growth(Ledger(), ours) == (
        "1 × import of memfd memory, 100 bytes, not closed, "
        "2 × memfd memory, 100 bytes, not closed, 1 × memfd memory, 5000 bytes, not closed"
    )
    left = []
    for buffer in (two, large, imported, one):
        buffer.close()
        left.append(dict(device.held()))
    memory, imports = "memfd memory, 100 bytes", "import of memfd memory, 100 bytes"
    assert left == [
        {memory: 1, imports: 1, "memfd memory, 5000 bytes": 1},
        {memory: 1, imports: 1},
        {memory: 1},
        {},
    ]
    with pytest.raises(ValueError, match="after its close"):
        device.read(one, 0, 1)


def test_what_is_forgotten_is_not_closed() -> None:
    device = CpuDevice()
    device.allocate("memfd", 100, {})
    assert device.held() == {"memfd memory, 100 bytes": 1}
    for _, buffer in tuple(device._given._buffers):
        buffer.close()
