"""memfd_create(2) and the seals of fcntl(2). Everything raises OSError."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack

from dmabuf_mp.fds import Fd

# By number: Python has names for them only where the headers that it was built with had.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 1
F_SEAL_SHRINK = 2
F_SEAL_GROW = 4
F_SEAL_WRITE = 8


def create(name: str, size_bytes: int, seals: int = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) -> Fd:
    """Return a new memfd of zeros; sealed, its size cannot change under whoever has it mapped."""
    with ExitStack() as undo:
        fd = undo.enter_context(Fd(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)))
        os.ftruncate(fd.fileno(), size_bytes)
        fcntl.fcntl(fd.fileno(), F_ADD_SEALS, seals)
        undo.pop_all()
        return fd


def get_seals(fd: int) -> int | None:
    """Return a memfd's seals, or None of anything that cannot have any."""
    try:
        return fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        return None
