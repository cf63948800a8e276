"""Paths of the command line → the text of scenario files: bounded reads that never block."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from pathlib import Path

MAX_BYTES = 2**20
STDIN = "-"
_ENDINGS = (".yaml", ".yml")
# A pipe (`<(command)`) is waited for this long in all.
_PIPE_PATIENCE_S = 10.0


class Unreadable(Exception):
    """A path gives no text; says why, and at which byte of it where that is known."""

    def __init__(self, message: str, before: str = "") -> None:
        super().__init__(message)
        self.before = before


def files(path: str) -> tuple[str, ...]:
    """Return the scenario files that a path stands for: itself, or those in a folder, in order of name."""
    if path == STDIN or not os.path.isdir(path):  # noqa: PTH112 - answers for every path, Path raises
        return (path,)
    found: list[str] = []
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += (
            str(Path(folder, name)) for name in names if not name.startswith(".") and name.endswith(_ENDINGS)
        )
    if not found:
        raise Unreadable(f"no scenarios in this folder: expected files that end in {' or '.join(_ENDINGS)}")
    return tuple(sorted(found))


def _raise(error: OSError) -> None:
    raise Unreadable(f"{error.filename} cannot be read: {error.strerror}") from error


def text_of(file: str) -> str:
    """Return a file's text; raises Unreadable."""
    try:
        content = _stdin() if file == STDIN else _content(file)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise Unreadable(f"cannot be read: {error}") from error
    if len(content) > MAX_BYTES:
        raise Unreadable("larger than 1 MiB: is this a scenario file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        raise Unreadable("not UTF-8 text: save the file as UTF-8", before) from error


def _stdin() -> bytes:
    if sys.stdin is None:
        raise Unreadable("standard input is closed")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _content(file: str) -> bytes:
    # Not blocking: opening a FIFO without a writer would wait for one for ever.
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise Unreadable(
                "not a file: expected a scenario file, a folder of them, or - for standard input"
            )
        deadline_s = time.monotonic() + _PIPE_PATIENCE_S
        content = bytearray()
        while len(content) <= MAX_BYTES:
            try:
                part = os.read(fd, MAX_BYTES + 1 - len(content))
            except BlockingIOError:
                if not select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                    raise Unreadable(f"this pipe has not ended after {_PIPE_PATIENCE_S:.0f} s") from None
                continue
            if not part:
                break
            content += part
        return bytes(content)
    finally:
        os.close(fd)


def stem(file: str) -> str:
    """Return the name of a scenario that gives none itself."""
    return "stdin" if file == STDIN else Path(file.strip("<>")).stem
