"""The orchestrator's side of a worker, by itself: what is taken at once, and how ends are told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import wire
from dmabuf_mp.board import Board
from dmabuf_mp.orchestrator.handle import Exit, Handle, exit_of
from dmabuf_mp.wire import Channel, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.wire import Frame


@pytest.fixture
def worker() -> Iterator[tuple[Handle, Channel, int]]:
    """A handle whose worker is this test, with its control and the end of its standard output."""
    ours, theirs = wire.pair()
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(3)]
    handle = Handle(
        os.getpid(), Channel(ours, "worker"), tuple(read for read, _ in pipes), (Board(), Board())
    )
    control = Channel(theirs, "orchestrator")
    yield handle, control, pipes[0][1]
    handle.close()
    control.close()
    for _, write in pipes:
        os.close(write)


def test_a_worker_that_never_stops_talking_does_not_stop_the_loop(
    worker: tuple[Handle, Channel, int],
) -> None:
    handle, control, _ = worker
    taken: list[Frame] = []

    def answer(frame: Frame) -> None:
        taken.append(frame)
        control.send(Kind.LOG, b"{}")  # there is always one more

    handle.on_frame = answer
    control.send(Kind.LOG, b"{}")
    assert handle.read_frames()
    assert len(taken) == 64


def test_one_that_never_stops_printing_is_drained_of_what_its_pipe_can_hold(
    worker: tuple[Handle, Channel, int],
) -> None:
    handle, _, stdout = worker
    taken: list[bytes] = []

    def answer(level: str, data: bytes) -> None:
        taken.append(data)
        os.write(stdout, b"y" * 65_536)

    handle.on_output = answer
    os.write(stdout, b"y" * 65_536)
    handle.drain()
    assert len(taken) == 1


def test_what_is_no_frame_breaks_it(worker: tuple[Handle, Channel, int]) -> None:
    handle, control, _ = worker
    handle.exit = Exit(code=0)  # so that nothing is killed: the worker is this test
    control._socket.send(b"junk")
    assert not handle.read_frames()
    assert "sent 4 bytes, fewer than a frame's header" in handle.broken


def test_an_exit_says_how() -> None:
    assert str(exit_of(3 << 8)) == "exited with status 3"
    assert str(exit_of(signal.SIGSEGV)) == "killed by SIGSEGV"
    assert exit_of(signal.SIGKILL) == Exit(signal="SIGKILL")
    assert str(exit_of(signal.SIGRTMIN + 2)).startswith("killed by signal 3")
    assert str(Exit()) == "ended with an unknown status"
