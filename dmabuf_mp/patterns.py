"""The values that a buffer is filled with, and that a consumer derives for itself.

Words are little-endian uint32; i is the index of a word from the start of the shared range, and
t = 2 * round + d, with d = 0 for the producer's fill and 1 for a consumer's write-back. No word and no
tail byte is ever zero, so memory that nobody wrote never passes for data.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

M = 2**32 - 1
S = 0x9E3779B1
BLOCK_WORDS = 2**15
KINDS = ("ramp", "random", "address")
DEFAULT_BASE = 0x1000


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern with every parameter resolved: what the two ends agree on to the bit."""

    kind: str = "ramp"
    base: int = DEFAULT_BASE
    seed: int = 0
    kappa: int = 0


def kappa(run_seed: int, scenario: str, repeat: int) -> int:
    """Return the term that tells scenarios apart: crc32 of `run-seed:scenario-name:repeat`."""
    return zlib.crc32(f"{run_seed}:{scenario}:{repeat}".encode())


def step(round_: int, *, write_back: bool = False) -> int:
    """Return t of a round: the producer's fill, or a consumer's write-back."""
    return 2 * round_ + write_back


def mix(x: int) -> int:
    """Return the 32-bit finaliser that `random` is made of."""
    x ^= x >> 16
    x = x * 0x7FEB352D & M
    x ^= x >> 15
    x = x * 0x846CA68B & M
    return x ^ x >> 16


def word(pattern: Pattern, i: int, t: int) -> int:
    """Return word i of step t, from 1 to 2**32 - 1; the reference that the fast versions must equal."""
    if pattern.kind == "ramp":
        return 1 + (pattern.base - 1 + i + S * t + pattern.kappa) % M
    if pattern.kind == "address":
        return 1 + (4 * i + S * t + pattern.kappa) % M
    q, k = divmod(i, BLOCK_WORDS)
    x = mix(k ^ mix(pattern.seed & M)) + mix((q & M) ^ mix((t + pattern.kappa) & M)) & M
    return x or 1


def tail_byte(pattern: Pattern, words: int, j: int, t: int) -> int:
    """Return byte j after the last whole word, from 1 to 255."""
    return 1 + word(pattern, words + j, t) % 255


def poison(size_bytes: int) -> int:
    """Return the byte that new memory of a size is filled with: no pattern's words are all made of it.

    It is 0xFF, which tells memory that nobody wrote from zeros that something wrote. One word and a few tail
    bytes can be 0xFF by right, and are never zero.
    """
    return 0xFF if size_bytes >= 8 else 0


def split(size_bytes: int) -> tuple[int, int]:
    """Return (whole words, tail bytes) of a size; their sum is the number of positions to check."""
    return divmod(size_bytes, 4)


def positions(size_bytes: int) -> int:
    """Return how many positions a full check covers: words and tail bytes."""
    return sum(split(size_bytes))
