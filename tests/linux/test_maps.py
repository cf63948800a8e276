"""What this process has mapped, by the names of what lies behind."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from dmabuf_mp.linux import maps, memfd

if TYPE_CHECKING:
    from pathlib import Path

# From Linux 6.12: a heap's buffer with a name of blanks, mapped twice, one of udmabuf, a memfd.
SAMPLE = """\
7f094c9ba000-7f094c9bc000 rw-s 00000000 00:0b 2                          /dmabuf:a name\twith tab
7f094c9bc000-7f094c9bd000 r--s 00001000 00:0b 2                          /dmabuf:a name\twith tab
7f094cb61000-7f094cb63000 rw-s 00000000 00:0b 1                          /dmabuf:dmabuf-mp:udmabuf:116
7f094cb63000-7f094cb64000 rw-s 00000000 00:01 7                          /memfd:dmabuf-mp:memfd:9 (deleted)
7f094cb64000-7f094cb65000 rw-s 00000000 00:01 8                          /memfd:libffi (deleted)
7f094cb70000-7f094cb72000 r-xp 00000000 00:00 0                          [vdso]
7f094cb72000-7f094cb73000 r--p 00000000 00:17 338944                     /usr/lib/dmabuf:/ld-linux.so.2
7f094cb73000-7f094cb74000 rw-p 00000000 00:00 0
"""


def test_mappings_are_added_up_by_file(tmp_path: Path) -> None:
    file = tmp_path / "maps"
    file.write_text(SAMPLE)
    assert maps.mapped("/memfd:dmabuf-mp:", "/dmabuf:", path=file) == {
        "/dmabuf:a name\twith tab, inode 2": 3 * 4096,
        "/dmabuf:dmabuf-mp:udmabuf:116, inode 1": 2 * 4096,
        "/memfd:dmabuf-mp:memfd:9 (deleted), inode 7": 4096,
    }
    assert maps.mapped("/memfd:none", path=file) == {}
    assert maps.mapped("/memfd:", path=tmp_path / "absent") == {}


def test_a_mapping_is_seen_after_its_fd_was_closed_until_it_is_undone() -> None:
    name = "/memfd:dmabuf-mp:seen"
    with memfd.create("dmabuf-mp:seen", 3 * mmap.PAGESIZE) as fd:
        inode = os.fstat(fd.fileno()).st_ino
        mapping = mmap.mmap(fd.fileno(), 2 * mmap.PAGESIZE, prot=mmap.PROT_READ)
    with mapping:
        assert maps.mapped(name) == {f"{name} (deleted), inode {inode}": 2 * mmap.PAGESIZE}
    assert maps.mapped(name) == {}
