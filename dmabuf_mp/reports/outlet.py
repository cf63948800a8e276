"""Output that never holds up its writer: whoever reads slowly misses lines, and is told how many."""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_BYTES = 4 * 2**20


def missing_lines(count: int) -> str:
    """Say that lines are missing."""
    return f"[{count} lines are missing here: they were not read in time]\n"


class Outlet:
    """Lines for a file descriptor (borrowed) that may be a terminal or a pipe that nobody empties.

    What cannot be written yet waits, up to `LIMIT_BYTES`; past that whole lines are dropped, and counted
    where they are missing. Once the reader has gone, everything is dropped; `error` says why.
    """

    def __init__(
        self, fd: int, encoding: str = "utf-8", missing: Callable[[int], str] = missing_lines
    ) -> None:
        self.encoding = encoding
        self.error: OSError | None = None
        self._missing = missing
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        try:
            self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError as error:
            self.error = error

    def write(self, text: str) -> None:
        """Take text, one or more whole lines or a terminal's control sequence; write what fits by now."""
        if self._waiting_bytes > LIMIT_BYTES:
            self._dropped += text.count("\n")
        else:
            self._note_dropped()
            self._append(text)
        self._drain(0)

    def finish(self, limit_s: float | None = None) -> None:
        """Write everything that waits, for as long as it takes, or until the reader pauses for `limit_s`."""
        self._note_dropped()
        self._drain(limit_s)

    def _append(self, text: str) -> None:
        data = text.encode(self.encoding, "backslashreplace")
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _note_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._append(self._missing(dropped))

    def _drain(self, patience_s: float | None) -> None:
        try:
            while self._waiting and not self.error and self._ready(patience_s):
                # A pipe or terminal that is ready takes this much without blocking.
                chunk = self._waiting[0]
                written = os.write(self._fd, chunk if self._regular else chunk[: select.PIPE_BUF])
                self._waiting_bytes -= written
                self._waiting[0] = chunk[written:]
                if not self._waiting[0]:
                    self._waiting.popleft()
        except BlockingIOError:
            pass  # somebody else made it non-blocking, and filled it in between
        except OSError as error:
            self.error = error
        if self.error:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _ready(self, patience_s: float | None) -> bool:
        if self._regular:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(patience_s and patience_s * 1000))


def text_file(outlet: Outlet, *, terminal: bool) -> IO[str]:
    """Return an outlet as the text file that a rich Console writes to."""
    return cast("IO[str]", _TextFile(outlet, terminal=terminal))


class _TextFile:
    """As much of a text file as a Console asks for."""

    def __init__(self, outlet: Outlet, *, terminal: bool) -> None:
        self.encoding = outlet.encoding
        self._outlet = outlet
        self._terminal = terminal

    def write(self, text: str) -> int:
        """Hand text to the outlet."""
        self._outlet.write(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the outlet writes as soon as it may."""

    def isatty(self) -> bool:
        """Tell whether the outlet leads to a terminal."""
        return self._terminal
