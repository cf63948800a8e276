"""The closer look at wrong data: where it is wrong, whether it stays so, and what lies around it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dmabuf_mp.backends.base import CheckCounts
from dmabuf_mp.backends.cpu import blocks
from dmabuf_mp.evidence import BLOCK_BYTES, DUMP_BYTES, LOOK_BYTES, MOST, look
from dmabuf_mp.findings import mismatch_from
from dmabuf_mp.mismatch import PAGE_BYTES, explain
from dmabuf_mp.model import Evidence, Mismatch, Stretch, Wrong
from dmabuf_mp.patterns import KINDS, Pattern, split, tail_byte, word

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Change = Callable[[NDArray[np.uint8]], None]

SIZE = 5 * PAGE_BYTES + 3
LARGE = LOOK_BYTES + 3 * BLOCK_BYTES + 6
T = 8  # round 4, the producer's fill


@pytest.fixture(params=KINDS)
def pattern(request: pytest.FixtureRequest) -> Pattern:
    return Pattern(request.param, seed=7, kappa=0x12345678)


def filled(pattern: Pattern, size_bytes: int = SIZE) -> NDArray[np.uint8]:
    view = np.zeros(size_bytes, np.uint8)
    blocks.fill(view, pattern, T)
    return view


def seen(view: NDArray[np.uint8], pattern: Pattern, *, after: tuple[Change, ...] = ()) -> Evidence:
    """Check, explain and look closer, as a worker does; after each of the looks a change is made."""
    changes = list(after)

    def read(offset_bytes: int, length: int) -> bytes:
        assert length <= LOOK_BYTES
        data = view[offset_bytes : offset_bytes + length].tobytes()
        if changes:
            changes.pop(0)(view)
        return data

    counts = blocks.check(view, pattern, T)
    assert counts.mismatched
    first = explain(read, view.size, pattern, T, 4, counts)
    return look(read, view.size, pattern, T, first, counts)


def due(pattern: Pattern, size_bytes: int, offset_bytes: int) -> str:
    words, _ = split(size_bytes)
    if offset_bytes < 4 * words:
        return f"0x{word(pattern, offset_bytes // 4, T):08x}"
    return f"0x{tail_byte(pattern, words, offset_bytes - 4 * words, T):02x}"


def test_runs_and_positions_are_told_from_the_first_to_the_tail(pattern: Pattern) -> None:
    view = filled(pattern)
    view[[41, 44, 100]] ^= 0xFF
    view[PAGE_BYTES : PAGE_BYTES + 80] ^= 0xFF
    view[-4:] ^= 0xFF  # the last byte of the last word, and the tail
    found = seen(view, pattern)
    runs = (Stretch(40, 8), Stretch(100, 4), Stretch(PAGE_BYTES, 80), Stretch(SIZE - 7, 7))
    assert (found.runs, found.first_runs, found.longest_run) == (4, runs, runs[2])
    assert (found.second_read, found.looked_at_bytes) == ("same", SIZE - 40)
    at = [40, 44, 100, *range(PAGE_BYTES, PAGE_BYTES + 4 * (MOST - 3), 4)]
    assert [one.offset_bytes for one in found.positions] == at
    assert [one.page for one in found.positions] == [0] * 3 + [1] * (MOST - 3)
    for one in found.positions:
        got = f"0x{int(view[one.offset_bytes :].view()[:4].view('<u4')[0]):08x}"
        assert (one.expected, one.got, one.again) == (due(pattern, SIZE, one.offset_bytes), got, got)


def test_the_tail_alone_is_told_by_its_bytes(pattern: Pattern) -> None:
    view = filled(pattern)
    view[[-3, -1]] ^= 0x10
    found = seen(view, pattern)
    assert found.first_runs == (Stretch(SIZE - 3, 1), Stretch(SIZE - 1, 1))
    texts = [(f"0x{int(view[at]) ^ 0x10:02x}", f"0x{int(view[at]):02x}") for at in (SIZE - 3, SIZE - 1)]
    assert [(one.expected, one.got) for one in found.positions] == texts


@pytest.mark.parametrize("first", [0, 63, 64, BLOCK_BYTES - 4, BLOCK_BYTES + 60, 3 * BLOCK_BYTES + 4096])
def test_no_more_is_looked_at_than_a_part_however_large_the_buffer_is(first: int, pattern: Pattern) -> None:
    view = filled(pattern, LARGE)
    view[first] ^= 1
    view[first // 4 * 4 + 12 :: BLOCK_BYTES] ^= 1
    found = seen(view, pattern)
    at = first // 4 * 4
    assert LOOK_BYTES - BLOCK_BYTES - 64 <= found.looked_at_bytes <= LOOK_BYTES
    end = at + found.looked_at_bytes
    places = [at, *range(at + 12, end, BLOCK_BYTES)]
    assert found.runs == len(places)
    assert found.first_runs == tuple(Stretch(place, 4) for place in places[:MOST])
    assert [one.expected for one in found.positions] == [due(pattern, LARGE, one) for one in places[:MOST]]
    assert found.second_read == "same"


def test_a_buffer_of_wrong_words_everywhere_is_one_run(pattern: Pattern) -> None:
    found = seen(np.zeros(LARGE, np.uint8), pattern)
    assert (found.runs, found.longest_run) == (1, Stretch(0, found.looked_at_bytes))
    every_other = filled(pattern, LARGE)
    every_other[::8] ^= 1
    assert seen(every_other, pattern).runs == LOOK_BYTES // 8


@pytest.mark.parametrize("first", [0, 16, 60, 64, 65, 100, PAGE_BYTES, SIZE - 20, SIZE - 1])
def test_a_dump_has_both_sides_around_the_first(first: int, pattern: Pattern) -> None:
    right = filled(pattern)
    view = right.copy()
    view[first] ^= 0x80
    dump = seen(view, pattern).dump
    assert dump.offset_bytes % 16 == 0
    assert dump.offset_bytes <= max(0, first - 48) or dump.offset_bytes == 0
    part = slice(dump.offset_bytes, dump.offset_bytes + DUMP_BYTES)
    assert (dump.expected, dump.got) == (right[part].tobytes().hex(), view[part].tobytes().hex())
    assert first in range(SIZE)[part]


# The second read.


def change(at: int, value: int) -> Change:
    def apply(view: NDArray[np.uint8]) -> None:
        view[at] = value

    return apply


def nothing(view: NDArray[np.uint8]) -> None:
    pass


@pytest.mark.parametrize("looks", [1, 2])
def test_data_that_changes_between_two_looks_is_told(looks: int, pattern: Pattern) -> None:
    right = int(filled(pattern)[100])
    cases = {
        "right": change(100, right),
        "changed": change(100, right ^ 3),
        "same": change(100, right ^ 1),
    }
    for second_read, then in cases.items():
        view = filled(pattern)
        view[100] ^= 1
        found = seen(view, pattern, after=(*[nothing] * (looks - 1), then))
        assert found.second_read == second_read
    view[100] = right ^ 1
    found = seen(view, pattern, after=(nothing, change(100, right ^ 3)))
    (one,) = found.positions
    assert (int(one.got, 16) ^ int(one.again, 16)) == 1 ^ 3


def test_what_comes_right_in_part_or_goes_wrong_meanwhile_has_changed(pattern: Pattern) -> None:
    right = filled(pattern)
    for at in (104, 8000):
        value = int(right[at])
        for then in (change(at, value), change(at, value ^ 2), change(at + 4, 0), change(50, 0)):
            view = right.copy()
            view[[100, at]] ^= 1
            assert seen(view, pattern, after=(nothing, then)).second_read == "changed"
        view = right.copy()
        view[[100, at]] ^= 1
        assert seen(view, pattern, after=(change(at, value),)).second_read == "changed"  # than when counted
        assert seen(view, pattern, after=(change(50, 0),)).second_read == "changed"  # it was right by then


def test_what_the_check_alone_saw_was_late(pattern: Pattern) -> None:
    view = filled(pattern)
    counts, first = CheckCounts(SIZE // 4 + 2, 1, 12), Mismatch(12, 0, "0x1", "0x1", "transient", 4)
    found = look(lambda at, n: view[at : at + n].tobytes(), SIZE, pattern, T, first, counts)
    assert (found.second_read, found.runs, found.longest_run, found.positions) == ("right", 0, None, ())
    fewer = CheckCounts(SIZE // 4 + 1, 2, 12)
    view[12] ^= 1
    first = Mismatch(12, 0, "", f"0x{int(view[12:16].view('<u4')[0]):08x}", "corrupt", 4)
    for counted, second_read in ((counts, "same"), (fewer, "changed")):
        found = look(lambda at, n: view[at : at + n].tobytes(), SIZE, pattern, T, first, counted)
        assert found.second_read == second_read


@pytest.mark.parametrize("size_bytes", [1, 3, 4, 5, 8, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_every_size_down_to_a_byte(size_bytes: int, pattern: Pattern) -> None:
    view = filled(pattern, size_bytes) ^ 0xFF
    found = seen(view, pattern)
    assert (found.runs, found.longest_run) == (1, Stretch(0, size_bytes))
    assert found.looked_at_bytes == size_bytes


# On its way into the report.


def test_it_comes_out_of_json_as_it_went_in() -> None:
    view = filled(Pattern())
    view[40] ^= 1
    found = seen(view, Pattern())
    assert found.positions == (Wrong(40, 0, "0xf1bbdd96", "0xf1bbdd97", "0xf1bbdd97"),)
    mismatch = Mismatch(40, 0, "0x1", "0x2", "corrupt", 3, found)
    assert mismatch_from(json.loads(json.dumps(asdict(mismatch)))) == mismatch
    plain = Mismatch(40, 0, "0x1", "0x2", "corrupt", 3)
    assert mismatch_from(json.loads(json.dumps(asdict(plain)))) == plain
