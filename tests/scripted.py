"""Scripted peers on real socketpairs, and a device double whose memories can be refused.

A script says everything that it is going to say at once: the socket keeps it until it is due.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp.assignment import Attempt, Part, Peer
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.backends.cpu.device import CpuDevice
from dmabuf_mp.board import Board
from dmabuf_mp.context import Context
from dmabuf_mp.dialogue import Ack, pack_ack, pack_offer
from dmabuf_mp.errors import Unsupported
from dmabuf_mp.linux import memfd
from dmabuf_mp.patterns import Pattern, positions
from dmabuf_mp.wire import Channel, Kind, json_bytes, pair

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.backends.base import Buffer
    from dmabuf_mp.backends.cpu.mapped import MappedBuffer
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json

SIZE_BYTES = 8195
PAGES_BYTES = 12_288
PATTERN = Pattern()
ATTEMPTS = (Attempt("first", "memfd", ("mmap",)), Attempt("second", "memfd", ("mmap",)))


class Script:
    """A peer of the context under test: `channel` is the context's end of the link."""

    def __init__(self, name: str) -> None:
        ours, theirs = pair()
        self.channel = Channel(ours, name, patience_s=0.05)
        self.fds: list[Fd] = []
        self.offered: list[Fd] = []
        self._socket = theirs
        self._theirs = Channel(theirs, "the context")

    def says(self, kind: Kind, payload: bytes = b"", fds: tuple[int, ...] = ()) -> Script:
        self._theirs.send(kind, payload, fds)
        return self

    def go(self) -> Script:
        return self.says(Kind.GO)

    def acks(self, *rounds: int) -> Script:
        for round_ in rounds:
            self.says(Kind.ACK, pack_ack(Ack(round_, CheckCounts(positions(SIZE_BYTES), 0))))
        return self

    def refuses(self, reason: str) -> Script:
        return self.says(Kind.UNSUPPORTED, json_bytes({"attempt": 0, "reason": reason}))

    def offers(
        self, attempt: int, *, rounds: tuple[int, ...] = (), wrong: bool = False, **changes: object
    ) -> Script:
        """Offer a buffer with the pattern of round 0, or one whose first byte is wrong."""
        with memfd.create("offered", PAGES_BYTES) as fd:
            device = CpuDevice()
            offer = Offer(SIZE_BYTES, PAGES_BYTES, 0, "", "memfd")
            buffer = device.import_fd("mmap", fd.duplicate(), replace(offer, writable=True))
            device.fill(buffer, PATTERN, 0)
            if wrong:
                device.write(buffer, 0, b"\xff")
            buffer.close()
            offer = replace(offer, **changes)  # type: ignore[arg-type]
            self.says(Kind.OFFER, pack_offer(attempt, offer, ()), (fd.fileno(),))
            self.offered.append(fd.duplicate())
        for round_ in rounds:
            self.filled(round_)
        return self

    def filled(self, round_: int) -> Script:
        return self.says(Kind.FILLED, round_.to_bytes(4, "little"))

    def ends(self) -> Script:
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def heard(self) -> list[str]:
        """Return what the context has said up to now; the fds that came are kept in `fds`."""
        words = []
        try:
            while (frame := self._theirs._next(wait=False)) is not None:
                words.append(frame.kind.word)
                self.fds += frame.fds
                if frame.kind in (Kind.UNSUPPORTED, Kind.NONE):
                    words[-1] += f" {frame.payload.decode()}"
        except BlockingIOError:
            pass
        return words

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()
        for fd in (*self.fds, *self.offered):
            fd.close()


class PickyDevice(CpuDevice):
    """A device double: memfds under any name of a memory, of which some are refused where it says so."""

    def __init__(self, *, no_memory: tuple[str, ...] = (), no_import: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._no_memory = no_memory
        self._no_import = no_import
        self.held: list[MappedBuffer] = []

    def allocate(self, memory: str, size_bytes: int, options: Mapping[str, Json]) -> MappedBuffer:
        if memory in self._no_memory:
            raise Unsupported(f"no {memory} here")
        self.held.append(super().allocate("memfd", size_bytes, options))
        return self.held[-1]

    def import_fd(self, importer: str, fd: Fd, offer: Offer) -> MappedBuffer:
        if offer.memory in self._no_import:
            fd.close()
            raise Unsupported(f"cannot import {offer.memory}")
        self.held.append(super().import_fd(importer, fd, offer))
        return self.held[-1]

    @property
    def holds(self) -> int:
        """How many buffers are not closed."""
        return sum("closed" not in repr(buffer) for buffer in self.held)


class MiscountingDevice(PickyDevice):
    """A device double whose check leaves a position out."""

    def check(self, buffer: Buffer, pattern: Pattern, t: int) -> CheckCounts:
        counts = super().check(buffer, pattern, t)
        return CheckCounts(counts.matched - 1, counts.mismatched)


def context(
    device: CpuDevice,
    *,
    upstream: Script | None = None,
    downstream: tuple[Script, ...] = (),
    writers: tuple[Script, ...] = (),
    **changes: object,
) -> Context:
    """Return the context of a producer, a consumer or a relay between scripted peers."""
    role = "producer" if upstream is None else "relay" if downstream else "consumer"
    part = Part(
        label=role if role == "producer" else f"{role}[0]",
        role=role,  # type: ignore[arg-type]
        index=0,
        device="cpu",
        size_bytes=SIZE_BYTES,
        pattern=PATTERN,
        rounds=1,
        patience_s=5,
        upstream=upstream.channel.peer if upstream else None,
        downstream=tuple(Peer(one.channel.peer, one in writers) for one in downstream),
        receives=ATTEMPTS if upstream else (),
        offers=ATTEMPTS if role == "producer" else (),
    )
    return Context(
        replace(part, **changes),  # type: ignore[arg-type]
        device,
        upstream=upstream.channel if upstream else None,
        downstream=[one.channel for one in downstream],
        board=Board(),
        log=lambda level, message: None,
    )
