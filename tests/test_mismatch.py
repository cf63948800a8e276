"""Every kind of fault that leaves its own data behind is told from the others, for every pattern."""

from __future__ import annotations

import numpy as np
import pytest

from dmabuf_mp.backends.base import CheckCounts
from dmabuf_mp.backends.cpu import blocks
from dmabuf_mp.mismatch import PAGE_BYTES, explain
from dmabuf_mp.model import Mismatch
from dmabuf_mp.patterns import KINDS, Pattern, word

SIZE = 5 * PAGE_BYTES + 3
T = 8  # round 4, the producer's fill


def filled(pattern: Pattern, t: int = T, size_bytes: int = SIZE) -> np.ndarray:
    view = np.zeros(size_bytes, np.uint8)
    blocks.fill(view, pattern, t)
    return view


def explained(view: np.ndarray, pattern: Pattern, t: int = T) -> Mismatch:
    """Check, and explain what was found, as a worker does."""
    counts = blocks.check(view, pattern, t)
    assert counts.mismatched
    return explain(lambda at, n: view[at : at + n].tobytes(), view.size, pattern, t, t // 2, counts)


@pytest.fixture(params=KINDS)
def pattern(request: pytest.FixtureRequest) -> Pattern:
    return Pattern(request.param, seed=7, kappa=0x12345678)


def test_zeros(pattern: Pattern) -> None:
    assert explained(np.zeros(SIZE, np.uint8), pattern).kind == "all_zero"
    view = filled(pattern)
    view[PAGE_BYTES : PAGE_BYTES + 100] = 0
    found = explained(view, pattern)
    assert (found.kind, found.offset_bytes, found.page) == ("zeros", PAGE_BYTES, 1)


def test_memory_that_was_never_written(pattern: Pattern) -> None:
    found = explained(np.full(SIZE, 0xFF, np.uint8), pattern)
    expected = word(pattern, 0, T)
    assert found == Mismatch(0, 0, f"0x{expected:08x}", "0xffffffff", "poison", 4)


@pytest.mark.parametrize(
    ("t", "got", "kind"),
    [
        (8, 6, "earlier_round:3"),
        (8, 0, "earlier_round:0"),
        (9, 8, "not_written_back"),
        (9, 7, "earlier_round:3"),
        (8, 9, "written_back_early"),
        (8, 10, "later_round:5"),
    ],
)
def test_another_step_of_the_same_buffer(pattern: Pattern, t: int, got: int, kind: str) -> None:
    view = filled(pattern, got, SIZE - 3)
    assert explained(view, pattern, t).kind == kind
    view[: 2 * PAGE_BYTES] = filled(pattern, t)[: 2 * PAGE_BYTES]
    assert explained(view, pattern, t).kind == f"torn:{kind}"


@pytest.mark.parametrize("shift", [1, 3, 4, 64, 1000, PAGE_BYTES])
@pytest.mark.parametrize("fill", [0, 0xFF])
def test_data_that_lies_too_far_on(pattern: Pattern, shift: int, fill: int) -> None:
    view = filled(pattern)
    view[shift:] = view[:-shift].copy()
    view[:shift] = fill
    assert explained(view, pattern).kind == f"shifted:+{shift}"


@pytest.mark.parametrize("shift", [1, 4, PAGE_BYTES])
def test_data_that_lies_too_far_ahead(pattern: Pattern, shift: int) -> None:
    view = filled(pattern)
    view[:-shift] = view[shift:].copy()
    assert explained(view, pattern).kind == f"shifted:-{shift}"


def test_the_data_of_another_scenario(pattern: Pattern) -> None:
    view = filled(Pattern(pattern.kind, seed=7, kappa=0x0BADCAFE))
    assert explained(view, pattern).kind == "another_buffer"


def test_single_bits(pattern: Pattern) -> None:
    view = filled(pattern)
    view[[40, 44, 5000, 5555]] ^= np.array([1, 2, 64, 128], np.uint8)
    found = explained(view, pattern)
    assert (found.kind, found.offset_bytes) == ("scattered_bits", 40)


def test_the_tail_alone(pattern: Pattern) -> None:
    view = filled(pattern)
    view[-2] ^= 0x10
    found = explained(view, pattern)
    assert (found.kind, found.offset_bytes) == ("tail_only", SIZE - 2)
    assert (found.expected, found.got) == (f"0x{int(view[-2]) ^ 0x10:02x}", f"0x{int(view[-2]):02x}")


def test_anything_else(pattern: Pattern) -> None:
    rng = np.random.default_rng(1)
    assert explained(rng.integers(1, 255, SIZE, np.uint8), pattern).kind == "corrupt"
    view = filled(pattern)
    view[100:108] = 0x5A
    assert explained(view, pattern).kind == "corrupt"


def test_what_is_right_by_the_second_look(pattern: Pattern) -> None:
    view = filled(pattern)
    counts = CheckCounts(SIZE // 4 + 2, 1, 12)
    found = explain(lambda at, n: view[at : at + n].tobytes(), SIZE, pattern, T, 4, counts)
    assert found.kind == "transient"
    assert found.expected == found.got


@pytest.mark.parametrize("size_bytes", [1, 3, 4, 5, 8, 12])
def test_the_smallest_buffers(pattern: Pattern, size_bytes: int) -> None:
    assert explained(np.zeros(size_bytes, np.uint8), pattern).kind == (
        "all_zero" if size_bytes > 3 else "tail_only"
    )
    assert explained(np.full(size_bytes, 0x77, np.uint8), pattern).kind in ("corrupt", "tail_only")


def test_without_a_mismatch_there_is_nothing_to_explain(pattern: Pattern) -> None:
    with pytest.raises(ValueError, match="no mismatch"):
        explain(lambda at, n: b"", 4, pattern, 0, 0, CheckCounts(1, 0))
