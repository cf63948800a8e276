"""The pool: idle workers by the devices that they have open, so that each device is initialised once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmabuf_mp import backends

if TYPE_CHECKING:
    from dmabuf_mp.orchestrator.handle import Handle
    from dmabuf_mp.orchestrator.loop import Loop


def prepare_to_fork() -> None:
    """Import numpy, once here rather than once in every worker that will be forked; it is no driver."""
    backends.load("cpu")


class Pool:
    """Idle workers; with `fresh`, none is ever kept."""

    def __init__(self, loop: Loop, *, fresh: bool = False) -> None:
        self._loop = loop
        self._fresh = fresh
        self._idle: dict[frozenset[str], list[Handle]] = {}

    def take(self, devices: tuple[str, ...]) -> Handle:
        """Return a worker with these devices open, else one with a driver up, else a new one."""
        wanted = frozenset(devices)
        drivers = frozenset(backends.prefix_of(device) for device in devices) - {"cpu"}
        for key in (wanted, drivers):
            while key and self._idle.get(key):
                worker = self._idle[key].pop()
                if not worker.reap() and not worker.control.closed:  # closed: it is ending at the moment
                    return worker
        prepare_to_fork()
        return self._loop.spawn()

    def keep(self, worker: Handle, devices: tuple[str, ...]) -> bool:
        """Keep a worker that did nothing wrong; False where it is to be ended instead."""
        if self._fresh or worker.exit is not None:
            return False
        self._idle.setdefault(frozenset(devices), []).append(worker)
        return True
