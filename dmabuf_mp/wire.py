"""Channel: frames and fds between two processes, over one SOCK_SEQPACKET socket.

A frame is a fixed header (magic, version, kind, sequence number) and a payload of at most 64 KiB in
all; it is never empty, since an empty message looks like the end. The frames of the dialogue that are
sent for every round are packed structs, the rare ones JSON.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from dmabuf_mp.errors import PeerGone, ProtocolError, ResourceRefused
from dmabuf_mp.fds import Fd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.board import Board
    from dmabuf_mp.model import Json

MAGIC = b"dm"
VERSION = 1
MAX_FRAME_BYTES = 64 * 1024
MAX_FDS = 253  # SCM_MAX_FD: the kernel's limit for one message
_HEADER = struct.Struct("<2sBBI")
_FD_SPACE = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_TIMEVAL = struct.Struct("@ll")


class Kind(IntEnum):
    """What a frame says; the numbers are the protocol's."""

    GO = 1
    OFFER = 2
    ACK = 3
    UNSUPPORTED = 4
    WITHDRAW = 5
    WITHDRAWN = 6
    NONE = 7
    FILLED = 8
    RELEASED = 9
    FAULT = 10
    # Between the orchestrator and a worker.
    ASSIGN = 32
    LINKS = 33
    INVENTORY = 34
    RESOLVE = 35
    STOP = 36
    READY = 48
    LOG = 49
    RESULT = 50

    @property
    def word(self) -> str:
        """The name used in messages."""
        return self.name.lower()


@dataclass(slots=True)
class Frame:
    """One received frame; it owns its fds."""

    kind: Kind
    payload: bytes
    fds: tuple[Fd, ...] = ()

    def json(self) -> dict[str, Json]:
        """Return the payload as a JSON object; raises ProtocolError."""
        try:
            value = json.loads(self.payload)
        except ValueError as error:
            raise ProtocolError(f"'{self.kind.word}' carries no JSON: {error}") from error
        if not isinstance(value, dict):
            raise ProtocolError(f"'{self.kind.word}' carries no JSON object")
        return value

    def close(self) -> None:
        """Close the fds that nobody took."""
        for fd in self.fds:
            fd.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected SOCK_SEQPACKET sockets, close-on-exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def json_bytes(value: Json) -> bytes:
    """Serialise a rare frame's payload."""
    return json.dumps(value, separators=(",", ":")).encode()


class Channel:
    """One end of a link to a named peer; `board` is told what is waited for.

    `received` counts the frames that came. `deadline` is on the clock of time.monotonic(), or None; it
    is the last resort, since the orchestrator judges deadlines.
    """

    def __init__(
        self, sock: socket.socket, peer: str, *, board: Board | None = None, deadline: float | None = None
    ) -> None:
        self._socket = sock
        self.peer = peer
        self._board = board
        self._deadline = deadline
        self._sent = 0
        self.received = 0

    def __repr__(self) -> str:
        return f"<Channel to {self.peer} sent={self._sent} received={self.received}>"

    def fileno(self) -> int:
        """Return the socket's number, borrowed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close this end; the peer sees the end of the frames."""
        self._socket.close()

    def send(self, kind: Kind, payload: bytes = b"", fds: Sequence[int] = (), *, flags: int = 0) -> None:
        """Send one frame and, borrowed, the fds. Raises PeerGone; BlockingIOError with MSG_DONTWAIT."""
        if _HEADER.size + len(payload) > MAX_FRAME_BYTES:
            raise ProtocolError(f"'{kind.word}' of {len(payload)} bytes is larger than a frame may be")
        data = (_HEADER.pack(MAGIC, VERSION, kind, self._sent & 0xFFFFFFFF), payload)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else ()
        try:
            self._socket.sendmsg(data, rights, flags | socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._last_words(f"{self.peer} ended before it took '{kind.word}'") from error
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ETOOMANYREFS, errno.ENOBUFS):
                raise ResourceRefused(f"the kernel did not send '{kind.word}': {error.strerror}") from error
            raise
        self._sent += 1

    def receive(self, *due: Kind, end_is_due: bool = False, flags: int = 0) -> Frame | None:
        """Return the next frame, which must be of a kind that is due; None at an end that is due.

        Raises PeerGone when the peer ended or sent a fault, ProtocolError for anything else than what
        is due, ResourceRefused where fds were lost, TimeoutError, BlockingIOError with MSG_DONTWAIT.
        """
        if self._board is not None:
            self._board.waiting(self.peer, due[0].word if due else "end")
        if self._deadline is not None:
            self._arm()
        try:
            frame = self._receive(flags)
        except BlockingIOError:
            if flags & socket.MSG_DONTWAIT:
                raise
            raise TimeoutError(f"{self.peer} did not send {_any_of(due)} in time") from None
        if frame is None:
            if end_is_due:
                return None
            raise PeerGone(self.peer, f"{self.peer} ended before it sent {_any_of(due)}")
        if self._board is not None:
            self._board.got(self.peer, frame.kind.word)
        if frame.kind is Kind.FAULT:
            raise self._fault(frame)
        wanted_fds = 1 if frame.kind is Kind.OFFER else None if frame.kind in (Kind.ASSIGN, Kind.LINKS) else 0
        if frame.kind not in due or (wanted_fds is not None and len(frame.fds) != wanted_fds):
            count = len(frame.fds)
            frame.close()
            raise ProtocolError(
                f"expected {_any_of(due)}{' with 1 fd' if wanted_fds == 1 else ''} from {self.peer}, "
                f"got '{frame.kind.word}' with {count} fd{'' if count == 1 else 's'}"
            )
        return frame

    def _fault(self, frame: Frame) -> PeerGone:
        fault = frame.json()
        return PeerGone(str(fault.get("culprit") or self.peer), f"{self.peer}: {fault.get('text')}")

    def _last_words(self, otherwise: str) -> PeerGone:
        """Return the fault that a peer sent before it ended, or else the plain fact that it ended."""
        with contextlib.suppress(OSError, ProtocolError, ResourceRefused):
            while (frame := self._receive(socket.MSG_DONTWAIT)) is not None:
                frame.close()
                if frame.kind is Kind.FAULT:
                    return self._fault(frame)
        return PeerGone(self.peer, otherwise)

    def expect(self, *due: Kind) -> Frame:
        """Return the next frame, which must be of a kind that is due."""
        frame = self.receive(*due)
        if frame is None:
            raise PeerGone(self.peer, f"{self.peer} ended")
        return frame

    def _arm(self) -> None:
        remaining = max(self._deadline - time.monotonic(), 0.001) if self._deadline is not None else 0.0
        seconds, fraction = divmod(remaining, 1)
        value = _TIMEVAL.pack(int(seconds), max(int(fraction * 1e6), 1))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def _receive(self, flags: int) -> Frame | None:
        flags |= socket.MSG_CMSG_CLOEXEC
        try:
            data, ancillary, got_flags, _ = self._socket.recvmsg(MAX_FRAME_BYTES, _FD_SPACE, flags)
        except ConnectionResetError:
            # The peer closed with frames of ours unread; what it sent before that is still queued.
            with contextlib.suppress(ConnectionResetError):
                data, ancillary, got_flags, _ = self._socket.recvmsg(MAX_FRAME_BYTES, _FD_SPACE, flags)
                return self._parse(data, ancillary, got_flags)
            return None
        return self._parse(data, ancillary, got_flags)

    def _parse(self, data: bytes, ancillary: list[tuple[int, int, bytes]], flags: int) -> Frame | None:
        fds: list[Fd] = []
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
                fds.extend(Fd(number) for number in numbers)
        try:
            return self._validate(data, tuple(fds), flags)
        except BaseException:
            for fd in fds:
                fd.close()
            raise

    def _validate(self, data: bytes, fds: tuple[Fd, ...], flags: int) -> Frame | None:
        if flags & socket.MSG_CTRUNC:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise ResourceRefused(
                f"{self.peer} sent more fds than could be received: "
                f"the limit of open files ({limit}) is reached; raise it with 'ulimit -n'"
            )
        if not data:
            return None
        if flags & socket.MSG_TRUNC:
            raise ProtocolError(f"{self.peer} sent a frame of more than {MAX_FRAME_BYTES} bytes")
        if len(data) < _HEADER.size:
            raise ProtocolError(f"{self.peer} sent {len(data)} bytes, fewer than a frame's header")
        magic, version, number, sequence = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ProtocolError(f"{self.peer} sent no frame: it starts with {data[:8]!r}")
        if version != VERSION:
            raise ProtocolError(f"{self.peer} speaks version {version} of the protocol, this is {VERSION}")
        if sequence != self.received & 0xFFFFFFFF:
            raise ProtocolError(f"{self.peer} sent frame {sequence} where frame {self.received} was due")
        try:
            kind = Kind(number)
        except ValueError:
            raise ProtocolError(f"{self.peer} sent a frame of the unknown kind {number}") from None
        self.received += 1
        return Frame(kind, data[_HEADER.size :], fds)


def _any_of(due: tuple[Kind, ...]) -> str:
    return " or ".join(f"'{kind.word}'" for kind in due) or "nothing"


def sealed_payload(data: bytes) -> Fd:
    """Return a sealed memfd that holds a payload too large for a frame."""
    fd = Fd(os.memfd_create("dmabuf-mp:payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    view = memoryview(data)
    while view:
        view = view[os.write(fd.fileno(), view) :]
    return fd


def read_payload(fd: Fd) -> bytes:
    """Return what `sealed_payload` holds."""
    size = os.fstat(fd.fileno()).st_size
    return os.pread(fd.fileno(), size, 0)
