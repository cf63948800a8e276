"""The ledger: what a process holds, before and after, and what grew in between.

Only what is ours counts: a driver's or a library's own threads and mappings live as long as the process. What
others move as well, or a driver keeps as it likes, is noted beside it.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dmabuf_mp.linux import maps, process

DRIVER_NODES = "/dev/nvidia"

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dmabuf_mp.backends.base import Device


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a process holds.

    Open fds by number with what each stands for; the pids of children; the names of Python's threads by their
    ids; the bytes that are mapped of our buffers and of a driver's device nodes, by their names; and how many
    buffers of which kind its devices gave out that were not closed. `free` is not its own: the free bytes of
    each device.
    """

    fds: Mapping[int, str] = field(default_factory=dict)
    children: frozenset[int] = frozenset()
    threads: Mapping[int, str] = field(default_factory=dict)
    mapped: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)


def take(devices: Iterable[Device] = (), *, mapped: Mapping[str, int] | None = None) -> Ledger:
    """Look at what this process holds now; `mapped` is what it has mapped, where that is known.

    To ask for it takes longer than all the rest.
    """
    devices = tuple(devices)
    free = {device.info.selector: device.free_bytes() for device in devices}
    return Ledger(
        process.open_fds(),
        process.children(),
        {thread.native_id or 0: thread.name for thread in threading.enumerate()},
        maps.mapped("/memfd:dmabuf-mp:", "/dmabuf:", DRIVER_NODES) if mapped is None else mapped,
        sum((Counter(device.held()) for device in devices), Counter()),
        {selector: free_bytes for selector, free_bytes in free.items() if free_bytes is not None},
    )


def growth(before: Ledger, after: Ledger) -> str:
    """Name what is held now and was not before; an empty text when nothing is."""
    # By what it stands for, too: a number may have been closed and given out again.
    grown = [f"fd {number} ({what})" for number, what in after.fds.items() if before.fds.get(number) != what]
    grown += [f"process {pid} ({process.command(pid)})" for pid in sorted(after.children - before.children)]
    grown += [f"thread {after.threads[number]!r}" for number in after.threads if number not in before.threads]
    mapped = Counter(after.mapped) - Counter(before.mapped)
    grown += [
        f"a mapping of {size_bytes} bytes ({name})"
        for name, size_bytes in mapped.items()
        if not name.startswith(DRIVER_NODES)
    ]
    buffers = Counter(after.buffers) - Counter(before.buffers)
    grown += [f"{count} × {what}, not closed" for what, count in sorted(buffers.items())]
    return ", ".join(grown)


def moved(before: Ledger, after: Ledger) -> dict[str, int]:
    """Return what to note, and not to judge: by how many bytes it grew or, negative, shrank.

    A driver keeps mappings and memory for later as it likes; a device's free memory is everybody's.
    """
    changes = {f"{DRIVER_NODES}* mapped": _nodes(after) - _nodes(before)}
    changes |= {f"{on} free": free - before.free[on] for on, free in after.free.items() if on in before.free}
    return {what: change for what, change in changes.items() if change}


def _nodes(ledger: Ledger) -> int:
    return sum(size for name, size in ledger.mapped.items() if name.startswith(DRIVER_NODES))
