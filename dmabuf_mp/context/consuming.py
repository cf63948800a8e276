"""The consuming side of a link: import, check, acknowledge, and so again for every round."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp.context.relaying import Relaying
from dmabuf_mp.dialogue import unpack_offer
from dmabuf_mp.errors import CheckMissing, DmabufMpError, Unsupported, WrongBuffer
from dmabuf_mp.findings import MismatchFound, describe

if TYPE_CHECKING:
    from dmabuf_mp.assignment import Attempt
    from dmabuf_mp.backends.base import Buffer, Offer
    from dmabuf_mp.context.core import Step
    from dmabuf_mp.dialogue import Ack, Incoming
    from dmabuf_mp.fds import Fd


class Consuming(Relaying):
    """Adds `receive`."""

    def receive(self, each: Step | None = None) -> None:
        """Receive the buffer and call `each(buffer, round)` for every round; `ack` follows each call.

        Without `each` the buffer is checked, and written back where the scenario says so. A buffer that
        cannot be taken further down is refused by raising Unsupported in round 0. Raises Unsupported
        when the producer has no path left.
        """
        if self._incoming is None:
            raise DmabufMpError(f"{self.label} has no producer to receive from")
        if self.findings.rounds_done:
            raise DmabufMpError(f"{self.label} has received its buffer already: one receive() is all rounds")
        if self._outgoing is not None:
            self._outgoing.wait_for_go()
        self._incoming.go()
        while not self._receive_one(self._incoming, each or self.check_and_write_back):
            pass

    def check_and_write_back(self, buffer: Buffer, round_: int) -> None:
        """Do what the built-in consumer does in one round."""
        self.check(buffer, round_)
        if self._part.access == "readwrite":
            self.fill(buffer, round_, write_back=True)

    def _receive_one(self, incoming: Incoming, each: Step) -> bool:
        """Take one offer through all rounds; True at the end of the link, False for another offer."""
        self._forget()
        frame = incoming.next_offer()
        if frame is None:
            reasons = [f"{m}/{h}: {i}: {reason}" for m, h, i, reason in self.findings.passed_over]
            if self._outgoing is not None:
                self._outgoing.none(reasons)
            raise Unsupported("; ".join(reasons) or f"{incoming.channel.peer} has no path left")
        with contextlib.ExitStack() as undo:
            fd = undo.enter_context(frame.fds[0])
            number, offer = unpack_offer(frame, self._part.receives, incoming.channel.peer)
            attempt = self._part.receives[number]
            self._verify(offer)
            offer = replace(offer, writable=self._part.access == "readwrite")
            if self._part.downstream and self._part.forward == "fd":
                self._offer = (number, offer, undo.enter_context(fd.duplicate()))
            buffer = self._import(attempt, fd, offer)
            if isinstance(buffer, str):
                incoming.refuse(number, buffer)
                return False
            undo.callback(buffer.close)
            undo.callback(self._drop_copy)
            self._received = buffer
            for round_ in range(self.rounds):
                self._round = round_
                if round_ and not incoming.next_round(round_):
                    self._withdraw_downstream()
                    undo.close()
                    incoming.withdrawn()
                    return False
                try:
                    self._board.enter("role")
                    each(buffer, round_)
                except Unsupported as reason:
                    if round_:
                        raise DmabufMpError(f"{self.label} gave up in round {round_}: {reason}") from reason
                    self._withdraw_downstream()
                    undo.close()
                    incoming.refuse(number, str(reason))
                    return False
                with self.phase("ack"):
                    incoming.ack(self._take_ack(round_))
                self.findings.rounds_done = round_ + 1
            with self.phase("release"):
                if self._outgoing is not None and self._shared:
                    self._outgoing.wait_released()
                undo.close()
            if incoming.released():
                return True
            self._withdraw_downstream()
            incoming.withdrawn()
            return False

    def _forget(self) -> None:
        """Forget an offer that was withdrawn, for the next one; but a mismatch is final."""
        findings = self.findings
        if findings.mismatches:
            raise MismatchFound(describe(findings.mismatches, findings.first))
        findings.checked_rounds.clear()
        findings.bytes_checked, findings.mismatches, findings.first = 0, None, None
        findings.rounds_done = 0
        self._last, self._offer, self._forwarded, self._received = None, None, -1, None
        self._board.trying("")
        self._shared = self._outgoing is None

    def _verify(self, offer: Offer) -> None:
        """Hold an offer against this role's own assignment: nothing that is checked comes from the peer."""
        if offer.size_bytes != self.size_bytes:
            raise WrongBuffer(
                f"expected a buffer of {self.size_bytes} bytes, got an offer of {offer.size_bytes}"
            )
        if offer.offset_bytes % 16 or offer.offset_bytes + self.size_bytes > offer.allocated_bytes:
            raise WrongBuffer(
                f"expected {self.size_bytes} bytes at a multiple of 16 within the allocation, "
                f"got offset {offer.offset_bytes} of {offer.allocated_bytes} bytes"
            )

    def _import(self, attempt: Attempt, fd: Fd, offer: Offer) -> Buffer | str:
        """Import the fd by the first importer that works; a text says why none does."""
        reasons = []
        for importer in attempt.importers:
            self._board.trying(f"{attempt.memory}/{attempt.handle}/{importer}")
            try:
                with self.phase("import"):
                    return self.device.import_fd(importer, fd.duplicate(), offer)
            except Unsupported as reason:
                reasons.append(self._pass_over(attempt, importer, reason))
        return "; ".join(reasons) or "no importer of this device takes it"

    def _take_ack(self, round_: int) -> Ack:
        if self._last is None or self._last.round != round_:
            raise CheckMissing(f"{self.label} ended round {round_} without having checked the data")
        return self._last
