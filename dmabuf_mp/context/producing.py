"""The producing side of a buffer: allocate, fill, export, offer, and so again for every round."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dmabuf_mp import patterns
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.context.core import Core
from dmabuf_mp.errors import DmabufMpError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.assignment import Attempt
    from dmabuf_mp.backends.base import Allocation, Buffer
    from dmabuf_mp.context.core import Step
    from dmabuf_mp.dialogue import Outgoing


class Producing(Core):
    """Adds `share`."""

    def share(self, fill: Step | None = None) -> None:
        """Share one buffer with every consumer, for all rounds, along the first path that works.

        `fill(buffer, round)` writes a round's data; without it the scenario's pattern is written. Where it
        raises Unsupported in round 0, the next path is tried.
        Raises Unsupported when no path is left, with every reason.
        """
        outgoing = self._require_outgoing()
        if self._shared:
            raise DmabufMpError(f"{self.label} has shared its buffer already: one share() is all rounds")
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
        with contextlib.ExitStack() as undo:
            try:
                with self.phase("export"):
                    allocation = undo.enter_context(contextlib.closing(self._allocate(attempt)))
                    fd = undo.enter_context(allocation.export(attempt.handle))
                self._board.enter("role")
                fill(allocation, 0)
            except Unsupported as reason:
                return [self._pass_over(attempt, None, reason)]
            self._settle(allocation)
            offer = self._describe(attempt, allocation)
            with self.phase("send"):
                refusals = outgoing.offer(number, offer, fd.fileno(), passed_over)
            if refusals:
                return refusals
            fd.close()
            self.findings.rounds_done = 1
            self._check_write_back(allocation, 0)
            for round_ in range(1, self.rounds):
                self._round = round_
                self._board.enter("role")
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

    def _settle(self, allocation: Allocation) -> None:
        self.findings.allocated_bytes = allocation.allocated_bytes
        self.findings.notes.extend(f"{self.label}: {note}" for note in allocation.notes)

    def _pass_over(self, attempt: Attempt, importer: str | None, reason: Exception) -> str:
        self.findings.passed_over.append((attempt.memory, attempt.handle, importer, str(reason)))
        return str(reason) if importer is None else f"{importer}: {reason}"

    def _check_write_back(self, buffer: Buffer, round_: int) -> None:
        """Check what a consumer wrote back, where one does, once all have answered."""
        if not any(peer.writes for peer in self._part.downstream):
            return
        t, earlier = patterns.step(round_, write_back=True), self.findings.write_back_first
        counts, first = self._compare(buffer, round_, t, earlier)
        self.findings.write_back_mismatches += counts.mismatched
        self.findings.write_back_first = self.findings.write_back_first or first
