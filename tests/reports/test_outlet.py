from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dmabuf_mp.model import LogLine
from dmabuf_mp.reports import outlet as module
from dmabuf_mp.reports.log import LogFile
from dmabuf_mp.reports.outlet import Outlet

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def drained(fd: int) -> bytes:
    """Return everything that is in a pipe whose writing end is closed."""
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def test_a_full_pipe_does_not_block_and_loses_no_line_below_the_limit() -> None:
    read, write = os.pipe()
    outlet = Outlet(write)
    lines = [f"line {i} {'x' * 100}\n" for i in range(5000)]
    for line in lines:  # half a MiB, where the pipe takes 64 KiB: this would block for ever
        outlet.write(line)
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os._exit(0 if drained(read) == "".join(lines).encode() else 1)
    outlet.finish()
    os.close(write)
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0


def test_text_larger_than_a_pipe_does_not_block() -> None:
    read, write = os.pipe()
    outlet = Outlet(write)
    outlet.write("x" * 1_000_000 + "\n")
    os.close(read)
    outlet.finish()
    os.close(write)
    assert isinstance(outlet.error, BrokenPipeError)


def test_a_pipe_that_another_filled_in_between_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    outlet = Outlet(write)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", refuse)
        outlet.write("first\n")
    outlet.write("second\n")
    os.close(write)
    assert drained(read) == b"first\nsecond\n"
    os.close(read)


def refuse(fd: int, data: bytes) -> int:
    """Stand in for os.write on a non-blocking pipe that is full."""
    raise BlockingIOError


def test_past_the_limit_whole_lines_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 100_000)
    read, write = os.pipe()
    outlet = Outlet(write)
    for i in range(5000):
        outlet.write(f"line {i} {'x' * 100}\n")
    pid = os.fork()
    if pid == 0:
        os.close(write)
        *kept, last = drained(read).decode().splitlines()
        whole = [f"line {i} {'x' * 100}" for i in range(len(kept))]
        expected = f"[{5000 - len(kept)} lines are missing here: they were not read in time]"
        os._exit(0 if 900 < len(kept) < 5000 and (kept, last) == (whole, expected) else 1)
    outlet.finish()
    os.close(write)
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_reader_that_has_gone_is_an_error_once_and_no_exception() -> None:
    read, write = os.pipe()
    os.close(read)
    outlet = Outlet(write)
    outlet.write("a\n")
    outlet.write("b\n")
    outlet.finish()
    os.close(write)
    assert isinstance(outlet.error, BrokenPipeError)


def test_a_closed_fd_is_an_error_and_no_exception() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    outlet = Outlet(write)
    outlet.write("a\n")
    outlet.finish()
    assert isinstance(outlet.error, OSError)


def test_a_non_blocking_pipe_loses_nothing() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    outlet = Outlet(write)
    for _ in range(2000):
        outlet.write("x" * 99 + "\n")
    got = b""
    while len(got) < 200_000:
        got += os.read(read, 65536)
        outlet.write("")
    os.close(write)
    os.close(read)
    assert got == (b"x" * 99 + b"\n") * 2000


def test_the_encoding_s_gaps_are_spelled_out(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        outlet = Outlet(file.fileno(), encoding="ascii")
        outlet.write("→\n")
    assert (tmp_path / "out").read_text() == "\\u2192\n"


def test_the_log_s_file_is_emptied_and_written_as_lines_come(tmp_path: Path) -> None:
    target = tmp_path / "log"
    target.write_text("old " * 100)
    log = LogFile(str(target))
    assert target.read_text() == ""
    log.add("s", "producer", LogLine(0.5, "info", "\ud800 naïve\n"))
    entry = json.loads(target.read_text())
    assert entry == {
        "scenario": "s",
        "worker": "producer",
        "t_s": 0.5,
        "level": "info",
        "message": "\ud800 naïve\n",
    }
    assert log.close() is None
    assert log.close() is None


def test_a_log_that_cannot_be_written_says_so() -> None:
    log = LogFile("/dev/full")
    log.add("s", "producer", LogLine(0.5, "info", "text"))
    assert log.close() == "--log /dev/full: the log could not be written: No space left on device"
