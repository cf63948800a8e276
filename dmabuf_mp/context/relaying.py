"""The relay: passes on what it consumes, the same buffer by its fd or a copy of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dmabuf_mp.context.producing import Producing
from dmabuf_mp.errors import DmabufMpError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.assignment import Attempt
    from dmabuf_mp.backends.base import Buffer
    from dmabuf_mp.dialogue import Outgoing


class Relaying(Producing):
    """Adds `forward`."""

    def forward(self, buffer: Buffer, round_: int) -> None:
        """Pass a round on: the same buffer by its fd, or a copy of it in memory of this role's own.

        Raises Unsupported in round 0 where the consumers further down cannot take it.
        """
        outgoing = self._require_outgoing()
        if self._forwarded == round_:
            raise DmabufMpError(f"{self.label} has forwarded round {round_} already")
        self._forwarded = round_
        if self._part.forward == "copy":
            self._forward_copy(buffer, round_, outgoing)
        elif round_:
            with self.phase("send"):
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
            with self.phase("send"):
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
                self.device.copy(source, allocation)
            except Unsupported as reason:
                return [self._pass_over(attempt, None, reason)]
            offer = self._describe(attempt, allocation)
            with self.phase("send"):
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
