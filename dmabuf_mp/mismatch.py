"""What a mismatch looks like from close by: which kind of fault leaves such data."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp.model import Mismatch
from dmabuf_mp.patterns import BLOCK_WORDS, M, split, tail_byte, word

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.backends.base import CheckCounts
    from dmabuf_mp.patterns import Pattern

PAGE_BYTES = mmap.PAGESIZE
PAGE_WORDS = PAGE_BYTES // 4
WINDOW_WORDS = 2 * PAGE_WORDS  # from the first mismatch on: past the hole that a shift by a page leaves
OTHER_STEPS = 4096  # how many earlier steps a wrong word is compared with
NEEDLE_BYTES = 64  # found elsewhere, so many are no coincidence; nor are eight
POISON = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Window:
    """Words as they lie in a buffer of `words` words, from `first` on; step t of a pattern is due."""

    data: bytes
    first: int
    words: int
    pattern: Pattern
    t: int

    def due(self, i: int) -> int:
        return word(self.pattern, i, self.t)

    def wrong(self) -> dict[int, int]:
        """Return the wrong words by their index."""
        values = (int.from_bytes(self.data[k : k + 4], "little") for k in range(0, len(self.data), 4))
        return {i: value for i, value in enumerate(values, self.first) if value != self.due(i)}

    def classify(self, *, everywhere: bool) -> str:
        """Name the fault; `everywhere` says that no position of the buffer is right."""
        wrong = self.wrong()
        if not wrong:
            return "transient"
        if all(got == 0 for got in wrong.values()):
            return "all_zero" if everywhere else "zeros"
        if all(got == POISON for got in wrong.values()):
            return "poison"
        if step := self.other_step(wrong):
            return step if everywhere else f"torn:{step}"
        if shift := self.shift():
            return f"shifted:{shift:+d}"
        if all((got ^ self.due(i)).bit_count() == 1 for i, got in wrong.items()):
            return "scattered_bits"
        if 4 <= len(wrong) == len(self.data) // 4 and self.same_difference(wrong):
            return "another_buffer"
        return "corrupt"

    def other_step(self, wrong: dict[int, int]) -> str | None:
        """Name the step that every wrong word is of: the next ones, or one that came before."""
        for other in range(self.t + 2, max(-1, self.t - OTHER_STEPS), -1):
            if other != self.t and all(word(self.pattern, i, other) == got for i, got in wrong.items()):
                if other // 2 == self.t // 2:
                    return "not_written_back" if other < self.t else "written_back_early"
                return f"{'earlier' if other < self.t else 'later'}_round:{other // 2}"
        return None

    def shift(self) -> int | None:
        """Say by how many bytes the window's end lies after its place (or before: negative), up to a page."""
        needle = self.data[-NEEDLE_BYTES:]
        if len(needle) < 8:
            return None
        place = self.first + (len(self.data) - len(needle)) // 4
        start = max(0, place - PAGE_WORDS)
        stop = min(self.words, place + PAGE_WORDS + len(needle) // 4)
        due = b"".join(self.due(i).to_bytes(4, "little") for i in range(start, stop))
        found = due.find(needle)
        return None if found < 0 else (place - start) * 4 - found

    def same_difference(self, wrong: dict[int, int]) -> bool:
        """Whether the words differ from what is due by a constant, as another scenario's data does."""
        random = self.pattern.kind == "random"
        modulus = 2**32 if random else M
        found = {(i // BLOCK_WORDS * random, (got - self.due(i)) % modulus) for i, got in wrong.items()}
        return len(found) == len({block for block, _ in found})


def explain(  # noqa: PLR0917 - what a check knows, in the order in which it came to know it
    read: Callable[[int, int], bytes],
    size_bytes: int,
    pattern: Pattern,
    t: int,
    round_: int,
    counts: CheckCounts,
) -> Mismatch:
    """Look again at the first mismatch of a check, and name what it looks like.

    `read(offset_bytes, length)` returns the buffer's bytes; `counts` must hold a mismatch, else ValueError.
    The kinds are `all_zero` (`zeros`: a part is right), `poison` (never written), `earlier_round:N`,
    `later_round:N`, `not_written_back`, `written_back_early` (each `torn:` where a part is right),
    `shifted:±N` (bytes), `scattered_bits`, `another_buffer`, `tail_only`, `transient` (right by now), and
    `corrupt` for anything else.
    """
    offset_bytes = counts.first_offset_bytes
    if offset_bytes is None:
        raise ValueError("there is no mismatch to explain")
    words, _ = split(size_bytes)
    first = offset_bytes // 4
    if first < words:
        data = read(4 * first, 4 * min(WINDOW_WORDS, words - first))
        kind = _Window(data, first, words, pattern, t).classify(everywhere=counts.matched == 0)
        expected, got = f"{word(pattern, first, t):#010x}", f"{int.from_bytes(data[:4], 'little'):#010x}"
    else:
        kind = "tail_only"
        expected = f"{tail_byte(pattern, words, offset_bytes - 4 * words, t):#04x}"
        got = f"{read(offset_bytes, 1)[0]:#04x}"
    return Mismatch(offset_bytes, offset_bytes // PAGE_BYTES, expected, got, kind, round_)
