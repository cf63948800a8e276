"""Faults of the data: a device that fills, checks or imports wrongly, once, in the round of its fault."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dmabuf_mp.backends.base import Allocation, Buffer, CheckCounts, Device, Offer
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Fault, Json
    from dmabuf_mp.patterns import Pattern

_PAGE_BYTES = 4096


class FaultyDevice:
    """A device in front of the real one."""

    def __init__(self, device: Device, faults: Sequence[Fault], struck: Callable[[Fault], None]) -> None:
        self.info = device.info
        self._device = device
        self._faults = faults
        self._struck = struck

    def _strikes(self, kind: str, round_: int | None) -> bool:
        """Whether a fault strikes now (None: whatever its round is); who asks goes on to do the harm."""
        for fault in self._faults:
            if fault.kind == kind and round_ in (None, fault.round):
                self._struck(fault)
                return True
        return False

    def allocate(self, memory: str, size_bytes: int, options: Mapping[str, Json]) -> Allocation:
        """Allocate as ever."""
        return self._device.allocate(memory, size_bytes, options)

    def import_fd(self, importer: str, fd: Fd, offer: Offer) -> Buffer:
        """Import, unless the fault is that the fd is closed by then."""
        if self._strikes("closed_fd", None):
            os.close(fd.take())
        return self._device.import_fd(importer, fd, offer)

    def fill(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Fill, then spoil what is there."""
        if t % 2:
            if not self._strikes("lost_write_back", t // 2):
                self._device.fill(buffer, pattern, t)
            return
        if self._strikes("stale_round", t // 2):
            return
        if self._strikes("other_buffer", t // 2):
            pattern = replace(pattern, kappa=pattern.kappa ^ 0x5A5A5A5A)
        self._device.fill(buffer, pattern, t)
        for kind, spoil in SPOILERS.items():
            if self._strikes(kind, t // 2):
                spoil(self._device, buffer)

    def check(self, buffer: Buffer, pattern: Pattern, t: int) -> CheckCounts:
        """Check while the data changes, or write to where this side may only read."""
        if self._strikes("wrong_side", t // 2):
            self._device.write(buffer, 0, b"\xa5")
        if not self._strikes("torn", t // 2):
            return self._device.check(buffer, pattern, t)
        middle = buffer.size_bytes // 2
        right = self._device.read(buffer, middle, 1)
        self._device.write(buffer, middle, bytes([right[0] ^ 0xFF]))
        counts = self._device.check(buffer, pattern, t)
        self._device.write(buffer, middle, right)
        return counts

    def read(self, buffer: Buffer, offset_bytes: int, length: int) -> bytes:
        """Read as ever."""
        return self._device.read(buffer, offset_bytes, length)

    def write(self, buffer: Buffer, offset_bytes: int, data: bytes) -> None:
        """Write as ever."""
        self._device.write(buffer, offset_bytes, data)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy as ever."""
        self._device.copy(source, target)

    def held(self) -> Mapping[str, int]:
        """Return which of the real device's buffers are not closed."""
        return self._device.held()

    def free_bytes(self) -> int | None:
        """Return what the real device tells."""
        return self._device.free_bytes()

    def close(self) -> None:
        """Leave the real device open: it is the worker's."""


def _change(offset_of: Callable[[int], int], length: int, change: Callable[[bytes], bytes]) -> _Spoiler:
    def spoil(device: Device, buffer: Buffer) -> None:
        offset_bytes = offset_of(buffer.size_bytes)
        device.write(buffer, offset_bytes, change(device.read(buffer, offset_bytes, length)))

    return spoil


def _shift(by_bytes: int) -> _Spoiler:
    def spoil(device: Device, buffer: Buffer) -> None:
        data = device.read(buffer, 0, buffer.size_bytes - by_bytes)
        device.write(buffer, by_bytes, data)

    return spoil


def _zero(device: Device, buffer: Buffer) -> None:
    for start in range(0, buffer.size_bytes, 2**20):
        device.write(buffer, start, bytes(min(2**20, buffer.size_bytes - start)))


def _middle(size_bytes: int) -> int:
    return size_bytes // 2


def _inverted(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


if TYPE_CHECKING:
    _Spoiler = Callable[[Device, Buffer], None]

SPOILERS: dict[str, _Spoiler] = {
    "flip_bit": _change(_middle, 1, lambda data: bytes([data[0] ^ 0x08])),
    "flip_byte": _change(_middle, 1, _inverted),
    "wrong_page": _change(lambda size: size // 2 // _PAGE_BYTES * _PAGE_BYTES, _PAGE_BYTES, _inverted),
    "wrong_last_byte": _change(lambda size: size - 1, 1, _inverted),
    "all_zero": _zero,
    "shifted_1": _shift(1),
    "shifted_4": _shift(4),
    "shifted_page": _shift(_PAGE_BYTES),
}
