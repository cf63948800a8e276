"""A closer look at a mismatch: where the data is wrong, and whether it stays so.

The check itself only counts. After it has found something, a bounded part of the buffer from the first
mismatch on is read twice more; the cost does not grow with the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp.backends.cpu.blocks import WORD, Words
from dmabuf_mp.mismatch import PAGE_BYTES
from dmabuf_mp.model import Dump, Evidence, Stretch, Wrong
from dmabuf_mp.patterns import BLOCK_WORDS, split, tail_byte

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dmabuf_mp.backends.base import CheckCounts
    from dmabuf_mp.model import Mismatch
    from dmabuf_mp.patterns import Pattern

BLOCK_BYTES = 4 * BLOCK_WORDS
LOOK_BYTES = 32 * BLOCK_BYTES
MOST = 8  # runs and positions that are told one by one
DUMP_BYTES = 256
DUMP_BEFORE_BYTES = 64  # of them before the first mismatch, or a little more: a dump starts at a full row
ROW_BYTES = 16


class _Part:
    """The part of a buffer that is looked at, by positions as a check counts them: words, then tail bytes."""

    def __init__(self, size_bytes: int, pattern: Pattern, t: int, first_bytes: int) -> None:
        self._words, tail = split(size_bytes)
        self._first_bytes = first_bytes
        self.start = max(0, first_bytes - DUMP_BEFORE_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        self.stop = min(size_bytes, self.start + LOOK_BYTES)
        self._word_bytes = min(self.stop, 4 * self._words) - self.start
        self._due = np.empty(self.stop - self.start, np.uint8)
        words, writer = self._due[: self._word_bytes].view(WORD), Words(pattern, t)
        for at in range(0, words.size, BLOCK_WORDS):
            writer.write((self.start // 4 + at) // BLOCK_WORDS, words[at : at + BLOCK_WORDS])
        rest = self._due[self._word_bytes :]
        rest[:] = [tail_byte(pattern, self._words, j, t) for j in range(tail)][: rest.size]

    def _position(self, offset_bytes: int) -> int:
        return offset_bytes // 4 if offset_bytes < 4 * self._words else offset_bytes - 3 * self._words

    def _offset_bytes(self, position: int) -> int:
        return 4 * position if position < self._words else position + 3 * self._words

    def wrong(self, data: NDArray[np.uint8]) -> NDArray[np.intp]:
        """Return the positions that differ; before the first mismatch only what was right when checked."""
        middle = self._word_bytes
        words = data[:middle].view(WORD) != self._due[:middle].view(WORD)
        found = np.flatnonzero(np.concatenate((words, data[middle:] != self._due[middle:])))
        return found + self._position(self.start)

    def text(self, data: NDArray[np.uint8], position: int) -> str:
        """Return what stands at a position, in hex."""
        size = 4 if position < self._words else 1
        value = data[self._offset_bytes(position) - self.start :][:size].tobytes()
        return f"0x{value[::-1].hex()}"

    def told(self, position: int, got: NDArray[np.uint8], again: NDArray[np.uint8]) -> Wrong:
        """Return one position with what is due and what was found there."""
        at = self._offset_bytes(position)
        return Wrong(at, at // PAGE_BYTES, *(self.text(data, position) for data in (self._due, got, again)))

    def runs(self, wrong: NDArray[np.intp]) -> tuple[int, Stretch | None, tuple[Stretch, ...]]:
        """Count the runs of positions next to each other; return the longest one and the first ones too."""
        if not wrong.size:
            return 0, None, ()
        gaps = np.flatnonzero(np.diff(wrong) > 1)
        firsts, lasts = wrong[np.append(0, gaps + 1)], wrong[np.append(gaps, -1)]

        def run(number: int) -> Stretch:
            start = self._offset_bytes(int(firsts[number]))
            return Stretch(start, self._offset_bytes(int(lasts[number]) + 1) - start)

        count = firsts.size
        return count, run(int(np.argmax(lasts - firsts))), tuple(map(run, range(min(count, MOST))))

    def dump(self, data: NDArray[np.uint8]) -> Dump:
        """Return both sides around the first mismatch."""
        start = max(0, (self._first_bytes - DUMP_BEFORE_BYTES) // ROW_BYTES * ROW_BYTES)
        rows = slice(start - self.start, start - self.start + DUMP_BYTES)
        return Dump(start, self._due[rows].tobytes().hex(), data[rows].tobytes().hex())


def look(  # noqa: PLR0917 - what a check knows, in the order in which it came to know it
    read: Callable[[int, int], bytes],
    size_bytes: int,
    pattern: Pattern,
    t: int,
    first: Mismatch,
    counts: CheckCounts,
) -> Evidence:
    """Look at what lies around the first mismatch of a check, twice.

    `read(offset_bytes, length)` returns the buffer's bytes. `second_read` is `same` only if every look,
    the check's own included, has found the same.
    """
    part = _Part(size_bytes, pattern, t, first.offset_bytes)
    got, again = (np.frombuffer(read(part.start, part.stop - part.start), np.uint8) for _ in range(2))
    wrong, wrong_again = part.wrong(got), part.wrong(again)
    told = tuple(part.told(int(position), got, again) for position in wrong[:MOST])
    all_seen = part.stop < size_bytes or wrong.size == counts.mismatched
    same = all_seen and told[:1] and (told[0].offset_bytes, told[0].got) == (first.offset_bytes, first.got)
    if not wrong_again.size:
        second_read = "right"
    else:
        second_read = "same" if same and np.array_equal(got, again) else "changed"
    return Evidence(
        second_read,
        part.stop - first.offset_bytes,
        *part.runs(wrong),
        told,
        part.dump(got),
    )
