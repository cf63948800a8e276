"""Every test runs under a check: whoever leaves a file descriptor, a child or a thread behind, fails."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Before anything imports numpy, whose OpenBLAS starts threads otherwise.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# A shell's background job ignores SIGINT, and what it starts inherits that: the tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_things() -> dict[str, str]:
    """Return what this process holds: `fd 5`, `child 412`, `thread 413`, each with what it is."""
    held = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            held[f"fd {fd.name}"] = str(fd.readlink())
        except FileNotFoundError:
            continue  # the fd of the listing itself
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            held[f"thread {task.name}"] = (task / "comm").read_text().strip()
        for child in (task / "children").read_text().split():
            held[f"child {child}"] = Path(f"/proc/{child}/comm").read_text().strip()
    return held


def grown(before: dict[str, str]) -> list[str]:
    """Say what is held now that was not held before, as `fd 5 (socket:[1234])`."""
    return [f"{key} ({what})" for key, what in open_things().items() if before.get(key) != what]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fail a test after which this process holds more than before it."""
    before = open_things()
    yield
    if grown(before):
        gc.collect()  # a traceback's cycle may hold the last reference to what closes itself
        if left := grown(before):
            pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)
