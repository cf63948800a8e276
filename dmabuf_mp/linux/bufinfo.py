"""debugfs dma_buf/bufinfo: every dma-buf of this machine, as far as the kernel lets one look."""

from __future__ import annotations

from pathlib import Path

from dmabuf_mp.linux.dmabuf import Identity

BUFINFO = Path("/sys/kernel/debug/dma_buf/bufinfo")


def buffers(path: Path = BUFINFO) -> tuple[Identity, ...]:
    """Return every dma-buf that there is; none where the list cannot be read.

    It is root's as a rule, and there where debugfs is mounted.
    """
    try:
        return parse(path.read_text(errors="replace"))
    except OSError:
        return ()


def parse(text: str) -> tuple[Identity, ...]:
    """Return the buffers of the list; lines of fences and attached devices are passed over."""
    found = []
    for line in text.splitlines():
        # Size, flags, mode, count, exporter, inode, name; only a name may hold tabs, or be missing.
        size, *fields = line.split("\t", 6)
        if len(fields) >= 5 and size.isdecimal() and fields[4].isdecimal():
            name = fields[5] if len(fields) == 6 and fields[5] != "<none>" else ""
            found.append(Identity(int(fields[4]), int(size), fields[3], name))
    return tuple(found)
