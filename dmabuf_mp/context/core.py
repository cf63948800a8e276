"""What every role may use, whichever side of a buffer it is on."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp import patterns
from dmabuf_mp.dialogue import Ack, Incoming, Outgoing
from dmabuf_mp.errors import CheckMissing, DmabufMpError, UsageError
from dmabuf_mp.findings import Findings, MismatchFound, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.backends.base import Allocation, Buffer, CheckCounts, Device, Offer
    from dmabuf_mp.board import Board
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json, Mismatch
    from dmabuf_mp.wire import Channel

    Step = Callable[[Buffer, int], object]


class Core:
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
        self._received: Buffer | None = None
        self._offer: tuple[int, Offer, Fd] | None = None
        self._copy: Allocation | None = None
        self._round = 0
        self._forwarded = -1
        self._strike = strike

    def __repr__(self) -> str:
        return f"<Context {self.label} on {self.device.info.selector}>"

    # What every role may use.

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to the scenario's log."""
        self._log(str(level), str(message))

    @property
    def remaining_s(self) -> float:
        """Seconds until this role has to be done."""
        return self.deadline - time.monotonic()

    def fill(self, buffer: Buffer, round_: int, *, write_back: bool = False) -> None:
        """Write the pattern of a round, or a consumer's write-back of it, into the whole buffer.

        A consumer writes into what it has received only after its check, and with `access: readwrite`.
        """
        if buffer is self._received:
            if self._part.access == "read":
                raise UsageError(f"{self.label} may not write: its access is 'read'")
            if self._round not in self.findings.checked_rounds:
                raise CheckMissing(f"{self.label} wrote before it had checked round {self._round}")
        with self.phase("fill"):
            self.device.fill(buffer, self._part.pattern, patterns.step(round_, write_back=write_back))

    def check(self, buffer: Buffer, round_: int) -> CheckCounts:
        """Compare the whole buffer with the pattern of a round; only this makes a consumer pass."""
        if self._incoming is not None and buffer is not self._received:
            raise CheckMissing(f"{self.label} checked another buffer than the one that it received")
        findings = self.findings
        counts, first = self._compare(buffer, round_, patterns.step(round_), findings.first)
        findings.checked_rounds.add(round_)
        findings.bytes_checked += self.size_bytes
        findings.mismatches = (findings.mismatches or 0) + counts.mismatched
        findings.first = findings.first or first
        self._last = Ack(round_, counts, first and replace(first, evidence=None))
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

    def _compare(
        self, buffer: Buffer, round_: int, t: int, earlier: Mismatch | None
    ) -> tuple[CheckCounts, Mismatch | None]:
        """Check one step; what is wrong is named, and looked at more closely where nothing was `earlier`."""
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

            # With numpy, which only a mismatch on a GPU's worker needs.
            from dmabuf_mp.evidence import look
            from dmabuf_mp.mismatch import explain

            def read(offset_bytes: int, length: int) -> bytes:
                return self.device.read(buffer, offset_bytes, length)

            first = explain(read, self.size_bytes, pattern, t, round_, counts)
            if earlier is None:
                first = replace(first, evidence=look(read, self.size_bytes, pattern, t, first, counts))
            return counts, first

    def _require_outgoing(self) -> Outgoing:
        if self._outgoing is None:
            raise DmabufMpError(f"{self.label} has no consumer to share with")
        return self._outgoing
