"""The CPU backend's live half: one device, always there."""

from __future__ import annotations

from dmabuf_mp.backends.base import Inventory
from dmabuf_mp.backends.cpu.device import CpuDevice, info
from dmabuf_mp.errors import Unsupported


class CpuBackend:
    """This machine's CPU and memory; there is no driver to initialise."""

    def inventory(self) -> Inventory:
        """Return the one device."""
        return Inventory(devices=(info(),))

    def open(self, selector: str) -> CpuDevice:
        """Open `cpu`."""
        if selector != "cpu":
            raise Unsupported(f"no device {selector!r}: the CPU is 'cpu'")
        return CpuDevice()


BACKEND = CpuBackend()
