"""Faults of what a part sends: the frames of a link, and the fds that go with them."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from typing import TYPE_CHECKING

from dmabuf_mp.faults import CATALOGUE
from dmabuf_mp.linux import memfd
from dmabuf_mp.wire import MAGIC, VERSION, Channel, Kind, header

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from dmabuf_mp.board import Board
    from dmabuf_mp.model import Fault
    from dmabuf_mp.wire import Frame

_ROUND_FRAMES = (Kind.OFFER, Kind.FILLED, Kind.ACK)  # one of each side for every round


class FaultyChannel(Channel):
    """A channel that does something else, once, in the round of its fault."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        board: Board | None,
        patience_s: float | None,
        faults: Sequence[Fault],
        struck: Callable[[Fault], None],
    ) -> None:
        super().__init__(sock, peer, board=board, patience_s=patience_s)
        self._faults = [fault for fault in faults if CATALOGUE[fault.kind].group in ("wire", "fd")]
        self._struck = struck
        self._round = -1

    def send(self, kind: Kind, payload: bytes = b"", fds: Sequence[int] = (), *, wait: bool = True) -> None:
        """Send the frame, or what the fault sends in its place."""
        if kind in _ROUND_FRAMES:
            self._round += 1
            phase = "ack" if kind is Kind.ACK else "send"
            for fault in self._faults:
                if (fault.phase, fault.round) == (phase, self._round):
                    if CATALOGUE[fault.kind].group == "wire":
                        self._struck(fault)
                        self._spoil(fault.kind, kind, payload, fds)
                        return
                    if kind is Kind.OFFER and fault.kind in _FDS:
                        self._struck(fault)
                        self._send_other_fds(fault.kind, payload, fds)
                        return
        super().send(kind, payload, fds, wait=wait)

    def receive(self, *due: Kind, end_is_due: bool = False, wait: bool = True) -> Frame | None:
        """Receive as ever, unless the fault is that no fd can come."""
        starving = [fault for fault in self._faults if fault.kind == "no_fds_left"]
        if Kind.OFFER in due and starving:
            self._struck(starving[0])
            free = os.dup(0)
            os.close(free)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                return super().receive(*due, end_is_due=end_is_due, wait=wait)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return super().receive(*due, end_is_due=end_is_due, wait=wait)

    def _spoil(self, fault: str, kind: Kind, payload: bytes, fds: Sequence[int]) -> None:
        raw = self._socket
        if fault == "early_end":
            self.close()
        elif fault == "garbage":
            raw.send(b"\x07garbage that is no frame\x07")
        elif fault == "wrong_version":
            raw.send(header(MAGIC, VERSION + 8, kind, self._sent) + payload)
        elif fault == "oversized":
            raw.send(header(MAGIC, VERSION, kind, self._sent) + bytes(70_000))
        elif fault == "wrong_order":
            super().send(Kind.WITHDRAWN if kind is Kind.ACK else Kind.FILLED, payload)
        elif fault == "duplicate":
            super().send(kind, payload, fds)
            self._sent -= 1
            super().send(kind, payload, fds)
        else:  # silence
            time.sleep(1e6)

    def _send_other_fds(self, fault: str, payload: bytes, fds: Sequence[int]) -> None:
        with_it = _FDS[fault](fds[0])
        try:
            super().send(Kind.OFFER, payload, with_it)
        finally:
            for number in with_it:
                if number not in fds:
                    os.close(number)


def _pipe(_: int) -> tuple[int, ...]:
    read, write = os.pipe()
    os.close(write)
    return (read,)


def _regular_file(original: int) -> tuple[int, ...]:
    with tempfile.TemporaryFile() as file:
        file.truncate(os.fstat(original).st_size)
        return (os.dup(file.fileno()),)


def _memfd(extra_bytes: int, *, sealed: bool = True) -> Callable[[int], tuple[int, ...]]:
    def make(original: int) -> tuple[int, ...]:
        size_bytes = max(os.fstat(original).st_size + extra_bytes, 0)
        fd = memfd.create("dmabuf-mp:faulty", size_bytes, memfd.F_SEAL_SHRINK if sealed else 0)
        return (fd.take(),)

    return make


_FDS: dict[str, Callable[[int], tuple[int, ...]]] = {
    "no_fd": lambda _: (),
    "two_fds": lambda original: (original, original),
    "pipe": _pipe,
    "regular_file": _regular_file,
    "directory": lambda _: (os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),),
    "dev_zero": lambda _: (os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC),),
    "too_small": _memfd(-4096),
    "too_large": _memfd(4096),
    "unsealed": _memfd(0, sealed=False),
}
