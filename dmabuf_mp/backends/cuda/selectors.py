"""Which device a selector names, and which pairs fit, among those that are there. Pure: needs no driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dmabuf_mp.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.model import DeviceInfo

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def resolve(selector: str, devices: tuple[DeviceInfo, ...]) -> DeviceInfo:
    """Return the device that `cuda:N`, a UUID or a unique prefix of one, or a PCI id names.

    Raises Unsupported where it is not there, UsageError where a prefix or a PCI id fits several.
    """
    name = selector.removeprefix("cuda:")
    if name.isdecimal():
        found = [device for device in devices if device.selector == selector]
    elif _PCI.fullmatch(name):
        found = [device for device in devices if _same_pci(name, str(device.details.get("pci_id", "")))]
    else:
        exact = _with_uuid(devices, lambda uuid: uuid == name.lower())
        found = exact or _with_uuid(devices, lambda uuid: uuid.startswith(name.lower()))
    if not found:
        there = ", ".join(map(describe, devices)) or "none"
        raise Unsupported(f"no device {selector} on this machine; visible: {there}")
    if len(found) > 1:
        raise UsageError(f"{selector} fits several devices: {', '.join(map(describe, found))}")
    return found[0]


def qualifies(memory: str, producer: DeviceInfo, consumer: DeviceInfo) -> bool:
    """Say whether the attributes announce that the consumer can read the producer's memory.

    Only the sharing of pinned memory is announced at all: by the producer as an exporter, and by another
    GPU as an importer.
    """
    if memory != "pinned":
        return True
    imports = consumer.details.get("dma_buf_supported", True)  # the CPU has no such attribute
    other = consumer.selector != producer.selector
    return bool(producer.details.get("host_alloc_dma_buf_supported") and (imports or not other))


def describe(device: DeviceInfo) -> str:
    """Return `cuda:0 (GPU-…)`."""
    return f"{device.selector} ({device.uuid})"


def _with_uuid(devices: tuple[DeviceInfo, ...], fits: Callable[[str], bool]) -> list[DeviceInfo]:
    return [device for device in devices if fits((device.uuid or "").lower())]


def _same_pci(wanted: str, there: str) -> bool:
    """Compare PCI ids; a domain or a function that one side does not name fits any."""
    left, right = _PCI.fullmatch(wanted), _PCI.fullmatch(there)
    if left is None or right is None:
        return False
    pairs = zip(left.groups(), right.groups(), strict=True)
    return all(a is None or b is None or int(a, 16) == int(b, 16) for a, b in pairs)
