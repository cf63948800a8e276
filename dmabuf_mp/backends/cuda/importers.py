"""How a CUDA consumer turns an fd into memory that its device can read.

Who closes the fd once it is imported, by API (until the import has succeeded, we do):

| importer | API | the fd afterwards |
|---|---|---|
| `external_memory`, dmabuf | cuImportExternalMemory, DMABUF_FD | ours: closed with the memory |
| `external_memory`, posix_fd | cuImportExternalMemory, OPAQUE_FD | the driver's, from success on |
| `vmm` | cuMemImportFromShareableHandle | ours: closed once it is imported |
| `host_register` | mmap, cuMemHostRegister | ours: closed with the mapping |
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp.backends.cpu.importer import ALIGNMENT_BYTES, map_offer
from dmabuf_mp.backends.cpu.refusals import translated
from dmabuf_mp.backends.cuda import driver, selectors
from dmabuf_mp.backends.cuda.driver import CudaError
from dmabuf_mp.backends.cuda.memories import CudaBuffer, map_memory, refusals, register
from dmabuf_mp.errors import Unsupported, WrongBuffer
from dmabuf_mp.linux import dmabuf

if TYPE_CHECKING:
    from dmabuf_mp.backends.base import Offer
    from dmabuf_mp.backends.cuda.device import CudaDevice
    from dmabuf_mp.fds import Fd


def import_fd(device: CudaDevice, importer: str, fd: Fd, offer: Offer) -> CudaBuffer:
    """Import an fd by one of the importers of `paths.py`; takes the fd. Raises Unsupported or WrongBuffer."""
    with ExitStack() as undo:
        undo.callback(fd.close)
        _see_that_exporter_is_visible(device, offer)
        _see_that_range_is_inside(offer)
        with translated(f"a look at the {offer.handle} fd"):
            _see_that_kind_is_right(fd.fileno(), offer)
        match importer:
            case "external_memory":
                pointer = _external_memory(device, fd, offer, undo)
            case "vmm":
                pointer = _vmm(device, fd, offer, undo)
            case "host_register":
                pointer = _host_register(device, fd, offer, undo)
            case _:
                raise Unsupported(f"a CUDA device has no importer {importer!r}")
        return CudaBuffer(device, pointer, offer.size_bytes, undo)


def _see_that_exporter_is_visible(device: CudaDevice, offer: Offer) -> None:
    """Refuse a GPU's own memory where that GPU is not among those that this process sees."""
    visible = {other.uuid for other in device.visible}
    if offer.memory == "device" and offer.device_uuid not in visible:
        there = ", ".join(map(selectors.describe, device.visible))
        raise Unsupported(
            f"the memory is on {offer.device_uuid}, which this process does not see; visible here: {there}"
        )


def _see_that_range_is_inside(offer: Offer) -> None:
    end_bytes = offer.offset_bytes + offer.size_bytes
    if offer.offset_bytes < 0 or offer.offset_bytes % ALIGNMENT_BYTES or end_bytes > offer.allocated_bytes:
        raise WrongBuffer(
            f"expected a range inside {offer.allocated_bytes} bytes, at a multiple of {ALIGNMENT_BYTES},"
            f" got {offer.size_bytes} bytes at {offer.offset_bytes}"
        )


def _see_that_kind_is_right(fd: int, offer: Offer) -> None:
    """Refuse an fd that is not what the offer says, or has not its size, as far as the kernel tells."""
    found = dmabuf.target(fd)
    if offer.handle == "posix_fd":
        # Nothing but its name tells this kind: it has no size, and its node is every allocation's.
        if found is not None and not found.startswith("/dev/nvidia"):
            raise WrongBuffer(f"expected a CUDA virtual-memory handle (/dev/nvidiactl), got an fd of {found}")
    elif offer.handle == "dmabuf":
        if not dmabuf.is_dmabuf(fd):
            raise WrongBuffer(f"expected a dma-buf, got an fd of {found}")
        if (size := dmabuf.size(fd)) != offer.allocated_bytes:
            raise WrongBuffer(f"expected a dma-buf of {offer.allocated_bytes} bytes, got one of {size}")


def _external_memory(device: CudaDevice, fd: Fd, offer: Offer, undo: ExitStack) -> int:
    opaque = offer.handle == "posix_fd"
    kind = driver.EXTERNAL_OPAQUE_FD if opaque else driver.EXTERNAL_DMABUF_FD
    described = driver.external_memory(kind, fd.fileno(), offer.allocated_bytes)
    with nullcontext() if opaque else refusals(device, driver.DMA_BUF_SUPPORTED, host=False):
        imported = device.cuda("cuImportExternalMemory", described)
    if opaque:
        fd.take()  # the driver closes it
    undo.callback(device.cuda, "cuDestroyExternalMemory", imported)
    whole = driver.external_buffer(offer.allocated_bytes)
    pointer = device.cuda("cuExternalMemoryGetMappedBuffer", imported, whole)
    undo.callback(device.cuda, "cuMemFree", pointer)
    return int(pointer) + offer.offset_bytes


def _vmm(device: CudaDevice, fd: Fd, offer: Offer, undo: ExitStack) -> int:
    kind = driver.enum("CUmemAllocationHandleType", driver.POSIX_FD)
    imported = device.cuda("cuMemImportFromShareableHandle", fd.fileno(), kind)
    undo.callback(device.cuda, "cuMemRelease", imported)
    fd.close()
    try:
        return map_memory(device, imported, offer.allocated_bytes, undo) + offer.offset_bytes
    except CudaError as error:
        if (far := _out_of_reach(device, offer)) is None:
            raise
        raise Unsupported(f"{error}; {device.info.selector} has no peer access to {far}") from error


def _out_of_reach(device: CudaDevice, offer: Offer) -> str | None:
    """Return the exporter's device, where its memory is on it and this one has no peer access to it."""
    peers = device.info.details["peers"]
    exporter = next((info.selector for info in device.visible if info.uuid == offer.device_uuid), "")
    without = isinstance(peers, dict) and peers.get(exporter) is False
    return exporter if without and offer.memory == "device" else None


def _host_register(device: CudaDevice, fd: Fd, offer: Offer, undo: ExitStack) -> int:
    mapped = map_offer(fd, replace(offer, writable=True))  # cuMemHostRegister asks for a writable mapping
    undo.callback(mapped.close)
    return register(device, mapped, undo)
