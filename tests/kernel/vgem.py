"""A GPU that is none: buffers and fences from the kernel's vgem driver, for tests of fences.

Needs /dev/dri/card0 of vgem, which the test guests have, and root.  A fence of vgem's stays
pending until it is signalled, or for 10 s: then the kernel signals it, as if all were well.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Self

CARD = "/dev/dri/card0"

_WRITE, _READ = 1, 2  # the direction bits of a request number: what user space writes and reads


class ModeCreateDumb(ctypes.Structure):
    """`struct drm_mode_create_dumb`."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("height", "width", "bpp", "flags", "handle", "pitch")),
        ("size", ctypes.c_uint64),
    ]


class PrimeHandle(ctypes.Structure):
    """`struct drm_prime_handle`."""

    _fields_ = [("handle", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("fd", ctypes.c_int32)]


class GemClose(ctypes.Structure):
    """`struct drm_gem_close`."""

    _fields_ = [("handle", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class FenceAttach(ctypes.Structure):
    """`struct drm_vgem_fence_attach`."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("handle", "flags", "out_fence", "pad")]


class FenceSignal(ctypes.Structure):
    """`struct drm_vgem_fence_signal`."""

    _fields_ = [("fence", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


def _request(direction: int, number: int, argument: type[ctypes.Structure]) -> int:
    return direction << 30 | ctypes.sizeof(argument) << 16 | ord("d") << 8 | number


DRM_COMMAND_BASE = 0x40
DRM_IOCTL_GEM_CLOSE = _request(_WRITE, 0x09, GemClose)
DRM_IOCTL_PRIME_HANDLE_TO_FD = _request(_READ | _WRITE, 0x2D, PrimeHandle)
DRM_IOCTL_MODE_CREATE_DUMB = _request(_READ | _WRITE, 0xB2, ModeCreateDumb)
DRM_IOCTL_VGEM_FENCE_ATTACH = _request(_READ | _WRITE, DRM_COMMAND_BASE + 1, FenceAttach)
DRM_IOCTL_VGEM_FENCE_SIGNAL = _request(_WRITE, DRM_COMMAND_BASE + 2, FenceSignal)

DRM_CLOEXEC, DRM_RDWR = os.O_CLOEXEC, os.O_RDWR
VGEM_FENCE_WRITE = 1


class Card:
    """An open vgem device.

    Closing it signals the fences that are still pending; buffers that were exported live on.
    """

    def __init__(self, path: str = CARD) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def create(self, size_bytes: int) -> int:
        """Allocates zeroed memory, a multiple of the page; returns its handle."""
        # A "dumb" buffer is a picture; one of 8-bit pixels, a page wide, has no padding.
        width = os.sysconf("SC_PAGESIZE")
        dumb = ModeCreateDumb(width=width, height=-(-size_bytes // width), bpp=8)
        fcntl.ioctl(self._fd, DRM_IOCTL_MODE_CREATE_DUMB, dumb)
        return int(dumb.handle)

    def export(self, handle: int) -> int:
        """The buffer as a dma-buf, readable and writable: a new fd, which the caller owns."""
        prime = PrimeHandle(handle=handle, flags=DRM_CLOEXEC | DRM_RDWR, fd=-1)
        fcntl.ioctl(self._fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, prime)
        return int(prime.fd)

    def close_handle(self, handle: int) -> None:
        """Gives the buffer up; what was exported of it lives on."""
        fcntl.ioctl(self._fd, DRM_IOCTL_GEM_CLOSE, GemClose(handle=handle))

    def attach_fence(self, handle: int, *, write: bool = True) -> int:
        """Puts a pending fence on the buffer, as if a GPU wrote (or read) it; returns the fence.

        Raises OSError(EBUSY) while a write is pending, or for a write, while anything is.
        """
        attach = FenceAttach(handle=handle, flags=VGEM_FENCE_WRITE if write else 0)
        fcntl.ioctl(self._fd, DRM_IOCTL_VGEM_FENCE_ATTACH, attach)
        return int(attach.out_fence)

    def signal_fence(self, fence: int) -> None:
        """Says that the work is done; raises OSError(ETIMEDOUT) if the kernel has said so before."""
        fcntl.ioctl(self._fd, DRM_IOCTL_VGEM_FENCE_SIGNAL, FenceSignal(fence=fence))
