"""A first look at scenario files: which drivers they will want, so that those can start meanwhile.

It may be wrong either way and decides nothing: files are read and judged by `scenario` alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from dmabuf_mp import backends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOK_BYTES = 64 * 1024
_LOOK_FILES = 100


def drivers(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes of the backends with a driver that are named in these files and folders."""
    wanted = {prefix: f"{prefix}:".encode() for prefix in backends.paths() if prefix != "cpu"}
    texts = [_text(file) for file in _files(paths)]
    return tuple(prefix for prefix, word in wanted.items() if any(word in text for text in texts))


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.glob("*.y*ml"))[:_LOOK_FILES] if path.is_dir() else (path,)


def _text(file: Path) -> bytes:
    """Return the start of a regular file; of anything else nothing, since reading it may take it away."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return b""
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _LOOK_BYTES)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return b""
