"""/proc/self/maps: what this process has mapped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAPS = Path("/proc/self/maps")


def mapped(*starts: str, path: Path = MAPS) -> Mapping[str, int]:
    """Return the bytes mapped of files whose names start so, by name and inode; empty without /proc.

    A memfd's name is `/memfd:NAME (deleted)`, a dma-buf's `/dmabuf:NAME`.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    names = [start.encode() for start in starts]
    if not any(name in text for name in names):
        return {}  # most often: this is read after every scenario, and has a hundred lines and more
    found: Counter[str] = Counter()
    for line in text.splitlines():
        # Addresses, permissions, offset, device, inode, name.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and any(fields[5].startswith(name) for name in names):
            start, _, end = fields[0].partition(b"-")
            name = fields[5].decode(errors="replace")
            found[f"{name}, inode {fields[4].decode()}"] += int(end, 16) - int(start, 16)
    return found
