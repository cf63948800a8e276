"""The patterns are a contract: two workers on different devices have to agree on every bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmabuf_mp.patterns import KINDS, M, Pattern, kappa, mix, poison, positions, split, step, tail_byte, word

VECTORS = {
    (0, 0): (0x00001000, 0x00000001, 0x54ACEA80),
    (0, 2): (0x3C6F0363, 0x3C6EF364, 0x8B03EA5D),
    (2**30 + 5, 0): (0x40001005, 0x00000016, 0x318C98AA),
    (2**33 + 1, 4): (0x78DDF6C9, 0x78DDE6D3, 0x58244B61),
}


@pytest.mark.parametrize(("place", "words"), VECTORS.items())
def test_words_equal_the_published_vectors(place: tuple[int, int], words: tuple[int, int, int]) -> None:
    i, t = place
    patterns = (Pattern("ramp"), Pattern("address"), Pattern("random", seed=7))
    assert tuple(word(pattern, i, t) for pattern in patterns) == words


def test_ramp_counts_from_its_base_and_skips_zero_at_the_wrap() -> None:
    ramp = Pattern("ramp", base=M - 1)
    assert [word(ramp, i, 0) for i in range(4)] == [M - 1, M, 1, 2]


def test_address_skips_zero_at_the_wrap() -> None:
    i = (2**32 - 4) // 4
    assert [word(Pattern("address"), i + k, 0) for k in range(3)] == [2**32 - 3, 2, 6]


SEED_OF_ZERO = 0x1B1999FB


def test_random_makes_one_of_zero() -> None:
    assert mix(SEED_OF_ZERO) == 5  # so that word 5 of step 0 is mix(5 ^ 5) + mix(0 ^ 0), which is 0
    assert word(Pattern("random", seed=SEED_OF_ZERO), 5, 0) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        Pattern,
        kind=st.sampled_from(KINDS),
        base=st.integers(1, M),
        seed=st.integers(0, 2**64),
        kappa=st.integers(0, M),
    ),
    st.integers(0, 2**61),
    st.integers(0, 2**40),
)
def test_nothing_is_ever_zero(pattern: Pattern, i: int, t: int) -> None:
    assert 1 <= word(pattern, i, t) <= M
    assert 1 <= tail_byte(pattern, i, 2, t) <= 255


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_bytes", [*range(1, 13), 4096])
def test_memory_that_nobody_wrote_never_matches(kind: str, size_bytes: int) -> None:
    words, tail = split(size_bytes)
    unwritten = poison(size_bytes)
    for base in (1, M - 2, M - 1, M):  # M is the one word that 0xFF can pass for
        for t in (*range(300), M):
            pattern = Pattern(kind, base=base)
            due = b"".join(word(pattern, i, t).to_bytes(4, "little") for i in range(words))
            due += bytes(tail_byte(pattern, words, j, t) for j in range(tail))
            assert due != bytes([unwritten]) * size_bytes


def test_every_step_and_scenario_has_words_of_its_own() -> None:
    for kind in KINDS:
        assert len({word(Pattern(kind), 9, t) for t in range(2000)}) == 2000
        assert len({word(Pattern(kind, kappa=kappa(1, f"name-{n}", 0)), 9, 0) for n in range(2000)}) == 2000


def test_a_tail_byte_comes_from_the_word_that_would_be_there() -> None:
    ramp = Pattern("ramp", base=0xABCDEF)
    assert [tail_byte(ramp, 5, j, 0) for j in range(3)] == [1 + (0xABCDEF + 5 + j) % 255 for j in range(3)]


def test_kappa_is_the_crc_of_what_makes_a_scenario_unique() -> None:
    assert kappa(0, "a", 0) == 0xB2F0189C  # crc32 of 0:a:0
    assert len({kappa(0, "a", 0), kappa(1, "a", 0), kappa(0, "b", 0), kappa(0, "a", 1)}) == 4


def test_steps_and_positions() -> None:
    assert [step(r, write_back=w) for r in range(2) for w in (False, True)] == [0, 1, 2, 3]
    assert split(16387) == (4096, 3)
    assert positions(16387) == 4099
    assert positions(3) == 3
