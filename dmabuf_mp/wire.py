"""Channel: frames and fds between two processes, over one SOCK_SEQPACKET socket.

A frame is a fixed header (magic, version, kind, sequence number) and a payload of at most 64 KiB in
all; it is never empty, since an empty message looks like the end. The frames of the dialogue that are
sent for every round are packed structs, the rare ones JSON.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import socket
import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from dmabuf_mp.errors import PeerGone, ProtocolError, ResourceRefused
from dmabuf_mp.fds import Fd
from dmabuf_mp.linux import memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.board import Board
    from dmabuf_mp.model import Json

MAGIC = b"dm"
VERSION = 1
MAX_FRAME_BYTES = 64 * 1024
MAX_FDS = 253  # SCM_MAX_FD: the kernel's limit for one message
_HEADER = struct.Struct("<2sBBI")
_HEADER_BYTES = _HEADER.size
_SEQUENCES = 2**32
_FD_SPACE = socket.CMSG_SPACE(MAX_FDS * 4)
_TIMEVAL = struct.Struct("@ll")
_PAYLOAD_SEALS = memfd.F_SEAL_SEAL | memfd.F_SEAL_SHRINK | memfd.F_SEAL_GROW | memfd.F_SEAL_WRITE
# Plain integers: the flags of the socket module are enums, whose `|` costs more than a system call.
_NOSIGNAL, _CLOEXEC, _DONTWAIT = (
    int(socket.MSG_NOSIGNAL),
    int(socket.MSG_CMSG_CLOEXEC),
    int(socket.MSG_DONTWAIT),
)
_CTRUNC, _TRUNC = int(socket.MSG_CTRUNC), int(socket.MSG_TRUNC)
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
# An answer that comes at once costs half when it finds its reader awake: as many looks take about 30 µs.
_LOOKS = 40


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
        return _WORDS[self]


_KINDS = {int(kind): kind for kind in Kind}
_WORDS = {kind: kind.name.lower() for kind in Kind}
_ANY_NUMBER_OF_FDS = (Kind.ASSIGN, Kind.LINKS)


class Frame:
    """One received frame; it owns its fds."""

    __slots__ = ("fds", "kind", "payload")

    def __init__(self, kind: Kind, payload: bytes, fds: tuple[Fd, ...] = ()) -> None:
        self.kind = kind
        self.payload = payload
        self.fds = fds

    def json(self) -> dict[str, Json]:
        """Return the payload as a JSON object; raises ProtocolError."""
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
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


def header(magic: bytes, version: int, kind: int, sequence: int) -> bytes:
    """Return a frame's header with these fields."""
    return _HEADER.pack(magic, version, kind, sequence)


def json_bytes(value: Json) -> bytes:
    """Serialise a rare frame's payload."""
    return json.dumps(value, separators=(",", ":")).encode()


class Channel:
    """One end of a link to a named peer; `board` is told what is waited for.

    No receive waits longer than `patience_s`: the last resort, since the orchestrator judges deadlines.
    """

    def __init__(
        self, sock: socket.socket, peer: str, *, board: Board | None = None, patience_s: float | None = None
    ) -> None:
        self.peer = peer
        self._socket = sock
        self._board = board
        self._sent = 0
        self._received = 0
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._look = poll.poll
        if patience_s is not None:
            timeval = _TIMEVAL.pack(int(patience_s), int(patience_s % 1 * 1e6) + 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def __repr__(self) -> str:
        return f"<Channel to {self.peer} sent={self._sent} received={self._received}>"

    def fileno(self) -> int:
        """Return the socket's number, borrowed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close this end; the peer sees the end of the frames, even where a forked process holds it open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, kind: Kind, payload: bytes = b"", fds: Sequence[int] = (), *, wait: bool = True) -> None:
        """Send one frame and, borrowed, the fds. Raises PeerGone; BlockingIOError where it may not wait."""
        if _HEADER_BYTES + len(payload) > MAX_FRAME_BYTES:
            raise ProtocolError(f"'{kind.word}' of {len(payload)} bytes is larger than a frame may be")
        data = (_HEADER.pack(MAGIC, VERSION, kind, self._sent % _SEQUENCES), payload)
        rights = ((*_RIGHTS, array.array("i", fds)),) if fds else ()
        try:
            self._socket.sendmsg(data, rights, _NOSIGNAL if wait else _NOSIGNAL | _DONTWAIT)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._last_words(f"{self.peer} ended before it took '{kind.word}'") from error
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ETOOMANYREFS, errno.ENOBUFS):
                raise ResourceRefused(f"the kernel did not send '{kind.word}': {error.strerror}") from error
            raise
        self._sent += 1

    def receive(self, *due: Kind, end_is_due: bool = False, wait: bool = True) -> Frame | None:
        """Return the next frame, which must be of a kind that is due; None at an end that is due.

        Raises PeerGone when the peer ended or sent a fault, ProtocolError for anything else than what
        is due, ResourceRefused where fds were lost, TimeoutError, BlockingIOError where it may not wait.
        """
        board = self._board
        if board is not None:
            board.waiting(self.peer, _WORDS[due[0]])
        try:
            frame = self._next(wait=wait)
        except BlockingIOError:
            if not wait:
                raise
            raise TimeoutError(f"{self.peer} did not send {_any_of(due)} in time") from None
        if frame is None:
            if end_is_due:
                if board is not None:
                    board.got(self.peer, "end")
                return None
            raise PeerGone(self.peer, f"{self.peer} ended before it sent {_any_of(due)}")
        kind = frame.kind
        if board is not None:
            board.got(self.peer, _WORDS[kind])
        if kind in due and (len(frame.fds) == (kind is Kind.OFFER) or kind in _ANY_NUMBER_OF_FDS):
            return frame
        frame.close()
        if kind is Kind.FAULT:
            raise self._fault(frame)
        count = len(frame.fds)
        raise ProtocolError(
            f"expected {_any_of(due)}{' with 1 fd' if Kind.OFFER in due else ''} from {self.peer}, "
            f"got '{kind.word}' with {count} fd{'' if count == 1 else 's'}",
            self.peer,
        )

    def expect(self, *due: Kind) -> Frame:
        """Return the next frame, which must be of a kind that is due."""
        frame = self.receive(*due)
        if frame is None:
            raise PeerGone(self.peer, f"{self.peer} ended")
        return frame

    def _fault(self, frame: Frame) -> PeerGone:
        fault = frame.json()
        return PeerGone(str(fault.get("culprit") or self.peer), f"{self.peer}: {fault.get('text')}")

    def _last_words(self, otherwise: str) -> PeerGone:
        """Return the fault that a peer sent before it ended, or else the plain fact that it ended."""
        with contextlib.suppress(OSError, ProtocolError, ResourceRefused):
            while (frame := self._next(wait=False)) is not None:
                frame.close()
                if frame.kind is Kind.FAULT:
                    return self._fault(frame)
        return PeerGone(self.peer, otherwise)

    def _next(self, *, wait: bool) -> Frame | None:
        """Return the next frame, whatever it is; None at the end."""
        flags = _CLOEXEC
        if wait:
            self._linger()
        else:
            flags |= _DONTWAIT
        try:
            data, ancillary, got_flags, _ = self._socket.recvmsg(MAX_FRAME_BYTES, _FD_SPACE, flags)
        except ConnectionResetError:
            # The peer closed with frames of ours unread; what it sent before that is still queued.
            try:
                data, ancillary, got_flags, _ = self._socket.recvmsg(MAX_FRAME_BYTES, _FD_SPACE, flags)
            except ConnectionResetError:
                return None
        fds = _own(ancillary) if ancillary else ()
        try:
            return self._validate(data, fds, got_flags)
        except BaseException:
            for fd in fds:
                fd.close()
            raise

    def _linger(self) -> None:
        """Stay awake for a moment, for a frame that is on its way; whoever else wants this CPU has it."""
        for _ in range(_LOOKS):
            if self._look(0):
                return
            os.sched_yield()

    def _validate(self, data: bytes, fds: tuple[Fd, ...], flags: int) -> Frame | None:
        if flags & _CTRUNC:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise ResourceRefused(
                f"{self.peer} sent more fds than could be received: "
                f"the limit of open files ({limit}) is reached; raise it with 'ulimit -n'"
            )
        if not data:
            if fds:
                raise ProtocolError(f"{self.peer} sent fds without a frame", self.peer)
            return None
        if flags & _TRUNC:
            raise ProtocolError(f"{self.peer} sent a frame of more than {MAX_FRAME_BYTES} bytes", self.peer)
        if len(data) < _HEADER_BYTES:
            raise ProtocolError(f"{self.peer} sent {len(data)} bytes, fewer than a frame's header", self.peer)
        magic, version, number, sequence = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise ProtocolError(f"{self.peer} sent no frame: it starts with {data[:8]!r}", self.peer)
        if version != VERSION:
            raise ProtocolError(
                f"{self.peer} speaks version {version} of the protocol, this is {VERSION}", self.peer
            )
        if sequence != self._received % _SEQUENCES:
            raise ProtocolError(
                f"{self.peer} sent frame {sequence} where frame {self._received} was due", self.peer
            )
        kind = _KINDS.get(number)
        if kind is None:
            raise ProtocolError(f"{self.peer} sent a frame of the unknown kind {number}", self.peer)
        self._received += 1
        return Frame(kind, data[_HEADER_BYTES:], fds)


def _own(ancillary: list[tuple[int, int, bytes]]) -> tuple[Fd, ...]:
    """Own every fd that came, before anything is validated."""
    return tuple(
        Fd(number)
        for level, kind, raw in ancillary
        if (level, kind) == _RIGHTS
        for number in struct.unpack_from(f"{len(raw) // 4}i", raw)
    )


def _any_of(due: tuple[Kind, ...]) -> str:
    return " or ".join(f"'{kind.word}'" for kind in due) or "nothing"


def sealed_payload(data: bytes) -> Fd:
    """Return a sealed memfd that holds a payload too large for a frame. Raises ResourceRefused."""
    try:
        fd = Fd(os.memfd_create("dmabuf-mp:payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        view = memoryview(data)
        while view:
            view = view[os.write(fd.fileno(), view) :]
        fcntl.fcntl(fd.fileno(), memfd.F_ADD_SEALS, _PAYLOAD_SEALS)
    except OSError as error:
        raise ResourceRefused(f"no memory for a payload of {len(data)} bytes: {error.strerror}") from error
    return fd


def read_payload(fd: Fd) -> bytes:
    """Return what `sealed_payload` holds."""
    size = os.fstat(fd.fileno()).st_size
    return os.pread(fd.fileno(), size, 0)
