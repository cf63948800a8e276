"""What a role may do, and what it cannot get away with."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import roles
from dmabuf_mp.errors import CheckMissing, DmabufMpError, Unsupported, UsageError
from dmabuf_mp.findings import Findings, MismatchFound, describe
from dmabuf_mp.model import Mismatch
from dmabuf_mp.patterns import positions
from dmabuf_mp.wire import Kind
from tests.scripted import SIZE_BYTES, MiscountingDevice, PickyDevice, Script, context

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp import Context
    from dmabuf_mp.backends.base import Buffer


@pytest.fixture
def producer() -> object:
    with closing(Script("producer")) as script:
        yield script


@pytest.fixture
def consumer() -> object:
    with closing(Script("consumer[0]")) as script:
        yield script


def test_a_check_that_leaves_a_position_out_is_no_check(producer: Script) -> None:
    role = context(MiscountingDevice(), upstream=producer.offers(0))
    due = positions(SIZE_BYTES)
    with pytest.raises(CheckMissing, match=rf"consumer\[0\] compared {due - 1} of {due} positions"):
        roles.consume(role)
    assert producer.heard() == ["go"]
    with pytest.raises(CheckMissing):
        role.finish()


def test_a_role_that_did_not_do_its_part_cannot_finish(producer: Script, consumer: Script) -> None:
    with pytest.raises(CheckMissing, match=r"consumer\[0\] ended with 3 of 3 rounds unchecked"):
        context(PickyDevice(), upstream=producer, rounds=3).finish()
    with pytest.raises(CheckMissing, match="producer ended without having shared a buffer"):
        context(PickyDevice(), downstream=(consumer,)).finish()
    relay = context(PickyDevice(), upstream=producer, downstream=(consumer,))
    relay.findings.checked_rounds.add(0)
    with pytest.raises(CheckMissing, match=r"relay\[0\] ended without having shared a buffer"):
        relay.finish()


def test_a_relay_that_forwards_nothing_has_not_passed(producer: Script, consumer: Script) -> None:
    consumer.go()
    relay = context(PickyDevice(), upstream=producer.offers(0).ends(), downstream=(consumer,))
    relay.receive()  # checks, and keeps it to itself
    with pytest.raises(CheckMissing, match="without having shared"):
        relay.finish()
    assert consumer.heard() == []


def test_mismatches_of_all_rounds_count_and_the_first_is_told(producer: Script) -> None:
    lengths = []

    class Read(PickyDevice):
        def read(self, buffer: Buffer, offset_bytes: int, length: int) -> bytes:
            lengths.append(length)
            return super().read(buffer, offset_bytes, length)

    role = context(Read(), upstream=producer.offers(0, wrong=True, rounds=(1,)).ends(), rounds=2)
    roles.consume(role)
    assert len(lengths) == 3 + 1  # round 0's is looked at closely, and round 1's only named
    assert role.findings.first is not None
    assert role.findings.first.evidence is not None
    assert (role.findings.first.round, role.findings.first.evidence.runs) == (0, 1)
    assert role._last is not None
    assert role._last.first is not None  # round 1's, named alone: the first was looked at closely
    assert (role._last.first.round, role._last.first.evidence) == (1, None)
    assert role.findings.mismatches == 1 + positions(SIZE_BYTES)  # round 1 still holds round 0's data
    with pytest.raises(MismatchFound) as caught:
        role.finish()
    assert "in round 0 at byte 0x0, page 0: expected 0x00001000, got 0x000010ff" in str(caught.value)


def test_data_is_counted_for_each_round_that_was_checked(producer: Script) -> None:
    role = context(PickyDevice(), upstream=producer.offers(0).ends())
    roles.consume(role)
    role.finish()
    assert role.findings.bytes_checked == SIZE_BYTES
    assert role.findings.checked_rounds == {0}
    assert role.findings.mismatches == 0
    assert role._board.path == "first/memfd/mmap"
    assert {"import", "check", "release"} <= role.findings.timings_s.keys()


def test_a_roles_own_fill_is_what_the_consumer_gets(consumer: Script) -> None:
    consumer.go().acks(0).says(Kind.RELEASED)
    device = PickyDevice()
    role = context(device, downstream=(consumer,))
    role.share(lambda buffer, round_: role.device.write(buffer, 0, b"abc"))
    role.finish()
    assert consumer.heard() == ["offer"]
    assert os.pread(consumer.fds[0].fileno(), 4, 0) == b"abc\xff"  # and what nobody wrote is poison


def test_a_memory_that_a_roles_own_fill_cannot_write_is_passed_over(consumer: Script) -> None:
    consumer.go().acks(0).says(Kind.RELEASED)
    device = PickyDevice()

    def fill(buffer: Buffer, round_: int) -> None:
        if len(device.held) == 1:
            raise Unsupported("not into this one")
        role.fill(buffer, round_)

    role = context(device, downstream=(consumer,))
    role.share(fill)
    role.finish()
    assert consumer.heard() == ["offer"]
    assert role.findings.passed_over == [("first", "memfd", None, "not into this one")]
    assert device.holds == 0


def test_a_role_whose_fill_can_write_no_memory_skips_with_every_reason(consumer: Script) -> None:
    def fill(buffer: Buffer, round_: int) -> None:
        raise Unsupported("not into any")

    role = context(PickyDevice(), downstream=(consumer.go(),))
    with pytest.raises(Unsupported, match="first/memfd: not into any; second/memfd: not into any"):
        role.share(fill)
    assert consumer.heard()[0].startswith("none ")


def test_what_a_function_of_the_users_does_is_no_phase_of_ours(producer: Script) -> None:
    phases = []

    def note(buffer: Buffer, round_: int) -> None:
        phases.append(receiving._board.phase)
        receiving.check(buffer, round_)

    receiving = context(PickyDevice(), upstream=producer.offers(0, rounds=(1,)).ends(), rounds=2)
    receiving.receive(note)
    assert phases == ["role", "role"]


def test_only_a_check_of_the_received_buffer_counts(producer: Script) -> None:
    def each(buffer: Buffer, round_: int) -> None:
        other = role.device.allocate("memfd", role.size_bytes, {})
        role.fill(other, round_)
        role.check(other, round_)

    role = context(PickyDevice(), upstream=producer.offers(0))
    with pytest.raises(
        CheckMissing, match=r"consumer\[0\] checked another buffer than the one that it received"
    ):
        role.receive(each)


@pytest.mark.parametrize(
    ("access", "error", "text"),
    [
        ("read", UsageError, r"consumer\[0\] may not write: its access is 'read'"),
        ("readwrite", CheckMissing, r"consumer\[0\] wrote before it had checked round 0"),
    ],
)
def test_a_consumer_that_writes_what_it_is_to_check_is_refused(
    producer: Script, access: str, error: type[DmabufMpError], text: str
) -> None:
    role = context(PickyDevice(), upstream=producer.offers(0), access=access)
    with pytest.raises(error, match=text):
        role.receive(role.fill)


def test_a_role_that_gives_up_after_it_has_acked_is_in_error(producer: Script) -> None:
    def each(buffer: Buffer, round_: int) -> None:
        role.check(buffer, 0)
        if round_:
            raise Unsupported("not this round")

    role = context(PickyDevice(), upstream=producer.offers(0, rounds=(1,)), rounds=2)
    with pytest.raises(DmabufMpError, match=r"consumer\[0\] gave up in round 1: not this round"):
        role.receive(each)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda role: role.share(), "consumer[0] has no consumer to share with"),
        (lambda role: role.forward(None, 0), "consumer[0] has no consumer to share with"),
    ],
)
def test_what_a_role_has_no_peer_for_is_said(
    use: Callable[[Context], None], says: str, producer: Script
) -> None:
    with pytest.raises(DmabufMpError) as caught:
        use(context(PickyDevice(), upstream=producer))
    assert str(caught.value) == says


def test_a_producer_cannot_receive_and_forwards_only_while_it_receives(
    producer: Script, consumer: Script
) -> None:
    with pytest.raises(DmabufMpError, match="producer has no producer to receive from"):
        context(PickyDevice(), downstream=(consumer,)).receive()
    relay = context(PickyDevice(), upstream=producer, downstream=(consumer,))
    with pytest.raises(DmabufMpError, match="has nothing to forward outside receive"):
        relay.forward(None, 0)  # type: ignore[arg-type]


def test_a_buffer_is_given_back_whatever_a_role_raises(producer: Script, consumer: Script) -> None:
    def fail(buffer: Buffer, round_: int) -> None:
        raise RuntimeError("mine")

    device = PickyDevice()
    with pytest.raises(RuntimeError, match="mine"):
        context(device, upstream=producer.offers(0)).receive(fail)
    with pytest.raises(RuntimeError, match="mine"):
        context(device, downstream=(consumer.go(),)).share(fail)
    assert len(device.held) == 2
    assert device.holds == 0


def test_a_sentence_says_how_many_and_where() -> None:
    first = Mismatch(0x2000, 2, "0x1", "0x2", "corrupt", 1)
    assert describe(1, None) == "1 position differs"
    assert describe(3, first) == (
        "3 positions differ (corrupt); the first in round 1 at byte 0x2000, page 2: expected 0x1, got 0x2"
    )


def test_findings_begin_with_nothing_found() -> None:
    assert Findings().mismatches is None  # which is not the same as none
