"""vgem, the kernel's own GPU without a GPU: it makes a dma-buf with a fence that signals when told to."""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import ioctl
from tests import dmabufs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DUMB = struct.Struct("=IIIIIIQ")  # height, width, bpp, flags, handle, pitch, size
_PRIME = struct.Struct("=IIi")  # handle, flags, fd
_ATTACH = struct.Struct("=IIII")  # handle, flags, out_fence, pad
_SIGNAL = struct.Struct("=II")  # fence, flags
DRM_IOCTL_MODE_CREATE_DUMB = ioctl.iowr("d", 0xB2, _DUMB)
DRM_IOCTL_PRIME_HANDLE_TO_FD = ioctl.iowr("d", 0x2D, _PRIME)
DRM_IOCTL_VGEM_FENCE_ATTACH = ioctl.iowr("d", 0x41, _ATTACH)
DRM_IOCTL_VGEM_FENCE_SIGNAL = ioctl.iow("d", 0x42, _SIGNAL)
VGEM_FENCE_WRITE = 1


class Vgem:
    """The card, opened; the kernel signals a fence itself after ten seconds."""

    def __init__(self, card: int) -> None:
        self._card = card

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Vgem]:
        """Open the card, or skip the test where there is none."""
        cards = "/sys/devices/platform/vgem/drm"
        dmabufs.need(cards)
        name = next(path.name for path in Path(cards).iterdir() if path.name.startswith("card"))
        with Fd(os.open(f"/dev/dri/{name}", os.O_RDWR | os.O_CLOEXEC)) as card:
            yield cls(card.fileno())

    @contextmanager
    def fenced_buffer(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield a dma-buf that a device is writing, and what makes the device finish."""
        dumb = bytearray(_DUMB.pack(1, 1024, 32, 0, 0, 0, 0))
        ioctl.call(self._card, DRM_IOCTL_MODE_CREATE_DUMB, dumb)
        handle = _DUMB.unpack(dumb)[4]
        prime = bytearray(_PRIME.pack(handle, os.O_RDWR | os.O_CLOEXEC, -1))
        ioctl.call(self._card, DRM_IOCTL_PRIME_HANDLE_TO_FD, prime)
        attach = bytearray(_ATTACH.pack(handle, VGEM_FENCE_WRITE, 0, 0))
        with Fd(_PRIME.unpack(prime)[2]) as fd:
            ioctl.call(self._card, DRM_IOCTL_VGEM_FENCE_ATTACH, attach)
            fence = _ATTACH.unpack(attach)[2]

            def signal() -> None:
                ioctl.call(self._card, DRM_IOCTL_VGEM_FENCE_SIGNAL, bytearray(_SIGNAL.pack(fence, 0)))

            yield fd.fileno(), signal
