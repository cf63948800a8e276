"""How much memory may be allocated: asked first, since the kernel kills for more rather than refuse it."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dmabuf_mp.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where cgroups keep what: mount point, limit, usage, and the page cache within it that can be dropped.
_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _named(file: Path, name: str) -> int | None:
    """Return the number of a line `name: number` or `name number` of a file."""
    try:
        found = re.search(rf"^{name}:?\s+(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # `max`, where there is no limit
        return None


def _rooms(root: Path) -> Iterator[tuple[int, str]]:
    """Yield how many bytes each limit leaves, and the limit's name."""
    yield os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE, "this machine's memory"
    if (free := _named(root / "proc/meminfo", "MemAvailable")) is not None:
        yield free * 1024, "MemAvailable"
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, limit_file, usage_file, cache = _V1 if controllers else _V2
        own = PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
            where = root / mount / folder
            limit, usage = _number(where / limit_file), _number(where / usage_file)
            if limit is not None and usage is not None:
                dropped = _named(where / "memory.stat", cache) or 0
                yield max(0, limit - usage + dropped), f"the cgroup's {where / limit_file}"


def ask(size_bytes: int, *, root: Path = Path("/")) -> None:
    """Raise Unsupported, naming the tightest limit, if that much memory is not there now."""
    room_bytes, limit = min(_rooms(root))
    if size_bytes > room_bytes:
        raise Unsupported(f"{size_bytes} bytes are larger than {limit}, which leaves {room_bytes} bytes")
