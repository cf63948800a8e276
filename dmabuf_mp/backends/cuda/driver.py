"""The only module that touches CUDA's driver API: every result is checked, every error reads alike.

Imported by workers only, and it initialises nothing: cuInit is `initialise`, called once per process.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda

from dmabuf_mp.errors import DriverError, ResourceRefused, Unsupported

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
STUB_LIBRARY = 34
NO_DEVICE = 100
UNSUPPORTED_PTX_VERSION = 222
NOT_SUPPORTED = 801

MULTIPROCESSOR_COUNT = 16
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
DMA_BUF_SUPPORTED = 124
HOST_NUMA_ID = 134
HOST_ALLOC_DMA_BUF_SUPPORTED = 146
DMA_BUF_MMAP_SUPPORTED = 152
ATTRIBUTE_NAMES = {
    DMA_BUF_SUPPORTED: "DMA_BUF_SUPPORTED",
    HOST_ALLOC_DMA_BUF_SUPPORTED: "HOST_ALLOC_DMA_BUF_SUPPORTED",
    DMA_BUF_MMAP_SUPPORTED: "DMA_BUF_MMAP_SUPPORTED",
}

LOCATION_DEVICE = 1
LOCATION_HOST_NUMA = 3
POSIX_FD = 1
EXTERNAL_OPAQUE_FD = 1
EXTERNAL_DMABUF_FD = 9
RANGE_DMA_BUF_FD = 1
RANGE_MAPPING_TYPE_PCIE = 1
HOST_REGISTER_DEVICEMAP = 2
ACCESS_READWRITE = 3

_HINTS = {
    NOT_INITIALIZED: " (where this process was forked from one that had initialised CUDA, nothing helps"
    " but a fresh process)",
    UNSUPPORTED_PTX_VERSION: " (the driver is older than 525: update it)",
}


class CudaError(DriverError):
    """A CUDA call failed with `code`, a CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def enum(kind: str, value: int) -> Any:
    """Return a value of one of CUDA's enumerations. Raises Unsupported where the bindings do not know it."""
    try:
        return getattr(cuda, kind)(value)
    except ValueError as error:
        raise Unsupported(f"the installed cuda-bindings are too old: they have no {kind} {value}") from error


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's functions, called by name: `driver("cuMemAlloc", size)`; `on` is named in errors.

    A call returns what the function gives besides its result code: nothing, one value, or a tuple.
    Raises Unsupported for NOT_SUPPORTED, a function or a library that is missing; ResourceRefused for
    OUT_OF_MEMORY; CudaError for everything else.
    """

    on: str = "any device"

    def __call__(self, function: str, *arguments: Any) -> Any:
        try:
            code, *values = getattr(cuda, function)(*arguments)
        except RuntimeError as error:  # what the bindings raise where there is nothing to call
            if type(error).__name__ == "FunctionNotFoundError":
                raise Unsupported(f"this CUDA driver has no {function}: update it") from error
            raise Unsupported("no CUDA driver on this machine (libcuda.so.1 is not found)") from error
        if code != SUCCESS:
            raise self._error(function, int(code))
        return values[0] if len(values) == 1 else tuple(values) or None

    def _error(self, function: str, code: int) -> Exception:
        text = (
            f"{cuda.CUresult(code).name}: {_meaning(code)}, during {function}, on {self.on}"
            f"{_HINTS.get(code, '')}"
        )
        if code == NOT_SUPPORTED:
            return Unsupported(text)
        return ResourceRefused(text) if code == OUT_OF_MEMORY else CudaError(text, code)


def _meaning(code: int) -> str:
    """Return the driver's own words for a result code."""
    failed, text = cuda.cuGetErrorString(cuda.CUresult(code))
    return "no description" if failed or text is None else text.decode()


def initialise() -> None:
    """Call cuInit, with devices numbered in PCI order. Raises Unsupported where there is no driver."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        Driver()("cuInit", 0)
    except CudaError as error:
        if error.code in (NO_DEVICE, STUB_LIBRARY):
            raise Unsupported(str(error)) from error
        raise


def attribute(device: Any, number: int) -> int | None:
    """Return a device's attribute; None where the driver or the bindings do not know it."""
    try:
        value: int = Driver()("cuDeviceGetAttribute", enum("CUdevice_attribute", number), device)
    except Unsupported:
        return None
    except CudaError as error:
        if error.code == INVALID_VALUE:
            return None
        raise
    return value


def identity(device: Any) -> uuid.UUID:
    """Return a device's UUID, of a MIG instance its own."""
    # Newer bindings have only the second version, under the name of the first.
    function = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    return uuid.UUID(bytes=bytes(Driver()(function, device).bytes))


def allocation(location_type: int, location_id: int) -> Any:
    """Describe memory for cuMemCreate that can be exported as a POSIX file descriptor."""
    wanted = cuda.CUmemAllocationProp()
    wanted.type = enum("CUmemAllocationType", 1)  # pinned: the only type there is
    wanted.location = location(location_type, location_id)
    wanted.requestedHandleTypes = enum("CUmemAllocationHandleType", POSIX_FD)
    return wanted


def location(location_type: int, location_id: int) -> Any:
    """Return a CUmemLocation."""
    where = cuda.CUmemLocation()
    where.type = enum("CUmemLocationType", location_type)
    where.id = location_id
    return where


def access(device_ordinal: int) -> Any:
    """Describe read and write access for a device."""
    described = cuda.CUmemAccessDesc()
    described.location = location(LOCATION_DEVICE, device_ordinal)
    described.flags = enum("CUmemAccess_flags", ACCESS_READWRITE)
    return described


def external_memory(handle_type: int, fd: int, size_bytes: int) -> Any:
    """Describe an fd for cuImportExternalMemory."""
    described = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    described.type = enum("CUexternalMemoryHandleType", handle_type)
    described.handle.fd = fd
    described.size = size_bytes
    return described


def external_buffer(size_bytes: int) -> Any:
    """Describe the mapping of a whole external memory."""
    described = cuda.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    described.size = size_bytes
    return described
