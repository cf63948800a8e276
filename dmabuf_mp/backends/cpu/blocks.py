"""Patterns in numpy, 32 Ki words at a time: fills and checks near the memory's own speed.

A block of any pattern is one table plus one constant. A check makes the block that is due, compares the
memory with it in one go, and counts only where they differ; the extra memory does not grow with the size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp.backends.base import CheckCounts
from dmabuf_mp.patterns import BLOCK_WORDS, M, S, mix, split, tail_byte

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dmabuf_mp.patterns import Pattern

WORD = np.dtype("<u4")
WORD_BYTES = WORD.itemsize
_INVERSES = pow(0x846CA68B, -1, 2**32), pow(0x7FEB352D, -1, 2**32)


def unmix(x: int) -> int:
    """Return the number that `mix` makes x of."""
    x ^= x >> 16
    x = x * _INVERSES[0] & M
    x ^= x >> 15 ^ x >> 30
    x = x * _INVERSES[1] & M
    return x ^ x >> 16


@lru_cache(maxsize=8)
def _table(kind: str, seed: int) -> NDArray[np.uint32]:
    """Return what the words of a block add to the block's constant."""
    k = np.arange(BLOCK_WORDS, dtype=WORD)
    if kind == "random":
        k ^= np.uint32(mix(seed))
        k ^= k >> 16
        k *= np.uint32(0x7FEB352D)
        k ^= k >> 15
        k *= np.uint32(0x846CA68B)
        k ^= k >> 16
    elif kind == "address":
        k *= np.uint32(4)
    k.setflags(write=False)
    return k


class Words:
    """The words of one step of a pattern."""

    def __init__(self, pattern: Pattern, t: int) -> None:
        self._random = pattern.kind == "random"
        self._seed = pattern.seed & M if self._random else 0
        self._table = _table(pattern.kind, self._seed)
        if self._random:
            self._start = mix((t + pattern.kappa) & M)
        else:
            self._stride = 4 if pattern.kind == "address" else 1
            self._start = S * t + pattern.kappa + (pattern.base - 1 if pattern.kind == "ramp" else 0)

    def write(self, block: int, out: NDArray[np.uint32]) -> None:
        """Write the words from `block` * 2**15 on into `out`, which holds no more than 2**15."""
        if self._random:
            constant = mix((block & M) ^ self._start)
            np.add(self._table[: out.size], np.uint32(constant), out=out)
            # mix has an inverse, so one word at most comes to 0, and which one can be computed.
            if (zero := unmix(-constant & M) ^ mix(self._seed)) < out.size:
                out[zero] = 1
        else:
            first = 1 + (self._start + self._stride * BLOCK_WORDS * block) % M
            np.add(self._table[: out.size], np.uint32(first), out=out)
            # uint32 counts modulo 2**32, and the pattern modulo one less.
            out[(M - first) // self._stride + 1 :] += np.uint32(1)


def _blocks(view: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield each block's number and its words in memory."""
    words = view[: split(view.size)[0] * WORD_BYTES].view(WORD)
    for block, start in enumerate(range(0, words.size, BLOCK_WORDS)):
        yield block, words[start : start + BLOCK_WORDS]


def _tail(size_bytes: int, pattern: Pattern, t: int) -> bytes:
    """Return the bytes after the last whole word."""
    words, tail = split(size_bytes)
    return bytes(tail_byte(pattern, words, j, t) for j in range(tail))


def fill(view: NDArray[np.uint8], pattern: Pattern, t: int) -> None:
    """Write every word and tail byte of step t into bytes that begin on a word's boundary."""
    words = Words(pattern, t)
    for block, memory in _blocks(view):
        words.write(block, memory)
    tail = _tail(view.size, pattern, t)
    view[view.size - len(tail) :] = np.frombuffer(tail, np.uint8)


def differences(memory: NDArray[np.generic], expected: NDArray[np.generic]) -> tuple[int, int]:
    """Count the positions in which memory was just seen to differ, and say which is the first.

    Never fewer than one: what is right by the time of the count was still wrong a moment ago.
    """
    differ = memory != expected
    return max(1, int(np.count_nonzero(differ))), int(np.argmax(differ))


def _expected(
    view: NDArray[np.uint8], pattern: Pattern, t: int
) -> Iterator[tuple[int, NDArray[np.generic], bytearray]]:
    """Yield each part's offset in bytes, its positions in memory, and the bytes that are due there."""
    words = Words(pattern, t)
    due = bytearray()
    for block, memory in _blocks(view):
        if memory.nbytes != len(due):
            due = bytearray(memory.nbytes)
        words.write(block, np.frombuffer(due, WORD))
        yield block * BLOCK_WORDS * WORD_BYTES, memory, due
    if tail := _tail(view.size, pattern, t):
        yield view.size - len(tail), view[view.size - len(tail) :], bytearray(tail)


def check(view: NDArray[np.uint8], pattern: Pattern, t: int) -> CheckCounts:
    """Compare every word and tail byte with step t."""
    matched = mismatched = 0
    first: int | None = None
    for offset_bytes, memory, due in _expected(view, pattern, t):
        matched += memory.size
        # A bytearray compares itself with any buffer at memcmp's speed; numpy would take three passes.
        if due != memory.data:
            count, index = differences(memory, np.frombuffer(due, memory.dtype))
            matched, mismatched = matched - count, mismatched + count
            if first is None:
                first = offset_bytes + index * memory.itemsize
    return CheckCounts(matched, mismatched, first)
