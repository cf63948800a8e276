"""The kernel's list of dma-bufs, as it was read on Linux 6.1 and 6.12 (the first lines are the same)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.cpu import memories
from dmabuf_mp.linux import bufinfo, dmabuf
from dmabuf_mp.linux.dmabuf import Identity
from tests import dmabufs

if TYPE_CHECKING:
    from pathlib import Path

HEADING = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n"
NOT_ATTACHED = "\tAttached Devices:\nTotal 0 devices attached\n\n"
# Linux 6.1 with vgem: a buffer without a name, with a fence.
FENCED = (
    f"{HEADING}00004096\t00000002\t00080007\t00000003\tdrm\t00000001\t<none>\n"
    f"\twrite fence:vgem unbound seq 1 unsignalled\n{NOT_ATTACHED}\nTotal 1 objects, 4096 bytes\n"
)
# Linux 6.12 with a heap's buffer and udmabuf's.
NAMED = (
    f"{HEADING}00008192\t00000002\t00080007\t00000003\tsystem\t00000002\ta name\twith tab\n{NOT_ATTACHED}"
    f"00008192\t00000002\t00080007\t00000003\tudmabuf\t00000001\tdmabuf-mp:udmabuf:116\n{NOT_ATTACHED}"
    "\nTotal 2 objects, 16384 bytes\n"
)
ATTACHED = (
    f"{HEADING}01048576\t00000002\t00080007\t00000007\tnv_dmabuf\t00012345\t\n"
    "\tAttached Devices:\n\t0000:03:00.0\nTotal 1 devices attached\n\n\nTotal 1 objects, 1048576 bytes\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        (f"{HEADING}\nTotal 0 objects, 0 bytes\n", ()),
        (FENCED, (Identity(1, 4096, "drm", ""),)),
        (
            NAMED,
            (
                Identity(2, 8192, "system", "a name\twith tab"),
                Identity(1, 8192, "udmabuf", "dmabuf-mp:udmabuf:116"),
            ),
        ),
        (ATTACHED, (Identity(12345, 2**20, "nv_dmabuf", ""),)),
        (
            f"{HEADING}00004096\t00000002\t00080007\t00000003\tdrm\t00000001\n",
            (Identity(1, 4096, "drm", ""),),
        ),
        ("00004096\t00000002\n0x1000\t2\t7\t3\tdrm\t1\tname\n", ()),
    ],
)
def test_the_list_is_taken_apart(text: str, expected: tuple[Identity, ...], tmp_path: Path) -> None:
    assert bufinfo.parse(text) == expected
    file = tmp_path / "bufinfo"
    file.write_text(text)
    assert bufinfo.buffers(file) == expected


def test_where_there_is_no_list_there_are_no_buffers(tmp_path: Path) -> None:
    assert bufinfo.buffers(tmp_path / "absent") == ()
    assert bufinfo.buffers(tmp_path) == ()


@pytest.mark.dmabuf
@pytest.mark.parametrize("memory", dmabufs.MEMORIES)
def test_a_buffer_is_listed_as_its_fd_tells_until_it_is_closed(memory: str) -> None:
    dmabufs.need(*dmabufs.NODES, str(bufinfo.BUFINFO))
    buffer = memories.allocate(memory, 5000, {})
    with buffer.export("dmabuf") as fd:
        identity = dmabuf.identity(fd.fileno())
        buffer.close()
        assert identity in bufinfo.buffers()
        assert (identity.size_bytes, identity.name) == (8192, f"dmabuf-mp:{memory}:{os.getpid()}")
    assert identity not in bufinfo.buffers()
