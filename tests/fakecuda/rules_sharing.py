"""Rules of exporting and importing between processes: the sample's exchange, and what switches do to it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakecuda import cu
from tests.fakecuda.cu import GRANULARITY, Peer, call, code, receive_fd, send_fd
from tests.fakecuda.runner import rule

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

SIZE = 16384
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 2, 101, 400, 700
NOT_SUPPORTED, UNKNOWN = 801, 999
GOOD, ZEROS = [4096, 0, 2**64 - 1], [0, 4096, 0]


def producer(device: int, export: Callable[[], int]) -> Peer:
    """Fork a process that exports on a device once it is told to, and stays until it is told again."""

    def produce(peer: socket.socket) -> None:
        assert peer.recv(1) == b"G"
        cu.start(device)
        fd = export()
        send_fd(peer, fd)
        os.close(fd)
        assert peer.recv(1) == b"A"

    return Peer(produce)


def export_pinned() -> int:
    """Fill pinned memory as the sample does, and export it."""
    pointer = cu.pinned(SIZE)
    cu.fill(pointer, SIZE)
    return cu.export(pointer, SIZE)


def created(kind: int) -> tuple[int, int]:
    """Fill memory of cuMemCreate and return its pointer and handle."""
    handle = call("cuMemCreate", GRANULARITY, cu.properties(kind), 0)
    base = cu.mapping(handle)
    call("cuMemSetAccess", base, GRANULARITY, cu.access(int(call("cuCtxGetDevice"))), 1)
    cu.fill(base, SIZE)
    return base, handle


def export_device() -> int:
    """Fill device memory and export it as a dma-buf."""
    return cu.export(created(cu.DEVICE)[0], SIZE)


def export_opaque(kind: int) -> int:
    """Fill device or host memory and export it as a POSIX file descriptor."""
    return int(call("cuMemExportToShareableHandle", created(kind)[1], cu.POSIX_FD, 0))


def exchange(from_device: int, to_device: int, export: Callable[[], int], kind: int = cu.DMABUF) -> list[int]:
    """Go, offer, import and check, ack, as the sample does; return what the check found."""
    peer = producer(from_device, export)
    cu.start(to_device)
    peer.socket.send(b"G")
    fd = receive_fd(peer.socket)
    found = cu.check(cu.imported(fd, SIZE, kind), SIZE)
    if kind == cu.DMABUF:
        os.close(fd)
    peer.socket.send(b"A")
    assert peer.wait() == 0
    return found


@rule()
def the_sample_in_one_process() -> None:
    cu.start()
    fd = export_pinned()
    memory = call("cuImportExternalMemory", cu.external(fd, SIZE))
    pointer = call("cuExternalMemoryGetMappedBuffer", memory, cu.buffer(SIZE))
    assert cu.check(int(pointer), SIZE) == GOOD
    call("cuMemFree", pointer)
    call("cuDestroyExternalMemory", memory)
    assert code("cuDestroyExternalMemory", memory) == INVALID_HANDLE
    os.close(fd)


@rule()
def the_sample_across_processes() -> None:
    assert exchange(0, 0, export_pinned) == GOOD


@rule()
def the_sample_across_devices() -> None:
    assert exchange(0, 1, export_pinned) == GOOD


@rule()
def device_memory_crosses_as_a_dmabuf() -> None:
    assert exchange(1, 0, export_device) == GOOD


@rule()
def a_dmabuf_outlives_its_exporter() -> None:
    peer = producer(0, export_pinned)
    cu.start(1)
    peer.socket.send(b"G")
    fd = receive_fd(peer.socket)
    peer.socket.send(b"A")
    assert peer.wait() == 0
    assert cu.check(cu.imported(fd, SIZE), SIZE) == GOOD


@rule()
def exports_are_whole_pages_of_one_allocation() -> None:
    cu.start()
    first = cu.pinned(SIZE)
    too_far = (first, SIZE + cu.PAGE)
    for pointer, size in ((first + 16, SIZE), (first, SIZE - 16), (first, 0), too_far, (cu.PAGE, cu.PAGE)):
        assert code("cuMemGetHandleForAddressRange", pointer, size, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    os.close(cu.export(first + cu.PAGE, SIZE - cu.PAGE))
    assert code("cuMemGetHandleForAddressRange", first, SIZE, cu.DMA_BUF_FD, 2) == INVALID_VALUE


@rule()
def a_part_is_exported_as_that_part() -> None:
    cu.start()
    pointer = cu.pinned(SIZE)
    cu.fill(pointer, SIZE)
    fd = cu.export(pointer + cu.PAGE, cu.PAGE)
    assert os.lseek(fd, 0, os.SEEK_END) == cu.PAGE
    assert cu.read(cu.imported(fd, cu.PAGE), 4) == (0x1000 + 1024).to_bytes(4, "little")
    assert code("cuImportExternalMemory", cu.external(fd, cu.PAGE + 1)) == INVALID_VALUE


@rule()
def an_import_is_used_within_its_bounds_and_its_life() -> None:
    cu.start()
    fd = export_pinned()
    memory = call("cuImportExternalMemory", cu.external(fd, SIZE))
    assert code("cuExternalMemoryGetMappedBuffer", memory, cu.buffer(SIZE, 16)) == INVALID_VALUE
    pointer = call("cuExternalMemoryGetMappedBuffer", memory, cu.buffer(cu.PAGE, cu.PAGE))
    assert cu.read(int(pointer), 4) == (0x1000 + 1024).to_bytes(4, "little")
    assert code("cuMemGetHandleForAddressRange", pointer, cu.PAGE, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    cu.use(1)
    assert code("cuExternalMemoryGetMappedBuffer", memory, cu.buffer(SIZE)) == INVALID_HANDLE
    cu.use(0)
    call("cuDestroyExternalMemory", memory)
    assert cu.launch(cu.kernel("dmabuf_mp_fill"), (int(pointer), 1, 0, 0, 1, 0, 0, 0)) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


@rule()
def only_the_right_kind_of_descriptor_is_imported() -> None:
    cu.start()
    dmabuf, posix = export_device(), export_opaque(cu.DEVICE)
    memfd = os.memfd_create("plain")
    os.ftruncate(memfd, SIZE)
    assert code("cuImportExternalMemory", cu.external(memfd, SIZE)) == INVALID_VALUE
    assert code("cuImportExternalMemory", cu.external(memfd, SIZE, cu.OPAQUE_FD)) == UNKNOWN
    assert code("cuImportExternalMemory", cu.external(dmabuf, SIZE, cu.OPAQUE_FD)) == UNKNOWN
    assert code("cuImportExternalMemory", cu.external(posix, SIZE)) == INVALID_VALUE
    assert code("cuImportExternalMemory", cu.external(-1, SIZE)) == INVALID_VALUE
    assert code("cuMemImportFromShareableHandle", dmabuf, cu.POSIX_FD) == INVALID_VALUE


@rule()
def an_opaque_descriptor_is_taken_over() -> None:
    cu.start()
    posix = export_opaque(cu.DEVICE)
    call("cuImportExternalMemory", cu.external(posix, GRANULARITY, cu.OPAQUE_FD))
    try:
        os.fstat(posix)
    except OSError:
        return
    raise AssertionError("the descriptor is still open")


@rule(CUDA_VISIBLE_DEVICES="0")
def an_importer_must_see_the_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    peer = producer(0, lambda: export_opaque(cu.DEVICE))
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    cu.start()
    peer.socket.send(b"G")
    assert code("cuMemImportFromShareableHandle", receive_fd(peer.socket), cu.POSIX_FD) == INVALID_DEVICE
    peer.socket.send(b"A")
    assert peer.wait() == 0


@rule(ATTR_146=0, ATTR_124_DEV1=0)
def exports_and_imports_follow_the_attributes() -> None:
    cu.start(0)
    assert code("cuMemGetHandleForAddressRange", cu.pinned(SIZE), SIZE, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    fd = export_device()
    cu.use(1)
    pointer = created(cu.DEVICE)[0]
    assert code("cuMemGetHandleForAddressRange", pointer, SIZE, cu.DMA_BUF_FD, 0) == NOT_SUPPORTED
    assert code("cuImportExternalMemory", cu.external(fd, SIZE)) == NOT_SUPPORTED


@rule(
    ATTR_146=0,
    EXPORT_PINNED="ok",
    EXPORT_DEVICE=1,
    EXPORT_HOST_NUMA=2,
    EXPORT_PCIE="unsupported",
    EXPORT_POSIX_FD=999,
)
def exports_by_switch() -> None:
    cu.start()
    pointer = cu.pinned(SIZE)
    os.close(cu.export(pointer, SIZE))
    assert code("cuMemGetHandleForAddressRange", pointer, SIZE, cu.DMA_BUF_FD, 1) == NOT_SUPPORTED
    device, handle = created(cu.DEVICE)
    assert code("cuMemGetHandleForAddressRange", device, SIZE, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    host, _ = created(cu.HOST_NUMA)
    assert code("cuMemGetHandleForAddressRange", host, SIZE, cu.DMA_BUF_FD, 0) == OUT_OF_MEMORY
    assert code("cuMemExportToShareableHandle", handle, cu.POSIX_FD, 0) == UNKNOWN


@rule(IMPORT_DMABUF="unsupported")
def an_import_can_be_refused_although_the_attribute_says_yes() -> None:
    cu.start()
    assert cu.attribute(124) == 1
    assert code("cuImportExternalMemory", cu.external(export_pinned(), SIZE)) == NOT_SUPPORTED


@rule(IMPORT_DMABUF_OTHER="zeros", IMPORT_VMM_OTHER="zeros")
def an_import_on_another_device_can_read_zeros() -> None:
    peer = producer(0, export_pinned)
    cu.start(1)
    peer.socket.send(b"G")
    pointer = cu.imported(receive_fd(peer.socket), SIZE)
    assert cu.check(pointer, SIZE) == ZEROS
    assert cu.read(pointer, SIZE) == bytes(SIZE)
    peer.socket.send(b"A")
    assert peer.wait() == 0


@rule(IMPORT_DMABUF_OTHER="zeros")
def an_import_on_the_same_device_reads_the_data_all_the_same() -> None:
    assert exchange(1, 1, export_pinned) == GOOD


@rule(IMPORT_VMM_OTHER="zeros")
def zeros_through_virtual_memory() -> None:
    cu.start(0)
    fd = export_opaque(cu.DEVICE)
    cu.use(1)
    base = cu.mapping(call("cuMemImportFromShareableHandle", fd, cu.POSIX_FD))
    call("cuMemSetAccess", base, GRANULARITY, cu.access(1), 1)
    assert cu.check(base, SIZE) == ZEROS


@rule(PRESET="h200")
def h200_exports_device_memory_alone() -> None:
    cu.start()
    pinned, (device, _), (host, _) = cu.pinned(SIZE), created(cu.DEVICE), created(cu.HOST_NUMA)
    for refused in (pinned, host):
        assert code("cuMemGetHandleForAddressRange", refused, SIZE, cu.DMA_BUF_FD, 0) == INVALID_VALUE
    fd = cu.export(device, SIZE)
    assert code("cuMemGetHandleForAddressRange", device, SIZE, cu.DMA_BUF_FD, 1) == NOT_SUPPORTED
    assert code("cuImportExternalMemory", cu.external(fd, SIZE)) == NOT_SUPPORTED
    assert code("cuImportExternalMemory", cu.external(fd, SIZE, cu.OPAQUE_FD)) == UNKNOWN
    assert code("cuMemCreate", GRANULARITY, cu.properties(cu.HOST), 0) == INVALID_VALUE


@rule(PRESET="h200")
def h200_imports_opaque_host_memory_on_either_device() -> None:
    assert exchange(0, 1, lambda: export_opaque(cu.HOST_NUMA), cu.OPAQUE_FD) == GOOD


@rule(PRESET="h200")
def h200_imports_opaque_device_memory_within_a_process() -> None:
    cu.start()
    assert cu.check(cu.imported(export_opaque(cu.DEVICE), SIZE, cu.OPAQUE_FD), SIZE) == GOOD


def opaque_importer(device: int) -> tuple[Peer, Peer]:
    """Fork an exporter of opaque device memory on GPU 0 and an importer of it on a device."""
    exporter = producer(0, lambda: export_opaque(cu.DEVICE))

    def importing(peer: socket.socket) -> None:
        fd = receive_fd(peer)
        cu.start(device)
        cu.imported(fd, SIZE, cu.OPAQUE_FD)

    importer = Peer(importing)
    exporter.socket.send(b"G")
    send_fd(importer.socket, receive_fd(exporter.socket))
    return exporter, importer


def leave(exporter: Peer) -> None:
    """End the exporter."""
    exporter.socket.send(b"A")
    assert exporter.wait() == 0


@rule(PRESET="h200")
def h200_crashes_at_opaque_device_memory_of_another_process() -> None:
    exporter, importer = opaque_importer(0)
    assert importer.wait() == -signal.SIGSEGV
    leave(exporter)


@rule(PRESET="h200")
def h200_hangs_at_opaque_device_memory_of_another_device() -> None:
    exporter, importer = opaque_importer(1)
    ignores_sigterm = 1 << (signal.SIGTERM - 1)
    status = Path(f"/proc/{importer.pid}/status")
    while not int(status.read_text().split("SigIgn:")[1].split()[0], 16) & ignores_sigterm:
        time.sleep(0.002)
    os.kill(importer.pid, signal.SIGTERM)
    assert os.waitpid(importer.pid, os.WNOHANG) == (0, 0)
    os.kill(importer.pid, signal.SIGKILL)
    assert importer.wait() == -signal.SIGKILL
    leave(exporter)
