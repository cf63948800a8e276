"""CUDA in this process: what is there, and devices to open."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmabuf_mp.backends.base import Inventory
from dmabuf_mp.backends.cuda import driver, selectors
from dmabuf_mp.backends.cuda.device import CudaDevice
from dmabuf_mp.errors import Unsupported
from dmabuf_mp.model import DeviceInfo

if TYPE_CHECKING:
    from dmabuf_mp.backends.base import Device
    from dmabuf_mp.model import Json

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_DOUBLE = "fakecuda"  # how the names of the devices of tests/fakecuda begin


def _text(value: bytes) -> str:
    """Return what stands before the zero in a buffer that the driver filled."""
    return value.partition(b"\0")[0].decode()


def _describe(ordinal: int, device: Any, devices: list[Any]) -> DeviceInfo:
    cuda = driver.Driver(f"cuda:{ordinal}")
    name = _text(cuda("cuDeviceGetName", 256, device))
    is_mig = " MIG " in name  # the driver API has no other way to say it
    capability = (driver.COMPUTE_CAPABILITY_MAJOR, driver.COMPUTE_CAPABILITY_MINOR)
    details: dict[str, Json] = {
        "index": ordinal,
        "pci_id": _text(cuda("cuDeviceGetPCIBusId", 32, device)).lower(),
        "compute_capability": ".".join(str(driver.attribute(device, number)) for number in capability),
        "memory_bytes": cuda("cuDeviceTotalMem", device),
        "numa_node": driver.attribute(device, driver.HOST_NUMA_ID),
        "mig": is_mig,
        "dma_buf_supported": driver.attribute(device, driver.DMA_BUF_SUPPORTED),
        "host_alloc_dma_buf_supported": driver.attribute(device, driver.HOST_ALLOC_DMA_BUF_SUPPORTED),
        "dma_buf_mmap_supported": driver.attribute(device, driver.DMA_BUF_MMAP_SUPPORTED),
        "peers": {
            f"cuda:{index}": bool(cuda("cuDeviceCanAccessPeer", device, other))
            for index, other in enumerate(devices)
            if index != ordinal
        },
    }
    uuid = f"{'MIG' if is_mig else 'GPU'}-{driver.identity(device)}"
    return DeviceInfo(f"cuda:{ordinal}", name, uuid, details)


def _kernel_module() -> str | None:
    """Return the version of NVIDIA's kernel module, or None where it does not say."""
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return found[0] if found else None


class CudaBackend:
    """The driver is initialised by the first `inventory` or `open`, once per process."""

    @cache  # noqa: B019  (one instance, for the whole life of the process)
    def inventory(self) -> Inventory:
        """Initialise the driver and say what is there, in PCI order.

        Without a driver or a GPU there is a reason instead.
        Raises DriverError where a driver is there and fails.
        """
        cuda = driver.Driver()
        try:
            driver.initialise()
        except Unsupported as error:
            return Inventory(reason=str(error))
        handles = [cuda("cuDeviceGet", ordinal) for ordinal in range(cuda("cuDeviceGetCount"))]
        devices = tuple(_describe(ordinal, handle, handles) for ordinal, handle in enumerate(handles))
        major, minor = divmod(cuda("cuDriverGetVersion") // 10, 100)
        host: dict[str, Json] = {
            "driver": f"CUDA {major}.{minor}" + (f", {module}" if (module := _kernel_module()) else ""),
            "software_driver": any(device.name.startswith(_DOUBLE) for device in devices),
        }
        return Inventory(devices, "" if devices else "the CUDA driver sees no device", host)

    def open(self, selector: str) -> Device:
        """Open one device by any selector that names one. Raises Unsupported where it is not there."""
        inventory = self.inventory()
        if inventory.reason:
            raise Unsupported(inventory.reason)
        return CudaDevice(selectors.resolve(selector, inventory.devices), inventory.devices)


BACKEND = CudaBackend()
