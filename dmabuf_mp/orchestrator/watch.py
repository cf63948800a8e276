"""What this process and the kernel hold before and after a scenario, and what the kernel logs meanwhile."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from dmabuf_mp import ledger
from dmabuf_mp.linux import bufinfo, kmsg
from dmabuf_mp.model import LogLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dmabuf_mp.linux.dmabuf import Identity
    from dmabuf_mp.orchestrator.loop import Loop

RELEASE_S = 1.0  # the kernel may release a buffer a moment after its last user has closed it
_POLL_S = 0.01
MOST_LINES = 200
MOST_FAULTS = 5


class Watch:
    """Looks before a scenario (`begin`) and after it; `buffers` lists the machine's dma-bufs."""

    def __init__(self, loop: Loop, buffers: Callable[[], Sequence[Identity]] = bufinfo.buffers) -> None:
        self._loop = loop
        self._log = kmsg.open_at_end()
        self._list_buffers = buffers
        self._buffers: frozenset[Identity] = frozenset()
        self._before = ledger.take()
        self._began = time.monotonic()

    def close(self) -> None:
        """Give back the kernel's log."""
        if self._log is not None:
            self._log.close()

    def begin(self) -> None:
        """Look at what there is before a scenario."""
        self._began = time.monotonic()
        self._before = ledger.take(mapped=self._before.mapped)
        self._buffers = frozenset(self._list_buffers())
        if self._log is not None:
            kmsg.skip(self._log.fileno())

    def grown(self) -> str:
        """Name what this process holds beyond what it held before, and what its workers explain.

        Children are not looked at: whatever is none of the workers has been swept away. Nor are files by
        their path: whoever observes the run may open some.
        """
        explained = {number for worker in self._loop.workers.values() for number in worker.fds}
        after = ledger.take()
        fds = {n: what for n, what in after.fds.items() if n not in explained and not _is_file(what)}
        grown = ledger.growth(self._before, ledger.Ledger(fds, frozenset(), after.threads, after.mapped))
        self._before = after
        return grown

    def outlived(self, pids: Iterable[int]) -> dict[int, str]:
        """Name, by the pid that made it, each dma-buf of these workers that stays after a moment."""
        made_by = {str(pid): pid for pid in pids}
        deadline = time.monotonic() + RELEASE_S * self._loop.scale
        while there := self._ours(made_by):
            if time.monotonic() > deadline or self._loop.interrupted_by is not None:
                break
            time.sleep(_POLL_S)
        found: dict[int, str] = {}
        for one in there:
            pid = made_by[_maker(one)]
            text = f"dma-buf {one.name} (inode {one.inode}, {one.size_bytes} bytes)"
            found[pid] = f"{found[pid]}, {text}" if pid in found else text
        return found

    def _ours(self, pids: Iterable[str]) -> list[Identity]:
        return [one for one in self._list_buffers() if _maker(one) in pids and one not in self._buffers]

    def kernel_log(self) -> tuple[tuple[LogLine, ...], tuple[str, ...]]:
        """Return what the kernel has logged since the beginning, and the faults among it; bounded."""
        if self._log is None:
            return (), ()
        records = list(islice(kmsg.records(self._log.fileno()), MOST_LINES))
        elapsed_s = time.monotonic() - self._began
        # The two clocks drift apart: nothing was logged before the beginning, or is in the future.
        times = [min(max(one.since_boot_s - self._began, 0.0), elapsed_s) for one in records]
        lines = [LogLine(round(t, 6), one.level, one.message) for t, one in zip(times, records, strict=True)]
        faults = [f"the kernel logged: {one.message}" for one in records if one.is_fault]
        return tuple(lines), tuple(faults[:MOST_FAULTS])


def _is_file(what: str) -> bool:
    return what.startswith("/") and not what.startswith(("/memfd:", "/dmabuf:"))


def _maker(buffer: Identity) -> str:
    """Return the pid in a buffer's name, `dmabuf-mp:MEMORY:PID`, or an empty text where it is not ours."""
    prefix, _, rest = (buffer.name or "").partition(":")
    return rest.rpartition(":")[2] if prefix == "dmabuf-mp" else ""
