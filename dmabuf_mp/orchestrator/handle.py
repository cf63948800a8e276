"""The orchestrator's side of one worker: how it is forked, what comes from it, how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp import wire, worker
from dmabuf_mp.board import Board
from dmabuf_mp.errors import DmabufMpError, InternalError, ResourceRefused
from dmabuf_mp.linux import process
from dmabuf_mp.wire import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.wire import Frame

_READ_BYTES = 64 * 1024
# What is taken from one worker in one go, so that one that never stops talking does not stop the loop.
_FRAMES_AT_ONCE = 64
_FRAMES_LEFT = 4096  # more than the queue of a worker that has ended can hold
LEVELS = ("stdout", "stderr", "stack")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended; both None where somebody else took its status."""

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exited with status {self.code}" if self.code is not None else "ended with an unknown status"


def exit_of(status: int) -> Exit:
    """Return how a process ended by its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Exit(code=code)
    try:
        return Exit(signal=signal.Signals(-code).name)
    except ValueError:
        return Exit(signal=f"signal {-code}")


class Handle:
    """One worker process. `on_frame` and `on_output` are set by whoever the worker works for."""

    def __init__(self, pid: int, control: Channel, pipes: tuple[int, ...], boards: tuple[Board, ...]) -> None:
        self.pid = pid
        self.control = control
        self.boards = boards
        self.pidfd = process.pidfd_open(pid)
        self.exit: Exit | None = None
        self.broken = ""
        self.devices: tuple[str, ...] = ()
        self.on_frame: Callable[[Frame], None] = _drop
        self.on_output: Callable[[str, bytes], None] = _ignore
        self.pipes = dict(zip(LEVELS, pipes, strict=True))

    def __repr__(self) -> str:
        return f"<Worker pid={self.pid}: {self.exit or self.boards[0].phase or 'starting'}>"

    @property
    def fds(self) -> tuple[int, ...]:
        """The fds of this process that the worker explains."""
        control = -1 if self.control.closed else self.control.fileno()
        return (control, *self.pipes.values(), -1 if self.pidfd is None else self.pidfd)

    def forget(self) -> None:
        """Work for nobody: what still comes is dropped."""
        self.on_frame, self.on_output = _drop, _ignore

    def read_frames(self, at_most: int = _FRAMES_AT_ONCE) -> bool:
        """Take the frames that are there; False at their end, or where what came is no frame."""
        try:
            for _ in range(at_most):
                if (frame := self._next_frame()) is None:
                    return False
                self.on_frame(frame)
        except BlockingIOError:
            return True
        except DmabufMpError as error:
            self.broken = str(error)
            self.signal(signal.SIGKILL)
            return False
        return True

    def _next_frame(self) -> Frame | None:
        if self.control.closed:
            return None
        kinds = (wire.Kind.READY, wire.Kind.LOG, wire.Kind.RESULT)
        return self.control.receive(*kinds, end_is_due=True, wait=False)

    def read_output(self, level: str) -> int:
        """Take what a pipe holds, 64 KiB at most, and return how much that was; -1 at its end."""
        try:
            data = os.read(self.pipes[level], _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            return -1
        self.on_output(level, data)
        return len(data)

    def drain(self) -> None:
        """Take everything that the worker has sent and printed up to now."""
        self.read_frames(_FRAMES_LEFT)
        for level, number in self.pipes.items():
            # No more than the pipe can hold: a process that was left behind may print for ever.
            left = fcntl.fcntl(number, fcntl.F_GETPIPE_SZ)
            while left > 0 and (taken := self.read_output(level)) > 0:
                left -= taken

    def reap(self) -> bool:
        """Look whether the process has ended; True once it has."""
        if self.exit is not None:
            return True
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self.exit = Exit()  # somebody else took the status: it is unknown, and never a 0
            return True
        if pid == 0:
            return False
        self.exit = exit_of(status)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there and ours."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """Give back the fds; the boards stay readable for as long as this object is held."""
        self.control.close()
        for number in self.pipes.values():
            os.close(number)
        self.pipes.clear()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _drop(frame: Frame) -> None:
    frame.close()


def _ignore(level: str, data: bytes) -> None:
    pass


def check_forkable() -> None:
    """Refuse to fork a process with threads: a lock that one of them holds would never be released.

    One that has initialised CUDA, whichever library did it, has threads, and no forked child could use it.
    """
    threads = process.thread_names()
    if len(threads) > 1:
        why = "has initialised CUDA and " if process.cuda_is_initialised() else ""
        raise InternalError(
            f"the orchestrator {why}has {len(threads)} threads ({', '.join(threads)}) and must not fork; "
            "run it in a fresh interpreter"
        )


def fork() -> Handle:
    """Fork one worker. Raises ResourceRefused where the kernel has no process or no fds left."""
    check_forkable()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.ExitStack() as undo:
        try:
            ours, theirs = wire.pair()
            undo.callback(ours.close)
            undo.callback(theirs.close)
            pipes = []
            for _ in LEVELS:
                pipes.append(os.pipe2(os.O_CLOEXEC))
                undo.callback(os.close, pipes[-1][0])
                undo.callback(os.close, pipes[-1][1])
            boards = (Board(), Board())
            parent = os.getpid()
            pid = os.fork()
        except OSError as error:
            raise ResourceRefused(f"no further worker can be started: {error.strerror}") from error
        if pid == 0:
            worker.run(theirs, boards, (pipes[0][1], pipes[1][1], pipes[2][1]), parent)
        undo.pop_all()
    theirs.close()
    for read, write in pipes:
        os.close(write)
        os.set_blocking(read, False)
    return Handle(pid, Channel(ours, f"worker {pid}"), tuple(read for read, _ in pipes), boards)
