"""The wire: frames and fds between two processes, and everything that a bad peer can send instead."""

from __future__ import annotations

import array
import os
import resource
import socket
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmabuf_mp import wire
from dmabuf_mp.board import Board
from dmabuf_mp.errors import DmabufMpError, PeerGone, ProtocolError, ResourceRefused
from dmabuf_mp.fds import Fd
from dmabuf_mp.wire import Channel, Frame, Kind
from tests.forked import in_child, leave_fds, open_fds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADER = struct.Struct("<2sBBI")
FUZZ = int(os.environ.get("DMABUF_MP_FUZZ", "150"))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the raw socket at its other end."""
    ours, theirs = wire.pair()
    channel = Channel(ours, "consumer[0]")
    yield channel, theirs
    channel.close()
    theirs.close()


def send_raw(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


def header(
    kind: int = Kind.ACK, sequence: int = 0, *, magic: bytes = wire.MAGIC, version: int = wire.VERSION
) -> bytes:
    return HEADER.pack(magic, version, kind, sequence)


def some_fds(count: int) -> list[Fd]:
    return [Fd(os.memfd_create(f"sent-{number}")) for number in range(count)]


def test_frames_come_in_order_with_payload_and_fds_that_close_on_exec() -> None:
    ours, theirs = wire.pair()
    sender, receiver = Channel(ours, "consumer[0]"), Channel(theirs, "producer")
    with some_fds(1)[0] as sent:
        sender.send(Kind.OFFER, b"payload", (sent.fileno(),))
        sender.send(Kind.FILLED, bytes(wire.MAX_FRAME_BYTES - HEADER.size))
        with receiver.expect(Kind.OFFER).fds[0] as got:
            assert os.path.sameopenfile(got.fileno(), sent.fileno())
            assert not os.get_inheritable(got.fileno())
        assert len(receiver.expect(Kind.ACK, Kind.FILLED).payload) == wire.MAX_FRAME_BYTES - HEADER.size
    assert repr(receiver) == "<Channel to producer sent=0 received=2>"
    sender.close()
    assert receiver.receive(end_is_due=True) is None
    receiver.close()
    assert receiver.closed


def test_the_sequence_number_wraps(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    channel._received = 2**32
    send_raw(peer, header(sequence=0))
    assert channel.expect(Kind.ACK).kind is Kind.ACK


def test_fd_0_is_an_fd_like_any_other() -> None:
    def receive_as_0() -> object:
        ours, theirs = wire.pair()
        with some_fds(1)[0] as sent:
            os.close(0)
            Channel(ours, "c").send(Kind.OFFER, b"", (sent.fileno(),))
            fd = Channel(theirs, "p").expect(Kind.OFFER).fds[0]
            number, same = fd.fileno(), os.path.sameopenfile(sent.fileno(), fd.fileno())
        # and it can be sent on as such
        Channel(theirs, "p").send(Kind.OFFER, b"", (number,))
        again = Channel(ours, "c").expect(Kind.OFFER).fds[0]
        return number, same, os.path.sameopenfile(0, again.fileno())

    assert in_child(receive_as_0) == "(0, True, True)"


BAD_FRAMES = {
    "short": (b"dm", "2 bytes, fewer than a frame's header"),
    "magic": (header(magic=b"no"), "sent no frame: it starts with b'no"),
    "version": (header(version=9), "version 9 of the protocol, this is 1"),
    "skipped": (header(sequence=1), "sent frame 1 where frame 0 was due"),
    "kind": (header(kind=99), "unknown kind 99"),
    "oversized": (header() + bytes(wire.MAX_FRAME_BYTES), "more than 65536 bytes"),
    "not due": (header(kind=Kind.GO), "expected 'ack' from consumer[0], got 'go' with 1 fd"),
    "fd where none is due": (header(), "expected 'ack' from consumer[0], got 'ack' with 1 fd"),
    "no frame at all": (b"", "sent fds without a frame"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_what_is_no_frame_is_refused_by_name_and_its_fds_are_closed(
    name: str, ends: tuple[Channel, socket.socket]
) -> None:
    channel, peer = ends
    data, message = BAD_FRAMES[name]
    with some_fds(1)[0] as sent:
        before = open_fds()
        send_raw(peer, data, [sent.fileno()])
        with pytest.raises(ProtocolError) as caught:
            channel.receive(Kind.ACK)
        assert message in str(caught.value)
        assert open_fds() == before  # at once: the traceback is still held


def test_a_frame_that_comes_twice_is_refused(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    for _ in range(2):
        send_raw(peer, header())
    channel.expect(Kind.ACK)
    with pytest.raises(ProtocolError, match="sent frame 0 where frame 1 was due"):
        channel.expect(Kind.ACK)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_offer_has_one_fd(count: int, ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    sent = some_fds(count)
    before = open_fds()
    send_raw(peer, header(kind=Kind.OFFER), [fd.fileno() for fd in sent])
    with pytest.raises(
        ProtocolError, match=f"expected 'offer' or 'none' with 1 fd .*got 'offer' with {count}"
    ):
        channel.receive(Kind.OFFER, Kind.NONE)
    assert open_fds() == before


def test_fds_lost_to_the_limit_of_open_files_are_no_fault_of_the_peer() -> None:
    def receive_at_the_limit() -> object:
        ours, theirs = wire.pair()
        with some_fds(1)[0] as sent:
            Channel(ours, "c").send(Kind.LINKS, b"", (sent.fileno(),) * 3)
        leave_fds(1)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            Channel(theirs, "producer").receive(Kind.LINKS)
        except ResourceRefused as error:
            os.close(os.open("/dev/null", os.O_RDONLY))  # the one that did come is closed again
            return str(error).replace(f"({limit})", "(N)")
        return "received"

    assert in_child(receive_at_the_limit) == (
        "producer sent more fds than could be received: "
        "the limit of open files (N) is reached; raise it with 'ulimit -n'"
    )


def test_an_end_is_due_or_tells_what_was(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    peer.close()
    assert channel.receive(Kind.ACK, end_is_due=True) is None
    with pytest.raises(PeerGone, match=r"consumer\[0\] ended before it sent 'ack' or ") as caught:
        channel.receive(Kind.ACK, Kind.UNSUPPORTED)
    assert caught.value.peer == "consumer[0]"


FAULT = wire.json_bytes({"kind": "exception", "text": "it broke", "culprit": "relay[0]"})


def test_a_fault_is_read_past_a_connection_that_was_reset(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    channel.send(Kind.GO)
    send_raw(peer, header(kind=Kind.FAULT) + FAULT)
    peer.close()  # with 'go' unread: the next recv fails before what is queued
    with pytest.raises(PeerGone, match=r"consumer\[0\]: it broke") as caught:
        channel.expect(Kind.ACK)
    assert caught.value.peer == "relay[0]"


def test_a_reset_without_a_last_frame_is_an_end(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    channel.send(Kind.GO)
    peer.close()
    with pytest.raises(PeerGone, match="ended before it sent 'ack'"):
        channel.expect(Kind.ACK)


def test_a_frame_that_cannot_be_sent_tells_the_fault_that_is_queued(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, peer = ends
    send_raw(peer, header(kind=Kind.ACK))
    send_raw(peer, header(kind=Kind.FAULT, sequence=1) + FAULT)
    peer.close()
    with pytest.raises(PeerGone, match="it broke") as caught:
        channel.send(Kind.FILLED)
    assert caught.value.peer == "relay[0]"


@pytest.mark.parametrize("queued", [b"", header(kind=Kind.FAULT) + b"[]", b"junk"])
def test_a_frame_that_cannot_be_sent_says_so(queued: bytes, ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    if queued:
        send_raw(peer, queued)
    peer.close()
    with pytest.raises(PeerGone, match=r"consumer\[0\] ended before it took 'filled'"):
        channel.send(Kind.FILLED)


def test_waiting_ends_with_the_patience_and_never_begins_where_it_may_not_wait() -> None:
    ours, theirs = wire.pair()
    board = Board()
    channel = Channel(ours, "producer", board=board, patience_s=0.02)
    with pytest.raises(TimeoutError, match="producer did not send 'offer' or 'none' in time"):
        channel.receive(Kind.OFFER, Kind.NONE)
    assert (board.peer, board.due) == ("producer", "offer")
    with pytest.raises(BlockingIOError):
        channel.receive(Kind.OFFER, wait=False)
    send_raw(theirs, header(kind=Kind.NONE))
    channel.expect(Kind.NONE)
    assert (board.peer, board.last_frame) == (None, "'none' from producer")
    channel.close()
    theirs.close()


def test_a_payload_larger_than_a_frame_is_refused_and_nothing_sent(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, peer = ends
    with pytest.raises(ProtocolError, match="'none' of 65536 bytes is larger than a frame may be"):
        channel.send(Kind.NONE, bytes(wire.MAX_FRAME_BYTES))
    channel.send(Kind.NONE)
    assert peer.recv(64) == header(kind=Kind.NONE)


@pytest.mark.parametrize("payload", [b"", b"{", b"[1]", b"\xff", b"[" * 60_000, b"1" * 60_000])
def test_what_is_no_json_object_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="'unsupported' carries no JSON"):
        Frame(Kind.UNSUPPORTED, payload).json()


def test_large_payloads_travel_sealed() -> None:
    data = os.urandom(300_000)
    with wire.sealed_payload(data) as fd:
        assert wire.read_payload(fd) == data
        with pytest.raises(PermissionError):
            os.pwrite(fd.fileno(), b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd.fileno(), 1)


def test_a_payload_beyond_the_limit_of_file_sizes_is_refused() -> None:
    def with_the_limit() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(ResourceRefused, match="no memory for a payload of 100000 bytes: File too large"):
            wire.sealed_payload(bytes(100_000))
        return "refused"

    assert in_child(with_the_limit) == "refused"


frames = st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda magic, version, kind, sequence, payload: HEADER.pack(magic, version, kind, sequence) + payload,
        st.sampled_from([wire.MAGIC, b"MD"]),
        st.sampled_from([wire.VERSION, 0, 255]),
        st.sampled_from([*Kind, 0, 255]),
        st.sampled_from([0, 1, 2**32 - 1]),
        st.binary(max_size=200) | st.just(FAULT),
    ),
)


@settings(max_examples=FUZZ, deadline=None)
@given(
    sent=st.lists(st.tuples(frames, st.integers(0, 3)), max_size=3),
    due=st.lists(st.sampled_from(Kind), min_size=1, max_size=3),
    end_is_due=st.booleans(),
)
def test_whatever_comes_ends_in_a_frame_or_a_typed_error(
    sent: list[tuple[bytes, int]], due: list[Kind], end_is_due: bool
) -> None:
    before = open_fds()
    ours, theirs = wire.pair()
    channel = Channel(ours, "peer")
    for data, count in sent:
        send_raw(theirs, data, [theirs.fileno()] * count)
    theirs.close()
    for _ in range(4):  # the end is always reached, and nothing blocks
        try:
            frame = channel.receive(*due, end_is_due=end_is_due)
        except DmabufMpError as error:
            assert str(error)
        else:
            assert frame is None or frame.kind in due
            if frame is not None:
                frame.close()
    channel.close()
    assert open_fds() == before
