"""The dialogue, each end with scripted peers: refusals, withdrawals, later rounds, relays, wrong frames."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmabuf_mp import roles
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.dialogue import Ack, pack_ack, pack_offer, unpack_ack, unpack_offer
from dmabuf_mp.errors import CheckMissing, DmabufMpError, PeerGone, ProtocolError, Unsupported, WrongBuffer
from dmabuf_mp.findings import MismatchFound
from dmabuf_mp.model import Mismatch
from dmabuf_mp.wire import Frame, Kind, json_bytes
from tests.scripted import ATTEMPTS, PAGES_BYTES, SIZE_BYTES, PickyDevice, Script, context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dmabuf_mp import Context


@pytest.fixture
def peer() -> Iterator[Callable[[str], Script]]:
    """Make scripted peers, which are closed in the end."""
    with ExitStack() as undo:

        def make(name: str) -> Script:
            script = Script(name)
            undo.callback(script.close)
            return script

        yield make


# The consumer.


def test_a_consumer_refuses_what_it_cannot_import_and_takes_the_next(peer: Callable[[str], Script]) -> None:
    device = PickyDevice(no_import=("first",))
    producer = peer("producer").offers(0).says(Kind.WITHDRAW).offers(1, rounds=(1,)).ends()
    consumer = context(device, upstream=producer, rounds=2)
    with pytest.raises(MismatchFound):  # the script leaves round 0's data in the buffer
        roles.consume(consumer)
        consumer.finish()
    refusal = 'unsupported {"attempt":0,"reason":"mmap: cannot import first"}'
    assert producer.heard() == ["go", refusal, "withdrawn", "ack", "ack", "released"]
    assert consumer.findings.passed_over == [("first", "memfd", "mmap", "cannot import first")]
    assert consumer._board.path == "second/memfd/mmap"
    assert device.holds == 0


def test_a_consumer_is_skipped_with_its_own_reasons_when_no_offer_is_left(
    peer: Callable[[str], Script],
) -> None:
    device = PickyDevice(no_import=("first", "second"))
    producer = peer("producer").offers(0).says(Kind.WITHDRAW).offers(1).says(Kind.WITHDRAW)
    producer.says(Kind.NONE, json_bytes({"reasons": []}))
    with pytest.raises(Unsupported) as caught:
        roles.consume(context(device, upstream=producer))
    assert str(caught.value) == (
        "first/memfd: mmap: cannot import first; second/memfd: mmap: cannot import second"
    )
    none = peer("producer").says(Kind.NONE, json_bytes({"reasons": []}))
    with pytest.raises(Unsupported, match="producer has no path left"):
        roles.consume(context(device, upstream=none))


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_consumer_gives_back_what_it_acked_when_another_refused(
    rounds: int, peer: Callable[[str], Script]
) -> None:
    device = PickyDevice()
    producer = peer("producer").offers(0).says(Kind.WITHDRAW).offers(1).ends()
    consumer = context(device, upstream=producer, rounds=rounds)
    if rounds == 1:
        roles.consume(consumer)
        consumer.finish()
        assert producer.heard() == ["go", "ack", "released", "withdrawn", "ack", "released"]
        assert consumer.findings.bytes_checked == SIZE_BYTES  # of the offer that counts
    else:
        with pytest.raises(PeerGone, match="producer ended before it sent 'filled' or 'withdraw'"):
            roles.consume(consumer)
        assert producer.heard() == ["go", "ack", "withdrawn", "ack"]
    assert device.holds == 0


def test_a_mismatch_is_final_though_the_offer_is_withdrawn(peer: Callable[[str], Script]) -> None:
    producer = peer("producer").offers(0, wrong=True).says(Kind.WITHDRAW).offers(1).ends()
    consumer = context(PickyDevice(), upstream=producer)
    with pytest.raises(MismatchFound, match=r"1 position differs .* at byte 0x0"):
        roles.consume(consumer)
    assert producer.heard() == ["go", "ack", "released", "withdrawn"]
    assert consumer.findings.mismatches == 1


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"size_bytes": SIZE_BYTES - 1},
            WrongBuffer,
            "expected a buffer of 8195 bytes, got an offer of 8194",
        ),
        ({"size_bytes": SIZE_BYTES + 1}, WrongBuffer, "got an offer of 8196"),
        ({"offset_bytes": 8}, WrongBuffer, "a multiple of 16 within the allocation, got offset 8"),
        ({"offset_bytes": 4096 + 16}, WrongBuffer, "got offset 4112 of 12288 bytes"),
        ({"offset_bytes": 2**64 - 16}, WrongBuffer, "got offset 18446744073709551600"),
        ({"allocated_bytes": SIZE_BYTES - 1}, WrongBuffer, "got offset 0 of 8194 bytes"),
        ({"allocated_bytes": 2 * PAGES_BYTES}, WrongBuffer, "expected a buffer of 24576 bytes, got 12288"),
        ({"handle": "dmabuf"}, ProtocolError, "expected an offer of a memfd fd, got one of 'dmabuf'"),
    ],
)
def test_an_offer_of_another_buffer_than_agreed_is_never_checked(
    changes: dict[str, object], error: type[Exception], says: str, peer: Callable[[str], Script]
) -> None:
    device = PickyDevice()
    producer = peer("producer").offers(0, **changes)  # type: ignore[arg-type]
    consumer = context(device, upstream=producer)
    with pytest.raises(error) as caught:
        roles.consume(consumer)
    assert says in str(caught.value)
    assert producer.heard() == ["go"]
    assert device.holds == 0
    assert not consumer.findings.checked_rounds


def test_an_attempt_that_was_never_agreed_on_is_refused(peer: Callable[[str], Script]) -> None:
    with pytest.raises(ProtocolError, match="'offer' cannot be read"):
        roles.consume(context(PickyDevice(), upstream=peer("producer").offers(2)))


def test_a_round_out_of_turn_is_refused(peer: Callable[[str], Script]) -> None:
    producer = peer("producer").offers(0, rounds=(2,))
    with pytest.raises(ProtocolError, match="expected 'filled' of round 1 from producer, got another's"):
        roles.consume(context(PickyDevice(), upstream=producer, rounds=3))
    assert producer.heard() == ["go", "ack"]


def test_a_consumer_that_has_not_checked_a_round_does_not_ack_it(peer: Callable[[str], Script]) -> None:
    def nothing(consumer: Context) -> None:
        consumer.receive(lambda buffer, round_: None)

    def always_the_first(consumer: Context) -> None:
        consumer.receive(lambda buffer, round_: consumer.check(buffer, 0))

    for role, acks in ((nothing, 0), (always_the_first, 1)):
        producer = peer("producer").offers(0, rounds=(1,))
        with pytest.raises(CheckMissing, match=rf"ended round {acks} without having checked the data"):
            role(context(PickyDevice(), upstream=producer, rounds=2))
        assert producer.heard().count("ack") == acks


def test_a_fault_in_place_of_what_is_due_names_who_caused_it(peer: Callable[[str], Script]) -> None:
    fault = json_bytes({"kind": "exception", "text": "consumer[1] broke", "culprit": "consumer[1]"})
    for producer in (
        peer("producer").says(Kind.FAULT, fault),
        peer("producer").offers(0).says(Kind.FAULT, fault),
    ):
        with pytest.raises(PeerGone, match=r"producer: consumer\[1\] broke") as caught:
            roles.consume(context(PickyDevice(), upstream=producer))
        assert caught.value.peer == "consumer[1]"


# The producer.


def test_an_offer_is_taken_back_from_all_where_one_refuses(peer: Callable[[str], Script]) -> None:
    device = PickyDevice()
    first = (
        peer("consumer[0]").go().acks(0).says(Kind.RELEASED).says(Kind.WITHDRAWN).acks(0).says(Kind.RELEASED)
    )
    second = peer("consumer[1]").go().refuses("not mine").says(Kind.WITHDRAWN).acks(0).says(Kind.RELEASED)
    producer = context(device, downstream=(first, second))
    roles.produce(producer)
    producer.finish()
    assert first.heard() == second.heard() == ["offer", "withdraw", "offer"]
    assert not os.path.sameopenfile(first.fds[0].fileno(), first.fds[1].fileno())
    assert os.path.sameopenfile(first.fds[1].fileno(), second.fds[1].fileno())  # one export, many sends
    assert device.holds == 0


def test_when_all_are_refused_everyone_is_told_and_every_reason_is_given(
    peer: Callable[[str], Script],
) -> None:
    device = PickyDevice(no_memory=("second",))
    consumer = peer("consumer[0]").go().refuses("not mine").says(Kind.WITHDRAWN)
    with pytest.raises(Unsupported) as caught:
        roles.produce(context(device, downstream=(consumer,)))
    assert str(caught.value) == "first/memfd: consumer[0]: not mine; second/memfd: no second here"
    none = 'none {"reasons":["first/memfd: consumer[0]: not mine","second/memfd: no second here"]}'
    assert consumer.heard() == ["offer", "withdraw", none]
    assert device.holds == 0


def test_who_writes_back_gets_each_round_after_all_have_read_it(peer: Callable[[str], Script]) -> None:
    writer, reader = peer("consumer[0]").go(), peer("consumer[1]").go()
    producer = context(PickyDevice(), downstream=(writer, reader), writers=(writer,), rounds=2)
    with pytest.raises(TimeoutError, match=r"consumer\[1\] did not send 'ack'"):
        roles.produce(producer)
    assert (writer.heard(), reader.heard()) == ([], ["offer"])

    writer, reader = peer("consumer[0]").go().acks(0), peer("consumer[1]").go().acks(0)
    producer = context(PickyDevice(), downstream=(writer, reader), writers=(writer,), rounds=2)
    with pytest.raises(TimeoutError):
        roles.produce(producer)
    assert (writer.heard(), reader.heard()) == (["offer"], ["offer", "filled"])


def test_a_write_back_that_did_not_happen_is_a_mismatch(peer: Callable[[str], Script]) -> None:
    writer = peer("consumer[0]").go().acks(0, 1).says(Kind.RELEASED)
    producer = context(PickyDevice(), downstream=(writer,), writers=(writer,), rounds=2)
    roles.produce(producer)
    with pytest.raises(MismatchFound, match=r"what was written back: .*not_written_back"):
        producer.finish()
    assert producer.findings.write_back_mismatches == 2 * (SIZE_BYTES // 4 + SIZE_BYTES % 4)


def test_the_buffer_lives_until_every_consumer_has_unmapped_it(peer: Callable[[str], Script]) -> None:
    device = PickyDevice()
    consumer = peer("consumer[0]").go().acks(0)
    with pytest.raises(TimeoutError, match="did not send 'released'"):
        roles.produce(context(device, downstream=(consumer,)))

    consumer = peer("consumer[0]").go().acks(0).says(Kind.RELEASED)
    roles.produce(context(device, downstream=(consumer,)))
    assert device.holds == 0


def test_an_ack_of_another_round_is_refused(peer: Callable[[str], Script]) -> None:
    for acks in ((1,), (0, 0), (0, 2)):
        consumer = peer("consumer[0]").go().acks(*acks)
        with pytest.raises(ProtocolError, match="expected the 'ack' of round"):
            roles.produce(context(PickyDevice(), downstream=(consumer,), rounds=3))


# The relay.


def test_a_relay_passes_on_the_same_buffer_or_a_copy_of_its_own(peer: Callable[[str], Script]) -> None:
    for forward in ("fd", "copy"):
        device = PickyDevice()
        up = peer("producer").offers(0).ends()
        down = peer("consumer[0]").go().acks(0).says(Kind.RELEASED)
        offers = ATTEMPTS if forward == "copy" else ()
        relay = context(device, upstream=up, downstream=(down,), forward=forward, offers=offers)
        roles.relay(relay)
        relay.finish()
        assert up.heard() == ["go", "ack", "released"]
        assert down.heard() == ["offer"]
        same = os.path.sameopenfile(down.fds[0].fileno(), up.offered[0].fileno())
        assert same == (forward == "fd")
        assert len(device.held) == (1 if forward == "fd" else 2)
        assert device.holds == 0


@pytest.mark.parametrize("forward", ["fd", "copy"])
def test_a_refusal_further_down_goes_up(forward: str, peer: Callable[[str], Script]) -> None:
    device = PickyDevice()
    up = peer("producer").offers(0).says(Kind.WITHDRAW).offers(1).ends()
    down = peer("consumer[0]").go().refuses("no").says(Kind.WITHDRAWN)
    if forward == "copy":
        down.refuses("nor this").says(Kind.WITHDRAWN)
    down.acks(0).says(Kind.RELEASED)
    offers = ATTEMPTS if forward == "copy" else ()
    relay = context(device, upstream=up, downstream=(down,), forward=forward, offers=offers)
    roles.relay(relay)
    relay.finish()
    reason = (
        "consumer[0]: no"
        if forward == "fd"
        else "first/memfd: consumer[0]: no; second/memfd: consumer[0]: nor this"
    )
    refusal = f'unsupported {{"attempt":0,"reason":"{reason}"}}'
    assert up.heard() == ["go", refusal, "withdrawn", "ack", "released"]
    assert down.heard() == ["offer", "withdraw"] * (1 if forward == "fd" else 2) + ["offer"]
    assert device.holds == 0


@pytest.mark.parametrize("forward", ["fd", "copy"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_withdrawal_from_above_goes_down(forward: str, rounds: int, peer: Callable[[str], Script]) -> None:
    device = PickyDevice()
    up = peer("producer").offers(0).says(Kind.WITHDRAW).offers(1).ends()
    down = peer("consumer[0]").go().acks(0)
    if rounds == 1:
        down.says(Kind.RELEASED)
    down.says(Kind.WITHDRAWN).acks(0).says(Kind.RELEASED)
    offers = ATTEMPTS if forward == "copy" else ()
    relay = context(device, upstream=up, downstream=(down,), forward=forward, offers=offers, rounds=rounds)
    if rounds == 1:
        roles.relay(relay)
        relay.finish()
        assert up.heard() == ["go", "ack", "released", "withdrawn", "ack", "released"]
    else:
        with pytest.raises(PeerGone):
            roles.relay(relay)
        assert up.heard() == ["go", "ack", "withdrawn", "ack"]
    assert down.heard() == ["offer", "withdraw", "offer"]
    assert device.holds == 0


def test_a_relay_passes_on_that_no_path_is_left(peer: Callable[[str], Script]) -> None:
    up = peer("producer").offers(0).says(Kind.WITHDRAW).says(Kind.NONE, b"{}")
    down = peer("consumer[0]").go()
    device = PickyDevice(no_import=("first",))
    with pytest.raises(Unsupported, match="first/memfd: mmap: cannot import first"):
        roles.relay(context(device, upstream=up, downstream=(down,)))
    assert down.heard() == ['none {"reasons":["first/memfd: mmap: cannot import first"]}']


def test_a_relay_says_go_only_when_those_below_have(peer: Callable[[str], Script]) -> None:
    up, down = peer("producer"), peer("consumer[0]")
    with pytest.raises(TimeoutError, match="did not send 'go'"):
        roles.relay(context(PickyDevice(), upstream=up, downstream=(down,)))
    assert up.heard() == []


def test_a_relay_with_a_buffer_of_its_own_later_rounds_copy_into_it(peer: Callable[[str], Script]) -> None:
    up = peer("producer").offers(0, rounds=(1,)).ends()
    down = peer("consumer[0]").go().acks(0, 1).says(Kind.RELEASED)
    device = PickyDevice()
    relay = context(device, upstream=up, downstream=(down,), forward="copy", offers=ATTEMPTS, rounds=2)
    roles.relay(relay)
    assert down.heard() == ["offer", "filled"]
    assert len(device.held) == 2
    assert device.holds == 0


# Frames.


def test_frames_say_what_was_packed() -> None:
    offer = Offer(5, 4096, 16, "first", "memfd", "GPU-1")
    assert unpack_offer(Frame(Kind.OFFER, pack_offer(0, offer, ["why"])), ATTEMPTS) == (0, offer)
    first = Mismatch(4, 0, "0x1", "0x2", "corrupt", 3)
    ack = Ack(3, CheckCounts(2**40, 7), first)
    assert unpack_ack(Frame(Kind.ACK, pack_ack(ack)), 3) == ack


def test_an_offer_with_many_long_reasons_fits_a_frame() -> None:
    offer = Offer(5, 4096, 16, "first", "memfd", "GPU-1")
    assert len(pack_offer(1, offer, ["x" * 10_000] * 1000)) < 10_000


@given(payload=st.binary(max_size=80))
def test_payloads_of_any_bytes_are_read_or_refused(payload: bytes) -> None:
    for unpack in (
        lambda: unpack_offer(Frame(Kind.OFFER, payload), ATTEMPTS),
        lambda: unpack_ack(Frame(Kind.ACK, payload), 0),
    ):
        try:
            unpack()
        except DmabufMpError as error:
            assert isinstance(error, ProtocolError)
