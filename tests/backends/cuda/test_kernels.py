"""The kernels' own text, run on the CPU, against the patterns' definition; and the PTX made of it."""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import patterns
from dmabuf_mp.backends.cpu.blocks import unmix
from dmabuf_mp.backends.cuda import build_ptx
from dmabuf_mp.errors import Unsupported
from dmabuf_mp.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
NOTHING_FOUND = 2**64 - 1
TILE_WORDS = 4096
BLOCKS = 3  # fewer than the tiles of the larger sizes, so that a block takes several
SIZES = (1, 3, 4, 7, 15, 16, 33, 16383, 4 * TILE_WORDS, 4 * 5 * TILE_WORDS, 4 * 7 * TILE_WORDS + 4 * 517 + 14)
PATTERNS = (
    Pattern("ramp"),
    Pattern("ramp", base=1, kappa=patterns.M),
    Pattern("ramp", base=patterns.M - 5000),  # wraps inside the buffer
    Pattern("address"),
    Pattern("address", kappa=patterns.M - 70000),
    Pattern("random", seed=7),
    Pattern("random", seed=patterns.M, kappa=123456789),
)


def values(pattern: Pattern, t: int) -> tuple[int, ...]:
    return patterns.KINDS.index(pattern.kind), pattern.base, pattern.seed, pattern.kappa, t


def expected(pattern: Pattern, t: int, size_bytes: int) -> bytes:
    words, tail = patterns.split(size_bytes)
    data = b"".join(patterns.word(pattern, i, t).to_bytes(4, "little") for i in range(words))
    return data + bytes(patterns.tail_byte(pattern, words, j, t) for j in range(tail))


class Kernels:
    """The two kernels, on memory of this process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        numbers = (ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, *[ctypes.c_uint32] * 6)
        self._library.run_fill.argtypes = numbers
        self._library.run_check.argtypes = (*numbers, ctypes.c_uint64)
        self._library.word_at.argtypes = (ctypes.c_uint64, *[ctypes.c_uint32] * 5)
        self._library.word_at.restype = ctypes.c_uint32

    def fill(self, memory: ctypes.Array[ctypes.c_char], size_bytes: int, pattern: Pattern, t: int) -> None:
        size = patterns.split(size_bytes)
        self._library.run_fill(BLOCKS, ctypes.addressof(memory), *size, *values(pattern, t))

    def check(
        self, memory: ctypes.Array[ctypes.c_char], size_bytes: int, pattern: Pattern, t: int
    ) -> tuple[int, int, int]:
        counters = (ctypes.c_uint64 * 3)(0, 0, NOTHING_FOUND)
        size = patterns.split(size_bytes)
        where = ctypes.addressof(memory)
        self._library.run_check(BLOCKS, where, *size, *values(pattern, t), ctypes.addressof(counters))
        matched, mismatched, first = counters
        return matched, mismatched, first

    def word(self, i: int, pattern: Pattern, t: int) -> int:
        return int(self._library.word_at(i, *values(pattern, t)))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    library = tmp_path_factory.mktemp("kernels") / "kernels.so"
    source = HERE / "kernels_on_cpu.cpp"
    flags = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wno-unknown-pragmas")
    subprocess.run(["g++", *flags, "-I", build_ptx.SOURCE.parent, "-o", library, source], check=True)
    yield Kernels(library)


def memory_for(size_bytes: int) -> ctypes.Array[ctypes.c_char]:
    """Return poisoned memory that is aligned as a GPU's is, with some behind the end to see that it stays."""
    backing = (ctypes.c_char * (size_bytes + 64))()
    start = -ctypes.addressof(backing) % 16
    memory = (ctypes.c_char * (size_bytes + 16)).from_buffer(backing, start)
    ctypes.memset(memory, 0xFF, len(memory))
    return memory


@pytest.mark.parametrize("size_bytes", SIZES)
def test_fill_writes_the_pattern_and_nothing_behind_it(kernels: Kernels, size_bytes: int) -> None:
    for t, pattern in enumerate(PATTERNS[::2] if size_bytes > 2**16 else PATTERNS):
        memory = memory_for(size_bytes)
        kernels.fill(memory, size_bytes, pattern, t)
        assert memory.raw[:size_bytes] == expected(pattern, t, size_bytes), (pattern, t)
        assert memory.raw[size_bytes:] == b"\xff" * 16


@pytest.mark.parametrize("size_bytes", SIZES)
def test_check_covers_every_position_and_finds_each_change(kernels: Kernels, size_bytes: int) -> None:
    pattern, t = Pattern("random", seed=3, kappa=9), 4
    memory = memory_for(size_bytes)
    kernels.fill(memory, size_bytes, pattern, t)
    positions = patterns.positions(size_bytes)
    assert kernels.check(memory, size_bytes, pattern, t) == (positions, 0, NOTHING_FOUND)

    words = size_bytes // 4
    for offset in sorted({0, size_bytes // 2, size_bytes - 1}):
        before = memory[offset]
        memory[offset] = bytes([before[0] ^ 0x10])
        position = offset if offset >= 4 * words else offset // 4 * 4
        assert kernels.check(memory, size_bytes, pattern, t) == (positions - 1, 1, position)
        memory[offset] = before
    other = kernels.check(memory, size_bytes, pattern, t + 2)
    assert other[0] + other[1] == positions
    assert other[1] == sum(
        patterns.word(pattern, i, t) != patterns.word(pattern, i, t + 2) for i in range(words)
    ) + sum(
        patterns.tail_byte(pattern, words, j, t) != patterns.tail_byte(pattern, words, j, t + 2)
        for j in range(size_bytes % 4)
    )


def test_poison_and_zeros_match_nowhere(kernels: Kernels) -> None:
    size_bytes = 4 * TILE_WORDS + 7
    for byte in (0x00, 0xFF):
        memory = memory_for(size_bytes)
        ctypes.memset(memory, byte, size_bytes)
        for pattern in (Pattern("ramp"), Pattern("address"), Pattern("random")):
            assert kernels.check(memory, size_bytes, pattern, 0)[1:] == (patterns.positions(size_bytes), 0)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_past_4_gib_and_at_every_carry(kernels: Kernels, pattern: Pattern) -> None:
    near = (0, 2**15, 2**30, 2**32, 2**33, 2**47, patterns.M - pattern.base, (patterns.M - pattern.base) // 4)
    for i in {max(0, where + step) for where in near for step in range(-3, 4)}:
        for t in (0, 1, 2, 5, 2**31 + 1, patterns.M):
            assert kernels.word(i, pattern, t) == patterns.word(pattern, i, t), (i, t)


def test_the_word_that_would_be_zero_is_one(kernels: Kernels) -> None:
    pattern, t, k = Pattern("random", seed=7), 2, 5
    table_word = patterns.mix(k ^ patterns.mix(pattern.seed))
    q = unmix(-table_word & patterns.M) ^ patterns.mix(t)
    assert patterns.word(pattern, q * patterns.BLOCK_WORDS + k, t) == 1
    assert kernels.word(q * patterns.BLOCK_WORDS + k, pattern, t) == 1


def test_ptx_is_made_of_this_source_and_for_old_drivers() -> None:
    ptx = build_ptx.TARGET.read_text()
    assert ptx.startswith(build_ptx.header(build_ptx.SOURCE.read_bytes()))
    assert "\n.version 8.0\n" in ptx
    assert "\n.target sm_75\n" in ptx


def test_ptx_is_what_the_compiler_gives() -> None:
    # The compiler leaves its thread in the locale "C": in a thread of its own that is nobody else's.
    try:
        with ThreadPoolExecutor(1) as pool:
            ptx = pool.submit(build_ptx.build, build_ptx.SOURCE.read_bytes()).result()
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert ptx == build_ptx.TARGET.read_text()
