"""The two ends of the dialogue over one buffer: who says what to whom, and in which order.

consumer `go` → producer `offer` with one fd → consumer `ack`, or `unsupported` (then the producer says
`withdraw` to all, each answers `withdrawn`, and the next attempt is offered, or `none`). Later rounds are
`filled` → `ack`. After its last `ack` a consumer unmaps and says `released`; the producer then ends the
link, or still withdraws, where another consumer of the same buffer could not take it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.errors import ProtocolError
from dmabuf_mp.model import Mismatch
from dmabuf_mp.wire import Channel, Frame, Kind, json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.assignment import Attempt

_OFFER = struct.Struct("<HQQQ")
_ACK = struct.Struct("<IQQ")
_ROUND = struct.Struct("<I")


class Ack(NamedTuple):
    """A consumer's answer for one round."""

    round: int
    counts: CheckCounts
    first: Mismatch | None = None


def pack_offer(attempt: int, offer: Offer, passed_over: Sequence[str]) -> bytes:
    """Return an offer's payload: sizes, handle, device UUID, then why earlier attempts were passed over."""
    fixed = _OFFER.pack(attempt, offer.size_bytes, offer.allocated_bytes, offer.offset_bytes)
    texts = f"{offer.handle}\0{offer.device_uuid or ''}\0".encode()
    return fixed + texts + (json_bytes([text[:400] for text in passed_over[:16]]) if passed_over else b"")


def unpack_offer(frame: Frame, attempts: Sequence[Attempt], peer: str | None = None) -> tuple[int, Offer]:
    """Return the attempt's number and the offer; raises ProtocolError where it was not agreed on."""
    try:
        attempt, size, allocated, offset = _OFFER.unpack_from(frame.payload)
        handle, uuid, _ = frame.payload[_OFFER.size :].split(b"\0", 2)
        wanted = attempts[attempt]
        offer = Offer(size, allocated, offset, wanted.memory, handle.decode(), uuid.decode() or None)
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"'offer' cannot be read: {error}", peer) from error
    if offer.handle != wanted.handle:
        raise ProtocolError(f"expected an offer of a {wanted.handle} fd, got one of {offer.handle!r}", peer)
    return attempt, offer


def pack_ack(ack: Ack) -> bytes:
    """Return an ack's payload: round and counts, and the first mismatch where there is one."""
    fixed = _ACK.pack(ack.round, ack.counts.matched, ack.counts.mismatched)
    return fixed + (json_bytes(asdict(ack.first)) if ack.first else b"")


def unpack_ack(frame: Frame, round_: int, peer: str | None = None) -> Ack:
    """Return the ack of a round; raises ProtocolError for another round's."""
    try:
        got, matched, mismatched = _ACK.unpack_from(frame.payload)
        rest = frame.payload[_ACK.size :]
        first = Mismatch(**json.loads(rest)) if rest else None
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"'ack' cannot be read: {error}", peer) from error
    if got != round_:
        raise ProtocolError(f"expected the 'ack' of round {round_}, got that of round {got}", peer)
    return Ack(got, CheckCounts(matched, mismatched), first)


class Outgoing:
    """The producing end of one buffer, towards all its consumers.

    Consumers that write back get each round after all others have read it.
    """

    def __init__(self, links: Sequence[tuple[Channel, bool]]) -> None:
        self.channels = tuple(channel for channel, _ in links)
        readers = [channel for channel, writes in links if not writes]
        self._groups = [group for group in (readers, [c for c, writes in links if writes]) if group]
        self._holders: list[Channel] = []

    def wait_for_go(self) -> None:
        """Wait until every consumer is ready."""
        for channel in self.channels:
            channel.expect(Kind.GO)

    def offer(self, attempt: int, offer: Offer, fd: int, passed_over: Sequence[str]) -> list[str]:
        """Offer the buffer to all, and return who refused and why: it was withdrawn then, else all acked."""
        payload = pack_offer(attempt, offer, passed_over)
        refusals: list[str] = []
        for group in self._groups:
            for channel in group:
                channel.send(Kind.OFFER, payload, (fd,))
                self._holders.append(channel)
            for channel in group:
                frame = channel.expect(Kind.ACK, Kind.UNSUPPORTED)
                if frame.kind is Kind.ACK:
                    unpack_ack(frame, 0)
                else:
                    refusals.append(f"{channel.peer}: {frame.json().get('reason')}")
            if refusals:
                self.withdraw()
                break
        return refusals

    def filled(self, round_: int) -> None:
        """Say that a later round is in the buffer; returns once everyone has acked it."""
        for group in self._groups:
            for channel in group:
                channel.send(Kind.FILLED, _ROUND.pack(round_))
            for channel in group:
                unpack_ack(channel.expect(Kind.ACK), round_)

    def withdraw(self) -> None:
        """Take the buffer back from everyone who holds it; returns when nobody does."""
        for channel in self._holders:
            channel.send(Kind.WITHDRAW)
        for channel in self._holders:
            while channel.expect(Kind.RELEASED, Kind.WITHDRAWN).kind is not Kind.WITHDRAWN:
                pass  # its `released` crossed our `withdraw`
        self._holders.clear()

    def none(self, reasons: Sequence[str]) -> None:
        """Say that there is no further attempt."""
        payload = json_bytes({"reasons": list(reasons)[:64]})
        for channel in self.channels:
            channel.send(Kind.NONE, payload)

    def wait_released(self) -> None:
        """Wait until every consumer has unmapped the buffer."""
        for channel in self.channels:
            channel.expect(Kind.RELEASED)


class Incoming:
    """The consuming end of one link."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def go(self) -> None:
        """Say that this consumer is ready."""
        self.channel.send(Kind.GO)

    def next_offer(self) -> Frame | None:
        """Return the next offer, which owns one fd, or None when no attempt is left."""
        frame = self.channel.expect(Kind.OFFER, Kind.NONE)
        return frame if frame.kind is Kind.OFFER else None

    def refuse(self, attempt: int, reason: str) -> None:
        """Say that the offer cannot be taken; returns when it is withdrawn."""
        self.channel.send(Kind.UNSUPPORTED, json_bytes({"attempt": attempt, "reason": reason[:4096]}))
        self.channel.expect(Kind.WITHDRAW)
        self.withdrawn()

    def ack(self, ack: Ack) -> None:
        """Answer for one round."""
        self.channel.send(Kind.ACK, pack_ack(ack))

    def next_round(self, round_: int) -> bool:
        """Wait for a later round; False where the buffer is withdrawn instead."""
        frame = self.channel.expect(Kind.FILLED, Kind.WITHDRAW)
        if frame.kind is Kind.WITHDRAW:
            return False
        if frame.payload != _ROUND.pack(round_):
            raise ProtocolError(
                f"expected 'filled' of round {round_} from {self.channel.peer}, got another's"
            )
        return True

    def withdrawn(self) -> None:
        """Say that nothing of the buffer is held any more."""
        self.channel.send(Kind.WITHDRAWN)

    def released(self) -> bool:
        """Say that the buffer is unmapped; True at the end of the link, False where it is withdrawn."""
        self.channel.send(Kind.RELEASED)
        return self.channel.receive(Kind.WITHDRAW, end_is_due=True) is None
