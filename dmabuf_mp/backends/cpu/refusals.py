"""The kernel's error numbers as errors of this package: the only place where they are translated."""

from __future__ import annotations

import errno
import grp
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dmabuf_mp.errors import DmabufMpError, DriverError, ResourceRefused, Unsupported
from dmabuf_mp.linux.dmabuf import ENOTSUPP

if TYPE_CHECKING:
    from collections.abc import Iterator

_CANNOT = (ENOTSUPP, errno.ENOTTY, errno.ENODEV, errno.ENOSYS)


def _limit(kind: int) -> str:
    soft = resource.getrlimit(kind)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _refused(number: int) -> str | None:
    """Name the limit that a resource error tells of, or None for any other error."""
    match number:
        case errno.EMFILE:
            return f"the limit of open files ({_limit(resource.RLIMIT_NOFILE)}) is reached"
        case errno.ENFILE:
            return "the system's limit of open files (/proc/sys/fs/file-max) is reached"
        case errno.ENOMEM:
            return f"no memory, or beyond the limit of address space ({_limit(resource.RLIMIT_AS)})"
        case errno.EFBIG:
            return f"larger than the limit of a file's size ({_limit(resource.RLIMIT_FSIZE)})"
        case errno.ENOSPC:
            return "no space left for shared memory"
        case _:
            return None


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what an OSError means: Unsupported, ResourceRefused with the limit, or else DriverError."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        text = "not supported" if number == ENOTSUPP else os.strerror(number)
        said = f"{what}: {text} (errno {errno.errorcode.get(number, number)})"
        if number in _CANNOT:
            raise Unsupported(said) from error
        if (limit := _refused(number)) is not None:
            raise ResourceRefused(f"{what}: {limit}") from error
        raise DriverError(said) from error


@contextmanager
def opening(node: str, kernel_option: str) -> Iterator[None]:
    """Raise Unsupported, with what would help, where a device node is absent or closed to this user."""
    try:
        with translated(node):
            yield
    except DmabufMpError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        if number in (errno.ENOENT, errno.ENXIO):
            raise Unsupported(
                f"no {node}: it needs a kernel with {kernel_option} and, in a container, the device passed in"
            ) from error.__cause__
        if number in (errno.EACCES, errno.EPERM):
            raise Unsupported(_no_permission(node)) from error.__cause__
        raise


def _no_permission(node: str) -> str:
    """Say who may open a node, and how to become one of them."""
    try:
        status = Path(node).stat()
    except OSError:
        return f"no permission to open {node}, nor to look at it"
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    mode = stat.S_IMODE(status.st_mode)
    said = f"no permission to open {node} (mode {mode:04o}, group {group})"
    if mode & stat.S_IRGRP and mode & stat.S_IWGRP and status.st_gid:
        return f"{said}: join the group {group}"
    rule = f'KERNEL=="{Path(node).name}", GROUP="{group if status.st_gid else "video"}", MODE="0660"'
    return f"{said}: be root, or give a group access by a udev rule in /etc/udev/rules.d: {rule}"
