"""What a worker prints: bytes from a pipe to whole lines, with the middle cut out of a flood."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dmabuf_mp.model import LogLine

if TYPE_CHECKING:
    from collections.abc import Callable

CAP_BYTES = 2**20
_LINE_BYTES = 16 * 1024
_LINE_COST_BYTES = 64  # of a line in memory, beside its text
_MOST_IN_TAIL = CAP_BYTES // 2 // _LINE_COST_BYTES


class Capture:
    """Log lines of one worker in one scenario: at most 1 MiB, of which head and tail are kept."""

    def __init__(self, now: Callable[[], float], seen: Callable[[LogLine], None]) -> None:
        self._now = now
        self._seen = seen
        self._partial: dict[str, bytes] = {}
        self._head: list[LogLine] = []
        self._tail: deque[LogLine] = deque()
        self._head_bytes = 0
        self._tail_bytes = 0
        self._cut_lines = 0

    def feed(self, level: str, data: bytes) -> None:
        """Take bytes as they came from a pipe; a line cut in two is joined."""
        *lines, rest = (self._partial.pop(level, b"") + data).split(b"\n")
        while len(rest) > _LINE_BYTES:
            lines.append(rest[:_LINE_BYTES])
            rest = rest[_LINE_BYTES:]
        if rest:
            self._partial[level] = rest
        if self._tail and len(lines) > _MOST_IN_TAIL:  # a flood, of which most would be cut at once
            self._cut_lines += len(lines) - _MOST_IN_TAIL
            lines = lines[-_MOST_IN_TAIL:]
        for line in lines:
            self.add(level, line.decode(errors="replace"))

    def end(self) -> None:
        """Take what is left of lines without an end, and tell of the lines that were held back until now."""
        for level, rest in self._partial.items():
            self.add(level, rest.decode(errors="replace"))
        self._partial.clear()
        for line in self.lines()[len(self._head) :]:
            self._seen(line)

    def add(self, level: str, message: str) -> None:
        """Add a line as of now."""
        line = LogLine(round(self._now(), 6), level, message)
        size = len(message) + _LINE_COST_BYTES
        if not self._tail and self._head_bytes + size <= CAP_BYTES // 2:
            self._head.append(line)
            self._head_bytes += size
            self._seen(line)
            return
        self._tail.append(line)
        self._tail_bytes += size
        while self._tail_bytes > CAP_BYTES // 2 and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft().message) + _LINE_COST_BYTES
            self._cut_lines += 1

    def lines(self) -> tuple[LogLine, ...]:
        """Return what was kept, with a line where something was cut."""
        if not self._cut_lines:
            return (*self._head, *self._tail)
        cut = LogLine(self._tail[0].t_s, "warning", f"… {self._cut_lines} lines cut here …")
        return (*self._head, cut, *self._tail)
