"""The fast patterns equal the reference to the bit, and a check misses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmabuf_mp.backends.base import CheckCounts
from dmabuf_mp.backends.cpu import blocks
from dmabuf_mp.patterns import BLOCK_WORDS, KINDS, M, Pattern, mix, positions, split, tail_byte, word

BLOCK_BYTES = 4 * BLOCK_WORDS
SEED_OF_ZERO = 0x1B1999FB  # word 5 of step 0 would be 0
SIZES = (1, 3, 4, 7, 64, 4099, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 5, 2 * BLOCK_BYTES + 6)

patterns = st.builds(
    Pattern,
    kind=st.sampled_from(KINDS),
    # Near both ends of the range, where ramps wrap.
    base=st.integers(1, 2**17) | st.integers(M - 2**17, M),
    seed=st.integers(0, 2**64) | st.just(SEED_OF_ZERO),
    kappa=st.integers(0, M),
)


def reference(pattern: Pattern, size_bytes: int, t: int) -> bytes:
    words, tail = split(size_bytes)
    body = b"".join(word(pattern, i, t).to_bytes(4, "little") for i in range(words))
    return body + bytes(tail_byte(pattern, words, j, t) for j in range(tail))


def filled(pattern: Pattern, size_bytes: int, t: int) -> np.ndarray:
    view = np.zeros(size_bytes, np.uint8)
    blocks.fill(view, pattern, t)
    return view


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_bytes", SIZES)
def test_fill_equals_the_reference(kind: str, size_bytes: int) -> None:
    pattern = Pattern(kind, base=0xFFFF0000, seed=7, kappa=0xDEADBEEF)
    assert filled(pattern, size_bytes, 3).tobytes() == reference(pattern, size_bytes, 3)


@settings(max_examples=40, deadline=None)
@given(patterns, st.integers(1, 3000), st.integers(0, 2**20))
def test_fill_and_check_equal_the_reference(pattern: Pattern, size_bytes: int, t: int) -> None:
    view = filled(pattern, size_bytes, t)
    assert view.tobytes() == reference(pattern, size_bytes, t)
    assert blocks.check(view, pattern, t) == CheckCounts(positions(size_bytes), 0)


@settings(max_examples=60, deadline=None)
@given(
    patterns,
    st.integers(0, 2**45),
    st.integers(0, 2**20),
    st.lists(st.integers(0, BLOCK_WORDS - 1), max_size=20),
)
def test_any_block_equals_the_reference(pattern: Pattern, block: int, t: int, places: list[int]) -> None:
    out = np.zeros(BLOCK_WORDS, blocks.WORD)
    blocks.Words(pattern, t).write(block, out)
    for k in (0, 1, BLOCK_WORDS - 1, *places):
        assert out[k] == word(pattern, block * BLOCK_WORDS + k, t)
    assert out.all()


@pytest.mark.parametrize("kind", ["ramp", "address"])
@pytest.mark.parametrize("near", [0, 1, 2, 3, 4, 5])
def test_the_wrap_modulo_m_at_every_place_of_a_block(kind: str, near: int) -> None:
    stride = 4 if kind == "address" else 1
    for first in (M - near, M - near - stride * (BLOCK_WORDS - 1)):
        pattern = Pattern(kind, base=1, kappa=(first - 1) % M)
        out = np.zeros(BLOCK_WORDS, blocks.WORD)
        blocks.Words(pattern, 0).write(0, out)
        assert out[0] == first
        expected = 1 + (first - 1 + stride * np.arange(BLOCK_WORDS, dtype=np.uint64)) % M
        assert np.array_equal(out, expected)


def test_the_one_word_that_random_would_make_zero() -> None:
    pattern = Pattern("random", seed=SEED_OF_ZERO)
    view = filled(pattern, 64, 0)
    assert view.view(blocks.WORD)[5] == 1
    assert view.tobytes() == reference(pattern, 64, 0)


def test_past_four_gibi_words() -> None:
    for kind, expected in zip(
        ("ramp", "address", "random"), (0x78DDF6C9, 0x78DDE6D3, 0x58244B61), strict=True
    ):
        block, k = divmod(2**33 + 1, BLOCK_WORDS)
        out = np.zeros(BLOCK_WORDS, blocks.WORD)
        blocks.Words(Pattern(kind, seed=7), 4).write(block, out)
        assert out[k] == expected


@given(st.integers(0, M))
def test_unmix_undoes_mix(x: int) -> None:
    assert blocks.unmix(mix(x)) == x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_bytes", SIZES)
def test_one_wrong_byte_anywhere_is_one_mismatch_at_its_position(kind: str, size_bytes: int) -> None:
    pattern = Pattern(kind)
    view = filled(pattern, size_bytes, 0)
    words, tail = split(size_bytes)
    interesting = {0, 1, 3, 4, 63, BLOCK_BYTES - 1, BLOCK_BYTES, 4 * words - 1, 4 * words, size_bytes - 1}
    for offset in sorted(o for o in interesting if 0 <= o < size_bytes):
        view[offset] ^= 0x80
        position = offset if offset >= 4 * words else offset // 4 * 4
        assert blocks.check(view, pattern, 0) == CheckCounts(words + tail - 1, 1, position), offset
        view[offset] ^= 0x80


@pytest.mark.parametrize("kind", KINDS)
def test_every_mismatch_is_counted(kind: str) -> None:
    size_bytes = 3 * BLOCK_BYTES + 7
    view = filled(Pattern(kind), size_bytes, 0)
    wrong = [5, BLOCK_WORDS - 1, BLOCK_WORDS, 2 * BLOCK_WORDS + 17, 3 * BLOCK_WORDS]
    view[: 4 * (3 * BLOCK_WORDS + 1)].view(blocks.WORD)[wrong] ^= 1
    view[-3:-1] ^= 1
    assert blocks.check(view, Pattern(kind), 0) == CheckCounts(positions(size_bytes) - 7, 7, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_poison_and_any_other_step_never_match(kind: str) -> None:
    size_bytes = BLOCK_BYTES + 7
    pattern = Pattern(kind)
    everything = CheckCounts(0, positions(size_bytes), 0)
    assert blocks.check(np.zeros(size_bytes, np.uint8), pattern, 0) == everything
    view = filled(pattern, size_bytes, 4)
    for t in (0, 1, 2, 3, 5, 6):
        counts = blocks.check(view, pattern, t)
        assert counts.matched + counts.mismatched == positions(size_bytes)
        # A tail byte is one of 255 only, and may be the same by chance.
        assert counts.mismatched >= BLOCK_WORDS and counts.first_offset_bytes == 0
    poisoned = blocks.check(np.full(size_bytes, 0xFF, np.uint8), pattern, 0)
    assert poisoned.mismatched >= BLOCK_WORDS


def test_a_difference_that_is_gone_by_the_time_of_the_count_still_counts() -> None:
    same = np.arange(8, dtype=blocks.WORD)
    assert blocks.differences(same, same.copy()) == (1, 0)
