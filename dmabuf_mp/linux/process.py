"""Process control under the kernel's own names: prctl, pidfd, /proc/<pid>."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one integer argument; raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def is_subreaper() -> bool:
    """Say whether orphaned descendants become this process's children."""
    answer = ctypes.c_int()
    _libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def set_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process, cut to 15 bytes."""
    _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def pidfd_open(pid: int) -> int | None:
    """Return a pidfd that polls readable when the process ends, or None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def thread_names() -> tuple[str, ...]:
    """Return the names of this process's threads; empty without /proc."""
    names = []
    try:
        for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - before every fork, and no Path is needed
            with open(f"/proc/self/task/{task}/comm") as file:  # noqa: PTH123
                names.append(file.read().strip())
    except OSError:
        pass
    return tuple(names)


def state(pid: int) -> str | None:
    """Return the state letter of a process (`R`, `S`, `D`, `T`, `Z`, …), or None where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def command(pid: int) -> str:
    """Return a process's command line for a message, or `?`."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return raw.replace(b"\0", b" ").strip().decode(errors="replace")[:120] or "?"


def children(pid: int | str = "self") -> frozenset[int]:
    """Return the pids of a process's children; empty where /proc does not tell."""
    found: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - after every scenario, and no Path is needed
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:  # noqa: PTH123
                found.update(map(int, file.read().split()))
    except OSError:
        pass
    return frozenset(found)


def open_fds() -> dict[int, str]:
    """Return this process's open fds and what each stands for; empty without /proc."""
    found: dict[int, str] = {}
    try:
        numbers = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only
    except OSError:
        return found
    for number in numbers:
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - not a path
        except OSError:
            continue  # the listing's own fd
    return found


def fd_count(pid: int | str = "self") -> int | None:
    """Return how many fds a process has open, or None where /proc does not tell."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names only
    except OSError:
        return None


def fill_standard_fds() -> None:
    """Open /dev/null on each of fds 0, 1 and 2 that is closed, so that nothing else lands on them."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open("/dev/null", os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)


def cuda_is_initialised() -> bool:
    """Say whether anything in this process has initialised CUDA, whichever library did it.

    Asks the driver library that is already loaded, and loads none.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
        count = ctypes.c_int()
        return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != 3)  # CUDA_ERROR_NOT_INITIALIZED
    except (OSError, AttributeError):
        return False
