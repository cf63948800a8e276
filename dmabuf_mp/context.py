"""Context: what a role function gets, and everything that it can do with a buffer."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp import patterns
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.dialogue import Ack, Incoming, Outgoing, unpack_offer
from dmabuf_mp.errors import CheckMissing, DmabufMpError, Unsupported, WrongBuffer
from dmabuf_mp.findings import Findings, MismatchFound, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dmabuf_mp.assignment import Attempt, Part
    from dmabuf_mp.backends.base import Allocation, Buffer, Device
    from dmabuf_mp.board import Board
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json, Mismatch
    from dmabuf_mp.wire import Channel

    Step = Callable[[Buffer, int], object]


class Context:
    """What a role function gets: its device, its peers, the scenario's pattern, a log, a deadline.

    Lengths and offsets are in bytes; a round counts from 0.
    """

    def __init__(
        self,
        part: Part,
        device: Device,
        *,
        upstream: Channel | None,
        downstream: Sequence[Channel],
        board: Board,
        log: Callable[[str, str], None],
        strike: Callable[[str, int], None] | None = None,
    ) -> None:
        self.label = part.label
        self.device = device
        self.size_bytes = part.size_bytes
        self.rounds = part.rounds
        self.params: Mapping[str, Json] = part.params
        self.deadline = time.monotonic() + part.patience_s
        self.findings = Findings()
        self._part = part
        self._board = board
        self._log = log
        self._incoming = Incoming(upstream) if upstream is not None else None
        writes = [peer.writes for peer in part.downstream]
        self._outgoing = Outgoing(tuple(zip(downstream, writes, strict=True))) if downstream else None
        self._shared = self._outgoing is None
        self._last: Ack | None = None
        self._offer: tuple[int, Offer, Fd] | None = None
        self._copy: Allocation | None = None
        self._round = 0
        self._strike = strike

    def __repr__(self) -> str:
        return f"<Context {self.label} on {self.device.info.selector}>"

    # What every role may use.

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to the scenario's log."""
        self._log(level, message)

    @property
    def remaining_s(self) -> float:
        """Seconds until this role has to be done."""
        return self.deadline - time.monotonic()

    def fill(self, buffer: Buffer, round_: int, *, write_back: bool = False) -> None:
        """Write the pattern of a round, or a consumer's write-back of it, into the whole buffer."""
        with self.phase("fill"):
            self.device.fill(buffer, self._part.pattern, patterns.step(round_, write_back=write_back))

    def check(self, buffer: Buffer, round_: int) -> CheckCounts:
        """Compare the whole buffer with the pattern of a round; only this makes a consumer pass."""
        counts, first = self._compare(buffer, round_, patterns.step(round_))
        findings = self.findings
        findings.checked_rounds.add(round_)
        findings.bytes_checked += self.size_bytes
        findings.mismatches = (findings.mismatches or 0) + counts.mismatched
        findings.first = findings.first or first
        self._last = Ack(round_, counts, first)
        return counts

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what is being done, for the report's timings and for whoever asks when it hangs."""
        self._board.enter(name)
        if self._strike is not None:
            self._strike(name, self._round)
        began = time.perf_counter()
        try:
            yield
        finally:
            timings = self.findings.timings_s
            timings[name] = timings.get(name, 0.0) + time.perf_counter() - began

    # The producing side.

    def share(self, fill: Step | None = None) -> None:
        """Share one buffer with every consumer, for all rounds, along the first path that works.

        `fill(buffer, round)` writes a round's data; without it the scenario's pattern is written.
        Raises Unsupported when no path is left, with every reason.
        """
        outgoing = self._require_outgoing()
        outgoing.wait_for_go()
        reasons = self._share(fill or self.fill, outgoing)
        if reasons:
            outgoing.none(reasons)
            raise Unsupported("; ".join(reasons))
        self._shared = True

    def _share(self, fill: Step, outgoing: Outgoing) -> list[str]:
        """Try each attempt; return nothing on success, else why none worked."""
        reasons: list[str] = []
        for number, attempt in enumerate(self._part.offers):
            refusals = self._share_by(number, attempt, fill, outgoing, reasons)
            if not refusals:
                return []
            reasons.extend(f"{attempt.memory}/{attempt.handle}: {refusal}" for refusal in refusals)
        return reasons

    def _share_by(
        self, number: int, attempt: Attempt, fill: Step, outgoing: Outgoing, passed_over: Sequence[str]
    ) -> list[str]:
        try:
            with self.phase("export"):
                allocation = self._allocate(attempt)
        except Unsupported as reason:
            return [self._pass_over(attempt, None, reason)]
        with contextlib.closing(allocation):
            try:
                with self.phase("export"):
                    fd = allocation.export(attempt.handle)
            except Unsupported as reason:
                return [self._pass_over(attempt, None, reason)]
            with fd:
                fill(allocation, 0)
                self._settle(attempt, allocation)
                offer = self._describe(attempt, allocation)
                with self.phase("send"):
                    refusals = outgoing.offer(number, offer, fd.fileno(), passed_over)
                if refusals:
                    return refusals
            self._check_write_back(allocation, 0)
            for round_ in range(1, self.rounds):
                self._round = round_
                fill(allocation, round_)
                with self.phase("send"):
                    outgoing.filled(round_)
                self._check_write_back(allocation, round_)
            with self.phase("release"):
                outgoing.wait_released()
        return []

    def _allocate(self, attempt: Attempt) -> Allocation:
        return self.device.allocate(attempt.memory, self.size_bytes, self._part.options)

    def _describe(self, attempt: Attempt, allocation: Allocation) -> Offer:
        return Offer(
            self.size_bytes,
            allocation.allocated_bytes,
            allocation.offset_bytes,
            attempt.memory,
            attempt.handle,
            self.device.info.uuid,
        )

    def _settle(self, attempt: Attempt, allocation: Allocation) -> None:
        self.findings.attempt = (attempt.memory, attempt.handle)
        self.findings.allocated_bytes = allocation.allocated_bytes
        self.findings.notes.extend(f"{self.label}: {note}" for note in allocation.notes)

    def _pass_over(self, attempt: Attempt, importer: str | None, reason: Exception) -> str:
        self.findings.passed_over.append((attempt.memory, attempt.handle, importer, str(reason)))
        return str(reason) if importer is None else f"{importer}: {reason}"

    def _check_write_back(self, buffer: Buffer, round_: int) -> None:
        """Check what a consumer wrote back, where one does, once all have answered."""
        if not any(peer.writes for peer in self._part.downstream):
            return
        counts, first = self._compare(buffer, round_, patterns.step(round_, write_back=True))
        self.findings.write_back_mismatches += counts.mismatched
        self.findings.write_back_first = self.findings.write_back_first or first

    # The consuming side.

    def receive(self, each: Step | None = None) -> None:
        """Receive the buffer and call `each(buffer, round)` for every round; `ack` follows each call.

        Without `each` the buffer is checked, and written back where the scenario says so. A buffer that
        cannot be taken further down is refused by raising Unsupported in round 0. Raises Unsupported
        when the producer has no path left.
        """
        if self._incoming is None:
            raise DmabufMpError(f"{self.label} has no producer to receive from")
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
            for round_ in range(self.rounds):
                self._round = round_
                if round_ and not incoming.next_round(round_):
                    self._withdraw_downstream()
                    undo.close()
                    incoming.withdrawn()
                    return False
                try:
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
        self._last, self._offer = None, None
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
        with self.phase("import"):
            for importer in attempt.importers:
                try:
                    buffer = self.device.import_fd(importer, fd.duplicate(), offer)
                except Unsupported as reason:
                    reasons.append(self._pass_over(attempt, importer, reason))
                else:
                    self.findings.importer = importer
                    self.findings.attempt = (attempt.memory, attempt.handle)
                    return buffer
        return "; ".join(reasons) or "no importer of this device takes it"

    def _take_ack(self, round_: int) -> Ack:
        if self._last is None or self._last.round != round_:
            raise CheckMissing(f"{self.label} ended round {round_} without having checked the data")
        return self._last

    # The relay: a consumer of one link and the producer of the next.

    def forward(self, buffer: Buffer, round_: int) -> None:
        """Pass a round on: the same buffer by its fd, or a copy of it in memory of this role's own.

        Raises Unsupported in round 0 where the consumers further down cannot take it.
        """
        outgoing = self._require_outgoing()
        if self._part.forward == "copy":
            self._forward_copy(buffer, round_, outgoing)
        elif round_:
            outgoing.filled(round_)
            self._check_write_back(buffer, round_)
        else:
            if self._offer is None:
                raise DmabufMpError(f"{self.label} has nothing to forward outside receive()")
            number, offer, fd = self._offer
            with self.phase("send"):
                refusals = outgoing.offer(number, offer, fd.fileno(), ())
            if refusals:
                raise Unsupported("; ".join(refusals))
            self._check_write_back(buffer, 0)
            self._shared = True

    def _forward_copy(self, buffer: Buffer, round_: int, outgoing: Outgoing) -> None:
        if round_ and self._copy is not None:
            self.device.copy(buffer, self._copy)
            outgoing.filled(round_)
            self._check_write_back(self._copy, round_)
            return
        reasons: list[str] = []
        for number, attempt in enumerate(self._part.offers):
            refusals = self._copy_by(number, attempt, buffer, outgoing, reasons)
            if not refusals:
                self._shared = True
                return
            reasons.extend(f"{attempt.memory}/{attempt.handle}: {refusal}" for refusal in refusals)
        raise Unsupported("; ".join(reasons))

    def _copy_by(
        self, number: int, attempt: Attempt, source: Buffer, outgoing: Outgoing, passed_over: Sequence[str]
    ) -> list[str]:
        with contextlib.ExitStack() as undo:
            try:
                with self.phase("export"):
                    allocation = self._allocate(attempt)
                    undo.callback(allocation.close)
                    fd = undo.enter_context(allocation.export(attempt.handle))
            except Unsupported as reason:
                return [self._pass_over(attempt, None, reason)]
            self.device.copy(source, allocation)
            offer = self._describe(attempt, allocation)
            refusals = outgoing.offer(number, offer, fd.fileno(), passed_over)
            if refusals:
                return refusals
            self._copy = allocation
            self._check_write_back(allocation, 0)
            fd.close()
            undo.pop_all()
        return []

    def _withdraw_downstream(self) -> None:
        if self._outgoing is not None and self._shared:
            self._outgoing.withdraw()

    def _drop_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    # The end.

    def finish(self) -> None:
        """Judge a role that has returned: whatever was due and was not done is an error."""
        if self._incoming is not None:
            missing = self.rounds - len(self.findings.checked_rounds)
            if missing:
                raise CheckMissing(f"{self.label} ended with {missing} of {self.rounds} rounds unchecked")
        if not self._shared:
            raise CheckMissing(f"{self.label} ended without having shared a buffer")
        if self.findings.mismatches:
            raise MismatchFound(describe(self.findings.mismatches, self.findings.first))
        if self.findings.write_back_mismatches:
            what = describe(self.findings.write_back_mismatches, self.findings.write_back_first)
            raise MismatchFound(f"what was written back: {what}")

    def _compare(self, buffer: Buffer, round_: int, t: int) -> tuple[CheckCounts, Mismatch | None]:
        pattern = self._part.pattern
        with self.phase("check"):
            counts = self.device.check(buffer, pattern, t)
            due = patterns.positions(self.size_bytes)
            if counts.matched + counts.mismatched != due:
                raise CheckMissing(
                    f"{self.label} compared {counts.matched + counts.mismatched} of {due} positions"
                )
            if not counts.mismatched:
                return counts, None

            from dmabuf_mp.mismatch import (
                explain,
            )  # with numpy, which only a mismatch on a GPU's worker needs

            def read(offset_bytes: int, length: int) -> bytes:
                return self.device.read(buffer, offset_bytes, length)

            return counts, explain(read, self.size_bytes, pattern, t, round_, counts)

    def _require_outgoing(self) -> Outgoing:
        if self._outgoing is None:
            raise DmabufMpError(f"{self.label} has no consumer to share with")
        return self._outgoing
